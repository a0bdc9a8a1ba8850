"""What do trivial baselines score in mathematics, such as boxing the question? A verifier should accept none.

    python -m experiments.math_baselines FILE.jsonl ...     rows with "problem" and "answer"; a minute for
                                                            7,000 problems, with math-verify an hour

Five policies: `question` boxes the whole question; `longest` its longest formula; `any` is right if one
of its formulas is, so it bounds every choice among them; `constant` boxes the set's most frequent answer;
`hedges` is right if one of a few answers is that say several things at once. Formulas are delimited by
dollar signs, \\( and \\), or \\[ and \\]; a question without delimiters counts as one formula. Counts go to
results/math_baselines.json: for the generated problems and each file named, and also by math-verify if it is
installed. On real sets, the remaining hits are questions that contain the answer as it should be written, and
questions that ask to expand or factor an expression: both forms count as equal.

The files of verify/README.md come from public repositories on GitHub:

    math500.jsonl               hkust-nlp/simpleRL-reason, examples/simplelr_math_eval/data/math500/test.jsonl,
                                unchanged; the set is HuggingFaceH4/MATH-500
    math_train.jsonl            agentica-project/rllm, commit 874daa4, rllm/data/train/math/math.json; 2 of 7,474
                                rows have no answer and are left out
    gsm8k_test.jsonl            openai/grade-school-math, grade_school_math/data/test.jsonl; the answer is the
                                number after ####, without commas
    deepscaler_every_8th.jsonl  ruixin31/Spurious_Rewards, code/data/DeepScaleR_Difficulty_Level_1/train.json and
                                so on to 5, joined: of 39,808 rows 1, 9, 17 and so on; "prompt" is the problem
    olympiadbench.jsonl         hkust-nlp/simpleRL-reason, next to math500: the question, and the first final_answer
                                without dollar signs
    minerva.jsonl               the same, minerva_math: the answer is final_answer.py's of the solution
"""
import json
import os
import re
import sys
from collections import Counter

from tqdm import tqdm

import tasks
from experiments.analysis import RESULTS

FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.S)
verifiers = {"verify_math": lambda response, gold: tasks.verify_math(response, gold).correct}
try:
    import math_verify
    verifiers["math-verify"] = lambda response, gold: bool(math_verify.verify(
        math_verify.parse(f"${gold}$"), math_verify.parse(response)))
except ImportError:
    print("math-verify is not installed: pip install 'math-verify[antlr4_13_2]' to compare")


HEDGES = ("A, B, C, D, E", "(A),(B),(C),(D),(E)", "(A) or (B)", "A) B) C) D)", "Yes, no", "Yes and no",
          "0, 1, 2, 3, 4, 5", "0 or 1", "x", "x = x", "x = y", "0 = 0", "The answer is the answer")


def policies(question, common):
    """Return {policy: its responses}. A policy solves a problem if one of them is right."""
    formulas = [next(filter(None, groups)) for groups in FORMULA.findall(question)] or [question]
    chosen = {"question": [question], "longest": [max(formulas, key=len)], "any": formulas,
              "constant": [common], "hedges": HEDGES}
    return {name: [f"\\boxed{{{text.strip(' .,;:?!')}}}" for text in texts]
            for name, texts in chosen.items()}


def counts(problems, label):
    """Return {verifier: {"problems": how many, policy: how many of them it solves}}."""
    common = Counter(gold for _, gold in problems).most_common(1)[0][0]
    right = {name: {"problems": len(problems), **dict.fromkeys(policies("", common), 0)}
             for name in verifiers}
    for question, gold in tqdm(problems, label):
        for name, verify in verifiers.items():
            verdicts = {}
            for policy, responses in policies(question, common).items():
                for response in responses:
                    if response not in verdicts:
                        verdicts[response] = verify(response, gold)
                right[name][policy] += any(verdicts[response] for response in responses)
    return right


sets = {"generated": [(problem.question, problem.answer)
                      for problem in tasks.arithmetic_split("test", 1000, 0)]}
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    sets[os.path.basename(path).removesuffix(".jsonl")] = [(row["problem"], row["answer"]) for row in rows]
path, results = RESULTS / "math_baselines.json", {}
if os.path.exists(path):  # keep earlier counts of other files and of the other verifier
    with open(path) as file:
        results = json.load(file)
for label, problems in sets.items():
    results.setdefault(label, {}).update(counts(problems, label))
    with open(path, "w") as file:
        json.dump(results, file, indent=1)
for label, verdicts in results.items():
    for name, right in verdicts.items():
        shares = ", ".join(f"{policy} {count / right['problems']:.2%}" for policy, count in right.items()
                           if policy != "problems")
        print(f"{label:<14} {name:<12} {right['problems']:>6} problems: {shares}")
