"""A published folder as a model: its configuration, its parameters and its files."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, reduce
from typing import Any

from attnkit.checkpoints.parameters import Parameters
from attnkit.errors import DataError
from attnkit.model.config import Config
from attnkit.model.dtypes import Array


class Checkpoint:
    """A published model.

    config  the choices of the model
    raw     config.json as parsed
    params  layer -> {parameter: array}
    """

    def __init__(
        self, folder: str, config: Config, raw: Mapping[str, Any], params: Parameters, files: Sequence[str]
    ) -> None:
        self.folder = folder
        self.config = config
        self.raw = raw
        self.params = params
        self._files = list(files)
        self._companions: dict[str, Any] = {}

    def load_companion(self, name: str, load: Callable[[str, str], Any]) -> Any:
        """Load a part such as a tokenizer once, by `load(folder, name)`."""
        if name not in self._companions:
            self._companions[name] = load(self.folder, name)
            self._files = [*dict.fromkeys([*self._files, *self._companions[name].files])]
        return self._companions[name]

    def layers(self) -> list[str]:
        return list(self.params)

    def tensors(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """The dtype and the shape of every stored tensor by its published name."""
        return self.params.weights.entries

    def tensor(self, name: str) -> Array:
        """A stored tensor by its published name, or a parameter as encoder.0.self.wq."""
        weights = self.params.weights
        if stored := weights.find([name]):
            return weights.tensor(stored)
        layer, _, parameter = name.rpartition(".")
        if parameter in self.params.specs.get(layer, {}):
            return self.params[layer][parameter]
        raise DataError(f"no tensor {name!r}{self._suggest(name)}", self.folder)

    @cached_property
    def parameter_count(self) -> int:
        """The number of elements of all tensors in use, each tensor counted once."""
        return self.params.count()

    def find_non_finite(self, first: str = "") -> str:
        """Describe the first parameter that is not finite, or "" if all are."""
        return self.params.find_non_finite(first)

    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file that the model was read from, by path."""
        return {path: file_digest(path, *file_stamp(path)) for path in self._files}

    def _suggest(self, name: str) -> str:
        """The hint ` (near: …)` with names close to an unknown one, or ""."""
        import difflib

        specs = self.params.specs
        parameters = [f"{layer}.{key}" for layer, keys in specs.items() for key in keys]
        prefixes = [prefix for prefix in self.params.weights.prefixes if not name.startswith(prefix)]
        published = [reduce(str.removeprefix, prefixes, stored) for stored in self.tensors()]
        of_layer = [f"{name}.{key}" for key in specs.get(name, {})]
        of_layer = of_layer or [one for one in published if one.startswith(f"{name}.")][:4]
        near = of_layer or difflib.get_close_matches(name, [*published, *parameters], 4)
        return f" (near: {', '.join(near)})" if near else ""


def file_stamp(path: str) -> tuple[int, int, int]:
    """The inode, size and modification time of a file."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@cache
def file_digest(path: str, *stamp: int) -> str:
    """The SHA-256 of a file, computed once for each stamp."""
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
