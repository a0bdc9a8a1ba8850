"""Is GRPO-SG stabler than GRPO? Accuracy against learning rate, into collapse, and three more comparisons.

    python experiments/stability.py run --seeds 0 1 2 ... 9 --cache DIR     goes on where it stopped
    python experiments/stability.py show                                    the tables

A run takes about half a minute on one core. Rows are appended to results/stability.jsonl (--results), a run
a line, and what is there is not run again: stop it when you like; two processes with other seeds may share
the file. DIR, outside of the repository, keeps the warm starts, a file a seed. --methods none sg runs these
alone: what the comparison that counts needs. --parts "few problems" runs this part alone: it has seeds 10 to
19, too, which were added when six seeds of it had been looked at.

Planned were 60 steps and seven rates; a timing showed that ten seeds of that could not be afforded, so that
steps and rates were cut rather than seeds, and the two outer rates were not run in the end.

The regime is compare.py's (kk, an early end of the warm-up, 16 prompts, 8 updates on a rollout, 40 steps),
the seeds 0 to 9, and every method starts from the same warm start of a seed. Fixed before the first counted
run, after a look at seed 200, which is not counted: plain GRPO at 4e-4 (.29 -> .33 in 60 steps), 8e-4
(-> .23), 1.6e-3 and 3.2e-3 (-> 0), and two steps of every kind of job, to see it run:

The map. Learning rates 1e-4 to 1.6e-3 in factors of two, from half of GRPO's best one in compare.py's grid
to where nothing is left; 5e-5 and 3.2e-3 are run last, for the picture, and enter no comparison. A run has
collapsed if its test avg@4 after the last step is below its own warm start's; equal is not below. An update
that is not finite is left out by the training loop, and the run counts like any other. A seed's collapse
rate T, in octaves: its gain, avg@4 minus the warm start's, is joined by straight lines over log2 of the five
rates, and T is the lowest log2 rate plus the length on which that line is at or above 0. (For a curve that
falls once this is where it crosses 0, and then 2 ** (mean of T) is the rate at which half of the runs
collapse, up to the shape of the distribution; the crossing of the collapse share itself with one half is
printed beside it.) T is at an end of the range where a curve never or always is above 0: counted, printed.

The comparison that counts: D = mean over seeds of T(sg) - T(none), with a 95 % bootstrap interval over seeds
(10,000 draws, percentiles), once all ten seeds are there; before that it is called interim. With
s = log2(mean weight of sg), about 0.47, as a common factor of the weights would move the curve by -s:
    "stabler": the interval is above 0.
    "moved by the factor": it is below 0 and contains -s. "Less stable": it is below 0 and does not.
    "no difference": it contains 0 and lies between -s and s.
    "unresolved": it contains 0, and -s or s.
If at more than two seeds a T of either method is at an end of the range, the answer is "out of range".
Secondary, the same way: T of sg / mean and of ar minus none's, and of sg minus that of sg / mean, which is
the common factor alone; test avg@4 of sg minus none's at the same rate, averaged over the five rates, and
minus none's at the rate times the factor, by the same straight lines, over the four rates where it is
defined; at GRPO's best rate, 2e-4, the coefficient of variation of the gradient norm minus none's. Nothing
but D is a test of the claim; no interval is corrected for their number.

Updates: none, sg, sg / mean with 4 and 16 updates on a rollout of the same size, at 4e-4, twice GRPO's best
rate, beside the map's 8. What counts: gain of sg minus none's at 16 updates.
Few problems: 64 training problems, 300 steps, 1e-4. What counts: the gap, avg@4 on the 64 minus avg@4 on the
test problems, of sg minus none's. Both by Student's t over seeds, a difference where 0 is outside of it.
Third reading of the weight, w = clip(2 sigmoid(9 (pi - 0.25)), 1, 1.4): one row beside sg at 1e-4, its best.

Gradient norms are of every update, before clipping. Entropy and KL are exact, in nats a token: over 4
completions by the trained policy of each test problem, the means of H(pi) and of
sum over v of pi(v) (log pi(v) - log pi_start(v)).
"""
import argparse
import contextlib
import copy
import dataclasses
import json
import math
import os
import random
import statistics
import sys
import time
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import torch  # noqa: E402
from torch.nn.utils.rnn import pad_sequence  # noqa: E402

