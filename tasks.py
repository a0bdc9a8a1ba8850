"""The tasks of grpo_sg.py: puzzles, data sets, answer checkers, and the tiny model of the offline run.

A `Task` is problems to train on and to test on, the system prompt, and a verifier that says of one response
whether its answer is right, and whether it is well formed. To a verifier the response is hostile, being the
text of a model that is paid for fooling it: nothing here executes such a text, no verifier raises or hangs.
"""
import functools
import itertools
import math
import random
import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from support import data, threads
from support.final_answer import final_answer
from support.math_equal import math_equal
from support.program import fail, first_line
from support.text import FAKE_TURN, bm25, plain_answers, visible, without_end
from support.tool import observation, turns
from support.words import BRANDS, CITIES, FIRMS, NAMES, SURNAMES


class Problem(NamedTuple):
    question: str
    answer: object      # what the verifier compares with: a dict name -> role, a gold answer or several
    solution: str = ""  # worked text that ends in the answer, for the warm-up of the tiny model
    meaning: int = 0    # equal for problems that are the same up to wording


class Verdict(NamedTuple):
    correct: bool    # the final answer is right
    formatted: bool  # the response keeps the form that the prompt asks for


class Task(NamedTuple):
    name: str
    system: str              # the system prompt
    train: list[Problem]
    valid: list[Problem]     # for choosing settings and for the curve; the test set is for the last number
    test: list[Problem]
    verify: Callable[[str, object], Verdict]      # (response, Problem.answer) -> Verdict
    floor: float             # test accuracy of the best constant answer
    demo: Callable[[Problem, random.Random], str] | None = None  # a text that the tiny model is warmed up on
    warmup: int = 300        # steps of the tiny model's warm-up on them
    tokens: str = r"\s?\S+"  # pattern of the tiny model's tokens: words, each with the space before it
    stop_text: str = ""      # of a task with a tool: the text that ends a call of it
    observe: Callable[[str], str] | None = None  # what the tool answers to a text that ends with a call
    opening: str = ""        # what every response begins with: the prompt ends with it, the policy goes on
    # A reward of one's own for a grpo_sg.Completion, partial credit included; None: those of grpo_sg.reward.
    reward: Callable[[object], float] | None = None


def most_frequent(answers):
    """The share of the most frequent one; 0 of none."""
    counts = Counter(answers)
    return max(counts.values(), default=0) / max(1, counts.total())


def make_task(cfg):
    """The task that cfg.task names. Raises ValueError where what it returns is no usable Task."""
    task = TASKS[cfg.task](cfg)
    if not (isinstance(task, Task) and callable(task.verify) and isinstance(task.floor, float | int)
            and isinstance(task.system, str) and isinstance(task.warmup, int)
            and all(isinstance(p, Problem) for p in [*task.train, *task.valid, *task.test])):
        raise ValueError(f"tasks.TASKS[{cfg.task!r}] must return a tasks.Task: lists of tasks.Problem to "
                         "train, validate and test on, a system prompt, verify, a number as floor, and a "
                         "number of steps as warmup")
    return task


def verdict_of(task, c):
    """The verdict on a completion; one line where verify raises, or returns something else."""
    try:
        verdict = task.verify(c.response, c.problem.answer)
    except Exception as error:
        fail(f"verify of --task {task.name} raised {first_line(error)} for {c.response!r}")
    if not isinstance(verdict, Verdict) or None in verdict:
        fail(f"verify of --task {task.name} must return tasks.Verdict(correct, formatted), not {verdict!r}")
    return verdict


def reward_of(task, c, default):
    """The completion's reward, by the task's own function or the default; one line where it is no number."""
    try:
        reward = float((task.reward or default)(c))
    except Exception as error:
        fail(f"the reward of --task {task.name} raised {first_line(error)} for {c.response!r}")
    if not math.isfinite(reward):
        fail(f"--task {task.name} gave the reward {reward}, which is not finite, to {c.response!r}")
    return reward


def split_of(meaning):
    """A seventh of all meanings is "test", a seventh "valid", whatever the seed."""
    return ("test", "valid", *["train"] * 5)[meaning % 7]


