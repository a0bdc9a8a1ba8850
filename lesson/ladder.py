"""From REINFORCE to GRPO-SG: one training loop, and each rung changes one line of it.

    python -m lesson.ladder 1                  the first rung, three seeds: five seconds
    python -m lesson.ladder 1 --try            and the change that it names under Try
    python -m lesson.ladder                    every rung: a minute and a half on one core
    python -m lesson.ladder 4 5b --seeds 10    these rungs, with the seeds 0 to 9

A small untrained model learns to continue counting. Its prompt is one token, say 3, and the best
completion is 4 5 6 7 0, where 0 is the stop token. Each rung trains the same model on the same
first batch. Run a rung, and write down what you expect while it prints its question. It then prints
the mean reward of each step as a bar (0 is blank, 1 a full block), the mean of the last five steps
with its standard error over the seeds, and the answer.

Three seeds are few, and rungs whose ten-seed means differ by less than 0.05 can change places. So
an answer gives the mean of ten seeds (lesson/results/ladder_10.txt).

Symbols: P prompts with G completions each make B = P * G rows of T tokens. R is a reward, A an
advantage, pi the policy's probability of a sampled token.
"""
import argparse
import copy
import os
import re
import sys

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

# The project's folder, because a script sees only its own.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from grpo_sg import group_advantages, sample, token_logps, token_weights

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


# ---- Which rungs run, and how one is shown ----

NAMES = "1 2 3 3b 4 4b 5a 5b 5c 5d 6 7".split()
SHOWN = 1, 5, 10, 20, 30  # steps of which more than the reward is printed
BLOCKS, PLUS_MINUS = " ▁▂▃▄▅▆▇█", "±"


def read_arguments():
    """Return (rungs, seeds, whether to run the tries) of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lesson.ladder", description="From REINFORCE to GRPO-SG, in rungs.")
    parser.add_argument("rungs", nargs="*", metavar="RUNG", help=" ".join(NAMES))
    parser.add_argument("--seeds", type=int, default=3, metavar="N",
                        help="how many, from 0 on")
    parser.add_argument("--try", action="store_true", dest="tries",
                        help="also run the changes that these rungs name under Try")
    args = parser.parse_args()
    unknown = [rung for rung in args.rungs if rung not in NAMES]
    if unknown:
        parser.error(f"there is no rung {unknown[0]!r}: give some of {' '.join(NAMES)}")
    if args.seeds < 2:
        parser.error("a standard error needs two seeds or more: --seeds 2")
    if "7" in args.rungs:
        args.rungs.append("5b")  # which it is compared with
    return args.rungs or NAMES, range(args.seeds), args.tries


RUNGS, SEEDS, TRIES = [], range(3), False  # an import runs no rung
if __name__ == "__main__":
    RUNGS, SEEDS, TRIES = read_arguments()
try:
    (BLOCKS + PLUS_MINUS).encode(sys.stdout.encoding or "utf-8")
except UnicodeEncodeError:  # an ASCII terminal
    BLOCKS, PLUS_MINUS = " 12345678", "+-"
curves = {}  # title of a rung that ran -> the mean rewards (seeds, STEPS)


def predict(rung, question):
    """Print the question of a rung that runs."""
    if rung in RUNGS:
        print(f"\nPredict: {question}\n", flush=True)


def answer(rung, text="", of_try=""):
    """Print the answer to a rung's question, and with --try also what its Try shows."""
    for words in [text] + [of_try] * TRIES:
        if rung in RUNGS and words:
            print(f"\nAnswer: {words.strip()}".replace("±", PLUS_MINUS), flush=True)


def climb(title, run, **choices):
    """Run a rung with every seed and print it, if it is among RUNGS; a "try", only with --try."""
    rung, is_try = re.match(r"(\w+)( try)?", title).groups()
    if rung not in RUNGS or is_try and not TRIES:
        return
    seeds = tqdm(SEEDS, title, leave=False, delay=3, disable=None)
    rewards = torch.tensor([run(seed, **choices) for seed in seeds])
    curves[title] = rewards
    bars = "".join(BLOCKS[int(8.99 * x)] for x in rewards.mean(0).tolist())
    last = rewards[:, -5:].mean(1)
    error = last.std() / len(last) ** 0.5
    print(f"{title:38}|{bars}| {last.mean():.3f} {PLUS_MINUS} {error:.3f}", flush=True)


