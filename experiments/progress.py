"""Is GRPO-SG's weight a slightly higher learning rate? Measure how far a step goes, then run.

    python -m experiments.progress ratios   the progress ratios, into results/progress_ratios.jsonl
    python -m experiments.progress run      the runs of the rule, results/progress_rule.txt, with
                                            rows in results/progress.jsonl: over an hour on one core
    python -m experiments.progress show     the outcomes

AdamW divides each parameter's gradient g by the root mean square of that parameter's gradients. So
we measure how far a step goes along GRPO's mean gradient mu as the sum over all parameters of
g mu / (sqrt(v) + 1e-8), where v is the mean of g squared. The progress ratio is this number of a
method divided by GRPO's: a ratio of 1.03 should act like a learning rate that is 3% higher. A
command that was stopped makes the missing rows.
"""
import copy
import dataclasses
import math
import random
import re
import statistics
import sys

import torch

import grpo_sg
import tasks
from experiments.compare import RESULTS, append_rows, interval, name_commit, read_rows

RATIOS, ROWS = RESULTS / "progress_ratios.jsonl", RESULTS / "progress.jsonl"
MODEL = "support/pretrained/kk"
ARMS = "GRPO", "GRPO-SG", "11-fold", "constant 1.35", "lists only", "filler words only"
RATE, HIGH, HIGHER = 2e-4, 8e-4, 8.48e-4
# When ratios are measured: before training, and after some steps of GRPO at a rate.
MOMENTS = {RATE: [(RATE, 0), (RATE, 15)], HIGH: [(RATE, 0), (HIGH, 10), (HIGH, 20)]}
LOOKS = range(400, 405)             # seeds of the ratios
SEEDS = range(410, 530)             # of the runs; every third one also at HIGH
ROLLOUTS = 32                       # for a ratio
GAIN = 0.0373                       # GRPO's gain in accuracy per octave of the rate
MARGIN = 0.0015                     # a smaller difference in accuracy counts as none


def make_config(seed, **more):
    settings = grpo_sg.read_saved(MODEL) | dict(
        model=MODEL, seed=seed, prompts=8, updates=4, steps=20, eval_every=1000,
        train_problems=400, eval_problems=10, shaping="none")
    return grpo_sg.Config(**settings | more)


# ---- Arms ----

def find_kinds(tokenizer):
    """Return the ids of the lists, such as KNK, and those of the filler words."""
    vocabulary = tokenizer.get_vocab()
    lists = [i for token, i in vocabulary.items() if re.fullmatch(r" [KN]{3}\.?", token)]
    fillers = [vocabulary[f" {word}:"] for word in tasks.STYLE if f" {word}:" in vocabulary]
    return torch.tensor(lists), torch.tensor(fillers)


def weigh_arms(logps, ids, kinds):
    """Return {arm: weights} of tokens with these log-probabilities and ids, all (B, T)."""
    is_list, is_filler = (torch.isin(ids, kind) for kind in kinds)
    w = grpo_sg.token_weights(logps)
    one = torch.ones_like(w)
    return {"GRPO": one,
            "GRPO-SG": w,
            "11-fold": grpo_sg.token_weights(logps, mu=0.45, low=0.0, high=math.inf),
            "constant 1.35": 1.35 * one,
            "lists only": torch.where(is_list, w, 1.4),
            "filler words only": torch.where(is_filler, w, 1.4)}


def train_arm(policy, task, cfg, arm="GRPO"):
    """Train a copy of the policy. Returns (the copy, the rows of its steps)."""
    kinds = find_kinds(policy.tokenizer)
    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    compute_logps, weigh = grpo_sg.compute_logps, grpo_sg.weigh

    def remember_ids(model, batch, cfg):
        logps = compute_logps(model, batch, cfg)
        logps.ids = batch.ids
        return logps

    def weigh_by_kind(logps, cfg):
        return weigh_arms(logps, logps.ids, kinds)[arm]

    grpo_sg.compute_logps, grpo_sg.weigh = remember_ids, weigh_by_kind
    try:
        return policy, [row for row, _ in grpo_sg.train(policy, task, cfg)]
    finally:
        grpo_sg.compute_logps, grpo_sg.weigh = compute_logps, weigh


# ---- The progress ratio ----

