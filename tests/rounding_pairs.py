"""Pairs of results made for the purpose: which of three verdicts is right is known by how each was made.

`PAIRS` are functions of what the kernels of BLAS computed (tests/references/kernels.npz, or anew), so that every run
judges the same sixty. A pair of golden numbers is judged by what is stored of the first.
"""

import functools
import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

import attnkit
from attnkit.cli.replay import measure_noise
from attnkit.commands.golden.cases import GoldenCase
from attnkit.commands.golden.runs import CaseRun, join_stages, run_case
from attnkit.commands.golden.store import Store, bless_case, compare_case, worst_of
from attnkit.interpret.comparison import Pair
from attnkit.interpret.rounding_report import RoundingPair
from attnkit.records import Record

KERNELS = ("Haswell", "SkylakeX", "Prescott", "Sandybridge")
DTYPES = ("float32", "float64", "float16")
TEXT = "the cat sat on the mat and the dog sat on the cat"
STAGES = "posenc | attend --heads 4 --seed 1 --residual | layernorm | ffn --hidden 96 --seed 2 --residual | layernorm"


class MadePair(NamedTuple):
    """Two results, and the verdict that is right.

    judge  () -> the verdict that attnkit gives
    """

    kind: str
    name: str
    expected: str
    judge: object


def layer(dtype):
    """The pipeline of a layer; of float16 on a longer text, so that some of its numbers are rounded otherwise."""
    text = " ".join([TEXT] * (8 if dtype == "float16" else 1))
    return f"embed '{text}' --dim 48 --dtype {dtype} | {STAGES}"


def compute_layer(dtype):
    """What this process computes of the layer: x, in a dtype."""
    return attnkit.run(layer(dtype))["x"]


@functools.cache
def measure_layer(dtype):
    """The noise of the layer, measured by its history."""
    return measure_noise(attnkit.run(layer(dtype)))


def judged(a, b, measure=None):
    """The verdict of two arrays or records, of all their tensors together."""
    a, b = (one if isinstance(one, Record) else Record({"x": one}) for one in (a, b))
    report = RoundingPair(Pair(a, b), *([measure] if measure else [])).compare()
    order = ("identical", "rounding", "different")
    return max(report.labels["verdict"], key=order.index)


def kernel_pairs(kernels):
    """Each kernel beside each other one, in three dtypes: with a history, and some as bare arrays."""
    for dtype in DTYPES:
        for one, other in itertools.combinations(KERNELS, 2):
            a, b = (kernels[f"{name}/{dtype}"] for name in (one, other))
            same = np.array_equal(a, b)
            yield MadePair(
                "kernel", f"{one}, {other} in {dtype}", "identical" if same else "rounding",
                lambda a=a, b=b, dtype=dtype: judged(a, b, lambda: measure_layer(dtype)),
            )  # fmt: skip
        a, b = kernels[f"Haswell/{dtype}"], kernels[f"Prescott/{dtype}"]
        expected = "identical" if np.array_equal(a, b) else "rounding"
        yield MadePair("kernel, no history", dtype, expected, lambda a=a, b=b: judged(a, b))


def rounding_pairs():
    """The same sums in another order, and numbers that went through text."""
    rng = np.random.default_rng(11)
    for dtype in ("float32", "float64"):
        x, w = (rng.standard_normal(shape).astype(dtype) for shape in ((40, 300), (300, 50)))
        backwards = x[:, ::-1] @ w[::-1]
        yield MadePair("order of a sum", dtype, "rounding", lambda x=x, w=w, b=backwards: judged(x @ w, b))
    x = rng.standard_normal((20, 64)).astype(np.float32)
    up = np.nextafter(x, np.float32(99))
    yield MadePair("one unit in the last place", "float32", "rounding", lambda: judged(x, up))
    half = x.astype(np.float16)
    yield MadePair(
        "one unit in the last place",
        "float16",
        "rounding",
        lambda: judged(half, np.nextafter(half, half.dtype.type(9))),
    )
    text = np.array([[float(f"{one:.9g}") for one in row] for row in up])
    yield MadePair("float32 as text", "json", "rounding", lambda: judged(x.astype(float), text))
    yield MadePair("the same", "float32", "identical", lambda: judged(x, x.copy()))
    yield MadePair("the same", "wider", "identical", lambda: judged(x, x.astype(float)))
    masked = np.where(x > 1, -np.inf, x)
    yield MadePair("the same", "with −∞", "identical", lambda: judged(masked, masked.copy()))


