"""Train by GRPO-SG on TRL, on one GPU or many, with the flags of grpo_sg.py:

    accelerate launch --num_processes 8 -m bridges.trl_train --task kk --model Qwen/Qwen2.5-0.5B

Each process makes its share of the completions by grpo_sg.rollout: prompts, searches and rewards are those of
grpo_sg.py. TRL has the advantages, the loss, and what several processes need."""
import functools
import math
import os

import datasets
import torch
import trl
from torch.distributed.fsdp import FSDPModule

import grpo_sg
import tasks
from bridges.trl_grpo_sg import GRPOSGTrainer
from support import models, program

# Settings of what TRL does in its own way, or not at all.
REFUSED = ("tokens_per_micro_batch", "sampler", "offload", "device", "eval_every", "eval_samples", "eval_only", "resume")


def parse(argv=None):
    """(settings, the run's folder). Raises UserError for a flag that has no effect on TRL."""
    given = program.read_flags(grpo_sg.Config, argv, __doc__)
    refused = [f"--{name}" for name in REFUSED if name in given]
    if refused:
        raise program.UserError(f"TRL does not know {', '.join(refused)}: leave out, or use grpo_sg.py")
    if not given.get("model"):
        raise program.UserError("on TRL --model is needed: a hub name, or a folder such as runs/NAME/checkpoint")
    out = given.pop("out", "")  # not for grpo_sg.parse: another process may have made the folder already
    cfg = grpo_sg.parse([], **given)
    return cfg, out or f"runs/trl-{cfg.task}-{cfg.shaping}-seed{cfg.seed}"


def make_config(cfg, processes, **others):
    """trl.GRPOConfig for our settings; `others` are added as they are, or replace one."""
    share, rest = divmod(cfg.prompts * cfg.group_size, cfg.updates * processes)
    if rest or not share:
        raise program.UserError(f"--prompts {cfg.prompts} times --group_size {cfg.group_size} completions cannot "
                                f"be shared evenly among --updates {cfg.updates} on {processes} processes")
    micro_batch = math.gcd(share, 8)
    return trl.GRPOConfig(**{**dict(
        seed=cfg.seed, max_steps=cfg.steps * cfg.updates,
        generation_batch_size=cfg.prompts * cfg.group_size, num_generations=cfg.group_size,
        per_device_train_batch_size=micro_batch, gradient_accumulation_steps=share // micro_batch,
        temperature=cfg.temperature, max_completion_length=cfg.max_new_tokens,
        epsilon=cfg.clip_low, epsilon_high=cfg.clip_high, beta=cfg.beta, use_bias_correction_kl=False,
        loss_type={"token-mean": "dapo", "seq-mean-token-mean": "grpo"}[cfg.loss_agg_mode],
        learning_rate=cfg.lr, lr_scheduler_type="constant", adam_beta2=0.99, max_grad_norm=cfg.grad_clip,
        gradient_checkpointing=cfg.gradient_checkpointing,
        bf16=torch.cuda.is_available() and models.bfloat16_works("cuda"),
        logging_steps=cfg.updates, save_steps=cfg.save_every * cfg.updates, report_to="none"), **others})


def make_trainer(cfg, **others):
    """A trainer for the task. `others`: see make_config."""
    model, tokenizer = models.load_model(cfg.model)
    task = grpo_sg.keep_short(tasks.make_task(cfg), model, tokenizer, cfg)
    grpo_sg.check_start(model, tokenizer, task, cfg)
    model.generation_config.eos_token_id = sorted(models.find_stop_ids(model, tokenizer))
    # A prompt is the number of its problem: its text is roll_out's business.
    rows = datasets.Dataset.from_dict({"prompt": [str(i) for i in range(len(task.train))]})
    args = make_config(cfg, int(os.environ.get("WORLD_SIZE", 1)), **others)
    trainer = GRPOSGTrainer(model, read_reward, args, rows, processing_class=tokenizer,
                            rollout_func=functools.partial(roll_out, task, cfg))
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2:
        raise program.UserError("to share the weights among processes, only --use_fsdp --fsdp_version 2 works here")
    trainer.weigh = functools.partial(grpo_sg.shaping_weights, cfg=cfg)
    return trainer


def roll_out(task, cfg, prompts, trainer, sampler=grpo_sg.sample):
    """TRL's rollout_func: a completion for each prompt of this process, with its reward."""
    problems = [task.train[int(number)] for number in prompts]
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    keep_whole(model, True)
    share = trainer.state.global_step * trainer.accelerator.num_processes + trainer.accelerator.process_index
    completions = grpo_sg.rollout(
        model, trainer.processing_class, task, problems, cfg, n=1, temperature=cfg.temperature,
        seed=cfg.seed * 1_000_003 + share, sampler=sampler, bar="")
    keep_whole(model, False)
    model.train()
    return {"prompt_ids": [c.prompt for c in completions], "completion_ids": [c.tokens for c in completions],
            "env_mask": [c.mask for c in completions], "logprobs": None, "graded": completions}


def keep_whole(model, whole):
    """With FSDP2 a process holds a part of the weights, and gets the others layer by layer while all processes
    compute the same. In a rollout they do not, as lengths differ: hold all weights there."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_reshard_after_forward(not whole, recurse=False)
            part.unshard() if whole else part.reshard()


def read_reward(graded, log_metric, **_):
    """TRL's reward function: what grpo_sg.grade has found already."""
    log_metric("accuracy", sum(c.solved for c in graded) / len(graded))
    log_metric("format_rate", sum(c.formatted for c in graded) / len(graded))
    return [c.reward for c in graded]


def main(argv=None):
    with program.one_line_errors("lower --sample_batch, or add --gradient_checkpointing"):
        cfg, out = parse(argv)
        if os.path.exists(out) and os.environ.get("RANK", "0") == "0":
            raise program.UserError(f"--out {out} exists: name another folder")
        trainer = make_trainer(cfg, output_dir=out)
        trainer.train()
        trainer.save_model(os.path.join(out, "checkpoint"))
        if trainer.accelerator.is_main_process:
            program.write_json(os.path.join(out, "config.json"), vars(cfg))
        # A thread of gloo's that drops its last tensor needs Python's lock, which an ending process holds.
        trainer.accelerator.wait_for_everyone()
        trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
