"""Bad GGUF files: what a header states is compared with the file before anything is allocated."""

import pytest

from tests.faults.bad_gguf import BAD


@pytest.mark.slow
@pytest.mark.parametrize(("content", "parts"), [(case[0], case[1:]) for case in BAD.values()], ids=BAD)
def test_refused(reject, content, parts):
    reject(content, *parts)
