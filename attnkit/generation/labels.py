"""Spans of a text: entities by labels of tokens, answers by logits of their ends.

The rules follow transformers' TokenClassificationPipeline and QuestionAnsweringPipeline.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitNote, DataError, UsageError
from attnkit.generation.options import DecodeOptions
from attnkit.generation.output_head import HeadTask, apply_output_head
from attnkit.generation.perplexity import slide_window
from attnkit.generation.task import Input
from attnkit.inputs import text_inputs
from attnkit.inputs.output_matrix import OutputLogits
from attnkit.inputs.padding import find_real_tokens
from attnkit.model.formulas.sampling import Sampling
from attnkit.records import Array, Labels, Record, Tensor
from attnkit.tokenizers import Tokenizer, TokenPlaces

if TYPE_CHECKING:
    from attnkit import display
    from attnkit.model import Config

OUTSIDE = "O"  # the label of tokens of no entity
LONGEST_ANSWER = 15  # tokens
WINDOW, OVERLAP = 384, 128  # tokens that are read at once to answer a question, and those of the window before


class Span(NamedTuple):
    """A part of a text, characters `start` to `end` - 1, with its label and score."""

    label: str
    score: float
    start: int
    end: int


def group_names(labels: Sequence[str], strategy: str | None) -> list[str]:
    """The labels that spans can have: without B- and I- if tokens are joined.

    >>> group_names(["O", "B-PER", "I-PER"], "simple"), group_names(["O", "B-PER", "I-PER"], "none")
    (['PER'], ['B-PER', 'I-PER'])
    """
    names = labels if strategy == "none" else [name.split("-", 1)[-1] for name in labels]
    return [name for name in dict.fromkeys(names) if name != OUTSIDE]


def find_entities(probs: Array, places: TokenPlaces, labels: Sequence[str], strategy: str) -> list[Span]:
    """The spans of a text whose tokens have a label other than O.

    probs  (T, C), of each token

    none: each token by itself. simple: neighbors of one label are one span, but a label B- begins a new one. first,
    average, max: the same, once all tokens of a word have one label: the label of the first token, of their mean
    probabilities, or of the token with the largest probability.

    >>> places = TokenPlaces([(0, 3), (3, 6)], [(0, 6), (0, 6)], [0, 0], [False, True])
    >>> probs = np.array([[0.25, 0.75], [0.75, 0.25]])
    >>> find_entities(probs, places, ["O", "B-PER"], "first")
    [Span(label='PER', score=0.75, start=0, end=6)]
    """
    words: list[list[int]] = []
    for at in [at for at, part in enumerate(places.parts) if part is not None]:
        if words and strategy not in ("none", "simple") and places.subwords[at]:
            words[-1].append(at)
        else:
            words.append([at])
    spans = []
    for word in words:
        scores = probs[word].mean(axis=0) if strategy == "average" else probs[word[0]]
        if strategy == "max":
            scores = probs[word][int(probs[word].max(axis=-1).argmax())]
        best = int(scores.argmax())
        start, end = places.offsets[word[0]][0], places.offsets[word[-1]][1]
        spans.append(Span(labels[best], float(scores[best]), start, end))
    joined = spans if strategy == "none" else join_spans(spans)
    return [span for span in joined if span.label != OUTSIDE]


def join_spans(spans: Sequence[Span]) -> list[Span]:
    """Join neighbours of one label to one span with the mean of their scores.

    >>> join_spans([Span("B-PER", 0.5, 0, 3), Span("I-PER", 1.0, 4, 7), Span("B-PER", 1.0, 8, 9)])
    [Span(label='PER', score=0.75, start=0, end=7), Span(label='PER', score=1.0, start=8, end=9)]
    """
    groups: list[list[Span]] = []
    for span in spans:
        if groups and not span.label.startswith("B-") and tag(span.label) == tag(groups[-1][-1].label):
            groups[-1].append(span)
        else:
            groups.append([span])
    joined = []
    for group in groups:
        score = float(np.mean([one.score for one in group]))
        joined.append(Span(group[0].label.split("-", 1)[-1], score, group[0].start, group[-1].end))
    return joined


def tag(label: str) -> str:
    """A label without B- or I-.

    >>> tag("B-PER"), tag("PER")
    ('PER', 'PER')
    """
    return label[2:] if label.startswith(("B-", "I-")) else label


def find_answers(windows: Iterable[tuple[Array, TokenPlaces]], text: str, count: int) -> list[Span]:
    """The best answers to a question, with the scores of equal answers added.

    windows  of the text: the logits (T, 2) of each token as the start and the end of the answer, and the places of the
             tokens of question and text; the first token, which the tokenizer adds, means no answer

    The score of an answer is the product of the probabilities of its ends among the tokens of a window; the ends are
    made whole words. It has at most 15 tokens.
    """
    answers: dict[str, Span] = {}
    for logits, places in windows:
        allowed = np.array([at == 0 or part == 1 for at, part in enumerate(places.parts)])
        ends = model.probabilities(np.where(allowed[:, None], logits, -10000.0).astype(logits.dtype).T)
        ends[:, 0] = 0
        scores = np.tril(np.triu(ends[0][:, None] * ends[1]), LONGEST_ANSWER - 1)
        order = np.argsort(-scores, axis=None, kind="stable")[: 2 * count + 10]
        for first, last in zip(*np.unravel_index(order, scores.shape), strict=True):
            if allowed[first] and allowed[last] and 0 < first <= last:
                start, end, score = places.words[first][0], places.words[last][1], float(scores[first, last])
                same = answers.setdefault(text[start:end].lower(), Span("answer", 0.0, start, end))
                answers[text[start:end].lower()] = same._replace(score=same.score + score)
    return sorted(answers.values(), key=lambda span: -span.score)[:count]


def split_places(places: TokenPlaces, most: int) -> list[list[int]]:
    """Split a question and a long text into windows: the indices of their tokens.

    most  tokens of a window: the question, as much of the text as fits, and the tokens that the tokenizer adds

    Windows overlap by 128 tokens of the text, by half a window if that is less. DataError if the question leaves no
    room.

    >>> split_places(TokenPlaces([], [], [None, 0, None, 1, 1, 1, 1, None], []), 6)
    [[0, 1, 2, 3, 4, 7], [0, 1, 2, 4, 5, 7], [0, 1, 2, 5, 6, 7]]
    """
    text = [at for at, part in enumerate(places.parts) if part == 1]
    room = most - len(places.parts) + len(text)
    if room < 1 and text:
        raise DataError(
            f"the question is {most - room} tokens, and a window of question and text has {most}", "--question"
        )
    stride = room - min(OVERLAP, most // 2, room - 1)
    windows = [{*text[part.begin : part.end]} for part in slide_window(len(text), room, stride)] or [set[int]()]
    return [[at for at, part in enumerate(places.parts) if part != 1 or at in kept] for kept in windows]


def keep_places(places: TokenPlaces, kept: Sequence[int]) -> TokenPlaces:
    """The places of some tokens, in words that are cut where the tokens end.

    >>> keep_places(TokenPlaces([(0, 3), (3, 5)], [(0, 5)] * 2, [1, 1], [False, True]), [1]).words
    [(3, 5)]
    """
    offsets, words = [places.offsets[at] for at in kept], [places.words[at] for at in kept]
    parts, subwords = [places.parts[at] for at in kept], [places.subwords[at] for at in kept]
    ranges: dict[Any, tuple[int, int]] = {}
    for key, (start, end) in zip(zip(parts, words, strict=True), offsets, strict=True):
        first, last = ranges.get(key, (start, end))
        ranges[key] = min(first, start), max(last, end)
    return TokenPlaces(offsets, [ranges[key] for key in zip(parts, words, strict=True)], parts, subwords)


Locate = Callable[..., TokenPlaces]
NEEDED_TASKS = {"pair": "sequence", "question": "question", "aggregate": "token"}
TASKS = {"sequence": "labels a text", "token": "labels each token", "question": "answers questions"}


class InputLabels(HeadTask):
    """Label texts, tokens or spans, or find answers, by the head of a model."""

    @property
    def refused(self) -> Mapping[str, Sequence[str]]:
        task = self.options.config.task
        own = f"this one {TASKS[task]}"
        others = {f"a model that {TASKS[one]}; {own}": (name,) for name, one in NEEDED_TASKS.items() if one != task}
        words = "a model that predicts words"
        choices = {words: ("vocab", "steps", "keep"), f"{words}; {own}": Sampling._fields}
        return {**super().refused, **choices, **others}

    def run_model(self, source: Input) -> Record | str:
        """The labels, as a record or as text; DataError for a text that is too long."""
        record, emit = label_inputs(self.prepare_source(source), self.options), self.options.emit
        return labels_to_text(record, self.options.config) if emit == "text" else select_labels(record, emit)

    def view(self, record: Record, style: "display.Style") -> "display.ResultView":
        """A table of labels, the lines of one text, or x; without a question x, the ends."""
        from attnkit.generation.label_views import view_labels

        asks_nothing = self.options.config.task == "question" and self.options.labelling.question is None
        if self.options.emit is not None or asks_nothing:
            return super().view(record, style)
        return view_labels(record, self.options.config, self.options.choices.top, style)


def label_inputs(source: Input, options: DecodeOptions) -> Record:
    """Label texts, their tokens or spans, or find answers in them, by a model's head.

    DataError for a text that is too long.
    """
    config = options.config
    if options.labelling.question is not None or options.labelling.aggregate is not None:
        return label_spans(source, options)
    is_text = not isinstance(source, Record) and options.ids is None
    if config.task == "question" and (is_text or options.emit == "text"):
        raise UsageError("this model answers a question about TEXT: --question asks it", "--model")
    output = apply_output_head(source, options)
    labelled = make_labelled(output, config)
    if config.task == "sequence" and "batch" in labelled.axes_of("x") and source and not isinstance(source, Record):
        return labelled.with_tensors({}, {"batch": text_inputs.require_unicode(source)})
    return labelled


def make_labelled(output: OutputLogits, config: "Config") -> Record:
    record, logits = output.record, output.logits
    axes = (*record.axes_of("x")[: logits.ndim - 1], "label")
    values = model.label_probabilities(logits, config.label_function)
    formula = "logits" if config.label_function == "none" else model.Sampling().formula(config.label_function)
    tensors = {"x": Tensor(values, axes, formula=f"{formula}, logits = head(x)"), "logits": Tensor(logits, axes)}
    tensors |= {} if config.label_function == "none" else {"probs": Tensor(values, axes)}
    if config.label_function == "softmax":
        tensors["next"] = Tensor(model.greedy(logits), axes[:-1], formula="argmax(logits)")
    dropped = ("x", "mask") if config.task == "sequence" else ("x",)
    rest = record.select([name for name in record if name not in dropped])
    return Record({"x": tensors["x"]}).merge(rest).with_tensors(tensors, {"label": list(config.classes)})


def label_spans(source: Input, options: DecodeOptions) -> Record:
    flag = "--question" if options.labelling.question is not None else "--aggregate"
    if isinstance(source, Record) or not source or options.ids is not None:
        raise UsageError("needs TEXT, to find the places of tokens in it", flag)
    if options.inspection.tracing.trace and len(source) > 1:
        raise UsageError("needs a single TEXT", "--trace")
    tokenizer = options.tokenizer or text_inputs.tokenizer_of(options.checkpoint)
    if tokenizer.locate is None:
        raise UsageError("this tokenizer does not tell where tokens are in the text", flag)
    texts, config = text_inputs.require_unicode(source), options.config
    single = options._replace(tokenizer=tokenizer, batch=False)
    is_batch = len(texts) > 1 or options.batch
    if options.labelling.question is not None:
        answers = [search_answers(text, single, tokenizer, tokenizer.locate) for text in texts]
        return make_spans(answers, texts, ["answer"], is_batch)
    entities = []
    for text in texts:
        probs = model.label_probabilities(apply_output_head((text,), single).logits, config.label_function)
        entities.append(
            find_entities(probs, tokenizer.locate(text), config.classes, options.labelling.aggregate or "none")
        )
    return make_spans(entities, texts, group_names(config.classes, options.labelling.aggregate), is_batch)


def search_answers(text: str, options: DecodeOptions, tokenizer: Tokenizer, locate: Locate) -> list[Span]:
    """The best answers to the question in a text, which may be longer than a window."""
    question = options.labelling.question or ""
    places = locate(question, text)
    most = min(options.config.positions.longest or WINDOW, WINDOW)
    count = options.choices.top or 1
    if len(places.parts) <= most:
        return find_answers([(apply_output_head((question,), options._replace(pair=text)).logits, places)], text, count)
    windows, tokens = split_places(places, most), tokenizer.encode(question, (), text)
    if options.inspection.tracing.trace:
        raise UsageError(f"needs a text that is read at once, and this one is {len(windows)} windows", "--trace")
    note = f"question and text are {len(places.parts)} tokens: read in {len(windows)} windows of at most {most}"
    warnings.warn(note, AttnkitNote, stacklevel=2)

    def answer(kept: Sequence[int]) -> Array:
        ids = {"ids": np.array(tokens.ids)[kept]} | ({"types": np.array(tokens.types)[kept]} if tokens.types else {})
        return apply_output_head(None, options._replace(ids=Record(ids))).logits

    return find_answers(((answer(kept), keep_places(places, kept)) for kept in windows), text, count)


def make_spans(
    spans_of: Sequence[Sequence[Span]], texts: Sequence[str], names: Sequence[str], is_batch: bool
) -> Record:
    """Build the record of spans: x (span, label) with scores, `start` and `end`.

    In a batch `text` is the number of the text of each span, from 0. A score is in the column of its label, 0 is in
    the others.
    """
    spans = [span for one in spans_of for span in one]
    scores = np.zeros((len(spans), len(names)), np.float32)
    for row, span in enumerate(spans):
        scores[row, names.index(span.label)] = span.score
    tensors = {
        "x": Tensor(scores, ("span", "label"), formula="score of each span"),
        "start": Tensor(np.array([span.start for span in spans], np.int64), ("span",)),
        "end": Tensor(np.array([span.end for span in spans], np.int64), ("span",)),
    }
    if is_batch:
        rows = [row for row, one in enumerate(spans_of) for _ in one]
        tensors["text"] = Tensor(np.array(rows, np.int64), ("span",))
    words = [text[span.start : span.end] for text, one in zip(texts, spans_of, strict=True) for span in one]
    labels: dict[str, Labels] = {"span": words, "label": list(names)}
    return Record({}).with_tensors(tensors, labels)


def select_labels(record: Record, emit: str | None) -> Record:
    """The record of labels with x as --emit requests: logits, or probs."""
    if emit is None:
        return record
    kinds = {"logits": "logits", "probs": "probs", "next": "ids"}
    name = "next" if emit == "ids" else emit
    if name not in record:
        known = ", ".join(kind for tensor, kind in kinds.items() if tensor in record)
        raise UsageError(f"{emit}: the labels of this model have {known or 'scores alone'}", "--emit")
    rest = record.select([other for other in record if other not in ("x", *kinds)])
    x = record.tensors[name]
    labels: dict[str, Labels] = {} if emit == "ids" else {"label": record.labels["label"]}
    return Record({"x": x}).merge(rest).with_tensors({"x": x}, labels)


def labels_to_text(record: Record, config: "Config") -> str:
    """Write the best labels as text, a line for each text, token or span."""
    names = [str(name) for name in record.labels["label"]]
    if record.axes_of("x")[0] == "span":
        spans = [str(words) for words in record.labels["span"]]
        best = record["x"].argmax(axis=-1) if len(spans) else []
        is_answer = config.task == "question"
        pairs = zip(best, spans, strict=True)
        return "\n".join(words if is_answer else f"{names[label]}\t{words}" for label, words in pairs)
    rows = record["x"].reshape(-1, *record["x"].shape[-2:] if config.task == "token" else record["x"].shape[-1:])
    if config.task == "sequence":
        return "\n".join(", ".join(best_labels(row, names, config)) for row in rows)
    real = find_real_tokens(record, rows.shape[:-1])
    real = np.ones(rows.shape[:-1], bool) if real is None else real
    return "\n".join(
        " ".join(names[label] for label in row.argmax(axis=-1)[is_token])
        for row, is_token in zip(rows, real, strict=True)
    )


def best_labels(values: Array, names: Sequence[str], config: "Config") -> list[str]:
    """The labels that hold for a text, best first.

    values (C,), which are themselves the result if they are not probabilities
    """
    if config.label_function == "none":
        return [str(value) for value in values]
    order = [int(at) for at in np.argsort(-values, kind="stable")]
    if config.label_function == "sigmoid" and len(order) > 1:
        return [names[at] for at in order if values[at] >= 0.5]
    return [names[order[0]]]
