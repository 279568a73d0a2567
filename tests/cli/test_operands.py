"""The files that options name: each kind of content from a file, from the stage before, and from Python."""

import json
from typing import get_args

import numpy as np
import pytest

from attnkit.cli.operands import CONTENTS, Load
from attnkit.errors import UsageError
from attnkit.formats import save
from attnkit.records import Record

IDS = Record({"x": np.ones((2, 3)), "ids": np.array([4, 5]), "mask": np.array([[True, False]])})
MEMORY = Record({"x": np.zeros((2, 3)), "memory": np.ones((2, 3)), "memory_mask": np.array([[True, False]])})
HEADS = Record({"decoder.0.self.heads": np.arange(24.0).reshape(2, 3, 4)})
MESSAGES = [{"role": "user", "content": "Hi"}]
RECORDS = {
    **dict.fromkeys(("tensor", "tensors", "attended", "index", "image", "audio"), IDS),
    **{"memory": MEMORY, "ids": IDS, "targets": IDS, "means": HEADS},
}
TEXTS = {
    "words": (["a", "am"], ["a", "am"]),
    "messages": ([json.dumps(one) for one in MESSAGES], MESSAGES),
    "lines": (["a b", "c"], [["a b", "c"]]),
}
# kind -> a value of another kind, and what was expected
WRONG = {
    **dict.fromkeys(("tensor", "index", "image", "audio", "ids", "targets"), ({}, "an array or a record with x")),
    **dict.fromkeys(("tensors", "patches"), ([1], "a dict of arrays")),
    "attended": ({}, "an array or a record"),
    "memory": ("abc", "an array of numbers"),
    "means": ([1], "a dict of arrays or a record"),
    "words": (5, "a list of words"),
    "tokenizer": (5, "a tokenizer"),
    "model": (5, "a folder or a model"),
    "lines": (5, "a list of lines, or of lists of lines"),
    "messages": ([{"role": "user"}, 5], "a list of dicts with role and content"),
    "template": (5, "a file"),
}


def computed_with(content):
    """The arrays of content: of a record x, and its mask as keys."""
    if isinstance(content, Record):
        return [content["x"], *(mask["x"] for mask in [getattr(content, "mask", None)] if mask is not None)]
    return [*content.values()] if isinstance(content, dict) else [content]


def test_each_kind_is_a_row():
    assert {*get_args(Load)} == {*CONTENTS}
    assert {*WRONG} == {*CONTENTS}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_has_the_same_content_in_a_file_a_pipe_and_python(kind, tmp_path):
    file = str(tmp_path / "a.npz")
    save(RECORDS[kind], file)
    of_file, digests, *_ = CONTENTS[kind].load(file, None, False)
    of_pipe, none, *_ = CONTENTS[kind].load("-", [RECORDS[kind]], False)
    assert [*(digests or of_file.digests())] == [file] and none == {}  # an index is hashed for a history alone
    for other in (of_pipe, CONTENTS[kind].convert(RECORDS[kind], "--option")):
        for one, same in zip(computed_with(of_file), computed_with(other), strict=True):
            np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_has_the_same_content_in_a_file_a_pipe_and_python(kind, tmp_path):
    lines, value = TEXTS[kind]
    file = tmp_path / "a.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    assert CONTENTS[kind].load(str(file), None, False)[0] == value
    assert CONTENTS[kind].load("-", lines, False)[:2] == (value, {})
    assert CONTENTS[kind].convert(value, "--option") == value


@pytest.mark.parametrize("kind", WRONG)
def test_a_value_of_another_kind_is_refused(kind):
    value, expected = WRONG[kind]
    with pytest.raises(UsageError, match=f"^--option: expected {expected}, got "):
        CONTENTS[kind].convert(value, "--option")
