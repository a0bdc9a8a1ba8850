"""Where is the signal, and how well do single updates point? Classes of tokens, and the mean of
actual cosines.

    python -m experiments.classes run        forty minutes of one core; resumes where it stopped
    python -m experiments.classes table      the tables, as Markdown
    python -m experiments.classes run --smoke

Rows are appended to results/classes.jsonl (--results): one for each task, seed and step.

Policies, groups and seeds are those of experiments/signal.py, Euclid and clean rewards: kk, math
and qa at the warm start and after 15 steps of GRPO, K = 512 groups, seeds 0 to 4. lesson/look.py
has the definitions, and the code that measures them:

- classes: tokens by the sign of A and by pi, with edges at 0.1, 1/3 and 0.9. A class has a share
  of the signal, <mu_c, mu> / |mu|^2, and of the noise, tr Sigma_c / tr Sigma.
- efficiency: the ratio of mean cosines, over 64 updates of 8 groups, cross-fitted.
- signal-to-noise: the formula, which experiments/signal.py calls efficiency.
- arms: GRPO-SG, damping 10, and damping 10 of tokens with A < 0 only: the weight of the others
  is 10.

This measurement has no rule and no verdict: a run of one seed a point had been looked at.
"""
import functools
import statistics

import torch

from experiments import analysis, signal
from lesson import look

STEPS = 0, 15
GROUPS, UPDATES = 512, 64
EDGES = 0.1, 1/3, 0.9
RANGES = "pi < 0.1", "0.1 to 1/3", "1/3 to 0.9", "pi > 0.9"
CLASSES = [f"A {sign} 0, {each}" for sign in "><" for each in RANGES]
ARMS = "GRPO", "GRPO-SG", "damping 10", "damping 10, A < 0"
# The rows that make_coefficients makes, in order.
MEASURED = *CLASSES, "GRPO-SG", "damping 10, A > 0", "damping 10, A < 0"


def points_of(name, smoke):
    return {0: (16,), 1: (16,)} if smoke else {step: (GROUPS,) for step in STEPS}


def make_coefficients(cfg, tokens, logps, batch, completions):
    """Return a tensor (B, T) for each of MEASURED; count the tokens of each class."""
    A = look.advantages_of(batch, cfg)
    classes = look.split_by_class(A, logps, EDGES)
    for i, each in enumerate(classes):
        tokens[i] += int((each != 0).sum())
    damped = signal.weigh_damping(10, logps, cfg) * A
    return [*classes, signal.weigh_sg(logps, cfg) * A, damped * (A > 0), damped * (A < 0)]


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


def measure(policy, task, cfg, optimizer, step, K):
    """Yield the row of one point, without the columns that signal.follow adds."""
    groups = look.draw_groups(policy, task, cfg, K,
                              cfg.seed * 1_000_003 + signal.FRESH + step)
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
    yield {"K": K, "accuracy": round(mean_accuracy(groups), 4),
           "cosine": signal.rounded(cosines[0][0] / length),
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
    return {key: [signal.rounded(x) for x in pair] for key, pair in found.items()}


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
            cells = [signal.in_words(values_of(here, "classes", name, key), digits=2)
                     for name in CLASSES]
            print(f"| `{task}`, {step}, {key} | {' | '.join(cells)} |")
    titles = [f"{arm}: {key}" for arm in ARMS[1:] for key in ("efficiency", "signal-to-noise")]
    print(f"\n| task, step | seeds | accuracy | mean cosine | {' | '.join(titles)} |")
    print(f"{'| --- ' * 10}|")
    for (task, step), here in points(rows).items():
        cells = [f"`{task}`, {step}", str(len(here))]
        cells += [f"{statistics.fmean(row[key] for row in here):.2f}"
                  for key in ("accuracy", "cosine")]
        cells += [signal.in_words(values_of(here, "arms", arm, key), digits=2)
                  for arm in ARMS[1:] for key in ("efficiency", "signal-to-noise")]
        print(f"| {' | '.join(cells)} |")


def main():
    args = signal.read_command(__doc__, ["run", "table"], "classes.jsonl", signal.SEEDS,
                               signal.TASKS[:3])
    if args.what == "run":
        signal.run(args.results, args.seeds, args.tasks, args.smoke, points_of, measure)
    tabulate(analysis.read_rows(args.results))


if __name__ == "__main__":
    main()
