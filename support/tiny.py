"""Make the tiny model, which learns on a laptop: its architecture, its tokenizer, and its
supervised warm-up, which replaces pretraining. `python -m experiments.pretrain` made
the pretrained tiny models in support/pretrained/.

The problems of a task need a `solution`, and may have a `shortcut`, a text that skips a part of
the solution. The warm-up teaches both, and RL can unlearn the shortcut.
"""
import json
import os
import random
import statistics

import grpo_sg  # before torch: it configures PyTorch's allocator
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

import tasks
from support import tools
from support.program import ROOT
from tasks import UserError

BATCH = 64  # texts per step of the warm-up
# function that makes a task -> folder of the tiny model pretrained on its default problems
PRETRAINED = {tasks.kk_task: ROOT / "support" / "pretrained" / "kk",
              tasks.math_task: ROOT / "support" / "pretrained" / "math"}


def find_pretrained(cfg):
    """Return the folder of the pretrained tiny model for cfg's task and data, or "" if
    there is none or --warm_up is set. All seeds and numbers of training problems share one
    model, because it has seen no test problem of any seed."""
    return "" if cfg.model or why_new(cfg) else str(PRETRAINED[tasks.TASKS[cfg.task]])


def why_new(cfg):
    """Return why a run without --model trains a new tiny model, or ""."""
    make = tasks.TASKS[cfg.task]
    folder = PRETRAINED.get(make) if callable(make) else None
    if cfg.warm_up:
        return "--warm_up"
    if not folder or not os.path.isdir(folder):
        return f"--task {cfg.task} has no pretrained one"
    with open(os.path.join(folder, "about.json")) as file:
        made_with = json.load(file)["settings"]
    misfits = [f"--{name} {grpo_sg.shown(value)}" for name, value in made_with.items()
               if name != "train_problems" and getattr(cfg, name) != value]
    return f"the pretrained one is for {', '.join(misfits)}" if misfits else ""


def tiny_model(task):
    """Make (model, tokenizer): an untrained Qwen2 with about 200,000 parameters, and a
    token for each match of task.tokens in the task's texts. Raises UserError for a task
    without solutions."""
    missing = sum(not problem.solution for problem in task.train)
    if missing:
        raise UserError(f"--task {task.name}: {missing} of {len(task.train)} training problems "
                        "have no solution for the tiny model to learn from: add --model, or "
                        "give its problems a solution")
    if task.shortcuts and not any(problem.shortcut for problem in task.train):
        raise UserError(f"--task {task.name} has shortcuts {task.shortcuts}, but no problem "
                        "with a shortcut: give some, or leave shortcuts out")
    tokenizer = tiny_tokenizer(task)
    # Seed-OSS has Qwen2's layers. For a model named Qwen2, transformers' AutoTokenizer
    # would replace our vocabulary by Qwen2's. The usual initializer_range of 0.02 and
    # rope_theta of 10,000 suit wider networks and longer texts.
    model = transformers.SeedOssForCausalLM(transformers.SeedOssConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, head_dim=16,
        attention_bias=True, attention_out_bias=False, attention_dropout=0.0,
        residual_dropout=0.0, max_position_embeddings=2048, tie_word_embeddings=True,
        initializer_range=0.1, rope_parameters={"rope_type": "default", "rope_theta": 20.0},
        bos_token_id=None, eos_token_id=0, pad_token_id=0, tiny=True))
    return model, tokenizer


