"""One group's numbers and the lines of the derivation hold, and the page has what is printed."""
import contextlib
import io
import itertools
import math
import re
import statistics
from pathlib import Path

import pytest
import torch

from lesson import by_hand

# A policy that can write four completions only, and what they earn.
LOGITS = torch.tensor([0.3, -0.5, -1.0, 0.8], dtype=torch.float64)
REWARDS = torch.tensor([0.0, 1.0, 5.0, 2.0], dtype=torch.float64)
G = 3
PAGE, WEIGHT = (Path(by_hand.__file__).with_name(name).read_text(encoding="utf-8") for name in ("README.md", "weight.md"))


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


def test_the_page_has_the_numbers_of_the_group(group):
    """Of each token in the table, and in the sentences that name one."""
    found = re.findall(r"^\| `(\S+?)`.*? \| (0\.\d+) \| \S+ \| (\S+) \| (\S+) \| (\S+) \|$", PAGE, re.M)
    for word, pi, effect, push, weighted in found:
        assert re.search(rf"^{re.escape(word)} +{pi} .*{re.escape(push)} +{re.escape(weighted)} +{re.escape(effect)}$",
                         group, re.M), word
    for pattern in (r"-\d\.\d\d / \d+ = -\d\.\d+", r"0\.\d+ to 0\.\d+, so"):
        numbers = re.findall(pattern, PAGE.replace("\n", " "))
        assert all(number in group for number in numbers), numbers


@pytest.mark.parametrize("name", ["group", "group_small"])
def test_the_picture_has_the_numbers_of_the_group(name, group):
    picture = Path(by_hand.__file__).with_name("figures").joinpath(f"{name}.svg").read_text("utf-8")
    shown = re.findall(r"\w+: R = (\S+), A = (\S+), pushed", picture)
    rows = re.findall(r"Amir is a \w+ +\d+ +(-?\d\.\d) +([+-]\d\.\d\d)$", group, re.M)
    assert shown and all((f"{float(R):.1f}", A) in rows for R, A in shown)


def test_the_effect_is_the_gradient_in_a_tokens_own_logit():
    logits = torch.tensor([0.3, -1.0, 2.0], requires_grad=True)
    logps = logits.log_softmax(0)[1].view(1, 1)
    w, A, pi = by_hand.token_weights(logps), torch.tensor([1.21]), logps.exp().item()
    loss, _ = by_hand.grpo_sg_loss(logps, logps.detach(), A, torch.ones(1, 1), weights=w)
    (-loss).backward()
    assert logits.grad[1].item() == pytest.approx((w * A).item() * (1 - pi))


def test_the_tables_of_steps_are_what_adamw_does():
    row = r"^\| .*? \| ((?:-?[\d.]+, ){3}[\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+)"
    rows = {*re.findall(row, PAGE, re.M), *re.findall(row, WEIGHT, re.M)}
    assert len(rows) == 4
    for gradients, mean, rms, step in rows:
        gradients = [float(x) for x in gradients.split(", ")]
        assert [float(mean), float(rms)] == pytest.approx(
            [statistics.mean(gradients), statistics.mean(x * x for x in gradients) ** 0.5], abs=5e-4)
        parameter = torch.zeros((), dtype=torch.float64)
        optimizer = torch.optim.AdamW([parameter], 1e-3, weight_decay=0)
        for number in range(4000):
            parameter.grad = torch.tensor(gradients[number % 4], dtype=torch.float64)
            optimizer.step()
        assert -parameter.item() / 4 == pytest.approx(float(step), abs=0.002), step


def test_the_samples_are_what_the_tiny_model_writes():
    """Each is one of its own token sequences, and a rollout would give it the same reward."""
    model, tokenizer, completions = by_hand.load_group()
    assert len({tuple(c.tokens) for c in completions}) == 8 and all(c.formatted for c in completions)
    assert sum(c.correct for c in completions) == 3
    for c in completions:
        assert tokenizer.decode(c.tokens[:-1]) == c.response and tokenizer.unk_token_id not in c.tokens


# ---- Lines 1 to 6 ----

def gradient_of_groups(advantages_of):
    """Return the mean of sum A grad log pi / G over all groups of G of the four completions, (4,)."""
    pi = torch.softmax(LOGITS, 0)
    score = torch.eye(4, dtype=torch.float64) - pi  # grad log pi of each completion
    mean = torch.zeros(4, dtype=torch.float64)
    for group in map(list, itertools.product(range(4), repeat=G)):
        mean += pi[group].prod() * (advantages_of(REWARDS[group])[:, None] * score[group]).sum(0) / G
    return mean


@pytest.mark.parametrize("advantages_of, factor", [
    (lambda R: R, 1), (lambda R: R + 20.0, 1), (lambda R: R - (R.sum() - R) / (G - 1), 1),
    (lambda R: R - R.mean(), (G - 1) / G)], ids=["none", "constant", "mean of the others", "mean of the group"])
def test_baselines_scale_the_gradient_and_do_not_turn_it(advantages_of, factor, true_gradient):
    assert torch.allclose(gradient_of_groups(advantages_of), factor * true_gradient, atol=1e-12)


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

def test_the_page_has_what_the_derivation_prints(capsys):
    by_hand.main(["derivation"])
    for number in re.findall(r"\d+\.\d{2,}", capsys.readouterr().out):
        assert number in PAGE, number
