"""Ratios, weights and outcomes are those that can be checked by hand or were made so, and the pages have the numbers that
evidence.py prints."""
import json
import math
import pathlib
import random
import re
import types

import pytest
import torch

from experiments import evidence, rates

ROOT = pathlib.Path(__file__).parents[1]
LEDGER = ROOT / "experiments/ledger.md"
PAGES = [ROOT / name for name in ("README.md", "experiments/README.md", "lesson/weight.md")]


# ---- The ratio and the weights ----

def test_the_ratio_is_a_mean_over_other_rollouts():
    # One parameter, two rollouts of two minibatches: mu is 2 for the first rollout, 1 for the other.
    grpo = torch.tensor([[[0.0], [2.0]], [[1.0], [3.0]]])
    rms = (14 / 4) ** 0.5
    expected = (0 * 2 + 2 * 2 + 1 * 1 + 3 * 1) / 4 / rms
    assert rates.find_progress(grpo, grpo) == pytest.approx(expected)
    # AdamW divides a constant weight out.
    assert rates.find_progress(1.4 * grpo, grpo) == pytest.approx(expected)


def test_the_ratio_equals_its_definition_in_loops():
    g, grpo = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).double()
    total = 0.0
    for k in range(3):
        for u in range(4):
            for i in range(5):
                others = [float(grpo[j, v, i]) for j in range(3) if j != k for v in range(4)]
                rms = (sum(float(x) ** 2 for x in g[:, :, i].flatten()) / 12) ** 0.5
                total += float(g[k, u, i]) * (sum(others) / 8) / rms / 12
    assert rates.find_progress(g, grpo) == pytest.approx(total)


def test_the_uncertain_tokens_are_a_fifth_of_the_policys():
    entropy = torch.tensor([[9.0, 0.1, 0.2, 0.9, 0.3, 0.4]])
    mask = torch.tensor([[False, True, True, True, True, True]])
    assert rates.find_uncertain(entropy, mask).tolist() == [[False] * 3 + [True] + [False] * 2]


@pytest.mark.parametrize("name, expected", [
    ("GRPO", [1, 1]), ("GRPO-SG", [1, 1.4]), ("pi", [0.1, 0.9]), ("1 - pi", [0.9, 0.1]),
    ("(1 - pi)^2", [0.81, 0.01]), ("(1 - pi)^4", [0.6561, 0.0001]), ("AR-Lopti", [0.82, 0.98]),
    ("reversed", [1.4, 1]), ("top 20% entropy", [1, 0]), ("filler x 15", [1, 15]),
    ("filler x 40", [1, 40]), ("A > 0 x 0.1", [0.1, 0.1]), ("rare left out", [0, 1]),
    ("other 80%", [0, 1])])
def test_the_weights_are_those_of_the_rule(name, expected):
    batch = types.SimpleNamespace(ids=torch.tensor([[5, 6]]), mask=torch.ones(1, 2).bool(),
                                  advantages=torch.tensor([0.5]))
    logps, entropy = torch.tensor([[0.1, 0.9]]).log(), torch.tensor([[2.0, 0.3]])
    w = rates.weigh_tokens(name, logps, batch, entropy, torch.tensor([6]))
    torch.testing.assert_close(w, torch.tensor([expected], dtype=torch.float32))


# ---- Equivalent rates ----

def find_slowly(accuracy, curve, factors):
    """Walk along the curve in tiny steps of log rate, and return the log of the first rate that has the accuracy."""
    if accuracy < min(curve):
        return math.log(factors[0])
    for (a, left), (b, right) in zip(zip(factors, curve), zip(factors[1:], curve[1:])):
        for k in range(201):
            here, there = (left + (right - left) * min(step, 200) / 200 for step in (k, k + 1))
            if min(here, there) <= accuracy <= max(here, there):
                return math.log(a) + (math.log(b) - math.log(a)) * k / 200
    return math.log(factors[-1])


