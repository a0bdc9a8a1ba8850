"""Each related method, as a call of grpo_sg_loss, against plain loops over tokens."""
import math
import pathlib

import pytest
import torch

from grpo_sg import group_advantages, grpo_sg_loss, token_weights

SOURCE = pathlib.Path(__file__).read_text()
LESSON = pathlib.Path(__file__).parent
PAGE = (LESSON / "family.md").read_text(encoding="utf-8")
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
    """The advantage of completion i, by hand."""
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
    """Assert that slow(i, t, logp), averaged, has the same gradient as the loss fast(logps)."""
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
    """A value network and GAE give each token its own advantage."""
    _, _, old_logps, _, mask = rollout()
    A = torch.randn(P * G, T, generator=torch.Generator().manual_seed(1))
    check(lambda i, t, logp: clipped(torch.exp(logp - old_logps[i, t]), A[i, t]),
          lambda logps: grpo_sg_loss(logps, old_logps, A, mask, clip_high=0.2))


def test_grpo():
    R, _, old_logps, ref_logps, mask = rollout()
    A = group_advantages(R).flatten()

    def slow(i, t, logp):
        x = torch.exp(ref_logps[i, t] - logp)
        kl = x - 1 - torch.log(x)
        return clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i)) - 0.04 * kl
    check(slow, lambda logps: grpo_sg_loss(
        logps, old_logps, A, mask, ref_logps=ref_logps, beta=0.04, clip_high=0.2,
        loss_agg_mode="seq-mean-token-mean"), mean=completion_mean)


def test_dr_grpo():
    """No standard deviation, and a constant in place of lengths: B times the longest possible."""
    R, _, old_logps, _, mask = rollout()
    A = (R - R.mean(1, keepdim=True)).flatten()

    def slow(i, t, logp):
        return clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i, over_deviation=False))
    check(slow, lambda logps: grpo_sg_loss(
        logps, old_logps, A, mask, clip_high=0.2,
        denominator=len(logps) * MAX_NEW_TOKENS),
        mean=lambda rows: sum(map(sum, rows)) / (P * G * MAX_NEW_TOKENS))


