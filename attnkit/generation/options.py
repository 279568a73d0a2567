"""Options of text generation: what they are, which exclude or require each other."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit import formats, model
from attnkit.errors import UsageError, flag_name
from attnkit.model.formulas.sampling import Sampling
from attnkit.records import Array, Record
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint
    from attnkit.inputs.detokenizer import Detokenizer
    from attnkit.inputs.operands import AttendedTensor
    from attnkit.interpret.tracer import Tracer
    from attnkit.tokenizers.chat_template import Message

CHECK_TOLERANCE = 1e-6  # the relative error of gradients above which their check fails
CANDIDATES = 5  # of a choice, unless --top sets another number
DEFAULT_TOKENS, DEFAULT_ANSWER_TOKENS = 40, 256  # of a text without an end of its own, of a translation or an answer


class Search(NamedTuple):
    """The options of beam search; None if one is not set."""

    beam: int | None = None
    best: int | None = None
    length_penalty: str | None = None


class Inspection(NamedTuple):
    """Options that keep or change intermediates of a run, by name."""

    trace: str | None = None
    trace_only: tuple[str, ...] = ()
    patch: dict[str, Array] | None = None
    ablate: tuple[str, ...] = ()
    mean: Mapping[str, Array] | None = None
    grad: str | None = None
    grad_only: tuple[str, ...] = ()
    check: bool = False
    attribute: str | None = None


class Chat(NamedTuple):
    """The options of a chat: what TEXT follows, and how it is written."""

    system: str | None = None
    messages: "Sequence[Message]" = ()
    variable: tuple[str, ...] = ()
    template: str | None = None
    date: str | None = None


class GenerationOptions(NamedTuple):
    """How a model generates, scores or labels text: input, choice, result.

    special  the special tokens for the target language; None: those of the model
    """

    model_: "Checkpoint"
    ids: Record | None = None
    image: Array | None = None
    audio: Record | None = None
    language: str | None = None
    task: str | None = None
    timestamps: bool = False
    source_language: str | None = None
    target_language: str | None = None
    memory: "AttendedTensor | None" = None
    tokenizer: Tokenizer | None = None
    batch: bool = False
    pair: str | None = None
    question: str | None = None
    aggregate: str | None = None
    max_tokens: int | None = None
    score: str | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    emit: str | None = None
    steps: bool = False
    top: int | None = None
    cache_in: Mapping[str, Array] | None = None
    cache_out: str | None = None
    dtype: str | None = None
    sampling: Sampling = Sampling()
    search: Search = Search()
    inspection: Inspection = Inspection()
    chat: Chat | None = None
    special: "model.SpecialTokens | None" = None

    @property
    def candidates(self) -> int:
        return self.top or CANDIDATES

    @property
    def keeps_candidates(self) -> bool:
        """Whether the result has the candidates of every choice."""
        return self.steps or self.top is not None

    @property
    def token_limit(self) -> int:
        if self.max_tokens is not None:
            return self.max_tokens
        if asks_for_next_word(self.top, self.steps):
            return 1
        if self.model_.config.sound:
            return self.model_.config.positions.size
        return DEFAULT_ANSWER_TOKENS if self.model_.config.encoder or self.chat else DEFAULT_TOKENS

    @property
    def compute_dtype(self) -> str:
        return self.dtype or str(self.model_.params["decoder.embed"]["table"].dtype.name)

    def tracer(self) -> "Tracer":
        from attnkit.interpret.tracer import Tracer, head_counts

        inspection, config = self.inspection, self.model_.config
        patterns = {"--trace-only": inspection.trace_only or ("*",)} if inspection.trace else {}
        if not (inspection.patch or inspection.ablate):
            return Tracer(patterns)
        from attnkit.interpret.edits import make_edits

        counts = head_counts(config, config.plan(config.stacks[-1]))
        return Tracer(patterns, make_edits(inspection.patch, inspection.ablate, inspection.mean, counts))


class TextModel(NamedTuple):
    """A model of text with its options and its detokenizer."""

    core: "model.Model"
    options: GenerationOptions
    detokenizer: "Detokenizer"


def is_set(value: Any) -> bool:
    return value is not None and value is not False and not (isinstance(value, tuple) and not value)


def check_options(options: GenerationOptions) -> None:
    """Raise UsageError for values that the model, other options or files exclude."""
    vocabulary, (beam, best, _) = options.model_.config.stack("decoder").vocab, options.search
    if (beam or 1) > vocabulary:
        raise UsageError(f"expected at most {vocabulary}, the size of the vocabulary, got {beam}", "--beam")
    if (best or 1) > (beam or 1):
        raise UsageError(f"{best} of --beam {beam} (expected 1 to {beam})", "--best")
    if options.score == "":
        raise UsageError("an empty text has no score", "--score")
    if "" in options.stop:
        raise UsageError("empty text", "--stop")
    trace, cache_out, grad = options.inspection.trace, options.cache_out, options.inspection.grad
    for file in filter(None, (trace, cache_out, grad)):
        formats.file_format(file)
    if cache_out and not model.cacheable(options.model_.config):
        raise UsageError("its keys change with the length of the text, so no cache can be kept", "--cache-out")
    if trace and is_same_file(trace, cache_out):
        raise UsageError(f"{trace}: --cache-out writes the same file", "--trace")
    for flag, other in (("--trace", trace), ("--cache-out", cache_out)):
        if grad and is_same_file(grad, other):
            raise UsageError(f"{grad}: {flag} writes the same file", "--grad")


def is_same_file(path: str, other: str | None) -> bool:
    """Whether two results would be written to one file, which /dev/null is not.

    >>> is_same_file("a.npz", "./a.npz"), is_same_file("a.npz", None), is_same_file("/dev/null", "/dev/null")
    (True, False, False)
    """
    return other is not None and path != os.devnull and os.path.realpath(path) == os.path.realpath(other)


def refuse_options(needed: str, **options: Any) -> None:
    """Raise UsageError for the first option that is set without what it needs."""
    for name, value in options.items():
        if is_set(value):
            raise UsageError(f"needs {needed}", flag_name(name))


def asks_for_next_word(top: int | None, steps: bool) -> bool:
    """Whether --top alone asks for the candidates of a word in place of a text."""
    return top is not None and not steps


def generates_text(config: "model.Config", layer: str | None) -> bool:
    """Whether decode generates text: the decoder has a vocabulary, no layer is chosen."""
    return layer is None and config.decoder is not None and config.decoder.vocab > 0 and not config.classes


def encodes_text(config: "model.Config", layer: str | None) -> bool:
    """Whether decode takes text for a model that generates none."""
    is_alone = (len(config.stacks) == 1 or bool(config.classes)) and not generates_text(config, layer)
    return layer is None and is_alone and config.stack(config.stacks[0]).vocab > 0
