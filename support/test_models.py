"""Test models.py: prompts, chat templates, stop tokens, loading without running code, devices."""
import copy
import datetime
import json
import sys
import weakref

import pytest
import torch
from transformers.integrations import sdpa_attention

import grpo_sg
import tasks
from test_grpo_sg import PROMPTS, build_model, byte_tokenizer
from support import models
from tasks import UserError

CHATML = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# Written for these tests, with the structure of the real templates.
TEMPLATES = {
    "Qwen2.5": CHATML,
    "Qwen3": CHATML + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
    "Qwen3.5": CHATML + "{% if enable_thinking is defined and enable_thinking is true %}<think>\n{% else %}"
                        "<think>\n\n</think>\n\n{% endif %}",
    "SmolLM3": "Today Date: {{ strftime_now(\"%d %B %Y\") }}\n" + CHATML,
    "Llama 3.2": "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
                 "Today Date: {{ date_string }}\n{% for m in messages %}<|start_header_id|>{{ m['role'] }}"
                 "<|end_header_id|>\n\n{{ m['content'] }}<|eot_id|>{% endfor %}{{ '<|start_header_id|>assistant"
                 "<|end_header_id|>\n\n' }}",
    "Gemma 2": "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
               "{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] }}<end_of_turn>\n{% endfor %}"
               "{{ '<start_of_turn>model\n' }}",
    "Gemma 3": "<start_of_turn>user\n{% for m in messages %}{{ m['content'] }}{% if loop.first %}\n\n{% endif %}"
               "{% endfor %}{{ '<end_of_turn>\n<start_of_turn>model\n' }}",
    "DeepSeek-R1-Distill": "{{ messages[0]['content'] }}<|User|>{{ messages[1]['content'] }}{{ '<|Assistant|><think>\n' }}"}


def encode(tokenizer, system="S", question="Q", opening="", kwargs="{}"):
    """Return (the prompt as text, the tag that it ends with)."""
    task = tasks.Task("any", system, [], [], [], None, 0.0, opening=opening)
    (ids, tag), = tasks.encode_prompts(tokenizer, task, [question], kwargs)
    return tokenizer.decode(ids), tag


def check(tokenizer, kwargs="{}"):
    task = tasks.Task("any", "S", [], [], [tasks.Problem("Q", "")], None, 0.0)
    models.check_template(tokenizer, task, grpo_sg.Config(chat_template_kwargs=kwargs))


@pytest.mark.parametrize("name, kwargs, ends, opening", [
    ("Qwen2.5", {}, "assistant\n<think>", "<think>"), ("Qwen3", {}, "assistant\n<think>", "<think>"),
    ("Qwen3", {"enable_thinking": False}, "<think>\n\n</think>\n\n", ""),
    ("Qwen3.5", {}, "assistant\n<think>\n\n</think>\n\n", ""),
    ("Qwen3.5", {"enable_thinking": True}, "assistant\n<think>\n", "<think>"),
    ("SmolLM3", {}, "assistant\n<think>", "<think>"),
    ("Llama 3.2", {}, "<|end_header_id|>\n\n<think>", "<think>"),
    ("Gemma 2", {}, "model\n<think>", "<think>"), ("Gemma 3", {}, "model\n<think>", "<think>"),
    ("DeepSeek-R1-Distill", {}, "<|Assistant|><think>\n", "<think>")])
def test_a_prompt_has_both_texts_and_opens_the_thoughts_once(name, kwargs, ends, opening):
    """The tag belongs to the response. A prompt whose template closes the thoughts opens none."""
    tokenizer = byte_tokenizer(models.fix_date(TEMPLATES[name]))
    text, tag = encode(tokenizer, "Be good.", "Who?", "<think>", json.dumps(kwargs))
    assert "Be good." in text and "Who?" in text and text.endswith(ends)
    assert text.count("<think>") == 1 and tag == opening


def test_without_a_template_the_prompt_is_the_texts_and_the_opening():
    tokenizer = byte_tokenizer(None)
    text, tag = encode(tokenizer, "Be good.", "Who?", "<plan>")
    assert text == "Be good.\n\nWho?\n\n<plan>" and tag == "<plan>"
    assert encode(tokenizer)[1] == ""


