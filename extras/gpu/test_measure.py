"""Run measure.py on a tiny model, and check the values that must be equal on any device."""
import contextlib
import json
import sys

import pytest
import torch

import tasks
from extras.gpu import measure, seconds


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it takes ten minutes")
def test_a_cpu_prints_the_whole_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--out", f"{tmp_path}/gpu.json", "--seed", "1"])
    measure.main()
    printed = capsys.readouterr().out
    table = [row.split(" | ") for row in printed.splitlines() if row.startswith("|")]
    sent = json.loads((tmp_path / "gpu.json").read_text())
    found = sent["table"]
    assert sent["device"] == "CPU" and len(found) == len(table) - 2
    assert not any("FAILED" in name for name in found)
    assert "\n".join(sent["meaning"]) in printed and "no GPU found" in printed
    assert not any("WRONG" in line for line in sent["meaning"])
    assert sum(line.startswith("right: ") for line in sent["meaning"]) == 4
    assert all(len(row) == 3 for row in table if "---" not in row[0])
    measured = {name: row["measured"] for name, row in found.items()}
    computed = {name: row["computed"] for name, row in found.items()}
    exact = ["of 4 rows, with equal greedy tokens", "kl of two updates, lr 0",
             "clip_frac of two updates, lr 0"]
    assert all(measured[name] == computed[name] for name in exact)
    assert 0 < measured["kl of two updates, lr 1e-06"] < 1e-4
    for sampler in measure.SAMPLERS:
        assert measured[f"difference of their log pi, greatest, {sampler}"] < 1e-4
        assert measured[f"ms per decode step, 4 rows, 30 columns, {sampler}"] > 0
    for step in (1, 2, 3):  # the third one after --resume
        for part in ("seconds of sampling", "seconds of updates"):
            name = f"step {step}: {part}"
            assert measured[name] > 0 and computed[name] > 0
    memory = {name: gb for name, gb in computed.items() if name.startswith("GB of")}
    assert len(memory) == 2 and all(0 < gb < 0.1 for gb in memory.values())
    assert tasks.TASKS["math"] is tasks.math_task


def test_failures_are_rows_and_wrong_values_are_reported(monkeypatch, capsys):
    monkeypatch.setattr(measure, "found", {})

    def measure_something():
        raise RuntimeError("CUDA error\nmore")
    measure.attempt(measure_something)
    assert "| FAILED: measure_something | RuntimeError: CUDA error |" in capsys.readouterr().out
    measure.tell("kl of two updates, lr 0", 0.01, 0)
    for rows, plain, recorded in ((1, 10.0, 20.0), (8, 30.0, 10.0)):
        measure.tell(f"ms per decode step, {rows} rows, 300 columns, plain", plain)
        measure.tell(f"ms per decode step, {rows} rows, 300 columns, recorded", recorded, 5.0)
    measure.tell("KL of the sampler to the trainer, plain", 1e-4)
    measure.tell("KL of the sampler to the trainer, recorded", 1e-3)
    failed, updates, computed, gain, distance = measure.explain()
    assert failed.startswith("FAILED: measure_something")
    assert updates.startswith("WRONG: kl of two updates, lr 0") and "log-prob" in updates
    assert "2.00 to 4.00 times the computed" in computed
    assert "0.5 to 3.0 times as long" in gain
    assert distance.startswith("WRONG") and "--sampler plain" in distance


@pytest.mark.parametrize("status, goes_on", [(2, True), (130, False)])
def test_ctrl_c_in_a_run_stops_the_script_and_a_user_error_does_not(status, goes_on, monkeypatch):
    monkeypatch.setattr(measure, "found", {})

    def measure_steps():
        raise SystemExit(status)  # as grpo_sg.main ends
    with contextlib.nullcontext() if goes_on else pytest.raises(SystemExit):
        measure.attempt(measure_steps)
    assert list(measure.found) == ["FAILED: measure_steps"]


@pytest.mark.parametrize("card", seconds.EARLIER)
def test_seconds_roughly_agree_with_another_formula(card):
    sampling, update = seconds.compute_check(card)
    before = seconds.EARLIER[card]
    assert sampling == pytest.approx(before[0], rel=0.3)
    assert update == pytest.approx(before[1], rel=0.35)


def test_a_step_takes_longer_with_more_work_and_on_a_slower_card():
    sampling, update = seconds.compute_check("A100")
    slower = seconds.compute_check("T4")
    assert slower[0] > 3 * sampling and slower[1] > 10 * update
    parts = seconds.compute_check("A100", sample_batch=256)
    assert sampling < parts[0] < 2 * sampling and parts[1] == update
    more = seconds.compute_check("A100", gradient_checkpointing=True, beta=0.01)
    assert more[0] == sampling and more[1] / update == pytest.approx(11 / 7)
