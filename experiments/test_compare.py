"""A comparison finds a planted difference and no other, pairs by seed, goes on after a kill, and counts no run with an edit."""
import json
import pathlib
import random
import subprocess
import sys

import filelock
import pytest

import grpo_sg
import tasks
from experiments import compare

ARMS = ["--a", "shaping=none", "--b", "shaping=sg"]
ROWS = pathlib.Path("runs/compare.jsonl")


# ---- Statistics ----

@pytest.mark.parametrize("p, degrees, quantile", [
    (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 9, 2.262), (0.975, 19, 2.093),
    (0.975, 59, 2.001), (0.8, 1, 1.376), (0.8, 9, 0.883), (0.8, 19, 0.861)])
def test_quantiles_of_students_t_are_those_of_the_printed_tables(p, degrees, quantile):
    assert compare.t_quantile(degrees, p) == pytest.approx(quantile, abs=6e-4)


def test_an_interval_by_hand():
    assert compare.interval([1.0, 2.0, 3.0]) == pytest.approx((2, 2 - 4.303 / 3 ** 0.5, 4.484), abs=1e-3)


@pytest.mark.parametrize("ends, words", [
    ([0.2, 0.3, 0.2], "we can't tell: the true difference is probably between -0.110 and +0.177 (3 seeds)"),
    ([0.9, 0.1], "95% CI [-1.000, +1.000]\n"), ([0.2, 0.2], "A and B are equal for each of 2 seeds"),
    ([0.3, 0.31], "B is better: the true difference is probably between +0.041 and +0.169 (2 seeds)"),
    ([0.1, 0.11], "B is worse: the true difference is probably between -0.159 and -0.031 (2 seeds)")])
def test_the_result_says_what_its_interval_means_and_no_impossible_difference(ends, words):
    a, b = ([{"end": end, "reward": 1.0} for end in values] for values in ([0.2] * len(ends), ends))
    assert words in "\n".join(compare.compare_arms(a, b, "samples"))


# ---- Comparisons of runs that are not made ----

class FakeRuns:
    """Take the place of training. Seeds differ much, so only pairs show the gain of B."""
    def __init__(self):
        self.commands, self.gain, self.during = [], 0.0, int  # during: a function that a run calls

    def make(self, words, stdout, stderr):
        self.commands.append(" ".join(words[2:-1] or ["resume"]))
        cfg = grpo_sg.read_settings(words[2:])
        checkpoint = pathlib.Path(cfg.out, "checkpoint-1")
        checkpoint.mkdir(parents=True, exist_ok=True)
        end = random.Random(cfg.seed).uniform(0.2, 0.8) + self.gain * (cfg.shaping == "sg")
        end += random.Random(f"{cfg.seed} {cfg.shaping} {cfg.lr}").uniform(-0.01, 0.01)
        rows = [{"split": "test", "eval/avg@4": 0.9}, {"reward": 2 * end},  # before training
                {"split": "test", "eval/avg@4": end}]
        pathlib.Path(cfg.out, "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for folder in (cfg.out, checkpoint):
            grpo_sg.write_settings(folder, cfg)
        print("a line\nerror: the last one", file=stdout)
        return self.during()


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "call", (fake := FakeRuns()).make)
    return fake


@pytest.fixture
def say(capsys):  # a function that compares, and returns what is printed
    return lambda *argv: (compare.main([*argv]), capsys.readouterr().out)[1]


def test_a_planted_difference_is_found_and_no_other(runs, say):
    text = say(*ARMS, "--seeds", "8")
    assert "accuracy of samples" in text and "we can't tell: the true difference is probably between -0.0" in text
    runs.gain = 0.05
    assert "B is better: the true difference is probably between +0.0" in say(*ARMS, "--rows", "other.jsonl")
    text = say("--a", "shaping=sg", "--b", "shaping=none", "--rows", "other.jsonl")
    assert "B is worse: the true difference is probably between -0.0" in text
    assert len(runs.commands) == 2 * 16  # the last comparison had the rows of the one before


