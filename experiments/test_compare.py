"""A comparison finds a planted difference and no other, pairs by seed, and continues after a kill."""
import json
import os
import pathlib
import random
import signal
import subprocess

import pytest

import grpo_sg
from experiments import compare

ARMS = ["--a", "shaping=none", "--b", "shaping=sg"]
ROWS = pathlib.Path("runs/compare.jsonl")


class FakeRuns:
    """Take the place of training. Seeds differ much, so only pairs show the gain of B."""
    def __init__(self):
        self.commands, self.gain, self.best_lr = [], 0.0, {"none": 2e-5, "sg": 2e-5}

    def make(self, words, folder):
        self.commands.append(" ".join(words))
        settings = dict(word.removeprefix("--").split("=") for word in words[1:] if "=" in word)
        lr, shaping = float(settings.get("lr", 2e-5)), settings["shaping"]
        end = random.Random(settings["seed"]).uniform(0.2, 0.8) + self.gain * (shaping == "sg")
        end += random.Random(" ".join(words)).uniform(-0.01, 0.01)
        rows = [{"reward": 2 * end}, {"split": "test", "eval/avg@4": end}]
        if settings.get("steps") != "10":  # such a run is too short for a validation
            rows.append({"split": "valid", "eval/accuracy": 0.5 - 1e3 * abs(lr - self.best_lr[shaping])})
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "settings.json").write_text(json.dumps({"eval_samples": 4, "lr": lr}))


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
    assert "8 seeds cannot tell: the true difference is probably between -0.0" in text and "warning" not in text
    runs.gain = 0.05
    assert "B is better: the true difference is probably 0.04" in say(*ARMS, "--rows", "other.jsonl")
    text = say("--a", "shaping=sg", "--b", "shaping=none", "--rows", "other.jsonl")
    assert "B is worse: the true difference is probably -0.05" in text
    assert len(runs.commands) == 2 * 16  # the last comparison had the rows of the one before
    assert compare.interpret(0, 0, 4, True).startswith("A and B are equal for each of 4 seeds")
    assert "so the interval has no width" in compare.interpret(0.25, 0.25, 4, False)


def test_arms_are_tuned_alike_and_compared_at_equal_rates_first(runs, say):
    flags = [*ARMS, "--lr", "1e-5", "2e-5", "4e-5", "--tune_seeds", "2", "--seeds", "6"]
    text = say(*flags)
    seeds = [[command.split("--seed=")[1] for command in runs.commands if arm in command]
             for arm in ("shaping=none", "shaping=sg")]
    assert seeds == 2 * [["1000"] * 3 + ["1001"] * 3 + [*"012345"]]
    assert "warning" not in text and "at own rates" not in text  # both chose 2e-5
    runs.best_lr["sg"] = 4e-5
    text = say(*flags, "--rows", "other.jsonl")
    places = [text.index(words) for words in (
        "warning: B's rate is at an end of --lr", "warning: the own rates differ",
        "at equal rates, lr 2e-05", "at equal rates, lr 4e-05", "at own rates, A 2e-05, B 4e-05")]
    assert places == sorted(places) and "A's rate is at an end" not in text


def test_a_comparison_continues_after_a_kill(runs, say):
    before = say(*ARMS, "--seeds", "4").splitlines()
    text = ROWS.read_text()
    ROWS.write_text(text[:text.index("seed=2")])  # killed while it wrote the fifth row
    after = say(*ARMS, "--seeds", "4").splitlines()
    assert len(runs.commands) == 8 + 4 and after[-9:] == before[-9:]
    assert after[0] == "4 of 8 runs to make; results: runs/compare.jsonl"


def test_rows_of_another_task_model_or_data_are_not_used(runs, say):
    pathlib.Path("model").mkdir()
    paths = [pathlib.Path(name) for name in ("my_task.py", "model/weights", "my.jsonl")]
    for n, path in enumerate([*paths, *paths], 1):
        path.write_text(f"def make_task(cfg): return {n}")
        say("--task", "my_task.py", "--model=model", "--data=my.jsonl", *ARMS, "--seeds", "2")
        assert len(runs.commands) == n * 4


def test_show_runs_nothing_obeys_its_flags_and_never_mixes_settings(runs, say):
    for people, rates in (("2", ["1e-5", "2e-5"]), ("3", ["1e-5"])):
        text = say(*ARMS, f"--people={people}", "--lr", *rates, "--seeds", "4")
    both = say(*ARMS, "--show")
    assert both.count("at equal rates") == 3 and both.count("rows of: ") == 2
    three = say(*ARMS, "--people=3", "--show")
    assert three.startswith("rows of: grpo_sg.py --people=3; code ")
    assert text.endswith(three.partition("\n")[2])
    assert "warning: 2 seeds say little" in say(*ARMS, "--people=3", "--seeds", "2", "--show")
    assert "lr 1e-05" not in say(*ARMS, "--lr", "2e-5", "--show")
    assert ("A 0.370, B 0.464, B minus A +0.094, 95% CI [-0.041, +0.230], MDE 0.212\n    A: 0.645 0.172 "
            ) in say(*ARMS, "--show", "--rows", str(compare.RESULTS / "real.jsonl"))
    assert "has no rows of A or B" in say("--a", "beta=0.1", "--b", "beta=0.2", "--show")
    assert len(runs.commands) == 24


