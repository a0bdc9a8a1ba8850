"""Where the numbers of the pages come from: a small function for each question.

A source is (page, text, file, key, values): a text of the page, the file in results/ and what of it is meant, and
the values as they should stand in the text, where it has {} for a number, {words} for words, and {any} for what is of
no account, up to the next |. Text may be two texts: the second is looked for from the first on, as tables have equal rows. A
space stands for any white space, and bold marks may be missing.
"""
import json
import math
import re
import statistics

from experiments import compare, dose, paired, stability

README, EVIDENCE, LESSON = "README.md", "experiments/README.md", "lesson/README.md"
DECISIONS = "lesson/decisions.md"
VERIFY = "verify/README.md"
METHODS = {"none": "GRPO", "sg": "GRPO-SG"}
TASKS = "kk", "math", "qa"


# ---- How values are written ----

def short(value, digits=3):
    """.508, -.010: without the 0 before the point."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.{digits}f}")


def signed(value, digits=3):
    return re.sub(r"^([-+])0\.", r"\1.", f"{value:+.{digits}f}")


def plain(value, digits=3):
    return f"{value:.{digits}f}"


def power(value):
    """1.6e-3, 2e-4"""
    return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")


def mean(rows, key="avg@4"):
    return statistics.fmean(row[key] for row in rows)


def with_error(values, digits=3):
    """The mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return [short(statistics.fmean(values), digits), short(error, digits)]


def with_interval(values):
    return [signed(value) for value in paired.interval(values)]


def range_of(values, write=short, digits=2):
    low, high = write(min(values), digits), write(max(values), digits)
    return low if low == high else f"{low} to {high}"


def percent(value, digits=1):
    return f"{100 * value:.{digits}f}"


def called(values):
    _, low, high = paired.interval(values)
    if low > 0:
        return "GRPO-SG is better"
    return "GRPO-SG is worse" if high < 0 else "no difference was seen"


# ---- Sources ----

VERIFY_RESULTS = paired.RESULTS.parents[1] / "verify" / "results"


def read(name):
    folder = VERIFY_RESULTS if name in ("ignorant_math.json", "math_outputs.txt") else paired.RESULTS
    text = (folder / name).read_text()
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text) if name.endswith(".json") else text


def commits(name, parts):
    """Of the program that made these parts of a file, in their order."""
    found = [part.get("commit", "an older one") for part in parts]
    return EVIDENCE, f"| `{name}` | {{words}} |", name, "commit", [" and ".join(dict.fromkeys(found))]


def default_runs():
    made = []
    for task in TASKS:
        file = f"default_{task}.json"
        runs = read(file)
        made += runs
        values = []
        for key in ("eval/accuracy", "eval/avg@4"):
            for when in ("before", "after"):
                values += with_error([run[when][key] for run in runs])
        values.append(range_of([run["best_constant_answer"] for run in runs]))
        row = f"| `{task}` | {{}} ± {{}} | **{{}} ± {{}}** | {{}} ± {{}} | {{}} ± {{}} | {{}} |"
        key = "eval/accuracy, eval/avg@4 before and after, best_constant_answer"
        yield README, row, file, key, values
        seconds = range_of([run["seconds"] for run in runs], digits=0)
        memory_used = f"{max(run['peak_mb'] for run in runs) / 1000:.1f}"
        yield EVIDENCE, row + " {} | {} GB |", file, f"{key}, seconds, peak_mb", [*values, seconds, memory_used]
    yield commits("default_*.json", made)
    first = read("default_kk.json")[0]
    for when in ("before", "after"):
        values = []
        for key in ("eval/accuracy", "eval/accuracy_se", "eval/avg@4", "eval/avg@4_se"):
            values.append(f"{first[when][key]:.3f}")
        text = f"test {when} training: accuracy {{}} ± {{}}, avg@4 {{}} ± {{}},"
        yield README, text, "default_kk.json", f"{when}, seed 0", values


