"""Write a run's page: curves, the effect of an update on each token, and transcripts before
and after training.

    python -m support.page runs/NAME            writes runs/NAME/report.html, also for a killed run
    python -m support.page runs/A runs/B ...    compares curves, in runs/report.html

Completions can contain any character: all text goes through `shown`, and the page allows
no script but its own.
"""
import base64
import contextlib
import hashlib
import html
import json
import math
import os
import sys
from pathlib import Path
from statistics import fmean as mean

CURVES = {"reward": "Reward", "accuracy": "Accuracy; on validation and test, greedy",  # the keys of metrics.jsonl
          "grad_norm": "Gradient norm before clipping", "entropy": "Entropy, nats per token", "kl": "KL",
          "clip_frac": "Clip fraction", "completion_tokens": "Completion length, tokens",
          "truncated": "Truncated", "equal_groups": "Fraction of groups with equal rewards"}
SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
# The settings of the weight: on the page, in config.json, and if that is missing.
WEIGHT = (("shaping", "shaping", "sg"), ("alpha", "alpha", 2.0), ("tau", "tau", 1/9),
          ("mu", "mu", 0.25), ("L", "low", 1.0), ("U", "high", 1.4))
EVALUATIONS = ("valid", "validation", "k1"), ("test", "test", "k2")  # in the logs, on the page, its color


def read(folder, name, wanted=""):
    """Read the rows of a JSON-lines file that contain `wanted`. A killed run may leave
    half a line, or no file."""
    rows = []
    if (path := folder / name).exists():
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with contextlib.suppress(ValueError):
                rows += [json.loads(line)] if wanted in line else []
    return rows


def shown(value, limit=4000):
    """Return any value as harmless HTML, cut to the limit, with unprintable characters as
    code points."""
    text = str(value)
    text = text if len(text) <= limit else f"{text[:limit // 2]} [... cut ...] {text[-(limit // 2):]}"
    return html.escape("".join(c if c.isprintable() or c == "\n" else f"⟨U+{ord(c):04X}⟩" for c in text))


def describe_grade(row):
    return ("truncated" if row["truncated"] else "badly formed" if not row["formatted"] else
            "correct" if row["correct"] else "wrong")


def with_error(row, key):
    """Format a mean in a row of metrics.jsonl with its standard error, if it has one
    (a single problem has none)."""
    error = row[f"{key}_se"]
    return f"{row[key]:.3f}" if error is None else f"{row[key]:.3f} ± {error:.3f}"


def summary(settings, rows):
    task, model, shaping, steps = map(settings.get, ("task", "model", "shaping", "steps"))
    seconds = [row["seconds"] for row in rows if "reward" in row]
    tests = [with_error(row, "eval/accuracy") for row in rows if row.get("split") == "test"]
    words = (f"Task {task}, {model or 'tiny model'}, shaping {shaping}: {len(seconds)} of {steps} steps, "
             f"{sum(seconds):.0f} s. Greedy accuracy on the test, ± standard error: {' → '.join(tests)}")
    return (f"<p>{shown(words)}</p><details><summary>All settings</summary><pre>"
            f"{shown(json.dumps(settings, indent=1))}</pre></details>")


def ticks(low, high):
    """Return two to six round numbers, from `low` or just below it to `high` or just above."""
    span = high - low or abs(high) or 1
    power = 10 ** math.floor(math.log10(span))
    step = next(size * power for size in (0.5, 1, 2, 5) if span / (size * power) < 4.01)
    first = math.floor(low / step + 1e-6)  # 0.6 / 0.1 is a little below 6
    return [i * step for i in range(first, max(first + 1, math.ceil(high / step - 1e-6)) + 1)]


def place(x, y, last, scale):
    """Return the place of a point in a chart: x from 0 to `last`, y between the ends of `scale`."""
    return f"{48 + 264 * x / last:.1f} {100 - 88 * (y - scale[0]) / (scale[-1] - scale[0]):.1f}"


def axes(last, xs, ys):
    """Draw a chart's lines and numbers."""
    drawn = ""
    for y in ys:
        left, height = place(0, y, last, ys).split()
        drawn += (f'<path class="axis" d="M{left} {height}H312"/>'
                  f'<text x="44" y="{height}" dy="3">{y:.6g}</text>')
    for x in xs:
        drawn += f'<text class="under" x="{place(x, ys[0], last, ys).split()[0]}" y="113">{x:.6g}</text>'
    return drawn


