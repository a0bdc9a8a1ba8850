"""The tasks of grpo_sg.py: what a task is, Knights and Knaves, and mathematics.

A `Task` has problems to train and test on, a system prompt, and a verifier that checks
whether a response is correct and well formed. Responses are hostile input, because the
model that writes them is rewarded for fooling the verifier: nothing here executes them,
and no verifier raises or hangs. The functions that make a task raise UserError on bad
settings or data.
"""
import functools
import importlib
import pathlib
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tqdm import tqdm

from support import data, puzzles
from support.program import UserError, say
from support.puzzles import digest, split_of
from verify.final_answer import final_answer
from verify.math_equal import math_equal
from verify.text import FAKE_TURN, visible, without_end


# ---- What a task is ----

class Problem(NamedTuple):
    question: str
    # passed to the verifier: a dict name -> role, one gold answer, or several
    answer: object
    # worked text that ends in the answer: the warm-up trains the tiny model on it
    solution: str = ""
    # a solution with a bad habit, also for the warm-up: RL can teach that it earns less
    shortcut: str = ""
    # a key that is equal for problems that differ only in wording or order: no two splits
    # have one in common
    meaning: int = 0
    # Both are set by models.encode_problems: the prompt's token ids, and the tag at its
    # end, such as <think>. The tag counts as part of the response.
    prompt: list[int] = ()
    opening: str = ""


class Verdict(NamedTuple):
    correct: bool    # the final answer is right
    formatted: bool  # the response has the format that the prompt asks for


def reward(completion):
    """Return the default reward: +3 if the answer is right, -0.5 if it is wrong but well
    formed, -3 if it is badly formed, as in AR-Lopti (arXiv 2505.12929). A truncated
    completion is badly formed."""
    if not completion.formatted:
        return -3.0
    return 3.0 if completion.correct else -0.5


class Task(NamedTuple):
    name: str
    system: str              # the system prompt
    train: list[Problem]
    valid: list[Problem]     # for choosing settings and for the learning curve
    test: list[Problem]
    verify: Callable[[str, object], Verdict]      # (response, Problem.answer) -> Verdict
    floor: float             # test accuracy of the best constant answer
    # grpo_sg.Completion -> reward; your own function may give partial credit
    reward: Callable[[object], float] = reward
    # start of every response: a real model's prompt ends with it
    opening: str = ""
    stop_text: str = ""      # text that ends a call of the task's tool
    # the tool: texts that end with a call -> an answer to each
    observe: Callable[[list[str]], list[str]] | None = None
    max_turns: int = 2       # turns whose calls the tool answers; one last turn follows
    warmup: int = 300        # steps of the tiny model's warm-up
    shortcuts: float = 0.0   # fraction of warm-up texts that are shortcuts
    # pattern of the tiny model's tokens: words, each with the space before it
    tokens: str = r"\s?\S+"


def make_task(cfg):
    """Make the task that cfg.task names, and check it."""
    owner = f"tasks.TASKS[{cfg.task!r}]"
    make = TASKS[cfg.task]
    task = make(cfg) if callable(make) else make
    if not isinstance(task, Task):
        raise UserError(f"{owner} must be a function of the settings that returns a "
                        f"tasks.Task, not {task!r:.60}")
    for names, (fits, words) in RULES.items():
        for name in names.split():
            if not fits(getattr(task, name)):
                raise UserError(f"{owner}: {name} must be {words}, not "
                                f"{getattr(task, name)!r:.60}")
    for name in ("train", "valid", "test"):
        for problem in getattr(task, name):
            check_problem(f"{owner}: {name}", problem)
    if task.observe and not task.stop_text:
        raise UserError(f"{owner} has a tool (observe) but no stop_text: give it the text "
                        "that ends a call")
    if not cfg.eval_only:
        check_held_out(owner, task)
    return task


def most_frequent(answers):
    """Return the frequency of the mode; 0 if empty."""
    counts = Counter(answers)
    return max(counts.values(), default=0) / max(1, counts.total())


# ---- Knights and Knaves: a knight's claim is true, a knave's is false ----

KK_SYSTEM = ("You solve logic puzzles. Think about the puzzle step by step inside <think> "
             "and </think>. Then name everybody's role inside <answer> and </answer>, for "
             "example: <answer> (1) Zoey is a knight (2) Oliver is a knave </answer>. "
             "Write nothing after that.")

def kk_puzzle(n, rng, *, brief=False):
    """Make a puzzle of n people as a Problem; arguments as for puzzles.make_puzzle."""
    return Problem(*puzzles.make_puzzle(n, rng, brief=brief))


