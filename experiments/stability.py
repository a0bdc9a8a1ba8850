"""Is GRPO-SG stabler than GRPO? Accuracy against learning rate, into collapse.

    python -m experiments.stability run                   20 minutes on one core; goes on where it stopped
    python -m experiments.stability run --seeds 0 1 2     these alone: two processes may share the file
    python -m experiments.stability show                  the tables

Results are appended to results/stability.jsonl (--results). The regime is compare.py's, the seeds are 0 to 9,
and both methods start from the same warm start of a seed. Fixed before the first run:

Learning rates 1e-4 to 1.6e-3 in factors of two. A run has collapsed if its test avg@4 after the last step is
below its own warm start's; equal is not below. A seed's collapse rate T, in octaves: its gain, avg@4 minus the
warm start's, is joined by straight lines over log2 of the five rates, and T is the lowest log2 rate plus the
length on which that line is at or above 0. For a curve that falls once this is where it crosses 0. 2 ** (mean
of T) is the geometric mean of these rates, not the rate at which half of the runs collapse.

The comparison that counts: D = mean over seeds of T(sg) - T(none), with a 95 % interval by Student's t, once
all ten seeds are there; before that it is called interim. With s = log2(mean weight of sg), about 0.47, as a
common factor of the weights would move the curve by -s:
    "stabler": the interval is above 0.
    "moved by the factor": it is below 0 and contains -s. "Less stable": it is below 0 and does not.
    "no difference": it contains 0 and lies between -s and s.
    "unresolved": it contains 0, and -s or s.
    "out of range": at more than two seeds a T of either method is at an end of the range.
"""
import argparse
import functools
import math
import pathlib
import statistics

from experiments import paired

RATES = 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3
OCTAVES = [math.log2(lr) for lr in RATES]
METHODS = "none", "sg"


# ---- Runs ----

def jobs_of(seed):
    for name in METHODS:
        for lr in RATES:
            yield {"seed": seed, "name": name, "lr": lr}


@functools.lru_cache(1)
def start_of(seed):
    """compare.py's warm start, and its avg@4 on the test problems."""
    start = paired.warm_start(seed, 100, steps=40, prompts=16, updates=8)
    return start, paired.measure(start[0], start, start[2].test)["avg@4"]


def work(seed, name, lr):
    start, before = start_of(seed)
    model, row = paired.train_copy(start, lr=lr, shaping=name)
    return {**paired.measure(model, start, start[2].test), **row, "before": before}


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
    columns = [paired.select(rows, name=name, lr=lr) for lr in RATES]
    found = {}
    for seed in sorted(set.intersection(*(set(column) for column in columns))):
        gains = [column[seed]["avg@4"] - column[seed]["before"] for column in columns]
        found[seed] = OCTAVES[0] + length_above(gains)
    return found


def at_an_end(found):
    """How many of these T are at an end of the range."""
    return sum(t - OCTAVES[0] < 1e-9 or OCTAVES[-1] - t < 1e-9 for t in found.values())


def factor(rows):
    """s, the mean weight of sg in octaves."""
    return math.log2(statistics.fmean(row["weight_mean"] for row in rows if row["name"] == "sg"))


def judge(rows):
    """What D is called by the rule in the docstring."""
    T = {name: collapse_rates(rows, name) for name in METHODS}
    _, low, high = paired.interval(paired.subtract(T["sg"], T["none"]))
    s = factor(rows)
    if max(at_an_end(found) for found in T.values()) > 2:
        return "out of range"
    if low > 0:
        return "stabler"
    if high < 0:
        return "moved by the factor" if low <= -s <= high else "less stable"
    return "no difference" if -s < low and high < s else "unresolved"


def show(rows):
    T = {}
    for name in METHODS:
        for lr in RATES:
            cell = list(paired.select(rows, name=name, lr=lr).values())
            if len(cell) < 2:
                continue
            down = sum(row["avg@4"] < row["before"] for row in cell)
            means = []
            for key in ("before", "avg@4", "norm mean", "norm max", "norm cv", "norm above 1", "entropy"):
                means.append(f"{key} {statistics.fmean(row[key] for row in cell):.3f}")
            print(f"{name}, {lr:g}: {down} of {len(cell)} collapsed, {', '.join(means)}")
        T[name] = collapse_rates(rows, name)
        if len(T[name]) > 1:
            middle, low, high = (2 ** x for x in paired.interval(list(T[name].values())))
            print(f"{name}: collapse rate {middle:.2e} [{low:.2e}, {high:.2e}], geometric mean of "
                  f"{len(T[name])} seeds, {at_an_end(T[name])} at an end of the range")
    D = paired.subtract(T["sg"], T["none"])
    if len(D) < 2:
        return print("no comparison yet: it needs two seeds with all five rates")
    interim = " (interim: fewer than 10 seeds)" if len(D) < 10 else ""
    print(f"s = {factor(rows):.3f} octaves")
    print(f"D = T(sg) - T(none) = {paired.in_words(D)}: {judge(rows)}{interim}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--results", type=pathlib.Path, default=paired.RESULTS / "stability.jsonl")
    args = parser.parse_args()
    if args.what == "run":
        for seed in args.seeds:
            paired.run_jobs(args.results, jobs_of(seed), work)
    show(paired.read_rows(args.results))


if __name__ == "__main__":
    main()
