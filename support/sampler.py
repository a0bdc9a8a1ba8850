"""Which sampler to use on a GPU: graph.sample in bfloat16, if its tokens are right, or the plain one."""
import copy

import torch

from support import graph


def recorded(model):
    """graph.sample for models like this one. Its layers run in bfloat16, in a copy that is there while a
    call lasts, as an update needs its memory; the vocabulary matrix is the model's own, and buffers such as
    rotary frequencies are float32."""
    trunk = copy.deepcopy(model.base_model, {
        id(p): torch.nn.Parameter(p.new_empty(0, dtype=torch.bfloat16), False)
        for p in model.base_model.parameters()})

    def sampler(model, prompts, **settings):
        for p, q in zip(model.base_model.parameters(), trunk.parameters()):
            q.data = p.detach().bfloat16()
        try:
            return graph.sample(model, prompts, trunk=trunk, **settings)
        finally:
            for q in trunk.parameters():
                q.data = q.new_empty(0)
    return sampler


@torch.no_grad()
def misfit(model, draw, prompt):
    """How far off the tokens of the sampler `draw` are, in probability. A token is right if the uniform
    number that it was drawn by lies in its share of the model's distribution, in float32; the result is the
    mean distance from there. Two prompts of unequal length, eight rows each; half of the rows end in each
    block of tokens, so that graph.sample makes three recordings."""
    limit = 3 * graph.BLOCK + 5
    prompts = [prompt, prompt[len(prompt) // 2:]]

    def halve(drawn):
        rows = torch.arange(len(drawn), device=drawn.device)
        return (rows % 2 == 1) & (drawn.shape[1] % graph.BLOCK == 5)
    with torch.autocast(model.device.type, torch.bfloat16):
        completions = draw(model, prompts, n=8, max_new_tokens=limit, stop_ids=[], pauses=halve,
                           generator=torch.Generator().manual_seed(0))
    numbers = torch.rand(16, limit, generator=torch.Generator().manual_seed(0)).to(model.device)
    distances = []
    for i, tokens in enumerate(completions):
        u, T = numbers[i, :len(tokens)], len(tokens)
        ids = torch.tensor([prompts[i // 8] + tokens], device=model.device)
        shares = torch.softmax(model(input_ids=ids).logits[0, -T - 1:-1].float(), -1)  # (T, V)
        end = shares.cumsum(-1).gather(1, ids[0, -T:, None])[:, 0]
        begin = end - shares.gather(1, ids[0, -T:, None])[:, 0]
        distances.append(torch.maximum(begin - u, u - end).clamp(min=0))
    return torch.cat(distances).mean().item()


def choose(model, plain, prompt, fast=None):
    """(sampler, line to print): recorded(model) and nothing; or plain and why. Either recording failed, or
    its tokens are further off than those of the plain sampler in bfloat16. plain: grpo_sg.sample. prompt: at
    least two token ids. fast: a sampler to try in place of recorded(model). The model should be trained: no
    token is wrong where all are equally likely."""
    try:
        fast = fast or recorded(model)
        found = misfit(model, fast, prompt)
        usual = misfit(model, plain, prompt)
    except Exception as error:  # whatever torch, CUDA or the model may say
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return plain, f"plain sampler: recording failed ({why})"
    if not found <= 4 * usual + 0.001:
        return plain, f"plain sampler: recorded tokens are off by {found:.4f}, the plain ones by {usual:.4f}"
    return fast, ""
