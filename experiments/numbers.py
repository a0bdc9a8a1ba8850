"""Check the measured numbers of the pages against the raw files in results/. Trains nothing.

    python -m experiments.numbers            report numbers that differ, and exit with 1
    python -m experiments.numbers --write    write the numbers into the pages

A number is between <!--=NAME--> and <!--/-->, in any Markdown page of the project. The functions
below yield (NAME, text), where the text is a number, words, or a table.
"""
import argparse
import math
import pathlib
import re
import statistics
import sys

from experiments import analysis, angle, choice, moves, signal, when
from experiments.analysis import (
    FINITE_FACTORS, cell, detectable, differences, interval, mean, read, select, slopes, tuned)
from experiments.run import EXPERIMENTS, NOT_REPRODUCED

ROOT = pathlib.Path(__file__).parents[1]
EVIDENCE = ROOT / "experiments" / "README.md"
MARK = re.compile(r"(<!--=(.*?)-->)(.*?)(<!--/-->)", re.S)
NOT_MARKED = r"<!--=.*?<!--/-->|```.*?```|`[^`]*`|\]\([^)]*\)"
# Numbers that the evidence page may have only between markers: those with three decimals, and
# percentages, except for the levels of intervals and tests and the power.
MEASURED = r"(?<![\w.,])[-+]?\d{0,3}\.\d{3,}|(?<![\w.])(?!95%|80%|5%)\d+(?:\.\d+)?%"
INTERVAL = r"[-+]\d\.\d+ \[[-+]\d\.\d+, [-+]\d\.\d+\]"
ARMS = {"none": "GRPO", "sg": "GRPO-SG", "ar": "AR", "lopti": "Lopti",
        "1.4": "1.4: GRPO-SG, w divided by its mean", "pi": "w = pi"}
MISTAKES = {"clip(w r)": "weight inside the clip, `clip(w r)`",
            "end token masked": "stop token masked by `ids != pad`",
            "tau = 9": "tau = 9, which makes every weight 1",
            "scored at another temperature": "sampled at temperature 1, scored at 0.6"}


# ---- How values are written ----

def signed(value, digits=3):
    return f"{value:+.{digits}f}"


def rate(value):
    """1.6e-3, 2e-4"""
    return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")


def with_error(values):
    """Format the mean and its standard error."""
    return f"{statistics.fmean(values):.3f} ± {analysis.standard_error(values):.3f}"


def with_interval(values):
    """Format the mean and its 95% confidence interval for a table."""
    average, low, high = map(signed, interval(values))
    return f"{average} [{low}, {high}]"


def in_prose(values):
    return with_interval(values).replace(" [", ", 95% CI [")


def with_power(values):
    """Format the mean, its interval and the minimum detectable effect for a sentence."""
    return f"{in_prose(values)}, MDE {detectable(values):.3f}"


def t_of(values):
    return f"{statistics.fmean(values) / analysis.standard_error(values):.1f}"


def share_of(gained, values):
    average, low, high = (f"{x / gained:+.0%}" for x in interval(values))
    return f"{average} [{low}, {high}]"


def range_of(values, digits=2):
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def table(head, rows):
    head, *rows = [f"| {' | '.join(map(str, line))} |" for line in (head, *rows)]
    lines = [head, "|---" * head.count(" | ") + "|---|", *rows]
    return "\n\n" + "\n".join(lines) + "\n\n"


def side(values, middle=0.0):
    """Return 1 if their interval is above the middle, -1 if below, else 0; 0 for one value."""
    if len(values) < 2:
        return 0
    _, low, high = interval(values)
    return (low > middle) - (high < middle)


def call(values):
    """Return the rule's verdict on GRPO-SG's differences from GRPO."""
    return ("GRPO-SG is worse", "no difference", "GRPO-SG is better")[side(values) + 1]


# ---- The numbers of each question ----

