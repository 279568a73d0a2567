"""Linear attention, a state in place of a cache: its update rules and adjoints.

A head keeps a matrix S (K, V). Each token scales it by factors α, writes k wᵀ into it, and reads Sᵀq: the read sees its
own token. What is written, w, is v, or β v, or what the delta rule corrects, β (v − Sᵀk), after S was scaled.

The recurrent form takes the tokens one by one. The chunked form takes C tokens at once: what they read of each other is
a matrix (C, C) as in attention, and what they read of the state before is a product.
"""

import math
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, quiet
from attnkit.model.formulas.activations import ACTIVATIONS, activation_backward

EPS = 1e-6  # of queries and keys of length 1
SEGMENT = 64  # tokens between two states that the adjoint keeps
MOST = 1 << 22  # numbers of the products inside chunks that are prepared together


class UpdateRule(NamedTuple):
    """How a state changes at each token.

    decay     where the factors α come from: none; given, for each token; fixed, of each head; step: e^(−Δ e^A)
    strength  where β comes from: none; sigmoid of x W_β; step: it is Δ
    corrects  whether only the difference between v and what the state holds at k is written (the delta rule)
    formula   of the new state
    """

    decay: str
    strength: str
    corrects: bool
    formula: str


RULES = {
    "linear": UpdateRule("none", "none", False, "S + k vᵀ"),
    "decay": UpdateRule("given", "none", False, "α S + k vᵀ"),
    "retnet": UpdateRule("fixed", "none", False, "γ S + k vᵀ"),
    "mamba2": UpdateRule("step", "step", False, "α S + Δ k vᵀ"),
    "delta": UpdateRule("none", "sigmoid", True, "S + β k (v − Sᵀk)ᵀ"),
    "gated-delta": UpdateRule("given", "sigmoid", True, "α S + β k (v − α Sᵀk)ᵀ"),
}


class RecallOptions(NamedTuple):
    """How a state is written and read.

    rule       a row of RULES
    feature    of queries and keys, a row of FEATURES
    divide     whether what is read is divided by q · Σ k, each k decayed as what is written with it
    scale      of the queries
    heads      of values; key_heads: of queries and keys, each for as many heads of values [heads]
    chunk      tokens that are computed at once; None: one by one
    """

    rule: str = "linear"
    feature: str = "identity"
    divide: bool = False
    scale: float = 1.0
    heads: int = 1
    key_heads: int | None = None
    chunk: int | None = None


