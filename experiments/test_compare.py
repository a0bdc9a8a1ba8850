"""A comparison finds a planted difference and no other, pairs by seed, and continues after a kill."""
import json
import os
import pathlib
import random
import signal
import subprocess

import filelock
import pytest

import grpo_sg
from experiments import compare

ARMS = ["--a", "shaping=none", "--b", "shaping=sg"]
ROWS = pathlib.Path("runs/compare.jsonl")


# ---- Statistics ----

@pytest.mark.parametrize("p, degrees, quantile", [
    (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 9, 2.262), (0.975, 19, 2.093),
    (0.975, 59, 2.001), (0.8, 1, 1.376), (0.8, 9, 0.883), (0.8, 19, 0.861)])
def test_quantiles_of_students_t_are_those_of_the_printed_tables(p, degrees, quantile):
    assert compare.t_quantile(p, degrees) == pytest.approx(quantile, abs=6e-4)


def test_an_interval_by_hand():
    assert compare.interval([1.0, 2.0, 3.0]) == pytest.approx((2, 2 - 4.303 / 3 ** 0.5, 4.484), abs=1e-3)


# ---- Comparisons of runs that are not made ----

class FakeRuns:
    """Take the place of training. Seeds differ much, so only pairs show the gain of B."""
    def __init__(self):
        self.commands, self.gain = [], 0.0

    def make(self, words, folder):
        self.commands.append(" ".join(words))
        settings = dict(word.removeprefix("--").split("=") for word in words[1:] if "=" in word)
        end = random.Random(settings["seed"]).uniform(0.2, 0.8) + self.gain * (settings["shaping"] == "sg")
        end += random.Random(" ".join(words)).uniform(-0.01, 0.01)
        rows = [{"reward": 2 * end}, {"split": "test", "eval/avg@4": end}]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        saved = {"eval_samples": 4, "lr": float(settings.get("lr", 2e-5))}
        (folder / "settings.json").write_text(json.dumps(saved))


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "make_run", (fake := FakeRuns()).make)
    return fake


@pytest.fixture
def say(capsys):  # a function that compares, and returns what is printed
    return lambda *argv: (compare.main([*argv]), capsys.readouterr().out)[1]


def test_a_planted_difference_is_found_and_no_other(runs, say):
    text = say(*ARMS, "--seeds", "8")
    assert "8 seeds cannot tell: the true difference is probably between -0.0" in text
    runs.gain = 0.05
    assert "B is better: the true difference is probably 0.04" in say(*ARMS, "--rows", "other.jsonl")
    text = say("--a", "shaping=sg", "--b", "shaping=none", "--rows", "other.jsonl")
    assert "B is worse: the true difference is probably -0.05" in text
    assert len(runs.commands) == 2 * 16  # the last comparison had the rows of the one before
    assert compare.interpret(0, 0, 4, True).startswith("A and B are equal for each of 4 seeds")


def test_arms_are_compared_at_equal_rates_with_the_same_seeds(runs, say):
    text = say(*ARMS, "--lr", "4e-5", "1e-5", "--seeds", "2")
    assert [command.split(maxsplit=1)[1] for command in runs.commands] == [
        f"--shaping={arm} --lr={lr} --seed={seed}"
        for seed in (0, 1) for lr in ("1e-05", "4e-05") for arm in ("none", "sg")]
    assert text.index("lr 1e-05:") < text.index("lr 4e-05:") and text.count("B minus A") == 4
    values = [f"{row['end']:.3f}" for row in compare.read_rows(ROWS)]
    for i, lr in enumerate(("1e-05", "4e-05")):
        a, b, c, d = values[2 * i], values[2 * i + 1], values[2 * i + 4], values[2 * i + 5]
        assert f"    A: {a} {c}\n    B: {b} {d}\n" in text.partition(f"lr {lr}:")[2]
    text = say("--a", "shaping=none", "lr=1e-5", "--b", "shaping=none", "lr=2e-5", "--seeds", "2")
    assert "lr 1e-05 and 2e-05:" in text and text.count("B minus A") == 2


def test_a_comparison_continues_after_a_kill(runs, say):
    before = say(*ARMS, "--seeds", "4").splitlines()
    text = ROWS.read_text()
    ROWS.write_text(text[:text.index("seed=2")])  # killed while it wrote the fifth row
    after = say(*ARMS, "--seeds", "4").splitlines()
    assert len(runs.commands) == 8 + 4 and after[-7:] == before[-7:]
    assert after[0] == "4 of 8 runs to make; results: runs/compare.jsonl"


