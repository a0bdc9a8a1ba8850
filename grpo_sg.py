"""GRPO-SG, its mathematics and its training loop: reinforcement learning with verifiable rewards.

For each prompt, sample a group of completions from the policy and let a verifier give each a reward R. GRPO
makes completions that beat the mean of their own group more likely, token by token, and the others less:

    maximise the mean over tokens of w * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - beta KL

    r = pi_theta(token) / pi_old(token)    A = (R - mean R) / std R in the group    KL: to a reference policy
    w = clip(alpha * (sigmoid(pi_theta(token) / tau) - mu), L, U)

The weight w is all that GRPO-SG adds (arXiv 2511.00066). It is never negative and carries no gradient, so
that w * min(r A, clip(r) A) = min(r (wA), clip(r) (wA)): GRPO-SG is GRPO in which every token has its own
advantage wA. Unlikely tokens, whose gradients are the largest, count for less than the others.

Left out on purpose: value networks, reward models, LoRA, several GPUs, inference engines.

    python grpo_sg.py                                       a tiny model on a CPU, no download: two minutes
    python grpo_sg.py --model Qwen/Qwen2.5-0.5B --task kk   the same loop on a real model and a GPU
    python grpo_sg.py --eval_only --model runs/NAME/checkpoint      a run's test again: half a minute
"""
import dataclasses
import math
import os
import random
import time
import warnings
from statistics import fmean as mean, pstdev

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import DynamicCache

import runs
import tasks
from runs import fail

# ---- 1. The algorithm: pure functions of tensors, for B = P x G completions in rows of T tokens ----

def token_weights(logps, *, alpha=2.0, tau=1/9, mu=0.25, low=1.0, high=1.4):
    """GRPO-SG's weights w = clip(alpha * (sigmoid(pi / tau) - mu), L, U), with pi = exp(logps).

    logps: log-probabilities, in nats, of the sampled tokens under the current policy, at the sampling
    temperature; any shape. low, high: L, U. Returns float32 of that shape, detached: w only scales a
    token's advantage. Warns where every probability gets the same weight, which is plain GRPO. tau = 9 is
    such a setting, so the 9 that a public re-implementation lists is read as a slope, 1 / tau. Raises
    ValueError unless tau > 0 and 0 <= low <= high.
    """
    if not (tau > 0 and 0 <= low <= high):
        raise ValueError(f"weights need tau > 0 and 0 <= low <= high, not tau={tau}, low={low}, high={high}")

    def w(pi):
        return (alpha * (torch.sigmoid(pi / tau) - mu)).clamp(low, high)
    least, most = w(torch.tensor([0.0, 1.0])).tolist()  # w is monotone: equal at the ends, equal everywhere
    if least == most:
        warnings.warn(f"every token gets the weight {most:.4g}: this is plain GRPO "
                      f"(alpha={alpha}, tau={tau}, mu={mu}, low={low}, high={high})", stacklevel=2)
    return w(logps.detach().float().exp())


