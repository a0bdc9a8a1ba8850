"""What the recorded runs say: the intervals, shares, verdicts and tables that the pages show.

    python -m experiments.numbers --write    writes results/summary.json, and the pages

Each function yields (key, value); a value is text, or a table: a list of rows, of which the first
is the head.
"""
import math
import re
import statistics

from experiments import analysis, choice, classes, signal, when
from experiments.analysis import (
    FINITE_FACTORS, cell, detectable, differences, interval, mean, read, select, slopes, tuned)
from experiments.run import EXPERIMENTS, NOT_REPRODUCED

TASKS = "kk", "math", "qa"
INTERVAL = r"[-+]\d\.\d+ \[[-+]\d\.\d+, [-+]\d\.\d+\]"
ARMS = {"none": "GRPO", "sg": "GRPO-SG", "ar": "AR", "lopti": "Lopti",
        "1.4": "1.4: GRPO-SG, w divided by its mean", "pi": "w = pi"}
MISTAKES = {"clip(w r)": "weight inside the clip, `clip(w r)`",
            "end token masked": "stop token masked by `ids != pad`",
            "tau = 9": "tau = 9, which makes every weight 1",
            "scored at another temperature": "sampled at temperature 1, scored at 0.6"}


# ---- How values are written ----

def rate(value):
    """1.6e-3, 2e-4"""
    return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")


def with_error(values):
    return f"{statistics.fmean(values):.3f} ± {analysis.standard_error(values):.3f}"


def with_interval(values):
    """Format the mean and its 95% confidence interval for a table."""
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*interval(values))


def in_prose(values):
    return with_interval(values).replace(" [", ", 95% CI [")


def with_power(values):
    """Format the mean, its interval and the minimum detectable effect for a sentence."""
    return f"{in_prose(values)}, MDE {detectable(values):.3f}"


def share_of(gained, values):
    """Format the mean and its interval as a share of what RL gained, for a sentence."""
    shares = [value / gained for value in interval(values)]
    return "{:+.0%}, 95% CI [{:+.0%}, {:+.0%}]".format(*shares)


def t_of(values):
    return f"{statistics.fmean(values) / analysis.standard_error(values):.1f}"


def range_of(values, digits=2):
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def side(values):
    """Return 1 if their interval is above 0, -1 if below, else 0."""
    _, low, high = interval(values)
    return (low > 0) - (high < 0)


# ---- Each question ----

def default():
    rows = [["task", "avg@4 before RL", "after", "after, own warm-up", "constant answer"]]
    for task in TASKS:
        pretrained = cell("default", f"{task}, ready").values()
        columns = [[row[key] for row in pretrained] for key in ("before", "avg@4")]
        columns.append([row["avg@4"] for row in cell("default", task).values()])
        constant = range_of([row["best constant answer"] for row in pretrained])
        rows.append([f"`{task}`", *map(with_error, columns), constant])
    yield "default: table", rows
    tests = [test for row in read("default") for test in row["tests"]]
    yield "default: tokens", range_of([test["eval/completion_tokens"] for test in tests], 0)


def helps():
    """Compare GRPO-SG, and AR-Lopti's two changes, with GRPO."""
    rows = [["comparison", "avg@4, GRPO-SG minus GRPO [95% CI]", "MDE (share of the gain)"]]
    for name, label, _, minus, gained in analysis.comparisons():
        least = detectable(minus)
        rows.append([label, with_interval(minus), f"{least:.3f} ({least / gained:.0%})"])
        yield f"{name}: minus", in_prose(minus)
        yield f"{name}: share", share_of(gained, minus)
        yield f"{name}: detectable share", f"{least / gained:.0%}"
        yield f"{name}: t", t_of(minus)
        if name in ("clean", "noisy"):  # those of the rule
            verdicts = "no difference", "GRPO-SG is better", "GRPO-SG is worse"
            yield f"{name}: verdict", verdicts[side(minus)]
    yield "forest: table", rows
    base = tuned("help", "none")
    for arm in ("ar", "lopti"):
        yield f"help: {arm}", with_power(differences(tuned("help", arm), base))
    for arm in ("none", "sg"):
        yield f"help: clipped, {arm}", f"{mean(tuned('help', arm), 'norm above 1'):.0%}"
    for steps in (100, 150):
        yield f"start: {steps}", f"{mean(cell('start', f'warm-up of {steps}')):.3f}"


