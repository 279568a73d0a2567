"""Every input of the tables of faults, read in this process; tests/faults gives them to the tools as processes."""

import pytest

from attnkit.errors import DataError
from attnkit.formats import Source, read
from tests.faults import bad_csv, bad_gguf, bad_json, bad_npy, bad_npz, bad_pytorch, bad_safetensors

TABLES = {"json": bad_json.BAD, "npy": bad_npy.BAD, "npz": bad_npz.BAD, "safetensors": bad_safetensors.BAD}
TABLES |= {"pytorch": bad_pytorch.BAD, "csv": bad_csv.BAD, "gguf": bad_gguf.BAD}
CASES = {f"{format}: {name}": case for format, table in TABLES.items() for name, case in table.items()}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name):
    content, *parts = CASES[name]
    with pytest.raises(DataError) as caught:
        list(read(Source.of(content)))
    assert all(part in str(caught.value) for part in parts), caught.value
