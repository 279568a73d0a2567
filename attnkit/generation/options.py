"""The options of decode by what they are for, and checks of their values."""

import contextlib
import math
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from attnkit import formats, model, options
from attnkit.errors import AttnkitNote, UsageError, flag_name
from attnkit.model.formulas.sampling import ORDERS, SAMPLERS, Sampling
from attnkit.options import Translation
from attnkit.records import Array, Labels, Record
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint
    from attnkit.inputs.detokenizer import Detokenizer
    from attnkit.interpret.tracer import Tracer

CHECK_TOLERANCE = 1e-6  # the relative error of gradients above which their check fails
CANDIDATES = 5  # of a choice, unless --top sets another number
DEFAULT_TOKENS, DEFAULT_ANSWER_TOKENS = 40, 256  # of a text without an end of its own, of a translation or an answer
STEPS = ("logits", "scaled", "filtered", "probs")  # of hidden states: the choices of --keep
RERANKERS = ("qwen3-reranker", "mxbai-rerank-v2")  # with prompts of their own
AGGREGATIONS = ("none", "simple", "first", "average", "max")  # how tokens are joined to entities


class Labelling(NamedTuple):
    """The labels of an image, a question about a text, and how tokens are joined."""

    labels: Annotated[
        tuple[str, ...],
        options.names("comma-separated texts that --image is compared with, by a model of both (CLIP, SigLIP)"),
    ] = ()
    question: Annotated[
        str | None, typer.Option(help="answer this question by a part of TEXT, with a model that answers questions")
    ] = None
    aggregate: Annotated[
        str | None,
        options.choice(
            AGGREGATIONS,
            "join labelled tokens to spans: none (each token by itself), simple (neighbors of one label), or words by "
            "their first token, the average or the max of their probabilities",
        ),
    ] = None


class Reranking(NamedTuple):
    """The query that documents are sorted by, and how a reranker reads both."""

    rerank: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY",
            help="sort documents (TEXT, lines, or the rows of near) by how well they answer QUERY, with a reranker",
        ),
    ] = None
    instruction: Annotated[
        str | None, typer.Option(help="task of --rerank, for a reranker that reads one [default: as it was published]")
    ] = None
    reranker: Annotated[
        str | None,
        options.choice(
            RERANKERS,
            "prompt of --rerank for a model that generates text [default: as its folder states, else of its family]",
        ),
    ] = None


USUAL_RATIO, USUAL_LOGPROB = 1.35, -1.0  # beyond which the text of a sound is read again


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Parse T,T,… of --fallback; ValueError for other than different numbers from 0.

    >>> parse_temperatures("0,0.2,1")
    (0.0, 0.2, 1.0)
    """
    with contextlib.suppress(ValueError):
        numbers = tuple(map(float, text.split(",")))
        if all(0 <= one < math.inf for one in numbers) and len({*numbers}) == len(numbers):
            return numbers
    raise ValueError("comma-separated temperatures from 0 on, each once, such as 0,0.2,0.4,0.6,0.8,1")


def check_temperatures(text: str) -> str:
    """Check the value of --fallback.

    >>> check_temperatures("0,0.2")
    '0,0.2'
    """
    parse_temperatures(text)
    return text


class SpeechOptions(NamedTuple):
    """A sound, and how it is transcribed."""

    audio: options.Audio = None
    language: Annotated[
        str | None, typer.Option(metavar="NAME", help="language of --audio, as en [default: the most probable one]")
    ] = None
    task: Annotated[
        Literal["transcribe", "translate"] | None,
        typer.Option(help="write --audio in its language or, translated, in English [default: transcribe]"),
    ] = None
    timestamps: Annotated[
        bool, typer.Option(help="begin and end of each segment of the text of --audio, in seconds")
    ] = False
    fallback: Annotated[
        str | None,
        typer.Option(
            parser=check_temperatures,
            metavar="T,T,…",
            help="read --audio, or each window of it, at these temperatures in turn, until its text neither repeats "
            "itself nor is improbable: 0,0.2,0.4,0.6,0.8,1; 0 chooses the best token, or beam",
        ),
    ] = None
    compression_ratio_threshold: Annotated[
        float | None,
        typer.Option(
            click_type=options.ABOVE_0,
            metavar="X",
            help="with --fallback, a text repeats itself whose token ids zlib makes more than X times shorter "
            "[default: 1.35]",
        ),
    ] = None
    logprob_threshold: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="with --fallback, a text is improbable whose mean log-probability of a token is below X [default: -1]",
        ),
    ] = None

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Those of --fallback, () for one reading."""
        return parse_temperatures(self.fallback) if self.fallback else ()


