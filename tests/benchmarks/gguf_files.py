"""GGUF files: seconds to read a header of 150,000 tokens and merges, and weights decoded a second, by type.

    PYTHONPATH=. python tests/benchmarks/gguf_files.py

Beside the package gguf where it is installed. One thread.
"""

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attnkit.formats import gguf
from attnkit.formats.gguf_blocks import BLOCK_TYPES, decode_blocks

sys.path.insert(0, str(Path(__file__).parents[2]))  # of which `tests` is, not a package of this name

from tests.gguf_files import pack_gguf

COUNT, WEIGHTS, TIMES = 150_000, 1 << 22, 3
HAS_PACKAGE = importlib.util.find_spec("gguf") is not None


def fastest(function: Callable[[], Any], times: int = TIMES) -> float:
    """The seconds of the fastest call."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def write_vocabulary(path: str) -> None:
    keys = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": [f"token{at}" for at in range(COUNT)],
        "tokenizer.ggml.merges": [f"tok en{at}" for at in range(COUNT)],
        "tokenizer.ggml.scores": [0.5] * COUNT,
    }
    with open(path, "wb") as file:
        file.write(pack_gguf(keys, {"x": np.ones(32)}))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.gguf")
        write_vocabulary(path)
        line = f"header of {COUNT:,} tokens and merges: {1000 * fastest(lambda: gguf.open_gguf(path)):.0f} ms"
        if HAS_PACKAGE:
            from gguf import GGUFReader

            line += f"; GGUFReader {1000 * fastest(lambda: GGUFReader(path), 1):.0f} ms"
        print(line)
    print("million weights a second: type, attnkit" + ", gguf" * HAS_PACKAGE)
    rng = np.random.default_rng(0)
    for number, kind in BLOCK_TYPES.items():
        if kind.decode is None:
            continue
        blocks = rng.integers(0, 256, (WEIGHTS // kind.numbers, kind.size), dtype=np.uint8)
        line = f"{kind.name:7} {WEIGHTS / 1e6 / fastest(partial(decode_blocks, blocks.reshape(-1), kind)):5.0f}"
        if HAS_PACKAGE and kind.name not in ("Q8_K", "Q8_1", "Q1_0"):
            from gguf import GGMLQuantizationType, dequantize

            with np.errstate(all="ignore"):
                seconds = fastest(partial(dequantize, blocks, GGMLQuantizationType(number)))
            line += f" {WEIGHTS / 1e6 / seconds:5.0f}"
        print(line)


if __name__ == "__main__":
    main()