def kk_split(split, count, people, seed, *, brief=False):
    """Make puzzles as a list of Problem; arguments as for puzzles.make_split."""
    made = puzzles.make_split(split, count, people, seed, brief=brief)
    return [Problem(*puzzle) for puzzle in made]


# One clause of an answer; {} is filled with the names in the puzzle.
KK_CLAUSE = r"(?:\(?\d{{1,2}}[.):]\s*|[-*\u2022]\s+)?({})\s+is\s+an?\s+(knight|knave)(?![\w'-])"
KK_BETWEEN = re.compile(r"[\s,;.]+|and(?!\w)", re.I)
TAG = re.compile(r"<[\s/]*(?:think|answer)\b[^<>]*>", re.I)
BLANK = "\u115f\u1160\u3164\uffa0"  # invisible letters


def verify_kk(response, roles):
    """Grade one response to a puzzle.

    A response is formatted if all of it is `<think>` thoughts `</think> <answer>` roles
    `</answer>`: each tag once and in lower case, with thoughts that are not empty, and
    nothing else but white space, stop tokens and a period at the end. It must not fake
    another turn of the dialogue. It is correct if it is also right about everybody and
    the answer says nothing else.

    Args:
        response: without the prompt, but with <think> if the prompt ends with it.
        roles: dict name -> "knight" or "knave".
    """
    body = without_end(response)
    shown = visible(body)
    tags = [re.sub(r"\s", "", tag).lower() for tag in TAG.findall(shown)]
    if tags != ["<think>", "</think>", "<answer>", "</answer>"] or FAKE_TURN.search(shown):
        return Verdict(False, False)
    # Logic-RL and AR-Lopti allow anything after the answer. A period is harmless, but
    # another line could take the answer back or make it uncertain. Some completions of a
    # group end without such a line, so the policy learns to leave it out.
    parts = re.fullmatch(r"<think>(.*)</think>\s*<answer>(.*)</answer>\s*\.?", body, re.S)
    if not parts or not any(c.isalnum() and c not in BLANK for c in parts[1]):
        return Verdict(False, False)
    return Verdict(read_roles(parts[2], list(roles)) == roles, True)


def read_roles(answer, names):
    """Read an answer as a dict name -> role; None if it has anything but roles.

    "(1) Zoey is a knight, **Oliver** is a knave." is read. "Zoey is not a knight", "Zoey is
    a knight or a knave", "Perhaps Zoey is a knight", unknown names, and two roles for one
    name are rejected.
    """
    if len(answer) > sum(200 + 2 * len(name) for name in names):
        return None  # longer than any right answer; this also limits the time
    if has_lookalikes(answer, names):
        return None
    answer = fold(answer.replace("**", "").replace("__", ""))
    name_of = {" ".join(fold(name).split()): name for name in names}
    any_name = "|".join(re.escape(name).replace(r"\ ", r"\s+") for name in name_of)
    clause = re.compile(KK_CLAUSE.format(any_name))
    found = {}
    at = 0
    while at < len(answer):
        if match := clause.match(answer, at):
            name = name_of[" ".join(match[1].split())]
            if found.setdefault(name, match[2]) != match[2]:
                return None
        elif not (match := KK_BETWEEN.match(answer, at)):
            return None
        at = match.end()
    return found or None


def fold(text):
    """Return the text with one form of apostrophes, hyphens, spaces, accents and case."""
    text = text.translate(str.maketrans("\u2019\u2010\u2011\u00a0", "'-- "))
    return unicodedata.normalize("NFC", text).casefold()


def has_lookalikes(answer, names):
    """Return whether the answer has a letter beyond ASCII that no name has, such as a
    Cyrillic one that looks Latin."""
    shown = "".join(names)
    for form in ("NFC", "NFD"):  # an accent within its letter, or after it
        shown += unicodedata.normalize(form, "".join(names))
    allowed = {*(shown + shown.lower() + shown.upper()), *"\u2019\u2010\u2011\u2022\u00a0"}
    return not all(c.isascii() or c in allowed for c in answer)


def kk_published(people):
    """Load (train, test) from the puzzles published with mem-kk-logic (arXiv 2410.23123),
    split as in Logic-RL: the last 100 of each size are the test set. There are 1,000 of
    each size, but only 200 with two people."""
    train = []
    test = []
    for n in people:
        problems = []
        for row in data.load_hub("K-and-K/knights-and-knaves", "train", f"{n}ppl"):
            roles = ["knight" if is_knight else "knave" for is_knight in row["solution"]]
            problems.append(Problem(row["quiz"], dict(zip(row["names"], roles))))
        train += problems[:-100]
        test += problems[-100:]
    return train, test


