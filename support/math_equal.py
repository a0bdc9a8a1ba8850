"""Do two answers say the same mathematics? math_equal(answer, gold) reads both and compares.

An answer is LaTeX or plain text, as models and data sets write it. It is cut into tokens; a recursive
descent reads the tokens as items: values, tuples, intervals, sets, matrices, equations, words; and items are
compared. A value is an exact fraction as long as it can be. With a root, pi or a logarithm it is a complex
number, and with free symbols its values at seven fixed points. Two expressions are equal where all their
values are, up to a relative error of 1e-11, which fractions are not granted. What cannot be read is compared
as text.

An answer may leave no work undone that its gold has not left undone: 347*6 is not the answer 2082.

Answers are hostile input: nothing here runs them as code, and their length, integers and exponents are
bounded, so that none takes longer than some milliseconds, in any thread.
"""
import cmath
import functools
import math
import random
import re
from fractions import Fraction
from typing import NamedTuple


# ---- 1. Numbers ----

MAX_CHARS, MAX_BITS = 500, 4100  # of an answer, of the integers in a Fraction: they bound the cost


def bounded(x):
    """A number: a Fraction as long as it can be, and 0 always; else a complex, here without rounding dust.
    Overflow and underflow are failures: they become neither infinity nor 0."""
    if isinstance(x, Fraction) and max(map(int.bit_length, x.as_integer_ratio())) < MAX_BITS:
        return x
    if isinstance(x, Fraction) or not 1e-290 < abs(x) < 1e290:
        raise ValueError("too large or too small")
    return complex(*(part if abs(part) > 1e-13 * abs(x) else 0.0 for part in (x.real, x.imag)))


def plus(x, y):
    if isinstance(x + y, complex) and x and y:
        size, scale = abs(x + y), max(abs(x), abs(y))
        if size < 1e-13 * scale:
            return Fraction(0)
        if min(abs(x), abs(y), size) < 1e-10 * scale:
            raise ValueError("too few digits are left")  # else 10^20 + sqrt(2) would equal 10^20
    return x + y if x and y else x or y


def power(x, y):
    if isinstance(y, Fraction) and y.denominator == 1:
        if isinstance(x, Fraction) and abs(y) * max(map(int.bit_length, x.as_integer_ratio())) > MAX_BITS:
            raise ValueError("too large")
        return x ** int(y)
    if isinstance(y, Fraction) and y.denominator % 2 and not x.imag and x.real < 0:
        return (-1) ** y.numerator * cmath.exp(y * cmath.log(-x))  # an odd root of a negative number is real
    return cmath.exp(y * cmath.log(x)) if x else x


def binomial(n, k):
    if k.denominator > 1 or not 0 <= k <= 60:
        raise ValueError("not a small whole number")  # also (n choose k) with a symbol k
    return math.prod((n - j for j in range(int(k))), start=Fraction(1)) / math.factorial(int(k))


# A symbol's values are real, of both signs, below and above 1. In the first three all symbols are positive,
# so that roots and logarithms can be compared. They are odd numbers over 1024: never 0 or a whole number, so
# that (-1)^n is neither 1 nor -1.
SPANS = (211, 951), (1711, 3001), (1101, 5001), (-2999, -211), (-2999, 3001), (-2999, 3001), (-5999, 6001)


@functools.lru_cache(1024)
def sample_points(name):
    """The values of a free symbol, from its name."""
    rng = random.Random(ascii(name))
    return tuple(Fraction(rng.randrange(*span, 2), 1024) for span in SPANS)


def factorial(x):  # for the values of a symbol by the gamma function
    whole = x.denominator == 1 and x <= 400
    return Fraction(math.factorial(int(x))) if whole else complex(math.gamma(x + 1))


OPERATORS = {"+": plus, "*": lambda x, y: x and y and x * y, "/": lambda x, y: x / y if x or not y else x,
             "^": power, "√": lambda n, x: power(x, 1 / n), "!": factorial, "\\binom": binomial}
