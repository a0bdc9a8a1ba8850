"""Test the command line of the whole project: a run from its first line to its last, and mistakes."""
import dataclasses
import json
import math
import os
import re

import pytest
import torch

import grpo_sg
import tasks
from support import advice, ask, checks, cli, models, program, tiny
from support.run import Run
from support.tools import Tool
from tasks import UserError
from test_grpo_sg import (
    CHAT, PROMPTS, SMALL, WORDS, build_model, build_toy, rolled, rows_of, save_model, word_tokenizer)

HERE = os.path.dirname(os.path.abspath(__file__))


def test_nan_logits_or_log_probabilities_are_refused_before_training(monkeypatch):
    policy, completions, _ = rolled()
    prompt = completions[0].prompt
    likeliest = policy.model(torch.tensor([prompt])).logits[0, -1:].argmax(-1).tolist()
    checks.compare_passes(policy.model, prompt, likeliest)

    def give_nan(model, ids, mask):
        return mask * math.nan
    monkeypatch.setattr(grpo_sg, "token_logps", give_nan)
    with pytest.raises(ValueError, match="differs from a plain forward pass"):
        checks.compare_passes(policy.model, prompt, likeliest)
    policy.model.lm_head.weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match="not finite: check its parameters"):
        checks.compare_passes(policy.model, prompt, likeliest)


def test_a_single_row_that_does_not_fit_in_memory_ends_the_run_in_one_line(capsys):
    def sampler(*given, **settings):
        raise torch.OutOfMemoryError
    sampler = models.HalvingSampler(sampler)
    with pytest.raises(SystemExit), program.one_line_errors(cli.advise_on_memory()):
        sampler(None, PROMPTS, generator=torch.Generator())
    assert re.search("error: out of GPU memory: lower --tokens.*--resume takes all", capsys.readouterr().err)
    names = re.findall(r"--(\w+)", cli.advise_on_memory())
    assert {"sample_batch", "tokens_per_micro_batch", "gradient_checkpointing"} <= {*cli.RESUMABLE} & {*names}


def main(text, capsys):
    """Return what a command prints, or its one error line if it fails."""
    try:
        grpo_sg.main(text.split())
    except SystemExit as stop:
        assert stop.code == 2
        error, = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        return error
    return capsys.readouterr().out


def test_the_default_command_end_to_end(tmp_path, monkeypatch, capsys):
    kk, out = tasks.TASKS["kk"], tmp_path / "run"

    def make_few(cfg):  # 20,000 puzzles take seconds
        return kk(dataclasses.replace(cfg, train_problems=100))
    monkeypatch.setitem(tasks.TASKS, "kk", make_few)
    monkeypatch.setitem(tiny.PRETRAINED, make_few, tiny.PRETRAINED[kk])
    flags = "--eval_problems 10"
    printed = main(f"--steps 2 --eval_every 1 --prompts 8 {flags} --out {out}", capsys)
    assert "starting from the pretrained tiny model" in printed
    rows, samples = rows_of(out / "metrics.jsonl"), rows_of(out / "samples.jsonl")
    assert [(row["step"], row.get("split")) for row in rows] == [
        (0, "test"), (1, None), (1, "valid"), (2, None), (2, "test")]
    assert not any("@" in key for key in rows[2])  # no samples are drawn for validation
    keys = ("reward accuracy format_rate truncated completion_tokens grad_norm entropy clip_frac kl "
            "weight_mean low_prob_frac seconds")
    assert all(isinstance(rows[1][key], float) for key in keys.split())
    test = make_few(cli.parse(flags.split())).test
    assert [row["question"] for row in samples if row["split"] == "test"] == [p.question for p in test] * 2
    accuracy = f"{rows[-1]['eval/accuracy']:.3f}"
    assert accuracy in printed and str(out) in printed
    before, after = rows[0]["eval/avg@4"], rows[-1]["eval/avg@4"]
    assert f"before -> after training: avg@4 {before:.3f} -> {after:.3f}, reward@4" in printed
    assert accuracy in main(f"--eval_only --model {out}/checkpoint --out {tmp_path}/eval", capsys)
    again, = rows_of(tmp_path / "eval" / "metrics.jsonl")  # with the settings of the run
    assert all(again[key] == rows[-1][key] for key in ("eval/accuracy", "eval/avg@4", "eval/pass@4"))
    written = rows_of(tmp_path / "eval" / "samples.jsonl")[0]
    assert ask.ask(f"{out}/checkpoint", written["question"]) == written["completion"]
    printed = main(f"--eval_only --task math --model {out}/checkpoint {flags} --out {tmp_path}/b", capsys)
    assert "another task" in printed
    monkeypatch.setitem(tasks.TASKS, "kk", give(tasks.math_task(grpo_sg.Config(train_problems=50))))
    assert "the task has changed since it began" in main(f"--resume --out {out}", capsys)


