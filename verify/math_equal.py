"""Compare two mathematical answers: math_equal(answer, gold).

A tokenizer splits an answer, LaTeX or plain text, and a recursive descent parser turns the tokens into items: values,
tuples, intervals, sets, matrices, equations, words. A value stays an exact fraction as long as possible. With a root,
pi or a logarithm it becomes a complex number, and with free symbols a list of values at eight fixed points. Two
expressions are equal if all their values agree: exactly for fractions, within a relative error of 1e-11 otherwise.
Unreadable answers are compared as text, and what cannot be read for certain is refused: a wrong refusal costs a
sample, a wrong reward teaches. An answer must be as finished as its gold: 347*6 is not the answer 2082. Answers are
hostile input: nothing here runs them as code, and bounds keep the time of each below 50 milliseconds, in any thread.

Start at the end, with math_equal: math_tokens cuts a text, without_label drops the "x =" in front of a value, `read`
parses an Item, `each` calculates, and `same` compares.
"""
import cmath
import functools
import math
import random
import re
from fractions import Fraction
from typing import NamedTuple


# ---- 1. Numbers ----
# Bounds: characters and tokens of an answer, bits of a Fraction's integers, items of a list in any order
MAX_CHARS, MAX_TOKENS, MAX_BITS, MAX_ITEMS = 500, 240, 4100, 20


def bounded(x, bits=MAX_BITS):
    """Return x without rounding errors near 0. Raises ValueError if x is too large or too small, never returns 0."""
    if isinstance(x, Fraction) and max(map(int.bit_length, x.as_integer_ratio())) < bits:
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
            raise ValueError("too few digits are left")  # or 10^20 + sqrt(2) would equal 10^20
    return x + y if x and y else x or y


def power(x, y):
    if isinstance(y, Fraction) and y.denominator == 1:
        if isinstance(x, Fraction) and abs(y) * max(map(int.bit_length, x.as_integer_ratio())) > MAX_BITS:
            raise ValueError("too large")
        return x ** int(y)
    return cmath.exp(y * cmath.log(x)) if x else x


def factorial(x):  # at a symbol's values: the gamma function
    whole = x.denominator == 1 and x <= 2500
    return Fraction(math.factorial(int(x))) if whole else complex(math.gamma(x + 1))


def binomial(n, k):
    if n.denominator == k.denominator == 1 and 0 <= k <= n <= 2500:
        return Fraction(math.comb(int(n), int(k)))  # not three large factorials
    return factorial(n) / (factorial(k) * factorial(n - k))


def floor(x):
    """Round down. Raises ValueError if rounding errors in x could change the result."""
    if x.imag or isinstance(x, complex) and abs(x - round(x.real)) < 1e-9 * max(1, abs(x)):
        raise ValueError("no floor")
    return Fraction(math.floor(x.real))


FUNCTIONS = {"\\" + name: f for name, f in dict(
    sin=cmath.sin, cos=cmath.cos, tan=cmath.tan, cot=lambda x: 1 / cmath.tan(x),
    sec=lambda x: 1 / cmath.cos(x), csc=lambda x: 1 / cmath.sin(x), arcsin=cmath.asin, arccos=cmath.acos,
    arctan=cmath.atan, sinh=cmath.sinh, cosh=cmath.cosh, tanh=cmath.tanh, coth=lambda x: 1 / cmath.tanh(x),
    sech=lambda x: 1 / cmath.cosh(x), csch=lambda x: 1 / cmath.sinh(x), arcsinh=cmath.asinh,
    arccosh=cmath.acosh, arctanh=cmath.atanh, abs=abs, exp=cmath.exp, ln=cmath.log, log=cmath.log10).items()}
IN_DEGREES = {"\\sin", "\\cos", "\\tan", "\\cot", "\\sec", "\\csc"}  # if ° follows
BARS = {"\\lvert": "\\rvert", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
OPERATIONS = FUNCTIONS | {
    "+": plus, "*": lambda x, y: x and y and x * y, "/": lambda x, y: x / y if x or not y else x, "^": power,
    "!": factorial, "\\lvert": abs, "\\lfloor": floor, "\\lceil": lambda x: -floor(-x), "\\binom": binomial}

# Sizes of a symbol's values, odd numbers over 1024, so that (-1)^n is not 1 or -1. Two are positive, for roots.
SPANS = (211, 951), (1711, 3001), *[(1101, 5001)] * 6


@functools.lru_cache(1024)
def sample_points(name):
    """Return a free symbol's values, which depend only on its name. The signs of the last six are the digits of a
    number from 1 to 61, another one for each letter, so that |x| + |y| is not |x + y|."""
    rng = random.Random(ascii(name))
    signs = (int.from_bytes(ascii(name).encode()) % 61 + 1) << 2
    return tuple(Fraction(rng.randrange(*span, 2) * (-1) ** (signs >> i), 1024) for i, span in enumerate(SPANS))


# ---- 2. Words, signs and the tokenizer ----
GREEK = dict(zip("αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΠΣΦΨΩ", (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi "
    "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega").split()))
SYMBOLS = {*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"} | {"\\" + name for name in (
    *GREEK.values(), *"ell angle hbar nabla partial imath jmath".split())}
UNITS = {"mph": "h^-1 mi", "kmph": "h^-1 km", "kph": "h^-1 km"} | {name: names.split()[0] for names in (
    "m meter metre|cm|mm|km Km KM|ft foot feet|in inch inche|yd yard|mi mile|s sec second|min minute|h hr hour|day|"
    "week|month|year yr|g gram|kg Kg KG|mg|lb pound|oz ounce|ton tonne|byte|"
    "mL ml|L liter litre|$ dollar usd|€ euro|£|cent|° degree deg|°C|°F|% percent|N newton|J joule|erg|"
    "W watt|V volt|K kelvin|Hz hertz|A amp ampere|C coulomb|F farad|T tesla|Pa pascal|Ω ohm|mol mole|eV|"
    "keV|MeV|GeV|kHz|MHz|GHz|kJ|kN|kPa|MPa|kW|MW|mA|mV|mT|nm|pm PM|ms|ns|atm|bar|Å angstrom|rad radian|AU|pc|"
    "Mpc|kpc|ly|amu|dB|am AM|gallon|cup|unit|people|"
    "apple|egg|point|path|box boxe|marble|child children|man men|woman women|fish|sheep|deer|mouse mice|goose geese|¥ yen|₹ rupee|* red blue green yellow white black old|2 square sq|3 cubic|/ per").split("|")
    for name in names.split()}
PREFIXES = dict(kilo="k", mega="M", giga="G", deci="d", centi="c", milli="m", micro="µ", nano="n")
UNITS |= {prefix + name: letter + unit for prefix, letter in PREFIXES.items()
          for name, unit in UNITS.items() if len(name) > 2 and unit in "m g L s byte W V J N Hz A Pa mol".split()}
MULTIPLES = {'"thousand"': 10**3, '"million"': 10**6, '"billion"': 10**9, '"trillion"': 10**12}
ALIASES = {alias: names.split()[0] for names in (
    r"* \cdot \times \ast|T \top \intercal|/ \div|≤ \le \leq \leqslant <=|∪ \cup|≥ \ge \geq \geqslant >=|< \lt|> \gt|∈ \in|"
    r'± \pm|: \colon|∖ \setminus \backslash \smallsetminus|"and" \land|"or" \lor|\mathbb{R} \R|\ldots \dots \cdots …|'
    r"\epsilon \varepsilon|\theta \vartheta|\rho \varrho|\sigma \varsigma|\lvert \vert|"
    r"∓ \mp|≠ \ne \neq \notin|° \circ \degree|% \%|$ \$|£ \pounds|^ **|' \prime|√ \sqrt sqrt|∞ \infty infinity oo|π \pi pi|≈ \approx|"
    r"\phi \varphi|\emptyset \varnothing ∅|\frac \dfrac \tfrac \cfrac|\binom \dbinom \tbinom|"
    r"\{ \lbrace|\} \rbrace|\arcsinh \arsinh \asinh|\arccosh \arcosh \acosh|\arctanh \artanh \atanh"
).split("|") for alias in names.split()}
UNICODE = str.maketrans({
    "−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "⁄": "/", "²": "^2", "³": "^3", "ᵀ": "^T", '"': " ", "ℏ": "\\hbar ",
    "½": "\\frac12", "¼": "\\frac14", "¾": "\\frac34", "⅓": "\\frac13", "⅔": "\\frac23", "ħ": "\\hbar ", "℃": "°C",
    "ℝ": "\\mathbb{R}", "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ",
    **dict.fromkeys("‐‑‒﹣", "-"), **dict.fromkeys("\u200b\u200e\u2060\ufeff\xad"),  # invisible
    **{letter: f"\\{name} " for letter, name in GREEK.items()},
    **{chr(0xfee0 + code): chr(code) for code in range(0x21, 0x7f)}})  # full-width digits and signs
