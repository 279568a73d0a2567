"""Find the mask and the bias that attention uses: those of the record that the keys come from."""

import warnings
from dataclasses import dataclass, field, replace

import numpy as np

from attnkit.errors import AttnkitWarning
from attnkit.record import Array, Record, Tensor

COMPANIONS = ("memory_state", "memory_cell")
ONE_ROW = ("batch", "all queries", "key")


@dataclass(frozen=True, eq=False, repr=False)
class AttendedTensor(Record):
    """One tensor of a record as `x`, and the mask of that record that belongs to it as keys.

    name             of the tensor in its record
    mask             the mask as `x`; None where the record has none that applies to queries from elsewhere
    has_square_mask  whether the record has a mask with a row for each of its own tokens, which does not apply to them
    is_given         whether the record is the input of the tool, and not a file
    source           the file, for messages
    companions       what a recurrent encoder leaves beside its memory: its last states
    """

    name: str = "x"
    mask: Record | None = None
    has_square_mask: bool = False
    is_given: bool = False
    source: str = ""
    companions: Record = field(default_factory=lambda: Record({}))


def make_attended(tensor: Record, record: Record, name: str, source: str = "", own: bool = False) -> AttendedTensor:
    """Return the tensor `name` of a record, which `tensor` holds as x, with its mask as keys.

    >>> memory = Record({"x": np.zeros((1, 2, 4)), "mask": np.array([[[True, False]]])})
    >>> make_attended(memory.select(["x"]), memory, "x").mask["x"].tolist()
    [[[True, False]]]
    """
    mask = find_key_mask(record, name)
    has_square_mask = mask is None and has_mask_for(record, name)
    return AttendedTensor(
        tensor.tensors,
        tensor.labels,
        tensor.history,
        name=name,
        mask=mask,
        has_square_mask=has_square_mask,
        is_given=own,
        source=source,
        companions=record.select([name for name in COMPANIONS if name in record]),
    )


def find_key_mask(record: Record, name: str) -> Record | None:
    """Return the mask of a tensor as keys: `memory_mask` for the memory, else the only row of `mask`."""
    is_memory = "memory" in record and (name == "memory" or is_equal(record[name], record["memory"]))
    if "memory_mask" in record and (is_memory or "memory" not in record):
        return select_mask(record, "memory_mask", record[name])
    return reduce_to_one_row(record, record[name]) if has_mask_for(record, name) else None


def has_mask_for(record: Record, name: str) -> bool:
    """Return whether the record's `mask` has a column for each row of this tensor."""
    keys, mask = record[name], record.get("mask")
    if mask is None or not mask.ndim or keys.ndim < 2:
        return False
    if name == "memory" and "x" in record and not is_equal(keys, record["x"]):
        return False  # the mask is of x
    return name == "x" or mask.shape[-1] == keys.shape[-2]


def reduce_to_one_row(record: Record, keys: Array) -> Record | None:
    """Return the `mask` of a record as one row for all queries, (B, 1, S) or (1, S); None where its rows differ.

    >>> reduce_to_one_row(Record({"mask": np.array([[True, False], [True, False]])}), np.zeros((2, 4)))["x"].tolist()
    [[True, False]]
    """
    mask_record = select_mask(record, "mask", keys)
    mask = mask_record["x"]
    if mask.ndim < 2:
        return Record({"x": np.atleast_2d(mask)})
    if not mask.shape[-2] or not (mask == mask[..., :1, :]).all():
        return None
    return mask_record.with_tensors({"x": replace(mask_record.tensors["x"], array=mask[..., :1, :])})


def select_mask(record: Record, name: str, tensor: Array) -> Record:
    """Return a mask over the rows of a tensor as `x`, with axis names; that of a batch begins with the axis `batch`.

    (B, S) and (B, 1, S) without names are those of a padded batch of B rows, as encode and decode read them.
    """
    mask, axes = record[name], record.tensors[name].axes or ()
    batch = len(tensor) if tensor.ndim > 2 else -1
    if mask.shape == (batch, *tensor.shape[-2:-1]) and (
        axes[:1] == ("batch",) or (not axes and batch != mask.shape[1])
    ):
        return Record({"x": Tensor(mask[:, None], ONE_ROW)})
    if not axes and mask.ndim == 3 and len(mask) == batch:
        axes = ONE_ROW
    return Record({"x": Tensor(mask, axes or None)})


