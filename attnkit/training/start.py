"""What a run starts with: the configuration and the tensors of a new or a published model, and its tokenizer."""

import os
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit.checkpoints import Checkpoint, open_checkpoint, read_json_object
from attnkit.checkpoints.label_heads import label_values
from attnkit.checkpoints.publishing import publish_parameters, published_tensors
from attnkit.errors import DataError, FileError, UsageError
from attnkit.formats.streams import Buffer
from attnkit.model import Array
from attnkit.model.config import Config
from attnkit.tokenizers import Tokenizer
from attnkit.tokenizers.auto import load_tokenizer
from attnkit.training.batches import SpecialIds
from attnkit.training.configs import CONFIGS, check_family_options, new_config
from attnkit.training.corpus import Corpus, Vocabulary, corpus_kind, read_corpus
from attnkit.training.data import check_known_tokens, encode_words
from attnkit.training.folder import COMPANIONS, CONFIG, write_folder
from attnkit.training.initialization import initial_tensors
from attnkit.training.labelled import CLASSIFIERS, labelled_corpus, read_labels
from attnkit.training.recipe import Recipe
from attnkit.training.vocabulary import SENTINELS, parse_kind, train_tokenizer

Files = dict[str, list[Buffer]]
POSITIONS = 256  # of a new model of sentence pairs, unless a pair is longer
MAXIMUM_POSITIONS = ("n_positions", "max_position_embeddings")
NEEDED = {"masked": ("mask", "cls", "sep"), "spans": ("eos",), "pairs": ("pad", "eos"), "causal": (), "labels": ()}


class Start(NamedTuple):
    """What a run starts with.

    raw      the values of config.json
    tensors  by their published names
    corpus   what it learns from
    files    the files of the tokenizer by name
    tokenizer  that of the texts, or of the sources of pairs
    """

    raw: dict[str, Any]
    tensors: dict[str, Array]
    corpus: Corpus
    files: Files
    tokenizer: Tokenizer


def start_run(recipe: Recipe, text: str, name: str) -> Start:
    """Return what a recipe makes of a text, `name` being its file.

    Errors are those of the text, the tokenizer, the configuration and the folders that the recipe names.
    """
    if recipe.from_ is not None:
        return start_from_model(recipe, text, name)
    raw = dict(read_json_object(recipe.config)) if recipe.config else {"model_type": recipe.family}
    family = raw.get("model_type")
    if family not in CONFIGS:
        raise UsageError(f"no new model of family {str(family)[:40]!r} (expected {', '.join(CONFIGS)})")
    labels, words = read_labels(recipe, family, (), text, name)
    tokenizers, files = new_tokenizers(recipe, family, words, name)
    kind = "labels" if labels else corpus_kind(family, recipe.pairs)
    vocabulary = describe_vocabulary(kind, tokenizers, None, recipe.tokens or "the tokenizer")._replace(labels=labels)
    corpus = make_corpus(kind, text, name, vocabulary, recipe)
    raw = configure(recipe, raw, vocabulary, tokenizers[0].special, corpus.longest)
    raw |= label_values(labels) if labels else {}
    return Start(raw, initial_tensors(raw, recipe.seed, recipe.config or CONFIG), corpus, files, tokenizers[0])


def make_corpus(kind: str, text: str, name: str, vocabulary: Vocabulary, recipe: Recipe) -> Corpus:
    """Return what a model learns from a text in one of the ways of corpus.py, or from labelled texts."""
    if kind == "labels":
        return labelled_corpus(text, name, vocabulary, recipe)
    return read_corpus(kind, text, name, vocabulary, recipe)


def configure(
    recipe: Recipe, raw: dict[str, Any], vocabulary: Vocabulary, special: Mapping[str, int], longest: int
) -> dict[str, Any]:
    """Return the values of config.json: those of the file of the recipe, or new ones, with the vocabulary's."""
    tokens = {name: special[name] for name in ("bos", "eos", "pad") if name in special}
    if recipe.config is None:
        is_pair = corpus_kind(recipe.family, recipe.pairs) == "pairs"
        positions = max(POSITIONS, longest) if is_pair else longest
        return new_config(recipe.family, recipe.sizes(positions), vocabulary.size, tokens)
    ids = {f"{name}_token_id": id for name, id in tokens.items()}
    start = {"decoder_start_token_id": tokens["pad"]} if raw.get("is_encoder_decoder") and "pad" in tokens else {}
    check_positions(raw, longest, recipe.config)
    return {**raw, "vocab_size": vocabulary.size, **ids, **start}


def check_sample(start: Start, sample: str, name: str) -> None:
    """Raise UsageError where a model continues no text, DataError for a text that is not of its tokens, or too long."""
    config = published_tensors(start.raw).config
    if config.decoder is None:
        raise UsageError(f"a {config.family} model restores masked words, and continues no text", name)
    check_known_tokens(start.tokenizer, sample, 1, name)
    check_positions(start.raw, len(encode_words(start.tokenizer, sample)), name)


def check_positions(raw: Mapping[str, Any], longest: int, name: str) -> None:
    """DataError where a model has fewer positions than the longest text needs."""
    for key in MAXIMUM_POSITIONS:
        size = raw.get(key)
        if isinstance(size, int) and size < longest and raw.get("model_type") != "t5":
            raise DataError(f"{key} {size}, fewer than the {longest} tokens of a text (--block)", name)


