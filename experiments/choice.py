"""Is the weight worth anything that the learning rate is not? Four methods, each tuned with an
equal budget, on three tasks that no earlier comparison has used for this.

    python -m experiments.choice run                        resumes where it stopped
    python -m experiments.choice run --tasks phone_book     only this task
    python -m experiments.choice show                       differences, intervals, verdict
    python -m experiments.choice equal                      the later control, of complete tasks

Rows are appended to results/choice.jsonl (--results): one for each run, with commit and date.

The rule, written down and committed before the first counted run. Looked at before: the rows of
experiments/when.py and results/pilot/, in which a higher early learning rate gained more than a
weight did; scouting runs of GRPO, seeds 990 and 991, on validation problems of the three tasks,
which set the sizes and the learning rates below; and three such runs of C at one rate, to see that
it switches (after 5, 8 and 11 steps).

- Question: on a task of one's own, does GRPO-SG's weight, or strong damping that is switched off
  in time, improve a run that has a tuned learning rate? Hypotheses: C minus A is 0, B minus A is 0.
- Arms. A: GRPO. B: GRPO-SG as shipped, not divided by its mean. C: damping 10, divided by its mean,
  until an estimate of its efficiency falls below 1, then GRPO. D: damping 10, divided by its mean,
  for 20 steps, then GRPO: the control for the estimate.
- The estimate (`estimate_efficiency`) uses the gradients of the last five rollouts that have a
  learning signal, each at r = 1 with the policy of its step. In turn, one of the five is the
  update, and the sum of GRPO's gradients of the other four is the direction to follow; the
  estimate is the mean cosine between the two with damping 10, divided by the mean cosine with
  GRPO. From the fifth such rollout on, C switches for good when it is below 1. If GRPO's own mean
  cosine is not above 0, there is no estimate, and C does not switch.
- Tasks: `phone_book` (lesson/my_tool_task.py), updates of 2 groups; `backwards`
  (lesson/my_task.py), updates of 16 groups, because with 2 or 8 GRPO hardly learns it in 60 steps;
  `math`, updates of 2 groups. 60 steps of one update each, 8 completions a problem; else the
  settings of `python grpo_sg.py` for the tiny model. Each seed has its own problems and its own
  warm start, which all arms share. Arms also share the seeds of the rollouts.
- Tuning, the same for each arm: four learning rates, a factor of 2 apart, each constant or halved
  after 20 steps, over seeds 2000 to 2003. Chosen is the highest mean of avg@8 after 10, 20, 40 and
  60 steps, on 100 validation problems. If an arm's choice is at an end of the grid, all arms get
  the next rate beyond that end, until no arm's choice is at an end. Counted runs begin after that.
- Counted: 40 seeds, 3000 to 3039, on 200 problems: the test problems, and where these are only 100,
  the seed's validation problems too, which no other step of that seed uses. No run is excluded,
  diverged ones included.
- Outcomes: avg@8 (the mean over 8 samples of each problem at temperature 1) after 60 steps, "end",
  and its mean over steps 10, 20, 40 and 60, "mean". Differences are paired by seed. What counts
  is the mean over the complete tasks: each seed's differences are averaged over tasks first, which
  gives 40 values. Two comparisons, C minus A and B minus A, by two outcomes make four tests
  (Student's t, two-sided, 5%), corrected by Holm's method. D minus A, C minus D, greedy accuracy
  and the single tasks are printed next to them, uncorrected, and do not count.
- Verdict, the first that holds:
  "equivalent": all four pooled 95% intervals are within -0.01 and +0.01, and no task's own interval
  is wholly outside of them. The README then says: leave the weight at 1 and tune the rate.
  "C helps": after Holm's correction C minus A is above 0 in an outcome, and below 0 in none. C then
  becomes an option in experiments/, not in the core.
  "open": anything else. It is reported with its intervals, whatever they say.
- Power: with a paired standard deviation of 0.02, 40 seeds detect 0.009 on a task (80% power, 5%,
  uncorrected), and 0.005 in the mean of three tasks. Earlier experiments had 0.009 to 0.023.
- A task is complete when all its counted rows exist. Tasks run in the order above, each to its
  end. If time runs out, there are fewer tasks, not fewer seeds, and an incomplete task counts for
  nothing until it is complete. Without a complete task there is no verdict.

Added after the rows of phone_book had been seen, because there the grid chose 8e-4, halved, for A
and 4e-4 for all others: "equal" runs A at the setting that C has, on the same seeds, into
results/choice-equal.jsonl. It says how much of a difference comes from the choice of the rate. It
is a description and changes no verdict. (Commit 7e9e938 has experiments/when.py.)
"""
import argparse
import contextlib
import copy
import dataclasses
import datetime
import functools
import math
import pathlib
import statistics
import time
from typing import NamedTuple
from unittest import mock