import grpo_sg  # noqa: E402
import tasks  # noqa: E402
from compare import PATCHES, interval, warm_start  # noqa: E402

PATH = os.path.join(HERE, "results", "stability.jsonl")
RATES = 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3
OUTER = 5e-5, 3.2e-3
THIRD = "sg, mu inside"
METHODS = "none", "sg", "sg / mean", "ar"
PARTS = "map", "updates", "few problems"


def third_reading(loss):
    """w = clip(2 sigmoid(9 (pi - 0.25)), 1, 1.4), in the place of GRPO-SG's weight."""
    return lambda logps, old, A, mask, *, weights, **more: loss(logps, old, A, mask, weights=(
        2 * torch.sigmoid(9 * (logps.detach().exp() - 0.25))).clamp(1.0, 1.4), **more)


def jobs_of(seeds):
    """(part, method, seed, learning rate, updates on a rollout, steps), the most telling ones first."""
    for seed in seeds:
        for names in METHODS[:2], METHODS[2:3], METHODS[3:]:
            yield from (("map", name, seed, lr, 8, 40) for lr in RATES for name in names)
        yield "map", THIRD, seed, 1e-4, 8, 40
    for seed in seeds:
        for updates in 16, 4:
            yield from (("updates", name, seed, 4e-4, updates, 40) for name in METHODS[:3])
    for seed in seeds:
        yield from (("few problems", name, seed, 1e-4, 8, 300) for name in METHODS[:3])
    for seed in seeds:
        yield from (("map", name, seed, lr, 8, 40) for name in METHODS for lr in OUTER)


def start_of(seed, cache):
    """compare.py's warm start, kept in the cache."""
    path, warm_up = os.path.join(cache, f"warm-{seed}.pt"), tasks.warm_up

    def cached(model, *more):
        if not os.path.exists(path):
            warm_up(model, *more)
            torch.save(model.state_dict(), f"{path}.{os.getpid()}")
            os.replace(f"{path}.{os.getpid()}", path)  # whole, or not at all
        model.load_state_dict(torch.load(path, weights_only=True))
    with mock.patch.object(tasks, "warm_up", cached):
        return warm_start("map", seed)


@torch.no_grad()
def measured(model, first, start, problems):
    """avg@4, and of the same completions, in nats a token: the exact entropy of the policy, and its exact
    KL to the warm start, the sum over v of pi(v) (log pi(v) - log pi_start(v)): means over the tokens."""
    _, tokenizer, task, cfg = start
    drawn = grpo_sg.rollout(model, tokenizer, task, problems, cfg, n=4, temperature=1.0, seed=cfg.seed)
    entropy, kl, count = 0.0, 0.0, 0
    for i in range(0, len(drawn), 200):
        some = drawn[i:i + 200]
        ids = pad_sequence([torch.tensor(c.prompt + c.tokens) for c in some], True)  # (B, T)
        own = pad_sequence([torch.tensor([False] * len(c.prompt) + c.mask) for c in some], True)[:, 1:]
        logp, logq = (m(input_ids=ids[:, :-1]).logits[own].log_softmax(-1) for m in (model, first))
        entropy -= (logp.exp() * logp).sum().item()
        kl += (logp.exp() * (logp - logq)).sum().item()
        count += len(logp)
    return {"avg@4": statistics.fmean(c.solved for c in drawn), "entropy": entropy / count, "kl": kl / count,
            "truncated": statistics.fmean(c.truncated for c in drawn)}


