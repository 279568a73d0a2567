"""The folder of a model as published; each file is written whole or not at all."""

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from attnkit.checkpoints.config_reader import PREPROCESSOR
from attnkit.errors import DataError, FileError, system_reason
from attnkit.formats import safetensors
from attnkit.formats.atomic import write_together
from attnkit.formats.dtypes import dtype_of
from attnkit.formats.streams import Buffer
from attnkit.model import Array
from attnkit.records import Record

CONFIG, WEIGHTS = "config.json", "model.safetensors"
ORIGIN = "training.json"  # how a model was made
COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json")
INPUT_FILES = {  # by which a model reads what it is given
    PREPROCESSOR, *COMPANIONS, "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "vocab.yml",
    "target_vocab.json", "source.spm", "target.spm", "spiece.model", "spm.model", "sentencepiece.bpe.model",
    "tokenizer.model",
}  # fmt: skip
STATE, CURVE = "state.safetensors", "training.jsonl"
STEP = re.compile(r"step-([1-9][0-9]{0,15})\.npz", re.ASCII)  # a recorded step
LEFTOVER = re.compile(r"\..+\.attnkit-[0-9a-f]{8}")  # temporary names of attnkit.formats.atomic
FORMAT = {"format": "pt"}  # the layout of the tensors, which transformers requires


def json_bytes(value: Any) -> bytes:
    """A value as indented JSON with a final line break."""
    import orjson

    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def model_files(
    raw: Mapping[str, Any], tensors: Mapping[str, Array], dtype: str = "float32"
) -> dict[str, list[Buffer]]:
    """The buffers of config.json and of model.safetensors.

    raw      the values of config.json
    tensors  by their published names
    dtype    to store them in

    DataError if a number exceeds the range of this dtype.
    """
    arrays = {name: _convert(tensors[name], dtype, name) for name in sorted(tensors)}
    config = json_bytes({**raw, "torch_dtype": dtype})
    return {CONFIG: [config], WEIGHTS: safetensors.encode(Record(arrays), FORMAT)}


def _convert(array: Array, dtype: str, name: str) -> Array:
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(array, dtype_of(dtype))
    if np.isinf(converted).any():
        raise DataError(f"tensor {name!r} exceeds the range of {dtype}; --dtype float32", WEIGHTS)
    return converted


def check_folder(folder: str) -> None:
    """Raise FileError for a folder that a long run could not write in the end."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise FileError("not a folder", folder)
    if not os.path.exists(os.path.join(folder, ORIGIN)):
        for name in (CONFIG, WEIGHTS, STATE, CURVE, *sorted(INPUT_FILES)):  # what a run replaces or removes
            if os.path.lexists(os.path.join(folder, name)):
                raise FileError(f"it has a {name} that attnkit train did not write; name another folder", folder)
    existing = os.path.abspath(folder)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not (os.path.isdir(existing) and os.access(existing, os.R_OK | os.W_OK | os.X_OK)):
        raise FileError("cannot write to this folder", existing)


@contextlib.contextmanager
def lock_folder(folder: str) -> Iterator[None]:
    """Lock a folder in a `with` block; create it, and remove it if it stays empty.

    The unfinished files of a run that was killed are removed. FileError if another run has the folder, or if
    it cannot be created. A process that ends loses its lock.
    """
    import fcntl

    is_new = not os.path.isdir(folder)
    create_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FileError("another run of attnkit train writes this folder", folder) from None
        remove_files(folder, [name for name in os.listdir(folder) if LEFTOVER.fullmatch(name)])
        yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it has files by now
                os.rmdir(folder)
        os.close(descriptor)


def write_folder(folder: str, files: Mapping[str, list[Buffer]]) -> None:
    """Write files to a folder, which is created if needed: all of them or none.

    Other files of the folder are untouched. FileError says which file cannot be written.
    """
    create_folder(folder)
    with write_together() as open_file:
        for name, buffers in files.items():
            open_file(os.path.join(folder, name)).write(buffers)


def create_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot make this folder: {system_reason(error)}", folder) from error


def recorded_steps(folder: str) -> dict[int, str]:
    """The files of the recorded steps of a folder by their numbers, ascending."""
    steps = {int(match[1]): match[0] for match in map(STEP.fullmatch, os.listdir(folder)) if match}
    return dict(sorted(steps.items()))


def remove_files(folder: str, names: Collection[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
