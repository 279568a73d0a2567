"""What a connector computes between a tower of pictures and a model of texts."""

from dataclasses import replace

from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas import patch_grouping
from attnkit.model.formulas.patch_grouping import Grouping
from attnkit.model.hooks import apply_hook


def connector_model(model: Model) -> Model:
    """The model whose steps are those of the connector, with its norm and activation."""
    config, connector = model.config, model.config.connector
    assert connector is not None
    own = replace(config, norm=connector.norm, eps=connector.eps, activation=connector.activation)
    return Model(own, model.params)


def read_grouping(model: Model, grid: tuple[int, int] | None) -> Grouping:
    """How the connector of a model groups the patches of a picture of a grid."""
    connector, cut = model.config.connector, model.config.patches
    assert connector is not None
    assert cut is not None
    return Grouping(connector.grouping, grid or cut.grid(cut.height, cut.width), connector.block, cut.before)


def group_patches(model: Model, layer: str, x: Array, context: Context) -> Array:
    """Rows of a text from the tokens of a picture: (..., T, D) -> (..., T', D')."""
    rows = patch_grouping.group_patches(x, read_grouping(model, context.grid))
    return apply_hook(context.hook, layer, rows)
