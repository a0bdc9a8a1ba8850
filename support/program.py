"""What any program that runs long needs: flags made from a dataclass, one line for a
user's mistake, files and folders that are whole or not there, signals that wait for a
good moment. Nothing here knows of reinforcement learning."""
import argparse
import contextlib
import difflib
import glob
import json
import math
import os
import secrets
import shlex
import shutil
import signal
import sys
import threading
import time
import typing

import filelock
import torch
from tqdm import tqdm


class UserError(ValueError):
    """A mistake of the user's, or a fault of the machine's. Its text is one line that
    says what was given, what is allowed and what to do; `main` prints it in place of a
    traceback, and exits with `status`."""

    def __init__(self, message, status=2):
        super().__init__(message.split("\n")[0])
        self.status = status


@contextlib.contextmanager
def one_line_errors(out_of_memory):
    """End the program with one line if what happens is no mistake of the program's own.
    out_of_memory: what the line says of a GPU whose memory is full."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know ASCII alone
    try:
        yield
    except UserError as error:
        message, status = str(error), error.status
    except OSError as error:
        message, status = f"cannot read or write a file: {first_line(error)}", 2
    except torch.OutOfMemoryError:
        message, status = f"out of GPU memory: {out_of_memory}", 2
    except KeyboardInterrupt:
        message = ("interrupted outside of training: if there is a checkpoint, --resume "
                   "goes on from it")
        status = 130
    else:
        return
    say(f"error: {message}")
    raise SystemExit(status)


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


# ---- Settings: a dataclass, each field of which is a flag ----

def read_flags(settings, argv, about):
    """What a command line gives, as a dict: `--group_size 4`, or `--group-size 4`, is
    {"group_size": 4}.

    settings: a dataclass. The metadata of each field has its "help" and the "group"
    under which --help prints it. argv: a list of strings, None for those of the
    process. Raises UserError for a flag that does not exist and for a value that the
    field's type cannot have.
    """
    if argv is None and hasattr(sys, "ps1"):
        argv = []  # a notebook or a shell of Python: the process's arguments are not ours
    parser = argparse.ArgumentParser(description=about,
                                     usage="%(prog)s [--setting value ...]", add_help=False,
                                     allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-h", "--help", action="help", help="print this and exit")
    groups = {}
    types = typing.get_type_hints(settings)
    defaults = settings()
    for name, field in settings.__dataclass_fields__.items():
        title = field.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        usual = shown(getattr(defaults, name))
        words = f"{field.metadata['help']} ({usual})".replace("%", "%%")
        groups[title].add_argument(f"--{name}", default=None, help=words,
                                   **flag_of(types[name]))
    arguments = [with_underscores(each) for each in (sys.argv[1:] if argv is None else argv)]
    try:
        given, unknown = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(f"{error.argument_name}: {error.message}") from None
    if unknown:
        name = unknown[0].split("=")[0].removeprefix("--")
        raise UserError(f"there is no setting {unknown[0]}{suggest(name, types)}; --help lists "
                        f"them all")
    return {name: value for name, value in vars(given).items() if value is not None}


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


def flag_of(kind):
    """What argparse has to know of a field's type."""
    if kind is bool:
        return {"type": read_bool, "nargs": "?", "const": True, "metavar": "true/false"}
    if typing.get_origin(kind) is typing.Literal:
        return {"choices": typing.get_args(kind)}
    if kind == list[int]:
        return {"type": int, "nargs": "+", "metavar": "N"}
    return {"type": kind, "metavar": {int: "N", float: "X"}.get(kind, "TEXT")}


def read_bool(text):
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"true or false, not {text}")
    return text.lower() == "true"


