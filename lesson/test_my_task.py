"""The example of a task trains, alone in a folder next to grpo_sg.py, and pays for right
letters."""
import pathlib
import runpy
import types

import pytest

import grpo_sg
import tasks
from lesson import my_task
from support import cli, tiny

SMALL = ("--steps 1 --group_size 2 --eval_problems 2 --train_problems 20 --max_new_tokens 4 "
         "--eval_samples 0")


@pytest.mark.parametrize("response, earned, correct", [
    ("dcba", 1, True), ("dcbb", 0.75, False), ("dcb", 0, False), ("dcbaa", 0, False)])
def test_what_the_reward_pays(response, earned, correct):
    problem = my_task.make_problem("abcd")
    verdict = my_task.verify(response, problem.answer)
    c = types.SimpleNamespace(formatted=verdict.formatted, response=response, problem=problem)
    assert verdict.correct == correct and my_task.reward(c) == earned


def test_no_problem_is_in_two_splits():
    task = my_task.make_backwards(grpo_sg.Config())
    problems = task.train + task.valid + task.test
    assert len({problem.question for problem in problems}) == len(problems) == 2200


def test_a_copy_trains(tmp_path, monkeypatch, capsys):
    (tmp_path / "own.py").write_text(pathlib.Path(my_task.__file__).read_text())
    monkeypatch.setattr(tiny, "warm_up", lambda *given: None)
    cli.add_extras()  # before the copy, or they would be lost with it
    monkeypatch.setattr(tasks, "TASKS", {})
    monkeypatch.setattr("sys.argv", ["own.py", *SMALL.split(), "--out", f"{tmp_path}/run"])
    runpy.run_path(f"{tmp_path}/own.py", run_name="__main__")
    assert "test after training: accuracy" in capsys.readouterr().out
