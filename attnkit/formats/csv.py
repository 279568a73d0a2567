"""CSV, TSV and numbers separated by blanks: one table as one tensor.

The first line gives the separator: a tab where it has one, else a comma or a semicolon, else blanks. Beside semicolons,
commas in numbers are decimal points, as spreadsheets write them in much of Europe. Words in it are labels of the
columns, words in the first column labels of the rows. A first column that only counts the rows is left out where its
heading is empty or the name of an axis; a row for each element, with its indices, is a tensor of more dimensions.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError, counted
from attnkit.formats.memory import check_memory
from attnkit.formats.streams import Source, name_errors
from attnkit.records import Array, Labels, Record, Tensor, default_axes, is_axis_name

LONGEST_LINE = 1 << 26  # bytes of a row
BLOCK = 1 << 16  # fields that are converted at a time
HEAD_LINES, LONGEST_HEADING = 3, 1 << 22  # lines and bytes that tell a table from JSON and from prose
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SEPARATORS = {b"\t": "tabs", b",": "commas", b";": "semicolons", b" ": "blanks"}
DECIMAL_COMMA = re.compile(rb"(?<=[0-9]),(?=[0-9])")
COMMA_NUMBER = re.compile(rb"[-+]?[0-9]*,[0-9]+(?:[eE][-+]?[0-9]+)?")
KINDS = {
    "bool": rb"(?i:true|false)",
    "int64": rb"[-+]?[0-9]++",
    "float64": rb"[-+]?(?:(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?|(?i:nan|inf(?:inity)?))",
}
ONE = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}
ALL = {kind: re.compile(b"%b(?:\0%b)*+" % (pattern, pattern)) for kind, pattern in KINDS.items()}
OTHER_NUMBER = re.compile(rb"[-+.0-9eE]+(?:[;,][-+.0-9eE]+)+")  # with decimal commas between tabs or blanks
DECIMAL_HINT = " (expected a decimal point); tr , . < FILE replaces decimal commas"
FIELD = {mark: re.compile(rb' *+("(?:[^"]++|"")*+" *+|[^%b"]*+)' % mark) for mark in SEPARATORS}


class Row(NamedTuple):
    """A row: its text without the line end, its first line, its separator."""

    text: bytes
    number: int
    mark: bytes = b","

    def fields(self) -> list[bytes]:
        r"""The fields of a row without blanks and quotes (RFC 4180).

        >>> Row(b'"a, b", 1', 1).fields(), Row(b"  1  2 ", 1, b" ").fields()
        ([b'a, b', b'1'], [b'1', b'2'])
        """
        pieces = self._texts()
        if self.mark != b";" or b"," not in self.text:
            return pieces
        return [piece.replace(b",", b".") if COMMA_NUMBER.fullmatch(piece) else piece for piece in pieces]

    def _texts(self) -> list[bytes]:
        if b'"' in self.text:
            pieces = [piece.strip(b" ") for _, piece in self._pieces()]
            return [one[1:-1].replace(b'""', b'"') if one.startswith(b'"') else one for one in pieces]
        if self.mark == b" ":
            return [piece for piece in self.text.split(b" ") if piece]
        pieces = self.text.split(self.mark)
        return [piece.strip(b" ") for piece in pieces] if b" " in self.text else pieces

    def error(self, problem: str, field: int = 0) -> DataError:
        """An error at the start of a field."""
        at = [start for start, _ in self._pieces()][field]
        return self.error_at(problem, at)

    def error_at(self, problem: str, at: int) -> DataError:
        return DataError(f"line {self.number} column {len(self.text[:at].decode('utf-8', 'replace')) + 1}: {problem}")

    def _pieces(self) -> list[tuple[int, bytes]]:
        """The start and the text of each field. DataError for a stray quote."""
        at, pieces, end = 0, list[tuple[int, bytes]](), len(self.text.rstrip(b" " if self.mark == b" " else b""))
        while True:
            match = FIELD[self.mark].match(self.text, at, end)
            start, stop = match.span(1) if match else (at, at)
            pieces.append((start, self.text[start:stop]))
            at = stop
            if at >= end:
                return pieces
            if self.text[at : at + 1] == self.mark:
                at += 1
            elif self.mark != b" " or stop == start or self.text[at - 1 : at] != b" ":
                raise self.error_at("a quote inside a field (double it, and put the whole field in quotes)", at)


def is_number(text: bytes) -> bool:
    """Whether a field is a number, or true or false.

    >>> [is_number(text) for text in (b"-1.5e3", b".5", b"NaN", b"true", b"1_0", b"cat", b"")]
    [True, True, True, True, False, False, False]
    """
    return any(pattern.fullmatch(text) for pattern in ONE.values())


def _is_word(text: bytes) -> bool:
    return bool(text) and not is_number(text)


def _is_axis(text: bytes) -> bool:
    return is_axis_name(text.decode("utf-8", "replace"))


def find_separator(line: bytes) -> bytes:
    r"""The separator of a line: a tab, else a comma or a semicolon, else blanks.

    Between numbers with decimal commas it is the blanks.

    >>> find_separator(b'"a\tb",1'), find_separator(b"1,5;2,25"), find_separator(b"1 2")
    (b',', b';', b' ')
    >>> find_separator(b"1,5 2"), find_separator(b"1,5, 2"), find_separator(b"layer 1,5")
    (b' ', b',', b',')
    """
    words = line.split(b" ") if b"," in line else []
    numbers = [word for word in words if word]
    if len(numbers) > 1 and all(ONE["float64"].fullmatch(one) or COMMA_NUMBER.fullmatch(one) for one in numbers):
        return b" "
    bare = re.sub(rb'"[^"]*+"?', b"", line)
    if b";" in bare and b"\t" not in bare and b"," not in DECIMAL_COMMA.sub(b"", bare):
        return b";"
    return next((mark for mark in (b"\t", b",") if mark in bare), b" ")


def is_table(source: Source) -> bool:
    r"""Whether a text is a table of numbers, by its first three lines.

    A single number is JSON, and so are numbers on lines of their own.

    >>> [is_table(Source.of(text)) for text in (b"1 2 3", b"3.5\n1\n", b"a,b\n1,2", b"The cat\nsat", b"token,0,1\n")]
    [True, False, True, False, True]
    """
    first = source.peek_lines(1, LONGEST_HEADING).removeprefix(BYTE_ORDER_MARK).partition(b"\n")[0].removesuffix(b"\r")
    mark = find_separator(first)
    if first.count(b'"') % 2:
        return mark != b" "  # a label of several lines
    try:
        top = Row(first, 1, mark).fields()
    except DataError:
        return mark != b" "
    for at, text in enumerate(top):
        if OTHER_NUMBER.fullmatch(text):
            raise Row(first, 1, mark).error(f"{_quote(text)} is not a number{DECIMAL_HINT}", at)
    if not any(map(_is_word, top)):
        return len(top) > 1
    if top[0].startswith((b"[", b"{")):  # of JSON
        return False
    return (len(top) > 1 and all(map(is_number, top[1:]))) or _has_row(source, mark, top)


def _has_row(source: Source, mark: bytes, top: Sequence[bytes]) -> bool:
    """Whether a row of numbers follows a heading that does not begin with an axis."""
    head = source.peek_lines(HEAD_LINES, LONGEST_HEADING).split(b"\n")
    second, third, *_ = [*(line.removesuffix(b"\r") for line in head[1:]), b"", b""]
    if not second:
        return _is_axis(top[0]) and len(top) > 1
    try:
        row = Row(second, 2, mark).fields()
    except DataError:
        return mark != b" "
    is_ruled = third.lstrip().startswith((b"---", "───".encode()))  # a table for people
    if is_ruled or len(row) < min(len(top), 2):
        return False
    if mark != b" ":
        return any(map(is_number, row))
    return len(top) == len(row) and all(map(is_number, row[1:] or row))


def read(source: Source) -> Iterator[Record]:
    r"""Yield the one record of a table.

    >>> [record] = read(Source.of(b"word,a,b\nThe,1,2\ncat,3,4\n"))
    >>> record["x"].tolist(), record.labels
    ([[1, 2], [3, 4]], {'token': ['The', 'cat'], 'model': ['a', 'b']})
    >>> [record] = read(Source.of(b"1 0.5\n2 NaN\n"))
    >>> record["x"].tolist(), record.labels
    ([[1.0, 0.5], [2.0, nan]], {})
    """
    with name_errors(source.name):
        lines = _rows(source)
        first, second = next(lines), next(lines, None)
        rows = lines if second is None else chain([second], lines)
        top, row = first.fields(), second.fields() if second else []
        if not _is_heading(top, row):
            table = _read_matrix([], first, chain([first], rows), top)
        else:
            heads = [_decode(first, at, text) for at, text in enumerate(top)]
            axes = _element_axes(heads)
            if any(head in axes and field != b"0" for head, field in zip(heads, row, strict=False)):
                axes = []  # they are words
            table = _read_elements(heads, axes, first, rows) if axes else _read_matrix(heads, first, rows, row)
        yield table.check()


def _is_heading(top: Sequence[bytes], row: Sequence[bytes]) -> bool:
    is_stub_heading = not top[0] or _is_axis(top[0]) or (bool(row) and _is_word(top[0]) and not _is_word(row[0]))
    return is_stub_heading or not all(map(is_number, top[1:]))


def _element_axes(heads: Sequence[str]) -> list[str]:
    """The axes of the heading `head, query, query_label, value`; [] for a matrix."""
    axes: list[str] = []
    for head in heads[:-1]:
        if is_axis_name(head):
            axes.append(head)
        elif not axes or head != f"{axes[-1]}_label":
            return []
    return axes if len(axes) > 1 else []


def _physical_lines(source: Source) -> Iterator[Row]:
    """Yield each line as soon as it has arrived. DataError for a very long one."""
    number, parts, size = 1, list[bytes](), 0
    while chunk := source.read_available():
        start, *others = bytes(chunk).split(b"\n")
        parts.append(start)
        size += len(start)
        for piece in others:
            yield Row(b"".join(parts), number)
            number, parts, size = number + 1, [piece], len(piece)
        if size > LONGEST_LINE:
            raise DataError(f"line {number} column {LONGEST_LINE + 1}: the line is longer than 64 MB")
    if size:
        yield Row(b"".join(parts), number)


def _rows(source: Source) -> Iterator[Row]:
    lines, mark, empty = _physical_lines(source), b"", 0
    for line in lines:
        line = line._replace(text=line.text.removeprefix(BYTE_ORDER_MARK)) if line.number == 1 else line
        if b'"' in line.text and line.text.count(b'"') % 2:
            line = _join_quoted(line, lines)
        text = line.text.removesuffix(b"\r")
        if not text.strip(b" "):
            empty = empty or line.number
        elif empty:
            raise DataError(f"line {empty} column 1: an empty line between rows (a file holds one table)")
        else:
            mark = mark or find_separator(text)
            yield Row(text.replace(b"\t", b" ") if mark == b" " else text, line.number, mark)


def _join_quoted(line: Row, lines: Iterator[Row]) -> Row:
    parts, size = [line.text], len(line.text)
    for more in lines:
        parts.append(more.text)
        size += len(more.text)
        if more.text.count(b'"') % 2:
            return line._replace(text=b"\n".join(parts))
        if size > LONGEST_LINE:
            break
    raise line.error_at("the quote is not closed", line.text.rfind(b'"'))


def _decode(line: Row, field: int, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise line.error("invalid UTF-8", field) from None


class _Rows:
    """The rows of a table, read a block at a time.

    first    its first line, whose fields all other lines must have
    numbers  the columns of numbers, an array each part
    words    the columns of labels
    """

    def __init__(self, rows: Iterator[Row], first: Row, numbers: Sequence[slice], words: Sequence[int]) -> None:
        self._first, self._width = first, len(first.fields())
        self._blocks: list[list[Array]] = [[] for _ in numbers]
        self._numbers, self._words = numbers, words
        self.words: list[list[str]] = [[] for _ in words]
        self.has_quoted_word = False  # in the first column
        self.count = 0
        pending: list[tuple[Row, list[bytes]]] = []
        for line in rows:
            pending.append((line, line.fields()))
            if len(pending) * self._width >= BLOCK:
                self._add(pending)
                pending = []
        self._add(pending)

    def array(self, part: int) -> Array:
        """The numbers of a part, (rows, columns)."""
        blocks = self._blocks[part]
        if {block.dtype.name for block in blocks} == {"int64", "uint64"} and min(block.min() for block in blocks) >= 0:
            blocks = [block.astype("uint64") for block in blocks]
        whole = np.concatenate(blocks) if blocks else np.zeros(0)
        columns = len(range(self._width)[self._numbers[part]])
        return whole.reshape(self.count, columns)

    def _add(self, rows: Sequence[tuple[Row, list[bytes]]]) -> None:
        for line, fields in rows:
            if len(fields) != self._width:
                raise self._ragged_error(line, fields)
        for at, texts in zip(self._words, self.words, strict=True):
            texts += [_decode(line, at, fields[at]) for line, fields in rows]
        self.has_quoted_word |= any(line.text.startswith(b'"') for line, _ in rows)
        for part, blocks in zip(self._numbers, self._blocks, strict=True):
            if fields := [field for _, row in rows for field in row[part]]:
                blocks.append(self._convert(fields, rows, part))
                kinds = {block.dtype.kind == "b" for block in blocks}
                if len(kinds) > 1:
                    raise self._mixed_error(rows, part, blocks[0].dtype.kind == "b")
        self.count += len(rows)
        check_memory(3 * 8 * self.count * self._width, f"a table of {counted(self.count, 'row')}")

    def _convert(self, fields: list[bytes], rows: Sequence[tuple[Row, list[bytes]]], part: slice) -> Array:
        kind = _kind_of(fields)
        if not kind:
            raise self._word_error(rows, part)
        values = _to_array(fields, kind)
        for at in np.flatnonzero(np.isinf(values)).tolist() if kind != "bool" else ():
            if b"n" not in fields[at].lower():  # digits, not the word
                row, column = divmod(at, len(fields) // len(rows))
                problem = f"number {_quote(fields[at])} is out of range"
                raise rows[row][0].error(problem, range(self._width)[part][column])
        return values

    def _ragged_error(self, line: Row, fields: Sequence[bytes]) -> DataError:
        problem = f"{counted(len(fields), 'field')}, but line {self._first.number} has {self._width}"
        other = find_separator(line.text) if len(fields) == 1 else line.mark
        if other != line.mark and len(Row(line.text, 1, other).fields()) > 1:
            problem += f", separated by {SEPARATORS[line.mark]}, not {SEPARATORS[other]}"
        return line.error(problem, -1)

    def _word_error(self, rows: Sequence[tuple[Row, list[bytes]]], part: slice) -> DataError:
        """The error for the first field of a block that is no number, or of another kind."""
        for line, fields in rows:
            for at in range(self._width)[part]:
                if not is_number(fields[at]):
                    hint = DECIMAL_HINT if COMMA_NUMBER.fullmatch(fields[at]) else ""
                    problem = f"{_quote(fields[at])} is not a number{hint}"
                    return line.error(problem if fields[at] else "empty, expected a number", at)
        return self._mixed_error(rows, part, bool(ONE["bool"].fullmatch(rows[0][1][part][0])))

    def _mixed_error(self, rows: Sequence[tuple[Row, list[bytes]]], part: slice, is_bool: bool) -> DataError:
        """The error for the first boolean among numbers, or number among booleans."""
        places = ((line, at, fields[at]) for line, fields in rows for at in range(self._width)[part])
        line, at, text = next(place for place in places if bool(ONE["bool"].fullmatch(place[2])) != is_bool)
        return line.error(f"{_quote(text)} among {'true and false' if is_bool else 'numbers'}", at)


def _kind_of(fields: Sequence[bytes]) -> str:
    joined = b"\0".join(fields)
    kind = next((kind for kind, pattern in ALL.items() if pattern.fullmatch(joined)), "")
    return kind if joined.count(b"\0") == len(fields) - 1 else ""


def _to_array(fields: Sequence[bytes], kind: str) -> Array:
    """Fields as booleans, as 64-bit integers if all fit, otherwise as float64."""
    if kind == "bool":
        return np.array([field.lower() == b"true" for field in fields])
    if kind == "int64" and max(map(len, fields)) < 40:  # more digits than 64 bits hold
        whole = [*map(int, fields)]
        for name in ("int64", "uint64"):
            with contextlib.suppress(OverflowError):
                return np.array(whole, name)
    return np.array([*map(float, fields)])


def _quote(text: bytes) -> str:
    start = text[:40].decode("utf-8", "replace")
    return repr(start + "…" if len(text) > 40 else start)


def _counts(texts: Sequence[object]) -> bool:
    return bool(texts) and all(text == str(at) for at, text in enumerate(texts))


def _read_matrix(heads: Sequence[str], first: Row, rows: Iterator[Row], row: Sequence[bytes]) -> Record:
    """A matrix with its labels, or a vector or number as attnkit writes them.

    row  the fields of the first row of numbers
    """
    may_count = bool(heads) and (is_axis_name(heads[0]) or (len(heads) > 1 and (not heads[0] or _counts(heads[1:]))))
    has_stub = may_count or (len(row) > 1 and _is_word(row[0]))
    table = _Rows(rows, first, [slice(int(has_stub), None)], [0] if has_stub else [])
    x, stubs = table.array(0), table.words[0] if has_stub else []
    if not has_stub and not len(x):
        raise first.error("no rows of numbers below the heading")
    texts = [stub.encode() for stub in stubs]
    kind = _kind_of(texts) if may_count and stubs and not table.has_quoted_word else ""
    if kind and not _counts(heads[1:]) and not _counts(stubs):  # the column is data
        x, has_stub, stubs = np.column_stack([_to_array(texts, kind), x]), False, []
    if not has_stub and len(heads) == 1 and x.shape == (1, 1):  # a single number below a single heading
        return _make_record(heads[0], x[0, 0], [], [])
    if not has_stub:
        return _make_record("x", x, ["token", "model"], [[], heads])
    axis, names = "token", heads[1:]
    if heads and is_axis_name(heads[0]):
        axis = heads[0]
        if len(names) == 1 and names != ["0"]:  # a vector
            return _make_record(names[0], x[:, 0], [axis], [stubs])
    columns = {"query": "key", "model": "axis1"}.get(axis, "model")
    return _make_record("x", x, [axis, columns], [stubs, names])


def _read_elements(heads: Sequence[str], axes: Sequence[str], first: Row, rows: Iterator[Row]) -> Record:
    """A tensor with an element in each row: its indices, labels and value."""
    places = [heads.index(axis) for axis in axes]
    labelled = [axis for axis, at in zip(axes, places, strict=True) if heads[at + 1] == f"{axis}_label"]
    parts = [*(slice(at, at + 1) for at in places), slice(len(heads) - 1, None)]
    table = _Rows(rows, first, parts, [heads.index(axis) + 1 for axis in labelled])
    indices = np.column_stack([table.array(part) for part in range(len(axes))])
    if not table.count or indices.dtype.kind not in "iu":
        raise first.error("no rows of indices and numbers below the heading")
    shape = tuple(int(size) + 1 for size in indices.max(axis=0))
    if math.prod(shape) != table.count or not np.array_equal(indices, np.argwhere(np.ones(shape, bool))):
        raise first.error(f"the indices of {', '.join(axes)} do not count every element in order")
    labels: list[Labels] = [
        _element_labels(table.words[labelled.index(axis)], axes, axis, shape) if axis in labelled else []
        for axis in axes
    ]
    return _make_record(heads[-1], table.array(len(axes)).reshape(shape), axes, labels)


def _element_labels(words: Sequence[str], axes: Sequence[str], axis: str, shape: Sequence[int]) -> Labels:
    """The labels of an axis from those of every element: one list, or one a batch row."""
    by_index: Array = np.moveaxis(np.array(words, object).reshape(shape), axes.index(axis), -1)
    if "batch" in axes and axis != "batch":
        batch = [name for name in axes if name != axis].index("batch")
        rows = [row.reshape(-1, row.shape[-1])[0].tolist() for row in np.moveaxis(by_index, batch, 0)]
        return rows[0] if all(row == rows[0] for row in rows) else rows
    first: list[str] = by_index.reshape(-1, by_index.shape[-1])[0].tolist()
    return first


def _make_record(name: str, array: Array, axes: Sequence[str], labels: Sequence[Sequence[str] | Labels]) -> Record:
    named = {axis: [*one] for axis, one in zip(axes, labels, strict=True) if one and not _counts(one)}
    is_default = not named and tuple(axes) == default_axes(np.ndim(array))
    array = np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array)
    return Record({name: Tensor(array, None if is_default else tuple(axes))}, named)
