"""How much memory a language model takes on a GPU while it samples and in an update, computed from its
shape; test_memory.py holds it to within 10 % of what is allocated."""
import torch


def peaks(config, cfg, prompt=300):
    """{"sampling": GB, "update": GB}, the peaks on a GPU that computes in bfloat16 over float32 weights.

    config: of a transformers model. cfg: has tokens_per_micro_batch, sample_batch, max_new_tokens,
    gradient_checkpointing, beta and (if moments may be kept in host memory) offload. prompt: tokens of the
    longest. A cache that all rows fill to the end, as if no completion ended before max_new_tokens: most end
    long before.
    """
    H, L, V = config.hidden_size, config.num_hidden_layers, config.vocab_size
    heads = config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or 4 * H
    head = getattr(config, "head_dim", None) or H // heads
    K = (getattr(config, "num_key_value_heads", None) or heads) * head  # width of keys, of values
    trunk = L * (2 * H * heads * head + 2 * H * K + 3 * H * inner)
    N = trunk + H * V * (1 if config.tie_word_embeddings else 2)
    # float32 weights, those of the reference, AdamW's two averages, and autocast's copies of the trunk in
    # bfloat16
    weights, copies = 4 * N * (2 if cfg.beta else 1), 2 * trunk
    moments = 0 if getattr(cfg, "offload", False) else 8 * N
    rows, length = cfg.sample_batch, prompt + cfg.max_new_tokens
    cache = 4 * K  # bytes a token and layer: a key and a value in bfloat16
    # An evaluation has one row for each prompt, all of which are read at once.
    prefill = rows * prompt * (6 * inner + 16 * H + cache * L) + 4 * V * rows
    decode = rows * length * cache * (L + 1) + 16 * V * rows  # logits to cdf, in float32
    tokens = max(cfg.tokens_per_micro_batch, length)  # a longer row is a micro-batch of its own
    layer = 8 * inner + 30 * H + cache  # what autograd saves, in bytes a token
    logits = 4 * V * tokens  # in float32; at the peak of the backward pass their softmax and two gradients
    kept = tokens * (4 * H * L if cfg.gradient_checkpointing else L * layer)
    forward = copies + 2 * logits
    backward = max(3 * logits + (0 if cfg.gradient_checkpointing else copies),
                   12 * V * H - kept,  # at its end: two gradients of the vocabulary matrix, their sum
                   tokens * layer + copies / L + 4 * V * H if cfg.gradient_checkpointing else 0)
    fixed = weights + moments
    return {"sampling": (fixed + copies + max(prefill, decode)) / 1e9,
            "update": (fixed + 4 * N + kept + max(forward, backward)) / 1e9}


def say(model, cfg):
    """At the start of a run on a GPU, print what it will need and what there is."""
    if torch.cuda.is_available():
        needs = peaks(model.config, cfg)
        print(f"GPU memory: {torch.cuda.mem_get_info()[1] / 1e9:.1f} GB; expected at the peak of sampling "
              f"{needs['sampling']:.1f} and of an update {needs['update']:.1f}, where completions grow to "
              "--max_new_tokens")
