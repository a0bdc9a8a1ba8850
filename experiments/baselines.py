"""What do trivial baselines score? A reward should pay them less than honest attempts.

    python -m experiments.baselines kk math my_task.py    names or files, as for --task

Each baseline answers all test problems without understanding them: with the most frequent
answer of the training problems, all of these answers at once, the question itself, the form
without an answer, or the answer of another problem. The script prints the accuracy and mean
reward of each, and warns of two mistakes:

- The verifier accepts too much: a trivial baseline is often right.
- The reward pays for giving up: a baseline that is almost never right earns more than honest
  attempts that are wrong. A policy that is seldom right would then learn to give up.

Commit 7e9e938 also counts how many problems of public mathematics sets such baselines solve.
"""
import argparse
import json
import pathlib
import random
import re
import statistics
from collections import Counter

import grpo_sg
import tasks

OFTEN = 0.25    # a trivial baseline with a higher accuracy is warned of
NEVER = 0.02    # an accuracy up to which a policy counts as never right
GIVE_UP = 0.1   # an accuracy up to which giving up may pay without a warning
LISTED = 1000   # most answers in a list of all answers
ROLES = "knight", "knave"
# The text before the answer and after it.
TAGS = "<think> Let me see. </think> <answer> ", " </answer>"
FORMS = {"kk": TAGS, "qa": TAGS, "math": ("\\boxed{", "}")}


# ---- Policies ----

def find_form(task):
    """Return what a response has before and after its answer, as in the first solution that
    contains its answer."""
    for problem in task.train:
        before, answer, after = problem.solution.rpartition(text_of(problem))
        if answer:
            return before, after
    return "", ""


def text_of(problem):
    """Return the answer as text; if it is a list of accepted texts, return the first."""
    answer = problem.answer
    if isinstance(answer, list) and answer and isinstance(answer[0], str):
        answer = answer[0]
    return str(answer)


def find_golds(task):
    """Return (form, golds): what a response has before and after its answer, and the training
    problems' answers, to be counted: a puzzle's roles, or texts. If verify rejects answers
    written like this, such as lists of numbers, the golds are the solutions."""
    golds = [text_of(problem) for problem in task.train]
    if is_puzzle(task):
        golds = [tuple(problem.answer.values()) for problem in task.train]
    form = FORMS.get(task.name)
    if form and accepts(task, golds, form):  # or it is a user's own task of this name
        return form, golds
    form = find_form(task)
    solutions = [problem.solution for problem in task.train if problem.solution]
    if solutions and not accepts(task, golds, form):
        return ("", ""), solutions
    return form, golds


def is_puzzle(task):
    """Return True if each answer is a dict of roles."""
    return all(isinstance(problem.answer, dict) and {*problem.answer.values()} <= {*ROLES}
               for problem in task.train)


def accepts(task, golds, form):
    """Return True if verify accepts one of the first answers, written in this form."""
    return any(judge(task, problem, write(problem, gold).join(form))[0]
               for problem, gold in zip(task.train[:100], golds))


def write(problem, gold):
    """Write a gold answer of another problem as an answer to this one."""
    if not isinstance(gold, tuple):
        return gold
    return ", ".join(f"{name} is a {role}" for name, role in zip(problem.answer, gold))


def answer_blindly(problem, task, golds, ranked, form, rng):
    """Return {policy: its response to the problem}. ranked: the golds, most frequent first."""
    answers = {"constant": write(problem, ranked[0]), "question": problem.question, "form": "",
               "random": write(problem, rng.choice(golds)),
               "all answers": ", ".join(write(problem, gold) for gold in ranked[:LISTED])}
    if isinstance(golds[0], tuple):
        answers |= follow_claims(problem)
    if task.name == "qa" and task.write:
        call = f"<search>{problem.question}</search>"
        first = re.findall(r"Doc 1: (.*)", task.write.observe([call])[0])
        answers["last word that the tool finds"] = first[0].split()[-1] if first else ""
    responses = {policy: answer.join(form) for policy, answer in answers.items()}
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


# ---- Scores ----

def judge(task, problem, response):
    """Return (right and well formed, reward)."""
    c = grpo_sg.Completion(problem, [], [0], [True], transcript=response, response=response)
    c.correct, c.formatted = task.verify(response, problem.answer)
    return c.solved, task.reward(c)


