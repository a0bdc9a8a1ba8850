"""Run the recipes of support/README.md and gpu.md as they are printed: a tracker, LoRA and its merge, and
continuous batching."""
import importlib.machinery
import os
import pathlib
import re
import runpy
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers

import grpo_sg
from support import check
from test_grpo_sg import build_model

PAGE = "".join(pathlib.Path(__file__).with_name(name).read_text("utf-8") for name in ("README.md", "gpu.md"))
SMALL = "--task kk --train_problems 40 --eval_problems 4 --eval_samples 0 --prompts 8 --eval_every 2".split()


def run_recipe(folder, name, flags, monkeypatch):
    code, = re.findall(rf"```python\n(# {name}.py.*?)```", PAGE, re.S)
    (folder / f"{name}.py").write_text(code)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *flags])
    return runpy.run_path(str(folder / f"{name}.py"))


class Tracker(SimpleNamespace):
    """A stand-in for trackio and wandb: both accept these arguments, and their rows have numbers and texts."""
    name, rows, finished, __spec__ = None, (), False, importlib.machinery.ModuleSpec("trackio", None)

    def init(self, *, project, name, resume, config):
        assert isinstance(config, dict) and resume == "allow" and not set("/\\#?%:") & set(name)
        self.name, self.rows = name, []

    def log(self, metrics, *, step):
        assert self.name, "init must be called before log"
        assert "step" not in metrics, "trackio renames it"
        self.rows.append({"step": step, **metrics})

    def finish(self):
        self.finished = True


@pytest.mark.parametrize("library", ["trackio", "wandb"])
def test_a_tracker_gets_every_row(library, tmp_path, monkeypatch):
    tracker = Tracker()
    monkeypatch.setitem(sys.modules, library, tracker)
    assert "import trackio as tracker  # or: import wandb as tracker" in PAGE
    monkeypatch.setattr(sys.modules[__name__], "PAGE", PAGE.replace("import trackio", f"import {library}"))
    run_recipe(tmp_path, "tracked", [*SMALL, "--steps", "2", "--out", f"{tmp_path}/run"], monkeypatch)
    assert tracker.name == "run" and tracker.finished
    assert tracker.rows == grpo_sg.read_rows(tmp_path / "run" / "metrics.jsonl")
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

    monkeypatch.chdir(tmp_path)
    os.makedirs("runs")
    os.rename(parts, "runs/lora")
    run_recipe(tmp_path, "merge", [], monkeypatch)
    ids, mask = torch.arange(2, 14)[None], torch.arange(12)[None] > 0
    trained, merged = (grpo_sg.load_model(name)[0].eval() for name in ("runs/lora/checkpoint-4", "merged"))
    assert not hasattr(merged, "peft_config")
    torch.testing.assert_close(grpo_sg.token_logps(trained, ids, mask), grpo_sg.token_logps(merged, ids, mask))


def test_frozen_layers_in_bfloat16_change_nothing_under_autocast(tmp_path, monkeypatch):
    """Log-probabilities, gradients and samples are equal bit for bit: autocast would cast them anyway."""
    peft = pytest.importorskip("peft")
    monkeypatch.setattr(grpo_sg, "main", lambda make_run: None)
    cast_frozen_layers = run_recipe(tmp_path, "lora", [], monkeypatch)["cast_frozen_layers"]
    monkeypatch.setattr(grpo_sg, "has_bfloat16", lambda device_type: True)
    found = []
    for cast in (False, True):
        torch.manual_seed(0)
        model = peft.get_peft_model(build_model(), peft.LoraConfig(
            target_modules="all-linear", init_lora_weights=False)).eval()
        grpo_sg.keep_logits_in_float32(model)
        if cast:
            cast_frozen_layers(model)
        ids = torch.randint(2, 20, (3, 9), generator=torch.Generator().manual_seed(0))
        mask = torch.arange(9).expand(3, 9) > 3
        with grpo_sg.in_bfloat16(torch.device("cpu")):
            logps = grpo_sg.token_logps(model, ids, mask)
            drawn = grpo_sg.sample(model, [[5, 6], [7]], n=4, max_new_tokens=12, stop_ids=[1],
                                   generator=torch.Generator().manual_seed(0))
        logps.sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])
        found.append((logps.detach(), gradient, drawn))
        low = {name for name, p in model.named_parameters() if p.dtype == torch.bfloat16}
        assert bool(low) == cast and not any("lora_" in name or "lm_head" in name for name in low)
    before, after = found
    assert before[0].equal(after[0]) and before[1].equal(after[1]) and before[2] == after[2]
    assert before[1].norm() > 0


def test_continuous_batching_gives_each_completion_its_tokens(tmp_path, monkeypatch):
    """The sampler stands in for generate_batch, which is slow on a CPU."""
    monkeypatch.setattr(grpo_sg, "write_completions", grpo_sg.write_completions)  # the recipe replaces it
    seen = []

    def generate_batch(model, prompts, settings):
        seen.append((settings.do_sample, settings.temperature, torch.initial_seed()))
        drawn = grpo_sg.sample(model, prompts, max_new_tokens=settings.max_new_tokens,
                               stop_ids=settings.eos_token_id, temperature=settings.temperature * settings.do_sample)
        outputs = {f"req_{i}": SimpleNamespace(generated_tokens=tokens) for i, tokens in enumerate(drawn)}
        return dict(reversed(outputs.items()))  # in the order in which they end
    monkeypatch.setattr(transformers.SeedOssForCausalLM, "generate_batch", generate_batch)
    run_recipe(tmp_path, "batched", [*SMALL, "--steps", "2", "--eval_samples", "2", "--temperature", "0.9",
                                     "--out", f"{tmp_path}/run"], monkeypatch)
    test, *_ = grpo_sg.read_rows(tmp_path / "run" / "metrics.jsonl")
    assert test["eval/format_rate"] == 1 and test["eval/truncated"] == 0  # each completion follows its own prompt
    assert [pair[:2] for pair in seen[:3]] == [(False, 1.0), (True, 0.9), (True, 0.9)]
    assert seen[2][2] != seen[3][2]  # each step has a seed of its own
