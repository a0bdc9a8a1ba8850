"""Models, tokenizers and a toy task for the tests: tiny and untrained, offline, on a CPU."""
import json
import os
import pathlib

import pytest
import tokenizers
import torch
import transformers
from tokenizers import Regex, decoders, pre_tokenizers

import grpo_sg
import tasks
from support import models

torch.set_num_threads(1)
ROOT = pathlib.Path(__file__).parent
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14]]
LAST_MESSAGE = "{{ messages[-1]['content'] }}"


def pytest_configure(config):
    config.addinivalue_line("markers", "release: starts processes or takes long; runs if the "
                                       "environment variable CI is set, or with -m release")


def pytest_collection_modifyitems(config, items):
    """Skip release checks unless CI or -m asks for them."""
    if not os.environ.get("CI") and "release" not in config.option.markexpr:
        skip = pytest.mark.skip(reason="a release check: set CI=1, or add -m release")
        for item in items:
            if item.get_closest_marker("release"):
                item.add_marker(skip)


def build_model(family="Qwen2", seed=0, **settings):
    """Build a model with random parameters, which depend only on the seed. It has tokens 0
    to 49; token 1 is its end token and its pad token."""
    usual = dict(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
        initializer_range=0.2, bos_token_id=None, eos_token_id=1, pad_token_id=1)
    if family == "GPT2":
        # Learned positions notice a shift that Qwen's rotary ones forgive.
        usual = dict(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=4,
                     initializer_range=0.5, bos_token_id=None, eos_token_id=1)
    # The language part of a multimodal family.
    text = "Text" if family in ("Gemma3", "Qwen3_5") else ""
    head = "LMHeadModel" if family in ("GPT2", "Bert") else "ForCausalLM"
    config = getattr(transformers, f"{family}{text}Config")(**{**usual, **settings})
    torch.manual_seed(seed)
    return getattr(transformers, f"{family}{head}")(config).eval()


def word_tokenizer(words, pattern=None):
    """Build a tokenizer with a token per word: text between spaces, or a match of the
    pattern. The pad token is the stop token, as in Qwen2.5's base models: with a mask
    `ids != pad`, the policy would never learn to stop."""
    numbers = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if pattern:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>",
        unk_token="[UNK]", chat_template=LAST_MESSAGE)


def byte_tokenizer(template):
    """Build a tokenizer with a token per byte and three special tokens, 259 in all, like
    real models' byte-level BPE without merges. Its end token is <|endoftext|>, 0."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(numbers, []))
    tokenizer.add_special_tokens(specials)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>",
        chat_template=template)


# ---- A toy task: say a word that answers the question, and stop ----

WORDS = ["<|im_end|>", "[UNK]", "yes", "no", "maybe", "who", "what", "why", "never", "always"]


def verify_toy(text, gold):
    return tasks.Verdict(gold in text.split(), text != "")


def build_toy(seed=0, dropout=0.0, change=None, **settings):
    """Build (policy, task, cfg). change: a dict of fields of the task to replace."""
    usual = dict(steps=25, prompts=3, group_size=16, lr=5e-3, temperature=1.0, updates=2,
                 max_new_tokens=6, eval_every=10, seed=seed)
    cfg = grpo_sg.Config(**{**usual, **settings})
    problems = [tasks.Problem("who", "yes"), tasks.Problem("what", "no"),
                tasks.Problem("why why", "maybe")]
    task = tasks.Task("toy", "", problems, problems[:2], problems[1:], verify_toy, 1 / 3)
    model = build_model("Qwen2", seed, vocab_size=len(WORDS), tie_word_embeddings=True,
                        attention_dropout=dropout)
    model.generation_config.eos_token_id = 0
    policy = grpo_sg.Policy(model, word_tokenizer(WORDS), {0})
    return policy, models.encode_problems(task._replace(**change or {}), policy, cfg), cfg


def parameters_of(model):
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def rows_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]
