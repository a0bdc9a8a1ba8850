"""What a GPU does with grpo_sg.py, in some ten minutes: speed, memory, precision, and two steps of the real command.

    python experiments/gpu.py                   random weights in the shape of Qwen2.5-0.5B
    python experiments/gpu.py --model FOLDER    a model of yours, as save_pretrained wrote it

Prints a table and writes results/gpu.json. Without a GPU every row but those of its memory is measured on a tiny
model, in some seconds, and written to --out alone: so the script is known to work on the day when there is one.
"""
import argparse
import json
import os
import platform
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import grpo_sg  # before torch: it sets how PyTorch allocates memory
import memory
import tasks
import torch
from support import graph, models, program
from transformers import Qwen2Config, Qwen2ForCausalLM

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
HALF = {"device_type": DEVICE.type, "dtype": torch.bfloat16}
SAMPLERS = {"sample": grpo_sg.sample, "graph.sample": graph.sample}
found = {}


def tell(name, value):
    found[name] = float(f"{value:.4g}") if isinstance(value, float) else value
    print(f"| {name} | {found[name]} |", flush=True)


def made(folder):
    """A folder with the model to measure and a tokenizer."""
    cfg = grpo_sg.Config(task="math", train_problems=300, eval_problems=4)
    _, tokenizer = tasks.tiny_model(tasks.TASKS["math"](cfg))
    shape = dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                 vocab_size=151_936) if GPU else dict(hidden_size=56, intermediate_size=128, num_hidden_layers=2,
                                                      num_attention_heads=14, vocab_size=1000)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**shape, num_key_value_heads=2, tie_word_embeddings=True,
                                         initializer_range=0.02 if GPU else 0.1))
    with torch.no_grad():  # surer of itself than random weights are, so that probabilities are not all 1 / V
        model.model.norm.weight.fill_(6.0 if GPU else 1.0)
    models.save_model(folder, model, tokenizer)
    return folder


