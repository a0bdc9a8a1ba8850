"""The TRL bridge against grpo_sg.py, and against TRL's own trainer. Skipped where TRL is not installed."""
import datetime
import functools
import os
import subprocess
import sys

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import grpo_sg
from grpo_sg import grpo_sg_loss, token_weights
from support import models
from support.program import UserError

pytest.importorskip("trl")
from bridges import cases, trl_grpo_sg, trl_train  # noqa: E402

OTHERS = {"use_cpu": True, "save_strategy": "no"}


def numbers(trainer):
    """A sampler of the dataset for one step: a group of each of two problems, for each micro-batch again."""
    return ([3] * 10 + [5] * 10) * trainer.args.steps_per_generation


def scripted(completions):
    """A sampler that gives the rows their next turns."""
    left = [list(turns) for turns in completions]

    def sampler(model, prompts, **settings):
        rows = [turns for turns in left if turns]
        assert len(rows) == len(prompts)
        return [turns.pop(0) for turns in rows]
    return sampler


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", cases.TEXTS)
def test_ten_completions_get_our_ids_masks_and_rewards(name, opened, tmp_path):
    cfg, task, model, tokenizer = cases.make(tmp_path / "model", name, opened, "--prompts", "1")
    completions = cases.script(tokenizer, task, task.train[3], opened)
    ours = [cases.grade_by_hand(model, tokenizer, task, cfg, task.train[3], turns) for turns in completions]
    assert [c.reward for c in ours] == cases.REWARDS[name]
    trainer = trl_train.make_trainer(cfg, output_dir=f"{tmp_path}/out", **OTHERS)
    trainer.rollout_func = functools.partial(trl_train.roll_out, task, cfg, sampler=scripted(completions))
    trainer.model.train()
    batch = trainer._generate_and_score_completions([{"prompt": "3"} for _ in ours])
    assert list(trainer._logs["rewards"]["read_reward"]) == [c.reward for c in ours]
    logged = trainer._metrics["train"]
    assert logged["accuracy"] == [pytest.approx(sum(c.solved for c in ours) / 10)]
    assert logged["completions/clipped_ratio"] == [pytest.approx(sum(c.truncated for c in ours) / 10)]
    for i, c in enumerate(ours):
        there = batch["completion_mask"][i].bool()
        assert batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist() == c.prompt
        assert batch["completion_ids"][i][there].tolist() == c.tokens
        assert batch["tool_mask"][i][there].tolist() == c.mask
    assert name != "qa" or not all(ours[-1].mask)


@pytest.mark.parametrize("flags", ["", "--loss_agg_mode seq-mean-token-mean --beta 0.1 --clip_low 0.1",
                                   "--alpha 3 --low 0.5", "--shaping ar", "--shaping none"])
def test_its_loss_is_grpo_sg_loss(flags, tmp_path, monkeypatch):
    """Two updates of two micro-batches, on completions that have tool answers in them."""
    cfg, task, model, tokenizer = cases.make(tmp_path / "model", "qa", True, "--updates", "2", "--lr", "0.001",
                                             *flags.split())
    both = [task.train[3], task.train[5]]
    completions = sum([cases.script(tokenizer, task, problem, True) for problem in both], [])
    seen = []

    def by_hand(model, inputs):
        """The same loss by grpo_sg_loss, from each row alone, without pads; and the mean weight."""
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        rows = []
        for prompt, there, row in zip(inputs["prompt_ids"], inputs["prompt_mask"].bool(), inputs["completion_ids"]):
            whole = torch.cat([prompt[there], row])[None]
            logps = (model(input_ids=whole).logits[0, -len(row) - 1:-1] / 0.7).log_softmax(-1)
            rows.append(logps.gather(1, row[:, None])[:, 0])
        logps = torch.stack(rows)
        weights = grpo_sg.shaping_weights(logps, cfg)
        tokens = cfg.loss_agg_mode == "token-mean"
        loss, _ = grpo_sg_loss(
            logps, inputs["old_per_token_logps"], inputs["advantages"], mask, weights=weights,
            ref_logps=inputs.get("ref_per_token_logps"), clip_low=cfg.clip_low, clip_high=cfg.clip_high,
            beta=cfg.beta, loss_agg_mode=cfg.loss_agg_mode,
            denominator=inputs["num_items_in_batch"] / 2 if tokens else 10)
        return loss.item(), 1.0 if weights is None else weights[mask].mean().item()
    compute = trl_grpo_sg.GRPOSGTrainer._compute_loss

    def watched(self, model, inputs):
        loss = compute(self, model, inputs)
        seen.append((loss.item(), *by_hand(model, inputs)))
        return loss
    monkeypatch.setattr(trl_grpo_sg.GRPOSGTrainer, "_compute_loss", watched)
    trainer = trl_train.make_trainer(cfg, output_dir=f"{tmp_path}/out", per_device_train_batch_size=5,
                                     gradient_accumulation_steps=2, **OTHERS)
    sampler = scripted(completions)
    trainer.rollout_func = functools.partial(trl_train.roll_out, task, cfg, sampler=sampler)
    monkeypatch.setattr(trainer, "_get_train_sampler", lambda *_: numbers(trainer))
    trainer.train()
    assert trainer.state.global_step == 2 and len(seen) == 4
    for theirs, ours, _ in seen:
        assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-6)
    logged = trainer.state.log_history[0]
    assert logged["weight_mean"] == pytest.approx(sum(w for _, _, w in seen) / 4, abs=1e-4)
    assert 0 < logged["low_prob_frac"] <= 1


