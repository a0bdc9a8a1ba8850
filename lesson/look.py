"""Look before you train: does the weight make updates point better, on your model and your
task, and where is the signal?

    python -m lesson.look                       the pretrained tiny model: 20 seconds; its
                                                efficiency is 1.085 +- 0.014
    python -m lesson.look --model Qwen/Qwen2.5-0.5B --task math
                                                takes every flag of grpo_sg.py
    python -m lesson.look my_task.py            a script that calls grpo_sg.main: what it would
                                                train; flags here replace its settings
    python -m lesson.look --groups 1024         more groups, smaller standard errors (default: 16
                                                updates' worth, at least 256)
    python -m lesson.look --model runs/NAME/checkpoint
                                                look again later: the answer changes in training

The command samples --groups groups, computes the gradient of each, and trains nothing. Let g
be the gradient of one group without the weight, with expectation mu and covariance Sigma, and
g_w the same with it. An update on n groups follows S = the sum of n gradients, and to first
order the reward rises with how well S points along mu. The command prints

    efficiency                mean cos(S_w, mu) / mean cos(S, mu): above 1, updates point better
                              with w
    signal kept               <mu_w, mu> / |mu|^2
    noise kept                sqrt(tr Sigma_w / tr Sigma)
    relative signal-to-noise  an approximation of the efficiency, from
                              cos(S_w, mu) = <mu_w, mu> / (|mu| sqrt(|mu_w|^2 + tr Sigma_w / n))

The approximation divides a mean by a root mean square, so rare, very large gradients dominate it.
For the efficiency the groups are divided into updates of n groups, and mu is estimated from the
groups outside of the update (cross-fitting). The tokens are also divided into classes, by pi and
the sign of A; a class with mean gradient mu_c and covariance Sigma_c has

    share of the signal   <mu_c, mu> / |mu|^2: these add up to 1
    share of the noise    tr Sigma_c / tr Sigma: these need not, because noises can cancel

Everything is estimated from products of different groups, so noise adds no bias; standard
errors are from a jackknife over blocks of groups.

Gradients are those at r = 1, before gradient clipping and AdamW, and leave out the KL, whose
gradient is 0 at the reference. lesson/README.md explains the mathematics, experiments/README.md
has the measurements.
"""
import argparse
import dataclasses
import functools
import math
import os
import random
import runpy
import sys
from unittest import mock

import torch
from tqdm import tqdm

# A script sees only its own folder.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import grpo_sg
from support import cli, program, tiny
from tasks import UserError

NAMES = {"sg": "GRPO-SG", "ar": "AR-Lopti's weight"}
BLOCKS = 32       # of groups, for the jackknife: at least
SKETCH = 2 ** 18  # numbers that are kept of a longer gradient: 1 MiB
EDGES = (1/3,)    # of pi, between classes of tokens
CLASSES = "A > 0, pi < 1/3", "A > 0, pi > 1/3", "A < 0, pi < 1/3", "A < 0, pi > 1/3"


# ---- 1. The gradient of one group ----

def draw_groups(policy, task, cfg, count, seed):
    """Sample `count` groups and set their advantages. Draws problems with replacement, so groups
    are independent."""
    problems = random.Random(seed).choices(task.train, k=count)
    completions = grpo_sg.rollout(policy, task, problems, cfg, n=cfg.group_size,
                                  temperature=cfg.temperature, seed=seed)
    grpo_sg.set_advantages(completions, cfg.group_size)
    return grpo_sg.split_groups(completions, cfg.group_size)


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


def split_by_class(A, logps, edges):
    """Return A on each class of tokens, 0 elsewhere: first A > 0, then A < 0, each by pi."""
    pi, found = logps.exp(), []
    for sign in (1, -1):
        for low, high in zip((0, *edges), (*edges, math.inf)):
            found.append(A * ((A * sign > 0) & (pi >= low) & (pi < high)))
    return found


def group_gradients(policy, group, cfg, make_coefficients):
    """Return the gradient of sum_t c_t log pi_t over the group's tokens, a float32 row for each c.

    make_coefficients(logps, batch, completions) returns a list of tensors c, (B, T), which
    share one forward pass. Gradients of more than SKETCH numbers are sketched.
    """
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    policy.model.train(cfg.gradient_checkpointing)
    rows = None
    for part in split(group, cfg):
        batch = grpo_sg.make_batch(part, policy.model.device)
        logps = grpo_sg.compute_logps(policy.model, batch, cfg)
        found = []
        for c in make_coefficients(logps.detach(), batch, part):
            if not c.any():  # no token of this class
                found.append(torch.zeros(length_of(policy), device=logps.device))
                continue
            parts = torch.autograd.grad(logps, parameters, c.to(logps.dtype), retain_graph=True,
                                        allow_unused=True, materialize_grads=True)
            found.append(shorten(parts))
            del parts  # or it would be kept next to the following gradient
        found = torch.stack(found)
        rows = found if rows is None else rows + found
    return rows


