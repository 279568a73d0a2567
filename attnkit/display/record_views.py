"""What is shown of a record: each tensor that was computed, with labels and masks."""

import numpy as np

from attnkit.display.blocks import ResultView, Text
from attnkit.display.numbers import are_probabilities
from attnkit.display.slicing import TensorView
from attnkit.display.style import DEFAULT_STYLE, Style
from attnkit.records import Array, Record


def computed_view(record: Record, style: Style) -> ResultView:
    """View each tensor that a tool computed, or x; of an explanation its words."""
    if text := getattr(record, "text", ""):
        return ResultView([Text(text)])
    return ResultView([tensor_view(record, name, style) for name in computed_names(record)])


def computed_names(record: Record) -> list[str]:
    """The names of the tensors that a tool computed; x if it computed none."""
    computed = [name for name, one in record.tensors.items() if one.formula]
    computed.sort(key=lambda name: name == "x")
    return computed or (["x"] if "x" in record else list(record))


def tensor_view(record: Record, name: str, style: Style = DEFAULT_STYLE, part: str = "") -> TensorView:
    """The view of a tensor or a slice of it, with its labels and masked cells."""
    array, axes = record[name], known_axes(record, name)
    labels = [record.labels_of(name, dimension) for dimension in range(array.ndim)]
    title = f"{name}[{part}]" if part else name
    mask = unmasked_cells(record, name)
    formula, words = record.tensor(name).formula, record.words_of(name)
    return TensorView(title, array, axes, labels, style, formula, mask, words=words)


def known_axes(record: Record, name: str) -> tuple[str, ...]:
    """The names of the axes of a tensor, or their numbers if it has none.

    >>> weights = Record({"w": np.zeros((2, 3))})
    >>> known_axes(weights, "w"), known_axes(weights.with_tensors({"x": np.zeros((2, 3))}), "x")
    (('axis0', 'axis1'), ('token', 'model'))
    """
    one = record.tensor(name)
    is_unnamed = one.axes is None and "x" not in record
    return tuple(f"axis{at}" for at in range(one.array.ndim)) if is_unnamed else one.axis_names()


def unmasked_cells(record: Record, name: str) -> Array | None:
    """Which scores or weights over queries are not masked, or None.

    name  of a tool's result, or of an intermediate in a trace: weights, decoder.0.self.weights
    """
    layer, _, kind = name.rpartition(".")
    if name == "x" and "head" in record.axes_of(name):
        kind = _kind_of_scores(record[name])
    if kind not in ("masked", "weights") or "query" not in record.axes_of(name):
        return None
    if kind == "weights" and record[name].dtype == np.float16:  # where a small weight is zero too
        masked = record.get(f"{layer}.masked" if layer else "masked")
        return None if masked is None or masked.shape != record[name].shape else masked != -np.inf
    is_unmasked: Array = record[name] != (-np.inf if kind == "masked" else 0)
    return is_unmasked


def _kind_of_scores(x: Array) -> str:
    """Whether x of heads contains masked scores, weights, or neither.

    >>> _kind_of_scores(np.array([[1.0, -np.inf]])), _kind_of_scores(np.array([[0.0, -np.inf]]))
    ('masked', '')
    """
    if np.isneginf(x).any():
        return "masked" if x[np.isfinite(x)].any() else ""  # a mask is 0 or -inf
    return "weights" if are_probabilities(x) else ""
