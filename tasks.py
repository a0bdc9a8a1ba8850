"""The tasks of grpo_sg.py: puzzles, data sets, answer checkers, and the tiny model of the offline run.

A `Task` is problems to train on and to test on, the system prompt, and a verifier that reads one response
and says two things: whether the answer is right, and whether the response is well formed. A verifier treats
the response as hostile input, being the text of a model that is paid for fooling it: nothing here executes
such a text, and no verifier raises or hangs.
"""
import functools
import math
import operator
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from support import data
from support.math_equal import final_answer, math_equal


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
    reward: Callable | None = None  # of a completion, partial credit included; None: grpo_sg.reward
    warmup: float = 0.58     # avg@4 on validation problems that ends the tiny model's warm-up
    tokens: str = ""         # pattern of the tiny model's tokens, which it writes without spaces; "": words
    stop_text: str = ""      # of a task with a tool: the text that ends a call of it
    observe: Callable[[str], str] | None = None  # what the tool answers to a text that ends with a call


def most_frequent(answers):
    """The share of the most frequent one; 0 of none."""
    counts = Counter(answers)
    return max(counts.values(), default=0) / max(1, counts.total())


def split_of(meaning):
    """A seventh of all meanings is "test", a seventh "valid", whatever the seed."""
    return ("test", "valid", *["train"] * 5)[meaning % 7]


def encode_prompt(tokenizer, system, question):
    """Token ids of a prompt, through the tokenizer's chat template where it has one."""
    if not tokenizer.chat_template:
        return tokenizer(f"{system}\n\n{question}\n\n")["input_ids"]
    chat = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


def turns(task, text):
    """A scripted completion cut after each call of the task's tool."""
    *calls, last = text.split(task.stop_text) if task.observe else [text]
    return [*(call + task.stop_text for call in calls), last]


def observation(tokenizer, task, text, most=500):
    """Token ids of the tool's answer to the text: at most `most`, and after these the last of several lines,
    so that </information> is never cut off."""
    answer = task.observe(text)
    body, newline, last = answer.rpartition("\n") if "\n" in answer else (answer, "", "")
    body, last = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (body, newline + last))
    return body[:most] + last


def keep_short(task, tokenizer, most):
    """The task with those problems whose prompts have at most `most` tokens; prints how many went. Raises
    ValueError where none is left."""
    kept = {}
    for split in ("train", "valid", "test"):
        problems = getattr(task, split)
        lengths = [len(encode_prompt(tokenizer, task.system, problem.question)) for problem in problems]
        kept[split] = [problem for problem, length in zip(problems, lengths) if length <= most]
        if len(kept[split]) < len(problems):
            gone = len(problems) - len(kept[split])
            print(f"dropped {gone} of {len(problems)} {split} problems: their prompts, of up to {max(lengths)} tokens, "
                  f"leave no room in the model's context")
        if not kept[split]:
            raise ValueError(f"no {split} problem is left" if not problems else
                             f"no {split} problem is left: lower --max_new_tokens")
    return task._replace(**kept)


# ----------------------------------------------------------------------------------------------------------
# Knights and Knaves: n people, a knight always tells the truth, a knave always lies, each makes one claim
# ----------------------------------------------------------------------------------------------------------

KK_SYSTEM = ("You solve logic puzzles. Think about the puzzle step by step inside <think> and </think>. "
             "Then name everybody's role inside <answer> and </answer>, for example: <answer> (1) Zoey is a "
             "knight (2) Oliver is a knave </answer>. Write nothing after that.")

KK_HUB = "K-and-K/knights-and-knaves"
NAMES = ("Ada Alice Amir Anna Ben Bianca Carl Chloe Clara Daniel David Dora Elena Emil Emma Eric Eva Felix "
         "Finn Grace Hana Henry Ida Ivan Jack Jane Jonas Julia Kai Karen Leo Lily Lucas Maria Max Mia Nina "
         "Noah Olga Oscar Paul Peter Rosa Ruth Sam Sara Simon Theo Tom Vera Zoe").split()
SAYINGS = ["{} says that {}.", "{} said to you that {}.", "{} tells you that {}.", "{} told you that {}.",
           "{} claims that {}.", "{} claimed that {}.", "{} stated that {}.", "{} declares that {}.",
           "{} remarked that {}.", "{} would have you know that {}.", "{} insists that {}.",
           "{} mentioned that {}.", "{} swears that {}.", "{} lets you know that {}.",
           "According to {}, {}.", "In the words of {}, {}.", "As {} puts it, {}.", "If you believe {}, {}."]