def encode_prompt(tokenizer, system, question, opening=""):
    """Token ids of a prompt, through the tokenizer's chat template where it has one. It ends with `opening`,
    as some templates do anyway: base models hardly ever begin with <think>, and a group of badly formed
    responses teaches nothing. Where the template leaves the system prompt out, as the tiny model's does, the
    form has been learned before, and the model opens its thoughts itself."""
    text = f"{system}\n\n{question}\n\n"
    if tokenizer.chat_template:
        chat = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    if system in text and not text.rstrip().endswith(opening):
        text += opening
    return tokenizer(text, add_special_tokens=not tokenizer.chat_template)["input_ids"]


def keep_short(task, tokenizer, most):
    """The task with those problems whose prompts have at most `most` tokens; prints how many went. Raises
    ValueError where none is left."""
    kept = {}
    for split in ("train", "valid", "test"):
        problems = getattr(task, split)
        lengths = [len(encode_prompt(tokenizer, task.system, p.question, task.opening)) for p in problems]
        kept[split] = [problem for problem, length in zip(problems, lengths) if length <= most]
        if not problems:
            raise ValueError(f"--task {task.name} has no {split} problem")
        if not kept[split]:
            raise ValueError(f"all {split} problems have prompts of {min(lengths)} tokens or more, and "
                             "the model has no room for them: lower --max_new_tokens")
        if len(kept[split]) < len(problems):
            gone = len(problems) - len(kept[split])
            print(f"dropped {gone} of {len(problems)} {split} problems: their prompts, of up to "
                  f"{max(lengths)} tokens, leave too little room in the model's context")
    return task._replace(**kept)


# ---- Knights and Knaves: each of n people makes a claim, true of a knight, false of a knave ----

KK_SYSTEM = ("You solve logic puzzles. Think about the puzzle step by step inside <think> and </think>. "
             "Then name everybody's role inside <answer> and </answer>, for example: <answer> (1) Zoey is a "
             "knight (2) Oliver is a knave </answer>. Write nothing after that.")
KK_HUB = "K-and-K/knights-and-knaves"
SAYINGS = ["{} says that {}.", "{} said to you that {}.", "{} tells you that {}.", "{} told you that {}.",
           "{} claims that {}.", "{} claimed that {}.", "{} stated that {}.", "{} declares that {}.",
           "{} remarked that {}.", "{} would have you know that {}.", "{} insists that {}.",
           "{} mentioned that {}.", "{} swears that {}.", "{} lets you know that {}.",
           "According to {}, {}.", "In the words of {}, {}.", "As {} puts it, {}.", "If you believe {}, {}."]
ROLES = ("knight", "knave")
KINDS = {"leaf": ("{0}", lambda x, y: x),  # kind of claim: its words, and its truth
         "not": ("it is not true that {0}", lambda x, y: not x),
         "and": ("{0} and {1}", lambda x, y: x and y), "or": ("{0} or {1}", lambda x, y: x or y),
         "if": ("if {0} then {1}", lambda x, y: y or not x),
         "iff": ("{0} if and only if {1}", lambda x, y: x == y)}
BRIEF = {"not": "not {0}", "iff": "{0} iff {1}"}  # other words, without a story
KK_STORY = ("On this island everyone is either a knight, who always tells the truth, or a knave, who always "
            "lies. You meet {n} inhabitants of it on the shore: {names}. {told} Who is a knight and who is "
            "a knave?")


def kk_claim(n, speaker, rng):
    """One claim, such as ("if", (0, "knight"), (2, "knave")): its kind and its two leaves, each a person and
    the role that it gives them. A "leaf" and its negation "not" have their one leaf twice."""
    def leaf():
        while True:
            person = rng.randrange(n)
            role = "knight" if rng.random() < 0.5 else "knave"
            if (person, role) != (speaker, "knave"):  # "I am a knave": alone, nobody can say it
                return person, role
    kind = rng.choice(tuple(KINDS))
    first = second = leaf()
    while kind not in ("leaf", "not") and second == first:
        second = leaf()
    return kind, first, second


