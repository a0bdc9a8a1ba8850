"""How many threads a loop's steps take on a CPU: as many as other processes leave cores for."""
import os
import time

import torch


def reading():
    """(a clock, this process's CPU time, idle time of the CPUs that it may use), in seconds; None where the
    system does not say (Linux does: proc(5))."""
    try:
        usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        with open("/proc/stat") as file:
            rows = [row for row in map(str.split, file) if row and row[0] in usable]
        idle = sum(int(row[4]) + int(row[5]) for row in rows) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError):
        return None
    if len(rows) < len(usable) or not idle:  # as in some containers, which number or count otherwise
        return None
    return time.perf_counter(), time.process_time(), idle


LOADED = reading()  # the first steps go by how busy the machine was while the program was loaded


def paced(steps):
    """Yield the steps, each to be computed with as many threads as cores were free in the last second.

    All threads wait for each other at each of thousands of small operations. Where another process has one of
    their cores, a step takes several times as long as with one thread. Results are the same to the last bit
    (experiments/threads.py measures both).
    """
    most, last = torch.get_num_threads(), LOADED
    try:
        for step in steps:
            if last and time.perf_counter() - last[0] >= 1:
                now = reading()
                seconds, own, idle = (late - early for early, late in zip(last, now))
                threads = max(1, min(most, round((own + idle) / seconds)))
                last = now
                if threads != torch.get_num_threads():
                    torch.set_num_threads(threads)
            yield step
    finally:
        if torch.get_num_threads() != most:
            torch.set_num_threads(most)
