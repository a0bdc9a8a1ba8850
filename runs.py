"""The run around grpo_sg.py's algorithm: the model, the run's files, checkpoints, signals, the report.

The folder of a run holds config.json, metrics.jsonl, samples.jsonl, the newest checkpoint, checkpoint/, and
those before it, checkpoint-STEP/. A checkpoint is what save_pretrained writes, optimizer.pt and state.json.
It is written under another name and renamed when whole, so that whatever stops a run, one whole checkpoint
is left. What a step of training draws is a function of seed and step: there are no random states to save.
"""
import argparse
import contextlib
import glob
import itertools
import json
import math
import os
import shutil
import signal
import sys
import time
from statistics import fmean as mean

import huggingface_hub
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import tasks

LOGS = "metrics.jsonl", "samples.jsonl"
# What may change on --resume: it decides how a run is kept, and not what it computes, but for rounding.
MAY_CHANGE = {"resume", "out", "steps", "save_every", "keep", "eval_every", "max_bad_steps", "sample_batch",
              "tokens_per_micro_batch", "gradient_checkpointing"}


def fail(message, status=2):
    """A user's mistake, or the machine's: one line and an exit status, no traceback."""
    tqdm.write(f"grpo_sg: error: {message}", file=sys.stderr)  # on a line of its own, whatever bar is shown
    raise SystemExit(status)


def first_line(error):
    return f"{type(error).__name__}: {error}".split("\n")[0]


# ---- The model ----

def read_model(folder, local):
    """(model, tokenizer) as save_pretrained wrote them, in float32. AutoTokenizer would put Qwen2's own
    rules in place of those in the tiny model's tokenizer.json. No code that comes with a model is run."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=local)
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32", local_files_only=local), tokenizer


def save_model(folder, model, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_model(cfg, task):
    """(model, tokenizer) from a folder or the hub; where --model names none, the tiny pair."""
    torch.manual_seed(cfg.seed)
    if not cfg.model:
        return tasks.tiny_model(task)
    local, why = os.path.isdir(cfg.model), ""
    try:
        local or huggingface_hub.HfApi().model_info(cfg.model, timeout=10)
    except Exception as error:  # no such name, no access, no network: an earlier download may do
        local, why = True, error
    try:
        return read_model(cfg.model, local)
    except Exception as error:
        fail(f"cannot load a model and its tokenizer from --model {cfg.model}: give a folder written by "
             f"save_pretrained, or a hub name and a network ({first_line(why or error)})")


def prepare(model, cfg, prompt, stops, token_logps):
    """Put the model where it will work, and make sure that token_logps sees its probabilities."""
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    if not stops or not prompt:
        fail(f"the tokenizer saved with --model {cfg.model} is not usable: it has no end token or no words")
    if cfg.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    ids = torch.tensor([prompt + [min(stops)]], device=model.device)
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0, -2].float().log_softmax(-1)[ids[0, -1]]
        last = torch.arange(ids.shape[1], device=model.device)[None] == len(prompt)
        if not torch.isclose(token_logps(model, ids, last)[0, -1], expected, atol=1e-2):
            fail(f"--model {cfg.model} changes its logits after the vocabulary matrix: not supported")
    return model


# ---- The settings, and the files of a run ----

def write_json(path, content):
    with open(f"{path}.tmp", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.tmp", path)  # whole, or not at all


def read_rows(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def new_folder(name):
    """A folder under runs/ that nobody had before, for runs that start in the same second too."""
    for suffix in itertools.chain([""], map("_{}".format, itertools.count(2))):
        with contextlib.suppress(FileExistsError):
            os.makedirs(f"runs/{name}{suffix}")
            return f"runs/{name}{suffix}"


def open_run(cfg, config):
    """Make the run's folder, if it is a new run, and write config.json. Returns the folder, and a function
    log(row, samples) that appends to metrics.jsonl and samples.jsonl."""
    out = cfg.out or new_folder(f"{cfg.task}-{cfg.shaping}-seed{cfg.seed}-{time.strftime('%Y%m%d-%H%M%S')}")
    os.makedirs(out, exist_ok=cfg.resume or not cfg.out)
    write_json(os.path.join(out, "config.json"), config)

    def log(row, samples):
        for name, records in zip(LOGS, ([row], samples)):
            with open(os.path.join(out, name), "a") as file:
                file.writelines(json.dumps(record) + "\n" for record in records)  # ASCII: any text survives
    print(f"files of this run: {out}/")
    return out, log


def command_line(fields, tiny, description, argv):
    """The settings that are given, as a dict: flags of the names of a dataclass's fields. Where they say
    --resume, those of the run to resume; where --eval_only, those of the run that made the model."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.error = fail
    for field in fields:
        kind = {bool: {"action": "store_true"}, tuple: {"type": int, "nargs": "+"}}.get(
            field.type, {"type": field.type, "choices": field.metadata["choices"]})
        own = f"; tiny model: {tiny[field.name]}" if field.name in tiny else ""
        parser.add_argument(f"--{field.name}", default=argparse.SUPPRESS, **kind,
                            help=f"{field.metadata['help']} (default: {field.default}{own})")
    given = vars(parser.parse_args(argv))
    if given.get("resume"):
        given = settings_to_resume(given)
    elif given.get("eval_only"):
        given = settings_to_evaluate(given)
    for field in fields:
        choices = field.metadata["choices"]
        if choices and given.get(field.name, field.default) not in choices:
            fail(f"no --{field.name} {given[field.name]} here: start the script that defines it")
    return given


