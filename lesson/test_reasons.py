"""Right reasons are told from faults in cases made by hand, and the command grades the tests of a run."""
import json

import pytest

import tasks
from lesson import reasons

SOLUTION = "<think> Ada, so: NKK KNK NKN NNN. Alice, now: NKK NKN. Amir, hence: NKN. </think> <answer> ... </answer>"
SHORT = "<think> Ada, so: NKK NKN. Alice, now: NKN. Amir, hence: NKN. </think> <answer> ... </answer>"  # two statements leave one


@pytest.mark.parametrize("fault, thoughts, solution", [
    (None, "Ada, so: NKK KNK NKN NNN. Alice, now: NKK NKN. Amir, hence: NKN.", SOLUTION),
    (None, "Ada, also: NNN NKN KNK NKK. Alice, so: NKN NKK. Amir, so: NKN.", SOLUTION),  # another order
    (None, "Ada: NKK KNK NKN NNN. Alice: NKK NKN. Amir: NKN.", SOLUTION),  # no filler words
    (None, "Ada, so: NKK NKN. Alice, now: NKN.", SHORT),
    (None, "Ada, so: NKK NKN. Alice, now: NKN. Amir, hence: NKN.", SHORT),
    ("step missing", "Ada, so: NKK KNK NKN NNN. Alice, now: NKK NKN.", SOLUTION),
    ("step missing", "Ada, so: NKK NKN.", SHORT),
    ("step missing", "", SOLUTION),
    ("other text", "Ada, so: NKK KNK NKN NNN. Amir, hence: NKN.", SOLUTION),  # the second step left out
    ("other text", "Alice, now: NKK KNK NKN NNN. Ada, so: NKK NKN. Amir, hence: NKN.", SOLUTION),  # names in another order
    ("other text", "Ada, so: NKK KNK NKN NNN. Ada, so: NKK KNK NKN NNN. Alice, now: NKK NKN. Amir, hence: NKN.", SOLUTION),
    ("other text", "Ada, so: NKK NKN. Alice, now: NKN. Amir, hence: NKN. Amir, hence: NKN.", SHORT),
    ("other text", "Ada, so: NKK NKN. Alice, now: NKN. Amir lies.", SHORT),
    ("other text", "Ada, so: NKK KNK NKN NNN NNN. Alice, now: NKK NKN. Amir, hence: NKN.", SOLUTION),  # one of them twice
    ("combination lost", "Ada, so: NKK KNK NKN. Alice, now: NKK NKN. Amir, hence: NKN.", SOLUTION),
    ("one too many", "Ada, so: NKK KNK NKN NNN. Alice, now: NKK NKN KKK. Amir, hence: NKN.", SOLUTION),
    ("both", "Ada, so: NKK KNK NKN NNN. Alice, now: NKK NKN. Amir, hence: NKK.", SOLUTION),
    ("other text", "Ada, so: NKK NKN. Alice, now: NK", SHORT)])  # truncated
def test_the_first_fault_of_steps(fault, thoughts, solution):
    for answer in ("Ada is a knave", "a wrong one"):  # is graded elsewhere
        assert reasons.find_fault(f"<think> {thoughts} </think> <answer> {answer} </answer>", solution) == fault
    assert reasons.find_fault(thoughts.replace(" ", "\n"), solution) == fault


PUZZLES = tasks.kk_split("test", 4, [2, 3], 0, brief=True)
SETTINGS = {"task": "kk", "data": "synthetic", "brief": True, "eval_problems": 4, "people": [2, 3], "seed": 0}
RIGHT, SKIPPED = ([getattr(puzzle, name) for puzzle in PUZZLES] for name in ("solution", "shortcut"))
WRONG_STEP = [text.replace(": ", ": KKK ", 1) for text in RIGHT]


def write_run(folder, tests, settings=SETTINGS, tail=""):
    """Write what a run leaves, {step: [(completion, solved) of each puzzle]}, and return its folder."""
    lines = [json.dumps({"step": step, "split": split, "question": puzzle.question, "completion": text, "solved": solved})
             for step, test in tests.items() for split in ("train", "test")
             for puzzle, (text, solved) in zip(PUZZLES, test)]
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n" + tail)
    (folder / "settings.json").write_text(json.dumps(settings))
    return folder


def run(folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["reasons", str(folder)])
    reasons.main()
    return capsys.readouterr().out


FIRST = list(zip(SKIPPED, (False, True, True, False)))  # in the second puzzle two statements leave one answer
LAST = [(RIGHT[0], True), (RIGHT[1], True), (WRONG_STEP[2], True), (RIGHT[3], False)]


def test_the_shares_of_the_first_and_the_last_test(tmp_path, monkeypatch, capsys):
    printed = run(write_run(tmp_path, {0: FIRST, 20: FIRST, 60: LAST}, tail='{"step": 6'), monkeypatch, capsys)
    shares = [line.rsplit(maxsplit=2) for line in printed.splitlines()[1:5]]
    assert shares == [["right", "50.0%", "75.0%"], ["right, and the steps prove it", "25.0%", "50.0%"],
                      ["right by a guess among what is left", "25.0%", "0.0%"], ["right after a wrong step", "0.0%", "25.0%"]]
    marked = SKIPPED[2].replace("</think>", ">>> </think>")
    assert f"{PUZZLES[2].question} {marked}" in " ".join(printed.split())
    name, words = reasons.STEP.findall(reasons.read_thoughts(RIGHT[2]))[-1]
    assert printed.splitlines()[-1] == f"step missing: at >>> should stand {name}: {words}."


def test_a_run_that_was_interrupted_has_one_test(tmp_path, monkeypatch, capsys):
    printed = run(write_run(tmp_path, {0: FIRST}), monkeypatch, capsys)
    assert "right                                     50.0%\n" in printed and "no last test" in printed


@pytest.mark.parametrize("change, tests, tail, words", [
    ({"task": "math"}, {0: FIRST}, "", "isn't a run of a tiny model on generated puzzles"),
    ({"data": "published"}, {0: FIRST}, "", "isn't a run"), ({"brief": False}, {0: FIRST}, "", "isn't a run"),
    ({"seed": 1}, {0: FIRST}, "", "line 5: the run's settings don't make this puzzle"),
    ({}, {0: [("<think> Ada lies. </think> <answer> ... </answer>", True)] * 4}, "", "has no test with a step"),
    ({}, {}, "", "line 1, is damaged"), ({}, {0: FIRST}, '{"step"\n{"step"', "line 9, is damaged")])
def test_what_cannot_be_graded_gets_one_line(change, tests, tail, words, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="error: .*" + words):
        run(write_run(tmp_path, tests, SETTINGS | change, tail), monkeypatch, capsys)


def test_a_folder_without_samples_is_named(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="nowhere is no folder of a run"):
        run(tmp_path / "nowhere", monkeypatch, capsys)
