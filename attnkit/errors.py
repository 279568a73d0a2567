"""The exceptions and warnings of attnkit, with the exit codes of the process."""

from collections.abc import Iterable

EXIT_CODES = {
    0: "done",
    1: "different: a `diff`, a `history --replay`, changed `golden` numbers, or a wrong answer to an `exercise`",
    2: "the command line is wrong: an unknown option, a bad value, a missing operand",
    3: "the data are wrong: syntax, dtype, shape, range, a limit exceeded",
    4: "a file cannot be opened, read or written",
    70: "a bug in attnkit",
    130: "interrupted",
    141: "the reader of the pipe went away",
    143: "terminated",
}
SPELLED = ("lstm", "m2m", "mbart", "mpnet", "mt5", "xlm")  # names that begin with a letter read as em, ell or ex
HEAD, TAIL = 280, 120  # bytes of a long message that are kept at its start and at its end


class AttnkitError(Exception):
    """A failure, reported to the user in one line: `name: problem`.

    `name` is the file or flag at fault, as the user wrote it; "" where none is.
    """

    exit_code = 70
    place = ""  # the command at work, as `attnkit attend`

    def __init__(self, problem: str, name: str = "") -> None:
        super().__init__(shortened(f"{name}: {problem}" if name else problem))
        self.problem = problem
        self.name = name


class UsageError(AttnkitError):
    """The command line is invalid: unknown flag, bad value, missing operand."""

    exit_code = 2


class DataError(AttnkitError):
    """The data are invalid: syntax, dtype, shape, range, a limit exceeded."""

    exit_code = 3
    operand = ""  # the parameter, tensor or symbol of a formula at fault, whose file a tool names

    @classmethod
    def about(cls, operand: str, problem: str) -> "DataError":
        """Make the error of one operand, with which its message begins.

        >>> DataError.about("lengths", "(2): expected one for each row").operand
        'lengths'
        """
        error = cls(f"{operand} {problem}")
        error.operand = operand
        return error


class NotFiniteError(DataError):
    """NaN or infinity, where a choice requires finite numbers."""


class DifferentError(DataError):
    """Two values differ that must be equal, as when a history is replayed."""

    exit_code = 1


class FileError(AttnkitError):
    """A file cannot be opened, read or written."""

    exit_code = 4


class InterruptedRunError(AttnkitError):
    """SIGINT has stopped a run, which is saved."""

    exit_code = 130


class TerminatedRunError(AttnkitError):
    """SIGTERM has stopped a run, which is saved."""

    exit_code = 143


class AttnkitNote(UserWarning):
    """Part of a result that the requested format cannot hold."""


class AttnkitWarning(UserWarning):
    """A problem of a result that is delivered all the same."""


def shortened(text: str) -> str:
    """Shorten a message to a few hundred bytes by leaving out its middle.

    >>> shortened("no tensor 'x'"), len(shortened("x" * 70_000)) < 440
    ("no tensor 'x'", True)
    """
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= HEAD + TAIL + 50:
        return text
    head, tail = (part.decode("utf-8", "ignore") for part in (data[:HEAD], data[-TAIL:]))
    return f"{head}… ({len(text) - len(head) - len(tail):,} more characters) …{tail}"


def escaped(text: str, allowed: str = "") -> str:
    r"""Escape unprintable characters of a text, except those in `allowed`.

    >>> print(escaped("bad\x1b[2Jname\udce9"))
    bad\x1b[2Jname\xe9
    """
    try:
        readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a character, from no file name
        readable = text
    return "".join(c if c.isprintable() or c in allowed else c.encode("unicode_escape").decode() for c in readable)


def flag_name(name: str) -> str:
    """The flag of a parameter. A trailing underscore avoids a Python keyword.

    >>> flag_name("kv_heads"), flag_name("with_")
    ('--kv-heads', '--with')
    """
    return "--" + name.rstrip("_").replace("_", "-")


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is missing, also while a library loads.

    >>> is_lack_of_memory(ImportError("lib.so: failed to map segment from shared object"))
    True
    """
    signs = ("failed to map segment", "cannot allocate memory", "cannot map zero-fill", "failed to allocate memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, ImportError) and any(sign in str(error).lower() for sign in signs)
    )


def counted(count: int, noun: str) -> str:
    """A number of things in words, the noun in the plural unless there is one.

    >>> counted(1, "token"), counted(2000, "token")
    ('1 token', '2,000 tokens')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def with_article(name: str) -> str:
    """A name behind the indefinite article that its sound requires.

    >>> with_article("bert"), with_article("albert"), with_article("mbart"), with_article("eurobert")
    ('a bert', 'an albert', 'an mbart', 'a eurobert')
    """
    is_vowel = name.startswith((*"aeio", *SPELLED)) and not name.startswith("eu")
    return f"an {name}" if is_vowel else f"a {name}"


def format_bytes(count: int) -> str:
    """A number of bytes in the unit that is easiest to read.

    >>> format_bytes(96), format_bytes(1536), format_bytes(4 * 10**12)
    ('96 B', '1.5 kB', '4.0 TB')
    """
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, 5)
    return f"{count / 1000**power:.1f} {'kMGTP'[power - 1]}B"


def closest(word: str, words: Iterable[str], least: float = 0.75) -> str:
    """The closest of several words: the only one that begins so, or the most similar.

    >>> closest("atend", ["attend", "mask"]), closest("temp", ["compute", "temperature"]), closest("plot", ["list"])
    ('attend', 'temperature', '')
    """
    import difflib

    words = [*words]
    longer = [one for one in words if len(word) > 2 and one.startswith(word)]
    if len(longer) == 1:
        return longer[0]
    words = [one for one in words if 2 * len(one) >= least * (len(word) + len(one))]  # which others cannot reach
    close = difflib.get_close_matches(word, words, n=1, cutoff=least) if words else []
    return close[0] if close else ""


def suggest(word: str, words: Iterable[str], least: float = 0.6) -> str:
    """A hint at the closest of some words, or "" where none is as similar as `least`.

    >>> suggest("atend", ["attend", "mask"])
    '; did you mean attend?'
    """
    close = closest(word, words, least)
    return f"; did you mean {close}?" if close else ""


def system_reason(error: OSError | ValueError) -> str:
    """The message of the system, or of Python for a name that no system call can take.

    >>> system_reason(ValueError("open: embedded null character in path"))  # as some versions of Python word it
    'embedded null byte'
    """
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return "embedded null byte"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def refuse_lfs_pointer(start: bytes, path: str) -> None:
    """Raise DataError for the text that Git LFS leaves in place of a file."""
    if start.startswith(b"version https://git-lfs"):
        raise DataError("a Git LFS pointer, not the file itself; git lfs pull", path)
