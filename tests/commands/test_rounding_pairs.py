"""Sixty pairs of results made for the purpose: the verdict of each is the one that is right."""

import numpy as np
import pytest

from tests.places import ROOT
from tests.rounding_pairs import DTYPES, KERNELS, all_pairs

with np.load(ROOT / "tests" / "references" / "kernels.npz") as arrays:
    FROZEN = {f"{kernel}/{dtype}": arrays[f"{kernel}/{dtype}"] for kernel in KERNELS for dtype in DTYPES}
PAIRS = all_pairs(FROZEN)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.kind}: {pair.name}")
def test_the_verdict_of_a_pair(pair):
    assert pair.judge() == pair.expected


def test_the_pairs_cover_each_verdict_and_each_kernel():
    counts = {
        verdict: sum(pair.expected == verdict for pair in PAIRS) for verdict in ("identical", "rounding", "different")
    }
    assert len(PAIRS) >= 60 and min(counts.values()) >= 4 and counts["rounding"] >= 25
    assert all(FROZEN[f"Haswell/{dtype}"].tobytes() != FROZEN[f"{kernel}/{dtype}"].tobytes()
               for kernel in KERNELS[1:] for dtype in ("float32", "float64"))  # fmt: skip
