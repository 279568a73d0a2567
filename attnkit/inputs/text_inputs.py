"""Turn texts and ids into inputs of a model: tokenized, padded and checked."""

import contextlib
import itertools
import os
import shlex
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit import model, tokenizers
from attnkit.errors import AttnkitError, AttnkitNote, AttnkitWarning, DataError, UsageError, counted, with_article
from attnkit.formats.streams import decode_text
from attnkit.inputs.padding import ONE_ROW, padded_ids
from attnkit.records import Array, Labels, Record, Tensor, row_labels, shared_labels
from attnkit.tokenizers import Languages, Tokenizer, Tokens

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


class ModelInput(NamedTuple):
    """What a model reads: texts, token ids or an image, and how texts become ids.

    pair       a second text after the one of `texts`
    ids        token ids (T) or (B, T) as x, with their mask, in place of texts
    image      (C, height, width), in place of texts and ids
    tokenizer  instead of the model's own
    batch      whether a single text is a batch too
    most       how many tokens a text may have, more are cut with a warning; None: any number
    plain  whether the spelling of a special token is text
    with_special  whether the tokenizer adds its special tokens to a text
    audio      a sound, x (T,), in place of texts and ids
    language   of the texts, of a model that translates; None: as `speak` chooses
    """

    texts: Sequence[str] | str | None = None
    pair: str | None = None
    ids: Record | None = None
    image: Array | None = None
    tokenizer: Tokenizer | None = None
    batch: bool = False
    most: int | None = None
    with_special: bool = True
    audio: Record | None = None
    language: str | None = None
    plain: bool = False


class EncodedInputs(NamedTuple):
    """Token ids (..., T) with strings, vocabulary, mask (B, 1, T), segments.

    unknown  how many tokens of the texts the vocabulary lacks
    """

    ids: Array
    tokens: Labels | None
    vocabulary: list[str]
    size: int
    mask: Array | None = None
    types: Array | None = None
    unknown: int = 0

    def record(self) -> Record:
        tensors = {"ids": Tensor(self.ids, self.axes(), {} if self.tokens is None else {"token": self.tokens})}
        if self.types is not None:
            tensors["types"] = Tensor(self.types, self.axes(self.types.ndim))
        if self.mask is not None:
            keys: dict[str, Labels] = {} if self.tokens is None else {"key": self.tokens}
            axes = ONE_ROW[-self.mask.ndim :] if self.ids.ndim < 3 else None
            tensors["mask"] = Tensor(self.mask, axes, keys, "token ≠ padding")
        return Record({}).with_tensors(tensors)

    def axes(self, rank: int | None = None) -> tuple[str, ...]:
        """The axes of ids of a rank [their own]; those before the batch have numbers."""
        rank = self.ids.ndim if rank is None else rank
        return (*(f"axis{i}" for i in range(rank - 2)), *("batch", "token")[max(2 - rank, 0) :])


def table_words(table: Record | None) -> list[str]:
    return shared_labels(table.labels_of("x", 0)) if table is not None and table["x"].ndim else []


def ids_to_inputs(record: Record, vocabulary: list[str], rows: int) -> EncodedInputs:
    """Ids with their mask, and token strings from the vocabulary or their labels.

    rows  of a table; without one and without a vocabulary the size is the largest id and one
    """
    record = padded_ids(record)
    ids = record["ids"]
    largest = int(ids.max(initial=0)) if ids.dtype.kind in "iu" else 0
    size = rows or len(vocabulary) or largest + 1
    checked = model.check_ids(ids, size)
    if not checked.ndim:
        raise DataError(f"shape {checked.shape} is not (..., T)", "--ids")
    if checked.ndim > 2:  # labels are lists of words, or lists of these
        known = vocabulary if len(vocabulary) == size else []
        return EncodedInputs(checked, None, known, size, record.get("mask"), record.get("types"))
    if len(vocabulary) == size:
        tokens = np.array(vocabulary, dtype=object)[checked].tolist()
        return EncodedInputs(checked, tokens, vocabulary, size, record.get("mask"), record.get("types"))
    return EncodedInputs(checked, record.labels.get("token"), [], size, record.get("mask"), record.get("types"))


