# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "transformers==5.23.0", "datasets==5.2.0", "tqdm==4.70.1"]
# # `uv run grpo_sg.py` reads these lines, and needs no requirements.txt.
# ///
"""GRPO-SG: reinforcement learning with verifiable rewards, in one file meant to be read
from top to bottom. If you have ten minutes, read lesson/one_page.py, the method without the rest.

For each prompt, sample a group of completions from the policy and let a verifier grade
them: each gets a reward R. GRPO makes the completions that beat the mean of their group
more likely, token by token, and the others less:

    maximize the mean over tokens of
        w * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - beta KL

    r = pi_theta(token) / pi_old(token)              A = (R - mean R) / std R in the group
    w = clip(alpha * (sigmoid(pi_theta(token) / tau) - mu), L, U)
    KL = for each token, an estimate of how far pi_theta is from a reference policy

The weight w is what GRPO-SG adds (arXiv 2511.00066). It is never negative, so w * min(r A,
clip(r) A) = min(r (wA), clip(r) (wA)): GRPO-SG is GRPO in which every token has its own
advantage wA. By default w is 1 up to pi = 0.12, rises to 1.4 at pi = 0.33, and stays there.
Low-probability tokens have the largest gradients (their norms grow with 1 - pi), and the weight
makes them count for less than the others, whose w is 1.4. The loop is `train`, in section 5:
sample, compare, learn.

Sections 1 to 6 are the method, sections 7 to 11 the program around it. Simplicity has a price: one
GPU, slow sampling (an inference engine is faster), no value network, no learned reward.

Imported, this file needs torch, transformers and tqdm: bring a model, a tokenizer and a task
(`rollout` lists what a task needs). With tasks.py next to it, it is a program:

    python grpo_sg.py                                              train a tiny model (in a clone)
    python grpo_sg.py --model Qwen/Qwen2.5-0.5B --task kk          train a real one
    python grpo_sg.py --task my_task.py --model NAME               on a task of your own
    python grpo_sg.py --eval_only --model runs/NAME                test what a run has trained
    python grpo_sg.py --resume runs/NAME                           continue an interrupted run
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import inspect
import json
import math
import os
import random
import re
import shutil
import textwrap
import time
import types
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean as mean
from typing import Literal

import filelock
import huggingface_hub
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

# ---- 1. The algorithm: pure functions of tensors ----

# One letter, one meaning:
#   P  prompts in a rollout                 T  tokens in a row, padded on the right
#   G  completions of each prompt           N  tokens in a batch that the policy wrote
#   B  rows of a batch: P G, or fewer       V  tokens in the vocabulary
#   S  tokens in a prompt, padded on the left for sampling

def token_weights(logps: Tensor, *, alpha: float = 2.0, tau: float = 1/9, mu: float = 0.25,
                  low: float = 1.0, high: float = 1.4) -> Tensor:
    """Compute GRPO-SG's weights, w = clip(alpha * (sigmoid(pi / tau) - mu), L, U).

    Args:
        logps: log pi, in nats, of the sampled tokens under the current policy, at the
            sampling temperature; any shape. Probabilities, if you pass them by mistake, give no
            error, and every weight is U.
        alpha, tau, mu: scale, temperature and offset of the sigmoid. tau is our choice: the only
            source with a value says 9, which would make w constant (lesson/weight.md).
        low, high: the bounds L and U.

    Returns:
        Weights >= low, shaped like logps: float32 and detached.
    """
    # w is detached: otherwise the policy could raise its objective through w, rather than through
    # the reward.
    pi = logps.detach().float().exp()
    return (alpha * (torch.sigmoid(pi / tau) - mu)).clamp(low, high)


def are_equal(rewards):
    """Return whether the rewards of each group are equal up to the rounding of their dtype, as
    0.1 * 3 and 0.3 are. rewards: (P, G), a group in each row; the result is (P, 1)."""
    rounding = torch.finfo(rewards.dtype).eps if rewards.is_floating_point() else 0.0
    R = rewards.double()
    spread = R.amax(1, keepdim=True) - R.amin(1, keepdim=True)
    # 1e-12, because a reward in float64 may be a sum of many terms, each of them rounded.
    return spread <= max(1e-12, 2 * rounding) * R.abs().amax(1, keepdim=True)


def group_advantages(rewards: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Compute A = (R - mean R) / (std R + eps) in each group, as GRPO does (arXiv 2402.03300).

    Args:
        rewards: (P, G) with G >= 2, of any numeric dtype, on a device with float64; finite.
        eps: added to the sample standard deviation (over G - 1, as in TRL and verl).

    Returns:
        (P, G) float32. Exactly 0 in a group whose rewards are equal up to rounding.
    """
    assert rewards.dim() == 2 and rewards.shape[1] > 1, f"(P, G >= 2), not {rewards.shape}"
    assert rewards.isfinite().all(), "a reward is infinite or NaN"
    # The mean is subtracted in float64: in float32, 1e9 and 1e9 + 1 are equal.
    R = rewards.double()
    # The group is the baseline. A reward of 3 is good only if the policy usually gets less for
    # this prompt, and the group's mean estimates what it gets. PPO trains a value network to
    # predict this number.
    difference = (R - R.mean(1, keepdim=True)).float()
    # Dividing by the standard deviation gives every prompt the same scale, whatever its rewards.
    A = difference / (difference.std(1, keepdim=True) + eps)
    # A is set to exactly 0 if all rewards are equal, because the division would otherwise turn
    # rounding errors into advantages.
    return A.masked_fill(are_equal(rewards), 0.0)


def grpo_sg_loss(logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, *,
                 weights: Tensor | None = None, ref_logps: Tensor | None = None,
                 clip_low: float = 0.2, clip_high: float = 0.24, beta: float = 0.0,
                 denominator: float | None = None) -> tuple[Tensor, dict]:
    """Compute the loss to minimize: weights=token_weights(logps) is GRPO-SG, weights=None is GRPO.

    r = pi_theta / pi_old = exp(logps - old_logps) for each token. Before the first update
    r = 1, so the loss (without KL) is -mean(wA), often near 0. Its gradient is not: at r = 1 the
    gradient of r is that of log pi, so the update is REINFORCE with the advantage wA.

    Args:
        logps, old_logps, ref_logps: (B, T) log-probabilities, in nats, under pi_theta (with
            gradient), the policy that sampled, and the reference; finite where mask is true.
        advantages: (B,), (B, 1) or (B, T).
        mask: (B, T) bool, int or float: true on the tokens that the policy wrote; other
            positions are ignored.
        weights: (B, T); detached here.
        clip_low, clip_high: r is clipped to [1 - clip_low, 1 + clip_high]. GRPO has 0.2
            for both; 0.24 is AR-Lopti's (arXiv 2505.12929).
        beta: coefficient of the KL to the reference.
        denominator: what the sum over tokens is divided by; by default the number of tokens in
            the mask. A call that gets only a part of a batch needs the number of tokens in the
            whole batch: the losses of the parts then add up to the loss of the whole. If
            gradients are averaged over processes, as in DDP, divide it by the number of processes.

    Returns:
        (loss, sums): a scalar, and the dict of `summarize_tokens`, whose values are sums over
        tokens, because those of the parts of a batch add up: sums["kl"] / sums["count"] is the
        mean KL.
    """
    B, T = logps.shape  # two dimensions: packed rows, (N,), would broadcast to (N, N)
    for x in (old_logps, mask, weights, ref_logps):  # other shapes would broadcast
        assert x is None or x.shape == logps.shape, f"{tuple(x.shape)} is not (B, T), {(B, T)}"
    assert advantages.shape in ((B,), (B, 1), (B, T)), f"advantages: {tuple(advantages.shape)}"
    assert ref_logps is not None or not beta, "beta > 0 needs ref_logps"
    logps = logps.to(torch.promote_types(logps.dtype, torch.float32))
    mask = mask.bool()
    A = advantages.reshape(B, -1)  # (B, 1) or (B, T)
    w = torch.ones_like(logps) if weights is None else weights.detach()  # (B, T)

    # A rollout is expensive, so several updates share it. From the second update on, pi_theta
    # differs from the old policy, pi_old, which wrote the tokens, and the ratio r corrects for
    # that (importance sampling).
    # Mask before exp, so that NaNs at padding don't propagate.
    r = (logps - old_logps.detach()).masked_fill(~mask, 0.0).exp()
    # The correction holds only near r = 1, so the clip ends the gradient of a token that has moved
    # far enough. (Updates of other tokens can still move it.)
    clipped = r.clamp(1 - clip_low, 1 + clip_high)
    # Within the bounds both terms of the minimum are r A. Outside of them there are four cases:
    #   A > 0, r too high: the token has become likely enough; clipped A has no gradient.
    #   A < 0, r too low: it has become unlikely enough; clipped A has no gradient.
    #   A > 0, r too low: it has moved the wrong way; r A makes it more likely.
    #   A < 0, r too high: it has moved the wrong way; r A makes it less likely.
    # w is outside the clip. Inside it, in clip(w r), a high-probability token (w = 1.4) with
    # A > 0 would be above 1 + clip_high from the start, so it would get no gradient.
    objective = w * torch.minimum(r * A, clipped * A)
    # By default beta is 0. The KL keeps the policy near the texts on which a learned reward model
    # is right. A verifier is a program, which is right on all texts (although the policy may find
    # its gaps), and the reference would be a second model in memory.
    if beta:  # not times w, which scales only the advantage
        objective = objective - beta * estimate_kl(logps, ref_logps, mask)

    # Every token counts the same. In the mean over completions of the original GRPO, a token of a
    # long completion counts less, so those of a long wrong one would be pushed down less.
    if denominator is None:
        denominator = mask.sum().clamp(min=1)
    loss = -objective.masked_fill(~mask, 0.0).sum() / denominator
    held_back = clipped * A < r * A  # by the clip
    return loss, summarize_tokens(logps, old_logps, ref_logps, w, held_back, mask)


