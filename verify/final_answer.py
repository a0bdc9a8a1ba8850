"""Where the final answer stands in a response to a mathematical problem; math_equal.py
compares it."""
import re

MAX_CHARS = 500  # of an answer, and of what is looked at around it

BOX = re.compile(r"\\boxed\s*")
JOINED = re.compile(r"[\s$]*(?:[,;]|,?\s*(?:and|or|\\text\{\s*(?:and|or)\s*\}))[\s$]*(?:[A-Za-z]\s*=\s*)?")
# What makes another answer of the box, on its line: 6 or \boxed{5}, -\boxed{5},
# \boxed{5}^2, \boxed{5} or 6.
BEFORE_BOX = re.compile(r"((\b(or|not|minus)|\d[ \t]*[-+*/^,]?)[ \t]*|(?<![-*+])[-+/^])\$*\Z", re.I)
AFTER_BOX = re.compile(r"[ \t$]*(,?[ \t]*((or|and)[ \t]+)?[$\\-]*\d|[-+*/^][ \t$]*[\d({\\]|"
                       r"\\(times|cdot|div|pm|text\{\s*(or|and|not))\b)", re.I)


def final_answer(response):
    """The text of the final answer, or "" where there is none: what is in the last
    \\boxed{...} after the last </think>, which no <think> may follow. With answer tags
    it is that of the last <answer>...</answer>, or all of it where it has no box or
    where something beside the box changes it. Boxes joined by a comma, by "and" or by
    "or" are one answer, a list; a box in a box is part of it. An empty box is no
    answer."""
    text = response.rpartition("</think>")[2]
    _, tagged, inside = text.rpartition("</answer>")[0].rpartition("<answer>")
    if "<think>" in text or not tagged and ("<answer>" in text or "</answer>" in text):
        return ""
    text = inside.partition("</answer>")[0] if tagged else text
    whole = text.strip() if tagged and len(text) <= MAX_CHARS else ""
    contents, first, end = [], 0, 0  # of the boxes that are joined
    for box in BOX.finditer(text, max(0, text.rfind("\\boxed") - MAX_CHARS)):
        if box.start() >= end:  # else it is in a box
            if not contents or not JOINED.fullmatch(text, end, box.start()):
                contents, first = [], box.start()
            end = after_brace(text, box.end())
            contents.append(text[box.end() + 1:end - 1].strip())
    if not all(contents):
        return ""
    beside = tagged and (BEFORE_BOX.search(text[max(0, first - MAX_CHARS):first]) or
                         AFTER_BOX.match(text[end:end + MAX_CHARS]))
    return whole if beside or not contents else ", ".join(dict.fromkeys(contents))


def after_brace(text, at):
    """Where what the brace at `at` opens has ended; `at` + 1 where none opens there or
    it ends too late."""
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text[at:at + MAX_CHARS] if text[at:at + 1] == "{" else "", re.S):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return at + brace.end()
    return at + 1
