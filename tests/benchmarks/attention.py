"""What attention costs beside its peers in the same run: python tests/benchmarks/attention.py [JOB…] [T…]

steady   one process, 8 heads × 64 in float32, causal and not: seconds of attnkit, torch, onnxruntime and the plain
         formula, and how many times as long as torch attnkit takes
growth   seconds against T from 4096 up: the exponent between neighbours (2 is quadratic), and causal against whole
memory   peak of T = 32768 above its inputs, and of the statistics of the weights of T = 131072 with one head
steep    scores too far apart for float32, a bias, a softcap: seconds beside plain scores

Without job: steady and growth. Each figure is the least of several runs taken in turn; a formula that needs the matrix
stops at T = 4096. Peers that are not installed are left out (pip install torch onnx onnxruntime).
"""

import math
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from attnkit import model
from attnkit.model.blockwise import blockwise_attention

HEADS, WIDTH = 8, 64
LENGTHS = (512, 2048, 4096, 8192, 16384)
Work = Callable[[], object]

MEMORY = """
import resource, sys, time, numpy as np
from attnkit.model.blockwise import blockwise_attention
from attnkit.model.inspection import weight_stats, weight_topk

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

job, heads, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
q, k, v = np.random.default_rng(0).standard_normal((3, heads, length, 64), dtype=np.float32)
before, start = peak(), time.perf_counter()
if job == "stats":
    out = weight_stats(q, k, causal=True).values()
elif job == "topk":
    out = weight_topk(q, k, 8, causal=True)
else:
    out = blockwise_attention(q, k, v, causal=job == "causal")
print(time.perf_counter() - start, peak() - before, sum(x.nbytes for x in out) / 2**20)
"""


def operands(length: int) -> list[np.ndarray]:
    """q, k and v of a batch of one."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, HEADS, length, WIDTH), dtype=np.float32) for _ in range(3)]


def least(works: dict[str, Work], runs: int) -> dict[str, float]:
    """The least seconds of each, all of them in turn."""
    best = dict.fromkeys(works, math.inf)
    for _ in range(runs):
        for name, work in works.items():
            time.sleep(0.05)  # the threads of the one before spin for a while
            start = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def runs_of(length: int) -> int:
    """More runs where they are short."""
    return max(3, min(20, (8192 // length) ** 2))


def torch_work(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Work:
    """torch.nn.functional.scaled_dot_product_attention."""
    import torch

    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)


def onnx_work(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Work:
    """The Attention operator of onnxruntime."""
    import onnxruntime
    from onnx import TensorProto, helper

    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=int(causal))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, q.shape) for name in "qkvy"]
    graph = helper.make_graph([node], "attention", values[:3], values[3:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    return lambda: session.run(None, {"q": q, "k": k, "v": v})


def works(length: int, causal: bool) -> dict[str, Work]:
    """Ours first, then whichever peers there are."""
    q, k, v = operands(length)
    found: dict[str, Work] = {"attnkit": lambda: blockwise_attention(q, k, v, causal=causal)}
    if find_spec("torch"):
        found["torch"] = torch_work(q, k, v, causal)
    if find_spec("onnx") and find_spec("onnxruntime") and length <= 8192:
        found["onnxruntime"] = onnx_work(q, k, v, causal)
    if length <= 4096:
        found["formula"] = lambda: model.attention(q, k, v, causal=causal, keep=())
    return found


def steady(lengths: list[int]) -> None:
    """Seconds inside one process, beside the peers."""
    print(f"{HEADS} heads x {WIDTH}, float32: milliseconds")
    for causal in (False, True):
        for length in lengths:
            taken = least(works(length, causal), runs_of(length))
            ours, torch = taken["attnkit"], taken.get("torch")
            row = "".join(f"  {name} {seconds * 1000:.1f}" for name, seconds in taken.items())
            note = f"  attnkit / torch {ours / torch:.2f}" if torch else ""
            print(f"T {length:6} {'causal' if causal else 'whole ':6}{row}{note}", flush=True)


def growth(lengths: list[int]) -> None:
    """Seconds against T."""
    taken: dict[tuple[int, bool], float] = {}
    for length in [n for n in lengths if n >= 4096]:
        q, k, v = operands(length)
        both: dict[str, Work] = {
            "whole": lambda q=q, k=k, v=v: blockwise_attention(q, k, v),
            "causal": lambda q=q, k=k, v=v: blockwise_attention(q, k, v, causal=True),
        }
        found = least(both, runs_of(length))
        taken[length, False], taken[length, True] = found["whole"], found["causal"]
        row = f"T {length:6} whole {found['whole']:.3f} s  causal {found['causal']:.3f} s"
        row += f"  causal / whole {found['causal'] / found['whole']:.2f}"
        if (length // 2, False) in taken:
            steps = [math.log2(taken[length, causal] / taken[length // 2, causal]) for causal in (False, True)]
            row += "  exponents {:.2f} {:.2f}".format(*steps)
        print(row, flush=True)


def memory(lengths: list[int]) -> None:
    """Peak memory above the inputs, each in a process of its own."""
    for job, heads, length in (("causal", 8, 32768), ("whole", 8, 32768), ("stats", 1, 131072), ("topk", 1, 131072)):
        command = [sys.executable, "-c", MEMORY, job, str(heads), str(length)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds, above, output = (float(word) for word in out.split())
        print(f"{job:6} T {length} x {heads} heads: {seconds:.1f} s", end="")
        print(f", {above - output:.0f} MB above inputs and output ({output:.0f} MB)", flush=True)


def steep(lengths: list[int]) -> None:
    """What costs more than plain scores."""
    for length in [n for n in lengths if n <= 4096]:
        q, k, v = operands(length)
        far, bias = 10 * q, np.random.default_rng(1).standard_normal((length, length), dtype=np.float32)
        taken = least(
            {
                "plain": lambda q=q, k=k, v=v: blockwise_attention(q, k, v),
                "far": lambda q=far, k=k, v=v: blockwise_attention(q, k, v),
                "bias": lambda q=q, k=k, v=v, bias=bias: blockwise_attention(q, k, v, bias=bias),
                "softcap": lambda q=q, k=k, v=v: blockwise_attention(q, k, v, softcap=30.0),
            },
            runs_of(length),
        )
        print(f"T {length:6}" + "".join(f"  {name} {seconds * 1000:.1f} ms" for name, seconds in taken.items()))


JOBS = {"steady": steady, "growth": growth, "memory": memory, "steep": steep}

if __name__ == "__main__":
    jobs = [word for word in sys.argv[1:] if word in JOBS] or ["steady", "growth"]
    lengths = [int(word) for word in sys.argv[1:] if word.isdigit()] or list(LENGTHS)
    for job in jobs:
        JOBS[job](lengths)
