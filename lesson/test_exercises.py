"""Blank exercises fail, the project's functions pass, and a bug fails with a line that names it."""
import inspect
import re
import runpy
import sys

import pytest

import grpo_sg
import test_grpo_sg
from lesson import exercises, grade, test_core

NAMES = [name for name, value in vars(exercises).items() if inspect.isfunction(value)]


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """The reader's file, which does not exist yet. Afterwards the tests call grpo_sg again."""
    monkeypatch.setattr(grade, "FOLDER", tmp_path)
    for tests in test_core, test_grpo_sg:
        for name in grade.HINTS.keys() & vars(tests).keys():
            monkeypatch.setattr(tests, name, getattr(tests, name))
    return tmp_path / "my_exercises.py"


def grade_here(reader, part="core"):
    """Grade in this process, which takes less time than one of its own."""
    return grade.grade(grade.load_file(reader, "exercises.py", NAMES), part)


def test_the_signatures_are_the_projects_and_each_exercise_has_tests_and_a_hint():
    assert list(grade.read_sections(test_grpo_sg)) == list(grade.HINTS) == NAMES
    assert list(grade.read_sections(test_core)) == NAMES[1:3] and len(NAMES) == 8
    for name in NAMES:
        heads = (inspect.signature(getattr(module, name)) for module in (exercises, grpo_sg))
        own, projects = ([parameter.replace(annotation=parameter.empty)
                          for parameter in head.parameters.values()] for head in heads)
        assert own == projects, name


def test_blank_exercises_fail_and_the_readers_file_is_made_once(reader, capsys):
    assert not grade.main([])
    copied, _, done, first, failure, hint, *others = capsys.readouterr().out.splitlines()
    assert copied.startswith("copied lesson/exercises.py to my_exercises.py") and done == "0 of 2: core not done yet"
    assert first.strip() == "group_advantages: 0 of 2 tests pass" and len(others) == 1
    assert re.search(r": NotImplementedError: group_advantages \(line \d+ of my_exercises\.py\)$", failure)
    assert hint.endswith("python -m lesson.grade group_advantages --hint")
    reader.write_text("# my work")
    assert not grade.main([])
    assert capsys.readouterr().out.startswith("error: my_exercises.py has no function token_weights: copy its head from")
    grade.main(["draw", "--hint"])
    assert capsys.readouterr().out.startswith("take the first token")


@pytest.mark.parametrize("end, said", [
    ("exit()", "ended with exit status 0 before all was graded"),
    ("import os; os._exit(0)", "ended with exit status 0 before all was graded"),
    ("def group_advantages(*_):\n    exit()", "ended with exit status 0 before all was graded"),
    ("raise ValueError('here')", "ended with exit status 1 before all was graded"),
    ("import ctypes; ctypes.string_at(0)", "crashed with SIGSEGV"),
    ("while True: pass", "took longer than 3 seconds"),
    ("while True: print('line')", "printed more than 100,000 characters"),
    ("while True: print('x', end='')", "printed more than 100,000 characters")])
def test_a_file_that_ends_the_process_or_does_not_end_is_not_done(end, said, reader, monkeypatch, capsys):
    """Though its core is right."""
    monkeypatch.setattr(grade, "SECONDS", 3 if "seconds" in said else 120)
    write_core(reader)
    reader.write_text(f"{reader.read_text()}\n{end}\n")
    assert not grade.main([])
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].endswith(f"not done: my_exercises.py {said}") and len(printed) < 110_000
    assert ("ValueError: here" in printed) == ("ValueError" in end)  # with its traceback


