"""Trace, patch and ablate the intermediates of a run by name.

A name is LAYER.INTERMEDIATE, such as decoder.0.self.weights: the layers are those of model/config.py, the
intermediates those that an operator passes to its hook; intermediates.py has their axes.
"""

import fnmatch
from collections.abc import Callable, Mapping, Sequence

from attnkit import model
from attnkit.errors import UsageError, suggest
from attnkit.inputs import intermediates
from attnkit.interpret.edits import OF_TEXT, OF_TOKENS, Edit, PassTokens
from attnkit.model.intermediates import ATTENTION, INTERMEDIATES, axes_of
from attnkit.records import Array, Labels, Record, Tensor, join_names, row_labels


class Tracer:
    """The hooks of a run: keep, replace and ablate intermediates.

    patterns  flag -> the shell patterns of the names that it keeps; without any, none is kept
    edits     what is replaced or added to; several of one intermediate one after another
    weights   the summary saved in place of weights, as `model.parse_weight_summary` reads it; "full": the weights
    """

    def __init__(
        self, patterns: Mapping[str, tuple[str, ...]], edits: Sequence[Edit] = (), weights: str = "full"
    ) -> None:
        self.saved: dict[str, Array] = {}
        self._patterns = dict(patterns)
        self._edits: dict[str, list[Edit]] = {}
        for edit in edits:
            self._edits.setdefault(edit.name, []).append(edit)
        self._unused = {edit.target: edit for edit in edits}
        self._keeps_weights = weights == "full"
        self._names: set[str] = set()
        self.begin({})

    def begin(
        self,
        labels: Mapping[str, Labels],
        length: int | Callable[[], int] | None = None,
        prompt: int | None = None,
        texts: Sequence[slice] = (),
    ) -> None:
        """Begin the passes of one text, or the only pass of an input.

        labels  axis -> the words along it, which may be indices of an edit
        length  of the text, up to the last token of the pass: a function where it grows; every row is edited alike
        prompt  how many of its tokens would be those of a first pass, if this one has more
        texts   of a batch, where each row has its tokens between the padding: an edit applies to each text as if it
                were alone
        """
        self._labels = labels
        self._length, self._prompt, self._texts = length, prompt, texts
        self._first: dict[str, PassTokens] = {}

    def visit(self, name: str) -> Callable[[Array], Array] | None:
        """Hook of an intermediate; None if it is neither kept nor edited."""
        self._names.add(name)
        is_hooked = name in self._edits or self.wants(name)
        return (lambda array: self._apply(name, array)) if is_hooked else None

    def wants(self, name: str, flag: str = "") -> bool:
        """Whether a pattern of that flag, or of any, keeps an intermediate.

        A pattern of weights keeps their summaries.
        """
        patterns = [one for of, many in self._patterns.items() if flag in ("", of) for one in many]
        weights, dot, _ = name.partition(".weights.")
        names = [name] if dot or self._keeps_weights or not name.endswith(".weights") else []
        names += [f"{weights}.weights"] if dot else []
        return any(fnmatch.fnmatchcase(each, pattern) for each in names for pattern in patterns)

    def check(self) -> None:
        """Raise UsageError for an edit or a pattern that fits no intermediate or cell."""
        for edit in self._unused.values():
            if edit.name not in self._names:
                near = suggest(edit.name, sorted(self._names)) or f" (it has {join_names(sorted(self._names), 4)})"
                raise UsageError(f"the run has no intermediate {edit.name!r}{near}", edit.flag)
            if edit.name not in self._first:  # of a picture before the text
                raise UsageError(f"{edit.target} selects nothing", edit.flag)
            first = self._first[edit.name]
            tokens = {at for axis, at in zip(first.axes, first.offsets(), strict=True) if axis in OF_TOKENS}
            places = f"positions {max(tokens)} to {(self._size() or first.size) - 1}" if tokens else f"{first.shape}"
            raise UsageError(f"{edit.target} selects nothing: the run computes {places}", edit.flag)
        for flag, pattern in ((flag, one) for flag, patterns in self._patterns.items() for one in patterns):
            if not fnmatch.filter({*self._names, *self.saved}, pattern):
                near = suggest(pattern, sorted(self._names)) or f" (it has {join_names(sorted(self._names), 4)})"
                raise UsageError(f"{pattern!r} matches no intermediate of this run{near}", flag)

    def record(
        self, tokens: Labels | None, source: Labels | None = None, keys: Labels | None = None, flag: str = ""
    ) -> Record:
        """Record of the intermediates kept, in the order of the run.

        keys  the tokens of the keys, those of a KV cache among them, where they are not `tokens`
        flag  the flag that keeps them; "": all of them
        """
        arrays = {name: array for name, array in self.saved.items() if self.wants(name, flag)}
        is_batch = tokens is not None and len(tokens) > 0 and not isinstance(tokens[0], str)
        tensors = {name: Tensor(array, _axes_of(name, array, is_batch)) for name, array in arrays.items()}
        return Record(tensors, axis_labels(tokens, source, keys)).select([*tensors])

    def _apply(self, name: str, array: Array) -> Array:
        is_batch = bool(self._texts) and intermediate_axes(name, array.ndim)[0] == "batch"
        for edit in self._edits.get(name, ()):
            changed = self._edit_texts(edit, array) if is_batch else self._edit(edit, array)
            if changed is not None:
                array = changed
                self._unused.pop(edit.target, None)
        if self.wants(name):
            self.saved[name] = array
        return array

    def _edit(self, edit: Edit, array: Array) -> Array | None:
        """Edit an intermediate; None if this pass computes none of the cells."""
        axes, shape = intermediate_axes(edit.name, array.ndim), array.shape
        if self._length is None:
            size = next((size for axis, size in zip(axes, shape, strict=True) if axis in OF_TOKENS), 0)
            now = PassTokens(shape, axes, size, self._labels)
        else:
            rows = int(axes[0] == "batch")
            now = PassTokens(shape[rows:], axes[rows:], self._size(), self._labels)
        first = self._first.setdefault(edit.name, now if self._prompt is None else now.until(self._prompt))
        return edit.apply(array, now, first, callable(self._length))

    def _edit_texts(self, edit: Edit, array: Array) -> Array | None:
        """Edit an intermediate (B, …) in every text, counted from its first token.

        None if no text has the cells. Values with an axis of texts, for a whole intermediate, are a text's each.
        """
        axes = intermediate_axes(edit.name, array.ndim)[1:]
        is_each = not edit.part and edit.values.shape == array.shape
        result = None
        for row, tokens in enumerate(self._texts):
            cells: tuple[int | slice, ...] = (row, *(tokens if axis in OF_TEXT else slice(None) for axis in axes))
            part, labels = array[cells], {axis: row_labels(words, row) for axis, words in self._labels.items()}
            named = {axis: words[tokens] for axis, words in labels.items() if words}
            now = PassTokens(part.shape, axes, tokens.stop - tokens.start, named)
            self._first.setdefault(edit.name, now)
            changed = (edit._replace(values=edit.values[cells]) if is_each else edit).apply(part, now, now, False)
            if changed is not None:
                result = array.copy() if result is None else result
                result[cells] = changed
        return result

    def _size(self) -> int:
        return self._length() if callable(self._length) else self._length or 0


