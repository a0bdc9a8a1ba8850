"""Every arm of every experiment runs, recorded rows are not run again, and the pages are what
the files say."""
import functools
import hashlib
import json
import random
import re
import shutil
import statistics

import pytest
import torch

from test_grpo_sg import build_toy, parameters_of
from experiments import analysis, baselines, bench, numbers, run, summary, when
from experiments.analysis import RESULTS
import grpo_sg
from support import advice
from tasks import UserError

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

@functools.cache
def start_of_a_toy(name, warmup, seed, flags):
    return build_toy(seed=["kk", "qa"].index(name))


def test_all_arms_of_an_experiment_take_different_steps(monkeypatch):
    experiments = {}
    for name, e in run.EXPERIMENTS.items():
        arms = {arm: a._replace(settings={**a.settings, "updates": 2}) for arm, a in e.arms.items()}
        experiments[name] = e._replace(arms=arms, measure=run.measure)
    del experiments["default"], experiments["start"]  # commands, and arms without a step
    monkeypatch.setattr(run, "EXPERIMENTS", experiments)
    monkeypatch.setattr(run, "start_of", start_of_a_toy)
    rows = run.smoke(experiments)
    for name, e in experiments.items():
        e = e._replace(arms=["none, many", "sg, many"]) if name == "afar" else e
        norms = [rows[name, arm]["norm mean"] for arm in e.arms]
        assert len(set(norms)) == len(norms), (name, norms)
        assert all(("before" in rows[name, arm]) == e.before for arm in e.arms)
    assert rows["noisy", "sg"]["norm mean"] != rows["help", "sg"]["norm mean"]
    # No arm trains the start that all share.
    assert rows["stability", "sg"]["norm mean"] == rows["help", "sg"]["norm mean"]


def test_a_command_is_tested_before_and_after_training(monkeypatch):
    small = {"task": "math", "train_problems": 200, "prompts": 2, "max_new_tokens": 8}
    monkeypatch.setitem(run.COMMANDS, "math, ready", run.Arm(small))
    job = {"experiment": "default", "arm": "math, ready", "seed": 0, "rate": 2e-4, "split": "test"}
    row = run.work(job, smoke=True)
    assert [test["step"] for test in row["tests"]] == [0, 1] and len(row["curve"]) == 1
    assert [row["before"], row["avg@4"]] == [test["eval/avg@4"] for test in row["tests"]]


def test_afar_measures_other_sizes_and_steps_aside_and_back(monkeypatch):
    e, measured = run.EXPERIMENTS["afar"], []
    assert {"train_problems": 64, "steps": 120}.items() <= e.arms["sg, few"].settings.items()
    few = "--train_problems", "60", "--eval_problems", "240"
    policy, task, cfg = run.start_of("kk", 1, 0, (*e.flags, *few))
    start = parameters_of(policy.model)

    def measure_distance(policy, task, problems, cfg):
        measured.append((len(problems), {len(problem.answer) for problem in problems}))
        return {"avg@4": float((parameters_of(policy.model) - start).norm())}
    monkeypatch.setattr(run, "measure", measure_distance)
    found = run.measure_afar(policy, run.keep_three_people(task, cfg), task.test, cfg)
    assert [sizes for _, sizes in measured] == [{3}, {4}, {5}] + [{3}] * 13
    assert measured[0][0] + measured[1][0] + measured[2][0] == 240
    assert measured[5:] == [(64, {3})] * 11 and found["before a step aside"] == 0
    assert found["after a step aside"] == pytest.approx(run.RADIUS, rel=1e-3)
    assert torch.equal(start, parameters_of(policy.model))


# ---- Benchmarks ----

@pytest.fixture
def small_bench(monkeypatch):
    small = {"SIZES": {"2,048 words": 64}, "SHORTER": {64: 4}, "FIXED": 8, "MEAN": 8, "CAP": 8,
             "N": 2}
    for name, value in small.items():
        monkeypatch.setattr(bench, name, value)


