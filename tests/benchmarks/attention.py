"""What attention costs beside its peers in the same run: python tests/benchmarks/attention.py [JOB…] [T…]

process  whole processes, files in to file out, 8 heads × 64 in float32, causal and not: seconds of `attnkit attend` and
         of scripts with torch, onnxruntime and the plain formula in NumPy
steady   the same inside one process, and how many times as long as torch attnkit takes
growth   seconds against T, as a table and a plot: from 4096 up quadratic, and half as much when causal
outlier  the same inside one process where one key is 20 times as long as the others
memory   peak of `attnkit attend` for T = 32768, and for T = 131072 with one head and --weights, above files in and out
steep    scores too far apart for float32, a bias, a softcap: seconds beside plain scores

Without job: steady and growth. Each figure is the least of several runs taken in turn. What needs the matrix stops
where that is more than 3 GB. Peers that are not installed are left out (pip install torch onnx onnxruntime).
"""

import ctypes
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from attnkit.tuning import tune_allocator, tune_blas

tune_blas()  # before NumPy is imported, as the command does

import numpy as np

from attnkit.model.kernels.tiled_attention import tiled_attention

HEADS, WIDTH = 8, 64
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
ATTEND = "attend --query q.npy --key k.npy --value v.npy -o out.npy"
Work = Callable[[], object]

MATRIX = 3e9  # bytes of scores that a peer may hold

TORCH = """
import sys, numpy as np, torch
q, k, v = (torch.from_numpy(np.load(f"{name}.npy")) for name in "qkv")
np.save("torch.npy", torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=sys.argv[1] == "1").numpy())
"""

ONNX = """
import sys, numpy as np, onnxruntime
session = onnxruntime.InferenceSession(f"attention{sys.argv[1]}.onnx")
np.save("onnx.npy", session.run(None, {name: np.load(f"{name}.npy") for name in "qkv"})[0])
"""

FORMULA = """
import sys, numpy as np
q, k, v = (np.load(f"{name}.npy") for name in "qkv")
s = q @ k.swapaxes(-1, -2)
s *= q.shape[-1] ** -0.5
if sys.argv[1] == "1":
    s[..., ~np.tri(s.shape[-2], s.shape[-1], dtype=bool)] = -np.inf
s -= s.max(axis=-1, keepdims=True)
np.exp(s, out=s)
s /= s.sum(axis=-1, keepdims=True)
np.save("formula.npy", s @ v)
"""


def operands(length: int, longest: float = 1.0) -> list[np.ndarray]:
    """q, k and v of a batch of one, where one key is `longest` times as long as the others."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, HEADS, length, WIDTH), dtype=np.float32) for _ in range(3))
    k[:, :, 7] *= longest
    return [q, k, v]


def least(works: dict[str, Work], runs: int, again: bool = True) -> dict[str, float]:
    """The least seconds of each, all of them in turn, in their second run in a row."""
    best = dict.fromkeys(works, math.inf)
    for _ in range(runs):
        for name, work in works.items():
            if again:
                work()  # the threads of the one before wait for work a while, and memory is cold
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


def onnx_model(length: int, causal: bool) -> bytes:
    """The Attention operator of ONNX, alone."""
    from onnx import TensorProto, helper

    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=int(causal))
    shape = (1, HEADS, length, WIDTH)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkvy"]
    graph = helper.make_graph([node], "attention", values[:3], values[3:])
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10
    ).SerializeToString()
    return made


def onnx_work(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Work:
    """The Attention operator in onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_model(q.shape[-2], causal))
    return lambda: session.run(None, {"q": q, "k": k, "v": v})


