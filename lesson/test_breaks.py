"""Each mistake is what its name says and replaces the right version only during its run; the page
shows what the commands printed."""
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


def test_the_stop_token_is_left_out_and_the_temperature_is_another():
    policy, task, cfg = build_toy()
    completions = grpo_sg.rollout(policy, task, task.train, cfg, n=4, temperature=1.0, seed=0)
    right = grpo_sg.make_batch(completions, "cpu")
    wrong = breaks.batch_without_stop(completions, "cpu")
    assert wrong.mask.equal(right.mask & (right.ids != 0))
    assert not wrong.mask.equal(right.mask)
    logps = breaks.logps_at_another_temperature(policy.model, right, cfg)
    expected = grpo_sg.token_logps(policy.model, right.ids, right.mask, temperature=0.6)
    torch.testing.assert_close(logps, expected)


def test_each_run_has_only_its_own_mistake(monkeypatch, capsys):
    train, starts, losses = breaks.train, [], []

    def note_losses(name, *start):
        found = train(name, *start)
        starts.append(start)
        losses.append([row["loss"] for row in found[2]])
        return found
    monkeypatch.setattr(breaks, "train", note_losses)
    monkeypatch.setattr(breaks, "start_policy", lambda seed, default: build_toy(steps=2, seed=seed))
    breaks.main(["--seeds", "2"])
    told = capsys.readouterr().out
    lines = re.findall(r"^(\w+) +\|.{2}\| avg@4 [\d.]+, greedy [\d.]+, largest gradient +[\d.]+(.*)$",
                       told, re.M)
    assert [name for name, _ in lines] == list(breaks.MISTAKES)
    assert "minus right" not in lines[0][1]
    assert all(re.search(r"minus right [+-]\d\.\d+ ± \d\.\d+$", rest) for _, rest in lines[1:])
    assert "inside: eight seeds gave -0.152 [-0.196, -0.108]" in told
    assert len(set(map(tuple, losses))) == 2 * len(breaks.MISTAKES)  # each learned something else
    # No mistake is left in grpo_sg, and the policy that each run started with is as it was.
    assert train("right", *starts[0])[2][-1]["loss"] == losses[0][-1]


def interrupt(*given):
    raise KeyboardInterrupt


@pytest.mark.parametrize("arguments, patches, message", [
    (["clip"], [], "there is no 'clip': give some of inside, stop, temperature, tau, "),
    (["inside", "6"], [], "there is no '6': "),
    (["--seeds", "0"], [], "at least one seed is needed"),
    (["3"], [(importlib.util, "find_spec", lambda name: None)], "pytest is not installed"),
    ([], [(breaks, "start_policy", interrupt)], "interrupted")])
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
    assert effect.startswith("    As in the first break, the stop token is never trained")


# ---- The page ----

def test_the_page_has_what_eight_seeds_gave():
    assert all(value in PAGE for value in breaks.MEASURED.values())


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
