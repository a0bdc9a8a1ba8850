"""Outcomes are those that can be checked by hand or were made so, and the pages have the tables
and the numbers that evidence.py prints."""
import json
import math
import pathlib
import random
import re

import pytest
import torch

from experiments import evidence

ROOT = pathlib.Path(__file__).parents[1]
LEDGER = ROOT / "experiments/ledger.md"
PAGES = [ROOT / name for name in ("README.md", "experiments/README.md", "lesson/weight.md")]


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


@pytest.fixture
def clean_cache():
    evidence.compare_weights.cache_clear()
    yield
    evidence.compare_weights.cache_clear()


def make_rows(folder, monkeypatch, exponent, noise=0.0):
    """Write ratios of 0.9 ** k for the weights, and runs in which they are like the rate ratio ** exponent in steps 1 to
    10, and half as far from 1 (in log rate) later."""
    draw, rows, ratios = random.Random(0), [], []
    for task in evidence.WEIGHTS:
        values = {name: 0.9 ** k for k, name in enumerate(evidence.WEIGHTS[task], -1)}
        for seed in range(8):
            ratios.append({"task": task, "seed": seed, "ratios": {
                name: value * (1 + noise * (-1) ** (seed + k)) for k, (name, value) in enumerate(values.items())}})
        runs = {f"GRPO x {x:g}": (math.log(x), math.log(x)) for x in evidence.GRPO[task]}
        for name, x in values.items():
            early = math.log(x) * exponent / (2 if name in evidence.LAST else 1)  # those two are off the line
            runs[name] = early, early / 2
        for seed in evidence.SEEDS[task]:
            level = draw.uniform(30, 40)  # seeds differ, but all runs of a seed share it
            rows.append({"task": task, "seed": seed, "solved": {
                name: [level + 8 * x + draw.gauss(0, 20 * noise) for x in (early, late) for _ in range(10)]
                for name, (early, late) in runs.items()}})
    ratios.append({"task": "real", "ratios": {"GRPO-SG": 1.0}, "standard_errors": {"GRPO-SG": 0.1},
                   "shares of the mean gradient": {"A < 0, pi < 1/3": [1.0, 0.1]}})
    monkeypatch.setattr(evidence, "RESULTS", folder)
    for name, lines in (("rates", rows), ("rates_ratios", ratios)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return rows


def test_weights_that_are_like_their_ratio_predict_percent_for_percent(tmp_path, monkeypatch, clean_cache):
    make_rows(tmp_path, monkeypatch, 1.0)
    lines = "\n".join([*evidence.list_rates(), *evidence.list_errors()])
    # of (1 - pi)^2 on both tasks
    assert "| `(1 - pi)^2` | 0.810 | 0.810 [0.810, 0.810]" in evidence.tabulate_weights()
    assert "math: rank correlation of progress ratio and equivalent rate 1.00, 7 weights" in lines
    assert ("kk: root mean square of log(rate / progress ratio) 0.000, of noise alone 0.000"
            in lines)
    assert "outcome 1: kk, steps 1 to 10, slope 1.00 [1.00, 1.00]" in lines
    assert "outcome 3: kk, steps 1 to 20, slope 0.75 [0.75, 0.75]" in lines
    assert "outcome 6: math, steps 1 to 10, slope 1.00 [1.00, 1.00]" in lines
    lead = 5 * math.log(0.9) * 8 / 64
    assert (f"outcome 4: rare left out minus GRPO, {lead:.4f} [{lead:.4f}, {lead:.4f}] in steps 1 to 10 and "
            f"{lead / 2:.4f} [{lead / 2:.4f}, {lead / 2:.4f}] in steps 16 to 20") in lines
    lead = (5.5 * math.log(0.9) * 0.75 - math.log(0.05)) * 8 / 64
    assert f"a twentieth of the rate, +{lead:.4f} [+{lead:.4f}, +{lead:.4f}]" in lines


def test_intervals_come_from_the_seeds_of_runs_and_of_ratios(tmp_path, monkeypatch, clean_cache):
    rows = make_rows(tmp_path, monkeypatch, 0.5, noise=0.01)
    slope, low, high = evidence.bound(evidence.fit_slope(evidence.sample_ratios("kk"), evidence.sample_rates("kk", 10)))
    # Noise of 0.2 solved completions in each of 10 steps and 48 seeds, where log rate 1 is worth 8 of them.
    error = 0.2 / 480 ** 0.5 / 8 / sum((k * math.log(0.9)) ** 2 for k in range(-1, 10)) ** 0.5
    assert low < 0.5 < high and 0.8 * error < (high - low) / 3.92 < 3 * error  # the curve and the ratios vary as well
    ratio, low, high = evidence.bound(evidence.sample_ratios("kk")["GRPO-SG"].exp())
    assert ratio == pytest.approx(1 / 0.9) and (high - low) / 3.92 == pytest.approx(0.01 / 0.9 / 8 ** 0.5, rel=0.1)
    gaps = [gap for _, _, gap in evidence.compare_weights("kk").values()]
    # The second weight's ratio is 1.
    assert [evidence.has_missed(gap) for gap in gaps[:3]] == [True, False, True]
    (tmp_path / "rates.jsonl").write_text(json.dumps(rows[0]) + "\n")
    before = evidence.sample_accuracy("kk", 1, 10)
    del rows[1]["solved"]["pi"]
    (tmp_path / "rates.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    after = evidence.sample_accuracy("kk", 1, 10)  # a seed without all of its runs does not count
    assert all(torch.equal(after[name], before[name]) for name in before)


# ---- The rules `again` and `added` ----

def write_rows(folder, name, rows):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_lead_is_paired_by_seed_and_judged_by_the_rule(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    # In a step GRPO solves 32 of 64, and more in every second seed, as all arms of the seed do.
    write_rows(tmp_path, "again", [{"seed": seed, "solved": {
        "GRPO": [32 + seed % 2] * 20, "GRPO-SG": [32.1 + seed % 2 + seed / 1000] * 20,
        "GRPO x 1.036": [32.1 + seed % 2 - seed / 1000] * 20}} for seed in range(10)])
    lines = [*evidence.list_again()]
    assert lines[0].startswith("again, outcome 1: GRPO-SG minus GRPO, steps 1 to 20, 10 seeds: "
                               "+0.0016 [+0.0016, +0.0017]: ahead")
    assert lines[1].endswith(": seen")
    assert lines[2].endswith("+0.0001 [+0.0001, +0.0002]: like a rate 3.6% higher, give or take "
                             "half")
    assert len(lines) == 6 and all("steps 1 to 10" in line for line in lines[3:])


@pytest.mark.parametrize("low, high, words", [
    (0.0001, 0.1, "ahead"), (-0.1, -0.0001, "behind"), (-0.0012, 0.0012, "no lead that matters"),
    (-0.0013, 0.0001, "can't tell"), (0.0, 0.0013, "can't tell")])
def test_a_lead_in_the_first_steps_has_the_words_of_its_rule(low, high, words):
    assert evidence.judge_lead(low, high) == words


@pytest.mark.parametrize("seen, ahead, low, high, words", [
    (False, True, 0, 0, "can't tell"),
    (True, True, -0.0012, 0.0012, "like a rate 3.6% higher, give or take half"),
    (True, False, -0.001, 0.001, "can't tell"), (True, False, 0.001, 0.1, "more than that rate"),
    (True, True, -0.1, -0.001, "less than that rate"), (True, True, -0.002, 0.001, "can't tell")])
def test_a_rate_has_the_words_of_its_rule(seen, ahead, low, high, words):
    assert evidence.judge_rate(seen, ahead, low, high) == words


@pytest.mark.parametrize("avg, pass16, words", [
    ((-0.01, 0.01), (0.1, 0.2), "no gain"), ((-0.01, 0.03), (0.1, 0.2), "can't tell"),
    ((0.01, 0.1), (0.01, 0.1), "adds"), ((0.01, 0.1), (-0.1, -0.01), "sharpens and narrows"),
    ((0.01, 0.1), (-0.1, 0.01), "sharpens"),
    ((0.01, 0.1), (-0.1, 0.03), "gains, can't tell how")])
def test_what_rl_adds_has_the_words_of_its_rule(avg, pass16, words):
    assert evidence.judge_gain((0, *avg), (0, *pass16)) == words


@pytest.mark.parametrize("judge, low, high, words", [
    ("guess", 0.01, 0.1, "its best guess improves"), ("guess", -0.1, -0.01, "gets worse"),
    ("guess", -0.02, 0.02, "stays"), ("guess", -0.03, 0.01, "can't tell"),
    ("fine_tuning", 0.01, 0.1, "better"), ("fine_tuning", -0.01, 0.1, "as good"),
    ("fine_tuning", -0.1, -0.03, "worse"), ("fine_tuning", -0.1, 0.1, "can't tell")])
def test_secondary_outcomes_have_the_words_of_their_rule(judge, low, high, words):
    assert getattr(evidence, f"judge_{judge}")(low, high) == words


def test_a_seed_counts_if_its_six_runs_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    rows = [{"task": task, "model": model, "seed": seed, "before": {"avg@32": 0.5}}
            for seed in (1, 2) for task in ("kk", "math") for model in "ABC"]
    write_rows(tmp_path, "added", rows[:-1])
    assert [*evidence.select_added("kk", "C", "before")] == [1]


@pytest.mark.parametrize("text, words", [
    (None, "is missing or has no rows"), ("", "is missing or has no rows"),
    ('{"seed": 1}\n{"seed":\n', "has a line that is no row")])
def test_a_file_of_rows_that_is_missing_or_broken_is_named(text, words, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    if text is not None:
        (tmp_path / "again.jsonl").write_text(text)
    with pytest.raises(SystemExit, match=f"again.jsonl {words}"):
        evidence.read_results("again")


# ---- The pages ----

NUMBER = r"[+-]?\d+\.\d+"
QUOTED = re.compile(rf"(?:{NUMBER} )?\[{NUMBER}, {NUMBER}\]|{NUMBER} ± {NUMBER}|"
                    rf"(?:{NUMBER} → )?{NUMBER} \({NUMBER} to {NUMBER}\)")


def find_numbers(text):
    """Return the numbers of a text that have an interval, a range or an error."""
    return QUOTED.findall(" ".join(text.replace("*", "").split()))


@pytest.mark.parametrize("name", ["ends", "phone_book", "rates"])
def test_a_figure_is_that_of_the_rows(name):
    path = ROOT / f"experiments/figures/{name}.svg"
    assert not path.exists() or path.read_text("utf-8") == getattr(evidence, f"draw_{name}")()


@pytest.fixture(scope="module")
def tables():
    return {page: [table() for table in makers] for page, makers in evidence.TABLES.items()}


@pytest.fixture(scope="module")
def printed(tables):
    return "\n".join([*evidence.list_numbers(), *(table for page in tables.values()
                                                   for table in page)])


@pytest.mark.parametrize("name", [*evidence.TABLES])
def test_a_page_has_each_table_that_evidence_prints(name, tables):
    page = ROOT / name
    text = page.read_text("utf-8") if page.exists() else ""  # lesson/ may be deleted
    for table in tables[name] if page.exists() else []:
        missing = [row for row in table.splitlines() if row not in text]
        assert not missing, f"{name} lacks {missing[0]}"
        assert table in text, f"{name}: the rows of a table have another order"


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()])
def test_a_page_has_the_numbers_that_evidence_prints(page, printed):
    known = (printed + LEDGER.read_text("utf-8")).replace("*", "")
    for number in find_numbers(page.read_text("utf-8")):
        assert number in known, f"{page.name}: {number}"


def test_the_ledger_has_the_numbers_of_rows_that_are_here(printed):
    for line in LEDGER.read_text("utf-8").splitlines():
        if "(results/" in line:
            for number in find_numbers(line):
                assert number in printed, f"{number} in {line}"


def test_eight_comparisons_of_where_a_run_ends_are_drawn():
    ends = evidence.read_ends()
    rules = {label.removesuffix(", again").removesuffix(", first runs") for label, *_ in ends}
    assert rules == {*evidence.ENDS.values()} and len(ends) == 10, "two of them were run twice"
