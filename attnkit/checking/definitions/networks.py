"""Activations, and the feed-forward network, gated or not."""

import math
from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.checking.definitions.linear import WIDTH, layouts_of, with_bias, within
from attnkit.model.formulas.activations import apply_activation
from attnkit.model.slips import NO_ACTIVATION, Slip

FAR = 1000.0  # where e^x overflows


def swapped(name: str) -> Slip[Any]:
    return Slip(f"the activation is {name}", {"activated": lambda x: apply_activation(name, x)})


X = Argument("... N", "x input inputs in_features z")
CASES = (
    Case("plain", lead=(2, 5)),
    Case("no leading axis", lead=()),
    Case("large", lead=(2,), given={"x": lambda g, r: FAR * r.standard_normal((2, 7))}),
)


def activation(name: str, others: str, functions: str, *slips: Slip[Any]) -> Definition:
    """The definition of an activation, whose slips are others too."""
    return Definition(
        f"the activation {name}",
        {"x": X},
        {"activated": lambda x: apply_activation(name, x)},
        {"N": 7},
        CASES,
        "... N",
        (*slips, *(swapped(other) for other in others.split())),
        functions=functions,
    )


ACTIVATION_DEFINITIONS = {
    "relu": activation("relu", "gelu silu", "relu ReLU"),
    "gelu": activation("gelu", "gelu-tanh quick-gelu relu silu", "gelu GELU"),
    "gelu-tanh": activation("gelu-tanh", "gelu quick-gelu relu silu", "gelu_tanh gelu_new gelu GELU NewGELU"),
    "silu": activation(
        "silu",
        "sigmoid relu gelu quick-gelu",
        "silu swish SiLU run_silu",
        Slip("σ(x) is added, not multiplied", {"activated": lambda x: x + apply_activation("sigmoid", x)}),
        Slip(
            "the exponent has the wrong sign: x · σ(−x)", {"activated": lambda x: x * apply_activation("sigmoid", -x)}
        ),
    ),
    "sigmoid": activation(
        "sigmoid",
        "silu tanh",
        "sigmoid",
        Slip("the exponent has the wrong sign: σ(−x)", {"activated": lambda x: apply_activation("sigmoid", -x)}),
        Slip("e^−x overflows", {"activated": lambda x: np.exp(x) / (1 + np.exp(x))}),
    ),
}

# activations that right networks have
OF_NETWORKS = {
    "relu": Way(),
    "gelu": Way("activation: gelu", steps={"activated": lambda hidden: apply_activation("gelu", hidden)}),
    "gelu-tanh": Way(
        "activation: gelu-tanh", steps={"activated": lambda hidden: apply_activation("gelu-tanh", hidden)}
    ),
    "silu": Way("activation: silu", steps={"activated": lambda hidden: apply_activation("silu", hidden)}),
}

# the modules of its two layers
FIRST = "fc1 linear1 c_fc up_proj w_in dense1 lin1 linear_1 fc_1 w_1 layers.0 net.0 0"
SECOND = "fc2 linear2 c_proj down_proj w_out dense2 lin2 linear_2 fc_2 w_2 layers.2 net.2 2"

