"""Is the final answer of a response equal to the gold answer? Nothing in a response is ever run as code."""
import cmath
import functools
import math
import random
import re
from fractions import Fraction
from typing import NamedTuple


class Verdict(NamedTuple):
    correct: bool    # the final answer is right
    formatted: bool  # the response keeps the form that the prompt asks for


# ----------------------------------------------------------------------------------------------------------
# Mathematics: text is cut into tokens, tokens are read as items, and items hold numbers that can be compared
# ----------------------------------------------------------------------------------------------------------

MAX_CHARS, MAX_DEPTH, MAX_BITS = 1000, 24, 4100  # of an answer, its nesting, a Fraction: they bound the cost


class Unreadable(ValueError):
    """The text is no mathematics that the reader knows, or a number in it is out of bounds."""


# A number is a Fraction as long as possible, else a complex; zero is always a Fraction.
def _tidy(x):
    """Removes rounding dust. Overflow and underflow are failures: they do not become infinity or 0."""
    if isinstance(x, Fraction) and max(map(int.bit_length, x.as_integer_ratio())) < MAX_BITS:
        return x
    if isinstance(x, Fraction) or not 1e-290 < abs(x) < 1e290:
        raise Unreadable("too large or too small")
    return complex(*(part if abs(part) > 1e-13 * abs(x) else 0.0 for part in (x.real, x.imag)))


def _plus(x, y):
    if not x or not y:
        return x or y
    total, scale = x + y, max(abs(x), abs(y))
    if isinstance(total, complex) and abs(total) < 1e-13 * scale:
        return Fraction(0)
    if isinstance(total, complex) and min(abs(x), abs(y), abs(total)) < 1e-10 * scale:
        raise Unreadable("too few digits are left")  # else 10^20 + sqrt(2) would equal 10^20
    return total


def _power(x, y):
    exact = isinstance(y, Fraction)
    if exact and y.denominator == 1:
        if isinstance(x, Fraction) and abs(y) * max(map(int.bit_length, x.as_integer_ratio())) > MAX_BITS:
            raise Unreadable("too large")
        return x ** int(y)
    if exact and y.denominator % 2 and not x.imag and x.real < 0:
        return (-1) ** y.numerator * cmath.exp(y * cmath.log(-x))  # an odd root of a negative number is real
    return cmath.exp(y * cmath.log(x)) if x else x


@functools.lru_cache(1024)
def _sample(name):
    """The values of a free symbol at five points: real, of both signs, below and above 1. At the first two,
    all symbols are positive, so that roots and logarithms can be compared."""
    rng = random.Random(ascii(name))
    spans = (21, 95), (171, 300), (-299, -20), (-299, 300), (-299, 300)
    return tuple(Fraction(rng.randrange(*span, 2), 101) for span in spans)  # odd / 101: never 0


OPERATORS = {"+": _plus, "*": lambda x, y: x and y and x * y, "/": lambda x, y: x / y if x or not y else x,
             "^": _power, "√": lambda n, x: _power(x, 1 / n), "!": lambda x: complex(math.gamma(x.real + 1)),
             "\\binom": lambda n, k: OPERATORS["!"](n) / OPERATORS["!"](k) / OPERATORS["!"](n - k)}
FUNCTIONS = {"\\" + name: lambda x, f=f: f(x) if abs(f(x)) > 1e-14 else Fraction(0) for name, f in dict(
    sin=cmath.sin, cos=cmath.cos, tan=cmath.tan, sinh=cmath.sinh, cosh=cmath.cosh, tanh=cmath.tanh,
    arcsin=cmath.asin, arccos=cmath.acos, arctan=cmath.atan, ln=cmath.log, log=cmath.log10,
    sec=lambda x: 1 / cmath.cos(x), csc=lambda x: 1 / cmath.sin(x), cot=lambda x: 1 / cmath.tan(x),
).items()}  # sin pi is 0, not 1e-16
FUNCTIONS |= {"\\exp": cmath.exp, "\\abs": abs, "\\floor": None, "\\ceil": None}  # None: known by name only
CONSTANTS = {"π": complex(math.pi), "e": complex(math.e), "i": 1j}
SYMBOLS = {*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"} | {"\\" + name for name in (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi "
    "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar").split()}
