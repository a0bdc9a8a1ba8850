"""Exercises: the method in six functions, without their bodies. The project's own tests grade them.

    OF=lesson.exercises python -m pytest -q test_grpo_sg.py

runs the first part of test_grpo_sg.py on this file in place of grpo_sg.py; add `-x` to see the
first failure alone. Write a body in place of each
`raise`. The equations, beside the answers, are in README.md, "The method"; the answers are in
sections 1 to 3 of grpo_sg.py.

Shapes: P prompts with G completions each; B = P * G rows of T tokens; V words in the vocabulary.
"""


def token_weights(logps, *, alpha=2.0, tau=1/9, mu=0.25, low=1.0, high=1.4):
    """GRPO-SG's weights w = clip(alpha * (sigmoid(pi / tau) - mu), L, U), with pi = exp(logps).

    logps: log-probabilities of the sampled tokens, any shape. low, high: L, U. Returns float32 of
    that shape, without a gradient: w says how much a token's advantage counts, and is not to be
    maximised.
    """
    raise NotImplementedError(
        "token_weights: take pi from logps in float32 and without its gradient, then write "
        "the formula")


def group_advantages(rewards, *, eps=1e-6):
    """A = (R - mean R) / (std R + eps) in each group.

    rewards: (P, G), a group a row, G >= 2. Returns (P, G), float32. std is the sample standard
    deviation (over G - 1). A group of equal rewards gets exactly 0.
    """
    raise NotImplementedError(
        "group_advantages: a group is a row, so mean and standard deviation are along dim 1; "
        "and the mean of equal rewards has a rounding error")


def grpo_sg_loss(logps, old_logps, advantages, mask, *, weights=None, ref_logps=None, clip_low=0.2,
                 clip_high=0.2, beta=0.0, loss_agg_mode="token-mean", denominator=None):
    """(loss to minimise, dict of statistics: here it may be empty).

    The objective of a token is w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - beta KL, with
    r = pi / pi_old and the k3 estimate of the KL, x - 1 - log x with x = pi_ref / pi. The loss is
    minus its mean.

    logps, old_logps, ref_logps, weights: (B, T); only logps gets a gradient. weights=None: all
    are 1. advantages: (B,) or (B, T). mask: (B, T), bool or 0 and 1, true on completion tokens;
    elsewhere anything may stand, nan too. loss_agg_mode: "token-mean", over all tokens, or "seq-mean-token-mean",
    over the completions that have tokens, of the means over their tokens. denominator: what to
    divide by in place of the number of tokens (in the second mode, of completions), if this is
    a part of a larger batch.
    """
    raise NotImplementedError(
        "grpo_sg_loss: r is exp of a difference; the smaller of r A and clip(r) A; times w; "
        "then minus the mean over the mask's tokens")


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
    whose cumulative probability is above u. At temperature 0 it is the likeliest one.
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
