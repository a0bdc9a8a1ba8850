"""The experiment on signal and noise trains as the program does, measures what it says, and
resumes where it stopped."""
import json

import pytest
import torch

import grpo_sg
import tasks
from test_grpo_sg import build_toy, parameters_of
from experiments import signal
from lesson import look
from support import cli


def count_tokens(completion):
    return float(len(completion.tokens) % 3)


@pytest.fixture
def toy():
    policy, task, cfg = build_toy(shaping="none", group_size=4, lr=0.02)
    return policy, task._replace(reward=count_tokens), cfg


def test_a_step_is_one_of_the_program(toy):
    policy, task, cfg = toy
    before = parameters_of(policy.model)
    optimizer = signal.make_optimizer(policy, cfg)
    for step in (1, 2, 3):
        signal.train_step(policy, optimizer, task, cfg, step)
    ours = parameters_of(policy.model)
    torch.nn.utils.vector_to_parameters(before.clone(), policy.model.parameters())
    cfg.steps = 3
    grpo_sg.train(policy, task, cfg)
    assert torch.equal(ours, parameters_of(policy.model)) and not torch.equal(ours, before)


def test_flipped_verdicts_change_one_in_six_and_not_the_clean_rewards(toy):
    policy, task, cfg = toy
    groups = look.draw_groups(policy, task, cfg, 600, 0)
    for group in groups:
        for c in group:
            c.correct, c.formatted = True, True
            c.reward = tasks.reward(c)
    clean = [c.advantage for group in groups for c in group]
    signal.flip_verdicts(groups, 0)
    wrong = sum(c.flipped < 0 for group in groups for c in group)
    # A group in which all, or none, of four verdicts are flipped has advantages of 0.
    expected = 2400 / 6 - 600 * 4 * (1 / 6) ** 4
    assert wrong == pytest.approx(expected, abs=4 * (2400 * 5 / 36) ** 0.5)
    assert clean == [c.advantage for group in groups for c in group]


def test_a_group_of_equal_rewards_counts_and_adds_nothing(toy):
    policy, task, cfg = toy
    groups = look.draw_groups(policy, task, cfg, 2, 0)
    signal.flip_verdicts(groups, 0)
    for c in groups[1]:
        c.advantage = c.flipped = 0.0
    one, two = (signal.add_groups(policy, groups[:n], cfg, signal.BOTH, [None])[0] for n in (1, 2))
    assert (two.groups, two.count.sum()) == (2, 2) and one.total.any()
    assert torch.equal(one.total, two.total) and torch.equal(one.own, two.own)


@pytest.mark.parametrize("name, warmup, shortcuts", [("kk", 500, 0.6), ("kk, solutions", 200, 0.0)])
def test_one_start_is_warmed_up_without_shortcuts(name, warmup, shortcuts, monkeypatch):
    monkeypatch.setitem(cli.TINY, "train_problems", 30)
    _, task, cfg = signal.begin(name, 3, warm_up=False)
    assert (task.name, task.warmup, task.shortcuts) == ("kk", warmup, shortcuts)
    assert (cfg.task, cfg.seed, cfg.shaping, cfg.warm_up) == ("kk", 3, "none", True)


@pytest.mark.parametrize("name, smoke, steps", [
    ("qa", False, [0, 5, 15, 30, 60]), ("kk, solutions", False, [0, 15]), ("qa", True, [0, 1])])
def test_points_are_those_of_the_rule(name, smoke, steps):
    points = signal.points_of(name, smoke)
    assert list(points) == steps
    for step, (K, rewards) in points.items():
        assert K == (64 if smoke else 1024 if step >= 30 else 512)
        both = smoke or name == "qa" and step in (0, 15)
        assert rewards == (signal.BOTH if both else ("clean",))


