"""Sampling whose decode step is recorded once and then replayed: grpo_sg.sample at the pace of the GPU.

A decode step of 24 layers is about a thousand kernels. Python takes some 15 microseconds to launch each,
most run for less, and so the GPU waits. A CUDA graph is a recording of launches that one call plays again:
the same kernels on the same addresses. So these have to be fixed:
- shapes: keys and values stand in buffers with room for columns to come, hidden by a mask until written;
- addresses: what changes from step to step, the column too, is a tensor that the step changes in place;
- the way: no step waits for a value to decide something. A row that has ended goes on until the host looks,
  every BLOCK tokens. Once half of the rows have ended, or the room is full, all is made and recorded anew.
"""
from types import MethodType, SimpleNamespace

import torch
import torch.nn.functional as F
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

BLOCK = 16         # tokens between two looks at which rows have ended
ROOM = 256         # tokens that new buffers have room for
RECORDED = "cuda"  # the kind of device on which steps are recorded; elsewhere the same step just runs


def prefill(trunk, prompts, n):
    """The state s after reading each of P prompts once, padded on the left to S columns: B = P * n rows."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=trunk.device)  # (P, S)
    real = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=trunk.device)
    position = (real.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=trunk.config)
    hidden = trunk(input_ids=ids, attention_mask=real, position_ids=position, past_key_values=cache,
                   use_cache=True).last_hidden_state[:, -1]  # (P, H)
    mask = torch.zeros_like(real, dtype=hidden.dtype).masked_fill(real == 0, -torch.inf)[:, None, None]
    hidden, mask, position = (x.repeat_interleave(n, 0) for x in (hidden, mask, position[:, -1:] + 1))
    cache.batch_repeat_interleave(n)
    column = torch.tensor([longest], device=trunk.device)  # where the next keys and values go

    def write(layer, keys, values, *args, **kwargs):  # (B, heads, 1, width), in place of appending them
        return layer.keys.index_copy_(2, column, keys), layer.values.index_copy_(2, column, values)
    for layer in cache.layers:
        if type(layer) is not DynamicLayer:
            raise ValueError("graph.sample needs a model whose layers all keep all keys and values")
        layer.update = MethodType(write, layer)
    return SimpleNamespace(cache=cache, hidden=hidden, mask=mask, position=position, column=column,
                           t=torch.zeros_like(column), row=torch.arange(len(hidden), device=column.device))


def step(trunk, head, s, temperature):
    """Draw a token for each row by its last hidden state, and read it."""
    logits = head(s.hidden.float())  # (B, V), in float32 whatever the trunk is in
    if temperature == 0:
        token = logits.argmax(-1, keepdim=True)
    else:  # as grpo_sg.sample does
        cdf = torch.softmax(logits / temperature, -1).cumsum(-1)
        token = torch.searchsorted(cdf, s.u[s.row, s.t, None] * cdf[:, -1:], right=True)
        token = token.clamp(max=cdf.shape[1] - 1)
    s.drawn[s.row, s.t] = token[:, 0]
    s.mask.index_fill_(3, s.column, 0.0)
    s.hidden.copy_(trunk(input_ids=token, attention_mask=s.mask, position_ids=s.position,
                         past_key_values=s.cache, use_cache=True).last_hidden_state[:, -1])
    for counter in (s.position, s.column, s.t):
        counter += 1


def start(s, rows, columns, one_step):
    """New buffers of so many columns for some rows of s, and a step on them. Returns what does the next."""
    for layer in s.cache.layers:  # one by one, so that two whole caches never coexist
        layer.keys, layer.values = (F.pad(x[rows], (0, 0, 0, columns - x.shape[2]))
                                    for x in (layer.keys, layer.values))
    s.mask = F.pad(s.mask[rows], (0, columns - s.mask.shape[3]), value=-torch.inf)
    s.hidden, s.position, s.row = (x[rows] for x in (s.hidden, s.position, s.row))
    one_step()  # not recorded, as a kernel's first launch may do more than launch
    if rows.device.type != RECORDED:
        return one_step
    graph = torch.cuda.CUDAGraph()
    # The outer context leads back to this stream also where recording fails; the inner one alone does not.
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
        one_step()  # noted down, and not done
    return graph.replay


@torch.no_grad()
@torch.autocast("cuda", enabled=False)  # whose cache of casts has no place in a recording
@torch.autocast("cpu", enabled=False)
def sample(model, prompts, *, n, max_new_tokens, stop_ids, temperature=1.0, generator=None, pauses=None,
           progress=None, trunk=None):
    """grpo_sg.sample. pauses is asked after a block, about each of its tokens. trunk: layers to use in place
    of the model's own. Raises ValueError also for models that do not keep all keys and values."""
    if not prompts or not all(prompts):
        raise ValueError("sample needs at least one prompt, and at least one token in each")
    trunk = trunk or model.base_model
    head = model.get_output_embeddings()
    s = prefill(trunk, prompts, n)
    rows = s.row  # those to go on with
    where = generator.device if generator else rows.device
    s.u = torch.rand(len(rows), max_new_tokens, generator=generator, device=where).to(rows.device)
    s.drawn = torch.zeros_like(s.u, dtype=torch.long)
    ended = torch.zeros_like(s.u, dtype=torch.bool)  # where a completion ends
    stops = torch.tensor(list(stop_ids), device=rows.device).long()
    longest = s.mask.shape[3]
    done = 0
    while done < max_new_tokens and len(rows):
        block = min(BLOCK, max_new_tokens - done)
        if longest + done + block > s.mask.shape[3] or 2 * len(rows) <= len(s.row):
            columns = longest + min(done + ROOM, max_new_tokens)
            columns += -columns % 16  # CUDA's attention wants its mask aligned
            go_on = None  # an old recording gives its memory back before there is a new one
            go_on = start(s, rows, columns, lambda: step(trunk, head, s, temperature))
        else:
            go_on()
        for _ in range(block - 1):
            go_on()
        for t in range(done, done + block):
            paused = pauses(s.drawn[s.row, :t + 1]) if pauses else False
            ended[s.row, t] = torch.isin(s.drawn[s.row, t], stops) | paused
        before, rows = rows, (~ended[s.row].any(1)).nonzero()[:, 0]
        if progress:
            progress(len(before) * block, len(before) - len(rows))
        done += block
    ends = [(row + [True]).index(True) + 1 for row in ended.tolist()]
    return [tokens[:end] for tokens, end in zip(s.drawn.tolist(), ends)]