UNITS = {name: names.split()[0] for names in (
    "m meter metre|cm centimeter centimetre|mm millimeter|km kilometer kilometre|ft foot feet|in inch inche|"
    "yd yard|mi mile|s sec second|min minute|h hr hour|day|g gram|kg kilogram|mg|lb pound|oz ounce|mL ml|"
    "L liter litre|$ dollar usd|€ euro|cent|° degree deg|rad radian|% percent|mph|N newton|J joule|W watt|"
    "V volt|Hz|eV|K kelvin|am|pm|2 square sq|3 cubic|/ per -").split("|") for name in names.split()}
NO_UNITS = set("is not no if maybe probably perhaps possibly about wrong false incorrect than to but "
               "half dozen hundred thousand million billion squared cubed plus minus times over".split())
SHORT_WORDS = {"yes", "no", "odd", "all", "and", "or"}  # four letters or more are a word anyway
ALIASES = {alias: names.split()[0] for names in (
    r"\frac \dfrac \tfrac \cfrac|\binom \dbinom \tbinom|* \cdot \times|/ \div|≤ \le \leq \leqslant <=|"
    r"∪ \cup|≥ \ge \geq \geqslant >=|≠ \ne \neq !=|< \lt|> \gt|∈ \in|± \pm|∓ \mp|° \circ \degree|% \%|"
    r"$ \$|^ **|: \colon|' \prime|\{ \lbrace|\} \rbrace|\epsilon \varepsilon|\phi \varphi|"
    r"\emptyset \varnothing ∅|√ \sqrt|∞ \infty|π \pi|≈ \approx|\theta θ"
).split("|") for alias in names.split()}
UNICODE = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "²": "^2", "³": "^3", '"': " "})
DIGITS, SEPARATORS = {*"0123456789."}, {",", ";", "∪", '"and"', '"or"'}
RELATIONS = {"=", "<", "≤", ">", "≥", "≠", "≈", "∈", ":"}
CLOSERS = {"(": (")", "]"), "[": (")", "]"), "{": ("}",), "\\{": ("\\}",), "\\begin": ("\\end",), "": ("",)}
STARTERS = SYMBOLS | FUNCTIONS.keys() | {"(", "[", "{", "\\begin", "π", "∞", "√", "\\frac", "\\binom"}
REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"(?<!\\)\$(?!\d[^$]*\Z)|(?<!\\)\\[()\[\]]", " "),  # the ends of $5$ or \(5\), but not the sign in $5
    (r"(?<=\d)(?:,\s*\\!\s*|\{,\}|\\,|\\!)(?=\d{3}(?!\d))", ""),  # 1,\!000
    (r"(?<!\\)\\[,;:! ]|~", " "),
    (r"\\(?:left|right|q?quad|[bB]igg?[lr]?|displaystyle|mathbf|boldsymbol|f?boxe?d?)(?![A-Za-z])\.?", " "),
    (r"\^\s*(\{\s*)?((?:\s*\\(?:prime|circ))+)(?(1)\s*\})", r"\2"),  # 30^\circ and y^{\prime}
    (r"\\mathbb\s*(?:\{R\}|R)", r"\\R "),
    (r"\\(?:[lr]?vert|mid)(?![A-Za-z])", "|"),
    (r"\|([^|]*)\|", r"\\abs{\1}"),
    (r"\\l(floor|ceil)(.*?)\\r\1", r"\\\1{\2}"),
    (r"\\(begin|end)\s*\{(?:[bp]?matrix|array)\}(?:\{[lcr| ]*\})?", r"\\\1 "),
    (r"\\(?:text|textbf|textit|textrm|mbox|mathrm)\s*\{([^{}]*)\}",
     lambda match: re.sub(r"(?<![\\A-Za-z])([A-Za-z]+)\.?(?:(?<=\.)(m)\.)?", r'"\1\2"', match[1])),
    (r'(?:\\circ|°)\s*"?[CF]\b"?', "°"),  # Celsius
    (r"\b([ap])\.m\.", r'"\1m"'),
    (r"(?<=\d)\s*(k?m)\s*/\s*(s|h|hr)(?![A-Za-z])", r' "\1"/"\2"'),
    (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", "*"),
    (r"\\vec\s+([A-Za-z])", r"\\vec{\1}"),
    (r"\\[dt]?(frac|binom)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}"),
    (r"(?<![\d.^_])(\d+)\s*(\\[dt]?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})", r"(\1+\2)"),  # mixed numbers
    (r"(?<![\d.^_/])(\d+)\s+(\d+/\d+)(?![\d.])", r"(\1+\2)"))]
