"""Compute the outcomes of the rule `rates`, and every number that the pages quote from the rows.

    python -m experiments.evidence             prints the numbers
    python -m experiments.evidence --figures   draws figures/rates.svg and figures/curve.svg

Square brackets hold 95% intervals: of that rule by a bootstrap over seeds, else by Student's t.
"""
import argparse
import math
from operator import itemgetter
from statistics import fmean as mean

import torch

from experiments import figures, rates
from experiments.compare import RESULTS, interval, read_rows

SAMPLES = 10_000                       # of a bootstrap
LAST = "rare left out", "other 80%"    # the weights of kk that the rule does not count
TASKS = {"phone_book": "phone book", "backwards": "words backwards", "math": "sums and products"}
PROGRESS = [("GRPO-SG", "GRPO", 2.0901e-4), ("11-fold", "GRPO", 2.2373e-4),
            ("constant 1.35", "GRPO", 2e-4), ("lists only", "filler words only", 2e-4)]


# ---- Equivalent rates ----

def draw_shares(n):
    """Return the share of each of n seeds in the data and in bootstrap samples, (1 + SAMPLES, n).
    Two calls with the same n draw the same samples, so what shares its seeds stays paired."""
    drawn = torch.randint(n, (SAMPLES, n), generator=torch.Generator().manual_seed(n))
    counts = torch.zeros(SAMPLES, n).scatter_add(1, drawn, torch.ones(SAMPLES, n))
    return torch.cat([torch.ones(1, n), counts]).double() / n


def find_rates(accuracy, curve, factors):
    """Return the lowest log rate at which GRPO has an accuracy, (N, A).

    accuracy: (N, A), of A weights in N samples; curve: (N, R), of GRPO at R rates, the lowest
    first, and straight over log rate in between; factors: the R rates. An accuracy below the whole
    curve gets the lowest rate, and one above it the highest.
    """
    x = torch.tensor(factors).double().log()
    a, start, end = accuracy[..., None], curve[:, None, :-1], curve[:, None, 1:]  # (N, A, R - 1)
    crosses = (torch.minimum(start, end) <= a) & (a <= torch.maximum(start, end))
    part = torch.where(start == end, 0.0, (a - start) / (end - start))
    lowest = torch.where(crosses, x[:-1] + part * x.diff(), math.inf).amin(-1)
    outside = torch.where(accuracy < curve.amin(-1, keepdim=True), x[0], x[-1])
    return torch.where(lowest.isinf(), outside, lowest)


def sample_accuracy(task, first, last):
    """Return {run: its accuracy in these steps, (1 + SAMPLES,)}, of the seeds with all runs."""
    names = [f"GRPO x {factor:g}" for factor in rates.GRPO[task]] + [*rates.WEIGHTS[task]]
    found = {row["seed"]: row["solved"] for row in read_rows(rates.ROWS) if row["task"] == task}
    seeds = [seed for seed in rates.SEEDS[task] if {*names} <= {*found.get(seed, ())}]
    solved = torch.tensor([[found[seed][name] for name in names] for seed in seeds]).double()
    accuracy = solved[:, :, first - 1:last].mean(-1) / 64  # (seeds, runs)
    return dict(zip(names, (draw_shares(len(seeds)) @ accuracy).T))


def sample_ratios(task):
    """Return {weight: its log ratio, (1 + SAMPLES,)}."""
    rows = [row["ratios"] for row in read_rows(rates.RATIOS) if row["task"] == task]
    values = torch.tensor([[row[name] for name in rates.WEIGHTS[task]] for row in rows]).double()
    return dict(zip(rates.WEIGHTS[task], (draw_shares(len(rows)) @ values).log().T))


def sample_rates(task, last):
    """Return {weight: its log equivalent rate in steps 1 to last, (1 + SAMPLES,)}."""
    accuracy, factors = sample_accuracy(task, 1, last), rates.GRPO[task]
    curve = torch.stack([accuracy[f"GRPO x {factor:g}"] for factor in factors], 1)
    weights = torch.stack([accuracy[name] for name in rates.WEIGHTS[task]], 1)
    return dict(zip(rates.WEIGHTS[task], find_rates(weights, curve, factors).T))


def fit_slope(predicted, measured):
    """Return the slope of the line through 0, (1 + SAMPLES,), over the weights that count."""
    x, y = (torch.stack([values[name] for name in values if name not in LAST])
            for values in (predicted, measured))
    return (x * y).sum(0) / (x * x).sum(0)


