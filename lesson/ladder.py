"""Learn four times from the same completions: what ratio, clip and minimum are for.

    python -m lesson.ladder 4      four updates, and nothing else
    python -m lesson.ladder 5a     with the ratio
    python -m lesson.ladder 5b     with ratio, clip and minimum: GRPO
    python -m lesson.ladder        all three

live.html has the other rungs, and cannot show these: its policy is a table, where each row has
logits of its own. Here it is a small untrained transformer, all of whose predictions share their
parameters. The task is the same. A prompt is one token, say 3, and the best completion counts on
with 4 5 6 7 0, where 0 is the stop token.

A rung prints its question. Write down what you expect before you look at the bars, a line for each
of three seeds: the mean reward of each step (0 is blank, 1 a full block), and at the end the mean
of the last five. Then comes the answer.
"""
import argparse
import sys

import grpo_sg
import torch
from transformers import GPT2Config, GPT2LMHeadModel

STEPS, SEEDS = 30, 3
P, G = 16, 8  # prompts in a step, and completions of each; B = P * G rows of T tokens
BLOCKS = " ▁▂▃▄▅▆▇█"


# ---- The loop ----

def new_model():
    config = GPT2Config(vocab_size=8, n_positions=16, n_embd=32, n_layer=2, n_head=4,
                        bos_token_id=None, eos_token_id=0)
    return GPT2LMHeadModel(config).eval()  # no dropout, in training as well


def reward(prompt, completion):
    """Return the share of tokens that are one more than the token before them; 0 follows 7."""
    before = prompt + completion
    steps = [new == (old + 1) % 8 for old, new in zip(before, completion)]
    return sum(steps) / len(steps)


def sample_batch(model):
    """Sample a step's completions, and compare each with the others of its prompt. Returns
    (a grpo_sg.Batch, the mean reward)."""
    prompts = torch.randint(1, 8, (P, 1)).tolist()
    completions = grpo_sg.sample(model, prompts, n=G, max_new_tokens=8, stop_ids={0})
    prompts = [prompt for prompt in prompts for _ in range(G)]
    rewards = torch.tensor([reward(*pair) for pair in zip(prompts, completions)])  # (B,)
    advantages = grpo_sg.group_advantages(rewards.view(P, G)).flatten().tolist()
    rows = [grpo_sg.Completion(None, prompt, tokens, [True] * len(tokens), advantage=A)
            for prompt, tokens, A in zip(prompts, completions, advantages)]
    return grpo_sg.make_batch(rows, "cpu"), rewards.mean().item()


def train(seed, objective_of, updates=4):
    """Train a new model: a step maximizes an objective of the sampled tokens, in so many updates on
    the same completions. Returns the mean reward of each step."""
    torch.manual_seed(seed)
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0)
    curve = []
    for step in range(STEPS):
        batch, mean_reward = sample_batch(model)
        curve.append(mean_reward)
        A = batch.advantages[:, None]  # (B, 1)
        for update in range(updates):
            logps = grpo_sg.token_logps(model, batch.ids, batch.mask)  # (B, T), with gradient
            if update == 0:
                old_logps = logps.detach()  # of the policy that sampled
            objective = objective_of(logps, old_logps, A)
            loss = -(objective * batch.mask).sum() / batch.mask.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return curve


# ---- 4. Four updates on the same completions ----
#
#     for update in range(4): ...        objective = A log pi
#
# With a large model, sampling takes most of the time, so one wants to learn more than once from a
# completion. But after the first update the completions are no longer samples of the current
# policy.

def log_likelihood(logps, old_logps, A):
    return A * logps


def good_only(logps, old_logps, A):
    return A.clamp(min=0) * logps


def bad_only(logps, old_logps, A):
    return A.clamp(max=0) * logps


QUESTION_4 = """does the reward end higher with four updates on the same completions than with one?
Which tokens are pushed too far, those of good completions (A > 0) or those of bad ones?"""

