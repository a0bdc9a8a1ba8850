"""Is GRPO-SG stabler than GRPO? Accuracy against learning rate, into collapse, and three more comparisons.

    python -m experiments.stability run                   all of it, in some hours; goes on where it stopped
    python -m experiments.stability run --seeds 0 1 2     these alone: two processes may share the file
    python -m experiments.stability show                  the tables

Results are appended to results/stability.jsonl (--results). The regime is compare.py's, the seeds are 0 to 9,
and every method starts from the same warm start of a seed. Fixed before the first run:

The map. Learning rates 1e-4 to 1.6e-3 in factors of two. A run has collapsed if its test avg@4 after the last
step is below its own warm start's; equal is not below. A seed's collapse rate T, in octaves: its gain, avg@4
minus the warm start's, is joined by straight lines over log2 of the five rates, and T is the lowest log2 rate
plus the length on which that line is at or above 0. For a curve that falls once this is where it crosses 0.
2 ** (mean of T) is the geometric mean of these rates, not the rate at which half of the runs collapse.

The comparison that counts: D = mean over seeds of T(sg) - T(none), with a 95 % interval by Student's t, once
all ten seeds are there; before that it is called interim. With s = log2(mean weight of sg), about 0.47, as a
common factor of the weights would move the curve by -s:
    "stabler": the interval is above 0.
    "moved by the factor": it is below 0 and contains -s. "Less stable": it is below 0 and does not.
    "no difference": it contains 0 and lies between -s and s.
    "unresolved": it contains 0, and -s or s.
    "out of range": at more than two seeds a T of either method is at an end of the range.
Secondary: T of the other methods; nothing but D is a test of the claim, and no interval is corrected.

Updates: none, sg, sg / mean with 4 and 16 updates on a rollout of the same size, at 4e-4, beside the map's 8.
What counts: avg@4 of sg minus none's at 16 updates. Few problems: 64 training problems, 300 steps, 1e-4; what
counts: the gap, avg@4 on the 64 minus avg@4 on the test problems, of sg minus none's. Third reading of the
weight, w = clip(2 sigmoid(9 (pi - 0.25)), 1, 1.4): one row beside sg at 1e-4.
"""
import argparse
import functools
import math
import pathlib
import statistics

import torch

from experiments import paired

RATES = 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3
OCTAVES = [math.log2(lr) for lr in RATES]
THIRD = "sg, mu inside"
METHODS = "none", "sg", "sg / mean", "ar"
PARTS = "map", "updates", "few problems"


# ---- Runs ----

def third_reading(w, pi, mask):
    return (2 * torch.sigmoid(9 * (pi - 0.25))).clamp(1.0, 1.4)


PATCHES = {"sg / mean": paired.loss_of(paired.over_mean), THIRD: paired.loss_of(third_reading)}


def jobs_of(part, seed):
    """The runs of a part with a seed."""
    job = {"part": part, "seed": seed, "updates": 8, "steps": 40}
    if part == "map":
        for name in METHODS:
            for lr in RATES:
                yield {**job, "name": name, "lr": lr}
        yield {**job, "name": THIRD, "lr": 1e-4}
        return
    for name in METHODS[:3]:
        if part == "few problems":
            yield {**job, "name": name, "lr": 1e-4, "steps": 300}
            continue
        for updates in (4, 16):
            yield {**job, "name": name, "lr": 4e-4, "updates": updates}


@functools.lru_cache(1)
def start_of(seed):
    """compare.py's warm start, and its avg@4 on the test problems and on the first 64 training problems."""
    start = paired.warm_start(seed, 100, steps=40, prompts=16, updates=8)
    task = start[2]
    before = paired.measure(start[0], start, task.test)["avg@4"]
    return start, before, paired.measure(start[0], start, task.train[:64])["avg@4"]


def work(part, seed, name, lr, updates, steps):
    start, before, seen = start_of(seed)
    model, tokenizer, task, cfg = start
    if part == "few problems":
        task = task._replace(train=task.train[:64])
    start = model, tokenizer, task, cfg
    settings = {"lr": lr, "updates": updates, "steps": steps}
    settings["shaping"] = name if name in ("none", "ar") else "sg"
    model, row = paired.train_copy(start, PATCHES.get(name), **settings)
    row = {**paired.measure(model, start, task.test), **row, "before": before}
    if part == "few problems":
        row.update({"before seen": seen, "avg@4 seen": paired.measure(model, start, task.train)["avg@4"]})
    return row


# ---- Tables ----

def length_above(ys):
    """The length of the part of the x-axis on which the line through (OCTAVES, ys) is at or above 0."""
    total = 0.0
    for i in range(len(ys) - 1):
        low, high = sorted(ys[i:i + 2])
        share = 1 if low >= 0 else 0 if high < 0 else high / (high - low)
        total += share * (OCTAVES[i + 1] - OCTAVES[i])
    return total


