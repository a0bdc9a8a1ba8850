"""A comparison finds a planted difference and no other, pairs by seed, and continues after a kill."""
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import threading
import time

import pytest

from experiments import analysis, compare

ARMS = ["--a", "shaping=none", "--b", "shaping=sg"]
TUNED = [*ARMS, "--lr", "1e-5", "2e-5", "4e-5", "--tune_seeds", "2", "--seeds", "6"]


def write_run(folder, settings, end, mean):
    """Write what a finished run leaves in its folder, with these accuracies."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = [{"split": "test", "eval/avg@4": 0.1}, {"reward": 2 * end},
            {"split": "valid", "eval/accuracy": mean}, {"reward": 0.0},
            {"split": "test", "eval/avg@4": end}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "settings.json").write_text(json.dumps({"eval_samples": 4, **settings}))


class FakeRuns:
    """Takes the place of training. gain: what B adds to an arm's accuracy; best: each arm's best
    learning rate. Seeds differ much and the arms of a seed little, so only pairs show the gain."""
    def __init__(self):
        self.commands, self.gain, self.best = [], 0.0, {"none": 2e-5, "sg": 2e-5}
        self.end = None  # of every run, if it is set

    def make(self, words, folder):
        self.commands.append(" ".join(words))
        settings = dict(word.removeprefix("--").split("=") for word in words[1:])
        settings["seed"], shaping = int(settings["seed"]), settings["shaping"]
        settings["lr"] = float(settings.get("lr", 2e-5))
        end = random.Random(settings["seed"]).uniform(0.2, 0.8) + self.gain * (shaping == "sg")
        end += random.Random(" ".join(words)).uniform(-0.01, 0.01)
        if self.end is not None:
            end = self.end
        write_run(folder, settings, end, 0.5 - 1e3 * abs(settings["lr"] - self.best[shaping]))


@pytest.fixture
def runs(tmp_path, monkeypatch):
    fake = FakeRuns()
    monkeypatch.chdir(tmp_path)
    pathlib.Path("grpo_sg.py").touch()
    monkeypatch.setattr(compare, "make_run", fake.make)
    return fake


def print_result(argv, capsys):
    compare.main([*argv])
    return capsys.readouterr().out


def test_a_planted_difference_is_found_and_no_other(runs, capsys):
    text = print_result([*ARMS, "--seeds", "8"], capsys)
    assert "8 seeds cannot tell: the true difference is probably between -0.0" in text
    assert "warning" not in text
    runs.gain = 0.05
    text = print_result([*ARMS, "--seeds", "8", "--rows", "other.jsonl"], capsys)
    assert "B is better: the true difference is probably 0.04" in text
    text = print_result(["--a", "shaping=sg", "--b", "shaping=none", "--rows", "other.jsonl"], capsys)
    assert "B is worse: the true difference is probably -0.05" in text
    assert len(runs.commands) == 2 * 16  # the last comparison had the rows of the one before


def test_the_numbers_are_those_of_scipy(runs, capsys):
    stats = pytest.importorskip("scipy.stats")
    runs.gain = 0.02
    text = print_result([*ARMS, "--seeds", "6"], capsys)
    rows = analysis.read_rows(pathlib.Path("runs/compare.jsonl"))
    a, b = ([row["end"] for row in rows if row["arm"] == arm] for arm in ("shaping=none", "shaping=sg"))
    test = stats.ttest_rel(b, a)
    low, high = test.confidence_interval(0.95)
    error = stats.sem([y - x for x, y in zip(a, b)])
    detectable = analysis.errors_to_detect(5) * error
    assert (f"accuracy of samples, after training: A {statistics.fmean(a):.3f}, B {statistics.fmean(b):.3f}, "
            f"B minus A {statistics.fmean(b) - statistics.fmean(a):+.3f}, 95% CI [{low:+.3f}, {high:+.3f}], "
            f"MDE {detectable:.3f}") in text
    for p, degrees in ((0.975, 1), (0.975, 7), (0.8, 3), (0.8, 100)):
        assert analysis.t_quantile(p, degrees) == pytest.approx(stats.t.ppf(p, degrees), rel=1e-4)


def test_both_arms_run_the_same_tuning_and_counted_seeds_are_new(runs, capsys):
    text = print_result(TUNED, capsys)
    seeds = {arm: [command.split("--seed=")[1] for command in runs.commands if arm in command]
             for arm in ("shaping=none", "shaping=sg")}
    assert seeds["shaping=none"] == seeds["shaping=sg"] == ["1000"] * 3 + ["1001"] * 3 + list("012345")
    assert "warning" not in text and "at own rates" not in text  # both chose 2e-5
    assert "own rate 2e-05" in text and "at equal rates, lr 2e-05" in text


def test_different_choices_are_compared_at_equal_rates_first(runs, capsys):
    runs.best["sg"] = 4e-5
    text = print_result(TUNED, capsys)
    places = [text.index(words) for words in (
        "warning: B's rate is at an end of --lr", "warning: the own rates differ",
        "at equal rates, lr 2e-05", "at equal rates, lr 4e-05", "at own rates, A 2e-05, B 4e-05")]
    assert places == sorted(places) and "A's rate is at an end" not in text
    assert len(runs.commands) == 2 * 3 * 2 + 2 * 2 * 6


def test_a_comparison_continues_after_a_kill_and_does_not_take_other_rows(runs, capsys):
    path = pathlib.Path("runs/compare.jsonl")
    before = print_result([*ARMS, "--seeds", "4"], capsys).splitlines()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:40])  # killed while it wrote
    runs.commands.clear()
    after = print_result([*ARMS, "--seeds", "4"], capsys).splitlines()
    assert len(runs.commands) == 3 and after[-9:] == before[-9:]
    assert after[0] == "3 of 8 runs to make; results: runs/compare.jsonl"
    print_result([*ARMS, "--seeds", "4", "--prompts=2"], capsys)
    assert len(runs.commands) == 3 + 8  # another setting
    for n in (1, 2):
        pathlib.Path("my_task.py").write_text(f"def make_task(cfg):\n    return {n}")
        print_result(["--task", "my_task.py", *ARMS, "--seeds", "2"], capsys)
    assert runs.commands[-1].startswith("grpo_sg.py --task=my_task.py ")
    assert len(runs.commands) == 3 + 8 + 4 + 4  # another script


def test_show_prints_the_recorded_rows_and_runs_nothing(runs, capsys):
    text = print_result([*ARMS, "--seeds", "3"], capsys)
    shown = print_result([*ARMS, "--show"], capsys)
    assert text.endswith(shown.partition("\n")[2])
    assert "warning: 3 seeds say little" in shown and len(runs.commands) == 6
    assert "has no rows of A or B" in print_result(["--a", "beta=0.1", "--b", "beta=0.2", "--show"], capsys)


def test_show_obeys_its_flags_and_never_mixes_settings(runs, capsys):
    for end, people, rates in ((0.2, "2", ["1e-5", "2e-5"]), (0.8, "3", ["1e-5"])):
        runs.end = end
        print_result([*ARMS, f"--people={people}", "--lr", *rates, "--seeds", "4"], capsys)
    both = print_result([*ARMS, "--show"], capsys)
    assert both.count("after training: A 0.200") == 2 and both.count("after training: A 0.800") == 1
    assert both.count("rows of: ") == 2 and "rows of: grpo_sg.py --people=3; code " in both
    one = print_result([*ARMS, "--people=3", "--seeds", "2", "--show"], capsys)
    assert "A: 0.800 0.800\n" in one and "A 0.200" not in one
    assert "lr 1e-05" not in print_result([*ARMS, "--lr", "2e-5", "--show"], capsys)


def test_arms_with_different_steps_are_compared(runs, capsys, monkeypatch):
    """The shorter run ends before its first validation."""
    make = runs.make
    def make_and_cut(words, folder):
        make(words, folder)
        if "--steps=10" in words:
            path = folder / "metrics.jsonl"
            path.write_text("".join(line for line in path.open() if "valid" not in line))
    monkeypatch.setattr(compare, "make_run", make_and_cut)
    flags = ["--a", "shaping=none", "steps=10", "--b", "shaping=none", "steps=60", "--seeds", "5"]
    text = print_result(flags, capsys)
    assert "accuracy of samples, after training: A 0." in text and "mean over validations" not in text


def test_a_missing_run_is_named_and_values_are_shown(runs, capsys):
    print_result([*ARMS, "--seeds", "3"], capsys)
    path = pathlib.Path("runs/compare.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[5])  # A's run of seed 2
    text = print_result([*ARMS, "--show"], capsys)
    a, b, c, d = (f"{json.loads(line)['end']:.3f}" for line in lines[:4])
    assert "left out: seed 2, which has no run of A" in text
    assert f"    A: {a} {c}\n    B: {b} {d}\n" in text


@pytest.mark.parametrize("a, b, rewards, said", [
    (0.0, 0.0, True, "A and B are equal for each of 4 seeds: does the setting have an effect?"),
    (0.0, 0.0, False, "each of 4 seeds has the difference +0.000, so the interval has no width"),
    (0.25, 0.5, False, "each of 4 seeds has the difference +0.250, so the interval has no width")])
def test_equal_differences_are_not_taken_for_certainty(a, b, rewards, said):
    def list_runs(end, reward):
        return {seed: {"end": end, "reward": reward, "mean": None} for seed in range(4)}
    lines = compare.compare_arms(list_runs(b, -1.0 if rewards else 1.0), list_runs(a, -1.0))
    assert any(said in line for line in lines)


@pytest.mark.parametrize("flags, message", [
    ("--a shaping=none --b shaping=none", "--a and --b are equal"),
    ("--a shaping=none --b seed=3", "--seed: compare sets it"),
    ("--a shaping --b shaping=sg", "write a setting as NAME=VALUE"),
    ("--a shaping=none --b shaping=sg --tune_seeds 3", "--tune_seeds needs two rates"),
    ("--a shaping=none --b shapping=sg", "there is no setting --shapping"),
    ("--a shaping=none --b shaping=sg --task none.py", "there is no such file")])
def test_mistakes_are_one_line_before_anything_runs(flags, message, runs, capsys):
    with pytest.raises(SystemExit):
        compare.main(flags.split())
    assert message in capsys.readouterr().err and not runs.commands


SCRIPT = """
import pathlib, signal, sys, time
out = pathlib.Path(sys.argv[-1])
if "--resume" not in sys.argv:
    (out / "checkpoint-3").mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: (out / "saved").touch() or sys.exit(143))
    time.sleep(60)