def grids():
    """Yield the mean avg@4 on validation problems, which chose the learning rates."""
    rates = 5e-5, 1e-4, 2e-4, 4e-4
    rows = [["experiment, arm", "seeds", *map(rate, rates)]]
    for name in ("help", "noisy", "dose"):
        valid = [row for row in read(name) if row["split"] == "valid"]
        seeds = EXPERIMENTS[name].grid
        for arm in EXPERIMENTS[name].arms:
            cells = [select(valid, arm=arm, rate=each) for each in rates]
            means = [f"{mean(each):.4f}" if each else "" for each in cells]
            label = f"{name}, {ARMS.get(arm, arm)}"
            rows.append([label, f"{seeds[0]}-{seeds[-1]}", *means])
    yield "grids: table", rows


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
    for each in (1e-4, 2e-4):
        yield f"greedy: none, {rate(each)}", f"{mean(cell('greedy', 'none', rate=each)):.3f}"


def dose():
    base = tuned("dose", "none")
    gained = mean(base) - mean(cell("start", "warm-up of 150"))
    rows = [["damping factor", "learning rate", "avg@4 minus GRPO's [95% CI]", "MDE",
             "greedy accuracy minus GRPO's [95% CI]"]]
    for name in analysis.DAMPING_FACTORS:
        here = tuned("dose", name)
        yield f"dose: clipped, {name}", f"{mean(here, 'norm above 1'):.1%}"
        if name == "none":
            continue
        minus = differences(here, base)
        sure = with_interval(differences(here, base, "greedy"))
        rows.append([ARMS.get(name, name), rate(analysis.best_rate("dose", name)),
                     with_interval(minus), f"{detectable(minus):.3f}", sure])
        yield f"dose: {name}, greedy", sure
        yield f"dose: {name}, entropy", with_interval(differences(here, base, "entropy"))
        yield f"dose: {name}, share", share_of(gained, minus)
    yield "dose: table", rows
    yield "dose: gained", f"{gained:.3f}"
    yield "dose: rate", rate(analysis.best_rate("dose", "none"))
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
    for each in EXPERIMENTS["stability"].rates:
        cells = [cell("stability", arm, rate=each) for arm in ("sg", "none")]
        values = differences(*cells, "norm cv")
        if side(values):
            told.append(f"at {rate(each)}, by {in_prose(values)}")
    D, _, verdict = analysis.compare_collapse()
    yield "stability: verdict", verdict
    yield "stability: D", with_power(D)
    yield "stability: norms", " and ".join(told) or "at no rate"


def mistakes():
    """Compare each with the correct version, in the setting of "help" and the default run."""
    lines = {label: [label] for label in MISTAKES.values()}
    for name in ("mistakes", "visible"):
        base = cell(name, "sg")
        yield f"{name}: right", f"{mean(base):.3f}"
        for arm, label in MISTAKES.items():
            minus = differences(cell(name, arm), base)
            text = with_interval(minus)
            yield f"{name}: {arm}", text
            cells = [f"**{text}**" if side(minus) < 0 else text, f"{detectable(minus):.3f}"]
            lines[label] += cells
    head = ["mistake", "unsure model [95% CI]", "MDE", "default run [95% CI]", "MDE"]
    yield "mistakes: table", [head, *lines.values()]
    minus = differences(cell("reading", "mu inside"), cell("reading", "sg"))
    yield "reading: avg@4", with_power(minus)


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
    both = zip(minus["transfer"], minus["transfer, few"])
    yield "afar: both", with_power([(many + few) / 2 for many, few in both])
    yield "afar: verdict", analysis.judge_afar(
        minus["transfer"], minus["gap"], minus["sharpness"])
    p = analysis.sign_flip_p(minus["transfer"])
    yield "afar: p", f"{p:.3f}"
    yield "afar: p, three measures", f"{3 * p:.3f}"
    yield "afar: t", t_of(minus["transfer"])


