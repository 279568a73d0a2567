"""Project hidden states to the vocabulary (the LM head) and choose the next token from the logits."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.model.dtypes import quiet
from attnkit.record import Array, Record, shared_labels

SAMPLING_FLAGS = ("temperature", "top_k", "top_p", "min_p", "seed")


class HeadOutput(NamedTuple):
    """The hidden states as a record, the logits (..., N), the names of their columns, and how ids decode to text.

    axis  what the columns are: words of the vocabulary, or labels of a classifier
    """

    record: Record
    logits: Array
    words: list[str]
    join: Callable[[Sequence[int]], str] | None
    axis: str = "vocab"


class WordChoice(NamedTuple):
    """The options of choosing a word among logits, by the names of the flags; None where one is not set."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether words are drawn at random, not the most probable ones chosen."""
        return any(getattr(self, name) is not None for name in SAMPLING_FLAGS)

    @property
    def tau(self) -> float:
        """The temperature, 1 where it is not set."""
        return self.temperature or 1.0

    def filter(self, logits: Array) -> Array:
        """Apply temperature, top-k, top-p and min-p to logits (..., V) -> (..., V)."""
        for _, apply in model.sampling_filters(self.tau, self.top_k, self.top_p, self.min_p):
            logits = apply(logits)
        return logits

    def choose(self, filtered: Array) -> Array:
        """Choose one id at each position of filtered logits: (..., V) -> (...)."""
        if self.is_sampled:
            return model.sample_word(filtered, np.random.default_rng(self.seed or 0))
        return model.greedy(filtered)

    @property
    def limits(self) -> str:
        """The options that leave words out, as text: top-k 2, min-p 0.1; "" for none."""
        limits = [("top-k", self.top_k), ("top-p", self.top_p), ("min-p", self.min_p)]
        return ", ".join(f"{name} {value:g}" for name, value in limits if value)

    def formula(self) -> str:
        """Return the formula of the probabilities.

        >>> WordChoice(temperature=0.5, top_k=2, min_p=0.1).formula()
        'softmax(logits / 0.5) over the words of top-k 2, min-p 0.1'
        """
        softmax = "softmax(logits" + (f" / {self.tau:g})" if self.tau != 1 else ")")
        return softmax + (f" over the words of {self.limits}" if self.limits else "")

    def step_formulas(self, logits: str) -> dict[str, str]:
        """Return the formula of each step from logits, whose own is `logits`, to the probabilities.

        >>> [*WordChoice(temperature=2, top_k=1).step_formulas("x tableᵀ").items()][1:3]
        [('scaled', 'logits / 2'), ('filtered', 'scaled, −∞ but for the words of top-k 1')]
        """
        steps = {"logits": logits}
        if self.tau != 1:
            steps["scaled"] = f"logits / {self.tau:g}"
        if self.limits:
            steps["filtered"] = f"{[*steps][-1]}, −∞ but for the words of {self.limits}"
        return steps | {"probs": f"softmax({[*steps][-1]})"}


@quiet
def choose_words(logits: Array, choice: WordChoice, with_ids: bool) -> dict[str, Array]:
    """Return logits (..., V), their probs (..., V) and, if requested, the ids (...) chosen.

    The logits may be finite or not.
    """
    filtered = choice.filter(logits)
    arrays = {"logits": logits, "probs": model.probabilities(filtered)}
    return arrays | ({"ids": choice.choose(filtered)} if with_ids else {})


@quiet
def filtering_steps(logits: Array, choice: WordChoice) -> dict[str, Array]:
    """Return the steps from logits (..., V) to their probabilities: `scaled` and `filtered`, both (..., V)."""
    scaled = logits / choice.tau
    return {"scaled": scaled, "filtered": np.where(np.isneginf(choice.filter(logits)), -np.inf, scaled)}


def find_output_matrix(
    record: Record, table: Record | None, params: Mapping[str, Array] | None
) -> tuple[Array, Array | None, list[str], str]:
    """Return the output matrix (D, N), its bias, the words of its columns, and its formula."""
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


def round_to_dtype(numbers: Array, dtype: np.dtype[Any], name: str = "") -> Array:
    """Return numbers in the dtype of the result; warn, under the tensor's name, where one exceeds its range."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(dtype, copy=False)
    if name and rounded is not numbers and (overflow := np.isinf(rounded) & np.isfinite(numbers)).any():
        at = "".join(f"[{i}]" for i in np.argwhere(overflow)[0])
        message = f"{name} exceed the range of {dtype} at {at} and are written as infinity; --dtype float32 avoids this"
        warnings.warn(message, AttnkitWarning, stacklevel=2)
    return rounded
