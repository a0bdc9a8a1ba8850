"""Registers what suits a GPU with CUDA: a sampler whose decode steps are recorded, and
AdamW with averages in host memory. Without this folder a GPU samples plainly."""
import grpo_sg
from support import models, program


def equip(policy, cfg, prompt):
    """Give a policy what suits its device, in place, and print what was chosen. Without
    CUDA nothing changes.

    Args:
        policy: policy.AdamW becomes the one with averages in host memory if cfg.offload
            is set; policy.sampler becomes the recorded one if cfg.sampler is "auto" and
            it draws the right tokens after `prompt`.
        prompt: token ids of any problem.

    Raises:
        UserError: if CUDA itself fails, so that nothing can continue.
    """
    device = policy.model.device
    if device.type != "cuda":
        if cfg.offload:
            program.say(f"--offload has no effect on {device.type}: AdamW's averages are in "
                        "host memory already")
        return
    if cfg.offload:
        from extras.gpu import offload
        policy.AdamW = offload.HostAdamW
    if cfg.sampler == "auto":
        from extras.gpu import graph
        with grpo_sg.in_bfloat16(device):
            policy.sampler, line = graph.choose(policy.model, policy.sampler, prompt)
        print(line)


models.EQUIP.append(equip)
