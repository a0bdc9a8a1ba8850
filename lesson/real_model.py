r"""Train a real pretrained model, SmolLM2-135M-Instruct, on a laptop without a GPU.

    python grpo_sg.py --task lesson/real_model.py                   a model from the hub
    python grpo_sg.py --task lesson/real_model.py --model FOLDER    python -m support.smollm FOLDER
                                                                    makes that folder

Five to seven minutes on two idle CPU cores, and 6 GB; README.md has what it reaches.

The task is small: sums of two numbers below 25. The model does not write \boxed{} by itself, and
without a box every completion gets the same reward, so there is no gradient. The example in the
system prompt makes it write one in about one of seven completions. From there on the reward teaches
first the format and then the sums.
"""
import itertools
import random

import tasks

SYSTEM = r"Write only the sum in a box, for example 12+7 = \boxed{19}"


def make_task(cfg):
    """Make the task. Both orders of a sum are one problem: no split has a sum of another."""
    rng = random.Random(cfg.seed)
    pairs = set(itertools.combinations_with_replacement(range(2, 25), 2))
    pairs.remove((7, 12))  # the example
    problems = []
    for pair in rng.sample(sorted(pairs), len(pairs)):
        a, b = rng.sample(pair, 2)
        problems.append(tasks.Problem(f"{a}+{b}", str(a + b)))
    test = problems[:64]
    return tasks.Task(name="sums", system=SYSTEM, verify=tasks.verify_math, train=problems[80:],
                      valid=problems[64:80], test=test,
                      floor=tasks.most_frequent(problem.answer for problem in test))


# 8 completions of each of 8 sums, at most 20 tokens each, and one update, which is enough to see
# the model learn. With 15 steps some seeds ended before they had learned the sums.
SETTINGS = {"model": "HuggingFaceTB/SmolLM2-135M-Instruct", "steps": 40,
            "prompts": 8, "group_size": 8, "updates": 1, "lr": 1e-5, "max_new_tokens": 20,
            "tokens_per_micro_batch": 2048, "eval_every": 5}