def group_advantages(rewards, *, eps=1e-6):
    """A = (R - mean R) / (std R + eps) in each group. rewards: (P, G), G >= 2. Returns (P, G), float32.

    GRPO's (arXiv 2402.03300). std is the sample standard deviation (divided by G - 1), as in TRL and verl.
    Where all rewards of a group are equal A is exactly 0: a rounding error of the mean, divided by eps,
    would make a signal out of nothing. Raises ValueError for another shape.
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards must have the shape (P, G) with G >= 2, not {tuple(rewards.shape)}")
    R = rewards.float()
    A = (R - R.mean(1, keepdim=True)) / (R.std(1, keepdim=True) + eps)
    return A.masked_fill(R.amax(1, keepdim=True) == R.amin(1, keepdim=True), 0.0)


def grpo_sg_loss(logps, old_logps, advantages, mask, *, weights=None, ref_logps=None, clip_low=0.2,
                 clip_high=0.2, beta=0.0, loss_agg_mode="token-mean", denominator=None):
    """(loss to minimise, dict of statistics). weights=token_weights(logps) is GRPO-SG, weights=None is GRPO.

    logps, old_logps, ref_logps: (B, T) log-probabilities, in nats, under pi_theta (with gradient), the
    policy that sampled, the reference. advantages: (B,) or (B, T). mask: (B, T), true on completion tokens;
    what stands elsewhere has no influence. weights: (B, T). clip_low, clip_high: epsilon_low, epsilon_high.
    loss_agg_mode: "token-mean", or "seq-mean-token-mean", the mean over completions of their token means
    (GRPO's first form: a token of a long completion counts less). denominator: the number of tokens (in the
    second mode, of completions) of the whole batch, where this is a part of one; losses and statistics of
    the parts then add up to the whole's. Raises ValueError for shapes or a mode that do not fit.
    On the first update after sampling r = 1, and as the advantages of a group sum to 0 the loss is about 0
    (not quite, as lengths and weights differ). Its gradient is not.
    """
    mask = mask.bool()
    shapes = {tuple(x.shape) for x in (logps, old_logps, mask, weights, ref_logps) if x is not None}
    if len(shapes) > 1 or logps.dim() != 2 or advantages.shape not in (logps.shape, logps.shape[:1]):
        raise ValueError("logps, old_logps, mask, weights and ref_logps must share one shape (B, T), and "
                         f"advantages have it or (B,): not {sorted(shapes)} and {tuple(advantages.shape)}")
    if loss_agg_mode not in ("token-mean", "seq-mean-token-mean"):
        raise ValueError(f"loss_agg_mode must be token-mean or seq-mean-token-mean, not {loss_agg_mode!r}")
    if beta and ref_logps is None:
        raise ValueError(f"beta={beta} needs ref_logps, the log-probabilities under the reference policy")

    def aggregate(x):
        x, tokens = x.masked_fill(~mask, 0.0), mask.sum(1)  # (B, T), (B,)
        if loss_agg_mode == "token-mean":
            return x.sum() / (denominator or tokens.sum().clamp(min=1))
        return (x.sum(1) / tokens.clamp(min=1)).sum() / (denominator or (tokens > 0).sum().clamp(min=1))
    logps = logps.to(torch.promote_types(logps.dtype, torch.float32))
    old_logps = old_logps.detach().to(logps.dtype)
    A = advantages.reshape(len(logps), -1)  # (B, 1) or (B, T)
    w = torch.ones_like(logps) if weights is None else weights.detach()  # (B, T)
    r = (logps - old_logps).masked_fill(~mask, 0.0).exp()  # masked before exp: no nan of a pad gets through
    clipped = r.clamp(1 - clip_low, 1 + clip_high)
    # w stands outside of the clip. In clip(w r), a likely token (w = 1.4) with A > 0 would be above
    # 1 + clip_high from the start, have no gradient, and never learn.
    objective = w * torch.minimum(r * A, clipped * A)
    other = old_logps if ref_logps is None else ref_logps.detach()
    log_ratio = (other - logps).masked_fill(~mask, 0.0)
    kl = log_ratio.exp() - 1 - log_ratio  # k3: never negative, 0 where the two agree; unbiased while r = 1
    if beta:
        objective = objective - beta * kl  # without w, which shapes the advantage alone
    with torch.no_grad():
        stats = {"clip_frac": aggregate((clipped * A < r * A).float()),  # where the clip holds a token back
                 "kl": aggregate(kl),  # to the old policy, if no reference
                 "entropy": aggregate(-old_logps),  # of the sampler, in nats, by its samples
                 "weight_mean": aggregate(w),
                 "low_prob_frac": aggregate((logps < math.log(1/3)).float())}  # tokens with pi < 1/3
    return -aggregate(objective), stats


def shaping_weights(logps, *, shaping, **sg):
    """The weights (B, T) of a method, None for all 1: "sg" (settings of token_weights), "none" (GRPO), and
    for comparison "reverse", the same curve over 1 - pi, and "ar", AR-Lopti's (arXiv 2505.12929)."""
    pi = logps.detach().float().exp()
    if shaping == "ar":
        return 0.2 * pi + 0.8
    if shaping == "reverse":
        return token_weights(torch.log1p(-pi), **sg)
    return token_weights(logps, **sg) if shaping == "sg" else None


