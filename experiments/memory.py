"""Which model fits on which GPU, with a tenth of it to spare: computed, not measured. Prints the README's table.

    python experiments/memory.py

A cell has --tokens_per_micro_batch and --sample_batch, then gc where --gradient_checkpointing and offload where
--offload is needed, too. The formula is that of support/memory.py, for prompts of 300 tokens and completions of
2,048.
"""
import os
import sys
from types import SimpleNamespace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.memory import peaks

SHAPES = {"0.5B": (896, 4864, 24, 14), "1.5B": (1536, 8960, 28, 12), "3B": (2048, 11008, 36, 16)}


def largest(shape, card):
    """The largest settings whose peaks leave a tenth of `card` GB free, without checkpointing and with the
    moments on the GPU, where that is possible; "no" where nothing fits."""
    H, inner, L, heads = shape
    config = SimpleNamespace(hidden_size=H, intermediate_size=inner, num_hidden_layers=L, vocab_size=151_936,
                             num_attention_heads=heads, num_key_value_heads=2, tie_word_embeddings=True)
    for offload in (False, True):
        for checkpointing in (False, True):
            def fits(tokens, rows):
                cfg = SimpleNamespace(tokens_per_micro_batch=tokens, sample_batch=rows, max_new_tokens=2048, beta=0,
                                      gradient_checkpointing=checkpointing, offload=offload)
                return peaks(config, cfg)
            tokens = [t for t in (2048, 3072, 4096, 8192, 16384) if fits(t, 1)["update"] <= 0.9 * card]
            rows = [r for r in (16, 32, 64, 128, 256, 512) if fits(1, r)["sampling"] <= 0.9 * card]
            if tokens and rows:
                return f"{tokens[-1]}, {rows[-1]}{', gc' * checkpointing}{', offload' * offload}"
    return "no"


def main():
    cards = (16, 24, 40, 80)
    print(f"| Qwen2.5 | {' | '.join(f'{card} GB' for card in cards)} |\n|---|{'---|' * len(cards)}")
    for name, shape in SHAPES.items():
        print(f"| {name} | {' | '.join(largest(shape, card) for card in cards)} |")


if __name__ == "__main__":
    main()
