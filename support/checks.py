"""Check settings, the task and the model before training. Functions here raise UserError on bad
input."""
import dataclasses
import functools
import math
import os

import grpo_sg
import torch
from tqdm import tqdm

import tasks
from support import data, program, run, tiny, tools
from support.program import first_line, say, suggest
from tasks import UserError

# Settings that need an optional folder.
NEEDS = {"offload": "extras/gpu", "sampler": "extras/gpu", "max_turns": "extras/search",
         "retriever": "extras/search"}


# ---- Settings ----

def check(cfg):
    """Raise UserError if settings contradict each other."""
    check_folders(cfg)
    if cfg.task not in tasks.TASKS:
        hint = suggest(cfg.task, tasks.TASKS)
        raise UserError(f"there is no --task {cfg.task}{hint}: give one of "
                        f"{', '.join(tasks.TASKS)}, or start the script that defines it")
    if cfg.eval_only and not (cfg.model or tiny.find_pretrained(cfg)):
        raise UserError("--eval_only needs --model, for example runs/NAME/checkpoint")
    check_data(cfg)
    try:
        grpo_sg.find_device(cfg.device)
    except ValueError as error:
        raise UserError(str(error)) from None
    if cfg.updates > cfg.prompts * cfg.group_size:
        raise UserError(
            f"--updates {cfg.updates} is more than a step's {cfg.prompts * cfg.group_size} "
            f"completions (--prompts {cfg.prompts} x --group_size {cfg.group_size}): lower "
            "--updates")
    if cfg.low > cfg.high:
        raise UserError(f"--low {cfg.low} is above --high {cfg.high}: lower --low, or raise "
                        "--high")
    check_out(cfg.out, cfg.resume)
    if cfg.shaping == "sg":
        ends = torch.tensor([0.0, 1.0]).log()  # w is monotone between them
        least, greatest = grpo_sg.weigh(ends, cfg)
        if greatest == 0:
            raise UserError("these settings give every token the weight 0, so nothing is "
                            "learned: raise --alpha or --low")
        if least == greatest:
            times = "" if least == 1 else f" with {least:.4g} times the loss"
            say(f"warning: every token has the weight {least:.4g}: this is plain GRPO{times}")


def check_out(out, resume):
    """Raise UserError unless a run can be written to the folder."""
    if "://" in out or "\0" in out:
        raise UserError(f"--out {out!r} is not a folder of this machine: name one")
    try:
        empty = os.path.isdir(out) and not os.listdir(out)
    except OSError as error:
        raise UserError(f"--out {out} cannot be read ({error.strerror}): name another folder")
    if os.path.lexists(out) and not resume and not empty:
        hint = ", or add --resume to continue the run in it" if run.find_checkpoint(out) else ""
        raise UserError(f"--out {out} exists: name another folder{hint}")


def check_folders(cfg):
    """Raise UserError if a setting or the task needs a missing optional folder."""
    needed = {f"--{name}": folder for name, folder in NEEDS.items()
              if getattr(cfg, name) != getattr(type(cfg), name)}
    if cfg.task == "qa" and "qa" not in tasks.TASKS:
        needed["--task qa"] = "extras/search"
    for flag, folder in needed.items():
        if not (program.ROOT / folder / "plugin.py").exists():
            raise UserError(f"{flag} needs the folder {folder}/, which is missing: put it "
                            "back, or leave the flag out")


def check_data(cfg):
    """Raise UserError unless the sets of problems exist, and their files can be used."""
    if tasks.TASKS[cfg.task] is tasks.kk_task:
        data.check_name("--data", cfg.data, ("synthetic", "published"), files=False)
    if tasks.TASKS[cfg.task] is not tasks.math_task:
        return
    data.check_name("--data", cfg.data, tasks.MATH_PAIRS)
    if cfg.eval_data:
        data.check_name("--eval_data", cfg.eval_data, tasks.MATH_PAIRS.values())
    eval_data = tasks.choose_eval_data(cfg, tasks.MATH_PAIRS)
    data.check_readable(cfg, eval_data)
    for name in {cfg.data, eval_data}:
        if name.endswith(".jsonl") and not (cfg.eval_only and name != eval_data):
            data.check_file(name)


# ---- The task: its fields and problems ----

