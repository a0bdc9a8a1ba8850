"""Test check.py: what it measures, and what it advises."""
import math
import os
import random
import re
from types import SimpleNamespace

import pytest
import torch

import grpo_sg
import tasks
from support import check
from test_grpo_sg import build_model

SMALL = "--train_problems 40 --eval_problems 8".split()


def test_a_check_describes_prompt_model_and_rates_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check.main(["--task", "kk", *SMALL])
    said = capsys.readouterr().out
    floor = tasks.make_task(grpo_sg.read_settings(["--task", "kk", *SMALL])).floor  # which a run prints
    for words in ("a prompt, 1", "a completion ends with <|im_end|> (0)", "the task has no system prompt, but a template may add its own",
                  "agree with a plain forward pass", f"the best constant answer is correct in {floor:.0%} of", "<think> Ada,",
                  "% begin an answer", "% have the correct format", "tokens sampled a second",
                  "a step of 256 completions takes 0:0", "60 steps with their tests"):
        assert words in said
    assert said.endswith("there is something to learn from: start a run with these flags\n") and "warning" not in said
    assert os.listdir(tmp_path) == []
    with pytest.raises(SystemExit, match="^error: cannot load the model .") as error:
        check.main(["--model", ".", *SMALL])
    assert "\n" not in str(error.value)


def test_after_a_warning_the_last_line_is_no_go_ahead(monkeypatch, capsys):
    monkeypatch.setattr(tasks, "verify_kk", accepts_all)
    check.main(["--task", "kk", *SMALL])
    *_, warning, last = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert warning.startswith("warning: verify accepts the answers of other problems")
    assert last == "fix first what the warnings say, and then check again"


def test_help_is_about_check(capsys):
    pytest.raises(SystemExit, check.main, ["--help"])
    assert check.__doc__.splitlines()[0] in capsys.readouterr().out


def accepts_a_list(response, answer):
    return tasks.Verdict(answer in response.split(", "), True)


def finds_it(response, answer):
    return tasks.Verdict(answer in response, True)


def reads_the_first(response, answer):
    return tasks.Verdict(re.split(r"\W", response)[0] == answer, True)


def needs_a_unit(response, answer):
    return tasks.Verdict(response == f"{answer} cm", True)


def accepts_all(response, answer):
    return tasks.Verdict(True, True)


def refuses_two(response, answer):
    return tasks.Verdict(response == answer != "2", True)


def pays_length(completion):
    return tasks.reward(completion) + 0.01 * len(completion.response)


def pays_tokens(completion):
    return 1.0 * sum(completion.mask)


def pays_mistakes(completion):
    return -tasks.reward(completion)


def pays_silence(completion):
    return 3.0 * completion.correct - (completion.transcript != "")


def pays_silence_a_little(completion):
    return 300 * tasks.reward(completion) + (completion.transcript == "")


def pays_silence_by_cents(completion):
    return 0.01 * pays_silence(completion)


def rolls_dice(response, answer):
    return tasks.Verdict(random.random() < 0.5, True)


def pays_luck(completion):
    return tasks.reward(completion) + random.random()


OTHERS = [tasks.Problem(f"{2 * n}?", str(n)) for n in (17, 18)]  # no training problem's answer


@pytest.mark.parametrize("change, words", [
    ({}, []), ({"verify": accepts_a_list}, ["lists all answers in 100%"]),
    ({"verify": finds_it, "test": OTHERS}, ["a wrong answer next to the right one in 100%"]),
    ({"verify": reads_the_first, "test": OTHERS}, []),
    ({"reward": pays_silence}, ["without an answer earns +0.00, and a wrong answer -1.00"]),
    ({"reward": pays_silence_by_cents}, ["without an answer earns +0.00, and a wrong answer -0.01"]),
    ({"reward": pays_silence_a_little}, []),
    ({"verify": rolls_dice}, ["warning: the verdict of the same response isn't the same from call to call"]),
    ({"reward": pays_luck}, ["warning: the reward of the same response isn't the same from call to call"]),
    ({"reward": pays_length}, ["1998 characters of filler earns +19.49, and a right answer +3.01"]),
    ({"reward": pays_tokens}, ["filler earns +1999.00, and", "+1.00, and a right one +1.00, but"]),
    ({"reward": pays_mistakes}, ["a wrong answer earns +0.50, and a right one -3.00, but wrong"]),
    ({"verify": needs_a_unit}, ["the reward was not tried: verify accepts the first answer, '1',"]),
    ({"verify": refuses_two}, ["verify refuses the answers of 1 of 4 test problems"]),
    ({"train": OTHERS[:1], "test": OTHERS[:1]}, ["the reward of a wrong answer was not tried"]),
    ({"verify": accepts_all}, ["warning: verify accepts the answers of other problems"])])
