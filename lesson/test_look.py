"""The look before training reports what exact sums over all completions give, and trains
nothing."""
import copy
import dataclasses
import itertools
import math
import re

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import grpo_sg
from grpo_sg import Completion, Config, Policy
from lesson import look

CFG = Config(group_size=2, tokens_per_micro_batch=24, prompts=8, updates=8, temperature=1.0)


def build_policy(words):
    """A tiny model that is sure of some tokens and unsure of others."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=words, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, initializer_range=0.6))
    return Policy(model.eval(), None, {0})


def make_completion(prompt, tokens, advantage=0.0):
    return Completion(None, prompt, tokens, [True] * len(tokens), advantage=advantage)


def weight(pi):
    return min(1.4, max(1.0, 2 * (1 / (1 + math.exp(-9 * pi)) - 0.25)))


def weight_with_more_range(pi):
    return min(10.0, max(0.5, 45 * (1 / (1 + math.exp(-9 * pi)) - 0.7)))


def weight_ar(pi):
    return 0.2 * pi + 0.8


# ---- The gradient of one group ----

def slow_gradients(model, group, cfg, w):
    """A row each for GRPO, the weight w(pi) and the four classes, by loops over tokens, in
    float64."""
    model = copy.deepcopy(model).double()
    rows = torch.zeros(6, sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for c in group:
        logits = model(input_ids=torch.tensor([c.prompt + c.tokens])).logits[0]
        share = 1 / sum(c.mask) if cfg.loss_agg_mode == "seq-mean-token-mean" else 1
        for t, token in enumerate(c.tokens):
            if not c.mask[t]:
                continue
            logps = (logits[len(c.prompt) + t - 1] / cfg.temperature).log_softmax(-1)
            parts = torch.autograd.grad(logps[token], list(model.parameters()),
                                        retain_graph=True)
            gradient = torch.cat([part.flatten() for part in parts])
            pi = float(logps[token].detach().exp())
            factors = [1, w(pi)]
            for sign in (1, -1):
                here = c.advantage * sign > 0
                factors += [here and pi < 1/3, here and pi > 1/3]
            factors = torch.tensor(factors, dtype=torch.float64)
            rows += c.advantage * share * factors[:, None] * gradient
    return rows


def make_groups():
    """Three groups of unequal lengths; the second has equal rewards; some tokens are a
    tool's."""
    g = torch.Generator().manual_seed(3)  # so that every class has tokens
    completions = []
    for A, length in ((0.7, 9), (-0.7, 4), (0.0, 5), (0.0, 6), (0.7, 3), (-0.7, 8)):
        tokens = torch.randint(0, 11, (length,), generator=g).tolist()
        c = make_completion(torch.randint(1, 11, (3,), generator=g).tolist(), tokens, A)
        c.mask = [t != 1 for t in range(length)]
        completions.append(c)
    return grpo_sg.split_groups(completions, 2)


@pytest.mark.parametrize("settings, w", [
    ({}, weight),
    ({"alpha": 45.0, "mu": 0.7, "low": 0.5, "high": 10.0}, weight_with_more_range),
    ({"shaping": "ar"}, weight_ar),
    ({"loss_agg_mode": "seq-mean-token-mean", "temperature": 0.7}, weight),
    ({"tokens_per_micro_batch": 1}, weight)])
def test_gradients_of_groups_equal_loops_over_tokens(settings, w):
    """In two updates: groups 1 and 3, and group 2, whose rewards are equal."""
    policy = build_policy(11)
    cfg = dataclasses.replace(CFG, **{"prompts": 12, **settings})
    before = copy.deepcopy(policy.model.state_dict())
    groups = make_groups()
    sums = look.measure(policy, groups, cfg)
    a, b, c = [slow_gradients(policy.model, group, cfg, w) for group in groups]
    assert not b.any() and sums.count.tolist() == [2, 1]
    S = torch.stack([a + c, b])
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(sums.along, torch.einsum("kad,jd->kja", S, S[:, 0]), **close)
    torch.testing.assert_close(sums.square, torch.einsum("kad,jad->kja", S, S), **close)
    torch.testing.assert_close(sums.own_along[0], a @ a[0] + c @ c[0], **close)
    torch.testing.assert_close(sums.own_square[0], (a ** 2 + c ** 2).sum(1), **close)
    by_completion = cfg.loss_agg_mode == "seq-mean-token-mean"
    # of the four completions with a signal: their number, or the policy's tokens
    assert float(sums.tokens.sum()) == pytest.approx(4 if by_completion else 8 + 3 + 2 + 7)
    assert float(sums.tokens[:2].sum()) == pytest.approx(2 if by_completion else 8 + 2)  # A > 0
    assert (sums.tokens > 0).all()
    for name, parameter in policy.model.state_dict().items():
        assert torch.equal(parameter, before[name]), f"{name} was trained"
    assert all(p.grad is None for p in policy.model.parameters())


