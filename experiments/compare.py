"""Is B better than A on a task, or was it luck?

    python -m experiments.compare --task kk --seeds 8 --a shaping=none --b shaping=sg

A and B are settings of grpo_sg.py; all other flags go to both. Each run is one of `python
grpo_sg.py`, with the seeds 0, 1, ... Both arms run at each rate of --lr and are compared at equal
rates, because a method with a rate of its own may owe its lead to the rate.

A run has a folder in runs/compare and, once it is finished, a line in --rows. Whatever ends a
comparison, the same command goes on, with an unfinished run at its newest checkpoint. A run counts
only if the program, the model, the data, the task's file and the local files that it imports at its
top are the same before and after the run. (An edit that is undone before the run ends isn't seen,
nor are files that a function imports or opens later.)
"""
import argparse
import hashlib
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from statistics import fmean, stdev

import filelock
import torch

import grpo_sg

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"


# ---- Rows ----

def read_rows(path):
    """Read a file of JSON lines, without a half-written last line; [] if there is none yet."""
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def append_rows(path, rows):
    """Append JSON lines, in the place of a half-written last line."""
    with open(path, "ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


# ---- Runs ----

def hash_files(configs):
    """Return a hash of all that runs with these settings depend on, as it is on the disk: their
    models and data, the program, and what their tasks import, which must have been loaded."""
    paths = [path for cfg in configs for path in (cfg.model, cfg.data, cfg.eval_data) if path]
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or __file__)
        packages = {"site-packages", "dist-packages"}.intersection(path.parts)
        if not packages and not path.is_relative_to(sysconfig.get_path("stdlib")):
            paths.append(path)
    paths = {*map(Path, paths), *ROOT.glob("verify/*.py"), *ROOT.glob("support/*.py")}
    paths.remove(Path(__file__))
    files = {file for path in paths for file in (path, *path.rglob("*")) if file.is_file()}
    return make_hash(" ".join(sorted(make_hash(file.read_bytes()) for file in files)).encode())


def make_hash(content):
    return hashlib.sha256(content).hexdigest()[:12]


def make_runs(args):
    """Make the runs that have no row yet. Returns the rows of all."""
    made = {(row.get("command"), row.get("code")): row for row in read_rows(args.rows)}
    # Seeds change last, so that whoever stops early has pairs.
    runs = [(seed, lr, arm) for seed in range(args.seeds) for lr in args.lr or [None]
            for arm in (args.a, args.b)]
    rows = []
    for seed, lr, arm in runs:
        rate = [] if lr is None else [f"--lr={lr}"]
        words = ["grpo_sg.py", *args.flags, *write_flags(arm), *rate, f"--seed={seed}"]
        command = shlex.join(words)
        row = made.get((command, args.code))
        if not row:
            folder = Path("runs/compare", make_hash(f"{command} {args.code}".encode()))
            make_run(words, folder, args)
            row = {"arm": arm, "seed": seed, **read_run(folder), "command": command,
                   "code": args.code}
            append_rows(args.rows, [row])
            for checkpoint in folder.glob("checkpoint*"):
                shutil.rmtree(checkpoint)
            print(f"run {len(rows) + 1} of {len(runs)}: {arm}, lr {row['lr']:g}, seed {seed}: "
                  f"{row['end']:.3f}", flush=True)
        rows.append(row)
    return rows


def write_flags(arm):
    """Return the settings of an arm as flags: "beta=0 people=3 4" is --beta 0 --people 3 4."""
    return re.sub(r"(?<!\S)(\w+)=", r"--\1 ", arm).split()


def make_run(words, folder, args):
    """Run a command, or continue the run in its folder. Raises SystemExit if it fails, or if a file
    has changed."""
    words, log = [*words, f"--out={folder}"], folder.with_suffix(".log")
    try:
        with filelock.FileLock(folder / "lock", timeout=0):
            if grpo_sg.list_checkpoints(folder):
                words = [words[0], f"--resume={folder}"]
            else:
                shutil.rmtree(folder)
    except filelock.Timeout:  # a comparison that was killed leaves its run alive
        raise SystemExit(f"error: another process is using {folder}")
    with open(log, "w", encoding="utf-8") as file:
        status = subprocess.call([sys.executable, ROOT / words[0], *words[1:]], stdout=file,
                                 stderr=subprocess.STDOUT)
    # The files before this run are those after the run before it.
    if hash_files(args.configs) != args.code:
        shutil.rmtree(folder, ignore_errors=True)  # or the run would count once the edit is undone
        raise SystemExit("error: the program or a file of the task, the model or the data has "
                         "changed during this run, so the run doesn't count: start again")
    if status:
        last = re.split(r"[\r\n]", log.read_text("utf-8", errors="replace").strip())[-1]
        raise SystemExit(f"error: a run ended with status {status}: {last.removeprefix('error: ')} "
                         f"(python {shlex.join(words)}, log: {log}); start again to go on")