def kk_task(cfg):
    """Make the task Knights and Knaves. It uses cfg.data ("synthetic" or "published"),
    eval_data (must be ""), people, model, eval_only, seed, train_problems and
    eval_problems. Validation puzzles are always generated."""
    if not all(2 <= n <= 8 for n in cfg.people):
        raise UserError("--people must be sizes from 2 to 8, not "
                        f"{' '.join(map(str, cfg.people))}")
    data.check_name("--data", cfg.data, ("synthetic", "published"), files=False)
    if cfg.eval_data:
        raise UserError(f"--task kk has its own test puzzles: leave out --eval_data "
                        f"{cfg.eval_data}")
    brief = data.is_tiny(cfg)  # the tiny model reads puzzles without a story
    if brief and cfg.data == "published":
        raise UserError("--data published has stories, which the tiny model cannot read: "
                        "add --model")
    generated = functools.partial(kk_split, people=cfg.people, seed=cfg.seed, brief=brief)
    if cfg.data == "published":
        train, test = kk_published(cfg.people)
    else:
        test = generated("test", cfg.eval_problems)
        train = test if cfg.eval_only else generated("train", cfg.train_problems)
    valid = generated("valid", cfg.eval_problems)
    floor = 0.0  # the best constant answer of each size, weighted by how many have that size
    for n in set(cfg.people):
        answers = [tuple(p.answer.values()) for p in test if len(p.answer) == n]
        floor += most_frequent(answers) * len(answers) / len(test)
    return Task("kk", KK_SYSTEM, train, valid, test, verify_kk, floor, opening="<think>",
                # a token is a word, or "NAME is a ROLE"
                tokens=r"\s?(?:\w+ is a )?\S+", warmup=500, shortcuts=0.6)


# ---- Mathematics: problems from the hub, a file, or a generator ----

# Qwen2.5's prompt for mathematics
MATH_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def verify_math(response, gold):
    """Grade one response.

    A response is formatted if the function final_answer finds an answer in it and no
    \\boxed{} of that answer is longer than 500 characters. It is correct if math_equal
    accepts that answer. Without answer tags only the box is read, not the text around it.

    Args:
        response: without the prompt.
        gold: the bare answer, or a list of answers, any of which is accepted.
    """
    answer = final_answer(response)
    right = bool(answer) and any(math_equal(answer, each) for each in as_answers(gold))
    return Verdict(right, bool(answer))


# Signs that the answer was not extracted from its text.
ANSWER_MARK = re.compile(r"####|\\boxed|\banswer\b|\A\s*=", re.I)


def is_gold(answer):
    """Return True if a completion can match this gold answer: it is only the
    answer, and verify_math accepts it as an answer to itself in \\boxed{}."""
    matched = verify_math(f"\\boxed{{{answer}}}", answer).correct
    return matched and not ANSWER_MARK.search(answer)


def as_answers(gold):
    """Return one gold answer, or several, as a list of strings."""
    if isinstance(gold, (str, int, float)):
        gold = [gold]
    return [str(each) for each in gold]


def arithmetic(rng):
    """Make a sum of two three-digit numbers, or the product of such a number and a digit.

    The solution works from right to left and adds each carry to the next column. For
    347*6 it is "7*6=42+0=42,4*6=24+4=28,3*6=18+2=20. \\boxed{2082}". It pads with zeros:
    each digit is then always at the same distance from the digits that it depends on,
    which is faster to learn. The meaning is a hash of the unordered pair of operands.
    """
    a = rng.randrange(100, 1000)
    sign = rng.choice("+*")
    b = rng.randrange(100, 1000) if sign == "+" else rng.randrange(2, 10)
    columns = []
    carry = 0
    for place in (1, 10, 100):
        x = a // place % 10
        y = b // place % 10 if sign == "+" else b
        alone = x + y if sign == "+" else x * y
        result = alone + carry
        columns.append(f"{x}{sign}{y}={alone:02d}+{carry}={result:02d}")
        carry = result // 10
    answer = str(a + b if sign == "+" else a * b)
    solution = f"{','.join(columns)}. \\boxed{{{answer}}}"
    # The shortcut: answer at once. A tiny model that does this is right less often.
    shortcut = f"\\boxed{{{answer}}}"
    return Problem(f"{a}{sign}{b}", answer, solution, shortcut, digest(min(a, b), max(a, b)))


