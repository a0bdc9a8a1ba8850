"""Does a better aligned update learn faster? Only the noise of the updates changes between runs.

    python -m experiments.noise run     the runs of the rule, results/rules.md#noise, with rows in
                                        results/noise.jsonl: 20 minutes on one idle core
    python -m experiments.noise show    the slope and the other outcomes

In each line of its reasoning the tiny model writes a random filler word, which decides nothing: its
push has a mean near 0, so it is noise. An arm multiplies the push of these words by a factor, and
changes nothing else. The mean gradient stays, and the alignment of an update with it changes. A
command that was stopped makes the missing rows.
"""
import copy
import dataclasses
import random
import statistics
import sys

import torch

import grpo_sg
import tasks
from experiments.compare import RESULTS, append_rows, interval, name_commit, read_rows

ROWS = RESULTS / "noise.jsonl"
MODEL = "support/pretrained/kk"
FACTORS = 0, 1, 5, 15     # of the filler words' push; 1 is GRPO
ARMS = *map(str, FACTORS), "GRPO-SG"
SEEDS = range(200, 240)
RATE = 2e-4
OTHER_RATES = 1e-4, 4e-4  # of GRPO and the largest factor only
LOOKS = range(200, 203)   # seeds in which alignment is measured,
MOMENT = 15               # before the first step and after this one
ROLLOUTS = 32             # for an alignment


def make_config(seed, **more):
    settings = grpo_sg.read_saved(MODEL) | dict(
        model=MODEL, seed=seed, prompts=8, updates=4, steps=20, eval_every=1000,
        train_problems=400, eval_problems=10, shaping="none")
    return grpo_sg.Config(**settings | more)


def list_fillers(tokenizer):
    """Return the ids of the tokens that are filler words."""
    ids = [tokenizer.convert_tokens_to_ids(f" {word}:") for word in tasks.STYLE]
    return torch.tensor([i for i in ids if i != tokenizer.unk_token_id])


class SilentRun(grpo_sg.Run):
    """A run that writes and prints nothing."""

    def log_step(self, row, completions, *seconds):
        self.rows.append(row)


def train_arm(policy, task, cfg, factor=1):
    """Train a copy of the policy, with the push of filler words multiplied by the factor. Returns
    (the copy, the rows of its steps)."""
    fillers = list_fillers(policy.tokenizer)
    make_batch = grpo_sg.make_batch

    def make_scaled_batch(completions, device):
        # A constant weight on a token is an advantage of the token's own.
        batch = make_batch(completions, device)
        scale = torch.where(torch.isin(batch.ids, fillers), float(factor), 1.0)
        batch.advantages = batch.advantages[:, None] * scale
        return batch

    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    grpo_sg.make_batch = make_scaled_batch
    try:
        return policy, grpo_sg.train(policy, task, cfg, SilentRun(cfg))
    finally:
        grpo_sg.make_batch = make_batch


# ---- Alignment of a run's own minibatches ----

def minibatch_gradients(policy, completions, cfg, fillers):
    """Return the gradients of a minibatch, (3, size): of all tokens but fillers, of the fillers,
    and of all with GRPO-SG's weight."""
    parameters = list(policy.model.parameters())
    weighted = dataclasses.replace(cfg, shaping="sg")
    total = torch.zeros(3, policy.model.num_parameters())
    for batch in grpo_sg.micro_batches(completions, cfg, "cpu"):
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        A = batch.advantages[:, None] * batch.mask
        filler = torch.isin(batch.ids, fillers)
        pushes = A * ~filler, A * filler, A * grpo_sg.weigh(logps, weighted)
        for i, push in enumerate(pushes):
            parts = torch.autograd.grad(logps, parameters, push, retain_graph=True)
            total[i] += torch.cat([part.flatten() for part in parts])
    return total


def measure_alignment(policy, task, cfg, step):
    """Return {arm: (alignment, standard error)}: the mean cosine of the arm's minibatches with the
    mean gradient, divided by GRPO's. The mean is that of the other rollouts."""
    fillers = list_fillers(policy.tokenizer)
    gradients = []
    for k in range(ROLLOUTS):
        seed = cfg.seed * 1_000_003 + 1000 * (step + 1) + k
        problems = random.Random(seed).sample(task.train, cfg.prompts)
        drawn = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                temperature=cfg.temperature, seed=seed)
        grpo_sg.set_advantages(drawn, cfg.group_size)
        shuffled = random.Random(seed).sample(drawn, len(drawn))
        parts = [shuffled[i::cfg.updates] for i in range(cfg.updates)]
        gradients.append(torch.stack([minibatch_gradients(policy, part, cfg, fillers)
                                      for part in parts]))
    others, filler, weighted = torch.stack(gradients).unbind(2)  # (ROLLOUTS, updates, size) each
    plain = others + filler
    mean = plain.sum((0, 1)) - plain.sum(1, keepdim=True)        # without the rollout itself
    updates = {str(factor): others + factor * filler for factor in FACTORS}
    updates["GRPO-SG"] = weighted
    cosines = {arm: torch.cosine_similarity(g, mean, dim=-1).mean(1)  # (ROLLOUTS,)
               for arm, g in updates.items()}
    return {arm: divide_means(x, cosines["1"]) for arm, x in cosines.items()}


