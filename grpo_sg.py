"""GRPO-SG in one file: reinforcement learning with verifiable rewards, every step in sight.

For each prompt, sample a group of G completions from the policy and let a verifier give each a reward R. GRPO
raises the probability of the tokens of completions that beat their own group's mean, and lowers it for the others:

    maximise the mean over all completion tokens of   w * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - beta KL
    r = pi_theta(token) / pi_old(token),   A = (R - mean R) / std R within the group,   KL to a reference policy
    w = clip(alpha (sigmoid(pi_theta(token) / tau) - mu), L, U)

The weight w is all that GRPO-SG adds (arXiv 2511.00066). It carries no gradient and is never negative, so
w * min(r A, clip(r) A) = min(r (wA), clip(r) (wA)): GRPO-SG is GRPO in which every token has its own advantage
wA, a little smaller for tokens that the policy holds to be unlikely and whose gradients are the largest.

Read the file from top to bottom: the algorithm, log-probabilities, sampling, rewards, evaluation, settings, the
training loop. Left out on purpose: value networks, reward models, LoRA, several GPUs, inference engines.

    python grpo_sg.py                                            a tiny model, CPU, no download: about two minutes
    python grpo_sg.py --model Qwen/Qwen2.5-0.5B --task kk        the same loop on a real model: a GPU, hours
    python grpo_sg.py --eval_only --model DIR                    accuracy of a saved model: minutes
"""
import argparse
import contextlib
import copy
import dataclasses
import json
import math
import os
import random
import sys
import time
import warnings
from statistics import fmean as mean

import huggingface_hub
import torch
import torch.nn.functional as F
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import tasks

# ---- 1. The algorithm: pure functions of tensors. B completions (P prompts x G each), T tokens, right-padded. ----


def token_weights(logps, *, alpha=2.0, tau=1/9, mu=0.25, low=1.0, high=1.4):
    """GRPO-SG's weights w = clip(alpha (sigmoid(pi / tau) - mu), low, high) with pi = exp(logps).

    logps: log-probabilities of the sampled tokens under the current policy at the sampling temperature, any shape.
    Returns float32 of that shape, detached: w only scales the token's advantage. Where the settings give every
    probability the same weight it warns, as that is plain GRPO: tau = 9 is such a setting, so the 9 found in one
    public re-implementation is read as the slope 1 / tau. Raises ValueError unless tau > 0 and 0 <= low <= high.
    """
    if not (tau > 0 and 0 <= low <= high):
        raise ValueError(f"token_weights needs tau > 0 and 0 <= low <= high, not tau={tau}, low={low}, high={high}")

    def w(pi):
        return (alpha * (torch.sigmoid(pi / tau) - mu)).clamp(low, high)
    impossible, certain = w(torch.tensor([0.0, 1.0])).tolist()  # w is monotone in pi: equal ends, equal everywhere
    if impossible == certain:
        warnings.warn(f"every token has weight {certain:.4g}, whatever its probability: this is plain GRPO "
                      f"(alpha={alpha}, tau={tau}, mu={mu}, low={low}, high={high})", stacklevel=2)
    return w(logps.detach().float().exp())


