"""Multi-head self-attention with its weights, with and without rotary positions."""

import math
from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.checking.definitions.attention import (
    FINITE,
    POLARITIES,
    WEIGHTS,
    over_axis,
    stable_softmax,
    with_mask,
    written_softmax,
)
from attnkit.checking.definitions.linear import WIDTH, layouts_of, with_bias
from attnkit.checking.definitions.positions import (
    MOST_TOKENS,
    THETA,
    count_positions,
    frequencies,
    positions_of,
    rotate_halves,
    rotate_pairs,
    scatter_positions,
)
from attnkit.model.exercises.worked_steps import Formula, Steps, transposed
from attnkit.model.formulas.head_views import merge_heads, split_heads
from attnkit.model.slips import (
    HEADS_LAST,
    MULTIPLIED_SCALE,
    NO_CAUSAL,
    NO_SCALE,
    OVER_QUERIES,
    SCALE_OF_WIDTH,
    SCALED_TWICE,
    SHIFTED_CAUSAL,
    STRICT_CAUSAL,
    Slip,
)


def split(x: Any, heads: Any) -> Any:
    return split_heads(x, int(heads))


def split_without_transposing(x: Any, heads: Any) -> Any:
    """(..., T, D) read as (..., H, T, K), whose rows are parts of other tokens."""
    return x.reshape(*x.shape[:-2], int(heads), x.shape[-2], x.shape[-1] // int(heads))


def split_last(x: Any, heads: Any) -> Any:
    """Column c belongs to the head c mod H."""
    columns = x.reshape(*x.shape[:-1], x.shape[-1] // int(heads), int(heads))
    return np.moveaxis(columns, -1, -3)


def causal(scores: Any, diagonal: int = 0) -> Any:
    return with_mask(scores, np.tri(scores.shape[-2], scores.shape[-1], k=diagonal, dtype=bool))


def all_three(formula: Formula) -> dict[str, Formula]:
    """The splits of queries, keys and values by another formula."""
    return {
        "q": lambda projected_q, heads: formula(projected_q, heads),
        "k": lambda projected_k, heads: formula(projected_k, heads),
        "v": lambda projected_v, heads: formula(projected_v, heads),
    }


def expand(mask: Any) -> Any:
    """(..., T, S) -> (..., 1, T, S)."""
    return None if mask is None else np.expand_dims(mask, -3)


STEPS: Steps = {
    "projected_q": lambda x, wq, bq: with_bias(x @ wq, bq),
    "projected_k": lambda x, wk, bk: with_bias(x @ wk, bk),
    "projected_v": lambda x, wv, bv: with_bias(x @ wv, bv),
    "q": lambda projected_q, heads: split(projected_q, heads),
    "k": lambda projected_k, heads: split(projected_k, heads),
    "v": lambda projected_v, heads: split(projected_v, heads),
    "scores": lambda q, k: q @ transposed(k),
    "scaled": lambda scores, q: scores / math.sqrt(q.shape[-1]),
    "masked": lambda scaled, mask: with_mask(scaled, expand(mask)),
    **WEIGHTS,
    "heads_out": lambda weights, v: weights @ v,
    "joined": lambda heads_out: merge_heads(heads_out),
    "output": lambda joined, wo, bo: with_bias(joined @ wo, bo),
}
CAUSAL = {
    "none": Way(),
    "causal": Way(
        "it is causal by itself",
        steps={"masked": lambda scaled, mask: causal(with_mask(scaled, expand(mask)))},
    ),
}
SLIPS: tuple[Slip[Formula], ...] = (
    Slip(NO_SCALE, {"scaled": lambda scores: scores}, "divide them by √K"),
    Slip(SCALED_TWICE, {"scaled": lambda scores, q: scores / q.shape[-1]}, "divide by √K, not by K"),
    Slip(MULTIPLIED_SCALE, {"scaled": lambda scores, q: scores * math.sqrt(q.shape[-1])}, "divide them by √K"),
    Slip(SCALE_OF_WIDTH, {"scaled": lambda scores, x: scores / math.sqrt(x.shape[-1])}, "K is the width of one head"),
    Slip(
        "the scores are divided by the root of the number of heads",
        {"scaled": lambda scores, heads: scores / math.sqrt(heads)},
    ),
    Slip(
        "the scores are divided by the root of the number of keys",
        {"scaled": lambda scores: scores / math.sqrt(scores.shape[-1])},
    ),
    Slip("heads are split by a reshape to (H, T, K), without transposing", all_three(split_without_transposing)),
    Slip(
        "heads are joined by a reshape, without transposing",
        {"joined": lambda heads_out, x: heads_out.reshape(x.shape)},
        "(..., H, T, K) becomes (..., T, H, K) first",
    ),
    Slip(
        "heads are split and joined by a reshape, without transposing",
        {**all_three(split_without_transposing), "joined": lambda heads_out, x: heads_out.reshape(x.shape)},
    ),
    Slip(HEADS_LAST, all_three(split_last)),
    Slip(
        "heads are alternate columns",
        {
            **all_three(split_last),
            "joined": lambda heads_out: np.moveaxis(heads_out, -3, -1).reshape(
                *heads_out.shape[:-3], heads_out.shape[-2], heads_out.shape[-3] * heads_out.shape[-1]
            ),
        },
    ),
    Slip("there is one head of the whole width", {**all_three(lambda x, heads: split(x, 1))}),
    Slip(
        "attention is over the heads of a token, not over the tokens",
        {
            "scores": lambda q, k: np.swapaxes(q, -2, -3) @ transposed(np.swapaxes(k, -2, -3)),
            "masked": lambda scaled: scaled,
            "heads_out": lambda weights, v: np.swapaxes(weights @ np.swapaxes(v, -2, -3), -2, -3),
        },
    ),
    *over_axis(OVER_QUERIES, -2, "each row of weights adds up to 1"),
    *over_axis("softmax is over the heads, not the keys", -3),
    *over_axis("softmax is over the batch, not the keys", 0),
    Slip("queries and keys are exchanged", {"scores": lambda q, k: k @ transposed(q)}),
    Slip("the values are the keys", {"heads_out": lambda weights, k: weights @ k}),
    Slip("the output projection is missing", {"output": lambda joined: joined}),
    Slip("the output weight is transposed", {"output": lambda joined, wo, bo: with_bias(joined @ wo.T, bo)}),
    Slip(
        "the biases of queries, keys and values are missing",
        {
            "projected_q": lambda x, wq: x @ wq,
            "projected_k": lambda x, wk: x @ wk,
            "projected_v": lambda x, wv: x @ wv,
        },
    ),
    Slip("the bias of the output is missing", {"output": lambda joined, wo: joined @ wo}),
    Slip("the mask is ignored", {"masked": lambda scaled: scaled}),
    Slip(NO_CAUSAL, {"masked": lambda scaled, mask: with_mask(scaled, expand(mask))}),
    Slip(STRICT_CAUSAL, {"masked": lambda scaled: causal(scaled, -1)}),
    Slip(
        STRICT_CAUSAL,
        {"masked": lambda scaled: causal(scaled, -1), "weights": written_softmax(-np.inf)},
    ),
    Slip(
        STRICT_CAUSAL,
        {
            "masked": lambda scaled: causal(scaled, -1),
            "weights": written_softmax(FINITE),
        },
    ),
    Slip(SHIFTED_CAUSAL, {"masked": lambda scaled: causal(scaled, 1)}),
    Slip(
        "the mask is applied after the softmax",
        {
            "masked": lambda scaled: scaled,
            "weights": lambda scaled, mask: stable_softmax(scaled) * (1 if mask is None else expand(mask)),
        },
        "mask first, so that each row still adds up to 1",
    ),
)


def rotating(rotate: Formula) -> Formula:
    """The formula of heads whose values are rotated."""
    return lambda weights, v, angles: weights @ rotate(v, angles)


ROTATIONS: tuple[Slip[Formula], ...] = (
    Slip("queries are not rotated", {"rotated_q": lambda q: q}),
    Slip("keys are not rotated", {"rotated_k": lambda k: k}),
    Slip("neither queries nor keys are rotated", {"rotated_q": lambda q: q, "rotated_k": lambda k: k}),
    *(
        Slip(
            "the values are rotated too",
            {"heads_out": rotating(rotate)},
        )
        for rotate in (rotate_pairs, rotate_halves)
    ),
    Slip("the values are the keys", {"heads_out": lambda weights, rotated_k: weights @ rotated_k}),
    Slip("the positions are ignored: they are always 0, 1, 2, …", {"places": lambda x: np.arange(x.shape[-2])}),
    Slip(
        "the frequencies are those of the whole width, not of a head",
        {
            "angles": lambda places, x, q, theta: (
                places[..., :, None] * frequencies(x.shape[-1], theta)[: q.shape[-1] // 2]
            )
        },
    ),
)

OUTPUTS = "out_proj c_proj proj out fc_out o fc dense to_out"
X = Argument(
    "... T D",
    "x in_features query input inputs hidden_states embeddings q key k value v queries keys values",
    is_shared=True,
)


def modules_of(name: str, words: str) -> list[str]:
    """The names of the module of a projection."""
    return [f"w{name}", f"{name}_proj", f"{words}_proj", f"W_{words}", words, *OUTPUTS.split() * (name == "o")]


def weight(name: str, words: str) -> Argument:
    """A weight (D, D) with the names that it has."""
    spelled = [f"w{name}", f"{words}_proj", f"{words}_proj_weight", f"w_{words}", f"weight_{name}", f"{words}_weight"]
    spelled += [f"{one}.weight" for one in modules_of(name, words)]
    return Argument(
        "D D",
        " ".join(dict.fromkeys((*spelled, f"{name}_proj_weight", f"{name}_proj", f"W_{words}"))),
        role="parameter",
    )


def bias(name: str, words: str) -> Argument:
    """A bias (D) with the names that it has."""
    return Argument(
        "D",
        f"b{name} b_{name} bias_{name} {words}_bias " + " ".join(f"{one}.bias" for one in modules_of(name, words)),
        role="parameter",
    )


WORDS = {"q": "query", "k": "key", "v": "value", "o": "output"}
ARGUMENTS = {
    "x": X,
    **{f"w{name}": weight(name, words) for name, words in WORDS.items()},
    "wo": Argument("D D", f"{weight('o', 'output').names} {OUTPUTS}", role="parameter"),
    "wqkv": Argument(
        "D D",
        "wqkv qkv c_attn in_proj_weight qkv_proj qkv.weight c_attn.weight qkv_proj.weight in_proj",
        role="parameter",
        joins="wq wk wv",
    ),
    **{f"b{name}": bias(name, words) for name, words in WORDS.items()},
    "bqkv": Argument("D", "bqkv qkv.bias c_attn.bias in_proj_bias qkv_proj.bias", role="parameter", joins="bq bk bv"),
    "heads": Argument("", "heads num_heads n_heads n_head nhead h", role="number"),
    "mask": Argument("... T T", "mask attn_mask attention_mask", draw="mask"),
}
BIASES = ("bq", "bk", "bv", "bo")


def draw_shared(given: Any, generator: Any) -> Any:
    """(..., T, T): any keys, the same for all texts, at least one a row."""
    lead, size = given["x"].shape[:-2], given["x"].shape[-2]
    mask = generator.random((size, size)) < 0.6
    mask[:, 0] |= ~mask.any(-1)
    return np.broadcast_to(mask, (*lead, size, size)).copy()


# over which axes a mask is handed over that all texts share
MASK_AXES = {
    "texts": Way(),
    "square": Way("mask: (T, T)", {"mask": lambda mask: mask.reshape(-1, *mask.shape[-2:])[0]}),
    "heads": Way("mask: (B, 1, T, T)", {"mask": expand}),
}


def draw_causal_square(given: Any, generator: Any) -> Any:
    """(..., T, T): a token may attend to itself and to those before it."""
    lead, size = given["x"].shape[:-2], given["x"].shape[-2]
    return np.broadcast_to(np.tri(size, dtype=bool), (*lead, size, size)).copy()


CONSTRUCT = {
    "D": f"{WIDTH} d_in d_out embed_size emb_size model_dim in_features out_features",
    "heads": "num_heads n_heads n_head nhead heads h num_attention_heads",
    "M": "max_seq_len context_length block_size max_len seq_len max_position_embeddings n_positions",
}
FUNCTIONS = "MultiHeadSelfAttention MultiHeadAttention MultiheadAttention CausalSelfAttention multi_head_attention mha"

MULTIHEAD = Definition(
    "multi-head self-attention with its weights",
    ARGUMENTS,
    STEPS,
    {"T": 5, "D": 12},
    (
        Case("plain"),
        Case("biases", needs=BIASES),
        Case("causal mask", needs=("mask",), given={"mask": draw_causal_square}),
        Case("any mask", needs=("mask",), given={"mask": draw_shared}),
        Case("one token", sizes={"T": 1}),
        Case("more tokens", lead=(3,), sizes={"T": 11}),
        Case("two heads", given={"heads": 2}),
    ),
    "... T D",
    SLIPS,
    {
        "weights": layouts_of("wq", "wk", "wv", "wo", "wqkv"),
        "mask": POLARITIES,
        "mask-axes": MASK_AXES,
        "causal": CAUSAL,
    },
    FUNCTIONS,
    {"heads": 3, "M": MOST_TOKENS},
    CONSTRUCT,
)

ROTARY = MULTIHEAD._replace(
    summary="multi-head self-attention with rotary positions",
    arguments={
        **ARGUMENTS,
        "positions": Argument("T", "positions token_positions position_ids pos_ids pos", draw="ids T"),
        "theta": Argument("", "theta base rope_theta", role="number"),
    },
    steps={
        **{name: STEPS[name] for name in [*STEPS][: [*STEPS].index("scores")]},
        "places": positions_of,
        "angles": lambda places, q, theta: places[..., :, None] * frequencies(q.shape[-1], theta),
        "rotated_q": lambda q, angles: rotate_pairs(q, angles),
        "rotated_k": lambda k, angles: rotate_pairs(k, angles),
        "scores": lambda rotated_q, rotated_k: rotated_q @ transposed(rotated_k),
        **{name: STEPS[name] for name in [*STEPS][[*STEPS].index("scaled") :]},
    },
    cases=(
        Case("positions from 0", given={"positions": count_positions}),
        Case("biases", given={"positions": count_positions}, needs=BIASES),
        Case("any mask", given={"positions": count_positions}, needs=("mask",)),
        Case("any positions", given={"positions": scatter_positions}, needs=("positions",)),
        Case("biases", given={"positions": count_positions}, needs=BIASES),
        Case("any mask", given={"positions": count_positions}, needs=("mask",)),
        Case("more tokens", lead=(3,), sizes={"T": 11}, given={"positions": count_positions}),
        Case("two heads", given={"heads": 2, "positions": count_positions}),
    ),
    slips=(*ROTATIONS, *(slip for slip in SLIPS if "scores" not in slip.changes)),
    conventions={
        **MULTIHEAD.conventions,
        "pairs": {
            "even-odd": Way(),
            "halves": Way(
                "pairs: column i with i + K/2 (halves)",
                steps={
                    "rotated_q": lambda q, angles: rotate_halves(q, angles),
                    "rotated_k": lambda k, angles: rotate_halves(k, angles),
                },
            ),
        },
    },
    defaults={"heads": 3, "theta": THETA, "M": MOST_TOKENS},
    construct={**CONSTRUCT, "theta": "theta base rope_theta"},
)

DEFINITIONS = {"multihead": MULTIHEAD, "multihead-rope": ROTARY}
