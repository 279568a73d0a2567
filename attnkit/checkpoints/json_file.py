"""The JSON documents of a folder."""

from typing import Any

from attnkit.errors import DataError
from attnkit.formats.json_parser import JSONParser
from attnkit.formats.streams import name_errors, open_source, refuse_lfs_pointer


def read_json_object(path: str) -> dict[str, Any]:
    """The object in a JSON file; DataError says where it is not JSON."""
    import orjson

    with open_source(path) as source, name_errors(path):
        text = bytes(source.read_all())
    refuse_lfs_pointer(text, path)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = _strictly(text, path)
    if not isinstance(value, dict):
        raise DataError("not a JSON object", path)
    return value


def _strictly(text: bytes, path: str) -> Any:
    """The value at the pace of the parser that says where a text goes wrong."""
    with name_errors(path):
        parser = JSONParser(text=text)
        value = parser.value()
        parser.finish()
    return value
