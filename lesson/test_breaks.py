"""Each mistake is what its name says and replaces the right version only during its run; the page
shows what the commands printed."""
import ast
import math
import pathlib
import re

import pytest
import torch

import grpo_sg
from test_grpo_sg import build_toy
from lesson import breaks, five_breaks

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


def test_w_inside_the_clip_is_its_formula():
    g = torch.Generator().manual_seed(0)
    logps = (-3 * torch.rand(6, 5, generator=g)).requires_grad_()
    old_logps = logps.detach() + 0.3 * torch.randn(6, 5, generator=g)
    A, mask = torch.randn(6, generator=g), torch.rand(6, 5, generator=g) < 0.7
    w = grpo_sg.token_weights(logps)
    loss, _ = breaks.loss_with_w_inside(logps, old_logps, A, mask, weights=w)
    wr = w * (logps - old_logps).exp()
    objective = torch.minimum(wr * A[:, None], wr.clamp(0.8, 1.24) * A[:, None])
    torch.testing.assert_close(loss, -objective[mask].mean())


def test_the_stop_token_is_left_out_and_no_other():
    policy, task, cfg = build_toy()
    completions = grpo_sg.rollout(policy, task, task.train, cfg, n=4, temperature=1.0, seed=0)
    right = grpo_sg.make_batch(completions, "cpu")
    wrong = breaks.batch_without_stop(completions, "cpu")
    left_out = right["mask"] & ~wrong["mask"]
    assert left_out.any() and right["ids"][left_out].eq(0).all()
    assert not (wrong["mask"] & ~right["mask"]).any()


def test_another_temperature():
    policy, task, cfg = build_toy()
    completions = grpo_sg.rollout(policy, task, task.train, cfg, n=2, temperature=1.0, seed=0)
    batch = grpo_sg.make_batch(completions, "cpu")
    wrong = breaks.logps_at_another_temperature(policy.model, batch, cfg)
    cfg.temperature = 0.6
    assert wrong.equal(grpo_sg.compute_logps(policy.model, batch, cfg))


def start_toy(seed, default):
    policy, task, cfg = build_toy(steps=2, seed=seed)
    return policy, task, cfg


def test_each_run_has_only_its_own_mistake(monkeypatch, capsys):
    train, starts, losses = breaks.train, [], []

    def note_losses(name, *start):
        found = train(name, *start)
        starts.append(start)
        losses.append([row["loss"] for row in found[2]])
        return found
    monkeypatch.setattr(breaks, "train", note_losses)
    monkeypatch.setattr(breaks, "start_policy", start_toy)
    breaks.main(["--seeds", "2"])
    told = capsys.readouterr().out
    lines = re.findall(r"^(\w+) +\|.{2}\| avg@4 [\d.]+, greedy [\d.]+, largest gradient +([\d.]+)(.*)$",
                       told, re.M)
    assert [name for name, *_ in lines] == list(breaks.BREAKS)
    assert "minus right" not in lines[0][2]
    assert all(re.search(r"minus right [+-]\d\.\d+ ± \d\.\d+$", rest) for *_, rest in lines[1:])
    assert "inside: eight seeds gave -0.152 [-0.196, -0.108]" in told
    assert grpo_sg.grpo_sg_loss is breaks.right_loss and grpo_sg.make_batch is breaks.right_batch
    assert grpo_sg.compute_logps is breaks.right_logps
    assert len(set(map(tuple, losses))) == 2 * len(breaks.BREAKS)  # each learned something else
    # No mistake is left in grpo_sg, and the policy that each run started with is as it was.
    assert train("right", *starts[0])[2][-1]["loss"] == losses[0][-1]


@pytest.mark.parametrize("arguments, message", [
    (["clip"], "there is no 'clip': give some of inside, stop, temperature, tau"),
    (["--seeds", "0"], "at least one seed is needed")])
def test_invalid_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        breaks.main(arguments)
    assert message in capsys.readouterr().err


# ---- The page ----

def test_the_page_has_what_eight_seeds_gave():
    for value in breaks.MEASURED.values():
        assert value in PAGE, value


def read_breaks():
    """[(title, tests that fail)] as lesson.five_breaks printed them."""
    text = (LESSON / "results" / "five_breaks.txt").read_text(encoding="utf-8")
    found = []
    for part in re.split(r"^\d\. ", text, flags=re.M)[1:]:
        head, *lines = part.strip().splitlines()
        found.append((head, re.findall(r"^    (test_\w+)", "\n".join(lines), re.M)))
    return found


def test_each_break_lists_only_the_tests_that_catch_it(monkeypatch, capsys):
    slow, plain = {"test_slow": [("", "is slow")]}, five_breaks.PLAIN_STEP
    broken = {**slow, "test_mask": [("[1]", "is 0")], plain: [("", "is 1"), ("", "is 2")]}
    failures = iter([slow, broken])
    monkeypatch.setattr(five_breaks, "find_failures", lambda folder: next(failures))
    five_breaks.main(["--only", "5"])
    _, head, *tests, said, effect = capsys.readouterr().out.splitlines()[:6]
    assert head == "5. the last token's mask, in make_batch" and said == "  > is 1"
    assert tests == ["    test_mask [1]", f"    {plain}"]
    assert effect.startswith("    As in the first break, the stop token is never trained")


def test_each_break_can_be_made():
    functions = {}
    for node in ast.parse(CODE).body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = ast.get_source_segment(CODE, node)
    for title, function, old, new, _ in five_breaks.BREAKS:
        broken = five_breaks.replace_in(CODE, old, new)
        compile(broken, "grpo_sg.py", "exec")
        assert old in functions[function], title


def test_each_break_of_the_page_was_made_and_seen():
    tests = (LESSON.parent / "test_grpo_sg.py").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d)\. (.*?) \| `(\w+)` \|", PAGE, re.M)
    printed = read_breaks()
    assert len(rows) == len(printed) == len(five_breaks.BREAKS)
    for row, (head, failing), (title, function, *_) in zip(rows, printed, five_breaks.BREAKS):
        assert row[1:] == (title, function) and head == f"{title}, in {function}"
        assert all(f"def {name}(" in tests for name in failing), title
        assert five_breaks.PLAIN_STEP in failing, title
