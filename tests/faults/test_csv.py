"""Bad CSV, TSV and blank-separated numbers: every complaint says where."""

import pytest

from tests.faults.bad_csv import BAD

PROCESSES = [name for name in BAD if name != "long line"]


@pytest.mark.slow
@pytest.mark.parametrize(("content", "parts"), [(BAD[name][0], BAD[name][1:]) for name in PROCESSES], ids=PROCESSES)
def test_refused(reject, content, parts):
    reject(content, *parts)
