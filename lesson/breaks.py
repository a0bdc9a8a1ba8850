"""Common mistakes compared with the right version: which tests notice, and which cost accuracy?

    python -m lesson.breaks 3                     which tests notice break 3: two minutes
    python -m lesson.breaks inside                what does a mistake cost? one seed, a minute
    python -m lesson.breaks inside --seeds 8      the same with the seeds 0 to 7
    python -m lesson.breaks inside --default      in the default run, where effects are small

The breaks 1 to 5 are those of lesson/README.md. Each is made in a copy of the project. The script
lists the tests of test_grpo_sg.py that fail only then, what test_an_update_is_one_plain_step says,
and what the break does. lesson/results/five_breaks.txt has what all five printed.

Four mistakes can be measured (without a name: all of them):

    inside       the weight w inside the clip: min(w r A, clip(w r) A)
    stop         a mask by value, `ids != pad`, which leaves out the stop token
    temperature  log-probabilities at 0.6 of tokens that were drawn at 1
    tau          tau = 9: every weight is 1, which is plain GRPO

Each changes one thing. Nothing fails, and all runs look healthy. The settings are those of
experiments/README.md, "Four common mistakes": puzzles of three people; a warm-up of 100 steps
instead of the default 500, so the policy is still unsure; 40 steps of 16 prompts with 8 updates,
at a learning rate of 1e-4. One of the four cost accuracy there with eight seeds, whose results are
printed below yours. Predict which.
"""
import argparse
import contextlib
import copy
import dataclasses
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from statistics import fmean
from unittest import mock

import torch

# The project's folder, because a script sees only its own.
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
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
    batch.mask &= batch.ids != 0  # the tiny model's pad, and its stop token
    return batch


def logps_at_another_temperature(model, batch, cfg):
    return right_logps(model, batch, dataclasses.replace(cfg, temperature=0.6))


