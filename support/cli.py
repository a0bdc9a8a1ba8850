"""Parse and check the flags of grpo_sg.py, and carry out the whole run (load, test, train, test).
Functions here raise UserError on bad input."""
import argparse
import functools
import glob
import json
import math
import os
import sys
import typing
from statistics import fmean as mean

import grpo_sg  # before torch: it configures PyTorch's allocator
import torch
import transformers

import tasks
from support import data, models, run, tiny
from support.page import with_error
from support.program import UserError, first_line, one_line_errors, say, suggest

# ---- The settings: tables ----

GROUPS = {
    "model and data": "model task data eval_data people train_problems eval_problems "
                      "chat_template_kwargs warm_up",
    "method": "shaping alpha tau mu low high clip_low clip_high beta loss_agg_mode lr temperature",
    "sizes": "steps prompts group_size updates max_new_tokens",
    "memory": "tokens_per_micro_batch sample_batch gradient_checkpointing offload sampler device",
    "run": "eval_every eval_samples eval_only resume seed out",
    "questions with a search tool": "max_turns retriever"}
# The smallest allowed values; other numbers must be above 0. The largest is MOST.
LEAST = {"alpha": 0, "mu": 0, "low": 0, "clip_low": 0, "clip_high": 0, "beta": 0, "seed": 0,
         "eval_samples": 0, "max_turns": 0, "group_size": 2}
MOST = 1e9
# Settings that may change on --resume, because they don't change the method.
RESUMABLE = ("steps lr tokens_per_micro_batch sample_batch gradient_checkpointing offload sampler "
             "device eval_every retriever resume out").split()
# Defaults for the tiny model. On a GPU it would wait for the CPU.
TINY = dict(
    people=[3], train_problems=20000, steps=60, eval_every=20, prompts=32, updates=4,
    lr=2e-4, temperature=1.0, max_new_tokens=48, tokens_per_micro_batch=32768,
    sample_batch=1024, device="cpu")
# Settings that need an optional folder.
NEEDS = {"offload": "extras/gpu", "max_turns": "extras/search", "retriever": "extras/search"}
# setting -> its names, or those of similar settings, in TRL, verl, OpenRLHF and others.
OTHER_NAMES = {
    "model": "model_name_or_path model_name pretrain",
    "out": "output_dir save_path default_local_dir",
    "data": "dataset dataset_name prompt_data train_files", "eval_data": "eval_dataset val_files",
    "lr": "learning_rate actor_learning_rate", "beta": "kl_coef kl_loss_coef init_kl_coef",
    "clip_low": "epsilon epsilon_low eps_clip clip_ratio clip_ratio_low",
    "clip_high": "epsilon_high clip_ratio_high", "loss_agg_mode": "loss_type",
    "steps": "max_steps total_training_steps epochs num_train_epochs total_epochs num_episodes",
    "prompts": "batch_size per_device_train_batch_size train_batch_size rollout_batch_size",
    "group_size": "num_generations n_samples_per_prompt n",
    "updates": "num_iterations steps_per_generation ppo_epochs ppo_mini_batch_size max_epochs",
    "max_new_tokens": "max_completion_length max_response_length generate_max_len max_tokens",
    "tokens_per_micro_batch": "gradient_accumulation_steps ppo_micro_batch_size_per_gpu "
                              "ppo_max_token_len_per_gpu micro_train_batch_size",
    "sample_batch": "micro_rollout_batch_size", "eval_every": "eval_steps test_freq",
    "eval_samples": "num_samples num_generations_eval eval_n_samples_per_prompt",
    "gradient_checkpointing": "enable_gradient_checkpointing", "eval_only": "val_only",
    "resume": "resume_from_checkpoint load_checkpoint",
    "max_turns": "max_tool_calling_iterations max_assistant_turns"}
ALIASES = {other: name for name, others in OTHER_NAMES.items() for other in others.split()}
FIELDS = typing.get_type_hints(grpo_sg.Config, include_extras=True)


# ---- Flags ----

class Parser(argparse.ArgumentParser):
    def error(self, message):
        if message.endswith("expected one argument"):
            message += " (write a value that begins with - as --NAME=VALUE)"
        raise UserError(f"{message}; --help lists all settings")


def parse(argv=None, **script):
    """Return the settings as a checked Config.

    Each setting comes from the first of these sources that has it: the flags; the run
    that --resume or --model RUN/checkpoint names; `script`, the keyword arguments of main;
    TINY, for the tiny model; the defaults of Config.
    """
    tasks.add_extras()
    for name, value in script.items():
        check_value(name, value)
    script = data.find_files(script)
    given = data.find_files(read_flags(argv))
    own_task = {"task": script["task"]} if "task" in script else {}
    saved = find_saved({**own_task, **given})
    base = TINY if data.is_tiny_model({**script, **given}.get("model", "")) else {}
    cfg = grpo_sg.Config(**{**base, **script, **saved, **given})
    for name, value in vars(cfg).items():
        check_value(name, value)
    check(cfg)
    return cfg


