"""Test grpo_sg.py with tiny, untrained models of many families, their chat templates, and the setup
of devices. Linear attention and sliding windows have other caches; some families scale or
cap their logits."""
import copy
import json
import sys
from unittest import mock

import pytest
import tokenizers
import torch
import transformers
from transformers.modeling_layers import GradientCheckpointingLayer

import grpo_sg
import tasks
from test_grpo_sg import (CHAT, CLOSED, LAST_MESSAGE, PROMPTS, build_model, build_toy, byte_tokenizer, chat_task,
                          parameters_of, sample, write_prompt)

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
    for row, (first, end, real) in enumerate([(4, 9, 9), (2, 6, 6), (5, 6, 7)]):
        mask[row, first:end] = True
        full = (model(input_ids=ids[row:row + 1, :real], use_cache=False).logits[0] / 0.7).log_softmax(-1)
        for t in range(first, end):
            naive[row, t] = full[t - 1, ids[row, t]]
    logps = grpo_sg.token_logps(model, ids, mask, temperature=0.7)
    assert torch.allclose(logps, naive, atol=1e-4)
    parameters = [p for p in model.parameters() if p.requires_grad]
    each = [torch.autograd.grad(x.sum(), parameters, allow_unused=True) for x in (logps, naive)]
    for ours, expected in zip(*each):
        if expected is not None:
            assert (ours - expected).norm() <= 1e-3 * (1 + expected.norm())


@pytest.mark.parametrize("name", ["Qwen3_5", "Lfm2", "FalconH1", "Gemma2"])
def test_a_training_step_changes_the_model_and_saving_keeps_it(name, tmp_path):
    """Make two updates with a KL. Completions of even length are right."""
    policy, task, cfg = build_toy(steps=1, beta=0.1, change={"verify": lambda text, gold: (len(text) % 2 == 0, True)})
    policy.model, policy.stop_ids = build(name), set(range(9))
    before = policy.model.get_output_embeddings().weight.clone()
    (row, _), = grpo_sg.train(policy, task, cfg, reference=build(name))
    assert row["grad_norm"] > 0 and row["skipped"] == 0 and row["kl"] is not None
    assert not torch.equal(before, policy.model.get_output_embeddings().weight)
    policy.model.save_pretrained(tmp_path)
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32")
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
    with pytest.raises(OSError, match="keeps no past_key_values"):
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


# ---- Chat templates, and the tokens that end a turn ----

# Written for these tests, with the structure of real ones.
GEMMA = ("{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
         "{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else 'user' }}\n"
         "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
         "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")
PHI = ("{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}<|end|><|assistant|>"
       "{% elif m['role'] == 'assistant' %}{{ m['content'] }}<|end|>{% endif %}{% endfor %}")
MISTRAL = ("<s>{% for m in messages %}{% if m['role'] == 'assistant' %} {{ m['content'] }}</s>{% else %}"
           "[INST] {{ m['content'] }} [/INST]{% endif %}{% endfor %}")
CHAT_PROMPT = "<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
SWITCHED = CHAT + "{% if not thinking %}<think></think>{% endif %}"


@pytest.mark.parametrize("template, prompt", [
    (None, "Be good.\n\nWho?\n\n<think>"),
    (CHAT, CHAT_PROMPT + "<think>"),
    (CHAT + "<think>", CHAT_PROMPT + "<think>"),             # it opens the thoughts itself
    (CHAT + "{{ '<think>\n' }}", CHAT_PROMPT + "<think>\n"),
    (MISTRAL, "<s>[INST] Be good. [/INST][INST] Who? [/INST]<think>"),
    (GEMMA, "<start_of_turn>user\nBe good.\n\nWho?<end_of_turn>\n<start_of_turn>model\n<think>"),
    (PHI, "<|user|>Be good.\n\nWho?<|end|><|assistant|><think>"),  # it leaves out the system role
    ("{{ messages[0]['content'] }}", "Be good.\n\nWho?<think>"),
    # This one strips the tags from the instructions.
    ("{% for m in messages %}{{ m.content.replace('good', '') if m.role == 'system' else m.content }}{% endfor %}",
     "Be good.\n\nWho?<think>"),
    (SWITCHED, CHAT_PROMPT + "<think>")])
