"""A model, and the context of one forward pass: its inputs and its reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from attnkit.model.config import Config, Step
from attnkit.model.dtypes import Array
from attnkit.model.formulas.recurrent_cells import State
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.kv_cache import KVCache
from attnkit.model.processor.products import FIXED, PLAIN, Products

Params = Mapping[str, Mapping[str, Array]]


class Engine(Protocol):
    """An engine that computes in place of NumPy, with the same results and errors."""

    @property
    def name(self) -> str:
        """Its name, a value of --engine."""

    @property
    def is_first(self) -> bool:
        """Whether this process, of those that compute together, writes the result."""

    def highest(self, number: int) -> int:
        """The highest of the numbers of all processes."""

    def run(self, model: "Model", steps: Sequence[Step], x: Array, context: "Context") -> Array:
        """`transformer.run`."""

    def run_packed(
        self,
        model: "Model",
        steps: Sequence[Step],
        ids: Sequence[Array],
        segments: Sequence[Array] | None,
        dtype: str | None,
    ) -> list[Array] | None:
        """`transformer.run_packed`, up to rounding."""

    def head_logits(self, model: "Model", x: Array, hook: Hook, mask: Array | None) -> Array:
        """`output_head.head_logits`."""

    def pool_first(self, model: "Model", x: Array, hook: Hook) -> Array:
        """`output_head.pool_first`."""

    def decoder(self, model: "Model", cache: KVCache | None, **context: Any) -> Any:
        """A NextTokenModel with a cache, like `CachedDecoder`."""

    def differentiates(self, steps: Sequence[Step]) -> bool:
        """Whether the gradients of steps are its own; if not, NumPy computes them."""

    def run_recorded(
        self, model: "Model", steps: Sequence[Step], x: Array, context: "Context"
    ) -> tuple[Array, Callable[[Array, Any], Array]]:
        """`recorded_pass.run_recorded`, and the function that undoes all steps."""

    def head_backward(self, model: "Model", x: Array, grad_output: Array, reverse: Any, mask: Array | None) -> Array:
        """`model_gradients.head_backward`."""

    def pool_first_backward(self, model: "Model", x: Array, grad_output: Array, reverse: Any) -> Array:
        """`model_gradients.pool_first_backward`."""

    def train_state(self, model: "Model", **options: Any) -> Any:
        """A model in training, whose parameters stay on the engine."""

    def attention(
        self, q: Array, k: Array, v: Array, params: Mapping[str, Array], options: Any, **request: Any
    ) -> dict[str, Array]:
        """`attention.multi_head_attention`."""


class Model(NamedTuple):
    """A configuration, the parameters of its layers by name, and an engine [NumPy]."""

    config: Config
    params: Params
    engine: Engine | None = None

    @property
    def keeps_layers(self) -> bool:
        """Whether parameters stay in memory, so that what is made of them may too."""
        return getattr(self.params, "keeps_layers", True)

    def part(self, layer: str, name: str) -> Any:
        """A parameter to read in parts: an array, or its source; None without it."""
        if self.keeps_layers:
            return self.params[layer].get(name)
        return cast(Any, self.params).part(layer, name)


class Pictures(NamedTuple):
    """Rows that stand in place of the embeddings of some tokens of a text.

    places  (N,) of these tokens in the text, in their order; rows: (N, D)
    groups  (N,) the picture that each belongs to, where its tokens attend to each other in both directions
    """

    places: Array
    rows: Array
    groups: Array | None = None

    def within(self, past: int, tokens: int) -> Array:
        """Which of them are among some tokens after others: (N,) booleans."""
        among: Array = (self.places >= past) & (self.places < past + tokens)
        return among


@dataclass
class Context:
    """The inputs of a forward pass besides x, its hooks and its callbacks.

    mask           (T, T), (B, 1, T) or (B, T, T), True = may attend; causality is the model's own
    memory         (..., S, D) the encoder's hidden states, for cross-attention, and memory_mask, (B, 1, S)
    positions      (T,) or (B, T) [those after the tokens of the cache]
    segment_ids    (..., T) the segment of each token
    grid           rows and columns of the patches of an image
    pictures       what stands in place of the embeddings of some tokens of the text, which a batch has alike
    cache          keys and values of earlier tokens, or the states after them
    source_states  of a recurrent model, the last state of each layer of the encoder
    hook           may read and replace any intermediate
    weights        summary of the attention weights for hooks of "weights.…": see `summary` of `attention`
    on_step        called with each step before it runs
    on_non_finite  called with the first layer whose result is not finite
    products       how layers multiply whose config.fixes_shapes
    dtype          the dtype that embeddings are cast to, and that later steps therefore compute in
    """

    mask: Array | None = None
    memory: Array | None = None
    memory_mask: Array | None = None
    positions: Array | None = None
    segment_ids: Array | None = None
    grid: tuple[int, int] | None = None
    pictures: Pictures | None = None
    cache: KVCache | None = None
    source_states: Sequence[State] | None = None
    hook: Hook = no_hook
    weights: str = "full"
    on_step: Callable[[Step], None] = lambda step: None
    on_non_finite: Callable[[str], None] = lambda layer: None
    products: Products = FIXED
    dtype: str | None = None
    past: int = field(init=False)  # tokens of the cache before this pass adds its own
    shared: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)  # same in all layers of a stack
    final_states: dict[str, State] = field(default_factory=dict, init=False)  # after the last token, by layer

    def __post_init__(self) -> None:
        self.past = 0 if self.cache is None else self.cache.length

    def last_states(self) -> tuple[State, ...] | None:
        """Last state of each recurrent layer of a run, in order; None without any."""
        return tuple(self.final_states.values()) or None


def layer_products(model: Model, layer: str, context: Context) -> Products:
    """How a layer multiplies; with fixed shapes other texts change no bits."""
    return context.products if model.config.fixes_shapes(layer) else PLAIN
