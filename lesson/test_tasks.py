"""The lesson's tasks: what their rewards pay, what their splits have, and that each trains."""
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import grpo_sg
import tasks
from lesson import my_task, my_tool_task, real_model, words, wrong_reward
from lesson.my_tool_task import BOOK
from support import tiny

FILES = [Path(module.__file__) for module in (my_task, my_tool_task, words, wrong_reward)]
REAL_MODEL = os.environ.get("REAL_MODEL", "")  # a folder made by support/smollm.py
SMALL = "--steps 1 --group_size 2 --prompts 2 --updates 1 --max_new_tokens 8 --eval_samples 0"
WORD = f"(?:{'|'.join(tasks.STYLE)})"
KK = dict(people=[3], brief=True, train_problems=40, eval_problems=5)


def grade(task, question, response, calls=0):
    """Return (the verdict, the reward) of a response to the problem with this question."""
    problem = next(problem for problem in task.train if problem.question == question)
    verdict = task.verify(response, problem.answer)
    return verdict, task.reward(SimpleNamespace(
        problem=problem, response=response, tool_calls=calls, **verdict._asdict()))


def make(module, **settings):
    return module.make_task(grpo_sg.Config(**settings))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_copy_trains_from_its_tiny_model(path, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    tiny.main([str(own), "--steps=2", "--train_problems=99", f"--out={tmp_path}/tiny"])
    grpo_sg.main(f"--model {tmp_path}/tiny {SMALL} --out {tmp_path}/run".split())
    assert "test after step 1: greedy accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("module", [my_task, wrong_reward, real_model])
def test_no_problem_is_in_two_splits_and_no_verifier_refuses_its_answer(module):
    task = make(module, seed=3, **getattr(module, "SETTINGS", {}))
    problems = task.train + task.valid + task.test
    meanings = {tuple(sorted(tasks.list_messages("", problem.question)[-1]["content"].split("+")))
                for problem in problems}
    assert len(meanings) == len(problems) >= 275
    for problem in task.test:
        response = problem.solution or f"\\boxed{{{problem.answer}}}"
        assert task.verify(response, problem.answer) == (True, True)


@pytest.mark.parametrize("module", [my_task, my_tool_task, real_model, wrong_reward])
def test_a_task_has_one_split_for_all_seeds(module):
    first, second = (make(module, seed=seed, data="order").test for seed in (0, 1))
    assert [x.question for x in first] == [x.question for x in second]


def test_my_task_pays_for_correct_letters():
    task = make(my_task)
    word = task.train[0].question
    right = word[::-1]
    wrong = "x" if right[3] != "x" else "y"
    assert grade(task, word, right) == ((True, True), 1.0)
    assert grade(task, word, right[:3] + wrong) == ((False, True), 0.75)
    assert grade(task, word, right[:3])[1] == grade(task, word, right + "a")[1] == 0


def test_my_tool_task_pays_for_digits_and_takes_a_price_for_a_call():
    task = make(my_tool_task)
    name = task.train[0].question
    number = BOOK[name]
    assert task.write.observe([f"{name}?"]) == my_tool_task.answer_calls([f"{name}?"]) == [f"{number}="]
    assert my_tool_task.answer_calls(["?"]) == ["none="]
    assert grade(task, name, f"{name}?{number}", calls=1) == ((True, True), pytest.approx(0.9))
    assert grade(task, name, number[:2] + "x") == ((False, False), -1.0)
    wrong = number[:2] + str((int(number[2]) + 1) % 10)
    assert grade(task, name, wrong) == ((False, True), pytest.approx(2 / 3))


@pytest.mark.parametrize("data, attempt", [("order", -3.0), ("letters", -0.5)])
def test_wrong_reward_differs_in_what_a_failed_attempt_costs(data, attempt):
    task = make(wrong_reward, data=data)
    word = task.train[0].question
    right = "".join(sorted(word))
    earned = [grade(task, word, response)[1] for response in (
        right, word, right[:4] + right[0], right[:4], right + right[0], right.upper(), right[:4] + "x")]
    assert earned == [3.0, -0.5, attempt, -3.0, -3.0, -3.0, -3.0]


@pytest.mark.parametrize("place, line", [
    ("nowhere", r"\w+:"), ("before", rf"{WORD} \w+:"), ("after", rf"\w+, {WORD}:"),
    ("before-4", rf"(?:{WORD} ){{4}}\w+:"), ("after-4", rf"\w+,(?: {WORD}){{4}}:")])
def test_the_words_stand_where_data_says_and_nothing_else_changes(place, line):
    task, usual = make(words, data=place, **KK), tasks.kk_task(grpo_sg.Config(**KK))
    for problem, other in zip(task.train, usual.train, strict=True):
        assert problem._replace(solution="", shortcut="") == other._replace(solution="", shortcut="")
        assert tasks.verify_kk(problem.solution, problem.answer) == (True, True)
        for text, old in ((problem.solution, other.solution), (problem.shortcut, other.shortcut)):
            assert re.fullmatch(rf"<think>(?: {line}(?: [KN]{{3}})+\.)+ </think> <answer> .*", text)
            assert re.findall("[KN]{3}|[A-Z][a-z]+", text) == re.findall("[KN]{3}|[A-Z][a-z]+", old)


@pytest.mark.parametrize("module", [words, wrong_reward])
def test_an_unknown_data_is_one_line(module):
    with pytest.raises(tasks.UserError, match=r"--data above is not one of (nowhere|order), "):
        make(module, data="above")


def test_the_real_model_sees_its_example_as_a_turn_and_earns_nothing_by_a_copy():
    task = make(real_model, **real_model.SETTINGS)
    copy = real_model.EXAMPLE[1]["content"]
    assert task.verify(copy, "19") == (True, True)
    for problem in task.train + task.valid + task.test:
        *example, last = problem.question
        assert example == real_model.EXAMPLE and last["content"] not in ("12+7", "7+12")
        assert (task.verify(copy, problem.answer) == task.verify(r"\boxed{99}", problem.answer)) == (
            problem.answer != "19")


@pytest.mark.release
@pytest.mark.skipif(not REAL_MODEL, reason="REAL_MODEL does not name the folder of a real model")
def test_a_real_model_has_the_format_from_its_first_step_and_learns(tmp_path):
    grpo_sg.main(["--task", real_model.__file__, "--model", REAL_MODEL, "--steps", "3", "--seed", "3",
                  "--eval_samples", "0", "--out", f"{tmp_path}/run"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    before, *steps, after = rows
    assert steps[0]["format_rate"] > 0.8 and steps[0]["equal_groups"] < 0.6
    assert after["eval/reward"] > before["eval/reward"] + 0.1
    samples = (tmp_path / "run" / "samples.jsonl").read_text()
    assert "\\\\boxed{" in samples and "<|im_end|>" not in samples
