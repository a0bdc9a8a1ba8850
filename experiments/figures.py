"""Draw the two figures of the pages into figures/, as SVG with text as text. Needs matplotlib.

    python -m experiments.figures

group.svg samples one group with the tiny model, and method.svg plots the weight.
"""
import html
import re
import textwrap

import matplotlib
import matplotlib.pyplot as plt
import torch

import grpo_sg
from experiments.compare import RESULTS

FIGURES = RESULTS.parent / "figures"
BLUE, ORANGE, GREY = "#2166ac", "#d95f02", "#888888"
UP, DOWN = "#2a86cc", "#d55e00"


# ---- One group ----

WIDTH, LEFT, LINE = 860, 14, 19  # in pixels
LETTER = 7.6                     # width of a letter


def write_text(x, y, words, color="#222222", size=12.5, weight="normal"):
    """Return text as SVG, stretched to the same width in every font."""
    length = f' textLength="{len(words) * LETTER:.1f}"' if size == 12.5 else ""
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" xml:space="preserve" '
            f'font-weight="{weight}"{length}>{html.escape(words)}</text>')


def draw_completion(decode, c, pi, w, y):
    """Return (SVG of a completion from height y on, the height after it). pi and w: a number for
    each of its tokens."""
    grade = "correct" if c.solved else "wrong"
    color = UP if c.advantage > 0 else DOWN
    push = "up" if c.advantage > 0 else "down"
    parts = [write_text(LEFT, y, f"R = {c.reward:g}, {grade}: A = {c.advantage:+.2f}, each token "
                        f"is pushed {push}", color, weight="bold")]
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
    return "\n".join(parts), y + 2 * LINE


def choose(groups):
    """Return two correct and two wrong completions of the first group with three correct ones,
    which the lesson follows through its hour (lesson/by_hand.py)."""
    for group in groups:
        right = [c for c in group if c.solved]
        wrong = [c for c in group if not c.solved]
        if len(right) == 3:
            return right[:2] + wrong[:2]
    raise SystemExit("error: no group has three correct completions")


def draw_group():
    """Draw a puzzle, four of its completions, and the push on each token."""
    cfg = grpo_sg.read_settings(["--eval_problems", "200", "--train_problems", "100"])
    policy, task = grpo_sg.load(cfg)
    completions = grpo_sg.rollout(policy, task, task.valid[:20], cfg, n=cfg.group_size,
                                  temperature=cfg.temperature, seed=cfg.seed)
    grpo_sg.set_advantages(completions, cfg.group_size)
    chosen = choose(grpo_sg.split_groups(completions, cfg.group_size))
    parts, y = [], 24
    for line in textwrap.wrap(chosen[0].problem.question, int((WIDTH - 2 * LEFT) / LETTER)):
        parts.append(write_text(LEFT, y, line, weight="bold"))
        y += LINE
    y += 8
    for c in chosen:
        with torch.no_grad():
            batch = grpo_sg.make_batch([c], policy.model.device)
            logps = grpo_sg.compute_logps(policy.model, batch, cfg)[0, len(c.prompt):]
        pi, w = logps.exp().tolist(), grpo_sg.weigh(logps, cfg).tolist()
        text, y = draw_completion(policy.tokenizer.decode, c, pi, w, y)
        parts.append(text)
    note = ("Color: the push w A. Blue tokens are pushed up, and orange ones down. Low-probability "
            "tokens, with their probability π below them, are paler: w = 1, and up to 1.4 for the "
            "others.")
    for line in textwrap.wrap(note, 108):
        parts.append(write_text(LEFT, y, line, "#555555", 12))
        y += 16
    newline = "\n"
    (FIGURES / "group.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
        f'viewBox="0 0 {WIDTH} {y}" font-family="Menlo, Consolas, monospace">\n'
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>\n{newline.join(parts)}\n</svg>\n',
        encoding="utf-8")


# ---- Plots ----

def save(figure, name):
    """Save a plot as SVG, with a line of the file for each named group of it."""
    path = FIGURES / name
    figure.savefig(path, metadata={"Date": None})
    path.write_text(re.sub(r"\s*\n\s*(?!<g id|\s)", " ", path.read_text("utf-8")), "utf-8")


def draw_method():
    """Plot the weight and its motivation: low-probability tokens have the largest gradients."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
    pi = torch.linspace(1e-4, 1, 200)
    for shaping, color in (("sg", BLUE), ("ar", ORANGE)):
        left.plot(pi, grpo_sg.weigh(pi.log(), grpo_sg.Config(shaping=shaping)), color=color)
    left.axhline(1, color=GREY, lw=1)
    names = ("GRPO-SG", 1.42, BLUE), ("GRPO", 1.02, GREY), ("AR-Lopti", 0.88, ORANGE)
    for text, y, color in names:
        left.text(0.99, y, text, color=color, ha="right", va="bottom")
    left.set(xlabel="probability of the token, π", ylim=(0.75, 1.5),
             title="The weight w of a token")
    # Both papers have the bounds: AR-Lopti in Proposition 4.2, and GRPO-SG, by a review, in Theorem
    # 3.1. The norm is sqrt((1 - pi)^2 + sum of the other tokens' pi^2). It is at the upper bound if
    # one other token has the rest, and close to the lower one if very many tokens share it.
    right.fill_between([0, 1], [0, 1], [0, 2 ** 0.5], color=BLUE, alpha=0.3, lw=0)
    right.text(0.48, 0.8, "√2 (1 − π)", color=GREY, ha="right")
    right.text(0.6, 0.45, "1 − π", color=GREY)
    right.set(xlabel="1 − π", title="Norm of its gradient, d log π / d logits")
    save(figure, "method.svg")


def main():
    matplotlib.use("svg")
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "grpo-sg", "svg.fonttype": "none",
                         "axes.spines.top": False, "axes.spines.right": False,
                         "figure.constrained_layout.use": True})
    draw_group()
    draw_method()


if __name__ == "__main__":
    main()
