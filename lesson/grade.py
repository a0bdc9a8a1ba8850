"""Grade the exercises: run the project's tests on your functions, and give hints.

    python -m lesson.grade               the core of the method, two functions: a few seconds
    python -m lesson.grade all           all eight functions, so that others can rely on them
    python -m lesson.grade draw          one function
    python -m lesson.grade draw --hint   a hint
    python -m lesson.grade verify        examine a verifier of yours (lesson/examine.py)
    python -m lesson.grade all --file students/ada.py      another file, such as a student's

The first command copies lesson/exercises.py to my_exercises.py, next to grpo_sg.py. Write your
bodies there: git ignores that file, and nothing overwrites it. The exit status is 0 if all that was
asked for is done, and 1 if something is missing. A process of its own runs the file, so a file that
exits, crashes, hangs or prints without end is not done. (A forger can still pass, because the file
can replace the tests.) lesson/test_core.py tests the core with usual numbers, and test_grpo_sg.py
the rest: number types, integer rewards, the KL, parts of a batch, nan at padding. A heading
"# ---- 5. draw: ..." begins the tests that call your `draw`.
"""
import argparse
import faulthandler
import os
import pathlib
import re
import runpy
import secrets
import shutil
import signal
import subprocess
import sys
import time
import traceback
from types import SimpleNamespace

