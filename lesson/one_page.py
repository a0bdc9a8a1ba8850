"""GRPO-SG on one page: from a model's folder to a better model, with nothing hidden.

    python -m lesson.one_page               the pretrained tiny model, on puzzles
    python -m lesson.one_page MODEL [SEED]  another folder, or a name on the hub: a real model
                                            needs a large GPU and more steps

The first takes less than a minute and ends with about "avg@4 after: 0.856". The seeds 1 to 3 ended
at 0.826, 0.836 and 0.820.

tasks.py has the puzzles and their verifier; everything else is here. A comment in brackets
names the function of grpo_sg.py that does the same more carefully, and what it does better.

P problems, G completions of each, B = P G rows, S tokens of a prompt, C of a completion,
V words. R rewards, A advantages, pi the policy's probability of a sampled token.
"""
import os
import random
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(ROOT)  # `python lesson/one_page.py` sees only its own folder
import tasks

folder = sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/support/pretrained/kk"
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
torch.manual_seed(seed)
STEPS, G, UPDATES = 40, 8, 4

# The policy: a causal language model, in float32, because bfloat16 would round small updates
# away. from_pretrained leaves it in eval mode, so no dropout makes r differ from 1.
model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
tokenizer.pad_token = tokenizer.eos_token  # any token would do: see the mask, below
model.to("cuda" if torch.cuda.is_available() else "cpu")
tiny = model.num_parameters() < 1_000_000  # it reads puzzles without their story
P, LR, NEW_TOKENS, OPENING = (32, 2e-4, 48, "") if tiny else (4, 1e-6, 800, "<think>")
if tiny:
    torch.set_num_threads(1)  # more are not faster with tensors this small
optimizer = torch.optim.AdamW(model.parameters(), LR, betas=(0.9, 0.99), weight_decay=0)

# A new GenerationConfig instead of the checkpoint's, which may have a top-p or a penalty:
# the gradient is right only if tokens are sampled from the whole distribution whose
# log-probabilities are computed below. top_k=0, because generate's own default is 50.
stop = tokenizer.eos_token_id  # [grpo_sg.find_stop_ids: many models have several]
model.generation_config = GenerationConfig(
    do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=NEW_TOKENS,
    eos_token_id=stop, pad_token_id=tokenizer.pad_token_id)

train = tasks.kk_split("train", 4000, [3], seed, brief=tiny)
test = tasks.kk_split("test", 200 if tiny else 50, [3], seed, brief=tiny)


