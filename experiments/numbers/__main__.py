"""Every number of the pages that was measured, traced to the raw file that it comes from.

    python -m experiments.numbers            prints them all; fails if one differs, or has no source
    python -m experiments.numbers --write    puts into the pages what the files say

A source is (page, text, file, key, numbers): the text of the page with {} for each number, where in results/
these are from, and the numbers as they should stand there. A space in a text stands for any white space, and
bold marks may be missing. A number of a page that no source explains, and that is not in NOT_MEASURED, has no
source. What counts as a number is a decimal or a power of ten that stands neither in code nor in an address.
"""
import argparse
import json
import pathlib
import re
import statistics
import sys

from experiments import compare, dose, paired, stability

ROOT = pathlib.Path(__file__).parents[2]
README, EVIDENCE = "README.md", "experiments/README.md"
NUMBER = r"(?<![\w.,-])[-+]?(?:\d*\.\d+(?:e-?\d+)?|\d+e-?\d+)(?![\w.]*\d)"
NOT_CODE = r"```.*?```|`[^`]*`|\$[^$\n]+\$|\]\([^)]*\)|arXiv\s+[\d.]+|<[a-z/!][^>\n]*>"
# Settings, versions, what is computed by a formula or is the paper's own: by page, as they are written.
NOT_MEASURED = {README: "1.4 0.12 0.33 1.41 0.25 0.122 1.22 0.2 0.327 0.8 1.24 -1.22 -0.5 0.5 1.5 .31 .12 .35",
                EVIDENCE: "1e-4 2e-4 4e-4 8e-4 1.6e-3 5e-5 2.5e-4 2e-3 3.2e-3 1.4 0.33 0.12 0.2 0.8 0.25 0.5"}
METHODS = {"none": "GRPO", "sg": "GRPO-SG", "sg / mean": "GRPO-SG, w divided by its mean", "ar": "AR-Lopti",
           "reverse": "`reverse`"}


# ---- How numbers are written ----

def short(value, digits=3):
    """.508, -.010: without the 0 before the point."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.{digits}f}")


def signed(value, digits=3):
    return re.sub(r"^([-+])0\.", r"\1.", f"{value:+.{digits}f}")


def with_error(values, digits=3):
    """The mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return [short(statistics.fmean(values), digits), short(error, digits)]


def with_interval(values, digits=3):
    return [signed(value, digits) for value in paired.interval(values)]


def range_of(values, digits=2):
    low, high = short(min(values), digits), short(max(values), digits)
    return low if low == high else f"{low} to {high}"


# ---- Sources ----

def read(name):
    if name.endswith("jsonl"):
        return paired.read_rows(paired.RESULTS / name)
    return json.loads((paired.RESULTS / name).read_text())


def default_runs():
    for task in ("kk", "math", "qa"):
        file = f"default_{task}.json"
        runs = read(file)
        numbers = []
        for key in ("eval/accuracy", "eval/avg@4"):
            for when in ("before", "after"):
                numbers += with_error([run[when][key] for run in runs])
        numbers.append(range_of([run["best_constant_answer"] for run in runs]))
        row = f"| `{task}` | {{}} ± {{}} | **{{}} ± {{}}** | {{}} ± {{}} | {{}} ± {{}} | {{}} |"
        key = "eval/accuracy, eval/avg@4 before and after, best_constant_answer"
        yield README, row + "\n", file, key, numbers
        seconds = [run["seconds"] for run in runs]
        more = [str(min(seconds)), str(max(seconds)), f"{max(run['peak_mb'] for run in runs) / 1000:.1f}"]
        yield EVIDENCE, row + " {} to {} | {} GB |", file, f"{key}, seconds, peak_mb", numbers + more


