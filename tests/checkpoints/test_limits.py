"""Limits in config.json, whose upper one may be infinite: written by Python, or by transformers 5."""

import math

import pytest

from attnkit.checkpoints.config_reader import ConfigReader, read_json
from attnkit.errors import DataError

OLD, NEW = '{"limit": [0.0, Infinity], "word": "Infinity"}', '{"limit": [0.5, {"__float__": "Infinity"}]}'


def test_an_infinite_limit_of_either_form(tmp_path):
    path = tmp_path / "config.json"
    for text, expected in ((OLD, (0, math.inf)), (NEW, (0.5, math.inf)), ('{"limit": null}', (0, math.inf))):
        path.write_text(text)
        values = read_json(str(path))
        assert ConfigReader(values, "config.json").get_limits("limit") == expected
    path.write_text(OLD)
    assert read_json(str(path))["word"] == "Infinity"


@pytest.mark.parametrize("wrong", [[1], [1, 2, 3], "x", [2, 1], [-1, 2], [0, "Infinity"], [math.nan, 1], 7])
def test_wrong_limits_are_an_error_that_names_the_key(wrong):
    with pytest.raises(DataError, match="limit is"):
        ConfigReader({"limit": wrong}, "config.json").get_limits("limit")


def test_other_words_that_are_no_json_are_still_an_error(tmp_path):
    (tmp_path / "config.json").write_text('{"limit": [-Infinity, NaN]}')
    with pytest.raises(DataError, match="-Infinity is not JSON"):
        read_json(str(tmp_path / "config.json"))