ALIASES |= {name[1:]: name for name in FUNCTIONS} | {name: "\\" + name for name in GREEK.values()}
SEPARATORS, RELATIONS = {",", "∪", '"and"', '"or"', "\\\\"}, {*"=<≤>≥≈∈≠:&"}
CLOSERS = {"(": {")", "]"}, "[": {")", "]"}, "{": {"}"}, "\\{": {"\\}"}, "\\begin": {"\\end"}, "": {""},
           **{left: {right} for left, right in BARS.items()}}
INTERVALS = "()", "[]", "(]", "[)"
STARTERS = SYMBOLS | FUNCTIONS.keys() | BARS.keys() | {"(", "[", "{", "\\begin", "π", "√", "\\frac", "\\binom"}


def improper(match):
    """Turn a mixed number into a fraction: 2\\frac13 is 7/3. 1\\frac52 is not a mixed number."""
    whole, upper, lower = map(int, match.groups())
    return f"\\frac{{{whole * lower + upper}}}{{{lower}}}" if upper < lower else match[0]


def scientific(match):
    """Turn 3 * 10^5 into 3e5, but not 10^1 or 3 * 10^0, which are shorter without the power."""
    first, exponent = match[1], match[2] or match[3]
    if int(exponent) in (0, 0 if first else 1):
        return match[0]
    return f"{first or 1}e{exponent}" + (" " if match[2] else "")  # 10^{5}5 is not 10^55


BASES = dict(zip("two three four five six seven eight nine ten eleven twelve".split(), range(2, 13)))
BASE = fr'"?(\d+|{"|".join(BASES)})"?'  # in figures or in words


def as_one(match):
    """Write what is no product of its letters as one symbol."""
    one = re.sub(r"([_^])\s*\{\s*([^{}\s][^{}]*[^{}\s])\s*\}", r"\1(\2)", match["one"])  # A^{TB} is not A^T B
    return f'{match["before"]}\\hat{{{re.sub(PIECES_OF_ONE, "", one).translate(ROUND)}}} '


def in_order(match):
    """Write a product with an inverse or a transpose of a matrix as one symbol, and also ghg^{-1}."""
    letters = re.findall(LETTER, re.sub(GROUP + r"|\^\s*(?:\{[^{}]*\}|.)", "", match[0]))
    for base, transposed in INVERSE.findall(match[0]):
        capital = re.search("[A-Z]", base if base[0] in "([" else base[:2])
        if (transposed or capital or letters.count(base) > 1) and not SCALAR.search(base):
            return as_one(match)
    return match[0]


ROUND = str.maketrans("[]", "()")
FONT = "math(?:bf|it|sf)|bm|boldsymbol"
PIECES_OF_ONE = re.compile(r"\\(?:cdot|times|text|mathrm|vec|mathbf|bm|boldsymbol|[,;: ])(?![a-z])|[{}\\\s/]|(?<!\^)(?<!\^\{)\*")
GROUP, SUFFIX = r"(?:\((?:[^()]++|\([^()]*+\))*+\)|\[[^\[\]]*+\])", r"(?:\s*_(?:\w|\{\w+\}))?"
LETTER = rf"(?:\\[A-Za-z]+|[A-Za-z])\}}?{SUFFIX}"
INVERSE = re.compile(rf"(?=({GROUP}|{LETTER})\s*\^\s*\{{\s*(?:-\s*\d|(-?\s*T\s*\}}|H\s*\}}|\*|\\dagger)))")
SCALAR = re.compile(r"^e$|(?<![_^{\d])(?<!\{-)\d+(?!\s*[A-Za-z\\\d])")  # (1 + r)^T
VECTOR = (r"(?:\\nabla\s*|\\(?:vec|hat|bar|tilde|mathbf|bm|boldsymbol)\s*(?:\{[^{}]*\}|[A-Za-z])|"
          r"(?<![A-Za-z\\{])[A-Z](?![A-Za-z]))(?:_\w|_\{[^{}]*\})?\s*")
FACTOR = (rf"(?:\\(?:vec|hat|bar|tilde)\s*\{{\\?[A-Za-z]+\}}|(?!and |or )[A-Za-z]|\\(?:var)?(?:{'|'.join(GREEK.values())})(?![A-Za-z])|"
          rf"{GROUP}){SUFFIX}(?:\s*\^\s*(?:\{{[^{{}}]*\}}|\\[A-Za-z]+|[A-Za-z\d]))?\s*")
