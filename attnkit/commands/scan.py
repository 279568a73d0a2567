"""attnkit scan: what each layer, head and position of a model contributes to the logit of a word."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from attnkit import display
from attnkit.cli import figures, options, text_input, views
from attnkit.cli.stage import TEXT, Stage
from attnkit.cli.tool import tool
from attnkit.errors import UsageError
from attnkit.record import Array, Record

if TYPE_CHECKING:
    from attnkit.display.figures import FigureOptions, Section


def map_view(record: Record, call: Stage, look: display.Style = display.DEFAULT_STYLE) -> display.TensorView:
    """Return the view of the map: words are labels of rows, and layers columns; colours are even about 0."""
    view = views.tensor_view(record, "x", look)
    last = view.array.ndim - 1
    order = [*range(1, last + 1), 0] if last else [0]
    return replace(
        view,
        title=f"effect on {score_name(call)}" if call.parameters["ablate"] else f"restored of {score_name(call)}",
        array=view.array.transpose(order),
        axes=[view.axes[at] for at in order],
        labels=[view.labels[at] for at in order],
        is_signed=True,
    )


def score_name(call: Stage) -> str:
    """Return the score in words."""
    score, minus = call.parameters["score"], call.parameters["minus"]
    return f"the logit of {score!r}" + (f" − {minus!r}" if minus else "")


def render_scan(record: Record, call: Stage, look: display.Style) -> str:
    """Render the map as a table or a heat map, and the scores of the texts."""
    draw = display.heatmap if call.extra.get("heatmap") else display.tensor_table
    texts = [name for name in ("clean", "corrupted") if name in record]
    scores = ", ".join(f"{name} {record[name]:.{look.precision}f}" for name in texts)
    return f"{draw(map_view(record, call, look))}\n{display.text_lines(f'{score_name(call)}: {scores}', look)}"


def draw_scan(record: Record, call: Stage, looks: "FigureOptions") -> "list[Section]":
    """Draw the map as a heat map."""
    from attnkit.display import figures as drawing

    return [drawing.heatmap_section(map_view(record, call, figures.text_style(call)), looks)]


@tool(
    sections={
        "Model and score": "model_ against score minus",
        "Sweep": "patch positions heads ablate mean",
        "Views": "heatmap",
        "Figures": "numbers no_numbers range cmap",
        "Results": "dtype",
    },
    one_of=[("model",), ("score",), ("patch", "ablate")],
    exclusive=[("patch", "ablate"), ("ablate", "heads"), ("ablate", "against"), ("numbers", "no_numbers")],
    requires=[("patch", "against"), ("against", "patch"), ("mean", "ablate"), ("heads", "patch")],
    operand=TEXT,
    reader=text_input.read_texts,
    view=render_scan,
    figure=draw_scan,
    only_in_tables=lambda call: ("heatmap",),
    extra={"heatmap": options.switch("a heat map in place of a table"), **views.LOOK_FLAGS},
)
def scan(
    source: Sequence[str] | str | Record | None,
    *,
    model_: Annotated[Any, options.MODEL] = None,
    against: Annotated[
        str | None, options.text("the corrupted text, of as many tokens as TEXT, which is patched with states of TEXT")
    ] = None,
    score: Annotated[
        str | None,
        options.text("the word whose logit is the score, a single token: the next one, which begins with its space"),
    ] = None,
    minus: Annotated[str | None, options.text("subtract the logit of this word")] = None,
    patch: Annotated[
        str | None,
        options.text("patch these intermediates, by a name or shell pattern: 'decoder.*.self.residual'", "PATTERN"),
    ] = None,
    positions: Annotated[bool, options.switch("patch or ablate each position by itself")] = False,
    heads: Annotated[bool, options.switch("patch each head by itself: layer × head")] = False,
    ablate: Annotated[
        str | None, options.choice("heads: set each head of self-attention to 0 by itself: layer × head", ("heads",))
    ] = None,
    mean: Annotated[Mapping[str, Array] | None, options.MEAN] = None,
    dtype: Annotated[
        str | None, options.choice("compute in this dtype [default: float32]", ("float32", "float64"))
    ] = None,
) -> Record:
    """Sweep patches over a model: where it holds what decides the next word.

    scan runs the corrupted text of --against again and again, each time with one intermediate replaced by that of TEXT,
    the clean text (activation patching): a layer's, or with --positions and --heads one position or head of it. x is
    how much of the difference of the scores it restores, (patched − corrupted) / (clean − corrupted): 0 as for the
    corrupted text, 1 as for the clean one. The score is the logit of --score, less that of --minus, after the last
    token, in place of the mask token of a model that has one, or as the first word that an encoder-decoder model, whose
    encoder is patched, makes of the text. `patched`, `clean` and `corrupted` are the scores.

    --ablate heads sets each head of TEXT to 0, or to its mean over the tokens of --mean FILE: x is how much the score
    changes, ablated − clean; `ablated` and `clean` are the scores.

    A run equals one of decode with --patch, but what a patch does not touch is not computed again: neither earlier
    layers nor, in a causal model, earlier positions.

    \b
    Example:
      attnkit scan --model DIR "A cat." --against "A dog." --score " cat" --patch '*.self.residual' --positions
    """
    from attnkit.interpret.scanning import ScanOptions, scan_model

    if isinstance(source, Record):
        raise UsageError("takes text, got a record", "TEXT")
    texts = [source] if isinstance(source, str) else [*(source or [])]
    if len(texts) != 1:
        raise UsageError(f"{len(texts)} texts (expected 1; --against is the other)", "TEXT")
    question = ScanOptions(against, score or "", minus, patch, heads, positions, mean, dtype)
    return scan_model(model_, texts[0], question)
