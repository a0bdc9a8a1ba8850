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
import tasks
from grpo_sg import Completion, Config, Policy
from lesson import look
from support import cli, tiny
from tasks import UserError

CFG = Config(**{**cli.TINY, "group_size": 2, "tokens_per_micro_batch": 24,
                "prompts": 8, "updates": 2})


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
    """A row each for GRPO, the weight w(pi) and unlikely tokens only, by loops over tokens, in
    float64."""
    model = copy.deepcopy(model).double()
    rows = torch.zeros(3, sum(p.numel() for p in model.parameters()), dtype=torch.float64)
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
            factors = torch.tensor([1, w(pi), pi < 1/3], dtype=torch.float64)
            rows += c.advantage * share * factors[:, None] * gradient
    return rows


def make_groups():
    """Three groups of unequal lengths; the second has equal rewards; some tokens are a
    tool's."""
    g = torch.Generator().manual_seed(1)
    found = []
    for A, length in ((0.7, 9), (-0.7, 4), (0.0, 5), (0.0, 6), (0.7, 3), (-0.7, 8)):
        tokens = torch.randint(0, 11, (length,), generator=g).tolist()
        c = make_completion(torch.randint(1, 11, (3,), generator=g).tolist(), tokens, A)
        c.mask = [t != 1 for t in range(length)]
        found.append(c)
    return [found[0:2], found[2:4], found[4:6]]


@pytest.mark.parametrize("settings, w", [
    ({}, weight),
    ({"alpha": 45.0, "mu": 0.7, "low": 0.5, "high": 10.0}, weight_with_more_range),
    ({"shaping": "ar"}, weight_ar),
    ({"loss_agg_mode": "seq-mean-token-mean", "temperature": 0.7}, weight),
    ({"tokens_per_micro_batch": 1}, weight)])
def test_sums_over_groups_equal_loops_over_tokens(settings, w):
    policy = build_policy(11)
    cfg = dataclasses.replace(CFG, **settings)
    before = copy.deepcopy(policy.model.state_dict())
    groups = make_groups()
    sums, tokens, unlikely = look.measure(policy, groups, cfg)
    rows = [slow_gradients(policy.model, group, cfg, w) for group in groups]
    own = sum(row @ row.T for row in rows)
    torch.testing.assert_close(sums.total.sum(0).double(), sum(rows), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums.own.sum(0), own, rtol=1e-4, atol=1e-4)
    assert sums.count.sum() == 3  # the group with equal rewards counts
    by_completion = cfg.loss_agg_mode == "seq-mean-token-mean"
    # of the four completions with a signal: their number, or the policy's tokens
    assert tokens == pytest.approx(4 if by_completion else 8 + 3 + 2 + 7)
    assert 0 < unlikely < tokens
    for name, parameter in policy.model.state_dict().items():
        assert torch.equal(parameter, before[name]), f"{name} was trained"
    assert all(p.grad is None for p in policy.model.parameters())


# ---- Signal and noise, against all completions of a tiny policy ----

def enumerate_groups(w=weight):
    """(probabilities, gradients (groups, ways, parameters)) of every group of two completions
    of two prompts, exactly, in float64: completions of at most two tokens, of which 0 stops.
    The reward is the number of tokens that are 1."""
    model = build_policy(4).model
    texts = [[0]] + [list(pair) for pair in itertools.product((1, 2, 3), range(4))]
    probabilities, gradients = [], []
    for prompt in ([1, 2], [3]):
        weighed, chances = [], []
        for tokens in texts:
            c = make_completion(prompt, tokens, 1.0)
            weighed.append(slow_gradients(model, [c], CFG, w))
            ids = torch.tensor([prompt + tokens])
            logps = grpo_sg.token_logps(model, ids, torch.arange(ids.shape[1])[None] >= len(prompt))
            chances.append(float(logps.detach().sum().exp()))
        assert sum(chances) == pytest.approx(1, abs=1e-5)
        for i, j in itertools.product(range(len(texts)), repeat=2):
            rewards = torch.tensor([[float(texts[k].count(1)) for k in (i, j)]])
            A = grpo_sg.group_advantages(rewards)[0].double()
            probabilities.append(chances[i] * chances[j] / 2)
            gradients.append(A[0] * weighed[i] + A[1] * weighed[j])
    return torch.tensor(probabilities, dtype=torch.float64), torch.stack(gradients)


def exact_moments(chances, gradients):
    mu = torch.einsum("k,kap->ap", chances, gradients)
    M = mu @ mu.T
    return M, torch.einsum("k,kap,kbp->ab", chances, gradients, gradients) - M


def draw_sums(chances, gradients, count, seed):
    generator = torch.Generator().manual_seed(seed)
    sums = look.Sums(3, gradients.shape[2])
    for k in torch.multinomial(chances, count, replacement=True, generator=generator):
        g = gradients[k].float()
        sums.add(None if not g.any() else g)
    return sums


