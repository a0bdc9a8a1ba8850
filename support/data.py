"""Check the data that settings name, before a model is loaded: sets and .jsonl files.
Functions here raise UserError on bad input."""
import json
import os
import re

from support.program import say, suggest
from tasks import MATH_LINE, MATH_PAIRS, MATH_TEST, UserError, is_gold

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


def accept(gold):
    return True


def check_file(path, example=MATH_LINE, matches=is_gold):
    """Check a .jsonl file: each line must have the keys of the example, and `matches` must
    accept each gold."""
    try:
        with open(path, "rb") as file:
            lines = file.readlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    broken = []  # lines with a lowercase letter after a newline: probably \nu or \neq
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        question, golds = check_line(line, example, where)
        for gold in golds:
            if gold.strip() and not matches(gold):
                raise UserError(f"{where}: no answer can match {gold!r:.60}: give only the "
                                "final answer, without a box or words")
        if re.search("\n[a-z]", question):
            broken.append(number)
    if broken:
        say(f"{path}: {len(broken)} questions have a lowercase letter after a newline, such as "
            f"line {broken[0]}. {TWICE}")


TWICE = r'In JSON, write a backslash twice, as in "\\nu" or "\\frac{1}{2}"'


def refuse_constant(name):
    """Refuse NaN, which json.dumps writes for missing numbers, and Infinity."""
    raise ValueError(name)


def check_line(line, example, where):
    """Parse a line of JSON and return its (question, golds)."""
    try:
        row = json.loads(line, parse_constant=refuse_constant)
        question, golds, *passages = [row[key] for key in example]
        golds = golds if isinstance(golds, list) else [golds]
        if any(type(gold) in (bool, dict, list) for gold in golds):
            raise TypeError
        golds = ["" if gold is None else str(gold) for gold in golds]
        # These raise unless passages are a list, and all are strings without lone surrogates.
        "".join(sum(passages, [question, *golds])).encode()
    except (ValueError, LookupError, TypeError, RecursionError):
        text = line.decode(errors="replace").strip()
        hint = f". {TWICE}" if "\\" in text else ""
        raise UserError(f"{where}: {text[:60]!r} is not like {json.dumps(example)}"
                        f"{hint}") from None
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
    return question, golds


# ---- Which sets ----

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


def check_readable(cfg, eval_data):
    """Raise UserError if the tiny model would get problems that it cannot read."""
    if is_tiny_model(cfg.model) and {cfg.data, eval_data} != {"synthetic"}:
        raise UserError("the tiny model can only read synthetic problems, not --data "
                        f"{cfg.data} and --eval_data {eval_data}: add --model")
