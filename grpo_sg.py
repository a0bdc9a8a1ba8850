"""GRPO-SG: reinforcement learning with verifiable rewards, in one file that is read from top to bottom.

For each prompt, sample a group of completions from the policy and let a verifier give each a reward R. GRPO
makes the completions that beat the mean of their group more likely, token by token, and the others less:

    maximise the mean over tokens of w * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - beta KL

    r = pi_theta(token) / pi_old(token)    A = (R - mean R) / std R in the group    KL: to a reference policy
    w = clip(alpha * (sigmoid(pi_theta(token) / tau) - mu), L, U)

The weight w is all that GRPO-SG adds (arXiv 2511.00066). It is treated as a constant, without a gradient, as
it is to scale the advantage and not to be maximised; and as it is never negative, w * min(r A, clip(r) A) =
min(r (wA), clip(r) (wA)). So GRPO-SG is GRPO in which every token has its own advantage wA. By default w is
1 up to pi = 0.12 and rises to 1.4 at pi = 0.33: unlikely tokens, whose gradients are the largest (they grow
with 1 - pi), count for less in comparison. The loop is `train`, in section 6.

This file leaves out, on purpose, value networks, reward models, LoRA, several GPUs, and inference engines.

    python grpo_sg.py                                       a tiny model on a CPU, offline: 1 to 2 minutes
    python grpo_sg.py --model Qwen/Qwen2.5-0.5B --task kk   the same loop on a real model and a GPU
    python grpo_sg.py --eval_only --model runs/NAME/checkpoint      repeat a run's test: half a minute
"""
import dataclasses
import math
import os
import random
import sys
import time
import warnings
from statistics import fmean as mean, pstdev
from typing import Literal

import support.before_torch  # noqa: F401, sets variables that PyTorch reads when it is imported
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import DynamicCache

import tasks
from support import fit, page, threads, tool
from support.logs import describe, log, log_step, log_tokens
from support.models import eval_mode, in_bfloat16, load_model, prepare, read_model, save_model, stop_tokens
from support.offload import HostAdamW
from support.program import (check_numbers, check_useful, closest, cut_files, fail, file_sizes, first_line,
                             given_and_saved, in_words, newest_readable, one_line_errors, open_run,
                             read_json, token_bar, waiting_signals, whole_folder, write_json)

# ---- 1. The algorithm: pure functions of tensors, for B = P x G completions in rows of T tokens ----

def token_weights(logps, *, alpha=2.0, tau=1/9, mu=0.25, low=1.0, high=1.4):
    """GRPO-SG's weights w = clip(alpha * (sigmoid(pi / tau) - mu), L, U), with pi = exp(logps).

    logps: log-probabilities, in nats, of the sampled tokens under the current policy, at the sampling
    temperature; any shape. low, high: L, U. Returns float32 of that shape, detached: w says how much a
    token's advantage counts, and is not itself something to maximise.
    """
    pi = logps.detach().float().exp()
    return (alpha * (torch.sigmoid(pi / tau) - mu)).clamp(low, high)


def group_advantages(rewards, *, eps=1e-6):
    """A = (R - mean R) / (std R + eps) in each group. rewards: (P, G), G >= 2. Returns (P, G), float32.

    This is GRPO's (arXiv 2402.03300). std is the sample standard deviation (over G - 1), as in TRL and verl.
    """
    assert rewards.dim() == 2 and rewards.shape[1] >= 2, f"(P, G) with G >= 2, not {tuple(rewards.shape)}"
    R = rewards.float()
    A = (R - R.mean(1, keepdim=True)) / (R.std(1, keepdim=True) + eps)
    # Exactly 0 for equal rewards, of which a rounding error, divided by eps, would make a signal.
    return A.masked_fill(R.amax(1, keepdim=True) == R.amin(1, keepdim=True), 0.0)


