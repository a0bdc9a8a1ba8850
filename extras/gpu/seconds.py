"""Compute (not measure) how long a run takes on a GPU.

    python -m extras.gpu.seconds            the table of hardware.md
    python -m extras.gpu.seconds --check    compare one case with an earlier formula

Sampling: a step samples B completions, with mean length m and at most T tokens each, in chunks
of --sample_batch rows. The time of a decode step is the sum of three terms:

- 43 kernel launches per layer, at least 4 microseconds each in a recording;
- reading the parameters, and each row's keys and values, at 0.7 of the memory bandwidth;
- 2 operations per parameter and row, at 0.5 of the peak.

Every chunk takes T decode steps, because some completion is always cut off. Lengths fall off
exponentially, and finished rows keep decoding until half of the rows are finished, so there are
1.4 rows for each unfinished one.

Updates: an update does 6 operations per parameter and token (2 forward, 4 backward), 2 more with
--gradient_checkpointing, 2 for old log-probabilities (not in the rollout's first update), and 2
with a KL, at 0.5 of the peak. All groups are assumed to have different rewards.

The vocabulary matrix, in float32, is computed separately, and in an update only for
completions. Left out: attention's operations, which are few at these lengths, and all work on
the host.
"""
import argparse
import math
import shlex

import grpo_sg
from extras.gpu import graph, memory
from support import cli

LAUNCH = 4e-6     # seconds of a small kernel in a recording
KERNELS = 43      # kernels per layer in a decode step
BANDWIDTH = 0.7   # reached fraction of the data sheet's bandwidth
PEAK = 0.5
GOING_ALONG = 1.4

# From data sheets: GB; bytes per second; operations per second in bfloat16 (T4: float32);
# operations per second for float32 matrices, with TF32 if the card has it.
CARDS = {"T4": (16, 0.32e12, 8.1e12, 8.1e12),
         "RTX 3090": (24, 0.94e12, 71e12, 35.6e12),
         "RTX 4090": (24, 1.01e12, 165e12, 82.6e12),
         "A100": (80, 2.04e12, 312e12, 156e12),
         "H100": (80, 3.35e12, 989e12, 495e12),
         "H200": (141, 4.8e12, 989e12, 495e12)}

GSM8K = "--task math --data gsm8k --max_new_tokens 512 --eval_every 25 --eval_samples 0"
SMALL = f"grpo_sg.py --model Qwen/Qwen2.5-0.5B-Instruct {GSM8K}"
LARGE = f"grpo_sg.py --model Qwen/Qwen2.5-1.5B-Instruct {GSM8K}"
# The cards; the size of the model; the mean tokens of a prompt and of a completion, and the
# tokens of the longest prompt, all guesses; the command.
LADDER = [
    (["T4"], "0.5B", (130, 220, 300),
     f"{SMALL} --prompts 16 --steps 200 --sample_batch 128 --tokens_per_micro_batch 1024"),
    (["RTX 3090", "RTX 4090"], "0.5B", (130, 220, 300), f"{SMALL} --sample_batch 512"),
    (["A100", "H100"], "1.5B", (130, 220, 300),
     f"{LARGE} --sample_batch 512 --tokens_per_micro_batch 8192")]
TEST = 1319  # problems of GSM8K's test set
# What an earlier formula gave for the case of compute_check.
EARLIER = {"A100": (15, 9), "H100": (10, 3.5), "RTX 4090": (18, 16), "RTX 3090": (24, 28)}


def decode(config, card, rows, columns):
    """Return the seconds of a decode step with these numbers of rows and of columns of keys
    and values."""
    _, bandwidth, peak, peak_float32 = CARDS[card]
    trunk, head, cache = sizes(config, card)
    size = 4 if card == "T4" else 2
    logits = 20 * config.vocab_size  # bytes per row, written and read before a token is drawn
    moved = size * trunk + 4 * head + rows * (columns * cache + logits)
    computed = rows * (2 * trunk / peak + 2 * head / peak_float32)
    launched = KERNELS * config.num_hidden_layers * LAUNCH
    return launched + moved / (BANDWIDTH * bandwidth) + computed / PEAK


