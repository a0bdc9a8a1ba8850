"""Does a better aligned update learn faster? Only the noise of the updates changes between runs.

    python -m experiments.noise run       the runs of the rule, results/noise_rule.txt, with rows
                                          in results/noise.jsonl: 20 minutes on one core
    python -m experiments.noise places    the runs of its second part: 25 minutes
    python -m experiments.noise show      the slope and the other outcomes

In each line of its reasoning the tiny model writes a random filler word, which decides nothing: its
push has a mean near 0, so it is noise. An arm multiplies the push of these words by a factor, and
changes nothing else. The mean gradient stays, and the alignment of an update with it changes. A
command that was stopped makes the missing rows.
"""
import copy
import dataclasses
import itertools
import os
import random
import subprocess
import sys

import torch

import grpo_sg
import tasks
from experiments.compare import RESULTS, append_rows, name_commit, read_rows

ROWS = RESULTS / "noise.jsonl"
FACTORS = 0, 1, 5, 15     # of the filler words' push; 1 is GRPO
SEEDS = range(200, 240)
OTHER_RATES = 1e-4, 4e-4  # of GRPO and the largest factor only
LOOKS = range(200, 203)   # seeds in which alignment is measured,
MOMENT = 15               # before the first step and after this one (or after the last)
ROLLOUTS = 32             # for an alignment
PLACES = "after", "before"  # of the filler words in lesson/words.py
MODELS = 3                # tiny models for each place
PLACE_SEEDS = 20          # for each of these models


def make_config(seed, **more):
    settings = grpo_sg.read_saved("support/pretrained/kk") | dict(
        model="support/pretrained/kk", seed=seed, prompts=8, updates=4, steps=20, eval_every=1000,
        train_problems=400, eval_problems=10, shaping="none")
    return grpo_sg.Config(**settings | more)


def list_fillers(tokenizer):
    """Return the ids of the tokens that are filler words."""
    words = {word.strip(" :,"): i for word, i in tokenizer.get_vocab().items() if word[-1] == ":"}
    return torch.tensor([words[word] for word in tasks.STYLE if word in words])


class NoisyRun(grpo_sg.Run):
    """A run that writes nothing, and measures alignment after MOMENT if it is asked to."""

    def __init__(self, cfg, policy, task, moment):
        super().__init__(cfg)
        self.policy, self.task, self.moment = policy, task, moment
        self.aligned = None

    def log_step(self, row, completions, *seconds):
        self.rows.append(row)
        if row["step"] == self.moment:
            self.aligned = measure_alignment(self.policy, self.task, self.cfg, self.moment)


def train_arm(policy, task, cfg, factor=1, moment=None):
    """Train a copy of the policy, with the push of filler words multiplied by the factor. Returns
    the run."""
    fillers = list_fillers(policy.tokenizer)
    make_batch = grpo_sg.make_batch

    def make_scaled_batch(completions, device):
        # A constant weight on a token is an advantage of the token's own.
        batch = make_batch(completions, device)
        scale = torch.where(torch.isin(batch.ids, fillers), float(factor), 1.0)
        batch.advantages = batch.advantages[:, None] * scale
        return batch

    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    run = NoisyRun(cfg, policy, task, moment)
    grpo_sg.make_batch = make_scaled_batch
    try:
        grpo_sg.train(policy, task, cfg, run)
    finally:
        grpo_sg.make_batch = make_batch
    return run


# ---- Alignment of a run's own minibatches ----