import torch

import grpo_sg
import tasks
from experiments import analysis, shared
from lesson import look, my_task, my_tool_task

ARMS = {"A": "GRPO", "B": "GRPO-SG", "C": "damping 10 until its efficiency falls below 1",
        "D": "damping 10 for 20 steps"}
COUNTED = ("C", "A"), ("B", "A")
CONTROLS = ("D", "A"), ("C", "D")
OUTCOMES = "end", "mean"
POINTS = 10, 20, 40, 60   # steps after which avg@8 is measured
SAMPLES = 8               # of each problem, in avg@8
FIXED = 20                # the last step of damping in D, and of the full rate where it is halved
WINDOW = 5                # rollouts in the estimate
GRID = range(2000, 2004)
SEEDS = range(3000, 3040)
MARGIN = 0.01
FRESH = 40_000            # plus the step: the seed of a rollout
OWN_TASKS = {"phone_book": my_tool_task.make_phone_book, "backwards": my_task.make_backwards}


class Setting(NamedTuple):
    prompts: int   # groups of an update
    rates: tuple   # the four of the grid before it is extended


TASKS = {"phone_book": Setting(2, (2e-4, 4e-4, 8e-4, 1.6e-3)),
         "backwards": Setting(16, (1e-4, 2e-4, 4e-4, 8e-4)),
         "math": Setting(2, (1e-4, 2e-4, 4e-4, 8e-4))}


# ---- The estimate of arm C ----

def gradients_of(policy, completions, cfg):
    """Return (2, parameters): the rollout's gradients for GRPO and for damping 10, each up to a
    positive factor; None without a learning signal."""
    useful = [c for c in completions if c.advantage]
    if not useful:
        return None

    def coefficients(logps, batch, _):
        A = look.advantages_of(batch, cfg)
        return [A, shared.weigh_damping(logps) * A]
    rows = look.group_gradients(policy, useful, cfg, coefficients)
    policy.model.eval()
    return rows


def estimate_efficiency(window):
    """Return the mean cosine of one rollout's damped gradient with the sum of the others'
    undamped ones, divided by the same for the undamped gradient; nan if that is not above 0.

    Args:
        window: rollouts, each (2, parameters) as from `gradients_of`.
    """
    plain, damped = torch.stack(window).double().unbind(1)  # (rollouts, parameters) each
    others = plain.sum(0) - plain
    base = torch.cosine_similarity(plain, others).mean()
    ours = torch.cosine_similarity(damped, others).mean()
    return float(ours / base) if base > 0 else math.nan


# ---- A run ----

@functools.lru_cache(1)
def start_of(name, seed):
    """Return (policy, task, cfg) at the warm start. Copy the policy before training it: the next
    call may return the same one."""
    my_tool_task.RNG.seed(seed)  # which its problems are drawn from: the same in any order of runs
    with mock.patch.dict(tasks.TASKS, OWN_TASKS):
        return shared.begin(name, seed, prompts=TASKS[name].prompts, updates=1)


def is_damped(arm, step, estimates):
    """Return whether this step of the arm has damping 10. estimates: of the steps before."""
    if arm == "C":
        return not any(value < 1 for value in estimates)
    return arm == "D" and step <= FIXED


def train_arm(task, arm, seed, rate, halved, split):
    """Train an arm and return the rest of its row."""
    start, made, cfg = start_of(task, seed)
    policy = dataclasses.replace(start, model=copy.deepcopy(start.model))
    cfg = dataclasses.replace(cfg, lr=rate, shaping="sg" if arm == "B" else "none")
    optimizer = shared.make_optimizer(policy, cfg)
    window, estimates, damped = [], [], 0
    sampled, greedy = {"0": measure_start(task, seed, split)}, {}
    for step in range(1, max(POINTS) + 1):
        if halved and step == FIXED + 1:
            optimizer.param_groups[0]["lr"] = rate / 2
        completions, seed_of_step = shared.draw_rollout(policy, made, cfg, FRESH + step)
        damp = is_damped(arm, step, estimates)
        damped += damp
        if arm == "C" and damp:
            rows = gradients_of(policy, completions, cfg)
            if rows is not None:
                window = [*window, rows][-WINDOW:]
                if len(window) == WINDOW:
                    estimates.append(estimate_efficiency(window))
        with damping() if damp else contextlib.nullcontext():
            grpo_sg.learn(policy, optimizer, completions, cfg, None, seed_of_step)
        if step in POINTS:
            sampled[str(step)], greedy[str(step)] = measure(policy, made, cfg, split)
    found = {"avg@8": sampled, "greedy": greedy, "damped steps": damped}
    if arm == "C":  # JSON has no nan
        found["estimates"] = [round(x, 3) if math.isfinite(x) else None for x in estimates]
    return found


