"""Four common mistakes compared with the correct version: which cost accuracy, and where?

    python -m lesson.breaks                       all four, one seed: two minutes on one core
    python -m lesson.breaks inside --seeds 8      one of them, with the seeds 0 to 7
    python -m lesson.breaks --default             in the default run, where the effects are small

    inside       the weight w inside the clip: min(w r A, clip(w r) A)
    stop         a mask by value, `ids != pad`, which leaves out the stop token
    temperature  log-probabilities at 0.6 of tokens that were drawn at 1
    tau          tau = 9: every weight is 1, which is plain GRPO

Each changes one thing. Nothing fails, and all runs look healthy. The settings are those of
experiments/README.md, "Four common mistakes": puzzles of three people; a warm-up of 100 steps
instead of the default 500, so the policy is still unsure; 40 steps of 16 prompts with 8 updates,
at a learning rate of 1e-4. With eight seeds one of the four cost accuracy there; the results of
these seeds are printed below yours. Predict before you run it: which one?
"""
import argparse
import contextlib
import copy
import dataclasses
import os
import sys
from statistics import fmean
from unittest import mock

import torch

# The project's folder, because a script sees only its own.
sys.path.append(os.path.abspath("." if os.path.exists("grpo_sg.py") else ".."))
import grpo_sg
from support import cli, tiny
from support.run import Run

REGIME = dict(steps=40, prompts=16, updates=8, lr=1e-4)
WARMUP = 100  # steps
BLOCKS = " ▁▂▃▄▅▆▇█"

# Kept from before any of them is replaced.
right_loss, right_batch = grpo_sg.grpo_sg_loss, grpo_sg.make_batch
right_logps = grpo_sg.compute_logps


# ---- The mistakes: each replaces a function of grpo_sg ----

def loss_with_w_inside(logps, old_logps, advantages, mask, *, weights, **more):
    """Pass w r = exp(log pi + log w - log pi_old) to the unchanged loss as its ratio."""
    return right_loss(logps + weights.log(), old_logps, advantages, mask, **more)


def batch_without_stop(completions, device):
    batch = right_batch(completions, device)
    batch["mask"] &= batch["ids"] != 0  # the tiny model's pad, and its stop token
    return batch


def logps_at_another_temperature(model, batch, cfg):
    return right_logps(model, batch, dataclasses.replace(cfg, temperature=0.6))


# name -> (what is put into grpo_sg, settings that differ)
BREAKS = {
    "right": ({}, {}),
    "inside": ({"grpo_sg_loss": loss_with_w_inside}, {}),
    "stop": ({"make_batch": batch_without_stop}, {}),
    "temperature": ({"compute_logps": logps_at_another_temperature}, {}),
    "tau": ({}, {"tau": 9.0}),
}
# avg@4 minus the right version's, with 95% confidence intervals over eight paired seeds in this
# regime: experiments/results/mistakes.jsonl, by `python -m experiments.run mistakes`.
MEASURED = {
    "inside": "-0.152 [-0.196, -0.108]",
    "stop": "+0.004 [-0.006, +0.015]",
    "temperature": "+0.006 [-0.010, +0.021]",
    "tau": "+0.008 [-0.008, +0.024]",
}


# ---- Runs ----

def start_policy(seed, default):
    """Return (policy, task, cfg) after a short warm-up, or as the default run starts."""
    settings = {} if default else {**REGIME, "warm_up": True}
    cfg = cli.parse([], seed=seed, **settings)
    cfg.eval_every = cfg.steps  # no validation, which takes time and is not needed here
    policy, task, _ = cli.load(cfg)
    if not default:
        task = task._replace(warmup=WARMUP)
        tiny.warm_up(policy, task, cfg)
    return policy, task, cfg


def test(policy, task, cfg):
    """Return (avg@4, greedy accuracy) on the test problems."""
    row, _ = grpo_sg.evaluate(policy, task, task.test, cfg, samples=4)
    return row["eval/avg@4"], row["eval/accuracy"]


def train(name, policy, task, cfg):
    """Train a copy with the mistake. Returns (avg@4, greedy accuracy, one row per step)."""
    patches, settings = BREAKS[name]
    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    run = Run(dataclasses.replace(cfg, **settings))
    with contextlib.ExitStack() as stack:
        for function, mistake in patches.items():
            stack.enter_context(mock.patch.object(grpo_sg, function, mistake))
        grpo_sg.train(policy, task, run.cfg, run)
    return *test(policy, task, cfg), run.rows


def tell(name, found, right):
    """Print the mistake's line: means over the seeds."""
    curves = torch.tensor([[row["accuracy"] for row in rows] for _, _, rows in found])
    every = max(1, curves.shape[1] // 20)  # steps in a bar
    means = curves.mean(0)[:20 * every].view(-1, every).mean(1)
    bars = "".join(BLOCKS[int(8.99 * x)] for x in means.tolist())
    largest = fmean(max(row["grad_norm"] for row in rows) for _, _, rows in found)
    line = (f"{name:11} |{bars}| avg@4 {fmean(x[0] for x in found):.3f}, greedy "
            f"{fmean(x[1] for x in found):.3f}, largest gradient {largest:4.1f}")
    if name != "right":
        differences = torch.tensor([mine[0] - theirs[0] for mine, theirs in zip(found, right)])
        line += f"; avg@4 minus right {differences.mean():+.3f}"
        if len(differences) > 1:
            line += f" ± {differences.std() / len(differences) ** 0.5:.3f}"
    print(line, flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m lesson.breaks",
        description="Common mistakes compared with the right version.")
    mistakes = list(MEASURED)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(mistakes))
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many, from 0 on")
    parser.add_argument("--default", action="store_true",
                        help="with the settings of `python grpo_sg.py`")
    given = parser.parse_args(argv)
    unknown = [name for name in given.names if name not in MEASURED]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}: give some of {', '.join(mistakes)}")
    if given.seeds < 1:
        parser.error("at least one seed is needed: --seeds 1")
    names = ["right", *(given.names or mistakes)]
    found = {name: [] for name in names}
    before = []
    for seed in range(given.seeds):
        start = start_policy(seed, given.default)
        before.append(test(*start))
        for name in names:
            print(f"seed {seed}, {name}", flush=True)
            found[name].append(train(name, *start))
    print(f"\nA bar is the accuracy of training's completions, over the steps. Before: avg@4 "
          f"{fmean(x[0] for x in before):.3f}, greedy {fmean(x[1] for x in before):.3f}")
    for name in names:
        tell(name, found[name], found["right"])
    if not given.default:
        for name in names[1:]:
            print(f"{name}: eight seeds gave {MEASURED[name]}")


if __name__ == "__main__":
    main()