def default():
    rows, lines = read("default"), []
    for task in ("kk", "math", "qa"):
        pretrained = cell("default", f"{task}, ready").values()
        own = cell("default", task).values()
        tests = zip(*(row["tests"] for row in pretrained))
        line = [with_error([test["eval/avg@4"] for test in each]) for each in tests]
        line.append(with_error([row["avg@4"] for row in own]))
        constant = range_of([row["best constant answer"] for row in pretrained])
        lines.append([f"`{task}`", *line, constant])
    yield "default: table", table(
        ["task", "avg@4 before RL", "after", "after, own warm-up", "constant answer"], lines)
    means = [row["tests"][i]["eval/completion_tokens"] for row in rows for i in (0, 1)]
    yield "default: tokens", range_of(means, 0)
    yield "default: seconds", range_of([row["seconds"] for row in rows], 0)
    yield "default: GB", f"{max(row['peak_mb'] for row in rows) / 1000:.1f}"


def premise():
    rows = read("premise")
    for shaping in ("none", "sg"):
        means = []
        for task in ("kk", "math", "qa"):
            here = [row for row in rows if row["task"] == task]
            shares = [row["share of squared norm"][shaping] for row in here]
            means.append(statistics.fmean(shares))
        yield f"premise: {shaping}", range_of(means)
    tokens = sum(row["tokens"] for row in rows)
    key = "share of tokens with pi < 1/3"
    yield "premise: tokens", f"{tokens:,}"
    yield "premise: words", range_of([row["words"] for row in rows], 0)
    yield "premise: unlikely", (
        f"{sum(row[key] * row['tokens'] for row in rows) / tokens:.1%}")
    yield "premise: Pearson", range_of([row["Pearson"] for row in rows])
    yield "premise: Spearman", range_of([row["Spearman"] for row in rows])


def helps():
    """Compare GRPO-SG, and AR-Lopti's two changes, with GRPO."""
    lines = []
    for name, label, _, minus, gained in analysis.comparisons():
        share = share_of(gained, minus)
        least = detectable(minus)
        lines.append([label, with_interval(minus), f"{least:.3f} ({least / gained:.0%})"])
        yield f"{name}: minus", in_prose(minus)
        yield f"{name}: share", share.replace(" [", ", 95% CI [")
        yield f"{name}: gained", f"{gained:.3f}"
        yield f"{name}: detectable", f"{least:.3f}"
        yield f"{name}: detectable share", f"{least / gained:.0%}"
        yield f"{name}: t", t_of(minus)
        if name in ("clean", "noisy"):  # those of the rule
            yield f"{name}: verdict", call(minus)
        if name == "clean":
            yield "help: sg, minus GRPO", in_prose(minus)
    yield "forest: table", table(
        ["comparison", "avg@4, GRPO-SG minus GRPO [95% CI]", "MDE (share of the gain)"], lines)
    base = tuned("help", "none")
    for arm in ("ar", "lopti"):
        yield f"help: {arm}", with_power(differences(tuned("help", arm), base))
    for arm in ("none", "sg"):
        yield f"help: clipped, {arm}", f"{mean(tuned('help', arm), 'norm above 1'):.0%}"
    for steps in (100, 150):
        yield f"start: {steps}", f"{mean(cell('start', f'warm-up of {steps}')):.3f}"


def grids():
    """Yield the mean avg@4 on validation problems, which chose the learning rates."""
    rates, lines = (5e-5, 1e-4, 2e-4, 4e-4), []
    for name in ("help", "noisy", "dose"):
        rows = [row for row in read(name) if row["split"] == "valid"]
        seeds = EXPERIMENTS[name].grid
        for arm in EXPERIMENTS[name].arms:
            line = [f"{name}, {ARMS.get(arm, arm)}", f"{seeds[0]}-{seeds[-1]}"]
            for lr in rates:
                here = select(rows, arm=arm, rate=lr)
                line.append(f"{mean(here):.4f}" if here else "")
            lines.append(line)
    yield "grids: table", table(["experiment, arm", "seeds", *map(rate, rates)], lines)


