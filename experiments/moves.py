"""Do unlikely tokens push the likely ones the wrong way? AR-Lopti's argument, by one update
(arXiv 2505.12929).

    python -m experiments.moves run             half a core-hour; resumes where it stopped
    python -m experiments.moves run --smoke     a small part of it, in a minute
    python -m experiments.moves show            the tables

Rows are appended to results/moves.jsonl (--results), each with experiment, arm, optimizer,
task, seed, steps, commit and date.

The argument: unlikely tokens have the largest gradients, which move the likely ones, too; so
that under GRPO less than half of the likely tokens with a positive advantage get likelier,
and with the unlikely ones damped, or updated first and the likely ones afterwards (Lopti),
more do.

The protocol, written down before the first counted run (a scouting run of one seed of kk had
been looked at): seeds 0 to 4, tasks kk, math and qa, warm starts, settings and the rollout of
experiments/angle.py, at the warm start and after 30 steps of GRPO. One update on the whole
rollout from the same parameters by each arm: GRPO, GRPO-SG, dose 10, w = pi, AR, "without
unlikely", and Lopti: GRPO in two updates, first on the tokens with pi < 0.5, then on the
others, whose gradient is taken after the first. Optimizers: AdamW without a past, at the
task's learning rate (Lopti's two updates have half of it each, as a first update of AdamW has
the same length whatever its gradient); and SGD, whose update is the gradient scaled to the
length of AdamW's update for GRPO (Lopti's, each at the rate that GRPO's had). For each bin of
pi before the update and each sign of A: how many tokens of the rollout there are, which share
of them has moved as its advantage says (likelier if A > 0, less likely if A < 0), and the
mean change of log pi times the sign of A (in float64: of the likeliest tokens it is below
what float32 tells apart). Reported are means and 95 % intervals over seeds of the shares, and
of their differences to GRPO's. A share is called below half if its interval is.
"""
import copy
import functools
import statistics

import torch
import torch.nn.functional as F

import grpo_sg
from experiments import analysis, angle
from experiments.angle import draw_rollout, weigh_none

EDGES = 0.0, 1/3, 0.9, 0.99, 0.999, 1.000001
STEPS = 0, 30
ARMS = {"GRPO": (weigh_none,)}
for name in ("GRPO-SG", "dose 10", "w = pi", "AR", "without unlikely"):
    ARMS[name] = (angle.WEIGHTS[name],)


# ---- Updates ----

def weigh_below_half(below, old, logps, cfg):
    """Return 1 for tokens with pi below (or not below) 0.5 before the update, else 0. old: an
    iterator over the log-probabilities of the rollout's micro-batches, in order."""
    return ((next(old).exp() < 0.5) == below).float()


@torch.no_grad()
def log_probabilities(policy, completions, cfg):
    """Return the log-probabilities (B, T) of each micro-batch, in float64, because tokens with
    pi > 0.999 change by less than float32 resolves."""
    model = copy.deepcopy(policy.model).double()
    found = []
    for batch in grpo_sg.micro_batches(completions, cfg, model.device):
        logits = model(input_ids=batch["ids"][:, :-1]).logits / cfg.temperature
        logps = logits.log_softmax(-1).gather(2, batch["ids"][:, 1:, None])[..., 0]
        found.append(F.pad(logps, (1, 0)))
    return found


def weights_of(arm, old):
    """Return the weights of each of the arm's updates, functions of (logps, cfg)."""
    if arm != "Lopti":
        return ARMS[arm]
    return [functools.partial(weigh_below_half, below, iter(old)) for below in (True, False)]


def update_with_adamw(policy, completions, cfg, weighs):
    model = policy.model
    optimizer = torch.optim.AdamW(model.parameters(), cfg.lr / len(weighs), betas=(0.9, 0.99),
                                  weight_decay=0)
    for weigh in weighs:
        model.zero_grad()
        angle.add_gradient(policy, completions, cfg, weigh)
        optimizer.step()
    model.zero_grad()


def update_with_sgd(policy, completions, cfg, weighs, length=None, rate=None):
    """Step along the gradient, by this length or at this rate. Return the last rate."""
    for weigh in weighs:
        gradient, _ = angle.take_gradient(policy, completions, cfg, weigh)
        used = rate or length / gradient.norm()
        angle.put(policy, (angle.flat(policy) - used * gradient).float())
    return used


