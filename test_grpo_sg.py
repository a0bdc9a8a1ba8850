"""Tests of grpo_sg.py and tasks.py: offline, on a CPU, in any order.

The first part is a lesson. It compares each piece of the algorithm with a slow version of itself,
made of loops, or shows what would go wrong without it. A message says what was found and what was
expected. The other tests cover training, corner cases, the tasks and the program. The models that
they use, at the end of the file, are tiny, random and made here.

    python -m pytest -q test_grpo_sg.py

The heading of each section of the lesson begins with the function that it tests, and the lesson
ends at the first line "# ====". lesson/grade.py, which grades your own functions, reads both.
"""
import contextlib
import copy
import dataclasses
import inspect
import itertools
import json
import math
import operator
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest
import tokenizers
import torch
import transformers
from tokenizers import Regex, decoders, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence

import grpo_sg
import tasks
# The grader of the exercises (lesson/grade.py) replaces these by a reader's own.
from grpo_sg import (draw, group_advantages, grpo_sg_loss, learn, make_batch, pass_at_k, sample,
                     token_logps, token_weights)

torch.set_num_threads(1)

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14]]
LAST_MESSAGE = "{{ messages[-1]['content'] }}"
WORDS = ["<|im_end|>", "[UNK]", "yes", "no", "maybe", "who", "what", "why", "never", "always"]
MODES = pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])


def same(what, found, expected, hint="", atol=1e-5):
    """Assert that a number or tensor is as expected; the message shows its worst entry."""
    found = torch.as_tensor(found).detach().double()
    expected = torch.as_tensor(expected).detach().double()
    shapes = f"{what} has shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    assert found.shape == expected.shape, f"{shapes}: {hint}"
    error = (found - expected).abs().nan_to_num(nan=math.inf)
    worst = error.argmax()
    f, e = found.flatten()[worst], expected.flatten()[worst]
    assert error.max() <= atol, f"{what} is {f:.6g}, expected {e:.6g}: {hint}"


# ---- 1. token_weights: w = clip(alpha * (sigmoid(pi / tau) - mu), L, U) ----

def slow_weight(pi, alpha=2.0, tau=1/9, mu=0.25, low=1.0, high=1.4):
    sigmoid = 1 / (1 + math.exp(-pi / tau))
    return min(max(alpha * (sigmoid - mu), low), high)


@pytest.mark.parametrize("pi, w", [(0.0, 1.0), (0.12, 1.0), (0.2, 1.216298), (0.25, 1.309301),
                                   (0.3, 1.374053), (0.5, 1.4), (1.0, 1.4)])
def test_likely_tokens_have_the_larger_weights(pi, w):
    found = token_weights(torch.tensor([pi]).log())
    same(f"w at pi = {pi}", found, [w], "the formula, with pi = exp(logps)", atol=2e-6)


@pytest.mark.parametrize("settings", [
    dict(alpha=1.7), dict(tau=0.3), dict(mu=0.3), dict(low=0.6), dict(high=1.2),
    dict(alpha=1.5, tau=0.4, mu=0.1, low=0.7, high=1.1)], ids=str)
def test_a_weight_follows_its_settings(settings):
    for pi in (0.01, 0.1, 0.25, 0.9):
        found = token_weights(torch.tensor([pi]).log(), **settings)
        same(f"w at pi = {pi} with {settings}", found, [slow_weight(pi, **settings)],
             "use the arguments alpha, tau, mu, low and high")


def test_a_weight_has_no_gradient():
    """It scales a token's advantage. With a gradient, it would itself be maximized."""
    logps = torch.tensor([[-0.5, -1.61]], requires_grad=True)
    w = token_weights(logps)
    assert not w.requires_grad, "the weight has a gradient: detach pi from the graph"
    same("logps after the call", logps, [[-0.5, -1.61]], "exp, not exp_: they are the caller's")


def test_a_weight_is_computed_in_float32():
    """bfloat16 would round 1.216 to 1.219."""
    logps = torch.tensor([[-0.5, -1.61]], dtype=torch.bfloat16)
    w = token_weights(logps)
    assert w.dtype == torch.float32, f"w is {w.dtype}: convert logps to float32, then exp"
    same("w of bfloat16 logps", w, token_weights(logps.float()), "float32 first, then exp", 0)


# ---- 2. group_advantages: how much better than its group ----

GROUPS = [  # rewards, and the advantages by hand
    ([1.0, 0.0, 0.0, 0.0], [1.5, -0.5, -0.5, -0.5]),
    # The mean is 0.625, the standard deviation sqrt(25.6875 / 3) = 2.9262.
    ([3.0, -0.5, -3.0, 3.0], [0.81164, -0.38446, -1.23882, 0.81164]),
    ([1.0, 1.0, 0.0, 0.0], [0.866024, 0.866024, -0.866024, -0.866024]),
    # A small difference is also a signal. Here eps matters: 7.5e-6 / (5e-6 + 1e-6) = 1.25.
    ([1e-5, 0.0, 0.0, 0.0], [1.25, -0.416667, -0.416667, -0.416667])]


def test_advantages_by_hand():
    R = torch.tensor([rewards for rewards, _ in GROUPS])
    found = group_advantages(R)
    same("rewards after the call", R, [rewards for rewards, _ in GROUPS],
         "R - mean in a new tensor: they are the caller's", 0)
    for row, (rewards, A) in enumerate(GROUPS):
        same(f"an advantage in the group {rewards}", found[row], A,
             "(R - mean) / (std + eps), each row by its own mean and std (over G - 1)")
    same("an advantage with eps = 1.5", group_advantages(torch.tensor([[1.0, 0, 0, 0]]), eps=1.5),
         [[0.375, -0.125, -0.125, -0.125]], "divide by std + eps")


def test_equal_rewards_give_advantages_of_exactly_0():
    """The mean of seven times 0.1 is not exactly 0.1. Divided by eps, the difference would look
    like a signal."""
    A = group_advantages(torch.tensor([[0.1] * 7, [1.0] * 6 + [0.0], [0.1] * 7]))
    same("an advantage in a group of equal rewards", A[[0, 2]], [[0.0] * 7] * 2, "exactly 0", 0)
    assert A[1].ne(0).all(), "only a group whose rewards are all equal gets 0"


def test_rewards_may_be_integers():
    A = group_advantages(torch.tensor([[1, 0, 0, 0]]))
    same("an advantage of integer rewards", A, [[1.5, -0.5, -0.5, -0.5]], "convert to float32")
    assert A.dtype == torch.float32, f"advantages are {A.dtype}, expected torch.float32"


# ---- 3. grpo_sg_loss: minus the mean of w min(r A, clip(r) A) - beta KL ----
# First each part separately, on a token or two; then all of them, compared with loops.

def one_token(*, r=1.0, A=0.0, w=None, log_x=0.0, **settings):
    """Return (loss, gradient by log pi) for one token. r: pi / pi_old; log_x: log(pi_ref / pi)."""
    logps = torch.tensor([[math.log(0.3 * r)]], requires_grad=True)
    old_logps = torch.tensor([[math.log(0.3)]])
    weights = None if w is None else torch.tensor([[w]])
    loss, _ = grpo_sg_loss(
        logps, old_logps, torch.tensor([A]), torch.ones(1, 1), weights=weights,
        ref_logps=logps.detach() + log_x, **settings)
    loss.backward()
    return loss.item(), logps.grad.item()


def test_the_clip_stops_what_has_gone_far_enough():
    """A token beyond 1 - clip_low or 1 + clip_high has no gradient if A would push it further.
    A token that went the other way always has one."""
    cases = [("a token of the first update", 1.0, 1.0, -1.0),
             ("a token of the first update", 1.0, -1.0, 1.0),
             ("a token within the clip", 1.05, 1.0, -1.05),
             ("a token within the clip", 0.75, -1.0, 0.75),
             ("a clipped token", 1.2, 1.0, 0.0),
             ("a clipped token", 0.6, -1.0, 0.0),
             ("a token that went the other way", 0.5, 1.0, -0.5),
             ("a token that went the other way", 1.5, -1.0, 1.5),
             ("a token that went the other way", 3.3, -1.0, 3.3)]
    wrong = []
    for token, r, A, expected in cases:
        _, found = one_token(r=r, A=A, clip_low=0.3, clip_high=0.1)
        if found != pytest.approx(expected, abs=1e-5):
            wrong.append(f"the gradient for {token} with A {'>' if A > 0 else '<'} 0 (r = {r}) "
                         f"is {found:.4g}, expected {expected:.4g}")
    assert not wrong, "; ".join(wrong)


def test_a_weight_inside_the_clip_would_stop_confident_tokens():
    """At pi = 0.9, w = 1.4: clip(w r, 0.8, 1.2) is constant before anything was learned."""
    loss, gradient = one_token(A=1.0, w=1.4, clip_low=0.2, clip_high=0.2)
    same("the gradient for a token with w = 1.4, A = 1, r = 1", gradient, -1.4,
         "multiply the minimum by w, outside of the clip")
    same("the loss of a token with w = 1.4, A = 1, r = 1", loss, -1.4,
         "minus w min(r A, clip(r) A)")


