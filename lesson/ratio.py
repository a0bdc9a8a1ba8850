"""What is the ratio r for? It is the clip's yardstick. Does it matter as a factor, too?

    python -m lesson.ratio        minutes on one core; --seeds 2 for a first look

Rungs 5b and 5c of the ladder stop the same tokens at the same place. For all other tokens the
gradient is r times that of log pi in 5b, and that of log pi in 5c. Here both run in settings
that move r further from 1. The script compares the mean reward of the last five steps, on the
policy's own completions, and pairs the differences by seed.
"""
import argparse
import copy
import os
import sys

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

# The project's folder, because a script sees only its own.
sys.path.append(os.path.abspath("." if os.path.exists("grpo_sg.py") else ".."))
from grpo_sg import group_advantages, sample, token_logps
from lesson.ladder import (G, P, STEPS, new_model, new_optimizer, over_tokens, read_seeds,
                           reward)

SETTINGS = {
    "as in rungs 5b and 5c": {},
    "a clip of 0.1 to 10": {"low": 0.9, "high": 9.0},
    "16 updates on the same completions": {"updates": 16},
    "completions of four steps ago": {"lag": 4},
}
OTHER_SAMPLER = "sampled at temperature 2"  # learned at 1
TRUNCATED_AT = 2.0


def objective_of(r, logps, A, low, high, factor):
    """Return the clipped objective (B, T), with or without r as a factor of its gradient."""
    clipped = r.clamp(1 - low, 1 + high) * A
    if factor:
        return torch.minimum(r * A, clipped)
    return (A * logps).masked_fill(clipped < r * A, 0.0)


def draw_completions(model, prompts, temperature=1.0):
    return sample(model, prompts, n=G, max_new_tokens=8, stop_ids={0}, temperature=temperature)


def rewards_of(prompts, completions):
    prompts = [prompt for prompt in prompts for _ in range(G)]
    return torch.tensor([reward(*pair) for pair in zip(prompts, completions)])  # (B,)


def to_tensors(prompts, completions):
    """Return ids and mask (B, T) of P prompts and their P * G completions."""
    ids, mask = [], []
    for i, tokens in enumerate(completions):
        prompt = prompts[i // G]
        ids.append(torch.tensor(prompt + tokens))
        mask.append(torch.tensor([False] * len(prompt) + [True] * len(tokens)))
    return pad_sequence(ids, batch_first=True), pad_sequence(mask, batch_first=True)


def train(seed, *, factor=True, low=0.2, high=0.2, updates=4, lag=0, temperature=1.0,
          truncated=False, distances=None):
    """Train a new model. Returns the mean reward of the last five steps.

    lag: sample completions with the policy of this many steps ago, and compute r relative to
    it. temperature: of sampling only; log-probabilities and r are at temperature 1.
    truncated: multiply each token by min(pi / mu, 2), where mu is its probability when sampled.
    distances: a list to which r - 1 is appended for each token that still has a gradient,
    except in first updates, where r is 1.
    """
    torch.manual_seed(seed)
    model = new_model()
    optimizer = new_optimizer(model)
    policies, curve = [], []
    for step in range(STEPS):
        policies = [*policies, copy.deepcopy(model)][-lag - 1:]
        sampler = policies[0]
        prompts = torch.randint(1, 8, (P, 1)).tolist()
        completions = draw_completions(sampler, prompts, temperature)
        R = rewards_of(prompts, completions)
        own = completions if sampler is policies[-1] and temperature == 1 else None
        if own is None and step >= STEPS - 5:
            own = draw_completions(model, prompts)
        if own is not None:
            curve.append(rewards_of(prompts, own).mean().item())
        A = group_advantages(R.view(P, G)).view(-1, 1)  # (B, 1)
        ids, mask = to_tensors(prompts, completions)
        with torch.no_grad():
            old_logps = token_logps(sampler, ids, mask)
            mu = token_logps(sampler, ids, mask, temperature=temperature)
        correction = (old_logps - mu).exp().clamp(max=TRUNCATED_AT) if truncated else 1.0
        for update in range(updates):
            logps = token_logps(model, ids, mask)
            r = (logps - old_logps).exp()
            objective = correction * objective_of(r, logps, A, low, high, factor)
            if distances is not None and update > 0:
                held_back = r.clamp(1 - low, 1 + high) * A < r * A
                distances += (r - 1)[mask & ~held_back & (A != 0)].tolist()
            optimizer.zero_grad()
            (-over_tokens(objective, mask)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return sum(curve[-5:]) / 5


def compare(title, seeds, first, second, **setting):
    """Print both means and their paired difference. first, second: arguments of train."""
    rows = []
    for seed in tqdm(seeds, title, leave=False, delay=3):
        rows.append([train(seed, **setting, **first), train(seed, **setting, **second)])
    scores = torch.tensor(rows)  # (seeds, 2)
    difference = scores[:, 0] - scores[:, 1]
    error = difference.std() / len(rows) ** 0.5
    with_it, without_it = scores.mean(0).tolist()
    print(f"{title:36} {with_it:.3f} with, {without_it:.3f} without: "
          f"{difference.mean():+.3f} +- {error:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="python -m lesson.ratio")
    parser.add_argument("--seeds", type=read_seeds, default=range(6), metavar="N",
                        help="how many, from 0 on; or from which to which: 6-11")
    seeds = parser.parse_args().seeds
    if len(seeds) < 2:
        parser.error("a standard error needs two seeds or more: --seeds 2")
    distances = []
    train(0, distances=distances)
    far = torch.tensor(distances).abs()
    near = 100 * (far <= 0.2).float().mean()
    print("rung 5b, updates 2 to 4, the tokens that have a gradient: |r - 1| is "
          f"{far.mean():.3f} on average, at most a fifth for {near:.1f}%", flush=True)
    print("r as a factor:")
    for title, setting in SETTINGS.items():
        compare(title, seeds, {"factor": True}, {"factor": False}, **setting)
    print("min(pi / mu, 2) as a factor:")
    compare(OTHER_SAMPLER, seeds, {"truncated": True}, {"truncated": False}, temperature=2.0)


if __name__ == "__main__":
    main()