FFN = Definition(
    "the feed-forward network: activation(x W1 + b1) W2 + b2",
    {
        "x": X._replace(axes="... D"),
        "w1": Argument("D F", f"w1 {FIRST} {within(FIRST, 'weight')}", role="parameter"),
        "b1": Argument("F", f"b1 bias1 {within(FIRST, 'bias')}", role="parameter"),
        "w2": Argument("F D", f"w2 {SECOND} {within(SECOND, 'weight')}", role="parameter"),
        "b2": Argument("D", f"b2 bias2 {within(SECOND, 'bias')}", role="parameter"),
    },
    {
        "hidden": lambda x, w1, b1: with_bias(x @ w1, b1),
        "activated": lambda hidden: apply_activation("relu", hidden),
        "network": lambda activated, w2, b2: with_bias(activated @ w2, b2),
    },
    {"D": 5, "F": 20},
    (
        Case("plain", lead=(2, 3)),
        Case("biases", lead=(2, 3), needs=("b1", "b2")),
        Case("no leading axis", lead=()),
        Case("leading axes", lead=(2, 3, 4)),
    ),
    "... D",
    (
        Slip(NO_ACTIVATION, {"activated": lambda hidden: hidden}),
        Slip("the bias b1 is missing", {"hidden": lambda x, w1: x @ w1}),
        Slip("the bias b2 is missing", {"network": lambda activated, w2: activated @ w2}),
        Slip(
            "b1 is added after the activation",
            {"activated": lambda x, w1, b1: with_bias(apply_activation("relu", x @ w1), b1)},
        ),
        Slip(
            "max(0, ·) is applied to the output too",
            {"network": lambda activated, w2, b2: with_bias(activated @ w2, b2).clip(0)},
        ),
        Slip(
            "the input is added (the residual)",
            {"network": lambda x, activated, w2, b2: x + with_bias(activated @ w2, b2)},
        ),
        Slip("the activation is sigmoid", {"activated": lambda hidden: apply_activation("sigmoid", hidden)}),
        Slip("the activation is tanh", {"activated": lambda hidden: apply_activation("tanh", hidden)}),
        Slip(
            "the hidden numbers are scaled by 1/√F",
            {"network": lambda activated, w2, b2: with_bias(activated / math.sqrt(activated.shape[-1]) @ w2, b2)},
        ),
    ),
    {"weights": layouts_of("w1", "w2"), "activation": OF_NETWORKS},
    "ffn feed_forward feedforward FeedForward PositionwiseFeedForward MLP mlp",
    construct={
        "D": f"{WIDTH} in_features",
        "F": "d_ff hidden_dim dim_feedforward ffn_dim inner_dim hidden",
    },
)

SWIGLU = Definition(
    "the gated network: (silu(x W1) · x W3) W2",
    {
        "x": X._replace(axes="... D"),
        "w1": Argument("D F", "w1 w1_weight gate gate_proj w_gate w1.weight gate_proj.weight", role="parameter"),
        "w2": Argument("F D", "w2 w2_weight down down_proj w_down w2.weight down_proj.weight", role="parameter"),
        "w3": Argument("D F", "w3 w3_weight up up_proj w_up w3.weight up_proj.weight", role="parameter"),
    },
    {
        "gate": lambda x, w1: x @ w1,
        "up": lambda x, w3: x @ w3,
        "activated": lambda gate: apply_activation("silu", gate),
        "product": lambda activated, up: activated * up,
        "network": lambda product, w2: product @ w2,
    },
    {"D": 5, "F": 11},
    (
        Case("plain", lead=(2, 3)),
        Case("no leading axis", lead=()),
        Case("leading axes", lead=(2, 3, 4)),
        Case("large", lead=(2,), given={"x": lambda g, r: FAR * r.standard_normal((2, 5))}),
    ),
    "... D",
    (
        Slip(
            "gate and up are exchanged: W3 is activated",
            {"activated": lambda up: apply_activation("silu", up), "product": lambda activated, gate: activated * gate},
        ),
        Slip("the gate is not activated", {"activated": lambda gate: gate}),
        Slip("the activation is sigmoid (GLU)", {"activated": lambda gate: apply_activation("sigmoid", gate)}),
        Slip("the activation is gelu (GEGLU)", {"activated": lambda gate: apply_activation("gelu", gate)}),
        Slip("the activation is relu (ReGLU)", {"activated": lambda gate: apply_activation("relu", gate)}),
        Slip("gate and up are added, not multiplied", {"product": lambda activated, up: activated + up}),
        Slip("up is missing", {"product": lambda activated: activated}),
        Slip(
            "the product is activated, not the gate", {"product": lambda gate, up: apply_activation("silu", gate * up)}
        ),
    ),
    {"weights": layouts_of("w1", "w2", "w3")},
    "swiglu SwiGLU run_swiglu GatedMLP gated_mlp LlamaMLP",
    construct={
        "D": f"{WIDTH} in_features",
        "F": "d_ff hidden_dim intermediate_size ffn_dim inner_dim hidden",
    },
)

DEFINITIONS = {**ACTIVATION_DEFINITIONS, "ffn": FFN, "swiglu": SWIGLU}
