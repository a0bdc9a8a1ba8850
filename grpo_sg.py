# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "transformers==5.23.0", "datasets==5.2.0", "tqdm==4.70.1"]
# ///
"""GRPO-SG: reinforcement learning with verifiable rewards, in one file meant to be read
from top to bottom.

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

The settings come first. Sections 1 to 6 are the method, in about an hour: the algorithm,
log-probabilities, sampling, rollouts, training, evaluation. Sections 7 to 10 are the program
around it: what is logged, loading a model, a run's folder, flags. Left out on purpose: trainer
classes, value networks, reward models, several GPUs, inference engines.

Imported, this file needs torch, transformers and tqdm: bring a model, a tokenizer and a task
(`rollout` lists what a task needs). With tasks.py next to it, it is a program:

    python grpo_sg.py                                              train a tiny model (in a clone)
    python grpo_sg.py --model Qwen/Qwen2.5-0.5B-Instruct --task kk train a real one
    python grpo_sg.py --task my_task.py --model NAME               on a task of your own
    python grpo_sg.py --eval_only --model runs/NAME                test what a run has trained
    python grpo_sg.py --resume --out runs/NAME                     continue an interrupted run
"""
import contextlib
import dataclasses
import datetime
import difflib
import functools
import hashlib
import inspect
import json
import math
import os
import platform
import random
import shutil
import signal
import sys
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from statistics import fmean as mean
from typing import Literal

# This stands above the other imports, which would end in a traceback.
if __name__ == "__main__" and (sys.version_info < (3, 11) or not find_spec("transformers")):
    sys.exit("error: this needs Python 3.11 or newer and: pip install -r requirements.txt")

# Avoids CUDA memory fragmentation. PyTorch reads it on import; on WSL it does not work.
if "microsoft" not in platform.release():
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import filelock
import huggingface_hub
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

# ---- Settings: skim them, because the sections below name those that they use ----

def setting(default, text):
    """Return a field of Config with its default and its line in --help."""
    if isinstance(default, list):  # each Config gets its own
        return dataclasses.field(default_factory=default.copy, metadata={"help": text})
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass
class Config:
    """The settings, each a flag of the command line. These defaults are for a real model on a GPU.
    The first command's tiny model has others in its settings.json, for example 60 steps of 32
    prompts at lr 2e-4."""
    # Model and task
    model: str = setting("", "hub name, or folder of a model or a run; else a tiny model of ours")
    task: str = setting("", "kk, math, or a file with make_task(cfg); else the model's, or kk")
    data: str = setting(
        "synthetic", "kk: published; math: gsm8k, math, deepscaler, .jsonl, .json, .csv, .parquet")
    eval_data: str = setting("", "math: gsm8k, math500, aime24, a file; else the test of --data")
    train_problems: int = setting(4500, "size of a generated training set")
    eval_problems: int = setting(200, "size of a generated test set and of any validation set")
    people: list[int] = setting([3], "kk: sizes of the puzzles, 2 to 8; the paper has 3 4 5 6 7")
    brief: bool = setting(False, "kk: puzzles without a story, which a tiny model can read")
    system: str = setting("", "system prompt that replaces the task's own; none: no system prompt")
    chat_template_kwargs: str = setting(
        "{}", "JSON for the chat template, such as '{\"enable_thinking\": false}'")

    # The weight
    shaping: Literal["sg", "none", "ar"] = setting("sg", "sg (GRPO-SG), none (GRPO), ar (AR-Lopti)")
    alpha: float = setting(2.0, "scale of the weight")
    tau: float = setting(1/9, "pi is divided by tau in the weight's sigmoid: higher is flatter")
    mu: float = setting(0.25, "offset of the weight")
    low: float = setting(1.0, "L, the smallest weight")
    high: float = setting(1.4, "U, the largest weight")

    # The loss
    clip_low: float = setting(0.2, "the ratio r is clipped at 1 - clip_low")
    clip_high: float = setting(0.24, "the ratio r is clipped at 1 + clip_high")
    beta: float = setting(0.0, "coefficient of the KL to the initial policy (a copy)")

    # Training
    lr: float = setting(1e-6, "learning rate of AdamW")
    steps: int = setting(350, "training steps, each a rollout and its updates")
    prompts: int = setting(64, "P, prompts in a rollout")
    group_size: int = setting(8, "G, completions of each prompt")
    updates: int = setting(2, "optimizer updates per rollout, each on its own minibatch")
    temperature: float = setting(0.7, "for sampling and for all log-probabilities")
    max_new_tokens: int = setting(2048, "max tokens per turn; a cut-off turn is malformed")

    # Memory and evaluation
    tokens_per_micro_batch: int = setting(3072, "max tokens in a backward pass")
    sample_batch: int = setting(512, "max completions sampled at once")
    gradient_checkpointing: bool = setting(False, "a backward pass needs less memory, more time")
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "auto: cuda if it can be used")
    eval_every: int = setting(10, "steps between evaluations on the validation set")
    eval_samples: int = setting(4, "k of avg@k and pass@k on the test set; 0: greedy only")

    # The run
    seed: int = setting(0, "of all random choices")
    out: str = setting("", "folder for the run's files, new or empty; else one under runs/")
    eval_only: bool = setting(False, "only run the test, no training")
    resume: bool = setting(False, "continue the run in --out; other flags change its settings")
    keep_every: int = setting(0, "also keep the checkpoint of every N-th step; 0: only the newest")


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
            source with a value says 9, which would make w constant (lesson/decisions.md).
        low, high: the bounds L and U.

    Returns:
        Weights >= low, shaped like logps: float32 and detached.
    """
    # w is detached, because the policy must not raise its objective by making the tokens that
    # it was rewarded for likely enough for a large w.
    pi = logps.detach().float().exp()
    return (alpha * (torch.sigmoid(pi / tau) - mu)).clamp(low, high)


def are_equal(rewards):
    """Return whether the rewards of each group are equal up to the rounding of their dtype, as
    0.1 * 3 and 0.3 are. rewards: (P, G), a group in each row; the result is (P, 1)."""
    rounding = torch.finfo(rewards.dtype).eps if rewards.is_floating_point() else 0.0
    R = rewards.double()
    spread = R.amax(1, keepdim=True) - R.amin(1, keepdim=True)
    return spread <= max(1e-12, 2 * rounding) * R.abs().amax(1, keepdim=True)


def group_advantages(rewards: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Compute A = (R - mean R) / (std R + eps) in each group, as GRPO does (arXiv 2402.03300).

    Args:
        rewards: (P, G) with G >= 2, of any numeric dtype, on a device with float64; not NaN.
        eps: added to the sample standard deviation (over G - 1, as in TRL and verl).

    Returns:
        (P, G) float32. Exactly 0 in a group whose rewards are equal up to rounding.
    """
    shape = tuple(rewards.shape)
    assert len(shape) == 2 and shape[1] >= 2, f"(P, G) with G >= 2, not {shape}"
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
        advantages: (B,) or (B, T).
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
        tokens, because those of the parts of a batch add up: sums["kls"] / sums["count"] is the
        mean KL.
    """
    for x in (old_logps, mask, weights, ref_logps):  # other shapes would broadcast
        assert x is None or x.shape == logps.shape, f"{x.shape} is not (B, T) {logps.shape}"
    assert ref_logps is not None or not beta, "beta > 0 needs ref_logps"
    logps = logps.to(torch.promote_types(logps.dtype, torch.float32))
    mask = mask.bool()
    A = advantages.reshape(len(logps), -1)  # (B, 1) or (B, T)
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
    # is right. A verifier is a program, which was not learned from any texts (although the policy
    # may find its gaps), and the reference would be a second model in memory.
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
    """Return sums over the tokens in the mask, for the log, and their number, "count"."""
    statistics = {
        "clipped": held_back.float(),
        # the KL to the reference; without one, to the policy that sampled
        "kls": estimate_kl(logps, old_logps if ref_logps is None else ref_logps, mask),
        # of the policy that sampled, in nats, estimated from the sampled tokens
        "entropies": -old_logps.to(logps.dtype),
        "weights": w,
        # low-probability tokens. With the default settings these are the ones that w
        # down-weights, because it reaches its maximum U at pi = 0.327.
        "unlikely": (logps < math.log(1/3)).float()}
    sums = {"count": mask.sum()}
    for name, values in statistics.items():
        sums[name] = values.masked_fill(~mask, 0.0).sum()
    return sums


def estimate_kl(logps, ref_logps, mask):
    """Estimate KL(pi_theta, pi_ref) at each token, (B, T), by k3
    (joschu.net/blog/kl-approx.html): >= 0, and 0 if both policies agree.

    It is unbiased only while pi_theta = pi_old; its gradient is biased even then.
    """
    log_ratio = (ref_logps.detach() - logps).masked_fill(~mask, 0.0)  # log(pi_ref / pi_theta)
    # expm1(x) is more accurate near 0 than exp(x) - 1.
    return torch.expm1(log_ratio) - log_ratio


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimate pass@k, the probability that at least one of k samples is correct, from n
    samples, c of them correct: 1 - C(n - c, k) / C(n, k), unbiased (arXiv 2107.03374).
    """
    possible = 0 <= c <= n and 1 <= k <= n
    assert possible, f"0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}"
    return 1 - math.comb(n - c, k) / math.comb(n, k)


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
    assert not mask[:, 0].any(), "the first token of a row has no context: mask[:, 0]"
    assert temperature > 0, f"the temperature must be above 0, not {temperature}"
    if model.training:
        warnings.warn("the model is in training mode: with dropout, r differs from 1 "
                      "before the first update; call model.eval()")
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
    empty = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)
    return empty.masked_scatter(mask, logps)


