"""Do the tests notice? Break one line at a time, in a copy of the project, and run the tests nearest to it.

    python experiments/mutants.py                   all breaks: prints caught or SURVIVED, writes results/mutants.json
    python experiments/mutants.py --only kl --jobs 2     those with "kl" in the name, two at a time

A break is (name, old text, new text, tests as an expression of pytest -k). The old text must occur once in its file. A
break is caught when a test fails that passes on the unbroken copy, or when the tests hang. torch is imported once: each
break gets a fork of this process.
"""
import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", PYTHONDONTWRITEBYTECODE="1")

BREAKS = {"grpo_sg.py": [
    # the weight and the advantage
    ("weight: tau multiplies", "torch.sigmoid(pi / tau)", "torch.sigmoid(pi * tau)", "weight"),
    ("weight: plus mu", "- mu)).clamp(low, high)", "+ mu)).clamp(low, high)", "weight"),
    ("weight: no upper bound", ".clamp(low, high)", ".clamp(low)", "weight"),
    ("weight: with gradient", "w(logps.detach().float().exp())", "w(logps.float().exp())", "weight"),
    ("weight: in bfloat16", "w(logps.detach().float().exp())", "w(logps.detach().exp())", "weight"),
    ("advantage: population std", "R.std(1, keepdim=True)", "R.std(1, correction=0, keepdim=True)", "advantages"),
    ("advantage: mean of the batch", "R - R.mean(1, keepdim=True)", "R - R.mean()", "advantages"),
    ("advantage: rounding of equal rewards", "return A.masked_fill(", "return A; A.masked_fill(",
     "advantages or equal_rewards"),
    # the loss
    ("loss: max for min", "torch.minimum(r * A", "torch.maximum(r * A", "loss or clip"),
    ("loss: sign", "return -aggregate(objective)", "return aggregate(objective)", "loss or clip"),
    ("loss: clip bounds swapped", "r.clamp(1 - clip_low, 1 + clip_high)", "r.clamp(1 - clip_high, 1 + clip_low)",
     "loss or clip"),
    ("loss: no lower clip", "r.clamp(1 - clip_low, 1 + clip_high)", "r.clamp(max=1 + clip_high)", "loss or clip"),
    ("loss: weight inside the clip", "w * torch.minimum(r * A, clipped * A)",
     "torch.minimum(w * r * A, (w * r).clamp(1 - clip_low, 1 + clip_high) * A)", "loss or clip or fold"),
    ("loss: weight on one side", "w * torch.minimum(r * A, clipped * A)", "torch.minimum(w * r * A, clipped * A)",
     "loss or clip or fold"),
    ("loss: kl turned round", "log_ratio = (other - logps)", "log_ratio = (logps - other)", "loss or kl"),
    ("loss: kl weighted", "objective - beta * kl", "objective - w * beta * kl", "loss or kl"),
    ("loss: kl with the wrong sign", "objective - beta * kl", "objective + beta * kl", "loss or kl"),
    ("loss: pads reach exp", "r = (logps - old_logps).masked_fill(~mask, 0.0).exp()", "r = (logps - old_logps).exp()",
     "loss or masked"),
    ("loss: gradient through old", "old_logps.detach().to(logps.dtype)", "old_logps.to(logps.dtype)",
     "loss or gradient"),
    ("loss: denominator ignored", "(denominator or tokens.sum().clamp(min=1))", "tokens.sum().clamp(min=1)",
     "loss or parts"),
    ("loss: sequences not averaged", "(x.sum(1) / tokens.clamp(min=1)).sum()", "x.sum(1).sum()", "loss or parts"),
    ("loss: empty sequences counted", "(tokens > 0).sum().clamp(min=1)", "len(tokens)", "loss or parts"),
    ("loss: stays in bfloat16", "logps.to(torch.promote_types(logps.dtype, torch.float32))", "logps",
     "loss or bfloat16"),
    ("loss: clip_frac both ways", "(clipped * A < r * A)", "(clipped != r)", "loss or clip"),
    ("loss: entropy's sign", "aggregate(-old_logps)", "aggregate(old_logps)", "loss or statistics"),
    ("loss: low_prob_frac's bound", "math.log(1/3)", "1/3", "loss or statistics"),
    ("loss: weight_mean of ones", "aggregate(w)", "aggregate(torch.ones_like(w))", "loss or statistics"),
    ("pass@k: of the right ones", "1 - math.comb(n - c, k)", "1 - math.comb(c, k)", "pass_at_k"),
    # log-probabilities and sampling
    ("logps: temperature ignored", ".float().div_(temperature)", ".float()", "token_logps or softmax"),
    ("logps: off by one", "targets = mask[:, 1:].bool()", "targets = mask[:, :-1].bool()", "token_logps or softmax"),
    ("sample: temperature ignored", "torch.softmax(logits.float() / temperature, -1)",
     "torch.softmax(logits.float(), -1)", "sampl or frequencies"),
    ("sample: a nucleus", "u[row, t, None] * cdf[:, -1:]", "u[row, t, None] * 0.95 * cdf[:, -1:]",
     "sampl or frequencies"),
    ("sample: greedy takes the least likely", "logits.argmax(-1", "logits.argmin(-1", "greedy or alone"),
    ("sample: positions count pads", "(mask.cumsum(1) - 1).clamp(min=0)",
     "torch.arange(longest, device=device).expand_as(ids)", "greedy or padding or alone"),
    ("sample: position stands still", "position + 1", "position", "greedy or padding or alone"),
    ("sample: stop token lost", "completions[i] = tokens", "completions[i] = tokens[:-1]", "sampl or greedy"),
    ("sample: rows of the cache mixed", "cache.batch_select_indices(going)",
     "cache.batch_select_indices(going.flip(0))", "greedy or dropping or alone"),
    ("sample: numbers of other rows", "u[row, t, None]", "u[:len(row), t, None]", "draw or alone or pausing"),
    ("sample: prompts mixed", "x.repeat_interleave(n, 0) for x", "x.repeat(n, 1) for x", "greedy or alone"),
    ("sample: new tokens unseen", "F.pad(mask, (0, 1), value=1)", "F.pad(mask, (0, 1), value=0)", "greedy or alone"),
    ("sample: one stop token of several", "torch.isin(token[:, 0], stops)", "torch.isin(token[:, 0], stops[:1])",
     "sampl"),
    ("sample: one token too few", "(t + 1 == max_new_tokens)", "(t + 2 >= max_new_tokens)", "sampl or greedy"),
    # rollout, reward, evaluation
    ("reward: bad form costs nothing", "if completion.formatted else -3.0", "if completion.formatted else 0.0",
     "truncated or real_model"),
    ("reward: wrong as good as right", "(3.0 if completion.correct else -0.5)", "3.0", "truncated or real_model"),
    ("rollout: one end token", '{words.get("<|im_end|>"), words.get("<|endoftext|>"), tokenizer.eos_token_id}',
     "{tokenizer.eos_token_id}", "stop or real_model"),
    ("rollout: truncated unnoticed", "c.truncated = c.tokens[-1] not in stops", "c.truncated = False",
     "truncated or call"),
    ("rollout: truncated may be well formed", "c.formatted = formatted and not c.truncated", "c.formatted = formatted",
     "truncated or call"),
    ("rollout: the wrong prompt", "for pair in zip(problems, prompts) for _ in range(n)]",
     "for pair in zip(problems, prompts[1:] + prompts[:1]) for _ in range(n)]", "rollout or evaluation or greedy"),
    ("rollout: the wrong problem", "[pair for pair in zip(problems, prompts) for _ in range(n)]",
     "[pair for _ in range(n) for pair in zip(problems, prompts)]", "rollout or evaluation or training"),
    ("rollout: seed ignored", "torch.Generator().manual_seed(seed)", "torch.Generator().manual_seed(0)",
     "rollout or seed or evaluation"),
    ("rollout: the tool's words are trained on", "c.mask + [False] * len(answer)", "c.mask + [True] * len(answer)",
     "call or own_tokens"),
    ("rollout: one turn too few", "range(cfg.max_turns if task.observe else 0, -1, -1)",
     "range(cfg.max_turns - 1 if task.observe else 0, -1, -1)", "call"),
    ("rollout: the verifier reads the tool", "task.verify(c.text,", "task.verify(c.whole,", "call or spelling"),
    ("rollout: end token in the text", "end = None if c.truncated else -1", "end = None", "call or spelling"),
    ("rollout: an opened <think> is lost", '"<think>" if tokenizer.decode(c.prompt)',
     '"" if tokenizer.decode(c.prompt)', "think or template or real_model"),
    ("evaluation: greedy samples", "n=1, temperature=0, seed=cfg.seed", "n=1, temperature=cfg.temperature, seed=cfg.seed",
     "evaluation or greedy"),
    ("evaluation: avg@k is pass@k", "[count / samples for count", "[float(count > 0) for count", "evaluation"),
    ("evaluation: standard error", "/ math.sqrt(len(each))", "/ len(each)", "evaluation"),
    ("evaluation: the tool's tokens counted", "mean(sum(c.mask) for c", "mean(len(c.tokens) for c", "call"),
    # the update and the loop
    ("update: mask by pad", "[torch.tensor([False] * len(c.prompt) + c.mask) for c in chosen]",
     "[torch.tensor([False] * len(c.prompt) + [t != 0 for t in c.tokens]) for c in chosen]", "update or mask"),
    ("update: advantages of others", '"advantages": advantages[rows]', '"advantages": advantages[sorted(rows)]',
     "update or mask"),
    ("update: scored at temperature 1", "temperature=cfg.temperature)\n\n\ndef update",
     "temperature=1.0)\n\n\ndef update", "update"),
    ("update: equal groups skipped despite beta", "if cfg.beta or advantages[i] != 0]", "if advantages[i] != 0]",
     "update"),
    ("update: equal groups leave the denominator", "count = 0.0, size(share)",
     "count = 0.0, size([i for i in share if advantages[i] != 0])", "update"),
    ("update: ratio always 1", "if u > 0 else None", "if u > 9 else None", "update"),
    ("update: kl to the policy itself", "micro_logps(reference, micro, cfg)", "micro_logps(model, micro, cfg)",
     "update"),
    ("update: no weights", "weights=shaping_weights(logps, **{k: settings[k] for k in WEIGHT_SETTINGS}),",
     "weights=None,", "update"),
    ("update: gradients pile up", "optimizer.zero_grad()", "pass", "update or resum"),
    ("update: gradient not clipped", "cfg.grad_clip))", "1e9))", "update or clipped"),
    ("update: nan reaches the weights", "if math.isfinite(norm + whole_loss):", "if True:", "finite"),
    ("update: with dropout", 'layer.training = getattr(layer, "gradient_checkpointing", False)',
     "layer.training = True", "update"),
    ("update: one share twice", "order[u::cfg.updates]", "order[0::cfg.updates]", "update"),
    ("update: clip_high ignored", '("clip_low", "clip_high", "beta", "loss_agg_mode")',
     '("clip_low", "beta", "loss_agg_mode")', "update"),
    ("train: every step draws the same", "cfg.seed * 1_000_003 + step", "cfg.seed * 1_000_003", "train or step"),
    ("train: evaluates too often", "step % cfg.eval_every == 0", "step % 1 == 0", "training_raises or evaluat"),
    ("train: curve on the test set", "task.valid, cfg, step=step", "task.test, cfg, step=step", "train or evaluat"),
    ("train: optimizer forgotten on resume", 'optimizer.load_state_dict(state["optimizer"])', "pass",
     "signal or resum"),
    ("train: a step again on resume", 'state["step"] if state else 0', 'state["step"] - 1 if state else 0',
     "signal or resum"),
    ("train: bad steps not counted", "bad_steps + 1 if stats", "0 if stats", "bad"),
    # settings and main
    ("settings: low above high", "if cfg.low > cfg.high:", "if False:", "bad_input"),
    ("settings: infinity", "(math.isfinite(value) and (", "(True and (", "bad_input"),
    ("settings: groups of one", "if cfg.group_size < 2:", "if False:", "bad_input"),
    ("settings: a folder is overwritten", "os.path.lexists(cfg.out) and not cfg.resume", "False", "bad_input"),
    ("main: test on validation problems", "evaluate(model, tokenizer, task, task.test, cfg",
     "evaluate(model, tokenizer, task, task.valid, cfg", "end_to_end"),
], "runs.py": [
    ("checkpoint: a moment without any", "os.rename(newest, before)", "shutil.rmtree(newest)", "dying or torn or kill"),
    ("checkpoint: pickled code is run", '"cpu", weights_only=True', '"cpu", weights_only=False', "never_code"),
    ("checkpoint: logs not cut", "os.truncate(path, min(size, os.path.getsize(path)))", "pass", "dying or torn or kill"),
    ("checkpoint: none at the end", " or step == cfg.steps:", ":", "real_model"),
    ("checkpoint: bfloat16", 'dtype="float32"', 'dtype="bfloat16"', "signal or kill or resum"),
    ("signal: stops at once", "received.append(number)", "raise SystemExit(128 + number)", "signal"),
    ("signal: the second ignored", "        if received:\n            raise SystemExit(128 + number)", "        pass",
     "second_signal"),
    ("signal: status 0", "raise SystemExit(128 + received[0])", "raise SystemExit(0)", "signal"),
    ("resume: other settings", "value != saved.get(name):", "False:", "resumed_run"),
    ("run: bad steps never end", "too_bad = bad_steps >= cfg.max_bad_steps", "too_bad = False", "bad"),
    ("run: logits changed after lm_head", "if not torch.isclose(", "if False and torch.isclose(", "changes or supported"),
    ("run: out of memory is a traceback", "except torch.OutOfMemoryError:", "except ZeroDivisionError:", "memory"),
    ("run: a model steers the terminal", 'c if c.isprintable() or c == "\\n" else', "c if c else", "terminal"),
], "tasks.py": [
    ("kk: if", "(full ^ x) | y if kind", "(full ^ y) | x if kind", "puzzles"),
    ("kk: iff", "else full ^ x ^ y", "else x ^ y", "puzzles"),
    ("kk: knaves tell the truth", "[full ^ knight[p] ^ kk_truth(", "[knight[p] ^ kk_truth(", "puzzles"),
    ("kk: several solutions", "while not consistent or consistent & (consistent - 1):", "while not consistent:",
     "puzzles"),
    ("kk: I am a knave", "if is_knight or person != speaker:", "if True:", "puzzles"),
    ("kk: and for or", '"or": f"{x} or {y}"', '"or": f"{x} and {y}"', "puzzles"),
    ("kk: any puzzle in any split", "if split_of(problem.meaning) == split and key", "if key", "split"),
    ("kk: puzzles repeat", "== split and key not in seen:", "== split:", "split"),
    ("kk: meaning of two people", "table & 9 | (table & 2) << 1 | (table & 4) >> 1", "table", "split or 41"),
    ("kk: text after the answer", "and bool(closed) and not after", "and bool(closed)", "badly_formed"),
    ("kk: faked turns", "c not in BLANK for c in think[1])\n                 and not FAKE_TURN.search(shown))",
     "c not in BLANK for c in think[1]))", "badly_formed or hidden"),
    ("kk: hidden tags", "shown = visible(body)\n    tags = [re.sub(r\"\\s\", \"\", tag).lower() for tag in TAG",
     "shown = body\n    tags = [re.sub(r\"\\s\", \"\", tag).lower() for tag in TAG", "badly_formed or hidden"),
    ("kk: letters that look like others", "if not all(c.isascii() or c in letters for c in answer):", "if False:",
     "anything_else"),
    ("kk: both roles for one", "if found.setdefault(who, role) != role:", "if False:", "anything_else"),
    ("kk: question marks", 'r"[\\s,;.]+|and(?!\\w)"', 'r"[\\s,;.?!]+|and(?!\\w)"', "anything_else"),
    ("kk: an answer in the thoughts", "Verdict(outside and read_roles(", "Verdict(read_roles(", "block or hidden"),
    ("kk: only one must be right", "read_roles(answer, list(roles)) == roles, formatted",
     "(read_roles(answer, list(roles)) or {}).items() <= roles.items(), formatted", "anything_else or right"),
    ("tasks: longest prompt dropped", "if length <= most]", "if length < most]", "long_prompts"),
    ("arithmetic: no carry", "carry = result // 10", "carry = 0", "arithmetic"),
    ("arithmetic: wrong product", "else a * b)", "else a * b + 1)", "arithmetic"),
    ("arithmetic: any pair in any split", "while split_of(problem.meaning) != split or problem",
     "while problem", "arithmetic"),
    ("arithmetic: order makes another pair", "hash((min(a, b), max(a, b)))", "hash((a, b))", "arithmetic"),
    ("math: all golds", "and any(math_equal(answer, each)", "and all(math_equal(answer, each)", "golds"),
    ("qa: length of a passage", "b * count.total() / average", "b * average / count.total()", "textbook"),
    ("qa: passages without a word", "if scores[i] > 0]", "]", "textbook or query"),
    ("qa: two calls read as one", 'called = opened and "</search>" not in query', "called = opened", "query"),
    ("qa: </information> cut off", "return body[:most] + last", "return (body + last)[:most]", "call"),
    ("qa: the stays", "(?:a|an|the)\\s+(?=", "(?:a|an)\\s+(?=", "questions or adversary"),
    ("qa: .5 is 5", 'words = re.sub(r"(?<![^\\s-])\\.(?=\\d)", "0.", words)', "pass", "adversary"),
    ("qa: accents stay", 'ACCENTS.sub("", each_normalized("NFD", text.casefold()))', "text.casefold()",
     "questions or folded"),
    ("qa: a part is enough", "any(forms & plain_answers(gold) for gold in golds)",
     "any(f in g for f in forms for gold in golds for g in plain_answers(gold))", "questions or adversary"),
    ("qa: answers in thoughts", 'OUTSIDE.sub(" ", body).rpartition("<answer>")', 'body.rpartition("<answer>")',
     "answer_to_a_question"),
    ("qa: text after the answer", 'and body.endswith(f"<answer>{answer}</answer>")', "", "answer_to_a_question"),
    ("qa: its own witness", '(?:answer|information)[^<>]*>?"', '(?:answer)[^<>]*>?"', "answer_to_a_question"),
    ("qa: people in two splits", "if split_of(i % 666) == split:", "if split_of(i) == split:", "world"),
    ("tiny: warm-up on the tool's words", "tokens + answer, mask + [False] * len(answer)",
     "tokens + answer, mask + [True] * len(answer)", "warm_up"),
], "support/math_equal.py": [
    ("math: loose", "abs(x - r) < 1e-11 * abs(r)", "abs(x - r) < 1e-3 * abs(r)", "near_misses or different or labelled"),
    ("math: short decimals of roots", "def same_decimal(x, y, least=100_000):", "def same_decimal(x, y, least=10):",
     "near_misses or different or labelled"),
    ("math: any length", "MAX_CHARS, MAX_BITS = 500, 4100", "MAX_CHARS, MAX_BITS = 10 ** 7, 4100", "hostile"),
    ("math: other units", " or a.unit and b.unit and a.unit != b.unit:", ":", "near_misses"),
    ("math: percent", '{("%", ""): 100, ("", "%"): Fraction(1, 100)}', "{}", "equal or labelled"),
    ("math: mixed numbers", 'r"(\\1+\\2)"),  # mixed numbers', 'r"(\\1*\\2)"),', "equal or labelled"),
    ("math: words that change a number", "refused = NO_UNITS & {word.lower() for word in words} or", "refused =",
     "near_misses"),
    ("math: lists in order", 'if a.kind != "list":', "if True:", "equal or labelled"),
    ("math: open and closed ends", '"(["[signs[0] == "≤"]', '"(["[True]', "equal or different"),
    ("math: boxes in thoughts", 'text = response.rpartition("</think>")[2]', "text = response", "stands"),
    ("math: the first box", 'last = max(text.rfind("\\\\boxed"), text.rfind("\\\\fbox"))',
     'last = text.find("\\\\boxed")', "stands"),
    ("math: words beside the box", "if start >= 0 and content and (BEFORE_BOX", "if False and (BEFORE_BOX", "stands"),
    ("math: escaped braces", 'r"\\\\.|[{}]"', 'r"[{}]"', "stands"),
    ("math: errors get out", "except (ValueError, ArithmeticError, LookupError, RecursionError):",
     "except ValueError:", "hostile or soups"),
], "support/data.py": [
    ("data: test problems in training", "train = without(found, test)", "train = found", "gsm8k or file or math500"),
    ("data: other case, other problem", '" ".join(problem.question.split()).casefold()', "problem.question",
     "file or math500"),
    ("data: validation in training", "train = without(train, valid)", "pass", "gsm8k or math500"),
    ("data: problems without gold", "kept = [row for row in found if row[1]]", "kept = found", "gsm8k or file or math500"),
    ("data: the wrong line", "enumerate(file, 1)", "enumerate(file)", "bad"),
    ("data: 1,000 stays", '.strip().replace(",", "")', ".strip()", "gsm8k"),
    ("data: hotpotqa's training rows as test", '{"test": "validation"}.get(split, split)', '"train"', "hotpotqa"),
]}


