"""Why no difference is seen: how far does the weight turn an update, and how far does luck?

    python -m experiments.angle run                two hours of a core; goes on where it stopped
    python -m experiments.angle run --seeds 0 1    these alone
    python -m experiments.angle run --smoke        a few small steps of everything, in a minute
    python -m experiments.angle show               everything
    python -m experiments.angle table              the tables of the pages, as Markdown

Rows are appended to results/angle.jsonl (--results), each with experiment, arm, task, seed,
warmup (0: the task's own), steps, commit and date.

The protocol, written down before the first counted run (scouting runs of one or two seeds on
kk, math and qa had been looked at, with 64 prompts in place of 32):

- Seeds 0 to 4, tasks kk, math and qa, the settings of `python grpo_sg.py --task TASK`. Each
  seed has its own problems and its own warm start (--warm_up), so that intervals over seeds
  cover the model, too. All of it is temperature 1, 32 problems x 8 completions.
- "gradient": at the warm start and after 10, 30 and 60 steps of GRPO; for kk also after
  warm-ups of 50, 100 and 150 steps. One rollout, of training problems and samples that no
  step had (step 10,001 of the same seed). For each arm the cosine of its summed gradient to
  GRPO's on the same rollout, and its norm over GRPO's. Arms: GRPO-SG, dose 3, dose 10 (as in
  experiments/run.py), w = pi, AR, "without unlikely" (w = 0 where pi < 1/3), and two that are
  noise: "halves", GRPO on the first half of the problems against the second, and "another
  draw", GRPO on a second rollout (step 10,002) against the first. With each row stand the
  share of unlikely tokens among those trained on, their part <g_u, g> / <g, g>, and
  Kantorovich's yardstick for the least and the greatest weight on this rollout.
- "displacement": the parameters after 1, 5, 20 and 60 training steps minus those of the warm
  start (AdamW, 4 updates a step, clipping and all: grpo_sg.train). Of each arm the cosine to
  GRPO's displacement from the same warm start, and its norm over GRPO's. Arms: GRPO-SG and AR
  with the problems and the sampling seeds of GRPO's run, and "another draw": GRPO with those
  of seed + 100, on the same training set.
- Reported are means and 95 % intervals over seeds of cosines and of angles. There is no test:
  nothing here decides that a method is better. If fewer seeds are done, that is said.
"""
import argparse
import dataclasses
import datetime
import functools
import json
import math
import pathlib
import random
import statistics

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import grpo_sg
from experiments import analysis
from experiments.run import name_commit
from lesson.look import degrees, weigh_unlikely, yardstick
from support import cli, tiny
from support.run import Run

TASKS = "kk", "math", "qa"
SEEDS = range(5)
WARMUPS = {"kk": (0, 50, 100, 150)}  # 0: the task's own
GRADIENT_STEPS = 0, 10, 30, 60
DISPLACEMENT_STEPS = 1, 5, 20, 60
FRESH = 10_001  # a rollout that no training step has
SMOKE = {"prompts": 8, "group_size": 4, "updates": 2}


# ---- Arms: weights of tokens ----

def weigh_none(logps, cfg):
    return None  # all 1: GRPO


def weigh_sg(logps, cfg):
    return grpo_sg.token_weights(logps)


def weigh_damping(d, logps, cfg):
    """Return GRPO-SG's weight with damping factor d: its largest value over its smallest."""
    return grpo_sg.token_weights(logps) ** (math.log(d) / math.log(1.4))


def weigh_pi(logps, cfg):
    return logps.detach().float().exp()


def weigh_ar(logps, cfg):
    return 0.2 * weigh_pi(logps, cfg) + 0.8


def weigh_likely(logps, cfg):
    return 1 - weigh_unlikely(logps, cfg)


WEIGHTS = {"GRPO-SG": weigh_sg, "dose 3": functools.partial(weigh_damping, 3),
           "dose 10": functools.partial(weigh_damping, 10), "w = pi": weigh_pi, "AR": weigh_ar,
           "without unlikely": weigh_likely}


# ---- Warm starts, and training from them ----

