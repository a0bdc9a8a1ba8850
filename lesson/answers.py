"""Answers to exercises.py: the shortest bodies that pass the tests.

grpo_sg.py has the versions that the program uses: they check their arguments, return statistics,
compute logits only where they are needed, and split minibatches to fit into memory.
"""
import math
import random

import torch
import torch.nn.functional as F

import grpo_sg


def token_weights(logps, *, alpha=2.0, tau=1/9, mu=0.25, low=1.0, high=1.4):
    pi = logps.detach().float().exp()
    return (alpha * (torch.sigmoid(pi / tau) - mu)).clamp(low, high)


def group_advantages(rewards, *, eps=1e-6):
    R = rewards.double()
    mean = R.mean(1, keepdim=True)
    std = R.std(1, keepdim=True)
    A = (R - mean) / (std + eps)
    equal = (R == R[:, :1]).all(1, keepdim=True)
    return A.masked_fill(equal, 0.0).float()


def grpo_sg_loss(logps, old_logps, advantages, mask, *, weights=None, ref_logps=None,
                 clip_low=0.2, clip_high=0.24, beta=0.0, denominator=None):
    mask = mask.bool()
    A = advantages.reshape(len(logps), -1)  # (B, 1) or (B, T)
    r = (logps - old_logps.detach()).masked_fill(~mask, 0.0).exp()
    clipped = r.clamp(1 - clip_low, 1 + clip_high)
    objective = torch.minimum(r * A, clipped * A)
    if weights is not None:
        objective = weights.detach() * objective
    if beta:
        log_x = (ref_logps.detach() - logps).masked_fill(~mask, 0.0)
        kl = log_x.exp() - 1 - log_x
        objective = objective - beta * kl
    objective = objective.masked_fill(~mask, 0.0)
    loss = -objective.sum() / (denominator or mask.sum().clamp(min=1))
    return loss, {}


def token_logps(model, ids, mask, *, temperature=1.0):
    logits = model(input_ids=ids).logits.float() / temperature
    logps = logits[:, :-1].log_softmax(-1)  # at position t, of token t + 1
    logps = logps.gather(-1, ids[:, 1:, None]).squeeze(-1)
    logps = F.pad(logps, (1, 0))  # the first token of a row has no log-probability
    return logps.masked_fill(~mask, 0.0)


def draw(logits, u, temperature):
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    cdf = torch.softmax(logits.float() / temperature, -1).cumsum(-1)
    total = cdf[:, -1:]  # not quite 1, because it is a rounded sum
    return torch.searchsorted(cdf, u * total, right=True)


def pass_at_k(n, c, k):
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def make_batch(completions, device):
    longest = max(len(c.prompt) + len(c.tokens) for c in completions)
    ids, mask = [], []
    for c in completions:
        pads = longest - len(c.prompt) - len(c.tokens)
        ids.append(c.prompt + c.tokens + [0] * pads)
        mask.append([False] * len(c.prompt) + c.mask + [False] * pads)
    advantages = torch.tensor([c.advantage for c in completions], device=device)
    return grpo_sg.Batch(torch.tensor(ids, device=device), torch.tensor(mask, device=device),
                         advantages)


def learn(policy, optimizer, completions, cfg, reference=None, seed=0):
    shuffled = random.Random(seed).sample(completions, len(completions))
    batches = []
    for i in range(cfg.updates):
        batch = make_batch(shuffled[i::cfg.updates], policy.model.device)
        row = batch.ids, batch.mask
        with torch.no_grad():
            batch.old_logps = token_logps(policy.model, *row, temperature=cfg.temperature)
            if cfg.beta:
                batch.ref_logps = token_logps(reference, *row, temperature=cfg.temperature)
        batches.append(batch)
    for batch in batches:
        logps = token_logps(policy.model, batch.ids, batch.mask, temperature=cfg.temperature)
        loss, _ = grpo_sg_loss(
            logps, batch.old_logps, batch.advantages, batch.mask,
            weights=grpo_sg.weigh(logps, cfg), ref_logps=batch.ref_logps,
            clip_low=cfg.clip_low, clip_high=cfg.clip_high, beta=cfg.beta)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
