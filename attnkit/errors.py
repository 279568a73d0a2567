"""What can go wrong, and the exit code each kind of it ends the process with."""


class AttnkitError(Exception):
    """A failure that the user is told in one line: `name: problem`.

    `name` is the file or flag at fault, as the user wrote it; "" where no single one is.
    """

    exit_code = 70
    place = ""  # the command at work, as `attnkit attend`

    def __init__(self, problem: str, name: str = "") -> None:
        super().__init__(f"{name}: {problem}" if name else problem)
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


class FileError(AttnkitError):
    """A file cannot be opened, read or written."""

    exit_code = 4


class AttnkitNote(UserWarning):
    """What a format does not keep of a result that is delivered as it was asked for."""


class AttnkitWarning(UserWarning):
    """Something the user should know of a result that is delivered all the same."""
