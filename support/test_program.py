"""Test error messages, streams and signals."""
import io
import sys
import types

import pytest

from support import checks, program
from tasks import UserError

def fail():
    raise KeyError("x")


@pytest.mark.parametrize("error, line, status", [
    (UserError("a mistake\nand more"), "error: a mistake", 2),
    (UserError("gone", 130), "error: gone", 130),
    (KeyboardInterrupt(), "error: interrupted", 130)])
def test_a_users_mistake_is_reported_in_one_line(error, line, status, monkeypatch):
    """Also test a terminal that only supports ASCII."""
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


@pytest.mark.parametrize("error", [KeyError("x"), OSError(28, "No space left")])
def test_a_bug_of_the_program_keeps_its_traceback(error):
    with pytest.raises(type(error)), program.one_line_errors("less"):
        raise error


def test_an_error_in_a_users_function_starts_with_its_frame(capsys):
    assert checks.call("no", max, 1, 2) == 2
    with pytest.raises(UserError, match="^mine$"):  # passed on unchanged
        checks.call("no", raise_mine)
    with pytest.raises(SystemExit) as stop, program.one_line_errors("less"):
        checks.call("verify, for 'text'", fail)
    *shown, line = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and line == "error: verify, for 'text': KeyError: 'x'"
    assert shown[0].startswith("Traceback") and shown[-1] == "KeyError: 'x'"
    assert [each for each in shown if "File" in each] == [shown[1]] and "in fail" in shown[1]
    with pytest.raises(SystemExit), program.one_line_errors("less"):
        checks.call("reward", float, "much")  # float has no Python frames
    assert "could not convert string to float: 'much'" in capsys.readouterr().err
    with pytest.raises(SystemExit), program.one_line_errors("less"):
        checks.call("verify", sys.exit)  # otherwise the run would end silently
    assert "error: verify: SystemExit" in capsys.readouterr().err


def raise_mine():
    raise UserError("mine")


class Gone(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_writing_to_a_closed_stream_is_ignored():
    """Also close a stream without a file descriptor, as in a notebook."""
    stream = program.Patient(Gone())
    assert stream.write("text") == 4
    stream.flush()
    assert stream.getvalue() == ""


def test_the_command_to_continue_can_be_pasted(monkeypatch):
    for name in ("grpo_sg.py", "-c"):  # "-c": in a notebook
        monkeypatch.setattr(sys, "argv", [name])
        command = program.resume_command("runs/my run")
        assert command == "python grpo_sg.py --resume --out 'runs/my run'"
    module = types.SimpleNamespace(__spec__=types.SimpleNamespace(name="lesson.my_task", origin=__file__))
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setattr(sys, "argv", [__file__])  # python -m
    assert program.resume_command("a") == "python -m lesson.my_task --resume --out a"
