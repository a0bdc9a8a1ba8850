"""The exercises can be graded: blanks fail, answers pass, a body with a bug fails with a message
that names it, and what is done is counted."""
import inspect
import itertools
import pathlib
import re
import types

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


def parameters_of(function):
    """Return the names, kinds and defaults of a function's parameters, without annotations."""
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


def test_the_signatures_are_the_projects():
    assert len(NAMES) == 8
    for name in NAMES:
        assert parameters_of(getattr(exercises, name)) == parameters_of(getattr(grpo_sg, name)), name


def test_each_exercise_has_tests_and_a_hint(capsys):
    sections = grade.read_sections()
    assert list(sections) == list(grade.HINTS) == NAMES
    tests = sum(sections.values(), [])
    assert all(sections.values()) and len(tests) == len(set(tests))
    for name in NAMES:
        grade.main([name, "--hint"])
        hint = capsys.readouterr().out
        assert hint.startswith(f"{name}: ") and len(hint) > len(name) + 40
        assert hint.split(": ", 1)[1].strip() not in inspect.getsource(exercises)


@pytest.mark.parametrize("flags", [["drew"], ["--hint"], ["--long"]])
def test_wrong_arguments_are_refused_with_the_names(flags, capsys):
    with pytest.raises(SystemExit):
        grade.main(flags)
    assert re.search("'?grpo_sg_loss'?, '?token_logps'?, '?draw'?", capsys.readouterr().err)


def test_blank_exercises_fail_and_the_readers_file_is_made_once(reader, capsys):
    grade.main([])
    copied, _, done, first, failure, hint, *others = capsys.readouterr().out.splitlines()
    assert copied.startswith("copied lesson/exercises.py to mine.py") and done == "0 of 8 done"
    assert reader.read_text() == inspect.getsource(exercises)
    assert first.startswith("next: token_weights, 0 of ") and len(others) == 7
    assert failure.endswith("NotImplementedError: token_weights")
    assert hint.endswith("python -m lesson.grade token_weights --hint")
    reader.write_text("# my work")
    with pytest.raises(SystemExit, match="mine.py has no function token_weights"):
        grade.main([])
    assert reader.read_text() == "# my work"


def test_the_answers_pass_all_tests(reader, capsys):
    reader.write_text(ANSWERS.read_text())
    grade.main([])
    _, done, end = capsys.readouterr().out.splitlines()
    assert done == f"8 of 8 done: {', '.join(NAMES)}" and "whole method" in end


@pytest.mark.parametrize("wanted, order", [
    (None, "grpo_sg_loss draw"), ("draw", "draw grpo_sg_loss"), ("learn", "grpo_sg_loss draw")])
def test_the_wanted_function_is_shown_first(wanted, order, monkeypatch, capsys):
    """All tests pass, except draw's, and one of the loss's."""
    results = {name: [("test_a", None), ("test_b", None)] for name in NAMES}
    results["draw"] = [("test_c", "is 1")]
    results["grpo_sg_loss"] = [("test_d", None), ("test_e", "is 2")]
    monkeypatch.setattr(grade, "run_tests", lambda *args: results)
    grade.show(answers, wanted)
    text = capsys.readouterr().out
    assert "6 of 8 done: token_weights, group_advantages, token_logps, pass_at_k" in text
    assert re.findall(r"(?:next|then): (\w+)", text) == order.split()
    assert {"draw": "draw, 0 of 1 tests pass; the first failure:\n    test_c: is 1",
            "grpo_sg_loss": "grpo_sg_loss, 1 of 2 tests pass; the first failure:\n    test_e: is 2"
            }[order.split()[0]] in text
    assert ("learn is done" in text) == (wanted == "learn")


def test_the_long_report_is_pytests(reader, capfd):
    reader.write_text(inspect.getsource(exercises))
    grade.main(["pass_at_k", "--long"])
    assert '>       raise NotImplementedError("pass_at_k")' in capfd.readouterr().out


@pytest.mark.parametrize("text, message", [
    ("import math\ndef draw(:", "mine.py, line 2: SyntaxError: invalid syntax"), ("\0", "null bytes"),
    ("x = 1\nimport no_such_module", "mine.py, line 2: ModuleNotFoundError: No module named")])
def test_what_keeps_the_tests_from_running_is_one_line(text, message, reader):
    reader.write_text(text)
    with pytest.raises(SystemExit, match=message):
        grade.main([])


def test_an_endless_loop_is_named_and_the_other_tests_run(monkeypatch):
    """The other tests of the function fail without being run."""
    monkeypatch.setattr(grade, "LIMIT", 0.5)
    module = types.SimpleNamespace(**vars(answers))
    module.draw = lambda *args: sum(1 for _ in itertools.count())
    results = grade.run_tests(module, ["draw", "pass_at_k"], "-p", "no:terminal")
    first, *others = [message for _, message in results["draw"]]
    assert first == "Failed: no end after 0.5 seconds: is there an endless loop?"
    assert set(others) == {"Failed: not run, because another test of draw did not end"}
    assert results["pass_at_k"] == [("test_pass_at_k_against_enumeration", None)]


