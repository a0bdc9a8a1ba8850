"""Compare the formula of memory.py with allocations, counted tensor by tensor on a CPU in
bfloat16."""
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Gemma3Config, Qwen2Config, Qwen2ForCausalLM
from transformers.integrations import sdpa_attention

import grpo_sg
from extras.gpu import graph, memory
from extras.gpu.memory import peaks
from support import models


def multiply_nothing(function, *args, **kwargs):
    """Return the function's result, but zeros for a matrix product, which takes seconds on a CPU
    without bfloat16: only its size matters here."""
    if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
        left, right = args[-2:]
        return left.new_zeros(left.shape[0], right.shape[1])
    return function(*args, **kwargs)


class Peak(TorchDispatchMode):
    """Count the bytes of the live tensors, without those that existed before."""
    def __init__(self, before):
        super().__init__()
        self.seen = {tensor.untyped_storage()._cdata for tensor in before}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = multiply_nothing(function, *args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        for storage in (x.untyped_storage() for x in tensors):
            if storage._cdata not in self.seen:
                self.seen.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.free, storage._cdata, storage.nbytes())
        return out

    def free(self, key, size):
        self.seen.remove(key)
        self.now -= size


def made(width, inner, heads, layers, key_heads=1):
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=8000, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads,
        tie_word_embeddings=True)).eval()


def fixed(model):  # GB that are always allocated: parameters and AdamW's averages
    return 12e-9 * model.num_parameters()


def computing(float32):
    """Use the dtype that a GPU would use."""
    return torch.autocast("cpu", torch.bfloat16, enabled=not float32)


# The ratios inner / width and width / heads are those of 0.5B and 1.5B.
@pytest.mark.parametrize("shape, float32, checkpointing", [
    ((448, 2432, 7, 3), False, False), ((384, 2240, 6, 4), False, True),
    ((448, 2432, 14, 3, 2), True, False), ((448, 2432, 14, 3, 2), True, True)])
def test_update_memory_matches_the_formula(shape, float32, checkpointing, monkeypatch):
    if float32:
        monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", models.repeat_keys)
    model = made(*shape)
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    grpo_sg.keep_logits_in_float32(model)
    model.train(checkpointing)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    ids = torch.randint(8000, (2, 129))
    mask = torch.arange(129).expand(2, 129) > 0
    with Peak([*model.parameters(), *(p.grad for p in model.parameters())]) as peak:
        with computing(float32):
            logps = grpo_sg.token_logps(model, ids, mask, temperature=0.7)
        loss, _ = grpo_sg.grpo_sg_loss(logps, logps.detach(), torch.ones(2), mask)
        loss.backward()
    settings = {"checkpointing": checkpointing, "float32": float32}
    expected = peaks(model.config, tokens=256, prompt=8, new=8, **settings)["update"]
    gradients = 4e-9 * model.num_parameters()
    within = 0.1 if checkpointing else 0.05
    assert peak.peak / 1e9 == pytest.approx(expected - fixed(model) - gradients, rel=within)


@pytest.fixture(scope="module")
def sampled():
    model = made(448, 2432, 7, 3)
    grpo_sg.keep_logits_in_float32(model)
    return model


@pytest.mark.parametrize("sampler", [grpo_sg.sample, graph.sample])
@pytest.mark.parametrize("float32", [False, True])
# The peak comes from prefill, or from the cache and the logits.
@pytest.mark.parametrize("prompt, n, new", [(64, 1, 2), (2, 8, 30)])
def test_sampling_memory_matches_the_formula(prompt, n, new, float32, sampler, sampled):
    prompts = [[i] * prompt for i in range(32 // n)]
    with Peak(sampled.parameters()) as peak, computing(float32):
        sampler(sampled, prompts, n=n, max_new_tokens=new, stop_ids=[])
    expected = peaks(sampled.config, rows=32, new=new, prompt=prompt, float32=float32)["sampling"]
    assert peak.peak / 1e9 == pytest.approx(expected - fixed(sampled), rel=0.1)


def test_the_command_accepts_composite_models(tmp_path, monkeypatch, capsys):
    text = dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                num_attention_heads=14, num_key_value_heads=2, vocab_size=151_936)
    Gemma3Config(text_config={**text, "head_dim": 64}).save_pretrained(tmp_path)
    shown = []
    for card in (16, 80):
        given = ["--model", f"{tmp_path}", "--gpu", f"{card}"]
        monkeypatch.setattr("sys.argv", ["memory.py", *given])
        memory.main()
        shown.append(capsys.readouterr().out)
    assert "of 16 GB" in shown[0] and "not fit" in shown[0]
    assert "| no flag | 16384 |" in shown[1]
    monkeypatch.setattr("sys.argv", ["memory.py", "--gpu", "12"])  # of the smallest model
    memory.main()
    printed = capsys.readouterr().out
    assert printed.startswith("Qwen2.5-0.5B:") and "of 12 GB" in printed and "3B" not in printed
    monkeypatch.setattr("sys.argv", ["memory.py", "--model", f"{tmp_path}/none"])
    with pytest.raises(SystemExit):
        memory.main()
    assert "--model" in capsys.readouterr().err.splitlines()[-1]
