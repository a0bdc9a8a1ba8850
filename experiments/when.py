"""RULE
"""
import argparse
import copy
import dataclasses
import datetime
import functools
import json
import pathlib
import statistics
import time
from typing import NamedTuple
from unittest import mock

import torch

import grpo_sg
from experiments import analysis, signal
from experiments.angle import weigh_ar, weigh_dose, weigh_sg
from experiments.run import name_commit
from grpo_sg import grpo_sg_loss
from support import models

WEIGHTS = {"GRPO": None, "GRPO-SG": weigh_sg, "AR": weigh_ar,
           "damping 10": functools.partial(weigh_dose, 10),
           "damping 1/1.4": functools.partial(weigh_dose, 1 / 1.4)}
METHODS = "GRPO", "GRPO-SG", "AR", "damping 10"
SAMPLES = 8  # of each problem, in avg@8
SMALL = {"prompts": 2, "updates": 1}


class Part(NamedTuple):
    task: str             # as in experiments/signal.py
    arms: dict            # name: the weights, as (name, first step) in order
    points: tuple         # steps after which avg@8 is measured; training ends at the last
    rates: tuple          # learning rates of the grid; without a grid the first is every arm's
    seeds: range = range(1000, 1020)  # of the counted runs, on test problems
    grid: range = range(0)            # seeds of the grid, on validation problems


def throughout(names):
    return {name: ((name, 1),) for name in names}


SWITCH = 16  # the first step of the second weight
SWITCHES = {
    **throughout(("GRPO", "GRPO-SG", "damping 10")),
    "GRPO-SG, then GRPO": (("GRPO-SG", 1), ("GRPO", SWITCH)),
    "GRPO, then GRPO-SG": (("GRPO", 1), ("GRPO-SG", SWITCH)),
    "damping 10, then GRPO": (("damping 10", 1), ("GRPO", SWITCH)),
    "damping 10, then 1/1.4": (("damping 10", 1), ("damping 1/1.4", SWITCH)),
    "GRPO, then damping 10": (("GRPO", 1), ("damping 10", SWITCH))}
RATES = [round(2e-4 * 2 ** (i / 2), 6) for i in range(9)]  # 2e-4 to 3.2e-3
PARTS = {
    "early": Part("qa", throughout(METHODS), (10,), RATES, grid=range(900, 904)),
    "switch": Part("qa", SWITCHES, (15, 30, 60), (2e-4,)),
    "reverse": Part("kk, solutions", throughout(METHODS), (20,), RATES, grid=range(900, 904))}


# ---- A run ----

def loss_with(weigh, logps, old_logps, advantages, mask, *, weights=None, **more):
    """grpo_sg_loss with these weights, divided by their mean over the tokens of the update: its
    one micro-batch has them all."""
    w = None
    if weigh is not None:
        w = weigh(logps, None)
        w = w / w[mask.bool()].mean()
    return grpo_sg_loss(logps, old_logps, advantages, mask, weights=w, **more)


def weight_at(arm, step):
    """The name of the weight in this step."""
    return [name for name, first in arm if first <= step][-1]


