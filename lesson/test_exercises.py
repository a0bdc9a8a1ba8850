"""Blank exercises fail, the answers pass, and a bug fails with a message that names it."""
import inspect
import pathlib
import re
import textwrap

import pytest

import grpo_sg
from lesson import answers, exercises, grade

NAMES = [name for name, value in vars(exercises).items() if inspect.isfunction(value)]
ANSWERS = pathlib.Path(answers.__file__)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """The reader's file, which does not exist yet."""
    monkeypatch.setattr(grade, "MINE", tmp_path / "mine.py")
    return tmp_path / "mine.py"


def load(reader):
    return grade.load_module(reader, NAMES, grade.BLANK)


def test_the_signatures_are_the_projects():
    assert len(NAMES) == 8
    for name in NAMES:
        heads = (inspect.signature(getattr(module, name)) for module in (exercises, grpo_sg))
        own, projects = ([parameter.replace(annotation=parameter.empty)
                          for parameter in head.parameters.values()] for head in heads)
        assert own == projects, name


def test_each_exercise_has_tests_and_a_hint(capsys):
    sections, core = grade.read_sections(grade.TESTS), grade.read_sections(grade.CORE)
    assert list(sections) == list(grade.HINTS) == NAMES
    assert list(core) == ["group_advantages", "grpo_sg_loss"]
    for file in sections, core:
        tests = sum(file.values(), [])
        assert all(file.values()) and len(tests) == len(set(tests))
    for name in NAMES:
        grade.main([name, "--hint"])
        assert re.match(rf"{name}: .{{40}}", capsys.readouterr().out)


@pytest.mark.parametrize("flags", [["drew"], ["--hint"], ["all", "--hint"], ["core", "--long"]])
def test_wrong_arguments_are_refused_with_the_names(flags, capsys):
    with pytest.raises(SystemExit):
        grade.main(flags)
    assert re.search("'?grpo_sg_loss'?, '?token_logps'?, '?draw'?", capsys.readouterr().err)


def test_blank_exercises_fail_and_the_readers_file_is_made_once(reader, capsys):
    grade.main([])
    copied, _, done, first, failure, hint, *others = capsys.readouterr().out.splitlines()
    assert copied.startswith("copied lesson/exercises.py to mine.py")
    assert done == "0 of 2: core not done yet"
    assert reader.read_text() == inspect.getsource(exercises)
    assert first.strip().startswith("group_advantages: 0 of ") and len(others) == 1
    assert failure.endswith("NotImplementedError: group_advantages")
    assert hint.endswith("python -m lesson.grade group_advantages --hint")
    reader.write_text("# my work")
    with pytest.raises(SystemExit, match="mine.py has no function token_weights"):
        grade.main([])
    assert reader.read_text() == "# my work"


def write_bodies(reader, bodies):
    """Write the exercises with these bodies: {function: lines}."""
    text = inspect.getsource(exercises)
    for function, body in bodies.items():
        blank = f'    raise NotImplementedError("{function}")'
        assert text.count(blank) == 1
        text = text.replace(blank, textwrap.indent(textwrap.dedent(body).strip(), "    "))
    reader.write_text(text)


# As lesson/one_page.py writes it.
FORMULA = """
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)
    return (rewards - mean) / (std + 1e-6)"""
PLAIN = """
    A = advantages[:, None]
    r = (logps - old_logps.detach()).exp()
    objective = weights.detach() * torch.minimum(r * A, r.clamp(1 - clip_low, 1 + clip_high) * A)
    return -(objective * mask).sum() / mask.sum(), {}"""


@pytest.mark.parametrize("loss", [PLAIN, PLAIN.replace(
    "(objective * mask).sum() / mask.sum()", "objective[mask].mean()")])
def test_the_hour_ends_with_the_core_done(loss, reader, capsys):
    write_bodies(reader, {"group_advantages": FORMULA, "grpo_sg_loss": loss})
    grade.main([])
    _, done, *_, end = capsys.readouterr().out.splitlines()
    assert done == "2 of 2: core done" and end.endswith("python -m lesson.grade all")
    grade.main(["grpo_sg_loss"])
    _, core, rest, *_ = capsys.readouterr().out.splitlines()
    assert core == "1 of 1: core done" and rest.startswith("0 of 1: the rest, on which others rely,")


