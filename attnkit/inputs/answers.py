"""The numbers of an answer to an exercise, in whatever form they are written."""

import math
import re
from collections.abc import Callable
from functools import partial

import numpy as np

from attnkit import formats
from attnkit.errors import DataError
from attnkit.formats import Source
from attnkit.formats.streams import decode_text, name_errors
from attnkit.records import Array

LONGEST = 1 << 16  # bytes of an answer that is read as text
MINUSES = str.maketrans("−–", "--")  # signs that texts have for the hyphen of a number
NOT_NUMBERS = re.compile(
    r"\b(?:dtype|device|grad_fn|requires_grad|shape|size|layout)\s*=\s*(?:<[^<>]*>|'[^']*'|[\w.:]+)"  # of an array
    r"|\b(?:[^\W\d]\w*\.){0,3}(?:array|tensor|Tensor|Array|matrix|(?:float|int|bool)_?\d*)(?=\()"
    r"|\b[^\W\d]\w*+(?:\([^()]*\))?\s*[=:≈]"  # the name of a number: h_1 =, p(cat) =
    r"|[=≈\"'`]|-{2,}|[─│┼]+"
)
REMARK = re.compile(r"\((?:rounded|approx(?:imately)?|about)\b[^()\d]*\)\s*$", re.IGNORECASE)
LATEX = (  # each in the form of a text without it, in this order
    (re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}|\\(?:left|right)\b\.?|\\q?quad\b|\$|\\\\"), " "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\approx\b"), "≈"),
    (re.compile(r"\\cdot\b"), "·"),
    (re.compile(r"\\(sqrt|ln|tanh|exp)\b"), r"\1"),
    (re.compile(r"\b(sqrt|ln|tanh|exp) (?=[\d.])"), r"\1"),
    (re.compile(r"(sqrt|\^)\s*\{([^{}]*)\}"), r"\1(\2)"),
    (re.compile(r"(?<!\d)\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2"),
)
# function -> its value for a number
FUNCTIONS = {"√": math.sqrt, "sqrt": math.sqrt, "ln": math.log, "tanh": math.tanh, "exp": math.exp, "e^": math.exp}
NAMES = "|".join(map(re.escape, FUNCTIONS))
CALL = re.compile(rf"({NAMES})\s*\(\s*([^()\s,]+)\s*\)", re.IGNORECASE)
IN_BRACKETS, IN_PARENTHESES = str.maketrans("()", "⟨⟩"), str.maketrans("⟨⟩", "()")
SEPARATORS = re.compile(r"(?:[\s()\[\]{};|&]|\\(?![^\W\d]))+")
DECIMAL = r"(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?"
TERM = re.compile(
    rf"(?:(?P<factor>{DECIMAL})[*·]?)?(?P<function>{NAMES})(?:⟨(?P<inner>[^⟨⟩]+)⟩|(?P<argument>-?{DECIMAL}))"
    rf"|(?P<number>{DECIMAL})",
    re.IGNORECASE,
)
PART = r"(?:⟨[^⟨⟩]*⟩|[^/%⟨⟩])+"
VALUE = re.compile(rf"(?P<sign>[+-]?)(?P<top>{PART})(?:/(?P<bottom>{PART}))?(?P<percent>%?)")
WORDS = {
    **dict.fromkeys(("true", "t", "yes"), 1.0),
    **dict.fromkeys(("false", "f", "no"), 0.0),
    **dict.fromkeys(("inf", "infinity", "∞"), math.inf),
    "nan": math.nan,
}
OPERATIONS = (  # words behind a number that make another one of it
    "or|not|minus|plus|times|over|divided|by|per|of|to|than|point|half|hundred|thousand|million|mod"
    "|one|two|three|four|five|six|seven|eight|nine|ten"
)
UNIT = re.compile(rf"(?!(?:{OPERATIONS}|{'|'.join(WORDS)})\Z)[^\W\d_]{{2,}}", re.IGNORECASE)


def read_answer(source: Source, tensor: str, count: int) -> Array:
    """Read the numbers of an answer: a tensor file, or text in any layout.

    A text may have fractions, roots, logarithms, powers of e, percentages, decimal commas, words for true and false,
    brackets, units, simple LaTeX, and what print shows of an array. Whether a comma is a decimal mark, a slash between
    blanks divides or ends a row, and digits without blanks are numbers of their own, the count shows.

    tensor  the tensor of a record that is the answer, if it has one of this name, otherwise x
    count   how many numbers the right answer has

    DataError for what is no number.

    >>> [read_answer(Source.of(text), "x", 2).tolist() for text in (b"1/4 73%", b"0,73 0,27", b"[[.5], [1.]]")]
    [[0.25, 0.73], [0.73, 0.27], [0.5, 1.0]]
    """
    start = source.peek(LONGEST + 1)
    if len(start) > LONGEST:
        return _read_tensor(source, tensor)
    readings: list[Array | DataError] = []
    written = [partial(_read_text, comma=comma, slash=slash) for slash in ("/", " ") for comma in (", ", ".")]
    readers: list[Callable[[Source], Array]] = [*written, _read_digits, partial(_read_tensor, tensor=tensor)]
    for read in readers:
        try:
            reading = read(Source.of(start, source.name))
        except DataError as error:
            readings.append(error)
            continue
        if reading.size == count:
            return reading
        readings.append(reading)
    is_json = start.lstrip()[:1] in (b"[", b"{")
    chosen = readings[-1] if is_json else next((one for one in readings if not isinstance(one, DataError)), readings[0])
    if isinstance(chosen, DataError):
        raise chosen
    return chosen