def tokenize(
    texts: Sequence[str] | str | None, tokenizer: Tokenizer, known: list[str], own: bool, batch: bool
) -> EncodedInputs:
    """Tokenize texts to ids, padded to one length.

    own  whether the words of the texts may serve as vocabulary, where neither tokenizer nor caller has one
    """
    encoded = [tokenizer.encode(text, known) for text in require_unicode(texts)]
    tokens = [one.spellings for one in encoded]
    vocabulary = tokenizer.vocabulary or known
    is_fixed = bool(vocabulary)
    if not is_fixed:
        if not own:
            raise UsageError("the rows of the table have no words as labels: --vocab FILE names them, or --ids FILE")
        vocabulary = tokenizers.distinct_tokens(tokens)
    padding = tokenizers.find_padding(vocabulary) or ""
    if not padding and len(set(map(len, tokens))) > 1:
        if is_fixed:
            raise DataError(f"texts of different lengths, and the vocabulary has no {' '.join(tokenizers.PADDING)}")
        padding, vocabulary = "[pad]", [*vocabulary, "[pad]"]
    numbers = {word: at for at, word in enumerate(vocabulary)}
    ids = [tokenizers.tokens_to_ids(one.spellings, numbers) if one.ids is None else one.ids for one in encoded]
    warn_unknown(count_unknown(encoded, tokenizer, numbers), sum(map(len, tokens)))
    inputs = pad_batch(tokens, ids, numbers.get(padding, 0), padding, batch)
    return inputs._replace(vocabulary=vocabulary, size=len(vocabulary))


def require_unicode(texts: Sequence[str] | str | None) -> list[str]:
    """Texts.

    >>> require_unicode("café"), require_unicode(None)
    (['café'], [])
    """
    strings = [texts] if isinstance(texts, str) else texts or []
    try:
        return [decode_text(text.encode("utf-8", "surrogateescape"), "TEXT") for text in strings]
    except UnicodeEncodeError as error:  # from Python; a command line has no other surrogates
        raise DataError(f"not Unicode text (character {error.start})", "TEXT") from None


def pad_batch(tokens: list[list[str]], ids: list[list[int]], pad: int, padding: str, batch: bool) -> EncodedInputs:
    """One text as it is, or several as one batch, padded on the right, with its mask."""
    lengths = [len(row) for row in ids]
    longest = max(lengths, default=0)
    labels = [row + [padding] * (longest - len(row)) if len(row) < longest else row for row in tokens]
    matrix = np.full((len(ids), longest), pad, np.int64)
    for at, row in enumerate(ids):
        matrix[at, : len(row)] = row
    if len(ids) == 1 and not batch:
        return EncodedInputs(matrix[0], labels[0], [], 0)
    return EncodedInputs(matrix, labels, [], 0, model.padding_mask(np.array(lengths), longest))


def tokenize_for_model(checkpoint: "Checkpoint", stack: str, source: ModelInput, target: bool = False) -> EncodedInputs:
    """The input ids of a stack of a model, of texts or of --ids.

    target  whether the texts are targets of an encoder-decoder model, between its start and end tokens
    """
    config = checkpoint.config
    size = config.stack(stack).vocab
    if not size:
        raise UsageError(f"{with_article(config.family)} model takes no text", "--model")
    side = "target" if config.encoder and stack == "decoder" else "source"
    if source.ids is not None:
        ids = padded_ids(source.ids, config, side == "target")
        return ids_to_inputs(ids, vocabulary_of(checkpoint, side, source.tokenizer, size), size)
    tokenizer = text_tokenizer(checkpoint, side, source.language, source.tokenizer)
    tokenizer = tokenizer.reading_plain_text() if source.plain else tokenizer
    encoded = encode_texts(source.texts, tokenizer, source.pair, source.with_special)
    if source.most is not None:
        encoded = cut_texts(encoded, source, tokenizer)
    if config.text_length:
        encoded = fill_texts(encoded, tokenizer, config)
    if target:
        languages = (source.tokenizer or tokenizer_of(checkpoint, side)).languages
        special = target_special(config.special, languages, source.language)
        encoded = [decoder_input(one, special, tokenizer.vocabulary) for one in encoded]
    labels, special = [one.spellings for one in encoded], config.special
    pad = next((id for id in (special.pad, *special.eos) if id is not None), 0)
    needs_padding = len(set(map(len, labels))) > 1
    words = tokenizer.vocabulary[pad : pad + 1] if needs_padding else []  # a vocabulary takes time
    padding = tokenizers.find_padding(words) or tokenizers.PADDING[0]
    inputs = pad_batch(labels, [one.ids or [] for one in encoded], pad, padding, source.batch)
    inputs = inputs._replace(unknown=count_unknown(encoded, tokenizer))
    model.check_ids(inputs.ids, size)
    if source.pair is None:
        return inputs
    segments = [one.types or [0] * len(one.spellings) for one in encoded]
    types = pad_batch(labels, segments, 0, "", source.batch).ids
    return inputs._replace(types=types)


