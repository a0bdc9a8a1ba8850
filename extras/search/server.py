"""A search server for --retriever on a laptop, with Search-R1's protocol: BM25 over a folder
of passages.

    pip install bm25s==0.3.16
    python -m extras.search.server FOLDER
    python grpo_sg.py --task qa --retriever http://127.0.0.1:8000/retrieve

FOLDER has .txt files, a passage in each paragraph, which gets the file's name as its title;
and .jsonl files in the form of Search-R1's corpus, {"contents": "Title\\nText"} on each line.
It needs nothing else of this project.
"""
import argparse
import http.server
import json
import pathlib

EXAMPLE = "python -m extras.search.server FOLDER"
LINE = r'{"contents": "Title\nText"}'


def read_folder(folder):
    """The passages in the folder's files. Raises SystemExit, with one line, if there are
    none, or a line of a .jsonl is none."""
    if not folder or not pathlib.Path(folder).is_dir():
        raise SystemExit(f"error: {folder or 'nothing'} is no folder: name one that has "
                         f"passages, {EXAMPLE}")
    passages = []
    for path in sorted(pathlib.Path(folder).iterdir()):
        try:
            passages += read_file(path)
        except (OSError, ValueError) as error:
            raise SystemExit(f"error: {path} cannot be read: {error}") from None
    if not passages:
        raise SystemExit(f"error: {folder} has no passages: they are paragraphs of .txt files, "
                         f"or lines of .jsonl files, {LINE}")
    return passages


def read_file(path):
    """The passages of a file; none of one that is neither .txt nor .jsonl. Raises OSError
    or ValueError."""
    if path.suffix not in (".txt", ".jsonl"):
        return []
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".txt":
        parts = [part.strip() for part in text.split("\n\n")]
        return [f"{path.stem}\n{part}" for part in parts if part]
    passages = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            passages.append(str(json.loads(line)["contents"]))
        except (ValueError, LookupError, TypeError):
            raise ValueError(f"line {number} is not like {LINE}") from None
    return passages


def make_search(passages):
    """search(queries, most): for each query the pairs (number of a passage, score), the
    best first. Raises SystemExit, with one line, if bm25s is not installed."""
    try:
        import bm25s  # which the project itself does not need
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
    """Answers by its server's `search` and `passages`."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        result = []
        for pairs in self.server.search(asked["queries"], asked["topk"]):
            result.append([self.write_hit(i, score) for i, score in pairs])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"result": result}).encode())

    def write_hit(self, i, score):
        contents = self.server.passages[i]
        return {"document": {"id": i, "contents": contents}, "score": score}


def open_server(port):
    """A server, whose requests wait until it serves. Raises SystemExit, with one line, if
    the port is taken."""
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise SystemExit(f"error: cannot listen on port {port} ({error}): end what uses it, or "
                         f"name another, {EXAMPLE} --port 8001") from None


def main(argv=None):
    parser = argparse.ArgumentParser(usage=f"{EXAMPLE} [--port N]", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args(argv)
    passages = read_folder(given.folder)
    with open_server(given.port) as server:  # before the index, which takes time
        print(f"indexing {len(passages):,} passages", flush=True)
        server.passages = passages
        server.search = make_search(passages)
        print(f"ready: --retriever http://127.0.0.1:{server.server_port}/retrieve; Ctrl-C "
              "ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")


if __name__ == "__main__":
    main()