def test_afterwards_the_tests_call_grpo_sg_again():
    import test_grpo_sg
    for name in NAMES:
        assert getattr(test_grpo_sg, name) is getattr(grpo_sg, name)


# ---- A right body with one bug ----

SOFTMAX = "torch.softmax(logits.float() / temperature, -1)"
RATIO = "(logps - old_logps.detach())"
CLIP = "torch.minimum(r * A, clipped * A)"
LOPSIDED = f"torch.where(A < 0, torch.maximum({CLIP}, 3 * A), {CLIP})"
# (function, right code, what replaces it, what a test says)
WRONG = [
    ("token_weights", "alpha *", "2.0 *", "w at pi = 0.25 with {'alpha': 1.7} is 1.3093, expected"),
    ("token_weights", ".exp()", ".exp_()", "logps after the call is"),
    ("group_advantages", "R == R[:, :1]", "R[:, :2] == R[:, :1]", "in the group [1.0, 1.0, 0.0, 0.0] is 0"),
    ("group_advantages", "A = (R - mean) /", "R -= mean\n    A = R /", "rewards after the call is"),
    ("group_advantages", "A.masked_fill(equal, 0.0)", "A", "in a group of equal rewards"),
    ("grpo_sg_loss", "weights.detach() * objective", "objective", "with w = 1.4, A = 1, r = 1 is -1, expected -1.4"),
    ("grpo_sg_loss", f"r = {RATIO}", f"r = ({RATIO} + (0 if weights is None else weights.log()))",
     "with w = 1.4, A = 1, r = 1 is 0, expected -1.4"),
    ("grpo_sg_loss", CLIP, "r * A", "the gradient for a clipped token with A > 0 (r = 1.2) is -1.2, expected 0; "),
    ("grpo_sg_loss", CLIP, "clipped * A", "the gradient for a token that went the other way"),
    ("grpo_sg_loss", CLIP, LOPSIDED, "that went the other way with A < 0 (r = 3.3) is 0, expected 3.3"),
    ("grpo_sg_loss", "1 - clip_low", "1 - 0.2", "a token within the clip with A < 0 (r = 0.75) is 0, expected 0.75"),
    ("grpo_sg_loss", " / (denominator or count.clamp(min=1))", "", "the loss with token-mean is -7, expected -1.75"),
    ("grpo_sg_loss", "count.clamp(min=1)", "count", "the loss of a batch without tokens is nan, expected 0"),
    ("grpo_sg_loss", "objective - beta * kl", "objective", "is -0, expected 0.156876: beta (x - 1 - log x)"),
    ("grpo_sg_loss", "beta * kl", "beta * kl * (1 if weights is None else weights)", "w scales the advantage, not the KL"),
    ("token_logps", "input_ids=ids", "input_ids=ids, attention_mask=(ids != 0).long()", "whatever their ids"),
    ("draw", "argmax(-1, keepdim=True)", "argmax(-1)", "the tokens have shape (2,), expected (B, 1)"),
    ("draw", SOFTMAX, f"F.threshold({SOFTMAX}, 1e-4, 0.0)", "draw from the whole softmax"),
    ("draw", "/ temperature", "/ max(temperature, 0.5)", "the share of a token at temperature 0.2 is"),
    ("make_batch", "c.mask + ", "[token != 0 for token in c.tokens] + ", "mask is True at [1, 4] of"),
    ("learn", "clip_low=cfg.clip_low, clip_high=cfg.clip_high", "clip_low=cfg.clip_high, clip_high=cfg.clip_low",
     "clip_low is 0.24, expected cfg.clip_low = 0.2"),
    ("learn", "loss.backward()", "(loss * len(batches)).backward()", "the gradient has 2 times the expected norm"),
    ("learn", "        optimizer.zero_grad()\n", "", "call zero_grad"),
]


@pytest.mark.parametrize("function, right, wrong, message", WRONG)
def test_a_wrong_body_is_named(function, right, wrong, message, tmp_path):
    before, name, rest = ANSWERS.read_text().partition(f"def {function}(")
    body, *others = rest.split("\n\n\n")
    assert body.count(right) == 1
    path = tmp_path / "mine.py"
    path.write_text(before + name + "\n\n\n".join([body.replace(right, wrong), *others]))
    # the shuffle's test takes seconds
    options = ["-k", "one_plain_step"] if function == "learn" else []
    results = grade.run_tests(grade.load_module(path), [function], "-x", "-p", "no:terminal", *options)
    assert message in results[function][-1][1]
