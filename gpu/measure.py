"""What a GPU does with grpo_sg.py, in some ten minutes, beside what was computed of it.

    python -m experiments.gpu                   random weights in the shape of Qwen2.5-0.5B
    python -m experiments.gpu --model FOLDER    a model of yours, as save_pretrained wrote it
    python -m experiments.gpu --max_new_tokens 256 --sample_batch 128 --tokens_per_micro_batch 1024
                                                on a T4; any flags of grpo_sg.py will do

Prints a table and writes results/gpu.json. Without a GPU a tiny model goes the same way, in some
seconds, beside what is computed for an A100, and only --out is written: so this script is known to
work on the day when there is a GPU.
"""
import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time

import grpo_sg  # before torch: it says how PyTorch is to allocate memory
import tasks
import torch
import transformers
from experiments import memory, seconds
from support import graph, models, program, tiny

GPU = torch.cuda.is_available()
NAME = torch.cuda.get_device_name() if GPU else "CPU"
CARD = next((card for card in seconds.CARDS if card in NAME), "A100")
SAMPLERS = {"plain": grpo_sg.sample, "recorded": graph.sample}
FLAGS = "--task math --train_problems 300 --eval_problems 8 --eval_samples 0"
SMALL = ("--prompts 4 --group_size 4 --max_new_tokens 16 --sample_batch 8 "
         "--tokens_per_micro_batch 400")
PROMPT = list(range(4, 54))
NEW = 64 if GPU else 12  # tokens of a completion, where its length does not matter
found = {}


def tell(name, measured, computed=None):
    found[name] = {"measured": measured, "computed": computed}
    shown = [f"{x:.4g}" if isinstance(x, float) else x for x in found[name].values()]
    print(f"| {name} | {shown[0]} | {shown[1]} |".replace("None", ""), flush=True)


def driver():
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.check_output(ask, text=True).split()[0] if GPU else None


def save_random_model(folder):
    cfg = grpo_sg.Config(task="math", train_problems=300, eval_problems=4)
    _, tokenizer = tiny.tiny_model(tasks.make_task(cfg))
    config = memory.qwen("0.5B") if GPU else transformers.Qwen2Config(
        hidden_size=56, intermediate_size=128, num_hidden_layers=2, num_attention_heads=14,
        num_key_value_heads=2, vocab_size=1000, tie_word_embeddings=True)
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(config)
    # Larger, so that its probabilities are not all 1 / V, as those of random weights are.
    torch.nn.init.constant_(model.model.norm.weight, 6.0)
    models.save_model(folder, model, tokenizer)


def draw(model, sampler, prompts, rows, new, **settings):
    """As a run does it, after models.prepare."""
    with models.in_bfloat16(model.device):
        return SAMPLERS[sampler](model, prompts, n=rows // len(prompts), max_new_tokens=new,
                                 stop_ids=[], **settings)


@contextlib.contextmanager
def steps_that_just_run():
    """Where they would be recorded."""
    usual, graph.RECORDED = graph.RECORDED, None
    yield
    graph.RECORDED = usual


def time_of_drawing(*given):
    started = time.perf_counter()
    draw(*given)  # returns lists, so nothing is left to wait for
    return time.perf_counter() - started


def milliseconds(model, sampler, rows, columns):
    """Of a decode step: of 41 tokens less 9, each drawn once before, to warm up."""
    given = model, sampler, [[columns] * columns], rows
    for new in (9, 41):
        draw(*given, new)
    return 1000 * (time_of_drawing(*given, 41) - time_of_drawing(*given, 9)) / 32


def measure_speed(model, many, lengths):
    for columns in lengths:
        for rows in many:
            computed = 1000 * seconds.decode(model.config, CARD, rows, columns)
            name = f"ms a decode step, {rows} rows, {columns} columns"
            tell(f"{name}, plain", milliseconds(model, "plain", rows, columns))
            tell(f"{name}, recorded", milliseconds(model, "recorded", rows, columns), computed)
    given = model, "recorded", [PROMPT], rows, 2
    recorded = min(time_of_drawing(*given) for _ in range(3))
    with steps_that_just_run():
        just_run = min(time_of_drawing(*given) for _ in range(3))
    tell(f"seconds of a recording, {rows} rows", recorded - just_run)
    for allowed in (True, False):  # a run has it off
        torch.backends.cuda.enable_cudnn_sdp(allowed)
        name = f"ms a decode step, 8 rows, plain, cuDNN's attention {'on' if allowed else 'off'}"
        tell(name, milliseconds(model, "plain", 8, 77))
    prompts = [PROMPT[i:] for i in range(4)]
    greedy = [draw(model, each, prompts, 4, 40, temperature=0) for each in SAMPLERS]
    tell("of 4 rows, with equal greedy tokens", sum(a == b for a, b in zip(*greedy)), 4)


def peak(function, *given):
    """GB that are allocated at the peak of a call; None without a GPU."""
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    function(*given)
    return torch.cuda.max_memory_allocated() / 1e9 if GPU else None


def compute_memory(config, cfg, averages):
    return memory.peaks(config, tokens=cfg.tokens_per_micro_batch, rows=cfg.sample_batch,
                        new=cfg.max_new_tokens, offload=not averages, float32=CARD == "T4")


