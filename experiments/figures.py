"""The figures of the README, from the raw results in results/. Needs matplotlib.

    python experiments/figures.py
"""
import json
import math
import os
import statistics

import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

import stability as stable  # noqa: E402
from compare import METHODS, TRAPS, best_rates, results  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
BLUE, ORANGE, GREY, SKY = "#2166ac", "#d95f02", "#888888", "#67a9cf"
DOTS = {"ms": 3, "mew": 0, "alpha": 0.6, "rasterized": True}  # hundreds of them: an image inside of the SVG
plt.rcParams.update({"font.size": 9, "svg.hashsalt": "grpo-sg", "axes.spines.top": False,
                     "axes.spines.right": False, "figure.constrained_layout.use": True})


def load(name):
    with open(os.path.join(HERE, "results", name)) as file:
        return [json.loads(line) for line in file] if name.endswith("l") else json.load(file)


def save(figure, name):
    figure.savefig(os.path.join(HERE, "figures", name), metadata={"Date": None}, dpi=200)


def method():
    """The weight, and what it is for: unlikely tokens have the longest gradients."""
    import torch

    from grpo_sg import Config, shaping_weights
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
    pi = torch.linspace(1e-4, 1, 400)
    for shaping, color in (("sg", BLUE), ("ar", ORANGE)):
        left.plot(pi, shaping_weights(pi.log(), Config(shaping=shaping)), color=color)
    left.axhline(1, color=GREY, lw=1)
    for text, y, color in (("GRPO-SG", 1.42, BLUE), ("GRPO", 1.02, GREY), ("AR-Lopti", 0.88, ORANGE)):
        left.text(0.99, y, text, color=color, ha="right", va="bottom")
    left.set(xlabel="probability of the token, $\\pi$", ylim=(0.75, 1.5), title="The weight w of a token")
    first = load("premise.jsonl")[0]
    rows, N = first["sample: pi, norm, norm at the logits"], first["words"]
    right.plot([1 - row[0] for row in rows], [row[2] for row in rows], "o", color=BLUE, **DOTS)
    for bound in (2, N / (N - 1)):
        right.plot([0, 1], [0, bound ** 0.5], color=GREY, lw=1)
    right.text(0.48, 0.8, "$\\sqrt{2}\\,(1-\\pi)$", color=GREY, ha="right")
    right.text(0.6, 0.45, "$\\sqrt{N/(N-1)}\\,(1-\\pi)$", color=GREY)
    right.set(xlabel="$1 - \\pi$", title="Norm of its gradient, d log $\\pi$ / d logits")
    save(figure, "method.svg")


def premise():
    """Over all weights of the model; and how much of the whole the unlikely tokens are."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
    rows = load("premise.jsonl")
    shapings = [("none", "GRPO"), ("ar", "AR-Lopti"), ("sg", "GRPO-SG"), ("reverse", "reverse")]
    for i, (task, color) in enumerate(zip(("kk", "math", "qa"), (BLUE, ORANGE, GREY))):
        results = [row for row in rows if row["task"] == task]
        points = results[0]["sample: pi, norm, norm at the logits"]
        left.plot([1 - row[0] for row in points], [row[1] for row in points], "o", color=color,
                  label=f"--task {task}", **DOTS)
        for j, (shaping, _) in enumerate(shapings):
            shares = [result["share of squared norm"][shaping] for result in results]
            height = j + 0.22 * (i - 1)
            right.plot(shares, [height] * len(shares), "o", color=color, **DOTS)
            right.plot(statistics.fmean(shares), height, "|", ms=9, color=color)
    left.legend(fontsize=8, frameon=False)
    left.set(xlabel="$1 - \\pi$", title="Norm of d log $\\pi$ / d weights")
    right.set_yticks(range(4), [name for _, name in shapings])
    right.invert_yaxis()
    right.set(xlim=(None, 1), title="Share of tokens with $\\pi$ < 1/3\nin the sum of squared norms")
    save(figure, "premise.svg")


def helps():
    """Paired differences to GRPO, each method at its own best learning rate."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.4), sharex=True)
    for axis, part, grid, title in zip(axes, ("help", "noisy-help"), ("grid", "noisy-grid"),
                                       ("early warm start", "noisy rewards")):
        rates = best_rates(grid)
        rows = {name: {row["seed"]: row["avg@4"] for row in results(part) if row["name"] == name}
                for name in METHODS}
        for i, name in enumerate(METHODS[1:]):
            paired = [rows[name][seed] - rows["none"][seed] for seed in rows["none"]]
            error = 2.093 * statistics.stdev(paired) / len(paired) ** 0.5  # Student's t, 20 seeds
            axis.plot(paired, [i + 0.15] * len(paired), "o", color=GREY, **DOTS)
            axis.errorbar(statistics.fmean(paired), i - 0.1, xerr=error, fmt="o", color=BLUE, capsize=3)
        axis.axvline(0, color=GREY, lw=1)
        axis.set_yticks(range(len(METHODS) - 1), [f"{name}, lr {rates[name]:g}" for name in METHODS[1:]])
        axis.invert_yaxis()
        axis.set_title(f"{title}; GRPO: lr {rates['none']:g}", fontsize=9)
    figure.supxlabel("test avg@4 minus that of GRPO from the same warm start: seeds, mean and 95 % interval",
                     fontsize=9)
    save(figure, "help.svg")


