"""Write a run's page, report.html: its curves, transcripts, and the weight of each token.

    python -m support.page runs/NAME    also of a run that goes on, or was killed

The command samples some groups with the run's first and last model. For that it runs the task's
file that the run's settings name, so name your own runs. Controls on the page change the weight of
the tokens (page.js).

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
import operator
import re
import string
import sys
from pathlib import Path
from statistics import fmean as mean

import grpo_sg
import torch

HERE = Path(__file__).parent
# column of metrics.jsonl -> its title, and what a healthy and an unhealthy curve look like
CURVES = {
    "reward": ("Reward", "It should rise. If accuracy falls meanwhile, it is reward hacking."),
    "accuracy": ("Accuracy", "Training and test should rise; two validations may differ by chance "
                 "(with 200 problems the standard error is about 0.03). If only training rises, "
                 "the policy memorizes its problems."),
    "format_rate": ("Completions in the correct format", "It should be near 1, or rise there before "
                    "accuracy does. If it stays near 0, show the format by an example in --system."),
    "entropy": ("Entropy, nats per token", "It should change slowly. If it is near 0 while accuracy "
                "is low, exploration has ended (entropy collapse)."),
    "equal_groups": ("Zero-variance groups", "All their rewards are equal, so they give no gradient. "
                     "A rise is normal. If it is near 1 from the start, nothing is learned."),
    "grad_norm": ("Gradient norm before clipping", "Single peaks are normal. If it keeps growing, "
                  "lower --lr."),
    "kl": ("KL", "It should stay small, except in single steps. If it keeps growing, updates leave "
           "the trust region: lower --lr."),
    "clip_frac": ("Clip fraction", "A few percent are normal, and 0 with --updates 1. If it keeps "
                  "growing, updates are too large: lower --lr."),
    "completion_tokens": ("Completion length, tokens", "It should change slowly. If it grows to "
                          "--max_new_tokens, completions no longer end."),
    "truncated": ("Truncated", "It should be near 0. If not, raise --max_new_tokens, or look for "
                  "completions that repeat themselves.")}
MOST_POINTS = 500   # of a curve
MOST_TOKENS = 600   # of a completion
GROUPS, TRIED = 3, 8  # groups shown, of the first validation problems


# ---- A run's files ----

def read(folder, name, wanted=""):
    """Read the rows of a JSON-lines file that contain `wanted` and have a step. A killed run may
    leave half a line, or no file."""
    rows = []
    if (path := folder / name).exists():
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with contextlib.suppress(ValueError):
                rows += [json.loads(line)] if wanted in line else []
    return [row for row in rows if isinstance(row, dict) and type(row.get("step")) is int]


# ---- Text ----

def shown(value, limit=4000):
    """Return any value as harmless HTML, cut to the limit, with unprintable characters as
    code points. Of a chat, each turn begins with its role."""
    text = str(value)
    if isinstance(value, list) and all(isinstance(turn, dict) for turn in value):
        text = "\n".join(f"{turn['role']}: {turn['content']}" for turn in value)
    if len(text) > limit:
        text = f"{text[:limit // 2]} [... cut ...] {text[-(limit // 2):]}"
    printable = [c if c.isprintable() or c == "\n" else f"⟨U+{ord(c):04X}⟩" for c in text]
    return html.escape("".join(printable))


def describe_grade(row):
    if row["truncated"]:
        return "truncated"
    if not row["formatted"]:
        return "malformed"
    return "correct" if row["correct"] else "wrong"


def summary(settings, rows):
    """Describe the run in a sentence or two, and list its settings."""
    task, model, shaping, steps = map(settings.get, ("task", "model", "shaping", "steps"))
    seconds = [row["seconds"] for row in rows if "reward" in row]
    text = (f"Task {task}, model {model}, shaping {shaping}: {len(seconds)} of {steps} steps, "
            f"{sum(seconds):.0f} s.")
    sampled = f"avg@{settings.get('eval_samples')}"
    for name, key in ((sampled, f"eval/{sampled}"), ("greedy accuracy", "eval/accuracy")):
        tests = [f"{row[key]:.3f} ± {row[f'{key}_se'] or 0:.3f}"
                 for row in rows if row.get("split") == "test" and key in row]
        text += f" Test, {name}, ± standard error: {' → '.join(tests)}." if tests else ""
    if skipped := {row["step"]: row["skipped"] for row in rows if row.get("skipped")}:
        text += (f"\nSkipped updates: {sum(skipped.values())}, because their gradients were not "
                 f"finite (first in step {min(skipped)}, last in step {max(skipped)}). If more "
                 "follow, lower --lr.")
    return (f'<p class="text">{shown(text)}</p><details><summary>All settings</summary><pre>'
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


def chart(title, advice, lines, last):
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
        label = shown(label)
        labels += (f'<span class="{color}" title="{label}" data-points="{points}">'
                   f'{label} {points[-1][1]}</span> ')
    advice = re.sub(r"--\w+", r"<code>\g<0></code>", advice)
    return (f'<figure><div><b>{title}</b><br>{labels}</div><svg viewBox="0 0 320 116">{drawn}'
            '<path class="mark"/></svg>'
            f'<p class="advice">{advice}</p></figure>')


def curve(rows, key):
    """Return {step: value} of a column where it is a finite number."""
    return {row["step"]: row[key] for row in rows
            if row.get(key) is not None and math.isfinite(row[key])}


def curves(rows, samples):
    """Draw the charts of a run. samples: the k of its avg@k. Returns (figures, the last step)."""
    charts = {key: [("training", "k0", curve(rows, key))] for key in CURVES}
    for split, label, color, key in (
            ("valid", "validation, greedy", "k1", "eval/accuracy"),
            ("test", "test, greedy", "k2", "eval/accuracy"),
            ("test", f"test, avg@{samples}", "k3", f"eval/avg@{samples}")):
        evaluations = [row for row in rows if row.get("split") == split]
        charts["accuracy"].append((label, color, curve(evaluations, key)))
    charts = {key: [line for line in lines if line[2]] for key, lines in charts.items()}
    last = max([1, *(step for lines in charts.values() for *_, line in lines for step in line)])
    return "".join(chart(*CURVES[key], lines, last) for key, lines in charts.items()), last


# ---- Transcripts ----

def transcripts(folder):
    """Show greedy completions of at most 200 test problems, before and after training side by
    side, grouped by their grades."""
    tests = {}
    for row in read(folder, "samples.jsonl", wanted='"split": "test"'):
        tests.setdefault(row["step"], []).append(row)
    both = list(zip(*(tests[step] for step in sorted(tests))))
    pairs = both[::len(both) // 201 + 1]
    kinds = {}
    for pair in pairs:
        columns = ""
        for row in pair:
            columns += (f'<div class="text">Step {shown(row["step"])}, {describe_grade(row)}:\n'
                        f'{shown(row["completion"], 350_000 // len(pairs))}</div>')
        kinds.setdefault(" → ".join(map(describe_grade, pair)), []).append(
            f'<p class="text">{shown(pair[0]["question"])}\nAnswer: {shown(pair[0]["answer"])}</p>'
            f'<div class="pair">{columns}</div><hr>')
    groups = "".join(f"<details><summary>{kind}: {len(texts)}</summary>{''.join(texts)}</details>"
                     for kind, texts in sorted(kinds.items()))
    return (f"<h2>Test problems, before → after</h2><p>{len(pairs)} of {len(both)}, greedy:</p>"
            f"{groups}")


# ---- Tokens: what an update does to each ----

@torch.no_grad()
def watch(policy, task, cfg):
    """Sample groups for the first validation problems, and choose GROUPS of them, those with
    unequal rewards first. Returns for each a list of (completion, pi, w), with the highest
    advantage first: pi and w have a number for each token (a tool's tokens have pi = 1)."""
    completions = grpo_sg.rollout(policy, task, task.valid[:TRIED], cfg, n=cfg.group_size,
                                  temperature=cfg.temperature, seed=cfg.seed)
    grpo_sg.set_advantages(completions, cfg.group_size)
    equal = grpo_sg.find_equal_groups(completions, cfg.group_size)
    groups = grpo_sg.split_groups(completions, cfg.group_size)
    unequal_first = sorted(range(len(groups)), key=equal.__getitem__)
    watched = []
    for i in unequal_first[:GROUPS]:
        for c in sorted(groups[i], key=operator.attrgetter("advantage"), reverse=True):
            batch = grpo_sg.make_batch([c], policy.model.device)
            logps = grpo_sg.compute_logps(policy.model, batch, cfg)[0, len(c.prompt):]
            w = grpo_sg.weigh(logps, cfg)
            w = torch.ones_like(logps) if w is None else w
            watched.append((c, logps.exp().tolist(), w.tolist()))
    return grpo_sg.split_groups(watched, cfg.group_size)


def show_completion(tokenizer, c, pi, w):
    """Write a completion as a list item with a box for each token."""
    boxes = []
    for t, token in enumerate(c.tokens):
        word = shown(tokenizer.decode([token]), 100) or "∅"
        kind = f"data-p={pi[t]:.4g} data-w={w[t]:.4g}" if c.mask[t] else "class=tool"
        boxes.append(f"<b {kind}>{word}</b>")
    if len(boxes) > MOST_TOKENS:
        boxes[MOST_TOKENS // 2:-MOST_TOKENS // 2] = ["[... cut ...]"]
    A = c.advantage
    push = "▲ pushed up" if A > 0 else "▼ pushed down" if A < 0 else "not pushed"
    grade = describe_grade(vars(c))
    return (f'<li data-a={A}>A = {A:.3g}, {push}; reward {c.reward:g}, {grade}'
            f'<div class="text">{"".join(boxes)}</div>')


def show_groups(tokenizer, groups):
    """Write groups that `watch` returns, those with unequal rewards unfolded."""
    written = ""
    for group in groups:
        problem = group[0][0].problem
        items = "".join(show_completion(tokenizer, *watched) for watched in group)
        equal = not any(c.advantage for c, *_ in group)
        written += (f'<details{"" if equal else " open"}><summary class="text">'
                    f'{"Zero-variance group: " if equal else ""}{shown(problem.question)}\n'
                    f'Answer: {shown(problem.answer)}</summary><ol>{items}</ol></details>')
    return written


def fill(sections, cfg, rows):
    """Fill the page's part about tokens. sections: a model's name -> its groups; rows: those of
    metrics.jsonl."""
    run = {"shaping": cfg.shaping, "alpha": cfg.alpha, "tau": cfg.tau, "mu": cfg.mu, "L": cfg.low,
           "U": cfg.high}
    scale = ticks(0, max(2, run["U"]))
    options = written = ""
    for i, (name, groups) in enumerate(sections.items()):
        options += f"<option value={i}>{name}"
        written += f'<section{" hidden" if i else ""}>{groups}</section>'
    low, w = (mean([*curve(rows, key).values()] or [0]) for key in ("low_prob_frac", "weight_mean"))
    return read_template()[1].substitute(
        low=f"{low:.1%}", w=f"{w:.3f}", run=shown(json.dumps(run)), top=scale[-1],
        axes=axes(1, [0, 0.25, 0.5, 0.75, 1], scale), options=options, sections=written)


def view(folder):
    """Sample with the first and the last model of the run in `folder`, on the CPU, and return the
    groups as HTML."""
    # The page shows validation problems, so most training problems need not be generated.
    # A run may need all memory of the GPU, so the page samples on the CPU.
    saved = grpo_sg.read_saved(folder) | {"train_problems": GROUPS, "device": "cpu"}
    cfg = grpo_sg.Config(**saved)
    policy, task = grpo_sg.load(cfg)
    sections = {"before training": show_groups(policy.tokenizer, watch(policy, task, cfg))}
    if grpo_sg.list_checkpoints(folder):
        policy.model = grpo_sg.prepare(grpo_sg.load_model(grpo_sg.newest(folder))[0], "cpu")
        sections["after training"] = show_groups(policy.tokenizer, watch(policy, task, cfg))
    return fill(sections, cfg, read(folder, "metrics.jsonl"))


# ---- The page ----

def read_template():
    """Return page.html in three parts: before the tokens, about them, and after them."""
    parts = (HERE / "page.html").read_text(encoding="utf-8").split("<!-- tokens -->\n")
    return [string.Template(part) for part in parts]


def hash_of(text):
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write(folder, tokens=""):
    """Write the page of a run, and return its path. tokens: HTML from `view`."""
    settings, rows = grpo_sg.read_saved(folder), read(folder, "metrics.jsonl")
    figures, last = curves(rows, settings.get("eval_samples"))
    before, _, after = read_template()
    style = re.search("<style>(.*)</style>", before.template, re.S)[1]
    script = (HERE / "page.js").read_text(encoding="utf-8")
    page = before.substitute(
        title=shown(folder.name), style_hash=hash_of(style), script_hash=hash_of(script),
        summary=summary(settings, rows), figures=figures, last=last)
    page += tokens + after.substitute(transcripts=transcripts(folder), script=script)
    path = folder / "report.html"
    path.unlink(missing_ok=True)  # or, if it were a link, another file would be overwritten
    path.write_text(page, encoding="utf-8")
    return path


def main():
    parser = argparse.ArgumentParser(
        prog="python -m support.page", description=__doc__.split("\n")[0])
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    folder = Path(parser.parse_args().run).resolve()
    if not (folder / "metrics.jsonl").is_file():
        sys.exit(f"error: {folder} is not a run, because it has no metrics.jsonl")
    with grpo_sg.errors_in_one_line(OSError):
        print(write(folder))  # while the tokens are sampled, there is a page already
    print("sampling on the CPU, which takes long with a large model: Ctrl-C leaves the tokens out")
    try:
        write(folder, view(folder))
    # The model or the data may be gone, too large for this computer, or be replaced meanwhile.
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        print(f"the page shows no tokens: {error!r:.300}", file=sys.stderr)


if __name__ == "__main__":
    main()