def recorded():
    """Yield the rows that other processors do not reproduce."""
    for name, arm, seed in NOT_REPRODUCED:
        yield f"recorded: {name}, {arm}, {seed}", f"{cell(name, arm)[seed]['avg@4']:.3f}"


def greedy():
    """Apply the rule in run.py's docstring."""
    cells = [cell("greedy", arm, rate=1e-4) for arm in ("sg", "none")]
    values = differences(*cells, "greedy")
    yield "greedy: values", with_power(values)
    yield "greedy: verdict", "real" if side(values) > 0 else "not real"
    before = differences(tuned("noisy", "sg"), cell("noisy-equal", "none"), "greedy")
    yield "greedy: before", in_prose(before)
    for lr in (1e-4, 2e-4):
        yield f"greedy: none, {rate(lr)}", f"{mean(cell('greedy', 'none', rate=lr)):.3f}"


def dose():
    base, lines, clipped = tuned("dose", "none"), [], {}
    gained = mean(base) - mean(cell("start", "warm-up of 150"))
    for name in analysis.DAMPING_FACTORS:
        here = tuned("dose", name)
        clipped[name] = f"{mean(here, 'norm above 1'):.1%}"
        if name == "none":
            continue
        minus = differences(here, base)
        sure = differences(here, base, "greedy")
        lines.append([ARMS.get(name, name), rate(analysis.best_rate("dose", name)),
                      with_interval(minus), f"{detectable(minus):.3f}", with_interval(sure)])
        yield f"dose: {name}", in_prose(minus)
        yield f"dose: {name}, greedy", with_interval(sure)
        yield f"dose: {name}, entropy", with_interval(differences(here, base, "entropy"))
        yield f"dose: {name}, share", share_of(gained, minus).replace(" [", ", 95% CI [")
    yield "dose: table", table(
        ["damping factor", "learning rate", "avg@4 minus GRPO's [95% CI]", "MDE",
         "greedy accuracy minus GRPO's [95% CI]"], lines)
    yield "dose: gained", f"{gained:.3f}"
    yield "dose: rate", rate(analysis.best_rate("dose", "none"))
    for name in ("1/3", "none", "10"):
        yield f"dose: clipped, {name}", clipped[name]
    found = slopes(FINITE_FACTORS)
    yield "dose: verdict", analysis.judge_slopes(found)
    yield "dose: doubling", in_prose([math.log(2) * slope for slope in found])
    yield "dose: slope", in_prose(found)
    sure = slopes(FINITE_FACTORS, "greedy")
    yield "dose: greedy slope", "{:+.4f}, 95% CI [{:+.4f}, {:+.4f}]".format(*interval(sure))
    yield "dose: without 10", with_power(slopes(FINITE_FACTORS[:-1]))
    yield "dose: middle", in_prose(slopes(FINITE_FACTORS[1:-1]))


def stability():
    told = []
    for lr in EXPERIMENTS["stability"].rates:
        cells = [cell("stability", arm, rate=lr) for arm in ("none", "sg")]
        values = differences(cells[1], cells[0], "norm cv")
        if side(values):
            told.append(f"at {rate(lr)}, by {in_prose(values)}")
    D, s, verdict = analysis.compare_collapse()
    yield "stability: verdict", verdict
    yield "stability: D", with_power(D)
    yield "stability: s", f"{s:.3f}"
    yield "stability: norms", " and ".join(told) or "at no rate"


