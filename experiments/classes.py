"""Where is the signal, and how well do single updates point? Classes of tokens, and the mean of
actual cosines.

    python -m experiments.classes run        forty minutes of one core; resumes where it stopped
    python -m experiments.classes table      the tables, as Markdown

Rows are appended to results/classes.jsonl (--results): one for each task, seed and step.

kk, math and qa, at the warm start and after 15 steps of GRPO with the settings of
`python grpo_sg.py --task TASK`, seeds 0 to 4. Each seed has its own problems and its own warm
start (--warm_up). At each point we draw K = 512 groups of 8 completions at temperature 1, whose
problems are drawn with replacement from the training problems, with samples that no step had.
lesson/look.py has the definitions, and the code that measures them:

- classes: tokens by the sign of A and by pi, with edges at 0.1, 1/3 and 0.9. A class has a share
  of the signal, <mu_c, mu> / |mu|^2, and of the noise, tr Sigma_c / tr Sigma.
- efficiency: the ratio of mean cosines, over 64 updates of 8 groups, cross-fitted.
- signal-to-noise: the formula, relative to GRPO's.
- arms: GRPO-SG, damping 10, and damping 10 of tokens with A < 0 only: the weight of the others
  is 10.

This measurement has no rule and no verdict: a run of one seed a point had been looked at.
"""
import argparse
import datetime
import functools
import pathlib
import statistics
import time

import torch

from experiments import analysis, shared
from experiments.analysis import in_words, rounded
from lesson import look

TASKS = "kk", "math", "qa"
SEEDS = range(5)
STEPS = 0, 15
FRESH = 20_001             # plus the step: the seed of a rollout that no training step has
GROUPS, UPDATES = 512, 64
EDGES = 0.1, 1/3, 0.9
RANGES = "pi < 0.1", "0.1 to 1/3", "1/3 to 0.9", "pi > 0.9"
CLASSES = [f"A {sign} 0, {each}" for sign in "><" for each in RANGES]
ARMS = "GRPO", "GRPO-SG", "damping 10", "damping 10, A < 0"
# The rows that make_coefficients makes, in order.
MEASURED = *CLASSES, "GRPO-SG", "damping 10, A > 0", "damping 10, A < 0"


def make_coefficients(cfg, tokens, logps, batch, completions):
    """Return a tensor (B, T) for each of MEASURED; count the tokens of each class."""
    A = look.advantages_of(batch, cfg)
    classes = look.split_by_class(A, logps, EDGES)
    for i, each in enumerate(classes):
        tokens[i] += int((each != 0).sum())
    damped = shared.weigh_damping(logps) * A
    return [*classes, shared.weigh_sg(logps) * A, damped * (A > 0), damped * (A < 0)]