def three_numbers(M, V):
    return {"signal": look.signal_kept(M, 1), "noise": look.noise_kept(V, 1),
            "efficiency": look.efficiency(M, V, 1, 8), "length": float(M[0, 0]),
            "trace": float(V[1, 1])}


@pytest.fixture(scope="module")
def all_groups():
    return enumerate_groups()


def test_moments_are_unbiased(all_groups):
    """The means over 300 rollouts of 32 groups are the exact moments, to four standard errors;
    with products of a group with itself they would not be."""
    exact_M, exact_V = exact_moments(*all_groups)
    found = [draw_sums(*all_groups, 32, seed).moments()[0] for seed in range(300)]
    for exact, values in ((exact_M, torch.stack([M for M, _ in found])),
                          (exact_V, torch.stack([V for _, V in found]))):
        assert ((values.mean(0) - exact).abs() < 4 * values.std(0) / 300 ** 0.5).all()
    error = torch.stack([M[0, 0] for M, _ in found]).std() / 300 ** 0.5
    assert exact_V[0, 0] / 32 > 6 * error  # by which they would be off


def test_jackknife_errors_match_the_spread(all_groups):
    found = [look.jackknife(three_numbers, draw_sums(*all_groups, 128, seed).moments())
             for seed in range(60)]
    for name in found[0]:
        values = torch.tensor([each[name][0] for each in found])
        errors = torch.tensor([each[name][1] for each in found])
        assert 0.7 < float(errors.mean() / values.std()) < 1.5, name


def test_a_large_rollout_gives_the_exact_values(all_groups):
    exact = three_numbers(*exact_moments(*all_groups))
    found = look.jackknife(three_numbers, draw_sums(*all_groups, 20_000, 0).moments())
    for name, (value, error) in found.items():
        assert abs(value - exact[name]) < 4 * error, name
    assert found["efficiency"][1] < 0.02  # so that this says something
    assert abs(exact["efficiency"] - 1) > 0.02


def test_the_cosine_is_that_of_simulated_updates(all_groups):
    """Efficiency is defined by an approximation of the mean cosine; here is the cosine."""
    chances, gradients = all_groups
    M, V = exact_moments(chances, gradients)
    mu = torch.einsum("k,kp->p", chances, gradients[:, 0])
    generator = torch.Generator().manual_seed(0)
    n = 256
    drawn = torch.multinomial(chances.expand(400, -1), n, replacement=True, generator=generator)
    counts = torch.nn.functional.one_hot(drawn, len(chances)).sum(1).double()
    updates = torch.einsum("uk,kap->uap", counts, gradients)
    cosines = torch.cosine_similarity(updates, mu, dim=2).mean(0)
    assert look.efficiency(M, V, 1, n) == pytest.approx(float(cosines[1] / cosines[0]), abs=0.01)
    angle = torch.cosine_similarity(updates[:, 0], updates[:, 1], dim=1).mean()
    assert look.cos_of_sums(M, V, 0, 1, n) == pytest.approx(float(angle), abs=0.01)
    reruns = torch.cosine_similarity(updates[:200, 0], updates[200:, 0], dim=1).mean()
    assert look.cos_of_reruns(M, V, n) == pytest.approx(float(reruns), abs=0.03)


def test_a_sketch_keeps_inner_products(monkeypatch):
    monkeypatch.setattr(look, "SKETCH", 64)
    torch.manual_seed(0)
    a, b = torch.randn(2, 1000)
    b = b + a
    products = []
    for seed in range(400):
        sketch = look.make_sketch(1000, seed)
        products.append(float(sketch(a) @ sketch(b)))
    products = torch.tensor(products)
    assert abs(products.mean() - a @ b) < 4 * products.std() / 20
    # The spread of independent random signs: |a| |b| / sqrt(64).
    assert products.std() < 2 * a.norm() * b.norm() / 8
    sketch = look.make_sketch(1000)
    torch.testing.assert_close(sketch(a + 2 * b), sketch(a) + 2 * sketch(b))


def test_large_models_use_sketches(monkeypatch):
    policy = build_policy(11)
    exact = look.measure(policy, make_groups(), CFG)[0]
    monkeypatch.setattr(look, "EXACT", 0)
    monkeypatch.setattr(look, "SKETCH", 2048)  # of 3,008 parameters
    sketched = look.measure(policy, make_groups(), CFG)[0]
    assert sketched.total.shape[2] == 2048 and exact.total.shape[2] == 3008
    lengths, near = exact.own.sum(0).diag(), sketched.own.sum(0).diag()
    torch.testing.assert_close(near, lengths, rtol=0.3, atol=0)
    assert not torch.equal(near, lengths)


# ---- Kantorovich's yardstick ----

def cos_of_vectors(lengths, weights):
    """Between the sums of orthogonal vectors of these lengths, unweighted and weighted."""
    square = torch.randn(len(lengths), len(lengths), dtype=torch.float64)
    vectors = torch.linalg.qr(square)[0] * lengths  # its columns
    return float(torch.cosine_similarity(vectors.sum(1), (vectors * weights).sum(1), dim=0))


