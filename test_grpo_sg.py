"""Tests of grpo_sg.py and tasks.py: offline, on a CPU, in any order.

The first part is a lesson. It compares each piece of the algorithm with a slow version of itself,
made of loops, or shows what would go wrong without it. A message says what was found and what was
expected. The other tests cover training, corner cases, the tasks and the program. The models that
they use, at the end of the file, are tiny, random and made here.

    python -m pytest -q test_grpo_sg.py                        all of it, on grpo_sg.py
    OF=lesson.exercises python -m pytest -q test_grpo_sg.py    the lesson, on your own functions

The heading of each section of the lesson begins with the function that it tests: lesson/progress.py
reads it.
"""
import importlib
import inspect
import itertools
import json
import math
import operator
import os
import random
import re
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
from grpo_sg import sample

torch.set_num_threads(1)

# The module whose functions the lesson tests.
GRADED = importlib.import_module(os.environ.get("OF", "grpo_sg"))
token_weights = GRADED.token_weights
group_advantages = GRADED.group_advantages
grpo_sg_loss = GRADED.grpo_sg_loss
token_logps = GRADED.token_logps
draw = GRADED.draw
pass_at_k = GRADED.pass_at_k
make_batch = GRADED.make_batch
learn = GRADED.learn

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
    given = torch.tensor([rewards for rewards, _ in GROUPS])
    found = group_advantages(given)
    same("rewards after the call", given, [rewards for rewards, _ in GROUPS],
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
    found = []
    for outside in (0.0, math.nan):
        logps, old, ref, A, mask, w = batch(outside=outside)
        A = A[:, None].expand(logps.shape).masked_fill(~mask, outside)
        logps.requires_grad_()
        loss, _ = grpo_sg_loss(logps, old, A, mask, weights=w, ref_logps=ref, beta=beta,
                               loss_agg_mode=mode)
        loss.backward()
        found.append((loss, logps.grad))
    (loss, gradient), (loss_with_nan, gradient_with_nan) = found
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
    assert batch.mask.dtype == torch.bool, f"mask is {batch['mask'].dtype}, expected torch.bool"
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
    given = completions.copy()
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
    assert all(map(operator.is_, completions, given)), (
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


LESSON = {name for name in globals() if name.startswith("test_")}  # the lesson ends here


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
    problems = grpo_sg.encode_problems(task, policy, cfg).train
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


def test_a_truncated_completion_is_badly_formed():
    """It has no stop token. Rewards: +3 right, -0.5 wrong, -3 badly formed."""
    _, completions, _ = rolled()
    for c in completions:
        c.reward = tasks.reward(c)
    assert {c.truncated for c in completions} == {True, False}
    for c in completions:
        assert c.truncated == (c.tokens[-1] != 0) and not (c.truncated and c.formatted)
        assert c.reward == (-3 if not c.formatted else 3 if c.correct else -0.5)


def test_an_update_clips_on_both_sides_where_its_settings_say():
    found = [stepped(*rolled(updates=3, clip_low=low, clip_high=high))[0]["clip_frac"]
             for low, high in ((9, 9), (9, 1e-4), (1e-4, 9))]
    assert found[0] == 0 and min(found[1:]) > 0


def test_training_raises_the_reward_and_logs_its_rows(tmp_path):
    policy, task, cfg = build_toy()
    run = grpo_sg.Run(cfg, policy, tmp_path / "run")
    grpo_sg.train(policy, task, cfg, run)
    rewards = [row["reward"] for row in run.rows]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:3]) / 3 + 2 and len(rewards) == 25
    assert run.rows[0]["weight_mean"] > 1
    samples = rows_of(tmp_path / "run" / "samples.jsonl")
    assert len({row["question"] for row in samples[::cfg.group_size] if row["split"] == "train"}) == 3
    assert [(row["step"], row["question"]) for row in samples if row["split"] == "valid"] == [
        (step, problem.question) for step in (10, 20) for problem in task.valid]  # and never the test's


def test_without_a_folder_training_writes_nothing(tmp_path, monkeypatch):
    """As in a notebook. Without a weight, its mean is 1."""
    monkeypatch.chdir(tmp_path)
    policy, task, cfg = build_toy(steps=2, eval_every=1, shaping="none")
    rows = grpo_sg.train(policy, task, cfg)
    assert [row["weight_mean"] for row in rows] == [1, 1]
    assert os.listdir(tmp_path) == []


