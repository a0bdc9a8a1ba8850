"""What the recorded runs say: the intervals, shares, verdicts and tables that the pages show.

    python -m experiments.numbers --write    writes them into the pages

Each function yields (key, value); a value is text, or a table: a list of rows, of which the first
is the head. results/earlier.json has the values of experiments whose scripts are in commit 7e9e938,
as that commit computed them from the rows in results/.
"""
import statistics

from experiments import analysis, choice, classes
from experiments.analysis import detectable, in_words, interval, read

# ---- How values are written ----

def with_interval(values):
    """Format the mean and its 95% confidence interval for a table."""
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*interval(values))


def in_prose(values):
    return with_interval(values).replace(" [", ", 95% CI [")


def range_of(values, digits=2):
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


# ---- Each question ----

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
    for pair in choice.COUNTED if equal else ():
        line = [f"mean, {' minus '.join(pair)}"]
        for key in ("tuned", "equal"):
            for name in choice.OUTCOMES:
                each = [choice.compare(equal.get(task, rows) if key == "equal" else rows,
                                       task, pair, name) for task in names]
                values = [statistics.fmean(seeds) for seeds in zip(*each)]
                line.append(with_interval(values))
                yield f"choice: {key}, {' minus '.join(pair)}, {name}", in_prose(values)
        alone.append(line)
        sure = [choice.compare(equal.get(task, rows), task, pair, "end", "greedy")
                for task in names]
        yield (f"choice: equal, {' minus '.join(pair)}, greedy",
               in_prose([statistics.fmean(seeds) for seeds in zip(*sure)]))
    yield "choice: tasks", [["task, comparison", "end", "mean", "end, A at C's rate",
                             "mean, A at C's rate"], *alone]


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
        return in_words([sum(each) for each in zip(*lists)])
    for (task, step), here in classes.points(read("classes")).items():
        cosine.append([f"`{task}`, {step}", *(in_words(classes.values_of(here, "arms", arm, key))
                                              for arm in arms for key in keys)])
        share.append([f"`{task}`, {step}", summed(here, likely, "signal"),
                      summed(here, unlikely, "signal"),
                      *(summed(here, [name], "noise") for name in unlikely)])
    for step in classes.STEPS:
        means = [statistics.fmean(classes.values_of(here, "arms", "GRPO-SG", "efficiency"))
                 for (_, at), here in classes.points(read("classes")).items() if at == step]
        yield f"classes: {step}, efficiency", range_of(means)
    yield "classes: cosines", cosine
    yield "classes: shares", share


def shares_of_kk():
    """Yield the lesson's table: the mean shares of kk, without classes that are always small."""
    found, means = classes.points(read("classes")), {}
    for step in classes.STEPS:
        for key in ("signal", "noise"):
            for name in classes.CLASSES:
                values = classes.values_of(found["kk", step], "classes", name, key)
                means.setdefault(name, {})[f"{key}, step {step}"] = statistics.fmean(values)
    shown = [name for name in means if max(means[name].values()) >= 0.1]
    rows = [["share of the", *shown]]
    for row in means[shown[0]]:
        values = [round(means[name][row], 2) + 0.0 for name in shown]  # never -0.00
        rows.append([row, *(f"**{x:.2f}**" if x >= 0.15 else f"{x:.2f}" for x in values)])
    yield "classes: lesson", rows
    others = [x for name in means if name not in shown for x in means[name].values()]
    yield "classes: lesson, others", f"{min(others):.2f} and {max(others):.2f}"


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
    for part, found in analysis.read_json("bench.json")["cpu"].items():
        for name, sides in found.items():
            if not isinstance(sides, dict):  # the versions, the commit
                continue
            for side in sorted(sides.keys() - {"runs"}):
                medians.setdefault((part, side), []).append(sides[side][0])
    yield "bench: sampling", range_of(medians["sampling", "generate / ours"], 1)
    steps = [x for (part, _), values in medians.items() if part == "step" for x in values]
    yield "bench: step", range_of(steps, 1)


def summarize():
    """Return {key: text or table} for all questions."""
    found = analysis.read_json("earlier.json")
    for question in (choices, cosines, shares_of_kk, ignorant, bench):
        found.update(question())
    return found
