"""Compute (not measure) which models fit on a GPU, and with which settings.

    python -m support.memory [FOLDER OR NAME OF A MODEL ...]

A cell has the largest --tokens_per_micro_batch and --sample_batch that leave a tenth of the
memory free if every completion reaches --max_new_tokens; gc: with --gradient_checkpointing.
"""
import argparse

import transformers

TOKENS, ROWS = (2048, 3072, 4096, 8192, 16384), (16, 32, 64, 128, 256, 512)
CARDS = {"T4, 16 GB": 16, "16 GB": 16, "24 GB": 24, "40 GB": 40, "80 GB": 80}


def peaks(config, *, tokens=1, rows=1, new=2048, prompt=300, checkpointing=False, beta=False,
          float32=False):
    """Compute the peaks of memory on a GPU, with float32 parameters and bfloat16 activations.

    Args:
        config: a transformers model's configuration.
        tokens, rows: tokens in a micro-batch, completions sampled at once.
        new, prompt: tokens of the longest completion, and of the longest text before it.
        beta, float32: a reference model for the KL; float32 activations, as on a T4 or V100.

    Returns {"sampling": GB, "update": GB}.
    """
    config = config.get_text_config()  # of a model that also reads images, the language part
    H, L, V = config.hidden_size, config.num_hidden_layers, config.vocab_size
    inner = getattr(config, "intermediate_size", None) or 4 * H
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or H // heads
    K = (getattr(config, "num_key_value_heads", None) or heads) * head  # width of the keys
    trunk = L * (2 * H * heads * head + 2 * H * K + 3 * H * inner)  # parameters of the layers
    N = trunk + H * V * (1 if config.tie_word_embeddings else 2)
    fixed = (16 if beta else 12) * N  # parameters and AdamW's two averages
    size = 4 if float32 else 2  # bytes of an activation
    copies = 0 if float32 else 2 * trunk  # autocast's bfloat16 copies of the parameters
    cache = 2 * size * K  # bytes per token and layer: a key and a value
    length = prompt + new
    # In an evaluation, every row has a different prompt.
    prefill = rows * (prompt * (3 * size * inner + 16 * H + cache * L) + 4 * V)
    # Also the copy of a layer as it grows, or the logits, their softmax, and its sums.
    decode = rows * (length * cache * L + max(length * cache, 12 * V))
    # An update: a row that is longer than a micro-batch is one by itself.
    tokens = max(tokens, length)
    # What autograd keeps of a layer per token; in float32 also the repeated keys and values.
    layer = 4 * size * inner + (44 if float32 else 30) * H + cache
    kept = tokens * L * (4 * H if checkpointing else layer)
    logits = 4 * V * tokens
    forward = copies + 2 * logits
    # The logits, their softmax and gradient; at the end, two gradients of the vocabulary
    # matrix and their sum; with checkpointing, a layer that is computed again.
    backward = max(3 * logits + (0 if checkpointing else copies), 12 * V * H - kept,
                   tokens * layer + copies / L + 4 * V * H if checkpointing else 0)
    return {"sampling": (fixed + copies + max(prefill, decode)) / 1e9,
            "update": (fixed + 4 * N + kept + max(forward, backward)) / 1e9}


def cell(config, card, **settings):
    """Return a cell of the table, for a card of this many GB."""
    for checkpointing in (False, True):
        settings["checkpointing"] = checkpointing
        tokens = [n for n in TOKENS if peaks(config, tokens=n, **settings)["update"] <= 0.9 * card]
        rows = [n for n in ROWS if peaks(config, rows=n, **settings)["sampling"] <= 0.9 * card]
        if tokens and rows:
            return f"{tokens[-1]}, {rows[-1]}{', gc' * checkpointing}"
    return "no"


def make_qwen(width, inner, layers, heads):
    return transformers.Qwen2Config(
        vocab_size=151_936, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=2, tie_word_embeddings=True)


QWEN = {"Qwen2.5-0.5B": make_qwen(896, 4864, 24, 14),
        "Qwen2.5-1.5B": make_qwen(1536, 8960, 28, 12), "Qwen2.5-3B": make_qwen(2048, 11008, 36, 16)}


def main(argv=None):
    parser = argparse.ArgumentParser(description="Compute which models fit on a GPU.")
    parser.add_argument("models", nargs="*", default=list(QWEN))
    parser.add_argument("--max_new_tokens", type=int, default=2048)
    args = parser.parse_args(argv)
    try:
        configs = {name: QWEN.get(name) or transformers.AutoConfig.from_pretrained(name)
                   for name in args.models}
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: give a folder or a hub name: {str(error).splitlines()[0]}")
    print("| computed, not measured |", " | ".join(CARDS), "|\n|---" + "|---" * len(CARDS) + "|")
    for name, config in configs.items():
        cells = [cell(config, size, new=args.max_new_tokens, float32=card.startswith("T4"))
                 for card, size in CARDS.items()]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
