# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "transformers==5.23.0", "datasets==5.2.0", "tqdm==4.70.1"]
# ///
"""GRPO-SG: reinforcement learning with verifiable rewards, in one file that is read
from top to bottom.

For each prompt, sample a group of completions from the policy and let a verifier judge
them: by its verdict each gets a reward R. GRPO makes the completions that beat the mean
of their group more likely, token by token, and the others less:

    maximise the mean over tokens of
        w * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - beta KL

    r = pi_theta(token) / pi_old(token)              A = (R - mean R) / std R in the group
    w = clip(alpha * (sigmoid(pi_theta(token) / tau) - mu), L, U)
    KL = for each token, an estimate of how far pi_theta is from a reference policy

The weight w is all that GRPO-SG adds (arXiv 2511.00066). It is treated as a constant,
without a gradient: it is to scale the advantage, and not to be maximised. It is never
negative, so that w * min(r A, clip(r) A) = min(r (wA), clip(r) (wA)): GRPO-SG is GRPO
in which every token has its own advantage wA. By default w is 1 up to pi = 0.12,
rises to 1.4 at pi = 0.33, and stays there: unlikely tokens, whose gradients are the
largest (they grow with 1 - pi) and dominate an update, count for less than likely
ones. The loop is `train`, in section 5: sample, compare, learn.

All of the algorithm is in this file; tasks.py has the problems and verifiers, support/
what any such program needs. Left out, on purpose, are trainer classes, value networks,
reward models, LoRA, several GPUs, and inference engines.

    python grpo_sg.py             a tiny model on a CPU, offline: about half a minute
    python grpo_sg.py --model Qwen/Qwen2.5-0.5B --task kk
                                  the same loop on a real model and a GPU
    python grpo_sg.py --eval_only --model runs/NAME/checkpoint
                                  repeat a run's test: seconds for the tiny model
"""
import dataclasses
import math
import os
import platform
import random
import time
import warnings
from typing import Literal

# This setting of PyTorch must be made before torch is imported. Sequences that grow token
# by token would leave gaps in a GPU's memory, which expandable segments close. (They do
# not work on Windows' WSL; the first variable is the setting's older name.)
if "microsoft" not in platform.release() and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

from support import program

if __name__ == "__main__":
    program.end_on_ctrl_c()  # what is imported next takes seconds

import torch
import torch.nn.functional as F
from tqdm import tqdm

import tasks
from support import data, logs, models, tiny
from support.run import Run, find_saved, read_checkpoint

# ---- 1. The algorithm: pure functions of tensors ----

# One letter, one meaning:
#   P  prompts of a rollout                 T  tokens of a row, padded on the right
#   G  completions of each prompt           N  tokens of a batch that the policy wrote
#   B  rows of a batch: P G, or fewer       V  words of the vocabulary
#   S  tokens of a prompt, padded on the left, where sampling goes on

def token_weights(logps, *, alpha=2.0, tau=1/9, mu=0.25, low=1.0, high=1.4):
    """GRPO-SG's weights, w = clip(alpha * (sigmoid(pi / tau) - mu), L, U).

    logps: log pi, in nats, of the sampled tokens under the current policy, at the
    sampling temperature; any shape. low, high: L, U. tau is our reading: the one source
    that names it has 9, with which w would be constant (lesson/decisions.md). Returns
    float32 of that shape, detached: w says how much a token's advantage counts, and is
    not itself something to maximise.
    """
    pi = logps.detach().float().exp()
    return (alpha * (torch.sigmoid(pi / tau) - mu)).clamp(low, high)


def group_advantages(rewards, *, eps=1e-6):
    """A = (R - mean R) / (std R + eps) in each group: (P, G), float32.

    rewards: (P, G), G >= 2; an AssertionError names other shapes. This is GRPO's (arXiv
    2402.03300). std is the sample standard deviation (over G - 1), as in TRL and verl.
    """
    shape = tuple(rewards.shape)
    assert len(shape) == 2 and shape[1] >= 2, f"(P, G) with G >= 2, not {shape}"
    R = rewards.float()
    A = (R - R.mean(1, keepdim=True)) / (R.std(1, keepdim=True) + eps)
    # Exactly 0 for equal rewards: a rounding error, divided by eps, would be a signal.
    equal = R.amax(1, keepdim=True) == R.amin(1, keepdim=True)
    return A.masked_fill(equal, 0.0)


