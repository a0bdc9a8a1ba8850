"""What any program that runs long needs: flags made from a dataclass, errors of one line, files and folders
that are whole or not there, signals that wait for a good moment. Nothing here knows of reinforcement
learning."""
import contextlib
import difflib
import glob
import json
import math
import os
import secrets
import shutil
import signal
import sys
import time

import torch
from tqdm import tqdm
from transformers import HfArgumentParser


def fail(message, status=2):
    """A user's mistake, or the machine's: one line and an exit status, no traceback."""
    tqdm.write(f"error: {message}", file=sys.stderr)  # on a line of its own, whatever bar is shown
    raise SystemExit(status)


def first_line(error):
    return f"{type(error).__name__}: {error}".split("\n")[0]


def closest(word, words):
    """" (did you mean X?)" for the most similar of the words, "" where none is similar."""
    found = difflib.get_close_matches(word, list(words), 1)
    return f" (did you mean {found[0]}?)" if found else ""


def given_flags(settings, argv, description):
    """What a command line gives, as a dict: `--group_size 4`, or `--group-size 4`, is {"group_size": 4}.

    settings: a dataclass; the metadata of each field has its "help", and its type is that of the flag.
    argv: a list of strings, None for those of the process. --help prints all flags with their defaults and
    exits; a flag that does not exist or a value that it cannot have is a line that says so, and an exit.
    """
    parser = HfArgumentParser(settings, description=description, allow_abbrev=False)
    parser.error = fail
    unknown = parser.parse_known_args(argv)[1]
    if unknown:
        flags = [f"--{name}" for name in settings.__dataclass_fields__]
        fail(f"there is no setting {unknown[0]}{closest(unknown[0], flags)}; --help lists them all")
    parser.set_defaults(**dict.fromkeys(settings.__dataclass_fields__))
    values = vars(parser.parse_known_args(argv)[0])
    return {name: value for name, value in values.items() if value is not None}


def given_and_saved(settings, argv, description, defaults, may_change):
    """(what the command line gives, the settings of the run that it names), two dicts; `defaults` count as
    given where the command line is silent. A run is named by --resume --out RUN, which goes on with its
    settings but for those that may change, or by --model RUN/checkpoint, where it had the same task."""
    for name in defaults.keys() - settings.__dataclass_fields__.keys():
        fail(f"there is no setting {name}{closest(name, settings.__dataclass_fields__)}")
    given = {**defaults, **given_flags(settings, argv, description)}
    out = given.get("out", "")
    if given.get("resume"):
        saved = saved_settings(settings, out)
        if not saved:
            runs = ", ".join(sorted(glob.glob("runs/*"), key=os.path.getmtime)[-5:]) or "none"
            fail(f"--resume needs --out and the folder of a run, which {out or 'nothing'} is not"
                 f"{closest(out, glob.glob('runs/*'))}; the newest under runs/: {runs}")
        changed = [name for name in given if name not in may_change and given[name] != saved.get(name)]
        if changed:
            fail(f"--resume goes on with the run's own --{changed[0]} {saved.get(changed[0])}: leave it out, "
                 "or start another run")
        return given, saved
    folder = os.path.dirname(os.path.normpath(given.get("model") or "-/-"))
    saved = saved_settings(settings, folder)
    if not saved or given.get("task", saved["task"]) != saved["task"]:
        return given, {}
    print(f"settings that are not given are those of {folder}/config.json")
    return given, {**saved, "out": "", "resume": False, "eval_only": False}


def saved_settings(settings, run):
    """What a run's config.json says of the fields of the dataclass, as a dict; {} where there is none."""
    try:
        saved = read_json(os.path.join(run, "config.json"))
    except (OSError, ValueError):
        return {}
    return {name: saved[name] for name in settings.__dataclass_fields__ if "seed" in saved and name in saved}


def open_run(settings):
    """The folder of a run, --out or one under runs/, made if it is new, with the settings in config.json;
    prints them where they differ from the defaults."""
    values = vars(settings)
    usual = vars(type(settings)())
    kind = "test" if settings.eval_only else settings.shaping
    when = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    out = settings.out or os.path.join("runs", f"{settings.task}-{kind}-seed{settings.seed}-{when}")
    os.makedirs(out, exist_ok=settings.resume)
    write_json(os.path.join(out, "config.json"), values)
    changed = [f"{name} {value}" for name, value in values.items() if value != usual[name]]
    print(f"files of this run: {out}/")
    print(f"settings that differ from the defaults: {', '.join(changed) or 'none'}")
    return out


