"""The parameters of every layer: kinds of layers, their tools, and axes.

A size has the name of its axis, so that a shape is the axes read in the sizes of a configuration. Weights are
(in, out). The names of layers are those of attnkit.model.config.
"""

Axes = tuple[str, ...]

SHOWN = {
    "key heads": "heads",
    "part": "heads",
    "query norm": "heads",
    "key norm": "heads",
}  # axes under the names that users see

MOST_CONVOLUTIONS = 16  # one after another
CONVOLUTIONS = tuple(f"conv{number}" for number in range(1, MOST_CONVOLUTIONS + 1))

# the last part of the name of a layer -> the tool that computes it
TOOLS = {
    "embed": "embed",
    "positions": "posenc",
    **dict.fromkeys(("self", "cross", "bias", "relative"), "attend"),
    **dict.fromkeys(("ffn", "expert", "shared", "readout", "bridge", "bridge_cell"), "ffn"),
    **dict.fromkeys(("projection", "scale1", "scale2"), "linear"),
    **dict.fromkeys((*CONVOLUTIONS, "position_conv", "shortconv"), "conv"),
    "rnn": "rnn",
    "recall": "recall",
    **dict.fromkeys(
        ("norm", "embed_norm", "feature_norm", "norm1", "norm2", "norm3", "output_norm1", "output_norm2"), "layernorm"
    ),
    **dict.fromkeys(("pooler", "vector", "group"), "encode"),
    **dict.fromkeys(("head", "head.dense", "head.norm"), "decode"),
}
# what mixes the tokens of a layer -> the operation of its step
MIXERS = {"self": "attend", "recall": "recall", "shortconv": "shortconv"}
# layers whose parameters a tool reads with those of another layer
SHARED = ("bias", "relative", "pooler", "vector", "head.dense", "head.norm")

ATTENTION: dict[str, Axes] = {
    "wq": ("model", "heads"),
    "wk": ("model", "key heads"),
    "wv": ("model", "key heads"),
    "wo": ("heads", "model"),
    "bq": ("heads",),
    "bk": ("key heads",),
    "bv": ("key heads",),
    "bo": ("model",),
    "gamma_q": ("query norm",),
    "beta_q": ("query norm",),
    "gamma_k": ("key norm",),
    "beta_k": ("key norm",),
    "sinks": ("head",),
    "wg": ("model", "heads"),
    "bg": ("heads",),
}
# those of latent attention, in place of the ones above
LATENT: dict[str, Axes] = {
    "wq": ("query latent", "heads"),
    "wk": ("latent", "content heads"),
    "wv": ("latent", "value heads"),
    "wo": ("value heads", "model"),
    "wq_latent": ("model", "query latent"),
    "bq_latent": ("query latent",),
    "gamma_q_latent": ("query latent",),
    "wkv_latent": ("model", "latent"),
    "bkv_latent": ("latent",),
    "gamma_kv_latent": ("latent",),
    "wk_rotary": ("model", "rotary"),
    "bk_rotary": ("rotary",),
}
RECALL: dict[str, Axes] = {
    **{f"{kind}{letter}": ("model", "key heads")[kind == "b" :] for letter in "qk" for kind in "wb"},
    **{f"{kind}{letter}": ("model", "heads")[kind == "b" :] for letter in "vg" for kind in "wb"},
    "wo": ("heads", "model"),
    "bo": ("model",),
    **{f"conv_{letter}": ("place", "key heads") for letter in "qk"},
    "conv_v": ("place", "heads"),
    **{f"conv_bias_{letter}": ("key heads",) for letter in "qk"},
    "conv_bias_v": ("heads",),
    **dict.fromkeys(("wbeta", "wdt"), ("model", "head")),
    **dict.fromkeys(("bbeta", "bdt", "dt_bias", "A_log", "D"), ("head",)),
    "gamma": ("part",),
}
OUTPUT_PARAMETERS = {name: ATTENTION[name] for name in ("wo", "bo")}  # the projection of merged heads
SCORE: dict[str, Axes] = {"wa": ("model", "score"), "ua": ("source model", "score"), "va": ("score",)}
FFN: dict[str, Axes] = {
    "w1": ("model", "hidden"),
    "b1": ("hidden",),
    "w2": ("hidden", "model"),
    "b2": ("model",),
    "w3": ("model", "hidden"),
    "b3": ("hidden",),
}
NORM: dict[str, Axes] = {"gamma": ("model",), "beta": ("model",)}
CONVOLUTION: dict[str, Axes] = {"w": ("window", "model"), "b": ("model",), **NORM}
CELL: dict[str, Axes] = {
    "input": ("gates", "model"),
    "hidden": ("gates", "model"),
    "input_bias": ("gates",),
    "hidden_bias": ("gates",),
}
DIRECTIONS = CELL | {f"{name}_reverse": axes for name, axes in CELL.items()}

