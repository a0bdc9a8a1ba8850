"""Run GRPO-SG on TRL 1.16.0: a GRPOTrainer with a separate advantage for each token. In the
project's folder, use it instead of trl.GRPOTrainer:

    from support.bridges.trl_grpo_sg import GRPOSGTrainer

With bf16, also set cast_lm_head_to_fp32=True. Logs weight_mean and low_prob_frac as well."""
import math

import torch
from trl import GRPOTrainer

from grpo_sg import token_weights


class GRPOSGTrainer(GRPOTrainer):
    # Maps log-probabilities (B, T) to weights (B, T), or to None for plain GRPO.
    weigh = staticmethod(token_weights)
    _batch = None

    def _compute_loss(self, model, inputs):
        # Copy the batch, because the trainer reuses it in other updates.
        self._batch = dict(inputs)
        try:
            return super()._compute_loss(model, self._batch)
        finally:
            self._batch = None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, *more = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        # Only within _compute_loss, which reads the advantages after this call.
        if self._batch is not None:
            w = self.weigh(logps)
            if w is not None:
                A = self._batch["advantages"]  # (B,) or (B, T)
                self._batch["advantages"] = w * (A if A.dim() == 2 else A[:, None])
            self._log_means(weight_mean=torch.ones_like(logps) if w is None else w,
                            low_prob_frac=(logps < math.log(1/3)).float())
        return logps, *more

    def _log_means(self, **values):
        """Log means over the tokens that the policy wrote, in all processes."""
        mask = self._batch["completion_mask"] * self._batch.get("tool_mask", 1)
        sums = [mask.sum()]
        for x in values.values():
            sums.append((x * mask).sum())
        sums = torch.stack(sums).float().detach()
        count, *sums = self.accelerator.reduce(sums, reduction="sum").tolist()
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, total in zip(values, sums):
            metrics[name].append(total / max(count, 1))
