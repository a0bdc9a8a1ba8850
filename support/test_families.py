"""Sections 2, 3 and 5 of grpo_sg.py with tiny, untrained models of many families: those with linear attention
and with sliding windows, which keep other things than all keys and values, and those that change their logits
after the vocabulary matrix."""
import pytest
import torch
import transformers

import grpo_sg
import tasks
from support import models

USUAL = dict(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, initializer_range=0.3, bos_token_id=None, eos_token_id=1, pad_token_id=1)
LINEAR = dict(head_dim=8, num_hidden_layers=4, full_attention_interval=4, linear_num_key_heads=2,
              linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
WINDOW = dict(head_dim=8, sliding_window=4)
FAMILIES = {  # name: what its configuration has beside the usual
    "Qwen2": {}, "Qwen3": dict(head_dim=8), "Llama": {}, "SmolLM3": {}, "Mistral": WINDOW, "Gemma2": WINDOW,
    "Gemma3": WINDOW, "Cohere": dict(logit_scale=0.3), "Granite": dict(logits_scaling=3.0),
    "Olmo3": dict(sliding_window=4, layer_types=["sliding_attention", "full_attention"]),
    "Lfm2": dict(layer_types=["conv", "full_attention"]), "Qwen3_5": LINEAR,
    "Qwen3Next": dict(LINEAR, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                      shared_expert_intermediate_size=16),
    "FalconH1": dict(mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8,
                     mamba_expand=1, mamba_chunk_size=16),
    "Mamba": dict(state_size=8),
    "GPT2": dict(n_positions=64, n_embd=32, n_layer=2, n_head=4)}
TEXT_CONFIGS = ("Gemma3", "Qwen3_5")  # whose Config is that of a model which sees, too


def build(name, **more):
    torch.manual_seed(0)
    usual = {} if name == "GPT2" else USUAL
    if name == "GPT2":
        more = dict(vocab_size=50, initializer_range=0.5, bos_token_id=None, eos_token_id=1, **more)
    config = getattr(transformers, f"{name}TextConfig" if name in TEXT_CONFIGS else f"{name}Config")
    model = getattr(transformers, f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
    return model(config(**{**usual, **FAMILIES[name], **more})).eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_completions_are_those_of_generate(name):
    """Of prompts of unequal lengths, some of which end early and leave the batch and the cache."""
    model = build(name)
    prompts = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14], [5, 6, 7]]
    ours = grpo_sg.sample(model, prompts, n=2, max_new_tokens=12, stop_ids=range(10), temperature=0)
    for i, prompt in enumerate(prompts):
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False,
                               eos_token_id=list(range(10)))
        assert ours[2 * i] == ours[2 * i + 1] == alone[0, len(prompt):].tolist()
    assert len({len(tokens) for tokens in ours}) > 1


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probabilities_and_gradient_are_those_of_the_full_softmax(name):
    """Of each row alone, without pads."""
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
        assert expected is None or torch.allclose(ours, expected, atol=1e-3, rtol=1e-2)


class Words:
    """As much of a tokenizer as a rollout needs: a word is a number."""
    chat_template = None
    eos_token_id = 1
    unk_token_id = 0

    def __call__(self, text, **more):
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, ids):
        return " ".join(map(str, ids))

    def get_vocab(self):
        return {}

    def save_pretrained(self, folder):
        pass


@pytest.mark.parametrize("name", ["Qwen3_5", "Lfm2", "Mamba", "FalconH1", "Gemma2"])
def test_a_step_and_its_checkpoint(name, tmp_path):
    """Two updates with a KL, on completions that are right if they have an even number."""
    problems = [tasks.Problem(f"{i} {i + 1}", "") for i in range(10, 14)]
    task = tasks.Task("even", "2", problems, problems, problems, lambda text, gold: tasks.Verdict(
        len(text) % 2 == 0, True), floor=0.0)
    cfg = grpo_sg.Config(prompts=4, group_size=4, max_new_tokens=8, temperature=1.0, beta=0.1, lr=1e-2)
    model = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before = model.get_output_embeddings().weight.clone()
    completions = grpo_sg.rollout(model, Words(), task, problems, cfg, n=4, temperature=1.0, seed=0)
    grpo_sg.set_advantages(completions, 4)
    stats = grpo_sg.update(model, optimizer, completions, cfg, reference=build(name))
    assert stats["grad_norm"] > 0 and stats["skipped"] == 0 and stats["kl"] is not None
    assert not torch.equal(before, model.get_output_embeddings().weight)
    grpo_sg.save_checkpoint(tmp_path, 1, {}, model, Words(), optimizer)
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype="float32").eval()
    batch = grpo_sg.make_batch(completions, "cpu")
    model.eval()
    again = [grpo_sg.token_logps(each, batch["ids"], batch["mask"]) for each in (model, saved)]
    assert torch.allclose(*again, atol=1e-5)


def test_dropout_is_off_whatever_the_configuration_says_and_when_layers_are_checkpointed(tmp_path):
    """OPT's layers call functional dropout, which is on in training mode, in which they have to be."""
    torch.manual_seed(0)
    config = transformers.OPTConfig(vocab_size=50, hidden_size=32, ffn_dim=64, num_hidden_layers=2,
                                    num_attention_heads=4, dropout=0.5, attention_dropout=0.5, layerdrop=0.5,
                                    max_position_embeddings=64, word_embed_proj_dim=32)
    transformers.OPTForCausalLM(config).save_pretrained(tmp_path)
    torch_model = models.read_weights(tmp_path, local=True)
    model = models.prepare(torch_model, True)
    completions = [grpo_sg.Completion(None, [5, 6], [7, 8, 9], [True] * 3, advantage=(-1.0) ** i) for i in range(8)]
    cfg = grpo_sg.Config(updates=2, gradient_checkpointing=True)
    stats = grpo_sg.update(model, torch.optim.SGD(model.parameters(), lr=0.0), completions, cfg)
    assert stats["kl"] == 0 and stats["clip_frac"] == 0 and stats["grad_norm"] > 0
