"""Does the weight help in training where experiments/signal.py says that it points updates
better, and harm where it says the reverse?

    python -m experiments.when run                    two core-hours; resumes where it stopped
    python -m experiments.when run --parts early      only this part
    python -m experiments.when show                   differences, intervals, verdicts

Rows are appended to results/when.jsonl (--results): one for each run, with commit and date.

The rule, written down before the first counted run. Looked at before: seeds 0 and 1 of
experiments/signal.py on qa, seed 0 on kk and math; a pilot from the pretrained models on qa, kk
and math (seeds 0 to 29, one learning rate for all); and one scouting seed (990) of what GRPO and
damping 10 reach at three learning rates.

What was measured on qa (GRPO-SG; damping 10), seeds 0 and 1: the efficiency of updates of 32
groups is 1.052, 1.017; 1.114, 1.037 at the warm start (accuracy 0.43, 0.40), and in AdamW's
metric 1.152, 1.169; 1.236, 1.528 after 5 steps (0.75, 0.71), 0.934, 0.910; 0.312, 0.216 after 15
(0.93, 0.95), 0.948, 0.929; 0.415, 0.200 after 30. So the sign changes near an accuracy of 0.8 for
damping 10, and somewhat later for GRPO-SG. To first order progress grows with the efficiency, and
AdamW averages some ten updates, so an effect should be about (efficiency of some 32 groups - 1)
times what GRPO gains meanwhile.

- Common to all parts: qa, the settings of `python grpo_sg.py --task qa`, but for what is named
  here; each seed has its own problems and its own warm start (--warm_up); one update of AdamW a
  step. What counts is avg@8: the share of right completions of 8 for each of 200 test problems,
  at temperature 1. Differences are paired by seed, over 20 fresh seeds, 1000 to 1019, with 95%
  confidence intervals by Student's t.
- Weights are divided by their mean over the tokens of the update, so that no arm takes larger
  steps. (In GRPO-SG itself they are not; AdamW divides a common factor out, but where gradients
  are clipped.)
- "early": 10 steps of 2 groups from the warm start. GRPO, GRPO-SG, AR, damping 10, each at its own
  best learning rate: that with the highest mean avg@8 on validation problems after the last
  step, over seeds 900 to 903, of nine from 2e-4 to 3.2e-3, a factor of sqrt 2 apart.
- "late": 20 steps of 8 groups, after 15 steps of GRPO at the default settings. The same arms, each
  at its own best rate of five from 1e-4 to 4e-4, chosen in the same way.
- "switch": 60 steps of 2 groups from the warm start, all arms at 4e-4, with which GRPO reached 0.78
  after 20 steps in the scouting seed; so weights change after 20 steps. Besides GRPO, GRPO-SG and
  damping 10 throughout: each of the latter only in the first 20 steps, each only after them, and
  damping 10 with its reverse, 1/1.4, after them.

Five predictions count; each is "confirmed" if the interval is on its side of 0, "refuted" if on
the other, else "open":

1. early: GRPO-SG minus GRPO is above 0 (expected: 0.01 to 0.04, 3% to 10% of GRPO's gain);
2. early: damping 10 minus GRPO is above 0 (expected: 0.025 to 0.09, 7% to 22% of the gain);
3. late: damping 10 minus GRPO is below 0 (expected: 60% to 80% of GRPO's gain);
4. switch: "GRPO, then damping 10" minus GRPO is below 0 after 60 steps;
5. switch: "damping 10, then GRPO" minus damping 10 throughout is above 0 after 60 steps.

All else is description: AR, for which a third of GRPO-SG's effect is expected; GRPO-SG in "late",
for which a loss of 5% to 10% of the gain is expected, which 20 seeds may not tell from 0; and
"damping 10, then GRPO" minus GRPO after 60 steps, which should be above 0. Intervals are not
corrected for the number of comparisons. A best rate at the end of its grid is named. With fewer
seeds a verdict is called interim.

A warm start without the shortcut was considered for the reverse prediction, kk after 200 steps on
full solutions: there the efficiency of damping 10 is 0.86 and 0.73 (seeds 0 and 1), but 15 steps
of GRPO moved the accuracy from 0.569 to 0.567, so no difference could show.
"""
import argparse
import copy
import dataclasses
import datetime
import functools
import pathlib
import statistics
import time
from typing import NamedTuple
from unittest import mock

import torch

import grpo_sg
from experiments import analysis, signal
from experiments.run import name_commit
from experiments.signal import weigh_ar, weigh_damping, weigh_sg
from grpo_sg import grpo_sg_loss

WEIGHTS = {"GRPO": None, "GRPO-SG": weigh_sg, "AR": weigh_ar,
           "damping 10": functools.partial(weigh_damping, 10),
           "damping 1/1.4": functools.partial(weigh_damping, 1 / 1.4)}
METHODS = "GRPO", "GRPO-SG", "AR", "damping 10"
SAMPLES = 8  # of each problem, in avg@8
FRESH = 30_000  # plus the step: the seed of a rollout that no step before a late start had
LATE = 15    # steps of GRPO, as by default, before a part that begins late


