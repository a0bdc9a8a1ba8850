"""Examine a reader's verifier: by hostile responses, and by a policy that learns from its rewards.

    python -m lesson.grade verify     lesson/verifier.py says what to write
"""
import contextlib
import functools
import io
import itertools
import os
import shutil
import signal
from collections import Counter
from statistics import fmean, pstdev

import grpo_sg
from lesson import wrong_reward
from support import tiny

MODEL = os.path.join(tiny.PRETRAINED, "wrong_reward")
SECONDS = 5  # for a verdict or a reward; most take less than a thousandth of one


def list_responses(question, answer):
    """Return {what a response is: the response}, of wrong ones."""
    return {
        "a copy of the question": question,
        "an empty response": "",
        "the letters in the opposite order": answer[::-1],
        "an answer with two letters exchanged": answer[1] + answer[0] + answer[2:],
        "other letters, in order": "abcde" if answer != "abcde" else "abcdf",
        "the answer without its last letter": answer[:-1],
        "the answer with its last letter doubled": answer + answer[-1],
        "the answer with its first letter doubled": answer[0] + answer,
        "five times the first letter": answer[0] * 5,
        "an answer in capitals": answer.upper(),
        "the question and then the answer": question + answer,
        "two answers": f"{answer} {answer[::-1]}",
        "all orders": " ".join(map("".join, itertools.permutations(question))),
        "a sentence that denies the answer": f"It is not {answer}, for sure.",
        "a turn of the user that it made up": f"{question}\nuser: And sorted?\nassistant: {answer}",
        "a program that would sort": f"''.join(sorted({question!r}))",
        "a pattern that matches everything": ".*",
        "an answer with an invisible character": answer[:2] + "\u200b" + answer[2:],
        "the answer and 100,000 letters": answer + "a" * 100_000}


def call_in_time(function, given, *others):
    """Call the reader's verify or reward. Raises SystemExit if it takes more than SECONDS."""
    def stop(number, frame):
        raise SystemExit(
            f"error: your {function.__name__} has not returned after {SECONDS} seconds, given "
            f"{given!r:.80}: a regular expression with a repeat in a repeat, such as (a+)+, takes "
            "twice as long for each further letter")

    if not hasattr(signal, "SIGALRM"):  # on Windows
        return function(given, *others)
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        return function(given, *others)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pay(mine, problem, response):
    """Return a completion with this response, graded by the reader's functions."""
    c = grpo_sg.Completion(problem, [], response=response)
    c.correct, c.formatted = call_in_time(mine.verify, response, problem.answer)
    c.reward = float(call_in_time(mine.reward, c))
    return c


def interrogate(mine, problems):
    """Return (what the verifier does wrong, a line for each kind; the number of kinds)."""
    found = {}
    for problem in problems:
        right = pay(mine, problem, problem.answer)
        if not right.correct:
            found["right"] = f"calls the correct answer wrong: {problem.answer!r}"
        responses = list_responses(problem.question, problem.answer)
        for kind, response in responses.items():
            c = pay(mine, problem, response)
            if response == problem.answer:  # the question is in order
                continue
            elif c.reward >= right.reward:
                found[kind] = f"pays {c.reward:g} for {kind}: {response[:40]!r}"
            elif c.correct:
                found[kind] = f"calls {kind} correct: {response[:40]!r}"
    return list(found.values()), 1 + len(responses)


def train(mine):
    """Train the tiny model on the reader's rewards. Returns the completions of each step."""
    cfg = grpo_sg.Config(**{**tiny.TINY, **wrong_reward.SETTINGS, "task": wrong_reward.__file__,
                            "model": MODEL})
    with contextlib.redirect_stdout(io.StringIO()):  # their lines are about a run of your own
        if not os.path.isfile(os.path.join(MODEL, "settings.json")):  # which is written last
            shutil.rmtree(MODEL, ignore_errors=True)
            tiny.main([wrong_reward.__file__, f"--out={MODEL}"])
        policy, task = grpo_sg.load(cfg)
    task = task._replace(verify=functools.partial(call_in_time, mine.verify),
                         reward=functools.partial(call_in_time, mine.reward))
    return [completions for _, completions in grpo_sg.train(policy, task, cfg)]


def is_right(c):
    """Return whether a completion is correct by the project's own rule."""
    return c.response == c.problem.answer


GOOD = "they rise together"


def tell(steps):
    """Say what the policy learned, from the completions of each step."""
    first, last = steps[0], sum(steps[-5:], [])
    paid, reward = (fmean(c.reward for c in part) for part in (first, last))
    knew, accuracy = (fmean(map(is_right, part)) for part in (first, last))
    line = f"reward {paid:.3g} -> {reward:.3g}, accuracy {knew:.2f} -> {accuracy:.2f}: "
    # The reader chose the scale of the rewards, so their spread says what a small change is.
    if reward <= paid + 0.2 * pstdev(c.reward for c in first):
        return f"{line}the policy learned nothing from your rewards"
    if accuracy > knew + 0.1 and fmean(c.solved for c in last) < accuracy + 0.1:
        return line + GOOD
    wrong = Counter((c.problem.question, c.response, c.reward) for c in last if not is_right(c))
    question, response, reward = wrong.most_common(1)[0][0]
    return (f"{line}the policy found a hole. Its most frequent completion is {response!r}, to the "
            f"question {question!r}, and your verifier pays it {reward:g}")


def main(mine):
    """Print what both parts of the examination find. Returns whether it is nothing. mine: has the
    reader's verify and reward."""
    test = wrong_reward.make_task(grpo_sg.Config(**wrong_reward.SETTINGS)).test
    try:
        found, kinds = interrogate(mine, test[:5])
        print(f"{kinds - len(found)} of {kinds} kinds of responses are graded as they should be")
        for line in found:
            print(f"    your verifier {line}")
        print("Now a tiny model learns from your rewards. The first time it must itself be made, "
              "by supervised fine-tuning on copies and sorted words.", flush=True)
        told = tell(train(mine))
        print(told)
        return not found and told.endswith(GOOD)
    except (TypeError, ValueError, AttributeError) as error:
        error.add_note("verify returns tasks.Verdict(correct, formatted), and reward a number")
        raise
