"""Draw figures/real.svg, the learning curves of a real model, from results/real.jsonl. Needs
matplotlib.

    python -m experiments.real_figure
"""
import json
import pathlib
import statistics

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
ARMS = {"shaping=sg": ("GRPO-SG", "#2166ac"), "shaping=none": ("GRPO", "#d95f02")}
PANELS = {"reward": "reward", "format_rate": "well formed", "accuracy": "correct"}


def read_runs(path=HERE / "results" / "real.jsonl"):
    """Return the runs of each arm: arm -> seed -> rows of the training steps."""
    runs = {arm: {} for arm in ARMS}
    for line in path.read_text("utf-8").splitlines():
        run = json.loads(line)
        runs[run["arm"]][run["seed"]] = run["steps"]
    # Only pairs are compared.
    seeds = set.intersection(*(set(runs[arm]) for arm in ARMS))
    return {arm: {seed: runs[arm][seed] for seed in sorted(seeds)} for arm in ARMS}


def draw(runs):
    """Plot each panel's mean over seeds, and each seed as a thin line."""
    figure, axes = plt.subplots(1, len(PANELS), figsize=(8, 2.6))
    for axis, (column, title) in zip(axes, PANELS.items()):
        for arm, (name, color) in ARMS.items():
            curves = [[row[column] for row in rows] for rows in runs[arm].values()]
            xs = range(1, len(curves[0]) + 1)
            for curve in curves:
                axis.plot(xs, curve, color=color, lw=0.6, alpha=0.4)
            means = [statistics.fmean(values) for values in zip(*curves)]
            axis.plot(xs, means, color=color, lw=2, label=name)
        axis.set(title=title, xlabel="step", xlim=(1, len(means)))
        if column != "reward":
            axis.set_ylim(0, 1.02)
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def main():
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "grpo-sg", "axes.spines.top": False,
                         "axes.spines.right": False, "figure.constrained_layout.use": True})
    draw(read_runs()).savefig(HERE / "figures" / "real.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
