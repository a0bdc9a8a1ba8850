"""The comparison at tuned learning rates: the estimate of arm C, the arms, resuming, the grid, and
the verdicts of its rule."""
import json
import math

import pytest
import torch

from test_grpo_sg import build_toy, parameters_of
from experiments import analysis, choice, shared


# ---- The estimate ----

def test_the_estimate_is_a_ratio_of_mean_cosines_with_the_other_rollouts():
    torch.manual_seed(0)
    window = [torch.randn(2, 40) + torch.tensor([[1.0], [1.5]]) for _ in range(5)]
    means = []
    for way in (0, 1):
        cosines = []
        for i, rows in enumerate(window):
            others = [sum(window[j][0, k].item() for j in range(5) if j != i) for k in range(40)]
            own = rows[way].tolist()
            product = sum(a * b for a, b in zip(own, others))
            cosines.append(product / (math.hypot(*own) * math.hypot(*others)))
        means.append(sum(cosines) / 5)
    assert choice.estimate_efficiency(window) == pytest.approx(means[1] / means[0], rel=1e-9)
    one, other = torch.ones(2, 3), torch.tensor([[-1.0] * 3, [1.0] * 3])
    assert math.isnan(choice.estimate_efficiency([one, other]))  # GRPO's cosines are -1


def test_the_gradients_are_those_of_the_updates():
    policy, task, cfg = build_toy(shaping="none", group_size=8, prompts=3, updates=1, seed=3)
    completions, _ = shared.draw_rollout(policy, task, cfg, choice.FRESH + 1)
    rows = choice.gradients_of(policy, completions, cfg)
    batch = choice.grpo_sg.make_batch([c for c in completions if c.advantage], "cpu")
    for row, loss_of in zip(rows, (choice.grpo_sg.grpo_sg_loss, shared.loss_with_damping), strict=True):
        logps = choice.grpo_sg.compute_logps(policy.model, batch, cfg)
        loss, _ = loss_of(logps, logps, batch.advantages, batch.mask)
        found = torch.autograd.grad(loss, list(policy.model.parameters()))
        found = torch.cat([each.flatten() for each in found])
        assert torch.cosine_similarity(row, -found, dim=0) > 1 - 1e-5
    for c in completions:
        c.advantage = 0.0
    assert choice.gradients_of(policy, completions, cfg) is None


def test_damping_ends_where_the_arm_says():
    never, once = [1.2, math.nan, 1.0], [1.2, 0.99, 1.3]
    assert choice.is_damped("C", 60, never) and not choice.is_damped("C", 8, once)
    assert [choice.is_damped("D", step, once) for step in (1, 20, 21)] == [True, True, False]
    assert not any(choice.is_damped(arm, 1, []) for arm in "AB")


# ---- Runs ----

@pytest.fixture
def toy(monkeypatch, tmp_path):
    def start_of(name, seed):
        def count_tokens(completion):
            return float(len(completion.tokens) % 3)
        policy, task, cfg = build_toy(shaping="none", group_size=4, prompts=2, updates=1, seed=seed)
        return policy, task._replace(reward=count_tokens), cfg
    monkeypatch.setattr(choice, "start_of", start_of)
    for name, value in (("POINTS", (2, 3)), ("FIXED", 1), ("WINDOW", 2), ("GRID", range(1)),
                        ("SEEDS", range(5, 7)), ("TASKS", {"toy": choice.Setting(2, (1e-2, 2e-2))})):
        monkeypatch.setattr(choice, name, value)
    choice.measure_start.cache_clear()
    yield tmp_path / "rows.jsonl"
    choice.measure_start.cache_clear()


def train(monkeypatch, arm, halved=False):
    """Return the parameters after training an arm."""
    kept = []
    measure = choice.measure
    monkeypatch.setattr(choice, "measure", lambda policy, *more: (
        kept.append(parameters_of(policy.model)), measure(policy, *more))[1])
    row = choice.train_arm("toy", arm, 5, 1e-2, halved, "test")
    monkeypatch.setattr(choice, "measure", measure)
    return row, kept[-1]