class Record:
    """A pytest plugin: which tests ran, which failed, and what could not be imported."""

    def __init__(self):
        self.ran, self.failed, self.broken = 0, [], []

    def pytest_runtest_logreport(self, report):
        self.ran += report.when == "call"
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self.broken.append(report.nodeid)


def child(copy, tests, more, result):
    """In a process of its own: run the tests of the copy, and write to the file `result` what came of it."""
    os.setsid()
    os.chdir(copy)
    sys.path[0] = str(copy)
    with open(result.with_suffix(".log"), "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    record = Record()
    pytest.main(["-q", "-p", "no:cacheprovider", "--ignore=experiments", "-k", tests, *more], plugins=[record])
    result.write_text(json.dumps(vars(record)))


def start(copy, tests, more, result):
    result.unlink(missing_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            child(copy, tests, more, result)
        finally:
            os._exit(0)
    return pid


def finish(pid, result, started, timeout):
    """None while the tests run; then what Record saw, or {"hung": True}."""
    if os.waitpid(pid, os.WNOHANG)[0]:
        return json.loads(result.read_text()) if result.exists() else {"ran": 1, "failed": ["(died)"], "broken": []}
    if time.time() - started > timeout:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return {"hung": True}


def judge(seen):
    """(outcome, the test that caught it)"""
    if seen.get("hung"):
        return "caught", "(hung)"
    if seen["broken"]:
        return "UNUSABLE: the broken file cannot be imported", None
    if seen["failed"]:
        return "caught", seen["failed"][0]
    return ("SURVIVED" if seen["ran"] else "UNUSABLE: its expression selects no test"), None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="breaks whose name has this text")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=180, help="seconds, after which the tests of a break hang")
    parser.add_argument("--out", help="a file for the results (default: results/mutants.json, if all are run)")
    args = parser.parse_args()
    waiting = [(file, *item) for file, items in BREAKS.items() for item in items if args.only in item[0]]
    wrong = [f"{name}: its old text occurs {count} times in {file}, not once: {old!r}"
             for file, name, old, *_ in waiting if (count := (ROOT / file).read_text().count(old)) != 1]
    if wrong or not waiting:
        sys.exit("\n".join(wrong) or f"no break has {args.only!r} in its name")

    global pytest
    import pytest
    import tokenizers.trainers  # noqa: F401
    import torch
    import transformers
    torch.set_num_threads(1)
    transformers.Qwen2ForCausalLM, transformers.GPT2LMHeadModel, transformers.AutoModelForCausalLM  # lazy: load them

    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / f"copy{i}" for i in range(args.jobs)]
        for copy in copies:
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", "runs", "figures"))
        union = " or ".join(f"({tests})" for tests in sorted({item[-1] for item in waiting}))
        pid, started, result = start(copies[0], union, [], Path(folder) / "0.json"), time.time(), Path(folder) / "0.json"
        while not (seen := finish(pid, result, started, 20 * args.timeout)):
            time.sleep(0.05)
        if seen.get("hung") or seen["broken"] or not seen["ran"]:
            sys.exit(f"the tests of the unbroken code do not run: {seen}")
        print(f"unbroken: {seen['ran']} tests, {time.time() - started:.0f} s, failed: {seen['failed'] or 'none'}")
        more = ["-x", *(f"--deselect={test}" for test in seen["failed"])]

        free, running, rows = list(range(args.jobs)), {}, []
        while waiting or running:
            while waiting and free:
                i, (file, name, old, new, tests) = free.pop(), waiting.pop(0)
                path = copies[i] / file
                path.write_text(path.read_text().replace(old, new))
                running[i] = (start(copies[i], tests, more, Path(folder) / f"{i}.json"), time.time(),
                              dict(name=name, file=file, old=old, new=new, tests=tests))
            for i, (pid, started, row) in list(running.items()):
                seen = finish(pid, Path(folder) / f"{i}.json", started, args.timeout)
                if seen:
                    row["outcome"], row["by"] = judge(seen)
                    row["seconds"] = round(time.time() - started, 1)
                    print(f"{row['outcome']:<9} {row['file']}: {row['name']}  ({row['by'] or row['tests']}, "
                          f"{row['seconds']} s)", flush=True)
                    shutil.copy2(ROOT / row["file"], copies[i] / row["file"])
                    rows.append(row)
                    free.append(i)
                    del running[i]
            time.sleep(0.02)

    caught = sum(row["outcome"] == "caught" for row in rows)
    print(f"{caught} of {len(rows)} breaks caught; not caught:",
          ", ".join(row["name"] for row in rows if row["outcome"] != "caught") or "none")
    out = args.out or (None if args.only else ROOT / "experiments" / "results" / "mutants.json")
    if out:
        Path(out).write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(caught < len(rows))


if __name__ == "__main__":
    main()