def settings_to_resume(given):
    """The settings of the run in given["out"], with those given now, which must not change what it is."""
    path = os.path.join(given.get("out", ""), "config.json")
    try:
        with open(path) as file:
            saved = json.load(file)
    except (OSError, ValueError) as error:
        fail(f"--resume needs the folder of a run, --out DIR, and cannot read {path} ({first_line(error)})")
    for name, value in given.items():
        value = list(value) if isinstance(value, tuple) else value
        if name not in MAY_CHANGE and value != saved.get(name):
            fail(f"--resume with --{name} {value}, but this run has {saved.get(name)}: leave it out, or "
                 "start another run")
    return {**saved, "people": tuple(saved["people"]), **given}


def settings_to_evaluate(given):
    """With those given now, the settings of the run whose checkpoint --model names: a model is to be tested
    as it was trained. Only those given, where no run or another task is meant."""
    path = os.path.join(os.path.dirname(os.path.normpath(given.get("model", "-/-"))), "config.json")
    try:
        with open(path) as file:
            saved = json.load(file)
        if {"shaping", "people"} <= set(saved) and given.get("task", saved["task"]) == saved["task"]:
            given = {**saved, "people": tuple(saved["people"]), "resume": False, "out": "", **given}
            print(f"settings that are not given are those of {path}")
    except (OSError, ValueError, TypeError, KeyError):
        pass  # not the checkpoint of a run
    return given


def checkpoints(out):
    """The run's checkpoints, the newest first."""
    older = glob.glob(os.path.join(glob.escape(out), "checkpoint-[0-9]*"))
    newest = os.path.join(out, "checkpoint")
    return [newest] * os.path.isdir(newest) + sorted(older, key=lambda path: -int(path.rpartition("-")[2]))


