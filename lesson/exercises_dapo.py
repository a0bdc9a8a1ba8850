"""Two exercises: the parts of DAPO (arXiv 2503.14476) that grpo_sg.py leaves out.

    cp lesson/exercises_dapo.py my_exercises_dapo.py
    OF=my_exercises_dapo python -m pytest -q -x lesson/test_exercises_dapo.py

The second command grades your copy, which git ignores. In it, replace each `raise` by a body; the
answers are in lesson/answers_dapo.py. When they pass, a question: which of the two changes what
is learned from a completion, and which changes only how many completions are sampled?
"""


def overlong_penalty(length, longest, buffer):
    """Return the penalty, from -1 to 0, to add to the reward of a completion of `length` tokens.

    Up to longest - buffer tokens it is 0. From there it falls linearly to -1 at longest tokens,
    and stays -1 for longer completions. All three are numbers of tokens, 0 < buffer <= longest.
    """
    raise NotImplementedError(
        "overlong_penalty: three cases; the middle one is a straight line")


def resample(draw, wanted, most):
    """Return up to `wanted` groups whose rewards are not all equal (dynamic sampling).

    A group of equal rewards has advantages of 0: no learning signal. draw(n) samples n new prompts
    and returns their groups, each a list of rewards. Call it for as many groups as are missing,
    at most `most` times, and return the groups in the order they were drawn.
    """
    raise NotImplementedError(
        "resample: call draw for what is missing, keep the groups whose rewards are not all "
        "equal, stop when there are enough or when it was called often enough")
