"""The ladder climbs, what it offers to copy is complete, the page says what was measured."""
import contextlib
import io
import os
import pathlib
import re
import runpy
import sys

import pytest

from lesson import ladder

ROOT = pathlib.Path(__file__).parents[1]
LESSON = ROOT / "lesson"
LADDER = (LESSON / "ladder.py").read_text(encoding="utf-8")
TEXT = (LESSON / "README.md").read_text(encoding="utf-8")
PAGE = " ".join(TEXT.split())


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The ladder's code with half of the steps, prompts and layers."""
    code = LADDER
    for old, new in (("STEPS = 30", "STEPS = 15"), ("10, 20, 30)", "10, 15)"),
                     ("P, G = 16, 8", "P, G = 8, 8"), ("n_layer=2", "n_layer=1")):
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    path = tmp_path_factory.mktemp("small") / "ladder.py"
    path.write_text(code, encoding="utf-8")
    return path


def run(path, arguments):
    """Run it as a script. Returns the lines that it prints."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setattr(sys, "argv", ["ladder.py", *arguments.split()])
        runpy.run_path(str(path), run_name="__main__")
    return said.getvalue().splitlines()


@pytest.fixture(scope="module")
def lines(small):
    return [*run(small, "4 --try --seeds 2"), *run(small, "5b 7 --seeds 2")]


def rewards_in(lines):
    """{rung: (mean, standard error)} of the ladder's lines, as they are written."""
    found = {}
    for line in lines:
        match = re.match(r"(\w+)\. .*\| ([\d.]+) (?:±|\+-) ([\d.]+)$", line)
        if match:
            found[match[1]] = match[2], match[3]
    return found


def test_bad_completions_spoil_four_updates_but_not_with_ratio_and_clip(lines):
    ends = {line.split("|")[0].strip(): float(line.split()[-3]) for line in lines if "|" in line}
    four, good, bad, clipped, weighted = ends.values()
    assert list(ends)[1:3] == ["4 try: good completions only", "4 try: bad completions only"]
    assert bad < four < min(good, clipped, weighted)


def test_rung_7_is_compared_with_5b_and_shows_how_w_grows(lines):
    assert re.match(r"7 minus 5b, paired by seed: [+-]\d\.\d{3} ± \d\.\d{3}$", lines[-1])
    w = [float(x) for x in re.findall(r"(\d\.\d\d) in step", "\n".join(lines))]
    assert len(w) == 4 and w == sorted(w)
    assert 1 <= w[0] < 1.15 and 1.3 < w[-1] <= 1.4


def test_every_try_that_a_rung_names_is_there():
    named = set(re.findall(r"lesson\.ladder (\w+) --try", LADDER))
    assert named == set(re.findall(r'climb\("(\w+) try: ', LADDER))


def test_the_cells_to_copy_need_only_grpo_sg_and_learn_as_rung_7(
        small, lines, tmp_path, monkeypatch):
    first_two, rest = small.read_text(encoding="utf-8").split("# %% The loop")
    last = rest[rest.index("# %% 8. The same in one piece"):rest.index("# ## The rungs as a")]
    (tmp_path / "grpo_sg.py").write_text((ROOT / "grpo_sg.py").read_text())
    (tmp_path / "copied.py").write_text(first_two + last)
    monkeypatch.chdir(tmp_path)
    others = [path for path in sys.path if os.path.abspath(path) != str(ROOT)]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *others])
    for name in ("grpo_sg", "tasks", "support"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    rewards = rewards_in(run("copied.py", "--seeds 2"))
    assert sys.modules["grpo_sg"].__file__ == str(tmp_path / "grpo_sg.py")
    assert rewards == {"8": rewards_in(lines)["7"]}


def test_every_rung_has_its_name():
    assert re.findall(r'climb\("(\w+)\. ', LADDER) == ladder.NAMES
    assert ladder.curves == {}  # an import runs none


@pytest.mark.parametrize("text, seeds", [("3", range(3)), ("10-13", range(10, 14))])
def test_seeds(text, seeds):
    assert ladder.read_seeds(text) == seeds


@pytest.mark.parametrize("arguments, message", [
    ("5", "there is no rung '5': give some of 1 2 3 3b 4"),
    ("--seeds x", "invalid read_seeds value: 'x'"),
    ("--seeds 1", "a standard error needs two seeds")])
def test_wrong_arguments_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit):
        run(LESSON / "ladder.py", arguments)
    assert message in capsys.readouterr().err


def test_runs_as_a_script_in_an_ascii_terminal(small, monkeypatch):
    """Started in the project's folder, where Python looks only into lesson/."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", write_through=True))
    monkeypatch.chdir(ROOT)
    others = [path for path in sys.path if os.path.abspath(path) != str(ROOT)]
    monkeypatch.setattr(sys, "path", [str(LESSON), *others])
    monkeypatch.delitem(sys.modules, "grpo_sg")
    monkeypatch.setattr(sys, "argv", ["ladder.py", "1", "--seeds", "2"])
    runpy.run_path(str(small), run_name="__main__")
    said = raw.getvalue().decode()
    assert re.match(r"1\. REINFORCE: R log pi +\|[1-8 ]{15}\| 0\.\d{3} \+- ", said)


# ---- The page ----

def read_result(name):
    """The lines that a command printed, without the first, which says which command it was."""
    head, *lines = (LESSON / "results" / name).read_text(encoding="utf-8").splitlines()
    assert re.match(r"# python -m lesson\.\w+.*, commit [0-9a-f]{7}", head)
    return lines


def test_the_page_and_the_ladder_say_what_the_ladder_printed():
    ten, four = read_result("ladder_10.txt"), read_result("ladder_4.txt")
    others = rewards_in(four)
    assert list(rewards_in(ten)) == list(others) == ladder.NAMES
    mean, error = others["5a"]
    assert f"it ends at {mean} ± {error}" in PAGE
    # What the page says of rungs 3 to 5c, with either seeds.
    for found in (rewards_in(ten), others):
        mean = {rung: float(value) for rung, (value, _) in found.items()}
        assert max(mean["3b"], mean["4"]) < mean["3"] < mean["4b"] < min(mean["5b"], mean["5c"])
        assert mean["4"] + 0.2 < mean["5a"] < mean["5b"] - 0.05
    # Each answer in parentheses is a mean of ten seeds.
    printed = {line.split()[-3] for line in ten if "|" in line}
    answers = re.findall(r"(?<!± )\b0\.\d{3}\b", LADDER.split("# %% 1.")[1])
    assert len(answers) > 10 and printed.issuperset(answers)
