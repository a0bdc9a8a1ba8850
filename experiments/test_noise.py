"""The experiment on noise changes only what it says, and its slope is that of a line."""
import pytest
import torch

from experiments import noise


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
