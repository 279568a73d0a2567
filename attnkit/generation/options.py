"""Options of text generation: what they are, which exclude or require each other."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit import formats, model
from attnkit.errors import UsageError, flag_name
from attnkit.inputs.next_word import SAMPLING_FLAGS
from attnkit.record import Array, Record
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint
    from attnkit.inputs.operands import AttendedTensor
    from attnkit.interpret.tracer import Tracer

SEARCH_FLAGS = ("beam", "best", "length_penalty")
HOOK_FLAGS = ("trace", "trace_only", "patch", "ablate", "mean", "grad", "grad_only", "check", "attribute")
GENERATION_FLAGS = (
    "memory", "score", "max_tokens", "repetition_penalty", *SEARCH_FLAGS, "stop", "steps", "cache_in", "cache_out",
)  # fmt: skip
LABEL_FLAGS = ("pair", "question", "aggregate")
AGGREGATIONS = ("none", "simple", "first", "average", "max")  # how tokens are joined to entities
INPUT_FLAGS = ("ids", "image", "batch", *LABEL_FLAGS)
EXCLUSIVE = (
    *(("beam", name) for name in (*SAMPLING_FLAGS, "cache_out")),
    *(
        ("score", name)
        for name in ("max_tokens", "repetition_penalty", *SEARCH_FLAGS, *SAMPLING_FLAGS, "stop", "steps")
    ),
    *((name, "top") for name in ("beam", "score")),
    *(("grad", name) for name in ("patch", "ablate", "cache_in")),
    ("trace", "best"),
    *(("attribute", name) for name in ("patch", "ablate", "cache_in", "emit")),
)
REQUIRES = (
    *(("best", "beam"), ("length_penalty", "beam"), ("trace_only", "trace"), ("mean", "ablate")),
    *(("grad", "score"), ("grad_only", "grad"), ("check", "grad"), ("attribute", "score")),
)
CHECK_TOLERANCE = 1e-6  # the relative error of gradients above which their check fails
CANDIDATES = 5  # of a choice, unless --top sets another number
DEFAULT_TOKENS, DEFAULT_TRANSLATION_TOKENS = 40, 256  # of a text without an end of its own, of a translation


class GenerationOptions(NamedTuple):
    """The options of decode --model, by the names of its flags; None, False or () where one is not set."""

    model_: "Checkpoint"
    ids: Record | None = None
    image: Array | None = None
    memory: "AttendedTensor | None" = None
    tokenizer: Tokenizer | None = None
    batch: bool = False
    pair: str | None = None
    question: str | None = None
    aggregate: str | None = None
    max_tokens: int | None = None
    score: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    beam: int | None = None
    best: int | None = None
    length_penalty: str | None = None
    stop: tuple[str, ...] = ()
    emit: str | None = None
    steps: bool = False
    top: int | None = None
    cache_in: Mapping[str, Array] | None = None
    cache_out: str | None = None
    trace: str | None = None
    trace_only: tuple[str, ...] = ()
    patch: dict[str, Array] | None = None
    ablate: tuple[str, ...] = ()
    mean: Mapping[str, Array] | None = None
    grad: str | None = None
    grad_only: tuple[str, ...] = ()
    check: bool = False
    attribute: str | None = None
    dtype: str | None = None

    def is_set(self, name: str) -> bool:
        """Return whether an option was given a value."""
        return is_set(getattr(self, name))

    @property
    def is_scoring(self) -> bool:
        """Whether the tokens of a text are scored, and none are generated."""
        return self.score is not None or self.max_tokens == 0

    @property
    def candidates(self) -> int:
        """How many candidates of a choice are shown and kept."""
        return self.top or CANDIDATES

    @property
    def keeps_candidates(self) -> bool:
        """Whether the result has the candidates of every choice."""
        return self.steps or self.top is not None

    @property
    def is_sampled(self) -> bool:
        """Whether tokens are drawn at random."""
        return any(map(self.is_set, SAMPLING_FLAGS))

    def tracer(self) -> "Tracer":
        """Return the tracer that keeps, patches and ablates what the options name."""
        from attnkit.interpret.edits import make_edits
        from attnkit.interpret.tracer import Tracer, head_counts

        patterns = {"--trace-only": self.trace_only or ("*",)} if self.trace else {}
        config = self.model_.config
        steps = model.layer_plan(config, config.stacks[-1])
        return Tracer(patterns, make_edits(self.patch, self.ablate, self.mean, head_counts(config, steps)))


def is_set(value: Any) -> bool:
    """Return whether the value of an option is other than that of one left out."""
    return value is not None and value is not False and not (isinstance(value, tuple) and not value)


def check_options(options: GenerationOptions) -> None:
    """Raise UsageError for options that are mutually exclusive, and for one without the option it needs."""
    vocabulary = options.model_.config.stack("decoder").vocab
    if (options.beam or 1) > vocabulary:
        raise UsageError(f"expected at most {vocabulary}, the size of the vocabulary, got {options.beam}", "--beam")
    if (options.best or 1) > (options.beam or 1):
        raise UsageError(f"{options.best} of --beam {options.beam} (expected 1 to {options.beam})", "--best")
    if options.score == "":
        raise UsageError("an empty text has no score", "--score")
    if "" in options.stop:
        raise UsageError("empty text", "--stop")
    check_side_outputs(options)


def check_side_outputs(options: GenerationOptions) -> None:
    """Raise UsageError for a trace or a cache that cannot be written: unknown suffixes, one file for both."""
    for file in filter(None, (options.trace, options.cache_out, options.grad)):
        formats.file_format(file)
    if options.cache_out and not model.cacheable(options.model_.config):
        raise UsageError("its keys change with the length of the text, so no cache can be kept", "--cache-out")
    if options.trace and is_same_file(options.trace, options.cache_out):
        raise UsageError(f"{options.trace}: --cache-out writes the same file", "--trace")
    for flag, other in (("--trace", options.trace), ("--cache-out", options.cache_out)):
        if options.grad and is_same_file(options.grad, other):
            raise UsageError(f"{options.grad}: {flag} writes the same file", "--grad")


def is_same_file(path: str, other: str | None) -> bool:
    """Return whether two results would be written to one file, which /dev/null is not.

    >>> is_same_file("a.npz", "./a.npz"), is_same_file("a.npz", None), is_same_file("/dev/null", "/dev/null")
    (True, False, False)
    """
    return other is not None and path != os.devnull and os.path.realpath(path) == os.path.realpath(other)


def refuse_flags(values: Mapping[str, Any], names: Sequence[str], place: str) -> None:
    """Raise UsageError for a flag that is set and has no meaning here; place: what it needs."""
    for name in names:
        if is_set(values.get(name)):
            raise UsageError(f"needs {place}", flag_name(name))


def max_new_tokens(options: GenerationOptions) -> int:
    """Return how many tokens are generated at most."""
    if options.max_tokens is not None:
        return options.max_tokens
    if asks_for_next_word(options._asdict()):
        return 1
    return DEFAULT_TRANSLATION_TOKENS if options.model_.config.encoder else DEFAULT_TOKENS


def asks_for_next_word(values: Mapping[str, Any]) -> bool:
    """Return whether --top alone asks a model that generates text for the candidates, and not for the text.

    values  of the options by name
    """
    return values["top"] is not None and not values["steps"]


def compute_dtype(options: GenerationOptions) -> str:
    """Return the dtype that the model computes in."""
    return options.dtype or str(options.model_.params["decoder.embed"]["table"].dtype.name)


def generates_text(config: "model.Config", layer: str | None) -> bool:
    """Return whether decode generates text with this model: its decoder has a vocabulary, and no layer is chosen."""
    return layer is None and config.decoder is not None and config.decoder.vocab > 0 and not config.classes


def encodes_text(config: "model.Config", layer: str | None) -> bool:
    """Return whether decode takes text for a model that generates none: its only stack has a vocabulary."""
    is_alone = len(config.stacks) == 1 and not generates_text(config, layer)
    return layer is None and is_alone and config.stack(config.stacks[0]).vocab > 0