class RecallConfig(NamedTuple):
    """The layers of a model that keep a state, with what is before and after it.

    rule, feature, scale   as in RecallOptions, and so heads and key_heads
    key, value    features of a head of queries and keys, and of values
    taps          tokens that a convolution of queries, keys and values reads, its own included; 0: there is none
    activation    after that
    factors       factors on parts of the projection, by their letters: q, k, v, g and dt
    step_limits   the least and the largest step Δ
    has_skip      whether D of each head times its value is added to what is read
    norm_groups   parts of what is read, side by side, of which the RMS norm is taken; 0: there is no norm
    shares_norm   whether all parts have the same weights
    gate          the activation of a gate by which what is read is multiplied; "": there is none
    gates_first   whether the norm follows the gate
    chunk         tokens of a text that are computed at once
    """

    rule: str
    heads: int
    key_heads: int
    key: int
    value: int
    feature: str = "identity"
    scale: float = 1.0
    taps: int = 0
    activation: str = "silu"
    factors: tuple[tuple[str, float], ...] = ()
    step_limits: tuple[float, float] = (0.0, math.inf)
    has_skip: bool = False
    norm_groups: int = 0
    shares_norm: bool = False
    gate: str = "silu"
    gates_first: bool = False
    chunk: int = 64

    def options(self, tokens: int) -> RecallOptions:
        """How the state is read by some tokens."""
        chunk = self.chunk if tokens > 1 else None
        return RecallOptions(self.rule, self.feature, False, self.scale, self.heads, self.key_heads, chunk)

    @property
    def widths(self) -> dict[str, int]:
        """Features of all heads of queries, keys and values, by their letters.

        >>> RecallConfig("gated-delta", 4, 2, 6, 5).widths
        {'q': 12, 'k': 12, 'v': 20}
        """
        keys = self.key_heads * self.key
        return {"q": keys, "k": keys, "v": self.heads * self.value}

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the axes of parameters."""
        values = self.widths["v"]
        return {
            "heads": values,
            "key heads": self.widths["q"],
            "head": self.heads,
            "place": self.taps,
            "part": values // self.norm_groups if self.norm_groups and self.shares_norm else values,
        }

    @property
    def states(self) -> dict[str, dict[str, int]]:
        """What a layer keeps of earlier tokens: the sizes of the axes of each part.

        >>> RecallConfig("gated-delta", 4, 2, 6, 5).states
        {'state': {'head': 4, 'key_dim': 6, 'value_dim': 5}}
        """
        windows = {f"{name}_window": {"place": self.taps - 1, "model": size} for name, size in self.widths.items()}
        state = {"head": self.heads, "key_dim": self.key, "value_dim": self.value}
        return (windows if self.taps > 1 else {}) | {"state": state}


class Memory(NamedTuple):
    """What a state reads and writes, by head.

    q, k  (B, H, T, K); v (B, H, T, V)
    decay    α (B, H, T, 1), or (B, H, T, K) for each row of the state; None: 1
    beta     (B, H, T); None: 1
    corrects  whether the delta rule applies
    """

    q: Array
    k: Array
    v: Array
    decay: Array | None = None
    beta: Array | None = None
    corrects: bool = False

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape (B, H, K, V) of the states after one token."""
        return (*self.v.shape[:-2], self.k.shape[-1], self.v.shape[-1])

    def cut(self, tokens: slice) -> "Memory":
        """Some of the tokens."""
        return self._replace(
            q=self.q[..., tokens, :],
            k=self.k[..., tokens, :],
            v=self.v[..., tokens, :],
            decay=None if self.decay is None else self.decay[..., tokens, :],
            beta=None if self.beta is None else self.beta[..., tokens],
        )


def check_memory_shapes(memory: Memory, state: Array | None = None) -> None:
    """Raise DataError unless queries, keys, values, gates and state fit each other."""
    q, k, v, decay, beta, _ = memory
    if q.shape != k.shape or k.shape[:-1] != v.shape[:-1]:
        raise DataError(f"q {as_text(q.shape)}, k {as_text(k.shape)} and v {as_text(v.shape)} do not fit")
    if decay is not None and (decay.shape[:-1] != k.shape[:-1] or decay.shape[-1] not in (1, k.shape[-1])):
        rows, each = as_text((*k.shape[:-1], 1)), as_text(k.shape)
        raise DataError.about("decay", f"{as_text(decay.shape)}: expected {rows} or {each}")
    if beta is not None and beta.shape != k.shape[:-1]:
        raise DataError.about("beta", f"{as_text(beta.shape)}: expected {as_text(k.shape[:-1])}")
    if state is not None and state.shape != memory.state_shape:
        raise DataError.about("state", f"{as_text(state.shape)}: expected {as_text(memory.state_shape)}")