def length_of(policy):
    """Return how many numbers are kept of a gradient."""
    size = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    return min(size, SKETCH)


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


# ---- 2. Means and covariances of groups ----

class Sums:
    """Sum the gradients g_a of groups, one for each way a of weighting the tokens, in blocks:
    group i belongs to block i modulo their number."""

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

    def products(self):
        """Return (blocks, blocks, ways, ways): the inner products of the blocks' sums."""
        blocks, ways, _ = self.total.shape
        rows = self.total.flatten(0, 1)
        return (rows @ rows.T).double().view(blocks, ways, blocks, ways).transpose(1, 2)

    def moments(self, products=None):
        """Return [(M, V)] of all groups, then without each block: unbiased estimates of
        M[a, b] = <mu_a, mu_b> and V[a, b] = tr Cov(g_a, g_b)."""
        products = self.products() if products is None else products
        count, own = self.count.sum(), self.own.sum(0)
        found = [two_moments(count, products.sum((0, 1)), own)]
        for i, n in enumerate(self.count):
            found.append(two_moments(count - n, leave_out(products, i), own - self.own[i]))
        return found


def leave_out(products, i):
    """Return the sum of the products of all blocks but one."""
    return products.sum((0, 1)) - products[i].sum(0) - products[:, i].sum(0) + products[i, i]


def two_moments(K, squares, own):
    """Return (M, V) of K groups, from the products of their sums and of each with itself."""
    # The product of two sums has K products of a group with itself, which are left out.
    M = (squares - own) / (K * (K - 1))
    return M, own / K - M


def mean_cosines(products, updates):
    """Return [(ways,)] of all updates, then without each: the mean of cos(S_a, mu), times the
    length of the estimate of mu from the other updates' groups, which all ways share.

    products: of the blocks of a Sums; block i belongs to update i modulo `updates`."""
    for dim in (0, 1):
        products = products.unflatten(dim, (-1, updates)).sum(dim)
    lengths = products.diagonal().diagonal().sqrt()  # (updates, ways)
    # An update without a learning signal points nowhere.
    along = (products[..., 0] / lengths[:, None]).nan_to_num()  # (updates, updates, ways)
    along[range(updates), range(updates)] = 0.0  # the other updates
    parts = [leave_out(along, i) / ((updates - 1) * (updates - 2)) for i in range(updates)]
    return [along.sum((0, 1)) / (updates * (updates - 1)), *parts]


def jackknife(whole, *parts):
    """Return {name: (value, standard error)} from dicts of numbers: of all groups, then without
    each block."""
    B = len(parts)
    found = {}
    for name, value in whole.items():
        values = torch.tensor([part[name] for part in parts], dtype=torch.float64)
        spread = ((values - values.mean()) ** 2).sum() * (B - 1) / B
        found[name] = float(value), float(spread.sqrt())
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


def signal_to_noise(M, V, w, n, base=0, true=0):
    """Return the relative signal-to-noise: the formula for cos(S_w, mu) / cos(S_base, mu), where
    S is a sum of n groups."""
    length = root(ratio(M[w, w] + V[w, w] / n, M[base, base] + V[base, base] / n))
    return ratio(signal_kept(M, w, base, true), length)


# ---- 4. The look ----

def weigh_unlikely(logps, cfg):
    """Return 1 for tokens with pi < 1/3, 0 for others."""
    return (logps.detach() < math.log(1/3)).float()


def groups_per_update(cfg):
    """Return how many groups' worth of completions an update has, 1 if it has less."""
    return max(1, cfg.prompts / cfg.updates)


def make_coefficients(cfg, tokens, logps, batch, completions):
    """Return the coefficients (B, T) of the weight and of each of CLASSES, and count tokens."""
    A = advantages_of(batch, cfg)
    classes = split_by_class(A, logps, EDGES)
    for i, each in enumerate(classes):
        tokens[i] += float((each / batch.advantages[:, None]).nan_to_num().sum())
    return [grpo_sg.weigh(logps, cfg) * A, *classes]


def measure(policy, groups, cfg):
    """Compute the gradients of all groups. Returns (Sums for GRPO, the weight, and each of
    CLASSES; the number of updates that the groups make; the number of tokens of each class)."""
    updates = round(len(groups) / groups_per_update(cfg))
    sums = Sums(2 + len(CLASSES), length_of(policy), updates * math.ceil(BLOCKS / updates))
    tokens = torch.zeros(len(CLASSES))
    coefficients = functools.partial(make_coefficients, cfg, tokens)
    for group in tqdm(groups, "gradients", mininterval=0.5):
        if any(c.advantage for c in group):
            rows = group_gradients(policy, group, cfg, coefficients).cpu()
            sums.add(torch.cat([rows[1:].sum(0, keepdim=True), rows]))
        else:
            sums.add()
    return sums, updates, tokens