def premise():
    rows = read("premise.jsonl")
    yield commits("premise.jsonl", rows)
    means = {}
    for shaping in ("none", "sg"):
        values = []
        for task in TASKS:
            shares = [row["share of squared norm"][shaping] for row in rows if row["task"] == task]
            values += [*with_error(shares, 2), range_of(shares)]
        cells = " | ".join(3 * ["{} ± {} ({})"])
        text = "| share of the squared norms", f"| {METHODS[shaping]}'s weights | {cells} |"
        yield EVIDENCE, text, "premise.jsonl", f"share of squared norm, {shaping}", values
        means[shaping] = [min(values[::3]), max(values[::3])]  # of the tasks
    unlikely = [row["share of tokens with pi < 1/3"] for row in rows]
    tokens = sum(row["tokens"] for row in rows)
    share = percent(sum(each * row["tokens"] for each, row in zip(unlikely, rows)) / tokens)
    values = [f"{tokens:,}", share, range_of(unlikely, percent, 1),
              range_of([row["Pearson"] for row in rows]), range_of([row["Spearman"] for row in rows])]
    text = ("Of {} tokens, those of groups with equal rewards among them, {} % have pi < 1/3 ({} % in a run). A token's "
            "norm goes with 1 - pi: the correlation is {} (Pearson; {} by ranks).")
    yield EVIDENCE, text, "premise.jsonl", "tokens, share of tokens, Pearson, Spearman", values
    text = "yes: with GRPO's weights {} % of the tokens carry {} to {} of the squared norms"
    yield EVIDENCE, text, "premise.jsonl", "shares", [share, *means["none"]]
    text = "they carry {} to {} of the sum of squared norms with GRPO's weights, {} to {} with GRPO-SG's"
    both = [*means["none"], *means["sg"]]
    for page in (README, LESSON):
        yield page, "{} % of the tokens have pi < 1/3, and " + text, "premise.jsonl", "shares", [share, *both]


def comparisons():
    rows = read("compare.jsonl")
    yield commits("compare.jsonl", rows)
    found = {}
    for part, rewards in (("help", "clean"), ("noisy-help", "noisy")):
        found[part] = cells = {name: paired.select(rows, part=part, name=name) for name in METHODS}
        for name, label in METHODS.items():
            values = [power(cells[name][0]["lr"]), short(mean(cells[name].values()))]
            row = f"| {rewards} | {label} | {{}} | {{}} | |"
            if name != "none":
                values += with_interval(paired.differences(cells[name], cells["none"]))
                row = row[:-1] + "**{} [{}, {}]** |"
            yield EVIDENCE, row, "compare.jsonl", f"{part}, {name}: lr, avg@4, minus none", values
    clean, noisy = (paired.differences(cells["sg"], cells["none"]) for cells in found.values())
    yield EVIDENCE, "| clean rewards: {words}; noisy ones: {words} |", "compare.jsonl", "sg - none", [
        called(clean), called(noisy)]
    yield EVIDENCE, "With clean rewards {words}; with noisy rewards {words}. What", "compare.jsonl", "sg - none", [
        called(clean), called(noisy)]
    values = [called(clean), *with_interval(clean), called(noisy), *with_interval(noisy)]
    text = ("With clean rewards {words}: over 20 paired seeds of `kk`, avg@4 of GRPO-SG minus GRPO's is {} [{}, {}]. "
            "With noisy ones {words}: it is {} [{}, {}].")
    yield README, text, "compare.jsonl", "sg - none", values
    greedy = []
    for cells in found.values():
        greedy += with_interval(paired.differences(cells["sg"], cells["none"], "greedy"))
    text = "GRPO-SG minus GRPO is {} [{}, {}] with clean rewards and {} [{}, {}] with noisy ones"
    yield EVIDENCE, text, "compare.jsonl", "greedy: sg - none", greedy
    grid = []
    for lr in compare.RATES:
        grid.append(mean(paired.select(rows, part="noisy-grid", name="none", lr=lr).values()))
    best, second = sorted(grid)[:-3:-1]
    yield EVIDENCE, "noisy GRPO's was chosen by {},", "compare.jsonl", "noisy-grid, none", [short(best - second)]
    equal = paired.select(rows, part="noisy-equal")
    values = []
    for key in ("greedy", "avg@4"):
        values += with_interval(paired.differences(found["noisy-help"]["sg"], equal, key))
    text = "minus GRPO's at GRPO-SG's rate it is {} [{}, {}] (and {} [{}, {}] in avg@4;"
    yield EVIDENCE, text, "compare.jsonl", "noisy-help, sg - noisy-equal", values
    text = "it is {} [{}, {}] with noisy ones, and {} [{}, {}] from GRPO at the same learning rate."
    yield README, text, "compare.jsonl", "greedy, noisy", greedy[3:] + values[:3]
    before = short(mean(row for row in rows if row["part"] == "start"))
    yield EVIDENCE, "The warm starts have avg@4 {}. The grids", "compare.jsonl", "start", [before]