def measure_memory(model, cfg):
    gc.disable()  # or what a call leaves might be found and freed
    before = torch.cuda.memory_allocated() if GPU else 0
    draw(model, "recorded", [PROMPT], cfg.sample_batch, 40)
    left = torch.cuda.memory_allocated() - before if GPU else None
    gc.enable()
    tell("bytes that a call of the recorded sampler leaves", left, 0)
    needs = compute_memory(model.config, cfg, averages=False)
    long = [PROMPT[:1] * (300 + cfg.max_new_tokens - 40)]
    tell(f"GB of {cfg.sample_batch} full rows, without AdamW's averages",
         peak(draw, model, "recorded", long, cfg.sample_batch, 40), needs["sampling"])
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    tell(f"GB of a micro-batch of {cfg.tokens_per_micro_batch} tokens, without them",
         peak(pass_both_ways, model, cfg), needs["update"])
    model.zero_grad()


def pass_both_ways(model, cfg):
    length = cfg.tokens_per_micro_batch // 4
    c = grpo_sg.Completion(None, PROMPT[:1], [5] * length, [True] * length)
    batch = grpo_sg.make_batch([c] * 4, model.device)
    logps = grpo_sg.compute_logps(model, batch, cfg)
    loss, _ = grpo_sg.grpo_sg_loss(logps, logps.detach(), batch["advantages"], batch["mask"])
    loss.backward()


@torch.no_grad()
def measure_distance(model, sampler):
    """From what a sampler draws from to what the trainer computes for the same tokens."""
    logits = []

    def note(head, inputs, output):
        logits.append(output[:, -1].float())
    prompts = [PROMPT[i:] + PROMPT[:i] for i in range(4)]
    hook = model.get_output_embeddings().register_forward_hook(note)
    with steps_that_just_run():  # a replay calls no hook
        completions = draw(model, sampler, prompts, 4, NEW)
    hook.remove()
    ids = torch.tensor([p + c for p, c in zip(prompts, completions)], device=model.device)
    with models.in_bfloat16(model.device):
        trained = model(input_ids=ids, logits_to_keep=NEW + 1).logits[:, :-1].float()
    drawn = torch.stack(logits, 1).log_softmax(-1)  # (4, NEW, V)
    difference = drawn - trained.log_softmax(-1)
    off = difference.gather(2, ids[:, -NEW:, None]).abs()
    kl = (drawn.exp() * difference).sum(-1).mean()
    tell(f"KL of the sampler to the trainer, {sampler}", kl.item())
    tell(f"difference of their log pi, mean, {sampler}", off.mean().item())
    tell(f"difference of their log pi, greatest, {sampler}", off.max().item())


def measure_updates(model, cfg):
    """Two on one rollout: at a learning rate of 0 the policy is still the old one."""
    completions = []
    for tokens in draw(model, "plain", [PROMPT], 8, NEW, temperature=cfg.temperature):
        c = grpo_sg.Completion(None, PROMPT, tokens, [True] * NEW)
        c.advantage = (-1.0) ** len(completions)
        completions.append(c)
    for lr in (0.0, 1e-6):
        optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0, fused=True)
        stats = grpo_sg.update(model, optimizer, completions, cfg)
        for key in ("kl", "clip_frac"):
            tell(f"{key} of two updates, lr {lr:g}", stats[key], None if lr else 0)


def parity(completion):
    return float(sum(completion.tokens) % 2)


def make_task(cfg):
    """Rewards differ within a group, as the true ones of random weights would not."""
    return tasks.math_task(cfg)._replace(reward=parity)


def measure_steps(cfg, flags, out):
    """Two steps of the real command, saved, and a third one after --resume."""
    tasks.TASKS["math"] = make_task
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    with contextlib.redirect_stdout(sys.stderr):
        grpo_sg.main([*flags, "--steps", "2", "--save_every", "1", "--out", out])
        grpo_sg.main(["--resume", "--steps", "3", "--out", out])
    tasks.TASKS["math"] = tasks.math_task
    config = transformers.AutoConfig.from_pretrained(cfg.model)
    needs = max(compute_memory(config, cfg, averages=True).values())
    with open(os.path.join(out, "metrics.jsonl")) as lines:
        rows = [row for row in map(json.loads, lines) if "reward" in row]
    for row in rows:
        step, rollout = row["step"], cfg.prompts * cfg.group_size
        given = config, CARD, rollout, len(PROMPT), row["completion_tokens"], cfg
        tell(f"step {step}: seconds of sampling", row["seconds_sampling"], seconds.sample(*given))
        tell(f"step {step}: of updates", row["seconds_update"], seconds.update(*given))
        tell(f"step {step}: GB at the peak so far", row.get("memory_gb"), needs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a folder written by save_pretrained")
    parser.add_argument("--out", help="a .json; default, on a GPU: results/gpu.json")
    given, more = parser.parse_known_args()
    out = given.out or os.path.join(os.path.dirname(__file__), "results", "gpu.json")
    with tempfile.TemporaryDirectory() as runs:
        folder = given.model or os.path.join(runs, "model")
        if not given.model:
            save_random_model(folder)
        flags = [*FLAGS.split(), *("" if GPU else SMALL).split(), "--model", folder, *more]
        cfg = grpo_sg.parse(flags)
        with contextlib.redirect_stdout(sys.stderr):
            _, model, *_ = grpo_sg.load(cfg)
        print(f"| on {NAME} | measured | computed for {CARD} |\n|---|---|---|")
        tell("torch", torch.__version__)
        tell("driver", driver())
        if GPU:
            measure_speed(model, (1, 32, 256, 512), (300, 1000, 2000))
        else:
            measure_speed(model, (1, 4), (30,))
        measure_memory(model, cfg)
        for sampler in SAMPLERS:
            measure_distance(model, sampler)
        measure_updates(model, cfg)
        del model
        gc.collect()
        measure_steps(cfg, flags, os.path.join(runs, "run"))
    if GPU or given.out:
        program.write_json(out, {"device": NAME, **found})


if __name__ == "__main__":
    main()
