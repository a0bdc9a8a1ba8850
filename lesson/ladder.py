"""From REINFORCE to GRPO-SG in seven rungs: one training loop, of which each rung changes one line.

    python -m lesson.ladder        half a minute on one core

A small untrained model learns to count on. Its prompt is one token, say 3, and the best
completion is 4 5 6 7 0, where 0 is the stop token. Each rung trains the same model on the same
first batch with three seeds, and prints the mean reward of each step as a bar (0 is blank, 1 a
full block), and the mean reward of the last five steps with its standard error over the seeds.

Symbols: P prompts with G completions each make B = P * G rows of T tokens; R is a reward, A an
advantage, pi the probability that the policy gives to a token that was sampled. Editors open the
cells (# %%) of this file as a notebook; start it in the project's folder.
"""
# %% The model, its reward, and how a rung is shown
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel

from grpo_sg import group_advantages, grpo_sg_loss, sample, token_logps, token_weights

STEPS = 30
SEEDS = range(3)
P, G = 16, 8
torch.set_num_threads(1)  # more threads do not help with tensors this small


def new_model():
    config = GPT2Config(vocab_size=8, n_positions=16, n_embd=32, n_layer=2, n_head=4,
                        bos_token_id=None, eos_token_id=0)
    return GPT2LMHeadModel(config).eval()  # no dropout, in training too


def new_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0)


def reward(prompt, completion):
    """The share of tokens that are one more than the token before them; 0 follows 7."""
    before = prompt + completion
    steps = [new == (old + 1) % 8 for old, new in zip(before, completion)]
    return sum(steps) / len(steps)


def climb(title, run, **choices):
    """Run a rung with every seed and print it. Returns the mean rewards (seeds, STEPS)."""
    rewards = torch.tensor([run(seed, **choices) for seed in SEEDS])
    bars = "".join(" ▁▂▃▄▅▆▇█"[int(8.99 * x)] for x in rewards.mean(0))
    last = rewards[:, -5:].mean(1)
    error = last.std() / len(last) ** 0.5
    print(f"{title:38}|{bars}| {last.mean():.3f} ± {error:.3f}", flush=True)
    return rewards


# %% The loop
# A step samples G completions of each of P prompts, and raises an objective by gradient ascent.
# The rungs choose what goes in: the advantages, the objective of a token, how tokens are
# averaged, and how many updates are made on the same completions.

def over_tokens(x, mask):
    return (x * mask).sum() / mask.sum()


def train(seed, advantages_of, objective_of, updates=1, mean=over_tokens):
    """Train a new model. Returns the mean reward of each step."""
    torch.manual_seed(seed)
    model = new_model()
    optimizer = new_optimizer(model)
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
        A = advantages_of(rewards.view(P, G)).view(-1, 1)  # (B, 1)

        # Learn. The mask is True on the tokens that the policy wrote, the stop token among them.
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
# tokens of a completion, is the gradient of the expected reward. (The loop takes the mean over all
# tokens of a batch, which only changes the scale.) But no reward here is negative, so that
# whatever is sampled gets likelier, and the good must outrun the bad.

def rewards_alone(R):  # (P, G) -> (P, G)
    return R


def log_likelihood(logps, old_logps, A):
    return A * logps


climb("1. REINFORCE: R log pi", train, advantages_of=rewards_alone, objective_of=log_likelihood)


# %% 2. Minus the mean of the group: better than what?
#
#     A = R - mean R        objective = A log pi
#
# What all completions of a prompt have in common is no news. Once it is taken away, those below
# the mean get less likely, and the gradient is less noisy. This is the baseline of policy
# gradients; a group finds it without a value network.

def minus_mean(R):
    return R - R.mean(1, keepdim=True)


climb("2. minus the group's mean", train, advantages_of=minus_mean, objective_of=log_likelihood)


# %% 3. Over the deviation of the group: GRPO's advantage
#
#     A = (R - mean R) / std R
#
# Now a group counts the same whether its rewards lie between 0 and 1 or between -3 and 3, and
# whether they differ much or little. Here all are on one scale, and it makes no difference.

climb("3. over its deviation", train, advantages_of=group_advantages, objective_of=log_likelihood)


# %% 4. Four updates on the same completions: it breaks
#
#     for update in range(4): ...
#
# With a large model sampling takes most of the time, so that one wants to learn more than once
# from a completion. But after the first update these are no longer samples of the policy, and
# nothing says when it is enough: log pi of a bad token has no bottom, and its gradient is as large
# as ever when the token has long become impossible.

climb("4. four updates, nothing else", train, updates=4,
      advantages_of=group_advantages, objective_of=log_likelihood)


# %% 5. The ratio and the clip: PPO's objective, and with the advantage of the group GRPO
#
#     r = pi / pi_old        objective = min(r A, clip(r, 0.8, 1.2) A)
#
# In the first update r = 1, and its gradient is that of log pi. Later r corrects for completions
# that are the old policy's: a token that has become rare counts little. And the clip says when it
# is enough: a token whose probability has changed by a fifth, in the direction that its advantage
# asks for, has no gradient as long as it is out there.

def clipped_ratio(logps, old_logps, A):
    r = (logps - old_logps).exp()
    return torch.minimum(r * A, r.clamp(0.8, 1.2) * A)


grpo = climb("5. ratio and clip: GRPO", train, updates=4,
             advantages_of=group_advantages, objective_of=clipped_ratio)


# %% 6. The mean over completions in place of tokens
#
#     mean over completions of (mean over tokens of the objective)
#
# This is GRPO's first form. A token of a long completion counts less, so that a long wrong answer
# is punished less for each of its tokens than a short one. With at most 8 tokens it makes little difference.

def over_completions(x, mask):
    return ((x * mask).sum(1) / mask.sum(1)).mean()


climb("6. mean over completions", train, updates=4, mean=over_completions,
      advantages_of=group_advantages, objective_of=clipped_ratio)


# %% 7. The weight w: GRPO-SG
#
#     w = clip(alpha * (sigmoid(pi / tau) - mu), L, U), without a gradient
#     objective = w min(r A, clip(r) A)
#
# Unlikely tokens have the largest gradients; w lets them count for less, 1 against 1.4. On this
# model the seeds show no difference, nor did they in this project's longer comparisons
# (experiments/README.md): whether w helps is for larger models to say.

def weighted(logps, old_logps, A):
    return token_weights(logps) * clipped_ratio(logps, old_logps, A)


sg = climb("7. times w: GRPO-SG", train, updates=4,
           advantages_of=group_advantages, objective_of=weighted)

# %% Does w help? The same seeds with and without it
difference = (sg - grpo)[:, -5:].mean(1)  # (seeds,)
error = difference.std() / len(difference) ** 0.5
print(f"7 minus 5, paired by seed: {difference.mean():+.3f} ± {error:.3f}")


# %% The same in one piece. This cell and the first are a whole training script, to copy
#
# The loop is the one above with its choices written out, and `grpo_sg_loss` is rung 7 with mask
# and mean. Here all four updates see all completions. grpo_sg.py does otherwise: it divides a
# step's completions into shares, and learns from each in one update, so that r differs from 1 by
# what the updates on the other shares have changed.

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
            logps = token_logps(model, ids, mask, temperature=TEMPERATURE)  # (B, T), with gradient
            if update == 0:
                old_logps = logps.detach()
            w = token_weights(logps)  # (B, T); without weights=w it is GRPO
            loss, stats = grpo_sg_loss(logps, old_logps, advantages, mask, weights=w)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return curve


climb("the same in one piece", grpo_sg)