def test_rows_of_another_task_model_or_data_are_not_used(runs, say):
    pathlib.Path("model").mkdir()
    paths = [pathlib.Path(name) for name in ("my_task.py", "model/weights", "my.jsonl")]
    for n, path in enumerate([*paths, *paths], 1):
        path.write_text(f"def make_task(cfg): return {n}")
        say("--task", "my_task.py", "--model=model", "--data=my.jsonl", *ARMS, "--seeds", "2")
        assert len(runs.commands) == n * 4


def test_a_setting_may_be_a_list(runs, say):
    for arm in (["people=3", "4"], ["people=3 4"]):
        say("--a", "shaping=none", "--b", *arm, "shaping=sg", "--steps=5", "--seeds", "2", "--rows", f"{len(arm)}")
    assert runs.commands[1] == "grpo_sg.py --steps=5 --people 3 4 --shaping=sg --seed=0" == runs.commands[5]


@pytest.mark.parametrize("flags, message", [
    ("--a shaping=none --b shaping=none", "--a and --b are equal"),
    ("--a shaping=none --b shaping=sg --seeds 0", "--seeds must be 1 or more, not 0"),
    ("--a shaping=none --b seed=3", "--seed: compare sets it"),
    ("--a shaping=none --b shaping=sg --eval-only", "--eval_only: compare sets it"),
    ("--a shaping=none --b lr=1e-5 --lr 2e-5", "--lr: compare sets it"),
    ("--a shaping --b shaping=sg", "write a setting as NAME=VALUE"),
    ("--a shaping=none --b shapping=sg", "shapping"),
    ("--a shaping=none --b shaping=sg --task none.py", "there is no such file")])
def test_mistakes_are_one_line_before_anything_runs(flags, message, runs, capsys):
    pytest.raises(SystemExit, compare.main, flags.split())
    assert message in capsys.readouterr().err and not runs.commands


# ---- Real runs ----

@pytest.fixture
def default_signals():  # under nohup, SIGHUP is ignored
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_real_runs_are_stopped_continued_and_compared(number, tmp_path, monkeypatch, say, default_signals):
    class Process:  # it trains in this process, and a signal ends the first wait
        def __init__(self, words, **_):
            runs.append(list(map(str, words[2:])))

        def wait(self):
            grpo_sg.main(runs[-1])
            if len(runs) == 1:
                os.kill(os.getpid(), number)

        def terminate(self):
            self.wait = int  # the run has a checkpoint
    runs = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(compare, "name_commit", str)
    flags = "--task kk --steps 2 --eval_every 1 --prompts 2 --updates 1 --eval_problems 5 --seeds 1"
    flags = [*flags.split(), "--train_problems=50", "--a", "shaping=none", "--b", "shaping=ar", "high=1.2"]
    pytest.raises(SystemExit, say, *flags).match("stopped; the same command continues")
    assert "lr 0.0002:\n  fewer than two seeds" in say(*flags)
    assert ["--resume" in words[0] for words in runs] == [False, True, False]
    a, b = compare.read_rows(ROWS)
    assert "--shaping=ar --high=1.2 --seed=0" in b["command"] and b["arm"] == "shaping=ar high=1.2"
    assert -3 <= a["reward"] <= 3 and a["lr"] == 2e-4 and 0 <= a["end"] <= 1 and a["date"]
    assert not [*tmp_path.glob("runs/compare/*/checkpoint*")]


@pytest.mark.parametrize("name", ["checkpoint-3", "other"])
def test_a_folder_that_a_run_uses_is_neither_removed_nor_resumed(name, tmp_path):
    (path := tmp_path / "my_task.py").write_text("raise SystemExit('error: no problems')")
    (folder := tmp_path / "runs" / "1" / name).mkdir(parents=True)
    with filelock.FileLock(folder.parent / "lock"), pytest.raises(SystemExit, match="^error: another process is"):
        compare.make_run([str(path)], folder.parent)
    assert folder.exists()
    with pytest.raises(SystemExit, match="error: no problems\nerror: this run failed"):  # its owner has gone
        compare.make_run([str(path)], folder.parent)