def formula_work(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Work:
    """The formula, with every query and every key at once."""
    blocked = ~np.tri(q.shape[-2], k.shape[-2], dtype=bool)

    def work() -> np.ndarray:
        scores = q @ k.swapaxes(-1, -2)
        scores *= WIDTH**-0.5
        if causal:
            np.copyto(scores, -np.inf, where=blocked)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return scores @ v

    return work


def fits(length: int) -> bool:
    """Whether a peer may hold the scores of every query with every key."""
    return 4 * HEADS * length**2 <= MATRIX


def works(length: int, causal: bool, longest: float = 1.0) -> dict[str, Work]:
    """Ours first, then whichever peers there are."""
    q, k, v = operands(length, longest)
    found: dict[str, Work] = {"attnkit": lambda: tiled_attention(q, k, v, causal=causal)}
    if find_spec("torch"):
        found["torch"] = torch_work(q, k, v, causal)
    if find_spec("onnx") and find_spec("onnxruntime") and fits(length):
        found["onnxruntime"] = onnx_work(q, k, v, causal)
    if fits(length):
        found["formula"] = formula_work(q, k, v, causal)
    return found


def process(lengths: list[int]) -> None:
    """Seconds of whole processes, files in to file out."""
    here = Path(sys.executable).parent
    print(f"{HEADS} heads x {WIDTH}, float32, files in to file out: seconds")
    for causal, length in ((causal, length) for causal in (False, True) for length in lengths):
        with tempfile.TemporaryDirectory() as folder:
            for name, x in zip("qkv", operands(length), strict=True):
                np.save(Path(folder, f"{name}.npy"), x)
            flag = str(int(causal))
            lines = {"attnkit": [str(here / "attnkit"), *ATTEND.split(), *(["--causal"] if causal else [])]}
            if find_spec("torch"):
                lines["torch"] = [sys.executable, "-c", TORCH, flag]
            if find_spec("onnx") and find_spec("onnxruntime") and fits(length):
                Path(folder, f"attention{flag}.onnx").write_bytes(onnx_model(length, causal))
                lines["onnxruntime"] = [sys.executable, "-c", ONNX, flag]
            if fits(length):
                lines["formula"] = [sys.executable, "-c", FORMULA, flag]
            works: dict[str, Work] = {
                name: lambda line=line: subprocess.run(line, cwd=folder, check=True) for name, line in lines.items()
            }
            taken = least(works, 7 if length < 8192 else 3 if length < 32768 else 1, again=False)
        row = "".join(f"  {name} {seconds:.2f}" for name, seconds in taken.items())
        print(f"T {length:6} {'causal' if causal else 'whole ':6}{row}", flush=True)


def outlier(lengths: list[int]) -> None:
    """As steady, with one long key."""
    print("one key 20 times as long as the others")
    steady(lengths, 20.0)


def steady(lengths: list[int], longest: float = 1.0) -> None:
    """Seconds inside one process, beside the peers."""
    print(f"{HEADS} heads x {WIDTH}, float32: milliseconds")
    for causal in (False, True):
        for length in lengths:
            taken = least(works(length, causal, longest), runs_of(length))
            ours, torch = taken["attnkit"], taken.get("torch")
            row = "".join(f"  {name} {seconds * 1000:.1f}" for name, seconds in taken.items())
            note = f"  attnkit / torch {ours / torch:.2f}" if torch else ""
            print(f"T {length:6} {'causal' if causal else 'whole ':6}{row}{note}", flush=True)


def growth(lengths: list[int]) -> None:
    """Seconds against T: a row and two bars each, whose lengths are logarithms."""
    taken: dict[tuple[int, bool], float] = {}
    print("     T    whole   causal  causal/whole  from half of T: whole, causal")
    for length in lengths:
        q, k, v = operands(length)
        both: dict[str, Work] = {
            "whole": lambda q=q, k=k, v=v: tiled_attention(q, k, v),
            "causal": lambda q=q, k=k, v=v: tiled_attention(q, k, v, causal=True),
        }
        found = least(both, runs_of(length))
        taken[length, False], taken[length, True] = found["whole"], found["causal"]
        row = f"{length:6} {found['whole']:6.3f} s {found['causal']:6.3f} s {found['causal'] / found['whole']:13.2f}"
        if (length // 2, False) in taken:
            times = [taken[length, causal] / taken[length // 2, causal] for causal in (False, True)]
            row += "  {:22.2f} {:7.2f}".format(*times)
        print(row, flush=True)
    least_of_all = min(taken.values())
    for (length, causal), seconds in taken.items():
        bar = "█" * round(1 + 6 * math.log2(seconds / least_of_all))
        print(f"{length:6} {'causal' if causal else 'whole ':6} {bar} {seconds * 1000:.0f} ms")


def memory(lengths: list[int]) -> None:
    """Peak memory of whole processes above the files that they read and write."""
    jobs = (("", 8, 32768), ("--causal", 8, 32768), ("--causal --weights stats", 1, 131072))
    jobs += (("--causal --weights topk:8", 1, 131072), ("--causal --weights rows:0,-1", 1, 131072))
    for flags, heads, length in jobs:
        with tempfile.TemporaryDirectory() as folder:
            for name, seed in zip("qkv", range(3), strict=True):
                x = np.random.default_rng(seed).standard_normal((1, heads, length, WIDTH), dtype=np.float32)
                np.save(Path(folder, f"{name}.npy"), x)
            line = [str(Path(sys.executable).parent / "attnkit"), *ATTEND.split(), *flags.split()]
            line[line.index("out.npy")] = "out.npz"
            code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True)"
            code += "; print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
            start = time.perf_counter()
            peak = subprocess.run(
                [sys.executable, "-c", code, *line], cwd=folder, check=True, capture_output=True
            ).stdout
            seconds = time.perf_counter() - start
            files = sum(path.stat().st_size for path in Path(folder).iterdir())
        above = int(peak) / 1024 - files / 2**20
        row = f"T {length} x {heads} heads {flags:25} {seconds:6.1f} s"
        print(f"{row}, {above:.0f} MB above files of {files / 2**20:.0f} MB", flush=True)


def steep(lengths: list[int]) -> None:
    """What costs more than plain scores."""
    for length in [n for n in lengths if n <= 4096]:
        q, k, v = operands(length)
        far, bias = 10 * q, np.random.default_rng(1).standard_normal((length, length), dtype=np.float32)
        taken = least(
            {
                "plain": lambda q=q, k=k, v=v: tiled_attention(q, k, v),
                "far": lambda q=far, k=k, v=v: tiled_attention(q, k, v),
                "bias": lambda q=q, k=k, v=v, bias=bias: tiled_attention(q, k, v, bias=bias),
                "softcap": lambda q=q, k=k, v=v: tiled_attention(q, k, v, softcap=30.0),
            },
            runs_of(length),
        )
        print(f"T {length:6}" + "".join(f"  {name} {seconds * 1000:.1f} ms" for name, seconds in taken.items()))


JOBS = {"process": process, "steady": steady, "outlier": outlier, "growth": growth, "memory": memory, "steep": steep}

if __name__ == "__main__":
    tune_allocator(ctypes.CDLL(None))  # as the command does, for all
    jobs = [word for word in sys.argv[1:] if word in JOBS] or ["steady", "growth"]
    lengths = [int(word) for word in sys.argv[1:] if word.isdigit()] or list(LENGTHS)
    for job in jobs:
        JOBS[job](lengths)
