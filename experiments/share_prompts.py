"""Run grpo_sg.py on a CPU with updates that read what prompts have in common once.

    python -m experiments.share_prompts --task lesson/real_model.py --model FOLDER

token_logps reads a prompt again for each completion of a group. The real model's prompts are five
times as long as its completions, and differ only in the last turn. Here, in each micro-batch, the
tokens that all prompts begin with are read once, then the end of each prompt once, then each
completion. The log-probabilities and gradients are the same up to rounding.
"""
import os

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

import grpo_sg


def pad(rows):
    """Return rows of token ids padded on the right, and their mask: both (rows, longest)."""
    mask = [torch.ones_like(row) for row in rows]
    return pad_sequence(rows, batch_first=True), pad_sequence(mask, batch_first=True)


def compute_logps(model, batch, cfg):
    """Compute token_logps of a Batch on the CPU, (B, T) in nats. The model has its decoder in
    model.model, and the completions have no tokens of a tool."""
    numbers, of_row, own = {}, [], []  # {prompt: its number}, that of each row, its completion
    for ids, mask in zip(batch.ids, batch.mask):
        start, end = mask.nonzero()[0].item(), mask.nonzero()[-1].item() + 1
        of_row.append(numbers.setdefault(tuple(ids[:start].tolist()), len(numbers)))
        own.append(ids[start:end])
    # At least one token of a prompt must be left, because its end predicts the first token.
    common = min(len(os.path.commonprefix(list(numbers))), min(map(len, numbers)) - 1)
    read = model.model(torch.tensor([list(numbers)[0][:common]]), use_cache=True)
    cache = read.past_key_values
    cache.batch_select_indices(torch.zeros(len(numbers), dtype=torch.long))
    ends, ends_mask = pad([torch.tensor(prompt[common:]) for prompt in numbers])  # (P, S)
    known = torch.cat([ends_mask.new_ones(len(ends), common), ends_mask], 1)
    position = common + torch.arange(ends.shape[1])[None].expand(ends.shape)
    read = model.model(ends, attention_mask=known, position_ids=position, past_key_values=cache)
    cache.batch_select_indices(torch.tensor(of_row))
    lengths = ends_mask.sum(1)[of_row]  # (B,)
    own, mask = pad(own)  # (B, T)
    # A completion's tokens have the positions after its prompt, not after the padding.
    position = common + lengths[:, None] + torch.arange(own.shape[1])
    written = model.model(own, attention_mask=torch.cat([known[of_row], mask], 1),
                          position_ids=position, past_key_values=cache)
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
