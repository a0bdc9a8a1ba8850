"""One group's numbers and the lines of the derivation hold, and the pages have what is printed."""
import contextlib
import io
import itertools
import math
import re
import statistics
from pathlib import Path

import pytest
import torch
from transformers import TopPLogitsWarper

from grpo_sg import group_advantages
from lesson import by_hand
from lesson.by_hand import G, LOGITS, REWARDS, gradient_of_groups

PAGES = [Path(by_hand.__file__).with_name(name) for name in ("README.md", "off_policy.md")]
TEXT = " ".join(page.read_text(encoding="utf-8") for page in PAGES)


@pytest.fixture(scope="module")
def group():
    """What `by_hand group` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        by_hand.main(["group"])
    return printed.getvalue()


@pytest.fixture
def true_gradient():
    logits = LOGITS.clone().requires_grad_()
    (torch.softmax(logits, 0) @ REWARDS).backward()
    return logits.grad


# ---- One group ----

def test_the_group_is_as_computed_by_hand(group):
    """Its rewards and advantages; the weights, pushes and effects of a completion's tokens; the loss."""
    rewards = [-0.5, 3, 3, -0.5, -0.5, -0.5, -0.5, 3]
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    assert f"the mean of R is {mean:.2f}, its standard deviation {std:.2f}" in group
    rows = re.findall(r"Amir is a \w+ +(\d+) +(-?\d\.\d) +([+-]\d\.\d\d)$", group, re.M)
    assert [float(R) for _, R, _ in rows] == rewards
    assert [A for *_, A in rows] == [f"{(R - mean) / std:+.2f}" for R in rewards]
    tokens = re.findall(r"^(\S.*?) +(\d\.\d{3}) +(\S+) +(\S+) +(\S+) +(\S+)$", group, re.M)
    assert len(tokens) == int(rows[1][0])
    good = (3 - mean) / std
    for word, *numbers in tokens:
        pi, w, push, effect, unweighted = map(float, numbers)
        assert w == pytest.approx(min(max(2 / (1 + math.exp(-9 * pi)) - 0.5, 1), 1.4), abs=0.01)
        assert (push, effect) == pytest.approx((w * good, w * good * (1 - pi)), abs=0.01), word
        assert unweighted == pytest.approx(good * (1 - pi), abs=0.01)
    total, count, loss = re.search(r"so it is (\S+) / (\d+) = (\S+)", group).groups()
    assert int(count) == sum(int(length) for length, *_ in rows)
    assert float(total) / int(count) == pytest.approx(float(loss), abs=5e-4)
    assert "from pi = 0.394 to 0.406, so r = 1.03" in group  # a good token
    assert "9.2 times the effect of a token with pi = 0.90 if w = 1, and 6.6 times" in group


def test_the_page_has_the_numbers_of_the_group(group):
    """Of each token in the table, and in the sentences that name one."""
    page = PAGES[0].read_text(encoding="utf-8")
    found = re.findall(r"^\| `(\S+?)`.*? \| (0\.\d+) \| \S+ \| (\S+) \| (\S+) \| (\S+) \|$", page, re.M)
    for word, pi, effect, push, weighted in found:
        assert re.search(rf"^{re.escape(word)} +{pi} .*{re.escape(push)} +{re.escape(weighted)} +{re.escape(effect)}$",
                         group, re.M), word
    for pattern in (r"-\d\.\d\d / \d+ = -\d\.\d+", r"\d\.\d times the effect", r"0\.\d+ to 0\.\d+, so"):
        numbers = re.findall(pattern, page.replace("\n", " "))
        assert all(number in group for number in numbers), numbers


def test_the_effect_is_the_gradient_in_a_tokens_own_logit():
    logits = torch.tensor([0.3, -1.0, 2.0], requires_grad=True)
    logps = logits.log_softmax(0)[1].view(1, 1)
    w, A, pi = by_hand.token_weights(logps), torch.tensor([1.21]), logps.exp().item()
    loss, _ = by_hand.grpo_sg_loss(logps, logps.detach(), A, torch.ones(1, 1), weights=w)
    (-loss).backward()
    assert logits.grad[1].item() == pytest.approx((w * A).item() * (1 - pi))


def test_the_samples_are_what_the_tiny_model_writes():
    """Each is one of its own token sequences, and a rollout would give it the same reward."""
    model, tokenizer, completions = by_hand.load_group()
    assert len({tuple(c.tokens) for c in completions}) == 8 and all(c.formatted for c in completions)
    assert sum(c.correct for c in completions) == 3
    for c in completions:
        assert tokenizer.decode(c.tokens[:-1]) == c.response and tokenizer.unk_token_id not in c.tokens


@pytest.mark.parametrize("argv", [[], ["groups"], ["group", "samplers"], ["--flag"]])
def test_a_wrong_argument_is_one_line(argv, capsys):
    with pytest.raises(SystemExit, match=r"^error: give one part, group or derivation or samplers: .*$"):
        by_hand.main(argv)
    by_hand.main(["--help"])
    assert re.fullmatch("usage: .*\n", capsys.readouterr().out)


# ---- Lines 1 to 6 ----

@pytest.mark.parametrize("baseline", [0.0, 1.7, -20.0])
def test_a_constant_baseline_leaves_the_gradient_unbiased(baseline, true_gradient):
    gradient, _ = gradient_of_groups(lambda R: R - baseline)
    assert torch.allclose(gradient, true_gradient, atol=1e-12)


@pytest.mark.parametrize("baseline, factor", [
    (by_hand.no_baseline, 1), (by_hand.others_mean, 1), (by_hand.group_mean, (G - 1) / G)])
