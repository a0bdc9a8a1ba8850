"""Load problems from the hub and from JSON Lines files, check them, and hold some out.

A row is (question, golds), or (question, golds, passages) for question answering; any of
the golds is accepted. Functions here raise UserError on bad input.
"""
import json
import os
import random
import re

from support.program import UserError, first_line, say, suggest
from verify.final_answer import final_answer

# --data or --eval_data -> the set's name, configuration and split on the hub
MATH_TRAIN = {"gsm8k": ("openai/gsm8k", "main", "train"),
              "math": ("DigitalLearningGmbH/MATH-lighteval", None, "train"),
              "deepscaler": ("agentica-org/DeepScaleR-Preview-Dataset", None, "train")}
MATH_TEST = {"gsm8k": ("openai/gsm8k", "main", "test"),
             "math500": ("HuggingFaceH4/MATH-500", None, "test"),
             # its only split, with 30 problems
             "aime24": ("HuggingFaceH4/aime_2024", None, "train")}
# --data -> the set to test on
MATH_PAIRS = {"synthetic": "synthetic", "gsm8k": "gsm8k", "math": "math500",
              "deepscaler": "aime24"}
# An example line of a file. The answer may be a string, a number, or a list of these.
MATH_LINE = {"question": "1 + 1?", "answer": "2"}


def accept(gold):
    return True


# ---- The hub ----

def load_hub(name, configuration, split):
    """Load a split of a set on the hub."""
    import datasets  # slow to import, and only needed for data from the hub
    try:
        return datasets.load_dataset(name, configuration, split=split)
    except RuntimeError:
        # The set is a script, which we never run. The hub has a copy of its rows on a
        # branch, with a folder per configuration.
        try:
            return datasets.load_dataset(name, data_dir=configuration, split=split,
                                         revision="refs/convert/parquet")
        except Exception as error:
            reason = first_line(error)
    except Exception as error:  # no such set, no access, no network: each has its own type
        reason = first_line(error)
    raise UserError(f"cannot load {name} from the hub: {reason}. Check the network, or give "
                    "a .jsonl file")


def load_math(name, places, matches=accept):
    """Load the rows of a set or a file.

    Args:
        name: a key of `places`, or a path.
        places: MATH_TRAIN or MATH_TEST.
        matches: a function that returns whether the verifier accepts a gold answer as a
            response.
    """
    if name not in places:
        return with_golds(name, read_file(name, MATH_LINE, matches))
    rows = []
    for row in load_hub(*places[name]):
        if name == "gsm8k":
            gold = row["answer"].partition("####")[2].strip().replace(",", "")
            rows.append((row["question"], [gold]))
        elif name == "math":
            rows.append((row["problem"], [final_answer(row["solution"])]))
        else:
            rows.append((row["problem"], [row["answer"]]))
    return with_golds(name, rows, matches)


def with_golds(name, rows, matches=accept):
    """Drop golds that are blank or match nothing, and rows without any other gold. Print
    how many rows were dropped."""
    kept = []
    for question, golds, *passages in rows:
        golds = [gold for gold in golds if gold and gold.strip() and matches(gold)]
        if golds:
            kept.append((question, golds, *passages))
    if not kept:
        raise UserError(f"{name} has no problem with a gold answer: name another set or file")
    if len(kept) < len(rows):
        print(f"dropped {len(rows) - len(kept)} of {len(rows)} problems of {name}: no gold "
              "answer, or one that the verifier cannot read")
    return kept


# ---- Files ----

def find_files(given):
    """Return the settings, a dict, with ~ expanded and with absolute paths of model
    folders and data files: a run can then be resumed from any folder."""
    found = dict(given)
    for name in ("model", "data", "eval_data", "out"):
        path = os.path.expanduser(given.get(name, ""))
        if path.endswith(".jsonl") or name == "model" and os.path.isdir(path):
            path = os.path.abspath(path)
        if path:
            found[name] = path
    return found


def read_file(path, example, matches=accept):
    """Read the rows of a file. Each line must have the keys of the example, and `matches`
    must accept each gold."""
    try:
        with open(path, "rb") as file:
            lines = file.readlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    rows = []
    broken = []  # lines with a lowercase letter after a newline: probably \nu or \neq
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        question, golds, *passages = read_line(line, example, where)
        for gold in golds:
            if gold.strip() and not matches(gold):
                raise UserError(f"{where}: no answer can match {gold!r:.60}: give only the "
                                "final answer, without a box or words")
        if re.search("\n[a-z]", question):
            broken.append(number)
        rows.append((question, golds, *passages))
    if broken:
        say(f"{path}: {len(broken)} questions have a lowercase letter after a newline, such as "
            f"line {broken[0]}. {TWICE}")
    return rows


TWICE = r'In JSON, write a backslash twice, as in "\\nu" or "\\frac{1}{2}"'


