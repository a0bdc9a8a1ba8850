"""The formula of memory.py against what is allocated, counted tensor by tensor on a CPU in bfloat16."""
import types
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2ForCausalLM

import grpo_sg
from support.memory import peaks


class Peak(TorchDispatchMode):
    """Counts the bytes of the tensors that live at once; those there before are not counted."""
    def __init__(self, before):
        super().__init__()
        self.seen = {tensor.untyped_storage()._cdata for tensor in before}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for storage in (x.untyped_storage() for x in tree_leaves(out) if isinstance(x, torch.Tensor)):
            if storage._cdata not in self.seen:
                self.seen.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.free, storage._cdata, storage.nbytes())
        return out

    def free(self, key, size):
        self.seen.remove(key)
        self.now -= size


def made(width, inner, heads, layers):
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=8000, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=1, tie_word_embeddings=True)).eval()


def settings(**given):
    return types.SimpleNamespace(**{"tokens_per_micro_batch": 512, "sample_batch": 16, "max_new_tokens": 8,
                                    "beta": 0, "gradient_checkpointing": False, **given})


def fixed(model):  # GB that are there all the time: weights and AdamW's averages
    return 12e-9 * model.num_parameters()


@pytest.mark.parametrize("checkpointing", [False, True])
# As 0.5B and 1.5B: inner / width, width / heads.
@pytest.mark.parametrize("shape", [(448, 2432, 7, 3), (384, 2240, 6, 4)])
def test_an_update(shape, checkpointing):
    model = made(*shape)
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    grpo_sg.eval_mode(model, checkpointing)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    ids = torch.randint(8000, (4, 129))
    mask = torch.arange(129).expand(4, 129) > 0
    with Peak([*model.parameters(), *(p.grad for p in model.parameters())]) as peak:
        with torch.autocast("cpu", torch.bfloat16):
            logps = grpo_sg.token_logps(model, ids, mask, temperature=0.7)
        loss, _ = grpo_sg.grpo_sg_loss(logps, logps.detach(), torch.ones(4), mask)
        loss.backward()
    expected = peaks(model.config, settings(gradient_checkpointing=checkpointing))["update"]
    assert peak.peak / 1e9 == pytest.approx(expected - fixed(model) - 4e-9 * model.num_parameters(), rel=0.1)


# The peak is that of the prompts; of the cache and the logits.
@pytest.mark.parametrize("prompt, n, new", [(128, 1, 8), (4, 8, 32)])
def test_sampling(prompt, n, new):
    model = made(448, 2432, 7, 3)
    with Peak(model.parameters()) as peak, torch.autocast("cpu", torch.bfloat16):
        grpo_sg.sample(model, [[1] * prompt] * (64 // n), n=n, max_new_tokens=new, stop_ids=[])
    expected = peaks(model.config, settings(sample_batch=64, max_new_tokens=new), prompt)["sampling"]
    assert peak.peak / 1e9 == pytest.approx(expected - fixed(model), rel=0.1)
