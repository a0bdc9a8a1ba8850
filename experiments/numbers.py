"""The measured numbers of the pages, from the raw files in results/. It trains nothing.

    python -m experiments.numbers            fails where a page is not what the files say
    python -m experiments.numbers --write    puts into the pages what the files say

In a page each is between <!--=NAME--> and <!--/-->, in any Markdown page of the project. NAME
is a key of what the functions below yield: a number, words, or a table.
"""
import argparse
import math
import pathlib
import re
import statistics
import sys

from experiments import analysis, angle, moves
from experiments.analysis import FINITE_DOSES, cell, differences, interval, mean, read, slopes
from experiments.run import EXPERIMENTS

ROOT = pathlib.Path(__file__).parents[1]
EVIDENCE = ROOT / "experiments" / "README.md"
MARK = re.compile(r"(<!--=(.*?)-->)(.*?)(<!--/-->)", re.S)
NOT_MARKED = r"<!--=.*?<!--/-->|<details>.*?</details>|```.*?```|`[^`]*`|\]\([^)]*\)"
# A measured number is written without the 0 before its point.
MEASURED = r"(?<![\w.,])[-+]?\.\d\d+"
KEYS = "avg@4", "greedy"
NOT_YET = "(not recorded yet)"
METHODS = {"none": "GRPO", "sg": "GRPO-SG", "ar": "GRPO with AR-Lopti's weight",
           "lopti": "GRPO in Lopti's order"}
# of moves.EDGES
BINS = "below 1/3", "1/3 to 0.9", "0.9 to 0.99", "0.99 to 0.999", "above 0.999"
MISTAKES = {"clip(w r)": "the weight inside of the clip, `clip(w r)`",
            "end token masked": "the stop token left out of the loss, by `ids != pad`",
            "tau = 9": "tau = 9, by which every weight is 1: plain GRPO",
            "scored at another temperature":
                "log-probabilities at temperature 0.6 of samples drawn at 1"}


# ---- How values are written ----

def short(value, digits=3):
    """.508, -.010: without the 0 before the point."""
    return re.sub(r"^([-+]?)0\.", r"\1.", f"{value:.{digits}f}")


def signed(value, digits=3):
    return re.sub(r"^([-+])0\.", r"\1.", f"{value:+.{digits}f}")


def rate(value):
    """1.6e-3, 2e-4"""
    return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")


def with_error(values, digits=3):
    """The mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{short(statistics.fmean(values), digits)} ± {short(error, digits)}"


def with_interval(values):
    average, low, high = map(signed, interval(values))
    return f"{average} [{low}, {high}]"


def range_of(values, digits=2):
    low, high = short(min(values), digits), short(max(values), digits)
    return low if low == high else f"{low} to {high}"


def percent(value, digits=1):
    return f"{100 * value:.{digits}f} %"


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def call(values, name="GRPO-SG", seeds=20):
    """The verdict on a method's differences to GRPO; with fewer than all seeds, how many."""
    if len(values) < 2:
        return NOT_YET
    if len(values) < seeds:
        return f"interim, {len(values)} seeds of {seeds}"
    return (f"{name} is worse", "no difference was seen", f"{name} is better")[side(values) + 1]


def side(values, middle=0.0):
    """1 if their interval is above the middle, -1 if below, else 0; 0 of a single value."""
    if len(values) < 2:
        return 0
    _, low, high = interval(values)
    return (low > middle) - (high < middle)


# ---- Each question's ----

