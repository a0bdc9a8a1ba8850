"""A verifier is examined by hostile responses and by a policy: holes are found, and named."""
import re
from types import SimpleNamespace

import pytest

import tasks
from lesson import examine, grade, verifier, wrong_reward
from support import tiny


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


def test_a_mistake_shows_the_readers_lines_only(tmp_path, monkeypatch, capsys):
    mine = tmp_path / "mine.py"
    monkeypatch.setattr(examine, "MINE", mine)
    for body, said in [("return answer[9], 1", 'line 2, in verify\\n(.*\\n)+IndexError'), ("return 1", "TaskError: verify"),
                       ("return (", "SyntaxError")]:
        mine.write_text(f"def verify(response, answer):\n    {body}\n\n\ndef reward(c):\n    return 1\n")
        with pytest.raises(SystemExit, match=said) as error:
            grade.main(["verify"])
        assert "examine.py" not in str(error.value)
    mine.unlink()
    monkeypatch.setattr(examine, "interrogate", lambda mine, problems: exit())
    with pytest.raises(SystemExit):
        examine.main()  # copies the template, and gets so far
    assert "copied lesson/verifier.py to mine.py" in capsys.readouterr().out


@pytest.mark.release
@pytest.mark.parametrize("name, told", [
    ("naive", r"the policy found a hole\. .* and your verifier pays it 3"),
    ("letters", r"the policy found a hole\. Its most frequent completion is '(\w+)', to the question '\1'"),
    ("exact", "they rise together")])
def test_the_policy_finds_a_hole_if_there_is_one(name, told, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "tiny"  # one for all three
    monkeypatch.setattr(examine, "MODEL", str(folder))
    assert tiny.PRETRAINED not in examine.MODEL
    assert re.search(told, examine.tell(examine.train(VERIFIERS[name])))
