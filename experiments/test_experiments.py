"""Statistics are right, and baselines and benchmarks measure what they name."""
import random

import pytest
import torch

import grpo_sg
from experiments import analysis, baselines, bench, share_prompts
from test_grpo_sg import build_model

OWN_TASK = '''
import itertools, random, grpo_sg, tasks

def make(word):
    return tasks.Problem(word, "".join(sorted(word)), "".join(sorted(word)))

def verify(response, answer):
    return tasks.Verdict(response == answer, {FORMED})

def make_task(cfg):
    words = ["".join(letters) for letters in itertools.permutations("abcdefgh", 5)]
    problems = [make(word) for word in random.Random(0).sample(words, 600)]
    return tasks.Task("sorting", "Sort.", problems[200:], problems[:100], problems[100:200], verify,
                      0.02, tokens=".")
'''


# ---- The prompt once a group ----

def test_an_update_that_reads_each_prompt_once_has_the_same_logps_and_gradient():
    model, completions, rng = build_model().double(), [], random.Random(0)
    for size in (5, 1, 3):
        prompt = [rng.randrange(2, 12) for _ in range(size)]
        for length in (4, 1, 6):
            tokens = [rng.randrange(2, 12) for _ in range(length)]
            c = grpo_sg.Completion(None, prompt, tokens, [True] * length)
            c.advantage = rng.gauss(0, 1)
            completions.append(c)
    rng.shuffle(completions)
    batch = grpo_sg.make_batch(completions, "cpu")
    found = []
    for module in (grpo_sg, share_prompts):
        logps = module.compute_logps(model, batch, grpo_sg.Config(temperature=0.7))
        (logps * batch.advantages[:, None]).sum().backward()
        found.append([logps.detach(), *(p.grad.clone() for p in model.parameters())])
        model.zero_grad()
    for theirs, ours in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert found[0][0].count_nonzero() == batch.mask.sum()


# ---- Benchmarks ----

@pytest.fixture
def small_bench(monkeypatch):
    small = {"SIZES": {"2,048 words": 64}, "SHORTER": {64: 4}, "FIXED": 8, "MEAN": 8, "CAP": 8,
             "N": 2}
    for name, value in small.items():
        monkeypatch.setattr(bench, name, value)


def test_a_benchmark_compares_sampling(small_bench):
    sampling = bench.bench_sampling(1)
    assert set(sampling) == {"2,048 words, fixed", "2,048 words, long tail"}
    runs = sampling["2,048 words, fixed"]["runs"]
    assert {side: run["tokens"] for side, (run,) in runs.items()} == dict.fromkeys(runs, 8 * 2 * 2)


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


# ---- Analysis ----

@pytest.mark.parametrize("p, degrees, quantile", [
    (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 9, 2.262), (0.975, 19, 2.093),
    (0.975, 59, 2.001), (0.8, 1, 1.376), (0.8, 9, 0.883), (0.8, 19, 0.861)])
def test_quantiles_of_students_t_are_those_of_the_printed_tables(p, degrees, quantile):
    assert analysis.t_quantile(p, degrees) == pytest.approx(quantile, abs=6e-4)


@pytest.mark.parametrize("n", [3, 8, 20])
def test_an_effect_of_the_detectable_size_is_detected_in_80_percent_of_experiments(n):
    """An earlier experiment of the same size estimates the size, so its luck is included."""
    rng, detected = random.Random(0), 0
    for _ in range(2000):
        effect = analysis.detectable([rng.gauss(0, 1) for _ in range(n)])
        detected += analysis.interval([rng.gauss(effect, 1) for _ in range(n)])[1] > 0
    assert detected / 2000 == pytest.approx(0.8, abs=0.03)


def test_an_interval_by_hand():
    assert analysis.interval([1.0, 2.0, 3.0]) == pytest.approx((2, 2 - 4.303 / 3 ** 0.5, 4.484),
                                                               abs=1e-3)


# ---- Rewards ----

