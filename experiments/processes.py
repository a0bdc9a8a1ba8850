"""GRPO-SG on TRL in several processes, on a CPU, from the tiny model after its warm-up:

    python grpo_sg.py --task kk --steps 1 --out START            (the start of all runs)
    python experiments/processes.py first START/checkpoint       one optimizer step: 2 processes against 1
    python experiments/processes.py learn START/checkpoint       40 steps: 2 processes against grpo_sg.py
    python experiments/processes.py cost START/checkpoint        time of a micro-batch, with and without
    python experiments/processes.py figure

In an environment made from bridges/requirements-trl.txt; the figure needs matplotlib too. Several processes
on a CPU need torchrun: with --cpu, accelerate launch starts one and says nothing. Writes
results/processes.json and figures/processes.svg.
"""
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results", "processes.json")
FLAGS = ("--task kk --brief --people 3 --train_problems 20000 --prompts 32 --updates 4 --lr 2e-4 "
         "--temperature 1 --max_new_tokens 48 --steps 40").split()
SEEDS = (0, 1)
CASES = [("sgd", "sg", "token-mean"), ("sgd", "none", "token-mean"), ("sgd", "sg", "seq-mean-token-mean"),
         ("sgd", "none", "seq-mean-token-mean")]


def launch(processes, *command):
    """python COMMAND in so many processes, on a CPU."""
    prefix = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.path.dirname(HERE)}
    with open(os.path.join(tempfile.gettempdir(), "processes.log"), "w") as log:
        subprocess.run([*prefix, *command], env=environment, check=True, stdout=log, stderr=log)


def save(**results):
    kept = {}
    if os.path.exists(RESULTS):
        with open(RESULTS) as file:
            kept = json.load(file)
    with open(RESULTS, "w") as file:
        json.dump({**kept, **results}, file, indent=1)


def one_step(out, optimizer, *flags):
    """In each process: one optimizer step on completions that depend on their prompt alone, and not on the
    process that asks for them. The weights before and after go to the file `out`."""
    import torch

    import grpo_sg
    from bridges import trl_train
    cfg = grpo_sg.parse([*flags, "--updates", "1", "--grad_clip", "1e9"])
    others = {"optim": "sgd", "learning_rate": 1.0} if optimizer == "sgd" else {}
    run = trl_train.make_trainer(cfg, output_dir=out + ".trainer", max_steps=1, logging_steps=1, **others)

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
        torch.save({"before": before, "after": after, "reward": run.state.log_history[0]["reward"],
                    "processes": run.accelerator.num_processes}, out)
    run.accelerator.end_training()


def first(start):
    """The largest difference in any weight after one optimizer step, and the largest step."""
    import torch
    rows = []
    for optimizer, shaping, mode in CASES:
        with tempfile.TemporaryDirectory() as folder:
            runs = []
            for processes in (1, 2):
                out = os.path.join(folder, str(processes))
                launch(processes, __file__, "one_step", out, optimizer, *FLAGS, "--model", start,
                       "--shaping", shaping, "--loss_agg_mode", mode)
                runs.append(torch.load(out))
        assert [run["processes"] for run in runs] == [1, 2]
        assert runs[0]["reward"] == runs[1]["reward"]

        def largest(a, b):
            return max((a[name] - b[name]).abs().max().item() for name in a)
        rows.append({"optimizer": optimizer, "shaping": shaping, "loss_agg_mode": mode,
                     "difference": largest(runs[0]["after"], runs[1]["after"]),
                     "step": largest(runs[0]["after"], runs[0]["before"]), "reward": runs[0]["reward"]})
        print(json.dumps(rows[-1]), flush=True)
        save(first=rows)


def learn(start):
    """Mean reward of each of 40 steps: grpo_sg.py, and the TRL bridge in two processes."""
    curves = {"grpo_sg.py": [], "TRL, 2 processes": []}
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            flags = [*FLAGS, "--model", start, "--seed", str(seed)]
            own = [sys.executable, "grpo_sg.py", *flags, "--out", folder + "/own", "--eval_samples", "0",
                   "--eval_problems", "20", "--eval_every", "1000", "--sample_batch", "1024",
                   "--tokens_per_micro_batch", "32768"]
            with open(os.path.join(folder, "log"), "w") as log:
                subprocess.run(own, cwd=os.path.dirname(HERE), check=True, stdout=log, stderr=log)
            with open(folder + "/own/metrics.jsonl") as file:
                curves["grpo_sg.py"].append(
                    [row["reward"] for row in map(json.loads, file) if "reward" in row])
            launch(2, "-m", "bridges.trl_train", *flags, "--out", folder + "/trl", "--save_every", "40")
            with open(folder + "/trl/checkpoint-160/trainer_state.json") as file:
                curves["TRL, 2 processes"].append(
                    [row["reward"] for row in json.load(file)["log_history"] if "reward" in row])
        for name, all_runs in curves.items():
            rewards = all_runs[-1]
            print(f"{name}, seed {seed}: steps 1-5 {sum(rewards[:5]) / 5:.2f}, "
                  f"36-40 {sum(rewards[-5:]) / 5:.2f}", flush=True)
        save(flags=" ".join(FLAGS), seeds=SEEDS, learn=curves)


def cost(start, B=4, T=128):
    """CPU seconds of loss and backward pass on a micro-batch (B, T): the two trainers in turn, ten times."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    import grpo_sg
    from bridges import trl_train
    with tempfile.TemporaryDirectory() as folder:
        model = Qwen2ForCausalLM(Qwen2Config(
            vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0))
        model.save_pretrained(folder)
        PreTrainedTokenizerFast.from_pretrained(start).save_pretrained(folder)
        trainers = {shaping: trl_train.make_trainer(
            grpo_sg.parse([*FLAGS, "--train_problems", "200", "--model", folder, "--shaping", shaping]),
            output_dir=folder, use_cpu=True)
            for shaping in ("none", "sg")}
    ids = torch.randint(1, 4096, (B, 2 * T))
    batch = {"prompt_ids": ids[:, T:T + 32], "prompt_mask": torch.ones(B, 32, dtype=torch.long),
             "completion_ids": ids[:, :T], "completion_mask": torch.ones(B, T, dtype=torch.long),
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
    save(cost={"B": B, "T": T, "weights": model.num_parameters(), "seconds": seconds})


def figure():
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "grpo-sg", "axes.spines.top": False,
                         "axes.spines.right": False, "figure.constrained_layout.use": True})
    with open(RESULTS) as file:
        curves = json.load(file)["learn"]
    plot, axes = plt.subplots(figsize=(5, 2.8))
    for (name, runs), color in zip(curves.items(), ("#2166ac", "#d95f02")):
        for run in runs:
            axes.plot(range(1, len(run) + 1), run, color=color, lw=0.6, alpha=0.5)
        means = [sum(values) / len(values) for values in zip(*runs)]
        axes.plot(range(1, len(means) + 1), means, color=color, label=name)
    axes.legend(frameon=False)
    axes.set(xlabel="training step", ylabel="mean reward",
             title=f"--task kk, {len(runs)} seeds and their mean")
    plot.savefig(os.path.join(HERE, "figures", "processes.svg"), metadata={"Date": None})


if __name__ == "__main__":
    {"first": first, "learn": learn, "cost": cost, "figure": figure,
     "one_step": one_step}[sys.argv[1]](*sys.argv[2:])