LESSON = pathlib.Path(__file__).resolve().parent
FOLDER = LESSON.parent  # of the reader's files
SECONDS = 120         # for a file: a right one takes ten
CHARACTERS = 100_000  # that a file may print
HINTS = {
    "token_weights":
        "detach logps and make them float32, then exp; the formula is one line with torch.sigmoid "
        "and clamp",
    "group_advantages":
        "a group is a row: mean and std along dim 1, with keepdim=True. That is the core. For the "
        "rest compute in float64, and set the advantages of equal rewards to 0, because their "
        "mean has a rounding error",
    "grpo_sg_loss":
        "advantages are (B,): make them a column. r is exp of a difference. The smaller of r A and "
        "clip(r) A, times w, is the objective; w stays outside of the clip. That is the core. For "
        "the rest, nan times 0 is nan, so masked_fill before exp",
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


# ---- The tests ----

def read_sections(tests):
    """Return {function: its tests}, from the numbered headings of a module of tests."""
    text = pathlib.Path(tests.__file__).read_text(encoding="utf-8").split("\n# ==== ")[0]
    sections = {}
    for section in text.split("\n# ---- ")[1:]:
        function = re.match(r"\d+\. (\w+): ", section)[1]
        names = re.findall(r"^def (test_\w+)", section, re.M)
        sections[function] = [getattr(tests, name) for name in names]
    return sections


def list_cases(test):
    """Return the arguments of each case of a test, as pytest would make them."""
    cases = [{}]
    for mark in getattr(test, "pytestmark", []):
        name, values = mark.args
        cases = [{**case, name: value} for case in cases for value in values]
    return cases


def find_failure(test, case, path):
    """Run one case of a test. Returns None, or a line that says what fails, and where in the file
    at `path`, which is the reader's."""
    try:
        test(**case)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        said = str(error).split("\n")[0] or frames[-1].line
        said = f"{type(error).__name__}: {said}".removeprefix("AssertionError: ")
        lines = [frame.lineno for frame in frames if frame.filename == path]
        where = f" (line {lines[-1]} of {os.path.basename(path)})" if lines else ""
        return f"{test.__name__}{[*map(str, case.values())] or ''}: {said}{where}"


def run_tests(mine, tests, function):
    """Run a module's tests of a function, on the reader's. Returns None or a failure a case."""
    for name in HINTS:
        if hasattr(tests, name):  # instead of grpo_sg's, which it imports
            setattr(tests, name, getattr(mine, name))
    cases = [(test, case) for test in read_sections(tests)[function] for case in list_cases(test)]
    return [find_failure(test, case, mine.__file__) for test, case in cases]


# ---- The reader's file ----

def copy_blank(blank):
    """Copy a file of the lesson to the reader's, which nothing overwrites. Returns its path."""
    path = FOLDER / f"my_{blank}"
    if not path.exists():
        shutil.copy(LESSON / blank, path)
        print(f"copied lesson/{blank} to {path.name}: write your bodies there")
    return path


def load_file(path, blank, functions):
    """Run the reader's file. Returns its names. Raises SystemExit if it lacks a function of
    `blank`, the lesson's own file."""
    mine = runpy.run_path(str(path))
    if missing := [function for function in functions if function not in mine]:
        raise SystemExit(f"error: {os.path.basename(path)} has no function {missing[0]}: copy its "
                         f"head from lesson/{blank}")
    return SimpleNamespace(**mine)


def show(mine, tests, names, part):
    """Print which functions pass the tests, and the first failure. Returns whether all do."""
    results = {name: run_tests(mine, tests, name) for name in names}
    todo = [name for name in names if any(results[name])]
    print(f"{len(names) - len(todo)} of {len(names)}: {part} {'not done yet' if todo else 'done'}")
    for name in todo:
        print(f"    {name}: {results[name].count(None)} of {len(results[name])} tests pass")
        if name == todo[0]:
            print(f"        {next(filter(None, results[name]))}")
            print(f"        for a hint: python -m lesson.grade {name} --hint")
    return not todo


def grade(mine, part):
    """Print how far the reader is: with the core, with all functions, or with one of them. Returns
    whether that is done."""
    print(f"running the tests on {os.path.basename(mine.__file__)}", flush=True)
    names = list(HINTS) if part in ("core", "all") else [part]
    from lesson import test_core  # only now: it imports the whole program
    core = [name for name in read_sections(test_core) if name in names]
    done = not core or show(mine, test_core, core, "core")
    if done and part == "core":
        print("Others rely on more, such as number types and nan: python -m lesson.grade all")
    elif done:
        import test_grpo_sg
        done = show(mine, test_grpo_sg, names, "the rest, on which others rely,")
        if done and part == "all":
            print("That is the whole method. The rest of grpo_sg.py, from section 4 on, runs it.")
    return done


# ---- A process for the reader's file ----

def grade_in_child(token, part, path, seconds):
    """Grade a file, and only then print the token and whether all is done. After some seconds the
    process ends, and shows the line that it is at."""
    faulthandler.dump_traceback_later(int(seconds), exit=True)
    if part == "verify":
        from lesson import examine
        done = examine.main(load_file(path, "verifier.py", ["verify", "reward"]))
    else:
        done = grade(load_file(path, "exercises.py", HINTS), part)
    print(f"{token} {bool(done)}")


def grade_apart(part, path):
    """Grade a file in a child, and print what it prints. Returns whether all is done."""
    code = "import sys; from lesson import grade; grade.grade_in_child(input(), *sys.argv[1:])"
    words = ["-X", "utf8", "-u", "-c", code, part, os.path.abspath(path), str(SECONDS)]
    started = time.monotonic()
    child = subprocess.Popen([sys.executable, *words], cwd=LESSON.parent, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                             errors="replace")
    token, size = secrets.token_hex(), 0
    child.stdin.write(f"{token}\n")
    child.stdin.close()
    while line := child.stdout.readline(CHARACTERS):
        size += len(line)
        if token in line or size > CHARACTERS:
            child.kill()
            break
        print(line, end="", flush=True)
    status = child.wait()
    if token in line:
        return line.endswith("True\n")
    if size > CHARACTERS:
        why = f"printed more than {CHARACTERS:,} characters"
    elif time.monotonic() - started > SECONDS:
        why = f"took longer than {SECONDS} seconds"
    elif status < 0:
        why = f"crashed with {signal.Signals(-status).name}"
    else:
        why = f"ended with exit status {status} before all was graded"
    print(f"not done: {os.path.basename(path)} {why}")
    return False


def main(argv=None):
    """Run the command line. Returns whether nothing is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson.grade", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["core", "all", "verify", *HINTS], nargs="?",
                        default="core")
    parser.add_argument("--hint", action="store_true", help="print a hint for the function")
    parser.add_argument("--file", metavar="FILE", help="grade this file instead of "
                        "my_exercises.py, or with verify of my_verifier.py")
    args = parser.parse_args(argv)
    if args.hint:
        print(HINTS.get(args.part, f"name one function: {', '.join(HINTS)}"))
        return args.part in HINTS
    if args.file and not os.path.isfile(args.file):
        raise SystemExit(f"error: --file {args.file}: there is no such file")
    blank = "verifier.py" if args.part == "verify" else "exercises.py"
    return grade_apart(args.part, args.file or copy_blank(blank))


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
