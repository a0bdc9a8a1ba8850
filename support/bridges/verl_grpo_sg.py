"""Run GRPO-SG on verl 0.9.1: a policy loss that weights the advantages, then calls verl's own.

Name this module in actor_rollout_ref.model.external_lib; README.md has the other settings. Logs
actor/weight_mean and actor/low_prob_frac in addition to verl's metrics."""
import math

from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss
from verl.utils.torch_functional import masked_mean

from grpo_sg import token_weights


@register_policy_loss("grpo_sg")
def grpo_sg_policy_loss(old_log_prob, log_prob, advantages, response_mask, **settings):
    w = token_weights(log_prob)  # (B, T)
    loss, metrics = compute_policy_loss_vanilla(
        old_log_prob=old_log_prob, log_prob=log_prob, advantages=w * advantages,
        response_mask=response_mask, **settings)
    low = (log_prob.detach() < math.log(1/3)).float()
    metrics["actor/weight_mean"] = masked_mean(w, response_mask).item()
    metrics["actor/low_prob_frac"] = masked_mean(low, response_mask).item()
    return loss, metrics