def default():
    rows = read("default")
    own, ready, lines = [], [], []
    for arm in sorted({row["arm"] for row in rows}):  # those from the ready model follow
        here = [row for row in rows if row["arm"] == arm]
        task, *from_ready = arm.split(", ")
        seconds = ready if from_ready else own
        seconds += [row["seconds"] for row in here]
        if len(here) < 2:
            continue
        line = [f"`{task}`, ready model" if from_ready else f"`{task}`, own warm-up"]
        for key in ("eval/avg@4", "eval/accuracy"):
            for i in (0, 1):
                text = with_error([row["tests"][i][key] for row in here])
                line.append(f"**{text}**" if (key, i) == ("eval/avg@4", 1) else text)
        lines.append([*line, range_of([row["best constant answer"] for row in here])])
    yield "default: table", table(
        ["`--task`", "avg@4 before RL", "avg@4 after", "greedy before", "greedy after",
         "best constant answer"], lines)
    yield "default: ready", "the table's last rows of each task" if ready else NOT_YET
    yield "default: seconds", range_of(own, 0)
    yield "default: seconds, ready", range_of(ready, 0) if ready else NOT_YET
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
    yield "premise: unlikely", percent(sum(row[key] * row["tokens"] for row in rows) / tokens)
    yield "premise: Pearson", range_of([row["Pearson"] for row in rows])
    yield "premise: Spearman", range_of([row["Spearman"] for row in rows])


def helps():
    lines = []
    for name, rewards in (("help", "clean"), ("noisy", "noisy")):
        base = cell(name, "none")
        for arm in EXPERIMENTS[name].arms:
            lines.append([rewards, *line_of_method(name, arm, base)])
            if arm != "none":
                values = differences(cell(name, arm), base)
                yield f"{name}: {arm}", call(values, METHODS[arm])
    minus = differences(cell("help", "sg"), cell("help", "none"))
    yield "help: sg, minus GRPO", with_interval(minus)
    equal, noisy = cell("noisy-equal", "none"), cell("noisy", "sg")
    both = [with_interval(differences(noisy, equal, key)) for key in KEYS]
    lines.append(["noisy", "GRPO-SG, minus GRPO at the same rate", rate(1e-4), "", *both])
    yield "help: table", table(["rewards", "method", "learning rate", "avg@4", "minus GRPO's",
                                "greedy, minus GRPO's"], lines)
    for steps in (100, 150):
        yield f"start: {steps}", short(mean(cell("start", f"warm-up of {steps}")))


def line_of_method(name, arm, base):
    """Its rate, its avg@4, and both differences to GRPO's."""
    here, label = cell(name, arm), METHODS[arm]
    if len(here) < 2:
        return [label, "", NOT_YET, "", ""]
    if len(here) < len(base):
        label += f" ({len(here)} seeds of {len(base)})"
    both = ["", ""]
    if arm != "none":
        both = [with_interval(differences(here, base, key)) for key in KEYS]
    if arm == "sg":
        both[0] = f"**{both[0]}**"
    return [label, rate(here[min(here)]["rate"]), short(mean(here)), *both]


def greedy():
    """By the rule in README.md; until all 40 seeds are there it is called interim."""
    cells = [cell("greedy", arm, rate=1e-4) for arm in ("sg", "none")]
    values = differences(*cells, "greedy")
    text, verdict = NOT_YET, NOT_YET
    if len(values) > 1:
        verdict = "it was real" if interval(values)[1] > 0 else "it was not real"
        if len(values) < 40:
            verdict = f"interim, {len(values)} seeds of 40"
        text = f"{with_interval(values)}; in avg@4 {with_interval(differences(*cells))}"
        twice = [cell("greedy", arm, rate=2e-4) for arm in ("sg", "none")]
        if len(differences(*twice)) > 1:
            text += f"; at 2e-4 greedy {with_interval(differences(*twice, 'greedy'))}, "
            text += f"avg@4 {with_interval(differences(*twice))}"
    yield "greedy: values", text
    yield "greedy: verdict", verdict


