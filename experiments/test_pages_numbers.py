"""The numbers on the pages are those of the rows in results/.

Each function computes the numbers of one experiment and yields (page, label, value): a line of the
page must have both. Bold type does not count. Numbers of deleted rows name their commit.
"""
import functools
import pathlib
import re
from math import hypot
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
    found = [row for row in read(name) if all(row[key] == columns[key] for key in columns)]
    assert len({row["seed"] for row in found}) == len(found) > 0
    return {row["seed"]: row for row in found}


def subtract(ours, theirs, measure):
    """Return the differences of a measure, paired by seed."""
    assert ours.keys() == theirs.keys()
    return [measure(ours[seed]) - measure(theirs[seed]) for seed in sorted(ours)]


def average(*lists):
    return [mean(values) for values in zip(*lists, strict=True)]


def cell(values):
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*interval(values))


def table_row(*cells):
    return f" {' | '.join(cells)} |"


# ---- The experiments ----

def minus_grpo(arm, task, step, equal):
    """Return the differences of an arm in avg@8. step: of a test, or "mean" for that of four."""
    def measure(row):
        return mean(row["avg@8"][each] for each in (("10", "20", "40", "60") if step == "mean" else (step,)))
    theirs = select("choice-equal" if equal and task == "phone_book" else "choice", task=task, arm="A")
    return subtract(select("choice", task=task, arm=arm), theirs, measure)


def choice():
    def pool(arm, step, equal):
        return average(*(minus_grpo(arm, task, step, equal) for task in ("phone_book", "backwards", "math")))
    for arm in "BCD":
        cells = [cell(pool(arm, *which)) for which in (("60", False), ("mean", False), ("60", True))]
        yield EVIDENCE, f"| {arm}: ", table_row(*cells)
    yield EVIDENCE, "| avg@8 minus GRPO's ", table_row(*(cell(pool("B", step, True)) for step in ("10", "20", "40")))
    for name, *which in (("phone book, own", "phone_book", "60", False), ("phone book, equal", "phone_book", "60", True),
                         ("words backwards", "backwards", "60", True), ("sums and products", "math", "60", True)):
        yield EVIDENCE, f"| {name}", table_row(*(cell(minus_grpo(arm, *which)) for arm in "BC"))


def alignment():
    def summarize(rows, key):  # the mean over seeds, and its standard error from theirs
        values, errors = zip(*(row[key] for row in rows))
        return mean(values), hypot(*errors) / len(rows)
    for name, place, step in (("none", "nowhere", 0), ("before", "before", 0), ("after", "after", 0),
                              ("four words after", "after-4", 0), ("before, step 15", "before", 15),
                              ("after, step 15", "after", 15)):
        rows, strong = (select("words_look", place=place, step=step, weight=weight).values()
                        for weight in ("GRPO-SG", "damping 11"))
        tokens = [sum(row["tokens"][f"A {sign} 0, pi {side} 1/3"] for row in rows for sign in "<>")
                  for side in "<>"]
        shares = [tokens[0] / sum(tokens)]
        for part in ("signal", "noise"):
            shares.append(sum(summarize(rows, f"{part}: A {sign} 0, pi < 1/3")[0] for sign in "<>"))
        aligned = ["{:.3f} ± {:.3f}".format(*summarize(some, "efficiency")) for some in (rows, strong)]
        yield EVIDENCE, f"| {name} |", table_row(*(f"{share:.0%}" for share in shares), *aligned)


def learning():
    outcomes = {"accuracy in steps 1 to 20": lambda row: mean(row["training: accuracy"]),
                "avg@8 after 10 steps": lambda row: row["avg@8"]["10"],
                "avg@8 after 20 steps": lambda row: row["avg@8"]["20"]}
    for weight, name in (("damping 11", "11-fold"), ("GRPO-SG", "GRPO-SG")):
        for outcome, measure in outcomes.items():
            arms = [[select("words_learn", place=place, weight=each) for each in (weight, "GRPO")]
                    for place in ("after", "before")]
            leads = [subtract(*pair, measure) for pair in arms]
            yield EVIDENCE, f"| {name}, {outcome}", table_row(*map(cell, leads))


def real_sums():
    def pairs(measure):
        return [subtract(*(select("real2", lr=lr, shaping=arm) for arm in ("sg", "none")), measure)
                for lr in ("1e-5", "2e-5")]
    ends, starts = pairs(lambda row: row["avg@4"]), pairs(lambda row: mean(row["accuracy"][:10]))
    earlier = [select("real", arm=f"shaping={arm}") for arm in ("sg", "none")]
    for name, values in (
            ("avg@4, rate 1e-5", ends[0]), ("avg@4, rate 2e-5", ends[1]), ("avg@4, both", average(*ends)),
            ("accuracy in steps 1 to 10, both", average(*starts)),
            ("earlier: avg@4", subtract(*earlier, lambda row: row["end"])),
            ("earlier: reward", subtract(*earlier, lambda row: row["reward"]))):
        yield EVIDENCE, f"| {name}", table_row(cell(values), f"{detectable(values):.3f}")
    runs = [(row["before"], row["end"]) for row in earlier[0].values()]
    runs += [(row["before"], row["avg@4"]) for row in select("real2", lr="2e-5", shaping="sg").values()]
    first, last = zip(*runs)
    yield EVIDENCE, f"| 15 steps at 2e-5 | {len(runs)} |", table_row(
        f"{mean(first):.3f}", f"{mean(last):.3f}", f"{min(last):.3f} to {max(last):.3f}")


def puzzles():
    before, after = (row["test"] for row in read("kk_rl2") if "test" in row)
    measures = {"avg@8": lambda test: [x / 8 for x in test["correct"]], "greedy accuracy": lambda test: test["greedy"],
                "pass@8": lambda test: [x > 0 for x in test["correct"]]}
    for name, solved in (("right", 1), ("wrong", 0)):
        measures[name] = lambda test, solved=solved: [
            x / 8 for x, each in zip(test["correct"], before["greedy"]) if each == solved]
    for name, measure in measures.items():
        first, last = measure(before), measure(after)
        yield EVIDENCE, name, table_row(f"{mean(first):.3f}", cell([y - x for x, y in zip(first, last)]))


def mistakes():
    for arm, name in {"clip(w r)": "`clip(w r)`", "end token masked": "`ids != pad`", "tau = 9": "tau = 9",
                      "scored at another temperature": "scored at 0.6"}.items():
        values = subtract(select("mistakes", arm=arm), select("mistakes", arm="sg"), lambda row: row["avg@4"])
        yield EVIDENCE, name, table_row(cell(values), f"{detectable(values):.3f}")


def default_run():
    printed = (RESULTS / "default_run.txt").read_text("utf-8")
    for line in re.findall(r"^(?:step (?:1|2|59|60) |before ).*", printed, re.M):
        yield README, "", line


# ---- The pages have them ----

@functools.cache
def read_lines(page):
    return (ROOT / page).read_text("utf-8").replace("**", "").splitlines()


@pytest.mark.parametrize("numbers", [choice, alignment, learning, real_sums, puzzles, mistakes, default_run])
def test_the_pages_have_the_numbers_of_the_rows(numbers):
    missing = [f"{page}: {label} {value}" for page, label, value in numbers()
               if not any(label in line and value in line for line in read_lines(page))]
    assert not missing, "\n".join(missing)
