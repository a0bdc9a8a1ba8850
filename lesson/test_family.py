"""Each rule of family.md, as a call of grpo_sg_loss, against plain loops over tokens.

What the rules were read from, where not from the paper alone (commits in parentheses):
- AR-Lopti's clip and its alpha of 0.2: its scripts (0.3 in its Figure 4, 0.1 for mathematics).
  MaxRL: its authors' code, and prime-rl for a mean that is not above 0. SAPO: the documentation
  of AReaL and ms-swift. STAPO: a summary (p = 0.01, h is the 5th percentile of H) without a clip
  range.
- GSPO's bounds, forking tokens, VESPO, sequence_mask: TRL, trainer/grpo_trainer.py (f2cd577).
  OPSM: get_off_policy_mask there.
- DPPO-TV, Clip-Cov, KL-Cov: verl, trainer/ppo/core_algos.py (1dda039). prime-rl's DPPO-TV has
  delta = 0.2 and no bound on r (trainer/rl/loss.py, 559b447).
- REINFORCE++-baseline, OTB, and dual clip, whose 3 is verl's clip_ratio_c: the same file of verl.
- STARE: hp-luo/STARE, core_algos.py (bffb9e7). It also bounds r where A < 0, takes the 10% from
  each micro-batch, can adapt the 1.1, and in a variant has 0.9 where A < 0.
- ASPO: wizard-III/Archer2.0, core_algos.py (b08d963). On one side of the 80th percentile of H it
  clips at 0.4 instead of 0.2.
- Delightful: TorchTrade's DGLoss and x_ppo's spo_actor_loss agree on the weight. IcePop: prime-rl's
  pull request 2401. We have read neither paper.
"""
import math
import pathlib
from types import SimpleNamespace

import pytest
import torch

from grpo_sg import group_advantages, grpo_sg_loss, token_weights

SOURCE = pathlib.Path(__file__).read_text(encoding="utf-8")
PAGE = pathlib.Path(__file__).with_name("family.md").read_text(encoding="utf-8")
P, G, T, MAX_NEW_TOKENS = 6, 4, 7, 10
B = P * G
c, delta, p, h = 1.3, 0.15, 0.5, 0.25

# ---- One batch, with the names of family.md ----

generator = torch.Generator().manual_seed(77)
R = 4 * torch.rand(P, G, generator=generator) - 2  # the means of some groups are below 0
logps = (-6 * torch.rand(B, T, generator=generator) ** 2).requires_grad_()
noise = 0.5 * torch.randn(3, B, T, generator=generator) ** 3
old_logps, ref_logps, q_logps = logps.detach() + noise
S = 0.5 * old_logps.exp() * (1 + old_logps.exp())  # OTB: the sum of all squared probabilities
H, A_t = 0.5 * torch.rand(B, T, generator=generator), torch.randn(B, T, generator=generator)
mask = torch.arange(T) < torch.randint(2, T + 1, (B, 1), generator=generator)
A, mean_R = group_advantages(R).flatten(), R.mean(1, keepdim=True)
D = R - mean_R
# Ratios on both sides of each clip: GSPO's, then 1.2, 1.24 and 1.28.
near = torch.tensor([3.5e-4, 5e-4]).repeat(P)[:, None] * A[::2, None].sign()
old_logps[::2] = logps[::2].detach() - near
old_logps[1::2, 0] = logps[1::2, 0].detach() - torch.tensor([0.2, 0.23, 0.3]).repeat(4)
a, r, pi = A[:, None], (logps - old_logps).detach().exp(), logps.detach().exp()


# ---- The same for loops: plain numbers ----

def deviation(differences):
    return math.sqrt(sum(x * x for x in differences) / (len(differences) - 1)) + 1e-6


