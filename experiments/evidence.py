"""Compute every number that the pages quote from the rows.

    python -m experiments.evidence             prints the tables of the pages, and other numbers
    python -m experiments.evidence --figures   draws figures/ends.svg, phone_book.svg and rates.svg

Each table is Markdown, and a test finds it in the page that is named above it. Square brackets
hold 95% intervals: of the rule `rates` by a bootstrap over seeds, else by Student's t.
"""
import argparse
import functools
import itertools
import math
import re
from collections import Counter
from operator import itemgetter
from statistics import fmean as mean

import torch

import tasks
from experiments import figures, reasons
from experiments.compare import RESULTS, interval, read_rows
from lesson import real_model

SAMPLES = 10_000  # of a bootstrap
FIGURES, LEDGER = RESULTS.parent / "figures", RESULTS.parent / "ledger.md"
TASKS = {"phone_book": "phone book (a tool looks numbers up)", "backwards": "words backwards",
         "math": "sums and products"}

# The registered comparisons of where a run ends: commit of the rule -> what it compared
ENDS = {"c512f9f": "puzzles, clean rewards", "99fb9a5": "puzzles, noisy rewards",
        "f5fbf93": "puzzles, gain with 16 updates a rollout",
        "481d506": "puzzles, noisy rewards, greedy accuracy",
        "4771847": "trained on 3 people, tested on 4 and 5",
        "0f168ac": "three tasks, each method's tuned rate",
        "560003f": "SmolLM2, first attempt", "019a8cc": "SmolLM2, second attempt, stopped early"}

# The rule `rates`: the seeds of its runs, the rates of GRPO as factors of 2e-4, and the weights
SEEDS = {"kk": range(540, 588), "math": range(600, 632)}
GRPO = {"kk": (0.05, 0.25, 0.5, 0.71, 1.0, 1.41), "math": (0.25, 0.5, 0.71, 1.0, 1.41)}
BOTH = ("GRPO-SG", "pi", "1 - pi", "(1 - pi)^2", "(1 - pi)^4", "reversed", "top 20% entropy")
WEIGHTS = {"kk": BOTH + ("AR-Lopti", "filler x 15", "filler x 40", "A > 0 x 0.1",
                         "rare left out", "other 80%"),
           "math": BOTH}
LAST = "rare left out", "other 80%"  # the weights of kk that the rule does not count

# The rule `progress`: pairs of arms, and the rate of the second
PROGRESS = [("GRPO-SG", "GRPO", 2.0901e-4), ("11-fold", "GRPO", 2.2373e-4),
            ("constant 1.35", "GRPO", 2e-4), ("lists only", "filler words only", 2e-4)]

# The rule `added`
MODELS = {"A": "60% of its texts skip a speaker", "B": "as many steps, no text skips",
          "C": "fewer steps, no text skips"}
MODELS_MATH = {"A": "50% of its texts answer at once", "B": MODELS["B"], "C": MODELS["C"]}


# ---- Rows and numbers ----

def read_results(name):
    """Return the rows of a file in results/. A file that is missing or broken ends the program."""
    path = RESULTS / f"{name}.jsonl"
    try:
        rows = read_rows(path)
    except ValueError as error:
        raise SystemExit(f"error: {path} has a line that is no row ({error}): git checkout {path}")
    if not rows:
        raise SystemExit(f"error: {path} is missing or has no rows: git checkout {path}")
    return rows


def select(name, **columns):
    """Return {seed: row} of the rows of a file with these values."""
    rows = [row for row in read_results(name)
            if all(row[key] == value for key, value in columns.items())]
    assert len({row["seed"] for row in rows}) == len(rows) > 0, (name, columns)
    return {row["seed"]: row for row in rows}


def subtract(ours, theirs, measure):
    """Return the differences of a measure, paired by seed."""
    assert ours.keys() == theirs.keys()
    return [measure(ours[seed]) - measure(theirs[seed]) for seed in sorted(ours)]


def write(numbers, digits=3, sign="+"):
    """Return (estimate, low, high) as "+0.005 [-0.057, +0.067]"."""
    return "{:{f}} [{:{f}}, {:{f}}]".format(*numbers, f=f"{sign}.{digits}f")