@MODES
def test_the_mean_is_over_tokens_or_over_completions(mode):
    """Rows of 1, 3 and 0 tokens, with the advantages 1, 2 and 5, before any update."""
    mask = torch.tensor([[0, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    logps = torch.full((3, 4), -1.0)
    loss, _ = grpo_sg_loss(logps, logps, torch.tensor([1.0, 2.0, 5.0]), mask, loss_agg_mode=mode)
    expected, hint = {
        "token-mean": (-7 / 4, "minus (1 + 2 + 2 + 2) / 4, over the tokens of the mask"),
        "seq-mean-token-mean": (-3 / 2, "minus (1 + 2) / 2, over the completions with tokens"),
    }[mode]
    same(f"the loss with {mode}", loss, expected, hint)


@MODES
def test_the_parts_of_a_batch_add_up_to_the_whole(mode):
    """If they get the denominator of the whole. With its own denominator, a part with few tokens
    would count as much as one with many."""
    logps, old, _, A, mask, w = batch(outside=0.0)
    settings = dict(loss_agg_mode=mode)
    whole, _ = grpo_sg_loss(logps, old, A, mask, weights=w, **settings)
    settings["denominator"] = mask.sum() if mode == "token-mean" else mask.any(1).sum()
    total = 0.0
    for part in (slice(0, 2), slice(2, 5)):
        loss, _ = grpo_sg_loss(logps[part], old[part], A[part], mask[part], weights=w[part],
                               **settings)
        total += loss.item()
    same(f"the sum of two parts' losses with {mode}", total, whole,
         "divide by denominator where it is given")


@pytest.mark.parametrize("log_x", [0.0, 0.7, -0.7])
def test_a_kl_is_subtracted_without_the_weight(log_x):
    """With A = 0 only the KL is left: the k3 estimate x - 1 - log x with x = pi_ref / pi."""
    for w in (None, 1.4):
        token = f"a token with A = 0, w = {w}, beta = 0.5, log(pi_ref / pi) = {log_x}"
        loss, gradient = one_token(w=w, log_x=log_x, beta=0.5)
        hint = "beta (x - 1 - log x)" if w is None else "w scales the advantage, not the KL"
        same(f"the loss of {token}", loss, 0.5 * (math.exp(log_x) - 1 - log_x), hint)
        same(f"the gradient for {token}", gradient, 0.5 * (1 - math.exp(log_x)), hint)


def test_the_kl_is_unbiased():
    """Over all tokens of a vocabulary the sum of pi k3 is exactly KL(pi || ref)."""
    pi, ref = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    each = torch.tensor([one_token(log_x=(b - a).item(), beta=1.0)[0] for a, b in zip(pi, ref)])
    assert (each >= 0).all(), f"the KL of a token is {each.min():.4g}, but k3 is never negative"
    same("the mean KL", (pi.exp() * each).sum(), (pi.exp() * (pi - ref)).sum(), "x - 1 - log x")


def test_only_the_policy_learns():
    """The sampling policy, the reference and the weights are constants."""
    logps, old, ref, A, mask, w = batch(outside=0.0)
    constants = {"old_logps": old, "ref_logps": ref, "weights": w}
    for x in (logps, old, ref, w):
        x.requires_grad_()
    loss, _ = grpo_sg_loss(logps, advantages=A, mask=mask, beta=0.3, **constants)
    loss.backward()
    learning = [name for name, x in constants.items() if x.grad is not None]
    assert not learning, f"a gradient reaches {', '.join(learning)}: detach"


def batch(B=5, T=7, seed=0, outside=math.nan):
    """Make random logps, old, ref, advantages, mask and weights, with ratios on both sides of
    the clip and a row without tokens. Outside of the mask there is NaN: pads must not count."""
    g = torch.Generator().manual_seed(seed)
    logps = -3 * torch.rand(B, T, generator=g)
    old = logps + 0.5 * torch.randn(B, T, generator=g)
    ref = logps + 0.5 * torch.randn(B, T, generator=g)
    mask = torch.rand(B, T, generator=g) < 0.7
    mask[0, 2:] = False
    mask[3] = False
    advantages = torch.randn(B, generator=g)
    weights = 1 + 0.4 * torch.rand(B, T, generator=g)
    logps, old, ref, weights = (x.masked_fill(~mask, outside) for x in (logps, old, ref, weights))
    return logps, old, ref, advantages, mask, weights


def slow_objective(logp, old, a, w, ref, clip_low=0.2, clip_high=0.24, beta=0.0):
    """Compute one token's objective from plain numbers: the specification. torch serves only
    for gradients."""
    r = torch.exp(logp - old)
    clipped = min(max(r, 1 - clip_low), 1 + clip_high)
    x = torch.exp(ref - logp)
    kl = x - 1 - torch.log(x)
    return w * min(r * a, clipped * a) - beta * kl


def slow_loss(logps, old, A, mask, w, ref, *, mode="token-mean", denominator=None, **settings):
    """Compute minus the mean of the objective, token by token."""
    rows = []
    for i in range(len(logps)):
        rows.append([])
        for t in range(logps.shape[1]):
            if mask[i, t]:
                a = A[i] if A.dim() == 1 else A[i, t]
                token = logps[i, t], old[i, t], a, w[i, t], ref[i, t]
                rows[i].append(slow_objective(*token, **settings))
    if mode == "token-mean":
        return -sum(sum(row) for row in rows) / (denominator or sum(len(row) for row in rows))
    means = [sum(row) / len(row) for row in rows if row]
    return -sum(means) / (denominator or len(means))


@MODES
@pytest.mark.parametrize("settings", [
    dict(), dict(clip_low=0.4, clip_high=0.1), dict(beta=0.3), dict(denominator=11)], ids=str)
def test_loss_and_gradient_against_loops(settings, mode):
    """First with an advantage per completion, then with one per token."""
    logps, old, ref, by_completion, mask, w = batch(outside=0.0)
    by_token = torch.randn(logps.shape, generator=torch.Generator().manual_seed(5))
    for A in (by_completion, by_token):
        slow = logps.double().requires_grad_()
        expected = slow_loss(slow, old, A, mask, w, ref, mode=mode, **settings)
        expected.backward()
        fast = logps.clone().requires_grad_()
        loss, _ = grpo_sg_loss(fast, old, A, mask, weights=w, ref_logps=ref, loss_agg_mode=mode,
                               **settings)
        loss.backward()
        case = f"with advantages of shape {tuple(A.shape)}, {mode}, {settings}"
        same(f"the loss {case}", loss, expected, "see slow_objective in the tests")
        same(f"the gradient {case}", fast.grad, slow.grad, "see slow_objective in the tests")


@MODES
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_nan_outside_the_mask_reaches_nothing(beta, mode):
    """Pads may hold anything. NaN times 0 is NaN, and so is the gradient of exp at NaN."""
    results = []
    for outside in (0.0, math.nan):
        logps, old, ref, A, mask, w = batch(outside=outside)
        A = A[:, None].expand(logps.shape).masked_fill(~mask, outside)
        logps.requires_grad_()
        loss, _ = grpo_sg_loss(logps, old, A, mask, weights=w, ref_logps=ref, beta=beta,
                               loss_agg_mode=mode)
        loss.backward()
        results.append((loss, logps.grad))
    (loss, gradient), (loss_with_nan, gradient_with_nan) = results
    case = f"with nan outside of the mask and beta = {beta}"
    same(f"the loss {case}", loss_with_nan, loss, "mask before the sum, and not by a product")
    same(f"the gradient {case}", gradient_with_nan, gradient, "mask before exp, not after it")
    loss, _ = grpo_sg_loss(logps, old, A, torch.zeros_like(mask), loss_agg_mode=mode)
    same("the loss of a batch without tokens", loss, 0.0, "divide by at least 1")


def test_grpo_sg_is_grpo_with_the_advantages_w_times_A():
    """Because w >= 0, w min(r A, clip(r) A) = min(r (wA), clip(r) (wA))."""
    logps, old, _, A, mask, w = batch()
    x, y = logps.clone().requires_grad_(), logps.clone().requires_grad_()
    a, _ = grpo_sg_loss(x, old, A, mask, weights=w)
    b, _ = grpo_sg_loss(y, old, w * A[:, None], mask)
    (a + b).backward()
    same("the loss with weights", a, b, "that of the advantages w A")
    same("the gradient with weights", x.grad, y.grad, "that of the advantages w A")


# ---- 4. token_logps: log pi of the sampled tokens ----

@pytest.mark.parametrize("family", ["Qwen2", "GPT2"])
def test_log_probabilities_against_the_full_softmax(family):
    """Compared with each row by itself, without pads, in float64, at the sampling temperature.
    Tokens 0 and 1, which models pad with, are ordinary tokens here; pads may be any token."""
    model = build_model(family)
    ids = torch.randint(2, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    ids[:, 1], ids[:, 5] = torch.tensor([0, 1, 0]), torch.tensor([1, 0, 0])
    mask, naive = torch.zeros(3, 9, dtype=torch.bool), torch.zeros(3, 9, dtype=torch.float64)
    for row, (start, end, real) in enumerate([(4, 9, 9), (2, 6, 6), (5, 6, 7)]):
        mask[row, start:end] = True
        logits = model(input_ids=ids[row:row + 1, :real]).logits[0].double() / 0.7
        for t in range(start, end):
            naive[row, t] = logits[t - 1].log_softmax(-1)[ids[row, t]]
    logps = token_logps(model, ids, mask, temperature=0.7)
    assert logps.dtype == torch.float32, f"logps are {logps.dtype}, expected torch.float32"
    same("a log-probability outside of the mask", logps[~mask], naive[~mask], "0 there")
    same("a log-probability at temperature 0.7", logps, naive,
         "entry t is about token t: from the logits at t - 1, divided by the temperature, of all "
         "tokens before it, whatever their ids")
    parameters = list(model.parameters())
    for found, expected in zip(*(torch.autograd.grad(x.sum(), parameters) for x in (logps, naive))):
        same("the gradient of the log-probabilities", found, expected, "keep the graph", 1e-4)


def test_log_probabilities_are_computed_in_float32():
    """bfloat16 would round log pi = -2.31 to -2.3125, and change r by a percent."""
    ids = torch.tensor([[5, 6, 7]])
    logps = token_logps(build_model().bfloat16(), ids, ids != 5)
    assert logps.dtype == torch.float32, f"logps are {logps.dtype}: make the logits float32 first"


# ---- 5. draw: a token for each row of logits ----

@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_a_token_is_drawn_as_often_as_its_probability_says(temperature):
    """u covers [0, 1) in even steps. Each token gets its share of them, to within one step: also
    the 40 with p = 5e-5, which a top-k or a smallest p would leave out."""
    p = torch.cat([torch.zeros(1), 0.998 * torch.linspace(1, 2, 60) / 90, torch.zeros(1),
                   torch.full((40,), 5e-5), torch.zeros(1)])
    B, V = 40_000, len(p)
    u = torch.arange(B)[:, None] / B
    logits = temperature * p.log().expand(B, -1)  # p is their softmax at that temperature
    drawn = draw(logits, u, temperature)
    assert drawn.shape == (B, 1), f"the tokens have shape {tuple(drawn.shape)}, expected (B, 1)"
    assert drawn.max() < V, f"token {drawn.max()} was drawn, but the last one is {V - 1}"
    shares = torch.bincount(drawn[:, 0], minlength=V) / B
    assert shares[p == 0].eq(0).all(), "a token of probability 0 was drawn: look at u = 0"
    same(f"the share of a token at temperature {temperature}", shares, p, "its probability: draw "
         "from the whole softmax, at this temperature", 1.2 / B)


def test_temperature_0_draws_the_most_likely_token():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    drawn = draw(logits, torch.full((2, 1), 0.999), 0)
    assert drawn.shape == (2, 1), f"the tokens have shape {tuple(drawn.shape)}, expected (B, 1)"
    assert drawn.tolist() == [[1], [0]], f"{drawn.tolist()} was drawn, expected the argmax"


def test_rounded_sums_draw_no_impossible_token():
    """In a large vocabulary, rounded probabilities do not sum to exactly 1."""
    wide = torch.randn(64, 50_000, generator=torch.Generator().manual_seed(0))
    wide[:, [0, -1]] = -math.inf
    most = torch.full((64, 1), 1 - 2**-24)  # the largest float below 1
    drawn = draw(wide, most, 1.0)
    assert ((drawn > 0) & (drawn < 49_999)).all(), "a token of probability 0 was drawn for a u close to 1"
    even = draw(torch.zeros(999, 999).bfloat16(), (torch.arange(999)[:, None] + 0.5) / 999, 1.0)
    same("a token drawn by bfloat16 logits", even[:, 0].sort()[0], torch.arange(999),
         "999 even steps draw each of 999 equally likely tokens once: sum in float32")


def test_frequencies_of_sampled_tokens_match_the_softmax(monkeypatch):
    """A chi-square test on 20,000 draws of two tokens. The checkpoint's top_k has no effect."""
    monkeypatch.setattr(grpo_sg, "draw", draw)
    model = build_model(vocab_size=12)
    model.generation_config.top_k = 2
    g = torch.Generator().manual_seed(0)
    drawn = sample(model, [[5, 6]], n=20_000, max_new_tokens=2, stop_ids={1}, temperature=0.8,
                   generator=g)
    first = (model(input_ids=torch.tensor([[5, 6]])).logits[0, -1] / 0.8).softmax(-1)
    top = first.masked_fill(torch.arange(12) == 1, 0).argmax().item()
    second = (model(input_ids=torch.tensor([[5, 6, top]])).logits[0, -1] / 0.8).softmax(-1)
    firsts, seconds = [d[0] for d in drawn], [d[1] for d in drawn if d[0] == top]
    for which, p, tokens in (("first", first, firsts), ("second", second, seconds)):
        expected, seen = p * len(tokens), torch.bincount(torch.tensor(tokens), minlength=12)
        chi_square = ((seen - expected) ** 2 / expected.clamp(min=1)).sum()
        assert chi_square < 40, (  # 11 degrees of freedom: p < 1e-4
            f"the {which} tokens do not follow the softmax: chi-square {chi_square:.0f}")


# ---- 6. pass_at_k: at least one of k samples is right ----

def test_pass_at_k_against_enumeration():
    """The fraction of all ways to choose k of n samples that contain a right one."""
    for n in range(1, 7):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
            share = sum(map(any, draws)) / len(draws)
            same(f"pass@k for n = {n}, c = {c}, k = {k}", pass_at_k(n, c, k), share,
                 "the share of all ways to choose k samples that have a right one")


# ---- 7. make_batch: prompts and completions as rows ----

def rolled(**settings):
    """Return a policy, 48 of its completions with advantages, and the settings."""
    policy, task, cfg = build_toy(**settings)
    completions = grpo_sg.rollout(policy, task, task.train, cfg, n=16, temperature=1.0, seed=1)
    for c in completions[16:32]:
        c.reward = 3.0  # a group of equal rewards
    grpo_sg.set_advantages(completions, 16)
    return policy, completions, cfg


def test_the_mask_keeps_the_stop_token_and_nothing_after_it():
    """The mask goes by position: token 0 is both pad and stop token. A tool's tokens are False."""
    _, completions, _ = rolled()
    for i, c in enumerate(completions):
        c.advantage = float(i)
    for c in completions[::3]:
        c.add([0, 5], own=False)
    batch = make_batch(completions, "cpu")
    longest = max(c.length() for c in completions)
    for name in ("ids", "mask"):
        shape = tuple(getattr(batch, name).shape)
        assert shape == (48, longest), f"{name} has shape {shape}, expected {(48, longest)}"
    assert batch.mask.dtype == torch.bool, f"mask is {batch.mask.dtype}, expected torch.bool"
    same("an advantage", batch.advantages, range(48), "c.advantage of each completion")
    meta = make_batch(completions, "meta")
    for name in ("ids", "mask", "advantages"):
        x = getattr(meta, name)
        assert x.device.type == "meta", f"{name} is on {x.device}, expected the device given"
    for c, ids, mask in zip(completions, batch.ids.tolist(), batch.mask.tolist()):
        pads = longest - c.length()
        row = c.prompt + c.tokens + [0] * pads
        assert ids == row, f"a row of ids is {ids}, expected {row}: prompt, completion, pads (0)"
        own = [False] * len(c.prompt) + c.mask + [False] * pads
        at, expected = ([t for t, x in enumerate(m) if x] for m in (mask, own))
        assert at == expected, (
            f"mask is True at {at} of {ids}, expected {expected}: what the policy wrote, with its "
            "stop token")


# ---- 8. learn: a toy task, to answer a question with a word, and to stop ----

def watch_learn(policy, completions, cfg, rate=0.1, **more):
    """Call learn with plain gradient descent. Returns a list of (gradient, arguments of each call
    of grpo_sg_loss), one per update."""
    updates, calls = [], []
    signature = inspect.signature(grpo_sg_loss)
    loss = learn.__globals__["grpo_sg_loss"]

    def watched(*args, **settings):
        call = signature.bind(*args, **settings)
        call.apply_defaults()
        calls.append(call.arguments)
        return loss(*args, **settings)

    def note(optimizer, *_):
        gradient = [torch.zeros_like(p) if p.grad is None else p.grad
                    for p in policy.model.parameters()]
        updates.append((torch.cat([g.flatten() for g in gradient]), calls.copy()))
        calls.clear()

    optimizer = torch.optim.SGD(policy.model.parameters(), lr=rate)
    optimizer.register_step_pre_hook(note)
    with mock.patch.dict(learn.__globals__, grpo_sg_loss=watched):
        learn(policy, optimizer, completions, cfg, **more)
    assert len(updates) == cfg.updates, f"{len(updates)} optimizer steps, expected {cfg.updates}"
    assert all(calls for _, calls in updates), "an update did not call grpo_sg_loss"
    return updates


def minibatches_of(policy, completions, cfg, seed):
    """Return the advantages in each update. They identify the completions."""
    updates = watch_learn(policy, completions, cfg, rate=0.0, seed=seed)
    return [sorted(int(A) for call in calls for A in call["advantages"]) for _, calls in updates]


def test_each_completion_is_in_one_minibatch_drawn_at_random():
    """Without a shuffle, an update would see only a few prompts."""
    policy, completions, cfg = rolled(updates=3)
    completions = completions[:7]
    for i, c in enumerate(completions):
        c.advantage = float(i + 1)
    before = completions.copy()
    neighbors = set()
    for seed in range(20):
        drawn = minibatches_of(policy, completions, cfg, seed)
        sizes = sorted(map(len, drawn))
        assert sizes == [2, 2, 3], f"7 completions in 3 minibatches of {sizes}, expected [2, 2, 3]"
        learned = sorted(sum(drawn, []))
        assert learned == [1, 2, 3, 4, 5, 6, 7], f"of completions 1 to 7 {learned} were learned"
        neighbors.update(*(minibatch for minibatch in drawn if 1 in minibatch))
    assert len(neighbors) > 5, (
        f"with 20 seeds completion 1 shared a minibatch only with {sorted(neighbors - {1})}: "
        "shuffle the completions by the seed")
    assert all(map(operator.is_, completions, before)), (
        "learn reordered its caller's list, in which groups are neighbors: shuffle a copy")
    again = minibatches_of(policy, completions, cfg, seed)
    assert again == drawn, f"one seed gave the minibatches {drawn} and {again}: use the seed"


def slow_logps(model, c, temperature):
    """Compute log pi of each token from the full softmax of this completion by itself."""
    ids = c.prompt + c.tokens
    logits = model(input_ids=torch.tensor([ids])).logits[0] / temperature
    full = logits.log_softmax(-1)
    return torch.stack([full[t - 1, ids[t]] for t in range(len(c.prompt), len(ids))])


def slow_update(model, minibatch, sampled, cfg, reference):
    """Compute one update with loops. Returns (gradient, {argument of grpo_sg_loss: a row of tokens
    per completion}). sampled: the rows of old_logps, {id(completion): row}."""
    logps, old, ref, w = [], [], [], []
    for c in minibatch:
        logps.append(slow_logps(model, c, cfg.temperature))
        old.append(sampled[id(c)])
        ref.append(slow_logps(reference, c, cfg.temperature).detach())
        w.append(torch.ones(len(c.tokens)))
        if cfg.shaping == "sg":
            settings = (cfg.alpha, cfg.tau, cfg.mu, cfg.low, cfg.high)
            pi = logps[-1].exp().tolist()
            w[-1] = torch.tensor([slow_weight(x, *settings) for x in pi])
    rows = {"logps": logps, "old_logps": old, "ref_logps": ref, "weights": w}
    pad = {name: pad_sequence(row, batch_first=True) for name, row in rows.items()}
    mask = pad_sequence([torch.tensor(c.mask) for c in minibatch], batch_first=True)
    A = torch.tensor([c.advantage for c in minibatch])
    loss = slow_loss(pad["logps"], pad["old_logps"], A, mask, pad["weights"], pad["ref_logps"],
                     mode=cfg.loss_agg_mode, beta=cfg.beta, clip_low=cfg.clip_low,
                     clip_high=cfg.clip_high)
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.flatten() for g in gradient]), rows


def check_arguments(call, minibatch, rows, cfg):
    """Assert that a call of grpo_sg_loss got the right arguments; the message names a wrong one."""
    for name in ("clip_low", "clip_high", "beta", "loss_agg_mode"):
        found, expected = call[name], getattr(cfg, name)
        assert found == expected, f"{name} is {found}, expected cfg.{name} = {expected}"
    numbers = {c.advantage: i for i, c in enumerate(minibatch)}
    for row, A in enumerate(call["advantages"].tolist()):
        assert A in numbers, f"{A} is an advantage of no completion"
        i, c = numbers[A], minibatch[numbers[A]]
        if A == 0:  # of several completions
            continue
        own = [len(c.prompt) + t for t, x in enumerate(c.mask) if x]
        at = call["mask"][row].nonzero()[:, 0].tolist()
        assert at == own, f"mask is True at {at}, expected {own} for {c.prompt + c.tokens}"
        for name in rows if cfg.beta else ("logps", "old_logps", "weights"):
            found = torch.ones(len(own)) if call[name] is None else call[name][row, own]
            hint = f"cfg has temperature {cfg.temperature} and shaping {cfg.shaping}"
            if name == "old_logps":
                hint = "that of the policy before the first update"
            same(f"an entry of {name}", found, rows[name][i][c.mask], hint, 1e-4)
    by_token = cfg.loss_agg_mode == "token-mean"
    count = call["mask"].sum() if by_token else call["mask"].any(1).sum()
    found = int(call["denominator"] or count)
    expected = sum(sum(c.mask) for c in minibatch) if by_token else len(minibatch)
    assert found == expected, f"the loss is divided by {found}, expected {expected}"


def check_gradient(found, expected, before):
    """Assert that an update's gradient is as expected. before: the previous update's gradient."""
    error = (found - expected).norm() / expected.norm()
    ratio = found.norm() / expected.norm()
    cosine = torch.cosine_similarity(found, expected, 0).clamp(-1, 1)
    said = (f"the gradient has {ratio:.4g} times the expected norm, at an angle of "
            f"{cosine.acos().rad2deg():.0f} degrees")
    if (found - expected - before).norm() < 1e-3 * expected.norm():
        said += ": the gradient of the update before is still in it, call zero_grad"
    else:
        said += ": grpo_sg_loss got the right arguments, look at what it returns, then at backward"
    assert error < 1e-3, said


FULL, PARTS = 10 ** 6, 40  # tokens of a micro-batch
SETTINGS = {
    "one update": dict(updates=1, tokens_per_micro_batch=PARTS),
    "mean over completions": dict(
        updates=1, tokens_per_micro_batch=PARTS, loss_agg_mode="seq-mean-token-mean"),
    "KL": dict(updates=1, tokens_per_micro_batch=FULL, beta=0.001),
    "GRPO, two updates": dict(
        updates=2, tokens_per_micro_batch=FULL, shaping="none", clip_low=0.01, clip_high=0.03),
    "GRPO-SG, two updates": dict(
        updates=2, tokens_per_micro_batch=PARTS, alpha=1.5, tau=0.4, mu=0.1, low=0.6, high=1.1,
        clip_low=0.03, clip_high=0.01),
    "KL, two updates": dict(
        updates=2, tokens_per_micro_batch=FULL, beta=0.001, loss_agg_mode="seq-mean-token-mean")}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_update_is_one_plain_step(name):
    """It follows the gradient of the slow loss, from the full softmax of each completion by itself,
    at temperature 0.7, for any size of micro-batches, with a tool's tokens and without dropout.
    In the second update, r still compares with the policy that sampled."""
    settings = dict(temperature=0.7, **SETTINGS[name])
    slow, completions, cfg = rolled(**settings)
    completions = completions[::3]
    for i, c in enumerate(completions):
        c.advantage = (i - 7.5) / 512  # all different, and small: no gradient is cut
        if cfg.updates == 1 and 5 <= i < 10:
            c.advantage = 0.0  # a group of equal rewards
        if i % 3 == 0:
            c.tokens[1:1] = [0]
            c.mask[1:1] = [False]
    reference = build_model(vocab_size=len(WORDS), seed=9)
    policy, _, _ = build_toy(**settings, dropout=0.5)
    updates = watch_learn(policy, completions, cfg, rate=5.0, reference=reference)
    sampled = {id(c): slow_logps(slow.model, c, 0.7).detach() for c in completions}
    before = torch.zeros(())
    for gradient, calls in updates:
        minibatch = completions
        if cfg.updates > 1:
            drawn = {A for call in calls for A in call["advantages"].tolist()}
            minibatch = [c for c in completions if c.advantage in drawn]
        expected, rows = slow_update(slow.model, minibatch, sampled, cfg, reference)
        assert expected.norm() < 1
        for call in calls:
            check_arguments(call, minibatch, rows, cfg)
        check_gradient(gradient, expected, before)
        before = expected
        parameters = parameters_of(slow.model) - 5.0 * expected
        torch.nn.utils.vector_to_parameters(parameters, slow.model.parameters())
    same("a parameter after learn", parameters_of(policy.model), parameters,
         "one optimizer step for each minibatch")


def test_a_large_gradient_is_clipped_to_norm_1():
    policy, completions, cfg = rolled(updates=2)
    for c in completions:
        c.advantage *= 1000
    for number, (gradient, _) in enumerate(watch_learn(policy, completions, cfg), 1):
        same(f"the norm of the gradient in update {number}", gradient.norm(), 1.0,
             "clip_grad_norm_ to 1.0 before each step", 1e-3)


def test_learning_raises_the_reward():
    policy, task, cfg = build_toy()
    optimizer = torch.optim.AdamW(policy.model.parameters(), cfg.lr, betas=(0.9, 0.99),
                                  weight_decay=0)
    rewards = []
    for step in range(25):
        completions = grpo_sg.rollout(policy, task, task.train, cfg, n=16, temperature=1.0,
                                      seed=step)
        grpo_sg.set_advantages(completions, 16)
        learn(policy, optimizer, completions, cfg, seed=step)
        rewards.append(sum(c.reward for c in completions) / len(completions))
    first, last = sum(rewards[:3]) / 3, sum(rewards[-5:]) / 5
    assert last > first + 2, f"the mean reward went from {first:.2f} to {last:.2f} in 25 steps"


# ==== The toy task: rollouts and training ====

def stepped(policy, completions, cfg, rate=0.1, **more):
    """Call grpo_sg.learn with plain gradient descent. Returns (statistics, parameters)."""
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=rate)
    updates = grpo_sg.learn(policy, optimizer, completions, cfg, **more)
    return grpo_sg.average_updates(updates), parameters_of(policy.model)


def test_the_ratio_is_exactly_1_in_the_first_update():
    """Without rounding: the same forward pass gives logps and old_logps."""
    policy, completions, cfg = rolled(updates=3, tokens_per_micro_batch=40)
    for number, (_, calls) in enumerate(watch_learn(policy, completions, cfg)):
        equal = [call["logps"].equal(call["old_logps"]) for call in calls]
        assert all(equal) if number == 0 else not any(equal), f"update {number + 1}: {equal}"


def test_greedy_completions_belong_to_their_prompts():
    policy, task, cfg = build_toy(sample_batch=4)
    questions = [" ".join(words) for words in itertools.permutations(WORDS[2:8], 2)]
    task = task._replace(train=[tasks.Problem(question, "yes") for question in questions])
    problems = tasks.encode_problems(task, policy, cfg).train
    alone = []
    for question in questions:
        prompt = policy.tokenizer(question)["input_ids"]
        alone.append(sample(policy.model, [prompt], max_new_tokens=6, stop_ids={0}, temperature=0))
    _, greedy = grpo_sg.evaluate(policy, task, problems, cfg, samples=0)
    cold = grpo_sg.rollout(policy, task, problems, cfg, n=3, temperature=1e-4, seed=0)
    for n, completions in ((1, greedy), (3, cold)):
        for i, c in enumerate(completions):  # problem-major
            assert c.problem == problems[i // n]
            assert c.prompt == policy.tokenizer(questions[i // n])["input_ids"]
            assert [c.tokens] == alone[i // n]
    assert len({str(tokens) for tokens in alone}) > 9


def test_a_truncated_completion_is_badly_formed_and_not_solved():
    """It has no stop token. Rewards: +3 right, -0.5 wrong, -3 badly formed."""
    _, completions, _ = rolled()
    assert any(c.truncated and c.correct for c in completions)
    for c in completions:
        assert c.truncated == (c.tokens[-1] != 0) and not (c.truncated and c.formatted)
        assert c.solved == (c.correct and c.formatted)
        assert tasks.reward(c) == (-3 if not c.formatted else 3 if c.correct else -0.5)


def test_a_verifier_reads_the_response_without_its_stop_token():
    """A truncated one keeps its last token. The tag that a prompt ends with comes first."""
    policy, task, cfg = build_toy()
    problems = [problem._replace(opening="never ") for problem in task.train]
    completions = grpo_sg.rollout(policy, task, problems, cfg, n=16, temperature=1.0, seed=1)
    for c in completions:
        words = [WORDS[token] for token in c.tokens if token != 0]
        assert c.response == c.transcript == "never " + " ".join(words)
        assert len(words) == len(c.tokens) - (not c.truncated)
    assert len({c.truncated for c in completions}) == 2


def test_a_task_may_write_its_completions_itself(tmp_path):
    """Such as in turns, with a tool. The verifier gets what the policy wrote, and only that is
    counted; the transcript, which is logged, has all of it."""
    def write(policy, completions, cfg, generator, temperature):
        for c in completions:
            c.add([2, 3], own=True)
            c.add([5, 6, 7], own=False)
            c.add([4, 0], own=True)
            c.tool_calls += 1
    policy, task, cfg = build_toy(change={"write": write}, max_new_tokens=50)
    row, (c, _) = grpo_sg.evaluate(policy, task, task.train[:2], cfg)
    assert c.mask == [True, True, False, False, False, True, True]
    assert c.response == "yes no maybe" and c.transcript == "yes no who what why maybe"
    assert row["eval/completion_tokens"] == 4 and row["eval/tool_calls"] == 1
    answer = {"yes"}  # JSON has no sets
    run = grpo_sg.Run(cfg, policy, tmp_path)
    run.log({"step": 0}, [dataclasses.replace(c, problem=c.problem._replace(answer=answer))])
    logged, = rows_of(tmp_path / "samples.jsonl")
    assert logged["completion"] == c.transcript and logged["answer"] == "{'yes'}"
    turns = grpo_sg.sample_in_parts(policy, [[5], [6]], cfg, None, 1.0, lambda ids, scores: ids[:, -1] == 2)
    assert all(set(turn[:-1]).isdisjoint({0, 2}) and turn[-1] in (0, 2) for turn in turns)


@pytest.mark.parametrize("change, message", [
    ({"verify": lambda text, gold: True}, "verify must return (correct, formatted), True or False each, not True"),
    ({"verify": lambda text, gold: (1, True)}, "not (1, True), for"),
    ({"reward": lambda c: math.nan}, "reward must return a finite number, not nan"),
    ({"reward": lambda c: -math.inf}, "reward must return a finite number, not -inf")])
def test_a_verdict_or_a_reward_that_cannot_be_used_is_one_line(change, message):
    policy, task, cfg = build_toy(change=change)
    with pytest.raises(SystemExit, match=f"error: .*{re.escape(message)}"):
        grpo_sg.rollout(policy, task, task.train, cfg, n=2, temperature=1.0, seed=0)


class PlainAdam:
    """AdamW as the paper has it, in float64, with betas 0.9 and 0.99 and without weight decay."""

    def __init__(self, model, rate):
        self.parameters = list(model.parameters())
        self.rate, self.steps = rate, 0
        self.m = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters]
        self.v = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters]

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for p, m, v in zip(self.parameters, self.m, self.v):
            g = p.grad.double()
            m.copy_(0.9 * m + 0.1 * g)
            v.copy_(0.99 * v + 0.01 * g ** 2)
            first, second = m / (1 - 0.9 ** self.steps), v / (1 - 0.99 ** self.steps)
            p.copy_(p.double() - self.rate * first / (second.sqrt() + 1e-8))

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


def test_training_is_this_loop():
    """Each step samples other problems and completions, at the temperature of the loss, and two
    runs with different seeds never share a step."""
    settings = dict(steps=3, prompts=2, temperature=0.7, beta=0.1, lr=0.02)
    policy, task, cfg = build_toy(**settings)
    cfg.seed = 7
    reference = build_model(vocab_size=len(WORDS), seed=9)
    with pytest.raises(AssertionError, match="beta > 0 needs a reference model"):
        grpo_sg.train(policy, task, cfg)
    rows = grpo_sg.train(policy, task, cfg, reference=reference)
    slow, _, _ = build_toy(**settings)
    optimizer = PlainAdam(slow.model, 0.02)
    for row, step in zip(rows, (1, 2, 3), strict=True):
        seed = 7 * 1_000_003 + step
        problems = random.Random(seed).sample(task.train, 2)
        completions = grpo_sg.rollout(slow, task, problems, cfg, n=16, temperature=0.7, seed=seed)
        grpo_sg.set_advantages(completions, 16)
        updates = grpo_sg.learn(slow, optimizer, completions, cfg, reference, seed)
        assert row["step"] == step and row["skipped"] == 0
        assert row["reward"] == sum(c.reward for c in completions) / 32
        assert row["grad_norm"] == pytest.approx(max(totals["norm"] for totals in updates), rel=1e-3)
    assert optimizer.steps == 6
    same("a parameter after three steps", parameters_of(policy.model), parameters_of(slow.model),
         "AdamW with betas 0.9 and 0.99, no weight decay, cfg.lr", 1e-4)


# ==== Corner cases of the algorithm ====

def test_advantages_do_not_depend_on_how_rewards_are_rounded():
    """Neither with a large offset, nor if equal rewards were computed in different ways."""
    rewards = torch.tensor([[0.0, 1.0, 1.0, 3.0]], dtype=torch.float64)
    assert group_advantages(rewards + 1e9).equal(group_advantages(rewards))
    assert group_advantages(torch.tensor([[0.1 * 3, 0.3, 0.3]], dtype=torch.float64)).eq(0).all()


def test_a_random_number_rounded_up_to_1_draws_the_last_token():
    assert grpo_sg.draw(torch.zeros(2, 5), torch.ones(2, 1), 1.0).tolist() == [[4], [4]]


@pytest.mark.parametrize("n, c, k", [(4, 5, 2), (4, -1, 2), (4, 2, 5), (4, 2, 0)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(AssertionError, match=f"not n={n}, c={c}, k={k}"):
        grpo_sg.pass_at_k(n, c, k)


def test_the_settings_defaults_are_those_of_the_functions():
    cfg = grpo_sg.Config()
    for function in (token_weights, grpo_sg_loss):
        for name, parameter in inspect.signature(function).parameters.items():
            assert getattr(cfg, name, parameter.default) == parameter.default, name
    assert cfg.shaping == "sg" and grpo_sg.weigh(torch.zeros(1), cfg).item() == pytest.approx(1.4)


def test_the_weights_of_other_methods():
    logps = torch.tensor([0.0, 0.5, 1.0]).log()
    assert grpo_sg.weigh(logps, grpo_sg.Config(shaping="none")) is None
    ar = grpo_sg.weigh(logps, grpo_sg.Config(shaping="ar"))
    assert ar.tolist() == pytest.approx([0.8, 0.9, 1.0])
    sg = grpo_sg.weigh(logps, grpo_sg.Config(alpha=1.0, tau=1.0, mu=0.0, low=0.6, high=0.7))
    assert sg.tolist() == pytest.approx([0.6, 1 / (1 + math.exp(-0.5)), 0.7])
    with pytest.raises(AssertionError, match="shaping must be sg, none or ar, not 'grpo'"):
        grpo_sg.weigh(logps, grpo_sg.Config(shaping="grpo"))


@MODES
def test_the_sums_are_those_of_loops(mode):
    """Over tokens, or over completions of their token means."""
    logps, old, ref, A, mask, w = batch()
    settings = dict(weights=w, ref_logps=ref, clip_high=0.3, loss_agg_mode=mode)
    _, sums = grpo_sg_loss(logps, old, A, mask, **settings)
    _, same = grpo_sg_loss(logps, old, A, mask, **settings, denominator=99)
    assert sums == same, "the denominator affects only the loss"
    expected = dict.fromkeys(sums, 0.0)
    expected["count"] = mask.sum().item() if mode == "token-mean" else mask.any(1).sum().item()
    for i, t in mask.nonzero().tolist():
        r = math.exp(logps[i, t] - old[i, t])
        x = float(ref[i, t] - logps[i, t])
        held_back = A[i] > 0 and r > 1.3 or A[i] < 0 and r < 0.8
        values = {"clipped": held_back, "kls": math.exp(x) - 1 - x, "entropies": -old[i, t],
                  "weights": w[i, t], "unlikely": logps[i, t].exp() < 1/3}
        length = 1 if mode == "token-mean" else mask[i].sum().item()
        for key, value in values.items():
            expected[key] += float(value) / length
    assert {key: float(value) for key, value in sums.items()} == pytest.approx(expected, rel=1e-5)
    assert len(expected) == 6


def test_the_loss_is_computed_in_float32_or_float64():
    logps, old, ref, A, mask, w = batch()
    for dtype, rel in ((torch.bfloat16, 1e-5), (torch.float64, 1e-12)):
        x, y = (logps.double() / 3).to(dtype), (old.double() / 3).to(dtype)
        a = A if dtype == torch.bfloat16 else A.double()
        expected = slow_loss(x.double(), y.double(), a, mask, w, ref)
        assert grpo_sg_loss(x, y, a, mask, weights=w)[0].item() == pytest.approx(expected.item(), rel=rel)
    # 131,072 tokens of 2 nats sum to more than float16 can hold.
    logps = torch.full((64, 2048), -2.0)
    _, sums = grpo_sg_loss(logps, logps.half(), torch.zeros(64), torch.ones_like(logps))
    assert sums["entropies"].item() / sums["count"].item() == pytest.approx(2.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rewards_that_differ_by_rounding_have_no_advantage(dtype):
    """Of the rewards' own dtype. A larger difference is a signal."""
    eps = torch.finfo(dtype).eps
    R = torch.tensor([[1.0, 1.0 + eps, 1.0, 1.0], [1.0, 1.0 + max(4 * eps, 1e-5), 1.0, 1.0]], dtype=dtype)
    A = group_advantages(R)
    assert not A[0].any() and A[1].max() > 1.2


@pytest.mark.parametrize("change", [
    {"weights": torch.ones(4)}, {"ref_logps": torch.zeros(4, 6)}, {"advantages": torch.ones(7)},
    {"beta": 0.1}, {"mask": torch.ones(1, 7)}, {"loss_agg_mode": "mean"},
    {"logps": torch.zeros(7)}, {"logps": torch.zeros(5, 7, 2)}])
def test_the_loss_refuses_shapes_that_do_not_fit(change):
    """Broadcasting would silently compute a wrong loss."""
    logps, old, _, A, mask, _ = batch()
    arguments = dict(logps=logps, old_logps=old, advantages=A, mask=mask)
    with pytest.raises(AssertionError):
        grpo_sg_loss(**{**arguments, **change})


@pytest.mark.parametrize("ids, mask, temperature, message", [
    ([[1, 1, 1]], [[False, True]], 1, r"mask \(1, 2\), ids \(1, 3\)"),
    ([[1, 1]], [[True, True]], 1, "the first token of a row has no context"),
    ([[1, 1]], [[False, True]], 0, "the temperature must be above 0")])
def test_log_probabilities_refuse_arguments_that_do_not_fit(ids, mask, temperature, message):
    with pytest.raises(AssertionError, match=message):
        grpo_sg.token_logps(None, torch.tensor(ids), torch.tensor(mask), temperature=temperature)


def test_a_mask_of_numbers_selects_the_same_tokens_as_one_of_booleans():
    """As an index, 1 would be the second position."""
    ids, mask = torch.tensor([[5, 6, 7], [8, 9, 5]]), torch.tensor([[0, 0, 1], [0, 1, 1]])
    expected = grpo_sg.token_logps(build_model(), ids, mask.bool())
    assert torch.equal(grpo_sg.token_logps(build_model(), ids, mask), expected)


@pytest.mark.parametrize("version, accepted", [
    ("4.57.6", False), ("5.9.0", False), ("5.20.2", False), ("5.21.0", True), ("6.0.0.dev0", True)])
def test_an_old_transformers_is_reported_in_one_line(version, accepted, monkeypatch):
    """It would be an IndexError: too many indices."""
    monkeypatch.setattr(grpo_sg.transformers, "__version__", version)
    assert grpo_sg.keeps_by_mask() == accepted
    if not accepted:
        monkeypatch.setattr(grpo_sg, "KEEPS_BY_MASK", False)
        with pytest.raises(AssertionError, match=f"needs transformers 5.21 or newer, not {version}$"):
            grpo_sg.token_logps(build_model(), torch.tensor([[1, 2]]), torch.tensor([[False, True]]))


def test_sampling_against_a_plain_forward_pass():
    """Of each row by itself, without a cache or pads. A token is the first whose cumulative
    probability is above u, and token_logps gives its probability."""
    model, g = build_model("GPT2"), torch.Generator()
    settings = dict(n=2, max_new_tokens=5, temperature=0.7)
    rows = sample(model, PROMPTS, stop_ids={1}, generator=g.manual_seed(0), **settings)
    u = torch.rand(6, 5, generator=g.manual_seed(0))
    for i, row in enumerate(rows):
        ids = PROMPTS[i // 2].copy()
        for t, token in enumerate(row):
            p = (model(input_ids=torch.tensor([ids])).logits[0, -1] / 0.7).softmax(-1)
            assert token == (p.cumsum(0) <= u[i, t]).sum()
            ids.append(token)
            ids_row, last = torch.tensor([ids]), torch.arange(len(ids)) == len(ids) - 1
            logp = grpo_sg.token_logps(model, ids_row, last[None], temperature=0.7)[0, -1]
            same("the probability of a sampled token", logp.exp(), p[token])
        assert row[-1] == 1 or len(row) == 5 and 1 not in row


def test_a_completion_does_not_depend_on_the_others_in_its_batch():
    """Nor on their lengths, or when they end or pause for a tool."""
    model, g = build_model("GPT2"), torch.Generator()

    def drawn(stops, **more):
        return sample(model, PROMPTS, n=8, max_new_tokens=12, stop_ids=stops, temperature=3.0,
                      generator=g.manual_seed(3), **more)
    free = drawn(set())
    assert {len(row) for row in free} == {12}

    def pause(ids, scores):
        return (ids[:, -1] == 3) | (ids[:, -1] == 5)
    for stopped in (drawn({2, 3, 5}), drawn({2}, stopping_criteria=pause)):
        ends = [next((t + 1 for t, token in enumerate(row) if token in (2, 3, 5)), 12) for row in free]
        assert stopped == [row[:end] for row, end in zip(free, ends)] and len(set(ends)) > 5
    # A criterion gets all tokens so far, without the prompt.
    summed = drawn(set(), stopping_criteria=lambda ids, scores: ids.sum(1) > 150)
    ends = [next((t for t in range(1, 13) if sum(row[:t]) > 150), 12) for row in free]
    assert summed == [row[:end] for row, end in zip(free, ends)] and len(set(ends)) > 5


def test_keys_are_kept_in_the_type_of_the_values():
    """Under autocast, rotary embeddings make keys float32: twice the memory."""
    with torch.autocast("cpu", torch.bfloat16):
        *_, cache = grpo_sg.prefill(build_model(), PROMPTS)
    assert {(layer.keys.dtype, layer.values.dtype) for layer in cache.layers} == {(torch.bfloat16,) * 2}


def test_equal_prompts_are_prefilled_once(monkeypatch):
    """Whether they are n completions of a prompt or several equal prompts."""
    model, read = build_model(), []
    forward = model.forward

    def watched(**inputs):
        read.append(len(inputs["input_ids"]))
        return forward(**inputs)
    monkeypatch.setattr(model, "forward", watched)
    settings = dict(max_new_tokens=3, stop_ids=[], temperature=1.0)
    once = sample(model, PROMPTS, n=4, generator=torch.Generator().manual_seed(0), **settings)
    repeated = [p for p in PROMPTS for _ in range(4)]
    separately = sample(model, repeated, generator=torch.Generator().manual_seed(0), **settings)
    assert once == separately and read == [3, 12, 12] * 2


def check_seeds(policy, task, cfg):
    """Assert that a rollout depends on the seed, and not on how many completions are sampled at
    once. Returns the last rollout."""
    rollouts = []
    for size, seed in ((64, 1), (64, 1), (16, 1), (1, 1), (64, 2)):
        cfg.sample_batch = size
        with mock.patch.object(grpo_sg, "sample", wraps=sample) as watched:
            rolled = grpo_sg.rollout(policy, task, task.train, cfg, n=16, temperature=1.0, seed=seed)
        assert max(len(call.args[1]) for call in watched.call_args_list) <= size
        rollouts.append([(c.tokens, c.mask) for c in rolled])
    first, *same_seed, other_seed = rollouts
    assert all(rollout == first for rollout in same_seed) and other_seed != first
    return rolled


def test_a_rollout_depends_only_on_the_seed():
    check_seeds(*build_toy())


def test_an_evaluation_counts_and_gives_standard_errors_over_problems():
    def verify(text, gold):
        return tasks.Verdict("maybe" not in text, len(text) % 2 == 0)
    policy, task, cfg = build_toy(temperature=0.7, change={"verify": verify})
    problems = task.train * 40
    row, greedy = grpo_sg.evaluate(policy, task, problems, cfg, samples=4)
    assert {(c.correct, c.formatted) for c in greedy} == {(True, True), (True, False)}
    drawn = grpo_sg.rollout(policy, task, problems, cfg, n=4, temperature=0.7, seed=cfg.seed)
    solved = torch.tensor([float(c.solved) for c in drawn]).view(-1, 4)
    rewards = torch.tensor([c.reward for c in drawn]).view(-1, 4)
    pairs = torch.stack([solved[:, pair].amax(1) for pair in itertools.combinations(range(4), 2)])
    means = {"accuracy": torch.tensor([float(c.solved) for c in greedy]),
             "reward": torch.tensor([c.reward for c in greedy]),
             "avg@4": solved.mean(1), "reward@4": rewards.mean(1), "pass@2": pairs.mean(0),
             "pass@4": solved.amax(1)}
    for key, each in means.items():
        assert row[f"eval/{key}"] == pytest.approx(each.mean().item())
        error = each.std(correction=1).item() / 120 ** 0.5
        assert row[f"eval/{key}_se"] == pytest.approx(error, abs=1e-6)
    assert 0 < row["eval/avg@4"] < row["eval/pass@2"] < row["eval/pass@4"]
    assert row["eval/truncated@4"] == pytest.approx(sum(c.truncated for c in drawn) / 480)
    assert row["eval/format_rate@4"] == pytest.approx(sum(c.formatted for c in drawn) / 480)
    equal = (rewards.amax(1) == rewards.amin(1)).float().mean().item()
    assert row["eval/equal_groups@4"] == pytest.approx(equal) and 0 < equal < 1
    one, _ = grpo_sg.evaluate(policy, task, problems[:1], cfg)
    assert one["eval/accuracy_se"] is None  # one problem has no standard error
    assert not any("@" in key for key in one)  # by default nothing is sampled


def test_a_micro_batch_has_at_most_so_many_tokens_with_pads():
    """Or one row, if that is longer. Completions with A = 0 are left out unless there is a KL."""
    completions = []
    for n in (1, 40, 2, 9, 30, 5, 5, 1):
        completions.append(grpo_sg.Completion(None, [1] * 3, [2] * n, [True] * n, advantage=0.5))
    completions.append(grpo_sg.Completion(None, [1] * 3, [2] * 2, [True] * 2))
    for beta, rows in ((0.0, 8), (0.1, 9)):
        cfg = grpo_sg.Config(tokens_per_micro_batch=36, beta=beta)
        batches = grpo_sg.micro_batches(completions, cfg, "cpu")
        shapes = [tuple(batch.ids.shape) for batch in batches]
        assert all(height == 1 or height * width <= 36 for height, width in shapes)
        assert sum(height for height, _ in shapes) == rows and len(shapes) < 6


@pytest.mark.parametrize("prompts", [
    [], [[]], [[1], []], torch.ones(2, 2).long(), transformers.BatchEncoding({"input_ids": [[1]]})])
def test_prompts_that_are_not_lists_of_tokens_are_refused(prompts):
    with pytest.raises(AssertionError, match=f"prompts must be lists of token ids, .* not {type(prompts).__name__}"):
        sample(build_model(), prompts, max_new_tokens=2, stop_ids=[])
    with pytest.raises(AssertionError, match="the temperature must not be below 0: -1"):
        sample(build_model(), [[1]], max_new_tokens=2, stop_ids=[], temperature=-1)


@pytest.mark.filterwarnings("error")  # no warning in eval mode
def test_a_model_in_training_mode_is_refused_or_warned_of():
    model = build_model().train()
    with pytest.raises(AssertionError, match="call model.eval"):
        sample(model, [[1]], max_new_tokens=2, stop_ids=[])
    batch = torch.tensor([[1, 2]]), torch.tensor([[False, True]])
    with pytest.warns(UserWarning, match="the model is in training mode"):
        grpo_sg.token_logps(model, *batch)
    grpo_sg.token_logps(model.eval(), *batch)


def test_the_norm_before_clipping_is_logged_and_equal_groups_change_nothing():
    policy, completions, cfg = rolled(updates=1)
    for c in completions:
        c.advantage *= 1000
    row, after = stepped(policy, completions, cfg)
    assert row["grad_norm"] > 1
    for c in completions:
        c.advantage = 0.0
    row, same = stepped(policy, completions, cfg)
    assert torch.equal(same, after) and row["grad_norm"] == 0 and row["entropy"] is None


@MODES
def test_logged_means_leave_out_equal_groups_but_the_loss_counts_their_tokens(mode):
    policy, completions, cfg = rolled(updates=1, tokens_per_micro_batch=40, loss_agg_mode=mode)
    entropy = gain = trained = every = 0
    for c in completions:
        batch = grpo_sg.make_batch([c], "cpu")
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)[0, len(c.prompt):].detach()
        share = 1 / len(c.tokens) if mode == "seq-mean-token-mean" else 1
        gain += share * (token_weights(logps) * c.advantage).sum().item()
        every += share * len(c.tokens)
        if c.advantage:
            entropy -= share * logps.sum().item()
            trained += share * len(c.tokens)
    row, _ = stepped(policy, completions, cfg)
    assert row["entropy"] == pytest.approx(entropy / trained, rel=1e-4)
    assert row["loss"] == pytest.approx(-gain / every, rel=1e-3)
    assert sum(c.advantage != 0 for c in completions) == 32


def test_an_update_whose_loss_or_gradient_is_not_finite_is_skipped():
    policy, completions, cfg = rolled(updates=2)
    before = parameters_of(policy.model)
    hook = next(policy.model.parameters()).register_hook(lambda gradient: gradient * math.nan)
    row, after = stepped(policy, completions, cfg)
    assert row["skipped"] == 2 and row["grad_norm"] == 0 and math.isfinite(row["loss"])
    assert torch.equal(before, after)
    hook.remove()
    completions[0].advantage = math.inf  # in one of the two updates
    row, after = stepped(policy, completions, cfg)
    assert row["skipped"] == 1 and row["loss"] is None and row["grad_norm"] > 0
    assert after.isfinite().all() and not torch.equal(before, after)


# ==== Knights and Knaves, sums and products ====

ROLES = {"Mira": "knight", "Tobias": "knave", "Zoe": "knight"}
GOOD = "Mira is a knight, Tobias is a knave, Zoe is a knight"
ROLE_NAMES = ("knight", "knave")


RIGHT = [GOOD, "(1) Mira is a knight\n(2) Tobias is a knave\n(3) Zoe is a knight", GOOD + ", Mira is a knight",
         "mira IS A KNIGHT; tobias is a Knave. zoe is a knight", "1. Mira is a knight 2. Tobias is a knave\n- Zoe "
         "is a knight.", "**Mira** is a **knight**, Tobias is a knave, and Zoe is a knight"]
# Slips, doubts, several answers, letters that only look right, and what nobody can read as an answer.
WRONG = ["", " ", GOOD.replace("knave", "knight"), "Mira is a knight, Tobias is a knave", GOOD + ", Ivo is a knave",
         "It is false that " + GOOD, GOOD.replace("is a", "is not a", 1), "Is it that " + GOOD + "?", GOOD + "?", GOOD + "!",
         "I guess " + GOOD, "maybe " + GOOD, GOOD + " or not", "Tobias said " + GOOD, f'"{GOOD}"', f"~~{GOOD}~~",
         GOOD.replace("knight", "knight's rival", 1), GOOD.replace("knight", "knightess", 1), GOOD + ", Mira is a knave",
         "Mira is a knave, " + GOOD, GOOD + ". Wait, Mira is a knave", GOOD + ". Just kidding", "Anna-" + GOOD,
         GOOD.replace("Mira", "Mira-Anna"), GOOD.replace("Mira", "Mira\u200b"), GOOD.replace("Mira", "M\u0456ra"),
         GOOD.replace("knight", "\u212anight"), GOOD.replace("knave", "knav\u0435"), GOOD.replace("Zoe", "Zoe\u0308"), GOOD.replace("Zoe", "Zo\u00eb"),
         GOOD.replace(",", "\uff0c"), GOOD.replace(" ", "\u00a0"), GOOD + "\u2014not",
         "Mira: knight, Tobias: knave, Zoe: knight", GOOD.replace("knight", "knight or a knave", 1),
         "knight, knave, knight", GOOD.replace(", ", ""), "is a knight", GOOD.replace(", ", " " * 400)]
BLOCK = f"<answer>{GOOD}</answer>"
WHOLE = f"<think>Mira is honest.</think>\n{BLOCK}"
# Without a block, with two, with text around them, and with tags or turns that are hidden or faked.
BADLY_FORMED = [
    GOOD, BLOCK, f"<think></think>{BLOCK}", f"<think> \n</think>{BLOCK}", f"<think>\u200b...</think>{BLOCK}",
    "Sure! " + WHOLE, WHOLE + " I am sure.", WHOLE.replace("\n", " so: "), WHOLE * 2,
    WHOLE.replace("<think>", "<Think>"), WHOLE.replace("answer>", "Answer>"), WHOLE.replace("<think>", ""),
    WHOLE.replace("</think>", ""), WHOLE.replace("</answer>", ""), WHOLE + "<ANSWER>Mira is a knave</ANSWER>",
    WHOLE + "<answer >Mira is a knave</answer >", WHOLE + "\uff1canswer\uff1e", WHOLE.replace("is", "<answer>", 1),
    WHOLE.replace("honest", "< answer >"), BLOCK + "<think>ok</think>", f"<think>{BLOCK}</think>", "<think>" + WHOLE,
    WHOLE + "<answer>\u0338Mira is a knave</answer>\u0338", "Assistant: " + WHOLE, WHOLE + "\x00", WHOLE + "</s> or a knave",
    WHOLE + "<|im_end|>", WHOLE + "</s>",  # grade strips the stop token

    WHOLE + "<|im_end|><|im_start|>assistant " + WHOLE, f"<think>a</think>\u0338 text <think>\u0338 b</think>{BLOCK}",
    *(WHOLE.replace("is honest", turn) for turn in (
        "<|im_start|>user\nSure?", "\nUser: sure?", "\rUser: sure?", "\n     User: s",
        "\u2028 **User**: s", "<\uff5cUser\uff5c> sure?", "[INST] sure?"))]
# Oddities that no answer needs and that pay for nothing: the roles are right, and the policy thought.
ODD = [f"<think>\u3164</think>{BLOCK}", WHOLE.replace("honest", "<\u200banswer>"), WHOLE.replace("honest", "\uff1canswer\uff1e"),
       WHOLE.replace("is honest", "\n\u200bUs\u200ber: sure?")]


def test_what_a_verifier_of_puzzles_accepts():
    """A badly formed response is never correct, and a well formed one only if its answer says who is what,
    about everybody, and nothing else."""
    for answer in RIGHT:
        for thoughts in ("I see.", "If x < 3 & y > 2, |x|<|y|: a knave?"):
            for end in ("", "\n", ".", "\n.\n"):
                response = f" <think>{thoughts}</think>\n<answer>{answer}</answer>{end}"
                assert tasks.verify_kk(response, ROLES) == (True, True), response
    assert all(tasks.verify_kk(response, ROLES) == (True, True) for response in ODD)
    for answer in WRONG:
        response = f"<think>I see.</think><answer>{answer}</answer>"
        assert tasks.verify_kk(response, ROLES) == (False, True), response
    for response in BADLY_FORMED:
        assert tasks.verify_kk(response, ROLES) == (False, False), response


@pytest.mark.parametrize("names", [
    "O'Neil, Anna", "Mary Ann, Mary, Ann", "Anna-Maria, Maria", "And, Knight, A"])
def test_names_may_be_unusual(names):
    names = names.split(", ")
    answer = " and ".join(f"{name} is a knight" for name in names)
    for text in (answer, answer.upper()):
        response = f"<think>x</think><answer>{text}</answer>"
        assert tasks.verify_kk(response, dict.fromkeys(names, "knight")) == (True, True)


def test_hostile_responses_are_cheap():
    """At most 0.4 seconds for 20,000 copies of anything that could multiply the work.
    (Mathematics: verify/test_math_equal.py.)"""
    for part in ("<think>", "</think>", "<answer>", "</answer>", "<think></think>", "<search>x</search>",
                 "<", " ", "\n", "< / ", "<|im_end|>", "</s>", "\ud800", "\x00", "((((", "**", "-", "and ", "1. ",
                 ",000", "Mira ", "a\nuser", "\u0301", "\u0301\u0323", "\u0344\u0338", "\\boxed{", "{", "9"):
        long = part * 20_000
        for response in (f"{long}x", f"<think>{long}</think>\n<answer>{GOOD}</answer>\nuser",
                         f"<think>x</think><answer>1{long}</answer>"):
            started = time.thread_time()
            tasks.verify_kk(response, ROLES)
            assert time.thread_time() - started < 0.4, response[:60]


def claims_of(problem):
    """Return what each person says, as a dict name -> claim in English."""
    names, claims = list(problem.answer), {}
    told = problem.question.split(f" and {names[-1]}. ", 1)[1].split(" Who is a knight and")[0]
    for sentence in re.split(r"(?<=\.) ", told):
        for saying in tasks.SAYINGS:
            before, middle, after = map(re.escape, saying.split("{}"))
            if said := re.fullmatch(f"{before}({'|'.join(names)}){middle}(.*){after}", sentence):
                claims[said[1]] = said[2]
    assert set(claims) == set(names)
    return claims


def say(claim, roles):
    """Evaluate a claim in English by splitting it, independently of the code that made it."""
    if claim.startswith("if "):
        x, y = claim[3:].split(" then ")
        return not say(x, roles) or say(y, roles)
    for word, rule in ((" if and only if ", lambda x, y: x == y), (" and ", lambda x, y: x and y),
                       (" or ", lambda x, y: x or y)):
        if word in claim:
            return rule(*(say(part, roles) for part in claim.split(word)))
    if claim.startswith("it is not true that "):
        return not say(claim[20:], roles)
    name, role = claim.split(" is a ")
    return roles[name] == role


@pytest.mark.parametrize("n", range(2, 9))
def test_puzzles_have_one_solution_by_brute_force(n):
    for seed in range(30 if n < 7 else 5):
        problem = tasks.kk_puzzle(n, random.Random(seed))
        claims = claims_of(problem)
        assert not any(f"{name} is a knave" in claim for name, claim in claims.items())  # nobody can say it
        fits = [roles for roles in (dict(zip(claims, r)) for r in itertools.product(ROLE_NAMES, repeat=n))
                if all((roles[s] == "knight") == say(c, roles) for s, c in claims.items())]
        assert fits == [problem.answer]
        assert tasks.verify_kk(problem.solution, problem.answer) == (True, True)


def meaning(problem):
    """Return a puzzle's truth tables, the smallest over all orders of the people: equal for
    puzzles that are the same up to names and wording."""
    claims = claims_of(problem)
    return min(tuple(say(claims[s], dict(zip(order, roles))) for s in order
                     for roles in itertools.product(ROLE_NAMES, repeat=3))
               for order in itertools.permutations(claims))


def test_splits_share_no_puzzle_under_other_names_or_words():
    problems = {split: tasks.kk_split(split, 60, [3], seed)
                for split, seed in (("train", 0), ("valid", 1), ("test", 0))}
    sets = {split: set(map(meaning, puzzles)) for split, puzzles in problems.items()}
    assert not any(a & b for a, b in itertools.combinations(sets.values(), 2))
    assert len(sets["test"]) == 60 and len({problem.question for problem in problems["train"]}) == 60
    assert tasks.kk_split("test", 5, [3, 4], 0) == tasks.kk_split("test", 10, [3, 4], 0)[:5]
    assert tasks.kk_split("train", 5, [3], 0) != tasks.kk_split("train", 5, [3], 1)


def test_problems_and_their_solutions_are_the_same_in_every_version():
    """Numbers of different versions can be compared, and the pretrained models have seen no test problem."""
    for make, expected in (
            (lambda split: tasks.kk_split(split, 12, [3, 4, 5], 7),
             [17314934643642533110, 17622088144427226318, 10039267714022456171]),
            (lambda split: tasks.arithmetic_split(split, 12, 7),
             [14853416243481268606, 1992433993788839764, 5210348658571075419])):
        for split, number in zip(("train", "valid", "test"), expected):
            parts = [(p.question, p.answer, p.solution, p.shortcut) for p in make(split)]
            assert tasks.digest(parts) == number, split
    assert tasks.digest([tasks.kk_puzzle(n, random.Random(n)).meaning for n in range(3, 9)]) == 7403886503161467955


def test_two_people_have_enough_puzzles_for_every_split():
    """Logically equivalent wording would leave 3 to test on, all with one answer."""
    problems = {split: tasks.kk_split(split, 1000, [2], 0, brief=True) for split in ("train", "valid", "test")}
    assert {split: len(puzzles) for split, puzzles in problems.items()} == {"train": 267, "valid": 35, "test": 33}
    answers = [tuple(problem.answer.values()) for problem in problems["test"]]
    assert len(set(answers)) == 4 and tasks.most_frequent(answers) < 0.5
    texts = {split: {up_to_names(problem) for problem in puzzles} for split, puzzles in problems.items()}
    assert not any(a & b for a, b in itertools.combinations(texts.values(), 2))


def up_to_names(problem):
    """Return a brief puzzle of two people, Ada and Alice, in whichever order of the two sorts first."""
    first, second = re.fullmatch(r"Ada: (.*)\. Alice: (.*)\.", problem.question).groups()
    exchange = {"Ada": "Alice", "Alice": "Ada"}
    exchanged = [re.sub("Ada|Alice", lambda name: exchange[name[0]], claim) for claim in (second, first)]
    return min((first, second), tuple(exchanged))


def test_other_sizes_fill_up_a_size_without_more_puzzles(capsys):
    sizes = [len(problem.answer) for problem in tasks.kk_split("test", 100, [2, 3], 0)]
    assert (sizes.count(2), sizes.count(3)) == (33, 67) and capsys.readouterr().out == ""
    assert len(tasks.kk_split("test", 50, [2], 0)) == 33
    assert capsys.readouterr().out == "only 33 of 50 test puzzles: there are no others with 2 people\n"


def test_the_floor_is_what_the_best_constant_answer_of_each_size_scores():
    task = tasks.kk_task(grpo_sg.Config(people=[2, 3], eval_problems=41, eval_only=True))
    assert task.train is task.test  # without training no others are made, which takes long
    right = 0
    for n in (2, 3):
        answers = [str(list(problem.answer.values())) for problem in task.test if len(problem.answer) == n]
        right += max(answers.count(answer) for answer in answers)
    assert task.floor == pytest.approx(right / 41)


def test_the_last_100_published_puzzles_of_a_size_are_the_test_set(monkeypatch):
    """As in Logic-RL."""
    row = {"names": ["Ava", "Bo", "Cy"], "solution": [True, False, True]}
    rows = [{"quiz": f"{i}", **row} for i in range(1000)]
    monkeypatch.setattr(tasks, "load_hub", lambda name, configuration, split: rows)
    task = tasks.kk_task(grpo_sg.Config(model="any", data="published", people=[3],
                                       eval_problems=10))
    assert [len(task.train), len(task.test)] == [900, 100] and task.test[0].question == "900"
    assert task.train[1].answer == {"Ava": "knight", "Bo": "knave", "Cy": "knight"} and task.floor == 1


def test_solutions_of_arithmetic_are_right():
    task = tasks.math_task(grpo_sg.Config(task="math", train_problems=200, eval_problems=5))
    for problem in task.train:
        a, sign, b = re.fullmatch(r"(\d+)([+*])(\d+)", problem.question).groups()
        assert problem.answer == str(int(a) + int(b) if sign == "+" else int(a) * int(b))
        columns = re.findall(r"(\d)([+*])(\d)=(\d\d)\+(\d)=(\d\d)", problem.solution)
        assert len(columns) == 3 and task.verify(problem.solution, problem.answer) == (True, True)
        for (x, sign, y, alone, carry, result), (*_, before) in zip(columns, [("0", "00"), *columns]):
            assert int(alone) == (int(x) + int(y) if sign == "+" else int(x) * int(y))
            assert int(result) == int(alone) + int(carry) and carry == before[0]


def test_arithmetic_splits_share_no_operands():
    pairs = {}
    for split, count in (("train", 2000), ("valid", 1000), ("test", 1000)):
        problems = tasks.arithmetic_split(split, count, 3)
        pairs[split] = [frozenset(re.findall(r"\d+", problem.question)) for problem in problems]
    assert not any(set(a) & set(b) for a, b in itertools.combinations(pairs.values(), 2))
    assert len(set(pairs["test"])) == 1000 and tasks.arithmetic_split("test", 50, 3) == problems[:50]


# ==== Plain numbers ====

EQUAL = ["5 5", "5. 5", "-5 -5", "033 33", "142.0 142", ".5 0.5", "0.75 3/4", "3/4 0.75", "1,234 1234", "$18 18", "-$18 -18",
         "50% 50", "50\\% 0.5", "0.5 50%", "\\frac{3}{4} 3/4", "\\dfrac{3}{4} 0.75", "-\\frac{1}{2} -1/2", "\\$18 18"]
UNEQUAL = ["5 6", "5 -5", "6/8 3/4", "5/1 5", "1/0 1", "1/0 0", "0/0 0", "12,34 1234", "1,2345 12345", "5 50%", "5% 500", "0.5% 0.5",
           "0.333333 1/3", "x=5 5", "5+0 5", "347*6 2082", "2^3 8", "5e0 5", "٥ 5", "5_0 50", "5! 120", "0 0/1", "3/4% 75",
           "!=5 5", "1/2/1 1/2", "%5 5", "-+5 -5", "5%% 5", "5..0 5", "1.2.3 1.2", "\\frac{6}{8} 3/4", "{5} 5", "$5% 5",
           "\\frac{2}{-4} -0.5", "1,234,56 123456", "\\text{5}6 56", "$5 50%", "5% $5", ". 0", "- 0", "$ 0", "3\\frac{1}{2} 31/2"]


@pytest.mark.parametrize("pair", EQUAL)
def test_equal_plain_numbers(pair):
    assert tasks.plain_equal(*pair.split())


@pytest.mark.parametrize("pair", UNEQUAL)
def test_what_is_no_plain_number_or_another_one_equals_nothing(pair):
    assert not tasks.plain_equal(*pair.split())
    assert not tasks.plain_equal("", "") and not tasks.plain_equal("9" * 501, "9" * 501)


@pytest.mark.parametrize("response, gold, verdict", [
    ("\\boxed{5}", "5", (True, True)), ("\\boxed{42}", 42, (True, True)), ("\\boxed{5}", ["4", "5"], (True, True)),
    ("<think> \\boxed{5} </think> \\boxed{6}", "6", (True, True)), ("<think> so \\boxed{5}", "5", (False, False)),
    ("\\boxed{6}", ["4", "5"], (False, True)), ("\\boxed{5}", [], (False, True)), ("5", ["5"], (False, False))])
def test_a_response_in_mathematics_must_have_a_box_with_one_of_the_golds(response, gold, verdict):
    assert tasks.verify_math(response, gold) == verdict


def test_a_gold_with_signs_that_it_is_more_than_an_answer_is_dropped(monkeypatch):
    """verify/ compares such texts, and nothing else would equal them."""
    monkeypatch.setattr(tasks, "math_equal", operator.eq)
    golds = ["5", "x=5", "= 5", "the answer 5", "so #### 5", "\\boxed{5} or 6", "Answers"]
    assert [gold for gold in golds if tasks.is_gold(gold)] == ["5", "x=5", "Answers"]


# ==== A task of one's own: a Python file ====

MY_TASK = """
import dataclasses, grpo_sg, tasks

@dataclasses.dataclass
class Mine:
    cfg: "grpo_sg.Config"

SETTINGS = {"group_size": 4}

def make_task(cfg):
    return Mine(cfg)
"""


def test_a_task_is_a_name_or_a_python_file(tmp_path, monkeypatch):
    assert tasks.load_task("math") == (tasks.math_task, {})
    path = tmp_path / "math.py"  # its name is taken
    path.write_text(MY_TASK)
    monkeypatch.chdir(tmp_path)
    make_task, settings = tasks.load_task("math.py")
    assert settings == {"group_size": 4} and make_task(5).cfg == 5
    assert pickle.loads(pickle.dumps(make_task(5))) == make_task(5)
    assert tasks.load_task(str(path))[0] is make_task  # the file runs once


def test_a_task_file_is_found_from_any_folder_and_imports_the_project_and_its_neighbors(tmp_path):
    (tmp_path / "neighbor.py").write_text("WORD = 'hello'")
    (tmp_path / "mine.py").write_text(f"{MY_TASK}\nimport neighbor\nSETTINGS = {{'system': neighbor.WORD}}")
    program = (f"import importlib.util as u; s = u.spec_from_file_location('tasks', {tasks.__file__!r});"
               "import sys; sys.modules['tasks'] = t = u.module_from_spec(s); s.loader.exec_module(t);"
               f"print(t.load_task({str(tmp_path / 'mine.py')!r})[1])")
    done = subprocess.run([sys.executable, "-c", program], cwd="/", capture_output=True, text=True)
    assert done.stdout == "{'system': 'hello'}\n", done.stderr


@pytest.mark.parametrize("text, words", [
    (None, ["no.py", "no such file"]), ("x = 5", ["no.py", "make_task(cfg)"]),
    ("make_task = 5", ["no.py", "make_task(cfg)"]), ("def make_task(cfg): pass\nSETTINGS = [1]", ["no.py", "SETTINGS", "[1]"])])
def test_a_file_that_is_no_task_is_one_line(text, words, tmp_path):
    path = tmp_path / "no.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(tasks.UserError) as error:
        tasks.load_task(str(path))
    assert all(word in str(error.value) for word in words)
    with pytest.raises(tasks.UserError, match="--task mat: give one of kk, math.* make_task"):
        tasks.load_task("mat")


def test_an_error_in_a_task_file_keeps_its_traceback(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def f():\n    return 1 / 0\nf()")
    for _ in range(2):  # half a module is not used
        with pytest.raises(ZeroDivisionError) as error:
            tasks.load_task(str(path))
        assert str(error.traceback[-1].path) == str(path)


# ==== Prompts, and the tokens that end a turn ====

CHAT = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{{ '<|im_start|>assistant\n' }}")
CHAT_PROMPT = "<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
# Written for these tests, with the structure of real ones.
GEMMA = ("{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
         "{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else 'user' }}\n"
         "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
         "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")
PHI = ("{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}<|end|><|assistant|>"
       "{% elif m['role'] == 'assistant' %}{{ m['content'] }}<|end|>{% endif %}{% endfor %}")
LLAMA = ("{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}"
         "<|eot_id|>{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}")
MISTRAL = ("<s>{% for m in messages %}{% if m['role'] == 'assistant' %} {{ m['content'] }}</s>{% else %}"
           "[INST] {{ m['content'] }} [/INST]{% endif %}{% endfor %}")
CLOSED = CHAT + "{{ '<think>\n\n</think>\n\n' }}"


def chat_task(**fields):
    return tasks.Task("any", "Be good.", [], [], [], None, 0.0)._replace(**fields)


@pytest.mark.parametrize("template, prompt", [
    (None, "Be good.\n\nWho?\n\n<think>"),
    (CHAT, CHAT_PROMPT + "<think>"),
    (CHAT + "<think>", CHAT_PROMPT + "<think>"),             # it opens the thoughts itself
    (CHAT + "{{ '<think>\n' }}", CHAT_PROMPT + "<think>\n"),
    (MISTRAL, "<s>[INST] Be good. [/INST][INST] Who? [/INST]<think>"),
    (GEMMA, "<start_of_turn>user\nBe good.\n\nWho?<end_of_turn>\n<start_of_turn>model\n<think>"),
    (PHI, "<|user|>Be good.\n\nWho?<|end|><|assistant|><think>"),  # it leaves out the system role
    ("{{ messages[0]['content'] }}", "Be good.\n\nWho?<think>"),
    (LAST_MESSAGE, "Be good.\n\nWho?<think>"),
    # This one strips the tags from the instructions.
    ("{% for m in messages %}{{ m.content.replace('good', '') if m.role == 'system' else m.content }}{% endfor %}",
     "Be good.\n\nWho?<think>")])
def test_a_prompt_has_both_texts_and_opens_the_thoughts_once(template, prompt):
    """Without the instructions a model cannot know the format, and earns -3 for every completion. The
    opening is the response's."""
    tokenizer = byte_tokenizer(template)
    (ids, opening), = tasks.encode_prompts(tokenizer, chat_task(opening="<think>"), ["Who?"])
    assert tokenizer.decode(ids) == prompt and opening == "<think>"


def test_a_template_that_closes_the_thoughts_is_reported_in_one_line():
    with pytest.raises(tasks.UserError, match="--task any .*--chat_template_kwargs"):
        tasks.encode_prompts(byte_tokenizer(CLOSED), chat_task(opening="<think>"), ["Who?"])


def test_a_task_without_an_opening_can_use_a_template_that_closes_the_thoughts_or_opens_them():
    tokenizer = byte_tokenizer(CLOSED)
    (ids, opening), = tasks.encode_prompts(tokenizer, chat_task(), ["Who?"])
    assert tokenizer.decode(ids).endswith("</think>\n\n") and opening == ""
    (ids, opening), = tasks.encode_prompts(byte_tokenizer(CHAT + "<think>"), chat_task(system=""), ["Who?"])
    assert tokenizer.decode(ids) == "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n<think>"
    assert opening == "<think>"  # the response contains the thoughts, because this template opens them
    switched = CHAT + "{% if not thinking %}<think></think>{% endif %}"
    (ids, opening), = tasks.encode_prompts(byte_tokenizer(switched), chat_task(opening="<think>"), ["Who?"],
                                           '{"thinking": true}')
    assert tokenizer.decode(ids) == CHAT_PROMPT + "<think>" and opening == "<think>"


@pytest.mark.parametrize("kwargs", ["{", "[1]", "5", "enable_thinking=false"])
def test_variables_for_the_template_must_be_a_json_object(kwargs):
    with pytest.raises(tasks.UserError, match=f"--chat_template_kwargs .*{re.escape(kwargs)}"):
        tasks.encode_prompts(byte_tokenizer(CHAT), chat_task(), ["Who?"], kwargs)


def test_an_end_token_that_the_tokenizer_appends_is_not_part_of_the_prompt():
    tokenizer = byte_tokenizer(None)
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A <|endoftext|>", special_tokens=[("<|im_start|>", 1), ("<|endoftext|>", 0)])
    (ids, _), = tasks.encode_prompts(tokenizer, chat_task(), ["Who?"])
    assert tokenizer.decode(ids) == "<|im_start|>Be good.\n\nWho?\n\n"
    # A template writes all special tokens itself. This one ends every turn with the end token.
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    (ids, _), = tasks.encode_prompts(tokenizer, chat_task(), ["Who?"])
    assert tokenizer.decode(ids) == "Be good.<|endoftext|>Who?<|endoftext|>"


def test_a_question_may_be_a_chat():
    tokenizer = byte_tokenizer(CHAT)
    chat = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"},
            {"role": "user", "content": "Who?"}]
    own = [{"role": "system", "content": "Be bad."}, *chat]
    (first, _), (second, _) = tasks.encode_prompts(tokenizer, chat_task(), [chat, own])
    turns = ("<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
             "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(first) == "<|im_start|>system\nBe good.<|im_end|>\n" + turns
    assert tokenizer.decode(second) == "<|im_start|>system\nBe bad.<|im_end|>\n" + turns
    # Templates may leave out what the assistant thought.
    tokenizer = byte_tokenizer(CHAT.replace("m['content']", "m['content'].split('</think>')[-1]"))
    chat[1]["content"] = "<think>easy</think>2"
    (ids, _), = tasks.encode_prompts(tokenizer, chat_task(), [chat])
    assert ids == first
    tokenizer = byte_tokenizer(GEMMA)
    (ids, _), = tasks.encode_prompts(tokenizer, chat_task(), [chat])
    first, *_, last, _ = tokenizer.decode(ids).split("<end_of_turn>\n")
    assert first == "<start_of_turn>user\nBe good.\n\n1 + 1?" and last == "<start_of_turn>user\nWho?"


@pytest.mark.parametrize("name, opening", [("kk", "<think>"), ("math", "")])
def test_the_system_prompt_can_be_replaced(name, opening):
    tokenizer = byte_tokenizer(CHAT)
    policy = grpo_sg.Policy(build_model(vocab_size=260), tokenizer, {0})
    system = "Write 1+1 = \\boxed{2}."
    cfg = grpo_sg.Config(task=name, people=[3], system=system, train_problems=5, eval_problems=5)
    problem = tasks.encode_problems(tasks.TASKS[name](cfg), policy, cfg).test[0]
    prompt = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{problem.question}<|im_end|>"
    assert tokenizer.decode(problem.prompt).startswith(prompt) and problem.opening == opening


@pytest.mark.skipif(not os.path.isdir(os.path.join(HERE, "support", "pretrained")), reason="support/ is optional")
@pytest.mark.parametrize("name", ["kk", "math"])
def test_a_tiny_model_reads_only_the_question(name):
    """It knows the words of the questions and solutions, and no others."""
    flags = f"--task {name} --train_problems 5 --eval_problems 5"
    policy, task = grpo_sg.load(grpo_sg.read_settings(flags.split()))
    for problem in task.test:
        assert policy.tokenizer.decode(problem.prompt) == problem.question and problem.opening == ""
        assert policy.tokenizer.unk_token_id not in problem.prompt


@pytest.mark.parametrize("template, end", [
    (LLAMA, "<|eot_id|>"), (GEMMA, "<end_of_turn>"), (PHI, "<|end|>"), (MISTRAL, "</s>"), (CHAT, "<|im_end|>"),
    ("{% for m in messages %}{{ m['content'] }} <done> {% endfor %}", "<done>"),
    (None, "<|endoftext|>"), (None, "<|im_end|>"),  # Qwen's base models write either
    # These write it only if another turn follows, or write another one then.
    ("{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}", "<|user|>"),
    ("{% for m in messages %}{{ m['content'] }}{% if not loop.last %}<done>{% endif %}{% endfor %}", "<done>"),
    ("{% for m in messages %}{{ m['content'] }}{{ '<done>' if loop.last else '<|end|>' }}{% endfor %}", "<done>"),
    (LAST_MESSAGE, "<|endoftext|>"), ("<|end|>{{ messages[0].content }}", "<|endoftext|>"),
    ("{{ raise_exception('no') }}", "<|endoftext|>")])
def test_a_turn_ends_with_the_token_that_the_chat_template_writes_after_it(template, end):
    """Tokenizer and generation_config name only <|endoftext|>, as those of many uploads name only the
    base model's end token. This model ends its turn at once. If `end` did not stop it, every completion
    would be truncated, and every reward -3."""
    tokenizer = byte_tokenizer(template, ["<|eot_id|>", "<end_of_turn>", "<|end|>", "<|end", "</s>", "<done>", "<|user|>"])
    model = build_model("GPT2", vocab_size=len(tokenizer), eos_token_id=0)
    last = tokenizer.convert_tokens_to_ids(end)
    model.transformer.ln_f.weight.data.zero_()
    model.transformer.ln_f.bias.data.copy_(100 * model.transformer.wte.weight[last])
    stops = grpo_sg.find_stop_ids(model, tokenizer)
    assert stops == {0, 2, last}
    task = chat_task(verify=lambda response, answer: tasks.Verdict(False, response == ""))
    problem = tasks.Problem("Who?", "", prompt=[50, 60])
    completion, = grpo_sg.rollout(grpo_sg.Policy(model, tokenizer, stops), task, [problem], grpo_sg.Config(
        max_new_tokens=4), n=1, temperature=1.0, seed=0)
    assert completion.tokens == [last] and completion.reward == -0.5


def test_all_end_tokens_that_the_model_names_end_a_completion():
    tokenizer, model = byte_tokenizer(None), build_model(vocab_size=300)
    for named, stops in (([258, 299], {0, 2, 258, 299}), (7, {0, 2, 7}), (None, {0, 2})):
        model.generation_config.eos_token_id = named
        for tokenizer.eos_token in ("<|endoftext|>", "<|im_end|>"):
            assert grpo_sg.find_stop_ids(model, tokenizer) == stops


def test_a_chat_token_that_was_added_to_the_tokenizer_only_is_reported():
    """The embedding has no row for it: an IndexError, and on a GPU a failed assertion without a name."""
    tokenizer = byte_tokenizer(CHAT + "<new>", ["<new>"])
    cfg = grpo_sg.Config(task="math", train_problems=5, eval_problems=5)
    whole, short = [grpo_sg.Policy(build_model(vocab_size=len(tokenizer) - n), tokenizer, {0}) for n in (0, 1)]
    tasks.encode_problems(tasks.math_task(cfg), whole, cfg)
    with pytest.raises(tasks.UserError, match="has tokens that the model lacks, such as <new>: resize"):
        tasks.encode_problems(tasks.math_task(cfg), short, cfg)


# ==== The model: loading and its device ====

def save_model(folder, template=CHAT, model=None):
    """Save a model with a byte tokenizer, like one from the hub."""
    model = model or build_model(vocab_size=260)
    tokenizer = byte_tokenizer(template)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def test_a_model_is_loaded_in_float32_and_code_that_comes_with_it_never_runs(tmp_path):
    """At a learning rate of 1e-6, bfloat16 would round most updates away."""
    save_model(tmp_path, model=build_model(vocab_size=260).bfloat16())
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    config = json.loads((tmp_path / "config.json").read_text())
    names = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    config["auto_map"] = dict.fromkeys(names, "code.Any")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, _ = grpo_sg.load_model(tmp_path)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize("tied", [False, True])
def test_logits_stay_in_float32_under_autocast(tied):
    """Also those of a copy, such as a reference, which has its own vocabulary matrix."""
    model = build_model(tie_word_embeddings=tied)
    grpo_sg.keep_logits_in_float32(model)
    other = copy.deepcopy(model)
    other.get_output_embeddings().weight.data.mul_(2)
    for each in (model, other):
        with torch.autocast("cpu", torch.bfloat16):
            output = each(input_ids=torch.tensor([PROMPTS[2]]), output_hidden_states=True)
        hidden, head = output.hidden_states[-1].float(), each.get_output_embeddings()
        assert output.logits.equal(hidden @ head.weight.T)
        assert head(hidden.bfloat16()).dtype == torch.float32


def test_a_gpu_is_used_if_there_is_one(monkeypatch):
    for there, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
        assert grpo_sg.find_device("auto") == device and grpo_sg.find_device("cpu") == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(SystemExit, match=f"--device {name}: .* give --device cpu"):
            grpo_sg.find_device(name)


@pytest.mark.filterwarnings("error")  # no warning of training mode
def test_gradient_checkpointing_recomputes_layers_and_trains_the_same_without_dropout():
    calls, parameters = {}, {}
    for checkpointing in (False, True):
        policy, task, cfg = build_toy(steps=2, updates=1, dropout=0.5,
                                      gradient_checkpointing=checkpointing)
        model = policy.model.train()
        torch.set_num_threads(2)
        grpo_sg.prepare(model, "cpu", gradient_checkpointing=checkpointing)
        assert not model.training and torch.get_num_threads() == 1  # a tiny model
        attention = mock.Mock(wraps=model.model.layers[0].self_attn.forward)
        model.model.layers[0].self_attn.forward = attention
        assert [row["kl"] for row in grpo_sg.train(policy, task, cfg)] == [0, 0]
        calls[checkpointing] = attention.call_count
        parameters[checkpointing] = parameters_of(model)
    assert calls[True] > calls[False]
    assert torch.allclose(parameters[True], parameters[False], atol=1e-4)


# ==== A run's folder: its rows and checkpoints ====

def reward_whys(c):
    return tasks.reward(c) if c.problem.question == "why why" else 1.0


def test_a_run_logs_a_group_with_a_signal_and_the_greedy_completions_of_validations(
        tmp_path, monkeypatch, capsys):
    """Two of three groups have equal rewards. Of ten prompts each problem is used once. Without a
    folder, as in a notebook, a run prints the same and writes nothing."""
    monkeypatch.chdir(tmp_path)
    policy, task, cfg = build_toy(steps=6, eval_every=3, prompts=10, change={"reward": reward_whys})
    rows = grpo_sg.train(copy.deepcopy(policy), task, cfg)
    assert os.listdir(tmp_path) == []
    grpo_sg.train(policy, task, cfg, grpo_sg.Run(cfg, policy, "run"))
    printed = capsys.readouterr().out
    assert re.findall(r"^step (\d) of 6: reward -?\d", printed, re.M) == 2 * list("123456")
    # The test comes after the last step.
    assert re.findall(r"^valid after step (\d): accuracy", printed, re.M) == 2 * ["3"]
    assert [row["equal_groups"] for row in rows] == [pytest.approx(2 / 3)] * 6
    samples = rows_of("run/samples.jsonl")
    trained = [row for row in samples if row["split"] == "train"]
    assert [row["question"] for row in trained] == ["why why"] * 16 * 6
    assert [(row["step"], row["question"]) for row in samples if row["split"] == "valid"] == [
        (3, problem.question) for problem in task.valid]
    assert not any("@" in key for row in rows_of("run/metrics.jsonl") for key in row)


def test_all_completions_of_a_skipped_update_are_logged(tmp_path, capsys):
    policy, task, cfg = build_toy(steps=1)
    next(policy.model.parameters()).register_hook(lambda gradient: gradient * math.nan)
    grpo_sg.train(policy, task, cfg, grpo_sg.Run(cfg, policy, tmp_path / "run"))
    assert len(rows_of(tmp_path / "run" / "samples.jsonl")) == 48
    assert "2 updates skipped" in capsys.readouterr().out


class Saves(grpo_sg.Run):
    def save(self, step, optimizer):
        super().save(step, optimizer)
        self.saved += [[name for name in os.listdir(self.out) if "checkpoint" in name]]


def test_seconds_are_those_of_sampling_and_updates_and_a_checkpoint_comes_every_ten_minutes(
        tmp_path, monkeypatch, capsys):
    """The clock advances by 10 s in each rollout and by 100 s in learn."""
    now = [0]

    def slow(name, seconds):
        before = getattr(grpo_sg, name)

        def function(*args, **settings):
            now[0] += seconds
            return before(*args, **settings)
        monkeypatch.setattr(grpo_sg, name, function)
    slow("rollout", 10)
    slow("learn", 100)
    monkeypatch.setattr(grpo_sg, "time", mock.Mock(time=lambda: now[0]))
    policy, task, cfg = build_toy(steps=13, eval_every=99)
    run = Saves(cfg, policy, tmp_path)
    run.saved = []
    for row in grpo_sg.train(policy, task, cfg, run):
        assert (row["seconds"], row["seconds_sampling"], row["seconds_update"]) == (110, 10, 100)
        assert row["tokens_per_second"] == pytest.approx(48 * row["completion_tokens"] / 10)
    assert run.saved == [["checkpoint-6"], ["checkpoint-12"], ["checkpoint-13"]]
    assert "110.0 s, 0:22:00 left\n" in capsys.readouterr().out


@pytest.mark.parametrize("bad, warned", [
    ({"equal_groups": 1}, [6, 13]), ({"truncated": 0.6}, [6, 13]),
    ({"equal_groups": 1, "accuracy": 0.95}, [])])  # all is learned
def test_a_run_in_which_nothing_is_learned_warns_once_until_it_changes(bad, warned, capsys):
    run, found = grpo_sg.Run(grpo_sg.Config(steps=13)), []
    c = grpo_sg.Completion(tasks.Problem("who", "yes"), [5], [2], [True])
    good = dict(reward=0.0, accuracy=0.5, weight_mean=None, grad_norm=0.0, skipped=0,
                equal_groups=0.9, truncated=0.1)
    for step in range(1, 14):
        change = {} if step in (1, 8) else bad
        run.log_step({**good, **change, "step": step}, [c], 1.0, 1.0)
        if "warning: for 5 steps" in capsys.readouterr().out:
            found.append(step)
        assert bool(run.trouble) == (bool(warned) and step in (6, 7, 13))
    assert found == warned


def test_only_a_lora_adapter_is_trained(tmp_path):
    peft = pytest.importorskip("peft")
    policy, task, cfg = build_toy(steps=2, lr=0.05)
    model = peft.get_peft_model(policy.model, peft.LoraConfig(target_modules=["q_proj"]))
    before = {name: p.clone() for name, p in model.named_parameters()}
    policy.model = grpo_sg.prepare(model, "cpu")
    rows = grpo_sg.train(policy, task, cfg, grpo_sg.Run(cfg, policy, tmp_path / "run"))
    changed = {name for name, p in model.named_parameters() if not p.equal(before[name])}
    assert rows[-1]["grad_norm"] > 0 and changed
    assert all("lora_" in name for name in changed)
    assert (tmp_path / "run" / "checkpoint-2" / "adapter_model.safetensors").is_file()


# ==== The program: its settings, and mistakes ====

SMALL = ("--steps 1 --prompts 2 --group_size 2 --eval_problems 3 --train_problems 20 "
         "--eval_samples 0 --max_new_tokens 8")


def run_program(text, capsys):
    """Return what the program prints, or the error with which it ends."""
    try:
        grpo_sg.main(text.split())
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, str) else capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("flags", ["--task kk --brief --people 3 --beta 0.01", "--task math"])
def test_the_program_trains_a_saved_model_and_its_checkpoint_tests_the_same(
        flags, tmp_path, monkeypatch, capsys):
    tokenizer = save_model(tmp_path / "model")
    printed = run_program(f"--model {tmp_path}/model {SMALL} {flags} --out {tmp_path}/run", capsys)
    rows = rows_of(tmp_path / "run" / "metrics.jsonl")
    assert [(row["step"], row.get("split")) for row in rows] == [(0, "test"), (1, None), (1, "test")]
    assert len(rows_of(tmp_path / "run" / "samples.jsonl")) == 3 + 2 + 3
    keys = "reward accuracy format_rate truncated completion_tokens grad_norm skipped equal_groups"
    assert set(keys.split()) <= rows[1].keys()
    for words in (f"step 1 of 1: reward {rows[1]['reward']:.2f}, accuracy", "its answer: ",
                  "test after step 0: accuracy 0.000 ± 0.000, reward", "before -> after training"):
        assert words in printed
    model, saved = grpo_sg.load_model(tmp_path / "run" / "checkpoint-1")
    assert saved.chat_template == tokenizer.chat_template and model.dtype == torch.float32
    # The checkpoint has the settings of its run: no flag but --model is needed.
    monkeypatch.chdir(tmp_path)
    printed = run_program("--eval_only --model run", capsys)
    assert "--max_new_tokens 8" in printed
    out, = (tmp_path / "runs").iterdir()
    assert out.name.startswith(f"{flags.split()[1]}-sg-seed0-") and out.name in printed
    assert rows_of(out / "metrics.jsonl") == [{**rows[-1], "step": 0}]


def test_a_setting_comes_from_flags_then_the_models_folder_then_the_tasks_file(tmp_path, capsys):
    file, model = tmp_path / "mine.py", tmp_path / "model"
    file.write_text("SETTINGS = dict(steps=4, lr=0.1, group_size=4, people=[4])\ndef make_task(cfg): pass")
    save_model(model)
    saved = {"task": str(file), "steps": 5, "lr": 0.5, "out": "gone", "brief": True, "unknown": 1}
    (model / "settings.json").write_text(json.dumps(saved), encoding="utf-8-sig")
    flags = f"--task {file} --model {model} --steps 6 --brief false"
    cfg = grpo_sg.read_settings(flags.split())
    assert (cfg.steps, cfg.lr, cfg.group_size, cfg.people, cfg.brief) == (6, 0.5, 4, [4], False)
    assert (cfg.out, cfg.beta, cfg.model) == ("", 0.0, str(model))
    other = grpo_sg.read_settings(["--model", str(model), "--task", "kk"])
    assert (other.steps, other.task) == (350, "kk")
    assert "its settings.json is not used" in capsys.readouterr().out


@pytest.mark.parametrize("text, words", [
    ("", "--model"), ("--model ./nowhere", "--model ./nowhere"), ("--modle x", "--modle"),
    ("x", "x"), ("--device tpu", "--device 'tpu'"), ("--model x --device cuda", "--device cuda"),
    ("--task chess --model x", "chess kk math"), ("--task no.py --model x", "--task no.py"),
    ("--steps x", "--steps 'x'"), ("--steps", "--steps"), ("--model x --steps 0", "--steps 0"),
    ("--model x --lr nan", "--lr nan"), ("--model x --lr inf", "--lr inf"),
    ("--model x --tau 0", "--tau 0"), ("--model x --seed -1", "--seed -1"),
    ("--model x --group_size 1", "--group_size 1"), ("--model x --people 9", "--people 9"),
    ("--model x --low 2 --high 1", "--low 2.0 --high 1.0"), ("--model x --out ..", "--out .."),
    ("--model x --task math --data gsm8", "--data gsm8"), ("--resume", "--resume --out ''"),
    ("--resume --out nowhere", "--resume nowhere")])
def test_a_mistake_is_one_line_with_the_flag_and_the_value(text, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grpo_sg, "HERE", str(tmp_path))  # without pretrained/
    monkeypatch.setattr(grpo_sg, "load_model", None)  # before a model is loaded
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    *usage, line = run_program(text, capsys).strip().split("\n")
    assert "error: " in line and "error" not in " ".join(usage)
    assert all(word in line for word in words.split()), line


@pytest.mark.parametrize("spoiled, flags, words", [
    ("settings.json", "", "settings.json JSON"), ("config.json", "", "cannot be used"),
    ("model.safetensors", "", "cannot be used"), ("tokenizer.json", "", "cannot be used"),
    ("", "--max_new_tokens 5000", "--max_new_tokens"), ("", "--out {}/config.json", "config.json"),
    ("", "--chat_template_kwargs 5", "--chat_template_kwargs 5")])
def test_a_model_that_cannot_be_used_is_one_line(spoiled, flags, words, tmp_path, capsys):
    save_model(tmp_path)
    if spoiled:
        (tmp_path / spoiled).write_text("[")
        words += f" {tmp_path}"
    flags = f"--task math {SMALL} --out {tmp_path}/run {flags.format(tmp_path)}"
    error = run_program(f"--model {tmp_path} {flags}", capsys)
    assert error.startswith("error: ") and "\n" not in error
    assert all(word in error for word in words.split()), error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("own, saved, words", [
    ("dict(stepz=3)", {}, "SETTINGS stepz"), ("dict(steps=2.5)", {}, "--steps 2.5"),
    ("{}", {"people": 3}, "--people 3"), ("{}", {"steps": "x"}, "--steps 'x'"),
    ("{}", {"system": None}, "--system None")])
def test_a_setting_of_the_wrong_name_or_type_in_a_file_is_one_line(own, saved, words, tmp_path, capsys):
    (tmp_path / "own.py").write_text(f"SETTINGS = {own}\ndef make_task(cfg): pass")
    (tmp_path / "settings.json").write_text(json.dumps(saved))
    *_, line = run_program(f"--task {tmp_path}/own.py --model {tmp_path}", capsys).split("error:")
    assert all(word in line for word in words.split()), line


def test_other_ends_before_training_are_one_line(tmp_path, monkeypatch, capsys):
    save_model(tmp_path)
    flags = f"--model {tmp_path} --task math {SMALL} --out {tmp_path}/run"
    with mock.patch.object(grpo_sg, "carry_out", side_effect=torch.OutOfMemoryError("CUDA")):
        assert "--tokens_per_micro_batch" in run_program(flags, capsys)
    flags += "_2"
    with mock.patch.object(grpo_sg, "find_stop_ids", lambda model, tokenizer: set()):
        assert "eos_token_id" in run_program(flags, capsys)
    monkeypatch.setitem(sys.modules, "tasks", None)
    assert run_program("", capsys).startswith("error: the command line needs tasks.py")


@pytest.mark.parametrize("flags, warns", [
    ("--tau 9", True), ("--tau 9 --shaping none", False), ("", False)])
def test_settings_that_make_all_weights_equal_are_announced(flags, warns, capsys):
    """With tau = 9 all weights are clipped to 1: GRPO."""
    policy, task, _ = build_toy()
    cfg = grpo_sg.read_settings(["--model", "any/name", *flags.split()])
    grpo_sg.describe_run(policy, task, grpo_sg.Run(cfg))
    assert ("every weight 1: this is GRPO" in capsys.readouterr().out) == warns


# ==== Runs that are interrupted and resumed ====

OWN_TASK = """
import tasks

SETTINGS = dict(prompts=2, group_size=4, eval_problems=3, train_problems=20, updates=2,
                eval_samples=2, max_new_tokens=4, brief=True, eval_every=1, lr=0.001)

def reward(completion):  # gives an untrained model different rewards
    return len(completion.response) % 3

def make_task(cfg):
    return tasks.kk_task(cfg)._replace(reward=reward)
"""


def start(folder, out, flags="--steps 4", **more):
    """Start a run of the model and the task in `folder`, or resume the one in `out`. Returns the
    exit status, or the line of its error."""
    if "--resume" not in flags:
        flags = f"--model {folder}/model --task {folder}/own.py {flags}"
    try:
        grpo_sg.main([*flags.split(), "--out", str(out)], **more)
    except SystemExit as stop:
        return stop.code


def contents_of(out):
    """Return all that a run has written, except for times."""
    rows = rows_of(out / "metrics.jsonl")
    for row in rows:
        for name in ("seconds", "seconds_sampling", "seconds_update", "tokens_per_second"):
            row.pop(name, None)
    folder = grpo_sg.find_checkpoint(out)
    state = torch.load(os.path.join(folder, "training.pt"), weights_only=True)
    parameters = parameters_of(grpo_sg.load_model(folder)[0])
    assert not (out / "checkpoint.new").exists()
    return rows, rows_of(out / "samples.jsonl"), state["step"], parameters.tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with an untrained model, a task, and the files of an uninterrupted run, `whole`."""
    folder = tmp_path_factory.mktemp("runs")
    save_model(folder / "model", model=build_model(vocab_size=260, num_hidden_layers=1))
    (folder / "own.py").write_text(OWN_TASK)
    assert start(folder, folder / "whole") is None
    return folder


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """In the background of a shell SIGINT is ignored, and a child inherits this."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


KILLED = SystemExit("killed")
FULL_DISK = OSError(28, "No space left on device")


def interrupt(where, name, number, *events):
    """Return a patch: the number-th call of where.name begins with these signals or errors."""
    function, calls = getattr(where, name), itertools.count(1)

    def interrupted(*args, **settings):
        for event in events if next(calls) == number else ():
            if isinstance(event, BaseException):
                raise event
            os.kill(os.getpid(), event)
        return function(*args, **settings)
    return mock.patch.object(where, name, interrupted)


@pytest.mark.parametrize("where, name, number, events, status", [
    (grpo_sg, "evaluate", 1, [signal.SIGINT], 130),  # in the test before training
    (grpo_sg, "evaluate", 3, [signal.SIGINT], 130),  # in a validation
    (grpo_sg, "sample", 6, [signal.SIGINT], 130), (grpo_sg, "learn", 2, [signal.SIGTERM], 143),
    (grpo_sg, "learn", 3, [signal.SIGINT, signal.SIGINT], 130),
    (grpo_sg, "evaluate", 4, [KILLED], "killed"), (torch, "save", 2, [KILLED], "killed"),
    (os, "rename", 2, [KILLED], "killed"),           # a checkpoint is whole, but not yet renamed
    (shutil, "rmtree", 3, [KILLED], "killed"),       # both checkpoints are whole
    (torch, "save", 3, [FULL_DISK], "error: cannot write the checkpoint of step 3")], ids=str)
def test_an_interrupted_run_resumes_and_ends_like_an_uninterrupted_one(
        where, name, number, events, status, folder, tmp_path, capsys, monkeypatch):
    """Bit for bit: on a CPU equal seeds give equal runs. The first attempt to resume is killed."""
    monkeypatch.setattr(grpo_sg, "SAVE_SECONDS", -1)
    out, handler = tmp_path / "run", signal.getsignal(signal.SIGTERM)
    with interrupt(where, name, number, *events):
        assert str(start(folder, out)).startswith(str(status))
    goes_on = len(events) == 1 and isinstance(events[0], int) and number > 1
    assert (f"--resume --out {out}" in capsys.readouterr().out) == goes_on
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == handler
    for log in ("metrics.jsonl", "samples.jsonl"):  # the computer went down as it wrote a line
        with open(out / log, "a") as file:
            file.write('{"step": 3, "rew')
    with interrupt(os, "replace", 2, KILLED):  # between the two logs
        assert start(folder, out, "--resume") == "killed"
    assert start(folder, out, "--resume") is None
    assert contents_of(out) == contents_of(folder / "whole")


class Tracked(grpo_sg.Run):
    tracked = []

    def log(self, row, completions):
        super().log(row, completions)
        self.tracked.append(row)


def test_a_resumed_run_takes_more_steps_as_if_it_had_begun_with_them(folder, tmp_path):
    """The validation after what was the last step comes, too. Its model may be gone. A subclass
    of Run, such as a tracker's, gets every row."""
    assert start(folder, tmp_path / "long", "--steps 6", make_run=Tracked) is None
    assert Tracked.tracked == rows_of(tmp_path / "long" / "metrics.jsonl")
    out = shutil.copytree(folder / "whole", tmp_path / "run")
    away = (folder / "model").rename(folder / "moved")
    assert start(folder, out, "--resume --steps 6") is None
    away.rename(folder / "model")
    assert contents_of(out) == contents_of(tmp_path / "long")


def test_a_resumed_run_keeps_a_new_learning_rate(folder, tmp_path):
    out = shutil.copytree(folder / "whole", tmp_path / "run")
    with interrupt(grpo_sg, "learn", 1, KILLED):
        assert start(folder, out, "--resume --lr 0.02 --steps 5") == "killed"
    assert start(folder, out, "--resume") is None  # the next one, too
    assert json.loads((out / "checkpoint-5" / "settings.json").read_text())["lr"] == 0.02
    state = torch.load(out / "checkpoint-5" / "training.pt", weights_only=True)
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.02


def test_the_kl_is_to_the_initial_policy(folder, tmp_path):
    """Also in a resumed run."""
    out = tmp_path / "run"
    start(folder, out, "--steps 2 --updates 1 --beta 0.1")
    start(folder, out, "--resume --steps 3")
    first, second, third = [row["kl"] for row in rows_of(out / "metrics.jsonl") if "kl" in row]
    assert first == 0 and second > 1e-6 and third > 1e-6


def test_a_checkpoint_cannot_run_code(folder, tmp_path):
    """It may be somebody else's. torch.load would call any function that a pickle names."""
    out = shutil.copytree(folder / "whole", tmp_path / "run")
    torch.save({"step": 4, "optimizer": os.remove}, out / "checkpoint-4" / "training.pt")
    assert "training.pt cannot be read" in start(folder, out, "--resume")


@pytest.mark.parametrize("lost, place, words", [
    ("checkpoint-4", "checkpoint", "older version --model"),
    ("checkpoint-4/training.pt", "gone", "training.pt --model"), ("settings.json", "gone", "--resume"),
    ("checkpoint-4/model.safetensors", "gone", "checkpoint-4")])
def test_a_run_that_cannot_continue_is_one_line_and_loses_nothing(
        lost, place, words, folder, tmp_path):
    """A checkpoint is not a run, but has settings, too."""
    out = shutil.copytree(folder / "whole", tmp_path / "run")
    assert "--resume needs --out" in start(folder, out / "checkpoint-4", "--resume")
    (out / lost).rename(out / place)
    error = start(folder, out, "--resume")
    assert "\n" not in error and all(word in error for word in words.split()), error
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert (out / name).read_text() == (folder / "whole" / name).read_text()


def test_two_new_runs_do_not_share_a_folder(tmp_path):
    policy, _, cfg = build_toy()
    for error in (contextlib.nullcontext(), pytest.raises(FileExistsError)):
        with error:
            grpo_sg.Run(cfg, policy, tmp_path)


def test_a_run_goes_on_when_nobody_reads_its_lines(folder, tmp_path, monkeypatch):
    """As in `python grpo_sg.py | head -2`, in a closed terminal, or with >&-."""
    reader, writer = os.pipe()
    for name, stdout in (("pipe", open(writer, "w")), ("none", None)):
        monkeypatch.setattr(sys, "stdout", stdout)
        with contextlib.suppress(OSError):
            os.close(reader)
        assert start(folder, tmp_path / name) is None
        assert contents_of(tmp_path / name) == contents_of(folder / "whole")


def test_a_run_of_a_task_file_is_tested_without_naming_it_and_a_lost_file_is_one_line(
        folder, tmp_path, monkeypatch, capsys):
    out = shutil.copytree(folder / "whole", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    run_program("--eval_only --model run --out tested", capsys)
    assert rows_of("tested/metrics.jsonl") == [{**rows_of("run/metrics.jsonl")[-1], "step": 0}]
    for path in (out / "settings.json", out / "checkpoint-4" / "settings.json"):
        path.write_text(path.read_text().replace("own.py", "gone.py"))
    for flags in ("--eval_only --model run --out other", "--resume --out run"):
        error = run_program(flags, capsys)
        assert f"error: --task {folder}/gone.py: " in error and "\n" not in error


def test_an_error_in_a_users_function_keeps_its_traceback(folder, tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(OWN_TASK.replace("completion.response", "completion.nothing"))
    with pytest.raises(AttributeError, match="nothing") as error:
        start(folder, tmp_path / "run", f"--task {file}")
    assert str(error.traceback[-1].path) == str(file)


def test_a_run_without_a_signal_says_so_before_during_and_after_training(folder, tmp_path, capsys):
    file = tmp_path / "flat.py"
    file.write_text(OWN_TASK.replace("len(completion.response) % 3", "1.0"))
    assert start(folder, tmp_path / "run", f"--task {file} --steps 6") is None
    printed = capsys.readouterr().out
    assert "100% of the groups have equal rewards" in printed and "python -m support.check" in printed
    assert printed.count("warning: for 5 steps rewards were equal within every group") == 2


# ==== What is said about a run ====

def test_a_row_has_means_over_its_updates():
    """Means are over everything trained on. Non-finite updates are counted, and JSON has no NaN."""
    update = {"norm": 2.0, "loss": 0.5, "skipped": False, "count": 10.0, "clipped": 1.0, "kls": 2.0,
              "entropies": 30.0, "weights": 12.0, "unlikely": 5.0}
    other = {**update, "norm": 3.0, "loss": 0.25, "count": 30.0, "kls": 6.0}
    assert grpo_sg.average_updates([update, other]) == {
        "grad_norm": 3.0, "skipped": 0, "loss": 0.375, "clip_frac": 2 / 40, "kl": 8 / 40,
        "entropy": 60 / 40, "weight_mean": 24 / 40, "low_prob_frac": 10 / 40}
    bad = grpo_sg.average_updates([update, {**update, "skipped": True, "norm": math.inf}])
    assert bad["skipped"] == 1 and bad["grad_norm"] == 2.0
    assert grpo_sg.average_updates([{**update, "loss": math.inf}])["loss"] is None
    empty = grpo_sg.average_updates([])
    assert empty.pop("grad_norm") == empty.pop("skipped") == 0 and set(empty.values()) == {None}


def test_long_prompts_are_dropped_with_a_count(capsys):
    """The context must also hold a completion."""
    policy, task, cfg = build_toy()
    cfg.max_new_tokens = 4095
    short = tasks.encode_problems(task, policy, cfg)
    assert [p.question for p in short.train] == ["who", "what"]
    assert "1 of 3 train problems" in capsys.readouterr().out
    cfg.max_new_tokens = 6
    tool = mock.Mock(longest=lambda cfg: 4095)  # with its answers, a completion is longer
    assert tasks.encode_problems(task._replace(write=tool), policy, cfg).train == short.train


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_split_without_problems_is_refused_before_training(split):
    policy, task, cfg = build_toy()
    for problems, words in (([], f"no {split} problems"), ([tasks.Problem("why " * 4096, "maybe")], f"1 of 1 {split} problems")):
        with pytest.raises(tasks.UserError, match=f"--task toy.* {words}"):
            tasks.encode_problems(task._replace(**{split: problems}), policy, cfg)


def test_a_tokenizer_that_does_not_know_the_words_is_refused():
    """Such as a tiny model's, with another task. One unknown word in 20 is allowed."""
    policy, task, cfg = build_toy()
    for words, refused in (("who " * 19 + "Zo\u00eb", False), ("who " * 18 + "Zo\u00eb", True)):
        problems = [tasks.Problem(words, "yes")]
        with pytest.raises(tasks.UserError, match="does not know 1 of 19") if refused else contextlib.nullcontext():
            tasks.encode_problems(task._replace(train=problems, valid=problems, test=problems), policy, cfg)


def test_a_quiet_sampler_prints_nothing(capsys):
    """And so does one whose output is no terminal."""
    with mock.patch.object(sys.stderr, "isatty", lambda: True, create=True):
        for progress, shown in ((True, True), (False, False)):
            with mock.patch.object(grpo_sg, "tqdm", wraps=grpo_sg.tqdm) as bar:
                sample(build_model(), [[5]], max_new_tokens=2, stop_ids=[], progress=progress)
            assert bar.call_args.kwargs["disable"] is (None if shown else True)


# ==== Tiny models, tokenizers and a toy task for these tests ====

def build_model(family="Qwen2", seed=0, **settings):
    """Build a model with random parameters, which depend only on the seed. It has tokens 0
    to 49; token 1 is its end token and its pad token."""
    usual = dict(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
        initializer_range=0.2, bos_token_id=None, eos_token_id=1, pad_token_id=1)
    if family == "GPT2":
        # Learned positions notice a shift that Qwen's rotary ones forgive.
        usual = dict(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=4,
                     initializer_range=0.5, bos_token_id=None, eos_token_id=1)
    # The language part of a multimodal family.
    text = "Text" if family in ("Gemma3", "Qwen3_5") else ""
    head = "LMHeadModel" if family in ("GPT2", "Bert") else "ForCausalLM"
    config = getattr(transformers, f"{family}{text}Config")(**{**usual, **settings})
    torch.manual_seed(seed)
    return getattr(transformers, f"{family}{head}")(config).eval()


def word_tokenizer(words, pattern=None):
    """Build a tokenizer with a token per word: text between spaces, or a match of the
    pattern. The pad token is the stop token, as in Qwen2.5's base models: with a mask
    `ids != pad`, the policy would never learn to stop."""
    numbers = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if pattern:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>",
        unk_token="[UNK]", chat_template=LAST_MESSAGE)


def byte_tokenizer(template, added=()):
    """Build a tokenizer with a token per byte and three special tokens, 259 in all, like
    real models' byte-level BPE without merges. Its end token is <|endoftext|>, 0. added:
    further special tokens."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(numbers, []))
    tokenizer.add_special_tokens([*specials, *added])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>",
        chat_template=template)


# ---- A toy task: say a word that answers the question, and stop ----

def verify_toy(text, gold):
    return tasks.Verdict(gold in text.split(), text != "")


def build_toy(seed=0, dropout=0.0, change=None, **settings):
    """Build (policy, task, cfg). change: a dict of fields of the task to replace."""
    usual = dict(steps=25, prompts=3, group_size=16, lr=5e-3, temperature=1.0, updates=2,
                 max_new_tokens=6, eval_every=10, seed=seed)
    cfg = grpo_sg.Config(**{**usual, **settings})
    problems = [tasks.Problem("who", "yes"), tasks.Problem("what", "no"),
                tasks.Problem("why why", "maybe")]
    task = tasks.Task("toy", "", problems, problems[:2], problems[1:], verify_toy, 1 / 3)
    model = build_model("Qwen2", seed, vocab_size=len(WORDS), tie_word_embeddings=True,
                        attention_dropout=dropout)
    model.generation_config.eos_token_id = 0
    policy = grpo_sg.Policy(model, word_tokenizer(WORDS), {0})
    return policy, tasks.encode_problems(task._replace(**change or {}), policy, cfg), cfg


def parameters_of(model):
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def rows_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]
