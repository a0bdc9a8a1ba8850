"""The verl bridge against grpo_sg_loss, and against verl's own loss. Skipped where verl is not installed."""
import pytest
import torch

from grpo_sg import grpo_sg_loss, token_weights

core = pytest.importorskip("verl.trainer.ppo.core_algos")
from verl.workers.config import ActorConfig  # noqa: E402

from bridges import verl_grpo_sg  # noqa: E402


def batch(B=4, T=7):
    """Random logps, old, ref (ratios on both sides of the clip), advantages (B, T) and mask."""
    g = torch.Generator().manual_seed(0)
    logps = -3 * torch.rand(B, T, generator=g)
    old = logps + 0.5 * torch.randn(B, T, generator=g)
    ref = logps + 0.5 * torch.randn(B, T, generator=g)
    mask = torch.rand(B, T, generator=g) < 0.7
    mask[:, 1] = True
    mask[0, 2:] = False
    return logps, old, ref, torch.randn(B, 1, generator=g).expand(B, T), mask


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_its_loss_is_grpo_sg_loss(mode, beta, monkeypatch):
    logps, old, ref, A, mask = batch()
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=0.2,
                         clip_ratio_high=0.24, clip_ratio_c=1e9)
    whole = mask.sum() if mode == "token-mean" else len(mask)
    config.global_batch_info.update({"batch_num_tokens" if mode == "token-mean" else "global_batch_size": whole})

    def theirs(name, logps, rows):
        """The loss of some rows of the batch, as the actor puts it together."""
        loss, metrics = core.get_policy_loss_fn(name)(
            old_log_prob=old[rows], log_prob=logps[rows], advantages=A[rows], response_mask=mask[rows],
            loss_agg_mode=mode, config=config)
        kl = core.kl_penalty(logprob=logps[rows], ref_logprob=ref[rows], kl_penalty="low_var_kl")
        return loss + beta * core.agg_loss(kl, mask[rows], mode, **config.global_batch_info), metrics
    logps.requires_grad_()
    ours, stats = grpo_sg_loss(logps, old, A, mask, weights=token_weights(logps), ref_logps=ref, clip_high=0.24,
                               beta=beta, loss_agg_mode=mode)
    expected, = torch.autograd.grad(ours, logps)
    for parts in ([slice(None)], [slice(0, 1), slice(1, None)]):  # at once, or accumulated
        losses, metrics = zip(*(theirs("grpo_sg", logps, rows) for rows in parts))
        assert sum(losses).item() == pytest.approx(ours.item(), abs=1e-6)
        assert torch.allclose(torch.autograd.grad(sum(losses), logps)[0], expected, atol=1e-6)
        if mode == "token-mean" and len(parts) == 1:
            for name in ("weight_mean", "low_prob_frac"):
                assert metrics[0]["actor/" + name] == pytest.approx(float(stats[name]), abs=1e-6)
    monkeypatch.setattr(verl_grpo_sg, "token_weights", torch.ones_like)
    gradients = [torch.autograd.grad(theirs(name, logps, slice(None))[0], logps)[0] for name in ("vanilla", "grpo_sg")]
    assert torch.equal(*gradients)
