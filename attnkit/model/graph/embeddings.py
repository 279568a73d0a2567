"""The first nodes of a model: embeddings and absolute positions.

Those of words, segments and patches.
"""

import math
from collections.abc import Callable

import numpy as np

from attnkit.model.config import PatchConfig
from attnkit.model.dtypes import Array
from attnkit.model.formulas.embedding import embed_backward
from attnkit.model.formulas.linear import sum_to_shape
from attnkit.model.formulas.patch_embedding import (
    antialiased_weights,
    bicubic_weights,
    extract_patches,
    nearest_weights,
)
from attnkit.model.graph.costs import Cost, Costs, Sizes, count_product
from attnkit.model.graph.nodes import Built, Kind, Node, Place, Scope
from attnkit.model.layers.embeddings import cut_patches_backward, position_encoding_backward


def _words(scope: Scope, ids: Array) -> Array:
    table = scope.stored(scope.option("table", "table"))
    rows = scope.convert((table.T if scope.option("transposed") else table)[ids])
    scaled: Array = rows * np.asarray(scope.option("factor", 1.0), rows.dtype)
    return scaled


def _undo_words(scope: Scope, dy: Array, y: Array, ids: Array) -> list[None]:
    size = len(scope.core.params[scope.node.layer]["table"])
    scope.add(scope.node.layer, {"table": embed_backward(dy, ids, size)})
    return [None]


def _count_words(sizes: Sizes) -> Costs:
    """A row of the table for each token."""
    numbers, tables = math.prod(sizes.node.shape), sizes.found(sizes.option("table", "table"))
    return [Cost(read=numbers * len(tables), written=numbers, parameters=sizes.own(*tables) if tables else 0)]


def _types(scope: Scope, words: Array) -> Array:
    table = scope.stored("types")
    return scope.convert(scope.xp.zeros_like(table) if scope.option("absent") else table)[_segments(scope, words)]


def _segments(scope: Scope, words: Array) -> Array:
    segments = scope.inputs.types
    if segments is None or scope.option("all_first"):
        segments = np.zeros(words.shape[:-1], np.int64)
    return segments


def _undo_types(scope: Scope, dy: Array, y: Array, words: Array) -> list[None]:
    size = len(scope.core.params[scope.node.layer]["types"])
    scope.add(scope.node.layer, {"types": embed_backward(dy, _segments(scope, words), size)})
    return [None]


def _patches(scope: Scope, image: Array) -> Array:
    """The vectors of the patches of images: (..., C, height, width) -> (..., P, D)."""
    cut = scope.config.patches
    assert cut is not None
    rows, columns = cut.grid(*image.shape[-2:])
    image = image[..., :: scope.option("channels", 1), : rows * cut.patch_height, : columns * cut.patch_width]
    patches = extract_patches(image, cut.patch_height, cut.patch_width)
    lead = patches.ndim - 2
    inner = patches.reshape(*patches.shape[:-2], rows, columns, cut.channels, cut.patch_height, cut.patch_width)
    order = scope.option("order", (0, 1, 2, 3, 4))  # of rows, columns, channels, and rows and columns of a patch
    return scope.linear(inner.transpose(*range(lead), *(lead + at for at in order)).reshape(patches.shape), "w", "b")


def _undo_patches(scope: Scope, dy: Array, y: Array, image: Array) -> list[Array]:
    cut = scope.config.patches
    assert cut is not None
    patches = extract_patches(cut.covered(image), cut.patch_height, cut.patch_width)
    return [cut_patches_backward(scope.linear_backward(dy, patches, "w", "b"), image.shape, cut)]


def _tokens(scope: Scope, patches: Array) -> Array:
    """Patches with class token and registers: (..., P, D) -> (..., T, D)."""
    xp, params = scope.xp, scope.core.params[scope.node.layer]
    if scope.option("by_column"):
        cut, image = scope.config.patches, scope.inputs.image
        assert cut is not None and image is not None
        grid = patches.reshape(len(patches), *cut.grid(*image.shape[-2:]), -1)
        patches = grid.swapaxes(1, 2).reshape(patches.shape)
    parts = {"patches": patches}
    for name in ("cls", "registers"):
        if name in params:
            rows = xp.atleast_2d(scope.convert(scope.stored(name)))
            parts[name] = xp.broadcast_to(rows, (*patches.shape[:-2], *rows.shape))
    joined: Array = xp.concatenate([parts[name] for name in scope.option("order") if name in parts], axis=-2)
    return joined


def _undo_tokens(scope: Scope, dy: Array, y: Array, patches: Array) -> list[Array]:
    params = scope.core.params[scope.node.layer]
    sizes = {"patches": patches.shape[-2]}
    sizes |= {name: len(np.atleast_2d(params[name])) for name in ("cls", "registers") if name in params}
    names = [name for name in scope.option("order") if name in sizes]
    ends = np.cumsum([sizes[name] for name in names])
    parts = dict(zip(names, np.split(dy, ends[:-1], axis=-2), strict=True))
    gradient = parts.pop("patches")
    rows = {name: part[..., 0, :] if params[name].ndim == 1 else part for name, part in parts.items()}
    scope.add(scope.node.layer, {name: sum_to_shape(part, params[name].shape) for name, part in rows.items()})
    return [gradient]


def _count_tokens(sizes: Sizes) -> Costs:
    """The rows that are put beside those of the patches."""
    names = sizes.option("names")
    written = math.prod(sizes.node.shape) - sizes.held
    return [Cost(read=sizes.read_parameters(*names), written=written, parameters=sizes.own(*names))]


