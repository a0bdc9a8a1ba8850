"""When does the weight help? Predict first, then watch the sign flip.

    python -m lesson.when        fifteen seconds on one core; it prints results/when.txt

A toy policy writes 21 tokens with a vocabulary of 64 words. The first 20 tokens are filler
and do not matter. The last one is a decision, and one word is right. Eight parameters
theta serve all tokens, so what the filler does to theta also moves the decision:

    logits[t] = base[t] + features[t] @ theta          theta = 0 at the start

Two settings differ only in how sure the policy is at the start:

    slips         filler: 64 words with pi = 1/64 each
                  decision: right word 0.35, one wrong word 0.60
    discoveries   filler: two words with pi = 0.49 each
                  decision: right word 0.05, 63 wrong words with 0.015 each

The filler is noise in both settings; w is 1 for unlikely tokens and 1.4 for likely ones.
Another processor can change the last digit of an accuracy.
"""
import os
import sys

# The project's folder: a script sees only its own.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == "__main__":
    from support import program
    program.end_on_ctrl_c()

import argparse
import math

import torch

from grpo_sg import group_advantages, grpo_sg_loss, token_weights

T, V, D, G = 21, 64, 8, 8  # tokens, words, parameters, completions of a group
RIGHT, WRONG = 0, 1  # two words of the decision
ARMS = ["GRPO", "GRPO-SG", "damping 10"]
RATES = [0.1, 0.3, 1.0]
TUNING_SEEDS, SEEDS = range(20), range(1000, 1100)
STEPS = 100
torch.set_num_threads(1)  # more threads do not help with tensors this small

QUESTION = """\
Two toy settings, three methods: GRPO, GRPO-SG, and "damping 10", which is GRPO-SG's weight
with 10 instead of 1.4, divided by its mean.

    slips         the filler is unlikely (weight 1), the decision likely (weight 1.4)
    discoveries   the filler is likely (weight 1.4), the decision unlikely (weight 1)

Predict, before you read on: in which setting does the weight help, in which does it hurt?
And what happens to its effect when an update averages 64 groups instead of one?
"""

LEGEND = """\
signal kept, noise kept: relative to GRPO's, from the mean and std of a group's gradient
relative signal-to-noise: about how well an update points along the true gradient, over GRPO's
mean: accuracy averaged over all steps and 100 seeds, one group in each update; the rate is each
method's best of three on 20 other seeds
"""


# ---- The toy ----

def start_of(setting):
    """Return (T, V): log pi of each word at each token, before training."""
    pi = torch.full((T, V), 1 / V)
    if setting == "slips":
        pi[-1] = 0.05 / (V - 2)
        pi[-1, RIGHT], pi[-1, WRONG] = 0.35, 0.60
    else:
        pi[:-1] = 0.02 / (V - 2)
        pi[:-1, :2] = 0.49
        pi[-1] = 0.95 / (V - 1)
        pi[-1, RIGHT] = 0.05
    return pi.log()