def divide_means(x, y):
    """Return mean x / mean y of paired values, and its standard error by a jackknife."""
    n = len(x)
    without = (x.sum() - x) / (y.sum() - y)
    error = ((without - without.mean()) ** 2).sum().mul((n - 1) / n).sqrt()
    return round(float(x.mean() / y.mean()), 4), round(float(error), 4)


# ---- Runs and outcomes ----

def look(seed):
    """Return the rows of the alignment before training and after MOMENT steps of GRPO."""
    cfg = make_config(seed, steps=MOMENT)
    policy, task = grpo_sg.load(cfg)
    trained, _ = train_arm(policy, task, cfg)
    return [{"seed": seed, "step": step, "aligned": measure_alignment(each, task, cfg, step)}
            for step, each in ((0, policy), (MOMENT, trained))]


def make_run(policy, task, seed, lr, arm):
    """Return the row of a run: how many of each step's completions were solved."""
    sg = arm == "GRPO-SG"
    cfg = make_config(seed, lr=lr, shaping="sg" if sg else "none")
    _, steps = train_arm(policy, task, cfg, 1 if sg else int(arm))
    solved = [round(row["accuracy"] * cfg.prompts * cfg.group_size) for row in steps]
    return {"seed": seed, "lr": lr, "arm": arm, "solved": solved, "commit": name_commit()}


def make_runs():
    """Append the rows that are missing."""
    done = {(row["seed"], row.get("lr"), row.get("arm")) for row in read_rows(ROWS)}
    runs = [(RATE, arm) for arm in ARMS]
    runs += [(lr, arm) for lr in OTHER_RATES for arm in ("1", str(FACTORS[-1]))]
    for seed in SEEDS:
        if seed in LOOKS and (seed, None, None) not in done:
            append_rows(ROWS, look(seed))
        missing = [run for run in runs if (seed, *run) not in done]
        if missing:
            policy, task = grpo_sg.load(make_config(seed))
        for lr, arm in missing:
            append_rows(ROWS, [make_run(policy, task, seed, lr, arm)])


def summarize(rows):
    """Return (x, d, slopes): of each arm its mean alignment minus 1, and {(rate, arm): the paired
    differences from GRPO in mean accuracy}; and each seed's slope of d over x."""
    looks = [row["aligned"] for row in rows if "aligned" in row]
    x = {arm: statistics.fmean(look[arm][0] for look in looks) - 1 for arm in ARMS}
    accuracy = {(row["lr"], row["arm"], row["seed"]): sum(row["solved"]) / 64 / len(row["solved"])
                for row in rows if "arm" in row}
    d = {}
    for lr, arm, seed in accuracy:
        if arm != "1":
            change = accuracy[lr, arm, seed] - accuracy[lr, "1", seed]
            d.setdefault((lr, arm), []).append(change)
    dose = [str(factor) for factor in FACTORS if factor != 1]
    slopes = [sum(x[arm] * d[RATE, arm][i] for arm in dose) / sum(x[arm] ** 2 for arm in dose)
              for i in range(len(d[RATE, dose[0]]))]
    return x, d, slopes


def show():
    x, d, slopes = summarize(read_rows(ROWS))
    for (lr, arm), changes in sorted(d.items()):
        mean, low, high = interval(changes)
        print(f"rate {lr}, {arm:7} alignment {1 + x[arm]:.3f}, accuracy minus GRPO's: "
              f"{mean:+.4f} [{low:+.4f}, {high:+.4f}], {len(changes)} seeds")
    slope = interval(slopes)
    print("slope: {:+.4f} [{:+.4f}, {:+.4f}]".format(*slope))
    print("so GRPO-SG should be ahead by {:+.4f} [{:+.4f}, {:+.4f}]".format(
        *(x["GRPO-SG"] * value for value in slope)))


if __name__ == "__main__":
    {"run": make_runs, "show": show}[sys.argv[1]]()
