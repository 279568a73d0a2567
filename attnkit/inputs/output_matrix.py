"""The output matrix: a separate one, or the embedding table; and its logits."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnkit.errors import DataError, UsageError
from attnkit.records import Array, Record, shared_labels

if TYPE_CHECKING:
    from attnkit.model import Model


class OutputOperands(NamedTuple):
    """The operands of logits: hidden states, and the head of a model or a matrix.

    weight  (D, N), bias (N,): the matrix, without a model
    """

    record: Record
    logits: Array
    core: "Model | None" = None
    weight: Array | None = None
    bias: Array | None = None


class OutputLogits(NamedTuple):
    """The logits (..., N) of hidden states, with the names of their columns.

    axis      what the columns are: words of the vocabulary, or labels of a classifier
    function  from logits to probabilities: softmax, or sigmoid of columns that do not exclude each other
    """

    record: Record
    logits: Array
    words: list[str]
    join: Callable[[Sequence[int]], str] | None
    axis: str = "vocab"
    function: str = "softmax"


def find_output_matrix(
    record: Record, table: Record | None, params: Mapping[str, Array] | None
) -> tuple[Array, Array | None, list[str], str]:
    """The output matrix (D, N), its bias, the words of its columns, and its formula."""
    words = shared_labels(record.labels.get("vocab"))
    if params is not None:
        if "w" not in params or set(params) - {"w", "b"}:
            raise DataError(
                f"it has {', '.join(params) or 'nothing'} (expected w, and b if there is a bias)", "--params"
            )
        return params["w"], params.get("b"), words, "x W + b" if "b" in params else "x W"
    if table is not None:
        words = (shared_labels(table.labels_of("x", 0)) if table["x"].ndim == 2 else []) or words
        matrix = table["x"]
    elif "table" in record:
        matrix = record["table"]
    else:
        raise UsageError("the record has no table for the output matrix: --table FILE or --params FILE gives one")
    if matrix.ndim != 2:
        raise DataError(f"shape {matrix.shape} is not vocab × model", "--table")
    return matrix.T, None, words if len(words) == len(matrix) else [], "x tableᵀ"