def pass_at_k(n, c, k):
    """Unbiased estimate, from n samples of which c are right, of the chance that at least one of k is:
    1 - C(n - c, k) / C(n, k) (arXiv 2107.03374). Raises ValueError unless 0 <= c <= n and 1 <= k <= n."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass_at_k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


# ---- 2. Log-probabilities of the policy ----

def token_logps(model, ids, mask, *, temperature=1.0):
    """(B, T) float32: entry [b, t] is log pi(ids[b, t] | ids[b, :t]) at the temperature, 0 outside of mask.

    ids: (B, T), prompt and completion, right-padded with any token. mask: (B, T), True exactly on sampled
    tokens. No attention mask is needed: pads come last, and nothing attends to what follows it. Not for
    models that change logits after lm_head; runs.prepare finds out. Raises ValueError where mask[:, 0] is
    True, as a first token is predicted from nothing.
    """
    if mask[:, 0].any():
        raise ValueError("mask[:, 0] must be False: the first token of a row has no context")
    targets = mask[:, 1:].bool()  # (B, T-1): position t predicts t + 1
    h = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state  # (B, T-1, H)
    # Only the N completion tokens go through lm_head. With Qwen's vocabulary of 151,936, the logits of
    # prompts and pads, which nobody asks for, would take most of the memory and time of an update.
    logits = model.get_output_embeddings()(h[targets]).float().div_(temperature)  # (N, V)
    logps = torch.zeros(ids.shape, device=ids.device)
    logps[:, 1:][targets] = -F.cross_entropy(logits, ids[:, 1:][targets], reduction="none")
    return logps


# ---- 3. Sampling ----

@torch.no_grad()
def sample(model, prompts, *, n, max_new_tokens, stop_ids, temperature=1.0, generator=None, pauses=None):
    """n completions of each of P prompts, lists of token ids: a list of P * n lists of ids, prompt-major.

    A completion ends with a stop token; or it is cut off, at max_new_tokens or where pauses(drawn) is True:
    drawn (B, t) has the ids so far of the B unfinished ones, the result is (B,). Tokens are drawn from the
    whole of softmax(logits / temperature): with a top-k or top-p that token_logps does not know of, r would
    compare two different kinds of distribution. temperature=0 takes the likeliest token. Give it a model in
    eval mode, without dropout. Raises ValueError for an empty prompt.
    """
    if not prompts or not all(prompts):
        raise ValueError("sample needs at least one prompt, and at least one token in each")
    device, longest = next(model.parameters()).device, max(map(len, prompts))
    # Padded on the left, so that every row goes on from the last column; a position counts real tokens only.
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=device)  # (P, S)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)  # (P, S)
    position, stops = (mask.cumsum(1) - 1).clamp(min=0), torch.tensor(list(stop_ids), device=device).long()
    cache = DynamicCache(config=model.config)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=position, past_key_values=cache,
                   use_cache=True, logits_to_keep=1).logits[:, -1]  # (P, V)
    cache.batch_repeat_interleave(n)  # a prompt is read once, not n times
    logits, mask, position = (x.repeat_interleave(n, 0) for x in (logits, mask, position[:, -1:]))
    # A row of uniform numbers for each completion: what one draws does not depend on when the others end.
    where = generator.device if generator else device
    u = torch.rand(len(prompts) * n, max_new_tokens, generator=generator, device=where).to(device)
    row = torch.arange(len(prompts) * n, device=device)  # (B,): which completions still go on, at first all
    drawn, completions = ids.new_zeros(len(row), 0), [[] for _ in row]
    for t in range(max_new_tokens):
        if temperature == 0:
            token = logits.argmax(-1, keepdim=True)  # (B, 1)
        else:  # invert the cumulative distribution; `right`: no token of probability 0 is ever drawn
            cdf = torch.softmax(logits.float() / temperature, -1).cumsum(-1)  # (B, V)
            token = torch.searchsorted(cdf, u[row, t, None] * cdf[:, -1:], right=True)
            token = token.clamp(max=cdf.shape[1] - 1)
        drawn = torch.cat([drawn, token], 1)  # (B, t + 1)
        ends = torch.isin(token[:, 0], stops) | (t + 1 == max_new_tokens)
        if pauses:
            ends |= pauses(drawn)
        going = (~ends).nonzero()[:, 0]
        if len(going) < len(row):  # finished rows leave the batch and the cache, and cost nothing any more
            for i, tokens in zip(row[ends].tolist(), drawn[ends].tolist()):
                completions[i] = tokens
            row, drawn, token, mask, position = (x[going] for x in (row, drawn, token, mask, position))
            cache.batch_select_indices(going)
        if len(going) == 0:
            break
        mask, position = F.pad(mask, (0, 1), value=1), position + 1
        logits = model(input_ids=token, attention_mask=mask, position_ids=position, past_key_values=cache,
                       use_cache=True).logits[:, -1]
    return completions


# ---- 4. Rollouts and rewards ----

@dataclasses.dataclass
class Completion:
    problem: tasks.Problem
    prompt: list[int]        # token ids
    tokens: list[int]        # as they were sampled, stop token included: never decoded and tokenised again
    mask: list[bool]         # of each token whether the policy wrote it; False in what a tool answered
    calls: int = 0           # of the tool
    whole: str = ""          # the tokens decoded, without prompt and stop token; samples.jsonl has this
    text: str = ""           # of these what the policy wrote, which is all that the verifier reads
    truncated: bool = False  # no stop token within max_new_tokens
    correct: bool = False
    formatted: bool = False  # False where truncated

    @property
    def solved(self):  # what accuracy counts
        return self.correct and self.formatted

    @property
    def own(self):  # the policy's tokens
        return [token for token, mine in zip(self.tokens, self.mask) if mine]


def reward(completion):  # or a Verdict
    """+3: right and well formed; -0.5: well formed but not right; -3: badly formed (as in AR-Lopti)."""
    return (3.0 if completion.correct else -0.5) if completion.formatted else -3.0


def stop_tokens(model, tokenizer):
    """Ids that end a completion. Qwen's chat turns end in <|im_end|>, its base models' texts in
    <|endoftext|>, and the tokenizer calls only one of them its end token: stop on both."""
    words, configured = tokenizer.get_vocab(), model.generation_config.eos_token_id
    stops = {words.get("<|im_end|>"), words.get("<|endoftext|>"), tokenizer.eos_token_id}
    return (stops | set(configured if isinstance(configured, list) else [configured])) - {None}


def rollout(model, tokenizer, task, problems, cfg, *, n, temperature, seed):
    """n verified completions of each problem, problem-major: the same ones for the same weights and seed,
    whatever cfg.sample_batch (but for rounding, which differs a little with the number of rows).

    Where the task has a tool, a turn also ends with the text that calls it. The tool's answer is appended,
    with mask False, and the completion goes on: cfg.max_turns times, then calls are not answered any more.
    """
    device, stops = next(model.parameters()).device, stop_tokens(model, tokenizer)
    prompts = [tasks.encode_prompt(tokenizer, task.system, problem.question) for problem in problems]
    pairs = [pair for pair in zip(problems, prompts) for _ in range(n)]
    completions = [Completion(problem, prompt, tokens=[], mask=[]) for problem, prompt in pairs]
    generator = torch.Generator().manual_seed(seed)  # the CPU's: the same numbers on every device

    def ends_a_call(drawn):  # by the text: it ends in many spellings, also in the middle of a token
        tails = drawn[:, -len(task.stop_text.encode()):].tolist()
        texts = tokenizer.batch_decode(tails)
        return torch.tensor([task.stop_text in text for text in texts], device=device)
    model.eval()
    unfinished, contexts, copies = completions, prompts, n
    for turns_left in range(cfg.max_turns if task.observe else 0, -1, -1):
        sampled, at_once, total = [], max(1, cfg.sample_batch // copies), len(contexts)
        for i in tqdm(range(0, total, at_once), "sampling", leave=False, disable=total <= at_once):
            with (runs.gpu_memory("sampling", cfg, "sample_batch"),
                  torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")):
                sampled += sample(model, contexts[i:i + at_once], n=copies, stop_ids=stops,
                                  max_new_tokens=cfg.max_new_tokens, temperature=temperature,
                                  generator=generator, pauses=ends_a_call if turns_left else None)
        for c, tokens in zip(unfinished, sampled):
            c.tokens, c.mask = c.tokens + tokens, c.mask + [True] * len(tokens)
        unfinished = [c for c, tokens in zip(unfinished, sampled)
                      if turns_left and ends_a_call(torch.tensor([tokens]))]
        if not unfinished:
            break
        for c in unfinished:
            answer = tasks.observation(tokenizer, task, tokenizer.decode(c.own), cfg.max_observation_tokens)
            c.tokens, c.mask, c.calls = c.tokens + answer, c.mask + [False] * len(answer), c.calls + 1
        contexts, copies = [c.prompt + c.tokens for c in unfinished], 1
    return [graded(c, tokenizer, task, stops) for c in completions]


def graded(c, tokenizer, task, stops):
    """The completion with its texts and the task's verdict on what the policy wrote."""
    c.truncated = c.tokens[-1] not in stops
    end = None if c.truncated else -1
    opened = "<think>" if tokenizer.decode(c.prompt).rstrip().endswith("<think>") else ""  # by the template
    c.text, c.whole = (opened + tokenizer.decode(tokens[:end]) for tokens in (c.own, c.tokens))
    c.correct, formatted = task.verify(c.text, c.problem.answer)
    c.formatted = formatted and not c.truncated
    return c