@torch.no_grad()
def summarize_tokens(logps, old_logps, ref_logps, w, held_back, mask):
    """Return sums over the tokens in the mask, and their number, "count". Divided by it, they are
    what the log calls by these names."""
    statistics = {
        "clip_frac": held_back.float(),
        # the KL to the reference; without one, to the policy that sampled
        "kl": estimate_kl(logps, old_logps if ref_logps is None else ref_logps, mask),
        # of the policy that sampled, in nats, estimated from the sampled tokens
        "entropy": -old_logps.to(logps.dtype),
        "weight_mean": w,
        # low-probability tokens. With the default settings these are the ones that w
        # down-weights, because it reaches its maximum U at pi = 0.327.
        "low_prob_frac": (logps < math.log(1/3)).float()}
    sums = {"count": mask.sum()}
    for name, values in statistics.items():
        sums[name] = values.masked_fill(~mask, 0.0).sum()
    return sums


def estimate_kl(logps, ref_logps, mask):
    """Estimate KL(pi_theta, pi_ref) at each token, (B, T), by k3
    (joschu.net/blog/kl-approx.html): >= 0, and 0 if both policies agree.

    It is unbiased only while pi_theta = pi_old; its gradient is biased even then.
    """
    # log(pi_ref / pi_theta)
    log_ratio = (ref_logps.detach() - logps).masked_fill(~mask, 0.0)
    # expm1(x) is more accurate near 0 than exp(x) - 1.
    return torch.expm1(log_ratio) - log_ratio


# ---- 2. Log-probabilities of the policy ----

def token_logps(model: torch.nn.Module, ids: Tensor, mask: Tensor, *,
                temperature: float = 1.0) -> Tensor:
    """Compute log pi(ids[b, t] | ids[b, :t]) for the tokens in the mask.

    No attention mask is needed: padding comes last, and no token attends to what follows
    it. (Rows padded on the left would get wrong numbers.)

    Args:
        model: any causal language model of transformers 5.21 or newer, in eval mode.
            (Training mode gives a warning.)
        ids: (B, T), prompt and completion, padded on the right with any token.
        mask: (B, T), true exactly on sampled tokens, and never on a row's first token,
            which has no context.
        temperature: the one at which the tokens were sampled.

    Returns:
        (B, T) float32, in nats; 0 outside of the mask.
    """
    assert mask.shape == ids.shape, f"mask {tuple(mask.shape)}, ids {tuple(ids.shape)}"
    mask = mask.bool()
    assert not mask[:, 0].any(), "a row's first token has no context"
    assert temperature > 0, f"the temperature must be above 0, not {temperature}"
    if model.training:
        warnings.warn("call model.eval(): with dropout, r is not 1 before the first update")
    # Position t predicts token t + 1. Only the N positions before sampled tokens go
    # through the vocabulary matrix: with Qwen's 151,936 tokens the other logits would
    # take most of an update's memory. logits_to_keep may be a mask: then transformers
    # computes the logits of its True positions only.
    output = model(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=mask[:, 1:])
    logits = output.logits.float() / temperature  # (N, V)
    del output  # or its logits would be kept next to these
    # The N logits, ids[mask] and the cells of masked_scatter have the same order: row by
    # row, from left to right.
    logps = -F.cross_entropy(logits, ids[mask], reduction="none")  # (N,)
    return torch.zeros_like(ids, dtype=torch.float32).masked_scatter(mask, logps)


# ---- 3. Sampling ----

def next_logits(model, ids, attention, position, cache):
    """Return the logits (B, V) of what follows ids (B, S), and add their keys and values
    to the cache. attention: (B, columns so far), 0 on padding. position: (B, S)."""
    output = model(input_ids=ids, attention_mask=attention, position_ids=position,
                   past_key_values=cache, use_cache=True, logits_to_keep=1)
    return output.logits[:, -1]


class Cache(transformers.DynamicCache):
    """Stores keys in the type of the values. Under autocast, rotary embeddings make keys
    float32, which would take twice the memory."""

    def update(self, keys, values, *args, **kwargs):
        return super().update(keys.to(values.dtype), values, *args, **kwargs)


def prefill(model, prompts):
    """Prefill B prompts: run the model once on each different prompt. Returns (logits,
    attention, position, cache): the logits of the first token (B, V), the attention mask
    (B, S), the last position (B, 1), and the keys and values of B rows."""
    different = list(dict.fromkeys(map(tuple, prompts)))
    rows = [torch.tensor(p) for p in different]
    # Padded on the left, so that every row continues at the last column; positions
    # count real tokens only.
    ids = pad_sequence(rows, batch_first=True, padding_side="left").to(model.device)
    real = [torch.ones_like(row) for row in rows]
    attention = pad_sequence(real, batch_first=True, padding_side="left").to(model.device)
    position = (attention.cumsum(1) - 1).clamp(min=0)
    cache = Cache(config=model.config)
    logits = next_logits(model, ids, attention, position, cache)
    # The largest one, because some models mask tokens with -inf.
    if not logits.amax(-1).isfinite().all():
        raise FloatingPointError("the model's logits are not finite: training destroyed it (lower "
                                 "--lr, and remove this run's newest checkpoint), or it has NaN")
    index = torch.tensor([different.index(tuple(p)) for p in prompts]).to(model.device)  # (B,)
    cache.reorder_cache(index)  # a row for each of the B prompts
    return logits[index], attention[index], position[index, -1:], cache


def draw(logits: Tensor, u: Tensor, temperature: float) -> Tensor:
    """Draw a token for each row of logits.

    Args:
        logits: (B, V).
        u: (B, 1), uniform random numbers in [0, 1).
        temperature: 0 takes the most likely token.

    Returns:
        (B, 1) token ids.
    """
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    # Invert the cumulative distribution; right=True, so that no token of probability 0
    # is ever drawn.
    cdf = torch.softmax(logits.float() / temperature, -1).cumsum(-1)  # (B, V)
    # The last sum is not quite 1, so u is scaled to it.
    token = torch.searchsorted(cdf, u * cdf[:, -1:], right=True)
    # NaN logits, or a u that was rounded up to 1, would end past the last token.
    return token.clamp(max=cdf.shape[1] - 1)