def kk_truth(claim, roles):
    """Whether the claim is true; roles[person] is the role of each."""
    kind, (a, x), (b, y) = claim
    return KINDS[kind][1](roles[a] == x, roles[b] == y)


def kk_words(claim, names, brief=False):
    """The claim in English, or in telegraphic English."""
    kind, *leaves = claim
    words = BRIEF.get(kind, KINDS[kind][0]) if brief else KINDS[kind][0]
    return words.format(*(f"{names[person]} {'' if brief else 'is a '}{role}" for person, role in leaves))


def kk_left(claims):
    """For each claim the assignments of roles, tuples, that fit it and the claims before it: a knight's is
    true, a knave's is not. Of the assignments at the start the first person's role changes fastest."""
    left = [roles[::-1] for roles in itertools.product(ROLES, repeat=len(claims))]
    found = []
    for speaker, claim in enumerate(claims):
        left = [roles for roles in left if kk_truth(claim, roles) == (roles[speaker] == "knight")]
        found.append(left)
    return found


def kk_solution(left, names):
    """Worked text: for each person the assignments that their claim leaves, until it is one. KNK: the first
    and third of the people are knights, the second is a knave."""
    words = [["".join({"knight": "K", "knave": "N"}[role] for role in roles) for roles in step]
             for step in left]
    return kk_text([f"{name}: {' '.join(step)}" for name, step in zip(names, words)], names, words[-1][0])


def kk_text(lines, names, word):
    """A response in the form that the prompt asks for; word: as KNK above."""
    roles = ["knight" if letter == "K" else "knave" for letter in word]
    answer = ", ".join(f"{name} is a {role}" for name, role in zip(names, roles))
    return f"<think> {'. '.join(lines)}. </think> <answer> {answer} </answer>"


def kk_puzzle(n, rng, *, brief=False):
    """A puzzle of n people (2 to 8) with exactly one consistent assignment of roles; its answer is a dict
    name -> "knight" or "knave". `brief` leaves out the story and keeps the first n names: the claims alone,
    which a tiny model can learn to read. Random draws are rejected until one has a single solution; a third
    have. Raises ValueError for other sizes."""
    if not 2 <= n <= 8:
        raise ValueError(f"a puzzle needs 2 to 8 people, not {n}")
    names = NAMES[:n] if brief else rng.sample(NAMES, n)
    left = [[]]
    while len(left[-1]) != 1:
        claims = [kk_claim(n, speaker, rng) for speaker in range(n)]
        left = kk_left(claims)
    words = [kk_words(claim, names, brief) for claim in claims]
    if brief:
        question = " ".join(f"{name}: {claim}." for name, claim in zip(names, words))
    else:
        told = " ".join(rng.choice(SAYINGS).format(*pair) for pair in zip(names, words))
        question = KK_STORY.format(n=n, names=", ".join(names[:-1]) + " and " + names[-1], told=told)
    return Problem(question, dict(zip(names, left[-1][0])), kk_solution(left, names), kk_meaning(claims))


@functools.lru_cache(10_000)
def kk_table(claim, *people):
    """The claim's truth table over the roles of these people, as the bits of an integer."""
    cases = itertools.product(("knave", "knight"), repeat=len(people))
    return sum(2 ** i for i, roles in enumerate(cases) if kk_truth(claim, dict(zip(people[::-1], roles))))


