"""Make the task qa, question answering with a search tool, as in Search-R1 (arXiv 2503.09516):
its tool, its verifier and its problems (from a generated world, HotpotQA or a file).

    python grpo_sg.py --task support/search/qa.py
"""
import functools
import random
import re

from support.search.text import bm25, plain_answers
from support.search.world import make_world
from support.tools import Tool
from tasks import (
    FAKE_TURN, Problem, Task, UserError, Verdict, as_answers, choose_eval_data, hold_out,
    load_hub, most_frequent, read_file, read_rows)

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
NO_TAGS = str.maketrans("<>", "()")


def make_search(passages):
    """Return a function search(query): the best passages, by BM25."""
    rank = bm25(passages)

    @functools.lru_cache(10_000)
    def search(query):
        return [passages[i] for i in rank(query, PASSAGES)]
    return search


def answer_calls(search, texts):
    """Return the tool's answers to texts that end with a call, <search>query</search>."""
    return [answer_call(search, read_query(text)) for text in texts]


def answer_call(search, query):
    """Return the tool's answer to a query. None is a call without a query."""
    passages = search(query) if query else []
    lines = [f"Doc {i}: {harmless(text)}" for i, text in enumerate(passages, 1)]
    if not query:
        lines = ["To search, write <search> a few words </search>."]
    elif not passages:
        lines = ["Nothing was found: try other words."]
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


def verify_qa(response, golds):
    """Grade one response.

    Args:
        response: what the policy wrote, without the tool's answers.
        golds: a reference answer, or a list of accepted ones.

    Returns:
        A Verdict. formatted: see read_answer. correct: formatted, and the answer equals a
        reference answer, ignoring case, accents, articles and punctuation.
    """
    golds = as_answers(golds)
    answer = read_answer(response, max(map(len, golds), default=0))
    if answer is None:
        return Verdict(False, False)
    forms = plain_answers(answer)
    return Verdict(any(forms & plain_answers(gold) for gold in golds), True)


def read_answer(response, longest):
    """Return the text of the answer, or None if the response is malformed.

    A response in the correct format ends with its only <answer>...</answer>, which
    is outside of thoughts and searches and not empty. To bound the work, the answer has at
    most 200 characters more than twice the `longest` reference answer. The response contains no
    <information> tag in any spelling, with which the policy could invent a source, and no
    faked turn of a dialogue.
    """
    body = response.strip()
    if TAG.findall(body) != ["<answer>", "</answer>"] or FAKE_TURN.search(body):
        return None
    _, _, rest = ASIDE.sub(" ", body).rpartition("<answer>")
    answer = rest.partition("</answer>")[0]
    if not answer.strip() or len(answer.strip()) > 200 + 2 * longest:
        return None
    return answer if body.endswith(f"<answer>{answer}</answer>") else None


# ---- The problems ----

# --data -> the set to test on
QA_PAIRS = {"synthetic": "synthetic", "hotpotqa": "hotpotqa"}


def make_task(cfg):
    """Make the task. It uses cfg.data ("synthetic", "hotpotqa" or a file), eval_data
    (likewise, or "" for the same as data), seed, train_problems and eval_problems. The tool
    searches the passages of all questions."""
    eval_data = choose_eval_data(cfg, QA_PAIRS)
    train_rows = load_rows(cfg.data, "train", cfg.train_problems, cfg.seed)
    test_rows = load_rows(eval_data, "test", cfg.eval_problems, cfg.seed)
    valid_rows = []
    train, test = make_problems(train_rows), make_problems(test_rows)
    if cfg.data == "synthetic":
        valid_rows = load_rows("synthetic", "valid", cfg.eval_problems, cfg.seed)
        valid = make_problems(valid_rows)
    else:
        train, valid = hold_out(train, test, eval_data, cfg)
    search = make_search(find_passages(train_rows + test_rows + valid_rows))
    return Task("qa", SYSTEM, train, valid, test, verify_qa,
                floor=most_frequent(problem.answer[0] for problem in test),
                write=Tool(functools.partial(answer_calls, search), "</search>", SEARCHES),
                shortcuts=0.6)


def load_rows(name, split, count, seed):
    """Return rows (question, golds, passages); those of the generated world also have a
    solution and a shortcut."""
    if name == "synthetic":
        return make_world(split, count, seed)
    if name == "hotpotqa":
        return load_hotpotqa(split, count, seed)
    rows = []
    for question, golds, row in read_rows(name, read_file(name), as_answers):
        passages = row.get("passages")
        if not isinstance(passages, list) or not all(isinstance(text, str) for text in passages):
            raise UserError(f"{name}: the passages of {question!r:.60} must be a list of texts, "
                            f"not {passages!r:.60}")
        rows.append((question, golds, passages))
    return rows


def load_hotpotqa(split, count, seed):
    """Return `count` random rows. Testing uses HotpotQA's validation split, because its
    test split has no answers."""
    place = "validation" if split == "test" else split
    hub_rows = load_hub("hotpotqa/hotpot_qa", "distractor", place)
    chosen = random.Random(seed).sample(range(len(hub_rows)), min(count, len(hub_rows)))
    rows = []
    for question, golds, row in read_rows("hotpotqa", hub_rows.select(chosen), as_answers):
        context = zip(row["context"]["title"], row["context"]["sentences"])
        passages = [f"(Title: {title}) {''.join(sentences)}" for title, sentences in context]
        rows.append((question, golds, passages))
    return rows


def make_problems(rows):
    return [Problem(question, golds, *texts) for question, golds, _, *texts in rows]


def find_passages(rows):
    """Return the passages of all rows, deduplicated, in order: the order breaks ties in the
    search."""
    passages = {}
    for row in rows:
        passages.update(dict.fromkeys(row[2]))
    return list(passages)


if __name__ == "__main__":
    print(__doc__)
