"""A bug replaces the right version only during its run; the page shows what the commands printed."""
import ast
import importlib.util
import math
import pathlib
import re

import pytest
import torch

import grpo_sg
from lesson import breaks
from test_grpo_sg import build_toy

LESSON = pathlib.Path(breaks.__file__).parent
PAGE = (LESSON / "README.md").read_text(encoding="utf-8")
CODE = (LESSON.parent / "grpo_sg.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("pi, A, slope", [(0.9, 1.0, 0.0), (0.9, -1.0, 1.4), (0.05, 1.0, -1.0)])
def test_w_inside_the_clip_punishes_likely_tokens_and_never_rewards_them(pi, A, slope):
    logps = torch.tensor([[math.log(pi)]], requires_grad=True)
    w = grpo_sg.token_weights(logps)
    loss, _ = breaks.loss_with_w_inside(
        logps, logps.detach(), torch.tensor([A]), torch.ones(1, 1), weights=w)
    loss.backward()
    assert logps.grad.item() == pytest.approx(slope, abs=1e-5)


def test_each_run_has_only_its_own_loss(monkeypatch, capsys):
    train, starts, losses = breaks.train, [], []

    def note_losses(loss, *start):
        accuracy, rows = train(loss, *start)
        starts.append(start)
        losses.append([row["loss"] for row in rows])
        return accuracy, rows
    monkeypatch.setattr(breaks, "train", note_losses)
    monkeypatch.setattr(breaks, "start_policy", lambda seed: build_toy(steps=2, seed=seed))
    breaks.main(["inside", "--seeds", "2"])
    *seeds, mean, eight = capsys.readouterr().out.splitlines()
    changes = re.findall(r"with w inside the clip [\d.]+, ([+-][\d.]+)$", "\n".join(seeds), re.M)
    assert float(re.search("differences (.*) ±", mean)[1]) == pytest.approx(
        sum(map(float, changes)) / 2, abs=2e-3)
    assert len(changes) == 2 and eight == "eight seeds gave -0.152 [-0.196, -0.108]"
    assert len(set(map(tuple, losses))) == 4  # each learned something else
    # The bug is not left in grpo_sg, and the policy that each run started with is as it was.
    assert train(breaks.right_loss, *starts[0])[1][-1]["loss"] == losses[0][-1]


def interrupt(*args):
    raise KeyboardInterrupt


@pytest.mark.parametrize("arguments, patches, message", [
    (["clip"], [], "there is no 'clip': give some of 1 to 5, to see which tests notice, or inside"),
    (["inside", "6"], [], "there is no '6': "),
    (["1", "--seeds", "0"], [], "at least one seed is needed"),
    (["3"], [(importlib.util, "find_spec", lambda name: None)], "pytest is not installed"),
    (["inside"], [(breaks, "start_policy", interrupt)], "interrupted")])
def test_a_mistake_of_the_user_is_one_line(arguments, patches, message, monkeypatch, capsys):
    for patch in patches:
        monkeypatch.setattr(*patch)
    with pytest.raises(SystemExit) as stop:
        breaks.main(arguments)
    assert message in f"{stop.value}{capsys.readouterr().err}"


def test_each_break_lists_only_the_tests_that_catch_it(monkeypatch, capsys):
    slow, plain = {"test_slow": [("", "is slow")]}, breaks.PLAIN_STEP
    broken = {**slow, "test_mask": [("[1]", "is 0")], plain: [("", "is 1"), ("", "is 2")]}
    failures = iter([slow, broken])
    monkeypatch.setattr(breaks, "find_failures", lambda folder: next(failures))
    breaks.main(["5"])
    _, head, *tests, said, effect = capsys.readouterr().out.splitlines()[:6]
    assert head == "5. the last token's mask, in make_batch" and said == "  > is 1"
    assert tests == ["    test_mask [1]", f"    {plain}"]
    assert effect.startswith("    As in bug 1, the stop token is never trained")


# ---- The page ----

def test_the_page_has_what_eight_seeds_gave():
    assert breaks.MEASURED in PAGE


def test_each_break_of_the_page_can_be_made_and_was_seen():
    functions = {}
    for node in ast.parse(CODE).body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = ast.get_source_segment(CODE, node)
    tests = (LESSON.parent / "test_grpo_sg.py").read_text(encoding="utf-8")
    text = (LESSON / "results" / "five_breaks.txt").read_text(encoding="utf-8")
    printed = re.split(r"^\d\. ", text, flags=re.M)[1:]
    rows = re.findall(r"^\| \d\. (.*?) \| `(\w+)` \|", PAGE, re.M)
    for row, part, (title, function, old, new, _) in zip(rows, printed, breaks.BREAKS, strict=True):
        compile(breaks.replace_in(CODE, old, new), "grpo_sg.py", "exec")
        assert old in functions[function] and row == (title, function)
        assert part.startswith(f"{title}, in {function}\n")
        caught = re.findall(r"^    (test_\w+)", part, re.M)
        assert breaks.PLAIN_STEP in caught and all(f"def {name}(" in tests for name in caught)