def test_a_benchmark_compares_sampling_and_updates(small_bench):
    sampling = bench.bench_sampling(1)
    assert set(sampling) == {"2,048 words, fixed", "2,048 words, long tail"}
    runs = sampling["2,048 words, fixed"]["runs"]
    assert {side: run["tokens"] for side, (run,) in runs.items()} == dict.fromkeys(runs, 8 * 2 * 2)
    assert bench.bench_update(1)["2,048 words"]["naive / ours"][0] > 0


def test_the_benchmark_of_a_step_without_trl(small_bench, monkeypatch):
    monkeypatch.setattr(bench, "trainer_of_theirs", lambda *given: None)
    monkeypatch.setattr(bench, "step_of_theirs", lambda trainer: {"seconds": 1.0, "tokens": 1})
    steps = bench.bench_step(1)
    assert steps["beta 0.0, updates 1"]["runs"]["ours"][0]["seconds"] > 0


@pytest.mark.parametrize("flags", ["--rounds 0", "--results README.md", "--only nothing"])
def test_the_benchmark_refuses_flags_in_one_line(flags, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", *flags.split()])
    with pytest.raises(SystemExit) as end:
        bench.main()
    assert end.value.code == 2 and f"error: {flags.split()[0]}" in capsys.readouterr().err.replace("argument ", "")


def test_the_grid_comes_first_and_chooses_the_rates():
    jobs = list(run.jobs_of("noisy", RESULTS, [7]))
    assert len(jobs) == 4 * 2 * 3 + 2
    assert all(job["split"] == "valid" for job in jobs[:-2])
    assert jobs[-2:] == [{"experiment": "noisy", "arm": arm, "seed": 7, "rate": rate,
                          "split": "test"} for arm, rate in (("none", 2e-4), ("sg", 1e-4))]
    assert {job["rate"] for job in run.jobs_of("mistakes", RESULTS)} == {1e-4}


def test_runs_resume_where_they_stopped(tmp_path, monkeypatch, capsys):
    for name in ("help", "mistakes"):
        shutil.copy(RESULTS / f"{name}.jsonl", tmp_path)
    done = []

    def note(job):
        done.append(job)
        return {"avg@4": 0.5}
    monkeypatch.setattr(run, "work", note)
    run.run_jobs("mistakes", tmp_path, None)
    assert done == [] and "every run is recorded" in capsys.readouterr().out
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


def test_a_rerun_is_equal_near_or_far():
    old = analysis.read("help")[0]
    assert run.compare(old, dict(old)) == "equal"
    assert run.compare(old, {**old, "entropy": old["entropy"] + 1e-4}).startswith("near")
    assert run.compare(old, {**old, "avg@4": old["avg@4"] + 0.03}).startswith("near")
    assert run.compare(old, {**old, "avg@4": old["avg@4"] + 0.05}).startswith("FAR")


def test_recheck_accepts_two_or_three_sds_of_a_paired_difference_less_than_rl_gains():
    clean = analysis.comparisons()[0]
    assert 2 <= run.NEAR / statistics.stdev(clean.minus) <= 3
    assert run.NEAR < clean.gained


def test_recheck_counts_rows_that_are_far_unless_known_to_differ(monkeypatch, capsys):
    recorded = {job["experiment"]: job for job in (analysis.read("help")[-1],
                                                   analysis.read("noisy")[-1])}

    def work(job):
        old = recorded[job["experiment"]]
        return {**old, "avg@4": old["avg@4"] + 0.05}
    monkeypatch.setattr(run, "work", work)
    assert run.recheck(["help"], RESULTS) == 0  # its last row is one of NOT_REPRODUCED
    assert "(known to differ)" in capsys.readouterr().out
    assert run.recheck(["noisy"], RESULTS) == 1


def test_recorded_rows_have_one_form_and_are_of_known_arms():
    for name, e in run.EXPERIMENTS.items():
        jobs = [(row["arm"], row["seed"], row["rate"], row["split"]) for row in analysis.read(name)]
        assert len(set(jobs)) == len(jobs)
        for row in analysis.read(name):
            assert row["experiment"] == name and row["arm"] in e.arms
            assert {"seed", "rate", "split", "avg@4", "commit", "date"} <= row.keys()


# ---- Analysis ----

@pytest.mark.parametrize("p, degrees, quantile", [
    (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 9, 2.262), (0.975, 19, 2.093),
    (0.975, 59, 2.001), (0.8, 1, 1.376), (0.8, 9, 0.883), (0.8, 19, 0.861)])
def test_quantiles_of_students_t_are_those_of_the_printed_tables(p, degrees, quantile):
    assert analysis.t_quantile(p, degrees) == pytest.approx(quantile, abs=6e-4)


def test_an_effect_of_the_detectable_size_is_detected_in_80_percent_of_experiments():
    rng, n, effect, detected = random.Random(0), 20, None, 0
    pattern = [rng.gauss(0, 1) for _ in range(n)]
    scale = statistics.stdev(pattern)
    effect = analysis.detectable([value / scale for value in pattern])  # sd 1
    for _ in range(2000):
        low = analysis.interval([rng.gauss(effect, 1) for _ in range(n)])[1]
        detected += low > 0
    assert detected / 2000 == pytest.approx(0.8, abs=0.03)


def test_the_sign_flip_test_by_hand():
    """Of the eight choices of signs, only + + + and - - - have a sum of 6 or more."""
    assert analysis.sign_flip_p([1, 2, 3]) == 2 / 8
    assert analysis.sign_flip_p([1, 2, -3]) == 1


def test_an_interval_and_a_collapse_by_hand():
    assert analysis.interval([1.0, 2.0, 3.0]) == pytest.approx((2, 2 - 4.303 / 3 ** 0.5, 4.484),
                                                               abs=1e-3)
    assert analysis.length_above([1, 1, 1, 1, 1]) == 4
    assert analysis.length_above([1, 1, -1, -1, -1]) == 1.5  # falls off in the middle of 1 to 2
    assert analysis.length_above([-1, -1, -1, -1, -1]) == 0


# ---- What the pages say of rows, against small files by hand ----

def write_rows(folder, monkeypatch, name, rows):
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / f"{name}.jsonl").write_text("".join(lines))
    monkeypatch.setattr(analysis, "RESULTS", folder)


