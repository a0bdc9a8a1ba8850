"""The README's picture of tokens, figures/tokens.png, from the page of a run. Needs Chromium.

    python grpo_sg.py --out runs/picture && python -m experiments.picture runs/picture

It shows what the page shows of the last evaluation: the groups whose rewards differ, coloured by w A.
"""
import argparse
import pathlib
import subprocess
import tempfile

FIGURE = pathlib.Path(__file__).parent / "figures" / "tokens.png"
ALONE = "body > :not(section), section > table, details:not([open]) { display: none !important }"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=pathlib.Path)
    text = (parser.parse_args().run / "report.html").read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.html"
        # The page allows no style but its own; this copy, which is thrown away, does.
        text = text.replace("Content-Security-Policy", "")
        page.write_text(f"{text}<style>{ALONE}</style>", "utf-8")
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        "--window-size=1060,770", f"--screenshot={FIGURE}", page.as_uri()], check=True)
    print(FIGURE)


if __name__ == "__main__":
    main()
