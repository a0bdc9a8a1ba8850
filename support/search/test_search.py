"""Test the task qa: its search, world, verifier, data and pretrained model."""
import functools
import itertools
import json
import math
import pathlib
import random
import re
import time

import datasets
import pytest

import grpo_sg
from support.search import qa
from support.search.text import bm25
from support import tiny
from tasks import UserError

CASES = pathlib.Path(__file__).with_name("cases.jsonl")


def make_task(*flags):
    return qa.make_task(grpo_sg.read_settings(["--task", qa.__file__, *flags]))


# ---- The search ----

def slow_bm25(passages, query, k1=1.2, b=0.75):
    """Return textbook BM25 scores, computed passage by passage and word by word."""
    texts = [passage.split() for passage in passages]
    average = sum(map(len, texts)) / len(texts)
    scores = [0.0] * len(texts)
    for word in query.split():
        n = sum(word in text for text in texts)
        for i, text in enumerate(texts):
            tf = text.count(word)
            scores[i] += (math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) * tf * (k1 + 1)
                          / (tf + k1 * (1 - b + b * len(text) / average)))
    return scores


def test_search_against_the_textbook():
    rng, words = random.Random(0), [f"word{i}" for i in range(30)]
    passages = [" ".join(rng.choices(words, k=rng.randrange(1, 20))) for _ in range(60)]
    search = bm25(passages)
    for _ in range(200):
        query = " ".join(rng.choices(words + ["unknown"], k=rng.randrange(1, 6)))
        scores, best = slow_bm25(passages, query), search(query, 5)
        expected = [score for score in sorted(scores, reverse=True)[:5] if score > 0]
        assert [scores[i] for i in best] == pytest.approx(expected)
        assert len(set(best)) == len(best)
    assert bm25(["alpha beta"] * 100)("alpha", 3) == [0, 1, 2]
    search = bm25(["S\u00f8ren lives in \u0141\u00f3d\u017a", "Z\u00fcrich\u2013Oerlikon", "-"])
    assert search("LODZ", 3) == search("soren", 3) == [0]
    assert search("zurich oerlikon", 3) == [1]


@pytest.mark.parametrize("text, line", [
    ("x <search>a</search> <search>ada</search>", "Doc 1: Ada wrote it"),
    ("<search></search>", "To search, write <search>"),
    ("<search>\ud800 \x00</search>", "Nothing was"),
    ("ada </search>", "To search, write <search>"),
    ("<search>ada</search> or ada</search>", "To search, write <search>"),
    ("<search>" + "ada bob " * 50_000 + "</search>", "Doc 2: Bob read it")],
    ids=["last", "blank", "strange", "unopened", "closed", "long"])
def test_every_query_has_a_clear_answer(text, line):
    search = qa.make_search(["Ada wrote it", "Bob read it"])
    answer, = qa.answer_calls(search, [text])
    assert re.fullmatch(f"\n<information>\n.*{line}.*\n</information>", answer, re.S)


def test_a_lone_surrogate_in_a_passage_becomes_a_question_mark():
    """JSON can contain lone surrogates, which tokenizers and logs cannot encode."""
    search = qa.make_search(["x \U0001f600 \ud83d <b>"])
    answer, = qa.answer_calls(search, ["<search>x</search>"])
    assert "Doc 1: x \U0001f600 ? (b)\n" in answer


# ---- The world ----

@functools.cache
def make_whole_world(seed):
    """Return the task with all of its problems, which are fewer than 9,999."""
    return make_task("--seed", str(seed), "--train_problems", "9999", "--eval_problems", "9999")


def names_in(problems):
    """Return the set of the people, companies and questions of these problems."""
    names = set()
    for problem in problems:
        names.update(re.findall(r"<search> (.*?) </search>", problem.solution))
        names.add(problem.question)
    return names


def test_no_name_of_a_held_out_split_is_in_another_of_any_seed():
    names = {"train": set(), "valid": set(), "test": set()}
    for seed in range(3):
        task = make_whole_world(seed)
        for split, people in names.items():
            people |= names_in(getattr(task, split))
    for one, other in itertools.combinations(names.values(), 2):
        assert one and other and not one & other


def test_another_seed_gives_people_other_employers():
    one, other = ({p.question: p.solution for p in make_whole_world(seed).test}
                  for seed in (0, 1))
    assert one.keys() == other.keys()
    same = sum(one[question] == other[question] for question in one)
    assert same < 0.05 * len(one)


def test_the_splits_are_as_large_as_the_pages_say():
    task = make_whole_world(0)
    assert [len(task.train), len(task.valid), len(task.test)] == [1482, 264, 294]
    default = make_task()
    assert len(default.train) == 1482 and len(default.valid) == len(default.test) == 200


def test_the_world_needs_two_searches():
    task = make_whole_world(0)
    for problems in (task.train[:300], task.valid, task.test):
        questions = [problem.question for problem in problems]
        seen = task.write.observe([f"<search>{question}</search>" for question in questions])
        leaks = [f"based in {problem.answer[0]}" in text
                 for problem, text in zip(problems, seen)]
        # The question rarely retrieves the second passage.
        assert sum(leaks) / len(leaks) < 0.05
        for problem in problems:
            person, company = re.findall(r"<search> (.*?) </search>", problem.solution)
            assert person in problem.question and company not in problem.question
            assert problem.answer[0] not in problem.question
            first, second = task.write.observe(tiny.calls_of(task, problem.solution))
            assert f"Doc 1: {person} works for {company}\n" in first
            assert f"Doc 1: {company} is based in {problem.answer[0]}\n" in second
            assert task.verify(problem.solution, problem.answer) == (True, True)


