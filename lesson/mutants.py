"""Do the tests notice a wrong body? Make one bug at a time in answers.py, and test it.

    python -m lesson.mutants draw token_logps   those of two functions: ten seconds
    python -m lesson.mutants                    all of them: a minute on one core

Prints for each mutant (a body with one bug) whether a test of the lesson caught it, with what
the test said, and lists the survivors at the end, of which there should be none. Each bug
replaces a part of a function in answers.py.
"""
import os
import sys

# The project's folder: a script sees only its own.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == "__main__":
    from support import program
    program.end_on_ctrl_c()

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
# function -> [(the bug, what is there, what replaces it)]
MUTANTS = {
    "token_weights": [
        ("a gradient", ".detach()", ""),
        ("in place", ".exp()", ".exp_()"),
        ("no float32", ".float()", ""),
        ("log pi for pi", ".exp()", ""),
        ("alpha ignored", "alpha *", "2.0 *"),
        ("times tau", "/ tau", "* tau"),
        ("mu added", "- mu", "+ mu"),
        ("no lower bound", "clamp(low, high)", "clamp(max=high)"),
        ("no upper bound", "clamp(low, high)", "clamp(min=low)"),
        ("the largest weight for unlikely tokens", "pi / tau", "(1 - pi) / tau"),
    ],
    "group_advantages": [
        ("no float32", "rewards.float()", "rewards"),
        ("the mean of all groups", "R.mean(1, keepdim=True)", "R.mean()"),
        ("over G", "R.std(1, keepdim=True)", "R.std(1, keepdim=True, correction=0)"),
        ("no mean", "(R - mean)", "R"),
        ("in place", "A = (R - mean) /", "R -= mean\n    A = R /"),
        ("equal rewards found in the first group only", "A.masked_fill(equal, 0.0)",
         "A.masked_fill(equal & (torch.arange(len(R))[:, None] == 0), 0.0)"),
        ("no std", " / (std + eps)", ""),
        ("no eps", "std + eps", "std"),
        ("equal rewards not found", "A.masked_fill(equal, 0.0)", "A"),
        ("only the first two compared", "R == R[:, :1]", "R[:, :2] == R[:, :1]"),
    ],
    "grpo_sg_loss": [
        ("no weights", "weights.detach() * objective", "objective"),
        ("w inside the clip", "r = (logps - old_logps.detach())",
         "r = (logps + (0 if weights is None else weights.log()) - old_logps.detach())"),
        ("no clip", "torch.minimum(r * A, clipped * A)", "r * A"),
        ("only the clip", "torch.minimum(r * A, clipped * A)", "clipped * A"),
        ("clip_low ignored", "1 - clip_low", "1 - 0.2"),
        ("clip_high ignored", "1 + clip_high", "1 + 0.24"),
        ("the wrong sign", "-objective.sum()", "objective.sum()"),
        ("a sum", " / (denominator or count.clamp(min=1))", ""),
        ("over empty completions, too", "(lengths > 0).sum()", "len(mask)"),
        ("0 / 0 of a batch without tokens", "count.clamp(min=1)", "count"),
        ("a dual clip", "torch.minimum(r * A, clipped * A)",
         "torch.where(A < 0, torch.maximum(torch.minimum(r * A, clipped * A), 3 * A), "
         "torch.minimum(r * A, clipped * A))"),
        ("0 / 0 of an empty completion", "lengths.clamp(min=1)", "lengths"),
        ("no KL", "objective - beta * kl", "objective"),
        ("the k2 estimate", "log_x.exp() - 1 - log_x", "log_x ** 2 / 2"),
        ("w times the KL", "beta * kl", "beta * kl * (1 if weights is None else weights)"),
        ("weights learn", "weights.detach()", "weights"),
        ("nan in the ratio", "(logps - old_logps.detach()).masked_fill(~mask, 0.0)",
         "(logps - old_logps.detach())"),
        ("nan in the KL", "(ref_logps.detach() - logps).masked_fill(~mask, 0.0)",
         "(ref_logps.detach() - logps)"),
        ("times the mask", "objective.masked_fill(~mask, 0.0)", "objective * mask"),
        ("the mask forgotten", "objective.masked_fill(~mask, 0.0)", "objective"),
        ("one advantage for each completion only", "advantages.reshape(len(logps), -1)",
         "advantages[:, None]"),
    ],
    "token_logps": [
        ("logits not shifted", "logits[:, :-1]", "logits[:, 1:]"),
        ("ids not shifted", "ids[:, 1:, None]", "ids[:, :-1, None]"),
        ("no temperature", " / temperature", ""),
        ("0 is a pad", "input_ids=ids", "input_ids=ids, attention_mask=(ids != 0).long()"),
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
        ("u not scaled", "u * total", "u"),
        ("right=False", "right=True", "right=False"),
        ("u ignored", "u * total", "torch.rand(len(u), 1) * total"),
        ("always the most likely", "temperature == 0", "True"),
        ("no float32", ".float()", ""),
        ("the 50 most likely only", "logits.float()", "logits.float().masked_fill(logits < "
         "logits.topk(min(50, logits.shape[1]))[0][:, -1:], -math.inf)"),
        ("no p below 1e-4", "torch.softmax(logits.float() / temperature, -1)",
         "F.threshold(torch.softmax(logits.float() / temperature, -1), 1e-4, 0.0)"),
        ("no temperature below 0.5", "/ temperature", "/ max(temperature, 0.5)"),
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
        ("without the prompt's length", "len(c.prompt) + len(c.tokens) for", "len(c.tokens) for"),
        ("rewards for advantages", "c.advantage for", "c.reward for"),
        ("the mask on another device", "mask, device=device", "mask"),
    ],
    "learn": [
        ("no zero_grad", "        optimizer.zero_grad()\n", ""),
        ("no step", "        optimizer.step()\n", ""),
        ("no gradient clipping", "        torch.nn.utils.clip_grad_norm_"
         "(policy.model.parameters(), 1.0)\n", ""),
        ("clips swapped", "clip_low=cfg.clip_low, clip_high=cfg.clip_high",
         "clip_low=cfg.clip_high, clip_high=cfg.clip_low"),
        ("beta ignored", "beta=cfg.beta,", ""),
        ("loss_agg_mode ignored", "loss_agg_mode=cfg.loss_agg_mode", ""),
        ("no weights", "weights=grpo_sg.weigh(logps, cfg), ", ""),
        ("no shuffle", "random.Random(seed).sample(completions, len(completions))", "completions"),
        ("an unseeded shuffle", "random.Random(seed)", "random"),
        ("the remainder left out", "shuffled[i::cfg.updates]",
         "shuffled[i * (len(shuffled) // cfg.updates):(i + 1) * (len(shuffled) // cfg.updates)]"),
        ("all completions in each update", "shuffled[i::cfg.updates]", "shuffled"),
        ("r is always 1", 'logps, batch.old_logps,', "logps, logps.detach(),"),
        ("the loss times the minibatches", "loss.backward()", "(loss * len(batches)).backward()"),
        ("another temperature", 'batch.mask, temperature=cfg.temperature)', 'batch.mask)'),
        ("old_logps at another temperature", 'batch.old_logps = token_logps(policy.model, '
         "*row, temperature=cfg.temperature)", 'batch.old_logps = token_logps(policy.model, '
         "*row)"),
        ("the policy as its own reference", "token_logps(reference,", "token_logps(policy.model,"),
        ("dropout", "    batches = []\n", "    batches = []\n    policy.model.train()\n"),
    ],
}


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
        status = pytest.main([*OPTIONS, *chosen], [failure, progress])
        if status == pytest.ExitCode.INTERRUPTED and failure.test is None:
            raise SystemExit("interrupted")
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
    print(f"{count - len(survivors)} of {count} caught, {len(survivors)} survived"
          f"{': ' if survivors else ''}{'; '.join(survivors)}")


if __name__ == "__main__":
    main()
