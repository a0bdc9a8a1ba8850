"""A drop-in for grpo_sg.sample that captures one decode step in a CUDA graph and replays it.

A decode step of 24 layers launches about a thousand kernels. Python takes some 15
microseconds per launch, and most kernels run for less, so the GPU waits. A CUDA graph
replays recorded launches with one call: the same kernels on the same addresses.
So the following must not change between steps:
- shapes: keys and values are in preallocated buffers; a mask hides the unused columns;
- addresses: everything that changes, including the column, is a tensor updated in place;
- control flow: a step never syncs with the host, which checks for finished rows every BLOCK
  tokens. Finished rows keep decoding until half of the rows are finished or the buffers are
  full. Then the sampler allocates new buffers without them and records the step again.
"""
import contextlib
import warnings
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from tqdm import tqdm
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grpo_sg import draw
from tasks import UserError
from support.program import first_line

BLOCK = 16         # tokens between two checks for finished rows
ROOM = 256         # tokens for which new buffers have space
READ = 16_000      # prompt tokens per prefill chunk, including padding
RECORDED = "cuda"  # record steps on this device type; run them eagerly elsewhere
NOT_RECORDED = "decode steps could not be recorded; they run eagerly"


class Buffers(DynamicLayer):
    """Hold the keys and values of a layer, (B, heads, columns, width). During prefill, column is
    None and update collects each chunk; afterwards it writes in place at `column`."""

    def __init__(self):
        super().__init__()
        self.column = None
        self.parts = []

    def update(self, keys, values, *args, **kwargs):
        keys = keys.to(values.dtype)  # rotary embedding returns float32: twice the memory
        if self.column is None:
            self.parts.append((keys, values))
            return keys, values
        self.keys.index_copy_(2, self.column, keys)
        self.values.index_copy_(2, self.column, values)
        return self.keys, self.values


def cast_parameters(model):
    """Return {name: tensor}: the linear layers' parameters, except the vocabulary matrix, in
    autocast's dtype, so autocast does not cast them in every step. Empty without autocast."""
    kind = model.device.type
    head = model.get_output_embeddings()
    cast = {}
    if torch.is_autocast_enabled(kind):
        for prefix, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and module is not head:
                for name, p in module.named_parameters(prefix, recurse=False):
                    cast[name] = p.detach().to(torch.get_autocast_dtype(kind))
    return cast


def next_logits(model, parameters, ids, mask, position, cache):
    """Return the float32 logits (B, V) of the token after ids (B, S). `parameters` replace
    the model's own parameters of the same names."""
    inputs = dict(input_ids=ids, attention_mask=mask, position_ids=position,
                  past_key_values=cache, use_cache=True, logits_to_keep=1)
    output = torch.func.functional_call(model, parameters, None, inputs, tie_weights=False)
    return output.logits[:, -1].float()