def comparisons():
    rows = read("compare.jsonl")
    for part, text in (("grid", "| grid:"), ("noisy-grid", "| noisy grid:")):
        for name, label in METHODS.items():
            numbers = []
            for lr in compare.RATES:
                here = paired.select(rows, part=part, name=name, lr=lr).values()
                numbers += with_error([row["avg@4"] for row in here]) if here else []
            if not numbers:  # a method that has no runs
                continue
            cells = " | ".join(3 * ["**{} ± {}**"])
            yield EVIDENCE, (text, f"| {label} | {cells} |"), "compare.jsonl", f"{part}, {name}", numbers
    for part, text in (("help", "| 20 seeds | learning"), ("noisy-help", "| 20 seeds, noisy")):
        base = paired.select(rows, part=part, name="none")
        for name, label in METHODS.items():
            here = paired.select(rows, part=part, name=name)
            if not here:
                continue
            numbers = [short(statistics.fmean(row["avg@4"] for row in here.values()))]
            if name != "none":
                numbers += with_interval(paired.differences(here, base))
            numbers.append(f"{statistics.fmean(row['norm max'] for row in here.values()):.1f}")
            difference = "" if name == "none" else "**{} [{}, {}]**"
            row = f"| **{label}** | {here[0]['lr']:.0e} | {{}} | {difference} | {{}} |".replace("e-0", "e-")
            key = f"{part}, {name}: avg@4, minus none, norm max"
            yield EVIDENCE, (text, row), "compare.jsonl", key, numbers
    for part, text in (("help", "avg@4 of GRPO-SG minus GRPO's is {}, 95 % interval [{}, {}];"),
                       ("noisy-help", "with noisy rewards {} [{}, {}]")):
        ours, theirs = (paired.select(rows, part=part, name=name) for name in ("sg", "none"))
        numbers = with_interval(paired.differences(ours, theirs))
        yield README, text, "compare.jsonl", f"{part}: sg - none", numbers


def mistakes():
    rows = read("compare.jsonl")
    base = paired.select(rows, part="traps", name="sg")
    labels = {"clip(w r)": "the weight inside of the clip", "end token masked": "the end token left out",
              "tau = 9": "tau = 9", "scored at another temperature": "log-probabilities at temperature 0.6"}
    for name, label in labels.items():
        here = paired.select(rows, part="traps", name=name)
        numbers = with_interval(paired.differences(here, base))
        numbers.append(f"{statistics.fmean(row['norm max'] for row in here.values()):.1f}")
        text = f"| {label}", "| **{} [{}, {}]** | {} |"
        yield EVIDENCE, text, "compare.jsonl", f"traps: {name} - sg, norm max", numbers
    lost = paired.interval(paired.differences(base, paired.select(rows, part="traps", name="clip(w r)")))
    text = "the clip lowers avg@4 by {} [{}, {}];"
    yield README, text, "compare.jsonl", "traps: sg - clip(w r)", [short(value) for value in lost]


def collapse():
    rows = read("stability.jsonl")
    T = {name: stability.collapse_rates(rows, name) for name in ("none", "sg")}
    D = with_interval(paired.subtract(T["sg"], T["none"]))
    yield EVIDENCE, "D = {} octaves, 95 % interval [{}, {}]", "stability.jsonl", "T(sg) - T(none)", D


def dose_slope():
    rows = read("dose.jsonl")
    cells = {name: paired.select(rows, part="count", name=name) for name in dose.DOSES}
    finite = list(dose.DOSES)[:-1]
    found = dose.slopes(finite, cells)
    if len(found) > 1:
        yield EVIDENCE, "the slope is {} [{}, {}]", "dose.jsonl", "slope over ln d", with_interval(found)


