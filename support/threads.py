"""How many threads a loop's steps take on a CPU: as many as are fast at the moment."""
import time

import torch


def paced(steps):
    """Yield the steps, each to be computed with one thread or with all. A step of each kind is timed in
    every twenty; the others are done as the kind with the lower average, in which the last time has half
    the weight.

    All threads wait for each other at each of thousands of small operations, and they wait actively: this is
    quickest while they have the machine to themselves, and takes several times as long while another process
    has one of the cores. To wait passively is slow where nothing else runs. Results are the same to the last
    bit (experiments/threads.py measures both).
    """
    most, seconds = torch.get_num_threads(), {}
    try:
        for count, step in enumerate(steps):
            trial = {1: 1, 2: most}.get(count % 20)  # not the first step, which is slow anyway
            threads = trial or min(seconds, key=seconds.get, default=most)
            if threads != torch.get_num_threads():
                torch.set_num_threads(threads)
            began = time.perf_counter()
            yield step
            if trial:
                now = time.perf_counter() - began
                seconds[trial] = (seconds.get(trial, now) + now) / 2  # one time alone can be luck
    finally:
        torch.set_num_threads(most)
