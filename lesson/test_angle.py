"""The look before training says what one gradient for each token says, and trains nothing."""
import copy
import dataclasses
import math

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import tasks
from grpo_sg import Completion, Config, Policy
from lesson import angle
from support import cli
from support.program import UserError

CFG = Config(**{**cli.TINY, "group_size": 2, "tokens_per_micro_batch": 24})


@pytest.fixture
def policy():
    """A tiny model that is sure of some tokens and unsure of others."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=11, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, initializer_range=0.6))
    return Policy(model.eval(), None, {0})


def make_completions():
    """Three groups of two, of unequal lengths; the second has equal rewards; some tokens are
    a tool's."""
    g = torch.Generator().manual_seed(1)
    found = []
    for A, length in ((0.7, 9), (-0.7, 4), (0.0, 5), (0.0, 6), (0.7, 3), (-0.7, 8)):
        c = Completion(None, torch.randint(1, 11, (3,), generator=g).tolist())
        c.tokens = torch.randint(0, 11, (length,), generator=g).tolist()
        c.mask = [t != 1 for t in range(length)]
        c.advantage = A
        found.append(c)
    return found


def gradients_by_token(model, c, temperature):
    """[(pi, gradient of log pi)] of the policy's own tokens, in float64."""
    model = copy.deepcopy(model).double()
    logits = model(input_ids=torch.tensor([c.prompt + c.tokens])).logits[0] / temperature
    found = []
    for t, token in enumerate(c.tokens):
        if c.mask[t]:
            logp = logits[len(c.prompt) + t - 1].log_softmax(-1)[token]
            parts = torch.autograd.grad(logp, list(model.parameters()), retain_graph=True)
            found.append((logp.exp().item(), torch.cat([part.flatten() for part in parts])))
    return found


def slow_compare(policy, completions, cfg, w):
    """compare, by loops over tokens; w: the weight as a function of pi."""
    total = {name: 0.0 for name in ("g", "turned", "unlikely", "first", "second")}
    tokens = unlikely = 0
    for i, c in enumerate(completions):
        for pi, gradient in gradients_by_token(policy.model, c, cfg.temperature):
            share = 1 / sum(c.mask) if cfg.loss_agg_mode == "seq-mean-token-mean" else 1
            part = c.advantage * share * gradient
            total["g"] = total["g"] + part
            total["turned"] = total["turned"] + w(pi) * part
            total["unlikely"] = total["unlikely"] + (pi < 1/3) * part
            half = "first" if i < 2 else "second"  # of three problems the first has one
            total[half] = total[half] + part
            tokens += share * (c.advantage != 0)
            unlikely += share * (c.advantage != 0) * (pi < 1/3)
    g = total["g"]

    def cos(a, b):
        return float(a @ b / a.norm() / b.norm())
    return {"tokens": tokens, "unlikely": unlikely / tokens,
            "part": float(total["unlikely"] @ g / (g @ g)), "cos": cos(g, total["turned"]),
            "halves": cos(total["first"], total["second"])}


def weight(pi):
    return min(1.4, max(1.0, 2 * (1 / (1 + math.exp(-9 * pi)) - 0.25)))


def weight_with_more_range(pi):
    return min(10.0, max(0.5, 45 * (1 / (1 + math.exp(-9 * pi)) - 0.7)))


@pytest.mark.parametrize("settings, w", [
    ({}, weight),
    ({"alpha": 45.0, "mu": 0.7, "low": 0.5, "high": 10.0}, weight_with_more_range),
    ({"shaping": "ar"}, lambda pi: 0.2 * pi + 0.8),
    ({"loss_agg_mode": "seq-mean-token-mean", "temperature": 0.7}, weight),
    ({"beta": 0.1, "tokens_per_micro_batch": 1}, weight)])
