"""Is GRPO-SG's weight a slightly higher learning rate? Measure how far a step goes, then run.

    python -m experiments.progress ratios   the progress ratios, results/progress_ratios.jsonl
    python -m experiments.progress run      the runs, results/progress.jsonl: over an hour
    python -m experiments.progress show     the outcomes of the rule, results/rules.md#progress

The progress ratio says how far an AdamW step of a method goes along GRPO's mean gradient, divided
by how far a step of GRPO goes. A ratio of 1.03 should act like a learning rate that is 3% higher.
A command that was stopped makes the missing rows.
"""
import copy
import dataclasses
import itertools
import math
import random
import re
import statistics
import sys

import torch

import grpo_sg
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
    return grpo_sg.Config(**grpo_sg.read_saved(MODEL) | dict(
        model=MODEL, seed=seed, prompts=8, updates=4, steps=20, train_problems=400,
        eval_problems=10) | more)


# ---- Arms ----

def find_kinds(tokenizer):
    """Return the ids of the lists, such as KNK, and those of the filler words, such as thus."""
    vocabulary = tokenizer.get_vocab()
    return [torch.tensor([vocabulary[token] for token in vocabulary if re.fullmatch(kind, token)])
            for kind in (r" [KN]{3}\.?", " [a-z]+:")]


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
    """Return (arms, size): the gradient of what each arm maximizes on a minibatch."""
    kinds, parameters = find_kinds(policy.tokenizer), list(policy.model.parameters())
    g = torch.zeros(len(ARMS), policy.model.num_parameters())
    for batch in grpo_sg.micro_batches(completions, cfg, "cpu"):
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        A = batch.advantages[:, None] * batch.mask / sum(sum(c.mask) for c in completions)
        for i, w in enumerate(weigh_arms(logps, batch.ids, kinds).values()):
            parts = torch.autograd.grad(logps, parameters, A * w, retain_graph=True)
            g[i] += torch.cat([part.flatten() for part in parts])
    return g


def plain_progress(g, grpo):
    """Return the mean over minibatches of the sum of g mu / (sqrt(v) + 1e-8), where mu is GRPO's
    mean gradient over the other rollouts. g, grpo: (rollouts, updates, size)."""
    means = grpo.mean(1, keepdim=True)
    mu = (means.sum(0) - means) / (len(means) - 1)
    return float((g * mu / (g.square().mean((0, 1)).sqrt() + 1e-8)).sum(-1).mean())


def simulated_progress(g, grpo):
    """Return the same for AdamW's steps on the minibatches in order, with gradients clipped to norm
    1. Momentum contains gradients of the sequence, so mu comes from the other half of the rollouts.
    """
    half, steps = len(g) // 2, []
    for own, others in ((g[:half], grpo[half:]), (g[half:], grpo[:half])):
        mu, m, v = others.mean((0, 1)), 0, 0
        # A run makes no step on a minibatch without a gradient.
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
    arms = torch.stack(minibatches).unflatten(0, (ROLLOUTS, -1)).unbind(2)
    progress = torch.tensor([(plain_progress(g, arms[0]), simulated_progress(g, arms[0]))
                             for g in arms])
    return {arm: [round(x, 5) for x in ratios]
            for arm, ratios in zip(ARMS, (progress / progress[0]).tolist())}


