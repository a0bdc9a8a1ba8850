"""The page runs, and its method is that of grpo_sg.py."""
import importlib
import pathlib
import re
import runpy
import sys

import pytest
import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

import grpo_sg
import tasks

PAGE = pathlib.Path(__file__).with_name("one_page.py")
CODE = PAGE.read_text(encoding="utf-8")
TINY = str(PAGE.parents[1] / "support" / "pretrained" / "kk")
SHORTER = {
    "STEPS, G, UPDATES = 40": "STEPS, G, UPDATES = 1", '"train", 4000': '"train", 200',
    "200 if tiny else 50": "4", "(32, 2e-4": "(4, 2e-2", "1e-6, 800": "1e-6, 8"}


def run_page(folder, model, tokenizer, verify):
    """The page's names after one short step from the model."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    code = CODE
    for old, new in SHORTER.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    (folder / "one_page.py").write_text(code, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["one_page.py", str(folder), "1"])
        patch.setattr(tasks, "verify_kk", verify)
        clips = []
        patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, most: clips.append(most))
        return {**runpy.run_path(str(folder / "one_page.py")), "clips": clips}


def gpt2(**settings):
    return GPT2LMHeadModel(GPT2Config(
        n_layer=2, n_head=2, bos_token_id=None, eos_token_id=0, **settings)).eval()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """From the tiny model, of whose completions every fourth is called right, with the
    generation_config of a checkpoint that truncates."""
    model, tokenizer = grpo_sg.load_model(TINY)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.5, top_k=2, top_p=0.5, min_p=0.1,
        repetition_penalty=1.5, eos_token_id=0)
    asked = []

    def verify(response, roles):
        assert "<|im_end|>" not in response
        asked.append(roles)
        return tasks.Verdict(len(asked) % 4 == 1, len(asked) % 4 in (1, 2))
    return {**run_page(tmp_path_factory.mktemp("page"), model, tokenizer, verify), "asked": asked}


def test_each_completion_is_judged_by_its_own_problem_and_learned_from_in_random_rows(page):
    test, trained = ([x.answer for x in page[name] for _ in range(n)] for name, n in (("test", 4), ("problems", 8)))
    assert page["asked"] == test + trained + test and len(trained) == 32
    assert page["test"] == tasks.kk_split("test", 4, [3], 1, brief=True)
    assert page["R"].tolist() == [3, -0.5, -3, -3] * 8
    assert len({row // 8 for row in page["rows"].tolist()}) > 1 and len(page["rows"]) == 8
    assert page["clips"] == [1.0] * 4 and all(p.grad is None for p in page["model"].parameters())


def test_a_real_model_gets_the_system_prompt_and_begins_with_its_thoughts(tmp_path):
    """A model of a size that the page calls real, with a chat template of its own."""
    _, tokenizer = grpo_sg.load_model(TINY)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n\n{% endfor %}"
    responses = []

    def verify(response, roles):
        responses.append(response)
        return tasks.Verdict(False, False)
    model = gpt2(vocab_size=len(tokenizer), n_positions=512, n_embd=256)
    page = run_page(tmp_path, model, tokenizer, verify)
    assert not page["tiny"] and "island" in page["train"][0].question
    assert all(response.startswith("<think>") for response in responses)
    prompts = [f"{tasks.KK_SYSTEM}\n\n{x.question}\n\n<think>" for x in page["problems"]]
    longest = max(len(ids) for ids in tokenizer(prompts)["input_ids"])
    assert page["ids"].shape[1] - page["mask"].shape[1] == longest


def test_the_loss_is_that_of_grpo_sg(page):
    """In the last update of the step, where r is not 1."""
    rows, mask = page["rows"], page["mask"][page["rows"]]
    logps, old_logps = page["logps"], page["old_logps"][rows]
    A = grpo_sg.group_advantages(page["R"].view(4, 8)).flatten()[rows]
    loss, _ = grpo_sg.grpo_sg_loss(logps, old_logps, A, mask, clip_high=0.24,
                                   weights=grpo_sg.token_weights(logps))
    held = page["r"] * A[:, None] > page["clipped"] * A[:, None]
    assert (held & mask).any() and len(page["w"].unique()) > 2 and not mask.all()
    assert not page["w"].requires_grad and page["r"].requires_grad
    assert not old_logps.requires_grad
    torch.testing.assert_close(page["loss"], loss)


def test_log_probabilities_are_those_of_grpo_sg(page, monkeypatch):
    """There, rows are padded on the right; here, on both sides. GPT-2 sees the positions; rotary
    embeddings, which the page's model has, only the distance of two tokens."""
    ids, real, mask = page["ids"], page["real"].bool(), page["mask"]
    model = gpt2(vocab_size=page["model"].config.vocab_size, n_embd=16)
    monkeypatch.setitem(page["log_probabilities"].__globals__, "model", model)
    logps = page["log_probabilities"](ids, page["real"], mask.shape[1])
    assert not real[:, 0].all()  # some prompts are shorter than others
    for i in range(len(ids)):
        row = ids[i][real[i]][None]
        wrote = torch.zeros_like(row, dtype=torch.bool)
        wrote[:, -int(mask[i].sum()):] = True
        want = grpo_sg.token_logps(model, row, wrote)[wrote]
        torch.testing.assert_close(logps[i][mask[i]], want, atol=1e-4, rtol=1e-4)


def test_the_mask_keeps_the_stop_token_and_nothing_after_it(page):
    completions = page["ids"][:, -page["mask"].shape[1]:].tolist()
    assert any(page["stop"] in tokens for tokens in completions)
    for tokens, mask in zip(completions, page["mask"].tolist()):
        count = (tokens + [page["stop"]]).index(page["stop"]) + 1
        assert mask == [position < count for position in range(len(tokens))]


def test_tokens_come_from_the_whole_distribution_whatever_the_checkpoint_says(page):
    """Of a model with more than the 50 words that generate's own top-k leaves."""
    model = gpt2(vocab_size=100, n_embd=16)
    model.generation_config = page["model"].generation_config
    drawn = model.generate(torch.tensor([[5, 6, 7]]), output_scores=True,
                           output_logits=True, return_dict_in_generate=True)
    torch.testing.assert_close(drawn.scores, drawn.logits)


def test_it_needs_only_tasks_and_each_function_that_a_comment_names_is_there():
    assert not re.search(r"^(import|from) (grpo_sg|support|lesson|verify)", CODE, re.M)
    names = re.findall(r"\[((?:grpo_sg|support)[\w.]*)\.(\w+)", CODE)
    assert len(names) > 7
    for module, function in names:
        assert hasattr(importlib.import_module(module), function), function