def bound(values):
    """Return (estimate, low, high) of an estimate that its bootstrap samples follow."""
    low, high = values[1:].quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return float(values[0]), low, high


def write(numbers, digits=3, sign="+"):
    """Return (estimate, low, high) as "+0.005 [-0.057, +0.067]"."""
    return "{:{f}} [{:{f}}, {:{f}}]".format(*numbers, f=f"{sign}.{digits}f")


# ---- The outcomes of the rule ----

def judge_slope(low, high):
    if 0.85 <= low and high <= 1.15:
        return "percent for percent"
    if 0.7 < low <= 1 <= high:
        return "it predicts"
    return "it ranks" if low > 0 else "it does not predict"


def judge_crossing(early, late):  # (estimate, low, high) of the lead over GRPO
    failed = ["does not lead at first"] if early[1] <= 0 else []
    failed += ["does not trail later"] if late[2] >= 0 else []
    return " and ".join(failed) or "crosses"


def list_weights(task):
    """Yield ratio and equivalent rate of each weight, which is outcome 2 for kk."""
    ratios, tens, twenties = sample_ratios(task), sample_rates(task, 10), sample_rates(task, 20)
    for name in ratios:
        ratio, ten, twenty = (write(bound(values[name].exp()), 3, "")
                              for values in (ratios, tens, twenties))
        gap = bound(tens[name] - ratios[name])
        missed = ", missed" if gap[1] > 0 or gap[2] < 0 else ""
        yield (f"{task}, {name}: ratio {ratio}, equivalent rate {ten} in steps 1 to 10 and "
               f"{twenty} in steps 1 to 20; log(rate / ratio) {write(gap)}{missed}")
    gaps = torch.stack([tens[name] - ratios[name] for name in ratios if name not in LAST])
    error, noise = gaps[:, 0].square().mean().sqrt(), gaps[:, 1:].var(1).mean().sqrt()
    yield f"{task}: root mean square of log(rate / ratio) {error:.3f}, of noise alone {noise:.3f}"


def list_outcomes():
    """Yield the other outcomes."""
    for number, task, last in (1, "kk", 10), (3, "kk", 20), (6, "math", 10):
        slope = bound(fit_slope(sample_ratios(task), sample_rates(task, last)))
        yield (f"outcome {number}: {task}, steps 1 to {last}, slope {write(slope, 2, '')}: "
               f"{judge_slope(*slope[1:])}")
    rare, most = LAST
    early, late, whole = (sample_accuracy("kk", *steps) for steps in ((1, 10), (16, 20), (1, 20)))
    leads = [bound(part[rare] - part["GRPO x 1"]) for part in (early, late)]
    yield (f"outcome 4: {rare} minus GRPO, {write(leads[0], 4)} in steps 1 to 10 and "
           f"{write(leads[1], 4)} in steps 16 to 20: {judge_crossing(*leads)}")
    lead = bound(whole[most] - whole["GRPO x 0.05"])
    yield (f"outcome 5: {most} minus GRPO at a twentieth of the rate, {write(lead, 4)}: "
           f"{'above' if lead[1] > 0 else 'not above'}")


# ---- Other experiments ----

def select(name, **columns):
    """Return {seed: row} of the rows of a file with these values."""
    rows = [row for row in read_rows(RESULTS / f"{name}.jsonl")
            if all(row[key] == value for key, value in columns.items())]
    assert len({row["seed"] for row in rows}) == len(rows) > 0, (name, columns)
    return {row["seed"]: row for row in rows}


def subtract(ours, theirs, measure):
    """Return the differences of a measure, paired by seed."""
    assert ours.keys() == theirs.keys()
    return [measure(ours[seed]) - measure(theirs[seed]) for seed in sorted(ours)]


def describe(label, differences, digits=3):
    return f"{label}: {write(interval(differences), digits)}, {len(differences)} pairs"


def select_choice(task, tuned=False):
    """Return the rows of (GRPO-SG, GRPO). Only on the phone book the tuned rates are not equal."""
    ours = select("choice", task=task, arm="B")
    rate = 8e-4 if tuned and task == "phone_book" else ours[3000]["rate"]
    return ours, select("choice", task=task, arm="A", rate=rate)