FUNCTIONS = {"\\" + name: f for name, f in dict(
    sin=cmath.sin, cos=cmath.cos, tan=cmath.tan, cot=lambda x: 1 / cmath.tan(x),
    sec=lambda x: 1 / cmath.cos(x), csc=lambda x: 1 / cmath.sin(x), arcsin=cmath.asin, arccos=cmath.acos,
    arctan=cmath.atan, ln=cmath.log, log=cmath.log10, abs=abs).items()}


# ---- 2. Words and signs, and the tokens they come in ----

CONSTANTS = {"π": complex(math.pi), "e": complex(math.e), "i": 1j}
SYMBOLS = {*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"} | {"\\" + name for name in (
    "alpha beta gamma delta epsilon eta theta kappa lambda mu nu xi rho sigma tau phi chi psi omega Gamma "
    "Delta Theta Lambda Sigma Phi Psi Omega ell angle").split()}
UNITS = {name: names.split()[0] for names in (
    "m meter metre|cm centimeter centimetre|mm millimeter|km kilometer|ft foot feet|in inch inche|yd yard|"
    "mi mile|s sec second|min minute|h hr hour|day|g gram|kg kilogram|mg|lb pound|oz ounce|mL ml|L liter|"
    "$ dollar usd|€ euro|£|cent|° degree deg|rad radian|% percent|mph|N|J erg|W|V|K|Hz|am|pm|2 square sq|"
    "3 cubic|/ per -|week|month|year|gallon|cup|unit|people|men|women").split("|") for name in names.split()}
# Any other word is a unit where it is a plural, but for these.
NO_UNITS = {f"{word}s" for word in (
    "third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth twentieth hundredth thousandth "
    "dozen hundred thousand million billion trillion quadrillion lakh crore halve ten time minu plu les "
    "unles versu perhap").split()}
NO_LABELS = {*"not no never cannot negative minus opposite half twice double triple wrong incorrect".split()}
SHORT_WORDS = {"yes", "no", "odd", "and", "or"}  # four letters or more are a word anyway
ALIASES = {alias: names.split()[0] for names in (
    r"* \cdot \times|/ \div|≤ \le \leq \leqslant <=|∪ \cup|≥ \ge \geq \geqslant >=|< \lt|> \gt|∈ \in|± \pm|"
    r"∓ \mp|° \circ|% \%|$ \$|^ **|' \prime|√ \sqrt|∞ \infty|π \pi|≈ \approx|\epsilon \varepsilon|"
    r"\phi \varphi|\emptyset \varnothing ∅|\theta θ|\ne \neq|\{ \lbrace|\} \rbrace"
).split("|") for alias in names.split()}
UNICODE = str.maketrans({
    "−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "²": "^2", "³": "^3", '"': " ", "½": r"\frac12",
    "⅓": r"\frac13", "⅔": r"\frac23", "¼": r"\frac14", "¾": r"\frac34",
    **{chr(0xfee0 + code): chr(code) for code in range(0x21, 0x7f)}})  # full-width digits and signs
SEPARATORS, RELATIONS = {",", ";", "∪", '"and"', '"or"', "\\\\"}, {*"=<≤>≥≈∈:&"}
CLOSERS = {"(": {")", "]"}, "[": {")", "]"}, "{": {"}"}, "\\{": {"\\}"}, "\\begin": {"\\end"}, "": {""}}
STARTERS = SYMBOLS | FUNCTIONS.keys() | {"(", "[", "{", "\\begin", "π", "√", "\\frac", "\\binom"}


