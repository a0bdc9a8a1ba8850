"""Train by GRPO-SG on TRL, on one GPU or many, with the flags of grpo_sg.py.

    accelerate launch --num_processes 8 -m bridges.trl_train --task kk --model Qwen/Qwen2.5-0.5B

--prompts, --group_size and --updates mean what they mean there, whatever the number of processes.
--shaping none is TRL's own GRPO. The weights' settings are the defaults of token_weights.
"""
import argparse
import json
import math
import os

import datasets
import torch
import transformers
import trl

import grpo_sg
import tasks
from bridges import rewards
from bridges.trl_grpo_sg import GRPOSGTrainer


def config(cfg, processes, **others):
    """trl.GRPOConfig for our settings; `others` are added as they are, or replace one."""
    share, rest = divmod(cfg.prompts * cfg.group_size, cfg.updates * processes)
    if rest or not share:
        raise SystemExit(f"--prompts {cfg.prompts} times --group_size {cfg.group_size} completions cannot "
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
        gradient_checkpointing=cfg.gradient_checkpointing, bf16=torch.cuda.is_available(),
        logging_steps=cfg.updates, save_steps=cfg.save_every * cfg.updates, report_to="none"), **others})


def trainer(cfg, **others):
    trainers = {"sg": GRPOSGTrainer, "none": trl.GRPOTrainer}
    if cfg.shaping not in trainers or not cfg.model:
        raise SystemExit("on TRL --shaping must be sg or none, and --model a name or a folder")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(cfg.model)
    task = tasks.keep_short(tasks.TASKS[cfg.task](cfg), tokenizer, most=1024)
    rows = [{"prompt": rewards.messages(task, problem) if tokenizer.chat_template else
             f"{task.system}\n\n{problem.question}\n\n", "answer": json.dumps(problem.answer)}
            for problem in task.train]
    args = config(cfg, int(os.environ.get("WORLD_SIZE", 1)), **others)
    return trainers[cfg.shaping](cfg.model, rewards.trl_reward(task, tokenizer), args,
                                 datasets.Dataset.from_list(rows), processing_class=tokenizer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--out", default="runs/trl")  # not parsed there, where a folder must be new
    given, flags = parser.parse_known_args()
    run = trainer(grpo_sg.parse(flags), output_dir=given.out)
    run.train()
    run.save_model()
    run.accelerator.end_training()  # closes the connections before a process exits, on which others may wait
