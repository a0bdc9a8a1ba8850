"""Which model fits on which GPU: computed, not measured. Prints the table in the README.

    python experiments/memory.py

Counted are, for a model of N weights, L layers of width H and K key-value widths, and V words:
always, 12 N bytes (float32 weights and AdamW's two averages), 4 N more for a reference policy (--beta);
in an update, 4 N of gradients; for each token of a micro-batch 14 V for logits in bfloat16 and float32,
their log-softmax and its gradient; and 40 L H for activations, or 2 L H and one layer's with checkpointing;
while sampling, for each token of a completion in --sample_batch, 6 K L for the cache (keys stay float32
after their rotation, values are bfloat16), and as much again for one layer's copy.
A tenth of the GPU is left for all else.
"""
import functools

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

SHAPES = {"0.5B": (896, 4864, 24, 14), "1.5B": (1536, 8960, 28, 12), "3B": (2048, 11008, 36, 16)}
VOCABULARY, PROMPT, LENGTH = 151_936, 400, 2048  # LENGTH: the default of --max_new_tokens


@functools.cache
def weights(shape):
    H, inner, L, heads = shape
    config = Qwen2Config(vocab_size=VOCABULARY, hidden_size=H, intermediate_size=inner, num_hidden_layers=L,
                         num_attention_heads=heads, num_key_value_heads=2, tie_word_embeddings=True)
    with torch.device("meta"):
        return sum(p.numel() for p in Qwen2ForCausalLM(config).parameters())


def needs(shape, tokens, rows, checkpointing):
    """(GB in an update, GB while sampling) for micro-batches of `tokens` and `rows` completions at once."""
    H, _, L, heads = shape
    N = weights(shape)
    activations = 2 * L * H + 40 * H if checkpointing else 40 * L * H
    update = 16 * N + max(tokens, PROMPT + LENGTH) * (14 * VOCABULARY + activations)
    K = 2 * H // heads
    cache = rows * (PROMPT + LENGTH) * 6 * K * (L + 1)
    return update / 1e9, (12 * N + cache) / 1e9


def largest(shape, memory):
    """The settings that fit in `memory` GB, without checkpointing if possible, and of these the largest."""
    fits = [(tokens, rows, checkpointing)
            for tokens in (1024, 2048, 4096, 8192) for rows in (16, 32, 64, 128, 256, 512)
            for checkpointing in (False, True)
            if max(needs(shape, tokens, rows, checkpointing)) <= 0.9 * memory]
    best = max(fits, key=lambda fit: (not fit[2], fit[0], fit[1]), default=None)
    return f"{best[0]}, {best[1]}{', gc' * best[2]}" if best else "no"


def main():
    print("| Qwen2.5 | 16 GB | 24 GB | 80 GB |\n|---|---|---|---|")
    for name, shape in SHAPES.items():
        print(f"| {name} | {' | '.join(largest(shape, memory) for memory in (16, 24, 80))} |")


if __name__ == "__main__":
    main()
