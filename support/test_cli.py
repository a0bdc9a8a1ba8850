"""Test the command line: flags, ranges, and messages before and after training."""
import math
import os
import pathlib
import sys

import pytest

import grpo_sg
import tasks
from support import advice, checks, cli, run
from tasks import UserError


# ---- Flags ----

def test_flags_of_each_type_have_two_spellings():
    text = "--steps 7 --lr 1e-4 --people 3 4 --warm-up --shaping none --task=a-b --group-size=4"
    assert cli.read_flags(text.split()) == {
        "steps": 7, "lr": 1e-4, "people": [3, 4], "warm_up": True, "shaping": "none",
        "task": "a-b", "group_size": 4}
    assert cli.read_flags(["--no-gradient-checkpointing"]) == {"gradient_checkpointing": False}


def test_help_starts_with_model_task_and_data_and_shows_defaults(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.read_flags(["--help"])
    printed = capsys.readouterr().out
    found = [line.split()[0] for line in printed.splitlines() if line.startswith("  --")]
    assert found[:3] == ["--model", "--task", "--data"] and len(found) == len(cli.FIELDS)
    assert "--people N [N ...]" in printed and "(default: 3 4 5 6 7)" in printed


def test_every_setting_has_exactly_one_group():
    grouped = " ".join(cli.GROUPS.values()).split()
    assert sorted(grouped) == sorted(vars(cli.Settings()))
    assert {*cli.RESUMABLE, *cli.LEAST, *cli.TINY, *checks.NEEDS} <= {*grouped}
    assert {*cli.ALIASES.values()} <= {*grouped} and not {*cli.ALIASES} & {*grouped}


@pytest.mark.parametrize("argv, message", [
    ("--step 3", "there is no setting --step .did you mean --steps"), ("--sh sg", "mean --shaping"),
    ("--max_iters 9", "mean --steps"), ("--eval_interval 9", "mean --eval_every"), ("--block_size 9", "mean --max_new_tokens"),
    ("--warmup_steps 9", "--warmup_steps;"), ("--tag x", "--tag;"), ("--deepspeed x", "--deepspeed;"),
    ("--gradient_checkpointing True", "takes no value, not True"), ("--out s3://bucket/x", "not a folder of this machine"), ("--out a\0b", "not a folder"),
    ("--like .", "--like . is not a run: name a folder with config.json"), ("--resume --eval_only --out x", "use --model x/checkpoint instead"),
    ("--learning-rate 1e-5", "did you mean --lr"), ("--num_generations=4", "mean --group_size"),
    ("--n_samples_per_prompt 8", "mean --group_size"), ("--kl-loss-coef 0.1", "mean --beta"),
    ("--steps", "--steps: expected one argument"), ("5", "5 does not belong to a setting"),
    ("--resume runs/first", "runs/first does not belong to a setting: .* --resume --out"),
    ("--lr -1e-6", "--NAME=VALUE"), ("--lr=-1e-6", "--lr must be a number, above 0, .*not -1e-06"),
    ("--steps 1.5", "--steps: invalid int value: '1.5'"), ("--steps 0", "above 0, up to 1e9, not 0"),
    ("--lr nan", "--lr must be a number, above 0, up to 1e9, not nan"), ("--lr inf", "not inf"),
    ("--beta=-1", "--beta must be a number, 0 or more"), ("--people 3 x", "invalid int value: 'x'"),
    ("--group_size 1", "a whole number, 2 or more, up to 1e9, not 1"),
    ("--shaping magic", "--shaping: invalid choice: 'magic'")])
def test_a_wrong_flag_is_refused_in_one_line(argv, message):
    with pytest.raises(UserError, match=message):
        cli.parse(argv.split())


@pytest.mark.parametrize("given, message", [
    (dict(group_size=1), "2 or more"), (dict(lr="1e-4"), "--lr must be a number.* not '1e-4'"),
    (dict(model=None), "--model must be a string, not None"), (dict(steps=None), "not None"),
    (dict(people=3), "a list of whole numbers"), (dict(shaping="magic"), "one of sg, none, ar"),
    (dict(learning_rate=1), "mean --lr"), (dict(eval_only=1), "True or False")])
def test_a_scripts_settings_are_checked(given, message):
    with pytest.raises(UserError, match=message):
        cli.parse([], **given)


def test_a_scripts_paths_become_absolute(tmp_path, monkeypatch):
    """Absolute paths let a run be resumed from any folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    for name in ("my", "test"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "1?", "answer": "1"}')
    for model in ("model", "~/model"):
        cfg = cli.parse([], model=model, task="math", data="my.jsonl", eval_data="test.jsonl")
        assert (cfg.model, cfg.data) == (f"{tmp_path}/model", f"{tmp_path}/my.jsonl")


@pytest.mark.parametrize("flags, hint", [
    ("--task math --data math500", "it is a test set, --eval_data math500"),
    ("--data my.jsonl", "it belongs to --task math"), ("--data gsm8k", "it belongs to --task math")])
def test_data_for_another_flag_or_task_is_refused_with_a_hint(flags, hint):
    with pytest.raises(UserError, match=hint):
        checks.make_task(cli.parse([*flags.split(), "--model", "any"]))


@pytest.mark.parametrize("argv", ["--steps 1", max, {"steps": 1}])
def test_main_takes_a_list_of_flags(argv):
    with pytest.raises(UserError, match="main takes a list of flags"):
        cli.parse(argv)
    assert cli.parse(["--steps", 1, "--out", pathlib.Path("none")]).steps == 1


@pytest.mark.parametrize("argv, flags", [
    (["/x/ipykernel_launcher.py", "-f", "k.json"], []), (["grpo_sg.py", "--steps", "1"], ["--steps", "1"])])
def test_flags_of_a_notebooks_kernel_are_ignored_and_those_of_its_run_command_are_not(argv, flags, monkeypatch):
    monkeypatch.setattr(sys, "ps1", "In", raising=False)  # IPython sets it for %run, too
    monkeypatch.setattr(sys, "argv", argv)
    assert cli.own_argv() == flags


@pytest.mark.parametrize("argv, script, expected", [
    ("--resume --out run --steps 9", {}, (9, 0.5, "run", True)),
    ("", dict(resume=True, out="run", steps=9), (9, 0.5, "run", True)),
    ("--resume --steps 9", dict(out="run", lr=0.1), (9, 0.5, "run", True)),
    ("--eval_only --model run/checkpoint", {}, (7, 0.5, "", False)),
    ("", dict(eval_only=True, model="run/checkpoint"), (7, 0.5, "", False)),
    ("--like run --steps 9", dict(lr=0.1), (9, 0.5, "", False)), ("", dict(like="run", steps=9), (9, 0.5, "", False)),
    ("--model run/checkpoint", dict(out="new", steps=9), (7, 0.5, "new", False))])
def test_keywords_name_a_run_as_flags_do(argv, script, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("run/checkpoint")
    run.write_json("run/config.json", vars(cli.Settings(**{**cli.TINY, "lr": 0.5, "steps": 7, "out": "run"})))
    cfg = cli.parse(argv.split(), **script)
    assert (cfg.steps, cfg.lr, cfg.out, cfg.resume) == expected
    with pytest.raises(UserError, match="the run's own --shaping sg"):
        cli.parse([], resume=True, out="run", shaping="none")


def test_a_broken_plugin_is_named_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "extras" / "mine").mkdir(parents=True)
    (tmp_path / "extras" / "mine" / "plugin.py").write_text("")
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    with pytest.raises(UserError, match="extras/mine/plugin.py is broken .*: repair it, or delete its folder"):
        cli.parse(["--help"])


@pytest.mark.parametrize("settings, unused", [
    (dict(), []), (dict(model="x", warm_up=True), ["--warm_up True (--model)"]),
    (dict(shaping="none", alpha=3.0), ["--alpha 3 (--shaping none)"]),
    (dict(max_turns=5), ["--max_turns 5 (--task kk does not read it)"]),
    (dict(task="math", people=[5]), ["--people 5 (--task math does not read it)"]),
    (dict(eval_only=True, train_problems=9), []),
    (dict(task="one", seed=3, train_problems=9), ["--train_problems 9 (--task one does not read it)"]),
    (dict(chat_template_kwargs='{"thinking": false, "think": 1}'),
     ["thinking of --chat_template_kwargs (the model's template has no thinking)"])])
def test_settings_without_effect_are_listed(settings, unused, monkeypatch):
    task = tasks.Task("one", "", [tasks.Problem("1?", "1")], [tasks.Problem("2?", "2")],
                      [tasks.Problem("3?", "3")], tasks.verify_math, 0.0)
    monkeypatch.setitem(tasks.TASKS, "one", task)
    cfg = cli.Settings(**{**({} if "model" in settings else cli.TINY), **settings})
    watched, read = cli.record_reads(cfg)
    monkeypatch.setattr(tasks, "arithmetic_split", lambda split, *rest: [tasks.Problem(split, "1")])
    monkeypatch.setattr(tasks, "kk_split", lambda split, count, *rest, **more: [tasks.Problem(split, {"A": "knight"})])
    checks.make_task(watched)
    assert cli.find_unused(cfg, read, "{{ think }}") == unused
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "launcher" in cli.find_unused(cfg, read, "{{ think }}")[-1]


def test_settings_that_differ_from_the_defaults_are_listed():
    cfg = cli.Settings(**{**cli.TINY, "lr": 0.5, "people": [3, 4]})
    assert cli.tell_changes(cfg) == "people 3 4, lr 0.5"
    assert cli.tell_changes(cli.Settings(model="x")) == "model x"
    assert cli.tell_changes(cli.Settings(**cli.TINY)) == "none"


# ---- Before and after training ----

@pytest.mark.parametrize("formed, cut, right, equal, words", [
    (0.97, 0.02, 0.66, 0.41, None),
    (0.40, 0.60, 0.20, 0.50, "raise --max_new_tokens"),
    (0.00, 1.00, 0.00, 1.00, "raise --max_new_tokens"),  # advice on the cause, not on its consequences
    (0.04, 0.30, 0.00, 0.95, "an Instruct model"),
    (0.80, 0.10, 0.00, 0.60, "no completion is correct"),
    (1.00, 0.00, 0.98, 0.95, "harder problems"),
    (1.00, 0.00, 0.02, 0.95, "easier problems (kk: --people 2 3), or raise --group_size")])
def test_the_rates_before_training_come_with_one_piece_of_advice(formed, cut, right, equal, words):
    row = {"eval/format_rate@4": formed, "eval/truncated@4": cut, "eval/avg@4": right, "eval/equal_groups@4": equal}
    shares, *rest = advice.describe_start(row, 4)
    assert f"4 samples per problem: {100 * formed:.0f}% well formed, {100 * cut:.0f}% truncated" in shares
    assert f"in {100 * equal:.0f}% of the groups all rewards are equal" in shares
    assert words in rest[0] if words else not rest


def test_without_samples_the_rates_are_of_greedy_completions():
    """With a single sample per problem, rewards have nothing to be compared with."""
    greedy = {"eval/format_rate": 0.01, "eval/truncated": 0.2, "eval/accuracy": 0.0}
    shares, words = advice.describe_start(greedy, 0)
    assert "greedy completions: 1% well formed, 20% truncated" in shares and "Instruct" in words
    one = {"eval/format_rate@1": 1, "eval/truncated@1": 0, "eval/avg@1": 0.5, "eval/equal_groups@1": 1}
    assert advice.describe_start({**greedy, **one}, 1) == ["1 sample per problem: 100% well formed, 0% truncated"]


UPDATE = {"norm": 2.0, "loss": 0.5, "count": 10.0, "clipped": 1.0, "kls": 2.0, "entropies": 30.0,
          "weights": 12.0, "unlikely": 5.0}


def test_a_row_has_means_over_its_updates():
    """Means are over everything trained on. Non-finite updates are counted, and JSON has no NaN."""
    other = {**UPDATE, "norm": 3.0, "loss": 0.25, "count": 30.0, "kls": 6.0}
    assert grpo_sg.average_updates([UPDATE, other]) == {
        "grad_norm": 3.0, "skipped": 0, "loss": 0.375, "clip_frac": 2 / 40, "kl": 8 / 40,
        "entropy": 60 / 40, "weight_mean": 24 / 40, "low_prob_frac": 10 / 40}
    for key in ("norm", "loss"):
        bad = grpo_sg.average_updates([UPDATE, {**UPDATE, key: math.nan}])
        assert bad["skipped"] == 1 and bad["grad_norm"] == 2.0
    assert grpo_sg.average_updates([{**UPDATE, "loss": math.inf}])["loss"] is None
    empty = grpo_sg.average_updates([])
    assert empty.pop("grad_norm") == empty.pop("skipped") == 0
    assert set(empty.values()) == {None}


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("accuracy, reward, words", [
    (0.6, 2.0, None), (0.45, 0.5, None),  # lower by 1.8 standard errors of the difference
    (0.35, 2.0, "the reward has risen and accuracy has fallen: the model is exploiting"),
    (0.35, 0.5, "accuracy has fallen: a lower --lr")])
def test_a_fall_in_accuracy_is_a_warning(accuracy, reward, words, k):
    names = ("avg@4", "reward@4") if k else ("accuracy", "reward")

    def row(accuracy, reward, error):
        return {f"eval/{names[0]}": accuracy, f"eval/{names[0]}_se": error,
                f"eval/{names[1]}": reward}
    first, *rest = advice.compare_tests(row(0.5, 1.0, 0.0225), row(accuracy, reward, 0.0165), k)
    assert first == (f"before -> after training: {names[0]} 0.500 -> {accuracy:.3f}, "
                     f"{names[1]} 1.000 -> {reward:.3f}")
    assert not rest if words is None else rest[0].startswith(f"warning: {words}")
    alone = advice.compare_tests(row(0.5, 1.0, None), row(0.5, 1.0, None), k)
    assert len(alone) == 1  # one problem has no standard error


@pytest.mark.parametrize("trained, tested, warns", [(0.9, 0.72, True), (0.9, 0.85, False)])
def test_training_accuracy_far_above_test_accuracy_is_a_warning(trained, tested, warns):
    after = {"eval/avg@4": tested, "eval/avg@4_se": 0.02}
    lines = advice.compare_splits([{"accuracy": trained}] * 10, after, 4)
    assert bool(lines) == warns
    assert not warns or "training accuracy 0.900 is far above the test's 0.720" in lines[0]
