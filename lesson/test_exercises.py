"""The exercises can be graded: blanks fail, each with its hint; the project's functions pass;
what is done is counted."""
import inspect
import os
import subprocess
import sys
import tempfile

import pytest

import grpo_sg
import test_grpo_sg
from lesson import exercises, progress

NAMES = [name for name, value in vars(exercises).items() if inspect.isfunction(value)]


def run_in_a_copy(command, *, cwd, env, **more):
    """As subprocess.run of pytest, but in a copy of this process, which has loaded PyTorch."""
    assert command[:3] == [sys.executable, "-m", "pytest"]
    with tempfile.TemporaryFile("w+") as file:
        number = os.fork()
        if number == 0:
            try:
                for stream in (1, 2):
                    os.dup2(file.fileno(), stream)
                sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
                os.chdir(cwd)
                os.environ.update(env)
                sys.path[:0] = env["PYTHONPATH"].split(os.pathsep)
                sys.modules.pop("test_grpo_sg")
                pytest.main(command[3:])
                sys.stdout.flush()
            finally:
                os._exit(0)
        os.waitpid(number, 0)
        file.seek(0)
        return subprocess.CompletedProcess(command, 0, file.read(), "")


def show(module, folder, monkeypatch, capsys):
    """What is printed of a module in the folder, which is not the project's."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(subprocess, "run", run_in_a_copy)
    progress.show(module)
    return capsys.readouterr().out.splitlines()


def test_the_signatures_are_the_projects():
    assert len(NAMES) == 8
    for name in NAMES:
        own = inspect.signature(getattr(exercises, name))
        assert own == inspect.signature(getattr(grpo_sg, name)), name


def test_each_test_of_the_lesson_belongs_to_one_exercise():
    sections = progress.read_sections()
    assert list(sections) == NAMES
    tests = sum(sections.values(), [])
    assert all(sections.values()) and len(tests) == len(set(tests))
    assert set(tests) == test_grpo_sg.LESSON


@pytest.mark.parametrize("name", NAMES)
def test_each_blank_says_what_to_do(name):
    blank = getattr(exercises, name)
    needed = []
    for parameter in inspect.signature(blank).parameters.values():
        if parameter.default is parameter.empty:
            needed.append(None)
    with pytest.raises(NotImplementedError, match=f"^{name}: "):
        blank(*needed)


def test_blanks_fail_and_the_first_comes_next(tmp_path, monkeypatch, capsys):
    told = show("lesson.exercises", tmp_path, monkeypatch, capsys)
    assert told[1] == "0 of 8 done"
    assert told[2].startswith("next: token_weights, of whose tests 0 of 9 pass")
    assert "NotImplementedError: token_weights: take pi from logps" in told[3]


HALF = """
import torch
from grpo_sg import token_weights, group_advantages, token_logps, draw, make_batch
from lesson.exercises import learn, pass_at_k

def grpo_sg_loss(logps, old_logps, advantages, mask, *, weights=None, ref_logps=None,
                 clip_low=0.2, clip_high=0.24, beta=0.0, loss_agg_mode="token-mean",
                 denominator=None):
    r = (logps - old_logps).exp()
    A = advantages.reshape(len(logps), -1)
    objective = torch.minimum(r * A, r.clamp(1 - clip_low, 1 + clip_high) * A)
    if weights is not None:
        objective = weights * objective
    return -(objective * mask).sum() / mask.sum(), {}
"""


def test_half_of_it_is_counted(tmp_path, monkeypatch, capsys):
    """The loss keeps no nan out, and has neither KL nor the mean over completions."""
    (tmp_path / "half.py").write_text(HALF)
    told = show("half", tmp_path, monkeypatch, capsys)
    assert told[1] == ("5 of 8 done: token_weights, group_advantages, token_logps, draw, "
                       "make_batch")
    passed, of = map(int, told[2].split("of whose tests ")[1].split(" pass")[0].split(" of "))
    assert told[2].startswith("next: grpo_sg_loss") and 3 < passed < of
    assert told[3].strip().startswith("test_loss_and_gradient_against_loops[0 at pads")
    assert "not the loss of the loops" in told[3]


def test_who_passes_all_tests_has_the_whole_method(monkeypatch, capsys):
    """As the project's functions do: all other tests of this run say so."""
    passed = [f"PASSED test_grpo_sg.py::{test}[case]\n" for test in test_grpo_sg.LESSON]
    monkeypatch.setattr(progress, "run_tests", lambda module: "".join(passed))
    progress.show("solved")
    told = capsys.readouterr().out.splitlines()
    assert told[1] == f"8 of 8 done: {', '.join(NAMES)}"
    assert "whole method" in told[2]


def test_what_cannot_be_imported_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "torn.py").write_text("def token_weights(:\n")
    with pytest.raises(SystemExit, match="the tests did not run"):
        show("torn", tmp_path, monkeypatch, capsys)
