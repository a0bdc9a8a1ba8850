"""Problems from the hub and from files, a short function for each set, and the care that all of them need.

A row is (question, golds): golds are the answers of which any will do. Question answering adds passages.
"""
import json
import random

from support.math_equal import final_answer


def hub_rows(*name, split):
    import datasets  # slow to import, and needed for data from the hub only
    try:
        return datasets.load_dataset(*name, split=split)
    except RuntimeError:  # a set that comes as a script, which is not run: the hub's own copy of its rows
        return datasets.load_dataset(*name, split=split, revision="refs/convert/parquet")


def gsm8k(split):
    for row in hub_rows("openai/gsm8k", "main", split=split):
        yield row["question"], [row["answer"].partition("####")[2].strip().replace(",", "")]


def math_train():
    for row in hub_rows("DigitalLearningGmbH/MATH-lighteval", split="train"):
        yield row["problem"], [final_answer(row["solution"])]


def deepscaler():
    for row in hub_rows("agentica-org/DeepScaleR-Preview-Dataset", split="train"):
        yield row["problem"], [row["answer"]]


def math500():
    for row in hub_rows("HuggingFaceH4/MATH-500", split="test"):
        yield row["problem"], [row["answer"]]


def aime24():
    for row in hub_rows("HuggingFaceH4/aime_2024", split="train"):  # its only split: 30 problems
        yield row["problem"], [row["answer"]]


def hotpotqa(split, count, seed):
    """`count` rows drawn at random; the test is the set's validation split, its own test has no answers."""
    rows = hub_rows("hotpotqa/hotpot_qa", "distractor", split={"test": "validation"}.get(split, split))
    for row in rows.select(random.Random(seed).sample(range(len(rows)), min(count, len(rows)))):
        context = zip(row["context"]["title"], row["context"]["sentences"])
        passages = [f"(Title: {title}) {''.join(sentences)}" for title, sentences in context]
        yield row["question"], [row["answer"]], passages


def math_row(row):
    return golds_of(row, "answer")


def qa_row(row):
    passages = row["passages"]
    if not isinstance(passages, list) or not all(isinstance(passage, str) for passage in passages):
        raise TypeError("passages must be a list of texts")
    return *golds_of(row, "answers"), passages


def golds_of(row, key):
    """(question, golds): under `key` stands text, a number, or a list of these."""
    question, golds = row["question"], row[key] if isinstance(row[key], list) else [row[key]]
    if not isinstance(question, str) or any(type(gold) in (bool, dict, list) for gold in golds):
        raise TypeError(f"question must be text, and {key} text, a number, or a list of those")
    return question, ["" if gold is None else str(gold) for gold in golds]


EXAMPLES = {math_row: '{"question": "1 + 1?", "answer": "2"}',
            qa_row: '{"question": "Who ...?", "answers": ["Ada"], "passages": ["Ada was ..."]}'}


def jsonl(path, read):
    """read(row) of each row of a file of JSON lines. Raises ValueError that names file, line and what is
    wrong."""
    with open(path, "rb") as file:
        for i, line in enumerate(file, 1):
            try:
                yield read(json.loads(line))
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise ValueError(f"{path}, line {i} is no row like {EXAMPLES[read]}: "
                                 f"{type(error).__name__}: {error}") from None


def rows_of(name, sets, read, *arguments):
    """The rows of one of the sets, called with the arguments, or of a .jsonl file, without blank golds and
    without the rows that have no other; prints how many these are."""
    if name not in sets and not name.endswith(".jsonl"):
        names = ", ".join({"synthetic": None, **sets})
        raise ValueError(f"{name} is not one of {names}, or a file that ends in .jsonl")
    found = [(question, [gold for gold in golds if gold and gold.strip()], *more) for question, golds, *more
             in (sets[name](*arguments) if name in sets else jsonl(name, read))]
    kept = [row for row in found if row[1]]
    if len(kept) < len(found):
        print(f"dropped {len(found) - len(kept)} of {len(found)} problems of {name}: no gold answer")
    return kept


def without(problems, held_out):
    """The problems whose question is not, white space and case aside, one of those held out."""
    def key(problem):
        return " ".join(problem.question.split()).casefold()
    keys = {key(problem) for problem in held_out}
    return [problem for problem in problems if key(problem) not in keys]


def hold_out(found, test, eval_data, cfg):
    """(train, valid) of the problems found, without those that occur in the test; prints how many these are.
    A tenth of the others at most, and at most cfg.eval_problems, are for validation."""
    train = without(found, test)
    if len(train) < len(found):
        print(f"removed {len(found) - len(train)} training problems that occur in {eval_data}")
    valid = random.Random(cfg.seed).sample(train, min(cfg.eval_problems, len(train) // 10))
    train = without(train, valid)
    if not (train and valid and test):
        raise ValueError("training needs 10 problems or more, and the test one")
    return train, valid