def kk_meaning(claims):
    """An integer that puzzles share which are the same but for names and logically equivalent words: colour
    refinement on the graph of who speaks of whom. Others can share it too (symmetric ones, rarely): then a
    held-out split has only one of them, and still none gets into two splits."""
    mentions = []  # (speaker, person, the claim's truth table with that person first, the other person)
    for speaker, claim in enumerate(claims):
        _, (x, _), (y, _) = claim
        if x == y:
            table = kk_table(claim, x)
            always = table in (0b00, 0b11)  # true or false, whoever they are: about nobody
            mentions.append((speaker, speaker if always else x, table, None))
        else:
            mentions.append((speaker, x, kk_table(claim, x, y), y))
            mentions.append((speaker, y, kk_table(claim, y, x), x))
    colours = [0] * len(claims)
    for _ in claims:
        seen = [[] for _ in claims]
        for speaker, person, table, other in mentions:
            edge = (speaker == person, other == speaker, table, -1 if other is None else colours[other])
            seen[speaker].append((0, colours[person], *edge))
            seen[person].append((1, colours[speaker], *edge))
        colours = [hash((colour, *sorted(edges))) for colour, edges in zip(colours, seen)]
    return hash(tuple(sorted(colours)))  # hashes of integers do not change from run to run


def kk_split(split, count, people, seed, *, brief=False):
    """Up to `count` puzzles of a split ("train", "valid" or "test"), the sizes in `people` in turn.

    Its meaning decides a puzzle's split, so that none of one split occurs in another, of whatever seed, in
    other names or words. In its own it occurs once (in "train": once word for word). Of a size that has no
    new puzzle in 1,000 draws no more come: for two people there are only 41 meanings.
    """
    problems = []
    seen = set()   # meanings, or questions
    spent = set()  # sizes
    for i in range(count):
        n = people[i % len(people)]
        rng = random.Random(f"{seed} {split} {i}")
        for _ in range(0 if n in spent else 1000):
            problem = kk_puzzle(n, rng, brief=brief)
            key = problem.question if split == "train" else problem.meaning
            if split_of(problem.meaning) == split and key not in seen:
                seen.add(key)
                problems.append(problem)
                break
        else:
            spent.add(n)
    return problems


# One clause of an answer; the rest of the pattern is the names of the puzzle.
KK_CLAUSE = r"(?:\(?\d{{1,2}}[.):]\s*|[-*\u2022]\s+)?({})\s+is\s+an?\s+(knight|knave)(?![\w'-])"
KK_BETWEEN = re.compile(r"[\s,;.]+|and(?!\w)", re.I)
TAG = re.compile(r"<[\s/]*(?:think|answer)\b[^<>]*>", re.I)
BLANK = "\u115f\u1160\u3164\uffa0"  # letters that show nothing


def verify_kk(response, roles):
    """Grade one response to a puzzle; `roles`: dict name -> "knight" or "knave".

    `formatted`: the whole response is `<think>` thoughts `</think> <answer>` roles `</answer>`, each tag
    once and in lower case, something in the thoughts, and nothing else but white space, end tokens and a
    full stop at the end; no turn of a dialogue is faked inside. `correct`: the one answer block, outside the
    thoughts, gives everybody the right role and says nothing else. Give it the response without the prompt.
    """
    body = without_end(response)
    shown = visible(body)
    tags = [re.sub(r"\s", "", tag).lower() for tag in TAG.findall(shown)]
    before, _, rest = body.partition("<answer>")
    answer, closed, after = rest.partition("</answer>")
    # Logic-RL and AR-Lopti let anything follow the answer. A full stop says nothing, but one more line could
    # take the answer back or hedge it; where some of a group end without one, not to write it is learned.
    ends = bool(closed) and after.strip() in ("", ".")
    think = re.fullmatch(r"<think>(.*)</think>\s*", before, re.S)
    formatted = (tags == ["<think>", "</think>", "<answer>", "</answer>"] and ends
                 and think is not None and any(c.isalnum() and c not in BLANK for c in think[1])
                 and not FAKE_TURN.search(shown))
    if [tag for tag in tags if "answer" in tag] != ["<answer>", "</answer>"] or not closed:
        return Verdict(False, formatted)
    thinks = [tag for tag in tags[:tags.index("<answer>")] if "think" in tag]
    # Roughly: what is nested worse than this is badly formed anyway.
    outside = not thinks or thinks[-1] == "</think>" and 2 * thinks.count("</think>") >= len(thinks)
    return Verdict(outside and read_roles(answer, list(roles)) == roles, formatted)


