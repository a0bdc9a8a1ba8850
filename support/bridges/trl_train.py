r"""Train a task of tasks.py with GRPO-SG on TRL, on one GPU or many, with flags of grpo_sg.py:

    accelerate launch --num_processes 8 -m support.bridges.trl_train --task kk \
        --model Qwen/Qwen2.5-0.5B-Instruct --out runs/trl

Prompts and rewards are those of grpo_sg.py. TRL does the rest. For its other settings, such as
use_vllm, edit make_config."""
import functools
import math
import os

import datasets

import grpo_sg
import tasks
import torch
from tasks import UserError


def make_config(cfg):
    """Return the trl.GRPOConfig for our settings, some of which it leaves out."""
    import trl  # here, so that --help works without it
    processes = int(os.environ.get("WORLD_SIZE", 1))
    completions = cfg.prompts * cfg.group_size
    share, rest = divmod(completions, cfg.updates * processes)
    if rest or not share:
        raise UserError(f"{completions} completions cannot be shared evenly among --updates "
                        f"{cfg.updates} on {processes} processes")
    micro_batch = math.gcd(share, 8)
    gpu = cfg.device != "cpu" and torch.cuda.is_available()
    return trl.GRPOConfig(
        output_dir=cfg.out, seed=cfg.seed, max_steps=cfg.steps * cfg.updates,
        generation_batch_size=completions, num_generations=cfg.group_size,
        per_device_train_batch_size=micro_batch, gradient_accumulation_steps=share // micro_batch,
        temperature=cfg.temperature, max_completion_length=cfg.max_new_tokens,
        epsilon=cfg.clip_low, epsilon_high=cfg.clip_high,
        beta=cfg.beta, use_bias_correction_kl=False,
        loss_type="dapo",  # the mean over all tokens
        learning_rate=cfg.lr, lr_scheduler_type="constant", adam_beta2=0.99,
        gradient_checkpointing=cfg.gradient_checkpointing,
        # With bfloat16 logits, the error of the ratio would be as large as the clip range.
        bf16=gpu and torch.cuda.is_bf16_supported(including_emulation=False),
        cast_lm_head_to_fp32=True, use_cpu=not gpu, logging_steps=cfg.updates, report_to="none")


def make_trainer(cfg):
    from support.bridges.trl_grpo_sg import GRPOSGTrainer
    task = tasks.make_task(cfg)
    if task.write:
        raise UserError(f"--task {cfg.task} has a tool: train it with grpo_sg.py")
    model, tokenizer = grpo_sg.load_model(cfg.model)
    policy = grpo_sg.Policy(model, tokenizer, grpo_sg.find_stop_ids(model, tokenizer))
    task = tasks.encode_problems(task, tokenizer, policy.stop_ids, model.config, cfg)
    model.generation_config.eos_token_id = sorted(policy.stop_ids)
    trainer = GRPOSGTrainer(model, functools.partial(grade, policy, task), make_config(cfg),
                            make_dataset(tokenizer, task.train), processing_class=tokenizer)
    trainer.weigh = functools.partial(grpo_sg.weigh, cfg=cfg)
    grpo_sg.prepare(model, trainer.accelerator.device)  # attention and TF32 on a GPU
    return trainer


def make_dataset(tokenizer, problems):
    """Return the problems with their prompts as text, which TRL encodes again."""
    rows = []
    for number, problem in enumerate(problems):
        text = tokenizer.decode(problem.prompt)
        if tokenizer.bos_token and tokenizer(text)["input_ids"] != problem.prompt:
            text = text.removeprefix(tokenizer.bos_token)  # the tokenizer adds it
        if tokenizer(text)["input_ids"] != problem.prompt:
            raise UserError("retokenization changes a prompt, and TRL needs it: name another model")
        rows.append({"prompt": text, "number": number})
    return datasets.Dataset.from_list(rows)


def grade(policy, task, number, completion_ids, **_):
    """Return the rewards that grpo_sg.grade computes (a reward function of TRL)."""
    rewards = []
    for i, tokens in zip(number, completion_ids):
        c = grpo_sg.Completion(task.train[i], task.train[i].prompt)
        c.add(tokens, own=True)
        grpo_sg.grade(c, policy, task)
        rewards.append(c.reward)
    return rewards


def main(argv=None):
    with grpo_sg.errors_in_one_line(OSError):
        cfg = grpo_sg.read_settings(argv)
        if cfg.resume or cfg.eval_only:
            raise UserError("TRL only trains, from the start: leave out --resume and --eval_only")
        trainer = make_trainer(cfg)
    trainer.train()
    # Numbered as TRL numbers its own, by updates, so that the last one is this.
    folder = os.path.join(cfg.out, f"checkpoint-{trainer.state.global_step}")
    trainer.save_model(folder)
    if trainer.accelerator.is_main_process:  # so that grpo_sg.py --model OUT can test it
        grpo_sg.write_settings(folder, cfg)
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
    os._exit(0)  # on a CPU, freeing the trainer can wait for ever for a thread of gloo
