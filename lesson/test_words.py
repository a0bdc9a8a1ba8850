"""The words stand where --data says, and nothing else of the task changes."""
import dataclasses
import re

import pytest

import grpo_sg
import tasks
from lesson import words

WORD = f"(?:{'|'.join(tasks.STYLE)})"
CFG = grpo_sg.Config(people=[3], brief=True, train_problems=40, eval_problems=5)
LINES = {"nowhere": r"\w+:", "before": rf"{WORD} \w+:", "after": rf"\w+, {WORD}:",
         "before-4": rf"{WORD} {WORD} {WORD} {WORD} \w+:",
         "after-4": rf"\w+, {WORD} {WORD} {WORD} {WORD}:"}


@pytest.mark.parametrize("place, line", LINES.items())
def test_the_words_stand_where_data_says(place, line):
    task, usual = words.make_task(dataclasses.replace(CFG, data=place)), tasks.kk_task(CFG)
    for problem, other in zip(task.train, usual.train, strict=True):
        assert problem._replace(solution="", shortcut="") == other._replace(solution="", shortcut="")
        assert tasks.verify_kk(problem.solution, problem.answer) == (True, True)
        for text, usual_text in ((problem.solution, other.solution), (problem.shortcut, other.shortcut)):
            assert re.fullmatch(rf"<think>(?: {line}(?: [KN]{{3}})+\.)+ </think> <answer> .*", text)
            assert re.findall("[KN]{3}|[A-Z][a-z]+", text) == re.findall("[KN]{3}|[A-Z][a-z]+", usual_text)


def test_kk_itself_has_a_random_word_after_each_name():
    texts = [problem.solution for problem in tasks.kk_task(CFG).train]
    assert all(re.fullmatch(rf"<think>(?: {LINES['after']}(?: [KN]{{3}})+\.){{3}} </think>.*", text) for text in texts)
    found = re.findall(rf", ({WORD}):", " ".join(texts))
    assert len(set(found)) == len(tasks.STYLE) == 12
    assert texts == [problem.solution for problem in tasks.kk_task(CFG).train]


def test_an_unknown_place_is_one_line():
    with pytest.raises(tasks.UserError, match="--data above is not one of nowhere, before, after"):
        words.make_task(dataclasses.replace(CFG, data="above"))