def grpo_sg_loss(logps, old_logps, advantages, mask, *, weights=None, ref_logps=None,
                 clip_low=0.2, clip_high=0.24, beta=0.0, loss_agg_mode="token-mean",
                 denominator=None):
    """(loss to minimise, dict of sums over the tokens).

    weights=token_weights(logps) is GRPO-SG, weights=None is GRPO.

    logps, old_logps, ref_logps: (B, T) log-probabilities, in nats, under pi_theta (with
        gradient), the policy that sampled, the reference; finite where mask is true.
    advantages: (B,) or (B, T).
    mask: (B, T), true on the tokens that the policy wrote; other positions are ignored.
    weights: (B, T).
    loss_agg_mode: "token-mean", or "seq-mean-token-mean", the mean over completions of
        their token means (GRPO's first form: a token of a long completion counts less).
    denominator: if this is a part of a batch, the number of tokens (in the second mode,
        of completions) of the whole batch; the losses of the parts then add up to the
        whole's. Where gradients are averaged over processes, as by DDP, divide it by the
        number of processes.

    An AssertionError names what does not fit: a shape, the mode, or beta > 0 without
    ref_logps. The second result has sums over the tokens (in the second mode, over
    completions of their token means), and their number as "count": sums["kl"] /
    sums["count"] is the mean KL.

    clip_low: GRPO's 0.2. clip_high: AR-Lopti's 0.24 (arXiv 2505.12929); GRPO has 0.2.

    As long as nothing has been updated, r = 1, and the loss, but for a KL, is only the
    mean of -wA, often near 0. Its gradient is not: at r = 1 the gradient of r is that of
    log pi, so the update is REINFORCE with the advantage wA.
    """
    assert logps.dim() == 2, f"logps of shape {tuple(logps.shape)} are not (B, T)"
    for x in (old_logps, mask, weights, ref_logps):
        assert x is None or x.shape == logps.shape, f"{tuple(x.shape)} is not (B, T)"
    shape = advantages.shape
    assert shape in (logps.shape, logps.shape[:1]), f"{tuple(shape)}: not (B,) or (B, T)"
    by_completion = loss_agg_mode == "seq-mean-token-mean"
    assert by_completion or loss_agg_mode == "token-mean", f"no mode {loss_agg_mode!r}"
    assert not beta or ref_logps is not None, "beta > 0 needs ref_logps"
    logps = logps.to(torch.promote_types(logps.dtype, torch.float32))
    mask = mask.bool()
    A = advantages.reshape(len(logps), -1)  # (B, 1) or (B, T)
    w = torch.ones_like(logps) if weights is None else weights.detach()  # (B, T)
    # Masked before exp, so that no nan at a pad spreads.
    r = (logps - old_logps.detach()).masked_fill(~mask, 0.0).exp()
    clipped = r.clamp(1 - clip_low, 1 + clip_high)
    # w is outside the clip. If it were inside, as clip(w r), a likely token (w = 1.4)
    # with A > 0 would be above 1 + clip_high from the start, have no gradient, and
    # never learn.
    objective = w * torch.minimum(r * A, clipped * A)
    # The KL to the reference. Without a reference it is only logged, and measured to the
    # policy that sampled.
    kl_to = old_logps if ref_logps is None else ref_logps
    log_ref_ratio = (kl_to.detach() - logps).masked_fill(~mask, 0.0)  # log(pi_ref / pi_theta)
    # The k3 estimator (joschu.net/blog/kl-approx.html): >= 0, and 0 if both agree. It is
    # unbiased while the policy is still the one that sampled; its gradient is not, even
    # then. expm1(x) is more exact near 0 than exp(x) - 1.
    kl = torch.expm1(log_ref_ratio) - log_ref_ratio
    if beta:
        objective = objective - beta * kl  # not times w, which scales only the advantage

    lengths = mask.sum(1, keepdim=True).clamp(min=1)  # (B, 1)
    count = mask.any(1).sum() if by_completion else mask.sum()

    def total(x):
        x = x.masked_fill(~mask, 0.0)
        if by_completion:
            x = x / lengths
        return x.sum()

    if denominator is None:
        denominator = count.clamp(min=1)
    loss = -total(objective) / denominator
    with torch.no_grad():
        held_back = clipped * A < r * A  # by the clip
        unlikely = logps < math.log(1/3)  # about where, by default, w < U
        sums = {"count": count,
                "clip_frac": total(held_back.float()),
                "kl": total(kl),
                # of the policy that sampled, in nats: an estimate by the tokens it drew
                "entropy": total(-old_logps.to(logps.dtype)),
                "weight_mean": total(w),
                "low_prob_frac": total(unlikely.float())}
    return loss, sums


def pass_at_k(n, c, k):
    """Unbiased estimate, from n samples of which c are right, of the chance that at
    least one of k is: 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374). An AssertionError
    names numbers that cannot be."""
    possible = 0 <= c <= n and 1 <= k <= n
    assert possible, f"0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}"
    return 1 - math.comb(n - c, k) / math.comb(n, k)


# ---- 2. Log-probabilities of the policy ----

def token_logps(model, ids, mask, *, temperature=1.0):
    """(B, T) float32: [b, t] is log pi(ids[b, t] | ids[b, :t]), 0 outside of mask.

    ids: (B, T), prompt and completion, right-padded with any token. mask: (B, T), True
    exactly on sampled tokens, and never on a row's first token, which is predicted from
    nothing. No attention mask is needed: pads come last, and nothing attends to what
    follows it. (Rows padded on the left would get wrong numbers.) model: any causal
    language model of transformers, 5.21 or newer; it warns of one in training mode,
    unless that is for checkpointing gradients. AssertionError: a mask of another shape, or
    one that is true on a first token; a temperature that is not above 0.
    """
    assert mask.shape == ids.shape, f"mask {tuple(mask.shape)}, ids {tuple(ids.shape)}"
    mask = mask.bool()
    assert not mask[:, 0].any(), "the first token of a row has no context: mask[:, 0]"
    assert temperature > 0, f"the temperature must be above 0, not {temperature}"
    if model.training and not getattr(model, "is_activation_checkpointing", False):
        warnings.warn("the model is in training mode: with dropout, r is not 1 where "
                      "nothing has changed; call model.eval()")
    # Position t predicts token t + 1. Only the N positions before sampled tokens go
    # through the matrix of the vocabulary: with Qwen's 151,936 words the other logits
    # would take most of an update's memory. logits_to_keep may be a mask: then the
    # logits of its True positions are all that transformers computes.
    output = model(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=mask[:, 1:])
    logits = output.logits.float() / temperature  # (N, V)
    del output  # or its logits would be kept beside these
    # The N logits, ids[mask] and the cells of masked_scatter are in one order: row by
    # row, from left to right.
    logps = -F.cross_entropy(logits, ids[mask], reduction="none")  # (N,)
    return torch.zeros(ids.shape, device=ids.device).masked_scatter(mask, logps)


# ---- 3. Sampling ----

def next_logits(model, ids, attention, position, cache):
    """(B, V): the logits of what follows ids (B, S), of which the cache gets the keys
    and values. attention: (B, columns so far), 0 on pads. position: (B, S)."""
    output = model(input_ids=ids, attention_mask=attention, position_ids=position,
                   past_key_values=cache, use_cache=True, logits_to_keep=1)
    return output.logits[:, -1]


