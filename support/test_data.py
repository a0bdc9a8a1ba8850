"""Tests of data.py, offline: a local folder that has the name of a set on the hub takes its place."""
import json
import os
import pathlib
from types import SimpleNamespace

import pytest

from support import data

CFG = SimpleNamespace(model="any", data="synthetic", eval_data="", seed=0, eval_problems=5)


HOTPOT = [{"question": f"Where is {i}?", "answer": f"Town {i}", "context": {
    "title": [f"T{i}", "Common"], "sentences": [["It is ", f"in Town {i}."], ["Known."]]}} for i in range(9)]
HUB = {  # the true names, configurations, splits, and columns that are read
    "openai/gsm8k main": {"test": [{"question": "Bob?", "answer": "#### 70"}], "train": [
        {"question": "Ann?", "answer": "<<3*1000=3000>>\n#### 3,000"}, {"question": "?", "answer": "none"}]},
    "DigitalLearningGmbH/MATH-lighteval default": {"train": [
        {"problem": "Half?", "solution": r"\boxed{0} \boxed{\frac12}$."}, {"problem": "", "solution": "0"}]},
    "HuggingFaceH4/MATH-500 default": {"test": [{"problem": "P", "answer": "5"}]},
    "agentica-org/DeepScaleR-Preview-Dataset default": {"train": [
        {"problem": "Deep", "answer": "7"}, {"problem": "No", "answer": ""}]},
    "HuggingFaceH4/aime_2024 default": {"train": [{"problem": "It?", "answer": "033"}]},
    "hotpotqa/hotpot_qa distractor": {"train": HOTPOT, "validation": HOTPOT[7:8]}}


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
    (data.MATH_TRAIN, "gsm8k", ("Ann?", ["3000"]), 1), (data.MATH_TEST, "gsm8k", ("Bob?", ["70"]), 0),
    (data.MATH_TRAIN, "math", ("Half?", [r"\frac12"]), 1), (data.MATH_TEST, "math500", ("P", ["5"]), 0),
    (data.MATH_TRAIN, "deepscaler", ("Deep", ["7"]), 1), (data.MATH_TEST, "aime24", ("It?", ["033"]), 0)])
def test_sets_of_the_hub(places, name, row, dropped, hub, capsys):
    assert data.rows_of(name, {name: data.math_rows(name, *places[name])}, data.MATH_LINE) == [row]
    assert capsys.readouterr().out.count(f"dropped 1 of 2 problems of {name}: no gold") == dropped


def test_hotpotqa(hub):
    assert list(data.hotpotqa("test", 5, 0)) == [
        ("Where is 7?", ["Town 7"], ["(Title: T7) It is in Town 7.", "(Title: Common) Known."])]
    first, again, other = ([row[0] for row in data.hotpotqa("train", 6, seed)] for seed in (1, 1, 2))
    assert len(set(first)) == 6 and first == again != other


def test_a_set_that_comes_as_a_script_is_read_from_the_hubs_copy(monkeypatch):
    def load_dataset(*name, revision=None, **split):
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found hotpot_qa.py")
        return [(name, split, revision)]
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert data.hub_rows("a", "b", split="c") == [(("a", "b"), {"split": "c"}, "refs/convert/parquet")]


def test_rows_of_a_file(tmp_path, capsys):
    math = lines(tmp_path / "math.jsonl", [{"question": "a", "answer": [1, "1 apple", None], "more": 0},
                                           {"question": "b", "answer": " "}])
    assert data.rows_of(math, {}, data.MATH_LINE) == [("a", ["1", "1 apple"])]
    assert f"dropped 1 of 2 problems of {math}" in capsys.readouterr().out
    qa = lines(tmp_path / "qa.jsonl", [{"question": "a", "answers": 7.5, "passages": ["p"]}])
    assert data.rows_of(qa, {}, data.QA_LINE) == [("a", ["7.5"], ["p"])]
    with pytest.raises(ValueError, match="empty.jsonl has no problem with a gold answer"):
        data.rows_of(lines(tmp_path / "empty.jsonl", []), {}, data.MATH_LINE)


@pytest.mark.parametrize("line", [
    b"{", b"[]", b"5", b"", b"\xff", b"[" * 99999, b'{"question": "?"}', b'{"question": 5, "answer": "5"}',
    b'{"question": "?", "answer": {"a": 1}}', b'{"question": "?", "answer": [true]}',
    b'{"question": "?", "answers": ["x"]}', b'{"question": "?", "answers": ["x"], "passages": "x"}',
    b'{"question": "?", "answers": ["x"], "passages": [1]}'])
def test_a_line_that_is_no_row_is_named(line, tmp_path):
    example = data.QA_LINE if b"answers" in line else data.MATH_LINE
    (tmp_path / "bad.jsonl").write_bytes(json.dumps(example).encode() + b"\n" + line + b"\n")
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2: b.{,80} is not like {\"question\".{,80}$"):
        data.rows_of(str(tmp_path / "bad.jsonl"), {}, example)


@pytest.mark.parametrize("settings, message", [
    (dict(data="gms8k"), "--data gms8k is not one of synthetic, gsm8k, math.* a file .* mean gsm8k?"),
    (dict(data="math", eval_data="aime"), "--eval_data aime is not one of .* mean aime24?"),
    (dict(data="x.jsonl"), "x.jsonl has no test problems: .*--eval_data"),
    (dict(model="", data="gsm8k"), "tiny model .* --data gsm8k .*: add --model")])
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        data.eval_data_of(SimpleNamespace(**{**vars(CFG), **settings}), data.MATH_PAIRS)


def test_nothing_is_held_out_twice(capsys):
    problems = [SimpleNamespace(question=f"Who is {i}?") for i in range(60)]
    train, valid = data.hold_out(problems, [SimpleNamespace(question="who  IS 7?")], "the test", CFG)
    assert "removed 1 training problems that occur in the test" in capsys.readouterr().out
    assert len(train) == 54 and len(valid) == 5 and problems[7] not in train + valid
    with pytest.raises(ValueError, match="--data synthetic has 9 problems"):
        data.hold_out(problems[:10], problems[:1], "the test", CFG)
