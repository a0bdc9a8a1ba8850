"""The exercises can be graded: blanks fail, each by its own name; the project's functions pass."""
import inspect
import os
import pathlib
import subprocess
import sys

import grpo_sg
from lesson import exercises

ROOT = pathlib.Path(__file__).parents[1]
NAMES = [name for name, value in vars(exercises).items() if inspect.isfunction(value)]


def grade(module, folder=ROOT):
    """The output of the command that the exercises name, with OF=module."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "test_grpo_sg.py"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "OF": module, "PYTHONPATH": path},
                          capture_output=True, text=True).stdout


def test_the_signatures_are_the_projects():
    assert len(NAMES) == 6
    for name in NAMES:
        own = inspect.signature(getattr(exercises, name))
        assert own == inspect.signature(getattr(grpo_sg, name)), name


def test_blanks_fail_with_a_hint():
    output = grade("lesson.exercises")
    assert "passed" not in output.splitlines()[-1]
    for name in NAMES:
        assert f"NotImplementedError: {name}: " in output


def test_the_projects_functions_pass_the_lesson_alone(tmp_path):
    (tmp_path / "solved.py").write_text(f"from grpo_sg import {', '.join(NAMES)}\n")
    last = grade("solved", tmp_path).splitlines()[-1]
    assert "failed" not in last and "error" not in last
    assert 20 < int(last.split(" passed")[0]) < 60  # not the tests of the whole program
