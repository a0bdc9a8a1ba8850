"""Analyze the recorded rows: paired differences, 95% confidence intervals, minimum detectable
effects, slopes over the damping factor, collapse rates. Nothing here trains.

Below are the pre-registered rules of "help" and "noisy", of "dose", and of "stability", in the
words written down before the runs. The docstring of run.py has the rules of "greedy", "late" and
"afar"; signal.py and when.py have their own. In the rules, `sg` means GRPO-SG, `none` means GRPO,
"dose" means damping factor, and "ready model" means pretrained tiny model.

"help" and "noisy":

    The regime is meant to be kind to GRPO-SG, whose weight only tells tokens apart where unlikely
    ones are sampled: three people, a warm-up that ends early, and twice as many updates on a
    rollout as by default, of half as many prompts. Fixed beforehand: this regime, 40 steps, and
    the comparison that counts, sg against none in avg@4 on the test problems, over 20 paired
    seeds, each method at the best learning rate of a grid on validation problems of other seeds.

    The noisy regime is where the method's story says that it should help: unlikely tokens that
    luck rewarded. In training one verdict in six is the wrong way round, 256 problems are all
    that there are, and there are 60 steps. It was fixed before its first run, and so was the
    comparison that counts, the same. After it was seen that the two methods have different best
    rates there, GRPO was run at GRPO-SG's, too (noisy-equal), which is no test of anything.

    The rates of the grids are 1e-4, 2e-4 and 4e-4, their seeds 100 to 103.

    AR-Lopti's weight and Lopti's order, arms of `help`, came later, by the same rule: each at the
    best rate of its own grid. They are read beside the comparison that counts, and are no part of
    it.

"dose":

    The dose d. Tokens have the weight w ** (log d / log 1.4), in which w is GRPO-SG's, from 1 to
    1.4: a token with pi > 0.33 counts d times as much as one with pi < 0.12, and the curve
    between has the same shape. d = 1 is GRPO (none), 1.4 is GRPO-SG, 3 and 10 are more of it;
    1/1.4 and 1/3 are the reverse, in which unlikely tokens count more. Beside these, w = pi,
    which damps without an end. In every update weights are divided by their mean over its tokens
    (an update is one micro-batch): all doses have the mean weight 1, and no dose is a larger
    step.

    The regime. kk with three people, a warm-up of 150 steps, 60 steps of 16 prompts x 8
    completions, 4 updates on a rollout, and else the defaults of the tiny model. It was found on
    seeds 100 and 101, on validation problems: there 5 to 6 % of the tokens that are trained on
    have pi < 1/3 (at least 3 % were wanted), and avg@4 rises. A warm-up of 80 or 100 steps leaves
    more of them, 9 to 12 %, but avg@4 hardly rises. Doses 3, 10, pi and 1/3 were looked at, too,
    at some rates: once, at 2e-4, dose 10 lost the form of its answers.

    The learning rate of each dose is that with the best mean avg@4 on validation problems, over
    seeds 102 to 104, of four: 5e-5, 1e-4, 2e-4, 4e-4.

    The counted runs are of seeds 0 to 19, every dose from the same warm start of a seed, measured
    by avg@4 on the test problems. What counts: the slope of avg@4 over ln d, of a least-squares
    line through the six doses 1/3, 1/1.4, 1, 1.4, 3 and 10 of each seed; its mean over the seeds,
    with a 95 % interval by Student's t. "More damping helps": the interval is above 0. "More
    damping harms": it is below 0. "No slope was seen": it contains 0.

    Where it turns down: the dose with the highest mean avg@4, called a peak if the next larger
    dose's paired difference to it has an interval below 0. Secondary, and no test of the claim:
    the slope through the doses from 1 to 10 alone; each dose, and w = pi, minus dose 1. No
    interval is corrected for their number.

"stability":

    Learning rates 1e-4 to 1.6e-3 in factors of two. A run has collapsed if its test avg@4 after
    the last step is below its own warm start's; equal is not below. A seed's collapse rate T, in
    octaves: its gain, avg@4 minus the warm start's, is joined by straight lines over log2 of the
    five rates, and T is the lowest log2 rate plus the length on which that line is at or above 0.
    For a curve that falls once this is where it crosses 0. 2 ** (mean of T) is the geometric mean
    of these rates, not the rate at which half of the runs collapse.

    The comparison that counts: D = mean over seeds of T(sg) - T(none), with a 95 % interval by
    Student's t, once all ten seeds are there; before that it is called interim. With s =
    log2(mean weight of sg), about 0.47, as a common factor of the weights would move the curve by
    -s:

    - "stabler": the interval is above 0.
    - "moved by the factor": it is below 0 and contains -s. "Less stable": it is below 0 and does
      not.
    - "no difference": it contains 0 and lies between -s and s.
    - "unresolved": it contains 0, and -s or s.
    - "out of range": at more than two seeds a T of either method is at an end of the range.
"""
import functools
import itertools
import json
import math
import pathlib
import statistics
from typing import NamedTuple

