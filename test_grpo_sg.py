"""Tests: offline, on CPU, in any order. Mathematics is held against slow, independent versions of itself."""
import dataclasses
import itertools
import json
import math
import os
import random
import re
import runpy
import shutil
import signal
import statistics
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from support import data
import grpo_sg
import runs
import tasks
from grpo_sg import group_advantages, grpo_sg_loss, pass_at_k, sample, token_logps, token_weights

HERE = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)


def tiny_qwen(vocab=50, seed=0, **kwargs):
    torch.manual_seed(seed)
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, bos_token_id=None,
        eos_token_id=1, pad_token_id=1, **kwargs)).eval()


def batch(B=4, T=7, seed=0):
    """Random logps, old, ref, advantages, mask and weights; ratios on both sides of the clip."""
    g = torch.Generator().manual_seed(seed)
    logps = -3 * torch.rand(B, T, generator=g)
    old, ref = logps + 0.5 * torch.randn(B, T, generator=g), logps + 0.5 * torch.randn(B, T, generator=g)
    mask = torch.rand(B, T, generator=g) < 0.7
    mask[:, 1], mask[0, 2:] = True, False
    return logps, old, ref, torch.randn(B, generator=g), mask, token_weights(logps)


# ---- the weight ----


@pytest.mark.parametrize("pi, w", [(0.0, 1.0), (0.12, 1.0), (0.2, 1.216298), (0.25, 1.309301),
                                   (0.3, 1.374053), (0.5, 1.4), (1.0, 1.4)])
def test_weight_values(pi, w):
    assert token_weights(torch.tensor([pi]).log()).item() == pytest.approx(w, abs=2e-6)


def test_weight_unclipped_and_slope():
    def w(pi):
        return token_weights(torch.tensor([math.log(pi)]), low=0.0, high=9.0).item()
    assert w(1.0) == pytest.approx(2 * (1 / (1 + math.exp(-9)) - 0.25), abs=1e-6)
    s = 1 / (1 + math.exp(-1.8))
    assert (w(0.201) - w(0.199)) / 0.002 == pytest.approx(2 * 9 * s * (1 - s), rel=1e-2)


def test_weight_has_no_gradient_and_is_float32():
    logps = torch.tensor([[-0.5, -2.0]], dtype=torch.bfloat16, requires_grad=True)
    w = token_weights(logps)
    assert w.dtype == torch.float32 and not w.requires_grad and w.shape == logps.shape


@pytest.mark.parametrize("settings",
                         [dict(tau=9.0), dict(low=1.2, high=1.2), dict(alpha=0.0), dict(mu=-9.0)])
def test_settings_without_effect_warn(settings):
    with pytest.warns(UserWarning, match="plain GRPO"):
        w = token_weights(torch.linspace(-5, 0, 9), **settings)
    assert w.unique().numel() == 1


def test_default_settings_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        token_weights(torch.zeros(1))


@pytest.mark.parametrize("settings",
                         [dict(tau=0.0), dict(tau=-1.0), dict(low=2.0), dict(low=-0.1), dict(high=math.nan)])
def test_weight_refuses_unusable_settings(settings):
    with pytest.raises(ValueError, match="low"):
        token_weights(torch.zeros(1), **settings)


def test_other_shapings():
    logps = torch.tensor([[0.2, 0.9]]).log()
    assert grpo_sg.shaping_weights(logps, shaping="none") is None
    assert torch.allclose(grpo_sg.shaping_weights(logps, shaping="ar"), torch.tensor([[0.84, 0.98]]))
    assert torch.allclose(grpo_sg.shaping_weights(logps, shaping="reverse"),
                          token_weights((1 - logps.exp()).log()))
    assert grpo_sg.shaping_weights(torch.zeros(1, 1), shaping="reverse").item() == 1.0  # pi = 1


# ---- the advantage ----


def test_advantages_against_loop():
    rewards = torch.tensor([[3.0, -0.5, -3.0, 3.0], [1.0, 0.0, 0.0, 0.0]])
    for R, A in zip(rewards.tolist(), group_advantages(rewards).tolist()):
        m = sum(R) / 4
        std = math.sqrt(sum((x - m) ** 2 for x in R) / 3)
        assert A == pytest.approx([(x - m) / (std + 1e-6) for x in R], rel=1e-5)


def test_equal_rewards_give_exactly_zero():
    assert group_advantages(torch.full((2, 7), 0.1)).eq(0).all()
    assert group_advantages(torch.ones(1, 2, dtype=torch.long)).eq(0).all()


@pytest.mark.parametrize("shape", [(3, 1), (4,), (2, 2, 2)])
def test_advantages_refuse_groups_of_one(shape):
    with pytest.raises(ValueError, match="G >= 2"):
        group_advantages(torch.zeros(shape))


# ---- the loss ----


def slow_loss(logps, old, A, mask, weights, ref, low, high, beta, mode, denominator):
    """The paper's page as loops over Python floats; torch only for autograd, in float64."""
    sequences, count = [], 0
    for i in range(len(logps)):
        terms = []
        for t in range(logps.shape[1]):
            if mask[i, t]:
                r = torch.exp(logps[i, t] - old[i, t])
                a = A[i] if A.dim() == 1 else A[i, t]
                term = torch.min(r * a,
                                 min(max(r.item(), 1 - low),
                                     1 + high) * a if not 1 - low <= r <= 1 + high else r * a)
                term = term * (1 if weights is None else weights[i, t])
                if beta:
                    x = torch.exp(ref[i, t] - logps[i, t])
                    term = term - beta * (x - torch.log(x) - 1)
                terms.append(term)
        count += len(terms)
        sequences.append(terms)
    if mode == "token-mean":
        return -sum(sum(terms) for terms in sequences if terms) / (denominator or count)
    return -sum(sum(terms) / len(terms) for terms in sequences if terms) / (
        denominator or sum(map(bool, sequences)))


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("denominator", [None, 11])
@pytest.mark.parametrize("per_token", [False, True])
def test_loss_and_gradient_against_loop(mode, weighted, beta, denominator, per_token):
    logps, old, ref, A, mask, w = batch()
    A = torch.randn(logps.shape, generator=torch.Generator().manual_seed(5)) if per_token else A
    fast, slow = logps.clone().requires_grad_(), logps.double().requires_grad_()
    loss, _ = grpo_sg_loss(fast, old, A, mask, weights=w if weighted else None, ref_logps=ref, clip_low=0.2,
                           clip_high=0.3, beta=beta, loss_agg_mode=mode, denominator=denominator)
    expected = slow_loss(slow, old.double(), A.double(), mask, w.double() if weighted else None,
                         ref.double(), 0.2, 0.3, beta, mode, denominator)
    loss.backward(), expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(fast.grad.double(), slow.grad, atol=1e-6)


def test_loss_keeps_float64_and_lifts_bfloat16():
    logps, old, ref, A, mask, w = (x.double() if x.is_floating_point() else x for x in batch())
    loss, _ = grpo_sg_loss(logps, old, A, mask, weights=w, ref_logps=ref, beta=0.1)
    slow = slow_loss(logps, old, A, mask, w, ref, 0.2, 0.2, 0.1, "token-mean", None)
    assert loss.item() == pytest.approx(slow.item(), rel=1e-12)
    assert grpo_sg_loss(logps.bfloat16(), old.bfloat16(), A.float(), mask)[0].dtype == torch.float32


def test_fold_identity():
    """GRPO-SG is GRPO in which each token has the advantage w A: same loss, same gradient."""
    logps, old, _, A, mask, w = batch()
    x, y = logps.clone().requires_grad_(), logps.clone().requires_grad_()
    a, _ = grpo_sg_loss(x, old, A, mask, weights=w)
    b, _ = grpo_sg_loss(y, old, w * A[:, None], mask)
    (a + b).backward()
    assert torch.allclose(a, b) and torch.allclose(x.grad, y.grad)


def test_weight_inside_the_clip_would_stop_confident_tokens():
    logps = torch.tensor([[math.log(0.9)]], requires_grad=True)
    w, A, mask = token_weights(logps), torch.ones(1), torch.ones(1, 1)
    grpo_sg_loss(logps, logps.detach(), A, mask, weights=w)[0].backward()
    assert logps.grad.item() == pytest.approx(-1.4)  # r A's gradient, times w
    logps.grad = None
    wr = w * (logps - logps.detach()).exp()
    (-torch.minimum(wr, wr.clamp(0.8, 1.2))).sum().backward()
    assert logps.grad.item() == 0.0


@pytest.mark.parametrize("r, A, moves",
                         [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False),
                                         (1.1, 1.0, True), (0.9, -1.0, True), (1.25, 1.0, True),
                          (1.35, 1.0, False)])
def test_clip_quadrants(r, A, moves):
    """The clip stops a token that has gone far the way its advantage points, never one gone the other."""
    logps = torch.tensor([[math.log(0.3 * r)]], requires_grad=True)
    loss, stats = grpo_sg_loss(logps, torch.tensor([[math.log(0.3)]]), torch.tensor([A]), torch.ones(1, 1),
                               clip_low=0.2, clip_high=0.3)
    loss.backward()
    assert logps.grad.item() == pytest.approx(-r * A if moves else 0.0, abs=1e-6)
    assert stats["clip_frac"] == float(not moves)


def test_kl_is_unbiased_zero_at_the_reference_and_not_weighted():
    """Over all tokens of a small vocabulary, sum_x pi(x) k3(x) is the exact KL(pi || ref)."""
    g = torch.Generator().manual_seed(0)
    pi, ref = torch.randn(2, 6, generator=g).log_softmax(-1)
    ones, zero = torch.ones(6, 1), torch.zeros(6)
    logps, ref_logps, w = pi[:, None], ref[:, None], torch.full((6, 1), 1.3)
    per_token = [grpo_sg_loss(logps[i:i + 1], logps[i:i + 1], zero[:1], ones[:1], weights=w[:1], beta=1.0,
                              ref_logps=ref_logps[i:i + 1])[0].item() for i in range(6)]
    assert all(kl >= 0 for kl in per_token)
    assert sum(p * kl for p, kl in zip(pi.exp().tolist(), per_token)) == pytest.approx(
        (pi.exp() * (pi - ref)).sum().item(), rel=1e-4)
    x = logps.clone().requires_grad_()
    loss, stats = grpo_sg_loss(x, logps, zero, ones, weights=w, beta=1.0, ref_logps=logps)
    loss.backward()
    assert loss == 0 and stats["kl"] == 0 and x.grad.abs().max() == 0


@pytest.mark.parametrize("mode, size", [("token-mean", lambda mask: int(mask.sum())),
                                        ("seq-mean-token-mean", len)])
def test_parts_add_up_to_the_whole(mode, size):
    logps, old, ref, A, mask, w = batch(B=6)
    def run(rows, denominator):
        return grpo_sg_loss(logps[rows], old[rows], A[rows], mask[rows], weights=w[rows],
                            ref_logps=ref[rows],
                            beta=0.1, loss_agg_mode=mode, denominator=denominator)
    whole, stats = run(slice(None), None)
    parts = [run(slice(i, i + 1), size(mask)) for i in range(6)]
    assert sum(loss for loss, _ in parts).item() == pytest.approx(whole.item(), abs=1e-6)
    for key in stats:
        assert sum(part[key] for _, part in parts).item() == pytest.approx(stats[key].item(), abs=1e-5)


def test_what_is_masked_has_no_influence():
    logps, old, ref, A, mask, w = batch()
    def run(pad):
        x = torch.where(mask, logps, pad).requires_grad_()
        loss, stats = grpo_sg_loss(x, torch.where(mask, old, pad), A, mask.float(),
                                   weights=torch.where(mask, w, pad),
                                   ref_logps=torch.where(mask, ref, pad), beta=0.1)
        loss.backward()
        return [loss, x.grad, *stats.values()]
    for a, b in zip(run(0.0), run(math.nan)):
        assert torch.equal(a, b) and a.isfinite().all()
    assert grpo_sg_loss(logps, old, A, torch.zeros_like(mask))[0] == 0


@pytest.mark.parametrize("change, message", [
    (dict(loss_agg_mode="sum"), "token-mean"), (dict(beta=0.1), "ref_logps"),
    (dict(weights=torch.ones(4, 1)), "shape"),
    (dict(advantages=torch.ones(7)), "advantages"), (dict(mask=torch.ones(4, 6)), "shape")])
def test_loss_refuses_what_does_not_fit(change, message):
    logps, old, _, A, mask, _ = batch()
    with pytest.raises(ValueError, match=message):
        grpo_sg_loss(**{**dict(logps=logps, old_logps=old, advantages=A, mask=mask), **change})


def test_pass_at_k_against_enumeration():
    for n, c, k in itertools.product(range(1, 7), range(7), range(1, 7)):
        if c <= n and k <= n:
            draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    with pytest.raises(ValueError, match="k <= n"):
        pass_at_k(4, 2, 5)


# ---- log-probabilities ----


def test_token_logps_and_gradient_against_full_softmax():
    model = tiny_qwen()
    ids, mask = torch.randint(0, 50, (3, 9)), torch.zeros(3, 9, dtype=torch.bool)
    mask[0, 4:], mask[1, 2:6], mask[2, 5] = True, True, True
    logps = token_logps(model, ids, mask, temperature=0.7)
    naive = (model(input_ids=ids).logits.double() / 0.7).log_softmax(-1)
    naive = torch.cat([torch.zeros(3, 1), naive[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]], 1) * mask
    assert logps.dtype == torch.float32 and torch.allclose(logps.double(), naive, atol=1e-5)
    grads = [torch.autograd.grad(x.sum(), list(model.parameters())) for x in (logps, naive)]
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*grads))


def test_token_logps_do_not_see_pads():
    model, ids = tiny_qwen(), torch.randint(0, 50, (1, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    padded = torch.cat([ids, torch.full((1, 3), 1)], 1)
    a, b = token_logps(model, ids, mask), token_logps(model, padded, torch.nn.functional.pad(mask, (0, 3)))
    assert torch.allclose(a, b[:, :6], atol=1e-5) and b[:, 6:].eq(0).all()


def test_token_logps_refuse_a_first_token():
    with pytest.raises(ValueError, match="no context"):
        token_logps(tiny_qwen(), torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3))


# ---- sampling ----

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14]]


def test_greedy_equals_generate_with_unequal_prompts():
    model = tiny_qwen()
    ours = sample(model, PROMPTS, n=2, max_new_tokens=20, stop_ids={1}, temperature=0)
    for i, prompt in enumerate(PROMPTS):
        theirs = model.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt):].tolist()
        assert ours[2 * i] == ours[2 * i + 1] == theirs


def test_sampled_frequencies_match_the_softmax():
    """Chi-square of the first and second token over 20,000 draws, whatever the checkpoint's top_k says."""
    model = tiny_qwen(vocab=12)
    model.generation_config.top_k = 2
    g = torch.Generator().manual_seed(0)
    drawn = sample(model, [[5, 6]], n=20_000, max_new_tokens=2, stop_ids={1}, temperature=0.8, generator=g)
    first = (model(input_ids=torch.tensor([[5, 6]])).logits[0, -1] / 0.8).softmax(-1)
    top = first.masked_fill(torch.arange(12) == 1, 0).argmax().item()
    second = (model(input_ids=torch.tensor([[5, 6, top]])).logits[0, -1] / 0.8).softmax(-1)
    for p, tokens in ((first, [d[0] for d in drawn]), (second, [d[1] for d in drawn if d[0] == top])):
        expected, seen = p * len(tokens), torch.bincount(torch.tensor(tokens), minlength=12)
        assert ((seen - expected) ** 2 / expected.clamp(min=1)).sum() < 40  # 11 degrees of freedom: p < 1e-4


def test_sampling_stops_and_is_cut_off():
    model = tiny_qwen()
    stops = {1, 3, 4, 5, 6, 7, 8}
    out = sample(model, PROMPTS, n=20, max_new_tokens=8, stop_ids=stops, temperature=2.0)
    assert len(out) == 60 and {len(o) for o in out} > {1, 8}
    for o in out:
        assert not stops & set(o[:-1]) and (o[-1] in stops or len(o) == 8) and len(o) <= 8


