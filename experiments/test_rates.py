"""The ratio and the weights of experiments/rates.py, on numbers that can be checked by hand."""
import types

import pytest
import torch

from experiments import rates


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