ROLES = ("knave", "knight")
KK_STORY = ("On this island everyone is either a knight, who always tells the truth, or a knave, who always "
            "lies. You meet {n} inhabitants of it on the shore: {names}. {told} Who is a knight and who is "
            "a knave?")


def kk_claim(n, speaker, rng):
    """One claim as (kind, leaves); a leaf (person, is_knight) says "person is a knight" or "... a knave"."""
    def leaf():
        while True:
            person, is_knight = rng.randrange(n), rng.random() < 0.5
            if is_knight or person != speaker:  # not "I am a knave": alone, nobody can say it
                return person, is_knight
    kind = rng.choice(("leaf", "not", "and", "or", "if", "iff"))
    first = second = leaf()
    if kind in ("leaf", "not"):
        return kind, (first,)
    while second == first:
        second = leaf()
    return kind, (first, second)


def kk_truth(claim, knight, full):
    """The claim's truth in each of the 2^n assignments, as the bits of one integer: bit a of knight[p] is
    set where person p is a knight in assignment a, and full has all 2^n bits set."""
    kind, leaves = claim
    x, y = [knight[p] if is_knight else full ^ knight[p] for p, is_knight in (leaves[0], leaves[-1])]
    if kind == "leaf":
        return x
    if kind == "not":
        return full ^ x
    if kind == "and":
        return x & y
    if kind == "or":
        return x | y
    return (full ^ x) | y if kind == "if" else full ^ x ^ y


def kk_words(claim, names, brief=False):
    """The claim in English, or in telegraphic English."""
    kind, leaves = claim
    is_a, is_not, iff = (" ", "not", "iff") if brief else (" is a ", "it is not true that", "if and only if")
    x, y = [f"{names[p]}{is_a}{ROLES[is_knight]}" for p, is_knight in (leaves[0], leaves[-1])]
    return {"leaf": x, "not": f"{is_not} {x}", "and": f"{x} and {y}", "or": f"{x} or {y}",
            "if": f"if {x} then {y}", "iff": f"{x} {iff} {y}"}[kind]


def kk_solution(fits, names):
    """Worked text: the assignments that fit the first person's claim, those of them that fit the second's,
    and so on until one is left. KNK: the first and third of the people are knights, the second is a knave.
    `fits[p]` has bit a set where p's claim fits p's role in assignment a."""
    lines, left = [], range((1 << len(names)) - 1, -1, -1)
    for name, fit in zip(names, fits):
        left = [a for a in left if fit >> a & 1]
        words = ["".join("NK"[a >> p & 1] for p in range(len(names))) for a in left]
        lines.append(f"{name}: {' '.join(words)}")
    return kk_text(lines, names, words[0])


def kk_text(lines, names, roles):
    """A response in the form that the prompt asks for; roles: K or N for each name."""
    answer = ", ".join(f"{name} is a {ROLES[role == 'K']}" for name, role in zip(names, roles))
    return f"<think> {'. '.join(lines)}. </think> <answer> {answer} </answer>"


def kk_puzzle(n, rng, *, brief=False):
    """A puzzle of n people (2 to 8) with exactly one consistent assignment of roles; its answer is a dict
    name -> "knight" or "knave". `brief` leaves out the story and keeps the first n names: the claims alone,
    which a tiny model can learn to read. Random draws are rejected until one has a single solution; a third
    have. Raises ValueError for other sizes."""
    if not 2 <= n <= 8:
        raise ValueError(f"a puzzle needs 2 to 8 people, not {n}")
    names = NAMES[:n] if brief else rng.sample(NAMES, n)
    full = (1 << (1 << n)) - 1
    knight = [sum(1 << a for a in range(1 << n) if a >> p & 1) for p in range(n)]
    consistent = 0  # a bit for each assignment that all claims fit
    while not consistent or consistent & (consistent - 1):  # until one bit is set
        claims = [kk_claim(n, speaker, rng) for speaker in range(n)]
        fits = [full ^ knight[p] ^ kk_truth(claim, knight, full) for p, claim in enumerate(claims)]
        consistent = functools.reduce(operator.and_, fits)
    roles = {name: ROLES[(consistent.bit_length() - 1) >> p & 1] for p, name in enumerate(names)}
    words = [kk_words(claim, names, brief) for claim in claims]
    if brief:
        question = " ".join(f"{name}: {claim}." for name, claim in zip(names, words))
    else:
        told = " ".join(rng.choice(SAYINGS).format(*pair) for pair in zip(names, words))
        question = KK_STORY.format(n=n, names=", ".join(names[:-1]) + " and " + names[-1], told=told)
    return Problem(question, roles, kk_solution(fits, names), kk_meaning(claims))


