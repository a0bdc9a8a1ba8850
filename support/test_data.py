"""Test the data of tasks.py offline: local folders replace sets on the hub."""
import json
import os
import pathlib
from types import SimpleNamespace

import datasets
import huggingface_hub
import pytest

import tasks
from tasks import UserError

CFG = SimpleNamespace(data="synthetic", seed=0, eval_problems=5)
HUB = {  # the real names, configurations, splits and columns
    "openai/gsm8k main": {"test": [{"question": "Bob?", "answer": "#### 70"}], "train": [
        {"question": "Ann?", "answer": "<<3*1000=3000>>\n#### 3,000"}, {"question": "?", "answer": ""}]},
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
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
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


def test_a_set_that_cannot_be_loaded_is_reported_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # as HF_HUB_OFFLINE=1 would, if it were set before these are loaded
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="cannot load openai/gsm8k from the hub: "):
        tasks.load_math("gsm8k", tasks.MATH_TEST)


def test_validation_is_held_out_and_test_questions_are_removed(capsys):
    problems = [SimpleNamespace(question=f"Who is {i}?") for i in range(60)]
    train, valid = tasks.hold_out(problems, [SimpleNamespace(question="who  IS 7?")], "the test", CFG)
    assert "removed 1 training problems that occur in the test" in capsys.readouterr().out
    assert len(train) == 54 and len(valid) == 5 and problems[7] not in train + valid
    for few in (problems[:10], problems[:1] * 60):
        with pytest.raises(UserError, match="--data synthetic has too few different problems"):
            tasks.hold_out(few, problems[:1] if few[1:2] != few[:1] else [], "the test", CFG)
