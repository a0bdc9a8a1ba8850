"""The exercises can be graded: blanks fail, answers pass, wrong bodies fail with a message that
names the bug; what is done is counted."""
import gc
import importlib.util
import inspect
import itertools
import os
import re
import runpy
import subprocess
import sys
import tempfile
import types

import pytest

import grpo_sg
import test_grpo_sg
from lesson import exercises, mutants, progress

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
                gc.freeze()  # or each collection would scan all of PyTorch
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


def parameters_of(function):
    """Return the names, kinds and defaults of a function's parameters, without annotations."""
    parameters = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters]


def test_the_signatures_are_the_projects():
    assert len(NAMES) == 8
    for name in NAMES:
        assert parameters_of(getattr(exercises, name)) == parameters_of(getattr(grpo_sg, name)), name


def test_each_test_of_the_lesson_belongs_to_one_exercise():
    sections = progress.read_sections()
    assert list(sections) == NAMES
    tests = sum(sections.values(), [])
    assert all(sections.values()) and len(tests) == len(set(tests))
    assert set(tests) == test_grpo_sg.LESSON


@pytest.mark.parametrize("name", NAMES)
def test_each_exercise_has_a_hint_on_request(name, capsys):
    progress.main(["--hint", name])
    hint = capsys.readouterr().out
    assert hint.startswith(f"{name}: ") and len(hint) > len(name) + 40
    assert hint.split(": ", 1)[1].strip() not in inspect.getsource(exercises)


def test_a_hint_for_no_exercise_is_refused_with_their_names(capsys):
    with pytest.raises(SystemExit):
        progress.main(["--hint", "drew"])
    assert "'grpo_sg_loss', 'token_logps', 'draw'" in capsys.readouterr().err


def test_blank_exercises_fail_and_the_first_is_suggested(tmp_path, monkeypatch, capsys):
    told = show("lesson.exercises", tmp_path, monkeypatch, capsys)
    assert told[1] == "0 of 8 done"
    tests = len(progress.read_sections())
    assert told[2].startswith("next: token_weights, 0 of ") and len(told) == 4 + tests
    assert "NotImplementedError: token_weights" in told[3]
    assert "python -m lesson.exercises --hint token_weights" in told[4]


def test_the_readers_copy_is_made_once_and_a_named_exercise_is_shown_first(
        tmp_path, monkeypatch, capsys):
    """All tests of the first two pass, and of the loss's all but the first."""
    said = []
    for number, (name, tests) in enumerate(progress.read_sections().items()):
        for i, test in enumerate(tests):
            passed = number < 2 or name == "grpo_sg_loss" and i > 0
            said.append(f"PASSED test_grpo_sg.py::{test}[1]" if passed else
                        f"FAILED test_grpo_sg.py::{test} - {name}")
    monkeypatch.setattr(progress, "run_tests", lambda module: "\n".join(said))
    monkeypatch.setattr(progress, "MINE", str(tmp_path / "mine"))
    progress.main([])
    copy, told = tmp_path / "mine.py", capsys.readouterr().out.splitlines()
    assert copy.read_text() == inspect.getsource(exercises)
    assert told[2] == "2 of 8 done: token_weights, group_advantages"
    passed, of = map(int, re.match(r"next: grpo_sg_loss, (\d+) of (\d+) tests pass", told[3]).groups())
    assert passed == of - 1 > 3
    copy.write_text("# my work")
    progress.main(["draw"])
    told = capsys.readouterr().out.splitlines()
    assert told[2].startswith("next: draw, 0 of ") and told[3].endswith(" - draw")
    assert told[5].startswith("then: grpo_sg_loss") and copy.read_text() == "# my work"


def test_an_endless_loop_is_named_and_the_other_tests_run(monkeypatch):
    """The second test of the function fails without being run."""
    monkeypatch.setattr(progress, "LIMIT", 0.5)
    monkeypatch.setattr(progress, "endless", set())
    module = types.SimpleNamespace(**vars(grpo_sg))
    module.draw = lambda *given: sum(1 for _ in itertools.count())
    for told in ("no end after 0.5 seconds: is there an endless loop?",
                 "not run, because another test of draw did not end"):
        assert told in mutants.find_failure("draw", module)[1]
    monkeypatch.setattr(progress, "LIMIT", 10)
    assert mutants.find_failure("pass_at_k", module) == (None, None)


def test_the_answers_pass_all_tests(tmp_path, monkeypatch, capsys):
    told = show("lesson.answers", tmp_path, monkeypatch, capsys)
    assert told[1] == f"8 of 8 done: {', '.join(NAMES)}"
    assert "whole method" in told[2]


