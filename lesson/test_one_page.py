"""The page runs, and its method is that of grpo_sg.py."""
import ast
import importlib
import pathlib
import re
import runpy
import sys

import pytest
import torch
from transformers import GenerationConfig

import grpo_sg
import tasks
from support import tiny

PAGE = pathlib.Path(__file__).with_name("one_page.py")
CODE = PAGE.read_text()


def shorten(code, **values):
    """The page with other values of its numbers, each of which must stand in it."""
    for old, new in values.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page's names after a step from an untrained model, for which every fourth
    completion is right, with the generation_config of a checkpoint that truncates."""
    folder = tmp_path_factory.mktemp("page")
    train = tasks.kk_split("train", 200, [3], 0, brief=True)
    task = tasks.Task("kk", tasks.KK_SYSTEM, train, train, train, tasks.verify_kk, 0.0)
    torch.manual_seed(0)
    model, tokenizer = tiny.tiny_model(task)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.5, top_k=2, top_p=0.5, min_p=0.1,
        repetition_penalty=1.5, eos_token_id=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    asked = iter(range(10 ** 6))

    def verify(response, roles):
        number = next(asked)
        return tasks.Verdict(number % 4 == 0, number % 4 < 2)
    short = shorten(CODE, **{"STEPS, G, UPDATES = 40": "STEPS, G, UPDATES = 1",
                             '"train", 4000': '"train", 200', "200 if tiny": "4 if tiny",
                             "(32, 2e-4": "(4, 2e-2"})
    path = folder / "one_page.py"
    path.write_text(short)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["one_page.py", str(folder), "1"])
        patch.setattr(tasks, "verify_kk", verify)
        return runpy.run_path(str(path))


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
    torch.testing.assert_close(page["loss"], loss)


def test_log_probabilities_are_those_of_grpo_sg(page):
    """There rows are padded on the right, here on both sides."""
    ids, real, mask = page["ids"], page["real"].bool(), page["mask"]
    T = mask.shape[1]
    assert not real[:, 0].all()  # some prompts are shorter than others
    logps = page["log_probabilities"](ids, page["real"], T)
    for i in range(len(ids)):
        row = ids[i][real[i]][None]
        wrote = torch.zeros_like(row, dtype=torch.bool)
        wrote[:, -int(mask[i].sum()):] = True
        want = grpo_sg.token_logps(page["model"], row, wrote)[wrote]
        torch.testing.assert_close(logps[i][mask[i]], want, atol=1e-4, rtol=1e-4)


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
    prompt = torch.tensor([[5, 6, 7]])
    drawn = page["model"].generate(prompt, output_scores=True, output_logits=True,
                                   return_dict_in_generate=True)
    assert len(drawn.logits) > 1
    for scores, logits in zip(drawn.scores, drawn.logits):
        torch.testing.assert_close(scores, logits)


def test_the_policy_has_moved_and_old_log_probabilities_are_from_before(page):
    now = page["log_probabilities"](page["ids"], page["real"], page["mask"].shape[1])
    assert (now - page["old_logps"]).abs().max() > 0.01
    assert not page["old_logps"].requires_grad


def test_it_imports_nothing_of_the_program():
    imported = set()
    for node in ast.walk(ast.parse(CODE)):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported == {"random", "sys", "torch", "transformers", "tasks"}


def test_each_function_that_a_comment_names_is_there():
    names = re.findall(r"\[((?:grpo_sg|support)[\w.]*)\.(\w+)", CODE)
    assert len(names) > 7
    for module, function in names:
        assert hasattr(importlib.import_module(module), function), function
