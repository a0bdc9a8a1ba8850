"""What the experiments on learning share: warm starts of the tiny model, copies of one that are trained with
one thing changed, files of rows with which a stopped command goes on, and intervals."""
import contextlib
import copy
import dataclasses
import datetime
import functools
import json
import math
import pathlib
import statistics
import subprocess
import time
from unittest import mock

import torch

import grpo_sg
import tasks
from grpo_sg import grpo_sg_loss
from support import tiny

RESULTS = pathlib.Path(__file__).parent / "results"
# 97.5 % quantiles of Student's t with 1, 2, .. 29 degrees of freedom.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
         2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
         2.052, 2.048, 2.045)


# ---- Warm starts, and training from them ----

@functools.lru_cache(1)
def warm_start(seed, warmup, **settings):
    """(model, tokenizer, task, cfg): the tiny model of `python grpo_sg.py` with these settings, after a warm-up
    of so many steps. It is for copying: the next call may return the same."""
    cfg = grpo_sg.parse([], seed=seed, eval_every=10 ** 6, **settings)
    task = tasks.make_task(cfg)._replace(warmup=warmup)
    torch.manual_seed(seed)
    model, tokenizer = tiny.tiny_model(task)
    tiny.warm_up(model, tokenizer, task, cfg)
    return model.eval(), tokenizer, task, cfg


def train_copy(start, patches=None, **settings):
    """(model, row): a copy of the warm start trained with these settings, and what there is to say of the
    training. patches: name -> what stands there in the place of grpo_sg's own."""
    model, tokenizer, task, cfg = start
    model = copy.deepcopy(model)
    norms = []  # of every update, before clipping
    clip = torch.nn.utils.clip_grad_norm_

    def clip_and_note(*given):
        norms.append(clip(*given))
        return norms[-1]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.nn.utils, "clip_grad_norm_", clip_and_note))
        for name, replacement in (patches or {}).items():
            stack.enter_context(mock.patch.object(grpo_sg, name, replacement))
        rows, _ = grpo_sg.train(model, tokenizer, task, dataclasses.replace(cfg, **settings))
    norms = [float(norm) for norm in norms if norm.isfinite()]
    average = statistics.fmean(norms)
    found = {"norm mean": average, "norm max": max(norms), "norm cv": statistics.stdev(norms) / average,
             "norm above 1": statistics.fmean(norm > cfg.grad_clip for norm in norms),
             "not finite": sum(row["skipped"] for row in rows)}
    for key in ("weight_mean", "low_prob_frac", "clip_frac", "entropy"):
        values = [row[key] for row in rows if row[key] is not None]  # None: no group had a signal
        found[key] = statistics.fmean(values) if values else None
    found["curve"] = [round(row["accuracy"], 3) for row in rows]
    return model, found


def measure(model, start, problems):
    """avg@4, greedy accuracy, and the share of the four that is cut off."""
    _, tokenizer, task, cfg = start
    row, _ = grpo_sg.evaluate(model, tokenizer, task, problems, cfg, samples=4)
    return {"avg@4": row["eval/avg@4"], "greedy": row["eval/accuracy"], "truncated": row["eval/truncated@4"]}


# ---- Weights that the program does not have, for patches of grpo_sg_loss ----

def loss_of(weigh):
    """A patch: grpo_sg_loss with the weights that weigh(w, pi, mask) makes of GRPO-SG's own, all (B, T)."""
    def loss(logps, old_logps, advantages, mask, *, weights, **more):
        changed = weigh(weights, logps.detach().exp(), mask)
        return grpo_sg_loss(logps, old_logps, advantages, mask, weights=changed, **more)
    return {"grpo_sg_loss": loss}


def over_mean(w, pi, mask):
    """The weights with mean 1 over the tokens of the update: its micro-batch has them all."""
    return w / w[mask].mean()


# ---- Rows ----

def read_rows(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_jobs(path, jobs, work):
    """work(**job), a dict, of each job, a dict, of which the file has no row yet; appends a row, the two with
    commit and date. Stop it when you like; processes with different jobs may share the file. Rows of another
    program count as done: move its file away first."""
    torch.set_num_threads(1)
    for job in jobs:
        if any(job.items() <= row.items() for row in read_rows(path)):
            continue
        started = time.process_time()
        row = {**job, **work(**job)}
        row.update(cpu_seconds=round(time.process_time() - started, 1), commit=name_commit(),
                   date=str(datetime.date.today()))
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")
        print(time.strftime("%H:%M:%S"), *job.values(), f"avg@4 {row['avg@4']:.3f}", flush=True)


@functools.cache
def name_commit():
    """The commit of the program, with "changed" if a script differs from it."""
    def git(*words):
        done = subprocess.run(["git", *words], cwd=RESULTS, capture_output=True, text=True)
        return done.stdout.strip()
    changed = git("status", "--porcelain", "--", ":/*.py")
    return git("rev-parse", "--short", "HEAD") + (" changed" if changed else "")


def select(rows, **values):
    """{seed: row} of the rows with these values."""
    return {row["seed"]: row for row in rows if values.items() <= row.items()}


def best_rates(rows):
    """{name: the learning rate with the highest mean avg@4}"""
    found = {}
    for row in rows:
        found.setdefault(row["name"], {}).setdefault(row["lr"], []).append(row["avg@4"])
    best = {}
    for name, rates in found.items():
        means = {lr: statistics.fmean(values) for lr, values in rates.items()}
        best[name] = max(means, key=means.get)
    return best


# ---- Intervals ----

def interval(values):
    """(mean, low, high), the 95 % interval by Student's t."""
    average = statistics.fmean(values)
    half = T_975[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return average, average - half, average + half


def in_words(values):
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*interval(values)) + f", {len(values)} seeds"


def differences(a, b, key="avg@4"):
    """A row's value minus that of the row in b with the same seed; a, b: seed -> row."""
    return [a[seed][key] - b[seed][key] for seed in sorted(a.keys() & b.keys())]


def subtract(a, b):
    """The values of a minus those of b, at the seeds of both; a, b: seed -> value."""
    return [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]
