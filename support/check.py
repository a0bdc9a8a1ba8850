"""Check a model and a task in a minute or two, before hours are spent on a run, or after one that
learned nothing.

    python -m support.check --model Qwen/Qwen2.5-0.5B --task kk

Shows what the model reads, warns of rewards that pay for the wrong thing, and measures on training
problems whether there is something to learn from and how long a run takes. The flags are those of
grpo_sg.py. Nothing is trained or written.
"""
import argparse
import datetime
import operator
import time
from statistics import fmean as mean

import grpo_sg
import torch

PROBLEMS, SAMPLES = 16, 4
MARKS = ("\\boxed{", "<answer>")  # an answer begins with one of them
say = grpo_sg.say


# ---- What the model reads, and where it stops ----

def describe_prompt(policy, task):
    """Print the first problem as the model reads it, and which tokens end a completion."""
    tokenizer = policy.tokenizer
    problem = task.train[0]
    longest = max(len(problem.prompt) for problem in task.train)
    say(f"a prompt, {len(problem.prompt)} tokens (the longest has {longest}):\n"
        f"{tokenizer.decode(problem.prompt)}\nits answer: {problem.answer}")
    system = ("it has the system prompt" if task.system else "the task has no system prompt, but "
              "a template may add its own")
    opening = f"the response begins with {problem.opening}" if problem.opening else ""
    say("; ".join(filter(None, [f"chat template: {'yes' if tokenizer.chat_template else 'none'}",
                                system, opening])))
    stops = [f"{tokenizer.decode([i])} ({i})" for i in sorted(policy.stop_ids)]
    say(f"a completion ends with {' or '.join(stops)}")


# ---- Does the model compute what training needs? ----

@torch.no_grad()
def compare_passes(model, prompt, tokens):
    """Compare greedy sampling and token_logps with a plain forward pass.

    Args:
        model: the model.
        prompt, tokens: token ids of a prompt, and of its greedy completion.

    Raises:
        SystemExit: a sampled token is not the most likely one, or token_logps differs, by more
            than a hundredth of the largest logit; or the model is not causal.
    """
    ids = torch.tensor([prompt + tokens], device=model.device)
    mask = torch.arange(ids.shape[1], device=model.device)[None] >= len(prompt)
    logits = model(input_ids=ids).logits[0].float()
    most = logits.abs().max()
    if not most.isfinite():
        raise SystemExit("error: its logits are not finite: check its parameters for NaN")
    first = model(input_ids=ids[:, :1]).logits[0, 0].float()
    if (first - logits[0]).abs().max() > 0.01 * most:
        raise SystemExit("error: not a causal model: a token's logits depend on later tokens")
    logits = logits[len(prompt) - 1:-1]
    drawn = ids[0, len(prompt):, None]
    behind = logits.amax(-1) - logits.gather(1, drawn)[:, 0]
    logps = logits.log_softmax(-1).gather(1, drawn)[:, 0]
    off = (grpo_sg.token_logps(model, ids, mask)[0, len(prompt):] - logps).abs()
    if not (torch.cat([behind, off]) <= 0.01 * most).all():
        raise SystemExit("error: sampling or token_logps differs from a plain forward pass: its "
                         "cache, padding or positions work differently from most models'")


