"""Test that the page's snippet equals token_weights, that its numbers match the raw file, and
what the command says without TRL."""
import json
import pathlib
import re
import runpy
import statistics
import sys

import pytest
import torch

from grpo_sg import token_weights

HERE = pathlib.Path(__file__).parent
PAGE = (HERE / "README.md").read_text()
RAW = json.loads((HERE / "results" / "processes.json").read_text())


def test_the_three_lines_compute_the_weights():
    code, = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    logps = torch.linspace(-6, 0, 60).reshape(3, 20)
    advantages = torch.tensor([1.0, -2.0, 0.5])
    names = {"torch": torch, "logps": logps, "advantages": advantages}
    exec(code, names)
    torch.testing.assert_close(names["weighted"], advantages[:, None] * token_weights(logps))


def test_the_numbers_match_the_raw_file():
    for name, (one, two) in RAW["learn"].items():
        cells = []
        for part in (slice(0, 5), slice(35, 40)):
            cells.append(f"{statistics.mean(one[part]):.2f}, {statistics.mean(two[part]):.2f}")
        assert f"| {name} | {' | '.join(cells)} |" in PAGE
    seconds = {name: statistics.median(each) for name, each in RAW["cost"]["seconds"].items()}
    words = (f"{seconds['none']:.3f} s of CPU time in the stock trainer and "
             f"{seconds['sg']:.3f} s in the bridge")
    assert words in " ".join(PAGE.split())
    for row in RAW["first"]:  # "equals that of one process to 1e-6"
        assert row["difference"] < 1e-6 < 1e-2 < row["step"]


def test_without_trl_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)  # as if it were not installed
    monkeypatch.setattr(sys, "argv", ["trl_train", "--help"])
    with pytest.raises(SystemExit, match="TRL is not installed") as end:
        runpy.run_module("extras.bridges.trl_train", run_name="__main__")
    file = end.value.code.split("pip install -r ")[1]
    assert "\n" not in end.value.code and (HERE.parents[1] / file).exists()
