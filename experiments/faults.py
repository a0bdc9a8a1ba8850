"""Kills a run with SIGKILL at random moments and goes on, and watches a long run's memory and files.

    python -m experiments.faults kill      some minutes; what 10 kills cost
    python -m experiments.faults long      some six minutes; 2,000 steps with saving and evaluation

Writes results/faults.json. A killed run has lost something if its metrics, transcripts or final weights
differ, in any bit, from those of a run with the same settings that nothing disturbed.
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from experiments import paired

SMALL = ("--task math --prompts 4 --group_size 4 --train_problems 2000 --eval_problems 8 --eval_samples 0 "
         "--eval_every 5 --save_every 1 --beta 0.01").split()


def start(out, *flags):
    script = paired.RESULTS.parents[1] / "grpo_sg.py"
    return subprocess.Popen([sys.executable, script, "--out", out, *flags], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def finish(out, *flags):
    if start(out, *flags).wait():
        raise SystemExit(f"a run with the flags {' '.join(map(str, flags))} failed")


def last_step(out):
    try:
        return json.loads((out / "checkpoint" / "state.json").read_text())["step"]
    except OSError:
        return 0


def read_outcome(out):
    """Metrics but for times, transcripts and tokens, and weights."""
    rows = []
    for row in paired.read_rows(out / "metrics.jsonl"):
        rows.append({key: value for key, value in row.items() if "second" not in key})
    texts = (out / "samples.jsonl").read_text() + (out / "tokens.jsonl").read_text()
    return rows, texts, (out / "checkpoint" / "model.safetensors").read_bytes()


def kill(folder, kills, steps):
    """What is lost by so many kills; steps has no meaning here."""
    rng = random.Random(0)
    out = folder / "killed"
    found = {"kills": kills, "while a checkpoint was written": 0, "without a checkpoint named checkpoint": 0,
             "steps done again": 0}
    finish(folder / "first", *SMALL, "--steps", "1")
    small = [*SMALL, "--model", folder / "first" / "warm_start"]
    run = start(out, *small, "--steps", "1000000")
    while not last_step(out):
        time.sleep(0.1)
    for _ in range(kills):
        time.sleep(rng.uniform(0, 2))
        logged = (out / "metrics.jsonl").read_text().count('"reward"')
        run.kill()
        run.wait()
        before = last_step(out)
        found["while a checkpoint was written"] += (out / "checkpoint.tmp").is_dir()
        found["without a checkpoint named checkpoint"] += not (out / "checkpoint").is_dir()
        found["steps done again"] += max(0, logged - before)
        run = start(out, "--resume")
        while last_step(out) <= before and run.poll() is None:
            time.sleep(0.05)
    run.kill()
    run.wait()
    steps = last_step(out) + 3
    finish(out, "--resume", "--steps", str(steps))
    finish(folder / "whole", *small, "--steps", str(steps))
    same = [a == b for a, b in zip(read_outcome(out), read_outcome(folder / "whole"))]
    return {**found, "steps": steps, "same metrics, transcripts, weights": same}


def long(folder, kills, steps):
    """Memory and files of a run of so many steps; kills has no meaning here."""
    out = folder / "long"
    run = start(out, "--task", "math", "--steps", str(steps), "--prompts", "8", "--eval_problems", "50",
                "--save_every", "50")
    memory = {}  # step: MB
    while run.poll() is None:
        time.sleep(1)
        pages = int(pathlib.Path(f"/proc/{run.pid}/statm").read_text().split()[1])
        if pages:  # none: the process has just ended
            memory[last_step(out)] = round(pages * os.sysconf("SC_PAGE_SIZE") / 2 ** 20)
    sizes = {path.name: path.stat().st_size for path in out.glob("*.jsonl")}
    return {"steps": steps, "exit": run.returncode, "memory MB at step": memory, "bytes": sizes,
            "folders": sorted(path.name for path in out.iterdir() if path.is_dir())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="+", choices=["kill", "long"])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2000, help="of the long run")
    parser.add_argument("--results", type=pathlib.Path, default=paired.RESULTS / "faults.json")
    args = parser.parse_args()
    results = json.loads(args.results.read_text()) if args.results.exists() else {}
    for name in args.parts:
        with tempfile.TemporaryDirectory() as folder:
            found = {"kill": kill, "long": long}[name](pathlib.Path(folder), args.kills, args.steps)
        results[name] = {**found, "commit": paired.name_commit(), "date": str(datetime.date.today())}
        print(name, results[name])
        args.results.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