# ---- 5. Evaluation ----

def evaluate(model, tokenizer, task, problems, cfg, *, samples=0, **labels):
    """(row for metrics.jsonl, greedy completions). The row has greedy accuracy, and for samples = k > 0 also
    truncated@k, avg@k, the mean over problems of the mean of k samples, and pass@1, 2, 4.. up to k. `_se` is
    the standard error of a mean over the problems: what another draw of problems might change."""
    greedy = rollout(model, tokenizer, task, problems, cfg, n=1, temperature=0, seed=cfg.seed)
    row = {**labels, **{f"eval/{key}": value for key, value in describe(greedy).items()}}
    values = {"accuracy": [c.solved for c in greedy]}
    if samples:
        drawn = rollout(model, tokenizer, task, problems, cfg, n=samples, temperature=cfg.temperature,
                        seed=cfg.seed)
        row[f"eval/truncated@{samples}"] = mean(c.truncated for c in drawn)
        right = [sum(c.solved for c in drawn[i:i + samples]) for i in range(0, len(drawn), samples)]
        values[f"avg@{samples}"] = [count / samples for count in right]
        for k in [2 ** i for i in range(samples.bit_length())]:
            values[f"pass@{k}"] = [pass_at_k(samples, count, k) for count in right]
    for key, each in values.items():
        row[f"eval/{key}"], row[f"eval/{key}_se"] = mean(each), pstdev(each) / math.sqrt(len(each))
    return row, greedy