def minibatch_gradients(policy, completions, cfg):
    """Return {arm: (size,)}: the gradients of what a minibatch maximizes."""
    kinds, parameters = find_kinds(policy.tokenizer), list(policy.model.parameters())
    g = {arm: torch.zeros(policy.model.num_parameters()) for arm in ARMS}
    for batch in grpo_sg.micro_batches(completions, cfg, "cpu"):
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        A = batch.advantages[:, None] * batch.mask / sum(sum(c.mask) for c in completions)
        for arm, w in weigh_arms(logps, batch.ids, kinds).items():
            if arm != "constant 1.35":
                parts = torch.autograd.grad(logps, parameters, A * w, retain_graph=True)
                g[arm] += torch.cat([part.flatten() for part in parts])
    return g | {"constant 1.35": 1.35 * g["GRPO"]}


def plain_progress(g, grpo):
    """Return the mean over minibatches of the sum of g mu / (sqrt(v) + 1e-8), where mu is GRPO's
    mean gradient over the other rollouts. g, grpo: (rollouts, updates, size)."""
    means = grpo.mean(1, keepdim=True)
    mu = (means.sum(0) - means) / (len(means) - 1)
    return float((g * mu / (g.square().mean((0, 1)).sqrt() + 1e-8)).sum(-1).mean())


def simulated_progress(g, grpo):
    """Return the same for the steps of AdamW on the minibatches in order, with gradients clipped to
    norm 1. Its momentum contains the gradients of the sequence, so mu comes from other rollouts:
    each half of the rollouts is the sequence once, and the other half gives mu."""
    half, steps = len(g) // 2, []
    for own, others in ((g[:half], grpo[half:]), (g[half:], grpo[:half])):
        mu, m, v = others.mean((0, 1)), 0, 0
        # A minibatch of zero-variance groups has no gradient, and a run makes no step on it.
        for t, gradient in enumerate((x for x in own.flatten(0, 1) if x.any()), 1):
            gradient = gradient / max(1.0, float(gradient.norm()))
            m = 0.9 * m + 0.1 * gradient
            v = 0.99 * v + 0.01 * gradient.square()
            size = (v / (1 - 0.99 ** t)).sqrt() + 1e-8
            steps.append(float((m / (1 - 0.9 ** t) * mu / size).sum()))
    return statistics.fmean(steps)


def measure_ratios(policy, task, cfg, step):
    """Return {arm: (plain ratio, simulated ratio)} of the policy."""
    minibatches = []
    for k in range(ROLLOUTS):
        seed = cfg.seed * 1_000_003 + 1000 * (step + 1) + k
        problems = random.Random(seed).sample(task.train, cfg.prompts)
        drawn = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                temperature=cfg.temperature, seed=seed)
        grpo_sg.set_advantages(drawn, cfg.group_size)
        shuffled = random.Random(seed).sample(drawn, len(drawn))
        minibatches += [minibatch_gradients(policy, shuffled[i::cfg.updates], cfg)
                        for i in range(cfg.updates)]
    progress = {}
    for arm in minibatches[0]:
        g, grpo = (torch.stack([gradients[name] for gradients in minibatches])
                   .unflatten(0, (ROLLOUTS, -1)) for name in (arm, "GRPO"))
        progress[arm] = plain_progress(g, grpo), simulated_progress(g, grpo)
    return {arm: [round(x / y, 5) for x, y in zip(values, progress["GRPO"])]
            for arm, values in progress.items()}


def make_ratios(seeds=LOOKS, path=RATIOS):
    """Append the rows of ratios that are missing."""
    done = {(row["seed"], row["lr"], row["step"]) for row in read_rows(path)}
    for seed in seeds:
        for lr, step in dict.fromkeys(MOMENTS[RATE] + MOMENTS[HIGH]):
            if (seed, lr, step) not in done:
                cfg = make_config(seed, lr=lr, steps=step)
                policy, task = grpo_sg.load(cfg)
                policy, _ = train_arm(policy, task, cfg)
                append_rows(path, [{"seed": seed, "lr": lr, "step": step, "commit": name_commit(),
                                    "ratios": measure_ratios(policy, task, cfg, step)}])


def average_ratio(rows, arm, lr=RATE, simulated=True):
    """Return the mean of an arm's ratio over the seeds and moments of a rate."""
    return statistics.fmean(row["ratios"][arm][simulated] for row in rows
                            if (row["lr"], row["step"]) in MOMENTS[lr])


# ---- Runs and outcomes ----

def list_runs(ratios):
    """Return {name: (rate, arm)} of a seed's runs: those at RATE, then those at HIGH."""
    low = {arm: (RATE, arm) for arm in ARMS}
    for arm in ("GRPO-SG", "11-fold"):
        low[f"GRPO at the rate of {arm}"] = round(RATE * average_ratio(ratios, arm), 8), "GRPO"
    return low, {"high": (HIGH, "GRPO"), "11-fold": (HIGH, "11-fold"), "higher": (HIGHER, "GRPO")}