RESULTS = pathlib.Path(__file__).parent / "results"
# How many times as much a likely token counts as an unlikely one. pi: w = pi, without a bound.
DAMPING_FACTORS = {"1/3": 1 / 3, "1/1.4": 1 / 1.4, "none": 1.0, "1.4": 1.4, "3": 3.0,
                   "10": 10.0, "pi": None}
FINITE_FACTORS = [name for name, size in DAMPING_FACTORS.items() if size]
OCTAVES = [math.log2(rate) for rate in (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)]  # of "stability"


# ---- Rows ----

def read_rows(path):
    """Read a file of JSON lines; return [] if there is none yet. Ignores a half-written last
    line."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines(keepends=True)
            if line.endswith("\n")]


def append_rows(path, rows):
    """Append JSON lines, in the place of a half-written last line."""
    with open(path, "ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def read(experiment):
    return read_rows(RESULTS / f"{experiment}.jsonl")


def read_json(name):
    return json.loads((RESULTS / name).read_text("utf-8"))


def select(rows, **values):
    """Return {seed: row} of the rows with these values."""
    return {row["seed"]: row for row in rows if values.items() <= row.items()}


def cell(experiment, arm, **values):
    """Return {seed: row} of an arm's counted rows."""
    return select(read(experiment), arm=arm, **{"split": "test", **values})


def mean(cell, key="avg@4"):
    return statistics.fmean(row[key] for row in cell.values())


def best_rates(rows):
    """Return {arm: the learning rate with the highest mean avg@4} from the rows of a grid."""
    found = {}
    for row in rows:
        found.setdefault(row["arm"], {}).setdefault(row["rate"], []).append(row["avg@4"])
    best = {}
    for arm, rates in found.items():
        means = {rate: statistics.fmean(values) for rate, values in rates.items()}
        best[arm] = max(means, key=means.get)
    return best


def best_rate(experiment, arm):
    """Return the arm's best learning rate on validation problems."""
    grid = [row for row in read(experiment) if row["split"] == "valid"]
    return best_rates(grid).get(arm)


def tuned(experiment, arm):
    """Return {seed: row} of an arm's counted rows at its best learning rate."""
    return cell(experiment, arm, rate=best_rate(experiment, arm))


# ---- Intervals ----

@functools.cache
def t_quantile(p, degrees, steps=20_000):
    """Return Student's t quantile, for p of at least 0.5.

    With x = sqrt(n) tan(a), the density over the angle a is proportional to cos(a)^(n-1)."""
    width = math.pi / 2 / steps
    heights = [math.cos((i + 0.5) * width) ** (degrees - 1) for i in range(steps)]
    left = (2 * p - 1) * sum(heights)
    i = 0
    while left > heights[i]:
        left -= heights[i]
        i += 1
    return math.sqrt(degrees) * math.tan((i + left / heights[i]) * width)


def standard_error(values):
    return statistics.stdev(values) / math.sqrt(len(values))


def interval(values):
    """Return (mean, low, high): the 95% confidence interval by Student's t."""
    average = statistics.fmean(values)
    half = t_quantile(0.975, len(values) - 1) * standard_error(values)
    return average, average - half, average + half