def describe(completions):
    return {"accuracy": mean(c.solved for c in completions),
            "format_rate": mean(c.formatted for c in completions),
            "truncated": mean(c.truncated for c in completions),
            "completion_tokens": mean(sum(c.mask) for c in completions),
            "tool_calls": mean(c.calls for c in completions)}


# ---- 6. Settings: each is a flag of the same name ----

def setting(default, help, choices=None):
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices})


@dataclasses.dataclass
class Config:
    model: str = setting("", "hub name or folder of a causal language model; none: a tiny one made here")
    task: str = setting("kk", "what to learn", tasks.TASKS)
    data: str = setting("synthetic", "kk: published; math: gsm8k, math, deepscaler; qa: hotpotqa; a .jsonl")
    eval_data: str = setting("", "math: gsm8k, math500, aime24; qa: hotpotqa; a .jsonl; none: by --data")
    people: tuple = setting((3, 4, 5, 6, 7), "kk: sizes of puzzles, 2 to 8")
    brief: bool = setting(False, "kk: claims without a story, as the tiny model reads them")
    shaping: str = setting("sg", "token weights: GRPO-SG's, none (GRPO), AR-Lopti's, GRPO-SG's over 1 - pi",
                           ["sg", "none", "ar", "reverse"])
    alpha: float = setting(2.0, "scale of the weight")
    tau: float = setting(1/9, "temperature of the weight's sigmoid")
    mu: float = setting(0.25, "offset of the weight")
    low: float = setting(1.0, "L, the least weight")
    high: float = setting(1.4, "U, the greatest weight")
    clip_low: float = setting(0.2, "the ratio is clipped to 1 - clip_low")
    clip_high: float = setting(0.24, "and to 1 + clip_high")
    beta: float = setting(0.0, "weight of the KL to the first policy; above 0 a second model is held")
    loss_agg_mode: str = setting("token-mean", "mean over tokens", ["token-mean", "seq-mean-token-mean"])
    steps: int = setting(350, "training steps, each a rollout and its updates")
    prompts: int = setting(64, "P, prompts in a rollout")
    group_size: int = setting(8, "G, completions of each prompt")
    updates: int = setting(2, "optimizer updates on a rollout, each on its share of the completions")
    lr: float = setting(1e-6, "learning rate of AdamW")
    grad_clip: float = setting(1.0, "longer gradients are scaled to this norm")
    temperature: float = setting(0.7, "of sampling and of all log-probabilities")
    max_prompt_tokens: int = setting(1024, "problems with a longer prompt are dropped and counted")
    max_new_tokens: int = setting(2048, "a turn is cut off here, and then counts as badly formed")
    max_turns: int = setting(2, "calls of a tool that are answered; a completion has one turn more")
    max_observation_tokens: int = setting(500, "the answer of a tool is cut off here, but for its last line")
    tokens_per_micro_batch: int = setting(4096, "most tokens in a backward pass; lower it to save memory")
    sample_batch: int = setting(256, "most completions sampled at once, no fewer than a prompt's")
    gradient_checkpointing: bool = setting(False, "save memory in the backward pass, for a third more time")
    train_problems: int = setting(4500, "size of a generated training set")
    eval_problems: int = setting(200, "size of a generated validation or test set")
    eval_every: int = setting(10, "steps between evaluations on the validation set")
    eval_samples: int = setting(4, "k of avg@k and pass@k on the test set; 0: greedy accuracy alone")
    save_every: int = setting(50, "steps between checkpoints; the last step always leaves one")
    keep: int = setting(2, "checkpoints that are kept, the newest included")
    resume: bool = setting(False, "go on with the run in --out, from its newest checkpoint")
    max_bad_steps: int = setting(5, "stop after so many steps in a row whose updates were all not finite")
    eval_only: bool = setting(False, "no training, only the evaluation on the test set")
    warmup_accuracy: float = setting(0.58, "avg@4 that ends the tiny model's warm-up (math .4, qa .25)")
    seed: int = setting(0, "of everything that is random")
    out: str = setting("", "a folder for the run's files, which must not exist; none: a new one under runs/")


