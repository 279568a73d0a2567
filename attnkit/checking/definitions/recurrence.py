"""RNN, GRU and LSTM over a text.

The weights of all gates are side by side, or of each by itself. A step `products` has W x + b of all gates for all
tokens; the step `states` runs over the tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.checking.definitions.formulas import with_names
from attnkit.checking.definitions.linear import with_bias
from attnkit.debugger.slips import NOT_CARRIED, RESETS
from attnkit.model.exercises.worked_steps import Formula, sigmoid_of, transposed
from attnkit.model.slips import Slip

Advance = Callable[[Sequence[Any], Any], Any]  # (products of the gates of a token, state) -> the next state

IDENTITY: Formula = lambda x: x  # noqa: E731 - an activation among others
RELU: Formula = lambda x: np.maximum(x, 0)  # noqa: E731


def run_cell(advance: Advance, products: Any, first: Any, is_reversed: bool = False, carries: bool = True) -> Any:
    """The hidden state of each token.

    products (..., T, G·H), the first state -> (..., T, H)
    """
    now, states = first, []
    width = products.shape[-1] // (first[0] if isinstance(first, tuple) else first).shape[-1]
    for token in range(products.shape[-2])[:: -1 if is_reversed else 1]:
        new = advance(np.split(products[..., token, :], width, -1), now)
        states.append(new[0] if isinstance(new, tuple) else new)
        now = new if carries else first
    return np.stack(states, -2)


def start(state: Any, products: Any, width: int) -> Any:
    """The first state, or zeros."""
    return np.zeros((*products.shape[:-2], width)) if state is None else state


# arguments

INPUTS = {"x": Argument("... T D", "x input inputs xs sequence input_sequence seq embeddings")}
OF_INPUT = "weight_ih weight_ih_l0 w_ih wx w_x wxh w_xh kernel weights_ih w"
OF_STATE = "weight_hh weight_hh_l0 w_hh wh w_h whh u recurrent_kernel weights_hh r"
BIAS_OF_INPUT = "b bias bias_ih bias_ih_l0 b_ih bh bx"
BIAS_OF_STATE = "bias_hh bias_hh_l0 b_hh recurrent_bias"
STATE = "h0 h_0 hx initial_hidden_state initial_hidden h_prev h state hidden prev_h h_init"


def gate_arguments(letters: str) -> dict[str, Argument]:
    """Weights and biases of each gate, and those of all side by side."""
    kinds = {"w": ("D H", OF_INPUT), "u": ("H H", OF_STATE), "b": ("H", BIAS_OF_INPUT), "c": ("H", BIAS_OF_STATE)}
    found = {}
    for kind, (axes, words) in kinds.items():
        other = {"w": "x", "u": "h", "b": "b", "c": "c"}[kind]
        names = {one: f"{kind}{one} {kind}_{one} w{other}{one} w_{other}{one} w_{one}{other}" for one in letters}
        if kind in "bc":
            names = {one: f"{kind}{one} {kind}_{one}" for one in letters}
        if len(letters) == 1:
            found[kind] = Argument(axes, words, role="parameter")
            continue
        found |= {kind + one: Argument(axes, words, role="parameter") for one, words in names.items()}
        joined = " ".join(kind + one for one in letters)
        found[kind] = Argument(
            axes.replace("H", "G") if kind in "bc" else f"{axes[0]} G", words, "parameter", joins=joined
        )
    return found


def ordered(order: str, letters: str) -> Formula:
    """Make the function that puts the columns of gates in another order."""
    places = [letters.index(one) for one in order]
    return lambda w: np.concatenate([np.split(w, len(letters), -1)[at] for at in places], -1)


def orders_of(letters: str, others: Mapping[str, str]) -> dict[str, Way]:
    """The orders of the gates in weights that are side by side."""
    ways = {
        order: Way(
            f"gates: in the order {', '.join(order)} ({program})", dict.fromkeys("wubc", ordered(order, letters))
        )
        for order, program in others.items()
    }
    return {letters: Way(), **ways}


def exchange_axes(x: Any) -> Any:
    return np.swapaxes(x, -2, -3) if x.ndim > 2 else x


def layouts(letters: str) -> dict[str, Way]:
    """The layouts of the weights of all gates."""
    names = [kind + one for kind in "wu" for one in ("", *letters)]
    return {"out,in": Way("", dict.fromkeys(names, transposed)), "in,out": Way("weights: (in, out)")}


CONVENTIONS = {
    "answer": {
        "all": Way(),
        "last": Way("it returns the last state alone", steps={"output": lambda states: states[..., -1, :]}),
    },
    "axes": {
        "batch-first": Way(),
        "tokens-first": Way(
            "axes: (T, B, D)", send={"x": exchange_axes}, steps={"output": lambda states: exchange_axes(states)}
        ),
    },
    "state": {"plain": Way(), "layers": Way("the first state has an axis of layers", send={"h0": lambda h: h[None]})},
}
EXPECTED = (
    "a class (input_size, hidden_size), or a function of x (..., T, D), weight_ih, weight_hh, bias_ih, bias_hh, h0"
)
SIZES = {"T": 4, "D": 3, "H": 5}
CONSTRUCT = {
    "D": "input_size input_dim d_in embed_dim input_width in_features d",
    "H": "hidden_size hidden_dim d_hidden hidden units n_hidden",
}


def cases_of(letters: str) -> tuple[Case, ...]:
    """The properties of a recurrent network with these gates."""
    kinds = {kind: [kind + (one if len(letters) > 1 else "") for one in letters] for kind in "bc"}
    return (
        Case("plain"),
        Case("bias", needs=tuple(kinds["b"])),
        Case("biases of input and state", needs=(*kinds["b"], *kinds["c"])),
        Case("initial state", needs=("h0",)),
        Case("more tokens", lead=(3,), sizes={"T": 9}),
        Case("one token", sizes={"T": 1}),
        Case("no leading axis", lead=(), note="attnkit and PyTorch read one text as a batch of one"),
        Case("large numbers", given={"x": lambda given, generator: 30 * generator.standard_normal((2, 4, 3))}),
    )


def gate_products(letters: str, without: str = "") -> Formula:
    """The formula of W x + b of all gates.

    The biases c of the state are in it too, but for that of a GRU's candidate.

    without  biases that are missing: "b", "c" or both
    """
    names = [f"{kind}{one}" if len(letters) > 1 else kind for kind in "wbc" for one in letters]

    def compute(x: Any, *values: Any) -> Any:
        found = dict(zip(names, values, strict=True))
        parts = []
        for at, one in enumerate(letters):
            w, b, c = (found[names[at + row * len(letters)]] for row in range(3))
            product = x @ w
            product = with_bias(product, None if "b" in without else b)
            parts.append(with_bias(product, None if "c" in without or one == "n" else c))
        return np.concatenate(parts, -1)

    return with_names(compute, ["x", *names])


def recurrent(letters: str, make: Callable[..., Any], *more: str, carries: bool = True, **options: Any) -> Formula:
    """The formula of the states.

    make     (weights of the state by letter, further arguments, options) -> the function of one token
    more     further arguments of `make`, and the first states
    """
    weights = [f"u{one}" if len(letters) > 1 else "u" for one in letters]
    is_reversed, starts = options.pop("is_reversed", False), options.pop("starts", True)

    def compute(products: Any, h0: Any, *values: Any) -> Any:
        own = dict(zip([*weights, *more], values, strict=True))
        us = [own.pop(one) for one in weights]
        first = start(h0 if starts else None, products, us[0].shape[0])
        if "c0" in own:
            first = first, start(own.pop("c0"), products, us[0].shape[0])
        return run_cell(make(us, **own, **options), products, first, is_reversed, carries)

    return with_names(compute, ["products", "h0", *weights, *more])


def shared_slips(letters: str, formula: Callable[..., Formula]) -> tuple[Slip[Formula], ...]:
    """The slips of all recurrent networks; `formula` makes that of the states."""
    return (
        Slip(NOT_CARRIED, {"states": formula(carries=False)}),
        Slip("the tokens are read from the last to the first", {
            "states": formula(is_reversed=True),
            "output": lambda states: states,
        }),
        Slip("the tokens are read from the last to the first, and the states turned back", {
            "states": formula(is_reversed=True),
            "output": lambda states: states[..., ::-1, :],
        }),
        Slip("the initial state is ignored: it is always 0", {"states": formula(starts=False)}),
        Slip("the weight of the state is transposed", {"states": formula(transposes=True)}),
        Slip("the bias of the input's product is missing", {"products": gate_products(letters, "b")}),
        Slip("the bias of the state's product is missing", without_c(letters, formula, "c")),
        Slip("both biases are missing", without_c(letters, formula, "bc")),
        Slip("the states are those of the token before", {
            "output": lambda states: np.concatenate([states[..., :1, :] * 0, states[..., :-1, :]], -2),
        }),
    )  # fmt: skip


def without_c(letters: str, formula: Callable[..., Formula], missing: str) -> dict[str, Formula]:
    """The steps without biases; that of a GRU's candidate is in its states."""
    changes = {"products": gate_products(letters, missing)}
    return {**changes, "states": formula(has_bias=False)} if "n" in letters else changes


