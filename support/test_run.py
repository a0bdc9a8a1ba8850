"""Test runs that are stopped, broken or resumed: signals, truncated files, functions that raise,
broken pipes. No finished step is lost, and a resumed run equals an uninterrupted one."""
import dataclasses
import itertools
import json
import math
import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

import grpo_sg
import tasks
from test_grpo_sg import build_toy, rows_of
from support import checks, cli, models, page, run, tiny
from tasks import UserError
from support.run import Run
from support.tools import Tool

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = 300  # seconds: the longest wait for anything
FLAGS = ("--task math --steps 4 --prompts 3 --group_size 4 --max_new_tokens 6 --lr 1e-3 "
         "--temperature 1 --train_problems 300 --eval_problems 4 --eval_every 2 "
         "--updates 2 --eval_samples 0").split()


def verify(response, gold):
    """Give an untrained model's completions different verdicts."""
    return tasks.Verdict(len(response) % 2 == 0, len(response) % 3 > 0)


@pytest.fixture(autouse=True)
def signals():
    """Give each test the default handlers: under nohup SIGHUP is ignored, and in a script's
    background SIGINT."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL,
                signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handlers[number]) for number in handlers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Save an untrained model of one layer with a tokenizer for sums; return its folder."""
    folder = tmp_path_factory.mktemp("untrained")
    task = tasks.math_task(grpo_sg.Config(task="math", train_problems=300, eval_problems=4))
    torch.manual_seed(0)
    untrained, tokenizer = tiny.tiny_model(task)
    del untrained.model.layers[1:]
    untrained.config.num_hidden_layers = 1
    models.save_model(folder, untrained, tokenizer)
    return folder


@pytest.fixture(scope="module")
def start(model):
    """Return a function that starts a run of 4 steps in a folder, or resumes it, and returns
    its exit status. The run saves after each step, or every `seconds`."""
    def start(out, *more, resume=False, seconds=-1, script=None):
        flags = ["--resume"] if resume else ["--model", model, *FLAGS, "--beta", 0.01]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grpo_sg, "SAVE_SECONDS", seconds)
            patch.setattr(tasks, "verify_math", verify)
            try:
                grpo_sg.main([*map(str, flags), "--out", str(out), *map(str, more)],
                             **script or {})
            except SystemExit as stop:
                return stop.code
        return 0
    return start


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """Return the folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert start(folder) == 0
    return folder


@pytest.fixture(scope="module")
def longer(start, tmp_path_factory):
    """Return the folder of an uninterrupted run of 5 steps."""
    folder = tmp_path_factory.mktemp("runs") / "longer"
    assert start(folder, "--steps", 5) == 0
    return folder


def outcome(folder):
    """Return everything that a run writes, except for times."""
    rows = []
    for name in run.LOGS:
        for row in rows_of(folder / name):
            rows.append({key: row[key] for key in row if "second" not in key})
    return rows, (folder / "checkpoint" / "model.safetensors").read_bytes()


def contents(folder):
    """Return a dict path -> bytes of all files."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def saved_step(folder, name="checkpoint"):
    return run.read_json(folder / name / "state.json")["step"]


def at_call(patch, owner, name, number, event):
    """Raise the event (an error or a signal), or call it, before the number-th call of
    owner.name."""
    calls, works = itertools.count(1), getattr(owner, name)

    def patched(*args, **kwargs):
        if next(calls) == number:
            if isinstance(event, BaseException):
                raise event
            if callable(event):
                event()
            else:
                signal.raise_signal(event)
        return works(*args, **kwargs)
    patch.setattr(owner, name, patched)


def one_error(capsys):
    """Return the error line: there must be exactly one, and no traceback."""
    lines = capsys.readouterr().err.splitlines()
    assert not any(line.startswith("Traceback") for line in lines)
    error, = [line for line in lines if line.startswith("error: ")]
    return error


# ---- A stopped run resumes ----

