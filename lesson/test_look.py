"""The look before training reports what exact sums over all completions give, and trains
nothing."""
import copy
import dataclasses
import itertools
import math
import re
import sys

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
    sums, _, tokens = look.measure(policy, groups, cfg)
    rows = [slow_gradients(policy.model, group, cfg, w) for group in groups]
    own = sum(row @ row.T for row in rows)
    torch.testing.assert_close(sums.total.sum(0).double(), sum(rows), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums.own.sum(0), own, rtol=1e-4, atol=1e-4)
    assert sums.count.sum() == 3  # the group with equal rewards counts
    by_completion = cfg.loss_agg_mode == "seq-mean-token-mean"
    # of the four completions with a signal: their number, or the policy's tokens
    assert float(tokens.sum()) == pytest.approx(4 if by_completion else 8 + 3 + 2 + 7)
    assert float(tokens[:2].sum()) == pytest.approx(2 if by_completion else 8 + 2)  # A > 0
    assert (tokens > 0).all()
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
    sums = look.Sums(*gradients.shape[1:])
    for k in torch.multinomial(chances, count, replacement=True, generator=generator):
        g = gradients[k].float()
        sums.add(None if not g.any() else g)
    return sums


def three_numbers(M, V):
    return {"signal": look.signal_kept(M, 1), "noise": look.noise_kept(V, 1),
            "formula": look.signal_to_noise(M, V, 1, 8), "length": float(M[0, 0])}


@pytest.fixture(scope="module")
def all_groups():
    return enumerate_groups()


@pytest.fixture(scope="module")
def three_ways(all_groups):
    return all_groups[0], all_groups[1][:, :3]


def test_moments_are_unbiased(three_ways):
    """The means over 300 rollouts of 32 groups are the exact moments, to four standard errors;
    with products of a group with itself they would not be."""
    exact_M, exact_V = exact_moments(*three_ways)
    found = [draw_sums(*three_ways, 32, seed).moments()[0] for seed in range(300)]
    for exact, values in ((exact_M, torch.stack([M for M, _ in found])),
                          (exact_V, torch.stack([V for _, V in found]))):
        assert ((values.mean(0) - exact).abs() < 4 * values.std(0) / 300 ** 0.5).all()
    error = torch.stack([M[0, 0] for M, _ in found]).std() / 300 ** 0.5
    assert exact_V[0, 0] / 32 > 6 * error  # by which they would be off


def test_jackknife_errors_match_the_spread(three_ways):
    found = []
    for seed in range(60):
        moments = draw_sums(*three_ways, 128, seed).moments()
        found.append(look.jackknife(*[three_numbers(M, V) for M, V in moments]))
    for name in found[0]:
        values = torch.tensor([each[name][0] for each in found])
        errors = torch.tensor([each[name][1] for each in found])
        assert 0.7 < float(errors.mean() / values.std()) < 1.5, name


def test_blocks_are_left_out_as_if_they_were_not_there(three_ways):
    sums = draw_sums(*three_ways, 64, 0)
    moments = sums.moments()
    sums.count, sums.total, sums.own = sums.count[1:], sums.total[1:], sums.own[1:]
    for without, expected in zip(moments[1], sums.moments()[0]):
        torch.testing.assert_close(without, expected, rtol=1e-4, atol=1e-4)


def test_mean_cosines_equal_loops_over_updates(three_ways):
    sums = draw_sums(*three_ways, 64, 0)
    updates = [sums.total[i::8].sum(0).double() for i in range(8)]  # of four blocks each
    found = look.mean_cosines(sums.products(), 8)
    for result, without in zip(found, (None, *range(8)), strict=True):
        kept = [S for i, S in enumerate(updates) if i != without]
        expected = 0
        for S in kept:
            others = (sum(kept)[0] - S[0]) / (len(kept) - 1)
            expected = expected + S @ others / S.norm(dim=1) / len(kept)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def simulate_cosines(chances, gradients, n, count=4000):
    """(ways,): the mean cosine of updates of n groups and the true mean gradient."""
    mu = torch.einsum("k,kp->p", chances, gradients[:, 0])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(chances.expand(count, -1), n, replacement=True, generator=generator)
    counts = torch.zeros(count, len(chances), dtype=torch.float64)
    counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    found = []
    for way in gradients.unbind(1):
        found.append(torch.cosine_similarity(counts @ way, mu, dim=1).mean())
    return torch.stack(found)


def test_the_formula_approximates_the_mean_cosine_of_large_updates(three_ways):
    cosines = simulate_cosines(*three_ways, 256, 400)
    formula = look.signal_to_noise(*exact_moments(*three_ways), 1, 256)
    assert formula == pytest.approx(float(cosines[1] / cosines[0]), abs=0.01)


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
    exact = look.measure(policy, make_groups(), CFG)[0]
    monkeypatch.setattr(look, "SKETCH", 2048)  # of 3,008 parameters
    sketched = look.measure(policy, make_groups(), CFG)[0]
    assert sketched.total.shape[2] == 2048 and exact.total.shape[2] == 3008
    lengths, near = exact.own.sum(0).diag(), sketched.own.sum(0).diag()
    torch.testing.assert_close(near, lengths, rtol=0.3, atol=0)
    assert not torch.equal(near, lengths)


# ---- What is printed ----

