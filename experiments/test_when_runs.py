"""The arms of the pre-registered experiment train with the weights, and in the steps, that their
names say."""
import functools
import json

import pytest
import torch

from test_grpo_sg import build_toy, parameters_of
from experiments import analysis, signal, when
from experiments.signal import weigh_damping
from grpo_sg import grpo_sg_loss


def random_batch():
    torch.manual_seed(0)
    logps = -3 * torch.rand(4, 7)
    mask = torch.rand(4, 7) < 0.7
    return logps, torch.randn(4), mask


def test_weights_have_mean_one_so_that_no_arm_takes_larger_steps():
    logps, A, mask = random_batch()
    loss, stats = when.loss_with(functools.partial(weigh_damping, 10), logps, logps, A, mask)
    assert float(stats["weights"] / stats["count"]) == pytest.approx(1, abs=1e-5)
    w = (2 * torch.sigmoid(9 * logps.exp()) - 0.5).clamp(1, 1.4)
    w = w ** (torch.log(torch.tensor(10.0)) / torch.log(torch.tensor(1.4)))
    expected = grpo_sg_loss(logps, logps, A, mask, weights=w / w[mask].mean())[0]
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)
    plain = when.loss_with(None, logps, logps, A, mask, weights=w)[0]
    assert torch.equal(plain, grpo_sg_loss(logps, logps, A, mask)[0])


def test_the_switch_is_after_the_steps_that_the_rule_names():
    arm = when.SWITCHES["damping 10, then 1/1.4"]
    names = [when.weight_at(arm, step) for step in range(1, when.SWITCH + 2)]
    assert names == ["damping 10"] * (when.SWITCH - 1) + ["damping 1/1.4"] * 2
    for arms in (part.arms for part in when.PARTS.values()):
        for name, weights in arms.items():
            assert name.startswith(weights[0][0]) and set(dict(weights)) <= set(when.WEIGHTS)


@pytest.fixture
def toy_parts(monkeypatch, tmp_path):
    def begin(name, seed, warm_up=True):
        policy, task, cfg = build_toy(shaping="none", group_size=4, seed=seed)

        def count_tokens(completion):
            return float(len(completion.tokens) % 3)
        return policy, task._replace(reward=count_tokens), cfg
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "begin", begin)
    small = {"grid": range(1), "seeds": range(5, 7), "rates": [1e-2, 1e-3], "points": (1, 2)}
    monkeypatch.setattr(when, "PREDICTIONS", [("early", "GRPO-SG", "GRPO", 2, +1)])
    monkeypatch.setitem(when.PARTS, "early", when.PARTS["early"]._replace(**small))
    when.start_of.cache_clear()
    when.measure_before.cache_clear()
    return tmp_path / "rows.jsonl"


def test_the_grid_chooses_rates_and_rows_are_not_made_twice(toy_parts, capsys):
    when.run(toy_parts, ["early"])
    rows = [json.loads(line) for line in toy_parts.read_text().splitlines()]
    assert len(rows) == 1 * 4 * 2 + 2 * 4
    for row in rows[8:]:  # 1e-2 is too fast for the toy
        assert row["split"] == "test" and row["rate"] == 1e-3
        assert set(row["avg@8"]) == {"1", "2"}
    text = toy_parts.read_text()
    toy_parts.write_text(text + '{"part": "ea')  # a half-written line
    when.run(toy_parts, ["early"])
    rows = analysis.read_rows(toy_parts)
    assert toy_parts.read_text() == text + '{"part": "ea' and len(rows) == 16
    toy_parts.write_text(text[:-5])
    when.run(toy_parts, ["early"])
    for old, new in zip(rows, analysis.read_rows(toy_parts), strict=True):
        assert {**old, "cpu_seconds": 0} == {**new, "cpu_seconds": 0}
    when.show(rows)
    text = capsys.readouterr().out
    assert "GRPO-SG: " in text and "above 0: " in text
    for row in rows[:8]:
        row["avg@8"]["2"] += row["rate"] == 1e-2  # what counts is the last point
    assert set(when.choose_rates("early", rows).values()) == {1e-2}


def test_a_prediction_is_confirmed_only_on_its_side_of_zero():
    assert when.judge([0.01, 0.012, 0.011], +1) == "confirmed"
    assert when.judge([0.01, 0.012, 0.011], -1) == "refuted"
    assert when.judge([-0.01, 0.012, 0.0], -1) == "open"
    for part, arm, other, step, _ in when.PREDICTIONS:
        p = when.PARTS[part]
        assert arm in p.arms and other in p.arms and step in p.points


def test_predictions_and_seeds_are_those_of_the_rule():
    words = [f"{part}: {text}" for part, _, text, _, _ in when.check_predictions([])]
    assert words == ["early: GRPO-SG minus GRPO above 0", "early: damping 10 minus GRPO above 0",
                     "late: damping 10 minus GRPO below 0",
                     'switch: "GRPO, then damping 10" minus GRPO below 0',
                     'switch: "damping 10, then GRPO" minus damping 10 above 0']
    for part in when.PARTS.values():
        assert part.seeds == range(1000, 1020)
    assert [len(part.grid) * len(part.rates) for part in when.PARTS.values()] == [36, 20, 0]


def test_arms_share_their_start_and_differ_by_their_weights_only(toy_parts):
    """GRPO's arm is grpo_sg's own step; training one arm does not move the start."""
    before = parameters_of(when.start_of("qa", 5)[0].model)
    rows = [when.train_arm("early", arm, 5, 1e-2, "test") for arm in ("GRPO", "damping 10")]
    assert rows[0] == when.train_arm("early", "GRPO", 5, 1e-2, "test")
    assert rows[0]["before"] == rows[1]["before"]
    assert torch.equal(before, parameters_of(when.start_of("qa", 5)[0].model))


def test_a_late_start_is_some_steps_after_the_warm_start_and_both_are_kept(toy_parts, monkeypatch):
    monkeypatch.setattr(when, "LATE", 2)
    late = parameters_of(when.start_of("qa, late", 5)[0].model)
    early = parameters_of(when.start_of("qa", 5)[0].model)
    policy, task, cfg = signal.begin("qa", 5)
    assert torch.equal(early, parameters_of(policy.model))
    optimizer = signal.make_optimizer(policy, cfg)
    for step in (1, 2):
        signal.train_step(policy, optimizer, task, cfg, step)
    assert torch.equal(late, parameters_of(policy.model)) and not torch.equal(late, early)
    when.start_of.cache_clear()  # now from their files
    assert torch.equal(late, parameters_of(when.start_of("qa, late", 5)[0].model))