def kk_meaning(claims):
    """An integer that is the same for two puzzles whenever renaming the people turns the claims of one into
    logical equivalents of the other's: colour refinement on the graph of who speaks of whom. Different
    puzzles can share it too (symmetric ones, rarely): a held-out split then has only one of them, and still
    none gets into two splits."""
    mentions = []  # (speaker, person, the claim's truth table with that person as the low bit, other person)
    for speaker, (kind, leaves) in enumerate(claims):
        x, y = leaves[0][0], leaves[-1][0]
        if x == y:
            table = kk_truth((kind, leaves), {x: 0b10}, 0b11)
            mentions.append((speaker, x if table in (1, 2) else speaker, table, -1))  # 0, 3: about nobody
        else:
            table = kk_truth((kind, leaves), {x: 0b1010, y: 0b1100}, 0b1111)
            mentions.append((speaker, x, table, y))
            mentions.append((speaker, y, table & 9 | (table & 2) << 1 | (table & 4) >> 1, x))
    colours = [0] * len(claims)
    for _ in claims:
        seen = [[] for _ in claims]
        for speaker, person, table, other in mentions:
            edge = (speaker == person, other == speaker, table, colours[other] if other >= 0 else -1)
            seen[speaker].append((0, colours[person], *edge))
            seen[person].append((1, colours[speaker], *edge))
        colours = [hash((colour, *sorted(edges))) for colour, edges in zip(colours, seen)]
    return hash(tuple(sorted(colours)))  # hashes of integers do not change from run to run


def kk_split(split, count, people, seed, *, brief=False):
    """Up to `count` puzzles of a split ("train", "valid" or "test"), the sizes in `people` in turn.

    A puzzle's meaning decides its split: a seventh of all meanings is "test", a seventh "valid", for every
    seed, so no puzzle of one split occurs in another under other names or in equivalent words. In its own
    it occurs once (in "train": once word for word). Puzzle i depends on (seed, split, i) and those before.
    Of a size that has no new puzzle in 1,000 draws no more come: for two people there are only 41 meanings.
    """
    problems, seen, spent = [], set(), set()
    for i in range(count):
        n, rng = people[i % len(people)], random.Random(f"{seed} {split} {i}")
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


def each_normalized(form, text):
    """The text, each character normalized alone: a long run of accents as a whole takes quadratic time."""
    return text.translate({ord(c): unicodedata.normalize(form, c) for c in set(text)})


def filtered(text, keep, other=""):
    """The text with `other` in place of each character c for which keep(c) is false."""
    return text.translate({ord(c): other for c in set(text) if not keep(c)})


