"""Problems from the hub and from files of JSON lines, and the care that both need.

A row is (question, golds), of which golds any will do; a row of question answering is
(question, golds, passages). All functions raise UserError for what a user can get
wrong.
"""
import json
import os
import random
import re

from support.program import UserError, first_line, say, suggest
from verify.final_answer import final_answer

# --data or --eval_data: the set's name on the hub, its configuration, its split there
MATH_TRAIN = {"gsm8k": ("openai/gsm8k", "main", "train"),
              "math": ("DigitalLearningGmbH/MATH-lighteval", None, "train"),
              "deepscaler": ("agentica-org/DeepScaleR-Preview-Dataset", None, "train")}
MATH_TEST = {"gsm8k": ("openai/gsm8k", "main", "test"),
             "math500": ("HuggingFaceH4/MATH-500", None, "test"),
             # its only split: 30 problems
             "aime24": ("HuggingFaceH4/aime_2024", None, "train")}
# --data: the set to test on
MATH_PAIRS = {"synthetic": "synthetic", "gsm8k": "gsm8k", "math": "math500",
              "deepscaler": "aime24"}
# What a line of a file looks like. Golds may be text, a number, or a list of these.
MATH_LINE = {"question": "1 + 1?", "answer": "2"}


def accept(gold):
    return True


# ---- The hub ----

def load_hub(name, configuration, split):
    """The rows of a split of a set on the hub."""
    import datasets  # slow to import, and needed for data from the hub only
    try:
        return datasets.load_dataset(name, configuration, split=split)
    # a set that comes as a script, which is not run: the hub's own copy of its rows,
    except RuntimeError:
        try:              # on a branch where each configuration has a folder of its name
            return datasets.load_dataset(name, data_dir=configuration, split=split,
                                         revision="refs/convert/parquet")
        except Exception as error:
            reason = first_line(error)
    except Exception as error:  # no such set, no access, no network: each has its own type
        reason = first_line(error)
    raise UserError(f"cannot load {name} from the hub: {reason}")


def load_math(name, places, matches=accept):
    """Rows of the set that `name` names in `places` (MATH_TRAIN or MATH_TEST), or of a
    file. matches(gold): whether the verifier accepts the gold answer itself."""
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
    """The rows without golds that are blank or that match nothing, and without those
    that have no other; prints how many these are."""
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
    """The settings given, a dict, with the paths in them as they are found from wherever
    the run is resumed: ~ is the user's folder, a model's folder and a file of data are
    absolute."""
    found = dict(given)
    for name in ("model", "data", "eval_data", "out"):
        path = os.path.expanduser(given.get(name, ""))
        if path.endswith(".jsonl") or name == "model" and os.path.isdir(path):
            path = os.path.abspath(path)
        if path:
            found[name] = path
    return found



def read_file(path, example, matches=accept):
    """Read the rows of a file whose lines have the keys of the example. Each gold must be
    one that `matches` accepts."""
    try:
        with open(path, "rb") as file:
            lines = file.readlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    rows = []
    broken = []  # lines with a text that goes on with a small letter after a line feed
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        question, golds, *passages = read_line(line, example, where)
        for gold in golds:
            if gold.strip() and not matches(gold):
                raise UserError(f"{where}: no answer can match {gold!r:.60}: give the final "
                                "answer alone, without a box or words")
        if re.search("\n[a-z]", question):
            broken.append(number)
        rows.append((question, golds, *passages))
    if broken:
        say(f"{path}: in {len(broken)} questions, such as that of line {broken[0]}, a small "
            f"letter follows a line feed. {TWICE}")
    return rows


TWICE = r'In JSON a backslash is written twice, as in "\\nu" or "\\frac{1}{2}"'


def refuse_constant(name):
    """Refuse NaN, which json.dumps writes for a missing number, and Infinity."""
    raise ValueError(name)