@quiet
def linear_attention(memory: Memory, state: Array | None = None, keep: Collection[str] = ()) -> dict[str, Array]:
    """Read a state after each token, token by token.

    q, k (B, H, T, K), v (B, H, T, V), state (B, H, K, V) -> output (B, H, T, V), state (B, H, K, V)

    keep  steps to return too: held, Sᵀk before the token is written (B, H, T, V); error, v − held; written, w; states,
          S after each token (B, H, T, K, V)

    DataError if the shapes do not fit.

    Source: Katharopoulos et al. 2020; Schlag, Irie and Schmidhuber 2021 (the delta rule); Yang, Kautz and
    Hatamizadeh 2024 (with a gate); Dao and Gu 2024 (Mamba-2).

    >>> one = np.ones((1, 1, 2, 1))
    >>> linear_attention(Memory(one, one, np.array([[[[3.0], [5.0]]]])))["output"].ravel().tolist()
    [3.0, 8.0]
    >>> linear_attention(Memory(one, one, np.array([[[[3.0], [5.0]]]]), corrects=True))["output"].ravel().tolist()
    [3.0, 5.0]
    """
    check_memory_shapes(memory, state)
    names = [name for name in ("held", "error", "written", "states") if name in keep]
    tokens = memory.v.shape[-2]
    result = {"output": np.empty_like(memory.v)} | {name: np.empty_like(memory.v) for name in names}
    if "states" in names:
        result["states"] = np.empty((*memory.v.shape[:-1], *memory.state_shape[-2:]), memory.v.dtype)
    now = first_state(memory, state)
    for t in range(tokens):
        k, v = memory.k[..., t, :], memory.v[..., t, :]
        now = _decayed(now, memory, t)
        found = {"held": read_state(k, now)} if memory.corrects or {"held", "error"} & {*names} else {}
        if found:
            found["error"] = v - found["held"]
        found["written"] = _scaled(found["error"] if memory.corrects else v, memory, t)
        now = found["states"] = now + outer_product(k[..., :, None], found["written"][..., None, :])
        result["output"][..., t, :] = read_state(memory.q[..., t, :], now)
        for name in names:
            result[name][:, :, t] = found[name]
    return result | {"state": now}


def read_memory(
    memory: Memory, chunk: int | None = None, state: Array | None = None, keep: Collection[str] = ()
) -> dict[str, Array]:
    """Read a state after each token, some tokens at once or one by one.

    chunk  tokens that are computed at once, without the steps to keep; None: one by one
    """
    return linear_attention(memory, state, keep) if chunk is None else chunked_linear_attention(memory, chunk, state)


def first_state(memory: Memory, state: Array | None) -> Array:
    """The state before the first token: zeros (B, H, K, V) unless one is given."""
    return np.zeros(memory.state_shape, memory.v.dtype) if state is None else state.astype(memory.v.dtype, copy=False)