def check_numbers(values, may_be_0):
    """Fail where a number is negative, not finite, or 0 and not among the names that may be."""
    for name, value in values.items():
        zero = name in may_be_0
        if type(value) in (int, float) and not (math.isfinite(value) and (value > 0 or zero and value == 0)):
            fail(f"--{name} must be {'0 or more' if zero else 'positive'}, and finite, not {value}")


def check_useful(given, no_effect, **chosen):
    """Fail where something given has no effect: no_effect[value] names what has none where that is
    chosen."""
    for name, value in chosen.items():
        useless = [other for other in given if other in no_effect.get(value, "").split()]
        if useless:
            fail(f"--{useless[0]} has no effect with --{name} {value}: leave it out")


@contextlib.contextmanager
def one_line_errors():
    """What is no mistake of the program's ends it with one line."""
    try:
        yield
    except OSError as error:
        fail(f"cannot read or write the run's files: {first_line(error)}")
    except torch.OutOfMemoryError as error:
        fail(f"out of GPU memory {'; '.join(getattr(error, '__notes__', []))}; a smaller --model needs less")
    except KeyboardInterrupt:
        fail("interrupted outside of training: if there is a checkpoint yet, --resume goes on from it", 130)


def write_json(path, content):
    with open(f"{path}.tmp", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.tmp", path)  # whole, or not at all


def read_json(path):
    with open(path) as file:
        return json.load(file)


@contextlib.contextmanager
def whole_folder(path):
    """A folder to write into, which becomes `path` when the block is left without an error. What was there
    before becomes PATH.before: whatever stops the program, in the writing too, one of the two is whole."""
    shutil.rmtree(f"{path}.tmp", ignore_errors=True)
    os.makedirs(f"{path}.tmp")
    yield f"{path}.tmp"
    if os.path.isdir(path):
        shutil.rmtree(f"{path}.before", ignore_errors=True)
        os.rename(path, f"{path}.before")
    os.rename(f"{path}.tmp", path)


def newest_readable(path, read):
    """(folder, read(folder)) of the folder at `path`, or of PATH.before where the newest one cannot be read,
    which is said, and set aside as PATH.unreadable; None where neither can."""
    for folder in (path, f"{path}.before"):
        if os.path.isdir(folder):
            try:
                return folder, read(folder)
            except Exception as error:  # a torn file: each library has its own exception
                print(f"{folder} cannot be read ({first_line(error)}): trying the one before")
                shutil.rmtree(f"{folder}.unreadable", ignore_errors=True)
                os.rename(folder, f"{folder}.unreadable")


@contextlib.contextmanager
def waiting_signals(message):
    """A list that gets the number of a SIGINT (Ctrl-C) or SIGTERM, with the message printed; the second one
    exits at once."""
    received = []

    def handler(number, frame):
        if received:
            raise SystemExit(128 + number)
        received.append(number)
        tqdm.write(message, file=sys.stderr)
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def in_words(row):
    """The means in a row of metrics.jsonl that have a standard error beside them, KEY_se, as text."""
    return ", ".join(f"{key.removeprefix('eval/')} {row[key]:.3f} ± {row[key + '_se']:.3f}"
                     for key in row if f"{key}_se" in row and key != "eval/pass@1")  # which is avg@k


@contextlib.contextmanager
def token_bar(phase, texts, settings):
    """A progress bar for so many texts, sampled token by token in batches of settings.sample_batch, each of
    at most settings.max_new_tokens. Yields moved(drawn, ended), to be called with the tokens of a step and
    the texts that ended with it. It appears after two seconds."""
    started = time.time()
    steps = tokens = 0
    most = settings.max_new_tokens
    left = math.ceil(texts / settings.sample_batch) * most

    def moved(drawn, ended):
        nonlocal steps, tokens, left
        steps += 1
        tokens += drawn
        # Where all of a batch have ended, none of its steps is left.
        left -= 1 if drawn > ended else (left - 1) % most + 1
        seconds = time.time() - started
        speed = f"{tokens / seconds:,.0f} tokens/s, {left * seconds / steps:,.0f} s left at most"
        bar.set_postfix_str(speed, refresh=False)
        bar.update(ended)
    with tqdm(total=texts, desc=phase, unit="completion", leave=False, delay=2) as bar:
        yield moved


def file_sizes(folder, pattern):
    paths = glob.glob(os.path.join(glob.escape(folder), pattern))
    return {os.path.basename(path): os.path.getsize(path) for path in paths}


def cut_files(folder, sizes):
    """Cut off what was written to the files after they had these sizes."""
    for name, size in sizes.items():
        path = os.path.join(folder, name)
        os.truncate(path, min(size, os.path.getsize(path)))