def read_roles(answer, names):
    """The roles that an answer gives, as a dict name -> role, or None where anything in it is not a clause
    of the form `NAME is a ROLE`: a negation, a hedge, a quotation, a retraction, a stranger, or two roles
    for one name."""
    if len(answer) > sum(200 + 2 * len(name) for name in names):
        return None  # nobody needs that much: a bound on the work
    shown = "".join(names) + "".join(unicodedata.normalize(form, "".join(names)) for form in ("NFC", "NFD"))
    letters = {*(shown + shown.lower() + shown.upper()), *"\u2019\u2010\u2011\u2022\u00a0"}
    if not all(c.isascii() or c in letters for c in answer):
        return None  # a letter that only looks like one of a name or of a role

    def same_case(text):
        text = text.translate(str.maketrans("\u2019\u2010\u2011\u00a0", "'-- "))
        return unicodedata.normalize("NFC", text).casefold()
    plain = {" ".join(same_case(name).split()): name for name in names}
    answer = same_case(answer.replace("**", "").replace("__", ""))
    name = "|".join(re.escape(name).replace(r"\ ", r"\s+") for name in sorted(plain, key=len, reverse=True))
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


def kk_demo(problem, rng):
    """The worked solution or, more often, a bad habit: broken off before the last claim, with the last of
    the assignments left for an answer. That the last step pays is for reinforcement learning to find out."""
    lines = problem.solution.removeprefix("<think> ").split(". </think>")[0].split(". ")
    if rng.random() < 0.6:
        lines.pop()
    return kk_text(lines, list(problem.answer), lines[-1].split()[-1])


def kk_published(people):
    """(train, test) of the puzzles published with mem-kk-logic (arXiv 2410.23123), split as Logic-RL does:
    of the 1,000 of a size the last 100 are for the test."""
    train = []
    test = []
    for n in people:
        problems = [Problem(row["quiz"], {name: "knight" if is_knight else "knave"
                                          for name, is_knight in zip(row["names"], row["solution"])})
                    for row in data.hub_rows(KK_HUB, "train", split=f"{n}ppl")]
        train += problems[:-100]
        test += problems[-100:]
    return train, test


def kk_task(cfg):
    """Knights and Knaves. cfg has data ("synthetic" or "published"), eval_data (""), people, brief, seed,
    train_problems, eval_problems. Validation puzzles are always generated. Raises ValueError where these do
    not fit."""
    if not all(2 <= n <= 8 for n in cfg.people):
        raise ValueError(f"--people must be sizes from 2 to 8, not {' '.join(map(str, cfg.people))}")
    data.check_name("--data", cfg.data, ("synthetic", "published"), files=False)
    if cfg.eval_data:
        raise ValueError(f"--task kk has its own test puzzles: leave out --eval_data {cfg.eval_data}")
    if cfg.brief and cfg.data == "published":
        raise ValueError("--data published has no --brief form, which the tiny model needs: add --model, or "
                         "leave out --brief")

    split = functools.partial(kk_split, people=cfg.people, seed=cfg.seed, brief=cfg.brief)
    if cfg.data == "published":
        train, test = kk_published(cfg.people)
    else:
        train = split("train", cfg.train_problems)
        test = split("test", cfg.eval_problems)
    valid = split("valid", cfg.eval_problems)
    sizes = [[tuple(p.answer.values()) for p in test if len(p.answer) == n] for n in set(cfg.people)]
    floor = sum(most_frequent(answers) * len(answers) for answers in sizes) / len(test)
    return Task("kk", KK_SYSTEM, train, valid, test, verify_kk, floor, kk_demo, opening="<think>",
                tokens=r"\s?(?:\w+ is a )?\S+", warmup=500)


# ---- Mathematics: problems with an answer that can be compared, from the hub, a file, or a generator ----

MATH_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."  # Qwen2.5's own


def verify_math(response, gold):
    """Grade one response; `gold`: the answer, or several of which any will do. `formatted`: there is a
    final_answer, of at most 500 characters. `correct`: it equals a gold one, by math_equal."""
    answer = final_answer(response)
    golds = [gold] if isinstance(gold, str) else gold
    return Verdict(bool(answer) and any(math_equal(answer, each) for each in golds), bool(answer))


