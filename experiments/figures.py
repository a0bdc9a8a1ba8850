"""Draw the figures of the pages. Needs matplotlib.

    python -m experiments.figures                      method.svg, real.svg and puzzles.svg
    python -m experiments.figures --report runs/NAME   report.png, from a run's page

The last command takes a picture of the page's first two curves and of one group of completions.
It needs Chromium. Commit 7e9e938 has the script of signal.svg and forest.svg, 196b81b that of
shares.svg.
"""
import argparse
import pathlib
import statistics
import subprocess
import tempfile

import matplotlib
import matplotlib.pyplot as plt
import torch

import grpo_sg
from experiments.analysis import interval, read, standard_error
from experiments.kk_rl import measure
from experiments.real2 import RATES, select_complete

FIGURES = pathlib.Path(__file__).parent / "figures"
BLUE, ORANGE, GREY = "#2166ac", "#d95f02", "#888888"
# What the picture of a run's page leaves out.
REPORT_STYLE = """<style>
    h1, body > p, body > details, #charts figure:nth-of-type(n+3), h2 ~ p, label, output, .live,
    details:not([open]), section > table, li:nth-child(n+4) { display: none !important }
    h2 { margin: 8px 0 }
    body { margin-top: 0 }
</style>"""


def save(figure, name):
    figure.savefig(FIGURES / name, metadata={"Date": None}, dpi=200)


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
    save(figure, "method.svg")


def sums():
    """Plot the real model's runs on sums: the accuracy of the samples at two learning rates, as a
    mean over seeds and each seed as a thin line, and the test of each pair of runs."""
    rows = select_complete(read("real2"))
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.6))
    right = axes[2]
    for axis, lr, marker in zip(axes, RATES, "ox"):
        ends = {}
        for shaping, name, color in (("sg", "GRPO-SG", BLUE), ("none", "GRPO", ORANGE)):
            runs = [row for row in rows if row["lr"] == lr and row["shaping"] == shaping]
            ends[shaping] = [row["avg@4"] for row in runs]  # in the order of the seeds
            curves = [row["accuracy"] for row in runs]
            xs = range(1, len(curves[0]) + 1)
            for curve in curves:
                axis.plot(xs, curve, color=color, lw=0.6, alpha=0.4)
            means = [statistics.fmean(values) for values in zip(*curves)]
            axis.plot(xs, means, color=color, lw=2, label=name)
        axis.set(title=f"accuracy of samples, rate {lr}", xlabel="step", xlim=(1, len(means)),
                 ylim=(0, 0.9))
        right.plot(ends["none"], ends["sg"], marker, color="black", ms=4, fillstyle="none",
                   label=f"rate {lr}")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    right.plot([0, 0.9], [0, 0.9], color=GREY, lw=0.8)
    right.set(title="avg@4 after training", xlabel="GRPO", ylabel="GRPO-SG", xlim=(0, 0.9),
              ylim=(0, 0.9), aspect="equal")
    right.legend(frameon=False, fontsize=8, loc="lower right")
    save(figure, "real.svg")


def puzzles():
    """Plot two attempts of RL on Knights and Knaves with the real model: means of ten steps, and
    what the test says of the second one."""
    attempts = (("kk_rl2", "lr2e-05-seed0", "cold start of 260 steps, lr 2e-5", BLUE),
                ("kk_rl", "lr5e-05-seed0", "cold start of 100 steps, lr 5e-5", GREY))
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.6))
    for experiment, name, label, color in attempts:
        run, = (row for row in read(experiment) if row.get("run") == name)
        for axis, column in zip(axes, ("accuracy", "equal_groups")):
            values = [step[column] for step in run["steps"]]
            blocks = [values[i:i + 10] for i in range(0, len(values), 10) if len(values) >= i + 5]
            xs = [10 * i + 5.5 for i in range(len(blocks))]
            errors = [standard_error(block) for block in blocks]
            axis.errorbar(xs, [statistics.fmean(block) for block in blocks], errors, color=color,
                          marker="o", ms=3, lw=1.5, label=label)
    tests = {row["model"]: row["test"] for row in read("kk_rl2") if "test" in row}
    constant = tests["cold"]["best constant answer"]
    axes[0].axhline(constant, color=GREY, lw=0.8, ls=":")
    axes[0].text(58, 0.02, "dotted: a constant answer", color=GREY, ha="right", fontsize=7)
    axes[0].set(title="correct samples", xlabel="step", ylim=(0, 0.75))
    axes[1].set(title="groups with equal rewards", xlabel="step", ylim=(0, 1))
    axes[0].legend(frameon=False, fontsize=7, loc="upper left")
    for shift, name, label, fill in ((-0.1, "cold", "before", "white"),
                                     (0.1, "lr2e-05-seed0-step60", "after 60 steps", BLUE)):
        for x, values in enumerate(measure(tests[name]).values()):
            average, low, _ = interval(values)
            axes[2].errorbar(x + shift, average, average - low, color=BLUE, fmt="o", ms=5, mfc=fill,
                             label=label if x == 0 else None)
    axes[2].legend(frameon=False, fontsize=7, loc="lower right")
    axes[2].set(title="297 test puzzles", xticks=range(3), xticklabels=measure(tests["cold"]),
                ylim=(0, 1), xlim=(-0.5, 2.5))
    save(figure, "puzzles.svg")


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
    sums()
    puzzles()


if __name__ == "__main__":
    main()