def premise():
    rows = read("premise.jsonl")
    labels = {**METHODS, "ar": "AR-Lopti, its reweighting w = 0.2 pi + 0.8 alone",
              "reverse": "`reverse`, the same curve over 1 - pi"}
    means = {}
    for shaping in ("none", "sg", "ar", "reverse"):
        numbers = []
        for task in ("kk", "math", "qa"):
            values = [row["share of squared norm"][shaping] for row in rows if row["task"] == task]
            numbers += [*with_error(values, 2), range_of(values)]
        cells = " | ".join(3 * ["{} ± {} ({})"])
        text = "| share of the squared norms", f"| {labels[shaping]} | {cells} |"
        yield EVIDENCE, text, "premise.jsonl", f"share of squared norm, {shaping}", numbers
        means[shaping] = sorted(numbers[::3])  # of the tasks
    numbers = [means["none"][0], means["none"][-1], means["sg"][0], means["sg"][-1]]
    text = "{} to {} under GRPO, {} to {} under GRPO-SG"
    yield README, text, "premise.jsonl", "share of squared norm, none, sg", numbers


def speed():
    cpu = read("bench.json")["cpu"]
    lines = {"sampling completions of unequal lengths, against `model.generate`":
             [cpu["sampling"][f"{words}, long tail"] for words in ("2,048 words", "151,936 words")],
             "an update, against the full log-softmax in one batch":
             [cpu["update"][words] for words in ("2,048 words", "151,936 words")],
             "a whole step, against TRL 1.16": [cpu["step"]["beta 0.0, updates 1"]]}
    sides = "generate / ours", "naive, one batch / ours", "TRL, 8 rows / ours"
    for (label, parts), side in zip(lines.items(), sides):
        numbers = []
        for part in parts:
            found = part.get(side) or part[f"{side}, seconds"]
            numbers += [f"{value:.1f}" for value in found]
        cells = " | ".join(len(parts) * ["{} ({} to {})"])
        yield README, f"| {label} | {cells} |", "bench.json", side, numbers


SOURCES = default_runs, comparisons, mistakes, collapse, dose_slope, premise, speed


# ---- Pages ----

def find(page, text):
    """The match of a text in a page, its numbers as groups; None if there is none. Text may be two texts: the
    second is then looked for from the first on, as tables have equal rows."""
    start, text = text if isinstance(text, tuple) else ("", text)
    at = page.find(start)
    pattern = re.escape(text).replace(r"\{\}", r"([-+.\de]+(?: to [-+.\d]+)?)").replace(r"\*\*", r"(?:\*\*)?")
    pattern = re.sub(r"(\\[ \n])+", r"\\s+", pattern) if not text.endswith("\n") else pattern
    return re.compile(pattern).search(page, at) if at >= 0 else None


def put(page, match, numbers):
    """The page with these numbers in the place of those that were found."""
    for i in range(len(numbers), 0, -1):
        page = page[:match.start(i)] + numbers[i - 1] + page[match.end(i):]
    return page


def unexplained(page, spans, known):
    """[(line, number)] of the numbers outside of the spans that are not known."""
    kept = list(page)
    for begin, end in [*spans, *(match.span() for match in re.finditer(NOT_CODE, page, re.S))]:
        kept[begin:end] = [c if c == "\n" else " " for c in page[begin:end]]
    kept = "".join(kept)
    found = []
    for match in re.finditer(NUMBER, kept):
        if match[0] not in known.split():
            found.append((kept[:match.start()].count("\n") + 1, match[0]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    pages = {name: (ROOT / name).read_text() for name in (README, EVIDENCE)}
    spans = {name: [] for name in pages}
    wrong = 0
    for source in SOURCES:
        for name, text, file, key, numbers in source():
            match = find(pages[name], text)
            stands = list(match.groups()) if match else None
            said = "not on the page" if not match else "ok" if stands == numbers else f"on the page: {stands}"
            print(f"{said:<4} {name} <- {file}, {key}: {', '.join(numbers)}")
            if match and write:
                pages[name] = put(pages[name], match, numbers)
                match = find(pages[name], text)
            elif stands != numbers:
                wrong += 1
            if match:
                spans[name].append(match.span())
    for name, page in pages.items():
        if write:
            (ROOT / name).write_text(page)
        for line, number in unexplained(page, spans[name], NOT_MEASURED[name]):
            print(f"no source: {name}, line {line}: {number}")
            wrong += 1
    print(f"{wrong} numbers or rows are wrong" if wrong else "every number has its source")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