def read_flags(argv):
    """Parse flags as a dict: `--group_size 4` and `--group-size 4` are {"group_size": 4}.
    argv: a list of strings; None means sys.argv."""
    if isinstance(argv, str):
        raise UserError('main takes a list of flags, such as main(["--steps", "1"]), or '
                        f"settings, such as main(steps=1), not the text {argv!r}")
    if argv is None:
        argv = [] if hasattr(sys, "ps1") else sys.argv[1:]  # a notebook has its own
    tiny_flags = ", ".join(f"{name} {shown(value)}" for name, value in TINY.items())
    parser = Parser(
        description=f"Train with GRPO-SG. Defaults without --model (the tiny model): {tiny_flags}. "
                    "The defaults below are those with --model.",
        usage="%(prog)s [--setting value ...]", argument_default=argparse.SUPPRESS,
        allow_abbrev=False)
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names.split():
            add_flag(group, name)
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(explain_unknown(unknown[0]))
    return vars(given)


def add_flag(group, name):
    """Add a setting to an argument group in both spellings; --help lists the one with
    underscores."""
    kind, text = typing.get_args(FIELDS[name])
    default = getattr(grpo_sg.Config(), name)
    if default != "" and kind is not bool:
        text += f" (default: {shown(default)})"
    flag = {"dest": name, "help": text.replace("%", "%%")}
    hyphened = name.replace("_", "-")
    if kind is bool:
        group.add_argument(f"--{name}", action="store_true", **flag)
        flag["help"] = argparse.SUPPRESS
        if hyphened != name:
            group.add_argument(f"--{hyphened}", action="store_true", **flag)
        group.add_argument(f"--no_{name}", f"--no-{hyphened}", action="store_false", **flag)
        return
    if typing.get_origin(kind) is typing.Literal:
        flag["choices"] = typing.get_args(kind)
    elif kind == list[int]:
        flag.update(type=int, nargs="+", metavar="N")
    else:
        flag.update(type=kind, metavar={int: "N", float: "X", str: "TEXT"}[kind])
    group.add_argument(f"--{name}", **flag)
    if hyphened != name:
        group.add_argument(f"--{hyphened}", **{**flag, "help": argparse.SUPPRESS})


def explain_unknown(argument):
    """Say what is wrong with an unknown argument, and suggest a setting."""
    if not argument.startswith("-"):
        return (f"{argument} does not belong to a setting: name a model with --model, and a "
                "run to continue with --resume --out")
    name = argument.split("=")[0].lstrip("-").replace("-", "_")
    if name in ALIASES:
        return f"there is no setting {argument} (did you mean --{ALIASES[name]}?)"
    return f"there is no setting {argument}{suggest(name, FIELDS)}"