def grpo_sg_loss(logps, old_logps, advantages, mask, *, weights=None, ref_logps=None, clip_low=0.2,
                 clip_high=0.2, beta=0.0, loss_agg_mode="token-mean", denominator=None):
    """(loss to minimise, dict of statistics). weights=token_weights(logps) is GRPO-SG, weights=None is GRPO.

    logps, old_logps, ref_logps: (B, T) log-probabilities, in nats, under pi_theta (with gradient), the
    policy that sampled, the reference. advantages: (B,) or (B, T). mask: (B, T), true on completion tokens;
    other positions are ignored. weights: (B, T). loss_agg_mode: "token-mean", or
    "seq-mean-token-mean", the mean over completions of their token means (GRPO's first form: a token of a
    long completion counts less). denominator: the number of tokens (in the second mode, of completions) of
    the whole batch, where this is a part of one; losses and statistics of the parts then add up to the
    whole's. In the first update r = 1, and the loss is only a mean of -wA, near 0: its gradient is not.
    """
    same = [x for x in (old_logps, mask, weights, ref_logps) if x is not None]
    assert {x.shape for x in same} == {logps.shape} and advantages.shape in (logps.shape, logps.shape[:1])
    assert not beta or ref_logps is not None, "beta > 0 needs ref_logps"
    logps = logps.to(torch.promote_types(logps.dtype, torch.float32))
    mask = mask.bool()
    A = advantages.reshape(len(logps), -1)  # (B, 1) or (B, T)
    w = torch.ones_like(logps) if weights is None else weights.detach()  # (B, T)
    r = (logps - old_logps.detach()).masked_fill(~mask, 0.0).exp()  # masked first: no nan at a pad spreads
    clipped = r.clamp(1 - clip_low, 1 + clip_high)
    # w is outside the clip. If it were inside, as clip(w r), a likely token (w = 1.4) with A > 0 would be
    # above 1 + clip_high from the start, have no gradient, and never learn.
    objective = w * torch.minimum(r * A, clipped * A)
    log_ratio = ((old_logps if ref_logps is None else ref_logps).detach() - logps).masked_fill(~mask, 0.0)
    kl = log_ratio.exp() - 1 - log_ratio  # the k3 estimator: >= 0, and 0 where both agree; unbiased if r = 1
    if beta:
        objective = objective - beta * kl  # not times w, which scales only the advantage

    def aggregate(x):
        x = x.masked_fill(~mask, 0.0)
        tokens = mask.sum(1)  # (B,)
        if loss_agg_mode == "token-mean":
            return x.sum() / (denominator or tokens.sum().clamp(min=1))
        assert loss_agg_mode == "seq-mean-token-mean", f"no loss_agg_mode {loss_agg_mode!r}"
        return (x.sum(1) / tokens.clamp(min=1)).sum() / (denominator or (tokens > 0).sum().clamp(min=1))
    with torch.no_grad():
        stats = {"clip_frac": aggregate((clipped * A < r * A).float()),  # where the clip holds a token back
                 "kl": aggregate(kl),  # to the reference policy; without one, to the policy that sampled
                 "entropy": aggregate(-old_logps),  # of the policy that sampled, in nats, estimated
                 "weight_mean": aggregate(w),
                 "low_prob_frac": aggregate((logps < math.log(1/3)).float())}  # pi < 1/3, where w is below U
    return -aggregate(objective), stats


def shaping_weights(logps, cfg):
    """(B, T), the weights of the method that --shaping names; None (all 1) is GRPO."""
    if cfg.shaping == "none":
        return None
    if cfg.shaping == "ar":  # AR-Lopti's advantage reweighting, the closest relative (arXiv 2505.12929)
        return 0.2 * logps.detach().float().exp() + 0.8
    if cfg.shaping == "reverse":  # the same curve over 1 - pi: an ablation
        logps = torch.log1p(-logps.detach().float().exp())
    return token_weights(logps, alpha=cfg.alpha, tau=cfg.tau, mu=cfg.mu, low=cfg.low, high=cfg.high)


def pass_at_k(n, c, k):
    """Unbiased estimate, from n samples of which c are right, of the chance that at least one of k is:
    1 - C(n - c, k) / C(n, k) (arXiv 2107.03374)."""
    assert 0 <= c <= n and 1 <= k <= n, f"0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}"
    return 1 - math.comb(n - c, k) / math.comb(n, k)


# ---- 2. Log-probabilities of the policy ----

def logits_of(model, h):
    """(N, V) float32: the logits of hidden states (N, H). On a GPU too: from logits in bfloat16, the ratio r
    is off by more than the clip allows. `prepare` refuses models that change their logits after this."""
    head = model.get_output_embeddings()
    with torch.autocast(h.device.type, enabled=False):
        return head(h.to(head.weight.dtype)).float()


def token_logps(model, ids, mask, *, temperature=1.0):
    """(B, T) float32: entry [b, t] is log pi(ids[b, t] | ids[b, :t]) at the temperature, 0 outside of mask.

    ids: (B, T), prompt and completion, right-padded with any token. mask: (B, T), True exactly on sampled
    tokens, and never on a row's first token, which is predicted from nothing. No attention mask is needed:
    pads come last, and nothing attends to what follows it.
    """
    mask = mask.bool()
    assert not mask[:, 0].any(), "mask[:, 0] must be False: the first token of a row has no context"
    if any(type(layer) is torch.nn.Dropout and layer.p and layer.training for layer in model.modules()):
        warnings.warn("dropout is on, so that r is not 1 where nothing has changed: call model.eval()")
    h = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state  # (B, T-1, H)
    # Position t predicts token t + 1. Only the N positions before completion tokens go through the matrix of
    # the vocabulary: with Qwen's 151,936 words the other logits would take most of an update's memory.
    logits = logits_of(model, h[mask[:, 1:]]).div_(temperature)  # (N, V)
    logps = -F.cross_entropy(logits, ids[mask], reduction="none")  # (N,)
    return torch.zeros(ids.shape, device=ids.device).masked_scatter(mask, logps)


# ---- 3. Sampling ----

class Cache(DynamicCache):
    def update(self, keys, values, *more, **named):  # rotary embedding makes keys float32: twice the memory
        return super().update(keys.to(values.dtype), values, *more, **named)