def chart(title, lines, last):
    """Draw a figure. lines: [(label, CSS classes, {step: value})]; lines with a label show
    their value at the selected step."""
    ys = [y for *_, line in lines for y in line.values()] or [0]
    scale = ticks(min(ys), max(ys))
    drawn = axes(last, [x for x in ticks(0, last) if x <= last], scale)
    spans = ""
    for label, classes, line in [each for each in lines if each[2]]:
        points = [[x, float(f"{y:.4g}")] for x, y in line.items()][::len(line) // 500 + 1]
        places = [place(*point, last, scale) for point in points]
        drawn += f'<path class="{classes}" d="M{"L".join(places)}"/>'
        if label and len(points) < 20:
            drawn += f'<path class="dots {classes}" d="M{"h0M".join(places)}h0"/>'
        spans += f'<span class="{classes}" title="{label}" data-points="{points}">{label} {points[-1][1]}</span> ' * bool(label)
    return (f'<figure><b>{title}</b><br>{spans}<svg viewBox="0 0 320 116">{drawn}<path class="mark"/>'
            f'</svg></figure>')


def curves(folders):
    """Draw the charts of one run or several. Runs that differ only in their seed also get
    a mean."""
    charts = {key: [] for key in CURVES}
    kinds = {}
    for folder in folders:
        settings = [{**each, "seed": 0, "out": "", "resume": False} for each in read(folder, "config.json")]
        kind = kinds.setdefault(json.dumps(settings, sort_keys=True), {})
        kind[folder] = rows = read(folder, "metrics.jsonl")
    for i, kind in enumerate(kinds.values()):
        label = shown(", ".join(run.name for run in kind)) if len(folders) > 1 else "training"
        for key, lines in charts.items():
            runs = [{row["step"]: row[key] for row in run
                     if row.get(key) is not None and math.isfinite(row[key])} for run in kind.values()]
            steps = sorted(set.intersection(*map(set, runs)))
            lines += [("", f"thin k{i % 3}", run) for run in runs] * (len(runs) > 1)
            lines.append((label, f"k{i % 3}", {step: mean(run[step] for run in runs) for step in steps}))
    for split, label, k in EVALUATIONS if len(folders) == 1 else ():
        tested = [row for row in rows if row.get("split") == split]
        for sign in (0, 1, -1):
            line = {row["step"]: row["eval/accuracy"] + sign * (row["eval/accuracy_se"] or 0) for row in tested}
            charts["accuracy"].append(("" if sign else label, f"thin {k}" if sign else k, line))
    last = max([1, *(step for lines in charts.values() for *_, line in lines for step in line)])
    figures = "".join(chart(CURVES[key], lines, last) for key, lines in charts.items())
    return CURVES_TEXT.format(last=last, figures=figures)


def evaluation(step, rows, hidden):
    """Show the watched groups at a step, a box for each token, and list the 20 tokens with
    the largest |w A| (1 - pi)."""
    groups = ""
    moves = []
    for problem, row in enumerate(rows, 1):
        items = ""
        for i, c in enumerate(row["completions"], 1):
            A = c["advantage"]
            boxes = []
            words = [shown(token, 100) or "∅" for token in c["tokens"]]
            for t, (word, pi, w, own) in enumerate(zip(words, c["pi"], c["w"], c["own"])):
                boxes.append(f"<b data-p={pi} data-w={w}>{word}</b>" if own else f"<b class=tool>{word}</b>")
                if own and A:
                    text = " ".join(words[max(0, t - 6):t]), word, " ".join(words[t + 1:t + 5])
                    numbers = (f"{number:.3g}" for number in (pi, w, A, w * A, w * A * (1 - pi)))
                    moves.append((w * abs(A) * (1 - pi), f"{problem}, {i}", *text, *numbers))
            boxes[300:max(300, len(boxes) - 300)] = ["[... cut ...]"] * (len(boxes) > 600)
            push = "▲ pushed up" if A > 0 else "▼ pushed down" if A < 0 else "not pushed"
            items += (f'<li data-a={A}>A = {A:.3g}, {push}; reward {c["reward"]:g}, {describe_grade(c)}'
                      f'<div class="text">{"".join(boxes)}</div>')
        equal = not any(c["advantage"] for c in row["completions"])
        groups += (f'<details{"" if equal else " open"}><summary class="text">{"Equal rewards: " * equal}'
                   f'{shown(row["question"])} {shown(row["answer"])}</summary><ol>{items}</ol></details>')
    table = HEAD + "".join("<tr><td>" + "<td>".join(cells) for _, *cells in sorted(moves, reverse=True)[:20])
    return f'<section data-step={step}{" hidden" * hidden}>{groups}<table>{table}</table></section>'


def tokens(folder, settings, rows):
    """Show the evaluations in tokens.jsonl. If there are many, show evenly spaced ones and
    the last."""
    steps = {}
    for row in read(folder, "tokens.jsonl"):
        steps.setdefault(row["step"], {})[row["question"]] = row
    if not steps:
        return ""
    every = (folder / "tokens.jsonl").stat().st_size // 1_200_000 + 1
    chosen = sorted({*sorted(steps)[::every], max(steps)})
    sections = "".join(evaluation(step, steps[step].values(), step != chosen[-1]) for step in chosen)
    unlikely, w = (mean([row[key] for row in rows if row.get(key) is not None] or [0])
                   for key in ("low_prob_frac", "weight_mean"))
    return TOKENS_TEXT.format(sections=sections, last=len(chosen) - 1, count=len(chosen), of=len(steps),
                              unlikely=unlikely, w=w, play=play(settings))


def play(settings):
    """Draw the controls of the weight, and the axes of w(pi). page.js does the rest."""
    run = {name: settings.get(key, default) for name, key, default in WEIGHT}
    scale = ticks(0, max(2, run["U"]))
    return PLAY_TEXT.format(run=shown(json.dumps(run)), top=scale[-1],
                            axes=axes(1, [0, 0.25, 0.5, 0.75, 1], scale))


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
        columns = "".join(f'<div class="text">Step {row["step"]}, {describe_grade(row)}:\n'
                          f'{shown(row["completion"], 350_000 // len(pairs))}</div>' for row in pair)
        kinds.setdefault(" → ".join(map(describe_grade, pair)), []).append(
            f'<p class="text">{shown(pair[0]["question"])}\nAnswer: {shown(pair[0]["answer"])}</p>'
            f'<div class="pair">{columns}</div><hr>')
    groups = "".join(f"<details><summary>{kind}: {len(each)}</summary>{''.join(each)}</details>"
                     for kind, each in sorted(kinds.items()))
    return f"<h2>Test problems, before → after</h2><p>{len(pairs)} of {len(both)}, greedy:</p>{groups}"


def write(*folders):
    """Write the page of one run or several, and return its path. Works for killed runs."""
    folder, *more = folders = [Path(folder).resolve() for folder in folders]
    path = (folder.parent if more else folder) / "report.html"
    body = curves(folders)
    if not more:
        rows = read(folder, "metrics.jsonl")
        settings = dict(*read(folder, "config.json"))
        body = summary(settings, rows) + body + tokens(folder, settings, rows) + transcripts(folder)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (STYLE, SCRIPT)]
    page = PAGE.format(*hashes, title=shown(path.parent.name), body=body, style=STYLE, script=SCRIPT)
    new = path.with_suffix(f".{os.getpid()}.new")  # processes may write it at the same time
    try:
        new.write_text(page, encoding="utf-8")
        return new.replace(path)  # so a reload during a run never shows half a page
    finally:
        new.unlink(missing_ok=True)  # left behind by a full disk


