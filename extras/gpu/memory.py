"""Compute (not measure) which batch sizes fit on a GPU with a tenth of its memory to spare.

    python -m extras.gpu.memory                                  the table of README.md
    python -m extras.gpu.memory --gpu 12                         Qwen2.5-0.5B on 12 GB
    python -m extras.gpu.memory --model FOLDER_OR_NAME --gpu 24  another model
    python -m extras.gpu.memory --gpu 16 --float32               on a T4

A cell has --tokens_per_micro_batch and --sample_batch, then gc if it needs
--gradient_checkpointing, and offload if it needs --offload. It assumes the worst case: every
completion reaches --max_new_tokens. Reads only the model's configuration.
test_memory.py checks that `peaks` is within 10% of what a sampler and an update allocate. The
CUDA-graph sampler reads long prompts in chunks, so it may need less.
"""
import argparse
import sys

from transformers import AutoConfig, Qwen2Config

TOKENS = (2048, 3072, 4096, 8192, 16384)
ROWS = (16, 32, 64, 128, 256, 512)
SHAPES = {"0.5B": (896, 4864, 24, 14), "1.5B": (1536, 8960, 28, 12),
          "3B": (2048, 11008, 36, 16)}


def peaks(config, *, tokens=1, rows=1, new=2048, prompt=300, checkpointing=False, offload=False,
          beta=False, float32=False):
    """Compute the peak memory on a GPU, with float32 parameters and bfloat16 activations.

    Args:
        config: a transformers model's configuration.
        tokens: tokens in a micro-batch.
        rows: completions sampled at once.
        new, prompt: tokens of the longest completion and of the longest prompt.
        beta: whether a reference model for the KL is in memory.
        float32: float32 activations, for cards before Ampere (T4, V100).

    Returns:
        {"sampling": GB, "update": GB}.
    """
    config = config.get_text_config()
    H, L, V = config.hidden_size, config.num_hidden_layers, config.vocab_size
    inner = inner_width(config)
    trunk, K = layer_parameters(config)
    N = trunk + H * V * (1 if config.tie_word_embeddings else 2)
    parameters = 4 * N * (2 if beta else 1)
    moments = 0 if offload else 8 * N  # AdamW's two averages
    size = 4 if float32 else 2  # bytes of a key, of an activation
    copies = 0 if float32 else 2 * trunk  # the linear layers' parameters in bfloat16
    fixed = parameters + moments
    length = prompt + new
    cache = 2 * size * K  # bytes per token and layer: a key and a value
    # The worst case is an evaluation, in which every row has a different prompt.
    read = 3 * size * inner + 16 * H  # bytes per token
    prefill = rows * prompt * read + rows * prompt * cache * L + 4 * V * rows
    # Also the copy of a layer as it grows, or the logits, their softmax, and its sums.
    decode = rows * length * cache * L + rows * max(length * cache, 12 * V)
    tokens = max(tokens, length)  # a longer row forms its own micro-batch
    # What autograd saves, in bytes per token; in float32 also the repeated keys and values.
    layer = 4 * size * inner + (44 if float32 else 30) * H + cache
    # Float32; at the backward pass's peak also their softmax, and two gradients.
    logits = 4 * V * tokens
    kept = tokens * (4 * H * L if checkpointing else L * layer)
    forward = copies + 2 * logits
    backward = max(3 * logits + (0 if checkpointing else copies),
                   12 * V * H - kept,  # at the end: two gradients of that matrix, and their sum
                   tokens * layer + copies / L + 4 * V * H if checkpointing else 0)
    return {"sampling": (fixed + copies + max(prefill, decode)) / 1e9,
            "update": (fixed + 4 * N + kept + max(forward, backward)) / 1e9}


def inner_width(config):
    return getattr(config, "intermediate_size", None) or 4 * config.hidden_size


def layer_parameters(config):
    """Return the number of parameters in all layers, and the width of keys and of values."""
    H, heads = config.hidden_size, config.num_attention_heads
    head = getattr(config, "head_dim", None) or H // heads
    K = (getattr(config, "num_key_value_heads", None) or heads) * head
    each = 2 * H * heads * head + 2 * H * K + 3 * H * inner_width(config)
    return config.num_hidden_layers * each, K


