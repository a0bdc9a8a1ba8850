"""Are a tiny model's answers right for the right reasons? The runs of the rule `reasons`.

    python -m experiments.reasons            makes the rows that are missing in results/reasons.jsonl
    python -m experiments.reasons A 4600     makes one row and prints it

The rule is in results/rules.md.
"""
import concurrent.futures
import functools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from statistics import fmean as mean

import grpo_sg
from experiments.compare import RESULTS, ROOT, append_rows, interval, name_commit, read_rows
from lesson.reasons import find_fault, read_thoughts
from support import tiny

ROWS = RESULTS / "reasons.jsonl"
# model -> steps of supervised fine-tuning, and whether 60% of the texts are shortcuts
RECIPES = {"A": (500, True), "B": (500, False), "C": (200, False)}
JOBS = [(model, seed) for seed in range(4600, 4612) for model in RECIPES]
JOBS += [("C", seed) for seed in range(4612, 4624)]
FAULTS = "step missing", "combination lost", "one too many", "both", "other text"
WORKERS = 2
SAMPLES = 32
make_task = tiny.make_task


# ---- Runs ----

def make_task_with(planted, cfg):
    task = make_task(cfg)
    return task if planted else task._replace(shortcuts=0.0)


def make_model(model, seed, folder):
    """Make a tiny model by the recipe of support.tiny, with the shipped model's settings."""
    steps, planted = RECIPES[model]
    tiny.make_task = functools.partial(make_task_with, planted)
    cfg = tiny.read_settings("kk", "", folder, [f"--seed={seed}"])
    policy = tiny.train(cfg, {**tiny.NEW, "steps": steps}, new=True)
    tiny.save(policy, cfg, folder)
    shutil.copy(ROOT / "support/pretrained/kk/settings.json", folder)


def measure(model, seed):
    """Return what the rule names, of a model or of a run's newest checkpoint."""
    cfg = grpo_sg.read_settings([f"--model={model}", f"--seed={seed}", "--eval_only"])
    policy, task = grpo_sg.load(cfg)
    greedy = grpo_sg.rollout(policy, task, task.test, cfg, n=1, temperature=0, seed=cfg.seed)
    drawn = grpo_sg.rollout(policy, task, task.test, cfg, n=SAMPLES, temperature=cfg.temperature,
                            seed=cfg.seed)
    faults = [find_fault(c.response, c.problem.solution) for c in drawn]
    right = [c.solved for c in drawn]
    proved = [c.solved and fault is None for c, fault in zip(drawn, faults)]
    whole = [ok and read_thoughts(c.response).count(":") == len(c.problem.answer)
             for c, ok in zip(drawn, proved)]
    found = Counter(fault for c, fault in zip(drawn, faults) if c.solved and fault)
    unproved = found.total()
    return {"greedy, answers": mean(c.solved for c in greedy),
            "greedy, reasons": mean(c.solved and find_fault(c.response, c.problem.solution) is None
                                    for c in greedy),
            **average("answers", right), **average("reasons", proved),
            "avg@32, reasons in all three steps": mean(whole),
            "share without reasons": unproved / max(1, sum(right)),
            "right reasons, wrong answer": mean(not c.solved and c.formatted and fault is None
                                                for c, fault in zip(drawn, faults)),
            **{fault: found[fault] / max(1, unproved) for fault in FAULTS}}


def average(name, right):
    """Return avg@32, pass@4 and pass@16 of the samples, given in groups of 32."""
    counts = [sum(group) for group in grpo_sg.split_groups(right, SAMPLES)]
    return {f"avg@32, {name}": mean(right),
            **{f"pass@{k}, {name}": mean(grpo_sg.pass_at_k(SAMPLES, count, k) for count in counts)
               for k in (4, 16)}}


