"""What the recorded rows say: cells, paired differences with 95 % intervals, slopes over
the dose, collapse rates. Nothing here trains; the rules are in README.md."""
import json
import math
import pathlib
import statistics

RESULTS = pathlib.Path(__file__).parent / "results"
# 97.5 % quantiles of Student's t with 1, 2, .. 39 degrees of freedom.
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042, 2.040, 2.037, 2.035, 2.032, 2.030, 2.028, 2.026, 2.024, 2.023)
# How many times as much a likely token counts as an unlikely one; pi: w = pi, without an end.
DOSES = {"1/3": 1 / 3, "1/1.4": 1 / 1.4, "none": 1.0, "1.4": 1.4, "3": 3.0, "10": 10.0,
         "pi": None}
FINITE_DOSES = [name for name, size in DOSES.items() if size]
OCTAVES = [math.log2(rate) for rate in (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)]  # of "stability"


# ---- Rows ----

def read_rows(path):
    """The rows of a file of JSON lines; [] if there is none yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(experiment):
    return read_rows(RESULTS / f"{experiment}.jsonl")


def read_json(name):
    return json.loads((RESULTS / name).read_text())


def select(rows, **values):
    """{seed: row} of the rows with these values."""
    return {row["seed"]: row for row in rows if values.items() <= row.items()}


def cell(experiment, arm, **values):
    """{seed: row} of an arm's counted rows."""
    return select(read(experiment), arm=arm, **{"split": "test", **values})


def mean(cell, key="avg@4"):
    return statistics.fmean(row[key] for row in cell.values())


def best_rates(rows):
    """{arm: the learning rate with the highest mean avg@4} of the rows of a grid."""
    found = {}
    for row in rows:
        found.setdefault(row["arm"], {}).setdefault(row["rate"], []).append(row["avg@4"])
    best = {}
    for arm, rates in found.items():
        means = {rate: statistics.fmean(values) for rate, values in rates.items()}
        best[arm] = max(means, key=means.get)
    return best


# ---- Intervals ----

def interval(values):
    """(mean, low, high), the 95 % interval by Student's t, of 2 to 40 values."""
    average = statistics.fmean(values)
    half = T_975[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return average, average - half, average + half


def differences(a, b, key="avg@4"):
    """A row's value minus that of the row in b with the same seed; a, b: seed -> row."""
    return [a[seed][key] - b[seed][key] for seed in sorted(a.keys() & b.keys())]


# ---- The dose: slopes of avg@4 over ln d ----

def slopes(doses, **values):
    """Of each seed that has all these doses, the slope of the least-squares line."""
    cells = [cell("dose", name, **values) for name in doses]
    xs = [math.log(DOSES[name]) for name in doses]
    found = []
    for seed in sorted(set.intersection(*map(set, cells))):
        ys = [each[seed]["avg@4"] for each in cells]
        found.append(statistics.linear_regression(xs, ys).slope)
    return found


def judge_slopes(values):
    """The verdict of the rule in README.md."""
    _, low, high = interval(values)
    if low > 0:
        return "more damping helps"
    return "more damping harms" if high < 0 else "no slope was seen"


def find_peak():
    """(the dose with the highest mean avg@4, whether the rule calls it a peak)"""
    cells = {name: cell("dose", name) for name in FINITE_DOSES}
    highest = max(cells, key=lambda name: mean(cells[name]))
    if highest == FINITE_DOSES[-1]:
        return highest, False
    larger = FINITE_DOSES[FINITE_DOSES.index(highest) + 1]
    return highest, interval(differences(cells[larger], cells[highest]))[2] < 0


# ---- Stability: where a method falls off ----

def length_above(ys):
    """The length of the part of the x-axis on which the line through (OCTAVES, ys) is at
    or above 0."""
    total = 0.0
    for i in range(len(ys) - 1):
        low, high = sorted(ys[i:i + 2])
        share = 1 if low >= 0 else 0 if high < 0 else high / (high - low)
        total += share * (OCTAVES[i + 1] - OCTAVES[i])
    return total


def collapse_rates(arm):
    """{seed: T}, in octaves, of the seeds that have all five rates."""
    columns = [cell("stability", arm, rate=rate) for rate in (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)]
    found = {}
    for seed in sorted(set.intersection(*map(set, columns))):
        gains = [column[seed]["avg@4"] - column[seed]["before"] for column in columns]
        found[seed] = OCTAVES[0] + length_above(gains)
    return found


def compare_collapse():
    """(D of each seed, s, the verdict of the rule in README.md)"""
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
    """How many of these T are at an end of the range."""
    return sum(t - OCTAVES[0] < 1e-9 or OCTAVES[-1] - t < 1e-9 for t in T.values())


# ---- A long run: has it collapsed? ----

def describe_end(row):
    """(best, last, collapsed) of a row of "late": the mean accuracy in training of the best 100
    steps in a row and of the last 100, and what the rule in README.md says."""
    curve = row["curve"]
    means = [statistics.fmean(curve[i:i + 100]) for i in range(len(curve) - 99)]
    best, last = max(means), means[-1]
    return best, last, last < best - 0.10 or row["avg@4"] < row["before"]


# ---- Generalisation and sharpness ----

def transfer(row):
    return (row["avg@4, 4 people"] + row["avg@4, 5 people"]) / 2


def gap(row):
    return row["avg@4, trained on"] - row["avg@4, others"]


def sharpness(row):
    return row["before a step aside"] - row["after a step aside"]


def at_home(row):
    return row["avg@4"]


def compare_afar(problems, measure):
    """[(GRPO's, GRPO-SG's)], for each seed, of a measure of the runs on "many" or "few"."""
    none, sg = cell("afar", f"none, {problems}"), cell("afar", f"sg, {problems}")
    return [(measure(none[seed]), measure(sg[seed])) for seed in sorted(sg.keys() & none.keys())]


def judge_afar(transfers, gaps, falls):
    """The verdict of the rule in README.md, of ten seeds."""
    _, transfer_low, transfer_high = interval(transfers)
    _, gap_low, gap_high = interval(gaps)
    _, fall_low, fall_high = interval(falls)
    words = []
    if transfer_low > 0 or gap_high < 0:
        words.append("generalises better")
    if transfer_high < 0 or gap_low > 0:
        words.append("generalises worse")
    if not words:
        words.append("in generalisation no difference was seen")
    if fall_high < 0:
        words.append("flatter")
    elif fall_low > 0:
        words.append("less flat")
    else:
        words.append("in sharpness no difference was seen")
    return "; ".join(words)
