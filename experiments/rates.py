"""What learning rate is a token weight like? Measure a ratio before training, then run.

    python -m experiments.rates ratios kk     the ratios, results/rates_ratios.jsonl
    python -m experiments.rates run kk        the runs, results/rates.jsonl: an hour of one core
    python -m experiments.rates run math      the same for the second task: half an hour

The ratio says how far an AdamW step with a weight goes along GRPO's mean gradient, divided by how
far a step of GRPO goes. It is measured before training. A ratio of 1.12 should act like a learning
rate that is 12% higher, at least in the first steps. The rule is in results/rules.md, and
`python -m experiments.evidence` computes its outcomes. A command that was stopped makes the missing
rows.
"""
import copy
import dataclasses
import random
import re
import sys

import torch

import grpo_sg
from experiments.compare import RESULTS, append_rows, name_commit, read_rows

RATIOS, ROWS = RESULTS / "rates_ratios.jsonl", RESULTS / "rates.jsonl"
RATE = 2e-4
LOOKS = range(530, 538)  # seeds of the ratios
SEEDS = {"kk": range(540, 588), "math": range(600, 632)}  # of the runs
GRPO = {"kk": (0.05, 0.25, 0.5, 0.71, 1.0, 1.41), "math": (0.25, 0.5, 0.71, 1.0, 1.41)}  # x RATE
BOTH = ("GRPO-SG", "pi", "1 - pi", "(1 - pi)^2", "(1 - pi)^4", "reversed", "top 20% entropy")
WEIGHTS = {"kk": BOTH + ("AR-Lopti", "filler x 15", "filler x 40", "A > 0 x 0.1",
                         "rare left out", "other 80%"),
           "math": BOTH}
ROLLOUTS = 32            # for a ratio, each of 4 minibatches


def make_config(task, seed, **more):
    model = f"support/pretrained/{task}"
    return grpo_sg.Config(**grpo_sg.read_saved(model) | dict(
        model=model, seed=seed, lr=RATE, prompts=8, updates=4, steps=20, train_problems=400,
        eval_problems=10) | more)


# ---- The weights ----

def find_fillers(tokenizer):
    """Return the ids of the filler words of a puzzle's answer, such as " thus:"."""
    vocabulary = tokenizer.get_vocab()
    return torch.tensor([vocabulary[token] for token in vocabulary
                         if re.fullmatch(" [a-z]+:", token)], dtype=torch.long)


def find_uncertain(entropy, mask):
    """Return which tokens are among the 20% of the batch where the policy's entropy is highest.
    entropy: (B, T), in nats; mask: (B, T) bool, the policy's tokens."""
    values = entropy[mask]
    least = values.topk(max(1, round(0.2 * len(values)))).values[-1]
    return mask & (entropy >= least)


def weigh_tokens(name, logps, batch, entropy, fillers):
    """Return the weights of a method for each token of a batch, (B, T).

    logps: (B, T) of the sampled tokens; entropy: (B, T) of the distributions that they were
    drawn from; fillers: ids of filler words."""
    logps = logps.detach()
    pi = logps.exp()
    one = torch.ones_like(pi)
    filler = torch.isin(batch.ids, fillers)
    weights = {
        "GRPO": one,
        "GRPO-SG": grpo_sg.token_weights(logps),
        "pi": pi,  # dynamic fine-tuning's
        "1 - pi": 1 - pi,
        "(1 - pi)^2": (1 - pi) ** 2,  # as in the focal loss
        "(1 - pi)^4": (1 - pi) ** 4,
        "AR-Lopti": 0.2 * pi + 0.8,
        "reversed": 2.4 - grpo_sg.token_weights(logps),
        "top 20% entropy": find_uncertain(entropy, batch.mask).float(),  # arXiv 2506.01939
        "filler x 15": torch.where(filler, 15.0, one),
        "filler x 40": torch.where(filler, 40.0, one),
        "A > 0 x 0.1": torch.where(batch.advantages[:, None] > 0, 0.1, one),
        "rare left out": (pi >= 1/3).float(),
        "other 80%": 1 - find_uncertain(entropy, batch.mask).float()}
    return weights[name]


class Watched:
    """Compute log-probabilities as grpo_sg does, and remember the batch and its entropies."""

    def __init__(self, model, cfg):
        self.temperature = cfg.temperature
        self.compute_logps = grpo_sg.compute_logps
        model.get_output_embeddings().register_forward_hook(self.remember)

    def remember(self, head, inputs, logits):
        self.logits = logits.detach().flatten(0, -2)  # (N, V): those of the policy's tokens

    def __call__(self, model, batch, cfg):
        logps = self.compute_logps(model, batch, cfg)
        logs = torch.log_softmax(self.logits.float() / self.temperature, -1)
        entropies = -(logs.exp() * logs).sum(-1)  # (N,)
        entropy = torch.zeros_like(logps).masked_scatter(batch.mask, entropies)
        logps.seen = batch, entropy
        return logps