def read_run(folder):
    """Return the outcomes of a run."""
    rows = read_rows(folder / "metrics.jsonl")
    settings = json.loads((folder / "settings.json").read_text("utf-8"))
    k = settings["eval_samples"]
    test = [row for row in rows if row.get("split") == "test"][-1]
    return {"lr": settings["lr"], "end": test[f"eval/avg@{k}" if k else "eval/accuracy"],
            "reward": fmean(row["reward"] for row in rows if "split" not in row)}


# ---- What the rows say ----

def describe(args, rows):
    """Return the lines of the result."""
    lines = [f"A: {args.a}; B: {args.b}. Differences are paired by seed, with a CI by Student's t. "
             "Each run's value is listed in the order of the seeds."]
    for lr in args.lr or [None]:
        a, b = ([row for row in rows if row["arm"] == arm and lr in (None, row["lr"])]
                for arm in (args.a, args.b))
        rates = sorted({row["lr"] for row in a + b})
        lines += [f"lr {' and '.join(f'{rate:g}' for rate in rates)}:",
                  *compare_arms(a, b, args.answers)]
    return lines


def compare_arms(a, b, answers):
    """Return lines that compare the rows of B with those of A, both in the order of the seeds.
    answers: those that the accuracy is of."""
    lines = []
    for key, name in (("end", f"accuracy of {answers}, after training"),
                      ("reward", "reward, mean over training")):
        A, B = ([row[key] for row in arm] for arm in (a, b))
        mean, low, high = interval([y - x for x, y in zip(A, B)])
        if key == "end":
            low, high = end = max(-1.0, low), min(1.0, high)  # accuracies differ by at most 1
        lines.append(f"  {name}: A {fmean(A):.3f}, B {fmean(B):.3f}, B minus A {mean:+.3f}, "
                     f"95% CI [{low:+.3f}, {high:+.3f}]")
        if key == "end":
            lines += [f"    {arm}: {' '.join(f'{value:.3f}' for value in values)}"
                      for arm, values in (("A", A), ("B", B))]
    if all(x[key] == y[key] for x, y in zip(a, b) for key in ("end", "reward")):
        return [*lines, f"  A and B are equal for each of {len(a)} seeds: does the setting have an "
                        "effect?"]
    verdict = "B is better" if end[0] > 0 else "B is worse" if end[1] < 0 else "we can't tell"
    return [*lines, f"  {verdict}: the true difference is probably between {end[0]:+.3f} and "
                    f"{end[1]:+.3f} ({len(a)} seeds)"]


def t_quantile(degrees, p=0.975):
    """Return Student's t quantile. With x = sqrt(n) tan(a), the density over the angle a is
    proportional to cos(a)^(n-1)."""
    angles = torch.linspace(0, math.pi / 2, 1_000_000, dtype=torch.float64)
    area = (angles.cos() ** (degrees - 1)).cumsum(0)
    angle = angles[torch.searchsorted(area, (2 * p - 1) * area[-1])]
    return math.sqrt(degrees) * angle.tan().item()


def interval(values):
    """Return (mean, low, high): the 95% confidence interval by Student's t."""
    n, average = len(values), fmean(values)
    half = t_quantile(n - 1) * stdev(values) / math.sqrt(n)
    return average, average - half, average + half


# ---- The command line ----

def read_arguments(argv):
    parser = argparse.ArgumentParser(
        usage="python -m experiments.compare --a SETTING=VALUE ... --b SETTING=VALUE ... [other "
              "settings of grpo_sg.py, such as --task FILE.py]",
        description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--a", nargs="+", required=True, help="settings of A: shaping=none")
    parser.add_argument("--b", nargs="+", required=True, help="settings of B: shaping=sg")
    parser.add_argument("--lr", nargs="+", type=float, default=[], help="learning rates of both")
    parser.add_argument("--seeds", type=int, default=8, help="runs of each arm at each rate")
    parser.add_argument("--rows", type=Path, default="runs/compare.jsonl", help="results")
    args, args.flags = parser.parse_known_args(argv)
    for word in args.flags + args.a + args.b:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_")
        if name in ("seed", "out", "resume", "eval_only") or name == "lr" and args.lr:
            parser.error(f"--{name}: compare sets it")
    if args.seeds < 2:
        parser.error(f"--seeds must be 2 or more, not {args.seeds}: an interval needs two")
    args.lr, args.a, args.b = sorted({*args.lr}), " ".join(args.a), " ".join(args.b)
    args.configs = a, b = [grpo_sg.read_settings([*args.flags, *write_flags(arm)])
                           for arm in (args.a, args.b)]
    args.code = hash_files(args.configs)
    if {**vars(a), "out": b.out} == vars(b):
        parser.error("--a and --b are equal")
    if a.eval_samples != b.eval_samples:
        parser.error("--eval_samples must be the same for --a and --b")
    args.answers = "samples" if a.eval_samples else "greedy answers"
    return args


def main(argv=None):
    args = read_arguments(sys.argv[1:] if argv is None else argv)
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    print(f"results: {args.rows}", flush=True)
    try:
        print("\n".join(describe(args, make_runs(args))))
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command continues")


if __name__ == "__main__":
    main()
