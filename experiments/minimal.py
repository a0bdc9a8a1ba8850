"""GRPO-SG in a project of your own: all that is needed around sections 1 to 3 of grpo_sg.py.

    python -m experiments.minimal        ten seconds: an untrained model learns to count on to 7

To copy it, put those sections, with the imports that they need, in place of the import of grpo_sg.
"""
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_sg import group_advantages, grpo_sg_loss, sample, token_logps, token_weights

torch.manual_seed(0)
model = Qwen2ForCausalLM(Qwen2Config(vocab_size=8, hidden_size=64, intermediate_size=128, num_hidden_layers=2))
model.eval()  # no dropout, in training too: with it r would not be 1 where nothing has changed
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0)
temperature = 1.0  # of sampling and of all log-probabilities, or r would compare two different distributions


def reward(prompt, completion):
    """The share of tokens that are one more than the token before: 3 is to be continued by 4 5 6 7 0."""
    return sum(b == (a + 1) % 8 for a, b in zip(prompt + completion, completion)) / len(completion)


for step in range(1, 32):
    prompts = torch.randint(1, 8, (16, 1)).tolist()  # P = 16 lists of token ids
    completions = sample(model, prompts, n=8, max_new_tokens=8, stop_ids={0}, temperature=temperature)
    pairs = list(zip([prompt for prompt in prompts for _ in range(8)], completions))  # B = P x G = 128
    rewards = torch.tensor([reward(*pair) for pair in pairs])  # (B,)
    advantages = group_advantages(rewards.view(16, 8)).flatten()  # (P, G) -> (B,)
    ids = pad_sequence([torch.tensor(p + c) for p, c in pairs], batch_first=True)  # (B, T)
    mask = [torch.tensor([False] * len(p) + [True] * len(c)) for p, c in pairs]
    mask = pad_sequence(mask, batch_first=True)  # (B, T), True on sampled tokens, the stop token included
    with torch.no_grad():
        old_logps = token_logps(model, ids, mask, temperature=temperature)  # (B, T), before the first update
    for _ in range(2):  # updates on the same completions
        logps = token_logps(model, ids, mask, temperature=temperature)  # (B, T), with gradient
        w = token_weights(logps)
        loss, stats = grpo_sg_loss(logps, old_logps, advantages, mask, weights=w, clip_high=0.24)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if step % 10 == 1:
        print(f"step {step}: mean reward {rewards.mean():.2f}, mean weight {stats['weight_mean']:.2f}")
