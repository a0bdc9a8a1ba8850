"""Every arm of every experiment runs, recorded rows are not run again, and the pages are what
the files say."""
import dataclasses
import json
import math
import shutil

import pytest
import torch

import grpo_sg
import tasks
from experiments import analysis, bench, ignorant, numbers, premise, run
from experiments.analysis import RESULTS
from support import tiny

OWN_TASK = '''
import itertools, random, grpo_sg, tasks

def make(word):
    return tasks.Problem(word, "".join(sorted(word)), "".join(sorted(word)))

def verify(response, answer):
    return tasks.Verdict(response == answer, {FORMED})

def make_sorting(cfg):
    words = ["".join(letters) for letters in itertools.permutations("abcdefgh", 5)]
    problems = [make(word) for word in random.Random(0).sample(words, 600)]
    return tasks.Task("sorting", "Sort.", problems[200:], problems[:100], problems[100:200], verify,
                      0.02, tokens=".")

tasks.TASKS["sorting"] = make_sorting
grpo_sg.main(task="sorting")
'''


# ---- The runner ----

def parity(completion):
    return float(sum(completion.tokens) % 2)


@pytest.fixture
def few_problems(monkeypatch):
    """Tasks have few problems, of which two are measured. Untrained models, too, have groups
    of different rewards, and are sure of some tokens."""
    make, evaluate, tiny_model = tasks.make_task, grpo_sg.evaluate, tiny.tiny_model

    def make_few(cfg):
        few = dataclasses.replace(cfg, train_problems=400, eval_problems=4)
        return make(few)._replace(reward=parity)

    def sure_model(task):
        model, tokenizer = tiny_model(task)
        torch.nn.init.constant_(model.model.norm.weight, 6.0)
        return model, tokenizer

    def evaluate_two(policy, task, problems, cfg, **more):
        return evaluate(policy, task, problems[:2], cfg, **more)
    monkeypatch.setattr(tasks, "make_task", make_few)
    monkeypatch.setattr(tiny, "tiny_model", sure_model)
    monkeypatch.setattr(grpo_sg, "evaluate", evaluate_two)


def with_few_prompts(name, experiment):
    small = {"prompts": 4, "temperature": 1.5}  # else all tokens may be likely, and w 1.4
    if name in ("afar", "default"):  # their models are untrained, and come to no end
        small["max_new_tokens"] = 8
    arms = {}
    for arm_name, arm in experiment.arms.items():
        arms[arm_name] = arm._replace(settings={**arm.settings, **small})
    return experiment._replace(arms=arms)


def test_a_step_of_every_arm_and_no_two_arms_are_the_same(few_problems, monkeypatch):
    small = {name: with_few_prompts(name, e) for name, e in run.EXPERIMENTS.items()}
    monkeypatch.setattr(run, "EXPERIMENTS", small)
    rows = run.smoke(run.EXPERIMENTS)
    assert all(0 <= row["avg@4"] <= 1 for row in rows.values())
    for name, e in run.EXPERIMENTS.items():
        if name not in ("start", "default"):
            norms = [rows[name, arm]["norm mean"] for arm in e.arms]
            assert len(set(norms)) == len(norms), (name, norms)


def test_the_premise_and_a_benchmark_in_small(few_problems, monkeypatch):
    row = premise.measure("kk", 0, steps=1, problems=1, own=False)
    assert row["tokens"] > 50 and row["Spearman"] > 0.9
    monkeypatch.setattr(bench, "SIZES", {"few words": 2048})
    monkeypatch.setattr(bench, "FIXED", 4)
    monkeypatch.setattr(bench, "CAP", 4)
    monkeypatch.setattr(bench, "draw_batched", bench.draw_ours)  # starting its engine takes long
    assert set(bench.bench_sampling(1)) == {"few words, fixed", "few words, long tail"}
    assert bench.bench_update(1)["few words"]["naive / ours"][0] > 0


def test_the_grid_comes_first_and_chooses_the_rates():
    jobs = list(run.jobs_of("noisy", RESULTS, [7]))
    assert len(jobs) == 4 * 2 * 3 + 2
    assert all(job["split"] == "valid" for job in jobs[:-2])
    assert jobs[-2:] == [{"experiment": "noisy", "arm": arm, "seed": 7, "rate": rate,
                          "split": "test"} for arm, rate in (("none", 2e-4), ("sg", 1e-4))]
    assert {job["rate"] for job in run.jobs_of("mistakes", RESULTS)} == {1e-4}


def test_it_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    for name in ("help", "mistakes"):
        shutil.copy(RESULTS / f"{name}.jsonl", tmp_path)
    done = []

    def note(job):
        done.append(job)
        return {"avg@4": 0.5}
    monkeypatch.setattr(run, "work", note)
    run.run_jobs("mistakes", tmp_path, None)
    assert done == []
    path = tmp_path / "mistakes.jsonl"
    *kept, last = path.read_text().splitlines()
    path.write_text("\n".join(kept) + "\n")
    run.run_jobs("mistakes", tmp_path, None)
    assert len(done) == 1 and done[0].items() <= json.loads(last).items()
    added = json.loads(path.read_text().splitlines()[-1])
    assert {**done[0], "avg@4": 0.5}.items() <= added.items()
    assert {"cpu_seconds", "commit", "date"} <= added.keys()


