"""The numbers on the pages are those of the rows in results/. Deleted rows are named by their commit.

Each function computes the numbers of one experiment and yields (page, label, value): a line of the page must
have both, or without a label the page must have the value. Bold type does not count."""
import functools
import pathlib
import re
from math import hypot
from operator import itemgetter
from statistics import fmean as mean

import pytest

from experiments.compare import RESULTS, detectable, interval, read_rows
from experiments.noise import summarize

ROOT = pathlib.Path(__file__).parents[1]
EVIDENCE, README, WEIGHT = "experiments/README.md", "README.md", "lesson/weight.md"


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


def average(lists):
    return [mean(values) for values in zip(*lists, strict=True)]


def cell(values, digits=3):
    return "{0:+.{3}f} [{1:+.{3}f}, {2:+.{3}f}]".format(*interval(values), digits)


def end_of_row(*cells):
    return f" {' | '.join(cells)} |"


def choice():
    def pool(arm, steps, equal):  # differences from GRPO in avg@8, averaged over tests and tasks
        tasks = []
        for task in ("phone_book", "backwards", "math"):
            name = "choice-equal" if equal and task == "phone_book" else "choice"
            pair = select("choice", task=task, arm=arm), select(name, task=task, arm="A")
            tasks.append(subtract(*pair, lambda row: mean(row["avg@8"][step] for step in steps)))
        return average(tasks)
    for arm in "BCD":
        found = pool(arm, ["60"], False), pool(arm, ["10", "20", "40", "60"], False), pool(arm, ["60"], True)
        yield EVIDENCE, f"| {arm}: ", end_of_row(*map(cell, found))
    early = [cell(pool("B", [step], True)) for step in ("10", "20", "40")]
    yield EVIDENCE, "| avg@8 minus GRPO's ", end_of_row(*early)
    yield README, "", f"rates, gives {mean(pool('B', ['60'], False)):+.3f}"
    yield README, "", "from GRPO's by {:+.3f} (40 seeds each, 95% CI {:+.3f} to {:+.3f})".format(
        *interval(pool("B", ["60"], True)))


def alignment():
    def pool(rows, key):  # the mean over seeds, and its standard error from theirs
        values, errors = zip(*(row[key] for row in rows))
        return mean(values), hypot(*errors) / len(rows)
    for name, place, step in (("none", "nowhere", 0), ("before", "before", 0), ("after", "after", 0),
                              ("four words after", "after-4", 0), ("before, step 15", "before", 15),
                              ("after, step 15", "after", 15)):
        rows, strong = (select("words_look", place=place, step=step, weight=weight).values()
                        for weight in ("GRPO-SG", "damping 11"))
        shares = [sum(pool(rows, f"{part}: A {sign} 0, pi < 1/3")[0] for sign in "<>") for part in ("signal", "noise")]
        aligned = ["{:.3f} ± {:.3f}".format(*pool(some, "efficiency")) for some in (rows, strong)]
        yield EVIDENCE, f"| {name} |", end_of_row(*(f"{share:.0%}" for share in shares), *aligned)


def learning():
    outcomes = {"accuracy in steps 1 to 20": lambda row: mean(row["training: accuracy"]),
                "avg@8 after 10 steps": lambda row: row["avg@8"]["10"],
                "avg@8 after 20 steps": lambda row: row["avg@8"]["20"]}
    for weight, name in (("damping 11", "11-fold"), ("GRPO-SG", "GRPO-SG")):
        for outcome, measure in outcomes.items():
            leads = [subtract(*(select("words_learn", place=place, weight=arm) for arm in (weight, "GRPO")), measure)
                     for place in ("after", "before")]
            yield EVIDENCE, f"| {name}, {outcome}", end_of_row(*map(cell, leads))