def sample(problems, n):
    """n completions of each problem, in order; ids and real are (B, S + C)."""
    texts = []
    for problem in problems:
        chat = [{"role": "system", "content": tasks.KK_SYSTEM},
                {"role": "user", "content": problem.question}]
        text = tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True)
        texts += [text + OPENING] * n
    # Padded on the left, so all completions begin in one column.
    prompts = tokenizer(texts, padding=True, add_special_tokens=False,
                        return_tensors="pt").to(model.device)
    # [grpo_sg.sample: reads equal prompts once, and drops rows that have ended]
    ids = model.generate(**prompts)
    completions = ids[:, prompts.input_ids.shape[1]:]  # (B, C)
    # The mask is True up to and including the first stop token, which is learned too. It is
    # made by position: `completions != pad` would lose the stop token if pad is the same.
    stops = (completions == stop).long()
    mask = stops.cumsum(1) - stops == 0
    rewards = []
    # [grpo_sg.rollout: a completion that was cut off is malformed; tools]
    for i, (tokens, wrote) in enumerate(zip(completions, mask)):
        response = OPENING + tokenizer.decode(tokens[wrote], skip_special_tokens=True)
        correct, formatted = tasks.verify_kk(response, problems[i // n].answer)
        rewards.append(3.0 if correct else -0.5 if formatted else -3.0)
    real = torch.cat([prompts.attention_mask, mask], 1)  # 0 on the pads of both sides
    return ids, real, mask, torch.tensor(rewards, device=model.device)


def log_probabilities(ids, real, C):
    """(B, C): log pi of the last C tokens, each given all tokens before it."""
    # [grpo_sg.token_logps: keeps only the logits of masked tokens, at any temperature]
    position = (real.cumsum(1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=real, position_ids=position).logits
    logits = logits[:, -C - 1:-1].float()  # position t predicts token t + 1; (B, C, V)
    return logits.log_softmax(-1).gather(2, ids[:, -C:, None])[:, :, 0]


def average_at_4():
    """The mean accuracy of four completions of each test problem."""
    # [grpo_sg.evaluate: greedy accuracy, pass@k, standard errors]
    R = sample(test, 4)[3]
    return (R == 3).float().mean()


print(f"avg@4 before: {average_at_4():.3f}", flush=True)
for step in range(1, STEPS + 1):
    # Sample, and let the verifier judge.
    with torch.no_grad():
        problems = random.Random(f"{seed} {step}").sample(train, P)
        ids, real, mask, R = sample(problems, G)
        old_logps = log_probabilities(ids, real, mask.shape[1])

    # Compare each completion with its group. How good is a reward of 3? That depends on the
    # problem, and the other completions of the same problem tell, so no value network is needed.
    # Dividing by the deviation makes the size of an update independent of the scale of the rewards.
    # [grpo_sg.group_advantages: exactly 0 where all are equal, whatever the rounding]
    groups = R.view(P, G)
    A = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)
    A = A.view(-1, 1)  # (B, 1): all tokens of a completion share it

    # Learn, from each completion once: every update has a random share of the rows. Sampling is
    # slow, so a step samples once and makes several updates.
    # [grpo_sg.learn: micro-batches for minibatches that do not fit into memory; leaves out
    # groups of equal rewards, which have no gradient; skips updates that are not finite]
    for rows in torch.randperm(P * G).chunk(UPDATES):
        logps = log_probabilities(ids[rows], real[rows], mask.shape[1])
        # From the second update on, the policy is not the one that sampled. The ratio says how
        # far it has moved: the probability of each token now, divided by its probability when it
        # was sampled. In the first update it is 1, and its gradient is that of log pi.
        r = (logps - old_logps[rows]).exp()
        # The range in which a token may move before the next samples. Its bounds are
        # AR-Lopti's, as in grpo_sg.py; GRPO and lesson/ladder.py have 1.2.
        clipped = r.clamp(0.8, 1.24)
        # GRPO-SG is this line; w = 1 is GRPO. It is a constant and not maximized, so detach.
        # [grpo_sg.token_weights]
        w = (2 * (torch.sigmoid(9 * logps.detach().exp()) - 0.25)).clamp(1, 1.4)
        # The minimum stops a token that has moved far enough in A's direction, and only that:
        # with A > 0 it has no gradient above 1.24, with A < 0 none below 0.8. A token that other
        # updates moved the wrong way (A > 0 below 0.8, A < 0 above 1.24) can still come back.
        # [grpo_sg.grpo_sg_loss: masks before exp; KL, means by completion, statistics]
        objective = w * torch.minimum(r * A[rows], clipped * A[rows])
        # Every token counts the same, because a mean by completion would make each token of a long
        # wrong completion cheaper. There is no KL to the initial policy (beta = 0), because the
        # reward is a fixed rule, and not a learned model that is right only near that policy. The
        # KL would also need a second model in memory.
        loss = -(objective * mask[rows]).sum() / mask[rows].sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    # A group of equal rewards has A = 0 everywhere, so it gives no gradient.
    print(f"step {step:2}: mean reward {R.mean():+.2f}, accuracy {(R == 3).float().mean():.2f},"
          f" zero-variance groups {(groups.std(1) == 0).float().mean():.2f}", flush=True)
print(f"avg@4 after: {average_at_4():.3f}")