def new_tokenizers(recipe: Recipe, family: str, text: str, name: str) -> tuple[tuple[Tokenizer, Tokenizer], Files]:
    """Return the tokenizers of source and target and their files: trained on the text, or those of a folder."""
    if recipe.tokens and os.path.isdir(recipe.tokens):
        return folder_tokenizers(recipe.tokens)
    if not text.strip():
        raise DataError("empty text", name)
    if recipe.tokens and os.sep in recipe.tokens:
        raise FileError("no such folder", recipe.tokens)
    files = train_tokenizer(parse_kind(recipe.tokens or "chars"), family, [text], name)
    with tempfile.TemporaryDirectory(prefix="attnkit-") as folder:
        write_folder(folder, files)
        tokenizers = load_tokenizer(folder, "source"), load_tokenizer(folder, "target")
        _ = tokenizers[0].vocabulary
    return tokenizers, files


def folder_tokenizers(folder: str) -> tuple[tuple[Tokenizer, Tokenizer], Files]:
    """Return the tokenizers of source and target of a folder, and the content of their files."""
    source, target = load_tokenizer(folder, "source"), load_tokenizer(folder, "target")
    names = {os.path.basename(path) for path in (*source.files, *target.files)} - {CONFIG}
    names |= {name for name in COMPANIONS if os.path.exists(os.path.join(folder, name))}
    files: Files = {}
    for name in sorted(names):
        with open(os.path.join(folder, name), "rb") as file:
            files[name] = [file.read()]
    return (source, target), files


def describe_vocabulary(
    kind: str, tokenizers: tuple[Tokenizer, Tokenizer], config: Config | None, name: str
) -> Vocabulary:
    """Return the vocabulary of tokenizers, with the special tokens of a configuration where there is one.

    DataError where a special token is missing that this kind of training needs.
    """
    special, words = tokenizers[0].special, tokenizers[0].vocabulary
    ids = {word: id for id, word in enumerate(words)}
    around = {"cls": "bos", "sep": "eos"}  # of RoBERTa, whose folders may name neither
    known = {name: special[other] for name, other in around.items() if other in special} | dict(special)
    start = special.get("pad", -1)
    size = len(words)
    if config is not None:
        tokens = config.special
        known |= {"eos": tokens.eos[0]} if tokens.eos else {}
        known |= {} if tokens.pad is None else {"pad": tokens.pad}
        start = start if tokens.start is None else tokens.start
        size = config.stack(config.stacks[-1]).vocab
    for token in NEEDED[kind]:
        if token not in known:
            raise DataError(f"it has no {token} token, which this family needs", name)
    sentinels = tuple(ids[token] for token in SENTINELS if token in ids)
    if kind == "spans" and not sentinels:
        raise DataError(f"it has no {SENTINELS[0]}, which replaces a span", name)
    one = {token: known.get(token, -1) for token in ("pad", "eos", "cls", "sep", "mask")}
    return Vocabulary(tokenizers, SpecialIds(**one, start=start, sentinels=sentinels), size)


def start_from_model(recipe: Recipe, text: str, name: str) -> Start:
    """Return what a recipe makes of a text and a published model."""
    folder = recipe.from_ or ""
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    check_family_options(config.family, ["weight_drop"] if recipe.weight_drop else [])
    labels, _ = read_labels(recipe, config.family, config.classes, text, name)
    if not labels:
        check_head(config, folder)
    kind = "labels" if labels else corpus_kind(config.family, recipe.pairs)
    if recipe.tokens and not os.path.isdir(recipe.tokens):
        raise FileError("no such folder; a model keeps its own tokens, or has those of a folder", recipe.tokens)
    tokenizers, files = folder_tokenizers(recipe.tokens or folder)
    vocabulary = describe_vocabulary(kind, tokenizers, config, folder)._replace(labels=labels)
    if len(tokenizers[0].vocabulary) > vocabulary.size:
        raise DataError(
            f"{len(tokenizers[0].vocabulary)} tokens, and the model of {folder} has {vocabulary.size}",
            recipe.tokens or folder,
        )
    corpus = make_corpus(kind, text, name, vocabulary, recipe)
    check_positions(checkpoint.raw, corpus.longest, folder)
    raw = {key: value for key, value in checkpoint.raw.items() if key not in ("torch_dtype", "dtype")}
    tensors = published_floats(checkpoint)
    if labels:
        raw |= label_values(labels)
        tensors = {name: tensors.get(name, new) for name, new in initial_tensors(raw, recipe.seed).items()}
    return Start(raw, tensors, corpus, files, tokenizers[0])


def check_head(config: Config, folder: str) -> None:
    """Raise DataError for a model that predicts no tokens."""
    if not config.head or config.classes:
        hint = "; --classify trains on labelled texts" if config.classes and config.family in CLASSIFIERS else ""
        raise DataError(f"this {config.family} model has no head that predicts tokens{hint}", folder)


def published_floats(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the tensors of a model by the names under which a configuration publishes them, float32."""
    table = published_tensors(checkpoint.raw, os.path.join(checkpoint.folder, CONFIG))
    tensors = publish_parameters(table, checkpoint.params)
    return {name: np.asarray(array, np.float32) for name, array in tensors.items()}
