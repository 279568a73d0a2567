"""Perplexity: how improbable a model finds a text, or the targets of pairs."""

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import AttnkitNote, DataError, NotFiniteError, UsageError, counted
from attnkit.generation.length_classes import classify_lengths, with_classes
from attnkit.generation.prompts import positions_left
from attnkit.inputs import layers, text_inputs
from attnkit.inputs.text_inputs import ModelInput
from attnkit.records import Array, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

WINDOW = 1024  # tokens, of a model whose positions have no limit
ROWS = 256  # of logits at a time
DIFFERENT = 0.01  # of the perplexity, by the weights of windows: enough for a note


class TextScore(NamedTuple):
    """The sum of −log p of predicted tokens, their number, and the bytes of the text.

    average  the mean of which the perplexity is the exponential, if that is not the mean over all tokens
    windows  how a long text was read
    """

    nll: float
    tokens: int
    bytes: int
    average: float | None = None
    windows: "WindowSizes | None" = None

    @property
    def loss(self) -> float:
        return self.nll / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """The exponential of the mean of −log p.

        >>> round(TextScore(math.log(8), 3, 3).perplexity, 9)
        2.0
        """
        average = self.loss if self.average is None else self.average
        return math.exp(average) if average < 709 else math.inf if average == average else math.nan

    @property
    def bits_per_byte(self) -> float:
        """The sum of −log₂ p, for each byte of the text.

        >>> round(TextScore(math.log(8), 3, 6).bits_per_byte, 9)
        0.5
        """
        return self.nll / math.log(2) / self.bytes if self.bytes else math.nan

    def __add__(self, other: "TextScore") -> "TextScore":  # type: ignore[override]
        return TextScore(self.nll + other.nll, self.tokens + other.tokens, self.bytes + other.bytes)


class WindowSizes(NamedTuple):
    """How a model reads a long text.

    window  tokens that it reads at a time
    stride  tokens from one window to the next
    bos     the id that every window begins with; None: the tokenizer puts none before a text
    """

    window: int
    stride: int
    bos: int | None = None


class Window(NamedTuple):
    """A part of a text that the model reads, and the first token it predicts."""

    begin: int
    end: int
    first: int


def slide_window(tokens: int, size: int, stride: int) -> Iterator[Window]:
    """Yield windows over a text that predict each token once.

    The first token of the text is not predicted; without overlap, the first of no window is.

    >>> [*slide_window(10, 6, 3)]
    [Window(begin=0, end=6, first=1), Window(begin=3, end=9, first=6), Window(begin=6, end=10, first=9)]
    >>> [window.first for window in slide_window(10, 5, 5)]
    [1, 6]
    """
    end = 0
    for begin in range(0, tokens, stride):
        first, end = max(begin + 1, end), min(begin + size, tokens)
        yield Window(begin, end, first)
        if end == tokens:
            return


