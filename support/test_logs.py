"""What is printed before training: the shares that decide whether anything is learned, and what to change."""
import pytest

from support import logs


@pytest.mark.parametrize("formed, cut, right, equal, advice", [
    (0.97, 0.02, 0.66, 0.41, None),
    (0.40, 0.60, 0.20, 0.50, "raise --max_new_tokens"),
    (0.00, 1.00, 0.00, 1.00, "raise --max_new_tokens"),  # the cause is named, and not what follows from it
    (0.04, 0.30, 0.00, 0.95, "an Instruct model"),
    (0.80, 0.10, 0.00, 0.60, "no completion is right"),
    (1.00, 0.00, 0.98, 0.95, "harder problems"),
    (1.00, 0.00, 0.02, 0.95, "easier problems (kk: --people 2 3), or raise --group_size")])
def test_the_shares_before_training_and_the_one_thing_to_change(formed, cut, right, equal, advice):
    row = {"eval/format_rate@4": formed, "eval/truncated@4": cut, "eval/avg@4": right, "eval/equal_groups@4": equal}
    shares, *rest = logs.foresee(row, 4)
    assert f"4 samples a problem: {100 * formed:.0f} % well formed, {100 * cut:.0f} % cut off" in shares
    assert f"{100 * equal:.0f} % of the problems have equal rewards" in shares
    assert advice in rest[0] if advice else not rest


def test_without_samples_the_greedy_completions_are_looked_at():
    """One completion of a problem has nothing to be compared with."""
    greedy = {"eval/format_rate": 0.01, "eval/truncated": 0.2, "eval/accuracy": 0.0}
    shares, advice = logs.foresee(greedy, 0)
    assert "greedy completions: 1 % well formed, 20 % cut off" in shares and "Instruct" in advice
    one = {"eval/format_rate@1": 1, "eval/truncated@1": 0, "eval/avg@1": 0.5, "eval/equal_groups@1": 1}
    assert logs.foresee({**greedy, **one}, 1) == ["1 samples a problem: 100 % well formed, 0 % cut off"]
