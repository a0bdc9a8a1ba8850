"""The lesson's tasks: what their rewards pay, what their splits have, and that each trains."""
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import grpo_sg
import tasks
from lesson import my_task, real_model, wrong_reward
from support import tiny

REAL_MODEL = os.environ.get("REAL_MODEL", "")  # a folder made by support/smollm.py
SMALL = "--steps 1 --group_size 2 --prompts 2 --updates 1 --max_new_tokens 8 --eval_samples 0"


def make(module, **settings):
    return module.make_task(grpo_sg.Config(**{**getattr(module, "SETTINGS", {}), **settings}))


def grade(task, question, response):
    """Return (the verdict, the reward) of a response to the problem with this question."""
    problem = next(problem for problem in task.train if problem.question == question)
    verdict = task.verify(response, problem.answer)
    return verdict, task.reward(SimpleNamespace(problem=problem, response=response, **verdict._asdict()))


@pytest.mark.parametrize("module", [my_task, wrong_reward])
def test_a_copy_trains_from_its_tiny_model(module, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text(Path(module.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    tiny.main([str(own), "--steps=2", "--train_problems=99", f"--out={tmp_path}/tiny"])
    grpo_sg.main(f"--task {own} --model {tmp_path}/tiny {SMALL} --out {tmp_path}/run".split())
    assert "of the model's greedy answers to the test problems" in capsys.readouterr().out


@pytest.mark.parametrize("module", [my_task, wrong_reward, real_model])
def test_splits_share_no_problem_and_no_verifier_refuses_its_answer(module):
    """Whatever the seed, because one tiny model serves all of them."""
    task = make(module)
    problems = task.train + task.valid + task.test
    meanings = {tuple(sorted(tasks.list_messages("", problem.question)[-1]["content"].split("+")))
                for problem in problems}
    assert len(meanings) == len(problems) >= 275
    assert [x.question for x in make(module, seed=1).test] == [x.question for x in task.test]
    for problem in task.test:
        response = problem.solution or f"\\boxed{{{problem.answer}}}"
        assert task.verify(response, problem.answer) == (True, True)


def test_my_task_pays_for_correct_letters():
    task = make(my_task)
    word = task.train[0].question
    right = word[::-1]
    wrong = "x" if right[3] != "x" else "y"
    assert grade(task, word, right) == ((True, True), 1.0)
    assert grade(task, word, right[:3] + wrong) == ((False, True), 0.75)
    assert grade(task, word, right[:3])[1] == grade(task, word, right + "a")[1] == 0


@pytest.mark.parametrize("data, attempt", [("order", -3.0), ("letters", -0.5)])
def test_wrong_reward_differs_in_what_a_failed_attempt_costs(data, attempt):
    task = make(wrong_reward, data=data)
    word = task.train[0].question
    right = "".join(sorted(word))
    earned = [grade(task, word, response)[1] for response in (
        right, word, right[:4] + right[0], right[:4], right + right[0], right.upper(), right[:4] + "x")]
    assert earned == [3.0, -0.5, attempt, -3.0, -3.0, -3.0, -3.0]


def test_the_real_model_sees_its_example_as_a_turn_and_earns_nothing_by_a_copy():
    task = make(real_model)
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
