"""Make the task of answering questions with a search tool, as in Search-R1 (arXiv 2503.09516).

    python -m support.tiny support/search.py        makes a tiny model
    python grpo_sg.py --task support/search.py      teaches it to search, offline and on a CPU

After each </search> the tool writes the three best passages, at most twice in a completion. Their
mask is 0, so that the loss ignores them, and the verifier reads only what the policy wrote:

    prompt  Where is the company of Sam Vogel based ?
    mask 1  <search> Sam Vogel </search>
    mask 0  <information> Doc 1: Sam Vogel works for Lotus Paper ... </information>
    mask 1  <search> Lotus Paper </search>
    mask 0  <information> Doc 1: Lotus Paper is based in Lima ... </information>
    mask 1  <answer> Lima </answer> <|im_end|>

The tiny model has also learned to guess after its first search. A real model takes --data hotpotqa
(questions on Wikipedia, arXiv 1809.09600), --max_new_tokens 500 and more --steps.
"""
import functools
import math
import random
import re
import unicodedata
from collections import Counter, defaultdict

import torch

from support.tools import Tool
from tasks import (
    FAKE_TURN, NAMES, Problem, Task, UserError, Verdict, digest, most_frequent, split_of)

SETTINGS = {"steps": 30, "eval_every": 10}  # a tiny model needs no more
SEARCHES = 2  # that are answered in a completion; then comes one last turn
SYSTEM = ("Answer the question. Think inside <think> and </think>. To look something up "
          "write a few words inside <search> and </search>: the best passages follow "
          "between <information> and </information>, which you never write yourself. At "
          f"most {SEARCHES} searches are answered. End with the answer alone, a name or a few "
          "words, inside <answer> and </answer>, for example <answer> Ada Lovelace "
          "</answer>. Write nothing after that.")


# ---- The tool ----

PASSAGES = 3  # for each query
QUERY = 300  # characters of a query that are used
NO_TAGS = str.maketrans("<>", "()")  # a passage is untrusted


def answer_calls(search, texts):
    """Return the tool's answer to each text, which ends with a call."""
    return [answer_call(search, text) for text in texts]


def answer_call(search, text):
    _, opened, query = text.rpartition("</search>")[0].rpartition("<search>")
    passages = search(query.strip()[:QUERY])
    lines = [f"Doc {i}: {passage.translate(NO_TAGS)}" for i, passage in enumerate(passages, 1)]
    if not opened or not query.strip():
        lines = ["To search, write <search> a few words </search>."]
    elif not lines:
        lines = ["Nothing was found: try other words."]
    return "\n".join(["\n<information>", *lines, "</information>"])


def make_search(passages, *, k1=1.2, b=0.75):
    """Return a function search(query): the best passages, best first. None lacks every word of
    the query.

    If n of N passages contain a word, tf times in the scored one, the score is the sum over the
    words of the query of

        ln(1 + (N - n + 0.5) / (n + 0.5)) * tf * (k1 + 1)
            / (tf + k1 * (1 - b + b * length / mean length))

    This is BM25 (Robertson and Zaragoza, 2009) with Lucene's logarithm, which is never negative.
    """
    counts = [Counter(words_of(passage)) for passage in passages]
    mean_length = sum(count.total() for count in counts) / max(1, len(counts))
    found = defaultdict(list)  # word -> the indices of its passages
    factors = defaultdict(list)  # word -> for each of them, the second factor of its score
    for i, count in enumerate(counts):
        for word, tf in count.items():
            length = 1 - b + b * count.total() / mean_length
            found[word].append(i)
            factors[word].append(tf * (k1 + 1) / (tf + k1 * length))
    scores = {}  # word -> the indices and the scores of its passages, as two tensors
    for word, where in found.items():
        idf = math.log(1 + (len(passages) - len(where) + 0.5) / (len(where) + 0.5))
        scores[word] = (torch.tensor(where), idf * torch.tensor(factors[word]).double())

    @functools.lru_cache(10_000)
    def search(query):
        totals = torch.zeros(len(passages)).double()
        for word in words_of(query):
            if word in scores:
                where, scores_of_word = scores[word]
                totals[where] += scores_of_word
        best = totals.argsort(descending=True, stable=True)[:PASSAGES]  # ties: the first wins
        return [passages[i] for i in best.tolist() if totals[i] > 0]
    return search


# ---- Texts that are equal but for case, accents, articles and punctuation ----

