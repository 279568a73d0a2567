"""Axes, labels and history of a record, to and from JSON."""

import re
from collections.abc import Iterable
from typing import Any

from attnkit.errors import DataError
from attnkit.formats.json_text import parse_json
from attnkit.records import Labels, Record, Tensor

PARTS = ("axes", "labels", "history")
VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,64}", re.ASCII)
MACHINE = re.compile(r"[ -~]{1,100}", re.ASCII)  # short, and printable
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def to_metadata(record: Record) -> dict[str, Any]:
    """The axes, labels and history of a record as JSON values."""
    axes = {name: list(one.axes) for name, one in record.tensors.items() if one.axes is not None}
    return {"axes": axes, "labels": record.labels, "history": record.history}


def loads(text: bytes) -> dict[str, Any]:
    """The object in a JSON text; DataError with the position of the first error."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise DataError("axes, labels and history are not a JSON object")
    return value


def with_metadata(record: Record, values: dict[str, Any]) -> Record:
    """The record with axes, labels and history from JSON, which must fit it."""
    check_keys(values, PARTS)
    axes = values.get("axes", {})
    if not isinstance(axes, dict):
        raise DataError('key "axes" is not an object')
    names_of = {name: check_axis_names(names) for name, names in axes.items()}
    labels, history = check_labels(values.get("labels", {})), check_history(values.get("history", []))
    tensors = {name: Tensor(record[name], names) for name, names in names_of.items()}
    return Record({**record.tensors, **tensors}, labels, history).check()


def check_keys(keys: Iterable[str], allowed: tuple[str, ...]) -> None:
    """Raise DataError for a key that would be ignored."""
    for key in keys:
        if key not in allowed:
            raise DataError(f'unknown key "{key[:40]}" (expected {", ".join(allowed)})')


def check_axis_names(value: object) -> tuple[str, ...]:
    """Axis names from JSON, which must be a list of strings."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise DataError('key "axes" is not a list of strings')
    return tuple(value)


def check_labels(value: object) -> dict[str, Labels]:
    """Labels from JSON: for each axis a list of strings, or of such lists."""
    if not isinstance(value, dict):
        raise DataError('key "labels" is not an object')
    for axis, labels in value.items():
        rows = labels if isinstance(labels, list) and labels and isinstance(labels[0], list) else [labels]
        if not all(isinstance(row, list) and all(isinstance(label, str) for label in row) for row in rows):
            raise DataError(f'labels of axis "{axis[:40]}" are not a list of strings, nor of such lists')
    return value


def check_history(value: object) -> list[dict[str, Any]]:
    """The history from JSON: commands, versions and the SHA-256 of inputs.

    `machine` is what computed it, where that is another one than before. `beside` is the side file that the command
    wrote the record to, where it is not its main result. `modules` is what the modules of a folder did.
    """
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise DataError('key "history" is not a list of objects')
    for at, entry in enumerate(value):
        files, modules = entry.get("files", {}), entry.get("modules", [])
        texts = entry.get("command"), entry.get("version"), entry.get("beside", ""), entry.get("machine", "")
        if not (isinstance(modules, list) and all(isinstance(text, str) for text in modules)):
            raise DataError(f'entry {at} of key "history": "modules" is not a list of strings')
        if not (isinstance(files, dict) and all(isinstance(text, str) for text in texts)):
            raise DataError(f'entry {at} of key "history" is not an object of "command", "version" and "files"')
        if not VERSION.fullmatch(entry["version"]):
            raise DataError(f'entry {at} of key "history": version {entry["version"]!r} is none of attnkit')
        if "machine" in entry and not MACHINE.fullmatch(entry["machine"]):
            raise DataError(f'entry {at} of key "history": machine {entry["machine"]!r} is not a short text')
        for file, digest in files.items():
            if not (isinstance(digest, str) and SHA256.fullmatch(digest)):
                raise DataError(f'entry {at} of key "history": {file!r} has no SHA-256, but {digest!r}')
    return value