TOKEN = re.compile(r"""\\(?:overline|vec|hat|bar|d?dot|tilde|mathcal|mathbb)\s*\{[^{}]*\}|\\[A-Za-z]+|\\.
    |"[^"]*"|_(?:\{[^{}]*\}|[A-Za-z0-9])|[<>!]=|\*\*|[A-Za-z]+        # subscripts, runs of letters
    |\d+(?:\.\d+)?_(?:\d+|\{\d+\})|\d[\dA-F]*_(?:1[1-6]|\{1[1-6]\})   # numerals with a base
    |\d*\.\d*\\overline\{\d+\}|(?:(?<!\d,)[1-9]\d?\d?(?:,\d{3})+(?!\d|,\d)|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?
    |\.\d+(?:[eE][+-]?\d+)?|\S""", re.X | re.S | re.A)
UNIT = re.compile(r'(?: ?[*/]? ?(?:"(?!and"|or")[^"]+"|[%$€]|(?<=/ )[mshgL])'
                  r'(?: \^ (?:\{ )?(?:- )?[234](?: \})?)?)+')


def _tokens(text):
    """Cuts a text into numbers, letters, commands, signs, subscripts, and "words" in double quotes."""
    text = text.translate(UNICODE)
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    tokens, brackets = [], 0
    for token in TOKEN.findall(text.rstrip(" \n\t.,;*").lstrip(" \n\t*")):
        token = ALIASES.get(token, token).strip()
        word = token.strip('"')
        brackets += (token in ("(", "[", "\\{")) - (token in (")", "]", "\\}"))
        if "," in token and brackets > 0:  # (1,000) is a pair
            tokens += re.findall(r"[^,]+|,", token)
        elif not word.isascii() or not word.isalpha():
            tokens.append(token)
        elif "\\" + word in FUNCTIONS or word in ("pi", "sqrt"):
            tokens.append(ALIASES.get("\\" + word, "\\" + word))
        elif len(word) > 3 or word.lower() in SHORT_WORDS or (
                word != token and (len(word) > 1 or word in UNITS)) or (
                len(word) > 1 and word in UNITS and tokens and tokens[-1][-1] in {*DIGITS, "}", ")"}):
            tokens.append(f'"{word}"')
        else:
            tokens += word
    return tokens


def _text(tokens):
    """Tokens as one text; only numbers are kept apart."""
    return "".join(" " + token if token[0] in DIGITS else token.strip('"') for token in tokens)


class Item(NamedTuple):
    """One thing that an answer says."""
    kind: str              # "value", "words ...", "list", a pair of brackets, or relation signs
    parts: tuple           # of a value its numbers, one or, with free symbols, five; else the entries
    symbol: str = ""       # of a value that is one free symbol: its name; of an interval: what lies in it
    unit: str = ""
    mantissa: int = 0      # of a decimal: its digits
    answer: object = None  # of an equation like x = 5: the 5

    def __neg__(self):
        minus = _each(OPERATORS["*"], Item("value", (Fraction(-1),)), self)
        return minus._replace(unit=self.unit, mantissa=self.mantissa)