# ---- Signal and noise, against all completions of a tiny policy ----

@pytest.fixture(scope="module")
def all_groups():
    """(probabilities, gradients (groups, ways, parameters)) of every group of two completions
    of two prompts, exactly, in float64: completions of at most two tokens, of which 0 stops.
    The reward is the number of tokens that are 1."""
    model = build_policy(4).model
    texts = [[0]] + [list(pair) for pair in itertools.product((1, 2, 3), range(4))]
    probabilities, gradients, rows = [], [], []
    for prompt in ([1, 2], [3]):
        weighed, chances = [], []
        for tokens in texts:
            both = [make_completion(prompt, tokens, A) for A in (1.0, -1.0)]
            weighed.append([slow_gradients(model, [c], CFG, weight) for c in both])
            ids = torch.tensor([prompt + tokens])
            logps = grpo_sg.token_logps(model, ids, torch.arange(ids.shape[1])[None] >= len(prompt))
            chances.append(float(logps.detach().sum().exp()))
        assert sum(chances) == pytest.approx(1, abs=1e-5)
        rows += [row for both in weighed for row in both]
        for i, j in itertools.product(range(len(texts)), repeat=2):
            rewards = torch.tensor([[float(texts[k].count(1)) for k in (i, j)]])
            A = grpo_sg.group_advantages(rewards)[0].tolist()
            probabilities.append(chances[i] * chances[j] / 2)
            gradients.append(abs(A[0]) * weighed[i][A[0] < 0] + abs(A[1]) * weighed[j][A[1] < 0])
    gradients = torch.stack(gradients)
    # In a basis of all gradients, which keeps their inner products and is short.
    _, scale, basis = torch.linalg.svd(torch.cat(rows), full_matrices=False)
    gradients = gradients @ basis[scale > 1e-9 * scale[0]].T
    return torch.tensor(probabilities, dtype=torch.float64), gradients


def draw_sums(all_groups, updates, size, seed):
    """Sums of updates of `size` groups each, drawn by their probabilities."""
    chances, gradients = all_groups
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.multinomial(chances, updates * size, replacement=True, generator=generator)
    g = gradients[drawn].unflatten(0, (updates, size))  # (U, n, W, parameters)
    S = g.sum(1)
    return look.Sums(
        torch.einsum("kad,jd->kja", S, S[:, 0]), torch.einsum("kad,jad->kja", S, S),
        torch.einsum("knad,knd->ka", g, g[:, :, 0]), (g ** 2).sum((1, 3)),
        torch.full((updates,), float(size)), torch.ones(4))


def test_estimates_are_those_of_exact_sums(all_groups):
    """Many rollouts of 32 groups: |mu|^2 is unbiased. Few rollouts of many groups: shares and
    efficiency come close to the exact ones."""
    chances, gradients = all_groups
    mu = torch.einsum("k,kap->ap", chances, gradients)
    square = torch.einsum("k,kap,kap->a", chances, gradients, gradients)
    noise = square - (mu ** 2).sum(1)
    lengths = []
    for seed in range(300):
        lengths.append(look.estimate(draw_sums(all_groups, 8, 4, seed), torch.arange(8))["length"])
    lengths = torch.stack(lengths)
    standard_error = lengths.std() / 300 ** 0.5
    assert abs(lengths.mean() - mu[0] @ mu[0]) < 4 * standard_error
    assert noise[0] / 32 > 6 * standard_error  # with products of a group with itself

    numbers = look.describe(draw_sums(all_groups, 64, 64, 0))
    for i, name in enumerate(look.CLASSES, start=2):
        for share, expected in (("signal", mu[i] @ mu[0] / (mu[0] @ mu[0])),
                                ("noise", noise[i] / noise[0])):
            value, error = numbers[f"{share}: {name}"]
            assert abs(value - expected) < 4 * error < 0.2, (share, name)
    assert sum(numbers[f"signal: {name}"][0] for name in look.CLASSES) == pytest.approx(1)


def test_efficiency_is_that_of_simulated_updates(all_groups):
    """Updates of four groups, and the true mean gradient."""
    chances, gradients = all_groups
    mu = torch.einsum("k,kp->p", chances, gradients[:, 0])
    generator = torch.Generator().manual_seed(1)
    drawn = torch.multinomial(chances.expand(4000, -1), 4, replacement=True, generator=generator)
    S = sum(gradients[k, :2] for k in drawn.T)  # (4000, 2, parameters)
    cosines = torch.cosine_similarity(S, mu, dim=2).mean(0)
    value, error = look.describe(draw_sums(all_groups, 100, 4, 0))["efficiency"]
    assert abs(value - cosines[1] / cosines[0]) < 3 * error < 0.2


def test_standard_errors_match_the_spread(all_groups):
    rollouts = [look.describe(draw_sums(all_groups, 16, 8, seed)) for seed in range(60)]
    for name in rollouts[0]:
        values, errors = torch.tensor([numbers[name] for numbers in rollouts]).T
        assert 0.5 < float(errors.mean() / values.std()) < 1.6, name