def prefill(model, prompts, n):
    """Read each of P prompts once, for n completions. Returns (h, mask, position, cache): the last hidden
    state (P * n, H), the attention mask (P * n, S), the last position (P * n, 1), the keys and values."""
    assert prompts and all(prompts) and not model.training, "prompts with tokens, and a model in eval mode"
    longest = max(map(len, prompts))
    # Padded on the left, so that every row continues at the last column; positions count real tokens only.
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=model.device)  # (P, S)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    position = (mask.cumsum(1) - 1).clamp(min=0)  # (P, S)
    cache = Cache(config=model.config)
    h = model.base_model(input_ids=ids, attention_mask=mask, position_ids=position, past_key_values=cache,
                         use_cache=True).last_hidden_state[:, -1]  # (P, H)
    cache.batch_repeat_interleave(n)
    return *(x.repeat_interleave(n, 0) for x in (h, mask, position[:, -1:])), cache


def draw(logits, u, temperature):
    """One token (B, 1) for each row of logits (B, V), by a uniform random number u (B, 1)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    # Invert the cumulative distribution; right=True, so that no token of probability 0 is ever drawn.
    cdf = torch.softmax(logits / temperature, -1).cumsum(-1)  # (B, V)
    return torch.searchsorted(cdf, u * cdf[:, -1:], right=True).clamp(max=cdf.shape[1] - 1)


@torch.no_grad()
def sample(model, prompts, *, n, max_new_tokens, stop_ids, temperature=1.0, generator=None, pauses=None,
           progress=None):
    """n completions of each of P prompts, lists of token ids: a list of P * n lists of ids, prompt-major.

    A completion ends with a stop token; or it is cut off, at max_new_tokens or where pauses(drawn) is True:
    drawn (B, t) holds the ids so far of the B unfinished ones, and the result is (B,). Tokens are drawn from
    the whole of softmax(logits / temperature): with a top-k or top-p that token_logps does not know of, r
    would compare two different distributions. temperature=0 takes the likeliest token. The model must be in
    eval mode, and each prompt have a token. progress(B, ended), if given, is called after each token.
    """
    h, mask, position, cache = prefill(model, prompts, n)
    stops = torch.tensor(list(stop_ids), device=h.device).long()
    # A row of uniform numbers for each completion: what one draws does not depend on when the others end.
    where = getattr(generator, "device", h.device)
    u = torch.rand(len(h), max_new_tokens, generator=generator, device=where).to(h.device)  # (P * n, T)
    row = torch.arange(len(h), device=h.device)  # (B,): numbers of the unfinished completions, at first all
    drawn = row.new_zeros(len(h), 0)
    completions = [[] for _ in row]
    for t in range(max_new_tokens):
        token = draw(logits_of(model, h), u[row, t, None], temperature)  # (B, 1)
        drawn = torch.cat([drawn, token], 1)  # (B, t + 1)
        ends = torch.isin(token[:, 0], stops) | (t + 1 == max_new_tokens)
        if pauses:
            ends |= pauses(drawn)
        going = (~ends).nonzero()[:, 0]
        if progress:
            progress(len(row), len(row) - len(going))
        if len(going) < len(row):  # finished rows leave the batch and the cache: no more work
            for i, tokens in zip(row[ends].tolist(), drawn[ends].tolist()):
                completions[i] = tokens
            row, drawn, token, mask, position = (x[going] for x in (row, drawn, token, mask, position))
            cache.batch_select_indices(going)
        if len(going) == 0:
            break
        mask = F.pad(mask, (0, 1), value=1)
        position = position + 1
        h = model.base_model(input_ids=token, attention_mask=mask, position_ids=position,
                             past_key_values=cache, use_cache=True).last_hidden_state[:, -1]  # (B, H)
    return completions


# ---- 4. Rollouts and rewards ----

# An example, of the tiny model before training: a question, three completions of its group of 8, 7 of which
# are right, and four tokens as an update sees them. K is a knight, N a knave; after each speaker stand the
# possibilities that are left. The answer is KNN. In 2 the slip is unlikely, so that its weight is small; the
# sound step to Amir before it pays for the wrong end with the full weight.
#
# Ada: if Alice knight then Amir knight. Alice: Alice knight and Ada knave. Amir: Ada knave and Alice knight.
# 1 <think> Ada: KKK KNK NKN KNN. Alice: KNK NKN KNN. </think> ... KNN, by luck        right  R  3.0  A  0.35
# 2 <think> Ada: KKK KNK NKN KNN. Alice: KNK NKN KNN. Amir: KNK. </think> ... KNK      wrong  R -0.5  A -2.47
# 3 <think> Ada: KKK KNK NKN KNN. Alice: KNK NKN KNN. Amir: KNN. </think> ... KNN      right  R  3.0  A  0.35
# In 2, Amir: pi .39, w 1.4, wA -3.46; KNK: pi .08, w 1.0, wA -2.47. In 3, Amir: pi .39, w 1.4, wA .49; KNN:
# pi .78, w 1.4, wA .49.

@dataclasses.dataclass
class Completion:
    problem: tasks.Problem
    prompt: list[int]        # token ids
    tokens: list[int]        # as they were sampled, stop token included: never decoded and tokenised again
    mask: list[bool]         # for each token, whether the policy wrote it; False in a tool's answer
    tool_calls: int = 0
    transcript: str = ""     # the tokens as text, without the stop token
    response: str = ""       # the part of it that the policy wrote, which is all that the verifier reads
    truncated: bool = False  # no stop token within max_new_tokens
    correct: bool = False
    formatted: bool = False  # False where truncated
    reward: float = 0.0
    advantage: float | None = None

    @property
    def solved(self):  # what accuracy counts
        return self.correct and self.formatted

    def own_tokens(self):
        return [token for token, own in zip(self.tokens, self.mask) if own]


def reward(completion):
    """AR-Lopti's: +3 right, -0.5 well formed but not right, -3 badly formed. Task.reward can replace it."""
    if not completion.formatted:
        return -3.0
    return 3.0 if completion.correct else -0.5