def prefill(model, prompts):
    """Read B prompts, equal ones once. Returns (logits, attention, position, cache): the
    logits of the first token (B, V), the attention mask (B, S), the last position
    (B, 1), and the keys and values of B rows."""
    numbers = {}  # of each different prompt
    index = [numbers.setdefault(tuple(p), len(numbers)) for p in prompts]
    longest = max(map(len, numbers))
    # Padded on the left, so that every row continues at the last column; positions
    # count real tokens only.
    ids, real = [], []
    for p in numbers:
        pads = longest - len(p)
        ids.append([0] * pads + list(p))
        real.append([0] * pads + [1] * len(p))
    ids = torch.tensor(ids, device=model.device)  # (different prompts, S)
    attention = torch.tensor(real, device=model.device)
    position = (attention.cumsum(1) - 1).clamp(min=0)
    # transformers' DynamicCache, but in half of its memory under autocast.
    cache = models.Cache(config=model.config)
    logits = next_logits(model, ids, attention, position, cache)
    index = torch.tensor(index, device=model.device)  # (B,)
    cache.reorder_cache(index)  # a row for each of the B prompts
    return logits[index], attention[index], position[index, -1:], cache


def draw(logits, u, temperature):
    """A token (B, 1) for each row of logits (B, V), by a random number u (B, 1)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    # Invert the cumulative distribution; right=True, so that no token of probability 0
    # is ever drawn.
    cdf = torch.softmax(logits.float() / temperature, -1).cumsum(-1)  # (B, V)
    # The last sum is not quite 1, so that u is scaled to it.
    token = torch.searchsorted(cdf, u * cdf[:, -1:], right=True)
    # u times the last sum may be rounded up to it, or be nan, and the search then ends past
    # the last token.
    return token.clamp(max=cdf.shape[1] - 1)


@torch.no_grad()
def sample(model, prompts, *, n=1, max_new_tokens, stop_ids, temperature=1.0,
           generator=None, stopping_criteria=None):
    """n completions of each of P prompts: a list of P * n lists of ids, prompt-major.

    prompts: lists of ids; equal ones are read once. A completion ends with a stop token,
    at max_new_tokens, or when stopping_criteria says so: a StoppingCriteria of
    transformers, which is given the tokens drawn, without prompts or scores.
    Tokens are drawn from the whole of softmax(logits / temperature), which is what
    token_logps scores: with a top-k or top-p the gradient would be that of another
    distribution than the sampled one, and r would not show it. temperature=0 takes the
    likeliest token. AssertionError: a model in training mode, a temperature below 0,
    no prompts, or one that is no list of ids.
    """
    assert not model.training, "call model.eval() before sampling"
    assert temperature >= 0, f"the temperature must not be below 0: {temperature}"
    valid = len(prompts) > 0 and all(isinstance(p, list) and p for p in prompts)
    assert valid, "prompts must be lists of token ids, and each have one"
    prompts = [p for p in prompts for _ in range(n)]
    logits, attention, position, cache = prefill(model, prompts)
    stops = torch.tensor(list(stop_ids), device=model.device).long()
    # A row of uniform numbers for each completion: what one draws does not depend on
    # when the others end.
    device = getattr(generator, "device", model.device)
    u = torch.rand(len(prompts), max_new_tokens, generator=generator, device=device)
    u = u.to(model.device)
    alive = torch.arange(len(prompts), device=model.device)  # (B,): those not finished
    drawn = alive.new_zeros(len(alive), 0)  # (B, t): their tokens so far
    completions = [[] for _ in prompts]
    steps = tqdm(range(max_new_tokens), "sampling", leave=False, delay=2)
    for t in steps:
        token = draw(logits, u[alive, t].unsqueeze(1), temperature)  # (B, 1)
        drawn = torch.cat([drawn, token], 1)
        ends = torch.isin(token[:, 0], stops) | (t + 1 == max_new_tokens)
        if stopping_criteria:
            ends |= stopping_criteria(drawn, None)
        going = (~ends).nonzero()[:, 0]
        if len(going) < len(alive):
            # Finished rows leave the batch and the cache: no more work is done for them.
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
    """A causal language model of transformers with its tokenizer, and what goes with
    them. parameters are the model's; weights, in this file, are w alone."""
    model: torch.nn.Module
    tokenizer: object
    stop_ids: set[int]         # many models have several tokens that end a completion
    # On a GPU, the folder gpu/ may replace these: by a faster sampler, by an AdamW that
    # needs less memory.
    sampler: object = sample
    AdamW: type = torch.optim.AdamW


@dataclasses.dataclass
class Completion:
    """A problem's prompt, and what followed it. tokens are as they were sampled: never
    decoded and read again. mask says of each whether the policy wrote it: a tool's
    answer is not its own."""
    problem: tasks.Problem
    prompt: list[int]        # token ids
    tokens: list[int] = dataclasses.field(default_factory=list)
    mask: list[bool] = dataclasses.field(default_factory=list)
    tool_calls: int = 0
    transcript: str = ""     # the tokens as text, without the stop token
    # the tag that the prompt ends with, such as <think>, and what the policy wrote: all
    # that is verified
    response: str = ""
    # its last turn has no stop token; it is trained on like any other
    truncated: bool = False
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


