"""The intermediates of every tool and model: names, axes, formulas, options.

One row for each, in the order of computation. The tools, traces, gradients, the engine, hints in errors and the page
that explores read these rows, so that a new intermediate is one row here and the line that computes it.
"""

from typing import NamedTuple

Axes = tuple[str, ...]


class Intermediate(NamedTuple):
    """An intermediate of one text.

    axes     without a batch; the axis `key` is `source` in cross-attention, `present` with a KV cache; None: those of x
    formula  how it is computed, if no option changes that
    option   the option of the tool that writes it
    is_step  whether --steps shows it
    """

    axes: Axes | None
    formula: str = ""
    option: str = "--keep {}"
    is_step: bool = True


QUERIES: Axes = ("head", "query")
PAIRS: Axes = (*QUERIES, "key")  # of every query with every key
HIDDEN: Axes = ("token", "hidden")
STATS, TOP, ROWS = "--weights stats", "--weights topk:K", "--weights rows:I,J"

# tool -> its intermediates by name
INTERMEDIATES: dict[str, dict[str, Intermediate]] = {
    "attend": {
        "q_latent": Intermediate(("query", "latent"), "norm of x W_DQ", is_step=False),
        "kv_latent": Intermediate(("key", "latent"), "norm of x W_DKV", is_step=False),
        "k_rotary": Intermediate(("key", "head_dim"), "rotated x W_KR, of all heads", is_step=False),
        "q_normed": Intermediate((*QUERIES, "head_dim"), "norm of x W_Q", is_step=False),
        "k_normed": Intermediate(("head", "key", "head_dim"), "norm of x W_K", is_step=False),
        "relative": Intermediate(PAIRS, option="", is_step=False),
        "q": Intermediate((*QUERIES, "head_dim")),
        "k": Intermediate(("head", "key", "head_dim")),
        "v": Intermediate(("head", "key", "head_dim")),
        "scores": Intermediate(PAIRS),
        "scaled": Intermediate(PAIRS),
        "capped": Intermediate(PAIRS),
        "masked": Intermediate(PAIRS),
        "weights": Intermediate(PAIRS, "softmax over the keys"),
        "heads": Intermediate((*QUERIES, "head_dim"), "weights V"),
        "gate": Intermediate((*QUERIES, "head_dim"), "x W_G", is_step=False),
        "gated_heads": Intermediate((*QUERIES, "head_dim"), "heads · σ(gate)", is_step=False),
        "lse": Intermediate(QUERIES, "log Σ exp(masked)", "--partial", False),
        "present_key": Intermediate(("head", "key", "head_dim"), "past and new keys", is_step=False),
        "present_value": Intermediate(("head", "key", "head_dim"), "past and new values", is_step=False),
        "weights.lse": Intermediate(QUERIES, "log Σ exp(masked)", STATS, False),
        "weights.entropy": Intermediate(QUERIES, "−Σ weights · log weights", STATS, False),
        "weights.max": Intermediate(QUERIES, "the largest weight of a query", STATS, False),
        "weights.argmax": Intermediate(QUERIES, "the key of the largest weight; −1: none", STATS, False),
        "weights.span": Intermediate(
            QUERIES, "Σ weights · |position of the query − position of the key|", STATS, False
        ),
        "weights.received": Intermediate(("head", "key"), "Σ weights over the queries", STATS, False),
        "weights.top": Intermediate((*QUERIES, "rank"), "the largest weights of a query, in their order", TOP, False),
        "weights.keys": Intermediate((*QUERIES, "rank"), "the keys of the largest weights; −1: none", TOP, False),
        "weights.rows": Intermediate(
            ("head", "row", "key"), "softmax over the keys, for some queries", ROWS, is_step=False
        ),
    },
    "layernorm": {
        "mean": Intermediate(None),
        "variance": Intermediate(None),
        "mean_square": Intermediate(None),
        "inverse_std": Intermediate(None),
        "normalized": Intermediate(None, option="--steps"),
        "scaled": Intermediate(None, option="--steps"),
        "residual": Intermediate(None, is_step=False),
    },
    "ffn": {
        "hidden": Intermediate(HIDDEN),
        "activated": Intermediate(HIDDEN),
        "linear": Intermediate(HIDDEN),
        "gated": Intermediate(HIDDEN, "activated · linear"),
        "router": Intermediate(("token", "expert"), "x W_R", is_step=False),
        "chosen": Intermediate(("token", "rank"), "the experts of the largest gates", is_step=False),
        "gates": Intermediate(("token", "rank"), "the weights of the chosen experts", is_step=False),
    },
    "conv": {
        "padded": Intermediate(None),
        "windows": Intermediate(None),
        "convolved": Intermediate(None, "windows W + b"),
        "normalized": Intermediate(None, "norm(convolved)"),
        "gate_in": Intermediate(None, "x W_B", is_step=False),
        "gate_out": Intermediate(None, "x W_C", is_step=False),
        "values": Intermediate(None, "x W_X", is_step=False),
        "admitted": Intermediate(None, "gate_in · values", is_step=False),
        "released": Intermediate(None, "gate_out · convolved", is_step=False),
    },
    "mel": {
        "frames": Intermediate(("frame", "sample"), "the samples around each step of --hop"),
        "windowed": Intermediate(("frame", "sample"), "frames · Hann window"),
        "power": Intermediate(("frame", "frequency"), "|Fourier transform of windowed|²"),
        "filters": Intermediate(("frequency", "mel"), "Slaney's mel filters"),
        "mel": Intermediate(("frame", "mel"), "power filters"),
        "log": Intermediate(("frame", "mel"), "log₁₀ mel, mel at least 1e-10"),
        "clamped": Intermediate(("frame", "mel"), "log, at least its largest − 8"),
    },
    "rnn": {
        "input_gate": Intermediate(HIDDEN),
        "forget_gate": Intermediate(HIDDEN),
        "candidate": Intermediate(HIDDEN),
        "output_gate": Intermediate(HIDDEN),
        "reset_gate": Intermediate(HIDDEN),
        "update_gate": Intermediate(HIDDEN),
        "cell": Intermediate(HIDDEN),
        "state": Intermediate(None, is_step=False),
        "bridge": Intermediate(("model",), option="", is_step=False),
        "bridge_cell": Intermediate(("model",), option="", is_step=False),
    },
    "recall": {
        **{f"{letter}_convolved": Intermediate(None, "taps · projected", "", False) for letter in "qkv"},
        **{f"{letter}_activated": Intermediate(None, "silu(convolved)", "", False) for letter in "qkv"},
        "q_heads": Intermediate(("head", "token", "key_dim"), option="", is_step=False),
        "q_features": Intermediate(("head", "token", "key_dim"), option="", is_step=False),
        "q": Intermediate(("head", "token", "key_dim")),
        "k_heads": Intermediate(("head", "token", "key_dim"), option="", is_step=False),
        "k": Intermediate(("head", "token", "key_dim")),
        "v": Intermediate(("head", "token", "value_dim")),
        "beta_sigmoid": Intermediate(("token", "head"), option="", is_step=False),
        "beta": Intermediate(("head", "token", "key_dim")),
        "step": Intermediate(("head", "token", "key_dim"), option="", is_step=False),
        "decay": Intermediate(("head", "token", "key_dim")),
        "held": Intermediate(("head", "token", "value_dim"), "Sᵀk"),
        "error": Intermediate(("head", "token", "value_dim"), "v − held"),
        "written": Intermediate(("head", "token", "value_dim")),
        "states": Intermediate(("head", "token", "key_dim", "value_dim")),
        "read": Intermediate(("head", "token", "value_dim"), "Sᵀq"),
        "skipped": Intermediate(("head", "token", "value_dim"), "read + D v", "", False),
        "normed": Intermediate(None, "norm(read)", "", False),
        "gate": Intermediate(None, "x W_G", "", False),
        "gated": Intermediate(None, "normed · silu(gate)", "", False),
    },
    "encode": {
        "pooler": Intermediate(("model",), option="", is_step=False),
        "logits": Intermediate(("token", "vocab"), option="", is_step=False),
    },
}


