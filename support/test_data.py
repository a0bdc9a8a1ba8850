"""Test the data of tasks.py offline: files, and local folders for sets on the hub."""
import json
import os
import pathlib

import datasets
import huggingface_hub
import pytest

import grpo_sg
import tasks
from tasks import Problem, UserError


def lines(path, rows):
    pathlib.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(train, test, **settings):
    return tasks.math_task(grpo_sg.Config(task="math", data=str(train), eval_data=str(test), **settings))


# ---- What a file may look like ----

@pytest.mark.parametrize("text", [
    '{"question": "caf\u00e9?", "answer": "5"}', '{"question": "caf\u00e9?", "answer": 5}\r\n\r\n',
    '{"id": 7, "problem": "caf\u00e9?", "solution": "clear", "answer": ["5"]}',
    '{"question": "caf\u00e9?", "problem": "another?", "answer": "2 + 3 = 5\\n#### 5"}',
    '{"problem": "caf\u00e9?", "solution": "So \\\\boxed{4} + 1 is \\\\boxed{5}."}',
    # A worked solution comes last, and an empty column is none.
    '{"problem": "caf\u00e9?", "final_answer": ["5"], "solution": "\\\\boxed{4}", "answer": "6"}',
    '{"problem": "caf\u00e9?", "expected_answer": "5", "answer": "6"}',
    '{"problem": "caf\u00e9?", "final_answer": null, "expected_answer": "", "answer": [], "solution": "5"}',
    '\ufeff{"question": "caf\u00e9?", "answer": "5"}'])  # with a byte order mark
def test_a_question_and_its_answer_are_found_in_rows_of_many_forms(text, tmp_path):
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8", newline="")
    problem, = tasks.load_math(str(tmp_path / "a.jsonl"), {})
    assert (problem.question, problem.answer) == ("caf\u00e9?", ["5"])


def test_a_parquet_file_is_read_without_a_copy_in_a_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.Dataset.from_list([{"problem": "1?", "answer": 5}]).to_parquet(tmp_path / "a.parquet")
    capsys.readouterr()
    assert tasks.load_math(str(tmp_path / "a.parquet"), {}) == [Problem("1?", ["5"])]
    assert capsys.readouterr() == ("", "") and os.listdir(tmp_path) == ["a.parquet"]


@pytest.mark.parametrize("name, text, words", [
    ("a.jsonl", '{"question": "1?", "answer": "1"}\n\n{"question": "2?', "line 3, .*2[?].*Unterminated string"),
    ("a.jsonl", "question,answer\n1?,1", "question,answer"), ("a.jsonl", "caf\u00e9".encode("cp1252"), "'utf-8'"),
    ("a.jsonl", '[{"question": "1?", "answer": "1"},\n{"question": "2?"}]', "a JSON object on each line"),  # an array
    ("a.parquet", "PAR1", "")])
def test_a_file_that_cannot_be_read_is_one_line_with_its_name(name, text, words, tmp_path):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=f"{name} cannot be read: .*{words}"):
        tasks.load_math(str(tmp_path / name), {})


@pytest.mark.parametrize("line", [
    '{}', '{"question": "", "answer": "1"}', '{"question": " ", "answer": "1"}', '{"question": ["1?", "2?"], "answer": "1"}',
    '{"question": 5, "answer": "1"}', '{"query": "1?", "target": "1"}', '{"question": "1?", "answers": "1"}',
    '{"question": [{"role": "user", "content": "1?"}], "answer": "1"}',
    '[1, 2]', '[{"question": "1?", "answer": "1"}]', '5', 'null', '"text"', '{"question": "half an emoji \\ud83d?", "answer": "1"}',
    '{"question": "1?", "answer": ' + "[" * 9000 + "1" + "]" * 9000 + "}",
    '{"question": "1?", "answer": ' + "[" * 400 + "1" + "]" * 400 + "}"], ids=lambda line: line[:99])
def test_a_line_without_a_question_and_an_answer_is_dropped_and_shown(line, tmp_path, capsys):
    """One odd line must not end the load, and is never guessed at."""
    (tmp_path / "a.jsonl").write_text(f'{line}\n{{"question": "2?", "answer": "2"}}\n{{"id": 7}}\n')
    assert tasks.load_math(str(tmp_path / "a.jsonl"), {}) == [Problem("2?", ["2"])]
    printed = capsys.readouterr().out
    assert f"dropped 2 of 3 problems of {tmp_path}/a.jsonl" in printed and line[:20] in printed.replace("'", '"').replace("None", "null")


