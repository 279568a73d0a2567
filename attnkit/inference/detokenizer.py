"""The words of a model: tokens spelled, texts put together and cut."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from attnkit import tokenizers
from attnkit.errors import AttnkitError, UsageError
from attnkit.inference import text_inputs
from attnkit.inference.options import GenerationOptions
from attnkit.tokenizers import Tokenizer


class Detokenizer(NamedTuple):
    """The words of a model, as far as it has a tokenizer; `skipped` tokens at the start of a text say nothing."""

    tokenizer: Tokenizer | None
    size: int
    skipped: int = 0

    def words(self) -> list[str] | None:
        """The spelling of every id."""
        found = self.tokenizer.vocabulary[: self.size] if self.tokenizer else []
        return found + [""] * (self.size - len(found)) if found else None

    def spelled(self, ids: Sequence[int]) -> list[str]:
        """The spelling of each id; where that is not known, its number."""
        words = self.tokenizer.vocabulary if self.tokenizer else []
        return [words[word] if word < len(words) else str(word) for word in ids]

    @property
    def padding(self) -> str:
        """How padding is labelled: by the vocabulary's own padding token where it has one."""
        return (self.tokenizer and tokenizers.find_padding(self.tokenizer.vocabulary)) or tokenizers.PADDING[0]

    @property
    def joins(self) -> bool:
        """Whether it makes text of tokens."""
        return self.tokenizer is not None and self.tokenizer.decode is not None

    def text(self, ids: Sequence[int]) -> str:
        """The text of all the tokens so far, "" where it makes none."""
        return self.tokenizer.decode(ids[self.skipped :]) if self.tokenizer and self.tokenizer.decode else ""


def detokenizer_of(asked: GenerationOptions) -> Detokenizer:
    """The words of the model; AttnkitError where they are needed, or where its tokenizer is there and not whole."""
    checkpoint, config = asked.model_, asked.model_.config
    size, skipped = config.stack("decoder").vocab, 1 if config.encoder else 0
    try:
        side = "target" if config.encoder else "source"
        return Detokenizer(asked.tokenizer or text_inputs.tokenizer_of(checkpoint, side), size, skipped)
    except AttnkitError as error:
        needed = asked.score is not None or asked.stop or asked.emit == "text"
        none = isinstance(error, tokenizers.NoTokenizer | UsageError)  # no such files, or no library to read them
        if needed or not (none or asked.ids is not None or asked.emit):
            raise type(error)(f"{error.problem}; --ids FILE and --emit ids do without", error.name) from None
        return Detokenizer(None, size, skipped)


def common_prefix_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items two sequences begin with alike.

    >>> common_prefix_length("there", "then"), common_prefix_length([1], [2])
    (3, 0)
    """
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
                min(len(one), len(other)))  # fmt: skip