def _rows(scope: Scope, x: Array) -> Array:
    """Rows of absolute positions (T, D), or (B, T, D) of a padded batch."""
    core, layer, cut = scope.core, scope.node.layer, scope.config.patches
    altered, grid, where = core._replace(config=scope.config), None, np.asarray(scope.option("where"))
    if cut is not None and scope.inputs.image is not None:
        grid = cut.grid(*scope.inputs.image.shape[-2:])
        if kind := scope.option("filter"):
            table = _interpolated(scope, scope.stored("table"), grid, kind)
            altered = core._replace(params={**core.params, layer: {"table": table}})
            grid = None
    rows = scope.convert(scope.functions.position_encoding(altered, layer, x, where, grid)(where))
    return rows if cut is None else _move_rows(scope, rows, cut)


def _undo_rows(scope: Scope, dy: Array, y: Array, x: Array) -> list[None]:
    image, layer, where = scope.inputs.image, scope.node.layer, np.asarray(scope.option("where"))
    grid = scope.config.patches.grid(*image.shape[-2:]) if scope.config.patches and image is not None else None
    if scope.config.positions.kind == "learned":
        gradient = position_encoding_backward(scope.core, layer, dy, where, grid)
        scope.add(layer, {"table": gradient})
    return [None]


def _count_rows(sizes: Sizes) -> Costs:
    """The parameters of positions; their sum with the states reads them."""
    return [Cost(parameters=sizes.own())]


def _move_rows(scope: Scope, rows: Array, cut: PatchConfig) -> Array:
    """The positions of an image's tokens (T, D); registers have none.

    Each token but these has its own.
    """
    first, registers = int(cut.has_class), rows[int(cut.has_class) : cut.before]
    table = scope.xp.concatenate([rows[:first], rows[cut.before :]])
    if rolled := scope.option("rolled", 0):
        table = np.roll(table, rolled, axis=0)
    if scope.option("spares_class"):
        table[:first] = 0
    parts = {"cls": table[:first], "registers": registers, "patches": table[first:]}
    moved: Array = scope.xp.concatenate([parts[name] for name in scope.option("order", parts)])
    return moved


def _interpolated(scope: Scope, table: Array, grid: tuple[int, int], kind: str) -> Array:
    """A table of positions for another grid of patches, by another filter."""
    cut, weigh = scope.config.patches, FILTERS[kind]
    assert cut is not None
    first, width = int(cut.has_class), table.shape[-1]
    usual = cut.grid(cut.height, cut.width)
    down, across = (weigh(old, new) for old, new in zip(usual, grid, strict=True))
    points = np.einsum("ir,jc,rcd->ijd", down, across, table[first:].reshape(*usual, width).astype(np.float64))
    return np.concatenate([table[:first], points.reshape(-1, width)])


Filter = Callable[[int, int], Array]  # (old, new) points of an axis -> weights (new, old)


def tent_weights(where: Array, old: int) -> Array:
    """Weights of the two neighbours of each point on an axis: (N,) -> (N, old)."""
    where = np.clip(where, 0, old - 1)[:, None]
    weights: Array = np.maximum(1 - np.abs(np.arange(old) - where), 0)
    return weights


def middles(old: int, new: int) -> Array:
    """Where the middles of new points are on an axis of old ones."""
    where: Array = old / new * (np.arange(new) + 0.5) - 0.5
    return where


# filters of positions and pixels by name
FILTERS: dict[str, Filter] = {
    "bicubic": bicubic_weights,
    "bicubic with antialias": antialiased_weights,
    "bicubic with align_corners": lambda old, new: bicubic_weights(old, new, np.linspace(0, old - 1, new)),
    "bilinear": lambda old, new: tent_weights(middles(old, new), old),
    "bilinear with align_corners": lambda old, new: tent_weights(np.linspace(0, old - 1, new), old),
    "nearest": nearest_weights,
}


KINDS = {
    "words": Kind(value=_words, pullback=_undo_words, cost=_count_words),
    "types": Kind(
        value=_types,
        pullback=_undo_types,
        cost=lambda sizes: [Cost(read=math.prod(sizes.node.shape), parameters=sizes.own("types"))],
    ),
    "patches": Kind(value=_patches, pullback=_undo_patches, cost=count_product),
    "tokens": Kind(value=_tokens, pullback=_undo_tokens, cost=_count_tokens),
    "rows": Kind(value=_rows, pullback=_undo_rows, cost=_count_rows),
}


def build_embeddings(place: Place) -> Built:
    config, layer, shape = place.core.config, place.step.layer, place.states(place.width())
    if (cut := config.patches) is not None:
        patches = (place.batch, place.tokens - cut.before, shape[-1])
        yield Node(f"{layer}.patches", "patches", (place.x,), patches, layer, {"names": ("w", "b")})
        options = {"order": ("cls", "registers", "patches"), "names": ("cls", "registers")}
        yield Node(layer, "tokens", (f"{layer}.patches",), shape, layer, options)
        return
    words, types = f"{layer}.words", f"{layer}.types"
    yield Node(words, "words", (place.x,), shape, layer)
    has_types = "types" in place.core.params[layer]
    if has_types:
        yield Node(types, "types", (words,), shape, layer)
    yield Node(layer, "scale", (words, *[types] * has_types), shape, options={"factor": config.embed_scale})


def build_positions(place: Place) -> Built:
    layer, where, shape = place.step.layer, place.positions(), place.states(place.width())
    rows = shape[1:] if isinstance(where, range) else shape
    yield Node(f"{layer}.rows", "rows", (place.x,), rows, layer, {"where": where})
    yield Node(layer, "add", (place.x, f"{layer}.rows"), shape)
