"""Measure before you train how much further an AdamW step goes with the weight, on your task.

    python -m support.look                       the pretrained tiny model: 20 seconds
    python -m support.look --model runs/NAME     again after training: the answer changes
    python -m support.look --model Qwen/Qwen2.5-0.5B-Instruct --task math --groups 256
    python -m support.look --task my_task.py     takes every flag of grpo_sg.py

Updates are noisy, and a policy improves by as much as they go along their mean, the mean gradient.
The command compares the weight with GRPO in two ways, and trains nothing:

    progress ratio       how far an AdamW step goes along the mean gradient, divided by how far one
                         of GRPO goes. 1.03 is like a learning rate that is 3% higher.
    gradient alignment   the cosine of an update with the mean gradient, divided by GRPO's. AdamW
                         changes an update's direction, so this is not how far its step goes.

The command samples --groups groups (by default 16 updates' worth, at least 256), and more give
smaller standard errors. Let S be the sum of the gradients of an update's groups, S_w the same with
the weight, and mu GRPO's mean gradient over the other updates. AdamW divides each parameter's step
by the root mean square (rms) of that parameter's gradients, so

    progress ratio = mean of sum(S_w mu / rms S_w) / mean of sum(S mu / rms S)
    gradient alignment = mean cos(S_w, mu) / mean cos(S, mu)

For each class of tokens (by pi and the sign of A), whose gradients have the mean mu_c and the
covariance Sigma_c, it prints the share of the mean, <mu_c, mu> / |mu|^2, and of the variance,
tr Sigma_c / tr Sigma. The variances need not add up to 1, because noises can cancel.

The estimates use products of different groups, so noise adds no bias. Standard errors are from a
jackknife over the updates. Gradients are those at r = 1, before clipping, without momentum or KL.
"""
import argparse
import dataclasses
import math
import random
import sys

import torch
from tqdm import tqdm

import grpo_sg

SKETCH = 2 ** 18  # numbers that are kept of a longer gradient, twice: 1 MiB each
RARE = 1/3        # below it, pi makes a low-probability token
CLASSES = "A > 0, pi < 1/3", "A > 0, pi > 1/3", "A < 0, pi < 1/3", "A < 0, pi > 1/3"
UPDATES = 8       # at least


# ---- 1. The gradients of one group ----

def sample_groups(policy, task, cfg, count):
    """Sample `count` groups and set their advantages. Draws problems with replacement, so groups
    are independent."""
    seed = cfg.seed * 1_000_003
    problems = random.Random(seed).choices(task.train, k=count)
    completions = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                  temperature=cfg.temperature, seed=seed)
    grpo_sg.set_advantages(completions, cfg.group_size)
    return grpo_sg.split_groups(completions, cfg.group_size)


def coefficients(logps, batch, cfg):
    """Return what multiplies the gradient of each token's log pi, a list of (B, T): with the
    weight, then without it in each of CLASSES."""
    A = batch.advantages[:, None] * batch.mask
    rare = logps.exp() < RARE
    return [grpo_sg.weigh(logps, cfg) * A,
            A * ((A > 0) & rare), A * ((A > 0) & ~rare),
            A * ((A < 0) & rare), A * ((A < 0) & ~rare)]