class Part(NamedTuple):
    task: str             # with ", late" if it begins late
    prompts: int          # groups of a step, which is one update
    arms: dict            # name: the weights, as (name, first step) in order
    points: tuple         # steps after which avg@8 is measured; training ends at the last
    rates: tuple          # learning rates of the grid; without a grid the first is every arm's
    seeds: range = range(1000, 1020)  # of the counted runs, on test problems
    grid: range = range(0)            # seeds of the grid, on validation problems


def throughout(names):
    return {name: ((name, 1),) for name in names}


SWITCH = 21  # the first step of the second weight
SWITCHES = {
    **throughout(("GRPO", "GRPO-SG", "damping 10")),
    "GRPO-SG, then GRPO": (("GRPO-SG", 1), ("GRPO", SWITCH)),
    "GRPO, then GRPO-SG": (("GRPO", 1), ("GRPO-SG", SWITCH)),
    "damping 10, then GRPO": (("damping 10", 1), ("GRPO", SWITCH)),
    "damping 10, then 1/1.4": (("damping 10", 1), ("damping 1/1.4", SWITCH)),
    "GRPO, then damping 10": (("GRPO", 1), ("damping 10", SWITCH))}
RATES = [round(2e-4 * 2 ** (i / 2), 6) for i in range(9)]  # 2e-4 to 3.2e-3
LATE_RATES = [round(1e-4 * 2 ** (i / 2), 6) for i in range(5)]  # 1e-4 to 4e-4
PARTS = {
    "early": Part("qa", 2, throughout(METHODS), (10,), RATES, grid=range(900, 904)),
    "late": Part("qa, late", 8, throughout(METHODS), (20,), LATE_RATES, grid=range(900, 904)),
    "switch": Part("qa", 2, SWITCHES, (20, 40, 60), (4e-4,))}


# ---- A run ----

def loss_with(weigh, logps, old_logps, advantages, mask, *, weights=None, **more):
    """Return grpo_sg_loss with these weights, divided by their mean over the tokens of the
    update, which is one micro-batch."""
    w = None
    if weigh is not None:
        w = weigh(logps, None)
        w = w / w[mask.bool()].mean()
    return grpo_sg_loss(logps, old_logps, advantages, mask, weights=w, **more)


def weight_at(arm, step):
    """Return the name of the weight in this step."""
    return [name for name, first in arm if first <= step][-1]


