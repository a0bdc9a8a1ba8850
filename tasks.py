"""The tasks of grpo_sg.py: what a task is, Knights and Knaves, and mathematics.

A `Task` has problems to train and test on, a system prompt, and a verifier that checks whether
a response is correct and has the correct format. A response is hostile input, because the model
that writes it is rewarded for fooling the verifier: nothing here executes it, and no verifier
raises or hangs. The functions that make a task raise UserError on bad settings or data.

This file needs tqdm, and datasets for data from the hub. With the optional folder
verify/, mathematical answers are compared by verify/math_equal.py, which reads fractions, roots,
sets and more; without it, only problems whose answer is a plain number are used.
"""
import contextlib
import functools
import hashlib
import importlib.util
import itertools
import json
import math
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from tqdm import tqdm

try:
    from verify.math_equal import is_certain, math_equal
except ModuleNotFoundError:
    math_equal = None  # verify/ is optional, and without it plain_equal compares plain numbers


class UserError(ValueError):
    """A mistake by the user, told in one line: what was given, what is allowed, and what to do.
    The command line prints it without a traceback."""


# ---- What a task is ----

class Problem(NamedTuple):
    # Every task sets these two.
    question: str       # or a list of chat messages, which a prompt begins with
    answer: object      # for the verifier: a dict name -> role, or one or several reference answers

    # Only the supervised fine-tuning of a tiny model (support/tiny.py) reads these two.
    solution: str = ""  # worked text that ends in the answer
    shortcut: str = ""  # a solution with a bad habit: RL can teach that it earns less

    # Optional: a key that is equal for problems that differ only in wording or order. No two
    # splits have one in common.
    meaning: int = 0

    # encode_problems sets these two.
    prompt: list[int] = ()  # token ids
    opening: str = ""       # the tag at the prompt's end: it counts as part of the response


class Verdict(NamedTuple):
    correct: bool    # the final answer is right
    formatted: bool  # the response has the format that the prompt asks for


def reward(completion):
    """Return the default reward, as in AR-Lopti (arXiv 2505.12929): +3 if the answer is right,
    -0.5 if it is wrong but in the correct format, -3 if the completion is malformed. A
    truncated completion is malformed."""
    if not completion.formatted:
        return -3.0
    return 3.0 if completion.correct else -0.5


class Task(NamedTuple):
    # Every task sets these.
    name: str
    system: str           # the system prompt
    train: list[Problem]
    valid: list[Problem]  # for choosing settings and for the learning curve
    test: list[Problem]
    verify: Callable[[str, object], Verdict]  # (response, Problem.answer) -> Verdict
    floor: float          # test accuracy of the best constant answer

    # Optional
    reward: Callable[[object], float] = reward  # of a grpo_sg.Completion; may give partial credit
    opening: str = ""               # starts every response: a real model's prompt ends with it
    write: Callable | None = None   # writes completions in several turns: see support/tools.py

    # Only the supervised fine-tuning of a tiny model reads these.
    warmup: int = 300         # steps
    shortcuts: float = 0.0    # fraction of the texts that are shortcuts
    tokens: str = r"\s?\S+"   # pattern of its tokens: words, each with the space before it


def most_frequent(answers):
    """Return the frequency of the mode; 0 if empty."""
    counts = Counter(answers)
    return max(counts.values(), default=0) / max(1, counts.total())


# ---- Hostile text ----
# Every function takes time linear in the length of its text.

LINE_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
# Another turn of the dialogue, faked by its tokens or by a name at the start of a line
FAKE_TURN = re.compile(r"<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>|\[INST\]|"
                       rf"(?:^|[>{LINE_ENDS}])[ \t*#-]*(?:user|human|assistant|system)\W{{0,3}}:",
                       re.I)


# ---- Knights and Knaves: a knight's claim is true, a knave's is false ----

KK_SYSTEM = ("You solve logic puzzles. Think about the puzzle step by step inside <think> "
             "and </think>. Then name everybody's role inside <answer> and </answer>, for "
             "example: <answer> (1) Zoey is a knight (2) Oliver is a knave </answer>. "
             "Write nothing after that.")

# One clause of an answer; {} is filled with the names in the puzzle.
KK_CLAUSE = r"(?:\(?\d{{1,2}}[.):]\s*|[-*]\s+)?({})\s+is\s+an?\s+(knight|knave)(?![\w'-])"
KK_BETWEEN = re.compile(r"[\s,;.]+|and(?!\w)", re.I)
TAG = re.compile(r"<[\s/]*(?:think|answer)\b[^<>]*>", re.I)


