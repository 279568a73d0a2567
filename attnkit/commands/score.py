"""attnkit score: the perplexity of a text, BLEU and chrF of translations."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from attnkit import display, options
from attnkit.cli.calls import named_files, tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.operands import read_text, split_lines, stdin_or_error
from attnkit.cli.stage import Stage, read_records, require_record
from attnkit.cli.text_input import looks_like_tensors, upstream_blocks
from attnkit.cli.tool import PythonForm, Records
from attnkit.display.cells import Cells
from attnkit.display.tables import COLUMN_GAP
from attnkit.errors import DataError, UsageError, counted
from attnkit.formats import open_source
from attnkit.generation.length_classes import BY_LENGTH
from attnkit.records import Record

Lines = Sequence[str]
TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "bits_per_byte": "bits per byte",
    "loss": "loss (nats per token)",
    "ndcg": "nDCG",
    "mrr": "MRR",
    "at": "ranks",
}
WITH_BARS = ("bleu", "chrf", "perplexity")
LONGEST_BAR, SHORTEST_BAR = 20, 4  # columns of the bar of the best score
FULL = 100.0  # BLEU and chrF of equal texts


def score_views(record: Record) -> tuple[list[tuple[str, float]], list[str]]:
    scores = [(name, float(record[name])) for name in record if not record[name].ndim]
    return scores, [str(label) for label in record.labels.get("length", [])]


def name_score(name: str, record: Record) -> str:
    """The name of a score as tables show it; chrF includes its orders."""
    metrics = record.labels.get("metric", [])
    return str(metrics[1]) if name == "chrf" and metrics else TITLES.get(name, name)


def view_scores(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    """View the scores as tables, with --by also bars for the classes of lengths."""
    scores, classes = score_views(record)
    names = [name for name in WITH_BARS if name + BY_LENGTH in record]
    bars = [
        display.Bars(name_score(name, record), "length in words", classes, record[name + BY_LENGTH].tolist())
        for name in names
    ]
    blocks: list[display.Block] = [display.Charts("scores by sentence length", bars)] if classes and names else []
    blocks += [score_table(record, scores, style)] if scores else []
    if classes:
        blocks += [display.Only("figure", length_table(record, classes, style, bars=False))]
        blocks += [display.Only("terminal", length_table(record, classes, style, bars=True))]
    return display.ResultView(blocks, lambda: tabulate_scores(record))


def score_table(record: Record, scores: Sequence[tuple[str, float]], style: display.Style) -> display.TextTable:
    """A table of the scores of all texts, with the signatures of BLEU and chrF."""
    signatures = dict(zip(("bleu", "chrf"), record.labels.get("signature", []), strict=False))
    rows = [
        [name_score(name, record), format_score(record, name, value, style), str(signatures.get(name, ""))]
        for name, value in scores
    ]
    columns = 3 if signatures else 2
    return display.TextTable(["score", "value", "signature"][:columns], [row[:columns] for row in rows], [1])


def length_table(record: Record, classes: Sequence[str], style: display.Style, bars: bool) -> display.TextTable:
    """A table of sentences and scores by class of lengths, with bars."""
    names = [name for name in ("sentences", *WITH_BARS) if name + BY_LENGTH in record]
    columns = [["length", *classes], *(number_column(record, name, style) for name in names)]
    taken = sum(max(map(len, column)) + COLUMN_GAP for column in columns)
    room = (style.width - taken) // max(sum(name in WITH_BARS for name in names), 1) - COLUMN_GAP
    if bars and room >= SHORTEST_BAR:
        for at, name in reversed([*enumerate(names, start=2)]):
            if name in WITH_BARS:
                columns.insert(at, bar_column(record, name, min(room, LONGEST_BAR), style))
    headings, *rows = zip(*columns, strict=True)
    return display.TextTable(headings, rows, [at for at, heading in enumerate(headings) if heading and at])


def number_column(record: Record, name: str, style: display.Style) -> list[str]:
    values = record[name + BY_LENGTH].tolist()
    return [name_score(name, record), *(format_score(record, name + BY_LENGTH, value, style) for value in values)]


def bar_column(record: Record, name: str, width: int, style: display.Style) -> list[str]:
    """A column of bars of a score by class of lengths; BLEU and chrF are of 100."""
    values = record[name + BY_LENGTH].tolist()
    most = max(filter(math.isfinite, values), default=0.0) if name == "perplexity" else FULL
    return ["", *(display.draw_bar(value, most, width, style) for value in values)]


def format_score(record: Record, name: str, value: float, style: display.Style) -> str:
    if record[name].dtype.kind == "i":
        return f"{int(value):,}"
    return f"{value:.{style.precision}f}"


def tabulate_scores(record: Record) -> Cells:
    """The scores as cells: one row, or with --by a row for each class."""
    scores, classes = score_views(record)
    if not classes:
        return Cells([name for name, _ in scores], [[record[name][()] for name, _ in scores]])
    names = [name for name in record if name.endswith(BY_LENGTH)]
    rows = [list(row) for row in zip(classes, *(record[name] for name in names), strict=True)]
    return Cells(["length", *(name.removesuffix(BY_LENGTH) for name in names)], rows)


TEXT_NEEDED = "name a text, or pipe it in"


@dataclass(frozen=True)
class RankedRecords:
    """Rankings to score: the records of near or of a reranker."""

    records: Iterator[Record]


@dataclass(frozen=True)
class NamedText:
    """A text to score, and the name of its file."""

    name: str
    text: str


def parse_by(text: str) -> str:
    """The value of --by as written; ValueError if it is not `length:N`."""
    if not re.fullmatch("length:0*[1-9][0-9]{0,8}", text, re.ASCII):
        raise ValueError("length:N, classes of N lengths in words")
    return text


def read_input(stage: Stage, upstream: Records | None) -> Records:
    """Read the text to score, or the rankings, from a file, a stage or standard input."""
    if stage.parameters["relevant"] is not None:
        stream = read_records(stage, upstream, needs_no_input=False)
        return Records(None, iter([RankedRecords(map(require_record, stream.items))]))
    return Records(None, read_lazily(stage, upstream))


def read_lazily(stage: Stage, upstream: Records | None) -> Iterator[NamedText]:
    path = stage.operands[0] if stage.operands else "-"
    if path == "-" and upstream is not None:
        yield NamedText("<stdin>", "".join(f"{line}\n" for block in upstream_blocks(upstream) for line in block))
        return
    source = open_source(path if stage.operands else stdin_or_error(TEXT_NEEDED), hash=path != "-")
    stage.files.source = source
    with source:
        if looks_like_tensors(source.peek(16)):
            raise UsageError("expected text, got a file of tensors", source.name)
        text = read_text(source)
        if not text:
            raise source.empty_error("text")
    yield NamedText(source.name, text)


def read_value(stage: Stage, inputs: Sequence[Any]) -> Records:
    """What a caller in Python passes: a file's name, a list of lines, or rankings."""
    value = inputs[0] if inputs else None
    if stage.parameters["relevant"] is not None and not named_files(stage.tool, value):
        records = [value] if isinstance(value, Record) else value
        if not isinstance(records, list | tuple) or not all(isinstance(one, Record) for one in records):
            raise UsageError(f"expected a record of rankings or a list of them, got {type(value).__name__}", "text")
        return Records(None, iter([RankedRecords(iter(records))]))
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return Records(None, iter([NamedText("text", "".join(f"{line}\n" for line in value))]))
    if paths := named_files(stage.tool, value):
        stage.operands = paths
        return read_input(stage, None)
    raise UsageError(f"expected the name of a file or a list of lines, got {type(value).__name__}", "text")