@pytest.mark.parametrize("a", [torch.ones(1000), torch.arange(1000.0).sin()])
def test_a_sketch_keeps_inner_products(a, monkeypatch):
    monkeypatch.setattr(look, "SKETCH", 64)
    torch.manual_seed(0)
    b = a + torch.randn(1000)

    def shorten(x, seed=0):  # one parameter fits into one piece, the other needs many
        return look.shorten([x[:50].view(5, 10), x[50:]], seed)
    products = torch.tensor([float(shorten(a, seed) @ shorten(b, seed)) for seed in range(400)])
    assert abs(products.mean() - a @ b) < 4 * products.std() / 20
    # The spread of independent random signs: |a| |b| / sqrt(64), times sqrt 2 if a is b.
    assert products.std() < 1.5 * a.norm() * b.norm() / 8
    torch.testing.assert_close(shorten(a + 2 * b), shorten(a) + 2 * shorten(b))


def test_large_models_use_sketches(monkeypatch):
    policy = build_policy(11)
    exact = look.measure(policy, make_groups(), CFG).own_square.sum(0)
    monkeypatch.setattr(look, "SKETCH", 2048)  # of 3,008 parameters
    sketched = look.measure(policy, make_groups(), CFG).own_square.sum(0)
    torch.testing.assert_close(sketched, exact, rtol=0.3, atol=0)
    assert not torch.equal(sketched, exact)


# ---- What is printed ----

@pytest.mark.parametrize("efficiency, length, words", [
    ((1.10, 0.02), (5.0, 1.0), "point better"),
    ((0.90, 0.02), (5.0, 1.0), "point worse"),
    ((1.03, 0.02), (5.0, 1.0), "no difference"),
    ((1.10, 0.02), (1.5, 1.0), "--groups 1024"),
    ((math.nan, math.nan), (-1.0, 1.0), "too few groups"),
    ((1.10, math.nan), (5.0, 1.0), "no difference")])
def test_the_sentence_says_when_errors_are_too_large(efficiency, length, words):
    sentence = look.interpret({"efficiency": efficiency, "length": length}, groups=256)
    assert words in sentence


def test_the_command_on_the_pretrained_model(capsys):
    look.main("--task math --train_problems 100 --groups 64 --group_size 2".split())
    text = capsys.readouterr().out
    assert re.search(r"efficiency of an update of 8 groups: \d\.\d{3} \+- \d\.\d{3} ", text)
    assert re.search(r"64 groups; [\d,]+ tokens in those", text)
    numbers = r" +([\d.]+)% +(-?[\d.]+) \+- [\d.]+ +(-?[\d.]+) \+- [\d.]+\n"
    rows = [re.search(re.escape(name) + numbers, text).groups() for name in look.CLASSES]
    tokens, signal, _ = (sum(map(float, column)) for column in zip(*rows))
    assert tokens == pytest.approx(100, abs=0.3) and signal == pytest.approx(1, abs=0.003)
    assert text.splitlines()[-1].startswith("what it means: ")


def test_a_task_file_has_settings_and_flags_come_first(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("def make_task(cfg): pass\nSETTINGS = {'prompts': 10, 'updates': 4}")
    flags = f"--task {path} --model org/name --prompts 12 --beta 0.1".split()
    count, cfg = look.read_arguments(flags)
    assert (cfg.task, cfg.prompts, cfg.updates) == (str(path), 12, 4)
    assert (cfg.beta, count) == (0.0, 256)  # the gradient of the KL is 0 at its reference


@pytest.mark.parametrize("flags, count, size", [
    ("", 256, 8), ("--prompts 128", 512, 32), ("--groups 100", 100, 8), ("--prompts 2", 256, 1)])
def test_the_usual_number_of_groups_makes_sixteen_updates(flags, count, size):
    groups, cfg = look.read_arguments(flags.split())
    assert (groups, look.groups_per_update(cfg)) == (count, size)


@pytest.mark.parametrize("flags, words", [
    ("--shaping none", "--shaping sg or ar"), ("--groups 8", "64 or more"),
    ("--prompts 128 --groups 128", "256 or more, at least 8 updates of 32 groups"),
    ("--task missing.py --model org/name", "--task "),
    ("--model .", "cannot be used")])  # a hub name would be looked for
def test_a_mistake_is_reported_in_one_line(flags, words):
    with pytest.raises(SystemExit, match=f"^error: .*{re.escape(words)}") as error:
        look.main(flags.split())
    assert "\n" not in str(error.value)


def test_groups_without_a_signal_are_one_line():
    _, cfg = look.read_arguments("--task math --train_problems 100 --group_size 2".split())
    policy, task = grpo_sg.load(cfg)

    def always_one(completion):
        return 1.0
    with pytest.raises(SystemExit, match="every group has equal rewards"):
        look.look(policy, task._replace(reward=always_one), cfg, 2)