def step_names(tool: str) -> tuple[str, ...]:
    """The names of the intermediates that --steps of a tool shows, in order.

    >>> step_names("ffn")
    ('hidden', 'activated', 'linear', 'gated')
    """
    return tuple(name for name, row in INTERMEDIATES[tool].items() if row.is_step)


def kept_names(tool: str) -> tuple[str, ...]:
    """The names of the intermediates that --keep of a tool accepts, in order.

    >>> kept_names("attend")[-2:]
    ('present_key', 'present_value')
    """
    return tuple(name for name, row in INTERMEDIATES[tool].items() if row.option == "--keep {}")


def axes_of(name: str) -> Axes | None:
    """The axes of an intermediate of any tool, or None if x has the same.

    >>> axes_of("weights"), axes_of("output")
    (('head', 'query', 'key'), None)
    """
    return next((rows[name].axes for rows in INTERMEDIATES.values() if name in rows), None)


def made_by(name: str) -> str:
    """The command that writes a tensor of this name, or "" if there is none.

    >>> made_by("weights"), made_by("weights.keys")
    ('attend --keep weights keeps it', 'attend --weights topk:K makes it')
    """
    for tool, rows in INTERMEDIATES.items():
        if name in rows and (option := rows[name].option):
            return f"{tool} {option.format(name)} {'keeps' if '{}' in option else 'makes'} it"
    return ""


ATTENTION = INTERMEDIATES["attend"]
STEPS = step_names("attend")  # q to heads
SQUARE = tuple(name for name in STEPS if ATTENTION[name].axes == PAIRS)
ORDER = (*STEPS, "lse", "present_key", "present_value")  # of what `attention` returns
PARTS = tuple(name for name in STEPS if name != "weights")  # what weights are computed from and used for
