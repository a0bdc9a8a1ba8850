"""When does the weight help? How much of the signal and of the noise each weight keeps, at
several points of training.

    python -m experiments.signal run                over an hour; resumes where it stopped
    python -m experiments.signal run --seeds 0 --tasks kk      only these
    python -m experiments.signal show               means over seeds
    python -m experiments.signal table              the main ones, as Markdown, with verdicts
    python -m experiments.signal run --smoke        a few small points, in a minute

Rows are appended to results/signal.jsonl (--results): one for each task, seed, step, metric,
rewards and arm, with commit and date.

The protocol, written down before the first counted run. Scouting runs of one seed on each task
had been looked at, from the pretrained models, with K from 1,024 to 2,048; they suggested that
GRPO-SG's weight points updates better at the start and worse after some ten steps.

- Tasks kk, math and qa, seeds 0 to 4, the settings of `python grpo_sg.py --task TASK`, but
  trained by GRPO. Each seed has its own problems and its own warm start (--warm_up), so
  intervals over seeds cover the model, too. And "kk, solutions": kk from 200 steps of warm-up on
  full solutions only, without the shortcut that the other warm starts have learned, at the warm
  start and after 15 steps. (This one was added before any of its rows, while seed 0 of the others
  was running.)
- Points: the warm start, and after 5, 15, 30 and 60 steps of GRPO.
- At each point K groups of 8 completions at temperature 1: 512, and 1,024 from step 30 on,
  where most groups have equal rewards. Their problems are drawn with replacement from the
  training problems, with samples that no step had.
- mu, Sigma, signal kept, noise kept and efficiency(n) are those of lesson/look.py, by the same
  code, with standard errors from a jackknife over 32 blocks. n is 2, 8 (the default run's
  update), 32 (its rollout) and 256.
- Arms: GRPO-SG, AR, w = pi, and the damping factors d = 1/1.4, 3 and 10: GRPO-SG's weight to
  the power ln d / ln 1.4. All are measured on the same samples.
- Rewards: clean, and at the warm start and after 15 steps flipped, too: the same completions,
  each verdict wrong with chance 1/6. The true mu is that of clean rewards in both. With flipped
  rewards, an arm is compared with GRPO on the same flipped rewards.
- Metrics: Euclid, and from step 5 on AdamW, in which the inner product of two gradients is
  sum a_i b_i / (sqrt v_i + eps), with the second moments v of that run at that point, corrected
  for their start: the direction of steepest ascent in it is a step of AdamW without momentum.
- Reported are means over seeds with 95% confidence intervals by Student's t. What counts is the
  efficiency of GRPO-SG at n = 8, Euclid, clean rewards: "better" at a point if its interval is
  above 1, "worse" if below 1, else "not told apart". These are 17 intervals, uncorrected. All
  else is description. With fewer seeds it is called interim.

Renamed later: the efficiency of this protocol and of its rows is now called signal-to-noise.
Efficiency is a ratio of mean cosines, which experiments/classes.py measures on the same groups.
"""
import argparse
import dataclasses
import datetime
import functools
import math
import pathlib
import random
import statistics
import time

import torch

import grpo_sg
import tasks
from experiments import analysis
from experiments.run import name_commit
from lesson import look
from support import cli, tiny

TASKS = "kk", "math", "qa", "kk, solutions"
SOLUTIONS = {"warmup": 200, "shortcuts": 0.0}  # warm-up of "kk, solutions"
SEEDS = range(5)
BOTH = "clean", "flipped"
# steps: (K, rewards)
POINTS = {0: (512, BOTH), 5: (512, BOTH[:1]), 15: (512, BOTH), 30: (1024, BOTH[:1]),
          60: (1024, BOTH[:1])}
POINTS_OF_SOLUTIONS = {0: (512, BOTH[:1]), 15: (512, BOTH[:1])}
SIZES = 2, 8, 32, 256      # groups of an update
FRESH = 20_001             # plus the step: the seed of a rollout that no training step has


def weigh_sg(logps, cfg):
    return grpo_sg.token_weights(logps)


def weigh_damping(d, logps, cfg):
    """Return GRPO-SG's weight with damping factor d: its largest value over its smallest."""
    return grpo_sg.token_weights(logps) ** (math.log(d) / math.log(1.4))


