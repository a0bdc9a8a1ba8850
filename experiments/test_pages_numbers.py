"""The numbers on the pages are those of the raw rows in results/.

Each function computes the numbers of one experiment and yields (page, text): the page must have the
text, in which line breaks and bold type do not count.
"""
import functools
import pathlib
import re
import statistics

import pytest

from experiments.compare import RESULTS, detectable, interval, read_rows

ROOT = pathlib.Path(__file__).parents[1]
EVIDENCE, LESSON = "experiments/README.md", "lesson/README.md"
DECISIONS = "lesson/decisions.md"
mean = statistics.fmean


# ---- Rows ----

def read(experiment):
    return read_rows(RESULTS / f"{experiment}.jsonl")


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
    return subtract(select(rows, arm=ours), select(rows, arm=theirs),
                    measure)


# ---- Numbers as text ----

def in_brackets(values):
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*interval(values))


def in_prose(values):
    return in_brackets(values).replace(" [", ", 95% CI [")


def with_mde(values):
    return f"{in_prose(values)}, MDE {detectable(values):.3f}"


def from_to(values):
    return f"{min(values):.2f} to {max(values):.2f}"


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
        theirs = select(controls if control else rows, task=task, arm="A")
        differences[task] = subtract(select(rows, task=task, arm=ours), theirs,
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

def real_sums():
    rows = read("real")
    sg, none = (select(rows, arm=f"shaping={shaping}") for shaping in ("sg", "none"))
    ends = [[row["end"] for row in arm.values()] for arm in (sg, none)]
    difference = subtract(sg, none, "end")
    before = f"{mean(row['before'] for row in sg.values()):.3f}"
    yield EVIDENCE, f"had {len(sg)} pairs"
    yield EVIDENCE, (f"From avg@4 {before}, GRPO-SG ends at {mean(ends[0]):.3f} and GRPO at "
                     f"{mean(ends[1]):.3f}, a difference of {in_prose(difference)}")
    yield EVIDENCE, f"The MDE is {detectable(difference):.3f}"
    yield EVIDENCE, f"widely: {from_to(ends[0])} and {from_to(ends[1])}"
    yield EVIDENCE, f"of steps 1 to 15: {in_prose(subtract(sg, none, 'reward'))}"
    yield "README.md", f"{before} -> {mean(ends[0]):.3f} ({from_to(ends[0])})"


def real_sums_again():
    rows = read("real2")
    yield EVIDENCE, f"the first {len(rows) // 4} of its 40 seeds"
    yield EVIDENCE, f"From avg@4 {mean(row['before'] for row in rows):.3f}"
    low = [sum(row["avg@4"] < 0.1 for row in rows if row["shaping"] == shaping)
           for shaping in ("sg", "none")]
    yield EVIDENCE, f"below 0.1 in {low[0]} of {len(rows) // 2} runs of GRPO-SG and {low[1]} of GRPO"
    ends, starts = [], []
    for lr in ("1e-5", "2e-5"):
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


def first_and_last(steps):
    for column, name in (("accuracy", "accuracy of the samples is"), ("entropy", "the entropy"),
                         ("equal_groups", "the fraction of groups with equal rewards")):
        known = [[step[column] for step in part if step[column] is not None]  # None: no update
                 for part in (steps[:10], steps[-10:])]
        first, last = map(mean, known)
        yield f"{name} {first:.2f} and {last:.2f}"


def measure(test):
    """Return a test's outcomes, each a list over puzzles."""
    return {"avg@8": [count / 8 for count in test["correct"]], "greedy": test["greedy"],
            "pass@8": [int(count > 0) for count in test["correct"]]}


def puzzles_after_a_longer_start():
    rows = read("kk_rl2")
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
        before, after = (f"{row[key]:.3f}" for key in ("before", "avg@4"))
        yield "README.md", f"{before} -> {after}"
    printed = (RESULTS / "default_run.txt").read_text("utf-8")
    for line in re.findall(r"^(?:step (?:1|2|59|60) |before ).*", printed, re.M):
        yield "README.md", line
    rows = select(read("default"), arm="kk, words").values()
    before, after = (mean(row[key] for row in rows) for key in ("before", "avg@4"))
    yield "README.md", f"({len(rows)} seeds: {before:.3f} -> {after:.3f})"


def mistakes():
    names = {"clip(w r)": "weight inside the clip, `clip(w r)`",
             "end token masked": "stop token masked by `ids != pad`",
             "tau = 9": "tau = 9, which makes every weight 1",
             "scored at another temperature": "sampled at temperature 1, scored at 0.6"}
    unsure = {arm: compare("mistakes", arm, "sg") for arm in names}
    for arm, name in names.items():
        yield EVIDENCE, table_row(name, in_brackets(unsure[arm]), f"{detectable(unsure[arm]):.3f}")
    yield LESSON, f"{in_brackets(unsure['clip(w r)'])} (95% CI, eight paired seeds)"
    yield DECISIONS, f"inside: {in_brackets(unsure['clip(w r)'])} (seeds 0-7)"
    yield DECISIONS, f"9 instead of 1/9: {in_brackets(unsure['tau = 9'])} (seeds 0-7)"


# ---- The pages have them ----

def plain(text):
    return " ".join(text.replace("**", "").split())


@functools.cache
def read_page(name):
    return plain((ROOT / name).read_text("utf-8"))


@pytest.mark.parametrize("numbers", [
    main_comparison, real_sums, real_sums_again, real_look, puzzles_after_a_longer_start,
    default_runs, mistakes])
def test_the_pages_have_the_numbers_of_the_rows(numbers):
    missing = [f"{page}: {text}" for page, text in numbers() if plain(text) not in read_page(page)]
    assert not missing, "\n".join(missing)
