"""Find the final answer in a response to a mathematical problem; math_equal.py compares it."""
import re

MAX_CHARS = 500  # characters of an answer, and of the text read on each side of it

BOX = re.compile(r"\\boxed\s*")
JOINED = re.compile(r"[\s$]*(?:[,;]|,?\s*(?:and|or|\\text\{\s*(?:and|or)\s*\}))[\s$]*(?:[A-Za-z]\s*=\s*)?")

# With answer tags, a box is the answer if nothing but layout is between it and one of these:
# a line or sentence end, or words that only introduce or end an answer.
STARTS = re.compile(r"""(?:\A|\n)\s*(?:-|\#+|\(?\w[.)])\s  # an item of a list
    | \n | (?<![\\\w])[^\W\d_]{2,},\s | [.?]\s | (?<![\s\d]):\s | [。：是] | => | -> | [→⇒∴≈]
    | \\(?:to|approx|therefore|implies|(?:Long|long)?[Rr]ightarrow)(?![A-Za-z])
    | (?<!\w)(?:is|are|equals|est|(?:it|that)['’]s|obtain|get|so|then|thus|hence|therefore|
       answer(?:\s[=–—-]\s)?)(?!\w)
    | =[^=$\\,;]*(?:\$|\\\))[,.;:]?\s+  # since $x = 5$,
    | =[\d\s+*.-]+= | [:&]= | \\boxed\s*\{[^{}]*\}\s+\Z""", re.X | re.I)
ENDS = re.compile(r"""\n | \\end\s*\{ | \\\\\s*$ | [.?]\s | \s[–—]\s | 个 | \((?:approximately|final|units)\)
    | ,?(?<![\w}])(?:is\ it|is\ the\ answer|and\ we\ are\ done|as\ required|where|for\ \w\ =|
        a\ day|a\ week)(?!\w)""", re.X | re.I | re.M)
LAYOUT = re.compile(r"""[\s$*~(){}.,:;?。，∎■□✓✔✅] | \\[()\[\],;:!$ ] | \^\s*\{?\s*\\circ(?![A-Za-z]) | °
    | \\(?:text[a-z]*|mbox|mathbf|mathrm|displaystyle|q?quad|left|right|blacksquare|square|Box|checkmark|qed)
    (?![A-Za-z])""", re.X)
PERCENT = re.compile(r"[\s$]*(?:\\?[%％]|per\s?cent\b)", re.I)


def final_answer(response):
    """Return the text of the final answer, or "" if there is none.

    It is what the last \\boxed{...} after the last </think> contains; no <think> may
    follow. With answer tags only the last <answer>...</answer> counts: its last box, or
    if other text touches that box, with this text; or all of it if it has no box. Boxes
    joined by a comma, "and" or "or" are one answer, a list; a box in a box is part of
    it. An empty box is not an answer."""
    text = response.rpartition("</think>")[2]
    _, tagged, inside = text.rpartition("</answer>")[0].rpartition("<answer>")
    if "<think>" in text or not tagged and ("<answer>" in text or "</answer>" in text):
        return ""
    text = inside.partition("</answer>")[0] if tagged else text
    contents, first, end = [], 0, 0  # of the boxes that are joined
    for box in BOX.finditer(text, max(0, text.rfind("\\boxed") - MAX_CHARS)):
        if box.start() >= end:  # else it is in a box
            if not contents or not JOINED.fullmatch(text, end, box.start()):
                contents, first = [], box.start()
            end = after_brace(text, box.end())
            contents.append(text[box.end() + 1:end - 1].strip())
    if not all(contents):
        return ""
    answer = ", ".join(dict.fromkeys(contents))
    if not tagged:
        return answer
    if not contents:
        return text.strip() if len(text) <= MAX_CHARS else ""
    percent = PERCENT.match(text, end)
    before = STARTS.split(text[max(0, first - MAX_CHARS):first])[-1]
    after = ENDS.split(text[end - 1:end + MAX_CHARS])[0][1:]  # the box's brace is not yet a word's end
    if not LAYOUT.sub("", before + after):
        return answer
    if percent:  # otherwise 5% would be 5, because a unit may be left out
        answer = f"{answer} \\times 10^{{-2}}"
        after = ENDS.split(text[percent.end():percent.end() + MAX_CHARS])[0]
    return f"{before}{{{answer}}}{after}".strip()


def after_brace(text, at):
    """Return the position after the brace that closes the one at `at`; `at` + 1 if there is
    no brace at `at` or it closes more than MAX_CHARS later."""
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text[at:at + MAX_CHARS] if text[at:at + 1] == "{" else "", re.S):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return at + brace.end()
    return at + 1
