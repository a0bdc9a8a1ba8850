"""Print what results/words_look.jsonl and results/words_learn.jsonl say, by results/words_rule.txt,
and draw figures/words.svg. Imports nothing of the project; needs matplotlib.

    python -m experiments.words_figure
"""
import json
import math
import pathlib
import statistics

HERE = pathlib.Path(__file__).parent
PLACES = {"nowhere": "nowhere", "before": "before\nthe name", "after": "after\nthe name",
          "after-4": "four words\nafter"}
COLORS = {"GRPO-SG": "#2166ac", "damping 4": "#888888", "damping 11": "#d95f02"}
# Student's t, 97.5%, for 1, 2, ... 19 degrees of freedom
T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
     2.145, 2.131, 2.120, 2.110, 2.101, 2.093]


def read(name):
    text = (HERE / "results" / f"words_{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def interval(values):
    """Return (mean, half the 95% interval)."""
    half = T[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), half


# ---- Efficiency ----

def average(rows, key):
    """Return the mean over seeds, and its standard error from those of the seeds."""
    values, errors = zip(*(row[key] for row in rows))
    return statistics.fmean(values), math.hypot(*errors) / len(errors)


def select(rows, place, weight, step):
    return [row for row in rows
            if (row["place"], row["weight"], row["step"]) == (place, weight, step)]


def write_table(rows, weights=("GRPO-SG", "damping 11")):
    """Return the rows of a table: what unlikely tokens carry, and efficiencies."""
    lines = []
    for step in sorted({row["step"] for row in rows}):
        for place in PLACES:
            some = select(rows, place, "GRPO-SG", step)
            if some:
                cells = [f"{place}, step {step}", f"{unlikely(some):.0%}"]
                cells += [f"{sum_of(some, kind):.0%}" for kind in ("signal", "noise")]
                for weight in weights:
                    cells.append("{:.3f} ± {:.3f}".format(
                        *average(select(rows, place, weight, step), "efficiency")))
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def print_looks(rows):
    print("| words | tokens with pi < 1/3 | signal | noise | GRPO-SG | damping 4 | damping 11 |")
    print("\n".join(["|---" * 7 + "|", *write_table(rows, COLORS)]))
    for row in rows:
        print(row["place"], row["weight"], "step", row["step"], "seed", row["seed"], "efficiency",
              row["efficiency"])


def unlikely(rows):
    """Return the share of the tokens with a learning signal that have pi < 1/3."""
    tokens = [row["tokens"] for row in rows]
    few = sum(each[name] for each in tokens for name in each if "< 1/3" in name)
    return few / sum(sum(each.values()) for each in tokens)


def sum_of(rows, kind):
    """Return the share of the signal or the noise in tokens with pi < 1/3."""
    return sum(average(rows, f"{kind}: A {sign} 0, pi < 1/3")[0] for sign in "><")


# ---- Learning ----

def outcomes(row):
    accuracies = row["training: accuracy"]
    found = {"training 1-20": statistics.fmean(accuracies[:20]),
             "training 1-10": statistics.fmean(accuracies[:10]),
             "training 11-20": statistics.fmean(accuracies[10:20])}
    return found | {f"avg@8 after {step}": value for step, value in row["avg@8"].items()}


def find_differences(rows):
    """Return ({(place, weight, outcome): differences from GRPO, one for each complete seed},
    {(place, outcome): the mean of GRPO}, the seeds)."""
    values = {(row["place"], row["weight"], row["seed"]): outcomes(row) for row in rows}
    cells = {key[:2] for key in values}
    seeds = sorted(seed for seed in {key[2] for key in values}
                   if all((*cell, seed) in values for cell in cells))
    found, levels = {}, {}
    for place, weight in sorted(cells):
        for name in outcomes(rows[0]):
            theirs = [values[place, "GRPO", seed][name] for seed in seeds]
            ours = [values[place, weight, seed][name] for seed in seeds]
            found[place, weight, name] = [a - b for a, b in zip(ours, theirs)]
            levels[place, name] = statistics.fmean(theirs)
    return found, levels, seeds


def write_interval(values):
    mean, half = interval(values)
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def print_learning(rows):
    found, levels, seeds = find_differences(rows)
    print(f"\n{len(seeds)} seeds: {seeds}\n")
    for (place, weight, name), differences in found.items():
        if weight != "GRPO":
            print(f"{place}, {weight} minus GRPO, {name}: {write_interval(differences)}; GRPO "
                  f"{levels[place, name]:.3f}")
            if place == "after":
                pairs = zip(differences, found["before", weight, name])
                print(f"    minus the same before the name: "
                      f"{write_interval([after - before for after, before in pairs])}")


# ---- The figure ----

def draw(looks, runs):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "grpo-sg", "axes.spines.top": False,
                         "axes.spines.right": False, "figure.constrained_layout.use": True})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), width_ratios=(3, 2))
    for shift, (weight, color) in zip((-0.15, 0, 0.15), COLORS.items()):
        for x, place in enumerate(PLACES):
            some = select(looks, place, weight, 0)
            if some:
                mean, error = average(some, "efficiency")
                left.errorbar(x + shift, mean, 2 * error, color=color, fmt="o", ms=5,
                              label=weight if x == 0 else None)
    left.axhline(1, color="black", lw=0.8)
    left.set_xticks(range(len(PLACES)), PLACES.values())
    left.set_title("Efficiency before training (GRPO has 1)")
    left.legend(frameon=False, fontsize=8, loc="upper left")
    found, _, seeds = find_differences(runs)
    for shift, weight in ((-0.1, "GRPO-SG"), (0.1, "damping 11")):
        for x, place in enumerate(("before", "after")):
            mean, half = interval(found[place, weight, "training 1-20"])
            right.errorbar(x + shift, 100 * mean, 100 * half, color=COLORS[weight], fmt="o", ms=5)
    right.axhline(0, color="black", lw=0.8)
    right.set_xticks(range(2), [PLACES["before"], PLACES["after"]])
    right.set(title="Accuracy in training minus GRPO's", ylabel="points, steps 1 to 20",
              xlim=(-0.5, 1.5))
    figure.savefig(HERE / "figures" / "words.svg", metadata={"Date": None})


def main():
    looks, runs = read("look"), read("learn")
    print_looks(looks)
    print_learning(runs)
    draw(looks, runs)


if __name__ == "__main__":
    main()
