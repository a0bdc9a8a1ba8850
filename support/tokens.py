"""The lines of tokens.jsonl, from which page.py shows what an update does to each token."""
import json
import os


def append_group(folder, step, group, advantages, words, logps, weights):
    """Add a line: the completions of one problem, each with its tokens as text, their probabilities and weights,
    to four digits. logps, weights: for each completion (1, T); weights may be None, for all 1."""
    def short(x):
        return [float(f"{value:.4g}") for value in x[0].tolist()]
    completions = [
        {"tokens": texts, "own": c.mask, "pi": short(lp.exp()), "w": short(lp * 0 + 1 if w is None else w), "advantage": A,
         "reward": c.reward, "correct": c.correct, "formatted": c.formatted, "truncated": c.truncated}
        for c, A, texts, lp, w in zip(group, advantages, words, logps, weights)]
    row = {"step": step, "question": group[0].problem.question, "answer": group[0].problem.answer}
    with open(os.path.join(folder, "tokens.jsonl"), "a") as file:
        file.write(json.dumps({**row, "completions": completions}) + "\n")