def rollout(model, tokenizer, task, problems, cfg, *, n, temperature, seed, phase="sampling"):
    """n verified completions of each problem, problem-major. The same weights and seed give the same ones,
    for any cfg.sample_batch (but for rounding, which differs a little with the number of rows)."""
    stops = stop_tokens(model, tokenizer)
    prompts = [tasks.encode_prompt(tokenizer, task.system, p.question, task.opening) for p in problems]
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same numbers for every device

    sampler = getattr(model, "sampler", sample)  # on a GPU perhaps graph.py's, which draws the same tokens

    def completed(contexts, n, pauses=None):
        rows = [context for context in contexts for _ in range(n)]
        with in_bfloat16(model.device), token_bar(phase, len(rows), cfg) as moved, fit.phase(
                "sampling", "lower --max_new_tokens"):
            return fit.in_parts(lambda part, copies: sampler(
                model, part, n=copies, max_new_tokens=cfg.max_new_tokens, stop_ids=stops, pauses=pauses,
                temperature=temperature, generator=generator, progress=moved), rows, n, cfg, generator)
    eval_mode(model)
    calls_tool = tool.call_finder(tokenizer, task)  # None, or where a completion pauses for a tool's answer
    drawn = completed(prompts, n, calls_tool if cfg.max_turns else None)
    pairs = [pair for pair in zip(problems, prompts) for _ in range(n)]
    completions = [Completion(problem, prompt, tokens, [True] * len(tokens))
                   for (problem, prompt), tokens in zip(pairs, drawn)]
    if calls_tool:
        tool.use_tool(completions, tokenizer, task, cfg.max_turns, completed, calls_tool)
    return [graded(c, tokenizer, task, stops) for c in completions]


def graded(c, tokenizer, task, stops):
    """The completion with its texts, the task's verdict on what the policy wrote, and the reward."""
    c.truncated = c.tokens[-1] not in stops
    end = None if c.truncated else -1
    # Where the prompt ends with <think>, that tag belongs to the response.
    opened = "<think>" if tokenizer.decode(c.prompt).rstrip().endswith("<think>") else ""
    c.response = opened + tokenizer.decode(c.own_tokens()[:end])
    c.transcript = opened + tokenizer.decode(c.tokens[:end])
    verdict = tasks.verdict_of(task, c)
    c.correct = verdict.correct
    c.formatted = verdict.formatted and not c.truncated
    c.reward = tasks.reward_of(task, c, default=reward)
    return c


def set_advantages(completions, group_size):
    """Compare each completion with its group. Sets c.advantage, and returns the advantages (P, G)."""
    rewards = torch.tensor([c.reward for c in completions]).view(-1, group_size)  # (P, G)
    advantages = group_advantages(rewards)
    for c, A in zip(completions, advantages.flatten().tolist()):
        c.advantage = A
    return advantages


# ---- 5. Evaluation ----

def evaluate(model, tokenizer, task, problems, cfg, *, samples=0, phase="validation", **labels):
    """(row for metrics.jsonl, greedy completions). The row has greedy accuracy, and for samples = k > 0 also
    truncated@k, avg@k, the mean over problems of the mean of k samples, and pass@1, 2, 4.. up to k. `_se` is
    the standard error of a mean over the problems: how far it would vary with other problems."""
    greedy = rollout(model, tokenizer, task, problems, cfg, n=1, temperature=0, seed=cfg.seed, phase=phase)
    row = {**labels, **{f"eval/{key}": value for key, value in describe(greedy).items()}}
    values = {"accuracy": [c.solved for c in greedy]}
    if samples:
        drawn = rollout(model, tokenizer, task, problems, cfg, n=samples, temperature=cfg.temperature,
                        seed=cfg.seed, phase=f"{phase}, {samples} samples")
        row[f"eval/truncated@{samples}"] = mean(c.truncated for c in drawn)
        right = [sum(c.solved for c in drawn[i:i + samples]) for i in range(0, len(drawn), samples)]
        values[f"avg@{samples}"] = [count / samples for count in right]
        for k in [2 ** i for i in range(samples.bit_length())]:
            values[f"pass@{k}"] = [pass_at_k(samples, count, k) for count in right]
    for key, each in values.items():
        row[f"eval/{key}"] = mean(each)
        row[f"eval/{key}_se"] = pstdev(each) / math.sqrt(len(each))
    return row, greedy