D = r"(?:d|\\(?:text|mathrm)\s*\{d\}|\\(?:partial|[Dd]elta)(?![a-z]))\s*(?:\^\s*\{?\s*\d\s*\}?\s*)?"
VARIABLE = r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_\w)?\s*(?:\^\s*\{?\s*\d\s*\}?\s*)?"
REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"\\(?:overrightarrow|vec)(?![a-z])", r"\\vec"),
    (rf"\\(?:wide)?(vec|hat|bar|tilde|d?dot)(?![a-z])\s*(\{{\s*)?(?:\\(?:{FONT}|mathrm|text(?:bf)?|bf)(?![a-z])\s*)?(\{{\s*)?"
     r"(?:\\([ij])math(?![a-z])|(\\[A-Za-z]+|[A-Za-z\d]|(?(2)[A-Z]{2}|(?!))))\s*(?(3)\}\s*)(?(2)\})", r"\\\1{\4\5}"),  # \hat i
    (rf"\\[dtc]?frac\s*\{{\s*(?P<before>[^{{}}+-]*?)(?P<one>{D}(?:{VARIABLE})?\}}\s*\{{\s*(?:{D}{VARIABLE})+)\}}",
     as_one),  # a derivative is not a fraction
    (rf"(?P<before>)(?P<one>{VECTOR}(?:(?:\\times|×)\s*{VECTOR})+)", as_one),  # a cross product
    (r"\\(?P<before>)(?P<one>(?:angle|triangle)\s*\{?\s*[A-Z](?:\s*[A-Z]){1,3})(?![A-Za-z])\}?", as_one),
    (r"^\s*(?:\\text(?:bf|rm)?\s*\{\s*)?(?:\([A-E]\)|[A-E][.):])\s*\}?(?:\\[,;: ]|~|\s)*"
     r"(?=[$\d.-]|\\(?:[dt]?frac|sqrt|pi|\$))", ""),  # the letter of a choice before its value
    (r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]", r"\\\\ "),  # \\[4pt]
    (r"\.\.\.+", r"\\ldots "),
    (r"\\(?:mathbb|Bbb)\s*(?:\{\s*([A-Z])\s*\}|([A-Z]))", r"\\mathbb{\1\2}"),
    (r"(?i)(?:\\text\s*\{|^)\s*(?:all|the) (?:real(?: number)?|integer)s(?:[.\s]*\}|\W*$)",
     lambda match: "\\mathbb{R}" if "real" in match[0].lower() else "\\mathbb{Z}"),
    (r"(?<=\d)(?:,\s*\\!\s*|\{,\}|\\,|\\!)(?=\d{3}(?!\d))", ""),  # 1,\!000
    (rf"\\(?:{FONT})(?![a-z])\s*\{{\s*(\\[A-Za-z]+|[A-Za-z])\s*\}}", r" \1 "),
    (r"(?<!\\)(?:\$(?!\d[^$]*\Z)|\\[()\[\],;:! ])|~|"  # $5$ or \(5\), but not the dollar sign of $5
     rf"\\(?:left|right|middle|q?quad|[bB]igg?[lr]?|displaystyle|[lL]arge|{FONT}|"
     r"underline|boxed|fbox|(?:text)?color\s*\{\w*\})(?![A-Za-z])\.?", " "),
    (r"\^\s*(\{\s*)?(?:\\(?:mathrm|text|rm|operatorname)\s*)?(\{\s*)?(?P<sign>\\(?:top|intercal|dagger|ast)(?![a-z])|[TH](?!heta)|\*)"
     r"\s*(?(2)\}\s*)(?(1)\})", lambda match: f'^{{{ALIASES.get(match["sign"], match["sign"])}}}'),  # A^Tb is A^T b
    (rf"(?<![A-Za-z\\])(?P<before>)(?P<one>{FACTOR}(?:(?:\\(?:cdot|times)(?![a-z])|\*)?\s*{FACTOR})+|"
     r"\((?:\s*+[A-Z]){2,}+\s*+\)\s*\^\s*\{\s*-[^{}]*\}|\((?:\s*+(?:\\[A-Za-z]++|[A-Za-z])){2,}+\s*+\)\s*\^\s*\{\s*T\s*\})", in_order),
    (r"(?<![\d.,^_])([1-9]\d{0,2}(?:\s+\d{3})+)(?!\s*(?:[\d/,]|\\[dtc]?frac))",
     lambda match: re.sub(r"\s", "", match[1])),  # 1 000 000
    (r"[(\[][^()\[\]]*[)\]]|\\\{[^{}]*\\\}", lambda match: match[0].replace(",", ", ")),  # (1,000) is a pair
    (r"(?<!\d,)(?<![\d.^_])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)", lambda match: match[0].replace(",", "")),  # 1,000 is not
    (r"(?<=\d),(?=0\d)", "{,}"),  # and 1,0000 is unreadable: neither a number nor a list
    (r"\\not\s*(=)|-\s*(?=\\\{)", lambda match: "≠" if match[1] else "∖"),  # R - {1}
    (r"\\(?:bar|overline)(?![a-z])\s*(?:\{([^{}]*)\}|([A-Za-z\d]))", r"\\overline{\1\2}"),
    (r"(?:\\\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{R\}\s*)?:|\\?\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{R\}\s*)?(?:\||\\mid))"
     r"((?:[^|{}\\]|\\(?!\})|\{[^{}]*\})*)\\?\}", r"\1"),  # {x | x > 1}
    (r"\|([^|]+)\|", r"\\lvert \1\\rvert "),
    (r"\^\s*(?:\{\s*((?:\\prime(?![a-z])\s*|')+)\}|(\\prime(?![a-z])))",
     lambda match: "'" * len(re.findall("prime|'", match[0]))),
    (r"\^\s*(?:\\(?:circ|degree)(?![a-z])|\{\s*\\circ\s*\})", "°"),
    (r"(?<![A-Za-z\d])[({](\d[\dA-F]*)[)}](?=_)", r"\1"),  # {201}_3
    (r"(?<![A-Za-z.])([AaPp])\.\s?[Mm](?![A-Za-z])\.?", r"\1m"),  # 6:30 p.m.
    (r"\\(begin|end)\s*\{(?:[bp]?matrix|array)\}(?:\s*\{[lcr| ]*\})?", r"\\\1 "),
    (r"(?<![A-Za-z\\])([fgh])\s*\^\s*\{\s*-\s*1\s*\}\s*(?=\()", r"\1_{inverse}"),
    (r"_\s*\\(?:text|mathrm)\s*(\{\w+\})", r"_\1"),
    (r"\.(\d*)\\dot\s*\{(\d)\}(\d*)\\dot\s*\{(\d)\}", r".\1\\overline{\2\3\4}"),
    (r"(?i)^\s*(?:\\text\s*\{\s*)?(?:there\s+(?:is|are)\s+)?no\s+solutions?[.\s]*\}?[.\s]*$", r"\\emptyset"),
    (r"^\s*(\\text\s*\{\s*)?(?:[Aa]n?|[Tt]he)\s+(?=[a-z]{4,}[\s.}]*$)", r"\1"),  # an ellipse
    (r"^\s*\\lvert\s*([a-z])\s*\\rvert\s*(<|≤|\\leq?(?![a-z]))\s*([\d.]+)\s*$", r"-\3 \2 \1 \2 \3"),
    (r"(?<=[\d}])(?:\s|~)*\\Omega(?![a-z])", r' "Ω"'),
    (r"(?<=[a-z])\s*\^\s*\{\s*(-?)\s*([1-4])\s*\}(?=[^{}]*\})", r"^\1\2"),
    (r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm)\s*\{([^{}]*)\}",
     lambda match: re.sub(r"(?<![\\A-Za-z])([A-Za-z]+)\.?", r'"\1"', match[1])),
    (r'(?:°|\\degree(?![a-z])|"?degrees?\b"?)\s*"?([CF])(?:elsius|ahrenheit)?"?(?![A-Za-z])', r' "°\1"'),
    (r'\\[dtc]?frac\s*\{\s*("[^{}]*")\s*\}\s*\{\s*("[^{}]*)\}', r"\1/\2"),  # meters over seconds
    (r'(?<![A-Za-z])"?Rs\.?"?(?![A-Za-z])', "₹"),
    (rf'(?<![A-Za-z\d_^])(\d[\dA-F]*)\s*(?:_\s*(?:\{{\s*\(?\s*(?:"?base"?\s*)?{BASE}\s*\)?\s*\}}|"{BASE}")|'
     rf'(?:"in"\s*)?(?:\(\s*"?base"?\s*{BASE}\s*\)|"?base"?\s*{BASE}))',
     lambda match: f"{match[1]}_{next(BASES.get(base, base) for base in match.groups()[1:] if base)} "),  # 201_{(3)}
    (r"(?<=\d):0(\d)(?!\d)", r":\g<1>_60 "),  # minutes: 1:03 is not 1:3
    (r"(?:^|(?<=[,;]))(?P<before>)\s*(?P<one>[A-Z]{2,4}(?=\s*=\s*[-\d\\])|"  # AB = 5, and A^{-1} before a matrix
     r"(?:[A-Z](?:_\w)?|\([A-Z\s+-]+\))\s*\^\s*\{\s*(?:-\s*1|T)\s*\}(?=\s*=[\s\[]*\\begin))", as_one),
    (r'(^|[,;]|\\\{|(?<![A-Za-z])"?(?:and|or)(?![A-Za-z])"?)\s*([A-Z]{2,4}|[A-Za-z]{3})\s*(?=[,;]|\\\}|$|"?(?:and|or)(?![A-Za-z]))',
     r'\1 "\2"'),  # ABC is not BCA
    (r"\\[dtc]?(frac|binom)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}"),
    (r"(?<=\d)\s+(\d+)\s*/\s*(\d+)(?![\d.])", r"\\frac{\1}{\2}"),  # 2 1/3
    (r"(?<![\d.^_/])([0-9]+)\s*\\[dtc]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}", improper),
    (r"(?<![\d.^_])(?:(?<!/)(\d+(?:\.\d*)?)\s*(?:\*|\\times|\\cdot|[xX])\s*)?"
     r"10\s*\^\s*(?:\{\s*([+-]?\d+)\s*\}|(\d))", scientific),
    (r"\\log\s*_\s*([2-9])(?=\d)", r"\\log_\1 "))]  # TeX takes one digit: \log_23 is \log_2 3, but \log_10 can't be \log_1 0
TOKEN = re.compile(r"""\\(?:overline|vec|hat|bar|d?dot|tilde|mathcal|mathbb)\s*\{[^{}]*\}|\\[A-Za-z]+|\\.
    |"[^"]*"|_(?:\{[^{}]*\}|[A-Za-z]|\d+)|[<>]=|\*\*|[A-Za-z]+         # subscripts, runs of letters
    |\d+(?:\.\d+)?_\d+|\d[\dA-F]*_1[1-6]|\d*\.\d*\\(?:overline|bar|dot)\s*\{\s*\d+\s*\}
    |(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?|\S""", re.X | re.S | re.A)
NAMED = re.compile(r"(?<!\S)\S+(?= (?:' |_\S+ )*+\( )")  # before an argument in brackets
CALLS = re.compile(rf"({NAMED.pattern}) (?:' |_\S+ )*+\( ([^()]*)\) ")
UNIT = re.compile(r' ?[%°]|(?: ?[*/]? ?(?:"(?!and"|or")[^"]+"|[$€£¥₹])(?: \^ (?:\{ )?(?:- )?[1-4](?: \})?)?)+')


def math_tokens(text):
    """Cut a string into numbers, letters, commands, signs, subscripts, and "words" in double quotes."""
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    tokens = []
    for token in TOKEN.findall(" ".join(text.split()).rstrip(" .,;*\\").lstrip(" *")):
        token = ALIASES.get(token, token).replace(" ", "")
        word = token.strip('"')
        if not word.isascii() or not word.isalpha():
            tokens.append(token)
        elif len(word) > 3 or word.lower() in ("yes", "no", "odd", "and", "or") or (
                word != token and (len(word) > 1 or word in UNITS)) or (
                len(word) > 1 and tokens and re.sub("(?<=..)s$", "", word.lower()) in UNITS and tokens[-1][-1] in '0123456789.})"π'):
            tokens.append(f'"{word}"')
        else:
            tokens += word
    return tokens


