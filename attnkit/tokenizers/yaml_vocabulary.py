"""YAML vocabularies: the subset of YAML that Marian writes, one `token: id` a line.

A YAML library would read tokens such as `no`, `1.5` or `null` as other values, and accept duplicates.
"""

import re
import sys

from attnkit.errors import DataError

WORD = r"""(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^']|'')*)'|(?P<plain>[^\s"'].*?))"""
LINE = re.compile(WORD + r"\s*:\s+([0-9]{1,18})")
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")
ESCAPED = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b", "0": "\0",
    "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029", " ": " ", "/": "/", '"': '"', "\\": "\\",
}  # fmt: skip


def parse_yaml_vocabulary(text: str, name: str) -> dict[str, int]:
    r"""Parse the `token: id` lines of a YAML vocabulary; tokens may be quoted. DataError names the line.

    >>> parse_yaml_vocabulary("the: 0\n'it''s': 1\n\"\\x41\\\"\": 2\n", "vocab.yml")
    {'the': 0, "it's": 1, 'A"': 2}
    """
    ids: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.strip() == "---":
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise DataError(f"line {number} is not `token: id`: {line.strip()[:40]!r}", name)
        double, single, plain, id = match.groups()
        try:
            token = (
                plain if plain is not None else single.replace("''", "'") if double is None else unescape_yaml(double)
            )
        except ValueError as error:
            raise DataError(f"line {number}: {error}", name) from None
        if token in ids:
            raise DataError(f"line {number}: token {token[:40]!r} occurs twice", name)
        ids[token] = int(id)
    return ids


def unescape_yaml(text: str) -> str:
    r"""Replace the escapes of a double-quoted YAML string; ValueError names one that is no character.

    >>> unescape_yaml(r"caf\xe9\n")
    'café\n'
    """

    def character(match: re.Match[str]) -> str:
        code = int(match[1] or match[2] or match[3] or "0", 16)
        if code > sys.maxunicode or 0xD800 <= code < 0xE000 or (match[4] and match[4] not in ESCAPED):
            raise ValueError(f"escape {match[0]} is no character")
        return ESCAPED[match[4]] if match[4] else chr(code)

    return ESCAPE.sub(character, text)
