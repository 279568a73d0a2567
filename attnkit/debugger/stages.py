"""A model as a graph of stages: every intermediate (site) with the sites that it is computed from.

A stage is data: an operation, the sites it reads, and its options. The same functions compute the model as it is and as
an implementation may have got it wrong: a slip is a stage with another option or input. Names of sites are those of
traces, and a few that traces lack: `embed.words`, `embed.types`, `positions.rows`, `q_projected`, `k_projected`,
`v_projected`, `joined`, `pixels`, `embed.patches`, `q_latent_projected`, `kv_latent_projected`, `ffn.experts`,
`ffn.shared_gate`, `shared.hidden` to `shared.output`, `head.pooled` and `head.hidden`. The batch is the first axis of
every array.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from attnkit import model
from attnkit.errors import UsageError
from attnkit.inputs.image_processor import ImageProcessor, crop_center
from attnkit.model import masks, pooling, transformer
from attnkit.model.activations import ACTIVATIONS
from attnkit.model.config import AttentionRules, PatchConfig
from attnkit.model.dense_attention import LatentConfig, add_sinks
from attnkit.model.dtypes import Array, quiet, rounded
from attnkit.model.experts import SCORES as EXPERT_SCORES
from attnkit.model.experts import ExpertConfig, route
from attnkit.model.head_views import merge_heads, view_heads
from attnkit.model.intermediates import STEPS
from attnkit.model.patch_embedding import antialiased_weights, bicubic_weights, extract_patches
from attnkit.model.relative import relative_scores
from attnkit.model.rotary import batch_frequencies, grid_angles, rope_frequencies, rotate
from attnkit.model.softmax import log_sum_exp, softmax

ROUNDED = 1.01  # grey levels by which a pixel that two programs resized may differ
COLUMNS = 1 << 12  # of a weight that are converted at a time


class Stage(NamedTuple):
    """One stage: a site, its operation, the sites it reads, and its options.

    shape  of the site
    layer  the layer whose parameters it reads, "" for none
    """

    site: str
    operation: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    layer: str = ""
    options: Mapping[str, Any] = {}

    def change(self, **options: Any) -> "Stage":
        """The stage with some of its options changed."""
        return self._replace(options={**self.options, **options})


class PictureInput(NamedTuple):
    """A picture: its pixels (height, width, 3) uint8, and what makes of them what a model reads.

    Floats (C, height, width) are what the model reads.
    """

    pixels: Array
    processor: ImageProcessor


@dataclass
class Inputs:
    """What a model reads.

    ids      (B, T) of the first stack; target: those of the decoder of an encoder-decoder model
    mask     (B, T) True = a token, no padding; target_mask likewise
    types    (B, T) segments
    image    (B, C, height, width), the pixels that the first stage reads
    picture  the picture that they are made of; None: they are given
    """

    ids: Array | None = None
    target: Array | None = None
    mask: Array | None = None
    target_mask: Array | None = None
    types: Array | None = None
    image: Array | None = None
    picture: PictureInput | None = None

    def of(self, stack: str, config: model.Config) -> tuple[Array | None, Array | None]:
        """The ids and the mask of a stack."""
        is_target = stack == "decoder" and config.encoder is not None
        return (self.target, self.target_mask) if is_target else (self.ids, self.mask)


class Arrays(Protocol):
    """Arrays by site."""

    def __contains__(self, site: object, /) -> bool: ...

    def __getitem__(self, site: str, /) -> Array: ...

    def __iter__(self) -> Iterator[str]: ...


class Known(Mapping[str, Array]):
    """Sites whose arrays are given by the first of some mappings; some are hidden."""

    def __init__(self, *mappings: "Arrays", hidden: Collection[str] = ()) -> None:
        self.mappings, self.hidden = mappings, hidden

    def __contains__(self, site: object) -> bool:
        return site not in self.hidden and any(site in one for one in self.mappings)

    def __getitem__(self, site: str) -> Array:
        if site in self:
            return next(one[site] for one in self.mappings if site in one)
        raise KeyError(site)

    def __iter__(self) -> Iterator[str]:
        return (site for site in dict.fromkeys(itertools.chain(*self.mappings)) if site not in self.hidden)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class SubLayer(NamedTuple):
    """A sub-layer of a block: the sites of its norm, result and residual sum."""

    norm: str
    output: str
    residual: str


class LayerBlock(NamedTuple):
    """A layer of a stack: the site that it reads, and its sub-layers in order."""

    start: str
    parts: tuple[SubLayer, ...]


class CycleError(Exception):
    """A changed stage reads a site that is computed from its own."""


@dataclass
class Graph:
    """The stages of a model by site, in the order of computation."""

    core: model.Model
    inputs: Inputs
    stages: dict[str, Stage] = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.core.config, model.RecurrentConfig):
            raise UsageError(f"{self.core.config.family} models are recurrent; stages are those of Transformers")
        config = self.core.config
        if config.sound:
            raise UsageError(f"a {config.family} model of sounds has no list of stages", "--model")
        if not (config.patches or any(config.stack(stack).vocab for stack in config.stacks)):
            raise UsageError(f"this {config.family} model has no embeddings, and takes no text")
        self.stages = {stage.site: stage for stage in _build(self.core, self.inputs)}

    @functools.cached_property
    def blocks(self) -> dict[str, LayerBlock]:
        """The blocks by STACK.NUMBER whose sub-layers all have a norm and a residual."""
        found: dict[str, LayerBlock] = {}
        config = self.core.config
        for stack in () if config.norm_output else config.stacks:
            for number in range(config.stack(stack).layers):
                name = f"{stack}.{number}"
                steps = [step.layer for step in model.layer_steps(config, stack, number)]
                works = [layer for layer in steps if f"{layer}.residual" in self.stages]
                norms = [layer for layer in steps if layer in self.stages and layer not in works]
                if len(works) != len(norms) or not works:  # none: a decoder without targets
                    continue
                parts = tuple(
                    SubLayer(norm, f"{work}.output", f"{work}.residual")
                    for norm, work in zip(norms, works, strict=True)
                )
                first = parts[0].norm if config.norm_first else parts[0].residual
                found[name] = LayerBlock(self.stages[first].inputs[0 if config.norm_first else 1], parts)
        return found

    @property
    def roots(self) -> dict[str, Array]:
        """The arrays that no stage computes: token ids, or the pixels of an image, by site.

        Pixels of another shape than the model's processor makes of the picture count as given.
        """
        pixels = self.inputs.image
        if pixels is not None and "pixels" in self.stages and pixels.shape == self.stages["pixels"].shape:
            pixels = None
        named = {"ids": self.inputs.ids, "decoder.ids": self.inputs.target, "pixels": pixels}
        return {site: array for site, array in named.items() if array is not None}

    def cone(self, site: str, known: Mapping[str, Array]) -> list[Stage]:
        """The stages between a site and the known sites that it is computed from."""
        found, waiting = set(), [site]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [one for one in self.stages[name].inputs if one not in known]
        return [stage for name, stage in self.stages.items() if name in found]

    @quiet
    def evaluate(
        self,
        site: str,
        known: Mapping[str, Array],
        changes: Mapping[str, Stage] | None = None,
        precision: str = "float64",
        memo: dict[str, Array] | None = None,
    ) -> Array:
        """Compute a site from the nearest known sites that it depends on.

        changes    stages in place of those of the model
        precision  the dtype to compute in; a 16-bit one rounds the result of every stage
        memo       sites that are already computed, which is added to
        """
        memo = {} if memo is None else memo
        self._compute(site, known, changes or {}, precision, memo, ())
        return memo[site]

    def _compute(
        self,
        site: str,
        known: Mapping[str, Array],
        changes: Mapping[str, Stage],
        precision: str,
        memo: dict[str, Array],
        path: tuple[str, ...],
    ) -> Array:
        if site not in memo:
            if site in path:
                raise CycleError(site)
            stage, way = changes.get(site, self.stages[site]), (*path, site)
            arrays = [
                as_wide(known[one], precision)
                if one in known
                else self._compute(one, known, changes, precision, memo, way)
                for one in stage.inputs
            ]
            memo[site] = self.apply(stage, arrays, precision)
        return memo[site]

    @quiet
    def apply(self, stage: Stage, arrays: Sequence[Array], precision: str = "float64") -> Array:
        """Compute one stage from the arrays of the sites it reads."""
        around = Around(self, stage, precision)
        if form := stage.options.get("rounds_inputs"):
            arrays = [rounded(array, form).astype(array.dtype) for array in arrays]
        result = OPERATIONS[stage.operation](around, *arrays)
        form = stage.options.get("rounds", precision if precision in NARROW else "")
        if form and result.dtype.kind == "f":
            result = rounded(result, form).astype(np.float64 if precision == "float64" else np.float32)
        return result


NARROW = ("float16", "bfloat16")


def as_wide(array: Array, precision: str) -> Array:
    """An array as it is computed with: float64, or float32 for 32 bits and less."""
    return array if array.dtype.kind in "iub" else array.astype(_working(precision), copy=False)


def _working(precision: str) -> Any:
    return np.float64 if precision == "float64" else np.float32


class Around(NamedTuple):
    """What an operation computes with beside its arrays: stage and parameters."""

    graph: Graph
    stage: Stage
    precision: str

    def option(self, name: str, default: Any = None) -> Any:
        return self.stage.options.get(name, default)

    @property
    def config(self) -> model.Config:
        config: model.Config = self.option("config", self.graph.core.config)
        return config

    def has(self, name: str) -> bool:
        """Whether a parameter exists, and no slip leaves it out."""
        return name in self.graph.core.params.get(self.stage.layer, {}) and name not in self.option("missing", ())

    def parameter(self, name: str) -> Array | None:
        """A parameter of the layer in the precision of the computation, or None."""
        return self.convert(self.graph.core.params[self.stage.layer][name]) if self.has(name) else None

    def convert(self, array: Array) -> Array:
        """A parameter in the precision of the computation, rounded if a slip says so."""
        narrow = self.precision if self.precision in NARROW else ""
        if form := self.option("rounds_parameters") or self.option("rounds_inputs") or narrow:
            array = rounded(array, form)
        return array.astype(_working(self.precision), copy=False)

    def linear(self, x: Array, weight: str, bias: str) -> Array:
        """x W + b, some columns of W at a time, which are converted to the precision."""
        stored = self.graph.core.params[self.stage.layer][weight] if self.has(weight) else None
        y = x
        if stored is not None and stored.ndim == 1:
            y = x * self.convert(stored)
        elif stored is not None:
            stored = stored.T if self.option("transposed") else stored
            y = np.empty((*x.shape[:-1], stored.shape[1]), x.dtype)
            for start in range(0, stored.shape[1], COLUMNS):
                part = slice(start, start + COLUMNS)
                y[..., part] = x @ self.convert(stored[:, part])
        shift = self.parameter(bias)
        return y if shift is None else y + shift


# operations: (what surrounds them, arrays of the inputs) -> the array of the site


def _words(around: Around, ids: Array) -> Array:
    table = around.graph.core.params[around.stage.layer][around.option("table", "table")]
    rows = around.convert((table.T if around.option("transposed") else table)[ids])
    scaled: Array = rows * np.asarray(around.option("factor", 1.0), rows.dtype)
    return scaled


def _types(around: Around, words: Array) -> Array:
    segments, table = around.graph.inputs.types, around.graph.core.params[around.stage.layer]["types"]
    if segments is None or around.option("all_first"):
        segments = np.zeros(words.shape[:-1], np.int64)
    return around.convert(np.zeros_like(table) if around.option("absent") else table)[segments]


def _pixels(around: Around) -> Array:
    """What an image processor makes of the picture: (1, C, height, width)."""
    picture = around.graph.inputs.picture
    assert picture is not None
    return prepare_pixels(picture, **around.option("preparation", {}))


def prepare_pixels(
    picture: PictureInput,
    values: Mapping[str, Any] | None = None,
    resampling: str = "",
    rounds: bool = True,
    channels: int = 1,
    planes: int = 1,
    transposes: bool = False,
) -> Array:
    """What becomes of a picture before a model reads it: (1, C, height, width).

    values      of preprocessor_config.json instead
    resampling  one of FILTERS that resizes the picture; "": that of the processor
    rounds      whether it rounds the pixels
    channels    the step at which channels are taken before pixels are normalized, -1 to reverse them; planes: after it
    transposes  whether rows and columns are exchanged
    """
    pixels, processor = picture
    if pixels.dtype.kind == "f":
        return pixels.reshape(1, *pixels.shape[-3:])
    processor = processor._replace(raw=processor.raw.replaced({**processor.raw.values.plain, **(values or {})}))
    weigh = FILTERS.get(resampling)
    fitted = _resample(pixels, processor, weigh, rounds) if weigh else processor.fit(pixels, "--image")
    image = processor.normalize(fitted[..., ::channels])[None, ::planes]
    return image.swapaxes(-1, -2) if transposes else image


def pixel_noise(picture: PictureInput, resampling: str = "", rounds: bool = True, **others: Any) -> float:
    """What two right programs may differ by in the pixels that they make of a picture, beside the last digits.

    A resized pixel may be rounded to the next grey level. The arguments are those of `prepare_pixels`.
    """
    pixels, processor = picture
    is_rounded = rounds and (resampling or not processor.known.in_floats)
    if (
        pixels.dtype.kind == "f"
        or not is_rounded
        or processor.sizes(pixels.shape[:2], "--image")[0] == pixels.shape[:2]
    ):
        return 0.0
    dark, light = (processor.normalize(np.full((1, 1, pixels.shape[-1]), level, np.uint8)) for level in (0, 1))
    return float(np.abs(light - dark).max()) * ROUNDED


def _resample(pixels: Array, processor: ImageProcessor, weigh: "Filter", rounds: bool) -> Array:
    """Resize and crop a picture by a filter that does not widen for a smaller one."""
    size, crop = processor.sizes(pixels.shape[:2], "--image")
    down, across = (weigh(old, new) for old, new in zip(pixels.shape[:2], size, strict=True))
    resized = np.einsum("ir,jc,rcd->ijd", down, across, pixels.astype(np.float64), optimize=True)
    return crop_center(np.clip(np.round(resized), 0, 255) if rounds else resized, crop)


def _patches(around: Around, image: Array) -> Array:
    """The vectors of the patches of images: (B, C, height, width) -> (B, P, D)."""
    cut = around.config.patches
    assert cut is not None
    rows, columns = cut.grid(*image.shape[-2:])
    image = image[:, :: around.option("channels", 1), : rows * cut.patch_height, : columns * cut.patch_width]
    patches = extract_patches(image, cut.patch_height, cut.patch_width)
    inner = patches.reshape(len(image), rows, columns, cut.channels, cut.patch_height, cut.patch_width)
    order = around.option("order", (0, 1, 2, 3, 4))  # of rows, columns, channels, and rows and columns of a patch
    return around.linear(inner.transpose(0, *(1 + at for at in order)).reshape(patches.shape), "w", "b")


def _tokens(around: Around, patches: Array) -> Array:
    """The patches with the class token and the registers in their places: (B, P, D) -> (B, T, D)."""
    params = around.graph.core.params[around.stage.layer]
    if around.option("by_column"):
        cut, image = around.config.patches, around.graph.inputs.image
        assert cut is not None and image is not None
        grid = patches.reshape(len(patches), *cut.grid(*image.shape[-2:]), -1)
        patches = grid.swapaxes(1, 2).reshape(patches.shape)
    parts = {"patches": patches}
    for name in ("cls", "registers"):
        if name in params:
            rows = np.atleast_2d(around.convert(params[name]))
            parts[name] = np.broadcast_to(rows, (len(patches), *rows.shape))
    return np.concatenate([parts[name] for name in around.option("order") if name in parts], axis=1)


def _scale(around: Around, x: Array, *others: Array) -> Array:
    """The first input by a factor, plus the others."""
    return sum(others, x * np.asarray(around.option("factor", 1.0), x.dtype))


def _rows(around: Around, x: Array) -> Array:
    """Rows of absolute positions (T, D), or (B, T, D) of a padded batch."""
    core, layer, cut = around.graph.core, around.stage.layer, around.config.patches
    altered, grid, where = core._replace(config=around.config), None, around.option("where")
    if cut is not None and around.graph.inputs.image is not None:
        grid = cut.grid(*around.graph.inputs.image.shape[-2:])
        if kind := around.option("filter"):
            table = _interpolated(around, core.params[layer]["table"], grid, kind)
            altered = core._replace(params={**core.params, layer: {"table": table}})
            grid = None
    rows = around.convert(transformer.position_encoding(altered, layer, x, where, grid)(where))
    return rows if cut is None else _move_rows(around, rows, cut)


def _move_rows(around: Around, rows: Array, cut: PatchConfig) -> Array:
    """The positions of the tokens of an image (T, D), each that of another token; registers have none."""
    first, registers = int(cut.has_class), rows[int(cut.has_class) : cut.before]
    table = np.roll(np.concatenate([rows[:first], rows[cut.before :]]), around.option("rolled", 0), axis=0)
    if around.option("spares_class"):
        table[:first] = 0
    parts = {"cls": table[:first], "registers": registers, "patches": table[first:]}
    return np.concatenate([parts[name] for name in around.option("order", parts)])


def _interpolated(around: Around, table: Array, grid: tuple[int, int], kind: str) -> Array:
    """A table of positions for another grid of patches, by another filter."""
    cut, weigh = around.config.patches, FILTERS[kind]
    assert cut is not None
    first, width = int(cut.has_class), table.shape[-1]
    usual = cut.grid(cut.height, cut.width)
    down, across = (weigh(old, new) for old, new in zip(usual, grid, strict=True))
    points = np.einsum("ir,jc,rcd->ijd", down, across, table[first:].reshape(*usual, width).astype(np.float64))
    return np.concatenate([table[:first], points.reshape(-1, width)])


Filter = Callable[[int, int], Array]  # (old, new) points of an axis -> weights (new, old)


def _tent_weights(where: Array, old: int) -> Array:
    """Weights of the two neighbours of each point on an axis: (N,) -> (N, old)."""
    where = np.clip(where, 0, old - 1)[:, None]
    weights: Array = np.maximum(1 - np.abs(np.arange(old) - where), 0)
    return weights


def _middles(old: int, new: int) -> Array:
    """Where the middles of new points are on an axis of old ones."""
    where: Array = old / new * (np.arange(new) + 0.5) - 0.5
    return where


# filters of positions and pixels by name
FILTERS: dict[str, Filter] = {
    "bicubic": bicubic_weights,
    "bicubic with antialias": antialiased_weights,
    "bicubic with align_corners": lambda old, new: bicubic_weights(old, new, np.linspace(0, old - 1, new)),
    "bilinear": lambda old, new: _tent_weights(_middles(old, new), old),
    "bilinear with align_corners": lambda old, new: _tent_weights(np.linspace(0, old - 1, new), old),
    "nearest": lambda old, new: np.eye(old)[np.arange(new) * old // new],
}


def _norm(around: Around, x: Array, *others: Array) -> Array:
    """Layer or RMS norm of the sum of the inputs."""
    x = sum(others, x)
    if around.option("skips"):
        return x
    y = _standardize(around, x, around.option("kind"), around.option("eps"))
    return _scale_and_shift(around, y, *map(around.parameter, around.option("names")))


def _standardize(around: Around, x: Array, kind: str, eps: float) -> Array:
    """Each row by its standard deviation, or its root mean square."""
    centred: Array = x - x.mean(axis=-1, keepdims=True) if kind == "layer" else x
    count = x.shape[-1] - around.option("ddof", 0)
    square = np.square(centred)
    if form := around.option("rounds_squares"):
        square = rounded(square, form).astype(x.dtype)
    square = square.sum(axis=-1, keepdims=True) / count
    y: Array = centred / (np.sqrt(square) + eps) if around.option("eps_outside") else centred / np.sqrt(square + eps)
    return y


def _scale_and_shift(around: Around, y: Array, gamma: Array | None, beta: Array | None) -> Array:
    if gamma is not None:
        y = y * (around.option("offset", 0.0) + gamma)
    return y if beta is None else y + beta


def _linear(around: Around, x: Array) -> Array:
    weight, bias = around.option("names")
    return around.linear(x, weight, bias)


def _split_wrong(around: Around, x: Array) -> Array:
    """One of q, k and v, projected, and cut out of their fused projection in another layout."""
    return _cut_fused(around, [around.linear(x, f"w{letter}", f"b{letter}") for letter in "qkv"])


def _cut_fused(around: Around, flat: Sequence[Array]) -> Array:
    """One of q (B, T, H*K), k and v (B, T, G*K) each, cut out of all three in another layout.

    The layouts are flat, all queries before all keys before all values, and grouped, in which each key head and its
    value head follow the query heads that read them.
    """
    groups, at = around.option("groups"), around.option("place")
    grouped = np.concatenate([one.reshape(*one.shape[:-1], groups, -1) for one in flat], axis=-1)
    ends = np.cumsum([one.shape[-1] for one in flat])
    start, end = ends[at] - flat[at].shape[-1], ends[at]
    if around.option("stored") == "flat":
        fused: Array = np.concatenate(flat, axis=-1).reshape(grouped.shape)
        return fused[..., start // groups : end // groups].reshape(flat[at].shape)
    fused = grouped.reshape(*flat[0].shape[:-1], -1)
    return fused[..., start:end]


def _heads(around: Around, x: Array, *fused: Array) -> Array:
    """Split into heads, and rotate: (B, T, H*K) -> (B, H, T, K).

    fused  keys and values that a slip cuts queries (x) out of
    """
    y = _split(around, _cut_fused(around, [x, *fused]) if fused else x)
    if clip := around.option("clip", 0.0):
        y = np.clip(y, -clip, clip)
    return _turn(around, y)


def _split(around: Around, x: Array) -> Array:
    """Split the features of each token into heads."""
    count = around.option("heads")
    if around.option("splits") == "before":
        return x
    if around.option("splits") == "no transposing":
        return x.reshape(x.shape[0], count, x.shape[1], -1)
    if around.option("splits") == "heads last":
        return np.moveaxis(x.reshape(*x.shape[:-1], -1, count), -1, 1)
    return view_heads(x, count)


def _turn(around: Around, x: Array) -> Array:
    """Rotate heads (B, H, T, K) as often as the stage says."""
    for _ in range(around.option("times", 0)):
        x = _rotate(around, x)
    return np.ascontiguousarray(x)


def _rotate(around: Around, x: Array) -> Array:
    """Rotate the first features of a head, or the last, or by a slip the first ones of both halves."""
    width = around.option("width", x.shape[-1])
    if around.option("distant"):
        pairs, half = np.arange(width // 2), x.shape[-1] // 2  # pairs (i, i + K/2) of a head
        order = np.r_[pairs, half + pairs, np.delete(np.arange(x.shape[-1]), np.r_[pairs, half + pairs])]
        return rotate(x[..., order], *_angles(around, width))[..., np.argsort(order)]
    cut = x.shape[-1] - width if around.option("part") == "last" else 0
    turned = rotate(x[..., cut:], *_angles(around, width), interleaved=around.option("interleaved", False))
    return np.concatenate([x[..., :cut], turned], axis=-1) if cut else turned


def _angles(around: Around, width: int) -> tuple[Array, Array]:
    """Cosines and sines of the rotation of a stage."""
    rope, where = around.option("rope"), np.asarray(around.option("where"))
    if (places := around.option("places")) is not None:
        return grid_angles(places, width, rope)
    length = around.option("length")  # of all texts; None: each has its own
    base = around.option("base_width", width)
    frequencies, factor = rope_frequencies(base, rope, length) if length else batch_frequencies(base, rope, where)
    frequencies = frequencies[..., : width // 2]
    if form := around.option("rounds_frequencies"):
        frequencies = rounded(frequencies, form).astype(np.float64)
    if around.precision != "float64":  # as implementations compute them
        where, frequencies = where.astype(np.float32), frequencies.astype(np.float32)
    phases = where[..., None] * frequencies
    cos, sin = np.cos(phases), np.sin(phases)
    if form := around.option("rounds_angles"):
        cos, sin = (rounded(one, form).astype(np.float64) for one in (cos, sin))
    if where.ndim == 2:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    factor = around.option("factor", factor)
    return cos * factor, sin * around.option("direction", 1) * factor


def _scores(around: Around, q: Array, k: Array) -> Array:
    return q @ np.swapaxes(_repeat(around, k, q.shape[-3]), -1, -2)


def _repeat(around: Around, x: Array, heads: int) -> Array:
    """Key or value heads for every query head: (B, G, S, K) -> (B, H, S, K)."""
    groups = x.shape[-3]
    if heads == groups:
        return x
    order = np.arange(heads) % groups if around.option("in_turn") else np.arange(heads) // (heads // groups)
    return x[:, order]


def _cap(around: Around, x: Array) -> Array:
    softcap = around.option("softcap", 0.0)
    return softcap * np.tanh(x / softcap) if softcap else x


def _mask(around: Around, x: Array, *pair: Array) -> Array:
    """Scores (B, H, T, S) with bias and mask; the pair are q and k."""
    rules: AttentionRules = around.option("rules")
    if not around.option("no_bias") and not rules.is_cross:
        x = x + _relative_bias(around, rules, x.shape[-2], pair) if rules.relative else x
    queries, keys = x.shape[-2:]
    allowed = np.ones((queries, keys), bool)
    if rules.causal:
        allowed = allowed & masks.causal_mask(queries, keys, around.option("offset", 0))
    if rules.window != (-1, -1):
        left, right = rules.window
        allowed = allowed & masks.window_mask(queries, keys, left, right)
    padding = around.option("padding")
    if padding is not None:
        allowed = allowed & padding[:, None, None, :]
    return masks.mask_block(x, allowed, around.option("fill", -np.inf))


def _relative_bias(around: Around, rules: AttentionRules, queries: int, pair: Sequence[Array]) -> Array:
    """What relative positions add to scores: (H, T, S) or (B, H, T, S)."""
    core = around.graph.core
    if rules.relative == "alibi":
        padding = around.option("padding")
        mask = None if padding is None else padding[:, None]
        bias = transformer.alibi(core.config, rules, queries, mask, around.option("slopes"))
        return around.convert(bias * around.option("bias_factor", 1.0))
    if not pair:
        buckets = transformer.position_buckets(around.config, rules.stack, 0, queries)
        return around.convert(model.t5_bias(buckets, core.params[f"{rules.stack}.bias"]["table"]))
    q, k = pair
    relative = transformer.disentangled_positions(core, around.stage.layer, queries, model.Context())
    tables: dict[str, Any] = {
        name: around.convert(one)
        for name, one in relative._asdict().items()
        if isinstance(one, np.ndarray) and one.dtype.kind == "f"
    }
    scores: Array = relative_scores(q, k, relative._replace(**tables)) * rules.factor
    return scores


def _softmax(around: Around, x: Array) -> Array:
    axis, sinks = around.option("axis", -1), around.parameter("sinks")
    weights = np.moveaxis(softmax(np.ascontiguousarray(np.moveaxis(x, axis, -1))), -1, axis)
    if sinks is None:
        return weights
    share, _ = add_sinks(log_sum_exp(x), sinks)
    result: Array = weights * share[..., None].astype(x.dtype)
    return result


def _norm_heads(around: Around, x: Array) -> Array:
    """Norm of projected queries or keys: (B, T, H*K) -> (B, H, T, K)."""
    heads, norm = around.option("heads"), around.option("norm")
    if around.option("rotates"):
        x = merge_heads(_rotate(around, view_heads(x, heads)))
    if around.option("skips"):
        return view_heads(x, heads)
    rows = x if norm.scope == "projection" else x.reshape(*x.shape[:-1], heads, -1)
    y = _standardize(around, rows, norm.kind, norm.eps).reshape(x.shape)
    each = (around.parameter(name) for name in around.option("names"))  # of one head for all, or of all heads
    gamma, beta = (one if one is None else np.resize(one, x.shape[-1]) for one in each)
    return view_heads(_scale_and_shift(around, y, gamma, beta), heads)


def _mix(around: Around, weights: Array, v: Array) -> Array:
    return weights @ _repeat(around, v, weights.shape[-3])


def _join(around: Around, x: Array) -> Array:
    if around.option("no_transposing"):
        return x.reshape(x.shape[0], x.shape[2], -1)
    return merge_heads(x)


def _activate(around: Around, x: Array) -> Array:
    return ACTIVATIONS[around.option("activation")](x)


def _multiply(around: Around, x: Array, y: Array) -> Array:
    return x * y


def _cut_latent(around: Around, latent: Array) -> Array:
    """The keys or the values of all heads, cut out of their fused expansion in another way."""
    keys, values = (view_heads(around.linear(latent, name, ""), around.option("heads")) for name in ("wk", "wv"))
    fused, content = merge_heads(np.concatenate([keys, values], axis=-1)), keys.shape[-1]
    if around.option("cut") == "flat":
        count = content * around.option("heads")
        return fused[..., :count] if around.option("place") == "k" else fused[..., count:]
    heads, value = view_heads(fused, around.option("heads")), values.shape[-1]
    return merge_heads(heads[..., value:] if around.option("place") == "k" else heads[..., :value])


def _latent_keys(around: Around, content: Array, shared: Array) -> Array:
    """Keys of latent attention, whose last features all heads share: (B, T, H*C), (B, T, P) -> (B, H, T, C + P)."""
    own = _split(around, content)
    both = [own, np.broadcast_to(shared[:, None], (*own.shape[:-1], shared.shape[-1]))]
    return _turn(around, np.concatenate(both, axis=-1))


def _choose(around: Around, logits: Array) -> Array:
    """Which experts compute each token: (B, T, E) -> (B, T, k)."""
    rows = logits.reshape(-1, logits.shape[-1])
    chosen = route(rows, around.option("mixture"), around.parameter("correction")).chosen
    return chosen.reshape(*logits.shape[:-1], -1)


def _gates(around: Around, logits: Array, chosen: Array) -> Array:
    """The gates of the chosen experts: (B, T, E), (B, T, k) -> (B, T, k)."""
    mixture: ExpertConfig = around.option("mixture")
    scores = EXPERT_SCORES[mixture.score](logits)
    correction = around.parameter("correction") if around.option("corrects_gates") else None
    gates = np.take_along_axis(scores if correction is None else scores + correction, chosen, axis=-1)
    gates = softmax(gates) if mixture.score == "chosen" else gates
    gates = gates / (gates.sum(axis=-1, keepdims=True) + 1e-20) if mixture.renormalizes else gates
    scaled: Array = gates * np.asarray(mixture.scale, gates.dtype)
    return scaled


def _experts(around: Around, x: Array, gates: Array, chosen: Array) -> Array:
    """The sum of the chosen experts of each token by their gates: (B, T, D) -> (B, T, D)."""
    experts = transformer.layer_experts(around.graph.core, around.stage.layer)
    instead: Mapping[int, int] = around.option("instead", {})
    y = np.zeros_like(x)
    for number in np.unique(chosen).tolist():
        params = experts.expert(instead.get(number, number))
        *tokens, ranks = np.nonzero(chosen == number)
        place = tuple(tokens)
        gate = gates[(*place, ranks)][:, None]
        if around.option("gates") == "of the input":
            y[place] += _feed_forward(around, x[place] * gate, params)
        else:
            y[place] += _feed_forward(around, x[place], params) * (1 if around.option("gates") == "none" else gate)
    return y


def _feed_forward(around: Around, x: Array, params: Mapping[str, Array]) -> Array:
    """A gated network: (N, D) -> (N, D)."""
    missing = around.option("missing", ())
    params = {name: around.convert(array) for name, array in params.items() if name not in missing}
    gate, up = (
        x @ params[f"w{digit}"] + params.get(f"b{digit}", 0.0)
        for digit in ("31" if around.option("exchanged") else "13")
    )
    gate, up = CUTS[around.option("cut", "")](gate, up)
    if limit := around.option("limit"):
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    inner = ACTIVATIONS[around.option("activation")](gate) * (up + around.option("offset", 0.0))
    result: Array = inner @ params["w2"] + params.get("b2", 0.0)
    return result


def _alternate(gate: Array, up: Array) -> tuple[Array, Array]:
    """The columns of gate and up that alternate, of a projection where they are halves."""
    fused = np.concatenate([gate, up], axis=-1)
    return fused[..., ::2], fused[..., 1::2]


def _halve(gate: Array, up: Array) -> tuple[Array, Array]:
    """The halves that are taken for gate and up, of a projection whose columns alternate."""
    fused = np.stack([gate, up], axis=-1).reshape(*gate.shape[:-1], -1)
    return fused[..., : gate.shape[-1]], fused[..., gate.shape[-1] :]


# how gate and up are cut out of their fused projection, other than it is stored
CUTS: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "": lambda gate, up: (gate, up),
    "alternate": _alternate,
    "halves": _halve,
}


def _cut_gate(around: Around, *arrays: Array) -> Array:
    """One of gate and up, cut out of their fused projection in another way.

    The arrays are what both are projected from, or both, after a factor of the result if there is one.
    """
    if len(arrays) == 1:
        arrays = tuple(around.linear(arrays[0], f"w{digit}", f"b{digit}") for digit in "13")
    *factors, gate, up = arrays
    part = ACTIVATIONS[around.option("activation", "identity")](
        CUTS[around.option("cut")](gate, up)[around.option("place")]
    )
    return part * factors[0] if factors else part


def _add_shared(around: Around, experts: Array, shared: Array, gate: Array | None = None) -> Array:
    """The sum of the experts, and what all tokens share by its gate."""
    shared = shared * around.option("factor", 1.0)
    return experts + (shared if gate is None else shared * ACTIVATIONS[around.option("gate", "sigmoid")](gate))


def _pool(around: Around, x: Array) -> Array:
    """The vector that a head of whole texts reads: (B, T, D) -> (B, 1, P)."""
    kind, real = around.option("kind"), around.option("real")
    if kind == "first":
        return x[:, :1]
    if kind == "patches" and around.config.patches:
        return pooling.patch_pool(x, around.config.patches.before)[:, None, :]
    real = np.ones(x.shape[:-1], bool) if real is None else real
    pools = {"mean": pooling.mean_pool, "last": pooling.last_token}
    return pools.get(kind, pooling.concat_pool)(x, real)[:, None, :]


def _pooler(around: Around, x: Array) -> Array:
    return np.tanh(around.linear(x[:, 0], "w", "b"))


def _logits(around: Around, x: Array) -> Array:
    """Logits of states (B, T, D), or of one vector of each text."""
    y = _cap(around, around.linear(x * np.asarray(around.option("factor", 1.0), x.dtype), *around.option("names")))
    return y[:, 0] if around.option("is_pooled") else y


def _same(around: Around, x: Array) -> Array:
    return x[:, None, :]


OPERATIONS: dict[str, Callable[..., Array]] = {
    "words": _words,
    "types": _types,
    "pixels": _pixels,
    "patches": _patches,
    "tokens": _tokens,
    "scale": _scale,
    "rows": _rows,
    "add": _scale,
    "norm": _norm,
    "linear": _linear,
    "expand": _linear,
    "cut latent": _cut_latent,
    "split wrong": _split_wrong,
    "norm of heads": _norm_heads,
    "heads": _heads,
    "scores": _scores,
    "cap": _cap,
    "mask": _mask,
    "softmax": _softmax,
    "mix": _mix,
    "join": _join,
    "activate": _activate,
    "multiply": _multiply,
    "cut gate": _cut_gate,
    "latent keys": _latent_keys,
    "choose": _choose,
    "gates": _gates,
    "experts": _experts,
    "add shared": _add_shared,
    "pool": _pool,
    "pooler": _pooler,
    "one row": _same,
    "logits": _logits,
}


# the graph of a configuration

Built = Iterator[Stage]


class Place(NamedTuple):
    """Where a step stands: what it reads, and the sizes of what passes through."""

    core: model.Model
    inputs: Inputs
    step: model.Step
    x: str
    memory: str
    batch: int
    tokens: int

    def states(self, width: int) -> tuple[int, int, int]:
        return self.batch, self.tokens, width

    def width(self) -> int:
        return self.core.config.result_width(self.step.layer)

    def positions(self) -> Array:
        """The positions of the tokens: (T,), or (B, T) of a padded batch."""
        _, mask = self.inputs.of(self.step.layer.partition(".")[0], self.core.config)
        if mask is None or mask.all():
            return np.arange(self.tokens)
        return transformer.token_positions(mask)


def _build(core: model.Model, inputs: Inputs) -> Built:
    config, memory = core.config, ""
    if inputs.picture is not None:
        yield Stage("pixels", "pixels", (), prepare_pixels(inputs.picture).shape)
    for stack in config.stacks:
        if inputs.of(stack, config)[0] is None and inputs.image is None:
            return  # the decoder of an encoder-decoder model without targets
        batch, tokens = _sizes(core, inputs, stack)
        x = saved = f"{stack}.ids" if stack == "decoder" and config.encoder else ("pixels" if config.patches else "ids")
        for step in config.plan(stack):
            if step.reads_saved:
                x, saved = saved, x
            before = x
            saved = x if step.saves_residual else saved
            place = Place(core, inputs, step, x, memory, batch, tokens)
            stages = list(_BUILDERS[step.op](place))
            yield from stages
            x = stages[-1].site
            if step.adds_residual:
                added = saved if step.adds_residual == "saved" else before
                options = {} if step.scale == 1 else {"factor": step.scale}
                yield Stage(f"{step.layer}.residual", "add", (x, added), place.states(config.width), options=options)
                x = f"{step.layer}.residual"
        memory = x
    yield from _build_head(core, inputs, memory)


def _sizes(core: model.Model, inputs: Inputs, stack: str) -> tuple[int, int]:
    """The number of texts and tokens of a stack, or of images and patches."""
    ids, _ = inputs.of(stack, core.config)
    if ids is not None:
        return ids.shape[0], ids.shape[1]
    cut, image = core.config.patches, np.asarray(inputs.image)
    assert cut is not None
    return len(image), cut.tokens(*image.shape[-2:])


def _build_embeddings(place: Place) -> Built:
    config, layer, shape = place.core.config, place.step.layer, place.states(place.width())
    if (cut := config.patches) is not None:
        patches = (place.batch, place.tokens - cut.before, shape[-1])
        yield Stage(f"{layer}.patches", "patches", (place.x,), patches, layer, {"names": ("w", "b")})
        options = {"order": ("cls", "registers", "patches"), "names": ("cls", "registers")}
        yield Stage(layer, "tokens", (f"{layer}.patches",), shape, layer, options)
        return
    words, types = f"{layer}.words", f"{layer}.types"
    yield Stage(words, "words", (place.x,), shape, layer)
    has_types = "types" in place.core.params[layer]
    if has_types:
        yield Stage(types, "types", (words,), shape, layer)
    yield Stage(layer, "scale", (words, *[types] * has_types), shape, options={"factor": config.embed_scale})


def _build_positions(place: Place) -> Built:
    layer, where, shape = place.step.layer, place.positions(), place.states(place.width())
    rows = (*where.shape, shape[-1])
    yield Stage(f"{layer}.rows", "rows", (place.x,), rows, layer, {"where": where})
    yield Stage(layer, "add", (place.x, f"{layer}.rows"), shape)


def _build_norm(place: Place) -> Built:
    yield _norm_stage(place.core.config, place.step.layer, place.x, place.states(place.width()))


def _norm_stage(config: model.Config, layer: str, x: str, shape: tuple[int, ...]) -> Stage:
    options = {"kind": config.norm, "eps": config.eps, "names": ("gamma", "beta")}
    return Stage(layer, "norm", (x,), shape, layer, options)


def _build_linear(place: Place) -> Built:
    layer = place.step.layer
    yield Stage(layer, "linear", (place.x,), place.states(place.width()), layer, {"names": ("w", "b")})


def _positions_of(place: Place, rules: AttentionRules) -> dict[str, Any]:
    """The options of a stage that rotates."""
    if not rules.rotation:
        return {}
    rotation = {"rope": rules.rope, "width": rules.rotary_dim, "interleaved": rules.interleaved}
    if rules.rotation == "grid_rotary":
        config, image = place.core.config, place.inputs.image
        grid = config.patches.grid(*image.shape[-2:]) if config.patches and image is not None else None
        rotation["places"] = transformer.patch_places(config, grid, place.tokens)
    return rotation | {"where": place.positions()}


def _build_projections(place: Place, rules: AttentionRules, source: str, keys: int) -> Built:
    layer = place.step.layer
    for letter, read, rows in (("q", place.x, place.tokens), ("k", source, keys), ("v", source, keys)):
        count = rules.heads if letter == "q" else rules.kv_heads
        projected = f"{layer}.{letter}_projected"
        shape = (place.batch, rows, count * rules.head_dim)
        parameters = (f"w{letter}", f"b{letter}")
        yield Stage(projected, "linear", (read,), shape, layer, {"names": parameters, "heads": count})
        options: dict[str, Any] = {"heads": count, "clip": rules.clip}
        split = (place.batch, count, rows, rules.head_dim)
        if rules.norm and letter != "v":
            norm = {"names": (f"gamma_{letter}", f"beta_{letter}"), "heads": count, "norm": rules.norm}
            yield Stage(f"{layer}.{letter}_normed", "norm of heads", (projected,), split, layer, norm)
            projected = f"{layer}.{letter}_normed"
            options["splits"] = "before"
        if rotation := _positions_of(place, rules):
            options |= {**rotation, "times": int(letter != "v")}
        yield Stage(f"{layer}.{letter}", "heads", (projected,), split, "", options)


def _build_latents(place: Place, rules: AttentionRules, latent: LatentConfig) -> Built:
    layer, heads = place.step.layer, rules.heads
    rotation = {**_positions_of(place, rules), "part": "last", "times": 1} if rules.rotation else {}
    for name, size in (("q_latent", latent.query_rank), ("kv_latent", latent.rank)):
        if size:
            names, shape = {"names": (f"w{name}", f"b{name}")}, place.states(size)
            norm = {"kind": "rms", "eps": latent.eps, "names": (f"gamma_{name}", "")}
            yield Stage(f"{layer}.{name}_projected", "linear", (place.x,), shape, layer, names)
            yield Stage(f"{layer}.{name}", "norm", (f"{layer}.{name}_projected",), shape, layer, norm)
    shared = {"names": ("wk_rotary", "bk_rotary")}
    yield Stage(f"{layer}.k_rotary", "linear", (place.x,), place.states(latent.rotary), layer, shared)
    sources = {"q": f"{layer}.q_latent" if latent.query_rank else place.x, "k": f"{layer}.kv_latent"}
    for letter, width in (("q", rules.head_dim), ("k", latent.content), ("v", latent.value)):
        read, projected = sources.get(letter, sources["k"]), f"{layer}.{letter}_projected"
        expansion: dict[str, Any] = {"names": (f"w{letter}", f"b{letter}"), "heads": heads}
        expands = "linear" if letter == "q" else "expand"
        yield Stage(projected, expands, (read,), place.states(heads * width), layer, expansion)
        split = (place.batch, heads, place.tokens, latent.value if letter == "v" else rules.head_dim)
        if letter == "k":
            both = (projected, f"{layer}.k_rotary")
            yield Stage(f"{layer}.k", "latent keys", both, split, layer, {"heads": heads, **rotation})
        else:
            yield Stage(
                f"{layer}.{letter}",
                "heads",
                (projected,),
                split,
                "",
                {"heads": heads} | (rotation if letter == "q" else {}),
            )


def _build_attention(place: Place) -> Built:
    core, inputs, layer = place.core, place.inputs, place.step.layer
    rules = core.config.attention_rules[layer]
    source = place.memory if rules.is_cross else place.x
    keys = _sizes(core, inputs, "encoder")[1] if rules.is_cross else place.tokens
    if rules.latent is not None:
        yield from _build_latents(place, rules, rules.latent)
    else:
        yield from _build_projections(place, rules, source, keys)
    padding = inputs.of(core.config.stacks[0] if rules.is_cross else rules.stack, core.config)[1]
    padding = None if padding is None or padding.all() else padding
    names = ("q", "k", "v", *STEPS[3:], "joined", "output")  # scores to heads between them
    q, k, v, scores, scaled, capped, masked, weights, heads, joined, output = (f"{layer}.{name}" for name in names)
    pair = (q, k) if rules.relative == "disentangled" and not rules.is_cross else ()
    grouped = {"is_grouped": rules.heads != rules.kv_heads}
    square, each = (place.batch, rules.heads, place.tokens, keys), (place.batch, rules.heads, place.tokens)
    yield Stage(scores, "scores", (q, k), square, options=grouped)
    yield Stage(scaled, "scale", (scores,), square, options={"factor": rules.factor, "rules": rules})
    yield Stage(capped, "cap", (scaled,), square, options={"softcap": rules.softcap})
    yield Stage(masked, "mask", (capped, *pair), square, layer, {"rules": rules, "padding": padding})
    yield Stage(weights, "softmax", (masked,), square, layer)
    yield Stage(heads, "mix", (weights, v), (*each, rules.value_dim), options=grouped)
    yield Stage(joined, "join", (heads,), place.states(rules.heads * rules.value_dim))
    yield Stage(output, "linear", (joined,), place.states(place.width()), layer, {"names": ("wo", "bo")})


def _build_ffn(place: Place) -> Built:
    layer, config = place.step.layer, place.core.config
    if mixture := config.mixture(layer):
        yield from _build_mixture(place, mixture)
    else:
        yield from _build_network(place, layer, config.stack(layer.partition(".")[0]).hidden)


def _build_network(place: Place, layer: str, hidden_width: int) -> Built:
    """The stages of a feed-forward network with the parameters of a layer."""
    is_gated, shape = "w3" in place.core.params[layer], place.states(hidden_width)
    hidden, activated, linear, gated = (f"{layer}.{name}" for name in ("hidden", "activated", "linear", "gated"))
    yield Stage(hidden, "linear", (place.x,), shape, layer, {"names": ("w1", "b1")})
    activation = {"activation": place.core.config.activation, "is_gated": is_gated}
    yield Stage(activated, "activate", (hidden,), shape, options=activation)
    if is_gated:
        yield Stage(linear, "linear", (place.x,), shape, layer, {"names": ("w3", "b3")})
        yield Stage(gated, "multiply", (activated, linear), shape)
    inner = gated if is_gated else activated
    yield Stage(f"{layer}.output", "linear", (inner,), place.states(place.width()), layer, {"names": ("w2", "b2")})


def _build_mixture(place: Place, mixture: ExpertConfig) -> Built:
    layer, config, shape = place.step.layer, place.core.config, place.states(place.width())
    router, shared = f"{layer}.router", f"{layer.removesuffix('.ffn')}.shared"
    logits = {"names": ("router", "router_bias")}
    yield Stage(router, "linear", (place.x,), place.states(mixture.count), layer, logits)
    choice, ranks = f"{layer}.chosen", place.states(mixture.chosen)
    yield Stage(choice, "choose", (router,), ranks, layer, {"mixture": mixture})
    yield Stage(f"{layer}.gates", "gates", (router, choice), ranks, layer, {"mixture": mixture})
    reads, output = (place.x, f"{layer}.gates", f"{layer}.chosen"), f"{layer}.output"
    options = {"activation": config.activation, "limit": config.ffn_limit, "offset": float(config.ffn_limit > 0)}
    yield Stage(f"{layer}.experts" if mixture.shared else output, "experts", reads, shape, layer, options)
    if mixture.shared:
        yield from _build_network(place, shared, mixture.shared)
        gate = f"{layer}.shared_gate"
        has_gate = "shared_gate" in place.core.params[layer]
        if has_gate:
            yield Stage(gate, "linear", (place.x,), place.states(1), layer, {"names": ("shared_gate", "")})
        both = (f"{layer}.experts", f"{shared}.output")
        yield Stage(output, "add shared", (*both, *[gate] * has_gate), shape, "", {"mixture": mixture})


_BUILDERS: dict[str, Callable[[Place], Built]] = {
    "embed": _build_embeddings,
    "posenc": _build_positions,
    "layernorm": _build_norm,
    "linear": _build_linear,
    "attend": _build_attention,
    "ffn": _build_ffn,
}


def _build_head(core: model.Model, inputs: Inputs, x: str) -> Built:
    config = core.config
    batch, tokens = _sizes(core, inputs, config.stacks[-1])
    if config.pooler:
        yield Stage("pooler", "pooler", (x,), (batch, config.width), "pooler")
    if not config.head:
        return
    rows: tuple[int, ...] = (batch, tokens)
    if config.is_head_pooled:
        rows = (batch, 1)
        shape = (*rows, config.pooled_width)
        if config.pooling == "pooler":
            yield Stage("head.pooled", "one row", ("pooler",), shape)
        else:
            real = inputs.of(config.stacks[-1], config)[1]
            yield Stage("head.pooled", "pool", (x,), shape, options={"kind": config.pooling, "real": real})
        x = "head.pooled"
    inner, outer = config.parameter_shape("head", "w")
    if config.transform:
        activation = {"activation": config.head_activation or config.activation, "is_gated": False}
        yield Stage("head.hidden", "linear", (x,), (*rows, inner), "head.dense", {"names": ("w", "b")})
        yield Stage("head.dense", "activate", ("head.hidden",), (*rows, inner), options=activation)
        x = "head.dense"
        if config.head_norm:
            yield _norm_stage(config, "head.norm", x, (*rows, inner))
            x = "head.norm"
    options = {"names": ("w", "b"), "factor": config.logit_scale, "is_pooled": config.is_head_pooled}
    options |= {"softcap": config.logit_softcap}
    yield Stage("logits", "logits", (x,), (batch, outer) if config.is_head_pooled else (*rows, outer), "head", options)


def with_positions(config: model.Config, **changes: Any) -> model.Config:
    """A configuration with fields of its positions changed."""
    return replace(config, positions=replace(config.positions, **changes))
