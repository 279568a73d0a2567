"""Bad sounds: what a header states is compared with the file before anything is allocated."""

import pytest

from tests.faults.bad_wav import BAD


@pytest.mark.slow
@pytest.mark.parametrize(("content", "parts"), [(case[0], case[1:]) for case in BAD.values()], ids=BAD)
def test_refused(reject, content, parts):
    reject(content, *parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_refused_by_mel(attnkit, refused, name):
    content, *parts = BAD[name]
    run = attnkit("mel", attnkit.file("bad.wav", content), "-o", attnkit.file("old.npz", b"old"))
    refused(run, 3, "mel: bad.wav: ", *parts)
    assert (attnkit.folder / "old.npz").read_bytes() == b"old"
