"""What a text goes on from: tokens of text, of ids or of a record, a memory for them to look at, or a cache."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitError, DataError, UsageError
from attnkit.inference import kv_cache_file, layers, masking, text_inputs
from attnkit.inference.detokenizer import Detokenizer
from attnkit.inference.operands import select_tensor
from attnkit.inference.options import GenerationOptions, compute_dtype
from attnkit.record import Array, Labels, Record, row_labels, shared_labels

Source = tuple[Array | None, list[str] | None]


class Prompt(NamedTuple):
    """What a text goes on from.

    ids     all tokens so far, never none; `given`: how many of these were there before the prompt
    memory  (S, D) what an encoder has made of the source; source: its tokens
    cache   keys and values of the first tokens
    text    the prompt as it was written
    columns where the tokens of the prompt stand in the padded batch they came in, of `width` columns
    """

    ids: list[int]
    given: int = 0
    memory: Array | None = None
    source: list[str] | None = None
    cache: model.KVCache | None = None
    text: str | None = None
    columns: Array | None = None
    width: int = 0


def generates_text(config: model.Config, layer: str | None) -> bool:
    """Whether decode writes texts with this model: it has a decoder of words, and no layer of it is asked for."""
    return layer is None and config.decoder is not None and config.decoder.vocab > 0


def encodes_text(config: model.Config, layer: str | None) -> bool:
    """Whether decode takes text for this model, though it writes none: it has an encoder of words alone."""
    return layer is None and config.decoder is None and config.encoder is not None and config.encoder.vocab > 0


def make_prompts(
    given: Sequence[str] | Record | None, asked: GenerationOptions, voice: Detokenizer
) -> tuple[list[Prompt], bool]:
    """What each text begins with, and whether there is a batch of them."""
    config = asked.model_.config
    if config.encoder:
        sources, batch = read_sources(given, asked)
        prompts = [[]] if asked.ids is None else columned(layers.padded_ids(asked.ids), "--ids")[0]
        if len(prompts) not in (1, len(sources)):
            raise DataError(f"{len(prompts)} rows for {len(sources)} sources", "--ids")
        prompts = prompts * len(sources) if len(prompts) == 1 else prompts
        return [
            make_prompt(prompt, *source, None, asked) for prompt, source in zip(prompts, sources, strict=True)
        ], batch
    if asked.memory is not None:
        raise UsageError(f"a {config.family} model looks at no memory", "--memory")
    if asked.ids is not None or isinstance(given, Record):
        prompts, columns, batch = record_prompts(given, asked)
        made = [make_prompt(prompt, None, None, None, asked) for prompt in prompts]
        width = given["ids"].shape[-1] if asked.ids is None and isinstance(given, Record) else 0
        return [one._replace(columns=at, width=width) for one, at in zip(made, columns, strict=True)], batch
    if not given:
        return [make_prompt([], None, None, None, asked)], False
    written = list(given)
    prompts = [tokenize_prompt(text, asked, voice) for text in written]
    made = [make_prompt(prompt, None, None, text, asked) for prompt, text in zip(prompts, written, strict=True)]
    return made, asked.batch or len(written) > 1


def record_prompts(
    given: Sequence[str] | Record | None, asked: GenerationOptions
) -> tuple[list[list[int]], Sequence[Array | None], bool]:
    """The ids of --ids or of a record, the columns of a padded batch in which they stand, and whether they are one."""
    if asked.ids is not None:
        return columned(layers.padded_ids(asked.ids), "--ids")
    if not isinstance(given, Record) or "ids" not in given:
        raise DataError("the record has no ids (decode --model --layer head takes its x)")
    if "memory" in given:
        raise DataError(f"the record has a memory, and a {asked.model_.config.family} model looks at none")
    text_inputs.check_vocabulary(given, asked.model_, "source", asked.tokenizer)
    text_inputs.warn_ignored_input(given, asked.model_, "ids", "--layer head decodes x")
    return columned(given, "ids")


def columned(given: Record, name: str) -> tuple[list[list[int]], Sequence[Array | None], bool]:
    """The ids of a record without their padding, the columns in which they stand, and whether they are a batch."""
    ids, mask = given["ids"], given.tensors.get("mask")
    found = unpadded_rows(ids, mask, name)
    if ids.ndim == 1 or mask is None:
        return found, [None] * len(found), ids.ndim == 2
    return found, [np.flatnonzero(real) for real in token_mask(mask, ids.shape)], True


def check_prompt_ids(ids: Sequence[int], size: int) -> list[int]:
    """The ids, once each is known to be a word."""
    found: list[int] = model.check_ids(np.array(ids) if ids else np.zeros(0, np.int64), size).tolist()
    return found


def make_prompt(
    prompt: list[int], memory: Array | None, source: list[str] | None, text: str | None, asked: GenerationOptions
) -> Prompt:
    """One beginning: the prompt behind what a cache has, or behind the token that every text starts with."""
    config = asked.model_.config
    prompt = check_prompt_ids(prompt, config.stack("decoder").vocab)
    if asked.cache_in is not None:
        more = 0 if asked.max_tokens == 0 else len(prompt)
        cache, before = kv_cache_file.read_cache(asked.cache_in, config, compute_dtype(asked), more)
        if config.encoder:  # nobody looks at a memory whose keys are known, but there has to be one
            memory = np.broadcast_to(np.zeros(1, compute_dtype(asked)), (1, config.width))
        return Prompt([*before, *prompt], len(before), memory, source, cache, text)
    first = config.special.start if config.special.start is not None else config.special.bos
    if first is None and (config.encoder or not prompt):
        name = "decoder_start_token_id" if config.encoder else "bos_token_id"
        raise DataError(f"nothing to begin with: an empty prompt, and no {name}", asked.model_.folder)
    if first is not None and prompt[:1] != [first] and (config.encoder or not prompt):
        prompt = [first, *prompt]
    return Prompt(prompt, 1, memory, source, None, text)


def tokenize_prompt(text: str, asked: GenerationOptions, voice: Detokenizer) -> list[int]:
    """The ids of a text; without the token that begins a text where a cache has the beginning."""
    try:
        chosen = voice.tokenizer or text_inputs.tokenizer_of(asked.model_)
    except AttnkitError as error:
        raise type(error)(f"{error.problem}; --ids FILE takes ids in place of text", error.name) from None
    ids: list[int] = text_inputs.tokenize_for_model(asked.model_, "decoder", (text,), chosen, None).ids.tolist()
    first = asked.model_.config.special.bos
    return ids[1:] if asked.cache_in is not None and ids[:1] == [first] else ids


def unpadded_rows(ids: Array, mask: Array | None, name: str) -> list[list[int]]:
    """The rows of ids (T) or (B, T), without their padding."""
    if ids.ndim not in (1, 2):
        raise DataError(f"shape {ids.shape} is not (T) or (B, T)", name)
    table = np.atleast_2d(ids)
    return [row[real].tolist() for row, real in zip(table, token_mask(mask, table.shape), strict=True)]


def token_mask(mask: Array | None, shape: tuple[int, ...]) -> Array:
    """Which tokens of a batch (B, T) are no padding, by a mask (B, 1, T) or (B, T) of it."""
    if mask is None:
        return np.ones(shape, bool)
    if mask.dtype != bool or mask.shape not in (shape, (shape[0], 1, shape[1])):
        raise DataError(
            f"mask {mask.shape} for tokens {shape}: expected that of a padded batch, {(shape[0], 1, shape[1])}"
        )
    return mask.reshape(shape)


def read_sources(given: Sequence[str] | Record | None, asked: GenerationOptions) -> tuple[list[Source], bool]:
    """The memory (S, D) and the tokens of every source: given, or made of text by the encoder; is it a batch."""
    if asked.cache_in is not None:
        if asked.memory is not None or (any(given) if isinstance(given, tuple) else given):
            raise UsageError("the cache has its source, and another one is given", "--cache-in")
        return [(None, None)], False
    memory, mask, tokens = find_memory(given, asked)
    if memory is None:
        return encode_sources(given, asked)
    if isinstance(given, Record) and memory is given.tensors.get("memory"):
        check_own_memory(given, asked)
    width = asked.model_.config.width
    if memory.ndim not in (2, 3) or memory.shape[-1] != width:
        raise DataError(f"memory {memory.shape}: expected (S, {width}) or (B, S, {width})")
    batch = memory if memory.ndim == 3 else memory[None]
    real = token_mask(mask, batch.shape[:2])
    check_sources(real)
    return [
        (np.ascontiguousarray(states[seen], compute_dtype(asked)), token_names(row_labels(tokens, at), seen))
        for at, (states, seen) in enumerate(zip(batch, real, strict=True))
    ], memory.ndim == 3


def check_sources(real: Array) -> None:
    """DataError for a source without a token: real (B, S), True = a token, not padding."""
    for row in np.flatnonzero(~real.any(axis=-1)):
        raise DataError(f"row {row} of the source has no token to look at")


def check_own_memory(record: Record, asked: GenerationOptions) -> None:
    """Checks a record with a memory: that it is not of other words, and that no work on x is lost unsaid."""
    if "ids" in record and record.labels.get("source") and record.labels.get("token") == record.labels["source"]:
        text_inputs.check_vocabulary(record, asked.model_, "source", asked.tokenizer)
    if "x" in record and not np.array_equal(record["x"], record["memory"]):
        text_inputs.warn_ignored_input(record, asked.model_, "the memory", "--memory :x looks at x")


def encode_sources(given: Sequence[str] | Record | None, asked: GenerationOptions) -> tuple[list[Source], bool]:
    """What the encoder makes of each text, or of each row of a record's ids; are there several."""
    if isinstance(given, Record):
        if "ids" not in given:
            raise DataError("the record has no memory (encode --model makes one), and no ids")
        text_inputs.check_vocabulary(given, asked.model_, "source", asked.tokenizer)
        text_inputs.warn_ignored_input(given, asked.model_, "ids", "encode --model makes a memory")
        mask, ids = given.tensors.get("mask"), given["ids"]
        found, real, tokens = (
            unpadded_rows(ids, mask, "ids"),
            token_mask(mask, np.atleast_2d(ids).shape),
            given.labels.get("token"),
        )
        check_sources(real)
        names = [token_names(row_labels(tokens, at), seen) for at, seen in enumerate(real)]
        return [(encode_ids(row, asked), named) for row, named in zip(found, names, strict=True)], ids.ndim == 2
    if not given:
        family = asked.model_.config.family
        raise UsageError(f"what does it look at? a {family} model takes TEXT, a record, or --memory FILE")
    chosen = asked.tokenizer or text_inputs.tokenizer_of(asked.model_)
    cut = [text_inputs.tokenize_for_model(asked.model_, "encoder", (text,), chosen, None) for text in given]
    made: list[Source] = [(encode_ids(one.ids.tolist(), asked), shared_labels(one.tokens)) for one in cut]
    return made, asked.batch or len(given) > 1


