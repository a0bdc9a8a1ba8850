"""When does the weight help? Knights and Knaves with words that decide nothing, in the place that
--data names, and four of them if it ends in -4:

    nowhere     Ada: KNK NNK.
    after       Ada, then: KNK NNK.                    as in the pretrained tiny model
    after-4     Ada, then so here now: KNK NNK.
    before      then Ada: KNK NNK.
    before-4    then so here now Ada: KNK NNK.

    python -m support.tiny lesson/words.py --data before --out runs/before     its tiny model
    python -m support.look --task lesson/words.py --model runs/before
"""
import dataclasses
import random
import re

import tasks

PLACES = "nowhere", "before", "after", "before-4", "after-4"
LINE = re.compile(r"(\w+), \w+: ")  # how a line of kk's worked solutions begins
SETTINGS = dict(data="after", people=[3], brief=True)


def make_task(cfg):
    if cfg.data not in PLACES:
        raise tasks.UserError(f"--data {cfg.data} is not one of {', '.join(PLACES)}")
    task = tasks.kk_task(dataclasses.replace(cfg, data="synthetic"))
    splits = {}
    for split in ("train", "valid", "test"):
        splits[split] = [move_words(problem, cfg.data) for problem in getattr(task, split)]
    return task._replace(name=f"words-{cfg.data}", **splits)


def move_words(problem, place):
    """Return the problem with the words of its solution and its shortcut in this place."""
    rng = random.Random(f"{place} {problem.question}")
    texts = {}
    for field in ("solution", "shortcut"):
        thoughts, end, answer = getattr(problem, field).partition(" </think>")
        first, *lines = LINE.split(thoughts)
        text = first
        for name, claims in zip(lines[::2], lines[1::2]):
            text += begin_line(name, place, rng) + claims
        texts[field] = text + end + answer
    return problem._replace(**texts)


def begin_line(name, place, rng):
    """Write the beginning of the line about this person."""
    side, _, count = place.partition("-")
    words = " ".join(rng.choices(tasks.STYLE, k=int(count or 1)))
    beginnings = {"nowhere": f"{name}: ", "before": f"{words} {name}: ",
                  "after": f"{name}, {words}: "}
    return beginnings[side]
