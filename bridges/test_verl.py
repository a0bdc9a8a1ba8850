"""A training step of verl's actor against grpo_sg_loss; data, rewards, command. Skipped without verl."""
import functools
import json
import os
import re
import runpy
import sys

import pytest
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from grpo_sg import grpo_sg_loss, token_weights

verl = pytest.importorskip("verl")
import hydra  # noqa: E402
import pandas  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from verl.plugin.platform.platform_cuda import PlatformCUDA  # noqa: E402
from verl.plugin.platform.platform_manager import set_platform  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils import tensordict_utils  # noqa: E402
from verl.workers import config as settings  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

from bridges import rewards  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


class CPU(PlatformCUDA):
    """verl names no platform for a machine without an accelerator; its plugin interface takes one."""
    device_name = "cpu"
    device_module = torch.cpu
    is_available = staticmethod(lambda: True)
    current_device = staticmethod(lambda: torch.device("cpu"))
    communication_backend_name = staticmethod(lambda: "gloo")


def actor_step(folder, data, mode, beta):
    """(weights, metrics) after a step of verl's actor: its FSDP2 engine, in one process, with SGD."""
    model = settings.HFModelConfig(
        path=str(folder / "model"), external_lib="bridges.verl_grpo_sg", load_tokenizer=False,
        use_remove_padding=False, enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "eager"})
    sharding = settings.FSDPEngineConfig(strategy="fsdp2", mixed_precision={"param_dtype": "fp32"},
                                         use_torch_compile=False, use_remove_padding=False)
    descent = settings.FSDPOptimizerConfig(optimizer="SGD", lr=0.1, weight_decay=0.0, clip_grad=1e9,
                                           total_training_steps=1, lr_warmup_steps=0)
    actor = settings.ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=2, clip_ratio_high=0.24,
        clip_ratio_c=1e9, loss_agg_mode=mode, use_kl_loss=beta > 0, kl_loss_coef=beta,
        policy_loss=settings.PolicyLossConfig(loss_mode="grpo_sg"))
    set_platform(CPU())
    from verl.workers.engine import EngineRegistry  # looks for the platform
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        engine = EngineRegistry.new(model_type="language_model", backend="fsdp2", model_config=model,
                                    engine_config=sharding, optimizer_config=descent,
                                    checkpoint_config=CheckpointConfig())
        engine.initialize()
        with engine.train_mode():
            output = engine.train_batch(data, loss_function=functools.partial(ppo_loss, actor))
        return {name: w.full_tensor() for name, w in engine.module.state_dict().items()}, output["metrics"]
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("mode, beta", [("token-mean", 0.0), ("seq-mean-token-mean", 0.1)])
def test_a_training_step_of_verls_actor_is_ours(mode, beta, tmp_path, monkeypatch):
    """With loss_mode=grpo_sg, in two micro-batches, at temperature 0.7."""
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.4, tie_word_embeddings=True, pad_token_id=0))
    model.save_pretrained(tmp_path / "model")
    prompts = [torch.randint(1, 20, (n,)) for n in (3, 5, 2, 4)]
    responses = [torch.randint(1, 20, (n,)) for n in (4, 2, 6, 5)]

    def rows(noise=0.0):
        """Log-probabilities of each response, from its row alone."""
        logits = [model(input_ids=torch.cat(row)[None]).logits[0, -len(row[1]) - 1:-1]
                  for row in zip(prompts, responses)]
        logps = [(x / 0.7).log_softmax(-1).gather(1, y[:, None])[:, 0] for x, y in zip(logits, responses)]
        return [row + noise * torch.randn(row.shape) for row in logps]
    with torch.no_grad():
        old, ref = rows(0.3), rows(0.3)  # ratios on both sides of the clip
    A = [torch.randn(1).repeat(len(row)) for row in responses]
    ones = [torch.ones(len(row)) for row in responses]
    columns = {"prompts": prompts, "responses": responses, "response_mask": ones, "old_log_probs": old,
               "ref_log_prob": ref, "advantages": A, "input_ids": map(torch.cat, zip(prompts, responses)),
               "position_ids": [torch.arange(len(p) + len(r)) for p, r in zip(prompts, responses)],
               "loss_mask": [torch.cat([torch.zeros(len(p)), one]) for p, one in zip(prompts, ones)]}
    data = TensorDict({name: torch.nested.as_nested_tensor(list(column), layout=torch.jagged)
                       for name, column in columns.items()}, batch_size=[4])
    tensordict_utils.assign_non_tensor(data, temperature=0.7, global_batch_size=4, use_dynamic_bsz=False,
                                       micro_batch_size_per_gpu=2, use_remove_padding=False)
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "cuda")  # the name under which the engine is registered
    theirs, metrics = actor_step(tmp_path, data, mode, beta)
    assert {"actor/weight_mean", "actor/low_prob_frac"} <= metrics.keys()

    logps, old, ref, A, mask = [pad_sequence(x, True) for x in (rows(), old, ref, A, ones)]
    w = token_weights(logps)
    loss, stats = grpo_sg_loss(logps, old, A, mask, weights=w, ref_logps=ref, clip_high=0.24,
                               beta=beta, loss_agg_mode=mode)
    loss.backward()
    assert w.min() < 1.05 and w.max() > 1.35 and stats["clip_frac"] > 0  # else this would be a test of less
    for name, weight in model.named_parameters():
        assert torch.allclose(weight - 0.1 * weight.grad, theirs[name], rtol=0, atol=1e-5)


TEXTS = {  # of a task: a right completion for a gold answer, and a well-formed wrong one
    "kk": (lambda gold: "<think> Hm. </think> <answer> {} </answer>".format(
        ", ".join(f"{name} is a {role}" for name, role in gold.items())),
        "<think> Hm. </think> <answer> Nobody is a knight </answer>"),
    "math": ("\\boxed{{{}}}".format, "\\boxed{-7}"),
    "qa": (lambda golds: f"<answer> {golds[0]} </answer>", "<answer> Nowhere </answer>")}


@pytest.mark.parametrize("task", TEXTS)
def test_its_rows_and_rewards(task, tmp_path, monkeypatch):
    files = [f"{tmp_path}/train.parquet", f"{tmp_path}/test.parquet"]
    monkeypatch.setattr(sys, "argv", ["", task, *files, "--train_problems", "7", "--eval_problems", "3"])
    runpy.run_path(os.path.join(HERE, "verl_data.py"), run_name="__main__")
    train, test = map(pandas.read_parquet, files)
    assert (len(train), len(test)) == (7, 3)
    row = train.iloc[0]
    assert row["data_source"] == task and [m["role"] for m in row["prompt"]] == ["system", "user"]
    gold = row["reward_model"]["ground_truth"]
    right, wrong = TEXTS[task]
    for text, score in ((right(json.loads(gold)), 3), (wrong, -0.5), ("", -3)):
        assert rewards.compute_score(task, text, gold)["score"] == score


def test_the_readmes_command_is_one_that_verl_knows():
    with open(os.path.join(HERE, "README.md")) as file:
        command, = re.findall(r"verl\.trainer\.main_ppo (.*?)```", file.read(), re.S)
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    with hydra.initialize_config_dir(folder, version_base=None):
        config = hydra.compose("ppo_trainer", command.replace("\\\n", " ").split())
    actor = config.actor_rollout_ref.actor
    assert actor.policy_loss.loss_mode == "grpo_sg" and actor.clip_ratio_c == 1e9
    assert config.reward.custom_reward_function.path == "bridges/rewards.py"