def mistakes():
    every = read("compare.jsonl")
    rows = [row for row in every if row["part"] == "traps"]
    base = paired.select(rows, name="sg")
    labels = {"clip(w r)": ("the weight inside of the clip", "w is outside the clip"),
              "end token masked": ("the stop token left out", "the mask is made by position"),
              "tau = 9": ("tau = 9", "tau is 1/9"),
              "scored at another temperature": ("log-probabilities at temperature 0.6",
                                                "sampling and scoring share one temperature")}
    decisions = {"tau = 9": "9 in place of 1/9", "clip(w r)": "inside"}
    costly = 0
    for name, (label, in_the_lesson) in labels.items():
        here = paired.select(rows, name=name)
        values = with_interval(paired.differences(here, base))
        costly += values[2].startswith("-")
        largest = f"{mean(here.values(), 'norm max'):.1f}"
        yield EVIDENCE, f"| {label}{{any}}| **{{}} [{{}}, {{}}]** | {{}} |", "compare.jsonl", f"traps: {name} - sg", [
            *values, largest]
        yield LESSON, f"| {in_the_lesson} |{{any}}| **{{}} [{{}}, {{}}]**", "compare.jsonl", f"traps: {name} - sg", values
        if name in decisions:
            text = f"{decisions[name]}: avg@4 {{}} [{{}}, {{}}], eight seeds"
            yield DECISIONS, text, "compare.jsonl", f"traps: {name} - sg", values
    right = f"{mean(base.values(), 'norm max'):.1f}"
    yield EVIDENCE, "mean of eight (right: {})", "compare.jsonl", "traps: norm max of sg", [right]
    text = "the largest gradient norm is {} in place of {}"
    yield LESSON, text, "compare.jsonl", "traps: norm max", [largest, right]
    yield EVIDENCE, "Every run is at its learning rate of {}:", "compare.jsonl", "traps: lr", [
        power(base[0]["lr"])]
    count = ("none", "one", "two", "three", "all")[costly]
    for text in ("| {words} of four cost accuracy |", "For {words} of the four a loss of accuracy was seen. Each"):
        yield EVIDENCE, text, "compare.jsonl", "traps: intervals below 0", [count]
    inside = with_interval(paired.differences(paired.select(rows, name="clip(w r)"), base))
    text = "measured) {words} cost accuracy here; w inside the clip changes avg@4 by {} [{}, {}],"
    yield README, text, "compare.jsonl", "traps: clip(w r) - sg", [count, *inside]
    cells = [paired.select(every, part="reading", name=name) for name in ("mu inside", "sg")]
    text = "avg@4 {} [{}, {}], ten seeds"
    yield DECISIONS, text, "compare.jsonl", "reading: mu inside - sg", with_interval(paired.differences(*cells))


