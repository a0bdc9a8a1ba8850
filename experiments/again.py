"""Is GRPO-SG ahead of GRPO in the first 20 steps? The runs of the rule `again`.

    python -m experiments.again            results/again.jsonl: an hour of one core

The rule is in results/rules.md. A command that was stopped makes the missing rows.
"""
import copy
import dataclasses

import grpo_sg
from experiments import rates
from experiments.compare import RESULTS, append_rows, name_commit, read_rows

ROWS = RESULTS / "again.jsonl"
SEEDS = range(4000, 4400)
RATIO = 1.036  # GRPO-SG's plain progress ratio, measured before training (rule `rates`)
ARMS = {"GRPO": ("none", rates.RATE), "GRPO-SG": ("sg", rates.RATE),
        "GRPO x 1.036": ("none", RATIO * rates.RATE)}


def train_arm(policy, task, cfg):
    """Train a copy of the policy. Returns how many completions each step solved."""
    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    rows = [row for row, _ in grpo_sg.train(policy, task, cfg)]
    return [round(row["accuracy"] * cfg.prompts * cfg.group_size) for row in rows]


def main():
    done = {row["seed"] for row in read_rows(ROWS)}
    for seed in SEEDS:
        if seed not in done:
            policy, task = grpo_sg.load(rates.make_config("kk", seed))
            solved = {name: train_arm(policy, task, rates.make_config("kk", seed, shaping=shaping,
                                                                      lr=lr))
                      for name, (shaping, lr) in ARMS.items()}
            append_rows(ROWS, [{"seed": seed, "commit": name_commit(), "solved": solved}])


if __name__ == "__main__":
    main()