class Length(NamedTuple):
    """The least and the largest number of new tokens."""

    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="generate at most N tokens; some models force the end token as the last one (not with --cache-out); "
            "0: only score the prompt [default: 40; for an encoder-decoder model and --chat 256; for each window of "
            "--audio as many as the model has positions]",
        ),
    ] = None
    min_tokens: Annotated[
        int | None, typer.Option(min=0, help="do not end before N tokens are generated [default: 0]")
    ] = None


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


class Search(NamedTuple):
    """The options of beam search."""

    beam: Annotated[int | None, typer.Option(min=1, help="beam search with N beams")] = None
    best: Annotated[
        int | None, typer.Option(min=1, help="return the N best texts of the beam search, the best one first")
    ] = None
    length_penalty: Annotated[
        str | None,
        typer.Option(
            parser=check_length_penalty,
            metavar="gnmt:A|average:A",
            help="divide the log-probability of a beam by ((5 + length) / 6)^A, or by length^A [default: average:1]",
        ),
    ] = None


class Penalties(NamedTuple):
    """Penalties on the tokens that a text already has."""

    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            click_type=options.ABOVE_0,
            metavar="P",
            help="make earlier tokens less probable: divide positive logits by P, multiply negative ones by P",
        ),
    ] = None
    no_repeat_ngram: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="never generate the same N tokens in a row twice"),
    ] = None


class Choices(NamedTuple):
    """Which candidates of each word are kept and shown."""

    steps: Annotated[
        bool,
        typer.Option(
            help="add the candidates of every choice (candidates.ids, …), show them in the figure or on standard "
            "error; of hidden states the logits and what is made of them"
        ),
    ] = False
    keep: Annotated[
        tuple[str, ...],
        options.names(
            "of hidden states, add these steps; scaled: logits / τ; filtered: by --top-k, --top-p and --min-p",
            (*STEPS, "all"),
        ),
    ] = ()
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="number of candidates in the table, or at each step of --steps [default: 5]; alone, with a model that "
            "generates text: the candidates of the next word, or of --max-tokens words; with --rerank: documents "
            "[default: all]",
        ),
    ] = None

    @property
    def candidates(self) -> int:
        """How many words are candidates."""
        return self.top or CANDIDATES

    @property
    def keeps_candidates(self) -> bool:
        """Whether the result has the candidates of every choice."""
        return self.steps or self.top is not None

    @property
    def asks_for_next_word(self) -> bool:
        """Whether --top alone asks for the candidates of a word in place of a text."""
        return self.top is not None and not self.steps


class CacheFiles(NamedTuple):
    """The KV cache that a text continues, and the file to write its own to."""

    cache_in: Annotated[
        Mapping[str, Array] | None,
        options.file("tensors", "continue from the KV cache in FILE, written by --cache-out"),
    ] = None
    cache_out: Annotated[
        str | None, typer.Option(metavar="FILE", help="write the KV cache (keys and values of all tokens) to FILE")
    ] = None


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


