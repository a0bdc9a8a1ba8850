"""Test the data of tasks.py and data.py offline: local folders replace sets on the hub."""
import json
import os
import pathlib
from types import SimpleNamespace

import datasets
import huggingface_hub
import pytest

import tasks
from support import checks, cli, data
from tasks import UserError

CFG = SimpleNamespace(model="any", data="synthetic", eval_data="", seed=0, eval_problems=5, resume=False)


PASSAGES_LINE = {"question": "Who ...?", "answers": ["Ada"], "passages": ["Ada was ..."]}
HUB = {  # the real names, configurations, splits and columns
    "openai/gsm8k main": {"test": [{"question": "Bob?", "answer": "#### 70"}], "train": [
        {"question": "Ann?", "answer": "<<3*1000=3000>>\n#### 3,000"}, {"question": "?", "answer": "none"}]},
    "DigitalLearningGmbH/MATH-lighteval default": {"train": [
        {"problem": "Half?", "solution": r"\boxed{0} \boxed{\frac12}$."}, {"problem": "", "solution": "0"}]},
    "HuggingFaceH4/MATH-500 default": {"test": [{"problem": "P", "answer": "5"}]},
    "agentica-org/DeepScaleR-Preview-Dataset default": {"train": [
        {"problem": "Deep", "answer": "7"}, {"problem": "No", "answer": ""}]},
    "HuggingFaceH4/aime_2024 default": {"train": [{"problem": "It?", "answer": "033"}]}}


def lines(path, rows):
    pathlib.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", f"{tmp_path}/cache")
    for (name, configuration), splits in zip(map(str.split, HUB), HUB.values()):
        os.makedirs(name)
        for split in splits:
            lines(f"{name}/{split}.jsonl", splits[split])
        files = [{"split": split, "path": f"{split}.jsonl"} for split in splits]
        head = json.dumps({"configs": [{"config_name": configuration, "data_files": files}]})
        (tmp_path / name / "README.md").write_text(f"---\n{head}\n---\n")  # JSON is a part of YAML


@pytest.mark.parametrize("places, name, row, dropped", [
    (tasks.MATH_TRAIN, "gsm8k", ("Ann?", ["3000"]), 1), (tasks.MATH_TEST, "gsm8k", ("Bob?", ["70"]), 0),
    (tasks.MATH_TRAIN, "math", ("Half?", [r"\frac12"]), 1), (tasks.MATH_TEST, "math500", ("P", ["5"]), 0),
    (tasks.MATH_TRAIN, "deepscaler", ("Deep", ["7"]), 1), (tasks.MATH_TEST, "aime24", ("It?", ["033"]), 0)])
def test_sets_from_the_hub_are_read(places, name, row, dropped, hub, capsys):
    assert tasks.load_math(name, places) == [row]
    assert capsys.readouterr().out.count(f"dropped 1 of 2 problems of {name}: no gold") == dropped


def test_a_set_that_is_a_script_is_read_from_the_hubs_copy(tmp_path, monkeypatch):
    """Read the copy, a branch with a folder per configuration, without running the script."""
    script = tmp_path / "script" / "hotpot_qa"
    copy = tmp_path / "copy" / "hotpot_qa"
    script.mkdir(parents=True)
    (script / "hotpot_qa.py").write_text("raise SystemExit")
    for configuration in ("distractor", "fullwiki"):
        for split in ("train", "validation"):
            (copy / configuration / split).mkdir(parents=True)
            rows = datasets.Dataset.from_list([{"question": f"{configuration} {split}"}])
            rows.to_parquet(copy / configuration / split / "0000.parquet")
    load = datasets.load_dataset

    def load_branch(name, *more, revision=None, **named):
        """Load the folder that the hub has at this revision."""
        folder = {None: script, "refs/convert/parquet": copy}[revision]
        return load(str(folder), *more, cache_dir=str(tmp_path / "cache"), **named)
    monkeypatch.setattr(datasets, "load_dataset", load_branch)
    for place in (("distractor", "train"), ("fullwiki", "validation")):
        assert tasks.load_hub("hotpotqa/hotpot_qa", *place)["question"][:] == [" ".join(place)]


def test_a_set_that_cannot_be_loaded_is_reported_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # as HF_HUB_OFFLINE=1 would, if it were set before these are loaded
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="cannot load openai/gsm8k from the hub: "):
        tasks.load_math("gsm8k", tasks.MATH_TEST)


