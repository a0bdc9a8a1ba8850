"""How fast grpo_sg.py is: against model.generate, a naive log-softmax, TRL, and the machine's own limits.

    python experiments/bench.py                 all of it, about 15 minutes on one core of a CPU
    python experiments/bench.py --only step     one of sampling, gpu, update, step (needs TRL), growth, limit

The models are Qwen2 with random weights: on a CPU a small one, with 2,048 and with 151,936 words, in float32
on one pinned core; on a GPU the shapes of Qwen2.5-0.5B and 1.5B, in bfloat16 over float32 weights. The sides
of a comparison take turns, in alternating order, so that a slow minute of the machine hits all of them. What
counts is the median over --rounds of a round's ratios. Every run is kept in results/bench.json.
The width was raised from 128 to 256 after a first look, of which nothing was kept, that showed less.
"""
import argparse
import copy
import functools
import importlib.util
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")  # read when torch and transformers are imported
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from tqdm import tqdm

import grpo_sg as G
import tasks
from support import graph

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SHAPES = {"2,048 words": (2048, 256, 768, 4, 4), "151,936 words": (151936, 256, 768, 4, 4)}
if CUDA:  # from the published configurations; two key-value heads everywhere
    SHAPES = {"0.5B": (151936, 896, 4864, 24, 14), "1.5B": (151936, 1536, 8960, 28, 12)}
END, P, N = 0, 8, 8              # the end token; prompts, completions of each
FIXED, MEAN, CAP = 128, 64, 512  # a fixed length; mean and cap of the long-tailed lengths


def build(shape, mean_length=None):
    """A Qwen2 with random weights that ends with probability 1 / mean_length at every token, so that lengths
    are geometric whoever samples (None: it never ends). The end token's row of the vocabulary matrix is 0:
    its logit is a bias of lm_head and nothing else."""
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **dict(zip(SHAPE, shape)), num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.1,
        bos_token_id=None, eos_token_id=END, pad_token_id=END)).to(DEVICE).eval()
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(shape[0], device=DEVICE))
    with torch.no_grad():
        # With larger embeddings, or smaller layers, a random model repeats its last token for ever.
        model.lm_head.weight.mul_(0.2)[END] = 0
        ids = torch.randint(1, shape[0], (4, 64), device=DEVICE)
        others = model(input_ids=ids).logits[..., END + 1:].logsumexp(-1).mean()
        model.lm_head.bias[END] = others - math.log(mean_length - 1) if mean_length else -30.0
    return model


def draw_prompts(vocabulary, count=P):
    """Prompts of 24 to 40 random tokens: unequal, so that every side has to pad."""
    rng = random.Random(0)
    return [[rng.randrange(2, vocabulary) for _ in range(rng.randint(24, 40))] for _ in range(count)]


def shorter(shape):
    """What lengths are divided by: a CPU takes long over 151,936 words. Ratios do depend on the lengths."""
    return 8 if shape[0] > 100_000 and not CUDA else 1


def autocast():
    """As in a run: float32 on a CPU, bfloat16 over float32 weights on a GPU."""
    return torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA)


def timed(f):
    """(seconds, result) of f(), with nothing left in the GPU's queue before or after."""
    CUDA and torch.cuda.synchronize()
    started = time.perf_counter()
    result = f()
    CUDA and torch.cuda.synchronize()
    return time.perf_counter() - started, result


def compare(name, sides, rounds, warm=1):
    """Lets the sides take turns: functions that return {"seconds", perhaps "tokens" or memory}. Prints how
    many times the first one's seconds, or seconds a token, and memory the others need; returns that and the
    runs. The first `warm` rounds fill caches and memory pools and do not count."""
    runs = {side: [] for side in sides}
    with tqdm(total=len(sides) * (rounds + warm), desc=name, leave=False) as bar:
        for i in range(rounds + warm):
            for side in list(sides)[::1 if i % 2 else -1]:
                run = sides[side]()
                runs[side] += [run] if i >= warm else []
                bar.update()
    result, (first, *others) = {"runs": runs}, runs
    for other in others:
        for what in [key for key in ("seconds", "peak", "working") if key in runs[first][0]]:
            each = sorted(b[what] / b.get("tokens", 1) * a.get("tokens", 1) / a[what]
                          for a, b in zip(runs[first], runs[other]))
            found = result[f"{other} / {first}, {what}"] = [statistics.median(each), each[0], each[-1]]
            print("  {}, {} / {}, {}: {:.2f} ({:.2f} to {:.2f})".format(name, other, first, what, *found))
    return result


