"""Grade the exercises: run the project's tests on your functions, and give hints.

    python -m lesson.grade               the core of the method, two functions: a few seconds
    python -m lesson.grade all           all eight functions, so that others can rely on them
    python -m lesson.grade draw          the first failure of one function
    python -m lesson.grade draw --hint   a hint
    python -m lesson.grade draw --long   all that pytest says
    python -m lesson.grade verify        examine a verifier of yours (lesson/examine.py)

The first command copies lesson/exercises.py to my_exercises.py, next to grpo_sg.py. Write your
bodies there: git ignores that file, and nothing overwrites it. lesson/test_core.py has the tests
of the core, with usual numbers. test_grpo_sg.py tests the rest: number types, integer rewards, the
KL, parts of a batch, nan at padding. There a section whose heading is "# ---- 5. draw: ..." has the
tests of `draw`, which call your function here.
"""
import argparse
import pathlib
import re

import pytest

from lesson.copies import copy_once, load_module

ROOT = pathlib.Path(__file__).resolve().parents[1]
TESTS, CORE = ROOT / "test_grpo_sg.py", ROOT / "lesson/test_core.py"
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


def read_sections(path):
    """Return {function: names of its tests}, from the numbered headings of a file of tests."""
    lesson = path.read_text(encoding="utf-8").split("\n# ==== ")[0]
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
            if hasattr(items[0].module, function):
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


def run_tests(module, path, functions, long=False):
    """Run a file's tests of these functions on the module's, and print what pytest says if long.
    Returns {function: [None, or what fails, for each case of its tests]}."""
    sections = read_sections(path)
    tests = [f"{path}::{test}" for function in functions for test in sections[function]]
    # Without the last plugin's garbage collection a run takes half of the time.
    options = ["-q" if long else "-pno:terminal", "-pno:cacheprovider", "-pno:unraisableexception"]
    with pytest.MonkeyPatch.context() as patch:
        grader = Grader(module, patch, long)
        if pytest.main([*options, *tests], [grader]) == pytest.ExitCode.INTERRUPTED:
            raise SystemExit("interrupted")
    return {function: sum((grader.results[test] for test in sections[function]), [])
            for function in functions}


# ---- The reader's file ----

def show(module, path, names, part):
    """Print which functions pass a file's tests, and the first failure. Returns whether all do."""
    results = run_tests(module, path, names)
    todo = [name for name in names if any(results[name])]
    done = len(names) - len(todo)
    print(f"{done} of {len(names)}: {part} {'not done yet' if todo else 'done'}")
    for name in todo:
        print(f"    {name}: {results[name].count(None)} of {len(results[name])} tests pass")
        if name == todo[0]:
            print(f"        {next(filter(None, results[name]))}")
            print(f"        for a hint: python -m lesson.grade {name} --hint")
    return not todo


def grade(module, wanted):
    """Print how far the reader is: with the core, with all functions, or with the one wanted."""
    names = list(HINTS) if wanted in ("core", "all") else [wanted]
    core = [name for name in read_sections(CORE) if name in names]
    print(f"running the tests on {module.__name__}.py", flush=True)
    done = not core or show(module, CORE, core, "core")
    if done and wanted == "core":
        print("Others rely on more, such as number types and nan: python -m lesson.grade all")
    elif done and show(module, TESTS, names, "the rest, on which others rely,") and len(names) > 1:
        print("That is the whole method. The rest of grpo_sg.py, from section 4 on, runs it.")


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m lesson.grade", description="Grade the exercises in my_exercises.py.")
    parser.add_argument("part", choices=["core", "all", "verify", *HINTS], nargs="?",
                        metavar="PART", default="core", help="the core (if nothing is given), "
                        f"all, verify, or the name of one function: {', '.join(HINTS)}")
    parser.add_argument("--hint", action="store_true", help="print a hint for the function")
    parser.add_argument("--long", action="store_true", help="print all that pytest says of it")
    args = parser.parse_args(argv)
    if (args.hint or args.long) and args.part not in HINTS:
        parser.error(f"name the function: one of {', '.join(HINTS)}")
    if args.hint:
        print(f"{args.part}: {HINTS[args.part]}")
        return
    if args.part == "verify":
        from lesson import examine  # only now, because it imports the whole program
        examine.main()
        return
    copy_once(BLANK, MINE)
    module = load_module(MINE, HINTS, BLANK)
    if args.long:
        run_tests(module, TESTS, [args.part], long=True)
    else:
        grade(module, args.part)


if __name__ == "__main__":
    main()
