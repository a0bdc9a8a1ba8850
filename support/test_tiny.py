"""Check that the pretrained tiny models have the vocabulary, shape and accuracy that the code
produces."""
import dataclasses
import json
import os

import pytest
import torch
from transformers import AutoTokenizer

import grpo_sg
import tasks
from support import checks, cli, models, tiny


@pytest.mark.parametrize("name", ["kk", "math"])
def test_a_pretrained_model_matches_the_code(name):
    check_pretrained(name)


def check_pretrained(name):
    cfg = cli.parse(["--task", name])
    folder = tiny.find_pretrained(cfg)
    # The first problems contain all words.
    task = checks.make_task(dataclasses.replace(cfg, train_problems=200))
    made, words = tiny.tiny_model(task)
    model, tokenizer = models.read_model(folder, local=True)
    assert tokenizer.get_vocab() == words.get_vocab()
    text = task.train[0].question
    expected = words(text)["input_ids"]
    assert tokenizer(text)["input_ids"] == expected
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == expected
    kinds = [{key: p.shape for key, p in each.state_dict().items()} for each in (made, model)]
    assert kinds[0] == kinds[1] and type(made) is type(model)
    policy = grpo_sg.Policy(model.eval(), tokenizer, grpo_sg.find_stop_ids(model, tokenizer))
    task = tasks.encode_problems(task, policy, cfg)
    row, _ = grpo_sg.evaluate(policy, task, task.test, cfg)
    with open(os.path.join(folder, "about.json")) as file:
        about = json.load(file)
    # On another processor, rounding may change a token or two.
    assert row["eval/accuracy"] == pytest.approx(about["test"]["eval/accuracy"], abs=0.02)


@pytest.mark.parametrize("flags, why", [
    ("--warm_up", "--warm_up"), ("--people 2 3", "the pretrained one is for --people 3"),
    ("--no_brief", "the pretrained one is for --brief True"), ("--task one", "--task one has no pretrained one"),
    ("--seed 1", ""), ("--train_problems 100", ""), ("--task math --people 5", "")])
def test_the_pretrained_model_is_used_unless_the_task_differs(flags, why, monkeypatch):
    monkeypatch.setitem(tasks.TASKS, "one", tasks.Task("one", "", [], [], [], None, 0.0))  # not hashable
    cfg = cli.parse(flags.split())
    assert tiny.why_new(cfg) == why and (tiny.find_pretrained(cfg) == "") == bool(why)
    monkeypatch.setattr(tiny, "PRETRAINED", {tasks.kk_task: "gone", tasks.math_task: "gone"})
    assert tiny.find_pretrained(cfg) == ""


@pytest.mark.parametrize("name", ["kk", "math"])
def test_the_tiny_models_tokenizer_reproduces_every_text(name):
    cfg = cli.parse(f"--task {name} --train_problems 60 --eval_problems 8".split())
    task = tasks.TASKS[name](cfg)
    _, tokenizer = tiny.tiny_model(task)
    for problem in task.train:
        for text in (problem.question, problem.solution, problem.shortcut):
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_warm_up_teaches_the_texts():
    cfg = cli.parse(["--train_problems", "3", "--eval_problems", "8"])
    task = tasks.kk_task(cfg)._replace(shortcuts=0.0, warmup=60)
    torch.manual_seed(0)
    policy = grpo_sg.Policy(*tiny.tiny_model(task), {0})
    task = tasks.encode_problems(task, policy, cfg)
    tiny.warm_up(policy, task, cfg)
    said = grpo_sg.rollout(policy, task, task.train, cfg, n=1, temperature=0, seed=0)
    assert [c.response for c in said] == [p.solution for p in task.train]
