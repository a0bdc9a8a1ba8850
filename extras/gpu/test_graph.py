"""Test graph.py on a CPU, where steps run eagerly or an emulation of CUDA graphs records them."""
import gc
import re
import warnings
import weakref
from contextlib import contextmanager
from functools import partial
from unittest.mock import MagicMock, Mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_sg import sample as plain
from extras.gpu import graph
from tasks import UserError

PROMPTS = [[5, 6, 7], [9] * 9, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2]]
FORGETFUL = {"use_sliding_window": True, "max_window_layers": 1}  # in one of its two layers
HALF = {"device_type": "cpu", "dtype": torch.bfloat16}


def tiny(V=2048, seed=0, **settings):
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=V, hidden_size=56, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=14, num_key_value_heads=2, initializer_range=0.3,
        tie_word_embeddings=True, **settings)).eval()


def draw(sampler, model, prompts=PROMPTS, **settings):
    usual = {"n": 3, "max_new_tokens": 44, "stop_ids": range(0, model.vocab_size, 20)}
    generator = torch.Generator().manual_seed(1)
    return sampler(model, prompts, generator=generator, **{**usual, **settings})


def both(model, **settings):
    return draw(plain, model, **settings), draw(graph.sample, model, **settings)


def differing(a, b):
    return sum(x != y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("V, cases", [
    (2048, [(1, 1), (3, 16), (2, 17), (3, 44)]), (151936, [(2, 24)])])
def test_tokens_are_those_of_the_plain_sampler_in_bounded_memory(V, cases, monkeypatch):
    """Allow rounding to move an edge of the CDF across the uniform number in 2 rows."""
    model, differ, started = tiny(V), 0, Mock(side_effect=graph.start)
    monkeypatch.setattr(graph, "start", started)
    monkeypatch.setattr(graph, "ROOM", 16)
    for n, limit in cases:
        a, b = both(model, n=n, max_new_tokens=limit, temperature=0)
        assert a == b
        started.reset_mock()
        differ += differing(*both(model, n=n, max_new_tokens=limit, temperature=0.7))
        shapes = [(len(call.args[1]), call.args[2]) for call in started.call_args_list]
        assert all(rows <= 4 * n and columns < 12 + limit + 16 for rows, columns in shapes)
    assert differ <= 2 and shapes[-1][0] < shapes[0][0] and shapes[-1][1] > shapes[0][1]


def test_rows_end_at_the_same_time_or_all_but_one_or_by_a_criterion():
    model = tiny()
    a, b = both(model, stop_ids=range(2048))
    assert a == b and {len(x) for x in a} == {1}
    third = both(model, n=1, stop_ids=[])[0][2]
    a, b = both(model, n=1, stop_ids=set(range(2048)) - set(third))
    assert a == b and sorted(len(x) == 44 for x in a) == [False, False, False, True]
    a, b = both(model, stopping_criteria=lambda drawn, scores: drawn[:, -2:].sum(1) % 30 == 0)
    assert a == b and len({len(x) for x in a}) > 5


def test_sliding_window_models_are_refused_before_any_work():
    model = tiny(**FORGETFUL)
    model.forward = Mock()
    with pytest.raises(ValueError, match="layers"):
        draw(graph.sample, model)
    assert not model.forward.called


def test_prompts_are_deduplicated_and_prefilled_in_chunks(monkeypatch):
    model = tiny()
    shapes = []

    def note(model, args, inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
    model.register_forward_pre_hook(note, with_kwargs=True)
    once = draw(graph.sample, model, PROMPTS * 2, n=2)
    assert shapes[:2] == [(4, 12), (16, 1)]
    shapes.clear()
    monkeypatch.setattr(graph, "READ", 30)  # two prompts of 12 columns
    assert differing(draw(graph.sample, model, PROMPTS * 2, n=2), once) <= 1
    assert shapes[:3] == [(2, 12), (2, 12), (16, 1)]


@contextmanager
def layers_seen(monkeypatch):
    """Yield weak references to all keys and values that are made, with Python's cyclic garbage
    collector turned off."""
    seen = []
    make = graph.Buffers.__init__

    def noted(self):
        make(self)
        seen.append(weakref.ref(self))
    monkeypatch.setattr(graph.Buffers, "__init__", noted)
    gc.disable()
    try:
        yield seen
    finally:
        gc.enable()


def test_a_call_leaks_no_memory(monkeypatch):
    model = tiny()
    with layers_seen(monkeypatch) as layers:
        draw(graph.sample, model)
        assert len(layers) == 2 and all(layer() is None for layer in layers)


@pytest.mark.parametrize("calls", [1, 2, 5, 30])
def test_running_out_of_memory_leaks_no_memory(calls, monkeypatch):
    """Run out in prefill, in an eager step, in a recorded step and in a later one."""
    model = tiny()
    forward, left = model.forward, iter(range(calls))

    def limited(**inputs):
        if next(left, None) is None:
            raise torch.OutOfMemoryError("injected")
        return forward(**inputs)
    model.forward = limited
    with layers_seen(monkeypatch) as layers:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            draw(graph.sample, model)
        del raised
        assert len(layers) == 2 and all(layer() is None for layer in layers)
        assert all(p.dtype == torch.float32 for p in model.parameters())


class Emulation(TorchDispatchMode):
    """Emulate CUDA graphs. A recording notes operations, does not execute in-place ones, and
    refuses host syncs. A replay repeats the operations on the same tensors and writes the
    results to the same places. log: r for a replay, o for an operation outside of replays and
    recordings. recordings: weak references to them. casts: numbers of elements that one
    recorded step casts."""
    log, notes = "", None

    def __init__(self):
        super().__init__()
        self.recordings, self.casts = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.notes is None:
            self.log += "o"
            return func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::lift_fresh"):
            raise RuntimeError(f"{name} while recording")
        out = args[0] if func._schema.is_mutable else func(*args, **(kwargs or {}))
        self.notes += [] if func.is_view else [(func, args, kwargs or {}, out)]
        self.casts += [out.numel()] if name == "aten::_to_copy" else []
        return out

    @contextmanager
    def record(self, cuda_graph):
        alive = [recording for recording in self.recordings if recording()]
        assert not alive, "two recordings are alive"
        self.notes, self.casts = [], []
        notes = self.notes
        try:
            yield
        finally:
            self.notes = None
        cuda_graph.notes = notes
        self.recordings.append(weakref.ref(cuda_graph))

    def install(self, monkeypatch):
        stubs = {"CUDAGraph": partial(Recording, self), "graph": self.record,
                 "stream": MagicMock(), "current_stream": Mock()}
        for name, stub in stubs.items():
            monkeypatch.setattr(torch.cuda, name, stub)
        monkeypatch.setattr(graph, "RECORDED", "cpu")
        monkeypatch.setattr(graph, "ROOM", 20)


class Recording:
    def __init__(self, emulation):
        self.emulation = emulation

    def replay(self):
        log = self.emulation.log
        for func, args, kwargs, out in self.notes:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs))):
                isinstance(old, torch.Tensor) and old.copy_(new)
        self.emulation.log = log + "r"


