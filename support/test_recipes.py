"""Run the recipes of support/README.md as they are printed, a tracker and LoRA, and the three lines of
bridges/README.md."""
import pathlib
import re
import runpy
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest
import torch

import grpo_sg
from grpo_sg import token_weights
from support import page
from test_grpo_sg import rows_of

HERE = pathlib.Path(__file__).parent
SMALL = "--task kk --train_problems 40 --eval_problems 4 --eval_samples 0 --prompts 8 --eval_every 2 --steps 2".split()


def run_recipe(name, replaced, out, monkeypatch, *flags):
    """Run a file printed in support/README.md, after a replacement, with flags for a short run."""
    code, = re.findall(rf"```python\n(# {name}.py.*?)```", (HERE / "README.md").read_text("utf-8"), re.S)
    assert replaced[0] in code
    (out.parent / f"{name}.py").write_text(code.replace(*replaced))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *SMALL, "--out", str(out), *flags])
    runpy.run_path(str(out.parent / f"{name}.py"))


@pytest.mark.parametrize("library", ["trackio", "wandb"])
def test_a_tracker_gets_every_row(library, tmp_path, monkeypatch):
    """The stand-in accepts what both libraries do."""
    sent, calls = [], []

    def log(metrics, *, step):
        assert calls == ["init"] and "step" not in metrics  # trackio would rename it
        sent.append({"step": step, **metrics})
    monkeypatch.setitem(sys.modules, library, SimpleNamespace(
        init=lambda project: calls.append("init"), log=log, finish=lambda: calls.append("finish"),
        __spec__=ModuleSpec(library, None)))  # transformers looks for it
    monkeypatch.setattr(grpo_sg, "log", grpo_sg.log)  # the recipe replaces it
    run_recipe("tracked", ("import trackio", f"import {library}"), tmp_path / "run", monkeypatch)
    assert calls == ["init", "finish"] and sent == rows_of(tmp_path / "run" / "metrics.jsonl")
    assert [row.get("split", "step") for row in sent] == ["test", "step", "step", "valid", "test"]
    assert "2 of 2 steps" in page.write(tmp_path / "run").read_text("utf-8")


def test_lora_trains_an_adapter_and_merges_it_into_a_model_that_can_be_tested(tmp_path, monkeypatch):
    """Merged, the model has the log-probabilities that it had with the adapter."""
    peft = pytest.importorskip("peft")
    merge, adapted = peft.LoraModel.merge_and_unload, []
    ids, mask = torch.arange(2, 14)[None], torch.arange(12)[None] > 0

    def look_and_merge(adapter):
        learned = {name for name, p in adapter.model.named_parameters() if p.requires_grad}
        assert learned and all("lora_" in name for name in learned)
        adapted.append(grpo_sg.token_logps(adapter.model, ids, mask))
        return merge(adapter)
    monkeypatch.setattr(peft.LoraModel, "merge_and_unload", look_and_merge)
    run_recipe("lora", ("r=16", "r=4"), tmp_path / "lora", monkeypatch, "--lr", "1e-2")
    cfg = grpo_sg.read_settings(["--eval_only", "--model", str(tmp_path / "lora")])
    assert (cfg.task, cfg.brief, cfg.steps) == ("kk", True, 2)
    (merged, _), (initial, _) = grpo_sg.load_model(cfg.model), grpo_sg.load_model(HERE / "pretrained" / "kk")
    merged, initial = (grpo_sg.token_logps(model, ids, mask) for model in (merged, initial))
    torch.testing.assert_close(merged, adapted[0])
    assert (merged - initial).abs().max() > 0.01


def test_the_three_lines_for_any_trainer_compute_the_weights():
    if not (HERE / "bridges").is_dir():
        pytest.skip("the folder is not there")
    code, = re.findall(r"```python\n(.*?)```", (HERE / "bridges" / "README.md").read_text("utf-8"), re.S)
    logps = torch.linspace(-6, 0, 60).reshape(3, 20)
    advantages = torch.tensor([1.0, -2.0, 0.5])
    names = {"torch": torch, "logps": logps, "advantages": advantages}
    exec(code, names)
    torch.testing.assert_close(names["weighted"], advantages[:, None] * token_weights(logps))
