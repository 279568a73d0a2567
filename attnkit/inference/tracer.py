"""Trace, patch and ablate the intermediates of a model's run by name: the hooks of `--trace`, `--patch`, `--ablate`.

A name is LAYER.INTERMEDIATE, such as decoder.0.self.weights: the layers are those of model/config.py, the
intermediates those that an operator passes to its hook; intermediates.py has their axes.
"""

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence

from attnkit import formats, model
from attnkit.errors import DataError, UsageError, suggest
from attnkit.inference import intermediates
from attnkit.record import Array, Labels, Record, Tensor, join_names

HEADS = ".heads"  # suffix of the intermediate that holds the heads of a layer
HEAD_RANGE = re.compile(r"[0-9]{1,9}|[0-9]{0,9}:[0-9]{0,9}", re.ASCII)  # HEAD or A:B
INTERMEDIATE_AXES: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("hidden", "activated", "linear", "gated"), ("token", "hidden")
)
INTERMEDIATE_AXES |= {"logits": ("token", "vocab"), "pooler": ("model",)}
INTERMEDIATE_AXES |= dict.fromkeys(("bridge", "bridge_cell"), ("model",))
GATES = ("input_gate", "forget_gate", "candidate", "output_gate", "reset_gate", "update_gate", "cell")
INTERMEDIATE_AXES |= dict.fromkeys(GATES, ("token", "hidden"))


class Tracer:
    """The hooks of a run: keep, replace and ablate intermediates.

    patterns  flag -> the shell patterns of the names that it keeps; without any, none is kept
    patches   name -> the array that replaces that intermediate
    ablated   the heads to set to 0, as `parse_ablation` reads them
    weights   the summary saved in place of weights, as `model.parse_weight_summary` reads it; "full": the weights
    counts    attention layer -> its heads: UsageError for an ablated layer or head that is not among them
    """

    def __init__(
        self,
        patterns: Mapping[str, tuple[str, ...]],
        patches: Mapping[str, Array] | None = None,
        ablated: tuple[str, ...] = (),
        weights: str = "full",
        counts: Mapping[str, int] | None = None,
    ) -> None:
        self.saved: dict[str, Array] = {}
        self._patterns = dict(patterns)
        self._patches = dict(patches or {})
        self._ablated = parse_ablation(ablated)
        check_heads(self._ablated, counts or {})
        self._keeps_weights = weights == "full"
        self._names: set[str] = set()

    def visit(self, name: str) -> Callable[[Array], Array] | None:
        """Return the hook of an intermediate, None where it is neither kept, patched nor ablated."""
        self._names.add(name)
        is_hooked = name in self._patches or name in self._ablated or self.wants(name)
        return (lambda array: self._apply(name, array)) if is_hooked else None

    def wants(self, name: str, flag: str = "") -> bool:
        """Return whether an intermediate is kept, by that flag or by any; a pattern of weights keeps their summaries.

        flag  one of those of `patterns`
        """
        patterns = [one for of, many in self._patterns.items() if flag in ("", of) for one in many]
        weights, dot, _ = name.partition(".weights.")
        names = (
            [name, f"{weights}.weights"]
            if dot
            else [name]
            if self._keeps_weights or not name.endswith(".weights")
            else []
        )
        return any(fnmatch.fnmatchcase(each, pattern) for each in names for pattern in patterns)

    def check(self) -> None:
        """Raise UsageError for a patch or a pattern that fits no intermediate of the run."""
        for name in self._patches:
            if name not in self._names:
                near = suggest(name, sorted(self._names)) or f" (it has {join_names(sorted(self._names), 4)})"
                raise UsageError(f"the run has no intermediate {name!r}{near}", "--patch")
        for flag, pattern in ((flag, one) for flag, patterns in self._patterns.items() for one in patterns):
            if not fnmatch.filter({*self._names, *self.saved}, pattern):
                near = suggest(pattern, sorted(self._names)) or f" (it has {join_names(sorted(self._names), 4)})"
                raise UsageError(f"{pattern!r} matches no intermediate of this run{near}", flag)

    def record(
        self, tokens: Labels | None, source: Labels | None = None, keys: Labels | None = None, flag: str = ""
    ) -> Record:
        """Return the intermediates kept, in the order of the run, with their axes and labels.

        keys  the tokens of the keys, those of a KV cache among them, where they are not `tokens`
        flag  the flag that keeps them; "": all of them
        """
        arrays = {name: array for name, array in self.saved.items() if self.wants(name, flag)}
        tensors = {name: Tensor(array, intermediate_axes(name, array.ndim)) for name, array in arrays.items()}
        labels: dict[str, Labels] = {}
        for names, words in ((("token", "query"), tokens), (("key",), keys or tokens), (("source",), source)):
            labels |= {name: words for name in names if words}
        return Record(tensors, labels).select([*tensors])

    def _apply(self, name: str, array: Array) -> Array:
        if name in self._patches:
            patch = self._patches[name]
            if patch.shape != array.shape:
                raise DataError(f"shape {patch.shape} for {name} of shape {array.shape}", "--patch")
            array = formats.cast_array(patch, array.dtype.name)
        if name in self._ablated:
            array = array.copy()
            for heads in self._ablated[name]:
                array[..., heads, :, :] = 0
        if self.wants(name):
            self.saved[name] = array
        return array


