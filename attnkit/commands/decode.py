"""attnkit decode: hidden states to logits, words, or with a model a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from attnkit import options
from attnkit.cli import text_input
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PythonForm
from attnkit.generation.options import (
    CHECK_TOLERANCE,
    CHOOSING,
    GENERATION,
    DecodeOptions,
    Inspection,
    Reranking,
    Search,
    SpeechOptions,
)
from attnkit.generation.task import Task
from attnkit.model.formulas.sampling import Sampling
from attnkit.options import Translation, collect_options, list_fields
from attnkit.records import Record

LABELLING = ("pair", "question", "aggregate")
CHOICE = (*Search._fields, *Sampling._fields, "score", *CHOOSING, "stop", "cache_out")
OTHER_TASKS = ("chat", "ids", "pair", "labels", "image", "audio", "memory", "layer", "question", "aggregate")
READ = ("chat", "ids", "image", *SpeechOptions._fields, *Translation._fields, "batch", "labels", *LABELLING)
INSPECTION = (*list_fields(Inspection),)
NEEDS_MODEL = (*READ, *Reranking._fields, *GENERATION, *INSPECTION, "tokenizer", "layer")
EXCLUSIVE = [
    *(("model", "params", "table"), ("lines", "batch"), ("beam", "emit=logits|probs"), ("pair", "question")),
    *(("beam", name) for name in (*Sampling._fields, "cache_out", "top")),
    *(("score", name) for name in (*CHOOSING, *Search._fields, *Sampling._fields, "stop", "steps")),
    ("score", "top"),
    *(("timestamps", name) for name in ("score", "best", "stop", "cache_out", "trace", "grad", "attribute")),
    *(("fallback", name) for name in ("score", "top", "best", "trace", "cache_out", "temperature")),
    *(("grad", name) for name in ("patch", "ablate", "cache_in")),
    ("trace", "best"),
    *(("attribute", name) for name in ("patch", "ablate", "cache_in", "emit")),
    *(("chat", name) for name in ("ids", "memory", "cache_in", "layer", *LABELLING)),
    *((one, name) for name in Translation._fields for one in ("audio", "cache_in")),
    ("ids", "target_language"),
    *(
        ("audio", name)
        for name in ("batch", "lines", "ids", "image", "memory", "chat", "cache_in", "layer", "labels", *LABELLING)
    ),
    *(("labels", name) for name in ("layer", *CHOICE, *INSPECTION, *LABELLING, "vocab")),
    *(("rerank", name) for name in (*OTHER_TASKS, *CHOICE, *INSPECTION, "batch", "lines", "steps", "keep", "vocab")),
    *(("rerank", f"emit={name}") for name in ("ids", "probs", "prompt")),
    *(("emit=prompt", name) for name in (*CHOICE, *INSPECTION, "steps", "top", "dtype")),
]
REQUIRES = [
    *((flag, "model") for flag in NEEDS_MODEL),
    *(("best", "beam"), ("length_penalty", "beam"), ("trace_only", "trace"), ("mean", "ablate")),
    *(("grad", "score"), ("grad_only", "grad"), ("check", "grad"), ("attribute", "score")),
    *((name, "chat") for name in ("system", "messages", "variable", "template", "date", "emit=prompt")),
    ("labels", "image"),
    ("sampling_order", "|".join((*Sampling._fields[:-1], "repetition_penalty"))),
    *((name, "rerank") for name in Reranking._fields[1:]),
    *((name, "fallback") for name in ("compression_ratio_threshold", "logprob_threshold")),
    *((name, "audio") for name in SpeechOptions._fields[1:]),
]


def choose_task(options: DecodeOptions) -> Task:
    """The task that a model, its layer and the options ask for."""
    if options.model_ is None:
        from attnkit.generation.words import StatesToWords

        return StatesToWords(options)
    if options.reranking.rerank is not None:
        from attnkit.generation.reranking import DocumentRanking

        return DocumentRanking(options)
    config = options.config
    if options.labelling.labels:
        from attnkit.generation.zero_shot import ImageAgainstLabels

        return ImageAgainstLabels(options)
    if options.writes_text and options.speech.audio is not None:
        from attnkit.generation.transcription import Transcription

        return Transcription(options)
    if options.writes_text:
        from attnkit.generation.text_generation import TextGeneration

        return TextGeneration(options)
    if options.layer is None and config.decoder is not None and not config.classes:
        from attnkit.generation.decoder_stack import DecoderStack

        return DecoderStack(options)
    if options.layer is None and config.frame_labels:
        from attnkit.generation.frame_labels import FrameLabels

        return FrameLabels(options)
    if config.task:
        from attnkit.generation.labels import InputLabels

        return InputLabels(options)
    from attnkit.generation.output_head import OutputHead

    return OutputHead(options)


def choose_stage_task(stage: Stage) -> Task:
    """The task of a stage, by its model and its options."""
    loaded = {} if stage.parameters["model_"] is None else {"model_": stage.files.load("model_")}
    return choose_task(collect_options(DecodeOptions, stage.parameters | loaded))


@tool(
    sections={
        "Model and input": "model_ layer ids pair image speech memory tokenizer batch lines",
        "Translation": "translation",
        "Chat": "chat",
        "Labels": "labelling",
        "Reranking": "reranking",
        "Hidden states without a model": "matrix",
        "Sampling": "sampling penalties",
        "Search": "search",
        "Length": "length stop keep_special cache",
        "Inspection": "choices score inspection",
        "Results": "emit dtype",
        "Engine": "engine",
    },
    rules=Constraints(exclusive=EXCLUSIVE, requires=REQUIRES),
    operand="[INPUT | TEXT...]",
    reader=text_input.read_prompts,
    task=choose_stage_task,
    view=lambda record, stage, style: stage.task.view(record, style),
    view_options=lambda stage: ("top",) if stage.task.top_is_view else (),
    status=lambda record, stage: int(not all(error <= CHECK_TOLERANCE for error in stage.extra.get("errors", []))),
    needs_no_input=text_input.needs_no_input,
    extra={
        "lines": Annotated[bool, typer.Option(help="write a stream: one record for each line of text")],
        "engine": options.EngineOptions,
    },
    python=PythonForm(options=options.ENGINE_KEYWORDS),
    record_defaults=lambda parameters: (
        {"seed": parameters["seed"] or 0}
        if Sampling(**{name: parameters[name] for name in Sampling._fields}).is_sampled
        else {}
    ),
    gives=lambda stage: "text" if stage.parameters["emit"] in ("text", "prompt") else "record",
    tables_aside=lambda stage: stage.task.has_table_aside,
    adds=lambda stage: stage.task.adds_tensors,
)
def decode(record: Sequence[str] | Record | None, *, options: DecodeOptions) -> Record | str:
    """Map hidden states to logits, probabilities and words, or generate text.

    logits = x Wᵀ with the embedding table W, or x W with the matrix of --params; probabilities = softmax(logits / τ).
    The record gets `logits`, `next` (the chosen id at each position), and the probabilities as x. By default,
    decode chooses the most probable token (greedy decoding; of equal tokens, the first). With --temperature,
    --top-k, --top-p, --min-p or --seed, it samples a token.

    With --model, decode generates text. The input is TEXT, lines of standard input, --ids, or a record with ids; for an
    encoder-decoder model it is the source text, or a record from encode; for Whisper it is --audio, as for wav2vec 2.0,
    whose labels of frames spell a text (CTC). Several sounds, x (B, T), perhaps with `mask`, are a batch. A sound that
    is longer than the model reads at once is read in windows, each from the last time of the text before; the record
    then has, as with --timestamps, `start` and `end` of each segment in seconds. Generation ends at the model's end
    token, at --stop, or after --max-tokens tokens. In the result, x is the log-probability of each new token, `ids` are
    the tokens, and `mask` marks the padding if the rows of a batch have different lengths. --emit text prints the whole
    text (of a translation, only the target). In an encoder-decoder model, --ids follow the start token of the target.
    --cache-in needs no TEXT; if there is TEXT, it follows the tokens of the cache. --trace has the intermediates of one
    pass over the whole text, prompt and new tokens (of beams, the best), as --score gives them.

    If the model has no decoder, or is a classifier, decode applies its head to TEXT, --ids, --image, or hidden states
    in a record; --emit text then prints TEXT with a word for each [MASK], or the label of the text or image. If the
    model has a decoder but no vocabulary, the decoder's input is x, which attends to --memory FILE or to the record's
    memory.

    If the head of the model gives labels, as config.json names them, x is their scores on the axis `label`, beside
    `logits`, `probs` and `next` (the best one): of TEXT or of a pair, of each token, or with --aggregate of spans.
    With --image, a model that reads pictures (SmolVLM, LLaVA, Gemma 3) answers --chat about one. With --labels, a model
    of texts and images says which of them an --image is like: logits are exp(logit_scale) times the cosines of their
    vectors. With --question, x is the scores of the best answers, of at most 15 tokens; a longer text is read in
    windows of at most 384 tokens, question included, which overlap by 128, and the scores of equal answers are added.
    A span has its first character in `start`, and the one after its last in `end`; in a batch `text` is the number of
    its text. --top N lists more.

    With --rerank QUERY, x is the scores of documents, best first, by a cross-encoder (a classifier with one label,
    which reads QUERY and document as a pair) or by a reranker that generates text and answers yes or no. They are
    sorted by `logits`, the scores before the function of the model. `rows` has the numbers of the documents, from 0, or
    those of near if its record is the input.

    \b
    Examples:
      attnkit embed "The cat sat" --dim 8 | attnkit attend | attnkit decode --top 3
      attnkit decode --model DIR "Once upon a time" --max-tokens 40 --top-p 0.9
      attnkit encode --model DIR "je suis étudiant" | attnkit decode --model DIR --beam 4
      attnkit decode --model DIR --chat "Who wrote Hamlet?" --system "Answer in one word."
      attnkit decode --model DIR --chat "What is this?" --image FILE
      attnkit decode --model DIR "the [MASK] sat"
      attnkit decode --model DIR --question "who sat?" "the cat sat on the mat"
      attnkit decode --model DIR --image FILE --labels "a photo of a cat,a photo of a dog"
      attnkit decode --model DIR --rerank "who sat?" --top 3 < passages.txt
    """
    return choose_task(options).run(record)
