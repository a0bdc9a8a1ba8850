"""Train with GRPO-SG on TRL, on one GPU or many, with the flags of grpo_sg.py:

    accelerate launch --num_processes 8 -m extras.bridges.trl_train --task kk \
        --model Qwen/Qwen2.5-0.5B

Each process makes its share of the completions with grpo_sg.rollout, so prompts, searches and
rewards are those of grpo_sg.py. TRL computes the advantages and the loss, and coordinates the
processes."""
import argparse
import functools
import importlib.util
import json
import math
import os
import sys

if __name__ == "__main__" and importlib.util.find_spec("trl") is None:
    sys.exit("error: TRL is not installed: pip install -r extras/bridges/requirements-trl.txt")

import datasets
import torch
import trl
from torch.distributed.fsdp import FSDPModule

import grpo_sg
from extras.bridges.trl_grpo_sg import GRPOSGTrainer
from support import checks, cli, models
import tasks
from tasks import UserError

# Settings that TRL handles differently or not at all.
REFUSED = ("tokens_per_micro_batch", "sampler", "offload", "device", "eval_every",
           "eval_samples", "eval_only", "resume")
SAVE_EVERY = 50  # training steps


def parse(argv=None):
    """Return (settings, the run's folder). Raises UserError for flags that TRL lacks."""
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # Hide --out from cli.parse, which refuses a folder that another process may have created.
    flags.add_argument("--out", default="")
    for name in REFUSED:
        flags.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs="*")
    own, ours = flags.parse_known_args(argv)
    refused = [f"--{name}" for name in REFUSED if getattr(own, name) is not None]
    if refused:
        raise UserError(f"TRL does not support {', '.join(refused)}: leave out, or use grpo_sg.py")
    cfg = cli.parse(ours)
    if not cfg.model:
        raise UserError("TRL needs --model: a hub name, or a folder such as "
                        "runs/NAME/checkpoint")
    return cfg, own.out or f"runs/trl-{cfg.task}-{cfg.shaping}-seed{cfg.seed}"


def make_config(cfg, processes, **others):
    """Return the trl.GRPOConfig for our settings. `others` are further or replaced arguments."""
    share, rest = divmod(cfg.prompts * cfg.group_size, cfg.updates * processes)
    if rest or not share:
        raise UserError(
            f"--prompts {cfg.prompts} times --group_size {cfg.group_size} completions cannot "
            f"be shared evenly among --updates {cfg.updates} on {processes} processes")
    micro_batch = math.gcd(share, 8)
    # False on a T4 or V100, where bfloat16 is emulated and slow.
    bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    loss_types = {"token-mean": "dapo", "seq-mean-token-mean": "grpo"}
    ours = dict(
        seed=cfg.seed, max_steps=cfg.steps * cfg.updates,
        generation_batch_size=cfg.prompts * cfg.group_size, num_generations=cfg.group_size,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=share // micro_batch,
        temperature=cfg.temperature, max_completion_length=cfg.max_new_tokens,
        epsilon=cfg.clip_low, epsilon_high=cfg.clip_high,
        beta=cfg.beta, use_bias_correction_kl=False,
        loss_type=loss_types[cfg.loss_agg_mode],
        learning_rate=cfg.lr, lr_scheduler_type="constant", adam_beta2=0.99,
        gradient_checkpointing=cfg.gradient_checkpointing, bf16=bf16,
        # With bfloat16 logits, the error of the ratio is as large as the clip range.
        cast_lm_head_to_fp32=True,
        logging_steps=cfg.updates, save_steps=SAVE_EVERY * cfg.updates, report_to="none")
    return trl.GRPOConfig(**{**ours, **others})


