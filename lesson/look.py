"""Look before you train: does the weight keep more of the signal than of the noise, on your
model and your task?

    python -m lesson.look                       the pretrained tiny model: under two minutes
    python -m lesson.look --model Qwen/Qwen2.5-0.5B --task math
                                                takes every flag of grpo_sg.py
    python -m lesson.look my_task.py            a task of your own, in a script that ends in
                                                grpo_sg.main(task=NAME)
    python -m lesson.look --groups 1024         more groups, smaller standard errors (default 256)
    python -m lesson.look --model runs/NAME/checkpoint
                                                look again later: the answer changes in training

The command samples --groups groups, computes the gradient of each, and trains nothing. Let g
be the gradient of one group without the weight, with expectation mu and covariance Sigma, and
g_w the same with it. An update on n groups follows S = the sum of n gradients, and to first
order the reward rises with how well S points along mu:

    cos(S, mu) = <mu_w, mu> / ( |mu| sqrt(|mu_w|^2 + tr Sigma_w / n) )

So the weight helps now if it keeps more of the signal than of the noise:

    signal kept   <mu_w, mu> / |mu|^2
    noise kept    sqrt(tr Sigma_w / tr Sigma)
    efficiency    cos(S_w, mu) / cos(S, mu): above 1, updates of n groups point better with w

Everything is estimated from products of different groups, so noise adds no bias; standard
errors are from a jackknife over 32 blocks of groups. The command also prints the angle between
the two gradients. It says little by itself: two weightings of one rollout share its noise.

Gradients are those at r = 1, before gradient clipping and AdamW, and leave out the KL, whose
gradient is 0 at the reference. lesson/README.md explains the mathematics, experiments/README.md
has the measurements.
"""
import argparse
import dataclasses
import math
import os
import random
import runpy
import sys
from unittest import mock

import torch
import torch.nn.functional as F
from tqdm import tqdm

# A script sees only its own folder.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import grpo_sg
from support import cli, program, tiny
from tasks import UserError

NAMES = {"sg": "GRPO-SG", "ar": "AR-Lopti's weight"}
BLOCKS = 32          # of groups, for the jackknife
EXACT = 50_000_000   # parameters up to which gradients are kept whole
SKETCH = 2 ** 20     # numbers that are kept of longer ones


# ---- 1. The gradient of one group ----

def draw_groups(policy, task, cfg, count, seed):
    """Sample `count` groups and set their advantages. Draws problems with replacement, so groups
    are independent."""
    problems = random.Random(seed).choices(task.train, k=count)
    completions = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                  temperature=cfg.temperature, seed=seed)
    grpo_sg.set_advantages(completions, cfg.group_size)
    return [completions[i:i + cfg.group_size]
            for i in range(0, len(completions), cfg.group_size)]


def split(group, cfg):
    """Split the group into parts that fit into a micro-batch, short completions first."""
    parts = [[]]
    for c in sorted(group, key=grpo_sg.Completion.length):
        if parts[-1] and (len(parts[-1]) + 1) * c.length() > cfg.tokens_per_micro_batch:
            parts.append([])
        parts[-1].append(c)
    return parts


def advantages_of(batch, cfg):
    """Return (B, T): the advantage on tokens that the policy wrote, 0 elsewhere."""
    A = batch.advantages[:, None] * batch.mask
    if cfg.loss_agg_mode == "seq-mean-token-mean":
        A = A / batch.mask.sum(1, keepdim=True)
    return A


def group_gradients(policy, group, cfg, make_coefficients, sketch=None):
    """Return the gradient of sum_t c_t log pi_t over the group's tokens, a float32 row for each c.

    make_coefficients(logps, batch, completions) returns a list of tensors c, (B, T), which
    share one forward pass. sketch: a linear map to apply to each gradient, from make_sketch.
    """
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    policy.model.train(cfg.gradient_checkpointing)
    rows = None
    for part in split(group, cfg):
        batch = grpo_sg.make_batch(part, policy.model.device)
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        found = []
        for c in make_coefficients(logps.detach(), batch, part):
            parts = torch.autograd.grad(logps, parameters, c.to(logps.dtype), retain_graph=True,
                                        allow_unused=True, materialize_grads=True)
            gradient = torch.cat([each.flatten() for each in parts])
            found.append(sketch(gradient) if sketch else gradient)
        found = torch.stack(found)
        rows = found if rows is None else rows + found
    return rows


