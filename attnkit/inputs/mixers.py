"""A layer of a model that mixes tokens and carries a state, as a stage."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import DataError, UsageError
from attnkit.inputs import layers
from attnkit.inputs.operands import read_position, read_state_parts
from attnkit.inputs.padding import find_real_tokens
from attnkit.model import Config, KVCache
from attnkit.model.intermediates import INTERMEDIATES, kept_names
from attnkit.model.parameters import MIXERS, last_part, tool_of
from attnkit.records import Array, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


class MixerStates(NamedTuple):
    """The state of a layer before x, and the file of that after it."""

    before: Mapping[str, Array] | None = None
    file: str | None = None


NO_STATES = MixerStates()


def find_mixer(checkpoint: "Checkpoint | None", layer: str | None, tool: str) -> str:
    """The layer of a model if it mixes tokens by a state, once it is found; else ""."""
    if checkpoint is None:
        return ""
    found = layers.find_layer(checkpoint, layer, tool)
    return found if last_part(found) in MIXERS else ""


def apply_mixer(
    record: Record,
    checkpoint: "Checkpoint",
    layer: str,
    keep: Collection[str],
    *,
    steps: bool = False,
    residual: bool = False,
    add: Record | None = None,
    states: MixerStates = NO_STATES,
) -> Record:
    """Apply a layer of a model to x (token, model), and keep intermediates by name.

    Padding that the record states is skipped. DataError for x of another shape, UsageError for names that it has not.
    """
    core, x = layers.core_model(checkpoint), record["x"]
    if x.ndim not in (2, 3) or x.shape[-1] != core.config.width:
        expected = f"(token, {core.config.width}) or (batch, token, {core.config.width})"
        raise DataError(f"x {x.shape}: expected {expected} for {layer}")
    arrays, listener = dict[str, Array](), callbacks.current().on_intermediates

    def hook(site: str) -> Callable[[Array], Array]:
        return lambda array: arrays.setdefault(site.rpartition(".")[2], array)

    real = find_real_tokens(record, x.shape[:-1])
    mask = None if real is None else np.atleast_2d(real)[:, None]
    context = layers.context_from(
        record, hook=hook, mask=mask, cache=begin_cache(core.config, layer, states.before, x.shape)
    )
    operands = layers.LayerOperands(core, layers.find_step(layer, tool_of(layer)), x, context)
    callbacks.current().on_parameters(core.params[layer])
    callbacks.current().on_operands(operands)
    cache = begin_cache(core.config, layer, states.before, x.shape) or KVCache()  # the gradient begins where x began
    y = model.run(core, [operands.step], x, replace(context, cache=cache))
    arrays.pop("output")
    if states.file:
        callbacks.current().write_side_output(states.file, state_record(core.config, layer, cache, x.ndim == 3))
    if missing := [name for name in keep if name not in (*arrays, "all")]:
        raise UsageError(f"{layer} has no {join_names(missing)} (it has {join_names([*arrays])})", "--keep")
    output = Tensor(y, formula=f"{layer}(x)")
    output = layers.add_residuals(output, x if residual else None, add, layers.result_scale(checkpoint, layer))
    lead = ("batch",) * (x.ndim - 2)
    rows = INTERMEDIATES[tool_of(layer)]
    tensors = {
        name: Tensor(array, (*lead, *(rows[name].axes or ("token", "model"))), formula=rows[name].formula)
        for name, array in arrays.items()
    }
    rest = record.without([name for name in kept_names(tool_of(layer)) if name in record])
    if listener:
        listener(rest.with_tensors(tensors))
    kept = {name: one for name, one in tensors.items() if steps or "all" in keep or name in keep}
    kept["x"] = Tensor(output.array, record.tensor("x").axes_like(output.array.shape), formula=output.formula)
    return rest.with_tensors(kept)


def begin_cache(
    config: Config, layer: str, tensors: Mapping[str, Array] | None, shape: tuple[int, ...]
) -> KVCache | None:
    """Build a cache with the state of one layer; None without a state.

    tensors  as `state_record` writes them; shape: of x, (T, D) or (B, T, D)
    """
    if tensors is None:
        return None
    cache, lead = KVCache(), shape[:-2]
    shapes = {part: (*lead, *axes.values()) for part, axes in config.states[layer].items()}
    parts = read_state_parts(tensors, shapes)
    cache.advance(layer, tuple(array if lead else array[None] for array in parts.values()), read_position(tensors))
    return cache


def state_record(config: Config, layer: str, cache: KVCache, is_batch: bool) -> Record:
    """Make a record of the state of a layer, under the names of its parts."""
    tensors = {"position": Tensor(np.array(cache.length, np.int64), ())}
    for (part, axes), array in zip(config.states[layer].items(), cache.states[layer], strict=True):
        assert array is not None
        tensors[part] = Tensor(array if is_batch else array[0], ("batch", *axes)[not is_batch :])
    return Record(tensors)
