"""Does the weight help, and do the traps matter? Runs that differ in one thing, from the same warm starts.

    python experiments/compare.py grid --seeds 100 101 102          best learning rate of each method
    python experiments/compare.py help --seeds 0 1 2 ... 19         methods, each at its best learning rate
    python experiments/compare.py noisy-grid --seeds 100 ... 103    the same two, with noisy rewards
    python experiments/compare.py noisy-help --seeds 0 1 2 ... 19
    python experiments/compare.py traps --seeds 0 1 2 ... 7         GRPO-SG, and with one thing wrong
    python experiments/compare.py rambling --seeds 0 1 2 3 4        first trap, where stopping is to learn
    python experiments/compare.py show                              the tables

A run takes about half a minute on one core, a warm start as much; start several processes for many seeds.
Results are appended to results/compare.jsonl, a run a line.

The regime is meant to be kind to GRPO-SG, whose weight only tells tokens apart where unlikely ones are
sampled: three people, a warm-up that ends early, and twice as many updates on a rollout as by default, of
half as many prompts. Fixed beforehand, on validation problems alone: this regime, 40 steps, and the
comparison that counts, sg against none in avg@4 on the test problems, over 20 paired seeds. The grid reads
validation problems, of other seeds, only.

The noisy regime is where the method's story says that it should help: unlikely tokens that luck rewarded.
In training one verdict in six is the wrong way round, 256 problems are all that there are, and there are 60
steps. It was fixed before its first run, and so was the comparison that counts, the same.
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
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import torch  # noqa: E402

import grpo_sg  # noqa: E402
import tasks  # noqa: E402

PATH = os.path.join(HERE, "results", "compare.jsonl")
SETTINGS = ("--task kk --steps 40 --prompts 16 --updates 8 --eval_every 1000000 "
            "--out unused").split()
RATES = 1e-4, 2e-4, 4e-4
METHODS = "none", "sg", "sg / mean", "ar", "reverse"
TRAPS = "sg", "end token masked", "clip(w r)", "tau = 9", "scored at another temperature"
GRIDS = "grid", "noisy-grid"
PARTS = {"help": METHODS, "noisy-help": METHODS, "traps": TRAPS, "rambling": ("sg", "end token masked")}


def flip_one_in_six(seed):
    rng, reward = random.Random(seed), grpo_sg.reward
    return lambda c: reward(dataclasses.replace(c, correct=c.correct ^ (rng.random() < 1 / 6)))


def weights_over_their_mean(loss):
    return lambda logps, old, A, mask, *, weights, **more: loss(
        logps, old, A, mask, weights=weights / weights[mask].mean(), **more)


def weights_inside_the_clip(loss):
    return lambda logps, old, A, mask, *, weights, **more: loss(logps + weights.log(), old, A, mask, **more)


def mask_by_value(micro_batches):
    def masked(*arguments):
        batches = micro_batches(*arguments)
        for micro in batches:
            micro["mask"] &= micro["ids"] != 0  # the pad, which is the end token too
        return batches
    return masked


def at_another_temperature(update):
    return lambda model, optimizer, completions, advantages, cfg, **more: update(
        model, optimizer, completions, advantages, dataclasses.replace(cfg, temperature=0.6), **more)


PATCHES = {"sg / mean": ("grpo_sg_loss", weights_over_their_mean),
           "clip(w r)": ("grpo_sg_loss", weights_inside_the_clip),
           "end token masked": ("micro_batches", mask_by_value),
           "scored at another temperature": ("update", at_another_temperature)}


def warm_start(part, seed):
    """(model, tokenizer, task, cfg). A rambling one was shown texts of which half begin anew where they
    should end, again and again, until they are cut off: it has to learn from rewards to stop."""
    cfg = grpo_sg.parse([*SETTINGS, "--seed", str(seed)])
    task = tasks.TASKS[cfg.task](cfg)._replace(warmup=100)
    if part == "rambling":
        def demo(problem, rng, once=task.demo):
            return " ".join([once(problem, rng)] * rng.choice([1, 4]))
        task = task._replace(demo=demo)
    torch.manual_seed(seed)
    model, tokenizer = tasks.tiny_model(task)
    tasks.warm_up(model, tokenizer, task, cfg)
    if part.startswith("noisy"):
        task, cfg = task._replace(train=task.train[:256]), dataclasses.replace(cfg, steps=60)
    return model, tokenizer, task, cfg


def trained(part, start, name, lr, split):
    """Train a copy of the warm start by a method or with a trap, and measure it on problems of a split."""
    model, tokenizer, task, cfg = start
    model = copy.deepcopy(model)
    cfg = dataclasses.replace(cfg, lr=lr, shaping=name if name in ("none", "ar", "reverse") else "sg",
                              tau=9.0 if name == "tau = 9" else cfg.tau)
    with contextlib.ExitStack() as patched:
        if name in PATCHES:
            attribute, wrap = PATCHES[name]
            patched.enter_context(mock.patch.object(grpo_sg, attribute, wrap(getattr(grpo_sg, attribute))))
        if part.startswith("noisy"):
            patched.enter_context(mock.patch.object(grpo_sg, "reward", flip_one_in_six(cfg.seed)))
        rows = grpo_sg.train(model, tokenizer, task, cfg)
    result, _ = grpo_sg.evaluate(model, tokenizer, task, getattr(task, split), cfg, samples=4)
    norms = [row["grad_norm"] for row in rows]
    return {"part": part, "name": name, "seed": cfg.seed, "lr": lr, "split": split,
            "avg@4": result["eval/avg@4"], "greedy": result["eval/accuracy"],
            "truncated@4": result["eval/truncated@4"], "norm mean": statistics.fmean(norms),
            "norm max": max(norms), "norm cv": statistics.stdev(norms) / statistics.fmean(norms),
            "low_prob_frac": statistics.fmean(row["low_prob_frac"] or 0 for row in rows),
            "curve": [round(row["accuracy"], 3) for row in rows]}


def results(part):
    with open(PATH) as file:
        return [row for row in map(json.loads, file) if row["part"] == part]


def best_rates(grid):
    """The learning rate of each method with the highest mean validation avg@4 in the grid."""
    found = {}
    for row in results(grid):
        found.setdefault(row["name"], {}).setdefault(row["lr"], []).append(row["avg@4"])
    return {name: max(rates, key=lambda lr: statistics.fmean(rates[lr])) for name, rates in found.items()}


def interval(values):
    """"mean [95 % interval]" by Student's t."""
    degrees = len(values) - 1
    t = {3: 3.182, 4: 2.776, 7: 2.365, 9: 2.262, 19: 2.093}.get(degrees, 1.96 + 2.5 / degrees)
    average, half = statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values))
    return f"{average:+.3f} [{average - half:+.3f}, {average + half:+.3f}]"