def signals():
    """Yield efficiencies by experiments/signal.py, with verdicts, and those of damping 10."""
    found = signal.cells(read("signal"))
    yield from signal_ranges(found)
    cells, seeds, verdicts = {}, set(), {}
    for task, step, *rest in found:
        if rest != ["Euclid", "clean", "GRPO-SG"]:
            continue
        rows = found[task, step, *rest]
        values = signal.values_of(rows, "efficiency 8")
        strong = signal.values_of(found[task, step, "Euclid", "clean", "damping 10"],
                                  "efficiency 8")
        seeds.add(len(rows))
        verdict = signal.judge(values) if len(values) > 1 else "-"
        text = signal.in_words(values, digits=2)
        cells[task, step] = f"**{text}**" if verdict in ("better", "worse") else text
        verdicts.setdefault(verdict, {}).setdefault(task, []).append(str(step))
        yield f"signal: {task}, {step}", f"{statistics.fmean(values):.2f}"
        yield f"signal: {task}, {step}, damping 10", f"{statistics.fmean(strong):.2f}"
    planned = len(signal.SEEDS)
    yield "signal: seeds", (f"all {planned} planned seeds" if min(seeds) == planned else
                            f"{range_of(seeds, 0)} of {planned} planned seeds (interim)")
    for verdict in ("better", "worse"):
        where = [f"{task} ({', '.join(steps)})"
                 for task, steps in verdicts.get(verdict, {}).items()]
        yield f"signal: {verdict}", ", ".join(where) or "no task"
    yield "signal: table", table(
        ["task, step", *signal.POINTS],
        [[f"`{task}`", *(cells.get((task, step), "-") for step in signal.POINTS)]
         for task in signal.TASKS])


def signal_ranges(found):
    """Yield GRPO-SG's least and greatest mean over tasks, at the start and after 15 steps."""
    for step in (0, 15):
        for name in ("signal", "noise", "efficiency 8", "efficiency 256"):
            means = []
            for task in angle.TASKS:
                rows = found[task, step, "Euclid", "clean", "GRPO-SG"]
                means.append(statistics.fmean(signal.values_of(rows, name)))
            yield f"signal: {step}, {name}", range_of(means)


def signal_checks():
    """Yield how many of the 17 intervals survive Holm's correction, and two checks of step 15."""
    found, tests = signal.cells(read("signal")), {}
    for key, rows in found.items():
        if key[2:] == ("Euclid", "clean", "GRPO-SG"):
            tests[key] = [x - 1 for x in signal.values_of(rows, "efficiency 8")]
    yield "signal: Holm", f"{sum(choice.holm(tests).values())} of {len(tests)}"
    late = [tests[task, 15, "Euclid", "clean", "GRPO-SG"] for task in ("kk", "math", "qa")]
    pooled = [1 + statistics.fmean(values) for values in zip(*late, strict=True)]
    yield "signal: 15, pooled", signal.in_words(pooled, digits=2)
    adam = signal.values_of(found["kk", 15, "AdamW", "clean", "GRPO-SG"], "efficiency 8")
    yield "signal: kk, 15, AdamW", signal.in_words(adam, digits=2)


def choices():
    """Yield what experiments/choice.py has measured; its tables have only complete tasks."""
    rows = read("choice")
    names = choice.complete(rows)
    verdict, tests = choice.judge(rows)
    yield "choice: verdict", verdict
    yield "choice: complete", ", ".join(f"`{name}`" for name in names) or "no task"
    lines = []
    for pair in choice.COUNTED + choice.CONTROLS[:1] if names else ():
        for name in choice.OUTCOMES:
            values = choice.pool(rows, names, pair, name)
            sure = choice.pool(rows, names, pair, name, "greedy")
            holm = {None: "not tested", True: "differs", False: "no difference"}[
                tests.get((pair, name), (None, None))[1]]
            lines.append([f"{' minus '.join(pair)}, {name}", with_interval(values),
                          f"{detectable(values):.3f}", holm, with_interval(sure)])
            yield f"choice: {' minus '.join(pair)}, {name}", in_prose(values)
    yield "choice: table", table(
        ["comparison, outcome", "avg@8 [95% CI]", "MDE", "Holm", "greedy accuracy [95% CI]"], lines)
    lines = []
    for task in names:
        for arm in choice.ARMS:
            here = choice.counted(rows, task, arm).values()
            lr, halved = [[row[key] for row in here][0] for key in ("rate", "halved")]
            means = [statistics.fmean(choice.outcome(row, name) for row in here)
                     for name in choice.OUTCOMES]
            steps = statistics.fmean(row["damped steps"] for row in here)
            lines.append([f"`{task}`, {arm}", f"{rate(lr)}{', halved' * halved}",
                          *(f"{value:.3f}" for value in means), f"{steps:.1f}"])
    equal, alone = choice.at_equal_rates(rows, read("choice-equal")), []
    for task in names:
        for pair in choice.COUNTED:
            line = [f"`{task}`, {' minus '.join(pair)}"]
            for some in (rows, equal.get(task)):
                for name in choice.OUTCOMES if some else ():
                    values = choice.compare(some, task, pair, name)
                    line.append(with_interval(values))
                    key = "equal" if some is not rows else "tuned"
                    yield f"choice: {task}, {key}, {' minus '.join(pair)}, {name}", in_prose(values)
            line += ["the same"] * (5 - len(line))
            alone.append(line)
    yield "choice: tasks", table(
        ["task, comparison", "end", "mean", "end, A at C's rate", "mean, A at C's rate"], alone)
    yield "choice: levels", table(
        ["task, arm", "learning rate", "end", "mean", "damped steps"], lines)


