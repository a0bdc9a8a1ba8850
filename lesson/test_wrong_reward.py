"""The two rewards differ in what a failed attempt costs, and the lesson's output shows it."""
import pathlib
import re
import runpy
import sys
import types

import pytest

import tasks
from lesson import wrong_reward


@pytest.mark.parametrize("name, copy, attempt, right, noise", [
    ("any order", -0.5, -3.0, 3.0, -3.0), ("any letters", -0.5, -0.5, 3.0, -3.0)])
def test_what_each_reward_pays(name, copy, attempt, right, noise):
    """A copy is safe with both; an attempt at sorting that fails costs 2.5 more than a
    copy only with the first."""
    task = wrong_reward.sort_task(*wrong_reward.REWARDS[name], seed=0)
    problem = wrong_reward.make_problem("gbdca")
    paid = []
    for response in ("gbdca", "abcdd", "abcdg", "abc!!"):
        correct, formatted = task.verify(response, problem.answer)
        c = types.SimpleNamespace(correct=correct, formatted=formatted, problem=problem,
                                  response=response)
        paid.append(task.reward(c))
    assert paid == [copy, attempt, right, noise]


@pytest.mark.parametrize("form", [wrong_reward.in_any_order, wrong_reward.of_any_letters])
@pytest.mark.parametrize("response", ["", "abcd", "abcdgg", "ABCDG", "abcd\u200bg", "abcd "])
def test_other_texts_are_badly_formed(form, response):
    assert not form(response, "abcdg")


def test_the_problems_are_sound():
    task = wrong_reward.sort_task(wrong_reward.in_any_order, tasks.reward, seed=3)
    words = [p.question for p in task.train + task.valid + task.test]
    assert len(set(words)) == len(words) == 3000
    for p in task.test:
        assert list(p.answer) == sorted(p.question) and p.shortcut == p.question


def test_a_run_of_both_prints_reward_accuracy_and_transcripts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make = wrong_reward.sort_task

    def make_few(*args):
        task = make(*args)
        return task._replace(train=task.train[:100])
    monkeypatch.setattr(wrong_reward, "sort_task", make_few)
    monkeypatch.setattr(wrong_reward, "WARMUP", 2)
    monkeypatch.setattr(tasks, "TASKS", {**tasks.TASKS})
    wrong_reward.main(["--steps", "1"])
    told = capsys.readouterr().out.split("\nany ")[1:]
    assert len(told) == 2
    for text in told:
        head, copies, *rows = text.strip().splitlines()
        assert re.match(r"(order|letters): reward -\d\.\d\d -> -\d\.\d\d .* 0\.\d+ -> 0\.\d+$", head)
        assert re.search(r"100 test problems: copies \d+ -> \d+", copies)
        assert rows[0].split()[:3] == ["letters", "before", "after"]
    assert len(list(tmp_path.glob("runs/sort-*/*/metrics.jsonl"))) == 2


def test_the_page_has_what_was_printed():
    lesson = pathlib.Path(wrong_reward.__file__).parent
    page = (lesson / "README.md").read_text(encoding="utf-8")
    text = (lesson / "results" / "wrong_reward.txt").read_text(encoding="utf-8")
    first = text.split("# seed 1")[0]
    for name in ("any order", "any letters"):
        told = re.search(rf"^{name}: reward (\S+ -> \S+) .*avg@4\) (\S+ -> \S+)\n"
                         r".*copies (\d+ -> \d+);", first, re.M)
        row = " | ".join([name, *told.groups()]).replace("->", "→")
        assert f"| {row} |" in page
    own = re.findall(r"^mine: .*avg@4\) ([\d.]+) -> ([\d.]+)$", text, re.M)
    assert {before for before, _ in own} == {"0.048"}
    assert f"[reached {max(after for _, after in own)}]" in page


def test_it_starts_as_a_file_from_anywhere(tmp_path, monkeypatch, capsys):
    path = pathlib.Path(wrong_reward.__file__)
    monkeypatch.chdir(tmp_path)
    away = {"", str(wrong_reward.ROOT)}
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in away])
    for name in ("grpo_sg", "tasks", "support", "support.tiny"):  # found only if it knows where
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(path), run_name="__main__")
    assert "--mine" in capsys.readouterr().out
