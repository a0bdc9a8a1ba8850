"""What a run logs and tells of completions and updates. A completion here has the
attributes of grpo_sg.Completion."""
import math
from statistics import fmean as mean

from support.page import with_error


def describe(completions):
    """Means over completions, for a row of metrics.jsonl."""
    return {"accuracy": mean(c.solved for c in completions),
            "format_rate": mean(c.formatted for c in completions),
            "truncated": mean(c.truncated for c in completions),
            "completion_tokens": mean(sum(c.mask) for c in completions),
            "tool_calls": mean(c.tool_calls for c in completions)}


def summarize(updates):
    """What grpo_sg.learn returns, in a row of metrics.jsonl: grad_norm, the largest norm
    before clipping (0: nothing was trained on, or no update was finite); skipped, the
    updates that were not finite; loss, the mean over the updates; and the statistics of
    the loss, means over what was trained on (None: nothing, or not finite: JSON has no
    nan)."""
    norms = []
    for found in updates:
        if math.isfinite(found["norm"]) and math.isfinite(found["loss"]):
            norms.append(found["norm"])
    row = {"grad_norm": max(norms, default=0.0), "skipped": len(updates) - len(norms),
           "loss": sum(found["loss"] for found in updates) / max(1, len(updates))}
    count = sum(found["count"] for found in updates)
    for key in ("clip_frac", "kl", "entropy", "weight_mean", "low_prob_frac"):
        row[key] = sum(found[key] for found in updates) / max(1, count)
    for key, value in row.items():
        if not updates and key not in ("grad_norm", "skipped") or not math.isfinite(value):
            row[key] = None
    return row


def verdict_of(c):
    return {"reward": c.reward, "advantage": c.advantage, "correct": c.correct,
            "formatted": c.formatted, "truncated": c.truncated, "solved": c.solved}


def show_tokens(tokenizer, c, logps, weights):
    """A completion's tokens as text, and their probabilities and weights to four
    digits."""
    return {"tokens": [tokenizer.decode([token]) for token in c.tokens], "own": c.mask,
            "pi": round_all(logps.exp()), "w": round_all(weights), **verdict_of(c)}


def round_all(x):
    return [float(f"{value:.4g}") for value in x.tolist()]


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
                     "take a better model, or easier problems (kk: --people 2 3); for the "
                     "tiny model a task of your own may need other tokens, or a longer warmup "
                     "(tasks.Task)")
    elif equal > 0.9 and right > 0.5:
        lines.append("hardly any problem has different rewards, as the model solves nearly "
                     "all: take harder problems (kk: --people 5 6 7)")
    elif equal > 0.9:
        lines.append("hardly any problem has different rewards, as the model solves too few: "
                     "take easier problems (kk: --people 2 3), or raise --group_size")
    return lines


def compare_tests(before, after, k):
    """Lines on the tests before and after training: accuracy and reward, and a warning
    if by more than two standard errors accuracy has fallen."""
    accuracy, reward = (f"eval/avg@{k}", f"eval/reward@{k}") if k else (
        "eval/accuracy", "eval/reward")
    lines = [f"from before to after training: {accuracy.removeprefix('eval/')} "
             f"{before[accuracy]:.3f} -> {after[accuracy]:.3f}, reward "
             f"{before[reward]:.3f} -> {after[reward]:.3f}"]
    error = math.hypot(before[f"{accuracy}_se"] or 0, after[f"{accuracy}_se"] or 0)
    if after[accuracy] >= before[accuracy] - 2 * error:
        return lines
    if after[reward] > before[reward]:
        lines.append("warning: the reward has risen and accuracy has fallen: the reward pays "
                     "for something else than right answers; read samples.jsonl")
    else:
        lines.append("warning: accuracy has fallen: a lower --lr, or --beta 0.01, may help")
    return lines