@functools.lru_cache(1)
def start_of(name, seed):
    """(policy, task, cfg) at the warm start, which is kept in a file under runs/. It is for
    copying: the next call may return the same."""
    file = pathlib.Path("runs", f"when-{name_commit()}", f"{name}-{seed}.pt")
    if not file.exists():
        policy, _, _ = signal.begin(name, seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(policy.model.state_dict(), file)
    policy, task, cfg = signal.begin(name, seed, warm_up=False)
    policy.model.load_state_dict(torch.load(file))
    return policy, task, cfg


def train_arm(part, arm, seed, rate, split):
    """{"before": avg@8 of the warm start, "avg@8": {step: value}} of an arm."""
    p = PARTS[part]
    start, task, cfg = start_of(p.task, seed)
    policy = grpo_sg.Policy(copy.deepcopy(start.model), start.tokenizer, start.stop_ids)
    cfg = dataclasses.replace(cfg, lr=rate, **SMALL)
    optimizer = signal.make_optimizer(policy, cfg)
    found = {}
    for step in range(1, max(p.points) + 1):
        loss = functools.partial(loss_with, WEIGHTS[weight_at(p.arms[arm], step)])
        with mock.patch.object(grpo_sg, "grpo_sg_loss", loss):
            signal.train_step(policy, optimizer, task, cfg, step)
        if step in p.points:
            found[str(step)] = measure(policy, task, split, cfg)
    return {"before": measure_before(p.task, seed, split), "avg@8": found}


@functools.lru_cache(1)
def measure_before(name, seed, split):
    policy, task, cfg = start_of(name, seed)
    return measure(policy, task, split, cfg)


def measure(policy, task, split, cfg):
    """The share of right completions of SAMPLES of each problem; arms of a seed share random
    numbers."""
    completions = grpo_sg.rollout(policy, task, getattr(task, split), cfg, n=SAMPLES,
                                  temperature=1.0, seed=cfg.seed)
    return statistics.fmean(c.solved for c in completions)


# ---- All runs ----

def jobs_of(part, results):
    """The grid's runs, then the counted ones, for which the grid must be complete."""
    p = PARTS[part]
    for seed in p.grid:
        for arm in p.arms:
            for rate in p.rates:
                yield {"part": part, "arm": arm, "seed": seed, "rate": rate, "split": "valid"}
    best = choose_rates(part, analysis.read_rows(results))
    for seed in p.seeds:
        for arm in p.arms:
            yield {"part": part, "arm": arm, "seed": seed, "rate": best[arm], "split": "test"}


def choose_rates(part, rows):
    """{arm: the rate with the highest mean avg@8 after the last step, on the grid's seeds}"""
    p = PARTS[part]
    if not p.grid:
        return dict.fromkeys(p.arms, p.rates[0])
    last = str(max(p.points))
    rows = [{**row, "avg@4": row["avg@8"][last]} for row in rows
            if row["part"] == part and row["split"] == "valid"]
    return analysis.best_rates(rows)


def run(results, parts):
    """Append a row for each job of which the file has none."""
    for part in parts:
        for job in jobs_of(part, results):
            if signal.is_done(analysis.read_rows(results), **job):
                continue
            started = time.process_time()
            row = {**job, **train_arm(**job), "commit": name_commit(),
                   "date": str(datetime.date.today()),
                   "cpu_seconds": round(time.process_time() - started, 1)}
            with open(results, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(time.strftime("%H:%M:%S"), *job.values(), row["avg@8"], flush=True)


# ---- What the rows say ----

def counted(rows, part, arm):
    """{seed: row} of the counted runs."""
    return {row["seed"]: row for row in rows
            if row["part"] == part and row["arm"] == arm and row["split"] == "test"}


def compare(rows, part, arm, other, step):
    """avg@8 of one arm minus another's, of each seed that has both."""
    ours, theirs = counted(rows, part, arm), counted(rows, part, other)
    return [ours[seed]["avg@8"][str(step)] - theirs[seed]["avg@8"][str(step)]
            for seed in sorted(ours.keys() & theirs.keys())]


def judge(values):
    """Where a 95% confidence interval lies."""
    _, low, high = analysis.interval(values)
    return "above 0" if low > 0 else "below 0" if high < 0 else "contains 0"


def show(rows):
    """Means of GRPO, and every arm minus GRPO, after each point."""
    for part, p in PARTS.items():
        base = counted(rows, part, "GRPO").values()
        if len(base) < 2:
            continue
        print(f"{part}: {p.task}, {len(base)} seeds, rates {choose_rates(part, rows)}; before "
              f"RL {statistics.fmean(row['before'] for row in base):.4f}")
        for step in p.points:
            level = statistics.fmean(row["avg@8"][str(step)] for row in base)
            print(f"  after {step} steps GRPO has {level:.4f}")
            for arm in p.arms:
                values = compare(rows, part, arm, "GRPO", step)
                if arm != "GRPO" and len(values) > 1:
                    average, low, high = analysis.interval(values)
                    print(f"    {arm}: {average:+.4f} [{low:+.4f}, {high:+.4f}] "
                          f"{judge(values)}, {len(values)} seeds")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--results", type=pathlib.Path, default=analysis.RESULTS / "when.jsonl")
    args = parser.parse_args()
    models.hide_bars()
    torch.set_num_threads(1)
    if args.what == "run":
        run(args.results, args.parts)
    show(analysis.read_rows(args.results))


if __name__ == "__main__":
    main()
