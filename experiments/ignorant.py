"""What do policies that know nothing get from verify_kk and verify_qa? That is what a reward is judged by.

    python experiments/ignorant.py kk qa             a minute; a table, and results/ignorant_tasks.json
    python experiments/ignorant.py kk --kk_file F    also a file: lines with quiz, names, solution
    python experiments/ignorant.py qa --qa_file F    also a file: lines as --data takes them

Every response keeps the form that the prompt asks for, around an answer. The floor is the best constant
answer as grpo_sg.py prints it, chosen on the test problems themselves; the policy "best constant" is chosen
on training problems. "Any" counts a problem where one of many guesses is right, which is more than a policy
can get. Not quite ignorant are "retrieved", what stands at one place in what the tool finds for a question,
and "claims", what the people of a puzzle say of each other. Of a file the last tenth is the test.

hotpot_dev.jsonl is data/hotpot_dev_v1_simplified.json of ysymyth/ReAct on GitHub, 7,405 rows, as lines of
"question", "answers" (a list of the one answer) and "passages" (an empty list).
"""
import argparse
import json
import math
import os
import random
import re
import statistics
import sys
from collections import Counter
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tasks  # noqa: E402
from support import data  # noqa: E402

RESULTS = os.path.join(HERE, "results", "ignorant_tasks.json")
FORM = "<think> Let me see. </think> <answer> {} </answer>"


def commonest(things):
    return Counter(things).most_common(1)[0][0]


def kk_policies(problem, task, rng):
    """{policy: its answers}."""
    names = list(problem.answer)
    said = [re.findall(rf"\b{re.escape(name)} is a (knight|knave)", problem.question) or ["knight"]
            for name in names]
    roles = {"best constant": commonest(tuple(p.answer.values()) for p in task.train),
             "all knights": ["knight"] * len(names), "all knaves": ["knave"] * len(names),
             "random roles": rng.choices(tasks.ROLES, k=len(names)),
             "claims: the first of each": [each[0] for each in said],
             "claims: the last of each": [each[-1] for each in said]}
    answers = {policy: [", ".join(map("{} is a {}".format, names, each))] for policy, each in roles.items()}
    both = [f"{name} is a {role}" for name in names for role in tasks.ROLES]
    claims = re.findall(r"[\w'-]+ is a (?:knight|knave)", problem.question)
    return {**answers, "both roles for all": [", ".join(both), " or ".join(both)],
            "the question": [problem.question], "claims: all": [", ".join(claims)]}


def qa_policies(problem, task, rng):
    words = problem.question.split()
    runs = [" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    golds = [p.answer[0] for p in task.train]
    retrieved = {}
    if task.observe:
        found = task.observe(f"<search>{problem.question}</search>").split("\n")[2].removeprefix("Doc 1: ")
        title = re.match(r"\(Title: (.*?)\)", found)
        retrieved = {"retrieved: the title": [title[1] if title else " ".join(found.split()[:2])],
                     "retrieved: all of it": [found], "retrieved: its last word": [found.split()[-1]]}
    return {"best constant": [commonest(golds)], "random gold": [rng.choice(golds)],
            "ten golds at once": [", ".join(rng.choices(golds, k=10))],
            "the question": [problem.question], "any word of it": words, "any run of its words": runs,
            **retrieved}


def tasks_of(names, kk_file, qa_file):
    """Yields (problems, task): those of the generators, then those of the files."""
    cfg = SimpleNamespace(data="synthetic", eval_data="", brief=False, model="any", max_turns=2, seed=0,
                          train_problems=1000, eval_problems=1000)
    for n in (3, 4, 5, 6, 7) if "kk" in names else ():
        yield f"kk {n}", tasks.kk_task(SimpleNamespace(**vars(cfg), people=(n,)))
    if "qa" in names:
        yield "qa", tasks.qa_task(cfg)
    if kk_file:
        with open(kk_file) as file:
            rows = [json.loads(line) for line in file]
        for n in sorted({len(row["names"]) for row in rows}):
            problems = [tasks.Problem(row["quiz"], {name: "knight" if knight else "knave" for name, knight
                                                    in zip(row["names"], row["solution"])})
                        for row in rows if len(row["names"]) == n]
            test = problems[-len(problems) // 10:]
            floor = tasks.most_frequent(tuple(p.answer.values()) for p in test)
            yield f"kk {n}, {os.path.basename(kk_file)}", tasks.Task(
                "kk", tasks.KK_SYSTEM, problems[:-len(test)], [], test, tasks.verify_kk, floor)
    if qa_file:
        rows = data.rows_of(qa_file, {}, data.QA_LINE)
        problems = [tasks.Problem(question, golds) for question, golds, _ in rows]
        test = problems[-len(problems) // 10:]
        passages = list(dict.fromkeys(passage for row in rows for passage in row[2]))
        yield f"qa, {os.path.basename(qa_file)}", tasks.Task(
            "qa", tasks.QA_SYSTEM, problems[:-len(test)], [], test, tasks.verify_qa,
            tasks.most_frequent(p.answer[0] for p in test),
            observe=tasks.search_tool(passages) if passages else None)


def measure(label, task):
    """A row for each policy, the floor first."""
    rng = random.Random(0)
    policies = kk_policies if task.name == "kk" else qa_policies
    right = {}
    for problem in task.test:
        answers = {**policies(problem, task, rng), "nothing": [""],
                   "most frequent word": [commonest(f"{task.system} {problem.question}".split())],
                   "the prompt's example": [task.system.split("<answer>")[2].split("</answer>")[0]]}
        for policy, each in answers.items():
            verdicts = [task.verify(FORM.format(answer), problem.answer) for answer in each]
            right.setdefault(policy, []).append(any(verdict == (True, True) for verdict in verdicts))
    yield {"problems": label, "n": len(task.test), "policy": "floor", "accuracy": task.floor}
    for policy, each in right.items():
        p = statistics.fmean(each)
        yield {"problems": label, "n": len(each), "policy": policy, "accuracy": p,
               "se": math.sqrt(p * (1 - p) / len(each))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="+", choices=("kk", "qa"))
    parser.add_argument("--kk_file")
    parser.add_argument("--qa_file")
    given = parser.parse_args()
    rows = []
    for label, task in tasks_of(given.tasks, given.kk_file, given.qa_file):
        for row in measure(label, task):
            error = f" +- {row['se']:.1%}" if "se" in row else ""
            above = "  above the floor" if row["accuracy"] - 2 * row.get("se", 0) > task.floor else ""
            print(f"{label:<22}{row['policy']:<26}{row['accuracy']:>6.1%}{error}{above}")
            rows.append(row)
    with open(RESULTS) as file:  # what was counted of other problems stays
        before = json.load(file)
    counted = {row["problems"] for row in rows}
    with open(RESULTS, "w") as file:
        json.dump([row for row in before if row["problems"] not in counted] + rows, file, indent=1)


if __name__ == "__main__":
    main()