# ---- 3. Sampling ----

def next_logits(model, ids, attention, position, cache):
    """Return the logits (B, V) of what follows ids (B, S), and add their keys and values
    to the cache. attention: (B, columns so far), 0 on padding. position: (B, S)."""
    output = model(input_ids=ids, attention_mask=attention, position_ids=position,
                   past_key_values=cache, use_cache=True, logits_to_keep=1)
    return output.logits[:, -1]


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
    cache = Cache(config=model.config)  # transformers' DynamicCache, but for a GPU (section 8)
    logits = next_logits(model, ids, attention, position, cache)
    index = [different.index(tuple(p)) for p in prompts]
    index = torch.tensor(index, device=model.device)  # (B,)
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


@torch.no_grad()
def sample(model: torch.nn.Module, prompts: list[list[int]], *, n: int = 1,
           max_new_tokens: int, stop_ids, temperature: float = 1.0, generator=None,
           stopping_criteria=None, progress: bool = True) -> list[list[int]]:
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
        progress: show a bar in a terminal if sampling takes more than two seconds.

    Returns:
        P * n lists of token ids: all n of the first prompt, then those of the second, ...
    """
    assert not model.training, "call model.eval() before sampling"
    assert temperature >= 0, f"the temperature must not be below 0: {temperature}"
    valid = len(prompts) > 0 and all(isinstance(p, list) and p for p in prompts)
    assert valid, ("prompts must be lists of token ids, each with at least one, not "
                   f"{type(prompts).__name__} {prompts!r:.60}")
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
    hidden = None if progress else True  # None: hidden unless it is in a terminal
    steps = tqdm(range(max_new_tokens), "sampling", leave=False, delay=2, disable=hidden)
    for t in steps:
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
            steps.set_postfix(unfinished=len(alive), refresh=False)
        attention = F.pad(attention, (0, 1), value=1)
        position = position + 1
        logits = next_logits(model, token, attention, position, cache)  # (B, V)
    steps.close()
    return completions


# ---- 4. Rollouts: completions, their masks, verdicts and rewards ----

@dataclasses.dataclass
class Policy:
    """A causal language model of transformers, in eval mode on its device (see `prepare`), with its
    tokenizer. Here "parameters" are the model's; "weights" always means w."""
    model: torch.nn.Module
    tokenizer: object
    stop_ids: set[int]         # many models have several tokens that end a completion


@dataclasses.dataclass
class Completion:
    """A problem's prompt and what followed it. tokens are the sampled ids: never decoded
    and re-tokenized. mask says for each token whether the policy wrote it; it is
    False for a tool's answer."""
    problem: object
    prompt: list[int]        # token ids
    tokens: list[int] = dataclasses.field(default_factory=list)
    mask: list[bool] = dataclasses.field(default_factory=list)
    tool_calls: int = 0
    transcript: str = ""     # the tokens as text, without the stop token
    # the text to verify: the prompt's final tag, such as <think>, and what the policy wrote
    response: str = ""
    truncated: bool = False  # no stop token at its end; it is trained on like any other
    correct: bool = False
    formatted: bool = False  # False if truncated
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
        policy: a Policy.
        task: any object with these attributes (tasks.py has examples):
            train, valid and test: lists of problems;
            verify(response, problem.answer), which returns (correct, formatted);
            reward(completion), which returns a number;
            write, None or a function like `write_completions`, which writes the
            completions in another way (support/tools.py: with calls of a tool).
        problems: each has the attributes answer (for verify), prompt (token ids) and opening (the
            text at the end of the prompt that belongs to the response, such as <think>, or "").
        cfg: a Config.
        n, temperature, seed: completions of each problem, and how to sample them. The
            same parameters and seed give the same completions for any cfg.sample_batch,
            up to rounding, which differs a little with the number of rows.

    Returns:
        A list of Completion: all n of the first problem first, and so on.
    """
    policy.model.eval()
    # On the CPU: every device gets the same numbers.
    generator = torch.Generator().manual_seed(seed)
    completions = []
    for problem in problems:
        completions += [Completion(problem, problem.prompt) for _ in range(n)]
    write = task.write or write_completions
    write(policy, completions, cfg, generator, temperature)
    for c in tqdm(completions, "verifying", leave=False, delay=2, disable=None):
        grade(c, policy, task)
    return completions


def write_completions(policy: Policy, completions: list[Completion], cfg: Config,
                      generator: torch.Generator, temperature: float) -> None:
    """Sample the tokens of each completion from the policy."""
    drawn = sample_in_parts(policy, [c.prompt for c in completions], cfg, generator,
                            temperature)
    for c, tokens in zip(completions, drawn):
        c.add(tokens, own=True)


def sample_in_parts(policy: Policy, contexts: list[list[int]], cfg: Config, generator,
                    temperature: float, stopping_criteria=None) -> list[list[int]]:
    """Sample a completion of each context, at most cfg.sample_batch at once."""
    completions = []
    for start in range(0, len(contexts), cfg.sample_batch):
        with in_bfloat16(policy.model.device):  # on a GPU (section 8)
            completions += sample(
                policy.model, contexts[start:start + cfg.sample_batch], generator=generator,
                max_new_tokens=cfg.max_new_tokens, stop_ids=policy.stop_ids,
                temperature=temperature, stopping_criteria=stopping_criteria)
    return completions


class TaskError(ValueError):
    """A function of the task returned something that it must not."""


def grade(c: Completion, policy: Policy, task) -> None:
    """Set the completion's texts, the verdict on what the policy wrote, and the reward."""
    c.truncated = c.tokens[-1] not in policy.stop_ids
    end = None if c.truncated else -1
    c.response = c.problem.opening + policy.tokenizer.decode(c.own_tokens()[:end])
    c.transcript = c.problem.opening + policy.tokenizer.decode(c.tokens[:end])
    c.correct, formatted = read_verdict(task.verify(c.response, c.problem.answer))
    c.formatted = formatted and not c.truncated  # one that was cut off counts as malformed
    # In tasks.py: +3 correct, -0.5 in the correct format but wrong, -3 malformed.
    c.reward = read_reward(task.reward(c), c)