def signals():
    """Yield efficiencies by experiments/signal.py, at n = 8 where nothing else is said."""
    found = signal.cells(read("signal"))

    def values_of(task, step, name="efficiency 8", arm="GRPO-SG"):
        return signal.values_of(found.get((task, step, "Euclid", "clean", arm), []), name)
    rows = [["task, step", *map(str, signal.POINTS)]]
    for task in signal.TASKS:
        row = [f"`{task}`"]
        for step in signal.POINTS:
            values = values_of(task, step)
            if not values:
                row.append("-")
                continue
            text = signal.in_words(values, digits=2)
            told = signal.judge(values) in ("better", "worse")
            row.append(f"**{text}**" if told else text)
            strong = values_of(task, step, arm="damping 10")
            yield f"signal: {task}, {step}", f"{statistics.fmean(values):.2f}"
            yield f"signal: {task}, {step}, damping 10", f"{statistics.fmean(strong):.2f}"
        rows.append(row)
    yield "signal: table", rows
    for step in (0, 15):
        for name in ("signal", "noise", "efficiency 8", "efficiency 256"):
            means = [statistics.fmean(values_of(task, step, name)) for task in TASKS]
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


def cosines():
    """Yield measured mean cosines next to the formula, and the shares of unlikely tokens, by
    experiments/classes.py."""
    arms, keys = ("GRPO-SG", "damping 10"), ("efficiency", "signal-to-noise")
    cosine = [["task, step", *(f"{arm}: {key}" for arm in arms for key in (
        "mean cosine", "formula"))]]
    share = [["task, step", "signal: A > 0, pi > 1/3", "signal: A < 0, pi < 1/3",
              "noise: A < 0, pi < 0.1", "noise: A < 0, pi 0.1 to 1/3"]]
    unlikely = [name for name in classes.CLASSES if name.startswith("A < 0")][:2]
    likely = [name for name in classes.CLASSES if name.startswith("A > 0")][2:]

    def summed(here, names, key):
        lists = [classes.values_of(here, "classes", name, key) for name in names]
        return signal.in_words([sum(each) for each in zip(*lists)], digits=2)
    for (task, step), here in classes.points(read("classes")).items():
        cosine.append([f"`{task}`, {step}", *(signal.in_words(
            classes.values_of(here, "arms", arm, key), digits=2) for arm in arms for key in keys)])
        share.append([f"`{task}`, {step}", summed(here, likely, "signal"),
                      summed(here, unlikely, "signal"),
                      *(summed(here, [name], "noise") for name in unlikely)])
    yield "classes: cosines", cosine
    yield "classes: shares", share


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
    yield "choice: table", [["comparison, outcome", "avg@8 [95% CI]", "MDE", "Holm",
                             "greedy accuracy [95% CI]"], *lines]
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
    yield "choice: tasks", [["task, comparison", "end", "mean", "end, A at C's rate",
                             "mean, A at C's rate"], *alone]
    yield "choice: levels", [["task, arm", "learning rate", "end", "mean", "damped steps"], *lines]


def whens():
    """Yield the parts and predictions of experiments/when.py."""
    rows = read("when")
    for part, p in when.PARTS.items():
        chosen = []
        for arm, each in when.choose_rates(part, rows).items():
            at_end = p.grid and each in (p.rates[0], p.rates[-1])
            chosen.append(f"{arm} {rate(each)}{' (end of the grid)' if at_end else ''}")
        yield f"when: {part}, rates", ", ".join(chosen)
        for step, arm, values in when.compare_arms(rows, part):
            yield f"when: {part}, {step}, {arm}, CI", with_interval(values)
    verdicts, table = [], [["prediction", "avg@8 [95% CI]", "MDE", "verdict"]]
    for i, (part, step, words, values, verdict) in enumerate(when.check_predictions(rows), 1):
        gained = when.level(rows, part, step) - when.level(rows, part, 0)
        yield f"when: prediction {i}, share", share_of(gained, values)
        verdicts.append(verdict)
        table.append([f"{i}. {part}, {step} steps: {words}", with_interval(values),
                      f"{detectable(values):.3f}", verdict])
    without = when.compare([row for row in rows if row["seed"] != 1014], "early", "GRPO-SG",
                           "GRPO", 10)
    yield "when: prediction 1, without 1014", with_interval(without)
    counts = [f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts)]
    yield "when: verdicts", ", ".join(counts)
    yield "when: table", table


def ignorant():
    """Yield the accuracy of the best trivial baseline."""
    best = {}
    for row in read("ignorant"):
        name = row["problems"]
        best[name] = max(best.get(name, 0), row["accuracy"])
    yield "ignorant: kk, 3 people", f"{best.pop('kk, 3 people'):.3f}"
    yield "ignorant: others", f"{max(best.values()):.3f}"


