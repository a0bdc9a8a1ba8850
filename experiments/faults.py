"""Kills a run with SIGKILL at random moments and goes on, and watches a long run's memory and files.

    python experiments/faults.py kill      some minutes; what 10 kills cost
    python experiments/faults.py long      some six minutes; 2,000 steps with saving and evaluation

Writes results/faults.json. A killed run has lost something where its metrics, transcripts or final
weights differ, in any bit, from those of a run with the same settings that nothing disturbed.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "..", "grpo_sg.py")
SMALL = ("--task math --prompts 4 --group_size 4 --train_problems 2000 --eval_problems 8 --eval_samples 0 "
         "--eval_every 5 --save_every 1 --beta 0.01").split()


def start(out, *flags):
    return subprocess.Popen([sys.executable, SCRIPT, "--out", out, *flags], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def last_step(out):
    try:
        with open(f"{out}/checkpoint/state.json") as file:
            return json.load(file)["step"]
    except OSError:
        return 0


def outcome(out):
    with open(f"{out}/metrics.jsonl") as file:
        rows = [{key: value for key, value in json.loads(line).items() if "second" not in key} for line in file]
    with (open(f"{out}/samples.jsonl") as log, open(f"{out}/tokens.jsonl") as tokens,
          open(f"{out}/checkpoint/model.safetensors", "rb") as weights):
        return rows, log.read() + tokens.read(), weights.read()


def kill(folder, kills=10):
    rng, out = random.Random(0), f"{folder}/killed"
    found = {"kills": 0, "while a checkpoint was written": 0, "without a checkpoint named checkpoint": 0,
             "steps done again": 0}
    assert start(f"{folder}/first", *SMALL, "--steps", "1").wait() == 0
    small = [*SMALL, "--model", f"{folder}/first/warm_start"]
    run = start(out, *small, "--steps", "1000000")
    while not last_step(out):
        time.sleep(0.1)
    while found["kills"] < kills:
        time.sleep(rng.uniform(0, 2))
        with open(f"{out}/metrics.jsonl") as file:
            logged = sum('"reward"' in line for line in file)
        run.kill()
        run.wait()
        found["kills"] += 1
        found["while a checkpoint was written"] += os.path.isdir(f"{out}/checkpoint.tmp")
        found["without a checkpoint named checkpoint"] += not os.path.isdir(f"{out}/checkpoint")
        found["steps done again"] += max(0, logged - last_step(out))
        before = last_step(out)
        run = start(out, "--resume")
        while last_step(out) <= before and run.poll() is None:
            time.sleep(0.05)
    run.kill()
    run.wait()
    steps = str(last_step(out) + 3)
    assert start(out, "--resume", "--steps", steps).wait() == 0
    assert start(f"{folder}/whole", *small, "--steps", steps).wait() == 0
    same = [a == b for a, b in zip(outcome(out), outcome(f"{folder}/whole"))]
    return {**found, "steps": int(steps), "same metrics, transcripts, weights": same}


def long(folder, steps=2000):
    out = f"{folder}/long"
    run = start(out, "--task", "math", "--steps", str(steps), "--prompts", "8",
                "--eval_problems", "50", "--save_every", "50")
    memory, page = {}, os.sysconf("SC_PAGE_SIZE")  # step: MB
    while run.poll() is None:
        time.sleep(1)
        with open(f"/proc/{run.pid}/statm") as file:
            memory[last_step(out)] = round(int(file.read().split()[1]) * page / 2 ** 20)
    sizes = {os.path.relpath(path, out): os.path.getsize(path) for path in glob.glob(f"{out}/*.jsonl")}
    return {"steps": steps, "exit": run.returncode, "memory MB at step": memory, "bytes": sizes,
            "folders": sorted(name for name in os.listdir(out) if os.path.isdir(f"{out}/{name}"))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="+", choices=["kill", "long"])
    parts = parser.parse_args().parts
    path = os.path.join(HERE, "results", "faults.json")
    results = json.load(open(path)) if os.path.exists(path) else {}
    for name in parts:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = {"kill": kill, "long": long}[name](folder)
        print(name, results[name])
        with open(path, "w") as file:
            json.dump(results, file, indent=1)