def _read_text(source: Source, comma: str, slash: str) -> Array:
    return np.array(_read_values(decode_text(source.read(LONGEST), source.name), comma, source.name, slash))


def _read_digits(source: Source) -> Array:
    """Read a matrix of 0 and 1 whose rows have no blanks: 100 110 111."""
    rows = [row for row in SEPARATORS.split(re.sub("[,/]", " ", decode_text(source.read(LONGEST), source.name))) if row]
    is_matrix = len(rows) > 1 and len({len(row) for row in rows}) == 1 and len(rows[0]) > 1
    if not is_matrix or not {*"".join(rows)} <= {*"01"}:
        raise DataError("no rows of 0 and 1", source.name)
    return np.array([float(digit) for row in rows for digit in row])


def _read_tensor(source: Source, tensor: str) -> Array:
    with name_errors(source.name):
        records = list(formats.read(source, maps=True))
        if len(records) != 1:
            raise DataError(f"{len(records)} records (expected 1)")
        return np.asarray(records[0][tensor if tensor in records[0] else "x"], np.float64)


def _read_values(text: str, comma: str, name: str, slash: str = "/") -> list[float]:
    r"""The values of a text.

    comma, slash  what is in place of a comma between two digits, and of a slash between blanks

    >>> _read_values("array([[0.73, 0.27]], dtype=float32)", ", ", ""), _read_values("h_1 = 1/√4, h_2 = −√2", ".", "")
    ([0.73, 0.27], [0.5, -1.4142135623730951])
    >>> _read_values("1 2 / 1 4", ", ", "", " "), _read_values(r"$\frac{3}{4}$ and sqrt(9) (rounded)", ", ", "")
    ([1.0, 2.0, 1.0, 4.0], [0.75, 3.0])
    """
    text = " ".join(text.translate(MINUSES).replace("**", "^").split())
    for pattern, plain in LATEX:
        text = pattern.sub(plain, text)
    text = re.sub(r"(?<=\d),(?=\d)", comma, text)
    text = CALL.sub(lambda call: call[0].replace(" ", "").translate(IN_BRACKETS), NOT_NUMBERS.sub(" ", text))
    text = REMARK.sub("", re.sub(r" ?\bper ?cent\b", "%", text, flags=re.IGNORECASE)).replace(",", " ")
    text = re.sub(" ?/ ?", "/", re.sub(" +%", "%", text.replace(" / ", slash)))
    words = _without_units([word for word in SEPARATORS.split(text) if word])
    if not words:
        raise DataError("no numbers", name)
    return [_read_value(word, name) for word in words]


def _without_units(words: list[str]) -> list[str]:
    """The words without units after numbers, and without "and" before the next.

    >>> _without_units("0.5 nats and 0.25 nats".split()), _without_units("about 0.5".split())
    (['0.5', '0.25'], ['about', '0.5'])
    """
    kept: list[str] = []
    is_behind_number = False
    for word in words:
        is_word = bool(UNIT.fullmatch(word))
        if is_word and kept and (is_behind_number or word.lower() == "and"):
            is_behind_number = False
            continue
        kept.append(word)
        is_behind_number = not is_word
    return kept


def _read_value(word: str, name: str) -> float:
    """The value of a number, a fraction or a percentage.

    >>> [_read_value(word, "") for word in ("-3/4", "50%", "2√4", "True", "1e-3", "e^0", "1/ln⟨e^1⟩")]
    [-0.75, 0.5, 4.0, 1.0, 0.001, 1.0, 1.0]
    """
    value = _value_of(word)
    if value is None:
        raise DataError(f"{word[:40].translate(IN_PARENTHESES)!r} is not a number", name)
    return value


def _value_of(word: str) -> float | None:
    parts = VALUE.fullmatch(word)
    top, bottom = (_read_term(parts[part] or "1") for part in ("top", "bottom")) if parts else (None, None)
    if parts is None or top is None or not bottom:
        return None
    return (-1 if parts["sign"] == "-" else 1) * top / bottom / (100 if parts["percent"] else 1)


def _read_term(text: str) -> float | None:
    if (value := WORDS.get(text.lower())) is not None:
        return value
    term = TERM.fullmatch(text)
    if term is None or term["number"]:
        return float(term["number"]) if term else None
    argument = _value_of(term["inner"] or term["argument"])
    if argument is None:
        return None
    try:
        return float(term["factor"] or 1) * FUNCTIONS[term["function"].lower()](argument)
    except (ValueError, OverflowError):  # ln 0, e^1000
        return None
