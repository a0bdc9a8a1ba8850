"""Test look.py: its gradients are those of loops over tokens, and its estimates those of the
distribution that the gradients come from."""
import copy
import dataclasses
import math
import re

import pytest
import torch

import grpo_sg
from grpo_sg import Completion, Config, Policy
from support import look
from test_grpo_sg import build_model

CFG = Config(group_size=2, tokens_per_micro_batch=24, prompts=12, updates=8, temperature=1.0)


def build_policy():
    model = build_model(vocab_size=11, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                        num_attention_heads=2, initializer_range=0.6)
    return Policy(model, None, {0})


def make_groups():
    """Three groups of unequal lengths; the second has equal rewards; some tokens are a tool's."""
    g = torch.Generator().manual_seed(3)  # so that every class has tokens
    completions = []
    for A, length in ((0.7, 9), (-0.7, 4), (0.0, 5), (0.0, 6), (0.7, 3), (-0.7, 8)):
        tokens = torch.randint(0, 11, (length,), generator=g).tolist()
        prompt = torch.randint(1, 11, (3,), generator=g).tolist()
        mask = [t != 1 for t in range(length)]
        completions.append(Completion(None, prompt, tokens, mask, advantage=A))
    return grpo_sg.split_groups(completions, 2)


def slow_gradients(model, group, cfg):
    """A row each for GRPO, the weight w(pi) and the four classes, by loops over tokens, in float64."""
    model = copy.deepcopy(model).double()
    rows = torch.zeros(6, model.num_parameters(), dtype=torch.float64)
    for c in group:
        logits = model(input_ids=torch.tensor([c.prompt + c.tokens])).logits[0]
        for t, token in enumerate(c.tokens):
            if not c.mask[t]:
                continue
            logps = (logits[len(c.prompt) + t - 1] / cfg.temperature).log_softmax(-1)
            parts = torch.autograd.grad(logps[token], list(model.parameters()), retain_graph=True)
            pi = float(logps[token].detach().exp())
            w = min(1.4, max(1.0, 2 * (1 / (1 + math.exp(-9 * pi)) - 0.25)))
            factors = [1, w if cfg.shaping == "sg" else 0.2 * pi + 0.8]
            for sign in (1, -1):
                here = c.advantage * sign > 0
                factors += [here and pi < 1/3, here and pi > 1/3]
            gradient = torch.cat([part.flatten() for part in parts])
            rows += c.advantage * torch.tensor(factors, dtype=torch.float64)[:, None] * gradient
    return rows


@pytest.mark.parametrize("settings", [
    {}, {"shaping": "ar"}, {"tokens_per_micro_batch": 1, "temperature": 0.7}])
def test_gradients_of_groups_equal_loops_over_tokens(settings):
    """In two updates: groups 1 and 3, and group 2, whose rewards are equal."""
    policy, groups = build_policy(), make_groups()
    cfg = dataclasses.replace(CFG, **settings)
    before = copy.deepcopy(policy.model.state_dict())
    sums = look.measure(policy, groups, cfg)
    a, b, c = [slow_gradients(policy.model, group, cfg) for group in groups]
    assert not b.any() and sums.count.tolist() == [2, 1]
    S = torch.stack([a + c, b])
    steps = S[:, :2] / (S[:, :2] ** 2).mean(0).sqrt().clamp(min=1e-30)
    for value, expected in ((sums.scaled, torch.einsum("kad,jd->kja", steps, S[:, 0])),
                            (sums.along, torch.einsum("kad,jd->kja", S, S[:, 0])),
                            (sums.square, torch.einsum("kad,jad->kja", S, S)),
                            (sums.own_along[0], a @ a[0] + c @ c[0]),
                            (sums.own_square[0], (a ** 2 + c ** 2).sum(1))):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)
    assert float(sums.tokens[:2].sum()) == 8 + 2  # with A > 0
    assert all(torch.equal(x, before[name]) for name, x in policy.model.state_dict().items()), "it was trained"


def slow_progress(S, kept):
    """The progress ratio by its definition, update by update. S: (U, 2, size); kept: indices of updates."""
    progress = [0.0, 0.0]
    for way in (0, 1):
        rms = torch.stack([(S[k, way] * S[k, way]) for k in range(len(S))]).mean(0).sqrt()
        used = rms > 0  # a token that no completion has gives its embedding no gradient
        for k in kept:
            mu = sum(S[j, 0] for j in kept if j != k) / (len(kept) - 1)
            progress[way] += float((S[k, way] * mu / rms)[used].sum()) / len(kept)
    return progress[1] / progress[0]