def make_ratios():
    """Append the rows of ratios that are missing."""
    done = {(row["seed"], row["lr"], row["step"]) for row in read_rows(RATIOS)}
    looks = dict.fromkeys(MOMENTS[RATE] + MOMENTS[HIGH])
    for seed, (lr, step) in itertools.product(LOOKS, looks):
        if (seed, lr, step) not in done:
            cfg = make_config(seed, lr=lr, steps=step)
            policy, task = grpo_sg.load(cfg)
            policy, _ = train_arm(policy, task, cfg)
            append_rows(RATIOS, [{"seed": seed, "lr": lr, "step": step, "commit": name_commit(),
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
        low[f"rate of {arm}"] = round(RATE * average_ratio(ratios, arm), 8), "GRPO"
    return low, {"high": (HIGH, "GRPO"), "11-fold": (HIGH, "11-fold"), "higher": (HIGHER, "GRPO")}


def make_runs():
    """Append the rows of the seeds that are missing, each with all of its runs."""
    done = {row["seed"] for row in read_rows(ROWS)}
    low, high = list_runs(read_rows(RATIOS))
    for i, seed in enumerate(SEEDS):
        if seed in done:
            continue
        policy, task = grpo_sg.load(make_config(seed))
        runs = []
        for lr, arm in [*low.values(), *(high.values() if i % 3 == 0 else ())]:
            _, steps = train_arm(policy, task, make_config(seed, lr=lr), arm)
            solved = [round(row["accuracy"] * 64) for row in steps]
            runs.append({"lr": lr, "arm": arm, "solved": solved})
        append_rows(ROWS, [{"seed": seed, "commit": name_commit(), "runs": runs}])


def read_accuracy(rows, runs):
    """Return {name: accuracies in steps 1 to 20}, in the order of the seeds that have all runs."""
    found = {(run["lr"], run["arm"], row["seed"]): statistics.fmean(run["solved"]) / 64
             for row in rows for run in row["runs"]}
    seeds = [seed for seed in SEEDS if all((*run, seed) in found for run in runs.values())]
    return {name: torch.tensor([found[(*run, seed)] for seed in seeds], dtype=torch.float64)
            for name, run in runs.items()}


def judge(low, high):
    """Return whether an interval is within +-MARGIN, outside of it, or neither."""
    if -MARGIN <= low and high <= MARGIN:
        return "within"
    return "outside" if low > MARGIN or high < -MARGIN else "inconclusive"


def bootstrap_slope(predicted, leads, samples=10_000):
    """Return (slope, low, high) of the line through 0 of measured over predicted leads, with a 95%
    interval over seeds. predicted: (arms,); leads: (arms, seeds)."""
    slopes = (predicted @ leads / (predicted @ predicted)).tolist()  # of each seed
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(slopes, k=len(slopes))) for _ in range(samples))
    return statistics.fmean(slopes), means[samples // 40], means[-samples // 40]


def summarize(ratios, rows):
    """Return ({arm: predicted lead at RATE}, {arm: measured leads}, {outcome: differences})."""
    low, high = (read_accuracy(rows, runs) for runs in list_runs(ratios))
    leads = {name: values - low["GRPO"] for name, values in low.items() if name != "GRPO"}
    predicted = {name: GAIN * math.log2(average_ratio(ratios, name.removeprefix("rate of ")))
                 for name in leads}
    octave = math.log2(average_ratio(ratios, "11-fold", HIGH)) / math.log2(HIGHER / HIGH)
    measured, expected = high["11-fold"] - high["high"], octave * (high["higher"] - high["high"])
    return predicted, leads, {
        "1. GRPO-SG minus GRPO at its rate": low["GRPO-SG"] - low["rate of GRPO-SG"],
        "2. 11-fold minus GRPO at its rate": low["11-fold"] - low["rate of 11-fold"],
        "3. constant 1.35 minus GRPO": leads["constant 1.35"],
        "4. lists only minus filler words only": low["lists only"] - low["filler words only"],
        "6. 11-fold minus GRPO at 8e-4": measured, "6. predicted": expected,
        "6. measured minus predicted": measured - expected}


def show():
    ratios, rows = read_rows(RATIOS), read_rows(ROWS)
    for arm in ARMS:
        print(f"{arm}: plain ratio {average_ratio(ratios, arm, simulated=False):.4f}, simulated "
              f"{average_ratio(ratios, arm):.4f}, at 8e-4 {average_ratio(ratios, arm, HIGH):.4f}")
    predicted, leads, outcomes = summarize(ratios, rows)
    for name, x in predicted.items():
        outcomes[f"{name}: predicted {x:+.4f}, measured"] = leads[name]
        outcomes[f"{name}: measured minus predicted"] = leads[name] - x
    for name, values in outcomes.items():
        mean, low, high = interval(values.tolist())
        print(f"{name} {mean:+.4f} [{low:+.4f}, {high:+.4f}], {len(values)} seeds, "
              f"{judge(low, high)} ({MARGIN})")
    for names in (list(leads), [name for name in leads if "rate" not in name]):
        slope = bootstrap_slope(torch.tensor([predicted[name] for name in names]).double(),
                                torch.stack([leads[name] for name in names]))
        print("5. slope of {} arms: {:.3f} [{:.3f}, {:.3f}]".format(len(names), *slope))


if __name__ == "__main__":
    {"ratios": make_ratios, "run": make_runs, "show": show}[sys.argv[1]]()
