"""You get what you reward: one task, one model, and two rewards.

    python -m lesson.wrong_reward         both rewards, one after the other: half a minute
    python -m lesson.wrong_reward --mine  your own: change `my_reward`, below

It ends with completions before and after training. With "any letters" avg@4 ended at 0.435,
0.245 and 0.720 with the seeds 0 to 2 (results/wrong_reward.txt).

The task is to sort five letters: gbdca, abcdg. The policy's warm-up has shown it two
things, to sort (which it does badly as yet) and to copy what it reads. Every reward pays
3 for the correct word and -3 for a badly formed one; a well-formed wrong word earns -0.5.
The two differ in what they call well formed:

    any order    the five letters that were given, in any order
    any letters  five letters, whichever

Before you run it: which of them teaches to sort, and what does the other one teach?
"""
import argparse
import json
import os
import pathlib
import random
import sys
import tempfile
from statistics import fmean as mean

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for `python lesson/wrong_reward.py`

import grpo_sg
import tasks
from support import tiny

LETTERS = "abcdefghij"
WARMUP = 85  # steps, after which the policy sorts badly
SHOWN = 6  # test problems whose completions are printed


def in_any_order(word, letters):
    return sorted(word) == sorted(letters)


def of_any_letters(word, letters):
    return len(word) == len(letters) and all(letter in LETTERS for letter in word)


def my_reward(completion):
    """Return the reward. Your turn: change it until the policy learns to sort. As in the first
    reward, a well-formed word has the five given letters, in any order. You can use
    completion.response, completion.problem.question and completion.problem.answer."""
    if not completion.formatted:
        return -3.0
    return 3.0 if completion.correct else -0.5


# name -> (what is well formed, the reward)
REWARDS = {"any order": (in_any_order, tasks.reward),
           "any letters": (of_any_letters, tasks.reward),
           "mine": (in_any_order, my_reward)}


def make_problem(letters):
    answer = "".join(sorted(letters))
    return tasks.Problem(letters, answer, solution=answer, shortcut=letters)


def sort_task(well_formed, reward, seed):
    """Build the task; its problems depend only on the seed, not on the reward."""
    rng = random.Random(seed)
    words = set()
    while len(words) < 3000:
        words.add("".join(rng.sample(LETTERS, 5)))
    problems = [make_problem(word) for word in sorted(words)]
    rng.shuffle(problems)

    def verify(response, answer):
        return tasks.Verdict(response == answer, well_formed(response, answer))
    return tasks.Task(
        name="sort", system="Write the letters in the order of the alphabet.",
        train=problems[200:], valid=problems[:100], test=problems[100:200],
        verify=verify, reward=reward, floor=0.01,
        tokens=".", warmup=WARMUP, shortcuts=0.6)  # 60% of the warm-up's texts are copies


def register(name):
    """Let --task sort have the reward of that name."""
    def make_task(cfg):
        return sort_task(*REWARDS[name], cfg.seed)
    tasks.TASKS["sort"] = make_task


def train(names, seed, steps):
    """Train the tiny model on solutions and copies, then once by RL with each of the rewards.
    Returns the folders of these runs."""
    os.makedirs("runs", exist_ok=True)
    folder = tempfile.mkdtemp(prefix="sort-", dir="runs")
    start = f"{folder}/start"
    register(names[0])  # whose reward plays no role yet
    tiny.main(["sort", f"--seed={seed}", "--max_new_tokens=8", f"--out={start}"])
    runs = []
    for name in names:
        print(f"\n==== {name} ====", flush=True)
        register(name)
        out = f"{folder}/{name.replace(' ', '-')}"
        # eval_every: no validation, which takes time and is not needed here.
        grpo_sg.main(["--task", "sort", "--model", start, "--seed", str(seed), "--steps",
                      str(steps), "--eval_every", str(steps), "--out", out])
        runs.append(out)
    return runs


def read_rows(out, name):
    with open(os.path.join(out, name)) as file:
        return [json.loads(line) for line in file]


def tell(name, out):
    """Print the reward and the accuracy, before and after, and completions that changed."""
    metrics = read_rows(out, "metrics.jsonl")
    rewards = [row["reward"] for row in metrics if "reward" in row]
    right = [row["eval/avg@4"] for row in metrics if "eval/avg@4" in row]
    first, last = mean(rewards[:5]), mean(rewards[-5:])
    print(f"\n{name}: reward {first:+.2f} -> {last:+.2f} (means of five steps), "
          f"right (avg@4) {right[0]:.3f} -> {right[-1]:.3f}")
    tested = [row for row in read_rows(out, "samples.jsonl") if row.get("split") == "test"]
    before, after = tested[:len(tested) // 2], tested[len(tested) // 2:]  # the same problems
    changed = []
    for old, new in zip(before, after):
        if old["completion"] != new["completion"]:
            changed.append((old, new))
    print(f"    greedy completions of {len(before)} test problems: copies "
          f"{count_copies(before)} -> {count_copies(after)}; the first that changed are")
    print("    letters  before   after    right answer")
    for old, new in changed[:SHOWN]:
        print(f"    {old['question']:8} {old['completion']:8} {new['completion']:8} "
              f"{old['answer']}")


def count_copies(rows):
    return sum(row["completion"] == row["question"] for row in rows)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mine", action="store_true", help="only with my_reward")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args(argv)
    names = ["mine"] if args.mine else ["any order", "any letters"]
    for name, out in zip(names, train(names, args.seed, args.steps)):
        tell(name, out)


if __name__ == "__main__":
    main()
