"""The padding of a batch: stated by a mask, lengths or a padding token."""

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitNote, AttnkitWarning, DataError, counted
from attnkit.model.checks import as_text
from attnkit.model.dtypes import is_float, lowest_finite
from attnkit.records import Array, Record, Tensor

if TYPE_CHECKING:
    from attnkit.model import Config

ONE_ROW = ("batch", "all queries", "key")  # axes of a padding mask (B, 1, T)
BESIDE_IDS = ("mask", "lengths", "types")  # tensors of a text beside its ids
# the names that tokenizers of transformers give to what a model reads -> those here
LIBRARY_NAMES = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types"}


def rename_model_inputs(record: Record) -> Record:
    """Rename the tensors of a tokenizer of transformers.

    input_ids, attention_mask and token_type_ids

    An attention_mask (B, T) is a row of keys for each text, so that its axes are named. A tensor keeps its name if the
    record has one of the other name as well.

    >>> batch = Record({"input_ids": np.array([[5, 0]]), "attention_mask": np.array([[1, 0]])})
    >>> rename_model_inputs(batch), rename_model_inputs(batch).axes_of("mask")
    (<Record: ids (1, 2) int64, mask (1, 2) int64>, ('batch', 'key'))
    """
    if {*LIBRARY_NAMES}.isdisjoint(record):
        return record
    tensors: dict[str, Tensor] = {}
    for name, one in record.tensors.items():
        own = LIBRARY_NAMES.get(name, name)
        own = name if own in record else own
        is_padding = name == "attention_mask" and one.axes is None and one.array.ndim in (1, 2)
        tensors[own] = replace(one, axes=("batch", "key")[-one.array.ndim :]) if is_padding else one
    return replace(record, tensors=tensors)


def token_shape(record: Record) -> tuple[int, ...]:
    """The shape of a record's tokens, (T,) or (B, T): of ids, else x without width."""
    record = rename_model_inputs(record)
    ids, x = record.get("ids"), record.get("x")
    if ids is not None:
        return tuple(ids.shape)
    return () if x is None else tuple(x.shape if x.dtype.kind in "iu" else x.shape[:-1])


def find_real_tokens(record: Record, shape: tuple[int, ...] | None = None) -> Array | None:
    """Which tokens are not padding, (T,) or (B, T), by mask and lengths.

    shape  of the tokens [that of the ids, else of x]

    None if the record states no padding. A token to which no query may attend is padding. DataError for a mask or
    lengths of other tokens.

    >>> find_real_tokens(Record({"ids": np.zeros((2, 3), int), "lengths": np.array([3, 1])})).tolist()
    [[True, True, True], [True, False, False]]
    """
    record = rename_model_inputs(record)
    shape = token_shape(record) if shape is None else shape
    if len(shape) not in (1, 2):
        return None
    stated = [one for one in (_real_by_mask(record, shape), _real_by_lengths(record, shape)) if one is not None]
    return np.logical_and.reduce(stated) if stated else None


def find_lengths(record: Record, x: Array) -> Array | None:
    """The number of tokens of each text by mask or lengths; None if all have T.

    A token to which no token may attend is padding. DataError if padding precedes a token.

    >>> mask = np.array([[[True, False, False], [True, True, False], [True, True, False]]])
    >>> find_lengths(Record({"x": np.zeros((1, 3, 4)), "mask": mask}), np.zeros((1, 3, 4))).tolist()
    [2]
    """
    real = find_real_tokens(record, record["x"].shape[:-1])
    if real is None:
        return None
    is_token = np.broadcast_to(real, x.shape[:2])
    counts: Array = is_token.sum(-1)
    if (is_token != (np.arange(x.shape[1]) < counts[:, None])).any():
        raise DataError("mask: padding must follow the tokens of a text")
    return None if (counts == x.shape[1]).all() else counts


def may_attend(mask: Array) -> Array:
    """A mask as booleans; -inf or the lowest number of an additive one blocks.

    >>> may_attend(np.array([0.0, -np.inf], np.float32)).tolist(), may_attend(np.array([0, 1])).tolist()
    ([True, False], [False, True])
    """
    if not is_float(mask.dtype):
        return model.to_boolean(mask)
    return np.asarray(mask.astype(np.float64) > lowest_finite(mask.dtype))