def train_with(name, policy, task, cfg):
    """Train a copy of the policy with a weight. Returns how many completions each step solved."""
    fillers = find_fillers(policy.tokenizer)
    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    before = grpo_sg.compute_logps, grpo_sg.weigh

    def weigh(logps, cfg):
        return weigh_tokens(name, logps, *logps.seen, fillers)

    grpo_sg.compute_logps, grpo_sg.weigh = Watched(policy.model, cfg), weigh
    try:
        rows = [row for row, _ in grpo_sg.train(policy, task, cfg)]
    finally:
        grpo_sg.compute_logps, grpo_sg.weigh = before
    return [round(row["accuracy"] * cfg.prompts * cfg.group_size) for row in rows]


# ---- The ratio ----

def sample_minibatches(policy, task, cfg):
    """Sample the minibatches of ROLLOUTS rollouts, none of them a step of a run."""
    for k in range(ROLLOUTS):
        seed = cfg.seed * 1_000_003 + 1000 + k
        problems = random.Random(seed).sample(task.train, cfg.prompts)
        drawn = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                temperature=cfg.temperature, seed=seed)
        grpo_sg.set_advantages(drawn, cfg.group_size)
        shuffled = random.Random(seed).sample(drawn, len(drawn))
        yield from (shuffled[i::cfg.updates] for i in range(cfg.updates))


def find_gradients(policy, completions, cfg, compute_logps, names):
    """Return (weights, size): the gradient at r = 1 of what each weight maximizes on a minibatch,
    before clipping."""
    fillers, parameters = find_fillers(policy.tokenizer), list(policy.model.parameters())
    gradients = torch.zeros(len(names), policy.model.num_parameters())
    for batch in grpo_sg.micro_batches(completions, cfg, "cpu"):
        logps = compute_logps(policy.model, batch, cfg)
        A = batch.advantages[:, None] * batch.mask / sum(sum(c.mask) for c in completions)
        for i, name in enumerate(names):
            w = weigh_tokens(name, logps, *logps.seen, fillers)
            parts = torch.autograd.grad(logps, parameters, A * w, retain_graph=True)
            gradients[i] += torch.cat([part.flatten() for part in parts])
    return gradients


def find_progress(g, grpo):
    """Return the mean over minibatches of the sum over parameters of g mu / rms g, where mu is
    GRPO's mean gradient over the *other* rollouts, so that noise adds no bias.

    g, grpo: (rollouts, updates, size)."""
    means = grpo.mean(1, keepdim=True)
    mu = (means.sum(0) - means) / (len(means) - 1)
    rms = g.square().mean((0, 1)).sqrt()
    return float((g * mu / (rms + 1e-8)).sum(-1).mean())


def measure_ratios(policy, task, cfg, names):
    """Return {weight: its ratio} of the policy."""
    compute_logps = Watched(policy.model, cfg)
    names = ["GRPO", *names]
    gradients = torch.stack([find_gradients(policy, minibatch, cfg, compute_logps, names)
                             for minibatch in sample_minibatches(policy, task, cfg)], 1)
    g = gradients.unflatten(1, (ROLLOUTS, cfg.updates))  # (weights, rollouts, updates, size)
    progress = [find_progress(each, g[0]) for each in g]
    return {name: round(x / progress[0], 5) for name, x in zip(names[1:], progress[1:])}


# ---- The rows ----

def make_ratios(task):
    """Append the ratios of the seeds that are missing."""
    done = {row["seed"] for row in read_rows(RATIOS) if row["task"] == task}
    for seed in LOOKS:
        if seed not in done:
            cfg = make_config(task, seed)
            policy, problems = grpo_sg.load(cfg)
            ratios = measure_ratios(policy, problems, cfg, WEIGHTS[task])
            append_rows(RATIOS, [{"task": task, "seed": seed, "commit": name_commit(),
                                  "ratios": ratios}])


def make_runs(task):
    """Append the rows of the seeds that are missing, each with all of its runs."""
    done = {row["seed"] for row in read_rows(ROWS) if row["task"] == task}
    runs = {f"GRPO x {factor:g}": ("GRPO", factor * RATE) for factor in GRPO[task]}
    runs |= {name: (name, RATE) for name in WEIGHTS[task]}
    for seed in SEEDS[task]:
        if seed not in done:
            policy, problems = grpo_sg.load(make_config(task, seed))
            solved = {name: train_with(weight, policy, problems, make_config(task, seed, lr=lr))
                      for name, (weight, lr) in runs.items()}
            append_rows(ROWS, [{"task": task, "seed": seed, "commit": name_commit(),
                                "solved": solved}])


if __name__ == "__main__":
    {"ratios": make_ratios, "run": make_runs}[sys.argv[1]](sys.argv[2])
