"""The numbers on the pages are those of the raw rows in results/.

Each function computes the numbers of one experiment and yields (page, text): the page must have the
text, in which line breaks and bold type do not count. Rules are in results/rules.txt.
"""
import functools
import math
import pathlib
import re
import statistics

import pytest

from experiments import analysis, real2, words_figure
from experiments.analysis import detectable, interval, read
from experiments.kk_rl import measure

ROOT = pathlib.Path(__file__).parents[1]
EVIDENCE, LESSON = "experiments/README.md", "lesson/README.md"
DECISIONS = "lesson/decisions.md"
mean = statistics.fmean


# ---- Rows ----

def select(rows, **columns):
    """Return {seed: row} of the rows with these values."""
    found = [row for row in rows if all(row.get(key) == value for key, value in columns.items())]
    by_seed = {row["seed"]: row for row in found}
    assert len(by_seed) == len(found) > 0
    return by_seed


def subtract(ours, theirs, measure):
    """Return the differences of a measure, paired by seed. measure: a column, or a function."""
    if isinstance(measure, str):
        def measure(row, key=measure):
            return row[key]
    assert ours.keys() == theirs.keys()
    return [measure(ours[seed]) - measure(theirs[seed]) for seed in sorted(ours)]


def compare(experiment, ours, theirs, measure="avg@4"):
    """Return the differences between two arms of an experiment in the test."""
    rows = read(experiment)
    return subtract(select(rows, arm=ours, split="test"), select(rows, arm=theirs, split="test"),
                    measure)


# ---- Numbers as text ----

def in_brackets(values):
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*interval(values))


def in_prose(values):
    return in_brackets(values).replace(" [", ", 95% CI [")


def with_mde(values):
    return f"{in_prose(values)}, MDE {detectable(values):.3f}"


def as_share(values, gain):
    return "{:+.0%}, 95% CI [{:+.0%}, {:+.0%}]".format(*(x / gain for x in interval(values)))


def from_to(values, digits=2):
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def table_row(*cells):
    return f"| {' | '.join(cells)} |"


# ---- Is the weight worth more than the learning rate? ----

TASKS = "phone_book", "backwards", "math"
OUTCOMES = {
    "end": lambda row: row["avg@8"]["60"],
    "mean": lambda row: mean(row["avg@8"][step] for step in ("10", "20", "40", "60"))}


@functools.cache
def choice(ours, step, equal):
    """Return {task: differences of an arm minus GRPO}. step: an outcome, or a step; equal: both
    arms have the weighted arms' learning rate."""
    rows, controls = read("choice"), read("choice-equal")
    differences = {}
    for task in TASKS:
        control = equal and task == "phone_book"
        theirs = select(controls if control else rows, task=task, arm="A", split="test")
        differences[task] = subtract(select(rows, task=task, arm=ours, split="test"), theirs,
                                     OUTCOMES.get(step, lambda row: row["avg@8"][step]))
    return differences


def pool(ours, step, equal):
    return [mean(values) for values in zip(*choice(ours, step, equal).values())]


def main_comparison():
    for page in (EVIDENCE, "README.md"):
        yield page, in_prose(pool("B", "end", equal=True))
        yield page, in_prose(pool("B", "end", equal=False))
    early = [in_brackets(pool("B", step, equal=True)) for step in ("10", "20", "40", "60")]
    yield EVIDENCE, "{} after 10 steps, {} after 20, {} after 40 and {} after 60".format(*early)
    for task in TASKS:
        for arm in ("C", "B"):
            cells = [in_brackets(choice(arm, outcome, False)[task]) for outcome in OUTCOMES]
            if task == "phone_book":
                cells += [in_brackets(choice(arm, outcome, True)[task]) for outcome in OUTCOMES]
            else:
                cells += ["the same", "the same"]
            yield EVIDENCE, table_row(f"`{task}`, {arm} minus A", *cells)
    for arm in ("C", "B"):
        cells = [in_brackets(pool(arm, outcome, equal))
                 for equal in (False, True) for outcome in OUTCOMES]
        yield EVIDENCE, table_row(f"mean, {arm} minus A", *cells)


# ---- On a real model ----

def in_words(test, key):
    return f"{test[key]:.3f} ± {test[f'{key}_se']:.3f}"


def change(before, after, key):
    """Return (the change, its standard error), as if both tests had other problems."""
    return after[key] - before[key], math.hypot(before[f"{key}_se"], after[f"{key}_se"])