def describe(label, differences, digits=3):
    return f"{label}: {write(interval(differences), digits)}, {len(differences)} pairs"


def tabulate(head, rows):
    """Return a table in Markdown. head and rows: lists of cells."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


# ---- Equal rates and tuned rates ----

def select_choice(task, rate=None):
    """Return the rows of (GRPO-SG, GRPO). GRPO has GRPO-SG's rate, or the rate that is given."""
    ours = select("choice", task=task, arm="B")
    return ours, select("choice", task=task, arm="A", rate=rate or ours[3000]["rate"])


def find_leads(steps, tuned=False):
    """Return {task: leads of GRPO-SG in avg@8, one for each seed}, means over these steps."""
    return {task: subtract(*select_choice(task, 8e-4 if tuned and task == "phone_book" else None),
                           lambda row: mean(row["avg@8"][step] for step in steps))
            for task in TASKS}


def average_tasks(leads):
    return [mean(three) for three in zip(*leads.values())]


def tabulate_equal_rates():
    after = [find_leads([step]) for step in ("10", "60")]
    rows = [[words, *(write(interval(leads[task])) for leads in after)]
            for task, words in TASKS.items()]
    means = [f"**{write(interval(average_tasks(leads)))}**" for leads in after]
    return tabulate(["avg@8, GRPO-SG minus GRPO", "after 10 steps", "after 60 steps"],
                    [*rows, ["**mean of the three**", *means]])


def list_phone_book():
    """Return [(method, rate, {step: avg@8}, rows)] of the phone book's three sets of runs."""
    ours, theirs = select_choice("phone_book")
    _, tuned = select_choice("phone_book", 8e-4)
    sets = ("GRPO", "8e-4", tuned), ("GRPO", "4e-4", theirs), ("GRPO-SG", "4e-4", ours)
    return [(method, rate, {int(step): mean(row["avg@8"][step] for row in rows.values())
                            for step in ours[3000]["avg@8"]}, rows)
            for method, rate, rows in sets]


def tabulate_phone_book():
    sets = list_phone_book()
    chosen = "tuning with four other seeds", "equal rates, after we had seen the result", "tuning"
    return tabulate(["method", "rate", "chosen by", "avg@8 after 10 steps", "after 60 steps"],
                    [[method, rate, why, f"{curve[10]:.3f}", f"{curve[60]:.3f}"]
                     for (method, rate, curve, _), why in zip(sets, chosen)])


def list_choice():
    for name, tuned in (("equal rates", False), ("tuned rates", True)):
        for steps in (["10"], ["60"], ["10", "20", "40", "60"]):
            label = f"GRPO-SG minus GRPO, {name}, avg@8 after {', '.join(steps)} steps"
            leads = find_leads(steps, tuned)
            yield describe(f"{label}, three tasks", average_tasks(leads))
            for task, lead in leads.items():
                yield describe(f"{label}, {task}", lead)
    (*_, tuned), (*_, equal), _ = list_phone_book()
    yield describe("phone book, GRPO at 4e-4 minus GRPO at 8e-4, avg@8 after 60 steps",
                   subtract(equal, tuned, lambda row: row["avg@8"]["60"]), 4)


# ---- The first steps: three sets of seeds, and the rule `again` ----

def average_steps(solved, last=20):
    return mean(solved[:last]) / 64  # a step has 64 completions


def find_runs(name, **columns):
    """Return {seed: {arm: completions solved in each step}} of progress, rates or again."""
    if name != "progress":
        return {seed: row["solved"] for seed, row in select(name, **columns).items()}
    return {seed: {(run["arm"], run["lr"]): run["solved"] for run in row["runs"]}
            for seed, row in select(name).items()}


def compare_early(runs, ours, theirs, last=20):
    """Return the differences of two arms' accuracy in steps 1 to last, paired by seed."""
    return [average_steps(row[ours], last) - average_steps(row[theirs], last)
            for _, row in sorted(runs.items())]


