r"""Train a real pretrained model, SmolLM2-135M-Instruct, on a laptop without a GPU.

    python grpo_sg.py --task lesson/real_model.py                   a model from the hub
    python grpo_sg.py --task lesson/real_model.py --model FOLDER    python -m support.smollm FOLDER
                                                                    makes that folder

It takes 6 GB of memory, and a step takes about 23 seconds on two idle cores of an AMD EPYC (the
median of five), so the whole run should take 13 minutes. README.md says what it reaches.

The task is small: sums of two numbers below 25. The model does not write \boxed{} by itself, and
without a box every completion gets the same reward, so there is no gradient. We therefore show it
the format by an example that is a turn of the chat: before the sum, the user asks 12+7 and the
assistant answers it. Nearly all completions then have the correct format from the start, so the
first gradient already teaches sums. A completion that copies the example's answer, 19, earns what
any wrong answer earns.
"""
import itertools
import random

import tasks

SYSTEM = r"Write only the sum in a box, for example 12+7 = \boxed{19}"
EXAMPLE = [{"role": "user", "content": "12+7"},
           {"role": "assistant", "content": r"12+7 = \boxed{19}"}]
SPLIT = 800  # one split for all seeds, so that no seed tests on another's training problems


def make_task(cfg):
    """Make the task. Both orders of a sum are one problem: no split has a sum of another."""
    rng = random.Random(SPLIT)
    pairs = set(itertools.combinations_with_replacement(range(2, 25), 2))
    pairs.remove((7, 12))  # the example
    problems = []
    for pair in rng.sample(sorted(pairs), len(pairs)):
        a, b = rng.sample(pair, 2)
        chat = [*EXAMPLE, {"role": "user", "content": f"{a}+{b}"}]
        problems.append(tasks.Problem(chat, str(a + b)))
    test = problems[:64]
    return tasks.Task(name="sums", system=SYSTEM, verify=tasks.verify_math, train=problems[80:],
                      valid=problems[64:80], test=test,
                      floor=tasks.most_frequent(problem.answer for problem in test))


# 8 completions of each of 8 sums, at most 20 tokens each, and one update, which is enough to see
# the model learn. A higher rate or a lower temperature makes the policy certain of its answers
# sooner, so exploration ends before it has found as many of the sums.
SETTINGS = {"model": "HuggingFaceTB/SmolLM2-135M-Instruct", "steps": 30,
            "prompts": 8, "group_size": 8, "updates": 1, "lr": 5e-6, "temperature": 1.0,
            "max_new_tokens": 20, "tokens_per_micro_batch": 2048, "eval_every": 5}