def real_sums():
    rows = read("real")
    sg, none = (select(rows, arm=f"shaping={shaping}") for shaping in ("sg", "none"))
    ends = [[row["end"] for row in arm.values()] for arm in (sg, none)]
    difference = subtract(sg, none, "end")
    before = f"{mean(row['before']['avg@4'] for row in sg.values()):.3f}"
    yield EVIDENCE, f"had {len(sg)} pairs"
    yield EVIDENCE, (f"From avg@4 {before}, GRPO-SG ends at {mean(ends[0]):.3f} and GRPO at "
                     f"{mean(ends[1]):.3f}, a difference of {in_prose(difference)}")
    yield EVIDENCE, f"The MDE is {detectable(difference):.3f}"
    yield EVIDENCE, f"widely: {from_to(ends[0])} and {from_to(ends[1])}"
    yield EVIDENCE, f"of steps 1 to 15: {in_prose(subtract(sg, none, 'reward'))}"
    norms = [step["grad_norm"] for row in rows for step in row["steps"] if step["grad_norm"]]
    yield EVIDENCE, f"{sum(norm > 1 for norm in norms)} of {len(norms)} updates"
    lower, = read("real_lower")
    yield EVIDENCE, f"at {lower['after']['avg@4']:.3f} with this seed"
    yield "README.md", f"{before} -> {mean(ends[0]):.3f} ({from_to(ends[0])})"


def real_sums_again():
    rows = real2.select_complete(read("real2"))
    yield EVIDENCE, f"the first {len(rows) // 4} of its 40 seeds"
    yield EVIDENCE, f"From avg@4 {mean(row['before'] for row in rows):.3f}"
    low = [sum(row["avg@4"] < 0.1 for row in rows if row["shaping"] == shaping)
           for shaping in ("sg", "none")]
    yield EVIDENCE, f"below 0.1 in {low[0]} of {len(rows) // 2} runs of GRPO-SG and {low[1]} of GRPO"
    ends, starts = [], []
    for lr in real2.RATES:
        sg, none = (select(rows, lr=lr, shaping=shaping) for shaping in ("sg", "none"))
        ends.append(subtract(sg, none, "avg@4"))
        starts.append(subtract(sg, none, start_of_run))
        means = [f"{mean(row['avg@4'] for row in arm.values()):.3f}" for arm in (sg, none)]
        yield EVIDENCE, table_row(lr, *means, in_brackets(ends[-1]))
    end, start = ([mean(pair) for pair in zip(*rates)] for rates in (ends, starts))
    yield EVIDENCE, f"The mean of the two rates differs by {in_prose(end)}"
    yield EVIDENCE, f"The MDE is {detectable(end):.3f}"
    yield EVIDENCE, f"It differs by {in_prose(start)}"
    yield EVIDENCE, f"over {len(end)} seeds at two rates, the difference after 15 steps is {in_prose(end)}"
    yield "README.md", f"{in_prose(end)} in avg@4, over {len(end)} seeds"


def start_of_run(row):
    return mean(row["accuracy"][:10])


def real_look():
    before, after = read("real_look")
    for row, text in ((before, "its efficiency is {}"), (after, "and the efficiency, {}, is open")):
        yield EVIDENCE, text.format("{:.3f} ± {:.3f}".format(*row["efficiency"]))
        yield EVIDENCE, f"{sum(share['tokens'] for share in find_unlikely(row)):.0%} of the"
    signal, noise = (f"{sum(share[part][0] for share in find_unlikely(before)):.0%}"
                     for part in ("signal", "noise"))
    yield EVIDENCE, f"{signal} of the signal and {noise} of the noise"


def find_unlikely(row):
    return [shares for name, shares in row["classes"].items() if "< 1/3" in name]


def real_puzzles():
    _, long, warm = read("real_cold")
    before = long["three people"]["before"]
    after = [row["three people"]["after"] for row in (long, warm)]
    yield EVIDENCE, (f"avg@4 is {in_words(before, 'avg@4')}, where the best constant answer scores "
                     f"{before['best constant answer']:.2f}")
    changes = ["{:+.3f} ± {:.3f}".format(*change(before, test, "avg@4")) for test in after]
    yield EVIDENCE, f"avg@4 changed by {' and '.join(changes)}"
    low = " and ".join(f"{test['pass@4']:.3f}" for test in after)
    yield EVIDENCE, f"pass@4 fell from {before['pass@4']:.3f} to {low}"
    falls = [change(before, test, "pass@4") for test in after]
    zs = " and ".join(f"{fall / error:.1f}" for fall, error in falls)
    yield EVIDENCE, f"z = {zs}"
    equal = " and ".join(f"{test['equal_groups@4']:.2f}" for test in after)
    yield EVIDENCE, f"from {before['equal_groups@4']:.2f} to {equal}"


