"""Texts as a reader sees them: made visible, and without what ends a turn.

All of it is for hostile text: the time that a function takes grows with the length
alone.
"""
import re
import unicodedata


def each_normalized(form, text):
    """The text, each character normalized alone: a long run of accents as a whole takes
    quadratic time."""
    return text.translate({ord(c): unicodedata.normalize(form, c) for c in set(text)})


def filtered(text, keep, other=""):
    """The text with `other` in place of each character c for which keep(c) is false."""
    return text.translate({ord(c): other for c in set(text) if not keep(c)})


def visible(text):
    """The text as a reader sees it, to look for tags and turns in: full-width letters
    and such are plain ones, and nothing hides behind characters that are not seen."""
    return filtered(each_normalized("NFKC", text),
                    lambda c: c.isspace() or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Mn"))


LINE_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
FAKE_TURN = re.compile(rf"<\|[^<>|\s]{{1,40}}\|>|\[INST\]|(?:^|[{LINE_ENDS}])[ \t>*#-]*"
                       r"(?:user|human|assistant|system)\W{0,3}:", re.I)


# Of Qwen, Llama, Gemma, Mistral and others: the loop cuts them off, other programs may not.
STOP_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>",
               "<eos>", "<pad>", "</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>")
REVERSED_END = re.compile("(?:" + "|".join([r"\s", *(re.escape(token[::-1]) for token in STOP_TOKENS)]) + ")*+")


def without_end(response):
    """The response without white space around it and stop tokens after it."""
    ended = REVERSED_END.match(response[::-1]).end()  # from the end on, so that the time is linear
    return response[:len(response) - ended].lstrip()
