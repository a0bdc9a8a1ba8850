"""Which tests notice? Make each of the five breaks of lesson/README.md in a copy, and test it.

    python -m lesson.five_breaks         minutes; --only 3 makes the third alone

Prints, for each break, the tests of test_grpo_sg.py that fail; what the unbroken copy fails is
left out. lesson/results/five_breaks.txt is what was printed; a test holds the page to it.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# (what it is, the function, what stands there, what is put there)
BREAKS = [
    ("the mask by value", "make_batch",
     "mask.append([False] * len(c.prompt) + c.mask + [False] * pads)",
     "mask.append([False] * len(c.prompt) + [token != 0 for token in c.tokens] "
     "+ [False] * pads)"),
    ("the weight inside the clip", "grpo_sg_loss",
     "objective = w * torch.minimum(r * A, clipped * A)",
     "objective = torch.minimum(w * r * A, (w * r).clamp(1 - clip_low, 1 + clip_high) * A)"),
    ("a temperature that differs", "token_logps",
     "logits = output.logits.float() / temperature", "logits = output.logits.float()"),
    ("local denominators", "update",
     "loss_agg_mode=cfg.loss_agg_mode, denominator=denominator)",
     "loss_agg_mode=cfg.loss_agg_mode)"),
    ("the last token's mask", "make_batch",
     "mask.append([False] * len(c.prompt) + c.mask + [False] * pads)",
     "mask.append([False] * len(c.prompt) + c.mask[:-1] + [False] + [False] * pads)"),
]


def replace_in(code, old, new):
    """The code with the break: what it replaces must stand there once."""
    if code.count(old) != 1:
        raise ValueError(f"{code.count(old)} times in grpo_sg.py: {old}")
    return code.replace(old, new)


def find_failures(folder):
    """{test: which of its cases fail} in the folder's test_grpo_sg.py."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p",
               "no:cacheprovider", "test_grpo_sg.py"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("OF", None)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode > 1:
        sys.exit(f"the tests did not run:\n{done.stdout}{done.stderr}")
    failures = {}
    for name, case in re.findall(r"^(?:FAILED|ERROR) [^:]+::(\w+)(\[.*?\])?(?: - |$)",
                                 done.stdout, re.M):
        failures.setdefault(name, []).append(case)
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
        print("unbroken", flush=True)
        usual = find_failures(folder)
        for number, (title, function, old, new) in enumerate(BREAKS, 1):
            if only not in (None, number):
                continue
            print(f"{number}. {title}, in {function}", flush=True)
            broken = replace_in(code, old, new)
            (folder / "grpo_sg.py").write_text(broken, encoding="utf-8")
            for name, cases in find_failures(folder).items():
                if name not in usual:
                    print("   ", name, *filter(None, cases), flush=True)


if __name__ == "__main__":
    main()
