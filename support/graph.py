"""Sampling whose decode step is recorded once and then replayed: grpo_sg.sample at the pace of the GPU.

A step of a model of 24 layers is about a thousand kernels, launched one by one from Python. A launch takes
the CPU some 15 microseconds; most of these kernels take the GPU less, and it waits. A CUDA graph is a
recording of launches, played again by one call: the same kernels, on the same addresses. So three things are
fixed:
- shapes: keys and values stand in buffers with room for columns to come, hidden by a mask until written;
- addresses: what changes from step to step, the column too, is a tensor that the step changes in place;
- the way: no step waits for a value to decide something. A row that has ended goes on until the host looks,
  every BLOCK tokens. Once half of the rows have ended, or the room is full, all is made and recorded anew.
"""
import copy
import functools
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

BLOCK = 16         # tokens between two looks at which rows have ended
ROOM = 256         # tokens that new buffers have room for
RECORDED = "cuda"  # the kind of device on which steps are recorded; elsewhere the same step just runs


def prefill(model, prompts, device):
    """The state after reading P prompts, padded on the left to S columns: tensors with a row for each."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=device)  # (P, S)
    real = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    position, cache = (real.cumsum(1) - 1).clamp(min=0), DynamicCache(config=model.config)
    hidden = model.base_model(input_ids=ids, attention_mask=real, position_ids=position,
                              past_key_values=cache, use_cache=True).last_hidden_state[:, -1]  # (P, H)
    mask = torch.zeros_like(real, dtype=hidden.dtype).masked_fill(real == 0, -torch.inf)[:, None, None]
    column = torch.tensor([longest], device=device)  # where the next keys and values go

    def write(layer, keys, values, *args, **kwargs):  # (B, heads, 1, width), in place of appending them
        return layer.keys.index_copy_(2, column, keys), layer.values.index_copy_(2, column, values)
    for layer in cache.layers:
        if type(layer) is not DynamicLayer:
            raise ValueError("graph.sample needs a model whose layers all keep all keys and values")
        layer.update = functools.partial(write, layer)
    return SimpleNamespace(hidden=hidden, mask=mask, position=position[:, -1:] + 1, cache=cache,
                           column=column, t=torch.zeros_like(column))


def step(model, s, temperature):
    """Draw a token for each row by its last hidden state, and read it."""
    logits = model.get_output_embeddings()(s.hidden.float())  # (B, V), in float32 whatever the layers are in
    if temperature == 0:
        token = logits.argmax(-1, keepdim=True)
    else:  # as grpo_sg.sample does
        cdf = torch.softmax(logits / temperature, -1).cumsum(-1)
        token = torch.searchsorted(cdf, s.u[s.row, s.t, None] * cdf[:, -1:], right=True)
        token = token.clamp(max=cdf.shape[1] - 1)
    s.drawn[s.row, s.t] = token[:, 0]
    s.mask.index_fill_(3, s.column, 0.0)
    s.hidden.copy_(model.base_model(input_ids=token, attention_mask=s.mask, position_ids=s.position,
                                    past_key_values=s.cache, use_cache=True).last_hidden_state[:, -1])
    for counter in (s.position, s.column, s.t):
        counter += 1


def new_step(model, s, temperature, rows, columns):
    """The step for some rows of s (perhaps repeated), in new buffers of so many columns, after one step."""
    for layer in s.cache.layers:  # one by one, so that two whole caches never coexist
        layer.keys, layer.values = (F.pad(x[rows], (0, 0, 0, columns - x.shape[2]))
                                    for x in (layer.keys, layer.values))
    s.mask = F.pad(s.mask[rows], (0, columns - s.mask.shape[3]), value=-torch.inf)
    s.hidden, s.position = s.hidden[rows], s.position[rows]
    run = functools.partial(step, model, s, temperature)
    run()  # a kernel's first launch may do more than launch, and cannot be recorded
    if rows.device.type != RECORDED:
        return run
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):  # the first: if this fails
        run()  # launches are noted down, and nothing is computed
    return graph.replay


@torch.no_grad()
def sample(model, prompts, *, n, max_new_tokens, stop_ids, temperature=1.0, generator=None, pauses=None):
    """grpo_sg.sample, with its arguments and results. pauses is asked after a block, about each of its
    tokens, and also of rows that have ended in it. Memory: at most rows x (prompt + new tokens) keys and
    values. Raises ValueError for an empty prompt, and for models that do not keep all keys and values."""
    if not prompts or not all(prompts):
        raise ValueError("sample needs at least one prompt, and at least one token in each")
    device = next(model.parameters()).device
    rows = torch.arange(len(prompts), device=device).repeat_interleave(n)  # those of s to go on with
    completion = torch.arange(len(rows), device=device)  # which completions they are
    stops = torch.tensor(list(stop_ids), device=device).long()
    done = room = 0  # tokens drawn, tokens that there is room for
    with torch.autocast(device.type, enabled=False):
        s = prefill(model, prompts, device)
        longest = s.mask.shape[3]
        s.u = torch.rand(len(rows), max_new_tokens, generator=generator,
                         device=generator.device if generator else device).to(device)
        s.drawn = torch.zeros_like(s.u, dtype=torch.long)
        ended = torch.zeros_like(s.u, dtype=torch.bool)
        while done < max_new_tokens and len(rows):
            block = replays = min(BLOCK, max_new_tokens - done)
            if done + block > room or 2 * len(rows) <= len(s.row):
                s.row, room = completion, min(done + ROOM, max_new_tokens)
                replay = None  # gives its memory back before the next one needs it
                columns = -(-(longest + room) // 16) * 16  # CUDA's attention wants masks aligned
                replay, replays = new_step(model, s, temperature, rows, columns), block - 1
            for _ in range(replays):
                replay()
            for t in range(done, done + block):
                ended[s.row, t] = torch.isin(s.drawn[s.row, t], stops)
                if pauses:
                    ended[s.row, t] |= pauses(s.drawn[s.row, :t + 1])
            rows = (~ended[s.row].any(1)).nonzero()[:, 0]
            completion, done = s.row[rows], done + block
    ends = [(row + [True]).index(True) + 1 for row in ended.tolist()]
    return [tokens[:end] for tokens, end in zip(s.drawn.tolist(), ends)]


def recorded(model):
    """sample for this model, from a copy whose weights are in bfloat16, and brought up to date by each call.
    The vocabulary matrix is the model's own; what is no weight, like rotary frequencies, stays as it is."""
    copies = {id(p): torch.nn.Parameter(p.detach().bfloat16(), requires_grad=False)
              for p in model.base_model.parameters()}
    head = model.get_output_embeddings()
    twin = copy.deepcopy(model, {**copies, id(head): head}).eval()

    def sampler(policy, prompts, **settings):
        for p in model.base_model.parameters():
            copies[id(p)].copy_(p.detach())
        return sample(twin, prompts, **settings)
    return sampler


