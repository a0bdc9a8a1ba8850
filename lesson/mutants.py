"""Do the tests notice a wrong body? Make one mistake at a time in answers.py, and test it.

    python -m lesson.mutants                    all of them: minutes
    python -m lesson.mutants grpo_sg_loss draw  those of two functions

Prints for each mutant (a body with one mistake) whether a test of the lesson caught it, with what
the test said, and lists the survivors at the end. Each mistake replaces a part of a function in
answers.py. EQUIVALENT has changes that no caller can see, with the reason: they must survive.
"""
import argparse
import pathlib
import types

import pytest

import test_grpo_sg
from lesson import answers, progress

CODE = pathlib.Path(answers.__file__).read_text(encoding="utf-8")
# Print nothing, stop at the first failure; without the last plugin's garbage collection a run
# takes half of the time.
OPTIONS = ["-x", "-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
# function -> [(the mistake, what is there, what replaces it)]
MUTANTS = {
    "token_weights": [
        ("a gradient", ".detach()", ""),
        ("no float32", ".float()", ""),
        ("float32 after exp", ".float().exp()", ".exp().float()"),
        ("log pi for pi", ".exp()", ""),
        ("alpha ignored", "alpha *", "2.0 *"),
        ("tau ignored", "/ tau", "* 9"),
        ("times tau", "/ tau", "* tau"),
        ("mu ignored", "- mu", "- 0.25"),
        ("mu added", "- mu", "+ mu"),
        ("mu outside of the bracket", "(alpha * (torch.sigmoid(pi / tau) - mu))",
         "(alpha * torch.sigmoid(pi / tau) - mu)"),
        ("low ignored", "clamp(low, high)", "clamp(1.0, high)"),
        ("high ignored", "clamp(low, high)", "clamp(low, 1.4)"),
        ("no lower bound", "clamp(low, high)", "clamp(max=high)"),
        ("no upper bound", "clamp(low, high)", "clamp(min=low)"),
        ("no clamp", ".clamp(low, high)", ""),
        ("all settings ignored", "(alpha * (torch.sigmoid(pi / tau) - mu)).clamp(low, high)",
         "(2 * (torch.sigmoid(9 * pi) - 0.25)).clamp(1.0, 1.4)"),
        ("tanh for the sigmoid", "torch.sigmoid", "torch.tanh"),
        ("the largest weight for unlikely tokens", "pi / tau", "(1 - pi) / tau"),
    ],
    "group_advantages": [
        ("no float32", "rewards.float()", "rewards"),
        ("the mean of all groups", "R.mean(1, keepdim=True)", "R.mean()"),
        ("the std of all groups", "R.std(1, keepdim=True)", "R.std()"),
        ("along the wrong axis", "R.mean(1, keepdim=True)", "R.mean(0, keepdim=True)"),
        ("over G", "R.std(1, keepdim=True)", "R.std(1, keepdim=True, correction=0)"),
        ("the variance", "R.std(1,", "R.var(1,"),
        ("no mean", "(R - mean)", "R"),
        ("the wrong sign", "R - mean", "mean - R"),
        ("no std", " / (std + eps)", ""),
        ("no eps", "std + eps", "std"),
        ("eps ignored", "std + eps", "std + 1e-6"),
        ("eps as a bound", "(std + eps)", "std.clamp(min=eps)"),
        ("equal rewards not found", "A.masked_fill(equal, 0.0)", "A"),
        ("only the first two compared", "R == R[:, :1]", "R[:, :2] == R[:, :1]"),
        ("some equal", ".all(1,", "[:, 1:].any(1,"),
        ("equal where std is below 0.5", "(R == R[:, :1]).all(1, keepdim=True)", "std < 0.5"),
        ("equal where std is below eps", "(R == R[:, :1]).all(1, keepdim=True)", "std < 1e-5"),
    ],
    "grpo_sg_loss": [
        ("no weights", "weights.detach() * objective", "objective"),
        ("w inside the clip", "r = (logps - old_logps.detach())",
         "r = (logps + (0 if weights is None else weights.log()) - old_logps.detach())"),
        ("no clip", "torch.minimum(r * A, clipped * A)", "r * A"),
        ("only the clip", "torch.minimum(r * A, clipped * A)", "clipped * A"),
        ("the maximum", "torch.minimum", "torch.maximum"),
        ("no ratio", "torch.minimum(r * A, clipped * A)", "logps * A"),
        ("the clip without the ratio", "torch.minimum(r * A, clipped * A)",
         "(logps * A).masked_fill(clipped * A < r * A, 0.0)"),
        ("the minimum without A", "torch.minimum(r * A, clipped * A)",
         "torch.minimum(r, clipped) * A"),
        ("the ratio upside down", "(logps - old_logps.detach())", "(old_logps.detach() - logps)"),
        ("no exp", ".masked_fill(~mask, 0.0).exp()", ".masked_fill(~mask, 0.0)"),
        ("clip_low ignored", "1 - clip_low", "1 - 0.2"),
        ("clip_high ignored", "1 + clip_high", "1 + 0.24"),
        ("clips swapped", "1 - clip_low, 1 + clip_high", "1 - clip_high, 1 + clip_low"),
        ("clip_low for both", "1 + clip_high", "1 + clip_low"),
        ("the wrong sign", "-objective.sum()", "objective.sum()"),
        ("a sum", " / (denominator or count)", ""),
        ("denominator ignored", "denominator or count", "count"),
        ("over pads, too", "(denominator or count)", "(denominator or mask.numel())"),
        ("over empty completions, too", "(lengths > 0).sum()", "len(mask)"),
        ("always over tokens", 'loss_agg_mode == "seq-mean-token-mean"', "False"),
        ("always over completions", 'loss_agg_mode == "seq-mean-token-mean"', "True"),
        ("the sum of a completion", " / lengths.clamp(min=1)", ""),
        ("0 / 0 of an empty completion", "lengths.clamp(min=1)", "lengths"),
        ("no KL", "objective - beta * kl", "objective"),
        ("the KL's wrong sign", "objective - beta * kl", "objective + beta * kl"),
        ("beta ignored", "beta * kl", "kl"),
        ("the KL turned around", "(ref_logps.detach() - logps)", "(logps - ref_logps.detach())"),
        ("the k1 estimate", "log_x.exp() - 1 - log_x", "-log_x"),
        ("the k2 estimate", "log_x.exp() - 1 - log_x", "log_x ** 2 / 2"),
        ("the KL without its 1", "log_x.exp() - 1 - log_x", "log_x.exp() - log_x"),
        ("w times the KL", "beta * kl", "beta * kl * (1 if weights is None else weights)"),
        ("the KL to the policy that sampled", "ref_logps.detach()", "old_logps.detach()"),
        ("old_logps learn", "old_logps.detach()", "old_logps"),
        ("ref_logps learn", "ref_logps.detach()", "ref_logps"),
        ("weights learn", "weights.detach()", "weights"),
        ("logps do not learn", "(logps - old_logps.detach())",
         "(logps.detach() - old_logps.detach())"),
        ("nan in the ratio", "(logps - old_logps.detach()).masked_fill(~mask, 0.0)",
         "(logps - old_logps.detach())"),
        ("nan in the KL", "(ref_logps.detach() - logps).masked_fill(~mask, 0.0)",
         "(ref_logps.detach() - logps)"),
        ("times the mask", "objective.masked_fill(~mask, 0.0)", "objective * mask"),
        ("the mask forgotten", "objective.masked_fill(~mask, 0.0)", "objective"),
        ("a mask of numbers", "mask = mask.bool()", "mask = mask"),
        ("one advantage for each completion only", "advantages.reshape(len(logps), -1)",
         "advantages[:, None]"),
    ],
    "token_logps": [
        ("logits not shifted", "logits[:, :-1]", "logits[:, 1:]"),
        ("ids not shifted", "ids[:, 1:, None]", "ids[:, :-1, None]"),
        ("no temperature", " / temperature", ""),
        ("times the temperature", "/ temperature", "* temperature"),
        ("temperature after the log-softmax", ".float() / temperature\n    logps = "
         "logits[:, :-1].log_softmax(-1)", ".float()\n    logps = logits[:, :-1].log_softmax(-1) "
         "/ temperature"),
        ("probabilities", "log_softmax", "softmax"),
        ("logits", ".log_softmax(-1)", ""),
        ("softmax over positions", "log_softmax(-1)", "log_softmax(1)"),
        ("0 is a pad", "input_ids=ids", "input_ids=ids, attention_mask=(ids != 0).long()"),
        ("1 is a pad", "input_ids=ids", "input_ids=ids, attention_mask=(ids != 1).long()"),
        ("only the mask is read", "input_ids=ids", "input_ids=ids, attention_mask=mask.long()"),
        ("no mask", "logps.masked_fill(~mask, 0.0)", "logps"),
        ("padded on the wrong side", "(1, 0)", "(0, 1)"),
        ("no float32", ".float()", ""),
        ("no gradient", "model(input_ids=ids).logits", "model(input_ids=ids).logits.detach()"),
    ],
    "draw": [
        ("(B,) at temperature 0", "argmax(-1, keepdim=True)", "argmax(-1)"),
        ("the least likely at temperature 0", "argmax", "argmin"),
        ("no temperature", " / temperature", ""),
        ("times the temperature", "/ temperature", "* temperature"),
        ("no cumsum", ".cumsum(-1)", ""),
        ("u not scaled", "u * total", "u"),
        ("u not scaled, argmax", "torch.searchsorted(cdf, u * total, right=True)",
         "(u < cdf).float().argmax(-1, keepdim=True)"),
        ("right=False", "right=True", "right=False"),
        ("the next token", "right=True)", "right=True) + 1"),
        ("u ignored", "u * total", "torch.rand(len(u), 1) * total"),
        ("u turned around", "u * total", "(1 - u) * total"),
        ("always the most likely", "temperature == 0", "True"),
        ("no float32", ".float()", ""),
        ("(B,)", "u * total, right=True)", "u * total, right=True)[:, 0]"),
    ],
    "pass_at_k": [
        ("with replacement", "1 - math.comb(n - c, k) / math.comb(n, k)", "1 - (1 - c / n) ** k"),
        ("none right", "1 - math.comb", "math.comb"),
        ("all right", "1 - math.comb(n - c, k)", "math.comb(c, k)"),
        ("pass@1", "1 - math.comb(n - c, k) / math.comb(n, k)", "c / n"),
        ("one too few", "math.comb(n - c, k)", "math.comb(n - c - 1, k)"),
    ],
    "make_batch": [
        ("the mask by value", "c.mask + ", "[token != 0 for token in c.tokens] + "),
        ("the last token left out", "c.mask + ", "c.mask[:-1] + [False] + "),
        ("a tool's tokens learned", "c.mask + ", "[True] * len(c.tokens) + "),
        ("the prompt learned", "[False] * len(c.prompt)", "[True] * len(c.prompt)"),
        ("pads learned", "c.mask + [False] * pads", "c.mask + [True] * pads"),
        ("padded on the left", "c.prompt + c.tokens + [0] * pads",
         "[0] * pads + c.prompt + c.tokens"),
        ("without the prompt's length", "len(c.prompt) + len(c.tokens) for", "len(c.tokens) for"),
        ("rewards for advantages", "c.advantage for", "c.reward for"),
        ("ids on another device", "ids, device=device", "ids"),
        ("the mask on another device", "mask, device=device", "mask"),
        ("advantages on another device", "for c in completions], device=device",
         "for c in completions]"),
        ("a mask of integers", "torch.tensor(mask, device=device)",
         "torch.tensor(mask, device=device).long()"),
        ("the completion's mask before the prompt's", "[False] * len(c.prompt) + c.mask",
         "c.mask + [False] * len(c.prompt)"),
    ],
    "learn": [
        ("no zero_grad", "        optimizer.zero_grad()\n", ""),
        ("zero_grad after backward", "        optimizer.zero_grad()\n        loss.backward()\n",
         "        loss.backward()\n        optimizer.zero_grad()\n"),
        ("no step", "        optimizer.step()\n", ""),
        ("one step for all minibatches", "        optimizer.step()\n", "    optimizer.step()\n"),
        ("no gradient clipping", "        torch.nn.utils.clip_grad_norm_"
         "(policy.model.parameters(), 1.0)\n", ""),
        ("gradient clipping to another norm", "parameters(), 1.0)", "parameters(), 0.5)"),
        ("gradient clipping by value", "clip_grad_norm_", "clip_grad_value_"),
        ("gradient clipping for each parameter", "torch.nn.utils.clip_grad_norm_"
         "(policy.model.parameters(), 1.0)", "[torch.nn.utils.clip_grad_norm_([p], 1.0) "
         "for p in policy.model.parameters()]"),
        ("clip_low ignored", "clip_low=cfg.clip_low, ", ""),
        ("clip_high ignored", "clip_high=cfg.clip_high, ", ""),
        ("clips swapped", "clip_low=cfg.clip_low, clip_high=cfg.clip_high",
         "clip_low=cfg.clip_high, clip_high=cfg.clip_low"),
        ("beta ignored", "beta=cfg.beta,", ""),
        ("loss_agg_mode ignored", "loss_agg_mode=cfg.loss_agg_mode", ""),
        ("no weights", "weights=grpo_sg.weigh(logps, cfg), ", ""),
        ("weights without settings", "grpo_sg.weigh(logps, cfg)", "token_weights(logps)"),
        ("weights whatever cfg.shaping", "grpo_sg.weigh(logps, cfg)",
         "token_weights(logps, alpha=cfg.alpha, tau=cfg.tau, mu=cfg.mu, low=cfg.low, "
         "high=cfg.high)"),
        ("weights of the policy that sampled", "grpo_sg.weigh(logps, cfg)",
         'grpo_sg.weigh(batch["old_logps"], cfg)'),
        ("no shuffle", "random.Random(seed).sample(completions, len(completions))", "completions"),
        ("an unseeded shuffle", "random.Random(seed)", "random"),
        ("the same shuffle for all seeds", "random.Random(seed)", "random.Random(0)"),
        ("the list of the caller shuffled", "shuffled = random.Random(seed).sample(completions, "
         "len(completions))", "random.Random(seed).shuffle(completions)\n    "
         "shuffled = completions"),
        ("minibatches shuffled, not completions", "random.Random(seed).sample(completions, "
         "len(completions))", "completions[seed % 7:] + completions[:seed % 7]"),
        ("drawn with replacement", ".sample(completions, len(completions))",
         ".choices(completions, k=len(completions))"),
        ("the remainder left out", "shuffled[i::cfg.updates]",
         "shuffled[i * (len(shuffled) // cfg.updates):(i + 1) * (len(shuffled) // cfg.updates)]"),
        ("uneven minibatches", "shuffled[i::cfg.updates]",
         "shuffled[i * -(-len(shuffled) // cfg.updates):(i + 1) * "
         "-(-len(shuffled) // cfg.updates)]"),
        ("all completions in each update", "shuffled[i::cfg.updates]", "shuffled"),
        ("half of the updates", "range(cfg.updates)", "range((cfg.updates + 1) // 2)"),
        ("r is always 1", 'logps, batch["old_logps"],', "logps, logps.detach(),"),
        ("the loss times the minibatches", "loss.backward()", "(loss * len(batches)).backward()"),
        ("the loss divided by the minibatches", "loss.backward()",
         "(loss / len(batches)).backward()"),
        ("another temperature", 'batch["mask"], temperature=cfg.temperature)', 'batch["mask"])'),
        ("old_logps at another temperature", 'batch["old_logps"] = token_logps(policy.model, '
         "*row, temperature=cfg.temperature)", 'batch["old_logps"] = token_logps(policy.model, '
         "*row)"),
        ("ref_logps at another temperature", "token_logps(reference, *row, "
         "temperature=cfg.temperature)", "token_logps(reference, *row)"),
        ("the policy as its own reference", "token_logps(reference,", "token_logps(policy.model,"),
        ("dropout", "    batches = []\n", "    batches = []\n    policy.model.train()\n"),
    ],
}
# Changes that are not mistakes: (function, change, what is there, what replaces it, reason).
EQUIVALENT = [
    ("grpo_sg_loss", "the KL by expm1", "log_x.exp() - 1 - log_x",
     "torch.expm1(log_x) - log_x", "only more exact near 0"),
    ("group_advantages", "the range compared", "(R == R[:, :1]).all(1, keepdim=True)",
     "R.amax(1, keepdim=True) == R.amin(1, keepdim=True)", "all are equal if the extremes are"),
    ("group_advantages", "equal where std is 0", "(R == R[:, :1]).all(1, keepdim=True)", "std == 0",
     "for equal rewards PyTorch's std is 0, or its mean exact, in all groups that we tried"),
    ("learn", "minibatches in one piece", "shuffled[i::cfg.updates]",
     "shuffled[len(shuffled) * i // cfg.updates:len(shuffled) * (i + 1) // cfg.updates]",
     "the completions are shuffled, and the sizes differ by one at most"),
    ("learn", "zero_grad after the step", "        optimizer.zero_grad()\n        loss.backward()\n"
     "        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)\n"
     "        optimizer.step()\n", "        loss.backward()\n"
     "        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)\n"
     "        optimizer.step()\n        optimizer.zero_grad()\n",
     "no gradient is there before the first update"),
]


class FirstFailure:
    """Keep the name of the first test that fails, and the first line of its message."""
    test, message = None, None

    def pytest_runtest_logreport(self, report):
        if report.failed and self.test is None:
            self.test = report.nodeid.split("::")[-1]
            self.message = report.longrepr.reprcrash.message.split("\n")[0]


def mutate(function, old, new):
    """Return answers.py as a module, with old replaced by new in one of its functions."""
    start = CODE.index(f"def {function}(")
    before, (body, *after) = CODE[:start], CODE[start:].split("\n\n\n")
    if body.count(old) != 1:
        raise ValueError(f"{body.count(old)} times in {function} of answers.py: {old}")
    code = "\n\n\n".join([before + body.replace(old, new), *after])
    module = types.ModuleType(f"mutant_of_{function}")
    exec(compile(code, module.__name__, "exec"), vars(module))
    return module


def find_failure(function, module):
    """Return (test, message) of the first test that fails for the module, or (None, None).
    Runs the tests of the function and of those below it, in their order."""
    sections = progress.read_sections()
    names = list(sections)
    chosen = []
    for name in names[names.index(function):]:
        chosen += [f"{test_grpo_sg.__file__}::{test}" for test in sections[name]]
    usual = {name: getattr(test_grpo_sg, name) for name in names}
    failure = FirstFailure()
    try:
        for name in names:
            setattr(test_grpo_sg, name, getattr(module, name))
        status = pytest.main([*OPTIONS, *chosen], [failure])
        if status == pytest.ExitCode.INTERRUPTED:
            raise SystemExit(130)
    finally:
        for name in names:
            setattr(test_grpo_sg, name, usual[name])
    return failure.test, failure.message


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m lesson.mutants", description=__doc__.split("\n")[0])
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help=", ".join(MUTANTS))
    functions = parser.parse_args(argv).functions or list(MUTANTS)
    unknown = [name for name in functions if name not in MUTANTS]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}: give some of {', '.join(MUTANTS)}")
    survivors, count = [], 0
    for function in functions:
        for title, old, new in MUTANTS[function]:
            test, message = find_failure(function, mutate(function, old, new))
            count += 1
            said = f"caught by {test}: {message}" if test else "SURVIVED"
            print(f"{function}, {title}: {said}", flush=True)
            if not test:
                survivors.append(f"{function}, {title}")
    for function, title, old, new, why in EQUIVALENT:
        if function in functions:
            test, _ = find_failure(function, mutate(function, old, new))
            said = f"CAUGHT by {test}" if test else "survived"
            print(f"{function}, {title}: {said}, as it must: {why}", flush=True)
    print(f"{count - len(survivors)} of {count} caught, {len(survivors)} survived"
          f"{': ' if survivors else ''}{'; '.join(survivors)}")


if __name__ == "__main__":
    main()
