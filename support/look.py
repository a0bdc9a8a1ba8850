"""Measure, before you train, what learning rate a token weight is like on your model and task.

    python -m support.look                                    the tiny model: a minute
    python -m support.look --weight my_weight.py              a weight of your own
    python -m support.look --model NAME --task my_task.py     takes every flag of grpo_sg.py

my_weight.py has a function of the sampled tokens' log-probabilities, a tensor (B, T). It returns
weights of that shape, which are not negative (those of a prompt's tokens are ignored):

    def weight(logps):
        return logps.exp()  # pi, as in dynamic fine-tuning

Without --weight, the command measures that of --shaping. It samples --rollouts rollouts (more make
the standard errors smaller), splits each into minibatches as training does, and trains nothing. Let
g be the gradient of a minibatch, g_w the same with the weight, and mu the mean of g over the other
rollouts. AdamW divides each parameter's step by the root mean square (rms) of its gradients, so
this is how far a step goes along the mean gradient, divided by how far one of GRPO goes:

    progress ratio = mean of sum(g_w mu / rms g_w) / mean of sum(g mu / rms g)

1.03 is like a learning rate that is 3% higher, and a constant weight has 1. The ratio changes
during training. A table says which tokens carry the mean of g, and which its noise: it splits g by
pi and by the sign of A into classes, whose gradients have the mean mu_c and the covariance Sigma_c.
Their shares are <mu_c, mu> / |mu|^2 of the mean, and tr Sigma_c / tr Sigma of the variance (these
need not add up to 1, because noises can cancel).

All estimates use products of different rollouts, so noise adds no bias. Standard errors are from a
jackknife over the rollouts. Gradients are those at r = 1, before clipping, without momentum or KL.
"""
import argparse
import functools
import math
import os
import random
from typing import NamedTuple

import grpo_sg
import tasks
import torch
from tqdm import tqdm

SKETCH = 2 ** 18  # numbers that are kept of a longer gradient, twice: 1 MiB each
RARE = 1/3        # below it, pi makes a low-probability token
CLASSES = "A > 0, pi < 1/3", "A > 0, pi > 1/3", "A < 0, pi < 1/3", "A < 0, pi > 1/3"


# ---- 1. The gradients of a minibatch ----

def sample_minibatches(policy, task, cfg, seed):
    """Sample a rollout, and split it into a list of minibatches as grpo_sg.learn does."""
    problems = random.Random(seed).sample(task.train, min(cfg.prompts, len(task.train)))
    drawn = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                            temperature=cfg.temperature, seed=seed)
    grpo_sg.set_advantages(drawn, cfg.group_size)
    shuffled = random.Random(seed).sample(drawn, len(drawn))
    return [shuffled[i::cfg.updates] for i in range(cfg.updates)]


def apply_weight(weight, logps, mask):
    """Return weight(logps), (B, T), with 0 outside of the mask. Raises tasks.UserError if these are
    no weights."""
    w = weight(logps)
    shaped = torch.is_tensor(w) and w.shape == logps.shape
    if not shaped or not ((0 <= w[mask]) & (w[mask] < math.inf)).all():  # also if one is nan
        got = f"{w[mask].min():.4g} to {w[mask].max():.4g}" if shaped else f"{w!r:.60}"
        raise tasks.UserError("weight(logps) must return finite numbers of at least 0 in a tensor "
                              f"of the shape of logps, {tuple(logps.shape)}, not {got}")
    return w.detach().float().masked_fill(~mask, 0.0)


def split_tokens(logps, A):
    """Return which tokens are in each of CLASSES, a list of (B, T) bool. A: (B, T)."""
    rare = logps.exp() < RARE
    return [(A > 0) & rare, (A > 0) & ~rare, (A < 0) & rare, (A < 0) & ~rare]


