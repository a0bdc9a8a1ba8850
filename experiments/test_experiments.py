"""The statistics are right, the experiment on the progress ratio measures and runs what its rule says, and no
import points up."""
import math
import pathlib
import random
import re

import pytest
import torch
import transformers

import grpo_sg
from experiments import compare, progress

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


# ---- The experiment on the progress ratio ----

def test_the_arms_weigh_the_tokens_that_they_name():
    tokenizer = transformers.AutoTokenizer.from_pretrained(ROOT / progress.MODEL)
    kinds = progress.find_kinds(tokenizer)
    lists, fillers = ({tokenizer.convert_ids_to_tokens(i) for i in kind.tolist()} for kind in kinds)
    assert len(lists) == 15 and {" KNK", " NNN."} < lists and len(fillers) == 12 and " thus:" in fillers
    ids = torch.tensor([tokenizer.convert_tokens_to_ids([" KNK", " NNN.", " thus:", " Ada"])])
    pi = torch.full((1, 4), 0.2)
    w = 2 * (1 / (1 + math.exp(-9 * 0.2)) - 0.25)
    arms = {arm: weights[0].tolist() for arm, weights in progress.weigh_arms(pi.log(), ids, kinds).items()}
    for arm, expected in {"GRPO": [1] * 4, "GRPO-SG": [w] * 4, "constant 1.35": [1.35] * 4,
                          "11-fold": [w - 0.4] * 4, "lists only": [w, w, 1.4, 1.4],
                          "filler words only": [1.4, 1.4, w, 1.4]}.items():
        assert arms[arm] == pytest.approx(expected), arm


def test_a_run_of_an_arm_has_its_weights_in_the_loss(monkeypatch):
    policy, task = grpo_sg.load(progress.make_config(0, train_problems=8, eval_problems=1))
    kinds, loss, seen = progress.find_kinds(policy.tokenizer), grpo_sg.grpo_sg_loss, []

    def watch(logps, *args, weights, **more):
        seen.append((logps.detach(), logps.ids, weights))
        return loss(logps, *args, weights=weights, **more)
    monkeypatch.setattr(grpo_sg, "grpo_sg_loss", watch)
    _, rows = progress.train_arm(policy, task, progress.make_config(0, steps=1, prompts=4), "lists only")
    assert len(rows) == 1 and seen
    for logps, ids, weights in seen:
        expected = torch.where(torch.isin(ids, kinds[0]), grpo_sg.token_weights(logps), 1.4)
        torch.testing.assert_close(weights, expected)
    assert min(float(weights.min()) for _, _, weights in seen) < 1.39


def make_gradients():
    """Of 6 rollouts with 2 updates each; one update has no gradient, and some are longer than 1."""
    torch.manual_seed(0)
    g = (torch.randn(6, 2, 5) + 0.3) * torch.tensor([0.01, 0.1, 4, 0.3, 0.2])
    g[2, 1] = 0
    return g


def test_the_plain_progress_equals_loops_and_a_constant_weight_changes_nothing():
    grpo = make_gradients()
    g = grpo * torch.tensor([2, 1, 0.5, 1, 1])  # another method
    terms = []
    for k in range(6):
        mu = sum(grpo[j].mean(0) for j in range(6) if j != k) / 5
        for update in g[k]:
            terms.append(sum(float(update[d] * mu[d] / (g[:, :, d] ** 2).mean().sqrt()) for d in range(5)))
    assert progress.plain_progress(g, grpo) == pytest.approx(sum(terms) / 12, rel=1e-5)
    assert progress.plain_progress(1.35 * g, grpo) == pytest.approx(sum(terms) / 12, rel=1e-5)


def test_the_simulated_progress_is_how_far_adamw_moves_along_the_others_gradient():
    grpo = make_gradients()
    g, moved = grpo * torch.tensor([2, 1, 0.5, 1, 1]), []
    for own, others in ((range(3), range(3, 6)), (range(3, 6), range(3))):
        mu = torch.stack([grpo[k] for k in others]).mean((0, 1))
        x = torch.nn.Parameter(torch.zeros(5))
        optimizer = torch.optim.AdamW([x], 1.0, betas=(0.9, 0.99), weight_decay=0)
        for update in (update for k in own for update in g[k] if update.any()):
            before, x.grad = x.detach().clone(), -update.clone()
            torch.nn.utils.clip_grad_norm_([x], 1.0)
            optimizer.step()
            moved.append(float((x.detach() - before) @ mu))
    assert len(moved) == 11
    assert progress.simulated_progress(g, grpo) == pytest.approx(sum(moved) / 11, rel=1e-4)


def make_rows(leads, seeds):
    """Ratios of 2 ** 0.5 for GRPO-SG and 2 for all others; rows with these leads over GRPO."""
    ratios = [{"seed": 400, "lr": lr, "step": step,
               "ratios": {arm: [9.0, 2 ** 0.5 if arm == "GRPO-SG" else 2.0] for arm in progress.ARMS}}
              for lr, step in ((2e-4, 0), (2e-4, 15), (8e-4, 10), (8e-4, 20))]
    rows = []
    for runs in progress.list_runs(ratios):
        for name, (lr, arm) in runs.items():
            for seed in seeds:
                solved = 30 + seed % 7 + 64 * leads.get(name, 0)
                rows.append({"seed": seed, "runs": [{"lr": lr, "arm": arm, "solved": [solved] * 20}]})
    return ratios, rows


def test_outcomes_are_paired_differences_of_whole_seeds():
    ratios, rows = make_rows({"GRPO-SG": 0.02, "rate of GRPO-SG": 0.015, "higher": 0.01}, range(410, 420))
    assert progress.list_runs(ratios)[0]["rate of GRPO-SG"] == (pytest.approx(2e-4 * 2 ** 0.5, abs=1e-8), "GRPO")
    del rows[[(row["seed"], row["runs"][0]["arm"]) for row in rows].index((412, "lists only"))]
    predicted, leads, outcomes = progress.summarize(ratios, rows)
    assert predicted["GRPO-SG"] == predicted["rate of GRPO-SG"] == pytest.approx(0.0373 / 2)
    assert predicted["lists only"] == pytest.approx(0.0373)
    assert leads["GRPO-SG"].tolist() == pytest.approx([0.02] * 9)
    values = {name.split()[0]: values for name, values in outcomes.items() if "minus GRPO" in name}
    assert values["1."].tolist() == pytest.approx([0.005] * 9)
    expected = outcomes["6. predicted"].tolist()
    assert expected == pytest.approx([0.01 / math.log2(1.06)] * 10)  # log2(2) = 1 octave


def test_the_slope_is_1_if_every_lead_is_as_predicted():
    predicted = torch.tensor([0.01, 0.02]).double()
    noise = torch.tensor([[0.01, -0.01] * 10, [0.0] * 20])
    slope, low, high = progress.bootstrap_slope(predicted, predicted[:, None] + noise)
    # Each seed's slope is 1 +- 0.2, so the standard error of 20 seeds is 0.2 / sqrt(20).
    assert slope == pytest.approx(1) and (low, high) == pytest.approx((0.912, 1.088), abs=0.02)


@pytest.mark.parametrize("bounds, place", [
    ((-0.001, 0.0015), "within"), ((0.0016, 0.003), "outside"), ((-0.003, -0.0016), "outside"),
    ((0.001, 0.002), "inconclusive"), ((-0.002, 0.002), "inconclusive")])
def test_an_interval_is_judged_by_the_rule(bounds, place):
    assert progress.judge(*bounds) == place