def rollout(policy, task, problems, cfg, *, n, temperature, seed):
    """n verified completions of each problem, problem-major. The same parameters and
    seed give the same ones, for any cfg.sample_batch (but for rounding, which differs a
    little with the number of rows)."""
    policy.model.eval()
    # On the CPU, so that every device gets the same numbers.
    generator = torch.Generator().manual_seed(seed)
    completions = []
    for problem in problems:
        completions += [Completion(problem, problem.prompt) for _ in range(n)]
    # Without a tool there is one turn. With one (task.observe), a call ends each of the
    # first max_turns turns and is answered; in one last turn calls are not.
    tool_turns = task.max_turns if task.observe else 0
    call_end = models.StopText(policy.tokenizer, task.stop_text) if tool_turns else None
    unfinished = completions
    for turn in range(tool_turns + 1):
        contexts = [c.prompt + c.tokens for c in unfinished]
        last_turn = turn == tool_turns
        # By policy.sampler, which is `sample` above, cfg.sample_batch contexts at a time.
        drawn = models.sample_in_parts(
            policy, contexts, cfg.sample_batch, generator,
            max_new_tokens=cfg.max_new_tokens, stop_ids=policy.stop_ids,
            temperature=temperature, stopping_criteria=None if last_turn else call_end)
        for c, tokens in zip(unfinished, drawn):
            c.add(tokens, own=True)
        if last_turn:
            break
        unfinished = [c for c, tokens in zip(unfinished, drawn) if call_end.of(tokens)]
        # All that the policy has written: the tool looks for the call at its end.
        texts = [policy.tokenizer.decode(c.own_tokens()) for c in unfinished]
        for c, answer in zip(unfinished, models.call_tool(task, texts)):
            # The policy did not write the answer, and does not learn it.
            c.add(models.encode_tool_answer(policy.tokenizer, answer), own=False)
            c.tool_calls += 1
    for c in completions:
        grade(c, policy, task)
    return completions


def grade(c, policy, task):
    """Set the completion's texts, the verdict on what the policy wrote, the reward."""
    c.truncated = c.tokens[-1] not in policy.stop_ids
    end = None if c.truncated else -1
    c.response = c.problem.opening + policy.tokenizer.decode(c.own_tokens()[:end])
    c.transcript = c.problem.opening + policy.tokenizer.decode(c.tokens[:end])
    # By the task's verifier and reward: +3 right, -0.5 well formed but not right, -3 badly
    # formed. A completion that was cut off counts as badly formed.
    tasks.judge(task, c)


def set_advantages(completions, group_size):
    """Set c.advantage of each: how its reward compares with those of its group."""
    rewards = torch.tensor([c.reward for c in completions])
    advantages = group_advantages(rewards.view(-1, group_size))  # (P, G)
    for c, A in zip(completions, advantages.flatten().tolist()):
        c.advantage = A


# ---- 5. Training ----

def train(policy, task, cfg, run, reference=None):
    """Train by GRPO-SG for the steps that are left of cfg.steps. reference: the model of
    the KL, needed if cfg.beta is above 0.

    The run (support/run.py) does the rest. run.log_step writes the step's row. run.steps
    saves a checkpoint (model, tokenizer, optimizer, step) every ten minutes and after the
    last step. A signal, such as Ctrl-C, ends the run after the step, which is saved; a
    second one ends it at once. So do five steps in a row without a finite update. If
    something raises, what the steps before have learned is saved, unless it was between
    two updates of a step: then the last checkpoint stands.
    """
    optimizer = policy.AdamW(policy.model.parameters(), cfg.lr, betas=(0.9, 0.99),
                             weight_decay=0, fused=True)
    run.restore(optimizer)
    for step in run.steps(cfg.steps):
        # Validation of the steps before. It stands here, and not at a step's end, so that a
        # resumed run does it, too; after the last step comes the test.
        if step > 1 and (step - 1) % cfg.eval_every == 0:
            assess(policy, task, cfg, run, step - 1, "valid")
        # What is drawn is a function of this number alone, so there is no random state to
        # save. The factor keeps runs apart: no step of one seed is a step of another.
        seed = cfg.seed * 1_000_003 + step
        P = min(cfg.prompts, len(task.train))
        problems = random.Random(seed).sample(task.train, P)
        # Sample: G completions of each problem, and a verdict on each.
        completions = rollout(policy, task, problems, cfg, n=cfg.group_size,
                              temperature=cfg.temperature, seed=seed)
        # Compare: each completion with its group.
        set_advantages(completions, cfg.group_size)
        # Learn: more of the better ones, less of the others.
        started = time.time()
        updates = learn(policy, optimizer, completions, cfg, reference, seed)
        run.log_step(step, completions, updates, time.time() - started)


def learn(policy, optimizer, completions, cfg, reference=None, seed=0):
    """Learn from a rollout in cfg.updates updates, each on a minibatch of its own, drawn
    at random: every completion is in one minibatch. In the first update r = 1, as nothing
    has changed since the rollout; in the later ones the policy has moved. (With --updates
    1 r is always 1, and the clip never acts.) A group may be cut across minibatches: its
    advantages sum to 0 over all of them, not in each. Returns a list of what `update`
    returns."""
    model = policy.model
    # Gradient checkpointing works only in training mode. Dropout is 0 in either mode
    # (models.read_parameters).
    model.train(cfg.gradient_checkpointing)
    shuffled = random.Random(seed).sample(completions, len(completions))
    minibatches = [shuffled[i::cfg.updates] for i in range(cfg.updates)]
    # For each minibatch its micro-batches, which fit into memory: without the completions
    # of which nothing is learned (A = 0).
    parts = [micro_batches(minibatch, cfg, model.device) for minibatch in minibatches]
    with torch.no_grad():
        # old_logps come from token_logps, as logps do, for the sampler rounds differently.
        # Those of the later updates are needed now, before the first changes the policy.
        # The first takes its own logps for them.
        for batches in parts[1:]:
            for batch in batches:
                batch["old_logps"] = compute_logps(model, batch, cfg)
        for batches in parts if cfg.beta else []:
            for batch in batches:
                batch["ref_logps"] = compute_logps(reference, batch, cfg)
    updates = []
    for minibatch, batches in zip(minibatches, parts):
        if not batches:  # all of it has A = 0
            continue
        # The loss is divided by all tokens that the policy wrote, also those with A = 0.
        # If these were left out here, too, a minibatch with many equal groups would make
        # as large a step by the few others.
        if cfg.loss_agg_mode == "seq-mean-token-mean":
            denominator = len(minibatch)
        else:
            denominator = sum(sum(c.mask) for c in minibatch)
        updates.append(update(model, optimizer, batches, denominator, cfg))
    return updates


