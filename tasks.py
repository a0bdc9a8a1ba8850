"""The tasks of grpo_sg.py: what a task is; Knights and Knaves, and mathematics: problems
and verifiers. The third, questions with a search tool, has a room of its own, search/.

A `Task` is problems to train on and to test on, the system prompt, and a verifier that
says of one response whether its answer is right, and whether it is well formed. To a
verifier the response is hostile, being the text of a model that is paid for fooling it:
nothing here executes such a text, no verifier raises or hangs.
"""
import functools
import hashlib
import importlib
import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tqdm import tqdm

from support import data, tiny
from support.program import UserError, call_users
from verify.final_answer import final_answer
from verify.math_equal import math_equal
from verify.text import FAKE_TURN, visible, without_end


# ---- What a task is ----

class Problem(NamedTuple):
    question: str
    # what the verifier compares with: a dict name -> role, a gold answer or several
    answer: object
    # worked text that ends in the answer, which the tiny model imitates in its warm-up
    solution: str = ""
    # a text with a bad habit, for the warm-up too: for RL to find out that it does not pay
    shortcut: str = ""
    meaning: int = 0    # equal for problems that are the same up to wording
    # set once in a run, by models.encode_problems: the prompt's token ids, and the tag
    # that it ends with, such as <think>, which belongs to the response
    prompt: list[int] = ()
    opening: str = ""


class Verdict(NamedTuple):
    correct: bool    # the final answer is right
    formatted: bool  # the response keeps the form that the prompt asks for


def reward(completion):
    """AR-Lopti's: +3 right, -0.5 well formed but not right, -3 badly formed.
    completion: has `correct` and `formatted`, which is False also where it was cut
    off."""
    if not completion.formatted:
        return -3.0
    return 3.0 if completion.correct else -0.5


def judge(task, c):
    """Set what the task says of a completion: correct, formatted and the reward.
    Raises TaskError, with the traceback, if a function of the task raises."""
    words = f"verify of --task {task.name}, for {c.response!r}"
    verdict = call_users(task.verify, c.response, c.problem.answer, words=words)
    if not (isinstance(verdict, tuple) and len(verdict) == 2
            and all(each in (True, False) for each in verdict)):
        raise UserError(f"{words}: {verdict!r} must be a tasks.Verdict of True and False; "
                        "partial credit is for Task.reward")
    c.correct = bool(verdict[0])
    c.formatted = bool(verdict[1]) and not c.truncated
    words = f"reward of --task {task.name}, for {c.response!r}"
    reward = call_users(task.reward, c, words=words)
    c.reward = call_users(float, reward, words=words)
    if not math.isfinite(c.reward):
        raise UserError(f"{words}: {c.reward} is not finite")


class Task(NamedTuple):
    name: str
    system: str              # the system prompt
    train: list[Problem]
    # for choosing settings and for the curve; the test set is for the last number
    valid: list[Problem]
    test: list[Problem]
    verify: Callable[[str, object], Verdict]      # (response, Problem.answer) -> Verdict
    floor: float             # test accuracy of the best constant answer
    # of a grpo_sg.Completion: one's own may give partial credit
    reward: Callable[[object], float] = reward
    # what every response begins with: the prompt of a real model ends with it, and the
    # policy goes on
    opening: str = ""
    stop_text: str = ""      # of a task with a tool: the text that ends a call of it
    # the tool's answers to texts that end with a call
    observe: Callable[[list[str]], list[str]] | None = None
    max_turns: int = 2       # turns whose calls are answered, before one last turn
    warmup: int = 300        # steps of the tiny model's warm-up
    # share of the warm-up's texts that are shortcuts, in place of solutions
    shortcuts: float = 0.0
    # pattern of the tiny model's tokens: words, each with the space before it
    tokens: str = r"\s?\S+"


