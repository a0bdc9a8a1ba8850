"""Write a run's page, report.html: curves, transcripts, and the weight of each token.

    python -m support.page runs/NAME            the page of a run, also of a killed one
    python -m support.page runs/A runs/B ...    compares the curves of runs, in runs/report.html

A run ends with a page of its curves and transcripts. For one run, the command adds the tokens of
some groups, which it samples with the run's first and last model (support/tokens.py).

Completions can contain any character: all text goes through `shown`, and the page allows no
script but its own.
"""
import argparse
import base64
import contextlib
import hashlib
import html
import json
import math
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
# column of metrics.jsonl -> its title
CURVES = {"reward": "Reward", "accuracy": "Accuracy; on validation and test, greedy",
          "grad_norm": "Gradient norm before clipping", "entropy": "Entropy, nats per token",
          "kl": "KL", "clip_frac": "Clip fraction",
          "completion_tokens": "Completion length, tokens",
          "truncated": "Truncated", "equal_groups": "Fraction of groups with equal rewards"}
COLORS = 6        # CSS classes k0 to k5
MOST_POINTS = 500  # of a curve


# ---- A run's files ----

def read(folder, name, wanted=""):
    """Read the rows of a JSON-lines file that contain `wanted`. A killed run may leave
    half a line, or no file."""
    rows = []
    if (path := folder / name).exists():
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with contextlib.suppress(ValueError):
                rows += [json.loads(line)] if wanted in line else []
    return rows


def read_settings(folder):
    """Read a run's settings, those of older versions too; {} if there are none."""
    for name in ("settings.json", "config.json"):
        with contextlib.suppress(OSError, ValueError):
            return json.loads((folder / name).read_text(encoding="utf-8"))
    return {}


# ---- Text ----

def shown(value, limit=4000):
    """Return any value as harmless HTML, cut to the limit, with unprintable characters as
    code points."""
    text = str(value)
    if len(text) > limit:
        text = f"{text[:limit // 2]} [... cut ...] {text[-(limit // 2):]}"
    printable = [c if c.isprintable() or c == "\n" else f"⟨U+{ord(c):04X}⟩" for c in text]
    return html.escape("".join(printable))


def describe_grade(row):
    if row["truncated"]:
        return "truncated"
    if not row["formatted"]:
        return "badly formed"
    return "correct" if row["correct"] else "wrong"


def with_error(row, key):
    """Format a mean in a row of metrics.jsonl with its standard error, if it has one
    (a single problem has none)."""
    error = row[f"{key}_se"]
    return f"{row[key]:.3f}" if error is None else f"{row[key]:.3f} ± {error:.3f}"


def summary(settings, rows):
    """Describe the run in a sentence or two, and list its settings."""
    task, model, shaping, steps = map(settings.get, ("task", "model", "shaping", "steps"))
    seconds = [row["seconds"] for row in rows if "reward" in row]
    tests = [with_error(row, "eval/accuracy") for row in rows if row.get("split") == "test"]
    text = (f"Task {task}, model {model or 'tiny'}, shaping {shaping}: {len(seconds)} of {steps} "
            f"steps, {sum(seconds):.0f} s. Greedy accuracy on the test, ± standard error: "
            f"{' → '.join(tests)}")
    return (f"<p>{shown(text)}</p><details><summary>All settings</summary><pre>"
            f"{shown(json.dumps(settings, indent=1))}</pre></details>")


# ---- Curves ----

def ticks(low, high):
    """Return two to six round numbers, from `low` or just below it to `high` or just above."""
    span = high - low or abs(high) or 1
    power = 10 ** math.floor(math.log10(span))
    step = next(size * power for size in (0.5, 1, 2, 5) if span / (size * power) < 4.01)
    first = math.floor(low / step + 1e-6)  # 0.6 / 0.1 is a little below 6
    end = max(first + 1, math.ceil(high / step - 1e-6))
    return [i * step for i in range(first, end + 1)]


def place(x, y, last, scale):
    """Return the place of a point in a chart: x from 0 to `last`, y between the ends of `scale`."""
    height = (y - scale[0]) / (scale[-1] - scale[0])
    return f"{48 + 264 * x / last:.1f} {100 - 88 * height:.1f}"


def axes(last, xs, ys):
    """Draw a chart's lines and numbers."""
    drawn = ""
    for y in ys:
        left, height = place(0, y, last, ys).split()
        drawn += (f'<path class="axis" d="M{left} {height}H312"/>'
                  f'<text x="44" y="{height}" dy="3">{y:.6g}</text>')
    for x in xs:
        left, _ = place(x, ys[0], last, ys).split()
        drawn += f'<text class="under" x="{left}" y="113">{x:.6g}</text>'
    return drawn