def test_with_weights_of_1_it_is_trls_trainer(tmp_path, monkeypatch):
    import trl
    cfg, *_ = cases.make(tmp_path / "model", "kk", False, "--max_new_tokens", "20", "--updates", "2")
    monkeypatch.setattr(grpo_sg, "grade", lambda c, *_: setattr(c, "reward", float(len({*c.tokens}))))
    weights = []
    for kind, weigh in ((trl.GRPOTrainer, None), (trl_grpo_sg.GRPOSGTrainer, torch.ones_like),
                        (trl_grpo_sg.GRPOSGTrainer, token_weights)):
        monkeypatch.setattr(trl_train, "GRPOSGTrainer", kind)
        trainer = trl_train.make_trainer(cfg, output_dir=f"{tmp_path}/out", **OTHERS)
        trainer.weigh = weigh
        trainer.train()
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("flags, words", [
    (["--eval_every", "5", "--offload"], "does not know --offload, --eval_every"),
    (["--sampler", "plain", "--device", "cpu"], "does not know --sampler, --device"), (["--model", ""], "--model is needed"),
    (["--shaping", "none", "--alpha", "1"], "--alpha has no effect with --shaping none")])
def test_a_setting_is_honoured_or_refused(flags, words):
    with pytest.raises(UserError, match=words):
        trl_train.parse(["--model", "m", *flags])


def test_completions_that_cannot_be_shared_evenly_are_refused():
    cfg = grpo_sg.Config(prompts=8, group_size=4, updates=2)
    with pytest.raises(UserError, match="cannot be shared evenly"):
        trl_train.make_config(cfg, 3)


def launch(processes, function, folder):
    """The function of this file in so many processes."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", processes, __file__,
                    function, str(folder)], env=environment, check=True, timeout=300)


def one_step(folder):
    """A process's part of a step of SGD on scripted completions, whose weights go to FOLDER/PROCESSES."""
    cfg = grpo_sg.parse(["--model", f"{folder}/model", "--task", "qa", *cases.FLAGS, "--grad_clip", "1e9"])
    processes = int(os.environ["WORLD_SIZE"])
    trainer = trl_train.make_trainer(cfg, output_dir=f"{folder}/{processes}.out", optim="sgd", **OTHERS)
    task, model = trainer.rollout_func.args[0], trainer.model
    tokenizer = trainer.processing_class

    def rollout(prompts, trainer):
        rows = []
        for number in dict.fromkeys(prompts):
            rows += cases.script(tokenizer, task, task.train[int(number)], True)
        return trl_train.roll_out(task, cfg, prompts, trainer, sampler=scripted(rows))
    trainer.rollout_func = rollout
    trainer._get_train_sampler = lambda *_: numbers(trainer)
    trainer.train()
    if trainer.accelerator.is_main_process:
        assert trainer.accelerator.num_processes == processes
        torch.save(trainer.accelerator.unwrap_model(model).state_dict(), f"{folder}/{processes}")
    trainer.accelerator.wait_for_everyone()  # as main does
    trainer.accelerator.end_training()


def test_a_step_of_two_processes_is_that_of_one_and_ours(tmp_path):
    cfg, task, model, tokenizer = cases.make(tmp_path / "model", "qa", True)
    weights = []
    for processes in ("1", "2"):
        launch(processes, "one_step", tmp_path)
        weights.append(torch.load(tmp_path / processes))
    completions = []
    for problem in (task.train[3], task.train[5]):
        for turns in cases.script(tokenizer, task, problem, True):
            completions.append(cases.grade_by_hand(model, tokenizer, task, cfg, problem, turns))
    grpo_sg.set_advantages(completions, 10)
    model.eval()
    batch = grpo_sg.make_batch(completions, model.device)
    logps = grpo_sg.compute_logps(model, batch, cfg)
    loss, _ = grpo_sg_loss(logps, logps.detach(), batch["advantages"], batch["mask"], weights=token_weights(logps))
    loss.backward()
    largest = 0
    for name, p in model.named_parameters():
        largest = max(largest, p.grad.abs().max().item())
        assert torch.allclose(weights[0][name], weights[1][name], rtol=0, atol=1e-6)
        # TRL divides by std + 1e-4, we by std + 1e-6: advantages differ by less than 1e-4 of themselves.
        assert torch.allclose(p - cfg.lr * p.grad, weights[0][name], rtol=0, atol=1e-5)
    assert cfg.lr * largest > 1e-3  # else this would be a test of nothing


def sample_sharded(folder):
    """FSDP2 in two processes, which draw different numbers of tokens, and then learn together."""
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = torch.distributed.get_rank()
    model = models.load_model(f"{folder}/model")[0].eval()
    settings = {"max_new_tokens": 4 + 5 * rank, "stop_ids": [], "temperature": 0}
    plain = grpo_sg.sample(model, [[5, 6, 7]], **settings)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    for _ in range(2):
        trl_train.keep_whole(model, True)
        assert grpo_sg.sample(model, [[5, 6, 7]], **settings) == plain
        trl_train.keep_whole(model, False)
        assert all(part.to_local().numel() < part.numel() for part in model.model.layers.parameters())
        model(input_ids=torch.tensor([[5, 6, 7]])).logits.sum().backward()
    torch.distributed.destroy_process_group()


def test_processes_with_parts_of_the_weights_sample_without_waiting_for_each_other(tmp_path):
    cases.save_model(tmp_path / "model", True)
    launch("2", "sample_sharded", tmp_path)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
