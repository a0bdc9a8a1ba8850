"""The third task, questions that are answered with a search tool: its problems, from the
generated world, HotpotQA or a file, and its verifier. The parts are in qa.py."""
import functools
import random

from search import qa, retriever
from support import data
from tasks import Problem, Task, Verdict, as_answers, most_frequent

# What a line of a file looks like. Golds may be text, a number, or a list of these.
QA_LINE = {"question": "Who ...?", "answers": ["Ada"], "passages": ["Ada was ..."]}


def verify_qa(response, golds):
    """Grade one response, what the policy wrote without what the tool answered;
    `golds`: any will do. `formatted`: by qa.read_answer. `correct`: well formed, and
    the answer is one of the golds but for case, accents, articles and punctuation."""
    golds = as_answers(golds)
    answer = qa.read_answer(response, max(map(len, golds), default=0))
    if answer is None:
        return Verdict(False, False)
    return Verdict(qa.equals_any(answer, golds), True)


def qa_task(cfg):
    """Question answering. cfg has data ("synthetic", "hotpotqa", or a file), eval_data
    (the same, or "" for that of data), model, max_turns, retriever, seed,
    train_problems and eval_problems. The passages of all questions are searched
    together, or those of the server at the URL cfg.retriever. Raises UserError where
    the settings do not fit."""
    eval_data = data.choose_eval_data(cfg, {"synthetic": "synthetic", "hotpotqa": "hotpotqa"})
    train_rows = load_rows(cfg.data, "train", cfg.train_problems, cfg.seed)
    test_rows = load_rows(eval_data, "test", cfg.eval_problems, cfg.seed)
    valid_rows = []
    train, test = make_problems(train_rows), make_problems(test_rows)
    if cfg.data == "synthetic":
        valid_rows = load_rows("synthetic", "valid", cfg.eval_problems, cfg.seed)
        valid = make_problems(valid_rows)
    else:
        train, valid = data.hold_out(train, test, eval_data, cfg)
    if cfg.retriever:
        search = retriever.connect(cfg.retriever)
    else:
        search = qa.make_search(find_passages(train_rows + test_rows + valid_rows))
    return Task("qa", qa.SYSTEM.format(cfg.max_turns), train, valid, test, verify_qa,
                floor=most_frequent(problem.answer[0] for problem in test),
                stop_text="</search>", observe=functools.partial(qa.answer_calls, search),
                max_turns=cfg.max_turns, shortcuts=0.6)


def load_rows(name, split, count, seed):
    """Rows (question, golds, passages), to which those of the generated world add a
    solution and a shortcut."""
    if name == "synthetic":
        return qa.make_world(split, count, seed)
    if name == "hotpotqa":
        return load_hotpotqa(split, count, seed)
    return data.with_golds(name, data.read_file(name, QA_LINE))


def load_hotpotqa(split, count, seed):
    """`count` rows drawn at random; the test is the set's validation split, its own
    test has no answers."""
    place = "validation" if split == "test" else split
    rows = data.load_hub("hotpotqa/hotpot_qa", "distractor", place)
    chosen = random.Random(seed).sample(range(len(rows)), min(count, len(rows)))
    found = []
    for row in rows.select(chosen):
        context = zip(row["context"]["title"], row["context"]["sentences"])
        passages = [f"(Title: {title}) {''.join(sentences)}" for title, sentences in context]
        found.append((row["question"], [row["answer"]], passages))
    return data.with_golds("hotpotqa", found)


def make_problems(rows):
    return [Problem(question, golds, *texts) for question, golds, _, *texts in rows]


def find_passages(rows):
    """The passages of all rows, each once and in order: of equally good ones the search
    finds the first."""
    passages = {}
    for row in rows:
        passages.update(dict.fromkeys(row[2]))
    return list(passages)
