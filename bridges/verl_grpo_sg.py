"""GRPO-SG on verl: a policy loss that weights the advantages and calls verl's own. Tried with verl 0.9.1.

    PYTHONPATH=. python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
        actor_rollout_ref.model.external_lib=bridges.verl_grpo_sg \\
        actor_rollout_ref.actor.policy_loss.loss_mode=grpo_sg actor_rollout_ref.actor.clip_ratio_c=1e9 ...

clip_ratio_c is a second clip, of verl's own, which GRPO does not have: so high a bound switches it off.
"""
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss

from grpo_sg import token_weights


@register_policy_loss("grpo_sg")
def grpo_sg_policy_loss(old_log_prob, log_prob, advantages, response_mask, **settings):
    return compute_policy_loss_vanilla(old_log_prob=old_log_prob, log_prob=log_prob,
                                       advantages=token_weights(log_prob) * advantages,  # (B, T)
                                       response_mask=response_mask, **settings)