def damping():
    """Return a context in which updates have damping 10, divided by its mean."""
    return mock.patch.object(grpo_sg, "grpo_sg_loss", shared.loss_with_damping)


def measure(policy, task, cfg, split):
    """Return (avg@8, greedy accuracy). Arms of a seed share random numbers."""
    problems = task.valid[:100] if split == "valid" else [*task.test, *task.valid][:200]
    found = []
    for n, temperature in ((SAMPLES, 1.0), (1, 0.0)):
        completions = grpo_sg.rollout(policy, task, problems, cfg, n=n, temperature=temperature,
                                      seed=cfg.seed)
        found.append(round(statistics.fmean(c.solved for c in completions), 6))
    return found


@functools.lru_cache(1)
def measure_start(name, seed, split):
    return measure(*start_of(name, seed), split)[0]


# ---- All runs ----

def outcome(row, name, key="avg@8"):
    """Return the "end" or the "mean" of a row."""
    values = [row[key][str(step)] for step in POINTS]
    return values[-1] if name == "end" else statistics.fmean(values)


def settings_of(rows, task, arm):
    """Return {(rate, halved): mean over the grid's seeds} of the settings that all have."""
    found = {}
    for row in rows:
        if (row["task"], row["arm"], row["split"]) == (task, arm, "valid"):
            found.setdefault((row["rate"], row["halved"]), []).append(outcome(row, "mean"))
    return {key: statistics.fmean(values) for key, values in sorted(found.items())
            if len(values) == len(GRID)}


def choose(rows, task):
    """Return {arm: (rate, halved)}; None for an arm without a complete setting."""
    found = {}
    for arm in ARMS:
        means = settings_of(rows, task, arm)
        found[arm] = max(means, key=means.get, default=None)
    return found


def grid_jobs(task, rates):
    for seed in GRID:
        for arm in ARMS:
            for rate in rates:
                for halved in (False, True):
                    yield {"task": task, "arm": arm, "seed": seed, "rate": rate, "halved": halved,
                           "split": "valid"}


def missing(rows, jobs):
    return [job for job in jobs if not any(job.items() <= row.items() for row in rows)]


def rates_of(rows, task):
    """Return the rates of the grid, extended by the rule as far as its rows say."""
    rates = list(TASKS[task].rates)
    while not missing(rows, grid_jobs(task, rates)):
        inside = [row for row in rows if row["rate"] in rates]
        chosen = {rate for rate, _ in choose(inside, task).values()}
        ends = [rates[0] / 2] * (rates[0] in chosen), [rates[-1] * 2] * (rates[-1] in chosen)
        if ends == ([], []):
            break
        rates = [*ends[0], *rates, *ends[1]]
    return rates


def counted_jobs(task, chosen):
    for seed in SEEDS:
        for arm, (rate, halved) in chosen.items():
            yield {"task": task, "arm": arm, "seed": seed, "rate": rate, "halved": halved,
                   "split": "test"}


def jobs_left(rows, task):
    """Return the runs that can be made now: those of the grid, then the counted ones."""
    return (missing(rows, grid_jobs(task, rates_of(rows, task)))
            or missing(rows, counted_jobs(task, choose(rows, task))))


def run(path, names):
    """Append a row for each run that has none in the file."""
    for name in names:
        while jobs := jobs_left(analysis.read_rows(path), name):
            run_jobs(path, jobs)


def run_equal(path, names):
    """Append the rows of the later control to choice-equal.jsonl, next to this file."""
    rows, beside = analysis.read_rows(path), path.with_name("choice-equal.jsonl")
    for name in [each for each in complete(rows) if each in names]:
        chosen = choose(rows, name)
        if chosen["A"] != chosen["C"]:
            jobs = counted_jobs(name, {"A": chosen["C"]})
            run_jobs(beside, missing(analysis.read_rows(beside), jobs))


def run_jobs(path, jobs):
    for job in jobs:
        started = time.process_time()
        row = {**job, **train_arm(**job), "commit": shared.name_commit(),
               "date": str(datetime.date.today()),
               "cpu_seconds": round(time.process_time() - started, 1)}
        analysis.append_rows(path, [row])
        print(time.strftime("%H:%M:%S"), *job.values(), row["cpu_seconds"], flush=True)