# The tiny model's own defaults. What is given on the command line wins over both.
TINY = dict(people=(3,), brief=True, train_problems=20000, steps=120, eval_every=25, prompts=32, updates=4,
            lr=2e-4, temperature=1.0, max_new_tokens=48, tokens_per_micro_batch=32768, sample_batch=1024)
TINY_OF = {"math": dict(warmup_accuracy=0.4), "qa": dict(warmup_accuracy=0.25)}  # where a task needs others
WEIGHT_SETTINGS = ("shaping", "alpha", "tau", "mu", "low", "high")


def parse(argv=None):
    """The command line as a checked Config; fails where a value cannot be used."""
    given = runs.command_line(dataclasses.fields(Config), TINY, __doc__.split("\n")[0], argv)
    tiny = {} if given.get("model") else {**TINY, **TINY_OF.get(given.get("task"), {})}
    cfg = Config(**{**tiny, **given})
    may_be_0 = "alpha mu low high clip_low clip_high beta eval_samples seed max_turns".split()
    for name, value in dataclasses.asdict(cfg).items():
        zero = name in may_be_0
        if type(value) in (int, float) and not (math.isfinite(value) and (value > 0 or zero and value == 0)):
            fail(f"--{name} must be {'0 or more' if zero else 'positive'}, and finite, not {value}")
    if cfg.group_size < 2:
        fail(f"--group_size must be 2 or more, not {cfg.group_size}: an advantage compares within a group")
    if cfg.low > cfg.high:
        fail(f"--low {cfg.low} is above --high {cfg.high}: the weight is clipped to what lies between")
    shaping_weights(torch.zeros(1), **{k: getattr(cfg, k) for k in WEIGHT_SETTINGS})  # warns if useless
    if cfg.out and os.path.lexists(cfg.out) and not cfg.resume:
        fail(f"--out {cfg.out} exists: name another folder, or add --resume to go on with the run in it")
    return cfg


# ---- 7. Training ----

