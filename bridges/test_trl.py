"""The TRL bridge against grpo_sg_loss, and against TRL's own trainer. Skipped where TRL is not installed."""
import json

import pytest
import torch

import grpo_sg
import tasks
from grpo_sg import grpo_sg_loss, token_weights

pytest.importorskip("trl")
from bridges import rewards, trl_grpo_sg, trl_train  # noqa: E402


def trainer(folder, *flags):
    """(trainer, task, tokenizer): the tiny model of a task, two rollouts of 32, two updates on each, in two
    micro-batches of eight. The reward is the number of different tokens."""
    cfg = grpo_sg.parse([
        *f"--task kk --brief --people 3 --train_problems 40 --eval_problems 3 --model {folder}/tiny".split(),
        *"--prompts 8 --group_size 4 --steps 2 --updates 2 --max_new_tokens 6 --lr 1e-2".split(),
        "--temperature", "0.7", *flags])
    task = tasks.TASKS["kk"](cfg)
    torch.manual_seed(0)
    model, tokenizer = tasks.tiny_model(task)
    model.save_pretrained(cfg.model)
    tokenizer.save_pretrained(cfg.model)
    run = trl_train.trainer(cfg, output_dir=f"{folder}/out", use_cpu=True, save_strategy="no")
    run.reward_funcs[0] = lambda completion_ids, **_: [float(len({*ids})) for ids in completion_ids]
    return run, task, tokenizer


@pytest.mark.parametrize("mode, beta", [("token-mean", "0"), ("seq-mean-token-mean", "0.1")])
def test_its_loss_is_grpo_sg_loss(mode, beta, tmp_path, monkeypatch):
    seen = []

    class Watched(trl_grpo_sg.GRPOSGTrainer):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            seen.append((loss.item(), *self.by_hand(model, inputs)))
            return loss

        def by_hand(self, model, inputs):
            """The same loss by grpo_sg_loss, from each row alone, without pads; and the mean weight."""
            mask, ids = inputs["completion_mask"].bool(), inputs["completion_ids"]
            rows = []
            for prompt, there, row in zip(inputs["prompt_ids"], inputs["prompt_mask"].bool(), ids):
                whole = torch.cat([prompt[there], row])[None]
                logps = (model(input_ids=whole).logits[0, -len(row) - 1:-1] / 0.7).log_softmax(-1)
                rows.append(logps.gather(1, row[:, None])[:, 0])
            logps = torch.stack(rows)
            loss, _ = grpo_sg_loss(
                logps, inputs["old_per_token_logps"], inputs["advantages"], mask,
                weights=token_weights(logps), ref_logps=inputs.get("ref_per_token_logps"), clip_low=0.1,
                clip_high=0.3, beta=float(beta), loss_agg_mode=mode,
                denominator=inputs["num_items_in_batch"] / 2 if mode == "token-mean" else 16)
            return loss.item(), token_weights(logps)[mask].mean().item()
    monkeypatch.setattr(trl_train, "GRPOSGTrainer", Watched)
    run, _, _ = trainer(tmp_path, "--loss_agg_mode", mode, "--beta", beta, "--clip_low", "0.1",
                        "--clip_high", "0.3")
    run.train()
    assert run.state.global_step == 4 and len(seen) == 8
    for theirs, ours, _ in seen:
        assert theirs == pytest.approx(ours, abs=1e-6)
    logged = run.state.log_history[0]  # of the first rollout's two updates
    assert logged["weight_mean"] == pytest.approx(sum(w for _, _, w in seen[:4]) / 4, abs=1e-3)
    assert 0 < logged["low_prob_frac"] < 1


def test_with_weights_of_1_it_is_trls_trainer(tmp_path, monkeypatch):
    monkeypatch.setattr(trl_grpo_sg, "token_weights", torch.ones_like)
    weights = []
    for shaping in ("none", "sg"):
        run, _, _ = trainer(tmp_path, "--shaping", shaping)
        before = torch.cat([p.detach().flatten().clone() for p in run.model.parameters()])
        run.train()
        weights.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
        assert isinstance(run, trl_grpo_sg.GRPOSGTrainer) == (shaping == "sg")
        assert not torch.equal(before, weights[-1])
    assert torch.equal(*weights)


def test_its_reward_reads_the_end_token(tmp_path):
    run, task, tokenizer = trainer(tmp_path)
    ids = tokenizer(task.train[0].solution)["input_ids"]
    end = [tokenizer.eos_token_id]
    reward = rewards.trl_reward(task, tokenizer)
    assert reward([ids + end, ids, ids[:-2] + end], [json.dumps(task.train[0].answer)] * 3) == [3, -3, -3]
    assert run.train_dataset[0]["prompt"][-1]["content"] == task.train[0].question
    with pytest.raises(SystemExit, match="evenly"):
        trl_train.config(grpo_sg.parse(["--prompts", "8", "--group_size", "4", "--updates", "2"]), 3)
