"""Register the optimizations for CUDA, both on request: a sampler that records its decode step, and
AdamW with averages in host memory."""
import grpo_sg
from support import models, program


def equip(policy, cfg, prompt):
    """Choose the policy's sampler and optimizer for its device, in place, and print the choice.
    Changes nothing without CUDA.

    Args:
        policy: its AdamW keeps averages in host memory if cfg.offload is set. Its sampler
            becomes the CUDA-graph sampler if cfg.sampler is "graph" and a test on `prompt`
            succeeds.
        prompt: token ids of any problem.

    Raises:
        UserError: if CUDA fails, in which case the run cannot continue.
    """
    device = policy.model.device
    if device.type != "cuda":
        if cfg.offload:
            program.say(f"--offload has no effect on {device.type}: AdamW's averages are in "
                        "host memory already")
        if cfg.sampler == "graph":
            program.say(f"--sampler graph has no effect on {device.type}: it needs CUDA")
        return
    if cfg.offload:
        from extras.gpu import offload
        policy.AdamW = offload.HostAdamW
    if cfg.sampler == "graph":
        from extras.gpu import graph
        with grpo_sg.in_bfloat16(device):
            policy.sampler, line = graph.choose(policy.model, policy.sampler, prompt)
        print(line)


models.EQUIP.append(equip)