@tool(
    reader=read_input,
    view=view_scores,
    sections={
        "Perplexity": "model_ window stride languages dtype",
        "Translations": "references chrf_word_order",
        "Classes": "by source",
        "Rankings": "relevant at",
    },
    rules=Constraints(
        exclusive=[("model", "references", "relevant"), ("relevant", "by")],
        requires=[
            *((name, "model") for name in ("window", "stride", *options.Translation._fields, "dtype")),
            *((name, "references") for name in ("chrf_word_order", "source")),
            ("source", "by"),
            ("at", "relevant"),
        ],
        one_of=[("model", "references", "relevant")],
    ),
    without=("tokens", "check_finite"),
    python=PythonForm(inputs={"text": "Sequence[str] | Path | Record | Sequence[Record]"}, reader=read_value),
)
def score(
    text: NamedText | RankedRecords,
    *,
    model_: options.Model = None,
    references: Annotated[
        Sequence[Sequence[str]] | None,
        options.file(
            "lines", "correct translations, a line for each input line; several files comma-separated", "FILES"
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=2, help="number of tokens that the model reads at a time [default: all its positions]"),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1, help="number of tokens from one window to the next, which overlap [default: half a window]"
        ),
    ] = None,
    languages: options.Translation,
    dtype: Annotated[str | None, options.choice(("float32", "float64"), "compute in this dtype")] = None,
    chrf_word_order: Annotated[
        int | None, typer.Option(min=0, help="n-grams of words in chrF too, up to N: 2 is chrF++ [default: 0]")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            parser=parse_by,
            metavar="length:N",
            help="scores of each class of sentence lengths: 1 to N words, N + 1 to 2 N, …",
        ),
    ] = None,
    source: Annotated[
        Sequence[Sequence[str]] | None,
        options.file("lines", "--by counts the words of these lines [default: of the first references]"),
    ] = None,
    relevant: Annotated[
        Record | None,
        options.file(
            "tensor", "relevant rows of rankings: lines of query, row and perhaps grade [default: 1], numbers from 0"
        ),
    ] = None,
    at: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="score the first K ranks of --relevant [default: all]")
    ] = None,
) -> Record:
    """Score a text by a model, translations by references, or rankings by judgments.

    With --model, the perplexity of the input: exp(mean of −log p(token | the tokens before it)). The text is read in
    windows, each of which adds its last tokens; the tokens before them are context. Each window begins with the start
    token of the text (BOS) if the tokenizer adds one. The mean of each window counts as its tokens less one, as on the
    page "Perplexity of fixed-length models" of transformers. `loss` is the mean over all tokens, `bits_per_byte` the
    sum of −log₂ p for each byte of the text in UTF-8; neither depends on such weights. The first token is not
    predicted. The record states `window`, `stride` and `bos`. For an encoder-decoder model, the input is lines of
    source, tab, target: the perplexity is of the targets with their end tokens.

    With --references, the input is translations, a line each: BLEU and chrF as sacrebleu computes and signs them.

    With --relevant, the input is records of near or of decode --rerank, whose queries count from 0: nDCG (the gain is
    the grade), recall and MRR (mean reciprocal rank) as trec_eval defines them, the means and those of each query.

    \b
    Examples:
      attnkit score --model DIR tale.txt
      cut -f1 pairs.tsv | attnkit decode --model DIR --lines --emit text > out.txt
      cut -f2 pairs.tsv | attnkit score out.txt --references - --by length:10
      attnkit near --index docs.npz --top 10 queries.npz | attnkit score --relevant qrels.tsv
    """
    if isinstance(text, RankedRecords):
        return score_rankings(text, relevant, at)
    if references is not None:
        return score_by_references(text, references, chrf_word_order or 0, by, source)
    from attnkit.generation.options import refuse_options
    from attnkit.generation.perplexity import check_scorable, measure_targets, measure_text

    check_scorable(model_)
    dtype = dtype or str(model_.params["decoder.embed"]["table"].dtype.name)
    if model_.config.encoder is not None:
        refuse_options("a text, and this model takes pairs", window=window, stride=stride)
        from attnkit.inputs.text_columns import parse_pairs

        pairs = parse_pairs(text.text, text.name)
        return measure_targets(model_, pairs, text.name, class_width(by) if by else None, dtype, languages)
    refuse_options("--references, or a model that takes pairs", by=by, **languages._asdict())
    return measure_text(model_, text.text, text.name, window, stride, dtype)