def show_progress(count: int, words: str) -> Iterator[int]:
    """Yield 0, 1, ... below count, with a bar in a terminal, and elsewhere with a line a minute."""
    bar = tqdm(range(count), words, leave=False, delay=2, disable=None)
    minute = time.monotonic() // 60
    for i in bar:
        yield i
        if bar.disable and time.monotonic() // 60 > minute:
            minute = time.monotonic() // 60
            print(f"{words}: {i + 1} of at most {count} tokens", flush=True)


@torch.no_grad()
def sample(model: torch.nn.Module, prompts: list[list[int]], *, n: int = 1,
           max_new_tokens: int, stop_ids, temperature: float = 1.0, generator=None,
           stopping_criteria=None) -> list[list[int]]:
    """Sample n completions of each of P prompts.

    Tokens are drawn from the whole of softmax(logits / temperature), which is what
    token_logps scores: with top-k or top-p, the tokens would come from
    one distribution and the gradient from another, and r would not show this.

    Args:
        model: a causal language model in eval mode.
        prompts: P lists of token ids; equal ones are prefilled once.
        n: completions of each prompt.
        max_new_tokens: a completion is cut off after this many tokens.
        stop_ids: token ids that end a completion. The completion keeps its stop token.
        temperature: 0 takes the most likely token.
        generator: a torch.Generator of any device; None uses the device's own.
        stopping_criteria: a StoppingCriteria of transformers that may end completions
            too. It gets the tokens drawn so far, without prompts, and no scores.

    Returns:
        P * n lists of token ids: all n of the first prompt, then those of the second, ...
    """
    assert not model.training, "call model.eval() before sampling"
    assert temperature >= 0, f"the temperature must not be below 0: {temperature}"
    assert all(len(p) for p in prompts), f"a prompt is empty: {prompts!r:.60}"
    prompts = [p for p in prompts for _ in range(n)]
    logits, attention, position, cache = prefill(model, prompts)
    stops = torch.tensor(list(stop_ids), device=model.device).long()
    # A row of uniform numbers for each completion: the tokens of a completion do not
    # depend on when the others end.
    device = getattr(generator, "device", model.device)
    u = torch.rand(len(prompts), max_new_tokens, generator=generator, device=device)
    u = u.to(model.device)
    alive = torch.arange(len(prompts), device=model.device)  # (B,): unfinished rows
    drawn = alive.new_zeros(len(alive), 0)  # (B, t): their tokens so far
    completions = [[] for _ in prompts]
    for t in show_progress(max_new_tokens, "sampling"):
        token = draw(logits, u[alive, t].unsqueeze(1), temperature)  # (B, 1)
        drawn = torch.cat([drawn, token], 1)
        ends = torch.isin(token[:, 0], stops) | (t + 1 == max_new_tokens)
        if stopping_criteria:
            ends |= stopping_criteria(drawn, None)
        going = (~ends).nonzero()[:, 0]
        if len(going) < len(alive):
            # Finished rows leave the batch and the cache: they cost no more work.
            for i, tokens in zip(alive[ends].tolist(), drawn[ends].tolist()):
                completions[i] = tokens
            if len(going) == 0:
                break
            alive, drawn, token = alive[going], drawn[going], token[going]
            attention, position = attention[going], position[going]
            cache.reorder_cache(going)
        attention = F.pad(attention, (0, 1), value=1)
        position = position + 1
        logits = next_logits(model, token, attention, position, cache)  # (B, V)
    return completions


# ---- 4. Rollouts: completions, their masks, verdicts and rewards ----

@dataclasses.dataclass
class Policy:
    """A causal language model of transformers, in eval mode on its device (see `prepare`), with its
    tokenizer. Here "parameters" are the model's; "weights" always means w."""
    model: torch.nn.Module
    tokenizer: object
    stop_ids: set[int]  # many models have several


@dataclasses.dataclass
class Completion:
    """A problem's prompt and what followed it. tokens are the sampled ids: never decoded
    and re-tokenized. mask says for each token whether the policy wrote it; it is
    False for a tool's answer."""
    problem: object
    prompt: list[int]  # token ids
    tokens: list[int] = dataclasses.field(default_factory=list)
    mask: list[bool] = dataclasses.field(default_factory=list)
    tool_calls: int = 0
    transcript: str = ""  # the tokens as text, without the stop token
    # the text to verify: the prompt's final tag, such as <think>, and what the policy wrote
    response: str = ""
    truncated: bool = False  # no stop token at its end
    correct: bool = False
    formatted: bool = False  # not if it was cut off
    reward: float = 0.0
    advantage: float = 0.0

    @property
    def solved(self):  # what accuracy counts
        return self.correct and self.formatted

    def add(self, tokens, own):
        self.tokens += tokens
        self.mask += [own] * len(tokens)

    def length(self):
        return len(self.prompt) + len(self.tokens)

    def own_tokens(self):
        return [token for token, own in zip(self.tokens, self.mask) if own]


def rollout(policy: Policy, task, problems: list, cfg: Config, *, n: int, temperature: float,
            seed: int) -> list[Completion]:
    """Sample and verify n completions of each problem.

    Args:
        task: any object with these attributes (tasks.py has examples):
            train, valid and test: lists of problems;
            verify(response, problem.answer), which returns two bools, (correct, formatted);
            reward(completion), which returns a finite number;
            write, None or a function like `write_completions`, which writes the
            completions in another way (support/tools.py: with calls of a tool).
        problems: each has the attributes answer (for verify), prompt (token ids) and opening (the
            text at the end of the prompt that belongs to the response, such as <think>, or "").
        cfg: a Config (section 7).
        n, temperature, seed: completions of each problem, and how to sample them. cfg.sample_batch
            changes the completions only by rounding.

    Returns:
        A list of Completion: all n of the first problem first, and so on.
    """
    policy.model.eval()
    # On the CPU: every device gets the same numbers.
    generator = torch.Generator().manual_seed(seed)
    completions = [Completion(p, p.prompt) for p in problems for _ in range(n)]
    (task.write or write_completions)(policy, completions, cfg, generator, temperature)
    for c in tqdm(completions, "verifying", leave=False, delay=2, disable=None):
        grade(c, policy, task)
    return completions


def split_groups(items: list, n: int) -> list[list]:
    """Split a list, such as completions in the order of `rollout`, into groups of n."""
    return [items[i:i + n] for i in range(0, len(items), n)]


def in_bfloat16(device: torch.device) -> torch.autocast:
    """Return a context in which a GPU multiplies matrices in bfloat16, while parameters
    stay in float32."""
    # A T4 or V100 only emulates bfloat16, slowly.
    enabled = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def write_completions(policy: Policy, completions: list[Completion], cfg: Config,
                      generator: torch.Generator, temperature: float,
                      stopping_criteria=None) -> list[list[int]]:
    """Let the policy continue the completions, at most cfg.sample_batch at once. Returns the new
    tokens of each. stopping_criteria: as for `sample`."""
    added = []
    for part in split_groups(completions, cfg.sample_batch):
        contexts = [c.prompt + c.tokens for c in part]
        # Entered once for all tokens: until it ends, the context keeps the copies in bfloat16 that
        # it has made of the parameters.
        with in_bfloat16(policy.model.device):
            added += sample(policy.model, contexts, max_new_tokens=cfg.max_new_tokens,
                            stop_ids=policy.stop_ids, temperature=temperature,
                            generator=generator, stopping_criteria=stopping_criteria)
    for c, tokens in zip(completions, added):
        c.add(tokens, own=True)
    return added


VERDICTS = [[False, False], [False, True], [True, False], [True, True]]


def grade(c: Completion, policy: Policy, task) -> None:
    """Set the completion's texts, the verdict on what the policy wrote, and the reward."""
    c.truncated = c.tokens[-1] not in policy.stop_ids
    end = None if c.truncated else -1
    c.response = c.problem.opening + policy.tokenizer.decode(c.own_tokens()[:end])
    c.transcript = c.problem.opening + policy.tokenizer.decode(c.tokens[:end])
    judge(c, task)


