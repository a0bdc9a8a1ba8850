"""The ladder climbs, what it offers to copy is complete, the page says what was measured."""
import contextlib
import io
import os
import pathlib
import re
import runpy
import sys

import pytest
import torch

from lesson import ladder

ROOT = pathlib.Path(__file__).parents[1]
LESSON = ROOT / "lesson"
LADDER = (LESSON / "ladder.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The ladder's code with half of the steps, prompts and layers."""
    code = LADDER
    for old, new in (("STEPS = 30", "STEPS = 15"), ("10, 20, 30  #", "10, 15  #"),
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
    return run(small, "4 5d 7 --try --seeds 2")


def rewards_in(lines, title=r"(\w+)\. "):
    """{rung: (mean, standard error)} of the ladder's lines, as they are written."""
    rewards = {}
    for line in lines:
        match = re.match(title + r".*\| ([\d.]+) (?:±|\+-) ([\d.]+)( |$)", line)
        if match:
            rewards[match[1]] = match[2], match[3]
    return rewards


def test_bad_completions_spoil_four_updates_but_not_with_ratio_and_clip(lines):
    rungs, tries = rewards_in(lines), rewards_in(lines, r"4 try: (\w+)")
    four, clipped, weighted = (float(rungs[rung][0]) for rung in ("4", "5b", "7"))
    good, bad = float(tries["good"][0]), float(tries["bad"][0])
    assert bad < four < min(good, clipped, weighted)


def test_rung_7_is_compared_with_5b_and_shows_how_w_grows(lines):
    assert re.match(r"7 minus 5b, paired by seed: [+-]\d\.\d{3} ± \d\.\d{3}\b", lines[-1])
    w = [float(x) for x in re.findall(r"(\d\.\d\d) in step", lines[-2])]
    assert len(w) == 4 and w == sorted(w)
    assert 1 <= w[0] < 1.15 and 1.3 < w[-1] <= 1.4


def test_rung_5d_is_5b_and_its_kl_grows_as_the_entropy_falls(lines):
    assert rewards_in(lines)["5d"] == rewards_in(lines)["5b"]
    at = next(i for i, line in enumerate(lines) if line.startswith("5d. "))
    entropy, kl = ([float(x) for x in re.findall(r"([\d.]+) in step", line)]
                   for line in lines[at + 1:at + 3])
    assert 1.9 < entropy[0] < 2.08 and entropy[-1] < 1 and kl[0] == 0 and kl[-1] > 1


def test_k1_and_k3_have_the_kl_as_their_mean_and_k2_has_not():
    """Over all eight tokens that may follow a prompt, weighted by their probability."""
    torch.manual_seed(0)
    model, reference = ladder.new_model(), ladder.new_model()
    for p in reference.parameters():
        p.data *= 6.0
    pi, ref = (m(input_ids=torch.tensor([[3]])).logits[0, -1].softmax(-1).double()
               for m in (model, reference))
    mean = torch.zeros(5).double()
    for token in range(8):
        values = ladder.measure(model, reference, torch.tensor([[3, token]]),
                                torch.tensor([[False, True]]))
        mean += pi[token] * torch.tensor(values).double()
    entropy, kl, k1, k2, k3 = mean.tolist()
    assert entropy == pytest.approx(-(pi * pi.log()).sum().item(), abs=1e-5)
    expected = (pi * (pi / ref).log()).sum().item()
    assert [kl, k1, k3] == pytest.approx([expected] * 3, abs=1e-5)
    assert abs(k2 - expected) > 0.01


def test_the_table_of_the_clip_is_right():
    answer = LADDER.split("The answer to rung 5a")[1]
    table = re.findall(r"^# \| A ([<>]) 0 \| (\w+) \| (\w+) \| (\w+) \|$", answer, re.M)
    assert len(table) == 2
    for sign, *cells in table:
        for r, cell in zip((0.5, 0.9, 1.5), cells):
            logps = torch.tensor(r).log().requires_grad_()
            ladder.clipped_ratio(logps, torch.tensor(0.0), 1.0 if sign == ">" else -1.0).backward()
            assert (cell == "yes") == (logps.grad != 0), (sign, r)


def test_every_try_that_a_rung_names_is_there():
    named = set(re.findall(r"lesson\.ladder (\w+) --try", LADDER))
    assert named == set(re.findall(r'\("(\w+) try: ', LADDER))


def test_the_cells_to_copy_need_only_grpo_sg_and_learn_as_rung_7(
        small, lines, tmp_path, monkeypatch):
    first_two, rest = small.read_text(encoding="utf-8").split("# %% [markdown]\n# ## The loop")
    last = rest[rest.index("TEMPERATURE = "):rest.index("# %% [markdown]\n# ## The rungs as")]
    (tmp_path / "grpo_sg.py").write_text((ROOT / "grpo_sg.py").read_text())
    (tmp_path / "copied.py").write_text(first_two + last)
    monkeypatch.chdir(tmp_path)
    # Other tests may have left a folder with another grpo_sg.py.
    others = [path for path in sys.path if not os.path.exists(os.path.join(path, "grpo_sg.py"))]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *others])
    for name in ("grpo_sg", "tasks", "support"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    rewards = rewards_in(run("copied.py", "8 --seeds 2"))
    assert sys.modules["grpo_sg"].__file__ == str(tmp_path / "grpo_sg.py")
    assert rewards == {"8": rewards_in(lines)["7"]}


def test_every_rung_has_its_name():
    assert re.findall(r'climb(?:_and_measure)?\("(\w+)\. ', LADDER) == ladder.NAMES
    assert ladder.curves == {}  # an import runs none


@pytest.mark.parametrize("arguments, message", [
    ("5", "there is no rung '5': give some of 1 2 3 3b 4"),
    ("--seeds 1", "a standard error needs two seeds")])
def test_wrong_arguments_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit):
        run(LESSON / "ladder.py", arguments)
    assert message in capsys.readouterr().err