def test_the_tiny_model_can_write_every_text_of_the_world():
    task = make_task("--train_problems", "60", "--eval_problems", "8")
    _, tokenizer = tiny.tiny_model(task)
    for problem in task.train:
        for text in (problem.question, problem.solution, problem.shortcut):
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        told = "".join(task.write.observe(tiny.calls_of(task, problem.solution)))
        assert tokenizer.decode(tokenizer(told)["input_ids"]) == told


# ---- The verifier ----

def test_labeled_responses():
    """cases.jsonl has correct responses, near misses and cheats, each with its reason."""
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        verdict = qa.verify_qa(row["response"], row["gold"])._asdict()
        assert {**verdict, **row} == {**row, **verdict}, row["why"]
    assert len(rows) > 160


def test_the_table_of_cheats_is_what_the_verifier_says():
    table = CASES.with_name("README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| `(.+)` \| (yes|no) \| (yes|no) \|", table, re.M)
    for gold, response, formatted, correct in rows:
        verdict = qa.verify_qa(response, [gold])
        assert verdict == (correct == "yes", formatted == "yes"), response
    assert len(rows) == 6


PARTS = ("<think>", "</think>", "<answer>", "</answer>", "<think></think>",
         "<search>x</search>", "<", " ", "\n", "< / ", "<|im_end|>", "</s>", "\ud800", "\x00",
         "((((", "**", "-", "and ", "1. ", ",000", "Mira ", "a\nuser", "\u0301",
         "\u0301\u0323", "\u0344\u0338", "{", "9")


@pytest.mark.parametrize("part", PARTS, ids=ascii)
def test_hostile_responses_are_cheap(part):
    """Allow a verdict one second, even if a part is repeated 50,000 times."""
    long = part * 50_000
    for response in (f"{long}x", f"<think>{long}</think>\n<answer>Paris</answer>\nuser",
                     f"<think>x</think><answer>1{long}</answer>"):
        started = time.thread_time()
        qa.verify_qa(response, ["Paris", "9" * 99])
        assert time.thread_time() - started < 1, response[:60]


# ---- The data ----

def hotpot(i):
    sentences = [["It is ", f"in Town {i}."], ["Known."]]
    context = {"title": [f"T{i}", "Common"], "sentences": sentences}
    return {"question": f"Where is {i}?", "answer": f"Town {i}", "context": context}


@pytest.fixture
def hub(monkeypatch):
    """Replace the hub by a small HotpotQA with the columns that are read."""
    train = datasets.Dataset.from_list([hotpot(i) for i in range(40)])
    places = {("hotpotqa/hotpot_qa", "distractor", "train"): train,
              ("hotpotqa/hotpot_qa", "distractor", "validation"): train.select([7])}
    monkeypatch.setattr(qa, "load_hub", lambda *place: places[place])


def test_hotpotqa(hub):
    assert qa.load_hotpotqa("test", 5, 0) == [
        ("Where is 7?", ["Town 7"], ["(Title: T7) It is in Town 7.", "(Title: Common) Known."])]
    first, again, other = ([row[0] for row in qa.load_hotpotqa("train", 6, seed)]
                           for seed in (1, 1, 2))
    assert len(set(first)) == 6 and first == again != other


def test_the_passages_of_all_questions_are_searched(hub, tmp_path):
    path = tmp_path / "my.jsonl"
    with path.open("w") as file:
        for i in range(20):
            row = {"question": f"Who is {i}?", "answer": ["Ada"], "passages": [f"Person {i}"]}
            file.write(json.dumps(row) + "\n")
    task = make_task("--model", "any", "--data", str(path), "--eval_data", "hotpotqa")
    assert len(task.train) == 18 and len(task.valid) == 2
    assert [problem.question for problem in task.test] == ["Where is 7?"]
    texts = task.write.observe(["<search>person 3</search>", "<search>town 7</search>"])
    assert "Doc 1: Person 3\n" in texts[0] and "Doc 1: (Title: T7)" in texts[1]


def test_passages_that_are_not_a_list_of_texts_are_refused(tmp_path):
    path = tmp_path / "my.jsonl"
    path.write_text(json.dumps({"question": "Who ...?", "answer": ["Ada"], "passages": "Ada was ..."}))
    with pytest.raises(UserError, match="passages of 'Who ...[?]' must be a list of texts"):
        make_task("--model", "any", "--data", str(path), "--eval_data", "synthetic")


# ---- The program ----

def test_the_pretrained_model_is_what_the_code_would_make():
    task = make_task()
    made, words = tiny.tiny_model(task)
    cfg = grpo_sg.read_settings(["--task", qa.__file__, "--eval_problems", "50"])
    policy, task = grpo_sg.load(cfg)
    assert policy.tokenizer.get_vocab() == words.get_vocab()
    shapes = [{name: p.shape for name, p in model.state_dict().items()}
              for model in (made, policy.model)]
    assert shapes[0] == shapes[1]
    row, _ = grpo_sg.evaluate(policy, task, task.test, cfg, samples=2)
    assert row["eval/avg@2"] == pytest.approx(0.42, abs=0.15)  # pretrained/README.md


def test_a_wrong_name_of_data_is_known_before_anything_is_loaded():
    with pytest.raises(UserError, match="--data wikipedia is not one of synthetic, hotpotqa"):
        make_task("--data", "wikipedia")
