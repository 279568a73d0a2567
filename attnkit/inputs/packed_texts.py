"""Texts that are encoded together: lines that have arrived, or those of a batch."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import AttnkitError
from attnkit.inputs import encoding
from attnkit.inputs.encoding import EncodingInputs, VectorOptions
from attnkit.records import Array, Record

LINES, CHARACTERS = 1 << 10, 1 << 16  # at most so many lines, and about so many characters, are held at a time
ROWS = 1 << 10  # tokens of a pack of texts, which one core computes: its hidden states stay in the cache


class Line(tuple[str]):
    """One line of text as a tuple, with its number and perhaps its result."""

    number: int
    result: Record | None = None

    @classmethod
    def of(cls, text: str, number: int) -> "Line":
        """The line of a text.

        >>> line = Line.of("the cat", 3)
        >>> line, line.number
        (('the cat',), 3)
        """
        line = cls((text,))
        line.number = number
        return line


@contextlib.contextmanager
def name_line(number: int) -> Iterator[None]:
    """Name the line in errors of a `with` block that name no file or option.

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
    """Yield the lines that arrive together, some at a time; then an error, if any.

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


def encode_lines(
    blocks: Iterator[Iterator[str]], given: EncodingInputs, vectors: VectorOptions, dtype: str | None
) -> Iterator[Line]:
    """Yield the lines of blocks in order, with results as far as computed together."""
    for lines in read_lines(blocks):
        if len(lines) > 1:
            callbacks.current().on_progress(f"line {lines[0].number}")
            compute_together(lines, given, vectors, dtype)
        yield from lines


def compute_together(lines: Sequence[Line], given: EncodingInputs, vectors: VectorOptions, dtype: str | None) -> None:
    """Set the results of lines; a line with an error is left to be computed alone."""
    from attnkit.model.processor.threads import run_parallel

    ready: list[tuple[Line, encoding.Encoding]] = []
    with contextlib.suppress(AttnkitError):
        plan = encoding.plan_encoding(given.model_, vectors.layers_)
        if not model.can_pack(plan.core, plan.steps):
            return
        for line in lines:
            with contextlib.suppress(AttnkitError):
                ready.append((line, encoding.prepare_encoding(line, given, vectors, plan)))

    packable = [(line, one) for line, one in ready if is_packable(one)]

    def work(packs: Iterator[list[int]]) -> None:
        for pack in packs:
            with contextlib.suppress(AttnkitError):
                for at, x in zip(pack, compute_pack([packable[at][1] for at in pack], dtype), strict=False):
                    line, one = packable[at]
                    line.result = encoding.make_result(one, x, vectors.normalize)

    run_parallel(work, split_packs([one for _, one in packable]))


def encode_alone(
    texts: Sequence[str], given: EncodingInputs, vectors: VectorOptions, dtype: str | None
) -> list[Record]:
    """The result of each text as if it were encoded alone."""
    lines = [Line.of(text, number) for number, text in enumerate(texts, start=1)]
    compute_together(lines, given, vectors, dtype)
    found = []
    for line in lines:
        if line.result is None:
            with name_line(line.number):
                one = encoding.prepare_encoding(line, given, vectors)
                x = model.run(one.core, one.steps, one.inputs, encoding.make_context(one, dtype=dtype))
                line.result = encoding.make_result(one, x, vectors.normalize)
        found.append(line.result)
    return found


def pool_separately(encoded: encoding.Encoding, normalize: bool, dtype: str | None) -> Record | None:
    """The vector of each text of a padded batch, with the bits of the text alone.

    It is computed without padding.

    None if the batch has to be computed as a whole: without a pooling, or if a result is not finite.
    """
    from attnkit.model.processor.threads import run_parallel

    is_late = encoded.pool == "folder" and encoded.modules.late is not None
    core, texts = encoded.core, [] if is_late or encoded.pool == "none" else encoding.split_batch(encoded)
    if not texts or core.engine or core.config.is_recurrent:
        return None
    vectors: dict[int, tuple[Array, str]] = {}

    def work(packs: Iterator[list[int]]) -> None:
        for pack in packs:
            for at, x in zip(pack, compute_pack([texts[at] for at in pack], dtype), strict=False):
                vectors[at] = encoding.pool_texts(texts[at], x, normalize)

    if model.can_pack(core, encoded.steps):
        if not all(map(is_packable, texts)):
            return None
        run_parallel(work, split_packs(texts))
    else:
        for at, one in enumerate(texts):
            x = model.run(core, one.steps, one.inputs, encoding.make_context(one, dtype=dtype))
            vectors[at] = encoding.pool_texts(one, x, normalize)
    if len(vectors) < len(texts):
        return None
    return encoding.pooled_record(encoded.base, np.stack([vectors[at][0] for at in range(len(texts))]), vectors[0][1])


def is_packable(one: encoding.Encoding) -> bool:
    """Whether a text has tokens, no mask, and no more than the model has positions."""
    positions, length = one.core.config.positions, len(one.inputs)
    return length > 0 and "mask" not in one.base and not 0 < positions.size < positions.first + length


def split_packs(texts: Sequence[encoding.Encoding], rows: int = ROWS) -> list[list[int]]:
    """Split the numbers of texts into packs of some tokens, the longest texts first."""
    packs: list[list[int]] = []
    count = rows
    for at in sorted(range(len(texts)), key=lambda at: -len(texts[at].inputs)):
        count += len(texts[at].inputs)
        if count > rows:
            packs.append([])
            count = len(texts[at].inputs)
        packs[-1].append(at)
    return packs


def compute_pack(pack: Sequence[encoding.Encoding], dtype: str | None) -> list[Array]:
    """The hidden states of each text of a pack; none if one of them is not finite."""
    first = pack[0]
    kinds = [one.base.get("types") for one in pack]
    segments = [kind for kind in kinds if kind is not None]
    ids = [one.inputs for one in pack]
    states = model.run_packed(first.core, first.steps, ids, segments if len(segments) == len(ids) else None, dtype)
    return states or []
