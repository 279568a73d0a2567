"""Keys and published names that the families of recurrent models share."""

from attnkit.checkpoints.mapping import Specs, TensorSpec
from attnkit.model.recurrent_config import RecurrentStack

CELLS = {"tanh": "tanh", "relu": "relu", "gru": "gru", "gru-reset-before": "gru-reset-before", "lstm": "lstm"}
PARTS = {"input": "weight_ih", "hidden": "weight_hh", "input_bias": "bias_ih", "hidden_bias": "bias_hh"}


def recurrent_stack(
    cell: str, embedding: int, widths: tuple[int, ...], vocab: int, is_bidirectional: bool = False
) -> RecurrentStack:
    """A stack of recurrent layers as a StackConfig.

    >>> recurrent_stack("gru", 8, (16, 16), 100, is_bidirectional=True).output_width(1)
    32
    """
    width = widths[-1] * (2 if is_bidirectional else 1)
    return RecurrentStack(
        layers=len(widths),
        heads=1,
        hidden=widths[-1],
        kv_heads=1,
        head_dim=width,
        vocab=vocab,
        cell=cell,
        embedding=embedding,
        widths=widths,
        is_bidirectional=is_bidirectional,
    )


def map_cell(prefixes: tuple[str, ...], layer: str = "l{n}", suffix: str = "") -> dict[str, TensorSpec]:
    """Map one direction of a layer to the names of torch.nn.LSTM.

    >>> map_cell(("rnn.",), suffix="_reverse")["hidden_bias_reverse"].names
    ('rnn.bias_hh_l{n}_reverse',)
    """
    return {
        name + suffix: TensorSpec(tuple(f"{prefix}{published}_{layer}{suffix}" for prefix in prefixes))
        for name, published in PARTS.items()
    }


def map_layer(prefix: str, is_bidirectional: bool) -> Specs:
    """Map a layer of torch.nn.GRU, LSTM or RNN, of one direction or of both."""
    reverse = map_cell((prefix,), suffix="_reverse") if is_bidirectional else {}
    return map_cell((prefix,)) | reverse
