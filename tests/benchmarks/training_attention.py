"""What attention costs a step of training, beside PyTorch: python tests/benchmarks/training_attention.py [JOB…]

attention   causal self-attention of queries, keys and values in heads: forward pass and gradients
multi-head  the same with the projections before and after it, and the gradients of their weights
long        the forward pass and gradients of one long text, without its matrix

Without job: all. Each figure is the median of runs taken in turn, milliseconds of wall-clock time; `cpu` is the least
processor time of all threads, with one thread each, which a busy machine changes less. The gradients are compared.
PyTorch is that of this Python, or the one in the environment that TORCH_ENVIRONMENT names.
"""

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from attnkit.tuning import tune_allocator, tune_blas

tune_blas()  # before NumPy is imported, as the command does
if "TORCH_ENVIRONMENT" in os.environ:
    sys.path += map(str, Path(os.environ["TORCH_ENVIRONMENT"]).glob("lib/python*/site-packages"))

import numpy as np
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from attnkit.model.backward.attention_backward import attention_backward, attention_forward, multi_head_attention_vjp
from attnkit.model.processor import threads
from attnkit.model.processor.threads import single_blas

SIZES = {"B 12, H 4, T 64, K 32": (12, 4, 64, 32), "B 8, H 6, T 256, K 64": (8, 6, 256, 64)}
LONG = {"B 2, H 12, T 1024, K 64": (2, 12, 1024, 64), "B 1, H 4, T 8192, K 64": (1, 4, 8192, 64)}
WEIGHTS = ("wq", "wk", "wv", "wo")
Work = Callable[[], list[np.ndarray]]


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def heads_of(x: np.ndarray, heads: int) -> np.ndarray:
    """x (B, T, H*K) as (B, H, T, K), without a copy."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def attention_works(batch: int, heads: int, length: int, width: int) -> tuple[Work, Work]:
    """Forward pass and gradients of attention, by attnkit and by PyTorch."""
    q, k, v, grad = (heads_of(x, heads) for x in random(4, batch, length, heads * width))
    tensors = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    grad_tensor = torch.from_numpy(grad)

    def ours() -> list[np.ndarray]:
        saved = attention_forward(q, k, v, causal=True)
        gradients = attention_backward(grad, q, k, v, causal=True, saved=saved)
        return [gradients[name] for name in "qkv"]

    def theirs() -> list[np.ndarray]:
        output = scaled_dot_product_attention(*tensors, is_causal=True)
        return [x.numpy() for x in torch.autograd.grad(output, tensors, grad_tensor)]

    return ours, theirs


def multi_head_works(batch: int, heads: int, length: int, width: int) -> tuple[Work, Work]:
    """Forward pass and gradients of self-attention with its projections, by attnkit and by PyTorch."""
    model = heads * width
    x, grad = random(2, batch, length, model)
    params = {name: w / model**0.5 for name, w in zip(WEIGHTS, random(4, model, model), strict=True)}
    params |= {f"b{name[1]}": random(model) for name in WEIGHTS}
    tensor, grad_tensor = torch.from_numpy(x).requires_grad_(), torch.from_numpy(grad)
    joined = np.concatenate([params[name] for name in WEIGHTS[:3]], axis=1).T.copy()
    biases = np.concatenate([params[f"b{name[1]}"] for name in WEIGHTS[:3]])
    made = (joined, biases, params["wo"].T.copy(), params["bo"])
    leaves = [torch.from_numpy(w).requires_grad_() for w in made]

    def ours() -> list[np.ndarray]:
        _, pullback = multi_head_attention_vjp(x, x, x, params, heads=heads, causal=True)
        inputs, weights = pullback(grad)
        return [inputs["query"] + inputs["key"] + inputs["value"], *(weights[name] for name in WEIGHTS)]

    def theirs() -> list[np.ndarray]:
        split = linear(tensor, leaves[0], leaves[1]).split(model, dim=-1)
        q, k, v = (part.view(batch, length, heads, width).transpose(1, 2) for part in split)
        merged = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, model)
        output = linear(merged, leaves[2], leaves[3])
        dx, dw, _, dwo, _ = torch.autograd.grad(output, [tensor, *leaves], grad_tensor)
        return [part.numpy() for part in (dx, *(w.T for w in dw.split(model)), dwo.T)]

    return ours, theirs


def median_times(works: tuple[Work, Work], runs: int) -> list[float]:
    """The median of the wall-clock seconds of each, in turn; each runs twice, as threads of the one before wait."""
    times: list[list[float]] = [[], []]
    for _ in range(runs):
        for work, taken in zip(works, times, strict=True):
            work()
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def processor_times(works: tuple[Work, Work], runs: int) -> list[float]:
    """The least processor seconds of each with one thread."""
    best = [float("inf")] * 2
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    with single_blas(), patch.object(threads, "_saved", [1]):  # as if the user had set one thread
        for _ in range(runs):
            for i, work in enumerate(works):
                start = time.process_time()
                work()
                best[i] = min(best[i], time.process_time() - start)
    torch.set_num_threads(count)
    return best


def compare(works: tuple[Work, Work]) -> float:
    """The largest difference of the gradients, relative to the largest number of each."""
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(*(work() for work in works), strict=True))


JOBS = {"attention": (attention_works, SIZES), "multi-head": (multi_head_works, SIZES), "long": (attention_works, LONG)}


def figures(works: tuple[Work, Work], runs: int) -> str:
    """The figures of a row: both times, their ratio, both processor times, their ratio, the largest difference."""
    ours, theirs = (1e3 * seconds for seconds in median_times(works, runs))
    mine, other = (1e3 * seconds for seconds in processor_times(works, runs))
    times = f"{ours:9.2f}{theirs:9.2f}{ours / theirs:7.2f}{mine:9.2f}{other:9.2f}{mine / other:7.2f}"
    return f"{times}{compare(works):12.1e}"


def print_titles(width: int) -> None:
    """Tune the allocator as the command does, and print the titles of the figures."""
    tune_allocator(ctypes.CDLL(None))
    print(f"{'':{width}}{'attnkit':>9}{'torch':>9}{'ratio':>7}{'cpu':>9}{'torch':>9}{'ratio':>7}{'difference':>12}")


def main(jobs: list[str]) -> None:
    print_titles(38)
    for job in jobs or JOBS:
        make, sizes = JOBS[job]
        for size, shape in sizes.items():
            runs = max(3, min(40, (1 << 28) // (shape[0] * shape[1] * shape[2] ** 2 * shape[3])))
            print(f"{job:12}{size:26}{figures(make(*shape), runs)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