def test_arms_differ_by_their_weights_and_share_everything_else(toy, monkeypatch):
    plain, at = train(monkeypatch, "A")
    assert plain == train(monkeypatch, "A")[0] and plain["damped steps"] == 0
    rows = {name: train(monkeypatch, *name) for name in (("B",), ("C",), ("D",), ("A", True))}
    for row, parameters in rows.values():
        assert row["avg@8"]["0"] == plain["avg@8"]["0"] and not torch.equal(parameters, at)
    assert rows["D",][0]["damped steps"] == 1 and len(rows["C",][0]["estimates"]) >= 1
    monkeypatch.setattr(choice, "estimate_efficiency", lambda window: 0.9)
    assert train(monkeypatch, "C")[0]["damped steps"] == 2  # as many rollouts as in the window


def test_grpo_arm_is_the_step_of_grpo_sg(toy, monkeypatch):
    _, found = train(monkeypatch, "A")
    policy, task, cfg = choice.start_of("toy", 5)
    cfg.lr = 1e-2
    optimizer = shared.make_optimizer(policy, cfg)
    for step in (1, 2, 3):
        shared.train_step(policy, optimizer, task, cfg, choice.FRESH + step)
    assert torch.equal(parameters_of(policy.model), found)


def test_a_killed_run_goes_on_after_its_last_whole_line(toy, monkeypatch):
    monkeypatch.setattr(choice, "rates_of", lambda rows, task: [1e-2, 2e-2])
    choice.run(toy, ["toy"])
    text = toy.read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["split"] for row in rows] == ["valid"] * 4 * 2 * 2 + ["test"] * 2 * 4
    for end in (20, len(text) - 20):  # killed in the first row, and in the last
        toy.write_text(text[:end])
        choice.run(toy, ["toy"])
        again = [json.loads(line) for line in toy.read_text().splitlines()]
        for row in [*rows, *again]:
            row.pop("cpu_seconds", None)
        assert again == rows
    before = toy.read_text()
    choice.run(toy, ["toy"])
    assert toy.read_text() == before


# ---- The grid ----

def grid_rows(best, rates):
    """Return the rows of a grid on which each arm is best at its rate, if halved."""
    rows = []
    for job in choice.grid_jobs("math", rates):
        value = 0.5 - abs(math.log2(job["rate"] / best[job["arm"]])) / 10 + job["halved"] / 100
        rows.append({**job, "avg@8": dict.fromkeys(map(str, choice.POINTS), value)})
    return rows


def test_the_grid_is_extended_for_all_arms_until_no_choice_is_at_an_end():
    first = list(choice.TASKS["math"].rates)
    best = dict.fromkeys("ABCD", first[1])
    rows = grid_rows(best, first)
    assert choice.rates_of(rows, "math") == first
    assert choice.choose(rows, "math") == dict.fromkeys("ABCD", (first[1], True))
    assert len(choice.jobs_left(rows, "math")) == 4 * 40  # then the counted runs
    best["C"], best["B"] = first[-1] * 2, first[0]
    rows = grid_rows(best, first)
    wider = [first[0] / 2, *first, first[-1] * 2]
    assert choice.rates_of(rows, "math") == wider
    left = choice.jobs_left(rows, "math")
    assert len(left) == 4 * 4 * 2 * 2 and {job["split"] for job in left} == {"valid"}
    rows = grid_rows(best, wider)
    assert choice.rates_of(rows, "math") == [*wider, wider[-1] * 2]
    assert choice.rates_of(grid_rows(best, [*wider, wider[-1] * 2]), "math")[-1] == wider[-1] * 2


# ---- Verdicts ----

