"""GRPO-SG on verl: a policy loss that weights the advantages and calls verl's own. Run with verl 0.9.1.

    PYTHONPATH=. python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
        actor_rollout_ref.model.external_lib=bridges.verl_grpo_sg \\
        actor_rollout_ref.actor.policy_loss.loss_mode=grpo_sg actor_rollout_ref.actor.clip_ratio_c=1e9 ...

clip_ratio_c is a second clip, of verl's own, which GRPO does not have: so high a bound switches it off. Logs
actor/weight_mean and actor/low_prob_frac beside verl's own metrics.
"""
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
    return loss, {**metrics, "actor/weight_mean": masked_mean(w, response_mask).item(),
                  "actor/low_prob_frac": masked_mean(low, response_mask).item()}
