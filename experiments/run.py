"""The experiments on learning: arms that differ in one thing, from the same warm starts.

    python -m experiments.run                     what there is, and how much is recorded
    python -m experiments.run help --seeds 0 1    these; else all; goes on where it stopped
    python -m experiments.run --smoke             a step of every arm of every experiment
    python -m experiments.run --recheck           makes one recorded row of each again

A row of results/EXPERIMENT.jsonl (--results: another folder) is a run: experiment, arm, seed,
rate, split, what was measured, commit, date. Processes with different seeds may share a file.
Where there is a grid, an arm's learning rate is that with the highest mean avg@4 on validation
problems ("split": "valid") of the grid's seeds. The pre-registered rules of "help", "noisy",
"dose" and "stability" are in the docstring of analysis.py; that of "greedy" stands here:

    In "noisy" GRPO-SG's greedy accuracy, which was not to count, was above GRPO's by +.021
    [+.003, +.040]. "greedy" decides, by a rule fixed before its first run: fresh seeds, 200 to
    239; both methods at 1e-4 and at 2e-4; what counts is greedy accuracy on the test problems,
    GRPO-SG minus GRPO, paired by seed, at 1e-4. "The sign was real": its 95 % interval is above
    0. "It was not": the interval contains 0, or is below it. All else, avg@4 and 2e-4 too,
    stands beside it.

and that of "late", a pilot, written down before its first run:

    GRPO for 2,000 steps from the ready models of kk and qa, at the default learning rate and
    at twice that, seeds 300 and 301. A run has collapsed if its accuracy in training, in the
    mean of its last 100 steps, is more than .10 below that of its best 100 steps in a row, or
    if its avg@4 on test problems is below the ready model's. If no run collapses, that is
    what is said, and nothing follows. If one does, ten seeds of that task and rate with and
    without w are to follow, by a rule to be written down before them.

and that of "afar", of the paper's claim that GRPO-SG generalizes better and is less sharp:

    kk. The tiny model's own warm-up is on puzzles of three, four and five people, its RL on
    those of three alone; seeds 0 to 9. "many": all of them, 60 steps. "few": 64 of them, 120
    steps. Else the settings of `python grpo_sg.py`. What counts, GRPO-SG minus GRPO, paired by
    seed: (1) transfer: in "many", avg@4 on test puzzles of four and of five people, in the
    mean of both; (2) gap: in "few", avg@4 on the 64 minus that on 200 others of the training
    set; (3) sharpness: in "many", by how much avg@4 on 64 test puzzles falls when the
    parameters are moved by RADIUS in a random direction, in the mean of ten. "Generalises
    better": the 95 % interval of (1) is above 0, or that of (2) below. "Flatter": that of (3)
    is below 0. Else "no difference was seen", or the reverse by the reverse. With fewer
    seeds it is called interim. Looked at before: one run of seed 100 on validation
    puzzles, and RADIUS there, chosen so that avg@4 falls by about a third.
"""
import argparse
import contextlib
import copy
import dataclasses
import datetime
import functools
import json
import math
import pathlib
import random
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import grpo_sg
import tasks
from experiments.analysis import DAMPING_FACTORS, RESULTS, best_rates, read_rows
from grpo_sg import grpo_sg_loss
from support import cli, program, tiny
from support.run import Run

RADIUS = 12.0  # length of the random displacement; the parameters' own norm is about 62
# How much avg@4 may differ on another processor: twice the standard deviation of a paired
# difference in "help", where RL gains 0.06. Runs that round differently drift apart.
NEAR = 0.04
# Rows that are known not to be reproduced on some processor (reproduce.md).
NOT_REPRODUCED = (("help", "lopti", 5), ("help", "lopti", 19), ("dose", "pi", 19),
                  ("afar", "sg, few", 9))


# ---- Replacements for functions of grpo_sg ----

def weights_inside_the_clip(logps, old_logps, advantages, mask, *, weights, **more):
    return grpo_sg_loss(logps + weights.log(), old_logps, advantages, mask, **more)