# the last part of the name of a layer -> its own parameters
OWN: dict[str, dict[str, Axes]] = {
    "embed": {
        "table": ("vocab", "model"),
        "types": ("segment", "model"),
        "cls": ("model",),
        "registers": ("register", "model"),
        "w": ("pixel", "model"),
        "b": ("model",),
    },
    "positions": {"table": ("position", "model")},
    "bias": {"table": ("bucket", "head")},
    "relative": {"table": ("distance", "model")},
    "ffn": {
        "router": ("model", "expert"),
        "router_bias": ("expert",),
        "correction": ("expert",),
        "shared_gate": ("model", "one"),
    },
    "projection": {"w": ("embedding", "model"), "b": ("model",)},
    **dict.fromkeys(CONVOLUTIONS, CONVOLUTION),
    "position_conv": CONVOLUTION | {"g": ("place",)},
    "shortconv": {"w": ("place", "channel"), "b": ("channel",), "wo": ("channel", "model"), "bo": ("model",)}
    | {f"w{letter}": ("model", "channel") for letter in "bcx"}
    | {f"b{letter}": ("channel",) for letter in "bcx"},
    "recall": RECALL,
    "scale1": {"w": ("model",)},
    "scale2": {"w": ("model",)},
    "cross": {"w": ("model", "source model")},
    "vector": {"probe": ("model",)},
    "head": {"w": ("model", "vocab"), "b": ("vocab",)},
}
OTHERS = LATENT | ATTENTION | SCORE | FFN | NORM | DIRECTIONS | {"w": ("model", "out"), "b": ("out",)}
ANY = OWN["embed"] | OTHERS
# the last part of the name of a layer -> all parameters it may have
LAYERS = {part: ANY | OWN.get(part, {}) for part in TOOLS}


def tool_of(layer: str) -> str:
    """The tool that computes a layer, by the last part of its name.

    >>> tool_of("decoder.0.cross"), tool_of("head.norm")
    ('attend', 'decode')
    """
    return TOOLS[last_part(layer)]


def last_part(layer: str) -> str:
    """The part of a layer in its stack, without the number of an expert.

    >>> last_part("decoder.0.expert.3"), last_part("decoder.0.norm2"), last_part("head.norm")
    ('expert', 'norm2', 'head.norm')
    """
    if layer in TOOLS:
        return layer
    before, _, last = layer.rpartition(".")
    return before.rpartition(".")[2] if last.isdigit() else last


def is_layer_of(layer: str, tool: str) -> bool:
    """Whether a tool computes a layer by itself.

    >>> is_layer_of("encoder.1.self", "attend"), is_layer_of("encoder.bias", "attend")
    (True, False)
    """
    return last_part(layer) not in SHARED and tool_of(layer) == tool


def parameter_axes(part: str, name: str) -> Axes:
    """The axis names of a parameter; part: the last part of the name of its layer.

    >>> parameter_axes("self", "wk"), parameter_axes("positions", "table")
    (('model', 'heads'), ('position', 'model'))
    """
    axes = LAYERS.get(part, ANY).get(name, ())
    return tuple(SHOWN.get(axis, axis) for axis in axes)