def minibatch_gradients(policy, completions, cfg, fillers):
    """Return the gradients of a minibatch, (3, size): of all tokens but fillers, of the fillers,
    and of all with GRPO-SG's weight."""
    parameters = list(policy.model.parameters())
    weighted = dataclasses.replace(cfg, shaping="sg")
    total = torch.zeros(3, policy.model.num_parameters())
    for batch in grpo_sg.micro_batches(completions, cfg, "cpu"):
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        A = batch.advantages.reshape(len(batch.ids), -1) * batch.mask
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
    gradients = []  # (ROLLOUTS, updates, 3, size)
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
    gradients = torch.stack(gradients)
    plain = gradients[:, :, 0] + gradients[:, :, 1]
    mean = plain.sum((0, 1)) - plain.sum(1)  # (ROLLOUTS, size): without the rollout itself
    arms = {"GRPO-SG": gradients[:, :, 2]}
    for factor in FACTORS:
        arms[str(factor)] = gradients[:, :, 0] + factor * gradients[:, :, 1]
    cosines = {arm: torch.cosine_similarity(g, mean[:, None], dim=-1).mean(1)  # (ROLLOUTS,)
               for arm, g in arms.items()}
    return {arm: compare_means(x, cosines["1"]) for arm, x in cosines.items()}


def compare_means(x, y):
    """Return mean x / mean y of paired values, and its standard error by a jackknife."""
    n = len(x)
    without = (x.sum() - x) / (y.sum() - y)
    error = ((without - without.mean()) ** 2).sum().mul((n - 1) / n).sqrt()
    return round(float(x.mean() / y.mean()), 4), round(float(error), 4)


# ---- The runs ----

def plan_factors():
    """Yield (settings, runs, whether to look) for each seed. A run is a rate and an arm."""
    runs = [(2e-4, arm) for arm in (*map(str, FACTORS), "GRPO-SG")]
    runs += [(lr, arm) for lr in OTHER_RATES for arm in ("1", str(FACTORS[-1]))]
    for seed in SEEDS:
        yield {"seed": seed}, runs, seed in LOOKS


def plan_places():
    """Yield the same for each place of the words, tiny model and seed."""
    for i, place, k in itertools.product(range(PLACE_SEEDS), PLACES, range(MODELS)):
        folder = f"runs/noise/{place}-{k}"
        if not os.path.isdir(folder):
            subprocess.run([sys.executable, "-m", "support.tiny", "lesson/words.py",
                            "--data", place, "--seed", str(k), "--train_problems", "20000",
                            "--out", folder], check=True)
        settings = dict(seed=300 + PLACE_SEEDS * k + i, task="lesson/words.py", data=place,
                        model=folder, steps=10, max_new_tokens=72)
        yield settings, [(2e-4, "1"), (2e-4, "GRPO-SG")], i == 0


def make_runs(plan):
    """Make the runs that have no row yet, and append their rows: how many of each step's
    completions were solved."""
    rows = read_rows(ROWS)
    done = {(row["model"], row["seed"], row.get("lr"), row.get("arm")) for row in rows}
    for settings, runs, look in plan:
        cfg = make_config(**settings)
        missing = [run for run in runs if (cfg.model, cfg.seed, *run) not in done]
        if not missing:
            continue
        policy, task = grpo_sg.load(cfg)
        name = {"model": cfg.model, "seed": cfg.seed}
        for lr, arm in missing:
            sg = arm == "GRPO-SG"
            here = dataclasses.replace(cfg, lr=lr, shaping="sg" if sg else "none")
            moment = min(MOMENT, cfg.steps) if look and (lr, arm) == (2e-4, "1") else None
            run = train_arm(policy, task, here, 1 if sg else int(arm), moment)
            if moment:
                before = measure_alignment(policy, task, cfg, 0)
                append_rows(ROWS, [{**name, "step": 0, "aligned": before},
                                   {**name, "step": moment, "aligned": run.aligned}])
            solved = [round(row["accuracy"] * cfg.prompts * cfg.group_size) for row in run.rows]
            append_rows(ROWS, [{**name, "lr": lr, "arm": arm, "solved": solved,
                                "commit": name_commit()}])
            print(cfg.model, cfg.seed, lr, arm, sum(solved), flush=True)


if __name__ == "__main__":
    make_runs({"run": plan_factors, "places": plan_places}[sys.argv[1]]())
