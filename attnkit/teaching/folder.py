"""New files in a folder, which replace no other files."""

import os
from collections.abc import Mapping

from attnkit.errors import FileError, UsageError, system_reason
from attnkit.formats import Sink, open_source
from attnkit.formats.streams import exists


def write_new_files(folder: str, files: Mapping[str, bytes]) -> None:
    """Write files to a folder, which is created if needed.

    A file that is there with the same content stays. FileError for one with another content: then none is written.
    """
    if folder in ("", "-"):
        raise UsageError(f"expected the name of a folder, got {folder!r}", "--output")
    paths = {os.path.join(folder, name): data for name, data in files.items()}
    new = {path: data for path, data in paths.items() if not _is_written(path, data)}
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot make this folder: {system_reason(error)}", folder) from error
    for path, data in new.items():
        with Sink(path) as sink:
            sink.write([data])


def _is_written(path: str, data: bytes) -> bool:
    """Whether a file has this content; FileError if it has another one."""
    if not exists(path):
        return False
    with open_source(path) as source:
        if source.peek(len(data) + 1) == data:
            return True
    raise FileError("it exists with other content, perhaps filled in; nothing was written, name another folder", path)
