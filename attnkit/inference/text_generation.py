"""Whole models that speak: beginnings read, words chosen one after another, texts scored.

asked.py       the flags, and which of them go together
voices.py      the words of a model
beginnings.py  what a text goes on from: the tokens so far, a memory, a cache
caches.py      keys and values as a record
continuing.py  tokens chosen one after another
scoring.py     given tokens, and how likely they are
packing.py     texts computed one by one, as one batch
vectors.py     the head alone, and a decoder without words

Every text is computed alone, without padding, so that a text of a batch is what it is by itself.
"""

from collections.abc import Sequence

from attnkit.errors import UsageError
from attnkit.inference import callbacks, layers
from attnkit.inference.batching import add_padding_mask, pad_layout, pad_records
from attnkit.inference.detokenizer import detokenizer_of
from attnkit.inference.generate import generate_one, to_record
from attnkit.inference.head import apply_head, run_decoder_stack
from attnkit.inference.options import (
    GENERATION_FLAGS,
    HOOK_FLAGS,
    INPUT_FLAGS,
    SAMPLING_FLAGS,
    GenerationOptions,
    check_options,
    max_new_tokens,
    refuse_flags,
)
from attnkit.inference.prompts import generates_text, make_prompts
from attnkit.inference.scoring import score_text
from attnkit.record import Record, shared_labels

__all__ = [
    "GENERATION_FLAGS",
    "HOOK_FLAGS",
    "INPUT_FLAGS",
    "SAMPLING_FLAGS",
    "GenerationOptions",
    "apply_head",
    "generates_text",
    "refuse_flags",
    "run_decode",
    "run_decoder_stack",
]


TOKEN_TENSORS = ("x", "ids", "mask", "types", "token_type_ids", "scores")


def run_decode(given: Sequence[str] | Record | None, asked: GenerationOptions) -> Record | str:
    """What a model says, or how likely it finds what is given."""
    check_options(asked)
    given = layers.ids_from_x(given) if isinstance(given, Record) else given
    core, config = layers.complete_model(asked.model_), asked.model_.config
    if not config.head:
        raise UsageError(f"this {config.family} model has no head: it maps tokens to vectors", "--model")
    voice = detokenizer_of(asked)
    begun, several = make_prompts(given, asked, voice)
    if several and (asked.best or asked.cache_out):
        raise UsageError("goes with one text, and there is a batch", "--best" if asked.best else "--cache-out")
    if asked.scores:
        made = [score_text(core, one, asked, voice, asked.tracer()) for one in begun]
        columns = pad_layout(begun, asked) if several else None
        record = pad_records([one.record for one in made], voice.padding, columns)
        if columns:
            record = add_padding_mask(record, ("batch",), [len(one.record["x"]) for one in made], columns)
        if asked.trace:
            traces = pad_records([one.trace for one in made], voice.padding, columns)
            callbacks.current().write_side_output(asked.trace, traces)
    else:
        tracer = asked.tracer()
        layers.prepare_decoding(asked.model_, max_new_tokens(asked))
        texts_made = [generate_one(core, one, asked, voice, tracer, len(begun) == 1) for one in begun]
        record = to_record(begun, texts_made, asked, voice, several)
        tracer.check()
    if asked.emit == "text":
        found = shared_labels(record.labels.get("text"))
        if not found:
            raise UsageError("--emit text needs words, and the model has no tokenizer that joins them")
        return "\n".join(found)
    return record.joined(unrelated_tensors(given)) if isinstance(given, Record) else record


def unrelated_tensors(record: Record) -> Record:
    """The tensors of a record that are not of the tokens that a text began with."""
    gone = {"token", "key", "query", "vocab"}
    names = [name for name in record if name not in TOKEN_TENSORS and not gone & set(record.axes_of(name))]
    return record.only(names)
