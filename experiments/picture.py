"""The README's picture of tokens, figures/tokens.png, from the page of a run. Needs Chromium.

    python grpo_sg.py --out runs/picture && python experiments/picture.py runs/picture

It shows what the page shows of the last evaluation: the groups whose rewards differ, coloured by w A.
"""
import pathlib
import subprocess
import sys
import tempfile

FIGURE = pathlib.Path(__file__).parent / "figures" / "tokens.png"
ALONE = "body > :not(section), section > table, details:not([open]) { display: none !important }"

text = (pathlib.Path(sys.argv[1]) / "report.html").read_text("utf-8")
with tempfile.TemporaryDirectory() as folder:
    page = pathlib.Path(folder) / "page.html"
    # The page allows no style but its own; this copy, which is thrown away, does.
    page.write_text(f"{text.replace('Content-Security-Policy', '')}<style>{ALONE}</style>", "utf-8")
    subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                    "--window-size=1060,770", f"--screenshot={FIGURE}", page.as_uri()], check=True)
print(FIGURE)