def parse_ablation(ablated: Sequence[str]) -> dict[str, list[slice]]:
    """Return the heads to ablate, by the name of the intermediate that holds them.

    Each is LAYER, all its heads; LAYER:HEAD or LAYER:A:B, heads A to B - 1; or more heads of the layer before.

    >>> parse_ablation(("encoder.3.self:5", "7:9", "encoder.4.self"))
    {'encoder.3.self.heads': [slice(5, 6, None), slice(7, 9, None)], 'encoder.4.self.heads': [slice(None, None, None)]}
    """
    heads_of: dict[str, list[slice]] = {}
    layer = ""
    for text in ablated:
        heads = text
        if not HEAD_RANGE.fullmatch(text):
            layer, _, heads = (text if ":" in text else f"{text}::").partition(":")  # LAYER has all heads, `:`
        if not (layer and HEAD_RANGE.fullmatch(heads)):
            expected = "LAYER, LAYER:HEAD or LAYER:A:B, such as encoder.3.self:5"
            raise UsageError(f"expected {expected}, got {text!r}", "--ablate")
        chosen = parse_heads(heads)
        if chosen.stop is not None and chosen.stop <= (chosen.start or 0):
            raise UsageError(f"{text}: the range of heads is empty", "--ablate")
        heads_of.setdefault(f"{layer}{HEADS}", []).append(chosen)
    return heads_of


def parse_heads(text: str) -> slice:
    """Return the heads of HEAD, or of A:B, where either may be left out.

    >>> parse_heads("5"), parse_heads("7:9"), parse_heads(":")
    (slice(5, 6, None), slice(7, 9, None), slice(None, None, None))
    """
    start, colon, stop = text.partition(":")
    if not colon:
        return slice(int(start), int(start) + 1)
    return slice(int(start) if start else None, int(stop) if stop else None)


def head_counts(config: "model.Config", steps: "Sequence[model.Step]") -> dict[str, int]:
    """Return the number of heads of each attention layer among some steps of a model."""
    layers = [step.layer for step in steps if step.op == "attend"]
    return {layer: config.stack(model.parse_layer_name(layer)[0]).heads for layer in layers}


def check_heads(ablated: Mapping[str, Sequence[slice]], counts: Mapping[str, int]) -> None:
    """Raise UsageError for an ablated layer that is not in the run, or for a head that it lacks.

    ablated  as `parse_ablation` returns them
    counts   attention layer -> its heads
    """
    for name, chosen in ablated.items():
        layer = name.removesuffix(HEADS)
        if layer not in counts:
            near = suggest(layer, counts) or f" (it has {join_names(counts, 4)})"
            raise UsageError(f"the run has no attention layer {layer!r}{near}", "--ablate")
        beyond = max(max(heads.start or 0, (heads.stop or 0) - 1) for heads in chosen)
        if beyond >= counts[layer]:
            raise UsageError(f"{layer} has heads 0 to {counts[layer] - 1}, not {beyond}", "--ablate")


def intermediate_axes(name: str, rank: int) -> tuple[str, ...]:
    """Return the axis names of an intermediate of this rank.

    >>> intermediate_axes("encoder.0.self.weights", 4), intermediate_axes("decoder.0.cross.weights.received", 2)
    (('batch', 'head', 'query', 'key'), ('head', 'source'))
    """
    layer, dot, step = name.rpartition(".weights.") if ".weights." in name else name.rpartition(".")
    step = f"weights.{step}" if dot == ".weights." else step
    if step in intermediates.ATTENTION_AXES:
        axes = intermediates.attention_axes(step, "source" if layer.endswith(".cross") else "key")
    else:
        axes = INTERMEDIATE_AXES.get(step, ("token", "model"))
    if rank < len(axes):  # one class for a whole image
        axes = axes[-rank:]
    return ("batch", *axes) if rank > len(axes) else axes
