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
    assert first.startswith("token_weights: 0 of ") and len(others) == 7
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


def test_only_the_named_functions_tests_run(monkeypatch, capsys):
    ran = []

    def run_tests(module, functions, *options):
        ran.extend(functions)
        return {"draw": [("test_a", "is 1"), ("test_b", None), ("test_c", "is 2")]}
    monkeypatch.setattr(grade, "run_tests", run_tests)
    grade.show(answers, "draw")
    _, *lines = capsys.readouterr().out.splitlines()
    assert ran == ["draw"] and lines == [
        "0 of 1 done", "draw: 1 of 3 tests pass", "    test_a: is 1",
        "    for a hint: python -m lesson.grade draw --hint"]


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
    assert [message for _, message in results["pass_at_k"]] == [None]


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
    ("token_weights", "alpha *", "2.0 *", "with {'alpha': "),
    ("token_weights", ".exp()", ".exp_()", "logps changed"),
    ("token_weights", ".detach()", "", "the weight has a gradient"),
    ("group_advantages", "R == R[:, :1]", "R[:, :2] == R[:, :1]", "an advantage in the group ["),
    ("group_advantages", "R = rewards.double()", "R = rewards.float()", "in float64"),
    ("group_advantages", "A.masked_fill(equal, 0.0)", "A", "exactly 0"),
    ("grpo_sg_loss", "weights.detach() * objective", "objective", "multiply the minimum by w"),
    ("grpo_sg_loss", f"r = {RATIO}", f"r = ({RATIO} + (0 if weights is None else weights.detach().log()))",
     "multiply the minimum by w, outside of the clip"),
    ("grpo_sg_loss", CLIP, "r * A", "the gradient for a clipped token with A "),
    ("grpo_sg_loss", CLIP, "clipped * A", "the gradient for a token that went the other way"),
    ("grpo_sg_loss", CLIP, LOPSIDED, "that went the other way with A < 0"),
    ("grpo_sg_loss", " / (denominator or count.clamp(min=1))", "", "the loss is "),
    ("grpo_sg_loss", "count.clamp(min=1)", "count", "divide by at least 1"),
    ("grpo_sg_loss", "objective - beta * kl", "objective", "minus beta (x - 1 - log x)"),
    ("grpo_sg_loss", "beta * kl", "beta * kl * (1 if weights is None else weights.detach())", "w scales the advantage, not the KL"),
    ("grpo_sg_loss", "old_logps.detach()", "old_logps", "a gradient reaches logps, old_logps"),
    ("token_logps", "input_ids=ids", "input_ids=ids, attention_mask=(ids != 0).long()", "whatever their ids"),
    ("token_logps", "/ temperature", "/ max(temperature, 0.5)", "divided by the temperature"),
    ("draw", "argmax(-1, keepdim=True)", "argmax(-1)", "expected (B, 1)"),
    ("draw", SOFTMAX, f"F.threshold({SOFTMAX}, 1e-4, 0.0)", "draw from the whole softmax"),
    ("pass_at_k", "1 - math.comb(n - c, k) / math.comb(n, k)", "1 - (1 - c / n) ** k", "pass@k for n = 2, c = 1, k = 2"),
    ("make_batch", "c.mask + ", "[token != 0 for token in c.tokens] + ", "mask is True at ["),
    ("learn", "clip_low=cfg.clip_low, clip_high=cfg.clip_high", "clip_low=cfg.clip_high, clip_high=cfg.clip_low",
     "clip_low is 0.24, expected cfg.clip_low = 0.2"),
    ("learn", "loss.backward()", "(loss * len(batches)).backward()", "the gradient has "),
    ("learn", "        optimizer.zero_grad()\n", "", "call zero_grad"),
    ("learn", "        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)\n", "", "clip_grad_norm_ to 1.0"),
    ("learn", "random.Random(seed)", "random.Random(0)", "shuffle them by the seed"),
]


def write_wrong(changes, path):
    """Write the answers, with a bug in each of these (function, right code, what replaces it)."""
    text = ANSWERS.read_text()
    for function, right, wrong in changes:
        before, name, rest = text.partition(f"def {function}(")
        body, *others = rest.split("\n\n\n")
        assert body.count(right) == 1
        text = before + name + "\n\n\n".join([body.replace(right, wrong), *others])
    path.write_text(text)
    return grade.load_module(path)


@pytest.mark.parametrize("function, right, wrong, message", WRONG)
def test_a_wrong_body_is_named(function, right, wrong, message, tmp_path):
    module = write_wrong([(function, right, wrong)], tmp_path / "mine.py")
    results = grade.run_tests(module, [function], "-x", "-p", "no:terminal")
    assert message in results[function][-1][1]


def test_a_file_of_wrong_bodies_is_never_done(tmp_path, capsys):
    """Only a few inputs show what is wrong with these."""
    module = write_wrong([
        ("token_weights", ".clamp(low, high)", ".clamp(max(low, 0.5), min(high, 1.5))"),
        ("group_advantages", "R == R[:, :1]", "torch.isclose(R, R[:, :1])"),
        ("grpo_sg_loss", f"{RATIO}.masked_fill(~mask, 0.0)", f"{RATIO}.masked_fill(~mask, 0.0).clamp(-2, 2)"),
        ("token_logps", ".float() / temperature", " / temperature"),
        ("draw", "logits.float() / temperature", "(logits / temperature).float()"),
        ("pass_at_k", "1 - math.comb(n - c, k) / math.comb(n, k)",
         "1 - (1 - c / n) ** k if n > 20 else 1 - math.comb(n - c, k) / math.comb(n, k)"),
        ("make_batch", "[c.advantage for c in completions]", "[int(c.advantage) for c in completions]"),
        ("learn", "        loss.backward()", "        if loss.item() == 0:\n            continue\n        loss.backward()"),
    ], tmp_path / "mine.py")
    grade.show(module)
    assert "0 of 8 done" in capsys.readouterr().out
