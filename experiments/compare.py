"""Does the weight help, and do four mistakes and another reading of the formula matter? Runs that differ in one
thing, from the same warm starts.

    python -m experiments.compare run                      an hour on one core; goes on where it stopped
    python -m experiments.compare run help --seeds 0 1 2   a part of it
    python -m experiments.compare show                     the tables

Results are appended to results/compare.jsonl (--results).

The regime is meant to be kind to GRPO-SG, whose weight only tells tokens apart where unlikely ones are sampled:
three people, a warm-up that ends early, and twice as many updates on a rollout as by default, of half as many
prompts. Fixed beforehand: this regime, 40 steps, and the comparison that counts, sg against none in avg@4 on
the test problems, over 20 paired seeds, each method at the best learning rate of a grid on validation problems
of other seeds.

The noisy regime is where the method's story says that it should help: unlikely tokens that luck rewarded. In
training one verdict in six is the wrong way round, 256 problems are all that there are, and there are 60 steps.
It was fixed before its first run, and so was the comparison that counts, the same. After it was seen that the two
methods have different best rates there, GRPO was run at GRPO-SG's, too (noisy-equal), which is no test of anything.

There GRPO-SG's greedy accuracy, which was not to count, was above GRPO's by +.021 [+.003, +.040]. noisy-greedy decides,
by a rule fixed before its first run: fresh seeds, 200 to 239; both methods at 1e-4 and at 2e-4; what counts is greedy
accuracy on the test problems, GRPO-SG minus GRPO, paired by seed, at 1e-4. "The sign was real": its 95 % interval is
above 0. "It was not": the interval contains 0, or is below it. All else, avg@4 and 2e-4 too, stands beside it.
"""
import argparse
import dataclasses
import functools
import pathlib
import random
import statistics

import torch

import grpo_sg
import tasks
from experiments import paired

RATES = 1e-4, 2e-4, 4e-4
METHODS = "none", "sg"
TRAPS = "sg", "end token masked", "clip(w r)", "tau = 9", "scored at another temperature"
# A part's names, of which the first is the base of comparisons, and its seeds.
PARTS = {"grid": (METHODS, range(100, 104)), "help": (METHODS, range(20)),
         "noisy-grid": (METHODS, range(100, 104)), "noisy-help": (METHODS, range(20)),
         "traps": (TRAPS, range(8)), "reading": (("sg", "mu inside"), range(10)),
         "start": (("warm start",), range(20)), "noisy-equal": (("none at the rate of sg",), range(20)),
         "noisy-greedy": (METHODS, range(200, 240))}
GREEDY_RATES = 1e-4, 2e-4  # of noisy-greedy
GRID_OF = {"help": "grid", "noisy-help": "noisy-grid", "traps": "grid", "reading": "grid", "start": "grid",
           "noisy-equal": "noisy-grid"}


# ---- What is changed ----

def weights_inside_the_clip(logps, old_logps, advantages, mask, *, weights, **more):
    return paired.grpo_sg_loss(logps + weights.log(), old_logps, advantages, mask, **more)


def mu_inside_the_sigmoid(w, pi, mask):
    """The other reading of the formula (lesson/decisions.md), in the place of w."""
    return (2 * torch.sigmoid(9 * (pi - 0.25))).clamp(1.0, 1.4)


def mask_by_value(completions, device, make_batch=grpo_sg.make_batch):
    batch = make_batch(completions, device)
    batch["mask"] &= batch["ids"] != 0  # the pad, which is the stop token too
    return batch


def score_at_another_temperature(model, batch, cfg, compute_logps=grpo_sg.compute_logps):
    return compute_logps(model, batch, dataclasses.replace(cfg, temperature=0.6))


PATCHES = {"clip(w r)": {"grpo_sg_loss": weights_inside_the_clip},
           "mu inside": paired.loss_of(mu_inside_the_sigmoid),
           "end token masked": {"make_batch": mask_by_value},
           "scored at another temperature": {"compute_logps": score_at_another_temperature}}


def reward_with_luck(rng, c):
    """The reward, with one verdict in six the wrong way round."""
    return tasks.reward(dataclasses.replace(c, correct=c.correct ^ (rng.random() < 1 / 6)))


# ---- Runs ----

def jobs_of(part, seeds, rows):
    """The runs of a part. The learning rate of a method is the best one of its grid, of all else that of sg."""
    names, usual = PARTS[part]
    rates = paired.best_rates([row for row in rows if row["part"] == GRID_OF.get(part)])
    if part == "noisy-greedy":
        for seed in seeds or usual:
            for name in names:
                for lr in GREEDY_RATES:
                    yield {"part": part, "name": name, "seed": seed, "lr": lr}
        return
    if part in GRID_OF and not rates:
        raise SystemExit(f"{part} needs the learning rates of {GRID_OF[part]}: run that first")
    for seed in seeds or usual:
        for name in names:
            for lr in RATES if part not in GRID_OF else [rates.get(name, rates["sg"])]:
                yield {"part": part, "name": name, "seed": seed, "lr": lr}


def work(part, name, seed, lr):
    start = paired.warm_start(seed, 100, steps=40, prompts=16, updates=8)
    if part == "start":
        return paired.measure(start[0], start, start[2].test)
    settings = {"lr": lr, "shaping": "none" if name.startswith("none") else "sg"}
    if name == "tau = 9":
        settings["tau"] = 9.0
    if part.startswith("noisy"):
        settings["steps"] = 60
        model, tokenizer, task, cfg = start
        reward = functools.partial(reward_with_luck, random.Random(seed))
        start = model, tokenizer, task._replace(train=task.train[:256], reward=reward), cfg
    model, row = paired.train_copy(start, PATCHES.get(name), **settings)
    task = start[2]
    return {**paired.measure(model, start, task.valid if part.endswith("grid") else task.test), **row}


# ---- Tables ----

def show(rows):
    for part, (names, _) in PARTS.items():
        here = [row for row in rows if row["part"] == part]
        for name in names:
            for lr in RATES:
                cell = paired.select(here, name=name, lr=lr)
                if len(cell) > 1:
                    means = []
                    for key in ("avg@4", "greedy", "norm mean", "norm max", "low_prob_frac"):
                        if key in cell[min(cell)]:  # not of a warm start
                            means.append(f"{key} {statistics.fmean(row[key] for row in cell.values()):.3f}")
                    print(f"{part}, {name}, lr {lr:g}:", ", ".join(means))
            base, others = paired.select(here, name=names[0]), paired.select(here, name=name)
            if part in GRID_OF and name != names[0] and len(base.keys() & others.keys()) > 1:
                for key in ("avg@4", "greedy", "norm max"):
                    found = paired.in_words(paired.differences(others, base, key))
                    print(f"    {key} minus that of {names[0]}: {found}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, help="in place of a part's own")
    parser.add_argument("--results", type=pathlib.Path, default=paired.RESULTS / "compare.jsonl")
    args = parser.parse_args()
    if args.what == "run":
        for part in args.parts:
            paired.run_jobs(args.results, jobs_of(part, args.seeds, paired.read_rows(args.results)), work)
    show(paired.read_rows(args.results))


if __name__ == "__main__":
    main()