def make_row(model, seed):
    """Make the model, test it, train it by RL as a user would, and test it again."""
    with tempfile.TemporaryDirectory() as place:
        folder, out = os.path.join(place, "model"), os.path.join(place, "run")
        make_model(model, seed, folder)
        before = measure(folder, seed)
        made = time.process_time()
        subprocess.run([sys.executable, "grpo_sg.py", f"--model={folder}", f"--seed={seed}",
                        "--eval_samples=0", f"--out={out}"], cwd=ROOT, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ran = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {"model": model, "seed": seed, "commit": name_commit(),
                "cpu_seconds": round(made + ran.ru_utime + ran.ru_stime, 1),
                "finished": time.strftime("%Y-%m-%dT%H:%M:%S"),
                "before": before, "after": measure(out, seed)}


def make_row_in_child(job):
    """Make a row in a process of its own."""
    words = [sys.executable, "-m", "experiments.reasons", *map(str, job)]
    made = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return json.loads(made.stdout.splitlines()[-1])


def main():
    grpo_sg.transformers.utils.logging.disable_progress_bar()
    if len(sys.argv) > 1:
        print(json.dumps(make_row(sys.argv[1], int(sys.argv[2]))))
        return
    done = {(row["model"], row["seed"]) for row in read_rows(ROWS)}
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        for row in pool.map(make_row_in_child, [job for job in JOBS if job not in done]):
            append_rows(ROWS, [row])


# ---- What the rows say ----

def select_reasons(model):
    """Return {seed: row} of a model. Of the seeds 4600 to 4611, those count that have all three
    models."""
    rows = {(row["model"], row["seed"]): row for row in read_rows(ROWS)}
    whole = {seed for _, seed in rows
             if seed > 4611 or all((each, seed) in rows for each in RECIPES)}
    return {seed: row for (each, seed), row in rows.items() if each == model and seed in whole}


def subtract_tests(model, key):
    """Return the differences of a measure, after RL minus before, one for each seed."""
    return [row["after"][key] - row["before"][key] for row in select_reasons(model).values()]


def judge(differences, above, below, small=None):
    """Return the words of an outcome; small: those for an interval below +0.02."""
    if len(differences) < 8:
        return "no words: fewer than eight seeds"
    _, low, high = interval(differences)
    if low > 0:
        return above
    if high < 0:
        return below
    return small if small and high < 0.02 else "we can't tell"


def list_outcomes():
    """Yield the outcomes of the rule, and all that was measured."""
    gain = "more right reasons", "fewer", "no gain above 0.02"
    verdicts = [("C", "avg@32, reasons", gain), ("A", "avg@32, reasons", gain),
                ("B", "avg@32, reasons", gain),
                ("C", "pass@16, reasons", ("solves more in 16 tries", "solves fewer",
                                           "no gain above 0.02")),
                ("C", "share without reasons", ("a larger share", "a smaller share"))]
    for number, (model, key, words) in enumerate(verdicts, 1):
        differences = subtract_tests(model, key)
        yield (f"reasons, outcome {number}: {model}, {key}: {describe(model, key)}, "
               f"{len(differences)} seeds: {judge(differences, *words)}")
    for model in RECIPES:
        for key in next(iter(select_reasons(model).values()))["before"]:
            yield f"reasons, {model}, {key}: {describe(model, key)}"
    after = select_reasons("A")
    for model in ("B", "C"):
        before = select_reasons(model)
        gap = [before[seed]["before"]["avg@32, reasons"] - row["after"]["avg@32, reasons"]
               for seed, row in after.items()]
        yield "reasons, {} before minus A after, avg@32: {:+.3f} [{:+.3f}, {:+.3f}]".format(
            model, *interval(gap))


def describe(model, key):
    """Return the levels before and after RL, and their difference with its interval."""
    rows = select_reasons(model).values()
    before, after = (mean(row[when][key] for row in rows) for when in ("before", "after"))
    return "{:.3f} -> {:.3f}, {:+.4f} [{:+.4f}, {:+.4f}]".format(
        before, after, *interval(subtract_tests(model, key)))


if __name__ == "__main__":
    main()
