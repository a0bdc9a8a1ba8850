"""Compare the formula of memory.py with allocations, counted tensor by tensor on a CPU in
bfloat16."""
import pathlib
import re
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Gemma3Config, Qwen2Config, Qwen2ForCausalLM
from transformers.integrations import sdpa_attention

import grpo_sg
from support import memory


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


def make_model(width, inner, heads, layers, key_heads=1):
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=8000, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, tie_word_embeddings=True))
    grpo_sg.keep_logits_in_float32(model)
    return model.eval()


def computing(float32):
    """Use the dtype that a GPU would use."""
    return torch.autocast("cpu", torch.bfloat16, enabled=not float32)


# The ratios inner / width and width / heads are those of Qwen2.5-0.5B and 1.5B.
@pytest.mark.parametrize("shape, float32, checkpointing", [
    ((448, 2432, 7, 3), False, False), ((384, 2240, 6, 4), False, True),
    ((448, 2432, 14, 3, 2), True, False), ((448, 2432, 14, 3, 2), True, True)])
def test_update_memory_matches_the_formula(shape, float32, checkpointing, monkeypatch):
    if float32:
        monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", grpo_sg.repeat_keys)
    model = make_model(*shape)
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
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
    expected = memory.peaks(model.config, tokens=256, prompt=8, new=8, float32=float32,
                            checkpointing=checkpointing)["update"]
    expected -= 16e-9 * model.num_parameters()  # also gradients and AdamW's averages
    assert peak.peak / 1e9 == pytest.approx(expected, rel=0.1 if checkpointing else 0.05)


@pytest.mark.parametrize("float32", [False, True])
# The peak comes from prefill, or from the cache and the logits.
@pytest.mark.parametrize("prompt, n, new", [(64, 1, 2), (2, 8, 30)])
def test_sampling_memory_matches_the_formula(prompt, n, new, float32):
    model = make_model(448, 2432, 7, 3)
    prompts = [[i] * prompt for i in range(32 // n)]
    with Peak(model.parameters()) as peak, computing(float32):
        grpo_sg.sample(model, prompts, n=n, max_new_tokens=new, stop_ids=[])
    expected = memory.peaks(model.config, rows=32, new=new, prompt=prompt,
                            float32=float32)["sampling"]
    expected -= 12e-9 * model.num_parameters()
    assert peak.peak / 1e9 == pytest.approx(expected, rel=0.1)


def test_the_command_computes_what_fits(tmp_path, capsys):
    """It also reads models of several parts, such as Gemma 3, and explains a wrong name."""
    qwen = memory.QWEN["Qwen2.5-0.5B"]
    shape = {name: getattr(qwen, name) for name in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads")}
    Gemma3Config(text_config={**shape, "head_dim": 64}).save_pretrained(tmp_path)
    memory.main(["Qwen2.5-0.5B", str(tmp_path)])
    _, _, qwen, gemma = capsys.readouterr().out.splitlines()
    assert qwen.removeprefix("| Qwen2.5-0.5B") == gemma.removeprefix(f"| {tmp_path}")
    assert qwen.endswith("| 3072, 256 | 4096, 512 | 16384, 512 |")
    with pytest.raises(SystemExit, match="^error: give a folder or a hub name: [^\n]*$"):
        memory.main([str(tmp_path / "none")])


def test_the_pages_table_is_current(capsys):
    memory.main([])
    rows = capsys.readouterr().out
    page = pathlib.Path(__file__).with_name("README.md").read_text("utf-8")
    for row in re.findall(r"^\| Qwen2.5-.*", page, re.M):
        assert row in rows