def group_gradients(policy, group, cfg):
    """Return (6, size) float32: the gradient of the group without the weight, with it, and of
    each of CLASSES, which add up to the first; (2, size): coordinates of the first two, see
    `pick`; and (4,), the number of tokens of each class."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    gradients = torch.zeros(2 + len(CLASSES), length_of(policy))
    picked = torch.zeros(2, length_of(policy))
    tokens = torch.zeros(len(CLASSES))
    for batch in grpo_sg.micro_batches(group, cfg, policy.model.device):
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        for i, c in enumerate(coefficients(logps.detach(), batch, cfg), start=1):
            if i > 1:
                tokens[i - 2] += int((c != 0).sum())
            if c.any():
                parts = torch.autograd.grad(logps, parameters, c.to(logps.dtype), retain_graph=True,
                                            allow_unused=True, materialize_grads=True)
                gradients[i] += shorten(parts).cpu()
                picked[int(i == 1)] += pick(parts).cpu()
                del parts  # or it would be kept next to the following gradient
    gradients[0] = gradients[2:].sum(0)
    return gradients, picked, tokens


def length_of(policy):
    """Return how many numbers are kept of a gradient."""
    return min(policy.model.num_parameters(only_trainable=True), SKETCH)


def shorten(parts, seed=0):
    """Return a gradient as one vector, from a tensor for each parameter.

    If it is longer than SKETCH, return a random linear sketch, which keeps inner products in
    expectation: each piece of up to SKETCH numbers is multiplied by random signs and rotated
    by a random shift, and the pieces are added up."""
    if sum(part.numel() for part in parts) <= SKETCH:
        return torch.cat([part.flatten() for part in parts])
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(SKETCH, device=parts[0].device)
    signs = (2.0 * torch.randint(2, (SKETCH,), generator=generator) - 1).to(total)
    for part in parts:
        for piece in part.flatten().split(SKETCH):
            flip = 2 * int(torch.randint(2, (), generator=generator)) - 1
            start = int(torch.randint(SKETCH, (), generator=generator))
            piece = piece * signs[:len(piece)] * flip
            fits = SKETCH - start  # what does not fit at the end goes to the beginning
            total[start:start + len(piece)] += piece[:fits]
            total[:max(0, len(piece) - fits)] += piece[fits:]
    return total


def pick(parts, seed=0):
    """Return SKETCH random coordinates of a gradient, always the same, or all if it has no more.

    A sketch mixes parameters, so their own scales are lost. But the progress is a sum over them
    of terms that AdamW makes similar, so a random sample of the terms estimates it well."""
    sizes = [part.numel() for part in parts]
    if sum(sizes) <= SKETCH:
        return torch.cat([part.flatten() for part in parts])
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(sum(sizes), (SKETCH,), generator=generator).sort().values
    ends = torch.tensor(sizes).cumsum(0)
    counts = torch.searchsorted(index, ends).diff(prepend=torch.tensor([0])).tolist()
    return torch.cat([part.flatten()[(here - end + size).to(part.device)] for part, here, end, size
                      in zip(parts, index.split(counts), ends.tolist(), sizes)])


# ---- 2. Sums over updates ----

@dataclasses.dataclass
class Sums:
    """What the estimates need of U updates; each has W ways to weight its tokens."""
    along: torch.Tensor   # (U, U, W): [k, j, a] is <S_a of update k, S_0 of update j>
    square: torch.Tensor  # (U, U, W): <S_a of update k, S_a of update j>
    scaled: torch.Tensor  # (U, U, 2): <S_a of update k / rms S_a, S_0 of update j>
    own_along: torch.Tensor   # (U, W): the sum over the groups of <g_a, g_0>
    own_square: torch.Tensor  # (U, W): of <g_a, g_a>
    count: torch.Tensor   # (U,): groups in the update
    tokens: torch.Tensor  # (4,): tokens of each class, in groups with unequal rewards


def measure(policy, groups, cfg):
    """Compute the gradients of all groups. Group i belongs to update i modulo U. Returns Sums."""
    U = round(len(groups) / groups_per_update(cfg))
    W = 2 + len(CLASSES)
    S, picked = (torch.zeros(U, ways, length_of(policy)) for ways in (W, 2))
    own_along, own_square = torch.zeros(2, U, W, dtype=torch.float64)
    count, tokens = torch.zeros(U, dtype=torch.float64), torch.zeros(len(CLASSES))
    for i, group in enumerate(tqdm(groups, "gradients", mininterval=0.5, disable=None)):
        k = i % U
        count[k] += 1
        if any(c.advantage for c in group):  # else the gradient is 0
            g, coordinates, tokens_of_group = group_gradients(policy, group, cfg)
            S[k] += g
            picked[k] += coordinates
            own_along[k] += g @ g[0]
            own_square[k] += (g * g).sum(1)
            tokens += tokens_of_group
    along = torch.einsum("kad,jd->kja", S, S[:, 0]).double()
    square = torch.einsum("kad,jad->kja", S, S).double()
    return Sums(along, square, multiply_steps(picked), own_along, own_square, count, tokens)


def multiply_steps(picked):
    """Return Sums.scaled from coordinates of the updates, (U, 2, size), as `pick` returns them."""
    rms = picked.square().mean(0).sqrt().clamp(min=1e-30)  # it is 0 where all gradients are
    return torch.einsum("kad,jd->kja", picked / rms, picked[:, 0]).double()


def groups_per_update(cfg):
    """Return how many groups' worth of completions an update has, 1 if it has less."""
    return max(1, cfg.prompts / cfg.updates)


# ---- 3. Estimates ----

def estimate(sums, kept):
    """Return {name: value} from the updates whose indices are `kept`."""
    along, square = sums.along[kept][:, kept], sums.square[kept][:, kept]
    K = sums.count[kept].sum()
    # The product of two sums has K products of a group with itself, which are left out.
    M = (along.sum((0, 1)) - sums.own_along[kept].sum(0)) / (K * (K - 1))     # <mu_a, mu>
    own = sums.own_square[kept].sum(0)
    lengths = (square.sum((0, 1)) - own) / (K * (K - 1))                      # |mu_a|^2
    V = own / K - lengths                                                     # tr Sigma_a

    # The mean of cos(S_a, mu), times the length of mu, which both ways share. The mu of update k
    # is the mean of the other updates.
    norms = square.diagonal().T.sqrt()[:, None]  # (U, 1, W)
    cosines = (along / norms).nan_to_num()  # an update without a gradient points nowhere
    others = ~torch.eye(len(kept), dtype=torch.bool)
    cosine = cosines[others].mean(0)
    progress = sums.scaled[kept][:, kept][others].mean(0)

    values = {"alignment": cosine[1] / cosine[0], "progress": progress[1] / progress[0],
              "length": M[0]}
    for i, name in enumerate(CLASSES, start=2):
        values[f"mean: {name}"] = M[i] / M[0]
        values[f"variance: {name}"] = V[i] / V[0]
    return values


