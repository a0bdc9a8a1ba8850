"""Test that the page's snippet equals token_weights, and what the commands say if something is
missing."""
import pathlib
import re
import runpy
import sys

import pytest
import torch

from grpo_sg import token_weights

HERE = pathlib.Path(__file__).parent
PAGE = (HERE / "README.md").read_text("utf-8")


def test_the_three_lines_compute_the_weights():
    code, = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    logps = torch.linspace(-6, 0, 60).reshape(3, 20)
    advantages = torch.tensor([1.0, -2.0, 0.5])
    names = {"torch": torch, "logps": logps, "advantages": advantages}
    exec(code, names)
    torch.testing.assert_close(names["weighted"], advantages[:, None] * token_weights(logps))


def test_without_trl_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)  # as if it were not installed
    monkeypatch.setattr(sys, "argv", ["trl_train", "--help"])
    with pytest.raises(SystemExit, match="TRL is not installed") as end:
        runpy.run_module("extras.bridges.trl_train", run_name="__main__")
    file = end.value.code.split("pip install -r ")[1]
    assert "\n" not in end.value.code and (HERE.parents[1] / file).exists()


@pytest.mark.parametrize("given", [[], ["--task", "kk", "--model", "M"], ["a.parquet", "--task"]])
def test_verl_data_wants_the_names_of_two_files_first(given, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["verl_data", *given])
    with pytest.raises(SystemExit, match="train.parquet valid.parquet"):
        runpy.run_module("extras.bridges.verl_data", run_name="__main__")
    assert not list(tmp_path.iterdir())
