"""A verifier for the task of wrong_reward.py: to sort five letters. It is naive. Improve your copy.

    python -m lesson.grade verify     copies this file to my_verifier.py, and examines the copy

The question is five different letters, for example gbdca. The only correct response is these
letters in the order of the alphabet, abcdg, and nothing else. A response is hostile input: the
policy is rewarded for whatever your functions pay, and it will find it.
"""
import tasks


def verify(response, answer):
    """Grade a response, all that the model wrote. Returns whether it is correct, and whether it
    has the correct format, which you choose: it may give a first step to a policy that cannot sort.
    """
    in_order = list(response) == sorted(response)
    return tasks.Verdict(correct=in_order, formatted=response.isalpha())


def reward(completion):
    """Return a number. completion has response, correct, formatted, and problem, which has question
    and answer. A completion that was cut off, at eight letters, is never formatted."""
    if not completion.formatted:
        return -3.0
    return 3.0 if completion.correct else -0.5
