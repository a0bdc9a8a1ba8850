"""Compute the numbers of one group, of the derivation and of off-policy sampling.

    python -m lesson.by_hand group         one group, from its rewards to an update of a model
    python -m lesson.by_hand derivation    what the derivation asks you to predict
    python -m lesson.by_hand samplers      the numbers of off_policy.md

They always print the same. lesson/README.md and lesson/off_policy.md ask for these numbers, so
write yours down first.
"""
import copy
import itertools
import os
import sys

# The project's folder: a script sees only its own.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import grpo_sg  # before torch: it configures PyTorch's allocator
import torch
import transformers
from tokenizers import Tokenizer, decoders, models

import tasks
from grpo_sg import group_advantages, grpo_sg_loss, token_logps, token_weights

# A policy that can write four completions only, and what they earn.
LOGITS = torch.tensor([0.3, -0.5, -1.0, 0.8], dtype=torch.float64)
REWARDS = torch.tensor([0.0, 1.0, 5.0, 2.0], dtype=torch.float64)
G = 3


# ---- One group ----

PUZZLE = ("Ada: if Ada knight then Alice knave. Alice: Ada knight and Alice knight. "
          "Amir: Alice knave.")
ROLES = {"Ada": "knight", "Alice": "knave", "Amir": "knight"}
# What eight samples of the tiny model say about it: their thoughts, and the role of Amir.
SAMPLES = [("Ada, clearly: KNK KNN. Alice, then: KNK KNN.", "knave"),
           ("Ada, clearly: KNK KNN. Alice, hence: KNK KNN. Amir, still: KNK.", "knight"),
           ("Ada, then: KNK KNN. Alice, hence: KNK KNN. Amir, also: KNK.", "knight"),
           ("Ada, also: KNK KNN. Alice, also: KNK KNN.", "knave"),
           ("Ada, finally: KNK KNN. Alice, still: KNK KNN.", "knave"),
           ("Ada, clearly: KNK KNN. Alice, thus: KNK KNN.", "knave"),
           ("Ada, also: KNK KNN. Alice, thus: KNK KNN. Amir, so: KNN.", "knave"),
           ("Ada, clearly: KNK KNN. Alice, hence: KNK. Amir, indeed: KNK.", "knight")]
RATE = 2e-4  # as in a run of the tiny model


def load_group():
    """Return (model, tokenizer, the eight completions with their rewards and advantages)."""
    transformers.utils.logging.disable_progress_bar()
    folder = os.path.join(grpo_sg.HERE, "support", "pretrained", "kk")
    model, tokenizer = grpo_sg.load_model(folder)
    model = grpo_sg.prepare(model, "cpu")
    completions = []
    for thoughts, role in SAMPLES:
        response = (f"<think> {thoughts} </think> <answer> Ada is a knight, Alice is a knave, "
                    f"Amir is a {role} </answer>")
        c = grpo_sg.Completion(None, tokenizer(PUZZLE)["input_ids"], response=response)
        c.add([*tokenizer(response)["input_ids"], tokenizer.eos_token_id], own=True)
        c.correct, c.formatted = tasks.verify_kk(response, ROLES)
        c.reward = tasks.reward(c)
        completions.append(c)
    grpo_sg.set_advantages(completions, len(completions))
    return model, tokenizer, completions