POWER_OF_TEN = r"10\s*\^\s*(?:\{\s*([+-]?\d+)\s*\}|(\d))"
REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"^\s*(?:\\text(?:bf|rm)?\s*\{\s*)?(?:\([A-E]\)|[A-E][.):])\s*\}?(?:\\[,;: ]|~|\s)*"
     r"(?=[$\d.-]|\\(?:[dt]?frac|sqrt|pi|\$))", ""),  # the letter of a choice before its value
    (r"(?<!\\)\$(?!\d[^$]*\Z)|(?<!\\)\\[()\[\]]", " "),  # the ends of $5$ or \(5\), but not the sign in $5
    (r"(?<=\d)(?:,\s*\\!\s*|\{,\}|\\,|\\!)(?=\d{3}(?!\d))", ""),  # 1,\!000
    (r"(?<!\\)\\[,;:! ]|~", " "),
    (r"\\(?:left|right|q?quad|[bB]igg?[lr]?|displaystyle|mathbf|boldsymbol|underline|f?boxe?d?|"
     r"(?:text)?color\s*\{\w*\})(?![A-Za-z])\.?", " "),
    (r"\^\s*(\{\s*)?((?:\s*\\(?:prime|circ))+)(?(1)\s*\})", r"\2"),  # 30^\circ and y^{\prime}
    (r"\\(?:[lr]?vert|mid)(?![A-Za-z])", "|"),
    (r"\\\{\s*[A-Za-z]\s*[|:]([^|{}]*)\\\}", r"\1"),  # {x | x > 1}
    (r"\|([^|]*)\|", r"\\abs{\1}"),
    (r"\{(\d+)\}(?=_)", r"\1"),  # {201}_3
    (r"(?<=\d)_\s*\{\s*\(?(\d+)\)?\s*\}", r"_\1 "),  # 201_{(3)}
    (r"\\(begin|end)\s*\{(?:[bp]?matrix|array)\}(?:\{[lcr| ]*\})?", r"\\\1 "),
    (r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm)\s*\{([^{}]*)\}",
     lambda match: re.sub(r"(?<![\\A-Za-z])([A-Za-z]+)\.?", r'"\1"', match[1])),
    (r"\\[dtc]?(frac|binom)(?![A-Za-z])", r"\\\1"),
    (r"\\(frac|binom)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}"),
    (r"(?<![\d.^_/])(\d+)(?:\s*(\\frac)\s*\{\s*|\s+)(\d+)\s*(?(2)\}\s*\{|/)\s*(\d+)(?(2)\s*\}|(?![\d.]))",
     lambda match: "\\frac{%d}{%s}" % (int(match[1]) * int(match[4]) + int(match[3]), match[4])),  # 2 1/3
    (r"(?<![\d.^_/])(\d+(?:\.\d*)?)\s*(?:\*|\\times|\\cdot|[xX])\s*" + POWER_OF_TEN, r"\1e\2\3"),
    (r"(?<![\d.^_])" + POWER_OF_TEN, r"1e\1\2"))]
TOKEN = re.compile(r"""\\(?:overline|vec|hat|bar|d?dot|tilde|mathcal|mathbb)\s*\{[^{}]*\}|\\[A-Za-z]+|\\.
    |"[^"]*"|_(?:\{[^{}]*\}|[A-Za-z0-9])|[<>]=|\*\*|[A-Za-z]+         # subscripts, runs of letters
    |\d+(?:\.\d+)?_\d+|\d[\dA-F]*_1[1-6]                              # numerals with a base
    |\d*\.\d*\\(?:overline|bar|dot)\s*\{\s*\d+\s*\}
    |(?:(?<!\d,)[1-9]\d?\d?(?:,\d{3})+(?!\d|,\d)|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?
    |\.\d+(?:[eE][+-]?\d+)?|\S""", re.X | re.S | re.A)
UNIT = re.compile(r'(?: ?[*/]? ?(?:"(?!and"|or")[^"]+"|[%$€£])(?: \^ (?:\{ )?(?:- )?[234](?: \})?)?)+')


def math_tokens(text):
    """Cuts a text into numbers, letters, commands, signs, subscripts, and "words" in double quotes."""
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    tokens, brackets = [], 0
    for token in TOKEN.findall(" ".join(text.split()).rstrip(" .,;*").lstrip(" *")):
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
                len(word) > 1 and word.lower() in UNITS and tokens and tokens[-1][-1] in '0123456789.})"π'):
            tokens.append(f'"{word}"')
        else:
            tokens += word
    return tokens


def plain(tokens):
    """Tokens as one text; only numbers are kept apart."""
    return "".join(" " + token if token[0] in "0123456789." else token.strip('"') for token in tokens)


# ---- 3. Items: what an answer says, and what it leaves undone ----