def update(model, optimizer, batches, denominator, cfg):
    """One optimizer step on a minibatch, given as micro-batches. denominator: what its
    loss is divided by. Returns a dict: loss; norm, the gradient's, before it is clipped
    to 1; the sums of grpo_sg_loss. If loss or norm is not finite, the parameters stay as
    they are, and the log counts the update as skipped."""
    totals = {}
    for batch in batches:
        logps = compute_logps(model, batch, cfg)  # (B, T)
        old_logps = batch.get("old_logps")
        if old_logps is None:  # the first update: nothing has changed since the rollout
            old_logps = logps.detach()
        loss, sums = grpo_sg_loss(
            logps, old_logps, batch["advantages"], batch["mask"],
            weights=weigh(logps, cfg), ref_logps=batch.get("ref_logps"),
            clip_low=cfg.clip_low, clip_high=cfg.clip_high, beta=cfg.beta,
            loss_agg_mode=cfg.loss_agg_mode, denominator=denominator)
        loss.backward()
        sums["loss"] = loss.detach()
        for key, value in sums.items():
            totals[key] = totals.get(key, 0.0) + float(value)
    totals["norm"] = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    if math.isfinite(totals["norm"]) and math.isfinite(totals["loss"]):
        optimizer.step()
    optimizer.zero_grad()
    return totals


def weigh(logps, cfg):
    """The weights of the method that --shaping names, shaped as logps; None (all 1) is
    GRPO."""
    if cfg.shaping == "none":
        return None
    if cfg.shaping == "ar":  # AR-Lopti's reweighting of advantages (arXiv 2505.12929)
        return 0.2 * logps.detach().float().exp() + 0.8
    return token_weights(logps, alpha=cfg.alpha, tau=cfg.tau, mu=cfg.mu, low=cfg.low,
                         high=cfg.high)