def whens():
    """Yield the parts and predictions of experiments/when.py; NOT_RUN where rows are missing."""
    rows, lines, verdicts = read("when"), [], []
    for part in when.PARTS:
        yield from describe_part(rows, part)
    for i, (part, step, words, values, verdict) in enumerate(when.check_predictions(rows), 1):
        text, share = describe_difference(rows, part, step, values)
        yield f"when: prediction {i}", text
        yield f"when: prediction {i}, share", share
        yield f"when: verdict {i}", verdict
        verdicts.append(verdict)
        cells = ["-", "-"]
        if len(values) > 1:
            cells = [with_interval(values), f"{detectable(values):.3f}"]
        lines.append([f"{i}. {part}, {step} steps: {words}", *cells, verdict])
    without = [row for row in rows if row["seed"] != 1014]
    text, _ = describe_difference(without, "early", 10, when.compare(
        without, "early", "GRPO-SG", "GRPO", 10))
    yield "when: prediction 1, without 1014", text
    counts = [f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts)]
    yield "when: verdicts", ", ".join(counts)
    yield "when: table", table(["prediction", "avg@8 [95% CI]", "MDE", "verdict"], lines)


def describe_part(rows, part):
    """Yield the seeds, learning rates, GRPO's accuracy, and every arm minus GRPO."""
    p = when.PARTS[part]
    seeds = min(len(when.counted(rows, part, arm)) for arm in p.arms)
    yield f"when: {part}, seeds", str(seeds or when.NOT_RUN)
    best = when.choose_rates(part, rows) if seeds else {}
    chosen = []
    for arm, lr in best.items():
        at_end = p.grid and lr in (p.rates[0], p.rates[-1])
        chosen.append(f"{arm} {rate(lr)}{' (end of the grid)' if at_end else ''}")
    yield f"when: {part}, rates", ", ".join(chosen) or when.NOT_RUN
    for step in (0, *p.points):
        accuracy = f"{when.level(rows, part, step):.3f}" if seeds else when.NOT_RUN
        yield f"when: {part}, {step}, GRPO", accuracy
    for step, arm, values in when.compare_arms(rows, part):
        text, share = describe_difference(rows, part, step, values)
        yield f"when: {part}, {step}, {arm}", text
        yield (f"when: {part}, {step}, {arm}, CI",
               with_interval(values) if len(values) > 1 else when.NOT_RUN)
        yield f"when: {part}, {step}, {arm}, share", share


def describe_difference(rows, part, step, values):
    """Return (difference for a sentence, its share of what RL with GRPO gained by this step)."""
    if len(values) < 2:
        return when.NOT_RUN, when.NOT_RUN
    gained = when.level(rows, part, step) - when.level(rows, part, 0)
    return with_power(values), share_of(gained, values).replace(" [", ", 95% CI [")