# ---- The loop ----
# A step samples G completions of each of P prompts, and maximizes an objective by gradient ascent.
# A rung chooses the advantages, the objective of a token, how tokens are averaged, how many
# updates are made on the same completions, and the learning rate. Every update clips its gradient
# to norm 1, as is usual. (`beta` and `notes` are for rung 5d.)

def over_tokens(x, mask):
    return (x * mask).sum() / mask.sum()


def train(seed, advantages_of, objective_of, updates=1, rate=1.0, mean=over_tokens, plus=0,
          times=1, beta=0.0, notes=None):
    """Train a new model, on rewards plus + R, and odd prompts on times R. Returns the mean R of
    each step."""
    torch.manual_seed(seed)
    model = new_model()
    reference = copy.deepcopy(model)  # the policy before training
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
        R = plus + rewards.view(P, G)
        R[torch.tensor(prompts[::G])[:, 0] % 2 == 1] *= times
        A = advantages_of(R).view(-1, 1)  # (B, 1)

        # Learn. The mask is True on the tokens that the policy wrote, including the stop token.
        ids = [torch.tensor(p + c) for p, c in pairs]
        mask = [torch.tensor([False] * len(p) + [True] * len(c)) for p, c in pairs]
        ids = pad_sequence(ids, batch_first=True)  # (B, T)
        mask = pad_sequence(mask, batch_first=True)  # (B, T)
        if notes is not None:
            notes.append(measure(model, reference, ids, mask))
        for update in range(updates):
            logps = token_logps(model, ids, mask)  # (B, T), log pi, with gradient
            if update == 0:
                old_logps = logps.detach()  # of the policy that sampled
            objective = objective_of(logps, old_logps, A)
            if beta:
                with torch.no_grad():
                    log_x = token_logps(reference, ids, mask)
                log_x = log_x - logps
                objective = objective - beta * (log_x.exp() - 1 - log_x)  # k3
            loss = -mean(objective, mask)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return curve


# ---- 1. REINFORCE: raise the probability of what was rewarded ----
#
#     objective of a token = R log pi
#
# The expected gradient of R log pi, summed over a completion's tokens, is the gradient of the
# expected reward. (The loop averages over all tokens of a batch, which only changes the scale.)
# But no reward here is negative: every sampled token is pushed up, and the good ones have to
# outrun the bad ones.

def raw_rewards(R):  # (P, G) -> (P, G)
    return R


def log_likelihood(logps, old_logps, A):
    return A * logps


predict("1", """what happens if every reward is 10 higher? No completion gets better or worse.
Try: python -m lesson.ladder 1 --try""")
climb("1. REINFORCE: R log pi", train,
      advantages_of=raw_rewards, objective_of=log_likelihood)
climb("1 try: every reward plus 10", train, plus=10,
      advantages_of=raw_rewards, objective_of=log_likelihood)

answer("1", of_try="""
Nothing is learned (0.131 instead of 0.683). Every sampled token is pushed up, good or bad, by
nearly the same amount.""")


# ---- 2. Minus the mean of the group: better than what? ----
#
#     A = R - mean R        objective = A log pi
#
# What all completions of a prompt have in common carries no information. Subtract it, and those
# below the mean become less likely. This is the baseline of policy gradients. It makes the gradient
# less noisy, and a group provides it without a value network.

def minus_mean(R):
    return R - R.mean(1, keepdim=True)


predict("2", """with this baseline, what happens if every reward is 10 higher?
Try: python -m lesson.ladder 2 --try""")
climb("2. minus the group's mean", train,
      advantages_of=minus_mean, objective_of=log_likelihood)
climb("2 try: every reward plus 10", train, plus=10,
      advantages_of=minus_mean, objective_of=log_likelihood)

answer("2", of_try="""
The result is 0.778 instead of 0.781, because the advantages are the same up to rounding.""")


