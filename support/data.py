"""Problems from the hub and from files of JSON lines, and the care that both need.

A row is (question, golds), where golds are the answers of which any will do; a row of question answering is
(question, golds, passages).
"""
import difflib
import json
import random

from support.final_answer import final_answer

# --data or --eval_data: the set's name on the hub, its configuration, its split there
MATH_TRAIN = {"gsm8k": ("openai/gsm8k", "main", "train"),
              "math": ("DigitalLearningGmbH/MATH-lighteval", None, "train"),
              "deepscaler": ("agentica-org/DeepScaleR-Preview-Dataset", None, "train")}
MATH_TEST = {"gsm8k": ("openai/gsm8k", "main", "test"),
             "math500": ("HuggingFaceH4/MATH-500", None, "test"),
             "aime24": ("HuggingFaceH4/aime_2024", None, "train")}  # its only split: 30 problems
# --data: the set to test on
MATH_PAIRS = {"synthetic": "synthetic", "gsm8k": "gsm8k", "math": "math500", "deepscaler": "aime24"}
# What a line of a file looks like. Golds may be text, a number, or a list of these.
MATH_LINE = {"question": "1 + 1?", "answer": "2"}
QA_LINE = {"question": "Who ...?", "answers": ["Ada"], "passages": ["Ada was ..."]}


def hub_rows(*name, split):
    """A split of a set on the hub. Raises ValueError where there is no such set, no access or no network."""
    import datasets  # slow to import, and needed for data from the hub only
    try:
        return datasets.load_dataset(*name, split=split)
    except RuntimeError:  # a set that comes as a script, which is not run: the hub's own copy of its rows
        return datasets.load_dataset(*name, split=split, revision="refs/convert/parquet")
    except OSError as error:
        raise ValueError(f"cannot load {name[0]} from the hub: {error}") from None


def math_rows(name, hub_name, configuration, split):
    for row in hub_rows(hub_name, configuration, split=split):
        if name == "gsm8k":
            yield row["question"], [row["answer"].partition("####")[2].strip().replace(",", "")]
        elif name == "math":
            yield row["problem"], [final_answer(row["solution"])]
        else:
            yield row["problem"], [row["answer"]]


def hotpotqa(split, count, seed):
    """`count` rows drawn at random; the test is the set's validation split, its own test has no answers."""
    rows = hub_rows("hotpotqa/hotpot_qa", "distractor", split={"test": "validation"}.get(split, split))
    for row in rows.select(random.Random(seed).sample(range(len(rows)), min(count, len(rows)))):
        context = zip(row["context"]["title"], row["context"]["sentences"])
        passages = [f"(Title: {title}) {''.join(sentences)}" for title, sentences in context]
        yield row["question"], [row["answer"]], passages


def file_rows(path, example):
    """The rows of a file whose lines have the keys of the example. Raises ValueError that names a line that
    is not like it."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                question, golds, *passages = [row[key] for key in example]
                golds = golds if isinstance(golds, list) else [golds]
                texts = [question] + sum(passages, [])  # a TypeError where passages is no list
                fits = (all(isinstance(text, str) for text in texts)
                        and not any(type(gold) in (bool, dict, list) for gold in golds))
            except (ValueError, LookupError, TypeError, RecursionError):
                fits = False
            if not fits:
                raise ValueError(f"{path}, line {number}: {line[:60]!r} is not like {json.dumps(example)}")
            yield question, ["" if gold is None else str(gold) for gold in golds], *passages


def check_name(flag, name, known, *, files=True):
    """Raises ValueError, with a suggestion, unless the name is known or, with `files`, ends in .jsonl."""
    if name not in known and not (files and name.endswith(".jsonl")):
        or_file = ", or a file that ends in .jsonl" if files else ""
        near = [f": did you mean {other}?" for other in difflib.get_close_matches(name, known, 1)]
        raise ValueError(f"{flag} {name} is not one of {', '.join(known)}{or_file}{''.join(near)}")


def eval_data_of(cfg, pairs):
    """The name of the set to test on; `pairs`: that of each known set. Raises ValueError where it is not
    known, and where the tiny model would have to read real text."""
    check_name("--data", cfg.data, pairs)
    eval_data = cfg.eval_data or pairs.get(cfg.data)
    if not eval_data:
        raise ValueError(f"--data {cfg.data} has no test problems: name a set or another file, --eval_data")
    check_name("--eval_data", eval_data, pairs.values())
    if not cfg.model and {cfg.data, eval_data} != {"synthetic"}:
        raise ValueError(f"the tiny model can only read synthetic problems, not --data {cfg.data} and "
                         f"--eval_data {eval_data}: add --model")
    return eval_data


def rows_of(name, sets, example):
    """The rows of one of the sets, or of a file, without blank golds and without the rows that have no
    other; prints how many these are. Raises ValueError where none is left."""
    try:
        found = list(sets[name] if name in sets else file_rows(name, example))
    except OSError as error:
        raise ValueError(f"cannot read {name}: {error.strerror}") from None
    filled = [(question, [gold for gold in golds if gold and gold.strip()], *passages)
              for question, golds, *passages in found]
    kept = [row for row in filled if row[1]]
    if not kept:
        raise ValueError(f"{name} has no problem with a gold answer: name another set or file")
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
    A tenth of the others at most, and at most cfg.eval_problems, are for validation. Raises ValueError where
    there are too few."""
    train = without(found, test)
    if len(train) < len(found):
        print(f"removed {len(found) - len(train)} training problems that occur in {eval_data}")
    valid = random.Random(cfg.seed).sample(train, min(cfg.eval_problems, len(train) // 10))
    if not valid:
        raise ValueError(f"--data {cfg.data} has {len(train)} problems that are not in {eval_data}: give 10 "
                         "or more, a tenth of which are for validation")
    return without(train, valid), valid