def assess(out, model, tokenizer, task, problems, cfg, *, step, **more):
    row, greedy = evaluate(model, tokenizer, task, problems, cfg, step=step, **more)
    log(out, row, greedy)
    if out:
        watch(out, model, tokenizer, task, cfg, step)
    return row


@torch.no_grad()
def watch(out, model, tokenizer, task, cfg, step):
    """Log a group of completions of each of three fixed validation problems to tokens.jsonl, with advantages
    and every token's probability and weight; then write the run's page, which shows them."""
    for problem in task.valid[:3]:
        group = rollout(model, tokenizer, task, [problem], cfg, n=cfg.group_size, seed=cfg.seed,
                        temperature=cfg.temperature, phase="watched problems")
        advantages = set_advantages(group, len(group))[0]  # (G,)
        batches = [micro_batches(group, advantages, [i], cfg, model.device)[0] for i in range(len(group))]
        logps = [batch_logps(model, b, cfg)[:, len(c.prompt):] for b, c in zip(batches, group)]  # (1, T)
        weights = [shaping_weights(each, cfg) for each in logps]
        log_tokens(out, step, group, tokenizer, logps, weights)
    page.write(out)


# ---- 6. Training ----

STATISTICS = ("loss", "clip_frac", "kl", "entropy", "weight_mean", "low_prob_frac")
MAX_BAD_STEPS = 5  # stop after so many steps in a row without a finite update
SAVE_SECONDS = 600  # a checkpoint at least so often, whatever --save_every says


def micro_batches(completions, advantages, rows, cfg, device):
    """The completions with numbers `rows` in right-padded batches of at most cfg.tokens_per_micro_batch
    tokens, pads included (a longer one gets its own), sorted by length, so that few are pads: dicts of
    ids (B, T), mask (B, T), advantages (B,)."""
    lengths = [len(c.prompt) + len(c.tokens) for c in completions]
    order = sorted(rows, key=lambda i: -lengths[i])
    batches = []
    while order:
        count = max(1, cfg.tokens_per_micro_batch // lengths[order[0]])
        chosen = order[:count]
        order = order[count:]
        ids = [torch.tensor(completions[i].prompt + completions[i].tokens) for i in chosen]
        # By position, never by `ids != pad`: many models pad with their end token, which must be learned.
        mask = [torch.tensor([False] * len(completions[i].prompt) + completions[i].mask) for i in chosen]
        batches.append({"ids": pad_sequence(ids, batch_first=True).to(device),
                        "mask": pad_sequence(mask, batch_first=True).to(device),
                        "advantages": advantages[chosen].to(device)})
    return batches


def batch_logps(model, batch, cfg):
    with in_bfloat16(batch["ids"].device):
        return token_logps(model, batch["ids"], batch["mask"], temperature=cfg.temperature)


def gradient(model, batches, denominator, cfg):
    """Compute the gradient of an update. Returns the sums of its loss and statistics."""
    model.zero_grad()  # an attempt that ran out of memory may have left a partial one
    totals = dict.fromkeys(STATISTICS, 0.0)
    for batch in batches:
        logps = batch_logps(model, batch, cfg)  # (B, T)
        # Update 1 needs no old_logps: the model is still the policy that sampled, and r = 1.
        old_logps = batch.get("old_logps", logps.detach())
        loss, stats = grpo_sg_loss(
            logps, old_logps, batch["advantages"], batch["mask"], weights=shaping_weights(logps, cfg),
            ref_logps=batch.get("ref_logps"), clip_low=cfg.clip_low, clip_high=cfg.clip_high, beta=cfg.beta,
            loss_agg_mode=cfg.loss_agg_mode, denominator=denominator)
        loss.backward()
        for key, value in {"loss": loss.detach(), **stats}.items():
            totals[key] += value * denominator  # sums again: `update` divides by what was trained on
    return totals


def update(model, optimizer, completions, advantages, cfg, *, reference=None, seed=0):
    """cfg.updates optimizer steps on a rollout, each on its own random share: no completion is used twice.

    advantages: one per completion. Returns a dict: grad_norm, the largest norm before clipping (0: none was
    finite); skipped, the updates left out as loss or gradient was not finite; the means of the loss and of
    grpo_sg_loss's statistics over what was trained on (None: nothing, or not finite). A completion with
    A = 0, such as all of a group with equal rewards, has no gradient: where beta is 0 it is left out of the
    passes and of these means, but not out of the denominator.
    """
    order = random.Random(seed).sample(range(len(completions)), len(completions))
    shares = [order[u::cfg.updates] for u in range(cfg.updates)]
    kept = [[i for i in share if cfg.beta or advantages[i] != 0] for share in shares]
    plan = [micro_batches(completions, advantages, rows, cfg, model.device) for rows in kept]

    def size(rows):  # what a loss is divided by, in all micro-batches of an update
        return sum(sum(completions[i].mask) if cfg.loss_agg_mode == "token-mean" else 1 for i in rows)
    eval_mode(model, checkpointing=True)  # no dropout in any pass, so that r = 1 until the weights change
    with torch.no_grad():  # before the first update changes the model
        for batch in sum(plan[1:], []):
            batch["old_logps"] = fit.by_rows(lambda part: batch_logps(model, part, cfg), batch)
        for batch in sum(plan, []) if cfg.beta else []:
            batch["ref_logps"] = fit.by_rows(lambda part: batch_logps(reference, part, cfg), batch)
    totals, norms = [], []
    for share, batches in zip(shares, plan):
        if batches:
            totals.append(fit.until_it_fits(lambda b: gradient(model, b, size(share), cfg), batches, cfg))
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip))
            if math.isfinite(norm) and math.isfinite(totals[-1]["loss"]):  # nan never reaches the weights
                norms.append(norm)
                with fit.phase("AdamW's step", "its first one adds two averages of each weight"):
                    optimizer.step()
            optimizer.zero_grad()
    trained_on = size(sum(kept, [])) if totals else math.nan
    means = {key: float(sum(each[key] for each in totals)) / trained_on for key in STATISTICS}
    return {"grad_norm": max(norms, default=0.0), "skipped": len(totals) - len(norms),
            **{key: value if math.isfinite(value) else None for key, value in means.items()}}


