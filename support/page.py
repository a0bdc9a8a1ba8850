"""A page for every run: its curves, what the update does to each token, transcripts before and after.

    python -m support.page runs/NAME            writes runs/NAME/report.html, for a run that was killed too
    python -m support.page runs/A runs/B ...    lays curves over each other, in runs/report.html

A page is one file that loads nothing. Completions can hold any character: all text goes through `shown`, and
the policy in the page's head allows nothing but its own style and script, which only choose and colour.
"""
import base64
import contextlib
import hashlib
import html
import json
import os
import sys
from statistics import fmean as mean

CURVES = {  # a key of metrics.jsonl: its title, what it is
    "reward": ("Reward", "mean over the completions of a step"),
    "accuracy": ("Accuracy", "sampled in training; greedy in evaluations, ± standard error"),
    "grad_norm": ("Gradient norm", "before clipping, the largest of a step"),
    "entropy": ("Entropy", "in nats a token; at 0 nothing new is tried"),
    "kl": ("KL", "to the sampling policy, or to the reference if beta > 0"),
    "clip_frac": ("Clip fraction", "share of tokens that the clip holds back"),
    "completion_tokens": ("Completion length", "tokens that the policy wrote"),
    "truncated": ("Truncated", "share of completions that were cut off"),
    "equal_groups": ("Equal groups", "share of groups with equal rewards: A = 0, no signal")}
VERDICTS = "right", "wrong", "badly formed", "truncated"


def read(folder, name, wanted=""):
    """The rows of a file of JSON lines that contain `wanted`. A killed run may leave half a line, or no file."""
    rows = []
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, name), errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                rows += [json.loads(line, parse_constant=lambda nan: None)] if wanted in line else []
    return rows


def evenly(items, count):
    """At most `count` of the items, evenly spaced, with the first and the last."""
    chosen = {round(i * (len(items) - 1) / (count - 1)) for i in range(count)}
    return [item for i, item in enumerate(items) if i in chosen]


def shown(value, limit=4000):
    """Any value as harmless HTML: cut to size, a character without a glyph of its own as its code point."""
    text = str(value)
    if len(text) > limit:
        text = f"{text[:limit // 2]} [... {len(text) - limit:,} characters ...] {text[-(limit // 2):]}"
    return html.escape("".join(c if c.isprintable() or c == "\n" else f"⟨U+{ord(c):04X}⟩" for c in text))


def verdict(row):
    return VERDICTS[3 if row["truncated"] else 2 if not row["formatted"] else 0 if row["correct"] else 1]


def summary(settings, rows):
    steps, tests = ([row for row in rows if key in row] for key in ("reward", "eval/pass@1"))
    words = (f"Task {settings.get('task')}, {settings.get('model') or 'tiny model'}, shaping "
             f"{settings.get('shaping')}: {len(steps)} of {settings.get('steps')} steps, "
             f"{sum(row['seconds'] for row in steps):.0f} s. Test accuracy before → after")
    for key, name in (("eval/accuracy", ", greedy: "), ("eval/pass@1", "; sampled: ")):
        words += name + " → ".join(f"{row[key]:.3f} ± {row[f'{key}_se']:.3f}" for row in tests)
    return (f"<p>{shown(words)}</p><details><summary>All settings</summary><pre>"
            f"{shown(json.dumps(settings, indent=1))}</pre></details>")


def chart(title, hint, lines, last):
    """A figure. lines: [(label, CSS classes, {step: value})]; those with a label can be read at a step."""
    values = [0, *(y for *_, line in lines for y in line.values())]
    low, high = min(values), max(values) or 1

    def path(line):
        points = (f"{40 + 272 * x / last:.1f} {100 - 88 * (y - low) / (high - low):.1f}" for x, y in line)
        return f'd="M{"L".join(points) or "0 0"}"'
    drawn = "".join(f'<path class="axis" {path([(0, y), (last, y)])}/>' for y in (low, 0, high))
    for label, classes, line in lines:
        points = evenly([(x, float(f"{y:.4g}")) for x, y in line.items()], 500)
        data = f'data-label="{shown(label)}" data-points="{json.dumps(points)}"' if label and line else ""
        drawn += f'<path class="{classes}" {path(points)} {data}/>'
    return (f'<figure><b>{title}</b> <output></output><br><small>{hint}</small><svg viewBox="0 0 320 116" '
            f'role="img" aria-label="{title}">{drawn}<path class="mark"/><text x="36" y="14">{high:.3g}</text>'
            f'<text x="36" y="104">{low:.3g}</text><text x="312" y="114">{last}</text></svg></figure>')


