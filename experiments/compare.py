"""Is B better than A on a task, or was it the learning rate, or luck?

    python -m experiments.compare --task kk --seeds 8 --a shaping=none --b shaping=sg

A and B are settings of grpo_sg.py; all other flags go to both. Each run is one of `python
grpo_sg.py`. With --tune_seeds both arms first run at each rate of --lr. An arm's own rate has the
highest accuracy on validation problems, averaged over a run's validations and over these seeds.
Then both arms run at both own rates, or without tuning at each rate of --lr, with seeds 0, 1, ...
Differences at equal rates show the effect of B; those at own rates include the luck of the tuning.

--rows gets a line for each run. Ctrl-C, kill and a closed terminal also stop the run that is being
made, which saves a checkpoint. Then the same command continues within that run. Runs with other
settings, code, model or data are not used. --show runs nothing. It prints the rows of A and B that
have the given flags, --lr and --seeds; those of other settings separately.
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

import torch
from transformers.trainer_utils import get_last_checkpoint

import grpo_sg
import tasks

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
FOLDERS = pathlib.Path("runs/compare")
TUNING = 1000   # the first seed of tuning
FEW = 5         # with fewer seeds there is a warning
OUTCOMES = {"end": "accuracy of samples, after training", "reward": "reward, mean over training",
            "mean": "accuracy, mean over validations"}


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

def list_jobs(args, rates, seeds, tuning):
    """List what to run. Seeds change last, so that whoever stops it has pairs."""
    return [{"arm": arm, "lr": lr, "seed": seed, "tuning": tuning}
            for seed in seeds for lr in rates for arm in (args.a, args.b)]


def write_flags(arm):
    """Return the settings of an arm as flags: "beta=0 people=3 4" is --beta=0 --people 3 4."""
    flags = " ".join(f"--{word}" if "=" in word else word for word in arm.split())
    return re.sub(r"=(\S+)(?= [^-])", r" \1", flags)


def write_command(args, job):
    """Return the words of a run's command, without python and --out."""
    flags = write_flags(job["arm"]).split()
    rate = [] if job["lr"] is None else [f"--lr={job['lr']}"]
    return ["grpo_sg.py", *args.flags, *flags, *rate, f"--seed={job['seed']}"]


def hash_files(args):
    """Return a hash of the program, and of the task, the model and the data of both arms."""
    paths = {ROOT / "grpo_sg.py", ROOT / "tasks.py"}
    paths |= {*(ROOT / "verify").rglob("*.py"), *(ROOT / "support").rglob("*.py")}
    for job in list_jobs(args, [None], [0], False):
        cfg = grpo_sg.read_settings(write_command(args, job)[1:])
        for path in map(pathlib.Path, filter(None, (cfg.task, cfg.model, cfg.data, cfg.eval_data))):
            paths |= {path.absolute(), *path.absolute().rglob("*")}
    hashes = sorted(make_hash(path.read_bytes()) for path in paths if path.is_file())
    return make_hash(" ".join(hashes).encode())


def make_hash(content):
    return hashlib.sha256(content).hexdigest()[:12]


def find_rows(args, jobs):
    """Return the rows of these jobs."""
    commands = {" ".join(write_command(args, job)) for job in jobs}
    return [row for row in read_rows(args.rows)
            if row["command"] in commands and row["code"] == args.code]