def _each(op, *items):
    """Applies an operation at every point; a matrix in the last place is multiplied entry by entry."""
    if items[-1].kind.startswith("\\begin") and op is OPERATORS["*"]:
        return items[-1]._replace(parts=tuple(_each(op, *items[:-1], part) for part in items[-1].parts))
    if any(item.kind != "value" for item in items):
        raise Unreadable("arithmetic is for numbers")
    points = max(len(item.parts) for item in items)
    numbers = zip(*(item.parts if len(item.parts) == points else item.parts * points for item in items))
    return Item("value", tuple(_tidy(op(*xs)) for xs in numbers))


def _opaque(name, *args):
    """A function known by name only: equal arguments give equal values, other arguments others."""
    return _each(lambda *xs: _sample(name + "".join(f"({complex(x):.9g})" for x in xs))[1],
                 Item("value", _sample(name)), *args)


INFINITY = Item("value", _sample("∞"))
REALS = Item("()", (-INFINITY, INFINITY))
MEANINGS = {"∞": INFINITY, "\\R": REALS, "allrealnumber": REALS, "\\emptyset": Item("list", ()),
            "nosolution": Item("list", ())}


class _Reader:
    """Recursive descent over tokens: items, sides of relations, expressions, powers, atoms."""

    def __init__(self, tokens):
        self.tokens, self.at, self.depth = tokens, 0, 0

    def peek(self, ahead=0):
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def next(self):
        self.at += 1
        return self.peek(-1)

    def eat(self, *tokens):
        return self.peek() in tokens and self.next()

    def items(self, left, separators=SEPARATORS):
        """The items up to a closing token; a list in a list is taken apart."""
        items = []
        while self.peek() not in CLOSERS[left]:
            sides, signs = [self.side()], []
            while self.peek() in RELATIONS and len(signs) < 9:
                signs.append(self.next())
                sides.append(self.side())
            item = _relate(sides, signs) if signs else sides[0]
            items += item.parts if item.kind == "list" else (item,)
            if self.peek() not in (*CLOSERS[left], *separators):
                raise Unreadable("no separator")
            while self.eat(*separators):
                pass
        return tuple(items)

    def side(self):
        """Words to the end of the item, as in "not 5"; or an expression with or without a unit."""
        start = self.at
        if self.peek()[:1] == '"' and len(self.peek()) > 3:
            while self.peek() not in SEPARATORS | RELATIONS | {"", ")", "]", "}", "\\}"}:
                self.next()
            words = _text(self.tokens[start:self.at]).casefold()
            return MEANINGS.get(words.rstrip("s"), Item("words " + words, ()))
        item, unit = self.expression(), UNIT.match(" ".join(self.tokens[self.at:]))
        if not unit:
            return item
        words = unit[0].replace('"', "").split()
        self.at += len(words)
        names = [UNITS.get(word) or UNITS.get(word.lower().rstrip("s")) for word in words]
        strange = [word for word, name in zip(words, names) if word.isalpha() and not name]
        if len(strange) > 4 or NO_UNITS & {*words} or strange and len(item.parts) > 1:
            raise Unreadable("not a unit")  # five apples are five, but "x apples" is not x
        return item._replace(unit=" ".join(sorted(filter(None, names))))

    def expression(self, level=0):
        """Level 0 is a sum, 1 a product with or without signs, 2 the y of "sin y cos x", "sin y (x + 1)"."""
        minus = False
        while self.peek() in ("+", "-"):
            minus ^= self.next() == "-"
        left = -self.expression(1) if minus else self.power()
        while True:
            if self.peek() in ("+", "-") and level == 0:
                left = _each(_plus, left, self.expression(1))
            elif self.peek() in ("*", "/") and level < 2:
                op = OPERATORS[self.next()]
                left = _each(op, left, -self.power() if self.eat("-") else self.power())
            elif self.peek() in STARTERS and not (level == 2 and self.peek() in CLOSERS | FUNCTIONS) or (
                    "{" in self.peek()[2:] or self.peek(-1) == ")" and self.peek()[:1] in DIGITS):
                left = _each(OPERATORS["*"], left, self.power())
            else:
                return left

    def power(self):
        base = self.atom()
        while self.peek() in ("^", "!", "°"):
            sign = self.next()
            items = [base, self.argument()] if sign == "^" else [base]
            base = base._replace(unit=sign) if sign == "°" else _each(OPERATORS[sign], *items)
            if sign == self.peek():
                raise Unreadable("a power tower or a double factorial")
        return base

    def argument(self):
        return -self.atom() if self.eat("-") else self.atom()

    def atom(self):
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("too deep")
        token = self.next()
        if token and token in CLOSERS:
            item = self.bracket(token)
        elif token in FUNCTIONS:
            item = self.function(token)
        elif token in ("\\frac", "\\binom"):
            item = _each(OPERATORS[token.replace("\\frac", "/")], self.argument(), self.argument())
        elif token == "√":
            index = self.bracket(self.next()) if self.peek() == "[" else Item("value", (Fraction(2),))
            item = _each(OPERATORS[token], index, self.argument())
        elif token in CONSTANTS and self.peek()[:1] != "_":
            item = Item("value", (CONSTANTS[token],))
        elif token in ("$", "€"):
            item = self.argument()._replace(unit=token)
        elif token[:1] in DIGITS:
            item = _number(token)
        else:
            item = MEANINGS.get(token) or self.symbol(token.strip('"'))
        self.depth -= 1
        return item

    def bracket(self, left):
        start = self.at
        items = self.items(left, {"&", "\\\\"} if left == "\\begin" else SEPARATORS)
        kind = left + self.next()
        if left == "\\begin":  # the shape of a matrix is part of its kind
            shape = "".join(token for token in self.tokens[start:self.at] if token in ("&", "\\\\"))
            kind = left + shape.rstrip("\\")
        elif len(items) == 1 and kind not in ("(]", "[)"):
            return items[0]
        return Item("list" if kind in ("{}", "\\{\\}") else kind, items)

    def function(self, name):
        """In \\sin 2x \\cos y the argument ends before the next function, bracket or sign."""
        base = _tokens(self.next().strip("_{}")) if name == "\\log" and self.peek()[:1] == "_" else []
        power = self.argument() if self.eat("^") else None
        x = self.atom() if self.peek() in CLOSERS else self.expression(2)
        if x.unit == "°":
            x = _each(OPERATORS["*"], x, Item("value", (complex(math.pi / 180),)))
        if power and power.parts == (-1,) and "\\arc" + name[1:] in FUNCTIONS:
            name, power = "\\arc" + name[1:], None
        value = _each(FUNCTIONS[name], x) if FUNCTIONS[name] else _opaque(name, x)
        if base:
            value = _each(OPERATORS["/"], value, _each(FUNCTIONS[name], _Reader(base).expression()))
        return _each(_power, value, power) if power else value

    def symbol(self, name):
        """A free symbol: x, \\theta, x_1, \\vec{v}, y''; and f(3), which is no product, is one as well."""
        start = self.at - 1
        if name not in SYMBOLS and "{" not in name[2:]:
            raise Unreadable(name)
        name = name.replace(" ", "")
        if self.peek()[:1] == "_":
            name += re.sub(r'[{}" ]', "", self.next())
        while self.eat("'"):
            name += "'"
        if self.peek() != "(" or name[0] not in "fghFGH" and self.peek(2) != ")":
            return Item("value", _sample(name), symbol=name)
        inside = self.atom()
        value = _opaque(name, *(inside.parts if inside.kind == "()" else (inside,)))
        return value._replace(symbol=_text(self.tokens[start:self.at]))