class Item(NamedTuple):
    """A value, a list, a tuple, an interval, a matrix, an equation, a ratio, or words."""
    kind: str        # "value", "words ...", "list", a pair of brackets, "\\begin" of a matrix, or a relation
    parts: tuple     # of a value its numbers, as many as SPANS; of an equation that gives one, also that
    name: str = ""   # of what can be named to say its value: the x of x = 5, the "Area" of Area = 5
    unit: str = ""
    digits: int = 0  # of a number written as a decimal
    work: str = ""   # what a value leaves to be done, see `undone`
    factor: Fraction = Fraction(1)  # the number in front: the 2 of 2x; of a numeral the numeral

    @property
    def constant(self):
        return self.kind == "value" and len({*self.parts}) == 1

    @property
    def rational(self):
        return self.constant and isinstance(self.parts[0], Fraction)


def undone(op, first, last, constant):
    """What an operation leaves to be done: "+" to add constants, "*" to multiply, divide or cancel numerals
    or to raise constants to a power, "/" to divide by a sum, "√" a root, "s" to take a factor out of it,
    "f" any other function of constants, "c" symbols that cancel. Others on symbols leave nothing."""
    n, d = first.factor, last.factor
    if constant and not (first.constant and last.constant):
        return "c"
    if op == "*":
        return "*" if first.rational and last.rational or not {n, d} & {1, -1} else ""
    if op == "/":
        reduced = n.denominator == d.denominator == math.gcd(n.numerator, d.numerator) == 1 < abs(d)
        whole = abs(d) == 1 and not (first.rational and last.rational)
        return ("" if reduced or whole else "*") + ("/" if last.constant and "+" in last.work else "")
    if not constant:
        return ""
    if op == "^" and (not last.rational or d.denominator == 1):
        return "" if first.work in ("π", "e") else "*"
    if op in ("^", "√"):
        x, index = (last, 2) if op == "√" else (first, d.denominator)
        square = x.rational and any(part % k ** index == 0 for part in x.factor.as_integer_ratio()
                                    for k in range(2, 32))
        return "√s" if square else "√"
    return "+" if op == "+" else "f"


def each(op, *items):
    """An operation at every point; a matrix in the last place is multiplied entry by entry."""
    first, last = items[0], items[-1]
    if last.kind in ("\\begin\\end", "&") and op == "*":
        return last._replace(parts=tuple(each(op, first, part) for part in last.parts))
    if any(item.kind != "value" for item in items):
        raise ValueError("arithmetic is for numbers")
    f = OPERATORS.get(op) or FUNCTIONS[op]
    values = [f(*xs) for xs in zip(*(item.parts for item in items))]
    if op in FUNCTIONS:
        values = [x if abs(x) > 1e-14 else Fraction(0) for x in values]  # sin pi is 0, not 1e-16
    result = Item("value", tuple(map(bounded, values)))
    factor = bounded(f(first.factor, last.factor)) if op in ("*", "/") else 1
    factor = result.parts[0] if result.rational else factor
    work = "".join(item.work for item in items) + undone(op, first, last, result.constant)
    return result._replace(work=work, factor=Fraction(factor))


def number(x):
    return Item("value", (x,) * len(SPANS), factor=x)


def minus(item):
    if item in INFINITIES:  # no value: infinity - infinity is not 0
        return INFINITIES[1 - INFINITIES.index(item)]
    return each("*", number(Fraction(-1)), item)._replace(unit=item.unit, digits=item.digits, work=item.work)


INFINITIES = Item("-∞", ()), Item("∞", ())
MEANINGS = {"∞": INFINITIES[1], "\\emptyset": Item("list", ())}
DEGREE = Item("value", (complex(math.pi / 180),) * len(SPANS))
MEANINGS |= {name: Item("value", (x,) * len(SPANS), work=name) for name, x in CONSTANTS.items()}


# ---- 4. Reading. `tokens` is reversed: tokens[-1] comes next, and tokens[0] is an empty one, the end ----

def read_items(tokens, left):
    """The items up to the closing bracket, each a side or a relation of sides. A union is one set."""
    items, union = [], False
    while tokens[-1] not in CLOSERS[left]:
        sides, signs = [read_side(tokens)], []
        while tokens[-1] in RELATIONS and len(signs) < 9:
            signs.append(tokens.pop())
            sides.append(read_side(tokens))
        items.append(relation(sides, signs) if signs else sides[0])
        if tokens[-1] not in SEPARATORS and tokens[-1] not in CLOSERS[left]:
            raise ValueError("no separator")
        while tokens[-1] in SEPARATORS:
            union |= tokens.pop() == "∪"
    if union or len(items) == 1:
        items = [part for item in items for part in (item.parts if item.kind == "list" else (item,))]
    return tuple(items)


