"""What `python grpo_sg.py --task TASK` reaches, over five seeds. Writes results/default_TASK.json.

    python experiments/default.py kk        about ten minutes on two cores; or math, or qa
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import grpo_sg  # noqa: E402
import tasks  # noqa: E402


def measure(task, seed):
    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        script = os.path.join(HERE, "..", "grpo_sg.py")
        command = [sys.executable, script, "--task", task, "--seed", str(seed), "--out", f"{folder}/run"]
        subprocess.run(command, check=True)
        seconds = round(time.time() - started)
        with open(f"{folder}/run/metrics.jsonl") as file:
            rows = [json.loads(line) for line in file]
    before, after = [row for row in rows if row.get("split") == "test"]
    return {"seed": seed, "seconds": seconds, "before": before, "after": after,
            "training_accuracy": [round(row["accuracy"], 4) for row in rows if "reward" in row],
            "best_constant_answer": tasks.TASKS[task](
                grpo_sg.parse(["--task", task, "--seed", str(seed)])).floor,
            "peak_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=tasks.TASKS)
    task = parser.parse_args().task
    runs = [measure(task, seed) for seed in range(5)]
    with open(os.path.join(HERE, "results", f"default_{task}.json"), "w") as file:
        file.write("[" + ",\n".join(map(json.dumps, runs)) + "]\n")  # a run a line
    for key in ("eval/accuracy", "eval/avg@4"):
        for when in ("before", "after"):
            values = [run[when][key] for run in runs]
            average, error = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
            print(f"{key:<14} {when:<7} {average:.3f} +- {error:.3f}", [round(v, 3) for v in values])
    print("seconds", [run["seconds"] for run in runs], "peak MB", max(run["peak_mb"] for run in runs))


if __name__ == "__main__":
    main()