def collapse_rates(rows, name):
    """{seed: T}, in octaves, of the seeds that have all five rates."""
    columns = [paired.select(rows, part="map", name=name, lr=lr) for lr in RATES]
    found = {}
    for seed in sorted(set.intersection(*(set(column) for column in columns))):
        gains = [column[seed]["avg@4"] - column[seed]["before"] for column in columns]
        found[seed] = OCTAVES[0] + length_above(gains)
    return found


def judge(D, s, at_an_end):
    """What D, of each seed, is called by the rule in the docstring."""
    _, low, high = paired.interval(D)
    if at_an_end > 2:
        return "out of range"
    if low > 0:
        return "stabler"
    if high < 0:
        return "moved by the factor" if low <= -s <= high else "less stable"
    return "no difference" if -s < low and high < s else "unresolved"


def show_map(rows):
    for name in (*METHODS, THIRD):
        for lr in RATES:
            cell = list(paired.select(rows, part="map", name=name, lr=lr).values())
            if len(cell) < 2:
                continue
            down = sum(row["avg@4"] < row["before"] for row in cell)
            means = []
            for key in ("before", "avg@4", "norm mean", "norm max", "norm cv", "norm above 1", "entropy"):
                means.append(f"{key} {statistics.fmean(row[key] for row in cell):.3f}")
            print(f"{name}, {lr:g}: {down} of {len(cell)} collapsed, {', '.join(means)}")


def show_collapse(rows):
    """D and what it is called; then what is secondary."""
    T = {name: collapse_rates(rows, name) for name in METHODS}
    ends = {}  # of each method, how many T are at an end of the range
    for name, found in T.items():
        ends[name] = sum(t - OCTAVES[0] < 1e-9 or OCTAVES[-1] - t < 1e-9 for t in found.values())
        if len(found) > 1:
            middle, low, high = (2 ** x for x in paired.interval(list(found.values())))
            print(f"{name}: collapse rate {middle:.2e} [{low:.2e}, {high:.2e}], geometric mean of {len(found)} "
                  f"seeds, {ends[name]} at an end of the range")
    D = paired.subtract(T["sg"], T["none"])
    if len(D) < 2:
        return print("no comparison yet: it needs two seeds with all five rates")
    s = math.log2(statistics.fmean(row["weight_mean"] for row in rows
                                   if row["part"] == "map" and row["name"] == "sg"))
    interim = " (interim: fewer than 10 seeds)" if len(D) < 10 else ""
    print(f"mean weight of sg {2 ** s:.3f}, s = {s:.3f} octaves")
    print(f"D = T(sg) - T(none) = {paired.in_words(D)}: {judge(D, s, max(ends['sg'], ends['none']))}{interim}")
    for a, b in (("sg / mean", "none"), ("ar", "none"), ("sg", "sg / mean")):
        pairs = paired.subtract(T[a], T[b])
        if len(pairs) > 1:
            print(f"    T({a}) - T({b}) = {paired.in_words(pairs)}")


def show_part(rows, title, base, keys, **cell):
    """Means of the methods in a cell, and differences to one of them."""
    print(f"{title}:")
    others = paired.select(rows, name=base, **cell)
    for name in (*METHODS[:3], THIRD):
        here = paired.select(rows, name=name, **cell)
        if len(here.keys() & others.keys()) < 2:
            continue
        down = sum(row["avg@4"] < row["before"] for row in here.values())
        means = [f"{key} {statistics.fmean(row[key] for row in here.values()):.3f}" for key in keys]
        print(f"    {name}: {', '.join(means)}, {down} of {len(here)} collapsed")
        for key in keys if name != base else ():
            print(f"        {key} minus {base}'s: {paired.in_words(paired.differences(here, others, key))}")


def show(rows):
    for row in rows:
        if "avg@4 seen" in row:
            row["gap"] = row["avg@4 seen"] - row["avg@4"]
    show_map(rows)
    show_collapse(rows)
    for updates, part in ((4, "updates"), (8, "map"), (16, "updates")):
        show_part(rows, f"{updates} updates", "none", ("avg@4",), part=part, lr=4e-4, updates=updates)
    show_part(rows, "64 problems", "none", ("avg@4", "avg@4 seen", "gap"), part="few problems")
    show_part(rows, "third reading of the weight, 1e-4", "sg", ("avg@4",), part="map", lr=1e-4)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--results", type=pathlib.Path, default=paired.RESULTS / "stability.jsonl")
    args = parser.parse_args()
    if args.what == "run":
        for part in args.parts:
            for seed in args.seeds:
                paired.run_jobs(args.results, jobs_of(part, seed), work)
    show(paired.read_rows(args.results))


if __name__ == "__main__":
    main()