def verify_kk(response, roles):
    """Grade one response to a puzzle.

    A response is formatted if all of it is `<think>` thoughts `</think> <answer>` roles
    `</answer>`: each tag once and in lower case, with thoughts that are not empty, and
    nothing else but white space and a period at the end. It must not fake another turn
    of the dialogue. It is correct if it is also right about everybody and the answer, in
    ASCII, says nothing else. For example, if Zoe is a knight and Max a knave:

        <think>Max lies.</think> <answer>Zoe is a knight, Max is a knave</answer>
            (correct=True, formatted=True)
        <think>Max lies.</think> <answer>Zoe is a knight but Max is a knave</answer>
            (correct=False, formatted=True), because "but" may not stand between roles
        <think>Max lies.</think> <answer>Zoe is a knight, Max is a knave</answer> I am sure
            (correct=False, formatted=False), because the answer does not end the response

    Args:
        response: without the prompt, but with <think> if the prompt ends with it.
        roles: dict name -> "knight" or "knave".
    """
    body = response.strip()
    if len(TAG.findall(body)) != 4 or FAKE_TURN.search(body):
        return Verdict(False, False)
    # Logic-RL and AR-Lopti allow anything after the answer. A period is harmless, but
    # another line could take the answer back or make it uncertain. Some completions of a
    # group end without such a line, so the policy learns to leave it out.
    parts = re.fullmatch(r"<think>(.*)</think>\s*<answer>(.*)</answer>\s*\.?", body, re.S)
    if not parts or not re.search(r"[^\W_]", parts[1]):
        return Verdict(False, False)
    return Verdict(read_roles(parts[2], list(roles)) == roles, True)


def read_roles(answer, names):
    """Read an answer as a dict name -> role; None if it has anything but roles.

    "(1) Zoey is a knight, **Oliver** is a knave." is read. "Zoey is not a knight", "Zoey is
    a knight or a knave", "Perhaps Zoey is a knight", unknown names, and two roles for one
    name are rejected.
    """
    if not answer.isascii() or len(answer) > sum(200 + 2 * len(name) for name in names):
        return None  # a letter that looks like another, or longer than any right answer
    answer = answer.replace("**", "").replace("__", "").lower()
    name_of = {" ".join(name.lower().split()): name for name in names}
    any_name = "|".join(re.escape(name).replace(r"\ ", r"\s+") for name in name_of)
    clause = re.compile(KK_CLAUSE.format(any_name))
    roles = {}
    at = 0
    while at < len(answer):
        if match := clause.match(answer, at):
            name = name_of[" ".join(match[1].split())]
            if roles.setdefault(name, match[2]) != match[2]:
                return None
        elif not (match := KK_BETWEEN.match(answer, at)):
            return None
        at = match.end()
    return roles or None


# ---- Knights and Knaves: making puzzles ----