def read_verdict(verdict):
    """Return what a task's verify returned as two bools."""
    pair = isinstance(verdict, (tuple, list)) and len(verdict) == 2
    if not pair or not all(x in (True, False) for x in verdict):
        raise TaskError("verify must return two truth values, such as tasks.Verdict(correct=True, "
                        f"formatted=True), not {verdict!r:.60}")
    return map(bool, verdict)


def read_reward(reward, c):
    """Return what a task's reward returned for a completion as a float."""
    try:
        number = float(reward)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise TaskError(f"reward must return a finite number, not {reward!r:.60}, for "
                        f"{c.response!r:.200}")
    return number


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
        (row, completions) after each step up to cfg.steps: a dict of numbers (see
        `make_step_row`) and the step's list of Completion.
    """
    assert reference is not None or not cfg.beta, "beta > 0 needs a reference model"
    optimizer = optimizer or make_optimizer(policy.model, cfg)
    for step in range(done + 1, cfg.steps + 1):
        started = time.time()
        # What is sampled depends only on this number, so there is no random state to
        # save. With the factor 1_000_003, two values of cfg.seed never share such a number.
        seed = cfg.seed * 1_000_003 + step
        P = min(cfg.prompts, len(task.train))
        problems = random.Random(seed).sample(task.train, P)
        # Sample: G completions of each problem, and a verdict on each.
        completions = rollout(policy, task, problems, cfg, n=cfg.group_size,
                              temperature=cfg.temperature, seed=seed)
        # Compare: each completion with its group.
        set_advantages(completions, cfg.group_size)
        # Learn: make the better ones more likely, and the others less likely.
        sampled = time.time()
        updates = learn(policy, optimizer, completions, cfg, reference, seed)
        seconds = sampled - started, time.time() - sampled
        yield make_step_row(step, completions, updates, cfg.group_size, *seconds), completions


def make_optimizer(model, cfg):
    """Return the optimizer of a run."""
    return torch.optim.AdamW(model.parameters(), cfg.lr, betas=(0.9, 0.99), weight_decay=0,
                             fused=True)


@dataclasses.dataclass
class Batch:
    """Completions with their prompts, a row each, padded on the right."""
    ids: Tensor                       # (B, T)
    mask: Tensor                      # (B, T) bool: what the policy wrote
    advantages: Tensor                # (B,)
    old_logps: Tensor | None = None   # (B, T); None in the first update
    ref_logps: Tensor | None = None   # (B, T); None without a KL


def make_batch(completions, device):
    """Return completions and their advantages as a Batch."""
    ids = [torch.tensor(c.prompt + c.tokens) for c in completions]
    # The mask goes by position, never by `ids != pad`: many models pad with their stop token,
    # which must be learned.
    mask = [torch.tensor([False] * len(c.prompt) + c.mask) for c in completions]
    advantages = torch.tensor([c.advantage for c in completions], dtype=torch.float32)
    return Batch(pad_sequence(ids, batch_first=True).to(device),
                 pad_sequence(mask, batch_first=True).to(device), advantages.to(device))


def micro_batches(completions, cfg, device):
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


def compute_logps(model, batch, cfg):
    """Compute token_logps of a batch, on a GPU with bfloat16 matrix products."""
    with in_bfloat16(batch.ids.device):
        return token_logps(model, batch.ids, batch.mask, temperature=cfg.temperature)


def learn(policy: Policy, optimizer, completions: list[Completion], cfg: Config,
          reference: torch.nn.Module | None = None, seed: int = 0) -> list[dict]:
    """Learn from a rollout in cfg.updates updates, each on its own random minibatch:
    every completion is in exactly one.

    In the first update r = 1, because nothing has changed since the rollout; in later
    ones the policy has moved. (With cfg.updates = 1, r is always 1 and the clip never
    acts.) A group may be split across minibatches: its advantages sum to 0 over all
    minibatches together, but not in each of them. Returns a list of what `update` returns.
    """
    model = policy.model.eval()  # without dropout: r is 1 in the first update
    shuffled = random.Random(seed).sample(completions, len(completions))
    minibatches = [shuffled[i::cfg.updates] for i in range(cfg.updates)]
    # Split each minibatch into micro-batches, which fit into memory, and leave out the
    # completions that have no gradient (A = 0, if beta is 0).
    split = [micro_batches(minibatch, cfg, model.device) for minibatch in minibatches]
    with torch.no_grad():
        # pi_old, before any update changes the policy. It comes from token_logps, as pi_theta
        # does, because the sampler rounds differently. The first update needs no such pass,
        # because its own log-probabilities are still those of pi_old.
        for batches in split[1:]:
            for batch in batches:
                batch.old_logps = compute_logps(model, batch, cfg)
        for batches in split:
            for batch in batches if cfg.beta else []:
                batch.ref_logps = compute_logps(reference, batch, cfg)
    updates = []
    for minibatch, batches in zip(minibatches, split):
        if batches:  # else A = 0 everywhere
            updates.append(update(model, optimizer, batches, count_tokens(minibatch), cfg))
    return updates


def update(model, optimizer, batches, denominator, cfg):
    """Make one optimizer step on a minibatch, given as micro-batches, whose loss is
    divided by denominator.

    Returns a dict: loss; norm, that of the gradient before it is cut to at most 1; skipped,
    whether loss or norm is not finite, so that the parameters stayed as they are; and the
    sums of grpo_sg_loss.
    """
    sums_of_batches = []
    for batch in batches:
        logps = compute_logps(model, batch, cfg)  # (B, T)
        old_logps = logps.detach() if batch.old_logps is None else batch.old_logps
        loss, sums = grpo_sg_loss(
            logps, old_logps, batch.advantages, batch.mask,
            weights=weigh(logps, cfg), ref_logps=batch.ref_logps,
            clip_low=cfg.clip_low, clip_high=cfg.clip_high, beta=cfg.beta,
            denominator=denominator)
        loss.backward()
        sums_of_batches.append({**sums, "loss": loss.detach()})
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    totals = {"norm": float(norm)}
    for key in sums_of_batches[0]:  # only now, because float() waits for the GPU
        totals[key] = sum(float(sums[key]) for sums in sums_of_batches)
    totals["skipped"] = not math.isfinite(totals["norm"] + totals["loss"])
    if not totals["skipped"]:
        optimizer.step()
    optimizer.zero_grad()
    return totals


def count_tokens(minibatch):
    """Return the number of tokens that the policy wrote in a minibatch, also with A = 0: the
    denominator of its loss. Otherwise a minibatch with many zero-variance groups would have an
    equally large gradient, based only on its few other groups."""
    return sum(sum(c.mask) for c in minibatch)


def weigh(logps: Tensor, cfg: Config) -> Tensor | None:
    """Return the weights of the method that cfg.shaping names, shaped like logps; None (all
    1) is GRPO."""
    if cfg.shaping == "none":
        return None
    if cfg.shaping == "ar":  # AR-Lopti's reweighting of advantages (arXiv 2505.12929)
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


def average_completions(completions):
    """Return means over completions."""
    return {"accuracy": mean(c.solved for c in completions),
            "format_rate": mean(c.formatted for c in completions),
            "truncated": mean(c.truncated for c in completions),
            "completion_tokens": mean(sum(c.mask) for c in completions),
            "tool_calls": mean(c.tool_calls for c in completions)}


def average_samples(drawn, n):
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


def mean_and_error(name, values):
    """Return the mean of the values and its standard error, None of a single value."""
    values = torch.tensor(values, dtype=torch.float64)
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else None
    return {name: values.mean().item(), f"{name}_se": error}


def split_groups(completions, n):
    """Split a problem-major list into the groups of n that belong to each problem."""
    return [completions[i:i + n] for i in range(0, len(completions), n)]


def find_equal_groups(completions, n):
    """Return for each group of n whether its rewards are equal, so that it has no gradient."""
    rewards = torch.tensor([c.reward for c in completions], dtype=torch.float64)
    return are_equal(rewards.view(-1, n))[:, 0].tolist()


# From here on it is rows, loading, files and flags: a reader of the method can stop.

# ---- 7. What is logged ----

def make_step_row(step, completions, updates, group_size, seconds_sampling, seconds_update):
    """Return the row of a training step: means over completions and over updates, and how long
    both parts of the step took."""
    tokens = sum(sum(c.mask) for c in completions)
    return {"step": step, "reward": mean(c.reward for c in completions),
            **average_completions(completions), **average_updates(updates),
            # of zero-variance groups; TRL calls it frac_reward_zero_std
            "equal_groups": mean(find_equal_groups(completions, group_size)),
            "tokens_per_second": tokens / max(seconds_sampling, 1e-9),
            "seconds_sampling": seconds_sampling, "seconds_update": seconds_update,
            "seconds": seconds_sampling + seconds_update}


def average_updates(updates):
    """Average what `learn` returns: grad_norm, the largest norm before gradient clipping (0:
    nothing was trained on, or no update was finite); skipped, the number of updates that were not
    finite; loss, the mean over updates; and the loss's statistics, means over what was trained on.
    Statistics are None if there was no update, or if a value is not finite."""
    norms = [totals["norm"] for totals in updates if not totals["skipped"]]
    count = sum(totals["count"] for totals in updates)
    # The log calls the loss's sums, divided by the number of tokens, what the field calls them.
    columns = {"loss": "loss", "clip_frac": "clipped", "kl": "kls", "entropy": "entropies",
               "weight_mean": "weights", "low_prob_frac": "unlikely"}
    means = {}
    for column, key in columns.items():
        value = sum(totals[key] for totals in updates)
        value /= max(1, len(updates) if key == "loss" else count)
        means[column] = value if updates and math.isfinite(value) else None  # JSON has no NaN
    return {"grad_norm": max(norms, default=0.0), "skipped": len(updates) - len(norms), **means}


# ---- 8. The model: loading, its stop tokens, its device, its number types ----

def load_model(name):
    """Load a causal language model of transformers, in float32, and its tokenizer from a folder
    written by save_pretrained or by their name on the hub. Returns (model, tokenizer), or raises
    OSError with the reason. Code that comes with a model is never run. The folder of an adapter
    of peft, such as LoRA, gives a model of which only the adapter is trained."""
    local = os.path.isdir(name)
    settings = dict(dtype="float32", local_files_only=local, trust_remote_code=False)
    try:
        if os.path.isfile(os.path.join(name, "adapter_config.json")):
            import peft
            model = peft.AutoPeftModelForCausalLM.from_pretrained(
                name, is_trainable=True, **settings)
            kind = type(model.get_base_model())
        else:
            model = transformers.AutoModelForCausalLM.from_pretrained(name, **settings)
            kind = type(model)
        # For a Qwen2 model, AutoTokenizer would replace the rules in tokenizer.json by Qwen2's.
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(
            name, local_files_only=local)
    except ModuleNotFoundError as error:
        raise OSError(f"the model {name} cannot be used ({error}): pip install {error.name}")
    except Exception as error:  # no such name, no network, half a folder: each has its own type
        raise OSError(f"the model {name} cannot be used ({first_line(error)}): give a folder "
                      "written by save_pretrained, with its tokenizer.json, or a hub name, which "
                      "needs a network") from error
    # Others, such as Mamba and RWKV, would sample from the wrong context.
    if "past_key_values" not in inspect.signature(kind.forward).parameters:
        raise OSError(f"the model {name} cannot be used, because {kind.__name__} keeps no "
                      "past_key_values, with which completions are sampled: take another one")
    return model, tokenizer


def find_stop_ids(model, tokenizer):
    """Return the ids that end a completion: all end tokens that the tokenizer and the model's
    generation_config name, and the token that ends a turn in the chat template, which many
    uploads name nowhere else. Texts of Qwen's base models end in <|endoftext|>, and their
    turns in <|im_end|>: stop on both."""
    words = tokenizer.get_vocab()
    configured = model.generation_config.eos_token_id
    stops = {words.get("<|im_end|>"), words.get("<|endoftext|>"), tokenizer.eos_token_id,
             find_turn_end(tokenizer)}
    return (stops | set(configured if isinstance(configured, list) else [configured])) - {None}


def find_turn_end(tokenizer):
    """Return the id of the added token that the chat template writes after an assistant's
    text, such as Llama 3's <|eot_id|>; None if there is none. Some templates, such as
    GLM-4's, write it only if another turn follows."""
    chat = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Bye."}]
    for messages in (chat[:2], chat):
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False)
        except Exception:  # it has no template, or one that refuses this chat
            continue
        _, said, after = text.rpartition("Hello.")
        ends = [word for word in tokenizer.get_added_vocab() if after.lstrip().startswith(word)]
        if said and ends:
            return tokenizer.convert_tokens_to_ids(max(ends, key=len))