def shown(value):
    """Format a setting as one would type it."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- Checks ----

def check_value(name, value):
    """Raise UserError unless the setting exists and the value has the right type and
    range."""
    if name not in FIELDS:
        raise UserError(explain_unknown(f"--{name}"))
    kind = typing.get_args(FIELDS[name])[0]
    least = LEAST.get(name)
    words = f"{least} or more" if least is not None else "above 0"
    allowed = {bool: "True or False", str: "a string", int: f"a whole number, {words}, up to 1e9",
               float: f"a number, {words}, up to 1e9",
               list[int]: "a list of whole numbers above 0"}.get(kind)
    if typing.get_origin(kind) is typing.Literal:
        allowed = f"one of {', '.join(typing.get_args(kind))}"
        right = value in typing.get_args(kind)
    elif kind == list[int]:
        right = isinstance(value, list) and value and all(
            type(each) is int and 0 < each <= MOST for each in value)
    elif kind in (bool, str):
        right = type(value) is kind
    else:
        right = type(value) in (int, kind) and value <= MOST and (
            value > 0 if least is None else value >= least)
    if not right:
        raise UserError(f"--{name} must be {allowed}, not {value!r}")


def check(cfg):
    """Raise UserError if settings contradict each other."""
    check_folders(cfg)
    if cfg.task not in tasks.TASKS:
        hint = suggest(cfg.task, tasks.TASKS)
        raise UserError(f"there is no --task {cfg.task}{hint}: give one of "
                        f"{', '.join(tasks.TASKS)}, or start the script that defines it")
    if cfg.eval_only and not (cfg.model or tiny.find_pretrained(cfg)):
        raise UserError("--eval_only needs --model, for example runs/NAME/checkpoint")
    models.find_device(cfg.device)
    if cfg.updates > cfg.prompts * cfg.group_size:
        raise UserError(
            f"--updates {cfg.updates}, but a step has only --prompts {cfg.prompts} times "
            f"--group_size {cfg.group_size} completions, each for one update: lower --updates")
    if cfg.low > cfg.high:
        raise UserError(f"--low {cfg.low} is above --high {cfg.high}: lower --low, or raise "
                        "--high")
    empty = os.path.isdir(cfg.out) and not os.listdir(cfg.out)
    if os.path.lexists(cfg.out) and not cfg.resume and not empty:
        raise UserError(f"--out {cfg.out} exists: name another folder, or add --resume to "
                        "continue the run in it")
    if cfg.shaping == "sg":
        ends = torch.tensor([0.0, 1.0]).log()  # w is monotone between them
        least, greatest = grpo_sg.weigh(ends, cfg)
        if greatest == 0:
            raise UserError("these settings give every token the weight 0, so nothing is "
                            "learned: raise --alpha or --low")
        if least == greatest:
            say(f"warning: these settings give every token the weight {least:.4g}, which is "
                "plain GRPO, scaled by it")


def check_folders(cfg):
    """Raise UserError if a setting or the task needs a missing optional folder."""
    usual = grpo_sg.Config()
    needed = {f"--{name}": folder for name, folder in NEEDS.items()
              if getattr(cfg, name) != getattr(usual, name)}
    if cfg.task == "qa" and "qa" not in tasks.TASKS:
        needed["--task qa"] = "extras/search"
    for flag, folder in needed.items():
        if not (tasks.ROOT / folder / "plugin.py").exists():
            raise UserError(f"{flag} needs the folder {folder}/, which is missing: put it "
                            "back, or leave the flag out")


def find_saved(given):
    """Return the settings of the run that the given ones name, as a dict, or {}.

    --resume --out RUN continues with the run's settings, except for those in RESUMABLE.
    --model RUN/checkpoint starts with them if the task is the same.
    """
    out = given.get("out", "")
    if given.get("resume"):
        saved = run.read_settings(out, FIELDS) if out else {}
        if not saved:
            runs = sorted(glob.glob("runs/*"), key=os.path.getmtime)
            problem = f"{out} is not a run{suggest(out, runs)}" if out else "no --out was given"
            newest = ", ".join(runs[-5:]) or "none"
            raise UserError(f"--resume needs --out and the folder of a run, but {problem}; "
                            f"the newest under runs/: {newest}")
        for name, value in given.items():
            if name not in RESUMABLE and name in saved and saved[name] != value:
                raise UserError(f"--resume continues with the run's own --{name} "
                                f"{shown(saved[name])}: leave the flag out, or start a new run")
        return saved
    folder = os.path.dirname(os.path.abspath(given.get("model") or "-/-"))
    saved = run.read_settings(folder, FIELDS)
    if not saved or given.get("task", saved["task"]) != saved["task"]:
        return {}
    print(f"all other settings come from {folder}/config.json")
    return {**saved, "out": "", "resume": False, "eval_only": False}


# ---- The functions of a task, possibly the user's own ----

def guard(task):
    """Return the task with checked functions: an error in one becomes a UserError that
    names the function and its argument."""
    return task._replace(verify=functools.partial(call_verify, task),
                         reward=functools.partial(call_reward, task),
                         observe=task.observe and functools.partial(call_tool, task))


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
    answers = call(words, task.observe, texts)
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


# ---- Loading ----

def load(cfg):
    """Load (policy, task, state), and try them once. state: the state of the checkpoint to
    resume, or None."""
    transformers.utils.logging.disable_progress_bar()  # it would garble our progress bar
    torch.manual_seed(cfg.seed)
    model, state = None, None
    pretrained = tiny.find_pretrained(cfg)
    if cfg.resume:
        model, tokenizer, state = run.read_checkpoint(cfg.out)
    elif cfg.model or pretrained:
        model, tokenizer = models.load_model(cfg.model or pretrained)
    print(f"preparing the problems of --task {cfg.task}")
    task = guard(tasks.make_task(cfg))
    if model is None:
        model, tokenizer = tiny.tiny_model(task)
    model = models.prepare(model, cfg.gradient_checkpointing, cfg.device)
    policy = grpo_sg.Policy(model, tokenizer, models.find_stop_ids(model, tokenizer))
    task = models.encode_problems(task, policy, cfg)
    check_start(policy, task, cfg)
    for equip in models.EQUIP:
        equip(policy, cfg, task.test[0].prompt)
    return policy, task, state


@torch.no_grad()
def check_start(policy, task, cfg):
    """Try the prompts, the verifier, the tool, the sampler and the log-probabilities once, to
    find mistakes before training."""
    vocabulary = policy.model.config.get_text_config().vocab_size
    if not policy.stop_ids or max(policy.stop_ids) >= vocabulary:
        raise UserError("the tokenizer saved with the model is not usable: it has no stop "
                        "token, or one outside the model's vocabulary. Save the right "
                        "tokenizer with the model")
    unknown, words, last_word = 0, 0, 0
    for problem in [*task.train[:20], *task.valid[:20], *task.test[:20]]:
        c = grpo_sg.Completion(problem, problem.prompt)
        unknown += c.prompt.count(policy.tokenizer.unk_token_id)
        words += len(c.prompt)
        last_word = max(last_word, *c.prompt)
        c.add(policy.tokenizer(problem.solution or problem.question)["input_ids"], own=True)
        if task.observe:
            task.observe([policy.tokenizer.decode(c.tokens)])
        grpo_sg.grade(c, policy, task)
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


# ---- The whole run ----

def main(argv=None, **script):
    with one_line_errors(out_of_memory=advise_on_memory()):
        cfg = parse(argv, **script)
        policy, task, state = load(cfg)
        with run.Run(cfg, policy, state) as this_run:
            carry_out(policy, task, cfg, this_run)


def advise_on_memory():
    offload = " or --offload" if (tasks.ROOT / NEEDS["offload"]).is_dir() else ""
    return ("lower --tokens_per_micro_batch or --sample_batch, or add "
            f"--gradient_checkpointing{offload}; --resume takes all of these. A smaller "
            "--model and --beta 0 need less")


def carry_out(policy, task, cfg, run):
    """Do a whole run (warm-up, test, training, test), or the rest of a resumed one."""
    describe_run(policy, task, cfg, run)
    start = os.path.join(run.out, "warm_start")  # the KL's reference; also to start runs from
    if not cfg.resume:
        pretrained = tiny.find_pretrained(cfg)
        if pretrained:
            print(f"starting from the pretrained tiny model, {os.path.relpath(pretrained)}; "
                  "--warm_up trains a new one")
        elif not cfg.model:
            tiny.warm_up(policy, task, cfg)
        warmed_up = not (cfg.model or pretrained)
        if (cfg.beta or warmed_up) and not cfg.eval_only:
            models.save_model(start, policy.model, policy.tokenizer)
        run_test(policy, task, cfg, run, 0)
    if cfg.eval_only:
        return
    reference = None
    if cfg.beta:
        parameters = models.read_parameters(start, local=True)
        reference = models.prepare(parameters, False, policy.model.device.type)
    grpo_sg.train(policy, task, cfg, run, reference)
    run.check_ending()  # raises UserError if the run was stopped: no test then
    run_test(policy, task, cfg, run, cfg.steps)
    print(f"for curves, tokens and transcripts, open {run.out}/report.html in a browser")


def describe_run(policy, task, cfg, run):
    """Print the run's settings, and a problem as the model reads it."""
    print(f"files of this run: {run.out}/")
    print(f"settings that differ from the defaults: {tell_changes(cfg)}")
    to_train = "" if cfg.eval_only else f"{len(task.train):,} problems to train on, "
    print(f"{policy.model.num_parameters():,} parameters on {policy.model.device}; {to_train}"
          f"{len(task.test)} to test on (best constant answer: {task.floor:.2f} right)")
    problem = task.train[0]
    read = policy.tokenizer.decode(problem.prompt)
    print(f"the first problem, as the model reads it:\n{read}\nits answer: {problem.answer}")
    if len(task.train) < cfg.prompts and not cfg.eval_only:
        print(f"--prompts {cfg.prompts}, but there are only {len(task.train)} problems: each "
              "step uses all of them")


