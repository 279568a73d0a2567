"""attnkit rollout: how much of each input token is in each state, by the attention of all layers."""

from typing import Annotated

from attnkit.cli import options
from attnkit.cli.tool import tool
from attnkit.inference.trace_layers import self_weights
from attnkit.model.rollout import roll_out
from attnkit.record import Record, Tensor


@tool(keep_names=True, without=("dtype",))
def rollout(
    record: Record,
    *,
    layers: Annotated[str, options.span("only layers A to B - 1, from the states that are the input of layer A")] = "",
    residual: Annotated[
        float,
        options.number("share of the residual connection in each layer, beside the mean of its heads", least=0, most=1),
    ] = 0.5,
) -> Record:
    """Multiply the attention of all layers: how much of each input token is in each token's last state.

    The input is a trace, or a record with the weights of self-attention of every layer of an encoder or decoder. Each
    layer is A = 0.5 W + 0.5 I, with W the mean of its heads and I the residual connection, each row divided by its
    sum; x is the product of all layers, the last one first: attention rollout (Abnar and Zuidema 2020). A row is a
    token's last state, a column an input token, and each row has the sum 1. The rest of the record stays.

    \b
    Examples:
      attnkit encode --model DIR "The cat sat" --keep '*.self.weights' | attnkit rollout
      attnkit encode --model DIR "The cat sat" --trace run.npz -o states.npz
      attnkit rollout run.npz --only x | attnkit show --heatmap
    """
    weights = self_weights(record, layers)
    first = next(iter(weights))
    axes = record.tensors[first].axes or ("batch", "head", "query", "key")[-weights[first].ndim :]
    x = roll_out([*weights.values()], residual)
    layer = f"{1 - residual:g} · mean of the heads + {residual:g} · I"
    formula = f"product of {len(weights)} layers {layer}" if len(weights) > 1 else layer
    return record.with_tensors({"x": Tensor(x, (*axes[:-3], *axes[-2:]), formula=formula)})
