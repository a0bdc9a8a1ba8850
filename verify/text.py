"""Normalize hostile text: as a reader sees it, and without the tokens that end a turn.

Every function takes time linear in the length of its text.
"""
import re
import unicodedata


def each_normalized(form, text):
    """Normalize the text character by character: normalizing a long run of accents at once
    takes quadratic time."""
    return text.translate({ord(c): unicodedata.normalize(form, c) for c in set(text)})


def filtered(text, keep, other=""):
    """Replace each character c by `other` unless keep(c)."""
    return text.translate({ord(c): other for c in set(text) if not keep(c)})


def visible(text):
    """Return the text as a reader sees it, to search for tags and turns: full-width letters
    become plain ones, and invisible characters, which could hide a tag, are removed."""
    return filtered(each_normalized("NFKC", text),
                    lambda c: c.isspace() or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Mn"))


LINE_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
FAKE_TURN = re.compile(rf"<\|[^<>|\s]{{1,40}}\|>|\[INST\]|(?:^|[{LINE_ENDS}])[ \t>*#-]*"
                       r"(?:user|human|assistant|system)\W{0,3}:", re.I)


# Of Qwen, Llama, Gemma, Mistral and others. Our sampling loop removes them; other programs may not.
STOP_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>",
               "<eos>", "<pad>", "</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>")
REVERSED_END = re.compile("(?:" + "|".join([r"\s", *(re.escape(token[::-1]) for token in STOP_TOKENS)]) + ")*+")


def without_end(response):
    """Strip white space, and the stop tokens at the end."""
    ended = REVERSED_END.match(response[::-1]).end()  # backwards, for linear time
    return response[:len(response) - ended].lstrip()
