"""Handle messages, errors, streams and signals of a command line."""
import contextlib
import difflib
import os
import pathlib
import select
import shlex
import signal
import sys
import traceback

from tqdm import tqdm

from tasks import UserError

ROOT = pathlib.Path(__file__).parents[1]


# ---- Errors and messages ----

class Patient:
    """Wrap a stream so that broken pipes don't end the run.

    If the reader is gone (a closed terminal, or Ctrl-C that also ended `tee`), output is
    discarded. After a signal, it is also discarded if a pipe is full. (Writing from a
    signal handler during another write raises RuntimeError, which is ignored.)
    """
    hurried = False  # True after a signal: writes don't wait for a reader

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
            with contextlib.suppress(OSError, ValueError):  # some streams have no descriptor
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
        except RuntimeError:
            pass


def would_wait(stream):
    """Return True if a write would wait for a reader; False if unknown, as in a notebook."""
    try:
        return not select.select([], [stream], [], 0)[1]
    except (OSError, ValueError):
        return False


def say_in_handler(text):
    """Call `say` from a signal handler. From then on, no write waits for a reader. If the
    signal has interrupted a write to a full pipe, Python retries that write after the handler:
    therefore the flush here first redirects such a stream."""
    Patient.hurried = True
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Patient):
            stream.flush()
    say(text)


def end_on_ctrl_c():
    """Let Ctrl-C end the process with one line. It raises no exception, because some libraries
    abort if one passes through their import."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # and not ignored
        signal.signal(signal.SIGINT, end_at_once)


def end_at_once(number, frame):
    say_in_handler("interrupted")
    os._exit(exit_status("SIGINT"))


@contextlib.contextmanager
def one_line_errors(out_of_memory):
    """Turn a UserError, a full GPU or Ctrl-C into one line and an exit status. Other errors
    are bugs and keep their traceback. out_of_memory: what to do if a GPU's memory is full."""
    import torch  # a slow import: end_on_ctrl_c must be callable before it
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # None if closed: python ... >&-
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know only ASCII
        if not isinstance(stream, Patient):
            setattr(sys, name, Patient(stream))
    try:
        yield
    except UserError as error:
        if error.__cause__:  # raised in the user's own function: show where
            frames = error.__cause__.__traceback__
            # Leave out the first frame, which called the function.
            error.__cause__.__traceback__ = frames.tb_next or frames
            traceback.print_exception(error.__cause__, chain=False)
        message, status = str(error), error.status
    except torch.OutOfMemoryError:
        message, status = f"out of GPU memory: {out_of_memory}", 2
    except KeyboardInterrupt as error:
        message, status = str(error) or "interrupted", exit_status("SIGINT")
    else:
        return
    say(f"error: {message}")
    raise SystemExit(status)


def say(text):
    """Print a line to standard error, without garbling a progress bar."""
    tqdm.write(text, file=sys.stderr)


def first_line(error):
    return f"{type(error).__name__}: {error}".split("\n")[0]


def suggest(word, words, prefix=""):
    """Return " (did you mean X?)" for a word that starts with the given one or is similar
    to it, or "" if there is none. prefix: written before X."""
    found = [each for each in words if each.startswith(word)]
    found = found or difflib.get_close_matches(word, list(words), 1, 0.7)
    return f" (did you mean {prefix}{found[0]}?)" if found else ""


def exit_status(name):
    return 128 + signal.Signals[name]


def resume_command(out):
    """Return the command that continues the run in a folder."""
    script = [sys.argv[0] if os.path.isfile(sys.argv[0]) else "grpo_sg.py"]
    module = sys.modules["__main__"].__spec__
    if module and module.origin == sys.argv[0]:
        script = ["-m", module.name]
    return shlex.join(["python", *script, "--resume", "--out", str(out)])