def list_early():
    """Return [(words, runs, GRPO-SG, GRPO, GRPO at a higher rate, how much higher)] of the three
    sets of seeds. The second has no runs at a higher rate (None)."""
    rate = PROGRESS[0][2]
    return [("rule `progress`", find_runs("progress"), ("GRPO-SG", 2e-4), ("GRPO", 2e-4),
             ("GRPO", rate), rate / 2e-4 - 1),
            ("rule `rates`", find_runs("rates", task="kk"), "GRPO-SG", "GRPO x 1", None, None),
            ("rule `again`", find_runs("again"), "GRPO-SG", "GRPO", "GRPO x 1.036", 0.036)]


def tabulate_early():
    rows = []
    for words, runs, ours, grpo, faster, higher in list_early():
        pairs = [(ours, grpo), (faster, grpo), (ours, faster)] if faster else [(ours, grpo)]
        cells = [write(interval(compare_early(runs, *pair)), 4) for pair in pairs]
        cells += ["not run"] * (3 - len(pairs))
        rows.append([words, len(runs), f"{higher:.1%}" if faster else "", *cells])
    return tabulate(["set", "seeds", "higher rate", "GRPO-SG minus GRPO",
                     "GRPO at the higher rate minus GRPO", "GRPO-SG minus GRPO at the higher rate"],
                    rows)


def judge_lead(low, high):
    if low > 0:
        return "ahead"
    if high < 0:
        return "behind"
    return "no lead that matters" if -0.0012 <= low and high <= 0.0012 else "can't tell"


def judge_rate(seen, ahead, low, high):
    """Return the words of the rule `again` for GRPO-SG minus GRPO at the higher rate."""
    if not seen:
        return "can't tell"
    if -0.0012 <= low and high <= 0.0012 and ahead:
        return "like a rate 3.6% higher, give or take half"
    if low > 0:
        return "more than that rate"
    return "less than that rate" if high < 0 else "can't tell"


def list_again():
    """Yield the outcomes of the rule `again`."""
    runs = find_runs("again")
    pairs = (("GRPO-SG", "GRPO"), ("GRPO x 1.036", "GRPO"), ("GRPO-SG", "GRPO x 1.036"))
    lead, effect, gap = (interval(compare_early(runs, *pair)) for pair in pairs)
    first = judge_lead(*lead[1:])
    seen = effect[1] > 0
    words = first, "seen" if seen else "not seen", judge_rate(seen, first == "ahead", *gap[1:])
    for i, (pair, numbers, verdict) in enumerate(zip(pairs, (lead, effect, gap), words), 1):
        yield (f"again, outcome {i}: {' minus '.join(pair)}, steps 1 to 20, {len(runs)} seeds: "
               f"{write(numbers, 4)}: {verdict}")
    for pair in pairs:
        yield describe(f"again, outcome 4: {' minus '.join(pair)}, steps 1 to 10",
                       compare_early(runs, *pair, last=10), 4)


# ---- What RL adds: the rule `added` ----

def select_added(task, model, when):
    """Return {seed: what was measured} of a model "before" or "after" its run. A seed counts if its
    six runs are there."""
    rows = read_results("added")
    whole = {row["seed"] for row in rows
             if sum(other["seed"] == row["seed"] for other in rows) == 6}
    return {row["seed"]: row[when] for row in rows
            if (row["task"], row["model"]) == (task, model) and row["seed"] in whole}


def average_added(task, model, key, digits=3):
    """Return the means before and after RL as "0.622 → 0.839"."""
    return " → ".join(f"{mean(map(itemgetter(key), select_added(task, model, when).values())):.3f}"
                      for when in ("before", "after"))


def tabulate_added():
    rows = []
    for task, words, models in (("kk", "puzzles", MODELS), ("math", "sums", MODELS_MATH)):
        rows += [[f"{words}, {model}", why, *(average_added(task, model, key)
                                              for key in ("accuracy", "avg@32", "pass@16"))]
                 for model, why in models.items()]
    real = select_real("avg@16")
    rows.append([f"sums, SmolLM2 ({len(real)} seeds)", "pretrained, nothing planted",
                 *(" → ".join(f"{mean(row[key][i] for row in real):.3f}" for i in (0, 1))
                   for key in ("greedy", "avg@16", "pass@16"))])
    return tabulate(["model", "its fine-tuning", "greedy", "avg@32 (SmolLM2: avg@16)", "pass@16"],
                    rows)