def check_values(settings, values):
    """Raise UserError unless all names in the dict `values` are fields of the dataclass
    `settings`, with values of the field's type, and numbers that are finite and within
    the metadata's "least" (None: positive) and "most"."""
    types = typing.get_type_hints(settings)
    for name, value in values.items():
        if name not in types:
            raise UserError(f"there is no setting {name}{suggest(name, types)}")
        kind = types[name]
        limits = settings.__dataclass_fields__[name].metadata
        if typing.get_origin(kind) is typing.Literal:
            right = value in typing.get_args(kind)
            words = f"one of {', '.join(typing.get_args(kind))}"
        elif kind == list[int]:
            right = isinstance(value, list) and value and all(type(each) is int
                                                              for each in value)
            words = "a list of whole numbers"
        else:
            right = type(value) is kind or kind is float and type(value) is int
            words = {int: "a whole number", float: "a number", str: "a text",
                     bool: "True or False"}[kind]
        if not right:
            raise UserError(f"--{name} must be {words}, not {value!r}")
        if type(value) not in (int, float):
            continue
        least = limits["least"]
        if not math.isfinite(value) or (value <= 0 if least is None else value < least):
            words = "positive" if least is None else f"{least:g} or more"
            raise UserError(f"--{name} must be {words}, and finite, not {value}")
        if value > limits["most"]:
            raise UserError(f"--{name} must be at most {limits['most']:g}, not {value}")


def check_useful(settings, given, chosen):
    """Raise UserError if something given has no effect: the metadata of its field has,
    as "useless", values of other settings with which it has none; chosen: the values of
    such settings, a dict."""
    for name in given:
        for other, value in chosen.items():
            if value in settings.__dataclass_fields__[name].metadata["useless"]:
                raise UserError(f"--{name} has no effect with --{other} {value}: leave it out")


