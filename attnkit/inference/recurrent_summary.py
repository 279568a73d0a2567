"""Summarize the configuration of a recurrent model: its stacks, its attention, how its decoder begins and ends."""

from attnkit.errors import counted
from attnkit.model import RecurrentConfig
from attnkit.model.recurrent_config import RecurrentStack

CELL_NAMES = {
    "tanh": "tanh cells",
    "relu": "ReLU cells",
    "gru": "GRU cells, reset gate after the product",
    "gru-reset-before": "GRU cells, reset gate before the product",
    "lstm": "LSTM cells",
}
BRIDGES = {
    "none": "zeros",
    "identity": "the last states of the encoder",
    "tanh": "tanh(the last states of the encoder · W + b)",
}


def recurrent_facts(config: RecurrentConfig) -> dict[str, str]:
    """Return the facts of a recurrent model by name, "" for what it does not have.

    >>> decoder = RecurrentStack(1, 1, 4, 1, 4, vocab=9, embedding=3, widths=(4,))
    >>> recurrent_facts(RecurrentConfig("lstm", 4, decoder=decoder))["decoder"]
    '1 layer of LSTM cells, width 4, embeddings of 3, vocabulary 9'
    """
    rows = {name: describe_stack(config.recurrent_stack(name)) for name in config.stacks}
    return rows | {"attention": attention_text(config), "readout": readout_text(config), "bridge": bridge_text(config)}


def describe_stack(stack: RecurrentStack) -> str:
    """Return the sizes of a stack."""
    widths = list(dict.fromkeys(stack.widths))
    width = f"width {widths[0]:,}" if len(widths) == 1 else "widths " + ", ".join(f"{one:,}" for one in stack.widths)
    parts = [
        f"{counted(stack.layers, 'layer')} of {CELL_NAMES[stack.cell]}",
        width,
        "both directions" if stack.is_bidirectional else "",
        f"embeddings of {stack.embedding:,}",
        f"vocabulary {stack.vocab:,}",
    ]
    return ", ".join(filter(None, parts))


def attention_text(config: RecurrentConfig) -> str:
    """Return the score of attention, and the state that it asks with."""
    decoding = config.decoding
    if decoding.score == "none":
        return ""
    state = "before" if decoding.asks_before else "after"
    score = f"additive of width {decoding.score_width:,}" if decoding.score == "additive" else decoding.score
    return f"{score}, with the state {state} the token" + ", input feeding" * decoding.input_feeding


def readout_text(config: RecurrentConfig) -> str:
    """Return what the head reads, where that is not the state itself."""
    if not config.decoding.readout_width:
        return ""
    attends = config.decoding.score != "none"
    before = "[state before; embedding; context]"
    parts = before if config.decoding.asks_before else "[context; state]" if attends else "[state]"
    return f"tanh({parts} W + b), width {config.width:,}"


def bridge_text(config: RecurrentConfig) -> str:
    """Return what the decoder begins with."""
    return "" if config.encoder is None else f"the decoder begins with {BRIDGES[config.decoding.bridge]}"