def test_dropping_finished_rows_changes_nothing_for_the_others():
    """Each sampled token must be as likely as the model says, also after others have left the batch."""
    model = tiny_qwen()
    out = sample(model, PROMPTS, n=1, max_new_tokens=12, stop_ids=set(range(20)), temperature=0)
    alone = [sample(model, [p], n=1, max_new_tokens=12, stop_ids=set(range(20)),
                    temperature=0)[0] for p in PROMPTS]
    assert out == alone


def test_left_padding_with_learned_positions():
    """Rotary positions forgive a shift; GPT-2's do not."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.5,
        bos_token_id=None, eos_token_id=1)).eval()
    out = sample(model, PROMPTS, n=1, max_new_tokens=10, stop_ids={1}, temperature=0)
    assert out == [sample(model, [p], n=1, max_new_tokens=10, stop_ids={1}, temperature=0)[0]
                   for p in PROMPTS]
    ids, mask = torch.tensor([PROMPTS[0] + out[0]]), torch.tensor([[0] * 3 + [1] * len(out[0])])
    naive = model(input_ids=ids).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    assert torch.allclose(token_logps(model, ids, mask)[:, 3:], naive[:, 2:], atol=1e-4)


def test_sampling_without_stop_tokens_goes_to_the_limit():
    assert [len(o) for o in sample(tiny_qwen(), PROMPTS, n=1, max_new_tokens=5, stop_ids=())] == [5, 5, 5]


def test_sample_needs_prompts():
    for prompts in ([], [[1], []]):
        with pytest.raises(ValueError, match="prompt"):
            sample(tiny_qwen(), prompts, n=1, max_new_tokens=1, stop_ids={1})


# ---- a toy task, rollouts, updates ----

WORDS = ["<|im_end|>", "[UNK]", "yes", "no", "maybe", "who", "what", "why", "never", "always"]


def word_tokenizer():
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>",
                                                     pad_token="<|im_end|>", unk_token="[UNK]")
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    return tokenizer


def toy_task():
    """Say a word that answers the question, and stop."""
    problems = [tasks.Problem("who", "yes"), tasks.Problem("what", "no"), tasks.Problem("why why", "maybe")]
    return tasks.Task("toy", "", problems, problems, problems,
                      lambda text, gold: tasks.Verdict(gold in text.split(), text != ""), 1 / 3)


def toy(seed=0, **settings):
    cfg = grpo_sg.Config(**{**dict(steps=25, prompts=3, group_size=16, lr=5e-3, temperature=1.0,
                                   max_new_tokens=6, updates=2, eval_every=10, seed=seed), **settings})
    model = tiny_qwen(vocab=len(WORDS), seed=seed, tie_word_embeddings=True)
    model.generation_config.eos_token_id = 0
    return model, word_tokenizer(), toy_task(), cfg


@pytest.mark.parametrize("shaping", ["sg", "none", "ar", "reverse"])
def test_training_raises_the_reward(shaping):
    model, tokenizer, task, cfg = toy(shaping=shaping)
    logged = []
    rows = grpo_sg.train(model, tokenizer, task, cfg,
                         lambda row, completions: logged.append((row, completions)))
    assert sum(r["reward"] for r in rows[-5:]) / 5 > sum(r["reward"] for r in rows[:3]) / 3 + 2
    assert [row["step"] for row, _ in logged if row.get("split") == "valid"] == [10, 20]
    for key in ("reward", "accuracy", "format_rate", "truncated", "completion_tokens", "grad_norm",
                "entropy", "clip_frac", "kl", "weight_mean", "low_prob_frac", "seconds"):
        assert isinstance(rows[0][key], float)
    assert all(len(completions) == cfg.group_size for row, completions in logged if "split" not in row)


def rolled(**settings):
    model, tokenizer, task, cfg = toy(**settings)
    completions = grpo_sg.rollout(model, tokenizer, task, task.train, cfg, n=16, temperature=1.0, seed=1)
    rewards = torch.tensor([grpo_sg.reward(c) for c in completions]).view(3, 16)
    rewards[1] = 3.0  # a group of equal rewards
    return model, completions, group_advantages(rewards).flatten(), cfg


def stepped(model, completions, advantages, cfg, **kwargs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stats = grpo_sg.update(model, optimizer, completions, advantages, cfg, **kwargs)
    return stats, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_update_does_not_depend_on_the_micro_batches(mode, beta):
    results = []
    for most in (1, 40, 10 ** 6):
        model, completions, A, cfg = rolled(loss_agg_mode=mode, beta=beta, tokens_per_micro_batch=most)
        results.append(stepped(model, completions, A, cfg, reference=tiny_qwen(vocab=10, seed=9)))
    for stats, weights in results[1:]:
        assert torch.allclose(weights, results[0][1], atol=1e-6)
        assert stats == pytest.approx(results[0][0], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_update_against_one_plain_batch(mode):
    """One update, all completions in one padded batch, nothing skipped, no micro-batches."""
    model, completions, A, cfg = rolled(updates=1, loss_agg_mode=mode)
    _, weights = stepped(model, completions, A, cfg)
    model, *_ = rolled()
    T = max(len(c.prompt + c.tokens) for c in completions)
    ids = torch.tensor([c.prompt + c.tokens + [0] * (T - len(c.prompt + c.tokens)) for c in completions])
    mask = torch.tensor([[len(c.prompt) <= t < len(c.prompt + c.tokens) for t in range(T)]
                         for c in completions])
    logps = token_logps(model, ids, mask)
    grpo_sg_loss(logps, logps.detach(), A, mask, weights=token_weights(logps), clip_high=cfg.clip_high,
                 loss_agg_mode=mode)[0].backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert torch.allclose(weights, torch.cat([p.detach().flatten() for p in model.parameters()]), atol=1e-6)


def test_beta_needs_a_reference():
    model, completions, A, cfg = rolled(beta=0.1)
    with pytest.raises(ValueError, match="needs ref_logps"):
        stepped(model, completions, A, cfg)


def test_first_update_has_ratio_exactly_one():
    model, completions, A, cfg = rolled(updates=1)
    stats, _ = stepped(model, completions, A, cfg)
    assert stats["clip_frac"] == 0 and stats["kl"] == 0 and stats["grad_norm"] > 0
    model, completions, A, cfg = rolled(updates=3, lr=1.0)
    assert stepped(model, completions, A, cfg)[0]["kl"] > 0


def test_equal_groups_leave_the_model_alone():
    model, completions, A, cfg = rolled()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    stats, after = stepped(model, completions, torch.zeros(48), cfg)
    assert torch.equal(before, after) and stats["grad_norm"] == 0 and stats["entropy"] is None


def test_gradient_checkpointing_is_on_and_changes_nothing():
    weights, calls = [], []
    for checkpointing in (False, True):
        model, completions, A, cfg = rolled(gradient_checkpointing=checkpointing)
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        calls.append(0)
        def count(*_):
            calls[-1] += 1
        model.model.layers[0].input_layernorm.register_forward_hook(count)
        weights.append(stepped(model, completions, A, cfg)[1])
    assert torch.allclose(*weights, atol=1e-6) and calls[1] > calls[0]
    assert grpo_sg.rollout(model, word_tokenizer(), toy_task(), toy_task().train, cfg,
                           n=2, temperature=1, seed=1)


def test_mask_holds_the_stop_token_and_nothing_after_it():
    """Pad is the end token here: a mask by `ids != pad` would lose it, and stopping is never learned."""
    _, completions, A, cfg = rolled()
    for micro in grpo_sg.micro_batches(completions, torch.arange(48.0), range(48), cfg, torch.device("cpu")):
        for ids, mask, i in zip(micro["ids"], micro["mask"], micro["advantages"]):
            c = completions[int(i)]
            assert ids[mask].tolist() == c.tokens
            assert mask.nonzero()[0] == len(c.prompt)
            assert c.truncated or ids[mask][-1] == 0


def test_truncated_completions_are_badly_formed():
    _, completions, _, _ = rolled()
    assert {c.truncated for c in completions} == {True, False}
    for c in completions:
        assert c.truncated == (c.tokens[-1] != 0) and not (c.truncated and c.formatted)
        assert grpo_sg.reward(c) == (-3 if not c.formatted else 3 if c.correct else -0.5)


def test_rollout_depends_on_the_seed_alone():
    """Also not on how many are sampled at once: a long rollout goes through memory in chunks."""
    texts = [[c.text for c in rolled(sample_batch=size)[1]] for size in (64, 64, 48, 16, 1)]
    assert all(other == texts[0] for other in texts) and len(set(texts[0])) > 3


def test_a_draw_does_not_depend_on_when_others_end():
    model = tiny_qwen()
    model.lm_head.weight.data[1] += 0.3  # the stop token now and then
    g = torch.Generator()
    many = sample(model, [[5, 6], [7]], n=8, max_new_tokens=12, stop_ids={1}, generator=g.manual_seed(3))
    free = sample(model, [[5, 6], [7]], n=8, max_new_tokens=12, stop_ids=set(), generator=g.manual_seed(3))
    assert all(full[:len(row)] == row for row, full in zip(many, free)) and len({*map(len, many)}) > 2


def test_evaluation_counts():
    model, tokenizer, task, cfg = toy()
    row, greedy = grpo_sg.evaluate(model, tokenizer, task, task.test, cfg, samples=4, step=7)
    assert row["step"] == 7 and row["eval/accuracy"] == sum(c.solved for c in greedy) / 3
    assert row["eval/avg@4"] == pytest.approx(row["eval/pass@1"])
    assert row["eval/pass@1"] <= row["eval/pass@2"] <= row["eval/pass@4"]


# ---- Knights and Knaves ----

ROLES = {"Mira": "knight", "Tobias": "knave", "Zo\u00eb": "knight"}
RIGHT = ("<think>Mira is honest.</think>\n"
         "<answer>(1) Mira is a knight\n(2) Tobias is a knave\n(3) Zo\u00eb is a knight</answer>")


def answered(answer, thoughts="Let me see."):
    return f"<think>{thoughts}</think>\n<answer>{answer}</answer>"


@pytest.mark.parametrize("response", [
    RIGHT, RIGHT + "<|im_end|>", RIGHT + "\n<|endoftext|>\n", "  " + RIGHT,
    answered("Mira is a knight, Tobias is a knave, and Zo\u00eb is a knight."),
    answered("mira IS A KNIGHT; tobias is a Knave. zo\u00eb is a knight"),
    answered("**Mira** is a **knight**\n- Tobias is a knave\n- Zo\u00eb is a knight"),
    answered("1. Mira is a knight 2. Tobias is a knave 3. Zo\u00eb is a knight"),
    answered("Zoe\u0308 is a knight, Mira is a knight, Tobias is a knave"),
    answered("Mira is a knight, Tobias is a knave, Zo\u00eb is a knight, Mira is a knight"),
    answered("Mira is a knight and Tobias is a knave and Zo\u00eb is a knight",
             "If x < 3 & y > 2, hmm: a knave?")])
def test_right_answers_are_accepted(response):
    assert tasks.verify_kk(response, ROLES) == (True, True)


@pytest.mark.parametrize("names, answer", [
    (["O'Neil", "Anna"], "O'Neil is a knight, Anna is a knight"),
    (["O'Neil", "Anna"], "O\u2019Neil is a knight, Anna is a knight"),
    (["Mary Ann", "Ann", "Mary"], "Mary Ann is a knight, Mary is a knight, Ann is a knight"),
    (["Anna-Maria", "Maria"], "Anna-Maria is a knight. Maria is a knight."),
    (["And", "Knight", "A"], "And is a knight and Knight is a knight and A is a knight"),
    (["Think", "\u095boya"], "Think is a knight, \u095boya is a knight"),
    (["\u00c9lodie", "Bj\u00f6rn"], "\u00e9lodie is a knight; BJ\u00d6RN is a knight")])
def test_unusual_names_are_read(names, answer):
    assert tasks.verify_kk(answered(answer), dict.fromkeys(names, "knight")) == (True, True)


GOOD = "Mira is a knight, Tobias is a knave, Zo\u00eb is a knight"


@pytest.mark.parametrize("answer", [
    "", " ", GOOD.replace("a knave", "a knight"), "Mira is a knight, Tobias is a knave",
    GOOD + ", Ivo is a knave",
    "It is false that Mira is a knight, Tobias is a knave, Zo\u00eb is a knight",
    GOOD.replace("is a kn", "is not a kn", 1),
    "Is it that " + GOOD + "?", GOOD + "?", "I guess " + GOOD, "maybe " + GOOD, GOOD + " or not", GOOD + "!",
    "Tobias said Mira is a knight, Tobias is a knave, Zo\u00eb is a knight", '"' + GOOD + '"',
    GOOD.replace("Mira is a knight", "Mira is a knight's rival"),
    GOOD.replace("Mira is a knight", "Mira is a knightess"),
    GOOD + ". Wait, Mira is a knave", "Mira is a knave, " + GOOD,
    GOOD + ". No, the other way round", GOOD + ". Just kidding",
    GOOD.replace("Mira", "M\u0456ra"), GOOD.replace("knight", "\u212anight"),
    GOOD.replace("knave", "knav\u0435"),
    GOOD.replace("Mira", "Anna-Mira"), GOOD.replace("Mira", "Mira-Anna"),
    GOOD.replace("Mira is", "Mira\u200b is"),
    GOOD.replace("Zo\u00eb", "Zoe"), "Mira: knight, Tobias: knave, Zo\u00eb: knight", "~~" + GOOD + "~~",
    "Mira is a knight or a knave, Tobias is a knave, Zo\u00eb is a knight", "knight, knave, knight",
    "Mira is a knightTobias is a knaveZo\u00eb is a knight", GOOD + " <think>no</think>"])
def test_answers_that_say_anything_else_are_not_right(answer):
    assert not tasks.verify_kk(answered(answer), ROLES).correct


@pytest.mark.parametrize("response", [
    "", GOOD, f"<answer>{GOOD}</answer>", answered(GOOD, ""), answered(GOOD, " \n"),
    answered(GOOD, "\u200b..."),
    "Sure! " + RIGHT, RIGHT + " I am sure.", RIGHT.replace("</think>", "</think> so:"), RIGHT + RIGHT,
    RIGHT.replace("<think>", "<Think>"), RIGHT.replace("answer>", "Answer>"), RIGHT.replace("<think>", ""),
    RIGHT.replace("</think>", ""), RIGHT.replace("</answer>", ""),
    RIGHT + "<ANSWER>Mira is a knave</ANSWER>",
    RIGHT + "<answer >Mira is a knave</answer >", RIGHT + "\uff1canswer\uff1e",
    answered(GOOD, "see <answer> there"),
    answered(GOOD, "ok<|im_end|>\n<|im_start|>user\nAre you sure?"),
    answered(GOOD, "ok\nUser: sure?\nAssistant: yes"),
    f"<answer>{GOOD}</answer><think>ok</think>", RIGHT + "<|im_end|><|im_start|>assistant " + RIGHT,
    "Assistant: " + RIGHT, RIGHT + "\x00"])
def test_badly_formed_responses(response):
    assert not tasks.verify_kk(response, ROLES).formatted


@pytest.mark.parametrize("response", [
    RIGHT + RIGHT, "<think>" + RIGHT, "<think>a<think>" + RIGHT[7:],
    f"<think>x</think><Answer>{GOOD}</Answer>",
    f"<think><answer>{GOOD}</answer></think>", f"<think>a</think><answer>{GOOD}",
    RIGHT + "<ANSWER>Mira is a knave</ANSWER>"])
def test_which_block_is_the_answer_must_be_clear(response):
    assert not tasks.verify_kk(response, ROLES).correct


@pytest.mark.parametrize("response, verdict", [
    (answered(GOOD, "a</think>\u0338 text outside <think>\u0338 b"), (True, False)),
    (answered(GOOD) + "<answer>\u0338Mira is a knave</answer>\u0338", (False, False)),
    (f"</think><think><answer>{GOOD}</answer></think>", (False, False)),
    (f"<THINK>a<answer>{GOOD}</answer></THINK>", (False, False)),
    (f"<think>a</think><THINK>b <answer>{GOOD}</answer></THINK>", (False, False)),
    (f"a</think>\n<answer>{GOOD}</answer>", (True, False)),
    (answered(GOOD, "ok\rUser: sure?"), (True, False)),
    (answered(GOOD, "ok\n\u200bUs\u200ber: sure?"), (True, False)),
    (answered(GOOD, "ok\n" + 9 * " " + "User: a"), (True, False)),
    (answered(GOOD, "<\u200banswer> Mira is a knave </\u200banswer>"), (False, False)),
    (answered(GOOD, "ok\u2028 **User**: s"), (True, False)),
    (answered(GOOD, "<\uff5cUser\uff5c> sure?"), (True, False)), (answered(GOOD, "\u3164"), (True, False)),
    (answered(GOOD, "|x|<|y| and x < 3"), (True, True))])
def test_hidden_tags_and_turns(response, verdict):
    assert tasks.verify_kk(response, ROLES) == verdict


def test_a_puzzle_without_people_has_no_answer():
    for answer in ("", " is a knight", "1.  is a knave"):
        assert tasks.verify_kk(answered(answer), {}) == (False, True)


def test_correct_and_formatted_are_apart():
    assert tasks.verify_kk(f"<answer>{GOOD}</answer>", ROLES) == (True, False)
    assert tasks.verify_kk(answered("Mira is a knave"), ROLES) == (False, True)
    assert tasks.verify_kk(answered(""), {}) == (False, True)


def test_hostile_responses_are_cheap():
    n = 200_000
    for text in ["<think>" * n, " " * n + "x", "<answer>" * n, answered("Mira is a knight " * n),
                 answered(" " * n), answered("and " * n), answered("1. " * n), "<" + " " * n, "</think>" * n,
                 "<think>x</think>" + " " * n, "<|im_end|>" * n, answered("Mira " + " " * n),
                 "\ud800" * n, "\x00" * n, "((((" * n, "< / " * n, "<think>" + "a\nuser" * n,
                 answered("\u0301" * n), "**" * n, "\u0301" * n + "\u0323" * n,
                 answered(GOOD, "\u0344" * n + "\u0338" * n), "\n" * n + "user"]:
        started = time.perf_counter()
        assert not all(tasks.verify_kk(text, ROLES))
        assert time.perf_counter() - started < 2, text[:30]


def say(statement, roles):
    """The truth of an English claim, read by splitting: independent of the bit masks that made it."""
    if statement.startswith("if "):
        x, y = statement[3:].split(" then ")
        return not say(x, roles) or say(y, roles)
    for word, rule in ((" if and only if ", lambda x, y: x == y), (" and ", lambda x, y: x and y),
                       (" or ", lambda x, y: x or y)):
        if word in statement:
            return rule(*(say(part, roles) for part in statement.split(word)))
    if statement.startswith("it is not true that "):
        return not say(statement[20:], roles)
    name, role = statement.split(" is a ")
    return roles[name] == role


@pytest.mark.parametrize("n", range(2, 9))
def test_puzzles_have_one_solution_by_brute_force(n):
    for seed in range(30 if n < 7 else 5):
        problem = tasks.kk_puzzle(n, random.Random(seed))
        names = list(problem.answer)
        told = problem.question.split(
            ", ".join(names[:-1]) + " and " + names[-1] + ". ")[1].rsplit(" Who is a", 1)[0]
        claims = {}
        for sentence in told.split(". "):
            said = sentence.rstrip(".")
            for saying in tasks.SAYINGS:
                before, middle, _ = saying.split("{}")
                speaker = next((s for s in names if said.startswith(before + s + middle)), None)
                if speaker:
                    claims[speaker] = said.removeprefix(before + speaker + middle)
                    break
        assert set(claims) == set(names)
        assert not any(f"{name} is a knave" in claim for name, claim in claims.items())
        fits = [roles for roles in (dict(zip(names, r)) for r in itertools.product(tasks.ROLES, repeat=n))
                if all((roles[s] == "knight") == say(c, roles) for s, c in claims.items())]
        assert fits == [problem.answer]
        assert tasks.verify_kk(problem.solution, problem.answer) == (True, True)


def meanings(question):
    """A brief puzzle of three up to renaming and equivalence: truth tables, the least over all namings."""
    names = tasks.NAMES[:3]
    claims = dict(part.split(": ") for part in question.rstrip(".").split(". "))
    def long(claim):
        words = claim.replace("iff", "if and only if").replace("not ", "it is not true that ").split()
        return " ".join(w + " is a" if w in names else w for w in words)
    return min(tuple(tuple((say(long(claims[s]), dict(zip(order, roles)))) for roles in
                           itertools.product(tasks.ROLES, repeat=3)) for s in order)
               for order in itertools.permutations(names))


def test_splits_share_no_puzzle_under_other_names_or_words():
    found = {split: [p.question for p in tasks.kk_split(split, 150, [3], seed, brief=True)]
             for split, seed in (("train", 0), ("valid", 1), ("test", 0))}
    sets = {split: {meanings(q) for q in questions} for split, questions in found.items()}
    assert (not sets["train"] & sets["test"] and not sets["train"] & sets["valid"]
            and not sets["valid"] & sets["test"])
    assert len(sets["test"]) == len(found["test"]) and len(set(found["train"])) == 150


def test_splits_are_deterministic():
    assert tasks.kk_split("test", 5, [3, 4], 0) == tasks.kk_split("test", 10, [3, 4], 0)[:5]
    assert tasks.kk_split("train", 5, [3], 0) != tasks.kk_split("train", 5, [3], 1)


def test_there_are_41_puzzles_of_two_people():
    rng = random.Random(0)
    assert len({tasks.kk_puzzle(2, rng).meaning for _ in range(6000)}) == 41


@pytest.mark.parametrize("n", [0, 1, 9])
def test_other_sizes_are_refused(n):
    with pytest.raises(ValueError, match="2 to 8"):
        tasks.kk_puzzle(n, random.Random(0))


def test_a_size_that_runs_out_ends_the_split():
    assert 200 < len(tasks.kk_split("train", 20_000, [2], 0, brief=True)) < 1000


def test_distribution_of_puzzles():
    """Against what TASKS describes of the published set; 2 points, and 2 % for lengths."""
    all_knights = {3: .158, 4: .073, 5: .051, 6: .024, 7: .011}
    lengths = {3: 379, 4: 441, 5: 507, 6: 570, 7: 635}
    kinds = dict(zip((" if and only if ", "if ", " and ", " or ", "it is not true that ", ""),
                     (.167, .178, .170, .171, .154, .161)))
    seen, rng, claims = dict.fromkeys(kinds, 0), random.Random(0), 0
    for n in all_knights:
        problems = [tasks.kk_puzzle(n, rng) for _ in range(4000)]
        roles = [list(p.answer.values()) for p in problems]
        assert abs(sum(r.count("knight") for r in roles) / 4000 / n - .544) < .02
        assert abs(sum(r == ["knight"] * n for r in roles) / 4000 - all_knights[n]) < .02
        assert abs(sum(len(p.question) for p in problems) / 4000 / lengths[n] - 1) < .02
        for problem in problems[:1500]:
            told = problem.question.split(" on the shore: ")[1]
            for sentence in told.split(". ")[1:-1]:
                claims += 1
                seen[next(kind for kind in kinds if kind in sentence.replace("If you believe",
                                                                             "").replace("In the", ""))] += 1
    for kind, share in kinds.items():
        assert abs(seen[kind] / claims - share) < .02, kind


def test_five_thousand_puzzles_a_second():
    def speed():
        rng, started = random.Random(0), time.perf_counter()
        for _ in range(300):
            tasks.kk_puzzle(5, rng)
        return 300 / (time.perf_counter() - started)
    assert max(speed() for _ in range(5)) > 5000 / 4  # a quarter, as test machines are slow and busy


# ---- mathematics ----

# The answers of a line are equal to its first; answers of different lines never are.
EQUAL = r"""
0 | 0.0 | -0 | \frac{0}{7} | \sin\pi | 1 - 1
7 | 7.0 | 007 | +7 | x = 7 | \frac{14}{2} | \left(7\right) | $7$ | \boxed{7} | 7 \text{ apples} | 7.
8 | 8 eggs per day | 8 points | 8 \text{ quarters}
(a,b) | (h,k)=(a,b)
36\pi | 36 \pi cm^2
\begin{pmatrix} 1 & 2 \end{pmatrix} | \frac{1}{2}\begin{pmatrix} 2 & 4 \end{pmatrix}
-7 | − 7 | \frac{-7}{1} | y = -7
1/2 | 0.5 | \frac12 | \dfrac 1 2 | .5 | 2^{-1} | ½ | \tfrac{3}{6} | \cos 60^\circ | \cos\frac{\pi}{3}
2\frac{1}{3} | \frac{7}{3} | 7/3 | 2 1/3 | 2 + \frac{1}{3} | 2.\overline{3}
1234567 | 1,234,567 | 1{,}234{,}567 | 1,\!234,\!567 | 1234567.00
1000000 | 10^6 | 1 \times 10^{6} | 1e6 | 1,000,000 | 10^{2} \cdot 10^4
3.2 \times 10^{-5} | 0.000032 | 3.2e-5 | 32 \cdot 10^{-6}
100000000000000000000 | 10^{20}
100000000000000000001 | 10^{20} + 1
10^{20} + \sqrt{2}
\sqrt{2} | 2^{1/2} | \frac{2}{\sqrt{2}} | \sqrt 2 | √2 | 1.414214 | 1.4142135 | \sqrt{2} \approx 1.41
1.4142
2\sqrt{3} | \sqrt{12} | \frac{6}{\sqrt{3}} | 2 \cdot \sqrt3
\sqrt[3]{5} | 5^{\frac{1}{3}} | \sqrt[6]{25}
1 + \sqrt{2} | \frac{1}{\sqrt{2} - 1} | \sqrt2+1
\pi | π | \frac{2\pi}{2} | 3.141593
\frac{3\pi}{4} | 0.75\pi | \frac{3}{4}\pi | 3\pi/4
3 + 4i | 4i + 3 | (2 + i)^2 | 3+4\mathrm{i}
3 - 4i | -4i + 3
120^\circ | 120° | 120 | 120 \text{ degrees} | 120^{\circ}
35\% | 0.35 | 35 | \frac{7}{20}
\$12.50 | 12.5 | \frac{25}{2} | 12.50 \text{ dollars} | \$ 12.50
9.8 \text{ m/s}^2 | 9.8 \text{ m}/\text{s}^2 | 9.8
15 \text{ cm}^2 | 15\text{ square centimeters} | 15
x^2 - 1 | (x-1)(x+1) | -(1 - x)(1 + x) | x^{2}-1
x^2 - 2x + 1 | (x-1)^2 | (1-x)^2 | y = x^2 - 2x + 1
\frac{1}{x+1} | (x+1)^{-1} | \frac{2}{2x+2}
2^{n+1} | 2 \cdot 2^n | 4^{(n+1)/2}
ab + a | a(b+1) | a + ba
\log_2 3 | \frac{\ln 3}{\ln 2} | \log_{4}{9}
\sin 2x | 2 \sin x \cos x
n! - 1
(n+1)! | (n+1) \cdot n! | \frac{(n+2)!}{n+2}
\binom{n}{2} | \frac{n(n-1)}{2} | \binom{n}{2} + 0
\binom{2018}{2} | 2035153
(-1)^n
(-1)^{n+1} | -(-1)^n
\frac{1}{1-a} | \frac{-1}{a-1}
\frac{m_1 m_2}{m_1 + m_2} | \frac{m_2 m_1}{m_2 + m_1}
\left\lfloor \frac{n}{3} \right\rfloor
\left\lfloor \frac{n}{4} \right\rfloor
\lfloor 3.7 \rfloor + 8 | \lceil \pi \rceil + 7 | 11
I(0) e^{-t}
0.\overline{27} | \frac{3}{11} | 0.\bar{27} | 0.\dot{27}
y = \sqrt{x-1}
y = \sqrt{x-1} + 3
29^\circ | \angle ABC = 29^\circ | ABC = 29
\binom{10}{4} | 210 | \frac{10!}{4!\,6!}
2x + 3y = 6 | 4x + 6y = 12 | y = 2 - \frac{2x}{3} | 2x + 3y - 6 = 0
x^2 + y^2 = 9 | y^2 + x^2 - 9 = 0
(3, -4) | (3,-4) | \left( 3, -4 \right) | (x, y) = (3, -4) | \left(\frac{6}{2},-4.0\right)
(-4, 3)
[3, 4] | \left[3, 4\right] | 3 \le x \le 4 | x \in [3, 4]
(3, 4] | 3 < x \leq 4 | x \in (3,4]
(3, 4) | 3 < x < 4 | \left(3,4\right)
[3, \infty) | x \ge 3 | 3 \leq t
(-\infty, 3) | x < 3 | 3 > x | (-\infty,3)
(-\infty, 1) \cup (2, \infty) | (2,\infty)\cup(-\infty,1) | x < 1 \text{ or } x > 2
\{3, 5\} | 5, 3 | 3, 5 | \left\{ 5, 3 \right\} | x = 3 \text{ or } x = 5 | 3 \text{ and } 5 | 4 \pm 1
\{\{3\}, \{5\}\}
3, 3, 5
3
1 \pm \sqrt{5} | 1 + \sqrt{5}, 1 - \sqrt{5}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{bmatrix}1&2\\3&\frac82\end{bmatrix}
\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}
\begin{pmatrix} 1 & 2 & 3 & 4 \end{pmatrix}
\begin{pmatrix} 1 \\ 2 \\ 3 \\ 4 \end{pmatrix}
2043_5 | 2043_{5}
2043_6
2043
\text{Evelyn} | Evelyn | \textbf{Evelyn} | evelyn
\text{Martha} | Martha
\text{(C)} | C | (C) | \textbf{C}
\text{(D)} | D
\text{yes} | Yes
\text{no}
3:4 | 3 : 4
\emptyset | \{\} | \varnothing
\infty | +\infty
-\infty
f(3)
3f
6m
\overline{AB}
\vec{v} \times \vec{w}
2.88 \times 10^{-19}
4.6 \times 10^{-24}
"""
EQUAL = [[answer.strip() for answer in line.split(" | ")] for line in EQUAL.strip().split("\n")]


def boxed(answer, gold):
    return tasks.verify_math(f"So it is $\\boxed{{{answer}}}$.", gold).correct


@pytest.mark.parametrize("line", EQUAL, ids=lambda line: line[0])
def test_equal_answers_are_accepted(line):
    assert [answer for answer in line if not boxed(answer, line[0])] == []


def test_different_answers_are_rejected():
    assert [(answer, other[0]) for line in EQUAL for other in EQUAL for answer in line
            if other is not line and boxed(answer, other[0])] == []


def test_labelled_pairs():
    """Responses as models write them, labelled by hand, some by somebody who had not seen the verifier."""
    rows = rows_of(os.path.join(HERE, "support", "math_pairs.jsonl"))
    assert len(rows) == 1389
    assert [row for row in rows
            if tasks.verify_math(row["response"], row["gold"]).correct != row["correct"]] == []


@pytest.mark.parametrize("answer, gold", [
    ("5, 6", "5"), ("5 \\text{ or } 6", "5"), ("\\text{not } 5", "5"), ("5 \\text{ or maybe } 7", "5"),
    ("4=3", "3"), ("x+y+4=0", "0"), ("6m", "6"), ("\u0665", "5"),
    ("5_0", "50"), ("(1,000)", "1000"), ("1,00", "100"),
    ("1,0000", "10000"), ("nan", "nan1"), ("10^{400}", "\\infty"),
    ("10^{-400}", "0"), ("0.9999999", "1"), ("3.14", "\\pi"),
    ("1/3", "0.333333"), ("\\infty - \\infty", "0"),
    ("\\tan\\frac{\\pi}{2}", "16331239353195370"), ("5 \\text{ km}", "5 \\text{ m}"),
    ("0<y<1", "0<x<1"), ("(1,2", "(1,2)"), ("50\\%", "0.005"),
    ("0.5\\%", "50"), ("\\text{yes and no}", "\\text{yes}"), ("", ""),
    ("10^{15}", "10^{15}+\\pi"), ("(-1)^n", "1"), ("(-2)^n", "-2^n"),
    ("5 \\text{ Million}", "5"), ("3 \\text{ halves}", "3"), (",", "\\emptyset"),
    ("5 \\text{ sixths}", "5"), ("5 \\text{ point six}", "5"), ("5 \\text{ less one}", "5"),
    ("6 \\text{ or } \\boxed{5}", "5"), ("-\\boxed{5}", "5"), ("\\boxed{5}, 6", "5"), ("\\boxed{}", ""),
    ("(y,x)=(1,2)", "(x,y)=(1,2)"), ("5 \\text{ twenty}", "5"), ("\\text{never} = 5", "5"),
    ("5\\%^2", "5"), ("5\\%\\%", "5"), ("5\\$\\%", "5"), ("5 \\text{ weeks}", "5 \\text{ days}"),
    ("{}", "\\text{no solution}"), ("x(1)", "x"), ("\\text{negative} = 5", "5"),
    ("x = 4 = 5", "5"), ("\\frac13 \\approx 0.34", "\\frac13"),
    ("\\exp(-40)", "0"), ("\\sqrt{x-1}+1", "\\sqrt{x-1}")])
def test_near_misses(answer, gold):
    assert not boxed(answer, gold)


@pytest.mark.parametrize("response, correct, formatted", [
    ("\\boxed{4} no, \\boxed{5}", True, True),
    ("\\boxed{5} no, \\boxed{4}", False, True), ("\\boxed{5} \\boxed{}", False, False),
    ("\\boxed{5} and \\boxed{5", False, False), ("5", False, False),
    ("The answer is 5.", False, False), ("", False, False),
    ("<think>\\boxed{4}</think> \\boxed{5}", True, True), ("<think>\\boxed{5}</think> done", False, False),
    ("<think>\\boxed{5}", False, False),
    ("\\boxed{5} <think> hm", False, False), ("</think> \\boxed{5}", True, True),
    ("<answer>5</answer>", True, True), ("<answer>so \\boxed{5}</answer>", True, True),
    ("<answer>\\boxed{}5</answer>", False, False), ("<answer>6 or \\boxed{5}</answer>", False, True),
    ("<answer>\\boxed{5} or 6</answer>", False, True), ("<answer>-$\\boxed{5}$</answer>", False, True),
    ("<answer>not \\boxed{5}</answer>", False, True), ("<answer>\\boxed{5}^2</answer>", False, True),
    ("<answer>**Final Answer:** \\boxed{5}</answer>", True, True),
    ("<answer>2+3=5\n\n\\boxed{5}</answer>", True, True), ("<answer>x => \\boxed{5}</answer>", True, True),
    ("<answer>- \\boxed{5}</answer>", True, True), ("<answer>\\boxed{5}\n\n---</answer>", True, True),
    ("<answer>\\boxed{5}, and we are done.</answer>", True, True),
    ("<answer>\\boxed{5} \\text{ is it} \\blacksquare</answer>", True, True),
    ("<answer>5\n\\boxed{1}</answer>", False, True),
    ("<answer>\\boxed{8}\n- \\boxed{3}</answer>", False, True),
    ("<answer>6, \\boxed{5}</answer>", False, True), ("<answer>10 - \\boxed{5}</answer>", True, True),
    ("<answer>\\boxed{5} \\text{ or } 6</answer>", False, True),
    ("<answer>\\[x = \\boxed{5}\\]</answer>", True, True), ("10 - \\boxed{ \\boxed{5} }", True, True),
    ("\\boxed{10 - \\boxed{5}}", True, True), ("\\boxed{9 - \\boxed{5}}", False, True),
    ("\\boxed{4} <answer>5</answer>", True, True), ("\\boxed{5} <answer>4</answer>", False, True),
    ("<answer>5</answer><answer>4</answer>", False, True), ("\\boxed{5} <answer>4", False, False),
    ("<answer></answer>", False, False), ("\\boxed{\\boxed{5}}", True, True), ("\\fbox{5}", True, True),
    ("\\boxed 5", False, False), ("\\boxed{\\text{a \\} b}}", False, True),
    ("\\boxed{" + " " * 2000 + "5}", False, False)])
def test_where_the_final_answer_stands(response, correct, formatted):
    assert tasks.verify_math(response, "5") == (correct, formatted)


def test_any_of_several_golds():
    assert (tasks.verify_math("\\boxed{5}", ["4", "5"]).correct
            and not tasks.verify_math("\\boxed{6}", ["4", "5"]).correct)
    assert not tasks.verify_math("\\boxed{5}", []).correct


HOSTILE = (
    [f"\\boxed{{{middle}}}" for middle in (
        "9^{9^{9^9}}", "9^9^9^9", "99999!", "400!^{400!}", "((" * 400 + "1",
        "2^{-99999999}", "10^{10^{10}}", "0^{-1}", "1/0", "0^0", "\\frac00",
        "\\log 0", "\\log_1 5", "\\ln 0", "\\tan 90^\\circ", "i^i^i",
        "\\sqrt[0]{2}", "\\binom{400}{200}^{99}", "\\binom{-1}{2}", "(-1)!",
        "1e400", "1e-400", "1e999999999", "1e+", "e^{1000}", "e^{-1000}",
        "\\sinh 800", "9" * 900 + "!", "nan", "inf", "-inf", "1e308*10",
        "__import__('os').system('true')", "lambda: 0", "{}.__class__",
        "%s%s%n", "{0.__class__}", "\\input{/etc/passwd}", "\x00", "5\x00",
        "\ud800", "\udfff5", "\u0665", "\uff15", "5\u20dd", "\u0661\u0662",
        "\u202e5", "5\u200b0", "\u00b9", "Ⅴ", "⑤", "ﬁve", "∑", "∫_0^1",
        "\\frac" * 150, "\\sqrt" * 150, "\\text{" * 100, "-" * 900,
        "+-" * 400, "\\pm" * 300, "=" * 900, "<" * 900, "5=" * 300, "x<" * 300,
        "{" * 400 + "5" + "}" * 400, "(" * 450 + "5" + ")" * 450,
        "\\{" * 200 + "5" + "\\}" * 200, "[" * 900, "|" * 900, "|x|" * 300, "1," * 400,
        "\\begin{matrix}" * 50, "\\begin{matrix}" + "1&" * 400 + "\\end{matrix}",
        "\\begin{matrix}1\\end{matrix", "\\end{matrix}", "^" * 900, "_" * 900,
        "x_" * 400, "x^" * 400, "x^{" * 300, "!" * 900, "5" + "!" * 300,
        "°" * 900, "%" * 900, "5" + "%" * 900, "$" * 900, "\\$" * 400, "'" * 900,
        "x" + "'" * 900, ";" * 900, "\\\\" * 450, "&" * 900, "\\" * 901,
        "~" * 900, "\\," * 450, "\\left" * 150, "\\right." * 100, '"' * 900,
        "\\text{and}" * 100, "or" * 450, "0." + "3" * 900, "\\overline{" * 90,
        "0.\\overline{" + "3" * 900 + "}", "1,000" * 180, "1e5" * 300,
        "\\frac{1}{" * 100 + "2" + "}" * 100, "\\sin" * 240, "\\log_" * 180,
        "\\log_{\\log_2 3}" * 60, "f(" * 450, "f(3)" * 220, "∞" * 900,
        "\\infty-\\infty", "\\cup" * 220, "\\in" * 300, "x\\in" * 200, "3/" * 450,
        "1 1/2" * 180, "\\arctan^\\infty x", "\\sin^{\\emptyset} x", "0.\x1c5", "\x1f1",
        "^\x1c5", "½" * 500, "½," * 60, "+½" * 70, "√2," * 120, "(x+y)^{400}+" * 40,
        "\\binom{9^{900}}{60}+" * 25, "x!" * 200, "\\pi!", "2\\frac{1}{2}" * 75, "\\abs" * 200)]
    + [c * 10 ** 6 for c in ("\\boxed{", "\\boxed{}", "<answer>", "</answer>", "<think>", "</think>",
                             "{", "}", "\\", " ", "9", "\\boxed{5")]
    + ["\\boxed{" + c * 10 ** 6 + "}" for c in ("9", " ", ",", "(", "{}", "\\,", "$", "e", "\n", "'")]
    + ["\\boxed{4}" * 10 ** 5, "\\boxed{" * 5000 + "4" + "}" * 5000, "<answer>4</answer>" * 10 ** 5,
       "\\boxed" + " " * 10 ** 6 + "{4}", "<answer>\\boxed{4}" + " $" * 10 ** 5 + "</answer>",
       "<answer>" + "or $" * 10 ** 5 + "\\boxed{4}</answer>"])


def test_hostile_answers_are_cheap_and_wrong():
    """Each within 50 ms (the machine's pauses aside: the best of three), and from a worker thread."""
    def attack():
        for response in HOSTILE:
            for gold in ("5", "x^2+1", "(1, 2)"):
                seconds = []
                for _ in range(3):
                    started = time.perf_counter()
                    assert not tasks.verify_math(response, gold).correct, response[:80]
                    seconds.append(time.perf_counter() - started)
                    if seconds[-1] < 0.05:
                        break
                assert min(seconds) < 0.05, response[:80]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(attack).result()
    assert len(HOSTILE) > 110


def test_soups_of_tokens_raise_nothing():
    rng = random.Random(0)
    pieces = sorted({token for line in EQUAL for answer in line
                     for token in re.findall(r"\\\w+|\w+|.", answer)} - {"\\boxed"})
    for _ in range(5000):
        soup, gold = ("".join(rng.choices(pieces, k=rng.randrange(1, 15))) for _ in range(2))
        tasks.verify_math(f"\\boxed{{{soup}}}", gold)
        brackets = {*"{}"} & {*soup} or soup.endswith("\\")
        assert brackets or not any(c.isdigit() for c in soup) or boxed(soup, soup.strip()), soup


def expression(rng, depth):
    """A random expression: (LaTeX, and by another way than the reader's, a Python function of x, y)."""
    if depth == 0:
        a = rng.randrange(1, 20)
        return rng.choice([(str(a), lambda x, y: a), ("x", lambda x, y: x), ("y", lambda x, y: y),
                           (f"\\frac{{{a}}}{{7}}", lambda x, y: a / 7),
                           (f"\\sqrt{{{a}}}", lambda x, y: a ** 0.5)])
    (s, f), (t, g) = expression(rng, depth - 1), expression(rng, rng.randrange(depth))
    return rng.choice([(f"({s}) + {t}", lambda x, y: f(x, y) + g(x, y)),
                       (f"({s}) - ({t})", lambda x, y: f(x, y) - g(x, y)),
                       (f"({s})({t})", lambda x, y: f(x, y) * g(x, y)),
                       (f"\\frac{{{s}}}{{{t}}}", lambda x, y: f(x, y) / g(x, y)),
                       (f"{{({s})}}^2", lambda x, y: f(x, y) ** 2),
                       (f"\\left({s}\\right) \\cdot ({t})", lambda x, y: f(x, y) * g(x, y))])


def test_random_expressions_are_equal_when_their_values_are():
    rng, points = random.Random(1), [(0.37, 1.9), (2.3, 0.71), (1.3, 3.1)]
    drawn = []
    for depth in [1, 2] * 60:
        text, f = expression(rng, depth)
        try:
            drawn.append((text, [f(*point) for point in points]))
        except ZeroDivisionError:
            continue
    equal = 0
    for (s, u), (t, v) in itertools.combinations(drawn, 2):
        same = all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(u, v))
        equal += same
        assert boxed(s, t) == same, (s, t)
    assert equal > 10
    for text, _ in drawn:
        assert boxed(f"3\\left({text}\\right) - 2 \\cdot ({text})", text), text