def read_prompts(model, parameters, prompts):
    """Prefill the B prompts, deduplicated and left-padded to S columns. Return the logits
    (B, V) of the first tokens, and the state s that `step` advances by one token a row."""
    different = list(dict.fromkeys(map(tuple, prompts)))
    longest = max(map(len, different))
    ids = torch.zeros(len(different), longest, dtype=torch.long)
    real = torch.zeros_like(ids)  # 1 where there is a token
    for i, prompt in enumerate(different):
        ids[i, -len(prompt):] = torch.tensor(prompt)
        real[i, -len(prompt):] = 1
    ids, real = ids.to(model.device), real.to(model.device)
    position = (real.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    if any(type(layer) is not DynamicLayer for layer in cache.layers):
        raise ValueError("graph.sample needs a model whose layers all keep all keys and values")
    cache.layers = [Buffers() for _ in cache.layers]
    size = max(1, READ // longest)
    parts = zip(ids.split(size), real.split(size), position.split(size))
    logits = torch.cat([next_logits(model, parameters, *part, cache) for part in parts])
    number = {prompt: i for i, prompt in enumerate(different)}
    which = [number[tuple(prompt)] for prompt in prompts]
    which = torch.tensor(which, device=model.device)  # (B,)
    column = torch.tensor([longest], device=model.device)  # where the next keys and values go
    for layer in cache.layers:
        keys, values = zip(*layer.parts)
        layer.keys, layer.values = torch.cat(keys)[which], torch.cat(values)[which]
        layer.parts, layer.column = None, column
    mask = torch.zeros_like(real, dtype=layer.values.dtype).masked_fill(real == 0, -torch.inf)
    return logits[which], SimpleNamespace(
        cache=cache, column=column,
        mask=mask[which, None, None],  # (B, 1, 1, columns), added to attention's scores
        position=position[which, -1:] + 1,
        row=torch.arange(len(which), device=model.device),  # indices of the completions
        t=torch.zeros_like(column))


def step(model, parameters, s, temperature):
    """Feed each row's last token, number s.t of its completion, and sample the next one."""
    s.mask.index_fill_(3, s.column, 0.0)
    logits = next_logits(model, parameters, s.token, s.mask, s.position, s.cache)
    for counter in (s.position, s.column, s.t):
        counter += 1
    s.token.copy_(draw(logits, s.u[s.row, s.t, None], temperature))
    s.drawn[s.row, s.t] = s.token[:, 0]


def start(s, rows, columns, one_step):
    """Allocate buffers of this many columns for the given rows of s, and take one step.
    Return a function that takes the next step."""
    more = columns - s.mask.shape[3]
    for layer in s.cache.layers:  # one by one, to avoid holding two whole caches
        layer.keys = F.pad(layer.keys[rows], (0, 0, 0, more))
        layer.values = F.pad(layer.values[rows], (0, 0, 0, more))
    s.mask = F.pad(s.mask[rows], (0, more), value=-torch.inf)
    s.token, s.position, s.row = s.token[rows], s.position[rows], s.row[rows]
    one_step()  # not recorded, because a kernel's first launch may also initialize it
    if rows.device.type != RECORDED:
        return one_step
    recording = torch.cuda.CUDAGraph()
    try:
        # If recording fails, only the outer context restores this stream.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(recording):
            one_step()  # recorded, not executed
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # nothing was executed, so the step can still run eagerly
        warnings.warn(f"{NOT_RECORDED} ({first_line(error)})")
        return one_step
    return recording.replay


@contextlib.contextmanager
def cuda_errors():
    """Raise UserError for a CUDA error. After most of them, nothing runs on the GPU in this
    process, not even the plain sampler."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise UserError(f"CUDA failed while steps were recorded ({first_line(error)}): add "
                        "--sampler plain, with --resume if there is a checkpoint") from None


@torch.no_grad()
def sample(model, prompts, *, n=1, max_new_tokens, stop_ids, temperature=1.0, generator=None,
           stopping_criteria=None):
    """Sample like grpo_sg.sample, with recorded steps. stopping_criteria is called after
    each block, for each of its tokens.

    Raises:
        ValueError: if a layer of the model does not keep all keys and values.
        UserError: if CUDA fails.
    """
    if not prompts or not all(prompts):
        raise ValueError("sample needs at least one prompt, and at least one token in each")
    kind = model.device.type
    # A recording must not read or fill autocast's cache of cast parameters.
    with cuda_errors(), torch.autocast(kind, torch.get_autocast_dtype(kind),
                                       torch.is_autocast_enabled(kind), cache_enabled=False):
        parameters = cast_parameters(model)
        logits, s = read_prompts(model, parameters, [p for p in prompts for _ in range(n)])
        where = generator.device if generator else model.device
        u = torch.rand(len(logits), max_new_tokens, generator=generator, device=where)  # (B, T)
        s.u = u.to(model.device)
        s.drawn = torch.zeros_like(s.u, dtype=torch.long)  # (B, T)
        s.token = draw(logits, s.u[:, :1], temperature)
        s.drawn[:, :1] = s.token
        del logits
        one_step = partial(step, model, parameters, s, temperature)
        with tqdm(desc="sampling", total=max_new_tokens, leave=False, delay=2) as shown:
            ended = decode(s, one_step, list(stop_ids), stopping_criteria, shown)
    ends = [(row + [True]).index(True) + 1 for row in ended.tolist()]
    return [tokens[:end] for tokens, end in zip(s.drawn.tolist(), ends)]


def decode(s, one_step, stop_ids, stopping_criteria, shown):
    """Take steps until all rows are finished. Return a boolean (B, T): where they end."""
    ended = torch.zeros_like(s.drawn, dtype=torch.bool)
    stops = torch.tensor(stop_ids, device=ended.device).long()
    longest, limit = s.mask.shape[3], ended.shape[1]
    seen, done = 0, 1  # tokens of each row that were checked, and that are drawn
    while True:
        for t in range(seen, done):
            ended[s.row, t] = torch.isin(s.drawn[s.row, t], stops)
            if stopping_criteria:
                ended[s.row, t] |= stopping_criteria(s.drawn[s.row, :t + 1], None)
        rows = (~ended[s.row].any(1)).nonzero()[:, 0]  # the unfinished rows of s
        shown.set_postfix(unfinished=len(rows), refresh=False)
        shown.update(done - seen)
        if done == limit or len(rows) == 0:
            return ended
        block = min(BLOCK, limit - done)
        if longest + done + block > s.mask.shape[3] or 2 * len(rows) <= len(s.row):
            columns = longest + min(done + ROOM, limit)
            columns += -columns % 16  # CUDA's attention needs an aligned mask
            go_on = None  # free the old recording before making a new one
            go_on = start(s, rows, columns, one_step)
        else:
            go_on()
        for _ in range(block - 1):
            go_on()
        seen, done = done, done + block


@torch.no_grad()
def misfit(model, sampler, prompt):
    """Return the mean error of a sampler's tokens, in probability.

    A token is correct if the uniform number that drew it is in the token's interval of the
    model's float32 CDF; its error is the distance to that interval. Samples eight rows for
    each of two prompts of unequal length. Half of the rows end in each block, which makes
    graph.sample record several times.
    """
    limit = 3 * BLOCK + 5
    prompts = [prompt, prompt[len(prompt) // 2:]]

    def halve(drawn, scores):
        rows = torch.arange(len(drawn), device=drawn.device)
        return (rows % 2 == 1) & (drawn.shape[1] % BLOCK == 5)
    completions = sampler(model, prompts, n=8, max_new_tokens=limit, stop_ids=[],
                          generator=torch.Generator().manual_seed(0), stopping_criteria=halve)
    numbers = torch.rand(16, limit, generator=torch.Generator().manual_seed(0)).to(model.device)
    distances = []
    for i, tokens in enumerate(completions):
        u, T = numbers[i, :len(tokens)], len(tokens)
        ids = torch.tensor([prompts[i // 8] + tokens], device=model.device)
        with torch.autocast(model.device.type, enabled=False):
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=T + 1).logits[0, :-1]
        shares = torch.softmax(logits.float(), -1)  # (T, V)
        end = shares.cumsum(-1).gather(1, ids[0, -T:, None])[:, 0]
        begin = end - shares.gather(1, ids[0, -T:, None])[:, 0]
        distances.append(torch.maximum(begin - u, u - end).clamp(min=0))
    return torch.cat(distances).mean().item()


def choose(model, plain, prompt, fast=sample):
    """Return (sampler, line to print). Call it under autocast if you sample under autocast.

    Chooses `fast` if its steps can be recorded and its misfit is close to that of `plain`,
    which is grpo_sg.sample; else `plain`, with the reason.

    Args:
        model: should be trained: if all tokens are equally likely, no token is wrong.
        prompt: at least two token ids.

    Raises:
        UserError: if the GPU no longer computes after the attempt.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", NOT_RECORDED)
            found = misfit(model, fast, prompt)
        usual = misfit(model, plain, prompt)
    except Exception as error:  # torch, CUDA or the model may raise anything
        why = first_line(error)
        with cuda_errors():
            torch.zeros(1, device=model.device).item()  # does the GPU still compute?
        return plain, f"using the plain sampler, because steps cannot be recorded ({why})"
    if not found <= 4 * usual + 0.001:
        return plain, ("using the plain sampler: its tokens are off by "
                       f"{usual:.4f}, recorded ones by {found:.4f}")
    return fast, "sampling with recorded steps (extras/gpu/graph.py)"