# ---- 3. Divided by the standard deviation of the group: GRPO's advantage ----
#
#     A = (R - mean R) / std R
#
# Now a group counts the same whether its rewards range from 0 to 1 or from -3 to 3, and whether
# they differ much or little.

predict("3", """all rewards here have one scale, from 0 to 1. Does the division help? And if the
rewards of odd prompts were ten times as large? Try: python -m lesson.ladder 3 --try, which
does this with the division and without it.""")
climb("3. over its deviation", train,
      advantages_of=group_advantages, objective_of=log_likelihood)
climb("3 try: odd prompts pay 10 times", train, times=10,
      advantages_of=group_advantages, objective_of=log_likelihood)
climb("3 try: and without the division", train, times=10,
      advantages_of=minus_mean, objective_of=log_likelihood)
answer("3", """
Because all rewards have one scale, it makes no difference (0.776 instead of 0.781). The lesson's
page has the derivation of these three rungs. If you take the long way, read it now.""", """
With the division the odd prompts count like the others, and 0.772 is as good as before. Without it
they have ten times the advantages, the even prompts learn less, and the reward ends at 0.670.""")


# ---- 3b. The same with four times the rate ----
#
#     AdamW(..., lr=4 * 6e-3)
#
# This is a control for the next rung: one update that moves about as far as four.

predict("3b", "rung 3 is slow. What does the same update do at four times the learning rate?")
climb("3b. one update, the rate times four", train, rate=4,
      advantages_of=group_advantages, objective_of=log_likelihood)

answer("3b", "It is worse (0.612 instead of 0.776), because the step is too long.")


# ---- 4. Four updates on the same completions ----
#
#     for update in range(4): ...
#
# With a large model, sampling takes most of the time, so one wants to learn more than once from a
# completion. But after the first update the completions are no longer samples of the current
# policy.

def good_only(logps, old_logps, A):
    return A.clamp(min=0) * logps


def bad_only(logps, old_logps, A):
    return A.clamp(max=0) * logps


predict("4", """will four updates on the same completions, at the old rate, end above rung 3, which
makes one? Which tokens are pushed too far, those of good completions or those of bad ones?
Try: python -m lesson.ladder 4 --try, which learns only from the good ones, then only from
the bad ones.""")
climb("4. four updates, nothing else", train, updates=4,
      advantages_of=group_advantages, objective_of=log_likelihood)
climb("4b. and a quarter of the rate", train, updates=4, rate=1/4,
      advantages_of=group_advantages, objective_of=log_likelihood)
climb("4 try: good completions only", train, updates=4,
      advantages_of=group_advantages, objective_of=good_only)
climb("4 try: bad completions only", train, updates=4,
      advantages_of=group_advantages, objective_of=bad_only)

answer("4", """
No: it ends below rung 3 (0.516 instead of 0.776). But at a quarter of the rate four updates end
above it (0.877, rung 4b). So reusing a completion is not wrong. What is missing is a rule for when
to stop.""", """
The tokens of bad completions are pushed too far: log pi has no lower bound, and a token's gradient
stays as large as ever after the token has become impossible. Good completions by themselves end at
0.990, bad ones at 0.080.
Why not learn from good ones only, then? This task is too easy to tell. After 100 steps they end at
0.998, as rung 5b does (three seeds). On the puzzles of one_page.py they end at 0.815 and 0.820 with
the first two seeds, and the whole method at 0.856 and 0.826.""")


# ---- 5a. The ratio ----
#
#     r = pi / pi_old        objective = r A
#
# In the first update r = 1, and the gradient of r is that of log pi. Later it is r times that: r
# corrects for the fact that the old policy wrote the tokens.

def ratio(logps, old_logps, A):
    return (logps - old_logps).exp() * A


predict("5a", """a bad token has become rare, so its r is small, and a good one has a growing r.
Which of the two does the factor r hold back?""")
climb("5a. the ratio", train, updates=4,
      advantages_of=group_advantages, objective_of=ratio)

answer("5a", """
A bad token that has become rare has a small r and is left alone. A good one has a growing r, and
nothing stops it. It ends far above rung 4 (0.888 instead of 0.516).""")


