"""Make the task qa, question answering with a search tool: its problems (from the generated world,
HotpotQA or a file) and its verifier. qa.py has the parts."""
import functools
import random

from extras.search import qa, retriever
from support import data
from support.tools import Tool
from tasks import (
    Problem, Task, Verdict, as_answers, choose_eval_data, hold_out, load_hub, most_frequent,
    read_file, with_golds)

# An example line of a data file. The answers may be a string, a number or a list of these.
QA_LINE = {"question": "Who ...?", "answers": ["Ada"], "passages": ["Ada was ..."]}


def verify_qa(response, golds):
    """Grade one response.

    Args:
        response: what the policy wrote, without the tool's answers.
        golds: a gold answer, or a list of accepted ones.

    Returns:
        A Verdict. formatted: see qa.read_answer. correct: formatted, and the answer
        matches a gold answer by qa.equals_any.
    """
    golds = as_answers(golds)
    answer = qa.read_answer(response, max(map(len, golds), default=0))
    if answer is None:
        return Verdict(False, False)
    return Verdict(qa.equals_any(answer, golds), True)


def qa_task(cfg):
    """Make the task.

    cfg has data ("synthetic", "hotpotqa" or a file), eval_data (likewise, or "" for the
    same as data), model, max_turns, retriever, seed, train_problems and eval_problems.
    The tool searches the passages of all questions, or the server at cfg.retriever.
    Raises UserError if the settings do not fit.
    """
    sets = {"synthetic": "synthetic", "hotpotqa": "hotpotqa"}
    data.check_name("--data", cfg.data, sets)
    if cfg.eval_data:
        data.check_name("--eval_data", cfg.eval_data, sets)
    eval_data = choose_eval_data(cfg, sets)
    data.check_readable(cfg, eval_data)
    train_rows = load_rows(cfg.data, "train", cfg.train_problems, cfg.seed)
    test_rows = load_rows(eval_data, "test", cfg.eval_problems, cfg.seed)
    valid_rows = []
    train, test = make_problems(train_rows), make_problems(test_rows)
    if cfg.data == "synthetic":
        valid_rows = load_rows("synthetic", "valid", cfg.eval_problems, cfg.seed)
        valid = make_problems(valid_rows)
    else:
        train, valid = hold_out(train, test, eval_data, cfg)
    if cfg.retriever:
        search = retriever.connect(cfg.retriever)
    else:
        search = qa.make_search(find_passages(train_rows + test_rows + valid_rows))
    return Task("qa", qa.SYSTEM.format(cfg.max_turns), train, valid, test, verify_qa,
                floor=most_frequent(problem.answer[0] for problem in test),
                write=Tool(functools.partial(qa.answer_calls, search), "</search>", cfg.max_turns),
                shortcuts=0.6)


def load_rows(name, split, count, seed):
    """Return rows (question, golds, passages); those of the generated world also have a
    solution and a shortcut."""
    if name == "synthetic":
        return qa.make_world(split, count, seed)
    if name == "hotpotqa":
        return load_hotpotqa(split, count, seed)
    data.check_file(name, QA_LINE, data.accept)
    return with_golds(name, read_file(name, QA_LINE), data.accept)


def load_hotpotqa(split, count, seed):
    """Return `count` random rows. Testing uses HotpotQA's validation split, because its
    test split has no answers."""
    place = "validation" if split == "test" else split
    rows = load_hub("hotpotqa/hotpot_qa", "distractor", place)
    chosen = random.Random(seed).sample(range(len(rows)), min(count, len(rows)))
    found = []
    for row in rows.select(chosen):
        context = zip(row["context"]["title"], row["context"]["sentences"])
        passages = [f"(Title: {title}) {''.join(sentences)}" for title, sentences in context]
        found.append((row["question"], [row["answer"]], passages))
    return with_golds("hotpotqa", found, data.accept)


def make_problems(rows):
    return [Problem(question, golds, *texts) for question, golds, _, *texts in rows]


def find_passages(rows):
    """Return the passages of all rows, deduplicated, in order: the order breaks ties in the
    search."""
    passages = {}
    for row in rows:
        passages.update(dict.fromkeys(row[2]))
    return list(passages)