def ask(tmp_path, script):
    """Return ({policy: its row}, conclusions) for the task of a script."""
    path = tmp_path / f"own{len(list(tmp_path.iterdir()))}.py"
    path.write_text(script)
    (label, task), = baselines.find_tasks(str(path))
    rows, wrong, right = baselines.measure(label, task)
    return {row["policy"]: row for row in rows}, baselines.conclude(rows, wrong, right)


def test_rewards_that_pay_for_giving_up_give_a_warning(tmp_path):
    script = OWN_TASK.replace("{FORMED}", "sorted(response) == list(answer)")
    row_of, lines = ask(tmp_path, script)
    assert row_of["question"]["reward"] == pytest.approx(-0.5, abs=0.1)
    assert row_of["random"]["reward"] < -2.5
    assert len(lines) == 2 and "by giving up" in lines[0]
    row_of, lines = ask(tmp_path, OWN_TASK.replace("{FORMED}", "len(response) == 5"))
    assert row_of["random"]["reward"] > -0.6
    assert "only if it beats" in lines[0] and lines[1].startswith("no trivial baseline is often right")


ANY_TASK = '''
import grpo_sg, tasks
def verify(response, answer):
    return tasks.Verdict({VERIFY}, len(response) > 0)
def make_task(cfg):
    problems = [{PROBLEM} for i in range(90)]
    return tasks.Task("{NAME}", "", problems[:60], problems[60:75], problems[75:], verify, 0.1)
'''
NUMBERS = 'tasks.Problem(f"q{i}", [i, i + 1], f"{i} {i + 1}")'


def any_task(verify, problem, name="any"):
    script = ANY_TASK.replace("{VERIFY}", verify).replace("{PROBLEM}", problem)
    return script.replace("{NAME}", name)


@pytest.mark.parametrize("name", ["kk", "math", "qa"])
def test_a_task_of_your_own_may_have_the_name_of_another(name, tmp_path):
    problem = 'tasks.Problem(f"q{i}", "abc"[i % 3])'
    row_of, _ = ask(tmp_path, any_task("response == answer", problem, name))
    assert row_of["constant"]["accuracy"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("problem, verify", [
    (NUMBERS, "response == ' '.join(map(str, answer))"),
    ('tasks.Problem(f"q{i}", {"x": i}, f"x={i}")', 'response == "x=" + str(answer["x"])'),
    ('tasks.Problem(f"q{i}", i, f"so {i}")', "response == f'so {answer}'"),
    ('tasks.Problem(f"q{i}", [f"{i}", f"{i}.0"], f"{i}")', "response in answer")])
def test_answers_of_any_type_have_baselines(problem, verify, tmp_path):
    """The answers differ, so no baseline is right; a worked solution earns more."""
    row_of, lines = ask(tmp_path, any_task(verify, problem))
    assert row_of["random"]["accuracy"] == 0 and row_of["constant"]["reward"] == -0.5
    assert not [line for line in lines if "warning" in line]


def test_the_most_frequent_list_is_found_and_written_as_its_solution(tmp_path):
    problem = 'tasks.Problem(f"q{i}", [i % 3 // 2, 7], f"{i % 3 // 2} 7")'
    row_of, lines = ask(tmp_path, any_task("response == ' '.join(map(str, answer))", problem))
    assert row_of["constant"]["accuracy"] == pytest.approx(2 / 3)
    assert lines[0].startswith('warning: a trivial baseline is right in 67% ("constant")')


def test_a_verifier_that_accepts_a_list_of_all_answers_is_warned_of(tmp_path):
    problem = 'tasks.Problem(f"q{i}", str(i % 9))'
    row_of, lines = ask(tmp_path, any_task("answer in response", problem))
    assert row_of["all answers"]["accuracy"] == 1
    assert lines[0].startswith("warning: a trivial baseline is right in 100% (\"all answers\")")


def test_a_task_without_solutions_is_not_told_about_them(tmp_path):
    """Neither where verify accepts the answer's text, nor where it does not."""
    for verify in ("response == answer", "response == answer[::-1] + '!'"):
        _, lines = ask(tmp_path, any_task(verify, 'tasks.Problem(f"q{i}", f"a{i}")'))
        assert not [line for line in lines if "warning" in line]
