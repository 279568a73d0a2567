"""Two runs of one engine compared by digests: the first stage that differs."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from attnkit.debugger.dumps import open_dump
from attnkit.display import Block, Note, Style, TextTable
from attnkit.display.cells import Cells
from attnkit.display.report import ComparisonReport
from attnkit.errors import DataError, UsageError, counted
from attnkit.formats import open_source
from attnkit.formats.streams import name_errors
from attnkit.model.rounding import DIFFERENT, IDENTICAL
from attnkit.recorders.digests import Digest, digest, has_digests, parse_digests
from attnkit.records import Record, Tensor, join_names

ROWS = 20  # of a table
START = 64  # bytes that say whether a file has digests
HEADINGS = ("stage", "norm A", "norm B", "samples |a−b|", "")


class StagePair(NamedTuple):
    """A stage of two runs: its digests, None if a run lacks it."""

    name: str
    a: Digest | None
    b: Digest | None

    @property
    def verdict(self) -> str:
        """Identical, different, only in one run, or the two dtypes and shapes."""
        if self.a is None or self.b is None:
            return "only in A" if self.b is None else "only in B"
        if self.a.sha256 == self.b.sha256 and self.a[:2] == self.b[:2]:
            return IDENTICAL
        if self.a[:2] != self.b[:2]:
            kinds = [(one.dtype, f"({', '.join(map(str, one.shape))})") for one in (self.a, self.b)]
            parts = [position for position in range(2) if kinds[0][position] != kinds[1][position]]
            return " and ".join(" ".join(kind[position] for position in parts) for kind in kinds)
        return DIFFERENT

    @property
    def distance(self) -> float:
        """The largest difference of samples, relative to the largest number."""
        if self.verdict not in (IDENTICAL, DIFFERENT):
            return math.nan
        return self.a.distance(self.b) if self.a and self.b else math.nan

    @property
    def norms(self) -> tuple[float, float]:
        """The norms in both runs."""
        a, b = (math.nan if one is None else one.norm for one in (self.a, self.b))
        return a, b


@dataclass(frozen=True, repr=False)
class HashReport(ComparisonReport):
    """Which stages of two runs have the same bits.

    The tensor `same` is one boolean; `norm_a`, `norm_b` and `samples` are vectors over the stages, whose labels are
    `stage` and `verdict`.

    pairs  the stages in the order of A
    names  of the two runs
    """

    pairs: tuple[StagePair, ...] = field(kw_only=True, compare=False)
    names: tuple[str, str] = field(kw_only=True, compare=False)

    def blocks(self, style: Style) -> list[Block]:
        changed = [pair for pair in self.pairs if pair.verdict != IDENTICAL]
        rows = [hash_row(pair, style) for pair in changed[:ROWS]]
        table = [TextTable(HEADINGS, rows, range(1, 4))] * bool(rows)
        return [*table, *map(Note, self.sentences())]

    def sentences(self) -> list[str]:
        """The first stage that differs, and how many are identical."""
        changed = [pair for pair in self.pairs if pair.verdict != IDENTICAL]
        count = counted(len(self.pairs), "stage")
        if not changed:
            return [f"identical: {count}"]
        more = [f"{len(changed) - ROWS} more that are not identical"] * (len(changed) > ROWS)
        first, before = changed[0], [pair.name for pair in self.pairs].index(changed[0].name)
        place = f"after {counted(before, 'identical stage')}" if before else "the first of all"
        return [*more, f"first stage that is not identical: {first.name} ({place}; {len(changed)} of {count})"]

    def cells(self) -> Cells:
        columns = ("norm_a", "norm_b", "samples")
        rows = zip(self.labels["stage"], self.labels["verdict"], *(self[name] for name in columns), strict=True)
        return Cells(["stage", "verdict", *columns], [[*row] for row in rows])


def hash_row(pair: StagePair, style: Style) -> list[str]:
    """A row of the table; numbers that a run lacks are dashes."""
    norms = ["–" if math.isnan(one) else f"{one:#.{style.precision + 1}g}" for one in pair.norms]
    samples = f"{pair.distance:.1e}" if pair.verdict == DIFFERENT else "–"
    return [pair.name, *norms, samples, "" if pair.verdict == DIFFERENT else pair.verdict]


@dataclass(frozen=True)
class HashPair:
    """Two runs that are compared by the digests of their stages."""

    takes: ClassVar[tuple[str, ...]] = ()

    a: Mapping[str, Digest]
    b: Mapping[str, Digest]
    names: tuple[str, str]

    @classmethod
    def open(cls, paths: Sequence[str | Record]) -> "HashPair":
        """Open two runs: dumps, or files of digests; UsageError for another number."""
        files = [path for path in paths if isinstance(path, str)]
        if len(files) != 2 or len(paths) != 2:
            raise UsageError(f"two runs to compare, not {len(paths)}: attnkit diff --hash A B", "--hash")
        a, b = map(open_digests, files)
        return cls(a, b, (files[0], files[1]))

    def compare(self) -> HashReport:
        """Compare all stages; DataError if the runs have none in common."""
        if not any(name in self.b for name in self.a):
            raise DataError(f"no stage of {self.names[0]}, as {join_names([*self.a][:3])}", self.names[1])
        names = [*self.a, *(name for name in self.b if name not in self.a)]
        pairs = tuple(StagePair(name, self.a.get(name), self.b.get(name)) for name in names)
        vectors = {
            "norm_a": [pair.norms[0] for pair in pairs],
            "norm_b": [pair.norms[1] for pair in pairs],
            "samples": [pair.distance for pair in pairs],
        }
        verdicts = [pair.verdict for pair in pairs]
        tensors = {"same": Tensor(np.array(all(one == IDENTICAL for one in verdicts)), ())}
        tensors |= {name: Tensor(np.array(one), ("stage",)) for name, one in vectors.items()}
        return HashReport(tensors, {"stage": names, "verdict": verdicts}, pairs=pairs, names=self.names)


def open_digests(path: str) -> Mapping[str, Digest]:
    """The digests of a file that has them, or of the tensors of a dump."""
    if not os.path.isdir(path):
        with open_source(path) as source, name_errors(path):
            if has_digests(source.peek(START)):
                return parse_digests(bytes(source.read_all()))
    return {name: digest(array) for name, array in open_dump(path).items()}
