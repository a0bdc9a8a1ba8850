"""What any command line needs: one line for a user's mistake, printed lines, streams and
signals. It imports nothing of the project."""
import contextlib
import difflib
import os
import select
import shlex
import signal
import sys
import traceback

from tqdm import tqdm


# ---- Errors, and what is printed ----

class UserError(ValueError):
    """A user's mistake, or a fault of the machine. Its text is one line that says what was
    given, what is allowed and what to do; `main` prints it without a traceback and exits
    with `status`. Raised `from` an error in a function of the user's own, such as a
    verifier, it also shows that error's traceback."""

    def __init__(self, message, status=2):
        super().__init__(message.split("\n")[0])
        self.status = status


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
    """End the program with one line after a user's mistake. A bug of the program keeps its
    traceback. out_of_memory: what to do if a GPU's memory is full."""
    import torch  # takes seconds: not before end_on_ctrl_c can be called
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # it was closed: python ... >&-
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know only ASCII
        if not isinstance(stream, Patient):
            setattr(sys, name, Patient(stream))
    try:
        yield
    except UserError as error:
        if error.__cause__:  # raised in a function of the user's own: show where
            frames = error.__cause__.__traceback__
            # without the first frame, which is the one that called it
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
