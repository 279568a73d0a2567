"""attnkit decode: hidden states to logits, words, or with a model a text."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from attnkit import callbacks, model, options, tokenizers
from attnkit.cli import text_input
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PythonForm
from attnkit.errors import AttnkitWarning, DataError, UsageError, counted, with_article
from attnkit.generation.options import (
    CANDIDATES,
    CHECK_TOLERANCE,
    Chat,
    GenerationOptions,
    Inspection,
    Search,
    asks_for_next_word,
    generates_text,
    refuse_options,
)
from attnkit.inputs import layers
from attnkit.inputs.operands import cast_x
from attnkit.inputs.output_matrix import OutputLogits, OutputOperands, find_output_matrix
from attnkit.model.dtypes import quiet
from attnkit.model.formulas.sampling import SYMBOLS, Sampling
from attnkit.records import Array, Labels, Record, Tensor, row_labels, shared_labels
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit import display
    from attnkit.display.cells import Cells
    from attnkit.generation.labels import LabelRow
    from attnkit.model import Config


def list_candidates(record: Record, config: model.Config | None, count: int) -> list[display.Candidates]:
    """The most probable words of x (..., T, V) at each position but padding.

    config  of the model that computed x, if there is one; count  words for each position
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
    """Tables of the candidates of each choice of a generation."""
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
    """The most probable words at each position as cells, a row for each word."""
    from attnkit.display.cells import Cells

    lists = list_candidates(record, config, count)
    rows = []
    for batch, one in enumerate(lists):
        for position, (name, ids, probs) in enumerate(zip(one.rows, one.ids, one.probs, strict=True)):
            for rank, (word, share) in enumerate(zip(ids.tolist(), probs, strict=True)):
                spelling = one.words[word] if one.words else ""
                rows.append([*[batch] * (len(lists) > 1), position, name, rank, word, spelling, share])
    return Cells([*["batch"] * (len(lists) > 1), "position", "token", "rank", "id", "word", "probability"], rows)


def score_cells(record: Record) -> Cells:
    """The log-probability, probability and rank of each token as cells."""
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
    """The candidates of --steps as cells, a row for each candidate."""
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


def segment_cells(record: Record) -> Cells:
    """The begin, the end and the text of each segment of a sound as cells."""
    from attnkit.display.cells import Cells

    rows = zip(record["start"], record["end"], record.labels["segment"], strict=True)
    return Cells(["start", "end", "text"], [[start, end, str(text).strip()] for start, end, text in rows])


def _find_titles(config: model.Config) -> tuple[str, str]:
    if config.vector_width:
        return "label", "image"
    if config.frame_labels:
        return "label of each frame", "frame"
    if config.classes:
        return ("class", "image") if config.patches else ("label", "text")
    return ("next word" if config.decoder else "word at each position"), "position"


def list_scores(record: Record, style: display.Style) -> list[display.TextTable]:
    """Tables of the scores of the tokens of each text but padding."""
    from attnkit import display

    tables = []
    arrays = (np.atleast_2d(record[name]) for name in ("x", "ids", "rank"))
    for row, (x, ids, rank) in enumerate(zip(*arrays, strict=True)):
        tokens = row_labels(record.labels.get("token"), row) or [str(word) for word in ids]
        real = [at for at, name in enumerate(tokens) if name not in tokenizers.PADDING or rank[at]]
        x, ids, rank = (column[real].tolist() for column in (x, ids, rank))
        tables.append(display.scores_table([tokens[at] for at in real], ids, x, rank, style))
    return tables


LABELLED = {"sequence": "text", "token": "token"}


def shown_labels(record: Record, stage: Stage) -> list[LabelRow]:
    from attnkit.generation.labels import list_labels

    return list_labels(record, stage.files.loaded["model_"].config, stage.parameters["top"])


def label_table(record: Record, stage: Stage, style: display.Style) -> display.TextTable:
    """A table of labels: label and score, the characters of a span, what is labelled."""
    from attnkit import display

    cells = label_cells(record, stage)
    texts = [
        [f"{value:.{style.precision}f}" if isinstance(value, float) else str(value) for value in row]
        for row in cells.rows
    ]
    numbers = [at for at, heading in enumerate(cells.heads) if heading in ("batch", "score", "start", "end")]
    return display.TextTable(list(cells.heads), texts, numbers)


