"""Logits to words: the most probable ones, drawn ones, and what is shown of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import callbacks, model, tokenizers
from attnkit.errors import AttnkitWarning, DataError, UsageError, counted
from attnkit.generation.options import DecodeOptions, OutputMatrix, note_samplers
from attnkit.generation.task import Input, Task, require_states
from attnkit.inputs.operands import cast_x
from attnkit.inputs.output_matrix import OutputLogits, OutputOperands, find_output_matrix
from attnkit.model.dtypes import quiet
from attnkit.model.formulas.sampling import SYMBOLS, Sampling
from attnkit.records import Array, Labels, Record, Tensor, row_labels, shared_labels

if TYPE_CHECKING:
    from attnkit import display
    from attnkit.display.cells import Cells


class StatesToWords(Task):
    """Map hidden states to words by an output matrix, without a model."""

    def run(self, source: Input) -> Record | str:
        """Logits of the hidden states, and the words chosen by them."""
        states = require_states(source)
        output, formula = apply_output_matrix(states, self.options.matrix, self.options.dtype)
        return choose_by_logits(replace_words(output, self.options.matrix.vocab), formula, self.options)

    def view(self, record: Record, style: display.Style) -> display.ResultView:
        """The most probable words at each position, or x."""
        return view_words(record, self.options, ("next word", "position"), style)

    @property
    def has_table_aside(self) -> bool:
        """Whether the steps from logits to words go to standard error."""
        return self.options.choices.steps


def apply_output_matrix(record: Record, matrix: OutputMatrix, dtype: str | None) -> tuple[OutputLogits, str]:
    """Map hidden states (..., D) to logits (..., N) by an output matrix."""
    record = record if dtype is None else cast_x(record, dtype)
    weight, bias, words, formula = find_output_matrix(record, matrix.table, matrix.params)
    logits = model.logits(record["x"], weight, bias)
    callbacks.current().on_operands(OutputOperands(record, logits, None, weight, bias))
    return OutputLogits(record, logits, words, None), formula


def replace_words(output: OutputLogits, vocab: list[str] | None) -> OutputLogits:
    words, count = vocab or output.words, output.logits.shape[-1]
    if words and len(words) != count:
        problem = f"{counted(len(words), 'word')} for {counted(count, 'logit')}"
        raise DataError(problem, "--vocab" if vocab else "labels of axis 'vocab'")
    return output._replace(words=words, join=None if vocab else output.join)


def choose_by_logits(
    output: OutputLogits, formula: str, options: DecodeOptions, fills_masks: bool = False
) -> Record | str:
    """Choose words by logits, whose formula is passed, as a record or as text."""
    sampling, emit, (steps, keep, _) = options.sampling, options.emit, options.choices
    note_samplers(options)
    arrays = choose_words(output, sampling, with_ids=emit not in ("logits", "probs"))
    if emit == "text":
        return words_to_text(output, arrays["ids"], fills_masks)
    formulas = {
        "logits": formula,
        "probs": f"{sampling.formula(output.function)}, logits = {formula}",
        "ids": "drawn" if sampling.is_sampled else "argmax(logits)",
    }
    record = make_decoded_record(output, arrays, emit, formulas[emit or "probs"])
    record = record.with_tensors({}, options.sampler_labels)
    if not steps and not keep:
        return record
    formulas = sampling.step_formulas(formula, output.function)
    if missing := [name for name in keep if name not in (*formulas, "all")]:
        raise UsageError(f"there is no {missing[0]} (it has {', '.join(formulas)})", "--keep")
    is_last_x = steps and "all" not in keep and "probs" not in keep  # the probabilities are x
    names = [name for name in formulas if steps or "all" in keep or name in keep]
    names = names[:-1] if is_last_x else names
    return add_word_steps(record, output, arrays | filtering_steps(output.logits, sampling), formulas, names)


def words_to_text(output: OutputLogits, ids: Array, fills_masks: bool) -> str:
    """The words of ids (..., T), a line for each row, or the text without masks."""
    from attnkit.inputs import detokenizer

    record, words = output.record, output.words
    if output.axis == "label":
        return "\n".join(words[id] for id in ids.reshape(-1).tolist())
    masked, is_guess = record.get("ids"), None
    if output.join and fills_masks and masked is not None and masked.shape == ids.shape:
        is_guess = detokenizer.is_mask_token(masked, words)
        ids = detokenizer.fill_masks(masked, ids, words)
    tokens = record.labels_of("x", -2) if record["x"].ndim > 1 else None
    return detokenizer.join_rows(ids, words, tokens, output.join, is_guess)


@quiet
def choose_words(output: OutputLogits, sampling: Sampling, with_ids: bool) -> dict[str, Array]:
    """Logits (..., V), their probs (..., V) and, if requested, the ids (...) chosen.

    The logits may be finite or not.
    """
    filtered = sampling.filter(output.logits)
    arrays = {"logits": output.logits, "probs": model.label_probabilities(filtered, output.function)}
    return arrays | ({"ids": sampling.choose(filtered)} if with_ids else {})


@quiet
def filtering_steps(logits: Array, sampling: Sampling) -> dict[str, Array]:
    """The steps `scaled` and `filtered` from logits to probabilities, all (..., V)."""
    scaled = logits / sampling.tau
    return {"scaled": scaled, "filtered": np.where(np.isneginf(sampling.filter(logits)), -np.inf, scaled)}


def round_to_dtype(numbers: Array, dtype: np.dtype[Any], name: str = "") -> Array:
    """Cast numbers to a dtype; warn if a number exceeds its range."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(dtype, copy=False)
    if name and rounded is not numbers and (overflow := np.isinf(rounded) & np.isfinite(numbers)).any():
        at = "".join(f"[{i}]" for i in np.argwhere(overflow)[0])
        message = f"{name} exceed the range of {dtype} at {at} and are written as infinity; --dtype float32 avoids this"
        warnings.warn(message, AttnkitWarning, stacklevel=2)
    return rounded