def make_updates(policy, weight):
    """Eight groups of random tokens, and their gradients, (8, 2, size): without and with the weight."""
    generator = torch.Generator().manual_seed(5)
    groups = []
    for _ in range(8):
        # Token 2 is rewarded, so that the groups' gradients have a mean.
        drawn = [torch.randint(0, 11, (6,), generator=generator).tolist() for _ in range(2)]
        sign = 1 if drawn[0].count(2) >= drawn[1].count(2) else -1
        groups.append([Completion(None, [3, 4], tokens, [True] * 6, advantage=A)
                       for tokens, A in zip(drawn, (sign * 0.7, -sign * 0.7))])
    gradients = [slow_gradients(policy.model, group, dataclasses.replace(CFG, **weight)) for group in groups]
    return groups, torch.stack(gradients)[:, :2]


@pytest.mark.parametrize("weight, expected", [({}, None), ({"low": 1.35, "high": 1.35}, 1.0)])
def test_the_progress_ratio_equals_loops_and_is_1_for_a_constant_weight(weight, expected):
    policy = build_policy()
    cfg = dataclasses.replace(CFG, prompts=8, updates=8, **weight)  # a group in each update
    groups, S = make_updates(policy, weight)
    sums = look.measure(policy, groups, cfg)
    value, _ = look.describe(sums)["progress"]
    assert value == pytest.approx(expected or slow_progress(S, range(8)), rel=1e-4)
    assert look.estimate(sums, torch.arange(7))["progress"] == pytest.approx(
        expected or slow_progress(S, range(7)), rel=1e-4)


def test_a_sample_of_coordinates_estimates_the_progress_ratio(monkeypatch):
    """The parameters have different scales, as a model's have."""
    torch.manual_seed(0)
    S = torch.randn(16, 2, 4000) + torch.tensor([[0.5], [0.6]])
    S *= 10 ** torch.linspace(-1, 1, 4000)

    def measure_ratio(updates):
        a, b = look.multiply_steps(updates)[~torch.eye(16, dtype=torch.bool)].mean(0)
        return float(b / a)
    monkeypatch.setattr(look, "SKETCH", 500)
    values = []
    for seed in range(50):
        picked = [look.pick([way[:50], way[50:]], seed) for way in S.flatten(0, 1)]
        values.append(measure_ratio(torch.stack(picked).view(16, 2, 500)))
    values = torch.tensor(values)
    assert values.std() < 0.1
    assert abs(values.mean() - measure_ratio(S)) < 4 * values.std() / 50 ** 0.5


def make_population():
    """The gradients of 400 possible groups, (400, 6, 20): those of the classes add up to the first."""
    torch.manual_seed(0)
    gradients = torch.randn(400, 6, 20, dtype=torch.float64) + torch.randn(6, 20) / 8
    gradients[:, 2] -= gradients[:, 2].mean(0)  # a class of noise
    gradients[:, 0] = gradients[:, 2:].sum(1)
    gradients[:, 1] = gradients[:, 0] + 2 * gradients[:, 2]
    return gradients


def draw_sums(population, updates, size, seed):
    """Sums of updates of `size` groups each."""
    generator = torch.Generator().manual_seed(seed)
    g = population[torch.randint(len(population), (updates, size), generator=generator)]
    S = g.sum(1)
    steps = S[:, :2] / (S[:, :2] ** 2).mean(0).sqrt()
    return look.Sums(
        torch.einsum("kad,jd->kja", S, S[:, 0]), torch.einsum("kad,jad->kja", S, S),
        torch.einsum("kad,jd->kja", steps, S[:, 0]),
        torch.einsum("knad,knd->ka", g, g[:, :, 0]), (g ** 2).sum((1, 3)),
        torch.full((updates,), float(size)), torch.ones(4))


def test_estimates_are_unbiased_and_standard_errors_match_the_spread():
    population = make_population()
    mu = population.mean(0)
    variance = (population ** 2).mean(0).sum(1) - (mu ** 2).sum(1)
    updates = population[torch.randint(400, (4000, 4))].sum(1)
    cosines = torch.cosine_similarity(updates, mu[0], dim=2).mean(0)
    steps = (mu / (updates ** 2).mean(0).sqrt()) @ mu[0]  # of AdamW, along the mean gradient
    exact = {"length": mu[0] @ mu[0], "alignment": cosines[1] / cosines[0],
             "progress": steps[1] / steps[0]}
    for i, name in enumerate(look.CLASSES, start=2):
        exact[f"mean: {name}"] = mu[i] @ mu[0] / (mu[0] @ mu[0])
        exact[f"variance: {name}"] = variance[i] / variance[0]
    rollouts = [look.describe(draw_sums(population, 40, 4, seed)) for seed in range(60)]
    for name, expected in exact.items():
        values, errors = torch.tensor([numbers[name] for numbers in rollouts]).T
        assert abs(values.mean() - expected) < 4 * values.std() / 60 ** 0.5 + 0.01, name
        assert 0.6 < float(errors.mean() / values.std()) < 1.6, name
    # A product of a group with itself, which would bias the length, is much larger than this error.
    assert variance[0] / 160 > 6 * torch.tensor([n["length"][0] for n in rollouts]).std() / 60 ** 0.5