def test_a_prompt_has_both_texts_and_opens_the_thoughts_once(template, prompt):
    """Without the instructions a model cannot know the format, and earns -3 for every completion. The
    opening is the response's."""
    written = write_prompt(byte_tokenizer(template), kwargs='{"thinking": 1}', opening="<think>")
    assert written == (prompt, "<think>")


def test_a_task_without_an_opening_can_use_a_template_that_closes_the_thoughts_or_opens_them():
    for template, end, tag in ((CLOSED, "<think>\n\n</think>\n\n", ""), (CHAT + "<think>", "<think>", "<think>")):
        prompt = "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n" + end
        # If a template opens the thoughts, they are the response's.
        assert write_prompt(byte_tokenizer(template), system="") == (prompt, tag)


@pytest.mark.parametrize("template, end", [
    (GEMMA, "<end_of_turn>"), (PHI, "<|end|>"), (MISTRAL, "</s>"), (CHAT, "<|im_end|>"),
    ("{% for m in messages %}{{ m['content'] }} <done> {% endfor %}", "<done>"),
    (None, "<|endoftext|>"), (None, "<|im_end|>"),  # Qwen's base models write either
    ("{% for m in messages %}{{ m['content'] }}{{ '<done>' if loop.last else '<|end|>' }}{% endfor %}", "<done>"),
    (LAST_MESSAGE, "<|endoftext|>"), ("<|end|>{{ messages[0].content }}", "<|endoftext|>"),
    ("{{ raise_exception('no') }}", "<|endoftext|>")])
def test_a_turn_ends_with_the_token_that_the_chat_template_writes_after_it(template, end):
    """Tokenizer and generation_config name only <|endoftext|>, as those of many uploads name only the
    base model's end token. This model ends its turn at once. If `end` did not stop it, every completion
    would be truncated, and every reward -3."""
    tokenizer = byte_tokenizer(template, ["<end_of_turn>", "<|end", "<|end|>", "</s>", "<done>", "<|user|>"])
    model = build_model("GPT2", vocab_size=len(tokenizer), eos_token_id=0)
    last = tokenizer.convert_tokens_to_ids(end)
    model.transformer.ln_f.weight.data.zero_()
    model.transformer.ln_f.bias.data.copy_(100 * model.transformer.wte.weight[last])
    stops = grpo_sg.find_stop_ids(model, tokenizer)
    assert stops == {0, 2, last}
    task = chat_task(verify=lambda response, answer: tasks.Verdict(False, response == ""))
    problem = tasks.Problem("Who?", "", prompt=[50, 60])
    completion, = grpo_sg.rollout(grpo_sg.Policy(model, tokenizer, stops), task, [problem], grpo_sg.Config(
        max_new_tokens=4), n=1, temperature=1.0, seed=0)
    assert completion.tokens == [last] and completion.reward == -0.5


def test_an_end_token_that_the_tokenizer_appends_is_not_part_of_the_prompt():
    tokenizer = byte_tokenizer(None)
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A <|endoftext|>", special_tokens=[("<|im_start|>", 1), ("<|endoftext|>", 0)])
    assert write_prompt(tokenizer)[0] == "<|im_start|>Be good.\n\nWho?\n\n"
    # A template writes all special tokens itself. This one ends every turn with the end token.
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    assert write_prompt(tokenizer)[0] == "Be good.<|endoftext|>Who?<|endoftext|>"


def test_instructions_go_into_the_first_turn_where_there_is_no_system_role():
    chat = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "Who?"}]
    first, *_, last, _ = write_prompt(byte_tokenizer(GEMMA), chat)[0].split("<end_of_turn>\n")
    assert first == "<start_of_turn>user\nBe good.\n\n1 + 1?" and last == "<start_of_turn>user\nWho?"


# ---- Devices ----

