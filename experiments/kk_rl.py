"""Does RL improve a real model on Knights and Knaves? results/kk_rl_rule.txt has the rule.

    git worktree add ../kk_rl b32b338
    cp experiments/kk_rl.py experiments/share_prompts.py ../kk_rl/experiments/ && cd ../kk_rl
    python -m experiments.kk_rl COLD RUNS ROWS [LR:SEED:STEPS ...]

COLD is the folder of the model after its cold start, RUNS a folder for the runs, and ROWS the file
of the results, which is written again after each part. Each run goes on to its number of steps,
and is tested there. The runs are those of the rule unless others are named. SIGTERM lets the
current run save. The same command continues.
"""
import json
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import grpo_sg
from experiments.analysis import read_rows

ORDER = "5e-5:0:200", "2e-5:0:200", "5e-5:1:200", "2e-5:1:200"  # learning rate, seed, steps
FLAGS = ("--people 3 --temperature 1 --updates 2 --prompts 8 --group_size 8 "
         "--eval_every 20 --eval_samples 0").split()
SAMPLES = 8
STEP = ("step accuracy reward format_rate truncated completion_tokens equal_groups entropy "
        "clip_frac kl grad_norm weight_mean low_prob_frac seconds_sampling seconds_update").split()


def make_run(cold, folder, lr, seed, steps):
    """Train until a step, or continue the run in its folder."""
    words = [sys.executable, "-m", "experiments.share_prompts", "--out", str(folder),
             "--steps", steps]
    if grpo_sg.find_checkpoint(str(folder)):
        words.append("--resume")
    else:
        words += ["--model", cold, *FLAGS, "--lr", lr, "--seed", seed]
    with open(f"{folder}.log", "a", encoding="utf-8") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.terminate()  # it finishes its step and saves
            process.wait()
            raise
    if status:
        raise SystemExit(f"error: the run in {folder} failed; see {folder}.log")


def test(folder, path):
    """Test a model on all puzzles of three people in the test split, and write the results of
    each to the file. The puzzles and the random numbers are those of seed 0."""
    flags = f"--people 3 --temperature 1 --seed 0 --eval_only --eval_problems 1000 --model {folder}"
    cfg = grpo_sg.read_settings(flags.split())
    policy, task = grpo_sg.load(cfg)
    started = time.time()
    greedy = grpo_sg.rollout(policy, task, task.test, cfg, n=1, temperature=0, seed=0)
    drawn = grpo_sg.rollout(policy, task, task.test, cfg, n=SAMPLES, temperature=1, seed=0)
    groups = grpo_sg.split_groups(drawn, SAMPLES)
    content = {"problems": len(greedy), "samples": SAMPLES, "temperature": 1,
               "seconds": round(time.time() - started), "best constant answer": task.floor,
               "greedy": [int(c.solved) for c in greedy],
               "correct": [sum(c.solved for c in group) for group in groups],
               "well formed": [sum(c.formatted for c in group) for group in groups]}
    path.write_text(json.dumps(content))


def measure(content):
    """Return a test's outcomes, each a list over puzzles: {"greedy": [1, 0, ..], "avg@8": [..]}."""
    n = content["samples"]
    return {"greedy": content["greedy"], f"avg@{n}": [count / n for count in content["correct"]],
            f"pass@{n}": [int(count > 0) for count in content["correct"]]}


def shorten(row):
    """Return the columns of a step that are recorded; None is a mean over no update."""
    return {key: row[key] if row[key] is None else round(row[key], 5) for key in STEP}


def count_answers(folder, step, split):
    """Count the greedy answers of an evaluation, such as {"KKN": 12}; K is a knight."""
    answers = Counter()
    for row in read_rows(folder / "samples.jsonl"):
        if (row["step"], row["split"]) == (step, split):
            answer = row["completion"].rpartition("<answer>")[2]
            answers["".join(re.findall("[KN]", answer.replace("knight", "K").replace("knave", "N")
                                       ))] += 1
    return dict(answers.most_common())


def collect(runs, rows):
    """Write a row for each test and each run that there is, complete or not. The test on "valid"
    is that of the cold start, made by hand."""
    lines = []
    for path in sorted(runs.glob("*.json")):
        model, split, _ = path.name.rsplit(".", 2)
        lines.append({"model": model, split: json.loads(path.read_text())})
    for path in sorted(runs.glob("*/metrics.jsonl")):
        logged = read_rows(path)
        steps = [shorten(row) for row in logged if "split" not in row]
        greedy = [{"step": row["step"], "split": row["split"], "accuracy": row["eval/accuracy"],
                   "answers": count_answers(path.parent, row["step"], row["split"])}
                  for row in logged if "split" in row]
        lines.append({"run": path.parent.name, "greedy": greedy, "steps": steps})
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cold, runs, rows = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    runs.mkdir(parents=True, exist_ok=True)
    jobs = [job.split(":") for job in sys.argv[4:] or ORDER]
    try:
        for lr, seed, steps in jobs:
            folder = runs / f"lr{float(lr):g}-seed{seed}"
            after = runs / f"{folder.name}-step{steps}.test.json"
            if not after.is_file():
                make_run(cold, folder, lr, seed, steps)
            collect(runs, rows)
            for model, path in ((cold, runs / "cold.test.json"), (folder, after)):
                if not path.is_file():
                    test(model, path)
                collect(runs, rows)
    except KeyboardInterrupt:
        collect(runs, rows)
        raise SystemExit("stopped; the same command continues")


if __name__ == "__main__":
    main()
