"""Fixtures of the tests of tools."""

import numpy as np
import pytest

from tests.commands.long_text import HEADS, PARAMS, RNG, TOKENS, WORDS


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "params.npz", **PARAMS)
    for name in "qkv":
        np.save(tmp_path / f"{name}.npy", RNG.standard_normal((2, HEADS, TOKENS, 8)))
    (tmp_path / "text").write_text(" ".join(WORDS))
    return tmp_path