def mask_by_value(completions, device, make_batch=grpo_sg.make_batch):
    batch = make_batch(completions, device)
    batch.mask &= batch.ids != 0  # the pad, which is the stop token too
    return batch


def score_at_another_temperature(model, batch, cfg, compute_logps=grpo_sg.compute_logps):
    return compute_logps(model, batch, dataclasses.replace(cfg, temperature=0.6))


def mu_inside_the_sigmoid(logps, old_logps, advantages, mask, *, weights, **more):
    """Compute the weight by the other reading of the formula (lesson/decisions.md)."""
    w = (2 * torch.sigmoid(9 * (logps.detach().exp() - 0.25))).clamp(1.0, 1.4)
    return grpo_sg_loss(logps, old_logps, advantages, mask, weights=w, **more)


def weigh_by_damping(d, logps, old_logps, advantages, mask, *, weights, **more):
    """Raise w to the power that makes its range the damping factor d (None: use pi instead), and
    divide by the mean over the tokens of the update, which is one micro-batch."""
    w = logps.detach().exp()
    if d is not None:
        w = weights ** (math.log(d) / math.log(1.4))
    w = w / w[mask].mean()
    return grpo_sg_loss(logps, old_logps, advantages, mask, weights=w, **more)


def learn_in_two_parts(policy, optimizer, completions, cfg, reference=None, seed=0):
    """Lopti (arXiv 2505.12929), with its eta of 0.5. Makes all updates of the rollout on only the
    tokens with pi < 0.5 when sampled, then all updates again on only the others. The remaining
    tokens have advantage 0 and count in the denominator."""
    shuffled = random.Random(seed).sample(completions, len(completions))
    updates = []
    minibatches = []
    for u in range(cfg.updates):
        minibatch = shuffled[u::cfg.updates]
        batches = grpo_sg.micro_batches(minibatch, cfg, policy.model.device)
        minibatches.append((batches, sum(sum(c.mask) for c in minibatch)))
        for batch in batches:
            with torch.no_grad():
                batch.old_logps = grpo_sg.compute_logps(policy.model, batch, cfg)
    for likely in (False, True):
        for batches, tokens in minibatches:
            chosen = []
            for batch in batches:
                part = (batch.old_logps.exp() >= 0.5) == likely
                chosen.append(dataclasses.replace(
                    batch, advantages=batch.advantages[:, None] * part))
            if chosen:
                updates.append(grpo_sg.update(policy.model, optimizer, chosen, tokens, cfg))
    return updates


def reward_with_luck(rng, c):
    """Return the reward, with one verdict in six flipped."""
    return tasks.reward(dataclasses.replace(c, correct=c.correct ^ (rng.random() < 1 / 6)))


# ---- Changes of the training problems ----

def keep_all(task, cfg):
    return task


def keep_few_with_luck(task, cfg):
    reward = functools.partial(reward_with_luck, random.Random(cfg.seed))
    return task._replace(train=task.train[:256], reward=reward)


def keep_three_people(task, cfg):
    """Keep the first --train_problems with three people, and the last 200 for validation."""
    three = [problem for problem in task.train if len(problem.answer) == 3]
    return task._replace(train=three[:cfg.train_problems], valid=three[-200:])


# ---- What is measured ----

def measure(policy, task, problems, cfg):
    """Return avg@4, greedy accuracy, and the share of the four samples that is truncated."""
    row, _ = grpo_sg.evaluate(policy, task, problems, cfg, samples=4)
    return {"avg@4": row["eval/avg@4"], "greedy": row["eval/accuracy"],
            "truncated": row["eval/truncated@4"]}