# ---- Which tokens became more likely ----

def count_moves(policy, completions, cfg, old):
    """Return one dict for each bin of pi and sign of A."""
    batches = grpo_sg.micro_batches(completions, cfg, policy.model.device)
    before, after, A = [], [], []
    new = log_probabilities(policy, completions, cfg)
    for batch, first, now in zip(batches, old, new, strict=True):
        mask = batch["mask"]
        before.append(first[mask])
        after.append(now[mask])
        A.append(batch["advantages"][:, None].expand_as(mask)[mask])
    before, after, A = torch.cat(before), torch.cat(after), torch.cat(A)
    gained = (after - before) * A.sign()
    found = []
    for low, high in zip(EDGES, EDGES[1:]):
        for sign in (1, -1):
            here = (before.exp() >= low) & (before.exp() < high) & (A.sign() == sign)
            if here.any():
                found.append({"from": low, "to": high, "sign": sign, "tokens": int(here.sum()),
                              "share": float((gained[here] > 0).float().mean()),
                              "gained": float(gained[here].mean())})
    return found


def measure_moves(policy, task, cfg, parameters):
    """Yield a row for every arm and optimizer, from these parameters."""
    angle.put(policy, parameters)
    completions = draw_rollout(policy, task, cfg, step=angle.FRESH)
    old = log_probabilities(policy, completions, cfg)
    length = rate = None  # of GRPO's updates
    for arm in (*ARMS, "Lopti"):
        for optimizer in ("AdamW", "SGD"):
            angle.put(policy, parameters)
            weighs = weights_of(arm, old)
            if optimizer == "AdamW":
                update_with_adamw(policy, completions, cfg, weighs)
            else:
                used = update_with_sgd(policy, completions, cfg, weighs, length,
                                       rate if arm == "Lopti" else None)
            moved = float((angle.flat(policy) - parameters).norm())
            length, rate = length or moved, rate or (used if optimizer == "SGD" else None)
            yield {"arm": arm, "optimizer": optimizer, "length": moved,
                   "bins": count_moves(policy, completions, cfg, old)}


# ---- Rows, tables ----

def jobs_of(seeds, tasks, smoke):
    for seed in seeds:
        for name in tasks:
            for steps in (0, 1) if smoke else STEPS:
                yield {"task": name, "seed": seed}, {"experiment": "moves", "steps": steps}


def work(start, job, smoke):
    policy, task, cfg, path = angle.begin(start["task"], start["seed"], 0, smoke)
    return measure_moves(policy, task, cfg, path[job["steps"]])


def shares(rows):
    """Return {(task, steps, optimizer, from, to, sign): {arm: {seed: bin}}}."""
    found = {}
    for row in rows:
        for each in row["bins"]:
            key = (row["task"], row["steps"], row["optimizer"],
                   each["from"], each["to"], each["sign"])
            found.setdefault(key, {}).setdefault(row["arm"], {})[row["seed"]] = each
    return found


def show(rows):
    for key, arms in sorted(shares(rows).items()):
        task, steps, optimizer, low, high, sign = key
        tokens = statistics.fmean(each["tokens"] for each in arms["GRPO"].values())
        print(f"{task}, {steps} steps, {optimizer}, {low:.3g} <= pi < {high:.4g}, "
              f"A {'> 0' if sign > 0 else '< 0'}, {tokens:.0f} tokens per seed")
        for arm, here in arms.items():
            values = {seed: each["share"] for seed, each in here.items()}
            line = f"    {angle.PRINTED.get(arm, arm)}: "
            line += angle.in_words(list(values.values()), "{:.3f}")
            base = {seed: each["share"] for seed, each in arms["GRPO"].items()}
            if arm != "GRPO":
                differences = [values[seed] - base[seed] for seed in values if seed in base]
                line += f", minus GRPO's {angle.in_words(differences, '{:+.3f}')}"
            gained = statistics.fmean(each["gained"] for each in here.values())
            print(f"{line}; gained {gained:+.2e}; {len(here)} seeds")


def main():
    args = angle.read_command(__doc__, ["run", "show"], "moves.jsonl", angle.SEEDS, angle.TASKS)
    if args.what == "run":
        angle.run(args.results, jobs_of(args.seeds, args.tasks, args.smoke), work, args.smoke)
    show(analysis.read_rows(args.results))


if __name__ == "__main__":
    main()