@pytest.mark.parametrize("kwargs", ["{x", "", "[1]", "5"])
def test_template_variables_that_are_no_object_name_their_flag(kwargs):
    with pytest.raises(UserError, match="--chat_template_kwargs: .*is no JSON object"):
        tasks.encode_prompts(None, None, ["1?"], kwargs)


@pytest.mark.parametrize("settings, words", [
    (dict(data="gsm8"), "gsm8 must be one of synthetic, gsm8k.*parquet"), (dict(data="no.jsonl"), "--eval_data is missing: it must be one of .*math500"),
    (dict(eval_data="aime"), "aime must be one"), (dict(eval_data="no.jsonl"), "no.jsonl"), (dict(eval_data="my.csv"), "my.csv must be one .*.jsonl"),
    (dict(task="kk", data="my.jsonl"), "--task math"), (dict(task="kk", eval_data="math500"), "no --eval_data"),
    (dict(task="kk", people=[9]), "--people.* 9"), (dict(task="kk", people=[0]), "--people.* 0"),
    (dict(task="kk", brief=True, data="published"), "--brief False .a tiny model's is True")])
def test_data_that_does_not_exist_is_refused(settings, words):
    settings = {"task": "math", "train_problems": 9, "eval_problems": 9, **settings}
    with pytest.raises((UserError, OSError), match=words):
        tasks.TASKS[settings["task"]](grpo_sg.Config(**settings))


# ---- Reference answers ----

@pytest.mark.parametrize("answer, golds", [
    ("1,200", ["1,200"]), ("0.6666666667", ["0.6666666667"]), (0.5, ["0.5"]), (0, ["0"]), ("5(x-y)", ["5(x-y)"]),
    ("2(\\sin x)", ["2(\\sin x)"]), ("2(\\sqrt{3}+1)", ["2(\\sqrt{3}+1)"]), ("f'(x)", ["f'(x)"]), ("5 cm", ["5 cm"]), ("x^2 + 2 x", ["x^2 + 2 x"]),
    ("2^{100}-1", ["2^{100}-1"]), ("m + n = 7", ["m + n = 7"]), ("x = y^2", ["x = y^2"]), ("\\text{No solution}", ["\\text{No solution}"]),
    ("does not exist", ["does not exist"]), ("varies directly", ["varies directly"]), ("Yes", ["Yes"]), ("Type I error", ["Type I error"]),
    ("\\infty", ["\\infty"]), ("infinity", ["infinity"]), ("C", ["C"]), ("(B)", ["(B)"]), ("Cesar's toothbrush", ["Cesar's toothbrush"]), (" 5\n", ["5"]),
    ("\\begin{cases}\n1\n\\end{cases}", []), (["4", 5], ["4", "5"]), (["4", "proof"], ["4"])])
def test_a_reference_answer_stays_what_it_is(answer, golds, tmp_path):
    assert [gold for text in tasks.as_answers(answer) if (gold := tasks.read_answer(text))] == golds
    assert all(tasks.verify_math(f"\\boxed{{{gold}}}", golds).correct for gold in golds)


@pytest.mark.parametrize("answer", [
    # words instead of an answer
    "Answers will vary", "[ANS]", "[answer]", "\\text{error}", "TODO", "no solution provided", "free response", "verified", "Proved.",
    "not applicable", "See above", "your answer here", "proof", "not found", "None", "unknown", "nan", "N/A", "", " ", None, float("nan"), ["", None], "Proof.", "\\text{Proof}", "(proof)",
    "so \\boxed{\\text{Proof.}}", "See solution", "\u7565", "--", "\u2026", "??", "___", "\\ldots", "so it is #### ",
    # sentences, and words with values: a response would give the value alone
    "The function increases on the whole line.", "As is easily seen by induction it holds", "approximately 5", "Vendor 2", "Solution is: $[x=5, y=1]$",
    "radius: 5, center: $(1,2)$", "the answer 5", "Answer: 5", "(a) 5 (b) 6", "USD 75", "3 hours 20 minutes",
    # the letter of a choice with its value: a response would give the letter
    "(C) 5", "C. 1-\\mathrm{i}", "B) cosine",
    # code and markup
    "['7']", "``7''", "'7'", "array(['7'])", "#REF!", "<p>7</p>", "&frac12;", {"is": 5},
    # what the verifier cannot read for certain: letters that may be units, several answers in order
    "9 (apples)", "5 (cm)", "5 m", "x = 5 m", "9.8 m/s^2", "5 Hz", "3 \\times 10^8 m/s", "5;10", "1;$\\frac{8}{9}$", "1/2\\pi", "kT/mg", "x^2^3",
    "3 \\pmod 7", "3 (mod 7)", "\\approx 5.2", "1.000.000", "x=3 y=4", "1 to 2", "+".join("9" * 300),
    # work to be done
    "17-20", "17 - 20 cm", "5-10%", "6/8", "2020-01-18", "11/12/2019",
    # what JSON makes of a command with one backslash, such as "\frac"
    "\x0crac12", "so \\boxed{\x0crac12}", "3\times 5", "\text{cm}", "\right)", "\rho", "3 \neq 4", "\begin{cases}1", "7\x00"])
