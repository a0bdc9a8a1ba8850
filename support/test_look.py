"""Test look.py: its gradients are those of loops over tokens, its estimates those of loops over pairs
of rollouts, and AdamW's steps those of the lesson's table."""
import copy
import dataclasses
import functools
import math
import pathlib
import re
from types import SimpleNamespace

import pytest
import torch

import grpo_sg
import tasks
from grpo_sg import Completion, Config, Policy
from support import look
from test_grpo_sg import build_model

WEIGHT = pathlib.Path(__file__).parents[1] / "lesson" / "weight.md"
CFG = Config(tokens_per_micro_batch=24, temperature=1.0)


def build_policy():
    model = build_model(vocab_size=11, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                        num_attention_heads=2, initializer_range=0.6)
    return Policy(model, None, {0})


def make_rollouts(count):
    """Rollouts of two minibatches, each of three completions of unequal lengths; some tokens are a tool's."""
    generator = torch.Generator().manual_seed(3)

    def draw(A, length):
        tokens = torch.randint(0, 11, (length,), generator=generator).tolist()
        A += 0.2 * tokens.count(2)  # so that the gradients have a mean
        return Completion(None, [3, 4], tokens, [t != 1 for t in range(length)], advantage=A)
    return [[[draw(0.7, 9), draw(-0.7, 4), draw(0.0, 5)], [draw(0.3, 3), draw(-0.9, 8), draw(0.3, 2)]]
            for _ in range(count)]


def slow_gradients(model, minibatch, cfg):
    """A row each for GRPO, the weight w(pi) and the four classes, by loops over tokens, in float64."""
    model = copy.deepcopy(model).double()
    rows = torch.zeros(6, model.num_parameters(), dtype=torch.float64)
    for c in minibatch:
        logits = model(input_ids=torch.tensor([c.prompt + c.tokens])).logits[0]
        for t, token in enumerate(c.tokens):
            if not c.mask[t]:
                continue
            logps = (logits[len(c.prompt) + t - 1] / cfg.temperature).log_softmax(-1)
            parts = torch.autograd.grad(logps[token], list(model.parameters()), retain_graph=True)
            pi = float(logps[token].detach().exp())
            w = min(cfg.high, max(cfg.low, 2 * (1 / (1 + math.exp(-9 * pi)) - 0.25)))
            factors = [1, w if cfg.shaping == "sg" else 0.2 * pi + 0.8]
            for sign in (1, -1):
                here = c.advantage * sign > 0
                factors += [here and pi < 1/3, here and pi > 1/3]
            gradient = torch.cat([part.flatten() for part in parts])
            rows += c.advantage * torch.tensor(factors, dtype=torch.float64)[:, None] * gradient
    return rows / sum(sum(c.mask) for c in minibatch)


def apply(shorten, g, sizes):
    """Shorten gradients, (rollouts, minibatches, ways, size), each given as a tensor for each parameter."""
    return torch.stack([shorten(row.split(sizes)) for row in g.flatten(0, 2)]).unflatten(0, g.shape[:3])


def slow_estimates(picked, parts, rms, kept):
    """The estimates by their definitions, pair by pair, from the rollouts whose indices are kept.
    picked and parts: (rollouts, minibatches, ways, size)."""
    x, y, pairs = picked.mean(1), parts.mean(1), [(k, j) for k in kept for j in kept if j != k]
    used = rms > 0  # a token that no completion has gives its embedding no gradient
    progress = [sum(float((x[k, way] * x[j, 0] / rms[way])[used[way]].sum()) for k, j in pairs) for way in (0, 1)]
    means = [sum(float(y[k, a] @ y[j, 0]) for k, j in pairs) for a in range(5)]
    variances = []
    for a in range(5):
        square = sum(float(step @ step) for k in kept for step in parts[k, :, a]) / len(kept) / 2
        variances.append(square - sum(float(y[k, a] @ y[j, a]) for k, j in pairs) / len(pairs))
    return torch.tensor([progress[0] / len(pairs), progress[1] / progress[0], *(
        value / all[0] for a in range(1, 5) for value, all in ((means[a], means), (variances[a], variances)))])


@pytest.mark.parametrize("settings, sketch", [
    ({}, 2 ** 18), ({"shaping": "ar"}, 500), ({"low": 1.35, "high": 1.35}, 500),
    ({"tokens_per_micro_batch": 1, "temperature": 0.7}, 2 ** 18)])