def read_side(tokens):
    """Words to the end of the item, as in "not 5"; or a sum, and perhaps a unit."""
    if tokens[-1][:1] == '"' and len(tokens[-1]) > 3:
        words = []
        while tokens[-1] not in SEPARATORS | RELATIONS | {"", ")", "]", "}", "\\}"}:
            words.append(tokens.pop())
        return Item("words " + plain(words).casefold(), ())
    item = read_product(tokens)
    while tokens[-1] in ("+", "-"):
        item = each("+", item, read_product(tokens))
    if unit := UNIT.match(" ".join(tokens[::-1])):
        words = unit[0].replace('"', "").split()
        del tokens[len(tokens) - len(words):]
        names = [UNITS.get(word) or UNITS.get(word.lower().rstrip("s")) for word in words]
        strange = [word.lower() for word, name in zip(words, names) if word.isalpha() and not name]
        if strange and not item.constant or any(word in NO_UNITS or word[-1] != "s" for word in strange) or (
                "%" in words and (words.count("%") > 1 or {"^", "$"} & {*words})):
            raise ValueError("not a unit")  # five apples are five, but "x apples" is not x
        item = item._replace(unit=" ".join(sorted(filter(None, names))))
    return item


def read_product(tokens, argument=False):
    """A product, with or without signs. As the argument of a function without brackets, the y of
    "sin y cos x" and "sin y (x + 1)", it ends before a sign, a bracket and another function."""
    if tokens[-1] in ("+", "-"):
        sign = tokens.pop()
        product = read_product(tokens, argument)
        return minus(product) if sign == "-" else product
    product = factor = read_power(tokens)
    while True:
        sign = "*"
        if tokens[-1] in ("*", "/") and not argument:
            sign = tokens.pop()
        elif not (tokens[-1] in STARTERS and not (argument and tokens[-1] in CLOSERS | FUNCTIONS)
                  or "{" in tokens[-1][2:]  # a number may follow 2^6 and x, but not a number
                  or tokens[-1].isdecimal() and (factor.work or not factor.rational)
                  and (not factor.name or tokens[-2] == "^")):
            return product
        factor = read_power(tokens)
        product = each(sign, product, factor)


def read_power(tokens):
    if tokens[-1] == "-":
        tokens.pop()
        return minus(read_power(tokens))
    base = read_atom(tokens)
    while tokens[-1] in ("^", "!", "°"):
        sign = tokens.pop()
        exponent = [read_atom(tokens)] if sign == "^" else []
        base = base._replace(unit=sign) if sign == "°" else each(sign, base, *exponent)
        if sign == tokens[-1]:
            raise ValueError("a power tower or a double factorial")
    return base


def read_atom(tokens):
    """A number, a symbol, a function, a fraction, a root, or items in brackets; each with a minus or not."""
    token = tokens.pop()
    if token == "-":
        return minus(read_atom(tokens))
    if token and token in CLOSERS:
        items = read_items(tokens, token)
        kind = token + tokens.pop()
        if len(items) == 1 and kind in ("()", "[]", "{}"):
            return items[0]
        if not items and kind != "\\{\\}":
            raise ValueError("nothing in a bracket")
        names = [item.name for item in items]
        name = ",".join(names) if kind == "()" and all(names) else ""  # (x, y) = (1, 2) is (1, 2)
        return Item("list" if kind in ("{}", "\\{\\}") else kind, items, name)
    if token in FUNCTIONS:
        return read_function(tokens, token)
    if token in ("\\frac", "\\binom"):
        upper = read_atom(tokens)
        return each(token.replace("\\frac", "/"), upper, read_atom(tokens))
    if token == "√":
        index = read_atom(tokens) if tokens[-1] == "[" else number(Fraction(2))
        return each(token, index, read_atom(tokens))
    if token in ("$", "€", "£"):
        return read_atom(tokens)._replace(unit=token)
    if token[:1] in (*"0123456789.",):
        return read_number(token)
    if token in MEANINGS and tokens[-1][:1] != "_":
        return MEANINGS[token]
    return read_symbol(tokens, token.strip('"'))