def run_jobs(args, jobs, later=0):
    """Make the runs that have no row yet, and return the rows of all. later: the number of runs
    that follow at least."""
    done = {row["command"] for row in find_rows(args, jobs)}
    missing = [job for job in jobs if " ".join(write_command(args, job)) not in done]
    print(f"{len(missing)} of {len(jobs)} {'tuning ' if later else ''}runs to make"
          f"{f', then at least {later}' if later else ''}; results: {args.rows}", flush=True)
    seconds = []
    for i, job in enumerate(missing, 1):
        started = time.time()
        words = write_command(args, job)
        folder = FOLDERS / make_hash(" ".join([*words, args.code]).encode())
        make_run(words, folder)
        row = {**job, **read_run(folder)}
        if job["tuning"] and row["mean"] is None:
            raise SystemExit("error: no validation to tune by: give an --eval_every below --steps")
        seconds.append(time.time() - started)
        append_rows(args.rows, [
            {**row, "command": " ".join(words), "code": args.code, "commit": name_commit(),
             "date": str(datetime.date.today()), "minutes": round(seconds[-1] / 60, 2)}])
        left = round(statistics.fmean(seconds) * (len(missing) - i + later))
        kind, outcome = ("tuning run", "mean") if job["tuning"] else ("run", "end")
        print(f"{kind} {i} of {len(missing)}: {row['arm']}, lr {row['lr']:g}, seed {row['seed']}: "
              f"{row[outcome]:.3f}; about {datetime.timedelta(seconds=left)} left", flush=True)
    return find_rows(args, jobs)


def make_run(words, folder):
    """Run the command, or continue the run in its folder, and delete its checkpoint."""
    with grpo_sg.lock_folder(folder):  # kill -9 ends a comparison, but not its run
        if get_last_checkpoint(folder):
            words = [words[0], "--resume"]
        else:
            shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, ROOT / words[0], *words[1:], "--out", str(folder)], stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.terminate()  # it finishes its step and saves
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
    last = [row for row in rows if row.get("split") == "test"][-1]
    rewards = [row["reward"] for row in rows if "split" not in row]
    valid = [row["eval/accuracy"] for row in rows if row.get("split") == "valid"]
    return {"lr": settings["lr"], "end": last[f"eval/avg@{k}" if k else "eval/accuracy"],
            "reward": statistics.fmean(rewards), "mean": statistics.fmean(valid) if valid else None}


# ---- What the rows say ----

def choose(rows, arm):
    """Return the rate of an arm with the best tuning runs, of equally good ones the lowest."""
    outcomes = {}
    for row in rows:
        if row["arm"] == arm and row["tuning"]:
            outcomes.setdefault(row["lr"], []).append(row["mean"])
    return max(sorted(outcomes), key=lambda lr: statistics.fmean(outcomes[lr]))


def compare_arms(rows, args, lr_a, lr_b):
    """Return lines that compare B's counted runs at the rate lr_b with A's at lr_a."""
    theirs, ours = ({row["seed"]: row for row in rows
                     if (row["arm"], row["lr"], row["tuning"]) == (arm, lr, False)}
                    for arm, lr in ((args.a, lr_a), (args.b, lr_b)))
    seeds = sorted(ours.keys() & theirs.keys())
    lines = [f"  left out: seed {seed}, which has no run of {'AB'[seed in theirs]}"
             for seed in sorted(ours.keys() ^ theirs.keys())]
    if len(seeds) < 2:
        return [*lines, "  fewer than two seeds that both arms have: nothing to say"]
    for key, name in OUTCOMES.items():
        a, b = ([runs[seed][key] for seed in seeds] for runs in (theirs, ours))
        if None in a + b:  # a run without validations
            continue
        differences = [y - x for x, y in zip(a, b)]
        mean, low, high = interval(differences)
        lines.append(f"  {name}: A {statistics.fmean(a):.3f}, B {statistics.fmean(b):.3f}, B minus "
                     f"A {mean:+.3f}, 95% CI [{low:+.3f}, {high:+.3f}], MDE "
                     f"{detectable(differences):.3f}")
        if key == "end":
            end = low, high
            lines += [f"    {arm}: {' '.join(f'{value:.3f}' for value in values)}"
                      for arm, values in (("A", a), ("B", b))]
    equal = all(ours[seed][key] == theirs[seed][key] for seed in seeds for key in OUTCOMES)
    lines.append(f"  {interpret(*end, len(seeds), equal)}")
    if len(seeds) < FEW:
        lines.append(f"  warning: {len(seeds)} seeds say little: take {FEW} or more")
    return lines


