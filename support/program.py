"""What any command line needs: flags made from a dataclass, and one line for a user's
mistake. Nothing here knows of reinforcement learning."""
import argparse
import contextlib
import dataclasses
import difflib
import functools
import importlib
import math
import os
import select
import shlex
import signal
import sys
import traceback
import typing

from tqdm import tqdm

HOUSE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# ---- Errors, and what is printed ----

class UserError(ValueError):
    """A mistake of the user's, or a fault of the machine's. Its text is one line that
    says what was given, what is allowed and what to do; `main` prints it in place of a
    traceback, and exits with `status`."""

    def __init__(self, message, status=2):
        super().__init__(message.split("\n")[0])
        self.status = status


class TaskError(UserError):
    """An error in a function of the user's own, such as a verifier: `main` prints its
    traceback, from the user's frame on, before the line. To be raised `from` it."""


def call_users(function, *given, words):
    """What a function of the user's own returns. Raises TaskError, with these words, if
    it raises."""
    try:
        return function(*given)
    except UserError:
        raise
    except Exception as error:
        raise TaskError(f"{words}: {first_line(error)}") from error


class Patient:
    """A stream that nobody may read any more: the terminal was closed, Ctrl-C ended
    `tee`, too. Then what is written goes nowhere, and the program goes on; after a
    signal, also if a pipe is full. (A signal in the midst of a write makes a second one a
    RuntimeError.)"""
    hurried = False  # a signal arrived: no write waits for a reader any more

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        self.attempt(self.stream.write, text)
        return len(text)

    def flush(self):
        self.attempt(self.stream.flush)

    def attempt(self, function, *given):
        try:
            if Patient.hurried and would_wait(self.stream):
                raise BlockingIOError
            function(*given)
        except OSError:
            with contextlib.suppress(OSError, ValueError):  # some streams have no number
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
        except RuntimeError:
            pass


def would_wait(stream):
    """Whether a write would wait for a reader; False where that cannot be known, as in a
    notebook."""
    try:
        return not select.select([], [stream], [], 0)[1]
    except (OSError, ValueError):
        return False


def say_in_handler(text):
    """As `say`, for a handler of signals: no write waits for a reader any more. Nor does
    one in the midst of which the signal has arrived: Python makes it again, and then it
    goes where the flush has turned the stream to."""
    Patient.hurried = True
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Patient):
            stream.flush()
    say(text)