def puzzles_with_rl():
    rows = read("kk_rl")
    cold, = (row["valid"] for row in rows if row.get("model") == "cold" and "valid" in row)
    yield EVIDENCE, (f"avg@4 is {in_words(cold, 'avg@4')} on {cold['problems']} validation puzzles "
                     f"and pass@4 {in_words(cold, 'pass@4')}")
    run, = (row for row in rows if row.get("run") == "lr5e-05-seed0")
    steps, greedy = run["steps"], run["greedy"]
    yield EVIDENCE, f"{len(steps)} of its 200 steps"
    yield EVIDENCE, f"{len(greedy[0]['answers'])} different answers to 64 test puzzles"
    most = sum(sorted(greedy[-1]["answers"].values())[-2:])
    yield EVIDENCE, f"after step {greedy[-1]['step']} it gives two answers to {most} of 64"
    yield EVIDENCE, f"({greedy[-1]['accuracy']:.2f} of them correct)"
    yield EVIDENCE, f"largest KL of a step was {max(step['kl'] or 0 for step in steps):.1f} nats"
    for text in first_and_last(steps):
        yield EVIDENCE, text


def first_and_last(steps):
    for column, name in (("accuracy", "accuracy of the samples is"), ("entropy", "the entropy"),
                         ("equal_groups", "the fraction of groups with equal rewards")):
        known = [[step[column] for step in part if step[column] is not None]  # None: no update
                 for part in (steps[:10], steps[-10:])]
        first, last = map(mean, known)
        yield f"{name} {first:.2f} and {last:.2f}"


def puzzles_after_a_longer_start():
    rows = read("kk_rl2")
    valid = {row["model"]: row["valid"] for row in rows if "valid" in row}
    yield EVIDENCE, f"avg@4 was {in_words(valid['cold-200'], 'avg@4')}"
    yield EVIDENCE, f"{in_words(valid['cold'], 'avg@4')}, with pass@4 {in_words(valid['cold'], 'pass@4')}"
    tests = {row["model"]: measure(row["test"]) for row in rows if "test" in row}
    before, after = tests["cold"], tests["lr2e-05-seed0-step60"]
    for key, values in before.items():
        differences = [b - a for a, b in zip(values, after[key], strict=True)]
        changed = f"from {mean(values):.3f} by {in_brackets(differences)}"
        yield EVIDENCE, f"{key} {changed}"
        if key != "greedy":
            yield "README.md", f"{key} {changed}"
    run, = (row for row in rows if row.get("run") == "lr2e-05-seed0")
    for text in first_and_last(run["steps"]):
        yield EVIDENCE, text


# ---- The default runs ----

def default_runs():
    for arm in ("kk, words", "math, ready"):
        row = select(read("default"), arm=arm)[0]
        before, after = (f"{test['eval/avg@4']:.3f}" for test in row["tests"])
        yield "README.md", f"{before} -> {after}"
    printed = (analysis.RESULTS / "default_run.txt").read_text("utf-8")
    for line in re.findall(r"^(?:step (?:1|2|59|60) |before ).*", printed, re.M):
        yield "README.md", line
    rows = select(read("default"), arm="kk, words").values()
    before, after = (mean(row[key] for row in rows) for key in ("before", "avg@4"))
    yield "README.md", f"({len(rows)} seeds: {before:.3f} -> {after:.3f})"


# ---- Signal and noise ----

def classes():
    rows = read("classes")
    means = {step: [] for step in (0, 15)}
    for task in ("kk", "math", "qa"):
        for step in means:
            seeds = select(rows, task=task, step=step).values()
            means[step].append(mean(row["arms"]["GRPO-SG"]["efficiency"][0] for row in seeds))
    yield EVIDENCE, (f"GRPO-SG has {from_to(means[0])} at the start and {from_to(means[15])} after "
                     "15 steps")


