"""A strict JSON parser (RFC 8259) over bytes that may still be arriving; it asks for no more than needed."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from attnkit.errors import DataError

DEEPEST = 64
MOST_KEYS = 100_000
LONGEST = 1 << 32  # bytes of one document

SPACE = re.compile(rb"[ \t\r\n]*")
WORD = re.compile(rb"[-+.\w]*")
NUMBER = re.compile(rb"(-?(?:0|[1-9][0-9]*))((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
STRING_BODY = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrtu])*+')
STRING_LIST = re.compile(rb'\[(?:"(?:[^"\\\x00-\x1f]++|\\.)*+"|[, \t\r\n]++)*+\]')
LITERALS = {b"true": True, b"false": False, b"null": None}
NON_FINITE = (b"NaN", b"Infinity", b"-Infinity", b"+Infinity", b"nan", b"inf", b"-inf")


class JSONParser:
    """Reads JSON values off the front of a text.

    more  returns the next piece of the text, empty at its end; asked only when the text in hand is used up

    >>> JSONParser(text=b'{"a": [1, 2.5, true]}').value()
    {'a': [1, 2.5, True]}
    """

    def __init__(self, more: Callable[[], bytes | bytearray | memoryview] = bytes, text: bytes = b"") -> None:
        self.text = bytearray(text)
        self.at = 0
        self._more = more
        self._depth = 0
        self._line, self._column = 1, 1  # of text[0]

    def where(self, at: int) -> str:
        """How an error names a position."""
        line, column = self._place(at)
        return f"line {line} column {column}"

    def wrong(self, problem: str, at: int | None = None) -> DataError:
        """The error for what stands at a position (here, unless given)."""
        return DataError(f"{self.where(self.at if at is None else at)}: {problem}")

    def unexpected(self, expected: str) -> DataError:
        """The error for a character that does not belong here."""
        rest = self.text[self.at : self.at + 4].decode("utf-8", "replace")
        found = repr(rest[0]) if rest else "end of input"
        return self.wrong(f"unexpected {found}, expected {expected}")

    def grow(self) -> bool:
        """Appends the next piece of the text; False at its end."""
        piece = self._more()
        self.text += piece
        if len(self.text) > LONGEST:
            raise self.wrong("the document is larger than 4 GB")
        return bool(piece)

    def forget(self) -> None:
        """Drops what has been parsed, so that a stream of any length fits in memory."""
        self._line, self._column = self._place(self.at)
        del self.text[: self.at]
        self.at = 0

    def next(self) -> str:
        """The first character that is not a space, without consuming it; empty at the end."""
        while True:
            if self.at < len(self.text) and self.text[self.at] > 0x20:
                return chr(self.text[self.at])
            found = SPACE.match(self.text, self.at)
            self.at = found.end() if found else self.at
            if self.at < len(self.text):
                return chr(self.text[self.at])
            if not self.grow():
                return ""

    def finish(self) -> None:
        """Makes sure that nothing but spaces is left."""
        if self.next():
            raise self.unexpected("the end")

    def value(self) -> Any:
        """The JSON value at hand, as Python's dict, list, str, int, float, bool or None."""
        match self.next():
            case "{":
                return {key: self.value() for key in self.members()}
            case "[":
                strings = self._string_list()
                return [self.value() for _ in self.items()] if strings is None else strings
            case '"':
                return self.string()
            case _:
                return self.word()

    def members(self) -> Iterator[str]:
        """Each key of the object at hand; the caller parses its value before it asks for the next."""
        seen: set[str] = set()
        for _ in self._enclosed("{", "}", "a key in double quotes or '}'"):
            at = self.at
            if self.next() != '"':
                raise self.unexpected("a key in double quotes")
            key = self.string()
            if key in seen:
                raise self.wrong(f'duplicate key "{key[:40]}"', at)
            if len(seen) == MOST_KEYS:
                raise self.wrong(f"more than {MOST_KEYS} keys in an object", at)
            seen.add(key)
            if self.next() != ":":
                raise self.unexpected("':'")
            self.at += 1
            self.next()
            yield key

    def items(self) -> Iterator[None]:
        """Once for each element of the array at hand; the caller parses it before it asks for the next."""
        yield from self._enclosed("[", "]", "a value or ']'")

    def skim(self, start: int, depth: int) -> None:
        """Raise the first error from a position after a bracket or comma, that many brackets deep; else go back."""
        before, self.at = self.at, start
        at_opening = self.text[start - 1 : start] == b"["
        while depth:
            if at_opening and self.next() in ("]", ""):
                depth, at_opening = self._skim_closings(depth, "a value or ']'"), False
            elif at_opening := self.next() == "[":
                depth += 1
                if self._depth + depth > DEEPEST:
                    raise self.wrong(f"nested deeper than {DEEPEST}")
                self.at += 1
            else:
                self.value()
                depth = self._skim_closings(depth)
        self.at = before

    def _skim_closings(self, depth: int, expected: str = "',' or ']'") -> int:
        """Skip what follows a value, up to and with a comma; the depth after that."""
        while depth and (separator := self.next()) != ",":
            if separator != "]":
                raise self.unexpected(expected)
            self.at += 1
            depth, expected = depth - 1, "',' or ']'"
        if depth:
            self.at += 1
            if self.next() == "]":
                raise self.wrong("trailing comma")
        return depth

    def string(self) -> str:
        """The string at hand."""
        import orjson

        start, end = self.at, self.at + 1
        while True:
            body = STRING_BODY.match(self.text, end)
            end = body.end() if body else end
            stop = self.text[end : end + 2]
            if stop and stop != b"\\":
                break
            if not self.grow():
                raise self.wrong("string without an end", start)
        if stop[:1] != b'"':
            raise self.wrong("bad escape" if stop[:1] == b"\\" else "control character in a string", end)
        raw = bytes(self.text[start : end + 1])
        self.at = end + 1
        try:
            return raw[1:-1].decode() if b"\\" not in raw else str(orjson.loads(raw))
        except UnicodeDecodeError as error:
            raise self.wrong("invalid UTF-8", start + 1 + error.start) from error
        except orjson.JSONDecodeError as error:
            raise self.wrong("bad escape or invalid UTF-8 in a string", start) from error

    def word(self) -> int | float | bool | None:
        """The number, true, false or null at hand."""
        token = self._token()
        if token in LITERALS:
            self.at += len(token)
            return LITERALS[token]
        if token in NON_FINITE:
            hint = 'write the string "NaN", "Infinity" or "-Infinity"'
            raise self.wrong(f"{token.decode()} is not JSON; {hint}")
        found = NUMBER.fullmatch(token)
        if not found:
            raise self._bad_word(token)
        number = float(token)
        if abs(number) == float("inf"):
            raise self.wrong(f"number {token[:40].decode()} is out of range")
        self.at += len(token)
        return number if found[2] else int(token)

    def _token(self) -> bytes:
        """The letters, digits, signs and points at hand, up to what ends them."""
        while True:
            found = WORD.match(self.text, self.at)
            end = found.end() if found else self.at
            if end < len(self.text) or not self.grow():
                return bytes(self.text[self.at : end])

    def _bad_word(self, token: bytes) -> DataError:
        if not token:
            return self.unexpected("a value")
        shown = token[:40].decode("utf-8", "replace")
        return self.wrong(f"bad number {shown}" if token[:1] in b"-+.0123456789" else f"{shown} is not JSON")

    def _string_list(self) -> list[Any] | None:
        """A list of nothing but strings, such as a vocabulary, at the speed of C; None for any other."""
        import orjson

        found = STRING_LIST.match(self.text, self.at)
        if not found or self._depth == DEEPEST:
            return None
        try:
            strings: list[Any] = orjson.loads(found[0])
        except orjson.JSONDecodeError:
            return None  # the slow way says where
        self.at = found.end()
        return strings

    def _enclosed(self, opening: str, closing: str, first: str) -> Iterator[None]:
        """Once for each element between brackets, the commas consumed."""
        if self.next() != opening:
            raise self.unexpected(repr(opening))
        if self._depth == DEEPEST:
            raise self.wrong(f"nested deeper than {DEEPEST}")
        self.at += 1
        self._depth += 1
        separator = self.next()
        if not separator:
            raise self.unexpected(first)
        while separator != closing:
            yield
            separator = self.next()
            if separator not in (",", closing) or not separator:
                raise self.unexpected(f"',' or {closing!r}")
            self.at += separator == ","
            if separator == "," and self.next() == closing:
                raise self.wrong("trailing comma")
        self.at += 1
        self._depth -= 1

    def _place(self, at: int) -> tuple[int, int]:
        """Line and column, counted from 1 (CR LF and CR end lines too; columns count characters)."""
        text = self.text
        lines = text.count(b"\n", 0, at) + text.count(b"\r", 0, at) - text.count(b"\r\n", 0, at)
        start = max(text.rfind(b"\n", 0, at), text.rfind(b"\r", 0, at)) + 1
        column = len(text[start:at].decode("utf-8", "replace"))
        return self._line + lines, column + (1 if start else self._column)
