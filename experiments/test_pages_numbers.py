"""The ledger and the pages have the numbers of the rows in results/.

Each function computes the numbers of one experiment and yields (label, cells): a row of a page with the label
in a cell must have these cells. A page may leave any line out, but an interval on it must be in the
ledger. Bold type and asterisks do not count.
"""
import functools
import pathlib
import re
from math import hypot
from operator import itemgetter
from statistics import fmean as mean

import pytest
import torch

from experiments import progress
from experiments.compare import RESULTS, detectable, interval, read_rows

ROOT = pathlib.Path(__file__).parents[1]
LEDGER = ROOT / "experiments/ledger.md"
OTHERS = [ROOT / name for name in ("README.md", "experiments/README.md", "lesson/README.md", "lesson/weight.md",
                                   "lesson/decisions.md")]
PAGES = [LEDGER, *(page for page in OTHERS if page.exists())]  # lesson/ may be deleted
TASKS = {"phone_book": "phone book", "backwards": "words backwards", "math": "sums and products"}
FOUR = "10", "20", "40", "60"


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


def with_detectable(values):
    return f"{cell(values)} | {detectable(values):.3f}"


# ---- Does a run end better? ----

def choose(arm, steps, equal=False):
    """Return {task: differences from GRPO in avg@8, the mean of these steps}."""
    found = {}
    for task in TASKS:
        control = "choice-equal" if equal and task == "phone_book" else "choice"
        pair = select("choice", task=task, arm=arm), select(control, task=task, arm="A")
        found[task] = subtract(*pair, lambda row: mean(row["avg@8"][step] for step in steps))
    return found


def pool(*args, **more):
    return average(choose(*args, **more).values())


def choice():
    for arm in "BCD":
        yield f"Does {arm} end better than GRPO at its own rate?", cell(pool(arm, ["60"]))
        yield f"Is {arm} better in the mean of four tests at its own rate?", cell(pool(arm, FOUR))
        yield f"Does {arm} end better at equal rates?", cell(pool(arm, ["60"], equal=True))
        yield f"Is {arm} better in the mean of four tests at equal rates?", cell(pool(arm, FOUR, equal=True))
        for task, name in TASKS.items():
            yield f"{arm}, {name}, step 60", cell(choose(arm, ["60"])[task])
    yield "Does C end better than D?", cell([c - d for c, d in zip(pool("C", ["60"]), pool("D", ["60"]))])
    for arm in "BCD":
        yield f"{arm}, phone book, step 60, equal rates", cell(choose(arm, ["60"], equal=True)["phone_book"])
    for step in FOUR[:3]:
        early = choose("B", [step], equal=True)
        yield f"Is B ahead after {step} steps at equal rates?", cell(average(early.values()))
        yield f"Is B ahead after {step} steps at its own rate?", cell(pool("B", [step]))
        for task, name in TASKS.items():
            yield f"B, {name}, step {step}, equal rates", cell(early[task])
    for arm, name in (("B", "GRPO-SG"), ("C", "switched")):
        for step in FOUR:
            both = cell(pool(arm, [step])), cell(pool(arm, [step], equal=True))
            yield f"{name} after {step} steps", " | ".join(both)
    gains = [mean(row["avg@8"]["60"] - row["avg@8"]["0"] for row in select("choice", task=task, arm="A").values())
             for task in TASKS]
    yield "How much does GRPO itself gain in 60 steps?", "; ".join(
        f"{name} {gain:+.2f}" for name, gain in zip(TASKS.values(), gains))


# ---- What does the weight do to an update? ----

def words_look():
    def estimate(weight, key="efficiency", **place):  # the mean over seeds, and its standard error from theirs
        values, errors = zip(*(row[key] for row in select("words_look", weight=weight, **place).values()))
        return mean(values), hypot(*errors) / len(values)
    for name, place, step in (("no filler", "nowhere", 0), ("filler before the name", "before", 0),
                              ("filler after the name", "after", 0), ("four fillers after the name", "after-4", 0),
                              ("filler before the name, step 15", "before", 15),
                              ("filler after the name, step 15", "after", 15)):
        weights = "GRPO-SG", "damping 4", "damping 11"
        cells = ["{:.3f} ± {:.3f}".format(*estimate(weight, place=place, step=step)) for weight in weights]
        shares = [sum(estimate("GRPO-SG", f"{part}: A {sign} 0, pi < 1/3", place=place, step=step)[0]
                      for sign in "<>") for part in ("signal", "noise")]
        yield name, " | ".join([*cells, *(f"{share:.0%}" for share in shares)])