def micro_batches(completions, advantages, rows, cfg, device):
    """The completions with numbers `rows` in right-padded batches of at most cfg.tokens_per_micro_batch
    tokens, pads included (a longer one: alone), sorted by length, so that few are pads: dicts of ids (B, T),
    mask (B, T), advantages (B,)."""
    lengths = [len(c.prompt) + len(c.tokens) for c in completions]
    order, batches = sorted(rows, key=lambda i: -lengths[i]), []
    while order:
        fit = max(1, cfg.tokens_per_micro_batch // lengths[order[0]])
        rows, order = order[:fit], order[fit:]
        chosen = [completions[i] for i in rows]
        ids = [torch.tensor(c.prompt + c.tokens) for c in chosen]
        # By position, never by `ids != pad`: many models pad with their end token, which is to be learned.
        mask = [torch.tensor([False] * len(c.prompt) + c.mask) for c in chosen]
        batches.append({"ids": pad_sequence(ids, batch_first=True).to(device),
                        "mask": pad_sequence(mask, batch_first=True).to(device),
                        "advantages": advantages[rows].to(device)})
    return batches


def micro_logps(model, micro, cfg):
    """token_logps; on a GPU in bfloat16, but over float32 weights: bfloat16's round small updates away."""
    device = micro["ids"].device.type
    with (runs.gpu_memory("the log-probabilities", cfg, "tokens_per_micro_batch"),
          torch.autocast(device, torch.bfloat16, enabled=device == "cuda")):
        return token_logps(model, micro["ids"], micro["mask"], temperature=cfg.temperature)


def update(model, optimizer, completions, advantages, cfg, *, reference=None, seed=0):
    """cfg.updates optimizer steps on one rollout, each on its random share. advantages: one a completion.

    Returns a dict: grad_norm, the largest norm before clipping (0: none was finite); skipped, the updates
    left out as loss or gradient was not finite; the means of the loss and of grpo_sg_loss's statistics over
    what was trained on (None: nothing, or not finite). A group of equal rewards has no gradient: where beta
    is 0 it is left out of the passes and of these means, though not out of the denominators.
    """
    device, settings = next(model.parameters()).device, dataclasses.asdict(cfg)
    order = random.Random(seed).sample(range(len(completions)), len(completions))
    shares = [order[u::cfg.updates] for u in range(cfg.updates)]
    kept = [[i for i in share if cfg.beta or advantages[i] != 0] for share in shares]
    batches = [micro_batches(completions, advantages, rows, cfg, device) for rows in kept]

    def size(rows):  # one denominator for all micro-batches of an update
        return sum(sum(completions[i].mask) if cfg.loss_agg_mode == "token-mean" else 1 for i in rows)
    model.eval()  # no dropout, in this pass as in the others: r is 1 where nothing has changed
    for layer in model.modules():  # checkpointing needs a layer, not its parts, in training mode
        layer.training = getattr(layer, "gradient_checkpointing", False)
    with torch.no_grad():  # before any update; the first one's own pass is still that of the old policy
        for u, micros in enumerate(batches):
            for micro in micros:
                micro["old_logps"] = micro_logps(model, micro, cfg) if u > 0 else None
                micro["ref_logps"] = micro_logps(reference, micro, cfg) if cfg.beta and reference else None
    totals, norms, skipped = {}, [], 0
    for share, micros in zip(shares, batches):
        whole_loss, count = 0.0, size(share)
        for micro in micros:
            logps, old = micro_logps(model, micro, cfg), micro["old_logps"]
            loss, stats = grpo_sg_loss(
                logps, logps.detach() if old is None else old, micro["advantages"], micro["mask"],
                weights=shaping_weights(logps, **{k: settings[k] for k in WEIGHT_SETTINGS}),
                ref_logps=micro["ref_logps"], denominator=count,
                **{k: settings[k] for k in ("clip_low", "clip_high", "beta", "loss_agg_mode")})
            with runs.gpu_memory("the backward pass", cfg, "tokens_per_micro_batch"):
                loss.backward()
            whole_loss += loss.detach()
            for key, value in {"loss": loss.detach(), **stats}.items():
                totals[key] = totals.get(key, 0) + value * count
        if micros:
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip))
            if math.isfinite(norm + whole_loss):
                norms.append(norm)
                optimizer.step()
            else:  # nan and infinity never reach the weights
                skipped += 1
            optimizer.zero_grad()
    nothing = dict.fromkeys(("loss", "clip_frac", "kl", "entropy", "weight_mean", "low_prob_frac"))
    means = {key: float(total) / size(sum(kept, [])) for key, total in totals.items()}
    means = {key: value if math.isfinite(value) else None for key, value in means.items()}
    return {"grad_norm": max(norms, default=0.0), "skipped": skipped, **nothing, **means}


