"""A search server for --retriever on a laptop, with Search-R1's protocol: BM25 over a folder of passages.

    pip install bm25s==0.3.16
    python experiments/search_server.py FOLDER              http://127.0.0.1:8000/retrieve
    python grpo_sg.py --task qa --retriever http://127.0.0.1:8000/retrieve

FOLDER has .txt files, a passage in each paragraph, which gets the file's name as its title; and .jsonl files
in the form of Search-R1's corpus, {"contents": "Title\\nText"} on each line."""
import http.server
import json
import pathlib
import sys

import bm25s

passages = []
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    if path.suffix == ".jsonl":
        passages += [json.loads(line)["contents"] for line in path.open(encoding="utf-8")]
    elif path.suffix == ".txt":
        parts = path.read_text(encoding="utf-8").split("\n\n")
        passages += [f"{path.stem}\n{part.strip()}" for part in parts if part.strip()]
index = bm25s.BM25()
index.index(bm25s.tokenize(passages, stopwords="en"))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = bm25s.tokenize(asked["queries"], stopwords="en", show_progress=False)
        found, scores = index.retrieve(words, k=min(asked["topk"], len(passages)), show_progress=False)
        result = []
        for row in zip(found.tolist(), scores.tolist()):
            result.append([{"document": {"id": i, "contents": passages[i]}, "score": s} for i, s in zip(*row) if s])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"result": result}).encode())


http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