def mistakes():
    """Compare each with the correct version, in the setting of "help" and the default run."""
    lines = {label: [label] for label in MISTAKES.values()}
    for name in ("mistakes", "visible"):
        base, costly = cell(name, "sg"), 0
        for arm, label in MISTAKES.items():
            minus = differences(cell(name, arm), base)
            low, high = interval(minus)[1:]
            costly += high < 0
            text = with_interval(minus)
            lines[label] += [f"**{text}**" if high < 0 else text, f"{detectable(minus):.3f}"]
            yield f"{name}: {arm}", text
        yield f"{name}: right", f"{mean(base):.3f}"
        yield f"{name}: costly", ("none", "one", "two", "three", "all")[costly]
    yield "mistakes: table", table(
        ["mistake", "unsure model [95% CI]", "MDE", "default run [95% CI]", "MDE"],
        lines.values())
    minus = differences(cell("reading", "mu inside"), cell("reading", "sg"))
    yield "reading: avg@4", with_power(minus)


def angles():
    """Yield mean angles in degrees: between parameter displacements after one step, on all
    tasks, and between gradients at the warm start of the damping experiment."""
    found = angle.cells(read("angle"))
    for name, arm in (("GRPO-SG", "GRPO-SG"), ("rerun", "another draw")):
        means = []
        for task in angle.TASKS:
            rows = found["displacement", task, 0, 1, arm]
            means.append(statistics.fmean(values_of(rows)))
        yield f"angle: {name}", range_of(means, 0)
    for name, arm in (("d=10", "dose 10"), ("rerun", "another draw")):
        rows = found["gradient", "kk", 150, 0, arm]
        yield f"angle: gradient, {name}", f"{statistics.fmean(values_of(rows)):.0f}"


def values_of(rows):
    return [angle.degrees(row["cos"]) for row in rows]


def likelier():
    """Count where tokens with a positive advantage became more likely after one AdamW update. A
    cell is a task at a point of training, and a bin of pi."""
    below, sides, least = 0, {arm: [] for arm in ("GRPO-SG", "AR", "Lopti")}, []
    cells = [each for (_, _, optimizer, _, _, sign), each in moves.shares(read("moves")).items()
             if (optimizer, sign) == ("AdamW", 1)]
    for each in cells:
        base = each["GRPO"]
        below += side([row["share"] for row in base.values()], 0.5) == -1
        for arm in sides:
            minus = differences(each[arm], base, "share")
            sides[arm].append(side(minus))
            if arm == "GRPO-SG" and len(minus) > 1:
                least.append(detectable(minus))
    yield "moves: below half", f"{below or 'none'} of {len(cells)}"
    for arm, found in sides.items():
        yield f"moves: {arm}", f"{found.count(1) or 'none'} of {len(cells)}"
        yield f"moves: {arm}, lower", str(found.count(-1) or "none")
    yield "moves: comparisons", str(len(sides) * len(cells))
    yield "moves: detectable", f"{statistics.median(least):.3f}"


def late():
    """Apply the rule in run.py's docstring."""
    rows = read("late")
    fallen = [row for row in rows if analysis.describe_end(row)[2]]
    yield "late: collapsed", f"{len(fallen) or 'none'} of {len(rows)}"
    if not fallen:  # at this probability, as many runs without a collapse have a probability of 5%
        yield "late: bound", f"{1 - 0.05 ** (1 / len(rows)):.0%}"


def afar():
    """Apply the rule in run.py's docstring, and add later checks."""
    minus = {}
    for name, problems, measure in (("transfer", "many", analysis.transfer),
                                    ("transfer, few", "few", analysis.transfer),
                                    ("gap", "few", analysis.gap),
                                    ("sharpness", "many", analysis.sharpness)):
        pairs = analysis.compare_afar(problems, measure)
        minus[name] = [sg - none for none, sg in pairs]
        yield f"afar: {name}", with_power(minus[name])
    pairs = analysis.compare_afar("many", analysis.near)
    yield "afar: three people", with_power([sg - none for none, sg in pairs])
    pairs = zip(minus["transfer"], minus["transfer, few"])
    yield "afar: both", with_power([(many + few) / 2 for many, few in pairs])
    yield "afar: verdict", analysis.judge_afar(
        minus["transfer"], minus["gap"], minus["sharpness"])
    p = analysis.sign_flip_p(minus["transfer"])
    yield "afar: p", f"{p:.3f}"
    yield "afar: t", t_of(minus["transfer"])
    yield "afar: p, three measures", f"{3 * p:.3f}"


