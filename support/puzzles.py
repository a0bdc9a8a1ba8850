"""Generate Knights and Knaves puzzles and assign them to splits. A knight's claim is true,
a knave's is false. tasks.py turns the returned tuples into problems."""
import functools
import hashlib
import random

from tqdm import tqdm

from support.program import UserError


# ---- Splits ----

def digest(*parts):
    """Hash the parts to an integer that is the same in every run and Python version."""
    text = repr(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def split_of(meaning):
    """Return the split of a problem. For every seed, a seventh of all meanings is "test",
    and a seventh is "valid"."""
    return ("test", "valid", *["train"] * 5)[meaning % 7]


# ---- Claims ----

NAMES = ("Ada Alice Amir Anna Ben Bianca Carl Chloe Clara Daniel David Dora Elena Emil "
         "Emma Eric Eva Felix Finn Grace Hana Henry Ida Ivan Jack Jane Jonas Julia Kai "
         "Karen Leo Lily Lucas Maria Max Mia Nina Noah Olga Oscar Paul Peter Rosa Ruth Sam "
         "Sara Simon Theo Tom Vera Zoe").split()
STORY = ("On this island everyone is either a knight, who always tells the truth, or a "
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
         "if": "if {0} then {1}", "iff": "{0} if and only if {1}"}  # kind of claim -> words
BRIEF = {**KINDS, "not": "not {0}", "iff": "{0} iff {1}"}  # without a story


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


def find_true(claim, knight, every):
    """Return the assignments of roles that make the claim true.

    An assignment is a number; a set of assignments is an integer with a bit for each.
    knight[person] is the set in which the person is a knight, `every` the set of all.
    """
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


def put_in_words(claim, names, brief=False):
    """Write the claim in English, or in telegraphic style."""
    kind, *leaves = claim
    said = []
    for person, role in leaves:
        said.append(f"{names[person]} {role}" if brief else f"{names[person]} is a {role}")
    return (BRIEF if brief else KINDS)[kind].format(*said)


@functools.cache
def list_assignments(n):
    """Return (knight, every) for n people, the arguments of find_true. Bit `person` of an
    assignment is 1 for a knave."""
    numbers = range(2 ** n)
    knight = [sum(1 << a for a in numbers if not a >> person & 1) for person in range(n)]
    return knight, (1 << 2 ** n) - 1


def narrow_down(claims):
    """Return for each claim the set of assignments that are consistent with it and with
    the claims before it."""
    knight, left = list_assignments(len(claims))
    every = left
    found = []
    for speaker, claim in enumerate(claims):
        left &= every ^ knight[speaker] ^ find_true(claim, knight, every)
        found.append(left)
    return found


@functools.lru_cache(10_000)
def name_roles(assignment, n):
    """Write an assignment as letters: KNK is knight, knave, knight."""
    return "".join("N" if assignment >> person & 1 else "K" for person in range(n))


def write_response(left, names):
    """Write a response that lists, for each person, the assignments left after their
    claim. The last assignment is the answer."""
    lines = []
    for name, bits in zip(names, left):
        words = [name_roles(a, len(names)) for a in range(2 ** len(names)) if bits >> a & 1]
        lines.append(f"{name}: {' '.join(words)}.")
    roles = ["knight" if letter == "K" else "knave" for letter in words[-1]]
    answer = ", ".join(f"{name} is a {role}" for name, role in zip(names, roles))
    return f"<think> {' '.join(lines)} </think> <answer> {answer} </answer>"


def make_puzzle(n, rng, *, brief=False):
    """Make a puzzle of n people (2 to 8) with exactly one consistent assignment of roles.

    Args:
        n: the number of people.
        rng: a random.Random.
        brief: leave out the story and use the first n names, for a tiny model.

    Returns:
        (question, answer, solution, shortcut, meaning), the first fields of a
        tasks.Problem. answer is a dict name -> "knight" or "knave"; the shortcut stops
        before the last claim.

    Raises:
        UserError: for other sizes.
    """
    question, names, claims, left = draw_puzzle(n, rng, brief)
    return describe_puzzle(question, names, left, hash_meaning(claims))


def draw_puzzle(n, rng, brief):
    """Draw claims until exactly one assignment is left, which a third of the draws
    achieve. Returns (question, names, claims, left), with left from narrow_down."""
    if not 2 <= n <= 8:
        raise UserError(f"a puzzle needs 2 to 8 people, not {n}")
    names = NAMES[:n] if brief else rng.sample(NAMES, n)
    left = [0]
    while left[-1].bit_count() != 1:
        claims = [draw_claim(n, speaker, rng) for speaker in range(n)]
        left = narrow_down(claims)
    words = [put_in_words(claim, names, brief) for claim in claims]
    if brief:
        question = " ".join(f"{name}: {claim}." for name, claim in zip(names, words))
    else:
        told = " ".join(rng.choice(SAYINGS).format(*pair) for pair in zip(names, words))
        people = ", ".join(names[:-1]) + " and " + names[-1]
        question = STORY.format(n=n, names=people, told=told)
    return question, names, claims, left


def describe_puzzle(question, names, left, meaning):
    """Return what make_puzzle returns."""
    word = name_roles(left[-1].bit_length() - 1, len(names))
    roles = ["knight" if letter == "K" else "knave" for letter in word]
    return (question, dict(zip(names, roles)), write_response(left, names),
            write_response(left[:-1], names), meaning)


@functools.lru_cache(10_000)
def tabulate(claim, first, second=None):
    """Return the claim's truth table over these people's roles, as the bits of an
    integer."""
    if second is None:
        return find_true(claim, {first: 0b10}, 0b11)
    return find_true(claim, {first: 0b1010, second: 0b1100}, 0b1111)


def hash_meaning(claims):
    """Compute a hash that is equal for puzzles identical up to names and logically
    equivalent wording, by color refinement on the graph of who speaks of whom.

    A few symmetric puzzles differ and still share a hash. A held-out split then has only
    one of them; no puzzle gets into two splits.
    """
    # (speaker, person, the claim's truth table with that person first, the other person)
    mentions = []
    for speaker, claim in enumerate(claims):
        x, *others = dict.fromkeys(person for person, _ in claim[1:])
        if others:
            y = others[0]
            mentions.append((speaker, x, tabulate(claim, x, y), y))
            mentions.append((speaker, y, tabulate(claim, y, x), x))
        else:
            table = tabulate(claim, x)
            always = table in (0b00, 0b11)  # a tautology or contradiction: about nobody
            mentions.append((speaker, speaker if always else x, table, None))
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


def make_split(split, count, people, seed, *, brief=False):
    """Make up to `count` puzzles of a split ("train", "valid" or "test"), cycling through
    the sizes in `people`.

    A puzzle's meaning decides its split, so no puzzle of one split occurs in another, for
    any seed, names or wording. A held-out split never repeats a meaning, and "train" never
    repeats a question. Gives up on a size after 1,000 draws without a new puzzle: two
    people have only 41 meanings.
    """
    problems = []
    seen = set()
    left = list(people)  # sizes that still have new puzzles
    for i in tqdm(range(count), f"{split} problems", leave=False, delay=2):
        n = people[i % len(people)]
        if n not in left:
            continue
        problem = make_new(split, n, random.Random(f"{seed} {split} {i}"), brief, seen)
        if problem:
            problems.append(problem)
        else:
            left.remove(n)
    return problems


def make_new(split, n, rng, brief, seen):
    """Make a puzzle of the split that is not in `seen`, a set of meanings (of questions
    for "train"), and add it there. Returns None after 1,000 failed draws."""
    for _ in range(1000):
        question, names, claims, left = draw_puzzle(n, rng, brief)
        if split == "train" and question in seen:
            continue
        meaning = hash_meaning(claims)
        key = question if split == "train" else meaning
        if split_of(meaning) == split and key not in seen:
            seen.add(key)
            return describe_puzzle(question, names, left, meaning)
    return None
