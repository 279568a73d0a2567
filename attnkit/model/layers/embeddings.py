"""What the first steps compute: embeddings, patches and absolute positions."""

from collections.abc import Callable, Mapping

import numpy as np

from attnkit.errors import DataError, counted
from attnkit.model.checks import as_text
from attnkit.model.config import Config, PatchConfig, parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas.embedding import embed, embed_backward
from attnkit.model.formulas.linear import add, linear, scaled
from attnkit.model.formulas.patch_embedding import (
    add_register_rows,
    extract_patches,
    extract_patches_backward,
    interpolate_positions,
    interpolate_positions_backward,
)
from attnkit.model.formulas.positions import add_positions, learned_positions, sinusoidal_positions
from attnkit.model.hooks import apply_hook


def embed_tokens(model: Model, layer: str, ids: Array, context: Context) -> Array:
    """Scaled embeddings of ids and segments, or of the patches of an image.

    ids (..., T), or an image (..., C, height, width) -> (..., T, D)
    """
    config = model.config
    if config.patches:
        image = ids.astype(context.dtype or ids.dtype, copy=False)
        x, context.grid = embed_patches(config, model.params[layer], image)
    else:
        x = embed(ids, model.part(layer, "table"))
        x = x.astype(context.dtype or x.dtype, copy=False)
        x = scaled(x, config.embed_scale)
        types = model.part(layer, "types")
        if types is not None:
            x = add(x, embed(segments(ids, context), types))
        x = place_pictures(x, context)
    return apply_hook(context.hook, layer, x)


def place_pictures(x: Array, context: Context) -> Array:
    """Embeddings of a text with the rows of its pictures in place of their tokens.

    x (..., T, D) -> (..., T, D)

    The rows are not scaled as embeddings are.

    >>> from attnkit.model.context import Pictures
    >>> pictures = Pictures(np.array([1]), np.array([[7.0]]))
    >>> place_pictures(np.array([[1.0], [2.0]]), Context(pictures=pictures)).ravel().tolist()
    [1.0, 7.0]
    """
    pictures = context.pictures
    if pictures is None or not (among := pictures.within(context.past, x.shape[-2])).any():
        return x
    placed = x.copy()
    placed[..., pictures.places[among] - context.past, :] = pictures.rows[among]
    return placed


def segments(ids: Array, context: Context) -> Array:
    """Segment of every token, 0 by default; DataError for another number of them.

    ids (..., T) -> (..., T) or (T,)

    >>> segments(np.array([[5, 6]]), Context())
    array([[0, 0]])
    """
    kinds = np.zeros(np.shape(ids), np.int64) if context.segment_ids is None else context.segment_ids
    if kinds.shape not in (np.shape(ids), np.shape(ids)[-1:]):
        raise DataError.about("segments", f"{kinds.shape} for tokens {np.shape(ids)}: expected one for each token")
    return kinds


def embed_patches(config: Config, params: Mapping[str, Array], image: Array) -> tuple[Array, tuple[int, int]]:
    """Class token, registers and vectors of the patches of an image, and their grid."""
    if config.patches is None or image.ndim < 3 or image.shape[-3] != config.patches.channels:
        channels = config.patches.channels if config.patches else 0
        raise DataError.about("image", f"{as_text(image.shape)}: expected ({channels}, height, width)")
    cut = config.patches
    grid = cut.grid(*image.shape[-2:])
    if 0 in grid:
        raise DataError.about("image", f"{as_text(image.shape)} has no patch of {cut.patch_height} x {cut.patch_width}")
    rows = linear(extract_patches(cut.covered(image), cut.patch_height, cut.patch_width), params["w"], params.get("b"))
    lead = [np.atleast_2d(params[name]) for name in ("cls", "registers") if name in params]
    first = [np.broadcast_to(one, (*rows.shape[:-2], *one.shape)) for one in lead]
    return np.concatenate([*first, rows], axis=-2), grid


def cut_patches_backward(dpatches: Array, shape: tuple[int, ...], cut: PatchConfig) -> Array:
    """Gradient of an image from that of its patches; 0 where it has none.

    dpatches (..., P, C * patch_height * patch_width) -> shape (..., C, height, width)
    """
    gradient = np.zeros(shape, dpatches.dtype)
    covered = cut.covered(gradient)
    covered[...] = extract_patches_backward(dpatches, covered.shape, cut.patch_height, cut.patch_width)
    return gradient


def apply_positions(model: Model, layer: str, x: Array, context: Context) -> Array:
    """Add absolute positions to x, if the model has any.

    x (..., T, D) -> (..., T, D)

    Rotary and T5 positions are applied inside attention. DataError for more tokens than the model has positions.
    """
    config = model.config
    kind = config.positions.kind
    if kind not in ("learned", "sinusoidal"):
        return x
    where = absolute_positions(x, context)
    encoding = position_encoding(model, layer, x, where, context.grid)
    return apply_hook(context.hook, layer, add_positions(x, where, encoding))


def absolute_positions(x: Array, context: Context) -> Array:
    """Position of every token: of the context, or after its cache.

    x (..., T, D) -> (T,) or (B, T)

    >>> absolute_positions(np.zeros((1, 3, 8)), Context())
    array([0, 1, 2])
    """
    return context.positions if context.positions is not None else context.past + np.arange(x.shape[-2])


def position_encoding(
    model: Model, layer: str, x: Array, where: Array, grid: tuple[int, int] | None
) -> Callable[[Array], Array]:
    """Function from positions (..., T) to the vectors (..., T, D) added to x."""
    positions = model.config.positions
    if positions.kind == "sinusoidal":
        check_size(model.config, where, layer)
        return lambda part: sinusoidal_positions(
            part + positions.first, x.shape[-1], layout=positions.layout, base=positions.base
        )
    table, grids = model.params[layer]["table"], changed_grid(model.config, grid)
    cut = model.config.patches
    if cut and grids:
        table = interpolate_positions(table.astype(x.dtype, copy=False), *grids, resampling=cut.resampling)
    elif not cut:
        check_size(model.config, where, layer)
    table = add_register_rows(table, cut.registers) if cut else table
    return lambda part: learned_positions(part + positions.first, table)


def position_encoding_backward(
    model: Model, layer: str, gradient: Array, where: Array, grid: tuple[int, int] | None
) -> Array:
    """Gradient of the table of learned positions from that of `position_encoding`.

    gradient (T, D) or (B, T, D) at positions where (T,) or (B, T) -> (P, D)
    """
    positions, cut, grids = model.config.positions, model.config.patches, changed_grid(model.config, grid)
    size = gradient.shape[-2] if cut else len(model.params[layer]["table"])
    table = embed_backward(gradient, where + positions.first, size, "position")
    table = np.delete(table, np.s_[1 : 1 + cut.registers], axis=0) if cut else table
    return interpolate_positions_backward(table, *grids, resampling=cut.resampling) if cut and grids else table


def changed_grid(config: Config, grid: tuple[int, int] | None) -> tuple[int, int, int, int] | None:
    """Grid of patches of the model and of the image; None if they are the same."""
    cut = config.patches
    if cut is None or grid is None:
        return None
    usual = cut.grid(cut.height, cut.width)
    return None if grid == usual else (*usual, *grid)


def check_size(config: Config, where: Array, layer: str) -> None:
    """Raise DataError for positions (..., T) that a model does not have."""
    size, most = config.position_count(parse_layer_name(layer)[0]), int(where.max(initial=-1)) + 1
    if size and most > size:
        raise DataError(f"{counted(most, 'token')}, and this {config.family} model has {counted(size, 'position')}")
