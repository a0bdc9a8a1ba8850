"""Test grpo_sg.py with tiny, untrained models of many families, and the setup of devices. Linear
attention and sliding windows have other caches; some families scale or cap their logits."""
import json
import sys

import pytest
import torch
import transformers
from transformers.modeling_layers import GradientCheckpointingLayer

import grpo_sg
import tasks
from test_grpo_sg import CHAT, build_model, byte_tokenizer

LINEAR = dict(head_dim=8, num_hidden_layers=4, full_attention_interval=4, linear_num_key_heads=2,
              linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
WINDOW = dict(head_dim=8, sliding_window=4)
FAMILIES = {  # name -> settings of its configuration
    "Qwen2": {}, "Qwen3": dict(head_dim=8), "Llama": {}, "SmolLM3": {}, "Mistral": WINDOW, "Gemma2": WINDOW,
    "Gemma3": WINDOW, "Cohere": dict(logit_scale=0.3), "Granite": dict(logits_scaling=3.0),
    "Olmo3": dict(sliding_window=4, layer_types=["sliding_attention", "full_attention"]),
    "Lfm2": dict(layer_types=["conv", "full_attention"]), "Qwen3_5": LINEAR,
    "Qwen3Next": dict(LINEAR, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                      shared_expert_intermediate_size=16),
    "FalconH1": dict(mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8,
                     mamba_expand=1, mamba_chunk_size=16)}


def build(name):
    if name == "GPT2":
        return build_model(name)
    return build_model(name, initializer_range=0.3, **FAMILIES[name])


@pytest.mark.parametrize("name", [*FAMILIES, "GPT2"])
def test_greedy_completions_equal_those_of_generate(name):
    """Use prompts of unequal lengths, and rows that end early and leave the batch and cache."""
    model = build(name)
    prompts = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14], [5, 6, 7]]
    ours = grpo_sg.sample(model, prompts, n=2, max_new_tokens=12, stop_ids=range(10), temperature=0)
    for i, prompt in enumerate(prompts):
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False,
                               eos_token_id=list(range(10)))
        assert ours[2 * i] == ours[2 * i + 1] == alone[0, len(prompt):].tolist()
    assert len({len(tokens) for tokens in ours}) > 1


@pytest.mark.parametrize("name", list(FAMILIES)[1:])
def test_log_probabilities_and_gradients_equal_those_of_the_full_softmax(name):
    """Compute each row separately, without padding. (Qwen2 and GPT2: test_grpo_sg.py.)"""
    model = build(name)
    ids = torch.randint(2, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(3, 9, dtype=torch.bool)
    naive = torch.zeros(3, 9)
    for row, (start, end, real) in enumerate([(4, 9, 9), (2, 6, 6), (5, 6, 7)]):
        mask[row, start:end] = True
        full = (model(input_ids=ids[row:row + 1, :real], use_cache=False).logits[0] / 0.7).log_softmax(-1)
        for t in range(start, end):
            naive[row, t] = full[t - 1, ids[row, t]]
    logps = grpo_sg.token_logps(model, ids, mask, temperature=0.7)
    assert torch.allclose(logps, naive, atol=1e-4)
    parameters = [p for p in model.parameters() if p.requires_grad]
    each = [torch.autograd.grad(x.sum(), parameters, allow_unused=True) for x in (logps, naive)]
    for ours, expected in zip(*each):
        if expected is not None:
            assert (ours - expected).norm() <= 1e-3 * (1 + expected.norm())


class Words:
    """The part of a tokenizer that a rollout needs. A word is a number."""
    chat_template = None
    eos_token_id = 1
    unk_token_id = 0
    added_tokens_decoder = {}

    def __call__(self, texts, **settings):
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}

    def decode(self, ids):
        return " ".join(map(str, ids))

    def get_vocab(self):
        return {}

    def save_pretrained(self, folder):
        pass


