"""The task with a tool trains, and pays for right digits minus the price of a call."""
import pathlib
import re
import types

import pytest

import grpo_sg
from lesson import my_tool_task
from lesson.my_tool_task import BOOK
from support import tiny

baselines = pytest.importorskip("experiments.baselines")  # the folder may be deleted
LESSON = pathlib.Path(my_tool_task.__file__).parent
SMALL = "--steps 1 --group_size 2 --prompts 2 --updates 1 --max_new_tokens 8 --eval_samples 0"


@pytest.mark.parametrize("called, number, earned", [
    ("abc?", BOOK["abc"], 0.9), ("", BOOK["abc"], 1.0), ("abc?", "xyz", -1.0),
    ("abc?", BOOK["abc"][:2] + "x", -1.0), ("", BOOK["abc"] + "1", -1.0), ("", "", -1.0)])
def test_what_the_reward_pays(called, number, earned):
    problem = my_tool_task.make_problem("abc")
    correct, formatted = my_tool_task.verify(called + number, problem.answer)
    c = types.SimpleNamespace(correct=correct, formatted=formatted, problem=problem,
                              response=called + number, tool_calls=len(called) // 4)
    assert correct == (number == BOOK["abc"])
    assert my_tool_task.reward(c) == pytest.approx(earned)


def test_partial_credit():
    problem = my_tool_task.make_problem("abc")
    wrong_end = problem.answer[:2] + str((int(problem.answer[2]) + 1) % 10)
    c = types.SimpleNamespace(formatted=True, problem=problem, response=wrong_end, tool_calls=0)
    assert my_tool_task.reward(c) == pytest.approx(2 / 3)


def test_the_tool_answers_with_the_number():
    assert my_tool_task.answer_calls(["abc?", "xxabd?", "?"]) == [
        f"{BOOK['abc']}=", f"{BOOK['abd']}=", "none="]


def test_it_trains(tmp_path, capsys):
    tiny.main([my_tool_task.__file__, "--steps", "2", "--out", f"{tmp_path}/tiny"])
    grpo_sg.main(["--model", f"{tmp_path}/tiny", *SMALL.split(), "--out", f"{tmp_path}/run"])
    assert "test after step 1: greedy accuracy" in capsys.readouterr().out


def test_no_baseline_is_often_right():
    (label, task), = baselines.find_tasks(my_tool_task.__file__)
    lines = baselines.conclude(*baselines.measure(label, task))
    assert not [line for line in lines if "warning" in line]


def test_the_page_has_what_was_printed():
    text = (LESSON / "results" / "my_tool_task.txt").read_text(encoding="utf-8")
    (before, after), (_, expensive) = re.findall(r"avg@4 ([\d.]+) -> ([\d.]+)", text)
    page = " ".join((LESSON / "README.md").read_text(encoding="utf-8").split())
    assert f"avg@4 goes from {before} to {after} ([as printed](results/my_tool_task.txt))" in page
    assert f"avg@4 falls from {before} to {expensive}, " in page