def _real_by_mask(record: Record, shape: tuple[int, ...]) -> Array | None:
    if "mask" not in record or not record["mask"].ndim:
        return None
    attended = _attended(_cells_of_mask(record, shape))
    try:
        return np.broadcast_to(attended if len(shape) == 2 else attended[0], shape)
    except ValueError:
        raise _misfit(record["mask"], f"tokens {shape}", shape) from None


def _cells_of_mask(record: Record, shape: tuple[int, ...]) -> Array:
    """The mask of a record as booleans (B, H, Q, T), each but T perhaps 1."""
    mask, axes = record["mask"], record.tensors["mask"].axes or ()
    if mask.shape[-1] != shape[-1] or mask.ndim > 4:
        raise _misfit(mask, counted(shape[-1], "token"), shape)
    cells = may_attend(mask)
    if mask.shape == shape and "query" not in axes:
        return cells.reshape(-1, 1, 1, shape[-1])
    if mask.shape[-2:-1] not in ((), (1,), shape[-1:]):
        raise _misfit(mask, f"tokens {shape}", shape)
    if mask.ndim == 3 and axes[:1] != ("head",):
        return cells[:, None]
    return cells.reshape((1,) * (4 - mask.ndim) + mask.shape)


def _misfit(mask: Array, tokens: str, shape: tuple[int, ...]) -> DataError:
    expected = (shape[0], 1, shape[1]) if len(shape) == 2 else (1, *shape)
    return DataError.about("mask", f"{mask.shape} for {tokens}: expected {expected}, that of a padded batch")


def _attended(cells: Array) -> Array:
    """The keys that some query of some head may attend to, (B, H, Q, T) -> (B, T).

    A mask that lets no token attend to itself, as a strictly causal one, is not of padding, and leaves out none.
    """
    attended: Array = np.asarray(cells.any(axis=(1, 2)))
    if cells.shape[-2] != cells.shape[-1] or cells.shape[-1] == 1:
        return attended
    has_own = np.asarray(np.diagonal(cells, axis1=2, axis2=3).any(axis=1))  # (B, T)
    return np.asarray(attended | ~has_own.any(axis=-1, keepdims=True) & attended.any(axis=-1, keepdims=True))


def _real_by_lengths(record: Record, shape: tuple[int, ...]) -> Array | None:
    if "lengths" not in record:
        return None
    lengths = record["lengths"]
    if lengths.ndim > 1 or lengths.size != math.prod(shape[:-1]):
        expected = f"one for each of {counted(shape[0], 'text')}" if len(shape) == 2 else "a single number"
        raise DataError.about("lengths", f"{as_text(lengths.shape)} for tokens {as_text(shape)}: expected {expected}")
    return np.asarray(model.padding_mask(lengths.reshape(shape[:-1]), shape[-1])[..., 0, :])


def with_padding_mask(record: Record) -> Record:
    """State the padding of a record by its `mask`.

    It is (B, 1, T) booleans if the mask states nothing else.

    Of a single text (T,), `lengths` become a mask (1, T), and a mask stays what it is. A mask whose queries may attend
    to different keys keeps its rows, in which the padding of `lengths` is blocked.

    >>> batch = Record({"ids": np.zeros((2, 3), int), "lengths": np.array([3, 1])})
    >>> with_padding_mask(batch)["mask"].tolist()
    [[[True, True, True]], [[True, False, False]]]
    """
    record = rename_model_inputs(record)
    shape, mask = token_shape(record), record.get("mask")
    is_batch = len(shape) == 2
    real = find_real_tokens(record) if is_batch or "lengths" in record else None
    if real is None:
        return record
    if mask is None or _states_padding_alone(record, shape):
        labels = {} if mask is None else record.tensors["mask"].labels
        axes = ONE_ROW[not is_batch :]
        return record.with_tensors({"mask": Tensor(real[..., None, :], axes, labels, "token ≠ padding")})
    if "lengths" not in record:
        return record
    padding = real.reshape(len(real), *[1] * (max(mask.ndim, 3) - 2), -1) if is_batch else real
    blocked = np.asarray(-np.inf if is_float(mask.dtype) else 0, mask.dtype)
    named = ("batch", "query", "key") if is_batch and mask.ndim < 3 else record.tensors["mask"].axes
    return record.with_tensors({"mask": Tensor(np.where(padding, mask, blocked), named)})