def train(model, tokenizer, task, cfg, out=None, *, reference=None, state=None, received=()):
    """Train by GRPO-SG. Returns the rows of the steps, which are also written to `out`, the run's folder.
    reference: the policy of the KL, needed where cfg.beta is above 0. state: of the checkpoint to resume.
    received: a list of signals; after one, the step is finished and saved, and training ends."""
    AdamW = HostAdamW if cfg.offload else torch.optim.AdamW
    optimizer = AdamW(model.parameters(), cfg.lr, betas=(0.9, 0.99), weight_decay=0, fused=True)
    if state:
        optimizer.load_state_dict(state.pop("optimizer"))
    done = state["step"] if state else 0
    if state and done % cfg.eval_every == 0:  # a checkpoint is written before its step is evaluated
        assess(out, model, tokenizer, task, task.valid, cfg, step=done, split="valid")
    rows = []
    bad_steps = 0  # in a row without one finite update
    saved = time.time()
    bar = tqdm(range(done + 1, cfg.steps + 1), "training", initial=done, total=cfg.steps)
    for step in threads.paced(bar):
        # Sample: the problems of the step and G completions of each. What is drawn is a function of the seed
        # and the step, so there is no random state to save.
        times = [time.time()]
        seed = cfg.seed * 1_000_003 + step
        problems = random.Random(seed).sample(task.train, min(cfg.prompts, len(task.train)))
        completions = rollout(model, tokenizer, task, problems, cfg, n=cfg.group_size, seed=seed,
                              temperature=cfg.temperature)
        # Compare each completion with its group.
        times.append(time.time())
        advantages = set_advantages(completions, cfg.group_size)  # (P, G)
        # Learn: more of the better ones, less of the others.
        with fit.phase("training", "add --gradient_checkpointing, or lower --max_new_tokens"):
            stats = update(model, optimizer, completions, advantages.flatten(), cfg, reference=reference,
                           seed=seed)
        times.append(time.time())
        rows.append(log_step(out, step, completions, advantages, stats, times))
        bar.set_postfix({key: f"{rows[-1][key]:.2f}" for key in ("reward", "accuracy", "grad_norm")})
        # Save from time to time, and at the end, for whatever reason it comes.
        bad_steps = bad_steps + 1 if stats["skipped"] and not stats["grad_norm"] else 0
        ending = received or bad_steps == MAX_BAD_STEPS or step == cfg.steps
        if out and (ending or step % cfg.save_every == 0 or time.time() - saved > SAVE_SECONDS):
            save_checkpoint(out, step, model, tokenizer, optimizer)
            saved = time.time()
        if received or bad_steps == MAX_BAD_STEPS:
            break
        if step % cfg.eval_every == 0:
            assess(out, model, tokenizer, task, task.valid, cfg, step=step, split="valid")
    return rows


# ---- Plumbing below, nothing specific to GRPO-SG: settings, checkpoints, a run ----