def weigh_pi(logps, cfg):
    return logps.detach().float().exp()


def weigh_ar(logps, cfg):
    return 0.2 * weigh_pi(logps, cfg) + 0.8


WEIGHTS = {"GRPO": None, "GRPO-SG": weigh_sg, "w = pi": weigh_pi,
           "damping 1/1.4": functools.partial(weigh_damping, 1 / 1.4),
           "damping 3": functools.partial(weigh_damping, 3),
           "damping 10": functools.partial(weigh_damping, 10)}
# AR's weight is 0.8 + 0.2 pi, so its gradient follows from those of GRPO and of w = pi.
AR = {"GRPO": 0.8, "w = pi": 0.2}
ARMS = *WEIGHTS, "AR"
SMOKE = {"points": {0: (64, BOTH), 1: (64, BOTH)},
         "settings": {"prompts": 8, "group_size": 4, "updates": 2}}


# ---- Training ----

def begin(name, seed, smoke=False, warm_up=True):
    """Return (policy, task, cfg) at the warm start. smoke: the pretrained model instead; without
    warm_up: an untrained one."""
    task_name = name.split(",")[0]
    cfg = cli.parse(["--task", task_name, "--seed", str(seed), "--shaping", "none"])
    cfg = dataclasses.replace(cfg, **(SMOKE["settings"] if smoke else {"warm_up": True}))
    policy, task, _ = cli.load(cfg)
    if name != task_name:
        task = task._replace(**SOLUTIONS)
    if warm_up and not smoke:
        tiny.warm_up(policy, task, cfg)
    return policy, task, cfg


def make_optimizer(policy, cfg):
    """Return the optimizer that grpo_sg.train uses."""
    return torch.optim.AdamW(policy.model.parameters(), cfg.lr, betas=(0.9, 0.99),
                             weight_decay=0, fused=True)


def train_step(policy, optimizer, task, cfg, step):
    """Make one step of grpo_sg.train."""
    seed = cfg.seed * 1_000_003 + step
    problems = random.Random(seed).sample(task.train, min(cfg.prompts, len(task.train)))
    completions = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                  temperature=cfg.temperature, seed=seed)
    grpo_sg.set_advantages(completions, cfg.group_size)
    return grpo_sg.learn(policy, optimizer, completions, cfg, None, seed)


# ---- One point ----

def flip_verdicts(groups, seed):
    """Set c.flipped, the advantage of each completion if one verdict in six were wrong."""
    rng = random.Random(seed)
    for group in groups:
        rewards = []
        for c in group:
            wrong = rng.random() < 1 / 6
            rewards.append(tasks.reward(dataclasses.replace(c, correct=c.correct ^ wrong)))
        A = grpo_sg.group_advantages(torch.tensor([rewards]))[0]
        for c, each in zip(group, A.tolist()):
            c.flipped = each


def make_coefficients(cfg, rewards, logps, batch, completions):
    """Return one tensor (B, T) for each of WEIGHTS, with the first rewards, then the others."""
    advantages = {"clean": batch.advantages,
                  "flipped": torch.tensor([c.flipped for c in completions])}
    found = []
    for name in rewards:
        A = look.advantages_of(dataclasses.replace(batch, advantages=advantages[name]), cfg)
        for weigh in WEIGHTS.values():
            found.append(A if weigh is None else weigh(logps, cfg) * A)
    return found


def with_ar(moments, rewards):
    """Add AR to the moments: one entry for each of ARMS, with the first rewards, then the
    others."""
    names = list(WEIGHTS)
    one = torch.cat([torch.eye(len(names)), torch.zeros(1, len(names))]).double()
    for name, share in AR.items():
        one[-1, names.index(name)] = share
    T = torch.block_diag(*[one for _ in rewards])
    return [(T @ M @ T.T, T @ V @ T.T) for M, V in moments]


def find_scale(policy, optimizer):
    """Return the factors that turn inner products of gradients into those of AdamW's metric;
    None before the first update."""
    if not optimizer.state:
        return None
    options = optimizer.param_groups[0]
    parts = []
    for p in policy.model.parameters():
        state = optimizer.state[p]
        v = state["exp_avg_sq"] / (1 - options["betas"][1] ** float(state["step"]))
        parts.append((v.sqrt() + options["eps"]).flatten())
    return torch.cat(parts).rsqrt()