def mark_functions(*texts):
    """Return lists of tokens with {} after each name of a function, because u(2t) is not 2u(t). A letter is a
    function if it precedes a single letter or number in brackets, or two different sums."""
    functions = {"f", "\\phi", "\\Gamma", "\\zeta"}
    for tokens in texts:
        arguments = {}
        for name, argument in CALLS.findall(" ".join(tokens) + " "):
            if name in LETTERS and name not in argument.split():
                arguments.setdefault(name, set()).add(argument.strip())
        functions |= {name for name, found in arguments.items() if len(found) > 1 or found & LETTERS
                      or any(map(str.isdecimal, found))}
    return [NAMED.sub(lambda match: "\\" + match[0].strip("\\") + "{}" if match[0] in functions else match[0],
                      " ".join(tokens)).split() for tokens in texts]


def plain(tokens):
    """Join tokens into one text, with spaces only before numbers and without braces around a single token."""
    text = "".join(" " + token if token[0] in "0123456789." else token.strip('"') for token in tokens)
    return re.sub(r"([_^])\{( \d+|\w)\}", r"\1\2", text)


# ---- 3. Items: parsed answers ----
class Item(NamedTuple):
    """A value, a list, a tuple, an interval, a matrix, an equation, a ratio, or words."""
    kind: str        # "value", "words ...", "list", a pair of brackets, "\\begin" of a matrix, or a relation
    parts: tuple     # a value: one number for each of SPANS; an equation: what must be 0
    name: str = ""   # the x of x = 5, the "Area" of Area = 5
    unit: str = ""
    digits: int = 0  # the digits of a decimal, as an integer
    work: str = ""   # what a value leaves undone, see `undone`
    factor: Fraction = Fraction(1)  # the number in front: the 2 of 2x and 2 + 4i; a numeral itself
    factors: tuple = ()  # a product with symbols: (factor, 1), or (factor, -1) if it divides
    named: frozenset = frozenset()  # which of i, e and pi are factors of it or of its terms
    argument: str = ""  # the x of f(x) = 2x, the red of 5 red apples
    symbols: frozenset = frozenset()  # the free symbols in a value as written
    equation: bool = False  # the value is no answer without its name: x = y, y' + 3y = x

    @property
    def constant(self):
        return self.kind == "value" and not self.symbols

    @property
    def rational(self):
        return self.constant and isinstance(self.parts[0], Fraction)


def undone(op, first, last, constant):
    """Return what an operation leaves undone, as letters:
    "+"  add constants                      "*"  multiply, divide or cancel numerals, or i, e or pi
    "/"  divide by a sum                         that both sides have; raise constants to a power
    "√"  take a root, and "s" take a factor out of it
    "f"  evaluate any other function of constants, and "F" a function or a root of symbols
    "k"  notes that a constant is added to symbols, to which a second one could be added."""
    n, d = first.factor, last.factor
    shared = first.named & last.named  # the e of e^2 e^3
    if op == "*":
        numerals = first.rational and last.rational or not {n, d} & {1, -1}
        squared = first == last and first in POWER_BASES  # pi * pi is another way to write pi^2
        return "*" if numerals or shared and not squared else ""
    if op == "/":
        reduced = n.denominator == d.denominator == math.gcd(n.numerator, d.numerator) == 1 < abs(d)
        whole = abs(d) == 1 and not last.rational
        cancels = shared and "+" not in first.work  # e^5 / e^2, but not (e^2 - 1) / e
        done = (reduced and max(n, d) > 0 or whole) and not cancels
        return ("" if done else "*") + ("/" if last.constant and "+" in last.work else "")
    if op == "+" and not constant:
        return ("", "k", "k+")[sum(item.constant or "k" in item.work for item in (first, last))]
    if not constant:
        whole = last.rational and d.denominator == 1
        return "F" if op in FUNCTIONS or op in ("!", "√", "\\lvert") or op == "^" and not whole else ""
    if op == "^" and (not last.rational or d.denominator == 1):
        done = first in POWER_BASES and not (last.rational and d in (0, 1))
        return "" if done else "*"
    if op in ("^", "√"):
        x, index = (last, abs(n.numerator)) if op == "√" else (first, d.denominator)
        return "√s" if x.rational and has_root(x.factor.as_integer_ratio(), index) else "√"
    return "+" if op == "+" else "f"


def has_root(parts, index):
    """Return True if a small factor comes out of a root of a fraction, as of \\sqrt{12}, or its index can be lowered, as
    in \\sqrt[6]{25}."""
    small = [part for part in parts if not part or index < part.bit_length()]  # k ** index must not be huge
    lower = (all(abs(part) < 2**50 and round(abs(part) ** (1 / p)) ** p == abs(part) for part in parts)
             for p in (2, 3, 5) if index % p == 0)
    return any(part % k ** index == 0 for part in small for k in range(2, 32)) or any(lower)


def divisors(op, first, last):
    """Return which of i, e and pi an operation divides by, in capitals: 5/i is unfinished. In a function they may be."""
    inverse = op == "^" and last.factor < 0
    divisor = last.work if op == "/" else first.work + last.work if inverse else ""
    return "" if "f" in divisor else "".join(name for name in "IEΠ" if name.lower() in divisor)


def named_in(op, first, last):
    """Return which of i, e and pi are factors of the result or of its terms, not inside of a root or a function."""
    if op == "^":
        root = last.rational and last.factor.denominator != 1
        return first.named if last.constant and not root else frozenset()
    product = op in ("*", "/") or op == "+" and first.constant and last.constant
    return first.named | last.named if product else frozenset()


def by_factors(point, item, f, join, start):
    """Join f of each positive factor: the root of L/g is the root of L over that of g. Constants stay together."""
    result, constant = start, Fraction(1)
    for factor, sign in item.factors or ((item, 1),):
        if factor.constant:
            constant *= factor.parts[point] ** sign
        else:
            result = join(result, f(factor.parts[point], sign))
    return join(result, f(constant, 1))


def value_at(point, op, first, last):
    """Return the result of an operation at one point."""
    x, y = first.parts[point], last.parts[point]
    if op == "√" and first.rational and x.denominator == 1 and x % 2 and last.rational and y < 0:
        return -power(-y, 1 / x)  # the real root
    if op == "√" or op == "^" and not (last.rational and y.denominator == 1):
        base, exponent = (last, 1 / x) if op == "√" else (first, y)
        return by_factors(point, base, lambda z, sign: power(z, sign * exponent), OPERATIONS["*"], Fraction(1))
    if op in ("\\ln", "\\log") and not first.constant:
        return by_factors(point, first, lambda z, sign: sign * FUNCTIONS[op](z) if z != 1 else Fraction(0), plus, Fraction(0))
    return OPERATIONS[op](x) if op in FUNCTIONS or op in BARS or op == "!" else OPERATIONS[op](x, y)