def outer_product(column: Array, row: Array) -> Array:
    """k wᵀ: column (..., K, 1), row (..., 1, V) -> (..., K, V).

    It is `column @ row`, several times as fast.

    >>> outer_product(np.array([[1.0], [2.0]]), np.array([[3.0, 4.0]])).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    return column * row


def read_state(at: Array, state: Array) -> Array:
    """Sᵀk or Sᵀq: at (B, H, K), state (B, H, K, V) -> (B, H, V)."""
    found: Array = (at[..., None, :] @ state)[..., 0, :]
    return found


def _decayed(state: Array, memory: Memory, t: int) -> Array:
    return state if memory.decay is None else state * memory.decay[..., t, :, None]


def _scaled(x: Array, memory: Memory, t: int) -> Array:
    return x if memory.beta is None else x * memory.beta[..., t, None]


@quiet
def linear_attention_backward(
    grad_output: Array, memory: Memory, state: Array | None = None, grad_state: Array | None = None
) -> tuple[Memory, Array]:
    """Gradients of what `linear_attention` reads, and of its first state.

    grad_output (B, H, T, V); grad_state (B, H, K, V), of the last state [0]

    The tokens are undone from the last to the first. Every 64th state is kept, and those between are computed again.

    >>> one = np.ones((1, 1, 2, 1))
    >>> found, _ = linear_attention_backward(np.array([[[[1.0], [1.0]]]]), Memory(one, one, one))
    >>> found.q.ravel().tolist(), found.v.ravel().tolist()
    ([1.0, 2.0], [2.0, 1.0])
    """
    check_memory_shapes(memory, state)
    tokens, starts, now = memory.v.shape[-2], list[Array](), first_state(memory, state)
    segments = [slice(at, min(at + SEGMENT, tokens)) for at in range(0, tokens, SEGMENT)]
    for segment in segments:
        starts.append(now)
        now = linear_attention(memory.cut(segment), now)["state"]
    found = memory._replace(**{name: np.empty_like(one) for name, one in memory._asdict().items() if is_array(one)})
    later = np.zeros_like(now) if grad_state is None else grad_state
    for segment, start in zip(reversed(segments), reversed(starts), strict=True):
        later = _undo_segment(grad_output[..., segment, :], memory.cut(segment), start, later, found.cut(segment))
    return found, later


def is_array(one: object) -> bool:
    return isinstance(one, np.ndarray)


def _undo_segment(dy: Array, memory: Memory, start: Array, dstate: Array, found: Memory) -> Array:
    """The gradient of the state before some tokens, whose own are written to `found`.

    start  the state before them; dstate: the gradient of the state after them
    """
    kept = linear_attention(memory, start, ("error", "written", "states"))
    for t in reversed(range(dy.shape[-2])):
        q, k, v = (one[..., t, :] for one in memory[:3])
        before = start if t == 0 else kept["states"][:, :, t - 1]
        dstate = dstate + q[..., :, None] * dy[..., t, None, :]
        found.q[..., t, :] = _times(kept["states"][:, :, t], dy[..., t, :])
        found.k[..., t, :] = _times(dstate, kept["written"][:, :, t])
        dwritten = read_state(k, dstate)
        dvalue = found.v[..., t, :] = _scaled(dwritten, memory, t)
        if found.beta is not None:
            source = kept["error"][:, :, t] if memory.corrects else v
            found.beta[..., t] = (dwritten * source).sum(axis=-1)
        if memory.corrects:
            found.k[..., t, :] -= _times(_decayed(before, memory, t), dvalue)
            dstate = dstate - k[..., :, None] * dvalue[..., None, :]
        if found.decay is not None:
            of_rows = (dstate * before).sum(axis=-1)
            is_shared = found.decay.shape[-1] == 1
            found.decay[..., t, :] = of_rows.sum(axis=-1, keepdims=True) if is_shared else of_rows
        dstate = _decayed(dstate, memory, t)
    return dstate


def _times(state: Array, x: Array) -> Array:
    """S x: state (B, H, K, V), x (B, H, V) -> (B, H, K)."""
    found: Array = (state @ x[..., None])[..., 0]
    return found


@quiet
def chunked_linear_attention(memory: Memory, size: int, state: Array | None = None) -> dict[str, Array]:
    """Read a state after each token, computing some tokens at once.

    q, k (B, H, T, K), v (B, H, T, V), state (B, H, K, V) -> output (B, H, T, V), state (B, H, K, V)

    The result is that of `linear_attention`, but for rounding. Only the states between chunks are computed. DataError
    if the shapes do not fit.

    Source: Dao and Gu 2024 (the dual form of a state space); Yang, Wang, Zhang, Shen and Kim 2024 (the delta rule as
    triangular systems).

    >>> one = np.ones((1, 1, 3, 1))
    >>> chunked_linear_attention(Memory(one, one, np.array([[[[3.0], [5.0], [2.0]]]])), 2)["output"].ravel().tolist()
    [3.0, 8.0, 10.0]
    """
    check_memory_shapes(memory, state)
    now, output = first_state(memory, state), np.empty_like(memory.v)
    for tokens, each in split_blocks(memory, size):
        chunks = prepare_chunks(memory.cut(tokens), each)
        for number, start in enumerate(range(tokens.start, tokens.stop, each)):
            output[..., start : start + each, :], now = read_chunk(chunks.take(number), now)
    return {"output": output, "state": now}


def split_blocks(memory: Memory, size: int) -> Iterator[tuple[slice, int]]:
    """Yield tokens whose chunks are prepared together, and the size of each chunk.

    The last chunk may be shorter.
    """
    tokens, rows = memory.v.shape[-2], memory.v.size // max(memory.v.shape[-1] * memory.v.shape[-2], 1)
    each = rows * size * size * (1 if memory.decay is None else memory.decay.shape[-1])
    step = size * max(1, MOST // max(each, 1))
    whole = tokens - tokens % size
    for at in range(0, whole, step):
        yield slice(at, min(at + step, whole)), size
    if whole < tokens:
        yield slice(whole, tokens), tokens - whole


class Chunks(NamedTuple):
    """What chunks of tokens read and write, whatever the state before them.

    inside   what each token reads of each, (B, H, N, C, C)
    queries  with the decay since the start of the chunk, (B, H, N, C, K); keys: with that up to its end
    written  (B, H, N, C, V), and held: what the state before takes away from it at a product with (B, H, N, C, K)
    left     the factor of the state before that is left at the end, (B, H, N, A); None: 1
    """

    inside: Array
    queries: Array
    keys: Array
    written: Array
    held: Array | None = None
    left: Array | None = None

    def take(self, number: int) -> "Chunks":
        """One of the chunks, without their axis."""
        return Chunks(*(None if one is None else one[:, :, number] for one in self))  # type: ignore[arg-type]


def prepare_chunks(memory: Memory, size: int) -> Chunks:
    """What the states between chunks do not change, for all chunks at once."""
    q, k, v, decay, beta = (
        None if one is None else one.reshape(*one.shape[:2], one.shape[2] // size, size, *one.shape[3:])
        for one in memory[:5]
    )
    assert q is not None and k is not None and v is not None
    ratios = None if decay is None else decay_ratios(decay)
    since = None if decay is None else np.cumprod(decay, axis=-2)
    inside = np.tril(_products(q, k, ratios))
    queries, keys = _weigh(q, since), _weigh(k, None if ratios is None else ratios[..., -1, :, :])
    left = None if since is None else since[..., -1, :]
    written, factors = v, None if beta is None else beta[..., None]
    if not memory.corrects:
        return Chunks(inside, queries, keys, _weigh(written, factors), left=left)
    below = _weigh(np.tril(_products(k, k, ratios), -1), factors)
    right = np.concatenate([_weigh(v, factors), _weigh(_weigh(k, since), factors)], axis=-1)
    written, held = np.split(solve_unit_lower(below, right), [v.shape[-1]], axis=-1)
    return Chunks(inside, queries, keys, written, held, left)


def read_chunk(chunk: Chunks, state: Array) -> tuple[Array, Array]:
    """What the tokens of a chunk read, and the state after them.

    state (B, H, K, V) -> (B, H, C, V), (B, H, K, V)
    """
    written = chunk.written if chunk.held is None else chunk.written - chunk.held @ state
    output = chunk.queries @ state + chunk.inside @ written
    after = state if chunk.left is None else state * chunk.left[..., None]
    return output, after + np.swapaxes(chunk.keys, -1, -2) @ written


def decay_ratios(decay: Array) -> Array:
    """The share that is left at token i of the writing of token j.

    decay (…, C, A) -> (…, C, C, A)

    It is the product of the factors after j up to i, 1 for i = j, and 0 for a later j. Products need no logarithm, so
    that a factor may be 0.

    >>> decay_ratios(np.array([[0.5], [0.5], [0.8]]))[..., 0].tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.4, 0.8, 1.0]]
    """
    size = decay.shape[-2]
    is_later = np.tri(size, k=-1, dtype=bool)[..., None]  # i > j
    ratios = np.cumprod(np.where(is_later, decay[..., :, None, :], 1), axis=-3)
    return np.where(np.tri(size, dtype=bool)[..., None], ratios, 0)


def _weigh(x: Array, factors: Array | None) -> Array:
    return x if factors is None else x * factors


def _products(x: Array, y: Array, ratios: Array | None) -> Array:
    """Products of rows, each feature times its ratio: x, y (…, C, K) -> (…, C, C)."""
    if ratios is None or ratios.shape[-1] == 1:
        products: Array = x @ np.swapaxes(y, -1, -2)
        return products if ratios is None else products * ratios[..., 0]
    one_by_one: Array = ((x[..., :, None, :] * ratios)[..., None, :] @ y[..., None, :, :, None])[..., 0, 0]
    return one_by_one


def solve_unit_lower(below: Array, right: Array) -> Array:
    """Solve (I + L) x = right, with L strictly lower triangular, row by row.

    below (…, C, C), right (…, C, V) -> (…, C, V)

    >>> solve_unit_lower(np.array([[0.0, 0.0], [0.5, 0.0]]), np.array([[2.0], [4.0]])).tolist()
    [[2.0], [3.0]]
    """
    found = right.copy()
    for row in range(1, found.shape[-2]):
        found[..., row, :] -= (below[..., row, None, :row] @ found[..., :row, :])[..., 0, :]
    return found


def retnet_decay(heads: int) -> Array:
    """The fixed factor γ of each head, 1 − 2^(−5 − h): -> (H).

    Source: Sun et al. 2023, equation 8.

    >>> retnet_decay(2).tolist()
    [0.96875, 0.984375]
    """
    factors: Array = 1 - 2.0 ** (-5 - np.arange(heads))
    return factors


@quiet
def softplus(x: Array) -> Array:
    """log(1 + e^x), the step Δ of a state space: (...) -> (...).

    >>> softplus(np.array([-1000.0, 0.0, 1000.0])).round(4).tolist()
    [0.0, 0.6931, 1000.0]
    """
    step: Array = np.logaddexp(x, 0)
    return step


@quiet
def decay_of_step(step: Array, log_rate: Array | None = None) -> Array:
    """The factor e^(−Δ e^A) of a step Δ.

    step (..., H), log_rate A (H) [0] -> (..., H)

    Source: Gu and Dao 2023, where A is stored as its logarithm; Yang, Kautz and Hatamizadeh 2024.

    >>> decay_of_step(np.array([np.log(2.0)])).tolist()
    [0.5]
    """
    return np.exp(-step if log_rate is None else -step * np.exp(log_rate))


@quiet
def elu_plus_one(x: Array) -> Array:
    """elu(x) + 1, which is positive: x + 1 above 0, else e^x.

    Source: Katharopoulos et al. 2020.

    >>> elu_plus_one(np.array([-1.0, 0.0, 2.0])).round(4).tolist()
    [0.3679, 1.0, 3.0]
    """
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def unit(x: Array) -> Array:
    """Vectors of length 1: x / √(Σ x² + 1e-6), as gated delta networks have it.

    x (..., K) -> (..., K)

    >>> unit(np.array([3e-4, 4e-4])).round(4).tolist()
    [0.2683, 0.3578]
    """
    length: Array = ((x * x).sum(axis=-1, keepdims=True) + EPS) ** 0.5  # NumPy and JAX compute it by the same text
    return x / length


def unit_backward(grad_output: Array, x: Array) -> Array:
    """The gradient of vectors before `unit`: (..., K), (..., K) -> (..., K)."""
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True) + EPS)
    along = (grad_output * x).sum(axis=-1, keepdims=True)
    gradient: Array = (grad_output - x * along / length**2) / length
    return gradient


class Feature(NamedTuple):
    """A function of queries and keys, and its adjoint: (gradient, x) -> gradient of x."""

    value: Callable[[Array], Array]
    backward: Callable[[Array, Array], Array]
    flops: int = 1


def _activation(name: str) -> Feature:
    return Feature(ACTIVATIONS[name].function, lambda dy, x: activation_backward(name, dy, x))


FEATURES = {
    "identity": Feature(lambda x: x, lambda dy, x: dy, 0),
    "elu": Feature(elu_plus_one, lambda dy, x: dy * np.where(x > 0, 1, elu_plus_one(x))),
    "relu": _activation("relu"),
    "silu": _activation("silu"),
    "unit": Feature(unit, unit_backward, 3),
}