def curve(axis, curves, label, color):
    """Mean over seeds, with a band of one standard error."""
    steps = range(1, len(curves[0]) + 1)
    means = [statistics.fmean(values) for values in zip(*curves)]
    errors = [statistics.stdev(values) / len(values) ** 0.5 for values in zip(*curves)]
    axis.plot(steps, means, color=color, lw=1.5, label=label)
    axis.fill_between(steps, [m - e for m, e in zip(means, errors)], [m + e for m, e in zip(means, errors)],
                      color=color, alpha=0.2, lw=0)


def traps():
    """Each trap's curve beside the right one."""
    panels = [("traps", name) for name in TRAPS[1:]]
    panels.insert(1, ("rambling", TRAPS[1]))
    figure, axes = plt.subplots(1, len(panels), figsize=(10, 2.3), sharey=True)
    for axis, (part, name) in zip(axes, panels):
        rows = results(part)
        for which, label, color in (("sg", "GRPO-SG", BLUE), (name, "with the trap", ORANGE)):
            curve(axis, [row["curve"] for row in rows if row["name"] == which], label, color)
        start = ",\nstopping is to learn" if part == "rambling" else ""
        axis.set_title(name.replace("at another", "at\nanother") + start, fontsize=9)
        axis.set(xlabel="step")
    axes[0].set(ylabel="accuracy in training")
    axes[0].legend(fontsize=7, frameon=False)
    save(figure, "traps.svg")


def learning():
    """The three offline tasks, five seeds each."""
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.2), sharey=True)
    for axis, task in zip(axes, ("kk", "math", "qa")):
        curves = [run["training_accuracy"] for run in load(f"default_{task}.json")]
        for values in curves:
            axis.plot(range(1, len(values) + 1), values, color=GREY, lw=0.5, alpha=0.5)
        curve(axis, curves, task, BLUE)
        axis.set(title=f"--task {task}", xlabel="step")
    axes[0].set(ylabel="accuracy in training")
    save(figure, "learning.svg")


def stability():
    """Accuracy and the share of collapsed runs against the learning rate; where each method falls off."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
    cells = stable.by_cell(load("stability.jsonl"))
    T = stable.thresholds(stable.curves(cells))
    cells = {cell: list(rows.values()) for cell, rows in cells.items() if cell[0] == "map" and len(rows) > 1}
    before = statistics.fmean(row["before"] for rows in cells.values() for row in rows)
    left.axhline(before, color=GREY, lw=1, ls=":")
    looks = {"none": ("GRPO", GREY), "sg": ("GRPO-SG", BLUE), "sg / mean": ("GRPO-SG, w / mean", SKY),
             "ar": ("AR-Lopti", ORANGE)}

    def points(axis, x, y, seeds, **more):  # the mean and a 95 % interval of each list of values
        means, ends = list(map(statistics.fmean, seeds)), list(map(stable.bootstrap, seeds))
        sides = [[abs(m - end[side]) for m, end in zip(means, ends)] for side in (0, 1)]
        axis.errorbar(x or means, y or means, capsize=2, **{"yerr" if x else "xerr": sides}, **more)
    for i, (name, (label, color)) in enumerate(looks.items()):
        rates = sorted(cell[2] for cell in cells if cell[1] == name)
        rows = [cells["map", name, lr, 8] for lr in rates]
        beside = [math.log2(lr) + 0.07 * (i - 1.5) for lr in rates]  # so that none hides another
        look = {"color": color, "lw": 1.2, "ms": 3, "label": label}
        after = [[row["avg@4"] for row in cell] for cell in rows]
        down = [[float(stable.collapsed(row)) for row in cell] for cell in rows]
        points(left, beside, None, after, fmt="o-", **look)
        points(right, beside, None, down, fmt="o-", **look)
        if len(T[name]) > 1:
            points(right, None, [-0.12 - 0.08 * i], [list(T[name].values())], fmt="D", **look)
    ticks = sorted({cell[2] for cell in cells})
    for axis, title in ((left, "Test avg@4 (dotted: the warm start)"), (
            right, "Share of runs that end below their warm start\n(diamonds: the rate where half do)")):
        axis.set_xticks([math.log2(lr) for lr in ticks], [f"{lr * 1e4:g}" for lr in ticks])
        axis.set_title(title, fontsize=9)
        axis.set(xlabel="learning rate, in units of $10^{-4}$")
    right.set_yticks([0, 0.5, 1])
    left.legend(fontsize=8, frameon=False)
    save(figure, "stability.svg")


if __name__ == "__main__":
    for figure in (method, premise, helps, traps, learning, stability):
        try:
            figure()
        except (OSError, LookupError, statistics.StatisticsError) as error:  # a part that has not been run
            print(f"no figure {figure.__name__}: {type(error).__name__}: {error}")