def detectable(values):
    """Return the minimum detectable effect: 80% of such experiments would detect a true
    difference of this size, with an interval that excludes 0."""
    degrees = len(values) - 1
    return (t_quantile(0.975, degrees) + t_quantile(0.8, degrees)) * standard_error(values)


def sign_flip_p(values):
    """Return the p-value of the exact two-sided sign-flip test of a mean of 0."""
    found = abs(sum(values)) - 1e-12
    as_large = 0
    for signs in itertools.product((1, -1), repeat=len(values)):
        as_large += abs(sum(sign * value for sign, value in zip(signs, values))) >= found
    return as_large / 2 ** len(values)


def differences(a, b, key="avg@4"):
    """Return a's values minus b's, paired by seed; a, b: {seed: row}."""
    return [a[seed][key] - b[seed][key] for seed in sorted(a.keys() & b.keys())]


# ---- GRPO-SG minus GRPO, in units of what RL gained ----

class Comparison(NamedTuple):
    name: str      # in the pages' markers
    label: str
    seeds: str
    minus: list    # avg@4 of GRPO-SG minus that of GRPO, paired by seed
    gained: float  # what RL gained with GRPO: its avg@4 minus the warm start's


def compare(name, label, seeds, sg, none, before):
    return Comparison(name, label, seeds, differences(sg, none), mean(none) - before)


def comparisons():
    """Return all comparisons of the two methods whose warm starts were measured. Those of seeds
    200-239 were not; the mean of seeds 0-19 replaces them."""
    short = mean(cell("start", "warm-up of 100"))
    longer = mean(cell("start", "warm-up of 150"))
    pretrained = cell("default", "kk, ready")
    noisy = tuned("noisy", "sg")
    rate = best_rate("noisy", "sg")
    fresh = {arm: cell("greedy", arm, rate=rate) for arm in ("none", "sg")}
    other = cell("greedy", "none", rate=best_rate("noisy", "none"))
    equal = {**cell("noisy-equal", "none", rate=rate), **fresh["none"]}
    twice = {arm: cell("greedy", arm, rate=2e-4) for arm in ("none", "sg")}
    clean = {arm: cell("stability", arm, rate=2e-4) for arm in ("none", "sg")}
    return [
        compare("clean", "clean rewards, each at its own best rate", "0-19",
                tuned("help", "sg"), tuned("help", "none"), short),
        compare("clean, 2e-4", "clean rewards, both at 2e-4", "0-9",
                clean["sg"], clean["none"], mean(clean["none"], "before")),
        compare("noisy", "noisy rewards, each at its own best rate", "0-19",
                noisy, tuned("noisy", "none"), short),
        compare("noisy, fresh", "noisy rewards, GRPO at a rate known to be poor", "200-239",
                fresh["sg"], other, short),
        compare("noisy, 1e-4", "noisy rewards, both at 1e-4", "0-19, 200-239",
                {**noisy, **fresh["sg"]}, equal, short),
        compare("noisy, 2e-4", "noisy rewards, both at 2e-4", "200-239",
                twice["sg"], twice["none"], short),
        compare("mean 1", "longer warm-up, w divided by its mean", "0-19",
                tuned("dose", "1.4"), tuned("dose", "none"), longer),
        compare("default", "default run of kk", "0-4",  # with tau = 9 every weight is 1
                cell("visible", "sg"), cell("visible", "tau = 9"), mean(pretrained, "before"))]


# ---- The damping factor d ("dose"): slopes of avg@4 over ln d ----

def slopes(names, key="avg@4", **values):
    """Fit this number over ln d by least squares, for each seed that has all these damping
    factors."""
    cells = [cell("dose", name, **values) for name in names]
    xs = [math.log(DAMPING_FACTORS[name]) for name in names]
    found = []
    for seed in sorted(set.intersection(*map(set, cells))):
        ys = [each[seed][key] for each in cells]
        found.append(statistics.linear_regression(xs, ys).slope)
    return found


def judge_slopes(values):
    """Return the rule's verdict."""
    _, low, high = interval(values)
    if low > 0:
        return "more damping helps"
    return "more damping harms" if high < 0 else "no slope was seen"