def test_what_keeps_the_tests_from_running_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "torn.py").write_text("import no_such_module")
    with pytest.raises(SystemExit, match=r"\n\S*torn.py:1: .*\nE .* 'no_such_module'$"):
        show("torn", tmp_path, monkeypatch, capsys)
    monkeypatch.setattr(progress, "MINE", str(tmp_path / "torn"))
    for text, message in (("def draw(:", "torn.py, line 1: invalid syntax"), ("\0", "null bytes")):
        (tmp_path / "torn.py").write_text(text)
        with pytest.raises(SystemExit, match=message):
            progress.main([])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "torch")
    with pytest.raises(SystemExit, match="not installed: torch: pip install -r requirements.txt"):
        runpy.run_path(progress.__file__)


# ---- Mutants: right bodies with one bug ----

# Mistakes that the tests did not see once, and what they say now.
SAMPLE = {
    ("token_weights", "alpha ignored"): "w at pi = 0.25 with {'alpha': 1.7} is 1.3093, expected",
    ("token_weights", "in place"): "logps after the call is",
    ("group_advantages", "only the first two compared"): "in the group [1.0, 1.0, 0.0, 0.0] is 0",
    ("group_advantages", "in place"): "rewards after the call is",
    ("group_advantages", "equal rewards found in the first group only"): "in a group of equal rewards",
    ("token_logps", "0 is a pad"): "whatever their ids",
    ("draw", "(B,) at temperature 0"): "the tokens have shape (2,), expected (B, 1)",
    ("draw", "the 50 most likely only"): "draw from the whole softmax",
    ("draw", "no p below 1e-4"): "draw from the whole softmax",
    ("draw", "no temperature below 0.5"): "the share of a token at temperature 0.2 is",
    ("learn", "no shuffle"): "shuffle the completions by the seed",
    ("learn", "clips swapped"): "clip_low is 0.24, expected cfg.clip_low = 0.2",
    ("learn", "the loss times the minibatches"): "the gradient has 2 times the expected norm",
    ("learn", "no zero_grad"): "call zero_grad",
    ("grpo_sg_loss", "no weights"): "with w = 1.4, A = 1, r = 1 is -1, expected -1.4",
    ("grpo_sg_loss", "w inside the clip"): "with w = 1.4, A = 1, r = 1 is 0, expected -1.4",
    ("grpo_sg_loss", "no clip"): "the gradient for a clipped token with A > 0 (r = 1.2) is -1.2, expected 0; ",
    ("grpo_sg_loss", "only the clip"): "the gradient for a token that went the other way",
    ("grpo_sg_loss", "clip_low ignored"): "a token within the clip with A < 0 (r = 0.75) is 0, expected 0.75",
    ("grpo_sg_loss", "a sum"): "the loss with token-mean is -7, expected -1.75",
    ("grpo_sg_loss", "a dual clip"): "that went the other way with A < 0 (r = 3.3) is 0, expected 3.3",
    ("grpo_sg_loss", "0 / 0 of a batch without tokens"): "the loss of a batch without tokens is nan, expected 0",
    ("grpo_sg_loss", "no KL"): "is -0, expected 0.156876: beta (x - 1 - log x)",
    ("grpo_sg_loss", "w times the KL"): "w scales the advantage, not the KL"}


@pytest.mark.parametrize("function, title", SAMPLE)
def test_a_wrong_body_is_named(function, title, monkeypatch):
    if function == "learn" and title != "no shuffle":  # spare it the test of the shuffle
        monkeypatch.setattr(mutants, "OPTIONS", [*mutants.OPTIONS, "-k", "one_plain_step"])
    old, new = {name: replacement for name, *replacement in mutants.MUTANTS[function]}[title]
    test, message = mutants.find_failure(function, mutants.mutate(function, old, new))
    assert test and SAMPLE[function, title] in message


def test_each_mutant_can_be_made_and_has_a_name_of_its_own():
    for function, bugs in mutants.MUTANTS.items():
        assert len({title for title, *_ in bugs}) == len(bugs)
        for _, old, new in bugs:
            mutants.mutate(function, old, new)


def test_survivors_are_listed(monkeypatch, capsys):
    found = iter([("test_pass", "is 1, expected 0"), (None, None), ("test_pass", "is 3")])
    monkeypatch.setattr(mutants, "find_failure", lambda function, module: next(found))
    monkeypatch.setitem(mutants.MUTANTS, "pass_at_k", mutants.MUTANTS["pass_at_k"][:3])
    mutants.main(["pass_at_k"])
    assert capsys.readouterr().out.splitlines() == [
        "pass_at_k, with replacement: caught by test_pass: is 1, expected 0",
        "pass_at_k, none right: SURVIVED", "pass_at_k, all right: caught by test_pass: is 3",
        "2 of 3 caught, 1 survived: pass_at_k, none right"]
    with pytest.raises(SystemExit):
        mutants.main(["pass_k"])
    assert "there is no 'pass_k': give some of token_weights" in capsys.readouterr().err
