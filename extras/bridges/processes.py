"""Measure GRPO-SG on TRL in several processes on a CPU, starting from the tiny model after SFT:

    python grpo_sg.py --task kk --steps 1 --eval_samples 0 --out START     the starting model
    python -m extras.bridges.processes first START/checkpoint    one step: 2 processes and 1
    python -m extras.bridges.processes learn START/checkpoint    40 steps: 2, and grpo_sg.py
    python -m extras.bridges.processes cost                      a micro-batch, with w and without
    python -m extras.bridges.processes figure

Requires the packages in requirements-trl.txt, and matplotlib for the figure. Writes
results/processes.json and figures/processes.svg. `first` and `learn` also take flags of
grpo_sg.py, such as `--steps 2` for a short trial that is not recorded."""
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import grpo_sg
from extras.bridges import cases, trl_train
from support import cli

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / "results" / "processes.json"
FLAGS = ("--prompts 32 --updates 4 --lr 2e-4 --temperature 1 --max_new_tokens 48 "
         "--steps 40").split()
SEEDS = (0, 1)
CASES = [("sg", "token-mean"), ("none", "token-mean"), ("sg", "seq-mean-token-mean"),
         ("none", "seq-mean-token-mean")]


def save(**results):
    kept = json.loads(RESULTS.read_text())
    RESULTS.write_text(json.dumps({**kept, **results}, indent=1))


def one_step(out, *flags):
    """Take one SGD step on completions that depend only on their prompts, not on the process.
    Save the parameters before and after to the file `out`."""
    cfg = cli.parse([*flags, "--updates", "1"])
    run = trl_train.make_trainer(cfg, output_dir=f"{out}.trainer", max_steps=1, logging_steps=1,
                                 optim="sgd", learning_rate=1.0, max_grad_norm=1e9)

    def sampler(model, prompts, *, generator, **settings):
        drawn = []
        for ids in prompts[::cfg.group_size]:  # each process has whole groups
            own = torch.Generator().manual_seed(zlib.crc32(str(ids).encode()))
            drawn += grpo_sg.sample(model, [ids], n=cfg.group_size, generator=own, **settings)
        return drawn
    run.rollout_func = functools.partial(run.rollout_func, sampler=sampler)
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    run.train()
    after = dict(run.accelerator.unwrap_model(run.model).named_parameters())
    if run.accelerator.is_main_process:
        torch.save({"before": before, "after": after,
                    "reward": run.state.log_history[0]["reward"],
                    "processes": run.accelerator.num_processes}, out)
    run.accelerator.wait_for_everyone()
    run.accelerator.end_training()


def largest_difference(a, b):
    return max((a[name] - b[name]).abs().max().item() for name in a)


def first(start, *more):
    """Record the largest parameter difference between 1 and 2 processes after an SGD step, and the
    largest step."""
    rows = []
    for shaping, mode in CASES:
        with tempfile.TemporaryDirectory() as folder:
            runs = []
            for processes in ("1", "2"):
                out = f"{folder}/{processes}"
                cases.launch(processes, "-m", "extras.bridges.processes", "one_step", out, *FLAGS,
                             "--model", start, "--shaping", shaping, "--loss_agg_mode", mode,
                             *more)
                runs.append(torch.load(out))
        one, two = runs
        assert [one["processes"], two["processes"]] == [1, 2]
        assert one["reward"] == two["reward"]
        rows.append({"optimizer": "sgd", "shaping": shaping, "loss_agg_mode": mode,
                     "difference": largest_difference(one["after"], two["after"]),
                     "step": largest_difference(one["after"], one["before"]),
                     "reward": one["reward"]})
        print(json.dumps(rows[-1]), flush=True)
    if not more:
        save(first=rows)