# name -> (what is put into grpo_sg, settings that differ)
MISTAKES = {
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


# ---- What a mistake costs ----

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
    patches, settings = MISTAKES[name]
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


def measure(mistakes, seeds, default):
    """Train with and without each mistake, and print what it costs."""
    names = ["right", *mistakes]
    found = {name: [] for name in names}
    before = []
    for seed in range(seeds):
        start = start_policy(seed, default)
        before.append(test(*start))
        for name in names:
            print(f"seed {seed}, {name}", flush=True)
            found[name].append(train(name, *start))
    print(f"\nA bar is the accuracy of training's completions, over the steps. Before: avg@4 "
          f"{fmean(x[0] for x in before):.3f}, greedy {fmean(x[1] for x in before):.3f}")
    for name in names:
        tell(name, found[name], found["right"])
    if not default:
        for name in mistakes:
            print(f"{name}: eight seeds gave {MEASURED[name]}")


# ---- Which tests notice ----

PLAIN_STEP = "test_an_update_is_one_plain_step"
# (what it is, the function, the right code, what replaces it, what it does)
BREAKS = [
    ("the mask by value", "make_batch",
     "mask.append([False] * len(c.prompt) + c.mask + [False] * pads)",
     "mask.append([False] * len(c.prompt) + [token != 0 for token in c.tokens] "
     "+ [False] * pads)",
     "0 is the tiny model's pad and also its stop token, as in many models. So the stop token "
     "is never trained, and nothing tells the policy whether it stopped too early. A model with "
     "a separate pad token hides the mistake, which is why many projects still have it. The "
     "mask also calls a tool's answer the policy's own."),
    ("the weight inside the clip", "grpo_sg_loss",
     "objective = w * torch.minimum(r * A, clipped * A)",
     "objective = torch.minimum(w * r * A, (w * r).clamp(1 - clip_low, 1 + clip_high) * A)",
     "At r = 1 a likely token has w r = 1.4, above 1 + clip_high. With A > 0 the minimum is "
     "the clipped side, a constant: no gradient, from the first update on. With A < 0 it is "
     "the other side, and the gradient stays. So likely tokens are punished and never "
     "rewarded. Of the measured mistakes it is the one that cost accuracy "
     "(`python -m lesson.breaks inside`)."),
    ("a temperature that differs", "token_logps",
     "logits = output.logits.float() / temperature", "logits = output.logits.float()",
     "The default run does not change, because the tiny model's temperature is 1. At a real "
     "model's 0.7, all log-probabilities belong to another distribution than the sampled one, "
     "and the gradient is biased. The ratio does not show it, because old and new ones are "
     "equally wrong: r is still 1 in the first update. The tests that see it use temperature "
     "0.7."),
    ("local denominators", "update",
     "loss_agg_mode=cfg.loss_agg_mode, denominator=denominator)",
     "loss_agg_mode=cfg.loss_agg_mode)",
     "Each micro-batch is divided by its own number of tokens, and their gradients are added. "
     "With ten of them the gradient is about ten times as large, tokens in a micro-batch of "
     "short completions count more than others, and the result depends on how much memory there "
     "is. With a single micro-batch nothing changes."),
    ("the last token's mask", "make_batch",
     "mask.append([False] * len(c.prompt) + c.mask + [False] * pads)",
     "mask.append([False] * len(c.prompt) + c.mask[:-1] + [False] + [False] * pads)",
     "As in the first break, the stop token is never trained, here with any pad token. A "
     "completion that was cut off loses an ordinary token."),
]


def replace_in(code, old, new):
    """Replace old, which must occur exactly once in the code. Raises ValueError otherwise."""
    if code.count(old) != 1:
        raise ValueError(f"{code.count(old)} times in grpo_sg.py: {old}")
    return code.replace(old, new)


def find_failures(folder):
    """Run the folder's test_grpo_sg.py. Returns {test: [(failed case, its message)]}."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p",
               "no:cacheprovider", "test_grpo_sg.py"]
    # pytest cuts its messages to the number of columns.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "2000"}
    env.pop("OF", None)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode > 1:
        sys.exit(f"the tests did not run:\n{done.stdout}{done.stderr}")
    failures = {}
    for name, case, message in re.findall(
            r"^(?:FAILED|ERROR) [^:]+::(\w+)(\[.*?\])?(?: - (.*))?$", done.stdout, re.M):
        failures.setdefault(name, []).append((case, message))
    return failures


def find_tests(numbers):
    """Make each of these breaks in a copy of the project, and print the tests that notice."""
    if not importlib.util.find_spec("pytest"):
        sys.exit("pytest is not installed: pip install pytest")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "copy"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", "__pycache__", "runs"))
        code = (folder / "grpo_sg.py").read_text(encoding="utf-8")
        print("the copy, unbroken: a minute, as for each break", flush=True)
        usual = find_failures(folder)
        for number in numbers:
            title, function, old, new, effect = BREAKS[number - 1]
            print(f"{number}. {title}, in {function}", flush=True)
            broken = replace_in(code, old, new)
            (folder / "grpo_sg.py").write_text(broken, encoding="utf-8")
            failures = find_failures(folder)
            for name, cases in failures.items():
                if name not in usual:
                    print("   ", name, *(case for case, _ in cases if case), flush=True)
            for _, message in failures.get(PLAIN_STEP, [])[:1]:
                print(textwrap.fill(message, 80, initial_indent="  > ", subsequent_indent="  > "))
            print(textwrap.indent(textwrap.fill(effect, 80), "    "), "\n", sep="", flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m lesson.breaks",
        description="Common mistakes compared with the right version.")
    numbers = [str(number) for number in range(1, len(BREAKS) + 1)]
    mistakes = list(MEASURED)
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help=f"{', '.join(mistakes)}; or breaks, 1 to {len(BREAKS)}")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many, from 0 on")
    parser.add_argument("--default", action="store_true",
                        help="with the settings of `python grpo_sg.py`")
    given = parser.parse_args(argv)
    unknown = [name for name in given.names if name not in mistakes + numbers]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}: give some of {', '.join(mistakes)}, to see what "
                     f"they cost, or of 1 to {len(BREAKS)}, to see which tests notice")
    if given.seeds < 1:
        parser.error("at least one seed is needed: --seeds 1")
    breaks = [int(name) for name in given.names if name in numbers]
    names = [name for name in given.names if name in mistakes]
    try:
        if breaks:
            find_tests(breaks)
        if names or not breaks:
            measure(names or mistakes, given.seeds, given.default)
    except KeyboardInterrupt:
        sys.exit("interrupted")


if __name__ == "__main__":
    main()
