"""Interpret the tests of a run: what its numbers mean, and what to change."""
import json
import math
import os
from statistics import fmean as mean


def describe_start(row, k):
    """Describe the test before training: the rates that decide whether there is a learning
    signal, and one thing to change if a rate is bad.

    Args:
        row: the row of the test.
        k: samples per problem; 0 takes the greedy completions.

    Returns:
        A list of lines.
    """
    samples = f"@{k}" if k else ""
    formed = row[f"eval/format_rate{samples}"]
    cut = row[f"eval/truncated{samples}"]
    correct = row.get(f"eval/avg@{k}")
    equal = row.get(f"eval/equal_groups@{k}", 0) if k > 1 else 0
    whose = f"{k} sample{'s' * (k > 1)} per problem" if k else "greedy completions"
    line = f"{whose}: {100 * formed:.0f}% well formed, {100 * cut:.0f}% truncated"
    if k > 1:
        line += (f"; in {100 * equal:.0f}% of the groups all rewards are equal: no learning "
                 "signal")
    lines = [line]
    if cut > 0.5:
        lines.append("most completions are truncated, so they count as badly formed: raise "
                     "--max_new_tokens, or use a model with shorter completions")
    elif formed < 0.05:
        lines.append("almost no completion is well formed, so there is little to learn "
                     "from: use an Instruct model, or easier problems (kk: --people 2 3)")
    elif correct == 0:
        lines.append("no completion is correct, so the model may learn only the format: use a "
                     "better model, or easier problems (kk: --people 2 3); for your own task, "
                     "the tiny model may need other tokens or a longer warmup (tasks.Task)")
    elif equal > 0.9 and correct > 0.5:
        lines.append("rewards are equal on most problems, because the model solves nearly "
                     "all of them: use harder problems (kk: --people 5 6 7)")
    elif equal > 0.9:
        lines.append("rewards are equal on most problems, because the model solves too "
                     "few of them: use easier problems (kk: --people 2 3), or raise --group_size")
    return lines


def describe_end(out, after, k):
    """Compare the test after training with the test before. out: the run's folder; after: the
    row of the test; k: samples per problem. Returns a list of lines."""
    path = os.path.join(out, "metrics.jsonl")
    try:
        with open(path, encoding="utf-8") as file:
            logged = [json.loads(line) for line in file]
    except ValueError as error:  # another program wrote into it
        return [f"{path} cannot be read ({error}): nothing to compare with"]
    steps = [row for row in logged if "split" not in row]
    if steps and all(row["equal_groups"] == 1 for row in steps):
        return ["rewards were equal within every group, so nothing was learned: see "
                '"Is it broken?" in support/README.md']
    lines = []
    for row in logged:
        if row["step"] == 0 and row.get("split") == "test":
            lines = compare_tests(row, after, k)
    page = f"for curves, tokens and transcripts, open {out}/report.html in a browser"
    return [*lines, *compare_splits(steps[-10:], after, k), page]


def compare_splits(steps, after, k):
    """Warn if accuracy in the last training steps is far above the test's."""
    key = f"eval/avg@{k}" if k else "eval/accuracy"
    trained = mean(row["accuracy"] for row in steps) if steps else 0.0
    if trained - after[key] <= max(0.1, 3 * (after[f"{key}_se"] or 0)):
        return []
    return [f"warning: training accuracy {trained:.3f} is far above the test's "
            f"{after[key]:.3f}: the model has memorized its training problems; use more "
            "of them (thousands, for the tiny model)"]


def compare_tests(before, after, k):
    """Compare accuracy and reward before and after training, and warn if accuracy has
    fallen by more than two standard errors."""
    accuracy, reward = (f"eval/avg@{k}", f"eval/reward@{k}") if k else (
        "eval/accuracy", "eval/reward")
    lines = [f"before -> after training: {accuracy.removeprefix('eval/')} "
             f"{before[accuracy]:.3f} -> {after[accuracy]:.3f}, {reward.removeprefix('eval/')} "
             f"{before[reward]:.3f} -> {after[reward]:.3f}"]
    error = math.hypot(before[f"{accuracy}_se"] or 0, after[f"{accuracy}_se"] or 0)
    if after[accuracy] >= before[accuracy] - 2 * error:
        return lines
    if after[reward] > before[reward]:
        lines.append("warning: the reward has risen and accuracy has fallen: the model is "
                     "exploiting the reward; read samples.jsonl")
    else:
        lines.append("warning: accuracy has fallen: a lower --lr, or --beta 0.01, may help")
    return lines