class Chat(NamedTuple):
    """The chat that TEXT is a message of, and the template that writes it."""

    chat: Annotated[
        bool,
        typer.Option(
            help="answer TEXT, the message of a user, which the chat template of the model makes a prompt; the text of "
            "the result is the answer alone"
        ),
    ] = False
    system: Annotated[str | None, typer.Option(help="first message of the chat, of the role system")] = None
    messages: Annotated[
        list[Mapping[str, Any]] | None,
        options.file(
            "messages",
            'earlier messages of the chat: JSON lines {"role": …, "content": …}; without TEXT the whole chat, whose '
            "last message is continued if its role is assistant",
        ),
    ] = None
    variable: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME=VALUE",
            help="set a variable of the chat template, as enable_thinking=false; VALUE is JSON, else a text (may be "
            "repeated)",
        ),
    ] = ()
    date: Annotated[
        str | None,
        typer.Option(
            parser=parse_date,
            metavar="DATE",
            help="date and time that the chat template writes, as 2024-07-26 or 2024-07-26T12:30 [default: now]",
        ),
    ] = None
    template: Annotated[
        str | None, options.file("template", "chat template (Jinja) that replaces the template of the model")
    ] = None


class Inspection(NamedTuple):
    """The intermediates of a run that are written or changed, and gradients."""

    tracing: options.TraceOptions = options.TraceOptions()
    edits: options.EditOptions = options.EditOptions()
    grad: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="write the gradients of the mean of −log p over the tokens of --score to FILE: those of every "
            "intermediate, under the names of a trace, and of every parameter",
        ),
    ] = None
    grad_only: options.GradOnly = ()
    check: Annotated[
        bool,
        typer.Option(
            help="compare --grad with a finite difference in float64, along a random direction over all parameters; "
            "the exit code is 1 for a relative error above 1e-6"
        ),
    ] = False
    attribute: Annotated[str | None, options.attribution("the log-probability of --score, the sum over its tokens")] = (
        None
    )


class OutputMatrix(NamedTuple):
    """The matrix that maps hidden states to words, without a model."""

    table: Annotated[
        Record | None,
        options.file("tensor", "embedding table (vocab, model), used as output matrix [default: the record's table]"),
    ] = None
    params: Annotated[
        Mapping[str, Array] | None, options.file("tensors", "separate output matrix w (D, N) and bias b")
    ] = None
    vocab: Annotated[list[str] | None, options.file("words", "vocabulary: one word per line, or JSON {word: id}")] = (
        None
    )


def parse_order(text: str) -> str:
    """Check an order of samplers; UnknownName or ValueError states the choices.

    >>> parse_order("llama.cpp"), parse_order("top-p, temperature")
    ('llama.cpp', 'top-p,temperature')
    """
    names = [name.strip() for name in text.split(",")]
    known = f"{', '.join(ORDERS)}, or comma-separated names of {', '.join(SAMPLERS)}"
    if text in ORDERS:
        return text
    for at, name in enumerate(names):
        if name not in SAMPLERS:
            raise options.UnknownName(known, name)
        if name in names[:at]:
            raise ValueError(f"each sampler once: {known}")
    return ",".join(names)


SAMPLING = options.OptionsOf(
    temperature=typer.Option(
        click_type=options.ABOVE_0, metavar="T", help="sampling temperature τ: probabilities = softmax(logits / τ)"
    ),
    top_k=typer.Option(min=1, metavar="K", help="sample from the K most probable tokens"),
    top_p=typer.Option(
        click_type=options.SHARE,
        metavar="P",
        help="sample from the fewest tokens whose probabilities sum to P or more",
    ),
    min_p=typer.Option(
        min=0, max=1, metavar="P", help="sample from tokens that are at least P times as probable as the best token"
    ),
    seed=typer.Option(
        min=0, help="seed of the sampling; each text of a batch has the same random numbers as alone [default: 0]"
    ),
    sampling_order=typer.Option(
        parser=parse_order,
        metavar="|".join(ORDERS) + "|NAMES",
        help="order in which an engine applies temperature, top-k, top-p and min-p, or their comma-separated names; "
        "with llama.cpp the repetition penalty counts the last 64 tokens [default: transformers]",
    ),
)


CHOOSING = (*Length._fields, *Penalties._fields)  # the options of choosing tokens, besides sampling and search
GENERATION = (
    "memory",
    "score",
    *CHOOSING,
    *Search._fields,
    "stop",
    "keep_special",
    *CacheFiles._fields,
)  # the options of generating texts alone


