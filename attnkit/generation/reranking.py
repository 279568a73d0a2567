"""Sort documents by how well they answer a query, as a reranker judges them."""

import warnings
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from attnkit import callbacks, display, model
from attnkit.checkpoints.rerankers import RerankerFiles, load_reranker
from attnkit.display.cells import Cells
from attnkit.errors import AttnkitNote, AttnkitWarning, DataError, UsageError, counted, with_article
from attnkit.generation.answer_prompts import PROMPTS, AnswerPrompt
from attnkit.generation.chat import current_date
from attnkit.generation.options import DecodeOptions, refuse_options
from attnkit.generation.task import Input, ModelTask, Reads
from attnkit.inputs import encoding, layers, text_inputs
from attnkit.model.formulas.sampling import SYMBOLS
from attnkit.records import Array, Record, Tensor, shared_labels
from attnkit.tokenizers import Tokenizer
from attnkit.tokenizers.chat_template import ChatTemplates, load_chat_templates, run_template

if TYPE_CHECKING:
    from attnkit.display import ResultView, Style

FILLERS = "0", "1 2 3 4"  # in place of a query and a document: what follows both is the end of the template
PROBE = "one query", "another document"  # which a template of pairs writes


class DocumentRanking(ModelTask):
    """Scores of documents for a query by a reranker, best first."""

    top_is_view = False

    @property
    def reads(self) -> Reads:
        return "text"

    def run_model(self, source: Input) -> Record | str:
        """Score and sort the documents; UsageError for a model that is no reranker."""
        documents, numbers = read_documents(source)
        reranker = choose_reranker(self.options)
        logits = np.array([*reranker.scores(documents)])
        chosen = np.argsort(-logits, kind="stable")[: self.options.choices.top]
        texts, logits = [documents[at] for at in chosen], logits[chosen]
        if self.options.emit == "text":
            return "\n".join(texts)
        values = logits if self.options.emit == "logits" else model.label_probabilities(logits, reranker.function)
        formula = "logits" if values is logits else f"{SYMBOLS[reranker.function]}(logits)"
        tensors = {
            "x": Tensor(values, ("rank",), formula=f"{formula}, logits = {reranker.formula}"),
            "logits": Tensor(logits, ("rank",)),
            "rows": Tensor(numbers[chosen], ("rank",)),
        }
        return Record({}).with_tensors(tensors, {"rows": texts})

    def view(self, record: Record, style: "Style") -> "ResultView":
        """A table of scores, logits if these are others, and documents."""
        names = ["score"] if np.array_equal(record["x"], record["logits"]) else ["score", "logit"]
        columns = [record["x"].tolist(), record["logits"].tolist()][: len(names)]
        columns += [record["rows"].tolist(), [str(text) for text in record.labels["rows"]]]
        headings = [*names, "row", "document"]
        cells = [[*row] for row in zip(*columns, strict=True)]
        texts = [[f"{one:.{style.precision}f}" if isinstance(one, float) else str(one) for one in row] for row in cells]
        table = display.TextTable(headings, texts, [at for at, name in enumerate(headings) if name != "document"])
        return display.ResultView([table], lambda: Cells(headings, cells))


def read_documents(source: Input) -> tuple[list[str], Array]:
    """The documents of an input and their numbers: texts, or the rows that near found.

    DataError for a record without the words of its rows, or with those of several queries.
    """
    if not isinstance(source, Record):
        documents = text_inputs.require_unicode(source)
        return documents, np.arange(len(documents))
    words = source.labels.get("rows")
    if "rows" not in source or not words:
        raise DataError("no documents: expected TEXT, lines, or the record of near with the words of its rows")
    documents = shared_labels(words)
    if source["rows"].shape != (len(documents),):
        raise DataError(f"rows {source['rows'].shape}: expected those of one query")
    return documents, source["rows"]


