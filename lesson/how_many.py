"""How many training problems are enough? The task of the README, "A task of your own".

    python -m lesson.how_many            five minutes on one core

The task is to write four-letter words backwards. For each number of training problems and each
seed, prints the accuracy in the last ten training steps, and the test's avg@4 before and after.
"""
import itertools
import json
import os
import random
import sys
import tempfile
from statistics import fmean

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(ROOT)
import grpo_sg
import tasks

COUNTS, SEEDS = [200, 500, 800, 2000], range(3)
WORDS = ["".join(letters) for letters in itertools.product("abcdefg", repeat=4)]


def make_problem(word):
    return tasks.Problem(question=word, answer=word[::-1], solution=word[::-1])


def verify(response, answer):
    return tasks.Verdict(correct=response == answer, formatted=len(response) == 4)


def reward(completion):
    pairs = zip(completion.response, completion.problem.answer)
    return completion.formatted * sum(a == b for a, b in pairs) / 4


def make_backwards(cfg):
    problems = [make_problem(word) for word in random.Random(cfg.seed).sample(WORDS, 2200)]
    return tasks.Task(
        name="backwards", system="Write the word backwards.", verify=verify, reward=reward,
        valid=problems[:100], test=problems[100:200], train=problems[200:][:cfg.train_problems],
        floor=0.01, tokens=".", warmup=100)


def train(count, seed, **settings):
    """Run once. Returns (training accuracy, test avg@4 before training, test avg@4 after)."""
    with tempfile.TemporaryDirectory() as out:
        grpo_sg.main([], task="backwards", seed=seed, train_problems=count, out=out,
                     eval_every=1000, **settings)
        with open(os.path.join(out, "metrics.jsonl")) as file:
            rows = [json.loads(line) for line in file]
    accuracy = [row["accuracy"] for row in rows if "accuracy" in row]
    before, after = [row["eval/avg@4"] for row in rows if "eval/avg@4" in row]
    return fmean(accuracy[-10:]), before, after


def main():
    tasks.TASKS["backwards"] = make_backwards
    for count in COUNTS:
        for seed in SEEDS:
            training, before, after = train(count, seed)
            print(f"{count:5} problems, seed {seed}: training accuracy {training:.3f}, "
                  f"test avg@4 {before:.3f} -> {after:.3f}", flush=True)


if __name__ == "__main__":
    main()