def each(op, *items):
    """Apply an operation to values, and note what it leaves undone."""
    if any(item.kind != "value" for item in items):
        raise ValueError("arithmetic is for numbers")
    first, last = items[0], items[-1]
    symbols = first.symbols | last.symbols  # without any, it is calculated once
    points, bits = (len(SPANS), MAX_BITS // 2) if symbols else (1, MAX_BITS)
    parts = tuple(bounded(value_at(point, op, first, last), bits) for point in range(points))
    result = Item("value", parts if symbols else parts * len(SPANS), symbols=symbols)
    if isinstance(result.parts[0], complex) and any(
            sum(map(int.bit_length, item.factor.as_integer_ratio())) > 33 for item in items):
        raise ValueError("closer to another number than `ratio` can tell")  # 1.000000000001 pi
    factor, factors = 1, ()
    if result.rational:
        factor = result.parts[0]
    elif op == "+" and result.constant:  # 2 + 4i is 2(1 + 2i)
        pairs = zip(first.factor.as_integer_ratio(), last.factor.as_integer_ratio())
        factor = bounded(Fraction(math.gcd(*next(pairs)), math.lcm(*next(pairs))))
    elif op in ("*", "/"):
        factor = bounded(OPERATIONS[op](first.factor, last.factor))
        sign = 1 if op == "*" else -1
        factors = (first.factors or ((first, 1),)) + tuple(
            (item, sign * other) for item, other in last.factors or ((last, 1),))
    work = "".join(item.work for item in items).replace("k", "") + undone(op, first, last, result.constant)
    work += divisors(op, first, last) if result.constant else ""
    if result.symbols and (not any(result.parts) or ratio(result, number(Fraction(1)))):
        work += "c"  # symbols that cancel
    return result._replace(work=work, factor=Fraction(factor), factors=() if result.constant else factors,
                           named=named_in(op, first, last))


def number(x):
    return Item("value", (x,) * len(SPANS), factor=x if isinstance(x, Fraction) else Fraction(1))


def symbol(name):
    return Item("value", sample_points(name), name, symbols=frozenset([name]))


def unknown(name, *arguments):
    """Return a symbol for an unknown function, or one whose values say too little, as floors of n/3 and n/4."""
    if any(argument.kind != "value" for argument in arguments):
        raise ValueError("no argument")
    parts = [part for argument in arguments for part in argument.parts]
    value = symbol(name + " ".join(f"{complex(part):.9g}" for part in parts))
    return value._replace(name="", symbols=frozenset([name]).union(*(item.symbols for item in arguments)))


def absolute(item):
    """Return |x|. If x has one sign at all points, as x - 9 has, its values cannot distinguish |x| from x or -x; then
    |x| is `unknown` up to a constant factor. So is the |z| of a complex number."""
    signs = {part > 0 for part in item.parts if isinstance(part, Fraction)}
    real = not item.symbols & {"z", "w"} and all(isinstance(part, Fraction) for part in item.parts)
    if item.constant or real and len(signs) == 2:
        return each("\\lvert", item)
    result = unknown("|", each("/", item, number(item.parts[0])))
    return result._replace(parts=tuple(bounded(abs(item.parts[0]) * part) for part in result.parts))


def minus(item):
    if item in INFINITIES:  # not values: infinity - infinity is not 0
        return INFINITIES[1 - INFINITIES.index(item)]
    return each("*", number(Fraction(-1)), item)._replace(unit=item.unit, digits=item.digits, work=item.work)


INFINITIES = Item("-∞", ()), Item("∞", ())
MEANINGS = {"∞": INFINITIES[1], "\\emptyset": Item("list", ()), "\\mathbb{R}": Item("()", INFINITIES),
            **{name: number(x)._replace(work=name, named=frozenset([name]))
               for name, x in (("π", complex(math.pi)), ("e", complex(math.e)), ("i", 1j))}}
LETTERS = SYMBOLS - MEANINGS.keys()
CONJUGATES = {"\\overline{z}", "\\overline{w}"}  # that say nothing about z: \bar z = 3+4i
POWER_BASES = MEANINGS["π"], MEANINGS["e"]  # pi^2 and e^2 are done, i^2 is not


# ---- 4. Parsing. `tokens` is reversed: tokens[-1] comes next, and the empty tokens[0] marks the end ----
def read_items(tokens, left):
    """Parse the items up to the closing bracket. A union is one set, and so is an interval without some points."""
    items, separators = [], []
    while tokens[-1] not in CLOSERS[left]:
        sides, signs = [read_side(tokens)], []
        while tokens[-1] in RELATIONS:
            signs.append(tokens.pop())
            sides.append(read_side(tokens))
        item = relation(sides, signs) if signs else sides[0]
        if items and item.name == items[-1].name != "" and separators[-1] == '"and"' and {item.kind, items[-1].kind} <= {*INTERVALS}:
            raise ValueError("an interval to be made")  # x > 1 and x < 2
        if items and items[-1].kind == "≠" and items[-1].name and item.constant and not signs:  # x ≠ 1, -1
            item = relation([items[-1], item], ["≠"])
        items.append(item)
        while tokens[-1] == "∖" and item.kind in INTERVALS:
            tokens.pop()
            items.append(relation([item, read_side(tokens)], ["≠"]))
        if tokens[-1] not in SEPARATORS | CLOSERS[left] or left in ("(", "[") and tokens[-1][:1] == '"':
            raise ValueError("no separator")
        while tokens[-1] in SEPARATORS:
            separators.append(tokens.pop())
    if '"or"' in separators and any(item.kind.startswith(("≠", "words")) for item in items):
        raise ValueError("two meanings")  # x ≠ 1 or x ≠ 2, and Ann or Bob, which is not both
    union = "∪" in separators
    if union and (sum(item.kind == "list" for item in items) > 1 or any(item.kind == "value" for item in items)):
        raise ValueError("a union to be made")
    if union:  # x is in all of (0, 1) ∪ (2, 3)
        items = [item._replace(name=item.name or items[0].name) for item in items]
    if union or len(items) == 1 and left in ("", "{"):
        items = [part for item in items for part in (item.parts if item.kind == "list" else (item,))]
    return tuple(items)


def without_points(items):
    """Take the points of x ≠ 1 and of ∖ {1} out of the intervals beside them, or out of all real numbers."""
    left = [item for item in items if item.kind != "≠"]
    for name in {item.name: None for item in items if item.kind == "≠"}:
        points = [point for item in items if item.kind == "≠" and item.name == name for point in item.parts]
        intervals = [item for item in left if item.kind in INTERVALS and item.name in ("", name)]
        left = [item for item in left if item not in intervals]
        for interval in intervals or [MEANINGS["\\mathbb{R}"]._replace(name=name)]:
            left += split(interval, points)
    return left


def split(interval, points):
    """Return the parts of an interval between points. Those outside of it make no difference."""
    low, high = (end.parts[0].real if end.constant else float(end.kind.replace("∞", "inf")) for end in interval.parts)
    if any(abs(point.parts[0].real - end) < 1e-9 * max(1, abs(point.parts[0])) for point in points for end in (low, high)):
        raise ValueError("a point at an end")
    inside = sorted((point for point in points if low < point.parts[0].real < high), key=lambda point: point.parts[0].real)
    lefts = zip(interval.kind[0] + "(" * len(inside), [interval.parts[0], *inside])
    rights = zip(")" * len(inside) + interval.kind[1], [*inside, interval.parts[1]])
    return [interval._replace(kind=left + right, parts=(x, y)) for (left, x), (right, y) in zip(lefts, rights)]


def read_side(tokens):
    """Parse words up to the end of the item, as in "not 5", or a sum with an optional unit."""
    if tokens[-1][:1] == '"' and len(tokens[-1]) > 3:
        words = []
        while tokens[-1] not in SEPARATORS | RELATIONS | {"", ")", "]", "}", "\\}"}:
            words.append(tokens.pop())
        text = plain(words)  # ABC is not abc, but Yes is yes
        if not re.sub("['-]", "", text).isalpha() or len(text) > 24:
            raise ValueError("words and values, or a sentence")
        return Item("words " + (text if len(text) < 5 and text.isupper() else text.casefold()), ())
    item = read_expression(tokens)
    if tokens[-1].lower() in MULTIPLES and item.rational:
        item = item._replace(parts=each("*", item, number(MULTIPLES[tokens.pop().lower()])).parts)
    if unit := UNIT.match(" ".join(tokens[::-1])):
        del tokens[len(tokens) - len(unit[0].split()):]
        colors = " ".join(word for word in sorted(re.findall("[a-z]+", unit[0].lower())) if UNITS.get(word) == "*")
        item = item._replace(unit=read_unit(f"{item.unit} {unit[0]}", item.constant), argument=colors)
    return item


def read_unit(text, constant):
    """Return the product of the units in a text, in one order: "kg m^-3" for "kg" / "m" ^ 3."""
    powers, sign, times = {}, 1, 1
    text = re.sub(r" \^ (?:\{ )?(- )?(\d)(?: \})?", lambda match: "^" + (match[1] or "").strip() + match[2], text)
    for word in text.replace('"', "").split():
        word, _, exponent = word.partition("^")
        name = UNITS.get(word) or len(word) > 2 and UNITS.get(re.sub("(?<!percent)s+$", "", word.lower()))  # not Mm
        if name in ("2", "3"):  # square, cubic
            times = int(name)
        elif name == "/":
            sign = -1  # J/(mol K) is often written J/mol K
        elif name != "*":
            if not name or not constant and name in "ACF":
                raise ValueError("not a unit")
            powers[name] = powers.get(name, 0) + sign * times * int(exponent or 1)
            times = 1
    if len(powers) > 1 and {*"$€£¥₹"} & {*powers} and min(powers.values()) > 0:
        raise ValueError("a number of dollars")  # K, M or B
    return " ".join(f"{name}^{power}".removesuffix("^1") for name, power in sorted(powers.items()) if power) or "1"  # m/m


def read_expression(tokens, level=0):
    """Parse a sum (level 0), a product (1), an argument without brackets (2), or a power (3). An argument, such as
    the y of "sin y cos x" and "sin y (x + 1)", ends before a sign, a bracket or another function."""
    value, divided = read_atom(tokens), False
    while True:
        after = tokens[-1]  # a number may follow x or 2^6 if it has a power itself
        follows = after in STARTERS or "{" in after[2:] or after.isdecimal() and tokens[-2] == "^"
        if after in ("^", "!"):
            tokens.pop()
            value = each("^", value, read_atom(tokens)) if after == "^" else each("!", value)
            if tokens[-1] == after:
                raise ValueError("two meanings")  # x^2^3, 5!!
        elif divided and follows or after == "/" and level == 2 and tokens[-2] not in FUNCTIONS:
            raise ValueError("two meanings")  # a/bc and \\sin x/2
        elif follows and level < (2 if after in CLOSERS or after in FUNCTIONS else 3):
            value = each("*", value, read_expression(tokens, 3))
        elif after in ("*", "/") and level < 2:
            divided = after == "/"
            value = each(tokens.pop(), value, read_expression(tokens, 3))
        elif after in ("+", "-") and level < 1:
            tokens.pop()
            term = read_expression(tokens, 1)
            value = each("+", value, minus(term) if after == "-" else term)
        else:
            return value


def read_atom(tokens):
    """Parse a number, a symbol, a function, a fraction, a root, items in brackets, or a power with a sign."""
    token = tokens.pop()
    if token in ("+", "-"):
        value = read_expression(tokens, 3)
        if value.factor < 0:  # -(-8) is unfinished
            value = value._replace(work=value.work + "*")
        return minus(value) if token == "-" else value
    if token and token in CLOSERS:
        items = read_items(tokens, token)
        kind = token + tokens.pop()
        if token in BARS:
            (item,) = items
            return absolute(item) if token == "\\lvert" else (each if item.constant else unknown)(token, item)
        if len(items) == 1 and kind in ("()", "[]", "{}"):
            return items[0]
        names = [item.name for item in items]
        name = ",".join(names) if kind == "()" and all(names) else ""  # (x, y) = (1, 2) is (1, 2)
        if kind == "{}" and not items:
            raise ValueError("nothing")
        return Item("list" if kind in ("{}", "\\{\\}") else kind, items, name)
    if token in FUNCTIONS:
        return read_function(tokens, token)
    if token in ("\\frac", "\\binom"):
        upper = read_atom(tokens)
        return each(token.replace("\\frac", "/"), upper, read_atom(tokens))
    if token == "√":
        index = read_atom(tokens) if tokens[-1] == "[" else number(Fraction(2))
        return each(token, index, read_atom(tokens))
    if token in ("$", "€", "£", "¥", "₹"):
        return read_atom(tokens)._replace(unit=token)
    if token[:1] in (*"0123456789.",):
        return read_number(token)
    if token in MEANINGS and tokens[-1][:1] != "_":
        return MEANINGS[token]
    return read_symbol(tokens, token.strip('"'))


def read_function(tokens, name):
    base, exponent = None, None
    if name == "\\log" and tokens[-1][:1] == "_":
        base = TOKEN.findall(tokens.pop().strip("_{}"))
        base = read_expression(["", *(ALIASES.get(token, token) for token in reversed(base))])
        if base in (MEANINGS["e"], number(Fraction(10))):
            name, base = "\\ln" if base == MEANINGS["e"] else name, None
    if tokens[-1] == "^":
        tokens.pop()
        exponent = read_atom(tokens)
        if exponent.parts[0] == -1 and "\\arc" + name[1:] in FUNCTIONS:
            name, exponent = "\\arc" + name[1:], None
    argument = read_atom(tokens) if tokens[-1] in CLOSERS else read_expression(tokens, 2)
    if name in IN_DEGREES and (argument.unit == "°" or tokens[-1] == "°" and tokens.pop()):
        argument = each("*", argument, number(complex(math.radians(1))))
    operation = ("^", MEANINGS["e"]) if name == "\\exp" else (name,)
    value = absolute(argument) if name == "\\abs" else each(*operation, argument)
    if base:
        value = each("/", value, each(name, base))
    return each("^", value, exponent) if exponent else value


def read_symbol(tokens, name):
    """Parse a free symbol: x, \\theta, x_1, \\vec{v}, y'', f(3), or the y(t) of y(t) = 6t."""
    if name not in SYMBOLS and "{" not in name[2:]:
        raise ValueError(name)
    argument, call = "", name.endswith("{}")
    name = (name[1:-2] if len(name) == 4 else name[:-2]) if call else name
    while tokens[-1] == "'" or tokens[-1][:1] == "_":
        name += re.sub(r'[{}"\\]', "", tokens.pop())
    if call and tokens[-4:-2] == ["=", ")"] and tokens[-2] in SYMBOLS:
        argument = tokens[-2]
        del tokens[-3:]
    elif call and tokens.pop() == "(":
        items = read_items(tokens, "(")
        tokens.pop()
        return unknown(name, *items)
    return symbol(name)._replace(argument=argument, name="" if name in CONJUGATES or name[0] in "xyz" and "'" in name else name)


def read_number(token):
    if "_" in token:  # a numeral with a base is a symbol
        return symbol(token.lstrip("0"))._replace(name="")
    digits, _, period = re.sub("[{}]|overline|bar|dot", "", token).partition("\\")
    whole, _, places = re.sub("[eE].*", "", digits).partition(".")
    value = bounded(Fraction(digits))
    if period and not period.strip("9"):
        raise ValueError("ends in nines")  # never the standard form of a number
    if period:
        value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(places))
    return number(value)._replace(digits=int(whole + places) if "." in digits else 0)


