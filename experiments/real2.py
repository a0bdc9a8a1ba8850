"""Compare GRPO-SG and GRPO on a real model, with enough seeds. results/real2_rule.txt has the rule.

    python -m experiments.real2 FOLDER RUNS ROWS

FOLDER has the real model (support/smollm.py makes it), RUNS gets the runs, and ROWS a line for each
run that has ended. The same command continues: it leaves out the runs that ROWS has, and begins an
interrupted one again.
"""
import collections
import itertools
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from experiments import analysis

SEEDS = range(101, 141)
RATES = "1e-5", "2e-5"
ARMS = "sg", "none"


def make_run(model, folder, lr, shaping, seed):
    """Train and test. Returns the row of the run."""
    shutil.rmtree(folder, ignore_errors=True)
    started = time.time()
    with open(f"{folder}.log", "w", encoding="utf-8") as log:
        done = subprocess.run([sys.executable, "-m", "experiments.share_prompts",
                               "--task", "lesson/real_model.py", "--model", model, "--lr", lr,
                               "--shaping", shaping, "--seed", str(seed), "--out", str(folder)],
                              stdout=log, stderr=log)
    if done.returncode:
        raise SystemExit(f"error: the run in {folder} failed; see {folder}.log")
    logged = analysis.read_rows(folder / "metrics.jsonl")
    steps = [row for row in logged if "split" not in row]
    tests = [row for row in logged if row.get("split") == "test"]
    for path in folder.glob("checkpoint-*"):  # the row is what we need of a run
        shutil.rmtree(path)
    columns = "accuracy", "reward", "format_rate", "equal_groups", "entropy", "grad_norm"
    return {"seed": seed, "lr": lr, "shaping": shaping, "commit": analysis.name_commit(),
            "seconds": round(time.time() - started), "before": tests[0]["eval/avg@4"],
            "avg@4": tests[-1]["eval/avg@4"], "greedy": tests[-1]["eval/accuracy"],
            **{key: [step[key] for step in steps] for key in columns}}


def select_complete(rows):
    """Return the rows of the seeds that have all four runs."""
    runs = collections.Counter(row["seed"] for row in rows)
    return [row for row in rows if runs[row["seed"]] == len(RATES) * len(ARMS)]


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    model, runs, rows = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    runs.mkdir(parents=True, exist_ok=True)
    done = {(row["seed"], row["lr"], row["shaping"]) for row in analysis.read_rows(rows)}
    for seed, lr, shaping in itertools.product(SEEDS, RATES, ARMS):
        if (seed, lr, shaping) in done:
            continue
        try:
            row = make_run(model, runs / f"{seed}-{lr}-{shaping}", lr, shaping, seed)
        except KeyboardInterrupt:
            raise SystemExit("stopped; the same command continues") from None
        analysis.append_rows(rows, [row])
        print(json.dumps({key: row[key] for key in ("seed", "lr", "shaping", "avg@4", "seconds")}),
              flush=True)


if __name__ == "__main__":
    main()