PAGE = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{title}</title><meta name="viewport"
content="width=device-width"><meta http-equiv="Content-Security-Policy" content="default-src 'none';
style-src 'sha256-{0}'; script-src 'sha256-{1}'; base-uri 'none'; form-action 'none'"><style>{style}</style>
<h1>{title}</h1>{body}<script>{script}</script></html>"""
CURVES_TEXT = """<h2>Curves</h2><p>Reward and accuracy should rise; equal rewards give no signal.
<span class="live" hidden>Point at a curve, or move this: <label>step
<input type="range" id="step" max="{last}" value="{last}"></label> <output id="at"></output></span></p>
<div id="charts">{figures}</div>"""
TOKENS_TEXT = """<h2 id="tokens">What the update does to each token</h2><p>A box is a token that the policy
sampled for a validation problem. GRPO gives every token of a completion its advantage A; GRPO-SG gives it
w&nbsp;A, with a larger w for likely tokens. Gray: written by a tool. In kk, KNK is knight, knave, knight.</p>
<p>In training {unlikely:.1%} of the tokens were unlikely (π &lt; 1/3), and the mean of w was {w:.3f}. If nearly
all tokens are likely, GRPO-SG is nearly GRPO with U times the loss: it differs only on the unlikely ones.</p>
<div class="live" hidden>{play}<p>Blue, with a line above: an update on this group would push the token up.
Orange, with a line below: down. Framed: unlikely.</p><p><label>Evaluation
<input type="range" id="evaluation" max="{last}" value="{last}"></label> <output id="when"></output> ({count}
of {of}) <label>Color by <select id="mode"><option>w A<option>w A (1 − π)<option>w A − A<option>w
<option>π</select></label> <label><input type="checkbox" id="low">only π &lt; 1/3</label></p></div>{sections}"""
PLAY_TEXT = """<p>Try other weights, w = clip(alpha (sigmoid(π / tau) − mu), L, U): a control changes w and the
color of every token below. The dashed curve is the run's own w. Each mark at the bottom is a token.</p>
<div id="play" class="pair" data-run="{run}"><div><label>shaping <select id="shaping"><option value="sg">sg:
GRPO-SG<option value="none">none: GRPO, w = 1<option value="ar">ar: AR-Lopti, w = 0.2 π + 0.8</select></label>
<label>alpha <input type="range" id="alpha" max="4" step="0.05"><output></output></label>
<label>tau <input type="range" id="tau" min="-3" max="3" step="0.25"><output></output></label>
<label>mu <input type="range" id="mu" max="1" step="0.01"><output></output></label>
<label>L <input type="range" id="L" max="2" step="0.05"><output></output></label>
<label>U <input type="range" id="U" max="2" step="0.05"><output></output></label>
<p><button type="button" id="reset">Reset to the run's settings</button></p><p><output id="counts"></output></p></div>
<div><b>w(π)</b><svg viewBox="0 0 320 116" id="graph" data-top="{top}">{axes}<path id="rug" class="axis"/>
<path id="own" class="k1"/><path id="now" class="k0"/></svg></div></div>"""
HEAD = """<caption>The 20 tokens that an update of the run moves most, by |w A| (1 − π): a gradient is about 1 − π
<tr><th>problem, completion<th>before<th>token<th>after<th>π<th>w<th>A (GRPO)<th>w A<th>w A (1 − π)"""
STYLE = """:root { color-scheme: light dark; --up: #2a86cc; --down: #d55e00; --level: #9370b8 }
body { font: 16px/1.45 system-ui; max-width: 75rem; margin: auto; padding: 1rem } figure { margin: 0 }
#charts, .pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem }
path { fill: none; stroke: var(--k) } .axis { stroke: GrayText; stroke-width: .3 } .mark { stroke: CanvasText }
.k0 { --k: var(--up) } .k1 { --k: var(--down); stroke-dasharray: 4 2 } .k2 { --k: var(--level) }
.thin { stroke-width: .4 } span { border-bottom: 2px solid var(--k) } .text, pre { white-space: pre-wrap }
svg text { font-size: 10px; fill: CanvasText; text-anchor: end } svg .under { text-anchor: middle }
figure span { display: inline-block } .dots { stroke-width: 5; stroke-linecap: round; stroke-dasharray: none }
#play label { display: grid; grid-template-columns: 4rem 1fr 3rem; gap: 1ex }
#play select { grid-column: 2 / 4; min-width: 0 } .text { overflow-wrap: anywhere }
table { display: block; overflow-x: auto; text-align: left } td { padding-right: 1ex }
li b { display: inline-block; max-width: 100%; font-weight: normal; margin: 1px; padding: 0 2px;
  border-block: 3px solid transparent; background: color-mix(in srgb, var(--tint) var(--size), Canvas) }
.up { --tint: var(--up); border-top-color: var(--up) } .level { --tint: var(--level) }
.down { --tint: var(--down); border-bottom-color: var(--down) } .tool { opacity: .65; font-style: italic }
li b:is(:hover, :focus) { outline: 3px solid var(--level) } :has(#low:checked) li b:not(.low) { opacity: .3 }
li [title]:is(:hover, :focus)::after { content: attr(title); position: fixed; inset: auto 0 0; padding: 1ex;
  background: Canvas } .low { outline: 2px solid }
"""
if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        sys.exit(print(__doc__))
    runs = [run for run in sys.argv[1:] if Path(run, "metrics.jsonl").is_file()]
    for other in sys.argv[1:]:
        if other not in runs:
            print(f"{other} is not a run, because it has no metrics.jsonl: left out", file=sys.stderr)
    if not runs:
        sys.exit("name the folders of runs, such as runs/NAME")
    try:
        print(write(*runs))
    except OSError as error:
        sys.exit(f"the page cannot be written: {error}")