# ---- 1. Sampling ----

def bench_sampling(rounds):
    """grpo_sg.sample against model.generate, in seconds a token: 8 prompts x 8, the same model, prompts and
    law of lengths, temperature 1 and nothing else. generate is asked for 8 of each by num_return_sequences,
    its own way; pads after a row's end are not counted as its tokens. Greedy tokens must be the same."""
    results = {}
    for name, shape in SHAPES.items():
        prompts = draw_prompts(shape[0])
        width = max(map(len, prompts))
        ids = torch.tensor([[END] * (width - len(p)) + p for p in prompts], device=DEVICE)
        mask = (ids != END).long()  # safe here: no prompt has the end token in it

        def ours(model, length, n=N, temperature=1.0):
            return G.sample(model, prompts, n=n, max_new_tokens=length, stop_ids=[END],
                            temperature=temperature)

        def generate(model, length, **how):
            return model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=length,
                                  **how)[:, width:].tolist()

        def run(sampler, *args, **how):
            with autocast():
                seconds, rows = timed(lambda: sampler(*args, **how))
            rows = [row[:row.index(END) + 1] if END in row else row for row in rows]
            return {"seconds": seconds, "tokens": sum(map(len, rows))}
        for law, mean, length in (("fixed", None, FIXED), ("long tail", MEAN // shorter(shape), CAP)):
            model, length = build(shape, mean), length // shorter(shape)
            if law == "fixed":  # float32 on a GPU too: in bfloat16 the best two tokens are often equal
                a, b = ours(model, length, 1, 0), generate(model, length, do_sample=False)
                share = statistics.fmean(x == y for x, y in zip(sum(a, []), sum(b, [])))
                results[f"{name}, greedy"] = {"equal": a == b, "share": share, "kinds": len(set(sum(a, [])))}
                print(f"  {name}, greedy tokens and generate's: {results[f'{name}, greedy']}")
            plain = dict(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=N)
            results[f"{name}, {law}"] = compare(f"{name}, {law}", {
                "ours": functools.partial(run, ours, model, length),
                "generate": functools.partial(run, generate, model, length, **plain)}, rounds)
    return results


def vllm_sampler(model):
    """draw(model, prompts, ...) by vLLM, with the weights that the model has now. It knows no bias of the
    vocabulary matrix, by which `build` sets lengths, so that all its rows have the greatest length."""
    import vllm
    with tempfile.TemporaryDirectory() as folder:
        model = copy.deepcopy(model)
        model.lm_head.bias = None
        model.save_pretrained(folder)
        llm = vllm.LLM(folder, skip_tokenizer_init=True, dtype="bfloat16", gpu_memory_utilization=0.4)

    def draw(model, prompts, *, n, max_new_tokens, stop_ids):
        settings = vllm.SamplingParams(n=n, max_tokens=max_new_tokens, ignore_eos=True, detokenize=False)
        done = llm.generate([{"prompt_token_ids": p} for p in prompts], settings, use_tqdm=False)
        return [row.token_ids for request in done for row in request.outputs]
    return draw


def bench_gpu(rounds):
    """support/graph.py's recorded sampler against grpo_sg.sample, model.generate and, where it is installed,
    vLLM (fixed lengths only), in seconds a token, 64 prompts x 8. On a CPU, where nothing is recorded, 4 x 8
    short completions with the small vocabulary show that it works, and what fixed shapes cost there. `off`:
    how far off a sampler's tokens are, in probability (graph.misfit)."""
    def generate(model, prompts, *, n, max_new_tokens, stop_ids):
        width = max(map(len, prompts))
        ids = torch.tensor([[END] * (width - len(p)) + p for p in prompts], device=DEVICE)
        rows = model.generate(input_ids=ids, attention_mask=(ids != END).long(), do_sample=True, top_k=0,
                              max_new_tokens=max_new_tokens, num_return_sequences=n)[:, width:].tolist()
        return [row[:row.index(END) + 1] if END in row else row for row in rows]

    def run(draw, model, prompts, length):
        with autocast():
            seconds, rows = timed(lambda: draw(model, prompts, n=N, max_new_tokens=length, stop_ids=[END]))
        return {"seconds": seconds, "tokens": sum(map(len, rows))}
    results, smaller = {}, 1 if CUDA else 16
    for name, shape in list(SHAPES.items())[:None if CUDA else 1]:
        prompts = draw_prompts(shape[0], 64 // smaller)
        for law, mean, length in (("fixed", None, 512), ("long tail", 256, 2048)):
            model = build(shape, mean and mean // smaller)
            draws = {"recorded": graph.sample, "plain": G.sample}
            with autocast():
                off = {side: graph.misfit(model, draw, prompts[0]) for side, draw in draws.items()}
            print(f"  {name}, {law}, off: {off}")
            draws["generate"] = generate
            if law == "fixed" and importlib.util.find_spec("vllm"):
                draws["vLLM"] = vllm_sampler(model)
            sides = {side: functools.partial(run, draw, model, prompts, length // smaller)
                     for side, draw in draws.items()}
            results[f"{name}, {law}"] = {"off": off, **compare(f"{name}, {law}", sides, rounds)}
    return results


# ---- 2. Log-probabilities and backward ----

def naive_logps(model, ids, mask):
    """token_logps as one would write it down first: logits everywhere, a full log-softmax, a gather."""
    logps = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
    return F.pad(logps.gather(-1, ids[:, 1:, None])[..., 0], (1, 0)).masked_fill(~mask, 0.0)


def backward(side, model, rows):
    """The gradients of `rows` long-tailed completions, in one batch or in a run's sorted micro-batches."""
    rng, vocabulary = random.Random(1), model.config.vocab_size
    lengths = [min(CAP, 1 + int(math.log(1 - rng.random()) / math.log(1 - 1 / MEAN))) for _ in range(rows)]
    completions = [G.Completion(None, prompt, [rng.randrange(vocabulary) for _ in range(length)],
                                mask=[True] * length)
                   for prompt, length in zip(draw_prompts(vocabulary, rows), lengths)]
    cfg = G.Config(tokens_per_micro_batch=10 ** 9 if side == "naive, one batch" else 512)
    advantages = torch.tensor([(-1.0) ** i for i in range(rows)])
    for micro in G.micro_batches(completions, advantages, list(range(rows)), cfg, DEVICE):
        with autocast():
            logps = (G.token_logps if side == "ours" else naive_logps)(model, micro["ids"], micro["mask"])
        G.grpo_sg_loss(logps, logps.detach(), micro["advantages"], micro["mask"],
                       denominator=sum(lengths))[0].backward()


def peak_memory():
    """The most bytes held so far: by tensors on a GPU, else by the process, Python and weights included."""
    if CUDA:
        return torch.cuda.max_memory_allocated()
    try:  # ru_maxrss would do, had a child on Linux not inherited its parent's
        status = open("/proc/self/status").read()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def child(name, side, rows):
    """One pass in a process of its own, whose peak is then this pass's. One short row goes before it."""
    model = build(SHAPES[name])
    backward(side, model, 1)
    before = peak_memory()
    seconds, _ = timed(lambda: backward(side, model, rows))
    print(json.dumps({"seconds": seconds, "peak": peak_memory(), "working": peak_memory() - before}))


def bench_update(rounds):
    """token_logps, loss and backward in a run's micro-batches of at most 512 tokens against a naive
    log-softmax, on the same completions in the same micro-batches (what token_logps alone buys) and in one
    batch (what both buy: the more, the more rows). Each run is a fresh process; peak is all its memory,
    working what this pass added to it. Gradients must be equal."""
    results = {}
    for name, shape in SHAPES.items():
        rows, model, gradients = 8 if shorter(shape) > 1 else 32, build(shape), []
        for side in ("ours", "naive, one batch"):
            model.zero_grad()
            backward(side, model, 4)
            gradients.append([p.grad for p in model.parameters()])
        error = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*gradients))
        print(f"  {name}, largest difference of a gradient, as a part of its tensor's largest: {error:.1e}")
        del model, gradients
        CUDA and torch.cuda.empty_cache()  # room for the processes

        def run(side):
            command = [sys.executable, __file__, "--child", json.dumps([name, side, rows])]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            return json.loads(done.stdout.splitlines()[-1])
        sides = {side: functools.partial(run, side) for side in ("ours", "naive", "naive, one batch")}
        results[name] = {"gradient_error": error, "rows": rows, **compare(name, sides, rounds, warm=0)}
    return results


# ---- 3. A whole step against TRL ----

def bench_step(rounds):
    """A step from prompts to changed weights: sample 8 x 8 long-tailed completions, verify, update; against
    TRL's GRPOTrainer with the same model, tokenizer, prompts, reward, updates, precision, law of lengths
    (halved on a CPU), optimizer and loss (mean over tokens, plain k3), and no checkpointing. TRL has 8 rows
    a micro-batch, as ours on average, or an update in one batch. Timed is the inside of a step: what a start
    costs is left out. Seconds a token are compared, as lengths are drawn anew. Not the same: TRL computes
    the entropy and logs more; ours weighs tokens, and skips groups of equal rewards (1 in 128 by chance)."""
    if importlib.util.find_spec("trl") is None:
        return print("  step: skipped, TRL is not installed (pip install trl)")
    import datasets
    import trl
    shape, scale = next(iter(SHAPES.values())), 1 if CUDA else 2
    words = {"<|im_end|>": END, **{f"w{i}": i for i in range(1, shape[0])}}
    raw = Tokenizer(models.WordLevel(words, unk_token="w1"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>",
                                                     pad_token="<|im_end|>")
    prompts = draw_prompts(shape[0])
    questions = [tokenizer.decode(p) for p in prompts]

    def verify(text, answer):  # as good as a coin, so that hardly a group has equal rewards
        return tasks.Verdict(len(text.split()) % 2 == 0, True)
    task = tasks.Task("", "", [tasks.Problem(q, None) for q in questions], [], [], verify, 0.0)

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 0:  # a run is one step of ours: all updates on one rollout
                self.started = time.perf_counter()

        def on_step_end(self, args, state, control, **_):
            CUDA and torch.cuda.synchronize()
            self.seconds = time.perf_counter() - self.started

    def ours(model, reference, cfg):
        row, = G.train(model, tokenizer, task, cfg, reference=reference)
        cfg.seed += 1  # other completions in the next round
        return {"seconds": row["seconds"], "tokens": row["completion_tokens"] * P * N}

    def theirs(model, folder, cfg, rows):
        """A function that runs one step of a GRPOTrainer with `rows` rows in a micro-batch."""
        clock, drawn = Clock(), []
        model.config._name_or_path = folder  # whence TRL reads its reference model

        def reward(completions, completion_ids, **_):
            drawn[:] = map(len, completion_ids)
            return [G.reward(G.Completion(None, [], ids, [], correct=verify(text, None).correct,
                                          formatted=ids[-1] == END))
                    for text, ids in zip(completions, completion_ids)]
        args = trl.GRPOConfig(
            output_dir=folder, max_steps=cfg.updates, per_device_train_batch_size=rows,
            gradient_accumulation_steps=P * N // cfg.updates // rows, generation_batch_size=P * N,
            num_generations=N, max_completion_length=cfg.max_new_tokens, temperature=1.0, beta=cfg.beta,
            loss_type="dapo", epsilon=0.2, epsilon_high=0.24, use_bias_correction_kl=False,
            learning_rate=1e-6, lr_scheduler_type="constant", use_cpu=not CUDA, bf16=CUDA,
            gradient_checkpointing=False,  # TRL has it on by default
            save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True)
        trainer = trl.GRPOTrainer(model, reward, args, datasets.Dataset.from_dict({"prompt": questions}),
                                  processing_class=tokenizer, callbacks=[clock])
        trainer.remove_callback(transformers.PrinterCallback)
        if cfg.beta:  # a Qwen2 read from a folder has no bias on its lm_head
            trainer.ref_model.lm_head.bias = copy.deepcopy(model.lm_head.bias).requires_grad_(False)
        return lambda: trainer.train() and {"seconds": clock.seconds, "tokens": sum(drawn)}
    results, mean_row = {"trl": trl.__version__}, MEAN // scale + statistics.fmean(map(len, prompts))
    G.tqdm = functools.partial(tqdm, disable=True)  # the bar of the comparison is enough
    for beta, updates in ((0.0, 1), (0.04, 2)):
        cfg = G.Config(steps=1, prompts=P, group_size=N, updates=updates, beta=beta, temperature=1.0,
                       max_new_tokens=CAP // scale, tokens_per_micro_batch=round(8 * mean_row))
        model = build(shape, MEAN // scale)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            results[f"beta {beta}, updates {updates}"] = compare(f"step, beta {beta}, updates {updates}", {
                "ours": functools.partial(ours, copy.deepcopy(model), model, cfg),
                "TRL, 8 rows": theirs(copy.deepcopy(model), folder, cfg, 8),
                "TRL, one batch": theirs(copy.deepcopy(model), folder, cfg, P * N // updates)}, rounds)
    return results


# ---- 4. Growth ----

def sample_and_update(model, n, length):
    """Seconds to sample 8 x n completions of `length` tokens, of one update on them, and of both."""
    prompts, cfg = draw_prompts(model.config.vocab_size), G.Config(updates=1, temperature=1.0)
    with autocast():
        sampling, rows = timed(lambda: G.sample(model, prompts, n=n, max_new_tokens=length, stop_ids=[END]))
    completions = [G.Completion(None, prompts[i // n], row, [True] * len(row)) for i, row in enumerate(rows)]
    advantages = torch.tensor([(-1.0) ** i for i in range(len(rows))])
    optimizer = torch.optim.AdamW(model.parameters(), cfg.lr, weight_decay=0, fused=True)
    update, _ = timed(lambda: G.update(model, optimizer, completions, advantages, cfg))
    return {"seconds": sampling + update, "sampling": sampling, "update": update}


def bench_growth(rounds):
    """How a step's time grows with group size, length and vocabulary, each doubled twice from one start: the
    exponent b of seconds ~ size ** b, fitted to medians. 1 is proportional; below 1, a part of the work does
    not grow (a prompt is read once for a group, the layers do not know the vocabulary)."""
    start, shape = {"group size": 4, "length": 48, "vocabulary": 2048}, next(iter(SHAPES.values()))

    def run(what, factor):
        size = {**start, what: start[what] * factor}
        return sample_and_update(build((size["vocabulary"], *shape[1:])), size["group size"], size["length"])
    results = {}
    for what in start:
        runs = compare(what, {f"x {k}": functools.partial(run, what, k) for k in (1, 2, 4)}, rounds)["runs"]
        results[what] = {"runs": runs}
        for key in ("sampling", "update", "seconds"):
            y = [math.log2(statistics.median(run[key] for run in side)) for side in runs.values()]
            results[what][f"exponent, {key}"] = (y[2] - y[0]) / 2  # the least squares line through 3 points
            print(f"  growth with {what}, exponent of {key}: {(y[2] - y[0]) / 2:.2f}")
    return results


# ---- 5. The limit ----

def least_work(model, length):
    """(FLOPs of sampling, FLOPs of an update, bytes that decoding reads) for 8 x 8 completions, by count:
    2 FLOPs for each weight and token, and for each pair of positions in attention; the vocabulary only for
    completion tokens; three times that with a backward pass. Decoding reads all weights, as they are
    stored, for every token, and each row's keys and values so far."""
    c, prompts = model.config, [len(p) for p in draw_prompts(model.config.vocab_size)]
    layers = sum(p.numel() for name, p in model.named_parameters() if "layers." in name and p.dim() == 2)
    head, tokens = c.vocab_size * c.hidden_size, P * N * length
    in_prompts = sum(p ** 2 / 2 for p in prompts)  # pairs of a position and one that it attends to
    in_rows = N * sum((p + length) ** 2 / 2 for p in prompts)
    decoding = in_rows - N * in_prompts
    pair = 4 * c.num_hidden_layers * c.hidden_size  # FLOPs: a product for the score, one for the value
    sampling = 2 * layers * (sum(prompts) + tokens) + 2 * head * tokens + pair * (in_prompts + decoding)
    update = 3 * (2 * layers * (N * sum(prompts) + tokens) + 2 * head * tokens + pair * in_rows)
    position = 2 * c.num_hidden_layers * c.hidden_size * c.num_key_value_heads // c.num_attention_heads
    return sampling, update, 4 * length * (layers + head) + (2 if CUDA else 4) * position * decoding


def bench_limit(rounds):
    """A step of 8 x 8 completions of a fixed length against the least that it must do: its FLOPs at the rate
    of a large matrix product here, and on a GPU decoding's bytes at the bandwidth of a large sum. Who does
    the same arithmetic cannot do better than 100 %."""
    size, dtype = (8192, torch.bfloat16) if CUDA else (1024, torch.float32)
    a = torch.randn(size, size, device=DEVICE, dtype=dtype)
    big = torch.zeros(2 ** (30 if CUDA else 26), device=DEVICE)  # 4 GiB or 256 MiB: more than a cache holds
    flops = 2 * size ** 3 / min(timed(lambda: a @ a)[0] for _ in range(10))
    bandwidth = 2 * big.nbytes / min(timed(lambda: big.add_(1))[0] for _ in range(10))  # read and written
    print(f"  matrix product {flops / 1e9:.0f} GFLOP/s, memory {bandwidth / 1e9:.0f} GB/s")
    del a, big
    results = {"flops": flops, "bandwidth": bandwidth}
    for name, shape in SHAPES.items():
        model, length = build(shape), FIXED // shorter(shape)
        runs = compare(name, {"step": lambda: sample_and_update(model, N, length)}, rounds)["runs"]["step"]
        took = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        sampling, update, read = least_work(model, length)
        share = {"sampling": sampling / flops / took["sampling"], "update": update / flops / took["update"],
                 "step": (sampling + update) / flops / took["seconds"],
                 **({"sampling, by bandwidth": read / bandwidth / took["sampling"]} if CUDA else {})}
        results[name] = {"share of the limit": share, "runs": runs, "peak": peak_memory()}
        print(f"  {name}: {took['sampling'] / took['seconds']:.0%} of a step is sampling; of the limit: "
              + ", ".join(f"{key} {value:.0%}" for key, value in share.items()))
    return results


def main():
    parts = {"sampling": bench_sampling, "gpu": bench_gpu, "update": bench_update, "step": bench_step,
             "growth": bench_growth, "limit": bench_limit}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="parts to run")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side that count")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)  # bench_update's own processes
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not CUDA and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # one core, always the same
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.child:
        return child(*args.child)
    path = os.path.join(HERE, "results", "bench.json")
    results = json.load(open(path)) if os.path.exists(path) else {}
    for part in args.only:
        started, load = time.time(), os.getloadavg()
        print(f"{part}; load of the machine {load[0]:.2f}")
        found = parts[part](args.rounds)
        print(f"  {time.time() - started:.0f} s; load now {os.getloadavg()[0]:.2f}")
        if found:  # in place of this part's last result
            results.setdefault(torch.cuda.get_device_name() if CUDA else "cpu", {})[part] = {
                "torch": torch.__version__, "transformers": transformers.__version__, "rounds": args.rounds,
                "cores": os.cpu_count(), "load": [load[0], os.getloadavg()[0]], **found}
            with open(path, "w") as file:
                json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
