"""The model, the corpus and the tokenizer of a run: new, or of a published folder."""

import os
import tempfile
import warnings
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from attnkit.checkpoints import Checkpoint, ConfigReader, open_checkpoint, read_json_object
from attnkit.checkpoints.checkpoint import fact_of, find_family, import_family, open_tokenizer
from attnkit.checkpoints.config_reader import PREPROCESSOR, keys_of
from attnkit.checkpoints.label_heads import label_values
from attnkit.checkpoints.publishing import PublishedTensors, publish_parameters, published_tensors
from attnkit.errors import AttnkitNote, DataError, FileError, UsageError, shortened, with_article
from attnkit.formats import check_memory
from attnkit.formats.streams import Buffer
from attnkit.inputs.image_processor import ImageProcessor, new_processor, read_processor
from attnkit.model import Array
from attnkit.model.config import Config, parse_layer_name
from attnkit.tokenizers import Tokenizer
from attnkit.training.batches import SpecialIds
from attnkit.training.corpus import Corpus, Vocabulary, corpus_kind, read_corpus, read_labels
from attnkit.training.data import check_known_tokens, encode_words
from attnkit.training.families import (
    FAMILIES,
    Parameter,
    check_family_options,
    draw_parameter,
    learns,
    new_config,
)
from attnkit.training.folder import COMPANIONS, CONFIG, json_bytes, write_folder
from attnkit.training.images import ImageFolder, image_corpus, read_images
from attnkit.training.recipe import Recipe
from attnkit.training.vocabulary import parse_kind, train_tokenizer

MANY = 100  # layers from which on their parameters are not listed to be counted


def initial_tensors(raw: Mapping[str, Any], seed: int = 0, name: str = "config.json") -> dict[str, Array]:
    """Draw the tensors of a new model, float32, by their published names.

    Norms are 1 and 0, biases 0, and the row of the padding token in the embeddings 0. Each tensor has a generator of
    its own, seeded with [seed, SHA-256 of its name as eight big-endian 32-bit numbers].
    UsageError for a seed outside 0..2^64-1; DataError for a configuration that is wrong.

    >>> raw = {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 8, "n_positions": 8, "vocab_size": 9}
    >>> tensors = initial_tensors(raw, seed=1)
    >>> [round(float(tensors[f"transformer.h.0.mlp.{name}.weight"].std()), 3) for name in ("c_fc", "c_proj")]
    [0.02, 0.005]
    """
    if not 0 <= seed < 2**64:
        raise UsageError(f"seed {seed} outside 0..2^64-1")
    check_model_size(raw, name)
    table = published_tensors(raw, name)
    tensors = {key: _draw(table, raw, key, seed) for key in table.shapes}
    padding = table.config.special.pad
    if padding is not None:
        for key, parameters in table.parameters.items():
            if parameters[0].endswith(".embed.table") and padding < len(tensors[key]):
                tensors[key][padding] = 0
    return tensors


def check_model_size(raw: Mapping[str, Any], name: str) -> None:
    """Raise DataError if parameters and gradients need more memory than there is.

    Many layers are counted as one, plus a second one for each of the others.
    """

    def count_parameters(values: Mapping[str, Any]) -> int:
        return sum(map(prod, published_tensors(values, name).shapes.values()))

    counts = keys_of(fact_of(import_family(ConfigReader(raw, name)), "FIELDS"), "layers")
    depths = {key: raw[key] for key in counts if type(raw.get(key)) is int and raw[key] > MANY}
    one = {**raw, **dict.fromkeys(depths, 1)}
    first = count = count_parameters(one)
    for key, depth in depths.items():
        count += (depth - 1) * (count_parameters({**one, key: 2}) - first)
    need = 2 * np.dtype(np.float32).itemsize * count
    check_memory(need, f"a model of {count:,} parameters, with their gradients,", name)


def _draw(table: PublishedTensors, raw: Mapping[str, Any], tensor: str, seed: int) -> Array:
    import hashlib

    layer, _, name = table.parameters[tensor][0].rpartition(".")
    shape = table.shapes[tensor]
    if name.startswith("gamma"):  # which 1 may be added to
        return np.full(shape, 1 - table.specs[layer][name].offset, np.float32)
    if name.startswith("b"):
        return np.zeros(shape, np.float32)
    stack, _, part = parse_layer_name(layer)
    kind, scale, *middle = draw_parameter(table.config, raw, Parameter(part, name, shape, stack))
    digest = np.frombuffer(hashlib.sha256(tensor.encode()).digest(), ">u4")
    rng = np.random.default_rng([seed, *map(int, digest)])
    array = rng.standard_normal(shape) if kind == "normal" else rng.uniform(-1, 1, shape)
    return (array * scale + sum(middle)).astype(np.float32)


