"""One example with all its numbers. results/example.txt has the output.

    python -m lesson.example             the pretrained tiny model: ten seconds
    python -m lesson.example FOLDER      another model

It prints the same texts on every machine, and the same numbers up to rounding (within 0.03).

Samples eight completions of one puzzle from the model, before any reinforcement learning, and
prints their rewards and advantages. Then it makes one update on this group only. A table shows what
the update does to single tokens.
"""
import os
import sys

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(ROOT)  # a script sees only its own folder
import tasks
from grpo_sg import group_advantages, grpo_sg_loss, sample, token_logps, token_weights

QUESTION = ("Ada: if Ada knight then Alice knave. Alice: Alice knight or Amir knave. "
            "Amir: if Ada knave then Alice knight.")
ROLES = {"Ada": "knight", "Alice": "knave", "Amir": "knight"}
G = 8
LEARNING_RATE = 2e-4  # the tiny model's
SURE = 0.99  # the table leaves out tokens that are at least this likely
COLUMNS = ("completion", "token", "pi", "w", "A", "wA", "size of its gradient", "pi after")


def reward(text, ended):
    """Return the reward of grpo_sg.py: +3 right, -0.5 well formed but wrong, -3 badly formed."""
    verdict = tasks.verify_kk(text, ROLES)
    if not (ended and verdict.formatted):
        return -3.0
    return 3.0 if verdict.correct else -0.5


def sample_group(model, tokenizer):
    """Return (prompt, completions, texts, rewards) of the first seed whose rewards differ."""
    prompt = tokenizer(QUESTION)["input_ids"]
    stop = tokenizer.eos_token_id
    for seed in range(100):
        completions = sample(model, [prompt], n=G, max_new_tokens=48, stop_ids={stop},
                             generator=torch.Generator().manual_seed(seed))
        texts = [tokenizer.decode(c, skip_special_tokens=True) for c in completions]
        rewards = [reward(text, c[-1] == stop) for text, c in zip(texts, completions)]
        if len(set(rewards)) > 1:
            return prompt, completions, texts, torch.tensor([rewards])
    sys.exit("all groups had equal rewards: the model solves this puzzle always or never")


def gradient_norms(model, ids):
    """Return (B, T): the norm of each token's gradient of log pi with respect to the logits."""
    with torch.no_grad():
        p = model(input_ids=ids[:, :-1]).logits.float().softmax(-1)  # (B, T-1, V)
    onehot = torch.nn.functional.one_hot(ids[:, 1:], p.shape[-1])
    norms = (onehot - p).norm(dim=-1)  # d log pi / d logits = onehot - pi
    return torch.nn.functional.pad(norms, (1, 0))


def row(cells):
    return f"| {' | '.join(cells)} |"


def print_table(tokenizer, shown, ids, mask, columns):
    """Print a row for each token of the shown completions that the model was not sure of."""
    print(row(COLUMNS))
    print(row(["---"] * len(COLUMNS)))
    for i, t in mask.nonzero().tolist():
        pi, w, A, wA, size, after = (float(column[i, t]) for column in columns)
        if i in shown and pi < SURE:
            token = tokenizer.decode([int(ids[i, t])]).strip().replace("|", "\\|")
            print(row([str(i + 1), f"`{token}`", f"{pi:.3f}", f"{w:.2f}", f"{A:+.2f}",
                       f"{wA:+.2f}", f"{size:.2f}", f"{after:.3f}"]))
    print()


def print_completions(texts, R, A):
    """Print each distinct completion once."""
    for i, text in enumerate(texts):
        if text not in texts[:i]:
            same = [str(j + 1) for j, other in enumerate(texts) if other == text]
            print(f"Completion {i + 1} (sample{'s' * (len(same) > 1)} {', '.join(same)}): "
                  f"R = {R[i]:g}, A = ({R[i]:g} - {R.mean():.3f}) / {R.std():.3f} = {A[i]:.2f}\n")
            print(f"    {text}\n")


def main(folder):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt, completions, texts, rewards = sample_group(model, tokenizer)
    A = group_advantages(rewards).flatten()  # (G,)

    ids = pad_sequence([torch.tensor(prompt + c) for c in completions], batch_first=True)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for i, c in enumerate(completions):
        mask[i, len(prompt):len(prompt) + len(c)] = True
    logps = token_logps(model, ids, mask)  # (G, T)
    w = token_weights(logps)
    wA = w * A[:, None]
    sizes = wA.abs() * gradient_norms(model, ids)

    # One update on this group only, as grpo_sg.py makes it.
    loss, _ = grpo_sg_loss(logps, logps.detach(), A, mask, weights=w)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(model.parameters(), LEARNING_RATE, betas=(0.9, 0.99),
                      weight_decay=0).step()
    with torch.no_grad():
        after = token_logps(model, ids, mask).exp()

    R = rewards[0]
    print(f"> {QUESTION}\n")
    listed = ", ".join(f"{x:g}" for x in R)
    print(f"The rewards of samples 1 to {G} are {listed}: mean {R.mean():.3f}, "
          f"standard deviation {R.std():.3f}.\n")
    print_completions(texts, R, A)
    columns = logps.detach().exp(), w, A[:, None].expand_as(w), wA, sizes, after
    shown = [i for i, text in enumerate(texts) if text not in texts[:i]]  # each once
    print_table(tokenizer, shown, ids, mask, columns)
    most = 100 * (w[mask] > 1.395).float().mean()
    print(f"Of the group's {int(mask.sum())} tokens, {most:.0f}% have w = 1.40. The smallest w is "
          f"{w[mask].min():.2f}.")


if __name__ == "__main__":
    folder = " ".join(sys.argv[1:]) or f"{ROOT}/support/pretrained/kk"
    if not os.path.isfile(os.path.join(folder, "tokenizer.json")):
        sys.exit(f"give the folder of a model, such as runs/NAME/checkpoint, not {folder!r}")
    main(folder)