def features_of(seed):
    """Return random features (T, V, D): each seed is a different toy."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(T, V, D, generator=generator) / math.sqrt(D)


def weights_of(arm, logps):
    """Return the weight of each word: logps and result are (..., T, V)."""
    if arm == "GRPO":
        return torch.ones_like(logps)
    w = token_weights(logps)
    if arm == "damping 10":
        w = w ** (math.log(10) / math.log(1.4))  # 1.4 becomes 10, 1 stays 1
        mean = (logps.exp() * w).sum(-1).mean(-1)  # of a token that the policy samples
        w = w / mean[..., None, None]
    return w


# ---- Signal and noise at the start, exactly ----

def signal_and_noise(setting, arm, seed):
    """Return mu (D,) and the trace of Sigma: the mean and total variance of a group's gradient.

    Nothing is sampled. Sums over k, a group's number of right completions. Given k,
    filler words are independent of the rewards. Their mean cancels because a group's
    advantages sum to 0, and their variance remains: filler is pure noise.
    """
    logps, features = start_of(setting).double(), features_of(seed).double()
    pi, w = logps.exp()[..., None], weights_of(arm, logps).double()[..., None]
    gradients = w * (features - (pi * features).sum(1, keepdim=True))  # w grad log pi
    means = (pi * gradients).sum(1)  # (T, D)
    variances = (pi * gradients ** 2).sum((1, 2)) - (means ** 2).sum(1)  # (T,)
    filler = variances[:-1].sum()

    right, p = gradients[-1, RIGHT], pi[-1, RIGHT].item()
    others = pi[-1] / (1 - p)
    others[RIGHT] = 0  # pi of the wrong words, given that the word is wrong
    wrong = (others * gradients[-1]).sum(0)
    wrong_variance = (others * gradients[-1] ** 2).sum() - wrong @ wrong

    mu, square = torch.zeros(D).double(), 0.0
    for k in range(1, G):
        chance = math.comb(G, k) * p ** k * (1 - p) ** (G - k)
        A = group_advantages(torch.tensor([[1.0] * k + [0.0] * (G - k)]))[0].double()
        decision = k * A[0] * right + (G - k) * A[-1] * wrong  # its mean, given k
        noise = (A ** 2).sum() * filler + (G - k) * A[-1] ** 2 * wrong_variance
        mu = mu + chance * decision
        square = square + chance * (decision @ decision + noise)
    return mu, square - mu @ mu


def cosine(mu_w, noise_w, mu, n):
    """Approximate the cosine between an update of n groups and the true gradient mu."""
    return mu_w @ mu / (mu.norm() * (mu_w @ mu_w + noise_w / n).sqrt())


def compare_at_start(setting, arm, seed):
    """Return [signal kept, noise kept, relative signal-to-noise with 1, 8 and 64 groups]."""
    mu, noise = signal_and_noise(setting, "GRPO", seed)
    mu_w, noise_w = signal_and_noise(setting, arm, seed)
    row = [mu_w @ mu / (mu @ mu), (noise_w / noise).sqrt()]
    for n in [1, 8, 64]:
        row.append(cosine(mu_w, noise_w, mu, n) / cosine(mu, noise, mu, n))
    return torch.stack(row)


# ---- Training: one group in each update ----

def train(setting, arm, rate, seeds, steps=STEPS):
    """Return (seeds, steps + 1): the exact accuracy before and after each update.

    Each seed has its own theta, so one backward pass computes all gradients. A seed has the
    same features and random numbers in every arm, so differences can be paired.
    """
    base, features = start_of(setting), torch.stack([features_of(s) for s in seeds])
    theta = torch.zeros(len(seeds), D, requires_grad=True)
    optimizer = torch.optim.AdamW([theta], lr=rate, weight_decay=0)
    generator = torch.Generator().manual_seed(seeds[0])
    accuracy = []
    for step in range(steps + 1):
        logits = base + torch.einsum("stvd,sd->stv", features, theta)
        logps = torch.log_softmax(logits, -1)  # (seeds, T, V)
        pi = logps.detach().exp()
        accuracy.append(pi[:, -1, RIGHT])

        u = torch.rand(len(seeds), T, G, generator=generator)
        tokens = torch.searchsorted(pi.cumsum(-1), u).clamp(max=V - 1)  # (seeds, T, G)
        A = group_advantages((tokens[:, -1] == RIGHT).float()).flatten()
        w = weights_of(arm, logps.detach())
        sampled = logps.gather(2, tokens).transpose(1, 2).reshape(-1, T)
        w = w.gather(2, tokens).transpose(1, 2).reshape(-1, T)

        loss, _ = grpo_sg_loss(sampled, sampled.detach(), A, torch.ones_like(sampled),
                               weights=w, denominator=G * T)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.stack(accuracy, 1)


def best_rate(setting, arm):
    """Return the learning rate with the highest mean accuracy over steps and tuning seeds."""
    means = [train(setting, arm, rate, TUNING_SEEDS).mean() for rate in RATES]
    return RATES[torch.stack(means).argmax()]


def confidence_interval(differences):
    """Return (mean, low, high): the mean of paired differences and its 95% interval."""
    mean = differences.mean()
    half = 1.96 * differences.std() / math.sqrt(len(differences))
    return mean.item(), (mean - half).item(), (mean + half).item()


# ---- What it prints ----

def print_start(setting):
    print(f"{setting + ', at the start':<27}signal kept  noise kept"
          "  relative signal-to-noise with 1, 8, 64 groups")
    for arm in ARMS[1:]:
        rows = [compare_at_start(setting, arm, seed) for seed in TUNING_SEEDS]
        signal, noise, *relative = torch.stack(rows).mean(0).tolist()
        relative = "".join(f"{each:8.2f}" for each in relative)
        print(f"    {arm:<23}{signal:11.2f}{noise:12.2f}{relative:>47}")


def print_training(setting):
    print(f"{setting + ', trained':<25}rate   accuracy after 10, 30, 100 steps"
          "   mean, minus GRPO's [95% CI]")
    for arm in ARMS:
        rate = best_rate(setting, arm)
        accuracy = train(setting, arm, rate, SEEDS)
        area = accuracy.mean(1)  # under the curve
        if arm == "GRPO":
            reference, difference = area, ""
        else:
            mean, low, high = confidence_interval(area - reference)
            difference = f"  {mean:+.3f} [{low:+.3f}, {high:+.3f}]"
        curve = "".join(f"{accuracy[:, i].mean():8.3f}" for i in [10, 30, 100])
        print(f"    {arm:<17}{rate:8}{curve:>35}{area.mean():15.3f}{difference}")


def main():
    print(QUESTION, flush=True)
    for setting in ["slips", "discoveries"]:
        print_start(setting)
        print_training(setting)
        print(flush=True)
    print(LEGEND, end="")


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m lesson.when", description=QUESTION).parse_args()
    main()