def group_advantages(rewards, *, eps=1e-6):
    """A = (R - mean R) / (std R + eps) in each group. rewards: (P, G) with G >= 2; returns (P, G), float32.

    std is the sample standard deviation (G - 1 below), as in TRL and verl. A group of equal rewards gets exactly 0:
    rounding in the mean, divided by eps, would otherwise make a signal out of nothing.
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards must have shape (P, G) with G >= 2, not {tuple(rewards.shape)}")
    R = rewards.float()
    A = (R - R.mean(1, keepdim=True)) / (R.std(1, keepdim=True) + eps)
    return A.masked_fill(R.amax(1, keepdim=True) == R.amin(1, keepdim=True), 0.0)


def grpo_sg_loss(logps, old_logps, advantages, mask, *, weights=None, ref_logps=None, clip_low=0.2, clip_high=0.2,
                 beta=0.0, loss_agg_mode="token-mean", denominator=None):
    """The loss to minimise, and statistics. weights=token_weights(logps) is GRPO-SG, weights=None is GRPO.

    logps, old_logps, ref_logps: (B, T) log-probabilities under pi_theta (with gradient), the policy that sampled,
    the reference. advantages: (B,) or (B, T). mask: (B, T), true on completion tokens; what stands elsewhere, even
    nan, has no influence. loss_agg_mode: "token-mean", or "seq-mean-token-mean", the mean over completions of each
    one's token mean (GRPO's first form; long completions then count less per token). denominator: the number of
    tokens (or, in the second mode, of completions) of the whole batch where this is a part of one: the parts' losses
    and statistics then add up to the whole's. Raises ValueError for shapes or a mode that do not fit.
    The first update of a rollout has r = 1 and, in most groups, a loss of 0: only its gradient is not 0.
    """
    mask = mask.bool()
    shapes = {tuple(x.shape) for x in (logps, old_logps, mask, weights, ref_logps) if x is not None}
    if len(shapes) != 1 or logps.dim() != 2 or advantages.shape not in (logps.shape, logps.shape[:1]):
        raise ValueError(f"logps, old_logps, mask, weights and ref_logps must share one shape (B, T) and advantages "
                         f"have (B, T) or (B,), not {shapes} and {tuple(advantages.shape)}")
    if beta and ref_logps is None:
        raise ValueError(f"beta={beta} needs ref_logps, the reference policy's log-probabilities")

    def aggregate(x):
        x = x.masked_fill(~mask, 0.0)
        tokens = mask.sum(1)
        if loss_agg_mode == "token-mean":
            return x.sum() / (denominator or tokens.sum().clamp(min=1))
        if loss_agg_mode == "seq-mean-token-mean":
            return (x.sum(1) / tokens.clamp(min=1)).sum() / (denominator or (tokens > 0).sum().clamp(min=1))
        raise ValueError(f"loss_agg_mode must be token-mean or seq-mean-token-mean, not {loss_agg_mode!r}")

    A = advantages[:, None] if advantages.dim() == 1 else advantages         # (B, 1) or (B, T)
    logps, old_logps = logps.float(), old_logps.detach().float()
    r = (logps - old_logps).masked_fill(~mask, 0.0).exp()                    # ratio; masked first: no nan gets through
    clipped = r.clamp(1 - clip_low, 1 + clip_high)
    w = torch.ones_like(r) if weights is None else weights.detach()
    # w stands outside the min. Inside the clip, clip(w r), a likely token (w = 1.4 > 1 + clip_high) with A > 0 would
    # be clipped before it has moved at all, and never learn.
    objective = w * torch.minimum(r * A, clipped * A)
    to = old_logps if ref_logps is None else ref_logps.detach().float()
    log_ratio = (to - logps).masked_fill(~mask, 0.0)
    kl = log_ratio.exp() - log_ratio - 1                                     # k3: >= 0, unbiased, 0 at pi = pi_ref
    if beta:
        objective = objective - beta * kl                                    # unweighted: w must not move KL's zero
    with torch.no_grad():
        stats = {"clip_frac": aggregate((clipped * A < r * A).float()),      # where the clip, not r, is what counts
                 "kl": aggregate(kl),                                        # to ref_logps, or without one to old_logps
                 "entropy": aggregate(-old_logps),                           # of the sampler, in nats, by Monte Carlo
                 "weight_mean": aggregate(w),
                 "low_prob_frac": aggregate((logps < math.log(1/3)).float())}
    return -aggregate(objective), stats


def shape_weights(shaping, logps, sg={}):
    """The token weights of a method: GRPO-SG's (settings `sg`), GRPO's, or those of two relatives."""
    if shaping == "sg":
        return token_weights(logps, **sg)
    if shaping == "reverse":                                                 # the same curve in 1 - pi: should hurt
        return token_weights(torch.log1p(-logps.detach().float().exp()), **sg)
    if shaping == "ar":                                                      # AR-Lopti's reweighting, arXiv 2505.12929
        return 0.2 * logps.detach().float().exp() + 0.8
    return None                                                              # "none": w = 1


def pass_at_k(n, c, k):
    """Unbiased estimate, from n samples of which c are right, of the chance that one of k is: 1 - C(n-c, k) / C(n, k).
    Raises ValueError unless 0 <= c <= n and 1 <= k <= n."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass_at_k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


# ---- 2. Log-probabilities of the policy ----