def dose():
    labels = {"none": "1: GRPO", "1.4": "1.4: GRPO-SG, w divided by its mean", "pi": "w = pi"}
    base, lines, clipped = cell("dose", "none"), [], {}
    for name in analysis.DOSES:
        here = cell("dose", name)
        clipped[name] = percent(mean(here, "norm above 1"))
        lines.append([labels.get(name, name), rate(here[0]["rate"]), short(mean(here)), ""])
        if name != "none":
            lines[-1][-1] = with_interval(differences(here, base))
    yield "dose: table", table(["dose", "learning rate", "avg@4", "minus dose 1"], lines)
    yield "dose: clipped", (
        f"in {clipped['1/3']} of the updates at dose 1/3, in {clipped['none']} at dose 1 and "
        f"in {clipped['10']} at dose 10")
    found = slopes(FINITE_DOSES)
    yield "dose: verdict", analysis.judge_slopes(found)
    yield "dose: slope", with_interval(found)
    yield "dose: doubling", with_interval([math.log(2) * slope for slope in found])
    yield "dose: without 10", with_interval(slopes(FINITE_DOSES[:-1]))
    yield "dose: 1 to 10", with_interval(slopes(FINITE_DOSES[2:]))
    parts = []
    for lr in (5e-5, 1e-4, 2e-4, 4e-4):
        slope = statistics.fmean(slopes(FINITE_DOSES, split="valid", rate=lr))
        parts.append(f"{signed(slope)} at {rate(lr)}")
    yield "dose: grid", f"{', '.join(parts[:-1])} and {parts[-1]}"
    highest, peak = analysis.find_peak()
    called = "by the rule a peak" if peak else "by the rule not called a peak"
    yield "dose: highest", f"{highest.replace('none', '1')}, {called}"


def stability():
    lines, told = [], []
    for lr in (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3):
        line = [rate(lr)]
        cells = [cell("stability", arm, rate=lr) for arm in ("none", "sg")]
        for here in cells:
            down = sum(row["avg@4"] < row["before"] for row in here.values())
            values = [row["avg@4"] for row in here.values()]
            line += [with_error(values), f"{down} of {len(here)}"]
        lines.append(line)
        values = differences(cells[1], cells[0], "norm cv")
        if side(values):
            told.append(f"at {rate(lr)}, by {with_interval(values)}")
    head = ["learning rate", "GRPO: avg@4", "collapsed", "GRPO-SG: avg@4", "collapsed"]
    yield "stability: table", table(head, lines)
    D, s, verdict = analysis.compare_collapse()
    yield "stability: verdict", verdict
    yield "stability: D", with_interval(D)
    yield "stability: s", short(s)
    yield "stability: norms", " and ".join(told) or "at no rate"


def mistakes():
    for name in ("mistakes", "visible"):
        base, lines, costly = cell(name, "sg"), [], 0
        for arm, label in MISTAKES.items():
            values = differences(cell(name, arm), base)
            if len(values) > 1:
                low, high = interval(values)[1:]
                costly += high < 0
                text = f"**{with_interval(values)}**" if high < 0 else with_interval(values)
                lines.append([label, text, f"{mean(cell(name, arm), 'norm max'):.1f}"])
                yield f"{name}: {arm}", with_interval(values)
        count = ("none", "one", "two", "three", "all")[costly]
        if not lines:
            yield f"{name}: table", NOT_YET
            continue
        lines.append(["the right version", "", f"{mean(base, 'norm max'):.1f}"])
        yield f"{name}: right", short(mean(base))
        yield f"{name}: table", table(
            ["the mistake", "test avg@4 minus the right version's",
             "largest gradient norm of a run, mean"], lines)
        yield f"{name}: costly", count
    values = differences(cell("reading", "mu inside"), cell("reading", "sg"))
    yield "reading: avg@4", with_interval(values)


def angles():
    """In degrees; means over the seeds that there are."""
    found = angle.cells(read("angle"))
    arms = "GRPO-SG", "AR", "another draw"
    lines = []
    for steps in (1, 60):
        means = {arm: [] for arm in arms}
        for task in angle.TASKS:
            each = []
            for arm in arms:
                values = values_of(found["displacement", task, 0, steps, arm])
                means[arm].append(statistics.fmean(values))
                each.append(angle.in_words(values, "{:.0f}"))
                yield f"angle: {task}, {steps}, {arm}", f"{statistics.fmean(values):.0f}"
            lines.append([f"`{task}`", str(steps), *each])
        for arm in arms:
            yield f"angle: {steps}, {arm}", range_of(means[arm], 0)
    yield "angle: moves", table(["task", "steps", *arms], lines)
    seeds = {row["seed"] for row in found["displacement", "kk", 0, 60, "GRPO-SG"]}
    yield "angle: seeds", str(len(seeds))