@functools.lru_cache(1)
def begin(name, seed, warmup, smoke):
    """Return (policy, task, cfg, path) of the tiny model. path[0] is the warm start's parameters
    as one vector, path[step] the parameters after this step of GRPO. warmup: steps of the
    warm-up. With 0 it has the task's own length; otherwise the path has only the warm start. A
    file under runs/ caches the path."""
    cfg = cli.parse(["--task", name, "--seed", str(seed), "--eval_every", "1000000"])
    cfg = dataclasses.replace(cfg, **(SMOKE if smoke else {"warm_up": True}))
    policy, task, _ = cli.load(cfg)
    folder = pathlib.Path("runs", f"angle-{name_commit()}")
    file = folder / f"{name}-{seed}-{warmup}-{cfg.prompts}.pt"
    if file.exists():
        return policy, task, cfg, torch.load(file)
    if not smoke:  # smoke runs start from the pretrained model
        tiny.warm_up(policy, task._replace(warmup=warmup or task.warmup), cfg)
    path = {0: flat(policy)}
    if not warmup:
        path.update(train_from(policy, task, cfg, path[0], steps_of(smoke), shaping="none"))
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(path, file)
    return policy, task, cfg, path


def steps_of(smoke):
    """Return the steps after which parameters are kept."""
    return (1, 2) if smoke else sorted({*GRADIENT_STEPS, *DISPLACEMENT_STEPS})


def flat(policy):
    return parameters_to_vector(policy.model.parameters()).detach().clone()


def put(policy, parameters):
    vector_to_parameters(parameters.clone(), policy.model.parameters())


class Watched(Run):
    """Keep the parameters after some steps."""

    def watch(self, policy, steps):
        self.watched, self.wanted, self.kept = policy, steps, {}
        return self

    def log_step(self, row, *given):
        super().log_step(row, *given)
        if row["step"] in self.wanted:
            self.kept[row["step"]] = flat(self.watched)


def train_from(policy, task, cfg, parameters, steps, **settings):
    """Train with these settings and return {step: the parameters after it}."""
    put(policy, parameters)
    cfg = dataclasses.replace(cfg, steps=max(steps), **settings)
    run = Watched(cfg).watch(policy, steps)
    grpo_sg.train(policy, task, cfg, run)
    return run.kept


# ---- Gradients ----

def draw_rollout(policy, task, cfg, step=1):
    """Sample the completions that training step `step` would learn from, with their advantages,
    if the policy did not change until then."""
    seed = cfg.seed * 1_000_003 + step  # as in grpo_sg.train
    count = min(cfg.prompts, len(task.train))
    problems = random.Random(seed).sample(task.train, count)
    completions = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                  temperature=cfg.temperature, seed=seed)
    grpo_sg.set_advantages(completions, cfg.group_size)
    return completions


def add_gradient(policy, completions, cfg, weigh):
    """Add to .grad the gradient of grpo_sg_loss, summed over tokens, with the weights that
    weigh(logps, cfg) makes, at r = 1. Returns the sums of the loss."""
    policy.model.train(cfg.gradient_checkpointing)
    found = {}
    for batch in grpo_sg.micro_batches(completions, cfg, policy.model.device):
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        loss, sums = grpo_sg.grpo_sg_loss(
            logps, logps.detach(), batch["advantages"], batch["mask"],
            weights=weigh(logps, cfg), loss_agg_mode=cfg.loss_agg_mode, denominator=1)
        loss.backward()
        for key, value in sums.items():
            found[key] = found.get(key, 0.0) + float(value)
    return found


def cosine(ab, aa, bb):
    """Return the cosine of two vectors from their inner products; nan if one vector is 0."""
    return ab / math.sqrt(aa * bb) if aa > 0 and bb > 0 else math.nan


def take_gradient(policy, completions, cfg, weigh):
    """Return (gradient as one vector in float64, sums of the loss)."""
    policy.model.zero_grad()
    sums = add_gradient(policy, completions, cfg, weigh)
    gradient = torch.cat([p.grad.flatten().double() for p in policy.model.parameters()])
    policy.model.zero_grad()
    return gradient, sums