def test_collapse_of_long_runs_is_detected(tmp_path, monkeypatch):
    """Of 300 steps the best 100 in a row are 100 to 199, with .8."""
    def row(arm, seed, end, after):
        return {"arm": arm, "seed": seed, "rate": 2e-4, "split": "test", "before": 0.6,
                "avg@4": after, "curve": [0.5] * 100 + [0.8] * 100 + [end] * 100}
    rows = [row("kk", 300, 0.71, 0.6), row("kk", 301, 0.69, 0.7), row("qa", 300, 0.8, 0.59)]
    write_rows(tmp_path, monkeypatch, "late", rows[:1])
    found = dict(summary.late())
    assert found["late: collapsed"] == "none of 1" and found["late: bound"] == "95%"
    write_rows(tmp_path, monkeypatch, "late", rows)
    assert dict(summary.late()) == {"late: collapsed": "2 of 3"}
    assert [analysis.describe_end(row)[2] for row in rows] == [False, True, True]
    assert analysis.describe_end(rows[1])[:2] == pytest.approx((0.8, 0.69))


def rows_afar(seeds, far=0.0, others=0.0, aside=0.0):
    """GRPO-SG's values are GRPO's plus these, and +-.01 by turns, so that with ten seeds the
    interval's half is 2.262 * .0105 / sqrt(10) = .0075."""
    rows = []
    for seed in range(seeds):
        turn = 0.01 * (-1) ** seed
        for arm, more, by in (("none", 0, 0), ("sg", turn, 1)):
            many = {"avg@4": 0.6, "avg@4, 4 people": 0.4 + more + by * far,
                    "avg@4, 5 people": 0.2 + more + by * far, "avg@4, trained on": 0.9,
                    "avg@4, others": 0.9, "before a step aside": 0.8,
                    "after a step aside": 0.5 + more + by * aside}
            few = {"avg@4, 4 people": 0.1, "avg@4, 5 people": 0.1, "avg@4, trained on": 0.9,
                   "avg@4, others": 0.7 + more + by * others, "before a step aside": 0.8,
                   "after a step aside": 0.8}
            for problems, values in (("many", many), ("few", few)):
                rows.append({"arm": f"{arm}, {problems}", "seed": seed, "split": "test",
                             **values})
    return rows