def test_a_real_model_from_a_folder(tmp_path, capsys):
    tokenizer = save_model(tmp_path / "model")
    main(f"--model {tmp_path}/model {SMALL} --people 3 --out {tmp_path}/run --beta 0.01 "
         "--gradient_checkpointing --loss_agg_mode seq-mean-token-mean", capsys)
    row = rows_of(tmp_path / "run" / "metrics.jsonl")[1]
    assert row["step"] == 1 and row["truncated"] >= 0.5 and row["reward"] == -3 and row["equal_groups"] == 1
    for row in rows_of(tmp_path / "run" / "samples.jsonl"):
        assert row["completion"].startswith("<think>")  # a tag that the prompt opens is the response's
    model, saved = models.read_model(tmp_path / "run" / "checkpoint")
    assert saved.chat_template == tokenizer.chat_template and model.dtype == torch.float32


UNUSABLE = {
    # These keep a state instead of a cache, and would continue from other prompts.
    "Mamba": (dict(state_size=8), "has no KV cache"),
    "Rwkv": (dict(attention_hidden_size=32, context_length=2048, bos_token_id=0, eos_token_id=0),
             "has no KV cache"),
    "Bert": (dict(max_position_embeddings=2048, is_decoder=False), "cannot be sampled"),
    "Qwen2": (dict(vocab_size=100), "has more words than the 100 of its model")}


@pytest.mark.parametrize("family", UNUSABLE)
def test_a_model_that_cannot_be_used_is_refused(family, tmp_path, capsys):
    settings, message = UNUSABLE[family]
    save_model(tmp_path / "model", CHAT, build_model(family, **{"vocab_size": 260, **settings}))
    assert message in main(f"--model {tmp_path}/model {SMALL} --out {tmp_path}/run", capsys)
    assert not (tmp_path / "run").exists()


def test_an_encoder_is_refused_however_long_the_prompt_is():
    """The longer the prompt, the less one more token changes the logits before it."""
    model = build_model("Bert")
    for length in (2, 400):
        prompt = torch.randint(2, 50, (length,)).tolist()
        tokens, = grpo_sg.sample(model, [prompt], max_new_tokens=4, stop_ids=[], temperature=0)
        with pytest.raises(ValueError, match="not a causal model"):
            checks.compare_passes(model, prompt, tokens)


