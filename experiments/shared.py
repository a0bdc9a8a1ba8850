"""What choice.py and classes.py share: warm starts, single steps of training, weights."""
import dataclasses
import math
import random
import subprocess

import torch

import grpo_sg
from experiments.analysis import RESULTS
from grpo_sg import grpo_sg_loss
from support import cli, tiny


def name_commit():
    """Return the commit of the program, with "changed" if a script differs from it."""
    def git(*words):
        done = subprocess.run(["git", *words], cwd=RESULTS, capture_output=True, text=True)
        return done.stdout.strip()
    changed = git("status", "--porcelain", "--", ":/*.py")
    return git("rev-parse", "--short", "HEAD") + (" changed" if changed else "")


# ---- Weights ----

def weigh_sg(logps):
    return grpo_sg.token_weights(logps)


def weigh_damping(logps, d=10):
    """Return GRPO-SG's weight with damping factor d: its largest value over its smallest."""
    return grpo_sg.token_weights(logps) ** (math.log(d) / math.log(1.4))


def loss_with_damping(logps, old_logps, advantages, mask, *, weights=None, **more):
    """Return grpo_sg_loss with damping 10, divided by its mean over the tokens of the update, which
    is one micro-batch."""
    w = weigh_damping(logps)
    return grpo_sg_loss(logps, old_logps, advantages, mask, weights=w / w[mask.bool()].mean(),
                        **more)


# ---- Training ----

def begin(name, seed, **settings):
    """Return (policy, task, cfg) of GRPO at the warm start of this seed."""
    cfg = cli.parse(["--task", name, "--seed", str(seed), "--shaping", "none"])
    cfg = dataclasses.replace(cfg, warm_up=True, **settings)
    policy, task, _ = cli.load(cfg)
    tiny.warm_up(policy, task, cfg)
    return policy, task, cfg


def make_optimizer(policy, cfg):
    """Return the optimizer that grpo_sg.train uses."""
    return torch.optim.AdamW(policy.model.parameters(), cfg.lr, betas=(0.9, 0.99),
                             weight_decay=0, fused=True)


def draw_rollout(policy, task, cfg, step):
    """Sample the groups of this step and set their advantages. Returns (completions, seed)."""
    seed = cfg.seed * 1_000_003 + step
    problems = random.Random(seed).sample(task.train, min(cfg.prompts, len(task.train)))
    completions = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                  temperature=cfg.temperature, seed=seed)
    grpo_sg.set_advantages(completions, cfg.group_size)
    return completions, seed


def train_step(policy, optimizer, task, cfg, step):
    """Make one step of grpo_sg.train."""
    completions, seed = draw_rollout(policy, task, cfg, step)
    return grpo_sg.learn(policy, optimizer, completions, cfg, None, seed)