def largest(config, card, **given):
    """Return the largest (tokens, rows) whose peaks leave a tenth of `card` GB free; 0 if even
    the smallest does not fit."""
    fitting = [t for t in TOKENS if peaks(config, tokens=t, **given)["update"] <= 0.9 * card]
    sampled = [r for r in ROWS if peaks(config, rows=r, **given)["sampling"] <= 0.9 * card]
    return max(fitting, default=0), max(sampled, default=0)


def cell(config, card, float32):
    """Return a cell of the table, preferably without offloading, then without checkpointing."""
    for offload in (False, True):
        for checkpointing in (False, True):
            tokens, rows = largest(config, card, checkpointing=checkpointing, offload=offload,
                                   float32=float32)
            if tokens and rows:
                return f"{tokens}, {rows}{', gc' * checkpointing}{', offload' * offload}"
    return "no"


def print_table():
    cards = (16, 24, 40, 80)
    names = ["T4, 16 GB", *(f"{card} GB" for card in cards)]
    print(f"| Qwen2.5 | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for name in SHAPES:
        config = qwen(name)
        cells = [cell(config, 16, float32=True)]
        cells += [cell(config, card, float32=False) for card in cards]
        print(f"| {name} | {' | '.join(cells)} |")


def qwen(name):
    """Return the configuration of Qwen2.5 in a size of SHAPES."""
    H, inner, L, heads = SHAPES[name]
    return Qwen2Config(
        hidden_size=H, intermediate_size=inner, num_hidden_layers=L, num_attention_heads=heads,
        num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True)


def print_model(config, card, given):
    print(f"| of {card:g} GB | tokens_per_micro_batch | GB | sample_batch | GB |")
    print("|---|---|---|---|---|")
    for offload in (False, True):
        for checkpointing in (False, True):
            how = {"checkpointing": checkpointing, "offload": offload, **given}
            tokens, rows = largest(config, card, **how)
            needs = peaks(config, tokens=tokens or TOKENS[0], rows=rows or ROWS[0], **how)
            flags = " --gradient_checkpointing" * checkpointing + " --offload" * offload
            update = tokens or f"{TOKENS[0]} does not fit"
            sampling = rows or f"{ROWS[0]} do not fit"
            print(f"| {flags.strip() or 'no flag'} | {update} | {needs['update']:.1f} "
                  f"| {sampling} | {needs['sampling']:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a folder or a hub name (Qwen2.5-0.5B)")
    parser.add_argument("--gpu", type=float, default=24, help="GB of the card (%(default)s)")
    parser.add_argument("--prompt", type=int, default=300,
                        help="tokens of the longest prompt (%(default)s)")
    parser.add_argument("--max_new_tokens", type=int, default=2048,
                        help="most tokens of a completion (%(default)s)")
    parser.add_argument("--beta", action="store_true", help="with a reference model for the KL")
    parser.add_argument("--float32", action="store_true",
                        help="for cards without bfloat16 (T4, V100)")
    given = parser.parse_args()
    if given.gpu <= 0 or given.prompt <= 0 or given.max_new_tokens <= 0:
        parser.error("--gpu, --prompt and --max_new_tokens must be above 0")
    if len(sys.argv) == 1:
        return print_table()
    try:
        config = qwen("0.5B")
        if given.model:
            config = AutoConfig.from_pretrained(given.model)
    except Exception as error:  # unknown name, no network, unsupported model: each has its own type
        parser.error(f"cannot read the configuration of --model {given.model}: give a folder "
                     "written by save_pretrained, or a hub name and a network "
                     f"({str(error).splitlines()[0]})")
    print(f"{given.model or 'Qwen2.5-0.5B'}: the largest that fit, with a tenth to spare\n")
    print_model(config, given.gpu, {
        "prompt": given.prompt, "new": given.max_new_tokens, "beta": given.beta,
        "float32": given.float32})


if __name__ == "__main__":
    main()