def label_cells(record: Record, stage: Stage) -> Cells:
    from attnkit.display.cells import Cells

    rows, is_span = shown_labels(record, stage), record.axes_of("x")[0] == "span"
    task = stage.files.loaded["model_"].config.task
    is_batch = any(row.text is not None for row in rows) and (is_span or task == "token")
    part = [] if record["x"].ndim == 1 else ["span" if is_span else LABELLED[task]]
    headings = ["batch"] * is_batch + ["label", "score"] + ["start", "end"] * is_span + part
    cells = [
        [row.text] * is_batch + [row.label, row.score] + [row.start, row.end] * is_span + [row.part] * len(part)
        for row in rows
    ]
    return Cells(headings, cells)


SHARES = (("vocab",), ("label",))  # last axes of x whose numbers are the shares of words or labels


def view_decoded(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    """View generated text as text, probabilities as a table of likely words."""
    from attnkit import display
    from attnkit.cli import views

    if stage.parameters["attribute"]:
        from attnkit.cli.attribution_views import attribution_view

        return attribution_view(record, stage, style)
    if gives_labels(record, stage):
        from attnkit.display.text import escape

        table = label_table(record, stage, style)
        if record["x"].ndim > 1:
            return display.ResultView([table], lambda: label_cells(record, stage))
        rows = shown_labels(record, stage)
        lines = "\n".join(f"{escape(row.label, style)}  {row.score:.{style.precision}f}" for row in rows)
        blocks = [display.Only("terminal", display.Text(lines)), display.Only("figure", table)]
        return display.ResultView(blocks, lambda: label_cells(record, stage))
    if makes_text(stage):
        return view_generation(record, stage, style)
    if gives_spelling(record, stage):
        texts = shared_labels(record.labels["text"])
        return display.ResultView([display.Text(display.dim_then_bold("", text, style)) for text in texts])
    if is_plain_tensor(record, stage):
        return display.ResultView([views.tensor_view(record, "x", style)])
    has_steps = stage.parameters["steps"] or stage.parameters["keep"]
    steps = views.computed_view(record, stage, style).blocks if has_steps else []
    config, count = find_config(stage), stage.parameters["top"] or CANDIDATES
    candidates = list_candidates(record, config, count)
    return display.ResultView([*steps, *candidates], lambda: word_cells(record, config, count))


def gives_labels(record: Record, stage: Stage) -> bool:
    config = find_config(stage)
    is_labelled = record.axes_of("x")[-1:] == ("label",) and stage.parameters["emit"] is None
    return config is not None and bool(config.task) and is_labelled


def spells_text(stage: Stage) -> bool:
    """Whether decode labels the frames of a sound."""
    config = find_config(stage)
    return config is not None and bool(config.frame_labels) and stage.parameters["layer"] is None


def gives_spelling(record: Record, stage: Stage) -> bool:
    """Whether the result is shown as the text that the labels of frames spell."""
    is_text = not stage.parameters["emit"] and not stage.parameters["top"]
    return spells_text(stage) and is_text and "text" in record.labels


def makes_text(stage: Stage) -> bool:
    """Whether decode runs a model that continues, translates or scores texts."""
    config = find_config(stage)
    return config is not None and generates_text(config, stage.parameters["layer"])


def shows_choices(record: Record, stage: Stage) -> bool:
    """Whether the result is shown as the candidates of the next word."""
    return asks_for_next_word(stage.parameters["top"], stage.parameters["steps"]) and {"x", "candidates.ids"} <= {
        *record
    }


def is_plain_tensor(record: Record, stage: Stage) -> bool:
    """Whether x is shown as a tensor, because its numbers are no shares of words."""
    return bool(stage.parameters["emit"]) or record.axes_of("x")[-1:] not in SHARES


def find_config(stage: Stage) -> Config | None:
    checkpoint = stage.files.loaded.get("model_")
    return None if checkpoint is None else checkpoint.config


def view_generation(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    """View generated texts after their dim prompts, scores and choices as tables."""
    from attnkit import display
    from attnkit.cli import views

    cells = (lambda: step_cells(record)) if "candidates.ids" in record else None
    if shows_choices(record, stage):
        return display.ResultView(list_choices(record, style), cells)
    texts = shared_labels(record.labels.get("text"))
    if stage.parameters["emit"] not in (None, "text") or not (texts or "rank" in record):
        return views.computed_view(record, stage, style)._replace(cells=cells)
    if "rank" in record:
        return display.ResultView(list_scores(record, style), lambda: score_cells(record))
    if stage.parameters["timestamps"] and "segment" in record.labels:
        from attnkit.generation.transcription import segment_lines

        return display.ResultView([display.Text("\n".join(segment_lines(record)))], lambda: segment_cells(record))
    scores = record["scores"].tolist() if "scores" in record and len(texts) > 1 else []
    prompts = shared_labels(record.labels.get("prompt")) or [""] * len(texts)
    blocks = []
    for at, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        rest = text[len(prompt) :] if text.startswith(prompt) else text
        line = display.dim_then_bold(prompt if text.startswith(prompt) else "", rest, style)
        blocks.append(display.Text(f"{scores[at]:.{style.precision}f}  {line}" if scores else line))
    return display.ResultView(blocks, cells)


def check_length_penalty(text: str) -> str:
    """Check a length penalty; ValueError names its forms.

    >>> check_length_penalty("gnmt:0.6")
    'gnmt:0.6'
    """
    name, _, exponent = text.partition(":")
    with contextlib.suppress(ValueError):
        if name in model.LENGTH_PENALTIES and math.isfinite(float(exponent)):
            return text
    raise ValueError("gnmt:A or average:A")


STEPS = ("logits", "scaled", "filtered", "probs")  # of hidden states: what --keep takes
SEARCH = Search._fields
CHOOSING = ("max_tokens", "min_tokens", "repetition_penalty", "no_repeat_ngram")
GENERATION = ("memory", "score", *CHOOSING, *SEARCH, "stop", "cache_in", "cache_out")
AGGREGATIONS = ("none", "simple", "first", "average", "max")  # how tokens are joined to entities
LABELLING = ("pair", "question", "aggregate")
CHOICE = (*SEARCH, *Sampling._fields, "score", *CHOOSING, "stop", "cache_out")
NEEDS_MODEL = (
    "chat",
    "ids",
    "image",
    "audio",
    "language",
    "task",
    "timestamps",
    "source_language",
    "target_language",
    "batch",
    "labels",
    *LABELLING,
    *GENERATION,
    *Inspection._fields,
    "tokenizer",
    "layer",
)
EXCLUSIVE = [
    *(("model", "params", "table"), ("lines", "batch"), ("beam", "emit=logits|probs"), ("pair", "question")),
    *(("beam", name) for name in (*Sampling._fields, "cache_out", "top")),
    *(("score", name) for name in (*CHOOSING, *SEARCH, *Sampling._fields, "stop", "steps")),
    ("score", "top"),
    *(("timestamps", name) for name in ("score", "best", "stop", "cache_out", "trace", "grad", "attribute")),
    *(("grad", name) for name in ("patch", "ablate", "cache_in")),
    ("trace", "best"),
    *(("attribute", name) for name in ("patch", "ablate", "cache_in", "emit")),
    *(("chat", name) for name in ("ids", "image", "memory", "cache_in", "layer", *LABELLING)),
    *((one, name) for name in ("source_language", "target_language") for one in ("audio", "cache_in")),
    ("ids", "target_language"),
    *(
        ("audio", name)
        for name in ("batch", "lines", "ids", "image", "memory", "chat", "cache_in", "layer", "labels", *LABELLING)
    ),
    *(("labels", name) for name in ("layer", *CHOICE, *Inspection._fields, *LABELLING, "vocab")),
    *(("emit=prompt", name) for name in (*CHOICE, *Inspection._fields, "steps", "top", "dtype")),
]
REQUIRES = [
    *((flag, "model") for flag in NEEDS_MODEL),
    *(("best", "beam"), ("length_penalty", "beam"), ("trace_only", "trace"), ("mean", "ablate")),
    *(("grad", "score"), ("grad_only", "grad"), ("check", "grad"), ("attribute", "score")),
    *((name, "chat") for name in (*Chat._fields, "emit=prompt")),
    ("labels", "image"),
    *((name, "audio") for name in ("language", "task", "timestamps")),
]


def requests_tensors(stage: Stage) -> bool:
    """Whether an option requests tensors beside x, which no format may lose."""
    values = stage.parameters
    lists_words = asks_for_next_word(values["top"], values["steps"]) and makes_text(stage)
    return lists_words or any(values[name] for name in ("best", "keep", "steps"))


def parse_date(text: str) -> str:
    """The value of --date as written; ValueError if it is no date.

    >>> parse_date("2024-07-26T12:30")
    '2024-07-26T12:30'
    """
    from datetime import datetime

    try:
        is_local = datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        is_local = False
    if not is_local:
        raise ValueError("a date as 2024-07-26, or with a time as 2024-07-26T12:30")
    return text


@tool(
    sections={
        "Model and input": "model_ layer ids pair image audio language task timestamps memory tokenizer batch lines",
        "Translation": "source_language target_language",
        "Chat": "chat system messages variable date template",
        "Labels": "labels question aggregate",
        "Hidden states without a model": "table params vocab",
        "Sampling": "temperature top_k top_p min_p seed repetition_penalty no_repeat_ngram",
        "Search": "beam best length_penalty",
        "Length": "max_tokens min_tokens stop cache_in cache_out",
        "Inspection": "steps keep top score trace trace_only patch ablate mean grad grad_only check attribute",
        "Results": "emit dtype",
        "Engine": "engine",
    },
    rules=Constraints(exclusive=EXCLUSIVE, requires=REQUIRES),
    operand="[INPUT | TEXT...]",
    reader=text_input.read_prompts,
    view=view_decoded,
    view_options=lambda stage: () if makes_text(stage) or spells_text(stage) else ("top",),
    status=lambda record, stage: int(not all(error <= CHECK_TOLERANCE for error in stage.extra.get("errors", []))),
    needs_no_input=text_input.needs_no_input,
    extra={
        "lines": Annotated[bool, typer.Option(help="write a stream: one record for each line of text")],
        "engine": options.EngineOptions,
    },
    python=PythonForm(options=options.ENGINE_KEYWORDS),
    record_defaults=lambda parameters: (
        {"seed": parameters["seed"] or 0} if any(parameters[name] is not None for name in Sampling._fields) else {}
    ),
    gives=lambda stage: "text" if stage.parameters["emit"] in ("text", "prompt") else "record",
    tables_aside=lambda parameters: bool(parameters["steps"]) and parameters["model_"] is None,
    adds=requests_tensors,
)
def decode(
    record: Sequence[str] | Record | None,
    *,
    model_: options.Model = None,
    layer: Annotated[
        str | None, typer.Option(metavar="NAME", help="head: apply only the output head of the model to hidden states")
    ] = None,
    ids: Annotated[
        Record | None,
        options.file(
            "ids",
            "token ids (T) or (B, T), instead of text; in an encoder-decoder model, the first tokens of the target",
        ),
    ] = None,
    pair: options.Pair = None,
    labels: Annotated[
        tuple[str, ...],
        options.names("comma-separated texts that --image is compared with, by a model of both (CLIP, SigLIP)"),
    ] = (),
    question: Annotated[
        str | None, typer.Option(help="answer this question by a part of TEXT, with a model that answers questions")
    ] = None,
    aggregate: Annotated[
        str | None,
        options.choice(
            AGGREGATIONS,
            "join labelled tokens to spans: none (each token by itself), simple (neighbors of one label), or words by "
            "their first token, the average or the max of their probabilities",
        ),
    ] = None,
    image: options.Image = None,
    audio: options.Audio = None,
    language: Annotated[
        str | None, typer.Option(metavar="NAME", help="language of --audio, as en [default: the most probable one]")
    ] = None,
    task: Annotated[
        Literal["transcribe", "translate"] | None,
        typer.Option(help="write --audio in its language or, translated, in English [default: transcribe]"),
    ] = None,
    timestamps: Annotated[
        bool, typer.Option(help="begin and end of each segment of the text of --audio, in seconds")
    ] = False,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
    memory: Annotated[
        Any, options.file("memory", "encoder output for cross-attention: a file from encode, or :memory")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="generate at most N tokens; some models force the end token as the last one (not with --cache-out); "
            "0: only score the prompt [default: 40; for an encoder-decoder model and --chat 256; for each window of "
            "--audio as many as the model has positions]",
        ),
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option(min=0, help="do not end before N tokens are generated [default: 0]")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="compute the log-probability of each token of TEXT, after the prompt; a new word begins with its space"
        ),
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="beam search with N beams")] = None,
    best: Annotated[
        int | None, typer.Option(min=1, help="return the N best texts of the beam search, the best one first")
    ] = None,
    length_penalty: Annotated[
        str | None,
        typer.Option(
            parser=check_length_penalty,
            metavar="gnmt:A|average:A",
            help="divide the log-probability of a beam by ((5 + length) / 6)^A, or by length^A [default: average:1]",
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            click_type=options.ABOVE_0,
            metavar="P",
            help="make earlier tokens less probable: divide positive logits by P, multiply negative ones by P",
        ),
    ] = None,
    no_repeat_ngram: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="never generate the same N tokens in a row twice"),
    ] = None,
    stop: Annotated[
        tuple[str, ...], typer.Option(metavar="TEXT", help="end the generation before TEXT (may be repeated)")
    ] = (),
    steps: Annotated[
        bool,
        typer.Option(
            help="add the candidates of every choice (candidates.ids, …), show them in the figure or on standard "
            "error; of hidden states the logits and what is made of them"
        ),
    ] = False,
    keep: Annotated[
        tuple[str, ...],
        options.names(
            "of hidden states, add these steps; scaled: logits / τ; filtered: by --top-k, --top-p and --min-p",
            (*STEPS, "all"),
        ),
    ] = (),
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="number of candidates in the table, or at each step of --steps [default: 5]; alone, with a model that "
            "generates text: the candidates of the next word, or of --max-tokens words",
        ),
    ] = None,
    batch: Annotated[bool, typer.Option(help="make one batch of all texts, or of all lines of standard input")] = False,
    cache_in: Annotated[
        Mapping[str, Array] | None,
        options.file("tensors", "continue from the KV cache in FILE, written by --cache-out"),
    ] = None,
    cache_out: Annotated[
        str | None, typer.Option(metavar="FILE", help="write the KV cache (keys and values of all tokens) to FILE")
    ] = None,
    tokenizer: Annotated[
        Tokenizer | None, options.file("tokenizer", "tokenizer.json that replaces the tokenizer of the model")
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            help="answer TEXT, the message of a user, which the chat template of the model makes a prompt; the text of "
            "the result is the answer alone"
        ),
    ] = False,
    system: Annotated[str | None, typer.Option(help="first message of the chat, of the role system")] = None,
    messages: Annotated[
        list[Mapping[str, Any]] | None,
        options.file(
            "messages",
            'earlier messages of the chat: JSON lines {"role": …, "content": …}; without TEXT the whole chat, whose '
            "last message is continued if its role is assistant",
        ),
    ] = None,
    variable: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME=VALUE",
            help="set a variable of the chat template, as enable_thinking=false; VALUE is JSON, else a text (may be "
            "repeated)",
        ),
    ] = (),
    date: Annotated[
        str | None,
        typer.Option(
            parser=parse_date,
            metavar="DATE",
            help="date and time that the chat template writes, as 2024-07-26 or 2024-07-26T12:30 [default: now]",
        ),
    ] = None,
    template: Annotated[
        str | None, options.file("template", "chat template (Jinja) that replaces the template of the model")
    ] = None,
    trace: options.Trace = None,
    trace_only: options.TraceOnly = (),
    patch: options.Patch = None,
    ablate: options.Ablate = (),
    mean: options.Mean = None,
    grad: options.Grad = None,
    grad_only: options.GradOnly = (),
    check: options.CheckGrad = False,
    attribute: Annotated[
        str | None, options.attribution("the log-probability of --score, the sum over its tokens")
    ] = None,
    table: Annotated[
        Record | None,
        options.file("tensor", "embedding table (vocab, model), used as output matrix [default: the record's table]"),
    ] = None,
    params: Annotated[
        Mapping[str, Array] | None, options.file("tensors", "separate output matrix w (D, N) and bias b")
    ] = None,
    vocab: Annotated[
        list[str] | None, options.file("words", "vocabulary: one word per line, or JSON {word: id}")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            click_type=options.ABOVE_0, metavar="T", help="sampling temperature τ: probabilities = softmax(logits / τ)"
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="sample from the K most probable tokens")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            click_type=options.SHARE,
            metavar="P",
            help="sample from the fewest tokens whose probabilities sum to P or more",
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, metavar="P", help="sample from tokens that are at least P times as probable as the best token"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="seed of the sampling; each text of a batch has the same random numbers as alone [default: 0]"
        ),
    ] = None,
    emit: Annotated[
        Literal["text", "prompt", "ids", "logits", "probs"] | None,
        typer.Option(
            help="text: print only the text; prompt: print what --chat makes of its messages, and generate nothing; "
            "ids, logits, probs: return this tensor as x"
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        options.choice(options.DTYPES, "convert the input x to this dtype; with --model, compute in this dtype"),
    ] = None,
) -> Record | str:
    """Map hidden states to logits, probabilities and words, or generate text.

    logits = x Wᵀ with the embedding table W, or x W with the matrix of --params; probabilities = softmax(logits / τ).
    The record gets `logits`, `next` (the chosen id at each position), and the probabilities as x. By default,
    decode chooses the most probable token (greedy decoding; of equal tokens, the first). With --temperature,
    --top-k, --top-p, --min-p or --seed, it samples a token.

    With --model, decode generates text. The input is TEXT, lines of standard input, --ids, or a record with ids; for an
    encoder-decoder model it is the source text, or a record from encode; for Whisper it is --audio, as for wav2vec 2.0,
    whose labels of frames spell a text (CTC). A sound that is
    longer than the model reads at once is read in windows, each from the last time of the text before; the record then
    has, as with --timestamps, `start` and `end` of each segment in seconds. Generation ends at the model's end token,
    at --stop, or after --max-tokens tokens. In the result, x is the log-probability of each new token, `ids` are
    the tokens, and `mask` marks the padding if the rows of a batch have different lengths. --emit text prints the
    whole text (of a translation, only the target). In an encoder-decoder model, --ids follow the start token of the
    target. --cache-in needs no TEXT; if there is TEXT, it follows the tokens of the cache. --trace has the
    intermediates of one pass over the whole text, prompt and new tokens (of beams, the best), as --score gives them.

    If the model has no decoder, or is a classifier, decode applies its head to TEXT, --ids, --image, or hidden states
    in a record; --emit text then prints TEXT with a word for each [MASK], or the label of the text or image. If the
    model has a decoder but no vocabulary, the decoder's input is x, which attends to --memory FILE or to the record's
    memory.

    If the head of the model gives labels, as config.json names them, x is their scores on the axis `label`, beside
    `logits`, `probs` and `next` (the best one): of TEXT or of a pair, of each token, or with --aggregate of spans.
    With --labels, a model of texts and images says which of them an --image is like: logits are exp(logit_scale)
    times the cosines of their vectors. With --question, x is the scores of the best answers, of at most 15 tokens. A
    span has its first character in `start`, and the one after its last in `end`; in a batch `text` is the number of
    its text. --top N lists more.

    \b
    Examples:
      attnkit embed "The cat sat" --dim 8 | attnkit attend | attnkit decode --top 3
      attnkit decode --model DIR "Once upon a time" --max-tokens 40 --top-p 0.9
      attnkit encode --model DIR "je suis étudiant" | attnkit decode --model DIR --beam 4
      attnkit decode --model DIR --chat "Who wrote Hamlet?" --system "Answer in one word."
      attnkit decode --model DIR "the [MASK] sat"
      attnkit decode --model DIR --question "who sat?" "the cat sat on the mat"
      attnkit decode --model DIR --image FILE --labels "a photo of a cat,a photo of a dog"
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, seed)
    if model_ is None:
        states = require_hidden_states(record)
        output, formula = apply_output_matrix(states, table, params, dtype)
        return choose_output(replace_words(output, vocab), formula, sampling, emit, steps, keep)
    config = model_.config
    if vocab is not None and generates_text(config, layer):
        raise UsageError("--model and --vocab are mutually exclusive where the model generates text")
    if image is not None and not config.patches and not labels:
        hint = "; --labels NAMES compares one with texts" if model_.similarity else ""
        raise UsageError(f"{with_article(config.family)} model takes no image{hint}", "--image")
    if audio is not None and not config.sound:
        raise UsageError(f"{with_article(config.family)} model takes no sound", "--audio")
    if dtype not in (None, "float32", "float64"):
        raise UsageError(f"{dtype}: a model computes in float32 or float64", "--dtype")
    settings = GenerationOptions(
        model_=model_, ids=ids, image=image, memory=memory, tokenizer=tokenizer, batch=batch,
        audio=audio, language=language, task=task, timestamps=timestamps,
        source_language=source_language, target_language=target_language,
        pair=pair, question=question, aggregate=aggregate, max_tokens=max_tokens, score=score,
        repetition_penalty=repetition_penalty, no_repeat_ngram=no_repeat_ngram, min_tokens=min_tokens,
        stop=stop, emit=emit, steps=steps, top=top,
        cache_in=cache_in, cache_out=cache_out, dtype=dtype, sampling=sampling,
        search=Search(beam, best, length_penalty),
        inspection=Inspection(trace, trace_only, patch, ablate, mean, grad, grad_only, check, attribute),
        chat=Chat(system, messages or (), variable, template, date) if chat else None,
    )  # fmt: skip
    if labels:
        from attnkit.generation.zero_shot import compare_with_labels

        output = compare_with_labels(labels, settings)
        assert model_.similarity is not None
        result = choose_output(output, model_.similarity.formula, sampling, emit, steps, keep)
        return result if isinstance(result, str) else result.with_tensors({}, {"function": [output.function]})
    if config.encoder or not generates_text(config, layer):
        refuse_options("a decoder that generates text", chat=chat)
    if generates_text(config, layer):
        refuse_options("hidden states; --trace keeps the intermediates of a text", keep=keep)
        return generate_text(record, settings)
    from attnkit.generation.output_head import apply_output_head, run_decoder_stack

    if layer is None and config.decoder is not None and not config.classes:
        return run_decoder_stack(require_hidden_states(record), settings)
    source = prepare_source(record, layer, settings)
    if config.frame_labels and layer is None:
        from attnkit.generation.frame_labels import label_sound

        refuse_options("a model that predicts words", vocab=vocab, keep=keep)
        return label_sound(source, settings)
    if config.task:
        return label_input(source, vocab, keep, settings)
    output = replace_words(apply_output_head(source, settings), vocab)
    return choose_output(output, "head(x)", sampling, emit, steps, keep, fills_masks=not config.decoder)


def generate_text(source: Sequence[str] | Record | None, settings: GenerationOptions) -> Record | str:
    from attnkit.generation.text_generation import run_decode  # a head alone does not need it

    if settings.audio is not None:
        from attnkit.generation.transcription import reads_windows, transcribe

        if reads_windows(settings):
            return transcribe(settings.audio, settings)
    return run_decode(source, settings)


def choose_output(
    output: OutputLogits,
    formula: str,
    sampling: Sampling,
    emit: str | None,
    steps: bool,
    keep: tuple[str, ...],
    fills_masks: bool = False,
) -> Record | str:
    """Choose words by logits, whose formula is passed, as a record or as text."""
    arrays = choose_words(output, sampling, with_ids=emit not in ("logits", "probs"))
    if emit == "text":
        return words_to_text(output, arrays["ids"], fills_masks)
    formulas = {
        "logits": formula,
        "probs": f"{sampling.formula(output.function)}, logits = {formula}",
        "ids": "drawn" if sampling.is_sampled else "argmax(logits)",
    }
    record = make_decoded_record(output, arrays, emit, formulas[emit or "probs"])
    if not steps and not keep:
        return record
    formulas = sampling.step_formulas(formula, output.function)
    if missing := [name for name in keep if name not in (*formulas, "all")]:
        raise UsageError(f"there is no {missing[0]} (it has {', '.join(formulas)})", "--keep")
    is_last_x = steps and "all" not in keep and "probs" not in keep  # the probabilities are x
    names = [name for name in formulas if steps or "all" in keep or name in keep]
    names = names[:-1] if is_last_x else names
    return add_steps(record, output, arrays | filtering_steps(output.logits, sampling), formulas, names)


def require_hidden_states(source: Sequence[str] | Record | None) -> Record:
    if isinstance(source, Record):
        return source
    raise UsageError("expected hidden states in a record, got text" if source else "no record to decode")


def label_input(
    source: Sequence[str] | Record | None, vocab: list[str] | None, keep: tuple[str, ...], settings: GenerationOptions
) -> Record | str:
    from attnkit.generation.labels import label_inputs, labels_to_text, select_labels

    refuse_options("a model that predicts words", vocab=vocab, steps=settings.steps, keep=keep)
    record = label_inputs(source, settings)
    if settings.emit == "text":
        return labels_to_text(record, settings.model_.config)
    return select_labels(record, settings.emit)


def prepare_source(
    source: Sequence[str] | Record | None, layer: str | None, settings: GenerationOptions
) -> Sequence[str] | Record | None:
    """Check the options and the input of a head; cast hidden states to --dtype."""
    config = settings.model_.config
    if layer is not None:
        source = require_hidden_states(source)
    other = "not its head alone" if layer is not None else f"which this {config.family} model is not"
    refuse_options(
        f"a model that generates text, {other}",
        memory=settings.memory,
        score=settings.score,
        max_tokens=settings.max_tokens,
        min_tokens=settings.min_tokens,
        repetition_penalty=settings.repetition_penalty,
        no_repeat_ngram=settings.no_repeat_ngram,
        **settings.search._asdict(),
        stop=settings.stop,
        cache_in=settings.cache_in,
        cache_out=settings.cache_out,
    )
    labelling = {"question": settings.question, "aggregate": settings.aggregate}
    if not config.task:
        refuse_options("a model with a head of labels", **labelling)
    if layer is not None:
        layers.find_layer(settings.model_, layer, "decode")
    if isinstance(source, Record):
        texts = {"ids": settings.ids, "image": settings.image, "batch": settings.batch, "pair": settings.pair}
        refuse_options("text, not hidden states", **texts, **labelling)
        return cast_x(source, settings.dtype) if settings.dtype is not None and "x" in source else source
    return source


def apply_output_matrix(
    record: Record, table: Record | None, params: Mapping[str, Array] | None, dtype: str | None
) -> tuple[OutputLogits, str]:
    """Map hidden states (..., D) to logits (..., N) by an output matrix."""
    record = record if dtype is None else cast_x(record, dtype)
    weight, bias, words, formula = find_output_matrix(record, table, params)
    logits = model.logits(record["x"], weight, bias)
    callbacks.current().on_operands(OutputOperands(record, logits, None, weight, bias))
    return OutputLogits(record, logits, words, None), formula


def replace_words(output: OutputLogits, vocab: list[str] | None) -> OutputLogits:
    words, count = vocab or output.words, output.logits.shape[-1]
    if words and len(words) != count:
        problem = f"{counted(len(words), 'word')} for {counted(count, 'logit')}"
        raise DataError(problem, "--vocab" if vocab else "labels of axis 'vocab'")
    return output._replace(words=words, join=None if vocab else output.join)


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


def add_steps(
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
