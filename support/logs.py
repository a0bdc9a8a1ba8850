"""The files of a run that page.py shows: metrics.jsonl, samples.jsonl and tokens.jsonl,
a JSON object a line. A completion here has the attributes of grpo_sg.Completion."""
import json
import os
from statistics import fmean as mean

import torch

from support.page import with_error


def append_rows(out, name, rows):
    """Add the rows to a file of the run's folder `out`. What JSON does not know, such
    as a set, is written as its text."""
    lines = [json.dumps(row, default=str) + "\n" for row in rows]  # ASCII: any text survives
    with open(os.path.join(out, name), "a") as file:
        file.writelines(lines)


def log(out, row, completions):
    """Add the row to metrics.jsonl, and the completions, whole, to samples.jsonl;
    nothing if `out` is None."""
    if out is None:
        return
    append_rows(out, "metrics.jsonl", [row])
    samples = []
    for c in completions:
        samples.append({"step": row["step"], "split": row.get("split", "train"),
                        "question": c.problem.question, "answer": c.problem.answer,
                        "completion": c.transcript, **verdict_of(c)})
    append_rows(out, "samples.jsonl", samples)


def verdict_of(c):
    return {"reward": c.reward, "advantage": c.advantage, "correct": c.correct,
            "formatted": c.formatted,
            "truncated": c.truncated, "solved": c.solved}


def describe(completions):
    """Means over completions, for a row of metrics.jsonl."""
    return {"accuracy": mean(c.solved for c in completions),
            "format_rate": mean(c.formatted for c in completions),
            "truncated": mean(c.truncated for c in completions),
            "completion_tokens": mean(sum(c.mask) for c in completions),
            "tool_calls": mean(c.tool_calls for c in completions)}


def log_step(out, step, completions, group_size, stats, seconds_sampling, seconds_update):
    """The row of a training step; logs it with one group, whose rewards differ if there
    is such a one, and with all completions if an update was skipped."""
    groups = [completions[i:i + group_size] for i in range(0, len(completions), group_size)]
    unequal = [group for group in groups if any(c.advantage for c in group)]
    row = {"step": step, "reward": mean(c.reward for c in completions),
           **describe(completions), **stats,
           "equal_groups": 1 - len(unequal) / len(groups),
           "tokens_per_second": sum(sum(c.mask) for c in completions) / seconds_sampling,
           "seconds_sampling": seconds_sampling, "seconds_update": seconds_update,
           "seconds": seconds_sampling + seconds_update}
    if torch.cuda.is_available():
        row["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    log(out, row, completions if stats["skipped"] else [*unequal, *groups][0])
    return row


def log_tokens(out, step, group, tokenizer, logps, weights):
    """Add a line to tokens.jsonl: the completions of one problem, each with its tokens
    as text, and their probabilities and weights to four digits. logps, weights: for
    each completion (T,), of its T tokens."""
    def short(x):
        return [float(f"{value:.4g}") for value in x.tolist()]
    completions = []
    for c, lp, w in zip(group, logps, weights):
        completions.append({"tokens": [tokenizer.decode([token]) for token in c.tokens],
                            "own": c.mask,
                            "pi": short(lp.exp()), "w": short(w), **verdict_of(c)})
    problem = group[0].problem
    append_rows(out, "tokens.jsonl", [{"step": step, "question": problem.question,
                                       "answer": problem.answer,
                                       "completions": completions}])


def in_words(row):
    """The means in a row of metrics.jsonl that have a standard error beside them,
    KEY_se, as text."""
    parts = []
    for key in row:
        if f"{key}_se" in row:
            parts.append(f"{key.removeprefix('eval/')} {with_error(row, key)}")
    return ", ".join(parts)


def foresee(row, k):
    """Lines on the test before training, of k samples a problem (0: of greedy
    completions): the shares that decide whether anything will be learned, and what to
    change if one of them is bad."""
    samples = f"@{k}" if k else ""
    formed = row[f"eval/format_rate{samples}"]
    cut = row[f"eval/truncated{samples}"]
    right = row.get(f"eval/avg@{k}")
    equal = row.get(f"eval/equal_groups@{k}", 0) if k > 1 else 0
    whose = f"{k} samples a problem" if k else "greedy completions"
    line = f"{whose}: {100 * formed:.0f} % well formed, {100 * cut:.0f} % cut off"
    if k > 1:
        line += f"; {100 * equal:.0f} % of the problems have equal rewards, which teach nothing"
    lines = [line]
    if cut > 0.5:
        lines.append("most completions are cut off, and so count as badly formed: raise "
                     "--max_new_tokens, or take a model that comes to an end sooner")
    elif formed < 0.05:
        lines.append("hardly any completion is well formed, and if all are badly formed "
                     "nothing is learned: take an Instruct model, or easier problems (kk: "
                     "--people 2 3)")
    elif right == 0:
        lines.append("no completion is right, and if none ever is only the form is learned: "
                     "take a better model, or easier problems (kk: --people 2 3)")
    elif equal > 0.9 and right > 0.5:
        lines.append("hardly any problem has different rewards, as the model solves nearly "
                     "all: take harder problems (kk: --people 5 6 7)")
    elif equal > 0.9:
        lines.append("hardly any problem has different rewards, as the model solves too few: "
                     "take easier problems (kk: --people 2 3), or raise --group_size")
    return lines
