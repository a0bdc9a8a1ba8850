"""Sampling whose decode step is recorded once, then replayed: grpo_sg.sample at a GPU's
pace.

A decode step of 24 layers is about a thousand kernels. Python takes some 15
microseconds to launch each, most run for less, and so the GPU waits. A CUDA graph is a
recording of launches that one call plays again: the same kernels on the same addresses.
So these have to be fixed:
- shapes: keys and values stand in buffers with room for columns to come, which a mask hides;
- addresses: what changes from step to step, the column too, is a tensor changed in place;
- the way: no step waits for a value to decide something; the host looks every BLOCK
  tokens. A row that has ended goes on: once half of the rows have, or the room is full,
  all is made and recorded anew without them.
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
from support.program import UserError, first_line

BLOCK = 16         # tokens between two looks at which rows have ended
ROOM = 256         # tokens that new buffers have room for
READ = 16_000      # tokens of prompts, pads included, that are read at once
RECORDED = "cuda"  # the kind of device on which steps are recorded; elsewhere they just run
NOT_RECORDED = "decode steps could not be recorded, and run one by one"


class Buffers(DynamicLayer):
    """The keys and values of a layer, (B, heads, columns, width). While prompts are
    read, column is None, and each part's are kept; after that new ones are written at
    `column`, in place."""

    def __init__(self):
        super().__init__()
        self.column = None
        self.parts = []

    def update(self, keys, values, *args, **kwargs):
        keys = keys.to(values.dtype)  # rotary embedding makes them float32: twice the memory
        if self.column is None:
            self.parts.append((keys, values))
            return keys, values
        self.keys.index_copy_(2, self.column, keys)
        self.values.index_copy_(2, self.column, values)
        return self.keys, self.values


def cast_parameters(model):
    """{name: tensor}: parameters of the linear layers as autocast would cast
    them anew in each step, the vocabulary matrix left out; nothing where autocast is
    off."""
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
    """(B, V) float32, the logits of what follows the last column of ids (B, S), by the
    model with `parameters` in place of its own ones of these names."""
    inputs = dict(input_ids=ids, attention_mask=mask, position_ids=position,
                  past_key_values=cache, use_cache=True, logits_to_keep=1)
    output = torch.func.functional_call(model, parameters, None, inputs, tie_weights=False)
    return output.logits[:, -1].float()


def read_prompts(model, parameters, prompts):
    """Read each different one of the B prompts once, padded on the left to S columns.
    Returns the logits (B, V) of the first tokens, and the state s, in which a step
    draws one more token for each row."""
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
        row=torch.arange(len(which), device=model.device),  # numbers of the completions
        t=torch.zeros_like(column))


def step(model, parameters, s, temperature):
    """Read the token that each row drew last, number s.t of its completion, and draw
    the next."""
    s.mask.index_fill_(3, s.column, 0.0)
    logits = next_logits(model, parameters, s.token, s.mask, s.position, s.cache)
    for counter in (s.position, s.column, s.t):
        counter += 1
    s.token.copy_(draw(logits, s.u[s.row, s.t, None], temperature))
    s.drawn[s.row, s.t] = s.token[:, 0]


def start(s, rows, columns, one_step):
    """New buffers of so many columns for some rows of s, and a step on them. Returns a
    function that does the next one."""
    more = columns - s.mask.shape[3]
    for layer in s.cache.layers:  # one by one, so that two whole caches never coexist
        layer.keys = F.pad(layer.keys[rows], (0, 0, 0, more))
        layer.values = F.pad(layer.values[rows], (0, 0, 0, more))
    s.mask = F.pad(s.mask[rows], (0, more), value=-torch.inf)
    s.token, s.position, s.row = s.token[rows], s.position[rows], s.row[rows]
    one_step()  # not recorded, as a kernel's first launch may do more than launch
    if rows.device.type != RECORDED:
        return one_step
    recording = torch.cuda.CUDAGraph()
    try:
        # The outer context leads back to this stream where recording fails; the inner
        # does not.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(recording):
            one_step()  # noted down, and not done
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # nothing was done, so the step can be done as it is
        warnings.warn(f"{NOT_RECORDED} ({first_line(error)})")
        return one_step
    return recording.replay


@contextlib.contextmanager
def cuda_errors():
    """Raise UserError for an error of CUDA's own: after most of them nothing runs on the
    GPU any more in this process, the plain sampler neither."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise UserError(f"CUDA failed while steps were recorded ({first_line(error)}): add "
                        "--sampler plain, with --resume if there is a checkpoint") from None