def test_verifying_takes_a_millisecond_at_most():
    def seconds(answer, gold):
        started = time.perf_counter()
        boxed(answer, gold)
        return time.perf_counter() - started
    assert statistics.median(seconds(answer, line[0]) for line in EQUAL for answer in line) < 1e-3


def test_arithmetic_by_python():
    for problem in tasks.arithmetic_split("train", 300, 0):
        a, sign, b = re.fullmatch(r"(\d+)([+*])(\d+)", problem.question).groups()
        assert problem.answer == str(int(a) + int(b) if sign == "+" else int(a) * int(b))
        columns = re.findall(r"(\d)([+*])(\d)\+(\d)=(\d\d)", problem.solution)
        assert len(columns) == 3 and tasks.verify_math(problem.solution, problem.answer) == (True, True)
        for x, sign, y, carry, result in columns:
            assert int(result) == int(carry) + (int(x) + int(y) if sign == "+" else int(x) * int(y))


def test_arithmetic_splits_share_no_operands():
    pairs = {split: [frozenset(re.findall(r"\d+", p.question))
                     for p in tasks.arithmetic_split(split, count, 3)]
             for split, count in (("train", 5000), ("valid", 300), ("test", 300))}
    assert not set(pairs["train"]) & set(pairs["valid"]) and not set(pairs["train"]) & set(pairs["test"])
    assert not set(pairs["valid"]) & set(pairs["test"]) and len(set(pairs["test"])) == 300
    assert tasks.arithmetic_split("test", 50, 3) == tasks.arithmetic_split("test", 300, 3)[:50]


