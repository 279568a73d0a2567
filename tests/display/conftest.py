"""The browser of the tests of pages: one process for all of them."""

import pytest

from tests.chromium import Chromium, find_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if not find_chromium():
        pytest.skip("no chromium on PATH")
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()