def measure_afar(policy, task, problems, cfg):
    """Return `measure` on problems with three people, and avg@4 on problems with other numbers of
    people, on up to 200 training problems, and on others like them. For sharpness, return avg@4
    on 64 problems with three people before and after random displacements of the parameters
    (length RADIUS, mean over ten)."""
    by_size = {}
    for problem in problems:
        by_size.setdefault(len(problem.answer), []).append(problem)
    three = by_size.pop(3)
    found = measure(policy, task, three, cfg)
    for n, others in by_size.items():
        found[f"avg@4, {n} people"] = measure(policy, task, others, cfg)["avg@4"]
    found["avg@4, trained on"] = measure(policy, task, task.train[:200], cfg)["avg@4"]
    found["avg@4, others"] = measure(policy, task, task.valid, cfg)["avg@4"]
    found["before a step aside"] = measure(policy, task, three[:64], cfg)["avg@4"]
    start = parameters_to_vector(policy.model.parameters()).detach().clone()
    aside = []
    for i in range(10):
        direction = torch.randn(len(start), generator=torch.Generator().manual_seed(i))
        moved = start + RADIUS * direction / direction.norm()
        vector_to_parameters(moved, policy.model.parameters())
        aside.append(measure(policy, task, three[:64], cfg)["avg@4"])
    vector_to_parameters(start, policy.model.parameters())
    found["after a step aside"] = statistics.fmean(aside)
    return found


# ---- The experiments ----

class Arm(NamedTuple):
    settings: dict = {}
    patches: dict = {}  # name in grpo_sg: its replacement
    warmup: int = 0     # replaces the experiment's


class Experiment(NamedTuple):
    question: str
    arms: dict                # name: Arm
    seeds: range              # of the counted runs, on test problems
    rates: tuple = ()         # learning rates: of the grid, or, without one, of all arms
    grid: range = range(0)    # its seeds, on validation problems
    rate_of: tuple = ()       # (experiment, arm): all arms have this one's best rate
    warmup: int = 100         # steps; 0: the pretrained model
    # kind to GRPO-SG, whose weight tells tokens apart only where unlikely ones are sampled
    settings: dict = {"steps": 40, "prompts": 16, "updates": 8}
    flags: tuple = ()         # of the warm start
    keep: Callable = keep_all        # (task, cfg) -> the task that is trained on
    measure: Callable = measure
    before: bool = False      # the warm start is measured, too


GRID = 1e-4, 2e-4, 4e-4
METHODS = {"none": Arm({"shaping": "none"}), "sg": Arm()}
OTHERS = {"ar": Arm({"shaping": "ar"}),
          "lopti": Arm({"shaping": "none"}, {"learn": learn_in_two_parts})}
MISTAKES = {"sg": Arm(), "end token masked": Arm({}, {"make_batch": mask_by_value}),
            "clip(w r)": Arm({}, {"grpo_sg_loss": weights_inside_the_clip}),
            "tau = 9": Arm({"tau": 9.0}),
            "scored at another temperature": Arm(
                {}, {"compute_logps": score_at_another_temperature})}
READINGS = {"sg": Arm(), "mu inside": Arm({}, {"grpo_sg_loss": mu_inside_the_sigmoid})}
DAMPED = {name: Arm({}, {"grpo_sg_loss": functools.partial(weigh_by_damping, size)})
         for name, size in DAMPING_FACTORS.items()}
STARTS = {"warm-up of 100": Arm({"steps": 0}, warmup=100),
          "warm-up of 150": Arm({"steps": 0}, warmup=150)}
NOISY = {"settings": {"steps": 60, "prompts": 16, "updates": 8}, "keep": keep_few_with_luck}
LATE = {"kk": Arm(), "qa": Arm({"task": "qa"})}
AFAR = {"none, many": Arm({"shaping": "none"}), "sg, many": Arm(),
        "none, few": Arm({"shaping": "none", "train_problems": 64, "steps": 120}),
        "sg, few": Arm({"train_problems": 64, "steps": 120})}
COMMANDS = {}
cli.add_extras()
for name in tasks.TASKS:
    COMMANDS[name] = Arm({"task": name, "warm_up": True})
    COMMANDS[f"{name}, ready"] = Arm({"task": name})