def _number(token):
    if "_" in token:  # a numeral keeps its base: it is a symbol
        return Item("value", _sample(token.lstrip("0").replace("{", "").replace("}", "")))
    digits, _, period = re.sub("[,{}]", "", token).partition("\\overline")
    mantissa, _, exponent = digits.lower().partition("e")
    if abs(int(exponent or 0)) > 400:
        raise Unreadable("too large or too small")
    value, scale = Fraction(digits), 10 ** len(mantissa.partition(".")[2])
    if period:
        return Item("value", (value + Fraction(int(period), (10 ** len(period) - 1) * scale),))
    return Item("value", (_tidy(value),), mantissa=int(mantissa.replace(".", "")) if "." in mantissa else 0)


def _relate(sides, signs):
    """A ratio, membership, equation, or inequality; that is an interval where it bounds one symbol."""
    alone = [k for k, side in enumerate(sides) if side.symbol]
    if set(signs) == {":"}:
        return Item(":", tuple(sides))
    if signs == ["∈"] and sides[0].symbol:
        return sides[1]._replace(symbol=sides[0].symbol)
    if signs[-1] == "≈" and _decimal(sides[-1], sides[-2], 1):  # sqrt(2) ≈ 1.41 says sqrt(2)
        return _relate(sides[:-1], signs[:-1]) if len(signs) > 1 else sides[0]
    if set(signs) == {"="}:
        sides = sorted(sides, key=lambda side: not side.symbol)  # x = 5 and 5 = x
        values = sides[1:] if alone else sides
        if all(_equal(values[0], value) for value in values[1:]):  # x = 2 + 3 = 5 and 2 + 3 = 5
            if not alone or values[0].kind != "value":
                return values[0]
            return Item("=", (_each(_plus, sides[0], -values[0]),), answer=values[0])
    if signs[0] in (">", "≥"):
        sides, signs = sides[::-1], [{">": "<", "≥": "≤"}.get(sign) for sign in reversed(signs)]
    if set(signs) <= {"<", "≤"} and len(alone) == 1 and len(sides) + abs(alone[0] - 1) < 4:
        k = next(k for k, side in enumerate(sides) if side.symbol)
        bounds = (REALS.parts[0], *sides, INFINITY)[k:k + 3:2]  # x < 3 is -infinity < x < 3
        left, right = ("<", *signs, "<")[k:k + 2]
        if all(len(bound.parts) == 1 or bound in REALS.parts for bound in bounds):
            return Item("(["[left == "≤"] + ")]"[right == "≤"], bounds, symbol=sides[k].symbol)
    differences = tuple(_each(_plus, a, -b) for a, b in zip(sides, sides[1:]))
    chain = set(signs) <= {"<", "≤"} or signs in (["="], ["≠"])
    if not chain or any(len(difference.parts) == 1 for difference in differences):
        raise Unreadable("no relation of free symbols")  # 4 = 3
    return Item("".join(signs), differences)


