"""Tests of program.py: what a user types, and what can happen to files, folders and processes."""
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from typing import Literal

import pytest

from support import program
from support.program import UserError


def setting(default, **metadata):
    usual = {"group": "all", "help": "100 %", "least": None, "most": float("inf"), "useless": (),
             "resumable": False}
    value = {"default_factory": default.copy} if isinstance(default, list) else {"default": default}
    return dataclasses.field(**value, metadata={**usual, **metadata})


@dataclasses.dataclass
class Settings:
    model: str = setting("")
    task: str = setting("kk")
    shaping: Literal["sg", "none"] = setting("sg")
    steps: int = setting(5, resumable=True)
    lr: float = setting(1e-3)
    beta: float = setting(0.0, least=0, useless=("none",))
    people: list[int] = setting([3])
    brief: bool = setting(False)
    seed: int = setting(0, least=0, most=10 ** 9)
    out: str = setting("", resumable=True)
    resume: bool = setting(False, resumable=True)


def test_flags_of_each_type_in_both_spellings():
    text = "--steps 7 --lr 1e-4 --people 3 4 --brief --shaping none --task=a-b"
    assert program.read_flags(Settings, text.split(), "") == {
        "steps": 7, "lr": 1e-4, "people": [3, 4], "brief": True, "shaping": "none", "task": "a-b"}
    assert program.read_flags(Settings, ["--brief", "false"], "") == {"brief": False}
    assert program.with_underscores("--group-size=a-b") == "--group_size=a-b"
    with pytest.raises(SystemExit, match="0"):
        program.read_flags(Settings, ["--help"], "about")


@pytest.mark.parametrize("argv, message", [
    ("--step 3", "there is no setting --step .did you mean steps"), ("--sh sg", "mean shaping"),
    ("--steps", "--steps: expected one argument"), ("--steps many", "--steps: invalid int value: 'many'"),
    ("--shaping magic", "--shaping: invalid choice: 'magic'"), ("--brief yes", "true or false, not yes"),
    ("5", "there is no setting 5")])
def test_a_flag_that_cannot_be_is_one_line(argv, message):
    with pytest.raises(UserError, match=message):
        program.read_flags(Settings, argv.split(), "")


@pytest.mark.parametrize("values, message", [
    ({"steps": "10"}, "--steps must be a whole number, not '10'"), ({"steps": True}, "whole number, not True"),
    ({"lr": "1e-4"}, "--lr must be a number"), ({"lr": 0}, "positive"), ({"lr": float("nan")}, "finite"),
    ({"beta": -1}, "0 or more"), ({"people": 3}, "a list of whole numbers, not 3"), ({"brief": "yes"}, "True or False"),
    ({"shaping": "grpo"}, "one of sg, none, not 'grpo'"), ({"out": os}, "a text"), ({"stepz": 1}, "mean steps"),
    ({"seed": 99999999999999}, "at most 1e[+]09")])
def test_settings_of_a_script_are_checked_as_flags_are(values, message):
    with pytest.raises(UserError, match=message):
        program.check_values(Settings, values)


def write_run(folder, **settings):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**dataclasses.asdict(Settings()), **settings}))
    return str(folder)


def test_settings_of_a_run_that_is_resumed_or_begun_from(tmp_path, capsys):
    run = write_run(tmp_path / "run", lr=0.5)
    assert program.find_saved(Settings, {"resume": True, "out": run, "steps": 9})["lr"] == 0.5
    with pytest.raises(UserError, match="the run's own --lr 0.5: leave it out"):
        program.find_saved(Settings, {"resume": True, "out": run, "lr": 0.1})
    with pytest.raises(UserError, match="--resume needs --out and the folder of a run, but there is none"):
        program.find_saved(Settings, {"resume": True})
    assert program.find_saved(Settings, {"model": f"{run}/checkpoint"})["lr"] == 0.5
    assert program.find_saved(Settings, {"model": f"{run}/checkpoint", "task": "math"}) == {}
    assert program.find_saved(Settings, {"model": "Qwen/Qwen2.5-0.5B"}) == {}


@pytest.mark.parametrize("content", ["{}", "[]", '{"seed": 5}', '{"model_type": "qwen2"}'])
def test_another_programs_config_is_not_a_runs(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert program.read_settings(Settings, tmp_path) == {}


@pytest.mark.parametrize("settings, message", [({"lr": "3e-4"}, "--lr must be a number"), (None, "cannot be read")])
def test_a_torn_or_changed_config_is_one_line(tmp_path, settings, message):
    run = write_run(tmp_path / "run", **(settings or {}))
    if settings is None:
        (tmp_path / "run" / "config.json").write_text('{"lr": ')
    with pytest.raises(UserError, match=message):
        program.read_settings(Settings, run)


def test_a_passing_error_moves_no_folder(tmp_path):
    """Of two whole folders none can be read at the moment: both stay, and both can be read later."""
    for name in ("checkpoint", "checkpoint.before"):
        (tmp_path / name).mkdir()
    path = str(tmp_path / "checkpoint")

    def fail(folder):
        raise MemoryError
    with pytest.raises(UserError, match="checkpoint cannot be read .MemoryError"):
        program.read_newest(path, fail)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "checkpoint.before"]
    assert program.read_newest(path, os.path.basename) == (path, "checkpoint")


def test_a_torn_folder_is_set_aside_when_the_one_before_was_read(tmp_path, capsys):
    """Else the next one to be written would take the place of the good one."""
    for name in ("checkpoint", "checkpoint.before"):
        (tmp_path / name).mkdir()
    path = str(tmp_path / "checkpoint")

    def read(folder):
        if folder == path:
            raise ValueError("torn")
        return "good"
    assert program.read_newest(path, read) == (f"{path}.before", "good")
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.before", "checkpoint.unreadable"]
    assert "torn" in capsys.readouterr().err
    with program.whole_folder(path):
        pass
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "checkpoint.before", "checkpoint.unreadable"]
    assert program.read_newest(str(tmp_path / "none"), read) is None


HOLD = """
import sys, time
from support import program
with program.hold_folder(sys.argv[1]), program.hold_signals("saving") as received:
    print("held", flush=True)
    while not received:
        time.sleep(0.01)
    print(received[0], flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_folder_has_one_process_and_a_closed_terminal_is_a_signal_to_save(tmp_path):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], cwd=root, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another process works on .*run: wait for it"):
            with program.hold_folder(str(tmp_path / "run")):
                pass
        first.send_signal(signal.SIGHUP)
        assert first.stdout.readline() == "SIGHUP\n"
    started = time.time()
    with program.hold_folder(str(tmp_path / "run")):  # free again
        assert time.time() - started < 1


def test_a_new_folder_goes_if_nothing_was_logged(tmp_path):
    for logged in (False, True):
        with pytest.raises(UserError), program.hold_folder(str(tmp_path / "runs" / "a")) as folder:
            if logged:
                open(os.path.join(folder, "metrics.jsonl"), "w").close()
            raise UserError("a mistake")
        assert os.path.exists(folder) == logged
    assert os.listdir(tmp_path) == ["runs"]


def test_the_command_to_go_on_can_be_pasted(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["grpo_sg.py"])
    assert program.resume_command("runs/my run") == "python grpo_sg.py --resume --out 'runs/my run'"