def test_keys_are_kept_in_the_type_of_the_values():
    """Under autocast, rotary embeddings make keys float32: twice the memory."""
    with torch.autocast("cpu", torch.bfloat16):
        *_, cache = grpo_sg.prefill(build_model(), PROMPTS)
    assert {(layer.keys.dtype, layer.values.dtype) for layer in cache.layers} == {(torch.bfloat16,) * 2}


def test_random_numbers_come_from_the_generators_own_device():
    """It may be a CPU's beside a model on a GPU: every device then gets the same numbers."""
    with mock.patch.object(torch, "rand", return_value=torch.zeros(1, 2)) as rand:
        sample(build_model(), [[5]], max_new_tokens=2, stop_ids=[], generator=mock.Mock(device="meta"))
    assert rand.call_args.kwargs["device"] == "meta"


@pytest.fixture
def gpu(monkeypatch):
    """Let a CPU stand in for a GPU: prepare sets up the model and leaves it where it is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(transformers.PreTrainedModel, "to", lambda model, device: model)
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("tied", [False, True])
def test_on_a_gpu_logits_stay_in_float32_under_autocast_and_attention_is_not_cudnns(tied, gpu):
    """Also those of a copy, such as a reference, which has its own vocabulary matrix."""
    model = build_model(tie_word_embeddings=tied).train()
    torch.backends.cuda.enable_cudnn_sdp(True)
    grpo_sg.prepare(model, "cpu")  # by the flag --device
    assert torch.backends.cuda.cudnn_sdp_enabled()
    assert grpo_sg.prepare(model, "auto") is model and not model.training
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.get_float32_matmul_precision() == "high"  # TF32
    other = copy.deepcopy(model)
    other.get_output_embeddings().weight.data.mul_(2)
    for each in (model, other):
        with torch.autocast("cpu", torch.bfloat16):
            output = each(input_ids=torch.tensor([PROMPTS[2]]), output_hidden_states=True)
        hidden, head = output.hidden_states[-1].float(), each.get_output_embeddings()
        assert output.logits.equal(hidden @ head.weight.T)
        assert head(hidden.bfloat16()).dtype == torch.float32


def test_emulated_bfloat16_is_not_used(monkeypatch):
    """A T4 emulates it, slowly."""
    monkeypatch.setattr(torch, "autocast", lambda device, dtype, enabled: enabled)
    for native in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
        assert grpo_sg.in_bfloat16(torch.device("cuda")) == native
        assert not grpo_sg.in_bfloat16(torch.device("cpu"))


@pytest.mark.filterwarnings("error")  # no warning of training mode
def test_gradient_checkpointing_recomputes_layers_and_trains_the_same_without_dropout():
    calls, parameters = {}, {}
    for checkpointing in (False, True):
        policy, task, cfg = build_toy(steps=2, updates=1, dropout=0.5,
                                      gradient_checkpointing=checkpointing)
        model = policy.model.train()
        torch.set_num_threads(2)
        with mock.patch.object(model, "num_parameters", return_value=1_000_000):
            grpo_sg.prepare(model.train(), "cpu")
        assert torch.get_num_threads() == 2 and not model.training
        grpo_sg.prepare(model.train(), "cpu", gradient_checkpointing=checkpointing)
        assert not model.training and torch.get_num_threads() == 1  # a tiny model
        attention = mock.Mock(wraps=model.model.layers[0].self_attn.forward)
        model.model.layers[0].self_attn.forward = attention
        assert [row["kl"] for row, _ in grpo_sg.train(policy, task, cfg)] == [0, 0]
        calls[checkpointing] = attention.call_count
        parameters[checkpointing] = parameters_of(model)
    assert calls[True] > calls[False]
    assert torch.allclose(parameters[True], parameters[False], atol=1e-4)


def test_code_that_comes_with_a_model_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "own", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}))
    byte_tokenizer(CHAT).save_pretrained(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *question: sys.exit("asked"))
    with pytest.raises(OSError, match=f"cannot load the model {tmp_path}: "):
        grpo_sg.load_model(str(tmp_path))
    assert not (tmp_path / "ran").exists()