def counted_rows(shifts, spread, names=("phone_book", "backwards", "math")):
    """Return counted rows. shifts: {arm: how far its curve is from A's}; seeds alternate by
    spread around it."""
    rows = []
    for task in names:
        for seed in choice.SEEDS:
            for arm in choice.ARMS:
                noise = (1 if seed % 2 else -1) * spread * (arm != "A")
                value = 0.5 + seed / 1e5 + shifts.get(arm, 0) + noise
                curve = dict.fromkeys(map(str, choice.POINTS), value)
                rows.append({"task": task, "arm": arm, "seed": seed, "rate": 4e-4, "halved": False,
                             "split": "test", "avg@8": curve, "greedy": curve, "damped steps": 0})
    return rows


@pytest.mark.parametrize("shifts, spread, verdict", [
    ({}, 0.01, "equivalent"),
    ({"C": 0.004}, 0.002, "equivalent"),  # a difference that is too small to matter
    ({"C": 0.03, "B": -0.02}, 0.02, "C helps"),
    ({"C": -0.03}, 0.02, "open"),
    ({"B": 0.03}, 0.02, "open"),
    ({}, 0.05, "open"),  # too noisy to tell
])
def test_verdicts_are_those_of_the_rule(shifts, spread, verdict):
    found, tests = choice.judge(counted_rows(shifts, spread))
    assert found == verdict and len(tests) == 4
    values, rejects = tests[("C", "A"), "end"]
    assert sum(values) / 40 == pytest.approx(shifts.get("C", 0), abs=1e-9)
    assert rejects == (shifts.get("C", 0) != 0)
    # The interval, by hand: t of 39 degrees is 2.0227.
    _, low, high = analysis.interval(values)
    error = spread * math.sqrt(40 / 39) / math.sqrt(40)
    assert (high - low) / 2 == pytest.approx(2.0227 * error, rel=1e-3)


def test_one_task_that_differs_forbids_equivalence_and_missing_rows_a_verdict():
    rows = counted_rows({}, 0.004, ["phone_book"])
    for shift, name in ((0.03, "backwards"), (-0.03, "math")):
        rows += counted_rows({"C": shift}, 0.004, [name])
    assert choice.judge(rows)[0] == "open"
    assert choice.complete(rows[:-1]) == ["phone_book", "backwards"]
    assert choice.judge(rows[:100]) == ("none yet: no task is complete", {})


def test_holm_compares_the_largest_with_the_strictest_level():
    def values(t):  # 40 values with this t
        return [t / math.sqrt(40) + math.sqrt(39 / 40) * (-1) ** i for i in range(40)]
    limits = [analysis.t_quantile(1 - 0.05 / (2 * k), 39) for k in (4, 3, 2, 1)]
    passing = {i: values(limit + 0.01) for i, limit in enumerate(limits)}
    assert analysis.holm(passing) == dict.fromkeys(range(4), True)
    passing[1] = values(limits[1] - 0.01)  # the second fails, so do all that are smaller
    assert analysis.holm(passing) == {0: True, 1: False, 2: False, 3: False}
    assert analysis.holm({0: [0.0] * 40}) == {0: False}


def test_show_prints_the_verdict_and_names_what_is_missing(capsys):
    choice.show(counted_rows({"C": 0.03}, 0.02, ["phone_book", "math"]))
    text = capsys.readouterr().out
    assert "C minus A, avg@8, end: +0.0300" in text and "verdict: C helps" in text
    assert "backwards: not complete" in text and "phone_book, math, pooled" in text


def test_the_later_control_replaces_only_the_counted_runs_of_grpo():
    rows = counted_rows({"A": -0.05}, 0.01) + grid_rows(dict.fromkeys("ABCD", 1e-4), [1e-4])
    others = [row for row in counted_rows({}, 0.01, ["math"]) if row["arm"] == "A"]
    (task, found), = choice.at_equal_rates(rows, others).items()
    assert task == "math" and sum(row["split"] == "valid" for row in found) == 4 * 4 * 2
    assert sum(choice.compare(found, "math", ("C", "A"), "end")) == pytest.approx(0, abs=1e-9)
    assert sum(choice.compare(rows, "math", ("C", "A"), "end")) / 40 == pytest.approx(0.05)
    assert choice.at_equal_rates(rows, others[1:]) == {}
