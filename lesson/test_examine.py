"""A verifier is examined by hostile responses and by a policy: holes are found, and named."""
import re
import signal
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
             "nothing": with_five_letters(lambda response, answer: False),
             "naive": verifier}
PROBLEMS = [wrong_reward.make_problem(word) for word in ("abcde", "gbdca")]


@pytest.mark.parametrize("name, found", [
    ("exact", []), ("letters", ["pays 3 for a copy of the question: 'gbdca'"]),
    ("nothing", ["calls the correct answer wrong: 'abcdg'"]),
    ("in", ["pays 3 for a sentence that denies the answer", "pays 3 for all orders: ", "pays 3 for two answers"]),
    ("naive", ["calls an empty response correct: ''", "pays 3 for other letters, in order: 'abcde'"])])
def test_holes_are_named(name, found):
    lines, kinds = examine.interrogate(VERIFIERS[name], PROBLEMS)
    assert kinds >= 20 and bool(lines) == bool(found)
    assert all(any(hole in line for line in lines) for hole in found), lines


def test_what_functions_must_return_is_noted_where_they_return_something_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grade, "FOLDER", tmp_path)
    (tmp_path / "my_verifier.py").write_text("def verify(*_):\n    return 1\n\n\ndef reward(c):\n    return 1\n")
    assert not grade.main(["verify"])
    assert "verify returns tasks.Verdict(correct, formatted), and reward a number" in capsys.readouterr().out
    (tmp_path / "my_verifier.py").unlink()
    monkeypatch.setattr(grade, "grade_apart", print)
    grade.main(["verify"])
    assert "copied lesson/verifier.py to my_verifier.py" in capsys.readouterr().out


def make_step(right, paid=None, scale=1.0):
    """Return ten completions, of which so many are right, and so many (by default these) are paid for."""
    problem, paid = PROBLEMS[1], right if paid is None else paid
    return [SimpleNamespace(problem=problem, response=problem.answer if i < right else "x", solved=i < paid,
                            reward=3 * scale * (i < paid)) for i in range(10)]


@pytest.mark.parametrize("scale", [1.0, 0.001])
def test_what_is_learned_does_not_depend_on_the_scale_of_the_rewards(scale):
    """A policy that was right in 1 of 10 completions, and then is in 4.2, or is not."""
    before, after = (make_step(right, scale=scale) for right in (1, 5))
    assert "they rise together" in examine.tell([before, *[after] * 4, before])
    assert "learned nothing" in examine.tell([before] * 6)


def test_a_policy_that_is_paid_for_wrong_completions_found_a_hole_though_it_also_learned():
    told = examine.tell([make_step(1)] + [make_step(6, 10)] * 5)
    assert "the policy found a hole. Its most frequent completion is 'x', to the question 'gbdca'" in told


def backtrack(*given):
    """Try each way to cut 28 letters into pieces."""
    return tasks.Verdict(bool(re.fullmatch("(a+)+b", "a" * 28 + "c")), True)


def test_a_verifier_that_hangs_is_named_after_some_seconds(monkeypatch):
    monkeypatch.setattr(examine, "SECONDS", 1)
    for verify, reward in ((backtrack, tasks.reward), (VERIFIERS["exact"].verify, backtrack)):
        with pytest.raises(SystemExit, match="^error: your backtrack has not returned after 1 seconds, given .*'?abcde'"):
            examine.interrogate(SimpleNamespace(verify=verify, reward=reward), PROBLEMS)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.alarm(0) == 0


def test_a_half_made_tiny_model_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(examine, "MODEL", str(tmp_path / "tiny"))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "model.safetensors").write_text("half")
    made = []

    def make(argv):
        assert not (tmp_path / "tiny").exists(), "support.tiny refuses a folder that exists"
        made.append(argv[1])
        raise SystemExit
    monkeypatch.setattr(examine.tiny, "main", make)
    pytest.raises(SystemExit, examine.train, VERIFIERS["exact"])
    assert made == [f"--out={tmp_path}/tiny"]
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "settings.json").write_text("{}")
    with pytest.raises(SystemExit, match="cannot load the model"):  # it is not made again
        examine.train(VERIFIERS["exact"])


@pytest.mark.parametrize("found, told, passes", [
    ([], "rewards 1 -> 3: they rise together", True), (["pays 3"], "they rise together", False),
    ([], "the policy found a hole", False)])
def test_a_verifier_passes_if_neither_part_finds_something(found, told, passes, monkeypatch):
    monkeypatch.setattr(examine, "interrogate", lambda mine, problems: (found, 20))
    monkeypatch.setattr(examine, "train", lambda mine: [])
    monkeypatch.setattr(examine, "tell", lambda steps: told)
    assert examine.main(VERIFIERS["exact"]) == passes


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
