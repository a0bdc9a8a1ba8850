"""The files of a run that page.py shows: metrics.jsonl, samples.jsonl and tokens.jsonl, a JSON object a
line."""
import json
import os
from statistics import fmean as mean

import torch


def append_rows(out, name, rows):
    with open(os.path.join(out, name), "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)  # ASCII: any text survives


def log(out, row, completions):
    """Add the row to metrics.jsonl, and the completions, whole, to samples.jsonl; nothing where `out` is
    None."""
    if out:
        append_rows(out, "metrics.jsonl", [row])
        append_rows(out, "samples.jsonl", [
            {"step": row["step"], "split": row.get("split", "train"), "question": c.problem.question,
             "answer": c.problem.answer, "completion": c.transcript, "reward": c.reward,
             "advantage": c.advantage, "correct": c.correct, "formatted": c.formatted,
             "truncated": c.truncated, "solved": c.solved} for c in completions])


def describe(completions):
    """Means over completions, for a row of metrics.jsonl."""
    return {"accuracy": mean(c.solved for c in completions),
            "format_rate": mean(c.formatted for c in completions),
            "truncated": mean(c.truncated for c in completions),
            "completion_tokens": mean(sum(c.mask) for c in completions),
            "tool_calls": mean(c.tool_calls for c in completions)}


def log_step(out, step, completions, advantages, stats, times):
    """The row of a training step; logs it, with a group whose rewards differ, where there is one."""
    row = {"step": step, "reward": mean(c.reward for c in completions), **describe(completions), **stats,
           "equal_groups": (advantages == 0).all(1).float().mean().item(),
           "tokens_per_second": sum(sum(c.mask) for c in completions) / (times[1] - times[0]),
           "seconds_sampling": times[1] - times[0], "seconds_update": times[2] - times[1],
           "seconds": times[2] - times[0]}
    if torch.cuda.is_available():
        row["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    shown = next((c for c in completions if c.advantage), completions[0]).problem
    log(out, row, [c for c in completions if stats["skipped"] or c.problem is shown])
    return row


def log_tokens(out, step, group, tokenizer, logps, weights):
    """Add a line to tokens.jsonl: the completions of one problem, each with its tokens as text, and their
    probabilities and weights to four digits. logps, weights: (1, T) of each; weights may be None, for all
    1."""
    def short(x):
        return [float(f"{value:.4g}") for value in x[0].tolist()]
    completions = [
        {"tokens": [tokenizer.decode([token]) for token in c.tokens], "own": c.mask, "pi": short(lp.exp()),
         "w": short(torch.ones_like(lp) if w is None else w), "reward": c.reward, "advantage": c.advantage,
         "correct": c.correct, "formatted": c.formatted,
         "truncated": c.truncated} for c, lp, w in zip(group, logps, weights)]
    problem = group[0].problem
    append_rows(out, "tokens.jsonl", [{"step": step, "question": problem.question, "answer": problem.answer,
                                       "completions": completions}])