def test_an_answer_that_no_response_can_match_is_dropped_and_counted(answer, tmp_path, capsys):
    rows = [{"question": "1?", "answer": answer}, {"question": "2?", "answer": ["2", answer, "3"]}]
    problem, = tasks.load_math(lines(tmp_path / "a.jsonl", rows), {})
    assert (problem.question, problem.answer) == ("2?", ["2", "3"])
    assert "dropped 1 of 2 problems" in capsys.readouterr().out


# ---- Repeats, validation and test ----

def rows_of(count, word="train"):
    return [{"question": f"{word} {i}?", "answer": str(i)} for i in range(count)]


def test_repeated_problems_are_dropped_before_validation_is_held_out(tmp_path, capsys):
    """DAPO-Math has each problem 100 times, and a test set of repeats would shrink its standard error."""
    task = load(lines(tmp_path / "a.jsonl", rows_of(90) * 5), lines(tmp_path / "b.jsonl", rows_of(30, "test") * 3))
    assert [len(task.train), len(task.valid), len(task.test)] == [81, 9, 30]
    printed = capsys.readouterr().out
    assert "dropped 360 of 450 problems" in printed and "dropped 60 of 90 problems" in printed
    assert len({problem.question for problem in task.train + task.valid}) == 90


def test_equal_answers_are_one_and_a_blank_one_is_none(tmp_path):
    """A question with two different answers is dropped, and the next column is read."""
    rows = [{"question": f"{i}?", "answer": " ", "solution": "So \\boxed{1/2}."} for i in range(10)]
    path = lines(tmp_path / "a.jsonl", [*rows, {"question": "0?", "answer": "0.5"}, {"question": "1?", "answer": "2"}])
    problems = tasks.load_math(path, {})
    with pytest.raises(UserError, match="only 9 different problems"):
        tasks.drop_repeats(problems, "a")
    assert [len(problems), problems[0].answer] == [12, ["1/2"]]


def test_no_question_is_in_two_splits(tmp_path, capsys):
    """White space and case make no difference."""
    test = [{"question": question, "answer": "1"} for question in ("TRAIN  3?", "train\n4?", "Train 5?")]
    paths = lines(tmp_path / "a.jsonl", rows_of(40)), lines(tmp_path / "b.jsonl", test + rows_of(9, "test"))
    task = load(*paths)
    asked = {split: {problem.question for problem in getattr(task, split)} for split in ("train", "valid")}
    assert asked["train"] | asked["valid"] == {f"train {i}?" for i in range(40)} - {"train 3?", "train 4?", "train 5?"}
    assert len(asked["train"]) == 34 and len(asked["valid"]) == 3 and len(task.test) == 12
    assert task.floor == 4 / 12, "four test problems have the answer 1"
    assert "dropped 3 of 40" in capsys.readouterr().out
    assert load(*paths, seed=1).valid != task.valid and len(load(*paths, eval_problems=2).valid) == 2


def test_a_question_with_two_answers_is_dropped(tmp_path, capsys):
    """One of them is wrong, and nothing says which."""
    rows = [{"question": "Train 3?", "answer": "4"}, *rows_of(20), {"question": "train  5?", "answer": "5"},
            {"question": "train 3?", "answer": "4"}]
    test = rows_of(12, "test") + [{"question": "TEST 1?", "answer": "7"}]
    task = load(lines(tmp_path / "a.jsonl", rows), lines(tmp_path / "b.jsonl", test))
    assert {problem.question for problem in task.train + task.valid} == {f"train {i}?" for i in range(20)} - {"train 3?"}
    assert [problem.question for problem in task.test] == [f"test {i}?" for i in range(12) if i != 1]
    printed = capsys.readouterr().out
    assert "dropped 4 of 23 " in printed and "dropped 2 of 13 " in printed