def make_decoded_record(output: OutputLogits, arrays: Mapping[str, Array], emit: str | None, formula: str) -> Record:
    """Build the record with the requested x, or with x, `logits` and `next`."""
    main = emit or "probs"
    kinds = {"x": main} | ({} if emit else {"logits": "logits", "next": "ids"})
    axes = output.record.axes_of("x")[: output.logits.ndim - 1]
    dtype = model.output_dtype(output.record["x"])
    tensors = {}
    for name, kind in kinds.items():
        is_ids = kind == "ids"
        array = arrays[kind] if is_ids else round_to_dtype(arrays[kind], dtype, "" if kind == main else kind)
        tensors[name] = Tensor(array, axes if is_ids else (*axes, output.axis), formula=formula if name == "x" else "")
    labels: dict[str, Labels] = {output.axis: output.words} if output.words else {}
    return output.record.with_tensors(tensors, labels)


def add_word_steps(
    record: Record, output: OutputLogits, arrays: Mapping[str, Array], formulas: Mapping[str, str], names: Sequence[str]
) -> Record:
    """Add the named steps from logits to probabilities to the record."""
    axes = (*output.record.axes_of("x")[: output.logits.ndim - 1], output.axis)
    dtype = model.output_dtype(output.record["x"])
    tensors = {name: Tensor(round_to_dtype(arrays[name], dtype, name), axes, formula=formulas[name]) for name in names}
    x = record.tensors["x"]
    if x.formula.startswith((*SYMBOLS.values(),)):
        x = replace(x, formula=formulas["probs"])
    return record.with_tensors(tensors | {"x": x})


def view_words(
    record: Record, options: DecodeOptions, titles: tuple[str, str], style: display.Style
) -> display.ResultView:
    """View the most probable words at each position, or the x that --emit requests.

    titles  of the words, and of the positions
    """
    from attnkit import display

    if options.emit:
        return display.ResultView([display.tensor_view(record, "x", style)])
    has_steps = options.choices.steps or options.choices.keep
    steps = display.computed_view(record, style).blocks if has_steps else []
    candidates = list_candidates(record, titles, options.choices.candidates)
    return display.ResultView([*steps, *candidates], lambda: word_cells(candidates))


def list_candidates(record: Record, titles: tuple[str, str], count: int) -> list[display.Candidates]:
    """The most probable words of x (..., T, V) at each position but padding.

    titles  of the words, and of the positions; count: words for each position
    """
    from attnkit import display

    x = record["x"]
    probs = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) if x.ndim > 1 else x[None, None]
    ids, shares = model.candidates(probs, count)
    words = shared_labels(record.labels_of("x", -1)) or None
    tokens = record.labels_of("x", x.ndim - 2) if x.ndim > 1 else None
    (title, corner), lists = titles, []
    for row in range(len(probs)):
        positions = row_labels(tokens, row) or [str(at) for at in range(probs.shape[1])]
        real = [at for at, token in enumerate(positions) if token not in tokenizers.PADDING]
        rows, name = [positions[at] for at in real], f"batch {row}" if len(probs) > 1 else title
        formula = record.tensor("x").formula
        lists.append(display.Candidates(rows, ids[row][real], shares[row][real], words, name, formula, corner))
    return lists


def word_cells(lists: Sequence[display.Candidates]) -> Cells:
    """The most probable words at each position as cells, a row for each word."""
    from attnkit.display.cells import Cells

    rows = []
    for batch, one in enumerate(lists):
        for position, (name, ids, probs) in enumerate(zip(one.rows, one.ids, one.probs, strict=True)):
            for rank, (word, share) in enumerate(zip(ids.tolist(), probs, strict=True)):
                spelling = one.words[word] if one.words else ""
                rows.append([*[batch] * (len(lists) > 1), position, name, rank, word, spelling, share])
    return Cells([*["batch"] * (len(lists) > 1), "position", "token", "rank", "id", "word", "probability"], rows)