class Reranker:
    """A model that scores documents for the query of the options.

    formula   of the logit of a document
    function  from logits to scores: softmax, sigmoid or none
    """

    formula, function = "head(query, document)", "none"

    def __init__(self, options: DecodeOptions) -> None:
        self.options = options
        self.query = options.reranking.rerank or ""
        self.tokenizer: Tokenizer = options.tokenizer or text_inputs.tokenizer_of(options.checkpoint)
        self.cut = self.unknown = self.tokens = 0

    def scores(self, documents: Sequence[str]) -> Iterator[Array]:
        """Yield the logit of each document; warn of those that are cut."""
        core = layers.complete_model(self.options.checkpoint)
        for number, (ids, types) in enumerate(self.inputs(documents), 1):
            callbacks.current().on_progress(f"document {number:,} of {len(documents):,}")
            self.tokens += len(ids)
            self.unknown += ids.count(self.tokenizer.special.get("unk", -1))
            checked = model.check_ids(np.array(ids), core.config.stack(core.config.stacks[0]).vocab)
            context = layers.new_context(segment_ids=types, dtype=self.options.dtype)
            states = model.run(core, core.config.plan(core.config.stacks[0]), checked, context)
            yield self.score(core, states)
        text_inputs.warn_unknown(self.unknown, self.tokens)
        if self.cut:
            problem = f"{counted(self.cut, 'document')} {'is' if self.cut == 1 else 'are'} cut to fit the model"
            warnings.warn(problem, AttnkitWarning, stacklevel=2)

    def inputs(self, documents: Sequence[str]) -> Iterator[tuple[list[int], Array | None]]:
        """Yield the ids of each document with the query, and their segments."""
        raise NotImplementedError

    def score(self, core: model.Model, states: Array) -> Array:
        """The logit () of the hidden states (T, D) of a document with the query."""
        raise NotImplementedError

    def longest(self, stated: int | None) -> int:
        """The most tokens that the model reads.

        stated  by the folder of the tokenizer
        """
        positions = self.options.config.positions.longest or (1 << 62)
        return min(positions, positions if stated is None else stated)


class CrossEncoder(Reranker):
    """A classifier with one label, which reads query and document as a pair."""

    def __init__(self, options: DecodeOptions, files: RerankerFiles) -> None:
        super().__init__(options)
        self.function, self.most = files.function, self.longest(files.longest)

    def inputs(self, documents: Sequence[str]) -> Iterator[tuple[list[int], Array | None]]:
        for document in documents:
            tokens = self.tokenizer.encode(self.query, pair=document)
            if len(tokens.spellings) > self.most:
                if self.tokenizer.truncate is None:
                    raise DataError(f"{len(tokens.spellings)} tokens of query and document (limit {self.most})")
                tokens, self.cut = self.tokenizer.truncate(self.query, document, self.most), self.cut + 1
            ids = tokens.ids or []
            yield ids, np.array(tokens.types or [0] * len(ids))

    def score(self, core: model.Model, states: Array) -> Array:
        record = Record({"ids": np.zeros(len(states), np.int64)})
        return encoding.compute_logits(core, record, states, model.no_hook)[..., 0]


class AnsweringModel(Reranker):
    """A model that generates text: the logits of the words of its answer.

    true, false  the ids of the words; None: the first one alone counts
    """

    true: int
    false: int | None = None

    def score(self, core: model.Model, states: Array) -> Array:
        logits: Array = model.head_logits(core, states[-1:])[0]
        return logits[..., self.true] if self.false is None else logits[..., self.true] - logits[..., self.false]

    def name_words(self) -> None:
        """State the formula by the words of the answer."""
        words = self.tokenizer.vocabulary
        chosen = [self.true] if self.false is None else [self.true, self.false]
        for id in chosen:
            if not 0 <= id < len(words):
                raise DataError(f"token {id} of the answer is not in the vocabulary (0 to {len(words) - 1})")
        self.formula = " − ".join(f"logit({words[id]})" for id in chosen)


class PublishedPrompt(AnsweringModel):
    """A reranker of PROMPTS, whose prompt is tokenized in pieces."""

    def __init__(self, options: DecodeOptions, prompt: AnswerPrompt, files: RerankerFiles) -> None:
        super().__init__(options)
        instruction = options.reranking.instruction
        instruction = prompt.instruction if instruction is None else instruction
        self.prompt, self.function = prompt, prompt.function
        self.instruction = prompt.form.format(instruction) if instruction else ""
        self.true, self.false = (self.encode(word)[0] for word in (prompt.yes, prompt.no))
        self.name_words()
        fixed = sum(len(self.encode(piece.text)) for piece in prompt.pieces if not piece.share)
        longest = self.longest(None)
        self.room = min(prompt.most, longest) - fixed if prompt.with_fixed else min(prompt.most, longest - fixed)
        if self.room < 1:
            raise DataError(f"the prompt needs {fixed} tokens, and the model has {counted(longest, 'position')}")

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, with_special=False).ids or []

    def inputs(self, documents: Sequence[str]) -> Iterator[tuple[list[int], Array | None]]:
        for document in documents:
            ids, room, is_cut = list[int](), self.room, False
            for piece in self.prompt.pieces:
                text = piece.text.format(instruction=self.instruction, query=self.query, document=document)
                part = self.encode(text if piece.share else piece.text)
                if piece.share:
                    most = min(int(self.room * piece.share), room)
                    is_cut |= len(part) > most
                    part, room = part[:most], room - len(part[:most])
                ids += part
            self.cut += is_cut
            yield ids, None