def judge(c: Completion, task) -> None:
    """Set the verdict on the completion's response, and the reward. Raises ValueError if the task's
    functions return something else."""
    verdict = task.verify(c.response, c.problem.answer)
    # == also accepts 0, 1 and NumPy's bools.
    if not isinstance(verdict, Iterable) or [*verdict] not in VERDICTS:
        raise ValueError("verify must return two bools, (correct, formatted), not "
                         f"{verdict!r:.99}; for the response {c.response!r:.99}")
    c.correct, c.formatted = map(bool, verdict)
    c.formatted = c.formatted and not c.truncated
    # In tasks.py: +3 correct, -0.5 in the correct format but wrong, -3 malformed.
    reward = task.reward(c)
    # Here, where the response is known: group_advantages could only say that some reward is NaN.
    if reward is None or not math.isfinite(reward):
        raise ValueError(f"reward must return a finite number, not {reward}; for the response "
                         f"{c.response!r:.99}")
    c.reward = float(reward)


def set_advantages(completions: list[Completion], group_size: int) -> None:
    """Set c.advantage of each: how its reward compares with those of its group."""
    rewards = torch.tensor([c.reward for c in completions], dtype=torch.float64)
    advantages = group_advantages(rewards.view(-1, group_size))  # (P, G)
    for c, A in zip(completions, advantages.flatten().tolist()):
        c.advantage = A


# ---- 5. Training ----

def train(policy: Policy, task, cfg: Config, optimizer=None, done: int = 0,
          reference: torch.nn.Module | None = None) -> Iterator[tuple[dict, list[Completion]]]:
    """Train with GRPO-SG, one step after the other. This is a generator, so only a loop trains:

        for row, completions in train(policy, task, cfg):
            print(row["step"], row["reward"])

    Args:
        policy, task, cfg: as for `rollout`.
        optimizer: what changes policy.model; by default that of `make_optimizer`.
        done: the number of steps that have been made before.
        reference: the model of the KL, needed if cfg.beta is above 0, such as a
            copy.deepcopy of policy.model.

    Yields:
        (row, completions) after each step up to cfg.steps: see `make_step_row`.
    """
    assert reference is not None or not cfg.beta, "beta > 0 needs a reference model"
    assert cfg.updates >= 1 and cfg.group_size >= 2, "updates >= 1, group_size >= 2"
    optimizer = optimizer or make_optimizer(policy.model, cfg)
    for step in range(done + 1, cfg.steps + 1):
        started = time.monotonic()
        # What is sampled depends only on this number, so there is no random state to
        # save. With the factor 1_000_003, two values of cfg.seed never share such a number.
        seed = cfg.seed * 1_000_003 + step
        problems = random.Random(seed).sample(task.train, min(cfg.prompts, len(task.train)))
        # Sample: G completions of each problem, and a verdict on each.
        completions = rollout(policy, task, problems, cfg, n=cfg.group_size,
                              temperature=cfg.temperature, seed=seed)
        # Compare: each completion with its group.
        set_advantages(completions, cfg.group_size)
        # Learn: make the better ones more likely, and the others less likely.
        sampled = time.monotonic()
        updates = learn(policy, optimizer, completions, cfg, reference, seed)
        yield make_step_row(step, completions, updates, cfg.group_size, sampled - started,
                            time.monotonic() - sampled), completions


def make_optimizer(model: torch.nn.Module, cfg: Config) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), cfg.lr, (0.9, 0.99), weight_decay=0, fused=True)


@dataclasses.dataclass
class Batch:
    """Completions with their prompts, a row each, padded on the right."""
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T) bool: what the policy wrote
    advantages: Tensor  # (B,)
    old_logps: Tensor | None = None  # None in the first update
    ref_logps: Tensor | None = None  # None without a KL


def make_batch(completions: list[Completion], device) -> Batch:
    """Return completions and their advantages as a Batch."""
    ids = [torch.tensor(c.prompt + c.tokens) for c in completions]
    # The mask goes by position, never by `ids != pad`: many models pad with their stop token,
    # which must be learned.
    mask = [torch.tensor([False] * len(c.prompt) + c.mask) for c in completions]
    advantages = torch.tensor([c.advantage for c in completions], dtype=torch.float32)
    return Batch(pad_sequence(ids, batch_first=True).to(device),
                 pad_sequence(mask, batch_first=True).to(device), advantages.to(device))


def micro_batches(completions: list[Completion], cfg: Config, device) -> list[Batch]:
    """Split completions into batches of at most cfg.tokens_per_micro_batch tokens,
    padding included (a longer completion gets its own), sorted by length to save padding.

    A completion with A = 0 (all of a zero-variance group) has no gradient: if beta is 0, it is
    left out. The update is the same, because its tokens count in the denominator; the logged
    statistics are means over the others.
    """
    used = [c for c in completions if cfg.beta or c.advantage != 0]
    waiting = sorted(used, key=Completion.length, reverse=True)
    batches = []
    while waiting:
        count = max(1, cfg.tokens_per_micro_batch // waiting[0].length())
        batches.append(make_batch(waiting[:count], device))
        waiting = waiting[count:]
    return batches


def compute_logps(model: torch.nn.Module, batch: Batch, cfg: Config) -> Tensor:
    """Compute token_logps of a batch, on a GPU with bfloat16 matrix products."""
    with in_bfloat16(batch.ids.device):
        return token_logps(model, batch.ids, batch.mask, temperature=cfg.temperature)


def learn(policy: Policy, optimizer, completions: list[Completion], cfg: Config,
          reference: torch.nn.Module | None = None, seed: int = 0) -> list[dict]:
    """Learn from a rollout in cfg.updates updates, each on its own random minibatch:
    every completion is in exactly one.

    In the first update r = 1, because nothing has changed since the rollout; in later
    ones the policy has moved. (With cfg.updates = 1, r is always 1 and the clip never
    acts.) A group may be split across minibatches, so that each minibatch has completions of many
    prompts: with whole groups, its gradient would be further from that of the rollout. Returns a
    list of what `update` returns.
    """
    model = policy.model.eval()  # without dropout: r is 1 in the first update
    shuffled = random.Random(seed).sample(completions, len(completions))
    minibatches = [shuffled[i::cfg.updates] for i in range(cfg.updates)]
    # The micro-batches of each minibatch, which fit into memory
    parts = [micro_batches(minibatch, cfg, model.device) for minibatch in minibatches]
    with torch.no_grad():
        for number, batches in enumerate(parts):
            for batch in batches:
                # pi_old, before any update changes the policy. It comes from token_logps, as
                # pi_theta does, because the sampler rounds differently. The first update needs no
                # such pass, because its own log-probabilities are still those of pi_old.
                if number > 0:
                    batch.old_logps = compute_logps(model, batch, cfg)
                if cfg.beta:
                    batch.ref_logps = compute_logps(reference, batch, cfg)
    updates = []
    for minibatch, batches in zip(minibatches, parts):
        # Tokens with A = 0 count as well. Otherwise a minibatch with many zero-variance groups
        # would have an equally large gradient, based only on its few other groups.
        count = sum(sum(c.mask) for c in minibatch)
        if batches:  # else A = 0 everywhere
            updates.append(update(model, optimizer, batches, count, cfg))
    return updates


def update(model: torch.nn.Module, optimizer, batches: list[Batch], denominator: int,
           cfg: Config) -> dict:
    """Make one optimizer step on a minibatch, given as micro-batches. Returns a dict: loss; norm,
    that of the gradient before it is cut to at most 1; skipped, whether it is not finite, so that
    the parameters stayed as they are; and the sums of grpo_sg_loss."""
    sums_of_batches = []
    for batch in batches:
        logps = compute_logps(model, batch, cfg)  # (B, T)
        old_logps = logps.detach() if batch.old_logps is None else batch.old_logps
        loss, sums = grpo_sg_loss(
            logps, old_logps, batch.advantages, batch.mask, weights=weigh(logps, cfg),
            ref_logps=batch.ref_logps, clip_low=cfg.clip_low, clip_high=cfg.clip_high,
            beta=cfg.beta, denominator=denominator)
        loss.backward()
        sums_of_batches.append({**sums, "loss": loss.detach()})
    totals = {"norm": float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))}
    for key in sums_of_batches[0]:  # only now, because float() waits for the GPU
        totals[key] = sum(float(sums[key]) for sums in sums_of_batches)
    totals["skipped"] = not math.isfinite(totals["norm"])
    if not totals["skipped"]:
        optimizer.step()
    optimizer.zero_grad()
    return totals


