"""One layer of a published model, as the parameters of the tool that takes it."""

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitWarning, DataError, UsageError, suggest
from attnkit.inference import callbacks, intermediates
from attnkit.model import Array
from attnkit.record import Record, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint
    from attnkit.model import Config, Context, Model

LONG = 60  # tokens to be generated, from which on it pays to lay weights anew
PARTS = {
    "embed": ("embed",),
    "posenc": ("positions",),
    "attend": ("self", "cross"),
    "ffn": ("ffn",),
    "layernorm": ("norm", "embed_norm", "norm1", "norm2", "norm3"),
    "decode": ("head",),
}


def find_layer(checkpoint: "Checkpoint", layer: str | None, tool: str) -> str:
    """The layer of that name, once it is known to be one of the model and of this tool.

    Without a name, the first layer of the model that only one stack begins with: its embedding or positions.
    UsageError names the layers that come near.
    """
    mine = [name for name in checkpoint.layers() if model.parse_layer_name(name)[2] in PARTS[tool]]
    if layer is None and tool in ("embed", "posenc"):
        return f"{checkpoint.config.stacks[0]}.{PARTS[tool][0]}"
    if layer is None:
        raise UsageError(f"--model needs --layer NAME{f', such as {mine[0]}' if mine else ''}")
    if layer not in mine and not (tool == "posenc" and layer in position_layers(checkpoint)):
        if layer in checkpoint.layers():
            raise UsageError(f"{layer} is no layer for {tool}{suggest(layer, mine)}", "--layer")
        raise UsageError(f"the model has no layer {layer!r}{suggest(layer, mine)}", "--layer")
    return layer


def position_layers(checkpoint: "Checkpoint") -> tuple[str, ...]:
    """The names of what adds positions, whether or not it has parameters."""
    return tuple(f"{stack}.positions" for stack in checkpoint.config.stacks)


def core_model(checkpoint: "Checkpoint") -> "Model":
    """The configuration and the parameters of a checkpoint, as the core takes them."""
    return model.Model(checkpoint.config, checkpoint.params)


def complete_model(checkpoint: "Checkpoint") -> "Model":
    """The model to be run from end to end, with a warning where the files have layers that it leaves out."""
    if unused := checkpoint.params.unused_layers():
        many = f"{len(unused)} layers of the files are" if len(unused) > 1 else "1 layer of the files is"
        said = f"{many} not read, which the configuration leaves out: {join_names(unused, 4)}"
        warnings.warn(said, AttnkitWarning, stacklevel=2)
    return core_model(checkpoint)


def prepare_decoding(checkpoint: "Checkpoint", tokens: int) -> None:
    """Lay the weights of the decoder so that they are read fastest token by token, where that pays for itself."""
    if tokens >= LONG:
        for step in model.layer_plan(checkpoint.config, "decoder"):
            if step.tool == "ffn":
                checkpoint.params.to_column_major(step.layer, "w2")


def new_context(**fields: Any) -> "Context":
    """Return the context of a run that reports its layers, and the first that is not finite, to the callbacks."""
    events = callbacks.current()
    return model.Context(watch=lambda step: events.on_progress(step.layer), breaks=events.on_non_finite, **fields)


def context_from(record: Record, **known: Any) -> "Context":
    """What a record knows of a run: its mask, the positions that follow from it, segments, grid and memory."""
    mask = record.tensors.get("mask")
    grid = record.tensors.get("grid")
    if grid is not None and (grid.shape != (2,) or grid.dtype.kind not in "iu"):
        raise DataError(f"grid {grid.dtype} {grid.shape}: expected two whole numbers, rows and columns of patches")
    return new_context(
        mask=mask,
        positions=padding_positions(mask),
        types=record.tensors.get("types", record.tensors.get("token_type_ids")),
        grid=None if grid is None else (int(grid[0]), int(grid[1])),
        **known,
    )