EXPERIMENTS = {
    "help": Experiment("Does it help?", {**METHODS, **OTHERS}, range(20), GRID,
                       range(100, 104)),
    "noisy": Experiment("Does it help with noisy rewards?", METHODS, range(20), GRID,
                        range(100, 104), **NOISY),
    "noisy-equal": Experiment("And with GRPO at the learning rate of GRPO-SG?",
                              {"none": METHODS["none"]}, range(20), rate_of=("noisy", "sg"),
                              **NOISY),
    "greedy": Experiment("Does the gain in greedy accuracy hold?", METHODS, range(200, 240),
                         (1e-4, 2e-4), **NOISY),
    "mistakes": Experiment("What do four mistakes cost?", MISTAKES, range(8),
                           rate_of=("help", "sg")),
    "visible": Experiment("Which of them show in the default run?", MISTAKES, range(5),
                          (2e-4,), warmup=0, settings={}),
    "reading": Experiment("Does the other reading of w matter?", READINGS, range(10),
                          rate_of=("help", "sg")),
    "stability": Experiment("Is it more stable?", METHODS, range(10),
                            (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3), before=True),
    "dose": Experiment("Does more damping help?", DAMPED, range(20), (5e-5, 1e-4, 2e-4, 4e-4),
                       range(102, 105), warmup=150,
                       settings={"steps": 60, "prompts": 16, "updates": 4}),
    "late": Experiment("Does a long run collapse?", LATE, range(300, 302), (2e-4, 4e-4),
                       warmup=0, settings={"steps": 2000, "shaping": "none"}, before=True),
    "afar": Experiment("Does it generalize better, and is it less sharp?", AFAR, range(10),
                       (2e-4,), warmup=500, settings={}, keep=keep_three_people,
                       measure=measure_afar,
                       flags=("--people", "3", "4", "5", "--eval_problems", "600")),
    "start": Experiment("What do the warm starts score?", STARTS, range(20), (0.0,)),
    "default": Experiment("What does `python grpo_sg.py --task TASK` reach?", COMMANDS,
                          range(5), (2e-4,)),
}


def jobs_of(name, results, seeds=None):
    """Yield the runs of an experiment, as the first columns of their rows: the grid, if there is
    one, then the counted runs, which need a complete grid."""
    e = EXPERIMENTS[name]
    grid = []
    for seed in e.grid:
        for arm in e.arms:
            for rate in e.rates:
                grid.append({"experiment": name, "arm": arm, "seed": seed, "rate": rate,
                             "split": "valid"})
    yield from grid
    best = choose_rates(e.rate_of[0] if e.rate_of else name, results)
    for seed in seeds or e.seeds:
        for arm in e.arms:
            rates = [best[e.rate_of[1]]] if e.rate_of else [best[arm]] if grid else e.rates
            for rate in rates:
                yield {"experiment": name, "arm": arm, "seed": seed, "rate": rate,
                       "split": "test"}


def choose_rates(name, results):
    rows = read_rows(results / f"{name}.jsonl")
    found = best_rates([row for row in rows if row["split"] == "valid"])
    if EXPERIMENTS[name].grid and not found:
        raise SystemExit(f"the learning rates are those of {name}: run that first")
    return found


# ---- A run ----

def make_row_with_norms(step, completions, updates, group_size, make=grpo_sg.make_step_row):
    """Return a step's row, with the norms of all its updates, before gradient clipping."""
    norms = [update["norm"] for update in updates]
    row = make(step, completions, updates, group_size)
    return {**row, "norms": [norm for norm in norms if math.isfinite(norm)]}


@functools.lru_cache(1)
def start_of(name, warmup, seed, flags):
    """Return (policy, task, cfg) of a task's tiny model after so many warm-up steps; 0 means the
    pretrained model. Copy the model before training it: the next call may return the same one."""
    own = ["--warm_up"] if warmup else []
    cfg = cli.parse(["--task", name, "--seed", str(seed), "--eval_every", "1000000",
                     *flags, *own])
    policy, task, _ = cli.load(cfg)
    if warmup:
        task = task._replace(warmup=warmup)
        tiny.warm_up(policy, task, cfg)
    return policy, task, cfg