def make_runs():
    """Append the rows that are missing, seed by seed."""
    ratios = read_rows(RATIOS)
    assert len(ratios) == 4 * len(LOOKS), "first: python -m experiments.progress ratios"
    done = {(row["seed"], row["lr"], row["arm"]) for row in read_rows(ROWS)}
    low, high = list_runs(ratios)
    for seed in SEEDS:
        runs = [*low.values(), *(high.values() if (seed - SEEDS[0]) % 3 == 0 else ())]
        missing = [run for run in runs if (seed, *run) not in done]
        if missing:
            policy, task = grpo_sg.load(make_config(seed))
        for lr, arm in missing:
            cfg = make_config(seed, lr=lr)
            _, steps = train_arm(policy, task, cfg, arm)
            solved = [round(row["accuracy"] * cfg.prompts * cfg.group_size) for row in steps]
            append_rows(ROWS, [{"seed": seed, "lr": lr, "arm": arm, "solved": solved,
                                "commit": name_commit()}])


def read_accuracy(rows, runs):
    """Return {name: accuracies in steps 1 to 20}, in the order of the seeds that have all runs."""
    found = {(row["lr"], row["arm"], row["seed"]): statistics.fmean(row["solved"]) / 64
             for row in rows}
    seeds = [seed for seed in SEEDS if all((*run, seed) in found for run in runs.values())]
    return {name: [found[(*run, seed)] for seed in seeds] for name, run in runs.items()}


def subtract(a, b):
    return [x - y for x, y in zip(a, b)]


def judge(values, low=-MARGIN, high=MARGIN):
    """Return whether the 95% interval of the mean is "within" the bounds, "outside", or neither."""
    _, left, right = interval(values)
    if low <= left and right <= high:
        return "within"
    return "outside" if right < low or left > high else "inconclusive"


def bootstrap_slope(predicted, leads, samples=10_000):
    """Return (slope, low, high) of the line through 0 of measured over predicted leads, with a 95%
    interval over seeds. predicted: {name: number}; leads: {name: a number for each seed}."""
    total = sum(x * x for x in predicted.values())
    slopes = [sum(x * d for x, d in zip(predicted.values(), values)) / total
              for values in zip(*(leads[name] for name in predicted))]
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(slopes, k=len(slopes))) for _ in range(samples))
    return statistics.fmean(slopes), means[round(0.025 * samples)], means[round(0.975 * samples)]


def in_words(values):
    return "{:+.4f} [{:+.4f}, {:+.4f}]".format(*interval(values))


def show():
    ratios, rows = read_rows(RATIOS), read_rows(ROWS)
    for arm in ARMS:
        print(f"{arm}: ratio {average_ratio(ratios, arm, simulated=False):.4f}, simulated "
              f"{average_ratio(ratios, arm):.4f}, at 8e-4 {average_ratio(ratios, arm, HIGH):.4f}")
    low, high = (read_accuracy(rows, runs) for runs in list_runs(ratios))
    leads = {name: subtract(values, low["GRPO"]) for name, values in low.items() if name != "GRPO"}
    predicted = {name: GAIN * math.log2(average_ratio(ratios, name.split(" of ")[-1]))
                 for name in leads}
    for name, x in predicted.items():
        print(f"{name}: predicted {x:+.4f}, measured {in_words(leads[name])}, measured minus "
              f"predicted {in_words([lead - x for lead in leads[name]])}, {len(leads[name])} seeds")
    pairs = [(arm, f"GRPO at the rate of {arm}") for arm in ("GRPO-SG", "11-fold")]
    pairs += [("constant 1.35", "GRPO"), ("lists only", "filler words only")]
    for number, (a, b) in enumerate(pairs, 1):
        values = subtract(low[a], low[b])
        verdict = judge(values, 0, 0) if number == 4 else judge(values)
        print(f"{number}. {a} minus {b}: {in_words(values)}, {verdict}")
    weights = {name: x for name, x in predicted.items() if " of " not in name}
    for arms in (predicted, weights):
        print("5. slope {:.2f} [{:.2f}, {:.2f}]".format(*bootstrap_slope(arms, leads)), len(arms))
    octave = math.log2(average_ratio(ratios, "11-fold", HIGH)) / math.log2(HIGHER / HIGH)
    measured = subtract(high["11-fold"], high["high"])
    expected = [octave * x for x in subtract(high["higher"], high["high"])]
    print(f"6. 11-fold minus GRPO at 8e-4: {in_words(measured)}, predicted {in_words(expected)}, "
          f"difference {in_words(subtract(measured, expected))}, {len(measured)} seeds")


if __name__ == "__main__":
    {"ratios": make_ratios, "run": make_runs, "show": show}[sys.argv[1]]()