STOPS = {
    "Ctrl-C while learning": (grpo_sg, "learn", 2, signal.SIGINT, LIMIT, 130),
    "SIGHUP while sampling": (grpo_sg, "rollout", 7, signal.SIGHUP, LIMIT, 129),
    "a full disk": (torch, "save", 3, OSError(28, "No space left on device"), -1, 2),
    # A save renames the old checkpoint to .before, then the new one from .tmp.
    "a kill between the renames": (os, "rename", 3, KeyboardInterrupt(), -1, 130),
    "a kill before the renames": (os, "rename", 4, KeyboardInterrupt(), -1, 130)}


@pytest.mark.parametrize("stop", STOPS)
def test_a_stopped_run_resumes_and_ends_like_an_uninterrupted_one(
        start, whole, tmp_path, monkeypatch, capsys, stop):
    *place, seconds, status = STOPS[stop]
    with monkeypatch.context() as patch:
        at_call(patch, *place)
        assert start(tmp_path / "run", seconds=seconds) == status
        said = capsys.readouterr().err
        assert f"--resume --out {tmp_path}/run" in said or "kill" in stop
    assert start(tmp_path / "run", resume=True) == 0
    assert outcome(tmp_path / "run") == outcome(whole)
    assert sum(row.get("grad_norm", 0) for row in rows_of(whole / "metrics.jsonl")) > 0


