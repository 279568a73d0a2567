"""The JSON documents of a folder."""

from typing import Any

from attnkit.errors import DataError
from attnkit.tensors.files import blamed, open_source, refuse_pointer
from attnkit.tensors.syntax import Parser


def document(path: str) -> dict[str, Any]:
    """The object in a JSON file; DataError says where it is not JSON."""
    import orjson

    with open_source(path) as source, blamed(path):
        text = bytes(source.read_all())
    refuse_pointer(text, path)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = _strictly(text, path)
    if not isinstance(value, dict):
        raise DataError("not a JSON object", path)
    return value


def _strictly(text: bytes, path: str) -> Any:
    """The value at the pace of the parser that says where a text goes wrong."""
    with blamed(path):
        parser = Parser(text=text)
        value = parser.value()
        parser.finish()
    return value
