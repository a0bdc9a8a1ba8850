"""Draw the figures of the pages. Needs matplotlib.

    python -m experiments.figures                      figures/method.svg
    python -m experiments.figures --report runs/NAME   figures/report.png, from a run's page

The last command takes a picture of the page's first two curves and of one group of completions.
It needs Chromium. Commit 7e9e938 has the script of signal.svg and forest.svg, 196b81b that of
shares.svg.
"""
import argparse
import pathlib
import subprocess
import tempfile

import matplotlib
import matplotlib.pyplot as plt
import torch

import grpo_sg

FIGURES = pathlib.Path(__file__).parent / "figures"
BLUE, ORANGE, GREY = "#2166ac", "#d95f02", "#888888"
# What the picture of a run's page leaves out.
REPORT_STYLE = """<style>
    h1, body > p, body > details, #charts figure:nth-of-type(n+3), h2 ~ p, label, output, .live,
    details:not([open]), section > table, li:nth-child(n+4) { display: none !important }
    h2 { margin: 8px 0 }
    body { margin-top: 0 }
</style>"""



def method():
    """Plot the weight and its motivation: unlikely tokens have the longest gradients."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
    pi = torch.linspace(1e-4, 1, 400)
    for shaping, color in (("sg", BLUE), ("ar", ORANGE)):
        weights = grpo_sg.weigh(pi.log(), grpo_sg.Config(shaping=shaping))
        left.plot(pi, weights, color=color)
    left.axhline(1, color=GREY, lw=1)
    names = ("GRPO-SG", 1.42, BLUE), ("GRPO", 1.02, GREY), ("AR-Lopti", 0.88, ORANGE)
    for text, y, color in names:
        left.text(0.99, y, text, color=color, ha="right", va="bottom")
    left.set(xlabel="probability of the token, $\\pi$", ylim=(0.75, 1.5),
             title="The weight w of a token")
    # Both papers have the bounds: AR-Lopti in Proposition 4.2, and GRPO-SG, by a review, in Theorem
    # 3.1. The norm is sqrt((1 - pi)^2 + sum of the other tokens' pi^2). It is at the upper bound if
    # one other token has the rest, and close to the lower one if very many tokens share it.
    right.fill_between([0, 1], [0, 1], [0, 2 ** 0.5], color=BLUE, alpha=0.3, lw=0)
    right.text(0.48, 0.8, "$\\sqrt{2}\\,(1-\\pi)$", color=GREY, ha="right")
    right.text(0.6, 0.45, "$1-\\pi$", color=GREY)
    right.set(xlabel="$1 - \\pi$", title="Norm of its gradient, d log $\\pi$ / d logits")
    figure.savefig(FIGURES / "method.svg", metadata={"Date": None}, dpi=200)


def report(run):
    """Take a picture of a run's page, without the parts that REPORT_STYLE hides."""
    text = (run / "report.html").read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.html"
        # The page allows no style except its own; this temporary copy does.
        page.write_text(text.replace("Content-Security-Policy", "") + REPORT_STYLE, "utf-8")
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu",
                        "--hide-scrollbars", f"--user-data-dir={folder}/chromium",
                        "--window-size=800,660", f"--screenshot={FIGURES}/report.png",
                        page.as_uri()], check=True, capture_output=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--report", type=pathlib.Path, metavar="RUN", help="report.png")
    args = parser.parse_args()
    if args.report:
        if not (args.report / "report.html").is_file():
            parser.error(f"--report {args.report}: give a run's folder, with its report.html")
        return report(args.report)
    matplotlib.use("svg")
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "grpo-sg", "axes.spines.top": False,
                         "axes.spines.right": False, "figure.constrained_layout.use": True})
    method()


if __name__ == "__main__":
    main()