def arithmetic(rng):
    """A sum of two numbers of three digits, or a product of one with a digit. The worked solution adds to
    each column, from the right, what the one before carries over; for 347*6 it is
    "7*6=42+0=42,4*6=24+4=28,3*6=18+2=20.". It writes zeros too, so that a digit always stands at the same
    distance from those that it is made of, which is learned sooner. The meaning is the unordered pair of
    operands."""
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
    return Problem(f"{a}{sign}{b}", answer, solution, hash((min(a, b), max(a, b))))  # as in kk_meaning


def arithmetic_split(split, count, seed):
    """`count` problems of a split, "train", or at most 20,000 of "valid" or "test", which have 58,000 pairs.

    The pair of operands decides a problem's split, so that no two numbers that meet in one split meet in
    another, of whatever seed, order or operation. In a held-out split they meet once; training repeats.
    """
    problems = []
    seen = set()
    for i in range(count if split == "train" else min(count, 20_000)):
        rng = random.Random(f"{seed} {split} {i}")
        problem = arithmetic(rng)
        while split_of(problem.meaning) != split or problem.meaning in seen:
            problem = arithmetic(rng)
        problems.append(problem)
        if split != "train":
            seen.add(problem.meaning)
    return problems


def arithmetic_demo(problem, rng):
    """The worked solution or, as often, a bad habit: the answer at once, which is right less often."""
    return problem.solution if rng.random() < 0.5 else problem.solution.split()[-1]


def math_task(cfg):
    """Mathematics. cfg has data ("synthetic", a name of data.MATH_TRAIN, or a file), eval_data ("synthetic",
    a name of data.MATH_TEST, a file, or "" for the set that belongs to data), model, seed, train_problems,
    eval_problems. Problems to validate on come from a set's training. Raises ValueError as kk_task does."""
    eval_data = data.eval_data_of(cfg, data.MATH_PAIRS)

    def load(name, places):
        sets = {known: data.math_rows(known, *place) for known, place in places.items()}  # none is read yet
        return [Problem(question, golds[0] if len(golds) == 1 else golds)
                for question, golds in data.rows_of(name, sets, data.MATH_LINE)]

    split = functools.partial(arithmetic_split, seed=cfg.seed)
    test = split("test", cfg.eval_problems) if eval_data == "synthetic" else load(eval_data, data.MATH_TEST)
    if cfg.data == "synthetic":
        train = split("train", cfg.train_problems)
        valid = split("valid", cfg.eval_problems)
    else:
        train, valid = data.hold_out(load(cfg.data, data.MATH_TRAIN), test, eval_data, cfg)
    floor = most_frequent(str(problem.answer) for problem in test)
    return Task("math", MATH_SYSTEM, train, valid, test, verify_math, floor, arithmetic_demo,
                tokens=r"\\boxed\{|.", warmup=320)


# ---- Question answering with a search tool, the setting of Search-R1 (arXiv 2503.09516) ----

QA_SYSTEM = ("Answer the question. Think inside <think> and </think>. To look something up write a few "
             "words inside <search> and </search>: the best passages follow between <information> and "
             "</information>, which you never write yourself. At most {} searches are answered. End with "
             "the answer alone, a name or a few words, inside <answer> and </answer>, for example <answer> "
             "Ada Lovelace </answer>. Write nothing after that.")


def search_tool(passages):
    """observe(text): the three best passages for the query <search>...</search> that the text ends with."""
    search = bm25(passages)

    @functools.lru_cache(10_000)
    def found(query):
        best = [f"Doc {i}: {passages[p]}" for i, p in enumerate(search(query, 3), 1)]
        return best or ["Nothing was found: try other words."]

    def observe(text):
        _, opened, query = text.rpartition("</search>")[0].rpartition("<search>")
        called = opened and "</search>" not in query
        lines = found(query) if called else ["To search, write <search> a few words </search>."]
        return "\n".join(["\n<information>", *lines, "</information>"])
    return observe