def arithmetic_split(split, count, seed):
    """Make `count` problems of a split: "train", "valid" or "test".

    The unordered pair of operands decides the split, for every seed: no pair of one
    split occurs in another, in any order. "valid" and "test" never repeat a
    pair; each has 58,000 pairs, and uses at most 20,000. "train" may repeat pairs.
    """
    problems = []
    seen = set()
    count = count if split == "train" else min(count, 20_000)
    for i in tqdm(range(count), f"{split} problems", leave=False, delay=2):
        rng = random.Random(f"{seed} {split} {i}")
        problem = arithmetic(rng)
        while split_of(problem.meaning) != split or problem.meaning in seen:
            problem = arithmetic(rng)
        problems.append(problem)
        if split != "train":
            seen.add(problem.meaning)
    return problems


def math_task(cfg):
    """Make the task mathematics. It uses cfg.data ("synthetic", a key of data.MATH_TRAIN,
    or a file), eval_data ("synthetic", a key of data.MATH_TEST, a file, or "" for the
    test set that belongs to data), model, eval_only, seed, train_problems and
    eval_problems. Validation problems are split off the training set."""
    eval_data = data.choose_eval_data(cfg, data.MATH_PAIRS)
    if eval_data == "synthetic":
        test = arithmetic_split("test", cfg.eval_problems, cfg.seed)
    else:
        test = [Problem(*row) for row in data.load_math(eval_data, data.MATH_TEST, is_gold)]
    if cfg.eval_only:
        train, valid = test, test  # unused: --eval_only reads only the test set
    elif cfg.data == "synthetic":
        train = arithmetic_split("train", cfg.train_problems, cfg.seed)
        valid = arithmetic_split("valid", cfg.eval_problems, cfg.seed)
    else:
        found = [Problem(*row) for row in data.load_math(cfg.data, data.MATH_TRAIN, is_gold)]
        train, valid = data.hold_out(found, test, eval_data, cfg)
    return Task("math", MATH_SYSTEM, train, valid, test, verify_math, shortcuts=0.5, warmup=320,
                floor=most_frequent(str(problem.answer) for problem in test),
                tokens=r"\\boxed\{|.")


# ---- Registration ----

ROOT = pathlib.Path(__file__).parent
# name -> function of the settings that returns a Task
TASKS = {"kk": kk_task, "math": math_task}
# that function -> folder of the tiny model pretrained on its default problems
PRETRAINED = {kk_task: ROOT / "support" / "pretrained" / "kk",
              math_task: ROOT / "support" / "pretrained" / "math"}


def add_extras():
    """Import each extras/*/plugin.py. A plugin registers what its folder has, such as the
    task qa."""
    for path in sorted((ROOT / "extras").glob("*/plugin.py")):
        importlib.import_module(f"extras.{path.parent.name}.plugin")


# ---- What make_task checks ----

def is_text(value):
    return isinstance(value, str) and is_whole(value)


def is_count(value):
    return isinstance(value, int) and value >= 0


def is_positive(value):
    return is_count(value) and value > 0


def is_share(value):
    return isinstance(value, (int, float)) and 0 <= value <= 1


def is_list(value):
    return isinstance(value, list) and len(value) > 0


RULES = {  # fields of a Task: a test of each, and the message's words
    "train valid test": (is_list, "a list of tasks.Problem, with at least one"),
    "name system opening stop_text tokens": (is_text, "a string"),
    "verify reward": (callable, "a function"),
    "floor shortcuts": (is_share, "a number from 0 to 1"),
    "max_turns": (is_count, "a whole number, 0 or more"),
    "warmup": (is_positive, "a whole number, 1 or more")}


def check_problem(owner, problem):
    """Raise UserError unless this is a Problem whose texts are strings."""
    if not isinstance(problem, Problem):
        raise UserError(f"{owner} has {problem!r:.60}, which is not a tasks.Problem")
    texts = (problem.question, problem.solution, problem.shortcut)
    if not problem.question or not all(map(is_text, texts)):
        raise UserError(f"{owner} has {problem!r:.60}: question, solution and shortcut must "
                        "be strings, and the question must not be empty")


def check_held_out(owner, task):
    """Raise UserError if every validation or test problem is also a training problem;
    warn if some are."""
    trained_on = {problem.question for problem in task.train}
    for name in ("valid", "test"):
        problems = getattr(task, name)
        seen = sum(problem.question in trained_on for problem in problems)
        line = f"{owner}: {seen} of {len(problems)} questions of {name} are also in train"
        if seen == len(problems):
            raise UserError(f"{line}: give problems that are not in the training set")
        if seen:
            say(f"warning: {line}: accuracy on them shows what was memorized")


def is_whole(text):
    """Return False for a string with lone surrogates, which no tokenizer can encode."""
    return text.encode(errors="replace").decode() == text