# ---- 5b. The clip: PPO's objective; with the group's advantage, GRPO's ----
#
#     objective = min(r A, clip(r, 0.8, 1.2) A)
#
# The clip is the rule for when to stop.

def clipped_ratio(logps, old_logps, A, high=1.2):
    r = (logps - old_logps).exp()
    return torch.minimum(r * A, r.clamp(0.8, high) * A)


def no_minimum(logps, old_logps, A):
    r = (logps - old_logps).exp()
    return r.clamp(0.8, 1.2) * A


predict("5b", """fill in: does a token still have a gradient?

             r below 0.8   r inside   r above 1.2
    A > 0                    yes
    A < 0                    yes

And why the minimum, and not only clip(r) A? Think of a good token that another token's update
has made half as likely. Try: python -m lesson.ladder 5b --try
The difference can hide in the noise of three seeds, and ten show it.""")
climb("5b. ratio and clip: GRPO", train, updates=4,
      advantages_of=group_advantages, objective_of=clipped_ratio)
climb("5b try: clip(r) A, no minimum", train, updates=4,
      advantages_of=group_advantages, objective_of=no_minimum)

answer("5b", """
A token stops only where it has gone far enough in the direction in which A pushes it. The reward
ends at 0.986 instead of 0.888, with these gradients:

            r below 0.8   r inside   r above 1.2
    A > 0   yes           yes        no
    A < 0   no            yes        yes""", """
Without the minimum, clip(r) A has no gradient at r = 1/2, so the good token cannot come back. Ten
seeds end at 0.929 ± 0.024 instead of 0.986 ± 0.004.""")


# ---- 5c. What is the ratio for, then? ----
#
#     objective = A log pi, where the clip lets it learn
#
# The same tokens stop at the same place, but the others have the gradient of log pi, without the
# factor r.

def clip_alone(logps, old_logps, A):
    r = (logps - old_logps).exp()
    held_back = r.clamp(0.8, 1.2) * A < r * A
    return (A * logps).masked_fill(held_back, 0.0)


predict("5c", "if the clip stops the tokens, what is lost without r as a factor?")
climb("5c. the clip without the ratio", train, updates=4,
      advantages_of=group_advantages, objective_of=clip_alone)

answer("5c", """
Ten seeds show no difference. As a factor r matters little, because most tokens that still learn
have an r close to 1. (A token that went the other way may have any r, as the table says.) The use
of r is to tell the clip how far a token has moved.""")


# ---- 5d. Entropy and KL ----
#
#     objective = min(r A, clip(r) A) - beta k3
#
# The KL is a mean over all tokens that the policy could write. Three estimates need only the
# sampled one. With x = pi_ref / pi:
#
#     k1 = -log x        k2 = (log x)^2 / 2        k3 = x - 1 - log x
#
# k1 and k3 have the KL as their mean; k2 has not. k3 is never negative, and GRPO's loss uses it:
# beta times k3 keeps the policy near the reference. RLHF put beta k1 into the reward instead.

def measure(model, reference, ids, mask):
    """Return (entropy, exact KL, k1, k2, k3): means over the sampled tokens' positions."""
    with torch.no_grad():
        pi, ref = (m(input_ids=ids[:, :-1]).logits.log_softmax(-1) for m in (model, reference))
        kl = (pi.exp() * (pi - ref)).sum(-1)  # (B, T - 1)
        entropy = -(pi.exp() * pi).sum(-1)
        log_x = (ref - pi).gather(-1, ids[:, 1:, None]).squeeze(-1)
    values = entropy, kl, -log_x, log_x ** 2 / 2, log_x.exp() - 1 - log_x
    return [over_tokens(x, mask[:, 1:]).item() for x in values]


def higher_clip(logps, old_logps, A):
    return clipped_ratio(logps, old_logps, A, high=1.28)


