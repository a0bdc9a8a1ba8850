"""A search engine behind a server that speaks Search-R1's protocol
(github.com/PeterGriffinJin/Search-R1, search_r1/search/retrieval_server.py), by which
21 million passages can be searched without being held here:

    POST URL   {"queries": ["...", ...], "topk": 3, "return_scores": true}
    answer     {"result": [[{"document": {"contents": "..."}, "score": 1.5}, ...], ...]}

with a list of passages, the best first, for each query. What it sends is hostile text,
as any text from the web is: qa.answer_calls makes it harmless.
"""
import functools
import json
import threading
import time
import urllib.request

from support.program import UserError, first_line, say

BATCH = 128        # queries in a request
SECONDS = 60       # to wait for the answer to one, all of it
QUIET = 5          # seconds after which it is said that one waits
# seconds to wait for a server that went away: a large index takes minutes to load
PATIENCE = 600
LONGEST = 2000     # characters of a passage
MOST_BYTES = 2 ** 25  # of an answer: 87 KB a passage, far more than is used


def connect(url):
    """search(queries, most): for each query the texts of at most `most` passages.
    Raises UserError if nothing answers at the URL; search raises it if the server goes
    away and stays away."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--retriever must be the URL of a search server, such as "
                        f"http://127.0.0.1:8000/retrieve, not {url}")
    # now, and not when the first completion searches
    ask(url, ["Who was Ada Lovelace ?"], 1, patience=0)
    return functools.partial(search, url)


def search(url, queries, most):
    found = []
    for i in range(0, len(queries), BATCH):
        found += ask(url, queries[i:i + BATCH], most, PATIENCE)
    return found


def ask(url, queries, most, patience):
    """The passages for the queries of one request, repeated for `patience` seconds
    while it fails."""
    content = json.dumps({"queries": queries, "topk": most, "return_scores": True}).encode()
    end = time.monotonic() + patience
    pause = 1
    while True:
        try:
            return read_passages(json.loads(fetch(url, content)), len(queries), most)
        # no address, no server, no answer in time, half of one, another program's
        except Exception as error:
            reason = first_line(error)
        if time.monotonic() + pause > end:
            raise UserError("no search server that speaks Search-R1's protocol answers at "
                            f"--retriever {url} ({reason}): start it, or give its address")
        say(f"the search server at {url} does not answer ({reason}): trying again")
        time.sleep(pause)
        pause = min(2 * pause, 30)


def fetch(url, content):
    """What the server answers, as bytes. Raises what went wrong; TimeoutError if not all
    of it is there after SECONDS."""
    answers = []
    # urlopen's own limit begins anew with each byte: a server that drips would hold the
    # run for ever. So another thread waits, which can be left behind.
    waiting = threading.Thread(target=post, args=(url, content, answers), daemon=True)
    waiting.start()
    waiting.join(QUIET)
    if waiting.is_alive():
        say(f"waiting for the search server at {url}, at most {SECONDS} seconds")
        waiting.join(SECONDS - QUIET)
    if not answers:
        raise TimeoutError(f"no whole answer in {SECONDS} seconds")
    if isinstance(answers[0], Exception):
        raise answers[0]
    if len(answers[0]) > MOST_BYTES:
        raise ValueError(f"an answer of more than {MOST_BYTES:,} bytes")
    return answers[0]


def post(url, content, answers):
    """Append to the list `answers` what the server answers, of which no more is read than
    shows that it is too long; or the exception."""
    try:
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            answers.append(answer.read(MOST_BYTES + 1))
    except Exception as error:
        answers.append(error)


def read_passages(answer, queries, most):
    """The texts in a server's answer to so many queries, each on one line."""
    results = answer["result"]
    if len(results) != queries:
        raise ValueError(f"{len(results)} lists of passages for {queries} queries")
    found = []
    for result in results:
        texts = [hit["document"]["contents"] for hit in result[:most]]
        found.append([" ".join(text[:LONGEST].split()) for text in texts])
    return found