def read_settings(settings, run):
    """The settings in the config.json of a run's folder, as a dict; {} if there is none
    that a run wrote. Raises UserError if it has values that are not allowed."""
    try:
        saved = read_json(os.path.join(run, "config.json"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{run}/config.json cannot be read ({first_line(error)}): delete "
                        "it, or name another run") from None
    if not isinstance(saved, dict) or not {"task", "shaping", "seed"} <= saved.keys():
        return {}  # another program's
    known = {name: value for name, value in saved.items()
             if name in settings.__dataclass_fields__}
    check_values(settings, known)
    return known


def find_saved(settings, given):
    """The settings of the run that those given name, a dict; {} if they name none.
    --resume --out RUN goes on with the run's settings but for those that are
    "resumable", by their metadata. --model RUN/checkpoint begins with them, if the run
    had the same task."""
    out = given.get("out", "")
    if given.get("resume"):
        saved = read_settings(settings, out) if out else {}
        if not saved:
            runs = sorted(glob.glob("runs/*"), key=os.path.getmtime)
            problem = f"{out} is no run{suggest(out, runs)}" if out else "there is none"
            newest = ", ".join(runs[-5:]) or "none"
            raise UserError(f"--resume needs --out and the folder of a run, but {problem}; "
                            f"the newest under runs/: {newest}")
        for name, value in given.items():
            resumable = settings.__dataclass_fields__[name].metadata["resumable"]
            if not resumable and name in saved and saved[name] != value:
                raise UserError(f"--resume goes on with the run's own --{name} "
                                f"{shown(saved[name])}: leave it out, or start another run")
        return saved
    folder = os.path.dirname(os.path.abspath(given.get("model") or "-/-"))
    saved = read_settings(settings, folder)
    if not saved or given.get("task", saved["task"]) != saved["task"]:
        return {}
    print(f"settings that are not given are those of {folder}/config.json")
    return {**saved, "out": "", "resume": False, "eval_only": False}


def tell_changes(usual, values):
    """The settings in the dict `values` that differ from the usual ones, in words."""
    changed = [f"{name} {shown(value)}" for name, value in values.items()
               if value != usual[name]]
    return ", ".join(changed) or "none"


# ---- Files and folders ----

def write_json(path, content):
    with open(f"{path}.tmp", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.tmp", path)  # whole, or not at all


def read_json(path):
    with open(path) as file:
        return json.load(file)


def new_name(start):
    """A name for a new folder that begins with `start`."""
    return f"{start}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@contextlib.contextmanager
def hold_folder(folder):
    """The folder, made if it is new, for this process alone until the block is left. If
    that happens by an error before anything was logged, a new folder is removed. Raises
    UserError if another process has it."""
    made = []  # what has to go in that case, the innermost first
    parent = folder
    while parent and not os.path.isdir(parent):
        made.append(parent)
        parent = os.path.dirname(parent)
    os.makedirs(folder, exist_ok=True)
    lock = filelock.FileLock(os.path.join(folder, ".lock"))
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        raise UserError(f"another process works on {folder}: wait for it, or name another "
                        "--out") from None
    try:
        yield folder
    except BaseException:
        if made and not glob.glob(os.path.join(glob.escape(folder), "*.jsonl")):
            shutil.rmtree(folder, ignore_errors=True)
            for parent in made[1:]:
                os.rmdir(parent)
        raise
    finally:
        lock.release()


@contextlib.contextmanager
def whole_folder(path):
    """A folder to write into, which becomes `path` when the block is left without an
    error. What was there before becomes PATH.before: whatever stops the program, even
    while it writes, one of the two is whole."""
    shutil.rmtree(f"{path}.tmp", ignore_errors=True)
    os.makedirs(f"{path}.tmp")
    yield f"{path}.tmp"
    if os.path.isdir(path):
        shutil.rmtree(f"{path}.before", ignore_errors=True)
        os.rename(path, f"{path}.before")
    os.rename(f"{path}.tmp", path)


def read_newest(path, read):
    """(folder, read(folder)) of the folder at `path`; or of PATH.before if that cannot
    be read, which is said; None if there is neither. Raises UserError if none can be
    read: then all stay as they are, as the fault may be a passing one."""
    reasons = []
    for folder in (path, f"{path}.before"):
        if not os.path.isdir(folder):
            continue
        try:
            found = read(folder)
        # a torn file, too little memory: each library has its own exception
        except Exception as error:
            reasons.append(f"{folder} cannot be read ({first_line(error)})")
            continue
        for reason in reasons:
            # Only now, so that the next checkpoint does not take the place of the one
            # that was read.
            say(f"{reason}: it is kept as {path}.unreadable, and the one before it is used")
            shutil.rmtree(f"{path}.unreadable", ignore_errors=True)
            os.rename(path, f"{path}.unreadable")
        return folder, found
    if reasons:
        raise UserError("; ".join(reasons))
    return None


def file_sizes(folder, pattern):
    paths = glob.glob(os.path.join(glob.escape(folder), pattern))
    return {os.path.basename(path): os.path.getsize(path) for path in paths}


def cut_files(folder, sizes):
    """Cut off what was written to the files after they had these sizes."""
    for name, size in sizes.items():
        path = os.path.join(folder, name)
        if os.path.getsize(path) > size:
            os.truncate(path, size)


# ---- Signals ----

def exit_status(name):
    return 128 + signal.Signals[name]


def resume_command(out):
    """What a user types to go on with the run in the folder."""
    return shlex.join(["python", sys.argv[0], "--resume", "--out", str(out)])


@contextlib.contextmanager
def hold_signals(message):
    """A list that gets the name of a SIGINT (Ctrl-C), SIGTERM or SIGHUP (a closed
    terminal), with the message printed; the second one exits at once. Outside of the
    main thread, where Python knows no signals, it stays empty; and a signal that the
    user has set to be ignored, as nohup does, stays ignored."""
    received = []

    def handler(number, frame):
        if received:
            raise SystemExit(128 + number)
        received.append(signal.Signals(number).name)
        with contextlib.suppress(OSError):  # the terminal may be gone
            say(message)
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
