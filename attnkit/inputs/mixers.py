"""A layer of a model that mixes tokens and carries a state, as a stage."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from attnkit import callbacks, model
from attnkit.errors import DataError, UsageError
from attnkit.inputs import layers
from attnkit.model.intermediates import INTERMEDIATES, kept_names
from attnkit.model.parameters import MIXERS, last_part, tool_of
from attnkit.records import Array, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


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
) -> Record:
    """Apply a layer of a model to x (token, model), and keep intermediates by name.

    Padding of the record's mask is skipped. DataError for x of another shape, UsageError for names that it has not.
    """
    core, x = layers.core_model(checkpoint), record["x"]
    if x.ndim not in (2, 3) or x.shape[-1] != core.config.width:
        expected = f"(token, {core.config.width}) or (batch, token, {core.config.width})"
        raise DataError(f"x {x.shape}: expected {expected} for {layer}")
    arrays, listener = dict[str, Array](), callbacks.current().on_intermediates

    def hook(site: str) -> Callable[[Array], Array]:
        return lambda array: arrays.setdefault(site.rpartition(".")[2], array)

    context = layers.context_from(record, hook=hook)
    operands = layers.LayerOperands(core, layers.find_step(layer, tool_of(layer)), x, context)
    callbacks.current().on_parameters(core.params[layer])
    callbacks.current().on_operands(operands)
    y = model.run(core, [operands.step], x, context)
    arrays.pop("output")
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
