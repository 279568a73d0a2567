"""The views of decode: generated texts, scores and candidates as text, figures and tables of cells."""

from typing import TYPE_CHECKING

from attnkit.cli.stage import Stage
from attnkit.inference.options import CANDIDATES, asks_for_next_word, generates_text
from attnkit.record import Record, shared_labels

if TYPE_CHECKING:
    from attnkit import display
    from attnkit.display.cells import Cells
    from attnkit.display.figures import FigureOptions, Section
    from attnkit.model import Config


SHARES = (("vocab",), ("label",))  # last axes of x whose numbers are the shares of words or labels


def render_decoded(record: Record, call: Stage, look: "display.Style") -> str:
    """Render generated text as text, and probabilities as a table of the most probable words at every position."""
    from attnkit.cli import views

    if call.parameters["attribute"]:
        from attnkit.cli.attribution_views import render_attributions

        return render_attributions(record, call, look)
    if gives_labels(record, call):
        from attnkit.cli.label_views import render_labels

        return render_labels(record, call, look)
    if makes_text(call):
        return render_generation(record, call, look)
    if is_plain_tensor(record, call):
        return views.render_tensor(record, "x", look)
    candidates = render_candidates(record, call, look)
    if not call.parameters["steps"] and not call.parameters["keep"]:
        return candidates
    return f"{views.render_tables(record, call, look)}\n\n{candidates}"


def draw_decoded(record: Record, call: Stage, looks: "FigureOptions") -> "list[Section]":
    """Draw generated text as text, scores and the most probable words as tables."""
    from attnkit.cli import figures, views
    from attnkit.display.figures import candidates_section, tensor_section
    from attnkit.inference.decoded_tables import list_choices, list_scores

    if call.parameters["attribute"]:
        from attnkit.cli.attribution_views import draw_attributions

        return draw_attributions(record, call, looks)
    if gives_labels(record, call):
        from attnkit.cli.label_views import draw_labels

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


def list_decoded(record: Record, call: Stage) -> "Cells":
    """Return scores, the candidates of each step and the most probable words as a table, else the one tensor."""
    from attnkit.cli.cells import computed_cells
    from attnkit.inference.decoded_tables import generation_cells, word_cells

    if gives_labels(record, call):
        from attnkit.cli.label_views import list_cells

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


def config_of_model(call: Stage) -> "Config | None":
    """Return the configuration of the model of --model, if there is one."""
    checkpoint = call.files.loaded.get("model_")
    return None if checkpoint is None else checkpoint.config


def render_candidates(record: Record, call: Stage, look: "display.Style") -> str:
    """Render x (..., T, V) as one table a batch row: the most probable words at each position but padding."""
    from attnkit import display

    return "\n\n".join(display.candidates_table(one, look) for one in find_candidates(record, call))


def find_candidates(record: Record, call: Stage) -> "list[display.Candidates]":
    """Return the most probable words of x at each position, as many as --top requests."""
    from attnkit.inference.decoded_tables import list_candidates

    return list_candidates(record, config_of_model(call), call.parameters["top"] or CANDIDATES)


def render_generation(record: Record, call: Stage, look: "display.Style") -> str:
    """Render generated texts, a line each with its prompt dim; of scores a table and their sum."""
    from attnkit import display
    from attnkit.cli import views
    from attnkit.inference.decoded_tables import list_choices, list_scores

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
