"""Make lesson/ladder.ipynb from lesson/ladder.py: its cells, what they print, and its figure.

    python -m lesson.notebook        as long as the ladder: a minute on one core

A notebook is a JSON file (nbformat 4.4), so no other package is needed. A cell begins with
`# %%`; its comments before and after the code become cells of text.
"""
import ast
import contextlib
import io
import json
import pathlib
import re
import sys
from xml.sax.saxutils import escape

LADDER = pathlib.Path(__file__).with_name("ladder.py")
NOTEBOOK = LADDER.with_suffix(".ipynb")
COLORS = {"1": "#999999", "2": "#999999", "3": "#999999", "4": "#c0392b", "5": "#1f6fb2",
          "6": "#6a9a3b", "7": "#d98200", "8": "#d98200"}  # by a rung's first figure


class Picture(str):
    """Hold an SVG that a notebook displays."""

    def _repr_svg_(self):
        return str(self)

    def __repr__(self):
        return "the rungs' mean rewards, step by step"


def draw(curves, width=470, height=300):
    """Plot curves, {title: the mean reward of each step}, as a Picture."""
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" '
             f'viewBox="0 0 {width + 270} {height + 40}">',
             '<rect width="100%" height="100%" fill="white"/>']
    for reward in (0, 0.25, 0.5, 0.75, 1):
        y = 10 + (1 - reward) * height
        parts.append(f'<line x1="40" x2="{width}" y1="{y:g}" y2="{y:g}" stroke="#dddddd"/>'
                     f'<text x="34" y="{y + 4:g}" text-anchor="end">{reward:g}</text>')
    parts.append(f'<text x="{width / 2:g}" y="{height + 32}">step: 1 to 30</text>')
    label = 0.0  # where the last label is: the next one is below it
    for title, curve in sorted(curves.items(), key=final_reward, reverse=True):
        color = COLORS[title[0]]
        stride = (width - 40) / (len(curve) - 1)
        points = []
        for step, reward in enumerate(curve):
            points.append(f"{40 + step * stride:.1f},{10 + (1 - reward) * height:.1f}")
        y = 10 + (1 - curve[-1]) * height
        label = max(y + 4, label + 15)
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" '
                     f'stroke-width="1.5"/><line x1="{width}" x2="{width + 14}" y1="{y:.1f}" '
                     f'y2="{label - 4:.1f}" stroke="{color}" stroke-width="0.5"/>'
                     f'<text x="{width + 18}" y="{label:.1f}" fill="{color}">'
                     f'{escape(title)}</text>')
    return Picture("\n".join([*parts, "</svg>"]))


def final_reward(item):
    title, curve = item
    return curve[-1]


def split(program):
    """Split a program into cells, [(kind, text), ...]: kind is "markdown" or "code"."""
    preface, *chunks = re.split(r"^# %% ?", program, flags=re.M)
    cells = [("markdown", ast.get_docstring(ast.parse(preface)))]
    for chunk in chunks:
        title, _, body = chunk.partition("\n")
        lines = body.strip("\n").split("\n")
        is_comment = [line.startswith("#") for line in lines]
        first = is_comment.index(False)  # line of code
        last = len(lines) - is_comment[::-1].index(False)
        cells.append(("markdown", f"### {title}\n" + uncomment(lines[:first])))
        cells.append(("code", "\n".join(lines[first:last]).strip("\n")))
        cells.append(("markdown", uncomment(lines[last:])))
    return [(kind, text) for kind, text in cells if text]


def uncomment(lines):
    return "\n".join(re.sub("^# ?", "", line) for line in lines)


def run_cell(code, names):
    """Run a cell in the dictionary `names`. Returns its outputs in the notebook's format."""
    tree = ast.parse(code)
    last = None
    if isinstance(tree.body[-1], ast.Expr):  # its value is shown
        last = ast.Expression(tree.body.pop().value)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(LADDER), "exec"), names)
        value = eval(compile(last, str(LADDER), "eval"), names) if last else None
    print(printed.getvalue(), end="", flush=True)
    outputs = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout",
                        "text": printed.getvalue().splitlines(keepends=True)})
    if hasattr(value, "_repr_svg_"):
        data = {"image/svg+xml": value._repr_svg_().splitlines(keepends=True),
                "text/plain": [repr(value)]}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    return outputs


def make(program):
    """Build the notebook of a program, as a dictionary to write as JSON."""
    cells = []
    names = {"__name__": "__main__"}
    for kind, text in split(program):
        cell = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
        if kind == "code":
            cell["execution_count"] = None
            cell["outputs"] = run_cell(text, names)
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4,
            "nbformat_minor": 4}


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit("python -m lesson.notebook takes no arguments")
    notebook = make(LADDER.read_text(encoding="utf-8"))
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n",
                        encoding="utf-8")
    print(f"wrote {NOTEBOOK}")