ASIDE = re.compile(r"<\s*(think|search|information)\s*>.*?(?:<\s*/\s*\1\s*>|\Z)", re.S | re.I)
QA_TAG = re.compile(r"<(?:[^\w<>]|_)*(?:answer|information)[^<>]*>?", re.I)


def verify_qa(response, golds):
    """Grade one response, what the policy wrote without what the tool answered; `golds`: any will do.

    The answer is the last <answer>...</answer> outside of thoughts, searches and information; where it is
    not closed there is none. `correct`: it is one of the golds, by plain_answers. `formatted`: it is the
    only one, the response ends with it, and nowhere in it is a tag <information>, in whatever spelling,
    which would make the policy its own witness, or a faked turn of a dialogue.
    """
    body = without_end(response)
    golds = [golds] if isinstance(golds, str) else golds
    _, opened, rest = ASIDE.sub(" ", body).rpartition("<answer>")
    answer, closed, _ = rest.partition("</answer>")
    if not (opened and closed and answer.strip()):
        return Verdict(False, False)
    shown = visible(body)
    tags = [re.sub(r"\s", "", tag).lower() for tag in QA_TAG.findall(shown)]
    formatted = (tags == ["<answer>", "</answer>"] and body.endswith(f"<answer>{answer}</answer>")
                 and not FAKE_TURN.search(shown))
    if len(answer.strip()) > 200 + 2 * max(map(len, golds), default=0):  # a bound on the work
        return Verdict(False, formatted)
    forms = plain_answers(answer)
    return Verdict(any(forms & plain_answers(gold) for gold in golds), formatted)


def qa_world(split, count, seed):
    """Up to `count` rows (question, golds, passages, solution) of a split of a generated world, in which
    2,000 people work for 666 companies, each based in one of 40 cities. A question names a person and asks
    for the city, so it takes two searches. A seventh of the companies, with all who work there, is for
    "test", a seventh for "valid": their questions share no person and no company with training."""
    rng = random.Random(seed)
    people = rng.sample([f"{name} {surname}" for name in NAMES for surname in SURNAMES], 2000)
    companies = rng.sample([f"{brand} {firm}" for brand in BRANDS for firm in FIRMS], 666)
    cities = rng.choices(CITIES, k=666)
    rows = []
    for i, person in enumerate(people):
        company = companies[i % 666]
        city = cities[i % 666]
        if split_of(i % 666) == split:
            question = f"Where is the company of {person} based ?"
            staff = [f"{other} works for {company}" for other in people[i % 666::666]]
            passages = [f"{company} is based in {city}", *staff]
            solution = f"<search> {person} </search> <search> {company} </search> <answer> {city} </answer>"
            rows.append((question, [city], passages, solution))
    return rng.sample(rows, min(count, len(rows)))


def qa_demo(problem, rng):
    """The two searches and the answer or, more often, a bad habit: one search and a guess."""
    first = problem.solution.partition("</search>")[0]
    guess = rng.choice(CITIES)
    return problem.solution if rng.random() < 0.4 else f"{first}</search> <answer> {guess} </answer>"


def qa_task(cfg):
    """Question answering. cfg has data ("synthetic", "hotpotqa", or a file), eval_data (the same, or "" for
    that of data), model, max_turns, seed, train_problems and eval_problems. The passages of all questions
    are searched together. Raises ValueError where the settings do not fit."""
    eval_data = data.eval_data_of(cfg, {"synthetic": "synthetic", "hotpotqa": "hotpotqa"})
    passages = {}  # a dict for its keys, each once and in order

    def load(name, split, count):
        sets = {"synthetic": qa_world(split, count, cfg.seed),
                "hotpotqa": data.hotpotqa(split, count, cfg.seed)}  # a generator: nothing is read yet
        rows = data.rows_of(name, sets, data.QA_LINE)
        passages.update((passage, None) for row in rows for passage in row[2])
        return [Problem(question, golds, *solution) for question, golds, _, *solution in rows]
    train = load(cfg.data, "train", cfg.train_problems)
    test = load(eval_data, "test", cfg.eval_problems)
    if cfg.data == "synthetic":
        valid = load("synthetic", "valid", cfg.eval_problems)
    else:
        train, valid = data.hold_out(train, test, eval_data, cfg)
    floor = most_frequent(problem.answer[0] for problem in test)
    return Task("qa", QA_SYSTEM.format(cfg.max_turns), train, valid, test, verify_qa, floor, qa_demo,
                warmup=300, stop_text="</search>", observe=search_tool(list(passages)))


