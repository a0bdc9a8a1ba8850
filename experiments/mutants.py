"""Do the tests notice? Break the code in one place at a time, in a copy of the project, and run its tests.

    python experiments/mutants.py                          two breaks of each function: prints which survive
    python experiments/mutants.py --only token_weights --breaks 5 --seed 1      further flags go to pytest

The functions are those of sections 1 to 6 of grpo_sg.py, the verifiers of tasks.py, and verify/math_equal.py.
A break turns a comparison or a condition round, swaps + and -, * and /, `and` and `or`, takes a `not` or a
minus away, adds 1 to a number, turns a truth value round, or leaves out a statement. Which ones are tried is
drawn by the seed. A break is caught if a test fails that passes on the unbroken copy, or if the tests hang. One
that survives is a test to write, or changes nothing that matters. Writes results/mutants.json if all are tried.
"""
import argparse
import ast
import copy
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# file: (names of its functions, None: all; the text at which its part ends; its tests)
TARGETS = {"grpo_sg.py": (None, "# ---- Plumbing", ["test_grpo_sg.py", "support/test_families.py"]),
           "tasks.py": (("verify_kk", "read_roles", "verify_math", "verify_qa"), "", ["test_grpo_sg.py"]),
           "verify/math_equal.py": (None, "", ["verify/test_math_equal.py"])}
TURNED = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE,
          ast.LtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or,
           ast.Or: ast.And}


def broken(node):  # what may stand in the place of an expression or a statement; None: nothing
    new = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in TURNED:
        new.ops[0] = TURNED[type(node.ops[0])]()
        return new
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPPED:
        new.op = SWAPPED[type(node.op)]()
        return new
    if isinstance(node, ast.UnaryOp):
        return new.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        new.value = not node.value if isinstance(node.value, bool) else node.value + 1
        return new
    if isinstance(node, (ast.If, ast.IfExp)) and isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        return new
    left_out = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)  # a docstring is one
    return ast.Pass() if left_out or isinstance(node, ast.AugAssign) else None


def places(node, within=()):
    """All places in a function's body that can be broken, as paths of (field, index or None) from `node`."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "args", "decorator_list", "msg"):
            continue
        for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                path = (*within, (field, i))
                if broken(child):
                    yield path
                yield from places(child, path)


def break_at(tree, path):
    """The tree's text with the break, and the break in words."""
    tree = copy.deepcopy(tree)
    *way, (field, i) = path
    node = tree
    for name, j in way:
        node = getattr(node, name) if j is None else getattr(node, name)[j]
    old = getattr(node, field) if i is None else getattr(node, field)[i]
    new = ast.fix_missing_locations(broken(old))
    if i is None:
        setattr(node, field, new)
    else:
        getattr(node, field)[i] = new
    before, after = (ast.unparse(each).split("\n")[0] for each in (old, new))
    return ast.unparse(tree), f"line {old.lineno}: {before} -> {after}"


def draw_breaks(only, count, seed):
    """[(file, function, broken text, break in words, tests)]"""
    found = []
    for file, (names, end, tests) in TARGETS.items():
        text = (ROOT / file).read_text()
        last = text[:text.index(end)].count("\n") if end else text.count("\n") + 1
        tree = ast.parse(text)
        for i, node in enumerate(tree.body):
            wanted = isinstance(node, ast.FunctionDef) and node.lineno <= last and only in node.name
            if not wanted or names and node.name not in names:
                continue
            path = (("body", i),)
            where = sorted(places(node, path), key=str)
            for each in random.Random(f"{seed} {node.name}").sample(where, min(count, len(where))):
                found.append((file, node.name, *break_at(tree, each), tests))
    return found


def run_tests(folder, tests, *more, timeout=None):
    """(the names of the failing tests, the last line that is printed); ["(hung)"] after `timeout` seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *tests, *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, timeout=timeout, text=True,
                              capture_output=True)
    except subprocess.TimeoutExpired:
        return ["(hung)"], ""
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.M)
    return failed or ["(died)"] * (done.returncode != 0), done.stdout.strip().split("\n")[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="functions whose name has this text")
    parser.add_argument("--breaks", type=int, default=2, help="of each function")
    parser.add_argument("--seed", type=int, default=0)
    args, more = parser.parse_known_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        copied = pathlib.Path(folder) / "copy"
        shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".git", "__pycache__", "runs"))
        limits = {}  # of each test file: tests that fail in any case, and a time that is long
        for file, name, text, words, tests in draw_breaks(args.only, args.breaks, args.seed):
            if tests[0] not in limits:
                started = time.time()
                failed, last = run_tests(copied, tests, *more)
                limits[tests[0]] = [f"--deselect={test}" for test in failed], 60 + 3 * (time.time() - started)
                print(f"unbroken, {tests[0]}: {last}", flush=True)
            skipped, limit = limits[tests[0]]
            (copied / file).write_text(text)
            failed, _ = run_tests(copied, tests, *more, "-x", *skipped, timeout=limit)
            shutil.copy(ROOT / file, copied / file)
            by = (failed or [None])[0]
            rows.append({"file": file, "function": name, "break": words, "caught by": by})
            print("caught  " if by else "SURVIVED", f"{file}, {name}, {words}", by or "", flush=True)
    survived = sum(row["caught by"] is None for row in rows)
    print(f"{len(rows) - survived} of {len(rows)} breaks caught")
    if not args.only:
        (ROOT / "experiments/results/mutants.json").write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(survived > 0)


if __name__ == "__main__":
    main()
