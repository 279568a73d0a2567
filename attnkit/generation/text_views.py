"""What is shown of generated, scored and transcribed texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnkit import display, tokenizers
from attnkit.display.cells import Cells
from attnkit.generation.options import DecodeOptions
from attnkit.records import Record, row_labels, shared_labels


def view_generation(record: Record, options: DecodeOptions, style: display.Style) -> display.ResultView:
    """View generated texts after their dim prompts, scores and choices as tables."""
    cells = (lambda: step_cells(record)) if "candidates.ids" in record else None
    if options.choices.asks_for_next_word and {"x", "candidates.ids"} <= {*record}:
        return display.ResultView(list_choices(record, style), cells)
    texts = shared_labels(record.labels.get("text"))
    if options.emit not in (None, "text") or not (texts or "rank" in record):
        return display.computed_view(record, style)._replace(cells=cells)
    if "rank" in record:
        return display.ResultView(list_scores(record, style), lambda: score_cells(record))
    scores = record["scores"].tolist() if "scores" in record and len(texts) > 1 else []
    prompts = shared_labels(record.labels.get("prompt")) or [""] * len(texts)
    blocks = []
    for at, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        rest = text[len(prompt) :] if text.startswith(prompt) else text
        line = display.dim_then_bold(prompt if text.startswith(prompt) else "", rest, style)
        blocks.append(display.Text(f"{scores[at]:.{style.precision}f}  {line}" if scores else line))
    return display.ResultView(blocks, cells)


def list_choices(record: Record, style: display.Style) -> list[display.TextTable]:
    """Tables of the candidates of each choice of a generation."""
    ids, words = record["candidates.ids"], record.labels.get("candidates.ids")
    is_batch, *columns = ids.ndim == 3, *(record[f"candidates.{name}"] for name in ("logits", "probs", "filtered"))
    tokens = record.labels_of("x", ids.ndim - 2)
    tables = []
    for step, place in enumerate(np.ndindex(ids.shape[:-1])):
        text, at = place[0], place[-1]
        if "mask" in record and not record["mask"][text, 0, at]:
            continue
        names = row_labels(words, step) or [str(word) for word in ids[place]]
        numbers = [column[place].tolist() for column in columns]
        rows = [row for row in zip(ids[place].tolist(), names, *numbers, strict=True) if row[-1]]
        chosen = (row_labels(tokens, text if is_batch else 0) or record["ids"][place[:-1]].astype(str))[at]
        title = f"step {at}" if ids.shape[-2] > 1 else "next word"
        title = f"batch {text}: {title}" if is_batch else title
        tables.append(display.choice_table(title, rows, [], (str(chosen), float(record["x"][place])), style))
    return tables


def list_scores(record: Record, style: display.Style) -> list[display.TextTable]:
    """Tables of the scores of the tokens of each text but padding."""
    tables = []
    arrays = (np.atleast_2d(record[name]) for name in ("x", "ids", "rank"))
    for row, (x, ids, rank) in enumerate(zip(*arrays, strict=True)):
        tokens = row_labels(record.labels.get("token"), row) or [str(word) for word in ids]
        real = [at for at, name in enumerate(tokens) if name not in tokenizers.PADDING or rank[at]]
        x, ids, rank = (column[real].tolist() for column in (x, ids, rank))
        tables.append(display.scores_table([tokens[at] for at in real], ids, x, rank, style))
    return tables


def score_cells(record: Record) -> Cells:
    """The log-probability, probability and rank of each token as cells."""
    is_batch = record["x"].ndim == 2
    rows = []
    for batch, x in enumerate(record["x"] if is_batch else record["x"][None]):
        at: Any = batch if is_batch else ...
        names = row_labels(record.labels.get("token"), batch) or [str(word) for word in record["ids"][at]]
        for name, id, logprob, rank in zip(names, record["ids"][at], x, record["rank"][at], strict=True):
            if rank:  # padding has none
                rows.append([*[batch] * is_batch, name, id, logprob, np.exp(logprob), rank])
    return Cells([*["batch"] * is_batch, "token", "id", "logprob", "probability", "rank"], rows)


def step_cells(record: Record) -> Cells:
    """The candidates of --steps as cells, a row for each candidate."""
    names = [name for name in record if name.startswith("candidates.")]
    shape, words = record["candidates.ids"].shape, record.labels.get("candidates.ids")
    is_real = np.ones(shape[:-1], bool) if "mask" not in record else record["mask"][:, 0]
    rows = []
    for index in np.ndindex(shape):
        if is_real[index[:-1]]:
            step = int(np.ravel_multi_index(index[:-1], shape[:-1]))
            word = [row_labels(words, step)[index[-1]]] if words else []
            rows.append([*index, *word, *(record[name][index] for name in names)])
    axes = ["step" if axis == "token" else axis for axis in record.axes_of("candidates.ids")]
    return Cells([*axes, *["token"] * bool(words), *(name.removeprefix("candidates.") for name in names)], rows)
