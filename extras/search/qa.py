"""Define the parts of the task qa, question answering with a search tool as in Search-R1 (arXiv
2503.09516): the system prompt, the tool, the verifier's parser and a generated world.
task.py assembles them."""
import functools
import random
import re

from extras.search.text import bm25, plain_answers
from tasks import FAKE_TURN, NAMES, digest, split_of, visible, without_end

SYSTEM = ("Answer the question. Think inside <think> and </think>. To look something up "
          "write a few words inside <search> and </search>: the best passages follow "
          "between <information> and </information>, which you never write yourself. At "
          "most {} searches are answered. End with the answer alone, a name or a few "
          "words, inside <answer> and </answer>, for example <answer> Ada Lovelace "
          "</answer>. Write nothing after that.")


# ---- The tool ----

PASSAGES = 3  # for each query
QUERY = 300  # characters of a query that are used
NO_TAGS = str.maketrans("<>", "()")


def make_search(passages):
    """Return a function search(queries, most): the best passages for each query, by BM25."""
    rank = functools.lru_cache(10_000)(bm25(passages))

    def search(queries, most):
        return [[passages[p] for p in rank(query, most)] for query in queries]
    return search


def answer_calls(search, texts):
    """Return the tool's answers to texts that end with a call, <search>query</search>.

    search: from make_search or retriever.connect; called once, for all texts.
    """
    queries = [read_query(text) for text in texts]
    asked = list(dict.fromkeys(query for query in queries if query))
    found = dict(zip(asked, search(asked, PASSAGES))) if asked else {}
    return [write_answer(found.get(query)) for query in queries]


def write_answer(passages):
    """Return the tool's text. passages: None if the call had no query."""
    lines = ["Nothing was found: try other words."]
    if passages is None:
        lines = ["To search, write <search> a few words </search>."]
    elif passages:
        lines = [f"Doc {i}: {harmless(text)}" for i, text in enumerate(passages, 1)]
    return "\n".join(["\n<information>", *lines, "</information>"])


def harmless(passage):
    """Return an untrusted passage without angle brackets, so without our tags and without
    special tokens such as <|end|>. Lone surrogates, which no tokenizer can encode, become
    question marks."""
    return passage.translate(NO_TAGS).encode(errors="replace").decode()


def read_query(text):
    """Return the query of the call at the end of the text; None if there is no call or if
    the query is blank."""
    _, opened, query = text.rpartition("</search>")[0].rpartition("<search>")
    if not opened or "</search>" in query:
        return None
    return query.strip()[:QUERY] or None


# ---- The verifier ----

ASIDE = re.compile(r"<\s*(think|search|information)\s*>.*?(?:<\s*/\s*\1\s*>|\Z)", re.S | re.I)
TAG = re.compile(r"<(?:[^\w<>]|_)*(?:answer|information)[^<>]*>?", re.I)


def read_answer(response, longest):
    """Return the text of the answer, or None if the response is badly formed.

    A well-formed response ends with its only <answer>...</answer>, which is outside of
    thoughts and searches and not empty. To bound the work, the answer has at most
    200 characters more than twice the `longest` gold answer. The response contains no
    <information> tag in any spelling, with which the policy could invent a source, and no
    faked turn of a dialogue.
    """
    body = without_end(response)
    shown = visible(body)
    tags = [re.sub(r"\s", "", tag).lower() for tag in TAG.findall(shown)]
    if tags != ["<answer>", "</answer>"] or FAKE_TURN.search(shown):
        return None
    _, _, rest = ASIDE.sub(" ", body).rpartition("<answer>")
    answer = rest.partition("</answer>")[0]
    if not answer.strip() or len(answer.strip()) > 200 + 2 * longest:
        return None
    return answer if body.endswith(f"<answer>{answer}</answer>") else None


def equals_any(answer, golds):
    """Return True if the answer equals a gold answer, ignoring case, accents, articles and
    punctuation."""
    forms = plain_answers(answer)
    return any(forms & plain_answers(gold) for gold in golds)


# ---- A generated world: each question takes two searches ----

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
    """Return up to `count` rows (question, golds, passages, solution, shortcut) of a
    split of a generated world: 2,040 people work for 800 companies in 40 cities.

    A question names a person and asks for the city of their company, which takes two
    searches; the shortcut searches once and guesses. People work only for companies of
    their split. The seed determines who works where, and each company's city.
    """
    rng = random.Random(f"{seed} {split}")
    people = names_of(split, NAMES, SURNAMES)
    companies = names_of(split, BRANDS, FIRMS)
    rng.shuffle(people)
    rng.shuffle(companies)
    rows = []
    for i, company in enumerate(companies):
        city = rng.choice(CITIES)
        staff = people[i::len(companies)]
        passages = [f"{company} is based in {city}"]
        passages += [f"{person} works for {company}" for person in staff]
        for person in staff:
            first = f"<search> {person} </search>"
            rows.append((
                f"Where is the company of {person} based ?", [city], passages,
                f"{first} <search> {company} </search> <answer> {city} </answer>",
                f"{first} <answer> {rng.choice(CITIES)} </answer>"))
    return rng.sample(rows, min(count, len(rows)))