def climb_and_measure(title, objective_of, beta=0.0):
    notes = []
    climb(title, train, updates=4, advantages_of=group_advantages, objective_of=objective_of,
          beta=beta, notes=notes)
    if notes:
        means = torch.tensor(notes).view(-1, STEPS, 5).mean(0)
        for name, values in zip(("entropy", "KL", "k1", "k2", "k3"), means.T.tolist()):
            shown = [f"{values[step - 1]:5.2f} in step {step}" for step in SHOWN]
            print(f"    {name:8}{', '.join(shown)}")


predict("5d", """while rung 5b learns, what happens to the policy's entropy, the mean of -log pi?
And to its KL divergence from the policy before training, the mean of log pi - log pi_ref? Which
of the three estimates comes closest to the KL at the end? What does beta = 0.04 change, and what
a higher upper clip? Try: python -m lesson.ladder 5d --try""")
climb_and_measure("5d. rung 5b, measured", clipped_ratio)
climb_and_measure("5d try: beta = 0.04", clipped_ratio, beta=0.04)
climb_and_measure("5d try: clip(r, 0.8, 1.28)", higher_clip)

answer("5d", """
The entropy falls from 2.06 to 0.05. (log 8 is the most that eight words allow.) The KL rises to
2.09, and k1 comes closest to it. k2 is too large, 2.30, and k3 is 1.64. The mean of k3 is right,
but once the policy is sure, most of this mean is in tokens that are almost never sampled and then
have a huge x.""", """
With beta = 0.04 the entropy stays at 0.26, and the reward ends lower, at 0.951. The higher clip
learns a little faster, and its k3 ends at 4.23, where the KL is 2.11. DAPO raised the clip in order
to keep the entropy up. This toy does not show that: the entropy ends at 0.04.""")


# ---- 6. The mean over completions instead of tokens ----
#
#     mean over completions of (mean over tokens of the objective)
#
# This is GRPO's original form. A token of a long completion counts less, so a long wrong answer is
# punished less per token than a short one.

def over_completions(x, mask):
    return ((x * mask).sum(1) / mask.sum(1)).mean()


predict("6", "is this mean better or worse than rung 5b's, which counts every token the same?")
climb("6. mean over completions", train, updates=4, mean=over_completions,
      advantages_of=group_advantages, objective_of=clipped_ratio)

answer("6", "Here it is slower, and ends at 0.944 ± 0.017 instead of 0.986 ± 0.004.")


# ---- 7. The weight w: GRPO-SG ----
#
#     w = clip(alpha * (sigmoid(pi / tau) - mu), L, U), without a gradient
#     objective = w min(r A, clip(r) A)
#
# Low-probability tokens have the largest gradients. With w they count less, 1 against 1.4.

mean_w = []  # for each update, the mean over its tokens


def weighted(logps, old_logps, A):
    w = token_weights(logps)
    mean_w.append(w[logps < 0].mean().item())  # elsewhere nothing was sampled
    return w * clipped_ratio(logps, old_logps, A)


predict("7", """w = clip(2 (sigmoid(9 pi) - 1/4), 1, 1.4) is larger for likely tokens. What is the
mean of w when all tokens are equally likely (pi = 1/8), and what at the end? Is 7 better
than 5b?""")
climb("7. times w: GRPO-SG", train, updates=4,
      advantages_of=group_advantages, objective_of=weighted)

if mean_w:
    of_steps = torch.tensor(mean_w).view(-1, STEPS, 4).mean((0, 2)).tolist()
    shown = [f"{of_steps[step - 1]:.2f} in step {step}" for step in SHOWN]
    print("the mean of w:", ", ".join(shown))
    difference = curves["7. times w: GRPO-SG"] - curves["5b. ratio and clip: GRPO"]
    difference = difference[:, -5:].mean(1)  # (seeds,)
    error = difference.std() / len(difference) ** 0.5
    print(f"7 minus 5b, paired by seed: {difference.mean():+.3f} {PLUS_MINUS} {error:.3f}")

answer("7", """
At pi = 1/8, w is 1.01. (The line above has the mean over a step's four updates, and pi has moved
after the first of them.) Once the policy is sure of nearly all tokens, nearly all have the weight
1.4, which is then a common factor. Neither three nor ten seeds show a difference on this model. The
lesson's page, "When does the weight help?", continues from here.""")
