"""Compare the TRL bridge with grpo_sg.py and with TRL's own trainer. Skipped without TRL."""
import datetime
import functools
import os
import sys
from unittest.mock import Mock

import pytest
import torch
import transformers
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.rnn import pad_sequence

import grpo_sg
from grpo_sg import group_advantages, grpo_sg_loss, token_logps, token_weights
from support import cli, models
from tasks import UserError

pytest.importorskip("trl")
from extras.bridges import cases, trl_grpo_sg, trl_train

OTHERS = {"use_cpu": True, "save_strategy": "no"}


def numbers(trainer):
    """Return the dataset indices of one step: a group for each of two problems, repeated for each
    micro-batch."""
    return ([3] * 10 + [5] * 10) * trainer.args.steps_per_generation


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", cases.TEXTS)
def test_ids_masks_and_rewards_equal_those_of_rollout(name, opened, tmp_path):
    cfg, policy, task = cases.make(tmp_path / "model", name, opened, "--prompts", "1")
    completions = cases.script(policy.tokenizer, task, task.train[3], opened)
    ours = cases.roll_out(policy, task, cfg, task.train[3], completions)
    assert [c.reward for c in ours] == cases.REWARDS[name]
    trainer = trl_train.make_trainer(cfg, output_dir=f"{tmp_path}/out", **OTHERS)
    trainer.rollout_func = functools.partial(trl_train.roll_out, task, cfg,
                                             sampler=cases.scripted(completions))
    trainer.model.train()
    batch = trainer._generate_and_score_completions([{"prompt": "3"} for _ in ours])
    assert list(trainer._logs["rewards"]["read_reward"]) == [c.reward for c in ours]
    logged = trainer._metrics["train"]
    assert logged["accuracy"] == [pytest.approx(sum(c.solved for c in ours) / 10)]
    truncated = sum(c.truncated for c in ours) / 10
    assert logged["completions/clipped_ratio"] == [pytest.approx(truncated)]
    for i, c in enumerate(ours):
        there = batch["completion_mask"][i].bool()
        assert batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist() == c.prompt
        assert batch["completion_ids"][i][there].tolist() == c.tokens
        assert batch["tool_mask"][i][there].tolist() == c.mask
    assert name != "qa" or not all(ours[-1].mask)


@pytest.mark.parametrize("flags", [
    "", "--loss_agg_mode seq-mean-token-mean --beta 0.1 --clip_low 0.1", "--alpha 3 --low 0.5",
    "--shaping none", "--shaping ar"])
def test_the_loss_equals_grpo_sg_loss(flags, tmp_path, monkeypatch):
    """Run two updates of two micro-batches on completions with tool answers."""
    cfg, policy, task = cases.make(tmp_path / "model", "qa", True, "--updates", "2",
                                   "--lr", "0.001", *flags.split())
    both = [task.train[3], task.train[5]]
    completions = []
    for problem in both:
        completions += cases.script(policy.tokenizer, task, problem, True)
    seen = []

    def by_hand(model, inputs):
        """Compute the loss with grpo_sg_loss, row by row without padding, and the mean weight."""
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        rows = []
        columns = (inputs["prompt_ids"], inputs["prompt_mask"].bool(), inputs["completion_ids"])
        for prompt, there, row in zip(*columns):
            whole = torch.cat([prompt[there], row])[None]
            logps = (model(input_ids=whole).logits[0, -len(row) - 1:-1] / 0.7).log_softmax(-1)
            rows.append(logps.gather(1, row[:, None])[:, 0])
        logps = torch.stack(rows)
        weights = grpo_sg.weigh(logps, cfg)
        tokens = cfg.loss_agg_mode == "token-mean"
        loss, _ = grpo_sg_loss(
            logps, inputs["old_per_token_logps"], inputs["advantages"], mask, weights=weights,
            ref_logps=inputs.get("ref_per_token_logps"), clip_low=cfg.clip_low,
            clip_high=cfg.clip_high, beta=cfg.beta, loss_agg_mode=cfg.loss_agg_mode,
            denominator=inputs["num_items_in_batch"] / 2 if tokens else 10)
        return loss.item(), 1.0 if weights is None else weights[mask].mean().item()
    compute = trl_grpo_sg.GRPOSGTrainer._compute_loss

    def watched(self, model, inputs):
        loss = compute(self, model, inputs)
        seen.append((loss.item(), *by_hand(model, inputs)))
        return loss
    monkeypatch.setattr(trl_grpo_sg.GRPOSGTrainer, "_compute_loss", watched)
    trainer = trl_train.make_trainer(
        cfg, output_dir=f"{tmp_path}/out", per_device_train_batch_size=5,
        gradient_accumulation_steps=2, **OTHERS)
    sampler = cases.scripted(completions)
    trainer.rollout_func = functools.partial(trl_train.roll_out, task, cfg, sampler=sampler)
    monkeypatch.setattr(trainer, "_get_train_sampler", lambda *_: numbers(trainer))
    trainer.train()
    assert trainer.state.global_step == 2 and len(seen) == 4
    for theirs, ours, _ in seen:
        assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-6)
    logged = trainer.state.log_history[0]
    assert logged["weight_mean"] == pytest.approx(sum(w for _, _, w in seen) / 4, abs=1e-4)
    assert 0 < logged["low_prob_frac"] <= 1