def token_logps(model, ids, mask, *, temperature=1.0):
    """(B, T) float32: entry [b, t] is log pi(ids[b, t] | ids[b, :t]) at this temperature, 0 where mask is False.

    ids: (B, T) prompt and completion, right-padded with anything. mask: (B, T), True exactly on sampled tokens. The
    pads need no attention mask: they come last, and no token attends to what follows it. Raises ValueError if
    mask[:, 0] has a True: the first token has nothing to be predicted from.
    """
    mask = mask.bool()
    if mask[:, 0].any():
        raise ValueError("mask[:, 0] must be False: the first token of a row has no context")
    targets = mask[:, 1:]                                                    # (B, T-1): position t predicts t + 1
    h = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    # Only the N completion positions go through the vocabulary matrix: with 151,936 words the (B, T, V) logits of
    # prompts and pads, never needed, would take most of the memory and of the time.
    logits = model.get_output_embeddings()(h[targets]).float() / temperature  # (N, V)
    logps = torch.zeros(ids.shape, device=ids.device)
    logps[:, 1:][targets] = -F.cross_entropy(logits, ids[:, 1:][targets], reduction="none")
    return logps


# ---- 3. Sampling ----


@torch.no_grad()
def sample(model, prompts, *, n, max_new_tokens, stop_ids, temperature=1.0, generator=None):
    """n completions of each prompt. prompts: P lists of token ids. Returns P * n lists of ids, prompt-major, each with
    its stop token last; one without a stop token was cut off at max_new_tokens. temperature=0 takes the likeliest
    token. Every token is drawn from softmax(logits / temperature), the whole of it: a top-k or top-p that the
    log-probabilities do not know of would make r a ratio of different distributions.
    """
    if not prompts or not all(prompts):
        raise ValueError("sample needs at least one prompt, and at least one token in each")
    device, longest = next(model.parameters()).device, max(map(len, prompts))
    # Left-padded, so that every row's next token is in the last column; positions count from the first real token.
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    positions, stops = (mask.cumsum(1) - 1).clamp(min=0), torch.tensor(sorted(stop_ids), device=device)
    cache = DynamicCache(config=model.config)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
                   use_cache=True, logits_to_keep=1).logits[:, -1]
    cache.batch_repeat_interleave(n)                                         # each prompt is read once, not n times
    logits, mask, position = (x.repeat_interleave(n, 0) for x in (logits, mask, positions[:, -1:]))
    alive, drawn = torch.arange(len(prompts) * n, device=device), []
    for i in range(max_new_tokens):
        if temperature == 0:
            token = logits.argmax(-1, keepdim=True)
        else:                                                                # invert the distribution function
            cdf = torch.softmax(logits.float() / temperature, -1).cumsum(-1)
            u = torch.rand(len(alive), 1, device=device, generator=generator) * cdf[:, -1:]
            token = torch.searchsorted(cdf, u, right=True).clamp(max=cdf.shape[1] - 1)
        drawn.append((alive, token[:, 0]))
        going = (~torch.isin(token[:, 0], stops)).nonzero()[:, 0]
        if len(going) == 0 or i == max_new_tokens - 1:
            break
        if len(going) < len(alive):                                          # finished rows cost nothing from here on
            alive, token, mask, position = alive[going], token[going], mask[going], position[going]
            cache.batch_select_indices(going)
        mask, position = F.pad(mask, (0, 1), value=1), position + 1
        logits = model(input_ids=token, attention_mask=mask, position_ids=position, past_key_values=cache,
                       use_cache=True).logits[:, -1]
    completions = [[] for _ in range(len(prompts) * n)]
    for rows, tokens in drawn:
        for row, token in zip(rows.tolist(), tokens.tolist()):
            completions[row].append(token)
    return completions


# ---- 4. Rollouts: prompts in, verified and rewarded completions out ----


@dataclasses.dataclass
class Completion:
    problem: tasks.Problem
    prompt: list[int]        # token ids
    tokens: list[int]        # the sampled ids, stop token included; trained on as they are, never tokenised again
    text: str = ""           # for the verifier: the tokens decoded, without the stop token and without the prompt
    truncated: bool = False  # no stop token before max_new_tokens
    correct: bool = False
    formatted: bool = False

    @property
    def solved(self):        # what accuracy counts
        return self.correct and self.formatted


def reward(completion):
    """+3 right and well formed, -0.5 well formed but not right, -3 badly formed (AR-Lopti's values)."""
    return (3.0 if completion.correct else -0.5) if completion.formatted else -3.0