def find_gradients(policy, minibatch, cfg, weight):
    """Compute the gradients of what a minibatch maximizes.

    Returns:
        (2, size) float32: coordinates of GRPO's gradient and of that with the weight, see `pick`;
        (5, size): GRPO's gradient and that of each of CLASSES, as `shorten` returns them;
        (4,): the number of tokens in each class.
    """
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    size = min(sum(p.numel() for p in parameters), SKETCH)
    picked, parts = torch.zeros(2, size), torch.zeros(1 + len(CLASSES), size)
    tokens = torch.zeros(len(CLASSES))
    for batch in grpo_sg.micro_batches(minibatch, cfg, policy.model.device):
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        A = batch.advantages[:, None] * batch.mask
        factors = split_tokens(logps.detach(), A)
        tokens += torch.tensor([float(here.sum()) for here in factors])
        factors.append(apply_weight(weight, logps.detach(), batch.mask))
        for i, factor in enumerate(factors):
            scale = A * factor / sum(sum(c.mask) for c in minibatch)
            g = torch.autograd.grad(logps, parameters, scale, retain_graph=True,
                                    allow_unused=True, materialize_grads=True)
            picked[i // len(CLASSES)] += pick(g).cpu()
            if i < len(CLASSES):
                parts[1 + i] += shorten(g).cpu()
            del g  # or it would be kept next to the following gradient
    parts[0] = parts[1:].sum(0)
    return picked, parts, tokens


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
    return torch.cat([part.flatten()[(here - end).to(part.device)]  # counted from the part's end
                      for part, here, end in zip(parts, index.split(counts), ends.tolist())])


# ---- 2. Estimates ----

class Sums(NamedTuple):
    """What is kept of R rollouts. Gradients are means over the minibatches of a rollout."""
    picked: torch.Tensor   # (R, 2, size): the gradient without and with the weight
    rms: torch.Tensor      # (2, size), over all minibatches
    parts: torch.Tensor    # (R, 5, size): GRPO's gradient and that of each of CLASSES
    squares: torch.Tensor  # (R, 5): the mean of their squared lengths in a minibatch
    tokens: torch.Tensor   # (4,), of each class


def measure(policy, rollouts, cfg, weight):
    """Compute the gradients of rollouts, an iterable of lists of minibatches. Returns Sums."""
    rows, moments = [], 0
    for minibatches in rollouts:
        gradients = [find_gradients(policy, minibatch, cfg, weight) for minibatch in minibatches]
        picked, parts, tokens = map(torch.stack, zip(*gradients))
        moments += picked.square().mean(0)
        rows.append((picked.mean(0), parts.mean(0), parts.square().sum(2).mean(0), tokens.sum(0)))
    picked, parts, squares, tokens = map(torch.stack, zip(*rows))
    return Sums(picked, (moments / len(rows)).sqrt(), parts, squares, tokens.sum(0))


def leave_out(values):
    """Return the mean of values, (R, ...), over rollouts, and that without each rollout, as
    (1 + R, ...)."""
    total = values.sum(0, keepdim=True)
    return torch.cat([total / len(values), (total - values) / (len(values) - 1)])


def average_pairs(x, y):
    """Return the mean of <x[k], y[j]> over pairs of different rollouts, of all R and then without
    each, (1 + R, ways). x and y: (R, ways, size)."""
    products = torch.einsum("kad,jad->kja", x, y.expand_as(x)).double()
    R = len(products)
    pairs = products.masked_fill(torch.eye(R, dtype=torch.bool)[..., None], 0.0)
    total = pairs.sum((0, 1), keepdim=True)[0]
    without = total - pairs.sum(0) - pairs.sum(1)
    return torch.cat([total / (R * (R - 1)), without / ((R - 1) * (R - 2))])


def estimate(sums):
    """Return {name: (value, standard error)}, by a jackknife: estimate without each rollout."""
    rms = sums.rms.clamp(min=1e-30)  # it is 0 where all gradients are
    progress = average_pairs(sums.picked / rms, sums.picked[:, :1])           # (1 + R, 2)
    mean = average_pairs(sums.parts, sums.parts[:, :1])                       # <mu_a, mu>
    variance = leave_out(sums.squares) - average_pairs(sums.parts, sums.parts)  # tr Sigma_a
    values = {"GRPO's progress": progress[:, 0], "ratio": progress[:, 1] / progress[:, 0]}
    for i, name in enumerate(CLASSES, start=1):
        values[f"mean: {name}"] = mean[:, i] / mean[:, 0]
        values[f"variance: {name}"] = variance[:, i] / variance[:, 0]
    numbers = {}
    for name, (value, *without) in values.items():
        without = torch.stack(without)
        error = ((without - without.mean()) ** 2).sum().mul(1 - 1 / len(without)).sqrt()
        numbers[name] = float(value), float(error)
    return numbers


def interpret(numbers, rollouts):
    """Say what the ratio means for training now."""
    ratio, error = numbers["ratio"]
    progress, progress_error = numbers["GRPO's progress"]
    if not progress > 2 * progress_error:  # also if it is nan
        return ("too few rollouts to tell, because the progress of GRPO itself is within two "
                f"standard errors of 0; try --rollouts {4 * rollouts}")
    percent = f"{100 * abs(ratio - 1):.1f}%"
    if percent == "0.0%" or not abs(ratio - 1) > 2 * error:
        return ("no difference from GRPO can be told, because the ratio is within two standard "
                "errors of 1; more --rollouts make them smaller")
    direction = "higher" if ratio > 1 else "lower"
    return f"like a learning rate {percent} {direction}, for the first steps"


def report(numbers, sums, name):
    """Return the lines to print."""
    tokens = sums.tokens
    text = {key: f"{value:.3f} +- {error:.3f}" for key, (value, error) in numbers.items()}
    lines = [f"{tokens.sum():,.0f} tokens in groups with unequal rewards",
             f"GRPO's gradient, shares of: {'tokens':>12}{'its mean':>17}{'its variance':>17}"]
    for label, count in zip(CLASSES, tokens):
        lines.append(f"    {label:<24}{count / tokens.sum():>12.1%}{text[f'mean: {label}']:>17}"
                     f"{text[f'variance: {label}']:>17}")
    if sums.rms.shape[1] == SKETCH:
        lines.append(f"    (from random sketches and coordinates: {SKETCH:,} numbers of each)")
    lines.append(f"progress ratio of {name}: {text['ratio']}")
    return [*lines, f"{name}: {interpret(numbers, len(sums.picked))}"]


# ---- 3. The command line ----

def load_weight(path):
    """Return the function `weight` of a Python file."""
    module = tasks.run_file(os.path.abspath(path)) if os.path.isfile(path) else None
    if not callable(getattr(module, "weight", None)):
        raise tasks.UserError(f"--weight {path} must be a Python file with weight(logps)")
    return module.weight


def read_arguments(argv):
    """Return (--weight, --rollouts, the Config of the other flags)."""
    parser = argparse.ArgumentParser(
        prog="python -m support.look", description=__doc__, allow_abbrev=False,
        usage="%(prog)s [--weight FILE] [--rollouts N] [--flag value ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The other flags: python grpo_sg.py --help")
    parser.add_argument("--weight", metavar="FILE", help="a Python file with weight(logps)")
    parser.add_argument("--rollouts", type=int, default=16, metavar="N", help="at least 4")
    args, flags = parser.parse_known_args(argv)
    cfg = grpo_sg.read_settings(flags)
    if cfg.shaping == "none" and not args.weight:
        raise tasks.UserError("--shaping none is GRPO itself: give --weight, or --shaping sg or ar")
    if args.rollouts < 4:
        raise tasks.UserError(f"--rollouts {args.rollouts}: give 4 or more")
    return args.weight, args.rollouts, cfg


def main(argv=None):
    with grpo_sg.errors_in_one_line():  # a weight's own errors show their lines
        path, count, cfg = read_arguments(argv)
        weight = load_weight(path) if path else functools.partial(grpo_sg.weigh, cfg=cfg)
        policy, task = grpo_sg.load(cfg)
        name = path or {"sg": "GRPO-SG", "ar": "AR-Lopti"}[cfg.shaping]
        print(f"{count} rollouts of {cfg.prompts} groups, each with {cfg.updates} updates")
        first = cfg.seed * 1_000_003 + 1000  # no early step of a run has this seed
        seeds = tqdm(range(first, first + count), "rollouts", mininterval=0.5, disable=None)
        rollouts = (sample_minibatches(policy, task, cfg, seed) for seed in seeds)
        sums = measure(policy, rollouts, cfg, weight)
        print("\n".join(report(estimate(sums), sums, name)))


if __name__ == "__main__":
    main()
