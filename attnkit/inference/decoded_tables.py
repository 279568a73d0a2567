"""Tables of decoded hidden states: the most probable words at each position, the scores of texts."""

import math
from typing import Any

import numpy as np

from attnkit import display, model, tokenizers
from attnkit.display.cells import Cells
from attnkit.record import Record, row_labels, shared_labels


def list_candidates(record: Record, config: model.Config | None, count: int) -> list[display.Candidates]:
    """Return the most probable words of x (..., T, V) at each position but padding, for each row of a batch.

    config  that of the model that computed x, None for none; count  words a position
    """
    x = record["x"]
    probs = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) if x.ndim > 1 else x[None, None]
    ids, shares = model.candidates(probs, count)
    words = shared_labels(record.labels_of("x", -1)) or None
    tokens = record.labels_of("x", x.ndim - 2) if x.ndim > 1 else None
    title, corner = ("next word", "position") if config is None else _find_titles(config)
    lists = []
    for row in range(len(probs)):
        positions = row_labels(tokens, row) or [str(at) for at in range(probs.shape[1])]
        real = [at for at, token in enumerate(positions) if token not in tokenizers.PADDING]
        rows, name = [positions[at] for at in real], f"batch {row}" if len(probs) > 1 else title
        formula = record.tensor("x").formula
        lists.append(display.Candidates(rows, ids[row][real], shares[row][real], words, name, formula, corner))
    return lists


def list_choices(record: Record, style: display.Style) -> list[display.TextTable]:
    """Return a table for each choice of a generation: its candidates, as `--top` alone asks for them."""
    ids, words = record["candidates.ids"], record.labels.get("candidates.ids")
    is_batch, *columns = ids.ndim == 3, *(record[f"candidates.{name}"] for name in ("logits", "probs", "filtered"))
    tokens = record.labels_of("x", ids.ndim - 2)
    tables = []
    for step, place in enumerate(np.ndindex(ids.shape[:-1])):
        if "mask" in record and not record["mask"][place[0], 0, place[-1]]:
            continue
        names = row_labels(words, step) or [str(word) for word in ids[place]]
        numbers = [column[place].tolist() for column in columns]
        rows = [row for row in zip(ids[place].tolist(), names, *numbers, strict=True) if row[-1]]
        chosen = (row_labels(tokens, place[0] if is_batch else 0) or record["ids"][place[:-1]].astype(str))[place[-1]]
        title = f"step {place[-1]}" if ids.shape[-2] > 1 else "next word"
        title = f"batch {place[0]}: {title}" if is_batch else title
        tables.append(display.choice_table(title, rows, [], (str(chosen), float(record["x"][place])), style))
    return tables


def word_cells(record: Record, config: model.Config | None, count: int) -> Cells:
    """Return the most probable words at each position as a table with a row for each of them."""
    lists = list_candidates(record, config, count)
    rows = []
    for batch, one in enumerate(lists):
        for position, (name, ids, probs) in enumerate(zip(one.rows, one.ids, one.probs, strict=True)):
            for rank, (word, share) in enumerate(zip(ids.tolist(), probs, strict=True)):
                spelling = one.words[word] if one.words else ""
                rows.append([*[batch] * (len(lists) > 1), position, name, rank, word, spelling, share])
    return Cells([*["batch"] * (len(lists) > 1), "position", "token", "rank", "id", "word", "probability"], rows)


def generation_cells(record: Record) -> Cells | None:
    """Return the candidates of each step of a generated text, or the scores of a given one, as a table, or None."""
    if "candidates.ids" in record:
        return step_cells(record)
    return score_cells(record) if "rank" in record else None


def score_cells(record: Record) -> Cells:
    """Return the score of each token as a table: its log-probability, its probability, its rank."""
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
    """Return the candidates of `decode --steps` as a table with a row for each candidate of each step."""
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


def _find_titles(config: model.Config) -> tuple[str, str]:
    """Return the title of the table of candidates, and the heading of its rows."""
    if config.classes:
        return ("class", "image") if config.patches else ("label", "text")
    return ("next word" if config.decoder else "word at each position"), "position"


def list_scores(record: Record, look: display.Style) -> list[display.TextTable]:
    """Return a table of the scores of each text, and their sum."""
    count = len(record["x"]) if record["x"].ndim == 2 else 1
    return [_scores_of(record, row, look) for row in range(count)]


def _scores_of(record: Record, row: int, look: display.Style) -> display.TextTable:
    """Return the scores of one text as a table, and their sum."""
    at = row if record["x"].ndim == 2 else ...
    names = record.labels.get("token") or [str(word) for word in record["ids"][at]]
    tokens = [str(name) for name in (names[row] if names and isinstance(names[0], list) else names)]
    real = [place for place, name in enumerate(tokens) if name not in tokenizers.PADDING or record["rank"][at][place]]
    x, ids, rank = (record[name][at][real].tolist() for name in ("x", "ids", "rank"))
    return display.scores_table([tokens[place] for place in real], ids, x, rank, look)
