"""Show what an update does to each token: groups of completions, which are sampled here with a
run's first and last model, and controls that change the weight (page.js moves them)."""
import itertools
import json
from pathlib import Path
from statistics import fmean as mean

import grpo_sg
import torch

from support.page import HERE, axes, describe_grade, read, shown, ticks

GROUPS = 3   # shown: of the first TRIED validation problems, those with unequal rewards first
TRIED = 8
MOST = 600   # tokens shown of a completion
# the weight's settings: on the page, in Config
WEIGHT = {"shaping": "shaping", "alpha": "alpha", "tau": "tau", "mu": "mu", "L": "low", "U": "high"}


@torch.no_grad()
def watch(policy, task, cfg):
    """Sample groups of completions of the first validation problems, and choose GROUPS of them.

    Returns:
        For each group a list of (completion, pi, w): pi and w have a number for each token
        (a tool's tokens have pi = 1).
    """
    completions = grpo_sg.rollout(policy, task, task.valid[:TRIED], cfg, n=cfg.group_size,
                                  temperature=cfg.temperature, seed=cfg.seed)
    grpo_sg.set_advantages(completions, cfg.group_size)
    groups = grpo_sg.split_groups(completions, cfg.group_size)
    groups.sort(key=grpo_sg.has_signal, reverse=True)  # groups with equal keys keep their order
    watched = []
    for c in itertools.chain(*groups[:GROUPS]):
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
        if c.mask[t]:
            boxes.append(f"<b data-p={pi[t]:.4g} data-w={w[t]:.4g}>{word}</b>")
        else:
            boxes.append(f"<b class=tool>{word}</b>")
    if len(boxes) > MOST:
        boxes[MOST // 2:-MOST // 2] = ["[... cut ...]"]
    A = c.advantage
    push = "▲ pushed up" if A > 0 else "▼ pushed down" if A < 0 else "not pushed"
    grade = describe_grade(grpo_sg.verdict_of(c))
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
                    f'{"Equal rewards: " if equal else ""}{shown(problem.question)} '
                    f'{shown(problem.answer)}</summary><ol>{items}</ol></details>')
    return written


def fill(sections, cfg, rows):
    """Fill tokens.html. sections: name of a model -> its groups, as HTML; rows: of
    metrics.jsonl."""
    run = {name: getattr(cfg, setting) for name, setting in WEIGHT.items()}
    scale = ticks(0, max(2, run["U"]))
    written = ""
    for name, groups in sections.items():
        written += f'<section{" hidden" if written else ""}>{groups}</section>'
    options = "".join(f"<option value={i}>{name}" for i, name in enumerate(sections))
    means = {}
    for key in ("low_prob_frac", "weight_mean"):
        means[key] = mean([row[key] for row in rows if row.get(key) is not None] or [0.0])
    template = (HERE / "tokens.html").read_text(encoding="utf-8")
    return template.format(unlikely=means["low_prob_frac"], w=means["weight_mean"],
                           run=shown(json.dumps(run)), top=scale[-1],
                           axes=axes(1, [0, 0.25, 0.5, 0.75, 1], scale),
                           options=options, sections=written)


def view(folder):
    """Sample with the first and the last model of the run in `folder`, and return the groups
    as HTML.

    Args:
        folder: the run's.

    Raises:
        SystemExit: one line that says what is missing: the task, or the first model.
    """
    saved = grpo_sg.read_saved(folder)
    if not saved:
        raise SystemExit(f"error: {folder} has no settings.json")
    # The page shows validation problems, so most training problems need not be generated.
    saved |= {"out": "", "resume": False, "train_problems": GROUPS}
    cfg = grpo_sg.Config(**saved)
    policy, task = grpo_sg.load(cfg)
    sections = {"before training": show_groups(policy.tokenizer, watch(policy, task, cfg))}
    last = grpo_sg.find_checkpoint(folder)
    if last:
        model, _ = grpo_sg.load_model(last)
        policy.model = grpo_sg.prepare(model, policy.model.device)
        sections["after training"] = show_groups(policy.tokenizer, watch(policy, task, cfg))
    return fill(sections, cfg, read(Path(folder), "metrics.jsonl"))
