"""The example of a task trains, alone in a folder next to grpo_sg.py, and pays for right
letters."""
import pathlib
import types

import pytest

import grpo_sg
from lesson import my_task
from support import tiny

SMALL = "--steps 1 --group_size 2 --prompts 2 --updates 1 --max_new_tokens 4 --eval_samples 0"


@pytest.mark.parametrize("response, earned, correct", [
    ("dcba", 1, True), ("dcbb", 0.75, False), ("dcb", 0, False), ("dcbaa", 0, False)])
def test_what_the_reward_pays(response, earned, correct):
    problem = my_task.make_problem("abcd")
    verdict = my_task.verify(response, problem.answer)
    c = types.SimpleNamespace(formatted=verdict.formatted, response=response, problem=problem)
    assert verdict.correct == correct and my_task.reward(c) == earned


def test_no_problem_is_in_two_splits():
    """And none of a seed is in another split of another seed: one tiny model serves all."""
    task = my_task.make_task(grpo_sg.Config())
    problems = task.train + task.valid + task.test
    assert len({problem.question for problem in problems}) == len(problems) == 2200
    assert my_task.make_task(grpo_sg.Config(seed=1)).test == task.test


def test_a_copy_trains(tmp_path, capsys):
    """In two commands: its tiny model, and RL."""
    own = tmp_path / "own.py"
    own.write_text(pathlib.Path(my_task.__file__).read_text())
    tiny.main([str(own), "--steps", "2", "--out", f"{tmp_path}/tiny"])
    flags = f"--task {own} --model {tmp_path}/tiny {SMALL} --out {tmp_path}/run"
    grpo_sg.main(flags.split())
    assert "test after step 1: greedy accuracy" in capsys.readouterr().out
