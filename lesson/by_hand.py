"""Compute the numbers of one group and of the derivation, in lesson/README.md.

    python -m lesson.by_hand group         one group, from its rewards to an update of a model
    python -m lesson.by_hand derivation    what the derivation asks you to predict

Write your numbers down first.
"""
import argparse
import copy
import pathlib

import grpo_sg
import torch
import transformers

import tasks
from grpo_sg import group_advantages, grpo_sg_loss, token_logps, token_weights

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
    folder = pathlib.Path(__file__).parents[1] / "support" / "pretrained" / "kk"
    model, tokenizer = grpo_sg.load_model(str(folder))
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


def update(model, batch):
    """Update the model on a batch, again and again. Yields the log-probabilities after each."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.99), weight_decay=0)
    logps = token_logps(model, batch.ids, batch.mask)
    old_logps = logps.detach()
    while True:
        loss, _ = grpo_sg_loss(logps, old_logps, batch.advantages, batch.mask,
                               weights=token_weights(logps))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        logps = token_logps(model, batch.ids, batch.mask)
        yield logps.detach()


# ---- The derivation ----

def advantages(k, G=8):
    """Return the advantages of a correct and of a wrong completion, if k of G are correct."""
    rewards = torch.tensor([[1.0] * k + [0.0] * (G - k)])
    A = group_advantages(rewards)[0]
    return A[0].item(), A[-1].item()


def silence(p, G=8):
    """Return how often a group gives no gradient, if each is correct with probability p."""
    return p ** G + (1 - p) ** G


# ---- What it prints ----

def print_group():
    model, tokenizer, completions = load_group()
    print_rewards(completions)
    batch = grpo_sg.make_batch(completions, "cpu")
    with torch.no_grad():
        logps = token_logps(model, batch.ids, batch.mask)
    print_tokens(tokenizer, completions[1], logps[1, batch.mask[1]])
    print_update(model, tokenizer, completions, batch, logps)


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
    after = {number: next(updates) for number in range(1, 9)}
    for i, word in ((1, " Amir,"), (0, " </think>")):
        c = completions[i]
        at = i, len(c.prompt) + c.tokens.index(tokenizer.convert_tokens_to_ids(word))
        pi, new = logps[at].exp(), after[1][at].exp()
        print(f"one update: {word.strip()} in completion {i + 1} goes from pi = {pi:.3f} to "
              f"{new:.3f}, so r = {new / pi:.2f}")
        ratios = [f"{(after[n][at] - logps[at]).exp():.2f} after {n}" for n in (2, 4, 8)]
        print(f"            if the same completions make more updates: r = {', '.join(ratios)}")


def print_derivation():
    print("advantages if k of 8 completions are correct, the reward 1 or 0:")
    for k in (1, 4, 7):
        print("    k = {}: correct {:+.2f}, wrong {:+.2f}".format(k, *advantages(k)))
    print("how often all 8 rewards are equal, if each is 1 with probability p:")
    for p in (0.5, 0.9, 0.99):
        print(f"    p = {p}: {silence(p):.3f}")


PARTS = {"group": print_group, "derivation": print_derivation}


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m lesson.by_hand", description="Print the numbers of lesson/README.md.")
    parser.add_argument("part", choices=list(PARTS))
    PARTS[parser.parse_args(argv).part]()


if __name__ == "__main__":
    main()