def kinds():
    def share(part, kind, step):  # of the tokens of a kind, the mean over three seeds
        rows = [row[part] for row in read("kinds") if (row["place"], row["step"]) == ("after", step)]
        total = 100 if part != "tokens" else mean(sum(row.values()) for row in rows) / 100
        found = mean(sum(row[name] for name in row if re.match(kind, name)) for row in rows)
        return 100 * found if part != "tokens" else found / total
    for name, kind in (("filler words", "filler"), ("lists with pi below 1/3", "claim <"),
                       ("lists with pi above 1/3", "claim >"), ("early `</think>`, the shortcut", "shortcut"),
                       ("everything else", "rest")):
        tokens = " to ".join(f"{share('tokens', kind, step):.1f}%" for step in (0, 15))
        cells = [f"{round(share(part, kind, step))}%" for part in ("signal", "noise") for step in (0, 15)]
        yield name, " | ".join([tokens, *cells])
    late = [row for row in read("kinds") if (row["place"], row["step"]) == ("after", 15)]
    yield "Does GRPO-SG's alignment fall in 15 steps?", ", ".join(f"{row['GRPO-SG'][0]:.3f}" for row in late)
    yield "Is the shortcut's weight the reason?", ", ".join(f"{row['GRPO-SG, shortcut kept'][0]:.3f}" for row in late)


# ---- Does it learn faster early on? ----

def words_learn():
    outcomes = {"accuracy in steps 1 to 20": lambda row: mean(row["training: accuracy"]),
                "avg@8 after 10 steps": lambda row: row["avg@8"]["10"],
                "avg@8 after 20 steps": lambda row: row["avg@8"]["20"]}
    for outcome, measure in outcomes.items():
        leads = {}
        for weight, name in (("damping 11", "11-fold"), ("GRPO-SG", "GRPO-SG")):
            for place in ("after", "before"):
                pair = (select("words_learn", place=place, weight=arm) for arm in (weight, "GRPO"))
                leads[name, place] = subtract(*pair, measure)
                yield f"{name} minus GRPO, {outcome}, filler {place} the name", cell(leads[name, place])
        if outcome == "accuracy in steps 1 to 20":
            yield "Is 11-fold's lead larger after the name than before it (g)?", cell(
                [after - before for after, before in zip(leads["11-fold", "after"], leads["11-fold", "before"])])
            yield "Is GRPO-SG's lead smaller than 11-fold's, after the name (h)?", cell(
                [strong - weak for strong, weak in zip(leads["11-fold", "after"], leads["GRPO-SG", "after"])])


def noise():
    looks = [row["aligned"] for row in read("noise") if "aligned" in row]
    x = {arm: mean(look[arm][0] for look in looks) - 1 for arm in looks[0]}
    gains = {(lr, arm): subtract(select("noise", lr=lr, arm=arm), select("noise", lr=lr, arm="1"),
                                 lambda row: mean(row["solved"]) / 64)
             for lr, arm in {(row["lr"], row["arm"]) for row in read("noise") if "arm" in row}}
    doses = "0", "5", "15"
    slopes = [sum(x[arm] * gain for arm, gain in zip(doses, values)) / sum(x[arm] ** 2 for arm in doses)
              for values in zip(*(gains[2e-4, arm] for arm in doses))]  # of lines through GRPO
    yield "Does a better aligned update learn faster (slope)?", cell(slopes, 4)
    for arm in doses:
        lead = f"{1 + x[arm]:.2f} | {cell(gains[2e-4, arm], 4)}"
        yield f"Does the factor {arm} change accuracy?", lead
        yield f"the filler words' push times {arm}", lead
        rest = [gain - slope * x[arm] for gain, slope in zip(gains[2e-4, arm], slopes)]
        yield f"Is the factor {arm} on the rule's line?", cell(rest, 4)
    yield "How large a change by the factor 0 would be detected?", f"{detectable(gains[2e-4, '0']):.4f}"
    for rate in (1e-4, 4e-4):
        yield f"Does the factor 15 slow learning at {rate:.0e}?".replace("e-0", "e-"), cell(gains[rate, "15"], 4)
    ours, predicted = gains[2e-4, "GRPO-SG"], [slope * x["GRPO-SG"] for slope in slopes]
    for label in ("What lead does GRPO-SG have?", "GRPO-SG's weight"):
        yield label, f"{1 + x['GRPO-SG']:.2f} | {cell(ours, 4)}"
    yield "What lead does the slope predict for it?", cell(predicted, 4)
    yield "Is the lead larger than predicted?", cell([a - b for a, b in zip(ours, predicted)], 4)
    accuracy = [mean(mean(row["solved"]) / 64 for row in select("noise", arm="1", lr=rate).values())
                for rate in (1e-4, 2e-4, 4e-4)]
    yield "What accuracy does GRPO have at 1e-4, 2e-4 and 4e-4?", ", ".join(f"{value:.3f}" for value in accuracy)


