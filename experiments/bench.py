"""How fast grpo_sg.py is: against model.generate and TRL.

    python -m experiments.bench                 all of it, about 15 minutes on one core of a CPU
    python -m experiments.bench --only step     sampling, or step (which needs TRL)

The models are Qwen2 with random parameters, 4 layers of width 256, in float32 on one pinned
core; there are 8 prompts with 8 completions each. The sides
of a comparison take turns, in alternating order. The result is the median ratio over --rounds.
results/bench.json keeps every run. It also has the results of comparisons that are no longer here:
token_logps with a full log-softmax (commit 7e9e938), sampling with model.generate_batch, and steps
with a KL and two updates (commit ec891d9).
"""
import argparse
import copy
import datetime
import json
import math
import os
import pathlib
import random
import statistics
import tempfile
import time
from functools import partial

import torch
import transformers

import grpo_sg as G
import tasks
from experiments.analysis import RESULTS, name_commit
from support import tiny

SIZES = {"2,048 words": 2048, "151,936 words": 151_936}
SHORTER = {2048: 1, 151_936: 8}  # divisors of the lengths, because a large vocabulary is slow
END, P, N = 0, 8, 8              # the stop token; prompts, completions of each
FIXED, MEAN, CAP = 128, 64, 512  # a fixed length; mean and cap of the long-tailed lengths


def build(words, mean_length=None):
    """Return a Qwen2 with random parameters that ends with probability 1 / mean_length at every
    token (None: never). A bias of lm_head makes the lengths geometric with every sampler."""
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=words, hidden_size=256, intermediate_size=768, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        initializer_range=0.1, bos_token_id=None, eos_token_id=END, pad_token_id=END)).eval()
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(words))
    # With larger embeddings a random model repeats its last token forever.
    with torch.no_grad():
        model.lm_head.weight.mul_(0.2)[END] = 0
        logits = model(input_ids=torch.randint(1, words, (4, 64))).logits
        others = logits[..., END + 1:].logsumexp(-1).mean()
        model.lm_head.bias[END] = others - math.log(mean_length - 1) if mean_length else -30.0
    return model


def draw_prompts(words, count=P):
    """Return prompts of 24 to 40 random tokens. Their lengths differ, so every side must pad."""
    rng = random.Random(0)
    return [rng.choices(range(2, words), k=rng.randint(24, 40)) for _ in range(count)]


def timed(work, *arguments):
    """Return {"seconds", "tokens"} of a function that returns its number of tokens."""
    started = time.perf_counter()
    tokens = work(*arguments)
    return {"seconds": time.perf_counter() - started, "tokens": tokens}


def compare(name, sides, rounds):
    """Print and return the ratio of each side's seconds per token to those of "ours". The sides are
    functions that return {"seconds", "tokens"}. The first round is a warm-up."""
    runs = {side: [] for side in sides}
    for i in range(rounds + 1):
        for side in list(sides)[::1 if i % 2 else -1]:
            runs[side].append(sides[side]())
    runs = {side: timings[1:] for side, timings in runs.items()}
    result = {"runs": runs}
    ours = [run["seconds"] / run["tokens"] for run in runs["ours"]]
    for side in list(sides)[1:]:
        ratios = [run["seconds"] / run["tokens"] / x for run, x in zip(runs[side], ours)]
        result[f"{side} / ours"] = [statistics.median(ratios), min(ratios), max(ratios)]
        numbers = "{:.2f} ({:.2f} to {:.2f})".format(*result[f"{side} / ours"])
        print(f"  {name}, {side} / ours: {numbers}", flush=True)
    return result


# ---- 1. Sampling ----

def draw_ours(model, prompts, length):
    return sum(map(len, G.sample(model, prompts, n=N, max_new_tokens=length, stop_ids=[END])))


def draw_theirs(model, prompts, length):
    """Sample with model.generate, from the unchanged distribution."""
    width = max(map(len, prompts))
    ids = torch.tensor([[END] * (width - len(p)) + p for p in prompts])
    rows = model.generate(
        input_ids=ids, attention_mask=(ids != END).long(), max_new_tokens=length,
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=N)
    rows = rows[:, width:].tolist()
    return sum(row.index(END) + 1 if END in row else len(row) for row in rows)


def bench_sampling(rounds):
    """Compare grpo_sg.sample with model.generate, in seconds per token, with the same model,
    prompts and distribution of lengths. Padding after a row's end is not counted."""
    results = {}
    for name, words in SIZES.items():
        tail = MEAN // SHORTER[words]
        for law, mean, length in (("fixed", None, FIXED), ("long tail", tail, CAP)):
            arguments = build(words, mean), draw_prompts(words), length // SHORTER[words]
            sides = {"ours": partial(timed, draw_ours, *arguments),
                     "generate": partial(timed, draw_theirs, *arguments)}
            results[f"{name}, {law}"] = compare(f"{name}, {law}", sides, rounds)
    return results


