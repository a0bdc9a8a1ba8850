"""Common bugs compared with the right version: which tests notice, and what does one cost?

    python -m lesson.breaks 3                     which tests notice bug 3: a minute or two
    python -m lesson.breaks inside                what does bug 2 cost? one seed, a minute
    python -m lesson.breaks inside --seeds 8      the same with the seeds 0 to 7

The bugs 1 to 5 are those of lesson/README.md. Each is made in a copy of the project. The script
lists the tests of test_grpo_sg.py that fail only then, what test_an_update_is_one_plain_step says,
and what the bug does. lesson/results/five_breaks.txt has what all five printed.

`inside` trains with and without bug 2, the weight w inside the clip: min(w r A, clip(w r) A).
Nothing fails, and both runs look healthy. The settings are those of experiments/README.md, "One
variant and three mistakes": puzzles of three people; a warm-up of 100 steps instead of the default
500, so the policy is still unsure; 40 steps of 16 prompts with 8 updates, at a learning rate of
1e-4. The last line is what eight seeds gave there, with texts without the words after the names.
"""
import argparse
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
from unittest import mock

import torch

# The project's folder, because a script sees only its own.
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
import grpo_sg
from support import tiny

# eval_every: no validation, which takes time and is not needed here.
REGIME = "--steps 40 --prompts 16 --updates 8 --lr 1e-4 --eval_every 40".split()
WARMUP = 100  # steps
# avg@4 minus the right version's, with a 95% confidence interval over eight paired seeds:
# experiments/results/mistakes.jsonl.
MEASURED = "-0.152 [-0.196, -0.108]"
right_loss = grpo_sg.grpo_sg_loss  # kept from before it is replaced


# ---- What a bug costs ----

def loss_with_w_inside(logps, old_logps, advantages, mask, *, weights, **settings):
    """Pass w r = exp(log pi + log w - log pi_old) to the unchanged loss as its ratio."""
    return right_loss(logps + weights.log(), old_logps, advantages, mask, **settings)


def start_policy(seed):
    """Return (policy, task, cfg): a tiny model after a short warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.main(["kk", f"--steps={WARMUP}", f"--seed={seed}", f"--out={folder}"])
        cfg = grpo_sg.read_settings(["--model", folder, "--seed", str(seed), *REGIME])
        policy, task = grpo_sg.load(cfg)
    return policy, task, cfg


def test(policy, task, cfg):
    """Return avg@4 on the test problems."""
    row, _ = grpo_sg.evaluate(policy, task, task.test, cfg, samples=4)
    return row["eval/avg@4"]


def train(loss, policy, task, cfg):
    """Train a copy of the policy with this loss. Returns (its avg@4, one row per step)."""
    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    with mock.patch.object(grpo_sg, "grpo_sg_loss", loss):
        rows = grpo_sg.train(policy, task, cfg)
    return test(policy, task, cfg), rows


def measure(seeds):
    """Train with and without w inside the clip, and print what it costs."""
    differences = []
    for seed in range(seeds):
        start = start_policy(seed)
        print(f"seed {seed}: avg@4 before training {test(*start):.3f}", flush=True)
        right, _ = train(right_loss, *start)
        inside, _ = train(loss_with_w_inside, *start)
        differences.append(inside - right)
        print(f"seed {seed}: avg@4 {right:.3f}; with w inside the clip {inside:.3f}, "
              f"{inside - right:+.3f}", flush=True)
    differences = torch.tensor(differences)
    if seeds > 1:
        print(f"mean of the differences {differences.mean():+.3f} ± "
              f"{differences.std() / seeds ** 0.5:.3f}")
    print(f"eight seeds gave {MEASURED}")


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
     "a separate pad token hides the bug, which is why many projects still have it. The "
     "mask also calls a tool's answer the policy's own."),
    ("the weight inside the clip", "grpo_sg_loss",
     "objective = w * torch.minimum(r * A, clipped * A)",
     "objective = torch.minimum(w * r * A, (w * r).clamp(1 - clip_low, 1 + clip_high) * A)",
     "At r = 1 a likely token has w r = 1.4, above 1 + clip_high. With A > 0 the minimum is "
     "the clipped side, a constant: no gradient, from the first update on. With A < 0 it is "
     "the other side, and the gradient stays. So likely tokens are punished and never "
     "rewarded. Of the bugs that we measured it is the one that cost accuracy "
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
     "As in bug 1, the stop token is never trained, here with any pad token. A "
     "truncated completion loses an ordinary token."),
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
        description="Common bugs compared with the right version.")
    numbers = [str(number) for number in range(1, len(BREAKS) + 1)]
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"1 to {len(BREAKS)}, or inside")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many, from 0 on")
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in [*numbers, "inside"]]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}: give some of 1 to {len(BREAKS)}, to see which "
                     "tests notice, or inside, to see what bug 2 costs")
    if args.seeds < 1:
        parser.error("at least one seed is needed: --seeds 1")
    breaks = [int(name) for name in args.names if name in numbers]
    try:
        if breaks:
            find_tests(breaks)
        if "inside" in args.names:
            measure(args.seeds)
    except KeyboardInterrupt:
        sys.exit("interrupted")


if __name__ == "__main__":
    main()