def make_task(cfg):
    """The task that cfg.task names. Raises UserError if it is no usable Task."""
    if not callable(TASKS[cfg.task]):
        raise UserError(f"tasks.TASKS[{cfg.task!r}] must be a function of the settings that "
                        "returns a tasks.Task")
    task = TASKS[cfg.task](cfg)
    owner = f"the Task of tasks.TASKS[{cfg.task!r}]"
    if not isinstance(task, Task):
        raise UserError(f"{owner} must be a tasks.Task, not {task!r:.60}")
    for name in ("train", "valid", "test"):
        check_problems(owner, name, getattr(task, name))
    number = (int, float)
    kinds = {"system": str, "floor": number, "opening": str, "stop_text": str,
             "max_turns": int, "warmup": int, "tokens": str, "shortcuts": number}
    for name, kind in kinds.items():
        value = getattr(task, name)
        if not isinstance(value, kind):
            raise UserError(f"{owner} has {value!r:.60} as {name}: see tasks.Task")
    if not callable(task.verify) or not callable(task.reward):
        raise UserError(f"{owner} needs functions as verify and reward")
    if task.observe and not task.stop_text:
        raise UserError(f"{owner} has a tool, observe: it needs a stop_text, too, which ends "
                        "a call of it")
    if task.warmup < 1 or not 0 <= task.shortcuts <= 1:
        raise UserError(f"{owner}: warmup must be 1 or more, and shortcuts a share from 0 to 1")
    if not cfg.eval_only and task.train in (task.valid, task.test):
        raise UserError(f"{owner} trains on the problems that it is tested on: give others")
    return task


def check_problems(owner, name, problems):
    """Raise UserError unless these are problems with texts."""
    if not isinstance(problems, list) or not problems:
        raise UserError(f"{owner} needs a list of tasks.Problem as {name}, not "
                        f"{problems!r:.60}")
    for problem in problems:
        if not isinstance(problem, Problem):
            raise UserError(f"{owner} has {problem!r:.60} in {name}: not a tasks.Problem")
        texts = (problem.question, problem.solution, problem.shortcut)
        whole = all(isinstance(text, str) and is_whole(text) for text in texts)
        if not whole or not problem.question:
            raise UserError(f"{owner} has {problem!r:.60} in {name}: a question is a text "
                            "that is not empty, solution and shortcut are texts")


def is_whole(text):
    """Not so with half a character, which no tokenizer can read."""
    return text.encode(errors="replace").decode() == text


def most_frequent(answers):
    """The share of the most frequent one; 0 of none."""
    counts = Counter(answers)
    return max(counts.values(), default=0) / max(1, counts.total())


