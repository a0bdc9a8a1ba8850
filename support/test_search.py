"""Test the task of support/search.py: its search, tool, verifier, world and data."""
import itertools
import math
import random
import re
import time

import datasets
import pytest

from grpo_sg import Config
from support import search, tiny
from tasks import UserError


# ---- The search and the tool ----

def slow_bm25(texts, query, text):
    """Return the textbook's BM25 score of a text, a list of words like the query."""
    score, average = 0.0, sum(map(len, texts)) / len(texts)
    for word in query:
        n = sum(word in each for each in texts)
        tf, length = text.count(word), 0.25 + 0.75 * len(text) / average
        score += math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) * tf * 2.2 / (tf + 1.2 * length)
    return score


def test_search_against_the_textbook():
    rng, words = random.Random(0), [f"word{i}" for i in range(30)]
    texts = [[str(i), *rng.choices(words, k=rng.randrange(1, 20))] for i in range(60)]
    find = search.make_search([" ".join(text) for text in texts])
    for _ in range(200):
        query = rng.choices([*words, "unknown"], k=rng.randrange(1, 6))
        scores = {" ".join(text): slow_bm25(texts, query, text) for text in texts}
        expected = [score for score in sorted(scores.values(), reverse=True)[:3] if score > 0]
        best = find(" ".join(query))
        assert [scores[passage] for passage in best] == pytest.approx(expected) and len(set(best)) == len(best)
    ties = [f"alpha beta{i}" for i in range(100)]
    assert search.make_search(ties)("alpha") == ties[:3]
    find = search.make_search(["S\u00f8ren lives in \u0141\u00f3d\u017a", "Z\u00fcrich\u2013Oerlikon", "-"])
    assert find("LODZ")[0].startswith("S\u00f8ren") and find("zurich oerlikon")[0].startswith("Z")


@pytest.mark.parametrize("text, line", [
    ("x <search>a</search> <search>ada</search>", "Doc 1: Ada \\(wrote\\) it"), ("<search></search>", "To search, write <search>"),
    ("<search>\ud800 \x00</search>", "Nothing was"), ("ada </search>", "To search, write <search>"),
    ("<search>" + "ada bob " * 50_000 + "</search>", "Doc 2: Bob read it")], ids=["last", "blank", "strange", "unopened", "long"])
def test_every_call_has_a_clear_answer_in_which_a_passage_writes_no_tags(text, line):
    find = search.make_search(["Ada <wrote> it", "Bob read it"])
    answer, = search.answer_calls(find, [text])
    assert re.fullmatch(f"\n<information>\n.*{line}.*\n</information>", answer, re.S)


# ---- The verifier ----

@pytest.mark.parametrize("answer, responses", [
    ("Paris", ["Paris", " the  paris. ", "**PARIS**"]), ("Beyonc\u00e9", ["Beyonce"]), ("Lodz", ["\u0141\u00f3d\u017a"]), ("Diyarbak\u0131r", ["DIYARBAKIR"]),
    ("saint etienne", ["Saint\u2013\u00c9tienne"]), ("email", ["e-mail"]), ("A", ["A"]), ("US", ["U.S.", "U. S."]), ("!!!", ["!!!"]), ("1000", ["1,000"]),
    ("1990-1995", ["1990\u20131995"]), ("O'Neil", ["O\u2019Neil"]), ("Hawai\u02bbi", ["Hawaii", "Hawai'i"]), ("5 million", ["$5 million"]), ("Strau\u00df", ["STRAUSS"]), ("\ud55c\uad6d", ["\ud55c\uad6d"]), ("-5", ["(-5)", "\u22125", "- 5"]), ("0.5", [".5"]),
    ("July 4, 1776", ["July 4,1776"]), ("Who", ['"The Who"']), ("Big Apple", ["the (big) apple"]), ("Lego", ["Lego\u00ae"]),
    ("J. K. Rowling", ["JK Rowling", "J K Rowling", "J.K.Rowling"]), ("Spider-Man: Far-From Home", ["Spiderman: far from home"])])
def test_an_answer_equals_itself_however_it_is_written_after_thoughts_of_any_length(answer, responses):
    thoughts = f"<think>{'so ' * 999}</think>"
    for response in [answer, *responses]:
        assert search.verify_qa(f"{thoughts} <answer>{response}</answer>", ["Rome", answer]) == (True, True), response


@pytest.mark.parametrize("answer, responses", [
    ("A", ["", " ", ".", "\u0301", "the"]), ("the", [" "]), ("?", ["!"]), ("Paris", ["Paris or Rome", "Paris, Rome", "not Paris", "Pari", "P\u0430ris", "\u2260Paris", "P\u0336aris", "Paris?Paris?"]),
    ("35", ["3.5", "3-5", "3/5", "3\u00b75", "-35", "\uff0d35", "\u221235"]), ("15", ["1,5"]), ("5", ["- 5", "-$5", ".5", "**-5**", "\u207b5"]), ("$50", ["$.50", "\u00a350"]),
    ("12", ["1;2", "1 2"]), ("22", ["2+2"]), ("53", ["5--3", "5 / 3"]), ("510", ["5'10\""]), ("10", ["A-10"]), ("B", ["A, B", "A & B"]), ("rapist", ["the-rapist"]), ("Vitamin A", ["vitamin"]),
    ("123,45", ["12,345"]), ("C", ["C++", "C#"]), ("x < 5", ["x > 5"]), ("\u0915\u0932\u0940", ["\u0915\u093e\u0932\u093e"]), ("\u30d0\u30ea", ["\u30d1\u30ea"]), ("J. K. Rowling", ["K J Rowling", "J Rowling", "Rowling"])], ids=ascii)