def ignorant():
    """Yield the accuracy of the best trivial baseline."""
    best = {}
    for row in read("ignorant"):
        name = row["problems"]
        best[name] = max(best.get(name, 0), row["accuracy"])
    yield "ignorant: kk, 3 people", f"{best.pop('kk, 3 people'):.3f}"
    yield "ignorant: others", f"{max(best.values()):.3f}"


def bench():
    cpu = analysis.read_json("bench.json")["cpu"]
    sampling, update = cpu["sampling"], cpu["update"]
    both = "2,048 words", "151,936 words"
    step = [cpu["step"]["beta 0.0, updates 1"]]
    lines = []
    for label, parts, side in (
            ("sampling, one length, against `model.generate`",
             [sampling[f"{words}, fixed"] for words in both], "generate"),
            ("sampling, long-tailed lengths, against `model.generate`",
             [sampling[f"{words}, long tail"] for words in both], "generate"),
            ("sampling, one length, against `model.generate_batch`",
             [sampling[f"{words}, fixed"] for words in both], "generate_batch"),
            ("sampling, long-tailed lengths, against `model.generate_batch`",
             [sampling[f"{words}, long tail"] for words in both], "generate_batch"),
            ("update, against the full log-softmax in our micro-batches",
             [update[words] for words in both], "naive"),
            ("update, against the full log-softmax in one batch",
             [update[words] for words in both], "naive, one batch"),
            ("a whole step against TRL 1.16 with 8 rows per micro-batch", step, "TRL, 8 rows"),
            ("a whole step against TRL 1.16 with an update in one batch", step,
             "TRL, one batch")):
        cells = []
        for part in parts:
            ratios = part.get(f"{side} / ours") or part.get(f"{side} / ours, seconds")
            text = "{:.1f} ({:.1f} to {:.1f})"
            cells.append(text.format(*ratios) if ratios else "not measured")
        if set(cells) != {"not measured"}:
            lines.append([label, *cells, ""][:3])
    head = ["their time / ours (sampling, steps: per token)", "vocabulary 2,048", "151,936"]
    yield "bench: table", table(head, lines)


def count_solved(name, verifier, sets):
    """Return the cells of a row: how many problems there are, and how many each baseline solves."""
    found = [analysis.read_json("math_baselines.json")[each][verifier] for each in sets]
    line = [name, f"{sum(each['problems'] for each in found):,}"]
    for policy in ("question", "longest", "any", "constant"):
        counts = [each.get(policy) for each in found]
        line.append("" if None in counts else f"{sum(counts):,}")
    return line


def agreements():
    """Return {(whose verdicts, half): [(text, how many, the slowest in ms)]}, oldest first."""
    form = re.compile(r"(ours|math-verify|their repositories)(?:, half (\d))? +(\d+) answers: "
                      r"agrees on ([\d.]+%), accepts (\d+) .* rejects (\d+) right ones"
                      r"(?:.*most ([\d.]+) ms)?")
    found, half = {}, None
    for line in (analysis.RESULTS / "math_outputs.txt").read_text().splitlines():
        match = form.match(line)
        if match:
            who, named, count, share, wrong, right, slowest = match.groups()
            half = named or half
            said = f"{share}: {wrong} wrong, {right} right"
            found.setdefault((who, half), []).append((said, f"{int(count):,}", slowest))
    return found


