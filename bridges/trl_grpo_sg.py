"""GRPO-SG on TRL: GRPOTrainer, with an advantage of its own for every token. Tried with TRL 1.16.0.

    from bridges.trl_grpo_sg import GRPOSGTrainer      in place of trl.GRPOTrainer, from this folder's parent

loss_type="dapo" is our token-mean, "grpo" our seq-mean-token-mean. For the k3 estimator of the KL as it is,
set use_bias_correction_kl=False.
"""
from trl import GRPOTrainer

from grpo_sg import token_weights


class GRPOSGTrainer(GRPOTrainer):
    _batch = None

    def _compute_loss(self, model, inputs):
        self._batch = dict(inputs)  # a copy: the trainer uses a batch again, for its other updates
        try:
            return super()._compute_loss(model, self._batch)
        finally:
            self._batch = None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, *more = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._batch is not None:  # from _compute_loss, which reads the advantages after this call
            A = self._batch["advantages"]  # (B,) or (B, T)
            self._batch["advantages"] = token_weights(logps) * (A if A.dim() == 2 else A[:, None])
        return logps, *more