def combine():
    """Return (ways, MEASURED): the arms, then the classes, as sums of what is measured."""
    n = len(CLASSES)
    rows = torch.zeros(len(ARMS) + n, len(MEASURED))
    rows[0, :n] = 1
    rows[1, n] = 1
    rows[2, [n + 1, n + 2]] = 1
    rows[3, :n // 2], rows[3, n + 2] = 10, 1
    rows[len(ARMS):, :n] = torch.eye(n)
    return rows


def measure(policy, task, cfg, step, K):
    """Return what is measured at one point, with K groups."""
    groups = look.draw_groups(policy, task, cfg, K, cfg.seed * 1_000_003 + FRESH + step)
    updates = min(UPDATES, K // 2)
    tokens, ways = [0] * len(CLASSES), combine()
    sums = look.Sums(len(ways), look.length_of(policy), updates)
    coefficients = functools.partial(make_coefficients, cfg, tokens)
    for group in groups:
        if any(c.advantage for c in group):
            sums.add(ways @ look.group_gradients(policy, group, cfg, coefficients))
        else:
            sums.add()
    products = sums.products()
    moments, cosines = sums.moments(products), look.mean_cosines(products, updates)
    length = look.root(moments[0][0][0, 0]) * K / updates  # of an update's mean, |n mu|
    return {"K": K, "accuracy": round(mean_accuracy(groups), 4),
            "cosine": rounded(cosines[0][0] / length),
            "arms": {arm: describe_arm(w, K / updates, moments, cosines)
                     for w, arm in enumerate(ARMS)},
            "classes": {name: {"tokens": count, **describe_class(w, moments)}
                        for w, (name, count) in enumerate(zip(CLASSES, tokens), len(ARMS))}}


def mean_accuracy(groups):
    return statistics.fmean(c.solved for group in groups for c in group)


def describe_arm(w, n, moments, cosines):
    found = [{"efficiency": look.ratio(each[w], each[0])} for each in cosines]
    formula = [{"signal-to-noise": look.signal_to_noise(M, V, w, n)} for M, V in moments]
    return in_pairs({**look.jackknife(*found), **look.jackknife(*formula)})


def describe_class(w, moments):
    return in_pairs(look.jackknife(*[
        {"signal": look.signal_kept(M, w), "noise": look.ratio(V[w, w], V[0, 0])}
        for M, V in moments]))


def in_pairs(found):
    return {key: [rounded(x) for x in pair] for key, pair in found.items()}


# ---- All points ----

def run(path, seeds, names):
    """Append the row of each point that has none in the file."""
    for seed in seeds:
        for name in names:
            rows = analysis.read_rows(path)
            missing = [step for step in STEPS
                       if seed not in analysis.select(rows, task=name, step=step)]
            if missing:
                follow(path, name, seed, missing)


def follow(path, name, seed, steps):
    """Train once, by GRPO, and measure before training or after these steps."""
    policy, task, cfg = shared.begin(name, seed)
    optimizer = shared.make_optimizer(policy, cfg)
    for step in range(max(steps) + 1):
        if step > 0:
            shared.train_step(policy, optimizer, task, cfg, step)
        if step not in steps:
            continue
        started = time.process_time()
        row = {"task": name, "seed": seed, "step": step,
               **measure(policy, task, cfg, step, GROUPS), "commit": shared.name_commit(),
               "date": str(datetime.date.today()),
               "cpu_seconds": round(time.process_time() - started, 1)}
        analysis.append_rows(path, [row])
        print(time.strftime("%H:%M:%S"), name, seed, step, f"{row['cpu_seconds']} s", flush=True)


# ---- Tables ----

def points(rows):
    """Group rows by (task, step); each list has one row per seed."""
    found = {}
    for row in rows:
        found.setdefault((row["task"], row["step"]), []).append(row)
    return dict(sorted(found.items()))


def values_of(rows, kind, name, key):
    """Return the finite estimates of one number, such as the "signal" of a class."""
    return [row[kind][name][key][0] for row in rows if row[kind][name][key][0] is not None]


def tabulate(rows):
    """Print the shares of each class, then efficiency and signal-to-noise of each arm: means and
    95% confidence intervals over seeds."""
    print(f"| task, step, share | {' | '.join(CLASSES)} |\n{'| --- ' * 9}|")
    for (task, step), here in points(rows).items():
        total = sum(row["classes"][name]["tokens"] for row in here for name in CLASSES)
        counts = [sum(row["classes"][name]["tokens"] for row in here) for name in CLASSES]
        cells = [f"{count / total:.1%}" for count in counts]
        print(f"| `{task}`, {step}, tokens | {' | '.join(cells)} |")
        for key in ("signal", "noise"):
            cells = [in_words(values_of(here, "classes", name, key))
                     for name in CLASSES]
            print(f"| `{task}`, {step}, {key} | {' | '.join(cells)} |")
    titles = [f"{arm}: {key}" for arm in ARMS[1:] for key in ("efficiency", "signal-to-noise")]
    print(f"\n| task, step | seeds | accuracy | mean cosine | {' | '.join(titles)} |")
    print(f"{'| --- ' * 10}|")
    for (task, step), here in points(rows).items():
        cells = [f"`{task}`, {step}", str(len(here))]
        cells += [f"{statistics.fmean(row[key] for row in here):.2f}"
                  for key in ("accuracy", "cosine")]
        cells += [in_words(values_of(here, "arms", arm, key))
                  for arm in ARMS[1:] for key in ("efficiency", "signal-to-noise")]
        print(f"| {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--results", type=pathlib.Path, default=analysis.RESULTS / "classes.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "run":
        run(args.results, args.seeds, args.tasks)
    tabulate(analysis.read_rows(args.results))


if __name__ == "__main__":
    main()
