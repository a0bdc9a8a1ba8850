"""Which tests notice? Make each of the five breaks of lesson/README.md in a copy, and test it.

    python -m lesson.five_breaks --only 3     only the third; minutes for all

Predict first: what will happen, and which test catches it? For each break, prints the tests of
test_grpo_sg.py that fail, what test_an_update_is_one_plain_step says, and what the break does.
Tests that the unbroken copy fails are left out. lesson/results/five_breaks.txt has the tests and
messages that were printed.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
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
     "(lesson/breaks.py)."),
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


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", type=int, choices=range(1, len(BREAKS) + 1))
    only = parser.parse_args(argv).only
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "copy"
        ignored = shutil.ignore_patterns(".git", "__pycache__", "runs")
        shutil.copytree(ROOT, folder, ignore=ignored)
        code = (folder / "grpo_sg.py").read_text(encoding="utf-8")
        print("the copy, unbroken: a minute, as for each break", flush=True)
        usual = find_failures(folder)
        for number, (title, function, old, new, effect) in enumerate(BREAKS, 1):
            if only not in (None, number):
                continue
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


if __name__ == "__main__":
    main()
