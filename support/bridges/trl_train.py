"""Train a task of tasks.py with GRPO-SG on TRL, on one GPU or many, with flags of grpo_sg.py:

    accelerate launch --num_processes 8 -m support.bridges.trl_train --task kk \
        --model Qwen/Qwen2.5-0.5B --out runs/trl

Prompts and rewards are those of grpo_sg.py. TRL samples, computes the advantages and the loss,
and coordinates the processes. For its other settings, such as use_vllm, edit make_config."""
import functools
import math
import os
import sys

import datasets
import torch
import trl

import grpo_sg
import tasks
from support.bridges.trl_grpo_sg import GRPOSGTrainer
from tasks import UserError

# Settings for which TRL has others, or none.
REFUSED = {"tokens_per_micro_batch", "sample_batch", "device", "eval_every", "eval_samples",
           "eval_only", "resume"}


def read_settings(argv):
    """Return (settings, the run's folder). Raises UserError for flags that TRL lacks."""
    given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in argv}
    refused = sorted(REFUSED & given)
    if refused:
        raise UserError(f"TRL does not support --{', --'.join(refused)}: leave out, or use "
                        "grpo_sg.py")
    cfg = grpo_sg.read_settings(argv)
    if not cfg.out:
        raise UserError("name a new folder for the run with --out")
    return cfg, cfg.out


def make_config(cfg, processes, **others):
    """Return the trl.GRPOConfig for our settings. `others` are further or replaced arguments."""
    share, rest = divmod(cfg.prompts * cfg.group_size, cfg.updates * processes)
    if rest or not share:
        raise UserError(
            f"--prompts {cfg.prompts} times --group_size {cfg.group_size} completions cannot "
            f"be shared evenly among --updates {cfg.updates} on {processes} processes")
    micro_batch = math.gcd(share, 8)
    loss_types = {"token-mean": "dapo", "seq-mean-token-mean": "grpo"}
    arguments = dict(
        seed=cfg.seed, max_steps=cfg.steps * cfg.updates,
        generation_batch_size=cfg.prompts * cfg.group_size, num_generations=cfg.group_size,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=share // micro_batch,
        temperature=cfg.temperature, max_completion_length=cfg.max_new_tokens,
        epsilon=cfg.clip_low, epsilon_high=cfg.clip_high,
        beta=cfg.beta, use_bias_correction_kl=False,
        loss_type=loss_types[cfg.loss_agg_mode],
        learning_rate=cfg.lr, lr_scheduler_type="constant", adam_beta2=0.99,
        gradient_checkpointing=cfg.gradient_checkpointing,
        bf16=grpo_sg.has_bfloat16("cuda" if torch.cuda.is_available() else "cpu"),
        # With bfloat16 logits, the error of the ratio is as large as the clip range.
        cast_lm_head_to_fp32=True,
        use_cpu=cfg.device == "cpu",  # as settings.json of the tiny models says
        logging_steps=cfg.updates, save_steps=50 * cfg.updates, report_to="none")
    return trl.GRPOConfig(**{**arguments, **others})


def make_trainer(cfg, **others):
    """Return a trainer for the task. `others`: see make_config."""
    model, tokenizer = grpo_sg.load_model(cfg.model)
    policy = grpo_sg.Policy(model, tokenizer, grpo_sg.find_stop_ids(model, tokenizer))
    task = tasks.encode_problems(tasks.make_task(cfg), policy, cfg)
    if task.write:
        raise UserError(f"--task {cfg.task} has a tool: train it with grpo_sg.py")
    model.generation_config.eos_token_id = sorted(policy.stop_ids)
    args = make_config(cfg, int(os.environ.get("WORLD_SIZE", 1)), **others)
    trainer = GRPOSGTrainer(model, functools.partial(grade, policy, task), args,
                            make_dataset(tokenizer, task), processing_class=tokenizer)
    trainer.weigh = functools.partial(grpo_sg.weigh, cfg=cfg)
    # On a GPU: TF32, and not cuDNN's attention, which is slow in sampling.
    grpo_sg.prepare(model, trainer.accelerator.device)
    return trainer


def make_dataset(tokenizer, task):
    """Return the training problems with their prompts as text, which TRL encodes again."""
    rows = []
    for number, problem in enumerate(task.train):
        text = tokenizer.decode(problem.prompt)
        if tokenizer.bos_token and tokenizer(text)["input_ids"] != problem.prompt:
            text = text.removeprefix(tokenizer.bos_token)  # the tokenizer adds it
        if tokenizer(text)["input_ids"] != problem.prompt:
            raise UserError("the tokenizer encodes a prompt differently after decoding it, so TRL "
                            "cannot use it: name another model, or use grpo_sg.py")
        rows.append({"prompt": text, "number": number})
    return datasets.Dataset.from_list(rows)


def grade(policy, task, number, completion_ids, log_metric, **_):
    """Return the rewards that grpo_sg.grade computes (a reward function of TRL)."""
    completions = []
    for i, tokens in zip(number, completion_ids):
        c = grpo_sg.Completion(task.train[i], task.train[i].prompt)
        c.add(tokens, own=True)
        grpo_sg.grade(c, policy, task)
        completions.append(c)
    for name, mean in grpo_sg.average_completions(completions).items():
        log_metric(name, mean)
    return [c.reward for c in completions]


def main(argv=None):
    try:
        cfg, out = read_settings(sys.argv[1:] if argv is None else argv)
        trainer = make_trainer(cfg, output_dir=out)
    except (UserError, OSError) as error:
        raise SystemExit(f"error: {error}")
    trainer.train()
    # Numbered as TRL numbers its own, by updates, so that the last one is this.
    folder = os.path.join(out, f"checkpoint-{trainer.state.global_step}")
    trainer.save_model(folder)
    if trainer.accelerator.is_main_process:  # so that grpo_sg.py --model OUT can test it
        grpo_sg.write_json(os.path.join(folder, "settings.json"), vars(cfg))
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    return trainer


def leave(trainer):
    """End this process without freeing the trainer. On a CPU that can deadlock: it waits for a
    thread of gloo that waits for Python's lock to free a tensor."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    leave(main())