def setting(default, help):
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass
class Config:
    """The settings, each a flag of the same name; TINY has the tiny model's own defaults."""
    model: str = setting("", "hub name or folder of a causal language model; none: a tiny one made here")
    task: str = setting("kk", "what to learn: kk, math or qa")
    data: str = setting("synthetic", "kk: published; math: gsm8k, math, deepscaler; qa: hotpotqa; a .jsonl")
    eval_data: str = setting("", "math: gsm8k, math500, aime24; qa: hotpotqa; a .jsonl; none: by --data")
    people: list[int] = dataclasses.field(default_factory=lambda: [3, 4, 5, 6, 7], metadata={
        "help": "kk: sizes of puzzles, 2 to 8"})
    brief: bool = setting(False, "kk: claims without a story, as the tiny model reads them")
    shaping: Literal["sg", "none", "ar", "reverse"] = setting("sg", "token weights (none: plain GRPO)")
    alpha: float = setting(2.0, "scale of the weight")
    tau: float = setting(1/9, "temperature of the weight's sigmoid")
    mu: float = setting(0.25, "offset of the weight")
    low: float = setting(1.0, "L, the least weight")
    high: float = setting(1.4, "U, the greatest weight")
    clip_low: float = setting(0.2, "the ratio is clipped from below at 1 - clip_low")
    clip_high: float = setting(0.24, "the ratio is clipped from above at 1 + clip_high")
    beta: float = setting(0.0, "weight of the KL to the first policy; above 0 a second model is held")
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean"] = setting("token-mean", "as in grpo_sg_loss")
    steps: int = setting(350, "training steps, each a rollout and its updates")
    prompts: int = setting(64, "P, prompts in a rollout")
    group_size: int = setting(8, "G, completions of each prompt")
    updates: int = setting(2, "optimizer updates per rollout, each on its own share of the completions")
    lr: float = setting(1e-6, "learning rate of AdamW")
    grad_clip: float = setting(1.0, "gradients with a larger norm are scaled down to it")
    temperature: float = setting(0.7, "of sampling and of all log-probabilities")
    max_new_tokens: int = setting(2048, "a turn is cut off here, and then counts as badly formed")
    max_turns: int = setting(2, "qa: searches that are answered, before one last turn")
    tokens_per_micro_batch: int = setting(3072, "most tokens in a backward pass; lower it to save memory")
    sample_batch: int = setting(256, "most completions sampled at once")
    sampler: Literal["auto", "plain"] = setting("auto", "auto: on a GPU graph.py's, if it proves right")
    gradient_checkpointing: bool = setting(False, "save memory in the backward pass, for a third more time")
    offload: bool = setting(False, "keep AdamW's averages in host memory, not on the GPU")
    train_problems: int = setting(4500, "size of a generated training set, or most of hotpotqa")
    eval_problems: int = setting(200, "size of a generated validation or test set, or most of hotpotqa")
    eval_every: int = setting(10, "steps between evaluations on the validation set")
    eval_samples: int = setting(4, "k of avg@k and pass@k on the test set; 0: greedy accuracy alone")
    save_every: int = setting(50, "steps between checkpoints; the last step always leaves one")
    eval_only: bool = setting(False, "no training, only the evaluation on the test set")
    resume: bool = setting(False, "go on with the run in --out, from its newest checkpoint")
    seed: int = setting(0, "of everything that is random")
    out: str = setting("", "a folder for the run's files, which must not exist; none: a new one under runs/")


TINY = dict(people=[3], brief=True, train_problems=20000, steps=60, eval_every=20, prompts=32, updates=4,
            lr=2e-4, temperature=1.0, max_new_tokens=48, tokens_per_micro_batch=32768, sample_batch=1024)
MAY_BE_0 = "alpha mu low high clip_low clip_high beta eval_samples seed max_turns".split()
NO_EFFECT = {"kk": "max_turns", "math": "people brief max_turns", "qa": "people brief",
             "none": "alpha tau mu low high", "ar": "alpha tau mu low high"}
# What may change on --resume: how a run is stored and split, which changes results by rounding at most.
MAY_CHANGE = "resume out steps save_every eval_every sample_batch offload tokens_per_micro_batch".split()


def parse(argv=None, **defaults):
    """The command line as a checked Config. Flags override the settings of the run that they name, by
    --resume or --model RUN/checkpoint, and these override TINY. `defaults`: of a script that calls main."""
    tiny = ", ".join(f"{name} {value}" for name, value in TINY.items())
    about = f"{__doc__.splitlines()[0]} Defaults of the tiny model, without --model: {tiny}."
    given, saved = given_and_saved(Config, argv, about, defaults, MAY_CHANGE)
    cfg = Config(**{**(saved if "model" in given or saved else TINY), **given})
    check(cfg, given)
    return cfg


def check(cfg, given):
    """Fail where a setting has a value that cannot be used, or one of those given has no effect."""
    check_numbers(dataclasses.asdict(cfg), MAY_BE_0)
    if cfg.task not in tasks.TASKS:
        fail(f"there is no --task {cfg.task}{closest(cfg.task, tasks.TASKS)}: give one of "
             f"{', '.join(tasks.TASKS)}, or start the script that defines it")
    check_useful(given, NO_EFFECT, task=cfg.task, shaping=cfg.shaping)
    for wrong, message in (
            (cfg.eval_only and not cfg.model, "--eval_only needs --model, for example runs/NAME/checkpoint"),
            (cfg.group_size < 2, "--group_size 1 must be 2 or more: an advantage compares within a group"),
            (cfg.low > cfg.high, f"--low {cfg.low} is above --high {cfg.high}: weights need a range"),
            (os.path.lexists(cfg.out) and not cfg.resume, f"--out {cfg.out} exists: name another folder, or "
             "add --resume to go on with the run in it")):
        if wrong:
            fail(message)
    ends = shaping_weights(torch.tensor([0.0, 1.0]).log(), cfg)  # w is monotone: equal ends, constant w
    if cfg.shaping != "none" and ends[0] == ends[1]:
        tqdm.write(f"warning: these settings give every token the weight {ends[0]:.4g}, which is plain GRPO",
                   file=sys.stderr)


