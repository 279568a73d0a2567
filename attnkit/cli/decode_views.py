"""The views of decode: generated texts, scores and candidates as text, figures and tables of cells."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import tokenizers
from attnkit.cli.stage import Stage
from attnkit.generation.options import CANDIDATES, asks_for_next_word, generates_text
from attnkit.record import Record, row_labels, shared_labels

if TYPE_CHECKING:
    from attnkit import display, model
    from attnkit.display.cells import Cells
    from attnkit.display.figures import FigureOptions, Section
    from attnkit.generation.labels import LabelRow
    from attnkit.model import Config


def list_candidates(record: Record, config: model.Config | None, count: int) -> list[display.Candidates]:
    """Return the most probable words of x (..., T, V) at each position but padding, for each row of a batch.

    config  that of the model that computed x, None for none; count  words a position
    """
    from attnkit import display, model

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
    from attnkit import display

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
    from attnkit.display.cells import Cells

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
    from attnkit.display.cells import Cells

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
    from attnkit.display.cells import Cells

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
    from attnkit import display

    at = row if record["x"].ndim == 2 else ...
    names = record.labels.get("token") or [str(word) for word in record["ids"][at]]
    tokens = [str(name) for name in (names[row] if names and isinstance(names[0], list) else names)]
    real = [place for place, name in enumerate(tokens) if name not in tokenizers.PADDING or record["rank"][at][place]]
    x, ids, rank = (record[name][at][real].tolist() for name in ("x", "ids", "rank"))
    return display.scores_table([tokens[place] for place in real], ids, x, rank, look)


HEADS = {"sequence": "text", "token": "token"}


def shown_labels(record: Record, call: Stage) -> list[LabelRow]:
    """Return the labels to show of a record."""
    from attnkit.generation.labels import list_labels

    return list_labels(record, call.files.loaded["model_"].config, call.parameters["top"])


def render_labels(record: Record, call: Stage, look: display.Style) -> str:
    """Render the label of one text as a line, and labels of several texts, of tokens or of spans as a table."""
    from attnkit import display
    from attnkit.display.text import escape

    rows = shown_labels(record, call)
    if record["x"].ndim == 1:
        return "\n".join(f"{escape(row.label, look)}  {row.score:.{look.precision}f}" for row in rows)
    return display.format_table(label_table(record, call, look), look)


def label_table(record: Record, call: Stage, look: display.Style) -> display.TextTable:
    """Return the table of labels: label and score, the characters of a span, then what is labelled."""
    from attnkit import display

    cells = list_cells(record, call)
    texts = [
        [f"{value:.{look.precision}f}" if isinstance(value, float) else str(value) for value in row]
        for row in cells.rows
    ]
    numbers = [at for at, head in enumerate(cells.heads) if head in ("batch", "score", "start", "end")]
    return display.TextTable(list(cells.heads), texts, numbers)


def list_cells(record: Record, call: Stage) -> Cells:
    """Return labels as a table, a row for each."""
    from attnkit.display.cells import Cells

    rows, is_span = shown_labels(record, call), record.axes_of("x")[0] == "span"
    task = call.files.loaded["model_"].config.task
    is_batch = any(row.text is not None for row in rows) and (is_span or task == "token")
    part = [] if record["x"].ndim == 1 else ["span" if is_span else HEADS[task]]
    heads = ["batch"] * is_batch + ["label", "score"] + ["start", "end"] * is_span + part
    cells = [
        [row.text] * is_batch + [row.label, row.score] + [row.start, row.end] * is_span + [row.part] * len(part)
        for row in rows
    ]
    return Cells(heads, cells)


def draw_labels(record: Record, call: Stage) -> list[Section]:
    """Draw labels as a table."""
    from attnkit.cli import figures

    return [figures.table_section(label_table(record, call, figures.text_style(call)))]


SHARES = (("vocab",), ("label",))  # last axes of x whose numbers are the shares of words or labels


def render_decoded(record: Record, call: Stage, look: display.Style) -> str:
    """Render generated text as text, and probabilities as a table of the most probable words at every position."""
    from attnkit.cli import views

    if call.parameters["attribute"]:
        from attnkit.cli.attribution_views import render_attributions

        return render_attributions(record, call, look)
    if gives_labels(record, call):
        return render_labels(record, call, look)
    if makes_text(call):
        return render_generation(record, call, look)
    if is_plain_tensor(record, call):
        return views.render_tensor(record, "x", look)
    candidates = render_candidates(record, call, look)
    if not call.parameters["steps"] and not call.parameters["keep"]:
        return candidates
    return f"{views.render_tables(record, call, look)}\n\n{candidates}"


def draw_decoded(record: Record, call: Stage, looks: FigureOptions) -> list[Section]:
    """Draw generated text as text, scores and the most probable words as tables."""
    from attnkit.cli import figures, views
    from attnkit.display.figures import candidates_section, tensor_section

    if call.parameters["attribute"]:
        from attnkit.cli.attribution_views import draw_attributions

        return draw_attributions(record, call, looks)
    if gives_labels(record, call):
        return draw_labels(record, call)
    style = figures.text_style(call)
    if makes_text(call):
        if "rank" in record:
            return [figures.table_section(table) for table in list_scores(record, style)]
        if shows_choices(record, call):
            return [figures.table_section(table) for table in list_choices(record, style)]
        if call.parameters["emit"] not in (None, "text") or not record.labels.get("text"):
            return figures.tensor_sections(record, call, looks)
        return [figures.text_section(render_generation(record, call, style))]
    if is_plain_tensor(record, call):
        return [tensor_section(views.tensor_view(record, "x"), looks)]
    steps = figures.tensor_sections(record, call, looks) if call.parameters["steps"] or call.parameters["keep"] else []
    return [*steps, *(candidates_section(one, style.precision) for one in find_candidates(record, call))]


def list_decoded(record: Record, call: Stage) -> Cells:
    """Return scores, the candidates of each step and the most probable words as a table, else the one tensor."""
    from attnkit.cli.cells import computed_cells

    if gives_labels(record, call):
        return list_cells(record, call)
    if makes_text(call):
        return generation_cells(record) or computed_cells(record, call)
    if is_plain_tensor(record, call):
        return computed_cells(record, call)
    return word_cells(record, config_of_model(call), call.parameters["top"] or CANDIDATES)


def gives_labels(record: Record, call: Stage) -> bool:
    """Return whether a record has the labels of a model whose head gives them."""
    config = config_of_model(call)
    is_labelled = record.axes_of("x")[-1:] == ("label",) and call.parameters["emit"] is None
    return config is not None and bool(config.task) and is_labelled


def makes_text(call: Stage) -> bool:
    """Return whether decode runs a model that continues, translates or scores texts."""
    config = config_of_model(call)
    return config is not None and generates_text(config, call.parameters["layer"])


def shows_choices(record: Record, call: Stage) -> bool:
    """Return whether the result is shown as the candidates of the next word, which --top alone asks for."""
    return asks_for_next_word(call.parameters) and {"x", "candidates.ids"} <= {*record}


def is_plain_tensor(record: Record, call: Stage) -> bool:
    """Return whether x is shown as a tensor: --emit names it, or its numbers are no shares of words or labels."""
    return bool(call.parameters["emit"]) or record.axes_of("x")[-1:] not in SHARES


def config_of_model(call: Stage) -> Config | None:
    """Return the configuration of the model of --model, if there is one."""
    checkpoint = call.files.loaded.get("model_")
    return None if checkpoint is None else checkpoint.config


def render_candidates(record: Record, call: Stage, look: display.Style) -> str:
    """Render x (..., T, V) as one table a batch row: the most probable words at each position but padding."""
    from attnkit import display

    return "\n\n".join(display.candidates_table(one, look) for one in find_candidates(record, call))


def find_candidates(record: Record, call: Stage) -> list[display.Candidates]:
    """Return the most probable words of x at each position, as many as --top requests."""

    return list_candidates(record, config_of_model(call), call.parameters["top"] or CANDIDATES)


def render_generation(record: Record, call: Stage, look: display.Style) -> str:
    """Render generated texts, a line each with its prompt dim; of scores a table and their sum."""
    from attnkit import display
    from attnkit.cli import views

    texts = shared_labels(record.labels.get("text"))
    if shows_choices(record, call):
        return "\n\n".join(display.format_table(table, look) for table in list_choices(record, look))
    if call.parameters["emit"] not in (None, "text") or not (texts or "rank" in record):
        return views.render_tables(record, call, look)
    if "rank" in record:
        return "\n\n".join(display.format_table(table, look) for table in list_scores(record, look))
    lines = []
    scores = record["scores"].tolist() if "scores" in record and len(texts) > 1 else []
    prompts = shared_labels(record.labels.get("prompt")) or [""] * len(texts)
    for at, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        rest = text[len(prompt) :] if text.startswith(prompt) else text
        line = display.dim_then_bold(prompt if text.startswith(prompt) else "", rest, look)
        lines.append(f"{scores[at]:.{look.precision}f}  {line}" if scores else line)
    return "\n".join(lines)


def is_single_text(record: Record, call: Stage) -> bool:
    """Return whether the view of a result is one text without a table."""
    is_text = call.parameters["emit"] in (None, "text") and not {"rank", "output", "candidates.ids"} & {*record}
    if gives_labels(record, call):
        return record["x"].ndim == 1
    return makes_text(call) and is_text and len(shared_labels(record.labels.get("text"))) == 1
