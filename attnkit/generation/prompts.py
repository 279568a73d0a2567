"""Make prompts of text, ids or a record, with a memory or after a KV cache."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.checkpoints.generation_defaults import OF_BEAMS, list_defaults
from attnkit.errors import AttnkitError, AttnkitNote, DataError, UsageError, counted, flag_name, with_article
from attnkit.generation import kv_cache_file
from attnkit.generation.options import DecodeOptions
from attnkit.inputs import layers, padding, picture_prompts, source_states, text_inputs
from attnkit.inputs.detokenizer import Detokenizer
from attnkit.inputs.operands import AttendedTensor, load_attended
from attnkit.records import Array, Labels, Record, join_names, row_labels, shared_labels
from attnkit.tokenizers.auto import NoTokenizer
from attnkit.tokenizers.chat_template import ChatTemplates, load_chat_templates

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


class TokenRows(NamedTuple):
    """The ids of texts without padding, and their places in an array of `width`.

    columns   of the tokens of each text; None if the array was not a padded batch
    is_batch  whether the array was a batch (B, T)
    """

    ids: list[list[int]]
    columns: list[Array | None]
    width: int
    is_batch: bool


class SourceText(NamedTuple):
    """The source of a translation: its memory (S, D), tokens and ids.

    states  of a recurrent model, the last state of each layer of the encoder, (1, P)
    """

    memory: Array | None = None
    tokens: list[str] | None = None
    ids: list[int] | None = None
    states: tuple[model.State, ...] | None = None


class Prompt(NamedTuple):
    """What a text is generated after, or its tokens are scored after.

    ids      all tokens so far, at least one
    prefix   how many of these come before the tokens of the prompt text: a start token, a KV cache
    memory   (S, D) the encoder's output for the source
    source   the tokens of the source
    cache    keys and values of the first tokens
    text     the prompt as written
    columns  the columns of its tokens in the padded batch they came in, of `width` columns
    source_ids  the ids of the source, if the encoder of this model computed the memory
    source_states  of a recurrent model, the last state of each layer of the encoder, (1, P)
    is_chat  whether the text is a rendered chat, so that the text after it is an answer by itself
    places   of the tokens of --image in ids, (N,)
    """

    ids: list[int]
    prefix: int = 0
    memory: Array | None = None
    source: list[str] | None = None
    cache: model.KVCache | None = None
    text: str | None = None
    columns: Array | None = None
    width: int = 0
    source_ids: list[int] | None = None
    source_states: tuple[model.State, ...] | None = None
    is_chat: bool = False
    places: Array | None = None


def make_prompts(
    source: Sequence[str] | Record | None, options: DecodeOptions, detokenizer: Detokenizer
) -> tuple[list[Prompt], bool]:
    config, special = options.config, choose_target(options, detokenizer)
    if config.encoder:
        sources, is_batch = read_sources(source, options)
        rows = [[]] if options.ids is None else token_rows(options.ids, "--ids", config, True).ids
        if len(rows) not in (1, len(sources)):
            raise DataError(f"{len(rows)} rows for {counted(len(sources), 'source')}", "--ids")
        rows = rows * len(sources) if len(rows) == 1 else rows
        return [make_prompt(ids, options, special, one) for ids, one in zip(rows, sources, strict=True)], is_batch
    if options.memory is not None:
        raise UsageError(f"{with_article(config.family)} model has no cross-attention to a memory", "--memory")
    if options.ids is not None or isinstance(source, Record):
        given = record_prompts(source, options)
        prompts = [make_prompt(ids, options, special) for ids in given.ids]
        pairs = zip([with_places(prompt, options) for prompt in prompts], given.columns, strict=True)
        return [prompt._replace(columns=at, width=given.width) for prompt, at in pairs], given.is_batch
    if not source:
        return [make_prompt([], options, special)], False
    texts = list(source)
    prompts = [make_prompt(tokenize_prompt(text, options, detokenizer), options, special, text=text) for text in texts]
    prompts = [with_places(prompt._replace(is_chat=options.chat.chat), options) for prompt in prompts]
    return prompts, options.batch or len(texts) > 1


def note_picture(options: DecodeOptions) -> None:
    """A note of the tiles that a picture is cut into, and of their tokens."""
    if options.image is None:
        return
    tiles = picture_prompts.tiles_of_image(options.checkpoint, options.image)
    if tiles.rows:
        warnings.warn(f"the picture is read as {tiles.describe()}", AttnkitNote, stacklevel=2)


def with_places(prompt: Prompt, options: DecodeOptions) -> Prompt:
    """A prompt that knows where the tokens of its picture are, if there is one."""
    if options.image is None:
        return prompt
    tiles = picture_prompts.tiles_of_image(options.checkpoint, options.image)
    return prompt._replace(places=picture_prompts.place_rows(prompt.ids, options.checkpoint, tiles))


def record_prompts(source: Sequence[str] | Record | None, options: DecodeOptions) -> TokenRows:
    if options.ids is not None:
        return token_rows(options.ids, "--ids", options.config)
    if not isinstance(source, Record) or "ids" not in source:
        raise DataError("the record has no ids (decode --model --layer head takes its x)")
    if "memory" in source:
        raise DataError(
            f"the record has a memory, and {with_article(options.config.family)} model has no cross-attention"
        )
    text_inputs.check_vocabulary(source, options.checkpoint, "source", options.tokenizer)
    text_inputs.warn_ignored_input(source, options.checkpoint, "ids", "--layer head decodes x")
    return token_rows(source, "ids", options.config)


def token_rows(record: Record, name: str, config: "model.Config", is_target: bool = False) -> TokenRows:
    """The rows of ids without padding, and where they were.

    name       of the operand, for errors
    is_target  whether the ids are those that a decoder has written, after its start token
    """
    record = padding.padded_ids(record, config, is_target)
    ids = record["ids"]
    if ids.ndim not in (1, 2):
        raise DataError(f"shape {ids.shape} is not (T) or (B, T)", name)
    real = padding.require_padding(record, is_causal=True)
    pairs = list(zip(np.atleast_2d(ids), np.atleast_2d(real), strict=True))
    rows = [row[is_real].tolist() for row, is_real in pairs]
    if ids.ndim == 1 or "mask" not in record:
        return TokenRows(rows, [None] * len(rows), ids.shape[-1], ids.ndim == 2)
    return TokenRows(rows, [np.flatnonzero(is_real) for _, is_real in pairs], ids.shape[-1], True)


def check_prompt_ids(ids: Sequence[int], size: int) -> list[int]:
    checked: list[int] = model.check_ids(np.array(ids) if ids else np.zeros(0, np.int64), size).tolist()
    return checked


def make_prompt(
    ids: list[int],
    options: DecodeOptions,
    special: model.SpecialTokens,
    source: SourceText | None = None,
    text: str | None = None,
) -> Prompt:
    """Make a prompt: ids after a KV cache, or after the start token."""
    config, source = options.config, source or SourceText()
    memory, names = source.memory, source.tokens
    ids = check_prompt_ids(ids, config.stack("decoder").vocab)
    if options.cache.cache_in is not None:
        more = 0 if options.length.max_tokens == 0 else len(ids)
        cache, before = kv_cache_file.read_cache(options.cache.cache_in, config, options.compute_dtype, more)
        if config.encoder:  # a placeholder: the keys of the memory are in the cache
            memory = np.broadcast_to(np.zeros(1, options.compute_dtype), (1, config.memory_width))
        return Prompt([*before, *ids], len(before), memory, names, cache, text)
    if config.sound and memory is not None and options.speech.audio is not None:
        begin = begin_transcription(options, memory)
        return Prompt([*begin, *ids], len(begin), memory, names, None, text)
    first = special.start if special.start is not None else special.bos
    if first is None and (config.encoder or not ids):
        name = "decoder_start_token_id" if config.encoder else "bos_token_id"
        raise DataError(f"the prompt is empty, and the model has no {name}", options.checkpoint.folder)
    if first is not None and ids[:1] != [first] and (config.encoder or not ids):
        ids = [first, *ids]
    return Prompt(ids, 1, memory, names, None, text, source_ids=source.ids, source_states=source.states)


def tokenize_prompt(text: str, options: DecodeOptions, detokenizer: Detokenizer) -> list[int]:
    try:
        if detokenizer.tokenizer is None:
            text_inputs.tokenizer_of(options.checkpoint)
    except AttnkitError as error:
        raise type(error)(f"{error.problem}; --ids FILE takes ids instead of text", error.name) from None
    if options.image is not None:
        tokenizer = options.tokenizer or text_inputs.tokenizer_of(options.checkpoint)
        tiles = picture_prompts.tiles_of_image(options.checkpoint, options.image)
        text = picture_prompts.write_placeholders(text, options.checkpoint, tokenizer, tiles)
    source = text_inputs.ModelInput(
        text,
        tokenizer=options.tokenizer,
        with_special=not options.chat.chat or begins_without_special(text, options),
        language=options.translation.target_language,
    )
    ids: list[int] = text_inputs.read_known_texts(options.checkpoint, "decoder", source).ids.tolist()
    first = options.config.special.bos
    return ids[1:] if options.cache.cache_in is not None and ids[:1] == [first] else ids


def begins_without_special(text: str, options: DecodeOptions) -> bool:
    """Whether a rendered chat gets special tokens, as processors of pictures add them.

    They do if the template has not written the first one.
    """
    if options.checkpoint.pictures is None:
        return False
    templates: ChatTemplates = options.checkpoint.load_companion("chat", load_chat_templates)
    begin = templates.special.get("bos_token", "")
    return not (begin and text.startswith(begin))


def read_sources(source: Sequence[str] | Record | None, options: DecodeOptions) -> tuple[list[SourceText], bool]:
    """The memory (S, D) and tokens of each source, and whether they are a batch."""
    if options.cache.cache_in is not None:
        if options.memory is not None or (any(source) if isinstance(source, tuple) else source):
            raise UsageError("the cache contains its source text; no other source is allowed", "--cache-in")
        return [SourceText()], False
    memory, mask, tokens = find_memory(source, options.memory)
    if options.translation.source_language and (memory is not None or isinstance(source, Record)):
        raise UsageError("needs TEXT: the tokens of a record are made already", "--source-language")
    if memory is None:
        return encode_sources(source, options)
    if isinstance(source, Record) and memory is source.get("memory"):
        if "ids" in source and source.labels.get("source") and source.labels.get("token") == source.labels["source"]:
            text_inputs.check_vocabulary(source, options.checkpoint, "source", options.tokenizer)
        if "x" in source and not np.array_equal(source["x"], source["memory"]):
            text_inputs.warn_ignored_input(source, options.checkpoint, "the memory", "--memory :x attends to x")
    width = options.config.memory_width
    if memory.ndim not in (2, 3) or memory.shape[-1] != width:
        raise DataError.about("memory", f"{memory.shape}: expected (S, {width}) or (B, S, {width})")
    batch = memory if memory.ndim == 3 else memory[None]
    real = padding.require_padding(Record({"x": batch} | ({} if mask is None else {"mask": mask})))
    check_sources(real)
    dtype = options.compute_dtype
    record = source if isinstance(source, Record) else Record({})
    companions = record if options.memory is None else options.memory.companions
    last = source_states.read_states(companions.arrays(), options.config, len(batch), dtype)
    return [
        SourceText(
            np.ascontiguousarray(states[is_real], dtype),
            token_names(row_labels(tokens, row), is_real),
            states=None if last is None else last[row],
        )
        for row, (states, is_real) in enumerate(zip(batch, real, strict=True))
    ], memory.ndim == 3


def check_sources(real: Array) -> None:
    """Raise DataError for a source without a token: real (B, S), True = a token."""
    for row in np.flatnonzero(~real.any(axis=-1)):
        raise DataError(f"row {row} of the source has no token to attend to")


def encode_sources(source: Sequence[str] | Record | None, options: DecodeOptions) -> tuple[list[SourceText], bool]:
    checkpoint, dtype = options.checkpoint, options.compute_dtype
    if checkpoint.config.sound:
        return encode_sounds(options)
    if isinstance(source, Record):
        if "ids" not in source:
            raise DataError("the record has no ids and no memory (encode --model makes one)")
        text_inputs.check_vocabulary(source, checkpoint, "source", options.tokenizer)
        text_inputs.warn_ignored_input(source, checkpoint, "ids", "encode --model makes a memory")
        source = padding.padded_ids(source, checkpoint.config)
        ids, labels = source["ids"], source.labels.get("token")
        if ids.ndim not in (1, 2):
            raise DataError(f"shape {ids.shape} is not (T) or (B, T)", "ids")
        real = np.atleast_2d(padding.require_padding(source))
        check_sources(real)
        names = [token_names(row_labels(labels, row), is_real) for row, is_real in enumerate(real)]
        rows = [row[is_real].tolist() for row, is_real in zip(np.atleast_2d(ids), real, strict=True)]
        pairs = zip(rows, names, strict=True)
        return [encode_ids(checkpoint, row, name, dtype) for row, name in pairs], ids.ndim == 2
    if not source:
        family = checkpoint.config.family
        raise UsageError(f"no source: {with_article(family)} model needs TEXT, a record, or --memory FILE")
    tokenizer = text_inputs.text_tokenizer(checkpoint, "source", options.translation.source_language, options.tokenizer)
    sources = [text_inputs.ModelInput(text, tokenizer=tokenizer) for text in source]
    inputs = [text_inputs.read_known_texts(checkpoint, "encoder", each) for each in sources]
    return [
        encode_ids(checkpoint, one.ids.tolist(), shared_labels(one.tokens), dtype) for one in inputs
    ], options.batch or len(source) > 1


def token_names(names: Sequence[str], real: Array) -> list[str] | None:
    return [name for name, is_real in zip(names, real, strict=True) if is_real] if len(names) == len(real) else None


def find_memory(source: Any, memory: AttendedTensor | None) -> tuple[Array | None, Array | None, Labels | None]:
    record = source if isinstance(source, Record) else Record({})
    if memory is None:
        if "memory" not in record:
            return None, None, None
        memory = load_attended(record, "memory", own=True)
    mask = None if memory.mask is None else memory.mask["x"]
    if mask is not None and mask.dtype.kind in "iu":
        mask = model.to_boolean(mask)
    if memory.is_given and memory.name == "memory":  # the array itself, so that it can be compared to x by identity
        return record["memory"], mask, record.labels.get("source")
    return memory["x"], mask, None


def encode_ids(checkpoint: "Checkpoint", ids: list[int], tokens: list[str] | None, dtype: str) -> SourceText:
    """One source, encoded: ids (S,) -> memory (S, D)."""
    core = layers.core_model(checkpoint)
    context = layers.new_context(dtype=dtype)
    checked = check_prompt_ids(ids, core.config.stack("encoder").vocab)
    memory = model.run(core, core.config.plan("encoder"), np.array(checked), context)
    return SourceText(memory, tokens, ids, context.last_states())


def encode_sounds(options: DecodeOptions) -> tuple[list[SourceText], bool]:
    """The memory (S, D) of each sound of --audio, and whether they are a batch."""
    from attnkit.inputs.sound_inputs import is_sound_batch, split_sounds

    audio = options.speech.audio
    sounds = [None] if audio is None else split_sounds(audio)
    given = [
        text_inputs.model_inputs(options.checkpoint, "encoder", text_inputs.ModelInput(audio=one))[0] for one in sounds
    ]
    memories = [SourceText(encode_features(options, features)) for features in given]
    return memories, audio is not None and is_sound_batch(audio)


def encode_features(options: DecodeOptions, features: Array) -> Array:
    """The memory of a spectrogram: (F, M) -> (S, D)."""
    core, context = layers.core_model(options.checkpoint), layers.new_context(dtype=options.compute_dtype)
    return model.run(core, core.config.plan("encoder"), features, context)


def begin_transcription(options: DecodeOptions, memory: Array) -> list[int]:
    """The tokens before the text of a sound: start, language, task, times or none.

    UsageError for a language or a task that the model does not have.
    """
    config = options.config
    sound, ids = config.sound, [] if config.special.start is None else [config.special.start]
    if sound is None:
        return ids
    for flag, value, known in (
        ("--language", options.speech.language, sound.languages),
        ("--task", options.speech.task, sound.tasks),
    ):
        if value is not None and value not in known:
            few = f"expected one of {join_names([*known], 8)}" if known else "it has one"
            raise UsageError(f"the model has no {flag[2:]} {value!r} ({few})", flag)
    forced = sound.forced if options.speech.language is None and options.speech.task is None else ()
    if not sound.languages and not sound.tasks:
        ids += [id for id in forced if id != sound.no_timestamps]
    if sound.languages:
        language = options.speech.language or find_forced(sound.languages, forced)
        ids.append(sound.languages[language or detect_language(options, memory, ids)])
    if sound.tasks:
        ids.append(sound.tasks[options.speech.task or find_forced(sound.tasks, forced) or "transcribe"])
    return ids if sound.no_timestamps is None or options.speech.timestamps else [*ids, sound.no_timestamps]


def find_forced(names: Mapping[str, int], forced: Sequence[int]) -> str | None:
    """The first of some names whose token is forced.

    >>> find_forced({"en": 7, "de": 8}, [8, 9])
    'de'
    """
    return next((name for name, id in names.items() if id in forced), None)


def detect_language(options: DecodeOptions, memory: Array, ids: Sequence[int]) -> str:
    """The language whose token is the most probable first one."""
    core, sound = layers.core_model(options.checkpoint), options.config.sound
    languages = sound.languages if sound else {}
    context = layers.new_context(memory=memory, dtype=options.compute_dtype)
    x = model.run(core, core.config.plan("decoder"), np.array(ids), context)
    logits = model.head_logits(core, x)[-1]
    return max(languages, key=lambda language: float(logits[languages[language]]))


def choose_target(options: DecodeOptions, detokenizer: Detokenizer) -> model.SpecialTokens:
    """The special tokens of a text in the target language."""
    languages = detokenizer.tokenizer.languages if detokenizer.tokenizer else None
    return text_inputs.target_special(options.config.special, languages, options.translation.target_language)


def note_language(prompts: Sequence[Prompt], options: DecodeOptions, detokenizer: Detokenizer) -> None:
    """A note of texts whose language nothing states, of a model that has several."""
    languages = detokenizer.tokenizer.languages if detokenizer.tokenizer else None
    if languages is None or choose_target(options, detokenizer).forced_bos is not None:
        return
    if any(len(prompt.ids) == 1 and prompt.ids[0] not in languages.ids.values() for prompt in prompts):
        note = "the model itself chooses the language of the target; --target-language L names one"
        warnings.warn(note, AttnkitNote, stacklevel=2)


def note_defaults(options: DecodeOptions) -> None:
    """Note the rules that an encoder-decoder's folder asks for and no option states."""
    given = options.by_name()
    asked = list_defaults(options.checkpoint.generation) if options.config.encoder else {}
    flags = [f"{flag_name(name)} {value}" for name, value in asked.items() if given[name] is None]
    if flags and not all(given[name] is not None or name in OF_BEAMS for name in asked):
        note = f"the folder asks for {' '.join(flags)}, which decode does only if its own options say so"
        warnings.warn(note, AttnkitNote, stacklevel=2)