def tabulate_changes():
    """Return the differences of the rule `added`, with intervals over seeds."""
    pairs = {"C, after minus before": (("C", "after"), ("C", "before")),
             "A, after minus before": (("A", "after"), ("A", "before")),
             "B, after minus before": (("B", "after"), ("B", "before")),
             "B before minus A after": (("B", "before"), ("A", "after")),
             "C before minus A after": (("C", "before"), ("A", "after")),
             "B before minus C after": (("B", "before"), ("C", "after"))}
    rows = []
    for task, words in (("kk", "puzzles"), ("math", "sums")):
        for name, (ours, theirs) in pairs.items():
            found = [interval(subtract(select_added(task, *ours), select_added(task, *theirs),
                                       itemgetter(key)))
                     for key in ("accuracy", "avg@32", "pass@16")]
            rows.append([f"{words}: {name}", *map(write, found)])
    return tabulate(["difference", "greedy", "avg@32", "pass@16"], rows)


def judge_gain(avg, pass16):
    """Return the words of outcome 1 of the rule `added`, from two (estimate, low, high)."""
    if avg[1] <= 0:
        return "no gain" if avg[2] < 0.02 else "can't tell"
    if pass16[1] > 0:
        return "adds"
    if pass16[2] < 0:
        return "sharpens and narrows"
    return "sharpens" if pass16[2] < 0.02 else "gains, can't tell how"


def judge_guess(low, high):
    if low > 0:
        return "its best guess improves"
    if high < 0:
        return "gets worse"
    return "stays" if -0.02 <= low and high <= 0.02 else "can't tell"


def judge_fine_tuning(low, high):
    if low > 0:
        return "better"
    if low > -0.02:
        return "as good"
    return "worse" if high < 0 else "can't tell"


def list_added():
    """Yield the outcomes of the rule `added`, and all that was measured."""
    for task in ("kk", "math"):
        before, after = (select_added(task, "C", when) for when in ("before", "after"))
        avg, pass16, greedy = (interval(subtract(after, before, itemgetter(key)))
                               for key in ("avg@32", "pass@16", "accuracy"))
        yield (f"added, outcome 1, {task}: avg@32 {write(avg)}, pass@16 {write(pass16)}, "
               f"{len(before)} seeds: {judge_gain(avg, pass16)}")
        rest = interval([after[seed]["avg@32"] - before[seed]["accuracy"] for seed in before])
        yield (f"added, outcome 2, {task}: greedy {write(greedy)}: {judge_guess(*greedy[1:])}; "
               f"avg@32 after minus greedy before {write(rest)}")
        gap = interval(subtract(select_added(task, "B", "before"),
                                select_added(task, "A", "after"), itemgetter("avg@32")))
        yield (f"added, outcome 3, {task}: B before minus A after, avg@32 {write(gap)}: "
               f"{judge_fine_tuning(*gap[1:])}")
        for model in MODELS:
            for when in ("before", "after"):
                rows = select_added(task, model, when).values()
                values = {key: sorted(row[key] for row in rows) for key in next(iter(rows))}
                yield (f"added, {task}, {model} {when} RL: " + ", ".join(
                    f"{key} {mean(each):.3f} ({each[0]:.3f} to {each[-1]:.3f})"
                    for key, each in values.items()))
            rows = [row for row in read_results("added")
                    if (row["task"], row["model"]) == (task, model)]
            made, ran = (mean(row[key] for row in rows)
                         for key in ("fine_tuning_cpu_seconds", "run_cpu_seconds"))
            yield (f"added, {task}, {model}: CPU seconds of fine-tuning {made:.1f}, of the run "
                   f"with both tests {ran:.1f}")


def select_real(measure):
    """Return the runs of the real model's recipe that have this measure."""
    return [row for row in read_results("recipe2") if measure in row]


def list_real():
    """Yield what the real model's recipe adds, with ranges over seeds."""
    rows = select_real("avg@16")
    for key in ("greedy", "avg@16", "pass@16"):
        before, after = zip(*(row[key] for row in rows))
        yield (f"real model, {key}: {mean(before):.3f} ({min(before):.3f} to {max(before):.3f}) "
               f"before, {mean(after):.3f} ({min(after):.3f} to {max(after):.3f}) after, "
               f"{len(rows)} seeds")