def weigh(logps: Tensor, cfg: Config) -> Tensor | None:
    """Return the weights of the method cfg.shaping, shaped like logps; None (all 1) is GRPO."""
    if cfg.shaping == "none":
        return None
    if cfg.shaping == "ar":  # AR-Lopti (arXiv 2505.12929)
        return 0.2 * logps.detach().float().exp() + 0.8
    assert cfg.shaping == "sg", f"shaping must be sg, none or ar, not {cfg.shaping!r}"
    return token_weights(logps, alpha=cfg.alpha, tau=cfg.tau, mu=cfg.mu, low=cfg.low,
                         high=cfg.high)


# ---- 6. Evaluation ----

def evaluate(policy: Policy, task, problems: list, cfg: Config, *,
             samples: int = 0) -> tuple[dict, list[Completion]]:
    """Evaluate by greedy decoding and, if samples is above 0, by that many samples of each
    problem (the k of avg@k and pass@k). The other arguments are those of `rollout`.

    Returns (row, greedy completions). The row has means of the greedy completions
    ("eval/accuracy", "eval/reward" and more) and those of `average_samples`. Each "_se" is
    the standard error of a mean over the problems.
    """
    greedy = rollout(policy, task, problems, cfg, n=1, temperature=0, seed=cfg.seed)
    row = average_completions(greedy)
    row |= mean_and_error("accuracy", [float(c.solved) for c in greedy])
    row |= mean_and_error("reward", [c.reward for c in greedy])
    if samples:
        drawn = rollout(policy, task, problems, cfg, n=samples,
                        temperature=cfg.temperature, seed=cfg.seed)
        row |= average_samples(drawn, samples)
    return {f"eval/{key}": value for key, value in row.items()}, greedy


def average_completions(completions: list[Completion]) -> dict:
    """Return means over completions."""
    return {"accuracy": mean(c.solved for c in completions),
            "format_rate": mean(c.formatted for c in completions),
            "truncated": mean(c.truncated for c in completions),
            "completion_tokens": mean(sum(c.mask) for c in completions),
            "tool_calls": mean(c.tool_calls for c in completions)}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimate pass@k, the probability that at least one of k samples is correct, from n
    samples, c of them correct: 1 - C(n - c, k) / C(n, k), unbiased (arXiv 2107.03374).
    """
    assert 0 <= c <= n and 1 <= k <= n, f"{n=}, {c=}, {k=}"
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def find_equal_groups(completions: list[Completion], n: int) -> list[bool]:
    """Return for each group of n whether its rewards are equal, so that it has no gradient."""
    rewards = torch.tensor([c.reward for c in completions], dtype=torch.float64)
    return are_equal(rewards.view(-1, n))[:, 0].tolist()


def average_samples(drawn: list[Completion], n: int) -> dict:
    """Return means over problems of n samples each, in the order of `rollout`: avg@n is their
    accuracy, reward@n their reward; also format_rate@n, truncated@n, equal_groups@n, and pass@2,
    4.. up to n."""
    groups = split_groups(drawn, n)
    right = [sum(c.solved for c in group) for group in groups]
    means = average_completions(drawn)
    row = {f"format_rate@{n}": means["format_rate"], f"truncated@{n}": means["truncated"],
           f"equal_groups@{n}": mean(find_equal_groups(drawn, n)),
           **mean_and_error(f"avg@{n}", [count / n for count in right]),
           **mean_and_error(f"reward@{n}", [mean(c.reward for c in group) for group in groups])}
    k = 2
    while k <= n:
        row |= mean_and_error(f"pass@{k}", [pass_at_k(n, count, k) for count in right])
        k *= 2
    return row


def mean_and_error(name: str, values: list[float]) -> dict:
    """Return the mean of the values and its standard error, None for a single value."""
    values = torch.tensor(values, dtype=torch.float64)
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else None
    return {name: values.mean().item(), f"{name}_se": error}


# ---- 7. Settings ----

def setting(default, text):
    """Return a field of Config with its default and its line in --help."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass
class Config:
    """Train a language model by reinforcement learning with verifiable rewards, and test it before
    and after, for example: python grpo_sg.py --model Qwen/Qwen2.5-0.5B --task kk. The defaults are
    for a real model on a GPU. A tiny model has others, in its settings.json."""
    # Model and task
    model: str = setting("", "folder of a model or a run, or a hub name; default: a tiny model")
    task: str = setting("", "kk, math or a .py file with make_task(cfg); default: the model's")
    data: str = setting("synthetic", "kk: published; math: gsm8k, math, deepscaler or a file")
    eval_data: str = setting("", "math: gsm8k, math500, aime24 or a file; else that of --data")
    train_problems: int = setting(4500, "problems to train on, if generated")
    eval_problems: int = setting(200, "problems to test on and to validate on, if generated")
    people: list[int] = dataclasses.field(
        default_factory=[3].copy,  # a new list for each Config
        metadata={"help": "kk: people in a puzzle, one or several numbers from 2 to 8"})
    brief: bool = setting(False, "kk: puzzles without a story, for tiny models")
    system: str = setting("", "replaces the task's system prompt; the word none: without one")
    chat_template_kwargs: str = setting("{}", "variables of the chat template, as JSON")

    # The weight
    shaping: Literal["sg", "none", "ar"] = setting("sg", "sg: GRPO-SG; none: GRPO; ar: AR-Lopti")
    alpha: float = setting(2.0, "scale of GRPO-SG's weight")
    tau: float = setting(1/9, "temperature of the weight's sigmoid: higher is flatter")
    mu: float = setting(0.25, "offset of the weight")
    low: float = setting(1.0, "the smallest weight, L")
    high: float = setting(1.4, "the largest weight, U")

    # The loss
    clip_low: float = setting(0.2, "the ratio of probabilities is clipped at 1 - clip_low")
    clip_high: float = setting(0.24, "the ratio of probabilities is clipped at 1 + clip_high")
    beta: float = setting(0.0, "coefficient of the KL to the initial model; 0: no KL")

    # Training
    lr: float = setting(1e-6, "learning rate of AdamW")
    steps: int = setting(350, "training steps, each with a rollout and its updates")
    prompts: int = setting(64, "prompts in a rollout")
    group_size: int = setting(8, "completions of each prompt")
    updates: int = setting(2, "updates of the model in a step")
    temperature: float = setting(0.7, "for sampling and for all log-probabilities")
    max_new_tokens: int = setting(2048, "most tokens in a completion; with a tool, in a turn")

    # Memory and evaluation
    tokens_per_micro_batch: int = setting(3072, "most tokens in a backward pass")
    sample_batch: int = setting(512, "most completions sampled at once")
    gradient_checkpointing: bool = setting(False, "less memory, more time")
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "auto: cuda if PyTorch can use it")
    eval_every: int = setting(10, "steps between two validations")
    eval_samples: int = setting(4, "k of avg@k and pass@k in the test; 0: greedy only")

    # The run
    seed: int = setting(0, "equal seeds give equal runs on a machine")
    out: str = setting("", "new folder for the run's files; without one, a folder in runs/")
    eval_only: bool = setting(False, "test the model and end")
    resume: str = setting("", "a run to continue, by its settings; the task's file there is run")


# ---- 8. The log: its rows, and what is printed ----