# Not the strokes, \u0334 to \u0338, which cross out a letter.
ACCENTS = re.compile("[\u0300-\u0333\u0339-\u036f]")
# Letters that Unicode does not take apart, letters like apostrophes, and the minus sign.
LETTERS = str.maketrans({
    "\u00f8": "o", "\u0142": "l", "\u0111": "d", "\u0127": "h", "\u0131": "i", "\u00e6": "ae",
    "\u0153": "oe", "\u02bb": "", "\u02bc": "", "\u2212": "-"})
RULES = [(re.compile(pattern), new) for pattern, new in (
    (r"(?<=\d),(?=\d{3}(?!\d))", ""),               # 1,000 is 1000
    (r"(?<![^\W_])(?:a|an|the)\s+(?=[\"'(*]*\w)", ""),  # an article, but not the A of vitamin A
    (r"[\s,]+", " "),                               # July 4,1776 is July 4, 1776
    (r"(?<!\w)-(?=[ $]*\.?\d)", "\u2212"),          # the sign of -5 stays
    (r"(?<!\w)\.(?=\d)", "0."))]                    # .5 is 0.5


def fold(text):
    """Return the text in lower case, without accents, and with one kind of hyphen."""
    text = ACCENTS.sub("", unicodedata.normalize("NFD", text.casefold())).translate(LETTERS)
    return "".join("-" if unicodedata.category(c) == "Pd" else c for c in text)


def words_of(text):
    return re.findall(r"\w+", fold(text))


def normalize(text):
    """Return the form in which answers are compared. Punctuation, hyphens and spaces are left out,
    so J. K. is JK, except between digits: neither 3.5 nor 3-5 is 35."""
    folded = fold(text)
    for pattern, new in RULES:
        folded = pattern.sub(new, folded)
    dropped = " " + "".join(c for c in set(folded) if not has_meaning(c))
    between = f"[{re.escape(dropped)}]++"
    return re.sub(rf"(?<!\d){between}|{between}(?!\d)", "", folded) or text.strip()


def has_meaning(c):
    """Return whether it is a letter, a mark, a digit or a symbol, and no dollar or trademark."""
    kind = unicodedata.category(c)
    symbol = kind in ("Sm", "So", "Sc") and c not in "$\u00ae\u2122"
    return kind[0] in "LMN" or symbol or c == "#"


# ---- The verifier ----

MAX_CHARS = 500  # of an answer
ASIDE = re.compile(r"<\s*(think|search)\s*>.*?(?:<\s*/\s*\1\s*>|\Z)", re.S | re.I)
TAG = re.compile(r"<(?:[^\w<>]|_)*(?:answer|information)[^<>]*>?", re.I)


def verify_qa(response, answers):
    """Grade one response.

    A response is formatted if it ends with its only <answer>...</answer>, which stands outside of
    thoughts and searches and is not empty. It has no <information> tag in any spelling, with which
    the policy could invent a source, and fakes no turn of a dialogue. For the answer Lima:

        <answer> LIMA. </answer>               (correct=True, formatted=True)
        <answer> Oslo or Lima </answer>        (correct=False, formatted=True)
        <think> <answer> Lima </answer>        (correct=False, formatted=False)

    Args:
        response: what the policy wrote, without the tool's answers.
        answers: the reference answers, each of which is accepted.

    Returns:
        A Verdict. correct: formatted, and the answer equals a reference answer (see `normalize`).
    """
    answer = read_answer(response)
    if answer is None:
        return Verdict(False, False)
    return Verdict(normalize(answer) in map(normalize, answers), True)


def read_answer(response):
    """Return the text of the answer, or None if the response is malformed."""
    body = response.strip()
    if TAG.findall(body) != ["<answer>", "</answer>"] or FAKE_TURN.search(body):
        return None
    answer = ASIDE.sub(" ", body).rpartition("<answer>")[2].removesuffix("</answer>")
    if not answer.strip() or len(answer) > MAX_CHARS:
        return None
    return answer if body.endswith(f"<answer>{answer}</answer>") else None


# ---- The problems: a world in which people work for companies in 40 cities, and HotpotQA ----

SURNAMES = ("Adler Berg Blum Brandt Carver Dahl Ebert Falk Fischer Frost Graf Hahn Hale "
            "Hart Holm Jansen Keller Koch Lang Lind Lorenz Marsh Moser Nagel Olsen Pohl "
            "Quist Rask Reed Roth Sander Stone Strand Thorn Vance Vogel Wagner Weber "
            "Winter Wolf").split()