def choose(model, plain, prompt, sampler=None):
    """(sampler, line): recorded(model), and ""; or plain and why, where recording fails or draws wrong tokens.

    A token is right if its uniform number lies in its share of the model's distribution. Rounding moves the
    shares, so that is measured how far outside the numbers are, on average, and compared with plain's. Of 16
    rows, from prompts of unequal lengths, half end in each block: that is three recordings."""
    prompts, limit, device = [prompt, prompt[len(prompt) // 2:]], 3 * BLOCK + 5, model.device

    def halve(drawn):
        return torch.arange(len(drawn), device=device) % 2 == (1 if drawn.shape[1] % BLOCK == 5 else 2)

    def misfit(draw):
        u = torch.rand(16, limit, generator=torch.Generator().manual_seed(0)).to(device)
        rows = draw(model, prompts, n=8, max_new_tokens=limit, stop_ids=[], pauses=halve,
                    generator=torch.Generator().manual_seed(0))
        outside = []
        for i, row in enumerate(rows):
            ids = torch.tensor([prompts[i // 8] + row], device=device)
            share = torch.softmax(model(input_ids=ids).logits[0, -len(row) - 1:-1].float(), -1)  # (T, V)
            share, end = (x.gather(1, ids[0, -len(row):, None])[:, 0] for x in (share, share.cumsum(1)))
            outside.append(torch.maximum(end - share - u[i, :len(row)], u[i, :len(row)] - end).clamp(min=0))
        return torch.cat(outside).mean().item()
    try:
        sampler = sampler or recorded(model)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            found, usual = misfit(sampler), misfit(plain)
    except Exception as error:
        return plain, f"recording a decode step failed: the plain sampler is used ({type(error).__name__}: {error})"
    if found > 0.01 + 4 * usual:
        return plain, f"recorded steps draw wrong tokens, by {found:.3f}: the plain sampler is used"
    return sampler, ""
