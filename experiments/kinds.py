"""Which kind of token carries the signal, before training and after 15 steps?

    python -m experiments.kinds FOLDER PLACE     appends to results/kinds.jsonl

FOLDER has a tiny model of lesson/words.py with the filler words in this place. Kinds: the filler
words; the shortcut, a </think> before the last line of the reasoning; claims, such as KNK; the
rest. Each is split at pi = 1/3. Shares are for groups, as in lesson/look.py; alignment is that of a
run's own minibatches, as in experiments/noise.py.
"""
import random
import re
import sys

import torch

import grpo_sg
from experiments import noise
from experiments.compare import RESULTS, append_rows, name_commit

SEEDS = 200, 201, 202
KINDS = "filler", "shortcut", "claim", "rest"


def find_kinds(batch, tokenizer, logps):
    """Return {kind and side of 1/3: mask (B, T)}."""
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    fillers = torch.tensor([i for i, name in enumerate(names)
                            if name.strip(" :") in noise.tasks.STYLE and name[0] == " "])
    claims = torch.tensor([i for i, name in enumerate(names)
                           if re.fullmatch(r" [KN]{3}\.?", name)])
    filler = torch.isin(batch.ids, fillers) & batch.mask
    claim = torch.isin(batch.ids, claims) & batch.mask
    end = (batch.ids == names.index(" </think>")) & batch.mask
    shortcut = end & (filler.cumsum(1) < 3)
    masks = dict(zip(KINDS, (filler, shortcut, claim, batch.mask & ~(filler | shortcut | claim))))
    low = logps < torch.log(torch.tensor(1/3))
    split = {}
    for kind, mask in masks.items():
        split[f"{kind} <"], split[f"{kind} >"] = mask & low, mask & ~low
    return split


def gradient(policy, completions, cfg):
    """Return ((10, size), tokens and mean pi of each kind): the gradients of the kinds, with
    GRPO-SG's weight, and with the weight of a likely token on the shortcut."""
    parameters = list(policy.model.parameters())
    weighted = noise.dataclasses.replace(cfg, shaping="sg")
    total = torch.zeros(2 * len(KINDS) + 2, policy.model.num_parameters())
    tokens = torch.zeros(2 * len(KINDS))
    for batch in grpo_sg.micro_batches(completions, cfg, "cpu"):
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        A = batch.advantages[:, None] * batch.mask
        kinds = find_kinds(batch, policy.tokenizer, logps.detach())
        w = grpo_sg.weigh(logps, weighted)
        kept = torch.where(kinds["shortcut <"] | kinds["shortcut >"], cfg.high, w)
        for i, push in enumerate([*(A * mask for mask in kinds.values()), A * w, A * kept]):
            if push.any():
                parts = torch.autograd.grad(logps, parameters, push, retain_graph=True)
                total[i] += torch.cat([part.flatten() for part in parts])
        tokens += torch.tensor([float(mask.sum()) for mask in kinds.values()])
    return total, tokens


def look(policy, task, cfg, step):
    groups, minibatches, tokens = [], [], 0
    for k in range(noise.ROLLOUTS):
        seed = cfg.seed * 1_000_003 + 1000 * (step + 1) + k
        problems = random.Random(seed).sample(task.train, cfg.prompts)
        drawn = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                temperature=cfg.temperature, seed=seed)
        grpo_sg.set_advantages(drawn, cfg.group_size)
        for group in grpo_sg.split_groups(drawn, cfg.group_size):
            g, n = gradient(policy, group, cfg)
            groups.append(g)
            tokens = tokens + n
        shuffled = random.Random(seed).sample(drawn, len(drawn))
        minibatches.append(torch.stack([gradient(policy, shuffled[i::cfg.updates], cfg)[0]
                                        for i in range(cfg.updates)]))
    g = torch.stack(groups)[:, :-2]                   # (K, 8, size)
    K, every = len(g), g.sum(1)                       # (K, size)
    S, total = g.sum(0), g.sum((0, 1))
    along = (S @ total - torch.einsum("kas,ks->a", g, every)) / (K * (K - 1))
    lengths = ((S * S).sum(1) - (g * g).sum((0, 2))) / (K * (K - 1))
    noises = (g * g).sum((0, 2)) / K - lengths
    square = (total @ total - (every * every).sum()) / (K * (K - 1))
    noise_of_all = (every * every).sum() / K - square
    m = torch.stack(minibatches)
    plain = m[:, :, :-2].sum(2)
    mean = plain.sum((0, 1)) - plain.sum(1)
    cosines = [torch.cosine_similarity(x, mean[:, None], dim=-1).mean(1)
               for x in (plain, m[:, :, -2], m[:, :, -1])]
    names = [f"{kind} {side}" for kind in KINDS for side in "<>"]
    return {"tokens": dict(zip(names, tokens.tolist())),
            "signal": {n: round(float(x), 4) for n, x in zip(names, along / square)},
            "noise": {n: round(float(x), 4) for n, x in zip(names, noises / noise_of_all)},
            "GRPO-SG": noise.compare_means(cosines[1], cosines[0]),
            "GRPO-SG, shortcut kept": noise.compare_means(cosines[2], cosines[0])}


class LookingRun(noise.NoisyRun):
    def log_step(self, row, completions, *seconds):
        self.rows.append(row)
        if row["step"] == self.moment:
            self.aligned = look(self.policy, self.task, self.cfg, self.moment)


def main(folder, place):
    for seed in SEEDS:
        cfg = noise.make_config(seed, model=folder, task="lesson/words.py", data=place, steps=15,
                                max_new_tokens=72)
        policy, task = grpo_sg.load(cfg)
        rows = [(0, look(policy, task, cfg, 0))]
        run = LookingRun(cfg, policy, task, 15)
        grpo_sg.train(policy, task, cfg, run)
        rows.append((15, run.aligned))
        for step, numbers in rows:
            row = {"place": place, "model": folder, "seed": seed, "step": step, **numbers,
                   "commit": name_commit()}
            append_rows(RESULTS / "kinds.jsonl", [row])
            print(row, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