def verifiers():
    """Yield the tables of verify/README.md."""
    every = [name for name in analysis.read_json("math_baselines.json") if name != "math_train"]
    lines = [count_solved("generated problems", "verify_math", ["generated"]),
             count_solved("GSM8K, test", "verify_math", ["gsm8k_test"]),
             count_solved("MATH-500", "verify_math", ["math500"]),
             count_solved("these and four more sets", "verify_math", every)]
    for label, name in (("generated problems", "generated"), ("MATH-500", "math500")):
        lines.append(count_solved(f"by math-verify 0.9.0: {label}", "math-verify", [name]))
    yield "verify: baselines", table(
        ["problems solved", "of", "the question", "its longest formula",
         "any of its formulas", "the constant"], lines)
    found, halves = agreements(), "12"
    counts = [found["their repositories", half][-1][1] for half in halves]
    first = [found["ours", half][1][0] for half in halves]
    lines = [["`verify_math` when half 2 was first inspected", first[0], f"**{first[1]}**"]]
    for label, who in (("`verify_math` now, both halves seen", "ours"),
                       ("math-verify 0.9.0", "math-verify"),
                       (f"the repositories' own verdicts ({' and '.join(counts)})",
                        "their repositories")):
        lines.append([label, *(found[who, half][-1][0] for half in halves)])
    sizes = [f"half {half} ({found['ours', half][-1][1]})" for half in halves]
    yield "verify: agreement", table(
        ["agreement with the labels; wrong answers accepted (\"wrong\"), right ones rejected "
         "(\"right\")", *sizes], lines)
    yield "verify: slowest", max((found["ours", half][-1][2] for half in halves), key=float)


def values():
    """Return {name: text} for all questions."""
    found = {}
    for question in (
            default, premise, helps, grids, recorded, greedy, dose, stability, mistakes, angles,
            likelier, late, afar, ignorant, bench, verifiers, signals, signal_checks, choices,
            whens):
        found.update(question())
    count = count_intervals(found.values())
    found["intervals"] = str(count)
    found["dose: corrected"] = correct_for(count, slopes(FINITE_FACTORS))
    return found


def correct_for(count, values):
    """Say whether the interval still excludes 0 after a Bonferroni correction."""
    level = analysis.t_quantile(1 - 0.025 / count, len(values) - 1)
    excluded = abs(statistics.fmean(values)) > level * analysis.standard_error(values)
    return "survives" if excluded else "does not survive"


def count_intervals(texts):
    """Count the different confidence intervals of differences in these texts."""
    found = set()
    for text in texts:
        found.update(re.findall(INTERVAL, text.replace(", 95% CI", "")))
    return len(found)


# ---- The pages ----

def check(page, known):
    """Return (the page with the numbers of the files, [what is wrong])."""
    wrong = []

    def put(match):
        name, shown = match[2], match[3]
        if name not in known:
            wrong.append(f"there is no number {name!r}")
        elif known[name] != shown:
            wrong.append(f"{name} is {shown.strip()!r}, but the files say "
                         f"{known[name].strip()!r}")
        return match[1] + known.get(name, shown) + match[4]
    return MARK.sub(put, page), wrong


def without_source(page):
    """Return the measured numbers outside of markers, code and links."""
    return re.findall(MEASURED, re.sub(NOT_MARKED, "", page, flags=re.S))


def find_pages():
    """Return the paths of the pages with marked numbers."""
    paths = sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("extras/*/*.md")])
    return [path for path in paths if MARK.search(path.read_text())]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the numbers into the pages")
    write = parser.parse_args().write
    known, pages = values(), find_pages()
    marks, count = 0, 0
    for path in pages:
        page = path.read_text()
        right, wrong = check(page, known)
        marks += len(MARK.findall(page))
        if write:
            path.write_text(right)
            wrong = [line for line in wrong if line.startswith("there is")]
        if path == EVIDENCE:
            wrong += [f"no source: {number}" for number in without_source(page)]
        for line in wrong:
            print(f"{path.relative_to(ROOT)}: {line}")
        count += len(wrong)
    if count:
        print(f"{count} are wrong")
    else:
        print(f"every marked number is what its file says: {marks} in {len(pages)} pages")
    sys.exit(count > 0)


if __name__ == "__main__":
    main()