def test_the_tiny_model_writes_digits_without_spaces():
    task = tasks.math_task(grpo_sg.Config(task="math", train_problems=3000, eval_problems=5))
    _, tokenizer = tasks.tiny_model(task)
    ids = tokenizer(task.train[0].solution + "<|im_end|>")["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id and tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids[:-1]) == task.train[0].solution


def hub_folder(folder, name, config, splits):
    """A data set as a local folder with the hub's name: load_dataset prefers it to the hub."""
    os.makedirs(folder / name)
    files = []
    for split, rows in splits.items():
        (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        files.append(f"  - split: {split}\n    path: {split}.jsonl\n")
    (folder / name / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{''.join(files)}---\n")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Small data sets with the true names, columns and splits, and the work folder beside them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    def gsm(i):
        return {"question": f"Ann has {i} apples.", "answer": f"She has <<{i}*1000={i}000>>.\n#### {i},000"}
    hub_folder(tmp_path, "openai/gsm8k", "main", {
        "train": [gsm(i) for i in range(60)] + [{"question": "?", "answer": "no gold"}],
        "test": [gsm(i) for i in (3, 70, 71)]})
    hub_folder(tmp_path, "DigitalLearningGmbH/MATH-lighteval", "default", {"train": [
        {"problem": f"Problem {i}", "level": "Level 1", "type": "Algebra",
         "solution": f"First \\boxed{{0}}, then $\\boxed{{\\frac{{{i}}}{{2}}}}$." if i else "nothing boxed"}
        for i in range(40)]})
    hub_folder(tmp_path, "HuggingFaceH4/MATH-500", "default", {"test": [
        {"problem": f"  PROBLEM   {i}", "solution": "", "answer": f"\\frac{{{i}}}{{2}}",
         "subject": "Algebra", "level": 1, "unique_id": str(i)} for i in (5, 90)]})
    hub_folder(tmp_path, "agentica-org/DeepScaleR-Preview-Dataset", "default", {"train": [
        {"problem": f"Deep {i}", "answer": str(i) if i else "", "solution": ""} for i in range(30)]})
    hub_folder(tmp_path, "HuggingFaceH4/aime_2024", "default", {"train": [
        {"id": 60, "problem": "Find it.", "solution": "", "answer": "033", "url": "", "year": 2024}]})
    return tmp_path


def math_task(**settings):
    return tasks.math_task(grpo_sg.Config(
        task="math", model="m", eval_problems=5, train_problems=20, **settings))


def test_gsm8k(hub, capsys):
    task = math_task(data="gsm8k")
    printed = capsys.readouterr().out
    assert ("dropped 1 of 61 problems of gsm8k: no gold answer" in printed
            and "removed 1 training problems" in printed)
    assert [len(task.train), len(task.valid), len(task.test)] == [54, 5, 3]
    assert task.test[1][:2] == ("Ann has 70 apples.", "70000") and "boxed" in task.system
    assert not {p.question for p in task.train} & {p.question for p in task.valid + task.test}


def test_math_and_math500(hub, capsys):
    task = math_task(data="math")
    printed = capsys.readouterr().out
    assert ("dropped 1 of 40 problems of math" in printed
            and "removed 1 training problems that occur in math500" in printed)
    assert len(task.train) + len(task.valid) == 38 and task.test[0].answer == "\\frac{5}{2}"
    assert all(p.answer == f"\\frac{{{p.question.split()[1]}}}{{2}}" for p in task.train)


def test_deepscaler_and_aime(hub, capsys):
    task = math_task(data="deepscaler")
    assert "dropped 1 of 30" in capsys.readouterr().out
    assert task.test[0].answer == "033" and task.verify("\\boxed{33}", "033").correct
    assert math_task(eval_data="aime24").test == task.test  # and synthetic training problems


def test_a_held_out_split_ends_before_its_pairs_do(monkeypatch):
    meanings = itertools.count(0, 7)  # all of "test"
    monkeypatch.setattr(tasks, "arithmetic", lambda rng: tasks.Problem("", "", "", next(meanings)))
    assert len(tasks.arithmetic_split("test", 30_000, 0)) == 20_000


def test_a_real_set_generates_nothing(hub, monkeypatch):
    monkeypatch.delattr(tasks, "arithmetic_split")  # of a large --eval_problems it would take minutes
    assert len(math_task(data="gsm8k").test) == 3


def test_an_empty_test_set(hub):
    (hub / "empty.jsonl").write_text("")
    task = math_task(data="synthetic", eval_data="empty.jsonl")
    with pytest.raises(ValueError, match="no test problem is left$"):
        tasks.keep_short(task, word_tokenizer(), 100)


def test_problems_from_a_file(hub, capsys):
    rows = [{"question": f"What is {i}?", "answer": [i, f"{i} apples"], "more": 0} for i in range(20)]
    (hub / "train.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows + [{"question": "?", "answer": None}]))
    (hub / "test.jsonl").write_text('{"question": "what  IS 7?", "answer": 7.5}\n')
    task = math_task(data="train.jsonl", eval_data="test.jsonl")
    assert "removed 1 training problems that occur in test.jsonl" in capsys.readouterr().out
    assert len(task.train) == 18 and len(task.valid) == 1 and task.test[0].answer == "7.5"
    assert task.train[0].answer[1].endswith("apples")


@pytest.mark.parametrize("row, what", [
    ("{", "JSONDecodeError"), ("[]", "TypeError"), ("5", "TypeError"), ('{"question": "?"}', "'answer'"),
    ('{"question": 5, "answer": "5"}', "must be text"),
    ('{"question": "?", "answer": {"a": 1}}', "must be text"),
    ('{"question": "?", "answer": true}', "must be text"), ("", "JSONDecodeError"),
    ("\udcff", "UnicodeDecodeError"), ("[" * 99999, "Recursion")])
def test_a_bad_row_is_named(row, what, hub, capsys):
    (hub / "bad.jsonl").write_bytes(
        b'{"question": "?", "answer": "1"}\n' + row.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(SystemExit):
        grpo_sg.main("--task math --model m --data bad.jsonl --eval_data bad.jsonl".split())
    error = capsys.readouterr().err
    assert "bad.jsonl, line 2" in error and what in error and error.count("\n") == 1


def test_standard_errors_of_an_evaluation():
    """Against an independent bootstrap over problems."""
    model, tokenizer, task, cfg = toy()
    problems = task.test * 40
    row, greedy = grpo_sg.evaluate(model, tokenizer, task, problems, cfg, samples=2)
    p = row["eval/accuracy"]
    assert row["eval/accuracy_se"] == pytest.approx((p * (1 - p) / 120) ** 0.5)
    drawn = grpo_sg.rollout(model, tokenizer, task, problems, cfg,
                            n=2, temperature=cfg.temperature, seed=cfg.seed)
    solved = torch.tensor([float(c.solved) for c in drawn]).view(-1, 2)
    # Resampled problems, of shape (4000, 120, 2).
    resampled = solved[torch.randint(120, (4000, 120), generator=torch.Generator().manual_seed(0))]
    assert row["eval/avg@2"] == pytest.approx(solved.mean().item())
    assert row["eval/avg@2_se"] == pytest.approx(resampled.mean((1, 2)).std().item(), rel=0.1)
    assert row["eval/pass@2_se"] == pytest.approx(resampled.amax(2).mean(1).std().item(), rel=0.1)
    assert row["eval/truncated@2"] == sum(c.truncated for c in drawn) / 240


# ---- question answering: the search, the verifier, the turns ----

def slow_bm25(passages, query, k1=1.2, b=0.75):
    """Scores by the textbook, passage by passage and word by word, in double precision."""
    texts = [re.findall(r"\w+", passage.lower()) for passage in passages]
    average = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            n = sum(word in other for other in texts)
            tf = text.count(word)
            idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
            score += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(text) / average))
        scores.append(score)
    return scores


def test_search_against_the_textbook():
    rng = random.Random(0)
    words = [f"word{i}" for i in range(30)]
    passages = [" ".join(rng.choices(words, k=rng.randrange(1, 20))) for _ in range(60)]
    search = tasks.bm25(passages)
    for _ in range(200):
        query = " ".join(rng.choices(words + ["unknown"], k=rng.randrange(1, 6)))
        scores, best = slow_bm25(passages, query), search(query, 5)
        expected = sorted(scores, reverse=True)[:5]
        assert [scores[i] for i in best] == pytest.approx([score for score in expected if score > 0])
        assert len(set(best)) == len(best)
    assert tasks.bm25(["alpha beta"] * 100)("alpha", 3) == [0, 1, 2]


def test_what_is_folded_is_found():
    search = tasks.bm25(["Søren lives in Łódź", "Zürich–Oerlikon", "nothing"])
    assert search("LODZ", 3) == [0] and search("soren", 3) == [0] and search("zurich oerlikon", 3) == [1]


@pytest.mark.parametrize("text, line", [
    ("<search> Ada </search>", "Doc 1: Ada wrote it"),
    ("x <search>a</search> <search>ada</search>", "Doc 1: Ada"),
    ("<search></search>", "Nothing was found"), ("<search> \n </search>", "Nothing was found"),
    ("<search>zzz \ud800 \x00</search>", "Nothing was found"),
    ("ada </search>", "To search, write <search>"),
    ("<search>ada</search> or ada</search>", "To search, write <search>"),
    ("<search>" + "ada bob " * 50_000 + "</search>", "Doc 2: Bob read it"),
    ("<search>" + "<search>" * 9999 + "ada</search>", "Doc 1: Ada wrote it")])
def test_every_query_has_a_clear_answer(text, line):
    observed = tasks.search_tool(["Ada wrote it", "Bob read it"])(text)
    assert line in observed
    assert observed.startswith("\n<information>\n") and observed.endswith("\n</information>")


def test_a_thousand_searches_a_second():
    rows = [row for split in ("train", "valid", "test") for row in tasks.qa_world(split, 9999, 0)]
    passages = list(dict.fromkeys(passage for row in rows for passage in row[2]))
    assert len(rows) == 2000 and len(passages) == 2666
    started, search = time.perf_counter(), tasks.bm25(passages)
    assert time.perf_counter() - started < 3
    started = time.perf_counter()
    for question, *_ in rows[:500]:
        search(question, 3)
    assert time.perf_counter() - started < 1  # twice the time that a thousand a second would take


def test_the_world_needs_two_searches_and_its_splits_share_nobody():
    names = {}
    for split in ("train", "valid", "test"):
        rows = tasks.qa_world(split, 9999, 7)
        queries = [re.findall(r"<search> (.*?) </search>", solution) for *_, solution in rows]
        names[split] = [set(column) for column in zip(*queries)]
        assert rows[:5] == tasks.qa_world(split, 9999, 7)[:5]
        for (question, golds, passages, _), (person, company) in zip(rows, queries):
            assert person in question and company not in question and golds[0] not in question
            assert f"{person} has worked for {company} for many years" in passages
            assert f"{company} is based in {golds[0]}" in passages
    for one, other in itertools.combinations(names.values(), 2):
        assert not one[0] & other[0] and not one[1] & other[1]
    cfg = grpo_sg.Config(task="qa", train_problems=9999, eval_problems=9999)
    task = tasks.qa_task(cfg)
    alone = ["based in " + p.answer[0] in task.observe(f"<search>{p.question}</search>") for p in task.train]
    assert sum(alone) / len(alone) < 0.1  # the question alone seldom finds the second passage
    for problem in task.train[:100]:
        for turn in tasks.turns(task, problem.solution)[:-1]:
            seen = task.observe(turn)
        assert f"is based in {problem.answer[0]}" in seen.split("\n")[2]
        assert task.verify(problem.solution, problem.answer) == (True, True)


@pytest.mark.parametrize("answer, golds", [
    ("Paris", ["Paris"]), ("the  paris.", ["Paris"]), ("PARIS", ["Rome", "Paris"]), ("Beyonce", ["Beyoncé"]),
    ("Saint\u2013Étienne", ["saint etienne"]), ("Jean-Luc", ["Jean Luc"]), ("e-mail", ["email"]),
    ("The Beatles", ["Beatles"]), ("A", ["A"]), ("The The", ["the the"]), ("U.S.", ["US"]), ("!!!", ["!!!"]),
    ("1,000", ["1000"]), ("1990\u20131995", ["1990-1995"]), ("Łódź", ["Lodz"]), ("O\u2019Neil", ["O'Neil"]),
    ("$5 million", ["5 million"]), ("Straße", ["strasse"]), ("한국", ["한국"]), ("yes", ["Yes"])])
def test_right_answers_to_questions(answer, golds):
    assert tasks.verify_qa(f"<think>ok</think> <answer> {answer} </answer>", golds) == (True, True)
    for gold in golds:
        assert tasks.verify_qa(f"<answer>{gold}</answer><|im_end|>", golds) == (True, True)


@pytest.mark.parametrize("answer, golds", [
    ("", ["A"]), (" ", ["the"]), ("the", ["A"]), (".", ["A"]), ("Paris or Rome", ["Paris"]),
    ("Paris, Rome", ["Paris"]), ("Paris Rome Paris", ["Paris"]), ("not Paris", ["Paris"]),
    ("Pari", ["Paris"]),
    ("P\u0430ris", ["Paris"]), ("3.5", ["35"]), ("3-5", ["35"]), ("-35", ["35"]), ("1,5", ["15"]),
    ("vitamin", ["Vitamin A"]), ("한", ["하"]), ("Paris", []), ("paris " * 99, ["Paris"]), ("!", ["?"]),
    ("3/5", ["35"]), ("Paris?" * 9, ["Paris"])])
def test_wrong_answers_to_questions(answer, golds):
    assert not tasks.verify_qa(f"<answer>{answer}</answer>", golds).correct


@pytest.mark.parametrize("answer, gold, right", [
    ("(-5)", "5", False), ("(-5)", "-5", True), ("-$5", "5", False), ("**-5**", "5", False),
    ("\uff0d35", "35", False), (".5", "5", False), ("$.50", "$50", False), ("3\u00b75", "35", False),
    ("3\u066b5", "35", False), ("1;2", "12", False), ("2+2", "22", False), ("5'10\"", "510", False),
    ("5--3", "53", False), ("A-10", "10", False), ("A-ha", "Ha", False), ("the-rapist", "rapist", False),
    ("\u30d1\u30ea", "\u30d0\u30ea", False),  # Paris and Bali, a voicing mark apart
    ("\u0915\u093e\u0932\u093e", "\u0915\u0932\u0940", False), ("\u0e14\u0e35", "\u0e14\u0e34", False),
    ("\u0926\u093f\u0932\u094d\u0932\u0940", "\u0926\u0932\u094d\u0932", False),
    ("Hawai'i", "Hawai\u02bbi", True), ("Hawaii", "Hawai\u02bbi", True), ("\u0126amrun", "Hamrun", True),
    ("July 4,1776", "July 4, 1776", True), ("1776/07/04", "17760704", False), ("12,345", "123,45", False),
    ("\u22123.5", "-3.5", True), ("DIYARBAKIR", "Diyarbak\u0131r", True), ("STRAUSS", "Strau\u00df", True),
    ("\u0301", "A", False), ("A, B", "B", False), ("A & B", "B", False), ("An, Lima", "Lima", False),
    ('"The Who"', "Who", True), ("the (big) apple", "Big Apple", True),
    ("- 1", "1", False), ("- 1", "-1", True), ("\u2212 $5", "5", False), ("\u207b5", "5", False),
    ("\u2260Paris", "Paris", False), ("\u00a35", "$5", False), ("F\u266f minor", "F minor", False),
    ("P\u0336a\u0336ris", "Paris", False), ("Lego\u00ae", "Lego", True),
    ("J. K. Rowling", "J.K. Rowling", True), ("U. S.", "US", True), ("J K Rowling", "J. K. Rowling", True),
    ("The **Beatles**", "Beatles", True), ("_The Beatles_", "Beatles", True),
    ("O\u00b4Brien", "O'Brien", True), ("- 12 May 1990", "12 May 1990", True)])
def test_what_an_adversary_found(answer, gold, right):
    assert tasks.verify_qa(f"<answer>{answer}</answer>", [gold]).correct == right


GOOD_QA = "<think>Who?</think><search>capital</search><think>So.</think><answer>Paris</answer>"


@pytest.mark.parametrize("response, verdict", [
    (GOOD_QA, (True, True)), ("<answer>Paris</answer>\n<|endoftext|>", (True, True)),
    ("Paris", (False, False)), ("<answer>Paris", (False, False)), ("Paris</answer>", (False, False)),
    ("<answer>Rome</answer> <answer>Paris</answer>", (True, False)),  # only the last block counts,
    ("<answer>Paris</answer> <answer>Rome</answer>", (False, False)),  # and there should be one
    ("<answer>Paris</answer> <answer></answer>", (False, False)),
    ("<answer>Paris</answer> <answer>", (False, False)),
    ("<answer>Paris</answer> or Rome", (True, False)), ("<answer>Rome</answer>", (False, True)),
    ("<answer><answer>Paris</answer></answer>", (True, False)),
    ("<information>Doc 1: Paris</information><answer>Paris</answer>", (True, False)),
    ("< Information >Doc 1: Paris</ information><answer>Paris</answer>", (True, False)),
    ("\uff1cinformation\uff1eDoc 1: Paris<answer>Paris</answer>", (True, False)),
    ("<information><answer>Paris</answer></information>", (False, False)),
    ("<information><answer>Paris</answer>", (False, False)),
    ("<answer>Rome</answer><information><answer>Paris</answer></information>", (False, False)),
    ("<think><answer>Paris</answer></think>", (False, False)),
    ("<think><answer>Paris</answer>", (False, False)),
    ("<search><answer>Paris</answer></search>", (False, False)),
    ("<ANSWER>Paris</ANSWER>", (False, False)),
    ("<answer>Rome</answer><ANSWER>Paris</ANSWER>", (False, False)),
    ("User: the capital?\n<answer>Paris</answer>", (True, False)),
    ("<think>x</think>\n- User: where?\n<answer>Paris</answer>", (True, False)),
    ("<think><inform\u200bation></think><answer>Paris</answer>", (True, False)),
    ("<think><_information></think><answer>Paris</answer>", (True, False)),
    ("<THINK><answer>Paris</answer></THINK>", (False, False)),
    ("<Think>\n<answer>Paris</answer>", (False, False)),
    ("<INFORMATION ><answer>Paris</answer></INFORMATION>", (False, False)),
    ("<search>x</think><answer>Paris</answer>", (False, False)),
    ("<answer>Par<think>x</think>is</answer>", (False, False)),
    ("<answer>Paris<think>of France</think></answer>", (True, False)),
    ("<answer>Paris</answer><|im_end|><|im_start|>user\n<answer>Paris</answer>", (True, False))])
def test_where_the_answer_to_a_question_stands(response, verdict):
    assert tasks.verify_qa(response, ["Paris"]) == verdict


def test_hostile_responses_to_questions_are_cheap():
    n = 50_000
    for text in ["<answer>" * n, "</answer>" * n, "<answer>" + "a " * n + "</answer>", "<think>" * n,
                 "<answer>" + "-" * n + "</answer>", "<search>x</search>" * n, "<information" + " " * n,
                 "\ud800" * n, "<answer>" + "\u0301" * n + "</answer>", "<think></think>" * n + "<answer>",
                 "<" * n, "\x00" * n, "<answer>1" + ",000" * n + "</answer>", "< / " * n, "\n" * n + "user",
                 "<answer>Paris"] + HOSTILE:
        started = time.perf_counter()
        assert not tasks.verify_qa(text, ["Paris", "9" * 99]).correct
        assert time.perf_counter() - started < 0.5, text[:30]


STOP = "</search>"


def letters_tokenizer():
    """Its tokens: the letters, and every part of "</search>", some with what may follow in one token."""
    parts = {STOP[i:j] for i in range(9) for j in range(i + 1, 10)} | {">\n", "><", "h> ", STOP + "<a"}
    letters = {chr(i) for i in range(32, 127)} | {"\n"}
    vocabulary = {word: i for i, word in enumerate(["<|im_end|>", *sorted(letters | parts)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", unk_token="a")
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    return tokenizer


def conversation(monkeypatch, scripts, **settings):
    """The completions of a rollout whose k-th row writes the token ids scripts[k][turn] in each turn, in
    place of a model, and stops where the real sampler would."""
    tokenizer, model = letters_tokenizer(), tiny_qwen(vocab=200)
    model.generation_config.eos_token_id = 0
    problems = [tasks.Problem(f"{k}|", ["x"]) for k in range(len(scripts))]
    rows = [iter(script) for script in scripts]

    def scripted(model, prompts, *, n, max_new_tokens, stop_ids, pauses, **_):
        written = []
        for prompt in prompts:
            row = int(tokenizer.decode(prompt).split("|")[0])
            turn = next(rows[row])[:max_new_tokens]
            ends = [t for t in range(1, len(turn) + 1) if turn[t - 1] in stop_ids or
                    pauses and pauses(torch.tensor([turn[:t]])).item()]
            written.append(turn[:ends[0]] if ends else turn)
        return written
    monkeypatch.setattr(grpo_sg, "sample", scripted)
    task = tasks.Task("qa", "", problems, problems, problems, tasks.verify_qa, 0.0, stop_text=STOP,
                      observe=lambda text: f"\n<information>\nabc {text.count(STOP)}\n</information>")
    cfg = grpo_sg.Config(**{"max_turns": 2, "max_new_tokens": 60, "max_observation_tokens": 99, **settings})
    completions = grpo_sg.rollout(model, tokenizer, task, problems, cfg, n=1, temperature=1.0, seed=0)
    return tokenizer, cfg, completions


def test_a_call_is_seen_in_every_spelling(monkeypatch):
    """All 256 ways to cut "</search>" into tokens, and some in which it ends in the middle of one."""
    tokenizer = letters_tokenizer()
    word, spell = tokenizer.get_vocab(), lambda text: tokenizer(text)["input_ids"]
    spellings = [[STOP[i:j] for i, j in itertools.pairwise([0, *cuts, 9])]
                 for k in range(9) for cuts in itertools.combinations(range(1, 9), k)]
    spellings += [["</search", ">\n"], ["</", "search", "><"], ["</searc", "h> "], [STOP + "<a"]]
    assert len(spellings) == 260
    end = spell("<answer>x</answer>") + [0]
    scripts = [[spell("<search>b") + [word[part] for part in spelling] + spell("never seen"), end]
               for spelling in spellings]
    _, cfg, completions = conversation(monkeypatch, scripts)
    seen = spell("\n<information>\nabc 1\n</information>")
    for c, (first, second), spelling in zip(completions, scripts, spellings):
        first = first[:len(spell("<search>b")) + len(spelling)]  # as it was sampled, never tokenised again
        assert c.tokens == first + seen + second
        assert c.mask == [True] * len(first) + [False] * len(seen) + [True] * len(second)
        assert c.calls == 1 and not c.truncated
        assert c.text == "<search>b" + "".join(spelling) + "<answer>x</answer>"  # what the verifier reads
        assert "abc 1" in c.whole and "information" not in c.text
        assert c.solved


def test_no_one_and_several_calls_and_their_limits(monkeypatch):
    tokenizer = letters_tokenizer()
    spell = lambda text: tokenizer(text)["input_ids"]
    call, end = spell("<search>b</search>"), spell("<answer>x</answer>") + [0]
    _, cfg, (none, two, three, cut, long) = conversation(monkeypatch, [
        [end], [call, call, end], [call, call, call + end], [spell("<search>" + "b" * 99)],
        [call, spell("b" * 99)]], max_observation_tokens=16)
    assert [c.calls for c in (none, two, three, cut, long)] == [0, 2, 2, 0, 1]
    assert all(none.mask) and none.solved and two.solved
    seen = spell("\n<information>\na") + spell("\n</information>")  # cut off, but for the last line
    assert two.tokens == call + seen + call + seen + end
    assert two.mask == [mine for turn, mine in ((call, True), (seen, False), (call, True), (seen, False),
                                                (end, True)) for _ in turn]
    assert three.tokens[-len(call + end):] == call + end and all(three.mask[-len(call + end):])
    assert cut.truncated and len(cut.tokens) == cfg.max_new_tokens and not cut.formatted
    assert long.truncated and sum(long.mask) == len(call) + cfg.max_new_tokens
    assert grpo_sg.describe([two, none])["completion_tokens"] == (2 * len(call) + 2 * len(end)) / 2
    _, _, (closed,) = conversation(monkeypatch, [[call + end]], max_turns=0)
    assert closed.calls == 0 and closed.tokens == call + end


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_only_the_policys_own_tokens_are_trained_on(mode, monkeypatch):
    """One update against a loop over single tokens; pad, end, and a letter of the answers are one id."""
    tokenizer = letters_tokenizer()
    spell = lambda text: tokenizer(text)["input_ids"]
    call, end = spell("<search>b</search>"), spell("<answer>x</answer>") + [0]
    scripts = [[end], [call, end], [call, call, end], [spell("hm") + [0]]]
    _, cfg, completions = conversation(monkeypatch, scripts, updates=1, loss_agg_mode=mode, temperature=1.0,
                                       shaping="none", grad_clip=1e9)
    for c in completions:
        c.tokens = [0 if not mine and t % 3 == 0 else t for t, mine in zip(c.tokens, c.mask)]
    A = torch.tensor([1.0, -0.5, 2.0, -1.0])
    _, after = stepped(tiny_qwen(vocab=200), completions, A, cfg)
    model, loss = tiny_qwen(vocab=200), 0.0
    count = sum(sum(c.mask) for c in completions)
    for c, a in zip(completions, A):
        ids = torch.tensor([c.prompt + c.tokens])
        logps = model(input_ids=ids).logits[0].log_softmax(-1)
        own = [logps[len(c.prompt) + t - 1, token] for t, token in enumerate(c.tokens) if c.mask[t]]
        loss = loss - a * sum(own) / (count if mode == "token-mean" else len(own) * len(completions))
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert torch.allclose(after, torch.cat([p.detach().flatten() for p in model.parameters()]), atol=1e-6)


def test_pausing_ends_a_completion_and_changes_no_other():
    model, g = tiny_qwen(), torch.Generator()
    draw = dict(n=8, max_new_tokens=15, stop_ids={1}, temperature=2.0)
    free = sample(model, [[5, 6], [7]], generator=g.manual_seed(3), **draw)
    paused = sample(model, [[5, 6], [7]], generator=g.manual_seed(3), **draw,
                    pauses=lambda drawn: drawn[:, -1] % 5 == 0)
    for whole, part in zip(free, paused):
        first = next((t for t, token in enumerate(whole) if token % 5 == 0), len(whole) - 1)
        assert part == whole[:first + 1]
    assert free != paused


def test_turns_depend_on_the_seed_alone():
    """Also with a tool, not on how many are sampled at once."""
    model, tokenizer, task, cfg = toy(max_turns=3)
    task = task._replace(stop_text="maybe", observe=lambda text: f"who {'why ' * len(text.split())}")
    found = []
    for size in (64, 64, 16, 1):
        cfg.sample_batch = size
        rolled = grpo_sg.rollout(model, tokenizer, task, task.train, cfg, n=16, temperature=1.0, seed=1)
        found.append([(c.tokens, c.mask) for c in rolled])
    assert all(other == found[0] for other in found)
    assert {c.calls for c in rolled} >= {0, 1, 2} and max(c.calls for c in rolled) <= 3


def test_a_warm_up_text_is_what_a_rollout_would_make_of_it():
    cfg = grpo_sg.Config(task="qa", train_problems=50, eval_problems=20)
    task = tasks.qa_task(cfg)
    model, tokenizer = tasks.tiny_model(task)
    problem = task.train[0]
    tokens, mask = tasks.script(tokenizer, task, problem, problem.solution, cfg)
    own = [token for token, mine in zip(tokens, mask) if mine]
    assert tokenizer.decode(own) == problem.solution + " <|im_end|>"
    assert tokenizer.decode(tokens).count("<information>") == 2 and "[UNK]" not in tokenizer.decode(tokens)
    company = problem.solution.split("<search> ")[2].split(" </search>")[0]
    assert f"Doc 1: {company} is based in {problem.answer[0]}" in tokenizer.decode(tokens)
    assert tokenizer.decode(tokens[:mask.index(True)]) == problem.question


def test_training_with_a_tool_end_to_end(tmp_path, capsys):
    """An untrained model, which calls the tool now and then; saving, resuming and the report."""
    torch.manual_seed(0)
    cfg = grpo_sg.Config(task="qa", train_problems=60, eval_problems=10)
    runs.save_model(tmp_path / "model", *tasks.tiny_model(tasks.qa_task(cfg)))
    grpo_sg.main(["--model", f"{tmp_path}/model", "--out", f"{tmp_path}/run", *(
        "--task qa --steps 2 --prompts 4 --group_size 4 --train_problems 60 --eval_problems 10 "
        "--eval_samples 0 --save_every 1 --max_new_tokens 40 --temperature 1 --beta 0.01").split()])
    grpo_sg.main(["--resume", "--steps", "3", "--out", f"{tmp_path}/run"])
    steps = [row for row in rows_of(tmp_path / "run" / "metrics.jsonl") if "reward" in row]
    assert len(steps) == 3 and sum(row["tool_calls"] for row in steps) > 0
    assert "One of them" in capsys.readouterr().out


def qa_hub(i):
    return {"id": str(i), "question": f"Where is {i}?", "answer": f"Town {i}", "type": "bridge",
            "level": "hard", "supporting_facts": {"title": [f"T{i}"], "sent_id": [0]},
            "context": {"title": [f"T{i}", "Common"],
                        "sentences": [[f"It is in Town {i}.", " Yes."], ["Known."]]}}


def test_hotpotqa(hub, capsys):
    hub_folder(hub, "hotpotqa/hotpot_qa", "distractor", {
        "train": [qa_hub(i) for i in range(60)], "validation": [qa_hub(i) for i in (3, 70, 71, 72)]})
    task = tasks.qa_task(grpo_sg.Config(task="qa", model="m", data="hotpotqa", train_problems=50,
                                        eval_problems=3))
    assert [len(task.valid), len(task.test)] == [3, 3] and 46 <= len(task.train) <= 47
    assert all(problem.answer == [f"Town {problem.question[9:-1]}"] for problem in task.train + task.test)
    title = f"T{task.train[0].question[9:-1]}"
    seen = task.observe(f"<search>{title}</search>")
    assert f"Doc 1: (Title: {title}) It is in Town {title[1:]}. Yes." in seen
    assert task.observe("<search>Common</search>").count("Doc ") == 1  # shared by all problems, kept once


def test_a_set_that_comes_as_a_script_is_read_from_the_hubs_copy(monkeypatch):
    import datasets

    def load_dataset(*name, split, revision=None):
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found hotpot_qa.py")
        return [(*name, split, revision)]
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert data.hub_rows("a/b", "c", split="train") == [("a/b", "c", "train", "refs/convert/parquet")]


def test_questions_from_a_file(hub, capsys):
    rows = [{"question": f"Where is {i}?", "answers": [f"Town {i}", i], "passages": [f"{i} is in Town {i}."]}
            for i in range(20)]
    (hub / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows + [
        {"question": "?", "answers": [], "passages": []}]))
    (hub / "test.jsonl").write_text(json.dumps(rows[7]) + "\n")
    task = tasks.qa_task(grpo_sg.Config(task="qa", model="m", data="train.jsonl", eval_data="test.jsonl"))
    printed = capsys.readouterr().out
    assert "dropped 1 of 21" in printed and "removed 1 training problems that occur in test.jsonl" in printed
    assert len(task.train) + len(task.valid) == 19 and task.test[0].answer == ["Town 7", "7"]
    assert "Town 12." in task.observe("<search> 12 </search>")


@pytest.mark.parametrize("row, what", [
    ({"question": "?", "answers": ["x"]}, "passages"),
    ({"question": "?", "answers": ["x"], "passages": "x"}, "list"),
    ({"question": "?", "answers": ["x"], "passages": [1]}, "list"),
    ({"answers": [], "passages": []}, "question"),
    ({"question": 1, "answers": [], "passages": []}, "text")])
def test_a_bad_question_row_is_named(row, what, hub, capsys):
    (hub / "bad.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(SystemExit):
        grpo_sg.main("--task qa --model m --data bad.jsonl --eval_data hotpotqa".split())
    error = capsys.readouterr().err
    assert "bad.jsonl, line 1" in error and what in error and error.count("\n") == 1


@pytest.mark.parametrize("argv, what", [
    ("--data hotpotqa", "add --model"), ("--model m --data x.jsonl", "--eval_data"),
    ("--model m --data gsm8k", "hotpotqa"), ("--max_turns -1", "0 or more")])
def test_settings_that_do_not_fit_questions(argv, what, capsys):
    with pytest.raises(SystemExit):
        grpo_sg.main(f"--task qa {argv}".split())
    error = capsys.readouterr().err
    assert what in error and error.count("\n") == 1


# ---- what can happen to a run ----


@pytest.fixture
def start(tmp_path):
    """A function that starts (or with resume=True goes on with) a small run of 4 steps in a folder, and
    returns its exit status."""
    task = tasks.math_task(grpo_sg.Config(task="math", train_problems=300, eval_problems=4))
    torch.manual_seed(0)
    model, tokenizer = tasks.tiny_model(task)
    runs.save_model(tmp_path / "model", model, tokenizer)

    def start(name, *more, resume=False):
        settings = (f"--model {tmp_path}/model --task math --steps 4 --prompts 3 --group_size 4 "
                    "--max_new_tokens 6 --temperature 1 --train_problems 300 --eval_problems 4 "
                    "--eval_every 2 --save_every 1 --eval_samples 0 --lr 1e-3 --beta 0.01")
        argv = (["--resume"] if resume else settings.split()) + [
            "--out", str(tmp_path / name), *map(str, more)]
        try:
            grpo_sg.main(argv)
        except SystemExit as stop:
            return stop.code
        return 0
    # Rewards of an untrained model are all equal: let the verifier look at something that differs.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "verify_math", lambda response, gold: tasks.Verdict(
            len(response) % 2 == 0, len(response) % 3 > 0))
        yield start


def outcome(folder):
    """All that a run leaves, but for the seconds it took."""
    rows = [{key: value for key, value in row.items() if key != "seconds"}
            for row in rows_of(folder / "metrics.jsonl")]
    return (rows, rows_of(folder / "samples.jsonl"),
            (folder / "checkpoint" / "model.safetensors").read_bytes())


def signal_at(step, number, monkeypatch):
    calls, update = itertools.count(1), grpo_sg.update

    def interrupted(*args, **kwargs):
        if next(calls) == step:
            os.kill(os.getpid(), number)
        return update(*args, **kwargs)
    monkeypatch.setattr(grpo_sg, "update", interrupted)


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_resuming_changes_nothing(start, tmp_path, monkeypatch, capsys, number, status):
    assert start("whole") == 0
    with monkeypatch.context() as patch:
        signal_at(2, number, patch)
        assert start("broken", "--save_every", 100) == status
    assert f"--resume --out {tmp_path}/broken" in capsys.readouterr().out
    assert json.loads((tmp_path / "broken" / "checkpoint" / "state.json").read_text())["step"] == 2
    assert start("broken", resume=True) == 0
    assert "resuming after step 2" in capsys.readouterr().out
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")
    assert sum(row["grad_norm"] for row in outcome(tmp_path / "whole")[0] if "reward" in row) > 0


def test_a_second_signal_stops_at_once():
    with runs.signals() as received:
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]
        with pytest.raises(SystemExit) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
    assert stop.value.code == 143


@pytest.mark.parametrize("call", range(1, 6))
def test_dying_while_a_checkpoint_is_written_or_renamed(start, tmp_path, monkeypatch, call):
    """os.rename is called once for the first checkpoint and twice for each after that."""
    assert start("whole") == 0
    calls, rename = itertools.count(1), os.rename

    def dying(*args):
        if next(calls) == call:
            raise KeyboardInterrupt  # what save_checkpoint cannot catch, like a kill
        rename(*args)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dying)
        assert start("broken") == 130
    if call == 1:
        assert start("broken", resume=True) == 2  # nothing was whole yet
    else:
        assert start("broken", resume=True) == 0
        assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "state.json"])
