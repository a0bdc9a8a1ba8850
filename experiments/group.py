"""Draw one group of the first command: a puzzle, four completions, and what training does to each
token. Writes figures/group.svg.

    python -m experiments.group
"""
import html
import textwrap

import torch

import grpo_sg
from experiments.analysis import RESULTS
from support import page

WIDTH, LEFT, LINE = 860, 14, 19
LETTER = 7.6       # width of a letter of the text, in pixels
SHOWN = 4          # completions: two correct ones, and two others
UP, DOWN = "#2a7f3e", "#c0392b"


def write_text(x, y, words, color="#222222", size=12.5, weight="normal"):
    """Return text as SVG, stretched to the same width in every font."""
    length = f' textLength="{len(words) * LETTER:.1f}"' if size == 12.5 else ""
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" xml:space="preserve" '
            f'font-weight="{weight}"{length}>{html.escape(words)}</text>')


def draw_completion(decode, c, pi, w, y):
    """Return (SVG of one completion from height y on, the height after it)."""
    grade = "correct" if c.solved else "wrong"
    color = UP if c.advantage > 0 else DOWN
    push = "made more likely" if c.advantage > 0 else "made less likely"
    parts = [write_text(LEFT, y, f"R = {c.reward:g}, {grade}: A = {c.advantage:+.2f}, each token "
                        f"is {push}", color, weight="bold")]
    x, y = LEFT, y + LINE
    for t, token in enumerate(c.tokens[:-1]):  # without the stop token
        word = decode([token])
        width = len(word) * LETTER
        if x + width > WIDTH - LEFT:
            x, y, word = LEFT, y + LINE + 11, word.lstrip()
            width = len(word) * LETTER
        opacity = min(1.0, abs(w[t] * c.advantage) / 3)
        parts.append(f'<rect x="{x:.1f}" y="{y - 13}" width="{width:.1f}" height="17" '
                     f'fill="{color}" fill-opacity="{opacity:.2f}"/>')
        parts.append(write_text(x, y, word))
        if pi[t] < 1/3:
            parts.append(write_text(x + LETTER, y + 13, f"π {pi[t]:.2f}", "#555555", 9))
        x += width
    return "".join(parts), y + 2 * LINE


def choose(groups):
    """Return four completions, two of them correct, of the first group that has them, best
    first."""
    for group in groups:
        right = [watched for watched in group if watched[0].solved]
        wrong = [watched for watched in group if not watched[0].solved]
        if min(len(right), len(wrong)) >= SHOWN // 2:
            return right[:SHOWN // 2] + wrong[:SHOWN // 2]
    raise SystemExit("error: no group has two correct and two wrong completions")


def main():
    cfg = grpo_sg.read_settings(["--eval_problems", "200", "--train_problems", "100"])
    policy, task = grpo_sg.load(cfg)
    page.GROUPS = page.TRIED = 20
    with torch.no_grad():
        chosen = choose(page.watch(policy, task, cfg))
    question = chosen[0][0].problem.question
    y = 24
    parts = []
    for line in textwrap.wrap(question, int((WIDTH - 2 * LEFT) / LETTER)):
        parts.append(write_text(LEFT, y, line, weight="bold"))
        y += LINE
    y += 8
    for c, pi, w in chosen:
        text, y = draw_completion(policy.tokenizer.decode, c, pi, w, y)
        parts.append(text)
    note = ("Color: w A. Green tokens become more likely, red ones less. Unlikely tokens, with "
            "their probability π below them, are paler: w = 1, and up to 1.4 for the others.")
    for line in textwrap.wrap(note, 108):
        parts.append(write_text(LEFT, y, line, "#555555", 12))
        y += 16
    svg = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
           f'viewBox="0 0 {WIDTH} {y}" font-family="Menlo, Consolas, monospace">'
           f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>{"".join(parts)}</svg>\n')
    path = RESULTS.parent / "figures" / "group.svg"
    path.write_text(svg, encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