def _ratio(a, b):
    """The constant a / b, or None. Points where neither is real are left out: x sqrt(x) is sqrt(x^3)."""
    pairs = [(a.parts[k % len(a.parts)], b.parts[k % len(b.parts)]) for k in range(5)]
    pairs = [(x, y) for x, y in pairs if not (x.imag and y.imag)] or pairs
    if any(bool(x) != bool(y) for x, y in pairs):
        return None
    ratios = [x / y for x, y in pairs if y]
    for r in [Fraction(1), *ratios[:1]]:  # the tolerance is relative, never absolute, and none for fractions
        if all(r == x or isinstance(x, complex) and abs(x - r) < 1e-11 * abs(r) for x in ratios):
            return r


def _decimal(x, y, least=100_000):
    """Is x a decimal of at least six digits that is the irrational y, rounded or cut off there?"""
    if x.mantissa < least or y.kind != "value" or len(y.parts) > 1 or not isinstance(y.parts[0], complex):
        return False
    digits = y.parts[0] / x.parts[0] * x.mantissa
    return not digits.imag and x.mantissa in (int(digits.real), round(digits.real))


def _equal(a, b):
    if a.kind != b.kind and "=" in (a.kind, b.kind):
        a, b = (item.answer if item.kind == "=" else item for item in (a, b))
    if not a or not b or a.kind != b.kind or a.unit and b.unit and a.unit != b.unit:
        return False
    if a.kind == "value":
        percent = {("%", ""): 100, ("", "%"): Fraction(1, 100)}.get((a.unit, b.unit), 1)
        return _ratio(a, b) in (1, percent) or _decimal(a, b) or _decimal(b, a)
    if len(a.parts) != len(b.parts) or a.symbol and b.symbol and a.symbol != b.symbol:
        return False
    if a.kind[0] in "=≠<≤":
        ratios = [_ratio(x, y) for x, y in zip(a.parts, b.parts)]
        return None not in ratios and (a.kind in "=≠" or all(ratio.real > 0 for ratio in ratios))
    if a.kind != "list":
        return all(map(_equal, a.parts, b.parts))
    left = list(b.parts)
    for x in a.parts:
        same = next((y for y in left if _equal(x, y)), None)
        if not same:
            return False
        left.remove(same)
    return True


