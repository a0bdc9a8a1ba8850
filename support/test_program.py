"""Tests of program.py: what a user types, and what is printed when something is wrong."""
import dataclasses
import io
import os
import signal
import subprocess
import sys
from typing import Literal

import pytest

from support import program
from support.program import TaskError, UserError, setting


@dataclasses.dataclass
class Settings:
    task: str = setting("all", "kk", "100 %")
    shaping: Literal["sg", "none"] = setting("all", "sg", "weights")
    steps: int = setting("all", 5, "how many")
    lr: float = setting("all", 1e-3, "how fast")
    beta: float = setting("more", 0.0, "how near", least=0)
    people: list[int] = setting("more", [3], "sizes")
    warm_up: bool = setting("more", False, "first")
    seed: int = setting("more", 0, "of all", least=0)


def test_flags_of_each_type_in_both_spellings():
    text = "--steps 7 --lr 1e-4 --people 3 4 --warm-up --shaping none --task=a-b"
    assert program.read_flags(Settings, text.split(), "") == {
        "steps": 7, "lr": 1e-4, "people": [3, 4], "warm_up": True, "shaping": "none",
        "task": "a-b"}
    assert program.read_flags(Settings, ["--warm_up", "false"], "") == {"warm_up": False}
    assert program.with_underscores("--group-size=a-b") == "--group_size=a-b"
    values = {"people": [3, 4], "warm_up": True, "lr": 0.5, "task": ""}
    assert program.read_flags(Settings, program.as_flags(values), "") == values


def test_help_has_each_setting_with_its_default(capsys):
    with pytest.raises(SystemExit, match="0"):
        program.read_flags(Settings, ["--help"], "about")
    printed = capsys.readouterr().out
    assert "100 % (kk)" in printed and "--people N [N ...]" in printed and "about" in printed


@pytest.mark.parametrize("argv, message", [
    ("--step 3", "there is no setting --step .did you mean steps"), ("--sh sg", "mean shaping"),
    ("--steps", "--steps: expected one argument"), ("5", "there is no setting 5"),
    ("--steps many", "--steps: a whole number above 0, up to 1e[+]09, not many"),
    ("--steps 0", "above 0"), ("--steps 1.5", "a whole number"), ("--steps 9999999999", "up"),
    ("--lr nan", "--lr: a number above 0"), ("--lr inf", "a number"), ("--lr 0", "above 0"),
    ("--beta -1", "--beta: a number of 0 or more"), ("--people 3 x", "not x"),
    ("--shaping magic", "--shaping: invalid choice: 'magic'"),
    ("--warm_up yes", "true, false or nothing, not yes")])
def test_a_flag_that_cannot_be_is_one_line(argv, message):
    with pytest.raises(UserError, match=message):
        program.read_flags(Settings, argv.split(), "")


def test_the_ends_of_a_range_are_in_it():
    given = program.read_flags(Settings, "--beta 0 --seed 1000000000".split(), "")
    assert given == {"beta": 0.0, "seed": 10 ** 9}


def test_settings_that_differ_are_told():
    values = vars(Settings(lr=0.5, people=[3, 4], task=""))
    assert program.tell_changes(vars(Settings()), values) == "task none, lr 0.5, people 3 4"
    assert program.tell_changes(values, values) == "none"


# ---- Errors ----

def fail():
    raise KeyError("x")


@pytest.mark.parametrize("error, line, status", [
    (UserError("a mistake\nand more"), "error: a mistake", 2),
    (UserError("gone", 130), "error: gone", 130),
    (OSError(28, "No space left"), "error: cannot read or write a file: OSError: ", 2),
    (KeyboardInterrupt(), "error: interrupted", 130)])
def test_what_is_no_fault_of_the_programs_own_is_one_line(error, line, status, monkeypatch):
    """On a terminal that knows ASCII alone, too."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, "ascii", write_through=True))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    with pytest.raises(SystemExit) as stop, program.one_line_errors("less"):
        program.say("\u2192")
        raise error
    assert stop.value.code == status
    said = raw.getvalue().decode()
    assert said.splitlines()[0] == "\\u2192" and said.splitlines()[1].startswith(line)
    assert "Traceback" not in said


@pytest.mark.parametrize("handler, status, said", [
    (signal.default_int_handler, 130, "interrupted\n"), (signal.SIG_IGN, 0, "goes on\n")])
def test_ctrl_c_while_libraries_are_imported_is_one_line(handler, status, said, tmp_path):
    """In a library's own code, which goes on after any exception. Unless the user has set
    that it is ignored."""
    (tmp_path / "torch.py").write_text(
        "import signal\ntry: signal.raise_signal(signal.SIGINT)\n"
        "except BaseException: pass\n"
        "import os; os.write(2, b'goes on\\n'); os._exit(0)\n")
    before = signal.signal(signal.SIGINT, handler)  # the process begins with it
    done = subprocess.run([sys.executable, "grpo_sg.py"], capture_output=True, text=True,
                          cwd=program.HOUSE, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stderr) == (status, said)


def test_a_fault_of_the_programs_own_is_shown_whole():
    with pytest.raises(KeyError), program.one_line_errors("less"):
        fail()


def test_an_error_in_a_users_function_begins_with_its_frame(capsys):
    assert program.call_users(max, 1, 2, words="no") == 2
    with pytest.raises(UserError, match="^mine$"):  # which says all that there is to say
        program.call_users(raise_mine, words="no")
    with pytest.raises(SystemExit), program.one_line_errors("less"):
        program.call_users(fail, words="verify, for 'text'")
    *shown, line = capsys.readouterr().err.splitlines()
    assert line == "error: verify, for 'text': KeyError: 'x'"
    assert shown[0].startswith("Traceback") and shown[-1] == "KeyError: 'x'"
    assert [each for each in shown if "File" in each] == [shown[1]] and "in fail" in shown[1]
    with pytest.raises(SystemExit), program.one_line_errors("less"):
        program.call_users(float, "much", words="reward")  # has no frames of its own
    assert "could not convert string to float: 'much'" in capsys.readouterr().err
    assert issubclass(TaskError, UserError)


def raise_mine():
    raise UserError("mine")


class Gone(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_a_stream_that_is_gone_ends_nothing():
    """One without a number, too, as in a notebook."""
    stream = program.Patient(Gone())
    assert stream.write("text") == 4
    stream.flush()
    assert stream.getvalue() == ""


def test_the_command_to_go_on_can_be_pasted(monkeypatch):
    for name in ("grpo_sg.py", "-c"):  # the second one in a notebook
        monkeypatch.setattr(sys, "argv", [name])
        command = program.resume_command("runs/my run")
        assert command == "python grpo_sg.py --resume --out 'runs/my run'"