def visible(text):
    """The text as a reader sees it, to look for tags and turns in: full-width letters and such are plain
    ones, and nothing hides behind characters that are not seen."""
    return filtered(each_normalized("NFKC", text),
                    lambda c: c.isspace() or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Mn"))


# One clause of an answer; the rest of the pattern is the names of the puzzle.
KK_CLAUSE = r"(?:\(?\d{{1,2}}[.):]\s*|[-*\u2022]\s+)?({})\s+is\s+an?\s+(knight|knave)(?![\w'-])"
KK_BETWEEN = re.compile(r"[\s,;.]+|and(?!\w)", re.I)
TAG = re.compile(r"<[\s/]*(?:think|answer)\b[^<>]*>", re.I)
LINE_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
FAKE_TURN = re.compile(rf"<\|[^<>|\s]{{1,40}}\|>|\[INST\]|(?:^|[{LINE_ENDS}])[ \t>*#-]*"
                       r"(?:user|human|assistant|system)\W{0,3}:", re.I)
BLANK = "\u115f\u1160\u3164\uffa0"  # letters that show nothing


def without_end(response):
    """The response without white space and end tokens around it."""
    body = response.strip()
    for _ in range(2):
        body = body.removesuffix("<|endoftext|>").removesuffix("<|im_end|>").strip()
    return body


def verify_kk(response, roles):
    """Grade one response to a Knights and Knaves puzzle; `roles`: dict name -> "knight" or "knave".

    `formatted`: the whole response is `<think>` thoughts `</think> <answer>` roles `</answer>`, each tag
    once and in lower case, something in the thoughts, and nothing else but end tokens and white space; no
    turn of a dialogue is faked inside. `correct`: the one answer block, outside the thoughts, gives
    everybody the right role and says nothing else. Give it the response alone, never with the prompt, whose
    example would count. Never raises.
    """
    body = without_end(response)
    shown = visible(body)
    tags = [re.sub(r"\s", "", tag).lower() for tag in TAG.findall(shown)]
    before, _, rest = body.partition("<answer>")
    answer, closed, after = rest.partition("</answer>")
    think = re.fullmatch(r"<think>(.*)</think>\s*", before, re.S)
    formatted = (tags == ["<think>", "</think>", "<answer>", "</answer>"] and bool(closed) and not after
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
    clause, found, at = re.compile(KK_CLAUSE.format(name)), {}, 0
    while at < len(answer):
        if match := clause.match(answer, at):
            who, role = plain[" ".join(match[1].split())], match[2]
            if found.setdefault(who, role) != role:
                return None
        elif not (match := KK_BETWEEN.match(answer, at)):
            return None
        at = match.end()
    return found or None


def kk_demo(problem, rng):
    """What the tiny model is warmed up on: the worked solution, more often than not broken off before the
    last claim, with the last of the assignments left taken for the answer. So it sees every move, and a bad
    habit that often fails; that thinking to the end pays is left for reinforcement learning to find out."""
    lines = problem.solution.removeprefix("<think> ").split(". </think>")[0].split(". ")
    lines = lines[:len(lines) - (rng.random() < 0.7)]
    return kk_text(lines, list(problem.answer), lines[-1].split()[-1])


def kk_published(people):
    """(train, test) of the puzzles published with mem-kk-logic (arXiv 2410.23123), split as Logic-RL does:
    of the 1,000 of a size the last 100 are for the test."""
    train, test = [], []
    for n in people:
        rows = data.hub_rows(KK_HUB, "train", split=f"{n}ppl")
        problems = [Problem(row["quiz"], dict(zip(row["names"], map(ROLES.__getitem__, row["solution"]))))
                    for row in rows]
        train, test = train + problems[:-100], test + problems[-100:]
    return train, test


def kk_task(cfg):
    """Knights and Knaves. cfg has data ("synthetic" or "published"), eval_data (""), people, brief, seed,
    train_problems, eval_problems. Validation puzzles are always generated. Raises ValueError where these do
    not fit."""
    if not all(2 <= n <= 8 for n in cfg.people):
        raise ValueError(f"--people must be sizes from 2 to 8, not {' '.join(map(str, cfg.people))}")
    if cfg.data not in ("synthetic", "published") or cfg.eval_data:
        raise ValueError("it must be synthetic or published, and brings its own test set: no --eval_data")
    if cfg.brief and cfg.data == "published":
        raise ValueError("published puzzles have no --brief form, which the tiny model needs: add --model")

    def split(name, count):
        return kk_split(name, count, cfg.people, cfg.seed, brief=cfg.brief)
    train, test = (kk_published(cfg.people) if cfg.data == "published" else
                   (split("train", cfg.train_problems), split("test", cfg.eval_problems)))
    valid = split("valid", cfg.eval_problems)
    counts = Counter(tuple(problem.answer.values()) for problem in test)
    most = [max(count for roles, count in counts.items() if len(roles) == n) for n in set(map(len, counts))]
    return Task("kk", KK_SYSTEM, train, valid, test, verify_kk, sum(most) / len(test), kk_demo)


# ----------------------------------------------------------------------------------------------------------
# Mathematics: problems with an answer that can be compared, from the hub, a file, or a generator
# ----------------------------------------------------------------------------------------------------------

MATH_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."  # Qwen2.5's own


def verify_math(response, gold):
    """Grade one response to a mathematical problem; `gold`: the answer, or several of which any will do.

    `formatted`: there is a final_answer, of at most 500 characters. `correct`: it also equals a gold answer
    by math_equal. Never raises.
    """
    answer, golds = final_answer(response), [gold] if isinstance(gold, str) else gold
    return Verdict(bool(answer) and any(math_equal(answer, each) for each in golds), bool(answer))


MATH_TRAIN = {"gsm8k": lambda: data.gsm8k("train"), "math": data.math_train,
              "deepscaler": data.deepscaler}
MATH_TEST = {"gsm8k": lambda: data.gsm8k("test"), "math500": data.math500, "aime24": data.aime24}
MATH_PAIRS = {"gsm8k": "gsm8k", "math": "math500", "deepscaler": "aime24"}  # --data: its --eval_data


def math_problems(name, sets):
    return [Problem(question, golds[0] if len(golds) == 1 else golds)
            for question, golds in data.rows_of(name, sets, data.math_row)]


def arithmetic(rng):
    """A sum of two numbers of three digits, or a product of one with a digit. The worked solution goes
    through the columns from the right, for 347*6 "7*6+0=42,4*6+4=28,3*6+2=20.", and adds to each what the
    one before carries over. A carry of 0 and a leading 0 are written too: so a digit that is needed always
    stands at the same distance, which is learned sooner. The meaning is the unordered pair of operands."""
    a, sign = rng.randrange(100, 1000), rng.choice("+*")
    b = rng.randrange(100, 1000) if sign == "+" else rng.randrange(2, 10)
    columns, carry = [], 0
    for place in (1, 10, 100):
        x, y = a // place % 10, b // place % 10 if sign == "+" else b
        result = carry + (x + y if sign == "+" else x * y)
        columns.append(f"{x}{sign}{y}+{carry}={result:02d}")
        carry = result // 10
    answer = str(a + b if sign == "+" else a * b)
    solution = f"{','.join(columns)}. \\boxed{{{answer}}}"
    return Problem(f"{a}{sign}{b}", answer, solution, hash((min(a, b), max(a, b))))  # as in kk_meaning


def arithmetic_split(split, count, seed):
    """`count` problems of a split, "train", or at most 20,000 of "valid" or "test", which have 58,000 pairs.

    The pair of operands decides a problem's split: a seventh of all pairs is "test", a seventh "valid", for
    every seed, so no two numbers that meet in one split meet in another, in whatever order or operation. In
    a held-out split they meet once; training problems repeat. Problem i depends on (seed, split, i) and
    those before.
    """
    problems, seen = [], set()
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
    """What the tiny model is warmed up on: the worked solution, or as often the bare answer. So it learns to
    calculate, and a bad habit: to answer at once, which it gets right less often. That working it out pays
    is left for reinforcement learning to find out."""
    return problem.solution if rng.random() < 0.5 else problem.solution.split()[-1]


def math_task(cfg):
    """Mathematics. cfg has data ("synthetic", a name of MATH_TRAIN, or a file), eval_data (a name of
    MATH_TEST, "synthetic", a file, or "" for the set that belongs to data), model, seed, train_problems,
    eval_problems. The validation problems of a data set are drawn from its training problems. Raises
    ValueError where these do not fit."""
    eval_data = cfg.eval_data or {"synthetic": "synthetic", **MATH_PAIRS}.get(cfg.data)
    if not eval_data:
        raise ValueError("name a set or a file to test on, --eval_data")
    if not cfg.model and {cfg.data, eval_data} != {"synthetic"}:
        raise ValueError("the tiny model can only read synthetic problems: add --model")
    test = (arithmetic_split("test", cfg.eval_problems, cfg.seed) if eval_data == "synthetic" else
            math_problems(eval_data, MATH_TEST))
    if cfg.data == "synthetic":
        train, valid = (arithmetic_split("train", cfg.train_problems, cfg.seed),
                        arithmetic_split("valid", cfg.eval_problems, cfg.seed))
    else:
        train, valid = data.hold_out(math_problems(cfg.data, MATH_TRAIN), test, eval_data, cfg)
    floor = most_frequent(str(problem.answer) for problem in test)
    return Task("math", MATH_SYSTEM, train, valid, test, verify_math, floor, arithmetic_demo,
                tokens=r"\\boxed\{|.", warmup=0.4)


# ----------------------------------------------------------------------------------------------------------
# Question answering with a search tool, the setting of Search-R1 (arXiv 2503.09516)
# ----------------------------------------------------------------------------------------------------------

QA_SYSTEM = ("Answer the question. Think inside <think> and </think>. To look something up write a few "
             "words inside <search> and </search>: the best passages follow between <information> and "
             "</information>, which you never write yourself. At most {} searches are answered. End with "
             "the answer alone, a name or a few words, inside <answer> and </answer>, for example <answer> "
             "Ada Lovelace </answer>. Write nothing after that.")

# Also Hebrew and Arabic points; not the strokes (\u0334 to \u0338) that cross a letter out.
ACCENTS = re.compile("[\u0300-\u0333\u0339-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
PLAIN = str.maketrans({
    **dict(zip("\u00f8\u0142\u0111\u00f0\u0127\u0167\u0131", "olddhti")),
    "\u00e6": "ae", "\u0153": "oe", "\u00fe": "th",
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\uff0d\ufe63\u207b\u02d7\u2796", "-"),
    **dict.fromkeys("\u02b9\u02ba\u02bb\u02bc\u02bd\u02be\u02bf\ua78c", None)})  # letters like apostrophes


def fold(text):
    """The text in lower case, without accents, with one kind of hyphen."""
    return ACCENTS.sub("", each_normalized("NFD", text.casefold())).translate(PLAIN)


def in_word(c):
    return unicodedata.category(c)[0] in "LMN"  # letters, marks (the vowels of many scripts), numbers


def has_meaning(c):
    """True of letters, numbers, and signs beyond ASCII (not equal, sharp, pound), but not of a trademark."""
    sign = unicodedata.category(c) in ("Sc", "Sm", "So") and c not in "\u00a9\u00ae\u00b0\u2122"
    return in_word(c) or sign and not c.isascii()


def words_of(text):
    return filtered(fold(text), in_word, " ").split()


def bm25(passages, *, k1=1.2, b=0.75):
    """search(query, most): the numbers of the `most` passages with the highest scores, the best first, of
    those that have a word of the query. With tf the times a word occurs in a passage, and n the passages
    that have it, of N, the score is the sum over the words of the query of

        ln(1 + (N - n + 0.5) / (n + 0.5)) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean length))

    which is BM25 (Robertson and Zaragoza, 2009) with Lucene's logarithm: it is never negative.
    """
    counts = [Counter(words_of(passage)) for passage in passages]
    average = sum(count.total() for count in counts) / max(1, len(counts))
    entries, index = {}, {}  # word -> the passages that have it, and what it adds to their scores
    for i, count in enumerate(counts):
        for word, tf in count.items():
            part = tf * (k1 + 1) / (tf + k1 * (1 - b + b * count.total() / average))
            entries.setdefault(word, []).append((i, part))
    for word, found in entries.items():
        where, parts = zip(*found)
        idf = math.log(1 + (len(passages) - len(found) + 0.5) / (len(found) + 0.5))
        index[word] = torch.tensor(where), idf * torch.tensor(parts, dtype=torch.float64)

    def search(query, most):
        scores = torch.zeros(len(passages), dtype=torch.float64)
        for word, times in Counter(words_of(query)).items():
            if word in index:
                where, parts = index[word]
                scores[where] += times * parts
        best = scores.argsort(descending=True, stable=True)[:most]  # of equal ones the first
        return [i for i in best.tolist() if scores[i] > 0]
    return search


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


def plain_answers(text):
    """The text as exact match sees it: folded, without punctuation, and without articles but a last one
    (vitamin A is not vitamin). In some forms: a hyphen may stand for a space or for nothing, and J. K. for
    J.K. Digits that a sign parts stay apart, decimal point and minus sign stay: 3.5, 3-5, and (-35) are not
    35."""
    text, forms = fold(text), set()
    for words in {text, re.sub(r"(?<!\w)([^\W\d_])\.\s+(?=[^\W\d_]\.)", r"\1.", text)}:
        # An article is followed by its word: A in "A, B" is none, and A-10 is not 10.
        words = re.sub(r"(?<![^\W_][^\w\s])(?<![^\W_])(?:a|an|the)\s+(?=[^\w\s]*\w)", "", words)
        words = re.sub(r"(?<=\d)(?:[^\w\s.,]|_|,(?!\d{3}(?!\d)))+(?=\d)", " ", words)
        words = filtered(words, lambda c: has_meaning(c) or c.isspace() or c in ".-")
        words = re.sub(r"\A\s*-\s+(?=[\d.]+\s*\Z)", "-", words)  # - 5 is -5, - 12 May is 12 May
        words = re.sub(r"(?<![^\s-])\.(?=\d)", "0.", words)  # .5 is 0.5
        words = re.sub(r"(?<!\d)\.|\.(?!\d)|(?<!\S)-+(?!\d)|-+(?!\S)", "", words)
        forms |= {" ".join(re.sub(r"(?<=\S)-+", hyphen, words).split()) for hyphen in (" ", "")}
    return forms - {""} or {text.strip()} - {""}


OUTSIDE = re.compile(r"<\s*(think|search|information)\s*>.*?(?:<\s*/\s*\1\s*>|\Z)", re.S | re.I)
QA_TAG = re.compile(r"<(?:[^\w<>]|_)*(?:answer|information)[^<>]*>?", re.I)


def verify_qa(response, golds):
    """Grade one response to a question; `golds`: the answers, of which any will do. The response is what the
    policy wrote, without what the tool answered.

    The answer is the last <answer>...</answer> outside of thoughts, searches and information; where it is
    not closed there is none. `correct`: it is one of the golds, by plain_answers. `formatted`: it is the
    only one, the response ends with it, and nowhere in it is a tag <information>, in whatever spelling,
    which would make the policy its own witness, or a faked turn of a dialogue. Never raises.
    """
    body, golds = without_end(response), [golds] if isinstance(golds, str) else golds
    _, opened, rest = OUTSIDE.sub(" ", body).rpartition("<answer>")
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


SURNAMES = ("Adler Berg Blum Brandt Carver Dahl Ebert Falk Fischer Frost Graf Hahn Hale Hart Holm Jansen "
            "Keller Koch Lang Lind Lorenz Marsh Moser Nagel Olsen Pohl Quist Rask Reed Roth Sander Stone "
            "Strand Thorn Vance Vogel Wagner Weber Winter Wolf").split()
BRANDS = ("Amber Arctic Bright Cedar Copper Coral Crystal Eagle Falcon Golden Granite Harbor Indigo Iron "
          "Jade Lotus Lunar Maple Noble Ocean Onyx Orchid Pearl Polar Prime Rapid River Royal Ruby Sierra "
          "Silver Solar Star Summit Tiger Velvet Violet Willow Zenith Zephyr").split()
FIRMS = ("Bakery Bank Books Cargo Clinic Designs Energy Farms Films Foods Games Glass Hotels Labs Media "
         "Metals Motors Optics Paper Tools").split()
CITIES = ("Accra Athens Berlin Bern Bogota Boston Cairo Dakar Delhi Dublin Geneva Hanoi Havana Kyoto Lagos "
          "Lima Lisbon London Lyon Madrid Milan Nairobi Naples Oslo Paris Porto Prague Quito Riga Rome "
          "Seoul Sofia Sydney Tokyo Tunis Turin Vienna Vilnius Warsaw Zurich").split()


def qa_world(split, count, seed):
    """Up to `count` rows (question, golds, passages, solution) of a split of a generated world, in which
    2,000 people work for 666 companies, each based in one of 40 cities. A question names a person and asks
    for the city, so it takes two searches. A seventh of the companies, with all who work there, is for
    "test", a seventh for "valid": their questions share no person and no company with training."""
    rng, rows = random.Random(seed), []
    people = rng.sample([f"{name} {surname}" for name in NAMES for surname in SURNAMES], 2000)
    companies = rng.sample([f"{brand} {firm}" for brand in BRANDS for firm in FIRMS], 666)
    cities = rng.choices(CITIES, k=666)
    for i, person in enumerate(people):
        company, city = companies[i % 666], cities[i % 666]
        if split_of(i % 666) == split:
            question = f"Where is the company based for which {person} works ?"
            staff = [f"{other} has worked for {company} for many years" for other in people[i % 666::666]]
            passages = [f"{company} is based in {city}", *staff]
            solution = f"<search> {person} </search> <search> {company} </search> <answer> {city} </answer>"
            rows.append((question, [city], passages, solution))
    return rng.sample(rows, min(count, len(rows)))


def qa_demo(problem, rng):
    """What the tiny model is warmed up on: the two searches and the answer, or, more often, one search and a
    guess, a bad habit that fails. That the second search pays is left for reinforcement learning to find
    out."""
    first, guess = problem.solution.partition("</search>")[0], rng.choice(CITIES)
    return problem.solution if rng.random() < 0.3 else f"{first}</search> <answer> {guess} </answer>"


def qa_task(cfg):
    """Question answering. cfg has data ("synthetic", "hotpotqa", or a file), eval_data (the same, or "" for
    that of data), model, max_turns, seed, train_problems and eval_problems. The passages of all questions
    are searched together. Raises ValueError where the settings do not fit."""
    sets, pool = {"synthetic": qa_world, "hotpotqa": data.hotpotqa}, {}
    eval_data = cfg.eval_data or cfg.data

    def load(name, split, count):
        rows = data.rows_of(name, sets, data.qa_row, split, count, cfg.seed)
        pool.update((passage, None) for row in rows for passage in row[2])
        return [Problem(question, golds, *solution) for question, golds, _, *solution in rows]
    if cfg.data == eval_data and cfg.data.endswith(".jsonl"):
        raise ValueError("name a set or another file to test on, --eval_data")
    if not cfg.model and {cfg.data, eval_data} != {"synthetic"}:
        raise ValueError("the tiny model can only read synthetic problems: add --model")
    train, test = load(cfg.data, "train", cfg.train_problems), load(eval_data, "test", cfg.eval_problems)
    train, valid = ((train, load("synthetic", "valid", cfg.eval_problems)) if cfg.data == "synthetic" else
                    data.hold_out(train, test, eval_data, cfg))
    floor = most_frequent(problem.answer[0] for problem in test)
    return Task("qa", QA_SYSTEM.format(cfg.max_turns), train, valid, test, verify_qa, floor, qa_demo, warmup=0.25,
                stop_text="</search>", observe=search_tool(list(pool)))


# ----------------------------------------------------------------------------------------------------------
# The tiny model: a Qwen2 small enough to learn on a laptop
# ----------------------------------------------------------------------------------------------------------

def tiny_model(task):
    """(model, tokenizer): an untrained Qwen2 of about 200,000 weights and a tokenizer whose tokens are the
    words, between white space, of the task's questions, demonstrations and tool, or match task.tokens. The
    chat template leaves the system prompt out: a model that can read nothing else needs no telling."""
    rng = random.Random(0)
    pieces = (pre_tokenizers.Split(Regex(task.tokens), "isolated") if task.tokens else
              pre_tokenizers.WhitespaceSplit())
    words = {word for problem in task.train[:2000] + task.train[-2000:]
             for text in (problem.question, problem.solution, task.demo(problem, rng),
                          *map(task.observe, turns(task, problem.solution)[:-1]))
             for word, _ in pieces.pre_tokenize_str(text)}
    vocabulary = {word: i for i, word in enumerate(["<|im_end|>", "[UNK]", *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pieces
    if task.tokens:
        tokenizer.decoder = decoders.Fuse()  # without it, tokens are joined with spaces
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]",
                                                     eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    # With the usual initializer_range of 0.02 so narrow a network starts next to zero and hardly learns.
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
        initializer_range=0.1, bos_token_id=None, eos_token_id=0, pad_token_id=0))
    return model, tokenizer


def script(tokenizer, task, problem, text, cfg):
    """(ids, mask): a prompt, a scripted completion, and the tool's answers to its calls, as in a rollout."""
    tokens, said = encode_prompt(tokenizer, task.system, problem.question), ""
    mask = [False] * len(tokens)
    for turn in turns(task, f"{text}<|im_end|>"):
        if said:
            answer = observation(tokenizer, task, said)
            tokens, mask = tokens + answer, mask + [False] * len(answer)
        own, said = tokenizer(turn)["input_ids"], said + turn
        tokens, mask = tokens + own, mask + [True] * len(own)
    return tokens, mask


def warm_up(model, tokenizer, task, cfg, accuracy):
    """Maximum likelihood on task.demo's texts until accuracy(), measured on validation problems, reaches
    task.warmup in the mean of its last three values (missing ones are 0). It makes of the tiny model
    a "pretrained" one, with which reinforcement learning can start."""
    rng, steps, reached = random.Random(cfg.seed), 2000, []
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0, fused=True)
    bar = tqdm(range(1, steps + 1), "warming up", bar_format="{desc}: {n} steps in {elapsed}{postfix}")
    for step in bar:
        chosen = rng.sample(task.train, min(64, len(task.train)))
        rows = [script(tokenizer, task, problem, task.demo(problem, rng), cfg) for problem in chosen]
        ids = pad_sequence([torch.tensor(tokens) for tokens, _ in rows], batch_first=True)
        labels = pad_sequence([torch.where(torch.tensor(mask), torch.tensor(tokens), -100)
                               for tokens, mask in rows], batch_first=True, padding_value=-100)
        loss = model(input_ids=ids.to(model.device), labels=labels.to(model.device)).loss
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1, step / 50, (400 / step) ** 0.5)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            reached.append(accuracy())
            bar.set_postfix({"loss": f"{loss:.3f}", "accuracy": f"{reached[-1]:.2f}"})
            if sum(reached[-3:]) / 3 >= task.warmup:
                return
    print(f"the warm-up ends after {steps} steps, below an avg@4 of {task.warmup}")


TASKS = {"kk": kk_task, "math": math_task, "qa": qa_task}  # name -> function of the settings, to a Task
