"""Draw the figures of the pages from the raw results in results/. Needs matplotlib.

    python -m experiments.figures                      both figures
    python -m experiments.figures method               only this one
    python -m experiments.figures --report runs/NAME   figures/report.png, from a run's page

The last command takes a picture of the page's first two curves and of one group of completions.
It needs Chromium. Commit 7e9e938 has the script of signal.svg and forest.svg.
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
from experiments import classes
from experiments.analysis import interval, read

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
    figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None}, dpi=200)


def plot_intervals(axis, xs, lists, **look):
    """Plot the mean and the 95% confidence interval of each list of values."""
    means, below, above = [], [], []
    for values in lists:
        average, low, high = interval(values)
        means.append(average)
        below.append(average - low)
        above.append(high - average)
    axis.errorbar(xs, means, yerr=[below, above], capsize=2, **look)


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
    # The norm is sqrt((1 - pi)^2 + sum of the other tokens' pi^2). It is at the upper bound if one
    # other token has the rest, and close to the lower one if very many tokens share it.
    right.fill_between([0, 1], [0, 1], [0, 2 ** 0.5], color=BLUE, alpha=0.3, lw=0)
    right.text(0.48, 0.8, "$\\sqrt{2}\\,(1-\\pi)$", color=GREY, ha="right")
    right.text(0.6, 0.45, "$1-\\pi$", color=GREY)
    right.set(xlabel="$1 - \\pi$", title="Norm of its gradient, d log $\\pi$ / d logits")
    save(figure, "method")


def shares():
    """Plot each class's share of the signal and of the noise, at the start and after 15 steps."""
    found = classes.points(read("classes"))
    tasks, steps = (sorted({key[i] for key in found}) for i in range(2))
    figure, axes = plt.subplots(len(steps), len(tasks), figsize=(8, 4), sharex=True, sharey=True,
                                squeeze=False)
    for (task, step), here in found.items():
        axis = axes[steps.index(step)][tasks.index(task)]
        axis.axhline(0, color=GREY, lw=1, ls=":")
        axis.axvline(3.5, color=GREY, lw=1)
        for key, color, offset in (("signal", BLUE, -0.15), ("noise", ORANGE, 0.15)):
            lists = [classes.values_of(here, "classes", name, key) for name in classes.CLASSES]
            xs = [x + offset for x in range(len(lists))]
            axis.bar(xs, [statistics.fmean(each) for each in lists], 0.3, color=color, label=key)
            if len(here) > 2:
                plot_intervals(axis, xs, lists, fmt="none", color="black", lw=0.8)
        axis.set_title(f"--task {task}, {f'after {step} steps' if step else 'at the start'}",
                       fontsize=9)
        labels = [name.split(", ")[1].removeprefix("pi ") for name in classes.CLASSES]
        axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("$\\pi$, for A > 0 (left) and A < 0 (right)")
    axes[0][0].legend(fontsize=8, frameon=False)
    figure.supylabel("share", fontsize=9)
    save(figure, "shares")


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


ALL = {each.__name__: each for each in (method, shares)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(ALL))
    parser.add_argument("--report", type=pathlib.Path, metavar="RUN", help="report.png")
    args = parser.parse_args()
    unknown = [name for name in args.figures if name not in ALL]
    if unknown:
        parser.error(f"there is no figure {unknown[0]}: {', '.join(ALL)}")
    if args.report:
        if not (args.report / "report.html").is_file():
            parser.error(f"--report {args.report}: give a run's folder, with its report.html")
        return report(args.report)
    matplotlib.use("svg")
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "grpo-sg", "axes.spines.top": False,
                         "axes.spines.right": False, "figure.constrained_layout.use": True})
    for name in args.figures or ALL:
        ALL[name]()


if __name__ == "__main__":
    main()
