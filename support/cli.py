"""Parse the flags of the whole project, and carry out a run (load, test, train, test). Functions
here raise UserError on bad input."""
import argparse
import dataclasses
import glob
import importlib
import os
import sys
import typing
from typing import Annotated, Literal

import grpo_sg  # before torch: it configures PyTorch's allocator
import torch
import transformers

import tasks
from support import checks, data, models, run, tiny
from support.program import ROOT, one_line_errors, suggest
from tasks import UserError


@dataclasses.dataclass
class Settings(grpo_sg.Config):
    """The settings of grpo_sg.py, and those of support/ and extras/."""
    warm_up: Annotated[bool, "train a new tiny model instead of using the pretrained one"] = False
    max_turns: Annotated[int, "qa: searches that are answered; then comes one last turn"] = 2
    retriever: Annotated[str, "qa: URL of a search server; default: search the questions' "
                              "own passages"] = ""
    offload: Annotated[bool, "keep AdamW's averages in host memory, not on the GPU"] = False
    sampler: Annotated[Literal["plain", "graph"], "graph: on a GPU, record decode steps as a CUDA "
                       "graph, and use it if it is as accurate; untested on a GPU"] = "plain"
    resume: Annotated[bool, "continue the run in --out from its last checkpoint"] = False
    like: Annotated[str, "folder of a run: use the settings in its config.json, except for other "
                         "flags"] = ""


# ---- The settings: tables ----

GROUPS = {
    "model and data": "model task data eval_data people brief train_problems eval_problems "
                      "chat_template_kwargs warm_up",
    "method": "shaping alpha tau mu low high clip_low clip_high beta loss_agg_mode lr temperature",
    "sizes": "steps prompts group_size updates max_new_tokens",
    "memory": "tokens_per_micro_batch sample_batch gradient_checkpointing offload sampler device",
    "run": "eval_every eval_samples eval_only resume like seed out",
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
    people=[3], brief=True, train_problems=20000, steps=60, eval_every=20, prompts=32,
    updates=4, lr=2e-4, temperature=1.0, max_new_tokens=48, tokens_per_micro_batch=32768,
    sample_batch=1024, device="cpu")
# setting -> its names, or those of similar settings, in TRL, verl, OpenRLHF and others.
OTHER_NAMES = {
    "model": "model_name_or_path model_name pretrain",
    "out": "output_dir save_path default_local_dir",
    "data": "dataset dataset_name prompt_data train_file train_files",
    "eval_data": "eval_dataset val_files",
    "lr": "learning_rate actor_learning_rate", "beta": "kl_coef kl_loss_coef init_kl_coef",
    "clip_low": "epsilon epsilon_low eps_clip clip_ratio clip_ratio_low",
    "clip_high": "epsilon_high clip_ratio_high", "loss_agg_mode": "loss_type",
    "shaping": "weight weights",
    "steps": "max_steps max_iters total_training_steps epochs num_train_epochs total_epochs "
             "num_episodes",
    "prompts": "batch_size per_device_train_batch_size train_batch_size rollout_batch_size",
    "group_size": "num_generations n_samples_per_prompt n",
    "updates": "num_iterations steps_per_generation ppo_epochs ppo_mini_batch_size max_epochs",
    "max_new_tokens": "max_completion_length max_response_length generate_max_len max_tokens "
                      "block_size",
    "tokens_per_micro_batch": "gradient_accumulation_steps ppo_micro_batch_size_per_gpu "
                              "ppo_max_token_len_per_gpu micro_train_batch_size",
    "sample_batch": "micro_rollout_batch_size",
    "eval_every": "eval_steps eval_interval eval_strategy test_freq",
    "eval_samples": "num_samples num_generations_eval eval_n_samples_per_prompt",
    "gradient_checkpointing": "enable_gradient_checkpointing", "eval_only": "val_only",
    "resume": "resume_from_checkpoint load_checkpoint",
    "max_turns": "max_tool_calling_iterations max_assistant_turns"}
ALIASES = {other: name for name, others in OTHER_NAMES.items() for other in others.split()}
FIELDS = typing.get_type_hints(Settings, include_extras=True)


# ---- Flags ----

class Parser(argparse.ArgumentParser):
    def error(self, message):
        if message.endswith("expected one argument"):
            message += " (write a value that begins with - as --NAME=VALUE)"
        raise UserError(f"{message}; --help lists all settings")


def parse(argv=None, **script):
    """Return the settings as checked Settings.

    Each setting comes from the first of these sources that has it: the flags; the run
    that --resume or --model RUN/checkpoint names; `script`, the keyword arguments of main;
    TINY, for the tiny model; the defaults of Settings. If `script` itself names a run or a
    model, its settings count as flags.
    """
    add_extras()
    for name, value in script.items():
        check_value(name, value)
    given = data.find_files(read_flags(argv))
    script = data.find_files(script)
    if {"resume", "model", "like"} & script.keys():
        script, given = {}, {**script, **given}
    own = {name: script[name] for name in ("task", "out") if name in script}
    saved = find_saved({**own, **given})
    base = TINY if data.is_tiny_model({**script, **given}.get("model", "")) else {}
    cfg = Settings(**{**base, **script, **saved, **own, **given})
    for name, value in vars(cfg).items():
        check_value(name, value)
    checks.check(cfg)
    return cfg