def make_task(cfg):
    """Make the task that cfg.task names, and check it."""
    owner = f"tasks.TASKS[{cfg.task!r}]"
    make = tasks.TASKS[cfg.task]
    task = make(cfg) if callable(make) else make
    if not isinstance(task, tasks.Task):
        raise UserError(f"{owner} must be a function of the settings that returns a "
                        f"tasks.Task, not {task!r:.60}")
    check_fields(f"{owner}:", task, RULES)
    for name in ("train", "valid", "test"):
        for problem in getattr(task, name):
            check_problem(f"{owner}: {name}", problem)
    if isinstance(task.write, tools.Tool):
        check_fields(f"{owner}: the tool's", task.write, TOOL_RULES)
    if not cfg.eval_only:
        check_held_out(owner, task)
    return task


def check_fields(owner, thing, rules):
    """Raise UserError unless the fields of a task or tool fit their rules."""
    for names, (fits, words) in rules.items():
        for name in names.split():
            if not fits(getattr(thing, name)):
                raise UserError(f"{owner} {name} must be {words}, not "
                                f"{getattr(thing, name)!r:.60}")


def is_text(value):
    return isinstance(value, str) and is_whole(value)


def is_named(value):
    return is_text(value) and value != ""


def is_writer(value):
    return value is None or callable(value)


def is_count(value):
    return isinstance(value, int) and value >= 0


def is_positive(value):
    return is_count(value) and value > 0


def is_share(value):
    return isinstance(value, (int, float)) and 0 <= value <= 1


def is_list(value):
    return isinstance(value, list) and len(value) > 0


RULES = {  # fields of a Task: a test of each, and the message's words
    "train valid test": (is_list, "a list of tasks.Problem, with at least one"),
    "name system opening tokens": (is_text, "a string"),
    "verify reward": (callable, "a function"),
    "write": (is_writer, "None, a support.tools.Tool or a function"),
    "floor shortcuts": (is_share, "a number from 0 to 1"),
    "warmup": (is_positive, "a whole number, 1 or more")}
TOOL_RULES = {
    "observe": (callable, "a function"),
    "stop_text": (is_named, "a string that ends a call"),
    "max_turns": (is_count, "a whole number, 0 or more")}


def check_problem(owner, problem):
    """Raise UserError unless this is a Problem whose texts are strings."""
    if not isinstance(problem, tasks.Problem):
        raise UserError(f"{owner} has {problem!r:.60}, which is not a tasks.Problem")
    texts = (problem.question, problem.solution, problem.shortcut)
    if not problem.question or not all(map(is_text, texts)):
        raise UserError(f"{owner} has {problem!r:.60}: question, solution and shortcut must "
                        "be strings, and the question must not be empty")


def check_held_out(owner, task):
    """Raise UserError if every validation or test problem is also a training problem;
    warn if some are."""
    trained_on = {problem.question for problem in task.train}
    for name in ("valid", "test"):
        problems = getattr(task, name)
        seen = sum(problem.question in trained_on for problem in problems)
        line = f"{owner}: {seen} of {len(problems)} questions of {name} are also in train"
        if seen == len(problems):
            raise UserError(f"{line}: give problems that are not in the training set")
        if seen:
            say(f"warning: {line}. Accuracy on them shows what the model has memorized")


def is_whole(text):
    """Return False for a string with lone surrogates, which no tokenizer can encode."""
    return text.encode(errors="replace").decode() == text


# ---- The functions of a task, possibly the user's own ----

def guard(task):
    """Return the task with checked functions: an error in one becomes a UserError that
    names the function and its argument."""
    write = task.write
    if isinstance(write, tools.Tool):
        write = dataclasses.replace(write, observe=functools.partial(call_tool, task))
    return task._replace(verify=functools.partial(call_verify, task),
                         reward=functools.partial(call_reward, task), write=write)


def call_verify(task, response, answer):
    words = f"verify of --task {task.name}, for {response!r}"
    verdict = call(words, task.verify, response, answer)
    if not (isinstance(verdict, tuple) and len(verdict) == 2 and all(map(is_bool, verdict))):
        raise UserError(f"{words}: {verdict!r} must be a tasks.Verdict of True and False; "
                        "partial credit is for Task.reward")
    return verdict


def is_bool(value):
    try:
        return bool(value in (True, False))
    except Exception:  # the truth value of an array is ambiguous
        return False


def call_reward(task, completion):
    words = f"reward of --task {task.name}, for {completion.response!r}"
    reward = call(words, float, call(words, task.reward, completion))
    if not math.isfinite(reward):
        raise UserError(f"{words}: {reward} is not finite")
    return reward


