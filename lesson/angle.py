"""Look before you train: how far does GRPO-SG's weight turn GRPO's gradient, on your model
and your task?

    python -m lesson.angle                    the tiny model: under a minute
    python -m lesson.angle --model Qwen/Qwen2.5-0.5B --task math
                                              any flag of grpo_sg.py

One rollout, with which `python grpo_sg.py` and the same flags would begin, three backward
passes over it, and no training. It prints

- the angle between GRPO's gradient, the sum of A grad log pi over the tokens that the policy
  wrote, and GRPO-SG's, the sum of w A grad log pi;
- how many of these tokens are unlikely, and how much of GRPO's gradient is theirs;
- the noise beside it: the angle between the gradients of two halves of the rollout, which
  have different problems and nothing else;
- Kantorovich's yardstick: how large the angle could be if tokens had orthogonal gradients.

The gradients are those at r = 1 and before AdamW, the KL's is left out (at the reference it
is 0), and nothing here says which direction is the better one. lesson/README.md has the
mathematics, experiments/README.md what was measured.
"""
import dataclasses
import math
import os
import random
import sys

import torch
from tqdm import tqdm

# A script sees its own folder alone.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import grpo_sg
from support import cli, models, program, tiny

NAMES = {"sg": "GRPO-SG", "ar": "AR-Lopti's weight"}


# ---- 1. Gradients of a rollout ----

def draw_rollout(policy, task, cfg, step=1):
    """The completions that training step `step` would learn from, with their advantages,
    if the policy were the present one until then."""
    seed = cfg.seed * 1_000_003 + step  # as in grpo_sg.train
    count = min(cfg.prompts, len(task.train))
    problems = random.Random(seed).sample(task.train, count)
    completions = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                  temperature=cfg.temperature, seed=seed)
    grpo_sg.set_advantages(completions, cfg.group_size)
    return completions


def weigh_unlikely(logps, cfg):
    """1 for tokens with pi < 1/3, 0 for others."""
    return (logps.detach() < math.log(1/3)).float()


def add_gradient(policy, completions, cfg, weigh, bar=None):
    """Add to .grad the gradient of grpo_sg_loss, summed over tokens, with the weights that
    weigh(logps, cfg) makes, at r = 1. Returns the sums of the loss. bar: a progress bar,
    which moves on by the completions of each micro-batch."""
    policy.model.train(cfg.gradient_checkpointing)
    found = {}
    for batch in grpo_sg.micro_batches(completions, cfg, policy.model.device):
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        loss, sums = grpo_sg.grpo_sg_loss(
            logps, logps.detach(), batch["advantages"], batch["mask"],
            weights=weigh(logps, cfg), loss_agg_mode=cfg.loss_agg_mode, denominator=1)
        loss.backward()
        for key, value in sums.items():
            found[key] = found.get(key, 0.0) + float(value)
        if bar is not None:
            bar.update(len(logps))
    return found


def copy_gradient(model):
    """The gradient as a list of tensors in host memory, one for each parameter; None for
    one that has none."""
    copies = []
    for p in model.parameters():
        copies.append(None if p.grad is None else p.grad.to("cpu", copy=True))
    return copies


def dot(model, other=None):
    """The inner product of .grad with a copied gradient, or with itself."""
    total = 0.0
    for i, p in enumerate(model.parameters()):
        a, b = p.grad, p.grad if other is None else other[i]
        if a is not None and b is not None:
            total += float(torch.dot(a.flatten(), b.to(a.device).flatten()))
    return total


def cosine(ab, aa, bb):
    """Of two vectors, by their inner products; nan if one of them is 0."""
    return ab / math.sqrt(aa * bb) if aa > 0 and bb > 0 else math.nan


def degrees(cos):
    within = max(min(cos, 1.0), -1.0)  # rounding may pass 1; in this order nan stays nan
    return math.degrees(math.acos(within))


# ---- 2. Kantorovich's yardstick ----

def yardstick(low, high):
    """The least cosine between sum of g_t and sum of w_t g_t with weights from low to high,
    if the g_t are orthogonal: 2 sqrt(L U) / (L + U), by Kantorovich's inequality. It is
    reached where the tokens of weight L have U / (L + U) of the sum of squared norms and
    those of weight U the rest. Tokens whose gradients are not orthogonal may cancel, and
    the angle may then be larger."""
    return 2 * math.sqrt(low * high) / (low + high)


def find_range(cfg):
    """(least, greatest) weight of any token; weights are monotone in pi."""
    return [float(w) for w in grpo_sg.weigh(torch.tensor([0.0, 1.0]).log(), cfg)]


