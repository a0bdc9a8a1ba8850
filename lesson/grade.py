"""Grade the exercises: run the project's tests on your functions, and give hints.

    python -m lesson.grade               what is done, and what comes next: a few seconds
    python -m lesson.grade draw          the first failure of one function
    python -m lesson.grade draw --hint   a hint
    python -m lesson.grade draw --long   all that pytest says

The first command copies lesson/exercises.py to my_exercises.py, next to grpo_sg.py. Write your
bodies there: git ignores that file, and nothing overwrites it. A section of test_grpo_sg.py whose
heading is "# ---- 5. draw: ..." has the tests of `draw`, which call your function here.
"""
import argparse
import importlib.util
import pathlib
import re
import shutil

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TESTS = ROOT / "test_grpo_sg.py"
BLANK, MINE = ROOT / "lesson/exercises.py", ROOT / "my_exercises.py"
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
        "of all ways to choose k of the n samples (math.comb), how many have no correct one?",
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

    def __init__(self, module, patch, long):
        self.module, self.patch, self.long = module, patch, long
        self.results = {}  # test -> [None, or what fails in it, for each of its cases]

    def pytest_collection_modifyitems(self, items):
        """Replace grpo_sg's functions, which the file of the tests imports, by the module's."""
        for function in HINTS:
            self.patch.setattr(items[0].module, function, getattr(self.module, function))
        if not self.long:  # the code of a failure takes pytest seconds
            for item in items:
                item.repr_failure = first_line

    def pytest_runtest_logreport(self, report):
        """Keep a test's result: its call, or another phase that failed."""
        if report.when == "call" or report.failed:
            case = report.nodeid.split("::")[-1]
            failure = f"{case}: {report.longrepr}" if report.failed else None
            self.results.setdefault(case.split("[")[0], []).append(failure)


def first_line(failure):
    return failure.exconly(tryshort=True).split("\n")[0]


def run_tests(module, functions, long=False):
    """Run the tests of these functions on the module's, and print what pytest says if long.
    Returns {function: [None, or what fails, for each case of its tests]}."""
    sections = read_sections()
    tests = [f"{TESTS}::{test}" for function in functions for test in sections[function]]
    # Without the last plugin's garbage collection a run takes half of the time.
    options = ["-q" if long else "-pno:terminal", "-pno:cacheprovider", "-pno:unraisableexception"]
    with pytest.MonkeyPatch.context() as patch:
        grader = Grader(module, patch, long)
        if pytest.main([*options, *tests], [grader]) == pytest.ExitCode.INTERRUPTED:
            raise SystemExit("interrupted")
    return {function: sum((grader.results[test] for test in sections[function]), [])
            for function in functions}


# ---- The reader's file ----

def load_module(path):
    """Import a file. Raises SystemExit if it lacks a function."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for function in HINTS:
        if not hasattr(module, function):
            raise SystemExit(f"error: {path.name} has no function {function}: copy its head from "
                             "lesson/exercises.py")
    return module


def show(module, wanted=None):
    """Print what is done and what comes next; or, with a name, what fails of this function."""
    names = [wanted] if wanted else list(HINTS)
    print(f"running the tests of {', '.join(names)} on {module.__name__}.py", flush=True)
    results = run_tests(module, names)
    todo = [name for name in names if any(results[name])]
    done = [name for name in names if name not in todo]
    print(f"{len(done)} of {len(names)} done{': ' if done else ''}{', '.join(done)}")
    for name in todo:
        failures = list(filter(None, results[name]))
        print(f"{name}: {results[name].count(None)} of {len(results[name])} tests pass")
        if name == todo[0]:
            print(f"    {failures[0]}\n    for a hint: python -m lesson.grade {name} --hint")
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
    if not MINE.exists():
        shutil.copy(BLANK, MINE)
        print(f"copied lesson/exercises.py to {MINE.name}: write your bodies there")
    module = load_module(MINE)
    if args.long:
        run_tests(module, [args.function], long=True)
    else:
        show(module, args.function)


if __name__ == "__main__":
    main()