def sample(config, card, rows, prompt, mean, cfg):
    """Return the seconds of sampling this number of completions."""
    steps = math.ceil(rows / cfg.sample_batch) * cfg.max_new_tokens
    rows_a_step = GOING_ALONG * rows * mean / steps
    columns = prompt + mean + graph.ROOM / 2
    return steps * decode(config, card, rows_a_step, columns)


def update(config, card, rows, prompt, mean, cfg):
    """Return the seconds of the updates on this number of completions."""
    _, _, peak, peak_float32 = CARDS[card]
    trunk, head, _ = sizes(config, card)
    passes = 6 + 2 * (cfg.updates - 1) / cfg.updates
    passes += 2 * cfg.gradient_checkpointing + 2 * (cfg.beta > 0)
    trunk_seconds = rows * (prompt + mean) * passes * trunk / peak
    head_seconds = rows * mean * passes * head / peak_float32
    return (trunk_seconds + head_seconds) / PEAK


def sizes(config, card):
    """Return the numbers of parameters in the layers and in the vocabulary matrix, and the
    bytes of a token's keys and values in all layers."""
    trunk, K = memory.layer_parameters(config)
    size = 4 if card == "T4" else 2
    head = config.vocab_size * config.hidden_size
    return trunk, head, 2 * size * K * config.num_hidden_layers


def whole_run(config, card, prompt, mean, cfg):
    """Return (seconds of sampling per step, seconds of updates per step, hours of the run). The
    run includes its evaluations, each with a group for each of three more problems, and the
    test before and after."""
    rows = cfg.prompts * cfg.group_size
    sampling = sample(config, card, rows, prompt, mean, cfg)
    updates = update(config, card, rows, prompt, mean, cfg)
    watched = sample(config, card, 3 * cfg.group_size, prompt, mean, cfg)
    valid = sample(config, card, cfg.eval_problems, prompt, mean, cfg) + watched
    test = sample(config, card, TEST * (1 + cfg.eval_samples), prompt, mean, cfg) + watched
    evaluations = (cfg.steps - 1) // cfg.eval_every * valid
    whole = cfg.steps * (sampling + updates) + evaluations + 2 * test
    return sampling, updates, whole / 3600


def print_ladder():
    print("| card | Instruct model | GB of memory | sampling, seconds per step "
          "| updates, seconds per step | steps | hours |\n|---|---|---|---|---|---|---|")
    for cards, size, (prompt, mean, longest), command in LADDER:
        config, cfg = memory.qwen(size), cli.parse(shlex.split(command)[1:])
        for card in cards:
            needs = memory.peaks(
                config, tokens=cfg.tokens_per_micro_batch, rows=cfg.sample_batch,
                new=cfg.max_new_tokens, prompt=longest,
                checkpointing=cfg.gradient_checkpointing, float32=card == "T4")
            sampling, updates, hours = whole_run(config, card, prompt, mean, cfg)
            print(f"| {card}, {CARDS[card][0]} GB | Qwen2.5-{size} | {max(needs.values()):.0f} "
                  f"| {sampling:.0f} | {updates:.0f} | {cfg.steps} | {hours:.1f} |")


def compute_check(card, **settings):
    """Return the seconds of sampling and of updates in a step: 64 x 8 completions of
    Qwen2.5-0.5B, at most 2,048 tokens long, 451 on average, all sampled at once."""
    cfg = grpo_sg.Config(**{"sample_batch": 512, **settings})
    given = memory.qwen("0.5B"), card, 512, 250, 451, cfg
    return sample(*given), update(*given)


def print_check():
    print("| card | sampling, updates | earlier |\n|---|---|---|")
    for card, before in EARLIER.items():
        sampling, updates = compute_check(card)
        print(f"| {card} | {sampling:.1f}, {updates:.1f} | {before[0]}, {before[1]} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with an earlier formula")
    print_check() if parser.parse_args().check else print_ladder()


if __name__ == "__main__":
    main()