def relation(sides, signs):
    """Return a ratio, a row of a matrix, a membership, an equation, or an inequality that bounds one symbol."""
    if signs[0] == ":" and any("words" in side.kind for side in sides):
        raise ValueError("a label: radius: 5")
    if {*signs} in ({":"}, {"&"}):
        return Item(signs[0], tuple(sides))
    if signs == ["∈"] and sides[0].name and sides[1].kind != "value":
        return sides[1]._replace(name=sides[0].name)
    points = sides[1].parts if sides[1].kind == "list" else (sides[1],)
    if signs == ["≠"] and (sides[0].name or sides[0].kind in INTERVALS) and all(point.constant for point in points):
        return Item("≠", points, sides[0].name)
    if signs[-1] == "≈" and same_decimal(sides[-1], sides[-2], 1):  # sqrt(2) ≈ 1.41 says sqrt(2)
        return relation(sides[:-1], signs[:-1]) if len(signs) > 1 else sides[0]
    if {*signs} == {"="}:
        x, *values = sorted(sides, key=lambda side: not side.name)  # x = 5 and 5 = x
        values = values if x.name else sides
        value = values[-1]  # the 5 of x = 2 + 3 = 5 and of 2 + 3 = 5
        if not (x.name and (x.unit or x.name in value.symbols)) and all(same(value, other) for other in values):
            named = x.kind == "value" or x.kind == value.kind and not value.name
            label = re.sub(r"\\(?:vec|hat)|[{}]", "", x.name) + "="  # of P = (1, 2)
            name = x.name if x.kind == value.kind else label
            equation = value.kind == "value" and not (value.constant or x.argument or x is sides[0] and not value.name)
            return value._replace(name=name if named else "", argument=x.argument or value.argument, equation=equation)
        difference = each("+", x, minus(value))
        if x.name or len(values) > 2 or difference.constant or difference.work.endswith("c"):
            raise ValueError("no equation")  # 4 = 3 and x = x + 1 say nothing
        return Item("=", (difference,))
    if signs[0] in (">", "≥"):
        sides, signs = sides[::-1], [{">": "<", "≥": "≤"}.get(sign) for sign in reversed(signs)]
    if sides[0].name:  # x < 3 is -infinity < x < 3
        sides, signs = [INFINITIES[0], *sides], ["<", *signs]
    if len(sides) == 2:
        sides, signs = [*sides, INFINITIES[1]], [*signs, "<"]
    low, x, high = sides
    if {*signs} <= {"<", "≤"} and x.name and all(end.constant or end in INFINITIES for end in (low, high)):
        return Item("(["[signs[0] == "≤"] + ")]"[signs[1] == "≤"], (low, high), x.name)
    raise ValueError("no relation that bounds one symbol")


# ---- 5. Comparing ----
def ratio(a, b):
    """Return a / b if it is constant, else None."""
    pairs = [*zip(a.parts, b.parts)][:None if a.symbols or b.symbols else 1]
    if any(bool(x) != bool(y) for x, y in pairs):
        return None
    pairs = [(x, y) for x, y in pairs if y]
    for r in [Fraction(1), *(x / y for x, y in pairs[:1])]:  # fractions must agree exactly
        if all(r == x / y or isinstance(x / y, complex) and abs(x / y - r) < 1e-11 * abs(r)
               for x, y in pairs):
            return r