def read_known_texts(checkpoint: "Checkpoint", stack: str, source: ModelInput, target: bool = False) -> EncodedInputs:
    """The input ids of a stack of a model; warn of unknown tokens."""
    inputs = tokenize_for_model(checkpoint, stack, source, target)
    warn_unknown(inputs.unknown, int(inputs.ids.size if inputs.mask is None else inputs.mask.sum()))
    return inputs


def encode_texts(
    texts: Sequence[str] | str | None, tokenizer: Tokenizer, pair: str | None, with_special: bool = True
) -> list[Tokens]:
    if tokenizer.list_vocabulary is list:
        raise UsageError("a model takes a tokenizer that numbers its tokens: a tokenizer.json", "--tokenizer")
    more: dict[str, Any] = ({} if pair is None else {"pair": pair}) | ({} if with_special else {"with_special": False})
    return [tokenizer.encode(text, **more) for text in require_unicode(texts)]


def count_unknown(encoded: Sequence[Tokens], tokenizer: Tokenizer, vocabulary: Collection[str] = ()) -> int:
    """Count the tokens of texts that stand for what the vocabulary lacks.

    vocabulary  the words of a tokenizer that gives no ids

    >>> tokenizer = Tokenizer(lambda text: Tokens([text]), special={"unk": 1})
    >>> count_unknown([Tokens(["a", "[UNK]"], [0, 1])], tokenizer)
    1
    """
    special = {name: id for name, id in tokenizer.special.items() if name != "pad"}
    unknown = special.pop("unk", -1)
    count = sum(word not in vocabulary for one in encoded if one.ids is None for word in one.spellings)
    return count + sum((one.ids or []).count(unknown) for one in encoded if unknown not in special.values())


def warn_unknown(unknown: int, tokens: int, name: str = "") -> None:
    """Warn of tokens that the vocabulary lacks, which are all one token to the model.

    name  of the file that they are in
    """
    if unknown:
        verb, of = "is" if unknown == 1 else "are", f"{unknown:,} of {counted(tokens, 'token')}"
        problem = f"{f'{name}: ' * bool(name)}{of} {verb} not in the vocabulary, and {verb} read as unknown"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)


def cut_texts(encoded: Sequence[Tokens], source: ModelInput, tokenizer: Tokenizer) -> list[Tokens]:
    most = source.most or 0
    long = [len(one.spellings) for one in encoded if len(one.spellings) > most]
    if not long:
        return [*encoded]
    if tokenizer.truncate is None:
        raise UsageError(f"{long[0]} tokens, more than the {most} of the model, and this tokenizer cannot cut a text")
    texts = "1 text is" if len(long) == 1 else f"{len(long)} texts are"
    problem = f"{texts} cut to {counted(most, 'token')}, the maximum length that the folder states (of {long[0]})"
    warnings.warn(problem, AttnkitWarning, stacklevel=2)
    return [
        one if len(one.spellings) <= most else tokenizer.truncate(text, source.pair, most)
        for one, text in zip(encoded, require_unicode(source.texts), strict=True)
    ]


def fill_texts(encoded: Sequence[Tokens], tokenizer: Tokenizer, config: "model.Config") -> list[Tokens]:
    """Pad each text to the length of all, as the tokenizer does.

    On its side, with its padding token.

    The configuration has the token of a tokenizer that has none.

    >>> config = model.Config("siglip_text_model", 2, text_length=3, special=model.SpecialTokens(pad=1))
    >>> fill_texts([Tokens(["a"], [5])], Tokenizer(lambda text: Tokens([text])), config)[0].ids
    [5, 1, 1]
    """
    pad = tokenizer.special.get("pad", config.special.pad or 0)
    word = "".join(tokenizer.vocabulary[pad : pad + 1]) or tokenizers.PADDING[0]
    missing = [max(config.text_length - len(one.spellings), 0) for one in encoded]
    padding = [Tokens(count * [word], count * [pad]) for count in missing]
    pairs = zip(*(padding, encoded) if tokenizer.pads_left else (encoded, padding), strict=True)
    return [Tokens(a.spellings + b.spellings, [*(a.ids or []), *(b.ids or [])]) for a, b in pairs]