# ---- What the rows say ----

def counted(rows, task, arm):
    """Return {seed: row} of the counted runs."""
    return analysis.select(rows, task=task, arm=arm, split="test")


def complete(rows):
    """Return the tasks that have all their counted rows."""
    return [task for task in TASKS
            if all(len(counted(rows, task, arm)) == len(SEEDS) for arm in ARMS)]


def compare(rows, task, pair, name, key="avg@8"):
    """Return the differences of an outcome between two arms, one for each seed."""
    ours, theirs = (counted(rows, task, arm) for arm in pair)
    return [outcome(ours[seed], name, key) - outcome(theirs[seed], name, key) for seed in SEEDS]


def pool(rows, names, pair, name, key="avg@8"):
    """Return the differences of each seed, averaged over tasks."""
    return [statistics.fmean(values)
            for values in zip(*(compare(rows, task, pair, name, key) for task in names))]


def judge(rows):
    """Return (verdict, {(pair, outcome): (pooled differences, whether Holm's test rejects)})."""
    names = complete(rows)
    if not names:
        return "none yet: no task is complete", {}
    tests = {(pair, name): pool(rows, names, pair, name) for pair in COUNTED for name in OUTCOMES}
    rejected = analysis.holm(tests)
    found = {key: (values, rejected[key]) for key, values in tests.items()}
    inside, outside = True, False
    for (pair, name), values in tests.items():
        _, low, high = analysis.interval(values)
        inside = inside and -MARGIN <= low and high <= MARGIN
        for task in names:
            _, low, high = analysis.interval(compare(rows, task, pair, name))
            outside = outside or low > MARGIN or high < -MARGIN
    if inside and not outside:
        return "equivalent", found
    signs = [statistics.fmean(values) > 0 for (pair, _), (values, rejects) in found.items()
             if pair == COUNTED[0] and rejects]
    return "C helps" if signs and all(signs) else "open", found


def show(rows):
    """Print what was chosen, each difference with its interval, and the verdict."""
    names = complete(rows)
    for task in names:
        print(f"{task}:")
        for arm in ARMS:
            here = list(counted(rows, task, arm).values())
            rate, halved = here[0]["rate"], here[0]["halved"]
            level = [statistics.fmean(outcome(row, name) for row in here) for name in OUTCOMES]
            damped = statistics.fmean(row["damped steps"] for row in here)
            print(f"  {arm}, {ARMS[arm]}: rate {rate:g}{', halved' * halved}; end {level[0]:.4f}, "
                  f"mean {level[1]:.4f}; damped for {damped:.1f} steps")
        tell(functools.partial(compare, rows, task))
    if len(names) > 1:
        print(f"{', '.join(names)}, pooled:")
        tell(functools.partial(pool, rows, names))
    verdict, found = judge(rows)
    for (pair, name), (_, rejects) in found.items():
        print(f"{' minus '.join(pair)}, {name}: {'differs' if rejects else 'no difference'} after "
              "Holm's correction")
    for task in TASKS:
        if task not in names:
            print(f"{task}: not complete")
    print(f"verdict: {verdict}")


def at_equal_rates(rows, others):
    """Return {task: rows with A at the setting that C has} of the tasks whose later control,
    others, is complete."""
    found = {}
    for task in complete(rows):
        control = [row for row in others if row["task"] == task]
        if len(control) == len(SEEDS):
            kept = [row for row in rows if (row["arm"], row["split"]) != ("A", "test")]
            found[task] = kept + control
    return found


def tell(differences):
    """Print each comparison. differences: a function of (pair, outcome, key)."""
    for pair in COUNTED + CONTROLS:
        for key in ("avg@8", "greedy"):
            for name in OUTCOMES:
                values = differences(pair, name, key)
                average, low, high = analysis.interval(values)
                print(f"  {' minus '.join(pair)}, {key}, {name}: {average:+.4f} [{low:+.4f}, "
                      f"{high:+.4f}], MDE {analysis.detectable(values):.4f}, sd "
                      f"{statistics.stdev(values):.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["run", "show", "equal"])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--results", type=pathlib.Path, default=analysis.RESULTS / "choice.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what != "show":
        {"run": run, "equal": run_equal}[args.what](args.results, args.tasks)
    rows = analysis.read_rows(args.results)
    show(rows)
    others = analysis.read_rows(args.results.with_name("choice-equal.jsonl"))
    for task, equal in at_equal_rates(rows, others).items():
        print(f"{task}, A at the setting of C (added later; changes no verdict):")
        tell(functools.partial(compare, equal, task))


if __name__ == "__main__":
    main()