def make_trainer(cfg, **others):
    """Return a trainer for the task. `others`: see make_config."""
    model, tokenizer = models.load_model(cfg.model)
    if not hasattr(model, "lm_head") or not hasattr(model.base_model, "embed_tokens"):
        raise UserError(
            f"TRL cannot keep the logits of a {type(model).__name__} in float32: use a "
            "model with the architecture of Llama or Qwen, or grpo_sg.py")
    policy = grpo_sg.Policy(model, tokenizer, grpo_sg.find_stop_ids(model, tokenizer))
    task = tasks.encode_problems(checks.guard(checks.make_task(cfg)), policy, cfg)
    checks.check_start(policy, task, cfg)
    model.generation_config.eos_token_id = sorted(policy.stop_ids)
    # A prompt is the index of its problem; roll_out replaces it with the text.
    numbers = [str(i) for i in range(len(task.train))]
    rows = datasets.Dataset.from_dict({"prompt": numbers})
    args = make_config(cfg, int(os.environ.get("WORLD_SIZE", 1)), **others)
    trainer = GRPOSGTrainer(model, read_reward, args, rows, processing_class=tokenizer,
                            rollout_func=functools.partial(roll_out, task, cfg))
    other_fsdp = trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2
    if trainer.is_deepspeed_enabled or other_fsdp:
        raise UserError("only FSDP2 can shard the parameters here: pass --use_fsdp "
                        "--fsdp_version 2")
    if trainer.accelerator.device.type == "cuda":
        models.set_up_gpu()
    # TRL's setting covers its own forward passes; this covers our sampler's.
    grpo_sg.keep_logits_in_float32(model)
    trainer.weigh = functools.partial(grpo_sg.weigh, cfg=cfg)
    return trainer


def roll_out(task, cfg, prompts, trainer, sampler=grpo_sg.sample):
    """Return a completion and its reward for each prompt of this process (TRL's rollout_func)."""
    problems = [task.train[int(number)] for number in prompts]
    accelerator = trainer.accelerator
    model = accelerator.unwrap_model(trainer.model_wrapped)
    tokenizer = trainer.processing_class
    stop_ids = grpo_sg.find_stop_ids(model, tokenizer)
    policy = grpo_sg.Policy(model, tokenizer, stop_ids, sampler=sampler)
    share = trainer.state.global_step * accelerator.num_processes + accelerator.process_index
    keep_whole(model, True)
    completions = grpo_sg.rollout(policy, task, problems, cfg, n=1, temperature=cfg.temperature,
                                  seed=cfg.seed * 1_000_003 + share)
    keep_whole(model, False)
    model.train()
    return {"prompt_ids": [c.prompt for c in completions],
            "completion_ids": [c.tokens for c in completions],
            "env_mask": [c.mask for c in completions],
            "logprobs": None, "graded": completions}


def keep_whole(model, whole):
    """Gather all FSDP2 parameters in each process during a rollout. FSDP2 would gather them layer
    by layer, which requires all processes to run the same layers together. In a rollout they do
    not, because completions differ in length."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_reshard_after_forward(not whole, recurse=False)
            if whole:
                part.unshard()
            else:
                part.reshard()


def read_reward(graded, log_metric, **_):
    """Return the rewards that grpo_sg.grade has computed (TRL's reward function)."""
    log_metric("accuracy", sum(c.solved for c in graded) / len(graded))
    log_metric("format_rate", sum(c.formatted for c in graded) / len(graded))
    return [c.reward for c in graded]


def main(argv=None):
    cfg, out = parse(argv)
    if os.path.exists(out) and os.environ.get("RANK", "0") == "0":
        raise UserError(f"--out {out} exists: name another folder")
    trainer = make_trainer(cfg, output_dir=out)
    trainer.train()
    trainer.save_model(os.path.join(out, "checkpoint"))
    trainer.save_state()
    if trainer.accelerator.is_main_process:
        with open(os.path.join(out, "config.json"), "w") as file:
            json.dump(vars(cfg), file)
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


def leave():
    """End this process without Python's cleanup. A gloo thread may still hold a tensor of the
    last collective. It needs the GIL to free the tensor, cannot get it during cleanup, and would
    abort the process (SIGABRT)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    leave()
