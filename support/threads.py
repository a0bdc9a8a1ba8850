"""How many threads a loop's steps take on a CPU: as many as are fast at the moment."""
import time

import torch


def paced(steps):
    """Yield the steps, each to be computed with one thread or with all, whichever has taken less time of late.

    All threads wait for each other at each of thousands of small operations: this is quickest while they have
    the machine to themselves, and can take many times as long while another process has one of the cores (less
    so with the short waits that support/before_torch.py sets). Results are the same to the last bit
    (experiments/threads.py measures both).
    """
    most = torch.get_num_threads()
    seconds = {1: 0.0, most: 0.0}  # a step takes; 0 where this is not known yet
    try:
        for count, step in enumerate(steps):
            threads = min(seconds, key=seconds.get)
            if threads != torch.get_num_threads():
                torch.set_num_threads(threads)
            began = time.perf_counter()
            yield step
            if not count:
                continue  # the first step is slow with any number of threads
            now = time.perf_counter() - began
            before = seconds[threads] or now
            # What was measured long ago is trusted less and less, so that each is tried again some time.
            seconds = {kind: 0.99 * known for kind, known in seconds.items()}
            # One time alone can be luck, and can hold an evaluation.
            seconds[threads] = (before + min(now, 2 * before)) / 2
    finally:
        torch.set_num_threads(most)