def learn(start, *more):
    """Record the mean reward of each of 40 steps, for grpo_sg.py and for TRL in two processes."""
    curves = {"grpo_sg.py": [], "TRL, 2 processes": []}
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            flags = [*FLAGS, "--model", start, "--seed", str(seed), *more]
            subprocess.run([sys.executable, "grpo_sg.py", *flags, "--out", f"{folder}/own",
                            "--eval_samples", "0", "--eval_every", "1000"], check=True)
            with open(f"{folder}/own/metrics.jsonl") as file:
                curves["grpo_sg.py"].append(read_rewards(map(json.loads, file)))
            cases.launch("2", "-m", "extras.bridges.trl_train", *flags, "--out", f"{folder}/trl")
            with open(f"{folder}/trl/trainer_state.json") as file:
                history = json.load(file)["log_history"]
            curves["TRL, 2 processes"].append(read_rewards(history))
        for name, all_runs in curves.items():
            rewards = all_runs[-1]
            print(f"{name}, seed {seed}: steps 1-5 {statistics.mean(rewards[:5]):.2f}, "
                  f"36-40 {statistics.mean(rewards[-5:]):.2f}", flush=True)
    if not more:
        save(flags=" ".join(FLAGS), seeds=SEEDS, learn=curves)


def read_rewards(rows):
    return [row["reward"] for row in rows if "reward" in row]


def cost(B=4, T=128):
    """Record the CPU seconds of loss and backward pass on a micro-batch (B, T), ten times for
    each trainer, alternating."""
    trainers = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Qwen2ForCausalLM(Qwen2Config(
            vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True,
            pad_token_id=0))
        cases.save_model(folder, True)  # for its byte tokenizer
        model.save_pretrained(folder)
        for shaping in ("none", "sg"):
            cfg = cli.parse([*FLAGS, "--train_problems", "200", "--model", folder,
                             "--shaping", shaping])
            trainers[shaping] = trl_train.make_trainer(cfg, output_dir=folder, use_cpu=True)
    ids = torch.randint(1, 4096, (B, 2 * T))
    batch = {"prompt_ids": ids[:, T:T + 32], "prompt_mask": torch.ones(B, 32, dtype=torch.long),
             "completion_ids": ids[:, :T],
             "completion_mask": torch.ones(B, T, dtype=torch.long),
             "advantages": torch.randn(B), "num_items_in_batch": torch.tensor(B * T)}
    seconds = {shaping: [] for shaping in trainers}
    for turn in range(11):
        for shaping, run in trainers.items():
            run.current_gradient_accumulation_steps = 1
            run.model.zero_grad()
            began = time.process_time()
            run._compute_loss(run.model, batch).backward()
            if turn:  # the first one warms up
                seconds[shaping].append(time.process_time() - began)
    medians = {shaping: statistics.median(values) for shaping, values in seconds.items()}
    print(f"median seconds {medians}, ratio {medians['sg'] / medians['none']:.3f}")
    save(cost={"B": B, "T": T, "parameters": model.num_parameters(), "seconds": seconds})


def figure():
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "grpo-sg", "axes.spines.top": False,
                         "axes.spines.right": False, "figure.constrained_layout.use": True})
    curves = json.loads(RESULTS.read_text())["learn"]
    plot, axes = plt.subplots(figsize=(5, 2.8))
    for (name, runs), color in zip(curves.items(), ("#2166ac", "#d95f02")):
        for run in runs:
            axes.plot(range(1, len(run) + 1), run, color=color, lw=0.6, alpha=0.5)
        means = [sum(values) / len(values) for values in zip(*runs)]
        axes.plot(range(1, len(means) + 1), means, color=color, label=name)
    axes.legend(frameon=False)
    axes.set(xlabel="training step", ylabel="mean reward",
             title=f"--task kk, {len(runs)} seeds and their mean")
    plot.savefig(HERE / "figures" / "processes.svg", metadata={"Date": None})


if __name__ == "__main__":
    parts = {"first": first, "learn": learn, "cost": cost, "figure": figure,
             "one_step": one_step}
    if len(sys.argv) < 2 or sys.argv[1] not in parts:
        sys.exit(__doc__)
    parts[sys.argv[1]](*sys.argv[2:])
    if sys.argv[1] == "one_step":
        trl_train.leave()