def digest(*parts):
    """An integer made of the parts, which does not change from run to run or between
    versions of Python."""
    text = repr(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def split_of(meaning):
    """A seventh of all meanings is "test", a seventh "valid", whatever the seed."""
    return ("test", "valid", *["train"] * 5)[meaning % 7]


# ---- Knights and Knaves: a knight's claim is true, a knave's is false ----

NAMES = ("Ada Alice Amir Anna Ben Bianca Carl Chloe Clara Daniel David Dora Elena Emil "
         "Emma Eric Eva Felix Finn Grace Hana Henry Ida Ivan Jack Jane Jonas Julia Kai "
         "Karen Leo Lily Lucas Maria Max Mia Nina Noah Olga Oscar Paul Peter Rosa Ruth Sam "
         "Sara Simon Theo Tom Vera Zoe").split()
KK_SYSTEM = ("You solve logic puzzles. Think about the puzzle step by step inside <think> "
             "and </think>. Then name everybody's role inside <answer> and </answer>, for "
             "example: <answer> (1) Zoey is a knight (2) Oliver is a knave </answer>. "
             "Write nothing after that.")
KK_STORY = ("On this island everyone is either a knight, who always tells the truth, or a "
            "knave, who always lies. You meet {n} inhabitants of it on the shore: {names}. "
            "{told} Who is a knight and who is a knave?")
SAYINGS = ["{} says that {}.", "{} said to you that {}.", "{} tells you that {}.",
           "{} told you that {}.",
           "{} claims that {}.", "{} claimed that {}.", "{} stated that {}.",
           "{} declares that {}.",
           "{} remarked that {}.", "{} would have you know that {}.", "{} insists that {}.",
           "{} mentioned that {}.", "{} swears that {}.", "{} lets you know that {}.",
           "According to {}, {}.", "In the words of {}, {}.", "As {} puts it, {}.",
           "If you believe {}, {}."]
KINDS = {"leaf": "{0}", "not": "it is not true that {0}", "and": "{0} and {1}",
         "or": "{0} or {1}",
         "if": "if {0} then {1}", "iff": "{0} if and only if {1}"}  # kind of claim: its words
BRIEF = {**KINDS, "not": "not {0}", "iff": "{0} iff {1}"}  # and without a story


def kk_claim(n, speaker, rng):
    """One claim, such as ("if", (0, "knight"), (2, "knave")): its kind, and its one or
    two leaves, each a person and the role that it gives them."""
    kind = rng.choice(tuple(KINDS))
    leaves = [kk_leaf(n, speaker, rng)]
    while kind not in ("leaf", "not") and len(leaves) < 2:
        second = kk_leaf(n, speaker, rng)
        if second != leaves[0]:
            leaves.append(second)
    return kind, *leaves


def kk_leaf(n, speaker, rng):
    """A person and a role; not "I am a knave", which alone nobody can say."""
    person, role = speaker, "knave"
    while (person, role) == (speaker, "knave"):
        person = rng.randrange(n)
        role = "knight" if rng.random() < 0.5 else "knave"
    return person, role


def kk_truth(claim, knight, every):
    """The assignments of roles in which the claim is true. Assignments are numbers, and
    a set of them is an integer with their bits: knight[person] is those in which the
    person is a knight, `every` is all."""
    kind, *leaves = claim
    said = [knight[person] if role == "knight" else every ^ knight[person] for person,
            role in leaves]
    x, y = said[0], said[-1]
    if kind == "leaf":
        return x
    if kind == "not":
        return every ^ x
    if kind == "and":
        return x & y
    if kind == "or":
        return x | y
    if kind == "if":
        return (every ^ x) | y
    return every ^ x ^ y


def kk_words(claim, names, brief=False):
    """The claim in English, or in telegraphic English."""
    kind, *leaves = claim
    said = []
    for person, role in leaves:
        said.append(f"{names[person]} {role}" if brief else f"{names[person]} is a {role}")
    return (BRIEF if brief else KINDS)[kind].format(*said)


@functools.cache
def kk_assignments(n):
    """(knight, every), as kk_truth has them, of n people: bit `person` of an assignment
    is 1 for a knave."""
    numbers = range(2 ** n)
    knight = [sum(1 << a for a in numbers if not a >> person & 1) for person in range(n)]
    return knight, (1 << 2 ** n) - 1


def kk_left(claims):
    """For each claim the assignments, as bits, that fit it and the claims before it: a
    knight's is true, a knave's is not."""
    knight, left = kk_assignments(len(claims))
    every = left
    found = []
    for speaker, claim in enumerate(claims):
        left &= every ^ knight[speaker] ^ kk_truth(claim, knight, every)
        found.append(left)
    return found


@functools.lru_cache(10_000)
def kk_word(assignment, n):
    """KNK: the first and third of three people are knights, the second is a knave."""
    return "".join("N" if assignment >> person & 1 else "K" for person in range(n))


def kk_text(left, names):
    """A response: for each person the assignments that their claim leaves, the last of
    which is the answer."""
    lines = []
    for name, bits in zip(names, left):
        words = [kk_word(a, len(names)) for a in range(2 ** len(names)) if bits >> a & 1]
        lines.append(f"{name}: {' '.join(words)}.")
    roles = ["knight" if letter == "K" else "knave" for letter in words[-1]]
    answer = ", ".join(f"{name} is a {role}" for name, role in zip(names, roles))
    return f"<think> {' '.join(lines)} </think> <answer> {answer} </answer>"


def kk_puzzle(n, rng, *, brief=False):
    """A puzzle of n people (2 to 8) with exactly one consistent assignment of roles;
    its answer is a dict name -> "knight" or "knave". `brief` leaves out the story and
    keeps the first n names: the claims alone, which a tiny model can learn to read.
    Random draws are rejected until one has a single solution; a third have. The
    shortcut breaks off before the last claim. Raises UserError for other sizes."""
    question, names, claims, left = kk_draw(n, rng, brief)
    return kk_problem(question, names, left, kk_meaning(claims))


def kk_draw(n, rng, brief):
    """(question, names, claims, left) of a puzzle; left: what kk_left says of the claims."""
    if not 2 <= n <= 8:
        raise UserError(f"a puzzle needs 2 to 8 people, not {n}")
    names = NAMES[:n] if brief else rng.sample(NAMES, n)
    left = [0]
    while left[-1].bit_count() != 1:
        claims = [kk_claim(n, speaker, rng) for speaker in range(n)]
        left = kk_left(claims)
    words = [kk_words(claim, names, brief) for claim in claims]
    if brief:
        question = " ".join(f"{name}: {claim}." for name, claim in zip(names, words))
    else:
        told = " ".join(rng.choice(SAYINGS).format(*pair) for pair in zip(names, words))
        people = ", ".join(names[:-1]) + " and " + names[-1]
        question = KK_STORY.format(n=n, names=people, told=told)
    return question, names, claims, left


def kk_problem(question, names, left, meaning):
    word = kk_word(left[-1].bit_length() - 1, len(names))
    roles = ["knight" if letter == "K" else "knave" for letter in word]
    return Problem(question, answer=dict(zip(names, roles)), solution=kk_text(left, names),
                   shortcut=kk_text(left[:-1], names), meaning=meaning)


@functools.lru_cache(10_000)
def kk_table(claim, first, second=None):
    """The claim's truth table over the roles of these people, as the bits of an
    integer."""
    if second is None:
        return kk_truth(claim, {first: 0b10}, 0b11)
    return kk_truth(claim, {first: 0b1010, second: 0b1100}, 0b1111)


def kk_meaning(claims):
    """An integer that puzzles share which are the same but for names and logically
    equivalent words: colour refinement on the graph of who speaks of whom. Others can
    share it too (symmetric ones, rarely): then a held-out split has only one of them,
    and still none gets into two splits."""
    # (speaker, person, the claim's truth table with that person first, the other person)
    mentions = []
    for speaker, claim in enumerate(claims):
        x, *others = dict.fromkeys(person for person, _ in claim[1:])
        if others:
            y = others[0]
            mentions.append((speaker, x, kk_table(claim, x, y), y))
            mentions.append((speaker, y, kk_table(claim, y, x), x))
        else:
            table = kk_table(claim, x)
            always = table in (0b00, 0b11)  # true or false, whoever they are: about nobody
            mentions.append((speaker, speaker if always else x, table, None))
    colours = [0] * len(claims)
    for _ in claims:
        seen = [[] for _ in claims]
        for speaker, person, table, other in mentions:
            edge = (speaker == person, other == speaker, table, -1 if other is None
                    else colours[other])
            seen[speaker].append((0, colours[person], *edge))
            seen[person].append((1, colours[speaker], *edge))
        colours = [digest(colour, sorted(edges)) for colour, edges in zip(colours, seen)]
    return digest(sorted(colours))


def kk_split(split, count, people, seed, *, brief=False):
    """Up to `count` puzzles of a split ("train", "valid" or "test"), the sizes in
    `people` in turn.

    Its meaning decides a puzzle's split, so that none of one split occurs in another,
    of whatever seed, in other names or words. In its own it occurs once (in "train":
    once word for word). Of a size that has no new puzzle in 1,000 draws no more come:
    for two people there are only 41 meanings.
    """
    problems = []
    seen = set()
    left = list(people)  # sizes that still have new puzzles
    for i in tqdm(range(count), f"{split} problems", leave=False, delay=2):
        n = people[i % len(people)]
        if n not in left:
            continue
        problem = kk_new(split, n, random.Random(f"{seed} {split} {i}"), brief, seen)
        if problem:
            problems.append(problem)
        else:
            left.remove(n)
    return problems


def kk_new(split, n, rng, brief, seen):
    """A puzzle of the split that is not in the set `seen` of meanings or, for "train",
    of questions, to which it is added; None after 1,000 draws."""
    for _ in range(1000):
        question, names, claims, left = kk_draw(n, rng, brief)
        if split == "train" and question in seen:
            continue
        meaning = kk_meaning(claims)
        key = question if split == "train" else meaning
        if split_of(meaning) == split and key not in seen:
            seen.add(key)
            return kk_problem(question, names, left, meaning)
    return None


# One clause of an answer; the rest of the pattern is the names of the puzzle.
KK_CLAUSE = r"(?:\(?\d{{1,2}}[.):]\s*|[-*\u2022]\s+)?({})\s+is\s+an?\s+(knight|knave)(?![\w'-])"
KK_BETWEEN = re.compile(r"[\s,;.]+|and(?!\w)", re.I)
TAG = re.compile(r"<[\s/]*(?:think|answer)\b[^<>]*>", re.I)
BLANK = "\u115f\u1160\u3164\uffa0"  # letters that show nothing


def verify_kk(response, roles):
    """Grade one response to a puzzle; `roles`: dict name -> "knight" or "knave". Give
    it the response without the prompt, but with <think> if that is how the prompt ends.

    `formatted`: the whole response is `<think>` thoughts `</think> <answer>` roles
    `</answer>`, each tag once and in lower case, something in the thoughts, and nothing
    else but white space, stop tokens and a full stop at the end; no turn of a dialogue
    is faked inside. `correct`: it is well formed, and the answer gives everybody the
    right role and says nothing else.
    """
    body = without_end(response)
    shown = visible(body)
    tags = [re.sub(r"\s", "", tag).lower() for tag in TAG.findall(shown)]
    if tags != ["<think>", "</think>", "<answer>", "</answer>"] or FAKE_TURN.search(shown):
        return Verdict(False, False)
    # Logic-RL and AR-Lopti let anything follow the answer. A full stop says nothing,
    # but one more line could take the answer back or hedge it; as some of a group end
    # without one, not to write it is learned.
    parts = re.fullmatch(r"<think>(.*)</think>\s*<answer>(.*)</answer>\s*\.?", body, re.S)
    if not parts or not any(c.isalnum() and c not in BLANK for c in parts[1]):
        return Verdict(False, False)
    return Verdict(read_roles(parts[2], list(roles)) == roles, True)


def read_roles(answer, names):
    """The roles that an answer gives, as a dict name -> role, or None where anything in
    it is not a clause of the form `NAME is a ROLE`: a negation, a hedge, a quotation, a
    retraction, a stranger, or two roles for one name."""
    if len(answer) > sum(200 + 2 * len(name) for name in names):
        return None  # nobody needs that much: a bound on the work
    shown = "".join(names) + "".join(unicodedata.normalize(form, "".join(names))
                                     for form in ("NFC", "NFD"))
    letters = {*(shown + shown.lower() + shown.upper()), *"\u2019\u2010\u2011\u2022\u00a0"}
    if not all(c.isascii() or c in letters for c in answer):
        return None  # a letter that only looks like one of a name or of a role

    def same_case(text):
        text = text.translate(str.maketrans("\u2019\u2010\u2011\u00a0", "'-- "))
        return unicodedata.normalize("NFC", text).casefold()
    plain = {" ".join(same_case(name).split()): name for name in names}
    answer = same_case(answer.replace("**", "").replace("__", ""))
    name = "|".join(re.escape(name).replace(r"\ ", r"\s+") for name in sorted(plain, key=len,
                                                                              reverse=True))
    clause = re.compile(KK_CLAUSE.format(name))
    found = {}
    at = 0
    while at < len(answer):
        if match := clause.match(answer, at):
            who = plain[" ".join(match[1].split())]
            if found.setdefault(who, match[2]) != match[2]:
                return None
        elif not (match := KK_BETWEEN.match(answer, at)):
            return None
        at = match.end()
    return found or None


def kk_published(people):
    """(train, test) of the puzzles published with mem-kk-logic (arXiv 2410.23123),
    split as Logic-RL does: of the 1,000 of a size, 200 of two people, the last 100 are
    for the test."""
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
    """Knights and Knaves. cfg has data ("synthetic" or "published"), eval_data (""),
    people, model, eval_only, seed, train_problems, eval_problems. Validation puzzles are
    always generated. Raises UserError where these do not fit."""
    if not all(2 <= n <= 8 for n in cfg.people):
        raise UserError("--people must be sizes from 2 to 8, not "
                        f"{' '.join(map(str, cfg.people))}")
    data.check_name("--data", cfg.data, ("synthetic", "published"), files=False)
    if cfg.eval_data:
        raise UserError(f"--task kk has its own test puzzles: leave out --eval_data "
                        f"{cfg.eval_data}")
    brief = tiny.is_tiny(cfg.model)  # it reads claims without a story
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
    floor = 0.0
    for n in set(cfg.people):
        answers = [tuple(p.answer.values()) for p in test if len(p.answer) == n]
        floor += most_frequent(answers) * len(answers) / len(test)
    return Task("kk", KK_SYSTEM, train, valid, test, verify_kk, floor, opening="<think>",
                tokens=r"\s?(?:\w+ is a )?\S+", warmup=500, shortcuts=0.6)


# ---- Mathematics: problems from the hub, a file, or a generator ----

# Qwen2.5's own
MATH_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def verify_math(response, gold):
    """Grade one response; `gold`: the bare answer, or several of which any will do.
    `formatted`: there is a final_answer, each box of at most 500 characters. `correct`: it
    equals a gold one, by math_equal. Without answer tags only the box is read, and not
    what stands beside it."""
    answer = final_answer(response)
    right = bool(answer) and any(math_equal(answer, each) for each in as_answers(gold))
    return Verdict(right, bool(answer))


# What stands before an answer that was not taken out of its text.
ANSWER_MARK = re.compile(r"####|\\boxed|\banswer\b|\A\s*=", re.I)


def is_gold(answer):
    """Whether a completion can match the gold answer: its own text in a box does, and it
    is the bare answer."""
    matched = verify_math(f"\\boxed{{{answer}}}", answer).correct
    return matched and not ANSWER_MARK.search(answer)


def as_answers(gold):
    """The gold answers as a list of strings: of one answer, a text or a number, or of
    several."""
    if isinstance(gold, (str, int, float)):
        gold = [gold]
    return [str(each) for each in gold]


def arithmetic(rng):
    """A sum of two numbers of three digits, or a product of one with a digit. The
    worked solution adds to each column, from the right, what the one before carries
    over; for 347*6 it is "7*6=42+0=42,4*6=24+4=28,3*6=18+2=20.". It writes zeros too,
    so that a digit always stands at the same distance from those that it is made of,
    which is learned sooner. The meaning is the unordered pair of operands."""
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
    # The shortcut is to answer at once, which is right less often.
    shortcut = f"\\boxed{{{answer}}}"
    return Problem(f"{a}{sign}{b}", answer, solution, shortcut, digest(min(a, b), max(a, b)))


def arithmetic_split(split, count, seed):
    """`count` problems of a split, "train", or at most 20,000 of "valid" or "test",
    which have 58,000 pairs.

    The pair of operands decides a problem's split, so that no two numbers that meet in
    one split meet in another, of whatever seed, order or operation. In a held-out split
    they meet once; training repeats.
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
    """Mathematics. cfg has eval_only, data ("synthetic", a name of data.MATH_TRAIN, or a file),
    eval_data ("synthetic", a name of data.MATH_TEST, a file, or "" for the set that
    belongs to data), model, seed, train_problems, eval_problems. Problems to validate
    on come from a set's training. Raises UserError as kk_task does."""
    eval_data = data.choose_eval_data(cfg, data.MATH_PAIRS)
    if eval_data == "synthetic":
        test = arithmetic_split("test", cfg.eval_problems, cfg.seed)
    else:
        test = [Problem(*row) for row in data.load_math(eval_data, data.MATH_TEST, is_gold)]
    if cfg.eval_only:
        train, valid = test, test  # which are not used: the test alone is read
    elif cfg.data == "synthetic":
        train = arithmetic_split("train", cfg.train_problems, cfg.seed)
        valid = arithmetic_split("valid", cfg.eval_problems, cfg.seed)
    else:
        found = [Problem(*row) for row in data.load_math(cfg.data, data.MATH_TRAIN, is_gold)]
        train, valid = data.hold_out(found, test, eval_data, cfg)
    return Task("math", MATH_SYSTEM, train, valid, test, verify_math, shortcuts=0.5, warmup=320,
                floor=most_frequent(str(problem.answer) for problem in test),
                tokens=r"\\boxed\{|.")


# ---- Questions with a search tool: search/task.py ----

def verify_qa(response, golds):
    """Grade one response to a question: search.task.verify_qa."""
    return search_room().verify_qa(response, golds)


def qa_task(cfg):
    """Questions with a search tool: search.task.qa_task."""
    return search_room().qa_task(cfg)


def search_room():
    """The module search.task. Raises UserError if it is not there."""
    try:
        return importlib.import_module("search.task")
    except ModuleNotFoundError as error:
        if error.name not in ("search", "search.task"):
            raise
        raise UserError("the folder search/ is missing, which has --task qa: put it back, or "
                        "give another --task") from None


# name -> function of the settings, to a Task
TASKS = {"kk": kk_task, "math": math_task, "qa": qa_task}
