"""Run GRPO-SG on verl 0.9.1; README.md has the command.

The policy loss weights the advantages and calls verl's own. The agent loop builds prompts, answers
searches and computes rewards like grpo_sg.rollout. Logs actor/weight_mean and actor/low_prob_frac
in addition to verl's metrics."""
import asyncio
import functools
import json
import math
import os
import uuid
from types import SimpleNamespace

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss
from verl.utils.model import get_generation_config
from verl.utils.torch_functional import masked_mean

# vLLM's sleep mode refuses the value that grpo_sg sets.
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:False")
import grpo_sg
from extras.bridges.verl_data import encode
from support import checks, cli, models, tools


@register_policy_loss("grpo_sg")
def grpo_sg_policy_loss(old_log_prob, log_prob, advantages, response_mask, **settings):
    w = grpo_sg.token_weights(log_prob)  # (B, T)
    loss, metrics = compute_policy_loss_vanilla(
        old_log_prob=old_log_prob, log_prob=log_prob, advantages=w * advantages,
        response_mask=response_mask, **settings)
    low = (log_prob.detach() < math.log(1/3)).float()
    metrics["actor/weight_mean"] = masked_mean(w, response_mask).item()
    metrics["actor/low_prob_frac"] = masked_mean(low, response_mask).item()
    return loss, metrics


@functools.cache
def set_up(settings, model):
    """Return (cfg, policy, task), built once per process. The policy has no model: verl's server
    has it. settings: cli.Settings as JSON, from a row written by verl_data.py."""
    cfg = cli.Settings(**json.loads(settings))
    tokenizer = models.read_tokenizer(model, os.path.isdir(model))
    ends = SimpleNamespace(generation_config=get_generation_config(model))
    policy = grpo_sg.Policy(None, tokenizer, grpo_sg.find_stop_ids(ends, tokenizer))
    cli.add_extras()
    return cfg, policy, checks.guard(checks.make_task(cfg))


@register("grpo_sg")
class AgentLoop(AgentLoopBase):
    """Build one completion like grpo_sg.rollout, with tokens sampled by verl's inference server.
    Also compute the reward: verl's reward functions get text without special tokens, so they
    cannot tell whether a completion was cut off."""

    async def run(self, sampling_params, **row):
        info = row["extra_info"]
        model = self.config.actor_rollout_ref.model.path
        cfg, policy, task = set_up(info["settings"], model)
        tokenizer = policy.tokenizer
        problem = encode(tokenizer, task, getattr(task, info["split"])[info["index"]], cfg)
        c = grpo_sg.Completion(problem, problem.prompt)
        tool = task.write
        ends_in_call = tools.StopText(tokenizer, tool.stop_text) if tool else None
        params = {**sampling_params, "max_tokens": cfg.max_new_tokens,
                  "stop_token_ids": sorted(policy.stop_ids)}
        request = uuid.uuid4().hex
        logps = []
        turns = tool.max_turns if tool else 0
        for turn in range(turns + 1):
            last_turn = turn == turns
            stops = {} if last_turn else {"stop": [tool.stop_text]}
            output = await self.server_manager.generate(
                request, prompt_ids=c.prompt + c.tokens, sampling_params={**params, **stops})
            c.add(output.token_ids, own=True)
            logps += output.log_probs or []
            if last_turn or not ends_in_call.ends(output.token_ids):
                break
            # Run the tool in another thread, because it may be a slow server. The tokenizer is
            # not thread-safe, so only this thread uses it.
            texts = [tokenizer.decode(c.own_tokens())]
            answer, = await asyncio.to_thread(tool.observe, texts)
            answer = tools.encode_tool_answer(tokenizer, answer)
            c.add(answer, own=False)
            logps += [0.0] * len(answer) if output.log_probs else []
            c.tool_calls += 1
        grpo_sg.grade(c, policy, task)
        limits = self.rollout_config
        if len(c.prompt) > limits.prompt_length or len(c.tokens) > limits.response_length:
            raise ValueError(
                f"a prompt has {len(c.prompt)} tokens, its completion {len(c.tokens)}: set "
                "data.max_prompt_length and data.max_response_length to what verl_data.py printed")
        verdict = {"accuracy": float(c.correct and c.formatted),
                   "format_rate": float(c.formatted), "truncated": float(c.truncated)}
        return AgentLoopOutput(
            prompt_ids=c.prompt, response_ids=c.tokens, response_mask=c.mask,
            response_logprobs=logps or None, reward_score=c.reward,
            num_turns=c.tool_calls + 2, metrics={},
            extra_fields={**output.extra_fields, "reward_extra_info": verdict})