def make_step_row(step: int, completions: list[Completion], updates: list[dict],
                  group_size: int, seconds_sampling: float, seconds_update: float) -> dict:
    """Return the row of a step: means over its completions and updates, and how long it took."""
    tokens = sum(sum(c.mask) for c in completions)
    return {"step": step, "reward": mean(c.reward for c in completions),
            **average_completions(completions), **average_updates(updates),
            # of zero-variance groups; TRL calls it frac_reward_zero_std
            "equal_groups": mean(find_equal_groups(completions, group_size)),
            "tokens_per_second": tokens / max(seconds_sampling, 1e-9),
            "seconds_sampling": seconds_sampling, "seconds_update": seconds_update,
            "seconds": seconds_sampling + seconds_update}


def average_updates(updates: list[dict]) -> dict:
    """Average what `learn` returns. grad_norm is the largest norm before gradient clipping, 0 if
    nothing was trained on; skipped, the number of updates whose norm was not finite. The
    others are None if there was no update, or if a value is not finite."""
    norms = [totals["norm"] for totals in updates if not totals["skipped"]]
    count = sum(totals["count"] for totals in updates)
    means = {}
    for key in ("loss", "clip_frac", "kl", "entropy", "weight_mean", "low_prob_frac"):
        value = sum(totals[key] for totals in updates)
        value /= max(1, len(updates) if key == "loss" else count)
        means[key] = value if updates and math.isfinite(value) else None  # JSON has no NaN
    return {"grad_norm": max(norms, default=0.0), "skipped": len(updates) - len(norms), **means}


def log(out: str, row: dict, completions: list[Completion]) -> None:
    """Append a row to metrics.jsonl, and the completions to samples.jsonl. Rebind this function to
    send the rows elsewhere as well (support/README.md)."""
    verdict = "reward", "advantage", "correct", "formatted", "truncated", "solved"
    samples = [{"step": row["step"], "split": row.get("split", "train"),
                "question": c.problem.question, "answer": c.problem.answer,
                "completion": c.transcript, **{name: getattr(c, name) for name in verdict}}
               for c in completions]
    for name, rows in zip(LOGS, ([row], samples)):
        with open(os.path.join(out, name), "a", encoding="utf-8") as file:
            for each in rows:  # what JSON cannot represent is written with str()
                file.write(json.dumps(each, default=str, skipkeys=True) + "\n")


def log_step(cfg: Config, row: dict, completions: list[Completion]) -> None:
    """Log and print a step's row, with one group of its completions, if possible one with unequal
    rewards."""
    equal = find_equal_groups(completions, cfg.group_size)
    shown = split_groups(completions, cfg.group_size)[equal.index(min(equal))]
    if torch.cuda.is_available():
        row["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    log(cfg.out, row, shown)
    minutes = (cfg.steps - row["step"]) * row["seconds"] / 60
    w = f"mean w {row['weight_mean']:.2f}, " if row["weight_mean"] else ""
    say(f"step {row['step']} of {cfg.steps}: reward {row['reward']:.2f}, sampled accuracy "
        f"{row['accuracy']:.2f}, truncated {row['truncated']:.2f}, zero-variance groups "
        f"{row['equal_groups']:.2f}, {w}grad_norm {row['grad_norm']:.2f}, "
        f"{row['seconds']:.1f} s, {minutes:.1f} min left")
    if row["skipped"]:
        say(f"{row['skipped']} updates skipped, because the gradient's norm was not finite: the "
            "step is not saved, and a lower --lr may help")


def say(text: str) -> None:
    """Print at once, also into a file, and escape control characters: the text may be a model's."""
    print("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text), flush=True)


# ---- 9. The model: loading, its stop tokens, its device, its number types ----

def load_model(name: str) -> tuple:
    """Load (model, tokenizer) from a folder written by save_pretrained or from the hub: a causal
    language model of transformers, in float32. Code that comes with a model is never run. Raises
    OSError with the reason."""
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            name, dtype="float32", trust_remote_code=False)
        # For a Qwen2 model, AutoTokenizer would replace the rules in tokenizer.json by Qwen2's.
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(name)
    except Exception as error:  # no network, half a download: of many types
        reason = str(error).strip().split("\n")[0]
        raise OSError(f"cannot load the model {name}: {reason} (a folder needs all its files, with "
                      "tokenizer.json, and a hub name needs a network: without one, python -m "
                      "support.smollm FOLDER makes a real model)")
    # Others, such as Mamba and RWKV, would sample from the wrong context.
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise OSError(f"cannot sample from {name}, which keeps no past_key_values")
    return model, tokenizer


def find_stop_ids(model: torch.nn.Module, tokenizer) -> set[int]:
    """Return the ids that end a completion: all end tokens that the tokenizer and the model's
    generation_config name, and the token that ends a turn in the chat template, which many
    uploads name nowhere else. Texts of Qwen's base models end in <|endoftext|>, and their
    turns in <|im_end|>: stop on both."""
    words = tokenizer.get_vocab()
    configured = model.generation_config.eos_token_id
    stops = {words.get("<|im_end|>"), words.get("<|endoftext|>"), tokenizer.eos_token_id,
             find_turn_end(tokenizer)}
    return (stops | set(configured if isinstance(configured, list) else [configured])) - {None}


def find_turn_end(tokenizer) -> int | None:
    """Return the id of the added token that the chat template writes after an assistant's
    text, such as Llama 3's <|eot_id|>; None if there is none."""
    chat = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except Exception:  # it has no template, or one that refuses this chat
        return None
    _, said, after = text.rpartition("Hello.")
    ends = [word for word in tokenizer.get_added_vocab() if after.lstrip().startswith(word)]
    return tokenizer.convert_tokens_to_ids(max(ends, key=len)) if said and ends else None


def prepare(model: torch.nn.Module, device: str,
            gradient_checkpointing: bool = False) -> torch.nn.Module:
    """Move a causal language model to a device ("auto" is cuda if PyTorch can use it) and set it up
    for this file: eval mode and, on a GPU, logits in float32. Returns the model.

    Load it with dtype="float32": at a learning rate of 1e-6 bfloat16 parameters would
    round most updates away. Settings of the whole process change: on a GPU cuDNN's attention
    is off and float32 products may use TF32; a tiny model on a CPU gets one thread. With
    gradient_checkpointing, a backward pass recomputes the activations of each layer.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if gradient_checkpointing:
        from transformers.modeling_layers import GradientCheckpointingLayer
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                # transformers itself would do so only in training mode, with dropout.
                layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False,
                                                  preserve_rng_state=False)
    if torch.device(device).type == "cuda":
        # cuDNN's attention makes a new plan for each shape, and every decode step has a new one:
        # minutes per training step (modelscope/FunASR#3704).
        torch.backends.cuda.enable_cudnn_sdp(False)
        # for what stays in float32: the vocabulary matrix. With bfloat16 logits the ratio r
        # would be off by more than the clip allows.
        torch.set_float32_matmul_precision("high")
        head = model.get_output_embeddings()
        # A method, because copy.deepcopy binds it to the copy's head.
        head.forward = types.MethodType(multiply_in_float32, head)
    elif torch.device(device).type == "cpu" and model.num_parameters() < 1_000_000:
        # A tiny model runs thousands of small operations, in which threads mostly wait for
        # each other. One thread is as fast, and gives the same sums on any number of cores.
        torch.set_num_threads(1)
    return model.to(device).eval()


def multiply_in_float32(head: torch.nn.Module, hidden: Tensor) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        return type(head).forward(head, hidden.float())


# ---- 10. A run's folder ----

# settings.json; metrics.jsonl, a row of numbers for each step and evaluation; samples.jsonl, texts
# with their verdicts; and checkpoint-STEP/, model and tokenizer as transformers writes them, with
# copies of these files and AdamW's state. --model RUN and --resume RUN use the newest one.
LOGS = "metrics.jsonl", "samples.jsonl"
SAVE_SHARE = 0.02  # of the time, at most, goes into checkpoints


def list_checkpoints(folder: str) -> list[int]:
    """Return the steps of a run's whole checkpoints, the newest last."""
    names = [path.name for path in Path(folder).glob("checkpoint-*")]
    return sorted(int(name[11:]) for name in names if re.fullmatch("checkpoint-[0-9]+", name))


def newest(name: str) -> str:
    """Return the folder of a run's newest checkpoint. A model's folder or a hub name stays."""
    steps = [] if Path(name, "config.json").is_file() else list_checkpoints(name)
    return os.path.join(name, f"checkpoint-{steps[-1]}") if steps else name


def read_saved(folder: str) -> dict:
    """Read settings.json in the folder of a model or a run, {} if there is none. Left out are
    settings that only other versions know, and those that only flags may give. Raises OSError."""
    path = Path(folder, "settings.json")
    known = vars(Config()).keys() - {"out", "eval_only", "resume"}
    try:
        saved = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return {name: value for name, value in saved.items() if name in known}
    except (ValueError, AttributeError) as error:
        raise OSError(f"{path} is no JSON object of settings: {error}")


def write_settings(folder: str, cfg: Config) -> None:
    kept = {name: value for name, value in vars(cfg).items() if name not in ("out", "resume")}
    path = Path(folder, "settings.json")
    path.unlink(missing_ok=True)  # or, if it were a link, another file would be overwritten
    path.write_text(json.dumps(kept, indent=1), "utf-8")


def check_folder(cfg: Config) -> None:
    """Refuse to start in a folder with files of others. A run that ended without a checkpoint may
    start again, but not over the results of --eval_only."""
    if cfg.resume and Path(cfg.out) == Path(cfg.resume).parent:
        return
    files = set(os.listdir(cfg.out)) if os.path.exists(cfg.out) else set()
    settings = Path(cfg.out, "settings.json")
    if settings.is_file() and '"eval_only": false' in settings.read_text("utf-8"):
        files -= {*LOGS, "checkpoint.new"}
    if files - {"settings.json", "lock"}:
        advice = f", or --resume {cfg.out}" if list_checkpoints(cfg.out) else ""
        raise SystemExit(f"error: --out {cfg.out} has files: name a new one{advice}")


def save(cfg: Config, step: int, policy: Policy, optimizer) -> None:
    """Write a checkpoint under another name, and rename it when it is whole. The one before is kept
    until the next, because an update may have destroyed the model. Random states are not saved,
    because what a step draws is a function of seed and step."""
    new = os.path.join(cfg.out, "checkpoint.new")
    if os.path.islink(new):  # it would lead to files of others
        os.unlink(new)
    shutil.rmtree(new, ignore_errors=True)
    try:
        policy.model.save_pretrained(new)
        policy.tokenizer.save_pretrained(new)
        write_settings(new, cfg)
        for name in LOGS:
            shutil.copy(os.path.join(cfg.out, name), new)
        torch.save({"optimizer": optimizer.state_dict()}, os.path.join(new, "training.pt"))
        os.rename(new, os.path.join(cfg.out, f"checkpoint-{step}"))
    except Exception as error:  # of many types
        raise SystemExit(f"error: cannot write checkpoint-{step} in {cfg.out}: {error!s:.99} "
                         "(is the disk full?)")
    for older in list_checkpoints(cfg.out)[:-2]:
        shutil.rmtree(os.path.join(cfg.out, f"checkpoint-{older}"), ignore_errors=True)


def restore(cfg: Config, optimizer) -> int:
    """Give a resumed run the logs and AdamW's state of its checkpoint. (Steps after it are made and
    logged again.) Returns the number of steps that it has made. A new run has no logs."""
    done = 0
    if cfg.resume:
        try:
            state = torch.load(f"{cfg.resume}/training.pt", "cpu", weights_only=True)
            logs = {name: Path(cfg.resume, name).read_bytes() for name in LOGS}
        except Exception as error:  # missing, or half a file: of many types
            raise SystemExit(f"error: {cfg.resume} has a file that cannot be read ({error!s:.99}): "
                             "remove that checkpoint, and --resume goes on at the one before")
        # Not AdamW's settings, or the old learning rate would replace the one that is given.
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state["optimizer"]["state"]})
        done = int(cfg.resume.rpartition("-")[2])
    for name in LOGS:
        Path(cfg.out, name).unlink(missing_ok=True)  # as in write_settings
        if cfg.resume:
            Path(cfg.out, name).write_bytes(logs[name])
    return done