def noise():
    x, gains, slopes = summarize(read("noise"))
    for arm, name in (("0", "f = 0"), ("5", "f = 5"), ("15", "f = 15"), ("GRPO-SG", "GRPO-SG, measured")):
        yield EVIDENCE, f"| {name} |", end_of_row(f"{1 + x[arm]:.2f}", cell(gains[2e-4, arm], 4))
        yield WEIGHT, "", end_of_row(f"{1 + x[arm]:.3f}", cell(gains[2e-4, arm], 4))
    yield EVIDENCE, "| slope", end_of_row(cell(slopes, 4))
    yield EVIDENCE, "| GRPO-SG, predicted", end_of_row(cell([slope * x["GRPO-SG"] for slope in slopes], 4))
    for place in ("after", "before"):
        rows = [row for row in read("places") if place in row["model"]]
        x = [mean(row["aligned"]["GRPO-SG"][0] for row in rows if row.get("step") == step) for step in (0, 10)]
        pair = ({row["seed"]: row for row in rows if row.get("arm") == arm} for arm in ("GRPO-SG", "1"))
        leads = cell(subtract(*pair, lambda row: mean(row["solved"]) / 64), 4)
        yield EVIDENCE, f"| {place} |", end_of_row(f"{mean(x):.2f}", leads)
        yield WEIGHT, f"| {place} the name", end_of_row(f"{x[0]:.3f}", f"{x[1]:.3f}", leads)


def kinds():
    def share(part, kind, step):  # of the tokens of a kind, the mean over three seeds
        rows = [row[part] for row in read("kinds") if (row["place"], row["step"]) == ("after", step)]
        return f"{round(100 * mean(sum(row[name] for name in row if name.startswith(kind)) for row in rows))}%"
    for kind, name in (("filler", "filler"), ("claim <", "claims with pi below"), ("claim >", "claims with pi above")):
        cells = [share(part, kind, step) for part in ("signal", "noise") for step in (0, 15)]
        yield WEIGHT, f"| {name}", end_of_row(*cells)
    first, last = share("signal", "shortcut >", 0), share("signal", "shortcut <", 15)
    yield WEIGHT, "the shortcut |", f" {first} (all above 1/3) | {last} (all below 1/3) |"


def real_sums():
    def both(measure):  # differences, averaged over the rates
        return average(subtract(*(select("real2", lr=lr, shaping=arm) for arm in ("sg", "none")), measure)
                       for lr in ("1e-5", "2e-5"))
    pair = [select("real", arm=f"shaping={arm}") for arm in ("sg", "none")]
    for name, values in (("avg@4, both", both(itemgetter("avg@4"))),
                         ("accuracy in steps 1 to 10, both", both(lambda row: mean(row["accuracy"][:10]))),
                         ("earlier: avg@4", subtract(*pair, itemgetter("end"))),
                         ("earlier: reward", subtract(*pair, itemgetter("reward")))):
        yield EVIDENCE, f"| {name}", end_of_row(cell(values), f"{detectable(values):.3f}")


def default_runs():
    printed = (RESULTS / "default_run.txt").read_text("utf-8")
    for line in re.findall(r"^(?:step (?:1|60) of|4 samples|On the test).*", printed, re.M):
        yield README, "", line
    for arm, name in (("kk, words", "logic puzzles"), ("math, ready", "sums and products")):
        rows = select("default", arm=arm).values()
        first, last = ([row[key] for row in rows] for key in ("before", "avg@4"))
        means = f"{mean(first):.3f} → {mean(last):.3f} ({min(last):.3f} to {max(last):.3f})"
        yield README, f"| {name} |", f" {means} | {len(rows)} seeds"
    rows = read("recipe")
    last = [row["avg@4"] for row in rows]
    yield README, "| SmolLM2-135M", (f"| {mean(row['before'] for row in rows):.3f} → {mean(last):.3f} "
                                     f"({min(last):.3f} to {max(last):.3f}) | {len(rows)} seeds")


@pytest.mark.parametrize("numbers", [choice, alignment, learning, noise, kinds, real_sums, default_runs])
def test_the_pages_have_the_numbers_of_the_rows(numbers):
    for page, label, value in numbers():
        text = (ROOT / page).read_text("utf-8").replace("**", "")
        lines = text.splitlines() if label else [" ".join(text.split())]
        assert any(label in line and value in line for line in lines), f"{page}: {label}{value}"
