"""Print the project's sizes, and fail above a budget: whoever adds must delete."""
import ast
import pathlib
import subprocess
import sys

BUDGETS = {"grpo_sg.py": 1260, "grpo_sg.py, code": 690, "tasks.py": 850, "tasks.py, code": 510,
           "test_grpo_sg.py": 1850, "lines of Python": 12700, "files": 106,
           "lines without support/pretrained": 17300, "words of Markdown": 19000}
# The mean line of code stays below these: denser lines don't meet a budget.
WIDTHS = {"grpo_sg.py": 54.5, "tasks.py": 54.5, "verify/math_equal.py": 61.5}


def list_code(text):
    """Return the lines of a program without docstrings, comments and empty lines."""
    docs = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs |= set(range(node.lineno, node.end_lineno + 1))
    return [line for i, line in enumerate(text.splitlines(), 1)
            if i not in docs and line.strip() and not line.strip().startswith("#")]


names = subprocess.check_output(["git", "ls-files"], text=True).split()
texts = {name: pathlib.Path(name).read_text("utf-8", errors="replace") for name in names}
lines = {name: len(text.splitlines()) for name, text in texts.items()}
code = {name: list_code(texts[name]) for name in WIDTHS}
sizes = {**lines, **{f"{name}, code": len(code[name]) for name in code}}
sizes["lines of Python"] = sum(lines[name] for name in names if name.endswith(".py"))
sizes["files"] = len(names)
sizes["lines without support/pretrained"] = sum(
    lines[name] for name in names if not name.startswith("support/pretrained/"))
sizes["words of Markdown"] = sum(len(texts[name].split()) for name in names if name.endswith(".md"))
widths = {name: sum(map(len, kept)) / len(kept) for name, kept in code.items()}
for name, budget in BUDGETS.items():
    print(f"{name}: {sizes[name]:,} of {budget:,}{' TOO MANY' if sizes[name] > budget else ''}")
for name, width in widths.items():
    print(f"{name}: {width:.2f} of {WIDTHS[name]}{' TOO WIDE' if width >= WIDTHS[name] else ''}")
sys.exit(any(sizes[name] > budget for name, budget in BUDGETS.items())
         or any(widths[name] >= WIDTHS[name] for name in WIDTHS))