def save_checkpoint(out, step, model, tokenizer, optimizer, keep):
    """Write OUT/checkpoint. The last one becomes checkpoint-STEP; `keep` of them stay, this one included."""
    new, newest = os.path.join(out, "checkpoint.tmp"), os.path.join(out, "checkpoint")
    try:
        shutil.rmtree(new, ignore_errors=True)
        save_model(new, model, tokenizer)
        torch.save(optimizer.state_dict(), os.path.join(new, "optimizer.pt"))
        sizes = {name: os.path.getsize(os.path.join(out, name)) for name in LOGS}
        valid = [row for row in read_rows(os.path.join(out, LOGS[0])) if row.get("split") == "valid"]
        best = max(valid, key=lambda row: row["eval/accuracy"], default=None)
        write_json(os.path.join(new, "state.json"), {"step": step, "sizes": sizes, "best_evaluation": best})
        if os.path.isdir(newest):
            with open(os.path.join(newest, "state.json")) as file:
                before = f"{newest}-{json.load(file)['step']}"
            shutil.rmtree(before, ignore_errors=True)
            os.rename(newest, before)
        os.rename(new, newest)
    except Exception as error:  # no space, no permission, no folder: each library has its own exception
        fail(f"cannot write the checkpoint of step {step} to {out} ({first_line(error)}); to go on from "
             f"{(checkpoints(out) or ['none'])[0]}: python {sys.argv[0]} --resume --out {out}")
    for old in checkpoints(out)[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(out):
    """(model, tokenizer, state) of the newest checkpoint that can be read; state has step and optimizer.
    What was logged after it is cut off, and checkpoints that cannot be read are set aside."""
    for folder in checkpoints(out):
        try:
            with open(os.path.join(folder, "state.json")) as file:
                state = json.load(file)
            state["optimizer"] = torch.load(os.path.join(folder, "optimizer.pt"), "cpu", weights_only=True)
            model, tokenizer = read_model(folder, local=True)
        except Exception as error:
            print(f"{folder} cannot be read ({first_line(error)}): trying the one before")
            shutil.rmtree(f"{folder}.unreadable", ignore_errors=True)
            os.rename(folder, f"{folder}.unreadable")
            continue
        for name, size in state["sizes"].items():
            path = os.path.join(out, name)
            os.truncate(path, min(size, os.path.getsize(path)))
        print(f"resuming after step {state['step']}, from {folder}")
        return model, tokenizer, state
    fail(f"no checkpoint in {out} can be read: start the run anew, with another --out")


# ---- What can stop a run ----

@contextlib.contextmanager
def signals():
    """A list that gets the number of a SIGINT (Ctrl-C) or SIGTERM; the second one exits at once."""
    received = []

    def handler(number, frame):
        if received:
            raise SystemExit(128 + number)
        received.append(number)
        tqdm.write("finishing this step, then saving; once more stops at once", file=sys.stderr)
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def gpu_memory(phase, cfg, name):
    """Turn running out of GPU memory into one line that names the phase and the setting to lower."""
    try:
        yield
    except torch.OutOfMemoryError:
        value = getattr(cfg, name)
        more = "" if phase == "sampling" else ", or add --gradient_checkpointing"
        fail(f"out of GPU memory in {phase}: lower --{name} from {value} to {max(1, value // 2)}{more}; "
             "--resume takes the new value and goes on from the last checkpoint")


def checkpointer(out, model, tokenizer, cfg, received):
    """after_step(step, optimizer, bad_steps) for training: saves when it is time to, and ends the run where
    a signal was received or nothing finite comes any more."""
    def after_step(step, optimizer, bad_steps):
        too_bad = bad_steps >= cfg.max_bad_steps
        if received or too_bad or step % cfg.save_every == 0 or step == cfg.steps:
            save_checkpoint(out, step, model, tokenizer, optimizer, cfg.keep)
        if received:
            tqdm.write(f"stopped after step {step}; to go on: python {sys.argv[0]} --resume --out {out}")
            raise SystemExit(128 + received[0])
        if too_bad:
            fail(f"no update of the last {bad_steps} steps was finite: see their rows and completions in "
                 f"{out}; a lower --lr may help. The weights in {out}/checkpoint are those before")
    return after_step


# ---- The report ----

def printable(text):
    """A completion can hold any character: none may steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def sparkline(values, width=60):
    """Up to `width` blocks, each the mean of a stretch of values, and the first and the last mean."""
    size = math.ceil(len(values) / width)
    means = [mean(values[i:i + size]) for i in range(0, len(values), size)]
    heights = [int(7.99 * (m - min(means)) / (max(means) - min(means) or 1)) for m in means]
    return "".join("▁▂▃▄▅▆▇█"[h] for h in heights) + f" {means[0]:.2f} -> {means[-1]:.2f}"


def report(out, task):
    """What the run did, from its files: accuracies, curves, one problem."""
    rows, samples = [read_rows(os.path.join(out, name)) for name in LOGS]
    before, *_, after = [row for row in rows if row.get("split") == "test"]
    print(f"\n{len(task.test)} test problems, none trained on; best constant answer: {task.floor:.2f}")
    for key in [key for key in after if f"{key}_se" in after]:
        pair = [f"{row[key]:.3f} ± {row[key + '_se']:.3f}" for row in (before, after)]
        name = key.removeprefix("eval/").replace("accuracy", "greedy")
        print(f"  {name:<10} {' -> '.join(pair)}")
    print("during training, sampled:")
    for key in ("reward", "accuracy", "grad_norm", "completion_tokens"):
        print(f"  {key:<18}{sparkline([row[key] for row in rows if 'reward' in row])}")
    tests = [sample for sample in samples if sample["split"] == "test"]
    pairs = zip(tests[:len(tests) // 2], tests[len(tests) // 2:])
    pair = max(pairs, key=lambda pair: pair[1]["solved"] - pair[0]["solved"])
    print(f"\nOne of them: {printable(pair[0]['question'])}")
    for when, sample in zip(("Before", "After"), pair):
        verdict = "right" if sample["solved"] else "wrong" if sample["formatted"] else "badly formed"
        print(f"\n{when} ({verdict}): {printable(sample['completion'])}")
