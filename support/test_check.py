"""Test check.py: what it measures, and what it advises."""
import os
import re

import pytest
import torch

import grpo_sg
import tasks
from support import check
from test_grpo_sg import build_model

SMALL = "--train_problems 40 --eval_problems 8".split()


def test_a_check_describes_prompt_model_and_signal_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check.main(["--task", "kk", *SMALL])
    said = capsys.readouterr().out
    for words in ("a prompt, 1", "Ada: ", "a completion ends with <|im_end|> (0)", "there is no system prompt",
                  "agree with a plain forward pass", "<think> Ada,", "% begin an answer",
                  "% well formed", "timing an update", "tokens sampled a second",
                  "a step of 256 completions takes 0:0", "60 steps with their tests"):
        assert words in said
    assert said.endswith("there is a signal to learn from: start a run with these flags\n")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("flags, words", [
    ("--task missing.py --model org/name", "--task "),
    ("--model .", "the model .* cannot be used"),  # a hub name would be looked for
    ("--group_size 1", "--group_size .*1")])
def test_a_mistake_is_one_line(flags, words):
    with pytest.raises(SystemExit, match=f"^error: .*{words}") as error:
        check.main(flags.split())
    assert "\n" not in str(error.value)


def test_sampling_and_token_logps_are_compared_with_a_plain_forward_pass(monkeypatch):
    model = build_model()
    sample, lengths = grpo_sg.sample, []
    monkeypatch.setattr(grpo_sg, "sample", lambda model, prompts, **settings: (
        lengths.extend(map(len, prompts)) or sample(model, prompts, **settings)))
    check.check_passes(model, [2, 3, 4, 5])
    assert len(set(lengths)) == 2  # so one prompt is padded
    right = grpo_sg.token_logps
    monkeypatch.setattr(grpo_sg, "token_logps", lambda model, ids, mask: right(model, ids, mask, temperature=0.5))
    with pytest.raises(SystemExit, match="differs from a plain forward pass"):
        check.check_passes(model, [2, 3, 4, 5])


def test_a_model_with_nan_or_that_looks_ahead_is_refused():
    model = build_model()
    with pytest.raises(SystemExit, match="not a causal model"):
        check.compare_passes(build_model("Bert", is_decoder=False), [2, 3, 4, 5], [6])
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(SystemExit, match="logits are not finite"):
        check.compare_passes(model, [2, 3, 4, 5], [6])


def groups_of(transcript, *, truncated, formatted=False, rewards=(-3, -3, -3, -3)):
    """Return two groups of completions with this transcript."""
    problem = tasks.Problem("1 + 1", "2", solution="\\boxed{2}")
    return [grpo_sg.Completion(problem, [1], transcript=transcript, truncated=truncated, mask=[True], reward=reward,
                               formatted=formatted, correct=reward > 0) for reward in rewards * 2]


@pytest.mark.parametrize("completions, advice", [
    # No completion has a box, though most ended: the model does not know the form.
    (groups_of("The answer is 2.", truncated=False), "show the form by an example in --system, .* support.tiny kk --model"),
    (groups_of("The answer is 2.", truncated=False) + 3 * groups_of("\\boxed{", truncated=True), "show the form"),
    # One that repeats itself to the end did not run out of room.
    (groups_of("<answer>\n" * 99, truncated=True), "more tokens would not help: show the form"),
    (groups_of("\\boxed{1}" * 99, truncated=True), "more tokens would not help: show the form"),
    (groups_of("First, we add the ones,", truncated=True), "before an answer begins: raise --max_new_tokens, now 64"),
    (groups_of("So it is \\boxed{", truncated=True), "cut off in their answer: raise --max_new_tokens, now 64"),
    (groups_of("\\boxed{3}", truncated=False, formatted=True, rewards=(-0.5,) * 4), "no completion is correct"),
    (groups_of("\\boxed{2}", truncated=False, formatted=True, rewards=(3,) * 4), "use harder ones"),
    (groups_of("\\boxed{2}", truncated=False, formatted=True, rewards=(3, 3, -0.5, 3)), "a signal to learn from")])
def test_advice_follows_from_the_rates(completions, advice):
    task = tasks.Task("sums", "Put it in a box.", [c.problem for c in completions], [], [], tasks.verify_math, 0.0)
    row = {}
    grpo_sg.add_samples(row, completions, check.SAMPLES)
    said = check.advise(row, completions, task, grpo_sg.Config(task="kk", max_new_tokens=64))
    assert re.search(advice, said)


@pytest.mark.parametrize("formed, cut, right, equal, words", [
    (0.97, 0.02, 0.66, 0.41, "a signal to learn from"),
    (0.40, 0.60, 0.20, 0.50, "raise --max_new_tokens"),  # those that end are well formed
    (0.20, 0.10, 0.00, 0.60, "the model learns the form first"),
    (0.80, 0.10, 0.00, 0.60, "no completion is correct, .* easier problems"),
    (1.00, 0.00, 0.98, 0.95, "use harder ones"), (1.00, 0.00, 0.02, 0.95, "use easier ones .*--group_size")])
def test_each_reason_for_no_signal_has_its_advice(formed, cut, right, equal, words):
    row = {"eval/format_rate@4": formed, "eval/truncated@4": cut, "eval/avg@4": right, "eval/equal_groups@4": equal}
    assert re.search(words, check.advise(row, [], None, None))
    assert f"{formed:.0%} well formed, {cut:.0%} truncated; in {equal:.0%}" in check.describe_rates(row)