def test_with_weights_of_1_it_equals_the_stock_trainer(tmp_path, monkeypatch):
    import trl
    cfg, *_ = cases.make(tmp_path / "model", "kk", False, "--max_new_tokens", "20",
                         "--updates", "2")

    def reward_variety(graded, **_):
        return [float(len({*c.tokens})) for c in graded]
    monkeypatch.setattr(trl_train, "read_reward", reward_variety)
    parameters = []
    ours = trl_grpo_sg.GRPOSGTrainer
    kinds = [(trl.GRPOTrainer, None), (ours, torch.ones_like), (ours, token_weights)]
    for kind, weigh in kinds:
        monkeypatch.setattr(trl_train, "GRPOSGTrainer", kind)
        trainer = trl_train.make_trainer(cfg, output_dir=f"{tmp_path}/out", **OTHERS)
        trainer.weigh = weigh
        trainer.train()
        parameters.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    stock, ones, weighted = parameters
    assert torch.equal(stock, ones) and not torch.equal(stock, weighted)


@pytest.mark.parametrize("flags, words", [
    (["--model", "m", "--eval_every", "5", "--offload"], "not support --offload, --eval_every"),
    (["--model", "m", "--sampler=plain", "--eval-only"], "support --sampler, --eval_only"),
    (["--model", "m", "--grad_clip", "2"], "there is no setting --grad_clip"),
    (["--task", "kk"], "TRL needs --model")])
def test_settings_without_effect_are_refused(flags, words):
    with pytest.raises(UserError, match=words):
        trl_train.parse(flags)


def test_a_folder_that_another_process_created_is_accepted(tmp_path):
    (tmp_path / "log").write_text("")
    cfg, out = trl_train.parse(["--model", "m", "--steps", "7", "--out", str(tmp_path)])
    assert (cfg.steps, out) == (7, str(tmp_path))


def test_under_autocast_logits_are_in_float32(tmp_path):
    """Check this for TRL's forward passes and for our sampler's."""
    cfg, *_ = cases.make(tmp_path / "model", "kk", False)
    trainer = trl_train.make_trainer(cfg, output_dir=f"{tmp_path}/out", **OTHERS)
    model = trainer.model.eval()
    ids = torch.randint(0, 256, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=ids).last_hidden_state
        sampled = model(input_ids=ids).logits
        logps, *_ = trainer._get_per_token_logps_and_entropies(
            model, ids, torch.ones_like(ids), 20)
    exact = hidden.float() @ model.lm_head.weight.T
    assert exact.abs().max() > 5  # with small logits the test would also pass in bfloat16
    assert torch.allclose(sampled, exact, rtol=0, atol=1e-4)
    expected = (exact[:, -21:-1] / cfg.temperature).log_softmax(-1)
    expected = expected.gather(2, ids[:, -20:, None])[:, :, 0]
    assert torch.allclose(logps, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_gpu_is_set_up_as_in_grpo_sg(device, tmp_path, monkeypatch):
    """make_trainer calls models.set_up_gpu on CUDA, and only there."""
    set_up = Mock()
    monkeypatch.setattr(models, "set_up_gpu", set_up)
    accelerator = Mock(device=torch.device(device))
    trainer = Mock(accelerator=accelerator, is_fsdp_enabled=False, is_deepspeed_enabled=False)
    monkeypatch.setattr(trl_train, "GRPOSGTrainer", Mock(return_value=trainer))
    cfg, *_ = cases.make(tmp_path / "model", "kk", False)
    trl_train.make_trainer(cfg, output_dir=f"{tmp_path}/out", **OTHERS)
    assert set_up.called == (device == "cuda")


def test_models_without_float32_logits_on_trl_are_refused(tmp_path):
    cases.save_model(tmp_path, False)
    settings = transformers.GPT2Config(vocab_size=300, n_embd=8, n_layer=1, n_head=1)
    transformers.GPT2LMHeadModel(settings).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="GPT2LMHeadModel"):
        trl_train.make_trainer(grpo_sg.Config(model=str(tmp_path)))


