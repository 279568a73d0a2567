"""What can go wrong, and the exit code each kind of it ends the process with."""

from collections.abc import Iterable

HEAD, TAIL = 280, 120  # bytes of a long message that are kept at its start and at its end


class AttnkitError(Exception):
    """A failure that the user is told in one line: `name: problem`.

    `name` is the file or flag at fault, as the user wrote it; "" where no single one is.
    """

    exit_code = 70
    place = ""  # the command at work, as `attnkit attend`

    def __init__(self, problem: str, name: str = "") -> None:
        super().__init__(shortened(f"{name}: {problem}" if name else problem))
        self.problem = problem
        self.name = name


class UsageError(AttnkitError):
    """The command line asks for something impossible: unknown flag, bad value, missing operand."""

    exit_code = 2


class DataError(AttnkitError):
    """The data are bad: parse, dtype, shape, range, a limit exceeded."""

    exit_code = 3


class NotFiniteError(DataError):
    """Numbers from which nothing can be chosen: NaN or infinity."""


class DifferentError(DataError):
    """What was to be the same is not, as when a history is replayed."""

    exit_code = 1


class FileError(AttnkitError):
    """A file cannot be opened, read or written."""

    exit_code = 4


class AttnkitNote(UserWarning):
    """What a format does not keep of a result that is delivered as it was asked for."""


class AttnkitWarning(UserWarning):
    """Something the user should know of a result that is delivered all the same."""


def shortened(text: str) -> str:
    """A message of at most a few hundred bytes, however much input it quotes: its middle is left out.

    >>> shortened("no tensor 'x'"), len(shortened("x" * 70_000)) < 440
    ("no tensor 'x'", True)
    """
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= HEAD + TAIL + 50:
        return text
    head, tail = (part.decode("utf-8", "ignore") for part in (data[:HEAD], data[-TAIL:]))
    return f"{head}… ({len(text) - len(head) - len(tail):,} more characters) …{tail}"


def escaped(text: str, kept: str = "") -> str:
    r"""Text with what a terminal would obey, or cannot show, spelled out; the characters of `kept` stay.

    >>> print(escaped("bad\x1b[2Jname\udce9"))
    bad\x1b[2Jname\xe9
    """
    try:
        readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a character, from no file name
        readable = text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in readable)


def flag_name(name: str) -> str:
    """Return the flag of a parameter; one named like a Python keyword has a trailing underscore.

    >>> flag_name("kv_heads"), flag_name("with_")
    ('--kv-heads', '--with')
    """
    return "--" + name.rstrip("_").replace("_", "-")


def suggest(word: str, words: Iterable[str]) -> str:
    """Return a hint at the closest of some words, or "".

    >>> suggest("atend", ["attend", "mask"])
    '; did you mean attend?'
    """
    import difflib

    close = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {close[0]}?" if close else ""
