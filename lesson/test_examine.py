"""A verifier is examined by hostile responses and by a policy: holes are found, and named."""
import re
from types import SimpleNamespace

import pytest

import tasks
from lesson import examine, grade, verifier, wrong_reward


def with_five_letters(is_correct):
    """Return a verifier by this rule, for which any five letters have the correct format."""
    def verify(response, answer):
        return tasks.Verdict(is_correct(response, answer), bool(re.fullmatch("[a-j]{5}", response)))
    return SimpleNamespace(verify=verify, reward=tasks.reward)


VERIFIERS = {"exact": with_five_letters(lambda response, answer: response == answer),
             "letters": with_five_letters(lambda response, answer: sorted(response) == sorted(answer)),
             "in": SimpleNamespace(reward=tasks.reward, verify=lambda response, answer: (answer in response, True)),
             "naive": verifier}
PROBLEMS = [wrong_reward.make_problem(word) for word in ("abcde", "gbdca")]


@pytest.mark.parametrize("name, found", [
    ("exact", []), ("letters", ["pays 3 for a copy of the question: 'gbdca'"]),
    ("in", ["pays 3 for a sentence that denies the answer", "pays 3 for all orders: ", "pays 3 for two answers"]),
    ("naive", ["calls an empty response correct: ''", "pays 3 for other letters, in order: 'abcde'"])])
def test_holes_are_named(name, found):
    lines, kinds = examine.interrogate(VERIFIERS[name], PROBLEMS)
    assert kinds >= 20 and bool(lines) == bool(found)
    assert all(any(hole in line for line in lines) for hole in found), lines


def test_what_functions_must_return_is_noted_where_they_return_something_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grade, "MINE", tmp_path / "my_exercises.py")
    (tmp_path / "my_verifier.py").write_text("def verify(*_):\n    return 1\n\n\ndef reward(c):\n    return 1\n")
    with pytest.raises(TypeError) as error:
        grade.main(["verify"])
    assert "verify returns tasks.Verdict(correct, formatted), and reward a number" in error.value.__notes__
    (tmp_path / "my_verifier.py").unlink()
    monkeypatch.setattr(examine, "main", lambda mine: None)
    grade.main(["verify"])
    assert "copied lesson/verifier.py to my_verifier.py" in capsys.readouterr().out


@pytest.mark.parametrize("scale", [1.0, 0.001])
def test_what_is_learned_does_not_depend_on_the_scale_of_the_rewards(scale):
    """A policy that was right in 1 of 10 completions, and then is in 5, or is not."""
    def make_step(right):
        problem = PROBLEMS[1]
        return [SimpleNamespace(problem=problem, response=problem.answer if i < right else "x", solved=i < right,
                                reward=3 * scale * (i < right)) for i in range(10)]
    assert "they rise together" in examine.tell([make_step(1)] + [make_step(5)] * 5)
    assert "learned nothing" in examine.tell([make_step(1)] * 6)


@pytest.mark.release
@pytest.mark.parametrize("name, told", [
    ("naive", r"the policy found a hole\. .* and your verifier pays it 3"),
    ("letters", r"the policy found a hole\. Its most frequent completion is '(\w+)', to the question '\1'"),
    ("exact", "they rise together")])
def test_the_policy_finds_a_hole_if_there_is_one(name, told, tmp_path_factory, monkeypatch, capsys):
    folder = tmp_path_factory.getbasetemp() / "tiny"  # one for all three
    monkeypatch.setattr(examine, "MODEL", str(folder))
    assert re.search(told, examine.tell(examine.train(VERIFIERS[name])))
    assert "python grpo_sg.py" not in capsys.readouterr().out  # support.tiny's advice