def words():
    for row in words_figure.write_table(read("words_look")):
        yield LESSON, row
        place, *_, efficiency, _ = row.strip("| ").split(" | ")
        if place in ("before, step 0", "after, step 0"):
            yield "README.md", efficiency
    differences, _, seeds = words_figure.find_differences(read("words_learn"))
    after, before, after_11, before_11 = (
        words_figure.write_interval(differences[place, weight, "training 1-20"])
        for weight in ("GRPO-SG", "damping 11") for place in ("after", "before"))
    yield LESSON, (f"{len(seeds)} seeds, accuracy in steps 1 to 20 minus GRPO's is {after} for "
                   f"GRPO-SG after the name, and {before} before it ({after_11} and {before_11} with")
    prose = [text.replace(" [", ", 95% CI [") for text in (after, before)]
    yield "README.md", "{} after the name and {} before it".format(*prose)
    pairs = zip(*(differences[place, "damping 11", "training 1-20"] for place in ("after", "before")))
    larger = words_figure.write_interval([after - before for after, before in pairs])
    yield LESSON, f"with damping 11 it is larger by {larger}"


def signal():
    rows = [row for row in read("signal") if row["arm"] == "GRPO-SG" and row["rewards"] == "clean"
            and row["metric"] == "Euclid"]

    def efficiency(task, step, n):
        seeds = select(rows, task=task, step=step).values()
        return mean(row[f"efficiency {n}"][0] for row in seeds)
    start, later = ([efficiency(task, step, 256) for task in ("kk", "math", "qa")]
                    for step in (0, 15))
    yield EVIDENCE, f"early gain vanishes ({from_to(start)})"
    yield EVIDENCE, f"does not ({from_to(later)})"
    yield EVIDENCE, f"no early gain ({efficiency('kk, solutions', 0, 8):.2f})"


# ---- Earlier experiments ----

def start(name):
    return mean(row["avg@4"] for row in select(read("start"), arm=name).values())


def gain(experiment, name, **columns):
    """Return what GRPO adds to avg@4."""
    rows = select(read(experiment), arm="none", split="test", **columns).values()
    return mean(row["avg@4"] for row in rows) - start(name)


def help_and_noisy():
    clean = compare("help", "sg", "none")
    share = detectable(clean) / gain("help", "warm-up of 100")
    yield EVIDENCE, f"changed by {in_prose(clean)}, and the MDE is {share:.0%} of the gain"
    noisy = as_share(compare("noisy", "sg", "none"), gain("noisy", "warm-up of 100"))
    yield EVIDENCE, f"the difference is {noisy} of the gain"
    ours, theirs = ({}, {})
    for experiment, arm, into in (("noisy", "sg", ours), ("greedy", "sg", ours),
                                  ("noisy-equal", "none", theirs), ("greedy", "none", theirs)):
        into.update(select(read(experiment), arm=arm, split="test", rate=1e-4))
    gained = mean(row["avg@4"] for row in theirs.values()) - start("warm-up of 100")
    yield EVIDENCE, f"it is {as_share(subtract(ours, theirs, 'avg@4'), gained)}"
    yield EVIDENCE, f"AR-Lopti's weight, minus GRPO | {with_mde(compare('help', 'ar', 'none'))}"


def when():
    rows = [row for row in read("when") if row["split"] == "test"]

    def minus_grpo(part, arm, step):
        return subtract(select(rows, part=part, arm=arm), select(rows, part=part, arm="GRPO"),
                        lambda row: row["avg@8"][step])
    yield EVIDENCE, f"GRPO-SG minus GRPO is {in_brackets(minus_grpo('early', 'GRPO-SG', '10'))}"
    switched = minus_grpo("switch", "damping 10, then GRPO", "60")
    yield EVIDENCE, f"ends {in_brackets(switched)} above GRPO"
    for arm, verb in (("GRPO-SG", "was ahead by"), ("damping 10", "and damping 10 by")):
        lead = minus_grpo("switch", arm, "20")
        yield EVIDENCE, f"{verb} {in_brackets(lead)} ({sum(x > 0 for x in lead)} of {len(lead)}"


DAMPING = {"1/3": 1 / 3, "1/1.4": 1 / 1.4, "none": 1, "1.4": 1.4, "3": 3, "10": 10}


def slopes(arms):
    """Fit avg@4 over ln d, for each seed."""
    ends = {arm: select(read("dose"), arm=arm, split="test") for arm in arms}
    xs = [math.log(DAMPING[arm]) for arm in arms]
    return [statistics.linear_regression(xs, [ends[arm][seed]["avg@4"] for arm in arms]).slope
            for seed in range(20)]


