"""The stored tensors of a folder, in one file or in shards, left where they lie until they are asked for."""

import os
from collections.abc import Iterable, Sequence

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.json_file import read_json_object
from attnkit.errors import DataError, FileError
from attnkit.formats import safetensors
from attnkit.formats.mapped import Mapped
from attnkit.formats.streams import exists
from attnkit.record import Array

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LONGEST_NAME = 255
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pt")


class Weights:
    """Tensors by published name.

    name      the file at the head of them, for errors
    entries   the dtype and the shape of each, in stored order
    prefixes  what published names may begin with or not
    """

    def __init__(self, name: str, files: Sequence[str], places: dict[str, Mapped]) -> None:
        self.name = name
        self.files = files
        self.entries = {tensor: mapped.entries[tensor] for tensor, mapped in places.items()}
        self.prefixes: tuple[str, ...] = ()
        self._places = places

    def find(self, names: Iterable[str]) -> str | None:
        """The first of these names that is stored, with a prefix or without; None where none is."""
        candidates = (prefix + name for name in names for prefix in ("", *self.prefixes))
        return next((name for name in candidates if name in self.entries), None)

    def has(self, *names: str) -> bool:
        """Whether one of these tensors is stored."""
        return self.find(names) is not None

    def file(self, name: str) -> str:
        """The file that a tensor is stored in."""
        return self._places[name].name

    def tensor(self, name: str) -> Array:
        """One stored tensor."""
        return self._places[name].tensor(name)


def open_weights(folder: str) -> Weights:
    """The tensors of a folder, in one safetensors file or in the shards of an index; errors name what is missing."""
    single, index = os.path.join(folder, SINGLE), os.path.join(folder, INDEX)
    if exists(single):
        return single_file(safetensors.mapped(single))
    if exists(index):
        return _sharded(folder, index)
    pickled = next((name for name in PICKLES if exists(os.path.join(folder, name))), None)
    hint = f"; {pickled} is a pickle, which is never read: save it as safetensors" if pickled else ""
    raise FileError(f"no weights (looked for {SINGLE} and {INDEX}){hint}", folder)


def single_file(mapped: Mapped) -> Weights:
    """The tensors of one file."""
    return Weights(mapped.name, [mapped.name], dict.fromkeys(mapped.entries, mapped))


def is_file_name(name: object) -> bool:
    """Whether a value names a file of a folder, not one elsewhere.

    >>> is_file_name("a.safetensors"), is_file_name("../a"), is_file_name(None)
    (True, False, False)
    """
    return (
        isinstance(name, str)
        and os.path.basename(name) == name
        and name not in ("", ".", "..")
        and len(name) <= LONGEST_NAME
        and name.isprintable()
    )


def _sharded(folder: str, index: str) -> Weights:
    map_of = ConfigReader(read_json_object(index), index).mapping("weight_map")
    if not map_of:
        raise DataError("weight_map is missing or empty", index)
    shards: dict[str, Mapped] = {}
    for tensor, file in map_of.items():
        if not is_file_name(file):
            raise DataError(f"tensor {tensor!r}: {str(file)[:40]!r} is not the name of a file", index)
        path = os.path.join(folder, file)
        if file not in shards and not exists(path):
            raise FileError(f"no such file, which {INDEX} names for tensor {tensor!r}", path)
        if file not in shards:
            shards[file] = safetensors.mapped(path)
        if tensor not in shards[file].entries:
            raise DataError(f"no tensor {tensor!r}, which {INDEX} says is here", path)
    files = [index, *(mapped.name for mapped in shards.values())]
    return Weights(index, files, {tensor: shards[file] for tensor, file in map_of.items()})
