"""A dose of damping: does it matter how much less unlikely tokens count than likely ones?

    python -m experiments.dose run                    an hour on one core; goes on where it stopped
    python -m experiments.dose run --seeds 0 1 2      these of the counted seeds alone, after the grid
    python -m experiments.dose show                   the tables

Results are appended to results/dose.jsonl (--results), a run a line. Written down before the first counted run:

The dose d. Tokens have the weight w ** (log d / log 1.4), in which w is GRPO-SG's, from 1 to 1.4: a token with
pi > 0.33 counts d times as much as one with pi < 0.12, and the curve between has the same shape. d = 1 is GRPO
(none), 1.4 is GRPO-SG, 3 and 10 are more of it; 1/1.4 and 1/3 are the reverse, in which unlikely tokens count
more. Beside these, w = pi, which damps without an end. In every update weights are divided by their mean over
its tokens (an update is one micro-batch): all doses have the mean weight 1, and no dose is a larger step.

The regime. kk with three people, a warm-up of 150 steps, 60 steps of 16 prompts x 8 completions, 4 updates on a
rollout, and else the defaults of the tiny model. It was found on seeds 100 and 101, on validation problems:
there 5 to 6 % of the tokens that are trained on have pi < 1/3 (at least 3 % were wanted), and avg@4 rises. A
warm-up of 80 or 100 steps leaves more of them, 9 to 12 %, but avg@4 hardly rises. Doses 3, 10, pi and 1/3 were
looked at, too, at some rates: once, at 2e-4, dose 10 lost the form of its answers.

The learning rate of each dose is that with the best mean avg@4 on validation problems, over seeds 102 to 104,
of four: 5e-5, 1e-4, 2e-4, 4e-4.

The counted runs are of seeds 0 to 19, every dose from the same warm start of a seed, measured by avg@4 on the
test problems. What counts: the slope of avg@4 over ln d, of a least-squares line through the six doses 1/3,
1/1.4, 1, 1.4, 3 and 10 of each seed; its mean over the seeds, with a 95 % interval by Student's t. "More damping
helps": the interval is above 0. "More damping harms": it is below 0. "No slope was seen": it contains 0.

Where it turns down: the dose with the highest mean avg@4, called a peak if the next larger dose's paired
difference to it has an interval below 0. Secondary, and no test of the claim: the slope through the doses from
1 to 10 alone; each dose, and w = pi, minus dose 1. No interval is corrected for their number.
"""
import argparse
import functools
import math
import pathlib
import statistics

from experiments import paired

DOSES = {"1/3": 1 / 3, "1/1.4": 1 / 1.4, "none": 1.0, "1.4": 1.4, "3": 3.0, "10": 10.0, "pi": None}
RATES = 5e-5, 1e-4, 2e-4, 4e-4
GRID_SEEDS = range(102, 105)


def weigh(dose, w, pi, mask):
    """The weights of a dose, with mean 1."""
    if dose is None:
        return paired.over_mean(pi, pi, mask)
    return paired.over_mean(w ** (math.log(dose) / math.log(1.4)), pi, mask)


def grid_jobs():
    for seed in GRID_SEEDS:
        for name in DOSES:
            for lr in RATES:
                yield {"part": "grid", "name": name, "seed": seed, "lr": lr}


def counted_jobs(seeds, rates):
    for seed in seeds:
        for name in DOSES:
            yield {"part": "count", "name": name, "seed": seed, "lr": rates[name]}
        yield {"part": "start", "name": "warm start", "seed": seed, "lr": 0.0}


def work(part, name, seed, lr):
    start = paired.warm_start(seed, 150, steps=60, prompts=16, updates=4)
    if part == "start":
        return paired.measure(start[0], start, start[2].test)
    patches = paired.loss_of(functools.partial(weigh, DOSES[name]))
    model, row = paired.train_copy(start, patches, lr=lr)
    task = start[2]
    return {**paired.measure(model, start, task.valid if part == "grid" else task.test), **row}


def slopes(names, cells):
    """Of each seed that has all these doses, the slope of the least-squares line of avg@4 over ln d; cells: name
    -> seed -> row."""
    xs = [math.log(DOSES[name]) for name in names]
    found = []
    for seed in sorted(set.intersection(*(set(cells[name]) for name in names))):
        ys = [cells[name][seed]["avg@4"] for name in names]
        found.append(statistics.linear_regression(xs, ys).slope)
    return found


def judge(values):
    _, low, high = paired.interval(values)
    interim = " (interim: fewer than 20 seeds)" if len(values) < 20 else ""
    if low > 0:
        return f"more damping helps{interim}"
    return ("more damping harms" if high < 0 else "no slope was seen") + interim


def show(rows):
    grid = [row for row in rows if row["part"] == "grid"]
    for name, best in paired.best_rates(grid).items():
        for lr in sorted({row["lr"] for row in grid if row["name"] == name}):
            values = [row["avg@4"] for row in paired.select(grid, name=name, lr=lr).values()]
            mark = ", the best" if lr == best else ""
            print(f"grid, {name}, lr {lr:g}: avg@4 {statistics.fmean(values):.3f}, {len(values)} seeds{mark}")
    cells = {name: paired.select(rows, part="count", name=name) for name in DOSES}
    before = [row["avg@4"] for row in rows if row["part"] == "start"]
    if before:
        print(f"warm start: avg@4 {statistics.fmean(before):.3f}, {len(before)} seeds")
    means = {}
    for name, cell in cells.items():
        if len(cell) < 2:
            return print("no counted runs of two seeds yet")
        means[name] = statistics.fmean(row["avg@4"] for row in cell.values())
        others = ""
        for key in ("greedy", "truncated", "low_prob_frac", "norm mean", "norm above 1"):
            others += f", {key} {statistics.fmean(row[key] for row in cell.values()):.3f}"
        print(f"{name}, lr {next(iter(cell.values()))['lr']:g}: avg@4 {means[name]:.3f}{others}")
        if name != "none":
            print("    minus none:", paired.in_words(paired.differences(cell, cells["none"])))
    finite = list(DOSES)[:-1]
    found = slopes(finite, cells)
    if len(found) < 2:
        return print("no slope yet: it needs two seeds with all doses")
    print(f"slope of avg@4 over ln d: {paired.in_words(found)}: {judge(found)}")
    print(f"    for each doubling: {paired.in_words([math.log(2) * each for each in found])}")
    print(f"    from 1 to 10 alone: {paired.in_words(slopes(finite[2:], cells))}")
    print(f"    without dose 10: {paired.in_words(slopes(finite[:-1], cells))}")
    highest = max(finite, key=means.get)
    print(f"highest: {highest}")
    if highest != finite[-1]:
        larger = finite[finite.index(highest) + 1]
        print(f"    {larger} minus it:", paired.in_words(paired.differences(cells[larger], cells[highest])))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(20)))
    parser.add_argument("--results", type=pathlib.Path, default=paired.RESULTS / "dose.jsonl")
    args = parser.parse_args()
    if args.what == "run":
        paired.run_jobs(args.results, grid_jobs(), work)
        grid = [row for row in paired.read_rows(args.results) if row["part"] == "grid"]
        paired.run_jobs(args.results, counted_jobs(args.seeds, paired.best_rates(grid)), work)
    show(paired.read_rows(args.results))


if __name__ == "__main__":
    main()