def memory_context(prompt: Prompt, is_batch: bool = True) -> dict[str, Any]:
    """The fields of Context for the source of a prompt, as a batch or as (S, D)."""
    memory = prompt.memory if prompt.memory is None or not is_batch else prompt.memory[None]
    return {"memory": memory, "source_states": prompt.source_states}


def picture_context(prompt: Prompt, options: DecodeOptions, hook: model.Hook = model.no_hook) -> dict[str, Any]:
    """The field of Context for the picture of a prompt, {} if there is none.

    hook  reads or replaces what the tower and its connector compute
    """
    if prompt.places is None or options.image is None:
        return {}
    checkpoint, tower = options.checkpoint, layers.core_model(options.checkpoint.tower("vision"))
    images = picture_prompts.cut_image(checkpoint, options.image)
    dtype = options.compute_dtype
    return {"pictures": picture_prompts.embed_picture(checkpoint, images, prompt.places, tower, hook, dtype)}


def positions_left(config: "model.Config", size: int) -> int:
    """How many tokens may follow `size` tokens."""
    most = config.positions.longest
    if not most or config.positions.kind not in ("learned", "sinusoidal"):
        return 1 << 62
    if size > most:
        raise DataError(f"{counted(size, 'token')}, and this {config.family} model has {counted(most, 'position')}")
    return most - size + 1  # the last token needs no position: nothing follows it


def make_detokenizer(options: DecodeOptions) -> Detokenizer:
    checkpoint, config = options.checkpoint, options.config
    size, skipped = config.stack("decoder").vocab, 1 if config.encoder else 0
    try:
        side = "target" if config.encoder else "source"
        tokenizer = options.tokenizer or text_inputs.tokenizer_of(checkpoint, side)
        return Detokenizer(tokenizer.keeping_special() if options.keep_special else tokenizer, size, skipped)
    except AttnkitError as error:
        needs_text = options.score is not None or options.stop or options.emit == "text"
        is_missing = isinstance(error, NoTokenizer | UsageError)  # no files, or no library to read them
        if needs_text or not (is_missing or options.ids is not None or options.emit):
            raise type(error)(f"{error.problem}; --ids FILE and --emit ids do without", error.name) from None
        return Detokenizer(None, size, skipped)
