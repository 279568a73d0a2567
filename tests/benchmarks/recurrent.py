"""What a recurrent layer costs beside PyTorch, in one run: python tests/benchmarks/recurrent.py [WIDTH…]

The forward pass of an LSTM and of a GRU of each width [256 512] over 1000 tokens, for 1 text and for 16, in float32.
Each figure is the least of several runs taken in turn, milliseconds of wall-clock time, and how many times as long as
PyTorch attnkit takes. The outputs are compared. PyTorch is that of this Python, or the one in the environment that
TORCH_ENVIRONMENT names.
"""

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from attnkit.tuning import tune_allocator, tune_blas

tune_blas()  # before NumPy is imported, as the command does
if "TORCH_ENVIRONMENT" in os.environ:
    sys.path += map(str, Path(os.environ["TORCH_ENVIRONMENT"]).glob("lib/python*/site-packages"))

import numpy as np
import torch

from attnkit.model.formulas.recurrent import RecurrentLayer, run_layer

TOKENS, RUNS = 1000, 7
NAMES = {"weight_ih": "input", "weight_hh": "hidden", "bias_ih": "input_bias", "bias_hh": "hidden_bias"}
Work = Callable[[], np.ndarray]


def works(kind: str, width: int, batch: int) -> tuple[Work, Work]:
    """The forward pass by attnkit, and by PyTorch."""
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(width, width, batch_first=True)
    x = torch.randn(batch, TOKENS, width)
    layer = RecurrentLayer({own: getattr(module, f"{name}_l0").detach().numpy() for name, own in NAMES.items()})

    def ours() -> np.ndarray:
        return run_layer(kind.lower(), x.numpy(), layer).outputs

    def theirs() -> np.ndarray:
        with torch.inference_mode():
            return module(x)[0].numpy()

    return ours, theirs


def least(pair: tuple[Work, Work]) -> list[float]:
    """The least milliseconds of each, in turn, in their second run in a row."""
    best = [math.inf, math.inf]
    for _ in range(RUNS):
        for number, work in enumerate(pair):
            work()  # the threads of the one before wait for work a while, and memory is cold
            start = time.perf_counter()
            work()
            best[number] = min(best[number], 1000 * (time.perf_counter() - start))
    return best


def main() -> None:
    tune_allocator(ctypes.CDLL(None))
    print(f"{'':20}{'attnkit':>10}{'torch':>10}{'times':>8}{'difference':>12}")
    for kind in ("LSTM", "GRU"):
        for width in map(int, sys.argv[1:] or ("256", "512")):
            for batch in (1, 16):
                pair = works(kind, width, batch)
                ours, theirs = least(pair)
                difference = np.abs(pair[0]() - pair[1]()).max()
                title = f"{kind} {width}, {batch} text{'s' * (batch > 1)}"
                print(f"{title:20}{ours:10.1f}{theirs:10.1f}{ours / theirs:8.2f}{difference:12.1e}", flush=True)


if __name__ == "__main__":
    main()