# ==== Corner cases of the algorithm ====

def test_a_large_offset_of_the_rewards_changes_nothing():
    rewards = torch.tensor([[0.0, 1.0, 1.0, 3.0]], dtype=torch.float64)
    assert grpo_sg.group_advantages(rewards + 1e9).equal(grpo_sg.group_advantages(rewards))


def test_a_random_number_rounded_up_to_1_draws_the_last_token():
    assert grpo_sg.draw(torch.zeros(2, 5), torch.ones(2, 1), 1.0).tolist() == [[4], [4]]


@pytest.mark.parametrize("n, c, k", [(4, 5, 2), (4, -1, 2), (4, 2, 5), (4, 2, 0)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(AssertionError, match=f"not n={n}, c={c}, k={k}"):
        grpo_sg.pass_at_k(n, c, k)


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
        x, y, a = logps.to(dtype), old.to(dtype), A if dtype == torch.bfloat16 else A.double()
        expected = slow_loss(x.double(), y.double(), a, mask, w, ref)
        assert grpo_sg_loss(x, y, a, mask, weights=w)[0].item() == pytest.approx(expected.item(), rel=rel)
    assert grpo_sg_loss(logps, old, A, torch.zeros_like(mask))[0] == 0


def test_the_entropy_of_many_tokens_does_not_overflow_in_float16():
    """131,072 tokens of 2 nats sum to more than float16 can hold."""
    logps = torch.full((64, 2048), -2.0)
    _, sums = grpo_sg_loss(logps, logps.half(), torch.zeros(64), torch.ones_like(logps))
    assert sums["entropies"].item() / sums["count"].item() == pytest.approx(2.0)


@pytest.mark.parametrize("change", [
    {"weights": torch.ones(4)}, {"ref_logps": torch.zeros(4, 6)}, {"advantages": torch.ones(7)},
    {"beta": 0.1}, {"mask": torch.ones(1, 7)}, {"loss_agg_mode": "mean"},
    {"logps": torch.zeros(7)}, {"logps": torch.zeros(5, 7, 2)}])
def test_the_loss_refuses_shapes_that_do_not_fit(change):
    """Broadcasting would silently compute a wrong loss."""
    logps, old, _, A, mask, _ = batch()
    given = dict(logps=logps, old_logps=old, advantages=A, mask=mask)
    with pytest.raises(AssertionError):
        grpo_sg_loss(**{**given, **change})


@pytest.mark.parametrize("shape, mask, temperature, message", [
    ((1, 3), [[False, True]], 1, r"mask \(1, 2\), ids \(1, 3\)"),
    ((1, 2), [[True, True]], 1, "the first token of a row has no context"),
    ((1, 2), [[False, True]], 0, "the temperature must be above 0")])
def test_log_probabilities_refuse_arguments_that_do_not_fit(shape, mask, temperature, message):
    ids = torch.ones(shape, dtype=torch.long)
    with pytest.raises(AssertionError, match=message):
        grpo_sg.token_logps(None, ids, torch.tensor(mask), temperature=temperature)


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


def test_equal_prompts_are_prefilled_once(monkeypatch):
    """Whether they are n completions of a prompt or several equal prompts."""
    model, read = build_model(), []
    forward = model.forward

    def watched(**given):
        read.append(len(given["input_ids"]))
        return forward(**given)
    monkeypatch.setattr(model, "forward", watched)
    more = dict(max_new_tokens=3, stop_ids=[], temperature=1.0)
    once = sample(model, PROMPTS, n=4, generator=torch.Generator().manual_seed(0), **more)
    repeated = [p for p in PROMPTS for _ in range(4)]
    each = sample(model, repeated, generator=torch.Generator().manual_seed(0), **more)
    assert once == each and read == [3, 12, 12] * 2


def check_seeds(policy, task, cfg):
    """Assert that a rollout depends on the seed, and not on how many completions are sampled at
    once. Returns the last rollout."""
    found = []
    for size, seed in ((64, 1), (64, 1), (16, 1), (1, 1), (64, 2)):
        cfg.sample_batch = size
        rolled = grpo_sg.rollout(policy, task, task.train, cfg, n=16, temperature=1.0, seed=seed)
        found.append([(c.tokens, c.mask) for c in rolled])
    assert found[0] == found[1] == found[2] == found[3] != found[4]
    return rolled


def test_a_rollout_depends_only_on_the_seed():
    check_seeds(*build_toy())


def test_an_evaluation_counts_and_gives_standard_errors_over_problems():
    policy, task, cfg = build_toy()
    problems = task.train * 40
    row, greedy = grpo_sg.evaluate(policy, task, problems, cfg, samples=2)
    drawn = grpo_sg.rollout(policy, task, problems, cfg, n=2, temperature=1.0, seed=cfg.seed)
    solved = torch.tensor([float(c.solved) for c in drawn]).view(-1, 2)
    rewards = torch.tensor([c.reward for c in drawn]).view(-1, 2)
    means = {"accuracy": torch.tensor([float(c.solved) for c in greedy]),
             "reward": torch.tensor([c.reward for c in greedy]),
             "avg@2": solved.mean(1), "reward@2": rewards.mean(1), "pass@2": solved.amax(1)}
    for key, each in means.items():
        assert row[f"eval/{key}"] == pytest.approx(each.mean().item())
        error = each.std(correction=1).item() / 120 ** 0.5
        assert row[f"eval/{key}_se"] == pytest.approx(error, abs=1e-6)
    assert 0 < row["eval/avg@2"] < row["eval/pass@2"]
    assert row["eval/truncated@2"] == pytest.approx(sum(c.truncated for c in drawn) / 240)
    assert row["eval/format_rate@2"] == pytest.approx(sum(c.formatted for c in drawn) / 240)
    equal = (rewards[:, 0] == rewards[:, 1]).float().mean().item()
    assert row["eval/equal_groups@2"] == pytest.approx(equal) and 0 < equal < 1
    one, _ = grpo_sg.evaluate(policy, task, problems[:1], cfg)
    assert one["eval/accuracy_se"] is None  # one problem has no standard error
    assert not any("@" in key for key in one)  # by default nothing is sampled
    row = {}
    grpo_sg.add_mean(row, "two", [0.0, 1.0])
    assert row == {"two": 0.5, "two_se": pytest.approx(0.5)}


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


def test_a_temperature_below_0_is_refused():
    with pytest.raises(AssertionError, match="the temperature must not be below 0: -1"):
        sample(build_model(), [[1]], max_new_tokens=2, stop_ids=[], temperature=-1)


@pytest.mark.filterwarnings("error")  # no warning in eval mode
def test_a_model_in_training_mode_is_refused_or_warned_of():
    model = build_model().train()
    with pytest.raises(AssertionError, match="call model.eval"):
        sample(model, [[1]], max_new_tokens=2, stop_ids=[])
    given = torch.tensor([[1, 2]]), torch.tensor([[False, True]])
    with pytest.warns(UserWarning, match="the model is in training mode"):
        grpo_sg.token_logps(model, *given)
    grpo_sg.token_logps(model.eval(), *given)


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


def test_gradient_checkpointing_recomputes_layers_and_gives_the_same_update():
    calls, parameters = {}, {}
    for checkpointing in (False, True):
        policy, completions, cfg = rolled(updates=1, gradient_checkpointing=checkpointing)
        grpo_sg.prepare(policy.model, "cpu", gradient_checkpointing=checkpointing)
        calls[checkpointing] = 0
        attention = policy.model.model.layers[0].self_attn
        before = attention.forward

        def forward(*given, **named):
            calls[checkpointing] += 1
            return before(*given, **named)
        attention.forward = forward
        _, parameters[checkpointing] = stepped(policy, completions, cfg)
    assert calls[True] == 2 * calls[False] > 0
    assert torch.allclose(parameters[True], parameters[False], atol=1e-6)


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


def test_a_non_finite_update_is_skipped():
    policy, completions, cfg = rolled(updates=2)
    before = parameters_of(policy.model)
    advantages = [c.advantage for c in completions]
    for c in completions:
        c.advantage *= math.nan
    row, after = stepped(policy, completions, cfg)
    assert row["skipped"] == 2 and row["loss"] is None and row["grad_norm"] == 0
    assert torch.equal(before, after)
    for c, A in zip(completions, advantages):
        c.advantage = A
    completions[0].advantage = math.inf
    row, after = stepped(policy, completions, cfg)
    assert row["skipped"] == 1 and after.isfinite().all() and not torch.equal(before, after)


# ==== Knights and Knaves, sums and products ====

ROLES = {"Mira": "knight", "Tobias": "knave", "Zo\u00eb": "knight"}
GOOD = "Mira is a knight, Tobias is a knave, Zo\u00eb is a knight"
ROLE_NAMES = ("knight", "knave")


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
    found = {split: tasks.kk_split(split, 100, [3], seed)
             for split, seed in (("train", 0), ("valid", 1), ("test", 0))}
    sets = {split: {meaning(problem) for problem in problems} for split, problems in found.items()}
    assert not any(a & b for a, b in itertools.combinations(sets.values(), 2))
    assert len(sets["test"]) == 100 and len({problem.question for problem in found["train"]}) == 100
    assert tasks.kk_split("test", 5, [3, 4], 0) == tasks.kk_split("test", 10, [3, 4], 0)[:5]
    assert tasks.kk_split("train", 5, [3], 0) != tasks.kk_split("train", 5, [3], 1)
    rng = random.Random(0)
    assert len({tasks.kk_puzzle(2, rng).meaning for _ in range(3000)}) == 41  # all there are, of two people
    assert 200 < len(tasks.kk_split("train", 1000, [2], 0, brief=True)) < 1000  # it ends


def test_other_sizes_fill_up_a_size_without_more_puzzles(capsys):
    sizes = [len(problem.answer) for problem in tasks.kk_split("test", 20, [2, 3], 0)]
    assert (sizes.count(2), sizes.count(3)) == (3, 17) and capsys.readouterr().out == ""
    assert len(tasks.kk_split("test", 20, [2], 0)) == 3
    assert capsys.readouterr().out == "only 3 of 20 test puzzles: there are no others with 2 people\n"


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
    task = tasks.math_task(grpo_sg.Config(task="math", train_problems=2000, eval_problems=5))
    for problem in task.train[:200]:
        a, sign, b = re.fullmatch(r"(\d+)([+*])(\d+)", problem.question).groups()
        assert problem.answer == str(int(a) + int(b) if sign == "+" else int(a) * int(b))
        columns = re.findall(r"(\d)([+*])(\d)=(\d\d)\+(\d)=(\d\d)", problem.solution)
        assert len(columns) == 3 and task.verify(problem.solution, problem.answer) == (True, True)
        for (x, sign, y, alone, carry, result), (*_, before) in zip(columns, [("0", "00"), *columns]):
            assert int(alone) == (int(x) + int(y) if sign == "+" else int(x) * int(y))
            assert int(result) == int(alone) + int(carry) and carry == before[0]


def test_arithmetic_splits_share_no_operands():
    pairs = {}
    for split, count in (("train", 6000), ("valid", 2000), ("test", 2000)):
        problems = tasks.arithmetic_split(split, count, 3)
        pairs[split] = [frozenset(re.findall(r"\d+", problem.question)) for problem in problems]
    assert not any(set(a) & set(b) for a, b in itertools.combinations(pairs.values(), 2))
    assert len(set(pairs["test"])) == 2000 and tasks.arithmetic_split("test", 50, 3) == problems[:50]


# ==== Plain numbers, and data from files and the hub ====

EQUAL = ["5 5", "5. 5", "+5 5", "-5 -5", "033 33", "142.0 142", ".5 0.5", "0.75 3/4", "3/4 0.75",
         "1,234 1234", "$18 18", "-$18 -18", "50% 50", "50\\% 0.5", "0.5 50%", "90^\\circ 90", "90° 90",
         "\\frac{3}{4} 3/4", "\\dfrac{3}{4} 0.75", "-\\frac{1}{2} -1/2", "$5$ 5", "\\$18 18", "90^{\\circ} 90",
         "90^{\\circ} 90^\\circ", "\\frac{-1}{2} -0.5", "1{,}234 1234", "1,\\!234 1,234", "1\\,234\\,567 1234567",
         "\u22125 -5", "\\text{5} 5", "$-\\$5$ -5"]
UNEQUAL = ["5 6", "5 -5", "6/8 3/4", "5/1 5", "1/0 1", "1/0 0", "12,34 1234", "1,2345 12345", "5 50%", "5% 500",
           "0.333333 1/3", "x=5 5", "5+0 5", "347*6 2082", "2^3 8", "5e0 5", "٥ 5", "5_0 50", "5! 120",
           "!=5 5", "1/2/1 1/2", "%5 5", "-+5 -5", "5%% 5", "5..0 5", "1.2.3 1.2", "\\frac{6}{8} 3/4", "{5} 5",
           "-\\frac{-1}{2} 0.5", "\\frac{2}{-4} -0.5", "12{,}34 1234", "1,234{,}567 1234567", "1{,}2345 12345", "\\text{5}6 56", "$5 50%"]


@pytest.mark.parametrize("pair", EQUAL)
def test_equal_plain_numbers(pair):
    assert tasks.plain_equal(*pair.split())


@pytest.mark.parametrize("pair", UNEQUAL)
def test_what_is_no_plain_number_or_another_one_equals_nothing(pair):
    assert not tasks.plain_equal(*pair.split())
    assert not tasks.plain_equal("", "") and not tasks.plain_equal("9" * 501, "9" * 501)


def test_a_file_of_problems_and_what_is_held_out(tmp_path, capsys):
    for name, count in (("train", 40), ("test", 8)):
        rows = [{"question": f"{name} {i}?", "answer": [i, "x y z \\in"]} for i in range(count)]
        rows += [{"question": "both?", "answer": "1"}, {"question": "none?", "answer": ""}]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    task = tasks.math_task(grpo_sg.Config(task="math", data=str(tmp_path / "train.jsonl"),
                                          eval_data=str(tmp_path / "test.jsonl")))
    assert [len(task.train), len(task.valid), len(task.test)] == [36, 4, 9]
    asked = {split: {p.question for p in getattr(task, split)} for split in ("train", "valid", "test")}
    assert not asked["train"] & asked["valid"] and not (asked["train"] | asked["valid"]) & asked["test"]
    printed = capsys.readouterr().out
    assert "dropped 1 of 42 problems" in printed and "removed 1 training problems that occur in" in printed


@pytest.mark.parametrize("settings, message", [
    (dict(data="gsm8"), "--data gsm8 is not one of synthetic, gsm8k, math, deepscaler, or a file"),
    (dict(data="no.jsonl"), "has no test problems"), (dict(eval_data="no.jsonl"), "cannot read no.jsonl"),
    (dict(task="kk", data="gsm8k"), "--data gsm8k is not one of"), (dict(task="kk", people=[9]), "2 to 8"),
    (dict(task="kk", brief=True, data="published"), "has stories")])
def test_data_that_does_not_exist_is_refused(settings, message):
    settings = {"task": "math", "train_problems": 9, "eval_problems": 9, **settings}
    with pytest.raises(tasks.UserError, match=message):
        tasks.TASKS[settings["task"]](grpo_sg.Config(**settings))


def test_a_line_that_is_no_problem_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    for line in ('{"question": "1?"}', "[1]", "{", '"x"', "5"):
        path.write_text('{"question": "1?", "answer": "1"}\n' + line)
        with pytest.raises(tasks.UserError, match="a.jsonl, line 2: .* is not like"):
            tasks.read_file(str(path), tasks.MATH_LINE)


def test_a_set_on_the_hub_that_is_a_script_is_read_from_its_copy(monkeypatch):
    import datasets
    asked = []

    def load_dataset(name, configuration=None, **given):
        asked.append(given)
        if "revision" not in given:
            raise RuntimeError("Dataset scripts are no longer supported")
        return [{"question": "1?", "answer": "so #### 1,000"}]
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert tasks.load_math("gsm8k", tasks.MATH_TEST) == [("1?", ["1000"])]
    assert asked == [{"split": "test"},
                     {"data_dir": "main", "split": "test", "revision": "refs/convert/parquet"}]
    monkeypatch.setitem(sys.modules, "datasets", None)  # not installed
    with pytest.raises(tasks.UserError, match="Check the network and that datasets is installed"):
        tasks.load_math("gsm8k", tasks.MATH_TEST)


# ==== The model and the program ====

CHAT = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{{ '<|im_start|>assistant\n' }}")
SMALL = ("--steps 1 --prompts 2 --group_size 2 --eval_problems 3 --train_problems 20 --eval_samples 0 "
         "--max_new_tokens 8")


def save_model(folder, template=CHAT, model=None):
    """Save a model with a byte tokenizer, like one from the hub."""
    model = model or build_model(vocab_size=260)
    tokenizer = byte_tokenizer(template)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def run_program(text, capsys):
    """Return what grpo_sg.run_program prints, or its last error line if it fails."""
    try:
        grpo_sg.run_program(text.split())
    except SystemExit as stop:
        error = capsys.readouterr().err
        return stop.code if isinstance(stop.code, str) else error
    return capsys.readouterr().out


@pytest.mark.parametrize("flags", ["--task kk --brief --people 3 --beta 0.01", "--task math"])
def test_the_program_trains_a_saved_model_and_saves_it(flags, tmp_path, capsys):
    tokenizer = save_model(tmp_path / "model")
    printed = run_program(f"--model {tmp_path}/model {SMALL} {flags} --out {tmp_path}/run", capsys)
    rows, samples = rows_of(tmp_path / "run" / "metrics.jsonl"), rows_of(tmp_path / "run" / "samples.jsonl")
    assert [(row["step"], row.get("split")) for row in rows] == [(0, "test"), (1, None), (1, "test")]
    assert len(samples) == 3 + 2 + 3
    keys = ("reward accuracy format_rate truncated completion_tokens grad_norm skipped equal_groups seconds")
    assert set(keys.split()) <= rows[1].keys()
    # The output of a test is no terminal: lines, no bar.
    assert f"step 1 of 1: reward {rows[1]['reward']:.2f}, accuracy" in printed
    assert "test before training: accuracy 0.000 ± 0.000, reward" in printed
    assert json.loads((tmp_path / "run" / "config.json").read_text())["people"]
    model, saved = grpo_sg.load_model(tmp_path / "run" / "checkpoint", local=True)
    assert saved.chat_template == tokenizer.chat_template and model.dtype == torch.float32


@pytest.mark.parametrize("text, message", [
    ("", "error: name a model with --model"), ("--model x --task chess", "error: there is no --task chess: give one of kk, math"),
    ("--model ./nowhere", "error: --model ./nowhere cannot be used"), ("--modle x", "unrecognized arguments: --modle x"),
    ("--model x --task math --data gsm8", "error: --data gsm8 is not one of"), ("--model x --out ..", "error: --out .. exists"),
    ("--model x --device tpu", "invalid choice: 'tpu'"), ("--steps x", "invalid int value: 'x'"),
    ("--model x --out /proc/run", "error: ")])
def test_a_mistake_is_reported_in_one_line_before_a_model_is_loaded(text, message, tmp_path, monkeypatch, capsys):
    if "nowhere" not in text and "/proc" not in text:
        monkeypatch.setattr(grpo_sg, "load_model", None)
    if "/proc" in text:
        save_model(tmp_path / "model")
        text = f"--model {tmp_path}/model {SMALL} --brief --people 3 --out /proc/run"
    error = run_program(f"{text} --train_problems 9 --eval_problems 9" if "data" in text else text, capsys)
    assert message in error and "Traceback" not in error


def test_a_model_that_lacks_parameters_is_refused(tmp_path, capsys):
    """They would start at random, without a word."""
    model = build_model(vocab_size=260)
    del model.model.layers[1].mlp.up_proj
    save_model(tmp_path / "model", model=model)
    error = run_program(f"--model {tmp_path}/model {SMALL} --brief --people 3 --out {tmp_path}/run", capsys)
    assert "it lacks 1 parameters, such as model.layers.1.mlp.up_proj.weight" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("template", [CHAT, CHAT + "<think>", None])
def test_a_prompt_ends_with_the_opening_of_the_response(template):
    """A tag that the prompt opens is the response's."""
    task = tasks.Task("any", "Be good.", [], [], [], None, 0.0, opening="<think>")
    tokenizer = byte_tokenizer(template)
    (ids, opening), = grpo_sg.encode_prompts(tokenizer, task, ["Who?"])
    assert opening == "<think>" and tokenizer.decode(ids) == (
        "<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
        "<|im_start|>assistant\n<think>" if template else "Be good.\n\nWho?\n\n<think>")


def test_long_prompts_are_dropped_with_a_count(capsys):
    """The context must also hold a completion."""
    policy, task, cfg = build_toy()
    cfg.max_new_tokens = 4095
    short = grpo_sg.encode_problems(task, policy, cfg)
    assert [p.question for p in short.train] == ["who", "what"]
    assert "1 of 3 train problems" in capsys.readouterr().out


def test_a_quiet_sampler_prints_nothing(capsys):
    """And so does one whose output is no terminal."""
    with mock.patch.object(sys.stderr, "isatty", lambda: True, create=True):
        for progress, shown in ((True, True), (False, False)):
            with mock.patch.object(grpo_sg, "tqdm", wraps=grpo_sg.tqdm) as bar:
                sample(build_model(), [[5]], max_new_tokens=2, stop_ids=[], progress=progress)
            assert bar.call_args.kwargs["disable"] is (None if shown else True)


@pytest.mark.parametrize("missing", ["support.checks", "jinja2"])
def test_a_broken_support_folder_is_not_taken_for_a_missing_one(missing, tmp_path):
    """Without support/ run_program is started; with a part of it missing, the part is named."""
    (tmp_path / "support").mkdir()
    (tmp_path / "support" / "cli.py").write_text(f"raise ModuleNotFoundError('no part', name='{missing}')")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {HERE!r}]; import grpo_sg; grpo_sg.main([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "no part" in done.stderr and "name a model" not in done.stderr


@pytest.mark.parametrize("settings, message", [
    ({"group_size": 1}, "--group_size 1: at least 2"), ({"updates": 0}, "--updates 0: at least 1"),
    ({"tau": 0.0}, "--tau 0.0: it must be above 0"), ({"lr": float("nan")}, "--lr nan: it must be above 0"),
    ({"chat_template_kwargs": "x"}, "--chat_template_kwargs x: not JSON")])
def test_a_setting_that_cannot_work_is_refused_before_anything_is_loaded(settings, message):
    with pytest.raises(tasks.UserError, match=message):
        grpo_sg.check_settings(grpo_sg.Config(model="none", **settings), tasks)


def stop_ignoring_ctrl_c():
    """In the background of a shell SIGINT is ignored, and a child inherits this."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_during_the_imports_ends_the_program_silently(tmp_path):
    """torch.py stands for a library that takes long to import."""
    (tmp_path / "torch.py").write_text("import sys, time; print('importing', flush=True); time.sleep(60)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    program = subprocess.Popen([sys.executable, os.path.join(HERE, "grpo_sg.py")], env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=stop_ignoring_ctrl_c)
    assert program.stdout.readline() == "importing\n"
    program.send_signal(signal.SIGINT)
    _, error = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGINT and error == ""


@pytest.mark.parametrize("given, expected", [("", "expandable_segments:True None"),
                                             ("PYTORCH_ALLOC_CONF=A", "A None"), ("PYTORCH_CUDA_ALLOC_CONF=A", "None A")])
def test_the_allocators_variable_is_set_before_torch_is_imported_unless_the_user_set_it(given, expected):
    names = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
    code = ("import os, sys; sys.modules['torch'] = None\ntry: import grpo_sg\n"
            f"except ImportError: print(*map(os.environ.get, {names}))")
    environment = {key: value for key, value in os.environ.items() if key not in names}
    environment.update([given.split("=")] if given else [])
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment,
                           cwd=HERE, timeout=60)
    assert found.stdout.strip() == expected


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


def byte_tokenizer(template):
    """Build a tokenizer with a token per byte and three special tokens, 259 in all, like
    real models' byte-level BPE without merges. Its end token is <|endoftext|>, 0."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(numbers, []))
    tokenizer.add_special_tokens(specials)
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
    return policy, grpo_sg.encode_problems(task._replace(**change or {}), policy, cfg), cfg


def parameters_of(model):
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def rows_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


if GRADED is not grpo_sg:  # for the exercises, pytest collects only the lesson's tests
    for name in list(globals()):
        if name.startswith("test_") and name not in LESSON:
            del globals()[name]