def chart(title, lines, last):
    """Draw a figure. lines: [(label, CSS class, {step: value})]."""
    ys = [y for *_, line in lines for y in line.values()] or [0]
    scale = ticks(min(ys), max(ys))
    drawn = axes(last, [x for x in ticks(0, last) if x <= last], scale)
    labels = ""
    for label, color, line in lines:
        points = [[x, float(f"{y:.4g}")] for x, y in line.items()]
        points = points[::len(points) // MOST_POINTS + 1]
        places = [place(*point, last, scale) for point in points]
        drawn += f'<path class="{color}" d="M{"L".join(places)}"/>'
        if len(points) < 20:
            drawn += f'<path class="dots {color}" d="M{"h0M".join(places)}h0"/>'
        labels += (f'<span class="{color}" title="{label}" data-points="{points}">'
                   f'{label} {points[-1][1]}</span> ')
    return (f'<figure><b>{title}</b><br>{labels}<svg viewBox="0 0 320 116">{drawn}'
            '<path class="mark"/></svg></figure>')


def curve(rows, key):
    """Return {step: value} of a column where it is a finite number."""
    return {row["step"]: row[key] for row in rows
            if row.get(key) is not None and math.isfinite(row[key])}


def curves(folders):
    """Draw the charts of one run or several. Returns (figures, the last step)."""
    charts = {key: [] for key in CURVES}
    for i, folder in enumerate(folders):
        rows = read(folder, "metrics.jsonl")
        label = shown(folder.name) if len(folders) > 1 else "training"
        for key, lines in charts.items():
            lines.append((label, f"k{i % COLORS}", curve(rows, key)))
    if len(folders) == 1:
        for split, label, color in ("valid", "validation", "k1"), ("test", "test", "k2"):
            evaluations = [row for row in rows if row.get("split") == split]
            charts["accuracy"].append((label, color, curve(evaluations, "eval/accuracy")))
    for key, lines in charts.items():
        charts[key] = [line for line in lines if line[2]]
    last = max([1, *(step for lines in charts.values() for *_, line in lines for step in line)])
    return "".join(chart(CURVES[key], lines, last) for key, lines in charts.items()), last


# ---- Transcripts ----

def transcripts(folder):
    """Show greedy completions of at most 200 test problems, before and after training side
    by side, grouped by their grades."""
    tests = {}
    for row in read(folder, "samples.jsonl", wanted='"split": "test"'):
        tests.setdefault(row["step"], []).append(row)
    both = list(zip(*(tests[step] for step in sorted(tests) if step in (min(tests), max(tests)))))
    pairs = both[::len(both) // 201 + 1]
    kinds = {}
    for pair in pairs:
        columns = ""
        for row in pair:
            columns += (f'<div class="text">Step {row["step"]}, {describe_grade(row)}:\n'
                        f'{shown(row["completion"], 350_000 // len(pairs))}</div>')
        kinds.setdefault(" → ".join(map(describe_grade, pair)), []).append(
            f'<p class="text">{shown(pair[0]["question"])}\nAnswer: {shown(pair[0]["answer"])}</p>'
            f'<div class="pair">{columns}</div><hr>')
    groups = ""
    for kind, texts in sorted(kinds.items()):
        groups += f"<details><summary>{kind}: {len(texts)}</summary>{''.join(texts)}</details>"
    return (f"<h2>Test problems, before → after</h2><p>{len(pairs)} of {len(both)}, greedy:</p>"
            f"{groups}")


# ---- The page ----

def hash_of(text):
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write(*folders, tokens=""):
    """Write the page of one run or several, and return its path. Works for killed runs.
    tokens: HTML from support/tokens.py."""
    folders = [Path(folder).resolve() for folder in folders]
    folder = folders[0]
    path = (folder if len(folders) == 1 else folder.parent) / "report.html"
    about, texts = "", ""
    if len(folders) == 1:
        about = summary(read_settings(folder), read(folder, "metrics.jsonl"))
        texts = transcripts(folder)
    figures, last = curves(folders)
    template, style, script = (
        (HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    page = template.format(
        title=shown(path.parent.name), style=style, style_hash=hash_of(style), script=script,
        script_hash=hash_of(script), summary=about, figures=figures, last=last, tokens=tokens,
        transcripts=texts)
    new = path.with_suffix(f".{os.getpid()}.new")  # processes may write it at the same time
    try:
        new.write_text(page, encoding="utf-8")
        return new.replace(path)  # a reload in a browser never shows half a page
    finally:
        new.unlink(missing_ok=True)  # left behind by a full disk


def main():
    parser = argparse.ArgumentParser(
        prog="python -m support.page", description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run")
    args = parser.parse_args()
    for run in args.runs:
        if not Path(run, "metrics.jsonl").is_file():
            sys.exit(f"error: {run} is not a run, because it has no metrics.jsonl: name a folder "
                     "such as runs/NAME")
    tokens = ""
    if len(args.runs) == 1:
        from support.tokens import view  # it needs torch
        try:
            tokens = view(args.runs[0])
        except (SystemExit, OSError, ValueError) as error:  # a model or data that are gone
            print(f"the page will not show tokens: {error}", file=sys.stderr)
    try:
        print(write(*args.runs, tokens=tokens))
    except OSError as error:
        sys.exit(f"error: the page cannot be written: {error}")


if __name__ == "__main__":
    main()
