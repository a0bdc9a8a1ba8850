"""You get what you reward: one task, one tiny model, and a reward that --data names.

    python -m support.tiny lesson/wrong_reward.py                    the tiny model: ten seconds
    python grpo_sg.py --task lesson/wrong_reward.py --data order     RL, ten seconds
    python grpo_sg.py --task lesson/wrong_reward.py --data letters
    python -m lesson.grade verify                                    a verifier of yours

The task is to sort five letters: gbdca, abcdg. The tiny model has seen two kinds of text: sorted
words (it sorts badly as yet) and copies of what it reads. Every reward pays 3 for the correct word,
-0.5 for a wrong one with the correct format, and -3 for a malformed one. They differ in what they
call the correct format:

    order     the five letters that were given, in any order
    letters   five letters, whichever

Before you run it: which of them teaches to sort, and what does the other one teach?
"""
import random

import tasks

# The tiny model writes a letter a token.
SETTINGS = {"data": "order", "max_new_tokens": 8}
LETTERS = "abcdefghij"


def in_any_order(word, answer):
    return sorted(word) == sorted(answer)


def of_any_letters(word, answer):
    return len(word) == len(answer) and set(word) <= set(LETTERS)


# --data -> which words have the correct format
FORMATS = {"order": in_any_order, "letters": of_any_letters}


def make_problem(word):
    answer = "".join(sorted(word))
    return tasks.Problem(word, answer, solution=answer, shortcut=word)


def make_task(cfg):
    has_format = FORMATS[cfg.data]

    def verify(response, answer):
        return tasks.Verdict(response == answer, has_format(response, answer))

    # The same words for every seed, because one tiny model serves all.
    rng = random.Random(0)
    words = set()
    while len(words) < 3000:
        words.add("".join(rng.sample(LETTERS, 5)))
    problems = [make_problem(word) for word in sorted(words)]
    rng.shuffle(problems)
    test = problems[100:200]
    return tasks.Task(
        name="sort", system="Write the letters in the order of the alphabet.",
        train=problems[200:], valid=problems[:100], test=test, verify=verify,
        floor=tasks.most_frequent(problem.answer for problem in test),
        tokens=".", warmup=85, shortcuts=0.6)  # 60% of the texts are copies
