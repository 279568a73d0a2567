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

from attnkit import display, layers, tokenizers, views
from attnkit.errors import UsageError
from attnkit.generating.asked import LOOKING, READING, SAMPLING, SPEAKING, Asked, checked, limit_of, refused
from attnkit.generating.beginnings import beginning, beginnings, speaks, stands_alone
from attnkit.generating.continuing import continued, penalty_text, spoken
from attnkit.generating.packing import columns_of, masked, packed
from attnkit.generating.scoring import scored
from attnkit.generating.vectors import head_of, transformed
from attnkit.generating.voices import voice_of
from attnkit.tensors.record import Record, flat
from attnkit.tool import Call

__all__ = [
    "LOOKING",
    "READING",
    "SAMPLING",
    "SPEAKING",
    "Asked",
    "answered",
    "beginning",
    "head_of",
    "looked",
    "penalty_text",
    "refused",
    "speaks",
    "stands_alone",
    "transformed",
]


OF_TOKENS = ("x", "ids", "mask", "types", "token_type_ids", "scores")


def answered(given: Sequence[str] | Record | None, asked: Asked) -> Record | str:
    """What a model says, or how likely it finds what is given."""
    checked(asked)
    given = layers.with_ids(given) if isinstance(given, Record) else given
    core, config = layers.whole(asked.model_), asked.model_.config
    if not config.head:
        raise UsageError(f"this {config.family} model has no head: it maps tokens to vectors", "--model")
    voice = voice_of(asked)
    begun, several = beginnings(given, asked, voice)
    if several and (asked.best or asked.cache_out):
        raise UsageError("goes with one text, and there is a batch", "--best" if asked.best else "--cache-out")
    if asked.scores:
        made = [scored(core, one, asked, voice, asked.tracer(), given) for one in begun]
        columns = columns_of(begun, asked) if several else None
        record = packed([one.record for one in made], voice.padding, columns)
        if columns:
            record = masked(record, ("batch",), [len(one.record["x"]) for one in made], columns)
        if asked.trace:
            Call.beside(asked.trace, given, packed([one.trace for one in made], voice.padding, columns))
    else:
        tracer = asked.tracer()
        layers.ready_for(asked.model_, limit_of(asked))
        texts_made = [continued(core, one, asked, voice, tracer, given, len(begun) == 1) for one in begun]
        record = spoken(begun, texts_made, asked, voice, several)
        tracer.check()
    if asked.emit == "text":
        found = flat(record.labels.get("text"))
        if not found:
            raise UsageError("--emit text needs words, and the model has no tokenizer that joins them")
        return "\n".join(found)
    return record.joined(untouched(given)) if isinstance(given, Record) else record


def untouched(record: Record) -> Record:
    """The tensors of a record that are not of the tokens that a text began with."""
    gone = {"token", "key", "query", "vocab"}
    names = [name for name in record if name not in OF_TOKENS and not gone & set(record.axes_of(name))]
    return record.only(names)


def looked(record: Record, call: Call, look: display.Look) -> str:
    """What a terminal shows of a text: the words, the beginning dim; of scores a table and their sum."""
    found = flat(record.labels.get("text"))
    if call.parameters["emit"] not in (None, "text") or not (found or "rank" in record):
        return views.tables(record, call, look)
    if "rank" in record:
        count = len(record["x"]) if record["x"].ndim == 2 else 1
        return "\n\n".join(score_shown(record, row, look) for row in range(count))
    shown = []
    scores = record["scores"].tolist() if "scores" in record and len(found) > 1 else []
    prompts = flat(record.labels.get("prompt")) or [""] * len(found)
    for at, (text, prompt) in enumerate(zip(found, prompts, strict=True)):
        rest = text[len(prompt) :] if text.startswith(prompt) else text
        line = display.said(prompt if text.startswith(prompt) else "", rest, look)
        shown.append(f"{scores[at]:.{look.precision}f}  {line}" if scores else line)
    return "\n".join(shown)


def score_shown(record: Record, row: int, look: display.Look) -> str:
    """The scores of one text as a table, and what they come to."""
    at = row if record["x"].ndim == 2 else ...
    names = record.labels.get("token") or [str(word) for word in record["ids"][at]]
    tokens = [str(name) for name in (names[row] if names and isinstance(names[0], list) else names)]
    real = [place for place, name in enumerate(tokens) if name not in tokenizers.PADDING or record["rank"][at][place]]
    x, ids, rank = (record[name][at][real].tolist() for name in ("x", "ids", "rank"))
    return display.scores([tokens[place] for place in real], ids, x, rank, look)