def train_arm(experiment, arm, seed, rate, split, smoke=False):
    """Train an arm from the warm start and return what was measured. smoke: only one step, from
    the pretrained model, on four problems."""
    e, a = EXPERIMENTS[experiment], EXPERIMENTS[experiment].arms[arm]
    settings = {"task": "kk", **e.settings, **a.settings}
    warmup = 0 if smoke else a.warmup or e.warmup
    flags = () if smoke else e.flags
    policy, task, cfg = start_of(settings["task"], warmup, seed, flags)
    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    cfg = dataclasses.replace(cfg, lr=rate, **settings)
    problems = getattr(task, split)
    if smoke:
        cfg = dataclasses.replace(cfg, steps=min(1, cfg.steps))
        problems = problems[:4]
    task = e.keep(task, cfg)
    found = {}
    if e.before:
        found["before"] = e.measure(policy, task, problems, cfg)["avg@4"]
    patches = {"make_step_row": make_row_with_norms, **a.patches}
    with mock.patch.multiple(grpo_sg, **patches):
        rows = grpo_sg.train(policy, task, cfg, Run(cfg))
    return {**e.measure(policy, task, problems, cfg), **describe(rows), **found}


def describe(rows):
    """Summarize a training run; {} if it made fewer than two updates."""
    norms = [norm for row in rows for norm in row["norms"]]
    if len(norms) < 2:
        return {}
    average = statistics.fmean(norms)
    found = {"norm mean": average, "norm max": max(norms),
             "norm cv": statistics.stdev(norms) / average,
             "norm above 1": statistics.fmean(norm > 1 for norm in norms),
             "not finite": sum(row["skipped"] for row in rows)}
    for key in ("weight_mean", "low_prob_frac", "clip_frac", "entropy"):
        # None: the step had no learning signal.
        values = [row[key] for row in rows if row[key] is not None]
        found[key] = statistics.fmean(values) if values else None
    found["curve"] = [round(row["accuracy"], 3) for row in rows]
    return found


def run_command(experiment, arm, seed, rate, split, smoke=False):
    """Run the command that a user types; also return its two tests, its seconds and the peak
    memory of this process."""
    started = time.time()
    settings = EXPERIMENTS[experiment].arms[arm].settings
    flags = ["--seed", str(seed)]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if smoke:
            flags += ["--steps", "1", "--eval_problems", "4"]
            stack.enter_context(mock.patch.object(tiny, "warm_up"))
        cfg = cli.parse([*flags, "--out", f"{folder}/run"], **settings)
        policy, task, state = cli.load(cfg)
        with Run(cfg, policy, state) as run:
            cli.carry_out(policy, task, cfg, run)
        rows = read_rows(pathlib.Path(run.out, "metrics.jsonl"))
    before, after = [row for row in rows if row.get("split") == "test"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"avg@4": after["eval/avg@4"], "greedy": after["eval/accuracy"],
            "truncated": after["eval/truncated@4"], "before": before["eval/avg@4"],
            "tests": [before, after], "best constant answer": task.floor,
            "curve": [round(row["accuracy"], 4) for row in run.rows],
            "seconds": round(time.time() - started), "peak_mb": round(memory / 1024)}


def work(job, smoke=False):
    made = run_command if job["experiment"] == "default" else train_arm
    return made(**job, smoke=smoke)


# ---- All runs ----

