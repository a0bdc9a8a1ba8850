"""Is B better than A on a task, or was it luck?

    python -m experiments.compare --task kk --seeds 8 --a shaping=none --b shaping=sg

A and B are settings of grpo_sg.py; all other flags go to both. Each run is one of `python
grpo_sg.py`, with the seeds 0, 1, ... Both arms run at each rate of --lr and are compared at equal
rates, because a method with a rate of its own may owe its lead to the rate.

--rows gets a line for each run. Ctrl-C, kill and a closed terminal also stop the run that is being
made, which saves a checkpoint. Then the same command continues within that run. Runs with other
settings, code, model or data are not used, and once all runs are made, it only prints the result.
"""
import argparse
import datetime
import functools
import hashlib
import json
import math
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

import filelock
import torch

import grpo_sg
import tasks

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
FOLDERS = pathlib.Path("runs/compare")
OUTCOMES = {"end": "accuracy of samples, after training", "reward": "reward, mean over training"}


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


def name_commit():
    """Return the commit of the program, with "changed" if a script differs from it."""
    commit, changed = (
        subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True).stdout.strip()
        for command in ("git rev-parse --short HEAD", "git status --porcelain -- :/*.py"))
    return f"{commit} changed" if changed else commit


# ---- Runs ----

def list_jobs(args):
    """List the runs. Seeds change last, so that whoever stops early has pairs."""
    return [{"arm": arm, "lr": lr, "seed": seed}
            for seed in range(args.seeds) for lr in args.lr or [None] for arm in (args.a, args.b)]


def write_flags(arm):
    """Return the settings of an arm as flags: "beta=0 people=3 4" is --beta=0 --people 3 4."""
    flags = " ".join(f"--{word}" if "=" in word else word for word in arm.split())
    return re.sub(r"=(\S+)(?= [^-])", r" \1", flags).split()


def write_command(args, job):
    """Return the words of a run's command, without python and --out."""
    rate = [] if job["lr"] is None else [f"--lr={job['lr']}"]
    return ["grpo_sg.py", *args.flags, *write_flags(job["arm"]), *rate, f"--seed={job['seed']}"]


def hash_files(args):
    """Return a hash of the program, and of the task, the model and the data of both arms."""
    paths = {ROOT / "grpo_sg.py", ROOT / "tasks.py"}
    paths |= {*(ROOT / "verify").rglob("*.py"), *(ROOT / "support").rglob("*.py")}
    for arm in (args.a, args.b):
        cfg = grpo_sg.read_settings([*args.flags, *write_flags(arm)])
        for path in map(pathlib.Path, filter(None, (cfg.task, cfg.model, cfg.data, cfg.eval_data))):
            paths |= {path.absolute(), *path.absolute().rglob("*")}
    hashes = sorted(make_hash(path.read_bytes()) for path in paths if path.is_file())
    return make_hash(" ".join(hashes).encode())


def make_hash(content):
    return hashlib.sha256(content).hexdigest()[:12]


def make_runs(args):
    """Make the runs that have no row yet, and return the rows of all."""
    jobs = {" ".join(write_command(args, job)): job for job in list_jobs(args)}
    rows = {row["command"]: row for row in read_rows(args.rows)
            if row["command"] in jobs and row["code"] == args.code}
    missing = [command for command in jobs if command not in rows]
    print(f"{len(missing)} of {len(jobs)} runs to make; results: {args.rows}", flush=True)
    started = time.time()
    for i, command in enumerate(missing, 1):
        folder = FOLDERS / make_hash(f"{command} {args.code}".encode())
        make_run(write_command(args, jobs[command]), folder)
        row = {**jobs[command], **read_run(folder), "command": command, "code": args.code,
               "commit": name_commit(), "date": str(datetime.date.today())}
        append_rows(args.rows, [row])
        rows[command] = row
        left = datetime.timedelta(seconds=round((time.time() - started) / i * (len(missing) - i)))
        print(f"run {i} of {len(missing)}: {row['arm']}, lr {row['lr']:g}, seed {row['seed']}: "
              f"{row['end']:.3f}; about {left} left", flush=True)
    return rows.values()


