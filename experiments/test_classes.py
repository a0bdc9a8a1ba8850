"""Classes of tokens, and mean cosines, against slow loops; steps are those of the program."""
import copy
import json
import math

import pytest
import torch

import grpo_sg
from test_grpo_sg import build_toy, parameters_of
from experiments import classes, shared
from lesson import look


def slow_rows(policy, group, cfg):
    """The gradient of each arm and class for a group, by autograd over tokens, in float64."""
    model = copy.deepcopy(policy.model).double()
    rows = {name: 0.0 for name in (*classes.ARMS, *classes.CLASSES)}
    for c in group:
        logits = model(input_ids=torch.tensor([c.prompt + c.tokens])).logits[0]
        for t, token in enumerate(c.tokens):
            logp = logits[len(c.prompt) + t - 1].log_softmax(-1)[token]
            parts = torch.autograd.grad(logp, list(model.parameters()), retain_graph=True)
            g = c.advantage * torch.cat([part.flatten() for part in parts])
            pi = float(logp.detach().exp())
            w = min(1.4, max(1.0, 2 / (1 + math.exp(-9 * pi)) - 0.5))
            damped = w ** (math.log(10) / math.log(1.4))
            bad = c.advantage < 0
            for arm, weight in zip(classes.ARMS, (1, w, damped, damped if bad else 10)):
                rows[arm] = rows[arm] + weight * g
            place = sum(pi >= edge for edge in (0.1, 1/3, 0.9))
            name = f"A {'<' if bad else '>'} 0, {classes.RANGES[place]}"
            rows[name] = rows[name] + g
    return {name: row + torch.zeros_like(g) for name, row in rows.items()}


def test_shares_and_cosines_equal_those_of_loops_over_tokens_and_pairs_of_groups(monkeypatch):
    monkeypatch.setattr(classes, "UPDATES", 4)
    policy, task, cfg = build_toy(shaping="none", group_size=4)
    task = task._replace(reward=lambda c: float(len(c.tokens) % 3))
    K = 12
    row = classes.measure(policy, task, cfg, 0, K)
    groups = look.draw_groups(policy, task, cfg, K, classes.FRESH)
    rows = [slow_rows(policy, group, cfg) for group in groups]
    pairs = [(i, j) for i in range(K) for j in range(K) if i != j]

    def product(a, b):
        return sum(float(rows[i][a] @ rows[j][b]) for i, j in pairs) / len(pairs)

    def trace(a):
        return sum(float(each[a] @ each[a]) for each in rows) / K - product(a, a)
    for name, found in row["classes"].items():
        signal_share = product(name, "GRPO") / product("GRPO", "GRPO")
        assert found["signal"][0] == pytest.approx(signal_share, rel=1e-3, abs=1e-4), name
        assert found["noise"][0] == pytest.approx(trace(name) / trace("GRPO"), rel=1e-3, abs=1e-4)
    assert sum(each["signal"][0] for each in row["classes"].values()) == pytest.approx(1, abs=1e-3)
    updates = [range(i, K, 4) for i in range(4)]  # of three groups each

    def cosine(arm):
        found = []
        for update in updates:
            mu = sum(rows[i]["GRPO"] for i in range(K) if i not in update) / (K - 3)
            S = sum(rows[i][arm] for i in update)
            found.append(float(S @ mu / S.norm()))
        return sum(found) / 4
    for arm in classes.ARMS:
        expected = cosine(arm) / cosine("GRPO")
        assert row["arms"][arm]["efficiency"][0] == pytest.approx(expected, rel=1e-3)
    assert row["cosine"] == pytest.approx(cosine("GRPO") / product("GRPO", "GRPO") ** 0.5, rel=1e-3)


def count_tokens(completion):
    return float(len(completion.tokens) % 3)


def build(seed=0):
    policy, task, cfg = build_toy(shaping="none", group_size=4, lr=0.02, seed=seed)
    return policy, task._replace(reward=count_tokens), cfg


def test_a_step_is_one_of_the_program():
    policy, task, cfg = build()
    before = parameters_of(policy.model)
    optimizer = shared.make_optimizer(policy, cfg)
    for step in (1, 2, 3):
        shared.train_step(policy, optimizer, task, cfg, step)
    ours = parameters_of(policy.model)
    torch.nn.utils.vector_to_parameters(before.clone(), policy.model.parameters())
    cfg.steps = 3
    grpo_sg.train(policy, task, cfg)
    assert torch.equal(ours, parameters_of(policy.model)) and not torch.equal(ours, before)


def test_a_point_that_is_missing_is_measured_as_if_nothing_had_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "begin", lambda name, seed: build(seed))
    monkeypatch.setattr(classes, "STEPS", (0, 1))
    monkeypatch.setattr(classes, "GROUPS", 8)
    monkeypatch.setattr(classes, "UPDATES", 4)
    path = tmp_path / "rows.jsonl"
    classes.run(path, [0, 1], ["kk"])
    text = path.read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(row["seed"], row["step"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    classes.run(path, [0, 1], ["kk"])
    assert path.read_text() == text
    path.write_text("".join(text.splitlines(keepends=True)[:1]) + '{"task": "kk", "see')
    classes.run(path, [0, 1], ["kk"])
    again = [json.loads(line) for line in path.read_text().splitlines()]
    for old, new in zip(rows, again, strict=True):
        assert {**old, "cpu_seconds": 0} == {**new, "cpu_seconds": 0}


def test_tables_have_means_and_intervals_over_seeds(capsys):
    """Three seeds whose signals are -0.003, 0 and 0.003, noises 0.1, 0.2 and 0.3: the intervals
    are the means +- 4.303 / sqrt(3) times their standard deviations."""
    rows = []
    for seed in range(3):
        share = {"tokens": 1, "signal": [0.003 * (seed - 1), 0.1], "noise": [0.1 * seed + 0.1, 0.1]}
        arm = {"efficiency": [1.1 + seed / 10, 0.1], "signal-to-noise": [None, None]}
        rows.append({"task": "qa", "seed": seed, "step": 15, "accuracy": 0.5, "cosine": 0.25,
                     "classes": dict.fromkeys(classes.CLASSES, share),
                     "arms": dict.fromkeys(classes.ARMS, arm)})
    classes.tabulate(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| `qa`, 15, tokens |" + " 12.5% |" * 8
    assert lines[3] == "| `qa`, 15, signal |" + " 0.00 [-0.01, 0.01] |" * 8
    assert lines[4] == "| `qa`, 15, noise |" + " 0.20 [-0.05, 0.45] |" * 8
    assert lines[8] == "| `qa`, 15 | 3 | 0.50 | 0.25 |" + " 1.20 [0.95, 1.45] | - |" * 3