def tell_changes(cfg):
    """Describe the settings that differ from the defaults."""
    usual = vars(grpo_sg.Config(**TINY if data.is_tiny(cfg) else {}))
    changed = [f"{name} {shown(value) or 'none'}" for name, value in vars(cfg).items()
               if value != usual[name]]
    return ", ".join(changed) or "none"


def run_test(policy, task, cfg, run, step):
    """Evaluate on the test set; print the result and advice."""
    row = grpo_sg.evaluate_split(policy, task, cfg, run, step, "test")
    if cfg.eval_only:
        print(f"test: {in_words(row)}")
    elif step == 0:
        print(f"test before training: {in_words(row)}")
        print("\n".join(describe_start(row, cfg.eval_samples)))
    else:
        print(f"test after training: {in_words(row)}")
        print("\n".join(describe_end(run, row)))


# ---- Interpreting a test ----

def in_words(row):
    """Format the means in a row that have a standard error, KEY_se."""
    parts = []
    for key in row:
        if f"{key}_se" in row:
            parts.append(f"{key.removeprefix('eval/')} {with_error(row, key)}")
    return ", ".join(parts)


def describe_start(row, k):
    """Describe the test before training: the rates that decide whether there is a learning
    signal, and one thing to change if a rate is bad.

    Args:
        row: the row of the test.
        k: samples per problem; 0 takes the greedy completions.

    Returns:
        A list of lines.
    """
    samples = f"@{k}" if k else ""
    formed = row[f"eval/format_rate{samples}"]
    cut = row[f"eval/truncated{samples}"]
    right = row.get(f"eval/avg@{k}")
    equal = row.get(f"eval/equal_groups@{k}", 0) if k > 1 else 0
    whose = f"{k} sample{'s' * (k > 1)} per problem" if k else "greedy completions"
    line = f"{whose}: {100 * formed:.0f}% well formed, {100 * cut:.0f}% cut off"
    if k > 1:
        line += (f"; in {100 * equal:.0f}% of the groups all rewards are equal: no learning "
                 "signal")
    lines = [line]
    if cut > 0.5:
        lines.append("most completions are cut off, so they count as badly formed: raise "
                     "--max_new_tokens, or use a model with shorter completions")
    elif formed < 0.05:
        lines.append("almost no completion is well formed, so there is little to learn "
                     "from: use an Instruct model, or easier problems (kk: --people 2 3)")
    elif right == 0:
        lines.append("no completion is right, so the model may learn only the format: use a "
                     "better model, or easier problems (kk: --people 2 3); for your own task, "
                     "the tiny model may need other tokens or a longer warmup (tasks.Task)")
    elif equal > 0.9 and right > 0.5:
        lines.append("rewards are equal on most problems, because the model solves nearly "
                     "all of them: use harder problems (kk: --people 5 6 7)")
    elif equal > 0.9:
        lines.append("rewards are equal on most problems, because the model solves too "
                     "few of them: use easier problems (kk: --people 2 3), or raise --group_size")
    return lines