def same_decimal(x, y, least=100_000):
    """Return True if x is a decimal of six digits or more, and equals the irrational y rounded or truncated there."""
    if x.digits < least or not y.constant or least > 1 and y.rational:
        return False
    digits = y.parts[0] / x.parts[0] * x.digits
    return not digits.imag and x.digits in (int(digits.real), round(digits.real))


def has_label(item):
    """Return True for x = 5, but not for a free symbol, which is its own name."""
    return bool(item.name) and item.parts != sample_points(item.name)


def names_of(item):
    """Return the names of x = 3, y = 4 and of (x, y) = (3, 4) if they differ, else []."""
    parts = item.parts if item.kind == "list" else ()
    names = item.name.split(",") if item.kind == "()" else [part.name for part in parts if has_label(part)]
    return names if len({*names}) == len(item.parts) > 1 else []


def by_name(item, names):
    """Return the values of a list or tuple in the order of their names; those without one get that of their place."""
    parts = [part if has_label(part) else part._replace(name=name) for name, part in zip(names, item.parts)]
    return Item("()", tuple(sorted(parts, key=lambda part: part.name)))


def quotient(item):
    """Return the value of a ratio: 3 : 1 is 3. Other items stay, and so do times: 6:30, 3:10."""
    if item.kind != ":" or len(item.parts) != 2 or item.parts[1].unit:
        return item
    first, last = item.parts
    time = first.factor < 25 and 10 <= last.factor < 60  # 3:10
    return item if time else first if last == number(Fraction(1)) else each("/", first, last)