def doses():
    rows = read("dose.jsonl")
    yield commits("dose.jsonl", rows)
    cells = {name: paired.select(rows, part="count", name=name) for name in dose.DOSES}
    labels = {"none": "1: GRPO", "1.4": "1.4: GRPO-SG, w divided by its mean", "pi": "w = pi"}
    for name, cell in cells.items():
        values = [power(cell[0]["lr"]), short(mean(cell.values()))]
        row = f"| {labels.get(name, name)} | {{}} | {{}} | |"
        if name != "none":
            values += with_interval(paired.differences(cell, cells["none"]))
            row = row[:-1] + "{} [{}, {}] |"
        yield EVIDENCE, ("| dose |", row), "dose.jsonl", f"count, {name}: lr, avg@4, minus none", values
    finite = list(dose.DOSES)[:-1]
    found = dose.slopes(finite, cells)
    slope, verdict = with_interval(found), dose.judge(found)
    doubling = with_interval([math.log(2) * each for each in found])
    text = ("By the rule **{words}**: the slope of avg@4 over ln d is {} [{}, {}], that is {} [{}, {}] for each doubling "
            "of the dose. It is dose 10 that decides this: without it the slope is {} [{}, {}], and from 1 to 10 alone {} "
            "[{}, {}].")
    yield EVIDENCE, text, "dose.jsonl", "slopes over ln d", [
        verdict, *slope, *doubling, *with_interval(dose.slopes(finite[:-1], cells)),
        *with_interval(dose.slopes(finite[2:], cells))]
    yield EVIDENCE, "dose matter?](#does-a-larger-dose-matter) | {words} |", "dose.jsonl", "slope", [verdict]
    text = "By a rule fixed beforehand **{words}**:"
    yield README, text, "dose.jsonl", "slope", [verdict]
    yield README, "each doubling changes avg@4 by {} [{}, {}].", "dose.jsonl", "slope", doubling
    before = short(mean(row for row in rows if row["part"] == "start"))
    yield EVIDENCE, "The warm starts have avg@4 {}. No interval", "dose.jsonl", "start", [before]
    text = "clipped in {} % of the updates at dose 1/3, in {} % at dose 1 and in {} % at dose 10;"
    yield EVIDENCE, text, "dose.jsonl", "norm above 1", [
        percent(mean(cells[name].values(), "norm above 1")) for name in ("1/3", "none", "10")]
    grids, halves = [], []
    for lr in dose.RATES:
        grid = {name: paired.select(rows, part="grid", name=name, lr=lr) for name in finite}
        grids.append(signed(statistics.fmean(dose.slopes(finite, grid))))
    for name in finite[:-1]:
        low, high = (paired.select(rows, part="grid", name=name, lr=lr) for lr in (1e-4, 2e-4))
        halves += paired.differences(low, high, "greedy")
    text = "the slope is {} at 5e-5, {} at 1e-4, {} at 2e-4 and {} at 4e-4:"
    yield EVIDENCE, text, "dose.jsonl", "grid: slopes", grids
    text = "by {} [{}, {}]; in the grid half the rate does as much by itself, {} in the mean"
    yield EVIDENCE, text, "dose.jsonl", "greedy", [
        *with_interval(paired.differences(cells["10"], cells["none"], "greedy")), signed(statistics.fmean(halves))]
    highest = max(finite, key=lambda name: mean(cells[name].values()))
    larger = dict(zip(finite, finite[1:])).get(highest)
    peak = larger and paired.interval(paired.differences(cells[larger], cells[highest]))[2] < 0
    yield EVIDENCE, "The highest mean is that of dose {words}, by the rule {words}.", "dose.jsonl", "highest avg@4", [
        highest.replace("none", "1"), "a peak" if peak else "not called a peak"]


def collapse():
    rows = read("stability.jsonl")
    yield commits("stability.jsonl", rows)
    for lr in stability.RATES:
        values = []
        for name in ("none", "sg"):
            cell = paired.select(rows, name=name, lr=lr).values()
            down = sum(row["avg@4"] < row["before"] for row in cell)
            values += [*with_error([row["avg@4"] for row in cell]), str(down), str(len(cell))]
        row = f"| {power(lr)} | {{}} ± {{}} | {{}} of {{}} | {{}} ± {{}} | {{}} of {{}} |"
        yield EVIDENCE, row, "stability.jsonl", f"map, {lr:g}: avg@4, collapsed", values
    T = {name: stability.collapse_rates(rows, name) for name in ("none", "sg")}
    D = paired.subtract(T["sg"], T["none"])
    s = stability.factor(rows)
    verdict = stability.judge(rows)
    values = [*with_interval(D), f"{2 ** s:.3f}", short(s), verdict]
    text = "D = {} octaves [{}, {}]; the mean weight is {}, so that s = {}: **{words}**."
    yield EVIDENCE, text, "stability.jsonl", "T(sg) - T(none), weight_mean", values
    yield EVIDENCE, "stabler?](#is-it-stabler) | {words} |", "stability.jsonl", "T(sg) - T(none)", [verdict]
    values = paired.interval(D)
    within = 2 ** max(abs(end) for end in values[1:]) - 1
    yield EVIDENCE, "is the same to within {} %.", "stability.jsonl", "T(sg) - T(none)", [percent(within, 0)]
    told = []
    for lr in stability.RATES:
        sg, none = (paired.select(rows, name=name, lr=lr) for name in ("sg", "none"))
        values = paired.differences(sg, none, "norm cv")
        _, low, high = paired.interval(values)
        if low > 0 or high < 0:
            told.append([power(lr), *with_interval(values)])
    text = "is told from 0 at one rate alone, {}, and there it is {} [{}, {}]."
    yield EVIDENCE, text, "stability.jsonl", "norm cv: sg - none", sum(told, [])
    yield EVIDENCE, "The rule below calls the outcome **{words}**.", "stability.jsonl", "T(sg) - T(none)", [verdict]
    text = "moves, in octaves (factors of two), by {} [{}, {}], which {any} calls **{words}**."
    yield README, text, "stability.jsonl", "T(sg) - T(none)", [*with_interval(D), verdict]


