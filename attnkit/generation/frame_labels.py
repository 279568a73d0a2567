"""The labels of the frames of a sound, and the text that they spell."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnkit import model
from attnkit.errors import UsageError, with_article
from attnkit.generation.options import SpeechOptions
from attnkit.generation.output_head import HeadTask, apply_output_head, find_titles
from attnkit.generation.task import Input
from attnkit.generation.words import view_words
from attnkit.inputs.output_matrix import OutputLogits
from attnkit.inputs.padding import find_real_tokens
from attnkit.model.formulas.sampling import Sampling
from attnkit.records import Array, Labels, Record, Tensor, shared_labels

if TYPE_CHECKING:
    from attnkit import display


class FrameLabels(HeadTask):
    """Label the frames of a sound; the labels spell a text (CTC).

    x is the log-probability of each label, or what --emit requests; with --top the probabilities of all labels.
    """

    top_is_view = False

    @property
    def refused(self) -> Mapping[str, Sequence[str]]:
        return {
            **super().refused,
            "a model that predicts words": ("vocab", "keep"),
            "a model that generates text token by token": ("steps", *Sampling._fields, *SpeechOptions._fields[1:]),
        }

    def run_model(self, source: Input) -> Record | str:
        """The most probable label of each frame, and the text that they spell.

        The input may be hidden states (..., T, D).
        """
        source, options = self.prepare_source(source), self.options
        if not isinstance(source, Record) and options.speech.audio is None:
            raise UsageError(f"{with_article(options.config.family)} model takes --audio FILE")
        output = apply_output_head(source, options)
        ids = np.asarray(output.logits.argmax(axis=-1), np.int64)
        texts = spell_rows(ids, output)
        if options.emit == "text":
            if output.join is None:
                raise UsageError("--emit text needs words, and the model has no vocab.json")
            return "\n".join(texts)
        return make_record(output, ids, texts, options.emit or ("probs" if options.choices.top else ""))

    def view(self, record: Record, style: "display.Style") -> "display.ResultView":
        """The text, the most probable labels of each frame, or x."""
        from attnkit import display

        if self.options.choices.top:
            return view_words(record, self.options, find_titles(self.options.config), style)
        if self.options.emit or "text" not in record.labels:
            return super().view(record, style)
        texts = shared_labels(record.labels["text"])
        return display.ResultView([display.Text(display.dim_then_bold("", text, style)) for text in texts])


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
