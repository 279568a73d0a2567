"""Kinds of nodes that no model has: differently cut fused projections."""

import numpy as np

from attnkit.model.activations import ACTIVATIONS
from attnkit.model.dtypes import Array
from attnkit.model.graph.attention import cut_fused
from attnkit.model.graph.networks import CUTS
from attnkit.model.graph.nodes import Kind, Scope
from attnkit.model.head_views import merge_heads, view_heads


def _split_wrong(scope: Scope, x: Array) -> Array:
    """One of q, k and v, cut out of their fused projection in another layout."""
    return cut_fused(scope, [scope.linear(x, f"w{letter}", f"b{letter}") for letter in "qkv"])


def _cut_latent(scope: Scope, latent: Array) -> Array:
    """The keys or values of all heads, cut out of their expansion another way."""
    keys, values = (view_heads(scope.linear(latent, name, ""), scope.option("heads")) for name in ("wk", "wv"))
    fused, content = merge_heads(np.concatenate([keys, values], axis=-1)), keys.shape[-1]
    if scope.option("cut") == "flat":
        count = content * scope.option("heads")
        return fused[..., :count] if scope.option("place") == "k" else fused[..., count:]
    heads, value = view_heads(fused, scope.option("heads")), values.shape[-1]
    return merge_heads(heads[..., value:] if scope.option("place") == "k" else heads[..., :value])


def _cut_gate(scope: Scope, *arrays: Array) -> Array:
    """One of gate and up, cut out of their fused projection in another way.

    The arrays are what both are projected from, or both, after a factor of the result if there is one.
    """
    if len(arrays) == 1:
        arrays = tuple(scope.linear(arrays[0], f"w{digit}", f"b{digit}") for digit in "13")
    *factors, gate, up = arrays
    part = ACTIVATIONS[scope.option("activation", "identity")](
        CUTS[scope.option("cut")](gate, up)[scope.option("place")]
    )
    return part * factors[0] if factors else part


KINDS = {
    "split wrong": Kind(value=_split_wrong),
    "cut latent": Kind(value=_cut_latent),
    "cut gate": Kind(value=_cut_gate),
}
