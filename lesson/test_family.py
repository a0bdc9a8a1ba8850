"""Each rule of family.md, as a call of grpo_sg_loss, against plain loops over tokens.

What the rules were read from, where not from the paper alone: AR-Lopti's clip and its 0.2 from its
scripts; GSPO's bounds and the forking tokens from TRL, trainer/grpo_trainer.py (commit f2cd577).
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
c = 1.3

# ---- One batch, with the names of family.md ----

generator = torch.Generator().manual_seed(77)
R = 4 * torch.rand(P, G, generator=generator) - 2
logps = (-6 * torch.rand(B, T, generator=generator) ** 2).requires_grad_()
old_logps, q_logps = logps.detach() + 0.5 * torch.randn(2, B, T, generator=generator) ** 3
H, A_t = torch.rand(B, T, generator=generator), torch.randn(B, T, generator=generator)
mask = torch.arange(T) < torch.randint(2, T + 1, (B, 1), generator=generator)
A, D = group_advantages(R).flatten(), R - R.mean(1, keepdim=True)
# Ratios on both sides of each clip: GSPO's, then 1.2, 1.24 and 1.28.
near = torch.tensor([3.5e-4, 5e-4]).repeat(P)[:, None] * A[::2, None].sign()
old_logps[::2] = logps[::2].detach() - near
old_logps[1::2, 0] = logps[1::2, 0].detach() - torch.tensor([0.2, 0.23, 0.3]).repeat(4)
r, pi, f = (logps - old_logps).detach().exp(), logps.detach().exp(), (old_logps - q_logps).exp()


# ---- The same for loops: plain numbers ----

def read_token(i, t):
    group, reward = R[i // G].tolist(), R.flatten()[i].item()
    mean = sum(group) / G
    std = math.sqrt(sum((x - mean) ** 2 for x in group) / (G - 1)) + 1e-6
    now, old, q = (math.exp(x[i, t].item()) for x in (logps, old_logps, q_logps))
    return SimpleNamespace(
        i=i, pi=now, r=now / old, f=old / q, H=H[i, t].item(), A=(reward - mean) / std,
        A_t=A_t[i, t].item(), D=reward - mean, others=(sum(group) - reward) / (G - 1), reward=reward)


TOKENS = [read_token(i, t) for i in range(B) for t in range(T) if mask[i, t]]
N = len(TOKENS)
for k in TOKENS:
    row = [other for other in TOKENS if other.i == k.i]
    k.length, k.s = len(row), math.prod(other.r for other in row) ** (1 / len(row))
FORKING = sorted(k.H for k in TOKENS)[int(0.8 * (N - 1)) + 1:]


def clipped(k, A=None, low=0.2, high=0.2, r=None):
    """The slope of PPO's objective in log pi: r A, or 0 where the minimum is the clipped side."""
    A, r = k.A if A is None else A, k.r if r is None else r
    return r * A if r * A <= min(max(r, 1 - low), 1 + high) * A else 0.0


def grpo_sg(k):
    w = 2 * (1 / (1 + math.exp(-9 * k.pi)) - 0.25)
    return min(max(w, 1.0), 1.4) * clipped(k, high=0.24)


# ---- The rules ----

lengths = mask.sum(1, keepdim=True).expand_as(mask)
log_s = ((logps - old_logps) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
forking = H >= torch.quantile(H[mask], 0.8)
# method -> (the slope of a token's objective, arguments of the loss that differ from GRPO's with
# token-mean, what the slope is divided by if not the number of tokens)
RULES = {
    "PPO": (lambda k: clipped(k, k.A_t), dict(advantages=A_t)),
    "RLOO": (lambda k: k.reward - k.others, dict(
        advantages=(D * G / (G - 1)).flatten(), old_logps=logps, denominator=B), lambda k: B),
    "GRPO": (clipped, dict(weights=1 / lengths, denominator=B), lambda k: k.length * B),
    "Dr. GRPO": (lambda k: clipped(k, k.D), dict(
        advantages=D.flatten(), denominator=B * MAX_NEW_TOKENS), lambda k: B * MAX_NEW_TOKENS),
    "DAPO": (lambda k: clipped(k, high=0.28), dict(clip_high=0.28)),
    "GSPO": (lambda k: clipped(k, low=3e-4, high=4e-4, r=k.s), dict(
        logps=log_s.expand_as(mask), old_logps=torch.zeros(B, T), clip_low=3e-4, clip_high=4e-4,
        weights=1 / lengths, denominator=B), lambda k: k.length * B),
    "CISPO": (lambda k: min(k.r, 1.3) * k.A, dict(old_logps=logps, weights=r.clamp(max=c))),
    "forking tokens": (lambda k: clipped(k, high=0.28) if k.H in FORKING else 0.0, dict(
        weights=forking.float(), clip_high=0.28)),
    "AR-Lopti": (lambda k: (0.2 * k.pi + 0.8) * clipped(k, high=0.24), dict(
        weights=0.2 * pi + 0.8, clip_high=0.24)),
    "GRPO-SG": (grpo_sg, dict(weights=token_weights(logps), clip_high=0.24)),
    "TIS": (lambda k: min(k.f, 2) * clipped(k), dict(weights=f.clamp(max=2))),
}


@pytest.mark.parametrize("method", RULES)
def test_the_gradient_is_the_loops(method):
    objective, changed, *divisor = RULES[method]
    arguments = dict(logps=logps, old_logps=old_logps, advantages=A, mask=mask, clip_high=0.2)
    loss, _ = grpo_sg_loss(**{**arguments, **changed})
    gradient, = torch.autograd.grad(loss, logps, retain_graph=True)
    expected = torch.zeros(B, T)
    expected[mask] = torch.tensor([-objective(k) / (divisor[0](k) if divisor else N) for k in TOKENS])
    assert expected.abs().max() > 0.001
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def test_the_tables_show_what_is_tested():
    """A row of the page has code of the rule that it names, and each rule has a row."""
    named = []
    for table in PAGE.split("\n| method | what it changes | here |\n|---|---|---|\n")[1:]:
        for row in table.split("\n\n")[0].splitlines():
            _, name, *_, calls, _ = row.split("|")
            named.append(max((rule for rule in RULES if rule in name), key=len))
            rule = SOURCE.split(f'\n    "{named[-1]}": ')[1].split("\n    \"")[0]
            for code in calls.split("`")[1::2]:
                assert code.startswith("--") or code in rule, f"{named[-1]}: {code}"
    assert sorted(named) == sorted(RULES)
