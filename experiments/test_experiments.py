"""The statistics are right, and no import points up the house."""
import pathlib
import random
import re

import pytest

from experiments import compare

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
