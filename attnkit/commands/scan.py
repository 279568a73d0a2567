"""attnkit scan: what layers, heads and positions contribute to a logit."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attnkit import display, options
from attnkit.cli import text_input, views
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage
from attnkit.cli.tool import TEXT
from attnkit.errors import UsageError
from attnkit.interpret.scan import ScannedInput, ScanOptions, scan_model
from attnkit.records import Array, Record

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


COLUMN = 8  # characters of a column of a table, at least


def map_view(record: Record, stage: Stage, style: display.Style = display.DEFAULT_STYLE) -> display.TensorView:
    """The view of the map; its colours are even about 0.

    Words, positions or heads are its rows and layers its columns, unless layers are more of the two and do not fit.
    """
    view = display.tensor_view(record, "x", style)
    last, layers = view.array.ndim - 1, len(view.array)
    is_tall = last == 1 and layers > view.array.shape[1] and layers > style.width // COLUMN
    order = [0, 1] if is_tall else [*range(1, last + 1), 0] if last else [0]
    return replace(
        view,
        title=f"effect on {score_name(stage)}" if stage.parameters["ablate"] else f"restored of {score_name(stage)}",
        array=view.array.transpose(order),
        axes=[view.axes[at] for at in order],
        labels=[view.labels[at] for at in order],
        is_signed=True,
    )


def score_name(stage: Stage) -> str:
    score, minus = stage.parameters["score"], stage.parameters["minus"]
    return f"the logit of {score!r}" + (f" − {minus!r}" if minus else "")


def view_scan(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    view = map_view(record, stage, style)
    texts = [name for name in ("clean", "corrupted") if name in record]
    scores = ", ".join(f"{name} {record[name]:.{style.precision}f}" for name in texts)
    is_table = not stage.extra.get("heatmap")
    return display.ResultView(
        [
            *[display.Only("terminal", view)] * is_table,
            display.Only("figure", display.Map(view)) if is_table else display.Map(view),
            display.Only("terminal", display.Note(f"{score_name(stage)}: {scores}")),
        ]
    )


@tool(
    sections={
        "Model and score": "model_ audio against against_audio score minus language languages",
        "Sweep": "patch positions heads ablate mean",
        "Views": "heatmap",
        "Figures": "look",
        "Results": "dtype",
    },
    rules=Constraints(
        exclusive=[
            ("patch", "ablate"),
            ("ablate", "heads"),
            *(("ablate", name) for name in ("against", "against_audio")),
            *(("audio", name) for name in ("against", *options.Translation._fields)),
            ("numbers", "no_numbers"),
        ],
        requires=[
            *((name, "patch") for name in ("against", "against_audio", "heads")),
            *((name, "audio") for name in ("against_audio", "language")),
            ("mean", "ablate"),
        ],
        one_of=[("model",), ("score",), ("patch", "ablate")],
    ),
    operand=TEXT,
    reader=text_input.read_texts,
    needs_no_input=text_input.replaces_text,
    view=view_scan,
    view_options=lambda stage: ("heatmap",),
    extra={
        "heatmap": Annotated[bool, typer.Option(help="draw a heat map instead of a table")],
        "look": views.LookOptions,
    },
)
def scan(
    source: Sequence[str] | str | Record | None,
    *,
    model_: options.Model = None,
    against: Annotated[
        str | None,
        typer.Option(help="corrupted text with as many tokens as TEXT, which is patched with states of TEXT"),
    ] = None,
    audio: options.Audio = None,
    against_audio: Annotated[
        Record | None, options.file("audio", "corrupted sound, which is patched with states of --audio")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="the word whose logit is the score, a single token: the next one, which begins with its space"
        ),
    ] = None,
    minus: Annotated[str | None, typer.Option(help="subtract the logit of this word")] = None,
    language: Annotated[
        str | None, typer.Option(metavar="NAME", help="language of --audio, as en [default: the most probable one]")
    ] = None,
    languages: options.Translation,
    patch: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="patch these intermediates, by a name or shell pattern: 'decoder.*.self.residual'"
        ),
    ] = None,
    positions: Annotated[bool, typer.Option(help="patch or ablate each position by itself")] = False,
    heads: Annotated[bool, typer.Option(help="patch each head by itself: layer × head")] = False,
    ablate: Annotated[
        Literal["heads"] | None,
        typer.Option(help="heads: set each head of self-attention to 0 by itself: layer × head"),
    ] = None,
    mean: options.Mean = None,
    dtype: Annotated[
        Literal["float32", "float64"] | None, typer.Option(help="compute in this dtype [default: float32]")
    ] = None,
) -> Record:
    """Find where a model stores what decides the next word, by patches or ablations.

    scan patches each layer in turn, with --positions and --heads each position or head of it: it runs the corrupted
    text of --against with that one intermediate replaced by the one of TEXT, the clean text (activation patching). x is
    how much of the difference of the scores it restores, (patched − corrupted) / (clean − corrupted): 0 as for the
    corrupted text, 1 as for the clean one. The score is the logit of --score, less the logit of --minus, after the last
    token, in place of the mask token of a model that has one, or as the first word that an encoder-decoder model, whose
    encoder is patched, makes of the text. `patched`, `clean` and `corrupted` are the scores. For Whisper --audio is the
    clean sound and --against-audio the corrupted one; the score is that of the first word of the transcript.

    --ablate heads sets each head of TEXT to 0, or to its mean over the tokens of --mean FILE: x is how much the score
    changes, ablated − clean; `ablated` and `clean` are the scores.

    A run equals one of decode with --patch, but what a patch does not touch is not computed again: neither earlier
    layers nor, in a causal model, earlier positions.

    \b
    Example:
      attnkit scan --model DIR "A cat." --against "A dog." --score " cat" --patch '*.self.residual' --positions
    """

    if isinstance(source, Record):
        raise UsageError("takes text, got a record", "TEXT")
    texts = [source] if isinstance(source, str) else [*(source or [])]
    if audio is None and len(texts) != 1:
        raise UsageError(f"{len(texts)} texts (expected 1; --against is the other)", "TEXT")
    if audio is not None and texts:
        raise UsageError("replaces text: cannot be combined with TEXT", "--audio")
    clean = ScannedInput(texts[0]) if audio is None else ScannedInput(audio=audio)
    corrupted = ScannedInput(against, against_audio)
    if patch is not None and corrupted == ScannedInput():
        raise UsageError(f"needs {'--against TEXT' if audio is None else '--against-audio FILE'}", "--patch")
    begin = partial(begin_transcript, model_, language, dtype)
    question = ScanOptions(corrupted, score or "", minus, patch, heads, positions, mean, dtype, languages, begin)
    return scan_model(model_, clean, question)


def begin_transcript(checkpoint: "Checkpoint", language: str | None, dtype: str | None, memory: Array) -> list[int]:
    """The ids before the first word of the transcript of a sound, memory (S, D)."""
    from attnkit.generation.options import DecodeOptions, SpeechOptions
    from attnkit.generation.prompts import begin_transcription

    return begin_transcription(DecodeOptions(checkpoint, speech=SpeechOptions(language=language), dtype=dtype), memory)