def make_sketch(size, seed=0):
    """Return a random linear map from vectors of `size` numbers to SKETCH numbers that keeps
    inner products in expectation. It multiplies each stretch of SKETCH numbers by random signs,
    rotates it by a random shift, and adds the stretches up."""
    generator = torch.Generator().manual_seed(seed)
    signs = 2.0 * torch.randint(2, (SKETCH,), generator=generator) - 1
    stretches = math.ceil(size / SKETCH)
    flips = (2 * torch.randint(2, (stretches,), generator=generator) - 1).tolist()
    shifts = torch.randint(SKETCH, (stretches,), generator=generator).tolist()

    def sketch(vector):
        total = torch.zeros(SKETCH, device=vector.device)
        s = signs.to(vector.device)
        for part, flip, shift in zip(vector.split(SKETCH), flips, shifts):
            part = F.pad(part * s[:len(part)], (0, SKETCH - len(part)))
            total += flip * part.roll(shift)
        return total
    return sketch


# ---- 2. Means and covariances of groups ----

class Sums:
    """Sum the gradients g_a of groups, one for each way a of weighting the tokens."""

    def __init__(self, ways, size, blocks=BLOCKS):
        self.count = torch.zeros(blocks, dtype=torch.float64)
        self.total = torch.zeros(blocks, ways, size)                      # sums of g_a
        self.own = torch.zeros(blocks, ways, ways, dtype=torch.float64)   # of <g_a, g_b>
        self.groups = 0

    def add(self, gradients=None):
        """Add one group: a row for each way, or None if its rewards are equal (g = 0)."""
        block = self.groups % len(self.count)
        self.groups += 1
        self.count[block] += 1
        if gradients is not None:
            self.total[block] += gradients
            self.own[block] += (gradients @ gradients.T).double()

    def moments(self):
        """Return [(M, V)] of all groups, then without each block: unbiased estimates of
        M[a, b] = <mu_a, mu_b> and V[a, b] = tr Cov(g_a, g_b)."""
        count, total = self.count.sum(), self.total.sum(0).double()
        own = self.own.sum(0)
        found = [two_moments(count, total, own)]
        for n, part, products in zip(self.count, self.total, self.own):
            found.append(two_moments(count - n, total - part, own - products))
        return found


def two_moments(K, total, own):
    """Return (M, V) of K groups, from their sums."""
    # The product of two sums has K products of a group with itself, which are left out.
    M = (total @ total.T - own) / (K * (K - 1))
    return M, own / K - M


def jackknife(describe, moments):
    """Return {name: (value, standard error)} for each number in the dict describe(M, V)."""
    whole, *parts = [describe(M, V) for M, V in moments]
    B = len(parts)
    found = {}
    for name, value in whole.items():
        values = torch.tensor([part[name] for part in parts], dtype=torch.float64)
        spread = ((values - values.mean()) ** 2).sum() * (B - 1) / B
        found[name] = value, float(spread.sqrt())
    return found


# ---- 3. What they say ----

def root(x):
    """Return the square root; nan below 0, because an unbiased estimate of a square can be."""
    return math.sqrt(x) if x >= 0 else math.nan


def ratio(a, b):
    return float(a) / float(b) if b != 0 else math.nan


def signal_kept(M, w, base=0, true=0):
    """Return <mu_w, mu> / <mu_base, mu>. base: the same rewards without weights. true: without
    weights, with clean rewards."""
    return ratio(M[w, true], M[base, true])


def noise_kept(V, w, base=0):
    return root(ratio(V[w, w], V[base, base]))


def efficiency(M, V, w, n, base=0, true=0):
    """Return cos(S_w, mu) / cos(S_base, mu) for sums S of n groups."""
    length = root(ratio(M[w, w] + V[w, w] / n, M[base, base] + V[base, base] / n))
    return ratio(signal_kept(M, w, base, true), length)


