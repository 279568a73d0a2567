"""Many texts through a model together: each has the bits that it has alone, and its place in the stream."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attnkit import callbacks, model
from attnkit.errors import AttnkitError
from attnkit.inputs import encoding
from attnkit.record import Record

LINES, CHARACTERS = 1 << 10, 1 << 16  # at most so many lines, and about so many characters, are held at a time
ROWS = 1 << 10  # tokens of a pack of texts, which one core computes: its hidden states stay in the cache
HOOKED = ("keep", "trace", "patch", "ablate", "image", "ids")  # parameters of encode that make a text a run of its own

Finish = Callable[[encoding.Encoding, Any], Record]


class Line(tuple[str]):
    """A tuple of the text of one line, with its number, and with its result where that is computed already."""

    number: int
    result: Record | None = None

    @classmethod
    def of(cls, text: str, number: int) -> "Line":
        """Return the line of a text.

        >>> line = Line.of("the cat", 3)
        >>> line, line.number
        (('the cat',), 3)
        """
        line = cls((text,))
        line.number = number
        return line


@contextlib.contextmanager
def name_line(number: int) -> Iterator[None]:
    """Have the errors of a `with` block name the line that they are of, unless they name a file or an option.

    >>> with name_line(3):
    ...     raise AttnkitError("too long")
    Traceback (most recent call last):
        ...
    attnkit.errors.AttnkitError: line 3: too long
    """
    try:
        yield
    except AttnkitError as error:
        if error.name not in ("", "<stdin>", "TEXT"):
            raise
        raise type(error)(f"line {number}: {error.problem}", error.name) from None


def read_lines(blocks: Iterator[Iterator[str]]) -> Iterator[list[Line]]:
    """Yield the lines that have arrived together, some at a time; those before an error come before it.

    >>> [*read_lines(iter([iter(["a", "b"]), iter(["c"])]))]
    [[('a',), ('b',)], [('c',)]]
    """
    numbers = itertools.count(1)
    for block in blocks:
        lines: list[Line] = []
        size = 0
        for number in numbers:
            try:
                with name_line(number):
                    text = next(block, None)
            except AttnkitError:
                yield lines
                raise
            if text is None:
                numbers = itertools.count(number)
                break
            lines.append(Line.of(text, number))
            size += len(text)
            if len(lines) == LINES or size >= CHARACTERS:
                yield lines
                lines, size = [], 0
        yield lines


def encode_lines(blocks: Iterator[Iterator[str]], values: Mapping[str, Any], finish: Finish) -> Iterator[Line]:
    """Yield the lines of blocks in their order, with their results as far as they can be computed together.

    values  those of the parameters of encode
    finish  makes the result of an encoding and its hidden states
    """
    for lines in read_lines(blocks):
        if len(lines) > 1:
            callbacks.current().on_progress(f"line {lines[0].number}")
            compute_together(lines, values, finish)
        yield from lines


def compute_together(lines: Sequence[Line], values: Mapping[str, Any], finish: Finish) -> None:
    """Set the results of lines; what is wrong with one of them shows when it is computed alone, without result."""
    from attnkit.model.kernels.threads import run_parallel

    ready: list[tuple[Line, encoding.Encoding]] = []
    with contextlib.suppress(AttnkitError):
        plan = encoding.plan_encoding(values)
        if not model.can_pack(plan.core, plan.steps):
            return
        for line in lines:
            with contextlib.suppress(AttnkitError):
                ready.append((line, encoding.prepare_encoding(line, values, plan)))

    def work(packs: Iterator[list[tuple[Line, encoding.Encoding]]]) -> None:
        for pack in packs:
            with contextlib.suppress(AttnkitError):
                compute_pack(pack, values["dtype"], finish)

    run_parallel(work, split_packs([one for one in ready if is_packable(one[1])]))


def is_packable(one: encoding.Encoding) -> bool:
    """Return whether a text can be computed with others: one of a token or more, and not more than the model has."""
    positions, length = one.core.config.positions, len(one.inputs)
    return length > 0 and not 0 < positions.size < positions.first + length


def split_packs(
    texts: Sequence[tuple[Line, encoding.Encoding]], rows: int = ROWS
) -> list[list[tuple[Line, encoding.Encoding]]]:
    """Return texts in packs of some tokens, those of one length together and the longest first."""
    packs: list[list[tuple[Line, encoding.Encoding]]] = []
    count = rows
    for one in sorted(texts, key=lambda text: -len(text[1].inputs)):
        count += len(one[1].inputs)
        if count > rows:
            packs.append([])
            count = len(one[1].inputs)
        packs[-1].append(one)
    return packs


def compute_pack(pack: Sequence[tuple[Line, encoding.Encoding]], dtype: str | None, finish: Finish) -> None:
    """Set the results of the lines of a pack; where one is not finite, each is left to be computed alone."""
    first = pack[0][1]
    kinds = [one.base.get("types") for _, one in pack]
    segments = [kind for kind in kinds if kind is not None]
    ids = [one.inputs for _, one in pack]
    states = model.run_packed(first.core, first.steps, ids, segments if len(segments) == len(ids) else None, dtype)
    for (line, one), x in zip(pack, states or [], strict=bool(states)):
        line.result = finish(one, x)
