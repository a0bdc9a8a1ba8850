"""Do the steps before a right answer prove it?

    python -m lesson.reasons RUN     grades the tests of a tiny model's run on puzzles
"""
import json
import pathlib
import re
import sys
import textwrap

import tasks

# A step of a tiny model's solution: "Ada, clearly: KKK NKN." K is a knight, N a knave.
STEP = re.compile(r"(\w+)(?:, [a-z]+)?: ([KN]+(?: [KN]+)*)\.(?: |$)")


def read_thoughts(response):
    """Return what stands between <think> and </think>, with single spaces."""
    thoughts = response.partition("</think>")[0]
    return " ".join(thoughts.split()).removeprefix("<think>").strip()


def find_fault(response, solution):
    """Return the first fault in a response's steps, or None if they leave no other answer.

    Each step must list the combinations that fit the statements so far, each once, in any order,
    and the last step must list only one. Nothing else may stand among the steps.

    Args:
        response: in the correct format.
        solution: the worked solution of the same puzzle, with a step for each speaker.
    """
    return check_steps(response, solution)[0]


def check_steps(response, solution):
    """Return (fault, its place in the thoughts, what should stand there)."""
    thoughts, at, left = read_thoughts(response), 0, ()
    for name, words in STEP.findall(read_thoughts(solution)):
        here = at, f"{name}: {words}."
        if at == len(thoughts):
            return None if len(left) == 1 else "step missing", *here
        step = STEP.match(thoughts, at)
        if not step or step[1] != name or len(set(step[2].split())) < len(step[2].split()):
            return "other text", *here
        left, listed, at = set(words.split()), set(step[2].split()), step.end()
        if listed != left:
            return ("both" if listed - left and left - listed else
                    "combination lost" if left - listed else "one too many"), *here
    return None if at == len(thoughts) else "other text", at, "</think>"


def read_tests(run):
    """Return the rows of a run's tests, graded, {step: {question: row}}, and all of them."""
    path, tests = run / "samples.jsonl", {}
    if not path.is_file():
        raise SystemExit(f"error: {run} is no folder of a run")
    cfg = json.loads((run / "settings.json").read_text("utf-8"))
    if (cfg["task"], cfg["data"], cfg["brief"]) != ("kk", "synthetic", True):
        raise SystemExit(f"error: {run} isn't a run of a tiny model on generated puzzles")
    puzzles = tasks.kk_split("test", cfg["eval_problems"], cfg["people"], cfg["seed"], brief=True)
    solutions = {puzzle.question: puzzle.solution for puzzle in puzzles}
    for number, line in enumerate(path.read_text("utf-8").split("\n")[:-1], 1):
        try:
            row = json.loads(line)
        except ValueError:  # not of the last line, which may be half-written
            raise SystemExit(f"error: {path}, line {number}, is damaged")
        if row["split"] == "test":
            if row["question"] not in solutions:
                raise SystemExit(f"error: {path}, line {number}: the run's settings don't make "
                                 "this puzzle, as if its seed was changed")
            row["found"] = check_steps(row["completion"], solutions[row["question"]])
            tests.setdefault(row["step"], {})[row["question"]] = row
    rows = [row for step in sorted(tests) for row in tests[step].values()]
    if not any(STEP.search(row["completion"]) for row in rows):
        raise SystemExit(f'error: {run} has no test with a step such as "Ada, so: KKN KNN."')
    return tests, rows


def count_kinds(rows):
    """Return the share of each kind of answer."""
    faults = [row["found"][0] for row in rows if row["solved"]]
    proved, guessed = faults.count(None), faults.count("step missing")
    counts = {"right": len(faults), "right, and the steps prove it": proved,
              "right by a guess among what is left": guessed,
              "right after a wrong step": len(faults) - proved - guessed}
    return {kind: count / len(rows) for kind, count in counts.items()}


def show(row):
    """Print an answer, with the first fault of its steps marked."""
    fault, at, expected = row["found"]
    thoughts, answer = read_thoughts(row["completion"]), row["completion"].split("</think>")[1]
    print("\nA right answer without right reasons:")
    marked = f"<think> {thoughts[:at]} >>> {thoughts[at:]} </think>{answer}"
    print(textwrap.fill(row["question"], 95), textwrap.fill(" ".join(marked.split()), 95), sep="\n")
    print(f"{fault}: at >>> should stand {expected}")


def main():
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m lesson.reasons RUN")
    tests, rows = read_tests(pathlib.Path(sys.argv[1]))
    steps = sorted({min(tests), max(tests)})
    shares = [count_kinds(tests[step].values()) for step in steps]
    print(f"{'greedy answers to test puzzles':38}", *(f"step {step:3}" for step in steps))
    for kind in shares[0]:
        print(f"{kind:38}", *(f"{each[kind]:8.1%}" for each in shares))
    if len(steps) == 1:
        print("There is no last test: the run has not got so far.")
    for row in rows:
        if row["solved"] and row["found"][0]:
            return show(row)


if __name__ == "__main__":
    main()