# What a body lacks, and the part of the core that fails first.
LACKS = [("no std", "std + 1e-6", "1"), ("std over G", ".std(1, keep", ".std(1, False, keep"),
         ("no eps", " + 1e-6", ""), ("std of the batch", "rewards.std(1, keepdim=True)", "rewards.std()"),
         ("minimum", "torch.minimum(r * A, r.clamp", "(r.clamp"), ("clip", "1 - clip_low", "0.8"),
         ("clip", "torch.minimum", "torch.maximum"), ("weight", "weights.detach() *", ""),
         ("weight", "r = (logps - old_logps.detach()).exp()",
          "r = weights.detach() * (logps - old_logps.detach()).exp()"),
         ("mask", "(objective * mask).sum() / mask.sum()", "objective.mean()"),
         ("mask", "(objective * mask).sum() / mask.sum()", "(objective * mask).mean()"),
         ("mask", "mask).sum() / mask.sum()", "mask).sum(1).div(mask.sum(1)).mean()"),
         ("constants", "weights.detach()", "weights"), ("ratio", "return -", "return "),
         ("ratio", "(logps - old_logps.detach())", "(logps.detach() - old_logps)")]


@pytest.mark.parametrize("part, right, wrong", LACKS)
def test_a_core_that_lacks_a_part_fails(part, right, wrong, reader):
    assert (FORMULA + PLAIN).count(right) == 1
    write_bodies(reader, {"group_advantages": FORMULA.replace(right, wrong),
                          "grpo_sg_loss": PLAIN.replace(right, wrong)})
    results = grade.run_tests(load(reader), grade.CORE, ["group_advantages", "grpo_sg_loss"])
    failures = list(filter(None, sum(results.values(), [])))
    assert failures and (right in FORMULA or f"[{part}]" in failures[0]), failures


def test_the_answers_pass_all_tests(reader, capsys):
    reader.write_text(ANSWERS.read_text())
    grade.main(["all"])
    _, core, rest, end = capsys.readouterr().out.splitlines()
    assert core == "2 of 2: core done" and rest.startswith("8 of 8: ") and "whole method" in end


def test_the_long_report_is_pytests(reader, capfd):
    reader.write_text(inspect.getsource(exercises))
    grade.main(["pass_at_k", "--long"])
    assert '>       raise NotImplementedError("pass_at_k")' in capfd.readouterr().out


def test_afterwards_the_tests_call_grpo_sg_again():
    import test_grpo_sg
    for name in NAMES:
        assert getattr(test_grpo_sg, name) is getattr(grpo_sg, name)


# ---- Right bodies with a bug in each ----

SOFTMAX = "torch.softmax(logits.float() / temperature, -1)"
CHOOSE = "1 - math.comb(n - c, k) / math.comb(n, k)"
RATIO = "(logps - old_logps.detach())"
CLIP = "torch.minimum(r * A, clipped * A)"
# Each list is one file of answers: (function, right code, what replaces it, what a test says).
WRONG = [[
    ("token_weights", "alpha *", "2.0 *", "with {'alpha': "),
    ("group_advantages", "R == R[:, :1]", "R[:, :2] == R[:, :1]", "an advantage in the group ["),
    ("grpo_sg_loss", "weights.detach() * objective", "objective", "multiply the minimum by w"),
    ("token_logps", "input_ids=ids", "input_ids=ids, attention_mask=(ids != 0).long()", "whatever their ids"),
    ("draw", "argmax(-1, keepdim=True)", "argmax(-1)", "expected (B, 1)"),
    ("pass_at_k", CHOOSE, "1 - (1 - c / n) ** k", "pass@k for n = 2, c = 1, k = 2"),
    ("make_batch", "c.mask + ", "[token != 0 for token in c.tokens] + ", "mask is True at ["),
], [
    ("token_weights", ".detach()", "", "the weight has a gradient"),
    ("group_advantages", "A.masked_fill(equal, 0.0)", "A", "exactly 0"),
    ("grpo_sg_loss", CLIP, "r * A", "the gradient for a clipped token with A "),
    ("token_logps", "/ temperature", "/ max(temperature, 0.5)", "divided by the temperature"),
    ("draw", SOFTMAX, f"F.threshold({SOFTMAX}, 1e-4, 0.0)", "draw from the whole softmax"),
], [
    ("token_weights", ".exp()", ".exp_()", "logps changed"),
    ("group_advantages", "R = rewards.double()", "R = rewards.float()", "in float64"),
    ("grpo_sg_loss", CLIP, "clipped * A", "the gradient for a token that went the other way"),
    ("learn", "        optimizer.zero_grad()\n", "", "call zero_grad"),
]]


@pytest.mark.parametrize("bugs", WRONG)
def test_a_wrong_body_is_named(bugs, reader):
    text = ANSWERS.read_text()
    for function, right, wrong, _ in bugs:
        before, name, rest = text.partition(f"def {function}(")
        body, *others = rest.split("\n\n\n")
        assert body.count(right) == 1
        text = before + name + "\n\n\n".join([body.replace(right, wrong), *others])
    reader.write_text(text)
    results = grade.run_tests(load(reader), grade.TESTS, [function for function, *_ in bugs])
    for function, _, _, message in bugs:
        failures = list(filter(None, results[function]))
        assert any(message in failure for failure in failures), (function, failures)