def list_choice():
    for name, tuned in (("equal rates", False), ("tuned rates", True)):
        for steps in (["10"], ["60"], ["10", "20", "40", "60"]):
            label = f"GRPO-SG minus GRPO, {name}, avg@8 after {', '.join(steps)} steps"
            leads = [subtract(*select_choice(task, tuned),
                              lambda row: mean(row["avg@8"][step] for step in steps))
                     for task in TASKS]
            yield describe(f"{label}, three tasks", [mean(three) for three in zip(*leads)])
            for task, lead in zip(TASKS.values(), leads):
                yield describe(f"{label}, {task}", lead)


def list_pairs():
    yield describe("avg@4 on puzzles of four and five people", subtract(
        select("afar", arm="sg, many"), select("afar", arm="none, many"),
        lambda row: (row["avg@4, 4 people"] + row["avg@4, 5 people"]) / 2))
    real = [[select("real2", lr=lr, shaping=arm) for arm in ("sg", "none")]
            for lr in ("1e-5", "2e-5")]
    for label, measure in (("avg@4 after training", itemgetter("avg@4")),
                           ("accuracy in steps 1 to 10", lambda row: mean(row["accuracy"][:10]))):
        leads = [mean(two) for two in zip(*(subtract(*arms, measure) for arms in real))]
        yield describe(f"real model, mean of two rates, {label}", leads)
    yield describe("weight inside the clip, avg@4", subtract(
        select("mistakes", arm="clip(w r)"), select("mistakes", arm="sg"), itemgetter("avg@4")))


def list_gains():
    """Yield avg@4 before and after training, with its range over seeds."""
    gains = {name: [(row["before"], row["avg@4"]) for row in select("default", arm=arm).values()]
             for name, arm in (("logic puzzles", "kk, words"),
                               ("sums and products", "math, ready"))}
    gains["sums, real model"] = [row["avg@4"] for row in select("recipe2").values()]
    for name, pairs in gains.items():
        before, after = zip(*pairs)
        yield (f"{name}: {mean(before):.3f} → {mean(after):.3f} ({min(after):.3f} to "
               f"{max(after):.3f}), {len(pairs)} seeds")


def list_progress():
    """Yield outcomes 1 to 4 of the rule `progress`, how the first two change, and a ratio."""
    leads = []  # (seeds, outcomes, steps)
    for row in read_rows(RESULTS / "progress.jsonl"):
        runs = {(run["arm"], run["lr"]): torch.tensor(run["solved"]) / 64 for run in row["runs"]}
        leads.append(torch.stack([runs[ours, 2e-4] - runs[theirs, lr]
                                  for ours, theirs, lr in PROGRESS]))
    leads = torch.stack(leads)
    for (ours, theirs, lr), lead in zip(PROGRESS, leads.mean(-1).T.tolist()):
        yield describe(f"{ours} at 2e-4 minus {theirs} at {lr:g}, steps 1 to 20", lead, 4)
    for first, last in (1, 10), (11, 20):
        part = leads[:, :2, first - 1:last].mean((1, 2)).tolist()
        yield describe(f"the mean of the first two, steps {first} to {last}", part, 4)
    rows = read_rows(RESULTS / "progress_ratios.jsonl")
    for step in (0, 15):
        plain, simulated = zip(*(row["ratios"]["GRPO-SG"] for row in rows
                                 if (row["lr"], row["step"]) == (2e-4, step)))
        yield (f"GRPO-SG's ratio after {step} steps: plain {mean(plain):.3f}, simulated "
               f"{mean(simulated):.3f}")


# ---- The program ----

def list_numbers():
    if read_rows(rates.ROWS):
        yield from (*list_weights("kk"), *list_weights("math"), *list_outcomes())
    yield from (*list_choice(), *list_pairs(), *list_gains(), *list_progress())


def draw_rates():
    points = [(task, name, bound(ratio.exp()), bound(rate.exp())) for task in rates.WEIGHTS
              for (name, ratio), rate in zip(sample_ratios(task).items(),
                                             sample_rates(task, 10).values())]
    return figures.draw_rates(points, LAST)


def draw_curve():
    curves = []
    for method in (1, 0):  # GRPO, then GRPO-SG
        runs = [row["avg@8"] for task in TASKS for row in select_choice(task)[method].values()]
        curves.append({int(step): mean(run[step] for run in runs) for step in runs[0]})
    return figures.draw_curve(*curves)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--figures", action="store_true", help="draw them, print nothing")
    if not parser.parse_args().figures:
        return print("\n".join(list_numbers()))
    (RESULTS.parent / "figures/rates.svg").write_text(draw_rates(), "utf-8")
    (RESULTS.parent / "figures/curve.svg").write_text(draw_curve(), "utf-8")


if __name__ == "__main__":
    main()
