"""JSON text: parsed by orjson, and read from a stream document by document."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from attnkit.errors import DataError
from attnkit.formats.dtypes import LARGEST_EMPTY

DEPTH_LIMIT = 64  # dimensions of an array; an object may have three levels around it
KEY_LIMIT = 100_000  # keys of one object
SIZE_LIMIT = 1 << 32  # bytes of one document
SHORT_LINE = 1 << 16  # bytes of a line that is parsed to see whether it is one document

SPACES = re.compile(rb"[ \t\r\n]*")
WORD = re.compile(rb"[-+.\w]*")
KEYS = re.compile(rb'"(?:[^"\\]++|\\.)*+"(\s*+:)?', re.DOTALL)  # every string, and whether it is a key
STRING_BODY = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
PLAIN = re.compile(rb'(?:[^"\[\]{}]++|\[[^"\[\]{}]*+\])*+')  # what changes no depth: numbers, and lists of them
DELIMITER = re.compile(rb'["\[\]{}]')
FIRST_WORD, LAST_WORD = re.compile(r"[-+.\w]*"), re.compile(r"[-+.\w]*\Z")
NON_FINITE = re.compile(r"[-+]?(?:NaN|Infinity|nan|inf)")
SHORT_NUMBER = re.compile(r"(-?)\.([0-9]+)")
WORDING = (("end of data", "end of input"), ("a JSON value", "a value"), ("a string key", "a key in double quotes"))


def parse_json(text: bytes, place: tuple[int, int] = (1, 1)) -> Any:
    """Parse one JSON value, in which no key occurs twice.

    place  the line and the column at which the text begins

    >>> parse_json(b'{"a": [1, 2.5, true]}')
    {'a': [1, 2.5, True]}
    >>> parse_json(b"[1,\\n 2,]")
    Traceback (most recent call last):
    attnkit.errors.DataError: line 2 column 3: trailing comma is not allowed
    """
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("Not enough memory"):
            raise MemoryError from None
        raise DataError(describe_syntax_error(text, error, place)) from None
    return check_keys_once(text, value)


def check_keys_once(text: bytes, value: Any) -> Any:
    """A value parsed from a text; DataError if a key occurs twice in an object."""
    if sum(map(bool, KEYS.findall(text))) != count_keys(value):
        json.loads(text, object_pairs_hook=refuse_repeated_key)
    return value


def dumps(value: object) -> bytes:
    """Compact JSON. DataError for text that is not Unicode.

    >>> dumps({"token": ["a"]})
    b'{"token":["a"]}'
    """
    import orjson

    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise DataError(f"labels or history cannot be written: {error}") from error


def describe_syntax_error(text: bytes, error: json.JSONDecodeError, place: tuple[int, int]) -> str:
    """The place and the message of an error of orjson, with what to write instead."""
    try:
        document = text.decode()
    except UnicodeDecodeError as invalid:
        return f"{line_and_column(text[: invalid.start], place)}: invalid UTF-8"
    at, problem = error.pos, error.msg
    start = at - len(LAST_WORD.search(document, 0, at)[0])  # type: ignore[index]  # it matches ""
    word = FIRST_WORD.match(document, start)[0][:40]  # type: ignore[index]
    is_of_word = problem.startswith(("no digit", "number")) or (
        start < at < start + len(word) and problem.startswith(("unexpected character", "unexpected content"))
    )
    if word and (is_of_word or "expected a JSON value" in problem):
        at, problem = start, describe_bad_word(word, problem)
    elif problem.startswith("unexpected character"):
        problem = problem.replace("unexpected character", f"unexpected {document[at : at + 1]!r}")
    for theirs, ours in WORDING:
        problem = problem.replace(theirs, ours)
    return f"{line_and_column(document[:at].encode(), place)}: {problem}"


def describe_bad_word(word: str, problem: str) -> str:
    """What is wrong with a word that is neither a number nor true, false or null."""
    if NON_FINITE.fullmatch(word):
        return f'{word} is not JSON; write the string "NaN", "Infinity" or "-Infinity"'
    if word[0] not in "-+.0123456789":
        return f"{word} is not JSON"
    if "infinity" in problem:
        return f"number {word} is out of range"
    short = SHORT_NUMBER.fullmatch(word)
    return f"bad number {word}" + (f"; write {short[1]}0.{short[2]}" if short else "")


def line_and_column(before: bytes, place: tuple[int, int] = (1, 1)) -> str:
    line, column = advance(before, place)
    return f"line {line} column {column}"


def advance(text: bytes, place: tuple[int, int]) -> tuple[int, int]:
    """The line and the column after a text. Columns count characters."""
    returns = text.count(b"\r")
    lines = text.count(b"\n") + returns - (text.count(b"\r\n") if returns else 0)
    start = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    column = len(text[start:].decode("utf-8", "replace"))
    return place[0] + lines, column + (1 if start else place[1])


def count_keys(value: Any) -> int:
    """The number of keys of the objects in a value, except in nested lists."""
    if isinstance(value, dict):
        if len(value) > KEY_LIMIT:
            raise DataError(f"more than {KEY_LIMIT} keys in an object")
        return len(value) + sum(map(count_keys, value.values()))
    return sum(map(count_keys, value)) if isinstance(value, list) and value and isinstance(value[0], dict) else 0


def refuse_repeated_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise DataError(f'duplicate key "{next(key for key in keys if keys.count(key) > 1)[:40]}"')
    return found


class Document(NamedTuple):
    """One document of a stream: its text, line, column, and value if parsed."""

    text: bytes
    place: tuple[int, int]
    value: Any = None

    def parse(self) -> Any:
        """The value; DataError as of `parse_json`."""
        return parse_json(self.text, self.place) if self.value is None else check_keys_once(self.text, self.value)


class Documents:
    """The JSON documents of a stream, each as soon as its last byte has arrived.

    more   returns the next piece of the text, empty at its end; called only when the text so far is used up
    place  the line and the column of the next document

    >>> from functools import partial
    >>> [document.text for document in Documents(partial(next, iter([b"[1, 2][3", b"] 4"]), b""))]
    [b'[1, 2]', b'[3]', b'4']
    """

    def __init__(self, more: Callable[[], bytes | bytearray | memoryview]) -> None:
        self._more, self._text = more, bytearray()
        self.place, self._empty_lists = (1, 1), 0

    def __iter__(self) -> Iterator[Document]:
        self._skip_byte_order_mark()
        while self._skip_spaces():
            document = self._find_line() or self._find_document()
            self._drop(len(document.text))
            self._empty_lists = 0
            yield document

    def _grow(self) -> bool:
        piece = self._more()
        self._text += piece
        self._empty_lists += bytes(piece).count(b"[]")
        if self._empty_lists > LARGEST_EMPTY:
            raise DataError(f"more than {LARGEST_EMPTY} empty lists")
        if len(self._text) > SIZE_LIMIT:
            raise DataError(f"{line_and_column(b'', self.place)}: the document is larger than 4 GB")
        return bool(piece)

    def _drop(self, count: int) -> None:
        self.place = advance(bytes(memoryview(self._text)[:count]), self.place)
        del self._text[:count]

    def _skip_byte_order_mark(self) -> None:
        mark = b"\xef\xbb\xbf"
        while len(self._text) < 3 and mark.startswith(self._text) and self._grow():
            pass
        if self._text.startswith(mark):
            del self._text[:3]

    def _skip_spaces(self) -> bool:
        """Drop the spaces at the front. False at the end of the stream."""
        while True:
            if spaces := SPACES.match(self._text):
                if spaces[0] == self._text and spaces[0].endswith(b"\r") and self._grow():
                    continue  # a line may end in \r\n, which counts once
                self._drop(spaces.end())
            if self._text:
                return True
            if not self._grow():
                return False

    def _find_document(self) -> Document:
        """The document at the front, whose end is searched for."""
        end = self._find_end()
        return Document(bytes(memoryview(self._text)[:end]), self.place)

    def _find_end(self) -> int:
        """The end of the document at the front: of its bracket, word or string."""
        first = bytes(self._text[:1])
        if first not in (b"[", b"{", b'"'):
            while (end := self._match(WORD, 0)) == len(self._text) and self._grow():
                pass
            return end or 1
        at, depth, limit = 0, 0, DEPTH_LIMIT + (3 if first == b"{" else 0)
        while True:
            at = self._match(PLAIN, at) if 0 < depth < limit else at
            match = DELIMITER.search(self._text, at)
            if match is None:
                if not self._grow():
                    return len(self._text)
                continue
            at, sign = match.end(), match[0]
            if sign == b'"':
                at = self._skip_string(at)
            else:
                depth += 1 if sign in b"[{" else -1
                if depth > limit:
                    place = line_and_column(bytes(memoryview(self._text)[: at - 1]), self.place)
                    raise DataError(f"{place}: nested deeper than {limit}")
            if depth <= 0:
                return at

    def _find_line(self) -> Document | None:
        """The document at the front if it is all of a short line, else None.

        A parser finds its end faster than a search for brackets. A line of more brackets than a document may be deep
        is left to that search.
        """
        import orjson

        line = bytes(self._text[: max(self._text.find(b"\n", 0, SHORT_LINE), 0)])
        if line[:1] not in (b"[", b"{", b'"') or line.count(b"[") + line.count(b"{") > DEPTH_LIMIT:
            return None
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            return None
        return Document(line.rstrip(), self.place, value)

    def _skip_string(self, at: int) -> int:
        while True:
            at = self._match(STRING_BODY, at)
            if self._text[at : at + 1] == b'"':
                return at + 1
            if not self._grow():
                return len(self._text)

    def _match(self, pattern: re.Pattern[bytes], at: int) -> int:
        match = pattern.match(self._text, at)
        return match.end() if match else at