def ignorant_of_mathematics():
    counted = read("ignorant_math.json")
    labels = {"generated": "generated problems", "gsm8k_test": "GSM8K, test", "math500": "MATH-500"}
    keys = "problems", "question", "longest", "any", "constant"
    ours = {key: found["verify_math"] for key, found in counted.items() if key != "math_train"}
    for key, label in labels.items():
        values = [f"{ours[key][each]:,}" for each in keys]
        yield VERIFY, f"| {label} | {' | '.join(5 * ['{}'])} |", "ignorant_math.json", key, values
    sums = [f"{sum(found[each] for found in ours.values()):,}" for each in keys[:4]]
    text = f"| these and four more sets | {' | '.join(4 * ['{}'])} | |"
    yield VERIFY, text, "ignorant_math.json", "sums", sums
    largest = max(found["any"] / found["problems"] for found in ours.values())
    theirs = {key: counted[key]["math-verify"] for key in ("generated", "math500")}
    for key, found in theirs.items():
        text = f"| by math-verify 0.9.0: {labels[key]} | {' | '.join(4 * ['{}'])} | |"
        values = [f"{found[each]:,}" for each in keys[:4]]
        yield VERIFY, text, "ignorant_math.json", f"{key}, math-verify", values
    text = "boxing the question pays for {} of {} problems, any of its formulas for at most {} % of a set"
    yield EVIDENCE, text, "ignorant_math.json", "sums", [sums[1], sums[0], percent(largest)]
    values = [f"{counted['generated']['verify_math'][key]:,}" for key in ("question", "problems")]
    text = "the question in a box earns {} of {} generated problems (by math-verify: {})"
    yield README, text, "ignorant_math.json", "generated", [*values, f"{theirs['generated']['question']:,}"]


def ignorant_of_logic():
    rows = {(row["problems"], row["policy"]): row for row in read("ignorant_tasks.json")}
    people = []
    for policy in ("best constant", "claims: the last of each"):
        people += [short(rows[problems, policy]["accuracy"]) for problems in ("kk 3", "kk 7")]
    text = "on training problems, earns {}, and with seven {}; the last that somebody says of each person {} and {}."
    yield EVIDENCE, text, "ignorant_tasks.json", "kk 3, kk 7", people
    hotpot = [rows["qa, hotpot_dev.jsonl", policy] for policy in ("best constant", "any run of its words")]
    values = [short(rows["qa", "best constant"]["accuracy"]), str(hotpot[0]["n"])]
    values += [short(row["accuracy"]) for row in hotpot]
    text = "Of `qa` the best constant answer earns {}, of HotpotQA ({} questions) {}, where {} of the answers are"
    yield EVIDENCE, text, "ignorant_tasks.json", "qa, hotpot_dev.jsonl", values


def verdicts():
    """The lines of math_outputs.txt, of which each two are a row: one of the first half, one of the second."""
    text = read("math_outputs.txt")
    pattern = r"^(\S.*?) +(\d+) answers: agrees on ([\d.]+)%, accepts (\d+) wrong.* rejects (\d+) right"
    found = re.findall(pattern, text, re.M)
    ours = [each for each in found if each[0].startswith("ours")]
    others = [each for each in found if not each[0].startswith("ours")]
    labels = ["`verify_math` when half 2 was first looked at",
              "`verify_math` now, both halves seen", "math-verify 0.9.0", "the repositories' own verdicts"]
    pairs = [ours[2:4], ours[4:], others[::2], others[1::2]]
    for label, ((_, n, *first), (_, m, *second)) in zip(labels, pairs, strict=True):
        cells = "{any}| {} %: {} wrong, {} right | **{} %: {} wrong, {} right** |"
        yield VERIFY, f"| {label}{cells}", "math_outputs.txt", label, first + second
    sizes = [f"{int(each[1]):,}" for each in pairs[0]]
    yield VERIFY, "half 1 ({}) | half 2 ({})", "math_outputs.txt", "answers with a label", sizes
    judged = [f"{int(each[1]):,}" for each in pairs[-1]]
    yield VERIFY, "own verdicts ({} and {})", "math_outputs.txt", "answers with a verdict", judged
    all_answers = sum(map(int, re.findall(r"half \d: (\d+) answers", text)))
    yield VERIFY, "{} answers of 31 models", "math_outputs.txt", "answers", [f"{all_answers:,}"]
    slowest = max(re.findall(r"^ours.*most ([\d.]+) ms", text, re.M)[-2:], key=float)
    yield VERIFY, "The slowest answer took {} ms", "math_outputs.txt", "ours, most", [slowest]
    unseen = pairs[0][1]
    yield EVIDENCE, "set; {} % agreement on {} unseen answers", "math_outputs.txt", "half 2, first look", [
        unseen[2], sizes[1]]