def test_the_same_coordinates_are_picked_from_every_parameter(monkeypatch):
    parts = [torch.arange(10.0).view(2, 5), torch.arange(10.0, 11.0), torch.arange(11.0, 40.0)]
    assert look.pick(parts).tolist() == list(range(40))
    monkeypatch.setattr(look, "SKETCH", 20)
    drawn = [look.pick(parts, seed).tolist() for seed in range(200)]
    assert drawn[0] == look.pick(parts, 0).tolist() == sorted(drawn[0]) and len(drawn[0]) == 20
    counts = torch.tensor([sum(numbers.count(i) for numbers in drawn) for i in range(40)])
    assert counts.sum() == 4000 and 60 < counts.min() and counts.max() < 140  # 100 each


def test_a_sketch_keeps_inner_products(monkeypatch):
    monkeypatch.setattr(look, "SKETCH", 64)
    torch.manual_seed(0)
    a, b = torch.ones(1000), 1 + torch.randn(1000)

    def shorten(x, seed=0):  # one parameter fits into one piece, the other needs many
        return look.shorten([x[:50].view(5, 10), x[50:]], seed)
    products = torch.tensor([float(shorten(a, seed) @ shorten(b, seed)) for seed in range(400)])
    assert abs(products.mean() - a @ b) < 4 * products.std() / 20
    # The spread of independent random signs: |a| |b| / sqrt(64), times sqrt 2 if a is b.
    assert products.std() < 1.5 * a.norm() * b.norm() / 8
    torch.testing.assert_close(shorten(a + 2 * b), shorten(a) + 2 * shorten(b))


@pytest.mark.parametrize("progress, length, words", [
    ((1.031, 0.004), (5.0, 1.0), "GRPO-SG goes 3.1% further .* rate that is 3.1% higher"),
    ((0.90, 0.02), (5.0, 1.0), "GRPO-SG goes 10.0% less far .* rate that is 10.0% lower"),
    ((1.10, math.nan), (5.0, 1.0), "no difference"), ((1.01, 0.02), (5.0, 1.0), "no difference"),
    ((1.10, 0.02), (1.5, 1.0), "--groups 1024")])
def test_the_sentence_says_what_the_ratio_means_and_when_errors_are_too_large(progress, length, words):
    sentence = look.interpret({"progress": progress, "length": length}, 256, "GRPO-SG")
    assert re.search(words, sentence)


def test_the_command_on_the_pretrained_model(capsys):
    look.main("--task math --train_problems 100 --groups 64 --group_size 2".split())
    text = capsys.readouterr().out
    assert re.search(r"gradient alignment of an update of 8 groups: \d\.\d{3} \+- \d\.\d{3} \(cosine .*\n"
                     r"progress ratio of an update of 8 groups: \d\.\d{3} \+- \d\.\d{3} \(.*\nwhat it means: ", text)
    numbers = r" +([\d.]+)% +(-?[\d.]+) \+- [\d.]+ +(-?[\d.]+) \+- [\d.]+\n"
    rows = [re.search(re.escape(name) + numbers, text).groups() for name in look.CLASSES]
    tokens, share, _ = (sum(map(float, column)) for column in zip(*rows))
    assert tokens == pytest.approx(100, abs=0.3) and share == pytest.approx(1, abs=0.003)


def test_the_usual_number_of_groups_makes_sixteen_updates():
    count, cfg = look.read_arguments("--prompts 128 --beta 0.1".split())
    assert (count, look.groups_per_update(cfg), cfg.beta) == (512, 32, 0)


@pytest.mark.parametrize("flags, words", [
    ("--shaping none", "--shaping sg or ar"), ("--model .", "cannot be used"),  # a hub name would be looked for
    ("--prompts 128 --groups 128", "256 or more, at least 8 updates of 32 groups")])
def test_a_mistake_is_reported_in_one_line(flags, words):
    with pytest.raises(SystemExit, match=f"^error: .*{words}"):
        look.main(flags.split())