BRANDS = ("Amber Arctic Bright Cedar Copper Coral Crystal Eagle Falcon Golden Granite "
          "Harbor Indigo Iron Jade Lotus Lunar Maple Noble Ocean Onyx Orchid Pearl Polar "
          "Prime Rapid River Royal Ruby Sierra Silver Solar Star Summit Tiger Velvet "
          "Violet Willow Zenith Zephyr").split()
FIRMS = ("Bakery Bank Books Cargo Clinic Designs Energy Farms Films Foods Games Glass "
         "Hotels Labs Media Metals Motors Optics Paper Tools").split()
CITIES = ("Accra Athens Berlin Bern Bogota Boston Cairo Dakar Delhi Dublin Geneva Hanoi "
          "Havana Kyoto Lagos Lima Lisbon London Lyon Madrid Milan Nairobi Naples Oslo "
          "Paris Porto Prague Quito Riga Rome Seoul Sofia Sydney Tokyo Tunis Turin Vienna "
          "Vilnius Warsaw Zurich").split()


def names_of(split, first_words, second_words):
    """Return the pairs of words that belong to the split for every seed, by their hash."""
    names = [f"{first} {second}" for first in first_words for second in second_words]
    return [name for name in names if split_of(digest(name)) == split]


def make_world(split, count, seed):
    """Make up to `count` problems of a split, and the passages of its world.

    A question names a person and asks for the city of their company, which takes two searches.
    The shortcut searches once and guesses. People work only for companies of their split. The
    seed determines who works where, and each company's city.
    """
    rng = random.Random(f"{seed} {split}")
    people = names_of(split, NAMES, SURNAMES)
    companies = names_of(split, BRANDS, FIRMS)
    rng.shuffle(people)
    rng.shuffle(companies)
    problems, passages = [], []
    for i, company in enumerate(companies):
        city = rng.choice(CITIES)
        passages.append(f"{company} is based in {city}")
        for person in people[i::len(companies)]:
            passages.append(f"{person} works for {company}")
            first = f"<search> {person} </search>"
            problems.append(Problem(
                f"Where is the company of {person} based ?", [city],
                solution=f"{first} <search> {company} </search> <answer> {city} </answer>",
                shortcut=f"{first} <answer> {rng.choice(CITIES)} </answer>"))
    return rng.sample(problems, min(count, len(problems))), passages


def load_hotpotqa(split, count, seed):
    """Load up to `count` random problems, and the passages that belong to them. Testing uses
    HotpotQA's validation split, because its test split has no answers; a seventh of its training
    split is for validation."""
    import datasets  # slow to import
    place = "validation" if split == "test" else "train"
    # The set is a script, which we never run. The hub has a copy of its rows on a branch, with a
    # folder per configuration.
    rows = datasets.load_dataset("hotpotqa/hotpot_qa", data_dir="distractor", split=place,
                                 revision="refs/convert/parquet")
    splits = [split_of(digest(question)) for question in rows["question"]]
    here = [i for i, name in enumerate(splits)
            if split == "test" or (name == "valid") == (split == "valid")]
    problems, passages = [], []
    for row in rows.select(random.Random(seed).sample(here, min(count, len(here)))):
        problems.append(Problem(row["question"], [row["answer"]]))
        for title, sentences in zip(row["context"]["title"], row["context"]["sentences"]):
            passages.append(f"(Title: {title}) {''.join(sentences)}")
    return problems, passages


# ---- The task ----

DATA = {"synthetic": make_world, "hotpotqa": load_hotpotqa}


def make_task(cfg):
    """Make the task. It uses cfg.data ("synthetic" or "hotpotqa"), seed, train_problems and
    eval_problems. The tool searches the passages of all questions."""
    if cfg.data not in DATA or cfg.eval_data:
        raise UserError(f"--data must be one of {', '.join(DATA)}, without --eval_data, not "
                        f"{cfg.data} {cfg.eval_data}")
    splits, passages = [], {}  # without repeats, in order, which breaks ties in the search
    for split in ("train", "valid", "test"):
        count = cfg.train_problems if split == "train" else cfg.eval_problems
        problems, found = DATA[cfg.data](split, count, cfg.seed)
        splits.append(problems)
        passages.update(dict.fromkeys(found))
    search = make_search(list(passages))
    floor = most_frequent(problem.answer[0] for problem in splits[-1])
    return Task("search", SYSTEM, *splits, verify_qa, floor=floor, shortcuts=0.6, write=Tool(
        functools.partial(answer_calls, search), "</search>", SEARCHES))
