"""From REINFORCE to GRPO-SG: one training loop, of which each rung changes one line.

    python -m lesson.ladder                    every rung, three seeds: a minute on one core
    python -m lesson.ladder 4 5b --seeds 10    these rungs, with the seeds 0 to 9

A small untrained model learns to count on. Its prompt is one token, say 3, and the best
completion is 4 5 6 7 0, where 0 is the stop token. Each rung trains the same model on the same
first batch, and prints the mean reward of each step as a bar (0 is blank, 1 a full block), and
the mean reward of the last five steps with its standard error over the seeds.

Symbols: P prompts with G completions each make B = P * G rows of T tokens; R is a reward, A an
advantage, pi the probability that the policy gives to a token that was sampled. After each rung
stands a question to answer before you read on, and a change to try; the next rung, or its text,
has the answers, with the mean of ten seeds (results/ladder_10.txt, ladder_tries.txt). ladder.ipynb
has the same cells (# %%) with what they print.
"""
# %% The model and its reward
import argparse
import os
import re
import sys

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

# The project's folder: scripts see their own alone, and a notebook starts in lesson/.
sys.path.append(os.path.abspath("." if os.path.exists("grpo_sg.py") else ".."))
from grpo_sg import group_advantages, grpo_sg_loss, sample, token_logps, token_weights

STEPS = 30
P, G = 16, 8
torch.set_num_threads(1)  # more threads do not help with tensors this small


def new_model():
    config = GPT2Config(vocab_size=8, n_positions=16, n_embd=32, n_layer=2, n_head=4,
                        bos_token_id=None, eos_token_id=0)
    return GPT2LMHeadModel(config).eval()  # no dropout, in training too


def new_optimizer(model, rate=1.0):
    return torch.optim.AdamW(model.parameters(), lr=rate * 6e-3, weight_decay=0)


def reward(prompt, completion):
    """The share of tokens that are one more than the token before them; 0 follows 7."""
    before = prompt + completion
    steps = [new == (old + 1) % 8 for old, new in zip(before, completion)]
    return sum(steps) / len(steps)


# %% Which rungs, and how one is shown
NAMES = "1 2 3 3b 4 4b 5a 5b 5c 6 7 8".split()
RUNGS = NAMES if __name__ == "__main__" else []  # imported: no rung runs
SEEDS = range(3)
TRIES = False  # True: also run the changes that a rung names under "Try"
BLOCKS, PLUS_MINUS = " ▁▂▃▄▅▆▇█", "±"