def train(model, tokenizer, task, cfg, log, *, reference=None, state=None, after_step=None):
    """Train by GRPO-SG. reference: the policy of the KL, needed where cfg.beta is above 0. Calls
    log(row, completions) after each step and evaluation, then after_step(step, optimizer, bad_steps), the
    number of steps in a row without a finite update. `state`, to go on: a dict of "step" and "optimizer".
    Returns the rows of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), cfg.lr, betas=(0.9, 0.99), weight_decay=0, fused=True)
    if state:
        optimizer.load_state_dict(state["optimizer"])
    done, rows, bad_steps = state["step"] if state else 0, [], 0
    bar = tqdm(range(done + 1, cfg.steps + 1), "training", initial=done, total=cfg.steps)
    for step in bar:
        started, seed = time.time(), cfg.seed * 1_000_003 + step  # of all it draws: no random state to save
        problems = random.Random(seed).sample(task.train, min(cfg.prompts, len(task.train)))
        completions = rollout(model, tokenizer, task, problems, cfg, n=cfg.group_size,
                              temperature=cfg.temperature, seed=seed)
        rewards = torch.tensor([reward(c) for c in completions]).view(-1, cfg.group_size)  # (P, G)
        if not rewards.isfinite().all():
            fail(f"--task {task.name} gave a completion of step {step} a reward that is not finite")
        advantages = group_advantages(rewards)  # (P, G)
        stats = update(model, optimizer, completions, advantages.flatten(), cfg,
                       reference=reference, seed=seed)
        rows.append({"step": step, "reward": rewards.mean().item(), **describe(completions), **stats,
                     "equal_groups": (advantages == 0).all(1).float().mean().item(),
                     "seconds": time.time() - started})
        log(rows[-1], completions if stats["skipped"] else completions[:cfg.group_size])
        bar.set_postfix({key: f"{rows[-1][key]:.2f}" for key in ("reward", "accuracy", "grad_norm")})
        if step % cfg.eval_every == 0:
            log(*evaluate(model, tokenizer, task, task.valid, cfg, step=step, split="valid"))
        bad_steps = bad_steps + 1 if stats["skipped"] and not stats["grad_norm"] else 0
        if after_step:
            after_step(step, optimizer, bad_steps)
    return rows


# ---- 8. A run ----

def transcript(row, c):
    """A line of samples.jsonl."""
    return {"step": row["step"], "split": row.get("split", "train"), "question": c.problem.question,
            "answer": c.problem.answer, "completion": c.whole, "reward": reward(c), "correct": c.correct,
            "formatted": c.formatted, "truncated": c.truncated, "solved": c.solved}


def main(argv=None):
    cfg = parse(argv)
    try:
        run(cfg)
    except OSError as error:
        fail(f"cannot read or write the run's files: {runs.first_line(error)}")
    except KeyboardInterrupt:
        fail("interrupted outside of training: if there is a checkpoint yet, --resume goes on from it", 130)


def run(cfg):
    """Warm-up, test, training, test, report; or, with cfg.resume, on from the newest checkpoint."""
    try:
        task = tasks.TASKS[cfg.task](cfg)
        model, tokenizer, state = (runs.load_checkpoint(cfg.out) if cfg.resume else
                                   (*runs.load_model(cfg, task), None))
        task = tasks.keep_short(task, tokenizer, cfg.max_prompt_tokens)
    except (OSError, ValueError) as error:
        fail(f"cannot load --data {cfg.data} of --task {cfg.task}: {str(error).split(chr(10))[0]}")
    prompt = tasks.encode_prompt(tokenizer, task.system, task.test[0].question)
    model = runs.prepare(model, cfg, prompt, stop_tokens(model, tokenizer), token_logps)
    if state and state["step"] > cfg.steps:
        fail(f"--steps {cfg.steps}, but the run has done {state['step']} already: give more")
    out, append = runs.open_run(cfg, dataclasses.asdict(cfg))
    first = os.path.join(out, "reference")  # where the reference policy is kept, if there is one

    def log(row, completions):
        append(row, [transcript(row, c) for c in completions])

    def test(step):
        row, greedy = evaluate(model, tokenizer, task, task.test, cfg, samples=cfg.eval_samples, step=step,
                               split="test")
        log(row, greedy)
        return row

    if not state:
        if not cfg.model:
            tasks.warm_up(model, tokenizer, task, cfg, lambda: mean(c.solved for c in rollout(
                model, tokenizer, task, task.valid, cfg, n=4, temperature=1.0, seed=cfg.seed)))
        row = test(step=0)
        if cfg.eval_only:
            return print("\n".join(f"{key:<24}{value}" for key, value in row.items()))
        if cfg.beta:
            runs.save_model(first, model, tokenizer)
    with runs.signals() as received:
        train(model, tokenizer, task, cfg, log, state=state,
              reference=runs.read_model(first, local=True)[0].to(model.device) if cfg.beta else None,
              after_step=runs.checkpointer(out, model, tokenizer, cfg, received))
    test(step=cfg.steps)
    runs.report(out, task)
    print(f"\nmodel, metrics and transcripts: {out}/")


if __name__ == "__main__":
    main()