def trained(start, part, name, seed, lr, updates, steps):
    """Train a copy of the warm start, and measure it: a row."""
    first, tokenizer, task, cfg = start
    began, model, norms = time.time(), copy.deepcopy(first), []
    patches = {**PATCHES, THIRD: ("grpo_sg_loss", third_reading)}
    shaping = name if name in ("none", "ar") and name not in patches else "sg"
    cfg = dataclasses.replace(cfg, lr=lr, updates=updates, steps=steps, shaping=shaping)
    if part == "few problems":
        task = task._replace(train=task.train[:64])
    clip = torch.nn.utils.clip_grad_norm_

    def seen(*arguments):
        norm = clip(*arguments)
        norms.append(float(norm))
        return norm
    with contextlib.ExitStack() as patched:
        if name in patches:
            attribute, wrap = patches[name]
            patched.enter_context(mock.patch.object(grpo_sg, attribute, wrap(getattr(grpo_sg, attribute))))
        patched.enter_context(mock.patch.object(torch.nn.utils, "clip_grad_norm_", seen))
        rows = grpo_sg.train(model, tokenizer, task, cfg)
    finite = [norm for norm in norms if math.isfinite(norm)]
    mean = statistics.fmean(finite)
    row = {"part": part, "name": name, "seed": seed, "lr": lr, "updates": updates, "steps": steps,
           **measured(model, first, start, task.test),
           "norm mean": mean, "norm max": max(finite), "norm cv": statistics.stdev(finite) / mean,
           "norm above 1": statistics.fmean(norm > cfg.grad_clip for norm in finite),
           "not finite": len(norms) - len(finite)}
    for key in "weight_mean", "low_prob_frac", "clip_frac":
        values = [step[key] for step in rows if step[key] is not None]  # None: no group had a signal
        row[key] = statistics.fmean(values) if values else None
    if part == "few problems":
        row["avg@4 seen"] = measured(model, first, start, task.train)["avg@4"]
    row["curve"] = [round(step["accuracy"], 3) for step in rows]
    return {**row, "seconds": round(time.time() - began, 1)}