def changed_pairs():
    """Changes that a cosine, or a tolerance that is guessed, would let pass."""
    rng = np.random.default_rng(12)
    x = rng.standard_normal((64, 64)).astype(np.float32)
    weights = rng.standard_normal((48, 64)).astype(np.float32)
    yield MadePair("transpose", "a square", "different", lambda: judged(x, x.T))
    yield MadePair("transpose", "of another shape", "different", lambda: judged(weights, weights.T))
    yield MadePair(
        "transpose",
        "heads and tokens",
        "different",
        lambda: judged(x.reshape(8, 8, 64), x.reshape(8, 8, 64).swapaxes(0, 1)),
    )
    for factor in (1.5, 1.001, 1.000003):
        yield MadePair("scale", str(factor), "different", lambda f=factor: judged(x, x * np.float32(f)))
    half = x.astype(np.float16)
    yield MadePair("scale", "1.02 in float16", "different", lambda: judged(half, half * np.float16(1.02)))
    for offset in (0.05, 1e-3, 3e-6):
        yield MadePair("offset", str(offset), "different", lambda o=offset: judged(x, x + np.float32(o)))
    yield MadePair("offset", "0.05 in float16", "different", lambda: judged(half, half + np.float16(0.05)))
    million = rng.standard_normal((1000, 1000))
    for dtype, wrong in (("float32", 1e-3), ("float64", 1e-9), ("float16", 0.05)):
        a = million.astype(dtype)
        b = a.copy()
        b[123, 321] += a.dtype.type(wrong)
        yield MadePair("one of 10⁶", f"by {wrong:g} in {dtype}", "different", lambda a=a, b=b: judged(a, b))
    for name, number in (("NaN", np.nan), ("∞", np.inf)):
        b = x.copy()
        b[5, 6] = number
        yield MadePair(f"one {name}", "float32", "different", lambda b=b: judged(x, b))
        yield MadePair(f"one {name}", "gone", "different", lambda b=b: judged(b, x))
    ids = np.arange(50)
    yield MadePair("one id", "int64", "different", lambda: judged(ids, np.where(ids == 7, 8, ids)))


def history_pairs():
    """Another seed, another order of stages, by records that state their commands."""
    text = "embed 'the cat sat' --dim 16"
    made = {
        "seed of attend": (f"{text} | attend --heads 2 --seed 1", f"{text} | attend --heads 2 --seed 2"),
        "seed of embed": (f"{text} | layernorm", f"{text} --seed 3 | layernorm"),
        "seed of ffn": (f"{text} | ffn --hidden 8 --seed 1", f"{text} | ffn --hidden 8 --seed 4"),
        "positions after the norm": (f"{text} | posenc | layernorm", f"{text} | layernorm | posenc"),
        "norm before ffn": (
            f"{text} | ffn --hidden 8 --seed 1 | layernorm",
            f"{text} | layernorm | ffn --hidden 8 --seed 1",
        ),
        "epsilon of 1e-6": (f"{text} | layernorm", f"{text} | layernorm --eps 1e-6"),
        "another GELU": (
            f"{text} | ffn --hidden 8 --activation gelu",
            f"{text} | ffn --hidden 8 --activation gelu-tanh",
        ),
        "softmax before the norm": (f"{text} | softmax | layernorm", f"{text} | layernorm | softmax"),
    }
    for name, (one, other) in made.items():
        kind = "order of stages" if "before" in name or "after" in name else "another option"
        yield MadePair(kind, name, "different", lambda a=one, b=other: judged_runs(a, b))


def judged_runs(one, other):
    a, b = attnkit.run(one), attnkit.run(other)
    return judged(a, b, lambda: measure_noise(a))


def golden_pairs(kernels):
    """Golden numbers that are stale, and golden numbers of another machine."""
    text = layer("float32")
    stored = {
        "another eps": ("embed cat --dim 8 | layernorm --eps 1e-3", "embed cat --dim 8 | layernorm"),
        "another stage": ("embed cat --dim 8 | layernorm", "embed cat --dim 8 | softmax"),
        "a stage more": ("embed cat --dim 8", "embed cat --dim 8 | layernorm"),
        "a stage less": ("embed cat --dim 8 | layernorm", "embed cat --dim 8"),
    }
    for name, (then, now) in stored.items():
        yield MadePair("stale golden", name, "different", lambda a=then, b=now: judged_golden(a, b))
    yield MadePair("golden", "the same", "identical", lambda: judged_golden(text, text))
    for kernel in KERNELS[1:]:
        x = kernels[f"{kernel}/float32"]
        yield MadePair(
            "golden", f"stored on Haswell, run on {kernel}", "rounding",
            lambda x=x: judged_golden(text, text, kernels["Haswell/float32"], x),
        )  # fmt: skip


def judged_golden(then, now, x_then=None, x_now=None):
    """The verdict of a run by stored numbers; of the last x, those of kernels may stand for both."""
    case = GoldenCase("case", "pipeline", then)
    run, other = run_case(case, ".", measures=True), run_case(replace(case, text=now), ".")
    run, other = (with_last(one, x) for one, x in ((run, x_then), (other, x_now)))
    assert not run.problem and not other.problem and len(join_stages(run.stages))
    outcomes = compare_case(case, other, Store({"case": bless_case(case, run, "made")}))
    verdict = worst_of(outcomes)
    return verdict if verdict in ("identical", "rounding") else "different"


def with_last(run, x):
    """A run with another x of its last stage."""
    if x is None:
        return run
    last = [*run.stages][-1]
    return CaseRun({**run.stages, last: run.stages[last].with_tensors({"x": x})}, run.noise)


def all_pairs(kernels):
    """All pairs, in the order of their table."""
    return [
        *kernel_pairs(kernels),
        *rounding_pairs(),
        *changed_pairs(),
        *history_pairs(),
        *golden_pairs(kernels),
    ]