def interpret(low, high, n, equal):
    """Say what an interval of B minus A means. equal: the arms are, in every outcome."""
    if equal:
        return f"A and B are equal for each of {n} seeds: does the setting have an effect?"
    if high - low < 1e-9:
        return (f"each of {n} seeds has the difference {low:+.3f}, so the interval has no width: "
                "it says nothing about other seeds")
    if low > 0 or high < 0:
        return (f"B is {'better' if low > 0 else 'worse'}: the true difference is probably "
                f"{low:.3f} to {high:.3f} ({n} seeds)")
    return (f"{n} seeds cannot tell: the true difference is probably between {low:+.3f} and "
            f"{high:+.3f}")


def describe_tuning(args, rows):
    """Return (the own rates of A and B, lines with warnings)."""
    own, lines = [choose(rows, args.a), choose(rows, args.b)], []
    rates, seeds = ({row[key] for row in rows if row["tuning"]} for key in ("lr", "seed"))
    for name, arm, rate in zip("AB", (args.a, args.b), own):
        lines.append(f"{name}, {arm}: own rate {rate:g}, by {len(seeds)} seeds")
        if rate in (min(rates), max(rates)):
            lines.append(f"warning: {name}'s rate is at an end of --lr: add rates beyond it")
    if own[0] != own[1]:
        lines.append("warning: the own rates differ, so the difference at own rates may come from "
                     "the rates: trust the one at equal rates")
    return own, lines


def describe(args, rows):
    """Return the lines of the result."""
    rates_a, rates_b = ({row["lr"] for row in rows if row["arm"] == arm and not row["tuning"]}
                        for arm in (args.a, args.b))
    own, lines = None, []
    if {row["arm"] for row in rows if row["tuning"]} == {args.a, args.b}:
        own, lines = describe_tuning(args, rows)
    elif len(rates_a) == len(rates_b) == 1:
        own = [*rates_a, *rates_b]
    lines.append(f"A: {args.a}; B: {args.b}. Differences are paired by seed, with a CI by "
                 "Student's t. 80% of such comparisons would detect a true difference of the MDE. "
                 "Each run's value is listed in the order of the seeds.")
    differ = own and own[0] != own[1]
    for lr in sorted(rates_a & rates_b if differ else rates_a | rates_b):
        lines += [f"at equal rates, lr {lr:g}:", *compare_arms(rows, args, lr, lr)]
    if differ:
        lines += [f"at own rates, A {own[0]:g}, B {own[1]:g}:", *compare_arms(rows, args, *own)]
    return lines


def carry_out(args):
    """Make the runs that are missing, and return the lines of the result."""
    rates, seeds, tuning = args.lr or [None], 8 if args.seeds is None else args.seeds, []
    if args.tune_seeds:
        jobs = list_jobs(args, rates, range(TUNING, TUNING + args.tune_seeds), True)
        tuning = run_jobs(args, jobs, later=2 * seeds)
        rates = sorted({choose(tuning, arm) for arm in (args.a, args.b)})
    return describe(args, tuning + run_jobs(args, list_jobs(args, rates, range(seeds), False)))


def show(args):
    """Return lines about the file's rows with the given flags, by their settings and code."""
    groups = {}
    for row in read_rows(args.rows):
        command = f"{row.get('command', '')} ".replace(f" {write_flags(row['arm'])} ", " ")
        settings = [word for word in command.split() if not word.startswith(("--seed=", "--lr="))]
        wanted = (row["arm"] in (args.a, args.b) and {*args.flags} <= {*settings}
                  and (not args.lr or row["lr"] in args.lr)
                  and (not args.seeds or row["tuning"] or row["seed"] < args.seeds))
        if wanted:
            groups.setdefault((" ".join(settings), row.get("code")), []).append(row)
    lines = []
    for (settings, code), rows in groups.items():
        lines += [f"rows of: {settings or 'unnamed settings'}; code {code}", *describe(args, rows)]
    return lines or [f"{args.rows} has no rows of A or B with these flags"]


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


