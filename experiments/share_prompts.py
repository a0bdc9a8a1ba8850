"""Run grpo_sg.py on a CPU with updates that read each prompt once.

    python -m experiments.share_prompts --task lesson/real_model.py --model FOLDER

All completions of a group have the same prompt, and token_logps reads it again for each of them.
Here its keys and values are computed once in each micro-batch, with their gradient. The
log-probabilities and gradients are the same up to rounding. The real model's prompts are longer
than its completions, so this saves about a third of an update. On a GPU completions are longer,
and those of a group seldom meet in a micro-batch, so grpo_sg.py leaves it out.
"""
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

import grpo_sg


def compute_logps(model, batch, cfg):
    """Compute token_logps of a Batch on the CPU, (B, T) in nats, with each prompt read once. The
    model has its decoder in model.model, and the completions have no tokens of a tool."""
    numbers, of_row, own = {}, [], []  # {prompt: its number}, that of each row, its completion
    for ids, mask in zip(batch.ids, batch.mask):
        start, end = mask.nonzero()[0].item(), mask.nonzero()[-1].item() + 1
        of_row.append(numbers.setdefault(tuple(ids[:start].tolist()), len(numbers)))
        own.append(ids[start:end])
    mask = pad_sequence([torch.ones_like(ids) for ids in own], batch_first=True)  # (B, T)
    own = pad_sequence(own, batch_first=True)
    prompts = [torch.tensor(prompt) for prompt in numbers]
    known = pad_sequence([torch.ones_like(ids) for ids in prompts], batch_first=True)  # (P, S)
    prompts = pad_sequence(prompts, batch_first=True)
    read = model.model(prompts, attention_mask=known, use_cache=True)
    read.past_key_values.batch_select_indices(torch.tensor(of_row))
    lengths = known.sum(1)[of_row]  # (B,)
    # A completion's tokens have the positions after its prompt, not after the padding.
    written = model.model(own, attention_mask=torch.cat([known[of_row], mask], 1),
                          position_ids=lengths[:, None] + torch.arange(own.shape[1]),
                          past_key_values=read.past_key_values)
    # The end of the prompt predicts the first token of a completion, and each token the next one.
    first = read.last_hidden_state[of_row, lengths - 1]
    hidden = torch.cat([first[:, None], written.last_hidden_state[:, :-1]], 1)
    mask = mask.bool()
    logits = model.lm_head(hidden[mask]).float() / cfg.temperature  # (N, V)
    logps = -F.cross_entropy(logits, own[mask], reduction="none")
    return torch.zeros(batch.ids.shape).masked_scatter(batch.mask, logps)


if __name__ == "__main__":
    grpo_sg.compute_logps = compute_logps
    grpo_sg.main()
