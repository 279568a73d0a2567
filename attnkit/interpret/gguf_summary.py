"""Summarize a GGUF file: its metadata, its tensors with types, and its model."""

import fnmatch
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import display
from attnkit.checkpoints.gguf import json_value
from attnkit.display import Style
from attnkit.errors import DataError, counted, format_bytes, suggest
from attnkit.formats.gguf import GgufFile, Strings
from attnkit.formats.mapped import Mapped
from attnkit.interpret.model_sheet import describe_model
from attnkit.interpret.model_summary import alike, checkpoint_record, layer_rows, shape_text
from attnkit.records import Tensor, is_pattern

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

LONGEST = 60  # characters of a text in the list of the metadata
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}  # the names in such files


class StoredTensors(Mapping[str, Tensor]):
    """Tensors by name, each read when it is accessed, and not kept."""

    def __init__(self, parts: Mapping[str, Mapped]) -> None:
        self._parts = parts

    def __getitem__(self, name: str) -> Tensor:
        return Tensor(self._parts[name].tensor(name))

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def find_tensors(
    file: GgufFile, checkpoint: "Checkpoint | None", name: str, names: Sequence[str]
) -> Mapping[str, Tensor]:
    """The tensors of a file, of a part of the model, or of names and shell patterns.

    Names in the file come first, then published ones and those of layers. DataError lists the names that come near.
    """
    stored = StoredTensors({name: part for part in file.parts for name in part.entries})
    if not (name or names):
        return stored
    found: dict[str, Tensor] = {}
    for pattern in [name] if name else names:
        matching = [pattern] if pattern in stored else fnmatch.filter(stored, pattern) if is_pattern(pattern) else []
        if not matching and checkpoint is None:
            raise DataError(f"no tensor {pattern!r}{suggest(pattern, stored)}", file.parts[0].name)
        found |= {one: stored[one] for one in matching}
        if not matching and checkpoint is not None:
            found |= checkpoint_record(checkpoint, name, [pattern]).tensors
    return found


def draw_file(file: GgufFile, checkpoint: "Checkpoint | None", style: Style) -> str:
    """Render the metadata, and the tensors and layers, equal ones in one row."""
    sheet = [display.draw_blocks(describe_model(checkpoint).blocks(style), style)] if checkpoint else []
    layers = [layer_rows(checkpoint, style)] if checkpoint else []
    facts = display.property_list(file.parts[0].name, describe_file(file), style)
    return "\n\n".join([facts, *sheet, type_rows(file, style, fold=True), *layers])


def list_types(file: GgufFile, style: Style) -> str:
    """Render the tensors of a file, one in a row."""
    return type_rows(file, style, fold=False)


def describe_file(file: GgufFile) -> list[tuple[str, str]]:
    """The facts of a file as names and texts: what it holds, then its metadata."""
    kinds = Counter(kind for kind, _ in tensor_types(file).values())
    size = sum(os.path.getsize(part.name) for part in file.parts)
    count = sum(math.prod(shape) for part in file.parts for _, shape in part.entries.values())
    rows = [
        ("on disk", f"{format_bytes(size)} in {counted(len(file.parts), 'file')}"),
        ("numbers", f"{count:,}"),
        ("types", ", ".join(f"{kind} ({number})" for kind, number in kinds.most_common())),
    ]
    return [*rows, *((key, value_text(value)) for key, value in file.metadata.items())]


def value_text(value: Any) -> str:
    """A value of the metadata in a few words.

    >>> value_text(0.5), value_text("a\\nb"), value_text(np.arange(1000))
    ('0.5', 'a b', '1,000 numbers')
    """
    if isinstance(value, Strings):
        return f"{value.size:,} texts"
    if isinstance(value, np.ndarray):
        return counted(value.size, "number") if value.size > 8 else ", ".join(map(str, value.tolist()))
    text = " ".join(str(json_value(value)).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


def type_rows(file: GgufFile, style: Style, fold: bool) -> str:
    """Render the tensors: name in the file, count, shape, type and bytes."""
    types = tensor_types(file)
    rows = alike(types) if fold else ((name, value, 1) for name, value in types.items())
    cells = [[name, f"{count} × " * (count > 1) + shape_text(shape), kind] for name, (kind, shape), count in rows]
    last = counted(len(types), "tensor") + "; --list: one per line" * fold
    return display.format_table(display.TextTable(["tensor", "shape", "type"], cells, footer=last), style)


def tensor_types(file: GgufFile) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type, as the file names it, and the shape of each tensor."""
    return {
        name: (part.packed.get(name) or TYPES.get(dtype, dtype.upper().replace("INT", "I")), shape)
        for part in file.parts
        for name, (dtype, shape) in part.entries.items()
    }
