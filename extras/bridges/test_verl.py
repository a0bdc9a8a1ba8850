"""Compare verl's actor with grpo_sg_loss and its agent loop with a rollout, and check that verl
accepts the command. Skipped without verl."""
import asyncio
import functools
import json
import os
import re

import numpy
import pytest
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from grpo_sg import grpo_sg_loss, token_weights

verl = pytest.importorskip("verl")
import hydra
import pandas
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import set_platform
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers import config as settings
from verl.workers.rollout.replica import TokenOutput
from verl.workers.utils.losses import ppo_loss

from extras.bridges import cases, verl_data, verl_grpo_sg
from tasks import UserError

HERE = os.path.dirname(os.path.abspath(__file__))


class CPU(PlatformCUDA):
    """A platform for machines without an accelerator, which verl lacks."""
    device_name = "cpu"
    device_module = torch.cpu
    is_available = staticmethod(lambda: True)
    current_device = staticmethod(lambda: torch.device("cpu"))
    communication_backend_name = staticmethod(lambda: "gloo")


def actor_step(folder, data, mode, beta):
    """Return (parameters, metrics) after an SGD step of verl's actor, with its FSDP2 engine in
    one process."""
    model = settings.HFModelConfig(
        path=str(folder / "model"), external_lib="extras.bridges.verl_grpo_sg", load_tokenizer=False,
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
        clip_ratio_c=1e9, loss_agg_mode=mode, use_kl_loss=beta > 0, kl_loss_coef=beta,
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


MODES = [("token-mean", 0.0), ("seq-mean-token-mean", 0.1)]


@pytest.mark.parametrize("mode, beta", MODES)
def test_a_training_step_of_verls_actor_equals_grpo_sg_loss(mode, beta, tmp_path, monkeypatch):
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
        found = []
        for prompt, response in zip(prompts, responses):
            whole = torch.cat([prompt, response])[None]
            logits = model(input_ids=whole).logits[0, -len(response) - 1:-1]
            logps = (logits / 0.7).log_softmax(-1).gather(1, response[:, None])[:, 0]
            found.append(logps + noise * torch.randn(logps.shape))
        return found
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
    theirs, metrics = actor_step(tmp_path, data, mode, beta)
    assert {"actor/weight_mean", "actor/low_prob_frac"} <= metrics.keys()

    logps, old, ref, A, mask = [pad_sequence(x, True) for x in (rows(), old, ref, A, ones)]
    w = token_weights(logps)
    loss, sums = grpo_sg_loss(logps, old, A, mask, weights=w, ref_logps=ref, beta=beta,
                              loss_agg_mode=mode)
    loss.backward()
    # Make sure that the weights vary and the clip is active.
    assert w.min() < 1.05 and w.max() > 1.35 and sums["clipped"] > 0
    for name, weight in model.named_parameters():
        assert torch.allclose(weight - 0.1 * weight.grad, theirs[name], rtol=0, atol=1e-5)


def read_config(*flags):
    """Return verl's settings, composed as by its command."""
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    with hydra.initialize_config_dir(folder, version_base=None):
        return hydra.compose("ppo_trainer", list(flags))


def readme_flags():
    with open(os.path.join(HERE, "README.md")) as file:
        command, = re.findall(r"verl\.trainer\.main_ppo (.*?)```", file.read(), re.S)
    return command.replace("\\\n", " ").split()


class Server:
    """Replace verl's vLLM: return the turns of the next completion for each request, and record
    the requests."""

    def __init__(self, completions):
        self.left = [list(turns) for turns in completions]
        self.requests = {}
        self.asked = []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        following = self.left[len(self.requests) - len(self.left)]
        turns = self.requests.setdefault(request_id, following)
        self.asked.append((request_id, list(prompt_ids), sampling_params))
        tokens = turns.pop(0)
        return TokenOutput(token_ids=tokens, log_probs=[-0.5] * len(tokens),
                           stop_reason="completed")


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", cases.TEXTS)
def test_ids_masks_and_rewards_equal_those_of_rollout(name, opened, tmp_path):
    """Use verl's own worker with the flags of the README's command."""
    cfg, policy, task = cases.make(tmp_path / "model", name, opened)
    completions = cases.script(policy.tokenizer, task, task.train[3], opened)
    ours = cases.roll_out(policy, task, cfg, task.train[3], completions)
    assert [c.reward for c in ours] == cases.REWARDS[name]

    files = [f"{tmp_path}/train.parquet", f"{tmp_path}/valid.parquet"]
    flags = "--train_problems 20 --eval_problems 5 --max_new_tokens 300".split()
    verl_data.main(*files, "--task", name, "--model", cfg.model, *flags)
    train, valid = map(pandas.read_parquet, files)
    assert (len(train), len(valid)) == (len(task.train), len(task.valid))
    config = read_config(
        *readme_flags(), f"actor_rollout_ref.model.path={cfg.model}",
        "data.max_prompt_length=1500", "data.max_response_length=2000",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager")
    server = Server(completions)
    worker = AgentLoopWorker(config, server)
    row = train.iloc[3]
    columns = {"raw_prompt": row["prompt"], "extra_info": row["extra_info"],
               "data_source": name, "reward_model": row["reward_model"], "index": 3}
    rows = {}
    for key, value in columns.items():
        rows[key] = numpy.empty(10, dtype=object)
        rows[key][:] = [value] * 10
    batch = DataProto(batch=TensorDict({"dummy_tensor": torch.zeros(10, 1)}, [10]),
                      non_tensor_batch=rows)
    output = asyncio.run(worker.generate_sequences(batch))

    there = output.batch["attention_mask"].bool()
    for i, c in enumerate(ours):
        assert output.batch["input_ids"][i][there[i]].tolist() == c.prompt + c.tokens
        assert output.batch["response_mask"][i][:len(c.tokens)].tolist() == c.mask
        assert output.batch["response_mask"][i][len(c.tokens):].sum() == 0
        logps = output.batch["rollout_log_probs"][i][:len(c.tokens)]
        assert logps.tolist() == [-0.5 * own for own in c.mask]
    assert output.batch["rm_scores"].sum(1).tolist() == [c.reward for c in ours]
    assert output.non_tensor_batch["accuracy"].tolist() == [c.solved for c in ours]
    assert output.non_tensor_batch["truncated"].tolist() == [c.truncated for c in ours]
    ends = sorted(policy.tokenizer.convert_tokens_to_ids(list(cases.ENDS)))
    # Calls in the last turn are not answered.
    stops = [["</search>"], ["</search>"], None] if task.write else [None]
    for c, request in zip(ours, server.requests):
        asked = [(prompt, params) for other, prompt, params in server.asked if other == request]
        assert len(asked) == c.tool_calls + 1
        for (prompt, params), stop in zip(asked, stops):
            # The prompt repeats the earlier tokens exactly.
            assert (c.prompt + c.tokens)[:len(prompt)] == prompt
            assert params["stop_token_ids"] == ends and params.get("stop") == stop
            assert params["max_tokens"] == 300 and params["temperature"] == 0.7
    assert name != "qa" or [c.tool_calls for c in ours] == [0] * 8 + [1, 2]


def test_a_completion_above_verls_limit_is_an_error(tmp_path):
    cfg, policy, _ = cases.make(tmp_path / "model", "math", False)
    loop = object.__new__(verl_grpo_sg.AgentLoop)
    loop.config = read_config(f"actor_rollout_ref.model.path={cfg.model}")
    loop.rollout_config = loop.config.actor_rollout_ref.rollout
    loop.rollout_config.response_length = 2
    loop.server_manager = Server([[policy.tokenizer("abc")["input_ids"]]])
    with pytest.raises(ValueError, match="data.max_response_length"):
        info = {"settings": json.dumps(vars(cfg)), "split": "train", "index": 0}
        asyncio.run(loop.run({}, extra_info=info))


def test_verl_data_needs_a_model_and_refuses_verls_own_settings():
    for flags, words in ((["--lr", "1"], "--lr"), ([], "--model is needed")):
        with pytest.raises(UserError, match=words):
            verl_data.main("a", "b", *(["--model", "m"] if flags else []), *flags)


def test_verl_accepts_the_readmes_command():
    config = read_config(*readme_flags())
    actor = config.actor_rollout_ref.actor
    assert actor.policy_loss.loss_mode == "grpo_sg" and actor.clip_ratio_c == 1e9
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "grpo_sg"
    assert config.actor_rollout_ref.model.external_lib == "extras.bridges.verl_grpo_sg"