def read_function(tokens, name):
    base, exponent = None, None
    if name == "\\log" and tokens[-1][:1] == "_":
        base = read_product(["", *math_tokens(tokens.pop().strip("_{}"))[::-1]])
    if tokens[-1] == "^":
        tokens.pop()
        exponent = read_atom(tokens)
        if exponent.parts[0] == -1 and "\\arc" + name[1:] in FUNCTIONS:
            name, exponent = "\\arc" + name[1:], None
    x = read_atom(tokens) if tokens[-1] in CLOSERS else read_product(tokens, argument=True)
    value = each(name, each("*", x, DEGREE) if x.unit == "°" else x)
    if base:
        value = each("/", value, each(name, base))
    return each("^", value, exponent) if exponent else value


def read_symbol(tokens, name):
    """A free symbol: x, \\theta, x_1, \\vec{v}, y''. So are f(3), and the y(t) of y(t) = 6t."""
    if name not in SYMBOLS and "{" not in name[2:]:
        raise ValueError(name)
    name = name.replace(" ", "")
    while tokens[-1] == "'" or tokens[-1][:1] == "_":
        name += re.sub(r'[{}" ]', "", tokens.pop())
    if tokens[-1] == "(" and tokens[-3:-2] == [")"]:
        if tokens[-4:-3] == ["="] and tokens[-2] in SYMBOLS:
            del tokens[-3:]
        elif name[0] in "fghpqFGHPQ" or tokens[-2].isdecimal():
            name += tokens.pop() + tokens.pop() + tokens.pop()
    return Item("value", sample_points(name), name=name)


def read_number(token):
    if "_" in token:  # a numeral keeps its base: it is a symbol
        return Item("value", sample_points(token.lstrip("0")))
    digits, _, period = re.sub("[,{} ]|overline|bar|dot", "", token).partition("\\")
    mantissa, _, exponent = digits.lower().partition("e")
    if abs(int(exponent or 0)) > 400:
        raise ValueError("too large or too small")
    value = bounded(Fraction(digits))
    if period:
        places = 10 ** len(mantissa.partition(".")[2])
        return number(value + Fraction(int(period), (10 ** len(period) - 1) * places))
    return number(value)._replace(digits=int(mantissa.replace(".", "")) if "." in mantissa else 0)


def relation(sides, signs):
    """A ratio, a matrix's row, membership, an equation, or an inequality that says where a symbol lies."""
    if {*signs} in ({":"}, {"&"}):
        return Item(signs[0], tuple(sides))
    if signs == ["∈"] and sides[0].name:
        return sides[1]._replace(name=sides[0].name)
    if signs[-1] == "≈" and same_decimal(sides[-1], sides[-2], 1):  # sqrt(2) ≈ 1.41 says sqrt(2)
        return relation(sides[:-1], signs[:-1]) if len(signs) > 1 else sides[0]
    if {*signs} == {"="}:
        return equation(*sorted(sides, key=lambda side: not side.name))  # x = 5 and 5 = x
    if signs[0] in (">", "≥"):
        sides, signs = sides[::-1], [{">": "<", "≥": "≤"}.get(sign) for sign in reversed(signs)]
    if sides[0].name:  # x < 3 is -infinity < x < 3
        sides, signs = [INFINITIES[0], *sides], ["<", *signs]
    if len(sides) == 2:
        sides, signs = [*sides, INFINITIES[1]], [*signs, "<"]
    low, x, high = sides if len(sides) == 3 and {*signs} <= {"<", "≤"} else [None] * 3
    if x and x.name and all(bound.constant or bound in INFINITIES for bound in (low, high)):
        return Item("(["[signs[0] == "≤"] + ")]"[signs[1] == "≤"], (low, high), x.name)
    raise ValueError("no relation that bounds one symbol")


