"""Test sections 2, 3 and 5 of grpo_sg.py with tiny, untrained models of many families. Linear
attention and sliding windows have other caches; some families scale or cap their logits."""
import pytest
import torch
import transformers

import grpo_sg
import tasks
from test_grpo_sg import build_model
from support.run import Run

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

    def __call__(self, texts, **more):
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
def test_a_training_step_changes_the_model_and_its_checkpoint_restores_it(name, tmp_path):
    """Make two updates with a KL. Completions of even length are right."""
    problems = [tasks.Problem(f"{i} {i + 1}", "") for i in range(10, 14)]
    task = tasks.Task("even", "2", problems, problems, problems, verify_even, floor=0.0)
    cfg = grpo_sg.Config(prompts=4, group_size=4, max_new_tokens=8, temperature=1.0, beta=0.1,
                         lr=1e-2, steps=1, out=str(tmp_path / "run"))
    policy = grpo_sg.Policy(build(name), Words(), set(range(9)))
    task = tasks.encode_problems(task, policy, cfg)
    before = policy.model.get_output_embeddings().weight.clone()
    with Run(cfg, policy) as run:
        grpo_sg.train(policy, task, cfg, run, reference=build(name))
    row, = run.rows
    assert row["grad_norm"] > 0 and row["skipped"] == 0 and row["kl"] is not None
    assert not torch.equal(before, policy.model.get_output_embeddings().weight)
    saved = read(tmp_path / "run" / "checkpoint").eval()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    mask = torch.tensor([[False, True, True, True, True]])
    again = [grpo_sg.token_logps(model.eval(), ids, mask) for model in (policy.model, saved)]
    assert torch.allclose(*again, atol=1e-5)


@pytest.mark.filterwarnings("error")
def test_dropout_is_off_even_with_gradient_checkpointing(tmp_path):
    """Checkpointing needs training mode, in which OPT's layers call functional dropout."""
    build_model("OPT", ffn_dim=64, dropout=0.5, attention_dropout=0.5, layerdrop=0.5,
                token_dropout=True, max_position_embeddings=64,
                word_embed_proj_dim=32).save_pretrained(tmp_path)
    model = grpo_sg.prepare(read(tmp_path), "cpu", gradient_checkpointing=True)
    assert model.config.token_dropout is True  # ESM's switch: not a rate
    completions = []
    for i in range(8):
        tokens = [7, 8, 9]
        completions.append(grpo_sg.Completion(None, [5, 6], tokens, [True] * 3, advantage=(-1.0) ** i))
    cfg = grpo_sg.Config(updates=2, gradient_checkpointing=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    updates = grpo_sg.learn(grpo_sg.Policy(model, None, {1}), optimizer, completions, cfg)
    for found in updates:
        assert found["kls"] == 0 and found["clipped"] == 0 and found["norm"] > 0
