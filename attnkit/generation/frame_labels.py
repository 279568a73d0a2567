"""The labels of the frames of a sound, and the text that they spell."""

from collections.abc import Sequence

import numpy as np

from attnkit import model
from attnkit.errors import UsageError, with_article
from attnkit.generation.options import GenerationOptions, refuse_options
from attnkit.generation.output_head import apply_output_head
from attnkit.inputs.output_matrix import OutputLogits
from attnkit.inputs.padding import find_real_tokens
from attnkit.records import Array, Labels, Record, Tensor


def label_sound(source: Sequence[str] | Record | None, options: GenerationOptions) -> Record | str:
    """The most probable label of each frame of a sound, and their text.

    The input may be hidden states (..., T, D).

    x is the log-probability of each label, or what --emit requests; with --top the probabilities of all labels.
    UsageError for options of a text that is generated token by token.
    """
    refuse_options(
        "a model that generates text token by token", steps=options.steps, **options.sampling._asdict(),
        language=options.language, task=options.task, timestamps=options.timestamps,
    )  # fmt: skip
    if not isinstance(source, Record) and options.audio is None:
        raise UsageError(f"{with_article(options.model_.config.family)} model takes --audio FILE")
    output = apply_output_head(source, options)
    ids = np.asarray(output.logits.argmax(axis=-1), np.int64)
    texts = spell_rows(ids, output)
    if options.emit == "text":
        if output.join is None:
            raise UsageError("--emit text needs words, and the model has no vocab.json")
        return "\n".join(texts)
    return make_record(output, ids, texts, options.emit or ("probs" if options.top else ""))


def spell_rows(ids: Array, output: OutputLogits) -> list[str]:
    """The text of each row of labels; none without a vocabulary."""
    rows = ids.reshape(-1, ids.shape[-1]) if ids.size else ids.reshape(0, 1)
    real = find_real_tokens(output.record, rows.shape)
    is_real = np.ones(rows.shape, bool) if real is None else real
    return [output.join(row[real].tolist()) for row, real in zip(rows, is_real, strict=True)] if output.join else []


def make_record(output: OutputLogits, ids: Array, texts: list[str], emit: str) -> Record:
    """The record of the labels; x is the one of --emit."""
    axes = output.record.axes_of("x")[:-1]
    logprobs = model.log_probabilities(output.logits)
    x, formula = {
        "": (np.take_along_axis(logprobs, ids[..., None], axis=-1)[..., 0], "log-probability of each label"),
        "ids": (ids, "argmax(logits)"),
        "logits": (output.logits, "head(x)"),
        "probs": (model.probabilities(output.logits), "softmax(logits)"),
    }[emit]
    tensors = {"x": Tensor(x, axes if x.ndim == ids.ndim else (*axes, "vocab"), formula=formula)}
    if emit != "ids":
        tensors["ids"] = Tensor(ids, axes)
    labels: dict[str, Labels] = {"text": texts} if texts else {}
    if output.words and x.ndim > ids.ndim:
        labels["vocab"] = output.words
    elif output.words:
        names = [[output.words[id] for id in row] for row in ids.reshape(-1, ids.shape[-1]).tolist()]
        labels["token"] = names if ids.ndim > 1 else names[0]
    return output.record.with_tensors(tensors, labels)