def test_gradients_and_ratio_equal_loops_over_tokens(settings, sketch, monkeypatch):
    """Also if the gradient is longer than what is kept of it."""
    monkeypatch.setattr(look, "SKETCH", sketch)
    policy, rollouts, cfg = build_policy(), make_rollouts(3), dataclasses.replace(CFG, **settings)
    before = copy.deepcopy(policy.model.state_dict())
    sums = look.measure(policy, rollouts, cfg, functools.partial(grpo_sg.weigh, cfg=cfg))
    g = torch.stack([torch.stack([slow_gradients(policy.model, minibatch, cfg) for minibatch in minibatches])
                     for minibatches in rollouts])  # (rollouts, minibatches, 6, size)
    sizes = [parameter.numel() for parameter in policy.model.parameters()]
    picked = apply(look.pick, g[:, :, :2], sizes)
    parts = apply(look.shorten, g[:, :, [0, 2, 3, 4, 5]], sizes)
    for value, expected in ((sums.picked, picked.mean(1)), (sums.rms, picked.square().mean((0, 1)).sqrt()),
                            (sums.parts, parts.mean(1)), (sums.squares, parts.square().sum(-1).mean(1))):
        torch.testing.assert_close(value.double(), expected.double(), rtol=1e-4, atol=1e-6)
    rewarded = [c for minibatches in rollouts for minibatch in minibatches for c in minibatch if c.advantage > 0]
    assert sums.tokens[:2].sum() == sum(sum(c.mask) for c in rewarded)
    assert all(torch.equal(x, before[name]) for name, x in policy.model.state_dict().items()), "it was trained"
    numbers = look.estimate(sums)
    rms = picked.square().mean((0, 1)).sqrt()
    values, first, *others = (slow_estimates(picked, parts, rms, kept) for kept in ((0, 1, 2), (0, 1), (0, 2), (1, 2)))
    errors = torch.stack([first, *others]).var(0, correction=0).mul(2).sqrt()
    torch.testing.assert_close(torch.tensor(list(numbers.values())), torch.stack([values, errors], 1), rtol=1e-3, atol=1e-4)
    if "low" in settings:
        assert numbers["ratio"] == pytest.approx((1, 0), abs=1e-5)  # a constant weight


def test_minibatches_are_those_that_training_would_learn_from(monkeypatch):
    """Shuffled ones: the ratio of whole groups, which have less noise, would be nearer to 1."""
    policy, cfg, drawn, learned = build_policy(), Config(prompts=3, updates=4), [], []

    def rollout(policy, task, problems, cfg, *, n, temperature, seed):
        drawn.extend(Completion(problem, [1], reward=i) for problem in problems for i in range(n))
        return drawn

    def micro_batches(completions, cfg, device):
        learned.append(completions)
        return []
    monkeypatch.setattr(grpo_sg, "rollout", rollout)
    monkeypatch.setattr(grpo_sg, "micro_batches", micro_batches)
    minibatches = look.sample_minibatches(policy, SimpleNamespace(train=range(9)), cfg, seed=5)
    grpo_sg.learn(policy, None, drawn, cfg, seed=5)
    assert len(learned) == 4 and minibatches == learned and any(c.advantage for c in drawn)


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


@pytest.mark.parametrize("ratio, progress, words", [
    ((1.031, 0.004), (5.0, 1.0), "like a learning rate 3.1% higher, for the first steps"),
    ((0.88, 0.02), (5.0, 1.0), "like a learning rate 12.0% lower, for the first steps"),
    ((1.10, math.nan), (5.0, 1.0), "no difference"), ((1.01, 0.02), (5.0, 1.0), "no difference"),
    ((1 + 1e-7, 1e-9), (5.0, 1.0), "no difference"),  # a constant weight, up to rounding
    ((1.10, 0.02), (1.5, 1.0), "--rollouts 64"), ((math.nan, math.nan), (math.nan, math.nan), "--rollouts 64")])
def test_the_sentence_says_what_the_ratio_means_and_when_errors_are_too_large(ratio, progress, words):
    assert words in look.interpret({"ratio": ratio, "GRPO's progress": progress}, 16)


FEW = "--task math --train_problems 100 --eval_problems 8 --rollouts 4 --prompts 8 --group_size 2 --max_new_tokens 40".split()


@pytest.mark.parametrize("flags, name, w", [
    ("--weight {}/focal.py --shaping none", ".*focal.py", 0.25), ("--shaping ar", "AR-Lopti", 0.9)])