def read_token(i, t):
    group, reward = R[i // G].tolist(), R.flatten()[i].item()
    mean = sum(group) / G
    now, old, ref, q = (math.exp(x[i, t].item()) for x in (logps, old_logps, ref_logps, q_logps))
    return SimpleNamespace(
        i=i, t=t, pi=now, old=old, ref=ref, r=now / old, f=old / q, H=H[i, t].item(),
        q=q, S=S[i, t].item(),
        A=(reward - mean) / deviation([x - mean for x in group]), A_t=A_t[i, t].item(),
        D=reward - mean, others=(sum(group) - reward) / (G - 1), reward=reward, mean=mean)


TOKENS = [read_token(i, t) for i in range(B) for t in range(T) if mask[i, t]]
N = len(TOKENS)
mean_A, mean_logp = sum(k.A for k in TOKENS) / N, sum(math.log(k.pi) for k in TOKENS) / N
for k in TOKENS:
    row = [other for other in TOKENS if other.i == k.i]
    k.length, k.W = len(row), math.prod(other.r for other in row)
    k.F = math.prod(other.f for other in row)
    k.drift = sum(math.log(other.q / other.pi) for other in row) / len(row)
    k.energy = sum(1 - 2 * other.old + other.S for other in row if other.t <= k.t)
    k.cov = (k.A - mean_A) * (math.log(k.pi) - mean_logp)
FORKING = sorted(k.H for k in TOKENS)[int(0.8 * (N - 1)) + 1:]
GOOD = sorted(k.pi for k in TOKENS if k.A > 0)
RARE = GOOD[:math.ceil(len(GOOD) / 10)]
COV = [k for k in TOKENS if 1 < k.cov < 5 and (k.r <= 1.2 if k.A > 0 else k.r >= 0.8)]


def clipped(k, A=None, low=0.2, high=0.2, r=None):
    """The slope of PPO's objective in log pi: r A, or 0 where the minimum is the clipped side."""
    A, r = k.A if A is None else A, k.r if r is None else r
    return r * A if r * A <= min(max(r, 1 - low), 1 + high) * A else 0.0


def slope(objective, k, step=1e-6):
    """The derivative of objective(r) in log r."""
    up, down = objective(k.r * math.exp(step)), objective(k.r * math.exp(-step))
    return (up - down) / (2 * step)


def sapo(k):
    tau = 1.0 if k.A > 0 else 1.05
    return slope(lambda r: 4 / tau / (1 + math.exp(-tau * (r - 1))) * k.A, k)


def grpo_sg(k):
    w = 2 * (1 / (1 + math.exp(-9 * k.pi)) - 0.25)
    return min(max(w, 1.0), 1.4) * clipped(k, high=0.24)


def dppo(k):
    moved = k.pi - k.old
    return 0.0 if moved > 0.15 and k.A > 0 or moved < -0.15 and k.A < 0 else min(k.r, 20) * k.A


def aspo(k):
    if k.A > 0:
        return 0.0 if k.r > 1.2 else min(1 / k.r, 3) * k.A
    return 0.0 if k.r < 0.8 else min(k.r, 3) * k.A


def vespo(k):
    power, decay = (2, 3) if k.A >= 0 else (3, 2)
    return k.W ** power * math.exp(decay * (1 - k.W)) * k.A


def whitened(k):
    """D minus its mean over all tokens, divided by its standard deviation over them."""
    mean = sum(other.D for other in TOKENS) / N
    variance = sum((other.D - mean) ** 2 for other in TOKENS) / (N - 1)
    return (k.D - mean) / math.sqrt(variance + 1e-8)


def optimal_baseline(k):
    """The mean reward of the group's completions that have a token here, weighted by energy."""
    others = [other for other in TOKENS if other.i // G == k.i // G and other.t == k.t]
    return sum(other.energy * other.reward for other in others) / sum(
        other.energy for other in others)


def kl_cov(k):
    largest = k.cov == max(other.cov for other in TOKENS)
    return slope(lambda r: r * k.A - largest * abs(math.log(r)), k)


# ---- The rules ----

lengths = mask.sum(1, keepdim=True).expand_as(mask)
D_token = D.flatten()[:, None].expand_as(mask)[mask]
energy = ((1 - 2 * old_logps.exp() + S) * mask).cumsum(1) * mask
by_group = energy.reshape(P, G, T)
baseline = (by_group * R[:, :, None]).sum(1) / (by_group.sum(1) + 1e-8)  # (P, T)
log_s = ((logps - old_logps) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
drift = ((q_logps - logps.detach()) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
tau = torch.where(a > 0, 1.0, 1.05)
gate = torch.sigmoid(tau * (r - 1))
forking = H >= torch.quantile(H[mask], 0.8)
spurious = (a > 0) & (pi < p) & (H < h)
rare = (a > 0) & (pi <= torch.quantile(pi[mask & (a > 0)], 0.1))
moved = pi - old_logps.exp()
kept = torch.where(a > 0, moved <= delta, moved >= -delta)
cov = (a - (a * mask).sum() / mask.sum()) * (pi.log() - pi.log()[mask].mean())
inside = torch.where(a > 0, r <= 1.2, r >= 0.8)
candidates = (mask & inside & (1 < cov) & (cov < 5)).nonzero()
drawn = torch.zeros_like(mask)
drawn[tuple(candidates[len(candidates) // 2])] = True
top = mask & (cov == cov[mask].max())
W = ((logps - old_logps) * mask).sum(1, keepdim=True).detach().exp()
power, decay = torch.where(a < 0, 3, 2), torch.where(a < 0, 2, 3)
f = (old_logps - q_logps).exp()
F = ((old_logps - q_logps) * mask).sum(1, keepdim=True).exp()
# method -> (the slope of a token's objective, arguments of the loss that differ from GRPO's with
# token-mean, what the slope is divided by if not the number of tokens)
RULES = {
    "PPO": (lambda k: clipped(k, k.A_t), dict(advantages=A_t)),
    "RLOO": (lambda k: k.reward - k.others, dict(
        advantages=(D * G / (G - 1)).flatten(), old_logps=logps, denominator=B), lambda k: B),
    "REINFORCE++-baseline": (lambda k: clipped(k, whitened(k)), dict(
        advantages=(D.flatten() - D_token.mean()) / (D_token.var() + 1e-8).sqrt())),
    "OTB": (lambda k: clipped(k, k.reward - optimal_baseline(k)), dict(
        advantages=R.flatten()[:, None] - baseline.repeat_interleave(G, 0))),
    "GRPO": (clipped, dict(weights=1 / lengths, denominator=B), lambda k: k.length * B),
    "Dr. GRPO": (lambda k: clipped(k, k.D), dict(
        advantages=D.flatten(), denominator=B * MAX_NEW_TOKENS), lambda k: B * MAX_NEW_TOKENS),
    "MaxRL": (lambda k: clipped(k, k.D / (k.mean + 1e-6)) if k.mean > 0 else 0.0, dict(
        advantages=torch.where(mean_R > 0, D / (mean_R + 1e-6), 0).flatten())),
    "DAPO": (lambda k: clipped(k, high=0.28), dict(clip_high=0.28)),
    "dual clip": (lambda k: 0.0 if k.A < 0 and k.r > 3 else clipped(k), dict(
        weights=1 - ((a < 0) & (r > 3)).float())),
    "GSPO": (lambda k: clipped(k, low=3e-4, high=4e-4, r=k.W ** (1 / k.length)), dict(
        logps=log_s.expand_as(mask), old_logps=torch.zeros(B, T), clip_low=3e-4, clip_high=4e-4,
        weights=1 / lengths, denominator=B), lambda k: k.length * B),
    "CISPO": (lambda k: min(k.r, 1.3) * k.A, dict(old_logps=logps, weights=r.clamp(max=c))),
    "SAPO": (sapo, dict(old_logps=logps, weights=4 * gate * (1 - gate) * r / lengths,
                        denominator=B), lambda k: k.length * B),
    "DPPO-TV": (dppo, dict(old_logps=logps, weights=kept * r.clamp(max=20))),
    "ASPO": (aspo, dict(weights=torch.where(a > 0, 1 / r, r).clamp(max=3) / r)),
    "VESPO": (vespo, dict(
        old_logps=logps, weights=(W ** power * (decay * (1 - W)).exp()).expand_as(mask))),
    "Clip-Cov": (lambda k: 0.0 if drawn[k.i, k.t] else clipped(k), dict(weights=(~drawn).float())),
    "KL-Cov": (kl_cov, dict(old_logps=logps, advantages=r * a - top * (r - 1).sign())),
    "forking tokens": (lambda k: clipped(k, high=0.28) if k.H in FORKING else 0.0, dict(
        weights=forking.float(), clip_high=0.28)),
    "STARE": (lambda k: (1.1 if k.pi in RARE else 1.0) * clipped(k, high=0.28), dict(
        weights=1 + 0.1 * rare * (H[mask].mean() < 0.3), clip_high=0.28)),
    "STAPO": (lambda k: 0.0 if k.A > 0 and k.pi < p and k.H < h else clipped(k, high=0.28), dict(
        mask=mask & ~spurious, clip_high=0.28), lambda k: N - (mask & spurious).sum().item()),
    "Delightful": (lambda k: k.A / (1 + math.exp(k.A * math.log(k.pi))), dict(
        old_logps=logps, weights=torch.sigmoid(-a * logps))),
    "AR-Lopti": (lambda k: (0.2 * k.pi + 0.8) * clipped(k, high=0.24), dict(
        weights=0.2 * pi + 0.8, clip_high=0.24)),
    "GRPO-SG": (grpo_sg, dict(weights=token_weights(logps), clip_high=0.24)),
    # If another engine samples.
    "TIS": (lambda k: min(k.f, 2) * clipped(k), dict(weights=f.clamp(max=2))),
    "IcePop": (lambda k: k.f * clipped(k) if 0.5 <= k.f <= 5 else 0.0, dict(
        weights=f * ((f >= 0.5) & (f <= 5)))),
    "OPSM": (lambda k: clipped(k) if k.A >= 0 or k.drift <= delta else 0.0, dict(
        weights=(1 - ((a < 0) & (drift > delta)).float()).expand_as(mask))),
    "sequence_mask": (lambda k: k.F * clipped(k) if k.F <= 3 else 0.0, dict(
        weights=(F * (F <= 3)).expand_as(mask))),
}


@pytest.mark.parametrize("method", RULES)
def test_the_gradient_is_the_loops(method):
    objective, changed, *divisor = RULES[method]
    arguments = dict(logps=logps, old_logps=old_logps, advantages=A, mask=mask, clip_high=0.2)
    loss, _ = grpo_sg_loss(**{**arguments, **changed})
    gradient, = torch.autograd.grad(loss, logps, retain_graph=True)
    expected = torch.zeros(B, T)
    for k in TOKENS:
        expected[k.i, k.t] = -objective(k) / (divisor[0](k) if divisor else N)
    assert expected.abs().max() > 0.001
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def test_clip_cov_draws_where_the_covariance_is_large():
    assert candidates.tolist() == [[k.i, k.t] for k in COV] != []


def test_the_batch_has_what_the_rules_tell_apart():
    assert 0 < (mean_R > 0).sum() < P
    assert any(k.A < 0 and k.r > 3 for k in TOKENS)
    assert any(k.A < 0 and k.drift > delta for k in TOKENS)
    assert any(k.A < 0 and k.drift <= delta for k in TOKENS)


def test_a_mean_over_completions_is_a_weight_or_with_a_kl_a_mean_of_calls():
    whole, _ = grpo_sg_loss(logps, old_logps, A, mask, weights=token_weights(logps) / lengths,
                            denominator=B)
    calls = [grpo_sg_loss(logps[i:i + 1], old_logps[i:i + 1], A[i:i + 1], mask[i:i + 1],
                          weights=token_weights(logps[i:i + 1]), ref_logps=ref_logps[i:i + 1],
                          beta=0.04)[0] for i in range(B)]
    for loss, beta in ((whole, 0.0), (torch.stack(calls).mean(), 0.04)):
        gradient, = torch.autograd.grad(loss, logps, retain_graph=True)
        for k in TOKENS:
            expected = beta * (1 - k.ref / k.pi) - grpo_sg(k)
            assert gradient[k.i, k.t].item() == pytest.approx(expected / (k.length * B), abs=1e-6)


def test_maxrl_with_rewards_below_0_would_push_a_correct_completion_down():
    group = [3.0] + 5 * [-0.5] + 2 * [-3.0]
    mean = sum(group) / 8
    assert (3 - mean) / mean == pytest.approx(-5.36, abs=0.005)


def test_the_tables_show_what_is_tested():
    """A row of the page has code of the rule that it names."""
    for table in PAGE.split("\n| method | what it changes | here |\n|---|---|---|\n")[1:]:
        for row in table.split("\n\n")[0].splitlines():
            _, name, *_, calls, _ = row.split("|")
            method = max((rule for rule in RULES if rule in name), key=len)
            rule = SOURCE.split(f'\n    "{method}": ')[1].split("\n    \"")[0]
            for code in calls.split("`")[1::2]:
                assert code.startswith("--") or code in rule, f"{method}: {code}"