def test_a_torn_checkpoint_falls_back(start, tmp_path, capsys, file):
    assert start("whole") == 0 and start("torn") == 0
    path = tmp_path / "torn" / "checkpoint" / file
    path.write_bytes(path.read_bytes()[:-9])
    with open(tmp_path / "torn" / "metrics.jsonl", "a") as log:
        log.write('{"step": 99, "rew')  # a row that was being written
    assert start("torn", resume=True) == 0
    printed = capsys.readouterr().out
    assert "checkpoint cannot be read" in printed and "resuming after step 3" in printed
    assert outcome(tmp_path / "torn") == outcome(tmp_path / "whole")


def test_a_checkpoint_is_data_and_never_code(start, tmp_path, capsys):
    assert start("run") == 0
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)
    torch.save(Bomb(), tmp_path / "run" / "checkpoint" / "optimizer.pt")
    assert start("run", resume=True) == 0
    assert "cannot be read" in capsys.readouterr().out and not (tmp_path / "exploded").exists()


def test_a_resumed_run_may_go_on_longer_but_not_change(start, tmp_path, capsys):
    assert start("long", "--steps", 6) == 0 and start("run", "--keep", 3) == 0
    assert sorted(os.listdir(tmp_path / "run")) == [
        "checkpoint", "checkpoint-2", "checkpoint-3", "config.json", "metrics.jsonl", "reference",
        "samples.jsonl"]
    for flag, value, had in (("--lr", 0.5, 0.001), ("--shaping", "none", "sg"),
                             ("--seed", 1, 0), ("--prompts", 5, 3)):
        assert start("run", flag, value, resume=True) == 2
        error, = re.findall("error: .*", capsys.readouterr().err)
        assert f"{flag} {value}" in error and str(had) in error
    assert start("run", "--steps", 3, resume=True) == 2 and "has done 4 already" in capsys.readouterr().err
    assert start("run", "--steps", 6, "--save_every", 2, resume=True) == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "long")
    assert start("nowhere", resume=True) == 2 and "config.json" in capsys.readouterr().err


