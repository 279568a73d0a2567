"""The convolution of x step by step, for the tool and for its gradient."""

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from attnkit import options
from attnkit.errors import DataError
from attnkit.formats.memory import check_memory
from attnkit.inputs.intermediates import clear_labels
from attnkit.inputs.layers import find_layer, weight_and_bias
from attnkit.inputs.operands import read_position
from attnkit.inputs.padding import find_lengths
from attnkit.model.checks import as_text
from attnkit.model.config import ConvolutionLayer
from attnkit.model.dtypes import cast, is_float, working
from attnkit.model.formulas.activations import apply_activation
from attnkit.model.formulas.convolution import Convolution, convolve, find_windows
from attnkit.model.formulas.linear import add
from attnkit.model.intermediates import step_names
from attnkit.model.layers.convolutions import find_kernel, normalize_channels
from attnkit.records import Array, Record, Tensor, join_names

STEPS = step_names("conv")
PLACES = {1: ("position",), 2: ("row", "column")}  # axes that a kernel moves over


class ConvolutionStage(NamedTuple):
    """What a stage computes with.

    weights  w (E, C / groups, K) or (E, C / groups, K, J), and b (E) of some
    first    whether the channels of x come first
    residual  whether x is added to the result
    layer    of a model, which says more; None without one
    before   the tokens before x (..., P, C), in place of causal zeros; None without them
    offset   how many tokens came before x
    """

    weights: Mapping[str, Array]
    options: Convolution
    first: bool
    activation: str
    residual: bool = False
    layer: ConvolutionLayer | None = None
    before: Array | None = None
    offset: int = 0

    @property
    def over(self) -> int:
        """The dimensions that the kernel moves over."""
        return self.weights["w"].ndim - 2

    def channels_last(self, x: Array) -> Array:
        """x with its channels last."""
        if self.layer is not None and self.layer.reads_samples:
            return x[..., None]
        return np.moveaxis(x, -1 - self.over, -1) if self.first and x.ndim > self.over else x

    def continued(self, x: Array) -> tuple[Array, Convolution]:
        """x (..., T, C) after the tokens before it, and how the kernel moves over them."""
        if self.before is None:
            return x, self.options
        whole = np.concatenate([self.before.astype(working(x), copy=False), x], axis=-2)
        return whole, self.options._replace(padding=(0,))

    def channels_back(self, x: Array) -> Array:
        """x with its channels where the input has them; the inverse of `channels_last`."""
        return np.ascontiguousarray(np.moveaxis(x, -1, -1 - self.over)) if self.first else x

    def names_back(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Axis names with that of the channels where the input has them."""
        first = len(axes) - 1 - self.over
        return (*axes[:first], axes[-1], *axes[first:-1]) if self.first else axes

    def axes(self, record: Record) -> tuple[str, ...]:
        """The axis names of the input, with that of its channels last."""
        names, rank = record.axes_of("x"), record["x"].ndim
        if self.layer is not None and self.layer.reads_samples:
            return (*names, "channel")
        if record.tensors["x"].axes is None and (self.first or self.over == 2):
            return (*("batch",) * (rank - self.over - 1), *PLACES[self.over], "channel")
        return (*names[: -1 - self.over], *names[-self.over :], names[-1 - self.over]) if self.first else names


def kernel_numbers(help: str) -> Any:
    """Declare an option of one number for all dimensions of a kernel, or of each."""
    return typer.Option(parser=options.parse_kernel_numbers, metavar="N[,M]", help=help, show_default=False)


class Kernel(NamedTuple):
    """Where the kernel of a convolution comes from: a file, a model, or a seed."""

    params: Annotated[
        Mapping[str, Array] | None,
        options.file(
            "tensors", "weights, as PyTorch and ONNX have them: w (out, in / groups, size) or two sizes, and b (out)"
        ),
    ] = None
    model_: options.Model = None
    layer: options.Layer = None
    filters: Annotated[int | None, typer.Option(min=1, metavar="F", help="random weights of F filters, of --size")] = (
        None
    )
    size: Annotated[tuple[int, ...], kernel_numbers("size of each filter; N,M: over two dimensions")] = ()
    seed: Annotated[int, typer.Option(min=0, help="seed of the random weights")] = 0


def find_convolution(
    x: Array, kernel: Kernel, options: Convolution, channels: str, activation: str, residual: bool
) -> ConvolutionStage:
    """The kernel, of a file or drawn from N(0, 1/inputs), and how it moves over x.

    DataError for weights of other names, or channels that the groups do not divide.
    """
    if kernel.model_ is not None:
        layer = find_layer(kernel.model_, kernel.layer, "conv")
        cut, params = kernel.model_.config.convolution(layer), kernel.model_.params[layer]
        weights = dict(params) | {"w": find_kernel(params, cut, working(x))}
        return ConvolutionStage(weights, cut.options, False, cut.activation, residual, cut)
    is_first, groups, size, filters = channels == "first", options.groups, kernel.size, kernel.filters
    if filters is None:
        return ConvolutionStage(weight_and_bias(kernel.params or {}, "conv"), options, is_first, activation, residual)
    if x.ndim <= len(size):
        raise DataError(f"x of rank {x.ndim}: expected {len(size) + 1} axes or more, {len(size)} and channels")
    width = x.shape[-1 - len(size) if is_first else -1]
    if width % groups or filters % groups:
        raise DataError(f"{width} channels and {filters} filters: expected multiples of {groups}", "--groups")
    shape = (filters, width // groups, *size)
    check_memory(8 * math.prod(shape), f"a kernel {as_text(shape)}", "--filters")
    inputs = max(int(np.prod(shape[1:])), 1)
    drawn = np.random.default_rng(kernel.seed).standard_normal(shape) / inputs**0.5
    return ConvolutionStage({"w": drawn.astype(working(x))}, options, is_first, activation, residual)


def with_state(stage: ConvolutionStage, x: Array, tensors: Mapping[str, Array]) -> ConvolutionStage:
    """The stage with the tokens before x, of the file of a state.

    tokens (..., P, C): those that the windows of the first tokens see; position: how many came before [0]
    """
    shape = state_shape(stage, x)
    if not {"tokens"} <= {*tensors} <= {"tokens", "position"}:
        raise DataError(f"expected tokens and position (it has {join_names([*tensors])})", "--state-in")
    tokens = tensors["tokens"]
    if tokens.shape != shape or not is_float(tokens.dtype):
        given = f"tokens {as_text(tokens.shape)} {tokens.dtype}"
        raise DataError(f"{given}: expected {as_text(shape)} floats", "--state-in")
    return stage._replace(before=tokens, offset=read_position(tensors))


def state_shape(stage: ConvolutionStage, x: Array) -> tuple[int, ...]:
    """The shape (P, C) or (B, P, C) of the tokens before x that its windows see."""
    last, span = stage.channels_last(x), (stage.weights["w"].shape[-1] - 1) * stage.options.dilation[0]
    if last.ndim not in (2, 3):
        raise DataError(f"x {as_text(x.shape)}: expected (token, model) or (batch, token, model)")
    return (*last.shape[:-2], span, last.shape[-1])


def convolution_state(record: Record, stage: ConvolutionStage) -> Record:
    """The file of a state: the last tokens of each text, padding not among them."""
    x, shape = stage.channels_last(record["x"]), state_shape(stage, record["x"])
    x = x.astype(x.dtype if is_float(x.dtype) else working(x), copy=False)
    before = np.zeros(shape, x.dtype) if stage.before is None else stage.before.astype(x.dtype, copy=False)
    whole = np.concatenate([before, x], axis=-2)
    lengths = None if stage.first else find_lengths(record, x.reshape(-1, *x.shape[-2:]))
    ends = np.full(x.shape[:-2], x.shape[-2]) if lengths is None else lengths.reshape(x.shape[:-2])
    places = ends[..., None] + np.arange(shape[-2])
    tokens = np.take_along_axis(whole, places[..., None], axis=-2)
    axes = ("batch", "token", "model")[-x.ndim :]
    position = np.array(stage.offset + x.shape[-2], np.int64)
    return Record({"tokens": Tensor(tokens, axes), "position": Tensor(position, ())})


def compute_convolution(record: Record, stage: ConvolutionStage, keep: Collection[str] = ()) -> dict[str, Array]:
    """The result x of a convolution and the arrays before it, channels last.

    `padded` and `windows` are included only if `keep` names them.
    """
    weight, bias = stage.weights["w"], stage.weights.get("b")
    x = stage.channels_last(record["x"])
    whole, options = stage.continued(x)
    windows = find_windows(whole, weight, options)
    sides = zip(whole.shape[-1 - stage.over : -1], windows.before, windows.after, strict=True)
    padded = (*x.shape[: -1 - stage.over], *map(sum, sides), x.shape[-1])
    check_memory(8 * math.prod(padded), f"an input {as_text(padded)} with its zeros", "--padding")
    arrays = convolve(whole, weight, bias, options, (*keep,))
    output = arrays["convolved"] = arrays.pop("output")
    norm_last = stage.layer is not None and stage.layer.norm_last
    if stage.layer is not None and stage.layer.norm and not norm_last:
        output = arrays["normalized"] = normalize_channels(output, stage.weights, stage.layer)
    if stage.activation != "identity":
        output = apply_activation(stage.activation, cast(output, working(output))).astype(output.dtype, copy=False)
    if stage.layer is not None and norm_last:
        output = normalize_channels(output, stage.weights, stage.layer)
    if stage.residual:
        if output.shape != x.shape:
            raise DataError(f"x {x.shape} and its convolution {output.shape} cannot be added", "--residual")
        output = add(output, x)
    return arrays | {"x": output}


def describe_convolution(
    record: Record,
    stage: ConvolutionStage,
    computed: Mapping[str, Array],
    keep: Collection[str] = (),
    *,
    steps: bool = False,
) -> dict[str, Tensor]:
    """The computed steps that are kept, with their formulas, and then x.

    steps  whether to keep also the other steps that change something
    """
    x, axes, output = stage.channels_last(record["x"]), stage.axes(record), computed["convolved"]
    tensors: dict[str, Tensor] = {}

    def put(name: str, array: Array, formula: str) -> None:
        own = stage.names_back(rename_axes(axes, x.shape, array.shape, stage.over))
        tensors[name] = Tensor(stage.channels_back(array), own, formula=formula)

    is_padded = "padded" in computed and computed["padded"].shape != x.shape
    if "padded" in keep or (steps and is_padded):
        around = "x with zeros around it" if stage.before is None else "x after the tokens of the state"
        put("padded", computed["padded"], around if is_padded else "as before")
    if "windows" in computed and (steps or "windows" in keep):
        names = (*rename_axes(axes, x.shape, output.shape, stage.over)[:-1], "window")
        tensors["windows"] = Tensor(computed["windows"], names, formula="the numbers that the kernel covers")
    formula, has_activation = "windows W" + " + b" * ("b" in stage.weights), stage.activation != "identity"
    if "convolved" in keep or (steps and (has_activation or stage.residual)):
        put("convolved", output, formula)
        formula = "convolved"
    if "normalized" in computed:
        formula = f"norm({formula})"
        if "normalized" in keep or steps:
            put("normalized", computed["normalized"], formula)
            formula = "normalized"
    if has_activation:
        formula = f"{stage.activation}({formula})"
    if stage.layer is not None and stage.layer.norm_last:
        formula = f"norm({formula})"
    put("x", computed["x"], "x + " * stage.residual + formula)
    return tensors


def without_outdated_labels(record: Record, tensors: Mapping[str, Tensor], stage: ConvolutionStage) -> Record:
    """The record without labels of channels and of axes of another size than x's."""
    last = stage.channels_last(record["x"])
    old = set(zip(stage.axes(record)[:-1], last.shape[:-1], strict=True))
    sizes = {pair for one in tensors.values() for pair in zip(one.axis_names(), one.array.shape, strict=True)}
    return clear_labels(record, {}, dict(sizes - old), tensors)[0]


def rename_axes(axes: tuple[str, ...], before: tuple[int, ...], after: tuple[int, ...], over: int) -> tuple[str, ...]:
    """The axes of a result with its channels last.

    One of another size has another name, and thus no labels.

    >>> rename_axes(("token", "model"), (5, 4), (3, 4), 1), rename_axes(("token", "model"), (5, 4), (5, 8), 1)
    (('position', 'model'), ('token', 'filter'))
    """
    others = (*axes[: len(axes) - over - 1], *PLACES[over], "filter")
    names = zip(axes, others, before, after, strict=True)
    return tuple(name if old == new else other for name, other, old, new in names)
