"""Run measure.py on a tiny model, and check the values that must be equal on any device."""
import contextlib
import json
import sys

import pytest
import torch

import tasks
from extras.gpu import measure


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it takes ten minutes")
def test_a_cpu_prints_the_whole_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--out", f"{tmp_path}/gpu.json", "--seed", "1"])
    measure.main()
    printed = capsys.readouterr().out
    table = [row.split(" | ") for row in printed.splitlines() if row.startswith("|")]
    sent = json.loads((tmp_path / "gpu.json").read_text())
    found = sent["table"]
    assert sent["device"] == "CPU" and len(found) == len(table) - 2
    assert not any("FAILED" in name for name in found) and "WRONG" not in printed
    assert "no GPU found" in printed and all(len(row) == 3 for row in table if "---" not in row[0])
    measured = {name: row["measured"] for name, row in found.items()}
    expected = {name: row["expected"] for name, row in found.items()}
    exact = ["of 4 rows, with equal greedy tokens", "kl of two updates, lr 0",
             "clip_frac of two updates, lr 0"]
    assert all(measured[name] == expected[name] for name in exact)
    assert 0 < measured["kl of two updates, lr 1e-06"] < 1e-4
    for sampler in measure.SAMPLERS:
        assert measured[f"difference of their log pi, greatest, {sampler}"] < 1e-4
        assert measured[f"ms per decode step, 4 rows, 30 columns, {sampler}"] > 0
    for step in (1, 2, 3):  # the third one after --resume
        for part in ("seconds of sampling", "seconds of updates"):
            assert measured[f"step {step}: {part}"] > 0
    memory = {name: gb for name, gb in expected.items() if name.startswith("GB of")}
    assert len(memory) == 2 and all(0 < gb < 0.1 for gb in memory.values())
    assert tasks.TASKS["math"] is tasks.math_task


def test_failures_are_rows_and_wrong_values_are_reported(monkeypatch, capsys):
    monkeypatch.setattr(measure, "found", {})

    def measure_something():
        raise RuntimeError("CUDA error\nmore")
    measure.attempt(measure_something)
    assert "| FAILED: measure_something | RuntimeError: CUDA error |" in capsys.readouterr().out
    for value in (0.01, 0, None):
        measure.tell("kl", value, 0, "it changes")
        assert ("WRONG" in measure.found["kl"]) == (value == 0.01)
    assert capsys.readouterr().out.splitlines() == [
        "| kl | 0.01 | 0, WRONG: it changes |", "| kl | 0 | 0 |", "| kl |  | 0 |"]
    measure.tell("GB", 3.14159, 3.0)  # computed: it may differ
    assert capsys.readouterr().out == "| GB | 3.142 | 3 |\n"


@pytest.mark.parametrize("status, goes_on", [(2, True), (130, False)])
def test_ctrl_c_in_a_run_stops_the_script_and_a_user_error_does_not(status, goes_on, monkeypatch):
    monkeypatch.setattr(measure, "found", {})

    def measure_steps():
        raise SystemExit(status)  # as grpo_sg.main ends
    with contextlib.nullcontext() if goes_on else pytest.raises(SystemExit):
        measure.attempt(measure_steps)
    assert list(measure.found) == ["FAILED: measure_steps"]