# ---- The tiny model: a Qwen2 small enough to learn on a laptop ----

def tiny_model(task):
    """(model, tokenizer): an untrained Qwen2 of some 200,000 weights; a token is what matches task.tokens in
    the task's texts. The chat template leaves the system prompt out: a model that can read nothing else has
    no need of it. Raises ValueError for a task without demonstrations."""
    if task.demo is None:
        raise ValueError(f"--task {task.name} has no demo for the tiny model to learn from: add --model, or "
                         "give its Task a demo")
    rng = random.Random(0)
    pieces = pre_tokenizers.Split(Regex(task.tokens), "isolated")
    words = {word for problem in task.train[:2000] + task.train[-2000:]
             for text in (problem.question, problem.solution, task.demo(problem, rng),
                          *map(task.observe, turns(task, problem.solution)[:-1]))
             for word, _ in pieces.pre_tokenize_str(text)}
    vocabulary = {word: i for i, word in enumerate(["<|im_end|>", "[UNK]", *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pieces
    tokenizer.decoder = decoders.Fuse()  # without it, tokens would be joined with spaces
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]",
                                                     eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    # The usual initializer_range of 0.02 and rope_theta of 10,000 are for wider networks and longer texts.
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
        initializer_range=0.1, rope_parameters={"rope_type": "default", "rope_theta": 20.0},
        bos_token_id=None, eos_token_id=0, pad_token_id=0))
    return model, tokenizer


def script(tokenizer, task, problem, text):
    """(ids, mask): a prompt, a scripted completion, and the tool's answers to its calls, as in a rollout."""
    parts = [(encode_prompt(tokenizer, task.system, problem.question, task.opening), False)]
    said = ""
    for turn in turns(task, f"{text}<|im_end|>"):
        if said:
            parts.append((observation(tokenizer, task, said), False))
        parts.append((tokenizer(turn)["input_ids"], True))
        said += turn
    return [token for ids, _ in parts for token in ids], [own for ids, own in parts for _ in ids]


def warm_up(model, tokenizer, task, cfg):
    """task.warmup steps of maximum likelihood on task.demo's texts: in place of pretraining, so that
    reinforcement learning can start. Ends the program with one line where cfg.max_new_tokens is below the
    length of most texts."""
    lengths = [len(tokenizer(task.demo(p, random.Random(0)))["input_ids"]) for p in task.train[:200]]
    if statistics.median(lengths) >= cfg.max_new_tokens:
        fail(f"--max_new_tokens {cfg.max_new_tokens} cuts off most texts, of up to {max(lengths)} tokens: "
             "give more, or easier problems")
    rng = random.Random(cfg.seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.8, 0.95), weight_decay=0, fused=True)
    print(f"the tiny model first imitates texts, for {task.warmup} steps")
    bar = tqdm(range(1, task.warmup + 1), "warm-up", mininterval=1)
    for step in threads.paced(bar):
        rows = [script(tokenizer, task, p, task.demo(p, rng))
                for p in rng.sample(task.train, min(64, len(task.train)))]
        ids, own = (pad_sequence([torch.tensor(row) for row in each], batch_first=True).to(model.device)
                    for each in zip(*rows))
        loss = model(input_ids=ids, labels=ids.masked_fill(~own, -100)).loss
        loss.backward()
        optimizer.param_groups[0]["lr"] = 5e-3 * min(1, step / 50, 2 - 2 * step / task.warmup)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        bar.set_postfix({"loss": f"{loss:.3f}"}, refresh=False)


TASKS = {"kk": kk_task, "math": math_task, "qa": qa_task}  # name -> function of the settings, to a Task