def rows_of(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def key(row):
    return tuple(row[name] for name in ("part", "name", "seed", "lr", "updates", "steps"))


def run(args):
    torch.set_num_threads(1)
    seed_of_start = None
    for job in jobs_of(args.seeds):
        if (job[0] not in args.parts or job[1] not in args.methods
                or job in map(key, rows_of(args.results))):
            continue
        if seed_of_start != job[2]:
            seed_of_start, start = job[2], start_of(job[2], args.cache)
            first = start[0]
            before = {"before": measured(first, first, start, start[2].test)["avg@4"],
                      "before seen": measured(first, first, start, start[2].train[:64])["avg@4"]}
        row = {**trained(start, *job), **before}
        with open(args.results, "a") as file:
            file.write(json.dumps(row) + "\n")
        change = f"{row['before']:.3f} -> {row['avg@4']:.3f}"
        print(time.strftime("%H:%M:%S"), *job, change, f"{row['seconds']} s", flush=True)


def by_cell(rows):
    """{(part, method, learning rate, updates): {seed: row}}"""
    cells = {}
    for row in rows:
        cells.setdefault((row["part"], row["name"], row["lr"], row["updates"]), {})[row["seed"]] = row
    return cells


def bootstrap(seeds, statistic=statistics.fmean, draws=10_000):
    """The 2.5 and 97.5 % percentiles of a statistic over draws of seeds, of those where it is not None."""
    rng = random.Random(0)
    found = [statistic(rng.choices(seeds, k=len(seeds))) for _ in range(draws)]
    found = sorted(value for value in found if value is not None) or [math.nan]
    return found[len(found) // 40], found[~(len(found) // 40)]


def shown(values):
    """"mean [95 % bootstrap interval], n seeds\""""
    low, high = bootstrap(values)
    return f"{statistics.fmean(values):+.3f} [{low:+.3f}, {high:+.3f}], {len(values)} seeds"


def at(x, xs, ys):
    """The line through the points (xs, ys), at x within their range."""
    i = max(i for i in range(len(xs) - 1) if xs[i] <= x)
    return ys[i] + (ys[i + 1] - ys[i]) * (x - xs[i]) / (xs[i + 1] - xs[i])


def length_above(xs, ys):
    """The length of the part of the x-axis on which the line through the points is at or above 0."""
    total = 0.0
    for width, a, b in zip((right - left for left, right in zip(xs, xs[1:])), ys, ys[1:]):
        total += width * (1 if min(a, b) >= 0 else 0 if max(a, b) < 0 else max(a, b) / abs(a - b))
    return total


def collapsed(row):
    return row["avg@4"] < row["before"]


def half_collapsed(shares):
    """The log2 rate at which the share of collapsed runs first crosses one half; None: it does not. shares:
    for each seed, for each rate, 0 or 1."""
    xs, means = [math.log2(lr) for lr in RATES], [statistics.fmean(each) for each in zip(*shares)]
    for i in range(1, len(xs)):
        if means[i - 1] < 0.5 <= means[i]:
            return xs[i - 1] + (0.5 - means[i - 1]) / (means[i] - means[i - 1])
    return None


def show_map(cells):
    """A row for each cell, as a Markdown table."""
    means = ("norm mean", "norm max", "norm cv", "norm above 1", "entropy", "kl", "weight_mean",
             "low_prob_frac")
    head = "method", "rate", "seeds", "avg@4 before", "after, 95 % interval", "share collapsed", *means
    print("|", " | ".join(head), "|\n|" + "---|" * len(head))
    for name in (*METHODS, THIRD):
        for cell in sorted(cell for cell in cells if cell[:2] == ("map", name)):
            rows = list(cells[cell].values())
            if len(rows) > 1:
                down = [float(collapsed(row)) for row in rows]
                share = "{:.2f} [{:.2f}, {:.2f}]".format(statistics.fmean(down), *bootstrap(down))
                print(f"| {name} | {cell[2]:g} | {len(rows)} | {mean_of(rows, 'before')} |",
                      interval([row["avg@4"] for row in rows]).replace("+", ""), f"| {share} |",
                      " | ".join(mean_of(rows, key) for key in means), "|")


def mean_of(rows, key):
    values = [row[key] for row in rows if row.get(key) is not None]
    return f"{statistics.fmean(values):.3f}" if values else "-"


def curves(cells):
    """{method: {seed: rows at the five rates}}, of the seeds that have them all."""
    found = {}
    for name in METHODS:
        columns = [cells.get(("map", name, lr, 8), {}) for lr in RATES]
        found[name] = {seed: [column[seed] for column in columns]
                       for seed in sorted(set.intersection(*map(set, columns)))}
    return found


def thresholds(curves):
    """{method: {seed: T}}, the collapse rates in octaves."""
    xs = [math.log2(lr) for lr in RATES]
    return {name: {seed: xs[0] + length_above(xs, [row["avg@4"] - row["before"] for row in rows])
                   for seed, rows in by_seed.items()} for name, by_seed in curves.items()}


def verdict(paired, s, at_an_end):
    """What D is called, by the rule in the docstring."""
    if at_an_end > 2:
        return "out of range"
    low, high = bootstrap(paired)
    if low > 0:
        return "stabler"
    if high < 0:
        return "moved by the factor" if low <= -s <= high else "less stable"
    return "no difference" if -s < low and high < s else "unresolved"


def show_thresholds(runs, T, ends):
    """The learning rates at which half of the runs collapse."""
    print("\nlearning rate at which half of the runs collapse: by T; where their share crosses one half")
    for name in (name for name in METHODS if len(T[name]) > 1):
        down = [[float(collapsed(row)) for row in rows] for rows in runs[name].values()]
        rates = []
        for seeds, statistic in ((list(T[name].values()), statistics.fmean), (down, half_collapsed)):
            found = [statistic(seeds), *bootstrap(seeds, statistic)]
            rates.append("nowhere" if found[0] is None else "{:.2e} [{:.2e}, {:.2e}]".format(
                *(2 ** x for x in found)))
        print(f"  {name:<10} {'; '.join(rates)}; {len(down)} seeds, {ends[name]} at an end of the range")


def show_comparisons(cells):
    """D and what it is called; then what is secondary."""
    runs, xs = curves(cells), [math.log2(lr) for lr in RATES]
    T = thresholds(runs)
    ends = {name: sum(math.isclose(t, end) for t in T[name].values() for end in (xs[0], xs[-1]))
            for name in METHODS}
    show_thresholds(runs, T, ends)
    gain = {name: {seed: [row["avg@4"] - row["before"] for row in rows] for seed, rows in runs[name].items()}
            for name in METHODS}

    def paired(a, b, value):
        return [value(seed) for seed in runs[a] if seed in runs[b]]

    def octaves(a, b):
        return paired(a, b, lambda seed: T[a][seed] - T[b][seed])
    D = octaves("sg", "none")
    if len(D) < 2:
        return print("no comparison yet: it needs two seeds with all five rates")
    s = math.log2(statistics.fmean(row["weight_mean"] for rows in runs["sg"].values() for row in rows))
    called = verdict(D, s, max(ends["sg"], ends["none"]))
    print(f"\nmean weight of sg {2 ** s:.3f}, s = {s:.3f} octaves")
    print(f"D = T(sg) - T(none) = {shown(D)}; by Student's t {interval(D)}; a factor of",
          f"{2 ** statistics.fmean(D):.2f}: {called}" + " (interim: fewer than 10 seeds)" * (len(D) < 10))
    for a, b in (("sg / mean", "none"), ("ar", "none"), ("sg", "sg / mean")):
        if len(octaves(a, b)) > 1:
            print(f"  T({a}) - T({b}) = {shown(octaves(a, b))}")
    same = paired("sg", "none", lambda seed: statistics.fmean(
        a - b for a, b in zip(gain["sg"][seed], gain["none"][seed])))
    moved = paired("sg", "none", lambda seed: statistics.fmean(
        a - at(x + s, xs, gain["none"][seed]) for a, x in zip(gain["sg"][seed], xs[:-1])))
    print(f"  avg@4 of sg minus none's at the same rates: {shown(same)}")
    print(f"  avg@4 of sg minus none's at the rates times the factor: {shown(moved)}")
    for name in METHODS[1:]:
        variation = paired(name, "none", lambda seed: (
            runs[name][seed][1]["norm cv"] - runs["none"][seed][1]["norm cv"]))
        if len(variation) > 1:
            print(f"  variation of the gradient norm at {RATES[1]:g}, {name} minus none: {shown(variation)}")


def show_part(cells, title, cell, names, base, differences):
    """Means of a cell's methods, and differences to one of them, paired by seed. cell: (part, rate,
    updates); differences: title -> function of a row."""
    print(f"\n{title}:")
    part, *where = cell
    for name in names:
        rows, others = cells.get((part, name, *where), {}), cells.get((part, base, *where), {})
        seeds = sorted(set(rows) & set(others))
        if len(seeds) > 1:
            keys = ["before", "avg@4", "clip_frac", "norm max", "norm cv", "kl"]
            keys += ["before seen", "avg@4 seen"] * (part == "few problems")
            found = [f"{key} {mean_of(rows.values(), key)}" for key in keys]
            share = statistics.fmean(map(collapsed, rows.values()))
            print(f"  {name}, {len(rows)} seeds: collapsed {share:.2f}", *found, sep=", ")
            for what, value in differences.items() if name != base else ():
                pairs = [value(rows[seed]) - value(others[seed]) for seed in seeds]
                print(f"    {what} minus that of {base}: {interval(pairs)}, {len(seeds)} seeds")


def show(args):
    cells = by_cell(rows_of(args.results))
    show_map(cells)
    show_comparisons(cells)
    after = {"avg@4": lambda row: row["avg@4"]}
    for updates, part in ((4, "updates"), (8, "map"), (16, "updates")):
        show_part(cells, f"{updates} updates on a rollout, learning rate 4e-4", (part, 4e-4, updates),
                  METHODS[:3], "none", after)
    show_part(cells, "64 problems, 300 steps, learning rate 1e-4", ("few problems", 1e-4, 8), METHODS[:3],
              "none", {"gap": lambda row: row["avg@4 seen"] - row["avg@4"], **after})
    show_part(cells, "third reading of the weight, learning rate 1e-4", ("map", 1e-4, 8), ("sg", THIRD),
              "sg", after)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--methods", nargs="+", default=[*METHODS, THIRD], choices=[*METHODS, THIRD])
    parser.add_argument("--parts", nargs="+", default=[*PARTS], choices=PARTS)
    parser.add_argument("--cache", default="/tmp/warm-starts", help="a folder for the warm starts")
    parser.add_argument("--results", default=PATH, help="the file that rows are appended to")
    args = parser.parse_args()
    if args.what == "show":
        return show(args)
    os.makedirs(args.cache, exist_ok=True)
    run(args)


if __name__ == "__main__":
    main()