def test_ctrl_c_ends_it_with_one_line(monkeypatch):
    def interrupt(seed):
        raise KeyboardInterrupt
    monkeypatch.setattr(ladder, "RUNGS", ["1"])
    with pytest.raises(SystemExit, match="^interrupted$"):
        ladder.climb("1. REINFORCE", interrupt)


def test_runs_as_a_script_in_an_ascii_terminal(small, monkeypatch):
    """Started in the project's folder, where Python looks only into lesson/."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", write_through=True))
    monkeypatch.chdir(ROOT)
    # Other tests may have left a folder with another grpo_sg.py.
    others = [path for path in sys.path if not os.path.exists(os.path.join(path, "grpo_sg.py"))]
    monkeypatch.setattr(sys, "path", [str(LESSON), *others])
    monkeypatch.delitem(sys.modules, "grpo_sg")
    monkeypatch.setattr(sys, "argv", ["ladder.py", "1", "--seeds", "2"])
    runpy.run_path(str(small), run_name="__main__")
    said = raw.getvalue().decode()
    assert re.match(r"1\. REINFORCE: R log pi +\|[1-8 ]{15}\| 0\.\d{3} \+- 0\.\d{3}   "
                    r"ten seeds: 0\.\d{3} \+- ", said)


def test_the_ladder_says_what_it_printed():
    text = (LESSON / "results" / "ladder_10.txt").read_text(encoding="utf-8")
    head, *ten = text.splitlines()
    assert re.match(r"# python -m lesson\.ladder --try --seeds 10, commit [0-9a-f]{7}$", head)
    rungs = rewards_in(ten)
    assert list(rungs) == ladder.NAMES and rungs["5d"] == rungs["5b"] and rungs["8"] == rungs["7"]
    mean = {rung: float(value) for rung, (value, _) in rungs.items()}
    assert max(mean["3b"], mean["4"]) < mean["3"] < mean["4b"] < min(mean["5b"], mean["5c"])
    assert mean["4"] + 0.2 < mean["5a"] < mean["5b"] - 0.05
    # Each answer is a number of ten seeds.
    answers = re.findall(r"\b0\.\d{3}\b", LADDER.split("## 1. REINFORCE")[1])
    assert len(answers) > 10 and set(re.findall(r"\d\.\d{3}", text)).issuperset(answers)
    answers = re.findall(r"\d\.\d\d\b", LADDER.split("The answer to rung 5d")[1].split("## 6.")[0])
    assert len(answers) > 4 and set(re.findall(r"\d+\.\d\d\b", text)).issuperset(answers)
    recorded = ladder.read_recorded(LESSON / "results" / "ladder_10.txt")
    assert {title[0] for title in recorded} >= set("12345678")
    assert recorded["5b. ratio and clip: GRPO"] == " ± ".join(rungs["5b"])