def equation(x, *values):
    """What the sides of an equation say: the value that ends x = 2 + 3 = 5 and 2 + 3 = 5, or the equation.
    That 4 = 3 says nothing."""
    values, value = values if x.name else (x, *values), values[-1]
    if all(same(value, other) for other in values):
        if x.kind == value.kind == "()":
            return value._replace(name="" if value.name else x.name)
        if not x.name or {x.kind, value.kind} != {"value"}:
            return value
        return Item("=", (each("+", x, minus(value)), value), x.name)
    difference = each("+", x, minus(value))
    if len(values) > 1 + (not x.name) or difference.constant:
        raise ValueError("no equation")
    return Item("=", (difference,))


# ---- 5. Comparing ----

def ratio(a, b):
    """The constant a / b, or None. Points where neither is real are left out: x sqrt(x) is sqrt(x^3)."""
    pairs = [(x, y) for x, y in zip(a.parts, b.parts) if not (x.imag and y.imag)]
    pairs = pairs if len(pairs) > 1 else [*zip(a.parts, b.parts)]
    if any(bool(x) != bool(y) for x, y in pairs):
        return None
    ratios = [x / y for x, y in pairs if y]
    for r in [Fraction(1), *ratios[:1]]:  # the tolerance is relative, never absolute, and none for fractions
        if all(r == x or isinstance(x, complex) and abs(x - r) < 1e-11 * abs(r) for x in ratios):
            return r


def same_decimal(x, y, least=100_000):
    """Is x a decimal of at least six digits that is the irrational y, rounded or cut off there?"""
    if x.digits < least or not y.constant or least > 1 and y.rational:
        return False
    digits = y.parts[0] / x.parts[0] * x.digits
    return not digits.imag and x.digits in (int(digits.real), round(digits.real))


def same(a, b):
    """Does the answer a say what the gold b says, and leave no more undone? A unit, or the x of x = 5, may
    be missing in one of them."""
    if a.kind != b.kind and "=" in (a.kind, b.kind):
        a, b = (item.parts[-1] if len(item.parts) == 2 and item.kind == "=" else item for item in (a, b))
    if a.kind != b.kind or a.unit and b.unit and a.unit != b.unit:
        return False
    if a.kind == "value":
        percent = {("%", ""): 100, ("", "%"): Fraction(1, 100)}.get((a.unit, b.unit), 1)
        done = all(a.work.count(kind) <= b.work.count(kind) * (1 if kind in "+√f" else MAX_CHARS)
                   for kind in {*a.work})
        return done and (ratio(a, b) in (1, percent) or same_decimal(a, b))
    if a.kind == "=" and len(b.parts) == 1:
        return ratio(a.parts[0], b.parts[0]) is not None
    if len(a.parts) != len(b.parts) or a.name and b.name and a.name != b.name:
        return False
    if a.kind == "=":  # a gold in solved form wants an answer in solved form
        return same(a.parts[1], b.parts[1])
    if a.kind != "list":
        return all(map(same, a.parts, b.parts))
    left = list(b.parts)
    for x in a.parts:
        match = next((y for y in left if same(x, y)), None)
        if not match:
            return False
        left.remove(match)
    return True


def read(tokens):
    """What an answer says: an item, or a list. An item with +- is two, one with + and one with -."""
    readings = [read_items(["", *(signs.get(token, token) for token in reversed(tokens))], "")
                for signs in ({"±": "+", "∓": "-"}, {"±": "-", "∓": "+"})[:1 + ("±" in tokens)]]
    items = [item for pair in zip(*readings) for item in (pair[:1] if same(pair[0], pair[-1]) else pair)]
    return items[0] if len(items) == 1 else Item("list", tuple(items))


def without_label(tokens):
    """What follows on a + b =, |S| =, P(X = 3) =, Area = or i =, which say what is computed."""
    start, depth = 0, 0
    for i, token in enumerate(tokens):
        depth += (token in ("(", "{")) - (token in (")", "}"))
        if depth == 0 and token == "=":
            start = i + 1
        elif depth == 0 and (token[0] in "0123456789.π" or token in SEPARATORS | RELATIONS or i == start and
                             token == "-" or token.strip('"').lower() in NO_LABELS):
            break
    return tokens[start:]