@pytest.mark.parametrize("low, high", [(1.0, 1.4), (1.0, 10.0), (0.2, 0.9)])
def test_no_orthogonal_vectors_turn_further_than_the_yardstick(low, high):
    torch.manual_seed(0)
    bound = look.yardstick(low, high)
    for _ in range(200):
        lengths = torch.rand(8, dtype=torch.float64) ** 3 + 1e-3
        weights = low + (high - low) * torch.rand(8, dtype=torch.float64).round(decimals=0)
        assert cos_of_vectors(lengths, weights) >= bound - 1e-12
    # And it is reached, so no smaller angle would do.
    lengths = torch.tensor([high, low], dtype=torch.float64).sqrt()
    weights = torch.tensor([low, high], dtype=torch.float64)
    assert cos_of_vectors(lengths, weights) == pytest.approx(bound)


def test_vectors_that_cancel_turn_further():
    """So it is a yardstick rather than a bound."""
    g = torch.tensor([[1.0, 0.1], [-0.9, 0.1]])
    w = torch.tensor([[1.4], [1.0]])
    assert torch.cosine_similarity(g.sum(0), (w * g).sum(0), dim=0) < look.yardstick(1.0, 1.4)


# ---- What is printed ----

@pytest.mark.parametrize("efficiency, length, words", [
    ((1.10, 0.02), (5.0, 1.0), "point better"),
    ((0.90, 0.02), (5.0, 1.0), "point worse"),
    ((1.03, 0.02), (5.0, 1.0), "no difference"),
    ((1.10, 0.02), (1.5, 1.0), "--groups 1024"),
    ((math.nan, math.nan), (-1.0, 1.0), "too few groups"),
    ((1.10, math.nan), (5.0, 1.0), "no difference")])
def test_the_sentence_says_when_errors_are_too_large(efficiency, length, words):
    sentence = look.expect({"efficiency": efficiency, "length": length}, groups=256)
    assert words in sentence and "changes as training goes on" in sentence


@pytest.fixture
def few_problems(monkeypatch):
    make = tasks.math_task

    def make_few(cfg):  # 20,000 problems take seconds
        return make(dataclasses.replace(cfg, train_problems=100))
    monkeypatch.setitem(tasks.TASKS, "math", make_few)
    monkeypatch.setitem(tiny.PRETRAINED, make_few, tiny.PRETRAINED[make])


def test_the_command_on_the_pretrained_model(few_problems, capsys):
    look.main(["--task", "math", "--groups", "64", "--group_size", "2"])
    text = capsys.readouterr().out
    assert "weights from 1 to 1.4: 9.6" in text
    for name in ("signal kept", "noise kept", "efficiency"):
        assert re.search(rf"{name}: \d\.\d{{3}} \+- \d\.\d{{3}}", text), name
    assert "an update of 8 groups" in text
    assert text.splitlines()[-1].startswith("what to expect: ")


@pytest.mark.parametrize("flags, expected", [([], 0), (["--warm_up"], 1)])
def test_only_a_model_that_is_not_pretrained_is_warmed_up(flags, expected, few_problems,
                                                          monkeypatch):
    warmed = []
    monkeypatch.setattr(tiny, "warm_up", lambda *given: warmed.append(given))
    cfg = cli.parse(["--task", "math", *flags])
    policy, task = look.start(cfg)
    assert warmed == expected * [(policy, task, cfg)]


def test_a_script_with_a_task_of_its_own(few_problems, tmp_path, capsys):
    script = tmp_path / "my_task.py"
    script.write_text("import grpo_sg, tasks\n"
                      "tasks.TASKS['sums'] = tasks.TASKS['math']\n"
                      "grpo_sg.main(task='sums', temperature=0.5)\n")
    count, cfg = look.read_arguments([str(script), "--groups", "64", "--seed", "3"])
    assert (count, cfg.task, cfg.temperature, cfg.seed) == (64, "sums", 0.5, 3)
    script.write_text("print('nothing')\n")
    with pytest.raises(UserError, match="must end in grpo_sg.main"):
        look.read_arguments([str(script)])
    tasks.TASKS.pop("sums")


@pytest.mark.parametrize("flags, words", [
    (["--shaping", "none"], "--shaping sg or ar"), (["--groups", "8"], "64 or more")])
def test_a_mistake_is_reported_in_one_line(flags, words, capsys):
    with pytest.raises(SystemExit):
        look.main(flags)
    assert words in capsys.readouterr().err


def test_groups_without_a_signal_are_one_line(few_problems):
    cfg = cli.parse(["--task", "math"])
    policy, task = look.start(cfg)

    def always_one(completion):
        return 1.0
    with pytest.raises(UserError, match="equal rewards"):
        look.look(policy, task._replace(reward=always_one), cfg, 2)