def set_against(a, base):
    """Return the cosine of two vectors and the ratio of their norms, a over base."""
    cos = cosine(float(a @ base), float(a @ a), float(base @ base))
    return {"cos": cos, "norm ratio": float(a.norm() / base.norm())}


@torch.no_grad()
def range_of(policy, completions, cfg, weigh):
    """Return the (least, greatest) weight of the tokens that are trained on."""
    found = []
    for batch in grpo_sg.micro_batches(completions, cfg, policy.model.device):
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        found.append(weigh(logps, cfg)[batch["mask"]])
    found = torch.cat(found)
    return float(found.min()), float(found.max())


def measure_gradients(policy, task, cfg, parameters):
    """Yield a row for each arm of "gradient", at these parameters."""
    put(policy, parameters)
    first = draw_rollout(policy, task, cfg, step=FRESH)
    second = draw_rollout(policy, task, cfg, step=FRESH + 1)
    g, sums = take_gradient(policy, first, cfg, weigh_none)
    unlikely, _ = take_gradient(policy, first, cfg, weigh_unlikely)
    shares = {"tokens": int(sums["count"]), "unlikely": sums["low_prob_frac"] / sums["count"],
              "part": float(unlikely @ g / (g @ g)), "norm": float(g.norm()),
              "accuracy": statistics.fmean(c.solved for c in first)}
    for arm, weigh in WEIGHTS.items():
        turned, sums = take_gradient(policy, first, cfg, weigh)
        low, high = range_of(policy, first, cfg, weigh)
        yield {"arm": arm, **set_against(turned, g), "least": low, "greatest": high,
               "weight_mean": sums["weight_mean"] / sums["count"],
               "yardstick": yardstick(low, high), **shares}
    half = len(first) // 2
    a, _ = take_gradient(policy, first[:half], cfg, weigh_none)
    if a.norm() > 0 and (g - a).norm() > 0:
        yield {"arm": "halves", **set_against(g - a, a), **shares}
    other, _ = take_gradient(policy, second, cfg, weigh_none)
    yield {"arm": "another draw", **set_against(other, g), **shares}


# ---- Displacements ----

def measure_displacements(policy, task, cfg, path, arm, settings):
    """Yield a row for the arm after each of the steps."""
    steps = [each for each in DISPLACEMENT_STEPS if each in path]
    moved = train_from(policy, task, cfg, path[0], steps, **settings)
    for each in steps:
        ours, theirs = (moved[each] - path[0]).double(), (path[each] - path[0]).double()
        yield {"arm": arm, "steps": each, **set_against(ours, theirs),
               "norm": float(theirs.norm())}


# ---- Rows ----

def jobs_of(seeds, tasks, smoke):
    """Yield (settings of the start, settings of the row)."""
    for seed in seeds:
        for name in tasks:
            for warmup in WARMUPS.get(name, (0,)):
                start = {"task": name, "seed": seed, "warmup": warmup}
                at = (0,) if warmup else (0, 1) if smoke else GRADIENT_STEPS
                for steps in at:
                    yield start, {"experiment": "gradient", "steps": steps}
                for arm in () if warmup else ("GRPO-SG", "AR", "another draw"):
                    yield start, {"experiment": "displacement", "arm": arm}


def work(start, job, smoke):
    policy, task, cfg, path = begin(start["task"], start["seed"], start["warmup"], smoke)
    if job["experiment"] == "gradient":
        return measure_gradients(policy, task, cfg, path[job["steps"]])
    settings = {"GRPO-SG": {"shaping": "sg"}, "AR": {"shaping": "ar"},
                "another draw": {"shaping": "none", "seed": start["seed"] + 100}}[job["arm"]]
    return measure_displacements(policy, task, cfg, path, job["arm"], settings)


def run(path, jobs, work, smoke):
    """Append the rows of each job that has none in the file; write a job's rows together."""
    for start, job in jobs:
        wanted = {**job, **start}
        if any(wanted.items() <= row.items() for row in analysis.read_rows(path)):
            continue
        stamp = {"commit": name_commit(), "date": str(datetime.date.today())}
        rows = list(work(start, job, smoke))
        with open(path, "a") as file:
            for row in rows:
                file.write(json.dumps({**job, **row, **start, **stamp}) + "\n")
        now = datetime.datetime.now().strftime("%H:%M:%S")
        print(now, *start.values(), *job.values(), flush=True)


