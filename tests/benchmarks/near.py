"""What the nearest of a million vectors cost beside NumPy in the same run: python tests/benchmarks/near.py [ROWS]

steady   inside one process, vectors in memory: seconds of one matrix product and a partition of the scores in NumPy,
         whole and in blocks of rows, and of find_nearest, for 1 and 32 queries
process  whole processes, a mapped file in, JSON out: a script of NumPy in blocks, and `attnkit near`; peak memory

Vectors of 384, in float32. Each figure is the least of several runs taken in turn.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from usage import read_words

from attnkit.model.formulas.nearest import METRICS, find_nearest

WIDTH, TOP, BLOCK = 384, 5, 4096
NUMPY = f"""
import numpy as np
vectors, query = np.load("vectors.npy", mmap_mode="r"), np.load("query.npy")
best, found = np.empty(0, np.float32), np.empty(0, int)
for at in range(0, len(vectors), {BLOCK}):
    best = np.concatenate([best, vectors[at : at + {BLOCK}] @ query])
    found = np.concatenate([found, np.arange(at, at + len(best) - len(found))])
    order = np.argpartition(-best, {TOP})[:{TOP}]
    best, found = best[order], found[order]
print(found[np.argsort(-best)])
"""


def least(works: dict[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Return the least seconds of each, run in turn."""
    seconds = dict.fromkeys(works, float("inf"))
    for _ in range(times):
        for name, work in works.items():
            time.sleep(0.1)  # the threads of the one before spin for a while
            start = time.perf_counter()
            work()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def in_blocks(vectors: np.ndarray, queries: np.ndarray) -> None:
    for at in range(0, len(vectors), BLOCK):
        np.argpartition(-(queries @ vectors[at : at + BLOCK].T), TOP, axis=1)


def steady(vectors: np.ndarray, count: int) -> None:
    queries = np.random.default_rng(1).standard_normal((count, WIDTH), dtype=np.float32)
    works: dict[str, Callable[[], object]] = {
        "NumPy": lambda: np.argpartition(-(queries @ vectors.T), TOP, axis=1),
        "NumPy in blocks": lambda: in_blocks(vectors, queries),
    }
    works |= {metric: lambda metric=metric: find_nearest(vectors, queries, TOP, metric) for metric in METRICS}
    seconds = least(works, 15 if count == 1 else 5)
    base = min(seconds["NumPy"], seconds["NumPy in blocks"])
    for name, spent in seconds.items():
        print(f"{count:3} queries  {name:16} {spent * 1000:8.1f} ms  {spent / base:5.2f} ×", flush=True)


def process(folder: str) -> None:
    near = [sys.executable, "-m", "attnkit", "near", "query.npy", "--index", "vectors.npy", "--metric", "dot"]
    commands = {"NumPy": [sys.executable, "-c", NUMPY], "attnkit near": [*near, "-f", "table"]}
    commands["attnkit near -f json"] = [*near, "-f", "json"]  # with the SHA-256 of the file in its history
    peaks = {}

    def run(name: str) -> None:
        with subprocess.Popen(commands[name], cwd=folder, stdout=subprocess.DEVNULL) as child:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = status
        peaks[name] = usage.ru_maxrss / 1024

    seconds = least({name: lambda name=name: run(name) for name in commands}, 3)
    for name, spent in seconds.items():
        ratio = spent / seconds["NumPy"]
        print(f"process  {name:24} {spent:6.2f} s  {ratio:5.2f} ×  {peaks[name]:6.0f} MB", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["process"]:
        process(sys.argv[2])
        return
    rows = int([*read_words(__doc__ or "", takes_numbers=True), "1000000"][0])
    vectors = np.random.default_rng(0).standard_normal((rows, WIDTH), dtype=np.float32)
    for count in (1, 32):
        steady(vectors, count)
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/vectors.npy", vectors)
        np.save(f"{folder}/query.npy", vectors[1] + vectors[2])
        # in a small process: the peak of one is at least that of the one that started it
        subprocess.run([sys.executable, __file__, "process", folder], check=True)


if __name__ == "__main__":
    main()