def score_rankings(rankings: RankedRecords, relevant: Record | None, at: int | None) -> Record:
    """The quality of rankings by the judgments of --relevant."""
    from attnkit.generation.ranking_scores import measure_rankings

    return measure_rankings(rankings.records, relevant or Record({}), at)


def score_by_references(
    text: NamedText, references: Sequence[Lines], word_order: int, by: str | None, source: Sequence[Lines] | None
) -> Record:
    """BLEU and chrF of translations, with `by` also of classes of lengths."""
    from attnkit.generation.length_classes import classify_lengths
    from attnkit.generation.translation_scores import measure_translations

    hypotheses = split_lines(text.text, text.name)
    names = ["--references" + f" {at + 1}" * (len(references) > 1) for at in range(len(references))]
    check_lines(hypotheses, references, [text.name, *names])
    if source is not None and len(source) != 1:
        raise UsageError(f"expected one file, got {len(source)}", "--source")
    check_lines(hypotheses, source or [], [text.name, *["--source"] * bool(source)])
    groups = classify_lengths((source or references)[0], class_width(by)) if by else {}
    return measure_translations(hypotheses, references, word_order, groups)


def class_width(by: str) -> int:
    """How many lengths a class of --by has.

    >>> class_width("length:10")
    10
    """
    return int(by.partition(":")[2])


def check_lines(hypotheses: Lines, others: Sequence[Lines], names: Sequence[str]) -> None:
    """Raise DataError unless texts have a line for each hypothesis.

    >>> check_lines(["a", "b"], [["a"]], ["out.txt", "refs.txt"])
    Traceback (most recent call last):
    attnkit.errors.DataError: refs.txt: 1 line for the 2 lines of out.txt
    """
    count = len(hypotheses)
    for lines, name in zip(others, names[1:], strict=True):
        if len(lines) != count:
            problem = f"{counted(len(lines), 'line')} for the {counted(count, 'line')}"
            raise DataError(f"{problem} of {names[0]}", name)