def cos_of_sums(M, V, a, b, n):
    """Return the cosine between the sums of g_a and of g_b over the same n groups."""
    lengths = (n * M[a, a] + V[a, a]) * (n * M[b, b] + V[b, b])
    return ratio(n * M[a, b] + V[a, b], root(lengths))


def cos_of_reruns(M, V, n):
    """Return the cosine between the sums of g over n groups and over n other groups."""
    return ratio(n * M[0, 0], n * M[0, 0] + V[0, 0])


def degrees(cos):
    within = max(min(cos, 1.0), -1.0)  # rounding may pass 1; in this order nan stays nan
    return math.degrees(math.acos(within))


def yardstick(low, high):
    """Return the smallest cosine between sum g_t and sum w_t g_t for weights from low (L) to high
    (U), if the g_t are orthogonal: 2 sqrt(L U) / (L + U), by Kantorovich's inequality. Equality
    holds if the tokens of weight L have U / (L + U) of the sum of squared norms, and those of
    weight U have the rest. Gradients that are not orthogonal may cancel; then the angle can be
    larger."""
    return 2 * math.sqrt(low * high) / (low + high)


def find_range(cfg):
    """Return the smallest and largest weight a token can have; weights are monotone in pi."""
    return [float(w) for w in grpo_sg.weigh(torch.tensor([0.0, 1.0]).log(), cfg)]


# ---- 4. The look ----

def weigh_unlikely(logps, cfg):
    """Return 1 for tokens with pi < 1/3, 0 for others."""
    return (logps.detach() < math.log(1/3)).float()


def measure(policy, groups, cfg):
    """Compute the gradients of all groups. Returns (Sums for GRPO, the weight, and unlikely
    tokens only; the number of tokens in groups with a learning signal; how many are unlikely)."""
    size = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    sketch = make_sketch(size) if size > EXACT else None
    sums = Sums(3, min(size, SKETCH) if sketch else size)
    counts = [0.0, 0.0]

    def coefficients(logps, batch, completions):
        A = advantages_of(batch, cfg)
        unlikely = weigh_unlikely(logps, cfg)
        ones = (A != 0) * (A / batch.advantages[:, None]).nan_to_num()
        counts[0] += float(ones.sum())
        counts[1] += float((ones * unlikely).sum())
        return [A, grpo_sg.weigh(logps, cfg) * A, unlikely * A]

    for group in tqdm(groups, "gradients", mininterval=0.5):
        if not any(c.advantage for c in group):
            sums.add()
            continue
        sums.add(group_gradients(policy, group, cfg, coefficients, sketch).cpu())
    return sums, *counts


def describe(cfg, M, V):
    """Return the quantities to print with standard errors, from the moments of `measure`."""
    n, P = groups_per_update(cfg), cfg.prompts
    return {"signal": signal_kept(M, 1), "noise": noise_kept(V, 1),
            "efficiency": efficiency(M, V, 1, n), "of a rollout": efficiency(M, V, 1, P),
            "angle": degrees(cos_of_sums(M, V, 0, 1, P)),
            "rerun": degrees(cos_of_reruns(M, V, P)),
            "part": ratio(P * M[2, 0] + V[2, 0], P * M[0, 0] + V[0, 0]),
            "length": float(M[0, 0])}


def groups_per_update(cfg):
    """Return how many groups' worth of completions an update has."""
    return cfg.prompts / cfg.updates


def expect(found, groups):
    """Say in one sentence what the efficiency means for training now."""
    value, error = found["efficiency"]
    length, length_error = found["length"]
    later = "this changes as training goes on, so look again at a checkpoint"
    if not length > 2 * length_error:  # also if it is nan
        return ("too few groups to tell: the mean gradient is within two standard errors of 0; "
                f"try --groups {4 * groups} ({later})")
    if not abs(value - 1) > 2 * error:
        return ("no difference detected: the efficiency is within two standard errors of 1; "
                f"more --groups can detect smaller ones ({later})")
    if value > 1:
        return f"with the weight, updates point better now, so progress may be faster ({later})"
    return f"with the weight, updates point worse now, so progress may be slower ({later})"