def test_the_exit_status_says_whether_something_is_missing_in_a_file_that_is_named(
        reader, tmp_path, capsys, monkeypatch):
    """As a teacher needs it, for a student's file in another folder."""
    (tmp_path / "class").mkdir()
    student = tmp_path / "class" / "ada.py"
    write_core(student)
    wrong = tmp_path / "class" / "amir.py"
    write_core(wrong, ("return -", "return "))
    for path, status, said in ((student, 0, "2 of 2: core done"), (wrong, 1, "1 of 2: core not")):
        monkeypatch.setattr(sys, "argv", ["grade", "core", "--file", str(path)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(grade.__file__, run_name="__main__")
        printed = capsys.readouterr().out
        assert end.value.code == status and said in printed, printed
        assert f"running the tests on {path.name}\n" in printed
    assert "of amir.py)" not in printed and not reader.exists()  # nothing was copied
    with pytest.raises(SystemExit, match="^error: --file nobody.py: there is no such file$"):
        grade.main(["core", "--file", "nobody.py"])
    assert not grade.main(["--hint"]) and grade.main(["draw", "--hint"])


def test_a_failure_names_the_innermost_line_of_the_readers_file(reader):
    text = "\n".join(f"def {name}(*_, **__):\n    return help()" for name in NAMES)
    reader.write_text(f"def help():\n    raise ValueError('here')\n\n\n{text}\n")
    mine = grade.load_file(reader, "exercises.py", NAMES)
    failure, *_ = grade.run_tests(mine, test_core, "group_advantages")
    assert failure.endswith("ValueError: here (line 2 of my_exercises.py)")


# Right, but written so that it reads single values, or with nan outside of the mask.
LOOPS = """
    r = (logps - old_logps.detach()).masked_fill(~mask.bool(), 0.0).exp()
    total = logps.new_zeros(())
    for b in range(len(logps)):
        for t in range(logps.shape[1]):
            if mask[b, t]:
                A = advantages[b] if advantages.dim() == 1 else advantages[b, t]
                w = 1.0 if weights is None else weights[b, t].detach()
                clipped = r[b, t].clamp(1 - clip_low, 1 + clip_high)
                total = total + w * torch.minimum(r[b, t] * A, clipped * A)
                if beta:
                    log_x = ref_logps[b, t].detach() - logps[b, t]
                    total = total - beta * (torch.expm1(log_x) - log_x)
    count = mask.bool().sum().clamp(min=1) if denominator is None else denominator
    return -total / count + 0 * logps.masked_fill(~mask.bool(), 0.0).sum(), {}"""
PRODUCT = """
    logits = model(input_ids=ids[:, :-1]).logits.float() / temperature
    out = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return F.pad(out, (1, 0)) * mask"""


def write_body(reader, name, body):
    text = inspect.getsource(exercises)
    reader.write_text(text.replace(f'\n    raise NotImplementedError("{name}")', body))
    return grade.load_file(reader, "exercises.py", NAMES)


def test_a_right_loss_may_read_single_values(reader):
    mine = write_body(reader, "grpo_sg_loss", LOOPS)
    failures = grade.run_tests(mine, test_grpo_sg, "grpo_sg_loss")
    assert not [failure for failure in failures if failure and "meta" in failure]
    assert failures[0] is None and failures.count(None) == len(failures), failures


def test_a_product_with_the_mask_is_named_as_what_it_is(reader):
    mine = write_body(reader, "token_logps", PRODUCT)
    failed = [failure for failure in grade.run_tests(mine, test_grpo_sg, "token_logps") if failure]
    assert len(failed) == 2 and all("-inf times 0 would be nan" in line for line in failed), failed
    right = PRODUCT.replace(" * mask", ".masked_fill(~mask, 0.0)")
    mine = write_body(reader, "token_logps", right)
    assert not any(grade.run_tests(mine, test_grpo_sg, "token_logps"))


def test_a_tensor_on_another_device_than_the_input_is_named(reader):
    body = "\n    return torch.zeros(rewards.shape) + rewards - rewards"
    mine = write_body(reader, "group_advantages", body)
    failures = grade.run_tests(mine, test_grpo_sg, "group_advantages")
    assert any("make new tensors on the input's device" in str(line) for line in failures), failures


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
    assert grade_here(reader)
    _, done, end = capsys.readouterr().out.splitlines()
    assert done == "2 of 2: core done" and end.endswith("python -m lesson.grade all")
    assert not grade_here(reader, "token_weights")
    assert capsys.readouterr().out.splitlines()[1] == "0 of 1: the rest, on which others rely, not done yet"
    monkeypatch.setattr(grade, "run_tests", lambda mine, tests, name: [None])
    assert grade_here(reader, "all")
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
    grade_here(reader)
    assert re.search(rf"1 of 2: core not .*\n.*\n +test_the_(loss\['{part}'|{part})|test_{part}", capsys.readouterr().out)
