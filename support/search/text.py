"""Compare texts as answers, and search them with BM25.

Texts are untrusted, so the time of every function depends only on their length.
"""
import math
import re
import unicodedata
from collections import Counter

import torch

# Includes Hebrew and Arabic points, but not the strokes (\u0334 to \u0338) that cross out a
# letter.
ACCENTS = re.compile("[\u0300-\u0333\u0339-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
PLAIN = str.maketrans({
    **dict(zip("\u00f8\u0142\u0111\u00f0\u0127\u0167\u0131", "olddhti")),
    "\u00e6": "ae", "\u0153": "oe", "\u00fe": "th",
    **dict.fromkeys(
        "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\uff0d\ufe63\u207b\u02d7\u2796", "-"),
    # letters like apostrophes
    **dict.fromkeys("\u02b9\u02ba\u02bb\u02bc\u02bd\u02be\u02bf\ua78c", None)})


def each_normalized(form, text):
    """Normalize the text character by character: normalizing a long run of accents at once
    takes quadratic time."""
    return text.translate({ord(c): unicodedata.normalize(form, c) for c in set(text)})


def filtered(text, keep, other=""):
    """Replace each character c by `other` unless keep(c)."""
    return text.translate({ord(c): other for c in set(text) if not keep(c)})


def fold(text):
    """Return the text in lower case, without accents, with one kind of hyphen."""
    return ACCENTS.sub("", each_normalized("NFD", text.casefold())).translate(PLAIN)


def in_word(c):
    # letters, marks (the vowels of many scripts), numbers
    return unicodedata.category(c)[0] in "LMN"


def has_meaning(c):
    """Return True for letters, numbers and non-ASCII symbols (not equal, sharp, pound),
    except trademarks."""
    sign = unicodedata.category(c) in ("Sc", "Sm", "So") and c not in "\u00a9\u00ae\u00b0\u2122"
    return in_word(c) or sign and not c.isascii()


def words_of(text):
    return filtered(fold(text), in_word, " ").split()


LETTER = r"[^\W\d_]"
INITIALS = [(re.compile(pattern), new) for pattern, new in (
    (rf"(?<!\w)({LETTER})\. (?={LETTER}\.)", r"\1."),  # J. K. is J.K.
    (rf"(?<![\w.])((?:{LETTER}\.)++)(?={LETTER}{{2}})", r"\1 "),  # J.K.Rowling is J.K. Rowling
    (rf"(?<!\w)(?<!\b{LETTER} ){LETTER}(?: {LETTER}(?!\w))++(?= {LETTER}{{2}})",
     lambda match: match[0].replace(" ", "")))]  # J K Rowling is JK Rowling, but A B is not AB
# The signs of a formula change its meaning: x < 5, AB-, 1e-6. They become symbols that stay.
KEPT = "\uff0b\u2238\uff1c\uff1e\uff1d\u2215\u2217\u2303\u2762\u266f"
STAY = str.maketrans("+-<>=/*^!#", KEPT)
OPERAND = rf"(?:\d|(?<!{LETTER}){LETTER}(?!{LETTER}))"
SIGNS = [re.compile(pattern) for pattern in (
    rf"(?<={LETTER})()([+#]+)(?!\w)", rf"(?<!\w)({LETTER}{{1,2}})(-+)(?!\w)",  # C++, AB-
    r"(\de)(-)(?=\d)", rf"({OPERAND})\s*([+<>=/*^!]+)\s*(?=-?{OPERAND})",
    rf"(\A|\s)([<>!]=?)\s*(?=-?{OPERAND})")]
MOST_HYPHENS = 4  # with more hyphens, all become spaces or all become nothing


def plain_answers(text):
    """Return the forms of a string for exact match: folded, without punctuation and articles.

    A final article stays (vitamin A is not vitamin). Each hyphen is tried as a space and
    as nothing; J. K., J K and J.K. become JK. Digits separated by a sign stay separate,
    and decimal points and minus signs stay: 3.5, 3-5 and (-35) are not 35. So do the
    signs of formulas: x < 5 is not x > 5.
    """
    text = " ".join(fold(text).split())
    for pattern in SIGNS:
        text = pattern.sub(keep_signs, text)
    joined = text
    for pattern, new in INITIALS:
        joined = pattern.sub(new, joined)
    forms = set()
    for words in {text, joined}:
        # A word follows an article: A in "A, B" is not an article, and A-10 is not 10.
        words = re.sub(r"(?<![^\W_][^\w\s])(?<![^\W_])(?:a|an|the)\s+(?=[^\w\s]*\w)", "", words)
        words = re.sub(rf"(?<=\d)(?:[^\w\s.,{KEPT}]|_|,(?!\d{{3}}(?!\d)))+(?=\d)", " ", words)
        words = filtered(words, lambda c: has_meaning(c) or c.isspace() or c in ".-")
        words = re.sub(r"\A\s*-\s+(?=[\d.]+\s*\Z)", "-", words)  # - 5 is -5, - 12 May is 12 May
        words = re.sub(r"(?<![^\s-])\.(?=\d)", "0.", words)  # .5 is 0.5
        words = re.sub(r"(?<!\d)\.|\.(?!\d)|(?<!\S)-+(?!\d)|-+(?!\S)", "", words)
        forms |= without_hyphens(words)
    return forms - {""} or {text.strip()} - {""}


def keep_signs(match):
    return match[1] + match[2].translate(STAY)


def without_hyphens(words):
    """Return the text with each hyphen replaced by a space or by nothing, in every combination
    unless there are too many."""
    first, *parts = re.split(r"(?<=\S)-+", words)
    if len(parts) > MOST_HYPHENS:
        return {" ".join(mark.join([first, *parts]).split()) for mark in (" ", "")}
    forms = {first}
    for part in parts:
        forms = {form + mark + part for form in forms for mark in (" ", "")}
    return {" ".join(form.split()) for form in forms}


def bm25(passages, *, k1=1.2, b=0.75):
    """Return a function search(query, most): the indices of the `most` best passages, best
    first. Passages without a word of the query are never returned.

    If n of N passages contain a word, tf times in the scored one, the score is the sum over
    the words of the query of

        ln(1 + (N - n + 0.5) / (n + 0.5)) * tf * (k1 + 1)
            / (tf + k1 * (1 - b + b * length / mean length))

    This is BM25 (Robertson and Zaragoza, 2009) with Lucene's logarithm, which is never
    negative.
    """
    counts = [Counter(words_of(passage)) for passage in passages]
    average = sum(count.total() for count in counts) / max(1, len(counts))
    entries = {}  # word -> [(index of a passage, the second factor of its score)]
    for i, count in enumerate(counts):
        for word, tf in count.items():
            factor = tf * (k1 + 1) / (tf + k1 * (1 - b + b * count.total() / average))
            entries.setdefault(word, []).append((i, factor))
    index = {}  # word -> its passages, and their scores for it, as two tensors
    for word, pairs in entries.items():
        where, factors = zip(*pairs)
        idf = math.log(1 + (len(passages) - len(pairs) + 0.5) / (len(pairs) + 0.5))
        index[word] = (torch.tensor(where), idf * torch.tensor(factors, dtype=torch.float64))

    def search(query, most):
        scores = torch.zeros(len(passages), dtype=torch.float64)
        for word, times in Counter(words_of(query)).items():
            if word in index:
                where, scores_of_word = index[word]
                scores[where] += times * scores_of_word
        best = scores.argsort(descending=True, stable=True)[:most]  # ties: the first wins
        return [i for i in best.tolist() if scores[i] > 0]
    return search