def find_device(name):
    """Return "cuda" (the first GPU) or "cpu". "auto" is cuda if PyTorch can use it."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device.type
    except (AssertionError, RuntimeError) as error:  # it says what is missing, such as a driver
        raise SystemExit(f"error: --device {name}: {first_line(error)}: give --device cpu")


def prepare(model, device, *, gradient_checkpointing=False):
    """Move a causal language model to a device and set it up for this file: eval mode and, on a
    GPU, logits in float32. Returns the model.

    Load it with dtype="float32": at a learning rate of 1e-6 bfloat16 parameters would
    round most updates away. On a GPU settings of the whole process change: cuDNN's attention
    is off, and float32 products may use TF32. A tiny model on a CPU sets another: one thread.
    With gradient_checkpointing, a backward pass recomputes the activations of each layer. Without a
    gradient, as in sampling, that changes nothing.
    """
    if gradient_checkpointing:
        from transformers.modeling_layers import GradientCheckpointingLayer  # takes a second
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                # transformers itself would do so only in training mode, with dropout.
                layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False,
                                                  preserve_rng_state=False)
    if torch.device(device).type == "cuda":
        # PyTorch prefers cuDNN's attention on H100, H200 and B200. It makes a new plan
        # for each shape, and every decode step has a new shape: minutes per training step
        # (huggingface/transformers#48163). On B200 it is silently wrong for models with
        # fewer than 8 key-value heads (pytorch/pytorch#193893).
        torch.backends.cuda.enable_cudnn_sdp(False)
        # for what stays in float32: the vocabulary matrix
        torch.set_float32_matmul_precision("high")
        keep_logits_in_float32(model)
    elif torch.device(device).type == "cpu" and model.num_parameters() < 1_000_000:
        # A tiny model runs thousands of small operations, in which threads mostly wait for
        # each other. One thread is as fast, and gives the same sums on any number of cores.
        torch.set_num_threads(1)
    return model.to(device).eval()


def has_bfloat16(device_type):  # a T4 or V100 only emulates it, slowly
    return device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def in_bfloat16(device):
    """Return a context in which a GPU multiplies matrices in bfloat16, while parameters
    stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=has_bfloat16(device.type))