# ---- 3. The look ----

def weigh_none(logps, cfg):
    return None  # all 1: GRPO


def compare(policy, completions, cfg):
    """What is printed, as a dict, of a rollout with its advantages. At any time one copy of
    the gradient is held, in host memory; .grad is None in the end. Raises UserError if the
    rollout has one problem alone, or no gradient."""
    model = policy.model
    cfg = dataclasses.replace(cfg, beta=0.0)
    half = len(completions) // cfg.group_size // 2 * cfg.group_size
    if half == 0:
        raise program.UserError("one problem has no two halves: give --prompts 2 or more")
    used = sum(c.advantage != 0 for c in completions)
    if used == 0:
        raise program.UserError(
            "all groups have equal rewards, so that there is no gradient: raise --prompts, "
            "or take another task or model")
    bar = tqdm(total=3 * used, desc="gradients", mininterval=0.5)
    model.zero_grad()
    # GRPO's: a of the first half, b of the second, g = a + b.
    add_gradient(policy, completions[:half], cfg, weigh_none, bar)
    a, aa = copy_gradient(model), dot(model)
    add_gradient(policy, completions[half:], cfg, weigh_none, bar)
    ag, gg = dot(model, a), dot(model)
    a = None
    g = copy_gradient(model)
    model.zero_grad()
    sums = add_gradient(policy, completions, cfg, grpo_sg.weigh, bar)
    turned = cosine(dot(model, g), gg, dot(model))
    model.zero_grad()
    add_gradient(policy, completions, cfg, weigh_unlikely, bar)
    part = dot(model, g) / gg
    model.zero_grad()
    bar.close()
    return {"tokens": sums["count"], "unlikely": sums["low_prob_frac"] / sums["count"],
            "part": part, "cos": turned, "halves": cosine(ag - aa, aa, gg - 2 * ag + aa)}


def of_twice_the_size(cos):
    """The cosine between two rollouts, from that between two halves of one: if each is the
    expected gradient plus noise, twice the problems halve the noise's square (Spearman's
    and Brown's formula). Below 0 there is noise alone, and 0 is returned."""
    return 2 * max(cos, 0.0) / (1 + max(cos, 0.0)) if cos == cos else cos


def expect(turned, noise):
    """A sentence; both in degrees, noise nan if it is not known."""
    if math.isnan(noise):
        return "one half of the rollout has no gradient: raise --prompts to see the noise"
    words = (f"the gradient turns by {turned:.0f} degrees for the weight, and by some "
             f"{noise:.0f} for other problems (AdamW was seen to turn further)")
    if turned < noise / 2:
        return (f"{words}: luck hides the weight in a single step, and only what stays the "
                "same over many steps and seeds could show it")
    return f"{words}: training may well differ, for better or worse"


def tell(found, cfg):
    """The lines that are printed."""
    turned, halves = degrees(found["cos"]), degrees(found["halves"])
    noise = degrees(of_twice_the_size(found["halves"]))
    low, high = find_range(cfg)
    widest = degrees(yardstick(low, high))
    counted = "tokens" if cfg.loss_agg_mode == "token-mean" else "completions"
    lines = [
        f"trained on: {found['tokens']:,.0f} {counted}",
        f"unlikely tokens (pi < 1/3): {found['unlikely']:.1%} of these, "
        f"{found['part']:.0%} of GRPO's summed gradient, along its way",
        f"angle between the gradients of GRPO and {NAMES[cfg.shaping]}: {turned:.1f} degrees",
        f"    Kantorovich's yardstick, weights from {low:.3g} to {high:.3g}: {widest:.1f}"]
    if not math.isnan(noise):
        lines += [f"    noise, between two halves of the rollout: {halves:.1f}; so between two "
                  f"such rollouts some {noise:.0f}"]
    return [*lines, f"what to expect: {expect(turned, noise)}"]


def main(argv=None):
    with program.one_line_errors(out_of_memory=cli.advise_on_memory()):
        cfg = cli.parse(argv)
        if cfg.shaping == "none":
            raise program.UserError("--shaping none is GRPO itself: give --shaping sg or ar")
        policy, task, _ = cli.load(cfg)
        if not (cfg.model or cfg.resume or tiny.find_pretrained(cfg)):
            tiny.warm_up(policy, task, cfg)
        count = min(cfg.prompts, len(task.train))
        print(f"sampling {cfg.group_size} completions of each of {count} problems")
        completions = draw_rollout(policy, task, cfg)
        print("\n".join(tell(compare(policy, completions, cfg), cfg)))


if __name__ == "__main__":
    main()