# ---- 11. The program ----

# The least value of a number. Others are 1 or more.
LEAST = dict(alpha=0, mu=0, low=0, clip_low=0, clip_high=0, beta=0, lr=0, seed=0, eval_samples=0,
             tau=1e-9, high=1e-9, temperature=1e-9, group_size=2)


@contextlib.contextmanager
def errors_in_one_line(*kinds: type[Exception]) -> Iterator[None]:
    """End the program with one line for a mistake, a destroyed model, or too little memory, and for
    errors of these kinds. A context, or a decorator."""
    import tasks
    try:
        yield
    except filelock.Timeout as error:
        raise SystemExit(f"error: another process is using {Path(error.lock_file).parent}")
    except (tasks.UserError, FloatingPointError, *kinds) as error:
        raise SystemExit(f"error: {error}")
    except torch.OutOfMemoryError:
        raise SystemExit("error: out of memory: lower --sample_batch, --tokens_per_micro_batch or "
                         "--max_new_tokens, or add --gradient_checkpointing")


def parse_flags(argv: list[str] | None = None) -> dict:
    """Return the settings that are given as flags, a list of words."""
    parser = transformers.HfArgumentParser(
        Config, allow_abbrev=False, formatter_class=argparse.HelpFormatter,
        usage="python grpo_sg.py [--flag value ...]", description=Config.__doc__)
    for action in parser._actions:  # in --help, each flag once, and its default if it is not empty
        action.option_strings = action.option_strings[:1]
        action.metavar = {int: "N", float: "X", str: "TEXT"}.get(action.type)
        if action.default not in ("", None, argparse.SUPPRESS):
            form = ".4g" if isinstance(action.default, float) else ""
            action.help += f" (default: {action.default:{form}})"
    # A setting stays None if there is no flag for it.
    flags = parser.parse_args(argv, types.SimpleNamespace(**dict.fromkeys(vars(Config()))))
    return {name: value for name, value in vars(flags).items() if value is not None}


@errors_in_one_line(OSError)
def read_settings(argv: list[str] | None = None) -> Config:
    """Return the settings. Each comes from the first that has it: the flags; settings.json of the
    run to resume, or of the model; SETTINGS in the task's file; Config."""
    import tasks
    given = parse_flags(argv)
    run, task = given.get("resume"), given.get("task", "kk")
    own = tasks.load_task(task)[1] if "task" in given else {}  # the file's SETTINGS
    if run is None:
        model = find_model(given.get("model", own.get("model")), task)
        saved, places = read_models_settings(model, own, given), {"model": model}
    elif not list_checkpoints(run):
        raise SystemExit(f"error: --resume {run}: it is no run's folder with a checkpoint in it")
    elif "model" in given or "eval_only" in given:
        raise SystemExit(f"error: --resume {run} goes on with its own model: leave out --model and "
                         f"--eval_only (to test it: --eval_only --model {run})")
    else:
        saved = read_saved(newest(run))
        places = {"resume": newest(run), "out": given.get("out", run)}
        changed = [f"--{name}" for name in given if given[name] != saved.get(name, given[name])]
        say(f"continuing at the newest checkpoint, {newest(run)}; changed: {changed or 'nothing'}")
    cfg = Config(**{"task": "kk", **own, **saved, **given, **places})
    cfg.out = cfg.out or time.strftime(f"runs/{Path(cfg.task).stem}-{cfg.shaping}-seed{cfg.seed}"
                                       "-%Y%m%d-%H%M%S")
    check_settings(cfg)
    return cfg


def find_model(name: str | None, task: str) -> str:
    """Return the folder of a model, of a run its newest checkpoint, or a hub name; without a name,
    the tiny model of the task."""
    tiny = Path(__file__).parent / "support/pretrained" / Path(task).stem
    if name and name[0] in "./~" and not os.path.isdir(name):
        raise SystemExit(f"error: --model {name}: there is no such folder")
    if not name and not tiny.is_dir():
        raise SystemExit(f"error: --task {task} has no tiny model: name a --model (or make one: "
                         f"python -m support.tiny {task})")
    return newest(name or str(tiny))


