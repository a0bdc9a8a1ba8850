"""The files of a run that page.py shows: metrics.jsonl, samples.jsonl and tokens.jsonl, a JSON object a line."""
import json
import os


def append_rows(out, name, rows):
    with open(os.path.join(out, name), "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)  # ASCII: any text survives


def log(out, row, completions):
    """Add the row to metrics.jsonl, and the completions, whole, to samples.jsonl; nothing where `out` is None."""
    if out:
        append_rows(out, "metrics.jsonl", [row])
        append_rows(out, "samples.jsonl", [
            {"step": row["step"], "split": row.get("split", "train"), "question": c.problem.question,
             "answer": c.problem.answer, "completion": c.transcript, "reward": c.reward,
             "advantage": c.advantage, "correct": c.correct, "formatted": c.formatted,
             "truncated": c.truncated, "solved": c.solved} for c in completions])


def log_tokens(out, step, group, words, logps, weights):
    """Add a line to tokens.jsonl: the completions of one problem, each with its tokens as text, and their
    probabilities and weights to four digits. logps, weights: (1, T) of each; weights may be None, for all 1."""
    def short(x):
        return [float(f"{value:.4g}") for value in x[0].tolist()]
    completions = [
        {"tokens": texts, "own": c.mask, "pi": short(lp.exp()), "w": short(lp * 0 + 1 if w is None else w),
         "reward": c.reward, "advantage": c.advantage, "correct": c.correct, "formatted": c.formatted,
         "truncated": c.truncated} for c, texts, lp, w in zip(group, words, logps, weights)]
    problem = group[0].problem
    append_rows(out, "tokens.jsonl", [{"step": step, "question": problem.question, "answer": problem.answer,
                                       "completions": completions}])