def find_peak():
    """Return (the damping factor with the highest mean avg@4, whether the rule calls it a peak)."""
    cells = {name: cell("dose", name) for name in FINITE_FACTORS}
    highest = max(cells, key=lambda name: mean(cells[name]))
    if highest == FINITE_FACTORS[-1]:
        return highest, False
    larger = FINITE_FACTORS[FINITE_FACTORS.index(highest) + 1]
    return highest, interval(differences(cells[larger], cells[highest]))[2] < 0


# ---- Stability: at which learning rate a method collapses ----

def length_above(ys):
    """Return the length of the part of the x-axis on which the line through (OCTAVES, ys) is at
    or above 0."""
    total = 0.0
    for i in range(len(ys) - 1):
        low, high = sorted(ys[i:i + 2])
        share = 1 if low >= 0 else 0 if high < 0 else high / (high - low)
        total += share * (OCTAVES[i + 1] - OCTAVES[i])
    return total


def collapse_rates(arm):
    """Return {seed: T}, in octaves, for the seeds that have all five rates."""
    columns = [cell("stability", arm, rate=rate) for rate in (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)]
    found = {}
    for seed in sorted(set.intersection(*map(set, columns))):
        gains = [column[seed]["avg@4"] - column[seed]["before"] for column in columns]
        found[seed] = OCTAVES[0] + length_above(gains)
    return found


def compare_collapse():
    """Return (D of each seed, s, the rule's verdict)."""
    sg, none = collapse_rates("sg"), collapse_rates("none")
    D = [sg[seed] - none[seed] for seed in sorted(sg.keys() & none.keys())]
    rows = [row for row in read("stability") if row["arm"] == "sg"]
    s = math.log2(statistics.fmean(row["weight_mean"] for row in rows))
    _, low, high = interval(D)
    if max(count_at_an_end(sg), count_at_an_end(none)) > 2:
        return D, s, "out of range"
    if low > 0:
        return D, s, "stabler"
    if high < 0:
        return D, s, "moved by the factor" if low <= -s <= high else "less stable"
    return D, s, "no difference" if -s < low and high < s else "unresolved"


def count_at_an_end(T):
    """Count how many of these T are at an end of the range."""
    return sum(t - OCTAVES[0] < 1e-9 or OCTAVES[-1] - t < 1e-9 for t in T.values())


# ---- A long run: has it collapsed? ----

def describe_end(row):
    """Return (best, last, collapsed) for a row of "late": the mean training accuracy of the best
    100 consecutive steps and of the last 100, and the rule's verdict."""
    curve = row["curve"]
    means = [statistics.fmean(curve[i:i + 100]) for i in range(len(curve) - 99)]
    best, last = max(means), means[-1]
    return best, last, last < best - 0.10 or row["avg@4"] < row["before"]


# ---- Generalization and sharpness ----

def near(row):
    return row["avg@4"]


def transfer(row):
    return (row["avg@4, 4 people"] + row["avg@4, 5 people"]) / 2


def gap(row):
    return row["avg@4, trained on"] - row["avg@4, others"]


def sharpness(row):
    return row["before a step aside"] - row["after a step aside"]


def compare_afar(problems, measure):
    """Return [(GRPO's, GRPO-SG's)] of a measure for each seed, on "many" or "few" problems."""
    none, sg = cell("afar", f"none, {problems}"), cell("afar", f"sg, {problems}")
    return [(measure(none[seed]), measure(sg[seed])) for seed in sorted(sg.keys() & none.keys())]


def judge_afar(transfers, gaps, falls):
    """Return the rule's verdict on ten seeds."""
    _, transfer_low, transfer_high = interval(transfers)
    _, gap_low, gap_high = interval(gaps)
    _, fall_low, fall_high = interval(falls)
    words = []
    if transfer_low > 0 or gap_high < 0:
        words.append("generalizes better")
    if transfer_high < 0 or gap_low > 0:
        words.append("generalizes worse")
    if not words:
        words.append("in generalization no difference was seen")
    if fall_high < 0:
        words.append("flatter")
    elif fall_low > 0:
        words.append("less flat")
    else:
        words.append("in sharpness no difference was seen")
    return "; ".join(words)