def test_rloo():
    """A completion is one action, compared with the mean of the others. Its tokens are summed,
    and r is 1 because each completion is used once."""
    R, _, _, _, mask = rollout()
    A = (R - (R.sum(1, keepdim=True) - R) / (R.shape[1] - 1)).flatten()

    def slow(i, t, logp):
        others = [x for j, x in enumerate(R[i // G].tolist()) if j != i % G]
        return (R[i // G, i % G] - sum(others) / len(others)) * logp
    check(slow, lambda logps: grpo_sg_loss(
        logps, logps.detach(), A, mask, denominator=len(logps)),
        mean=lambda rows: sum(map(sum, rows)) / (P * G))


def test_reinforce_plus_plus():
    """Divides by the standard deviation of the whole batch, not of each group."""
    R, _, old_logps, _, mask = rollout()
    A = R - R.mean(1, keepdim=True)
    A = (A / (A.std() + 1e-6)).flatten()
    differences = [advantage(R, i, over_deviation=False) for i in range(P * G)]
    assert abs(sum(differences)) < 1e-5
    deviation = math.sqrt(sum(x ** 2 for x in differences) / (P * G - 1)) + 1e-6

    def slow(i, t, logp):
        return clipped(torch.exp(logp - old_logps[i, t]), differences[i] / deviation)
    check(slow, lambda logps: grpo_sg_loss(logps, old_logps, A, mask, clip_high=0.2))


def test_gspo():
    """One ratio per completion, with a gradient: the geometric mean of its tokens' ratios."""
    _, logps, _, _, mask = rollout()
    R = rollout()[0]
    A = group_advantages(R).flatten()
    # The policies differ so little that some completions stay inside the clip.
    noise = torch.randn(logps.shape, generator=torch.Generator().manual_seed(2))
    old_logps = logps + 4e-4 * noise
    lengths = mask.sum(1)
    inside = 0

    x = logps.clone().requires_grad_()
    objective = 0.0
    for i in range(P * G):
        total = sum(x[i, t] - old_logps[i, t] for t in range(T) if mask[i, t])
        s = torch.exp(total / lengths[i])
        inside += 1 - 3e-4 < s < 1 + 4e-4
        objective = objective + clipped(s, advantage(R, i), low=3e-4, high=4e-4) / (P * G)
    (-objective).backward()
    assert 0 < inside < P * G

    logps = logps.clone().requires_grad_()
    log_s = ((logps - old_logps) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    log_s = log_s.expand_as(mask)
    loss, _ = grpo_sg_loss(log_s, torch.zeros_like(log_s), A, mask, clip_low=3e-4,
                           clip_high=4e-4, loss_agg_mode="seq-mean-token-mean")
    loss.backward()
    assert x.grad.abs().max() > 0.001 and torch.allclose(x.grad, logps.grad, atol=1e-7)


def test_truncated_importance_sampling():
    """mu is the sampler's probability, old_logps the trainer's, with equal parameters."""
    R, _, old_logps, mu_logps, mask = rollout()
    A = group_advantages(R).flatten()

    def slow(i, t, logp):
        factor = min(math.exp(old_logps[i, t] - mu_logps[i, t]), 2.0)
        return factor * clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i))
    check(slow, lambda logps: grpo_sg_loss(
        logps, old_logps, A, mask, clip_high=0.2,
        weights=(old_logps - mu_logps).exp().clamp(max=2.0)))


def test_dapo():
    R, _, old_logps, _, mask = rollout()
    A = group_advantages(R).flatten()

    def slow(i, t, logp):
        return clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i), high=0.28)
    check(slow, lambda logps: grpo_sg_loss(logps, old_logps, A, mask, clip_high=0.28))


@pytest.mark.parametrize("weighted", [False, True])
def test_cispo(weighted):
    """The bounded ratio is a constant weight on the gradient of log pi, with r = 1, so no token
    is ever cut off. With w, the objective is w r.clamp(max=c).detach() A log pi."""
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


def test_maxrl():
    """The group's mean in place of its standard deviation: hard prompts count for more."""
    R, _, old_logps, _, mask = rollout()
    R = (R > 0.5).float()
    mean = R.mean(1, keepdim=True)
    A = ((R - mean) / (mean + 1e-6)).flatten()

    def slow(i, t, logp):
        group = R[i // G].tolist()
        share = sum(group) / G
        A_i = (group[i % G] - share) / (share + 1e-6)
        return clipped(torch.exp(logp - old_logps[i, t]), A_i)
    check(slow, lambda logps: grpo_sg_loss(logps, old_logps, A, mask, clip_high=0.2))


def test_sapo():
    """A sigmoid of r in place of the clip. Its slope is a weight on the gradient of log pi,
    with r = 1: 1 where nothing has moved, falling smoothly on both sides."""
    R, _, old_logps, _, mask = rollout()
    A = group_advantages(R).flatten()

    def slow(i, t, logp):
        A_i = advantage(R, i)
        tau = 1.0 if A_i > 0 else 1.05
        r = torch.exp(logp - old_logps[i, t])
        return 4 / tau / (1 + torch.exp(-tau * (r - 1))) * A_i

    def fast(logps):
        r = (logps - old_logps).exp()
        tau = torch.where(A[:, None] > 0, 1.0, 1.05)
        gate = torch.sigmoid(tau * (r - 1))
        return grpo_sg_loss(logps, logps.detach(), A, mask, weights=4 * gate * (1 - gate) * r,
                            loss_agg_mode="seq-mean-token-mean")
    check(slow, fast, mean=completion_mean)


def test_forking_tokens():
    """Only the fifth of the tokens where the policy is least sure; the mean is over all."""
    R, logps, old_logps, _, mask = rollout()
    A = group_advantages(R).flatten()
    H = 2 * torch.rand(logps.shape, generator=torch.Generator().manual_seed(3))  # entropies
    ascending = sorted(H[i, t].item() for i in range(P * G) for t in range(T) if mask[i, t])
    kept = [h for h in ascending if h > ascending[int(0.8 * (len(ascending) - 1))]]
    assert 0 < len(kept) < len(ascending)

    def slow(i, t, logp):
        if H[i, t].item() not in kept:
            return 0.0 * logp
        return clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i), high=0.28)
    forking = H >= torch.quantile(H[mask], 0.8)
    check(slow, lambda logps: grpo_sg_loss(
        logps, old_logps, A, mask, weights=forking.float(), clip_high=0.28))


def test_ar_lopti():
    R, logps, old_logps, _, mask = rollout()
    A = group_advantages(R).flatten()
    pi = logps.exp()

    def slow(i, t, logp):
        weight = 0.2 * math.exp(logp.item()) + 0.8
        return weight * clipped(torch.exp(logp - old_logps[i, t]), advantage(R, i), high=0.24)
    check(slow, lambda logps: grpo_sg_loss(
        logps, old_logps, A, mask, weights=0.2 * pi + 0.8, clip_high=0.24))


def test_stapo():
    """Drops rewarded tokens that were unlikely although the policy was sure. The mean is over
    the others."""
    R, logps, old_logps, _, mask = rollout()
    A = group_advantages(R).flatten()
    H = 2 * torch.rand(logps.shape, generator=torch.Generator().manual_seed(3))  # entropies
    pi, p, h = logps.exp(), 0.3, 1.0
    silenced = 0

    x = logps.clone().requires_grad_()
    objective, tokens = 0.0, 0
    for i in range(P * G):
        for t in range(T):
            if not mask[i, t]:
                continue
            if advantage(R, i) > 0 and math.exp(logps[i, t]) < p and H[i, t] < h:
                silenced += 1
                continue
            r = torch.exp(x[i, t] - old_logps[i, t])
            objective = objective + clipped(r, advantage(R, i), high=0.28)
            tokens += 1
    (-objective / tokens).backward()
    assert silenced > 0

    y = logps.clone().requires_grad_()
    spurious = (A[:, None] > 0) & (pi < p) & (H < h)
    loss, _ = grpo_sg_loss(y, old_logps, A, mask & ~spurious, clip_high=0.28)
    loss.backward()
    assert x.grad.abs().max() > 0.001 and torch.allclose(x.grad, y.grad, atol=1e-7)


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
    table = PAGE[PAGE.index("| method |"):].split("\n\n")[0].split("\n")[2:]
    for row in table:
        for code in row.split("|")[-2].split("`")[1::2]:
            if not code.startswith("--"):
                assert code in SOURCE, code
    assert len(table) == 14
