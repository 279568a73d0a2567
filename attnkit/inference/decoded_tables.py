"""Tables of decoded hidden states: the most probable words at each position, the scores of texts."""

import math

from attnkit import display, model, tokenizers
from attnkit.record import Record, row_labels, shared_labels


def list_candidates(record: Record, config: model.Config | None, count: int) -> list[display.Candidates]:
    """Return the most probable words of x (..., T, V) at each position but padding, for each row of a batch.

    config  that of the model that computed x, None for none; count  words a position
    """
    x = record["x"]
    probs = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) if x.ndim > 1 else x[None, None]
    ids, shares = model.candidates(probs, count)
    words = shared_labels(record.labels.get("vocab")) or None
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


def _find_titles(config: model.Config) -> tuple[str, str]:
    """Return the title of the table of candidates, and the heading of its rows."""
    if config.classes:
        return "class", "image"
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
