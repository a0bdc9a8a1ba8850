"""What a GPU asks of the program, tested without one."""
import os
import subprocess
import sys
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import grpo_sg
from support import fit, models, program


def made(**given):
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2))
    return model.eval(), grpo_sg.Config(**{"max_new_tokens": 6, "beta": 0.1, **given})


def test_the_cache_is_bfloat16_and_logits_are_float32_where_the_model_computes_in_bfloat16(monkeypatch):
    model, _ = made()
    caches = []
    make = grpo_sg.Cache
    monkeypatch.setattr(grpo_sg, "Cache", lambda config: caches.append(make(config=config)) or caches[0])
    with torch.autocast("cpu", torch.bfloat16):
        grpo_sg.sample(model, [[1, 2, 3]], n=2, max_new_tokens=4, stop_ids=[])
        logits = grpo_sg.logits_of(model, torch.ones(1, 32))
    assert {x.dtype for layer in caches[0].layers for x in (layer.keys, layer.values)} == {torch.bfloat16}
    assert torch.equal(logits, model.lm_head(torch.ones(1, 32)))


@pytest.mark.parametrize("given, expected", [
    ("", "expandable_segments:True None 10000"),
    ("PYTORCH_ALLOC_CONF=A", "A None 10000"), ("PYTORCH_CUDA_ALLOC_CONF=A", "None A 10000"),
    ("GOMP_SPINCOUNT=5", "expandable_segments:True None 5"),
    ("OMP_WAIT_POLICY=PASSIVE", "expandable_segments:True None None")])
def test_variables_are_set_before_torch_is_loaded_and_where_the_user_has_not(given, expected):
    names = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "GOMP_SPINCOUNT"
    code = ("import os, sys; sys.modules['torch'] = None\ntry: import grpo_sg\n"
            f"except ImportError: print(*map(os.environ.get, {names}))")
    environment = {key: value for key, value in os.environ.items() if key not in (*names, "OMP_WAIT_POLICY")}
    environment.update([given.split("=")] if given else [])
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert found.stdout.strip() == expected


def too_small(function, most, left):
    """The function, but that it runs out of memory with more than `most` rows, after its work; it keeps none of it."""
    def limited(model, rows, *args, **kwargs):
        assert all(tensor() is None for tensor in left), "an attempt is made while the last one's tensors live"
        result = function(model, rows, *args, **kwargs)
        if len(rows) * kwargs.get("n", 1) > most:
            held = torch.ones(3)
            left.append(weakref.ref(held))
            raise torch.OutOfMemoryError
        return result
    return limited


@pytest.mark.parametrize("most, said", [(5, "4"), (3, "42"), (1, "421")])
def test_what_is_sampled_in_halves_is_the_same(most, said, capsys):
    model, _ = made()
    results = []
    for limit in (most, 100):
        sample = too_small(grpo_sg.sample, limit, [])
        _, cfg = made(sample_batch=8)
        generator = torch.Generator().manual_seed(0)
        for _ in range(2):  # the second time with what has been found to fit
            results.append(fit.in_parts(lambda part, copies: sample(
                model, part, n=copies, max_new_tokens=6, stop_ids=[0], generator=generator), [[1, 2]] * 4 + [[3]] * 4, 4,
                cfg, generator))
    assert results[:2] == results[2:]
    assert "".join(line[-1] for line in capsys.readouterr().err.splitlines()) == said


def an_update(cfg, model):
    rng = torch.Generator().manual_seed(1)
    completions = [grpo_sg.Completion(None, [1, 2], torch.randint(64, (n,), generator=rng).tolist(), [True] * n)
                   for n in (3, 6, 4, 5, 6, 2, 3, 4)]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    stats = grpo_sg.update(model, optimizer, completions, torch.randn(8, generator=rng), cfg, reference=made()[0])
    return stats, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("most", [2, 1])
def test_an_update_in_halves_is_the_same(most, monkeypatch, capsys):
    whole = an_update(made()[1], made()[0])
    model, cfg = made()
    for p in model.parameters():
        p.grad = torch.ones_like(p)  # left over from a warm-up, or from an attempt that failed
    monkeypatch.setattr(grpo_sg, "token_logps", too_small(grpo_sg.token_logps, most, []))
    stats, weights = an_update(cfg, model)
    assert stats == pytest.approx(whole[0], rel=1e-4, abs=1e-6) and torch.allclose(weights, whole[1], atol=1e-6)
    assert f"--tokens_per_micro_batch {cfg.tokens_per_micro_batch}" in capsys.readouterr().err
    assert cfg.tokens_per_micro_batch < 40


def no_memory(*args, **kwargs):
    raise torch.OutOfMemoryError


@pytest.mark.parametrize("where, line", [
    ((grpo_sg, "token_logps"), "in training: add --gradient_checkpointing"),
    ((torch.optim.SGD, "step"), "in AdamW's step"), ((Qwen2ForCausalLM, "to"), "in moving the model to the GPU"),
    ((grpo_sg, "sample"), "in sampling: lower --max_new_tokens")])
def test_where_one_row_does_not_fit_one_line_names_the_phase(where, line, monkeypatch, capsys):
    model, cfg = made()
    tokenizer = SimpleNamespace(get_vocab=dict, eos_token_id=0)
    monkeypatch.setattr(*where, no_memory)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: where[1] == "to")
    monkeypatch.setattr(models, "set_up_gpu", lambda: None)
    monkeypatch.setattr(grpo_sg.tasks, "encode_prompt", lambda *_: [1, 2])
    task = grpo_sg.tasks.Task("toy", "", [], [], [], None, 0.0)
    with pytest.raises(SystemExit), program.one_line_errors():
        if where[1] == "sample":
            problem = grpo_sg.tasks.Problem("?", "!")
            grpo_sg.rollout(model, tokenizer, task, [problem], cfg, n=2, temperature=1.0, seed=0)
        elif where[1] == "to":
            models.prepare(model, tokenizer, [1, 2], cfg, None)
        else:
            with fit.phase("training", "add --gradient_checkpointing, or lower --max_new_tokens"):
                an_update(cfg, model)
    error = capsys.readouterr().err.rpartition("error: ")[2]
    assert error.startswith("out of GPU memory") and line in error and error.count("\n") == 1


@pytest.mark.parametrize("supported", [True, False])
def test_a_gpu_is_set_up(supported, monkeypatch, capsys):
    """cuDNN's attention off, TF32 for what stays in float32, and no emulated bfloat16, which is said."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    models.set_up_gpu()
    assert not torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.matmul.allow_tf32
    assert models.bfloat16_works(torch.device("cuda")) == supported
    assert not models.bfloat16_works(torch.device("cpu"))
    assert ("no bfloat16" in capsys.readouterr().out) != supported


def test_a_bar_shows_completions_speed_and_the_time_that_is_left_at_most(monkeypatch):
    shown = []
    monkeypatch.setattr(program, "tqdm", lambda **settings: nullcontext(SimpleNamespace(
        set_postfix_str=lambda text, refresh: shown.append(text), update=shown.append)))
    now = iter([0.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr(program.time, "time", lambda: next(now))
    with program.token_bar("sampling", 4, grpo_sg.Config(sample_batch=2, max_new_tokens=10)) as moved:
        moved(2, 0)  # 19 steps are left
        moved(2, 2)  # the first batch has ended: 10 are left
        moved(2, 1)
    assert shown == ["2 tokens/s, 19 s left at most", 0, "2 tokens/s, 10 s left at most", 2,
                     "2 tokens/s, 9 s left at most", 1]