def turn_weights(us: Sequence[Any], transposes: bool) -> list[Any]:
    return [one.T if transposes else one for one in us]


# RNN


def make_rnn(us: Sequence[Any], activation: Formula = np.tanh, transposes: bool = False) -> Advance:
    (u,) = turn_weights(us, transposes)
    return lambda products, h: activation(products[0] + h @ u)


def rnn_states(**options: Any) -> Formula:
    return recurrent("h", make_rnn, **options)


RNN = Definition(
    "a recurrent network: h ← tanh(W x + U h + b), over the tokens",
    {**INPUTS, **gate_arguments("h"), "h0": Argument("... H", STATE)},
    {"products": gate_products("h"), "states": rnn_states(), "output": lambda states: states},
    SIZES,
    cases_of("h"),
    "... T H",
    (
        *shared_slips("h", rnn_states),
        Slip("the states are not activated", {"states": rnn_states(activation=IDENTITY)}),
        Slip("the activation is sigmoid, not tanh", {"states": rnn_states(activation=sigmoid_of)}),
    ),
    {
        "weights": layouts("h"),
        **CONVENTIONS,
        "activation": {"tanh": Way(), "relu": Way("activation: relu", steps={"states": rnn_states(activation=RELU)})},
    },
    "rnn RNN rnn_forward VanillaRNN SimpleRNN run_rnn rnn_layer",
    construct=CONSTRUCT,
    expects=EXPECTED,
)