def places():
    for place in ("after", "before"):
        models = [f"{place}-{i}" for i in range(3)]
        x = [mean(row["aligned"]["GRPO-SG"][0] for row in read("places") if row["model"] in models
                  and row.get("step") == step) for step in (0, 10)]
        leads = [subtract(*(select("places", model=model, arm=arm) for arm in ("GRPO-SG", "1")),
                          lambda row: mean(row["solved"]) / 64) for model in models]
        yield f"Does GRPO-SG lead with the filler {place} the name?", cell(sum(leads, []), 4)
        yield f"With the three models as the unit, filler {place} the name?", cell([mean(lead) for lead in leads], 4)
        for i, lead in enumerate(leads):
            yield f"Model {i + 1} with the filler {place} the name?", cell(lead, 4)
        yield f"What is GRPO-SG's alignment with the filler {place} the name?", f"{x[0]:.3f}, then {x[1]:.3f}"


WEIGHTS = {"GRPO-SG": "GRPO-SG's weight on all tokens", "11-fold": "11-fold weight",
           "constant 1.35": "constant weight of 1.35", "lists only": "GRPO-SG's weight on lists only",
           "filler words only": "GRPO-SG's weight on filler words only"}


def progress_ratios():
    for arm, name in WEIGHTS.items():
        columns = (), (progress.RATE, False), (progress.HIGH,)
        yield name, " | ".join(f"{progress.average_ratio(read('progress_ratios'), arm, *column):.3f}"
                               for column in columns)


LEADS = {"GRPO-SG": "GRPO-SG", "rate of GRPO-SG": "GRPO at a rate 4.5% higher",
         "11-fold": "the 11-fold weight", "rate of 11-fold": "GRPO at a rate 11.9% higher",
         "constant 1.35": "a constant weight of 1.35", "lists only": "the weight on lists only",
         "filler words only": "the weight on filler words only"}


def progress_leads():
    predicted, leads, outcomes = progress.summarize(read("progress_ratios"), read("progress"))
    for arm, name in LEADS.items():
        yield f"lead of {name}", f"{predicted[arm]:+.4f} | {cell(leads[arm].tolist(), 4)}"
        yield f"measured minus predicted lead of {name}", cell((leads[arm] - predicted[arm]).tolist(), 4)
    questions = ("Is GRPO-SG like GRPO at a rate 4.5% higher (primary)?",
                 "Is the 11-fold weight like GRPO at a rate 11.9% higher?",
                 "Does a constant weight of 1.35 change accuracy?",
                 "Is the weight on lists only ahead of that on filler words only?",
                 "Is the 11-fold weight ahead of GRPO at 8e-4?", "What does its ratio predict at 8e-4?",
                 "How much more than predicted is that?")
    for question, values in zip(questions, outcomes.values(), strict=True):
        yield question, cell(values.tolist(), 4)
    yield "Is GRPO-SG ahead of a constant weight of 1.35?", cell(
        (leads["GRPO-SG"] - leads["constant 1.35"]).tolist(), 4)
    yield "Is the weight on lists only ahead of GRPO-SG?", cell(
        (leads["lists only"] - leads["GRPO-SG"]).tolist(), 4)
    for question, arms in (("What is the slope of measured over predicted leads?", [*leads]),
                           ("What is it without the arms that only change the rate?",
                            [arm for arm in leads if "rate" not in arm])):
        slope = progress.bootstrap_slope(torch.tensor([predicted[arm] for arm in arms]).double(),
                                         torch.stack([leads[arm] for arm in arms]))
        yield question, "{:.3f} [{:.3f}, {:.3f}]".format(*slope)


# ---- Does a real model gain? ----

def real():
    def compare(measure, rates=("1e-5", "2e-5")):  # differences, averaged over the rates
        return average(subtract(*(select("real2", lr=lr, shaping=arm) for arm in ("sg", "none")), measure)
                       for lr in rates)
    pair = [select("real", arm=f"shaping={arm}") for arm in ("sg", "none")]
    values = {
        "Does GRPO-SG end better on sums, mean of both rates?": compare(itemgetter("avg@4")),
        "Does it end better at 1e-5?": compare(itemgetter("avg@4"), ["1e-5"]),
        "Does it end better at 2e-5?": compare(itemgetter("avg@4"), ["2e-5"]),
        "Is it ahead in steps 1 to 10, mean of both rates?": compare(lambda row: mean(row["accuracy"][:10])),
        "Does GRPO-SG end better on sums, 8 seeds?": subtract(*pair, itemgetter("end")),
        "Does it earn more reward in steps 1 to 15, 8 seeds?": subtract(*pair, itemgetter("reward"))}
    for question, found in values.items():
        yield question, with_detectable(found)
    for question, name in (("Does GRPO-SG end better on sums, mean of both rates?", "avg@4 after training"),
                           ("Is it ahead in steps 1 to 10, mean of both rates?", "accuracy in steps 1 to 10")):
        yield name, with_detectable(values[question])
    for question, found in (("What does the old recipe reach, 8 seeds?", [row["end"] for row in pair[0].values()]),
                            ("What does the recipe of 40 steps reach?", [row["avg@4"] for row in read("recipe")])):
        yield question, f"{mean(found):.3f} ({min(found):.3f} to {max(found):.3f})"