@torch.no_grad()
def sample(model, prompts, *, n=1, max_new_tokens, stop_ids, temperature=1.0, generator=None,
           stopping_criteria=None):
    """grpo_sg.sample, for models whose layers keep all keys and values: raises
    ValueError for others, and UserError where CUDA itself fails. stopping_criteria is
    asked after each block, about each of its tokens."""
    if not prompts or not all(prompts):
        raise ValueError("sample needs at least one prompt, and at least one token in each")
    kind = model.device.type
    # Autocast's own cache of cast parameters has no place in a recording.
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
    """Take steps until all rows have ended. Returns where they have, a boolean (B,
    T)."""
    ended = torch.zeros_like(s.drawn, dtype=torch.bool)
    stops = torch.tensor(stop_ids, device=ended.device).long()
    longest, limit = s.mask.shape[3], ended.shape[1]
    seen, done = 0, 1  # tokens of each row that were looked at, and that are drawn
    while True:
        for t in range(seen, done):
            ended[s.row, t] = torch.isin(s.drawn[s.row, t], stops)
            if stopping_criteria:
                ended[s.row, t] |= stopping_criteria(s.drawn[s.row, :t + 1], None)
        rows = (~ended[s.row].any(1)).nonzero()[:, 0]  # of s, those to go on with
        shown.set_postfix(unfinished=len(rows), refresh=False)
        shown.update(done - seen)
        if done == limit or len(rows) == 0:
            return ended
        block = min(BLOCK, limit - done)
        if longest + done + block > s.mask.shape[3] or 2 * len(rows) <= len(s.row):
            columns = longest + min(done + ROOM, limit)
            columns += -columns % 16  # CUDA's attention wants its mask aligned
            go_on = None  # an old recording gives its memory back before there is a new one
            go_on = start(s, rows, columns, one_step)
        else:
            go_on()
        for _ in range(block - 1):
            go_on()
        seen, done = done, done + block


@torch.no_grad()
def misfit(model, sampler, prompt):
    """How far off a sampler's tokens are, in probability. A token is right if the
    uniform number that it was drawn by lies in its share of the model's distribution,
    in float32; the result is the mean distance from there. Two prompts of unequal
    length, eight rows each, of which half end in each block of tokens, so that
    graph.sample makes several recordings."""
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
    """(sampler, line to print): `fast`, if steps can be recorded and its tokens are not
    much further off than those of `plain`, which is grpo_sg.sample; else `plain`, and why.
    Raises UserError if the GPU does not compute any more after that. prompt: at least two
    token ids. The model should be trained: no token is wrong where all are equally
    likely. To be called under autocast if the sampler will be."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", NOT_RECORDED)
            found = misfit(model, fast, prompt)
        usual = misfit(model, plain, prompt)
    except Exception as error:  # whatever torch, CUDA or the model may say
        why = first_line(error)
        with cuda_errors():
            torch.zeros(1, device=model.device).item()  # does the GPU still compute?
        return plain, f"the plain sampler is used, as steps cannot be recorded ({why})"
    if not found <= 4 * usual + 0.001:
        return plain, ("the plain sampler is used, as recorded tokens are off by "
                       f"{found:.4f}, and its own by {usual:.4f}")
    return fast, "completions are sampled by recorded steps (gpu/graph.py)"