def gradients():
    """Of the means at each point of training: least and greatest, in degrees."""
    found = angle.cells(read("angle"))
    arms = "GRPO-SG", "AR", "dose 10", "without unlikely", "another draw"
    lines, every = [], {arm: [] for arm in arms}
    for task in angle.TASKS:
        points = []
        for experiment, where, warmup, steps, arm in found:
            if (experiment, where, arm) == ("gradient", task, "GRPO-SG"):
                points.append((experiment, task, warmup, steps))
        line = [f"`{task}`, {len(points)} points"]
        for arm in arms:
            means = [statistics.fmean(values_of(found[*point, arm])) for point in points]
            line.append(range_of(means, 0))
            every[arm] += means
        lines.append(line)
    yield "angle: gradients", table(["", *arms], lines)
    for arm in arms:
        yield f"angle: gradient, {arm}", range_of(every[arm], 0)


def values_of(rows):
    return [angle.degrees(row["cos"]) for row in rows]


def likelier():
    """Which share of the tokens with a positive advantage got likelier by one update, in means
    over cells: a cell is a task at a point of training, and a bin of pi."""
    found = moves.shares(read("moves"))
    arms = "GRPO", "GRPO-SG", "AR", "Lopti", "dose 10"
    for optimizer in ("AdamW", "SGD"):
        sides, below, cells, lines = {arm: [] for arm in arms}, 0, 0, []
        for label, edge in zip(BINS, moves.EDGES):
            here, under = [], 0
            for (_, _, used, low, _, sign), cell_of in found.items():
                if (used, low, sign) == (optimizer, edge, 1):
                    here.append(cell_of)
            line = [label]
            for arm in arms:
                shares = [mean(cell_of[arm], "share") for cell_of in here]
                line.append(short(statistics.fmean(shares), 2))
            for cell_of in here:
                base = cell_of["GRPO"]
                under += side([each["share"] for each in base.values()], 0.5) == -1
                for arm in arms:
                    sides[arm].append(side(differences(cell_of[arm], base, "share")))
            lines.append([*line, f"{under} of {len(here)}"])
            below, cells = below + under, cells + len(here)
        told = [f"{sides[arm].count(1)}; {sides[arm].count(-1)}" for arm in arms[1:]]
        lines.append([f"of {cells} cells, higher than GRPO's; lower", "", *told, ""])
        yield f"moves: {optimizer}", table(
            ["pi before the update", *arms, "cells in which GRPO's is below half"], lines)
        yield f"moves: {optimizer}, below half", f"{below or 'none'} of {cells}"


def late():
    """By the rule in README.md; interim until all eight runs are there."""
    lines, fallen = [], []
    rows = read("late")
    for row in sorted(rows, key=place):
        best, last, collapsed = analysis.describe_end(row)
        label = [f"`{row['arm']}`", rate(row["rate"]), str(row["seed"])]
        values = [row["before"], row["avg@4"], best, last]
        lines.append([*label, *map(short, values), "yes" if collapsed else "no"])
        if collapsed:
            fallen.append(f"{row['arm']} at {rate(row['rate'])}, seed {row['seed']}")
    verdict = f"collapsed: {'; '.join(fallen)}" if fallen else "no run collapsed"
    if len(rows) < 8:
        verdict = f"interim, {len(rows)} runs of 8" if rows else NOT_YET
    yield "late: verdict", verdict
    yield "late: table", NOT_YET if not rows else table(
        ["task", "learning rate", "seed", "avg@4 before", "avg@4 after",
         "in training: best 100 steps", "last 100 steps", "collapsed"], lines)


