"""What does RL add to a tiny model without a planted habit? The runs of the rule `added`.

    python -m experiments.added            results/added.jsonl: 77 minutes of one core

The rule is in results/rules.md. A command that was stopped makes the missing rows.
"""
import functools
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from statistics import fmean as mean

import grpo_sg
from experiments.compare import RESULTS, ROOT, append_rows, name_commit, read_rows
from support import tiny

ROWS = RESULTS / "added.jsonl"
SEEDS = range(4500, 4512)
# task and model -> steps of supervised fine-tuning, and whether shortcuts are planted
RECIPES = {("kk", "A"): (500, True), ("kk", "B"): (500, False), ("kk", "C"): (200, False),
           ("math", "A"): (320, True), ("math", "B"): (320, False), ("math", "C"): (135, False)}
MEASURED = ("accuracy", "format_rate", "avg@32", "format_rate@32", "truncated@32",
            "equal_groups@32", "pass@2", "pass@4", "pass@8", "pass@16", "pass@32")
make_task = tiny.make_task


def make_task_with(planted, cfg):
    task = make_task(cfg)
    return task if planted else task._replace(shortcuts=0.0)


def make_model(task, seed, steps, planted, folder):
    """Make a tiny model by the recipe of support.tiny, with the shipped model's settings. Returns
    the CPU seconds."""
    started = time.process_time()
    tiny.make_task = functools.partial(make_task_with, planted)
    cfg = tiny.read_settings(task, "", folder, [f"--seed={seed}"])
    policy = tiny.train(cfg, {**tiny.NEW, "steps": steps}, new=True)
    tiny.save(policy, cfg, folder)
    shutil.copy(ROOT / "support/pretrained" / task / "settings.json", folder)
    return time.process_time() - started


def run(folder, out, seed):
    """Test the model, train it and test it again, as a user would. Returns the CPU seconds."""
    started = time_children()
    subprocess.run([sys.executable, "grpo_sg.py", f"--model={folder}", f"--seed={seed}",
                    "--eval_samples=32", f"--out={out}"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time_children() - started


def time_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def names_all(sample):
    """Return whether the thoughts of a puzzle's completion name everybody."""
    thoughts = sample["completion"].partition("</think>")[0]
    return all(re.search(rf"\b{name}\b", thoughts) for name in sample["answer"])


def read_test(out, task, at):
    """Return what is measured of a run's first test (at = 0) or its last one (at = -1)."""
    row = [row for row in read_rows(out / "metrics.jsonl") if row.get("split") == "test"][at]
    found = {key: row[f"eval/{key}"] for key in MEASURED}
    if task == "kk":
        samples = [each for each in read_rows(out / "samples.jsonl")
                   if each["split"] == "test" and each["step"] == row["step"]]
        found["names all"] = mean(names_all(each) for each in samples)
    return found


def main():
    done = {(row["task"], row["model"], row["seed"]) for row in read_rows(ROWS)}
    for seed in SEEDS:
        for (task, model), (steps, planted) in RECIPES.items():
            if (task, model, seed) in done:
                continue
            with tempfile.TemporaryDirectory() as place:
                folder, out = os.path.join(place, "model"), pathlib.Path(place, "run")
                made = make_model(task, seed, steps, planted, folder)
                ran = run(folder, out, seed)
                append_rows(ROWS, [{
                    "task": task, "model": model, "seed": seed, "commit": name_commit(),
                    "fine_tuning_cpu_seconds": round(made, 1), "run_cpu_seconds": round(ran, 1),
                    "before": read_test(out, task, 0), "after": read_test(out, task, -1)}])


if __name__ == "__main__":
    grpo_sg.transformers.utils.logging.disable_progress_bar()
    main()