def micro_batches(completions, cfg, device):
    """The completions in batches of at most cfg.tokens_per_micro_batch tokens, pads
    included (a longer one gets its own), sorted by length, so that few are pads.

    A completion with A = 0, such as all of a group with equal rewards, has no gradient:
    if beta is 0 it is left out. The update is the same, as its tokens are counted in the
    denominator; the logged statistics are means over the others."""
    used = [c for c in completions if cfg.beta or c.advantage != 0]
    waiting = sorted(used, key=Completion.length, reverse=True)
    batches = []
    while waiting:
        count = max(1, cfg.tokens_per_micro_batch // waiting[0].length())
        batches.append(make_batch(waiting[:count], device))
        waiting = waiting[count:]
    return batches


def make_batch(completions, device):
    """ids (B, T) and mask (B, T), right-padded, and advantages (B,), of completions
    with their prompts."""
    longest = max(c.length() for c in completions)
    ids, mask = [], []
    for c in completions:
        pads = longest - c.length()
        ids.append(c.prompt + c.tokens + [0] * pads)
        # By position, never by `ids != pad`: many models pad with their stop token,
        # which must be learned.
        mask.append([False] * len(c.prompt) + c.mask + [False] * pads)
    columns = {"ids": ids, "mask": mask, "advantages": [c.advantage for c in completions]}
    return {key: torch.tensor(x, device=device) for key, x in columns.items()}


def compute_logps(model, batch, cfg):
    """token_logps; on a GPU the products in it are in bfloat16, the parameters in
    float32."""
    with models.in_bfloat16(batch["ids"].device):
        return token_logps(model, batch["ids"], batch["mask"], temperature=cfg.temperature)


# ---- 6. Evaluation ----

def evaluate(policy, task, problems, cfg, *, samples=0):
    """(row, greedy completions). The row has what greedy decoding gives, such as
    "eval/accuracy" and "eval/reward", and, if samples is above 0, what add_samples says
    of so many samples of each problem. Each "_se" is the standard error of a mean over
    the problems: how far it would vary with others."""
    greedy = rollout(policy, task, problems, cfg, n=1, temperature=0, seed=cfg.seed)
    row = {f"eval/{key}": value for key, value in logs.describe(greedy).items()}
    add_mean(row, "eval/accuracy", [float(c.solved) for c in greedy])
    add_mean(row, "eval/reward", [c.reward for c in greedy])
    if samples:
        drawn = rollout(policy, task, problems, cfg, n=samples,
                        temperature=cfg.temperature, seed=cfg.seed)
        add_samples(row, drawn, samples)
    return row, greedy


def add_samples(row, drawn, n):
    """Add means over problems of n samples each to the row: eval/avg@n is their accuracy,
    eval/reward@n their reward; beside them eval/format_rate@n, eval/truncated@n,
    eval/equal_groups@n, and eval/pass@2, 4.. up to n. drawn: problem-major."""
    groups = [drawn[i:i + n] for i in range(0, len(drawn), n)]
    rewards = [[c.reward for c in group] for group in groups]
    solved = [sum(c.solved for c in group) for group in groups]
    means = logs.describe(drawn)
    row[f"eval/format_rate@{n}"] = means["format_rate"]
    row[f"eval/truncated@{n}"] = means["truncated"]
    equal = [len(set(each)) == 1 for each in rewards]
    row[f"eval/equal_groups@{n}"] = sum(equal) / len(groups)
    add_mean(row, f"eval/avg@{n}", [c / n for c in solved])
    add_mean(row, f"eval/reward@{n}", [sum(each) / n for each in rewards])
    k = 2
    while k <= n:
        add_mean(row, f"eval/pass@{k}", [pass_at_k(n, c, k) for c in solved])
        k *= 2


def add_mean(row, key, values):
    """Add the mean of the values and its standard error to the row."""
    values = torch.tensor(values, dtype=torch.float64)
    row[key] = values.mean().item()
    row[f"{key}_se"] = None
    if len(values) > 1:
        row[f"{key}_se"] = values.std().item() / math.sqrt(len(values))


def assess(policy, task, cfg, run, step, split):
    """Evaluate on the problems of "valid" or "test", and log the results, the greedy
    completions, and the watched tokens. Returns the row."""
    samples = cfg.eval_samples if split == "test" else 0
    row, greedy = evaluate(policy, task, getattr(task, split), cfg, samples=samples)
    row = {"step": step, "split": split, **row}
    run.log_evaluation(row, greedy, watch_tokens(policy, task, cfg))
    return row


@torch.no_grad()
def watch_tokens(policy, task, cfg):
    """For the run's page a group of completions of each of three fixed validation
    problems, with advantages: lists of (completion, logps, weights), of which the last
    two have a number for each of its tokens (logps: 0 for a tool's)."""
    completions = rollout(policy, task, task.valid[:3], cfg, n=cfg.group_size,
                          temperature=cfg.temperature, seed=cfg.seed)
    set_advantages(completions, cfg.group_size)
    watched = []
    for c in completions:
        batch = make_batch([c], policy.model.device)
        logps = compute_logps(policy.model, batch, cfg)[0, len(c.prompt):]
        w = weigh(logps, cfg)
        watched.append((c, logps, torch.ones_like(logps) if w is None else w))
    return [watched[i:i + cfg.group_size] for i in range(0, len(watched), cfg.group_size)]


# ---- Plumbing below: settings and their defaults, a run ----

setting = program.setting
DATA, METHOD, SIZES, MEMORY, RUN = (
    "model and data", "method", "sizes", "memory", "run")


@dataclasses.dataclass
class Config(*program.settings_of("search", "gpu")):
    """The settings, each a flag of the same name; TINY has the tiny model's own. Those
    of search/ and gpu/ stand there."""
    model: str = setting(
        DATA, "", "hub name or folder of a causal language model; without it a tiny one")
    task: str = setting(DATA, "kk", "what to learn: kk, math or qa")
    data: str = setting(
        DATA, "synthetic",
        "synthetic: generated; kk: published; math: gsm8k, math, deepscaler; qa: hotpotqa; "
        "or a .jsonl")
    eval_data: str = setting(
        DATA, "", "math: gsm8k, math500, aime24; qa: hotpotqa; or a .jsonl; else by --data")
    people: list[int] = setting(
        DATA, [3, 4, 5, 6, 7], "sizes of kk's puzzles, 2 to 8: more people are harder")
    train_problems: int = setting(
        DATA, 4500, "of a generated training set, or most of hotpotqa: more are seen less "
        "often each")
    eval_problems: int = setting(
        DATA, 200, "of a generated test set, or most of hotpotqa, or of any validation set: "
        "more is slower, with smaller standard errors")
    chat_template_kwargs: str = setting(
        DATA, "{}",
        "JSON for the chat template, such as '{\"enable_thinking\": false}'")
    warm_up: bool = setting(
        DATA, False, "make the tiny model anew, in place of the one that lies ready")
    shaping: Literal["sg", "none", "ar"] = setting(
        METHOD, "sg", "token weights; none: plain GRPO; ar: AR-Lopti")
    alpha: float = setting(
        METHOD, 2.0, "scale of the weight: higher makes weights larger, up to U", least=0)
    tau: float = setting(
        METHOD, 1/9, "what pi is divided by in the weight's sigmoid: higher is flatter")
    mu: float = setting(
        METHOD, 0.25, "offset of the weight: higher makes weights smaller, down to L",
        least=0)
    low: float = setting(
        METHOD, 1.0, "L, the least weight: higher lets unlikely tokens count for more",
        least=0)
    high: float = setting(
        METHOD, 1.4, "U, the greatest weight: higher lets likely tokens count for more")
    clip_low: float = setting(
        METHOD, 0.2, "the ratio of new to old probability is clipped at 1 - clip_low: "
        "higher is freer", least=0)
    clip_high: float = setting(
        METHOD, 0.24, "and at 1 + clip_high: higher is freer", least=0)
    beta: float = setting(
        METHOD, 0.0, "weight of the KL to the first policy, of which a copy is then held: "
        "higher stays closer to it", least=0)
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean"] = setting(
        METHOD, "token-mean", "over all tokens, or over completions of their token means")
    lr: float = setting(
        METHOD, 1e-6, "learning rate of AdamW: higher is faster, too high breaks the policy")
    temperature: float = setting(
        METHOD, 0.7, "of sampling and of all log-probabilities: higher is more varied")
    steps: int = setting(
        SIZES, 350, "training steps, each a rollout and its updates: more is longer",
        resumable=True)
    prompts: int = setting(
        SIZES, 64, "P, prompts in a rollout: more is slower and steadier")
    group_size: int = setting(
        SIZES, 8, "G, completions of each prompt: more make equal groups rarer", least=2)
    updates: int = setting(
        SIZES, 2, "optimizer updates per rollout, each on its own minibatch of completions: "
        "more is faster learning from noisier gradients")
    max_new_tokens: int = setting(
        SIZES, 2048, "a turn is cut off here, and then counts as badly formed: more is "
        "slower, and takes more memory")
    tokens_per_micro_batch: int = setting(
        MEMORY, 3072, "most tokens in a backward pass: more takes more memory, and less "
        "time on a GPU", resumable=True)
    sample_batch: int = setting(
        MEMORY, 256, "most completions sampled at once: more takes more memory, and less "
        "time", resumable=True)
    gradient_checkpointing: bool = setting(
        MEMORY, False, "less memory in the backward pass, for a third more time",
        resumable=True)
    device: Literal["auto", "cpu", "cuda", "mps"] = setting(
        MEMORY, "auto", "auto: cuda if PyTorch can use it, else cpu; mps: a Mac's, untried",
        resumable=True)
    eval_every: int = setting(
        RUN, 10, "steps between evaluations on the validation set: more takes less time",
        resumable=True)
    eval_samples: int = setting(
        RUN, 4, "k of avg@k and pass@k on the test set: more is slower and steadier; 0: "
        "greedy accuracy alone", least=0)
    eval_only: bool = setting(RUN, False, "no training, only the test")
    resume: bool = setting(
        RUN, False, "go on with the run in --out, from its newest checkpoint",
        resumable=True)
    seed: int = setting(RUN, 0, "of everything that is random", least=0)
    out: str = setting(
        RUN, "", "a folder for the run's files, new or empty; else one under runs/",
        resumable=True)