def refuse_constant(name):
    """Refuse NaN, which json.dumps writes for missing numbers, and Infinity."""
    raise ValueError(name)


def read_line(line, example, where):
    """Parse a line of JSON as (question, golds) or (question, golds, passages)."""
    try:
        row = json.loads(line, parse_constant=refuse_constant)
        question, golds, *passages = [row[key] for key in example]
    except (ValueError, LookupError, TypeError, RecursionError):
        text = line.decode(errors="replace").strip()
        hint = f". {TWICE}" if "\\" in text else ""
        raise UserError(f"{where}: {text[:60]!r} is not like {json.dumps(example)}"
                        f"{hint}") from None
    golds = golds if isinstance(golds, list) else [golds]
    if any(type(gold) in (bool, dict, list) for gold in golds):
        raise UserError(f"{where}: an answer must be a string, a number or a list of these, not "
                        f"{golds!r:.60}")
    if passages and not isinstance(passages[0], list):
        raise UserError(f"{where}: passages must be a list of strings, not {passages[0]!r:.60}")
    golds = ["" if gold is None else str(gold) for gold in golds]
    for text in [question, *golds, *(passages[0] if passages else [])]:
        if not isinstance(text, str) or any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"{where}: {text!r:.60} is not valid text")
    if not question.strip():
        raise UserError(f"{where}: the question is empty")
    for gold in golds:
        if "\n" in gold.strip():
            raise UserError(f"{where}: the answer {gold!r:.60} has several lines: give only "
                            "the final answer")
    for text in (question, *golds):
        # JSON reads \theta, \beta, \frac and \rho with a single backslash like this.
        found = re.search(r"[\t\b\f\r][A-Za-z]\w*", text)
        if found:
            raise UserError(f"{where}: a control character before letters, "
                            f"{found[0]!r:.60}. {TWICE}")
    return question, golds, *passages


# ---- Which sets, and what is held out ----

def is_tiny(cfg):
    """Return True if the run uses the tiny model."""
    if not cfg.resume:
        return is_tiny_model(cfg.model)
    # The model's original folder may have moved.
    folders = (os.path.join(cfg.out, name) for name in ("checkpoint", "checkpoint.before"))
    return any(map(is_tiny_model, folders))


def is_tiny_model(name):
    """Return True if --model names the tiny model: "", or a folder with one."""
    try:
        with open(os.path.join(name, "config.json")) as file:
            return name == "" or "tiny" in json.load(file)
    except (OSError, ValueError):
        return name == ""


def check_name(flag, name, known, *, files=True):
    """Raise UserError, with a suggestion, unless the name is known or, if files are
    allowed, ends in .jsonl."""
    if name not in known and not (files and name.endswith(".jsonl")):
        or_file = ", or a file that ends in .jsonl" if files else ""
        hint = suggest(name.lower(), known)
        if name in MATH_TEST and flag == "--data" and "gsm8k" in known:
            hint = f": it is a test set, --eval_data {name}"
        elif name in MATH_PAIRS or name in MATH_TEST or name.endswith(".jsonl"):
            hint = ": it belongs to --task math"
        raise UserError(f"{flag} {name} is not one of {', '.join(known)}{or_file}{hint}")


def choose_eval_data(cfg, pairs):
    """Return the name of the set to test on. pairs: the default for each training set."""
    check_name("--data", cfg.data, pairs)
    eval_data = cfg.eval_data or pairs.get(cfg.data)
    if not eval_data:
        raise UserError(f"--data {cfg.data} has no test problems: name a set or another file "
                        "with --eval_data")
    check_name("--eval_data", eval_data, pairs.values())
    if is_tiny(cfg) and {cfg.data, eval_data} != {"synthetic"}:
        raise UserError("the tiny model can only read synthetic problems, not --data "
                        f"{cfg.data} and --eval_data {eval_data}: add --model")
    return eval_data


def drop_questions(problems, held_out):
    """Drop problems whose question is also held out, ignoring white space and case."""
    def key(problem):
        return " ".join(problem.question.split()).casefold()
    keys = {key(problem) for problem in held_out}
    return [problem for problem in problems if key(problem) not in keys]


def hold_out(found, test, eval_data, cfg):
    """Split the problems found into (train, valid), without those in the test set; print
    how many were removed. Validation gets at most a tenth, and at most
    cfg.eval_problems."""
    train = drop_questions(found, test)
    if len(train) < len(found):
        print(f"removed {len(found) - len(train)} training problems that occur in {eval_data}")
    valid = random.Random(cfg.seed).sample(train, min(cfg.eval_problems, len(train) // 10))
    train = drop_questions(train, valid)
    if not valid or not train:
        raise UserError(f"--data {cfg.data} has too few different problems that are not in "
                        f"{eval_data}: give 10 or more (a tenth is held out for validation)")
    return train, valid