Files = dict[str, list[Buffer]]
POSITIONS = 256  # of a new model of sentence pairs, unless a pair is longer
NEEDED = {"masked": ("mask", "cls", "sep"), "spans": ("eos",), "pairs": ("pad", "eos"), "causal": (), "labels": ()}


class InitialModel(NamedTuple):
    """What a run starts with.

    raw      the values of config.json
    tensors  by their published names
    corpus   what it learns from
    files    the files of the tokenizer, or of the processor of images, by name
    tokenizer  of the texts, or of the sources of pairs; None: it learns from images
    """

    raw: dict[str, Any]
    tensors: dict[str, Array]
    corpus: Corpus
    files: Files
    tokenizer: Tokenizer | None


def prepare_model(recipe: Recipe, data: str | ImageFolder, name: str) -> InitialModel:
    """Prepare the model and the corpus of a recipe and a text, or a folder of images.

    Errors are those of the text, the tokenizer, the images, the configuration and the folders that the recipe names.
    """
    if recipe.from_ is not None:
        checkpoint = open_checkpoint(recipe.from_)
        if checkpoint.config.sound is not None:
            raise UsageError(f"{with_article(checkpoint.config.family)} model of sounds is not trained", "--from")
        check_data(checkpoint.config.family, data, name)
        if isinstance(data, ImageFolder):
            return prepare_images(recipe, data, checkpoint)
        return prepare_published(recipe, data, name, checkpoint)
    raw: dict[str, Any] = dict(read_json_object(recipe.config)) if recipe.config else {"model_type": recipe.family}
    family = str(raw.get("model_type"))
    if family not in FAMILIES:
        raise UsageError(f"no new model of family {family[:40]!r} (expected {', '.join(FAMILIES)})")
    check_data(family, data, name)
    if isinstance(data, ImageFolder):
        return prepare_images(recipe, data)
    return prepare_new(recipe, raw, data, name)


def check_data(family: str, data: str | ImageFolder, name: str) -> None:
    """Raise DataError if a family does not learn from a text, or from images."""
    if isinstance(data, ImageFolder) and not learns(family, "images"):
        of_images = " or ".join(one for one in FAMILIES if learns(one, "images"))
        raise DataError(f"{with_article(family)} model does not learn from images (expected {of_images})", name)
    if isinstance(data, str) and learns(family, "images"):
        raise DataError(
            f"{with_article(family)} model learns from a folder of images, with a folder for each label", name
        )


def prepare_new(recipe: Recipe, raw: dict[str, Any], text: str, name: str) -> InitialModel:
    """Prepare a new model and the corpus of a text.

    raw: its configuration, if the recipe names one
    """
    family = raw["model_type"]
    labels, words = read_labels(recipe, family, (), text, name)
    tokenizers, files = new_tokenizers(recipe, family, words, name)
    first, *others = fact_of(family, "LEARNS")
    kind = "labels" if labels else "pairs" if recipe.pairs and "pairs" in others else first
    vocabulary = describe_vocabulary(kind, family, tokenizers, None, recipe.tokens or "the tokenizer")._replace(
        labels=labels
    )
    corpus = read_corpus(kind, text, name, vocabulary, recipe)
    special = vocabulary.tokenizers[0].special
    tokens = {name: special[name] for name in ("bos", "eos", "pad") if name in special}
    if recipe.config is None:
        positions = max(POSITIONS if kind == "pairs" else 0, corpus.longest)
        raw = new_config(recipe, positions, vocabulary.size, tokens)
    else:
        check_positions(raw, family, corpus.longest, recipe.config)
        raw["vocab_size"] = vocabulary.size
        raw |= {f"{name}_token_id": id for name, id in tokens.items()}
        if raw.get("is_encoder_decoder") and "pad" in tokens:
            raw["decoder_start_token_id"] = tokens["pad"]
    raw |= label_values(labels) if labels else {}
    return InitialModel(raw, initial_tensors(raw, recipe.seed, recipe.config or CONFIG), corpus, files, tokenizers[0])