def add_extras():
    """Import each extras/*/plugin.py. A plugin registers what its folder has, such as the
    task qa."""
    for path in sorted((ROOT / "extras").glob("*/plugin.py")):
        name = f"extras.{path.parent.name}.plugin"
        try:
            importlib.import_module(name)
        except Exception as error:
            raise UserError(f"{path.relative_to(ROOT)} is broken ({type(error).__name__}: "
                            f"{error}): repair it, or delete its folder")


def own_argv():
    """Return the flags of this process; none in a notebook, whose kernel has flags of its
    own. (IPython's %run sets them to those of the script.)"""
    program = os.path.basename(sys.argv[0])
    return [] if program.startswith(("ipykernel", "colab_kernel", "ipython")) else sys.argv[1:]


def read_flags(argv):
    """Parse flags as a dict: `--group_size 4` and `--group-size 4` are {"group_size": 4}.
    argv: a list of strings; None means sys.argv."""
    if not isinstance(argv, (list, tuple, type(None))):
        raise UserError('main takes a list of flags, such as main(["--steps", "1"]), or '
                        f"settings, such as main(steps=1), not {argv!r:.60}")
    argv = own_argv() if argv is None else argv
    tiny_flags = ", ".join(f"{name} {grpo_sg.shown(value)}" for name, value in TINY.items())
    parser = Parser(
        description=f"Train with GRPO-SG. Defaults without --model (the tiny model): {tiny_flags}. "
                    "The defaults below are those with --model.",
        usage="%(prog)s [--setting value ...]", argument_default=argparse.SUPPRESS,
        allow_abbrev=False)
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names.split():
            grpo_sg.add_flag(group, Settings, name)
    given, unknown = parser.parse_known_args([with_underscores(str(word)) for word in argv])
    if unknown:
        parser.error(explain_unknown(unknown[0]))
    return vars(given)


def with_underscores(word):
    """Return --group-size=4 as --group_size=4."""
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def explain_unknown(argument):
    """Say what is wrong with an unknown argument, and suggest a setting."""
    if argument in ("True", "False", "true", "false"):
        return f"a setting that is on or off takes no value, not {argument}: --NAME or --no_NAME"
    if not argument.startswith("-"):
        return (f"{argument} does not belong to a setting: name a model with --model, and a "
                "run to continue with --resume --out")
    name = argument.split("=")[0].lstrip("-").replace("-", "_")
    name = ALIASES.get(name, name)
    hint = suggest(name, FIELDS, "--")
    return f"there is no setting {argument}{hint}"


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


def find_saved(given):
    """Return the settings of the run that the given ones name, as a dict, or {}.

    --resume --out RUN continues with the run's settings, except for those in RESUMABLE.
    --model RUN/checkpoint starts with them if the task is the same; --like RUN starts again.
    """
    out = given.get("out", "")
    if given.get("resume"):
        if given.get("eval_only"):
            raise UserError(f"--eval_only does not resume: use --model {out}/checkpoint instead "
                            "of --resume and --out")
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
                                f"{grpo_sg.shown(saved[name])}: leave the flag out, or start a "
                                "new run")
        return update_saved(saved, run.find_checkpoint(out))
    if given.get("like"):
        saved = run.read_settings(given["like"], FIELDS)
        if not saved:
            raise UserError(f"--like {given['like']} is not a run: name a folder with config.json")
        return update_saved({**saved, "out": "", "resume": False}, saved["model"])
    folder = os.path.dirname(os.path.abspath(given.get("model") or "-/-"))
    saved = run.read_settings(folder, FIELDS)
    if not saved or given.get("task", saved["task"]) != saved["task"]:
        return {}
    print(f"all other settings come from {folder}/config.json")
    saved = update_saved(saved, given["model"])
    return {**saved, "out": "", "resume": False, "eval_only": False, "warm_up": False}


def update_saved(saved, model):
    """Return the settings of a run of version 0.1 as this version names them: brief was read
    from the model, and the default sampler was called auto."""
    saved = {"brief": data.is_tiny_model(model), **saved}
    if saved.get("sampler") == "auto":
        saved["sampler"] = "plain"
    return saved


# ---- The whole run ----

