"""Serve a folder of passages to --retriever: BM25, with Search-R1's protocol.

    pip install bm25s==0.3.16
    python -m extras.search.server FOLDER
    python grpo_sg.py --task qa --retriever http://127.0.0.1:8000/retrieve

Each paragraph of a .txt file in FOLDER is a passage, titled with the file's name. Each line
of a .jsonl file is one as in Search-R1's corpus, {"contents": "Title\\nText"}. Other files
are ignored. This file works without the rest of the project.
"""
import argparse
import http.server
import json
import pathlib
import re

EXAMPLE = "python -m extras.search.server FOLDER"
LINE = r'{"contents": "Title\nText"}'
REQUEST = '{"queries": ["Ada Lovelace"], "topk": 3}'
TOPK = 3  # passages for each query, unless the request says otherwise


def read_folder(folder):
    """Return the passages in the folder's files. Raises SystemExit, with one line, if there
    are none or a file cannot be read."""
    if not pathlib.Path(folder).is_dir():
        raise SystemExit(f"error: {folder} is not a folder: {EXAMPLE}")
    passages = []
    for path in sorted(pathlib.Path(folder).iterdir()):
        try:
            passages += read_file(path)
        except (OSError, ValueError) as error:
            raise SystemExit(f"error: {path} cannot be read: {error}") from None
    if not passages:
        raise SystemExit(f"error: {folder} has no passages: add .txt files, with a passage "
                         f"in each paragraph, or .jsonl files with lines like {LINE}")
    return passages


def read_file(path):
    """Return the passages of a .txt or .jsonl file; none for other files. Raises OSError or
    ValueError."""
    if path.suffix not in (".txt", ".jsonl"):
        return []
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".txt":
        parts = [part.strip() for part in text.split("\n\n")]
        return [f"{path.stem}\n{part}" for part in parts if part]
    passages = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                passages.append("" + json.loads(line)["contents"])  # TypeError unless a string
            except (ValueError, LookupError, TypeError, RecursionError):
                raise ValueError(f"line {number} is not like {LINE}") from None
    return passages


def make_search(passages):
    """Return a function search(queries, most): for each query a list of pairs (index of a
    passage, score), the best first. Raises SystemExit if bm25s is not installed."""
    try:
        import bm25s  # only this server needs it
    except ImportError:
        raise SystemExit("error: the search needs bm25s: pip install bm25s==0.3.16") from None
    index = bm25s.BM25()
    index.index(bm25s.tokenize(passages, stopwords="en"))

    def search(queries, most):
        words = bm25s.tokenize(queries, stopwords="en", show_progress=False)
        most = min(most, len(passages))
        found, scores = index.retrieve(words, k=most, show_progress=False)
        pairs = [zip(*row) for row in zip(found.tolist(), scores.tolist())]
        return [[(i, score) for i, score in row if score > 0] for row in pairs]
    return search


class Handler(http.server.BaseHTTPRequestHandler):
    """Answer requests from the server's `search` and `passages`, and bad requests with status
    400 and one line."""
    timeout = 10  # seconds without a byte from the client
    error_content_type = "text/plain"
    error_message_format = "error: %(message)s\n"

    def do_POST(self):
        try:
            self.answer()
        except ConnectionError:
            pass  # the client has gone

    def answer(self):
        try:
            queries, most = self.read_request()
        except ValueError as error:
            return self.send_error(400, str(error))
        found = self.server.search(queries, most) if queries else []
        result = [[self.write_hit(i, score) for i, score in pairs] for pairs in found]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"result": result}).encode())

    def read_request(self):
        """Return the queries, and how many passages to find for each. Raises ValueError for
        anything else than such a request."""
        length = self.headers["Content-Length"] or ""
        if not re.fullmatch("[0-9]{1,8}", length):
            raise ValueError("Content-Length must be a whole number below 100,000,000")
        try:
            asked = json.loads(self.rfile.read(int(length)))
            queries, most = asked["queries"], asked.get("topk")
        except TimeoutError:
            raise ValueError(f"the body stopped: {self.timeout} seconds without a byte") from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            queries, most = None, None
        most = TOPK if most is None else most
        right = isinstance(queries, list) and all(isinstance(query, str) for query in queries)
        if not right or type(most) is not int or most < 1:  # bool is a subclass of int
            raise ValueError(f"the body must be JSON like {REQUEST}")
        return queries, most

    def write_hit(self, i, score):
        contents = self.server.passages[i]
        return {"document": {"id": i, "contents": contents}, "score": score}


def open_server(port):
    """Open the port; requests wait until serve_forever is called. Raises SystemExit if the
    port is taken."""
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise SystemExit(f"error: cannot listen on port {port} ({error}): stop what uses it, or "
                         f"choose another: {EXAMPLE} --port 8001") from None


def main(argv=None):
    parser = argparse.ArgumentParser(usage=f"{EXAMPLE} [--port N]", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args(argv)
    passages = read_folder(given.folder)
    with open_server(given.port) as server:  # before indexing, which takes time
        print(f"indexing {len(passages):,} passages", flush=True)
        server.passages = passages
        server.search = make_search(passages)
        print(f"ready: --retriever http://127.0.0.1:{server.server_port}/retrieve; Ctrl-C "
              "stops it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")


if __name__ == "__main__":
    main()