# GRU


def make_gru(
    us: Sequence[Any],
    cn: Any = None,
    reset: str = "after",
    update: str = "z h + (1 − z) n",
    gates: tuple[Formula, ...] = (sigmoid_of, sigmoid_of, np.tanh),
    transposes: bool = False,
    has_bias: bool = True,
    order: str = "rzn",
) -> Advance:
    us = turn_weights(us, transposes)
    bias = cn if has_bias else None

    def advance(products: Sequence[Any], h: Any) -> Any:
        own = {
            one: (products["rzn".index(other)], us["rzn".index(other)]) for one, other in zip("rzn", order, strict=True)
        }
        (pr, ur), (pz, uz), (pn, un) = own.values()
        r, z = gates[0](pr + h @ ur), gates[1](pz + h @ uz)
        n = gates[2](
            pn
            + {
                "after": lambda: r * with_bias(h @ un, bias),
                "before": lambda: with_bias((r * h) @ un, bias),
                "beside": lambda: with_bias(r * (h @ un), bias),
                "": lambda: with_bias(h @ un, bias),
            }[reset]()
        )
        return (1 - z) * n + z * h if update.startswith("z h") else z * n + (1 - z) * h

    return advance


def gru_states(**options: Any) -> Formula:
    return recurrent("rzn", make_gru, "cn", **options)


GRU = Definition(
    "a GRU: reset and update gates, and a candidate state, over the tokens",
    {**INPUTS, **gate_arguments("rzn"), "h0": Argument("... H", STATE)},
    {"products": gate_products("rzn"), "states": gru_states(), "output": lambda states: states},
    {**SIZES, "G": 15},
    cases_of("rzn"),
    "... T H",
    (
        *shared_slips("rzn", gru_states),
        Slip(RESETS["after"]["beside"], {"states": gru_states(reset="beside")}),
        Slip(RESETS["after"][""], {"states": gru_states(reset="")}),
        Slip(
            "the gates have the activation tanh, not sigmoid", {"states": gru_states(gates=(np.tanh, np.tanh, np.tanh))}
        ),
        Slip("the candidate has the activation sigmoid, not tanh", {"states": gru_states(gates=(sigmoid_of,) * 3)}),
        Slip("the candidate is not activated", {"states": gru_states(gates=(sigmoid_of, sigmoid_of, IDENTITY))}),
        Slip("the gates are not activated", {"states": gru_states(gates=(IDENTITY, IDENTITY, np.tanh))}),
        Slip("the reset gate and the update gate are exchanged", {"states": gru_states(order="zrn")}),
        Slip("the reset gate and the candidate are exchanged", {"states": gru_states(order="nzr")}),
        Slip("the update gate and the candidate are exchanged", {"states": gru_states(order="rnz")}),
    ),
    {
        "gates": orders_of("rzn", {"zrn": "ONNX, Keras"}),
        "weights": layouts("rzn"),
        **CONVENTIONS,
        "reset": {
            "after": Way(),
            "before": Way(RESETS["after"]["before"], steps={"states": gru_states(reset="before")}),
        },
        "update": {
            "keeps": Way(),
            "replaces": Way("h′ = z n + (1 − z) h", steps={"states": gru_states(update="z n + (1 − z) h")}),
        },
    },
    "gru GRU gru_forward run_gru gru_layer",
    construct=CONSTRUCT,
    expects=f"{EXPECTED}; or with the weights of each gate: wr, wz, wn, ur, …, br, …",
)

