"""A task of your own: write a word backwards. Copy this file and change it.

    python -m support.tiny my_task.py         trains a tiny model on the solutions
    python grpo_sg.py --task my_task.py       RL, 20 seconds: avg@4 goes from 0.352 to 0.532
    python grpo_sg.py --task my_task.py --model NAME --prompts 8 --lr 1e-5    with a real model

The fields of Problem, Verdict, Task and Completion are explained in tasks.py.
"""
import itertools
import random

import tasks


def make_problem(word):
    return tasks.Problem(question=word, answer=word[::-1], solution=word[::-1])


def verify(response, answer):
    """Grade a response: all that the model wrote, without the stop token."""
    return tasks.Verdict(correct=response == answer, formatted=len(response) == 4)


def reward(completion):
    """The fraction of correct letters. Without a function of your own, a correct response earns
    3, a wrong one -0.5, a malformed one -3."""
    pairs = zip(completion.response, completion.problem.answer)
    return completion.formatted * sum(a == b for a, b in pairs) / 4


def make_task(cfg):
    words = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=4)]
    # The same split for every seed, because one tiny model serves all.
    problems = [make_problem(word) for word in random.Random(0).sample(words, 2200)]
    return tasks.Task(
        name="backwards", system="Write the word backwards.", verify=verify, reward=reward,
        train=problems[200:], valid=problems[:100], test=problems[100:200],
        floor=0.01,   # test accuracy of the best constant answer; only printed
        # For the tiny model only: support.tiny trains it on the solutions for some steps.
        warmup=100,   # if avg@4 then starts above 0.8, lower it; if it starts near 0, raise it
        tokens=".")   # a regular expression; here a token is a letter

