"""Bad safetensors input: the header is checked as a whole before a byte of data is believed."""

import numpy as np
import pytest

from tests.faults.bad_safetensors import BAD, entry, safetensors


@pytest.mark.slow
@pytest.mark.parametrize(("content", "parts"), [(case[0], case[1:]) for case in BAD.values()], ids=BAD)
def test_refused(reject, content, parts):
    reject(content, *parts)


def test_bfloat16_is_exact(attnkit):
    values = np.array([1, -2, 3.140625, 65536], np.float32)
    halves = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    run = attnkit(
        "show", "--dtype", "float32", "-f", "npy", stdin=safetensors({"x": entry("BF16", (4,), (0, 8))}, halves)
    )
    assert (run.code, run.err) == (0, "")
    assert run.out.endswith(values.tobytes())
