"""verify_math and, where it is installed, math-verify on support/math_pairs.jsonl: 1,389 labelled answers.

    python experiments/math_verifiers.py          some seconds; with -v, prints where the two differ

The first 607 rows were at hand when verify_math got its first repairs. The other 782 came from somebody who
had not seen the code, and were first run after that: 99.2 % agreement and 2 wrong acceptances of 424. The
causes were then repaired, so what is printed now is no measurement on unseen answers. The labels are ours:
61 became "wrong" with the rule that an answer may leave no work undone that its gold has not left undone,
2^{10} for 1024, say, and one became "right", two boxes that together are the gold's list.
"""
import json
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from tasks import verify_math  # noqa: E402

with open(os.path.join(HERE, "..", "support", "math_pairs.jsonl")) as file:
    rows = [json.loads(line) for line in file]
verifiers = {"verify_math": lambda response, gold: verify_math(response, gold).correct}
try:
    import math_verify
    verifiers["math-verify"] = lambda response, gold: bool(math_verify.verify(
        math_verify.parse(f"${gold}$"), math_verify.parse(response)))
except ImportError:
    print("math-verify is not installed: pip install 'math-verify[antlr4_13_2]' to compare")
verdicts = {}
for name, verify in verifiers.items():
    verdicts[name], seconds = [], []
    for row in rows:
        started = time.process_time()
        verdicts[name].append(verify(row["response"], row["gold"]))
        seconds.append(time.process_time() - started)
    for part, chosen in (("first 607", range(607)), ("other 782", range(607, len(rows)))):
        wrong = [rows[i]["correct"] for i in chosen if verdicts[name][i] != rows[i]["correct"]]
        median = 1e3 * statistics.median(seconds)
        agreed = 1 - len(wrong) / len(chosen)
        print(f"{name:<12} {part}: agrees on {agreed:.2%}, accepts {wrong.count(False)} wrong answers "
              f"and rejects {wrong.count(True)} right ones; median {median:.2f} ms")
for row, *pair in zip(rows, *verdicts.values()):
    if len(set(pair)) > 1 and "-v" in sys.argv:
        name, truth = ["verify_math", "math-verify"][pair[1]], ["wrong", "right"][row["correct"]]
        print(f"only {name} accepts ({truth}): "
              f"gold {row['gold']!r}, {row['response'][-80:]!r}")