def test_the_equivalent_rate_is_the_first_point_of_the_curve_with_the_accuracy():
    draw, factors = random.Random(0), [0.05, 0.25, 0.5, 0.71, 1.0, 1.41]
    curves = [[draw.random() for _ in factors] for _ in range(20)]  # up and down
    curves += [sorted(curve) for curve in curves[:10]]
    accuracy = [[draw.uniform(-0.2, 1.2) for _ in range(4)] for _ in curves]
    found = evidence.find_rates(torch.tensor(accuracy).double(), torch.tensor(curves).double(), factors)
    for values, curve, rates_found in zip(accuracy, curves, found.tolist()):
        assert rates_found == pytest.approx([find_slowly(x, curve, factors) for x in values], abs=0.02)


def test_flat_parts_and_ends_of_the_curve():
    accuracy, curve = (torch.tensor([x]).double() for x in ([0.1, 0.2, 0.3, 0.4, 0.5], [0.2, 0.2, 0.4, 0.4]))
    found = evidence.find_rates(accuracy, curve, [0.25, 0.5, 1.0, 2.0]).exp()[0]
    assert found.tolist() == pytest.approx([0.25, 0.25, 0.5 ** 0.5, 1, 2])


def make_rows(folder, monkeypatch, exponent, noise=0.0):
    """Write ratios of 0.9 ** k for the weights, and runs in which they are like the rate ratio ** exponent in steps 1 to
    10, and half as far from 1 (in log rate) later."""
    draw, rows, ratios = random.Random(0), [], []
    for task in rates.WEIGHTS:
        values = {name: 0.9 ** k for k, name in enumerate(rates.WEIGHTS[task], -1)}
        for seed in rates.LOOKS:
            ratios.append({"task": task, "seed": seed, "ratios": {
                name: value * (1 + noise * (-1) ** (seed + k)) for k, (name, value) in enumerate(values.items())}})
        runs = {f"GRPO x {x:g}": (math.log(x), math.log(x)) for x in rates.GRPO[task]}
        for name, x in values.items():
            early = math.log(x) * exponent / (2 if name in evidence.LAST else 1)  # those two are off the line
            runs[name] = early, early / 2
        for seed in rates.SEEDS[task]:
            level = draw.uniform(30, 40)  # seeds differ, but all runs of a seed share it
            rows.append({"task": task, "seed": seed, "solved": {
                name: [level + 8 * x + draw.gauss(0, 20 * noise) for x in (early, late) for _ in range(10)]
                for name, (early, late) in runs.items()}})
    for name, lines in (("ROWS", rows), ("RATIOS", ratios)):
        monkeypatch.setattr(rates, name, folder / f"{name}.jsonl")
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return rows


def test_weights_that_are_like_their_ratio_predict_percent_for_percent(tmp_path, monkeypatch):
    make_rows(tmp_path, monkeypatch, 1.0)
    lines = "\n".join([*evidence.list_weights("kk"), *evidence.list_weights("math"), *evidence.list_outcomes()])
    assert ("math, (1 - pi)^2: ratio 0.810 [0.810, 0.810], equivalent rate 0.810 [0.810, 0.810] in steps 1 to 10 and "
            "0.854 [0.854, 0.854] in steps 1 to 20; log(rate / ratio)") in lines  # 0.81 ** 0.75 = 0.854
    assert "kk: root mean square of log(rate / ratio) 0.000, of noise alone 0.000" in lines
    assert "outcome 1: kk, steps 1 to 10, slope 1.00 [1.00, 1.00]: percent for percent" in lines
    assert "outcome 3: kk, steps 1 to 20, slope 0.75 [0.75, 0.75]: it ranks" in lines
    assert "outcome 6: math, steps 1 to 10, slope 1.00 [1.00, 1.00]: percent for percent" in lines
    lead = 5 * math.log(0.9) * 8 / 64
    assert (f"outcome 4: rare left out minus GRPO, {lead:.4f} [{lead:.4f}, {lead:.4f}] in steps 1 to 10 and "
            f"{lead / 2:.4f} [{lead / 2:.4f}, {lead / 2:.4f}] in steps 16 to 20: does not lead at first") in lines
    lead = (5.5 * math.log(0.9) * 0.75 - math.log(0.05)) * 8 / 64
    assert f"a twentieth of the rate, +{lead:.4f} [+{lead:.4f}, +{lead:.4f}]: above" in lines