def check_sample(model: InitialModel, sample: str, name: str) -> None:
    """Raise UsageError or DataError if the model cannot continue a sample text."""
    config = published_tensors(model.raw).config
    if model.tokenizer is None:
        raise UsageError(f"{with_article(config.family)} model labels images, and continues no text", name)
    if config.decoder is None:
        raise UsageError(f"{with_article(config.family)} model restores masked words, and continues no text", name)
    check_known_tokens(model.tokenizer, sample, 1, name)
    check_positions(model.raw, config.family, len(encode_words(model.tokenizer, sample)), name)


def check_positions(raw: Mapping[str, Any], family: str, longest: int, name: str) -> None:
    """Raise DataError if a model has fewer positions than the longest text needs."""
    module = find_family(family)
    for key in keys_of(fact_of(module, "FIELDS"), "longest text"):
        size = raw.get(key)
        if isinstance(size, int) and size < longest and fact_of(module, "HAS_LONGEST_TEXT", True):
            raise DataError(f"{key} {size}, fewer than the {longest} tokens of a text (--block)", name)


def new_tokenizers(recipe: Recipe, family: str, text: str, name: str) -> tuple[tuple[Tokenizer, Tokenizer], Files]:
    """Tokenizers of source and target with their files: trained, or of a folder."""
    if recipe.tokens and os.path.isdir(recipe.tokens):
        return folder_tokenizers(recipe.tokens)
    if not text.strip():
        raise DataError("empty text", name)
    if recipe.tokens and os.sep in recipe.tokens:
        raise FileError("no such folder", recipe.tokens)
    files = train_tokenizer(parse_kind(recipe.tokens or "chars"), family, [text], name)
    with tempfile.TemporaryDirectory(prefix="attnkit-") as folder:
        write_folder(folder, files)
        tokenizers = open_tokenizer(folder, "source"), open_tokenizer(folder, "target")
        _ = tokenizers[0].vocabulary
    return tokenizers, files


def folder_tokenizers(folder: str) -> tuple[tuple[Tokenizer, Tokenizer], Files]:
    """Load the tokenizers of source and target of a folder, and read their files."""
    source, target = open_tokenizer(folder, "source"), open_tokenizer(folder, "target")
    if source.languages:
        raise DataError("its tokenizer puts a language beside every text, and pairs to train on state none", folder)
    names = {os.path.basename(path) for path in (*source.files, *target.files)} - {CONFIG}
    names |= {name for name in COMPANIONS if os.path.exists(os.path.join(folder, name))}
    files: Files = {}
    for name in sorted(names):
        with open(os.path.join(folder, name), "rb") as file:
            files[name] = [file.read()]
    return (source, target), files