def measure(label, task):
    """Return (a row for each policy, the rewards of wrong attempts, those of worked
    solutions; in a task without solutions, of right answers, if verify accepts their text)."""
    rng = random.Random(0)
    form, golds = find_golds(task)
    ranked = [gold for gold, _ in Counter(golds).most_common()]
    verdicts_of, right = {}, []
    for problem in task.test:
        blind = answer_blindly(problem, task, golds, ranked, form, rng)
        for policy, response in blind.items():
            verdicts_of.setdefault(policy, []).append(judge(task, problem, response))
        solved, reward = judge(task, problem, problem.solution or text_of(problem).join(form))
        if problem.solution or solved:
            right.append(reward)
    rows = []
    for policy, verdicts in verdicts_of.items():
        rows.append({"problems": label, "n": len(verdicts), "policy": policy,
                     "accuracy": statistics.fmean(solved for solved, _ in verdicts),
                     "reward": statistics.fmean(reward for _, reward in verdicts)})
    wrong = [reward for solved, reward in verdicts_of["random"] if not solved]
    return rows, wrong, right


def conclude(rows, wrong, right):
    """Return lines that say what the rows mean for the task."""
    lines = warn(rows, wrong, right)
    best = max(rows, key=lambda row: row["accuracy"])
    richest = max(rows, key=lambda row: row["reward"])
    lines.append(f"a policy has learned something only if it beats {best['accuracy']:.1%} right "
                 f"(\"{best['policy']}\") and reward {richest['reward']:+.2f} "
                 f"(\"{richest['policy']}\")")
    if len(lines) == 1:
        lines.append("no trivial baseline is often right, and none earns much more than a wrong "
                     "attempt: this reward does not pay for giving up")
    return lines


def warn(rows, wrong, right):
    """Return the warnings, [] if there are none."""
    lines = []
    best = max(rows, key=lambda row: row["accuracy"])
    if best["accuracy"] > OFTEN:
        lines.append(f"warning: a trivial baseline is right in {best['accuracy']:.0%} "
                     f"(\"{best['policy']}\"): RL can learn that instead of the task. Make "
                     "verify stricter, or the answers more varied")
    never = [row for row in rows if row["accuracy"] <= NEVER]
    if not never or not wrong:
        return lines
    paid = max(never, key=lambda row: row["reward"])
    honest = statistics.fmean(wrong)
    words = (f"warning: \"{paid['policy']}\" is right in {paid['accuracy']:.0%} of the problems "
             f"and earns {paid['reward']:+.2f}; a wrong attempt earns {honest:+.2f}.")
    advice = "pay both the same, or make verify stricter about the format"
    if not right:
        if paid["reward"] > honest:
            lines.append(f"{words} A policy that is seldom right can raise its reward by giving "
                         f"up: {advice}")
        return lines
    top = statistics.fmean(right)
    if top <= honest:
        return [*lines, "warning: worked solutions earn no more than wrong answers: do they have "
                        "the form that verify wants?"]
    enough = (paid["reward"] - honest) / (top - honest)
    if enough > GIVE_UP:
        lines.append(f"{words} A policy that is right in less than {min(1, enough):.0%} can "
                     f"raise its reward by giving up: {advice}")
    return lines


# ---- Tasks ----

def find_tasks(name):
    """Yield (label, task) for a name or file; for kk with three and with seven people."""
    make_task, settings = tasks.load_task(name)
    settings = {"train_problems": 1000, "eval_problems": 1000, **settings, "task": name}
    if name == "kk":
        for n in (3, 7):
            yield f"kk, {n} people", make_task(grpo_sg.Config(**settings, people=[n]))
    else:
        task = make_task(grpo_sg.Config(**settings))
        yield task.name, task


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="+", help="kk, math, or a file with a task")
    parser.add_argument("--rows", type=pathlib.Path, help="file to write the scores to")
    args = parser.parse_args()
    every = []
    print("each baseline answers all test problems with: the most frequent answer (constant), all "
          "answers,\nthe question itself, the form without an answer, another problem's answer "
          "(random), or nothing")
    for name in args.tasks:
        for label, task in find_tasks(name):
            rows, wrong, right = measure(label, task)
            for row in rows:
                print(f"{label:<14}{row['policy']:<30}right {row['accuracy']:>6.1%}   "
                      f"reward {row['reward']:+.2f}")
            for line in conclude(rows, wrong, right):
                print(line)
            every += rows
    if args.rows:
        args.rows.write_text("".join(json.dumps(row) + "\n" for row in every))


if __name__ == "__main__":
    try:
        main()
    except tasks.UserError as error:
        raise SystemExit(f"error: {error}")
