"""Measure grpo_sg.py on a GPU in about ten minutes.

    python -m extras.gpu.measure                   random parameters, Qwen2.5-0.5B's shape
    python -m extras.gpu.measure --model FOLDER    your model, from save_pretrained

Takes all flags of grpo_sg.py; cards with less than 20 GB get smaller default sizes. Prints a
table and writes it to a .json: please send that file. What is expected is either exact, and a
difference is a bug, or computed by memory.py. A part that fails becomes a row of the table, and
the other parts still run. Without a GPU, the script tests itself in half a minute: it measures a
tiny model, and writes a file only if --out is given.
"""
import argparse
import contextlib
import gc
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback

import grpo_sg  # before torch: it configures PyTorch's memory allocator
import tasks
import torch
import transformers
from extras.gpu import graph, memory
from support import checks, cli, models, program, tiny
from tasks import UserError

RESULTS = pathlib.Path(__file__).parent / "results"
GPU = torch.cuda.is_available()
NAME = torch.cuda.get_device_name() if GPU else "CPU"
SAMPLERS = {"plain": grpo_sg.sample, "recorded": graph.sample}
FLAGS = "--task math --train_problems 300 --eval_problems 8 --eval_samples 0"
SMALL_CARD = "--max_new_tokens 256 --sample_batch 128 --tokens_per_micro_batch 1024"
NO_CARD = ("--prompts 4 --group_size 4 --max_new_tokens 16 --sample_batch 8 "
           "--tokens_per_micro_batch 400")
PROMPT = list(range(4, 54))
NEW = 64 if GPU else 12  # tokens of a completion where its length does not matter
STOPPED = [program.exit_status(name) for name in ("SIGINT", "SIGTERM")]
found = {}


def tell(name, measured, expected=None, wrong=""):
    """Add a row to the table. wrong: what another value than the expected one means; without it
    they may differ."""
    row = {"measured": measured, "expected": expected}
    if wrong and measured is not None and measured != expected:
        row["WRONG"] = wrong
    found[name] = row
    shown = [f"{x:.4g}" if isinstance(x, float) else "" if x is None else f"{x}"
             for x in (measured, expected)]
    print(f"| {name} | {shown[0]} | {shown[1]}{f', WRONG: {wrong}' * ('WRONG' in row)} |",
          flush=True)


def attempt(part, *given):
    """Run one part of the measurements, and turn an error into a row of the table. A signal
    that stops a run stops the whole script."""
    try:
        part(*given)
    except (Exception, SystemExit) as error:  # torch, CUDA or a run may raise anything
        traceback.print_exc()
        tell(f"FAILED: {part.__name__}", program.first_line(error))
        if isinstance(error, SystemExit) and error.code in STOPPED:
            raise


def choose_flags():
    if not GPU:
        return NO_CARD
    small = torch.cuda.get_device_properties(0).total_memory < 20e9
    return SMALL_CARD if small else ""


def name_versions():
    tell("torch", torch.__version__)
    tell("transformers", transformers.__version__)
    ask = ["git", "describe", "--always", "--dirty= changed", "--exclude=*"]
    tell("commit", subprocess.run(ask, cwd=RESULTS, capture_output=True, text=True).stdout.strip())
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    tell("driver", subprocess.check_output(ask, text=True).split()[0] if GPU else None)


def save_random_model(folder):
    cfg = grpo_sg.Config(task="math", train_problems=300, eval_problems=4)
    _, tokenizer = tiny.tiny_model(checks.make_task(cfg))
    config = memory.qwen("0.5B") if GPU else transformers.Qwen2Config(
        hidden_size=56, intermediate_size=128, num_hidden_layers=2, num_attention_heads=14,
        num_key_value_heads=2, vocab_size=1000, tie_word_embeddings=True)
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(config)
    # Larger than at initialization, where all probabilities would be about 1 / V.
    torch.nn.init.constant_(model.model.norm.weight, 6.0)
    models.save_model(folder, model, tokenizer)


# ---- Sampling ----

def draw(model, sampler, prompts, rows, new, **settings):
    """Sample like a run, after models.prepare."""
    with grpo_sg.in_bfloat16(model.device):
        return SAMPLERS[sampler](model, prompts, n=rows // len(prompts), max_new_tokens=new,
                                 stop_ids=[], **settings)


@contextlib.contextmanager
def steps_that_just_run():
    """Run steps eagerly instead of recording them."""
    usual, graph.RECORDED = graph.RECORDED, None
    try:
        yield
    finally:
        graph.RECORDED = usual


