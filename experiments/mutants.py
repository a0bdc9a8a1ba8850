"""Do the tests notice? Break one line at a time, in a copy of the project, and run the tests nearest to it.

    python experiments/mutants.py                     all breaks: prints caught or SURVIVED for each
    python experiments/mutants.py --only kl --jobs 2  those with "kl" in the name, two at a time

A break is (name, old text, new text, tests as an expression of pytest -k). The old text must occur once in
its file. A break is caught when a test fails that passes on the unbroken copy, or when the tests hang. torch
is imported once: the tests of each break run in a fork of this process. Writes results/mutants.json.
"""
import argparse
import gc
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
    ("weight: with gradient", "pi = logps.detach().float().exp()\n    return (alpha",
     "pi = logps.float().exp()\n    return (alpha", "weight"),
    ("weight: in bfloat16", "pi = logps.detach().float().exp()\n    return (alpha",
     "pi = logps.detach().exp()\n    return (alpha", "weight"),
    ("advantage: population std", "R.std(1, keepdim=True)", "R.std(1, correction=0, keepdim=True)",
     "advantages"),
    ("advantage: mean of the batch", "R - R.mean(1, keepdim=True)", "R - R.mean()", "advantages"),
    ("advantage: rounding of equal rewards", "return A.masked_fill(", "return A; A.masked_fill(",
     "advantages"),
    # the loss
    ("loss: max for min", "torch.minimum(r * A", "torch.maximum(r * A", "loss or clip"),
    ("loss: sign", "return -aggregate(objective)", "return aggregate(objective)", "loss or clip"),
    ("loss: clip bounds swapped", "r.clamp(1 - clip_low, 1 + clip_high)",
     "r.clamp(1 - clip_high, 1 + clip_low)", "loss or clip"),
    ("loss: no lower clip", "r.clamp(1 - clip_low, 1 + clip_high)", "r.clamp(max=1 + clip_high)",
     "loss or clip"),
    ("loss: weight inside the clip", "w * torch.minimum(r * A, clipped * A)",
     "torch.minimum(w * r * A, (w * r).clamp(1 - clip_low, 1 + clip_high) * A)", "loss or clip"),
    ("loss: weight on one side", "w * torch.minimum(r * A, clipped * A)",
     "torch.minimum(w * r * A, clipped * A)", "loss or clip"),
    ("loss: kl turned round", "log_ratio.exp() - 1 - log_ratio", "(-log_ratio).exp() - 1 + log_ratio",
     "loss or kl"),
    ("loss: kl weighted", "objective - beta * kl", "objective - w * beta * kl", "loss or kl"),
    ("loss: kl with the wrong sign", "objective - beta * kl", "objective + beta * kl", "loss or kl"),
    ("loss: pads reach exp", "(logps - old_logps.detach()).masked_fill(~mask, 0.0).exp()",
     "(logps - old_logps.detach()).exp()", "loss"),
    ("loss: gradient through old", "r = (logps - old_logps.detach())", "r = (logps - old_logps)", "loss"),
    ("loss: denominator ignored", "(denominator or tokens.sum().clamp(min=1))", "tokens.sum().clamp(min=1)",
     "loss"),
    ("loss: sequences not averaged", "(x.sum(1) / tokens.clamp(min=1)).sum()", "x.sum(1).sum()", "loss"),
    ("loss: empty sequences counted", "(tokens > 0).sum().clamp(min=1)", "len(tokens)", "loss"),
    ("loss: stays in bfloat16", "logps.to(torch.promote_types(logps.dtype, torch.float32))", "logps",
     "loss"),
    ("loss: clip_frac both ways", "(clipped * A < r * A)", "(clipped != r)", "loss or clip"),
    ("loss: entropy's sign", "aggregate(-old_logps)", "aggregate(old_logps)", "loss"),
    ("loss: low_prob_frac's bound", "math.log(1/3)", "1/3", "loss"),
    ("loss: weight_mean of ones", "aggregate(w)", "aggregate(torch.ones_like(w))", "loss"),
    ("pass@k: of the right ones", "1 - math.comb(n - c, k)", "1 - math.comb(c, k)", "pass_at_k"),
    # log-probabilities and sampling
    ("logps: temperature ignored", ".div_(temperature)", "", "log_prob"),
    ("logps: off by one", "h[mask[:, 1:]]", "h[mask[:, :-1]]", "log_prob"),
    ("sample: temperature ignored", "torch.softmax(logits / temperature, -1)", "torch.softmax(logits, -1)",
     "frequencies"),
    ("sample: a nucleus", "u * cdf[:, -1:]", "u * 0.95 * cdf[:, -1:]", "frequencies"),
    ("sample: greedy takes the least likely", "logits.argmax(-1", "logits.argmin(-1", "neighbours"),
    ("sample: positions count pads", "(mask.cumsum(1) - 1).clamp(min=0)",
     "torch.arange(longest, device=model.device).expand_as(ids)", "neighbours"),
    ("sample: position stands still", "position + 1", "position", "neighbours"),
    ("sample: stop token lost", "completions[i] = tokens", "completions[i] = tokens[:-1]", "neighbours"),
    ("sample: rows of the cache mixed", "cache.batch_select_indices(going)",
     "cache.batch_select_indices(going.flip(0))", "neighbours"),
    ("sample: numbers of other rows", "u[row, t, None]", "u[:len(row), t, None]", "neighbours"),
    ("sample: prompts mixed", "x.repeat_interleave(n, 0) for x", "x.repeat(n, 1) for x", "neighbours"),
    ("sample: new tokens unseen", "F.pad(mask, (0, 1), value=1)", "F.pad(mask, (0, 1), value=0)",
     "neighbours"),
    ("sample: one stop token of several", "torch.isin(token[:, 0], stops)",
     "torch.isin(token[:, 0], stops[:1])", "neighbours"),
    ("sample: one token too few", "(t + 1 == max_new_tokens)", "(t + 2 >= max_new_tokens)", "neighbours"),
    # rollout, reward, evaluation
    ("reward: bad form costs nothing", "return -3.0", "return 0.0", "cut_off"),
    ("reward: wrong as good as right", "return 3.0 if completion.correct else -0.5", "return 3.0",
     "cut_off"),
    ("rollout: truncated unnoticed", "c.truncated = c.tokens[-1] not in stops", "c.truncated = False",
     "cut_off or call"),
    ("rollout: truncated may be well formed", "verdict.formatted and not c.truncated", "verdict.formatted",
     "cut_off or call"),
    ("rollout: the wrong prompt", "for pair in zip(problems, prompts) for _ in range(n)]",
     "for pair in zip(problems, prompts[1:] + prompts[:1]) for _ in range(n)]", "greedy"),
    ("rollout: the wrong problem", "[pair for pair in zip(problems, prompts) for _ in range(n)]",
     "[pair for _ in range(n) for pair in zip(problems, prompts)]", "greedy"),
    ("rollout: seed ignored", "torch.Generator().manual_seed(seed)", "torch.Generator().manual_seed(0)",
     "seed_alone"),
    ("rollout: end token in the text", "end = None if c.truncated else -1", "end = None", "call"),
    ("rollout: an opened <think> is lost", '"<think>" if tokenizer.decode(c.prompt)',
     '"" if tokenizer.decode(c.prompt)', "real_model"),
    ("evaluation: greedy samples", "n=1, temperature=0, seed", "n=1, temperature=cfg.temperature, seed",
     "greedy"),
    ("evaluation: avg@k is pass@k", "[count / samples for count", "[float(count > 0) for count",
     "evaluation"),
    ("evaluation: standard error", "/ math.sqrt(len(each))", "/ len(each)", "evaluation"),
    # the update and the loop
    ("update: mask by pad", "[False] * len(completions[i].prompt) + completions[i].mask)",
     "[False] * len(completions[i].prompt) + [t != 0 for t in completions[i].tokens])", "the_mask"),
    ("update: advantages of others", '"advantages": advantages[chosen]',
     '"advantages": advantages[sorted(chosen)]', "the_mask"),
    ("update: scored at temperature 1", 'batch["mask"], temperature=cfg.temperature)',
     'batch["mask"], temperature=1.0)', "plain_step"),
    ("update: equal groups skipped despite beta", "if cfg.beta or advantages[i] != 0]",
     "if advantages[i] != 0]", "plain_step"),
    ("update: equal groups leave the denominator", "gradient(model, b, size(share), cfg)",
     "gradient(model, b, size([i for i in share if advantages[i] != 0]), cfg)", "plain_step"),
    ("update: ratio always 1", 'batch.get("old_logps", logps.detach())', "logps.detach()", "ratio"),
    ("update: kl to the policy itself", "batch_logps(reference, part, cfg)", "batch_logps(model, part, cfg)",
     "plain_step"),
    ("update: no weights", "weights=shaping_weights(logps, cfg)", "weights=None", "plain_step"),
    ("update: gradients pile up", "    model.zero_grad()  # an attempt", "    # an attempt", "gpu_path"),
    ("update: gradient not clipped", "cfg.grad_clip))", "1e9))", "long_gradients"),
    ("update: nan reaches the weights", 'if math.isfinite(norm) and math.isfinite(totals[-1]["loss"]):',
     "if True:", "finite"),
    ("update: one share twice", "order[u::cfg.updates]", "order[0::cfg.updates]", "learned_from"),
    ("update: clip_high ignored", "clip_high=cfg.clip_high, beta", "beta", "clips"),
    ("train: every step draws the same", "cfg.seed * 1_000_003 + step", "cfg.seed * 1_000_003",
     "training_raises"),
    ("train: evaluates too often", "step % cfg.eval_every == 0", "step % 1 == 0", "training_raises"),
    ("train: curve on the test set", "task.valid, cfg, step=step", "task.test, cfg, step=step",
     "training_raises"),
    ("train: optimizer forgotten on resume", 'optimizer.load_state_dict(state.pop("optimizer"))', "pass",
     "stops_a_run"),
    ("train: a step again on resume", 'state["step"] if state else 0', 'state["step"] - 1 if state else 0',
     "stops_a_run"),
    ("train: bad steps not counted", "bad_steps + 1 if stats", "0 if stats", "cannot_go_on"),
    ("train: nothing saved at the end", "if out and (ending or ", "if out and (",
     "stops_a_run or real_model"),
    # settings, checkpoints, main
    ("settings: low above high", "(cfg.low > cfg.high,", "(False,", "mistake"),
    ("settings: groups of one", "(cfg.group_size < 2,", "(False,", "mistake"),
    ("checkpoint: pickled code is run", '"cpu", weights_only=True', '"cpu", weights_only=False',
     "run_as_code"),
    ("checkpoint: logs not cut", 'cut_files(out, state["sizes"])', "pass", "stops_a_run"),
    ("checkpoint: a full disk is a traceback", "except Exception as error:  # no space",
     "except ZeroDivisionError as error:  # no space", "stops_a_run"),
    ("run: status 0 after a signal", "128 + received[0])", "0)", "stops_a_run"),
    ("run: test on validation problems", "assess(out, model, tokenizer, task, task.test, cfg",
     "assess(out, model, tokenizer, task, task.valid, cfg", "end_to_end"),
    ("run: no warning of plain GRPO", "ends[0] == ends[1]", "False", "effect"),
], "support/program.py": [
    ("settings: infinity", "(math.isfinite(value) and (", "(True and (", "mistake"),
    ("settings: 0 for all", "or zero and value == 0", "or value == 0", "mistake"),
    ("checkpoint: a moment without any", 'os.rename(path, f"{path}.before")', "shutil.rmtree(path)",
     "stops_a_run"),
    ("checkpoint: the last one is lost", 'for folder in (path, f"{path}.before"):', "for folder in (path,):",
     "torn"),
    ("signal: stops at once", "received.append(number)", "raise SystemExit(128 + number)", "stops_a_run"),
    ("signal: the second ignored", "        if received:\n            raise SystemExit(128 + number)",
     "        pass", "second_signal"),
    ("resume: other settings", "and given[name] != saved.get(name)]", "and False]", "resumed_run"),
], "support/models.py": [
    ("model: one end token", '{words.get("<|im_end|>"), words.get("<|endoftext|>"), tokenizer.eos_token_id}',
     "{tokenizer.eos_token_id}", "real_model"),
    ("model: with dropout",
     'module.training = checkpointing and getattr(module, "gradient_checkpointing", False)',
     "module.training = True", "plain_step"),
    ("model: no checkpointing", "checkpointing and getattr(", "False and getattr(", "test_memory"),
    ("model: weights in bfloat16", 'dtype="float32"', 'dtype="bfloat16"', "real_model"),
    ("model: logits changed after the last layer", "if not torch.allclose(", "if None is torch.allclose(",
     "cannot_be_used"),
], "support/logs.py": [
    ("evaluation: the tool's tokens counted", "mean(sum(c.mask) for c", "mean(len(c.tokens) for c", "call"),
], "support/tool.py": [
    ("tool: its words are trained on", "c.mask + [False] * len(answer)", "c.mask + [True] * len(answer)",
     "call"),
    ("tool: one turn too few", "range(max_turns - 1, -1, -1)", "range(max_turns - 2, -1, -1)", "call"),
    ("tool: </information> cut off", "return body[:most] + last", "return (body + last)[:most]", "call"),
], "tasks.py": [
    ("graded: the verifier reads the tool", "task.verify(c.response,", "task.verify(c.transcript,", "call"),
    ("kk: if", "y or not x)", "x or not y)", "puzzles"),
    ("kk: iff", "lambda x, y: x == y", "lambda x, y: x != y", "puzzles"),
    ("kk: knaves tell the truth", 'kk_truth(claim, roles) == (roles[speaker] == "knight")',
     "kk_truth(claim, roles)", "puzzles"),
    ("kk: several solutions", "while len(left[-1]) != 1:", "while not left[-1]:", "puzzles"),
    ("kk: I am a knave", 'if (person, role) != (speaker, "knave"):', "if True:", "puzzles"),
    ("kk: and for or", '"or": ("{0} or {1}"', '"or": ("{0} and {1}"', "puzzles"),
    ("kk: any puzzle in any split", "if split_of(problem.meaning) == split and key", "if key", "splits"),
    ("kk: puzzles repeat", "== split and key not in seen:", "== split:", "splits or 41"),
    ("kk: meaning of two people", "kk_table(claim, y, x), x)", "kk_table(claim, x, y), x)", "splits or 41"),
    ("kk: text after the answer", 'bool(closed) and after.strip() in ("", ".")', "bool(closed)", "labelled"),
    ("kk: faked turns",
     "c not in BLANK for c in think[1])\n                 and not FAKE_TURN.search(shown))",
     "c not in BLANK for c in think[1]))", "labelled"),
    ("kk: hidden tags", 'shown = visible(body)\n    tags = [re.sub(r"\\s", "", tag).lower() for tag in TAG',
     'shown = body\n    tags = [re.sub(r"\\s", "", tag).lower() for tag in TAG', "labelled"),
    ("kk: letters that look like others", "if not all(c.isascii() or c in letters for c in answer):",
     "if False:", "labelled"),
    ("kk: both roles for one", "if found.setdefault(who, match[2]) != match[2]:",
     "if found.setdefault(who, match[2]) == 1:", "labelled"),
    ("kk: question marks", 'r"[\\s,;.]+|and(?!\\w)"', 'r"[\\s,;.?!]+|and(?!\\w)"', "labelled"),
    ("kk: an answer in the thoughts", "Verdict(outside and read_roles(", "Verdict(read_roles(", "labelled"),
    ("kk: only one must be right", "read_roles(answer, list(roles)) == roles, formatted",
     "(read_roles(answer, list(roles)) or {0: 0}).items() <= roles.items(), formatted", "labelled"),
    ("kk: the published test in training", "train += problems[:-100]", "train += problems", "published"),
    ("tasks: longest prompt dropped", "if length <= most]", "if length < most]", "long_prompts"),
    ("arithmetic: no carry", "carry = result // 10", "carry = 0", "arithmetic"),
    ("arithmetic: wrong product", "else a * b)", "else a * b + 1)", "arithmetic"),
    ("arithmetic: any pair in any split", "while split_of(problem.meaning) != split or problem",
     "while problem", "arithmetic"),
    ("arithmetic: order makes another pair", "hash((min(a, b), max(a, b)))", "hash((a, b))", "arithmetic"),
    ("math: all golds", "and any(math_equal(answer, each)", "and all(math_equal(answer, each)", "labelled"),
    ("qa: answers in thoughts", 'ASIDE.sub(" ", body).rpartition("<answer>")', 'body.rpartition("<answer>")',
     "labelled"),
    ("qa: text after the answer", 'and body.endswith(f"<answer>{answer}</answer>")', "", "labelled"),
    ("qa: its own witness", '(?:answer|information)[^<>]*>?"', '(?:answer)[^<>]*>?"', "labelled"),
    ("qa: a part is enough", "any(forms & plain_answers(gold) for gold in golds)",
     "any(f in g for f in forms for gold in golds for g in plain_answers(gold))", "labelled"),
    ("qa: two calls read as one", 'called = opened and "</search>" not in query', "called = opened",
     "query"),
    ("qa: people in two splits", "if split_of(i % 666) == split:", "if split_of(i) == split:", "world"),
    ("tiny: warm-up on the tool's words", "parts.append((observation(tokenizer, task, said), False))",
     "parts.append((observation(tokenizer, task, said), True))", "warm_up"),
    ("tiny: warm-up of another length", "range(1, task.warmup + 1)", "range(1, task.warmup)", "warm_up"),
    ("tiny: warm-up on what it need not say", "ids.masked_fill(~own, -100)", "ids.masked_fill(own, -100)",
     "warm_up"),
    ("tiny: tokens joined with spaces", "tokenizer.decoder = decoders.Fuse()", "pass", "spell"),
], "support/threads.py": [
    ("threads: never fewer", "round((own + idle) / seconds)", "most", "threads"),
    ("threads: own time counts as another's", "(own + idle)", "idle", "threads"),
    ("threads: of all cores", "row and row[0] in usable", "row and row[0][:3] == 'cpu'", "threads"),
    ("threads: not put back", "            torch.set_num_threads(most)", "            pass", "threads"),
], "support/before_torch.py": [
    ("threads: long waits", 'os.environ.setdefault("GOMP_SPINCOUNT", "10000")', "pass", "before_torch"),
], "support/text.py": [
    ("text: the stays", "(?:a|an|the)\\s+(?=", "(?:a|an)\\s+(?=", "labelled"),
    ("text: .5 is 5", 'words = re.sub(r"(?<![^\\s-])\\.(?=\\d)", "0.", words)', "pass", "labelled"),
    ("text: accents stay", 'ACCENTS.sub("", each_normalized("NFD", text.casefold()))', "text.casefold()",
     "labelled"),
    ("text: what is not seen stays", '("Cc", "Cf", "Cs", "Mn")', '("Cs",)', "labelled"),
    ("search: length of a passage", "b * count.total() / average", "b * average / count.total()",
     "textbook"),
    ("search: passages without a word", "if scores[i] > 0]", "]", "textbook"),
], "support/math_equal.py": [
    ("math: loose", "abs(x - r) < 1e-11 * abs(r)", "abs(x - r) < 1e-3 * abs(r)", "test_math_equal"),
    ("math: short decimals of roots", "def same_decimal(x, y, least=100_000):",
     "def same_decimal(x, y, least=10):", "test_math_equal"),
    ("math: any length", "MAX_CHARS, MAX_BITS = 500, 4100", "MAX_CHARS, MAX_BITS = 10 ** 7, 4100",
     "test_math_equal"),
    ("math: other units", " or a.unit and b.unit and a.unit != b.unit:", ":", "test_math_equal"),
    ("math: percent", '{("%", ""): 100, ("", "%"): Fraction(1, 100)}', "{}", "test_math_equal"),
    ("math: lists in order", 'if a.kind != "list":', "if True:", "test_math_equal"),
    ("math: open and closed ends", '"(["[signs[0] == "≤"]', '"(["[True]', "test_math_equal"),
    ("math: errors get out", "except (ValueError, ArithmeticError,", "except (ZeroDivisionError,",
     "test_math_equal"),
], "support/final_answer.py": [
    ("answer: boxes in thoughts", 'text = response.rpartition("</think>")[2]', "text = response",
     "test_math_equal"),
    ("answer: separate boxes joined", "contents, first = [], box.start()", "pass", "test_math_equal"),
    ("answer: words beside the box", "beside = tagged and (BEFORE_BOX", "beside = False and (BEFORE_BOX",
     "test_math_equal"),
    ("answer: escaped braces", 'r"\\\\.|[{}]"', 'r"[{}]"', "test_math_equal"),
], "support/data.py": [
    ("data: test problems in training", "train = without(found, test)", "train = found", "test_data"),
    ("data: other case, other problem", '" ".join(problem.question.split()).casefold()', "problem.question",
     "test_data"),
    ("data: validation in training", "return without(train, valid), valid", "return train, valid",
     "test_data"),
    ("data: the wrong line", "enumerate(file, 1)", "enumerate(file)", "test_data"),
    ("data: 1,000 stays", '.strip().replace(",", "")', ".strip()", "test_data"),
    ("data: hotpotqa's training rows as test", '{"test": "validation"}.get(split, split)', '"train"',
     "test_data"),
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
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "--assert=plain",
                 "-k", tests, *more], plugins=[record])
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
        died = {"ran": 0, "failed": ["(died)"], "broken": []}
        return json.loads(result.read_text()) if result.exists() else died
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
    parser.add_argument("--timeout", type=float, default=180, help="seconds after which tests count as hung")
    parser.add_argument("--out", help="file for the results (default, if all are run: results/mutants.json)")
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
    # These are imported when they are named.
    transformers.Qwen2ForCausalLM, transformers.GPT2LMHeadModel, transformers.AutoModelForCausalLM
    gc.freeze()  # the forks need not look at all this for garbage

    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / f"copy{i}" for i in range(args.jobs)]
        for copy in copies:
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", "runs"))
        union = " or ".join(f"({tests})" for tests in sorted({item[-1] for item in waiting}))
        result = Path(folder) / "0.json"
        started = time.time()
        pid = start(copies[0], union, [], result)
        while not (seen := finish(pid, result, started, 20 * args.timeout)):
            time.sleep(0.05)
        if seen.get("hung") or seen["broken"] or not seen["ran"]:
            sys.exit(f"the tests of the unbroken code do not run: {seen}")
        print(f"unbroken: {seen['ran']} tests in {time.time() - started:.0f} s,",
              f"failed: {', '.join(seen['failed']) or 'none'}", flush=True)
        more = ["-x", *(f"--deselect={test}" for test in seen["failed"])]

        free, running, rows = list(range(args.jobs)), {}, []
        while waiting or running:
            while waiting and free:
                i, (file, name, old, new, tests) = free.pop(), waiting.pop(0)
                path = copies[i] / file
                path.write_text(path.read_text().replace(old, new))
                os.utime(path, (len(waiting), len(waiting)))  # no break's bytecode is taken for another's
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