def load(cfg):
    """Load (policy, task, state), and try them once. state: the state of the checkpoint to
    resume, or None."""
    transformers.utils.logging.disable_progress_bar()  # it would garble our progress bar
    torch.manual_seed(cfg.seed)
    print(f"preparing the problems of --task {cfg.task}")
    watched, read = record_reads(cfg)
    task = checks.guard(checks.make_task(watched))
    pretrained = tiny.find_pretrained(cfg)
    state = None
    if cfg.resume:
        model, tokenizer, state = run.read_checkpoint(cfg.out)
    elif cfg.model or pretrained:
        model, tokenizer = models.load_model(cfg.model or pretrained)
    else:
        model, tokenizer = tiny.tiny_model(task)
    model = models.set_up(model, cfg.device, cfg.gradient_checkpointing)
    policy = grpo_sg.Policy(model, tokenizer, grpo_sg.find_stop_ids(model, tokenizer))
    models.check_template(tokenizer, task, cfg)
    task = tasks.encode_problems(task, policy, cfg)
    checks.check_start(policy, task, cfg)
    for equip in models.EQUIP:
        equip(policy, cfg, task.test[0].prompt)
    policy.sampler = models.HalvingSampler(policy.sampler)
    unused = find_unused(cfg, read, str(tokenizer.chat_template))
    if unused:
        print(f"settings without effect: {', '.join(unused)}")
    return policy, task, state


def main(argv=None, **script):
    with one_line_errors(out_of_memory=advise_on_memory()):
        cfg = parse(argv, **script)
        policy, task, state = load(cfg)
        with run.Run(cfg, policy, state, task) as this_run:
            carry_out(policy, task, cfg, this_run)


def carry_out(policy, task, cfg, run):
    """Do a whole run (warm-up, test, training, test), or the rest of a resumed one."""
    if cfg.resume and run.done == cfg.steps:
        print(f"all {cfg.steps} steps are done: only the last test is repeated; a larger --steps "
              "continues")
    print(f"settings that differ from the defaults: {tell_changes(cfg)}")
    grpo_sg.describe_run(policy, task, cfg, run)
    if len(task.train) < cfg.prompts and not cfg.eval_only:
        print(f"--prompts {cfg.prompts}, but there are only {len(task.train)} problems: each step "
              "uses all of them")
    reference = start(policy, task, cfg, run.out)
    grpo_sg.carry_out(policy, task, cfg, run, reference)


def start(policy, task, cfg, out):
    """Warm up a new tiny model, and return the reference of the KL, or None. A run that needs
    its initial policy again, as reference or to start other runs, saves it."""
    folder = os.path.join(out, "warm_start")
    if not cfg.resume:
        pretrained = tiny.find_pretrained(cfg)
        if pretrained:
            print(f"starting from the pretrained tiny model, {os.path.relpath(pretrained)}; "
                  "--warm_up trains a new one")
        elif not cfg.model:
            tiny.warm_up(policy, task, cfg)
        warmed_up = not (cfg.model or pretrained)
        if (cfg.beta or warmed_up) and not cfg.eval_only:
            models.save_model(folder, policy.model, policy.tokenizer)
    if not cfg.beta or cfg.eval_only:
        return None
    reference, _ = grpo_sg.load_model(folder, local=True)
    return models.set_up(reference, policy.model.device.type, False)


def advise_on_memory():
    offload = " or --offload" if (ROOT / checks.NEEDS["offload"]).is_dir() else ""
    return ("lower --tokens_per_micro_batch or --sample_batch, or add "
            f"--gradient_checkpointing{offload}; --resume takes all of these. A smaller "
            "--model and --beta 0 need less")


def find_changes(cfg):
    """Return the settings that differ from the defaults, as a dict name -> text."""
    usual = vars(Settings(**TINY if data.is_tiny_model(cfg.model) else {}))
    return {name: f"{name} {grpo_sg.shown(value) or 'none'}" for name, value in vars(cfg).items()
            if value != usual[name]}


def tell_changes(cfg):
    """Describe the settings that differ from the defaults."""
    return ", ".join(find_changes(cfg).values()) or "none"


# ---- Settings without effect ----

FOR_TASKS = ("data eval_data people brief train_problems eval_problems max_turns "
             "retriever").split()


def record_reads(cfg):
    """Return (a copy of the settings, a set to which reading a setting of the copy adds its
    name)."""
    read = set()

    class Watched(type(cfg)):
        def __getattribute__(self, name):
            read.update(FOR_TASKS if name == "__dict__" else [name])  # vars reads all
            return super().__getattribute__(name)
    return Watched(**vars(cfg)), read


def find_unused(cfg, read, template):
    """List what was set and has no effect, with the reasons. read: the settings that the task
    has read; template: the text of the chat template."""
    why = {name: f"--task {cfg.task} does not read it" for name in FOR_TASKS if name not in read}
    if cfg.eval_only:
        why.pop("train_problems", None)
    if cfg.shaping != "sg":
        why.update(dict.fromkeys("alpha tau mu low high".split(), f"--shaping {cfg.shaping}"))
    if cfg.model:
        why["warm_up"] = "--model"
    changed = find_changes(cfg)
    unused = [f"--{changed[name]} ({why[name]})" for name in changed if name in why]
    for name in models.read_kwargs(cfg.chat_template_kwargs):
        if name not in template:
            unused.append(f"{name} of --chat_template_kwargs (the model's template has no {name})")
    if os.environ.get("WORLD_SIZE", "1") != "1":  # torchrun and others set it
        unused.append("a launcher of several processes (each process does the whole run)")
    return unused


if __name__ == "__main__":
    main()