def test_the_command_looks_at_a_weight_of_the_reader_or_of_shaping(flags, name, w, tmp_path, capsys, monkeypatch):
    """In rollouts that differ. w: the weight of pi = 0.5."""
    measure = look.measure

    def watch(policy, rollouts, cfg, weight):
        rollouts = list(rollouts)
        assert len({str([c.tokens for c in sum(minibatches, [])]) for minibatches in rollouts}) == 4
        assert weight(torch.tensor([[0.5]]).log()).item() == pytest.approx(w)
        return measure(policy, rollouts, cfg, weight)
    monkeypatch.setattr(look, "measure", watch)
    (tmp_path / "focal.py").write_text("def weight(logps):\n    return (1 - logps.exp()) ** 2\n")
    look.main([*FEW, *flags.format(tmp_path).split()])
    text = capsys.readouterr().out
    assert re.search(rf"progress ratio of {name}: \d\.\d{{3}} \+- 0\.\d{{3}}\n{name}: [a-z]", text)
    numbers = r" +([\d.]+)% +(-?[\d.]+) \+- [\d.]+ +(-?[\d.]+) \+- [\d.]+\n"
    rows = [re.search(re.escape(name) + numbers, text).groups() for name in look.CLASSES]
    tokens, share, _ = (sum(map(float, column)) for column in zip(*rows))
    assert tokens == pytest.approx(100, abs=0.3) and share == pytest.approx(1, abs=0.003)


@pytest.mark.parametrize("returned, words", [
    (1.4, "not 1.4"), (torch.ones(2), "in a tensor of the shape of logps, .1, 3., not tensor"),
    (torch.tensor([[1, -1, 1]]), "of at least 0 .* not -1 to 1"), (torch.tensor([[1, math.inf, 1]]), "not 1 to inf"),
    (torch.tensor([[1, 1, math.nan]]), "not nan")])
def test_what_is_no_weight_is_refused_in_one_line(returned, words):
    with pytest.raises(tasks.UserError, match=rf"^weight.logps. must return finite numbers .*{words}"):
        look.apply_weight(lambda logps: returned, torch.zeros(1, 3), torch.tensor([[False, True, True]]))


def test_weights_outside_of_the_mask_are_ignored():
    logps, mask = torch.tensor([[0.0, -2.0, -0.5]]), torch.tensor([[False, True, True]])
    assert look.apply_weight(lambda logps: -1 / logps, logps, mask).tolist() == [[0, 0.5, 2]]


def test_an_error_in_a_readers_weight_shows_its_line(tmp_path):
    (tmp_path / "broken.py").write_text("def weight(logps):\n    return open('/no/such/file')\n")
    with pytest.raises(FileNotFoundError) as error:
        look.main([*FEW, "--weight", str(tmp_path / "broken.py")])
    assert error.traceback[-1].path == tmp_path / "broken.py"


@pytest.mark.parametrize("flags, words", [
    ("--shaping none", "--shaping sg or ar"), ("--rollouts 3", "give 4 or more"),
    ("--weight nowhere.py", "must be a Python file"), ("--weight lesson/my_task.py", "with weight.logps."),
    ("--model . --train_problems 40 --eval_problems 8", "cannot load the model")])
def test_a_mistake_is_reported_in_one_line(flags, words):
    with pytest.raises(SystemExit, match=f"^error: .*{words}"):
        look.main(flags.split())


# ---- The table that a reader can check with a pencil ----

def step_with_adamw(gradients):
    """Return the mean step of AdamW at rate 1, of one parameter whose gradients repeat."""
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([x], 1.0, betas=(0.9, 0.99), weight_decay=0, maximize=True)
    for t in range(2000):
        x.grad = torch.tensor(gradients[t % len(gradients)], dtype=torch.float64)
        optimizer.step()
    return float(x.detach()) / 2000


@pytest.mark.skipif(not WEIGHT.is_file(), reason="the lesson is not there")
def test_the_pencil_table_is_what_adamw_does():
    """A row's second cell is a list of gradients."""
    rows = re.findall(r"^\|[^|\n]*\| ((?:[-−]?[\d.]+, )+.*)\|$", WEIGHT.read_text("utf-8"), re.M)
    assert rows
    for row in rows:
        gradients, mean, rms, step = row.replace("−", "-").split("|")
        g = torch.tensor([float(number) for number in gradients.split(",")])
        assert f"{g.mean():.3g}" == mean.strip() and f"{g.square().mean().sqrt():.3f}" == rms.strip(), row
        assert step_with_adamw(g.tolist()) == pytest.approx(float(step.split(",")[0]), abs=6e-4), row
