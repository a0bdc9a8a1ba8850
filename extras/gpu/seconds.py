"""How long a run takes on a GPU: computed, not measured.

    python -m extras.gpu.seconds            the table of hardware.md
    python -m extras.gpu.seconds --check    one case beside what another formula had said

A step samples B completions, of a mean length m and at most T tokens each, in parts of
--sample_batch rows. A decode step of a part launches 43 kernels a layer, each of at least 4
microseconds in a recording; it reads the parameters, and of each row the keys and values, at
.7 of the memory's bandwidth; and it does 2 operations a parameter and row at .5 of the peak.
These three are added. Every part takes T decode steps, as some completion is always cut
off; lengths fall off exponentially, and rows that have ended go along until half have: 1.4
rows for one. An update does 6 operations a parameter and token (2 forward, 4 backward), 2 more
with --gradient_checkpointing, 2 for old log-probabilities of all but the first share, and 2
with a KL, at .5 of the peak; no group is taken to have equal rewards. The vocabulary
matrix, in float32, counts by itself, and in an update for completions alone. Attention's
operations, which are few at these lengths, and all that a host does between are left out.
"""
import argparse
import math
import shlex

import grpo_sg
from extras.gpu import graph, memory
from support import cli

LAUNCH = 4e-6     # seconds of a small kernel in a recording
KERNELS = 43      # of a decode step, a layer
BANDWIDTH = 0.7   # of the data sheet's, that is reached
PEAK = 0.5
GOING_ALONG = 1.4

# From data sheets: GB; bytes a second; operations a second in bfloat16 (of a T4 in float32),
# and of matrices in float32, by TF32 where the card has it.
CARDS = {"T4": (16, 0.32e12, 8.1e12, 8.1e12),
         "RTX 3090": (24, 0.94e12, 71e12, 35.6e12),
         "RTX 4090": (24, 1.01e12, 165e12, 82.6e12),
         "A100": (80, 2.04e12, 312e12, 156e12),
         "H100": (80, 3.35e12, 989e12, 495e12),
         "H200": (141, 4.8e12, 989e12, 495e12)}

GSM8K = "--task math --data gsm8k --max_new_tokens 512 --eval_every 25 --eval_samples 0"
SMALL = f"grpo_sg.py --model Qwen/Qwen2.5-0.5B-Instruct {GSM8K}"
LARGE = f"grpo_sg.py --model Qwen/Qwen2.5-1.5B-Instruct {GSM8K}"
# The cards; the size of the model; the mean number of tokens of prompts and of completions,
# which are guesses, and of the longest prompt; the command.
LADDER = [
    (["T4"], "0.5B", (130, 220, 300),
     f"{SMALL} --prompts 16 --steps 200 --sample_batch 128 --tokens_per_micro_batch 1024"),
    (["RTX 3090", "RTX 4090"], "0.5B", (130, 220, 300), f"{SMALL} --sample_batch 512"),
    (["A100", "H100"], "1.5B", (130, 220, 300),
     f"{LARGE} --sample_batch 512 --tokens_per_micro_batch 8192")]
TEST = 1319  # problems of GSM8K's test set
# By another formula, for the case of compute_check.
EARLIER = {"A100": (15, 9), "H100": (10, 3.5), "RTX 4090": (18, 16), "RTX 3090": (24, 28)}


def decode(config, card, rows, columns):
    """Seconds of a decode step of so many rows, with so many columns of keys and values."""
    _, bandwidth, peak, peak_float32 = CARDS[card]
    trunk, head, cache = sizes(config, card)
    size = 4 if card == "T4" else 2
    logits = 20 * config.vocab_size  # bytes of a row, written and read until a token is drawn
    moved = size * trunk + 4 * head + rows * (columns * cache + logits)
    computed = rows * (2 * trunk / peak + 2 * head / peak_float32)
    launched = KERNELS * config.num_hidden_layers * LAUNCH
    return launched + moved / (BANDWIDTH * bandwidth) + computed / PEAK


def sample(config, card, rows, prompt, mean, cfg):
    """Seconds of sampling so many completions."""
    steps = math.ceil(rows / cfg.sample_batch) * cfg.max_new_tokens
    rows_a_step = GOING_ALONG * rows * mean / steps
    columns = prompt + mean + graph.ROOM / 2
    return steps * decode(config, card, rows_a_step, columns)


def update(config, card, rows, prompt, mean, cfg):
    """Seconds of the updates on so many completions."""
    _, _, peak, peak_float32 = CARDS[card]
    trunk, head, _ = sizes(config, card)
    passes = 6 + 2 * (cfg.updates - 1) / cfg.updates
    passes += 2 * cfg.gradient_checkpointing + 2 * (cfg.beta > 0)
    trunk_seconds = rows * (prompt + mean) * passes * trunk / peak
    head_seconds = rows * mean * passes * head / peak_float32
    return (trunk_seconds + head_seconds) / PEAK


def sizes(config, card):
    """The numbers of parameters in the layers and in the vocabulary matrix, and the bytes of a
    token's keys and values in all layers."""
    trunk, K = memory.layer_parameters(config)
    size = 4 if card == "T4" else 2
    head = config.vocab_size * config.hidden_size
    return trunk, head, 2 * size * K * config.num_hidden_layers


def whole_run(config, card, prompt, mean, cfg):
    """(seconds of a step in sampling, in updates; hours of the run with its evaluations,
    each with a group of three more problems, and the test before and after)."""
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
    print("| card | Instruct model | GB of memory | sampling, seconds a step "
          "| updates, seconds a step | steps | hours |\n|---|---|---|---|---|---|---|")
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
    """Seconds of a step in sampling and in updates: 64 x 8 completions of Qwen2.5-0.5B, of
    at most 2,048 tokens, 451 in the mean, all sampled at once."""
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
    parser.add_argument("--check", action="store_true", help="beside an earlier computation")
    print_check() if parser.parse_args().check else print_ladder()


if __name__ == "__main__":
    main()
