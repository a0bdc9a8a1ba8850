"""Test the data of tasks.py offline: files of all kinds, and local folders for sets on the hub."""
import json
import os
import pathlib
from unittest import mock

import datasets
import huggingface_hub
import pytest

import grpo_sg
import tasks
from tasks import Problem, UserError

BOM = "\ufeff"  # which Excel and Notepad write at the start of a file


def lines(path, rows):
    pathlib.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(train, test, **settings):
    return tasks.math_task(grpo_sg.Config(task="math", data=str(train), eval_data=str(test), **settings))


# ---- What a file may look like ----

CHAT = [{"role": "user", "content": "caf\u00e9?"}]
READ = [("caf\u00e9?", ["5"])]


@pytest.mark.parametrize("name, text", [
    ("a.jsonl", '{"question": "caf\u00e9?", "answer": "5"}'),
    ("a.jsonl", BOM + '{"question": "caf\u00e9?", "answer": 5}\r\n\r\n'),
    ("a.jsonl", '{"id": 7, "Problem": "caf\u00e9?", "Solution": "clear", "Answer": ["5"]}'),
    ("a.jsonl", '{"question": "caf\u00e9?", "prompt": "Q: caf\u00e9? A:", "ground_truth": "5"}'),
    ("a.jsonl", '{"question": "caf\u00e9?", "answer": "2 + 3 = 5\\n#### 5"}'),
    ("a.jsonl", '{"problem": "caf\u00e9?", "solution": "So \\\\boxed{4} + 1 is \\\\boxed{5}."}'),
    ("a.jsonl", '{"Body": "In a", "Question": "caf\u00e9?", "Answer": 5}'),
    ("a.jsonl", '{"prompt": "caf\u00e9?", "reward_model": {"style": "rule", "ground_truth": "5"}}'),
    ("a.json", '[\n{"question": "caf\u00e9?",\n"answer": "5"}]'),
    ("a.json", '{"question": "caf\u00e9?", "answer": "5"}'),
    ("a.csv", BOM + 'Question, Answer\r\n"caf\u00e9?",5\r\n')])
