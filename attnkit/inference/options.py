"""The flags of decode --model: what is asked, and which of them go together."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnkit import model
from attnkit.errors import UsageError, flag_name
from attnkit.inference.hooks import Tracer, head_counts
from attnkit.inference.masking import AttendedTensor
from attnkit.record import Array, Record
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

SAMPLING_FLAGS = ("temperature", "top_k", "top_p", "min_p", "seed")
SEARCH_FLAGS = ("beam", "best", "length_penalty")
HOOK_FLAGS = ("trace", "trace_only", "patch", "ablate")
GENERATION_FLAGS = (
    "memory", "score", "max_tokens", "repetition_penalty", *SEARCH_FLAGS, "stop", "steps", "cache_in", "cache_out",
)  # fmt: skip
INPUT_FLAGS = ("ids", "image", "batch")
EXCLUSIVE = (
    *(("beam", name) for name in (*SAMPLING_FLAGS, "cache_out")),
    *(
        ("score", name)
        for name in ("max_tokens", "repetition_penalty", *SEARCH_FLAGS, *SAMPLING_FLAGS, "stop", "steps")
    ),
)
REQUIRES = (("best", "beam"), ("length_penalty", "beam"), ("trace_only", "trace"))
DEFAULT_TOKENS, DEFAULT_TRANSLATION_TOKENS = (
    40,
    256,
)  # tokens unless --max-tokens says so: of a text that goes on, of one that has an end


@dataclass(frozen=True)
class GenerationOptions:
    """The flags of decode --model, by their names; None, False or () where one is not given."""

    model_: "Checkpoint"
    ids: Record | None = None
    image: Array | None = None
    memory: AttendedTensor | None = None
    tokenizer: Tokenizer | None = None
    batch: bool = False
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
    cache_in: Mapping[str, Array] | None = None
    cache_out: str | None = None
    trace: str | None = None
    trace_only: tuple[str, ...] = ()
    patch: dict[str, Array] | None = None
    ablate: tuple[str, ...] = ()
    dtype: str | None = None

    def said(self, name: str) -> bool:
        """Whether a flag was given."""
        return is_given(getattr(self, name))

    @property
    def scores(self) -> bool:
        """Whether given tokens are scored, and none chosen."""
        return self.score is not None or self.max_tokens == 0

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn."""
        return any(map(self.said, SAMPLING_FLAGS))

    def tracer(self) -> Tracer:
        """The visitor that the flags ask for."""
        kept = self.trace_only or ("*",) if self.trace else ()
        config = self.model_.config
        steps = model.layer_plan(config, config.stacks[-1])
        return Tracer(kept, self.patch, self.ablate, counts=head_counts(config, steps))


def is_given(value: Any) -> bool:
    """Whether the value of a flag is other than that of one left out."""
    return value is not None and value is not False and not (isinstance(value, tuple) and not value)


def check_options(asked: GenerationOptions) -> None:
    """UsageError for flags that do not go together, and for one without the other it needs."""
    for one, other in EXCLUSIVE:
        if asked.said(one) and asked.said(other):
            raise UsageError(f"{flag_name(one)} and {flag_name(other)}: one or the other")
    for one, other in REQUIRES:
        if asked.said(one) and not asked.said(other):
            raise UsageError(f"goes with {flag_name(other)}", flag_name(one))
    for name in ("trace", "patch"):
        if asked.said(name) and not asked.scores:
            raise UsageError("is of one forward pass: --max-tokens 0, or --score TEXT", flag_name(name))
    if asked.beam and asked.emit in ("logits", "probs"):
        raise UsageError(f"--beam and --emit {asked.emit}: one or the other")
    if (asked.best or 1) > (asked.beam or 1):
        raise UsageError(f"{asked.best} of --beam {asked.beam} (expected 1 to {asked.beam})", "--best")
    if asked.cache_out and not model.cacheable(asked.model_.config):
        raise UsageError("its keys change with the length of the text, so no cache can be kept", "--cache-out")
    files = {os.path.realpath(file) for file in (asked.trace, asked.cache_out) if file}
    if asked.trace and asked.cache_out and len(files) == 1 and files != {os.devnull}:
        raise UsageError(f"{asked.trace}: two results for one file: it is that of --cache-out too", "--trace")
    if asked.score == "":
        raise UsageError("an empty text has no score", "--score")
    if "" in asked.stop:
        raise UsageError("an empty text", "--stop")


def refuse_flags(asked: Mapping[str, Any], names: Sequence[str], place: str) -> None:
    """UsageError for a flag that has no meaning here."""
    for name in names:
        if is_given(asked.get(name)):
            raise UsageError(f"goes with {place}", flag_name(name))


def max_new_tokens(asked: GenerationOptions) -> int:
    """How many tokens are generated at most."""
    if asked.max_tokens is not None:
        return asked.max_tokens
    return DEFAULT_TRANSLATION_TOKENS if asked.model_.config.encoder else DEFAULT_TOKENS


def compute_dtype(asked: GenerationOptions) -> str:
    """The dtype that the model computes in."""
    return asked.dtype or str(asked.model_.params["decoder.embed"]["table"].dtype.name)