TINY = dict(
    people=[3], train_problems=20000, steps=60, eval_every=20, prompts=32, updates=4,
    lr=2e-4, temperature=1.0, max_new_tokens=48, tokens_per_micro_batch=32768,
    sample_batch=1024, device="cpu")  # a GPU would wait for the CPU
FULL_MEMORY = (
    "lower --tokens_per_micro_batch or --sample_batch, or add --gradient_checkpointing "
    "or --offload; --resume takes all of these. A smaller --model and --beta 0 need less")


def parse(argv=None, **defaults):
    """The command line as a checked Config. Of these the first that has a setting counts:
    the flags that were typed; the run that --resume or --model RUN/checkpoint names;
    `defaults`, of a script that calls main; TINY, if the model is the tiny one; Config's
    own."""
    tiny_flags = [f"{name} {program.shown(value)}" for name, value in TINY.items()]
    title = __doc__.replace("\n", " ").split(".")[0]
    about = f"{title}. Defaults of the tiny model, without --model: {', '.join(tiny_flags)}."
    script = program.read_flags(Config, program.as_flags(defaults), about)
    given = data.find_files(program.read_flags(Config, argv, about))
    own_task = {"task": script["task"]} if "task" in script else {}
    saved = find_saved(Config, {**own_task, **given})
    base = TINY if tiny.is_tiny({**script, **given}.get("model", "")) else {}
    cfg = Config(**{**base, **script, **saved, **given})
    check(cfg)
    return cfg


def check(cfg):
    """Raise UserError if settings do not fit together."""
    if cfg.task not in tasks.TASKS:
        hint = program.suggest(cfg.task, tasks.TASKS)
        raise program.UserError(
            f"there is no --task {cfg.task}{hint}: give one of {', '.join(tasks.TASKS)}, "
            "or start the script that defines it")
    if cfg.eval_only and not (cfg.model or tiny.find_ready(cfg)):
        raise program.UserError(
            "--eval_only needs --model, for example runs/NAME/checkpoint")
    models.find_device(cfg.device)
    if cfg.updates > cfg.prompts * cfg.group_size:
        raise program.UserError(
            f"--updates {cfg.updates}, but a step has --prompts {cfg.prompts} times "
            f"--group_size {cfg.group_size} completions, each for one update: give fewer")
    if cfg.low > cfg.high:
        raise program.UserError(
            f"--low {cfg.low} is above --high {cfg.high}: weights need a range")
    empty = os.path.isdir(cfg.out) and not os.listdir(cfg.out)
    if os.path.lexists(cfg.out) and not cfg.resume and not empty:
        raise program.UserError(
            f"--out {cfg.out} exists: name another folder, or add --resume to go on with "
            "the run in it")
    if cfg.shaping == "sg":
        ends = torch.tensor([0.0, 1.0]).log()  # w is monotone between them
        least, greatest = weigh(ends, cfg)
        if greatest == 0:
            raise program.UserError("these settings give every token the weight 0, with "
                                    "which nothing is learned: raise --alpha or --low")
        if least == greatest:
            program.say("warning: these settings give every token the weight "
                        f"{least:.4g}, which is plain GRPO, scaled by it")


def load(cfg):
    """(policy, task, state): all that a run needs, tried once. state: of the checkpoint
    to resume, None without one."""
    torch.manual_seed(cfg.seed)
    print(f"making the problems of --task {cfg.task}")
    task = tasks.make_task(cfg)
    state = None
    ready = tiny.find_ready(cfg)
    if cfg.resume:
        model, tokenizer, state = read_checkpoint(cfg.out)
    elif cfg.model or ready:
        model, tokenizer = models.load_model(cfg.model or ready)
    else:
        model, tokenizer = tiny.tiny_model(task)
    model = models.prepare(model, cfg.gradient_checkpointing, cfg.device)
    policy = Policy(model, tokenizer, models.find_stop_ids(model, tokenizer))
    task = models.encode_problems(task, policy, cfg)
    check_start(policy, task, cfg)
    if program.has_room("gpu"):  # a folder that may be deleted
        from gpu import equip
        equip(policy, cfg, task.test[0].prompt)
    return policy, task, state


