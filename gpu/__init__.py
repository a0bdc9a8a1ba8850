"""What only a GPU of CUDA needs: a sampler whose steps are recorded, AdamW with averages
in host memory. grpo_sg.py runs without this folder; then a GPU samples plainly."""
from support import models, program


def equip(policy, cfg, prompt):
    """Give a policy what suits its device, in place: policy.AdamW is one with averages in
    host memory if cfg.offload is set; policy.sampler becomes the recorded one if
    cfg.sampler is "auto", and it draws the right tokens after `prompt`, token ids of any
    problem. Says in a line what was chosen. Without CUDA nothing changes.

    Raises UserError if CUDA itself fails in this, so that nothing can go on after it.
    """
    device = policy.model.device
    if device.type != "cuda":
        if cfg.offload:
            program.say(f"--offload has no effect on {device.type}: AdamW's averages are in "
                        "host memory already")
        return
    if cfg.offload:
        from gpu import offload
        policy.AdamW = offload.HostAdamW
    if cfg.sampler == "auto":
        from gpu import graph
        with models.in_bfloat16(device):
            policy.sampler, line = graph.choose(policy.model, policy.sampler, prompt)
        print(line)
