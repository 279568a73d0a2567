"""The tensors of a folder, in one file or in shards, memory-mapped."""

import os
from collections.abc import Callable, Iterable, Sequence

from attnkit.checkpoints.config_reader import ConfigReader, read_json_object
from attnkit.errors import DataError, FileError
from attnkit.formats import pytorch, safetensors
from attnkit.formats.mapped import Mapped
from attnkit.formats.streams import exists
from attnkit.records import Array

SINGLE = "model.safetensors"
INDEX = ".index.json"  # after the name of the single file, where there are shards
PYTORCH = "pytorch_model.bin"
MAX_NAME_LENGTH = 255


class Weights:
    """Tensors by published name.

    name      the file, or the index of the shards, for errors
    files     all files that the tensors are read from
    entries   the dtype and the shape of each, in stored order
    prefixes  prefixes that published names may or may not have
    """

    def __init__(self, name: str, files: Sequence[str], mapped_files: dict[str, Mapped]) -> None:
        self.name = name
        self.files = files
        self.entries = {tensor: mapped.entries[tensor] for tensor, mapped in mapped_files.items()}
        self.prefixes: tuple[str, ...] = ()
        self._mapped = mapped_files

    def find(self, names: Iterable[str]) -> str | None:
        """The first of several names that is stored, with a prefix or without, or None."""
        candidates = (prefix + name for name in names for prefix in ("", *self.prefixes))
        return next((name for name in candidates if name in self.entries), None)

    def has(self, *names: str) -> bool:
        return self.find(names) is not None

    def file(self, name: str) -> str:
        return self._mapped[name].name

    def tensor(self, name: str) -> Array:
        return self._mapped[name].tensor(name)


def open_weights(folder: str) -> Weights:
    """Open the tensors of a folder: safetensors first, then PyTorch, or their shards.

    FileError if there is none.
    """
    for name, map_tensors in ((SINGLE, safetensors.map_tensors), (PYTORCH, pytorch.map_tensors)):
        single, index = os.path.join(folder, name), os.path.join(folder, name + INDEX)
        if exists(single):
            return single_file(map_tensors(single))
        if exists(index):
            return _open_shards(folder, index, map_tensors)
    raise FileError(f"no weights (looked for {SINGLE}, {PYTORCH}, and their {INDEX})", folder)


def single_file(mapped: Mapped) -> Weights:
    return Weights(mapped.name, [mapped.name], dict.fromkeys(mapped.entries, mapped))


def is_file_name(name: object) -> bool:
    """Whether a value is the name of a file within a folder, not a path elsewhere.

    >>> is_file_name("a.safetensors"), is_file_name("../a"), is_file_name(None)
    (True, False, False)
    """
    return (
        isinstance(name, str)
        and os.path.basename(name) == name
        and name not in ("", ".", "..")
        and len(name) <= MAX_NAME_LENGTH
        and name.isprintable()
    )


def _open_shards(folder: str, index: str, map_tensors: Callable[[str], Mapped]) -> Weights:
    weight_map = ConfigReader(read_json_object(index), index).get_dict("weight_map")
    if not weight_map:
        raise DataError("weight_map is missing or empty", index)
    shards: dict[str, Mapped] = {}
    for tensor, file in weight_map.items():
        if not is_file_name(file):
            raise DataError(f"tensor {tensor!r}: {str(file)[:40]!r} is not the name of a file", index)
        path = os.path.join(folder, file)
        if file not in shards and not exists(path):
            raise FileError(f"no such file, which {os.path.basename(index)} names for tensor {tensor!r}", path)
        if file not in shards:
            shards[file] = map_tensors(path)
        if tensor not in shards[file].entries:
            raise DataError(f"no tensor {tensor!r}, which {os.path.basename(index)} says is here", path)
    files = [index, *(mapped.name for mapped in shards.values())]
    return Weights(index, files, {tensor: shards[file] for tensor, file in weight_map.items()})