@pytest.mark.parametrize("changes, verdict", [
    ({}, "in generalization no difference was seen; in sharpness no difference was seen"),
    ({"far": 0.02}, "generalizes better; in sharpness no difference was seen"),
    ({"others": 0.02}, "generalizes better; in sharpness no difference was seen"),
    ({"far": -0.02}, "generalizes worse; in sharpness no difference was seen"),
    ({"aside": 0.02}, "in generalization no difference was seen; flatter"),
    ({"others": -0.02, "aside": -0.02}, "generalizes worse; less flat")])
def test_generalization_and_sharpness(tmp_path, monkeypatch, changes, verdict):
    write_rows(tmp_path, monkeypatch, "afar", rows_afar(10, **changes))
    found = dict(summary.afar())
    assert found["afar: verdict"] == verdict
    for name, key in (("transfer", "far"), ("gap", "others"), ("sharpness", "aside")):
        sign = 1 if name == "transfer" else -1
        mean = found[f"afar: {name}"].split(",")[0]
        assert mean == f"{sign * changes.get(key, 0) + 0.0:+.3f}"


def test_the_share_of_the_gain_by_hand(tmp_path, monkeypatch):
    """RL with GRPO gained .2 from .1; GRPO-SG is above it by .02, .04 and .06, which is
    .04 +- 4.303 * .02 / sqrt(3), and by 4.303 + 1.061 standard errors detectable."""
    none = {seed: {"avg@4": 0.3} for seed in range(3)}
    sg = {seed: {"avg@4": 0.32 + seed / 50} for seed in range(3)}
    row = analysis.compare("name", "label", "0-2", sg, none, 0.1)
    assert row.gained == pytest.approx(0.2)
    assert summary.in_prose(row.minus) == "+0.040, 95% CI [-0.010, +0.090]"
    assert summary.share_of(row.gained, row.minus) == "+20%, 95% CI [-5%, +45%]"
    assert analysis.detectable(row.minus) == pytest.approx(5.364 * 0.02 / 3 ** 0.5, rel=1e-3)


def test_methods_are_compared_at_the_rates_that_the_grid_chooses(tmp_path, monkeypatch):
    rows = analysis.read("help")
    assert analysis.best_rate("help", "lopti") == 2e-4
    for row in rows:
        if (row["arm"], row["rate"], row["split"]) == ("lopti", 4e-4, "valid"):
            row["avg@4"] = 0.5
    write_rows(tmp_path, monkeypatch, "help", rows)
    assert analysis.best_rate("help", "lopti") == 4e-4
    assert analysis.tuned("help", "lopti") == {}  # no counted run has this rate


def test_predictions_by_hand(tmp_path, monkeypatch):
    """Every part has the same three seeds. GRPO reaches .5 from .1; GRPO-SG is above it by .02, .04
    and .06, which is .04 +- 4.303 * .02 / sqrt(3), and all other arms by .1 more."""
    rows = []
    for part, p in when.PARTS.items():
        for seed in range(1000, 1003):
            gain = 0.02 * (seed - 999)
            gains = {arm: gain + 0.1 for arm in p.arms} | {"GRPO": 0, "GRPO-SG": gain}
            for arm, gain in gains.items():
                row = {"part": part, "arm": arm, "seed": seed, "rate": 2e-4, "before": 0.1}
                for split, level in (("valid", 0.9), ("test", 0.5 + gain)):
                    levels = {str(step): level for step in p.points}
                    rows.append({**row, "split": split, "avg@8": levels})
    write_rows(tmp_path, monkeypatch, "when", rows)
    found = dict(summary.whens())
    assert found["when: early, rates"].startswith("GRPO 2e-4 (end of the grid), GRPO-SG 2e-4")
    assert found["when: early, 10, GRPO-SG, CI"] == "+0.040 [-0.010, +0.090]"
    assert found["when: prediction 1, share"] == "+10%, 95% CI [-2%, +22%]"
    verdicts = [row[-1] for row in found["when: table"][1:]]
    assert verdicts == [f"{each} (interim)" for each in ("open", "confirmed", "refuted", "refuted",
                                                         "open")]
    assert found["when: verdicts"] == "2 open (interim), 1 confirmed (interim), 2 refuted (interim)"
    early = [verdict for *_, verdict in when.check_predictions(rows[:24])]
    assert early[1:] == ["confirmed (interim)"] + ["not run yet"] * 3


