"""graph.py and sampler.py on a CPU, where a step runs as it is, or is recorded by an emulation of CUDA's."""
import re
from contextlib import contextmanager
from unittest.mock import MagicMock, Mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_sg import sample as plain
from support import graph, sampler

PROMPTS = [[5, 6, 7], [9] * 9, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2]]


def tiny(V=2048, seed=0, **settings):
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=V, hidden_size=56, intermediate_size=64, num_hidden_layers=2, num_attention_heads=14,
        num_key_value_heads=2, initializer_range=0.3, tie_word_embeddings=True, **settings)).eval()


def both(model, **settings):
    settings = {"n": 3, "max_new_tokens": 44, "stop_ids": range(0, model.vocab_size, 20), **settings}
    return [draw(model, PROMPTS, generator=torch.Generator().manual_seed(1), **settings)
            for draw in (plain, graph.sample)]


@pytest.mark.parametrize("V, cases", [(2048, [(1, 1), (3, 16), (2, 17), (3, 44)]), (151936, [(2, 24)])])
def test_tokens_are_those_of_the_plain_sampler_in_bounded_memory(V, cases, monkeypatch):
    """Sampled ones but for ties, where rounding moves a border over the number drawn: in 2 rows at most."""
    model, differ, started = tiny(V), 0, Mock(side_effect=graph.start)
    monkeypatch.setattr(graph, "start", started)
    monkeypatch.setattr(graph, "ROOM", 16)
    for n, limit in cases:
        a, b = both(model, n=n, max_new_tokens=limit, temperature=0)
        assert a == b
        started.reset_mock()
        differ += sum(a != b for a, b in zip(*both(model, n=n, max_new_tokens=limit, temperature=0.7)))
        rows, columns = zip(*((len(call.args[1]), call.args[2]) for call in started.call_args_list))
        assert max(rows) == 4 * n and max(columns) < 12 + limit + 16
    assert differ <= 2 and rows[-1] < rows[0] and columns[-1] > columns[0]


def test_all_rows_end_at_once_or_all_but_one_or_by_a_pause():
    model = tiny()
    a, b = both(model, stop_ids=range(2048))
    assert a == b and {len(x) for x in a} == {1}
    a, b = both(model, n=1, stop_ids=set(range(2048)) - set(both(model, n=1, stop_ids=[])[0][2]))
    assert a == b and sorted(len(x) == 44 for x in a) == [False, False, False, True]
    a, b = both(model, pauses=lambda drawn: drawn[:, -2:].sum(1) % 30 == 0)
    assert a == b and len({len(x) for x in a}) > 5
    with pytest.raises(ValueError, match="layers"):  # of which one forgets all but a window
        both(tiny(use_sliding_window=True, max_window_layers=1))


class Emulation(TorchDispatchMode):
    """CUDA's graphs: while recording, operations are noted, and those in place not done; what takes a value
    to the host, or from it, is refused. A replay repeats them on the same tensors, and puts results where
    they were. log: r for a replay, o for an operation outside of replays and recordings."""
    log, notes = "", None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.notes is None:
            self.log += "o"
            return func(*args, **(kwargs or {}))
        assert func._schema.name not in ("aten::_local_scalar_dense", "aten::nonzero", "aten::lift_fresh")
        out = args[0] if func._schema.is_mutable else func(*args, **(kwargs or {}))
        self.notes += [] if func.is_view else [(func, args, kwargs or {}, out)]
        return out

    @contextmanager
    def record(self, cuda_graph):
        self.notes = notes = []
        yield
        self.notes, cuda_graph.replay = None, lambda: self.replay(notes)

    def replay(self, notes):
        log = self.log
        for func, args, kwargs, out in notes:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs))):
                isinstance(old, torch.Tensor) and old.copy_(new)
        self.log = log + "r"


def test_a_recorded_step_asks_for_nothing_and_replays_to_the_same_tokens(monkeypatch):
    emulation = Emulation()
    for name, stub in {"CUDAGraph": MagicMock, "graph": emulation.record, "stream": MagicMock(),
                       "current_stream": Mock()}.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(graph, "RECORDED", "cpu")
    monkeypatch.setattr(graph, "ROOM", 20)
    with emulation:
        a, b = both(tiny())
    assert sum(x != y for x, y in zip(a, b)) <= 1 and len({len(x) for x in a}) > 5
    assert {len(replays) for replays in re.findall("r+", emulation.log)} <= {15, 16, 11, 12}


def test_only_a_sampler_that_draws_the_right_tokens_is_chosen():
    model = tiny()
    fast, line = sampler.choose(model, plain, PROMPTS[2])
    assert fast is not plain and line == ""
    model.load_state_dict(tiny(seed=1).state_dict())  # which the copy in bfloat16 follows
    assert sampler.misfit(model, fast, PROMPTS[2]) < 0.01
    for broken, why in ((lambda policy, *args, **settings: plain(tiny(), *args, **settings), "off"),
                        (lambda *args, **settings: 1 / 0, "ZeroDivisionError")):
        chosen, line = sampler.choose(model, plain, PROMPTS[2], fast=broken)
        assert chosen is plain and why in line


def test_the_recorded_samplers_copy_of_the_layers_is_gone_after_a_call(monkeypatch):
    model, trunks = tiny(), []
    monkeypatch.setattr(sampler.graph, "sample", lambda *args, trunk, **settings: trunks.append(
        (trunk, sum(p.numel() for p in trunk.parameters()))))
    sampler.recorded(model)(model, [[1, 2, 3]])
    assert trunks[0][1] == sum(p.numel() for p in model.base_model.parameters())
    assert sum(p.numel() for p in trunks[0][0].parameters()) == 0