def describe(sums):
    """Return {name: (value, standard error)}, by a jackknife: estimate without each update."""
    U = len(sums.count)
    index = torch.arange(U)
    without = [estimate(sums, index[index != k]) for k in range(U)]
    numbers = {}
    for name, value in estimate(sums, index).items():
        values = torch.stack([values[name] for values in without])
        error = ((values - values.mean()) ** 2).sum().mul((U - 1) / U).sqrt()
        numbers[name] = float(value), float(error)
    return numbers


def interpret(numbers, groups, name):
    """Say in one sentence what the progress ratio means for training now."""
    value, error = numbers["progress"]
    length, length_error = numbers["length"]
    if not length > 2 * length_error:  # also if it is nan
        return ("too few groups to tell, because the mean gradient is within two standard errors "
                f"of 0; try --groups {4 * groups}")
    if not abs(value - 1) > 2 * error:
        return (f"no difference of {name} from GRPO detected, because the progress ratio is within "
                "two standard errors of 1; more --groups can detect smaller ones")
    percent = f"{100 * abs(value - 1):.1f}%"
    far, rate = ("further", "higher") if value > 1 else ("less far", "lower")
    return (f"an AdamW step of {name} goes {percent} {far} along the mean gradient than one of "
            f"GRPO, like a learning rate that is {percent} {rate}")


def report(numbers, tokens, cfg, groups, sketched):
    """Return the lines to print."""
    text = {name: f"{value:.3f} +- {error:.3f}" for name, (value, error) in numbers.items()}
    lines = [f"{groups} groups; {tokens.sum():,.0f} tokens in those with unequal rewards",
             f"GRPO's gradient, shares of: {'tokens':>12}{'its mean':>17}{'its variance':>17}"]
    for name, count in zip(CLASSES, tokens):
        lines.append(f"    {name:<24}{count / tokens.sum():>12.1%}{text[f'mean: {name}']:>17}"
                     f"{text[f'variance: {name}']:>17}")
    n = f"an update of {groups_per_update(cfg):g} groups"
    lines += [f"gradient alignment of {n}: {text['alignment']} (cosine with the mean gradient)",
              f"progress ratio of {n}: {text['progress']} (of its AdamW step; GRPO has 1 in both)"]
    if sketched:
        lines.append(f"    (from random sketches and coordinates: {SKETCH:,} numbers of each)")
    means = interpret(numbers, groups, "GRPO-SG" if cfg.shaping == "sg" else "AR-Lopti")
    return [*lines, f"what it means: {means}. This changes in training: look again at a checkpoint"]


# ---- 4. The command line ----

def read_arguments(argv):
    """Return (--groups, the Config of the other flags)."""
    parser = argparse.ArgumentParser(
        prog="python -m support.look", usage="%(prog)s [--groups N] [--flag value ...]",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The other flags: python grpo_sg.py --help", allow_abbrev=False)
    parser.add_argument("--groups", type=int, metavar="N", help="how many groups to sample")
    args, flags = parser.parse_known_args(argv)
    cfg = grpo_sg.read_settings(flags)
    if cfg.shaping == "none":
        sys.exit("error: --shaping none is GRPO itself: give --shaping sg or ar")
    n = groups_per_update(cfg)
    least = max(64, math.ceil(UPDATES * n))
    count = max(256, 2 * least) if args.groups is None else args.groups
    if count < least:
        sys.exit(f"error: --groups {count}: give {least} or more, at least {UPDATES} updates of "
                 f"{n:g} groups")
    return count, dataclasses.replace(cfg, beta=0.0)


def look(policy, task, cfg, count):
    """Return the lines to print. Raises SystemExit if all groups are zero-variance."""
    groups = sample_groups(policy, task, cfg, count)
    if not any(c.advantage for group in groups for c in group):
        sys.exit("error: every group has equal rewards, so there is no gradient: raise --groups, "
                 "or use another task or model")
    sums = measure(policy, groups, cfg)
    sketched = policy.model.num_parameters(only_trainable=True) > SKETCH
    return report(describe(sums), sums.tokens, cfg, count, sketched)


def main(argv=None):
    with grpo_sg.errors_in_one_line():
        count, cfg = read_arguments(argv)
        policy, task = grpo_sg.load(cfg)
        print(f"sampling {cfg.group_size} completions for each of {count} problems", flush=True)
        print("\n".join(look(policy, task, cfg, count)))


if __name__ == "__main__":
    main()