def guess(chances):
    """Return avg, pass@4 and pass@16 of guesses that are right with these chances."""
    return ", ".join(f"{mean(1 - (1 - chance) ** k for chance in chances):.3f}" for k in (1, 4, 16))


def list_floors():
    """Yield what guessing reaches, and two numbers that sentences about verdicts need."""
    lists = [re.findall(r": ([KN ]+)\.", puzzle.solution) for seed in range(4600, 4624)
             for puzzle in tasks.kk_split("test", 200, [3], seed, brief=True)]
    for said in (0, 2):
        left = [len(words[said - 1].split()) if said else 8 for words in lists]
        yield (f"puzzles, seeds 4600 to 4623: guessing among what is left after {said} statements, "
               f"avg, pass@4, pass@16: {guess([1 / count for count in left])}")
    pairs = {*itertools.combinations_with_replacement(range(2, 25), 2)} - {(7, 12)}
    sums = Counter(map(sum, pairs))
    test = [int(problem.answer) for problem in real_model.make_task(None).test]
    yield ("the real model's 64 test sums: guessing from the distribution of sums, avg, pass@4, "
           f"pass@16: {guess([sums[answer] / len(pairs) for answer in test])}; of them "
           f"{test.count(19)} is 19, the answer of the prompt's example")
    _, low, high = interval(compare_early(find_runs("again"), "GRPO-SG", "GRPO x 1.036"))
    yield f"again, outcome 3, with six digits: [{low:+.6f}, {high:+.6f}]"
    before, after = (select_added("kk", "B", when) for when in ("before", "after"))
    falls = [after[seed]["pass@4"] < before[seed]["pass@4"] for seed in before]
    yield f"added, kk: B's pass@4 falls in {sum(falls)} of {len(falls)} seeds"


# ---- What learning rate a weight is like: the rule `rates` ----

@functools.cache
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
    names = [f"GRPO x {factor:g}" for factor in GRPO[task]] + [*WEIGHTS[task]]
    found = {row["seed"]: row["solved"] for row in read_results("rates") if row["task"] == task}
    seeds = [seed for seed in SEEDS[task] if {*names} <= {*found.get(seed, ())}]
    solved = torch.tensor([[found[seed][name] for name in names] for seed in seeds]).double()
    accuracy = solved[:, :, first - 1:last].mean(-1) / 64  # (seeds, runs)
    return dict(zip(names, (draw_shares(len(seeds)) @ accuracy).T))


def sample_ratios(task):
    """Return {weight: its log progress ratio, (1 + SAMPLES,)}."""
    rows = [row["ratios"] for row in read_results("rates_ratios") if row["task"] == task]
    values = torch.tensor([[row[name] for name in WEIGHTS[task]] for row in rows]).double()
    return dict(zip(WEIGHTS[task], (draw_shares(len(rows)) @ values).log().T))


def sample_rates(task, last):
    """Return {weight: its log equivalent rate in steps 1 to last, (1 + SAMPLES,)}."""
    accuracy, factors = sample_accuracy(task, 1, last), GRPO[task]
    curve = torch.stack([accuracy[f"GRPO x {factor:g}"] for factor in factors], 1)
    weights = torch.stack([accuracy[name] for name in WEIGHTS[task]], 1)
    return dict(zip(WEIGHTS[task], find_rates(weights, curve, factors).T))


def fit_slope(predicted, measured):
    """Return the slope of the line through 0, (1 + SAMPLES,), over the weights that count."""
    x, y = (torch.stack([values[name] for name in values if name not in LAST])
            for values in (predicted, measured))
    return (x * y).sum(0) / (x * x).sum(0)


def bound(values):
    """Return (estimate, low, high) of an estimate that its bootstrap samples follow."""
    low, high = values[1:].quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return float(values[0]), low, high


