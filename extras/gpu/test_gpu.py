"""Test that a policy gets the CUDA-graph sampler and the offloading optimizer only on a GPU."""
import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

import extras
import grpo_sg
from extras.gpu import graph, offload, plugin
from extras.gpu.test_graph import PROMPTS, tiny
from support import cli, models

WANTED = SimpleNamespace(sampler="graph", offload=True)


def make_policy(model, device=None):
    """Make a policy whose model claims to be on the device."""
    if device:
        fields = {"device": torch.device(device)}
        model.__class__ = type(type(model).__name__, (type(model),), fields)
    return SimpleNamespace(model=model, sampler=grpo_sg.sample, AdamW=torch.optim.AdamW)


def test_on_request_a_gpu_samples_by_recorded_steps_and_keeps_averages_in_host_memory(monkeypatch, capsys):
    policy = make_policy(tiny(), "cuda")
    chosen = graph.sample, "which it is"
    monkeypatch.setattr(graph, "choose", lambda model, plain, prompt: chosen)
    monkeypatch.setattr(grpo_sg, "has_bfloat16", lambda kind: False)
    plugin.equip(policy, WANTED, PROMPTS[2])
    assert policy.sampler is graph.sample and policy.AdamW is offload.HostAdamW
    assert capsys.readouterr().out == "which it is\n"


def test_a_gpu_uses_the_plain_sampler_unless_asked(capsys):
    policy = make_policy(tiny(), "cuda")
    plugin.equip(policy, SimpleNamespace(sampler="plain", offload=False), PROMPTS[2])
    assert policy.sampler is grpo_sg.sample and policy.AdamW is torch.optim.AdamW
    assert capsys.readouterr() == ("", "")


def test_on_a_cpu_nothing_changes_and_flags_without_effect_are_reported(capsys):
    policy = make_policy(tiny())
    plugin.equip(policy, WANTED, PROMPTS[2])
    assert policy.sampler is grpo_sg.sample and policy.AdamW is torch.optim.AdamW
    offload, sampler = capsys.readouterr().err.splitlines()
    assert offload.startswith("--offload has no effect on cpu")
    assert sampler.startswith("--sampler graph has no effect on cpu")
    plugin.equip(policy, SimpleNamespace(sampler="plain", offload=False), PROMPTS[2])
    assert capsys.readouterr() == ("", "")


def test_the_flag_belongs_to_the_program():
    assert not cli.parse([]).offload and cli.parse(["--offload"]).offload


def test_a_run_without_a_gpu_loads_neither_the_sampler_nor_the_optimizer(monkeypatch):
    monkeypatch.setattr(models, "EQUIP", [])
    monkeypatch.setattr(extras, "gpu", extras.gpu)  # undone after the test
    for name in [name for name in sys.modules if name.startswith("extras.gpu")]:
        monkeypatch.delitem(sys.modules, name)
    fresh = importlib.import_module("extras.gpu.plugin")
    policy = SimpleNamespace(model=SimpleNamespace(device=torch.device("cpu")))
    fresh.equip(policy, WANTED, PROMPTS[2])
    loaded = [name for name in sys.modules if name.startswith("extras.gpu.")]
    assert models.EQUIP == [fresh.equip] and loaded == ["extras.gpu.plugin"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_steps_are_recorded_and_draw_the_right_tokens():
    model = tiny().to("cuda")
    chosen, line = graph.choose(model, grpo_sg.sample, PROMPTS[2])
    assert chosen is graph.sample, line