def languages_of(checkpoint: "Checkpoint") -> Languages | None:
    """The languages that a model translates into, or None."""
    with contextlib.suppress(AttnkitError):
        return tokenizer_of(checkpoint, "target").languages
    return None


def target_special(
    special: "model.SpecialTokens", languages: Languages | None, language: str | None
) -> "model.SpecialTokens":
    """The special tokens before a target in a language.

    The start of the decoder, or the first token after that.

    language  None: as the folder states

    UsageError for a language that the model does not have.

    >>> target_special(model.SpecialTokens(start=2), Languages({"fr": 7}, end=2), "fr").forced_bos
    7
    """
    from attnkit.tokenizers.languages import find_language

    if languages is None:
        if language:
            raise UsageError("the model has no languages", "--target-language")
        return special
    language = language or languages.target
    if not language:
        return special
    id = find_language(languages, language, "--target-language")
    return replace(special, start=id, forced_bos=None) if languages.starts else replace(special, forced_bos=id)


def decoder_input(text: Tokens, special: "model.SpecialTokens", words: Sequence[str]) -> Tokens:
    """The tokens of a text as decoder input: after its start token, and with the end.

    >>> decoder_input(Tokens(["a"], [1]), model.SpecialTokens(start=2, eos=(0,)), ["</s>", "a"])
    Tokens(spellings=['2', 'a', '</s>'], ids=[2, 1, 0], types=None)
    """
    first = special.bos if special.start is None else special.start
    ids = [*([] if first is None else [first]), *with_eos(text.ids or [], special)]
    return Tokens([words[id] if id < len(words) else str(id) for id in ids], ids)


def with_eos(ids: Sequence[int], special: "model.SpecialTokens") -> list[int]:
    """Remove the start token from the ids of a target, and add the end token.

    >>> with_eos([5, 1], model.SpecialTokens(bos=5, eos=(0,))), with_eos([1, 0], model.SpecialTokens(eos=(0,)))
    ([1, 0], [1, 0])
    """
    first = special.bos if special.start is None else special.start
    rest = [*(ids[1:] if ids[:1] == [first] else ids)]
    return rest if not special.eos or rest[-1:] in [[one] for one in special.eos] else [*rest, special.eos[0]]


def check_vocabulary(record: Record, checkpoint: "Checkpoint", side: str, tokenizer: Tokenizer | None = None) -> None:
    """Raise DataError if the labels of ids differ from the model's token strings.

    Without labels, or without a readable tokenizer, nothing is checked.
    """
    ids, labels = record["ids"], record.labels.get("token")
    rows = np.atleast_2d(ids)
    names = [row_labels(labels, at) for at in range(len(rows))]
    if ids.ndim not in (1, 2) or ids.dtype.kind not in "iu" or any(len(one) != rows.shape[1] for one in names):
        return
    words = vocabulary_of(checkpoint, side, tokenizer, checkpoint.config.stack(checkpoint.config.stacks[0]).vocab)
    for at in np.ndindex(rows.shape) if words else ():
        id, name = int(rows[at]), names[at[0]][at[1]]
        known = words[id] if 0 <= id < len(words) else ""
        if known and name not in ("", str(id), known, *tokenizers.PADDING):
            place = f"[{at[1]}]" if ids.ndim == 1 else f"[{at[0]}][{at[1]}]"
            raise DataError.about("token", f"{name!r} at {place} is id {id}, which this model spells {known!r}")


QUIET = ("mask", "peek", "show")  # tools that leave x as it is
CHANGING = ("--layers", "--pool", "--patch", "--ablate")


