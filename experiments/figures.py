"""The figures of the pages, from the raw results in results/. Needs matplotlib.

    python -m experiments.figures                   all of which there are results
    python -m experiments.figures method dose       these
"""
import argparse
import json
import math
import pathlib
import statistics

import matplotlib
import matplotlib.pyplot as plt
import torch

import grpo_sg
from experiments import compare, dose, paired, stability

FIGURES = pathlib.Path(__file__).parent / "figures"
BLUE, ORANGE, GREY = "#2166ac", "#d95f02", "#888888"
DOTS = {"ms": 3, "mew": 0, "alpha": 0.6, "rasterized": True}  # hundreds of them: an image inside of the SVG


def read(name):
    return paired.read_rows(paired.RESULTS / name)


def save(figure, name):
    figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None}, dpi=200)


def plot_mean(axis, curves, label, color):
    """Mean over seeds, with a band of one standard error."""
    steps = range(1, len(curves[0]) + 1)
    means, below, above = [], [], []
    for values in zip(*curves, strict=True):
        average = statistics.fmean(values)
        error = statistics.stdev(values) / len(values) ** 0.5
        means.append(average)
        below.append(average - error)
        above.append(average + error)
    axis.plot(steps, means, color=color, lw=1.5, label=label)
    axis.fill_between(steps, below, above, color=color, alpha=0.2, lw=0)


def plot_intervals(axis, xs, lists, **look):
    """The mean and the 95 % interval of each list of values."""
    means, below, above = [], [], []
    for values in lists:
        average, low, high = paired.interval(values)
        means.append(average)
        below.append(average - low)
        above.append(high - average)
    axis.errorbar(xs, means, yerr=[below, above], capsize=2, **look)


def plot_seeds(axis, y, values):
    """Differences of seeds as dots, and below them their mean and interval, in a row."""
    average, low, high = paired.interval(values)
    axis.plot(values, [y + 0.15] * len(values), "o", color=GREY, **DOTS)
    axis.errorbar(average, y - 0.1, xerr=[[average - low], [high - average]], fmt="o", color=BLUE, capsize=3)


def name_rows(axis, names):
    axis.axvline(0, color=GREY, lw=1)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()


def method():
    """The weight, and what it is for: unlikely tokens have the longest gradients."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
    pi = torch.linspace(1e-4, 1, 400)
    for shaping, color in (("sg", BLUE), ("ar", ORANGE)):
        weights = grpo_sg.shaping_weights(pi.log(), grpo_sg.Config(shaping=shaping))
        left.plot(pi, weights, color=color)
    left.axhline(1, color=GREY, lw=1)
    for text, y, color in (("GRPO-SG", 1.42, BLUE), ("GRPO", 1.02, GREY), ("AR-Lopti", 0.88, ORANGE)):
        left.text(0.99, y, text, color=color, ha="right", va="bottom")
    left.set(xlabel="probability of the token, $\\pi$", ylim=(0.75, 1.5), title="The weight w of a token")
    first = read("premise.jsonl")[0]
    points, V = first["sample: pi, norm, norm at the logits"], first["words"]
    right.plot([1 - pi for pi, _, _ in points], [norm for _, _, norm in points], "o", color=BLUE, **DOTS)
    for bound in (2, V / (V - 1)):
        right.plot([0, 1], [0, bound ** 0.5], color=GREY, lw=1)
    right.text(0.48, 0.8, "$\\sqrt{2}\\,(1-\\pi)$", color=GREY, ha="right")
    right.text(0.6, 0.45, "$\\sqrt{V/(V-1)}\\,(1-\\pi)$", color=GREY)
    right.set(xlabel="$1 - \\pi$", title="Norm of its gradient, d log $\\pi$ / d logits")
    save(figure, "method")


def premise():
    """Over all weights of the model; and how much of the whole the unlikely tokens are."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
    names = {"none": "GRPO", "sg": "GRPO-SG"}
    for i, (task, color) in enumerate((("kk", BLUE), ("math", ORANGE), ("qa", GREY))):
        rows = [row for row in read("premise.jsonl") if row["task"] == task]
        points = rows[0]["sample: pi, norm, norm at the logits"]
        left.plot([1 - pi for pi, _, _ in points], [norm for _, norm, _ in points], "o", color=color,
                  label=f"--task {task}", **DOTS)
        for j, shaping in enumerate(names):
            shares = [row["share of squared norm"][shaping] for row in rows]
            height = j + 0.22 * (i - 1)
            right.plot(shares, [height] * len(shares), "o", color=color, **DOTS)
            right.plot(statistics.fmean(shares), height, "|", ms=9, color=color)
    left.legend(fontsize=8, frameon=False)
    left.set(xlabel="$1 - \\pi$", title="Norm of d log $\\pi$ / d weights")
    right.set_yticks(range(len(names)), names.values())
    right.invert_yaxis()
    right.set(xlim=(None, 1), title="Share of tokens with $\\pi$ < 1/3\nin the sum of squared norms")
    save(figure, "premise")


