"""What NumPy and OpenBLAS allow, beside PyTorch in the same run: python tests/benchmarks/limits.py [JOB…]

products      bare products in the shapes of attention, a corpus, an LSTM and a prompt: GFLOP/s of each
elementwise   bare functions of 65,536 numbers in a core's cache: billions a second of each
imports       milliseconds to import NumPy, and NumPy with Typer

A ratio is how many times as long as PyTorch NumPy takes, and for GELU attnkit. No program that multiplies by NumPy is
faster than the products. OPENBLAS_CORETYPE chooses the loops of OpenBLAS. Figures are the least of many runs in turn.
"""

import math
import subprocess
import sys
import time
from collections.abc import Callable

from usage import read_words

from attnkit.tuning import tune_blas

tune_blas()  # before NumPy is imported, as the command does

import numpy as np
import torch

from attnkit.model.formulas.activations import gelu_float32
from attnkit.model.processor.products import arranged_product
from attnkit.model.processor.threads import single_blas

RUNS = 40
PRODUCTS = {
    "scores of a tile": (128, 64, 64),
    "a corpus, 384 x 1536": (4800, 384, 1536),
    "a corpus, 1536 x 384": (4800, 1536, 384),
    "LSTM 512, 16 texts": (16, 512, 2048),
    "LSTM 512, 1 text": (1, 512, 2048),
    "prompt of GPT-2's size": (1024, 768, 3072),
}
Work = Callable[[], object]


def least(works: dict[str, Work], repeats: int = 1) -> dict[str, float]:
    """The least seconds of each, all of them in turn, in their second run in a row."""
    best = dict.fromkeys(works, math.inf)
    for _ in range(RUNS):
        for name, work in works.items():
            work()
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            best[name] = min(best[name], (time.perf_counter() - start) / repeats)
    return best


def show(title: str, seconds: dict[str, float], count: float) -> None:
    """Print how many billions a second each does, and how many times as long as PyTorch."""
    row = "".join(f"  {name} {count / taken / 1e9:.1f}" for name, taken in seconds.items())
    ratios = [f"{name} / torch {taken / seconds['torch']:.2f}" for name, taken in seconds.items() if name != "torch"]
    print(f"{title:24}{row}  {'  '.join(ratios)}", flush=True)


def products() -> None:
    """Products on all cores, and those of fixed shapes, with which a text has the same bits in any batch."""
    rng = np.random.default_rng(0)
    for title, (rows, inner, columns) in PRODUCTS.items():
        x, y = (rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, inner), (inner, columns)))
        a, b = torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(y.T)).T
        out, other = np.empty((rows, columns), np.float32), torch.empty(rows, columns)
        works: dict[str, Work] = {"numpy": lambda x=x, y=y, out=out: np.matmul(x, y, out=out)}
        if title.startswith("a corpus"):
            works["same bits"] = lambda x=x, y=y: arranged_product(x, y)
        works["torch"] = lambda a=a, b=b, other=other: torch.mm(a, b, out=other)
        show(title, least(works, 1 if rows > 999 else 20), 2 * rows * inner * columns)


def elementwise() -> None:
    """Functions on one core."""
    x = np.random.default_rng(0).standard_normal(1 << 16, dtype=np.float32)
    y, t = np.empty_like(x), torch.from_numpy(x)
    u = torch.empty_like(t)
    torch.set_num_threads(1)
    pairs: dict[str, tuple[Work, Work]] = {
        "exp": (lambda: np.exp(x, out=y), lambda: torch.exp(t, out=u)),
        "exp2": (lambda: np.exp2(x, out=y), lambda: torch.exp2(t, out=u)),
        "tanh": (lambda: np.tanh(x, out=y), lambda: torch.tanh(t, out=u)),
        "multiply": (lambda: np.multiply(x, x, out=y), lambda: torch.mul(t, t, out=u)),
        "GELU": (lambda: gelu_float32(x), lambda: torch.nn.functional.gelu(t)),
    }
    for name, (ours, theirs) in pairs.items():
        with single_blas():
            show(name, least({"numpy": ours, "torch": theirs}, 10), x.size)


def imports() -> None:
    """Start-up of an interpreter that imports."""
    lines = {"numpy": "import numpy", "numpy and typer": "import numpy, typer"}
    run: dict[str, Work] = {
        name: lambda code=code: subprocess.run([sys.executable, "-c", code], check=True) for name, code in lines.items()
    }
    print("".join(f"  import {name} {taken * 1000:.0f} ms" for name, taken in least(run).items()))


if __name__ == "__main__":
    jobs = {"products": products, "elementwise": elementwise, "imports": imports}
    for job in read_words(__doc__ or "", jobs) or jobs:
        jobs[job]()