def tell(found, counts, cfg, groups, sketched=False):
    """Return the lines to print."""
    tokens, unlikely = counts
    low, high = find_range(cfg)
    widest = degrees(yardstick(low, high))
    counted = "tokens" if cfg.loss_agg_mode == "token-mean" else "completions"
    name, n = NAMES.get(cfg.shaping, cfg.shaping), groups_per_update(cfg)

    def shown(key, form="{:.3f} +- {:.3f}"):
        return form.format(*found[key])
    lines = [
        f"{groups} groups; {tokens:,.0f} {counted} in those with a learning signal",
        f"unlikely tokens (pi < 1/3): {ratio(unlikely, tokens):.1%} of these; they make "
        f"up {found['part'][0]:.0%} of a rollout's gradient for GRPO, noise included",
        f"a rollout of {cfg.prompts} groups (estimates +- standard errors):",
        f"    angle between the gradients of GRPO and {name}: "
        f"{shown('angle', '{:.1f} +- {:.1f}')} degrees",
        f"        (Kantorovich's yardstick for weights from {low:.3g} to {high:.3g}: "
        f"{widest:.1f})",
        "    angle between GRPO's gradients on two such rollouts: "
        f"{shown('rerun', '{:.0f} +- {:.0f}')} degrees",
        f"    efficiency: {shown('of a rollout')}",
        f"an update of {n:g} groups:",
        f"    signal kept: {shown('signal')}",
        f"    noise kept: {shown('noise')}",
        f"    efficiency: {shown('efficiency')} (above 1: updates point better with the weight)"]
    if sketched:
        lines.append(f"    (from random sketches: {SKETCH:,} numbers of each gradient)")
    return [*lines, f"what to expect: {expect(found, groups)}"]


def read_arguments(argv):
    """Return (--groups, the Config of the other flags). A first argument that ends in .py is a
    script with a task; it runs up to its grpo_sg.main."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--groups", type=int, default=256)
    known, rest = parser.parse_known_args(argv)
    if known.groups < 2 * BLOCKS:
        raise UserError(f"--groups {known.groups}: give {2 * BLOCKS} or more")
    defaults = {}
    if rest and rest[0].endswith(".py"):
        with mock.patch.object(grpo_sg, "main") as main_of_script:
            runpy.run_path(rest.pop(0), run_name="__main__")
        if main_of_script.call_args is None:
            raise UserError("the script must end in grpo_sg.main(task=NAME)")
        defaults = main_of_script.call_args.kwargs
    return known.groups, cli.parse(rest, **defaults)


def start(cfg):
    """Return (policy, task). A tiny model that is not pretrained first gets a warm-up."""
    policy, task, _ = cli.load(cfg)
    if not (cfg.model or cfg.resume or tiny.find_pretrained(cfg)):
        tiny.warm_up(policy, task, cfg)
    return policy, task


def look(policy, task, cfg, count):
    """Return the lines to print. Raises UserError if no group has a learning signal."""
    groups = draw_groups(policy, task, cfg, count, seed=cfg.seed * 1_000_003)
    if not any(c.advantage for group in groups for c in group):
        raise UserError(
            "every group has equal rewards, so there is no gradient: raise --groups, or use "
            "another task or model")
    sums, *counts = measure(policy, groups, cfg)

    def describe_these(M, V):
        return describe(cfg, M, V)
    found = jackknife(describe_these, sums.moments())
    return tell(found, counts, cfg, count, sketched=sums.total.shape[2] == SKETCH)


def main(argv=None):
    if {"-h", "--help"} & {*(sys.argv[1:] if argv is None else argv)}:
        print(f"{__doc__}\nThe other flags: python grpo_sg.py --help")
        raise SystemExit(0)
    with program.one_line_errors(out_of_memory=cli.advise_on_memory()):
        count, cfg = read_arguments(sys.argv[1:] if argv is None else argv)
        if cfg.shaping == "none":
            raise UserError("--shaping none is GRPO itself: give --shaping sg or ar")
        policy, task = start(cfg)
        print(f"sampling {cfg.group_size} completions for each of {count} problems")
        print("\n".join(look(policy, task, dataclasses.replace(cfg, beta=0.0), count)))


if __name__ == "__main__":
    main()