@pytest.mark.parametrize("name", ["help", "noisy", "dose"])
def test_a_changed_row_of_a_grid_is_noticed(name, tmp_path, monkeypatch):
    known = dict(summary.grids())["grids: table"]
    for each in ("help", "noisy", "dose"):
        shutil.copy(RESULTS / f"{each}.jsonl", tmp_path)
    monkeypatch.setattr(analysis, "RESULTS", tmp_path)
    assert dict(summary.grids())["grids: table"] == known
    rows = analysis.read(name)
    grid = [row for row in rows if row["split"] == "valid"]
    for row in random.Random(0).sample(grid, 8):
        row["avg@4"] += 0.001
        write_rows(tmp_path, monkeypatch, name, rows)
        assert dict(summary.grids())["grids: table"] != known
        row["avg@4"] -= 0.001


# ---- Pages ----

def test_the_readme_shows_what_was_printed():
    """Each line of the default run's output is in the recorded run."""
    run, = [row for row in analysis.read("default")
            if row["arm"] == "kk, ready" and row["seed"] == 0]
    before, after = run["tests"]
    printed = [f"test before training: {grpo_sg.in_words(before)}",
               f"test after training: {grpo_sg.in_words(after)}",
               *advice.describe_start(before, 4), *advice.compare_tests(before, after, 4)]
    readme = (numbers.ROOT / "README.md").read_text()
    shown = re.findall(r"^ +(test .*|before -> .*|4 samples .*)$", readme, re.M)
    assert len(shown) == 4
    for line in shown:
        assert any(each.startswith(line.removesuffix(", ...")) for each in printed), line


# The first digits of the SHA-256 of each pre-registered rule, without its line breaks.
RULES = {"help and noisy": "33e38916", "dose": "02947945", "stability": "95055c10",
         "greedy": "6c25a6d2", "late": "54fe4691", "afar": "39a9f7bd"}


def test_the_pre_registered_rules_are_unchanged():
    """They were written down before the runs, so their wording must not change."""
    rules = re.findall(r"(?m)(?:(?:^    .+)?\n)+", analysis.__doc__.split('"help" and "noisy":')[1])
    rules += re.findall(r"(?m)(?:^    .+\n)+", run.__doc__.split("stands here:")[1])
    rules = [" ".join(rule.split()) for rule in rules if rule.strip()]
    found = [hashlib.sha256(rule.encode()).hexdigest()[:8] for rule in rules]
    assert dict(zip(RULES, found, strict=True)) == RULES


def test_the_pages_are_what_the_files_say(monkeypatch, capsys):
    """If a page moves to where it is not found, the counts are too low."""
    monkeypatch.setattr("sys.argv", ["numbers"])
    with pytest.raises(SystemExit) as end:
        numbers.main()
    assert end.value.code == 0
    said = capsys.readouterr().out
    marks, pages = re.fullmatch(
        r"every marked number is what its file says: (\d+) in (\d+) pages\n", said).groups()
    assert int(marks) >= 60 and int(pages) >= 5


def test_a_summary_that_is_not_current_is_noticed_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(numbers, "SUMMARY", tmp_path / "experiments" / "results.json")
    monkeypatch.setattr(numbers, "ROOT", tmp_path)
    numbers.SUMMARY.parent.mkdir()
    numbers.SUMMARY.write_text("{}")
    found = {"a": "±0.1", "b": [["c", "d"], ["1", "2"]]}
    monkeypatch.setattr(summary, "summarize", lambda: found)
    for flags, status in (([], 1), (["--write"], 0), ([], 0)):
        monkeypatch.setattr("sys.argv", ["numbers", *flags])
        with pytest.raises(SystemExit) as end:
            numbers.main()
        assert end.value.code == status
    assert json.loads(numbers.SUMMARY.read_text("utf-8")) == found
    assert "results.json is not what the rows say" in capsys.readouterr().out


