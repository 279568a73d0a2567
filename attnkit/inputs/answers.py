"""The numbers of an answer to an exercise, in whatever form they are written."""

import math
import re
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
    r"\b(?:dtype|device|grad_fn|requires_grad|shape|size|layout)\s*=\s*(?:<[^>]*>|'[^']*'|[\w.:]+)"  # of an array
    r"|\b(?:[^\W\d]\w*\.)*(?:array|tensor|Tensor|Array|matrix|(?:float|int|bool)_?\d*)(?=\()"
    r"|[^\W\d]\w*(?:\([^()]*\))?\s*[=:≈]"  # the name of a number: h_1 =, p(cat) =
    r"|[=≈\"'`]|-{2,}|[─│┼]+"
)
SEPARATORS = re.compile(r"[\s()\[\]{};|&\\]+")
DECIMAL = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
TERM = re.compile(rf"(?P<factor>{DECIMAL})?√(?P<root>{DECIMAL})|(?P<number>{DECIMAL})")
VALUE = re.compile(r"(?P<sign>[+-]?)(?P<top>[^/%]+)(?:/(?P<bottom>[^/%]+))?(?P<percent>%?)")
WORDS = {"true": 1.0, "false": 0.0, "nan": math.nan, "inf": math.inf, "infinity": math.inf, "∞": math.inf}


def read_answer(source: Source, tensor: str, count: int) -> Array:
    """Read the numbers of an answer: a tensor file, or numbers of a text in any layout.

    A text may have fractions, roots, percentages, decimal commas, true and false, brackets, and what print shows of an
    array. Whether a comma is a decimal mark, the count shows.

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
    for read in (_read_commas, _read_decimal_commas, partial(_read_tensor, tensor=tensor)):
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


def _read_commas(source: Source) -> Array:
    return np.array(_read_values(decode_text(source.read(LONGEST), source.name), ", ", source.name))


def _read_decimal_commas(source: Source) -> Array:
    return np.array(_read_values(decode_text(source.read(LONGEST), source.name), ".", source.name))


def _read_tensor(source: Source, tensor: str) -> Array:
    with name_errors(source.name):
        records = list(formats.read(source, maps=True))
        if len(records) != 1:
            raise DataError(f"{len(records)} records (expected 1)")
        return np.asarray(records[0][tensor if tensor in records[0] else "x"], np.float64)


def _read_values(text: str, comma: str, name: str) -> list[float]:
    """The values of a text, with this in place of a comma between two digits.

    >>> _read_values("array([[0.73, 0.27]], dtype=float32)", ", ", ""), _read_values("h_1 = 1/√4, h_2 = −√2", ".", "")
    ([0.73, 0.27], [0.5, -1.4142135623730951])
    """
    text = re.sub(r"(?<=\d),(?=\d)", comma, text.translate(MINUSES)).replace(",", " ")
    text = re.sub(r"\s*/\s*", "/", re.sub(r"\s+%", "%", NOT_NUMBERS.sub(" ", text)))
    words = [word for word in SEPARATORS.split(text) if word]
    if not words:
        raise DataError("no numbers", name)
    return [_read_value(word, name) for word in words]


def _read_value(word: str, name: str) -> float:
    """The value of a number, a fraction or a percentage.

    >>> [_read_value(word, "") for word in ("-3/4", "50%", "2√4", "True", "1e-3")]
    [-0.75, 0.5, 4.0, 1.0, 0.001]
    """
    parts = VALUE.fullmatch(word)
    top, bottom = (_read_term(parts[part] or "1") for part in ("top", "bottom")) if parts else (None, None)
    if parts is None or top is None or not bottom:
        raise DataError(f"{word[:40]!r} is not a number", name)
    return (-1 if parts["sign"] == "-" else 1) * top / bottom / (100 if parts["percent"] else 1)


def _read_term(text: str) -> float | None:
    if (value := WORDS.get(text.lower())) is not None:
        return value
    term = TERM.fullmatch(text)
    if term is None:
        return None
    return float(term["number"]) if term["number"] else float(term["factor"] or 1) * math.sqrt(float(term["root"]))