class Cache(transformers.DynamicCache):
    """Stores keys in the type of the values. Under autocast, rotary embeddings make keys
    float32, which would take twice the memory."""

    def update(self, keys, values, *args, **kwargs):
        return super().update(keys.to(values.dtype), values, *args, **kwargs)


def keep_logits_in_float32(model):
    """Take the vocabulary matrix out of autocast: with bfloat16 logits the ratio r would
    be off by more than the clip allows."""
    head = model.get_output_embeddings()
    # A method: copy.deepcopy binds it to the copy's head. A closure in the copy would still
    # use the original head.
    head.forward = types.MethodType(multiply_in_float32, head)


def multiply_in_float32(head, hidden):
    with torch.autocast(hidden.device.type, enabled=False):
        return type(head).forward(head, hidden.float())


# ---- 9. A run's folder ----

SAVE_SECONDS = 600  # time between checkpoints
LOGS = "metrics.jsonl", "samples.jsonl"
PATIENCE = 5  # steps without a gradient before a warning
MAY_BE_ZERO = ("alpha", "mu", "low", "clip_low", "clip_high", "beta", "seed", "eval_samples",
               "keep_every")
# With other values of these, a run's tests before and after training would not be comparable.
FIXED = ("model", "task", "data", "eval_data", "eval_problems", "people", "brief", "seed", "system",
         "chat_template_kwargs")
HEADINGS = {"model": "Model and task", "shaping": "The weight", "clip_low": "The loss",
            "lr": "Training", "tokens_per_micro_batch": "Memory and evaluation", "seed": "The run"}
ONE_START = "out", "eval_only", "resume"  # settings of one start, which a folder does not keep
SIGHUP = getattr(signal, "SIGHUP", signal.SIGTERM)  # a closed terminal; Windows has none


def list_checkpoints(out):
    """Return the steps of a run's whole checkpoints, the newest last."""
    names = os.listdir(out) if os.path.isdir(out) else []
    steps = [name.removeprefix("checkpoint-") for name in names if "checkpoint-" in name]
    return sorted(int(step) for step in steps if step.isdigit())


def find_checkpoint(out):
    """Return the folder of a run's newest whole checkpoint, or ""."""
    steps = list_checkpoints(out)
    return os.path.join(out, f"checkpoint-{steps[-1]}") if steps else ""


def read_rows(path):
    """Read the rows of a .jsonl file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def copy_logs(source, target):
    """Copy the logs from one folder to another. Whole ones are there at every moment."""
    for name in LOGS:
        log = os.path.join(source, name)
        if not os.path.isfile(log):
            raise OSError(f"{source} has no {name} (version 0.5 did not save it there): start a "
                          f"new run with --model {source}")
        os.replace(shutil.copy(log, os.path.join(target, f"{name}.new")),
                   os.path.join(target, name))


def write_settings(folder, cfg):
    with open(os.path.join(folder, "settings.json"), "w", encoding="utf-8") as file:
        json.dump(kept_settings(cfg), file, indent=1)


def kept_settings(cfg):
    """Return the settings that a run's folder keeps, as a dict."""
    return {name: value for name, value in vars(cfg).items() if name not in ONE_START}


def verdict_of(c):
    return {"reward": c.reward, "advantage": c.advantage, "correct": c.correct,
            "formatted": c.formatted, "truncated": c.truncated, "solved": c.solved}


