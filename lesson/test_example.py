"""The example's numbers are what its columns say."""
import math
import pathlib
import re
import runpy
import sys

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, SeedOssConfig, SeedOssForCausalLM

from lesson import example


def save_tiny(folder):
    """An untrained model of the puzzle's words."""
    words = ["<|im_end|>", *sorted(set(re.findall(r"\s?\S+", example.QUESTION)))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s?\S+"), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer,
                            eos_token="<|im_end|>").save_pretrained(folder)
    torch.manual_seed(0)
    SeedOssForCausalLM(SeedOssConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2)).save_pretrained(folder)
    return len(words)


def test_the_columns(tmp_path, monkeypatch, capsys):
    N = save_tiny(tmp_path)
    monkeypatch.setattr(example, "reward", lambda text, ended: 3.0 if "Amir" in text else -0.5)
    monkeypatch.setattr(example, "LEARNING_RATE", 0.01)
    example.main(tmp_path)
    gained = 0.0
    rows = re.findall(r"^\| \d.*$", capsys.readouterr().out, re.M)
    for row in rows:
        pi, w, A, wA, size, after = map(float, row.strip("| ").split(" | ")[2:])
        assert abs(w * A - wA) < 0.02
        least = abs(wA) * math.sqrt(N / (N - 1)) * (1 - pi)
        most = abs(wA) * math.sqrt(2) * (1 - pi)
        assert least - 0.02 < size < most + 0.02
        gained += A * (after - pi)
    assert len(rows) > 2 and gained > 0  # good tokens got more likely, bad ones less


def test_groups_of_equal_rewards_have_no_example(tmp_path, monkeypatch):
    save_tiny(tmp_path)
    monkeypatch.setattr(example, "sample", lambda *given, **more: [[0]] * example.G)
    with pytest.raises(SystemExit, match="equal rewards"):
        example.main(tmp_path)


def test_the_page_says_what_the_command_printed():
    lesson = pathlib.Path(example.__file__).parent
    head, printed = (lesson / "results" / "example.txt").read_text().split("\n", 1)
    assert head.startswith("# python -m lesson.example, commit ")
    page = (lesson / "README.md").read_text()
    section = page.split("## One example")[1].split("\n## ")[0]
    for number in re.findall(r"-?\d\.\d{2,}", section.split("Answers")[1]):
        assert number in printed, number
    rows = {tuple(row.split(" | ")[:2]): row for row in re.findall(r"^\| (\d.*)$", printed, re.M)}
    _, _, pi, *_, after = rows["3", "`KNN.`"].strip(" |").split(" | ")
    assert float(after) > float(pi)


def test_the_pretrained_model_gives_what_was_recorded(capsys):
    """The same words, and the same numbers up to another processor's rounding."""
    example.main(f"{example.ROOT}/support/pretrained/kk")
    number = r"[+-]?\d+(?:\.\d+)?"
    recorded = (pathlib.Path(example.__file__).parent / "results" / "example.txt").read_text()
    recorded = recorded.split("\n", 1)[1]
    printed = capsys.readouterr().out
    assert re.sub(number, "#", printed) == re.sub(number, "#", recorded)
    values = [list(map(float, re.findall(number, text))) for text in (printed, recorded)]
    assert values[0] == pytest.approx(values[1], abs=0.03)


@pytest.mark.parametrize("given", ["runs/nowhere", "runs/NAME", "a b"])
def test_a_folder_without_a_model_is_reported_in_one_line(given, tmp_path, monkeypatch):
    """The folder of a run has a config.json, but it is not a model's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "NAME").mkdir(parents=True)
    (tmp_path / "runs" / "NAME" / "config.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["example.py", *given.split()])
    with pytest.raises(SystemExit, match="give the folder of a model, such as runs/"):
        runpy.run_path(example.__file__, run_name="__main__")
