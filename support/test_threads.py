import torch

from support import threads


def test_steps_take_the_number_of_threads_that_is_fast_at_present(monkeypatch):
    before = torch.get_num_threads()
    clock, used = [0.0], []
    monkeypatch.setattr(threads.time, "perf_counter", lambda: clock[0])
    try:
        torch.set_num_threads(2)
        for step in threads.paced(range(400)):
            used.append(torch.get_num_threads())
            busy = 100 <= step < 300
            clock[0] += 0.1 if used[-1] == 1 else 0.3 if busy and step != 174 else 0.06
            clock[0] += step in (0, 50)  # the first step is slow; an evaluation
        assert torch.get_num_threads() == 2  # as it was
    finally:
        torch.set_num_threads(before)
    assert used[:3] == [1, 1, 2]
    assert used[3:100].count(2) >= 94  # in spite of the evaluation
    assert used[174] == 2 and used[100:300].count(2) <= 15  # in spite of the lucky step
    assert used[355:].count(2) >= 43