def read_seeds(text):
    """range(0, 10) from "10", range(10, 14) from "10-13"."""
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def read_arguments():
    """(rungs, seeds, whether to run the tries) of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson.ladder", description="From REINFORCE to GRPO-SG, in rungs.")
    parser.add_argument("rungs", nargs="*", metavar="RUNG", help=" ".join(NAMES))
    parser.add_argument("--seeds", type=read_seeds, default=SEEDS, metavar="N",
                        help="how many, from 0 on; or from which to which: 10-13")
    parser.add_argument("--try", action="store_true", dest="tries",
                        help="also run the changes that these rungs name under Try")
    given = parser.parse_args()
    unknown = [rung for rung in given.rungs if rung not in NAMES]
    if unknown:
        parser.error(f"there is no rung {unknown[0]!r}: give some of {' '.join(NAMES)}")
    if len(given.seeds) < 2:
        parser.error("a standard error needs two seeds or more: --seeds 2")
    return given.rungs or NAMES, given.seeds, given.tries


if __name__ == "__main__" and "ipykernel" not in sys.modules:
    RUNGS, SEEDS, TRIES = read_arguments()
try:
    (BLOCKS + PLUS_MINUS).encode(sys.stdout.encoding or "utf-8")
except UnicodeEncodeError:  # a terminal that has ASCII alone
    BLOCKS, PLUS_MINUS = " 12345678", "+-"
curves = {}  # of each rung that ran, the mean reward of each step


def climb(title, run, **choices):
    """Run a rung with every seed and print it, if it is among RUNGS; a "try", only with --try.
    Returns the mean rewards (seeds, STEPS), or None."""
    rung, is_try = re.match(r"(\w+)( try)?", title).groups()
    if rung not in RUNGS or is_try and not TRIES:
        return None
    seeds = tqdm(SEEDS, title, leave=False, delay=3)
    rewards = torch.tensor([run(seed, **choices) for seed in seeds])
    curves[title] = rewards.mean(0).tolist()
    bars = "".join(BLOCKS[int(8.99 * x)] for x in curves[title])
    last = rewards[:, -5:].mean(1)
    error = last.std() / len(last) ** 0.5
    print(f"{title:38}|{bars}| {last.mean():.3f} {PLUS_MINUS} {error:.3f}", flush=True)
    return rewards


# %% The loop
# A step samples G completions of each of P prompts, and raises an objective by gradient ascent.
# The rungs choose what goes in: the advantages, the objective of a token, how tokens are
# averaged, how many updates are made on the same completions, and at what rate.

def over_tokens(x, mask):
    return (x * mask).sum() / mask.sum()


def train(seed, advantages_of, objective_of, updates=1, rate=1.0, mean=over_tokens, plus=0,
          times=1):
    """Train a new model, on rewards plus + times R. Returns the mean R of each step."""
    torch.manual_seed(seed)
    model = new_model()
    optimizer = new_optimizer(model, rate)
    curve = []
    for step in range(STEPS):
        # Sample, and let the verifier judge.
        prompts = torch.randint(1, 8, (P, 1)).tolist()
        completions = sample(model, prompts, n=G, max_new_tokens=8, stop_ids={0})
        prompts = [prompt for prompt in prompts for _ in range(G)]
        pairs = list(zip(prompts, completions))
        rewards = torch.tensor([reward(*pair) for pair in pairs])  # (B,)
        curve.append(rewards.mean().item())

        # Compare with the other completions of the prompt.
        R = plus + times * rewards.view(P, G)
        A = advantages_of(R).view(-1, 1)  # (B, 1)

        # Learn. The mask is True on the tokens that the policy wrote, the stop token among
        # them.
        ids = [torch.tensor(p + c) for p, c in pairs]
        mask = [torch.tensor([False] * len(p) + [True] * len(c)) for p, c in pairs]
        ids = pad_sequence(ids, batch_first=True)  # (B, T)
        mask = pad_sequence(mask, batch_first=True)  # (B, T)
        for update in range(updates):
            logps = token_logps(model, ids, mask)  # (B, T), log pi, with gradient
            if update == 0:
                old_logps = logps.detach()  # of the policy that sampled
            loss = -mean(objective_of(logps, old_logps, A), mask)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return curve


# %% 1. REINFORCE: make likelier what was paid
#
#     objective of a token = R log pi
#
# Over samples of the policy itself, the mean of R times the gradient of log pi, summed over the
# tokens of a completion, is the gradient of the expected reward. (The loop takes the mean over
# all tokens of a batch, which only changes the scale.) But no reward here is negative, so that
# whatever is sampled gets likelier, and the good must outrun the bad.

def rewards_alone(R):  # (P, G) -> (P, G)
    return R


def log_likelihood(logps, old_logps, A):
    return A * logps


climb("1. REINFORCE: R log pi", train,
      advantages_of=rewards_alone, objective_of=log_likelihood)
climb("1 try: every reward plus 10", train, plus=10,
      advantages_of=rewards_alone, objective_of=log_likelihood)

# **Predict:** what would happen if every reward were 10 higher? No completion gets better or
# worse by it. **Try** it: `return 10 + R`.


# %% 2. Minus the mean of the group: better than what?
#
#     A = R - mean R        objective = A log pi
#
# (Ten more: nothing is learned, .124. All that is sampled gets likelier, the good hardly faster
# than the bad.) What all completions of a prompt have in common is no news. Once it is taken
# away, those below the mean get less likely, and the gradient is less noisy. This is the
# baseline of policy gradients; a group finds it without a value network.

def minus_mean(R):
    return R - R.mean(1, keepdim=True)


climb("2. minus the group's mean", train,
      advantages_of=minus_mean, objective_of=log_likelihood)
climb("2 try: every reward plus 10", train, plus=10,
      advantages_of=minus_mean, objective_of=log_likelihood)
climb("2 try: every reward times 100", train, times=100,
      advantages_of=minus_mean, objective_of=log_likelihood)

# **Predict:** and with this baseline, if every reward were 10 higher? **Try** it here, too.


# %% 3. Over the deviation of the group: GRPO's advantage
#
#     A = (R - mean R) / std R
#
# (Ten more change nothing now: the mean takes them away. .775 for .784 is rounding.)
# Now a group counts the same whether its rewards lie between 0 and 1 or between -3 and 3, and
# whether they differ much or little. Here all are on one scale, and it makes no difference.

climb("3. over its deviation", train,
      advantages_of=group_advantages, objective_of=log_likelihood)
climb("3 try: every reward times 100", train, times=100,
      advantages_of=group_advantages, objective_of=log_likelihood)

# **Predict:** this is slow. What will the same update do with four times the learning rate?
# **Try:** rewards that are 100 times as large: `100 * (R - R.mean(1, keepdim=True))` in rung 2,
# and here `advantages_of=lambda R: group_advantages(100 * R)`.


# %% 3b. The same with four times the rate
#
#     AdamW(..., lr=4 * 6e-3)
#
# (A hundred times as large: .781 for .784 in rung 2, .774 for .776 in rung 3. In rung 3 the
# group's std removes the factor. In rung 2 clip_grad_norm_ does: it cuts the gradient of every
# update to norm 1.) A control for the next rung: one update that goes about as far as four.

climb("3b. one update, the rate times four", train, rate=4,
      advantages_of=group_advantages, objective_of=log_likelihood)
climb("3b try: the rate times two", train, rate=2,
      advantages_of=group_advantages, objective_of=log_likelihood)

# **Predict:** now four updates on the same completions, at the old rate. Better or worse than
# one long step? **Try:** `rate=2` in this rung.


# %% 4. Four updates on the same completions
#
#     for update in range(4): ...
#
# (Twice the rate, in one update: .792, hardly more than .776.) With a large model sampling
# takes most of the time, so that one wants to learn more than once from a completion. But after
# the first update these are no longer samples of the policy.

def good_only(logps, old_logps, A):
    return A.clamp(min=0) * logps


def bad_only(logps, old_logps, A):
    return A.clamp(max=0) * logps


climb("4. four updates, nothing else", train, updates=4,
      advantages_of=group_advantages, objective_of=log_likelihood)
climb("4b. and a quarter of the rate", train, updates=4, rate=1/4,
      advantages_of=group_advantages, objective_of=log_likelihood)
climb("4 try: good completions only", train, updates=4,
      advantages_of=group_advantages, objective_of=good_only)
climb("4 try: bad completions only", train, updates=4,
      advantages_of=group_advantages, objective_of=bad_only)

# Rung 4 ends lower than rung 3, and so does rung 3b; rung 4b, four updates at a quarter of the
# rate, ends higher. So it is not wrong to use a completion again. What is missing is something
# that says when it is enough.
#
# **Predict:** which of the tokens are pushed too far, those of good completions or of bad ones?
# **Try:** `A.clamp(min=0) * logps`, which learns from the good ones alone.


# %% 5a. The ratio
#
#     r = pi / pi_old        objective = r A
#
# (Those of bad ones: log pi has no bottom, and the gradient of a token is as large as ever when it
# has long become impossible. Four updates on the good alone reach .990, on the bad alone .093.)
# In the first update r = 1, and its gradient is that of log pi. Later its gradient is r times
# that: r corrects for completions that are the old policy's, token by token. A bad token that
# has become rare has a small r, so that it is left alone. A good one has a larger r the further
# it has gone, and nothing holds it back: with some seeds this goes wrong.

def ratio(logps, old_logps, A):
    return (logps - old_logps).exp() * A


climb("5a. the ratio", train, updates=4,
      advantages_of=group_advantages, objective_of=ratio)

# **Predict:** what if a token's gradient simply ended once its probability has changed by a
# fifth? **Try:** other seeds, `python -m lesson.ladder 5a --seeds 10-13`.


# %% 5b. The clip: PPO's objective, and with the advantage of the group GRPO
#
#     objective = min(r A, clip(r, 0.8, 1.2) A)
#
# The clip says when it is enough: a token whose probability has changed by a fifth, in the
# direction that its advantage asks for, has no gradient as long as it is out there.

def clipped_ratio(logps, old_logps, A, width=0.2):
    r = (logps - old_logps).exp()
    return torch.minimum(r * A, r.clamp(1 - width, 1 + width) * A)


def no_minimum(logps, old_logps, A):
    r = (logps - old_logps).exp()
    return r.clamp(0.8, 1.2) * A


grpo = climb("5b. ratio and clip: GRPO", train, updates=4,
             advantages_of=group_advantages, objective_of=clipped_ratio)
climb("5b try: clip(r) A, no minimum", train, updates=4,
      advantages_of=group_advantages, objective_of=no_minimum)

# **Predict:** why the minimum, and not `clip(r) A` alone? Think of a good token that another
# one's update has made half as likely. **Try** it.


# %% 5c. What is the ratio for, then?
#
#     objective = A log pi, where the clip lets it learn
#
# (clip(r) A alone has no gradient at r = 1/2, so that the good token could not come back: .928.)
# The same tokens stop at the same place, but those that go on have the gradient of log pi, not
# r times it. No difference is seen. While a token is inside of the clip its r is between 0.8
# and 1.2, so that as a factor it hardly matters. It is the yardstick: by r the clip knows when
# it is enough. (lesson/ratio.py looks for a setting in which the factor itself matters.)

def clip_alone(logps, old_logps, A):
    r = (logps - old_logps).exp()
    held_back = r.clamp(0.8, 1.2) * A < r * A
    return (A * logps).masked_fill(held_back, 0.0)


def narrow(logps, old_logps, A):
    return clipped_ratio(logps, old_logps, A, width=0.1)


def wide(logps, old_logps, A):
    return clipped_ratio(logps, old_logps, A, width=0.5)


climb("5c. the clip without the ratio", train, updates=4,
      advantages_of=group_advantages, objective_of=clip_alone)
climb("5c try: rung 5b, clipped at a tenth", train, updates=4,
      advantages_of=group_advantages, objective_of=narrow)
climb("5c try: rung 5b, clipped at a half", train, updates=4,
      advantages_of=group_advantages, objective_of=wide)

# **Predict:** with a tenth in place of a fifth: slower, or safer, or neither? **Try:** 0.9 and
# 1.1, then 0.5 and 1.5.


# %% 6. The mean over completions in place of tokens
#
#     mean over completions of (mean over tokens of the objective)
#
# (A tenth: a little slower, .986. Half, faster: .995. The width hardly matters here.)
# This is GRPO's first form. A token of a long completion counts less, so that a long wrong
# answer is punished less for each of its tokens than a short one. Here it is slower, and ends at
# .952 ± .012 where rung 5b has .990 ± .002; with four other seeds, at .965 and .975.

def over_completions(x, mask):
    return ((x * mask).sum(1) / mask.sum(1)).mean()


def over_sums(x, mask):
    return (x * mask).sum(1).mean()


climb("6. mean over completions", train, updates=4, mean=over_completions,
      advantages_of=group_advantages, objective_of=clipped_ratio)
climb("6 try: sums over tokens", train, updates=4, mean=over_sums,
      advantages_of=group_advantages, objective_of=clipped_ratio)

# **Predict:** rung 7 multiplies the objective of a token by w = clip(2 (sigmoid(9 pi) - 1/4),
# 1, 1.4), which is larger for likely tokens. What is its mean when all tokens are equally
# likely (pi = 1/8), and what at the end? **Try:** the sum over tokens in place of a
# completion's mean.


# %% 7. The weight w: GRPO-SG
#
#     w = clip(alpha * (sigmoid(pi / tau) - mu), L, U), without a gradient
#     objective = w min(r A, clip(r) A)
#
# (The sum over tokens: .961, where their mean has .952.) Unlikely tokens have the largest
# gradients; w lets them count for less, 1 against 1.4. Once the policy is sure of nearly all
# tokens, nearly all have 1.4, which is one common factor. (At pi = 1/8 w is 1.01. What is
# printed is the mean over a step's four updates, and after the first of them pi has moved.)

mean_w = []  # of each update: the mean over its tokens


def weighted(logps, old_logps, A):
    w = token_weights(logps)
    mean_w.append(w[logps < 0].mean().item())  # elsewhere nothing was sampled
    return w * clipped_ratio(logps, old_logps, A)


def from_zero(logps, old_logps, A):
    return token_weights(logps, low=0.0) * clipped_ratio(logps, old_logps, A)


def reversed_weight(logps, old_logps, A):
    return clipped_ratio(logps, old_logps, A) / token_weights(logps)


sg = climb("7. times w: GRPO-SG", train, updates=4,
           advantages_of=group_advantages, objective_of=weighted)
climb("7 try: L = 0", train, updates=4,
      advantages_of=group_advantages, objective_of=from_zero)
climb("7 try: 1 / w", train, updates=4,
      advantages_of=group_advantages, objective_of=reversed_weight)

if mean_w:
    of_steps = torch.tensor(mean_w).view(-1, STEPS, 4).mean((0, 2)).tolist()
    shown = [f"{of_steps[step - 1]:.2f} in step {step}" for step in (1, 5, 10, 20, 30)]
    print("the mean of w:", ", ".join(shown))

# **Predict:** is 7 better than 5b? The next cell says so, with the same seeds. **Try:**
# `token_weights(logps, low=0.0)`, and `1 / token_weights(logps)`, which is the wrong way round.


# %% Does w help? The same seeds with and without it
if grpo is not None and sg is not None:
    difference = (sg - grpo)[:, -5:].mean(1)  # (seeds,)
    error = difference.std() / len(difference) ** 0.5
    print(f"7 minus 5b, paired by seed: {difference.mean():+.3f} {PLUS_MINUS} {error:.3f}")

# (low=0.0: .981; the wrong way round: .977; as it is: .982.) On this model the seeds show no
# difference, nor did they in this project's longer comparisons (experiments/README.md): whether
# w helps is for larger models to say.


# %% 8. The same in one piece. This cell and the first two are a training script, to copy
#
# The loop is the one above with its choices written out, and `grpo_sg_loss` is rung 7 with mask
# and mean. Here all four updates see all completions. grpo_sg.py does otherwise: it divides a
# step's completions into minibatches, and learns from each in one update, so that no completion
# is used twice, and r differs from 1 by what the updates on the other minibatches have changed.

TEMPERATURE = 1.0  # of sampling and of log-probabilities: both are about one policy


def grpo_sg(seed):
    torch.manual_seed(seed)
    model = new_model()
    optimizer = new_optimizer(model)
    curve = []
    for step in range(STEPS):
        # Sample.
        prompts = torch.randint(1, 8, (P, 1)).tolist()  # P lists of token ids
        completions = sample(model, prompts, n=G, max_new_tokens=8, stop_ids={0},
                             temperature=TEMPERATURE)
        prompts = [prompt for prompt in prompts for _ in range(G)]
        pairs = list(zip(prompts, completions))
        rewards = torch.tensor([reward(*pair) for pair in pairs])  # (B,)
        curve.append(rewards.mean().item())

        # Compare.
        advantages = group_advantages(rewards.view(P, G)).flatten()  # (B,)

        # Learn.
        ids = [torch.tensor(p + c) for p, c in pairs]
        mask = [torch.tensor([False] * len(p) + [True] * len(c)) for p, c in pairs]
        ids = pad_sequence(ids, batch_first=True)  # (B, T)
        mask = pad_sequence(mask, batch_first=True)  # (B, T)
        for update in range(4):
            # log pi (B, T), with gradient
            logps = token_logps(model, ids, mask, temperature=TEMPERATURE)
            if update == 0:
                old_logps = logps.detach()
            w = token_weights(logps)  # (B, T); without weights=w it is GRPO
            loss, sums = grpo_sg_loss(logps, old_logps, advantages, mask, weights=w,
                                       clip_low=0.2, clip_high=0.2)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return curve


climb("8. rung 7 in one piece", grpo_sg)


# %% The rungs as a figure
# A notebook shows it here; in a script nothing happens.

from lesson.notebook import draw

draw(curves)