"""


@pytest.fixture
def allow_ctrl_c():
    """Other tests, or the background of a shell, may have changed what Ctrl-C does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_lets_a_run_save_and_the_next_call_resumes_it(tmp_path, allow_ctrl_c):
    path, folder = tmp_path / "my_task.py", tmp_path / "runs" / "1"
    path.write_text(SCRIPT)
    def press_ctrl_c():
        while not (folder / "checkpoint-3").is_dir():
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=press_ctrl_c).start()
    with pytest.raises(SystemExit, match="stopped; the same command continues"):
        compare.make_run([str(path), "--seed=0"], folder)
    assert (folder / "saved").is_file()
    compare.make_run([str(path), "--seed=0"], folder)
    assert (folder / "saved").is_file() and not (folder / "checkpoint-3").exists()


def test_a_run_that_fails_says_why(tmp_path):
    path = tmp_path / "my_task.py"
    path.write_text("raise SystemExit('error: no problems')")
    with pytest.raises(SystemExit, match="error: no problems\nerror: this run failed"):
        compare.make_run([str(path)], tmp_path / "runs" / "1")


def test_real_runs_are_compared(tmp_path, capsys):
    flags = "--task kk --steps 2 --eval_every 1 --prompts 2 --updates 1 --eval_problems 5"
    compare.main([*flags.split(), "--train_problems", "50", "--a", "shaping=none", "--b", "shaping=ar",
                  "high=1.2", "--seeds", "1", "--rows", str(tmp_path / "rows.jsonl")])
    assert "at equal rates, lr 0.0002:\n  fewer than two seeds" in capsys.readouterr().out
    a, b = analysis.read_rows(tmp_path / "rows.jsonl")
    assert "--shaping=ar --high=1.2 --seed=0" in b["command"] and b["arm"] == "shaping=ar high=1.2"
    assert -3 <= a["reward"] <= 3 and a["lr"] == 2e-4 and 0 <= a["mean"] <= 1 and a["date"]