def make_run(words, folder):
    """Run the command, or continue the run in its folder, and delete its checkpoints."""
    try:
        with filelock.FileLock(folder / "lock", timeout=0):
            words = [*words, f"--out={folder}"]
            if grpo_sg.list_checkpoints(folder):
                words = [words[0], f"--resume={folder}"]
            else:
                shutil.rmtree(folder)
    except filelock.Timeout:  # kill -9 ends a comparison, but not its run
        raise SystemExit(f"error: another process is using {folder}")
    log = folder.with_suffix(".log")
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen([sys.executable, ROOT / words[0], *words[1:]], stdout=file,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.terminate()  # it goes on at its last checkpoint, seconds ago
            process.wait()
            raise
    if status:
        text = log.read_text("utf-8").strip()[-2000:]
        raise SystemExit(f"{text}\nerror: this run failed: python {' '.join(words)}")
    for checkpoint in folder.glob("checkpoint*"):
        shutil.rmtree(checkpoint)


def read_run(folder):
    """Return the outcomes of a run."""
    rows = read_rows(folder / "metrics.jsonl")
    settings = json.loads((folder / "settings.json").read_text("utf-8"))
    k = settings["eval_samples"]
    test = [row for row in rows if row.get("split") == "test"][-1]
    return {"lr": settings["lr"], "end": test[f"eval/avg@{k}" if k else "eval/accuracy"],
            "reward": statistics.fmean(row["reward"] for row in rows if "split" not in row)}


# ---- What the rows say ----

def describe(args, rows):
    """Return the lines of the result."""
    lines = [f"A: {args.a}; B: {args.b}. Differences are paired by seed, with a CI by Student's t. "
             "Each run's value is listed in the order of the seeds."]
    for lr in args.lr or [None]:
        a, b = ({row["seed"]: row for row in rows
                 if row["arm"] == arm and lr in (None, row["lr"])} for arm in (args.a, args.b))
        rates = sorted({row["lr"] for row in (*a.values(), *b.values())})
        lines += [f"lr {' and '.join(f'{rate:g}' for rate in rates)}:", *compare_arms(a, b)]
    return lines


def compare_arms(a, b):
    """Return lines that compare the runs of B with those of A, each {seed: row}."""
    seeds = sorted(a)
    if len(seeds) < 2:
        return ["  fewer than two seeds: nothing to say"]
    lines = []
    for key, name in OUTCOMES.items():
        ours, theirs = ([runs[seed][key] for seed in seeds] for runs in (b, a))
        mean, low, high = interval([y - x for x, y in zip(theirs, ours)])
        lines.append(f"  {name}: A {statistics.fmean(theirs):.3f}, B {statistics.fmean(ours):.3f}, "
                     f"B minus A {mean:+.3f}, 95% CI [{low:+.3f}, {high:+.3f}]")
        if key == "end":
            end = low, high
            lines += [f"    {arm}: {' '.join(f'{value:.3f}' for value in values)}"
                      for arm, values in (("A", theirs), ("B", ours))]
    equal = all(a[seed][key] == b[seed][key] for seed in seeds for key in OUTCOMES)
    return [*lines, f"  {interpret(*end, len(seeds), equal)}"]


def interpret(low, high, n, equal):
    """Say what an interval of B minus A means. equal: the arms are, in every outcome."""
    if equal:
        return f"A and B are equal for each of {n} seeds: does the setting have an effect?"
    if low > 0 or high < 0:
        return (f"B is {'better' if low > 0 else 'worse'}: the true difference is probably "
                f"{low:.3f} to {high:.3f} ({n} seeds)")
    return (f"{n} seeds cannot tell: the true difference is probably between {low:+.3f} and "
            f"{high:+.3f}")


# ---- Statistics ----

@functools.cache
def t_quantile(p, degrees, steps=1_000_000):
    """Return Student's t quantile, for p of at least 0.5.

    With x = sqrt(n) tan(a), the density over the angle a is proportional to cos(a)^(n-1)."""
    angles = torch.linspace(0, math.pi / 2, steps, dtype=torch.float64)
    area = (angles.cos() ** (degrees - 1)).cumsum(0)
    angle = angles[torch.searchsorted(area, (2 * p - 1) * area[-1])]
    return math.sqrt(degrees) * angle.tan().item()


def interval(values):
    """Return (mean, low, high): the 95% confidence interval by Student's t."""
    n, average = len(values), statistics.fmean(values)
    half = t_quantile(0.975, n - 1) * statistics.stdev(values) / math.sqrt(n)
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
    parser.add_argument("--rows", type=pathlib.Path, default="runs/compare.jsonl", help="results")
    args, args.flags = parser.parse_known_args(argv)
    for setting in args.a + args.b:
        if "=" not in setting and not setting.isdigit():
            parser.error(f"{setting}: write a setting as NAME=VALUE, such as shaping=none")
    flags = [flag[2:] for flag in args.flags if flag.startswith("--")]
    for flag in (*flags, *args.a, *args.b):
        name = flag.partition("=")[0].replace("-", "_")
        if name in ("seed", "out", "resume", "eval_only") or name == "lr" and args.lr:
            parser.error(f"--{name}: compare sets it")
    args.lr, args.a, args.b = sorted({*args.lr}), " ".join(args.a), " ".join(args.b)
    if args.a == args.b:
        parser.error("--a and --b are equal")
    if args.seeds < 1:
        parser.error(f"--seeds must be 1 or more, not {args.seeds}")
    try:
        args.code = hash_files(args)
    except tasks.UserError as error:
        parser.error(str(error))
    return args


def main(argv=None):
    args = read_arguments(sys.argv[1:] if argv is None else argv)
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    # kill and a closed terminal stop a comparison as Ctrl-C does: its run saves a checkpoint first.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as SIGHUP is under nohup
            signal.signal(number, signal.default_int_handler)
    try:
        print("\n".join(describe(args, make_runs(args))))
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command continues")


if __name__ == "__main__":
    main()