def test_a_marker_names_a_key_of_the_summary_or_a_file_and_its_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(numbers, "HERE", tmp_path)
    (tmp_path / "own.json").write_text('{"kk": {"before": 0.5}}')
    known = {"a": [["x", "y"], ["1", "2"]]}
    page = "<!--=a--><!--/--> <!--=own.json: kk.before-->?<!--/-->"
    shown, wrong = numbers.check(page, known)
    assert "\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n" in shown and "-->0.5<!--" in shown
    assert len(wrong) == 2 and numbers.check(shown, known) == (shown, [])
    for name in ("own.json: kk.after", "own.json: kk.before.x", "no.json: kk", "b"):
        assert numbers.check(f"<!--={name}-->1<!--/-->", known)[1] == [f"there is no number {name!r}"]


def test_a_wrong_number_a_wrong_name_and_a_number_without_a_source_are_seen():
    known = {"a": "0.12"}
    assert numbers.check("x <!--=a-->0.12<!--/-->", known) == ("x <!--=a-->0.12<!--/-->", [])
    page, wrong = numbers.check("x <!--=a-->0.13<!--/--> y <!--=b-->0.1<!--/-->", known)
    assert page == "x <!--=a-->0.12<!--/--> y <!--=b-->0.1<!--/-->" and len(wrong) == 2
    page = ("It gains 0.777, or 12%, of <!--=a-->0.12<!--/-->, with pi < 0.33, 95% CI, 80% power; "
            "arXiv 2505.12929; <details>-0.003</details>")
    assert numbers.without_source(page) == ["0.777", "12%", "-0.003"]


def test_the_alternative_text_of_the_forest_plot_is_right():
    above = {row.name for row in analysis.comparisons() if analysis.interval(row.minus)[1] > 0}
    below = {row.name for row in analysis.comparisons() if analysis.interval(row.minus)[2] < 0}
    assert (above, below) == ({"noisy, 1e-4", "noisy, fresh"}, set())
    assert len(analysis.comparisons()) == 8


# ---- Rewards ----

def ask(tmp_path, script):
    """Return ({policy: its row}, conclusions) for the task of a script."""
    path = tmp_path / "own.py"
    path.write_text(script)
    (label, task), = baselines.find_tasks(str(path))
    rows, wrong, right = baselines.measure(label, task)
    return {row["policy"]: row for row in rows}, baselines.conclude(rows, wrong, right)


def test_rewards_that_pay_for_giving_up_give_a_warning(tmp_path):
    script = OWN_TASK.replace("{FORMED}", "sorted(response) == list(answer)")
    found, lines = ask(tmp_path, script)
    assert found["question"]["reward"] == pytest.approx(-0.5, abs=0.1)
    assert found["random"]["reward"] < -2.5
    assert len(lines) == 2 and "by giving up" in lines[0]
    found, lines = ask(tmp_path, OWN_TASK.replace("{FORMED}", "len(response) == 5"))
    assert found["random"]["reward"] > -0.6
    assert "only if it beats" in lines[0] and lines[1].startswith("no trivial baseline is often right")


ANY_TASK = '''
import grpo_sg, tasks
def verify(response, answer):
    return tasks.Verdict({VERIFY}, len(response) > 0)
def make(cfg):
    problems = [{PROBLEM} for i in range(90)]
    return tasks.Task("{NAME}", "", problems[:60], problems[60:75], problems[75:], verify, 0.1)
tasks.TASKS["any"] = make
grpo_sg.main(task="any")
'''
NUMBERS = 'tasks.Problem(f"q{i}", [i, i + 1], f"{i} {i + 1}")'


