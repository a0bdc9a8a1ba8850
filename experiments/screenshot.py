"""Take the README's picture of report.html, the page that every run writes.

    python -m experiments.screenshot runs/NAME      writes experiments/figures/report.png

Needs chromium. The picture shows the first two curves and one group of completions.
"""
import argparse
import pathlib
import subprocess
import tempfile

FIGURE = pathlib.Path(__file__).parent / "figures" / "report.png"
STYLE = """<style>
    h1, body > p, body > details, #charts figure:nth-of-type(n+3), h2 ~ p, label, output,
    details:not([open]), section > table, li:nth-child(n+4) { display: none !important }
    h2 { margin: 8px 0 }
    body { margin-top: 0 }
</style>"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=pathlib.Path)
    run = parser.parse_args().run
    text = (run / "report.html").read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.html"
        # The page allows no style except its own; this temporary copy does.
        page.write_text(text.replace("Content-Security-Policy", "") + STYLE, "utf-8")
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu",
                        "--hide-scrollbars", f"--user-data-dir={folder}/chromium",
                        "--window-size=800,660", f"--screenshot={FIGURE}", page.as_uri()],
                       check=True, capture_output=True)
    print(FIGURE)


if __name__ == "__main__":
    main()