def end_on_ctrl_c():
    """From now on until there is a run, Ctrl-C ends the process, in one line. No exception
    is raised, as it would go through libraries that are being imported, and some abort."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # and not ignored
        signal.signal(signal.SIGINT, end_at_once)


def end_at_once(number, frame):
    say_in_handler("interrupted")
    os._exit(exit_status("SIGINT"))


@contextlib.contextmanager
def one_line_errors(out_of_memory):
    """End the program with one line if what happens is no mistake of the program's own.
    out_of_memory: what the line says of a GPU whose memory is full."""
    import torch  # takes seconds: not before end_on_ctrl_c can be called
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know ASCII alone
        if not isinstance(stream, Patient):
            setattr(sys, name, Patient(stream))
    try:
        yield
    except TaskError as error:
        traceback.print_exception(error.__cause__.with_traceback(own_frames(error)), chain=False)
        message, status = str(error), error.status
    except UserError as error:
        message, status = str(error), error.status
    except OSError as error:
        message, status = f"cannot read or write a file: {first_line(error)}", 2
    except torch.OutOfMemoryError:
        message, status = f"out of GPU memory: {out_of_memory}", 2
    except KeyboardInterrupt as error:
        message, status = str(error) or "interrupted", exit_status("SIGINT")
    else:
        return
    say(f"error: {message}")
    raise SystemExit(status)


def own_frames(error):
    """The traceback of what the user's function raised, without the frame that called
    it."""
    return error.__cause__.__traceback__.tb_next or error.__cause__.__traceback__


def say(text):
    """Print to standard error, on a line of its own even while a progress bar is
    shown."""
    tqdm.write(text, file=sys.stderr)


def first_line(error):
    return f"{type(error).__name__}: {error}".split("\n")[0]


def suggest(word, words):
    """" (did you mean X?)" for a word that begins like the given one, or is similar; ""
    if none is."""
    found = [each for each in words if each.startswith(word)]
    found = found or difflib.get_close_matches(word, list(words), 1)
    return f" (did you mean {found[0]}?)" if found else ""


def exit_status(name):
    return 128 + signal.Signals[name]


def resume_command(out):
    """What a user types to go on with the run in the folder."""
    script = sys.argv[0] if os.path.isfile(sys.argv[0]) else "grpo_sg.py"
    return shlex.join(["python", script, "--resume", "--out", str(out)])


# ---- Settings: a dataclass, each field of which is a flag ----

def setting(group, default, help, *, least=None, most=1e9, resumable=False):
    """A field of a dataclass of settings. group: the title under which --help prints
    it. Numbers are positive, or from `least` on, up to `most`. resumable: it may change
    on --resume, as the run stays what it is."""
    value = {"default": default}
    if isinstance(default, list):
        value = {"default_factory": default.copy}
    metadata = {"group": group, "help": help, "least": least, "most": most,
                "resumable": resumable}
    return dataclasses.field(**value, metadata=metadata)


def has_room(name):
    """Whether the folder of this name is there: the house stands without it."""
    return os.path.isfile(os.path.join(HOUSE, name, "settings.py"))


def settings_of(*rooms):
    """The Settings of each room that is there: ROOM/settings.py."""
    there = filter(has_room, rooms)
    return [importlib.import_module(f"{room}.settings").Settings for room in there]


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{message}; --help lists all settings")


def read_flags(settings, argv, about):
    """What a command line gives, as a dict: `--group_size 4`, or `--group-size 4`, is
    {"group_size": 4}. settings: a dataclass made by `setting`. argv: a list of strings,
    None for those of the process. Raises UserError for a flag that does not exist, or a
    value that is not allowed."""
    if argv is None:
        argv = [] if hasattr(sys, "ps1") else sys.argv[1:]  # in a notebook they are not ours
    parser = Parser(description=about, usage="%(prog)s [--setting value ...]",
                    argument_default=argparse.SUPPRESS, allow_abbrev=False)
    defaults = settings()
    groups = {}
    for name, field in settings.__dataclass_fields__.items():
        title = field.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        help = f"{field.metadata['help']} ({shown(getattr(defaults, name))})"
        groups[title].add_argument(f"--{name}", help=help.replace("%", "%%"), **flag_of(field))
    given, unknown = parser.parse_known_args([with_underscores(each) for each in argv])
    if unknown:
        name = unknown[0].split("=")[0].removeprefix("--")
        hint = suggest(name, settings.__dataclass_fields__)
        parser.error(f"there is no setting {unknown[0]}{hint}")
    return vars(given)


def as_flags(values):
    """A dict of settings as a command line."""
    argv = []
    for name, value in values.items():
        argv.append(f"--{name}")
        argv += map(str, value if isinstance(value, list) else [value])
    return argv


def with_underscores(argument):
    """--group-size=4 as --group_size=4; other arguments as they are."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def shown(value):
    """A setting as one would type it."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "none" if value == "" else f"{value:.4g}" if isinstance(value, float) else str(value)


def flag_of(field):
    """What argparse has to know of a setting."""
    if field.type is bool:
        return {"type": read_bool, "nargs": "?", "const": True, "metavar": "true/false"}
    if typing.get_origin(field.type) is typing.Literal:
        return {"choices": typing.get_args(field.type)}
    if field.type is str:
        return {"metavar": "TEXT"}
    whole = field.type in (int, list[int])
    limits = field.metadata["least"], field.metadata["most"]
    flag = {"type": functools.partial(read_number, whole, *limits), "metavar": "N" if whole else "X"}
    return {**flag, "nargs": "+"} if field.type == list[int] else flag


def read_bool(text):
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"true, false or nothing, not {text}")
    return text.lower() == "true"


def read_number(whole, least, most, text):
    """The number, if it is from `least` on (None: above 0) and at most `most`."""
    try:
        value = int(text) if whole else float(text)
        low_enough = math.isfinite(value) and value <= most
        right = low_enough and (value > 0 if least is None else value >= least)
    except ValueError:
        right = False
    if not right:
        kind = "a whole number" if whole else "a number"
        words = "above 0" if least is None else f"of {least:g} or more"
        raise argparse.ArgumentTypeError(f"{kind} {words}, up to {most:g}, not {text}")
    return value


def tell_changes(usual, values):
    """The settings in the dict `values` that differ from the usual ones, in words."""
    changed = [f"{name} {shown(value)}" for name, value in values.items()
               if value != usual[name]]
    return ", ".join(changed) or "none"
