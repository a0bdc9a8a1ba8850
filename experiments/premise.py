"""Do unlikely tokens dominate the gradient? Gradient norms of tokens against their probability.

    python -m experiments.premise                         about five minutes per seed on one core
    python -m experiments.premise --seeds 0 --tasks kk    a part of it

A row of results/premise.jsonl (--results) is a task and a seed; recorded rows are skipped. The
policy is the tiny model of `python grpo_sg.py --task TASK --warm_up` after 30 steps. For each
token of its completions of training problems we compute the probability pi, and the norm of the
gradient of log pi with respect to all parameters and to the logits. With V words, the latter is
between sqrt(V / (V - 1)) (1 - pi) and sqrt(2) (1 - pi); the script checks this for every token.
The row also has the share of tokens with pi < 1/3 in the sum of squared norms (each times its
weight and advantage, squared), for each shaping. This sum is not the squared norm of the summed
gradient, in which the gradients of tokens can cancel.
"""
import argparse
import dataclasses
import datetime
import json
import pathlib
import statistics

import torch
from tqdm import tqdm

import grpo_sg
import tasks
from experiments.analysis import RESULTS, read_rows
from experiments.run import name_commit
from support import cli, tiny

SAMPLE = "sample: pi, norm, norm at the logits"


def measure_norms(model, completion):
    """Return (pi, norm over the parameters, norm over the logits, advantage) for each of the
    completion's own tokens."""
    ids = torch.tensor([completion.prompt + completion.tokens])
    logits = model(input_ids=ids).logits[0, len(completion.prompt) - 1:-1]  # (T, V)
    logps = logits.log_softmax(-1)
    found = []
    for t, token in enumerate(completion.tokens):
        if not completion.mask[t]:
            continue
        *grads, at_logits = torch.autograd.grad(
            logps[t, token], [*model.parameters(), logits], retain_graph=True)
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt().item()
        pi = logps[t, token].exp().item()
        found.append((pi, norm, at_logits.norm().item(), completion.advantage))
    return found


def rank(values):
    """Return the ranks for Spearman's correlation, without ties."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    for place, i in enumerate(order):
        ranks[i] = place
    return ranks


def share_of_unlikely(rows, w):
    """Return the share of tokens with pi < 1/3 in the sum of squared norms; w: (N,) weights."""
    squares = [(weight * A * norm) ** 2 for weight, (_, norm, _, A) in zip(w.tolist(), rows)]
    unlikely = [square for square, row in zip(squares, rows) if row[0] < 1 / 3]
    return sum(unlikely) / max(sum(squares), 1e-30)


def weigh(shaping, pi):
    if shaping == "reverse":  # the same curve over 1 - pi
        return grpo_sg.token_weights((1 - pi).log())
    w = grpo_sg.weigh(pi.log(), grpo_sg.Config(shaping=shaping))
    return torch.ones_like(pi) if w is None else w


def thin_out(rows):
    """Keep all tokens below 0.98 and a hundred of the others, for the figure."""
    rows = sorted(rows)
    n = sum(row[0] < 0.98 for row in rows)
    kept = rows[:n] + rows[n::max(1, (len(rows) - n) // 100)]
    return [[round(x, 3) for x in row[:3]] for row in kept]


def measure(name, seed, steps=30, problems=32, own=True):
    """Return a row. own: train a warm start, instead of using the pretrained model."""
    flags = ["--task", name, "--seed", str(seed), "--eval_every", "1000000"]
    cfg = cli.parse(flags + ["--warm_up"] * own)
    cfg = dataclasses.replace(cfg, steps=steps)
    policy, task, _ = cli.load(cfg)
    if own:
        tiny.warm_up(policy, task, cfg)
    grpo_sg.train(policy, task, cfg)
    completions = grpo_sg.rollout(policy, task, task.train[-problems:], cfg, n=8,
                                  temperature=1.0, seed=seed)
    grpo_sg.set_advantages(completions, 8)
    rows = []
    for c in tqdm(completions, "gradients"):
        rows += measure_norms(policy.model, c)
    V = policy.model.config.vocab_size
    for pi, _, norm, _ in rows:
        low, high = (V / (V - 1)) ** 0.5 * (1 - pi), 2 ** 0.5 * (1 - pi)
        assert low - 1e-5 <= norm <= high + 1e-5
    pi = [row[0] for row in rows]
    norms = [row[1] for row in rows]
    unlikely = [1 - p for p in pi]
    shares = {}
    for shaping in ("none", "sg", "ar", "reverse"):
        shares[shaping] = share_of_unlikely(rows, weigh(shaping, torch.tensor(pi)))
    return {"task": name, "seed": seed, "tokens": len(rows), "words": V,
            "share of tokens with pi < 1/3": statistics.fmean(p < 1 / 3 for p in pi),
            "Pearson": statistics.correlation(norms, unlikely),
            "Spearman": statistics.correlation(rank(norms), rank(unlikely)),
            "share of squared norm": shares, SAMPLE: thin_out(rows),
            "commit": name_commit(), "date": str(datetime.date.today())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--tasks", nargs="+", choices=tasks.TASKS, default=list(tasks.TASKS))
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS / "premise.jsonl")
    args = parser.parse_args()
    done = {(row["task"], row["seed"]) for row in read_rows(args.results)}
    for seed in args.seeds:
        for name in args.tasks:
            if (name, seed) in done:
                continue
            row = measure(name, seed)
            if seed != args.seeds[0]:
                del row[SAMPLE]
            with open(args.results, "a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