def test_the_date_in_a_template_is_that_of_the_first_day(tmp_path, monkeypatch):
    """A run resumed on another day has the same prompts."""
    model = build_model("GPT2")
    for name in ("SmolLM3", "Llama 3.2"):
        models.save_model(tmp_path / "hub", model, byte_tokenizer(TEMPLATES[name]))
        _, tokenizer = models.read_model(tmp_path / "hub", local=True)
        models.save_model(tmp_path / "checkpoint", model, tokenizer)

        class Later(datetime.date):
            @classmethod
            def today(cls):
                return cls(2099, 1, 2)
        with monkeypatch.context() as patch:
            patch.setattr(datetime, "date", Later)
            _, again = models.read_model(tmp_path / "checkpoint", local=True)
            _, new = models.read_model(tmp_path / "hub", local=True)
        prompts = [encode(each)[0] for each in (tokenizer, again, new)]
        assert prompts[0] == prompts[1] != prompts[2]
        assert str(datetime.date.today().year) in prompts[0] and "2099" in prompts[2]


@pytest.mark.parametrize("kwargs", ["{", "[1]", "true", "enable_thinking=false", '{"tokenize": true}',
                                    '{"tools": 5}', '{"messages": []}', '{"documents": 1}'])
def test_template_kwargs_must_be_a_json_object_of_template_variables(kwargs):
    """Arguments of apply_chat_template are not template variables."""
    with pytest.raises(UserError, match="must be a JSON object of the template's own variables"):
        check(byte_tokenizer(CHATML), kwargs)


@pytest.mark.parametrize("template, why", [
    ("{{ raise_exception('no') }}", "refuses a question: TemplateError: no"),
    ("{{ '' }}", "turns a question into an empty prompt")])
def test_a_template_without_a_prompt_is_reported_in_one_line(template, why):
    with pytest.raises(UserError, match=why):
        check(byte_tokenizer(template))


@pytest.mark.parametrize("name, why", [
    ("./missing", "there is no such folder"), ("/missing", "there is no such folder"),
    ("runs/first/checkpoint", "there is no such folder"),  # not looked for on the hub
    ("model.gguf", "is a file: give the folder"),
    ("quantized", "it is quantized: use the unquantized model$"),
    ("bare", "has no tokenizer.json: save the tokenizer there")])