def test_intervals_come_from_the_seeds_of_runs_and_of_ratios(tmp_path, monkeypatch):
    rows = make_rows(tmp_path, monkeypatch, 0.5, noise=0.01)
    slope, low, high = evidence.bound(evidence.fit_slope(evidence.sample_ratios("kk"), evidence.sample_rates("kk", 10)))
    # Noise of 0.2 solved completions in each of 10 steps and 48 seeds, where log rate 1 is worth 8 of them.
    error = 0.2 / 480 ** 0.5 / 8 / sum((k * math.log(0.9)) ** 2 for k in range(-1, 10)) ** 0.5
    assert low < 0.5 < high and 0.8 * error < (high - low) / 3.92 < 3 * error  # the curve and the ratios vary as well
    ratio, low, high = evidence.bound(evidence.sample_ratios("kk")["GRPO-SG"].exp())
    assert ratio == pytest.approx(1 / 0.9) and (high - low) / 3.92 == pytest.approx(0.01 / 0.9 / 8 ** 0.5, rel=0.1)
    *weights, last = evidence.list_weights("kk")
    assert [line.endswith("missed") for line in weights[:3]] == [True, False, True]  # the second ratio is 1
    assert float(last.split()[-1]) < 0.01  # of noise alone: the ratios' standard error is 0.01 / 8 ** 0.5
    (tmp_path / "ROWS.jsonl").write_text(json.dumps(rows[0]) + "\n")
    before = evidence.sample_accuracy("kk", 1, 10)
    del rows[1]["solved"]["pi"]
    (tmp_path / "ROWS.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    after = evidence.sample_accuracy("kk", 1, 10)  # a seed without all of its runs does not count
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("low, high, words", [
    (0.85, 1.15, "percent for percent"), (0.9, 0.95, "percent for percent"), (0.84, 1.1, "it predicts"),
    (0.71, 1.3, "it predicts"), (0.7, 1.1, "it ranks"), (0.75, 0.99, "it ranks"), (1.01, 1.4, "it ranks"),
    (0.1, 3, "it ranks"), (0.0, 3, "it does not predict"), (-1, -0.5, "it does not predict")])
def test_a_slope_is_judged_by_the_rule(low, high, words):
    assert evidence.judge_slope(low, high) == words


@pytest.mark.parametrize("low, high, words", [
    (0.1, -0.1, "crosses"), (0, -0.1, "does not lead at first"), (0.1, 0, "does not trail later"),
    (-0.1, 0.1, "does not lead at first and does not trail later")])
def test_a_crossing_is_judged_by_the_rule(low, high, words):
    assert evidence.judge_crossing((0, low, 1), (0, -1, high)) == words


# ---- The pages ----

NUMBER = r"[+-]?\d+\.\d+"
QUOTED = re.compile(rf"(?:{NUMBER} )?\[{NUMBER}, {NUMBER}\]|{NUMBER} ± {NUMBER}|"
                    rf"(?:{NUMBER} → )?{NUMBER} \({NUMBER} to {NUMBER}\)")


def find_numbers(text):
    """Return the numbers of a text that have an interval, a range or an error."""
    return QUOTED.findall(" ".join(text.replace("*", "").split()))


@pytest.mark.parametrize("name", ["rates", "curve"])
def test_a_figure_is_that_of_the_rows(name):
    path = ROOT / f"experiments/figures/{name}.svg"
    assert not path.exists() or path.read_text("utf-8") == getattr(evidence, f"draw_{name}")()


@pytest.fixture(scope="module")
def printed():
    return "\n".join(evidence.list_numbers())


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()])  # lesson/ may be deleted
def test_a_page_has_the_numbers_that_evidence_prints(page, printed):
    known = printed + LEDGER.read_text("utf-8")
    for number in find_numbers(page.read_text("utf-8")):
        assert re.sub(r"\((.*) to (.*)\)", r"[\1, \2]", number) in known or number in known, f"{page.name}: {number}"


def test_the_ledger_has_the_numbers_of_rows_that_are_here(printed):
    for line in LEDGER.read_text("utf-8").splitlines():
        if "(results/" in line:
            assert all(number in printed for number in find_numbers(line)), line
