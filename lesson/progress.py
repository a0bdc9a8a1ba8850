"""How far are the exercises? Runs the lesson's tests on a module's functions."""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def read_sections():
    """{function: the names of its tests}, by the headings of test_grpo_sg.py's first part."""
    text = (ROOT / "test_grpo_sg.py").read_text(encoding="utf-8")
    lesson = text.split("\nLESSON = ")[0]
    sections = {}
    for part in lesson.split("\n# ---- ")[1:]:
        name = re.match(r"\d+\. (\w+): ", part)[1]
        sections[name] = re.findall(r"^def (test_\w+)", part, re.M)
    return sections


def run_tests(module):
    """What pytest prints of the lesson's tests on the functions of the module."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider",
               "test_grpo_sg.py"]
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    # COLUMNS: so that pytest does not cut off what a test says.
    env = {**os.environ, "OF": module, "PYTHONPATH": path, "COLUMNS": "500"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr


def judge(output):
    """(names of the functions of which all tests passed, the others: [name, tests that passed,
    tests, the first failed one and what it says])."""
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


def show(module):
    """Print what is done and what comes next."""
    print("running the tests: some seconds", flush=True)
    output = run_tests(module)
    done, others = judge(output)
    if not done and not others:
        sys.exit(f"the tests did not run:\n{output}")
    of = len(done) + len(others)
    names = f": {', '.join(done)}" if done else ""
    print(f"{len(done)} of {of} done{names}")
    if not others:
        print("That is the whole method. What is around it is in grpo_sg.py, from section 4 on.")
        return
    name, passed, tests, first = others[0]
    print(f"next: {name}, of whose tests {passed} of {tests} pass; the first that does not:")
    print(f"    {first}")
    for name, passed, tests, _ in others[1:]:
        print(f"then: {name}, {passed} of {tests}")