def say(text):
    """Print a line of a run. If its reader has gone (head, a closed terminal), the run goes on
    and its lines are discarded."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def in_words(row):
    """Format the means in a row that have a standard error, KEY_se. (That of a single problem
    is None.)"""
    words = []
    for key, value in row.items():
        if f"{key}_se" in row:
            error = row[f"{key}_se"]
            plus_minus = "" if error is None else f" ± {error:.3f}"
            words.append(f"{key.removeprefix('eval/')} {value:.3f}{plus_minus}")
    return ", ".join(words)


def first_line(error):
    return f"{type(error).__name__}: {error}".split("\n")[0]


class Run:
    """Log the steps of a training, save checkpoints, and continue from one.

    The folder `out` gets settings.json, metrics.jsonl (a row of numbers for each step and each
    evaluation), samples.jsonl (completions as text, with their verdicts) and checkpoint-STEP/:
    model and tokenizer, which transformers can load, settings, logs, and the optimizer's state.
    A subclass with its own `log` can also send the rows elsewhere: main(make_run=TheSubclass).

    Args:
        cfg: a Config.
        policy: the Policy to save.
        out: a new or empty folder or, with cfg.resume, that of a run.
    """

    def __init__(self, cfg, policy, out):
        self.cfg = cfg
        self.policy = policy
        self.out = out
        self.done = 0           # steps
        self.seconds = []       # of the steps of this process
        self.flat = 0           # steps without a gradient, one after the other
        self.stopped_by = None  # the number of a signal
        self.last_save = time.monotonic()
        os.makedirs(out, exist_ok=True)
        if cfg.resume:
            self.done = list_checkpoints(out)[-1]
            copy_logs(find_checkpoint(out), out)  # what was logged after it comes again
        write_settings(out, cfg)

    def restore(self, optimizer):
        """Give the optimizer of a resumed run its state in the checkpoint."""
        path = os.path.join(find_checkpoint(self.out), "training.pt")
        optimizer.load_state_dict(torch.load(path, "cpu", weights_only=True)["optimizer"])
        optimizer.param_groups[0]["lr"] = self.cfg.lr  # --resume may change it

    def log_step(self, row, completions):
        """Log a step's row and one group of its completions, if possible one with unequal
        rewards; log all completions if an update was skipped."""
        G = self.cfg.group_size
        equal = find_equal_groups(completions, G)
        shown = split_groups(completions, G)[equal.index(min(equal))]
        if torch.cuda.is_available():
            row["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        self.log(row, completions if row["skipped"] else shown)
        self.seconds.append(row["seconds"])
        self.done = row["step"]
        self.show(row)

    def show(self, row):
        """Print a step's numbers, and a warning if the last steps had no gradient."""
        left = (self.cfg.steps - self.done) * mean(self.seconds)
        weight = "" if row["weight_mean"] is None else f"mean w {row['weight_mean']:.2f}, "
        say(f"step {self.done} of {self.cfg.steps}: reward {row['reward']:.2f}, sampled accuracy "
            f"{row['accuracy']:.2f}, {weight}grad_norm {row['grad_norm']:.2f}, "
            f"{row['seconds']:.1f} s, {datetime.timedelta(seconds=round(left))} left")
        if row["skipped"]:
            say(f"{row['skipped']} updates skipped: loss or gradient not finite")
        self.flat = self.flat + 1 if row["equal_groups"] == 1 else 0
        if self.flat == PATIENCE:
            say(f"warning: {PATIENCE} steps gave no gradient, because all rewards were equal in "
                "each of their groups: read samples.jsonl; in a clone, python -m support.check "
                "says what to change")

    def log(self, row, completions):
        """Append the row to metrics.jsonl, and the completions to samples.jsonl."""
        samples = [{"step": row["step"], "split": row.get("split", "train"),
                    "question": c.problem.question, "answer": c.problem.answer,
                    "completion": c.transcript, **verdict_of(c)} for c in completions]
        for name, rows in zip(LOGS, ([row], samples)):
            with open(os.path.join(self.out, name), "a", encoding="utf-8") as file:
                for each in rows:  # what JSON cannot represent is written with str()
                    file.write(json.dumps(each, default=str, skipkeys=True) + "\n")

    def save_if_due(self, optimizer):
        """Save after the last step, after a signal, every ten minutes, and what --keep_every keeps.
        Return whether a signal ends the run. (One that comes while this saves ends it after the
        next step, which is then also saved.)"""
        stopped = self.stopped_by is not None
        late = time.monotonic() - self.last_save > SAVE_SECONDS
        must = stopped or self.done == self.cfg.steps
        if must or late or self.is_kept(self.done):
            try:
                self.save(optimizer)
            except OSError as error:
                if must:
                    raise
                say(f"warning: {error}. The run goes on and tries again in ten minutes")
            self.last_save = time.monotonic()
        return stopped

    def is_validated(self):
        """Return whether the last step has been validated, before an error stopped the next one."""
        return read_rows(os.path.join(self.out, LOGS[0]))[-1].get("split") == "valid"

    def is_kept(self, step):
        return self.cfg.keep_every and step % self.cfg.keep_every == 0

    def save(self, optimizer):
        """Write a checkpoint under another name, rename it when it is whole, and then remove
        older ones: a whole one exists at every moment.

        Random states are not saved, because all randomness of a step is a function of seed and
        step.
        """
        new = os.path.join(self.out, "checkpoint.new")
        if self.done in list_checkpoints(self.out):
            return
        try:
            shutil.rmtree(new, ignore_errors=True)
            self.policy.model.save_pretrained(new)
            self.policy.tokenizer.save_pretrained(new)
            write_settings(new, self.cfg)
            copy_logs(self.out, new)
            torch.save({"optimizer": optimizer.state_dict()}, os.path.join(new, "training.pt"))
            os.rename(new, os.path.join(self.out, f"checkpoint-{self.done}"))
        except Exception as error:  # such as a full disk: each library raises its own type
            shutil.rmtree(new, ignore_errors=True)
            raise OSError(f"cannot write the checkpoint of step {self.done} ({first_line(error)}): "
                          f"make room on the disk of {self.out}; --resume continues from the "
                          "checkpoint before, if there is one")
        for step in list_checkpoints(self.out):
            if step < self.done and not self.is_kept(step):
                shutil.rmtree(os.path.join(self.out, f"checkpoint-{step}"), ignore_errors=True)

    def stop(self, number, frame):
        """Handle a signal: the run ends after its step; a second one ends it at once. (Not a
        second SIGHUP, because a terminal that closes may send two.)"""
        self.stopped_by = number
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler)
        # Not with print, which the signal may have interrupted.
        with contextlib.suppress(OSError):
            os.write(2, b"\nfinishing this step, then saving; a second signal stops at once, and "
                        b"loses the steps after the last checkpoint\n")


# ---- 10. The program ----

# main calls read_settings, lock_folder, load, and carry_out, which tests, trains and tests again.

HERE = os.path.dirname(os.path.abspath(__file__))


def make_parser():
    """Return a parser with a flag for each field of Config."""
    return transformers.HfArgumentParser(Config, allow_abbrev=False, add_help=False,
                                         usage="%(prog)s [--setting value ...]")


def show_help():
    """Print each setting with its default, under the headings of Config."""
    print("Train a language model with GRPO-SG: python grpo_sg.py [--setting value ...]\n"
          "A model's folder may have other defaults, in settings.json: the tiny models' do.")
    for field, value in zip(dataclasses.fields(Config), vars(Config()).values()):
        if field.name in HEADINGS:
            print(f"\n{HEADINGS[field.name]}")
        default = "" if value == "" else f" (default: {value})"
        print(f"  --{field.name:<24}{field.metadata['help']}{default}")
    print(f"\nExamples{__doc__.rpartition('program:')[2]}")


def short_name(task):
    """Return the name of a task: "kk", or "mine" of the file folder/mine.py."""
    return os.path.basename(task).removesuffix(".py")


def find_model(name, task):
    """Return the folder or hub name of the model: of a run, its checkpoint; without a name, the
    tiny model of the task."""
    tiny = os.path.join(HERE, "support", "pretrained", short_name(task))
    name = os.path.expanduser(name) or tiny
    if os.path.isdir(name):
        return os.path.abspath(find_checkpoint(name) or name)
    if name == tiny:
        raise SystemExit(f"error: there is no tiny model for --task {task} (in a clone, python -m "
                         f"support.tiny {task} makes one): name a model with --model, such as "
                         "Qwen/Qwen2.5-0.5B-Instruct or a folder")
    return name


def hash_file(path):
    """Return a hash of a file, or "" if there is none."""
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def read_saved(folder, task=""):
    """Read settings.json in the folder of a model or a run, as a dict; {} if there is none, or
    if it was made for another task."""
    path = os.path.join(folder, "settings.json")
    if not os.path.isfile(path):
        return {}
    try:
        with open(path, encoding="utf-8-sig") as file:  # Notepad adds a mark
            saved = dict(json.load(file))
    except (ValueError, TypeError) as error:
        raise SystemExit(f"error: {path} is not a JSON object of settings: {error}")
    made_for = saved.get("task", task)
    if task and short_name(task) != short_name(made_for):
        say(f"{folder} was made for --task {made_for}: its settings.json is not used")
        return {}
    if task and saved.get("task_hash", hash_file(task)) != hash_file(task):
        say(f"warning: {task} has changed since its tiny model was made (from {made_for}): run "
            f"python -m support.tiny {task} again")
    return {name: saved[name] for name in kept_settings(Config()) if name in saved}