def _read(tokens):
    """What an answer says: an item, or a list. An item with +- is two, one with + and one with -."""
    if "±" not in tokens and "∓" not in tokens:
        items = _Reader(tokens).items("")
    else:
        first, second = (_Reader([dict(zip("±∓", signs)).get(token, token) for token in tokens]).items("")
                         for signs in ("+-", "-+"))
        items = [item for pair in zip(first, second) for item in (pair[:1] if _equal(*pair) else pair)]
    return items[0] if len(items) == 1 else Item("list", tuple(items))


def _matches(answer, gold):
    """Are two answers equal as mathematics or, failing that, as texts?"""
    answers, golds = _tokens(answer), _tokens(gold)
    if answers and _text(answers) == _text(golds):
        return True
    try:
        target = _read(golds)
        if target.kind == "value" and len(target.parts) == 1:  # then "5 m" has a unit; "5m" stays a product
            unit = r"(?<=[\d}]) +([mgshLNJWVK])((\^\{?\d\}?)?[\s$.]*)\Z"
            answers = _tokens(re.sub(unit, r"\\text{\1}\2", answer))
        return _equal(_read(answers), target)
    except (ValueError, ArithmeticError, RecursionError):
        return False


def _final_answer(response):
    """The text of the final answer, or "" where there is none; see verify_math."""
    text = response.rpartition("</think>")[2]
    closed = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(closed, 0))
    if "<think>" in text or ("<answer>" in text or closed >= 0) and start < 0:
        return ""
    if start >= 0:
        text = text[start + len("<answer>"):text.index("</answer>", start)]
    last = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if last < 0:
        return text.strip() if start >= 0 and len(text) <= MAX_CHARS else ""
    text, depth = text[last:last + MAX_CHARS], 0
    box = re.match(r"\\(?:boxed|fbox)\s*\{", text)
    for brace in re.finditer(r"\\.|[{}]", text, re.S):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if brace[0] == "}" and depth <= 0:
            return text[box.end():brace.start()].strip() if box else ""
    return ""


def verify_math(response: str, gold: str | list[str]) -> Verdict:
    """Checks the final answer of a response against the gold answer, or several of which any will do.

    The final answer stands after the last </think>, and a <think> after that voids it. It is what the last
    complete <answer>...</answer> holds: the content of the last \\boxed{...} in it, or else all of it.
    Without answer tags, it is the content of the last \\boxed{...} of the response. `formatted` says that it
    is there, complete, not empty and at most MAX_CHARS long; `correct`, that it also equals the gold answer.
    Takes any strings, and never raises.
    """
    answer = _final_answer(response)
    golds = [gold] if isinstance(gold, str) else gold
    correct = answer and any(len(gold) <= MAX_CHARS and _matches(answer, gold) for gold in golds)
    return Verdict(bool(correct), bool(answer))