def test_arms_are_compared_at_equal_rates_with_the_same_seeds(runs, say):
    text = say(*ARMS, "--lr", "4e-5", "1e-5", "--seeds", "2")
    assert runs.commands == [f"--shaping {arm} --lr={lr} --seed={seed}"
                             for seed in (0, 1) for lr in ("1e-05", "4e-05") for arm in ("none", "sg")]
    assert text.index("lr 1e-05:") < text.index("lr 4e-05:") and text.count("B minus A") == 4
    values = [f"{row['end']:.3f}" for row in compare.read_rows(ROWS)]
    for i, lr in enumerate(("1e-05", "4e-05")):
        a, b, c, d = values[2 * i], values[2 * i + 1], values[2 * i + 4], values[2 * i + 5]
        assert f"    A: {a} {c}\n    B: {b} {d}\n" in text.partition(f"lr {lr}:")[2]
    text = say("--a", "shaping=none", "lr=1e-5", "--b", "shaping=none", "lr=2e-5", "--seeds", "2")
    assert "lr 1e-05 and 2e-05:" in text and text.count("B minus A") == 2


def test_a_setting_may_be_a_list(runs, say):
    for arm in (["people=3", "4"], ["people=3 4"]):
        say("--a", "shaping=none", "--b", *arm, "shaping=sg", "--steps=5", "--seeds", "2", "--rows", f"{len(arm)}")
    assert runs.commands[1] == "--steps=5 --people 3 4 --shaping sg --seed=0" == runs.commands[5]


def test_a_half_written_row_is_replaced_and_its_run_made_again(runs, say):
    before = say(*ARMS, "--seeds", "4").splitlines()
    text = ROWS.read_text()
    ROWS.write_text(text[:text.index('"seed": 2') + 20])  # killed while it wrote the fifth row
    after = say(*ARMS, "--seeds", "4").splitlines()
    assert len(runs.commands) == 8 + 4 and after[-7:] == before[-7:] and ROWS.read_text() == text
    assert not [*pathlib.Path().glob("runs/compare/*/checkpoint*")]  # the disk of whoever compares large models


@pytest.mark.parametrize("name", ["my_task.py", "my_verifier.py", "my_package/data.py", "model/weights", "my.jsonl"])
def test_a_run_during_which_a_file_changes_does_not_count(name, runs, say, monkeypatch):
    """Neither at once, nor after the edit is undone. With the edit, all runs are made anew."""
    for folder in ("my_package", "model"):
        pathlib.Path(folder).mkdir()
    for path in ("my_verifier.py", "my_package/data.py", "model/weights", "my.jsonl", "unused.py"):
        pathlib.Path(path).write_text("n = 1")
    pathlib.Path("my_task.py").write_text("import my_verifier\nfrom my_package import data\ndef make_task(cfg): 0")
    path, before = pathlib.Path(name), pathlib.Path(name).read_text()
    monkeypatch.setattr(sys, "path", [*sys.path])

    def compare_anew():  # as in a process of its own, in which nothing is imported yet
        tasks.run_file.cache_clear()
        for module in ("my_task", "my_verifier", "my_package", "my_package.data"):
            sys.modules.pop(module, None)
        return say("--task", "my_task.py", "--model=model", "--data=my.jsonl", *ARMS, "--seeds", "2")

    def edit():
        if len(runs.commands) == 2:
            path.write_text(f"{before}\n")
    runs.during = edit
    pytest.raises(SystemExit, compare_anew).match("^error: .* has changed during this run, so .*: start again$")
    path.write_text(before)
    pathlib.Path("unused.py").write_text("n = 2")
    compare_anew()
    assert len(runs.commands) == 2 + 3 and runs.commands[2] == runs.commands[1] != "resume"
    path.write_text(f"{before}\n")
    compare_anew()
    assert len(runs.commands) == 2 + 3 + 4


