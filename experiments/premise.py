"""Is the premise true? Gradient norms of single tokens against their probability, on real rollouts.

    python experiments/premise.py --seeds 0 1 2 3 4      about five minutes a seed on one core

Results are appended to results/premise.jsonl, a task and seed a line.

The policy is the tiny model of `python grpo_sg.py --task TASK` after 30 steps, the tokens are those of
completions of training problems. For each token: its probability pi, the norm of the gradient of log pi with
respect to all weights and with respect to the logits. The latter lies between sqrt(N / (N - 1)) (1 - pi) and
sqrt(2) (1 - pi), with N words: checked here for every token. Then, for the loss, the share of the sum of
squared norms (each times its weight and advantage, squared) that tokens with pi < 1/3 carry under each
shaping.
"""
import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import torch  # noqa: E402
from tqdm import tqdm  # noqa: E402

import grpo_sg  # noqa: E402
import tasks  # noqa: E402


def token_norms(model, completion, bar):
    """[(pi, norm over the weights, norm over the logits)] of each token of a completion."""
    ids = torch.tensor([completion.prompt + completion.tokens])
    logits = model(input_ids=ids).logits[0, len(completion.prompt) - 1:-1]  # (T, V)
    logps = logits.log_softmax(-1)
    found = []
    for t, token in enumerate(completion.tokens):
        bar.update()
        if not completion.mask[t]:
            continue
        *grads, at_logits = torch.autograd.grad(logps[t, token], [*model.parameters(), logits],
                                                retain_graph=True)
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt().item()
        found.append((logps[t, token].exp().item(), norm, at_logits.norm().item()))
    return found


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    return [rank for _, rank in sorted(zip(order, range(len(values))))]


def measure(task_name, seed):
    with tempfile.TemporaryDirectory() as folder:
        grpo_sg.main(["--task", task_name, "--steps", "30", "--eval_samples", "0", "--seed", str(seed),
                      "--out", f"{folder}/run"])
        model, tokenizer = grpo_sg.read_model(f"{folder}/run/checkpoint", local=True)
    cfg = grpo_sg.parse(["--task", task_name, "--seed", str(seed)])
    task = tasks.TASKS[task_name](cfg)
    model.generation_config.eos_token_id = 0
    completions = grpo_sg.rollout(model, tokenizer, task, task.train[-32:], cfg, n=8, temperature=1.0,
                                  seed=seed)
    rewards = torch.tensor([grpo_sg.reward(c) for c in completions]).view(-1, 8)
    advantages = grpo_sg.group_advantages(rewards).flatten().tolist()
    rows = []  # pi, norm, norm at the logits, advantage
    with tqdm(total=sum(len(c.tokens) for c in completions), desc="gradients") as bar:
        for c, A in zip(completions, advantages):
            rows += [(*found, A) for found in token_norms(model, c, bar)]
    V = model.config.vocab_size
    for pi, _, norm, _ in rows:
        assert (V / (V - 1)) ** 0.5 * (1 - pi) - 1e-5 <= norm <= 2 ** 0.5 * (1 - pi) + 1e-5
    pi = [row[0] for row in rows]
    unlikely = [1 - p for p in pi]
    norms = [row[1] for row in rows]
    result = {"task": task_name, "seed": seed, "tokens": len(rows), "words": V,
              "share of tokens with pi < 1/3": statistics.fmean(p < 1 / 3 for p in pi),
              "Pearson": statistics.correlation(norms, unlikely),
              "Spearman": statistics.correlation(ranks(norms), ranks(unlikely)), "share of squared norm": {}}
    for shaping in ("none", "sg", "ar", "reverse"):
        weights = grpo_sg.shaping_weights(torch.tensor(pi).log(), grpo_sg.Config(shaping=shaping))
        weights = [1.0] * len(pi) if weights is None else weights.tolist()
        squares = [(w * row[3] * row[1]) ** 2 for w, row in zip(weights, rows)]
        result["share of squared norm"][shaping] = sum(
            square for square, p in zip(squares, pi) if p < 1 / 3) / sum(squares)
    # For the figure: all tokens below 0.98, and a hundred of the many above.
    order = sorted(range(len(rows)), key=lambda i: pi[i])
    n = sum(p < 0.98 for p in pi)
    keep = order[:n] + order[n::max(1, (len(order) - n) // 100)]
    result["sample: pi, norm, norm at the logits"] = [[round(x, 3) for x in rows[i][:3]] for i in keep]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    seeds = parser.parse_args().seeds
    for seed, task in itertools.product(seeds, tasks.TASKS):
        result = measure(task, seed)
        if seed != seeds[0]:
            del result["sample: pi, norm, norm at the logits"]
        with open(os.path.join(HERE, "results", "premise.jsonl"), "a") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