def test_the_best_evaluation_is_in_the_checkpoint(start, tmp_path):
    assert start("run") == 0
    state = json.loads((tmp_path / "run" / "checkpoint" / "state.json").read_text())
    assert state["best_evaluation"]["step"] == 2 and "eval/accuracy" in state["best_evaluation"]


def broken_loss(bad_calls, monkeypatch):
    calls, loss = itertools.count(1), grpo_sg.grpo_sg_loss

    def broken(*args, **kwargs):
        value, stats = loss(*args, **kwargs)
        return (value * math.nan if next(calls) in bad_calls else value), stats
    monkeypatch.setattr(grpo_sg, "grpo_sg_loss", broken)


def test_what_is_not_finite_never_reaches_the_weights(monkeypatch):
    model, completions, advantages, cfg = rolled(updates=2, tokens_per_micro_batch=10 ** 6)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    with monkeypatch.context() as patch:
        broken_loss({1, 2}, patch)
        stats, after = stepped(model, completions, advantages, cfg)
        assert stats["skipped"] == 2 and stats["loss"] is None and stats["grad_norm"] == 0
        assert torch.equal(before, after)
    broken_loss({1}, monkeypatch)
    stats, after = stepped(model, completions, advantages, cfg)
    assert stats["skipped"] == 1 and after.isfinite().all() and not torch.equal(before, after)


