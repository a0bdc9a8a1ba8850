"""Two exercises: the parts of DAPO (arXiv 2503.14476) that grpo_sg.py leaves out.

    OF=lesson.exercises_dapo python -m pytest -q -x lesson/test_exercises_dapo.py

grades them. Write a body in place of each `raise`; answers are in answers_dapo.py. When they
pass, a question: which of the two changes what is learned from a completion, and which only how
many completions are paid for?
"""


def overlong_penalty(length, longest, buffer):
    """What is added to the reward of a completion of so many tokens: 0 to -1.

    Nothing is taken from a completion that is at most longest - buffer tokens long. From there
    on the penalty grows evenly, to -1 at longest tokens, and stays -1 for any longer one. All
    three are numbers of tokens, with 0 < buffer <= longest.
    """
    raise NotImplementedError(
        "overlong_penalty: three cases, of which the middle one is a straight line")


def resample(draw, wanted, most):
    """Dynamic sampling: up to `wanted` groups in each of which rewards differ.

    A group whose rewards are all equal has advantages of 0, and teaches nothing. draw(n)
    samples n new prompts and returns their groups, each a list of rewards. It is asked for as
    many as are still missing, at most `most` times; what was found is returned, in its order.
    """
    raise NotImplementedError(
        "resample: call draw for what is missing, keep the groups whose rewards are not all "
        "equal, stop when there are enough or when it was called often enough")