def helps():
    """Paired differences to GRPO, each method at its own best learning rate."""
    figure, axis = plt.subplots(figsize=(7, 1.8))
    parts = {"help": "clean rewards", "noisy-help": "noisy rewards"}
    for i, part in enumerate(parts):
        here = [row for row in read("compare.jsonl") if row["part"] == part]
        plot_seeds(axis, i, paired.differences(paired.select(here, name="sg"), paired.select(here, name="none")))
    name_rows(axis, parts.values())
    axis.set_ylim(1.4, -0.4)
    figure.supxlabel("test avg@4 of GRPO-SG minus that of GRPO: seeds, mean and 95 % interval", fontsize=9)
    save(figure, "help")


def traps():
    """Each mistake's curve beside the right one."""
    names = compare.TRAPS[1:]
    figure, axes = plt.subplots(1, len(names), figsize=(9, 2.3), sharey=True)
    here = [row for row in read("compare.jsonl") if row["part"] == "traps"]
    for axis, name in zip(axes, names):
        for which, label, color in (("sg", "GRPO-SG", BLUE), (name, "with the mistake", ORANGE)):
            curves = [row["curve"] for row in paired.select(here, name=which).values()]
            plot_mean(axis, curves, label, color)
        axis.set_title(name.replace("at another", "at\nanother").replace("end", "stop"), fontsize=9)
        axis.set(xlabel="step")
    axes[0].set(ylabel="accuracy in training")
    axes[0].legend(fontsize=7, frameon=False)
    save(figure, "traps")


def learning():
    """The three offline tasks, five seeds each."""
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.2), sharey=True)
    for axis, task in zip(axes, ("kk", "math", "qa")):
        runs = json.loads((paired.RESULTS / f"default_{task}.json").read_text())
        curves = [run["training_accuracy"] for run in runs]
        for curve in curves:
            axis.plot(range(1, len(curve) + 1), curve, color=GREY, lw=0.5, alpha=0.5)
        plot_mean(axis, curves, task, BLUE)
        axis.set(title=f"--task {task}", xlabel="step")
    axes[0].set(ylabel="accuracy in training")
    save(figure, "learning")


def collapse():
    """Accuracy and the share of collapsed runs against the learning rate."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
    here = read("stability.jsonl")
    left.axhline(statistics.fmean(row["before"] for row in here), color=GREY, lw=1, ls=":")
    for name, label, color, beside in (("none", "GRPO", GREY, -0.05), ("sg", "GRPO-SG", BLUE, 0.05)):
        after, down = [], []
        for lr in stability.RATES:
            cell = paired.select(here, name=name, lr=lr).values()
            after.append([row["avg@4"] for row in cell])
            down.append(statistics.fmean(row["avg@4"] < row["before"] for row in cell))
        xs = [x + beside for x in stability.OCTAVES]  # so that neither hides the other
        look = {"color": color, "lw": 1.2, "ms": 3, "label": label}
        plot_intervals(left, xs, after, fmt="o-", **look)
        right.plot(xs, down, "o-", **look)
    for axis in (left, right):
        axis.set_xticks(stability.OCTAVES, [f"{lr * 1e4:g}" for lr in stability.RATES])
        axis.set(xlabel="learning rate, in units of $10^{-4}$")
    left.set_title("Test avg@4 (dotted: the warm start)", fontsize=9)
    right.set_title("Share of runs that end below their warm start", fontsize=9)
    left.legend(fontsize=8, frameon=False)
    save(figure, "stability")


def doses():
    """Accuracy, and paired differences to GRPO, against the dose."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
    rows = read("dose.jsonl")
    here = [row for row in rows if row["part"] == "count"]
    left.axhline(statistics.fmean(row["avg@4"] for row in rows if row["part"] == "start"), color=GREY, lw=1, ls=":")
    base = paired.select(here, name="none")
    xs, after, differences = [], [], []
    for name, size in dose.DOSES.items():
        cell = paired.select(here, name=name)
        xs.append(math.log(size or 30))  # w = pi stands beside the axis
        after.append([row["avg@4"] for row in cell.values()])
        differences.append(paired.differences(cell, base))
    right.axhline(0, color=GREY, lw=1)
    panels = ((left, after, "Test avg@4 (dotted: the warm start)"),
              (right, differences, "Minus GRPO's, paired by seed"))
    for axis, lists, title in panels:
        plot_intervals(axis, xs, lists, fmt="o", color=BLUE, ms=4)
        axis.set_xticks(xs, [name.replace("none", "1") for name in dose.DOSES], fontsize=7)
        axis.set(title=title)
    figure.supxlabel("dose: how many times as much likely tokens count; pi: w = $\\pi$", fontsize=9)
    save(figure, "dose")


ALL = {each.__name__: each for each in (method, premise, helps, traps, learning, collapse, doses)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("figures", nargs="*", default=list(ALL), metavar="FIGURE", help=", ".join(ALL))
    matplotlib.use("svg")
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "grpo-sg", "axes.spines.top": False,
                         "axes.spines.right": False, "figure.constrained_layout.use": True})
    for name in parser.parse_args().figures:
        try:
            ALL[name]()
        except (OSError, LookupError, statistics.StatisticsError) as error:  # a part that has not been run
            print(f"no figure {name}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