def _axes_of(name: str, array: Array, is_batch: bool) -> tuple[str, ...]:
    """The axes of an intermediate: a head of whole texts computes one row of each."""
    axes = intermediate_axes(name, array.ndim)
    if name.startswith("head.") and array.ndim > 1 and array.shape[-2] == 1:
        return (*axes[:-2], "one", axes[-1])
    return ("batch", axes[-1]) if name == "logits" and is_batch and array.ndim == 2 else axes


def axis_labels(tokens: Labels | None, source: Labels | None = None, keys: Labels | None = None) -> dict[str, Labels]:
    """Labels of the axes of intermediates.

    >>> axis_labels(["a"], keys=["b", "a"])
    {'token': ['a'], 'query': ['a'], 'key': ['b', 'a']}
    """
    labels = {"token": tokens, "query": tokens, "key": keys or tokens, "source": source}
    return {axis: words for axis, words in labels.items() if words}


OF_PROBE = {"token": "probe", "query": "probe", "source": "key"}  # axes where a learned query attends to all tokens


def head_counts(config: "model.Config", steps: "Sequence[model.Step]") -> dict[str, int]:
    """Number of heads of each attention layer among some steps of a model."""
    layers = [step.layer for step in steps if step.attends]
    return {layer: config.stack(model.parse_layer_name(layer)[0]).heads for layer in layers}


RECALL = INTERMEDIATES["recall"]


def intermediate_axes(name: str, rank: int) -> tuple[str, ...]:
    """Axis names of an intermediate of this rank.

    >>> intermediate_axes("encoder.0.self.weights", 4), intermediate_axes("decoder.0.cross.weights.received", 2)
    (('batch', 'head', 'query', 'key'), ('head', 'source'))
    >>> intermediate_axes("modules.1", 2), intermediate_axes("vector.cross.weights", 3)
    (('batch', 'model'), ('head', 'probe', 'key'))
    >>> intermediate_axes("decoder.0.recall.q", 3), intermediate_axes("decoder.0.recall.gated", 3)
    (('head', 'token', 'key_dim'), ('batch', 'token', 'model'))
    """
    layer, dot, part = name.rpartition(".weights.") if ".weights." in name else name.rpartition(".")
    part = f"weights.{part}" if dot == ".weights." else part
    if layer.endswith(".recall"):
        axes = (RECALL[part].axes if part in RECALL else None) or ("token", "model")
    elif part in ATTENTION:
        axes = intermediates.attention_axes(part, "source" if layer.endswith(".cross") else "key")
    else:
        axes = ("model",) if layer == "modules" else axes_of(part) or ("token", "model")
    if name.startswith("vector."):
        axes = tuple(OF_PROBE.get(axis, axis) for axis in axes)
    if rank < len(axes):  # one class for a whole image
        axes = axes[-rank:]
    return ("batch", *axes) if rank > len(axes) else axes