def detectable(values):
    """Return the minimum detectable effect: 80% of such experiments would detect a true
    difference of this size, with an interval that excludes 0."""
    n = len(values)
    return errors_to_detect(n - 1) * statistics.stdev(values) / math.sqrt(n)


@functools.cache
def errors_to_detect(degrees, power=0.8):
    """Return that effect in standard errors, as an earlier sample of this size estimates them."""
    t = t_quantile(0.975, degrees)
    # A sample's standard deviation, where the true one is 1, is chi / sqrt(degrees).
    spread = 5 / math.sqrt(2 * degrees)
    x = max(0.0, 1 - spread) + spread * (torch.arange(100, dtype=torch.float64) + 0.5) / 50
    chance = x ** (degrees - 1) * torch.exp(-degrees * (x * x - 1) / 2)
    chances = torch.outer(chance, chance) / chance.sum() ** 2
    low, high = t, 20 * t
    while high - low > 1e-4 * low:
        middle = (low + high) / 2
        detected = (chances * torch.special.ndtr(middle * x[:, None] - t * x)).sum()
        low, high = (middle, high) if detected < power else (low, middle)
    return low


# ---- The command line ----

def read_arguments(argv):
    parser = argparse.ArgumentParser(
        usage="python -m experiments.compare --a SETTING=VALUE ... --b SETTING=VALUE ... [other "
              "settings of grpo_sg.py, such as --task FILE.py]",
        description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--a", nargs="+", required=True, help="settings of A: shaping=none")
    parser.add_argument("--b", nargs="+", required=True, help="settings of B: shaping=sg")
    parser.add_argument("--lr", nargs="+", type=float, default=[], help="learning rates")
    parser.add_argument("--tune_seeds", type=int, default=0, help="0: no tuning")
    parser.add_argument("--seeds", type=int, help="counted runs of each arm and rate; default: 8")
    parser.add_argument("--rows", type=pathlib.Path, default="runs/compare.jsonl", help="results")
    parser.add_argument("--show", action="store_true", help="print what the file has, run nothing")
    parser.add_argument("--task", default="", help="a name or a file, as for grpo_sg.py")
    args, args.flags = parser.parse_known_args(argv)
    for setting in args.a + args.b:
        if "=" not in setting and not setting.isdigit():
            parser.error(f"{setting}: write a setting as NAME=VALUE, such as shaping=none")
    if args.task:
        args.flags.insert(0, f"--task={args.task}")
    flags = [flag[2:] for flag in args.flags if flag.startswith("--")]
    for flag in (*flags, *args.a, *args.b):
        name = flag.partition("=")[0].replace("-", "_")
        if name.isdigit():  # of people=3 4
            continue
        if name in ("seed", "out", "resume", "eval_only") or name == "lr" and args.lr:
            parser.error(f"--{name}: compare sets it")
        if name not in vars(grpo_sg.Config()):
            parser.error(f"there is no setting --{name}: python grpo_sg.py --help lists all")
    args.lr, args.a, args.b = sorted({*args.lr}), " ".join(args.a), " ".join(args.b)
    if args.a == args.b:
        parser.error("--a and --b are equal")
    if args.seeds is not None and args.seeds < 1:
        parser.error(f"--seeds must be 1 or more, not {args.seeds}")
    if args.tune_seeds and len(args.lr) < 2:
        parser.error("--tune_seeds needs two rates or more in --lr")
    if not args.show:
        try:
            args.code = hash_files(args)
        except tasks.UserError as error:
            parser.error(str(error))
    return args


def main(argv=None):
    args = read_arguments(sys.argv[1:] if argv is None else argv)
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    # kill and a closed terminal stop a comparison as Ctrl-C does: its run saves a checkpoint first.
    for number in (signal.SIGTERM, grpo_sg.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as SIGHUP is under nohup
            signal.signal(number, signal.default_int_handler)
    try:
        print("\n".join(show(args) if args.show else carry_out(args)))
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command continues")


if __name__ == "__main__":
    main()