def check_settings(cfg):
    """Raise SystemExit for settings with which a run would fail late, or in silence."""
    for name, value in vars(cfg).items():
        fits = type(value) not in (int, float) or 0 < value < math.inf
        if not fits and (value != 0 or name not in MAY_BE_ZERO):
            least = "0 or more" if name in MAY_BE_ZERO else "above 0"
            raise SystemExit(f"error: --{name} must be {least}, not {value!r}")
    if cfg.seed >= 2 ** 32:  # torch takes numbers below 2 ** 64, and `train` multiplies it
        raise SystemExit(f"error: --seed must be below 2 ** 32 = {2 ** 32}, not {cfg.seed}")
    if cfg.group_size < 2:
        raise SystemExit("error: --group_size must be 2 or more, because completions are compared "
                         f"with each other, not {cfg.group_size}")
    if cfg.low > cfg.high:
        raise SystemExit(f"error: --low {cfg.low} is above --high {cfg.high}")
    files = os.listdir(cfg.out) if os.path.isdir(cfg.out) else []
    if not cfg.resume and not {"settings.json", "lock"}.issuperset(files):  # a run without a row
        raise SystemExit(f"error: --out {cfg.out} exists: name a new or empty folder, or --resume "
                         "the run in it")


def parse_flags(flags):
    """Return a Config from flags, a list of words."""
    parser = make_parser()
    for flag, value in zip(flags, flags[1:]):
        if flag in ("--resume", "--eval_only") and os.path.isdir(value):
            names_it = "--out" if flag == "--resume" else "--model"
            parser.error(f"{flag} takes no folder: write {flag} {names_it} {value}")
    settings, unknown = parser.parse_known_args(flags)
    if unknown:
        texts = {name: name for name in vars(settings)}
        texts |= {field.metadata["help"]: field.name for field in dataclasses.fields(Config)}
        near, = difflib.get_close_matches(unknown[0].partition("=")[0], texts, 1, cutoff=0)
        parser.error(f"there is no {' '.join(unknown)}: the nearest flag is --{texts[near]}; "
                     "--help lists all")
    cfg = Config(**vars(settings))
    for name in ("task", "data", "eval_data"):  # a run may be resumed in another folder
        path = getattr(cfg, name)
        if "." in path and os.path.isfile(path):
            setattr(cfg, name, os.path.abspath(path))
    return cfg


def flags_of(settings):
    """Return settings, a dict, as flags, so that one parser checks both kinds."""
    flags = []
    for name, value in settings.items():
        if isinstance(value, list):
            flags += [f"--{name}", *map(str, value)]
        elif isinstance(value, (str, int, float)):
            flags.append(f"--{name}={value}")  # a value may begin with a minus sign
        else:
            raise SystemExit(f"error: --{name} must be a text, a number or a list, not {value!r}")
    return flags


def read_settings(argv=None):
    """Return the settings, a Config. Each comes from the first that has it: the flags;
    settings.json in the model's folder; SETTINGS in the task's file; Config. A resumed run has
    its own settings, which flags override."""
    argv = sys.argv[1:] if argv is None else argv
    if "-h" in argv or "--help" in argv:
        show_help()
        raise SystemExit(0)
    given = parse_flags(argv)
    if given.resume:
        cfg = read_run(given, argv)
    else:
        import tasks
        settings = tasks.load_task(given.task)[1] if given.task else {}
        unknown = settings.keys() - kept_settings(given).keys()
        if unknown:
            raise SystemExit(f"error: --task {given.task}: SETTINGS has names that are not "
                             f"settings of a task: {', '.join(unknown)}")
        model = find_model(given.model or settings.get("model", ""), given.task or "kk")
        saved = read_saved(model, given.task)
        cfg = parse_flags(flags_of({"task": "kk"} | settings | saved) + argv)
        cfg.model = model
    check_settings(cfg)
    return cfg


def read_run(given, argv):
    """Return the settings of the run that continues."""
    if given.eval_only:
        raise SystemExit("error: --resume trains and --eval_only does not: give one of them "
                         f"(--eval_only --model {given.out} tests the run)")
    saved = read_saved(given.out) if find_checkpoint(given.out) else {}
    if not saved:
        raise SystemExit("error: --resume needs --out and the folder of a run with a checkpoint, "
                         f"not {given.out!r}. Nothing in it was changed: start again with a new "
                         "--out")
    before, cfg = parse_flags(flags_of(saved)), parse_flags(flags_of(saved) + argv)
    if given.model:
        cfg.model = find_model(given.model, cfg.task)
    changes = {name: value for name, value in kept_settings(cfg).items()
               if value != getattr(before, name)}
    for name in changes.keys() & set(FIXED):
        raise SystemExit(f"error: --{name} {changes[name]}: a resumed run keeps its "
                         f"{getattr(before, name)!r}, or its tests could not be compared: leave "
                         f"the flag out, or start a new run with --model {given.out}")
    if changes:
        say(f"changed since the last start: {' '.join(flags_of(changes))}")
    return cfg


def lock_folder(out):
    """Make a run's folder and lock it for this process, until the end of a `with`."""
    try:
        os.makedirs(out, exist_ok=True)
        return filelock.FileLock(os.path.join(out, "lock")).acquire(timeout=0)
    except filelock.Timeout:
        raise SystemExit(f"error: another process is using {out}: wait for it, or end it")
    except OSError as error:
        raise SystemExit(f"error: --out {out} cannot be written ({error}): name another folder")


