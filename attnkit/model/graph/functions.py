"""Functions of an array library that the values of nodes call.

NUMPY is the row of NumPy; backends/jax has the row of JAX.

The formula of a value is written once, with the array module of its scope. A row here is what no array module has, or
what each library computes in its own way: without copies in NumPy, without shapes that depend on numbers in JAX.
"""

from collections.abc import Callable, Collection, Mapping
from operator import matmul
from typing import Any, NamedTuple

import numpy as np

from attnkit.model.config import ConvolutionLayer
from attnkit.model.context import Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas.activations import ACTIVATIONS
from attnkit.model.formulas.experts import ExpertConfig, route, tokens_by_expert
from attnkit.model.formulas.pooling import HEAD_POOLINGS
from attnkit.model.formulas.positions import t5_bias
from attnkit.model.formulas.recall import Memory, read_memory
from attnkit.model.formulas.relative import RelativePositions, relative_scores
from attnkit.model.formulas.rotary import rotate
from attnkit.model.formulas.softmax import log_sum_exp, softmax
from attnkit.model.layers.convolutions import multiply_windows
from attnkit.model.layers.embeddings import position_encoding

COLUMNS = 1 << 12  # of a weight that are converted at a time

Expert = Callable[[int, Array, Array], Array]  # (number, rows (N, D), their gates (N, 1)) -> (N, D)


class Functions(NamedTuple):
    """The functions of a library.

    xp           its array module
    activations  name -> function of an array
    multiply     (x, weight, convert) -> x by the weight, whose parts are converted to the dtype of the computation
    contiguous   an array in C order, where the library has an order
    choose       (logits (N, E), mixture, correction) -> the chosen experts (N, k)
    convolve     (frames (..., F, C), w, b and g by name, the layer) -> (..., F', D)
    pool         (Config.pooling, x (..., T, D), real (..., T), tokens before the patches) -> (..., P)
    standardize  (x (..., D), whether x is centered, eps) -> x by its deviation, for nodes as models have them; None:
                 the library has no kernel of it
    read_memory  (memory, tokens of a chunk, state, steps to keep) -> what is read, and the last state
    product      (x, y) -> x @ y, of activations and of the parameters of experts
    sum_experts  (expert, x, gates, chosen, count) -> the sum of the chosen experts of each token
    """

    xp: Any
    activations: Mapping[str, Any]
    multiply: Callable[[Array, Array, Callable[[Array], Array]], Array]
    contiguous: Callable[[Array], Array]
    softmax: Callable[[Array], Array]
    log_sum_exp: Callable[[Array], Array]
    rotate: Callable[..., Array]
    relative_scores: Callable[[Array, Array, RelativePositions], Array]
    t5_bias: Callable[[Array, Array], Array]
    position_encoding: Callable[[Model, str, Array, Array, tuple[int, int] | None], Callable[[Array], Array]]
    choose: Callable[[Array, ExpertConfig, Array | None], Array]
    sum_experts: Callable[[Expert, Array, Array, Array, int], Array]
    pool: Callable[[str, Array, Array, int], Array]
    read_memory: Callable[[Memory, int | None, Array | None, Collection[str]], dict[str, Array]]
    convolve: Callable[[Array, Mapping[str, Array], ConvolutionLayer], Array]
    standardize: Callable[[Array, bool, float], Array] | None = None
    product: Callable[[Array, Array], Array] = matmul

    def expert_scores(self, logits: Array, score: str) -> Array:
        """What gates are of the logits of a router: see `ExpertConfig`."""
        if score not in ("softmax", "sigmoid"):
            return logits
        return self.softmax(logits) if score == "softmax" else self.activations["sigmoid"](logits)


def multiply_columns(x: Array, weight: Array, convert: Callable[[Array], Array]) -> Array:
    """Multiply x (..., D) by a weight (D, E), a few columns at a time: (..., E).

    `convert` is applied to these columns.
    """
    y = np.empty((*x.shape[:-1], weight.shape[1]), x.dtype)
    for start in range(0, weight.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        y[..., part] = x @ convert(weight[:, part])
    return y


def sum_chosen(expert: Expert, x: Array, gates: Array, chosen: Array, count: int) -> Array:
    """The sum of the experts of each token by their gates: (..., D) -> (..., D).

    An expert computes only the tokens that chose it.
    """
    y = np.zeros_like(x)
    for number, tokens, ranks in tokens_by_expert(chosen):
        y[tokens] += expert(number, x[tokens], gates[(*tokens, ranks)][:, None])
    return y


NUMPY = Functions(
    xp=np,
    activations=ACTIVATIONS,
    multiply=multiply_columns,
    contiguous=np.ascontiguousarray,
    softmax=softmax,
    log_sum_exp=log_sum_exp,
    rotate=rotate,
    relative_scores=relative_scores,
    t5_bias=t5_bias,
    position_encoding=position_encoding,
    choose=lambda logits, mixture, correction: route(logits, mixture, correction).chosen,
    sum_experts=sum_chosen,
    pool=lambda kind, x, real, before: HEAD_POOLINGS[kind].pool(x, real, before),
    read_memory=read_memory,
    convolve=multiply_windows,
)