def speed():
    cpu = read("bench.json")["cpu"]
    yield commits("bench.json", cpu.values())
    sampling, update, step = cpu["sampling"], cpu["update"], cpu["step"]
    both = "2,048 words", "151,936 words"
    fixed, tail = ([sampling[f"{words}, {law}"] for words in both] for law in ("fixed", "long tail"))
    updates = [update[words] for words in both]
    one = [step["beta 0.0, updates 1"]]
    lines = (("| sampling, one length", fixed, "generate / ours"),
             ("| sampling, long-tailed lengths", tail, "generate / ours"),
             ("| update, against the full log-softmax in our micro-batches", updates, "naive / ours"),
             ("| update, against the full log-softmax in one batch", updates, "naive, one batch / ours"),
             ("| a whole step against TRL 1.16 with 8 rows", one, "TRL, 8 rows / ours"),
             ("| a whole step against TRL 1.16 with an update", one, "TRL, one batch / ours"))
    medians = {"naive": [], "TRL": []}
    for label, parts, side in lines:
        values = []
        for part in parts:
            values += [f"{value:.1f}" for value in part.get(side) or part[f"{side}, seconds"]]
        medians["TRL" if "TRL" in side else "naive"] += map(float, values[::3])
        cells = "{any}| " + " | ".join(len(parts) * ["{} ({} to {})"]) + " |"
        yield EVIDENCE, label + cells, "bench.json", side, values
    text = "{} times as fast as the naive way, {} times as fast as TRL"
    ranges = [range_of(found, plain, 1) for found in medians.values()]
    yield EVIDENCE, text, "bench.json", "medians", ranges
    text = ("`model.generate` takes {} times as long for completions of one length and {} times for unequal ones, and TRL "
            "1.16 takes {} times")
    values = [range_of([part["generate / ours"][0] for part in parts], plain, 1) for parts in (fixed, tail)]
    yield README, text, "bench.json", "medians", [*values, f"{one[0]['TRL, 8 rows / ours'][0]:.1f}"]


def earlier():
    """What stood on the pages before the present runs."""
    found = read("earlier.json")
    values = []
    for key in ("sg - none, clean", "sg - none, noisy", "T(sg) - T(none)", "clip(w r) - sg"):
        values += [signed(value) for value in found[key]]
    values.append(range_of(found["unlikely tokens' share, GRPO"]))
    values += [short(value) for value in found["avg@4 of kk, math, qa"]]
    text = ("for GRPO-SG minus GRPO {} [{}, {}] with clean rewards and {} [{}, {}] with noisy ones, for the collapse rate "
            "{} [{}, {}] octaves, for w inside the clip {} [{}, {}], for the share of unlikely tokens {}, and for avg@4 "
            "after RL {} (`kk`), {} (`math`) and {} (`qa`).")
    yield EVIDENCE, text, "earlier.json", "all", values


def faults():
    found = read("faults.json")
    yield commits("faults.json", found.values())
    kill, long = found["kill"], found["long"]
    same = kill["same metrics, transcripts, weights"]
    values = [str(kill["kills"]), str(kill["while a checkpoint was written"]), str(kill["steps"]),
              "all were equal, bit for bit" if all(same) else "some were not equal", str(kill["steps done again"])]
    text = ("killed with SIGKILL at {} random moments, {} of them in the writing of a checkpoint, and resumed each time. "
            "After {} steps its metrics, transcripts and weights were compared with those of a run that nothing "
            "disturbed: {words}. Steps that had to be done again: {}.")
    yield EVIDENCE, text, "faults.json", "kill", values
    in_use = long["memory MB at step"]
    most = max(in_use.values())
    text = "A run of {} steps took at most {} MB of memory, {} MB more than at step 50."
    yield EVIDENCE, text, "faults.json", "long", [f"{long['steps']:,}", str(most), str(most - in_use["50"])]


SOURCES = (default_runs, premise, comparisons, mistakes, doses, collapse,
           ignorant_of_mathematics, ignorant_of_logic, verdicts, speed, faults, earlier)