def test_another_answer_is_wrong(answer, responses):
    for response in responses:
        assert not search.verify_qa(f"<answer>{response}</answer>", [answer]).correct, response


@pytest.mark.parametrize("response", [
    "Paris", "<answer>Paris", "Paris</answer>", "<answer>Rome</answer> <answer>Paris</answer>", "<answer>Paris</answer> <answer>",
    "<answer></answer>", "<answer> \n</answer>", "<answer>Paris</answer> or Rome", "<answer><answer>Paris</answer></answer>", "<ANSWER>Paris</ANSWER>", f"<answer>Paris{' ' * 500}</answer>",
    "<information>Doc 1: Paris</information><answer>Paris</answer>", "< Information >x</ information><answer>Paris</answer>", "<think><_information></think><answer>Paris</answer>",
    "<think><answer>Paris</answer></think>", "<think><answer>Paris</answer>", "<Search>\n<answer>Paris</answer>", "<search>x</think><answer>Paris</answer>", "<answer>Par<think>x</think>is</answer>",
    "User: the capital?\n<answer>Paris</answer>", "<answer>Paris</answer><|im_end|><|im_start|>user\n<answer>Paris</answer>"])
def test_a_malformed_response_is_never_correct(response):
    assert search.verify_qa(response, ["Paris"]) == (False, False)


@pytest.mark.parametrize("part", ["<think>", "</think>", "<answer>", "<search>x</search>", "<", " ", "< / ", "\ud800", "((((", "-", "1. ", "a\nuser", "\u0301\u0323", "9"], ids=ascii)
def test_a_verdict_on_50_000_hostile_parts_takes_less_than_a_second(part):
    long = part * 50_000
    for response in (f"{long}x", f"<think>{long}</think>\n<answer>Paris</answer>\nuser", f"<think>x</think><answer>1{long}</answer>"):
        started = time.thread_time()
        search.verify_qa(response, ["Paris", "9" * 99])
        assert time.thread_time() - started < 1, response[:60]


# ---- The problems ----

def names_in(problems):
    names = {problem.question for problem in problems}
    return names.union(*(re.findall("<search> (.*?) </search>", problem.solution) for problem in problems))


def test_no_name_of_a_split_is_in_another_of_any_seed():
    one, other = (search.make_task(Config(seed=seed, train_problems=9999, eval_problems=9999)) for seed in (0, 1))
    splits = [names_in(a) | names_in(b) for a, b in zip(one[2:5], other[2:5])]
    assert all(splits) and not any(a & b for a, b in itertools.combinations(splits, 2))
    employers = [{problem.question: problem.solution for problem in task.train} for task in (one, other)]
    assert employers[0].keys() == employers[1].keys() and len(one.train) == 1482
    assert len(employers[0].items() & employers[1].items()) < 0.05 * 1482


def test_the_world_needs_two_searches_and_the_tiny_model_can_write_its_texts():
    task = search.make_task(Config(train_problems=80, eval_problems=20))
    _, tokenizer = tiny.tiny_model(task)
    leaks = guessed = 0  # a question seldom finds the second passage, nor a guess the city
    for problem in [*task.train, *task.test]:
        person, company = re.findall("<search> (.*?) </search>", problem.solution)
        assert person in problem.question and company not in problem.question
        first, second, direct = task.write.observe([
            *tiny.calls_of(task, problem.solution), f"<search>{problem.question}</search>"])
        assert f"Doc 1: {person} works for {company}\n" in first
        assert f"Doc 1: {company} is based in {problem.answer[0]}\n" in second
        leaks += f"based in {problem.answer[0]}" in direct
        guessed += f"</search> <answer> {problem.answer[0]} <" in problem.shortcut
        assert task.verify(problem.solution, problem.answer) == (True, True)
        for text in (problem.question, problem.solution, problem.shortcut, first + second):
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert leaks < 5 and guessed < 10
    cities = [problem.answer[0] for problem in task.test]
    assert task.floor == max(map(cities.count, cities)) / 20


def test_hotpotqa_is_read_from_the_copy_of_its_rows(tmp_path, monkeypatch):
    """As on the hub, the copy has a folder per configuration and split."""
    for place in ("train", "validation"):
        rows = [{"question": f"Where is {place} {i}?", "answer": f"Town {i}", "context": {
            "title": [f"T{i}", "Common"], "sentences": [["It is ", f"in Town {i}."], ["Known."]]}} for i in range(70)]
        (tmp_path / "hub" / "distractor" / place).mkdir(parents=True)
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "hub" / "distractor" / place / "0000.parquet")
    load = datasets.load_dataset

    def load_copy(name, *, revision, **given):
        assert (name, revision) == ("hotpotqa/hotpot_qa", "refs/convert/parquet")
        return load(str(tmp_path / "hub"), cache_dir=tmp_path / "cache", **given)
    monkeypatch.setattr(datasets, "load_dataset", load_copy)
    task = search.make_task(Config(data="hotpotqa", train_problems=99, eval_problems=5))
    asked = [{problem.question for problem in split} for split in (task.train, task.valid, task.test)]
    assert len(asked[0]) > 50 and len(asked[1]) == len(asked[2]) == 5 and not asked[0] & asked[1]
    assert all("train" in question for question in asked[0] | asked[1]) and all("validation" in question for question in asked[2])
    town = task.test[0].answer[0]
    assert f"Doc 1: (Title: T{town[5:]}) It is in {town}.\n" in task.write.observe([f"<search>{town}</search>"])[0]
    with pytest.raises(UserError, match="--data must be one of synthetic, hotpotqa, .* not wikipedia"):
        search.make_task(Config(data="wikipedia"))