def add_groups(policy, groups, cfg, rewards, scales):
    """Return a Sums for each of the scales, the factors of the gradients (None: 1)."""
    size = look.length_of(policy)
    sums = [look.Sums(len(rewards) * len(WEIGHTS), size) for _ in scales]
    coefficients = functools.partial(make_coefficients, cfg, rewards)
    for group in groups:
        learns = any(c.advantage or c.flipped and "flipped" in rewards for c in group)
        rows = look.group_gradients(policy, group, cfg, coefficients) if learns else None
        for each, scale in zip(sums, scales):
            each.add(rows if rows is None or scale is None else rows * scale)
    return sums


def describe(w, base, M, V):
    """Compare way w with `base`, the same rewards without weights."""
    found = {"signal": look.signal_kept(M, w, base), "noise": look.noise_kept(V, w, base)}
    for n in SIZES:
        found[f"efficiency {n}"] = look.signal_to_noise(M, V, w, n, base)
    found["to mu"], found["length"], found["trace"] = M[w, 0], M[w, w], V[w, w]
    return found


def measure_point(policy, task, cfg, optimizer, step, K, rewards):
    """Yield the rows of one point, without the columns that they share."""
    groups = look.draw_groups(policy, task, cfg, K, cfg.seed * 1_000_003 + FRESH + step)
    flip_verdicts(groups, seed=f"{cfg.seed} {step}")
    completions = [c for group in groups for c in group]
    scale = find_scale(policy, optimizer)
    metrics = {"Euclid": None} if scale is None else {"Euclid": None, "AdamW": scale}
    shared = {"K": K, "signals": sum(any(c.advantage for c in group) for group in groups),
              "accuracy": round(statistics.fmean(c.solved for c in completions), 4),
              "unlikely": rounded(share_unlikely(policy, groups, cfg))}
    every = add_groups(policy, groups, cfg, rewards, metrics.values())
    for metric, sums in zip(metrics, every):
        moments = with_ar(sums.moments(), rewards)
        for i, name in enumerate(rewards):
            base = i * len(ARMS)
            for j, arm in enumerate(ARMS):
                found = look.jackknife(*[describe(base + j, base, M, V) for M, V in moments])
                found = {key: [rounded(x) for x in pair] for key, pair in found.items()}
                yield {"metric": metric, "rewards": name, "arm": arm, **shared, **found}


@torch.no_grad()
def share_unlikely(policy, groups, cfg):
    """Return the share of unlikely tokens in groups with a learning signal."""
    count = unlikely = 0
    for group in groups:
        if any(c.advantage for c in group):
            batch = grpo_sg.make_batch(group, policy.model.device)
            logps = grpo_sg.compute_logps(policy.model, batch, cfg)
            count += int(batch.mask.sum())
            unlikely += float((look.weigh_unlikely(logps, cfg) * batch.mask).sum())
    return look.ratio(unlikely, count)


def rounded(x):
    """Round to five digits; turn nan, which JSON does not have, into None."""
    return float(f"{float(x):.5g}") if math.isfinite(x) else None


# ---- All points ----

def is_done(rows, **wanted):
    return any(wanted.items() <= row.items() for row in rows)


def points_of(name, smoke):
    """Return {steps: (K, rewards)} of a task."""
    if smoke:
        return SMOKE["points"]
    return POINTS_OF_SOLUTIONS if "," in name else POINTS


def run(path, seeds, names, smoke=False, points_of=points_of, measure=measure_point):
    """Append the rows of each point that has none in the file."""
    for seed in seeds:
        for name in names:
            rows = analysis.read_rows(path)
            missing = {step: given for step, given in points_of(name, smoke).items()
                       if not is_done(rows, task=name, seed=seed, step=step)}
            if missing:
                follow(path, name, seed, missing, smoke, measure)


