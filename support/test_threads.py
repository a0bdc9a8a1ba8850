import io

import pytest
import torch

from support import threads


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == 4  # as it was


def test_steps_take_as_many_threads_as_other_processes_leave_cores_for(monkeypatch, four_threads):
    now, used = [0.0, 0.0, 0.0], []  # the clock, own CPU time, idle time
    monkeypatch.setattr(threads, "reading", lambda: tuple(now))
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(threads, "LOADED", tuple(now))
    for step in threads.paced(range(60)):
        used.append(torch.get_num_threads())
        others = [0, 0.3, 1, 3.4, 0, 5][step // 10]  # cores that other processes take
        own = min(used[-1], max(0.5, 4 - others))
        for i, seconds in enumerate((0.25, own / 4, max(0, 4 - others - own) / 4)):
            now[i] += seconds
    assert [set(used[i + 6:i + 10]) for i in range(0, 60, 10)] == [{4}, {4}, {3}, {1}, {4}, {1}]


def test_idle_time_is_that_of_the_cores_that_this_process_may_use(monkeypatch):
    text = "cpu  9 9 9 9000 900 0 0\ncpu0 1 1 1 100 20 0 0 0\ncpu1 1 1 1 300 1 0 0\ncpu2 7 7 7 3 4\n\nintr\n"
    monkeypatch.setattr(threads, "open", lambda path: io.StringIO(text), raising=False)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    monkeypatch.setattr(threads.os, "sysconf", lambda _: 100, raising=False)
    assert threads.reading()[2] == 1.27


@pytest.mark.parametrize("text", [None, "", "cpu0 1 1 1 100 20 0\n", "cpu0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0\n"])
def test_where_the_system_does_not_say_how_busy_it_is_the_threads_stay(text, monkeypatch, four_threads):
    if text is None:
        monkeypatch.delattr(threads.os, "sched_getaffinity", raising=False)
    else:
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
        monkeypatch.setattr(threads, "open", lambda path: io.StringIO(text), raising=False)
    monkeypatch.setattr(threads, "LOADED", threads.reading())
    assert threads.LOADED is None
    assert [torch.get_num_threads() for _ in threads.paced(range(3))] == [4, 4, 4]