def describe_end(run, after):
    """Compare the test after training with the test before. after: its row."""
    with open(os.path.join(run.out, "metrics.jsonl")) as file:
        logged = [json.loads(line) for line in file]
    steps = [row for row in logged if "split" not in row]
    if steps and all(row["equal_groups"] == 1 for row in steps):
        return ["rewards were equal within every group, so nothing was learned: README.md, "
                '"Is it broken?"']
    lines = []
    for row in logged:
        if row["step"] == 0 and row.get("split") == "test":
            lines = compare_tests(row, after, run.cfg.eval_samples)
    return lines + compare_splits(steps[-10:], after, run.cfg.eval_samples)


def compare_splits(steps, after, k):
    """Warn if accuracy in the last training steps is far above the test's."""
    key = f"eval/avg@{k}" if k else "eval/accuracy"
    trained = mean(row["accuracy"] for row in steps) if steps else 0.0
    if trained - after[key] <= max(0.1, 3 * (after[f"{key}_se"] or 0)):
        return []
    return [f"warning: training accuracy {trained:.3f} is far above the test's "
            f"{after[key]:.3f}: the model has memorized its training problems; use more "
            "of them (thousands, for the tiny model)"]


def compare_tests(before, after, k):
    """Compare accuracy and reward before and after training, and warn if accuracy has
    fallen by more than two standard errors."""
    accuracy, reward = (f"eval/avg@{k}", f"eval/reward@{k}") if k else (
        "eval/accuracy", "eval/reward")
    lines = [f"before -> after training: {accuracy.removeprefix('eval/')} "
             f"{before[accuracy]:.3f} -> {after[accuracy]:.3f}, {reward.removeprefix('eval/')} "
             f"{before[reward]:.3f} -> {after[reward]:.3f}"]
    error = math.hypot(before[f"{accuracy}_se"] or 0, after[f"{accuracy}_se"] or 0)
    if after[accuracy] >= before[accuracy] - 2 * error:
        return lines
    if after[reward] > before[reward]:
        lines.append("warning: the reward has risen and accuracy has fallen: the model is "
                     "exploiting the reward; read samples.jsonl")
    else:
        lines.append("warning: accuracy has fallen: a lower --lr, or --beta 0.01, may help")
    return lines


if __name__ == "__main__":
    main()
