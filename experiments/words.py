"""When does the weight help? Efficiency and learning on lesson/words.py, with a tiny model for each
place of the words. The rule is results/words_rule.txt.

    python -m experiments.words models    the models, runs/words/PLACE: 80 CPU seconds each
    python -m experiments.words look      efficiency before training: 20 seconds a place and seed
    python -m experiments.words learn     runs with each weight, 7 seconds each; in the first
                                          ones of GRPO also the efficiency in training
    python -m experiments.words record    default runs of kk, into results/default.jsonl: 45 each

Rows go to results/words_look.jsonl and results/words_learn.jsonl. A command that was stopped makes
the missing rows.
"""
import copy
import dataclasses
import datetime
import os
import pathlib
import resource
import subprocess
import sys

import torch

import grpo_sg
import tasks
from experiments.analysis import RESULTS, append_rows, name_commit, read, read_rows
from lesson import words
from support import look
from support import tiny

MODELS = {place: f"runs/words/{place}" for place in ("nowhere", "before", "after-4")}
MODELS["after"] = "support/pretrained/kk"
# Each with its settings. Damping d without a clip: the sigmoid's own range, from 1/d of its
# largest value to that.
WEIGHTS = {"GRPO": dict(shaping="none"), "GRPO-SG": {},
           "damping 4": dict(mu=1/3, low=0.0, high=2.0),
           "damping 11": dict(mu=0.45, low=0.0, high=2.0)}
LEARNED = "before", "after"                # the places of the runs
ARMS = "GRPO", "GRPO-SG", "damping 11"     # their weights
SEEDS = range(100, 120)
TESTS = 10, 20        # steps after which a run is tested
LOOKS = 3             # seeds of the efficiency
MOMENTS = 15,         # steps after which the first runs of GRPO are looked at
GROUPS, PER_UPDATE = 256, 8  # of each efficiency; in the runs an update has two groups' worth


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def config(place, seed, **more):
    settings = tiny.TINY | words.SETTINGS | dict(
        task="lesson/words.py", data=place, model=MODELS[place], seed=seed, prompts=8, updates=4,
        steps=20, eval_every=1000, train_problems=400, eval_problems=100, max_new_tokens=72)
    return grpo_sg.Config(**settings | more)


def make_models():
    for place, folder in MODELS.items():
        if not os.path.isdir(folder):
            cfg = config(place, 0, train_problems=20000)
            tiny.save(tiny.train(cfg, tiny.NEW, new=True), cfg, folder)


def load(place, seed):
    """Return (policy, task, cfg) of a place: its model, and the puzzles of the seed."""
    cfg = config(place, seed)
    model, tokenizer = grpo_sg.load_model(cfg.model)
    model = grpo_sg.prepare(model, torch.device("cpu"))
    policy = grpo_sg.Policy(model, tokenizer, grpo_sg.find_stop_ids(model, tokenizer))
    return policy, tasks.encode_problems(words.make_task(cfg), policy, cfg), cfg


def append(name, row, started):
    """Append the row to a file in results/, with the CPU seconds that it took."""
    row = {**row, "seconds": round(cpu_seconds() - started, 1), "commit": name_commit(),
           "date": str(datetime.date.today())}
    append_rows(RESULTS / f"words_{name}.jsonl", [row])


def has_row(name, **wanted):
    return any(all(row[key] == value for key, value in wanted.items())
               for row in read(f"words_{name}"))


# ---- Efficiency ----

def measure(policy, groups, cfgs):
    """Return look.Sums of [GRPO, each of cfgs, each of look.CLASSES]."""
    W = 1 + len(cfgs) + len(look.CLASSES)
    U = len(groups) // PER_UPDATE
    S = torch.zeros(U, W, look.length_of(policy))
    own_along, own_square = torch.zeros(2, U, W, dtype=torch.float64)
    tokens = torch.zeros(len(look.CLASSES))
    parameters = list(policy.model.parameters())
    for i, group in enumerate(groups):
        g = torch.zeros(W, look.length_of(policy))
        for batch in grpo_sg.micro_batches(group, cfgs[0], policy.model.device):
            logps = grpo_sg.compute_logps(policy.model, batch, cfgs[0])
            classes = look.coefficients(logps.detach(), batch, cfgs[0])[1:]
            weighted = [look.coefficients(logps.detach(), batch, cfg)[0] for cfg in cfgs]
            for j, c in enumerate([*weighted, *classes], start=1):
                if c.any():
                    g[j] += look.shorten(torch.autograd.grad(logps, parameters, c,
                                                             retain_graph=True))
            tokens += torch.tensor([float((c != 0).sum()) for c in classes])
        g[0] = g[-len(classes):].sum(0) if group[0].advantage or g.any() else 0
        S[i % U] += g
        own_along[i % U] += g @ g[0]
        own_square[i % U] += (g * g).sum(1)
    along = torch.einsum("kad,jd->kja", S, S[:, 0]).double()
    square = torch.einsum("kad,jad->kja", S, S).double()
    count = torch.full((U,), PER_UPDATE, dtype=torch.float64)
    return look.Sums(along, square, own_along, own_square, count, tokens)