# LSTM


def make_lstm(
    us: Sequence[Any],
    order: str = "ifgo",
    gates: Formula = sigmoid_of,
    candidate: Formula = np.tanh,
    activation: Formula = np.tanh,
    ungated: str = "",
    coupled: bool = False,
    shift: float = 0.0,
    keeps_cell: bool = True,
    transposes: bool = False,
) -> Advance:
    us = turn_weights(us, transposes)

    def advance(products: Sequence[Any], state: Any) -> Any:
        h, c = state
        sums = {one: products[at] + h @ us[at] for at, one in enumerate("ifgo")}
        sums = {one: sums[other] for one, other in zip("ifgo", order, strict=True)}
        i, f, o = (1.0 if one in ungated else gates(sums[one] + shift * (one == "f")) for one in "ifo")
        f = 1 - i if coupled else f
        cell = f * c * keeps_cell + i * candidate(sums["g"])
        return o * activation(cell), cell

    return advance


def lstm_states(**options: Any) -> Formula:
    return recurrent("ifgo", make_lstm, "c0", **options)


def exchanged(first: str, second: str) -> str:
    """The letters of an LSTM with two of them exchanged."""
    return "ifgo".translate(str.maketrans(first + second, second + first))


GATES = {"i": "the input gate", "f": "the forget gate", "g": "the candidate", "o": "the output gate"}
LSTM = Definition(
    "an LSTM: input, forget and output gates, and a cell state, over the tokens",
    {
        **INPUTS,
        **gate_arguments("ifgo"),
        "h0": Argument("... H", STATE.replace(" hx", "")),
        "c0": Argument("... H", "c0 c_0 initial_cell_state initial_cell c_prev cell prev_c c_init"),
    },
    {"products": gate_products("ifgo"), "states": lstm_states(), "output": lambda states: states},
    {**SIZES, "G": 20},
    (*cases_of("ifgo"), Case("initial cell state", needs=("h0", "c0"))),
    "... T H",
    (
        *shared_slips("ifgo", lstm_states),
        *(
            Slip(f"{GATES[one]} and {GATES[other]} are exchanged", {"states": lstm_states(order=exchanged(one, other))})
            for one, other in ("if", "ig", "io", "fg", "fo", "go")
        ),
        Slip("the gates have the activation tanh, not sigmoid", {"states": lstm_states(gates=np.tanh)}),
        Slip("the candidate has the activation sigmoid, not tanh", {"states": lstm_states(candidate=sigmoid_of)}),
        Slip(
            "sigmoid and tanh are exchanged in all gates", {"states": lstm_states(gates=np.tanh, candidate=sigmoid_of)}
        ),
        Slip("the candidate is not activated", {"states": lstm_states(candidate=IDENTITY)}),
        Slip("the cell state is not activated before the output gate", {"states": lstm_states(activation=IDENTITY)}),
        Slip(
            "the cell state has the activation sigmoid (expected tanh) before the output gate",
            {"states": lstm_states(activation=sigmoid_of)},
        ),
        *(Slip(f"{GATES[one]} is not applied", {"states": lstm_states(ungated=one)}) for one in "ifo"),
        Slip("the forget gate is 1 − the input gate", {"states": lstm_states(coupled=True)}),
        Slip("1 is added to the sum of the forget gate", {"states": lstm_states(shift=1.0)}),
        Slip(
            "the cell state is not carried: it begins with 0 at every token", {"states": lstm_states(keeps_cell=False)}
        ),
        Slip(
            "the cell state is taken for the hidden state, which the next token reads",
            {"states": lstm_states(ungated="o", activation=IDENTITY)},
        ),
    ),
    {
        "gates": orders_of("ifgo", {"ifog": "CS231n", "iofg": "ONNX", "igfo": "TensorFlow 1", "figo": "d2l"}),
        "weights": layouts("ifgo"),
        **CONVENTIONS,
    },
    "lstm LSTM lstm_forward run_lstm lstm_layer",
    construct=CONSTRUCT,
    expects=f"{EXPECTED}, c0; or with the weights of each gate: wi, wf, wg, wo, ui, …, bi, …",
)

DEFINITIONS = {"rnn": RNN, "gru": GRU, "lstm": LSTM}