def test_paths_become_absolute_but_names_of_the_hub_do_not(tmp_path, monkeypatch):
    """Hub names stay as they are even if there is a folder with that name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("gsm8k", "Qwen", "mine"):
        os.mkdir(name)
    given = {"model": "mine", "data": "gsm8k", "eval_data": "my.jsonl", "out": "~/x", "steps": 3}
    assert data.find_files(given) == {
        "model": f"{tmp_path}/mine", "data": "gsm8k", "eval_data": f"{tmp_path}/my.jsonl",
        "out": "/home/me/x", "steps": 3}
    assert data.find_files({"model": "Qwen/Qwen2.5-0.5B"}) == {"model": "Qwen/Qwen2.5-0.5B"}


def test_rows_of_a_file_are_read_and_bad_files_refused(tmp_path, capsys):
    math = lines(tmp_path / "math.jsonl", [{"question": "a", "answer": [1, "1 apple", None], "more": 0},
                                           {"question": "b", "answer": " "}])
    with open(math, "a") as file:
        file.write("\n   \n")  # blank lines are skipped
    assert tasks.load_math(math, {}) == [("a", ["1", "1 apple"])]
    assert f"dropped 1 of 2 problems of {math}" in capsys.readouterr().out
    qa = lines(tmp_path / "qa.jsonl", [{"question": "a", "answers": 7.5, "passages": ["p"]}])
    assert tasks.read_file(qa, PASSAGES_LINE) == [("a", ["7.5"], ["p"])]
    data.check_file(math)
    with pytest.raises(UserError, match="empty.jsonl has no problem with a gold answer"):
        tasks.load_math(lines(tmp_path / "empty.jsonl", []), {})
    with pytest.raises(UserError, match="cannot read .*none.jsonl: No such file"):
        tasks.load_math(str(tmp_path / "none.jsonl"), {})


@pytest.mark.parametrize("line, why", [
    (b"{", "is not like {"), (b"[]", "is not like {"), (b"5", "is not like {"), (b"\xff", "is not like {"),
    (b"[" * 99999, "is not like {"), (b'{"question": "?"}', "is not like {"),
    (b'{"question": 5, "answer": "5"}', "is not like {"), (b'{"question": "\\ud800", "answer": "5"}', "is not like {"),
    (b'{"question": "?", "answer": {"a": 1}}', "is not like {"), (b'{"question": "?", "answer": [true]}', "is not like {"),
    (b'{"question": "?", "answer": "\\frac{1}{2}"}', "a control character .* In JSON, write a backslash twice"),
    (b'{"question": "Find \\theta.", "answer": "5"}', r"a control character .*'\\theta'"),
    (b'{"question": "A \\rho?", "answer": "5"}', r"a control character .*'\\rho'"),
    (b'{"question": "1 \\cdot 1?", "answer": "5"}', "is not like .* In JSON, write a backslash"),
    (b'{"question": " ", "answer": "5"}', "the question is empty"),
    (b'{"question": "?", "answer": "#### 2"}', "no answer can match '#### 2'"),
    (b'{"question": "?", "answer": "\\\\boxed{5}"}', "no answer can match"),
    (b'{"question": "?", "answer": "He has 3 + 4.\\n#### 7"}', "several lines: give only the final answer"),
    (b'{"question": "?", "answers": ["x"]}', "is not like {"),
    (b'{"question": "?", "answers": ["x"], "passages": "x"}', "is not like {"),
    (b'{"question": "?", "answers": ["x"], "passages": [1]}', "is not like {")])
def test_a_bad_line_is_named(line, why, tmp_path):
    example = PASSAGES_LINE if b"answers" in line else tasks.MATH_LINE
    (tmp_path / "bad.jsonl").write_bytes(json.dumps(example).encode() + b"\n" + line + b"\n")
    with pytest.raises(UserError, match=rf"bad\.jsonl, line 2: .*{why}"):
        data.check_file(str(tmp_path / "bad.jsonl"), example, is_gold)


def is_gold(text):
    return text == "x" or text == "Ada" or tasks.is_gold(text)


def test_golds_from_the_hub_that_nothing_can_match_are_dropped(hub, monkeypatch):
    monkeypatch.setattr(tasks, "is_gold", str.isalpha)
    with pytest.raises(UserError, match="math500 has no problem with a gold answer"):
        tasks.load_math("math500", tasks.MATH_TEST)


def test_a_newline_before_a_lowercase_letter_is_a_warning(tmp_path, capsys):
    path = lines(tmp_path / "nu.jsonl", [{"question": "Two lines.\nThat is allowed.", "answer": "1"},
                                         {"question": "What is \nu?", "answer": "1"}])
    data.check_file(path)
    assert "1 questions have a lowercase letter after a newline, such as line 2. In JSON" in capsys.readouterr().err


@pytest.mark.parametrize("settings, message", [
    (dict(data="gms8k"), "--data gms8k is not one of synthetic, gsm8k, math.* a file .* mean gsm8k?"),
    (dict(data="GSM8K"), "did you mean gsm8k?"),
    (dict(data="math", eval_data="aime"), "--eval_data aime is not one of .* mean aime24?"),
    (dict(data="x.jsonl"), "x.jsonl has no test problems: .*--eval_data"),
    (dict(model="", data="gsm8k"), "tiny model .* --data gsm8k .*: add --model")])
def test_unknown_or_unsuitable_sets_are_refused(settings, message):
    cfg = cli.Settings(**{"model": "any", "task": "math", **settings})
    with pytest.raises(UserError, match=message):
        checks.check_data(cfg)


def test_validation_is_held_out_and_test_questions_are_removed(capsys):
    problems = [SimpleNamespace(question=f"Who is {i}?") for i in range(60)]
    train, valid = tasks.hold_out(problems, [SimpleNamespace(question="who  IS 7?")], "the test", CFG)
    assert "removed 1 training problems that occur in the test" in capsys.readouterr().out
    assert len(train) == 54 and len(valid) == 5 and problems[7] not in train + valid
    for few in (problems[:10], problems[:1] * 60):
        with pytest.raises(UserError, match="--data synthetic has too few different problems"):
            tasks.hold_out(few, problems[:1] if few[1:2] != few[:1] else [], "the test", CFG)