def test_baselines_of_the_group_scale_the_gradient_and_do_not_turn_it(
        baseline, factor, true_gradient):
    gradient, _ = gradient_of_groups(baseline)
    assert torch.allclose(gradient, factor * true_gradient, atol=1e-12)


def test_the_variance_without_a_baseline_is_that_of_a_mean_of_independent_completions():
    pi = torch.softmax(LOGITS, 0)
    gradients = REWARDS[:, None] * (torch.eye(4) - pi)  # the gradient of each completion
    mean = pi @ gradients
    _, variance = gradient_of_groups(by_hand.no_baseline)
    assert variance == pytest.approx(((pi @ gradients ** 2).sum() - mean @ mean).item() / G)


def test_dividing_by_the_std_turns_the_gradient(true_gradient):
    gradient, _ = gradient_of_groups(lambda R: group_advantages(R[None])[0].double())
    assert torch.cosine_similarity(gradient, true_gradient, dim=0) < 0.99


# ---- Line 7: completions of two tokens, sampled by an older policy ----

def two_tokens(first, second):
    """Return (9,) log-probabilities of each token of the nine completions: logits (3,), (3, 3)."""
    pairs = list(itertools.product(range(3), repeat=2))
    a, b = first.log_softmax(-1), second.log_softmax(-1)
    return torch.stack([a[i] for i, _ in pairs]), torch.stack([b[i, j] for i, j in pairs])


@pytest.mark.parametrize("moved", [0.0, 1.0])
def test_the_ratio_of_the_completion_is_exact_and_that_of_its_tokens_is_not(moved):
    """The objectives differ in their gradients once the policy has moved."""
    g = torch.Generator().manual_seed(0)
    old, step = torch.randn(2, 12, generator=g, dtype=torch.float64)
    R = torch.randn(9, generator=g, dtype=torch.float64)
    theta = (old + moved * step).requires_grad_()
    logps = two_tokens(theta[:3], theta[3:].view(3, 3))
    old_logps = two_tokens(old[:3], old[3:].view(3, 3))
    r = [(new - before).exp() for new, before in zip(logps, old_logps)]
    p_old = sum(old_logps).exp()
    J = sum(logps).exp() @ R
    by_completion = p_old @ (r[0] * r[1] * R)
    by_token = p_old @ ((r[0] + r[1]) * R)
    assert by_completion.item() == pytest.approx(J.item())
    true, exact, tokens = (torch.autograd.grad(x, theta, retain_graph=True)[0]
                           for x in (J, by_completion, by_token))
    assert torch.allclose(exact, true)
    assert torch.allclose(tokens, true) == (moved == 0)


# ---- The derivation's numbers ----

@pytest.mark.parametrize("k", range(1, 8))
def test_advantages_of_k_right_completions(k):
    std = math.sqrt(k * (8 - k) / (8 * 7))
    right, wrong = by_hand.advantages(k)
    assert right == pytest.approx((1 - k / 8) / std, abs=1e-4)
    assert wrong == pytest.approx((0 - k / 8) / std, abs=1e-4)


def test_groups_without_a_gradient():
    groups = itertools.product([1, 0], repeat=3)
    share = sum(0.9 ** sum(g) * 0.1 ** (3 - sum(g)) for g in groups if len(set(g)) == 1)
    assert by_hand.silence(0.9, G=3) == pytest.approx(share)


# ---- Samplers ----

@pytest.mark.parametrize("top_p", [0.3, 0.8, 0.95])
def test_top_p_divides_by_the_kept_mass(top_p):
    p = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(0)
    q, Z = by_hand.restrict(p, top_p)
    expected = TopPLogitsWarper(top_p)(None, p.log()[None])[0].softmax(0)
    assert torch.allclose(q, expected)
    assert torch.allclose((p / q)[q > 0], Z)


def test_rounded_logits_shift_the_ratio_by_half_its_variance():
    """E_q[p / q] = 1, so for a small x = log(p / q), E[x] = -E[x^2] / 2."""
    logits = 4 * torch.randn(20, 5000, generator=torch.Generator().manual_seed(1)).double()
    mean, std = by_hand.log_ratio_of_rounding(logits)
    assert mean == pytest.approx(-std ** 2 / 2, rel=0.1) and 0.005 < std < 0.05
    rounded = logits.bfloat16().double()  # a sampler that reads the trainer's logits
    assert by_hand.log_ratio_of_rounding(rounded) == (0, 0)


def test_the_pages_have_what_is_printed(capsys):
    by_hand.print_derivation()
    by_hand.print_samplers()
    printed = capsys.readouterr().out
    assert "decoded 'hello', retokenized [7]" in printed
    for number in re.findall(r"\d+\.\d{2,}", printed):
        assert number in TEXT, number


@pytest.mark.parametrize("estimate", ["k1", "k2", "k3"])
def test_the_mean_gradients_of_the_kls_estimates(estimate):
    """Over samples of pi: 0 for k1, that of KL(pi, ref) for k2, that of KL(ref, pi) for k3."""
    torch.manual_seed(0)
    z = torch.randn(6, dtype=torch.float64, requires_grad=True)
    logp, ref = z.log_softmax(0), torch.randn(6, dtype=torch.float64).log_softmax(0)
    log_x = ref - logp
    estimates = {"k1": -log_x, "k2": log_x ** 2 / 2, "k3": log_x.exp() - log_x - 1}
    mean = (logp.exp().detach() * estimates[estimate]).sum()
    gradient, = torch.autograd.grad(mean, z, retain_graph=True)
    expected = {"k1": 0 * logp, "k2": logp.exp() * -log_x, "k3": ref.exp() * log_x}[estimate].sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, z)[0])