def seconds(work):
    if GPU:
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def draw(sampler, model, rows, columns, new, **given):
    prompt = torch.randint(1, 500, (columns,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.autocast(**HALF):
        return sampler(model, [prompt], n=rows, max_new_tokens=new, stop_ids=[], **given)


def decode_steps(model):
    """Milliseconds of one, from the difference of 41 and 9 tokens; each is drawn once before, to warm up."""
    for name, sampler in SAMPLERS.items():
        for columns in (300, 1000, 2000) if GPU else (30,):
            for rows in (1, 32, 256, 512) if GPU else (1, 8):
                draw(sampler, model, rows, columns, 9)
                few, many = (seconds(lambda: draw(sampler, model, rows, columns, new)) for new in (9, 41))
                tell(f"{name}: ms a decode step, {rows} rows, {columns} columns", 1000 * (many - few) / 32)
    for switched_on in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(switched_on)
        few, many = (seconds(lambda: draw(grpo_sg.sample, model, 8, 77, new)) for new in (1, 17))
        tell(f"sample: ms a decode step, cuDNN attention {'allowed' if switched_on else 'off'}",
             1000 * (many - few) / 16)
    greedy = [draw(sampler, model, 4, 50, 32, temperature=0) for sampler in SAMPLERS.values()]
    tell("samplers that agree with sample on 32 greedy tokens", sum(each == greedy[0] for each in greedy))


def peak_memory(model, cfg):
    """GB allocated at the peak, less what AdamW's averages, not made here, would add, beside what is expected."""
    if not GPU:
        return
    needs = memory.peaks(model.config, tokens=cfg.tokens_per_micro_batch, rows=cfg.sample_batch,
                         new=cfg.max_new_tokens)
    torch.cuda.reset_peak_memory_stats()
    columns = 300 + cfg.max_new_tokens - 1
    draw(grpo_sg.sample, model, cfg.sample_batch, columns, 2)
    averages = 8e-9 * model.num_parameters()
    tell("GB of sampling, full rows", torch.cuda.max_memory_allocated() / 1e9 + averages)
    tell("GB of sampling, expected", needs["sampling"])
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    rows = 4
    ids = torch.randint(1, 500, (rows, cfg.tokens_per_micro_batch // rows + 1), device=DEVICE)
    mask = torch.ones_like(ids).cumsum(1) > 1
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast(**HALF):
        logps = grpo_sg.token_logps(model, ids, mask)
    grpo_sg.grpo_sg_loss(logps, logps.detach(), torch.ones(rows, device=DEVICE), mask)[0].backward()
    tell("GB of an update", torch.cuda.max_memory_allocated() / 1e9 + averages)
    tell("GB of an update, expected", needs["update"])
    model.zero_grad()


def precision(model, cfg):
    """How far sampler and trainer are apart, and what two updates of one rollout see of each other."""
    rows, new = (8, 64) if GPU else (4, 12)
    drawn = draw(grpo_sg.sample, model, rows, 20, new, temperature=cfg.temperature)
    prompt = torch.randint(1, 500, (20,), generator=torch.Generator().manual_seed(0)).tolist()
    completions = [grpo_sg.Completion(None, prompt, tokens, [True] * new) for tokens in drawn]
    ids = torch.tensor([prompt + tokens for tokens in drawn], device=DEVICE)
    mask = (torch.arange(20 + new, device=DEVICE) >= 20).expand(rows, -1)
    with torch.no_grad(), torch.autocast(**HALF):
        trainer = grpo_sg.token_logps(model, ids, mask, temperature=cfg.temperature)[:, 20:]
        cache = grpo_sg.DynamicCache(config=model.config)  # the sampler's way: a token at a time
        parts = [ids[:, :20], *ids[:, 20:-1].split(1, 1)]
        steps = [model.base_model(input_ids=part, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
                 for part in parts]
        logits = torch.stack([grpo_sg.logits_of(model, h) for h in steps], 1) / cfg.temperature
        sampler = logits.log_softmax(-1).gather(2, ids[:, 20:, None])[..., 0]
    tell("mean probability of the tokens drawn", trainer.exp().mean().item())
    tell("|log pi of the sampler - of the trainer|, mean", (sampler - trainer).abs().mean().item())
    tell("|log pi of the sampler - of the trainer|, greatest", (sampler - trainer).abs().max().item())
    weights = {key: x.clone() for key, x in model.state_dict().items()}
    for lr in (0.0, 1e-6):
        model.load_state_dict(weights)
        optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0)
        advantages = torch.arange(rows) - (rows - 1) / 2
        stats = grpo_sg.update(model, optimizer, completions, advantages, cfg)
        for key in ("kl", "clip_frac"):
            tell(f"{key} of two updates at lr {lr}", stats[key])


def any_reward(completion):
    """Rewards that differ within a group, as the true ones of a random model's completions would not."""
    return float(sum(completion.tokens) % 2)


def whole_steps(folder, runs):
    """Two steps of the real command, saved, and a third after --resume; only the rewards are made up."""
    out = os.path.join(runs, "run")
    task = tasks.TASKS["math"]
    tasks.TASKS["math"] = lambda cfg: task(cfg)._replace(reward=any_reward)
    small = [] if GPU else ["--prompts", "4", "--group_size", "4", "--max_new_tokens", "16"]
    grpo_sg.main(["--model", folder, "--task", "math", "--steps", "2", "--eval_problems", "8", "--eval_samples", "0",
                  "--train_problems", "300", "--save_every", "1", *small, "--out", out])
    grpo_sg.main(["--resume", "--steps", "3", "--out", out])
    rows = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"))]
    for row in [row for row in rows if "reward" in row]:
        for key in ("seconds_sampling", "seconds_update", "tokens_per_second", "completion_tokens", "memory_gb"):
            if key in row:
                tell(f"step {row['step']}: {key}", row[key])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a folder written by save_pretrained")
    parser.add_argument("--out", help="default, on a GPU: results/gpu.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as runs:
        folder = given.model or made(os.path.join(runs, "model"))
        print("| measured | value |\n|---|---|")
        tell("device", torch.cuda.get_device_name() if GPU else platform.processor() or "CPU")
        tell("torch", torch.__version__)
        cfg = grpo_sg.Config(model=folder) if GPU else grpo_sg.Config(model=folder, max_new_tokens=12)
        model = models.prepare(*models.load_model(folder), [1, 2, 3], cfg, grpo_sg.sample)
        for row in (decode_steps, lambda m: peak_memory(m, cfg), lambda m: precision(m, cfg)):
            row(model)
        del model
        whole_steps(folder, runs)
    out = given.out or (os.path.join(HERE, "results", "gpu.json") if GPU else None)
    if out:
        program.write_json(out, {"command": " ".join(["python", "experiments/gpu.py", *sys.argv[1:]]), **found})


if __name__ == "__main__":
    main()