def read_models_settings(model: str, own: dict, given: dict) -> dict:
    """Return the settings in a model's folder. It may be a stranger's, and a task's file would be
    run, so only flags (given) and the task's SETTINGS (own) may name a file."""
    saved = read_saved(model)
    task = str(saved.get("task", ""))
    if "task" in given and task and Path(task).stem != Path(given["task"]).stem:
        say(f"the settings in {model} are not used, because they are for --task {task}: if it is "
            "the same task, give them as flags, such as --system none")
        return {}
    for name in ("task", "data", "eval_data"):
        is_path = set("./\\") & set(str(saved.get(name, "")))
        if is_path and name not in given and saved[name] != own.get(name):
            raise SystemExit(f"error: the model's settings name a file: add --{name} {saved[name]}")
    return saved


def check_settings(cfg: Config) -> None:
    """Refuse settings with which a run would go wrong late or silently."""
    for name, default in vars(Config()).items():
        if type(default) in (int, float):
            value, least = getattr(cfg, name), LEAST.get(name, 1)
            if type(value) not in (int, type(default)) or not least <= value < math.inf:
                words = "above 0" if least == 1e-9 else f"{least} or more"
                raise SystemExit(f"error: --{name} must be {words}, and finite, not {value!r}")
    check_folder(cfg)
    w = weigh(torch.tensor([-100.0, 0.0]), cfg)  # of pi = 0 and 1: w is monotone
    if w is not None and w[0] == w[1]:
        say(f"warning: with these settings every w is {w[0]:.4g}: this is GRPO")


@errors_in_one_line(OSError)
def load(cfg: Config) -> tuple[Policy, object]:
    """Make the problems, load the model, and encode the prompts. Returns (policy, task)."""
    import tasks
    name = cfg.resume or cfg.model
    say(f"preparing --task {cfg.task} and the model {name}")
    task = tasks.make_task(cfg)
    # transformers' bar would garble our lines. The hub's bar, of a download, stays.
    transformers.utils.logging.disable_progress_bar()
    huggingface_hub.utils.enable_progress_bars()
    model, tokenizer = load_model(name)
    prepare(model, cfg.device, cfg.gradient_checkpointing)
    policy = Policy(model, tokenizer, find_stop_ids(model, tokenizer))
    if not policy.stop_ids:  # every completion would be truncated, to the end
        raise tasks.UserError(f"{name} names no token that ends a text: set its eos_token")
    return policy, tasks.encode_problems(task, tokenizer, policy.stop_ids, model.config, cfg)


def evaluate_split(policy: Policy, task, cfg: Config, split: str, step: int) -> dict:
    """Evaluate on the problems of "valid" or "test", log and print. Returns the row. It shows the
    first problem that was wrong in this split's first evaluation, so that one sees what changes."""
    problems = getattr(task, split)
    row, greedy = evaluate(policy, task, problems, cfg,
                           samples=cfg.eval_samples if split == "test" else 0)
    # Two evaluations are compared only if this is equal. (Numbers have the same hash everywhere.)
    row["same"] = hash((cfg.seed, cfg.temperature, cfg.eval_samples, cfg.max_new_tokens,
                        *(tuple(problem.prompt) for problem in problems)))
    log(cfg.out, {"step": step, "split": split, **row}, greedy)
    means = [f"{key[5:]} {row[key]:.3f}" + ("" if error is None else f" +- {error:.3f}")
             for key in row if (error := row.get(f"{key}_se", "")) != ""]
    say(f"{split}: greedy {', '.join(means)}")
    with open(os.path.join(cfg.out, "samples.jsonl"), encoding="utf-8") as file:
        solved = [each["solved"] for each in map(json.loads, file) if each["split"] == split]
    if False in solved:
        shown = solved.index(False) % len(greedy)
        end = textwrap.shorten(greedy[shown].transcript[::-1], 200, placeholder="...")[::-1]
        say(f"{split} problem {shown + 1}, the first that was wrong at first, reward "
            f"{greedy[shown].reward:g}: {end}")
    return row


def run(policy: Policy, task, cfg: Config) -> None:
    """Test, train and test again. A resumed run has had its first test."""
    problem = task.train[0]
    say(f"files of this run: {cfg.out}/\n"
        f"{policy.model.num_parameters():,} parameters on {policy.model.device}; "
        f"{len(task.train):,} problems to train on, {len(task.test)} to test on\n"
        f"the first one, as the model reads it ({len(problem.prompt)} tokens):\n"
        f"{policy.tokenizer.decode(problem.prompt)}\nits answer: {problem.answer}")
    # The KL is to the initial policy. It is loaded first, because its folder may be gone.
    reference = prepare(load_model(cfg.model)[0], cfg.device) if cfg.beta else None
    optimizer = make_optimizer(policy.model, cfg)
    done = restore(cfg, optimizer)
    cfg.steps = max(cfg.steps, done)  # as settings.json should say
    write_settings(cfg.out, cfg)
    if not cfg.resume:
        say(f"testing: a greedy completion of each test problem, and {cfg.eval_samples} samples")
        evaluate_split(policy, task, cfg, "test", 0)
    if cfg.eval_only:
        return
    say(f"left: {cfg.steps - done} steps, and the last test")
    last_save, cost = time.monotonic(), 0.0
    for row, completions in train(policy, task, cfg, optimizer, done, reference):
        done = row["step"]
        log_step(cfg, row, completions)
        if done % cfg.eval_every == 0:
            evaluate_split(policy, task, cfg, "valid", done)
        # After the log and the validation, so that a resumed run has nothing to make up for; and
        # whenever it is cheap, so that little is lost, whatever ends the run.
        now = time.monotonic()
        if not row["skipped"] and (done == cfg.steps or cost <= SAVE_SHARE * (now - last_save)):
            save(cfg, done, policy, optimizer)
            last_save = time.monotonic()
            cost = last_save - now
    say_result(cfg, evaluate_split(policy, task, cfg, "test", done), task.floor)


def say_result(cfg: Config, after: dict, floor: float) -> None:
    """Print how the last test compares with the first, and what to do next."""
    # The first row of the log is that of the first test.
    before = json.loads(Path(cfg.out, "metrics.jsonl").read_text("utf-8").split("\n")[0])
    if before.get("same") == after["same"]:
        key = f"eval/avg@{cfg.eval_samples}"
        sampled = f"sampled: {before[key]:.0%} and {after[key]:.0%}; " if key in after else ""
        was, now = before["eval/accuracy"], after["eval/accuracy"]
        say(f"{was:.0%} of the model's greedy answers to the test problems were correct before "
            f"training, and {now:.0%} are now ({sampled}best constant answer: {floor:.0%})")
    else:
        say("the first test had other problems or settings, so the last one isn't compared with it")
    if os.path.isfile("lesson/reasons.py"):  # in a clone
        say(f"curves and tokens: python -m support.page {cfg.out}")
        if cfg.task == "kk" and cfg.brief:
            say(f"do the steps prove the answers? python -m lesson.reasons {cfg.out}")


def main(argv: list[str] | None = None) -> None:
    """Run the command line. argv: a list of flags; by default those of the process."""
    cfg = read_settings(argv)
    made = not os.path.isdir(cfg.out)
    # Two processes would mix their logs and remove each other's checkpoints.
    with errors_in_one_line(), filelock.FileLock(f"{cfg.out}/lock", timeout=0):
        try:
            run(*load(cfg), cfg)
        except KeyboardInterrupt:
            saved = list_checkpoints(cfg.out)
            advice = (f"continue by --resume {cfg.out}" if saved else
                      "there is no checkpoint yet, so the same command starts again")
            raise SystemExit(f"interrupted: {advice}")
        finally:
            if made and {*os.listdir(cfg.out)} <= {"lock", "settings.json"}:  # a start that failed
                shutil.rmtree(cfg.out)


if __name__ == "__main__":
    # By its name, so that a user's `import grpo_sg` gets this same module.
    import grpo_sg
    grpo_sg.main()
