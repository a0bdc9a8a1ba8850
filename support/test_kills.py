"""End runs of the program at random moments, as a user or a machine does, and resume them."""
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from test_grpo_sg import contents_of

ROOT = pathlib.Path(__file__).parents[1]
FLAGS = ("--steps 30 --prompts 8 --updates 2 --train_problems 300 --eval_problems 20 --eval_every 9 "
         "--eval_samples 2").split()


def allow_ctrl_c():
    """In the background of a shell SIGINT is ignored, and a child inherits this."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(out, *flags, **pipes):
    """Start a run that saves after each step."""
    code = f"import grpo_sg; grpo_sg.SAVE_SECONDS = -1; grpo_sg.main({[*flags, '--out', str(out)]})"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True, preexec_fn=allow_ctrl_c,
                            stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)


@pytest.mark.release
@pytest.mark.parametrize("name, status", [("SIGKILL", -9), ("SIGINT", 130), ("SIGTERM", 143)])
def test_a_run_ended_at_random_moments_ends_like_an_uninterrupted_one(name, status, tmp_path):
    start(tmp_path / "whole", *FLAGS).communicate()
    rng = random.Random(name)
    flags, ended = FLAGS, 0
    for _ in range(4):
        run = start(tmp_path / "run", *flags)
        steps = rng.randint(1, 3)  # of the 30, so that no run ends by itself
        for line in run.stdout:
            steps -= line.startswith("step ")
            if steps == 0:
                break
        time.sleep(rng.uniform(0, 0.3))
        run.send_signal(getattr(signal, name))
        run.communicate()
        ended += run.returncode == status
        flags = ["--resume"]
    assert ended == 4
    run = start(tmp_path / "run", "--resume")
    assert run.communicate() and run.returncode == 0
    assert contents_of(tmp_path / "run") == contents_of(tmp_path / "whole")


@pytest.mark.release
def test_a_run_outlives_the_reader_of_its_output(tmp_path):
    """As `python grpo_sg.py | head -2`."""
    run = start(tmp_path / "run", *FLAGS, stderr=subprocess.PIPE)
    run.stdout.readline()
    run.stdout.close()
    assert run.stderr.read() == "" and run.wait() == 0
    assert contents_of(tmp_path / "run")[2] == 30