def score_long_text(
    checkpoint: "Checkpoint", text: str, name: str, window: int | None, stride: int | None, dtype: str
) -> TextScore:
    """Score the tokens of a text in sliding windows.

    As on the page "Perplexity of fixed-length models" of transformers, the mean of each window
    is weighted by the number of tokens that it adds, less one. Unlike there, every window begins with the start token
    of the text, if it has one: it replaces the first token of the window.

    window  tokens that the model reads at a time [default: all its positions]
    stride  tokens from one window to the next [default: half of them]

    DataError for a text of less than 2 tokens; `name` is its file. A note says how many tokens no window predicts.
    """
    size = window or checkpoint.config.positions.longest or WINDOW
    try:
        positions_left(checkpoint.config, size)
    except DataError as error:
        raise UsageError(error.problem, "--window") from None
    if stride and stride > size:
        raise UsageError(f"{stride} skips tokens between windows of {size}", "--stride")
    inputs = text_inputs.tokenize_for_model(checkpoint, "decoder", ModelInput(text))
    ids = inputs.ids
    if len(ids) < 2:
        raise DataError(f"{counted(len(ids), 'token')} (expected 2 or more): nothing is predicted", name)
    text_inputs.warn_unknown(inputs.unknown, len(ids), name)
    windows = WindowSizes(size, stride or max(size // 2, 1), find_start_token(checkpoint, int(ids[0])))
    core = layers.complete_model(checkpoint)
    nll, count, weighted, weights, done = 0.0, 0, 0.0, 0, 0
    for part in slide_window(len(ids), windows.window, windows.stride):
        callbacks.current().on_progress(f"token {part.end:,} of {len(ids):,}")
        predicted = part.end - part.first
        weight, done = part.end - done - 1, part.end
        if predicted:
            context = layers.new_context(dtype=dtype)
            read = ids[part.begin : part.end].copy()
            read[0] = read[0] if windows.bos is None else windows.bos
            x = model.run(core, core.config.plan("decoder"), read, context)
            total = targets_nll(core, x[part.first - part.begin - 1 : -1], ids[part.first : part.end])
            nll, count = nll + total, count + predicted
            weighted, weights = weighted + weight * total / predicted, weights + weight
    if skipped := len(ids) - 1 - count:
        note = f"the first tokens of {counted(skipped, 'window')} are not predicted, and bits_per_byte is too small"
        warnings.warn(f"{note}; a --stride below --window predicts them", AttnkitNote, stacklevel=2)
    return TextScore(nll, count, len(text.encode()), weighted / weights, windows)


def find_start_token(checkpoint: "Checkpoint", first: int) -> int | None:
    """The first token of a text if the tokenizer puts a start token there."""
    known = (checkpoint.config.special.bos, text_inputs.tokenizer_of(checkpoint).special.get("bos"))
    return first if first in known else None


def targets_nll(core: model.Model, x: Array, targets: Array) -> float:
    """The sum of −log p of targets (T,) by hidden states x (T, D)."""
    total = 0.0
    for at in range(0, len(targets), ROWS):
        logits = model.head_logits(core, np.ascontiguousarray(x[at : at + ROWS]))
        total -= float(model.score_tokens(logits, targets[at : at + ROWS]).sum(dtype=np.float64))
    if not math.isfinite(total):
        raise NotFiniteError("the log-probabilities are not finite")
    return total


def score_pairs(
    checkpoint: "Checkpoint",
    pairs: Sequence[tuple[int, str, str]],
    name: str,
    dtype: str,
    languages: tuple[str | None, str | None] = (None, None),
) -> list[TextScore]:
    """Score the target of each pair after its source, with the token that ends it.

    pairs      line, source and target of each; name: their file, for errors
    languages  of sources and of targets; None: as the folder states
    """
    core = layers.complete_model(checkpoint)
    (of_source, of_target), unknown, scores = languages, 0, list[TextScore]()
    for number, source, target in pairs:
        callbacks.current().on_progress(f"pair {len(scores) + 1:,} of {len(pairs):,}")
        try:
            read = text_inputs.tokenize_for_model(checkpoint, "encoder", ModelInput(source, language=of_source)).ids
            written = ModelInput(target, language=of_target)
            inputs = text_inputs.tokenize_for_model(checkpoint, "decoder", written, target=True)
            ids = inputs.ids
            positions_left(core.config, max(len(read), len(ids) - 1))
            encoder = layers.new_context(dtype=dtype)
            memory = model.run(core, core.config.plan("encoder"), read, encoder)
            context = layers.new_context(memory=memory, source_states=encoder.last_states(), dtype=dtype)
            x = model.run(core, core.config.plan("decoder"), ids[:-1], context)
            nll = targets_nll(core, x, ids[1:])
        except DataError as error:
            raise type(error)(f"line {number}: {error.problem}", name) from None
        scores.append(TextScore(nll, len(ids) - 1, len(target.encode())))
        unknown += inputs.unknown
    text_inputs.warn_unknown(unknown, sum(score.tokens for score in scores), name)
    return scores


def check_scorable(checkpoint: "Checkpoint") -> None:
    config = checkpoint.config
    if config.decoder is None or config.classes or not config.head or not config.stack("decoder").vocab:
        problem = "predicts no text token by token, so that a text has no perplexity"
        raise UsageError(f"this {config.family} model {problem}", "--model")


def measure_text(
    checkpoint: "Checkpoint", text: str, name: str, window: int | None, stride: int | None, dtype: str
) -> Record:
    """Measure the perplexity of a text; note a large effect of the weights of windows.

    The arguments are those of `score_long_text`.
    """
    result = score_long_text(checkpoint, text, name, window, stride, dtype)
    if result.windows is not None:
        callbacks.current().on_default("window", result.windows.window)
        callbacks.current().on_default("stride", result.windows.stride)
    if result.average is not None and abs(math.expm1(result.average - result.loss)) > DIFFERENT:
        note = f"each token weighted alike, the perplexity is {math.exp(result.loss):.6g}: exp(loss)"
        warnings.warn(note, AttnkitNote, stacklevel=2)
    tensors = text_tensors(result)
    for name, value in (result.windows._asdict() if result.windows else {}).items():
        if value is not None:
            tensors[name] = Tensor(np.array(value), ())
    return Record({}).with_tensors(tensors)


def text_tensors(result: TextScore) -> dict[str, Tensor]:
    names = ("perplexity", "loss", "bits_per_byte", "tokens", "bytes")
    return {name: Tensor(np.array(getattr(result, name)), ()) for name in names}


def measure_targets(
    checkpoint: "Checkpoint",
    pairs: Sequence[tuple[int, str, str]],
    name: str,
    width: int | None,
    dtype: str,
    languages: tuple[str | None, str | None],
) -> Record:
    """Measure the perplexity of the targets of pairs, also by source lengths.

    width  number of lengths, in words, of a class of sources; None: no classes
    """
    results = score_pairs(checkpoint, pairs, name, dtype, languages)
    whole = text_tensors(reduce(add, results)) | {"sentences": Tensor(np.array(len(pairs)), ())}
    if width is None:
        return Record({}).with_tensors(whole)
    groups = classify_lengths([source for _, source, _ in pairs], width)
    scores = [reduce(add, [results[at] for at in lines]) for lines in groups.values()]
    columns: dict[str, list[Any]] = {
        name: [getattr(one, name) for one in scores] for name in ("perplexity", "loss", "bits_per_byte", "tokens")
    }
    return with_classes(whole, columns, groups)
