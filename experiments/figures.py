"""Draw the figures of the pages from the raw results in results/. Needs matplotlib.

    python -m experiments.figures                      all figures that have results
    python -m experiments.figures method damping       these
    python -m experiments.figures --report runs/NAME   figures/report.png, from a run's page

The last command takes a picture of the page's first two curves and of one group of completions.
It needs Chromium.
"""
import argparse
import math
import pathlib
import statistics
import subprocess
import tempfile

import matplotlib
import matplotlib.pyplot as plt
import torch

import grpo_sg
from experiments import classes, when
from experiments.analysis import (
    DAMPING_FACTORS, OCTAVES, cell, comparisons, detectable, differences, interval, mean, read,
    tuned)
from experiments.run import EXPERIMENTS
from experiments.signal import POINTS, cells, values_of

FIGURES = pathlib.Path(__file__).parent / "figures"
BLUE, ORANGE, GREY = "#2166ac", "#d95f02", "#888888"
COUNTED = "Euclid", "clean"  # metric and rewards of what counts in experiments/signal.py
WEIGHT_COLORS = {"GRPO-SG": BLUE, "AR": "#5aae61", "damping 3": "#f4a582",
                 "damping 10": ORANGE, "damping 1/1.4": "#9970ab"}
# What the picture of a run's page leaves out.
REPORT_STYLE = """<style>
    h1, body > p, body > details, #charts figure:nth-of-type(n+3), h2 ~ p, label, output, .live,
    details:not([open]), section > table, li:nth-child(n+4) { display: none !important }
    h2 { margin: 8px 0 }
    body { margin-top: 0 }
</style>"""
# The loop is plain SVG: its colors follow the reader's light or dark scheme, and it is readable
# at 400 pixels.
LOOP_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
  .name { font-weight: 600; font-size: 15px }
  .small { font-size: 12px; fill: #59636e }
  .box { fill: #f6f8fa; stroke: #59636e }
  .arrow { fill: none; stroke: #0969da; stroke-width: 2; marker-end: url(#head) }
  .head { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .small { fill: #b1bac4 }
    .box { fill: #151b23; stroke: #9198a1 }
    .arrow { stroke: #4493f8 }
    .head { fill: #4493f8 }
  }
"""
# Of the loop: (x, y of the middle, the name, two lines)
BOXES = ((100, 55, "1. sample", "G completions of each", "problem, by the policy"),
         (300, 55, "2. verify", "a verifier gives each", "a reward: 3, -0.5, 3, -3"),
         (300, 195, "3. compare", "each with its group:", "A = 0.8, -0.4, 0.8, -1.2"),
         (100, 195, "4. learn", "more of A &gt; 0, less of", "A &lt; 0, token by token: w A"))
ARROWS = ("M188 55H208", "M300 95V151", "M212 195H192", "M100 155V99")



def save(figure, name):
    figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None}, dpi=200)


def plot_mean(axis, curves, label, color):
    """Plot the mean over seeds, with a band of one standard error."""
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


def forest():
    """Plot GRPO-SG minus GRPO, relative to RL's gain: intervals and minimum detectable effects."""
    rows = comparisons()
    figure, axis = plt.subplots(figsize=(8, 3.3))
    axis.axvline(0, color=GREY, lw=1)
    for i, (_, label, seeds, minus, gained) in enumerate(rows):
        average, low, high = (100 * x / gained for x in interval(minus))
        least = 100 * detectable(minus) / gained
        axis.barh(i, 2 * least, left=-least, height=0.72, color="#e8e8e8", zorder=0)
        axis.errorbar(average, i, xerr=[[average - low], [high - average]], fmt="o", ms=4,
                      color=BLUE, capsize=3)
        axis.text(81, i, f"{average:+.0f} [{low:+.0f}, {high:+.0f}]", va="center", fontsize=9)
    names = [f"{row.label}\nseeds {row.seeds}" for row in rows]
    axis.set_yticks(range(len(rows)), names, fontsize=8.5, linespacing=1.1)
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    axis.spines["left"].set_visible(False)
    axis.set(xlim=(-60, 80), xlabel="avg@4 of GRPO-SG minus GRPO, in % of what RL with GRPO gained "
             "(95% CI)\ngrey: smaller than the minimum detectable effect (80% power)")
    with plt.rc_context({"svg.fonttype": "none"}):  # text, a tenth of the size of its outlines
        save(figure, "forest")


def mistakes():
    """Plot each mistake's curve next to the right one."""
    names = list(EXPERIMENTS["mistakes"].arms)[1:]
    figure, axes = plt.subplots(1, len(names), figsize=(9, 2.3), sharey=True)
    for axis, name in zip(axes, names):
        both = ("sg", "GRPO-SG", BLUE), (name, "with the mistake", ORANGE)
        for which, label, color in both:
            curves = [row["curve"] for row in cell("mistakes", which).values()]
            plot_mean(axis, curves, label, color)
        title = name.replace("at another", "at\nanother").replace("end", "stop")
        axis.set_title(title, fontsize=9)
        axis.set(xlabel="step")
    axes[0].set(ylabel="accuracy in training")
    axes[0].legend(fontsize=7, frameon=False)
    save(figure, "traps")


def learning():
    """Plot the default run of each task, from the pretrained model, five seeds each."""
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.2), sharey=True)
    for axis, task in zip(axes, ("kk", "math", "qa")):
        curves = [row["curve"] for row in cell("default", f"{task}, ready").values()]
        for curve in curves:
            axis.plot(range(1, len(curve) + 1), curve, color=GREY, lw=0.5, alpha=0.5)
        plot_mean(axis, curves, task, BLUE)
        axis.set(title=f"--task {task}", xlabel="step")
    axes[0].set(ylabel="accuracy in training")
    save(figure, "learning")


def collapse():
    """Plot accuracy and the share of collapsed runs against the learning rate."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
    rates = EXPERIMENTS["stability"].rates
    before = statistics.fmean(row["before"] for row in read("stability"))
    left.axhline(before, color=GREY, lw=1, ls=":")
    methods = ("none", "GRPO", GREY, -0.05), ("sg", "GRPO-SG", BLUE, 0.05)
    for name, label, color, offset in methods:
        after, down = [], []
        for rate in rates:
            rows = cell("stability", name, rate=rate).values()
            after.append([row["avg@4"] for row in rows])
            down.append(statistics.fmean(row["avg@4"] < row["before"] for row in rows))
        xs = [x + offset for x in OCTAVES]  # so neither hides the other
        look = {"color": color, "lw": 1.2, "ms": 3, "label": label}
        plot_intervals(left, xs, after, fmt="o-", **look)
        right.plot(xs, down, "o-", **look)
    for axis in (left, right):
        axis.set_xticks(OCTAVES, [f"{rate * 1e4:g}" for rate in rates])
        axis.set(xlabel="learning rate, in units of $10^{-4}$")
    left.set_title("Test avg@4 (dotted: the warm start)", fontsize=9)
    right.set_title("Share of runs that end below their warm start", fontsize=9)
    left.legend(fontsize=8, frameon=False)
    save(figure, "stability")


def damping():
    """Plot accuracy, and paired differences from GRPO, against the damping factor d."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
    left.axhline(mean(cell("start", "warm-up of 150")), color=GREY, lw=1, ls=":")
    xs, after, paired = [], [], []
    for name, size in DAMPING_FACTORS.items():
        rows = tuned("dose", name)
        xs.append(math.log(size or 30))  # w = pi is plotted to the right of the others
        after.append([row["avg@4"] for row in rows.values()])
        paired.append(differences(rows, tuned("dose", "none")))
    right.axhline(0, color=GREY, lw=1)
    panels = ((left, after, "Test avg@4 (dotted: the warm start)"),
              (right, paired, "Minus GRPO's, paired by seed"))
    for axis, lists, title in panels:
        plot_intervals(axis, xs, lists, fmt="o", color=BLUE, ms=4)
        axis.set_xticks(xs, [name.replace("none", "1") for name in DAMPING_FACTORS], fontsize=7)
        axis.set(title=title)
    figure.supxlabel("damping factor: how many times as much likely tokens count; pi: w = $\\pi$",
                     fontsize=9)
    save(figure, "dose")


def signal():
    """Plot the signal-to-noise of each weight against the training step; 1 is GRPO."""
    found = cells(read("signal"))
    names = [task for task in ("kk", "math", "qa") if (task, 0, *COUNTED, "GRPO-SG") in found]
    figure, axes = plt.subplots(1, len(names), figsize=(8, 3), sharey=True, squeeze=False)
    for axis, task in zip(axes[0], names):
        axis.axhline(1, color=GREY, lw=1, ls=":")
        for i, (arm, color) in enumerate(WEIGHT_COLORS.items()):
            plot_weight(axis, found, task, arm, color=color, offset=0.06 * (i - 2))
        axis.set_xticks(range(len(POINTS)), POINTS)
        axis.set(title=f"--task {task}", xlabel="training step", ylim=(0, 1.5))
    axes[0][0].set(ylabel="signal-to-noise, 8 groups an update")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center",
                  ncols=len(WEIGHT_COLORS), fontsize=8, frameon=False)
    save(figure, "signal")


def plot_weight(axis, found, task, arm, *, color, offset):
    """Plot means over seeds, joined, with 95% confidence intervals from three seeds on."""
    means = []
    for x, step in enumerate(POINTS):
        values = values_of(found.get((task, step, *COUNTED, arm), []), "efficiency 8")
        means.append(statistics.fmean(values) if values else math.nan)
        if len(values) > 2:
            plot_intervals(axis, [x + offset], [values], fmt="none", color=color, lw=1)
    xs = [x + offset for x in range(len(POINTS))]
    axis.plot(xs, means, "o-", ms=3, lw=1.5, color=color, label=arm)


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


def switch():
    """Plot avg@8 minus GRPO's against the training step; the weight changes after step 20."""
    rows = read("when")
    arms = {"GRPO-SG": BLUE, "damping 10": ORANGE, "damping 10, then GRPO": "black",
            "GRPO, then damping 10": GREY}
    figure, axis = plt.subplots(figsize=(6, 3))
    axis.axhline(0, color=GREY, lw=1, ls=":")
    for i, (arm, color) in enumerate(arms.items()):
        found = [(0, 0.0, 0.0)]
        for step in when.PARTS["switch"].points:
            average, low, _ = interval(when.compare(rows, "switch", arm, "GRPO", step))
            found.append((step + 0.5 * (i - 1.5), average, average - low))
        xs, averages, errors = zip(*found)
        axis.errorbar(xs, averages, errors, fmt="o-", ms=3, lw=1, capsize=2, color=color, label=arm)
    axis.set(xlabel="training step", ylabel="avg@8 minus GRPO's, 95% CI",
             xticks=(0, *when.PARTS["switch"].points))
    axis.legend(frameon=False, fontsize=8)
    save(figure, "switch")


def loop():
    """Draw the loop of the README."""
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 250" role="img">',
             "<title>The loop: sample, verify, compare, learn, and again</title>",
             f"<style>{LOOP_STYLE}</style>",
             '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="5" refY="3" '
             'orient="auto">',
             '<path class="head" d="M0 0L6 3L0 6Z"/></marker></defs>']
    for x, y, name, *texts in BOXES:
        lines.append(f'<rect class="box" x="{x - 88}" y="{y - 38}" width="176" height="76" '
                     'rx="8"/>')
        lines.append(f'<text class="name" x="{x}" y="{y - 15}">{name}</text>')
        for i, text in enumerate(texts):
            lines.append(f'<text class="small" x="{x}" y="{y + 7 + 18 * i}">{text}</text>')
    for path in ARROWS:
        lines.append(f'<path class="arrow" d="{path}"/>')
    lines.append('<text class="small" x="200" y="129">and again, with the new policy</text></svg>')
    (FIGURES / "loop.svg").write_text("\n".join(lines) + "\n")


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


ALL = {each.__name__: each for each in (
    loop, method, forest, mistakes, learning, collapse, damping, signal, shares,
    switch)}


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
        try:
            ALL[name]()
        # The experiment has not been run.
        except (OSError, LookupError, statistics.StatisticsError) as error:
            print(f"no figure {name}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
