"""Grades OF=my_exercises_dapo; without it, tests the answers."""
import importlib
import os

import pytest

from lesson import exercises_dapo

given = os.environ.get("OF", "")
exercises = importlib.import_module(given if "dapo" in given else "lesson.answers_dapo")


@pytest.mark.parametrize("length, penalty", [
    (1, 0), (80, 0), (85, -0.25), (90, -0.5), (100, -1), (101, -1), (1000, -1)])
def test_the_penalty_is_a_ramp(length, penalty):
    found = exercises.overlong_penalty(length, longest=100, buffer=20)
    assert found == pytest.approx(penalty), f"{length} of 100 tokens: {found}, expected {penalty}"


def test_a_penalty_over_all_lengths():
    found = exercises.overlong_penalty(25, longest=50, buffer=50)
    assert found == pytest.approx(-0.5), f"25 of 50 tokens, buffer 50: {found}, expected -0.5"


class Groups:
    """Hands out these groups one after the other, and notes how many it was asked for."""

    def __init__(self, *groups):
        self.left = list(groups)
        self.asked = []

    def draw(self, n):
        self.asked.append(n)
        drawn, self.left = self.left[:n], self.left[n:]
        return drawn


def test_only_groups_that_differ_and_only_what_is_missing():
    groups = Groups([1, 1], [0, 1], [0, 0], [1, 0], [1, 1], [0, 3], [0, 9])
    kept = exercises.resample(groups.draw, 3, most=10)
    assert kept == [[0, 1], [1, 0], [0, 3]], f"{kept} were kept: the first three that differ"
    assert groups.asked == [3, 2, 1], f"draw was asked for {groups.asked}: 3, then what is missing"


def test_resampling_stops_after_most_draws():
    groups = Groups(*[[1, 1]] * 3, [0, 1], *[[0, 0]] * 20)
    kept = exercises.resample(groups.draw, 2, most=3)
    assert kept == [[0, 1]], f"{kept} were kept, expected the one group that differs"
    assert groups.asked == [2, 2, 1], f"draw was asked for {groups.asked}: at most 3 times"


def test_blanks_fail_and_say_what_to_do():
    with pytest.raises(NotImplementedError, match="overlong_penalty: three cases"):
        exercises_dapo.overlong_penalty(1, 2, 1)
    with pytest.raises(NotImplementedError, match="resample: call draw"):
        exercises_dapo.resample(None, 1, 1)
