"""A run that is killed at random moments, and resumed each time, ends as an uninterrupted
one: metrics, transcripts and parameters are equal, bit for bit."""
import json
import os
import random
import signal
import time

import pytest

import grpo_sg
from support import program

FLAGS = ["--model", os.path.join(program.ROOT, "support", "pretrained", "math"), "--task", "math",
         "--train_problems", "200", "--eval_problems", "4", "--eval_samples", "0",
         "--eval_every", "4", "--prompts", "4", "--group_size", "4", "--beta", "0.01"]
KILLS = 4


def start(*argv):
    """Start a run in a fork of this process, which has loaded PyTorch; return its process id."""
    number = os.fork()
    if number == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        status = 1
        try:
            grpo_sg.main(list(argv))
            status = 0
        finally:
            os._exit(status)
    return number


def last_step(out):
    try:
        return json.loads((out / "checkpoint" / "state.json").read_text())["step"]
    except OSError:
        return 0


def read_outcome(out):
    """Return the metrics without times, the transcripts, tokens, and parameters."""
    rows = []
    for line in (out / "metrics.jsonl").read_text().splitlines():
        rows.append({key: x for key, x in json.loads(line).items() if "second" not in key})
    texts = [(out / name).read_text() for name in ("samples.jsonl", "tokens.jsonl")]
    return rows, texts, (out / "checkpoint" / "model.safetensors").read_bytes()


@pytest.mark.release
def test_killed_runs_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(grpo_sg, "SAVE_SECONDS", 0)  # a checkpoint at every step
    rng, out = random.Random(0), tmp_path / "killed"
    argv = [*FLAGS, "--steps", "1000000", "--out", str(out)]
    for _ in range(KILLS):
        before, number = last_step(out), start(*argv)
        while last_step(out) <= before + 1:
            assert os.waitpid(number, os.WNOHANG) == (0, 0), "it ended by itself"
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        argv = ["--resume", "--out", str(out)]
    steps = str(last_step(out) + 2)
    grpo_sg.main([*argv, "--steps", steps])
    grpo_sg.main([*FLAGS, "--steps", steps, "--out", str(tmp_path / "whole")])
    assert read_outcome(out) == read_outcome(tmp_path / "whole")
