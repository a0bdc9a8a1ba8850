"""Blank exercises fail, the project's functions pass, and a bug fails with a line that names it."""
import inspect
import re

import pytest

import grpo_sg
import test_grpo_sg
from lesson import exercises, grade, test_core

NAMES = [name for name, value in vars(exercises).items() if inspect.isfunction(value)]


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """The reader's file, which does not exist yet. Afterwards the tests call grpo_sg again."""
    monkeypatch.setattr(grade, "MINE", tmp_path / "mine.py")
    for tests in test_core, test_grpo_sg:
        for name in grade.HINTS.keys() & vars(tests).keys():
            monkeypatch.setattr(tests, name, getattr(tests, name))
    return grade.MINE


def test_the_signatures_are_the_projects_and_each_exercise_has_tests_and_a_hint():
    assert list(grade.read_sections(test_grpo_sg)) == list(grade.HINTS) == NAMES
    assert list(grade.read_sections(test_core)) == NAMES[1:3] and len(NAMES) == 8
    for name in NAMES:
        heads = (inspect.signature(getattr(module, name)) for module in (exercises, grpo_sg))
        own, projects = ([parameter.replace(annotation=parameter.empty)
                          for parameter in head.parameters.values()] for head in heads)
        assert own == projects, name


def test_blank_exercises_fail_and_the_readers_file_is_made_once(reader, capsys):
    grade.main([])
    copied, _, done, first, failure, hint, *others = capsys.readouterr().out.splitlines()
    assert copied.startswith("copied lesson/exercises.py to mine.py") and done == "0 of 2: core not done yet"
    assert first.strip() == "group_advantages: 0 of 2 tests pass" and len(others) == 1
    assert re.search(r": NotImplementedError: group_advantages \(line \d+ of mine\.py\)$", failure)
    assert hint.endswith("python -m lesson.grade group_advantages --hint")
    reader.write_text("# my work")
    with pytest.raises(SystemExit, match="mine.py has no function token_weights"):
        grade.main([])
    grade.main(["draw", "--hint"])
    assert capsys.readouterr().out.startswith("take the first token")


def test_all_cases_run_on_the_readers_functions(reader):
    test = test_grpo_sg.test_loss_and_gradient_against_loops
    assert grade.list_cases(test) == [{"part": part} for part in test_grpo_sg.PARTS]
    assert grade.run_tests(exercises, test_grpo_sg, "pass_at_k")[0]
    assert all(getattr(test_grpo_sg, name) is getattr(exercises, name) for name in NAMES)


# As lesson/one_page.py writes it.
FORMULA = """
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)
    return (rewards - mean) / (std + 1e-6)"""
PLAIN = """
    A = advantages[:, None]
    r = (logps - old_logps.detach()).exp()
    objective = weights.detach() * torch.minimum(r * A, r.clamp(1 - clip_low, 1 + clip_high) * A)
    return -(objective * mask).sum() / mask.sum(), {}"""


def write_core(reader, change=("", "")):
    text = inspect.getsource(exercises)
    for name, body in (("group_advantages", FORMULA), ("grpo_sg_loss", PLAIN)):
        text = text.replace(f'\n    raise NotImplementedError("{name}")', body.replace(*change))
    reader.write_text(text)


def test_the_hour_ends_with_the_core_done_and_the_long_way_with_all(reader, monkeypatch, capsys):
    write_core(reader)
    grade.main([])
    _, done, end = capsys.readouterr().out.splitlines()
    assert done == "2 of 2: core done" and end.endswith("python -m lesson.grade all")
    grade.main(["token_weights"])
    assert capsys.readouterr().out.splitlines()[1] == "0 of 1: the rest, on which others rely, not done yet"
    monkeypatch.setattr(grade, "run_tests", lambda mine, tests, name: [None])
    grade.main(["all"])
    _, core, rest, end = capsys.readouterr().out.splitlines()
    assert core == "2 of 2: core done" and rest.startswith("8 of 8: ") and "whole method" in end


# What a body lacks, and the part of the core that fails first.
LACKS = [("formula", "std + 1e-6", "1"), ("formula", ".std(1, keep", ".std(1, False, keep"), ("equal", " + 1e-6", ""),
         ("formula", "rewards.std(1, keepdim=True)", "rewards.std()"), ("ratio", "return -", "return "),
         ("ratio", "(logps - old_logps.detach())", "(logps.detach() - old_logps)"), ("clip", "1 - clip_low", "0.8"),
         ("clip", "torch.minimum", "torch.maximum"), ("minimum", "torch.minimum(r * A, r.clamp", "(r.clamp"),
         ("weight", "weights.detach() *", ""), ("weight", "(logps - old_logps.detach()).exp()",
                                                "weights.detach() * (logps - old_logps.detach()).exp()"),
         ("mask", "(objective * mask).sum() / mask.sum()", "(objective * mask).mean()"),
         ("mask", "mask).sum() / mask.sum()", "mask).sum(1).div(mask.sum(1)).mean()"),
         ("constants", "weights.detach()", "weights")]


@pytest.mark.parametrize("part, right, wrong", LACKS)
def test_a_core_that_lacks_a_part_fails_there(part, right, wrong, reader, capsys):
    write_core(reader, (right, wrong))
    grade.main([])
    assert re.search(rf"1 of 2: core not .*\n.*\n +test_the_(loss\['{part}'|{part})|test_{part}", capsys.readouterr().out)
