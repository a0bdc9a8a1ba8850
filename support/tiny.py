"""Train a model on the worked solutions of a task (supervised fine-tuning), and write its folder.

    python -m support.tiny kk                    makes a task's tiny model, in support/pretrained
    python -m support.tiny support/search.py     of a task in a Python file
    python -m support.tiny kk --brief --people 2 3 --max_new_tokens 80 --steps 240 --lr 3e-4 \\
        --model HuggingFaceTB/SmolLM2-135M-Instruct      a cold start for a real model

The tiny model learns on a laptop: a new architecture and a tokenizer of the task's words. The
training here replaces its pretraining. A real model whose completions are all malformed learns the
format first, and then RL has something to work with. All other settings are flags of grpo_sg.py.
They become the settings.json of the new folder: defaults of a run with `--model FOLDER`.

The shipped models have 200,000 parameters: kk (made at commit d15f54b, greedy test accuracy 0.530)
and math (52def57, 0.555), with seed 0, torch 2.13.0+cpu and transformers 5.23.0. Another processor
rounds differently. One model serves all seeds, because no seed trains on another's test problems.

The problems of a task need a `solution`. They may have a `shortcut`, a text that skips a part of
the solution: a tiny model learns both, and RL can unlearn the shortcut.
"""
import argparse
import json
import math
import os
import pathlib
import random
import shutil
import statistics

import grpo_sg
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

import tasks
from support.tools import Tool, encode_tool_answer
from tasks import UserError

# Settings of a run that starts from a tiny model. On a GPU it would wait for the CPU.
TINY = dict(system="none", train_problems=20000, steps=60, eval_every=20, prompts=32, updates=4,
            lr=2e-4, temperature=1.0, max_new_tokens=48, tokens_per_micro_batch=32768,
            sample_batch=1024, device="cpu")
# Those of one task alone. Sums differ in length, so smaller batches save padding.
OWN = {"kk": dict(people=[3], brief=True), "math": dict(tokens_per_micro_batch=2048)}
# A run of kk draws 1,920 puzzles to train on; making 20,000 would take a fifth of its time. The
# training here needs more than a run: after one on 4,000 the model remembers them, and learns less.
PUZZLES_OF_A_RUN = 4000
# How a new tiny model is trained (for task.warmup steps), and how a loaded one: texts in a
# step, learning rate, betas of AdamW.
NEW = dict(batch=64, lr=5e-3, betas=(0.8, 0.95))
LOADED = dict(steps=60, batch=16, lr=2e-5, betas=(0.9, 0.99))
NOT_SAVED = ("model", "out", "resume", "eval_only", "seed")
PRETRAINED = pathlib.Path(__file__).with_name("pretrained")


# ---- The tiny model ----

def tiny_model(task):
    """Make (model, tokenizer): an untrained Qwen2 with about 200,000 parameters, and a
    token for each match of task.tokens in the task's texts."""
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
        bos_token_id=None, eos_token_id=0, pad_token_id=0))
    return model, tokenizer