def test_a_folder_without_a_usable_model_is_refused(name, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_text("")
    for folder in ("bare", "quantized"):
        build_model().save_pretrained(folder)
    byte_tokenizer(CHATML).save_pretrained("quantized")
    config = json.loads((tmp_path / "quantized" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq"}
    (tmp_path / "quantized" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"--model {name}.*{why}"):
        models.load_model(name)


def test_code_that_comes_with_a_model_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "own", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}))
    byte_tokenizer(CHATML).save_pretrained(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *question: sys.exit("asked"))
    with pytest.raises(UserError, match="cannot load a model"):
        models.load_model(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_all_end_tokens_of_model_and_tokenizer_end_a_completion():
    tokenizer = byte_tokenizer(CHATML)
    model = build_model(vocab_size=300)
    model.generation_config.eos_token_id = [258, 299]
    assert grpo_sg.find_stop_ids(model, tokenizer) == {0, 2, 258, 299}
    model.generation_config.eos_token_id = 7
    assert grpo_sg.find_stop_ids(model, tokenizer) == {0, 2, 7}


def test_the_vocabulary_matrix_is_taken_out_of_autocast():
    """Errors of bfloat16 logits in log-probabilities exceed the clip range."""
    model = build_model(tie_word_embeddings=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.tensor([[1, 2]])).logits.dtype == torch.bfloat16
        grpo_sg.keep_logits_in_float32(model)
        assert model(torch.tensor([[1, 2]])).logits.dtype == torch.float32
        hidden = torch.randn(2, 32, dtype=torch.bfloat16)
        logits = model.lm_head(hidden)
    assert torch.equal(logits, hidden.float() @ model.lm_head.weight.T)


def test_keys_and_values_have_the_precision_of_autocast(monkeypatch):
    model = build_model()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        _, _, _, cache = grpo_sg.prefill(model, [[1, 2, 3], [4]])
    assert cache.layers[0].keys.dtype == cache.layers[0].values.dtype == torch.bfloat16


def test_a_large_model_on_a_cpu_is_announced_with_its_least_memory(monkeypatch, capsys):
    """Count parameters, gradients and AdamW's averages. Large models use all threads."""
    model = build_model()
    monkeypatch.setattr(torch.cuda, "is_available", bool)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(models, "THREADS", 7)
    seen = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    models.set_up(model, "auto", False)
    assert seen == [7, 1] and capsys.readouterr().err == ""
    monkeypatch.setattr(model, "num_parameters", lambda: 135_000_000)
    for cuda, words in ((None, "built for CPUs only"), ("13.0", "built for CUDA 13.0")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        models.set_up(model, "auto", False)
        said = capsys.readouterr().err
        assert words in said and "threads: 7" in said and "2.2 GB" in said
    assert seen == [7, 1, 7, 7]  # even after a tiny model in the same process


def test_if_memory_is_full_sampling_in_halves_gives_the_same_completions(capsys):
    """The failed attempt leaves no memory allocated."""
    model, generator, left = build_model(), torch.Generator(), []

    def halving(model, prompts, **settings):
        assert all(tensor() is None for tensor in left), "the last attempt's tensors still live"
        completions = grpo_sg.sample(model, prompts, **settings)
        if len(prompts) > 3:
            held = torch.ones(3)
            left.append(weakref.ref(held))
            raise torch.OutOfMemoryError
        return completions
    found = []
    cfg = grpo_sg.Config(max_new_tokens=6, sample_batch=8)
    for sampler in (models.HalvingSampler(halving), grpo_sg.sample):
        policy = grpo_sg.Policy(model, None, {0}, sampler=sampler)
        found.append(grpo_sg.sample_in_parts(policy, PROMPTS * 4, cfg, generator.manual_seed(0), 1.0))
    assert found[0] == found[1] and len(left) == 2
    assert "sampling 2 at once; --sample_batch 2 avoids" in capsys.readouterr().err


def test_prepare_sets_up_a_gpu(monkeypatch):
    """cuDNN's attention is off; the vocabulary matrix has TF32 and no autocast."""
    model = build_model()
    monkeypatch.setattr(model, "to", lambda device: model)
    torch.backends.cuda.enable_cudnn_sdp(True)
    head = model.get_output_embeddings().forward
    assert grpo_sg.prepare(model.train(), "cuda") is model and not model.training
    assert not torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.matmul.allow_tf32
    assert model.get_output_embeddings().forward != head


def test_emulated_bfloat16_is_announced_and_not_used(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    for supported in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "T4")
        models.set_up_gpu()
        assert grpo_sg.has_bfloat16("cuda") == supported and not grpo_sg.has_bfloat16("cpu")
        assert ("T4 has no bfloat16" in capsys.readouterr().err) != supported


@pytest.mark.parametrize("capability, grouped", [((7, 5), False), ((8, 0), True)])
def test_gpus_before_ampere_get_repeated_keys_and_values(capability, grouped, monkeypatch, capsys):
    """Grouped keys would need a score per pair of tokens: 25 GB for a row of 2,300."""
    monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", sdpa_attention.use_gqa_in_sdpa)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "pretended")
    attention, shapes = torch.nn.functional.scaled_dot_product_attention, []

    def note(query, key, value, **settings):
        shapes.append((query.shape[1], key.shape[1], settings.get("enable_gqa", False)))
        return attention(query, key, value, **settings)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", note)
    model, ids = build_model(num_hidden_layers=1), torch.tensor([[1, 2, 3]])
    before = model(ids).logits
    models.set_up_gpu()
    assert torch.allclose(model(ids).logits, before, atol=1e-6)
    assert shapes == [(4, 2, True), (4, 2, True) if grouped else (4, 4, False)]
    # One line says that this GPU has no bfloat16.
    assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_device_is_refused_and_the_available_ones_are_listed(monkeypatch):
    for gpu, mac in ((True, False), (False, True)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mac)
        assert grpo_sg.find_device("auto") == ("cuda" if gpu else "cpu") and grpo_sg.find_device("cpu") == "cpu"
        assert grpo_sg.find_device("cuda" if gpu else "mps") == ("cuda" if gpu else "mps")
        with pytest.raises(ValueError, match=f"--device {'mps' if gpu else 'cuda'}: .* can use cpu and "
                                            f"{'cuda' if gpu else 'mps'}"):
            grpo_sg.find_device("mps" if gpu else "cuda")


def test_on_a_mac_there_is_no_autocast_and_threads_stay(monkeypatch, capsys):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    model, threads, devices = build_model(), torch.get_num_threads(), []
    monkeypatch.setattr(model, "to", lambda device: devices.append(device) or model)
    monkeypatch.setattr(models, "THREADS", threads)
    models.set_up(model, "mps", False)
    assert devices == ["mps"]
    with grpo_sg.in_bfloat16(torch.device("mps")):
        assert not torch.is_autocast_enabled("mps")
    assert torch.get_num_threads() == threads and capsys.readouterr().err == ""


def test_a_copy_of_a_prepared_model_has_its_own_head():
    """The KL's reference model is such a copy, and must not change in training."""
    model, ids = build_model(tie_word_embeddings=True), torch.tensor([[1, 2, 3]])
    grpo_sg.keep_logits_in_float32(model)
    copied = copy.deepcopy(model)
    before = copied(ids).logits
    model.lm_head.weight.data.mul_(3)
    assert copied(ids).logits.equal(before) and not model(ids).logits.allclose(before)