@pytest.mark.parametrize("half", [False, True])
def test_a_recorded_step_has_no_host_sync_and_replays_to_the_same_tokens(half, monkeypatch):
    emulation, model, stops = Emulation(), tiny(), range(0, 2048, 50)
    with torch.autocast(**HALF, enabled=half):
        expected = draw(graph.sample, model, n=8, stop_ids=stops)
        emulation.install(monkeypatch)
        with emulation, warnings.catch_warnings():
            warnings.simplefilter("error")
            found = draw(graph.sample, model, n=8, stop_ids=stops)
    assert found == expected and len({len(x) for x in found}) > 5
    # Checks come after each block of 16; with a new recording the first step is not a replay.
    assert [len(replays) for replays in re.findall("r+", emulation.log)] == [15, 16, 10]
    assert len(emulation.recordings) == 2


def float32_head(model):
    """Keep the vocabulary matrix outside of autocast, like the trainer on a GPU."""
    head = model.get_output_embeddings()
    forward = head.forward

    def apart(h):
        with torch.autocast(h.device.type, enabled=False):
            return forward(h.float())
    head.forward = apart
    return model


@torch.no_grad()
def distance_to_trainer(sampler, model):
    """Return the mean KL from a sampler's distributions to those that the trainer computes for
    the same tokens, both in bfloat16."""
    logits = []

    def note(head, inputs, output):
        logits.append(output[:, -1])
    hook = model.lm_head.register_forward_hook(note)
    with torch.autocast(**HALF):
        completions = draw(sampler, model, n=1, max_new_tokens=20, stop_ids=[])
        hook.remove()
        drawn = torch.stack(logits, 1).float().log_softmax(-1)  # (4, 20, V)
        trained = []
        for p, c in zip(PROMPTS, completions):
            output = model(input_ids=torch.tensor([p + c]), logits_to_keep=21)
            trained.append(output.logits[0, :-1].float())
    difference = drawn - torch.stack(trained).log_softmax(-1)
    return (drawn.exp() * difference).sum(-1).mean().item()


@pytest.mark.parametrize("prepare", [float32_head, lambda model: model])
def test_in_bfloat16_both_samplers_are_similarly_close_to_the_trainer(prepare):
    model = prepare(tiny())
    for p in model.parameters():  # also the norms, which start as ones
        p.data *= 1 + 0.3 * torch.rand_like(p)
    # Strictly less, to exclude a distance of 0 for the plain sampler.
    assert distance_to_trainer(graph.sample, model) < 1.5 * distance_to_trainer(plain, model)


