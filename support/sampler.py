"""Which sampler to use on a GPU: graph.sample in bfloat16 if it draws the right tokens here, else the plain one."""
import copy

import torch

from support import graph


def recorded(model):
    """graph.sample for models like this one. Layers run in bfloat16, in a copy that each call brings up to date;
    the vocabulary matrix is the model's own, and buffers such as rotary frequencies stay as they are."""
    trunk = copy.deepcopy(model.base_model, {
        id(p): torch.nn.Parameter(p.detach().bfloat16(), False) for p in model.base_model.parameters()})

    def sampler(model, prompts, **settings):
        for p, q in zip(model.base_model.parameters(), trunk.parameters()):
            q.copy_(p.detach())
        return graph.sample(model, prompts, trunk=trunk, **settings)
    return sampler


def misfit(model, draw, prompt):
    """How far off a sampler's tokens are, in probability. A token is right if its uniform number lies in its
    share of the model's distribution: the result is the mean distance from there. Two prompts of unequal
    length, eight rows each. Half of the rows end in each block, so that the steps are recorded three times."""
    limit, device = 3 * graph.BLOCK + 5, model.device
    prompts = [prompt, prompt[len(prompt) // 2:]]

    def halve(drawn):
        return (torch.arange(len(drawn), device=device) % 2 == 1) & (drawn.shape[1] % graph.BLOCK == 5)
    completions = draw(model, prompts, n=8, max_new_tokens=limit, stop_ids=[], pauses=halve,
                       generator=torch.Generator().manual_seed(0))
    distances = []
    for i, u in enumerate(torch.rand(16, limit, generator=torch.Generator().manual_seed(0)).to(device)):
        ids = torch.tensor([prompts[i // 8] + completions[i]], device=device)
        length = len(completions[i])
        share = torch.softmax(model(input_ids=ids).logits[0, -length - 1:-1].float(), -1)  # (length, V)
        end = share.cumsum(-1).gather(1, ids[0, -length:, None])[:, 0]
        begin = end - share.gather(1, ids[0, -length:, None])[:, 0]
        distances.append(torch.maximum(begin - u[:length], u[:length] - end).clamp(min=0))
    return torch.cat(distances).mean().item()


def choose(model, plain, prompt, fast=None):
    """(sampler, line to print): recorded(model), or plain, and why. Either recording failed, or
    tokens are further off than plain's by more than bfloat16 explains. plain: grpo_sg.sample. prompt: two token
    ids or more, as the model gets them. fast: a sampler to try in place of recorded(model)."""
    try:
        fast = fast or recorded(model)
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=model.device.type == "cuda"):
            usual, found = misfit(model, plain, prompt), misfit(model, fast, prompt)
    except Exception as error:  # whatever CUDA, torch or the model say: a run does not depend on it
        return plain, f"the plain sampler is used: recording failed ({type(error).__name__}: {error})"
    if not found <= 4 * usual + 0.01:
        return plain, f"the plain sampler is used: recorded tokens are {found:.3f} off, not {usual:.3f}"
    return fast, "completions are sampled by a recorded step, which draws the same tokens here as the plain sampler"