def show():
    for part in GRIDS:
        rates, grid = best_rates(part), results(part)
        for name in rates:
            means = {lr: round(statistics.fmean(
                row["avg@4"] for row in grid if (row["name"], row["lr"]) == (name, lr)), 3) for lr in RATES}
            print(f"{part:<10} {name:<30}", means, "best", rates[name])
    for part, names in PARTS.items():
        base = names[0]
        rows = {}
        for row in results(part):
            rows.setdefault(row["name"], {})[row["seed"]] = row
        for name, by_seed in rows.items():
            columns = [statistics.fmean(row[key] for row in by_seed.values())
                       for key in ("avg@4", "greedy", "norm mean", "norm max", "norm cv", "low_prob_frac")]
            seeds = sorted(set(by_seed) & set(rows[base]))
            paired = [by_seed[seed]["avg@4"] - rows[base][seed]["avg@4"] for seed in seeds]
            lr = by_seed[seeds[0]]["lr"]
            print(f"{part:<10} {name:<30} lr {lr:g}, {len(seeds)} seeds:",
                  *(f"{value:.3f}" for value in columns), f"minus {base}:", interval(paired))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=[*GRIDS, *PARTS, "show"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[])
    args = parser.parse_args()
    if args.part == "show":
        return show()
    torch.set_num_threads(1)
    if args.part in GRIDS:
        jobs = [(name, lr, "valid") for name in METHODS for lr in RATES]
    else:
        rates = best_rates("noisy-grid" if args.part == "noisy-help" else "grid")
        jobs = [(name, rates.get(name, rates["sg"]), "test") for name in PARTS[args.part]]
    for seed in args.seeds:
        start = warm_start(args.part, seed)
        for job in jobs:
            row = trained(args.part, start, *job)
            with open(PATH, "a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
