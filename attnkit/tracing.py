"""Looking into a run of a model: intermediates by name kept, replaced, or heads switched off."""

import fnmatch
from collections.abc import Callable, Mapping

from attnkit import options, tensors
from attnkit.errors import DataError, UsageError
from attnkit.tensors.record import Array, Labels, Record

QUERIES = {"q": ("head", "query", "head_dim"), "heads": ("head", "query", "head_dim")}
AXES: dict[str, tuple[str, ...]] = QUERIES | dict.fromkeys(
    ("hidden", "activated", "linear", "gated"), ("token", "hidden")
)
AXES |= {"logits": ("token", "vocab"), "pooler": ("model",)}
SQUARE = ("scores", "scaled", "capped", "masked", "weights")


class Tracer:
    """The visitor of a run.

    patterns  names to keep, as in a shell; () keeps none
    patches   name -> the array that takes the place of that intermediate
    ablated   layer -> the heads that are set to 0 there
    """

    def __init__(
        self, patterns: tuple[str, ...], patches: Mapping[str, Array] | None = None, ablated: tuple[str, ...] = ()
    ) -> None:
        self.kept: dict[str, Array] = {}
        self._patterns = patterns
        self._patches = dict(patches or {})
        self._ablated = heads_of(ablated)
        self._met: set[str] = set()

    def visit(self, name: str) -> Callable[[Array], Array] | None:
        """What to do at an intermediate: nothing, where nobody asks for it."""
        self._met.add(name)
        asked = name in self._patches or name in self._ablated or self.wants(name)
        return (lambda array: self._changed(name, array)) if asked else None

    def wants(self, name: str) -> bool:
        """Whether an intermediate is kept."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._patterns)

    def check(self) -> None:
        """UsageError for a name that the run did not come by."""
        for flag, names in (("--patch", self._patches), ("--ablate", self._ablated)):
            for name in names:
                if name not in self._met:
                    raise UsageError(
                        f"the run has no intermediate {name!r}{options.nearest(name, sorted(self._met))}", flag
                    )
        for pattern in self._patterns:
            if not fnmatch.filter(self._met, pattern):
                raise UsageError(f"{pattern!r} fits no intermediate of this run", "--trace-only")

    def record(self, tokens: Labels | None, source: Labels | None = None) -> Record:
        """The intermediates kept, in the order of the run, with the tokens of its axes."""
        axes = {name: axes_of(name, array.ndim) for name, array in self.kept.items()}
        labels: dict[str, Labels] = {}
        for names, found in ((("token", "query", "key"), tokens), (("source",), source)):
            labels |= {name: found for name in names if found}
        used = {axis for names in axes.values() for axis in names}
        return Record(self.kept, axes, {name: found for name, found in labels.items() if name in used})

    def _changed(self, name: str, array: Array) -> Array:
        if name in self._patches:
            patch = self._patches[name]
            if patch.shape != array.shape:
                raise DataError(f"shape {patch.shape} for {name} of shape {array.shape}", "--patch")
            array = tensors.convert(patch, array.dtype.name)
        if name in self._ablated:
            array = array.copy()
            for head in self._ablated[name]:
                if head >= array.shape[-3]:
                    layer = name.removesuffix(".heads")
                    raise DataError(f"{layer} has heads 0 to {array.shape[-3] - 1}, not {head}", "--ablate")
                array[..., head, :, :] = 0
        if self.wants(name):
            self.kept[name] = array
        return array


def heads_of(ablated: tuple[str, ...]) -> dict[str, list[int]]:
    """The heads to switch off by the name of the intermediate that holds them.

    >>> heads_of(("encoder.3.self:5", "encoder.3.self:0"))
    {'encoder.3.self.heads': [5, 0]}
    """
    found: dict[str, list[int]] = {}
    for text in ablated:
        layer, colon, head = text.rpartition(":")
        if not (colon and layer and head.isascii() and head.isdigit()):
            raise UsageError(f"expected LAYER:HEAD, such as encoder.3.self:5, got {text!r}", "--ablate")
        found.setdefault(f"{layer}.heads", []).append(int(head))
    return found


def axes_of(name: str, rank: int) -> tuple[str, ...]:
    """The axis names of an intermediate.

    >>> axes_of("encoder.0.self.weights", 4)
    ('batch', 'head', 'query', 'key')
    """
    *layer, last = name.split(".")
    over = "source" if layer[-1:] == ["cross"] else "key"
    if last in SQUARE:
        axes: tuple[str, ...] = ("head", "query", over)
    elif last in ("k", "v"):
        axes = ("head", over, "head_dim")
    else:
        axes = AXES.get(last, ("token", "model"))
    if rank < len(axes):  # one class for a whole image
        axes = axes[-rank:]
    return ("batch", *axes) if rank > len(axes) else axes