def test_a_setting_may_be_a_list(runs, say):
    for arm in (["people=3", "4"], ["people=3 4"]):
        say("--a", "shaping=none", "--b", *arm, "shaping=sg", "--steps=5", "--seeds", "2", "--rows", f"{len(arm)}")
    assert runs.commands[1].endswith("--steps=5 --people 3 4 --shaping=sg --seed=0") and runs.commands[:4] == runs.commands[4:]
    shown = say("--a", "shaping=none", "--b", "people=3", "4", "shaping=sg", "--show", "--rows", "1")
    assert shown.count("rows of: ") == 1 and "B minus A" in shown


def test_a_missing_run_or_outcome_is_left_out(runs, say):
    arms = ["--a", "shaping=none", "steps=10", "--b", "shaping=none", "steps=60"]
    say(*arms, "--seeds", "3")
    rows = compare.read_rows(ROWS)
    ROWS.unlink()
    compare.append_rows(ROWS, rows[:4] + rows[5:])  # without A's run of seed 2
    a, b, c, d = (f"{row['end']:.3f}" for row in rows[:4])
    text = say(*arms, "--show")
    assert "left out: seed 2, which has no run of A\n" in text and "mean over validations" not in text
    assert f"    A: {a} {c}\n    B: {b} {d}\n" in text


@pytest.mark.parametrize("flags, message", [
    ("--a shaping=none --b shaping=none", "--a and --b are equal"),
    ("--a shaping=none --b shaping=sg --seeds 0", "--seeds must be 1 or more, not 0"),
    ("--a shaping=none --b seed=3", "--seed: compare sets it"),
    ("--a shaping --b shaping=sg", "write a setting as NAME=VALUE"),
    ("--a shaping=none --b shaping=sg --tune_seeds 3", "--tune_seeds needs two rates"),
    ("--a shaping=none --b shapping=sg", "there is no setting --shapping"),
    ("--a shaping=none --b shaping=sg --task none.py", "there is no such file")])
def test_mistakes_are_one_line_before_anything_runs(flags, message, runs, capsys):
    pytest.raises(SystemExit, compare.main, flags.split())
    assert message in capsys.readouterr().err and not runs.commands


@pytest.fixture
def default_signals():
    """Signals as in a terminal: under nohup, SIGHUP is ignored."""
    numbers = (signal.SIGTERM, grpo_sg.SIGHUP)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, handler in zip(numbers, before):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [grpo_sg.SIGHUP, signal.SIGTERM])
def test_real_runs_are_stopped_continued_and_compared(number, tmp_path, monkeypatch, say, default_signals):
    class Process:  # it trains in this process, and a signal ends the first wait
        def __init__(self, words, **_):
            runs.append(list(map(str, words[2:])))

        def wait(self):
            grpo_sg.main(runs[-1])
            if len(runs) == 1:
                os.kill(os.getpid(), number)

        def terminate(self):
            self.wait = int  # the run has saved
    runs = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(compare, "name_commit", str)
    flags = "--task kk --steps 2 --eval_every 1 --prompts 2 --updates 1 --eval_problems 5 --seeds 1"
    flags = [*flags.split(), "--train_problems=50", "--a", "shaping=none", "--b", "shaping=ar", "high=1.2"]
    pytest.raises(SystemExit, say, *flags).match("stopped; the same command continues")
    assert "at equal rates, lr 0.0002:\n  fewer than two seeds" in say(*flags)
    assert ["--resume" in words for words in runs] == [False, True, False]
    a, b = compare.read_rows(ROWS)
    assert "--shaping=ar --high=1.2 --seed=0" in b["command"] and b["arm"] == "shaping=ar high=1.2"
    assert -3 <= a["reward"] <= 3 and a["lr"] == 2e-4 and 0 <= a["mean"] <= 1 and a["date"]
    assert not [*tmp_path.glob("runs/compare/*/checkpoint*")]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_folder_that_a_run_uses_is_neither_removed_nor_resumed(checkpoint, tmp_path):
    (path := tmp_path / "my_task.py").write_text("raise SystemExit('a second run')")
    folder = tmp_path / "runs" / "1"
    (folder / ("checkpoint-3" if checkpoint else "other")).mkdir(parents=True)
    with grpo_sg.lock_folder(folder), pytest.raises(SystemExit, match=f"^error: another process is using {folder}"):
        compare.make_run([str(path)], folder)
    assert len([*folder.iterdir()]) == 2
    with pytest.raises(SystemExit, match="a second run"):  # its owner has gone
        compare.make_run([str(path)], folder)


def test_a_run_that_fails_says_why(tmp_path):
    (path := tmp_path / "my_task.py").write_text("raise SystemExit('error: no problems')")
    with pytest.raises(SystemExit, match="error: no problems\nerror: this run failed"):
        compare.make_run([str(path)], tmp_path / "runs" / "1")