def curves(folders):
    """The charts of a run; or of several, with the mean of those that differ in nothing but the seed."""
    kinds = {}
    for folder in folders:
        settings = [{**each, "seed": 0, "out": ""} for each in read(folder, "config.json")]
        kind = kinds.setdefault(json.dumps(settings, sort_keys=True), {})
        kind[os.path.basename(os.path.abspath(folder))] = read(folder, "metrics.jsonl")
    rows = [row for kind in kinds.values() for run in kind.values() for row in run]
    charts, last = {key: [] for key in CURVES}, max([1, *(row["step"] for row in rows)])
    for key, lines in charts.items():
        for i, kind in enumerate(kinds.values()):
            runs = [{row["step"]: row[key] for row in run if row.get(key) is not None} for run in kind.values()]
            lines += [("", f"thin k{i % 4}", run) for run in runs] * (len(runs) > 1)
            lines.append((", ".join(kind) if len(folders) > 1 else "training", f"k{i % 4}", {
                step: mean(run[step] for run in runs) for step in sorted(set.intersection(*map(set, runs)))}))
    for split, color in (("valid", "k1"), ("test", "k2")) * (len(folders) == 1):
        for sign, label, classes in ((0, split, color), (1, "", f"thin {color}"), (-1, "", f"thin {color}")):
            charts["accuracy"].append((label, classes, {
                row["step"]: row["eval/accuracy"] + sign * row["eval/accuracy_se"]
                for row in rows if row.get("split") == split}))
    return CURVES_TEXT.format(last=last, charts="".join(
        chart(*CURVES[key], lines, last) for key, lines in charts.items()))


def evaluation(step, rows, hidden):
    """The watched groups at a step, a box a token, and the 20 tokens with the largest |w A| (1 - pi)."""
    groups, moves = "", []
    for problem, row in enumerate(rows, 1):
        items = ""
        for i, c in enumerate(row["completions"], 1):
            A, boxes, words = c["advantage"], [], [shown(token, 100) or "∅" for token in c["tokens"]]
            for t, (word, pi, w, own) in enumerate(zip(words, c["pi"], c["w"], c["own"])):
                facts = f'data-p={pi} data-w={w}{" class=low" * (pi < 1 / 3)}' if own else "class=tool"
                boxes.append(f"<b {facts}>{word}</b>")
                if own and A:
                    before, after = " ".join(words[max(0, t - 6):t]), " ".join(words[t + 1:t + 5])
                    numbers = f"{pi:.4f}", f"{w:.2f}", f"{A:+.2f}", f"{w * A:+.2f}", f"{w * A * (1 - pi):+.3f}"
                    moves.append((w * abs(A) * (1 - pi), f"{problem}, {i}", before, word, after, *numbers))
            if len(boxes) > 600:
                boxes[300:-300] = [f"[... {len(boxes) - 600:,} tokens ...]"]
            push = "▲ pushed up" if A > 0 else "▼ pushed down" if A < 0 else "not pushed"
            items += (f'<li data-a={A}>A = {A:+.2f}, {push}; reward {c["reward"]:g}, {verdict(c)}'
                      f'<div class="text">{"".join(boxes)}</div>')
        groups += (f'<details{" open" * any(c["advantage"] for c in row["completions"])}><summary class="text">'
                   f'{shown(row["question"])} {shown(row["answer"])}</summary><ol>{items}</ol></details>')
    table = "".join("<tr><td>" + "<td>".join(cells) for _, *cells in sorted(moves, reverse=True)[:20])
    return f'<section data-step={step}{" hidden" * hidden}>{groups}<table>{HEAD}{table}</table></section>'