def test_against_one_gradient_for_each_token(settings, w, policy):
    cfg = dataclasses.replace(CFG, **settings)
    before = copy.deepcopy(policy.model.state_dict())
    fast = angle.compare(policy, make_completions(), cfg)
    slow = slow_compare(policy, make_completions(), cfg, w)
    assert 0 < slow["unlikely"] < 1 and slow["cos"] < 0.9999  # there is something to tell apart
    for key, value in slow.items():
        assert fast[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
    for name, parameter in policy.model.state_dict().items():
        assert torch.equal(parameter, before[name]), f"{name} was trained"
    assert all(p.grad is None for p in policy.model.parameters())


def test_a_rollout_without_a_gradient_or_without_halves_is_one_line(policy):
    completions = make_completions()
    with pytest.raises(UserError, match="--prompts 2 or more"):
        angle.compare(policy, completions[:2], CFG)
    for c in completions:
        c.advantage = 0.0
    with pytest.raises(UserError, match="equal rewards"):
        angle.compare(policy, completions, CFG)


def test_halves_of_which_one_has_no_gradient(policy):
    completions = make_completions()
    for c in completions[:2]:
        c.advantage = 0.0
    found = angle.compare(policy, completions, CFG)
    assert math.isnan(found["halves"])
    assert "raise --prompts" in angle.tell(found, CFG)[-1]


# ---- Kantorovich's yardstick ----

def cos_of_sums(lengths, weights):
    """Between the sums of orthogonal vectors of these lengths, unweighted and weighted."""
    square = torch.randn(len(lengths), len(lengths), dtype=torch.float64)
    vectors = torch.linalg.qr(square)[0] * lengths  # its columns
    return float(torch.cosine_similarity(vectors.sum(1), (vectors * weights).sum(1), dim=0))


@pytest.mark.parametrize("low, high", [(1.0, 1.4), (1.0, 10.0), (0.2, 0.9)])
def test_no_orthogonal_vectors_turn_further_than_the_yardstick(low, high):
    torch.manual_seed(0)
    bound = angle.yardstick(low, high)
    for _ in range(200):
        lengths = torch.rand(8, dtype=torch.float64) ** 3 + 1e-3
        weights = low + (high - low) * torch.rand(8, dtype=torch.float64).round(decimals=0)
        assert cos_of_sums(lengths, weights) >= bound - 1e-12
    # And it is reached, so that no smaller angle would do.
    lengths = torch.tensor([high, low], dtype=torch.float64).sqrt()
    weights = torch.tensor([low, high], dtype=torch.float64)
    assert cos_of_sums(lengths, weights) == pytest.approx(bound)


def test_vectors_that_cancel_turn_further():
    """Which is why it is a yardstick, and no bound."""
    g = torch.tensor([[1.0, 0.1], [-0.9, 0.1]])
    w = torch.tensor([[1.4], [1.0]])
    assert torch.cosine_similarity(g.sum(0), (w * g).sum(0), dim=0) < angle.yardstick(1.0, 1.4)


def test_noise_of_twice_the_size():
    """Two halves and two wholes, each a common vector and noise of its own."""
    torch.manual_seed(0)
    a, b, c, d = torch.randn(20000) + torch.randn(4, 20000)
    halves = torch.cosine_similarity(a, b, dim=0)
    wholes = torch.cosine_similarity(a + b, c + d, dim=0)
    assert angle.of_twice_the_size(float(halves)) == pytest.approx(float(wholes), abs=0.02)
    assert angle.of_twice_the_size(-0.1) == 0


# ---- The command ----

def test_the_command_on_the_ready_model(monkeypatch, capsys):
    make = tasks.math_task

    def make_few(cfg):  # 20,000 problems take seconds
        return make(dataclasses.replace(cfg, train_problems=100))
    monkeypatch.setitem(tasks.TASKS, "math", make_few)
    angle.main(["--task", "math", "--prompts", "8"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("angle between the gradients of GRPO and GR") for line in lines)
    assert "    Kantorovich's yardstick, weights from 1 to 1.4: 9.6" in lines
    assert lines[-1].startswith("what to expect: ")


def test_grpo_has_nothing_to_compare(capsys):
    with pytest.raises(SystemExit):
        angle.main(["--shaping", "none"])
    assert "--shaping sg or ar" in capsys.readouterr().err