def test_what_is_printed_is_computed_from_the_moments(all_groups):
    sums = draw_sums(*all_groups, 96, 0)
    M, V = sums.moments()[0]
    found = look.describe(sums, 16, CFG)  # four groups in an update
    expected = {"signal": M[1, 0] / M[0, 0], "noise": (V[1, 1] / V[0, 0]) ** 0.5,
                "length": M[0, 0], "signal-to-noise": look.signal_to_noise(M, V, 1, 4)}
    for i, name in enumerate(look.CLASSES, start=2):
        expected[f"signal: {name}"] = M[i, 0] / M[0, 0]
        expected[f"noise: {name}"] = V[i, i] / V[0, 0]
    none, weighed, *_ = look.mean_cosines(sums.products(), 16)[0]
    expected["efficiency"] = weighed / none
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name][0] == pytest.approx(float(value)), name
    assert sum(found[f"signal: {name}"][0] for name in look.CLASSES) == pytest.approx(1)
    cfg = dataclasses.replace(CFG, loss_agg_mode="seq-mean-token-mean")
    lines = look.tell(found, torch.ones(4), cfg, 96)
    assert lines[0] == "96 groups; 4 completions in those with a learning signal"


@pytest.mark.parametrize("efficiency, length, words", [
    ((1.10, 0.02), (5.0, 1.0), "point better"),
    ((0.90, 0.02), (5.0, 1.0), "point worse"),
    ((1.03, 0.02), (5.0, 1.0), "no difference"),
    ((1.10, 0.02), (1.5, 1.0), "--groups 1024"),
    ((math.nan, math.nan), (-1.0, 1.0), "too few groups"),
    ((1.10, math.nan), (5.0, 1.0), "no difference")])
def test_the_sentence_says_when_errors_are_too_large(efficiency, length, words):
    sentence = look.expect({"efficiency": efficiency, "length": length}, groups=256)
    assert words in sentence


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
    for name in ("signal kept", "noise kept", "relative signal-to-noise", "efficiency"):
        assert re.search(rf"{name}: +\d\.\d{{3}} \+- \d\.\d{{3}}", text), name
    assert "an update of 8 groups, GRPO-SG relative to GRPO" in text
    assert re.search(r"64 groups; [\d,]+ tokens in those", text)
    numbers = r" +([\d.]+)% +(-?[\d.]+) \+- [\d.]+ +(-?[\d.]+) \+- [\d.]+\n"
    rows = [re.search(re.escape(name) + numbers, text).groups() for name in look.CLASSES]
    tokens, signal, _ = (sum(map(float, column)) for column in zip(*rows))
    assert tokens == pytest.approx(100, abs=0.3) and signal == pytest.approx(1, abs=0.003)
    assert text.splitlines()[-1].startswith("what it means: ")


@pytest.mark.parametrize("flags, expected", [([], 0), (["--warm_up"], 1)])
def test_only_a_model_that_is_not_pretrained_is_warmed_up(flags, expected, few_problems,
                                                          monkeypatch):
    warmed = []
    monkeypatch.setattr(tiny, "warm_up", lambda *given: warmed.append(given))
    cfg = cli.parse(["--task", "math", *flags])
    policy, task = look.start(cfg)
    assert warmed == expected * [(policy, task, cfg)]


CALL = "grpo_sg.main(task='kk', temperature=0.5)"


@pytest.mark.parametrize("script", [
    CALL, f"{CALL}\nopen('nothing')", f"{CALL}\ngrpo_sg.main(task='math')",
    f"try:\n    {CALL}\nexcept Exception:\n    pass",
    f"if __name__ == '__main__':\n    raise SystemExit({CALL})",
    "grpo_sg.main(['--task', 'kk', '--temperature=0.5'])",
    "grpo_sg.main(argv=['--task', 'kk'], temperature=0.5)",
    "grpo_sg.main(('--temperature', '0.5'), task='kk', temperature=0.7)",
    "from support import cli\ncli.main(task='kk', temperature=0.5)",
    "grpo_sg.main(task='kk', temperature=0.5, out='.')",  # where it has been trained
    f"import argparse\nargparse.ArgumentParser().parse_args()\n{CALL}",
    "import neighbor\ngrpo_sg.main(task='kk', temperature=neighbor.X)"])
def test_what_a_script_runs_is_found_however_it_calls_main(script, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "neighbor.py").write_text("X = 0.5")
    path = tmp_path / "own.py"
    path.write_text(f"import grpo_sg\n{script}")
    assert look.read_script(str(path)) == {"task": "kk", "temperature": 0.5}
    _, cfg = look.read_arguments([str(path), "--seed", "3", "--temperature", "1"])
    assert (cfg.task, cfg.temperature, cfg.seed) == ("kk", 1, 3)


@pytest.mark.parametrize("flags, count, size", [
    ("", 256, 8), ("--prompts 128", 512, 32), ("--groups 100", 100, 8), ("--prompts 2", 256, 1)])
def test_the_usual_number_of_groups_makes_sixteen_updates(flags, count, size):
    found, cfg = look.read_arguments(flags.split())
    assert (found, look.groups_per_update(cfg)) == (count, size)


@pytest.mark.parametrize("flags, words", [
    ("--shaping none", "--shaping sg or ar"), ("--groups 8", "64 or more"),
    ("--model any --groups 128", "256 or more, at least eight updates of 32 groups"),
    ("missing.py", "there is no script missing.py"),
    ("nothing.py", "does not call grpo_sg.main: end it with"),
    ("needs_a_flag.py", "does not call grpo_sg.main")])
def test_a_mistake_is_reported_in_one_line(flags, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing.py").write_text("")
    (tmp_path / "needs_a_flag.py").write_text("raise SystemExit('give a size')")
    with pytest.raises(SystemExit):
        look.main(flags.split())
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_groups_without_a_signal_are_one_line(few_problems):
    cfg = cli.parse(["--task", "math"])
    policy, task = look.start(cfg)

    def always_one(completion):
        return 1.0
    with pytest.raises(UserError, match="equal rewards"):
        look.look(policy, task._replace(reward=always_one), cfg, 2)
