"""What the recorded runs say: the numbers that the pages show.

    python -m experiments.numbers --write    writes them into the pages

results/earlier.json has the values of experiments whose scripts are in commits 7e9e938 and 196b81b,
as these commits computed them from the rows in results/. The other values are computed here. A
value is text, or a table: a list of rows, of which the first is the head.
"""
import statistics

from experiments import analysis
from experiments.analysis import interval, read

TASKS = "phone_book", "backwards", "math"


def in_prose(values):
    return "{:+.3f}, 95% CI [{:+.3f}, {:+.3f}]".format(*interval(values))


def range_of(values, digits=2):
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def choice():
    """Yield the main comparison: avg@8 after 60 steps, GRPO-SG (B) minus GRPO (A), averaged over
    tasks, at separately tuned and at equal learning rates."""
    tuned, controls = read("choice"), read("choice-equal")
    # The later control: GRPO at the rate of the other arms, where its tuning chose another.
    replaced = {row["task"] for row in controls}
    equal = [row for row in tuned if row["arm"] != "A" or row["task"] not in replaced] + controls
    for name, rows in (("tuned", tuned), ("equal", equal)):
        ends = {(row["task"], row["arm"], row["seed"]): row["avg@8"]["60"] for row in rows
                if row["split"] == "test"}
        differences = []
        for seed in range(3000, 3040):
            differences.append(statistics.fmean(
                ends[task, "B", seed] - ends[task, "A", seed] for task in TASKS))
        yield f"choice: {name}, B minus A, end", in_prose(differences)


def real():
    """Yield the paired runs of a real model, and its cold start on Knights and Knaves."""
    ends = {arm: {} for arm in ("sg", "none")}
    for row in read("real"):
        ends[row["arm"].removeprefix("shaping=")][row["seed"]] = row["end"]
    pairs = sorted(ends["sg"].keys() & ends["none"].keys())
    before = [row["before"]["avg@4"] for row in read("real") if row["seed"] in pairs]
    yield "real: pairs", str(len(pairs))
    yield "real: before", f"{statistics.fmean(before):.3f}"
    for arm, of_seed in ends.items():
        values = [of_seed[seed] for seed in pairs]
        yield f"real: {arm}", f"{statistics.fmean(values):.3f}"
        yield f"real: {arm}, range", range_of(values)
    differences = [ends["sg"][seed] - ends["none"][seed] for seed in pairs]
    yield "real: sg minus none", in_prose(differences)
    yield "real: MDE", f"{analysis.detectable(differences):.3f}"
    lower, = read("real_lower")
    yield "real: lower rate", f"{lower['after']['avg@4']:.3f}"
    look, later = read("real_look")
    yield "real: efficiency later", "{:.3f} ± {:.3f}".format(*later["efficiency"])
    rare = [share for name, share in later["classes"].items() if "< 1/3" in name]
    yield "real: unlikely, later", f"{sum(share['tokens'] for share in rare):.0%}"
    unlikely = [share for name, share in look["classes"].items() if "< 1/3" in name]
    yield "real: efficiency", "{:.3f} ± {:.3f}".format(*look["efficiency"])
    yield "real: unlikely, tokens", f"{sum(share['tokens'] for share in unlikely):.0%}"
    for part in ("signal", "noise"):
        yield f"real: unlikely, {part}", f"{sum(share[part][0] for share in unlikely):.0%}"
    for name, row in zip(("short", "long", "warm"), read("real_cold")):
        # The long start learned puzzles with two and three people, and is tested on three.
        tests = row.get("three people", row["RL"])
        for when in ("before", "after"):
            yield f"real: kk {name}, {when}", "{:.3f} ± {:.3f}".format(
                tests[when]["avg@4"], tests[when]["avg@4_se"])
    yield "real: kk floor", f"{tests['before']['best constant answer']:.2f}"


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
    for part, sizes in analysis.read_json("bench.json")["cpu"].items():
        for sides in sizes.values():
            if not isinstance(sides, dict):  # the versions, the commit
                continue
            for side in sorted(sides.keys() - {"runs"}):
                medians.setdefault((part, side), []).append(sides[side][0])
    yield "bench: sampling", range_of(medians["sampling", "generate / ours"], 1)
    steps = [x for (part, _), values in medians.items() if part == "step" for x in values]
    yield "bench: step", range_of(steps, 1)


def summarize():
    """Return {name: text or table}."""
    numbers = analysis.read_json("earlier.json")
    for question in (choice, real, ignorant, bench):
        numbers.update(question())
    return numbers
