import torch

from support import threads


def test_steps_take_the_number_of_threads_that_is_fast_at_present(monkeypatch):
    before = torch.get_num_threads()
    clock, used = [0.0], []
    monkeypatch.setattr(threads.time, "perf_counter", lambda: clock[0])
    try:
        torch.set_num_threads(2)
        for step in threads.paced(range(200)):
            used.append(torch.get_num_threads())
            busy = 30 <= step < 70 or step >= 160
            clock[0] += 0.1 if used[-1] == 1 else 0.5 if busy and step != 182 else 0.06  # 182 was luck
        assert torch.get_num_threads() == 2  # as it was
    finally:
        torch.set_num_threads(before)
    assert used[3:21].count(2) == 18
    assert used[43:61].count(1) == 18
    assert used[143:161].count(2) == 18 and used[183:].count(1) == 17  # trust comes back slowly