def test_a_run_that_fails_is_one_line_and_goes_on_at_its_checkpoint(runs, say):
    runs.during = [0, 0, 1, 0, 0].pop  # the status of each run, from the last to the first
    with pytest.raises(SystemExit, match="^error: a run ended with status 1: the last one .python .* log: runs.*log.; start again to go on$"):
        say(*ARMS, "--seeds", "2")
    say(*ARMS, "--seeds", "2")
    assert runs.commands[2:4] == ["--shaping none --seed=1", "resume"] and len(runs.commands) == 5


def test_without_samples_the_accuracy_is_that_of_greedy_answers(runs, say, monkeypatch):
    monkeypatch.setattr(compare, "read_run", lambda folder: {"lr": 1.0, "end": 0.5, "reward": 1.0})
    text = say(*ARMS, "--eval_samples=0", "--seeds", "2")
    assert "accuracy of greedy answers" in text and "A and B are equal for each of 2 seeds" in text


@pytest.mark.parametrize("flags, message", [
    ("--a shaping=none --b shaping=none", "--a and --b are equal"),
    ("--a shaping=sg --b high=1.4", "--a and --b are equal"),  # the default
    ("--a shaping=none --b shaping=sg --seeds 1", "--seeds must be 2 or more, not 1"),
    ("--a shaping=none --b shaping=sg eval_samples=0", "--eval_samples must be the same for"),
    ("--a shaping=none --b seed=3", "--seed: compare sets it"),
    ("--a shaping=none --b shaping=sg --eval-only", "--eval_only: compare sets it"),
    ("--a shaping=none --b lr=1e-5 --lr 2e-5", "--lr: compare sets it"),
    ("--a shaping --b shaping=sg", "unrecognized arguments: shaping"),
    ("--a shaping=none --b shapping=sg", "shapping"),
    ("--a shaping=none --b shaping=sg --model=model", "model/settings.json"),
    ("--a shaping=none --b shaping=sg --task none.py", "there is no such file")])
def test_mistakes_are_one_line_before_anything_runs(flags, message, runs, capsys):
    pathlib.Path("model").mkdir()
    pathlib.Path("model/settings.json").write_text("[]")
    status = pytest.raises(SystemExit, compare.main, flags.split()).value.code
    *_, line = (capsys.readouterr().err if status == 2 else status).splitlines()
    assert message in line and not runs.commands


# ---- Real runs ----

def test_real_runs_are_stopped_continued_and_compared(tmp_path, monkeypatch, say):
    def train(words, **_):  # in this process
        runs.append(words[2])
        grpo_sg.main(words[2:])
        if len(runs) == 1:
            raise KeyboardInterrupt
    runs = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "call", train)
    flags = "--steps 2 --eval_every 1 --prompts 2 --updates 1 --eval_problems 5 --train_problems=50 --seeds 2"
    flags = ["--task=kk", *flags.split(), "--a", "shaping=none", "--b", "shaping=ar", "high=1.2"]
    pytest.raises(SystemExit, say, *flags).match("stopped; the same command continues")
    assert "lr 0.0002:\n  accuracy of samples" in say(*flags)
    assert ["--resume" in word for word in runs] == [False, True, False, False, False]
    a, b, *_ = compare.read_rows(ROWS)
    assert "--shaping ar --high 1.2 --seed=0" in b["command"] and b["arm"] == "shaping=ar high=1.2"
    assert -3 <= a["reward"] <= 3 and a["lr"] == 2e-4 and 0 <= a["end"] <= 1


@pytest.mark.parametrize("name", ["checkpoint-3", "other"])
def test_a_folder_that_a_run_uses_is_neither_removed_nor_resumed(name, tmp_path):
    (folder := tmp_path / "runs" / "1" / name).mkdir(parents=True)
    with filelock.FileLock(folder.parent / "lock"), pytest.raises(SystemExit, match="^error: another process is"):
        compare.make_run(["grpo_sg.py"], folder.parent, None)
    assert folder.exists()