def test_ar_follows_from_two_other_ways(toy):
    """Its moments equal those measured with the program's own weight, --shaping ar."""
    policy, task, cfg = toy
    groups = look.draw_groups(policy, task, cfg, 16, 0)
    signal.flip_verdicts(groups, 0)
    sums, = signal.add_groups(policy, groups, cfg, signal.BOTH, [None])
    M, V = signal.with_ar(sums.moments(), signal.BOTH)[0]
    cfg.shaping = "ar"
    other = look.measure(policy, groups, cfg)[0].moments()[0]
    ar = signal.ARMS.index("AR")
    for ours, theirs in zip((M, V), other):
        torch.testing.assert_close(ours[ar, ar], theirs[1, 1], rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(ours[ar, 0], theirs[1, 0], rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(ours[0, 0], theirs[0, 0], rtol=1e-3, atol=1e-6)


def test_adamws_metric_is_the_step_of_adamw(toy):
    """Without momentum AdamW moves by lr g / (sqrt v + eps): g times its move is |g|^2 in the
    metric."""
    policy, task, cfg = toy
    options = {"lr": cfg.lr, "betas": (0.0, 0.99), "weight_decay": 0}
    optimizer = torch.optim.AdamW(policy.model.parameters(), **options)
    assert signal.find_scale(policy, optimizer) is None
    for _ in range(3):
        signal.train_step(policy, optimizer, task, cfg, 1)
    before = parameters_of(policy.model)
    g = torch.randn(len(before)) * 1e-3
    start = 0
    for p in policy.model.parameters():
        p.grad = g[start:start + p.numel()].view_as(p).clone()
        start += p.numel()
    optimizer.step()
    moved = before - parameters_of(policy.model)
    scale = signal.find_scale(policy, optimizer)
    torch.testing.assert_close(g @ moved / cfg.lr, ((g * scale) ** 2).sum(), rtol=1e-3, atol=0)


def test_all_rows_of_a_point_are_written_together_and_once(toy, tmp_path, monkeypatch):
    def begin(name, seed, smoke=False):
        policy, task, cfg = build_toy(shaping="none", group_size=4, lr=0.02, seed=seed)
        return policy, task._replace(reward=count_tokens), cfg
    monkeypatch.setattr(signal, "begin", begin)
    monkeypatch.setattr(signal, "POINTS", {0: (16, ["clean"]), 1: (16, signal.BOTH)})
    path = tmp_path / "rows.jsonl"
    signal.run(path, [0], ["kk"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 7 + 28  # without AdamW's metric at the start, and clean
    for row in rows:
        if row["arm"] == "GRPO":
            assert row["signal"][0] == row["efficiency 8"][0] == 1
    text = path.read_text()
    signal.run(path, [0], ["kk"])
    assert path.read_text() == text
    # A point that is missing is measured as if nothing had stopped, a half-written line before it.
    path.write_text("".join(text.splitlines(keepends=True)[:7]) + '{"task": "kk", "see')
    signal.run(path, [0], ["kk"])
    again = [json.loads(line) for line in path.read_text().splitlines()]
    for old, new in zip(rows, again, strict=True):
        assert {**old, "cpu_seconds": 0} == {**new, "cpu_seconds": 0}


def test_the_verdict_is_that_of_the_interval():
    assert signal.judge([1.02, 1.03, 1.04]) == "better"
    assert signal.judge([0.97, 0.98, 0.96]) == "worse"
    assert signal.judge([0.97, 1.05, 1.00]) == "not told apart"


def test_the_table_says_how_many_seeds_there_are(capsys):
    rows = []
    for seed, value in enumerate((0.9, 0.91, 0.92)):
        row = {"task": "kk", "seed": seed, "step": 5, "metric": "Euclid", "rewards": "clean",
               "arm": "GRPO-SG", "accuracy": 0.5, "signal": [1.0, 0.1], "noise": [1.1, 0.1],
               "efficiency 8": [value, 0.1]}
        rows.append(row)
    signal.tabulate(rows)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "| 3 |" in last and "0.910 [0.885, 0.935] | worse (interim)" in last
    signal.tabulate(rows + [{**rows[0], "seed": seed} for seed in (3, 4)])
    assert "interim" not in capsys.readouterr().out