def tiny_tokenizer(task):
    """Make a tokenizer whose vocabulary is every word in the task's texts. Its chat template
    leaves out the system prompt, which the tiny model does not need."""
    words = set()
    try:
        pieces = pre_tokenizers.Split(Regex(task.tokens), "isolated")
    except Exception as error:
        raise UserError(f"--task {task.name}: its tokens must be a regular expression, not "
                        f"{task.tokens!r} ({error})") from None
    problems = [*task.train, *task.valid, *task.test]
    for problem in tqdm(problems, "words", leave=False, delay=2, disable=None):
        texts = [problem.question, problem.solution, problem.shortcut]
        calls = calls_of(task, problem.solution)
        answers = task.write.observe(calls) if calls else []
        texts += [answer.encode(errors="replace").decode() for answer in answers]
        for text in texts:
            words.update(word for word, _ in pieces.pre_tokenize_str(text))
    vocabulary = {word: i for i, word in enumerate(["<|im_end|>", "[UNK]", *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pieces
    tokenizer.decoder = decoders.Fuse()  # without it, tokens would be joined with spaces
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template="{{ messages[-1]['content'] }}")


def calls_of(task, text):
    """Return the prefixes of a scripted completion that end with a call of the tool."""
    return task.write.find_calls(text) if isinstance(task.write, tools.Tool) else []


def write_script(tokenizer, task, problem, text):
    """Return (ids, mask) of a prompt and a scripted completion with the tool's answers, as
    a rollout would make them. mask: True on tokens that the policy writes."""
    ids = list(problem.prompt)
    mask = [False] * len(ids)
    written = ""
    for said in [*calls_of(task, text), f"{text}<|im_end|>"]:
        if written:
            answer = tools.encode_tool_answer(tokenizer, *task.write.observe([written]))
            ids += answer
            mask += [False] * len(answer)
        turn = tokenizer(said.removeprefix(written))["input_ids"]
        ids += turn
        mask += [True] * len(turn)
        written = said
    return torch.tensor(ids), torch.tensor(mask)


def length_of(script):
    return len(script[0])


def warm_up(policy, task, cfg):
    """Train by maximum likelihood on solutions for task.warmup steps. A fraction
    task.shortcuts of the texts are shortcuts instead, which RL can unlearn.
    Raises UserError if cfg.max_new_tokens would cut off most texts."""
    model, tokenizer = policy.model, policy.tokenizer
    print(f"supervised warm-up of the tiny model: {task.warmup} steps ({why_new(cfg)})")
    lengths = [len(tokenizer(problem.solution)["input_ids"]) for problem in task.train[:200]]
    if statistics.median(lengths) >= cfg.max_new_tokens:
        raise UserError(f"--max_new_tokens {cfg.max_new_tokens} cuts off most texts, which have "
                        f"up to {max(lengths)} tokens: raise it, or use easier problems")
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.8, 0.95), weight_decay=0, fused=True)
    rng = random.Random(cfg.seed)
    bar = tqdm(range(1, task.warmup + 1), "warm-up", mininterval=1, disable=None)
    for step in bar:
        scripts = []
        for problem in rng.sample(task.train, min(BATCH, len(task.train))):
            text = problem.shortcut if rng.random() < task.shortcuts else problem.solution
            scripts.append(write_script(tokenizer, task, problem, text))
        loss = add_gradient(model, scripts)
        rate = 5e-3 * min(1, step / 50, 2 - 2 * step / task.warmup)  # warm up, hold, decay
        optimizer.param_groups[0]["lr"] = rate
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        bar.set_postfix({"loss": f"{loss:.3f}"}, refresh=False)


def add_gradient(model, scripts):
    """Add the gradient of the loss, minus the mean log-probability of the tokens that the
    policy writes, and return the loss. Two batches, of the shorter and the longer scripts,
    save padding."""
    scripts.sort(key=length_of)
    count = sum(int(mask.sum()) for _, mask in scripts)
    half = (len(scripts) + 1) // 2
    total = 0.0
    for part in (scripts[:half], scripts[half:]):
        if not part:
            continue
        ids = pad_sequence([ids for ids, _ in part], batch_first=True).to(model.device)
        mask = pad_sequence([mask for _, mask in part], batch_first=True).to(model.device)
        # The position before a token predicts it. Only these positions go through the
        # vocabulary matrix.
        logits = model(input_ids=ids[:, :-1], use_cache=False,
                       logits_to_keep=mask[:, 1:]).logits
        loss = F.cross_entropy(logits, ids[mask], reduction="sum") / count
        loss.backward()
        total += loss.item()
    return total