def kk_rl2():
    before, after = (row["test"] for row in read("kk_rl2") if "test" in row)
    measures = {"avg@8": lambda test: [right / 8 for right in test["correct"]],
                "greedy accuracy": lambda test: test["greedy"],
                "pass@8": lambda test: [float(right > 0) for right in test["correct"]]}
    for name, measure in measures.items():
        first, last = measure(before), measure(after)
        changes = [b - a for a, b in zip(first, last)]
        yield f"How does {name} change?", f"{mean(first):.3f}, then {cell(changes)}"
        for greedy, words in ((1, "right"), (0, "wrong")):
            some = [change for change, correct in zip(changes, before["greedy"]) if correct == greedy]
            yield f"How does {name} change where the greedy answer was {words}?", cell(some)


def default_runs():
    printed = (RESULTS / "default_run.txt").read_text("utf-8")
    for line in re.findall(r"^(?:step \d+ of|4 samples|On the test).*", read_page(ROOT / "README.md"), re.M):
        assert line in " ".join(printed.split()), line
    runs = [(name, [(row["before"], row["avg@4"]) for row in rows]) for name, rows in (
        ("logic puzzles", select("default", arm="kk, words").values()),
        ("sums and products", select("default", arm="math, ready").values()), ("sums", read("recipe")))]
    again = {key: [row[key] for row in read("recipe2")]
             for key in ("avg@4", "pass@4", "greedy", "format", "equal_groups@4")}
    for name, pairs in (*runs, ("sums", again["avg@4"]), *((f"{key}, second recipe", again[key]) for key in again)):
        first, last = zip(*pairs)
        yield name, f"{mean(first):.3f} → {mean(last):.3f} ({min(last):.3f} to {max(last):.3f}) | {len(pairs)}"


def mistakes():
    for arm, name in (("clip(w r)", "weight inside the clip, `clip(w r)`"),
                      ("end token masked", "stop token masked by `ids != pad`"),
                      ("tau = 9", "tau = 9, which makes every weight 1"),
                      ("scored at another temperature", "sampled at temperature 1, scored at 0.6")):
        found = subtract(select("mistakes", arm=arm), select("mistakes", arm="sg"), itemgetter("avg@4"))
        yield name, with_detectable(found)


EXPERIMENTS = (choice, words_look, kinds, words_learn, noise, places, progress_ratios, progress_leads, real, kk_rl2,
               default_runs, mistakes)


def read_page(page):
    return page.read_text("utf-8").replace("*", "")


@pytest.mark.parametrize("numbers", EXPERIMENTS)
def test_the_pages_have_the_numbers_of_the_rows(numbers):
    cells = {}  # a label's, or two recipes' that share it
    for label, value in numbers():
        cells.setdefault(label, []).append(value)
    for page in PAGES:
        for line in read_page(page).splitlines():
            for label, values in cells.items():
                if f"| {label} |" in line:
                    assert any(f" {value}" in line for value in values), f"{page.name}: {label} | {values}"


def test_each_line_of_the_ledger_with_rows_here_is_checked():
    labels = {label for numbers in EXPERIMENTS for label, _ in numbers()}
    for part in re.split(r"^## ", read_page(LEDGER), flags=re.M)[1:]:
        if ".jsonl)" in part:
            for line in re.findall(r"^\| (.*\d.*?) \|$(?!\n\|-)", part, re.M):
                assert line.split(" | ")[0] in labels, line


def test_the_intervals_on_the_pages_are_in_the_ledger():
    ledger = read_page(LEDGER)
    for page in PAGES[1:]:
        text = " ".join(read_page(page).split())
        found = re.findall(r"[+-]\d\.\d+ \[[+-]\d\.\d+, [+-]\d\.\d+\]", text)
        found += ["{} [{}, {}]".format(*numbers) for numbers in re.findall(
            r"([+-]\d\.\d+)[^.+]*\((?:95% interval )?([+-]\d\.\d+) to ([+-]\d\.\d+)\)", text)]
        for number in found:
            assert number in ledger, f"{page.name}: {number}"