def save_checkpoint(out, step, model, tokenizer, optimizer):
    """Write OUT/checkpoint: model, tokenizer, optimizer.pt, and state.json with the step and the lengths of
    the logs. Random states are not needed, as what a step draws is a function of seed and step."""
    try:
        with whole_folder(os.path.join(out, "checkpoint")) as new:
            save_model(new, model, tokenizer)
            torch.save(optimizer.state_dict(), os.path.join(new, "optimizer.pt"))
            write_json(os.path.join(new, "state.json"), {"step": step, "sizes": file_sizes(out, "*.jsonl")})
    except Exception as error:  # no space, no permission, no folder: each library has its own exception
        fail(f"cannot write the checkpoint of step {step} to {out} ({first_line(error)}): make room, and go "
             f"on from the last one with --resume --out {out}")


def load_checkpoint(out):
    """(model, tokenizer, state) of the newest checkpoint that can be read. state: step, sizes, optimizer."""
    def read(folder):
        state = read_json(os.path.join(folder, "state.json"))
        state["optimizer"] = torch.load(os.path.join(folder, "optimizer.pt"), "cpu", weights_only=True)
        return *read_model(folder, local=True), state
    found = newest_readable(os.path.join(out, "checkpoint"), read)
    if not found:
        fail(f"no checkpoint in {out} can be read: start the run anew, with another --out")
    folder, (model, tokenizer, state) = found
    print(f"resuming after step {state['step']}, from {folder}")
    return model, tokenizer, state


def load(cfg):
    """(task, model, tokenizer, state): everything that a run needs. state: of the checkpoint to resume."""
    torch.manual_seed(cfg.seed)
    try:
        task = tasks.make_task(cfg)
        model, tokenizer, state = load_checkpoint(cfg.out) if cfg.resume else (
            *(load_model(cfg.model) if cfg.model else tasks.tiny_model(task)), None)
        turns = cfg.max_turns + 1 if task.observe else 1
        room = getattr(model.config, "max_position_embeddings", math.inf) - turns * cfg.max_new_tokens
        task = tasks.keep_short(task, tokenizer, room)
    except ValueError as error:  # a task's complaint about its settings or its data
        fail(str(error).split("\n")[0])
    prompt = tasks.encode_prompt(tokenizer, task.system, task.test[0].question, task.opening)
    return task, prepare(model, tokenizer, prompt, cfg, sample), tokenizer, state


def run(cfg):
    """Warm-up, test, training, test, report; with cfg.resume, continue from the newest checkpoint."""
    task, model, tokenizer, state = load(cfg)
    if state and state["step"] > cfg.steps:
        fail(f"--steps {cfg.steps}, but the run has done {state['step']} already: give more")
    out = open_run(cfg)
    if state:  # cut off what was logged after the checkpoint
        cut_files(out, state["sizes"])
    print(f"{model.num_parameters():,} weights on {model.device}; {len(task.train):,} problems to train on, "
          f"{len(task.test)} to test on (best constant answer: {task.floor:.2f} right)")
    first = os.path.join(out, "warm_start")  # the policy before training: a reference, or a start

    def test(step, phase):
        row = assess(out, model, tokenizer, task, task.test, cfg, samples=cfg.eval_samples, step=step,
                     split="test", phase=phase)
        print(f"{phase}: {in_words(row)}")
        if step == 0 and row["eval/format_rate"] < 0.01:
            print("hardly any completion is well formed, and where all are badly formed nothing is learned: "
                  "take an Instruct model, or easier problems (kk: --people 2 3)")
    if not state:
        if not cfg.model:
            tasks.warm_up(model, tokenizer, task, cfg)
        if cfg.beta or not cfg.model:
            save_model(first, model, tokenizer)
        test(0, "test" if cfg.eval_only else "test before training")
        if cfg.eval_only:
            return
    with fit.phase("moving the reference policy to the GPU", "without --beta there is none"):
        reference = read_model(first, local=True)[0].to(model.device) if cfg.beta else None
    with waiting_signals("finishing this step, then saving; a second signal stops at once") as received:
        rows = train(model, tokenizer, task, cfg, out, reference=reference, state=state, received=received)
    if received:
        fail(f"stopped; to go on: python {sys.argv[0]} --resume --out {out}", 128 + received[0])
    if rows and rows[-1]["step"] < cfg.steps:
        fail(f"no update of the last {MAX_BAD_STEPS} steps was finite: see their rows and completions in "
             f"{out}; a lower --lr may help. The weights in {out}/checkpoint are from before those steps")
    test(cfg.steps, "test after training")
    if rows and not state and all(row["equal_groups"] == 1 for row in rows):
        print("no group ever had different rewards, so nothing was learned: README.md, \"Is it broken?\"")
    print(f"curves, tokens and transcripts, to open in a browser: {out}/report.html")


def main(argv=None, **defaults):
    with one_line_errors():
        run(parse(argv, **defaults))


if __name__ == "__main__":
    main()