def describe(sums, updates, cfg):
    """Return the quantities to print with standard errors, {name: (value, error)}."""
    products, n = sums.products(), groups_per_update(cfg)
    found = []
    for M, V in sums.moments(products):
        each = {"signal": signal_kept(M, 1), "noise": noise_kept(V, 1),
                "signal-to-noise": signal_to_noise(M, V, 1, n), "length": M[0, 0]}
        for i, name in enumerate(CLASSES, start=2):
            each[f"signal: {name}"] = signal_kept(M, i)
            each[f"noise: {name}"] = ratio(V[i, i], V[0, 0])
        found.append(each)
    cosines = [{"efficiency": ratio(*reversed(each[:2]))}
               for each in mean_cosines(products, updates)]
    return {**jackknife(*found), **jackknife(*cosines)}


def expect(found, groups):
    """Say in one sentence what the efficiency means for training now."""
    value, error = found["efficiency"]
    length, length_error = found["length"]
    if not length > 2 * length_error:  # also if it is nan
        return ("too few groups to tell: the mean gradient is within two standard errors of 0; "
                f"try --groups {4 * groups}")
    if not abs(value - 1) > 2 * error:
        return ("no difference detected: the efficiency is within two standard errors of 1; "
                "more --groups can detect smaller ones")
    better = "better" if value > 1 else "worse"
    return f"at this point of training, updates point {better} with the weight than without"


def tell(found, tokens, cfg, groups, sketched=False):
    """Return the lines to print."""
    counted = "tokens" if cfg.loss_agg_mode == "token-mean" else "completions"
    name, n = NAMES.get(cfg.shaping, cfg.shaping), groups_per_update(cfg)

    def shown(key):
        return "{:.3f} +- {:.3f}".format(*found[key])
    lines = [
        f"{groups} groups; {tokens.sum():,.0f} {counted} in those with a learning signal",
        f"shares for GRPO:    {counted:>12}{'signal':>17}{'noise':>17}"]
    for each, count in zip(CLASSES, tokens):
        lines.append(f"    {each:<16}{count / tokens.sum():>12.1%}{shown(f'signal: {each}'):>17}"
                     f"{shown(f'noise: {each}'):>17}")
    lines += [
        f"an update of {n:g} groups, {name} relative to GRPO (estimates +- standard errors):",
        f"    signal kept:              {shown('signal')}",
        f"    noise kept:               {shown('noise')}",
        f"    relative signal-to-noise: {shown('signal-to-noise')} (approximates efficiency)",
        f"    efficiency:               {shown('efficiency')} (above 1: updates point better with "
        "the weight)"]
    if sketched:
        lines.append(f"    (from random sketches: {SKETCH:,} numbers of each gradient)")
    return [*lines, f"what it means: {expect(found, groups)}. This changes in training, so look "
                    "again at a checkpoint. We have not tested whether choosing the weight "
                    "by this number improves a run"]


# ---- 5. The command line ----

class Called(BaseException):  # no script catches it by `except Exception`
    """Signal that a script has called grpo_sg.main."""


def stop_at_main(argv=None, **settings):
    raise Called(argv, settings)


def read_script(path):
    """Run a script up to its first call of grpo_sg.main, as `python SCRIPT` would. Returns the
    settings of this call as a dict."""
    if not os.path.isfile(path):
        raise UserError(f"there is no script {path}")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))  # as Python does
    with mock.patch.object(cli, "main", stop_at_main), mock.patch.object(sys, "argv", [path]):
        try:
            runpy.run_path(path, run_name="__main__")
        except Called as call:
            argv, settings = call.args
            settings |= cli.read_flags(argv)
            if not settings.get("resume"):
                settings.pop("out", None)  # nothing is written, so this folder may exist
            return settings
        except SystemExit:  # a script of several commands, which needs a flag to get there
            pass
    raise UserError(f"{path} does not call grpo_sg.main: end it with "
                    'grpo_sg.main(task="mine"), where tasks.TASKS["mine"] is your task')


def read_arguments(argv):
    """Return (--groups, the Config of the other flags). A first argument that ends in .py is a
    script with a task."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--groups", type=int)
    known, rest = parser.parse_known_args(argv)
    settings = read_script(rest.pop(0)) if rest and rest[0].endswith(".py") else {}
    cfg = cli.parse(rest, **settings)
    n = groups_per_update(cfg)
    least = max(64, math.ceil(8 * n))
    count = max(256, 2 * least) if known.groups is None else known.groups
    if count < least:
        raise UserError(f"--groups {count}: give {least} or more, at least eight updates "
                                f"of {n:g} groups")
    return count, cfg


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
    sums, updates, tokens = measure(policy, groups, cfg)
    sketched = policy.model.num_parameters(only_trainable=True) > SKETCH
    return tell(describe(sums, updates, cfg), tokens, cfg, count, sketched)


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
