"""Compute the numbers of one group, of the derivation and of off-policy sampling.

    python -m lesson.by_hand        a few seconds; it always prints the same

Nothing is trained, and there is no noise. lesson/README.md and lesson/off_policy.md ask for these
numbers, so write yours down first.
"""
import itertools
import math
import os
import sys

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models

# The project's folder: a script sees only its own.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from grpo_sg import group_advantages, grpo_sg_loss, token_weights

# A policy that can write four completions only, and what they earn.
LOGITS = torch.tensor([0.3, -0.5, -1.0, 0.8], dtype=torch.float64)
REWARDS = torch.tensor([0.0, 1.0, 5.0, 2.0], dtype=torch.float64)
G = 3


# ---- One group ----

GROUP = torch.tensor([[3.0, 3.0] + [-0.5] * 6])  # two completions are correct


def push(pi, A, weighted=False, old=None):
    """Return the gradient of a token's objective in the token's own logit, which an update raises
    if this is positive. old: its probability when it was sampled, if that was not pi."""
    logit = torch.tensor(math.log(pi / (1 - pi)), requires_grad=True)
    logps = F.logsigmoid(logit).view(1, 1)  # log pi: the other tokens have 1 - pi together
    old_logps = torch.tensor([[math.log(old or pi)]])
    weights = token_weights(logps) if weighted else None
    loss, _ = grpo_sg_loss(logps, old_logps, torch.tensor([A]), torch.ones(1, 1), weights=weights)
    (-loss).backward()
    return logit.grad.item()


def advantages(k, G=8):
    """Return the advantages of a correct and of a wrong completion, if k of G are correct."""
    rewards = torch.tensor([[1.0] * k + [0.0] * (G - k)])
    A = group_advantages(rewards)[0]
    return A[0].item(), A[-1].item()


def silence(p, G=8):
    """Return how often a group gives no gradient, if each is correct with probability p."""
    return p ** G + (1 - p) ** G


# ---- Baselines ----

def no_baseline(R):
    return R


def group_mean(R):
    return R - R.mean()


def others_mean(R):
    return R - (R.sum() - R) / (len(R) - 1)


def gradient_of_groups(advantages_of, logits=LOGITS, rewards=REWARDS):
    """Return (mean (D,), variance): of the gradient sum A grad log pi / G, over all groups of G
    completions, enumerated. The variance is the sum over the D parameters."""
    pi = torch.softmax(logits, 0)
    score = torch.eye(len(logits), dtype=torch.float64) - pi  # grad log pi of each completion
    mean, square = torch.zeros(len(logits), dtype=torch.float64), 0.0
    for group in itertools.product(range(len(logits)), repeat=G):
        group = list(group)
        gradient = (advantages_of(rewards[group])[:, None] * score[group]).sum(0) / G
        mean += pi[group].prod() * gradient
        square += pi[group].prod() * gradient @ gradient
    return mean, square - mean @ mean


# ---- Samplers ----

def restrict(p, top_p):
    """Return (q, Z): the distribution of top-p sampling, and the mass of the tokens it keeps."""
    sorted_p, order = p.sort(descending=True)
    keep = torch.zeros_like(p)
    keep[order[sorted_p.cumsum(0) - sorted_p < top_p]] = 1
    Z = (p * keep).sum()
    return p * keep / Z, Z


def log_ratio_of_rounding(logits):
    """Return (mean, standard deviation) of log(p / q), over tokens that q draws, where q has the
    logits in bfloat16 and p has them exactly."""
    p, q = logits.log_softmax(-1), logits.bfloat16().double().log_softmax(-1)
    mean = (q.exp() * (p - q)).sum(-1).mean()
    variance = (q.exp() * (p - q - mean) ** 2).sum(-1).mean()
    return mean.item(), variance.sqrt().item()


def build_tokenizer():
    """Return a byte-pair tokenizer that merges letters up to the word hello."""
    words = ["h", "e", "l", "o", "he", "ll", "llo", "hello"]
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


# ---- What it prints ----

def print_one_group():
    good, bad = group_advantages(GROUP)[0, [0, -1]].tolist()
    print(f"one group, with the rewards {GROUP[0].tolist()}:")
    print(f"    mean {GROUP.mean():.3f}, standard deviation {GROUP.std():.2f}, "
          f"A = {good:+.2f} or {bad:+.2f}")
    for pi in (0.08, 0.9):
        print(f"    a correct completion's token with pi = {pi}: push A (1 - pi) = "
              f"{push(pi, good):.2f}, with w {push(pi, good, weighted=True):.2f}")
    for pi in (0.60, 0.65):
        print(f"    from pi = 0.50 to {pi:.2f}, r = {pi / 0.5:.2f}: push "
              f"{push(pi, good, old=0.5):.2f}")


def print_derivation():
    print("advantages if k of 8 completions are correct, the reward 1 or 0:")
    for k in (1, 4, 7):
        print("    k = {}: correct {:+.2f}, wrong {:+.2f}".format(k, *advantages(k)))
    print("how often all 8 rewards are equal, if each is 1 with probability p:")
    for p in (0.5, 0.9, 0.99):
        print(f"    p = {p}: {silence(p):.3f}")
    print("variance of a group's gradient, over its squared mean, with four possible completions:")
    for name, plus in (("as they are", 0.0), ("plus 10", 10.0)):
        print(f"    rewards {name}:", end="")
        for baseline in (no_baseline, group_mean, others_mean):
            mean, variance = gradient_of_groups(baseline, rewards=REWARDS + plus)
            print(f"  {baseline.__name__} {variance / (mean @ mean):.1f}", end="")
        print()


def print_samplers():
    p = torch.tensor([0.5, 0.25, 0.15, 0.06, 0.04], dtype=torch.float64)
    q, Z = restrict(p, 0.8)
    ratios = ", ".join(f"{x:.2f}" for x in (p / q)[q > 0])
    print(f"top-p 0.8 of {p.tolist()}: p / q = {ratios}; kept mass Z = {Z:.2f}")

    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(50, 50_000, generator=generator, dtype=torch.float64)
    _, std = log_ratio_of_rounding(logits)
    print(f"logits in bfloat16: log(p / q) of a token has the standard deviation {std:.3f}, and "
          f"of 1,000 tokens {std * 1000 ** 0.5:.2f}")

    tokenizer = build_tokenizer()
    ids = [tokenizer.token_to_id("he"), tokenizer.token_to_id("llo")]
    text = tokenizer.decode(ids)
    print(f"sampled {ids}, decoded {text!r}, retokenized {tokenizer.encode(text).ids}")


if __name__ == "__main__":
    print_one_group()
    print_derivation()
    print_samplers()
