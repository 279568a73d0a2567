"""The inputs of a model in a dump: ids, padding masks, segments, images, sounds.

All of it is checked here: a node computes with these as they are.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.debugger.dumps import Dump
from attnkit.debugger.names import Located
from attnkit.debugger.pictures import PictureInput, prepare_pixels
from attnkit.errors import DataError, UsageError, counted
from attnkit.formats.streams import name_errors, prefix_errors
from attnkit.interpret.comparison import compare_ids
from attnkit.model.config import SoundConfig
from attnkit.model.formulas.embedding import check_ids
from attnkit.model.graph.nodes import Inputs
from attnkit.model.layers.embeddings import check_size
from attnkit.records import Array

# the sites of token ids -> the last part of the names that dumps give them
LAST_PARTS = {"ids": ("ids", "input_ids"), "decoder.ids": ("decoder_input_ids",)}
MASK, TARGET_MASK = ("mask", "attention_mask"), ("decoder_attention_mask",)
LENGTHS, TARGET_LENGTHS = ("lengths",), ("decoder_lengths", "target_lengths")
TYPES = ("types", "token_type_ids")
POSITIONS = ("position_ids", "decoder_position_ids", "cache_position")
IMAGE = ("pixel_values", "pixels", "input")
FEATURES = ("input_features", "input_values", "spectrogram", "samples")
OTHERS = (MASK, TARGET_MASK, LENGTHS, TARGET_LENGTHS, TYPES, POSITIONS, IMAGE, FEATURES)


class SoundInput(NamedTuple):
    """The samples (T,) of a sound, and whether a model reads them normalized.

    Normalized samples have mean 0 and variance 1.
    """

    samples: Array
    standardizes: bool = True


def read_model_inputs(
    core: model.Model,
    mine: Dump,
    located: Located,
    ids: Array | None,
    picture: PictureInput | None = None,
    sound: SoundInput | None = None,
) -> tuple[Inputs, str]:
    """What the model reads, as the dump has it, and how its token ids differ.

    ids      (T,) or (B, T), which those of the dump should be; None: those of the dump
    picture  that the pixels of the dump should be made of, and the sound what it hears; None: they are not compared

    DataError names the tensor that the model cannot read.
    """
    if core.config.patches is not None:
        return Inputs(image=_read_image(core, mine, picture)), ""
    first, last = core.config.stacks[0], core.config.stacks[-1]
    expected = None if ids is None else np.atleast_2d(ids)
    if core.config.sound is not None:
        return _read_heard(core, mine, located, expected, sound)
    own = _read_ids(core, mine, _find_ids(mine, located, "ids"), first)
    source = expected if own is None else own
    if source is None:
        raise UsageError(f"{mine.name} has no token ids, as input_ids; give the TEXT or --ids")
    if not source.size:
        raise DataError("no token ids to compare it for", mine.name)
    _check_whole_pass(mine, source)
    mask = _read_mask(mine, MASK, source, LENGTHS)
    difference = compare_ids(own, expected, mask) if expected is not None and own is not None else ""
    target = _read_ids(core, mine, _find_ids(mine, located, "decoder.ids"), last) if core.config.encoder else None
    if target is not None and len(target) != len(source):
        raise DataError(f"{len(target)} texts of the decoder (expected {len(source)}, as of the encoder)", mine.name)
    target_mask = None if target is None else _read_mask(mine, TARGET_MASK, target, TARGET_LENGTHS)
    return Inputs(source, target, mask, target_mask, _read_types(core, mine, source)), difference


def _find(mine: Dump, names: Sequence[str]) -> str | None:
    """The first tensor whose name ends with one of some words.

    It has a row for each text, or one row.
    """
    return next((name for name in mine if name.rpartition(".")[2] in names and len(mine.shape(name)) <= 2), None)


def _find_ids(mine: Dump, located: Located, site: str) -> str | None:
    return located.sources[site].name if site in located.sources else _find(mine, LAST_PARTS[site])


def is_model_input(name: str) -> bool:
    """Whether a name of a dump is that of something that a model reads."""
    return name.rpartition(".")[2] in {part for parts in (*LAST_PARTS.values(), *OTHERS) for part in parts}


@contextlib.contextmanager
def _named(mine: Dump, name: str) -> Iterator[None]:
    with name_errors(mine.name), prefix_errors(f"tensor {name[:100]!r}"):
        yield


def _read_rows(mine: Dump, name: str, size: int, noun: str) -> Array:
    """Whole numbers below a size: (T,) or (B, T) -> (B, T)."""
    with _named(mine, name):
        if len(mine.shape(name)) > 2:
            raise DataError(f"shape {mine.shape(name)} (expected one {noun} for each token: (texts, tokens))")
        return check_ids(np.atleast_2d(mine[name]), size, noun)


def _read_ids(core: model.Model, mine: Dump, name: str | None, stack: str) -> Array | None:
    """The token ids of a stack (B, T), or None.

    DataError for no ids, more than it has positions, or other numbers.
    """
    if name is None:
        return None
    ids = _read_rows(mine, name, core.config.stack(stack).vocab, "token id")
    with _named(mine, name):
        if not ids.size:
            raise DataError(f"no token ids in shape {mine.shape(name)}")
        if core.config.positions.kind in ("learned", "sinusoidal"):  # rotary ones have no end
            check_size(core.config, np.arange(ids.shape[1]), f"{stack}.positions")
    return ids


def _read_mask(mine: Dump, names: Sequence[str], ids: Array, counts: Sequence[str] = ()) -> Array | None:
    """The padding mask of token ids (B, T), True = a token, or None.

    A mask of queries and keys (T, T) is not read.

    counts  the names of the lengths of texts, which stand for a mask
    """
    name, tokens = _find(mine, names), ids.shape[-1]
    if name is None and (lengths := _find(mine, counts)) is not None:
        return _read_lengths(mine, lengths, ids)
    if name is None or (mine.shape(name) == (tokens, tokens) and len(ids) != tokens):
        return None
    array = mine[name]
    with _named(mine, name):
        if array.size != ids.size:
            raise DataError(f"shape {array.shape} (expected that of the token ids, {ids.shape})")
        mask = array.reshape(ids.shape).astype(bool)
        if (array.reshape(ids.shape) != mask).any():
            raise DataError("numbers other than 1 for a token and 0 for padding")
        if not mask.any(axis=-1).all():
            raise DataError("a text of padding alone")
    return mask


def _read_lengths(mine: Dump, name: str, ids: Array) -> Array:
    """The padding mask of token ids (B, T) by the length of each text, (B,)."""
    with _named(mine, name):
        if mine.shape(name) != ids.shape[:1]:
            raise DataError(f"shape {mine.shape(name)} (expected one length for each of {counted(len(ids), 'text')})")
        lengths = check_ids(mine[name], ids.shape[1] + 1, "length")
        if lengths.min() < 1:
            raise DataError("a text of padding alone")
    mask: Array = np.arange(ids.shape[1]) < lengths[:, None]
    return mask


def _read_types(core: model.Model, mine: Dump, ids: Array) -> Array | None:
    """The segments of token ids (B, T), or None if the model or the dump has none."""
    table = core.params[f"{core.config.stacks[0]}.embed"].get("types")
    if table is None or (name := _find(mine, TYPES)) is None:
        return None
    types = _read_rows(mine, name, len(table), "segment")
    if types.size != ids.size:
        raise DataError(
            f"tensor {name!r}: shape {mine.shape(name)} (expected that of the token ids, {ids.shape})", mine.name
        )
    return types.reshape(ids.shape)


def find_image(mine: Dump) -> str | None:
    """The tensor of the images that the model reads."""
    named = [name for name in mine if name.rpartition(".")[2] in IMAGE]
    return next((one for one in named if len(mine.shape(one)) == 4), None)


def _read_image(core: model.Model, mine: Dump, picture: PictureInput | None) -> Array:
    """The images (B, C, height, width) of the dump, or what becomes of a picture."""
    name, cut = find_image(mine), core.config.patches
    if name is None and picture is not None:
        return prepare_pixels(picture)
    if name is None or cut is None:
        raise DataError("no pixel_values in it, the image that the model reads; --image FILE gives it", mine.name)
    count, channels, height, width = channels_first(np.empty(mine.shape(name), bool), cut.channels).shape
    if not count or channels != cut.channels or 0 in cut.grid(height, width):
        least = f"{cut.patch_height} x {cut.patch_width}"
        problem = f"shape {mine.shape(name)} (expected (images, {cut.channels}, height, width), {least} pixels or more)"
        raise DataError(f"tensor {name!r}: {problem}", mine.name)
    return channels_first(mine[name], cut.channels).astype(np.float64)


def find_features(mine: Dump) -> str | None:
    """The tensor of the spectrograms or samples that the model reads.

    A call that does not name its only argument is recorded as `input`.
    """
    return next((name for name in mine if name.rpartition(".")[2] in FEATURES or name == "input"), None)


def _read_heard(
    core: model.Model, mine: Dump, located: Located, expected: Array | None, sound: SoundInput | None
) -> tuple[Inputs, str]:
    """What a model of sounds reads, and how the token ids of its decoder differ."""
    features, heard = _read_features(core, mine, sound), core.config.sound
    assert heard is not None
    inputs = Inputs(
        features=features,
        sound=None if sound is None else sound.samples[None],
        standardizes=sound is None or sound.standardizes,
    )
    if core.config.decoder is None:
        return replace(inputs, mask=_read_heard_mask(core, mine, features)), ""
    target = _read_ids(core, mine, _find_ids(mine, located, "decoder.ids"), "decoder")
    mask = None if target is None else _read_mask(mine, TARGET_MASK, target)
    difference = compare_ids(target, expected, mask) if target is not None and expected is not None else ""
    target = expected if target is None else target
    if target is not None:
        _check_whole_pass(mine, target, TARGET_MASK)
        if len(target) != inputs.heard_shape(heard)[0]:
            raise DataError(f"{len(target)} texts of the decoder (expected one for each sound)", mine.name)
    return replace(inputs, target=target, target_mask=mask), difference


def _read_features(core: model.Model, mine: Dump, sound: SoundInput | None) -> Array | None:
    """The spectrograms (B, F, M) or samples (B, T) of the dump, or None.

    None if the features are computed from a given sound.
    """
    name, heard = find_features(mine), core.config.sound
    assert heard is not None
    if name is None:
        if sound is None:
            given = "input_features" if heard.spectrogram else "input_values"
            raise DataError(f"no {given} in it, which the model reads; --audio FILE gives the sound", mine.name)
        return None
    array = frames_first(mine[name], heard)
    least, most = heard.frames_before("", 1), 2 * heard.positions
    channels = heard.spectrogram.mels if heard.spectrogram else 0
    has_axes = array.ndim == 2 + bool(channels) and array.size and array.shape[2:] == (channels,) * bool(channels)
    if not has_axes or array.shape[1] < least or (most and array.shape[1] > most):
        if sound is not None:
            return None  # those of the sound, which it is compared with
        wanted = f"(sounds, {channels}, frames)" if channels else "(sounds, samples)"
        limit = f", {least} or more" if not most else f", at most {most} frames"
        raise DataError(f"tensor {name!r}: shape {mine.shape(name)} (expected {wanted}{limit})", mine.name)
    return array.astype(np.float64)


def frames_first(features: Array, sound: SoundConfig) -> Array:
    """Spectrograms (B, F, M) also where their mels are first, and samples (B, T).

    >>> from attnkit.model.formulas.spectrogram import Spectrogram
    >>> frames_first(np.ones((80, 6)), SoundConfig(Spectrogram(), 3, {})).shape
    (1, 6, 80)
    """
    if sound.spectrogram is None:
        return features[None] if features.ndim == 1 else features
    batch = features[None] if features.ndim == 2 else features
    has_mels_first = batch.ndim == 3 and batch.shape[1] == sound.spectrogram.mels
    return np.swapaxes(batch, 1, 2) if has_mels_first else batch


def _read_heard_mask(core: model.Model, mine: Dump, features: Array | None) -> Array | None:
    """The mask of states (B, T) that are made of samples, True = no padding.

    Samples are padded at their end.
    """
    sound = core.config.sound
    if features is None or sound is None:
        return None
    mask = _read_mask(mine, MASK, features)
    if mask is None:
        return None
    lengths, least = mask.sum(axis=-1), sound.frames_before("", 1)
    if lengths.min() < least:
        problem = f"a sound of {counted(int(lengths.min()), 'sample')} without its padding (expected {least} or more)"
        raise DataError(f"tensor {_find(mine, MASK)!r}: {problem}", mine.name)
    counts = [sound.frames_after("", int(length)) for length in lengths]
    states: Array = np.arange(sound.frames_after("", features.shape[1])) < np.array(counts)[:, None]
    return states


def channels_first(images: Array, channels: int) -> Array:
    """Images (B, C, height, width), also where their channels are last.

    >>> channels_first(np.ones((1, 8, 9, 3)), 3).shape
    (1, 3, 8, 9)
    """
    is_last = images.ndim == 4 and images.shape[-1] == channels != images.shape[1]
    return np.moveaxis(images, -1, 1) if is_last else images


def _check_whole_pass(mine: Dump, ids: Array, names_of_mask: Sequence[str] = MASK) -> None:
    """Raise DataError for a pass whose earlier keys and values are in a cache."""
    names = (POSITIONS, names_of_mask)
    positions, mask = (None if (name := _find(mine, some)) is None else mine[name] for some in names)
    begins = 0 if positions is None else float(positions.astype(np.float64).ravel()[:1].sum())
    is_longer = mask is not None and mask.ndim > 0 and mask.shape[-1] > ids.shape[-1]
    if is_longer or (begins > 2 and ids.shape[-1] == 1):
        raise DataError("a pass over new tokens with a KV cache; record the first pass, over the prompt", mine.name)