def digest(*parts):
    """Hash the parts to an integer that is the same in every run and Python version."""
    text = repr(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def split_of(meaning):
    """Return the split of a problem. For every seed, a seventh of all meanings is "test",
    and a seventh is "valid"."""
    return {0: "test", 1: "valid"}.get(meaning % 7, "train")


def make_split(draws, split, count, seed, *, repeats=False):
    """Make up to `count` problems of a split ("train", "valid" or "test"), and print a line if
    1,000 draws in a row give no new one.

    A problem's meaning decides its split, so no problem of one split occurs in another, for any
    seed. A held-out split never repeats a meaning. "train" never repeats a question, unless
    `repeats` is True.

    Args:
        draws: functions that make a Problem with a random.Random, to be called in turn.
    """
    problems, seen = [], set()
    for i in tqdm(range(count), f"{split} problems", leave=False, delay=2, disable=None):
        rng = random.Random(f"{seed} {split} {i}")
        for _ in range(1000):
            problem = draws[i % len(draws)](rng)
            key = problem.question if split == "train" else problem.meaning
            if split_of(problem.meaning) == split and key not in seen:
                break
        else:
            print(f"only {i} of {count} {split} problems: 1,000 more draws gave no new one")
            break
        problems.append(problem)
        if split != "train" or not repeats:
            seen.add(key)
    return problems


NAMES = ("Ada Alice Amir Anna Ben Bianca Carl Chloe Clara Daniel David Dora Elena Emil "
         "Emma Eric Eva Felix Finn Grace Hana Henry Ida Ivan Jack Jane Jonas Julia Kai "
         "Karen Leo Lily Lucas Maria Max Mia Nina Noah Olga Oscar Paul Peter Rosa Ruth Sam "
         "Sara Simon Theo Tom Vera Zoe").split()
STORY = ("On this island everyone is either a knight, who always tells the truth, or a "
         "knave, who always lies. You meet {n} inhabitants of it on the shore: {names}. "
         "{told} Who is a knight and who is a knave?")
SAYINGS = ["{} says that {}.", "{} said to you that {}.", "{} tells you that {}.",
           "{} told you that {}.", "{} claims that {}.", "{} claimed that {}.",
           "{} stated that {}.", "{} declares that {}.", "{} remarked that {}.",
           "{} would have you know that {}.", "{} insists that {}.", "{} mentioned that {}.",
           "{} swears that {}.", "{} lets you know that {}.", "According to {}, {}.",
           "In the words of {}, {}.", "As {} puts it, {}.", "If you believe {}, {}."]
# kind of claim -> words
KINDS = {"leaf": "{0}", "not": "it is not true that {0}", "and": "{0} and {1}",
         "or": "{0} or {1}", "if": "if {0} then {1}", "iff": "{0} if and only if {1}"}
BRIEF = {**KINDS, "not": "not {0}", "iff": "{0} iff {1}"}  # without a story
# Words that decide nothing. Each has a low probability, like many words of a real model.
STYLE = "again also clearly finally hence indeed now so still then therefore thus".split()


def draw_claim(n, speaker, rng):
    """Draw a claim, such as ("if", (0, "knight"), (2, "knave")): a kind and one or two
    leaves. A leaf is a person and a role."""
    kind = rng.choice(tuple(KINDS))
    leaves = [draw_leaf(n, speaker, rng)]
    while kind not in ("leaf", "not") and len(leaves) < 2:
        second = draw_leaf(n, speaker, rng)
        if second != leaves[0]:
            leaves.append(second)
    return kind, *leaves


def draw_leaf(n, speaker, rng):
    """Draw a person and a role, but never "I am a knave", which neither role can say."""
    person, role = speaker, "knave"
    while (person, role) == (speaker, "knave"):
        person = rng.randrange(n)
        role = "knight" if rng.random() < 0.5 else "knave"
    return person, role


def is_true(claim, roles):
    """Return True if a claim is true; roles[person] is "knight" or "knave"."""
    kind, *leaves = claim
    said = [roles[person] == role for person, role in leaves]
    x, y = said[0], said[-1]
    return {"leaf": x, "not": not x, "and": x and y, "or": x or y, "if": not x or y,
            "iff": x == y}[kind]


def put_in_words(claim, names, brief=False):
    """Write the claim in English, or in telegraphic style."""
    kind, *leaves = claim
    form = "{} {}" if brief else "{} is a {}"
    said = [form.format(names[person], role) for person, role in leaves]
    return (BRIEF if brief else KINDS)[kind].format(*said)


def narrow_down(claims):
    """Return for each claim the assignments, tuples of roles, that are consistent with it
    and with the claims before it."""
    # The first person's role changes fastest, the last one's slowest.
    left = [roles[::-1] for roles in itertools.product(("knight", "knave"), repeat=len(claims))]
    lists = []
    for speaker, claim in enumerate(claims):
        left = [roles for roles in left if is_true(claim, roles) == (roles[speaker] == "knight")]
        lists.append(left)
    return lists


def write_response(lists, names, rng):
    """Write a response that lists, for each person, the assignments left after their claim,
    as letters: KNK is knight, knave, knight. The last assignment is the answer. A random
    word of STYLE follows each name."""
    lines = []
    for name, left in zip(names, lists):
        words = ["".join("K" if role == "knight" else "N" for role in roles) for roles in left]
        lines.append(f"{name}, {rng.choice(STYLE)}: {' '.join(words)}.")
    answer = ", ".join(f"{name} is a {role}" for name, role in zip(names, lists[-1][-1]))
    return f"<think> {' '.join(lines)} </think> <answer> {answer} </answer>"


def tabulate(claim, people):
    """Return the claim's truth table over the roles of one or two people, as the bits of an
    integer: the first person is a knight in every second case."""
    table = 0
    for case, roles in enumerate(itertools.product(("knave", "knight"), repeat=len(people))):
        table += is_true(claim, dict(zip(people[::-1], roles))) << case
    return table


def hash_meaning(claims):
    """Compute a hash that is equal for puzzles identical up to names and logically
    equivalent wording, by color refinement on the graph of who speaks of whom.

    A few symmetric puzzles differ and still share a hash. A held-out split then has only
    one of them; no puzzle gets into two splits. With two people it is only equal up to
    names: equivalent wording leaves 41 puzzles, and the 3 to test on have one answer.
    """
    if len(claims) == 2:
        exchanged = [(kind, *((1 - person, role) for person, role in leaves))
                     for kind, *leaves in reversed(claims)]
        return digest(min(list(claims), exchanged))
    # (speaker, person, the claim's truth table with that person first, the other person)
    mentions = []
    for speaker, claim in enumerate(claims):
        people = dict.fromkeys(person for person, _ in claim[1:])
        for person, *others in itertools.permutations(people):
            table = tabulate(claim, (person, *others))
            if not others and table in (0b00, 0b11):
                person = speaker  # a tautology or a contradiction is about nobody
            mentions.append((speaker, person, table, others[0] if others else None))
    colors = [0] * len(claims)
    for _ in claims:
        seen = [[] for _ in claims]
        for speaker, person, table, other in mentions:
            edge = (speaker == person, other == speaker, table, -1 if other is None
                    else colors[other])
            seen[speaker].append((0, colors[person], *edge))
            seen[person].append((1, colors[speaker], *edge))
        colors = [digest(color, sorted(edges)) for color, edges in zip(colors, seen)]
    return digest(sorted(colors))


def kk_puzzle(n, rng, *, brief=False):
    """Make a puzzle of n people, 2 to 8, that has exactly one consistent assignment of roles.

    Returns a Problem, whose answer is a dict name -> "knight" or "knave", and whose shortcut
    stops before the last claim. rng is a random.Random. A brief puzzle leaves out the story and
    uses the first n names, for a tiny model. Raises UserError for other sizes.
    """
    if not 2 <= n <= 8:
        raise UserError(f"--people: a puzzle has 2 to 8 people, not {n}")
    names = NAMES[:n] if brief else rng.sample(NAMES, n)
    lists = [[]]
    while len(lists[-1]) != 1:  # a third of the draws leave one assignment
        claims = [draw_claim(n, speaker, rng) for speaker in range(n)]
        lists = narrow_down(claims)
    words = [put_in_words(claim, names, brief) for claim in claims]
    if brief:
        question = " ".join(f"{name}: {claim}." for name, claim in zip(names, words))
    else:
        told = " ".join(rng.choice(SAYINGS).format(*pair) for pair in zip(names, words))
        people = ", ".join(names[:-1]) + " and " + names[-1]
        question = STORY.format(n=n, names=people, told=told)
    style = random.Random(question)  # so that the words do not decide which puzzles are drawn
    return Problem(question, dict(zip(names, lists[-1][0])),
                   write_response(lists, names, style), write_response(lists[:-1], names, style),
                   hash_meaning(claims))


def kk_split(split, count, people, seed, *, brief=False):
    """Make up to `count` puzzles of a split ("train", "valid" or "test"), cycling through
    the sizes in `people`. Two people have only 205 meanings, 33 of them to test on."""
    draws = [functools.partial(kk_puzzle, n, brief=brief) for n in people]
    return make_split(draws, split, count, seed)


# ---- Mathematics: the final answer of a response ----

# Qwen2.5's prompt for mathematics
MATH_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
MAX_CHARS = 500  # of an answer

BOX = re.compile(r"\\boxed\s*")
# What may stand between two boxes of one list. It takes time linear in the text's length (*+).
JOINED = re.compile(r"""(?:
      [^\w\\=]                           # a comma, a space, a bracket
    | (?:and|or)(?![A-Za-z])             # but no other word
    | \\[^A-Za-z] | \\hspace\{[^{}]*\}   # white space in LaTeX
    | \\?[A-Za-z]+ (?:_[A-Za-z0-9]|_\{\w+\}|')* (?:\([^()]{1,9}\))? [\s$]*=   # x_1 = or f(2) =
    | \\(?!\w*arrow|implies|iff|to(?![a-z])|therefore|approx|equiv)[A-Za-z]+  # \quad, no arrow
    | [0-9a-z]{1,2}[.)]                  # the 2. or b) of an item
    )*+""", re.X | re.I)


def final_answer(response):
    """Return what the last \\boxed{...} contains, or "" if there is no answer.

    Only the text after the last </think> counts, and a <think> that is not closed has no answer
    after it. Boxes joined by a comma, "and" or "or" are one answer, a list; a box in a box is
    part of it. An empty box is not an answer. No other text is read."""
    text = response.rpartition("</think>")[2]
    if "<think>" in text:
        return ""
    contents, end = [], 0  # of the boxes that are joined
    for box in BOX.finditer(text, max(0, text.rfind("\\boxed") - MAX_CHARS)):
        if box.start() >= end:  # else it is in a box
            if not contents or not JOINED.fullmatch(text, end, box.start()):
                contents = []
            end = after_brace(text, box.end())
            contents.append(text[box.end() + 1:end - 1].strip())
    return ", ".join(dict.fromkeys(contents)) if all(contents) else ""


def after_brace(text, at):
    """Return the position after the brace that closes the one at `at`; `at` + 1 if there is
    no brace at `at` or it closes more than MAX_CHARS later."""
    depth = 0
    near = text[at:at + MAX_CHARS] if text[at:at + 1] == "{" else ""
    for brace in re.finditer(r"\\.|[{}]", near, re.S):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return at + brace.end()
    return at + 1


# ---- Mathematics: are two answers equal? ----

# 1234, 1,234, 0.5 or 3/4, with a sign and a dollar sign
NUMBER = re.compile(r"""(-?) (?:\\?\$)? ((?:[0-9]+ | [1-9][0-9]{0,2}(?:,[0-9]{3})+)? (?:\.[0-9]+)?
    | [0-9]+/[1-9][0-9]*) \.?""", re.X)


def plain_equal(answer, gold):
    """Compare two plain numbers exactly: integers, decimals and fractions in lowest terms, with
    a sign, thousands separators or a dollar sign. Anything else is equal to nothing:
    verify/math_equal.py reads more, and accepts whatever this accepts."""
    number = read_number(answer)
    return number is not None and number == read_number(gold)


def read_number(text):
    """Read a plain number as a Fraction, or return None."""
    number = NUMBER.fullmatch(text.strip()) if len(text) <= MAX_CHARS else None
    if not number or not number[2]:
        return None
    sign, digits = number.groups()
    value = Fraction(digits.replace(",", ""))
    if "/" in digits and str(value) != digits:
        return None  # 6/8 is not worked out
    return -value if sign else value


def verify_math(response, gold):
    """Grade one response.

    A response is formatted if the function final_answer finds an answer in it and no
    \\boxed{} of that answer is longer than 500 characters. It is correct if math_equal
    accepts that answer.

    Args:
        response: without the prompt.
        gold: the bare answer, or a list of answers, any of which is accepted.
    """
    answer = final_answer(response)
    equal = math_equal or plain_equal
    right = bool(answer) and any(equal(answer, each) for each in as_answers(gold))
    return Verdict(right, bool(answer))


def as_answers(gold):
    """Return one reference answer, or several, as a list of strings."""
    return [str(each) for each in (gold if isinstance(gold, (list, tuple)) else [gold])]


# ---- Mathematics: making problems ----

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
    """Make `count` sums and products of a split. "train" may repeat them, because there are only
    7,200 products, but "valid" and "test" never repeat a pair of operands."""
    return make_split([arithmetic], split, count, seed, repeats=True)


# ---- Data: problems from a file or the hub ----

FILES = (".jsonl", ".parquet")
# The columns of a question and of its reference answer, in the order in which we look
QUESTION = ("question", "problem")
ANSWER = ("final_answer", "expected_answer", "answer", "solution")
# What data sets write where there is no answer
NO_ANSWER = re.compile(
    r"(?<![\\\w])(proof|none|null|nan|inf|n/?a|unknown|tb[ad]|to-?do|omitted|answers?|own words|"
    r"see|explanations?|vary(?=\W*$)|(free|open|students?\W?s?)[ -](response|ended|own|work)|(no|"
    r"not|without) (solution )?(found|provided|given|available|applicable|needed))(?!\w)|"
    # Only if it is all: a type I error and a line graph may be answers.
    r"^(\W|\\text\w*)*(ans|solution|error|done|verification|various|missing|blank|pending|qed|"
    r"skip(ped)?|unsolved|placeholder|by (induction|contradiction)|(\w+ )?(is )?(prove[dn]|shown|"
    r"depends|verified|explain(ed)?|varie[sd])|((an?|the|your|any|valid|correct|sample) )*(graph|"
    r"sketch|drawing|diagram|figure|example|proof|response)e?s?)( (above|below|by \w+))?\W*$", re.I)
# A control character, or the rest of a LaTeX command: "\times" in JSON is a tab and "imes".
EATEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[\t\r][a-z]")


def load_hub(name, configuration, split):
    """Load a split of a set on the hub. Raises OSError without a network."""
    import datasets  # slow to import, and not needed for problems that are generated
    return datasets.load_dataset(name, configuration, split=split)


def read_file(path):
    """Read the rows of a file. A .jsonl file has a JSON object on each line."""
    number, rows = 0, []
    try:
        if path.endswith(".parquet"):
            import pyarrow.parquet  # comes with datasets, which would write a copy into its cache
            return pyarrow.parquet.read_table(path).to_pylist()
        # Not with datasets, which guesses a type for each column: it refuses "5/2" after 10,000
        # numbers, reads 2020-01-01 as a time, and rounds long numbers.
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                rows += [read_row(line)] if line.strip() else []
        return rows
    except ValueError as error:
        where = (f"line {number}, {getattr(error, 'doc', '')!r:.60} (a .jsonl file has a JSON "
                 "object on each line): ") if number else ""
        raise UserError(f"{path} cannot be read: {where}{getattr(error, 'msg', error)}") from None


def read_row(line):
    """Read a line of JSON as a dict. If the line has no object, or half an emoji, or is nested too
    deeply for Python, the dict has no question."""
    with contextlib.suppress(RecursionError, UnicodeEncodeError):
        row = json.loads(line)
        if isinstance(row, dict) and json.dumps(row, ensure_ascii=False).encode():
            return row
    return {"no object that we can read": line[:99]}


def find_value(row, columns):
    """Return the value of the first of these columns that a row has, or None."""
    return next((row[name] for name in columns
                 if str(row.get(name, "")).strip() not in ("", "None", "[]")), None)


def read_answer(text):
    """Return the reference answer in the text of a data set, or "" if no response could match it.
    A worked solution stands for what follows #### or is in \\boxed{}."""
    answer = text.rpartition("####")[2]
    answer = (final_answer(answer) or answer).strip()
    no_answer = EATEN.search(text) or NO_ANSWER.search(answer)
    matched = verify_math(f"\\boxed{{{answer}}}", answer).correct
    certain = not math_equal or is_certain(answer)
    return answer if matched and certain and not no_answer else ""


def load_math(name, places):
    """Load the problems of a set, a key of `places`, or of a file. Print how many rows are lost."""
    rows = load_hub(*places[name]) if name in places else read_file(name)
    problems, lost = [], []
    for row in tqdm(rows, name, leave=False, delay=2, disable=None):
        question = find_value(row, QUESTION)
        golds = list(filter(None, map(read_answer, as_answers(find_value(row, ANSWER)))))
        if golds and isinstance(question, str) and question.strip():
            problems.append(Problem(question, golds))
        else:
            lost.append(row)
    if lost:
        print(f"dropped {len(lost)} of {len(rows)} problems of {name}: no {' or '.join(QUESTION)}, "
              f"or no answer ({', '.join(ANSWER)}) that a response matches, as in {lost[0]!r:.99}")
    return problems


def words_of(problem):
    """Return the words of a question. White space and case make no difference."""
    return " ".join(str(problem.question).split()).casefold()


def drop_repeats(problems, name, test=()):
    """Return the problems without repeats, questions with different answers in two rows, and
    questions of the test problems. Raises UserError if fewer than 10 are left."""
    asked = {}
    for problem in problems:
        asked.setdefault(words_of(problem), []).append(problem)
    for problem in test:
        asked.pop(words_of(problem), None)
    left = [first for first, *others in asked.values()
            if all(verify_math(f"\\boxed{{{gold}}}", first.answer).correct
                   for other in others for gold in other.answer)]
    if lost := len(problems) - len(left):
        print(f"dropped {lost} of {len(problems)} problems of {name}: repeats, questions with "
              "different answers, and questions of the test set")
    if len(left) < 10:
        raise UserError(f"{name} has only {len(left)} different problems: give 10 or more")
    return left


# ---- The tasks kk and math ----

def kk_published(people):
    """Load (train, test) from the puzzles published with mem-kk-logic (arXiv 2410.23123),
    split as in Logic-RL: the last 100 of each size are the test set. There are 1,000 of
    each size, but only 200 with two people."""
    train, test = [], []
    for n in people:
        problems = []
        for row in load_hub("K-and-K/knights-and-knaves", "train", f"{n}ppl"):
            roles = ["knight" if is_knight else "knave" for is_knight in row["solution"]]
            problems.append(Problem(row["quiz"], dict(zip(row["names"], roles))))
        train += problems[:-100]
        test += problems[-100:]
    return train, test


def kk_task(cfg):
    """Make the task Knights and Knaves. It uses cfg.data ("synthetic" or "published"),
    eval_data (must be ""), people, brief, eval_only, seed, train_problems and eval_problems.
    Validation puzzles are always generated."""
    published = cfg.data == "published"
    if cfg.eval_data or not published and cfg.data != "synthetic" or published and cfg.brief:
        raise UserError("--task kk needs --data synthetic, or published with --brief False (a tiny "
                        "model's is True), and no --eval_data: for a file, name --task math")
    generated = functools.partial(kk_split, people=cfg.people, seed=cfg.seed, brief=cfg.brief)
    if published:
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


# --data or --eval_data -> the set's name, configuration and split on the hub
MATH_TRAIN = {"gsm8k": ("openai/gsm8k", "main", "train"),
              "math": ("DigitalLearningGmbH/MATH-lighteval", None, "train"),
              "deepscaler": ("agentica-org/DeepScaleR-Preview-Dataset", None, "train")}
MATH_TEST = {"gsm8k": ("openai/gsm8k", "main", "test"),
             "math500": ("HuggingFaceH4/MATH-500", None, "test"),
             "aime24": ("HuggingFaceH4/aime_2024", None, "train")}  # its only split
# --data -> the set to test on
MATH_PAIRS = dict(synthetic="synthetic", gsm8k="gsm8k", math="math500", deepscaler="aime24")


def math_task(cfg):
    """Make the task mathematics. It uses cfg.data ("synthetic", a key of MATH_TRAIN, or a file),
    eval_data ("synthetic", a key of MATH_TEST, a file, or "" for the test set that belongs to
    data), eval_only, seed, train_problems and eval_problems. A tenth of the training problems,
    at most eval_problems, are held out for validation."""
    eval_data = cfg.eval_data or MATH_PAIRS.get(cfg.data, "")
    for name, known in ((cfg.data, MATH_PAIRS), (eval_data, MATH_PAIRS.values())):
        if name not in known and not name.endswith(FILES):
            raise UserError(f"--task math: {name or '--eval_data is missing: it'} must be one of "
                            f"{', '.join(known)}, or a file ({', '.join(FILES)})")
    if eval_data == "synthetic":
        test = arithmetic_split("test", cfg.eval_problems, cfg.seed)
    else:
        test = drop_repeats(load_math(eval_data, MATH_TEST), eval_data)
    if cfg.eval_only:
        train, valid = test, test  # unused: --eval_only reads only the test set
    elif cfg.data == "synthetic":
        train = arithmetic_split("train", cfg.train_problems, cfg.seed)
        valid = arithmetic_split("valid", cfg.eval_problems, cfg.seed)
    else:
        problems = drop_repeats(load_math(cfg.data, MATH_TRAIN), cfg.data, test)
        random.Random(cfg.seed).shuffle(problems)
        held_out = min(cfg.eval_problems, len(problems) // 10)
        train, valid = problems[held_out:], problems[:held_out]
    return Task("math", MATH_SYSTEM, train, valid, test, verify_math, shortcuts=0.5, warmup=320,
                floor=most_frequent(str(problem.answer) for problem in test),
                tokens=r"\\boxed\{|.")


# name -> function of the settings that returns a Task
TASKS = {"kk": kk_task, "math": math_task}


# ---- Prompts: a task's questions as the model reads them ----

def list_messages(system, question):
    """Return the messages of a chat: the system prompt, then the question, a text or itself a
    list of messages. A list that begins with a system prompt keeps its own."""
    turns = [{"role": "user", "content": question}] if isinstance(question, str) else question
    if not system or turns[0]["role"] == "system":
        return turns
    return [{"role": "system", "content": system}, *turns]


def render_chat(tokenizer, messages, kwargs):
    """Render a chat as text. If the template refuses the system role, as Gemma 2's does, or hides
    its text, as Phi-3's does, the first turn has both texts. Raises UserError if the system
    prompt or the question is still missing."""
    attempts = [messages]
    if messages[0]["role"] == "system":
        system, first, *turns = messages
        both = system["content"] + "\n\n" + first["content"]
        attempts.append([{**first, "content": both}, *turns])
    for attempt in attempts:
        with contextlib.suppress(Exception):  # a template is a program: it can raise anything
            text = tokenizer.apply_chat_template(attempt, **kwargs)
            words = " ".join(text.split())  # templates may change white space
            if all(" ".join(message["content"].split()) in words
                   for message in (messages[0], messages[-1])):
                return text
    raise UserError("the model's chat template does not show the system prompt and the question "
                    f"{messages[-1]['content']!r:.60}: name another --model")


def write_prompt(tokenizer, task, question, kwargs):
    """Write a prompt as text. Returns (text, tag), the tag with which it ends, or "".

    The prompt ends with task.opening, such as <think>, unless the template has opened the
    thoughts. Base models rarely start with that tag themselves, and a group of malformed
    completions gives no gradient, because all its rewards are equal.
    """
    messages = list_messages(task.system, question)
    if tokenizer.chat_template:
        text = render_chat(tokenizer, messages, kwargs)
    else:
        text = "".join(message["content"] + "\n\n" for message in messages)
    end = text.rstrip()
    if task.opening == "<think>" and end.endswith("</think>"):
        raise UserError(f"the chat template closes the thoughts in the prompt, but --task "
                        f"{task.name} asks for them: set its switch, such as "
                        "--chat_template_kwargs '{\"enable_thinking\": true}'")
    for tag in (task.opening, "<think>"):
        if tag and end.endswith(tag):
            return text, tag
    return text + task.opening, task.opening


def encode_prompts(tokenizer, task, questions, template_kwargs="{}"):
    """Encode questions, through the tokenizer's chat template if it has one.

    Args:
        tokenizer, task, questions: the task gives the system prompt and the opening.
        template_kwargs: JSON with further variables for the template, such as
            {"enable_thinking": false}. A template that writes today's date, as Llama 3.2's
            does, gives another prompt each day, unless the command line fixes the date:
            --chat_template_kwargs '{"date_string": "26 Jul 2024"}'.

    Returns:
        A list of (token ids, tag): the tag that the prompt ends with, such as <think>, or "".
    """
    try:
        kwargs = {**json.loads(template_kwargs), "add_generation_prompt": True, "tokenize": False}
    except (ValueError, TypeError):
        raise UserError(f"--chat_template_kwargs: {template_kwargs} is no JSON object") from None
    prompts = [write_prompt(tokenizer, task, question, kwargs)
               for question in tqdm(questions, "prompts", leave=False, delay=2, disable=None)]
    texts = [text for text, _ in prompts]
    # One call for all of them is much faster.
    encoded = tokenizer(texts, add_special_tokens=not tokenizer.chat_template)["input_ids"]
    for ids in encoded:
        # Without a template, some tokenizers add their end token to every text.
        if not tokenizer.chat_template and ids[-1:] == [tokenizer.eos_token_id]:
            ids.pop()
    return [(ids, tag) for ids, (_, tag) in zip(encoded, prompts)]


def encode_problems(task, tokenizer, stop_ids, config, cfg):
    """Encode the prompts of a task. Returns the task without the problems that do not fit into
    the model's context, or whose question has a control token of the model, which could end the
    user's turn and write the system's. Raises UserError if a split has no others.

    cfg.system, if given, replaces the system prompt. With "none", prompts are the questions and
    nothing else, because the tiny models, whose settings.json says so, know no other words."""
    if cfg.system == "none":
        task = task._replace(system="", opening="")
    elif cfg.system:
        task = task._replace(system=cfg.system)
    context = getattr(config.get_text_config(), "max_position_embeddings", None) or math.inf
    # With a tool, a completion is longer: support/tools.py says how long.
    longest = getattr(task.write, "longest", None)
    longest = longest(cfg) if longest else cfg.max_new_tokens
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values()
              if token.special or FAKE_TURN.search(token.content)]
    control = re.compile("|".join(map(re.escape, tokens)) or "(?!)")
    encoded = {}
    for split in ("train", "valid", "test"):
        problems = getattr(task, split)
        questions = [problem.question for problem in problems]
        prompts = questions and encode_prompts(tokenizer, task, questions, cfg.chat_template_kwargs)
        ids = [token for prompt, _ in prompts for token in prompt]
        if ids.count(tokenizer.unk_token_id) > len(ids) / 10:
            raise UserError(f"--task {task.name}: the model cannot read its {split} prompts, of "
                            f"which more than a tenth is {tokenizer.unk_token}, as in "
                            f"{tokenizer.decode(prompts[0][0])!r:.60}: name another --model, or "
                            "the settings that it was trained with, such as --system none")
        if max(ids, default=0) >= getattr(config.get_text_config(), "vocab_size", math.inf):
            raise UserError(f"--task {task.name}: a prompt has token {max(ids)}, but the model's "
                            "embedding ends before it: name a --model that fits its tokenizer")
        short = [problem._replace(prompt=prompt, opening=opening)
                 for problem, (prompt, opening) in zip(problems, prompts)
                 if len(prompt) + longest <= context]
        left = [problem for problem in short if not control.search(str(problem.question))]
        too_long = len(problems) - len(short)
        if lost := len(problems) - len(left):
            print(f"dropped {lost} of {len(problems)} {split} problems: {too_long} do not fit into "
                  f"the model's context of {context} with a completion of {longest} tokens, and "
                  f"{lost - too_long} have a control token of the model in their question")
        if not left:
            raise UserError(f"--task {task.name} has no {split} problems: give some, lower "
                            "--max_new_tokens, or take a --model with a longer context")
        encoded[split] = left
    return task._replace(**encoded)


# ---- A task by its name, or of your own: a Python file ----

def make_task(cfg):
    """Make the task that cfg.task names. Returns a Task. Raises UserError as load_task does."""
    task = load_task(cfg.task)[0](cfg)
    tested = {words_of(problem) for problem in task.test}
    known = sum(words_of(problem) in tested for problem in task.train)
    if known and not cfg.eval_only:  # which needs no training problems
        print(f"{known} training problems of --task {cfg.task} are test problems as well, so the "
              "test shows what the policy remembers, not what it has learned")
    return task


def load_task(name):
    """Return (make_task, settings) of a task: a key of TASKS, or the path of a Python file.

    The file has a function make_task(cfg) that returns a Task, and may have a dict SETTINGS of
    default settings. What the file itself raises keeps its traceback.
    """
    if name in TASKS:
        return TASKS[name], {}
    if not name.endswith(".py") or not os.path.isfile(name):
        raise UserError(f"--task {name}: there is no such file or task; give one of "
                        f"{', '.join(TASKS)}, or a Python file with a function make_task(cfg)")
    module = run_file(os.path.abspath(name))
    return module.make_task, getattr(module, "SETTINGS", {})


@functools.cache
def run_file(path):
    """Run a Python file as a module, which can import the project and the files next to it. A
    process has one module of each name: if two tasks have a helper.py, both get the first."""
    sys.path += [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(path)]
    name = os.path.basename(path).removesuffix(".py")
    while name in sys.modules:  # a file may be called math.py
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look for it there
    spec.loader.exec_module(module)
    return module