def same(a, b):
    """Return True if a equals the gold b and leaves no more undone. One of them may lack a unit or a name."""
    curve = has_label(b) and (b.equation or b.symbols and {b.name, *b.symbols} <= {"x", "y", "z"})
    other = a.kind == "=" or a.name and a.name != b.name and (a.equation or has_label(a))
    if b.kind == "=" or curve and other:
        a, b = (Item("=", (each("+", symbol(item.name), minus(item)),))  # y = 2 - x is x + y = 2
                if item.name and item.kind == "value" else item for item in (a, b))
    bare = b.equation and not a.equation and (not a.name or a.parts == sample_points(a.name))
    if {a.kind, b.kind} == {":", "value"}:
        a, b = quotient(a), quotient(b)
    names, golds = names_of(a), names_of(b)
    if golds or names and b.kind == "()":
        if not golds:  # (3, 4) may be x = 3, y = 4
            golds = sorted(names) if a.kind == "list" or {*names} <= {"x", "y", "z"} else names
        if not {a.kind, b.kind} <= {"()", "list"} or len(a.parts) != len(b.parts):
            return False
        a, b = by_name(a, names or golds), by_name(b, golds)
    labels = {item.name for item in (a, b) if has_label(item)}
    if len({name[-1] == "=" for name in labels}) == 2:
        labels = set()  # D = [0, 1] and x \in [0, 1]
    both = (labels, {a.argument, b.argument}, {a.unit, b.unit})
    changes = not b.unit and (a.unit[:1] in ("K", "T") or a.unit == "%" and not b.constant)  # thousands, trillions
    if a.kind != b.kind or bare or changes or any(len(labels - {""}) > 1 for labels in both):  # one of them may have none
        return False
    if a.kind == "value":
        percent = {("%", ""): 100, ("", "%"): Fraction(1, 100)}.get((a.unit, b.unit), 1)
        ratios = {percent} if percent == 100 and 0 < abs(b.parts[0]) < 1 else {1, percent}  # 0.5% is not 0.5
        done = a.symbols <= b.symbols and all(
            a.work.count(kind) <= b.work.count(kind) * (1 if kind in "+*√f" else MAX_CHARS)
            for kind in {*a.work} - {"k"})
        rounded = b.digits >= 10**14 and a.rational and b.parts[0] and abs(a.parts[0] / b.parts[0] - 1) < 1e-15
        return done and (ratio(a, b) in ratios or same_decimal(a, b) or rounded)  # by a machine
    if a.kind == "=":
        x, y = a.parts[0], b.parts[0]
        return x.symbols <= y.symbols and ratio(x, y) is not None
    if len(a.parts) != len(b.parts):
        return False
    if a.kind != "list" or len(a.parts) > MAX_ITEMS:
        return all(map(same, a.parts, b.parts))
    left = list(b.parts)
    for x in a.parts:
        match = next((y for y in left if same(x, y)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def read(tokens):
    """Parse an answer into an item or a list. An item with +- becomes two, one with + and one with -."""
    choices = [{"±": "+", "∓": "-"}, {"±": "-", "∓": "+"}][:1 + bool({"±", "∓"} & {*tokens})]
    if len(tokens) * len(choices) > MAX_TOKENS:
        raise ValueError("too long")
    readings = [read_items(["", *(signs.get(token, token) for token in reversed(tokens))], "") for signs in choices]
    items = without_points([x for pair in zip(*readings) for x in (pair[:1] if same(pair[0], pair[-1]) else pair)])
    nested = len(items) == 1 and items[0].kind == "list"  # {{1}} is not {1}
    return items[0] if len(items) == 1 and not nested else Item("list", tuple(items))


# What may precede a value: x_1 =, a + b =, |S| =, P(X = 3) =, Area =. Nothing backtracks (++), for linear time.
NO_LABELS = "not?|never|cannot|negati(?:ve|on)|conj(?:ugate)?|minus|opposite|half|twice|double|triple|wrong|incorrect|and|or|errors?|bounds?|" \
            "guess|estimate|inverse|reciprocal|logarithm|hint|suppose|assume|say|let|if|maybe|perhaps|possibly|probably"
COMMANDS = "|".join(sorted({name[1:] for name in SYMBOLS | FUNCTIONS.keys() if len(name) > 1}))
NAME = (rf'(?>(?!n\ o\ t\ |"?(?i:{NO_LABELS})"?\ )(?:[A-Za-z]|"[A-Za-z]+"|\\(?:{COMMANDS}|arg|gcd|lcm|max|min|'
        r"det|dim|deg|lim|Pr|Var|triangle)|\\\w+\{[^{}\s]*\})\ (?:_\S+\ |'\ (?!t\ ))*)")
INSIDE = r"(?:[^()\[\]!≠±\s]+\ |\(\ (?:[^()!≠±\s]+\ )*+\)\ )*+"
CALL = (rf"(?:(?![a-eijk-oru-z]\ ){NAME}(?:\^\ \{{\ -\ 1\ \}}\ )?|\(\ {NAME}°\ {NAME}\)\ )"
        rf"(?:\(\ {INSIDE}\)\ |\[\ {INSIDE}\]\ )")
ABSOLUTE = r'(?:\\lvert\ (?:[A-Za-z]\ |\\\w+\{[^{}\s]*\}\ |"[A-Za-z]+"\ )++\\rvert\ |\[\ (?:[A-Z]\ )++\]\ )'
PART = rf"(?:\{{\ (?:{CALL}|{ABSOLUTE}|{NAME})++\}}\ |{NAME})"
TERM = rf"(?:{CALL}|{ABSOLUTE}|\\frac\ {PART}{PART}|{NAME})"
POWERS = r"([a-z])\ \^\ (\d)\ (?:[-+]\ (?!\1)[a-z]\ \^\ \2\ )++"  # x^2 + y^2
LABEL, RATIO_LABEL = (re.compile(rf"^(?:(?:{POWERS}|{TERM}(?:(?:[-+*/{colon}]\ )?{TERM})*+)=\ )++", re.A)
                      for colon in ("", ":"))  # S : T = 7 : 32
CALL_LABEL = re.compile(rf"^{CALL}=\ ", re.A)
SENTENCE = re.compile(  # "The answer is", "So the total area is equal to", "Answer:"
    r"[\s$*]*(\\text\w*\s*\{\s*)?(?:(?:so|thus|hence|therefore|then)\W+)?(?:(?:the|its|our|their|his|her)\s+)?"
    r"(?:(?:correct|final|total|exact|minimum|maximum|smallest|largest|greatest|surface)\s+)*"
    rf"(?!(?:{NO_LABELS}|limit|square|cube|root|log|power|exponent|complement|factorial|one|question|problem|there|this|that|these|such|what|which|how|where|nobody|"
    r"nothing)(?!\w))[A-Za-z]+\s*(?:(?<=answer):|(?<!\w)(?:is|are|equals)(?!\w))(?:\s*equal\s+to(?!\w))?[\s:]*", re.I)
DRESS = re.compile(r"\\(?:boxed|text|math)(?:bf|rm|it)?\s*\{|\\[()\[\],;: ]|[{}$*~]")
CHOICE = re.compile(r"(?:option|choice)?\s*\(?\s*([A-H])\s*(?:[).:](.*))?", re.S | re.I)
VERDICT = re.compile(r"(yes|no|true|false)(?:[,.;:!](.*))?", re.S | re.I)
# What takes an answer back, and what denies it: a no may be explained by a not.
DOUBTS = re.compile(r"(?<!\w)(?:but|except|however|although|though|unless|if|actually|rather|instead|better|maybe|perhaps|"
                    r"possibly|probably|might|may|could|doubt\w*|unsure|guess\w*|wait|only|otherwise|never|hardly|nearly|almost|"
                    r"mostly|partly|some\w*|until|yet|while|whereas)(?!\w)", re.I)
DENIALS = re.compile(r"(?<!\w)(?:no|nope|not|none|neither|nor|cannot|wrong|false|incorrect\w*|invalid|untrue|fail\w*|unlikely|"
                     r"impossible)(?!\w)|n['’]t(?!\w)", re.I)
OTHERWISE = {  # another answer
    CHOICE: re.compile(
        r"(?i:(?<!\w)(?:all|both|either|any)(?!\w)|^\W*(?:is|was|are|has|does|can|seems|looks|must|should|would|to)(?!\w))|"
        r"(?<![\w(])(?:\(?[A-H][).:]|(?i:or)(?!\w)|(?i:and)\s+\(?[A-H](?!\w))|^\W*(?:and\W+)?[A-Ha-h]\s*(?:\Z|[),.;:/&|])|"
        r"(?<![\w\\])(?!(?:of|point|line|vitamin|type|plan)\W)(?i:[a-z']{2,})[\s:(]+[A-H]\W*\Z|"  # as its last word
        r"(?i:(?<!\w)(?:(?:answer|option|choice|choose|pick|select)\w*|is)[\s:(]+)[A-H](?!\w)|"
        r"(?i:(?<!\w)(?:answer|option|choice|choose|pick|select)[\s:(]+(?:is[\s:(]+)?)[a-h]\W*\Z|"
        r"^\W*[B-H]\s+[a-z]{2,}|(?:^|[.,;:])\W*[A-H]\s+(?:is|was|seems|looks|works|fits)(?!\w)|"
        r"^\s*(?:[_^'!*/+]|\\(?:cdot|times|div|cup|cap)(?![a-z]))"),  # a calculation
    VERDICT: re.compile(r"^[\s,.;:!]*(?:[\d+-]|or(?!\w))|(?<!\w)(?:yes|no|true|false)(?!\w)", re.I)}


def names_nothing(label):
    """Return True for a function, a derivative, a power or another product of an unknown: \\ln x =, x' =, x x =, x / y =."""
    called = FUNCTIONS.keys() & {*label.split()}
    tokens = (label if called else re.sub(r"\(.*?\)", "", label)).split()
    unknown = [token for token in tokens if len(token) == 1 and token.islower()]
    found = {"x", "y", "z", "i"} & {*unknown}
    return bool({"\\ln", "\\log", "\\exp", "\\abs", *CONJUGATES} & {*tokens} or unknown and (called or "\\lvert" in tokens)
                or len({*unknown}) < len(unknown) or found and len(unknown) > 1 and not {"+", "-"} & {*tokens}
                or found and "'" in tokens and "(" not in label)


def said_first(answer, gold):
    """Return True if the gold is the letter of a choice, or yes or no, and the answer begins with it and explains it:
    "(B) cosine" and "b" say B, but "(B) or (C)" and "Yes and no" don't. If the gold is (B), a bare b is a variable."""
    if len(answer) == 1 < len(gold):
        return False
    answer, gold = (" ".join(DRESS.sub(" ", text).split()).strip(" .") for text in (answer, gold))
    for pattern, otherwise in OTHERWISE.items():
        said, wanted = pattern.fullmatch(answer), pattern.fullmatch(gold)
        rest = said and re.sub(rf"(?<!\w){said[1].upper()}(?!\w)", "it", said[2] or "") or ""
        no = wanted and wanted[1].lower() in ("no", "false")
        taken_back = otherwise.search(rest) or DOUBTS.search(rest) or not no and DENIALS.search(rest)
        if said and wanted and not wanted[2] and not taken_back:
            return said[1].lower() == wanted[1].lower() and not (pattern is CHOICE and wanted[1].islower())
    return False


def math_equal(answer, gold):
    """Return True if two texts are equal as mathematics or, failing that, as text. Never raises an error."""
    answer, gold = answer.translate(UNICODE), gold.translate(UNICODE)
    if max(len(answer), len(gold)) > MAX_CHARS:
        return False
    if equal_items(answer, gold) or said_first(answer, gold):
        return True
    said = SENTENCE.match(answer)
    if not said or DOUBTS.search(said[0]) or DENIALS.search(said[0]):
        return False
    rest = answer[said.end():]  # the 5 of "The area is 5" and of \\text{The area is } 5
    return equal_items(re.sub(r"^\}|\}(?=[^}]*$)", "", rest, count=1) if said[1] else rest, gold)


def equal_items(answer, gold):
    """Return True if two texts are the same, or parse into the same items."""
    answers, golds = math_tokens(answer), math_tokens(gold)
    together = gold.replace(", ", ",")  # 123,456 may have been a list
    as_text = answer.replace(", ", ",") == together and re.fullmatch(r"(\d{3},)+\d{3}", together)
    if not answers or not golds or as_text or plain(answers) == plain(golds):
        return bool(answers and golds)
    name = name_of(golds)
    rest = answers[len(name):] if answers[:len(name)] == name else answers
    if name and not {*rest} & {"=", "∈"}:
        answers, golds = rest, golds[len(name):]
    answers, golds = mark_functions(answers, golds)
    try:
        target = read(golds)
        return same(read(without_label(answers, target)), target)
    except ERRORS:
        return False


ERRORS = ValueError, ArithmeticError, LookupError, AttributeError, RecursionError
QUANTITY = re.compile(r"(?:.*=)?\s*-?(?:[\d.,^{}\s]|[eE][+-]?(?=\d)|\\times|\\cdot)*[\d}]\s+\(?[A-Za-z][\w\s/*^]*\)?")


def is_certain(gold):
    """Return True if a reference answer is read for certain, unlike 5 m and (B) 5, which may be answered by B, and
    worked out, unlike 17-20 or 2020-01-18."""
    tokens = math_tokens(gold.translate(UNICODE))
    try:
        item = read(mark_functions(tokens[len(name_of(tokens)):])[0])
    except ERRORS:
        return False
    unfinished = item.rational and item.work and not {"^", "!", "\\binom"} & {*tokens}
    choice = CHOICE.fullmatch(DRESS.sub(" ", gold).strip())
    return not unfinished and not (choice and choice[2]) and not (item.symbols and QUANTITY.fullmatch(gold))


def name_of(golds):
    """Return the "m + n =" of a gold such as m + n = 7, as tokens; [] for an equation, as x + y = 7 or a = 2b."""
    at = len(golds) - golds[::-1].index("=") if "=" in golds else 0
    name, value = {*golds[:at - 1]}, {*golds[at:]}
    coordinates = len(name & {"x", "y", "z", "\\rho", "\\theta"})
    zero = not value & MEANINGS.keys() and not re.search("[1-9]", " ".join(value))  # which does not answer y'' + y = 0
    if zero or coordinates + bool(name & {"+", "-"}) > 1 or value & (SYMBOLS - MEANINGS.keys() | RELATIONS - {":"}):
        return []
    short = not coordinates and not name & (SEPARATORS | RELATIONS | {"!", "≠", "."})
    return golds[:at] if short or RATIO_LABEL.fullmatch(" ".join(golds[:at]) + " ") else []


def without_label(tokens, target):
    """Return an answer's tokens without a name in front, if the gold item is a value or a ratio without a name."""
    text = " ".join(tokens)
    if target.digits and "≈ " in text:  # sqrt(2) ≈ 1.414, if that is true, and x ≈ 1.414
        text, _, value = text.rpartition("≈ ")
        if text and not LABEL.fullmatch(text + "= "):
            read(tokens)
        text = value
    pattern = RATIO_LABEL if target.kind == ":" else LABEL if target.constant else CALL_LABEL
    label = pattern.match(text)
    named = target.kind == "list" and any(part.kind == "=" or has_label(part) for part in target.parts)
    if label and not target.name and not named and not names_nothing(label[0]):
        text = text[label.end():]
    return text.split()