def check_passes(model, prompt):
    """Sample four tokens after a prompt, and after its second half: so padding is tried as well."""
    prompts = [prompt, prompt[len(prompt) // 2:]]
    drawn = grpo_sg.sample(model, prompts, max_new_tokens=4, stop_ids=[], temperature=0)
    for prompt, tokens in zip(prompts, drawn):
        compare_passes(model, prompt, tokens)
    say("sampling and token_logps agree with a plain forward pass")


# ---- Does the reward pay for answers without reasoning? ----

FORMS = [("\\boxed{", "}"), ("<think> Hm. </think> <answer> ", " </answer>"), ("", "")]
OFTEN = 0.25   # verify accepts too much if it accepts such responses more often
GIVE_UP = 0.1  # of the reward between a wrong and a correct answer: giving up may earn this much
FILLER = "so " * 333
CALLS = 20     # of verify and reward with the same response


def write_answer(problem, other):
    """Write the answer of another problem as one to this problem. (Puzzles differ in names.)"""
    answer = other.answer
    if isinstance(answer, dict):
        roles = zip(problem.answer, answer.values())
        return ", ".join(f"{name} is a {role}" for name, role in roles)
    return str(answer[0] if isinstance(answer, list) and answer else answer)


def score(task, problem, response):
    """Return (whether it is correct, the reward) of a response, with a token a character."""
    c = grpo_sg.Completion(problem, [], transcript=response, response=response)
    c.add([0] * max(1, len(response)), own=True)
    grpo_sg.judge(c, task)
    return c.solved, c.reward


def check_repeats(task):
    """Return a warning, in a list, if a response isn't graded the same in each call."""
    problem = task.test[0]
    answers = [write_answer(problem, one) for one in (problem, task.train[0])]
    for response in (problem.solution, *(one.join(form) for form in FORMS for one in answers)):
        verdicts, rewards = zip(*(score(task, problem, response) for _ in range(CALLS)))
        if min(verdicts) < max(verdicts) or min(rewards) < max(rewards):
            what = "reward" if min(verdicts) == max(verdicts) else "verdict"
            return [f"warning: the {what} of the same response isn't the same from call to call "
                    f"({response!r:.60} earns {min(rewards):+.2f} to {max(rewards):+.2f}), so RL "
                    "would reward luck: let it depend on the completion alone"]
    return []


def find_form(task):
    """Return what stands before and after an answer so that verify accepts it; None if neither a
    solution shows it nor one of FORMS fits."""
    problem = task.train[0]
    answer = write_answer(problem, problem)
    shown = answer and answer in problem.solution
    before, _, after = problem.solution.rpartition(answer) if shown else ("", "", "")
    for form in [(before, after)] * bool(shown) + FORMS:
        if score(task, problem, answer.join(form))[0]:
            return form


def accepts_two(task, problem, right, wrong, form):
    """Return whether verify accepts a wrong answer next to the right one, whichever comes first. (A
    verifier that reads one of them, such as the last, accepts only one order.)"""
    orders = (right, wrong), (wrong, right)
    together = [", ".join(order).join(form) for order in orders]
    apart = ["\n".join(answer.join(form) for answer in order) for order in orders]
    return any(all(score(task, problem, response)[0] for response in pair)
               for pair in (together, apart))


def score_long(task, problem, text, filler):
    """Return the `score` of a response with filler before it or after its first space, where it is
    paid better."""
    longer = filler + text, text.replace(" ", f" {filler}", 1)
    return max((score(task, problem, one) for one in longer), key=operator.itemgetter(1))


def score_answers(task, form):
    """Return {kind of response: its (correct, reward) in each test problem}. "two" has no
    reward."""
    answers = {write_answer(task.train[0], problem): problem for problem in task.train}
    all_answers = list(answers.values())[:1000]
    scores = {name: [] for name in ("right", "wrong", "long", "longer", "two", "every", "none")}
    for problem, other in zip(task.test, task.train[1:] + task.train[:1]):
        right, wrong = (write_answer(problem, one) for one in (problem, other))
        for name, answer in (("right", right), ("wrong", wrong), ("none", "")):
            scores[name].append(score(task, problem, answer.join(form)))
        if not scores["wrong"][-1][0]:
            every = ", ".join(write_answer(problem, one) for one in all_answers)
            scores["every"].append(score(task, problem, every.join(form)))
            for name, filler in (("long", FILLER), ("longer", 2 * FILLER)):
                scores[name].append(score_long(task, problem, wrong.join(form), filler))
            scores["two"].append((accepts_two(task, problem, right, wrong, form), 0.0))
    return scores


def check_reward(task):
    """Return what is wrong with verify and reward: lines about responses to the test problems that
    earn much without reasoning, or about what could not be tried."""
    if lines := check_repeats(task):
        return lines  # because what follows would be luck as well
    form = find_form(task)
    if not form:
        answer = write_answer(task.train[0], task.train[0])
        return [f"the reward was not tried: verify accepts the first answer, {answer!r:.60}, in no "
                "form that this check knows, so grade some responses yourself"]
    scores = score_answers(task, form)
    lines = []
    if refused := sum(not correct for correct, _ in scores["right"]):
        lines.append(f"warning: verify refuses the answers of {refused} of {len(task.test)} test "
                     f"problems, when they are written as {'...'.join(form)!r:.60}")
    listed, two = (mean([correct for correct, _ in scores[name]] or [0])
                   for name in ("every", "two"))
    if listed > OFTEN:
        lines.append("warning: verify accepts a response that lists all answers in "
                     f"{listed:.0%} of the test problems, and RL can learn to list them: "
                     "let verify read only one answer")
    elif two > OFTEN:
        lines.append("warning: verify accepts a wrong answer next to the right one in "
                     f"{two:.0%} of the test problems, whichever comes first, and RL can learn to "
                     "guess twice: let verify read only one answer")
    return lines + check_payments(scores)


def check_payments(scores):
    """Return lines about rewards that do not favor right answers. scores: of `score_answers`."""
    if not scores["long"]:
        return ["warning: verify accepts the answers of other problems, so wrong answers count as "
                "right, or all answers are equal: the reward of a wrong answer was not tried"]
    right, long, longer, none = (mean(reward for _, reward in scores[name])
                                 for name in ("right", "long", "longer", "none"))
    wrong = mean(reward for correct, reward in scores["wrong"] if not correct)
    lines = []
    if longer > long and longer > right:
        lines.append(f"warning: a wrong answer with {2 * len(FILLER)} characters of filler earns "
                     f"{longer:+.2f}, and a right answer {right:+.2f}, so RL can learn to write "
                     "long texts: let length earn nothing")
    if wrong >= right:
        lines.append(f"warning: a wrong answer earns {wrong:+.2f}, and a right one {right:+.2f}, "
                     "but wrong answers must earn less: does the reward depend on "
                     "completion.correct, and is its sign right?")
    elif none - wrong > GIVE_UP * (right - wrong):
        lines.append(f"warning: a response without an answer earns {none:+.2f}, and a wrong answer "
                     f"{wrong:+.2f}, so a policy that is seldom correct earns more by giving up: "
                     "pay both the same")
    return lines


# ---- Is there something to learn from? ----

def begins_answer(c, task):
    """Return whether the completion has the beginning of an answer, such as \\boxed{; None if
    neither the instructions nor a solution show one."""
    asked = task.system + task.train[0].solution
    marks = [mark for mark in MARKS if mark in asked]
    return any(mark in c.transcript for mark in marks) if marks else None


def repeats_itself(c):
    """Return whether the completion said the same again and again until it was cut off."""
    return c.truncated and c.transcript.count(c.transcript[-20:]) > 3


def describe_rates(row):
    """Return the rates that decide whether there is something to learn from, in words."""
    formed, cut, equal = (row[f"{name}@{SAMPLES}"]
                          for name in ("format_rate", "truncated", "equal_groups"))
    return (f"{SAMPLES} samples per problem: {formed:.0%} have the correct format, {cut:.0%} are "
            f"truncated; {equal:.0%} of the groups give no gradient, because all their rewards are "
            "equal")


def advise(row, completions, task, cfg):
    """Return one piece of advice. row: see grpo_sg.average_samples."""
    formed, cut, correct, equal = (
        row[f"{name}@{SAMPLES}"] for name in ("format_rate", "truncated", "avg", "equal_groups"))
    if formed < 0.05 and cut > 0.9 and mean(map(repeats_itself, completions)) < 0.5:
        begun = any(begins_answer(c, task) for c in completions)
        where = "in their answer" if begun else "before an answer begins"
        return (f"completions are cut off {where}: raise --max_new_tokens, now "
                f"{cfg.max_new_tokens}, and check again")
    if formed < 0.05:
        return ("completions do not have the format that is asked for, and more tokens would not "
                "help: show the format by an example in --system, take a larger Instruct model, or "
                "fine-tune this one on worked solutions (a cold start): python -m support.tiny "
                f"{cfg.task} --model {cfg.model}")
    if cut > 0.5 and formed > 0.8 * (1 - cut):
        return ("most completions are truncated, and nearly all others have the correct format: "
                "raise --max_new_tokens")
    if correct == 0 and formed < 0.8:
        return ("no completion is correct yet: the model learns the format first, and then "
                "perhaps the task")
    if correct == 0:
        return ("no completion is correct, so there is little to learn from: use easier problems "
                "(kk: --people 2 3) or a better model")
    if equal > 0.9 and correct > 0.5:
        return "the model solves nearly all problems: use harder ones (kk: --people 5 6 7)"
    if equal > 0.9:
        return ("the model solves too few problems: use easier ones (kk: --people 2 3), or raise "
                "--group_size")
    return "there is something to learn from: start a run with these flags"


# ---- How long does it take? ----

def measure_update(policy, completions, cfg):
    """Return the tokens a second of a forward and a backward pass, of prompts and completions."""
    longest = max(c.length() for c in completions)
    rows = max(1, cfg.tokens_per_micro_batch // longest)
    batch = grpo_sg.make_batch(completions[:rows], policy.model.device)
    started = time.time()
    grpo_sg.compute_logps(policy.model, batch, cfg).sum().backward()
    gradients = [p.grad for p in policy.model.parameters() if p.grad is not None]
    float(gradients[0].sum())  # waits for the GPU
    return batch.ids.numel() / (time.time() - started)


def estimate_time(policy, task, completions, seconds, cfg):
    """Say what a step and the run will take. seconds: of sampling the completions."""
    seconds /= len(completions)  # of sampling one
    per_step = min(cfg.prompts, len(task.train)) * cfg.group_size
    tokens = per_step * mean(c.length() for c in completions)
    say("timing an update")
    measure_update(policy, completions, cfg)  # the first pass is slower
    update = tokens / measure_update(policy, completions, cfg)
    update *= 1 + (cfg.updates - 1) / cfg.updates / 3  # old_logps: forward passes only
    step = per_step * seconds + update
    tests = 2 * len(task.test) * (1 + cfg.eval_samples)
    validations = cfg.steps // cfg.eval_every * len(task.valid)
    total = cfg.steps * step + (tests + validations) * seconds
    step, total = (datetime.timedelta(seconds=round(x)) for x in (step, total))
    say(f"{mean(sum(c.mask) for c in completions) / seconds:,.0f} tokens sampled a second with "
        f"{len(completions)} completions at once. At this speed a step of {per_step} completions "
        f"takes {step}, and {cfg.steps} steps with their tests {total}; less if more are "
        "sampled at once, or if groups have equal rewards")


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m support.check", usage="%(prog)s [--flag value ...]", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        epilog="The flags: python grpo_sg.py --help")
    _, flags = parser.parse_known_args(argv)
    with grpo_sg.errors_in_one_line():
        cfg = grpo_sg.read_settings(flags)
        policy, task = grpo_sg.load(cfg)
        describe_prompt(policy, task)
        check_passes(policy.model, task.train[0].prompt)
        say(f"the best constant answer is correct in {task.floor:.0%} of the test problems: a "
            "policy that is no better has learned nothing")
        for line in (lines := check_reward(task)):
            say(line)
        started = time.time()
        completions = grpo_sg.rollout(policy, task, task.train[:PROBLEMS], cfg, n=SAMPLES,
                                      temperature=cfg.temperature, seed=cfg.seed)
        seconds = time.time() - started
        say(f"a completion:\n{completions[0].transcript[:1000]}")
        row = grpo_sg.average_samples(completions, SAMPLES)
        say(describe_rates(row))
        begun = [begins_answer(c, task) for c in completions]
        begin = "" if None in begun else f"{mean(begun):.0%} begin an answer, "
        say(f"{begin}{mean(map(repeats_itself, completions)):.0%} repeat themselves until they are "
            f"cut off, {row[f'avg@{SAMPLES}']:.0%} are correct")
        estimate_time(policy, task, completions, seconds, cfg)
        warned = any(line.startswith("warning") for line in lines)
        say("fix first what the warnings say, and then check again" if warned else
            advise(row, completions, task, cfg))


if __name__ == "__main__":
    main()