def any_task(verify, problem, name="any"):
    script = ANY_TASK.replace("{VERIFY}", verify).replace("{PROBLEM}", problem)
    return script.replace("{NAME}", name)


@pytest.mark.parametrize("name", ["kk", "math", "qa"])
def test_a_task_of_your_own_may_have_the_name_of_another(name, tmp_path):
    problem = 'tasks.Problem(f"q{i}", "abc"[i % 3])'
    found, _ = ask(tmp_path, any_task("response == answer", problem, name))
    assert found["constant"]["accuracy"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("problem, verify", [
    (NUMBERS, "response == ' '.join(map(str, answer))"),
    ('tasks.Problem(f"q{i}", {"x": i}, f"x={i}")', 'response == "x=" + str(answer["x"])'),
    ('tasks.Problem(f"q{i}", i, f"so {i}")', "response == f'so {answer}'"),
    ('tasks.Problem(f"q{i}", [f"{i}", f"{i}.0"], f"{i}")', "response in answer")])
def test_answers_of_any_type_have_baselines(problem, verify, tmp_path):
    """The answers differ, so no baseline is right; a worked solution earns more."""
    found, lines = ask(tmp_path, any_task(verify, problem))
    assert found["random"]["accuracy"] == 0 and found["constant"]["reward"] == -0.5
    assert not [line for line in lines if "warning" in line]


def test_the_most_frequent_list_is_found_and_written_as_its_solution(tmp_path):
    problem = 'tasks.Problem(f"q{i}", [i % 3 // 2, 7], f"{i % 3 // 2} 7")'
    found, lines = ask(tmp_path, any_task("response == ' '.join(map(str, answer))", problem))
    assert found["constant"]["accuracy"] == pytest.approx(2 / 3)
    assert lines[0].startswith('warning: a trivial baseline is right in 67% ("constant")')


def test_a_verifier_that_accepts_a_list_of_all_answers_is_warned_of(tmp_path):
    problem = 'tasks.Problem(f"q{i}", str(i % 9))'
    found, lines = ask(tmp_path, any_task("answer in response", problem))
    assert found["all answers"]["accuracy"] == 1
    assert lines[0].startswith("warning: a trivial baseline is right in 100% (\"all answers\")")


def test_a_task_without_solutions_is_not_told_about_them(tmp_path):
    """Neither where verify accepts the answer's text, nor where it does not."""
    for verify in ("response == answer", "response == answer[::-1] + '!'"):
        _, lines = ask(tmp_path, any_task(verify, 'tasks.Problem(f"q{i}", f"a{i}")'))
        assert not [line for line in lines if "warning" in line]


def test_files_of_mathematics_are_counted_and_added_to_the_results(tmp_path, monkeypatch):
    """The gold 5 is the longest formula of one question, any of another's, and the constant."""
    questions = "Is $5$ odd?", "$5$ or $12$?", "Name $7$."
    golds = "5", "5", "8"
    rows = [json.dumps({"problem": q, "answer": a}) for q, a in zip(questions, golds)]
    (tmp_path / "own.jsonl").write_text("\n".join(rows))
    (tmp_path / "math_baselines.json").write_text('{"old": {}}')
    monkeypatch.setattr(baselines, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["baselines", str(tmp_path / "own.jsonl")])
    monkeypatch.setattr(baselines.tasks, "arithmetic_split",
                        lambda *given: [baselines.tasks.Problem("1 + 1", "2")])
    baselines.main()
    found = json.loads((tmp_path / "math_baselines.json").read_text())
    assert found["own"]["verify_math"] == {"problems": 3, "question": 0, "longest": 1, "any": 2,
                                           "constant": 2, "hedges": 0}
    assert "old" in found and found["generated"]["verify_math"]["problems"] == 1
    (tmp_path / "bad.jsonl").write_text("[]")
    for name in ("bad.jsonl", "no.jsonl"):
        with pytest.raises(UserError, match=f"{name}: give a .jsonl file"):
            baselines.read_problems(tmp_path / name)


def test_the_program_itself_is_a_script_that_is_not_started():
    (label, _), = baselines.find_settings("grpo_sg.py")
    assert label == "kk"