@pytest.mark.parametrize("few", ["a.jsonl", "b.jsonl"])
def test_fewer_than_10_problems_to_train_or_test_on_are_refused(few, tmp_path, capsys):
    """OlympiadBench lost 671 of its 675 rows, and was tested on 4."""
    rows = {name: rows_of(20, name) for name in ("a.jsonl", "b.jsonl")}
    rows[few] = [{"question": f"Show {i}.", "answer": "proof"} for i in range(20)] + rows[few][:9] * 2
    with pytest.raises(UserError, match=f"{few} has only 9 different problems"):
        load(*(lines(tmp_path / name, rows[name]) for name in rows))
    assert "dropped 20 of 38 problems" in capsys.readouterr().out


# ---- The hub ----

HUB = {  # the real names, configurations, splits and columns
    "openai/gsm8k main": {"test": [{"question": "Bob?", "answer": "#### 70"}], "train": [
        {"question": "Ann?", "answer": "<<3*1000=3000>>\n#### 3,000"}, {"question": "?", "answer": ""}]},
    "DigitalLearningGmbH/MATH-lighteval default": {"train": [
        {"problem": "Half?", "solution": r"\boxed{0} + \frac12 is \boxed{\frac12}$."}, {"problem": "", "solution": "0"}]},
    "HuggingFaceH4/MATH-500 default": {"test": [{"problem": "P", "solution": r"\boxed{4}", "answer": "5"}]},
    "agentica-org/DeepScaleR-Preview-Dataset default": {"train": [
        {"problem": "Deep", "answer": "7"}, {"problem": "No", "answer": ""}]},
    "HuggingFaceH4/aime_2024 default": {"train": [{"problem": "It?", "answer": "033"}]}}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for (name, configuration), splits in zip(map(str.split, HUB), HUB.values()):
        os.makedirs(name)
        for split in splits:
            lines(f"{name}/{split}.jsonl", splits[split])
        files = [{"split": split, "path": f"{split}.jsonl"} for split in splits]
        head = json.dumps({"configs": [{"config_name": configuration, "data_files": files}]})
        (tmp_path / name / "README.md").write_text(f"---\n{head}\n---\n")  # JSON is a part of YAML


@pytest.mark.parametrize("places, name, problem, dropped", [
    (tasks.MATH_TRAIN, "gsm8k", ("Ann?", ["3,000"]), 1), (tasks.MATH_TEST, "gsm8k", ("Bob?", ["70"]), 0),
    (tasks.MATH_TRAIN, "math", ("Half?", [r"\frac12"]), 1), (tasks.MATH_TEST, "math500", ("P", ["5"]), 0),
    (tasks.MATH_TRAIN, "deepscaler", ("Deep", ["7"]), 1), (tasks.MATH_TEST, "aime24", ("It?", ["033"]), 0)])
def test_sets_from_the_hub_are_read(places, name, problem, dropped, hub, capsys):
    assert tasks.load_math(name, places) == [Problem(*problem)]
    assert capsys.readouterr().out.count(f"dropped 1 of 2 problems of {name}: ") == dropped


def test_each_training_set_of_the_hub_has_its_test_set(monkeypatch):
    def load_hub(name, configuration, split):
        return [{"question": f"{name} {split} {i}?", "answer": "5"} for i in range(20)]
    monkeypatch.setattr(tasks, "load_hub", load_hub)
    pairs = {}
    for data in ("gsm8k", "math", "deepscaler"):
        task = tasks.math_task(grpo_sg.Config(task="math", data=data))
        pairs[data] = [split[0].question.rpartition(" ")[0].partition("/")[2] for split in (task.train, task.test)]
        assert (len(task.train), len(task.valid)) == (18, 2)
        assert tasks.math_task(grpo_sg.Config(task="math", data=data, eval_only=True)).train[0] == task.test[0]
    assert pairs == {"gsm8k": ["gsm8k train", "gsm8k test"], "math": ["MATH-lighteval train", "MATH-500 test"],
                     "deepscaler": ["DeepScaleR-Preview-Dataset train", "aime_2024 train"]}


def test_a_set_that_cannot_be_loaded_is_an_os_error_which_the_program_tells_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # as HF_HUB_OFFLINE=1 would, if it were set before these are loaded
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="openai/gsm8k"):
        tasks.load_math("gsm8k", tasks.MATH_TEST)
    with pytest.raises(OSError, match="K-and-K"):
        tasks.kk_task(grpo_sg.Config(data="published", people=[3], eval_problems=5))