def time_of_drawing(*given):
    started = time.perf_counter()
    draw(*given)  # returns lists, so all kernels have finished
    return time.perf_counter() - started


def milliseconds(model, sampler, rows, columns):
    """Return the time of a decode step: 41 tokens minus 9, after a warm-up call of each."""
    given = model, sampler, [[columns] * columns], rows
    for new in (9, 41):
        draw(*given, new)
    return 1000 * (time_of_drawing(*given, 41) - time_of_drawing(*given, 9)) / 32


def measure_speed(model, many, lengths):
    for columns in lengths:
        for rows in many:
            for sampler in SAMPLERS:
                tell(f"ms per decode step, {rows} rows, {columns} columns, {sampler}",
                     milliseconds(model, sampler, rows, columns))
    given = model, "recorded", [PROMPT], many[-1], 2
    recorded = min(time_of_drawing(*given) for _ in range(3))
    with steps_that_just_run():
        just_run = min(time_of_drawing(*given) for _ in range(3))
    tell(f"seconds of a recording, {many[-1]} rows", recorded - just_run)


def measure_attention(model):
    for allowed in (True, False):  # a run turns it off
        torch.backends.cuda.enable_cudnn_sdp(allowed)
        name = "ms per decode step, 8 rows, plain, cuDNN's attention"
        tell(f"{name} {'on' if allowed else 'off'}", milliseconds(model, "plain", 8, 77))


def compare_greedy(model):
    prompts = [PROMPT[i:] for i in range(4)]
    greedy = [draw(model, each, prompts, 4, 40, temperature=0) for each in SAMPLERS]
    tell("of 4 rows, with equal greedy tokens", sum(a == b for a, b in zip(*greedy)), 4,
         "leave out --sampler graph (rounding may change one row)")


@torch.no_grad()
def measure_distance(model):
    """Compare each sampler's distributions with those that the trainer computes for its tokens."""
    prompts = [PROMPT[i:] + PROMPT[:i] for i in range(4)]
    for sampler in SAMPLERS:
        logits = []

        def note(head, inputs, output):
            logits.append(output[:, -1].float())
        hook = model.get_output_embeddings().register_forward_hook(note)
        with steps_that_just_run():  # a replay calls no hook
            completions = draw(model, sampler, prompts, 4, NEW)
        hook.remove()
        ids = torch.tensor([p + c for p, c in zip(prompts, completions)], device=model.device)
        with grpo_sg.in_bfloat16(model.device):
            trained = model(input_ids=ids, logits_to_keep=NEW + 1).logits[:, :-1].float()
        drawn = torch.stack(logits, 1).log_softmax(-1)  # (4, NEW, V)
        difference = drawn - trained.log_softmax(-1)
        kl = (drawn.exp() * difference).sum(-1).mean()
        tell(f"KL of the sampler to the trainer, {sampler}", kl.item())
        off = difference.gather(2, ids[:, -NEW:, None]).abs().max()
        tell(f"difference of their log pi, greatest, {sampler}", off.item())


# ---- Memory ----

def peak(function, *given):
    """Return the GB allocated at the peak of a call; None without a GPU."""
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    function(*given)
    return torch.cuda.max_memory_allocated() / 1e9 if GPU else None


def compute_memory(config, cfg, averages):
    return memory.peaks(config, tokens=cfg.tokens_per_micro_batch, rows=cfg.sample_batch,
                        new=cfg.max_new_tokens, offload=not averages,
                        float32=GPU and not grpo_sg.has_bfloat16("cuda"))


def measure_leak(model, cfg):
    gc.disable()  # else the collector might free what a call leaks
    before = torch.cuda.memory_allocated() if GPU else 0
    draw(model, "recorded", [PROMPT], cfg.sample_batch, 40)
    left = torch.cuda.memory_allocated() - before if GPU else None
    gc.enable()
    tell("bytes that a call of the CUDA-graph sampler leaves", left, 0, "it leaks memory")


def measure_memory(model, cfg):
    needs = compute_memory(model.config, cfg, averages=False)
    long = [PROMPT[:1] * (300 + cfg.max_new_tokens - 40)]
    tell(f"GB of {cfg.sample_batch} full rows, without AdamW's averages",
         peak(draw, model, "plain", long, cfg.sample_batch, 40), needs["sampling"])
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    tell(f"GB of a micro-batch of {cfg.tokens_per_micro_batch} tokens, without them",
         peak(pass_both_ways, model, cfg), needs["update"])
    model.zero_grad()