def test_uneven_shares_of_completions_are_refused():
    cfg = grpo_sg.Config(prompts=8, group_size=4, updates=2)
    with pytest.raises(UserError, match="cannot be shared evenly"):
        trl_train.make_config(cfg, 3)


def one_step(folder):
    """Take this process's part of an SGD step on scripted completions, and save the parameters to
    FOLDER/PROCESSES."""
    cfg = cli.parse(["--model", f"{folder}/model", "--task", "qa", *cases.FLAGS])
    processes = int(os.environ["WORLD_SIZE"])
    trainer = trl_train.make_trainer(cfg, output_dir=f"{folder}/{processes}.out", optim="sgd",
                                     max_grad_norm=1e9, **OTHERS)
    task, model = trainer.rollout_func.args[0], trainer.model
    tokenizer = trainer.processing_class

    def rollout(prompts, trainer):
        rows = []
        for number in dict.fromkeys(prompts):
            rows += cases.script(tokenizer, task, task.train[int(number)], True)
        return trl_train.roll_out(task, cfg, prompts, trainer, sampler=cases.scripted(rows))
    trainer.rollout_func = rollout
    trainer._get_train_sampler = lambda *_: numbers(trainer)
    trainer.train()
    if trainer.accelerator.is_main_process:
        assert trainer.accelerator.num_processes == processes
        after = trainer.accelerator.unwrap_model(model).state_dict()
        torch.save(after, f"{folder}/{processes}")
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


def test_a_step_in_two_processes_equals_that_of_one_and_of_grpo_sg(tmp_path):
    cfg, policy, task = cases.make(tmp_path / "model", "qa", True)
    stepped = []
    for processes in ("1", "2"):
        cases.launch(processes, __file__, "one_step", str(tmp_path))
        stepped.append(torch.load(tmp_path / processes))
    completions = []
    for problem in (task.train[3], task.train[5]):
        turns = cases.script(policy.tokenizer, task, problem, True)
        completions += cases.roll_out(policy, task, cfg, problem, turns)
    advantages = group_advantages(torch.tensor([c.reward for c in completions]).view(2, 10))
    ids = [torch.tensor(c.prompt + c.tokens) for c in completions]
    mask = [torch.tensor([False] * len(c.prompt) + c.mask) for c in completions]
    mask = pad_sequence(mask, batch_first=True)
    logps = token_logps(policy.model, pad_sequence(ids, batch_first=True), mask,
                        temperature=cfg.temperature)
    loss, _ = grpo_sg_loss(logps, logps.detach(), advantages.flatten(), mask,
                           weights=token_weights(logps))
    loss.backward()
    largest = 0
    for name, p in policy.model.named_parameters():
        largest = max(largest, p.grad.abs().max().item())
        assert torch.allclose(stepped[0][name], stepped[1][name], rtol=0, atol=1e-6)
        # TRL divides by std + 1e-4, we by std + 1e-6: a relative difference in advantages of
        # less than 1e-4.
        assert torch.allclose(p - cfg.lr * p.grad, stepped[0][name], rtol=0, atol=1e-5)
    assert cfg.lr * largest > 1e-3  # with a tiny step the test would pass trivially


def sample_sharded(folder):
    """Sample different numbers of tokens in two FSDP2 processes, then train in both."""
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
        for part in model.model.layers.parameters():
            assert part.to_local().numel() < part.numel()
        model(input_ids=torch.tensor([[5, 6, 7]])).logits.sum().backward()
    torch.distributed.destroy_process_group()


def test_fsdp2_processes_sample_without_waiting_for_each_other(tmp_path):
    cases.save_model(tmp_path / "model", True)
    cases.launch("2", __file__, "sample_sharded", str(tmp_path))


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
    trl_train.leave()