# ---- Tables ----

def cells(rows):
    """Group rows by (experiment, task, warmup, steps, arm); each list has one row per seed."""
    found = {}
    for row in rows:
        key = row["experiment"], row["task"], row["warmup"], row["steps"], row["arm"]
        found.setdefault(key, []).append(row)
    return found


def in_words(values, form):
    """Format their mean and 95% CI over seeds."""
    if len(values) < 2:
        return form.format(values[0])
    average, low, high = (form.format(x) for x in analysis.interval(values))
    return f"{average} [{low}, {high}]"


# Names of arms in the raw file: as they are printed
PRINTED = {"another draw": "GRPO on different problems", "dose 3": "damping 3",
           "dose 10": "damping 10"}


def show(rows):
    """Print a line for each cell."""
    for (experiment, task, warmup, steps, arm), here in sorted(cells(rows).items()):
        angles = in_words([degrees(row["cos"]) for row in here], "{:.1f}")
        cosines = in_words([row["cos"] for row in here], "{:.3f}")
        line = f"{experiment}, {task}, warm-up {warmup or 'usual'}, {steps} steps, "
        line += f"{PRINTED.get(arm, arm)}: "
        line += f"{angles} degrees, cos {cosines}"
        line += f", norm x {statistics.fmean(row['norm ratio'] for row in here):.2f}"
        if "yardstick" in here[0]:
            widest = statistics.fmean(degrees(row["yardstick"]) for row in here)
            line += f", yardstick {widest:.1f} degrees"
        if arm == "GRPO-SG" and experiment == "gradient":
            line += (f"; unlikely {statistics.fmean(row['unlikely'] for row in here):.1%}, "
                     "their part of the gradient "
                     f"{statistics.fmean(row['part'] for row in here):.2f}")
        print(f"{line}; {len(here)} seeds")


def tabulate(rows):
    """Print tables of angles in degrees: mean and 95% CI over seeds."""
    found = cells(rows)

    def angles(*key):
        here = found.get(key, [])
        return in_words([degrees(row["cos"]) for row in here], "{:.0f}") if here else ""
    arms = "GRPO-SG", "AR", "another draw"
    titles = ["parameter displacement", "steps", "seeds", *(PRINTED.get(arm, arm) for arm in arms)]
    print(f"| {' | '.join(titles)} |\n{'| --- ' * 6}|")
    for task in TASKS:
        for steps in DISPLACEMENT_STEPS:
            here = found.get(("displacement", task, 0, steps, "GRPO-SG"), [])
            each = [angles("displacement", task, 0, steps, arm) for arm in arms]
            if here:
                print(f"| `{task}` | {steps} | {len(here)} | {' | '.join(each)} |")
    arms = "GRPO-SG", "dose 3", "dose 10", "w = pi", "AR", "without unlikely", "another draw"
    titles = ["gradients", "seeds", "unlikely tokens", "their part of the gradient"]
    titles += [PRINTED.get(arm, arm) for arm in arms]
    print(f"\n| {' | '.join(titles)} |\n{'| --- ' * 11}|")
    for experiment, task, warmup, steps, arm in found:
        if experiment == "gradient" and arm == "GRPO-SG":
            here = found[experiment, task, warmup, steps, arm]
            unlikely = statistics.fmean(row["unlikely"] for row in here)
            part = statistics.fmean(row["part"] for row in here)
            each = [angles("gradient", task, warmup, steps, arm) for arm in arms]
            start = f"a warm-up of {warmup}" if warmup else f"after {steps} steps"
            print(f"| `{task}`, {start} | {len(here)} | {unlikely:.1%} | {part:.2f} | "
                  f"{' | '.join(each)} |")


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
    args = read_command(__doc__, ["run", "show", "table"], "angle.jsonl", SEEDS, TASKS)
    if args.what == "run":
        run(args.results, jobs_of(args.seeds, args.tasks, args.smoke), work, args.smoke)
    tell = tabulate if args.what == "table" else show
    tell(analysis.read_rows(args.results))


if __name__ == "__main__":
    main()