def encode_prompt(tokenizer, system, question):
    """Token ids of the prompt: through the tokenizer's chat template where it has one, else plain paragraphs."""
    if not tokenizer.chat_template:
        return tokenizer(f"{system}\n\n{question}\n\n")["input_ids"]
    chat = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def stop_tokens(model, tokenizer):
    """Ids that end a completion. Qwen's chat turns end in <|im_end|> and its base models' texts in <|endoftext|>,
    whichever of the two the tokenizer calls its end token: stop on both."""
    vocabulary, configured = tokenizer.get_vocab(), model.generation_config.eos_token_id
    stops = {vocabulary.get("<|im_end|>"), vocabulary.get("<|endoftext|>"), tokenizer.eos_token_id}
    return {*stops, *(configured if isinstance(configured, list) else [configured])} - {None}


def rollout(model, tokenizer, task, problems, cfg, *, n, temperature, seed):
    """n verified completions of each problem, problem-major. Sampling is a function of `seed` and the model alone."""
    device, stops = next(model.parameters()).device, stop_tokens(model, tokenizer)
    prompts = [encode_prompt(tokenizer, task.system, problem.question) for problem in problems]
    generator = torch.Generator(device).manual_seed(seed)
    at_once = max(1, cfg.sample_batch // n)
    model.eval()
    completions = []
    for i in tqdm(range(0, len(prompts), at_once), "sampling", leave=False, disable=len(prompts) <= at_once):
        with autocast(device):
            sampled = sample(model, prompts[i:i + at_once], n=n, max_new_tokens=cfg.max_new_tokens, stop_ids=stops,
                             temperature=temperature, generator=generator)
        for j, tokens in enumerate(sampled):
            problem, truncated = problems[i + j // n], tokens[-1] not in stops
            text = tokenizer.decode(tokens if truncated else tokens[:-1])
            correct, formatted = task.verify(text, problem.answer)
            completions.append(Completion(problem, prompts[i + j // n], tokens, text, truncated, correct,
                                          formatted and not truncated))
    return completions


def autocast(device):
    """bfloat16 arithmetic on a GPU. The weights stay float32: at a learning rate of 1e-6 most updates are smaller
    than half a bfloat16 step and would be rounded away."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()


# ---- 5. Evaluation ----


def evaluate(model, tokenizer, task, problems, cfg, *, samples=0, **labels):
    """(row, completions): greedy accuracy with its standard error, and with samples = k > 0 also avg@k, the mean
    over problems of the mean of k samples at cfg.temperature, and pass@1, 2, 4, ... k."""
    greedy = rollout(model, tokenizer, task, problems, cfg, n=1, temperature=0, seed=cfg.seed)
    accuracy = mean(c.solved for c in greedy)
    metrics = {**labels, "eval/accuracy": accuracy, "eval/accuracy_se": math.sqrt(accuracy * (1 - accuracy) / len(greedy)),
               **{f"eval/{key}": value for key, value in describe(greedy).items()}}
    if samples:
        drawn = rollout(model, tokenizer, task, problems, cfg, n=samples, temperature=cfg.temperature, seed=cfg.seed)
        right = [sum(c.solved for c in drawn[i:i + samples]) for i in range(0, len(drawn), samples)]
        metrics[f"eval/avg@{samples}"] = mean(right) / samples
        for k in [2 ** i for i in range(samples.bit_length())]:
            metrics[f"eval/pass@{k}"] = mean(pass_at_k(samples, c, k) for c in right)
    return metrics, greedy


def describe(completions):
    return {"format_rate": mean(c.formatted for c in completions),
            "truncated": mean(c.truncated for c in completions),
            "completion_tokens": mean(len(c.tokens) for c in completions)}


# ---- 6. Settings: each is a flag of the same name ----


def setting(default, help, choices=None):
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices})


@dataclasses.dataclass
class Config:
    model: str = setting("", "hub name or folder of a causal language model; none: a tiny one, built and warmed up here")
    task: str = setting("kk", "what to learn", list(tasks.TASKS))
    data: str = setting("synthetic", "synthetic: generated puzzles; published: the set of mem-kk-logic", tasks.KK_DATA)
    people: tuple = setting((3, 4, 5, 6, 7), "kk: puzzle sizes, 2 to 8")
    brief: bool = setting(False, "kk: the claims alone without a story, as the tiny model reads them")
    shaping: str = setting("sg", "token weights: GRPO-SG, none (GRPO), AR-Lopti, SG in 1 - pi",
                           ["sg", "none", "ar", "reverse"])
    alpha: float = setting(2.0, "scale of the weight")
    tau: float = setting(1/9, "temperature of the weight's sigmoid")
    mu: float = setting(0.25, "offset of the weight")
    low: float = setting(1.0, "L, the least weight")
    high: float = setting(1.4, "U, the greatest weight")
    clip_low: float = setting(0.2, "the ratio is clipped below at 1 - clip_low")
    clip_high: float = setting(0.24, "and above at 1 + clip_high")
    beta: float = setting(0.0, "weight of the KL to the first policy; above 0 a second copy of the model is held")
    loss_agg_mode: str = setting("token-mean", "how token losses are averaged", ["token-mean", "seq-mean-token-mean"])
    steps: int = setting(350, "training steps: each samples, then updates")
    prompts: int = setting(64, "P, prompts in a step")
    group_size: int = setting(8, "G, completions of each prompt")
    updates: int = setting(2, "optimizer updates in a step, each on its share of the completions")
    lr: float = setting(1e-6, "AdamW's learning rate")
    grad_clip: float = setting(1.0, "largest gradient norm")
    temperature: float = setting(0.7, "of sampling, and of every log-probability")
    max_prompt_tokens: int = setting(1024, "problems with a longer prompt are dropped, and counted")
    max_new_tokens: int = setting(2048, "completions are cut off here and then count as badly formed")
    tokens_per_micro_batch: int = setting(32768, "most tokens, pads included, in one backward pass; lower it to save memory")
    sample_batch: int = setting(512, "most completions sampled side by side; lower it to save memory")
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass: less memory, more time")
    eval_every: int = setting(10, "steps between evaluations on validation problems")
    eval_problems: int = setting(200, "problems in the validation set, and in the test set")
    eval_samples: int = setting(4, "k of avg@k and pass@k on the test set; 0: greedy accuracy only")
    eval_only: bool = setting(False, "evaluate on the test set, train nothing")
    train_problems: int = setting(4500, "size of the generated training set")
    warmup_accuracy: float = setting(0.6, "tiny model: warm up until this validation avg@4")
    seed: int = setting(0, "of everything random")
    out: str = setting("", "folder for the run's files, must not exist yet; none: a new one under runs/")


# What differs for the tiny model; flags given on the command line win over both.
TINY = dict(people=(3,), brief=True, steps=100, prompts=32, updates=4, lr=4e-4, temperature=1.0, max_new_tokens=48, sample_batch=1024,
            train_problems=20000, eval_every=10)


def fail(message):
    """A user's mistake: one line, exit status 2, no traceback."""
    print(f"grpo_sg: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def parse(argv=None):
    """The command line as a checked Config. Exits with status 2 and one line where a value cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.error = fail
    for field in dataclasses.fields(Config):
        kind = {bool: {"action": "store_true"}, tuple: {"type": int, "nargs": "+"}}.get(
            field.type, {"type": field.type, "choices": field.metadata["choices"]})
        tiny = f"; tiny model: {TINY[field.name]}" if field.name in TINY else ""
        parser.add_argument(f"--{field.name}", default=argparse.SUPPRESS, **kind, help=f"{field.metadata['help']} (default: {field.default}{tiny})")
    given = vars(parser.parse_args(argv))
    cfg = Config(**{**({} if given.get("model") else TINY), **given})
    for name in ("steps", "prompts", "updates", "lr", "grad_clip", "temperature", "max_prompt_tokens", "max_new_tokens",
                 "tokens_per_micro_batch", "sample_batch", "eval_every", "eval_problems", "train_problems", "tau"):
        if not 0 < getattr(cfg, name) < math.inf:
            fail(f"--{name} must be positive and finite, not {getattr(cfg, name)}")
    for name in ("beta", "clip_low", "clip_high", "eval_samples", "low"):
        if not 0 <= getattr(cfg, name) < math.inf:
            fail(f"--{name} must be 0 or more, not {getattr(cfg, name)}")
    if cfg.group_size < 2:
        fail(f"--group_size must be 2 or more, not {cfg.group_size}: an advantage compares a completion with its group")
    if cfg.low > cfg.high:
        fail(f"--low {cfg.low} is above --high {cfg.high}: the weight is clipped to [low, high]")
    if not all(2 <= n <= 8 for n in cfg.people):
        fail(f"--people must be sizes from 2 to 8, not {' '.join(map(str, cfg.people))}")
    if cfg.out and os.path.lexists(cfg.out):
        fail(f"--out {cfg.out} exists already: name a folder that does not, so that no run writes over another")
    return cfg


# ---- 7. Training ----


def micro_batches(completions, advantages, rows, most_tokens, device):
    """The completions numbered `rows` in right-padded batches of at most most_tokens tokens, pads included (a longer
    one goes alone): dicts of ids (B, T), mask (B, T) and advantages (B,). They are sorted by length, so that the rows
    of a batch are about equally long and little of it is padding."""
    lengths = [len(c.prompt) + len(c.tokens) for c in completions]
    order, batches = sorted(rows, key=lambda i: -lengths[i]), []
    while order:
        longest = lengths[order[0]]
        fit = max(1, most_tokens // longest)
        rows, order = order[:fit], order[fit:]
        ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.bool)
        for b, c in enumerate(completions[i] for i in rows):
            end = len(c.prompt) + len(c.tokens)
            ids[b, :end] = torch.tensor(c.prompt + c.tokens)
            mask[b, len(c.prompt):end] = True  # by position: the end token may also be the pad token, and is trained on
        batches.append({"ids": ids.to(device), "mask": mask.to(device), "advantages": advantages[rows].to(device)})
    return batches


def update(model, optimizer, completions, advantages, cfg, *, reference=None, seed=0):
    """cfg.updates optimizer steps on one rollout, each on its random share of the completions. advantages: one each.

    Returns the largest gradient norm, and the loss and grpo_sg_loss's statistics as means over the tokens trained on
    (None where there were none). A group of equal rewards has advantage 0 and no gradient: where beta is 0 it is left
    out of the passes, but not out of the denominators.
    """
    def size(rows):  # what the sum of the losses of these completions is divided by
        return sum(len(completions[i].tokens) for i in rows) if cfg.loss_agg_mode == "token-mean" else len(rows)

    def current(net, micro):
        with autocast(device):
            return token_logps(net, micro["ids"], micro["mask"], temperature=cfg.temperature)
    device = next(model.parameters()).device
    order = random.Random(seed).sample(range(len(completions)), len(completions))
    shares = [order[u::cfg.updates] for u in range(cfg.updates)]
    kept = [[i for i in share if cfg.beta or advantages[i] != 0] for share in shares]
    batches = [micro_batches(completions, advantages, rows, cfg.tokens_per_micro_batch, device) for rows in kept]
    model.train()  # only for gradient checkpointing: there is no dropout
    with torch.no_grad():
        for u, batch in enumerate(batches):
            for micro in batch:
                if reference is not None:
                    micro["ref_logps"] = current(reference, micro)
                if u > 0:  # before the first update the policy is the one that sampled: its own pass serves for both
                    micro["old_logps"] = current(model, micro)
    totals, norms = dict.fromkeys(("loss", "clip_frac", "kl", "entropy", "weight_mean", "low_prob_frac"), 0.0), []
    for share, batch in zip(shares, batches):
        for micro in batch:
            logps = current(model, micro)
            weights = shape_weights(cfg.shaping, logps, {k: getattr(cfg, k) for k in ("alpha", "tau", "mu", "low", "high")})
            loss, stats = grpo_sg_loss(
                logps, micro.get("old_logps", logps.detach()), micro["advantages"], micro["mask"], weights=weights,
                ref_logps=micro.get("ref_logps"), clip_low=cfg.clip_low, clip_high=cfg.clip_high, beta=cfg.beta,
                loss_agg_mode=cfg.loss_agg_mode, denominator=size(share))
            loss.backward()
            for key, value in {**stats, "loss": loss.detach()}.items():
                totals[key] += value * size(share)
        if batch:
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)))
            optimizer.step()
            optimizer.zero_grad()
    trained = size(sum(kept, []))
    return {"grad_norm": max(norms, default=0.0),
            **{key: float(total) / trained if trained else None for key, total in totals.items()}}


def batch(problems, step, cfg):
    """The problems of a step, counted from 1, from training data shuffled anew each epoch. A function of (seed, step):
    nothing has to be remembered to go on from there."""
    epochs = [divmod(i, len(problems)) for i in range((step - 1) * cfg.prompts, step * cfg.prompts)]
    orders = {e: random.Random(f"{cfg.seed} {e}").sample(range(len(problems)), len(problems)) for e, _ in epochs}
    return [problems[orders[epoch][i]] for epoch, i in epochs]


def train(model, tokenizer, task, cfg, log):
    """GRPO-SG. `log(row, completions)` is called for each step and each evaluation. Returns the steps' rows."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    reference = copy.deepcopy(model).requires_grad_(False) if cfg.beta else None
    rows = []
    bar = tqdm(range(1, cfg.steps + 1), "training")
    for step in bar:
        started, seed = time.time(), cfg.seed * 1_000_003 + step
        completions = rollout(model, tokenizer, task, batch(task.train, step, cfg), cfg, n=cfg.group_size,
                              temperature=cfg.temperature, seed=seed)
        rewards = torch.tensor([reward(c) for c in completions]).view(-1, cfg.group_size)          # (P, G)
        advantages = group_advantages(rewards)                                                     # (P, G)
        stats = update(model, optimizer, completions, advantages.flatten(), cfg, reference=reference, seed=seed)
        rows.append({"step": step, "reward": rewards.mean().item(), "accuracy": mean(c.solved for c in completions),
                     "equal_groups": mean((advantages == 0).all(1).tolist()), **describe(completions), **stats,
                     "seconds": time.time() - started})
        log(rows[-1], completions[:cfg.group_size])
        bar.set_postfix({key: f"{rows[-1][key]:.2f}" for key in ("reward", "accuracy", "grad_norm")})
        if step % cfg.eval_every == 0 and step < cfg.steps:
            log(*evaluate(model, tokenizer, task, task.valid, cfg, step=step, split="valid"))
    return rows


def warm_up(model, tokenizer, task, cfg):
    """Maximum likelihood on task.demo's texts until the validation avg@4 reaches cfg.warmup_accuracy: what makes of the
    tiny model the "pretrained" one that reinforcement learning starts from. Returns the last evaluation's metrics."""
    device, rng = next(model.parameters()).device, random.Random(cfg.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    bar = tqdm(range(1, 3001), "warming up", bar_format="{desc}: {n} steps in {elapsed}{postfix}")
    for step in bar:
        demos = []
        for problem in rng.sample(task.train, 64):
            tokens = tokenizer(task.demo(problem, rng))["input_ids"] + [tokenizer.eos_token_id]
            demos.append(Completion(problem, encode_prompt(tokenizer, task.system, problem.question), tokens))
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1, step / 50)
        micro, = micro_batches(demos, torch.zeros(64), range(64), 10 ** 9, device)
        loss = -token_logps(model, micro["ids"], micro["mask"]).sum() / micro["mask"].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            metrics, _ = evaluate(model, tokenizer, task, task.valid, cfg, samples=4)
            bar.set_postfix({"loss": f"{loss:.3f}", "avg@4": f"{metrics['eval/avg@4']:.2f}"})
            if metrics["eval/avg@4"] >= cfg.warmup_accuracy:
                return metrics
    fail(f"the warm-up did not reach --warmup_accuracy {cfg.warmup_accuracy} in {step} steps: lower it")


# ---- 8. A run: model, files, report ----


def load_model(cfg, task):
    """(model, tokenizer) from a folder or the hub, in float32, or the tiny pair where no model is named."""
    torch.manual_seed(cfg.seed)
    if not cfg.model:
        model, tokenizer = tasks.tiny_model(task)
    else:
        local = os.path.isdir(cfg.model)
        try:
            if not local:
                huggingface_hub.HfApi().model_info(cfg.model, timeout=10)
        except Exception:  # no such name, no access, no network: only what an earlier download left can be used
            local = True
        try:
            tokenizer = AutoTokenizer.from_pretrained(cfg.model, local_files_only=local)
            model = AutoModelForCausalLM.from_pretrained(cfg.model, local_files_only=local, dtype=torch.float32)
        except Exception as error:
            fail(f"cannot load a model and its tokenizer from --model {cfg.model}: {str(error).splitlines()[0]} "
                 "(give a folder written by save_pretrained, or a name on the hub and a network)")
        if not stop_tokens(model, tokenizer) or not tokenizer.get_vocab():
            fail(f"the tokenizer of --model {cfg.model} is not usable: it has no words or no end token")
    for module in [model.config, *model.modules()]:  # both passes of an update must see the same network
        for name in [name for name in vars(module) if name.endswith(("dropout", "pdrop", "dropout_p"))]:
            if isinstance(getattr(module, name), float):
                setattr(module, name, 0.0)
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if cfg.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def printable(text):
    """A completion can hold any character: nothing that steers a terminal gets printed."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def sparkline(values, width=60):
    """A row of blocks, lowest value to highest, with both ends in numbers."""
    means = [mean(values[i * len(values) // width:(i + 1) * len(values) // width] or [values[-1]])
             for i in range(width)] if len(values) > width else values
    low, high = min(means), max(means)
    blocks = "".join("\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"[int(7.99 * (v - low) / (high - low or 1))] for v in means)
    return f"{blocks} {values[0]:.2f} -> {values[-1]:.2f}"


def open_run(cfg):
    """Make the run's folder with config.json; returns it and a function log(row, completions) that appends to
    metrics.jsonl, one JSON object a line, and to samples.jsonl, whole transcripts with their verdicts."""
    out = cfg.out or f"runs/{cfg.task}-{cfg.shaping}-seed{cfg.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    os.makedirs(out)

    def append(file, records):
        with open(os.path.join(out, file), "a") as f:
            f.writelines(json.dumps(record) + "\n" for record in records)

    def log(row, completions):
        append("metrics.jsonl", [row])
        append("samples.jsonl", [
            {"step": row["step"], "split": row.get("split", "train"), "question": c.problem.question,
             "answer": c.problem.answer, "completion": c.text, "truncated": c.truncated, "correct": c.correct,
             "formatted": c.formatted, "reward": reward(c)} for c in completions])
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(dataclasses.asdict(cfg), f, indent=2)
    print(f"files of this run: {out}/")
    return out, log


def report(before, after, shown, rows, task, cfg):
    """What the run did, for a person: accuracies, curves, and one problem before and after."""
    print(f"\n{len(task.test)} test problems, none of them trained on; the best constant answer gets {task.floor:.2f}")
    for key in [key for key in after if key.startswith(("eval/accuracy", "eval/avg@", "eval/pass@"))]:
        print(f"  {key[5:]:<12} {before[key]:.3f} -> {after[key]:.3f}")
    for key in ("reward", "accuracy", "grad_norm", "completion_tokens"):
        print(f"  {key:<18}{sparkline([row[key] for row in rows])}")
    print(f"\nOne of them: {printable(shown[0].problem.question)}")
    for when, c in zip(("before", "after"), shown):
        verdict = "right" if c.solved else "wrong" if c.formatted else "badly formed"
        print(f"\n{when} ({verdict}): {printable(c.text)}")


def main(argv=None):
    cfg = parse(argv)
    try:
        task = tasks.TASKS[cfg.task](cfg)
    except (OSError, ValueError) as error:
        fail(f"cannot load the data of --task {cfg.task} --data {cfg.data}: {str(error).splitlines()[0]}")
    model, tokenizer = load_model(cfg, task)
    for split in ("train", "valid", "test"):
        problems = getattr(task, split)
        short = [p for p in problems if len(encode_prompt(tokenizer, task.system, p.question)) <= cfg.max_prompt_tokens]
        if len(short) < len(problems):
            print(f"{len(problems) - len(short)} of {len(problems)} {split} problems dropped: "
                  f"prompt over --max_prompt_tokens {cfg.max_prompt_tokens}")
        if not short:
            fail(f"no {split} problem is left: raise --max_prompt_tokens")
        task = task._replace(**{split: short})
    try:
        out, log = open_run(cfg)
        if not cfg.model:
            warm_up(model, tokenizer, task, cfg)
        test = dict(samples=cfg.eval_samples, split="test")
        before, greedy = evaluate(model, tokenizer, task, task.test, cfg, step=0, **test)
        log(before, greedy)
        if cfg.eval_only:
            return print("\n".join(f"{key:<24}{value}" for key, value in before.items()))
        rows = train(model, tokenizer, task, cfg, log)
        after, greedy_after = evaluate(model, tokenizer, task, task.test, cfg, step=cfg.steps, **test)
        log(after, greedy_after)
        model.save_pretrained(os.path.join(out, "checkpoint"))
        tokenizer.save_pretrained(os.path.join(out, "checkpoint"))
    except OSError as error:
        fail(f"cannot write the run's files: {error}")
    pick = max(range(len(greedy)), key=lambda i: greedy_after[i].solved - greedy[i].solved)
    report(before, after, (greedy[pick], greedy_after[pick]), rows, task, cfg)
    print(f"\nmodel, metrics and transcripts: {out}/")


if __name__ == "__main__":
    main()
