"""Nodes of a graph: their statements, contexts and builders."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attnkit.model.config import Config, SoundConfig, Step
from attnkit.model.context import Model
from attnkit.model.dtypes import LARGEST, Array, rounded
from attnkit.model.formulas.linear import linear_backward
from attnkit.model.formulas.positions import token_positions
from attnkit.model.graph.functions import NUMPY, Functions
from attnkit.model.hooks import Hook, no_hook

NARROW = (*LARGEST,)


class Node(NamedTuple):
    """One intermediate of a model: a site, its kind, inputs and options.

    shape  of the site
    layer  the layer whose parameters it reads, "" for none
    """

    site: str
    kind: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    layer: str = ""
    options: Mapping[str, Any] = {}

    def change(self, **options: Any) -> "Node":
        """The node with some of its options changed."""
        return self._replace(options={**self.options, **options})


# the ends of the names that traces lack
UNTRACED = (
    ".words", ".types", ".rows", ".patches", "_projected", ".joined", ".experts", ".shared_gate", "multiplied",
    "head.pooled", "head.hidden", "vector.probe", "vector.state",
)  # fmt: skip
LAST = "last_"  # what the site of a state after all tokens begins with, before the name of its part


def is_traced(site: str) -> bool:
    """Whether traces have a site.

    >>> is_traced("decoder.0.self.q"), is_traced("decoder.0.self.q_projected"), is_traced("decoder.0.shared.hidden")
    (True, False, False)
    """
    return not (site.endswith(UNTRACED) or ".shared." in site or f".{LAST}" in site)


def no_cost(sizes: Any) -> Iterable[Any]:
    """What a node costs that only views its input."""
    return ()


class Kind(NamedTuple):
    """What the nodes of one kind have in common.

    value     (scope, arrays of the sites that a node reads) -> the array of its site
    pullback  (scope, gradient of the site, its array, arrays of the sites that a node reads) -> their gradients, None
              where the site does not depend on one; those of parameters are added to the scope. It is that of a node
              as models have it, without the options of slips. None: the kind has no derivative
    cost      (sizes) -> what it costs, of one row or several: see costs.py
    """

    value: Callable[..., Array]
    pullback: Callable[..., Sequence[Array | None]] | None = None
    cost: Callable[[Any], Iterable[Any]] = no_cost


@dataclass
class Inputs:
    """What a model reads.

    ids      (B, T) of the first stack; target: those of the decoder of an encoder-decoder model
    mask     (B, T) True = a token, no padding; target_mask likewise
    types    (B, T) segments
    image    (B, C, height, width), the pixels that the first node reads
    features (B, F, M) the spectrograms, or (B, T) the samples that the first convolution reads; the mask of sounds is
             that of the states that convolutions make of them
    sound    (B, T) the sounds that features are made of
    standardizes  whether these are then brought to mean 0 and variance 1
    """

    ids: Array | None = None
    target: Array | None = None
    mask: Array | None = None
    target_mask: Array | None = None
    types: Array | None = None
    image: Array | None = None
    features: Array | None = None
    sound: Array | None = None
    standardizes: bool = True

    def of(self, stack: str, config: Config) -> tuple[Array | None, Array | None]:
        """The ids and the mask of a stack."""
        is_target = stack == "decoder" and config.encoder is not None
        return (self.target, self.target_mask) if is_target else (self.ids, self.mask)

    def has(self, stack: str, config: Config) -> bool:
        """Whether there is anything that a stack reads."""
        is_heard = config.sound is not None and stack == "encoder"
        given = (self.features, self.sound) if is_heard else (self.of(stack, config)[0], self.image)
        return any(one is not None for one in given)

    def heard_shape(self, sound: SoundConfig) -> tuple[int, ...]:
        """The shape of the spectrograms (B, F, M) or samples (B, T) that a model reads."""
        return self.made_shape(sound) if self.features is None else tuple(self.features.shape)

    def made_shape(self, sound: SoundConfig) -> tuple[int, ...]:
        """The shape of the features that are made of the sounds."""
        assert self.sound is not None
        if sound.spectrogram is None:
            return tuple(self.sound.shape)
        return len(self.sound), sound.samples // sound.spectrogram.hop, sound.spectrogram.mels


Apply = Callable[[Node, Sequence[Array]], Array]  # a node and the arrays it reads -> the array of its site
Arrays = Mapping[str, Array]
# gradients of sites, the sites that are given, and the values of the others -> gradients of sites and of parameters
UndoNodes = Callable[[Arrays, Arrays, Arrays], tuple[Arrays, Mapping[str, Arrays]]]


def no_nodes(*given: Any) -> Any:
    """What computes or undoes other nodes where there is no graph: nothing."""
    raise NotImplementedError("a node alone computes no other nodes")


class Scope(NamedTuple):
    """What a node computes with, beside the arrays that it reads.

    precision    the dtype to compute in; "" for that of the arrays and parameters
    within       (the model, with its parameters as they should be) -> what computes other nodes, as those of a loop
    add          (layer, gradients of its parameters by name): where a pullback adds them
    undo_within  (that model, nodes) -> what undoes other nodes
    hook         receives the gradients of what a kernel computes inside a node, and may replace them
    functions    those of the library whose arrays it computes with
    """

    core: Model
    inputs: Inputs
    node: Node
    precision: str
    within: Callable[[Model], Apply] = no_nodes
    add: Callable[[str, Mapping[str, Array | None]], None] = lambda layer, gradients: None
    undo_within: Callable[[Model, Sequence[Node]], UndoNodes] = no_nodes
    hook: Hook = no_hook
    functions: Functions = NUMPY

    @property
    def xp(self) -> Any:
        """The array module of the library: numpy, jax.numpy."""
        return self.functions.xp

    def option(self, name: str, default: Any = None) -> Any:
        return self.node.options.get(name, default)

    @property
    def config(self) -> Config:
        config: Config = self.option("config", self.core.config)
        return config

    def has(self, name: str) -> bool:
        """Whether a parameter exists, and no slip leaves it out."""
        return name in self.core.params.get(self.node.layer, {}) and name not in self.option("missing", ())

    def stored(self, name: str) -> Array:
        """A parameter of the layer as it is stored."""
        array: Array = self.xp.asarray(self.core.params[self.node.layer][name])
        return array

    def parameter(self, name: str) -> Array | None:
        """A parameter of the layer in the precision of the computation, or None."""
        return self.convert(self.stored(name)) if self.has(name) else None

    def convert(self, array: Array) -> Array:
        """A parameter in the precision of the computation, rounded if a slip says so."""
        narrow = self.precision if self.precision in NARROW else ""
        if form := self.option("rounds_parameters") or self.option("rounds_inputs") or narrow:
            array = rounded(array, form)
        return array.astype(working_dtype(self.precision), copy=False) if self.precision else array

    def linear(self, x: Array, weight: str, bias: str) -> Array:
        """x W + b, with W as it is stored or as a slip takes it."""
        stored = self.stored(weight) if self.has(weight) else None
        y = x
        if stored is not None and stored.ndim == 1:
            y = x * self.convert(stored)
        elif stored is not None:
            y = self.functions.multiply(x, stored.T if self.option("transposed") else stored, self.convert)
        shift = self.parameter(bias)
        return y if shift is None else y + shift

    def linear_backward(self, dy: Array, x: Array, weight: str, bias: str) -> Array:
        """The gradient of x from that of x W + b; those of W and b are added."""
        matrix, is_turned = self.parameter(weight), self.option("transposed", False)
        matrix = matrix.T if matrix is not None and is_turned else matrix
        dx, dw, db = linear_backward(dy, x, matrix, self.parameter(bias))
        self.add(self.node.layer, {weight: dw.T if dw is not None and is_turned else dw, bias: db})
        return dx


def as_wide(array: Array, precision: str) -> Array:
    """An array as it is computed with: float64, or float32 for 32 bits and less."""
    return array if array.dtype.kind in "iub" or not precision else array.astype(working_dtype(precision), copy=False)


def working_dtype(precision: str) -> Any:
    return np.float64 if precision == "float64" else np.float32


Built = Iterator[Node]


class Place(NamedTuple):
    """Where a step stands: its input, and the sizes of the states."""

    core: Model
    inputs: Inputs
    step: Step
    x: str
    memory: str
    batch: int
    tokens: int

    def states(self, width: int) -> tuple[int, int, int]:
        return self.batch, self.tokens, width

    def width(self) -> int:
        return self.core.config.result_width(self.step.layer)

    def positions(self) -> Array | range:
        """The positions of the tokens: a range, or (B, T) of a padded batch."""
        real = self.real()
        return range(self.tokens) if real is None or self.core.config.text_length else token_positions(real)

    def real(self) -> Array | None:
        """The tokens that are no padding, (B, T); None: all."""
        _, mask = self.inputs.of(self.step.layer.partition(".")[0], self.core.config)
        return None if mask is None or mask.all() else mask


def stack_sizes(core: Model, inputs: Inputs, stack: str) -> tuple[int, int]:
    """Count the texts and tokens of a stack, images and patches, or sounds and states."""
    ids, _ = inputs.of(stack, core.config)
    if (sound := core.config.sound) and stack == "encoder":
        batch, frames, *_ = inputs.heard_shape(sound)
        return batch, sound.frames_after("", frames)
    if ids is not None:
        return ids.shape[0], ids.shape[1]
    cut, image = core.config.patches, np.asarray(inputs.image)
    assert cut is not None
    return len(image), cut.tokens(*image.shape[-2:])
