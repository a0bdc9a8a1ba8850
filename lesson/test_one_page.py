"""The page runs, and its method is that of grpo_sg.py."""
import ast
import importlib
import pathlib
import re
import runpy
import sys

import pytest
import torch
from transformers import (
    GenerationConfig, GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM)

import grpo_sg
import tasks
from support import tiny

PAGE = pathlib.Path(__file__).with_name("one_page.py")
CODE = PAGE.read_text()


def shorten(code, **values):
    """The page with other values of its numbers, each of which it must contain."""
    for old, new in values.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def make_task():
    train = tasks.kk_split("train", 200, [3], 0, brief=True)
    return tasks.Task("kk", tasks.KK_SYSTEM, train, train, train, tasks.verify_kk, 0.0)


def run_page(folder, model, tokenizer, verify):
    """The page's names after one short step from the model."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "one_page.py"
    path.write_text(shorten(CODE, **{
        "STEPS, G, UPDATES = 40": "STEPS, G, UPDATES = 1", '"train", 4000': '"train", 200',
        "200 if tiny else 50": "4", "(32, 2e-4": "(4, 2e-2", "1e-6, 800": "1e-6, 8"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["one_page.py", str(folder), "1"])
        patch.setattr(tasks, "verify_kk", verify)
        return runpy.run_path(str(path))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """From an untrained tiny model, of whose completions every fourth is called right,
    with the generation_config of a checkpoint that truncates."""
    torch.manual_seed(0)
    model, tokenizer = tiny.tiny_model(make_task())
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.5, top_k=2, top_p=0.5, min_p=0.1,
        repetition_penalty=1.5, eos_token_id=0)
    asked = iter(range(10 ** 6))

    def verify(response, roles):
        number = next(asked)
        return tasks.Verdict(number % 4 == 0, number % 4 < 2)
    return run_page(tmp_path_factory.mktemp("page"), model, tokenizer, verify)


def test_a_real_model_gets_the_system_prompt_and_begins_with_its_thoughts(tmp_path):
    """A model of a size that the page calls real, with a chat template of its own."""
    _, tokenizer = tiny.tiny_model(make_task())
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n\n{% endfor %}"
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=len(tokenizer), n_positions=512, n_embd=256, n_layer=2, n_head=2,
        bos_token_id=None, eos_token_id=0))
    responses = []

    def verify(response, roles):
        responses.append(response)
        return tasks.Verdict(False, False)
    page = run_page(tmp_path, model, tokenizer, verify)
    assert not page["tiny"] and "island" in page["train"][0].question
    assert all(response.startswith("<think>") for response in responses)
    longest = 0
    for problem in page["problems"]:
        prompt = f"{tasks.KK_SYSTEM}\n\n{problem.question}\n\n<think>"
        longest = max(longest, len(tokenizer(prompt)["input_ids"]))
    assert page["ids"].shape[1] - page["mask"].shape[1] == longest


def test_the_loss_is_that_of_grpo_sg(page):
    """In the last update of the step, where r is not 1."""
    rows, mask = page["rows"], page["mask"][page["rows"]]
    logps, old_logps = page["logps"], page["old_logps"][rows]
    A = grpo_sg.group_advantages(page["R"].view(4, 8)).flatten()[rows]
    loss, _ = grpo_sg.grpo_sg_loss(logps, old_logps, A, mask, clip_high=0.24,
                                   weights=grpo_sg.token_weights(logps))
    held = page["r"] * A[:, None] > page["clipped"] * A[:, None]
    assert (held & mask).any() and (page["w"] > 1).any() and (page["w"] < 1.4).any()
    assert not mask.all()
    assert not page["w"].requires_grad and page["r"].requires_grad
    torch.testing.assert_close(page["loss"], loss)


def check_log_probabilities(page, model):
    """In grpo_sg.py rows are padded on the right, here on both sides."""
    ids, real, mask = page["ids"], page["real"].bool(), page["mask"]
    assert not real[:, 0].all()  # some prompts are shorter than others
    logps = page["log_probabilities"](ids, page["real"], mask.shape[1])
    for i in range(len(ids)):
        row = ids[i][real[i]][None]
        wrote = torch.zeros_like(row, dtype=torch.bool)
        wrote[:, -int(mask[i].sum()):] = True
        want = grpo_sg.token_logps(model, row, wrote)[wrote]
        torch.testing.assert_close(logps[i][mask[i]], want, atol=1e-4, rtol=1e-4)


def test_log_probabilities_are_those_of_grpo_sg(page):
    check_log_probabilities(page, page["model"])


def test_log_probabilities_of_a_model_that_counts_positions(page, monkeypatch):
    """Rotary embeddings see only the distance of two tokens, GPT-2's their positions."""
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=page["model"].config.vocab_size, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=None, eos_token_id=0)).eval()
    monkeypatch.setitem(page["log_probabilities"].__globals__, "model", model)
    check_log_probabilities(page, model)


def test_the_mask_keeps_the_stop_token_and_nothing_after_it(page):
    completions = page["ids"][:, -page["mask"].shape[1]:].tolist()
    ended = 0
    for tokens, mask in zip(completions, page["mask"].tolist()):
        count = len(tokens)
        if page["stop"] in tokens:
            count = tokens.index(page["stop"]) + 1
            ended += 1
        assert mask == [True] * count + [False] * (len(tokens) - count)
    assert ended


def test_tokens_come_from_the_whole_distribution_whatever_the_checkpoint_says(page):
    """Of a model with more than the 50 words that generate's own top-k leaves."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2)).eval()
    model.generation_config = page["model"].generation_config
    drawn = model.generate(torch.tensor([[5, 6, 7]]), output_scores=True,
                           output_logits=True, return_dict_in_generate=True)
    assert len(drawn.logits) > 1
    for scores, logits in zip(drawn.scores, drawn.logits):
        torch.testing.assert_close(scores, logits)


def test_the_policy_has_moved_and_old_log_probabilities_are_from_before(page):
    now = page["log_probabilities"](page["ids"], page["real"], page["mask"].shape[1])
    assert (now - page["old_logps"]).abs().max() > 0.01
    assert not page["old_logps"].requires_grad


def test_the_lessons_page_has_what_was_printed():
    text = PAGE.with_name("results").joinpath("one_page.txt").read_text(encoding="utf-8")
    told = []
    for moment in ("before", "after"):
        scores = torch.tensor([float(x) for x in re.findall(rf"avg@4 {moment}: (.*)", text)])
        error = scores.std() / len(scores) ** 0.5
        told.append(f"{scores.mean():.3f} ± {error:.3f}")
    lesson = " ".join(PAGE.with_name("README.md").read_text(encoding="utf-8").split())
    assert f"goes from {told[0]} to {told[1]}" in lesson


def test_it_imports_nothing_of_the_program():
    imported = set()
    for node in ast.walk(ast.parse(CODE)):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported == {"argparse", "os", "random", "sys", "torch", "transformers", "tasks"}


def test_each_function_that_a_comment_names_is_there():
    names = re.findall(r"\[((?:grpo_sg|support)[\w.]*)\.(\w+)", CODE)
    assert len(names) > 7
    for module, function in names:
        assert hasattr(importlib.import_module(module), function), function