def look_at(policy, task, cfg, step):
    """Append a row for each weight: its efficiency, and the shares of GRPO's signal and noise."""
    started = cpu_seconds()
    cfg = dataclasses.replace(cfg, seed=cfg.seed + 1000 * step)  # other groups at every step
    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    groups = look.sample_groups(policy, task, cfg, GROUPS)
    names = [weight for weight in WEIGHTS if weight != "GRPO"]
    cfgs = [dataclasses.replace(cfg, **{"shaping": "sg", **WEIGHTS[name]}) for name in names]
    sums = measure(policy, groups, cfgs)
    shared = len(look.CLASSES)
    for i, name in enumerate(names, start=1):
        kept = [0, i, *range(len(names) + 1, len(names) + 1 + shared)]
        numbers = look.describe(dataclasses.replace(
            sums, along=sums.along[..., kept], square=sums.square[..., kept],
            own_along=sums.own_along[:, kept], own_square=sums.own_square[:, kept]))
        row = {"place": cfg.data, "weight": name, "seed": cfg.seed - 1000 * step, "step": step,
               "tokens": dict(zip(look.CLASSES, sums.tokens.tolist()))}
        row |= {key: [round(x, 5) for x in pair] for key, pair in numbers.items()}
        append("look", row, started)
        print(cfg.data, name, step, row["seed"], row["efficiency"],
              f"{cpu_seconds() - started:.0f} s", flush=True)


# ---- Learning ----

class Watched(grpo_sg.Run):
    """A run that writes nothing, but tests its policy after some steps, and looks at it."""

    def __init__(self, cfg, policy, task, looks):
        super().__init__(cfg)
        self.policy, self.task, self.looks = policy, task, looks
        self.tests = {}

    def log_step(self, row, completions, *seconds):
        self.rows.append(row)
        if row["step"] in TESTS:
            test, _ = grpo_sg.evaluate(self.policy, self.task, self.task.test, self.cfg, samples=8)
            self.tests[row["step"]] = test
        if self.looks and row["step"] in MOMENTS:
            look_at(self.policy, self.task, self.cfg, row["step"])


def learn(place, seed, weight, policy, task):
    """Train a copy of the policy with this weight, and append the run's row."""
    started = cpu_seconds()
    cfg = config(place, seed, **WEIGHTS[weight])
    policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
    run = Watched(cfg, policy, task, weight == "GRPO" and seed - SEEDS[0] < LOOKS)
    grpo_sg.train(policy, task, cfg, run)
    row = {"place": place, "weight": weight, "seed": seed}
    for name in ("avg@8", "pass@8", "accuracy"):
        row[name] = {step: test[f"eval/{name}"] for step, test in run.tests.items()}
    for name in ("accuracy", "low_prob_frac", "weight_mean", "grad_norm"):
        row[f"training: {name}"] = [round(step[name] or 0, 4) for step in run.rows]
    append("learn", row, started)
    print(place, weight, seed, row["avg@8"], f"{cpu_seconds() - started:.0f} s", flush=True)


# ---- The default run ----

def record(seeds=range(30)):
    """Append the rows of default runs that results/default.jsonl lacks."""
    done = {row["seed"] for row in read("default") if row["arm"] == "kk, words"}
    for seed in seeds:
        out = f"runs/default/{seed}"
        if seed in done:
            continue
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "grpo_sg.py", "--seed", str(seed), "--out", out],
                       check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = read_rows(pathlib.Path(out) / "metrics.jsonl")
        steps = [row for row in rows if "split" not in row]
        tests = [row for row in rows if row.get("split") == "test"]
        row = {"experiment": "default", "arm": "kk, words", "seed": seed, "rate": 2e-4,
               "split": "test", "avg@4": tests[1]["eval/avg@4"],
               "greedy": tests[1]["eval/accuracy"], "truncated": tests[1]["eval/truncated@4"],
               "before": tests[0]["eval/avg@4"], "tests": tests}
        for key in ("accuracy", "low_prob_frac", "weight_mean"):
            name = {"accuracy": "curve"}.get(key, key)
            row[name] = [round(step[key], 4) for step in steps]
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        row |= {"cpu_seconds": round(cpu, 1), "peak_mb": after.ru_maxrss // 1024,
                "commit": name_commit(), "date": str(datetime.date.today())}
        append_rows(RESULTS / "default.jsonl", [row])
        print(f"seed {seed}: {row['before']:.3f} -> {row['avg@4']:.3f}, {cpu:.0f} s", flush=True)


def main(command):
    if command == "models":
        return make_models()
    if command == "record":
        return record()
    for seed in SEEDS:
        for place in MODELS:
            if command == "look" and seed - SEEDS[0] < LOOKS and not has_row(
                    "look", place=place, seed=seed, step=0):
                look_at(*load(place, seed), 0)
            if command == "learn" and place in LEARNED:
                policy, task, _ = load(place, seed)
                for weight in ARMS:
                    if not has_row("learn", place=place, weight=weight, seed=seed):
                        learn(place, seed, weight, policy, task)


if __name__ == "__main__":
    main(*sys.argv[1:])