def test_an_incomplete_model_and_another_tasks_tokenizer_are_refused(tmp_path, capsys):
    model = build_model(vocab_size=len(WORDS))
    models.save_model(tmp_path / "words", model, word_tokenizer(WORDS))
    command = f"--model {tmp_path}/words {SMALL} --out {tmp_path}/run"
    assert "another task" in main(command, capsys)
    os.remove(tmp_path / "words" / "config.json")
    assert "/words" in main(command, capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("argv, message", [
    ("--task chess", "chess"), ("--model ./nowhere", "./nowhere"), ("--low 2 --high 1", "--high"),
    ("--out ..", "exists"), ("--people 1", "2 to 8"), ("--people 9", "2 to 8"), ("--max_new_tokens 2047", "--max_new_tokens"),
    (f"--model a/b --device {'cuda' if torch.backends.mps.is_available() else 'mps'}", "can use cpu"),
    ("--out /proc/run", "cannot write to /proc/run"), ("--data published", "add --model"),
    ("--device tpu", "--device"), ("--chat_template_kwargs [1]", "must be a JSON object")])
def test_a_mistake_is_reported_in_one_line(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tiny, "warm_up", None)  # no run gets so far
    assert message in main(f"{argv} --train_problems 20 --eval_problems 5", capsys)
    assert os.listdir(tmp_path) == []


def give(value):
    """Return a function that returns or raises the value, whatever its arguments."""
    def given(*anything):
        if isinstance(value, Exception):
            raise value
        return value
    return given


SUM = tasks.Problem("1 + 1?", "2", "2")


FAULTS = [
    ({"verify": None}, "verify must be a function, not None"), ({"warmup": 0.5}, "warmup must be a whole number, 1 or more, not 0.5"),
    ({"train": iter("x")}, "list"), ({"valid": None}, "valid must be a list of tasks.Problem"), ({"train": []}, "train must be a list"),
    ({"test": [tasks.Problem("", 1)]}, "the question must not be empty"),
    ({"train": [tasks.Problem("1?", "1")] * 9}, "9 of 9 training problems have no solution"),
    ({"floor": 5}, "floor must be a number from 0 to 1, not 5"), ({"floor": "5"}, "not '5'"), ({"write": Tool(None, "a")}, "the tool's observe must be a function"),
    ({"write": Tool(give([]), "a", -1)}, "max_turns must be"), ({"write": Tool(give([]), "")}, "stop_text must be"),
    ({"valid": [SUM], "train": [SUM]}, "1 of 1 questions of valid are also in train: give"),
    ({"verify": give(tasks.Verdict(torch.tensor([True, False]), True))}, "must be a tasks.Verdict"),
    ({"verify": give(True)}, "True must be a tasks.Verdict"),
    ({"verify": give(tasks.Verdict(0.5, True))}, "partial credit"),
    ({"verify": give(tasks.Verdict(True, "yes"))}, "partial credit"),
    ({"verify": give(KeyError("x"))}, "verify of --task kk, for '<think> "),
    ({"reward": give("much")}, "reward of --task kk"), ({"reward": give(1e999)}, "not finite"),
    ({"write": Tool(give(KeyError("x")), "a")}, "the tool of --task kk"),
    ({"write": Tool(give([1]), "a")}, "must return a list of as many"),
    ({"write": Tool(give("x"), "a")}, "must return a list of as many")]


@pytest.mark.parametrize("change, message", FAULTS)
def test_a_fault_in_a_users_task_is_reported_in_one_line_before_the_warm_up(change, message, tmp_path, monkeypatch, capsys):
    kk = tasks.TASKS["kk"]
    monkeypatch.setattr(tiny, "warm_up", None)
    monkeypatch.setitem(tasks.TASKS, "kk", lambda cfg: kk(cfg)._replace(**change))
    assert message in main(f"--train_problems 20 --eval_problems 5 --out {tmp_path}/run", capsys)
    assert not (tmp_path / "run").exists()


def test_a_task_may_use_sets_and_numpy_numbers(tmp_path, monkeypatch, capsys):
    """JSON knows neither."""
    kk = tasks.TASKS["kk"]

    def verify(text, gold):
        return tasks.Verdict(torch.ones(1).numpy()[0] > 0, len(text) % 2 == 0)

    def made(cfg):
        task = kk(cfg)
        train = [problem._replace(answer={1, 2}) for problem in task.train]
        return task._replace(warmup=1, train=train, verify=verify)
    monkeypatch.setitem(tasks.TASKS, "kk", made)
    main(f"{SMALL} --out {tmp_path}/run --max_new_tokens 48", capsys)
    rows = [row for row in rows_of(tmp_path / "run" / "samples.jsonl") if row["split"] == "train"]
    assert rows[0]["answer"] == "{1, 2}" and rows[0]["correct"] is True


def test_eval_only_works_in_another_folder_without_the_training_data(tmp_path, monkeypatch, capsys):
    """A run keeps the absolute paths of its files."""
    save_model(tmp_path / "model", CHAT)
    monkeypatch.chdir(tmp_path)
    for name in ("train", "test"):
        rows = [json.dumps({"question": f"{name} {i}?", "answer": str(i)}) for i in range(20)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    main(f"--model model --task math --data train.jsonl --eval_data test.jsonl {SMALL} --out run", capsys)
    os.remove("train.jsonl")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    printed = main("--eval_only --model ../run/checkpoint --out ../again", capsys)
    assert "test: accuracy" in printed


def test_a_start_without_a_learning_signal_is_announced(monkeypatch, capsys):
    monkeypatch.setattr(advice, "describe_end", give([]))
    change = {"verify": give(tasks.Verdict(False, True))}
    policy, task, cfg = build_toy(change=change, eval_samples=2)
    policy.stop_ids = set(range(len(WORDS)))
    for step, eval_only, said in ((0, False, True), (60, False, False), (0, True, False)):
        cfg.eval_only = eval_only
        run = Run(cfg)
        run.report_test(grpo_sg.evaluate_split(policy, task, cfg, run, step, "test"))
        printed = capsys.readouterr().out
        shares = ("2 samples per problem: 100% well formed, 0% truncated; in 100% of the groups "
                  "all rewards are equal")
        assert (shares in printed) == ("no completion is correct" in printed) == said


def test_settings_that_make_all_weights_equal_are_announced(capsys):
    """With tau = 9, sigmoid(pi / 9) is almost constant, and all weights are clipped to 1: GRPO."""
    for flags in ("--tau 9", "--low 1.2 --high 1.2", "--alpha 0", ""):
        cli.parse(flags.split())
        assert ("plain GRPO" in capsys.readouterr().err) == bool(flags)
    with pytest.raises(UserError, match="the weight 0"):
        cli.parse("--alpha 0 --low 0".split())


def test_flags_override_a_scripts_settings_which_override_the_defaults(tmp_path):
    """Without a model, the defaults are those of the tiny model."""
    cfg = cli.parse(["--lr", "0.5"], lr=0.1, steps=7, people=[2, 3])
    assert (cfg.lr, cfg.steps, cfg.people, cfg.prompts) == (0.5, 7, [2, 3], 32)
    assert cli.parse([], model="Qwen/Qwen2.5-0.5B").prompts == 64
    with pytest.raises(UserError, match="--steps must be a whole number, above 0"):
        cli.parse([], steps=0)


def test_labeled_responses_get_their_verdicts():
    """Right answers, slips and cheats; each row says why."""
    rows = rows_of(os.path.join(HERE, "cases.jsonl"))
    for row in rows:
        verdict = VERIFIERS[row["task"]](row["response"], row["gold"])._asdict()
        assert {**verdict, **row} == {**row, **verdict}, row["why"]
    assert len(rows) > 110


VERIFIERS = {"kk": tasks.verify_kk, "math": tasks.verify_math}