@torch.no_grad()
def check_start(policy, task, cfg):
    """Try the prompts, the verifier, the tool, the sampler and the log-probabilities
    once, before anything long. Raises UserError if one does not work."""
    vocabulary = policy.model.config.get_text_config().vocab_size
    if not policy.stop_ids or max(policy.stop_ids) >= vocabulary:
        raise program.UserError("the tokenizer saved with the model is not usable: it "
                                "has no stop token, or one that the model does not know")
    unknown, words, last_word = 0, 0, 0
    for problem in [*task.train[:20], *task.valid[:20], *task.test[:20]]:
        c = Completion(problem, problem.prompt)
        unknown += c.prompt.count(policy.tokenizer.unk_token_id)
        words += len(c.prompt)
        last_word = max(last_word, *c.prompt)
        c.add(policy.tokenizer(problem.solution or problem.question)["input_ids"], own=True)
        if task.observe:
            models.call_tool(task, [policy.tokenizer.decode(c.tokens)])
        grade(c, policy, task)
    if unknown > words / 20:
        raise program.UserError(
            f"the tokenizer of --model {cfg.model} does not know {unknown} of {words} "
            f"words of --task {cfg.task}: it was made for another task or other settings")
    if last_word >= vocabulary:
        raise program.UserError(
            f"the tokenizer of --model {cfg.model} has more words than the {vocabulary} "
            "of its model: it belongs to another one")
    prompts = [c.prompt, c.prompt[len(c.prompt) // 2:]]  # of unequal lengths
    try:
        drawn = sample(policy.model, prompts, max_new_tokens=4, stop_ids=[], temperature=0)
        for prompt, tokens in zip(prompts, drawn):
            compare_passes(policy.model, prompt, tokens)
    except Exception as error:
        reason = program.first_line(error)
        raise program.UserError(
            f"--model {cfg.model} cannot be sampled or trained here: {reason}")


def compare_passes(model, prompt, tokens):
    """Raise ValueError unless each of the greedy tokens is the likeliest one by a plain
    forward pass, and token_logps is what that says, both within a hundredth of the
    largest logit: else the cache, padding or positions of the model do not work as they
    do for most. And unless what it says after the first token is the same without the
    others."""
    ids = torch.tensor([prompt + tokens], device=model.device)
    mask = torch.arange(ids.shape[1], device=model.device)[None] >= len(prompt)
    logits = model(input_ids=ids).logits[0].float()
    most = logits.abs().max()
    if not most.isfinite():
        raise ValueError("its logits are not finite: are its parameters?")
    alone = model(input_ids=ids[:, :1]).logits[0, 0].float()
    if (alone - logits[0]).abs().max() > 0.01 * most:
        raise ValueError("it is no causal model: it reads what follows a token")
    logits = logits[len(prompt) - 1:-1]
    chosen = ids[0, len(prompt):, None]
    behind = logits.amax(-1) - logits.gather(1, chosen)[:, 0]
    logps = logits.log_softmax(-1).gather(1, chosen)[:, 0]
    off = (token_logps(model, ids, mask)[0, len(prompt):] - logps).abs()
    if not (torch.cat([behind, off]) <= 0.01 * most).all():
        raise ValueError("it gives other tokens than a plain forward pass")


def describe_run(policy, task, cfg, run):
    """Print what the run is made of, with one problem as the model reads it."""
    usual = Config(**TINY) if tiny.is_tiny(cfg.model) else Config()
    print(f"files of this run: {run.out}/")
    print("settings that differ from the defaults: "
          f"{program.tell_changes(vars(usual), vars(cfg))}")
    print(f"{policy.model.num_parameters():,} parameters on {policy.model.device}; "
          f"{len(task.train):,} problems to train on, {len(task.test)} to test on (best "
          f"constant answer: {task.floor:.2f} right)")
    problem = task.train[0]
    read = policy.tokenizer.decode(problem.prompt)
    print(f"the first of them, as the model reads it:\n{read}\nits answer: {problem.answer}")
    if len(task.train) < cfg.prompts:
        print(f"--prompts {cfg.prompts}, but there are {len(task.train)} problems: a step "
              "has all of them")


def carry_out(policy, task, cfg, run):
    """A whole run: warm-up, test, training, test; of one that is resumed, what is left."""
    describe_run(policy, task, cfg, run)
    start = os.path.join(run.out, "warm_start")  # a reference, or another run's start
    if not cfg.resume:
        ready = tiny.find_ready(cfg)
        if ready:
            print(f"beginning with the ready tiny model, {os.path.relpath(ready)}; "
                  "--warm_up makes one anew")
        elif not cfg.model:
            tiny.warm_up(policy, task, cfg)
        warmed_up = not (cfg.model or ready)
        if (cfg.beta or warmed_up) and not cfg.eval_only:
            models.save_model(start, policy.model, policy.tokenizer)
        test(policy, task, cfg, run, 0)
    if cfg.eval_only:
        return
    reference = None
    if cfg.beta:
        parameters = models.read_parameters(start, local=True)
        reference = models.prepare(parameters, False, policy.model.device.type)
    train(policy, task, cfg, run, reference)
    run.check_ending()  # raises UserError if the run was stopped early: then no test
    test(policy, task, cfg, run, cfg.steps)
    print(f"curves, tokens and transcripts, to open in a browser: {run.out}/report.html")


def test(policy, task, cfg, run, step):
    """Evaluate on the test set, and print the result."""
    row = assess(policy, task, cfg, run, step, "test")
    if cfg.eval_only:
        print(f"test: {logs.in_words(row)}")
    elif step == 0:
        print(f"test before training: {logs.in_words(row)}")
        print("\n".join(logs.foresee(row, cfg.eval_samples)))
    else:
        print(f"test after training: {logs.in_words(row)}")
        print("\n".join(run.compare_tests(row)))


def main(argv=None, **defaults):
    models.hide_bars()
    with program.one_line_errors(out_of_memory=FULL_MEMORY):
        cfg = parse(argv, **defaults)
        policy, task, state = load(cfg)
        with Run(cfg, policy, state) as run:
            carry_out(policy, task, cfg, run)


if __name__ == "__main__":
    main()