def tiny_tokenizer(task):
    """Make a tokenizer whose vocabulary is every word in the task's texts. Its chat template
    leaves out the system prompt, which the tiny model does not need."""
    words = set()
    pieces = pre_tokenizers.Split(Regex(task.tokens), "isolated")
    problems = [*task.train, *task.valid, *task.test]
    for problem in tqdm(problems, "words", leave=False, delay=2, disable=None):
        calls = calls_of(task, problem.solution)
        answers = task.write.observe(calls) if calls else []
        for text in (problem.question, problem.solution, problem.shortcut, *answers):
            words.update(word for word, _ in pieces.pre_tokenize_str(text))
    vocabulary = {word: i for i, word in enumerate(["<|im_end|>", "[UNK]", *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pieces
    tokenizer.decoder = decoders.Fuse()  # without it, tokens would be joined with spaces
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template="{{ messages[-1]['content'] }}")


# ---- The texts ----

def calls_of(task, text):
    """Return the prefixes of a scripted completion that end with a call of the tool."""
    return task.write.find_calls(text) if isinstance(task.write, Tool) else []


def write_script(tokenizer, task, problem, text, end):
    """Return (ids, mask) of a prompt and a scripted completion with the tool's answers, as
    a rollout would make them. mask: True on tokens that the policy writes; end: the token that
    ends its turn."""
    def encode(part):
        return tokenizer(part, add_special_tokens=False)["input_ids"]
    ids = list(problem.prompt)
    mask = [False] * len(ids)
    text = text.removeprefix(problem.opening)  # the prompt ends with it
    written = ""
    for call in calls_of(task, text):
        turn = encode(call.removeprefix(written))
        answer = encode_tool_answer(tokenizer, *task.write.observe([call]))
        ids += turn + answer
        mask += [True] * len(turn) + [False] * len(answer)
        written = call
    turn = [*encode(text.removeprefix(written)), end]
    return torch.tensor(ids + turn), torch.tensor(mask + [True] * len(turn))


def length_of(script):
    return len(script[0])


# ---- Training ----

def fine_tune(policy, task, cfg, *, steps, batch, lr, betas, rise, shortcuts=0.0):
    """Train by maximum likelihood on solutions.

    Args:
        policy, task, cfg: a Policy, a Task with encoded prompts, a Config.
        steps, batch: the number of steps, and of texts in each.
        lr: the learning rate; it rises for `rise` steps, and decays in the second half.
        betas: those of AdamW.
        shortcuts: the fraction of texts that are shortcuts, which RL can unlearn.
    """
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr, betas=betas, weight_decay=0,
                                  fused=True)
    end = grpo_sg.find_turn_end(policy.tokenizer)
    if end is None:
        end = policy.tokenizer.eos_token_id
    rng = random.Random(cfg.seed)
    bar = tqdm(range(1, steps + 1), "training", mininterval=1, disable=None)
    for step in bar:
        scripts = []
        for problem in rng.sample(task.train, min(batch, len(task.train))):
            text = problem.shortcut if rng.random() < shortcuts else problem.solution
            scripts.append(write_script(policy.tokenizer, task, problem, text, end))
        loss = add_gradient(policy.model, scripts, cfg)
        optimizer.param_groups[0]["lr"] = lr * min(1, step / rise, 2 - 2 * step / steps)
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        bar.set_postfix({"loss": f"{loss:.3f}"}, refresh=False)
        if bar.disable and step % max(1, steps // 10) == 0:
            grpo_sg.say(f"step {step} of {steps}: loss {loss:.3f}")
    policy.model.eval()


def add_gradient(model, scripts, cfg):
    """Add the gradient of the loss, minus the mean log-probability of the tokens that the
    policy writes, and return the loss. Batches of texts of similar lengths save padding."""
    scripts.sort(key=length_of)
    count = sum(int(mask.sum()) for _, mask in scripts)
    tokens = len(scripts) * length_of(scripts[-1])
    batches = max(2, math.ceil(tokens / cfg.tokens_per_micro_batch))
    size = math.ceil(len(scripts) / batches)
    total = 0.0
    for start in range(0, len(scripts), size):
        ids, mask = zip(*scripts[start:start + size])
        ids = pad_sequence(ids, batch_first=True).to(model.device)
        mask = pad_sequence(mask, batch_first=True).to(model.device)
        with grpo_sg.in_bfloat16(model.device):
            loss = -grpo_sg.token_logps(model, ids, mask).sum() / count
        loss.backward()
        total += loss.item()
    return total


# ---- The command ----

def check_lengths(task, tokenizer, cfg):
    """Raise UserError if most solutions are longer than a completion may be."""
    lengths = [len(tokenizer(problem.solution)["input_ids"]) for problem in task.train[:200]]
    if statistics.median(lengths) >= cfg.max_new_tokens:
        raise UserError(f"--max_new_tokens {cfg.max_new_tokens} cuts off most texts, which have "
                        f"up to {max(lengths)} tokens: raise it, or use easier problems")


def make_task(cfg):
    """Make the task that cfg names. Raises UserError unless it has problems, all with solutions."""
    grpo_sg.say(f"preparing the problems of --task {cfg.task}")
    task = tasks.make_task(cfg)
    solved = sum(problem.solution != "" for problem in task.train)
    if solved < max(1, len(task.train)):
        raise UserError(f"--task {task.name}: {solved} of {len(task.train)} training problems have "
                        "a solution: give problems to train on, each with a solution")
    return task


def train(cfg, recipe, new):
    """Make the tiny model, or load cfg.model, and train it with the recipe. Returns the
    Policy."""
    task = make_task(cfg)
    torch.manual_seed(cfg.seed)
    model, tokenizer = tiny_model(task) if new else grpo_sg.load_model(grpo_sg.newest(cfg.model))
    grpo_sg.prepare(model, cfg.device, cfg.gradient_checkpointing)
    policy = grpo_sg.Policy(model, tokenizer, grpo_sg.find_stop_ids(model, tokenizer))
    check_lengths(task, tokenizer, cfg)
    task = tasks.encode_problems(task, tokenizer, policy.stop_ids, model.config, cfg)
    if new:
        recipe = {"steps": task.warmup, **recipe}
    rise = 50 if new else max(1, recipe["steps"] // 10)
    grpo_sg.say(f"{model.num_parameters():,} parameters: {recipe['steps']} steps of supervised "
                "fine-tuning")
    fine_tune(policy, task, cfg, rise=rise, shortcuts=task.shortcuts if new else 0.0, **recipe)
    return policy


def save(policy, cfg, folder):
    """Write the model's folder, with the settings of a run that starts from it, under another name,
    and rename it when it is whole."""
    new = f"{folder}.new"
    shutil.rmtree(new, ignore_errors=True)
    policy.model.save_pretrained(new)
    policy.tokenizer.save_pretrained(new)
    defaults, own = vars(grpo_sg.Config()), tasks.load_task(cfg.task)[1]
    changed = [name for name, value in vars(cfg).items() if value != defaults[name] or name in own]
    settings = {name: getattr(cfg, name) for name in changed if name not in NOT_SAVED}
    pathlib.Path(new, "settings.json").write_text(json.dumps(settings, indent=1), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(new, folder)


def read_flags(argv):
    """Parse the flags. Returns (those of this command, as a dict; those of grpo_sg.py)."""
    parser = argparse.ArgumentParser(
        prog="python -m support.tiny", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, argument_default=argparse.SUPPRESS)
    parser.add_argument("task", help="kk, math, or a Python file with make_task(cfg)")
    parser.add_argument("--model", default="", metavar="TEXT",
                        help="folder or hub name of a model to fine-tune; default: a tiny one")
    parser.add_argument("--out", default="", metavar="TEXT",
                        help="new folder to write; default: one in pretrained/, which is replaced")
    parser.add_argument("--steps", type=int, metavar="N",
                        help=f"default: the warmup of a tiny model's task, or {LOADED['steps']}")
    parser.add_argument("--batch", type=int, metavar="N",
                        help=f"texts in a step; default: {NEW['batch']}, or {LOADED['batch']}")
    parser.add_argument("--lr", type=float, metavar="X",
                        help=f"learning rate; default: {NEW['lr']}, or {LOADED['lr']}")
    own, flags = parser.parse_known_args(argv)
    return vars(own), flags


def read_settings(task, model, out, flags):
    """Return the settings of the run that will start from the model: each from the first that has
    it of the flags, SETTINGS in the task's file, TINY for a tiny model, and Config. The task's
    path becomes absolute, so that `check_name` knows it in another folder."""
    own = tasks.load_task(task)[1]
    usual = own if model else {**TINY, **OWN.get(task, {}), **own}
    task = task if task in tasks.TASKS else os.path.abspath(task)
    places = {"task": task, "model": model, "out": out}
    cfg = grpo_sg.Config(**{**usual, **grpo_sg.parse_flags(flags), **places})
    grpo_sg.check_settings(cfg)
    return cfg


def check_name(task, folder):
    """Raise UserError if the tiny model of the task would replace that of another task: a run finds
    the model by the name of the task's file."""
    made_for = grpo_sg.read_saved(folder).get("task", task)
    there = made_for in tasks.TASKS or os.path.isfile(made_for)
    if there and os.path.realpath(made_for) != os.path.realpath(task):
        raise UserError(f"{folder} is the tiny model of {made_for}: give {task} another name")


def main(argv=None):
    transformers.utils.logging.disable_progress_bar()  # it would garble our lines
    own, flags = read_flags(argv)
    task, model, out = own.pop("task"), own.pop("model"), own.pop("out")
    with grpo_sg.errors_in_one_line(OSError):
        if out and os.path.exists(out):
            raise UserError(f"--out {out} exists: name a new folder")
        cfg = read_settings(task, model, out, flags)
        stem = pathlib.Path(task).stem
        name = f"{stem}-{os.path.basename(model)}" if model else stem
        folder = os.path.relpath(out or PRETRAINED / name)
        if not model:
            check_name(task, folder)
        policy = train(cfg, {**(LOADED if model else NEW), **own}, new=not model)
        if task == "kk" and not model:
            cfg.train_problems = min(cfg.train_problems, PUZZLES_OF_A_RUN)
        save(policy, cfg, folder)
    grpo_sg.say(f"wrote {folder}; train it: python grpo_sg.py --task {task} --model {folder}")


if __name__ == "__main__":
    main()
