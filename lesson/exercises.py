"""Exercises: the method in eight functions, without their bodies. The project's own tests
grade them.

    python -m lesson.exercises          how many are done, and what comes next

Write a body in place of each `raise`. The equations, beside the answers, are in README.md,
"The method"; the answers are in sections 1 to 5 of grpo_sg.py. To see all that a test says:

    OF=lesson.exercises python -m pytest -q -x test_grpo_sg.py

Shapes: P prompts with G completions each; B = P * G rows of T tokens; V words in the
vocabulary.
"""
import math
import os
import random
import sys

import torch
import torch.nn.functional as F

# The project's folder: a script sees its own alone.
sys.path.append(os.path.abspath("." if os.path.exists("grpo_sg.py") else ".."))
import grpo_sg


def token_weights(logps, *, alpha=2.0, tau=1/9, mu=0.25, low=1.0, high=1.4):
    """GRPO-SG's weights w = clip(alpha * (sigmoid(pi / tau) - mu), L, U), with pi = exp(logps).

    logps: log-probabilities of the sampled tokens, any shape. low, high: L, U. Returns float32 of
    that shape, without a gradient: w says how much a token's advantage counts, and is not to be
    maximised.
    """
    raise NotImplementedError(
        "token_weights: take pi from logps in float32 and without its gradient, then write "
        "the formula, with torch.sigmoid and clamp")


def group_advantages(rewards, *, eps=1e-6):
    """A = (R - mean R) / (std R + eps) in each group.

    rewards: (P, G), a group a row, G >= 2. Returns (P, G), float32. std is the sample standard
    deviation (over G - 1). A group of equal rewards gets exactly 0.
    """
    raise NotImplementedError(
        "group_advantages: a group is a row, so mean and standard deviation are along dim 1; "
        "and the mean of equal rewards has a rounding error")


def grpo_sg_loss(logps, old_logps, advantages, mask, *, weights=None, ref_logps=None, clip_low=0.2,
                 clip_high=0.24, beta=0.0, loss_agg_mode="token-mean", denominator=None):
    """(loss to minimise, dict of statistics: here it may be empty).

    The objective of a token is w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - beta KL, with
    r = pi / pi_old and the k3 estimate of the KL, x - 1 - log x with x = pi_ref / pi. The loss is
    minus its mean.

    logps, old_logps, ref_logps, weights: (B, T); only logps gets a gradient. weights=None: all
    are 1. advantages: (B,) or (B, T). mask: (B, T), bool or 0 and 1, true on completion tokens.
    loss_agg_mode: "token-mean", over all tokens, or "seq-mean-token-mean", over the completions
    that have tokens, of the means over their tokens. denominator: what to divide by in place of
    the number of tokens (in the second mode, of completions), if this is a part of a larger
    batch.

    The tests take it in three steps. At first 0 stands where the mask is false; then nan, which
    must reach neither the loss nor the gradient (nan times 0 is nan); then a gradient must reach
    logps alone.
    """
    raise NotImplementedError(
        "grpo_sg_loss: r is exp of a difference; the smaller of r A and clip(r) A; times w; "
        "then minus the mean over the mask's tokens. masked_fill before exp keeps nan out")


def token_logps(model, ids, mask, *, temperature=1.0):
    """(B, T) float32: entry [b, t] is log pi(ids[b, t] | ids[b, :t]), and 0 outside of mask.

    pi is the softmax of logits / temperature; the result has a gradient. model: a causal language
    model, of which model(input_ids=ids).logits is (B, T, V). ids: (B, T), padded on the right.
    mask: (B, T), True exactly on sampled tokens, never on a row's first token.
    """
    raise NotImplementedError(
        "token_logps: the logits at position t are about token t + 1; divide them by the "
        "temperature before the log-softmax")


def draw(logits, u, temperature):
    """One token (B, 1) for each row of logits (B, V), by a random number u (B, 1) in [0, 1).

    Inverts the cumulative distribution of softmax(logits / temperature): the token is the first
    whose cumulative probability is above u. The last sum is not quite 1, as it is rounded, and may
    be below u: so u is scaled to it. At temperature 0 it is the likeliest one.
    """
    raise NotImplementedError(
        "draw: softmax, cumsum, torch.searchsorted; with right=True it never draws a token of "
        "probability 0, even for u = 0")


def pass_at_k(n, c, k):
    """The chance that at least one of k samples is right: an unbiased estimate from n samples, of
    which c are right."""
    raise NotImplementedError(
        "pass_at_k: of all ways to choose k of the n samples, how many have no right one? "
        "math.comb counts them")


def make_batch(completions, device):
    """A dict of tensors: ids (B, T), mask (B, T), bool, and advantages (B,).

    A row is a completion's prompt, its tokens, and pads (0) up to the longest row. mask is True
    on the tokens that the policy wrote. completions: a list of grpo_sg.Completion; each has the
    lists prompt, tokens and mask (one truth value for each of its tokens: False for a tool's),
    and an advantage.
    """
    raise NotImplementedError(
        "make_batch: three lists for each row, joined: the prompt's, the completion's, the "
        "pads'; a mask by position, as 0 is a stop token, too")


def learn(policy, optimizer, completions, cfg, reference=None, seed=0):
    """Learn from a rollout, in cfg.updates updates of policy.model.

    The completions are shuffled (seed) and cut into as many minibatches, whose sizes differ by one
    at most; each makes one update. r is to the policy that sampled, so that old_logps are computed before the first
    update. The loss has the weights grpo_sg.weigh(logps, cfg) and the settings cfg.clip_low,
    clip_high, beta and loss_agg_mode; cfg.temperature is that of the log-probabilities.
    Gradients are cut to a norm of 1. reference: the model of ref_logps, if cfg.beta > 0.
    Returns nothing here: grpo_sg.learn returns statistics. It also cuts a minibatch into parts
    that fit into memory, which is not asked for.
    """
    raise NotImplementedError(
        "learn: shuffle, cut, make_batch; old_logps without gradient; then for each batch "
        "token_logps, grpo_sg_loss, backward, clip_grad_norm_, step, zero_grad")


if __name__ == "__main__":
    from lesson.progress import show
    show("lesson.exercises")