def test_a_reward_that_pays_without_reasoning_is_warned_of(change, words):
    def verify(response, answer):
        return tasks.Verdict(response == answer, True)
    problems = [tasks.Problem(f"{n}?", str(n // 2)) for n in (2, 3, 4, 6)]
    task = tasks.Task("half", "", problems, problems, problems, verify, 0.5)._replace(**change)
    warnings = check.check_reward(task)
    assert len(warnings) == len(words)
    assert all(map(str.__contains__, warnings, words))


def test_a_model_that_cannot_be_trained_is_refused(monkeypatch):
    model = build_model()
    check.check_passes(model, [2, 3, 4, 5])
    with pytest.raises(SystemExit, match="not a causal model"):
        check.compare_passes(build_model("Bert", is_decoder=False), [2, 3, 4, 5], [6])
    least = model(input_ids=torch.tensor([[2, 3, 4, 5]])).logits[0, -1].argmin()
    with pytest.raises(SystemExit, match="differs from a plain forward pass"):
        check.compare_passes(model, [2, 3, 4, 5], [int(least)])  # which greedy sampling never draws
    right = grpo_sg.token_logps
    monkeypatch.setattr(grpo_sg, "token_logps", lambda model, ids, mask: right(model, ids, mask, temperature=0.5))
    with pytest.raises(SystemExit, match="differs from a plain forward pass"):
        check.check_passes(model, [2, 3, 4, 5])
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(SystemExit, match="logits are not finite"):
        check.compare_passes(model, [2, 3, 4, 5], [6])


def groups_of(transcript, *, truncated):
    """Return two groups of malformed completions with this transcript."""
    problem = tasks.Problem("1 + 1", "2", solution="\\boxed{2}")
    return [grpo_sg.Completion(problem, [1], transcript=transcript, truncated=truncated, mask=[True], reward=-3.0)
            for _ in range(8)]


@pytest.mark.parametrize("completions, advice", [
    # No completion has a box, though most ended: the model does not know the format.
    (groups_of("The answer is 2.", truncated=False) + 3 * groups_of("\\boxed{", truncated=True),
     "show the format by an example in --system, .* support.tiny kk --model"),
    # One that repeats itself to the end did not run out of room.
    (groups_of("<answer>\n" * 20, truncated=True), "more tokens would not help: show the format"),
    (groups_of("First, we add the ones,", truncated=True), "before an answer begins: raise --max_new_tokens, now 64"),
    (groups_of("So it is \\boxed{", truncated=True), "cut off in their answer: raise --max_new_tokens, now 64")])
def test_advice_follows_from_the_rates(completions, advice):
    task = tasks.Task("sums", "Put it in a box.", [c.problem for c in completions], [], [], tasks.verify_math, 0.0)
    said = check.advise(grpo_sg.average_samples(completions, 4), completions, task, grpo_sg.Config(task="kk", max_new_tokens=64))
    assert re.search(advice, said)


@pytest.mark.parametrize("formed, cut, right, equal, words", [
    (0.97, 0.02, 0.66, 0.41, "something to learn from"),
    (0.40, 0.60, 0.20, 0.50, "raise --max_new_tokens"),  # those that end have the format
    (0.20, 0.60, 0.00, 0.60, "the model learns the format first"),  # half of those that end have it
    (0.70, 0.10, 0.00, 0.60, "the model learns the format first"),
    (0.80, 0.10, 0.00, 0.60, "no completion is correct, .* easier problems"),
    (1.00, 0.00, 0.98, 0.95, "use harder ones"), (1.00, 0.00, 0.02, 0.95, "use easier ones .*--group_size")])
def test_each_reason_to_learn_nothing_has_its_advice(formed, cut, right, equal, words):
    row = {"format_rate@4": formed, "truncated@4": cut, "avg@4": right, "equal_groups@4": equal}
    assert re.search(words, check.advise(row, [], None, None))
    assert f"{formed:.0%} have the correct format, {cut:.0%} are truncated; {equal:.0%}" in check.describe_rates(row)


def test_the_time_of_a_run_counts_its_steps_both_tests_and_all_validations(monkeypatch, capsys):
    """Here a completion takes a second to sample, and an update no time."""
    monkeypatch.setattr(check, "measure_update", lambda *_: math.inf)
    completions = groups_of("", truncated=False)
    task = SimpleNamespace(train=range(99), valid=range(30), test=range(20))
    cfg = grpo_sg.Config(steps=6, eval_every=3, prompts=2, group_size=4, eval_samples=4)
    check.estimate_time(None, task, completions, len(completions), cfg)
    total = 6 * 2 * 4 + 2 * 30 + 2 * 20 * (1 + 4)  # steps, validations, tests
    assert f"takes 0:00:08, and 6 steps with their tests 0:0{total // 60}:{total % 60:02}" in (
        capsys.readouterr().out)