def read_line(line, example, where):
    """(question, golds) or (question, golds, passages) of a line of JSON."""
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
        raise UserError(f"{where}: an answer is a text, a number or a list of these, not "
                        f"{golds!r:.60}")
    if passages and not isinstance(passages[0], list):
        raise UserError(f"{where}: passages are a list of texts, not {passages[0]!r:.60}")
    golds = ["" if gold is None else str(gold) for gold in golds]
    for text in [question, *golds, *(passages[0] if passages else [])]:
        if not isinstance(text, str) or any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"{where}: {text!r:.60} is no text")
    if not question.strip():
        raise UserError(f"{where}: the question is empty")
    for gold in golds:
        if "\n" in gold.strip():
            raise UserError(f"{where}: the answer {gold!r:.60} has several lines: give the "
                            "final answer alone")
    for text in (question, *golds):
        # \theta, \beta, \frac and \rho with a single backslash begin like this.
        found = re.search(r"[\t\b\f\r][A-Za-z]\w*", text)
        if found:
            raise UserError(f"{where}: a control character stands before letters, "
                            f"{found[0]!r:.60}. {TWICE}")
    return question, golds, *passages


# ---- Which sets, and what is held out ----

def is_tiny(cfg):
    """Return whether the run's model is the tiny one."""
    if not cfg.resume:
        return is_tiny_model(cfg.model)
    # The folder that the run began with may have moved.
    folders = (os.path.join(cfg.out, name) for name in ("checkpoint", "checkpoint.before"))
    return any(map(is_tiny_model, folders))


def is_tiny_model(name):
    """Return whether --model names the tiny model ("" does), or a folder that has one."""
    try:
        with open(os.path.join(name, "config.json")) as file:
            return name == "" or "tiny" in json.load(file)
    except (OSError, ValueError):
        return name == ""


def check_name(flag, name, known, *, files=True):
    """Raises UserError, with a suggestion, unless the name is known or, with `files`,
    ends in .jsonl."""
    if name not in known and not (files and name.endswith(".jsonl")):
        or_file = ", or a file that ends in .jsonl" if files else ""
        hint = suggest(name.lower(), known)
        if name in MATH_TEST and flag == "--data" and "gsm8k" in known:
            hint = f": it is a test set, --eval_data {name}"
        elif name in MATH_PAIRS or name in MATH_TEST or name.endswith(".jsonl"):
            hint = ": it belongs to --task math"
        raise UserError(f"{flag} {name} is not one of {', '.join(known)}{or_file}{hint}")


def choose_eval_data(cfg, pairs):
    """The name of the set to test on; `pairs`: that of each known set."""
    check_name("--data", cfg.data, pairs)
    eval_data = cfg.eval_data or pairs.get(cfg.data)
    if not eval_data:
        raise UserError(f"--data {cfg.data} has no test problems: name a set or another file, "
                        f"--eval_data")
    check_name("--eval_data", eval_data, pairs.values())
    if is_tiny(cfg) and {cfg.data, eval_data} != {"synthetic"}:
        raise UserError("the tiny model can only read synthetic problems, not --data "
                        f"{cfg.data} and --eval_data {eval_data}: add --model")
    return eval_data


def drop_questions(problems, held_out):
    """The problems whose question is not, white space and case aside, one of those held
    out."""
    def key(problem):
        return " ".join(problem.question.split()).casefold()
    keys = {key(problem) for problem in held_out}
    return [problem for problem in problems if key(problem) not in keys]


def hold_out(found, test, eval_data, cfg):
    """(train, valid) of the problems found, without those that occur in the test;
    prints how many these are. A tenth of the others at most, and at most
    cfg.eval_problems, are for validation."""
    train = drop_questions(found, test)
    if len(train) < len(found):
        print(f"removed {len(found) - len(train)} training problems that occur in {eval_data}")
    valid = random.Random(cfg.seed).sample(train, min(cfg.eval_problems, len(train) // 10))
    train = drop_questions(train, valid)
    if not valid or not train:
        raise UserError(f"--data {cfg.data} has too few different problems that are not in "
                        f"{eval_data}: give 10 or more, a tenth of which are for validation")
    return train, valid