class DecodeOptions(NamedTuple):
    """The options of decode, by what they are for.

    model_  None: hidden states become words by a matrix; layer: the head of the model alone
    """

    model_: options.Model = None
    layer: Annotated[
        str | None, typer.Option(metavar="NAME", help="head: apply only the output head of the model to hidden states")
    ] = None
    ids: Annotated[
        Record | None,
        options.file(
            "ids",
            "token ids (T) or (B, T), instead of text; in an encoder-decoder model, the first tokens of the target",
        ),
    ] = None
    pair: options.Pair = None
    labelling: Labelling = Labelling()
    reranking: Reranking = Reranking()
    image: options.Image = None
    speech: SpeechOptions = SpeechOptions()
    translation: Translation = Translation()
    memory: Annotated[
        Any, options.file("memory", "encoder output for cross-attention: a file from encode, or :memory")
    ] = None
    length: Length = Length()
    score: Annotated[
        str | None,
        typer.Option(
            help="compute the log-probability of each token of TEXT, after the prompt; a new word begins with its space"
        ),
    ] = None
    search: Search = Search()
    penalties: Penalties = Penalties()
    stop: Annotated[
        tuple[str, ...], typer.Option(metavar="TEXT", help="end the generation before TEXT (may be repeated)")
    ] = ()
    keep_special: Annotated[bool, typer.Option(help="keep special tokens in the text")] = False
    choices: Choices = Choices()
    batch: Annotated[bool, typer.Option(help="make one batch of all texts, or of all lines of standard input")] = False
    cache: CacheFiles = CacheFiles()
    tokenizer: Annotated[
        Tokenizer | None, options.file("tokenizer", "tokenizer.json that replaces the tokenizer of the model")
    ] = None
    chat: Chat = Chat()
    inspection: Inspection = Inspection()
    matrix: OutputMatrix = OutputMatrix()
    sampling: Annotated[Sampling, SAMPLING] = Sampling()
    emit: Annotated[
        Literal["text", "prompt", "ids", "logits", "probs"] | None,
        typer.Option(
            help="text: print only the text; prompt: print what --chat makes of its messages, and generate nothing; "
            "ids, logits, probs: return this tensor as x"
        ),
    ] = None
    dtype: Annotated[
        str | None,
        options.choice(options.DTYPES, "convert the input x to this dtype; with --model, compute in this dtype"),
    ] = None

    @property
    def checkpoint(self) -> "Checkpoint":
        """The model of a task that needs one."""
        checkpoint: Checkpoint = self.model_
        return checkpoint

    @property
    def config(self) -> "model.Config":
        return self.checkpoint.config

    @property
    def writes_text(self) -> bool:
        """Whether the whole model runs, and its decoder has a vocabulary."""
        config = self.config
        return self.layer is None and config.decoder is not None and config.decoder.vocab > 0 and not config.classes

    def require_head(self) -> None:
        """Raise UsageError for a model that has no head, or one that is not read."""
        if self.config.head:
            return
        from attnkit.checkpoints.label_heads import SUFFIXES

        names, family = self.checkpoint.raw.get("architectures"), self.config.family
        known = tuple(SUFFIXES.values()) if self.config.decoder else ()
        labelled = next((name for name in names or [] if str(name).endswith(known)), None)
        problem = "has no head: it maps tokens to vectors"
        if labelled:
            problem = f"is a {labelled}, whose head is not read (labels are those of text encoders and BART)"
        raise UsageError(f"this {family} model {problem}", "--model")

    @property
    def token_limit(self) -> int:
        if self.length.max_tokens is not None:
            return self.length.max_tokens
        if self.choices.asks_for_next_word:
            return 1
        if self.config.sound:
            return self.config.positions.size
        return DEFAULT_ANSWER_TOKENS if self.config.encoder or self.chat.chat else DEFAULT_TOKENS

    @property
    def samplers(self) -> list[str]:
        """What changes the logits before a choice, in order; [] without --sampling-order."""
        sampling, penalty = self.sampling, self.penalties.repetition_penalty
        if sampling.sampling_order is None:
            return []
        counted = f" (last {sampling.penalized} tokens)" if sampling.penalized else ""
        first = [f"repetition-penalty {penalty:g}{counted}"] if penalty else []
        return first + [f"{name} {value:g}" for name, value in sampling.samplers()]

    @property
    def sampler_labels(self) -> dict[str, Labels]:
        """The label `samplers` of a record, if --sampling-order is set."""
        return {"samplers": self.samplers} if self.samplers else {}

    @property
    def compute_dtype(self) -> str:
        return self.dtype or str(self.checkpoint.params["decoder.embed"]["table"].dtype.name)

    def by_name(self) -> dict[str, Any]:
        """The value of each option by its name, those of a class one by one."""
        return options.spread_options(DecodeOptions, self)

    def tracer(self) -> "Tracer":
        from attnkit.interpret.tracer import Tracer, head_counts

        patterns, edits, config = self.inspection.tracing.patterns, self.inspection.edits, self.config
        if edits.is_empty:
            return Tracer(patterns)
        from attnkit.interpret.edits import make_edits

        counts = head_counts(config, config.plan(config.stacks[-1]))
        if self.image is not None and self.checkpoint.pictures:
            tower = self.checkpoint.tower("vision").config
            counts |= head_counts(tower, tower.plan("encoder"))
        return Tracer(patterns, make_edits(*edits, counts))