def describe_vocabulary(
    kind: str, family: str, tokenizers: tuple[Tokenizer, Tokenizer], config: Config | None, name: str
) -> Vocabulary:
    """The vocabulary of a family's tokenizers, with special tokens if given.

    DataError if a special token is missing that this kind of training needs.
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
    replacing = fact_of(family, "SENTINELS", ())
    sentinels = tuple(ids[token] for token in replacing if token in ids)
    if kind == "spans" and not sentinels:
        raise DataError(f"it has no {replacing[0]}, which replaces a span", name)
    one = {token: known.get(token, -1) for token in ("pad", "eos", "cls", "sep", "mask")}
    return Vocabulary(tokenizers, SpecialIds(**one, start=start, sentinels=sentinels), size)


def prepare_published(recipe: Recipe, text: str, name: str, checkpoint: Checkpoint) -> InitialModel:
    """Prepare a published model and the corpus of a recipe and a text."""
    folder, config = recipe.from_ or "", checkpoint.config
    check_family_options(config.family, ["weight_drop"] if recipe.weight_drop else [])
    labels, _ = read_labels(recipe, config.family, config.classes, text, name)
    if not labels and (not config.head or config.classes):
        hint = "; --classify trains on labelled texts" if config.classes and learns(config.family, "labels") else ""
        raise DataError(f"this {config.family} model has no head that predicts tokens{hint}", folder)
    kind = "labels" if labels else corpus_kind(config, recipe.pairs)
    if recipe.tokens and not os.path.isdir(recipe.tokens):
        raise FileError("no such folder; a model keeps its own tokens, or has those of a folder", recipe.tokens)
    tokenizers, files = folder_tokenizers(recipe.tokens or folder)
    vocabulary = describe_vocabulary(kind, config.family, tokenizers, config, folder)._replace(labels=labels)
    if len(tokenizers[0].vocabulary) > vocabulary.size:
        raise DataError(
            f"{len(tokenizers[0].vocabulary)} tokens, and the model of {folder} has {vocabulary.size}",
            recipe.tokens or folder,
        )
    corpus = read_corpus(kind, text, name, vocabulary, recipe)
    check_positions(checkpoint.raw, config.family, corpus.longest, folder)
    raw = {key: value for key, value in checkpoint.raw.items() if key not in ("torch_dtype", "dtype")}
    raw |= label_values(labels) if labels else {}
    tensors = known_tensors(checkpoint, published_tensors(checkpoint.raw, os.path.join(folder, CONFIG)))
    if labels:
        tensors = {name: tensors.get(name, new) for name, new in initial_tensors(raw, recipe.seed).items()}
    return InitialModel(raw, tensors, corpus, files, tokenizers[0])


def known_tensors(checkpoint: Checkpoint, table: PublishedTensors) -> dict[str, Array]:
    """The tensors of a checkpoint, float32, by the published names of a table.

    DataError for parameters that the configuration ties, and that the files hold with different numbers.
    """
    for parameters in table.parameters.values():
        of_table = [one.rsplit(".", 1) for one in parameters if one in table.names]
        stored = [*dict.fromkeys(checkpoint.params.stored_names(*one) for one in of_table)]
        if len(stored) > 1:
            names = " and ".join(one[0] for one in stored)
            problem = f"{names} differ, and the configuration ties them"
            raise DataError(f'{problem}; "tie_word_embeddings": false trains both', checkpoint.place)
    published = publish_parameters(table, checkpoint.params)
    return {name: np.asarray(array, np.float32) for name, array in published.items()}


def prepare_images(recipe: Recipe, images: ImageFolder, checkpoint: Checkpoint | None = None) -> InitialModel:
    """Prepare a classifier, new or published, and its corpus of images.

    A published model keeps its labels if they include those of the images. Otherwise a new head replaces its own, and
    a note says so.
    """
    labels, name = images.labels, recipe.config or CONFIG
    if checkpoint is None:
        raw = dict(read_json_object(name)) if recipe.config else new_config(recipe, 0, 0, {})
    else:
        labels, name = keep_labels(checkpoint, labels), os.path.join(checkpoint.place, CONFIG)
        raw = {key: value for key, value in checkpoint.raw.items() if key not in ("torch_dtype", "dtype", "num_labels")}
        raw["architectures"] = fact_of(checkpoint.config.family, "new_values")(recipe, {})["architectures"]
    raw |= label_values(labels)
    table, tensors = published_tensors(raw, name), initial_tensors(raw, recipe.seed, name)
    if checkpoint is not None:
        is_replaced = not checkpoint.config.head or checkpoint.config.classes != labels
        kept = {one: names for one, names in table.names.items() if not (is_replaced and one.startswith("head."))}
        tensors |= known_tensors(checkpoint, table._replace(names=kept))
    processor = find_processor(table.config, checkpoint, name)
    corpus = image_corpus(read_images(images, labels, processor), images.name, processor, recipe)
    return InitialModel(raw, tensors, corpus, {PREPROCESSOR: [json_bytes(processor.raw.values.plain)]}, None)


def keep_labels(checkpoint: Checkpoint, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of a published model, or others if it lacks one of them."""
    known = checkpoint.config.classes if checkpoint.config.head else ()
    if known and not {*labels} <= {*known}:
        lacking = next(label for label in labels if label not in known)
        note = f"{checkpoint.place}: it has no label {shortened(repr(lacking))}, so a new head replaces its own"
        warnings.warn(note, AttnkitNote, stacklevel=2)
    return known if {*labels} <= {*known} else labels


def find_processor(config: Config, checkpoint: Checkpoint | None, name: str) -> ImageProcessor:
    """The processor of a model's images: that of its folder, or a new one.

    DataError for a model of images of other than three channels.
    """
    cut = config.patches
    if cut is None or cut.channels != 3:
        raise DataError("num_channels is not 3, as images have", name)
    known = read_processor(checkpoint.place, (cut.height, cut.width)) if checkpoint else None
    return known if known and known.raw.values.plain else new_processor(cut.height, cut.width)