def test_without_the_grid_of_another_experiment_it_says_so(tmp_path):
    with pytest.raises(SystemExit, match="those of help: run that first"):
        next(run.jobs_of("mistakes", tmp_path))


def test_a_row_that_was_made_again_is_equal_near_or_far():
    old = analysis.read("help")[0]
    assert run.compare(old, dict(old)) == "equal"
    assert run.compare(old, {**old, "entropy": old["entropy"] + 1e-4}).startswith("near")
    assert run.compare(old, {**old, "avg@4": old["avg@4"] + 0.2}).startswith("FAR")


def test_recorded_rows_have_one_form_and_are_of_known_arms():
    for name, e in run.EXPERIMENTS.items():
        jobs = [(row["arm"], row["seed"], row["rate"], row["split"]) for row in analysis.read(name)]
        assert len(set(jobs)) == len(jobs)
        for row in analysis.read(name):
            assert row["experiment"] == name and row["arm"] in e.arms
            assert {"seed", "rate", "split", "avg@4", "commit", "date"} <= row.keys()


def test_rows_of_an_older_form_are_converted_without_a_change(tmp_path, monkeypatch):
    old = []
    for seed in range(200, 203):
        for i, name in enumerate(("none", "sg")):
            old.append({"part": "noisy-greedy", "name": name, "seed": seed, "lr": 1e-4,
                        "greedy": 0.4 + seed / 1e4 + i / 9, "avg@4": 0.3, "commit": "abc"})
    path = tmp_path / "old.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in old))
    run.convert(path, tmp_path)
    rows = analysis.read_rows(tmp_path / "greedy.jsonl")
    for before, row in zip(old, rows, strict=True):
        assert (row["arm"], row["seed"], row["rate"]) == (
            before["name"], before["seed"], before["lr"])
        assert all(row[key] == before[key] for key in ("greedy", "avg@4", "commit"))
    monkeypatch.setattr(analysis, "RESULTS", tmp_path)
    found = dict(numbers.greedy())
    assert found["greedy: verdict"] == "interim, 3 seeds of 40"
    assert found["greedy: values"].startswith("+.111 ")


# ---- Analysis ----

@pytest.mark.parametrize("degrees", [1, 2, 9, 19, 39])
def test_quantiles_of_students_t(degrees):
    """By its density, integrated over the angle x = sqrt(n) tan a."""
    def density(a):
        return math.cos(a) ** (degrees - 1)
    steps = 20_000
    end = math.atan(analysis.T_975[degrees - 1] / math.sqrt(degrees))
    inner = sum(density(end * (i + 0.5) / steps) for i in range(steps)) * end / steps
    whole = sum(density(math.pi / 2 * (i + 0.5) / steps) for i in range(steps)) * math.pi / 2 / steps
    assert inner / whole == pytest.approx(0.95, abs=2e-4)


def test_an_interval_and_a_collapse_by_hand():
    assert analysis.interval([1.0, 2.0, 3.0]) == pytest.approx((2, 2 - 4.303 / 3 ** 0.5, 4.484),
                                                               abs=1e-3)
    assert analysis.length_above([1, 1, 1, 1, 1]) == 4
    assert analysis.length_above([1, 1, -1, -1, -1]) == 1.5  # falls off in the middle of 1 to 2
    assert analysis.length_above([-1, -1, -1, -1, -1]) == 0


# ---- Pages ----

def test_the_pages_are_what_the_files_say(monkeypatch):
    monkeypatch.setattr("sys.argv", ["numbers"])
    with pytest.raises(SystemExit) as end:
        numbers.main()
    assert end.value.code == 0


def test_a_wrong_number_a_wrong_name_and_a_number_without_a_source_are_seen():
    known = {"a": ".12"}
    assert numbers.check("x <!--=a-->.12<!--/-->", known) == ("x <!--=a-->.12<!--/-->", [])
    page, wrong = numbers.check("x <!--=a-->.13<!--/--> y <!--=b-->.1<!--/-->", known)
    assert page == "x <!--=a-->.12<!--/--> y <!--=b-->.1<!--/-->" and len(wrong) == 2
    assert numbers.without_source("It gains .777 of <!--=a-->.12<!--/-->, at 0.33.") == [".777"]


# ---- Rewards ----

def ask(tmp_path, formed):
    path = tmp_path / "own.py"
    path.write_text(OWN_TASK.replace("{FORMED}", formed))
    (label, task), = ignorant.find_tasks(str(path))
    rows, wrong, right = ignorant.measure(label, task)
    return {row["policy"]: row for row in rows}, ignorant.warn(rows, wrong, right)


def test_a_reward_that_pays_for_giving_up_is_warned_of(tmp_path):
    found, lines = ask(tmp_path, "sorted(response) == list(answer)")
    assert found["question"]["reward"] == pytest.approx(-0.5, abs=0.1)
    assert found["random"]["reward"] < -2.5
    assert len(lines) == 1 and "by giving up" in lines[0]
    found, lines = ask(tmp_path, "len(response) == 5")
    assert found["random"]["reward"] > -0.6 and lines == []
