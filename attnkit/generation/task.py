"""A task of decode: what it reads, which options it refuses, its result and view."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from attnkit.errors import UsageError, with_article
from attnkit.generation.options import DecodeOptions, refuse_options
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.display import ResultView, Style

Input = Sequence[str] | Record | None
Reads = Literal["states", "text", "prompt"]


class Task:
    """A task of decode, with the options that it was called with.

    top_is_view  whether --top changes only what is shown
    """

    top_is_view: ClassVar[bool] = True

    def __init__(self, options: DecodeOptions) -> None:
        self.options = options

    def run(self, source: Input) -> Record | str:
        """Run on texts or a record; UsageError for options of other tasks."""
        raise NotImplementedError

    def view(self, record: Record, style: "Style") -> "ResultView":
        """What is shown of the result."""
        from attnkit import display

        return display.ResultView([display.tensor_view(record, "x", style)])

    @property
    def reads(self) -> Reads:
        """Its input: hidden states, a text for a model that writes none, or a prompt."""
        return "states"

    @property
    def adds_tensors(self) -> bool:
        """Whether an option requests tensors beside x, which no format may lose."""
        choices = self.options.choices
        return bool(self.options.search.best or choices.keep or choices.steps)

    @property
    def has_table_aside(self) -> bool:
        """Whether a table goes to standard error where the result is not one."""
        return False

    @property
    def refused(self) -> Mapping[str, Sequence[str]]:
        """What the task lacks -> the names of the options that need it."""
        return {}

    def refuse(self, refused: Mapping[str, Sequence[str]]) -> None:
        """Raise UsageError for the first option that is set and needs another task."""
        values = self.options.by_name()
        for needed, names in refused.items():
            refuse_options(needed, **{name: values[name] for name in names})


class ModelTask(Task):
    """A task of a model, which checks its options against the model."""

    @property
    def reads(self) -> Reads:
        """A prompt for a decoder of words, a text for a lone encoder, else states."""
        config, layer = self.options.config, self.options.layer
        if self.options.writes_text:
            return "prompt"
        is_alone = len(config.stacks) == 1 or bool(config.classes)
        return "text" if layer is None and is_alone and config.stack(config.stacks[0]).vocab > 0 else "states"

    @property
    def refused(self) -> Mapping[str, Sequence[str]]:
        return {"a decoder that generates text": ("chat",)}

    def run(self, source: Input) -> Record | str:
        """Check the options, and run the model."""
        self.check_model()
        self.refuse(self.refused)
        return self.run_model(source)

    def run_model(self, source: Input) -> Record | str:
        """Run the model on its input."""
        raise NotImplementedError

    @property
    def reads_pictures(self) -> bool:
        """Whether a text of the task may hold pictures."""
        return False

    def check_model(self) -> None:
        """Raise UsageError for an image, sound or dtype that the model does not take."""
        config, dtype = self.options.config, self.options.dtype
        reads_image = config.patches or self.options.labelling.labels or self.reads_pictures
        if self.options.image is not None and not reads_image:
            hint = "; --labels NAMES compares one with texts" if self.options.checkpoint.similarity else ""
            raise UsageError(f"{with_article(config.family)} model takes no image{hint}", "--image")
        if self.options.speech.audio is not None and not config.sound:
            raise UsageError(f"{with_article(config.family)} model takes no sound", "--audio")
        if dtype not in (None, "float32", "float64"):
            raise UsageError(f"{dtype}: a model computes in float32 or float64", "--dtype")


def require_states(source: Input) -> Record:
    """The record of hidden states; UsageError for a text."""
    if isinstance(source, Record):
        return source
    raise UsageError("expected hidden states in a record, got text" if source else "no record to decode")
