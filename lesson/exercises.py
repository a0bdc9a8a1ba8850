"""Exercises: the eight functions of the method, without their bodies. The project's own tests
grade them: `python -m lesson.grade` makes your copy of this file, my_exercises.py.

Replace each `raise` by a body. lesson/README.md explains the method, and functions of these names
in grpo_sg.py are the answers.

Shapes: P prompts with G completions each; B = P * G rows of T tokens; V words in the vocabulary.
"""
import math
import random

import torch
import torch.nn.functional as F

import grpo_sg


def token_weights(logps, *, alpha=2.0, tau=1/9, mu=0.25, low=1.0, high=1.4):
    """Return GRPO-SG's weights w = clip(alpha * (sigmoid(pi / tau) - mu), L, U).

    pi is the probability of a sampled token, and logps is log pi, of any shape and dtype. low and
    high are L and U. Returns float32 of the same shape. w is a constant: it has no gradient.
    """
    raise NotImplementedError("token_weights")


def group_advantages(rewards, *, eps=1e-6):
    """Return A = (R - mean R) / (std R + eps) of each group.

    rewards: (P, G), a group in each row, G >= 2, of any dtype. Returns (P, G), float32. std is
    the sample standard deviation (over G - 1). That is the core. Others also rely on this: a group
    of equal rewards gets exactly 0, and in float64 the mean of 100000 and 100001 is not rounded.
    """
    raise NotImplementedError("group_advantages")


def grpo_sg_loss(logps, old_logps, advantages, mask, *, weights=None, ref_logps=None, clip_low=0.2,
                 clip_high=0.24, beta=0.0, denominator=None):
    """Return (loss to minimize, dict of statistics: here it may be empty).

    The objective of a token is w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - beta KL, with
    r = pi / pi_old and the k3 estimate of the KL, x - 1 - log x with x = pi_ref / pi. The loss is
    minus its mean.

    logps, old_logps, ref_logps, weights: (B, T); only logps gets a gradient. weights=None: all
    are 1. advantages: (B,) or (B, T). mask: (B, T), bool or 0 and 1, true on completion tokens.
    Elsewhere all inputs may be nan, and neither the loss nor the gradient may become nan. A batch
    without tokens has the loss 0. denominator: if this is only a part of a larger batch, divide by
    this number instead of the number of tokens.

    The core is the loss for weights that are given, finite numbers everywhere, a mask of bool, (B,)
    advantages (which need a column, because all tokens of a row share one), and beta = 0.
    """
    raise NotImplementedError("grpo_sg_loss")


def token_logps(model, ids, mask, *, temperature=1.0):
    """Return (B, T) float32: entry [b, t] is log pi(ids[b, t] | ids[b, :t]), 0 outside of mask.

    pi is the softmax of logits / temperature; the result has a gradient. model: a causal language
    model: model(input_ids=ids).logits is (B, T, V). ids: (B, T), padded on the right with any
    token. mask: (B, T), True exactly on sampled tokens, never on the first token of a row.
    """
    raise NotImplementedError("token_logps")


def draw(logits, u, temperature):
    """Return a token (B, 1) for each row of logits (B, V), chosen by a random number u (B, 1).

    If u is uniform in [0, 1), a token is drawn with its probability under the softmax of
    logits / temperature. A token of probability 0 is never drawn, not even for u = 0 or for the
    largest float below 1. Temperature 0 takes the most likely token. logits may be bfloat16.
    """
    raise NotImplementedError("draw")


def pass_at_k(n, c, k):
    """Return an unbiased estimate, from n samples of which c are right, of pass@k: the
    probability that at least one of k samples is right."""
    raise NotImplementedError("pass_at_k")


def make_batch(completions, device):
    """Return a grpo_sg.Batch of tensors: ids (B, T), mask (B, T), bool, and advantages (B,).

    A row is a completion's prompt, its tokens, and pads (0) up to the longest row. mask is True
    on the tokens that the policy wrote. completions: a list of grpo_sg.Completion; each has the
    lists prompt, tokens and mask (a bool for each of its tokens: False for a tool's), and an
    advantage. Token 0 may also be the stop token, which the policy writes and learns.
    """
    raise NotImplementedError("make_batch")


def learn(policy, optimizer, completions, cfg, reference=None, seed=0):
    """Learn from a rollout, in cfg.updates updates of policy.model.

    Shuffle a copy of the completions (by the seed) and cut it into cfg.updates minibatches whose
    sizes differ by at most one. Each makes one update, by calling your grpo_sg_loss. r compares
    with the policy that sampled, which is the policy before the first update. The weights are
    grpo_sg.weigh(logps, cfg); the other settings of the loss are cfg.clip_low, clip_high and
    beta; cfg.temperature is that of all log-probabilities. Each gradient is cut to a
    norm of at most 1. reference: the model of ref_logps, if cfg.beta > 0. Returns nothing. Leave
    the completions as they are, and the model in eval mode.
    """
    raise NotImplementedError("learn")
