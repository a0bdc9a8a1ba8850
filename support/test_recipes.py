"""Run the recipes of support/README.md as they are printed: a tracker, and LoRA."""
import importlib.machinery
import pathlib
import re
import runpy
import sys
from types import SimpleNamespace

import pytest
import torch

import grpo_sg
from support import check

PAGE = pathlib.Path(__file__).with_name("README.md").read_text("utf-8")
SMALL = "--task kk --train_problems 40 --eval_problems 4 --eval_samples 0 --prompts 8 --eval_every 2".split()


def run_recipe(folder, name, flags, monkeypatch):
    code, = re.findall(rf"```python\n(# {name}.py.*?)```", PAGE, re.S)
    (folder / f"{name}.py").write_text(code)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *flags])
    runpy.run_path(str(folder / f"{name}.py"))


class Tracker(SimpleNamespace):
    """A stand-in for wandb, with its checks."""
    id, rows, __spec__ = None, (), importlib.machinery.ModuleSpec("wandb", None)

    def init(self, *, project, id, resume, config):
        assert isinstance(config, dict) and resume == "allow" and not set("/\\#?%:") & set(id)
        self.id, self.rows = id, []

    def log(self, data):
        assert self.id, "You must call wandb.init() before wandb.log()"
        assert isinstance(data, dict) and all(isinstance(key, str) for key in data)
        self.rows.append(data)


def test_a_tracker_gets_every_row(tmp_path, monkeypatch):
    tracker = Tracker()
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    run_recipe(tmp_path, "tracked", [*SMALL, "--steps", "2", "--out", f"{tmp_path}/run"], monkeypatch)
    assert tracker.id == "run" and tracker.rows == grpo_sg.read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row.get("split", "step") for row in tracker.rows] == ["test", "step", "step", "test"]


def test_a_lora_run_trains_resumes_and_is_tested(tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags = [*SMALL, "--lr", "1e-2", "--out"]
    run_recipe(tmp_path, "lora", [*flags, str(whole), "--steps", "4"], monkeypatch)
    run_recipe(tmp_path, "lora", [*flags, str(parts), "--steps", "2"], monkeypatch)
    run_recipe(tmp_path, "lora", ["--resume", "--out", str(parts), "--steps", "4"], monkeypatch)
    accuracy = re.findall(r"test after step 4: greedy accuracy ([0-9.]+)", capsys.readouterr().out)[-1]
    models = [dict(grpo_sg.load_model(run / "checkpoint-4")[0].named_parameters()) for run in (whole, parts)]
    for name, parameter in models[0].items():
        assert torch.equal(parameter, models[1][name]), name
        if "lora_B" in name:
            assert parameter.any(), name  # it begins with zeros
    run_recipe(tmp_path, "lora", ["--eval_only", "--model", str(parts), "--out", f"{tmp_path}/test"], monkeypatch)
    assert f"test after step 0: greedy accuracy {accuracy}" in capsys.readouterr().out
    check.main(["--model", str(parts)])  # its first parameters have no gradient
    assert "tokens sampled a second" in capsys.readouterr().out
