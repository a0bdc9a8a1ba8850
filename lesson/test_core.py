"""The core of the method, with usual numbers: finite, in float32. lesson/grade.py reads the headings
of this file and of test_grpo_sg.py, and calls a reader's own functions here."""
import pytest
import torch

from grpo_sg import group_advantages, grpo_sg_loss
from test_grpo_sg import describe_tokens, same, slow_advantages, slow_loss

# ---- 1. group_advantages: (R - mean) / (std + eps) of each group ----

def test_the_formula():
    for rows in ([[3, 3, 3, -0.5, -0.5, -0.5, -0.5, -0.5]], [[1, 0], [0, 2]],
                 [[3, -0.5, -3, -3, -3, -3, -3, -3], [-0.5, 3, -0.5, -3, 3, 3, 3, 3]]):
        check_advantages(rows, "(R - mean) / (std + eps), each row by its own mean and std (over G - 1)")


def test_equal_rewards_give_no_nan():
    check_advantages([[3, 3, -0.5, -0.5], [-0.5] * 4], "eps keeps 0 / 0 from being nan")


def check_advantages(rows, hint):
    A = group_advantages(torch.tensor(rows, dtype=torch.float32))
    expected = [slow_advantages(group) for group in rows]
    same(f"an advantage in {rows}", A, expected, hint, 1e-4)


# ---- 2. grpo_sg_loss: minus the mean over the mask of w min(r A, clip(r) A) ----

PARTS = {  # each adds to the ones before it: what a failure means
    "ratio": "minus the mean of r A, r = exp(logps - old_logps)",
    "clip": "clip r at 1 - clip_low and 1 + clip_high, the arguments",
    "minimum": "the smaller of r A and clip(r) A: a token that went the other way comes back",
    "weight": "multiply the minimum by w, outside of the clip",
    "mask": "sum over the mask, and divide by its number of tokens in the batch",
    "constants": "only log pi in r learns: detach old_logps and weights"}


def draw_case(part, seed):
    """Return the arguments of grpo_sg_loss that try this part of it."""
    g = torch.Generator().manual_seed(seed)
    at = list(PARTS).index(part)
    B, T = 4, 5

    def uniform(low, high):
        return low + (high - low) * torch.rand(B, T, generator=g)
    logps = uniform(-3, -0.1)
    A = torch.tensor([1.5, -0.5, 0.25, -2.0])[torch.randperm(4, generator=g)]
    moved = uniform(-0.15, 0.15)
    if part == "clip":  # in the direction of A
        moved = uniform(0, 1) * A.sign()[:, None]
    elif part != "ratio":
        moved = uniform(-1, 1)
    mask = torch.ones(B, T, dtype=torch.bool)
    if at >= 4:
        mask = uniform(0, 1) < 0.6
        mask[:, 1] = True
    case = dict(logps=logps, old_logps=logps - moved, advantages=A, mask=mask,
                weights=uniform(1, 1.4) if at >= 3 else torch.ones(B, T))
    return case, dict(clip_low=0.1, clip_high=0.5) if seed % 2 and at else {}


@pytest.mark.parametrize("part", PARTS)
def test_the_loss(part):
    for seed in range(8):
        case, settings = draw_case(part, seed)
        loss, slope, _ = slow_loss(**{name: x.tolist() for name, x in case.items()}, **settings)
        names = describe_tokens(case, settings)
        learning = ["logps", *["old_logps", "weights"] * (part == "constants")]
        for name in learning:
            case[name].requires_grad_()
        returned = grpo_sg_loss(**case, **settings)
        assert isinstance(returned, tuple), "return (loss, {}), not only the loss"
        found = returned[0]
        assert found.shape == (), f"the loss has shape {tuple(found.shape)}, expected a number"
        assert found.requires_grad, "the loss has no gradient: do not detach logps"
        found.backward()
        for name in learning[1:]:
            assert case[name].grad is None, f"a gradient reaches {name}: {PARTS[part]}"
        same(f"the loss is {found:.4g}, expected {loss:.4g}; the gradient for {{}}",
             case["logps"].grad, slope, PARTS[part], 1e-5, names)
        same("the loss", found, loss, PARTS[part])