ANSWER_4 = """No. It rises faster at first, but ends lower.
The tokens of bad completions are pushed too far: log pi has no lower bound, and a token's gradient
stays as large as ever after the token has become impossible. Good completions alone teach nearly
everything here, and bad ones alone nothing. (Is it enough to learn from good ones, then? This task
is too easy to tell. Try A[rows].clamp(min=0) * logps as the objective in one_page.py.)"""


# ---- 5a. The ratio ----
#
#     r = pi / pi_old        objective = r A
#
# In the first update r = 1, and the gradient of r is that of log pi. Later it is r times that: r
# corrects for the fact that the old policy wrote the tokens.

def ratio(logps, old_logps, A):
    return (logps - old_logps).exp() * A


QUESTION_5A = """a bad token has become rare, so its r is small, and a good one has a growing r.
Which of the two does the factor r hold back?"""

ANSWER_5A = """The bad one. It is left alone once it is rare, so no run collapses as in rung 4.
But a good token has a growing r, and nothing stops it. The reward rises faster than with one
update, then jumps up and down, and where it stands after 30 steps is luck. These three seeds end
about where one update does, and some others nearly at 1."""


# ---- 5b. Clip and minimum: PPO's objective; with the group's advantage, GRPO's ----
#
#     objective = min(r A, clip(r, 0.8, 1.2) A)
#
# The clip is the rule for when to stop.

def clipped_ratio(logps, old_logps, A):
    r = (logps - old_logps).exp()
    return torch.minimum(r * A, r.clamp(0.8, 1.2) * A)


def no_minimum(logps, old_logps, A):
    r = (logps - old_logps).exp()
    return r.clamp(0.8, 1.2) * A


QUESTION_5B = """fill in: does a token still have a gradient?

            r below 0.8   r inside   r above 1.2
    A > 0                 yes
    A < 0                 yes

And why the minimum, and not only clip(r) A? Think of a good token that another token's update
has made half as likely."""

ANSWER_5B = """A token stops only where it has gone far enough in A's direction:

            r below 0.8   r inside   r above 1.2
    A > 0   yes           yes        no
    A < 0   no            yes        yes

Now four updates end far above one, and no run falls back. Without the minimum, clip(r) A has no
gradient at r = 1/2, so that good token cannot come back. Seed 2 pays for it, the others do not."""


# ---- The command ----

# rung -> (question, what is trained: (title, objective, updates), answer)
RUNGS = {
    "4": (QUESTION_4, [("one update", log_likelihood, 1), ("four updates", log_likelihood, 4),
                       ("good completions only", good_only, 4),
                       ("bad completions only", bad_only, 4)], ANSWER_4),
    "5a": (QUESTION_5A, [("the ratio: r A", ratio, 4)], ANSWER_5A),
    "5b": (QUESTION_5B, [("min(r A, clip(r) A): GRPO", clipped_ratio, 4),
                         ("clip(r) A, no minimum", no_minimum, 4)], ANSWER_5B)}


def climb(rung):
    """Print a rung's question, what its runs reach, and its answer."""
    question, runs, answer = RUNGS[rung]
    print(f"\nRung {rung}. Predict: {question}\n", flush=True)
    for title, objective_of, updates in runs:
        for seed in range(SEEDS):
            curve = train(seed, objective_of, updates)
            bar = "".join(BLOCKS[int(8.99 * x)] for x in curve)
            print(f"{title:27} seed {seed} |{bar}| {sum(curve[-5:]) / 5:.2f}", flush=True)
    print(f"\nAnswer: {answer}", flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m lesson.ladder", description="Learn four times from the same completions.")
    parser.add_argument("rung", nargs="?", choices=list(RUNGS), help="all, if none is given")
    chosen = parser.parse_args(argv).rung
    sys.stdout.reconfigure(errors="replace")  # not every terminal has blocks
    torch.set_num_threads(1)  # more threads do not help with tensors this small
    for rung in [chosen] if chosen else RUNGS:
        climb(rung)


if __name__ == "__main__":
    main()
