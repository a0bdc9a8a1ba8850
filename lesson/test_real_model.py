"""The recipe for a real model: its problems, and three steps with the real tokenizer and chat
template. The second test needs the model: set REAL_MODEL to a folder made by support/smollm.py."""
import json
import os

import pytest

import grpo_sg
from lesson import real_model

FOLDER = os.environ.get("REAL_MODEL", "")


def test_no_sum_is_in_two_splits_and_none_is_the_example():
    task = real_model.make_task(grpo_sg.Config(seed=3))
    problems = task.train + task.valid + task.test
    pairs = {tuple(sorted(map(int, problem.question.split("+")))) for problem in problems}
    assert len(pairs) == len(problems) == 275 and len(task.test) == 64 and len(task.valid) == 16
    assert (7, 12) not in pairs
    for problem in problems:
        a, b = map(int, problem.question.split("+"))
        assert problem.answer == str(a + b)
        assert task.verify(f"{a}+{b} = \\boxed{{{a + b}}}", problem.answer) == (True, True)


def test_each_seed_has_its_own_test_problems():
    first, second = (real_model.make_task(grpo_sg.Config(seed=seed)).test for seed in (0, 1))
    assert first != second and first == real_model.make_task(grpo_sg.Config(seed=0)).test


@pytest.mark.release
@pytest.mark.skipif(not FOLDER, reason="REAL_MODEL does not name the folder of a real model")
def test_a_real_model_learns_in_three_steps(tmp_path):
    grpo_sg.main(["--task", real_model.__file__, "--model", FOLDER, "--steps", "3",
                  "--eval_samples", "0", "--out", f"{tmp_path}/run"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    steps = [row for row in rows if "split" not in row]
    assert steps[0]["equal_groups"] < 1, "no learning signal in the first step"
    assert steps[-1]["reward"] > steps[0]["reward"] + 0.5
    samples = (tmp_path / "run" / "samples.jsonl").read_text()
    assert "\\\\boxed{" in samples and "<|im_end|>" not in samples