@functools.lru_cache(1)
def start_of(name, seed):
    """Return (policy, task, cfg) at the warm start or, if "late", some steps after it. A file
    under runs/ caches the parameters. Copy the policy before training it: the next call may
    return the same one."""
    task_name, *late = name.split(", ")
    policy, task, cfg = signal.begin(task_name, seed, warm_up=False)
    file = pathlib.Path("runs", f"when-{name_commit()}", f"{name}-{seed}.pt")
    if not file.exists():
        made = train_late(task_name, seed) if late else signal.begin(task_name, seed)[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(made.model.state_dict(), file)
    policy.model.load_state_dict(torch.load(file))
    return policy, task, cfg


def train_late(name, seed):
    """Return the policy after LATE steps of GRPO from the warm start."""
    start, task, cfg = start_of(name, seed)
    policy = copy_of(start)
    optimizer = signal.make_optimizer(policy, cfg)
    for step in range(1, LATE + 1):
        signal.train_step(policy, optimizer, task, cfg, step)
    return policy


def copy_of(policy):
    return dataclasses.replace(policy, model=copy.deepcopy(policy.model))


def train_arm(part, arm, seed, rate, split):
    """Train an arm; return {"before": avg@8 of its start, "avg@8": {step: value}}."""
    p = PARTS[part]
    start, task, cfg = start_of(p.task, seed)
    policy = copy_of(start)
    cfg = dataclasses.replace(cfg, lr=rate, prompts=p.prompts, updates=1)
    optimizer = signal.make_optimizer(policy, cfg)
    found = {}
    for step in range(1, max(p.points) + 1):
        loss = functools.partial(loss_with, WEIGHTS[weight_at(p.arms[arm], step)])
        with mock.patch.object(grpo_sg, "grpo_sg_loss", loss):
            signal.train_step(policy, optimizer, task, cfg, FRESH + step)
        if step in p.points:
            found[str(step)] = measure(policy, task, split, cfg)
    return {"before": measure_before(p.task, seed, split), "avg@8": found}


@functools.lru_cache(1)
def measure_before(name, seed, split):
    policy, task, cfg = start_of(name, seed)
    return measure(policy, task, split, cfg)


def measure(policy, task, split, cfg):
    """Return the accuracy over SAMPLES completions of each problem. Arms of a seed share random
    numbers."""
    completions = grpo_sg.rollout(policy, task, getattr(task, split), cfg, n=SAMPLES,
                                  temperature=1.0, seed=cfg.seed)
    return statistics.fmean(c.solved for c in completions)


# ---- All runs ----

def jobs_of(part, results):
    """Yield the grid's runs, then the counted runs, which need a complete grid."""
    p = PARTS[part]
    for seed in p.grid:
        for arm in p.arms:
            for rate in p.rates:
                yield {"part": part, "arm": arm, "seed": seed, "rate": rate, "split": "valid"}
    best = choose_rates(part, analysis.read_rows(results))
    for seed in p.seeds:
        for arm in p.arms:
            yield {"part": part, "arm": arm, "seed": seed, "rate": best[arm], "split": "test"}


def choose_rates(part, rows):
    """Return {arm: the rate with the highest mean avg@8 after the last step, on the grid}."""
    p = PARTS[part]
    if not p.grid:
        return dict.fromkeys(p.arms, p.rates[0])
    last = str(max(p.points))
    rows = [{**row, "avg@4": row["avg@8"][last]} for row in rows
            if row["part"] == part and row["split"] == "valid"]
    return analysis.best_rates(rows)


def run(results, parts):
    """Append a row for each job that has none in the file."""
    for part in parts:
        for job in jobs_of(part, results):
            if signal.is_done(analysis.read_rows(results), **job):
                continue
            started = time.process_time()
            row = {**job, **train_arm(**job), "commit": name_commit(),
                   "date": str(datetime.date.today()),
                   "cpu_seconds": round(time.process_time() - started, 1)}
            analysis.append_rows(results, [row])
            print(time.strftime("%H:%M:%S"), *job.values(), row["avg@8"], flush=True)


# ---- What the rows say ----

def counted(rows, part, arm):
    """Return {seed: row} of the counted runs."""
    return {row["seed"]: row for row in rows
            if row["part"] == part and row["arm"] == arm and row["split"] == "test"}


def compare(rows, part, arm, other, step):
    """Return avg@8 of one arm minus another's, for each seed that has both."""
    ours, theirs = counted(rows, part, arm), counted(rows, part, other)
    return [ours[seed]["avg@8"][str(step)] - theirs[seed]["avg@8"][str(step)]
            for seed in sorted(ours.keys() & theirs.keys())]


# What the rule predicts: (part, arm, minus which, after how many steps, sign)
PREDICTIONS = (("early", "GRPO-SG", "GRPO", 10, +1), ("early", "damping 10", "GRPO", 10, +1),
               ("late", "damping 10", "GRPO", 20, -1),
               ("switch", "GRPO, then damping 10", "GRPO", 60, -1),
               ("switch", "damping 10, then GRPO", "damping 10", 60, +1))
NOT_RUN = "not run yet"


def judge(values, sign):
    """Return the rule's verdict on a prediction."""
    _, low, high = analysis.interval(values)
    if low <= 0 <= high:
        return "open"
    return "confirmed" if (low > 0) == (sign > 0) else "refuted"


def level(rows, part, step):
    """Return GRPO's mean avg@8 after this step; before RL if it is 0."""
    base = counted(rows, part, "GRPO").values()
    return statistics.fmean(row["avg@8"][str(step)] if step else row["before"] for row in base)


def compare_arms(rows, part):
    """Yield (step, arm, its differences to GRPO) for each arm at each point."""
    for step in PARTS[part].points:
        for arm in PARTS[part].arms:
            if arm != "GRPO":
                yield step, arm, compare(rows, part, arm, "GRPO", step)


def check_predictions(rows):
    """Yield (part, step, in words, differences, verdict) for each prediction."""
    for part, arm, other, step, sign in PREDICTIONS:
        values = compare(rows, part, arm, other, step)
        verdict = NOT_RUN
        if len(values) > 1:
            verdict = judge(values, sign)
            if len(values) < len(PARTS[part].seeds):
                verdict += " (interim)"
        arm = f'"{arm}"' if ", then " in arm else arm
        words = f"{arm} minus {other} {'above' if sign > 0 else 'below'} 0"
        yield part, step, words, values, verdict


def show(rows):
    """Print GRPO's means, every arm minus GRPO at each point, and the verdicts."""
    for part, p in PARTS.items():
        seeds = len(counted(rows, part, "GRPO"))
        if seeds < 2:
            continue
        print(f"{part}: {p.task}, {seeds} seeds, rates {choose_rates(part, rows)}; before RL "
              f"{level(rows, part, 0):.4f}")
        for step, arm, values in compare_arms(rows, part):
            if len(values) > 1:
                average, low, high = analysis.interval(values)
                print(f"  after {step} steps, GRPO {level(rows, part, step):.4f}, {arm}: "
                      f"{average:+.4f} [{low:+.4f}, {high:+.4f}], {len(values)} seeds")
    for part, step, words, _, verdict in check_predictions(rows):
        print(f"{part}: after {step} steps, {words}: {verdict}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--results", type=pathlib.Path, default=analysis.RESULTS / "when.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "run":
        run(args.results, args.parts)
    show(analysis.read_rows(args.results))


if __name__ == "__main__":
    main()