@functools.cache
def compare_weights(task):
    """Return {weight: (progress ratio, equivalent rate, log of their quotient)}, each (estimate,
    low, high), in steps 1 to 10."""
    ratios, found = sample_ratios(task), sample_rates(task, 10)
    return {name: (bound(ratios[name].exp()), bound(found[name].exp()),
                   bound(found[name] - ratios[name])) for name in ratios}


def has_missed(gap):
    return gap[1] > 0 or gap[2] < 0


def write_weight(found):
    """Return the cells of a weight: its progress ratio and its equivalent rate."""
    if found is None:
        return ["not run", ""]
    ratio, rate, gap = found
    return [f"{ratio[0]:.3f}", write(rate, 3, "") + (", missed" if has_missed(gap) else "")]


def tabulate_weights(names=None):
    """Return the table of these weights, or of all."""
    kk, math_ = compare_weights("kk"), compare_weights("math")
    order = sorted(names or kk, key=lambda name: -kk[name][0][0])
    rows = [[f"`{name}`", *write_weight(kk[name]), *write_weight(math_.get(name))]
            for name in order]
    return tabulate(["weight", "puzzles: progress ratio", "puzzles: equivalent rate",
                     "sums: progress ratio", "sums: equivalent rate"], rows)


def tabulate_few_weights():
    return tabulate_weights(["pi", "GRPO-SG", "1 - pi", "(1 - pi)^4"])


def correlate_ranks(x, y):
    """Return Spearman's rank correlation of two tensors, (n,)."""
    x, y = (values.argsort().argsort().double() for values in (x, y))
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


def list_errors():
    """Yield how well the progress ratio orders the weights that count, and how far it is off."""
    for task in WEIGHTS:
        ratios, found = sample_ratios(task), sample_rates(task, 10)
        names = [name for name in ratios if name not in LAST]
        x, y = (torch.stack([values[name] for name in names]) for values in (ratios, found))
        error, noise = (y - x)[:, 0].square().mean().sqrt(), (y - x)[:, 1:].var(1).mean().sqrt()
        leverage = x[:, 0].square().sort(descending=True).values
        yield (f"{task}: rank correlation of progress ratio and equivalent rate "
               f"{correlate_ranks(x[:, 0], y[:, 0]):.2f}, {len(names)} weights")
        yield (f"{task}: root mean square of log(rate / progress ratio) {error:.3f}, of noise "
               f"alone {noise:.3f}, beyond noise {(error ** 2 - noise ** 2).sqrt():.3f}; of log "
               f"rate, as if every weight were like rate 1, {y[:, 0].square().mean().sqrt():.3f}")
        yield f"{task}: three weights carry {leverage[:3].sum() / leverage.sum():.0%} of the slope"


def list_rates():
    """Yield the outcomes of the rule `rates`. Its words for them stand in the ledger."""
    for task in WEIGHTS:
        for name, (*_, gap) in compare_weights(task).items():
            yield (f"{task}, {name}: log(rate / progress ratio) {write(gap)}"
                   f"{', missed' if has_missed(gap) else ''}")
    for number, task, last in (1, "kk", 10), (3, "kk", 20), (6, "math", 10):
        slope = bound(fit_slope(sample_ratios(task), sample_rates(task, last)))
        yield (f"rates, outcome {number}: {task}, steps 1 to {last}, slope "
               f"{write(slope, 2, '')}")
    rare, most = LAST
    early, late, whole = (sample_accuracy("kk", *steps) for steps in ((1, 10), (16, 20), (1, 20)))
    leads = [bound(part[rare] - part["GRPO x 1"]) for part in (early, late)]
    yield (f"rates, outcome 4: {rare} minus GRPO, {write(leads[0], 4)} in steps 1 to 10 and "
           f"{write(leads[1], 4)} in steps 16 to 20")
    lead = bound(whole[most] - whole["GRPO x 0.05"])
    yield f"rates, outcome 5: {most} minus GRPO at a twentieth of the rate, {write(lead, 4)}"
    look = read_results("rates_ratios")[-1]
    ratio, error = look["ratios"]["GRPO-SG"], look["standard_errors"]["GRPO-SG"]
    share = look["shares of the mean gradient"]["A < 0, pi < 1/3"]
    yield (f"real model: GRPO-SG's progress ratio "
           f"{write((ratio, ratio - 1.96 * error, ratio + 1.96 * error), 3, '')}, rare tokens of "
           f"wrong completions carry {share[0]:.3f} ± {share[1]:.3f} of the mean gradient")


