"""Grade the exercises: run the project's tests on your functions, and give hints.

    python -m lesson.grade               what is done, and what comes next: ten seconds
    python -m lesson.grade draw          the first failure of one function
    python -m lesson.grade draw --hint   a hint
    python -m lesson.grade draw --long   all that pytest says

The first command copies lesson/exercises.py to my_exercises.py, next to grpo_sg.py. Write your
bodies there: git ignores that file, and nothing overwrites it.

A section of test_grpo_sg.py whose heading is "# ---- 5. draw: ..." has the tests of `draw`. The
grader is a pytest plugin. It lets these tests call your functions instead of grpo_sg.py's, and
ends a test that takes too long.
"""
import _thread
import argparse
import importlib.util
import pathlib
import re
import shutil
import signal
import sys
import threading
import time
import traceback

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TESTS = ROOT / "test_grpo_sg.py"
BLANK, MINE = ROOT / "lesson" / "exercises.py", ROOT / "my_exercises.py"
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
    """Return {function: names of its tests}, from the numbered headings of test_grpo_sg.py."""
    lesson = TESTS.read_text(encoding="utf-8").split("\n# ==== ")[0]
    sections = {}
    for section in lesson.split("\n# ---- ")[1:]:
        function = re.match(r"\d+\. (\w+): ", section)[1]
        sections[function] = re.findall(r"^def (test_\w+)", section, re.M)
    return sections


# ---- The plugin of pytest ----

class Grader:
    """Let the tests call the functions of a module, and keep what they say."""

    def __init__(self, module):
        self.module = module
        self.owners = {}   # test -> the function that it tests
        self.results = {}  # function -> [(test, message of its failure, or None)]
        self.endless = set()  # functions with a test that did not end
        self.patch = pytest.MonkeyPatch()
        for function, tests in read_sections().items():
            self.owners.update(dict.fromkeys(tests, function))

    def pytest_collection_modifyitems(self, items):
        """Replace grpo_sg's functions, which the file of the tests imports, by the module's."""
        for function in HINTS:
            self.patch.setattr(items[0].module, function, getattr(self.module, function))

    def pytest_unconfigure(self):
        self.patch.undo()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        """Fail a test that does not end, and the function's other tests without running them."""
        function = self.owners[item.originalname]
        if function in self.endless:
            pytest.fail(f"not run, because another test of {function} did not end")
        ended, late = threading.Event(), threading.Event()
        # In the background of a shell SIGINT is ignored, and interrupt_main would do nothing.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=interrupt_if_late, args=(ended, late), daemon=True).start()
        try:
            return (yield)
        except KeyboardInterrupt:
            if not late.is_set():
                raise
            self.endless.add(function)
            pytest.fail(f"no end after {LIMIT} seconds: is there an endless loop?")
        finally:
            ended.set()

    def pytest_runtest_logreport(self, report):
        """Keep a test's result: its call, or another phase that failed."""
        if report.when == "call" or report.failed:
            test = report.nodeid.split("::")[-1]
            message = None
            if report.failed:
                message = report.longrepr.reprcrash.message.split("\n")[0]
            self.results.setdefault(self.owners[test.split("[")[0]], []).append((test, message))


def interrupt_if_late(ended, late):
    """Interrupt the main thread if it has not ended after LIMIT seconds of CPU time."""
    start = time.process_time()
    while not ended.wait(0.2):
        if time.process_time() - start > LIMIT:
            late.set()
            _thread.interrupt_main()
            return


def run_tests(module, functions, *options):
    """Run the tests of these functions on the module's. Returns {function: [(test, message of its
    failure, or None)]}."""
    sections = read_sections()
    tests = [f"{TESTS}::{test}" for function in functions for test in sections[function]]
    grader = Grader(module)
    # Without the last plugin's garbage collection a run takes half of the time.
    status = pytest.main(["-p", "no:cacheprovider", "-p", "no:unraisableexception", *options,
                          *tests], [grader])
    if status == pytest.ExitCode.INTERRUPTED:
        raise SystemExit("interrupted")
    return grader.results


# ---- The reader's file ----

def load_module(path):
    """Import a file. Raises SystemExit: one line, if that fails or if it lacks a function."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == str(path)]
        if isinstance(error, SyntaxError) and error.lineno:
            lines.append(error.lineno)
        place = f", line {lines[-1]}" if lines else ""
        raise SystemExit(f"error: {path.name}{place}: {type(error).__name__}: "
                         f"{getattr(error, 'msg', error)}")
    for function in HINTS:
        if not hasattr(module, function):
            raise SystemExit(f"error: {path.name} has no function {function}: copy its head from "
                             "lesson/exercises.py")
    return module


def show(module, wanted=None):
    """Print what is done and what comes next; or, with a name, what fails of this function."""
    names = [wanted] if wanted else list(HINTS)
    print(f"running the tests of {', '.join(names)} on {module.__name__}.py", flush=True)
    results = run_tests(module, names, "-p", "no:terminal")
    todo = [name for name in names if any(message for _, message in results[name])]
    done = [name for name in names if name not in todo]
    print(f"{len(done)} of {len(names)} done{': ' if done else ''}{', '.join(done)}")
    for name in todo:
        failures = [result for result in results[name] if result[1]]
        count = len(results[name])
        print(f"{name}: {count - len(failures)} of {count} tests pass")
        if name == todo[0]:
            print(f"    {failures[0][0]}: {failures[0][1]}")
            print(f"    for a hint: python -m lesson.grade {name} --hint")
    if not todo and not wanted:
        print("That is the whole method. The rest of grpo_sg.py, from section 4 on, runs it.")


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m lesson.grade", description="Grade the exercises in my_exercises.py.")
    parser.add_argument("function", choices=HINTS, metavar="NAME", nargs="?",
                        help=f"show what fails of this function: {', '.join(HINTS)}")
    parser.add_argument("--hint", action="store_true", help="print a hint for the function")
    parser.add_argument("--long", action="store_true", help="print all that pytest says of it")
    args = parser.parse_args(argv)
    if (args.hint or args.long) and not args.function:
        parser.error(f"name the function: one of {', '.join(HINTS)}")
    if args.hint:
        print(f"{args.function}: {HINTS[args.function]}")
        return
    if not TESTS.exists():
        sys.exit("error: test_grpo_sg.py, whose tests grade the exercises, is missing")
    if not MINE.exists():
        shutil.copy(BLANK, MINE)
        print(f"copied lesson/exercises.py to {MINE.name}: write your bodies there (git ignores "
              "it)")
    module = load_module(MINE)
    if args.long:
        run_tests(module, [args.function], "-q")
    else:
        show(module, args.function)


if __name__ == "__main__":
    main()