def update(model, batch, weights_of=token_weights):
    """Update the model on a batch, again and again. Yields (the loss before an update, the
    log-probabilities after it)."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.99), weight_decay=0)
    logps = token_logps(model, batch.ids, batch.mask)
    old_logps = logps.detach()
    while True:
        loss, _ = grpo_sg_loss(logps, old_logps, batch.advantages, batch.mask,
                               weights=weights_of(logps))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        logps = token_logps(model, batch.ids, batch.mask)
        yield loss.item(), logps.detach()


def weigh_equally(logps):
    return torch.full_like(logps, 1.4)


def weigh_not(logps):
    return torch.ones_like(logps)


def change_of(model, batch, weights_of):
    """Return by how much one update changes each parameter, (D,)."""
    changed = copy.deepcopy(model)
    next(update(changed, batch, weights_of))
    before, after = (torch.nn.utils.parameters_to_vector(m.parameters()) for m in (model, changed))
    return (after - before).detach()


# ---- The derivation ----

def advantages(k, G=8):
    """Return the advantages of a correct and of a wrong completion, if k of G are correct."""
    rewards = torch.tensor([[1.0] * k + [0.0] * (G - k)])
    A = group_advantages(rewards)[0]
    return A[0].item(), A[-1].item()


def silence(p, G=8):
    """Return how often a group gives no gradient, if each is correct with probability p."""
    return p ** G + (1 - p) ** G


def no_baseline(R):
    return R


def group_mean(R):
    return R - R.mean()


def others_mean(R):
    return R - (R.sum() - R) / (len(R) - 1)


def gradient_of_groups(advantages_of, logits=LOGITS, rewards=REWARDS):
    """Return (mean (D,), variance): of the gradient sum A grad log pi / G, over all groups of G
    completions, enumerated. The variance is the sum over the D parameters."""
    pi = torch.softmax(logits, 0)
    score = torch.eye(len(logits), dtype=torch.float64) - pi  # grad log pi of each completion
    mean, square = torch.zeros(len(logits), dtype=torch.float64), 0.0
    for group in itertools.product(range(len(logits)), repeat=G):
        group = list(group)
        gradient = (advantages_of(rewards[group])[:, None] * score[group]).sum(0) / G
        mean += pi[group].prod() * gradient
        square += pi[group].prod() * gradient @ gradient
    return mean, square - mean @ mean


# ---- Samplers ----

def restrict(p, top_p):
    """Return (q, Z): the distribution of top-p sampling, and the mass of the tokens it keeps."""
    sorted_p, order = p.sort(descending=True)
    keep = torch.zeros_like(p)
    keep[order[sorted_p.cumsum(0) - sorted_p < top_p]] = 1
    Z = (p * keep).sum()
    return p * keep / Z, Z


def log_ratio_of_rounding(logits):
    """Return (mean, standard deviation) of log(p / q), over tokens that q draws, where q has the
    logits in bfloat16 and p has them exactly."""
    p, q = logits.log_softmax(-1), logits.bfloat16().double().log_softmax(-1)
    mean = (q.exp() * (p - q)).sum(-1).mean()
    variance = (q.exp() * (p - q - mean) ** 2).sum(-1).mean()
    return mean.item(), variance.sqrt().item()


def build_tokenizer():
    """Return a byte-pair tokenizer that merges letters up to the word hello."""
    words = ["h", "e", "l", "o", "he", "ll", "llo", "hello"]
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


# ---- What it prints ----

def print_group():
    model, tokenizer, completions = load_group()
    print_rewards(completions)
    batch = grpo_sg.make_batch(completions, "cpu")
    with torch.no_grad():
        logps = token_logps(model, batch.ids, batch.mask)
    print_tokens(tokenizer, completions[1], logps[1, batch.mask[1]])
    print_update(model, tokenizer, completions, batch, logps)
    print_proportions(model, batch)


def print_rewards(completions):
    print(f"the puzzle: {PUZZLE}\n\n{'what eight completions say':78}tokens     R      A")
    for (thoughts, role), c in zip(SAMPLES, completions):
        print(f"{thoughts + ' Amir is a ' + role:78}{len(c.tokens):6}{c.reward:6.1f}"
              f"{c.advantage:+7.2f}")
    R = torch.tensor([c.reward for c in completions])
    print(f"the mean of R is {R.mean():.2f}, its standard deviation {R.std():.2f}\n")


def print_tokens(tokenizer, c, logps):
    """Print the numbers of each token of a completion. logps: of its tokens."""
    print(f"the second completion, with A = {c.advantage:+.2f}; the effect on a token's own logit "
          "is w A (1 - pi)\n"
          f"{'token':18}{'pi':>6}{'w':>6}{'push w A':>11}{'effect':>9}{'effect if w = 1':>18}")
    for token, pi, w in zip(c.tokens, logps.exp().tolist(), token_weights(logps).tolist()):
        push, effect = w * c.advantage, c.advantage * (1 - pi)
        print(f"{tokenizer.decode([token]).strip():18}{pi:6.3f}{w:6.2f}{push:+11.2f}"
              f"{w * effect:+9.2f}{effect:+18.2f}")


def print_update(model, tokenizer, completions, batch, logps):
    """Print the loss, and the probabilities of two tokens before and after one update."""
    pushes = (token_weights(logps) * batch.advantages[:, None])[batch.mask]
    print(f"\nthe loss: r is 1 everywhere, and the pushes of the {len(pushes)} tokens add up to "
          f"{pushes.sum():+.2f}, so it is {-pushes.sum():.2f} / {len(pushes)} = "
          f"{-pushes.mean():.3f}")
    updates = update(copy.deepcopy(model), batch)
    after = {number: next(updates)[1] for number in range(1, 9)}
    for i, word in ((1, " Amir,"), (0, " </think>")):
        c = completions[i]
        at = i, len(c.prompt) + c.tokens.index(tokenizer.convert_tokens_to_ids(word))
        pi, new = logps[at].exp(), after[1][at].exp()
        print(f"one update: {word.strip()} in completion {i + 1} goes from pi = {pi:.3f} to "
              f"{new:.3f}, so r = {new / pi:.2f}")
        ratios = [f"{(after[n][at] - logps[at]).exp():.2f} after {n}" for n in (2, 4, 8)]
        print(f"            if the same completions make more updates: r = {', '.join(ratios)}")


def print_proportions(model, batch):
    """Print why the weight down-weights, although it makes no push smaller."""
    usual, equal, shaped = (change_of(model, batch, weights_of) for weights_of in (
        weigh_not, weigh_equally, token_weights))
    print("\nwhat AdamW makes of it: if every w is 1.4, the change of the parameters differs from "
          f"that with w = 1 by {(equal - usual).norm() / usual.norm():.1%}; with our w by "
          f"{(shaped - usual).norm() / usual.norm():.1%}")
    pi = torch.tensor([0.08, 0.9])
    effect, w = 1 - pi, token_weights(pi.log())
    before, now = effect[0] / effect[1], (w * effect)[0] / (w * effect)[1]
    print(f"a token with pi = {pi[0]:.2f} has {before:.1f} times the effect of a token with pi = "
          f"{pi[1]:.2f} if w = 1, and {now:.1f} times with our w")


def print_derivation():
    print("advantages if k of 8 completions are correct, the reward 1 or 0:")
    for k in (1, 4, 7):
        print("    k = {}: correct {:+.2f}, wrong {:+.2f}".format(k, *advantages(k)))
    print("how often all 8 rewards are equal, if each is 1 with probability p:")
    for p in (0.5, 0.9, 0.99):
        print(f"    p = {p}: {silence(p):.3f}")
    print("variance of a group's gradient, over its squared mean, with four possible completions:")
    for name, plus in (("as they are", 0.0), ("plus 10", 10.0)):
        print(f"    rewards {name}:", end="")
        for baseline in (no_baseline, group_mean, others_mean):
            mean, variance = gradient_of_groups(baseline, rewards=REWARDS + plus)
            print(f"  {baseline.__name__} {variance / (mean @ mean):.1f}", end="")
        print()


def print_samplers():
    p = torch.tensor([0.5, 0.25, 0.15, 0.06, 0.04], dtype=torch.float64)
    q, Z = restrict(p, 0.8)
    ratios = ", ".join(f"{x:.2f}" for x in (p / q)[q > 0])
    print(f"top-p 0.8 of {p.tolist()}: p / q = {ratios}; kept mass Z = {Z:.2f}")

    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(50, 50_000, generator=generator, dtype=torch.float64)
    _, std = log_ratio_of_rounding(logits)
    print(f"logits in bfloat16: log(p / q) of a token has the standard deviation {std:.3f}, and "
          f"of 1,000 tokens {std * 1000 ** 0.5:.2f}")

    tokenizer = build_tokenizer()
    ids = [tokenizer.token_to_id("he"), tokenizer.token_to_id("llo")]
    text = tokenizer.decode(ids)
    print(f"sampled {ids}, decoded {text!r}, retokenized {tokenizer.encode(text).ids}")


PARTS = {"group": print_group, "derivation": print_derivation, "samplers": print_samplers}


def main(argv):
    if argv in (["-h"], ["--help"]):
        print("usage: python -m lesson.by_hand PART, where PART is", " or ".join(PARTS))
    elif len(argv) == 1 and argv[0] in PARTS:
        PARTS[argv[0]]()
    else:
        raise SystemExit(f"error: give one part, {' or '.join(PARTS)}: "
                         "python -m lesson.by_hand group")


if __name__ == "__main__":
    main(sys.argv[1:])