def follow(path, name, seed, points, smoke, measure):
    """Train once and measure at these points, {steps: what measure gets}."""
    policy, task, cfg = begin(name, seed, smoke)
    optimizer = make_optimizer(policy, cfg)
    for step in range(max(points) + 1):
        if step > 0:
            train_step(policy, optimizer, task, cfg, step)
        if step not in points:
            continue
        started = time.process_time()
        rows = list(measure(policy, task, cfg, optimizer, step, *points[step]))
        stamp = {"commit": name_commit(), "date": str(datetime.date.today()),
                 "cpu_seconds": round(time.process_time() - started, 1)}
        rows = [{"task": name, "seed": seed, "step": step, **row, **stamp} for row in rows]
        analysis.append_rows(path, rows)
        print(time.strftime("%H:%M:%S"), name, seed, step, f"{stamp['cpu_seconds']} s",
              flush=True)


# ---- What the rows say ----

def cells(rows):
    """Group rows by (task, step, metric, rewards, arm); each list has one row per seed."""
    found = {}
    for row in rows:
        key = tuple(row[name] for name in ("task", "step", "metric", "rewards", "arm"))
        found.setdefault(key, []).append(row)
    return found


def values_of(rows, name):
    """Return the finite estimates of one number."""
    return [row[name][0] for row in rows if row[name][0] is not None]


def in_words(values, digits=3):
    """Format the mean and 95% CI of values, or a single value."""
    numbers = analysis.interval(values) if len(values) > 1 else values
    texts = [f"{round(x, digits) + 0.0:.{digits}f}" for x in numbers]  # never -0.00
    if len(texts) < 2:
        return texts[0] if texts else "-"
    return "{} [{}, {}]".format(*texts)


def judge(values):
    """Return the protocol's verdict on one point."""
    _, low, high = analysis.interval(values)
    return "better" if low > 1 else "worse" if high < 1 else "not told apart"


def show(rows):
    """Print a line for each cell."""
    for key, here in sorted(cells(rows).items()):
        names = "signal", "noise", "efficiency 8", "efficiency 32"
        parts = [f"{name} {in_words(values_of(here, name))}" for name in names]
        print(f"{', '.join(map(str, key))}: {'; '.join(parts)}; {len(here)} seeds")


def tabulate(rows):
    """Print a line for each task and step: what counts, and the signal-to-noise of other arms and
    in AdamW's metric, for updates of 8 groups."""
    found = cells(rows)
    others = (("Euclid", "AR"), ("Euclid", "damping 10"), ("AdamW", "GRPO-SG"),
              ("AdamW", "damping 10"))
    titles = ["task", "step", "seeds", "accuracy", "GRPO-SG: signal", "noise",
              "signal-to-noise", "verdict", *(f"{arm}, {metric}" for metric, arm in others)]
    print(f"| {' | '.join(titles)} |\n{'| --- ' * len(titles)}|")
    for task, step, *cell in found:
        if cell != ["Euclid", "clean", "GRPO-SG"]:
            continue
        here = found[task, step, *cell]
        values = values_of(here, "efficiency 8")
        verdict = judge(values) if len(values) > 1 else "-"
        interim = "" if len(here) == len(SEEDS) else " (interim)"
        parts = [task, step, len(here), f"{statistics.fmean(r['accuracy'] for r in here):.3f}"]
        parts += [in_words(values_of(here, name)) for name in ("signal", "noise")]
        parts += [in_words(values), verdict + interim]
        for metric, arm in others:
            their = found.get((task, step, metric, "clean", arm), [])
            parts.append(in_words(values_of(their, "efficiency 8")))
        print(f"| {' | '.join(map(str, parts))} |")


def read_command(doc, what, name, seeds, tasks):
    """Read the flags of a script that measures policies at points of training. what: its
    subcommands; name: of the file in results/."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("what", choices=what)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=list(tasks))
    parser.add_argument("--results", type=pathlib.Path, default=analysis.RESULTS / name)
    parser.add_argument("--smoke", action="store_true", help="small, seed 0, into smoke.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.smoke:
        args.seeds, args.results = [0], pathlib.Path("smoke.jsonl")
        args.results.unlink(missing_ok=True)
    return args


def main():
    args = read_command(__doc__, ["run", "show", "table"], "signal.jsonl", SEEDS, TASKS)
    if args.what == "run":
        run(args.results, args.seeds, args.tasks, args.smoke)
    tell = tabulate if args.what == "table" else show
    tell(analysis.read_rows(args.results))


if __name__ == "__main__":
    main()
