"""What `python grpo_sg.py --task TASK` reaches, over five seeds.

    python -m experiments.default kk        six minutes on one core; or math, or qa

Writes results/default_TASK.json; with --seeds or --out other seeds, another file.
"""
import argparse
import datetime
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import grpo_sg
import tasks
from experiments import paired


def measure(task, seed):
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--task", task, "--seed", str(seed)]
        started = time.time()
        script = paired.RESULTS.parents[1] / "grpo_sg.py"
        subprocess.run([sys.executable, script, *flags, "--out", f"{folder}/run"], check=True)
        seconds = round(time.time() - started)
        rows = paired.read_rows(pathlib.Path(folder, "run", "metrics.jsonl"))
    before, after = [row for row in rows if row.get("split") == "test"]
    return {"seed": seed, "seconds": seconds, "before": before, "after": after,
            "training_accuracy": [round(row["accuracy"], 4) for row in rows if "reward" in row],
            "best_constant_answer": tasks.make_task(grpo_sg.parse(flags)).floor,
            "peak_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
            "commit": paired.name_commit(), "date": str(datetime.date.today())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=tasks.TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    runs = [measure(args.task, seed) for seed in args.seeds]
    out = args.out or paired.RESULTS / f"default_{args.task}.json"
    out.write_text("[" + ",\n".join(map(json.dumps, runs)) + "]\n")  # a run a line
    for key in ("eval/accuracy", "eval/avg@4"):
        for when in ("before", "after"):
            values = [run[when][key] for run in runs]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
            print(f"{key:<14} {when:<7} {statistics.fmean(values):.3f} ± {error:.3f}",
                  [round(value, 3) for value in values])
    print("seconds", [run["seconds"] for run in runs], "peak MB", max(run["peak_mb"] for run in runs))


if __name__ == "__main__":
    main()
