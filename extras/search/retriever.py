"""Connect to search servers with Search-R1's protocol (github.com/PeterGriffinJin/Search-R1,
search_r1/search/retrieval_server.py), for passages that don't fit on this machine:

    POST URL   {"queries": ["...", ...], "topk": 3, "return_scores": true}
    answer     {"result": [[{"document": {"contents": "..."}, "score": 1.5}, ...], ...]}

The result has a list of passages for each query, best first. They are untrusted;
qa.answer_calls makes them harmless.
"""
import functools
import json
import threading
import time
import urllib.request

from tasks import UserError
from support.program import first_line, say

BATCH = 128           # queries in a request
SECONDS = 60          # to wait for a complete answer
QUIET = 5             # seconds before the run says that it is waiting
PATIENCE = 600        # seconds to retry: a server takes minutes to load a large index
LONGEST = 2000        # characters of a passage that are used
MOST_BYTES = 2 ** 25  # of an answer: 87 KB per passage, far more than we use


def connect(url):
    """Return a function search(queries, most): the texts of at most `most` passages for
    each query. Raises UserError if no server answers at the URL; search raises it if the
    server is away for more than PATIENCE seconds."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--retriever must be the URL of a search server, such as "
                        f"http://127.0.0.1:8000/retrieve, not {url}")
    # Fail now, not when the first completion searches.
    ask(url, ["Who was Ada Lovelace ?"], 1, patience=0)
    return functools.partial(search, url)


def search(url, queries, most):
    found = []
    for i in range(0, len(queries), BATCH):
        found += ask(url, queries[i:i + BATCH], most, PATIENCE)
    return found


def ask(url, queries, most, patience):
    """Return the passages for the queries of one request. Retries for `patience`
    seconds."""
    content = json.dumps({"queries": queries, "topk": most, "return_scores": True}).encode()
    end = time.monotonic() + patience
    pause = 1
    while True:
        try:
            return read_passages(json.loads(fetch(url, content)), len(queries), most)
        # a bad URL, no server, a late, partial or malformed answer
        except Exception as error:
            reason = first_line(error)
        if time.monotonic() + pause > end:
            raise UserError("no search server with Search-R1's protocol answers at "
                            f"--retriever {url} ({reason}): start it, or correct the URL")
        say(f"the search server at {url} does not answer ({reason}): trying again")
        time.sleep(pause)
        pause = min(2 * pause, 30)


def fetch(url, content):
    """Return the server's answer, as bytes. Raises TimeoutError if it is incomplete after
    SECONDS, or any other error of the request."""
    answers = []
    # urlopen restarts its timeout with each byte, so a server that sends byte by byte would
    # block the run forever. A thread waits instead, and can be abandoned.
    waiting = threading.Thread(target=post, args=(url, content, answers), daemon=True)
    waiting.start()
    waiting.join(QUIET)
    if waiting.is_alive():
        say(f"waiting for the search server at {url}, for at most {SECONDS} seconds")
        waiting.join(SECONDS - QUIET)
    if not answers:
        raise TimeoutError(f"no complete answer in {SECONDS} seconds")
    if isinstance(answers[0], Exception):
        raise answers[0]
    if len(answers[0]) > MOST_BYTES:
        raise ValueError(f"an answer of more than {MOST_BYTES:,} bytes")
    return answers[0]


def post(url, content, answers):
    """Append the server's answer, or the exception, to the list `answers`. Read at most one
    byte more than is allowed."""
    try:
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            answers.append(answer.read(MOST_BYTES + 1))
    except Exception as error:
        answers.append(error)


def read_passages(answer, queries, most):
    """Return the texts in the server's answer to this number of queries, each on one
    line."""
    results = answer["result"]
    if len(results) != queries:
        raise ValueError(f"{len(results)} lists of passages for {queries} queries")
    found = []
    for result in results:
        texts = [hit["document"]["contents"] for hit in result[:most]]
        found.append([" ".join(text[:LONGEST].split()) for text in texts])
    return found