def place(row):
    return row["arm"], row["rate"], row["seed"]


def afar():
    """By the rule in README.md; interim until all ten seeds are there."""
    compared = {
        "transfer: avg@4 on four and five people": ("many", analysis.transfer),
        "gap: avg@4 on the 64, minus on others": ("few", analysis.gap),
        "sharpness: fall of avg@4 by a step aside": ("many", analysis.sharpness),
        "beside the rule: avg@4 on three people": ("many", analysis.at_home)}
    found, lines = [], []
    for label, (problems, measure) in compared.items():
        pairs = analysis.compare_afar(problems, measure)
        if len(pairs) < 2:
            yield "afar: verdict", NOT_YET
            yield "afar: table", NOT_YET
            return
        minus = [sg - none for none, sg in pairs]
        found.append(minus)
        levels = [short(statistics.fmean(column)) for column in zip(*pairs)]
        lines.append([label, *levels, with_interval(minus)])
    verdict = analysis.judge_afar(*found[:3])
    seeds = len(found[0])
    yield "afar: verdict", verdict if seeds == 10 else f"interim, {seeds} seeds of 10"
    yield "afar: table", table(["", "GRPO", "GRPO-SG", "GRPO-SG minus GRPO"], lines)


def ignorant():
    rows = analysis.read("ignorant")
    lines = []
    for problems in dict.fromkeys(row["problems"] for row in rows):
        here = [row for row in rows if row["problems"] == problems]
        best = max(here, key=lambda row: row["accuracy"])
        line = [problems, f"{here[0]['n']:,}"]
        for policy in ("constant", "question", "form", "random"):
            found = [row for row in here if row["policy"] == policy][0]
            line.append(f"{short(found['accuracy'])} / {found['reward']:+.2f}")
        lines.append([*line, f"{best['policy']}: {short(best['accuracy'])}"])
    yield "ignorant: table", table(
        ["accuracy / mean reward", "problems", "the best constant answer",
         "the question itself", "the form alone", "another problem's answer",
         "most accurate of all tried"], lines)


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
            ("a whole step against TRL 1.16 with 8 rows a micro-batch", step, "TRL, 8 rows"),
            ("a whole step against TRL 1.16 with an update in one batch", step,
             "TRL, one batch")):
        cells = []
        for part in parts:
            ratios = part.get(f"{side} / ours") or part.get(f"{side} / ours, seconds")
            text = "{:.1f} ({:.1f} to {:.1f})"
            cells.append(text.format(*ratios) if ratios else "not measured")
        if set(cells) != {"not measured"}:
            lines.append([label, *cells, ""][:3])
    head = ["their time / ours (sampling, steps: a token)", "vocabulary 2,048", "151,936"]
    yield "bench: table", table(head, lines)


def values():
    """{name: text} of all questions."""
    found = {}
    for question in (
            default, premise, helps, greedy, dose, stability, mistakes, angles, gradients,
            likelier, late, afar, ignorant, bench):
        found.update(question())
    return found


# ---- The pages ----

def check(page, known):
    """(the page as the files have it, [what is wrong])"""
    wrong = []

    def put(match):
        name, stands = match[2], match[3]
        if name not in known:
            wrong.append(f"there is no number {name!r}")
        elif known[name] != stands:
            wrong.append(f"{name} is {stands.strip()!r}, by the files {known[name].strip()!r}")
        return match[1] + known.get(name, stands) + match[4]
    return MARK.sub(put, page), wrong


def without_source(page):
    """The measured numbers that stand outside of markers, of code, and of the rules, which are
    older than the rows."""
    return re.findall(MEASURED, re.sub(NOT_MARKED, "", page, flags=re.S))


def find_pages():
    """Return the paths of the pages with marked numbers."""
    paths = sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("extras/*/*.md")])
    return [path for path in paths if MARK.search(path.read_text())]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="repair the pages")
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