def dose():
    ten = as_share(compare("dose", "10", "none"), gain("dose", "warm-up of 150"))
    yield EVIDENCE, f"avg@4 changed by {ten} of the gain"
    doubling = [slope * math.log(2) for slope in slopes(list(DAMPING))]
    yield EVIDENCE, f"doubling the damping factor changes avg@4 by {in_prose(doubling)}"
    yield EVIDENCE, f"changes avg@4 by {with_mde(slopes([*DAMPING][:-1]))}"


def mistakes():
    names = {"clip(w r)": "weight inside the clip, `clip(w r)`",
             "end token masked": "stop token masked by `ids != pad`",
             "tau = 9": "tau = 9, which makes every weight 1",
             "scored at another temperature": "sampled at temperature 1, scored at 0.6"}
    unsure = {arm: compare("mistakes", arm, "sg") for arm in names}
    for arm, name in names.items():
        default = compare("visible", arm, "sg")
        yield EVIDENCE, table_row(name, in_brackets(unsure[arm]), f"{detectable(unsure[arm]):.3f}",
                                  in_brackets(default), f"{detectable(default):.3f}")
    yield LESSON, f"{in_brackets(unsure['clip(w r)'])} (95% CI, eight paired seeds)"
    yield DECISIONS, f"inside: {in_brackets(unsure['clip(w r)'])} (seeds 0-7)"
    yield DECISIONS, f"9 instead of 1/9: {in_brackets(unsure['tau = 9'])} (seeds 0-7)"
    reading = with_mde(compare("reading", "mu inside", "sg"))
    yield DECISIONS, f"inside: {reading} (seeds 0-9)"


def collapse_rate(gains):
    """Return T of the rule of "stability", in octaves above 1e-4."""
    length = 0.0
    for low, high in map(sorted, zip(gains, gains[1:])):
        length += 1 if low >= 0 else 0 if high < 0 else high / (high - low)
    return length


def other_questions():
    rows, rates = read("stability"), (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)
    T = {}
    for arm in ("sg", "none"):
        ends = [select(rows, arm=arm, rate=rate) for rate in rates]
        T[arm] = [collapse_rate([end[seed]["avg@4"] - end[seed]["before"] for end in ends])
                  for seed in range(10)]
    yield EVIDENCE, f"factors of two | {with_mde([b - a for a, b in zip(T['none'], T['sg'])])}"
    transfer = compare("afar", "sg, many", "none, many",
                       lambda row: (row["avg@4, 4 people"] + row["avg@4, 5 people"]) / 2)
    yield EVIDENCE, f"unconfirmed | {with_mde(transfer)}"
    sharpness = compare("afar", "sg, many", "none, many",
                        lambda row: row["before a step aside"] - row["after a step aside"])
    yield EVIDENCE, f"displacement of the parameters | {with_mde(sharpness)}"
    late = read("late")
    collapsed = sum(mean(row["curve"][-100:]) < best_mean(row["curve"]) - 0.1 for row in late)
    yield EVIDENCE, (f"{collapsed or 'none'} of {len(late)} did; 95% upper bound "
                     f"{1 - 0.05 ** (1 / len(late)):.0%}")


def best_mean(curve):
    return max(mean(curve[i:i + 100]) for i in range(0, len(curve) - 99, 10))


def baselines_and_bench():
    best = {}
    for row in read("ignorant"):
        best[row["problems"]] = max(best.get(row["problems"], 0), row["accuracy"])
    yield EVIDENCE, f"at most {best.pop('kk, 3 people'):.3f} of puzzles with three people"
    yield EVIDENCE, f"and {max(best.values()):.3f} of other problems"


# ---- The pages have them ----

def plain(text):
    return " ".join(text.replace("**", "").split())


@functools.cache
def read_page(name):
    return plain((ROOT / name).read_text("utf-8"))


@pytest.mark.parametrize("numbers", [
    main_comparison, real_sums, real_sums_again, real_look, real_puzzles, puzzles_with_rl,
    puzzles_after_a_longer_start, default_runs, classes, words, signal, help_and_noisy, when, dose,
    mistakes, other_questions, baselines_and_bench])
def test_the_pages_have_the_numbers_of_the_rows(numbers):
    missing = [f"{page}: {text}" for page, text in numbers() if plain(text) not in read_page(page)]
    assert not missing, "\n".join(missing)