# ---- 2. A whole step against TRL ----

def verify(text, answer):
    return tasks.Verdict(len(text) % 2 == 0, True)  # a coin flip: few groups have equal rewards


def reward(completions, **_):  # as TRL asks for it
    return [3.0 if len(text) % 2 == 0 else -0.5 for text in completions]


def step_of_ours(policy, task, cfg):
    row, = G.train(policy, task, cfg)
    cfg.seed += 1  # other completions in the next round
    return {"seconds": row["seconds"], "tokens": row["completion_tokens"] * P * N}


def step_of_theirs(trainer):
    """Return the seconds by TRL's own clock, which leaves out its start, and AdamW too."""
    trainer.train()
    row = trainer.state.log_history[-1]
    return {"seconds": row["step_time"], "tokens": row["completions/mean_length"] * P * N}


def trainer_of_theirs(model, tokenizer, task, cfg, rows, folder):
    """Return a GRPOTrainer with `rows` rows in a micro-batch."""
    import datasets
    import trl
    args = trl.GRPOConfig(
        output_dir=folder, max_steps=1, per_device_train_batch_size=rows,
        gradient_accumulation_steps=P * N // rows, generation_batch_size=P * N,
        num_generations=N, max_completion_length=cfg.max_new_tokens, temperature=1.0,
        beta=0.0, loss_type="dapo", epsilon=cfg.clip_low, epsilon_high=cfg.clip_high,
        learning_rate=cfg.lr, lr_scheduler_type="constant", use_cpu=True, bf16=False,
        gradient_checkpointing=False,  # TRL has it on by default
        save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True)
    questions = datasets.Dataset.from_dict({"prompt": [p.question for p in task.train]})
    trainer = trl.GRPOTrainer(model, reward, args, questions, processing_class=tokenizer)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def bench_step(rounds):
    """Compare the seconds per token of a whole step, on 8 x 8 long-tailed completions, with TRL's
    GRPOTrainer. Equal: model, tokenizer, prompts, updates, precision, distribution of lengths
    (halved), optimizer, loss, no checkpointing. TRL has 8 rows per micro-batch, like ours on
    average, or all in one batch. Different: TRL computes the entropy and logs more; ours
    weights tokens, and skips groups of equal rewards (1 in 128 by chance)."""
    words = SIZES["2,048 words"]
    letters = [chr(0x4E00 + i) for i in range(words)]  # a token each; the first two have no use
    texts = ["".join(letters[i] for i in prompt) for prompt in draw_prompts(words)]
    *problems, alphabet = [tasks.Problem(text, None) for text in (*texts, "".join(letters[2:]))]
    task = tasks.Task("", "", problems, [alphabet], [alphabet], verify, 0.0, tokens=".")
    tokenizer = tiny.tiny_tokenizer(task)
    cfg = G.Config(
        steps=1, prompts=P, group_size=N, updates=1, temperature=1.0, max_new_tokens=CAP // 2,
        tokens_per_micro_batch=8 * (MEAN // 2 + 32))
    model = build(words, MEAN // 2)
    policy = G.Policy(copy.deepcopy(model), tokenizer, {END})
    sides = {"ours": partial(step_of_ours, policy, tasks.encode_problems(task, policy, cfg), cfg)}
    with tempfile.TemporaryDirectory() as folder:
        for side, rows in (("TRL, 8 rows", 8), ("TRL, one batch", P * N)):
            trainer = trainer_of_theirs(copy.deepcopy(model), tokenizer, task, cfg, rows, folder)
            sides[side] = partial(step_of_theirs, trainer)
        return {"beta 0.0, updates 1": compare("step", sides, rounds)}


def main():
    parts = {"sampling": bench_sampling, "step": bench_step}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side that count")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS / "bench.json")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: at least 1")
    if args.results.suffix != ".json":
        parser.error(f"--results {args.results}: name a .json file")
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # always the same core; Linux only
    results = json.loads(args.results.read_text()) if args.results.exists() else {}
    for part in args.only:
        about = {"torch": torch.__version__, "rounds": args.rounds,
                 "load before": os.getloadavg()[0], "commit": name_commit(),
                 "date": str(datetime.date.today())}
        print(about, flush=True)
        results.setdefault("cpu", {})[part] = {**about, **parts[part](args.rounds)}
        args.results.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