def check_disk(policy, cfg, out):
    """Raise OSError if the disk cannot hold the run's checkpoints. Each has the parameters and
    AdamW's two moments in float32; two are there while one is saved."""
    count = 2 + (cfg.steps // cfg.keep_every if cfg.keep_every else 0) - len(list_checkpoints(out))
    needed = 12 * policy.model.num_parameters(only_trainable=True) * count
    free = shutil.disk_usage(out).free
    if free < needed:
        raise OSError(f"the disk of {out} has {free / 1e9:.1f} GB of free space, and the run's "
                      f"checkpoints need {needed / 1e9:.1f} GB: make room, or name another --out")


def load(cfg):
    """Make the problems, load the model, and encode the prompts. Returns (policy, task)."""
    import tasks
    device = find_device(cfg.device)
    say(f"preparing the problems of --task {cfg.task}")
    task = tasks.make_task(cfg)
    name = find_checkpoint(cfg.out) if cfg.resume else cfg.model
    say(f"loading {name}")
    # transformers' bar would garble our lines. The hub's bar, of a download, stays.
    transformers.utils.logging.disable_progress_bar()
    huggingface_hub.utils.enable_progress_bars()
    model, tokenizer = load_model(name)
    prepare(model, device, gradient_checkpointing=cfg.gradient_checkpointing)
    policy = Policy(model, tokenizer, find_stop_ids(model, tokenizer))
    if not policy.stop_ids:
        raise SystemExit(f"error: --model {name} names no token that ends a completion: set "
                         "eos_token_id in its generation_config.json")
    return policy, tasks.encode_problems(task, tokenizer, policy.stop_ids, model.config, cfg)


def describe_run(policy, task, run):
    """Print the run's settings, folder and size, and a problem as the model reads it."""
    cfg, defaults = run.cfg, vars(Config())
    changes = {name: value for name, value in vars(cfg).items() if value != defaults[name]}
    say(f"non-default settings: {' '.join(flags_of(changes))}")
    if cfg.prompts > len(task.train):
        say(f"--prompts {cfg.prompts}: a step uses the {len(task.train)} problems that there are")
    device = policy.model.device
    threads = f" (threads: {torch.get_num_threads()})" if device.type == "cpu" else ""
    problem = task.train[0]
    say(f"files of this run: {run.out}/\n"
        f"{policy.model.num_parameters():,} parameters on {device}{threads}; {len(task.train):,} "
        f"problems to train on, {len(task.test)} to test on (best constant answer, the majority "
        f"baseline: {task.floor:.2f})\n"
        f"the first problem, as the model reads it ({len(problem.prompt)} tokens):\n"
        f"{policy.tokenizer.decode(problem.prompt)}\nits answer: {problem.answer}")
    w = weigh(torch.tensor([0.0, 1.0]).log(), cfg)  # of pi = 0 and pi = 1: w is monotone
    if w is not None and w[0] == w[1]:
        say(f"warning: these settings make every weight {w[0]:.4g}: this is GRPO, up to that "
            "factor")


def describe_signal(row, cfg):
    """Print the rates of a test that decide whether there is something to learn from."""
    k = cfg.eval_samples
    if k < 2:
        return
    formed, equal = row[f"eval/format_rate@{k}"], row[f"eval/equal_groups@{k}"]
    say(f"{k} samples per problem: {formed:.0%} in the correct format, "
        f"{row[f'eval/truncated@{k}']:.0%} truncated; {equal:.0%} of the groups give no gradient, "
        "because all their rewards are equal")
    if formed < 0.05 or equal > 0.9:
        say("there is almost nothing to learn from: in a clone, python -m support.check with the "
            "same flags says what to change")


def describe_change(rows, cfg, floor):
    """Print how accuracy and reward of the tests changed, before -> after training. floor: the
    accuracy of the best constant answer."""
    tests = [row for row in rows if row.get("split") == "test"]
    before, after = tests[0], tests[-1]
    k = cfg.eval_samples
    kind, keys = "sampled", (f"eval/avg@{k}", f"eval/reward@{k}")
    if keys[0] not in before:  # no samples, or a resumed run with another k
        kind, keys = "greedy", ("eval/accuracy", "eval/reward")
    changes = [f"{key.removeprefix('eval/')} {before[key]:.3f} -> {after[key]:.3f}"
               for key in keys]
    say(f"before -> after training: {', '.join(changes)}\n"
        f"On the test problems, {before[keys[0]]:.0%} of the model's {kind} answers were correct "
        f"before training and {after[keys[0]]:.0%} are now. Always giving the best constant answer "
        f"would get {floor:.0%}.")


def carry_out(policy, task, cfg, run):
    """Test, train, and test again. A resumed run has had its first test."""
    if not cfg.eval_only:
        check_disk(policy, cfg, run.out)
    if run.done:
        say(f"resuming after step {run.done}")
        last = read_rows(os.path.join(run.out, LOGS[0]))[-1]
        if last["step"] >= cfg.steps and last.get("split") == "test":
            say(f"nothing is left to do: this run has had its {cfg.steps} steps and its last test. "
                "--steps adds steps")
            return
    else:
        describe_signal(evaluate_split(policy, task, cfg, run, "test"), cfg)
    if cfg.eval_only:
        return
    with stopped_by_signals(run):
        train_and_save(policy, task, cfg, run)
    if run.stopped_by:
        say(f"stopped by {signal.Signals(run.stopped_by).name}; continue with --resume --out "
            f"{run.out}")
        raise SystemExit(128 + run.stopped_by)
    evaluate_split(policy, task, cfg, run, "test")
    describe_change(read_rows(os.path.join(run.out, LOGS[0])), cfg, task.floor)
    copy_logs(run.out, find_checkpoint(run.out))  # with this test
    in_clone = os.path.isdir(os.path.join(HERE, "support"))
    curves = f"; curves: python -m support.page {run.out}" if in_clone else ""
    say(f"transcripts: {run.out}/samples.jsonl{curves}")


def train_and_save(policy, task, cfg, run):
    """Train for the steps that are left, with validations, logs and checkpoints."""
    # of the KL: the initial policy
    reference = prepare(load_model(cfg.model)[0], policy.model.device) if cfg.beta else None
    optimizer = make_optimizer(policy.model, cfg)
    if run.done:
        run.restore(optimizer)
    steps = train(policy, task, cfg, optimizer, run.done, reference)
    while run.done < cfg.steps:
        try:
            # The validation of the last step comes here, so that a resumed run makes the one
            # that a stopped run did not make.
            if run.done and run.done % cfg.eval_every == 0 and not run.is_validated():
                evaluate_split(policy, task, cfg, run, "valid")
            row, completions = next(steps)
        except Exception as error:
            # An error in a task's function loses no step. (Within `learn`, the policy may already
            # be another one than after the last step.)
            called = traceback.extract_tb(error.__traceback__)
            within = any((frame.filename, frame.name) == (__file__, "learn") for frame in called)
            if run.done and not within:
                run.save(optimizer)
                say(f"step {run.done} is saved; --resume --out {run.out} continues")
            raise
        run.log_step(row, completions)
        if run.save_if_due(optimizer):  # after a signal, such as Ctrl-C
            break


def evaluate_split(policy, task, cfg, run, split):
    """Evaluate on the problems of "valid" or "test" and log the row and the greedy
    completions. Returns the row."""
    samples = cfg.eval_samples if split == "test" else 0
    row, greedy = evaluate(policy, task, getattr(task, split), cfg, samples=samples)
    row = {"step": run.done, "split": split, **row}
    run.log(row, greedy)
    say(f"{split} after step {run.done}: greedy {in_words(row)}")
    return row


@contextlib.contextmanager
def stopped_by_signals(run):
    """Let Ctrl-C, kill and a closed terminal end the run after its step."""
    handlers = {}
    with contextlib.suppress(ValueError):  # only the main thread may handle signals
        for number in {signal.SIGINT, signal.SIGTERM, SIGHUP}:
            if number != SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                handlers[number] = signal.signal(number, run.stop)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def errors_in_one_line():
    """End the program with one line for a user's mistake, a full disk or too little memory. An
    error in a task's own functions keeps its traceback."""
    try:
        import tasks
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: the command line needs tasks.py next to grpo_sg.py ({error}). "
                         "The functions of grpo_sg.py do not: import them")
    try:
        yield
    except (tasks.UserError, TaskError, OSError) as error:
        raise SystemExit(f"error: {error}")
    except torch.OutOfMemoryError as error:
        raise SystemExit(f"error: out of memory ({first_line(error)}): lower --sample_batch and "
                         "--tokens_per_micro_batch, or add --gradient_checkpointing (with --resume "
                         "as well)")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT)


def main(argv=None, make_run=Run):
    """Run the command line: load a model, make the problems, test, train and test again.

    Args:
        argv: a list of flags; by default those of the process.
        make_run: Run or a subclass, for a tracker of experiments.
    """
    sys.path.append(HERE)  # for a file that is installed
    with contextlib.suppress(AttributeError):  # in a notebook
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal knows every letter
    with errors_in_one_line():
        cfg = read_settings(argv)
        start = f"runs/{short_name(cfg.task)}-{cfg.shaping}-seed{cfg.seed}"
        out = cfg.out or f"{start}-{time.strftime('%Y%m%d-%H%M%S')}"
        with lock_folder(out):
            policy, task = load(cfg)
            run = make_run(cfg, policy, out)
            describe_run(policy, task, run)
            carry_out(policy, task, cfg, run)


if __name__ == "__main__":
    # Under its own name: a user's task imports grpo_sg, and there must be only one.
    import grpo_sg
    grpo_sg.main()
