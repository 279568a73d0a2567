"""Positions: rotary, sinusoidal."""

from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.model.exercises.worked_steps import Steps
from attnkit.model.slips import SHIFTED_POSITIONS, Number, Slip

THETA = 10_000.0
LARGE_THETA = 500_000.0
MOST_TOKENS = 128  # that a class with a table of positions is constructed for


def rotate_pairs(x: Any, angles: Any) -> Any:
    """Rotate columns 2i and 2i + 1 by the angle i: (..., T, K), (T, K/2)."""
    rotated = np.empty_like(x)
    rotated[..., 0::2] = x[..., 0::2] * np.cos(angles) - x[..., 1::2] * np.sin(angles)
    rotated[..., 1::2] = x[..., 0::2] * np.sin(angles) + x[..., 1::2] * np.cos(angles)
    return rotated


def rotate_halves(x: Any, angles: Any) -> Any:
    """Rotate columns i and i + K/2 by the angle i: (..., T, K), (T, K/2)."""
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def frequencies(width: int, theta: float) -> Any:
    """theta^(−2i / K) for each pair of columns."""
    return theta ** (-np.arange(0, width, 2) / width)


def count_positions(given: Any, generator: Any) -> Any:
    return np.arange(given["x"].shape[-2])


def scatter_positions(given: Any, generator: Any) -> Any:
    """Positions with gaps, not in order, below 100."""
    tokens = given["ids"].shape[-1] if "ids" in given else given["x"].shape[-2]
    return generator.permutation(100)[:tokens]


def positions_of(x: Any, positions: Any) -> Any:
    return np.arange(x.shape[-2]) if positions is None else positions


ROPE_STEPS: Steps = {
    "places": positions_of,
    "frequencies": lambda x, theta: frequencies(x.shape[-1], theta),
    "angles": lambda places, frequencies: places[..., :, None] * frequencies,
    "rotated": rotate_pairs,
}