def test_a_step_without_a_finite_update_is_bad(monkeypatch):
    """Also where some of its updates had nothing to learn from: here two of four."""
    model, tokenizer, task, cfg = toy(steps=3, prompts=1, group_size=2, updates=4)
    monkeypatch.setattr(grpo_sg, "group_advantages", lambda rewards: torch.tensor([[1.0, -1.0]]))
    broken_loss(range(100), monkeypatch)
    counts = []
    grpo_sg.train(model, tokenizer, task, cfg, lambda *_: None, after_step=lambda *a: counts.append(a[2]))
    assert counts == [1, 2, 3]


def test_too_many_bad_steps_end_the_run(start, tmp_path, monkeypatch, capsys):
    broken_loss(range(3, 100), monkeypatch)  # two updates a step: the first step is good
    assert start("run", "--max_bad_steps", 2) == 2
    assert "no update of the last 2 steps was finite" in capsys.readouterr().err
    rows = [row for row in rows_of(tmp_path / "run" / "metrics.jsonl") if "skipped" in row]
    assert [row["skipped"] for row in rows] == [0, 2, 2] and rows[-1]["loss"] is None
    logged = [sample["step"] for sample in rows_of(tmp_path / "run" / "samples.jsonl")
              if sample["split"] == "train"]
    assert logged.count(1) == 4 and logged.count(2) == 12  # one group, and the whole batch
    model, _ = runs.read_model(tmp_path / "run" / "checkpoint", local=True)
    assert all(p.isfinite().all() for p in model.parameters())


def test_rewards_that_are_not_finite_name_the_task(start, monkeypatch, capsys):
    monkeypatch.setattr(grpo_sg, "reward", lambda completion: math.inf)
    assert (start("run") == 2
            and "--task math gave a completion of step 1 a reward" in capsys.readouterr().err)


@pytest.mark.parametrize("function, phase, setting", [
    ("sample", "sampling", "--sample_batch from 256 to 128"),
    ("token_logps", "the log-probabilities", "--tokens_per_micro_batch from 4096 to 2048")])
def test_out_of_memory_names_phase_and_setting(
        start, tmp_path, monkeypatch, capsys, function, phase, setting):
    calls, works = itertools.count(1), getattr(grpo_sg, function)

    def full(*args, **kwargs):
        if next(calls) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return works(*args, **kwargs)
    monkeypatch.setattr(grpo_sg, function, full)
    assert start("run") == 2
    error, = re.findall("error: .*", capsys.readouterr().err)
    assert phase in error and setting in error
    assert rows_of(tmp_path / "run" / "metrics.jsonl")


@pytest.mark.parametrize("error", [
    OSError(28, "No space left on device"), RuntimeError("unexpected pos 64 vs 0"),
    PermissionError(13, "Permission denied")])
def test_a_full_disk_keeps_the_last_checkpoint(start, tmp_path, monkeypatch, capsys, error):
    assert start("whole") == 0
    calls, save = itertools.count(1), torch.save

    def full(*args):
        if next(calls) == 3:
            raise error
        save(*args)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        assert start("run") == 2
    message, = re.findall("error: .*", capsys.readouterr().err)
    assert "cannot write the checkpoint of step 3" in message and f"{tmp_path}/run/checkpoint" in message
    assert start("run", resume=True) == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_removed_folder_is_one_line(start, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grpo_sg, "update",
                        lambda *args, **kwargs: shutil.rmtree(tmp_path / "run") or {"skipped": 0})
    assert start("run") == 2 and "cannot read or write the run's files" in capsys.readouterr().err


def test_any_text_survives_in_the_files_and_none_steers_the_terminal(tmp_path):
    text = "\ud800\x1b[31m\x00\u2028 caf\u00e9 \U0001f600 \udcff"
    _, log = runs.open_run(grpo_sg.Config(out=str(tmp_path / "run")), {})
    log({"step": 1}, [{"completion": text}])
    assert rows_of(tmp_path / "run" / "samples.jsonl") == [{"completion": text}]
    assert ("\x1b" not in runs.printable(text) and "\ud800" not in runs.printable(text)
            and "caf\u00e9" in runs.printable(text))


# ---- the command line ----


def run(*argv, cwd, check=True, **env):
    result = subprocess.run([sys.executable, os.path.join(HERE, "grpo_sg.py"), *map(str, argv)], cwd=cwd,
                            text=True, capture_output=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1", **env})
    assert not check or result.returncode == 0, result.stderr
    return result


def rows_of(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def test_the_default_command_end_to_end(tmp_path):
    out = tmp_path / "run"
    result = run(*"--steps 2 --warmup_accuracy 0.01 --eval_every 1 --eval_problems 30 --out".split(), out,
                 cwd=tmp_path)
    assert sorted(os.listdir(out)) == ["checkpoint", "config.json", "metrics.jsonl", "samples.jsonl"]
    rows = rows_of(out / "metrics.jsonl")
    assert [(r["step"], r.get("split")) for r in rows] == [(0, "test"), (1, None), (1, "valid"), (2, None),
                                                           (2, "valid"), (2, "test")]
    assert {"eval/accuracy", "eval/avg@4", "eval/pass@1", "eval/pass@4"} <= set(rows[-1])
    samples = rows_of(out / "samples.jsonl")
    assert {"question", "completion", "reward", "correct", "formatted", "truncated"} <= set(samples[0])
    assert json.loads((out / "config.json").read_text())["people"] == [3]
    for text in ("best constant answer:", "Before (", "After (", "grad_norm", str(out)):
        assert text in result.stdout
    again = run("--eval_only", "--model", out / "checkpoint", "--out", tmp_path / "eval", cwd=tmp_path)
    assert f"{rows[-1]['eval/accuracy']}" in again.stdout
    assert rows_of(tmp_path / "eval" / "metrics.jsonl")[0]["eval/avg@4"] == rows[-1]["eval/avg@4"]


def test_runs_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    cfg = grpo_sg.Config()
    folders = [runs.open_run(cfg, {})[0] for _ in range(3)]
    assert folders == ["runs/kk-sg-seed0-now", "runs/kk-sg-seed0-now_2", "runs/kk-sg-seed0-now_3"]
    assert all(os.path.exists(f"{folder}/config.json") for folder in folders)


def test_what_an_evaluation_takes_from_a_run(tmp_path, monkeypatch, capsys):
    saved = grpo_sg.parse(["--task", "math", "--temperature", "0.9", "--out", f"{tmp_path}/new"])
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(saved)))
    model = ["--eval_only", "--model", f"{tmp_path}/checkpoint/"]
    cfg = grpo_sg.parse([*model, "--max_new_tokens", "7"])
    assert (cfg.task, cfg.temperature, cfg.max_new_tokens, cfg.brief) == ("math", 0.9, 7, True)
    assert cfg.out == "" and cfg.model == model[2] and "config.json" in capsys.readouterr().out
    for other in ([*model, "--task", "kk"], model[1:], [*model[:2], "Qwen/Qwen2.5-0.5B"]):
        assert grpo_sg.parse(other).temperature == 0.7
    monkeypatch.chdir(tmp_path)
    assert grpo_sg.parse(["--eval_only", "--model", "checkpoint"]).temperature == 0.9
    assert grpo_sg.parse(["--eval_only"]).temperature == 1.0  # names no checkpoint: a new tiny model
    for broken in ("{", "[]", '{"shaping": 1, "people": 2}', '{"shaping": 1, "people": 2, "task": "kk"}'):
        (tmp_path / "config.json").write_text(broken)
        assert grpo_sg.parse(model).temperature == 0.7


def bpe_model(folder, template):
    """A small Qwen2 with a trained byte-level BPE, saved like a hub checkpoint; pad is the end token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())
    texts = [p.question + p.solution for p in tasks.kk_split("train", 50, [3], 0)]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>",
                                                     pad_token="<|endoftext|>")
    if template:
        tokenizer.chat_template = (
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
            "{% endfor %}{{ '<|im_start|>assistant\n' }}")
    tokenizer.save_pretrained(folder)
    tiny_qwen(vocab=600).save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("template", [True, False])
def test_a_real_model_from_a_folder(tmp_path, template):
    tokenizer = bpe_model(tmp_path / "model", template)
    prompt = tokenizer.decode(tasks.encode_prompt(tokenizer, "Be good.", "Who?"))
    assert prompt == (
        "<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
        if template else "Be good.\n\nWho?\n\n")
    assert grpo_sg.stop_tokens(tiny_qwen(), tokenizer) >= {0, 2}  # <|endoftext|> and <|im_end|>
    out = tmp_path / "run"
    grpo_sg.main(f"--model {tmp_path}/model --task kk --steps 1 --prompts 2 --group_size 2 "
                 f"--max_new_tokens 8 --eval_problems 3 --people 3 --train_problems 20 --out {out} "
                 "--beta 0.01 --eval_samples 2 --gradient_checkpointing "
                 "--loss_agg_mode seq-mean-token-mean".split())
    row = rows_of(out / "metrics.jsonl")[1]
    assert row["step"] == 1 and row["truncated"] > 0.5 and row["reward"] == -3 and row["equal_groups"] == 1
    saved = transformers.PreTrainedTokenizerFast.from_pretrained(out / "checkpoint")
    assert saved.chat_template == tokenizer.chat_template
    transformers.AutoModelForCausalLM.from_pretrained(out / "checkpoint")


def test_published_puzzles(tmp_path, monkeypatch):
    """The true column names and splits, in a local folder."""
    folder = tmp_path / "kk"
    os.makedirs(folder / "train")
    with open(folder / "train" / "people3_num1000.jsonl", "w") as f:
        for i in range(1000):
            f.write(json.dumps({"quiz": f"puzzle {i}", "names": ["Ava", "Bo", "Cy"],
                                "solution": [i % 2 == 0, True, False],
                                "knight_knave": {"knight": "a knight"}, "solution_text": "",
                                "statements": "()"}) + "\n")
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: train\n  data_files:\n  - split: 3ppl\n"
                                      "    path: train/people3_num1000.jsonl\n---\n")
    monkeypatch.setattr(tasks, "KK_HUB", str(folder))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    task = tasks.kk_task(grpo_sg.Config(data="published", people=(3,), eval_problems=10))
    assert [len(task.train), len(task.test)] == [900, 100]
    assert task.test[0].question == "puzzle 900" and task.train[1].answer == {"Ava": "knave", "Bo": "knight",
                                                                              "Cy": "knave"}
    assert task.floor == 0.5


@pytest.mark.parametrize("argv, message", [
    ("--task chess", "chess"), ("--shaping magic", "magic"), ("--model ./nowhere", "./nowhere"),
    ("--group_size 1", "--group_size"), ("--steps 0", "--steps"), ("--lr -1", "--lr"), ("--lr nan", "--lr"),
    ("--temperature 0", "--temperature"), ("--max_new_tokens 0", "--max_new_tokens"),
    ("--low 2 --high 1", "--high"),
    ("--out .", "exists"), ("--people 1", "2 to 8"), ("--steps many", "many"), ("--nonsense", "--nonsense"),
    ("--tau 0", "--tau"), ("--model nobody/nothing", "nobody/nothing"),
    ("--max_prompt_tokens 1", "--max_prompt_tokens"),
    ("--out /proc/run", "cannot read or write"), ("--data published", "add --model")])
def test_bad_input_is_one_line(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        grpo_sg.main(argv.split())
    err = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2 and len(err) == 1 and message in err[0], err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("left", [["tokenizer.json", "tokenizer_config.json"], ["config.json"]])
def test_half_a_model_is_refused(left, tmp_path, monkeypatch, capsys):
    bpe_model(tmp_path / "model", True)
    for name in os.listdir(tmp_path / "model"):
        if name in left:
            os.remove(tmp_path / "model" / name)
    with pytest.raises(SystemExit):
        grpo_sg.main(["--model", str(tmp_path / "model"), "--out", str(tmp_path / "run")])
    assert "/model" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_long_prompts_are_dropped_with_a_count(capsys):
    short = tasks.keep_short(toy_task(), word_tokenizer(), 1)
    assert [p.question for p in short.train] == ["who", "what"]
    assert "1 of 3 train problems" in capsys.readouterr().out


def test_a_weight_without_effect_is_announced():
    with pytest.warns(UserWarning, match="plain GRPO"):
        grpo_sg.parse(["--tau", "9"])


def test_published_puzzles_without_a_network(tmp_path):
    result = run("--model", "any", "--data", "published", cwd=tmp_path, check=False,
                 HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=str(tmp_path))
    assert result.returncode == 2 and "cannot load --data published" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr and not (tmp_path / "runs").exists()


# ---- the README: what it shows is what there is ----

def readme(pattern):
    with open(os.path.join(HERE, "README.md")) as file:
        return re.findall(pattern, file.read(), re.M | re.S)


def snippet(word):
    """The README's block of Python that has the word."""
    found, = [block for block in readme(r"```python\n(.*?)```") if word in block]
    return found


