"""The statistics are right, the experiment on noise changes only what it says, and no import points
up."""
import pathlib
import random
import re

import pytest
import torch

from experiments import compare, noise

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("p, degrees, quantile", [
    (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 9, 2.262), (0.975, 19, 2.093),
    (0.975, 59, 2.001), (0.8, 1, 1.376), (0.8, 9, 0.883), (0.8, 19, 0.861)])
def test_quantiles_of_students_t_are_those_of_the_printed_tables(p, degrees, quantile):
    assert compare.t_quantile(p, degrees) == pytest.approx(quantile, abs=6e-4)


@pytest.mark.parametrize("n", [3, 8, 20])
def test_an_effect_of_the_detectable_size_is_detected_in_80_percent_of_experiments(n):
    """An earlier experiment of the same size estimates the size, so its luck is included."""
    rng, detected = random.Random(0), 0
    for _ in range(2000):
        effect = compare.detectable([rng.gauss(0, 1) for _ in range(n)])
        detected += compare.interval([rng.gauss(effect, 1) for _ in range(n)])[1] > 0
    assert detected / 2000 == pytest.approx(0.8, abs=0.03)


def test_an_interval_by_hand():
    assert compare.interval([1.0, 2.0, 3.0]) == pytest.approx((2, 2 - 4.303 / 3 ** 0.5, 4.484), abs=1e-3)


@pytest.mark.parametrize("folder, banned", [
    ("experiments", "lesson"), ("lesson", "experiments"), ("support", "experiments|lesson"),
    ("verify", "experiments|lesson|support")])
def test_imports_point_down(folder, banned):
    for path in (ROOT / folder).rglob("*.py"):
        assert not re.search(rf"^ *(from|import) ({banned})\b", path.read_text("utf-8"), re.M), path


# ---- The experiment on noise ----

def make_rows(slope):
    """Rows of two seeds in which d = slope * x, and of alignments 1.2, 1, 0.5 and 0.1."""
    x = {"0": 0.2, "1": 0.0, "5": -0.5, "15": -0.9, "GRPO-SG": 0.1}
    rows = [{"seed": 0, "step": 0, "aligned": {arm: [1 + value, 0.01] for arm, value in x.items()}}]
    for seed, base in ((0, 20), (1, 30)):
        for arm, value in x.items():
            rows.append({"seed": seed, "lr": noise.RATE, "arm": arm,
                         "solved": [base + 64 * slope * value] * 20})
    return rows


def test_the_slope_is_that_of_a_line_through_grpo():
    x, d, slopes = noise.summarize(make_rows(slope=0.01))
    assert x["GRPO-SG"] == pytest.approx(0.1)
    assert d[noise.RATE, "15"] == pytest.approx([-0.009, -0.009])
    assert slopes == pytest.approx([0.01, 0.01])


def test_a_factor_changes_the_push_of_filler_words_only(monkeypatch):
    policy, task = noise.grpo_sg.load(noise.make_config(0, train_problems=8, eval_problems=1))
    cfg = noise.make_config(0, steps=1, prompts=4)
    batches = []
    monkeypatch.setattr(noise.grpo_sg, "compute_logps", lambda model, batch, cfg: batches.append(
        batch) or torch.zeros(batch.ids.shape, requires_grad=True))
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *args: torch.tensor(0.0))
    noise.train_arm(policy, task, cfg, factor=5)
    fillers = noise.list_fillers(policy.tokenizer)
    assert len(fillers) == 12 and batches
    for batch in batches:
        A = batch.advantages
        plain = A[:, :1]  # a prompt's first token is no filler word
        assert torch.equal(A, torch.where(torch.isin(batch.ids, fillers), 5 * plain, plain))