def tokens(folder, settings, rows):
    """The evaluations in tokens.jsonl, or as many as fit."""
    steps = {}
    for row in read(folder, "tokens.jsonl"):
        steps.setdefault(row["step"], {})[row["question"]] = row
    size = sum(len(c["tokens"]) for each in steps.values() for row in each.values() for c in row["completions"])
    chosen = evenly(sorted(steps), max(2, 40_000 * len(steps) // (size or 1)))
    sections = "".join(evaluation(step, steps[step].values(), step != chosen[-1]) for step in chosen)
    unlikely, w = (mean([row[key] for row in rows if row.get(key) is not None] or [0])
                   for key in ("low_prob_frac", "weight_mean"))
    knk = KNK if settings.get("task") == "kk" and not settings.get("model") else ""
    return TOKENS_TEXT.format(sections=sections, last=len(chosen) - 1, count=len(chosen), of=len(steps),
                              unlikely=unlikely, w=w, knk=knk) if steps else ""


def transcripts(folder):
    """Greedy completions of at most 200 test problems, before training beside after."""
    tests, articles = {}, ""
    for row in read(folder, "samples.jsonl", wanted='"split": "test"'):
        tests.setdefault(row["step"], []).append(row)
    pairs = evenly(list(zip(*[tests[step] for step in sorted({*tests})][::max(1, len(tests) - 1)])), 200)
    for pair in pairs:
        tags = f"f{VERDICTS.index(verdict(pair[-1]))}{' f4' * (verdict(pair[0]) != verdict(pair[-1]))}"
        columns = "".join(f'<div class="text">Step {row["step"]}: {verdict(row)}\n'
                          f'{shown(row["completion"], 350_000 // len(pairs))}</div>' for row in pair)
        articles += (f'<article class="{tags}"><p class="text">{shown(pair[0]["question"])}\nAnswer: '
                     f'{shown(pair[0]["answer"])}</p><div class="pair">{columns}</div></article>')
    return TESTS_TEXT.format(articles=articles, count=len(pairs))


def write(*folders):
    """Write the page of a run, or of several, and return its path. A run that was cut off is no reason to raise."""
    folder = os.path.abspath(folders[0])
    body = curves(folders)
    if len(folders) == 1:
        rows, settings = read(folder, "metrics.jsonl"), (read(folder, "config.json") or [{}])[0]
        body = summary(settings, rows) + body + tokens(folder, settings, rows) + transcripts(folder)
    path = os.path.join(folder if len(folders) == 1 else os.path.dirname(folder), "report.html")
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (STYLE, SCRIPT)]
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        title = shown(os.path.basename(os.path.dirname(path)))
        file.write(PAGE.format(*hashes, title=title, body=body, style=STYLE, script=SCRIPT))
    os.replace(f"{path}.new", path)  # who reloads while a run goes on never sees half a page
    return path


PAGE = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content=
"default-src 'none'; style-src 'sha256-{0}'; script-src 'sha256-{1}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width"><title>{title}</title><style>{style}</style>
<h1>{title}</h1>{body}<script>{script}</script></html>"""
CURVES_TEXT = """<h2>Curves</h2><p>Point at a curve, or move the slider, to read a step. <label>Step <input id="step"
type="range" max="{last}" value="{last}"></label> <output id="at"></output></p><div class="charts">{charts}</div>"""
TOKENS_TEXT = """<h2 id="tokens">What the update does to each token</h2><p>A box is a token that the policy sampled for
a validation problem, which is never trained on. GRPO gives all tokens of a completion the advantage A; GRPO-SG gives
each w A, with a larger w for likely tokens. <b class="up">Blue, line above</b>: a first update on this group would push
the token up; <b class="down">red, line below</b>: down; the stronger, the further. A frame marks unlikely tokens
(π &lt; 1/3), the slips and the finds. Grey: not the policy's own, not trained on. {knk}</p><p>In training {unlikely:.1%}
of the tokens were unlikely, and w was {w:.3f} in the mean. Where nearly every token is likely, GRPO-SG is nearly GRPO
times 1.4, and differs in the few unlikely ones alone. Where all rewards of a group are equal, A = 0: it is folded.</p>
<p><label>Evaluation <input type="range" id="evaluation" max="{last}" value="{last}"></label> <output id="when"></output>
({count} of {of}) <label>Colour by <select id="mode"><option value="wA">w A, the push<option value="pull">w A (1 − π),
its effect<option value="more">w A − A, SG less GRPO<option>w<option value="pi">π</select></label>
<label><input type="checkbox" id="low">only π &lt; 1/3</label></p><div>{sections}<output id="facts"></output></div>"""
KNK = "KNK is knight, knave, knight, in the order of the names: what the claims so far allow."
HEAD = """<caption>The 20 tokens that this update moves most, by |w A| (1 − π): a gradient is about 1 − π in size
<tr><th>problem, completion<th>before<th>token<th>after<th>π<th>w<th>A (GRPO)<th>w A<th>w A (1 − π)"""
TESTS_TEXT = """<h2>Test problems, before and after</h2><p>Greedy completions of {count} test problems. After training:
<label><input type="radio" name="f" checked>all</label> <label><input type="radio" name="f" id="f0">right</label>
<label><input type="radio" name="f" id="f1">wrong</label> <label><input type="radio" name="f" id="f2">badly formed</label>
<label><input type="radio" name="f" id="f3">truncated</label> <label><input type="radio" name="f" id="f4">changed</label>
</p>{articles}"""
STYLE = """
:root { color-scheme: light dark; --up: #2a86cc; --down: #d55e00; --level: #9370b8; --k: var(--up) }
body { font: 16px/1.45 system-ui; max-width: 75rem; margin: auto; padding: 1rem }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(18rem, 1fr)); gap: 1rem } figure { margin: 0 }
path { fill: none; stroke: var(--k) } .axis { stroke: GrayText } .mark { stroke: CanvasText; stroke-dasharray: 2 }
.thin { stroke-width: .4 } .k1 { --k: var(--down) } .k2 { --k: #009e73 } .k3 { --k: var(--level) }
.k1, .k3 { stroke-dasharray: 5 2 } svg text { font-size: 10px; fill: CanvasText; text-anchor: end }
table { display: block; overflow-x: auto } th, td { text-align: left; vertical-align: top; padding-right: .5rem }
.text, pre { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate } article { border-top: 1px solid }
li b { display: inline-block; max-width: 100%; font-weight: normal; padding: 0 3px; border-block: 3px solid transparent;
  background: color-mix(in srgb, var(--tint) var(--size), Canvas) } .up { --tint: var(--up); border-top-color: var(--up) }
.down { --tint: var(--down); border-bottom-color: var(--down) } .level { --tint: var(--level) } .low { outline: 2px solid }
body:has(#low:checked) li b:not([class~=low]) { opacity: .3 } .tool { color: GrayText; font-style: italic }
li b:is(:hover, :focus) { outline: 3px solid var(--level) }
#facts { position: sticky; bottom: 0; display: block; padding: .5rem; background: Canvas; border-top: 1px solid }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem }
""" + "".join(f"body:has(#f{i}:checked) article:not(.f{i}) {{ display: none }}\n" for i in range(5))
SCRIPT = """
const id = name => document.getElementById(name), all = what => [...document.querySelectorAll(what)];
function readStep() {
  id("at").textContent = id("step").value;
  for (const figure of all("figure")) {
    figure.querySelector(".mark").setAttribute("d", `M${40 + 272 * id("step").value / id("step").max} 12V100`);
    figure.querySelector("output").textContent = [...figure.querySelectorAll("[data-points]")].map(line => {
      const away = point => Math.abs(point[0] - id("step").value);
      const [step, value] = JSON.parse(line.dataset.points).reduce((a, b) => away(b) < away(a) ? b : a);
      return `${line.dataset.label} ${value}` + (away([step]) ? ` (step ${step})` : "");
    }).join(", ");
  }
}
for (const svg of all("svg")) svg.onpointermove = event => {
  id("step").value = (320 * event.offsetX / svg.clientWidth - 40) / 272 * id("step").max;
  readStep();
};
id("step").oninput = readStep;
readStep();

function values(box) {
  const pi = +box.dataset.p, w = +box.dataset.w, A = +box.closest("li").dataset.a;
  return {pi, w, A, wA: w * A, more: w * A - A, pull: w * A * (1 - pi)};
}
function colour() {
  all("section").forEach((section, i) => section.hidden = i != id("evaluation").value);
  id("when").textContent = "step " + all("section:not([hidden])")[0].dataset.step;
  const boxes = all("section:not([hidden]) [data-p]"), each = boxes.map(values), mode = id("mode").value;
  const highest = Math.max(...each.map(v => v.w)), level = {pi: v => 1 - v.pi, w: v => highest - v.w}[mode];
  const sizes = each.map(level || (v => v[mode])), most = Math.max(...sizes.map(Math.abs)) || 1;
  boxes.forEach((box, i) => {
    const push = level ? "level" : sizes[i] > 0 ? "up" : sizes[i] < 0 ? "down" : "";
    box.className = push + (each[i].pi < 1 / 3 ? " low" : "");
    box.style.setProperty("--size", 70 * Math.abs(sizes[i]) / most + "%");
    box.tabIndex = 0;
  });
}
function tell(event) {
  const box = event.target.closest("li b"), v = box && values(box);
  if (box) id("facts").textContent = box.textContent + (box.dataset.p
    ? `   π = ${v.pi}, w = ${v.w}, w A = ${v.wA.toPrecision(3)}; GRPO gives A = ${v.A}` : "   not the policy's own");
}
if (id("evaluation")) {
  for (const name of ["evaluation", "mode", "low"]) id(name).oninput = colour;
  for (const name of ["pointerover", "focusin"]) document.addEventListener(name, tell);
  colour();
}
"""
if __name__ == "__main__":
    if not sys.argv[1:] or not all(os.path.isfile(os.path.join(run, "metrics.jsonl")) for run in sys.argv[1:]):
        sys.exit("name the folders of runs, such as runs/NAME: each has a metrics.jsonl")
    print(write(*sys.argv[1:]))
