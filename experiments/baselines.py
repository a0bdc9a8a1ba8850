"""What do trivial baselines score? A reward should pay them less than honest attempts.

    python -m experiments.baselines kk math qa    a minute; writes results/ignorant.jsonl
    python -m experiments.baselines my_task.py    a task of your own: a script that ends in
                                                  grpo_sg.main(task=NAME); trains nothing

Each baseline answers all test problems without understanding them: with the most frequent
answer of the training problems, the question itself, the form without an answer, or the answer
of another problem. The script prints its accuracy and its mean reward. It warns if the reward
pays for giving up: if a baseline that is almost never right earns more than honest attempts
that are wrong. A policy that is seldom right would then learn to give up.
"""
import argparse
import json
import random
import re
import runpy
import statistics
from collections import Counter
from unittest import mock

import grpo_sg
import tasks
from experiments.analysis import RESULTS
from support import cli
from support.program import one_line_errors

NEVER = 0.02    # an accuracy up to which a policy counts as never right
GIVE_UP = 0.1   # an accuracy up to which giving up may pay before it is warned of
ROLES = "knight", "knave"
# What stands before the answer and after it.
TAGS = "<think> Let me see. </think> <answer> ", " </answer>"
FORMS = {"kk": TAGS, "qa": TAGS, "math": ("\\boxed{", "}")}


# ---- Policies ----

def form_of(task):
    """What a response has before and after its answer; of a task of one's own as the first
    solution has it in which the answer stands."""
    if task.name in FORMS:
        return FORMS[task.name]
    for problem in task.train:
        before, answer, after = problem.solution.rpartition(str(problem.answer))
        if answer:
            return before, after
    return "", ""


def gold_of(problem):
    """The answer, so that it can be counted: of kk the roles, of several golds the first."""
    if isinstance(problem.answer, dict):
        return tuple(problem.answer.values())
    return problem.answer[0] if isinstance(problem.answer, list) else str(problem.answer)


def write(problem, gold):
    """A gold answer of another problem as an answer to this one."""
    if not isinstance(gold, tuple):
        return gold
    return ", ".join(f"{name} is a {role}" for name, role in zip(problem.answer, gold))


def answer_blindly(problem, task, golds, commonest, rng):
    """{policy: its response to the problem}"""
    before, after = form_of(task)
    answers = {"constant": write(problem, commonest), "question": problem.question, "form": "",
               "random": write(problem, rng.choice(golds))}
    if task.name == "kk":
        answers |= follow_claims(problem)
    if task.name == "qa" and task.observe:
        call = f"<search>{problem.question}</search>"
        found = re.findall(r"Doc 1: (.*)", task.observe([call])[0])
        answers["last word that the tool finds"] = found[0].split()[-1] if found else ""
    responses = {policy: f"{before}{answer}{after}" for policy, answer in answers.items()}
    return {**responses, "question, without the form": problem.question, "nothing": ""}


def follow_claims(problem):
    """Not quite trivial: answer what the people of a puzzle say of each other."""
    first, last = [], []
    for name in problem.answer:
        pattern = rf"\b{re.escape(name)} is a (knight|knave)"
        said = re.findall(pattern, problem.question) or [ROLES[0]]
        first.append(said[0])
        last.append(said[-1])
    return {"all knights": write(problem, (ROLES[0],) * len(first)),
            "first claim of each": write(problem, tuple(first)),
            "last claim of each": write(problem, tuple(last))}


# ---- What they earn ----

def judge(task, problem, response):
    """Return (right and well formed, reward)."""
    c = grpo_sg.Completion(problem, [], [0], [True], transcript=response, response=response)
    c.correct, c.formatted = task.verify(response, problem.answer)
    return c.solved, task.reward(c)


def measure(label, task):
    """(a row for each policy, the rewards of wrong attempts, of right answers)"""
    rng = random.Random(0)
    golds = [gold_of(problem) for problem in task.train]
    commonest = Counter(golds).most_common(1)[0][0]
    found, right = {}, []
    for problem in task.test:
        blind = answer_blindly(problem, task, golds, commonest, rng)
        for policy, response in blind.items():
            found.setdefault(policy, []).append(judge(task, problem, response))
        right.append(judge(task, problem, problem.solution)[1])
    rows = []
    for policy, verdicts in found.items():
        rows.append({"problems": label, "n": len(verdicts), "policy": policy,
                     "accuracy": statistics.fmean(solved for solved, _ in verdicts),
                     "reward": statistics.fmean(reward for _, reward in verdicts)})
    wrong = [reward for solved, reward in found["random"] if not solved]
    return rows, wrong, right


def warn(rows, wrong, right):
    """Lines on the policy that is never right and earns the most; [] if honest attempts earn as
    much."""
    never = [row for row in rows if row["accuracy"] <= NEVER]
    if not never or not wrong:
        return []
    best = max(never, key=lambda row: row["reward"])
    honest, top = statistics.fmean(wrong), statistics.fmean(right)
    if top <= honest:
        return ["warning: worked solutions earn no more than wrong answers: do they have the "
                "form that verify wants?"]
    enough = (best["reward"] - honest) / (top - honest)
    if enough <= GIVE_UP:
        return []
    return [
        f"warning: \"{best['policy']}\" is right in {best['accuracy']:.0%} of the problems and "
        f"earns {best['reward']:+.2f}; a wrong attempt earns {honest:+.2f}. A policy that is "
        f"right in less than {min(1, enough):.0%} can raise its reward by giving up: pay both "
        "alike, or let verify ask more of what is well formed"]


def find_tasks(name):
    """Yield (label, task) for the name of a task or of a script that ends in grpo_sg.main."""
    for label, cfg in find_settings(name):
        yield label, cli.guard(tasks.make_task(cfg))


def find_settings(name):
    """Yield (label, settings) for the same names."""
    sizes = ["--train_problems", "1000", "--eval_problems", "1000"]
    if name.endswith(".py"):
        with mock.patch.object(grpo_sg, "main") as main:
            runpy.run_path(name, run_name="__main__")
        cfg = cli.parse([], **main.call_args.kwargs)
        yield cfg.task, cfg
    elif name == "kk":
        for people in ("3", "7"):
            # as a real model reads them, told as a story
            cfg = cli.parse(["--task", name, "--model", "any", "--people", people, *sizes])
            yield f"kk, {people} people", cfg
    else:
        yield name, cli.parse(["--task", name, *sizes])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="+", help="kk, math, qa, or a script with a task")
    names = parser.parse_args().tasks
    every = []
    print("each policy answers all test problems with: the commonest answer (constant), the "
          "question itself,\nthe form without an answer, another problem's answer (random), "
          "or nothing")
    for name in names:
        for label, task in find_tasks(name):
            rows, wrong, right = measure(label, task)
            for row in rows:
                print(f"{label:<14}{row['policy']:<30}right {row['accuracy']:>6.1%}   "
                      f"reward {row['reward']:+.2f}")
            for line in warn(rows, wrong, right):
                print(line)
            every += rows
    if names == ["kk", "math", "qa"]:
        lines = [json.dumps(row) + "\n" for row in every]
        (RESULTS / "ignorant.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    with one_line_errors(out_of_memory=""):
        main()