def test_in_bfloat16_no_parameter_of_a_layer_is_cast_in_a_recorded_step(monkeypatch):
    emulation, model, cached = Emulation(), float32_head(tiny()), []

    def note(*given):
        cached.append(torch.is_autocast_cache_enabled())
    model.model.register_forward_hook(note)
    emulation.install(monkeypatch)
    with emulation, torch.autocast(**HALF):
        draw(graph.sample, model)
    assert not any(cached)  # a recording must not fill or read autocast's cache
    matrices = [p.numel() for p in model.parameters() if p.dim() == 2]
    assert emulation.casts and max(emulation.casts) < min(matrices)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("error, said", [
    (RuntimeError("capture failed\nmore"), "RuntimeError: capture failed"),
    (torch.OutOfMemoryError("full"), None)])
def test_steps_run_eagerly_if_recording_fails_except_out_of_memory(error, said, monkeypatch):
    emulation, model, expected = Emulation(), tiny(), draw(graph.sample, tiny())
    emulation.install(monkeypatch)
    record = emulation.record

    @contextmanager
    def failing(cuda_graph):
        with record(cuda_graph):
            yield
            if len(emulation.recordings) == 1:  # the second one
                raise error
    monkeypatch.setattr(torch.cuda, "graph", failing)
    with emulation:
        if said:
            with pytest.warns(UserWarning, match=said) as raised:
                assert draw(graph.sample, model) == expected
            assert len({str(each.message) for each in raised}) == 1
        else:
            with pytest.raises(torch.OutOfMemoryError):
                draw(graph.sample, model)


def test_a_bar_counts_tokens_and_shows_unfinished_rows(monkeypatch):
    bars = []

    class Bar:
        def __init__(self, **settings):
            self.settings, self.n = settings, 0
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def update(self, more):
            self.n += more

        def set_postfix(self, unfinished, refresh):
            self.unfinished = unfinished
    monkeypatch.setattr(graph, "tqdm", Bar)
    draw(graph.sample, tiny(), stop_ids=[])
    draw(graph.sample, tiny(), stop_ids=range(2048))
    assert [bar.n for bar in bars] == [44, 1]
    assert not any(bar.settings.get("disable") for bar in bars)
    assert bars[0].settings["desc"] == "sampling" and bars[0].settings["total"] == 44
    assert [bar.unfinished for bar in bars] == [12, 0]


def test_only_a_sampler_that_draws_the_right_tokens_is_chosen():
    model = float32_head(tiny())
    with torch.autocast(**HALF):
        fast, line = graph.choose(model, plain, PROMPTS[2])
    assert fast is graph.sample and "recorded" in line and "\n" not in line
    model.load_state_dict(tiny(seed=1).state_dict())  # which the next call follows
    with torch.autocast(**HALF):
        assert 1e-5 < graph.misfit(model, fast, PROMPTS[2]) < 0.01
    assert graph.misfit(model, fast, PROMPTS[2]) < 1e-5

    def of_other_parameters(model, *args, **settings):
        return plain(tiny(), *args, **settings)
    chosen, line = graph.choose(model, plain, PROMPTS[2], fast=of_other_parameters)
    assert chosen is plain and "off" in line
    chosen, line = graph.choose(tiny(**FORGETFUL), plain, PROMPTS[2])
    assert chosen is plain and "layers" in line and "\n" not in line


def test_the_plain_sampler_is_chosen_if_recording_fails(monkeypatch):
    emulation = Emulation()
    emulation.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "graph", Mock(side_effect=RuntimeError("no capture")))
    chosen, line = graph.choose(tiny(), plain, PROMPTS[2])
    assert chosen is plain and "no capture" in line


@pytest.mark.parametrize("dead", [False, True])
def test_after_a_cuda_error_a_line_says_which_flag_to_add(dead, monkeypatch):
    """While choosing a sampler, raise only if the GPU is dead; otherwise choose the plain one."""
    model = tiny()
    model.forward = Mock(side_effect=torch.AcceleratorError("CUDA error: illegal\nmore"))
    with pytest.raises(UserError, match="CUDA error: illegal.* --sampler plain") as raised:
        draw(graph.sample, model)
    assert "\n" not in str(raised.value)
    if dead:
        monkeypatch.setattr(torch, "zeros", model.forward)
        with pytest.raises(UserError, match="--sampler plain"):
            graph.choose(model, plain, PROMPTS[2])
    else:
        chosen, line = graph.choose(model, plain, PROMPTS[2])
        assert chosen is plain and "CUDA error: illegal" in line and "\n" not in line