class TextModel(NamedTuple):
    """A model of text with its options and its detokenizer."""

    core: "model.Model"
    options: DecodeOptions
    detokenizer: "Detokenizer"


def note_samplers(options: DecodeOptions) -> None:
    """Note what changes the logits before a choice if --sampling-order is set."""
    if options.samplers:
        note = f"order of sampling: {', '.join(options.samplers)}"
        warnings.warn(note, AttnkitNote, stacklevel=2)


def is_set(value: Any) -> bool:
    return value is not None and value is not False and not (isinstance(value, tuple) and not value)


def check_options(options: DecodeOptions) -> None:
    """Raise UsageError for values that the model, other options or files exclude."""
    vocabulary, (beam, best, _) = options.config.stack("decoder").vocab, options.search
    if (beam or 1) > vocabulary:
        raise UsageError(f"expected at most {vocabulary}, the size of the vocabulary, got {beam}", "--beam")
    if (best or 1) > (beam or 1):
        raise UsageError(f"{best} of --beam {beam} (expected 1 to {beam})", "--best")
    if options.score == "":
        raise UsageError("an empty text has no score", "--score")
    if "" in options.stop:
        raise UsageError("empty text", "--stop")
    trace, cache_out, grad = options.inspection.tracing.trace, options.cache.cache_out, options.inspection.grad
    for file in filter(None, (trace, cache_out, grad)):
        formats.file_format(file)
    if cache_out and not model.cacheable(options.config):
        raise UsageError("its keys change with the length of the text, so no cache can be kept", "--cache-out")
    if trace and is_same_file(trace, cache_out):
        raise UsageError(f"{trace}: --cache-out writes the same file", "--trace")
    for flag, other in (("--trace", trace), ("--cache-out", cache_out)):
        if grad and is_same_file(grad, other):
            raise UsageError(f"{grad}: {flag} writes the same file", "--grad")


def is_same_file(path: str, other: str | None) -> bool:
    """Whether two results would be written to one file, which /dev/null is not.

    >>> is_same_file("a.npz", "./a.npz"), is_same_file("a.npz", None), is_same_file("/dev/null", "/dev/null")
    (True, False, False)
    """
    return other is not None and path != os.devnull and os.path.realpath(path) == os.path.realpath(other)


def refuse_options(needed: str, **options: Any) -> None:
    """Raise UsageError for the first option that is set without what it needs."""
    for name, value in options.items():
        if is_set(value):
            raise UsageError(f"needs {needed}", flag_name(name))