def run_jobs(name, results, seeds):
    """Append a row for each job that has none in the file. Rows of another version of the program
    count as done: move its file away first."""
    path = results / f"{name}.jsonl"
    made = False
    for job in jobs_of(name, results, seeds):
        if any(job.items() <= row.items() for row in read_rows(path)):
            continue
        made = True
        started = time.process_time()
        row = {**job, **work(job)}
        row.update(cpu_seconds=round(time.process_time() - started, 1), commit=name_commit(),
                   date=str(datetime.date.today()))
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")
        print(time.strftime("%H:%M:%S"), *job.values(), f"avg@4 {row['avg@4']:.3f}", flush=True)
    if not made:
        print(f"{name}: every run is recorded in {path}; choose other seeds with --seeds")


@functools.cache
def name_commit():
    """Return the commit of the program, with "changed" if a script differs from it."""
    def git(*words):
        done = subprocess.run(["git", *words], cwd=RESULTS, capture_output=True, text=True)
        return done.stdout.strip()
    changed = git("status", "--porcelain", "--", ":/*.py")
    return git("rev-parse", "--short", "HEAD") + (" changed" if changed else "")


def smoke(names):
    """Run a step of every arm and return {(experiment, arm): row}."""
    rows = {}
    for name in names:
        for arm in EXPERIMENTS[name].arms:
            job = {"experiment": name, "arm": arm, "seed": 0, "rate": 1e-4, "split": "test"}
            rows[name, arm] = work(job, smoke=True)
            print(name, arm, f"avg@4 {rows[name, arm]['avg@4']:.2f}", flush=True)
    return rows


def recheck(names, results):
    """Recompute the last row of each experiment. Return how many differ from the recorded ones,
    not counting those that are known to differ between processors."""
    far = 0
    for name in names:
        rows = read_rows(results / f"{name}.jsonl")
        if not rows:
            print(f"{name}: nothing is recorded")
            continue
        old = rows[-1]
        job = {key: old[key] for key in ("experiment", "arm", "seed", "rate", "split")}
        verdict = compare(old, work(job))
        known = tuple(job.values())[:3] in NOT_REPRODUCED
        print(*job.values(), verdict, "(known to differ)" if known else "", flush=True)
        far += verdict.startswith("FAR") and not known
    return far


def compare(old, new):
    """Return a verdict: accuracies and curve must be equal, other statistics equal to 1e-6."""
    same = all(old[key] == new[key] for key in ("avg@4", "greedy", "truncated", "curve")
               if key in old)
    for key in ("norm mean", "norm max", "weight_mean", "low_prob_frac", "clip_frac",
                "entropy"):
        same = same and (key not in old or math.isclose(old[key], new[key], abs_tol=1e-6))
    if same:
        return "equal"
    near = abs(old["avg@4"] - new["avg@4"]) < NEAR
    return f"{'near' if near else 'FAR'}: avg@4 {old['avg@4']} was recorded, now {new['avg@4']}"


def list_experiments(results):
    for name, e in EXPERIMENTS.items():
        rows = read_rows(results / f"{name}.jsonl")
        print(f"{name}: {e.question} {len(e.arms)} arms ({'; '.join(e.arms)}), "
              f"{len(e.seeds)} seeds; {len(rows)} rows")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("experiments", nargs="*", help=", ".join(EXPERIMENTS))
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds of the counted runs")
    parser.add_argument("--smoke", action="store_true", help="run a step of every arm")
    parser.add_argument("--recheck", action="store_true", help="rerun one recorded row of each")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    for name in args.experiments:
        if name not in EXPERIMENTS:
            parser.error(f"there is no experiment {name}: {', '.join(EXPERIMENTS)}")
    if not args.results.is_dir():
        parser.error(f"--results {args.results}: there is no such folder")
    names = args.experiments or list(EXPERIMENTS)
    torch.set_num_threads(1)
    if args.smoke:
        smoke(names)
    elif args.recheck:
        raise SystemExit(recheck(names, args.results))
    elif args.experiments:
        for name in names:
            run_jobs(name, args.results, args.seeds)
    else:
        list_experiments(args.results)


if __name__ == "__main__":
    with program.one_line_errors(cli.advise_on_memory()):
        main()