def call_tool(task, texts):
    words = f"the tool of --task {task.name}, for {texts[0]!r}"
    answers = call(words, task.write.observe, texts)
    right = isinstance(answers, (list, tuple)) and len(answers) == len(texts)
    if not right or not all(isinstance(answer, str) for answer in answers):
        raise UserError(f"{words}: observe got a list of {len(texts)} and must return a list "
                        f"of as many strings, not {answers!r:.60}")
    return answers


def call(words, function, *given):
    try:
        return function(*given)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{words}: {first_line(error)}") from error


# ---- The model ----

@torch.no_grad()
def check_start(policy, task, cfg):
    """Try the prompts, the verifier, the tool, the sampler and the log-probabilities once, to
    find mistakes before training."""
    vocabulary = policy.model.config.get_text_config().vocab_size
    if not policy.stop_ids or max(policy.stop_ids) >= vocabulary:
        raise UserError("the tokenizer saved with the model is not usable: it has no stop "
                        "token, or one outside the model's vocabulary. Save the right "
                        "tokenizer with the model")
    for split in ("train", "valid", "test"):
        if not getattr(task, split):
            raise UserError(f"none of the {split} problems fits into the model's context: lower "
                            "--max_new_tokens, or use another model")
    unknown, words, last_word = 0, 0, 0
    tried = [*task.train[:20], *task.valid[:20], *task.test[:20]]
    for problem in tqdm(tried, "trying the verifier", leave=False, delay=2, disable=None):
        c = grpo_sg.Completion(problem, problem.prompt)
        unknown += c.prompt.count(policy.tokenizer.unk_token_id)
        words += len(c.prompt)
        last_word = max(last_word, *c.prompt)
        c.add(policy.tokenizer(problem.solution or problem.question)["input_ids"], own=True)
        if isinstance(task.write, tools.Tool):
            task.write.observe([policy.tokenizer.decode(c.tokens)])
        grpo_sg.grade(c, policy, task)
    if unknown > words / 20 and cfg.resume:
        raise UserError(f"the run in {cfg.out} does not know {unknown} of {words} words of --task "
                        f"{cfg.task}: the task has changed since it began. Start a new run")
    if unknown > words / 20:
        whose = (f"the tokenizer of --model {cfg.model}" if cfg.model
                 else "the pretrained tiny model")
        raise UserError(
            f"{whose} does not know {unknown} of {words} words of --task {cfg.task}: it was "
            "made for another task or other settings. Name another model; without --model, "
            "--warm_up trains a new tiny model")
    if last_word >= vocabulary:
        raise UserError(
            f"the tokenizer of --model {cfg.model} has more words than the {vocabulary} "
            "of its model: it belongs to another model. Save the right one with it")
    prompts = [c.prompt, c.prompt[len(c.prompt) // 2:]]  # unequal lengths: padding is tried
    try:
        drawn = grpo_sg.sample(policy.model, prompts, max_new_tokens=4, stop_ids=[],
                               temperature=0)
        for prompt, tokens in zip(prompts, drawn):
            compare_passes(policy.model, prompt, tokens)
    except Exception as error:
        reason = first_line(error)
        raise UserError(f"--model {cfg.model} cannot be sampled or trained here: {reason}")


def compare_passes(model, prompt, tokens):
    """Compare greedy sampling and token_logps with a plain forward pass.

    Raises ValueError if a sampled token is not the most likely one, or if token_logps
    differs, by more than a hundredth of the largest logit: the model's cache, padding or
    positions then work differently from most models'. Also checks that the model is
    causal.
    """
    ids = torch.tensor([prompt + tokens], device=model.device)
    mask = torch.arange(ids.shape[1], device=model.device)[None] >= len(prompt)
    logits = model(input_ids=ids).logits[0].float()
    most = logits.abs().max()
    if not most.isfinite():
        raise ValueError("its logits are not finite: check its parameters for NaN")
    alone = model(input_ids=ids[:, :1]).logits[0, 0].float()
    if (alone - logits[0]).abs().max() > 0.01 * most:
        raise ValueError("it is not a causal model: a token's logits depend on later tokens")
    logits = logits[len(prompt) - 1:-1]
    chosen = ids[0, len(prompt):, None]
    behind = logits.amax(-1) - logits.gather(1, chosen)[:, 0]
    logps = logits.log_softmax(-1).gather(1, chosen)[:, 0]
    off = (grpo_sg.token_logps(model, ids, mask)[0, len(prompt):] - logps).abs()
    if not (torch.cat([behind, off]) <= 0.01 * most).all():
        raise ValueError("sampling or token_logps differs from a plain forward pass")
