"""attnkit rollout: how much of each input token is in each state."""

import re
import warnings
from typing import Annotated

import typer

from attnkit import options
from attnkit.cli.calls import tool
from attnkit.cli.stage import Stage, read_records
from attnkit.cli.text_input import trace_of_text
from attnkit.cli.tool import Records
from attnkit.errors import AttnkitNote, DataError, UsageError
from attnkit.interpret.head_scores import read_weights
from attnkit.model.formulas.head_scores import roll_out
from attnkit.model.parameters import MIXERS
from attnkit.records import Array, Record, Tensor, join_names

SELF_WEIGHTS = re.compile(r"(encoder|decoder)\.(0|[1-9][0-9]{0,8})\.self\.weights(\..+)?", re.ASCII)
SINK, SINK_TOKENS = 0.9, 4  # the share of the first token, and the tokens of a text, above which a note says so


def self_weights(record: Record, layers: str = "") -> dict[str, Array]:
    """The weights of self-attention of a trace, each (H, T, T) or (B, H, T, T).

    layers  A:B, the layers A to B - 1; "": all, from layer 0 on

    DataError if there are none, or only summaries, or those of an encoder and a decoder, if a layer is missing,
    and if the queries are not the keys.

    >>> import numpy as np
    >>> record = Record({f"decoder.{layer}.self.weights": np.eye(2)[None] for layer in (1, 0)})
    >>> [*self_weights(record)], [*self_weights(record, "1:")]
    (['decoder.0.self.weights', 'decoder.1.self.weights'], ['decoder.1.self.weights'])
    """
    stack, numbers = find_layers(record)
    first, last = select_range(layers, numbers[-1] + 1)
    names = {number: f"{stack}.{number}.self.weights" for number in range(first, last)}
    for number, name in names.items():
        mixer = next((one for one in MIXERS if one != "self" and f"{stack}.{number}.{one}.output" in record), "")
        if number not in numbers and mixer:
            problem = f"layer {number} mixes its tokens without weights of attention ({stack}.{number}.{mixer})"
            raise DataError(f"{problem}, which a rollout multiplies; --layers A:B leaves it out")
        if number not in numbers:
            hint = f"; --layers {numbers[0]}: begins there" if number < numbers[0] and not layers else ""
            raise DataError(f"no {name} (it has the weights of layers {join_names([*map(str, numbers)])}){hint}")
    weights = {name: read_square(record, name) for name in names.values()}
    shape = record[names[first]].shape
    for name, array in weights.items():
        if array.shape[:-3] + array.shape[-2:] != shape[:-3] + shape[-2:]:
            raise DataError.about(name, f"{array.shape}: expected the tokens of {names[first]} {shape}")
    return weights


def find_layers(record: Record) -> tuple[str, list[int]]:
    """The stack of a trace, and the sorted numbers of its layers with weights."""
    matches = [match for match in map(SELF_WEIGHTS.fullmatch, record) if match]
    layers = sorted((match[1], int(match[2])) for match in matches if not match[3])
    if not layers and matches:
        raise DataError(f"{matches[0][0]} is a summary of the weights; --weights full keeps them all")
    if not layers:
        keeps = "encode or decode --trace FILE, or encode --keep '*.self.weights', keeps them"
        raise DataError(f"no weights of self-attention (it has {join_names(record.tensors, 4)}); {keeps}")
    stack = layers[0][0]
    if stack != layers[-1][0]:
        keeps = "`attnkit show FILE --only 'encoder.*' -f npz` keeps those of the encoder"
        raise DataError.about("weights", f"of an encoder and of a decoder (expected those of one); {keeps}")
    return stack, [number for _, number in layers]


def select_range(text: str, count: int) -> tuple[int, int]:
    """The first layer of A:B and the one after the last.

    >>> select_range("", 6), select_range("2:", 6), select_range(":3", 6)
    ((0, 6), (2, 6), (0, 3))
    """
    start, _, end = text.partition(":")
    first, last = int(start or 0), int(end) if end else count
    if not first < last <= count:
        raise UsageError(f"{text}: the trace has layers 0:{count}", "--layers")
    return first, last


def read_square(record: Record, name: str) -> Array:
    weights = read_weights(record, name).reshape(record[name].shape)
    queries, keys = weights.shape[-2:]
    if queries != keys:
        raise DataError.about(
            name, f"{weights.shape}: {queries} queries for {keys} keys (expected as many: a whole text)"
        )
    return weights


def read_trace(stage: Stage, upstream: Records | None) -> Records:
    if (trace := trace_of_text(stage, "*.self.weights")) is not None:
        stage.parameters["model_"] = None  # the history of the trace names it
        return Records(None, iter([trace]))
    return read_records(stage, upstream, needs_no_input=False)


@tool(
    reader=read_trace,
    keep_names=True,
    without=("dtype",),
)
def rollout(
    record: Record,
    *,
    model_: options.Model = None,
    layers: Annotated[
        str,
        typer.Option(
            parser=options.parse_span,
            metavar="A:B",
            help="only layers A to B - 1, from the states that are the input of layer A",
        ),
    ] = "",
    residual: Annotated[
        float,
        typer.Option(min=0, max=1, help="share of the residual connection in each layer, beside the mean of its heads"),
    ] = 0.5,
) -> Record:
    """Multiply the attention of all layers: each token's share in each last state.

    The input is a trace, or a record with the weights of self-attention of every layer of an encoder or decoder, or a
    text of several words, which --model reads now. Each layer is A = 0.5 W + 0.5 I, with W the mean of its heads and I
    the residual connection, each row divided by its sum; x is the product of all layers, the last one first: attention
    rollout (Abnar and Zuidema 2020). A row is a token's last state, a column an input token, and each row has the sum
    1. The rest of the record stays.

    \b
    Examples:
      attnkit rollout --model DIR "The cat sat"
      attnkit encode --model DIR "The cat sat" --trace run.npz -o states.npz
      attnkit rollout run.npz --only x | attnkit show --heatmap
    """
    if model_ is not None:
        raise UsageError("reads a text of several words; a trace needs no model", "--model")
    weights = self_weights(record, layers)
    first = next(iter(weights))
    axes = record.tensors[first].axes or ("batch", "head", "query", "key")[-weights[first].ndim :]
    x = roll_out([*weights.values()], residual)
    if x.shape[-1] > SINK_TOKENS and (share := float(x[..., 1:, 0].mean())) > SINK:
        note = f"{share:.0%} of all tokens is the first token, on which most heads rest; heads shows which do not"
        warnings.warn(note, AttnkitNote, stacklevel=2)
    layer = f"{1 - residual:g} · mean of the heads + {residual:g} · I"
    formula = f"product of {len(weights)} layers {layer}" if len(weights) > 1 else layer
    return record.with_tensors({"x": Tensor(x, (*axes[:-3], *axes[-2:]), formula=formula)})
