"""Find the final answer in a response to a mathematical problem; math_equal.py compares it."""
import re

MAX_CHARS = 500  # characters of an answer, and of the text read on each side of it

BOX = re.compile(r"\\boxed\s*")
JOINED = re.compile(r"[\s$]*(?:[,;]|,?\s*(?:and|or|\\text\{\s*(?:and|or)\s*\}))[\s$]*(?:[A-Za-z]\s*=\s*)?")

# With answer tags, anything but layout between a box and the nearest word, "=" or line end
# changes the answer. So do these words.
OPERATORS = (r"(?:or|not?|never|plus|minus|negative|opposite|times|over|half|twice|double|triple|than|least|"
             r"most|of|squared|cubed|factorial|percent|dozen|hundred|thousand|[mbtr]+illion|mod|modulo|"
             r"pi|sqrt|exp|ln|log|sin|cos|tan|(?:and|to)(?!\s+[^\W\d_]{2}))(?![^\W\d_])")
WORD = rf"(?<![\w\\'’])(?!{OPERATORS})[^\W\d_]{{2,}}(?:['’](?!t\b)\w+|(?!['’]))"
ARROW = r"\\(?:to|approx|therefore|implies|(?:Long|long)?[Rr]ightarrow)(?![A-Za-z])"
STOP_BEFORE = re.compile(rf"""\n | \A\s*(?:[-+>]+|\#+|\(?\w\w?[.)])\s  # an item of a list
    | {WORD}(?:\s+\w{{1,3}}:|\s+[–—-]\s)?         # Answer, Answer -, Step 2:
    | =[^=$\\,;]*(?:\$|\\\))[,.;:]?\s+           # since $x = 5$,
    | (?<![!<>])=>? | -> | [.?!]\s | [→⇒∴≈。：] | {ARROW}""", re.X | re.I)
STOP_AFTER = re.compile(rf"""\n | \\end\s*\{{ | \\\\\s*$ | [.?]\s | [\u3040-\ud7a3]  # Japanese to Korean
    | (?<![\w\\}}])(?:a\s+)?{WORD} | \s[–—-]\s+(?={WORD})""", re.X | re.I | re.M)
LAYOUT = re.compile(r"""[\s$*~(){}.,:;?。，∎■□✓✔✅] | \\[()\[\],;:!$ ] | \^\s*\{?\s*\\circ(?![A-Za-z]) | °
    | \\(?:text[a-z]*|mbox|mathbf|mathrm|displaystyle|q?quad|left|right|blacksquare|square|Box|checkmark|qed)
    (?![A-Za-z])""", re.X)
PERCENT = re.compile(r"[\s$]*(?:\\?[%％]|percent\b)", re.I)


def final_answer(response):
    """Return the text of the final answer, or "" if there is none.

    It is what the last \\boxed{...} after the last </think> contains; no <think> may
    follow. With answer tags only the last <answer>...</answer> counts: its last box, or
    all of it if it has no box or if something next to the box changes the answer. Boxes
    joined by a comma, "and" or "or" are one answer, a list; a box in a box is part of
    it. An empty box is not an answer."""
    text = response.rpartition("</think>")[2]
    _, tagged, inside = text.rpartition("</answer>")[0].rpartition("<answer>")
    if "<think>" in text or not tagged and ("<answer>" in text or "</answer>" in text):
        return ""
    text = inside.partition("</answer>")[0] if tagged else text
    contents, last, first, end = [], 0, 0, 0  # of the boxes that are joined; `last` ends the one before them
    for box in BOX.finditer(text, max(0, text.rfind("\\boxed") - MAX_CHARS)):
        if box.start() >= end:  # else it is in a box
            if not contents or not JOINED.fullmatch(text, end, box.start()):
                contents, last, first = [], end, box.start()
            end = after_brace(text, box.end())
            contents.append(text[box.end() + 1:end - 1].strip())
    if not all(contents):
        return ""
    answer = ", ".join(dict.fromkeys(contents))
    before, after = text[max(last, first - MAX_CHARS):first], text[end - 1:end + MAX_CHARS]
    if tagged and (not contents or is_changed(before, after)):
        percent = contents and PERCENT.match(text, end)
        if percent:  # otherwise 5% would be 5, because a unit may be left out
            text = f"{text[:first]}{answer} \\times 10^{{-2}}{text[percent.end():]}"
        return text.strip() if len(text) <= MAX_CHARS else ""
    return answer


def is_changed(before, after):
    """Return True if something other than layout touches the box. `after` begins with the
    box's closing brace."""
    touching = STOP_BEFORE.split(before)[-1], STOP_AFTER.split(after)[0]
    return any(LAYOUT.sub("", text) for text in touching)


def after_brace(text, at):
    """Return the position after the brace that closes the one at `at`; `at` + 1 if there is
    no brace at `at` or it closes more than MAX_CHARS later."""
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text[at:at + MAX_CHARS] if text[at:at + 1] == "{" else "", re.S):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return at + brace.end()
    return at + 1