def test_a_second_signal_stops_at_once_and_drops_the_unfinished_step(
        start, whole, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        at_call(patch, grpo_sg, "learn", 3, signal.SIGTERM)
        at_call(patch, grpo_sg, "grpo_sg_loss", 6, signal.SIGTERM)
        assert start(tmp_path / "run") == 143
    assert saved_step(tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert "finishing this step, then saving; a second signal stops at once" in said
    assert "SIGTERM; to continue: python " in said
    assert start(tmp_path / "run", resume=True) == 0
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.parametrize("number, step, words", [
    (1, None, "stopped by SIGHUP; there is no checkpoint yet"),
    (3, 4, "stopped by SIGHUP; to continue: python ")])
def test_a_signal_during_a_test_stops_at_once(number, step, words, start, tmp_path,
                                              monkeypatch, capsys):
    """A run stopped in its first test leaves no folder; one stopped in its last test resumes
    with that test."""
    with monkeypatch.context() as patch:
        at_call(patch, grpo_sg, "evaluate", number, signal.SIGHUP)
        assert start(tmp_path / "run") == 129
    assert words in capsys.readouterr().err
    assert (tmp_path / "run").exists() == (step is not None)
    if step:
        assert saved_step(tmp_path / "run") == step
        at_call(monkeypatch, grpo_sg, "evaluate", 1, signal.SIGHUP)
        assert start(tmp_path / "run", resume=True) == 129


def test_a_signal_that_is_ignored_stays_ignored(tmp_path, monkeypatch):
    """As SIGHUP under nohup: closing the terminal must not stop the run."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Run(grpo_sg.Config(out=str(tmp_path / "run"))):
        signal.raise_signal(signal.SIGHUP)
    monkeypatch.delattr(signal, "SIGHUP")  # Windows has none
    with Run(grpo_sg.Config(out=str(tmp_path / "run"))):
        pass


def test_half_a_step_is_never_saved(start, tmp_path, monkeypatch):
    """Raise in the second of three updates of the second step. The first step's checkpoint
    stays; half-updated parameters are never saved."""
    for seconds in (-1, LIMIT):
        out = tmp_path / f"{seconds}"
        with monkeypatch.context() as patch:
            at_call(patch, grpo_sg, "update", 5, ArithmeticError("half"))
            with pytest.raises(ArithmeticError):
                start(out, "--updates", 3, "--eval_every", 9, seconds=seconds)
        assert len(rows_of(out / "metrics.jsonl")) == 2  # the test and a step
        assert (out / "checkpoint").exists() == (seconds == -1)
    assert saved_step(tmp_path / "-1") == 1


# ---- --resume ----

@pytest.mark.parametrize("file, content", [
    ("model.safetensors", None), ("optimizer.pt", None), ("state.json", None),
    ("tokenizer.json", None), ("state.json", b"[1]"), ("state.json", b'{"step": null}'),
    ("state.json", b'{"step": 4, "sizes": {"metrics.jsonl": "all"}}'),
    ("optimizer.pt", {"step": 4}), ("optimizer.pt", "bomb")])
def test_a_broken_checkpoint_is_one_error_line_and_the_previous_one_works(
        start, whole, tmp_path, capsys, file, content):
    """Truncate (None) or replace files. Reading them changes nothing and runs no code."""
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)
    folder = tmp_path / "broken"
    shutil.copytree(whole, folder)
    path = folder / "checkpoint" / file
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        torch.save(Bomb() if content == "bomb" else content, path)
    else:
        path.write_bytes(path.read_bytes()[:-9])
    with open(folder / "metrics.jsonl", "a") as log:
        log.write('{"step": 99, "rew')  # a row that was being written
    before = contents(folder)
    assert start(folder, resume=True) == 2
    error = one_error(capsys)
    assert f"error: {folder}/checkpoint cannot be read" in error
    assert f"if you delete it, --resume continues from {folder}/checkpoint.before" in error
    assert not (tmp_path / "exploded").exists()
    if content != {"step": 4}:  # the optimizer rejects this one after the logs are cut
        assert contents(folder) == before
    else:
        shutil.rmtree(folder / "checkpoint")
        assert start(folder, resume=True) == 0
        assert "resuming after step 3" in capsys.readouterr().out
        assert outcome(folder) == outcome(whole)


def test_resume_without_a_checkpoint_is_refused_and_erases_nothing(start, whole, tmp_path,
                                                                   capsys):
    shutil.copytree(whole, tmp_path / "run")
    for folder in ("checkpoint", "checkpoint.before"):
        shutil.rmtree(tmp_path / "run" / folder)
    before = contents(tmp_path / "run")
    assert start(tmp_path / "run", resume=True) == 2
    assert "has no checkpoint to continue from: start a new run" in one_error(capsys)
    assert contents(tmp_path / "run") == before


def test_a_run_resumes_without_its_logs_and_keeps_other_files(start, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_call(patch, grpo_sg, "learn", 2, signal.SIGINT)
        assert start(folder) == 130
    for name in run.LOGS:
        os.remove(folder / name)
    (folder / "notes.jsonl").write_text("mine")
    with monkeypatch.context() as patch:  # stopped again before anything is logged
        at_call(patch, Run, "restore", 1, signal.SIGTERM)
        assert start(folder, resume=True) == 143
    assert saved_step(folder) == 2
    assert start(folder, resume=True) == 0 and saved_step(folder) == 4
    steps = [row["step"] for row in rows_of(folder / "metrics.jsonl") if "reward" in row]
    assert steps[-1] == 4 and (folder / "notes.jsonl").read_text() == "mine"


def test_a_log_that_begins_after_the_checkpoint_is_emptied(tmp_path):
    log = tmp_path / "tokens.jsonl"
    log.write_text('{"step": 2}\n')
    with Run(grpo_sg.Config(out=str(tmp_path)), state={"step": 1, "sizes": {}}):
        assert log.read_text() == ""


def test_a_log_that_lost_its_end_keeps_whole_rows(start, whole, tmp_path, capsys):
    """As on a disk that lost its last block."""
    shutil.copytree(whole, tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    rows = log.read_text().splitlines(keepends=True)[:-1]  # the test comes after the checkpoint
    log.write_text("".join(rows)[:-9])
    assert start(tmp_path / "run", "--steps", 5, resume=True) == 0
    assert f"warning: {log} has lost its last rows: 9 bytes are missing" in capsys.readouterr().err
    assert log.read_text().startswith("".join(rows[:-1])) and rows_of(log)[-1]["step"] == 5
    log.write_text(f"[1\n{log.read_text()}")  # by another program
    config = run.read_json(tmp_path / "run" / "config.json")
    del config["lr"]
    run.write_json(tmp_path / "run" / "config.json", config)
    assert start(tmp_path / "run", resume=True) == 0
    printed = capsys.readouterr()
    assert "all 5 steps are done: only the last test is repeated" in printed.out
    assert f"{log} cannot be read" in printed.out and "Traceback" not in printed.err


def test_what_is_said_about_continuing(tmp_path, capsys):
    out = tmp_path / "run"
    (out / "checkpoint.before").mkdir(parents=True)
    stopped = Run(grpo_sg.Config(out=str(out)))
    stopped.out, stopped.rows = str(out), [{"step": 3}]
    with pytest.raises(SystemExit):
        stopped.receive(signal.SIGINT, None)
    assert "3 finished steps since the last checkpoint are lost; to continue: python" in capsys.readouterr().err
    for hint in (", or add --resume to continue the run in it", "$"):
        with pytest.raises(UserError, match=f"{out} exists: name another folder{hint}"):
            checks.check_out(str(out), False)
        shutil.rmtree(out / "checkpoint.before", ignore_errors=True)
        (out / "metrics.jsonl").write_text("")


def test_a_file_or_a_folder_that_cannot_be_read_is_no_run(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"lr": ')
    with pytest.raises(UserError, match="config.json cannot be read .JSONDecodeError"):
        run.read_settings(tmp_path, cli.FIELDS)
    at_call(monkeypatch, os, "listdir", 1, PermissionError(13, "Permission denied"))
    with pytest.raises(UserError, match="cannot be read .Permission denied"):
        checks.check_out(str(tmp_path), False)
    for flags in (f"--resume --out {__file__}", f"--model {__file__}/checkpoint"):
        with pytest.raises(UserError, match="is not a run|there is no such folder"):
            cli.load(cli.parse(flags.split()))


def test_a_resumed_run_may_add_steps_but_not_change_the_method(start, whole, longer, tmp_path,
                                                               capsys):
    shutil.copytree(whole, tmp_path / "run")
    changes = ("--beta", 0.5, 0.01), ("--shaping", "none", "sg"), ("--prompts", 5, 3)
    for flag, value, had in changes:
        assert start(tmp_path / "run", flag, value, resume=True) == 2
        assert f"the run's own {flag} {had}: leave the flag out" in one_error(capsys)
    before = contents(tmp_path / "run")
    assert start(tmp_path / "run", "--steps", 3, resume=True) == 2
    assert "has already done 4" in one_error(capsys) and contents(tmp_path / "run") == before
    assert start(tmp_path / "run", "--steps", 5, "--lr", 1e-3, resume=True) == 0
    assert outcome(tmp_path / "run") == outcome(longer)
    assert run.read_json(tmp_path / "run" / "config.json")["earlier_lr"] == []


def test_a_resumed_run_may_change_the_learning_rate(start, whole, longer, tmp_path):
    """config.json lists which steps used which rate."""
    shutil.copytree(whole, tmp_path / "lower")
    assert start(tmp_path / "lower", "--steps", 5, "--lr", 1e-4, resume=True) == 0
    assert outcome(tmp_path / "lower") != outcome(longer)
    saved = run.read_json(tmp_path / "lower" / "config.json")
    assert saved["lr"] == 1e-4 and saved["earlier_lr"] == [{"lr": 1e-3, "last_step": 4}]


def test_a_run_resumes_after_the_folder_of_its_first_model_has_moved(start, model, whole,
                                                                     tmp_path):
    shutil.copytree(model, tmp_path / "model")
    assert start(tmp_path / "run", "--model", tmp_path / "model", "--steps", 2) == 0
    shutil.move(tmp_path / "model", tmp_path / "moved")
    assert start(tmp_path / "run", "--steps", 4, resume=True) == 0
    assert outcome(tmp_path / "run") == outcome(whole)


# ---- Something raises ----

def test_a_run_that_cannot_continue_says_why_in_one_line(start, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        at_call(patch, grpo_sg, "learn", 2, lambda: shutil.rmtree(tmp_path / "removed"))
        assert start(tmp_path / "removed") == 2
    assert "cannot write to" in one_error(capsys)
    monkeypatch.setattr(run, "MAX_BAD_STEPS", 2)
    loss = grpo_sg.grpo_sg_loss

    def spoilt(logps, old_logps, advantages, mask, **more):
        return loss(logps, old_logps, advantages * math.nan, mask, **more)
    monkeypatch.setattr(grpo_sg, "grpo_sg_loss", spoilt)
    assert start(tmp_path / "bad") == 2
    assert "no update of the last 2 steps was finite" in one_error(capsys)
    rows = [row for row in rows_of(tmp_path / "bad" / "metrics.jsonl") if "reward" in row]
    assert [(row["skipped"], row["loss"]) for row in rows] == [(2, None)] * 2
    samples = rows_of(tmp_path / "bad" / "samples.jsonl")
    logged = [row["step"] for row in samples if row["split"] == "train"]
    assert logged == [1] * 12 + [2] * 12  # all completions of the skipped updates
    assert saved_step(tmp_path / "bad") == 2
    # A signal in the last of these steps is still what stopped the run.
    at_call(monkeypatch, grpo_sg, "learn", 2, signal.SIGTERM)
    assert start(tmp_path / "signal") == 143
    assert "stopped by SIGTERM" in one_error(capsys)


@pytest.mark.parametrize("row, bad", [
    ({"skipped": 2, "grad_norm": 0.0}, 3), ({"skipped": 1, "grad_norm": 0.5}, 0),
    ({"skipped": 0, "grad_norm": 0.0}, 0)])  # the last one: only equal groups, no update
def test_only_steps_without_a_finite_update_are_bad(row, bad):
    broken = Run(grpo_sg.Config())
    broken.rows = [{"skipped": 0, "grad_norm": 1.0}, *[row] * 3]
    assert broken.count_bad_steps() == bad


def after_validation(out, works):
    """Wrap `works` so that it raises once the run in this folder has validated."""
    def raises(*given):
        log = out / "metrics.jsonl"
        if log.exists() and any(row.get("split") == "valid" for row in rows_of(log)):
            raise KeyError("late")
        return works(*given)
    return raises


def answer(texts):
    return ["0" for _ in texts]


def test_an_error_in_a_users_function_loses_no_finished_step(start, tmp_path, monkeypatch,
                                                             capsys):
    """The last finished step is saved, and a resumed run logs nothing twice. The function is a
    tool; functions that raise at the start are in test_grpo_sg.py."""
    made = tasks.math_task
    flags = "--eval_every", 2, "--steps", 3

    def start_with(observe, *given, **named):
        def make(cfg):
            return made(cfg)._replace(verify=verify, write=Tool(observe, "1"))
        monkeypatch.setitem(tasks.TASKS, "math", make)
        return start(*given, seconds=LIMIT, **named)
    assert start_with(after_validation(tmp_path / "run", answer), tmp_path / "run", *flags) == 2
    said = capsys.readouterr().err
    assert "in raises\n" in said and "KeyError: 'late'" in said
    assert saved_step(tmp_path / "run") == 2
    assert start_with(answer, tmp_path / "run", resume=True) == 0
    assert start_with(answer, tmp_path / "undisturbed", *flags) == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "undisturbed")


def test_a_run_succeeds_if_its_page_cannot_be_written(start, whole, tmp_path, monkeypatch,
                                                       capsys):
    """Another process may be writing it at the same time."""
    def fail(*folders):
        raise FileNotFoundError("report.new")
    monkeypatch.setattr(page, "write", fail)
    shutil.copytree(whole, tmp_path / "run")
    assert start(tmp_path / "run", resume=True) == 0
    assert outcome(tmp_path / "run") == outcome(whole)
    said = capsys.readouterr().err
    assert "no report.html was written: FileNotFoundError: report.new" in said


# ---- Checkpoints, logs, folder ----

class Noted(Run):
    """Record the steps after which the run saves."""
    def save(self):
        self.noted = [*getattr(self, "noted", []), self.rows[-1]["step"]]
        super().save()


@pytest.mark.parametrize("seconds, late, steps", [
    (600, 0, [3]), (600, 601, [1, 3]), (-1, 0, [1, 2, 3])])
def test_checkpoints_are_written_every_ten_minutes_and_rows_have_times(
        seconds, late, steps, tmp_path, monkeypatch):
    assert grpo_sg.SAVE_SECONDS == 600
    monkeypatch.setattr(grpo_sg, "SAVE_SECONDS", seconds)
    policy, task, cfg = build_toy(steps=3, out=str(tmp_path / "run"))
    with Noted(cfg, policy) as toy:
        toy.last_save -= late
        grpo_sg.train(policy, task, cfg, toy)
    assert toy.noted == steps and saved_step(tmp_path / "run") == 3
    row = toy.rows[0]
    assert row["seconds_sampling"] > 0 and row["seconds_update"] > 0
    assert row["seconds"] == pytest.approx(row["seconds_sampling"] + row["seconds_update"])
    assert row["tokens_per_second"] == pytest.approx(
        48 * row["completion_tokens"] / row["seconds_sampling"])


def test_the_time_of_a_step_excludes_the_evaluation_before_it(monkeypatch):
    """The first step, too, is evaluated before the second."""
    works = grpo_sg.evaluate
    evaluations = []

    def slow(*given, **named):
        evaluations.append(given)
        time.sleep(1)
        return works(*given, **named)
    monkeypatch.setattr(grpo_sg, "evaluate", slow)
    policy, task, cfg = build_toy(steps=2, eval_every=1)
    rows = grpo_sg.train(policy, task, cfg, Run(cfg))
    assert len(evaluations) == 1 and rows[1]["seconds"] < 1


def test_an_error_after_a_save_does_not_save_the_step_again(tmp_path, monkeypatch):
    """Saving twice would make checkpoint.before the same step, not an earlier one."""
    monkeypatch.setattr(grpo_sg, "SAVE_SECONDS", -1)
    policy, task, cfg = build_toy(steps=2, out=str(tmp_path / "run"))
    with pytest.raises(ArithmeticError), Run(cfg, policy) as toy:
        grpo_sg.train(policy, task, cfg, toy)
        raise ArithmeticError
    assert saved_step(tmp_path / "run") == 2
    assert saved_step(tmp_path / "run", "checkpoint.before") == 1


def test_the_watched_problems_are_logged_with_rewards_and_advantages(whole):
    rows = rows_of(whole / "tokens.jsonl")
    assert rows
    for row in rows:
        rewards = torch.tensor([[c["reward"] for c in row["completions"]]])
        advantages = [c["advantage"] for c in row["completions"]]
        expected = grpo_sg.group_advantages(rewards)[0].tolist()
        assert advantages == pytest.approx(expected, abs=1e-3)
    assert any(c["advantage"] for row in rows for c in row["completions"])


def test_a_folder_is_locked_and_is_deleted_if_nothing_was_logged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy, task, cfg = build_toy()  # without --out: a folder under runs/
    with Run(cfg, policy) as first:
        second = Run(dataclasses.replace(cfg, out=first.out), policy)
        with pytest.raises(UserError, match=f"another process is working in {first.out}: wait"):
            second.__enter__()
        assert first.out.startswith("runs/kk-sg-seed0-") and os.listdir("runs")
    assert os.listdir("runs") == []
    os.mkdir("empty")  # an empty folder is accepted, also after a failed start
    for _ in range(2):
        with pytest.raises(UserError, match="a mistake"), Run(dataclasses.replace(cfg, out="empty")):
            raise UserError("a mistake")


def test_files_of_others_are_kept(tmp_path):
    """Another run may fill the folder after the flags were checked, and a start may fail."""
    cfg, mine = grpo_sg.Config(out=str(tmp_path)), {tmp_path / "mine.txt": b"mine"}
    with pytest.raises(UserError, match="a mistake"), Run(cfg):
        (tmp_path / "mine.txt").write_text("mine")
        raise UserError("a mistake")
    assert contents(tmp_path) == mine
    with pytest.raises(UserError, match="is not empty: name another folder"):
        Run(cfg).__enter__()
    assert contents(tmp_path) == mine


# ---- The settings of a run ----

def write_run(folder, **settings):
    folder.mkdir(parents=True)
    cfg = {**dataclasses.asdict(grpo_sg.Config()), **settings}
    (folder / "config.json").write_text(json.dumps(cfg))
    return str(folder)


def test_settings_come_from_the_run_that_is_resumed_or_started_from(tmp_path, monkeypatch,
                                                                    capsys):
    """test_cli.py tests flags and keywords."""
    monkeypatch.chdir(tmp_path)
    folder = write_run(tmp_path / "runs" / "first", lr=0.5, gone=1)
    with pytest.raises(UserError, match="no --out was given; the newest under runs/: runs/first"):
        cli.find_saved({"resume": True})
    with pytest.raises(UserError, match="runs/firts is not a run .did you mean runs/first"):
        cli.find_saved({"resume": True, "out": "runs/firts"})
    saved = cli.find_saved({"model": f"{folder}/checkpoint"})
    assert saved["lr"] == 0.5 and "gone" not in saved
    assert f"come from {folder}/config.json" in capsys.readouterr().out
    assert cli.find_saved({"model": f"{folder}/checkpoint", "task": "math"}) == {}


@pytest.mark.parametrize("content", ["{}", "[]", '{"seed": 5}', '{"model_type": "qwen2"}'])
def test_another_programs_config_is_ignored(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert run.read_settings(tmp_path, cli.FIELDS) == {}


# ---- Broken pipes: release checks, which start processes ----

# Load the program once. For each input line, start a run in a new session and print the process
# id, and later the exit status. A line has the file that the run writes to, the seconds between
# checkpoints, and the flags.
LAUNCH = """
import os, signal, sys
sys.path.append("support")
import grpo_sg, tasks, test_run
tasks.verify_math = test_run.verify
for line in sys.stdin:
    number = os.fork()
    if number == 0:
        break
    print(number, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
else:
    sys.exit()
os.setsid()
output, seconds, *flags = line.split()
grpo_sg.SAVE_SECONDS = int(seconds)
# A terminal that can be read becomes the session's own.
stream = os.open(output, os.O_RDWR if output.startswith("/dev") else os.O_WRONLY)
os.dup2(stream, 1)
os.dup2(stream, 2)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
grpo_sg.main(flags)
"""


ENDLESS = "--steps", 10 ** 6, "--eval_every", 10 ** 6


class Started:
    """Start a run in a separate process, with output to a pipe, a terminal or a file. It has a
    million steps by default. model: None resumes the run in the folder."""
    def __init__(self, launcher, model, folder, output, more=ENDLESS, seconds=LIMIT):
        self.launcher, self.folder, self.number = launcher, folder, None
        flags = ["--model", model, *FLAGS, *more] if model else ["--resume"]
        words = [output, seconds, *flags, "--out", folder]
        launcher.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.number = int(self.read())

    def read(self):
        """Read a line from the launcher."""
        if not select.select([self.launcher.stdout], [], [], LIMIT)[0]:
            self.give_up("the run does not end")
        return self.launcher.stdout.readline()

    def give_up(self, why):
        if self.number:
            os.kill(self.number, signal.SIGKILL)
        pytest.fail(why)

    def steps(self):
        log = self.folder / "metrics.jsonl"
        return log.read_bytes().count(b'"reward"') if log.exists() else 0

    def wait_for(self, count):
        """Wait until this many steps are done."""
        started = time.time()
        while self.steps() < count:
            if time.time() - started > LIMIT:
                self.give_up(f"{self.steps()} of {count} steps")
            time.sleep(0.02)

    def signal(self, number):
        os.kill(self.number, number)

    def end(self):
        """Wait for the end. Returns (exit status, whether the last logged step was saved)."""
        status = int(self.read())
        rows = rows_of(self.folder / "metrics.jsonl")
        steps = [row["step"] for row in rows if "reward" in row]
        return status, saved_step(self.folder) == steps[-1]


@pytest.fixture(scope="module")
def launcher():
    """Start the process that starts runs. It has more threads than the tests."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LAUNCH], cwd=HERE, bufsize=0, stdin=pipe,
                          stdout=pipe, stderr=pipe,
                          env={**os.environ, "OMP_NUM_THREADS": "4"}) as process:
        yield process
        process.stdin.close()
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture
def pipe(tmp_path):
    """Return (path, reading end, writing end). The writing end keeps the pipe open until the
    run has opened its own."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    return path, reader, os.open(path, os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.release
def test_ctrl_c_in_a_pipe_to_tee_ends_both_and_saves(launcher, model, pipe, tmp_path):
    path, reader, writer = pipe
    tee = subprocess.Popen(["tee", tmp_path / "copy"], stdin=reader, stdout=subprocess.DEVNULL)
    os.close(reader)
    started = Started(launcher, model, tmp_path / "run", path)
    started.wait_for(3)
    os.close(writer)
    tee.send_signal(signal.SIGINT)
    started.signal(signal.SIGINT)
    assert started.end() == (130, True)
    assert tee.wait(LIMIT) == -signal.SIGINT
    assert "training:" in (tmp_path / "copy").read_text()


@pytest.mark.release
@pytest.mark.parametrize("blocked", [True, False])
def test_ctrl_c_stops_a_run_whose_pipe_is_full(launcher, model, pipe, tmp_path, blocked):
    """Send the signal while the run waits for a reader, or before."""
    path, reader, writer = pipe
    started = Started(launcher, model, tmp_path / "run", path)
    started.wait_for(2)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"." * 100)
    done = -1
    while blocked and done < started.steps():
        done = started.steps()
        time.sleep(0.3)
    started.signal(signal.SIGINT)
    assert started.end() == (130, True)
    os.close(writer)
    os.close(reader)


def read_all(window):
    said = b""
    while select.select([window], [], [], 0)[0]:
        said += os.read(window, 10 ** 6)
    return said.decode()


@pytest.mark.release
@pytest.mark.parametrize("closed", [True, False])
def test_closing_a_terminal_or_ctrl_c_in_it_stops_and_saves_a_run(launcher, model, tmp_path, closed):
    """Closing it sends SIGHUP, and no message can be written."""
    window, terminal = pty.openpty()
    started = Started(launcher, model, tmp_path / "run", os.ttyname(terminal))
    started.wait_for(2)
    assert "training:" in read_all(window)
    if closed:
        os.close(terminal)
        os.close(window)
        assert started.end() == (129, True)
        return
    os.write(window, b"\x03")
    assert started.end() == (130, True)
    said = read_all(window)
    assert "finishing this step, then saving" in said
    assert "error: stopped by SIGINT; to continue: python " in said


@pytest.mark.release
def test_equal_seeds_give_equal_runs_on_any_number_of_cores(launcher, model, whole, tmp_path):
    """Compare bit for bit. More threads would split sums of large tensors differently, and other
    processes order sets of strings differently."""
    said = tmp_path / "said"
    said.touch()
    started = Started(launcher, model, tmp_path / "run", said, more=("--beta", 0.01))
    assert started.end() == (0, True), said.read_text()
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.release
def test_a_run_killed_at_random_moments_ends_like_an_uninterrupted_one(
        launcher, model, start, tmp_path):
    """Save each step; kill the run at four random moments, and resume it each time."""
    rng, out, said = random.Random(0), tmp_path / "killed", tmp_path / "said"
    said.touch()
    more = "--eval_every", 4, "--beta", 0.01, "--steps"
    saved = 0
    for i in range(4):
        started = Started(launcher, None if i else model, out, said, [*more, 10 ** 6], seconds=0)
        started.wait_for(saved + 2)
        time.sleep(rng.uniform(0, 0.3))
        started.signal(signal.SIGKILL)
        assert int(started.read()) == -signal.SIGKILL, said.read_text()
        saved = saved_step(out, os.path.basename(run.find_checkpoint(out)))
    assert start(out, "--steps", saved + 2, resume=True) == 0
    assert start(tmp_path / "whole", *more, saved + 2) == 0
    assert outcome(out) == outcome(tmp_path / "whole")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_two_steps_on_a_gpu(start, tmp_path):
    assert start(tmp_path / "run", "--steps", 2, "--updates", 2) == 0
    rows = [row for row in rows_of(tmp_path / "run" / "metrics.jsonl") if "reward" in row]
    assert [row["skipped"] for row in rows] == [0, 0] and rows[0]["kl"] < 0.05
