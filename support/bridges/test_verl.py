"""Compare a step of verl's actor with grpo_sg_loss, and check that verl accepts the page's
settings. Skipped without verl."""
import functools
import os
import pathlib
import re

import pytest
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from grpo_sg import grpo_sg_loss, token_weights

verl = pytest.importorskip("verl")
import hydra
from tensordict import TensorDict
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import set_platform
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers import config as settings
from verl.workers.utils.losses import ppo_loss


class CPU(PlatformCUDA):
    """A platform for machines without an accelerator, which verl lacks."""
    device_name = "cpu"
    device_module = torch.cpu
    is_available = staticmethod(lambda: True)
    current_device = staticmethod(lambda: torch.device("cpu"))
    communication_backend_name = staticmethod(lambda: "gloo")


def actor_step(folder, data, beta):
    """Return (parameters, metrics) after an SGD step of verl's actor, with its FSDP2 engine in
    one process."""
    model = settings.HFModelConfig(
        path=str(folder / "model"), external_lib="support.bridges.verl_grpo_sg", load_tokenizer=False,
        use_remove_padding=False, enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "eager"})
    sharding = settings.FSDPEngineConfig(
        strategy="fsdp2", mixed_precision={"param_dtype": "fp32"}, use_torch_compile=False,
        use_remove_padding=False)
    descent = settings.FSDPOptimizerConfig(
        optimizer="SGD", lr=0.1, weight_decay=0.0, clip_grad=1e9, total_training_steps=1,
        lr_warmup_steps=0)
    actor = settings.ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=2, clip_ratio_high=0.24,
        clip_ratio_c=1e9, loss_agg_mode="token-mean", use_kl_loss=beta > 0, kl_loss_coef=beta,
        policy_loss=settings.PolicyLossConfig(loss_mode="grpo_sg"))
    set_platform(CPU())
    from verl.workers.engine import EngineRegistry  # looks for the platform
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        engine = EngineRegistry.new(
            model_type="language_model", backend="fsdp2", model_config=model,
            engine_config=sharding, optimizer_config=descent,
            checkpoint_config=CheckpointConfig())
        engine.initialize()
        with engine.train_mode():
            output = engine.train_batch(data, loss_function=functools.partial(ppo_loss, actor))
        after = {}
        for name, parameter in engine.module.state_dict().items():
            after[name] = parameter.full_tensor()
        return after, output["metrics"]
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_a_training_step_of_verls_actor_equals_grpo_sg_loss(beta, tmp_path, monkeypatch):
    """Use loss_mode=grpo_sg, two micro-batches and temperature 0.7."""
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.4,
        tie_word_embeddings=True, pad_token_id=0))
    model.save_pretrained(tmp_path / "model")
    prompts = [torch.randint(1, 20, (n,)) for n in (3, 5, 2, 4)]
    responses = [torch.randint(1, 20, (n,)) for n in (4, 2, 6, 5)]

    def rows(noise=0.0):
        """Return the log-probabilities of each response, computed row by row."""
        logps_of_rows = []
        for prompt, response in zip(prompts, responses):
            row = torch.cat([prompt, response])[None]
            logits = model(input_ids=row).logits[0, -len(response) - 1:-1]
            logps = (logits / 0.7).log_softmax(-1).gather(1, response[:, None])[:, 0]
            logps_of_rows.append(logps + noise * torch.randn(logps.shape))
        return logps_of_rows
    with torch.no_grad():
        old, ref = rows(0.3), rows(0.3)  # ratios on both sides of the clip
    A = [torch.randn(1).repeat(len(row)) for row in responses]
    ones = [torch.ones(len(row)) for row in responses]
    ids = [torch.cat(row) for row in zip(prompts, responses)]
    columns = {"prompts": prompts, "responses": responses, "response_mask": ones,
               "old_log_probs": old, "ref_log_prob": ref, "advantages": A, "input_ids": ids,
               "position_ids": [torch.arange(len(row)) for row in ids],
               "loss_mask": [torch.cat([torch.zeros(len(p)), one])
                             for p, one in zip(prompts, ones)]}
    data = TensorDict({name: torch.nested.as_nested_tensor(list(column), layout=torch.jagged)
                       for name, column in columns.items()}, batch_size=[4])
    tensordict_utils.assign_non_tensor(
        data, temperature=0.7, global_batch_size=4, use_dynamic_bsz=False,
        micro_batch_size_per_gpu=2, use_remove_padding=False)
    # The name under which the engine is registered.
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "cuda")
    theirs, metrics = actor_step(tmp_path, data, beta)
    assert {"actor/weight_mean", "actor/low_prob_frac"} <= metrics.keys()

    logps, old, ref, A, mask = [pad_sequence(x, True) for x in (rows(), old, ref, A, ones)]
    w = token_weights(logps)
    loss, sums = grpo_sg_loss(logps, old, A, mask, weights=w, ref_logps=ref, beta=beta)
    loss.backward()
    # Make sure that the weights vary and the clip is active.
    assert w.min() < 1.05 and w.max() > 1.35 and sums["clip_frac"] > 0
    for name, weight in model.named_parameters():
        assert torch.allclose(weight - 0.1 * weight.grad, theirs[name], rtol=0, atol=1e-5)


def test_verl_accepts_the_pages_settings():
    page = pathlib.Path(__file__).with_name("README.md").read_text("utf-8")
    flags, = re.findall(r"verl\.trainer\.main_ppo (.*?)```", page, re.S)
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    with hydra.initialize_config_dir(folder, version_base=None):
        config = hydra.compose("ppo_trainer", flags.replace("\\\n", " ").replace("...", "").split())
    actor = config.actor_rollout_ref.actor
    assert actor.policy_loss.loss_mode == "grpo_sg" and actor.clip_ratio_c == 1e9
    assert config.actor_rollout_ref.model.external_lib == "support.bridges.verl_grpo_sg"