def warn_ignored_input(record: Record, checkpoint: "Checkpoint", begins: str, instead: str) -> None:
    """Warn of a computed x that a run ignores because it `begins` with something else.

    An x that embed or encode has just computed of the same model is no loss.
    """
    if "x" not in record or record["x"].dtype.kind not in "fV" or record.axes_of("x")[-1:] != ("model",):
        return
    last = next(
        (words for one in reversed(record.history) if (words := command_words(one)) and words[0] not in QUIET), []
    )
    models = named_models(last)
    is_same = models == [f"<{type(checkpoint).__name__}>"]  # a model in memory
    is_same = is_same or [os.path.abspath(name) for name in models] == [os.path.abspath(checkpoint.folder)]
    if last[:1] in (["embed"], ["encode"]) and is_same and not {*CHANGING} & {*last}:
        return
    problem = f"x {record['x'].shape} is ignored: the run restarts from {begins}; {instead}"
    warnings.warn(problem, AttnkitWarning, stacklevel=2)


def command_words(entry: Mapping[str, Any]) -> list[str]:
    try:
        return shlex.split(str(entry.get("command", "")))[1:]
    except ValueError:
        return []


def named_models(words: Sequence[str]) -> list[str]:
    """The models that a command of a history names.

    >>> named_models(["encode", "a cat", "--model", "gpt2"])
    ['gpt2']
    """
    return [value for flag, value in itertools.pairwise(words) if flag == "--model"]


def tokenizer_of(checkpoint: "Checkpoint", side: str = "source") -> Tokenizer:
    """Load the tokenizer of a model, for one side of a translation."""
    from attnkit.checkpoints.checkpoint import open_tokenizer

    tokenizer: Tokenizer = checkpoint.load_companion(side, open_tokenizer)
    return tokenizer


def text_tokenizer(
    checkpoint: "Checkpoint", side: str, language: str | None = None, tokenizer: Tokenizer | None = None
) -> Tokenizer:
    """The tokenizer for one language of a model, with a note of an assumed one.

    tokenizer  instead of the model's own

    UsageError for a language that it does not have.
    """
    from attnkit.tokenizers.languages import speak

    if tokenizer is not None:
        return speak(tokenizer, language, side)
    own = tokenizer_of(checkpoint, side)

    def choose(place: object, name: str) -> Tokenizer:
        languages = own.languages
        if languages and not (language or (languages.source if side == "source" else languages.target)):
            source = f"the source is taken as {languages.usual}; --source-language L names another"
            target = "the target has no language; --target-language L names one"
            note = source if side == "source" else target
            warnings.warn(note, AttnkitNote, stacklevel=2)
        return speak(own, language, side)

    chosen: Tokenizer = checkpoint.load_companion(f"{side} {language}", choose)
    return chosen


def vocabulary_of(checkpoint: "Checkpoint", side: str, tokenizer: Tokenizer | None, size: int) -> list[str]:
    try:
        words = (tokenizer or tokenizer_of(checkpoint, side)).vocabulary
    except AttnkitError:
        return []
    return words[:size] + [""] * (size - len(words)) if words else []


def model_inputs(checkpoint: "Checkpoint", stack: str, source: ModelInput) -> tuple[Array, Record]:
    """The ids or image for a stack of a model, and the record of ids and masks."""
    cut, sound = checkpoint.config.patches, checkpoint.config.sound
    if sound and stack == "encoder":
        if source.audio is None:
            raise UsageError(f"{with_article(checkpoint.config.family)} model takes --audio FILE")
        from attnkit.inputs import sound_inputs

        return sound_inputs.model_sound(source.audio, sound, checkpoint.place), Record({})
    if source.audio is not None:
        part = "the decoder of " if sound else ""
        raise UsageError(f"{part}{with_article(checkpoint.config.family)} model takes no sound", "--audio")
    if cut:
        if source.image is None:
            raise UsageError(f"{with_article(checkpoint.config.family)} model takes --image FILE")
        from attnkit.inputs import image_processor, patches

        image, box = image_processor.prepare_image(source.image, checkpoint.place, (cut.height, cut.width))
        return image, patches.describe_image(cut, image.shape, box)
    if source.image is not None:
        raise UsageError(f"{with_article(checkpoint.config.family)} model takes no image", "--image")
    inputs = read_known_texts(checkpoint, stack, source, target=stack != checkpoint.config.stacks[0])
    return inputs.ids, inputs.record()
