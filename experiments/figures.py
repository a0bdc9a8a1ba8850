"""The figures of the README, from the raw results beside this file. Needs matplotlib.

    python experiments/figures.py
"""
import json
import os
import statistics

import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

from compare import METHODS, TRAPS, best_rates, results  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
BLUE, ORANGE, GREY = "#2166ac", "#d95f02", "#888888"
plt.rcParams.update({"font.size": 9, "svg.hashsalt": "grpo-sg", "axes.spines.top": False,
                     "axes.spines.right": False, "figure.constrained_layout.use": True})


def load(name):
    with open(os.path.join(HERE, name)) as file:
        return json.load(file)


def save(figure, name):
    figure.savefig(os.path.join(HERE, name), metadata={"Date": None})


def method():
    """The weight, and what it is made for: the norms of single tokens' gradients."""
    import torch

    from grpo_sg import token_weights
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
    pi = torch.linspace(1e-4, 1, 400)
    left.plot(pi, token_weights(pi.log()), color=BLUE)
    left.set(xlabel="probability of the token, pi", ylabel="weight w", ylim=(0.9, 1.5),
             title="What GRPO-SG multiplies a token's term by")
    result = load("premise.json")[0]
    rows = result["sample: pi, norm, norm at the logits"]
    right.scatter([1 - row[0] for row in rows], [row[2] for row in rows], s=6, color=BLUE, alpha=0.5, lw=0)
    ends, N = [0, 1], result["words"]
    right.plot(ends, [2 ** 0.5 * x for x in ends], color=GREY, lw=1)
    right.plot(ends, [(N / (N - 1)) ** 0.5 * x for x in ends], color=GREY, lw=1)
    right.set(xlabel="1 - pi", ylabel="norm of d log pi / d logits",
              title="Unlikely tokens have the longest gradients")
    save(figure, "method.svg")


def helps():
    """Paired differences to GRPO, each method at its own best learning rate."""
    figure, axis = plt.subplots(figsize=(8, 2.4))
    rows = {name: {row["seed"]: row["avg@4"] for row in results("help") if row["name"] == name}
            for name in METHODS}
    for i, name in enumerate(METHODS[1:]):
        paired = [rows[name][seed] - rows["none"][seed] for seed in rows["none"] if seed in rows[name]]
        error = 2.093 * statistics.stdev(paired) / len(paired) ** 0.5
        axis.scatter(paired, [i + 0.15] * len(paired), s=8, color=GREY, alpha=0.6, lw=0)
        axis.errorbar(statistics.fmean(paired), i - 0.1, xerr=error, fmt="o", color=BLUE, capsize=3)
    axis.axvline(0, color=GREY, lw=1)
    axis.set_yticks(range(len(METHODS) - 1), [f"{name}, lr {best_rates()[name]:g}" for name in METHODS[1:]])
    axis.set(xlabel="test avg@4 minus that of GRPO from the same warm start: seeds, mean and 95 % interval")
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
    figure, axes = plt.subplots(1, len(TRAPS) - 1, figsize=(8, 2.2), sharey=True)
    curves = {name: [row["curve"] for row in results("traps") if row["name"] == name] for name in TRAPS}
    for axis, name in zip(axes, TRAPS[1:]):
        curve(axis, curves["sg"], "GRPO-SG", BLUE)
        curve(axis, curves[name], name, ORANGE)
        axis.set(title=name, xlabel="step")
    axes[0].set(ylabel="accuracy in training")
    save(figure, "traps.svg")


def learning():
    """The three offline tasks, five seeds each."""
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.2), sharey=True)
    for axis, task in zip(axes, ("kk", "math", "qa")):
        curve(axis, [run["training_accuracy"] for run in load(f"default_{task}.json")], task, BLUE)
        axis.set(title=f"--task {task}", xlabel="step")
    axes[0].set(ylabel="accuracy in training")
    save(figure, "learning.svg")


if __name__ == "__main__":
    for figure in (method, helps, traps, learning):
        try:
            figure()
        except (OSError, KeyError, IndexError) as error:  # a part that has not been run
            print(f"no figure {figure.__name__}: {type(error).__name__}: {error}")
