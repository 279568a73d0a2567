"""Sixty pairs of results made for the purpose: the verdict of each beside the one that is right, with kernels run anew.

    python -m tests.benchmarks.rounding_pairs [--frozen]

It prints a table, and ends with exit code 1 if a verdict is wrong. --frozen takes what tests/references/kernels.npz has
of the kernels of OpenBLAS, which not every processor can run.
"""

import sys
from collections import Counter

import numpy as np

from tests.places import ROOT
from tests.references.make_kernels import compute
from tests.rounding_pairs import KERNELS, all_pairs


def run(kernels):
    """Judge all pairs; return how many verdicts are wrong."""
    counts, wrong = Counter(), 0
    for pair in all_pairs(kernels):
        verdict = pair.judge()
        counts[pair.expected] += 1
        wrong += verdict != pair.expected
        mark = "" if verdict == pair.expected else "WRONG"
        print(f"{pair.kind:28} {pair.name:42} {pair.expected:10} {verdict:10} {mark}".rstrip())
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"\n{sum(counts.values())} pairs ({listed}): {wrong} wrong")
    return wrong


if __name__ == "__main__":
    if "--frozen" in sys.argv:
        with np.load(ROOT / "tests" / "references" / "kernels.npz") as arrays:
            found = {name: arrays[name] for name in arrays if name != "meta.json"}
    else:
        found = {name: one for kernel in KERNELS for name, one in compute(kernel).items()}
    sys.exit(int(run(found) > 0))
