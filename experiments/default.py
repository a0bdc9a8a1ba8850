"""What `python grpo_sg.py --task TASK` reaches, over five seeds. Writes default_TASK.json beside this file.

    python experiments/default.py kk        about ten minutes on two cores; or math, or qa
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

TASK = sys.argv[1]
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import grpo_sg  # noqa: E402
import tasks  # noqa: E402
runs = []


def floor(seed):
    return tasks.TASKS[TASK](grpo_sg.parse(["--task", TASK, "--seed", str(seed)])).floor


for seed in range(5):
    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        script = os.path.join(HERE, "..", "grpo_sg.py")
        command = [sys.executable, script, "--task", TASK, "--seed", str(seed), "--out", f"{folder}/run"]
        subprocess.run(command, check=True)
        rows = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    test = [row for row in rows if row.get("split") == "test"]
    curve = [round(row["accuracy"], 4) for row in rows if "reward" in row]
    runs.append({"seed": seed, "seconds": round(time.time() - started), "before": test[0], "after": test[1],
                 "training_accuracy": curve, "best_constant_answer": floor(seed),
                 "peak_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)})
with open(os.path.join(HERE, f"default_{TASK}.json"), "w") as f:
    f.write("[" + ",\n".join(map(json.dumps, runs)) + "]\n")  # a run a line
for key in ("eval/accuracy", "eval/avg@4"):
    for when in ("before", "after"):
        values = [run[when][key] for run in runs]
        average, error = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
        print(f"{key:<14} {when:<7} {average:.3f} +- {error:.3f}", [round(v, 3) for v in values])
print("seconds", [run["seconds"] for run in runs], "peak MB", max(run["peak_mb"] for run in runs))