def find_mask(
    record: Record, queries: AttendedTensor | None, keys: AttendedTensor | None, past: int, is_by_hand: bool
) -> Record | None:
    """Return the mask of attention if no flag names one; warn if the record has a mask that is not used.

    queries, keys  what they come from; None: x of the record
    past           keys before those of the record
    is_by_hand     whether flags, not a model, say what is attended to
    """
    if not is_own(keys, record):
        if keys is not None and keys.has_square_mask:
            warn_of_square(keys)
        elif is_by_hand and has_columns_for(record, "mask", keys):
            warn_unused("the record's mask is not used: its keys are the tokens of the record", "--mask :mask")
        return keys.mask if keys is not None else None
    if "mask" not in record:
        return None
    x = record["x"] if keys is None else keys["x"]
    if is_own(queries, record):
        return prepend_past_columns(select_mask(record, "mask", x), past, x)
    row = reduce_to_one_row(record, x)
    if row is None:
        problem = "the record's mask is not used: its rows are the tokens of the record, not these queries"
        warn_unused(problem, "--mask :mask")
    return row if row is None else prepend_past_columns(row, past, x)


def warn_of_square(keys: AttendedTensor) -> None:
    """Warn that a mask with a row for each token of the keys is not used for other queries."""
    is_file = not keys.is_given and keys.source not in ("", "<stdin>")
    which = f"{keys.source}: its mask" if is_file else "the mask of the keys"
    file = "" if keys.is_given else keys.source if is_file else "FILE"
    warn_unused(f"{which} is not used: its rows are its own tokens, not these queries", f"--mask {file}:mask")


def find_bias(
    record: Record, queries: AttendedTensor | None, keys: AttendedTensor | None, is_by_hand: bool
) -> Record | None:
    """Return the record's `bias` for self-attention of its tokens; warn if it is not used."""
    if "bias" not in record:
        return None
    if not (is_own(queries, record) and is_own(keys, record)):
        if is_by_hand and has_columns_for(record, "bias", keys):
            warn_unused("the record's bias is not added: its keys are the tokens of the record", "--bias :bias")
        return None
    if not is_by_hand:
        warn_unused("the record's bias is not added: the model sets the positions", "--bias :bias")
        return None
    return Record({"x": record.tensors["bias"]})


def is_equal(one: Array, other: Array) -> bool:
    """Return whether two arrays hold the same numbers, NaN included."""
    return one is other or np.array_equal(one, other, equal_nan=True)


def is_own(operand: AttendedTensor | None, record: Record) -> bool:
    """Return whether the rows of an operand are the tokens of the record: its x, or a tensor with as many rows."""
    if operand is None or (operand.is_given and operand.name == "x"):
        return True
    rows = (record if "x" in record else operand)["x"].shape[-2:-1]
    return operand.is_given and operand.name != "memory" and operand["x"].shape[-2:-1] == rows


def has_columns_for(record: Record, name: str, keys: AttendedTensor | None) -> bool:
    """Return whether a mask or bias of the record has a column for each of the keys."""
    keys_shape = record["x"].shape if keys is None else keys["x"].shape
    return name in record and record[name].shape[-1:] == keys_shape[-2:-1]


def prepend_past_columns(mask: Record, past: int, x: Array) -> Record:
    """Return a mask of the tokens of x with columns for the keys before them, all visible.

    >>> prepend_past_columns(Record({"x": np.array([[True, False]])}), 1, np.zeros((2, 4)))["x"].tolist()
    [[True, True, False]]
    """
    cells = mask["x"]
    if not past or not cells.ndim or cells.shape[-1:] != x.shape[-2:-1]:
        return mask
    past_cells = np.full((*cells.shape[:-1], past), 0 if cells.dtype.kind == "f" else 1, cells.dtype)
    return mask.with_tensors({"x": replace(mask.tensors["x"], array=np.concatenate([past_cells, cells], axis=-1))})


def warn_unused(problem: str, hint: str) -> None:
    """Warn of a tensor that attention does not use, with the flag that uses it."""
    warnings.warn(f"{problem} ({hint} uses it)", AttnkitWarning, stacklevel=4)
