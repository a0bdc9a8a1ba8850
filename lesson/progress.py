"""Grade the exercises: run the lesson's tests on a module's functions, and give hints.

pytest loads this file as a plugin, which ends tests that take too long.
"""
import _thread
import argparse
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

missing = [name for name in ("pytest", "torch", "transformers", "tqdm")
           if not importlib.util.find_spec(name)]
if missing:
    sys.exit(f"error: not installed: {', '.join(missing)}: pip install -r requirements.txt")

import pytest

from support import program

ROOT = pathlib.Path(__file__).resolve().parents[1]
BLANK, MINE = ROOT / "lesson" / "exercises.py", "my_exercises"
LIMIT = 10  # seconds of CPU time for a test; the slowest takes one
HINTS = {
    "token_weights":
        "detach logps and make them float32, then exp; the formula is one line with torch.sigmoid "
        "and clamp",
    "group_advantages":
        "a group is a row: mean and std along dim 1, with keepdim=True. The mean of equal rewards "
        "has a rounding error, so find these groups and set their advantages to 0",
    "grpo_sg_loss":
        "r is exp of a difference. The smaller of r A and clip(r) A, times w, is the objective; "
        "w stays outside of the clip. nan times 0 is nan: masked_fill before exp",
    "token_logps":
        "the logits at position t are about token t + 1. No attention mask is needed: nothing "
        "attends to what comes after it",
    "draw":
        "take the first token whose cumulative probability is above u: softmax and cumsum in "
        "float32, then torch.searchsorted with right=True. The last sum is not exactly 1, so "
        "multiply u by it",
    "pass_at_k":
        "count with math.comb: of all ways to choose k of the n samples, how many have no right "
        "one?",
    "make_batch":
        "a row joins three lists: the prompt's, the completion's and the pads'. Build the mask by "
        "position: `ids != 0` would lose the stop token",
    "learn":
        "random.Random(seed).sample makes a shuffled copy. Compute old_logps of all minibatches "
        "under torch.no_grad() first. Then for each: token_logps, grpo_sg_loss, zero_grad, "
        "backward, clip_grad_norm_, step",
}


def read_sections():
    """Return {function: names of its tests}, from the headings of test_grpo_sg.py's first part."""
    text = (ROOT / "test_grpo_sg.py").read_text(encoding="utf-8")
    lesson = text.split("\nLESSON = ")[0]
    sections = {}
    for part in lesson.split("\n# ---- ")[1:]:
        name = re.match(r"\d+\. (\w+): ", part)[1]
        sections[name] = re.findall(r"^def (test_\w+)", part, re.M)
    return sections


# ---- A time limit ----

endless = set()  # functions with a test that did not end


def interrupt_if_late(ended, late):
    """Interrupt the main thread if it has not ended after LIMIT seconds of CPU time."""
    start = time.process_time()
    while not ended.wait(0.2):
        if time.process_time() - start > LIMIT:
            late.set()
            _thread.interrupt_main()
            return


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test that does not end, and the function's other tests without running them."""
    owners = [name for name, tests in read_sections().items() if item.originalname in tests]
    if endless.intersection(owners):
        pytest.fail(f"not run, because another test of {owners[0]} did not end")
    ended, late = threading.Event(), threading.Event()
    # In the background of a shell SIGINT is ignored, and interrupt_main would do nothing.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt_if_late, args=(ended, late), daemon=True).start()
    try:
        return (yield)
    except KeyboardInterrupt:
        if not late.is_set():
            raise
        endless.update(owners)
        pytest.fail(f"no end after {LIMIT} seconds: is there an endless loop?")
    finally:
        ended.set()


# ---- Grades ----

def run_tests(module):
    """Run the lesson's tests on the functions of the module. Returns what pytest prints."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider",
               "-p", "lesson.progress", "test_grpo_sg.py"]
    path = os.pathsep.join([os.getcwd(), str(ROOT), os.environ.get("PYTHONPATH", "")])
    # pytest cuts its messages to the number of columns.
    env = {**os.environ, "OF": module, "PYTHONPATH": path, "COLUMNS": "2000"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr


def judge(output):
    """Return the names of functions whose tests all passed, and for each other function [name,
    number of tests that passed, number of tests, name and message of the first that failed]."""
    verdicts = re.findall(r"^(PASSED|FAILED|ERROR) test_grpo_sg.py::(\w+)(.*)$", output, re.M)
    done, others = [], []
    for name, tests in read_sections().items():
        own = [verdict for verdict in verdicts if verdict[1] in tests]
        failed = [verdict for verdict in own if verdict[0] != "PASSED"]
        if own and not failed:
            done.append(name)
        elif own:
            others.append([name, len(own) - len(failed), len(own), "".join(failed[0][1:])])
    return done, others


def check_syntax(path):
    """Exit with one line if Python cannot read the file."""
    try:
        compile(path.read_bytes(), path.name, "exec")
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if getattr(error, "lineno", None) else ""
        sys.exit(f"error: {path.name}{where}: {getattr(error, 'msg', error)}")


def show(module, wanted=None):
    """Print what is done and what comes next: the wanted function, or the first that is not."""
    print(f"running the tests on {module}.py: a few seconds", flush=True)
    output = run_tests(module)
    done, others = judge(output)
    if not done and not others:
        why = re.findall(rf"^(?:E  |\S*{module}\.py:).*$", output, re.M)  # the module's own lines
        sys.exit("\n".join([f"error: {module}.py cannot be imported:", *(why or [output])]))
    of = len(done) + len(others)
    names = f": {', '.join(done)}" if done else ""
    print(f"{len(done)} of {of} done{names}")
    if not others:
        print("That is the whole method. The rest of grpo_sg.py, from section 4 on, runs it.")
        return
    for i, (name, *_) in enumerate(others):
        if name == wanted:
            others.insert(0, others.pop(i))
    name, passed, tests, first = others[0]
    print(f"next: {name}, {passed} of {tests} tests pass; the first failure:")
    print(f"    {first}")
    print(f"    for a hint: python -m lesson.exercises --hint {name}")
    for name, passed, tests, _ in others[1:]:
        print(f"then: {name}, {passed} of {tests}")


def main(argv=None):
    """Grade my_exercises.py, the reader's copy of exercises.py, which is made if it is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson.exercises", description="Grade the exercises in my_exercises.py.")
    parser.add_argument("function", choices=HINTS, metavar="NAME", nargs="?",
                        help="show what fails of this function, not of the next")
    parser.add_argument("--hint", choices=HINTS, metavar="NAME",
                        help=f"print a hint for one of {', '.join(HINTS)}")
    args = parser.parse_args(argv)
    if args.hint:
        print(f"{args.hint}: {HINTS[args.hint]}")
        return
    mine = ROOT / f"{MINE}.py"
    if not mine.exists():
        shutil.copy(BLANK, mine)
        print(f"copied lesson/exercises.py to {MINE}.py: write your bodies there (git ignores it)")
    check_syntax(mine)
    show(MINE, args.function)


def start():
    """Run as a program: Ctrl-C ends it with one line."""
    program.end_on_ctrl_c()
    if not (ROOT / "test_grpo_sg.py").exists():
        sys.exit("the exercises are graded by test_grpo_sg.py, which is missing")
    main()