def math_equal(answer, gold):
    """Are two answers, of up to MAX_CHARS characters each, equal as mathematics or, failing that, as texts?
    Longer ones never are. Any strings will do: nothing is raised."""
    answer, gold = answer.translate(UNICODE), gold.translate(UNICODE)
    answers, golds = [math_tokens(text) if len(text) <= MAX_CHARS else [] for text in (answer, gold)]
    if not answers or plain(answers) == plain(golds):
        return bool(answers)
    try:
        if re.search(r"(?<!\d)\d{3},\d{3}", f"{answer} {gold}"):  # 123,456 may be a number, and may be two
            if same(*(read(math_tokens(text.replace(",", ", "))) for text in (answer, gold))):
                return True
        target = read(golds)
        if target.constant:  # then "5 m" has a unit, while "5m" stays a product
            unit = r"(?<=[\d}]) +([mgshLNJWVK])((\^\{?\d\}?)?[\s$.]*)\Z"
            answers = without_label(math_tokens(re.sub(unit, r"\\text{\1}\2", answer)))
        return same(read(answers), target)
    except (ValueError, ArithmeticError, LookupError, AttributeError, RecursionError):
        return False


BOX = re.compile(r"\\(?:boxed|fbox)\s*")
JOINED = re.compile(r"[\s$]*(?:[,;]|,?\s*(?:and|or|\\text\{\s*(?:and|or)\s*\}))[\s$]*(?:[A-Za-z]\s*=\s*)?")
# What makes another answer of the box, on its line: 6 or \boxed{5}, -\boxed{5}, \boxed{5}^2, \boxed{5} or 6.
BEFORE_BOX = re.compile(r"(?:\b(?:or|not|minus)[ \t]*|\d,?[ \t]*|\d[ \t]*[-+*/^][ \t]*|"
                        r"(?<![-*+])[-+/^])\$*\Z", re.I)
AFTER_BOX = re.compile(r"[ \t$]*(?:,?[ \t]*(?:or|and)[ \t]+[$\\-]*\d|,?[ \t$]*\d|[-+*/^][ \t$]*[\d({\\]|"
                       r"\\(?:times|cdot|div|pm)\b|\\text\{\s*(?:or|and|not)\b)", re.I)


def final_answer(response):
    """The text of the final answer, or "" where there is none.

    It stands after the last </think>, and a <think> after that voids it. It is what the last complete
    <answer>...</answer> holds: what is in the last \\boxed{...} in it, or all of it where there is no box,
    or something beside it that changes it. Without answer tags it is what is in the last \\boxed{...}.
    Boxes that are joined by a comma, by "and" or by "or" are one answer, a list. A box in a box is a part of
    it. Where the box is empty or unfinished, there is no answer: an earlier box, prose, or the last number
    never count.
    """
    text = response.rpartition("</think>")[2]
    closed = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(closed, 0))
    if "<think>" in text or ("<answer>" in text or closed >= 0) and start < 0:
        return ""
    if start >= 0:
        text = text[start + len("<answer>"):text.index("</answer>", start)]
    whole = text.strip() if start >= 0 and len(text) <= MAX_CHARS else ""
    last, boxes = max(text.rfind("\\boxed"), text.rfind("\\fbox")), []
    for box in BOX.finditer(text, max(0, last - MAX_CHARS)) if last >= 0 else ():
        if not boxes or box.start() > boxes[-1][1]:  # else it is in a box
            if boxes and not JOINED.fullmatch(text, boxes[-1][1] + 1, box.start()):
                boxes = []
            boxes.append((box, closing_brace(text, box.end())))
    if not boxes:
        return whole
    contents = [text[box.end() + 1:end].strip() for box, end in boxes]
    first, end = boxes[0][0].start(), boxes[-1][1] + 1
    before, after = text[max(0, first - MAX_CHARS):first], text[end:end + MAX_CHARS]
    if not all(contents):
        return ""
    beside = start >= 0 and (BEFORE_BOX.search(before) or AFTER_BOX.match(after))
    return whole if beside else ", ".join(dict.fromkeys(contents))


def closing_brace(text, at):
    """Where the brace closes that opens at `at`; `at` where none opens there, or it closes too late."""
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text[at:at + MAX_CHARS] if text[at:at + 1] == "{" else "", re.S):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return at + brace.start()
    return at