def test_the_readmes_equations_stand_beside_the_files_own_code():
    with open(os.path.join(HERE, "grpo_sg.py")) as file:
        text = file.read()
    codes = readme(r"`\$ \| `([^`]+)` \|$")
    assert len(codes) == 6 and all(code in text for code in codes)


def test_the_readmes_links_and_figures_exist():
    paths = readme(r"\]\(([\w./]+)\)")
    assert "experiments/figures/method.svg" in paths
    for path in paths:
        assert os.path.exists(os.path.join(HERE, path)), path


SMALL = ("--steps 1 --prompts 2 --group_size 2 --eval_problems 3 --train_problems 20 --eval_samples 0 "
         "--max_new_tokens 8").split()
ELSEWHERE = {"grpo_sg.py", "-m pytest -q", "backwards.py --task backwards"}  # run by other tests, and by CI
COMMANDS = {  # each other one of the README's, and what the test adds to it
    "grpo_sg.py --model Qwen/Qwen2.5-0.5B --task kk": [*SMALL, "--out", "runs/NAME"],
    "grpo_sg.py --model Qwen/Qwen2.5-0.5B --task math --data gsm8k": SMALL,
    "grpo_sg.py --eval_only --model runs/NAME/checkpoint --task math --eval_data aime24 --eval_samples 16":
        ["--max_new_tokens", "8"],
    "grpo_sg.py --resume --out runs/NAME": [],
    "experiments/compare.py show": [],
    "experiments/math_verifiers.py": [],
    "experiments/memory.py": [],
    # These take minutes; that they start is all that is tested.
    "experiments/bench.py": ["--help"],
    "experiments/default.py kk": ["--help"],
    "experiments/faults.py kill": ["--help"],
    "experiments/premise.py --seeds 0 1 2 3 4": ["--help"]}


def test_the_readmes_commands(hub, monkeypatch, capsys):
    """In one folder, where the hub's names are small models and data sets."""
    bpe_model(hub / "Qwen" / "Qwen2.5-0.5B", template=True)
    named = {re.sub(r"\s*(#.*)?$", "", line) for line in readme(r"^python ([^\n]+)")}
    named |= {" ".join(line.split()) for line in readme(r"(?<!`)`python\s([^`]+)`")}
    assert named == ELSEWHERE | set(COMMANDS)
    for command, more in COMMANDS.items():
        capsys.readouterr()
        script, *argv = command.split()
        monkeypatch.setattr(sys, "argv", [script, *argv, *more])
        try:
            runpy.run_path(os.path.join(HERE, script), run_name="__main__")
        except SystemExit as stop:
            assert more == ["--help"] and stop.code == 0, capsys.readouterr().err
        if script == "experiments/memory.py":
            assert capsys.readouterr().out in readme(".+")[0]  # the whole
    assert (hub / "runs" / "NAME" / "checkpoint").exists() and len(os.listdir(hub / "runs")) == 3


def test_the_readmes_cheats_fail():
    rows = readme(r"^\| `(\w+)` \| ([^|]+) \| `([^`]+)` \|")
    assert [task for task, *_ in rows] == ["kk", "math", "qa"]
    for task, gold, cheat in rows:
        if task == "kk":
            roles = dict(clause.split() for clause in gold.split(", "))
            honest = ", ".join(f"{name} is a {role}" for name, role in roles.items())
            texts = [f"<think> hm </think> <answer> {text} </answer>" for text in (cheat, honest)]
            verdicts = [tasks.verify_kk(text, roles) for text in texts]
        elif task == "math":
            gold = gold.strip("`")
            verdicts = [tasks.verify_math(text, gold) for text in (
                cheat, f"\\boxed{{{gold}}}", r"\boxed{17 or 19}")]
            assert not verdicts.pop().correct
        else:
            verdicts = [tasks.verify_qa(text, [gold]) for text in (cheat, f"<answer> {gold} </answer>")]
        assert [verdict.correct for verdict in verdicts] == [False, True], task


def test_the_readmes_table_of_equal_answers():
    rows = readme(r"^\| [^|`]+ \| `([^|]+)` \| `([^|]+)` \| `([^|]+)` \|$")
    assert len(rows) >= 5
    for gold, right, wrong in rows:
        for texts, correct in ((right, True), (wrong, False)):
            for text in texts.split("`, `"):
                assert tasks.verify_math(f"\\boxed{{{text}}}", gold) == (correct, True), (gold, text)


def test_the_readmes_lines_to_copy(tmp_path):
    model, ids = tiny_qwen(), torch.randint(2, 50, (4, 9))
    mask = torch.arange(9).expand(4, 9) > 3
    names = {**vars(grpo_sg), "model": model, "ids": ids, "mask": mask, "rewards": torch.randn(2, 2),
             "old_logps": token_logps(model, ids, mask).detach()}
    (tmp_path / "copied.py").write_text(snippet("loss, stats ="))
    found = runpy.run_path(str(tmp_path / "copied.py"), names)
    found["loss"].backward()
    assert found["stats"]["clip_frac"] == 0 and model.lm_head.weight.grad.abs().sum() > 0


TOOL = """\
import random, grpo_sg, tasks

def add(cfg):
    pairs = random.Random(cfg.seed).sample([(a, b) for a in range(100) for b in range(100)], 1000)
    problems = [tasks.Problem(f"{a} plus {b}", str(a + b), f"<add>{a}+{b}</add>{a + b}") for a, b in pairs]
    def observe(text):
        a, _, b = text.rpartition("<add>")[2].removesuffix("</add>").partition("+")
        return f"={int(a) + int(b)};" if len(a + b) < 20 and a.isdecimal() and b.isdecimal() else "=?;"
    verify = lambda text, answer: tasks.Verdict(text.rpartition("</add>")[2] == answer, "</add>" in text)
    return tasks.Task("add", "Add with <add>1+2</add>.", problems[200:], problems[:100], problems[100:200],
                      verify, floor=0.02, demo=lambda problem, rng: problem.solution, tokens=r"</?add>|.",
                      stop_text="</add>", observe=observe)

tasks.TASKS["add"] = add
grpo_sg.main()
"""


@pytest.mark.parametrize("name, text", [("backwards", None), ("add", TOOL)])
def test_a_task_of_ones_own(name, text, tmp_path, monkeypatch, capsys):
    """The README's task, and one with a tool, copied to a file and run."""
    text = text or snippet("grpo_sg.main()")
    assert len([line for line in text.split("\n") if line.strip()]) <= 15
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.setattr(sys, "argv", ["mine.py", *(
        f"--task {name} --steps 2 --prompts 2 --group_size 4 --warmup_accuracy 0.0001 --eval_samples 0 "
        f"--max_new_tokens 12 --out {tmp_path}/run").split()])
    runpy.run_path(str(tmp_path / "mine.py"))
    del tasks.TASKS[name]
    row = rows_of(tmp_path / "run" / "metrics.jsonl")[-1]
    assert row["split"] == "test" and (row["eval/tool_calls"] > 0) == (name == "add")
    assert "100 test problems" in capsys.readouterr().out


# ---- bridges: skipped where the other engine is not installed ----

def engine_weights(logps):  # of GRPO
    return torch.ones_like(logps)


def trl_trainer(folder, cls, loss_type, beta, accumulation, seed=0):
    import datasets
    import trl
    model = tiny_qwen(vocab=len(WORDS), seed=seed, tie_word_embeddings=True)
    model.save_pretrained(folder)
    model.config._name_or_path = str(folder)  # whence TRL reads its reference model
    args = trl.GRPOConfig(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=8 // accumulation,
        gradient_accumulation_steps=accumulation, generation_batch_size=16, num_generations=4,
        max_completion_length=6, temperature=1.0, beta=beta, loss_type=loss_type, epsilon=0.2,
        epsilon_high=0.24, use_bias_correction_kl=False, learning_rate=1e-2, use_cpu=True, bf16=False,
        seed=5, gradient_checkpointing=False, save_strategy="no", logging_strategy="no", report_to="none",
        disable_tqdm=True)

    def reward(completions, **_):
        return [3.0 if "yes" in text.split() else -0.5 * len(text.split()) for text in completions]
    questions = ["who", "what", "why why", "maybe"] * 2
    return cls(model, reward, args, datasets.Dataset.from_dict({"prompt": questions}),
               processing_class=word_tokenizer())


@pytest.mark.parametrize("loss_type, beta, accumulation", [
    ("dapo", 0.0, 1), ("dapo", 0.1, 2), ("grpo", 0.0, 2), ("grpo", 0.1, 1)])
def test_trl_bridge(loss_type, beta, accumulation, tmp_path, monkeypatch):
    trl = pytest.importorskip("trl")
    from bridges import trl_grpo_sg
    seen = []

    class Watched(trl_grpo_sg.GRPOSGTrainer):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            seen.append((loss.item(), self.by_hand(model, inputs)))
            return loss

        def by_hand(self, model, inputs):
            """The same loss by grpo_sg_loss, from each row alone, without pads."""
            mask, ids = inputs["completion_mask"].bool(), inputs["completion_ids"]
            rows = []
            for prompt, there, row in zip(inputs["prompt_ids"], inputs["prompt_mask"].bool(), ids):
                whole = torch.cat([prompt[there], row])[None]
                logps = model(input_ids=whole).logits[0, -len(row) - 1:-1].log_softmax(-1)
                rows.append(logps.gather(1, row[:, None])[:, 0])
            logps, old = torch.stack(rows), inputs.get("old_per_token_logps")
            token_mean = loss_type == "dapo"
            loss, _ = grpo_sg_loss(
                logps, logps.detach() if old is None else old, inputs["advantages"], mask,
                weights=token_weights(logps), ref_logps=inputs.get("ref_per_token_logps"), clip_high=0.24,
                beta=beta, loss_agg_mode="token-mean" if token_mean else "seq-mean-token-mean",
                denominator=inputs["num_items_in_batch"] / 2 if token_mean else 8)
            return loss.item()
    trl_trainer(tmp_path, Watched, loss_type, beta, accumulation).train()
    assert len(seen) == 4 * accumulation
    for theirs, ours in seen:
        assert theirs == pytest.approx(ours, abs=1e-6)
    weights = {}
    monkeypatch.setattr(trl_grpo_sg, "token_weights", engine_weights)
    for cls in (trl.GRPOTrainer, trl_grpo_sg.GRPOSGTrainer):
        trainer = trl_trainer(tmp_path, cls, loss_type, beta, accumulation)
        before = torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])
        trainer.train()
        weights[cls] = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        assert not torch.equal(before, weights[cls])
    assert torch.equal(*weights.values())


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_verl_bridge(mode, beta, monkeypatch):
    core = pytest.importorskip("verl.trainer.ppo.core_algos")
    from verl.workers.config import ActorConfig

    from bridges import verl_grpo_sg
    logps, old, ref, A, mask, _ = batch()
    A = A[:, None].expand_as(logps)
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=0.2,
                         clip_ratio_high=0.24, clip_ratio_c=1e9)

    def theirs(name, logps, rows, denominator):
        """The loss of some rows of the batch, as the actor puts it together."""
        key = "batch_num_tokens" if mode == "token-mean" else "global_batch_size"
        config.global_batch_info.update({key: denominator})
        loss, _ = core.get_policy_loss_fn(name)(
            old_log_prob=old[rows], log_prob=logps[rows], advantages=A[rows], response_mask=mask[rows],
            loss_agg_mode=mode, config=config)
        kl = core.kl_penalty(logprob=logps[rows], ref_logprob=ref[rows], kl_penalty="low_var_kl")
        return loss + beta * core.agg_loss(kl, mask[rows], mode, **config.global_batch_info)
    logps.requires_grad_()
    ours, _ = grpo_sg_loss(logps, old, A, mask, weights=token_weights(logps), ref_logps=ref, clip_high=0.24,
                           beta=beta, loss_agg_mode=mode)
    expected, = torch.autograd.grad(ours, logps)
    whole = mask.sum() if mode == "token-mean" else len(mask)
    for parts in ([slice(None)], [slice(0, 1), slice(1, None)]):  # at once, or accumulated
        loss = sum(theirs("grpo_sg", logps, rows, whole) for rows in parts)
        assert loss.item() == pytest.approx(ours.item(), abs=1e-6)
        assert torch.allclose(torch.autograd.grad(loss, logps)[0], expected, atol=1e-6)
    monkeypatch.setattr(verl_grpo_sg, "token_weights", engine_weights)
    steps = []
    for name in ("vanilla", "grpo_sg"):
        x = logps.detach().clone().requires_grad_()
        optimizer = torch.optim.AdamW([x], 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            theirs(name, x, slice(None), whole).backward()
            optimizer.step()
        steps.append(x.detach())
    assert torch.equal(*steps) and not torch.equal(steps[0], logps)


def test_the_readmes_trl_script(tmp_path, monkeypatch, capsys):
    pytest.importorskip("trl")
    bpe_model(tmp_path / "Qwen" / "Qwen2.5-0.5B", template=True)
    text = snippet("GRPOSGTrainer").replace(
        '0.5B"]', '0.5B", "--train_problems", "20", "--eval_problems", "3", "--people", "3"]').replace(
        "max_completion_length=2048", "max_completion_length=8, max_steps=1, use_cpu=True, bf16=False, "
        "save_strategy='no', report_to='none'")
    (tmp_path / "with_trl.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE)
    runpy.run_path("with_trl.py")
    assert "'reward': '-3'" in capsys.readouterr().out  # from verify_kk, for eight random tokens


def test_the_readmes_verl_flags():
    verl = pytest.importorskip("verl")
    hydra = pytest.importorskip("hydra")
    command, = readme(r"verl\.trainer\.main_ppo (.*?)```")
    with hydra.initialize_config_dir(os.path.join(os.path.dirname(verl.__file__), "trainer", "config"),
                                     version_base=None):
        actor = hydra.compose("ppo_trainer", command.replace("\\\n", " ").split()).actor_rollout_ref.actor
    assert actor.policy_loss.loss_mode == "grpo_sg" and actor.clip_ratio_c == 1e9