def read(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32")


def verify_even(text, gold):
    return tasks.Verdict(len(text) % 2 == 0, True)


@pytest.mark.parametrize("name", ["Qwen3_5", "Lfm2", "FalconH1", "Gemma2"])
def test_a_training_step_changes_the_model_and_saving_keeps_it(name, tmp_path):
    """Make two updates with a KL. Completions of even length are right."""
    problems = [tasks.Problem(f"{i} {i + 1}", "") for i in range(10, 14)]
    task = tasks.Task("even", "2", problems, problems, problems, verify_even, floor=0.0)
    cfg = grpo_sg.Config(prompts=4, group_size=4, max_new_tokens=8, temperature=1.0, beta=0.1,
                         lr=1e-2, steps=1)
    policy = grpo_sg.Policy(build(name), Words(), set(range(9)))
    task = tasks.encode_problems(task, policy.tokenizer, policy.stop_ids, policy.model.config, cfg)
    before = policy.model.get_output_embeddings().weight.clone()
    (row, _), = grpo_sg.train(policy, task, cfg, reference=build(name))
    assert row["grad_norm"] > 0 and row["skipped"] == 0 and row["kl"] is not None
    assert not torch.equal(before, policy.model.get_output_embeddings().weight)
    policy.model.save_pretrained(tmp_path)
    saved = read(tmp_path).eval()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    mask = torch.tensor([[False, True, True, True, True]])
    again = [grpo_sg.token_logps(model.eval(), ids, mask) for model in (policy.model, saved)]
    assert torch.allclose(*again, atol=1e-5)


@pytest.mark.parametrize("name", ["Mamba", "Rwkv"])
def test_a_model_that_samples_without_past_key_values_is_refused(name, tmp_path):
    """It would ignore the cache, and sample from the wrong context."""
    config = getattr(transformers, f"{name}Config")(vocab_size=259, hidden_size=16, num_hidden_layers=2)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(tmp_path)
    byte_tokenizer(CHAT).save_pretrained(tmp_path)
    with pytest.raises(OSError, match=f"{name}ForCausalLM keeps no past_key_values"):
        grpo_sg.load_model(str(tmp_path))


@pytest.mark.parametrize("name, dropout", [
    ("OPT", dict(dropout=0.5, ffn_dim=64, word_embed_proj_dim=32)), ("BioGpt", dict(hidden_dropout_prob=0.5)),
    ("Falcon", dict(hidden_dropout=0.5, attention_dropout=0.5))])
def test_checkpointed_layers_that_have_dropout_themselves_do_not_use_it(name, dropout):
    """Such layers look at their own mode."""
    model = build_model(name, **dropout)
    grpo_sg.prepare(model, "cpu", gradient_checkpointing=True)
    layer, calls = next(module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)), []
    next(layer.children()).register_forward_hook(lambda *_: calls.append(1))
    ids = torch.randint(2, 50, (3, 9))
    mask = torch.arange(9).expand(3, 9) > 3
    once, again = (grpo_sg.token_logps(model, ids, mask) for _ in range(2))
    once.sum().backward()
    assert once.equal(again) and len(calls) == 3  # two passes, and one of them again


# ---- Devices ----

def test_prepare_sets_up_a_gpu(monkeypatch):
    """cuDNN's attention is off; the vocabulary matrix has TF32 and no autocast."""
    model = build_model()
    monkeypatch.setattr(model, "to", lambda device: model)
    torch.backends.cuda.enable_cudnn_sdp(True)
    head = model.get_output_embeddings().forward
    assert grpo_sg.prepare(model.train(), "cuda") is model and not model.training
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert model.get_output_embeddings().forward != head


def test_emulated_bfloat16_is_not_used(monkeypatch):
    for supported in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
        assert grpo_sg.has_bfloat16("cuda") == supported and not grpo_sg.has_bfloat16("cpu")


def test_code_that_comes_with_a_model_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "own", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}))
    byte_tokenizer(CHAT).save_pretrained(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *question: sys.exit("asked"))
    with pytest.raises(OSError, match=f"the model {tmp_path} cannot be used"):
        grpo_sg.load_model(str(tmp_path))
    assert not (tmp_path / "ran").exists()
