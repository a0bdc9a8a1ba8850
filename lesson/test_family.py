"""The table of the family: each method, as a call of grpo_sg_loss, against loops over tokens."""
import math
import pathlib

import pytest
import torch

from grpo_sg import group_advantages, grpo_sg_loss, token_weights

SOURCE = pathlib.Path(__file__).read_text()
README = (pathlib.Path(__file__).parent / "README.md").read_text()
P, G, T = 3, 4, 6
MAX_NEW_TOKENS = 10


def rollout():
    """Rewards (P, G), and logps, old_logps, ref_logps, mask of B = P * G rows."""
    g = torch.Generator().manual_seed(0)
    R = torch.rand(P, G, generator=g)
    logps = -3 * torch.rand(P * G, T, generator=g)
    old_logps = logps + 0.4 * torch.randn(P * G, T, generator=g)
    ref_logps = logps + 0.4 * torch.randn(P * G, T, generator=g)
    lengths = torch.randint(1, T + 1, (P * G, 1), generator=g)
    return R, logps, old_logps, ref_logps, torch.arange(T) < lengths


def advantage(R, i, over_deviation=True):
    """Of completion i, by hand."""
    group = R[i // G].tolist()
    mean = sum(group) / G
    A = group[i % G] - mean
    if over_deviation:
        A /= math.sqrt(sum((x - mean) ** 2 for x in group) / (G - 1)) + 1e-6
    return A


def clipped(r, A, low=0.2, high=0.2):
    """PPO's objective of a token."""
    return min(r * A, min(max(r, 1 - low), 1 + high) * A)


def token_mean(rows):
    return sum(map(sum, rows)) / sum(map(len, rows))


def completion_mean(rows):
    return sum(sum(row) / len(row) for row in rows) / len(rows)


def check(slow, fast, mean=token_mean):
    """Compare the gradient of the mean of slow(i, t, logp) with that of the loss fast(logps)."""
    _, logps, _, _, mask = rollout()
    x = logps.clone().requires_grad_()
    rows = []
    for i in range(len(x)):
        rows.append([slow(i, t, x[i, t]) for t in range(T) if mask[i, t]])
    (-mean(rows)).backward()

    y = logps.clone().requires_grad_()
    loss, _ = fast(y)
    loss.backward()
    assert x.grad.abs().max() > 0.001 and torch.allclose(x.grad, y.grad, atol=1e-7)


def test_ppo():
    """With the advantages that a value network and GAE give, one for each token."""
    _, _, old_logps, _, mask = rollout()
    A = torch.randn(P * G, T, generator=torch.Generator().manual_seed(1))
    check(lambda i, t, logp: clipped(torch.exp(logp - old_logps[i, t]), A[i, t]),
          lambda logps: grpo_sg_loss(logps, old_logps, A, mask))


def test_grpo():
    R, _, old_logps, ref_logps, mask = rollout()
    A = group_advantages(R).flatten()

    def slow(i, t, logp):
        x = torch.exp(ref_logps[i, t] - logp)
        kl = x - 1 - torch.log(x)
        return clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i)) - 0.04 * kl
    check(slow, lambda logps: grpo_sg_loss(
        logps, old_logps, A, mask, ref_logps=ref_logps, beta=0.04,
        loss_agg_mode="seq-mean-token-mean"), mean=completion_mean)


def test_dr_grpo():
    """Neither the deviation nor the length, but a constant: B times the longest that may be."""
    R, _, old_logps, _, mask = rollout()
    A = (R - R.mean(1, keepdim=True)).flatten()

    def slow(i, t, logp):
        return clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i, over_deviation=False))
    check(slow, lambda logps: grpo_sg_loss(
        logps, old_logps, A, mask, denominator=len(logps) * MAX_NEW_TOKENS),
        mean=lambda rows: sum(map(sum, rows)) / (P * G * MAX_NEW_TOKENS))


def test_dapo():
    R, _, old_logps, _, mask = rollout()
    A = group_advantages(R).flatten()
    check(lambda i, t, logp: clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i), high=0.28),
          lambda logps: grpo_sg_loss(logps, old_logps, A, mask, clip_high=0.28))


@pytest.mark.parametrize("weighted", [False, True])
def test_cispo(weighted):
    """The bounded ratio is a constant that multiplies the gradient of log pi: a weight, with r =
    1. So no token ever stops. With w, it is w r.clamp(max=c).detach() A log pi."""
    R, logps, old_logps, _, mask = rollout()
    A = group_advantages(R).flatten()
    c = 1.2
    w = token_weights(logps) if weighted else torch.ones_like(logps)

    def slow(i, t, logp):
        r = math.exp(logp.item() - old_logps[i, t])
        return w[i, t] * min(r, c) * advantage(R, i) * logp

    def fast(logps):
        r = (logps - old_logps).exp()
        return grpo_sg_loss(logps, logps.detach(), A, mask, weights=w * r.clamp(max=c))
    check(slow, fast)


def test_ar_lopti():
    R, logps, old_logps, _, mask = rollout()
    A = group_advantages(R).flatten()
    pi = logps.exp()

    def slow(i, t, logp):
        weight = 0.2 * math.exp(logp.item()) + 0.8
        return weight * clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i), high=0.24)
    check(slow, lambda logps: grpo_sg_loss(
        logps, old_logps, A, mask, weights=0.2 * pi + 0.8, clip_high=0.24))


def test_grpo_sg():
    R, _, old_logps, _, mask = rollout()
    A = group_advantages(R).flatten()

    def slow(i, t, logp):
        pi = math.exp(logp.item())
        w = min(max(2 * (1 / (1 + math.exp(-9 * pi)) - 0.25), 1.0), 1.4)
        return w * clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i), high=0.24)
    check(slow, lambda logps: grpo_sg_loss(
        logps, old_logps, A, mask, weights=token_weights(logps), clip_high=0.24))


def test_the_table_shows_what_is_tested():
    table = README[README.index("| method |"):].split("\n\n")[0].split("\n")[2:]
    for row in table:
        for code in row.split("|")[-2].split("`")[1::2]:
            if not code.startswith("--"):
                assert code in SOURCE, code
    assert len(table) == 7