def token_names(names: Sequence[str], real: Array) -> list[str] | None:
    """The names of real tokens; None where there are none for all."""
    return [name for name, kept in zip(names, real, strict=True) if kept] if len(names) == len(real) else None


def find_memory(given: Any, asked: GenerationOptions) -> tuple[Array | None, Array | None, Labels | None]:
    """The memory that is given, its mask and its tokens: of --memory, else of the record."""
    record = given if isinstance(given, Record) else Record({})
    chosen = asked.memory
    if chosen is None:
        if "memory" not in record:
            return None, None, None
        chosen = masking.attended_tensor(select_tensor(record, "memory"), record, "memory", own=True)
    mask = None if chosen.mask is None else chosen.mask["x"]
    if mask is not None and mask.dtype.kind in "iu":
        mask = model.to_boolean(mask)
    if chosen.is_given and chosen.name == "memory":  # the array itself: whether it is x is asked of it
        return record["memory"], mask, record.labels.get("source")
    return chosen["x"], mask, None


def encode_ids(ids: Sequence[int], asked: GenerationOptions) -> Array:
    """What the encoder makes of one source: ids (S,) -> (S, D)."""
    core = layers.core_model(asked.model_)
    context = layers.new_context(dtype=compute_dtype(asked))
    size = core.config.stack("encoder").vocab
    return model.run(core, model.layer_plan(core.config, "encoder"), np.array(check_prompt_ids(ids, size)), context)