def bench():
    """Yield the ratios of bench.json."""
    medians = {}
    rows = [["benchmark", "their time / ours: median (least to greatest)"]]
    for part, found in analysis.read_json("bench.json")["cpu"].items():
        for name, sides in found.items():
            if not isinstance(sides, dict):  # the versions, the commit
                continue
            for side in sorted(sides.keys() - {"runs"}):
                ratio = "{:.1f} ({:.1f} to {:.1f})".format(*sides[side])
                rows.append([f"{part}, {name}: {side}", ratio])
                medians.setdefault((part, side), []).append(sides[side][0])
    yield "bench: table", rows
    yield "bench: sampling", range_of(medians["sampling", "generate / ours"], 1)
    steps = [x for (part, _), values in medians.items() if part == "step" for x in values]
    yield "bench: step", range_of(steps, 1)


def baselines():
    """Yield how many problems of mathematics the trivial baselines solve."""
    sets = analysis.read_json("math_baselines.json")
    every = [name for name in sets if name != "math_train"]
    rows = [["problems solved", "of", "the question", "its longest formula",
             "any of its formulas", "the constant"]]
    for label, verifier, names in (
            ("generated problems", "verify_math", ["generated"]),
            ("GSM8K, test", "verify_math", ["gsm8k_test"]),
            ("MATH-500", "verify_math", ["math500"]),
            ("these and four more sets", "verify_math", every),
            ("by math-verify 0.9.0: generated problems", "math-verify", ["generated"]),
            ("by math-verify 0.9.0: MATH-500", "math-verify", ["math500"])):
        found = [sets[name][verifier] for name in names]
        row = [label]
        for key in ("problems", "question", "longest", "any", "constant"):
            counts = [each.get(key) for each in found]
            row.append("" if None in counts else f"{sum(counts):,}")
        rows.append(row)
    yield "verify: baselines", rows


def agreements():
    """Return {(whose verdicts, half): [(text, how many, the slowest in ms)]}, oldest first."""
    form = re.compile(r"(ours|math-verify|their repositories)(?:, half (\d))? +(\d+) answers: "
                      r"agrees on ([\d.]+%), accepts (\d+) .* rejects (\d+) right ones"
                      r"(?:.*most ([\d.]+) ms)?")
    found, half = {}, None
    for line in (analysis.RESULTS / "math_outputs.txt").read_text("utf-8").splitlines():
        match = form.match(line)
        if match:
            who, named, count, share, wrong, right, slowest = match.groups()
            half = named or half
            said = f"{share}: {wrong} wrong, {right} right"
            found.setdefault((who, half), []).append((said, f"{int(count):,}", slowest))
    return found


def verifiers():
    """Yield how often verify_math and others agree with labels."""
    found, halves = agreements(), "12"
    counts = [found["their repositories", half][-1][1] for half in halves]
    first = [found["ours", half][1][0] for half in halves]
    sizes = [f"half {half} ({found['ours', half][-1][1]})" for half in halves]
    rows = [["agreement with the labels; wrong answers accepted (\"wrong\"), right ones rejected "
             "(\"right\")", *sizes],
            ["`verify_math` when half 2 was first inspected", first[0], f"**{first[1]}**"]]
    for label, who in (("`verify_math` now, both halves seen", "ours"),
                       ("math-verify 0.9.0", "math-verify"),
                       (f"the repositories' own verdicts ({' and '.join(counts)})",
                        "their repositories")):
        rows.append([label, *(found[who, half][-1][0] for half in halves)])
    yield "verify: agreement", rows
    yield "verify: slowest", max((found["ours", half][-1][2] for half in halves), key=float)


def summarize():
    """Return {key: text or table} for all questions."""
    found = {}
    for question in (default, helps, grids, recorded, greedy, dose, stability, mistakes, late,
                     afar, ignorant, bench, baselines, verifiers, signals, signal_checks,
                     cosines, choices, whens):
        found.update(question())
    count = count_intervals(found)
    found["intervals"] = str(count)
    found["dose: corrected"] = correct_for(count, slopes(FINITE_FACTORS))
    return found


def correct_for(count, values):
    """Say whether the interval still excludes 0 after a Bonferroni correction."""
    level = analysis.t_quantile(1 - 0.025 / count, len(values) - 1)
    excluded = abs(statistics.fmean(values)) > level * analysis.standard_error(values)
    return "survives" if excluded else "does not survive"


def count_intervals(found):
    """Count the different confidence intervals of differences among these values."""
    return len(set(re.findall(INTERVAL, str(found).replace(", 95% CI", ""))))
