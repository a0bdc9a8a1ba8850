"""Answers to exercises_dapo.py.

The question: the penalty changes a completion's reward, and so what is learned from it. Resampling
changes no reward. It pays for more completions, until enough groups have different rewards.
"""


def overlong_penalty(length, longest, buffer):
    beyond = length - (longest - buffer)  # tokens
    return -min(max(beyond / buffer, 0.0), 1.0)


def resample(draw, wanted, most):
    kept = []
    for _ in range(most):
        for group in draw(wanted - len(kept)):
            if len(set(group)) > 1:
                kept.append(group)
        if len(kept) == wanted:
            break
    return kept
