"""A rung prints its question first, and its answer says what its runs did."""
import re

import pytest
import torch

from lesson import ladder


def run(argv, capsys):
    """Return (the lines printed, {title: the last number of each seed})."""
    ladder.main(argv)
    lines = capsys.readouterr().out.splitlines()
    found = {}
    for title, last in re.findall(r"^(\w.*?) +seed \d \|.*\| (\d\.\d\d)$", "\n".join(lines), re.M):
        found.setdefault(title, []).append(float(last))
    return lines, found


def test_each_rung_prints_its_question_its_runs_and_its_answer(monkeypatch, capsys):
    def train(seed, objective_of, updates):
        assert objective_of(*torch.zeros(3, 2, 5)).shape == (2, 5)
        return [0.9, 0.0, 0.0, 0.0, 0.5 + 0.1 * seed, 1.0]
    monkeypatch.setattr(ladder, "train", train)
    lines, found = run([], capsys)
    starts = [line.split(":")[0] for line in lines if re.match(r"(Rung \w+\. Predict|Answer): ", line)]
    assert starts == ["Rung 4. Predict", "Answer", "Rung 5a. Predict", "Answer", "Rung 5b. Predict", "Answer"]
    assert list(found) == [title for _, runs, _ in ladder.RUNGS.values() for title, *_ in runs]
    assert all(rewards == [0.3, 0.32, 0.34] for rewards in found.values()) and "|█   ▄█| 0.30" in lines[4]


def test_bad_completions_alone_spoil_the_policy_and_the_clipped_ratio_does_not(monkeypatch):
    monkeypatch.setattr(ladder, "STEPS", 10)
    monkeypatch.setattr(ladder, "P", 8)
    bad, clipped = (ladder.train(0, objective) for objective in (ladder.bad_only, ladder.clipped_ratio))
    assert max(bad) < 0.4 < 0.6 < clipped[-1]
    assert ladder.reward([3], [4, 5, 6, 7, 0]) == 1 and ladder.reward([3], [5, 6, 0]) == 1/3
    moved = []
    ladder.train(0, lambda logps, old, A: moved.append((logps != old).any()) or ladder.ratio(logps, old, A))
    assert moved == [False, True, True, True] * 10, "the old policy is that which sampled"


@pytest.mark.release
def test_the_answers_are_true_of_their_three_seeds(capsys):
    _, found = run([], capsys)
    one, four, good, bad, ratio, clip, no_minimum = found.values()
    assert max(four) < min(one) and min(good) > 0.9 and max(bad) < 0.3
    assert min(ratio) > min(four) and abs(sum(ratio) - sum(one)) < 0.3
    assert min(clip) > max(one) + 0.1 and no_minimum[2] < 0.93 < min(no_minimum[:2])


def test_the_table_of_the_clip_is_right():
    table = re.findall(r"^ +A ([<>]) 0 +(\w+) +(\w+) +(\w+)", ladder.ANSWER_5B, re.M)
    assert len(table) == 2
    for sign, *cells in table:
        for r, cell in zip((0.5, 0.9, 1.5), cells):
            logps = torch.tensor(r).log().requires_grad_()
            ladder.clipped_ratio(logps, torch.tensor(0.0), 1.0 if sign == ">" else -1.0).backward()
            assert (cell == "yes") == (logps.grad != 0), (sign, r)
