"""A strict streaming JSON parser (RFC 8259): it reads from a pipe no more than it needs."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from attnkit.errors import DataError

DEPTH_LIMIT = 64
KEY_LIMIT = 100_000
SIZE_LIMIT = 1 << 32  # bytes of one document

SPACE = re.compile(rb"[ \t\r\n]*")
WORD = re.compile(rb"[-+.\w]*")
NUMBER = re.compile(rb"(-?(?:0|[1-9][0-9]*))((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
STRING_BODY = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrtu])*+')
STRING_LIST = re.compile(rb'\[(?:"(?:[^"\\\x00-\x1f]++|\\.)*+"|[, \t\r\n]++)*+\]')
LITERALS = {b"true": True, b"false": False, b"null": None}
NON_FINITE = (b"NaN", b"Infinity", b"-Infinity", b"+Infinity", b"nan", b"inf", b"-inf")


class JSONParser:
    """A parser of the JSON values at the front of a text.

    more  returns the next piece of the text, empty at its end; called only when the text read so far is used up

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
        """Return the name of a position in an error."""
        line, column = self._place(at)
        return f"line {line} column {column}"

    def error_at(self, problem: str, at: int | None = None) -> DataError:
        """Return an error at a position; the current one where None."""
        return DataError(f"{self.where(self.at if at is None else at)}: {problem}")

    def unexpected(self, expected: str) -> DataError:
        """Return the error for a character that cannot be here."""
        rest = self.text[self.at : self.at + 4].decode("utf-8", "replace")
        character = repr(rest[0]) if rest else "end of input"
        return self.error_at(f"unexpected {character}, expected {expected}")

    def grow(self) -> bool:
        """Append the next piece of the text; return False at its end."""
        piece = self._more()
        self.text += piece
        if len(self.text) > SIZE_LIMIT:
            raise self.error_at("the document is larger than 4 GB")
        return bool(piece)

    def discard_parsed(self) -> None:
        """Drop the text that has been parsed, so that a stream of any length fits in memory."""
        self._line, self._column = self._place(self.at)
        del self.text[: self.at]
        self.at = 0

    def next(self) -> str:
        """Return the first character that is not a space, without consuming it; "" at the end."""
        while True:
            if self.at < len(self.text) and self.text[self.at] > 0x20:
                return chr(self.text[self.at])
            spaces = SPACE.match(self.text, self.at)
            self.at = spaces.end() if spaces else self.at
            if self.at < len(self.text):
                return chr(self.text[self.at])
            if not self.grow():
                return ""

    def finish(self) -> None:
        """Raise DataError unless only spaces are left."""
        if self.next():
            raise self.unexpected("the end")

    def value(self) -> Any:
        """Return the next JSON value, as dict, list, str, int, float, bool or None."""
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
        """Yield each key of the next object; the caller parses its value before the next key."""
        keys: set[str] = set()
        for _ in self._enclosed("{", "}", "a key in double quotes or '}'"):
            at = self.at
            if self.next() != '"':
                raise self.unexpected("a key in double quotes")
            key = self.string()
            if key in keys:
                raise self.error_at(f'duplicate key "{key[:40]}"', at)
            if len(keys) == KEY_LIMIT:
                raise self.error_at(f"more than {KEY_LIMIT} keys in an object", at)
            keys.add(key)
            if self.next() != ":":
                raise self.unexpected("':'")
            self.at += 1
            self.next()
            yield key

    def items(self) -> Iterator[None]:
        """Yield once for each element of the next array; the caller parses it before the next one."""
        yield from self._enclosed("[", "]", "a value or ']'")

    def check_rest_of_list(self, start: int, depth: int) -> None:
        """Raise the first error after a bracket or comma in nested lists, `depth` brackets deep; else go back."""
        current, self.at = self.at, start
        at_opening = self.text[start - 1 : start] == b"["
        while depth:
            if at_opening and self.next() in ("]", ""):
                depth, at_opening = self._skip_closings(depth, "a value or ']'"), False
            elif at_opening := self.next() == "[":
                depth += 1
                if self._depth + depth > DEPTH_LIMIT:
                    raise self.error_at(f"nested deeper than {DEPTH_LIMIT}")
                self.at += 1
            else:
                self.value()
                depth = self._skip_closings(depth)
        self.at = current

    def _skip_closings(self, depth: int, expected: str = "',' or ']'") -> int:
        """Skip the closing brackets after a value and a comma; return the depth after them."""
        while depth and (separator := self.next()) != ",":
            if separator != "]":
                raise self.unexpected(expected)
            self.at += 1
            depth, expected = depth - 1, "',' or ']'"
        if depth:
            self.at += 1
            if self.next() == "]":
                raise self.error_at("trailing comma")
        return depth

    def string(self) -> str:
        """Return the next string."""
        import orjson

        start, end = self.at, self.at + 1
        while True:
            body = STRING_BODY.match(self.text, end)
            end = body.end() if body else end
            stop = self.text[end : end + 2]
            if stop and stop != b"\\":
                break
            if not self.grow():
                raise self.error_at("string without an end", start)
        if stop[:1] != b'"':
            raise self.error_at("bad escape" if stop[:1] == b"\\" else "control character in a string", end)
        raw = bytes(self.text[start : end + 1])
        self.at = end + 1
        try:
            return raw[1:-1].decode() if b"\\" not in raw else str(orjson.loads(raw))
        except UnicodeDecodeError as error:
            raise self.error_at("invalid UTF-8", start + 1 + error.start) from error
        except orjson.JSONDecodeError as error:
            raise self.error_at("bad escape or invalid UTF-8 in a string", start) from error

    def word(self) -> int | float | bool | None:
        """Return the next number, true, false or null."""
        token = self._token()
        if token in LITERALS:
            self.at += len(token)
            return LITERALS[token]
        if token in NON_FINITE:
            hint = 'write the string "NaN", "Infinity" or "-Infinity"'
            raise self.error_at(f"{token.decode()} is not JSON; {hint}")
        match = NUMBER.fullmatch(token)
        if not match:
            raise self._bad_word(token)
        number = float(token)
        if abs(number) == float("inf"):
            raise self.error_at(f"number {token[:40].decode()} is out of range")
        self.at += len(token)
        return number if match[2] else int(token)

    def _token(self) -> bytes:
        """Return the next letters, digits, signs and points."""
        while True:
            match = WORD.match(self.text, self.at)
            end = match.end() if match else self.at
            if end < len(self.text) or not self.grow():
                return bytes(self.text[self.at : end])

    def _bad_word(self, token: bytes) -> DataError:
        if not token:
            return self.unexpected("a value")
        word = token[:40].decode("utf-8", "replace")
        if token[:1] not in b"-+.0123456789":
            return self.error_at(f"{word} is not JSON")
        sign, point, digits = word.partition(".")
        is_short = point and sign in ("", "-") and digits.isdecimal()
        return self.error_at(f"bad number {word}" + (f"; write {sign}0.{digits}" if is_short else ""))

    def _string_list(self) -> list[Any] | None:
        """Return a list of strings, such as a vocabulary, parsed by orjson; None for any other list."""
        import orjson

        match = STRING_LIST.match(self.text, self.at)
        if not match or self._depth == DEPTH_LIMIT:
            return None
        try:
            strings: list[Any] = orjson.loads(match[0])
        except orjson.JSONDecodeError:
            return None  # parsed one by one it gives the position
        self.at = match.end()
        return strings

    def _enclosed(self, opening: str, closing: str, first: str) -> Iterator[None]:
        """Yield once for each element between brackets; consume the commas."""
        if self.next() != opening:
            raise self.unexpected(repr(opening))
        if self._depth == DEPTH_LIMIT:
            raise self.error_at(f"nested deeper than {DEPTH_LIMIT}")
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
                raise self.error_at("trailing comma")
        self.at += 1
        self._depth -= 1

    def _place(self, at: int) -> tuple[int, int]:
        """Return line and column, counted from 1 (CR LF and CR end lines too; columns count characters)."""
        text = self.text
        lines = text.count(b"\n", 0, at) + text.count(b"\r", 0, at) - text.count(b"\r\n", 0, at)
        start = max(text.rfind(b"\n", 0, at), text.rfind(b"\r", 0, at)) + 1
        column = len(text[start:at].decode("utf-8", "replace"))
        return self._line + lines, column + (1 if start else self._column)
