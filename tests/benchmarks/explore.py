"""What a page of a trace costs, and how soon Chromium has drawn it: python tests/benchmarks/explore.py [TOKENS…]

For each number of tokens the trace of a model of 12 layers of 12 heads, 768 wide, with all its intermediates, of random
numbers: its size, seconds and peak memory of `attnkit explore`, the size of the page, and seconds until it is drawn.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from usage import read_words

from attnkit import formats
from attnkit.interpret.tracer import intermediate_axes
from attnkit.records import Record, Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))  # of which `tests` is, not a package of this name

from tests.chromium import Chromium, find_chromium

LAYERS, HEADS, WIDTH, HIDDEN = 12, 12, 768, 3072
STATES = ("self.output", "self.residual", "norm1", "ffn.output", "ffn.residual", "norm2")


def make_trace(tokens: int) -> Record:
    """Return the intermediates of an encoder, of random numbers."""
    rng = np.random.default_rng(0)
    arrays = {}
    for layer in range(LAYERS):
        scores = rng.standard_normal((HEADS, tokens, tokens), dtype=np.float32) * 2
        weights = np.exp(scores)
        split = rng.standard_normal((HEADS, tokens, WIDTH // HEADS), dtype=np.float32)
        state, hidden = (rng.standard_normal((tokens, width), dtype=np.float32) for width in (WIDTH, HIDDEN))
        values = dict.fromkeys(("self.q", "self.k", "self.v", "self.heads"), split)
        values |= dict.fromkeys(("self.scores", "self.scaled", "self.capped", "self.masked"), scores)
        values |= {"self.weights": weights / weights.sum(axis=-1, keepdims=True)}
        values |= dict.fromkeys(STATES, state) | dict.fromkeys(("ffn.hidden", "ffn.activated"), hidden)
        arrays |= {f"encoder.{layer}.{name}": array for name, array in values.items()}
    words = [f"w{number}" for number in rng.integers(200, size=tokens)]
    tensors = {name: Tensor(array, intermediate_axes(name, array.ndim)) for name, array in arrays.items()}
    return Record(tensors, dict.fromkeys(("token", "query", "key"), words))


def time_drawing(page: Path, folder: str) -> float:
    """Return the seconds from the request of a page until it has drawn its first view."""
    browser = Chromium(folder)
    try:
        browser.open(page)  # the program and the fonts are in memory
        start = time.perf_counter()
        browser.open(page)
        return time.perf_counter() - start
    finally:
        browser.close()


def main() -> None:
    for tokens in map(int, read_words(__doc__ or "", takes_numbers=True) or ("64", "512")):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            trace, page = Path(folder, "trace.npz"), Path(folder, "page.html")
            formats.save(make_trace(tokens), str(trace))
            start = time.perf_counter()
            process = subprocess.Popen([sys.executable, "-m", "attnkit", "explore", trace, "-o", page])
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            drawn = f"{time_drawing(page, folder):.2f} s" if find_chromium() else "no Chromium here"
            sizes = f"trace {trace.stat().st_size / 1e6:.0f} MB, page {page.stat().st_size / 1e6:.1f} MB"
            cost = f"{seconds:.2f} s and {usage.ru_maxrss / 1e3:.0f} MB of memory" if not status else "failed"
            print(f"{tokens} tokens: {sizes}; explore {cost}; drawn in {drawn}", flush=True)


if __name__ == "__main__":
    main()