# ---- Other experiments ----

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


def tabulate_gains():
    """Return avg@4 before and after training, with its range over seeds."""
    arms = {"tiny, logic puzzles": "kk, words",
            "tiny, sums and products (`--task math`)": "math, ready"}
    gains = {name: [(row["before"], row["avg@4"]) for row in select("default", arm=arm).values()]
             for name, arm in arms.items()}
    gains["SmolLM2-135M, sums"] = [row["avg@4"] for row in select_real("avg@4")]
    rows = []
    for name, pairs in gains.items():
        before, after = zip(*pairs)
        rows.append([name, f"{mean(before):.3f} → {mean(after):.3f} ({min(after):.3f} to "
                     f"{max(after):.3f})", len(pairs)])
    return tabulate(["model and task", "avg@4, before → after", "seeds"], rows)


def list_progress():
    """Yield outcomes 1 to 4 of the rule `progress`, how the first two change, and a ratio."""
    runs = find_runs("progress")
    for ours, theirs, lr in PROGRESS:
        yield describe(f"{ours} at 2e-4 minus {theirs} at {lr:g}, steps 1 to 20",
                       compare_early(runs, (ours, 2e-4), (theirs, lr)), 4)
    rows = read_results("progress_ratios")
    for step in (0, 15):
        plain, simulated = zip(*(row["ratios"]["GRPO-SG"] for row in rows
                                 if (row["lr"], row["step"]) == (2e-4, step)))
        yield (f"GRPO-SG's progress ratio after {step} steps: plain {mean(plain):.3f}, simulated "
               f"{mean(simulated):.3f}")


# ---- The figures ----

def read_ends():
    """Return [(label, pairs, estimate, low, high)] of the ledger's lines about where a run ends,
    in the order of ENDS."""
    ends = []
    for line in LEDGER.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 10 and cells[1] == "end":
            runs = re.search(r"first runs|again", cells[2])
            label = ENDS[cells[8]] + (f", {runs[0]}" if runs else "")
            ends.append((label, int(cells[6]), *map(float, re.findall(r"[+-][\d.]+", cells[5]))))
    order = [*ENDS.values()]
    return sorted(ends, key=lambda end: order.index(re.sub(", (first runs|again)$", "", end[0])))


def draw_ends():
    equal = [(f"three tasks, after {step} steps", 40,
              *interval(average_tasks(find_leads([step])))) for step in ("10", "60")]
    return figures.draw_ends(read_ends(), equal)


def draw_phone_book():
    return figures.draw_curves([(f"{method} at {rate}", curve)
                                for method, rate, curve, _ in list_phone_book()])


def draw_rates():
    points = [(task, name, ratio, rate, has_missed(gap)) for task in WEIGHTS
              for name, (ratio, rate, gap) in compare_weights(task).items() if name != "other 80%"]
    return figures.draw_rates(points)


# ---- The program ----

# page -> its tables
TABLES = {"README.md": [tabulate_gains],
          "lesson/README.md": [tabulate_added],
          "lesson/weight.md": [tabulate_few_weights, tabulate_weights],
          "experiments/README.md": [tabulate_equal_rates, tabulate_phone_book, tabulate_early,
                                    tabulate_changes]}


def list_numbers():
    """Yield the numbers that stand in sentences, or on no page."""
    for part in (list_again, list_added, reasons.list_outcomes, list_real, list_floors, list_choice,
                 list_pairs, list_errors, list_rates, list_progress):
        yield from part()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--figures", action="store_true", help="draw them, print nothing")
    if parser.parse_args().figures:
        for draw in (draw_ends, draw_phone_book, draw_rates):
            (FIGURES / f"{draw.__name__.removeprefix('draw_')}.svg").write_text(draw(), "utf-8")
        return
    for page, tables in TABLES.items():
        for table in tables:
            print(f"{page}:\n\n{table()}\n")
    print("\n".join(list_numbers()))


if __name__ == "__main__":
    main()