ROPE = Definition(
    "rotary positions: each pair of columns turned by position · theta^(−2i / K)",
    {
        "x": Argument("... T K", "x q query in_query_or_key queries input t xq"),
        "positions": Argument("T", "positions token_positions position_ids pos_ids pos input_pos", draw="ids T"),
        "theta": Argument("", "theta base rope_theta rope_base", role="number"),
    },
    ROPE_STEPS,
    {"T": 5, "K": 6, "M": 128},
    (
        Case("positions from 0", lead=(2,), given={"positions": count_positions}),
        Case("any positions", lead=(2,), given={"positions": scatter_positions}, needs=("positions",)),
        Case("leading axes", lead=(2, 3), given={"positions": count_positions}),
        Case("no leading axis", lead=(), given={"positions": count_positions}),
        Case("another theta", given={"positions": count_positions, "theta": LARGE_THETA}, needs=("theta",)),
    ),
    "... T K",
    (
        Slip("the positions are ignored: they are always 0, 1, 2, …", {"places": lambda x: np.arange(x.shape[-2])}),
        Slip(SHIFTED_POSITIONS, {"places": lambda x, positions: positions_of(x, positions) + 1}),
        Slip(
            "the angles are reversed (they turn the other way)", {"rotated": lambda x, angles: rotate_pairs(x, -angles)}
        ),
        Slip(
            "the angles are reversed (they turn the other way), in halves",
            {"rotated": lambda x, angles: rotate_halves(x, -angles)},
        ),
        Slip("sine and cosine are exchanged", {"rotated": lambda x, angles: rotate_pairs(x, np.pi / 2 - angles)}),
        Slip(
            "the pairs are those of halves, the angles those of even and odd columns",
            {"rotated": lambda x, angles: _mixed_halves(x, angles)},
            "choose one layout for both",
        ),
        Slip(
            "the pairs are those of even and odd columns, the angles those of halves",
            {"rotated": lambda x, angles: _mixed_pairs(x, angles)},
            "choose one layout for both",
        ),
        Slip(
            "the exponent is i/K, not 2i/K",
            {"frequencies": lambda x, theta: theta ** (-np.arange(x.shape[-1] // 2) / x.shape[-1])},
        ),
        Slip(
            "the exponent is 2i/(K/2), not 2i/K",
            {"frequencies": lambda x, theta: theta ** (-np.arange(0, x.shape[-1], 2) / (x.shape[-1] // 2))},
        ),
        Slip("the frequencies are not inverted", {"frequencies": lambda x, theta: 1 / frequencies(x.shape[-1], theta)}),
        Slip(
            "the axis of the positions is that of the leading axis, not the tokens",
            {"rotated": lambda x, frequencies: _over_lead(x, frequencies)},
        ),
        Slip("nothing is rotated", {"rotated": lambda x: x}),
        Slip("theta is ignored: it is always 10000", {"frequencies": lambda x: frequencies(x.shape[-1], THETA)}),
        *(
            Number(
                "theta is {}",
                {"frequencies": lambda value: lambda x: frequencies(x.shape[-1], value)},
                THETA,
                (10, 1e8),
            ).slip(one)
            for one in (1e3, 1e5, 5e5, 1e6)
        ),
    ),
    {
        "pairs": {
            "even-odd": Way(),
            "halves": Way("pairs: column i with i + K/2 (halves)", steps={"rotated": rotate_halves}),
        }
    },
    "rope apply_rope apply_rotary_emb rotary rotary_embedding RoPE RotaryEmbedding RotaryPositionalEmbedding run_rope",
    {"theta": THETA, "M": MOST_TOKENS},
    {
        "K": "d_k dim head_dim d width rotary_dim",
        "theta": "theta base rope_theta",
        "M": "max_seq_len max_len max_position_embeddings context_length seq_len",
    },
)


def _mixed_halves(x: Any, angles: Any) -> Any:
    """rotate_half by halves, with cosines and sines repeated for pairs."""
    first, second = np.split(x, 2, axis=-1)
    repeated = np.repeat(angles, 2, axis=-1)
    return x * np.cos(repeated) + np.concatenate([-second, first], axis=-1) * np.sin(repeated)


def _mixed_pairs(x: Any, angles: Any) -> Any:
    """rotate_half by pairs, with cosines and sines joined for halves."""
    turned = np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
    joined = np.concatenate([angles, angles], axis=-1)
    return x * np.cos(joined) + turned * np.sin(joined)


def _over_lead(x: Any, frequencies: Any) -> Any:
    angles = np.arange(x.shape[0]).reshape(-1, *[1] * (x.ndim - 1)) * frequencies
    return rotate_pairs(x, np.broadcast_to(angles, (*x.shape[:-1], len(frequencies))))


def angles_by(exponent: Any) -> Any:
    """Make the formula of angles p / 10000^exponent, the exponent made from i and D."""
    return lambda T, D: np.arange(T)[:, None] / THETA ** exponent(np.arange(0, D, 2), D)


def leading_ones(axes: str) -> dict[str, Way]:
    """The shapes of a table for texts in a batch, whose leading axes have the size 1."""
    return {
        "none": Way(),
        "one": Way(f"shape (1, {axes})", steps={"shaped": lambda table: table[None]}),
        "two": Way(f"shape (1, 1, {axes})", steps={"shaped": lambda table: table[None, None]}),
    }


SINUSOIDAL = Definition(
    "sinusoidal positions: sin and cos of p / 10000^(2i / D)",
    {
        "T": Argument("", "t length seq_len max_len n_positions num_positions context_length size", role="number"),
        "D": Argument("", "d d_model dim width embedding_dim n_embd features", role="number"),
    },
    {
        "angles": angles_by(lambda i, d: i / d),
        "sines": lambda angles: np.sin(angles),
        "cosines": lambda angles: np.cos(angles),
        "table": lambda sines, cosines: np.stack([sines, cosines], axis=-1).reshape(len(sines), -1),
        "shaped": lambda table: table,
    },
    {},
    (
        Case("short", lead=(), given={"T": 5, "D": 8}),
        Case("long", lead=(), given={"T": 50, "D": 6}),
        Case("wide", lead=(), given={"T": 3, "D": 64}),
    ),
    "T D",
    (
        Slip(
            SHIFTED_POSITIONS, {"angles": lambda T, D: (np.arange(T)[:, None] + 1) / THETA ** (np.arange(0, D, 2) / D)}
        ),
        Slip(
            "sines and cosines are exchanged",
            {"sines": lambda angles: np.cos(angles), "cosines": lambda angles: np.sin(angles)},
        ),
        Slip(
            "the exponent is 2·2i/D: i is the number of the column, and is doubled again",
            {"angles": angles_by(lambda i, d: 2 * i / d)},
        ),
        Slip("the exponent is i/D", {"angles": angles_by(lambda i, d: i / 2 / d)}),
        Slip(
            "the exponent of the cosines is (2i+1)/D",
            {"cosines": lambda T, D: np.cos(np.arange(T)[:, None] / THETA ** (np.arange(1, D, 2) / D))},
        ),
        Slip(
            "the exponent of the cosines is 2(2i+1)/D, that of the sines 2·2i/D",
            {
                "sines": lambda T, D: np.sin(np.arange(T)[:, None] / THETA ** (2 * np.arange(0, D, 2) / D)),
                "cosines": lambda T, D: np.cos(np.arange(T)[:, None] / THETA ** (2 * np.arange(1, D, 2) / D)),
            },
        ),
        Slip(
            "the angle is multiplied by 10000^(2i/D)",
            {"angles": lambda T, D: np.arange(T)[:, None] * THETA ** (np.arange(0, D, 2) / D)},
        ),
        Slip("all columns are sines", {"cosines": lambda angles: np.sin(angles)}),
        *(
            Number(
                "the base is {}",
                {"angles": lambda value: lambda T, D: np.arange(T)[:, None] / value ** (np.arange(0, D, 2) / D)},
                THETA,
                (10, 1e6),
            ).slip(one)
            for one in (100.0, 1000.0, 100_000.0)
        ),
    ),
    {
        "columns": {
            "even-odd": Way(),
            "halves": Way(
                "columns: all sines before all cosines",
                steps={"table": lambda sines, cosines: np.concatenate([sines, cosines], axis=-1)},
            ),
        },
        "shape": leading_ones("T, D"),
    },
    "sinusoidal sinusoidal_positions positional_encoding get_positional_encoding PositionalEncoding posenc",
)

DEFINITIONS = {"rope": ROPE, "sinusoidal": SINUSOIDAL}