def _states_padding_alone(record: Record, shape: tuple[int, ...], is_causal: bool = False) -> bool:
    """Whether all queries may attend to all real tokens, without a bias.

    is_causal  whether they may also be those that may attend to the real tokens before them
    """
    mask, cells = record["mask"], _cells_of_mask(record, shape)
    if is_float(mask.dtype) and (mask[may_attend(mask)] != 0).any():
        return False
    real = np.asarray(_attended(cells))[:, None, None]
    return bool((cells == real).all() or (is_causal and (cells == real & np.tri(shape[-1], dtype=bool)).all()))


def require_padding(record: Record, is_causal: bool = False) -> Array:
    """Which tokens are not padding, for texts computed one by one.

    All if the record does not say.

    is_causal  whether the model is, so that a mask may be causal as well

    DataError for a mask that states more than padding.

    >>> require_padding(Record({"ids": np.array([4, 5])})).tolist()
    [True, True]
    """
    record = rename_model_inputs(record)
    shape = token_shape(record)
    real = find_real_tokens(record)
    if real is None:
        return np.ones(shape, bool)
    if "mask" in record and not _states_padding_alone(record, shape, is_causal):
        raise _misfit(record["mask"], f"tokens {shape}", shape)
    return real


def padded_ids(record: Record, config: "Config | None" = None, is_target: bool = False) -> Record:
    """The ids or x of an operand, with labels, padding mask and segments.

    config and is_target  of the model that reads them: see `read_padding_tokens`

    >>> [*padded_ids(Record({"x": np.zeros((2, 3), int), "mask": np.ones((2, 3), bool)}))]
    ['ids', 'mask']
    """
    record = rename_model_inputs(record)
    ids = record.tensors["ids" if "ids" in record else "x"]
    stated = record.select([name for name in BESIDE_IDS if name in record])
    given = Record({"ids": ids}, labels=record.labels).with_tensors(stated.tensors)
    return read_padding_tokens(given, config, is_target) if config else with_padding_mask(given)


def read_padding_tokens(record: Record, config: "Config", is_target: bool = False) -> Record:
    """The record with its padding mask; without one, by the model's padding token.

    ids (B, T) that begin or end with the padding token are padded, as `generate` of transformers takes them; a note
    says so. If the padding token also begins or ends texts, they are tokens, and so are those of a single text (T,),
    which has no batch to fill: a warning says so if there are two or more.

    is_target  whether a decoder begins texts with its start token, which may be the padding token
    """
    record = rename_model_inputs(record)
    special, ids = config.special, record.get("ids")
    pad = special.pad
    if pad is None or ids is None or ids.dtype.kind not in "iu" or ids.ndim not in (1, 2) or config.text_length:
        return with_padding_mask(record)
    if {"mask", "lengths"} & {*record}:
        return with_padding_mask(record)
    is_pad = np.atleast_2d(ids) == pad
    before, after = np.cumprod(is_pad, axis=-1) > 0, np.cumprod(is_pad[:, ::-1], axis=-1)[:, ::-1] > 0
    before = np.zeros_like(before) if is_target and special.start == pad else before
    padding = before | after
    count, longest = int(padding.sum()), int(padding.sum(axis=-1).max(initial=0))
    if not count:
        return record
    tokens = f"{counted(count, 'token')} at the ends of texts {'is' if count == 1 else 'are'} the padding token {pad}"
    if pad in (special.bos, *special.eos) or ids.ndim == 1:
        if longest > 1:  # one may be the end of a text, or its start
            problem = f"{tokens}, and read as tokens: no mask and no lengths say that they are padding"
            warnings.warn(problem, AttnkitWarning, stacklevel=2)
        return record
    warnings.warn(f"{tokens}, and left out as padding; with a mask of ones they are tokens", AttnkitNote, stacklevel=2)
    return record.with_tensors({"mask": Tensor(~padding[:, None], ONE_ROW, formula="token ≠ padding")})
