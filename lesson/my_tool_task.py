"""A task of your own with a tool and partial credit: look numbers up in a phone book.

    python -m support.tiny lesson/my_tool_task.py          trains a tiny model on the solutions
    python grpo_sg.py --task lesson/my_tool_task.py        RL, half a minute: avg@4 0.247 to 0.752

The policy reads a name, "bca". To ask the tool it writes the name and "?". The tool answers with
the number of that name, and the policy then writes the number. Before RL the tiny model learns
two kinds of text: most guess a number without asking. RL has to find out that asking pays.
"""
import itertools
import random

import tasks
from support.tools import Tool

SETTINGS = {"steps": 30}

NAMES = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=3)]
RNG = random.Random(0)
BOOK = {name: str(RNG.randrange(100, 1000)) for name in NAMES}


def answer_calls(texts):
    """Answer the calls: each text is all that the policy wrote so far, and ends with a call."""
    names = [text.removesuffix("?")[-3:] for text in texts]
    return [f"{BOOK.get(name, 'none')}=" for name in names]


def verify(response, answer):
    """Grade what the policy wrote, without the tool's answer: "bca?417", or "417" if it guessed."""
    number = response.rpartition("?")[2]
    return tasks.Verdict(correct=number == answer, formatted=len(number) == 3 and number.isdigit())


def reward(completion):
    """Return partial credit: the fraction of right digits, minus 0.1 per call."""
    if not completion.formatted:
        return -1.0
    number = completion.response.rpartition("?")[2]
    right = sum(a == b for a, b in zip(number, completion.problem.answer))
    return right / 3 - 0.1 * completion.tool_calls


def make_problem(name):
    number = BOOK[name]
    guess = str(RNG.randrange(100, 1000))
    return tasks.Problem(name, number, solution=f"{name}?{number}", shortcut=guess)


def make_task(cfg):
    problems = [make_problem(name) for name in random.Random(0).sample(NAMES, 1000)]
    return tasks.Task(
        name="phone_book", system="Find the number of this name. Ask with the name and ?.",
        train=problems[200:], valid=problems[:100], test=problems[100:200],
        verify=verify, reward=reward, write=Tool(answer_calls, stop_text="?", max_turns=1),
        floor=0.01, tokens=".", warmup=150, shortcuts=0.7)

