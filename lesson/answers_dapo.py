"""Answers to exercises_dapo.py.

The question: the penalty changes what is learned from a completion, as it changes its reward.
Resampling changes none, and pays for more completions, until enough groups teach something.
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
