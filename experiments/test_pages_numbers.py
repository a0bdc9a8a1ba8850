"""The numbers on the pages are those of the rows in results/.

Each function computes the numbers of one experiment and yields (page, label, value). A line of the page
must have both, or without a label the page. Bold type does not count. Numbers of deleted rows name
their commit.
"""
import functools
import pathlib
import re
from math import hypot
from operator import itemgetter
from statistics import fmean as mean

import pytest

from experiments.compare import RESULTS, detectable, interval, read_rows

ROOT = pathlib.Path(__file__).parents[1]
EVIDENCE, README = "experiments/README.md", "README.md"


@functools.cache
def read(name):
    return read_rows(RESULTS / f"{name}.jsonl")


def select(name, **columns):
    """Return {seed: row} of the rows with these values."""
    found = [row for row in read(name) if all(row.get(key) == columns[key] for key in columns)]
    assert len({row["seed"] for row in found}) == len(found) > 0
    return {row["seed"]: row for row in found}


def subtract(ours, theirs, measure):
    """Return the differences of a measure, paired by seed."""
    assert ours.keys() == theirs.keys()
    return [measure(ours[seed]) - measure(theirs[seed]) for seed in sorted(ours)]


def average(*lists):
    return [mean(values) for values in zip(*lists, strict=True)]


def cell(values, template="{:+.3f} [{:+.3f}, {:+.3f}]"):
    return template.format(*interval(values))


def end_of_row(*cells):
    return f" {' | '.join(cells)} |"


# ---- The experiments ----

def minus_grpo(arm, task, step, equal):
    """Return the differences of an arm in avg@8. step: of a test, or "mean" for that of four."""
    def measure(row):
        tests = row["avg@8"]
        return mean(tests[each] for each in ("10", "20", "40", "60")) if step == "mean" else tests[step]
    theirs = select("choice-equal" if equal and task == "phone_book" else "choice", task=task, arm="A")
    return subtract(select("choice", task=task, arm=arm), theirs, measure)


def choice():
    def pool(arm, step, equal):
        return average(*(minus_grpo(arm, task, step, equal) for task in ("phone_book", "backwards", "math")))
    for arm in "BCD":
        found = [pool(arm, step, equal) for step, equal in (("60", False), ("mean", False), ("60", True))]
        yield EVIDENCE, f"| {arm}: ", end_of_row(*map(cell, found))
    early = [cell(pool("B", step, True)) for step in ("10", "20", "40")]
    yield EVIDENCE, "| avg@8 minus GRPO's ", end_of_row(*early)
    for name, task, equal in (("phone book, own", "phone_book", False), ("words", "backwards", False),
                              ("phone book, equal", "phone_book", True), ("sums", "math", False)):
        yield EVIDENCE, f"| {name}", end_of_row(*(cell(minus_grpo(arm, task, "60", equal)) for arm in "BC"))


def alignment():
    def summarize(rows, key):  # the mean over seeds, and its standard error from theirs
        values, errors = zip(*(row[key] for row in rows))
        return mean(values), hypot(*errors) / len(rows)
    for name, place, step in (("none", "nowhere", 0), ("before", "before", 0), ("after", "after", 0),
                              ("four words after", "after-4", 0), ("before, step 15", "before", 15),
                              ("after, step 15", "after", 15)):
        rows, strong = (select("words_look", place=place, step=step, weight=weight).values()
                        for weight in ("GRPO-SG", "damping 11"))
        low, high = (sum(row["tokens"][f"A {sign} 0, pi {side} 1/3"] for row in rows for sign in "<>")
                     for side in "<>")
        shares = [low / (low + high)]
        for part in ("signal", "noise"):
            shares.append(sum(summarize(rows, f"{part}: A {sign} 0, pi < 1/3")[0] for sign in "<>"))
        aligned = ["{:.3f} ± {:.3f}".format(*summarize(some, "efficiency")) for some in (rows, strong)]
        yield EVIDENCE, f"| {name} |", end_of_row(*(f"{share:.0%}" for share in shares), *aligned)


def learning():
    outcomes = {"accuracy in steps 1 to 20": lambda row: mean(row["training: accuracy"]),
                "avg@8 after 10 steps": lambda row: row["avg@8"]["10"],
                "avg@8 after 20 steps": lambda row: row["avg@8"]["20"]}
    for weight, name in (("damping 11", "11-fold"), ("GRPO-SG", "GRPO-SG")):
        for outcome, measure in outcomes.items():
            arms = [[select("words_learn", place=place, weight=each) for each in (weight, "GRPO")]
                    for place in ("after", "before")]
            leads = [cell(subtract(*pair, measure)) for pair in arms]
            yield EVIDENCE, f"| {name}, {outcome}", end_of_row(*leads)


def real_sums():
    def pair(measure):  # at both rates
        return [subtract(*(select("real2", lr=lr, shaping=arm) for arm in ("sg", "none")), measure)
                for lr in ("1e-5", "2e-5")]
    ends, starts = pair(itemgetter("avg@4")), pair(lambda row: mean(row["accuracy"][:10]))
    earlier = [select("real", arm=f"shaping={arm}") for arm in ("sg", "none")]
    for name, values in (
            ("avg@4, rate 1e-5", ends[0]), ("avg@4, rate 2e-5", ends[1]), ("avg@4, both", average(*ends)),
            ("accuracy in steps 1 to 10, both", average(*starts)),
            ("earlier: avg@4", subtract(*earlier, itemgetter("end"))),
            ("earlier: reward", subtract(*earlier, itemgetter("reward")))):
        yield EVIDENCE, f"| {name}", end_of_row(cell(values), f"{detectable(values):.3f}")


def puzzles():
    before, after = (row["test"] for row in read("kk_rl2") if "test" in row)
    for name, measure in (("avg@8 (", lambda test: [count / 8 for count in test["correct"]]),
                          ("greedy accuracy", itemgetter("greedy")),
                          ("pass@8", lambda test: [count > 0 for count in test["correct"]])):
        first, last = measure(before), measure(after)
        yield EVIDENCE, name, end_of_row(f"{mean(first):.3f}", cell([y - x for x, y in zip(first, last)]))


def mistakes():
    for arm, name in (("clip(w r)", "`clip(w r)`"), ("end token masked", "`ids != pad`"),
                      ("tau = 9", "tau = 9"), ("scored at another temperature", "scored at 0.6")):
        values = subtract(*(select("mistakes", arm=each) for each in (arm, "sg")), itemgetter("avg@4"))
        yield EVIDENCE, name, end_of_row(cell(values), f"{detectable(values):.3f}")


def default_run():
    printed = (RESULTS / "default_run.txt").read_text("utf-8")
    for line in re.findall(r"^(?:step (?:1|2|59|60) |before ).*", printed, re.M):
        yield README, "", line


# ---- The pages have them ----

def has(page, label, value):
    text = (ROOT / page).read_text("utf-8").replace("**", "")
    lines = text.splitlines() if label else [" ".join(text.split())]
    return any(label in line and value in line for line in lines)


@pytest.mark.parametrize("numbers", [choice, alignment, learning, real_sums, puzzles, mistakes, default_run])
def test_the_pages_have_the_numbers_of_the_rows(numbers):
    missing = [f"{page}: {label} {value}" for page, label, value in numbers() if not has(page, label, value)]
    assert not missing, "\n".join(missing)