def warn_empty_mask_rows(mask: Array | None) -> None:
    """Say how many rows of a boolean mask let a query attend to nothing, and which is the first."""
    if mask is not None and mask.dtype == bool and mask.ndim:
        said = "1 row of the mask is empty: its queries", "{} rows of the mask are empty: their queries"
        intermediates.warn_fully_masked_rows(np.asarray(~mask.any(axis=-1)), said=said)


def normalize_mask(record: Record) -> Record:
    """The record, the mask of its padded batch as booleans (B, 1, T), in whichever of the usual forms it came.

    mask (B, T), (B, 1, T) or (B, 1, 1, T), boolean or 0 and 1; one that names its axis `query` stays as it is.
    DataError for a mask of another number of tokens.
    """
    mask, ids = record.tensors.get("mask"), record.tensors.get("ids", record.tensors.get("x"))
    if mask is None or ids is None or ids.ndim < 2 or "query" in record.axes.get("mask", ()):
        return record
    batch, tokens = ids.shape[:2]
    if mask.ndim and mask.shape[-1] != tokens:
        raise DataError(f"mask {mask.shape} for {tokens} tokens: expected ({batch}, 1, {tokens})")
    if mask.dtype.kind == "f" or mask.shape not in ((batch, tokens), (batch, 1, tokens), (batch, 1, 1, tokens)):
        return record
    kept = model.to_boolean(mask).reshape(batch, 1, tokens)
    return record.put({"mask": kept}, {"mask": ("batch", "all queries", "key")})


def ids_from_x(record: Record) -> Record:
    """The record, its tensor as `ids` where that is alone and of integers: whatever it was called, it came as x.

    >>> list(ids_from_x(Record({"x": np.array([3, 1])})).tensors), list(ids_from_x(Record({"x": np.zeros(2)})).tensors)
    (['ids'], ['x'])
    """
    if [*record] != ["x"] or record["x"].dtype.kind not in "iu":
        return record
    ids = record["x"]
    axes = record.axes.get("x") or ("batch", "token")[max(0, 2 - ids.ndim) :]
    return replace(record, tensors={"ids": ids}, axes={"ids": axes} if len(axes) == ids.ndim else {})


def padded_ids(given: Record) -> Record:
    """The `ids` of an operand, which may be its x, their labels, and the mask of their padding (B, 1, T) if it has one.

    >>> [*padded_ids(Record({"x": np.zeros((2, 3), int), "mask": np.ones((2, 3), bool)}))]
    ['ids', 'mask']
    """
    ids = given["ids"] if "ids" in given else given["x"]
    mask = normalize_mask(given.put({"ids": ids})).tensors.get("mask")
    if ids.ndim != 2 or mask is None or mask.dtype != bool or mask.shape != (len(ids), 1, ids.shape[1]):
        return Record({"ids": ids}, labels=given.labels)
    return Record({"ids": ids, "mask": mask}, labels=given.labels)


def check_pair(config: "Config", pair: str | None, given: Any) -> None:
    """UsageError for a second text without a first, or where a model has no encoder, which reads one text only."""
    if pair is None:
        return
    if config.encoder is None:
        raise UsageError(f"a {config.family} model takes one text, not a pair", "--pair")
    if not given or isinstance(given, Record):
        raise UsageError("a second text goes with a first: TEXT", "--pair")


def padding_positions(mask: Array | None) -> Array | None:
    """The positions of the tokens of a padded batch, by the mask of its keys; None where it is no such mask."""
    if mask is None or mask.ndim != 3 or mask.shape[-2] != 1 or mask.dtype != bool or mask.shape[-1] == 1:
        return None
    return model.token_positions(mask)


def positions_after(positions: Array, mask: Array | None, past: int, count: int) -> Array:
    """Positions of the last tokens of a padded batch, some being in a cache: by a mask of all, else after those.

    positions (B, N), mask (B, 1, P + T) or another one -> (B, T)

    >>> positions_after(np.array([[0, 1]]), None, past=3, count=2).tolist()
    [[3, 4]]
    """
    found = padding_positions(mask)
    if found is not None and found.shape[-1] == past + count:
        return found[..., past:]
    return past + positions