def pass_both_ways(model, cfg):
    ids = torch.full((4, 1 + cfg.tokens_per_micro_batch // 4), 5, device=model.device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    with grpo_sg.in_bfloat16(model.device):
        logps = grpo_sg.token_logps(model, ids, mask, temperature=cfg.temperature)
    advantages = torch.ones(len(ids), device=model.device)
    loss, _ = grpo_sg.grpo_sg_loss(logps, logps.detach(), advantages, mask)
    loss.backward()


# ---- Training ----

def parity(completion):
    """A made-up reward that differs within a group: a random model's real rewards do not."""
    return float(sum(completion.tokens) % 2)


def make_task(cfg):
    return tasks.math_task(cfg)._replace(reward=parity)


def train(flags, out):
    """Run grpo_sg.py with these flags and return the metrics of its training steps."""
    with contextlib.redirect_stdout(sys.stderr):
        grpo_sg.main([*flags, "--out", out])
    with open(os.path.join(out, "metrics.jsonl")) as lines:
        return [row for row in map(json.loads, lines) if "reward" in row]


def measure_updates(flags, runs):
    """Make two updates on one rollout. With a learning rate near 0, the policy must not change."""
    flags = [*flags, *f"--steps 1 --updates 2 --prompts 4 --max_new_tokens {NEW}".split()]
    for shown, lr in (("0", "1e-30"), ("1e-06", "1e-6")):
        row, = train([*flags, "--lr", lr], os.path.join(runs, f"lr {shown}"))
        for key in ("kl", "clip_frac"):
            exact = (0, "log-probabilities change without learning") if shown == "0" else ()
            tell(f"{key} of two updates, lr {shown}", row[key], *exact)


def measure_steps(cfg, flags, runs):
    """Take two steps of the real command, save, and take a third step after --resume."""
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    out = os.path.join(runs, "steps")
    train([*flags, "--steps", "2"], out)
    config = transformers.AutoConfig.from_pretrained(cfg.model)
    needs = max(compute_memory(config, cfg, averages=True).values())
    for row in train(["--resume", "--steps", "3"], out):
        step = f"step {row['step']}:"
        tell(f"{step} tokens per completion", row["completion_tokens"])
        tell(f"{step} seconds of sampling", row["seconds_sampling"])
        tell(f"{step} seconds of updates", row["seconds_update"])
        tell(f"{step} GB at the peak so far", row.get("memory_gb"), needs)


def measure(cfg, flags, runs):
    attempt(name_versions)
    model, _ = models.load_model(cfg.model)
    model = models.set_up(model, cfg.device, cfg.gradient_checkpointing)
    many, lengths = ((1, 32, 256, 512), (300, 1000, 2000)) if GPU else ((4,), (30,))
    attempt(measure_speed, model, many, lengths)
    attempt(measure_attention, model)
    attempt(compare_greedy, model)
    attempt(measure_distance, model)
    attempt(measure_leak, model, cfg)
    attempt(measure_memory, model, cfg)
    del model
    gc.collect()
    tasks.TASKS["math"] = make_task
    try:
        attempt(measure_updates, flags, runs)
        attempt(measure_steps, cfg, flags, runs)
    finally:
        tasks.TASKS["math"] = tasks.math_task


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a folder written by save_pretrained")
    parser.add_argument("--out", help="a .json; default, on a GPU: extras/gpu/results/NAME.json")
    given, more = parser.parse_known_args()
    if given.out and not pathlib.Path(given.out).absolute().parent.is_dir():
        parser.error(f"--out {given.out}: its folder does not exist")
    found.clear()
    usual = RESULTS / f"{re.sub('[^A-Za-z0-9]+', '-', NAME)}.json"
    out = given.out or (usual if GPU else None)
    with tempfile.TemporaryDirectory() as runs:
        folder = given.model or os.path.join(runs, "model")
        if not given.model:
            save_random_model(folder)
        flags = [*FLAGS.split(), *choose_flags().split(), "--model", folder, *more]
        try:
            cfg = cli.parse(flags)
            print(f"| on {NAME} | measured | expected |\n|---|---|---|")
            measure(cfg, flags, runs)
        except UserError as error:
            sys.exit(f"error: {error}")
        finally:  # also after Ctrl-C
            if found and out:
                content = {"device": NAME, "flags": more, "table": found}
                pathlib.Path(out).write_text(json.dumps(content) + "\n")
    if not GPU:
        print("no GPU found: this tests only the script itself")
    if out:
        print(f"all of this is in {out}: please send it")


if __name__ == "__main__":
    main()