def test_a_question_and_its_gold_are_found_in_rows_of_many_forms(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    problems = tasks.drop_repeats(tasks.load_math(str(tmp_path / name), {}), name)
    assert [(p.question.removeprefix("In a "), p.answer) for p in problems] == READ


def test_a_parquet_file_is_read_without_a_copy_in_a_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [{"Problem": CHAT, "reward_model": {"ground_truth": "5"}}]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    capsys.readouterr()
    problem, = tasks.load_math(str(tmp_path / "a.parquet"), {})
    assert (problem.question, problem.answer) == (CHAT, ["5"])
    assert capsys.readouterr() == ("", "") and os.listdir(tmp_path) == ["a.parquet"]


def test_answers_may_have_different_types_and_stay_as_they_are_written(tmp_path):
    """datasets would refuse the last row of such a long file."""
    for name, head, row in (("a.jsonl", "", '{{"question": "{0}?", "answer": {1}}}'), ("a.csv", "question,answer\n", "{0}?,{1}")):
        golds = ["12345678901234567890", "3.10", *map(str, range(12_000)), '"5/2"']
        text = head + "\n".join(row.format(i, gold) for i, gold in enumerate(golds))
        (tmp_path / name).write_text(text)
        answers = [problem.answer[0] for problem in tasks.load_math(str(tmp_path / name), {})]
        assert answers[0] == golds[0] and float(answers[1]) == 3.1 and answers[-1] == "5/2" and len(answers) == 12_003


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_a_file_that_is_not_in_utf_8_is_refused(name, encoding, tmp_path):
    (tmp_path / name).write_text('[{"question": "caf\u00e9?", "answer": "5"}]', encoding=encoding)
    with pytest.raises(UserError, match=f"{name}.* UTF-8"):
        tasks.load_math(str(tmp_path / name), {})


@pytest.mark.parametrize("name, text, words", [
    ("a.jsonl", "", "is empty"), ("a.jsonl", "[1]", "columns are none.*a .json file one list"), ("a.json", "5", "columns are none"),
    ("a.jsonl", '{"question": "1?", "answer": "1"}\n\n{"question": "2?', "after 1 rows: Unterminated string .*2[?]"),
    ("a.json", '{"question": "1?", "answer": "1"}\n{"question": "2?"}', "Extra data .*2[?].*a .jsonl file has a JSON object on each line"),
    ("a.json", '{"data": []}', "columns are data: call"), ("a.csv", "question;answer\n1?;1", "columns are question;answer: .* commas between"),
    ("a.csv", "question;answer\n1?;1,5", "columns are question;answer"), ("a.csv", "question\tanswer\n1?\t1", "commas between"),
    ("a.csv", 'question,answer\n0?,1\n"1?,1\n2?,2\n', "after 1 rows: unexpected end"), ("a.json", "[" * 99_999, "cannot be read"),
    ("a.jsonl", '{"text": "1?", "result": "1"}', "columns are text, result: call .*problem.*ground_truth"),
    ("a.jsonl", '{"question": "1?", "answer": {"is": 1}}', "such as row 1: {'is': 1}.*are question, answer: "), ("a.jsonl", '{"question": 5, "answer": 1}', "no question"), ("a.parquet", "PAR1", "a.parquet")])
def test_a_file_that_cannot_be_used_is_one_line_that_says_what_was_found(name, text, words, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=words) as error:
        tasks.load_math(str(tmp_path / name), {})
    assert name in str(error.value) and len(str(error.value)) < 500


USER, BAD_TURNS = {"role": "user", "content": "1?"}, ({"content": "1?"}, {"role": "user", "content": [{"type": "text", "text": "1?"}]},
                                                       {"role": "user", "content": None}, {"role": "user", "content": " "}, {"role": "assistant", "content": "1"}, "1?")


@pytest.mark.parametrize("row", [
    5, "1?", [1], {}, {"question": " ", "answer": "1"}, {"question": ["1?", "2?"], "answer": "1"}, {"question": [], "answer": "1"},
    {"question": "[{'role': 'user', 'content': '1?'}]", "answer": "1"}, {"query": "1?", "target": "1"},
    {"question": "1?", "answer": "1", "Answer": "2"}, {"question": "\ud800?", "answer": "1"}, {"question": "1?", "body": ["A."], "answer": "1"},
    *({"question": [USER, turn], "answer": "1"} for turn in BAD_TURNS)], ids=ascii)
def test_a_row_without_a_question_is_dropped_and_shown(row, tmp_path, capsys):
    """One odd row must not end the load, and is never guessed at."""
    problem, = tasks.load_math(lines(tmp_path / "a.jsonl", [row, {"question": "2?", "answer": "2"}, 7]), {})
    assert problem.question == "2?"
    assert f"dropped 2 of 3 problems of {tmp_path}/a.jsonl" in (printed := capsys.readouterr().out) and repr(row)[:20] in printed


def test_a_csv_row_with_more_cells_than_the_header_is_dropped_and_shown(tmp_path, capsys):
    """Its answer is cut at a comma: 1,234 was the reference answer 1."""
    path = tmp_path / "a.csv"
    path.write_text(f"question,answer\n1?,1,234\n2?,2\n3?,\n{'x' * 140_000}?,4\n5?,\"1,234\"\n6?\n")
    assert [problem.answer for problem in tasks.load_math(str(path), {})] == [["2"], ["4"], ["1,234"]]
    printed = capsys.readouterr().out
    assert "dropped 3 of 6 problems" in printed and "such as row 1: {'question': '1?', 'answer': '1', None: ['234']}" in printed


@pytest.mark.parametrize("settings, words", [
    (dict(data="gsm8"), "--data gsm8 .*gsm8k.*parquet"), (dict(data="no.jsonl"), "--data no.jsonl needs an --eval_data: one of .*math500"),
    (dict(eval_data="aime"), "--eval_data aime "), (dict(eval_data="no.jsonl"), "no.jsonl"), (dict(eval_data="my.txt"), "--eval_data my.txt "),
    (dict(eval_data="/no/such.csv"), "--eval_data /no/such.csv cannot be read .*No such file"), (dict(eval_data="."), "--eval_data "), (dict(task="kk", data="my.jsonl"), "not --data my.jsonl --eval_data none.* --task math"), (dict(task="kk", eval_data="math500"), "--eval_data math500"),
    (dict(task="kk", people=[9]), "--people.* 9"), (dict(task="kk", brief=True, data="published"), "--brief")])
def test_data_that_does_not_exist_is_refused(settings, words):
    settings = {"task": "math", "train_problems": 9, "eval_problems": 9, **settings}
    with pytest.raises((UserError, OSError), match=words):
        tasks.TASKS[settings["task"]](grpo_sg.Config(**settings))


# ---- Golds ----

@pytest.mark.parametrize("answer, golds", [
    ("1,200", ["1,200"]), ("0.6666666667", ["0.6666666667"]), (0.5, ["0.5"]), (0, ["0"]), ("5(x-y)", ["5(x-y)"]),
    ("2(\\sin x)", ["2(\\sin x)"]), ("f'(x)", ["f'(x)"]), ("5 cm", ["5 cm"]), ("x^2 + 2 x", ["x^2 + 2 x"]), ("2^{100}-1", ["2^{100}-1"]),
    ("m + n = 7", ["m + n = 7"]), ("x = y^2", ["x = y^2"]), ("\\text{No solution}", ["\\text{No solution}"]), ("\\infty", ["\\infty"]), (" 5\n", ["5"]), ("\\begin{cases}\n1\n\\end{cases}", ["\\begin{cases}\n1\n\\end{cases}"]), (["4", 5], ["4", "5"])])
def test_a_gold_stays_what_it_is(answer, golds, tmp_path):
    problem, = tasks.load_math(lines(tmp_path / "a.jsonl", [{"question": "1?", "answer": answer}]), {})
    assert problem.answer == golds
    assert all(tasks.verify_math(f"\\boxed{{{gold}}}", problem.answer).correct for gold in golds)


@pytest.mark.parametrize("answer", [
    "proof", "notfound", "None", "unknown", "nan", "N/A", "", " ", None, float("nan"), True, {"is": 5}, [], ["", None],
    "The function increases on the whole line.", "so it is #### ", "As is easily seen by induction it holds",
    "['7']", '["7"]', '["7', "{'value': 7}", '{"value": 7}', "'7'", '"7"', "``7''", "array(['7'])", "9 (apples)", "2.5 (million)", "5 (cm)", "#REF!", "<p>7</p>", "&frac12;",
    "3 \\pmod 7", "3 (mod 7)", "17-20", "17 - 20 cm", "5-10%", "6/8", "2020-01-18", "11/12/2019", "5 m", "x = 5 m", "9.8 m/s^2", "5 Hz", "3 \\times 10^8 m/s",
    "1/2\\pi", "kT/mg", "x^2^3", "(a) 5 (b) 6", "\\approx 5.2", "3 hours 20 minutes", "USD 75", "1.000.000", "x=3 y=4", "1 to 2",
    "+".join("9" * 300), "Proof.", "\\text{Proof}", "(proof)", "so \\boxed{\\text{Proof.}}", "--", "\u2026", "??", "___", "\\ldots", "See solution", "N.A.", "\u7565",
    "\x0crac12", "so \\boxed{\x0crac12}", "3\times 5", "\text{cm}", "\right)", "3 \neq 4", "\begin{cases}1", "7\x00", float("inf")])
def test_a_gold_that_no_response_can_match_is_dropped_and_counted(answer, tmp_path, capsys):
    rows = [{"question": "1?", "answer": answer}, {"question": "2?", "answer": ["2", answer]}]
    problem, = tasks.load_math(lines(tmp_path / "a.jsonl", rows), {})
    assert (problem.question, problem.answer) == ("2?", ["2"])
    assert "dropped 1 of 2 problems" in capsys.readouterr().out


# ---- Repeats, validation and test ----

def rows_of(count, word="train"):
    return [{"question": f"{word} {i}?", "answer": str(i)} for i in range(count)]


def test_repeated_problems_are_dropped_before_validation_is_held_out(tmp_path, capsys):
    """DAPO-Math has each problem 100 times, and a test set of repeats would shrink its standard error."""
    task = load(lines(tmp_path / "a.jsonl", rows_of(90) * 32), lines(tmp_path / "b.jsonl", rows_of(30, "test") * 8))
    assert [len(task.train), len(task.valid), len(task.test)] == [81, 9, 30]
    printed = capsys.readouterr().out
    assert "dropped 2790 of 2880 problems" in printed and "dropped 210 of 240 problems" in printed
    assert printed.count("repeats, 0 questions of the test set, and 0 questions with different answers") == 2
    assert len({problem.question for problem in task.train + task.valid}) == 90


def test_no_question_is_in_two_splits_in_any_form(tmp_path, capsys):
    """White space, case, a chat and its system prompt make no difference."""
    chats = [[{"role": "system", "content": "Hi."}, {"role": "user", "content": "TRAIN  3?"}],
             [{"role": "user", "content": "train\n4?"}]]
    test = [{"question": question, "answer": "1"} for question in [*chats, "Train 5?", "other?"]]
    train = rows_of(40) + [{"question": [{"role": "user", "content": "train 6?"}], "answer": "6"}]
    paths = lines(tmp_path / "a.jsonl", train), lines(tmp_path / "b.jsonl", test)
    task = load(*paths)
    assert [problem.question for problem in task.test[:2]] == chats
    asked = {split: {problem.question for problem in getattr(task, split)} for split in ("train", "valid")}
    assert asked["train"] | asked["valid"] == {f"train {i}?" for i in range(40)} - {"train 3?", "train 4?", "train 5?"}
    assert len(asked["train"]) == 34 and len(asked["valid"]) == 3
    printed = capsys.readouterr().out
    assert "dropped 4 of 41" in printed and "3 questions of the test set" in printed
    assert load(*paths, seed=1).valid != task.valid and len(load(*paths, eval_problems=2).valid) == 2


def test_a_question_with_two_answers_is_dropped(tmp_path, capsys):
    """One of them is wrong, and nothing says which."""
    rows = [{"question": "Train 3?", "answer": "4"}, *rows_of(20), {"question": "train  5?", "answer": "5"}]
    task = load(lines(tmp_path / "a.jsonl", rows), lines(tmp_path / "b.jsonl", rows_of(3, "test") + [{"question": "TEST 1?", "answer": "7"}]))
    assert {problem.question for problem in task.train + task.valid} == {f"train {i}?" for i in range(20)} - {"train 3?"}
    assert [problem.question for problem in task.test] == ["test 0?", "test 2?"]
    printed = capsys.readouterr().out
    assert "dropped 3 of 22 " in printed and "dropped 2 of 4 " in printed and printed.count("1 questions with different answers") == 2


def test_too_few_different_problems_to_hold_some_out_are_refused():
    problems = [Problem(f"{i}?", "1") for i in range(10)]
    for few in (problems, problems[:1] * 60):
        with pytest.raises(UserError, match="--data my.jsonl has . different problems"):
            tasks.hold_out(few, problems[:1], "the test", grpo_sg.Config(data="my.jsonl"))


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
    assert pairs == {"gsm8k": ["gsm8k train", "gsm8k test"], "math": ["MATH-lighteval train", "MATH-500 test"],
                     "deepscaler": ["DeepScaleR-Preview-Dataset train", "aime_2024 train"]}


def test_a_set_that_cannot_be_loaded_is_reported_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # as HF_HUB_OFFLINE=1 would, if it were set before these are loaded
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="cannot load openai/gsm8k from the hub .*OfflineModeIsEnabled.* --task math, a file"):
        tasks.load_math("gsm8k", tasks.MATH_TEST)
    with pytest.raises(UserError, match="cannot load K-and-K/.* use --data synthetic or, with --task math, a file"):
        tasks.kk_task(grpo_sg.Config(data="published", people=[3], eval_problems=5))


def test_an_error_in_the_second_attempt_at_a_set_is_one_line_as_well(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", mock.Mock(side_effect=RuntimeError("scripts are not supported")))
    with pytest.raises(UserError, match="cannot load openai/gsm8k .*scripts are not supported"):
        tasks.load_math("gsm8k", tasks.MATH_TEST)


def test_a_set_on_the_hub_that_is_a_script_is_read_from_its_copy(monkeypatch):
    asked = []

    def load_dataset(name, configuration=None, **given):
        asked.append(given)
        if "revision" not in given:
            raise RuntimeError("Dataset scripts are no longer supported")
        return [{"question": "1?", "answer": "so #### 1,000"}]
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert tasks.load_math("gsm8k", tasks.MATH_TEST) == [Problem("1?", ["1,000"])]
    assert asked == [{"split": "test"},
                     {"data_dir": "main", "split": "test", "revision": "refs/convert/parquet"}]