class StatedTemplate(AnsweringModel):
    """A reranker whose folder states the ids of its answer, and a template of a pair."""

    def __init__(self, options: DecodeOptions, files: RerankerFiles) -> None:
        super().__init__(options)
        self.files, self.function, self.most = files, files.function, self.longest(files.longest)
        self.true, self.false = files.true or 0, files.false
        self.name_words()
        templates: ChatTemplates = options.checkpoint.load_companion("chat", load_chat_templates)
        self.template, self.templates = templates.select(has_tools=False), templates

    def inputs(self, documents: Sequence[str]) -> Iterator[tuple[list[int], Array | None]]:
        pairs = [*((self.query, text) for text in documents), *((filler, filler) for filler in FILLERS)]
        *rendered, first, second = self.render(pairs)
        ends = zip(reversed(first), reversed(second), strict=False)
        suffix = first[len(first) - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends)) :]
        for ids in rendered:
            if len(ids) > self.most:  # the end of the template is kept
                ids, self.cut = [*ids[: self.most - len(suffix)], *suffix], self.cut + 1
            yield ids, None

    def render(self, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
        """The ids of prompts of queries and documents.

        Messages are texts, or as the template may need them, lists of one part.
        """
        instruction = self.options.reranking.instruction
        instruction = self.files.instruction if instruction is None else instruction
        system = [("system", instruction)] if instruction else []
        forms = (True, False) if self.files.is_flat is None else (self.files.is_flat,)
        variables = {**self.templates.special, **self.files.variables}
        for is_flat in forms:
            chats = [
                [
                    {"role": role, "content": text if is_flat else [{"type": "text", "text": text}]}
                    for role, text in [*system, ("query", query), ("document", document)]
                ]
                for query, document in [*pairs, PROBE]
            ]
            *texts, probe = run_template(self.template, chats, variables, self.templates.name, current_date())
            if all(text in probe.text for text in PROBE):
                return [self.tokenizer.encode(one.text, with_special=False).ids or [] for one in texts]
        raise DataError(
            "the chat template leaves out the messages of the roles query and document", self.templates.name
        )


def choose_reranker(options: DecodeOptions) -> Reranker:
    """The reranker that a model is, by its head, its folder, or its family.

    UsageError for a model that is none.
    """
    config, checkpoint, chosen = options.config, options.checkpoint, options.reranking.reranker
    files: RerankerFiles = checkpoint.load_companion("reranker", load_reranker)
    if config.classes and config.task == "sequence" and not config.decoder:
        if len(config.classes) != 1:
            raise UsageError(f"needs a reranker: this one has {counted(len(config.classes), 'label')}", "--rerank")
        refuse_options("a reranker that generates text", **options.reranking._asdict() | {"rerank": None})
        return CrossEncoder(options, files)
    if not options.writes_text or config.encoder:
        raise UsageError(f"needs a reranker, which this {config.family} model is not", "--rerank")
    options.require_head()
    if files.true is not None and chosen is None:
        return StatedTemplate(options, files)
    from attnkit.checkpoints.checkpoint import find_family

    name = chosen or getattr(find_family(config.family), "RERANKER", None)
    if name is None:
        problem = f"the folder of this {config.family} model does not say how it judges a document"
        raise UsageError(f"{problem}; --reranker {'|'.join(PROMPTS)}", "--rerank")
    if chosen is None:
        note = f"{with_article(config.family)} model reads the prompt of {name} (--reranker NAME chooses another)"
        warnings.warn(note, AttnkitNote, stacklevel=2)
    return PublishedPrompt(options, PROMPTS[name], files)
