"""The nodes of a connector, from the states of a picture to rows of a text."""

import math

from attnkit.model.dtypes import Array
from attnkit.model.formulas.patch_grouping import group_patches, group_patches_backward
from attnkit.model.graph.costs import Cost, Costs, Sizes
from attnkit.model.graph.nodes import Built, Kind, Node, Place, Scope
from attnkit.model.layers.connector import read_grouping


def _group(scope: Scope, x: Array) -> Array:
    return group_patches(x, scope.option("how"))


def _undo_group(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    return [group_patches_backward(dy, x.shape, scope.option("how"))]


def _count_group(sizes: Sizes) -> Costs:
    """The sums of a mean; rows that are only ordered anew are read and written."""
    how, numbers = sizes.option("how"), math.prod(sizes.node.shape)
    each = how.block**2 if how.kind == "mean" else 0
    return [Cost(elementwise=each * numbers, read=numbers * max(each, 1), written=numbers)]


KINDS = {"group": Kind(value=_group, pullback=_undo_group, cost=_count_group)}


def build_group(place: Place) -> Built:
    image, cut = place.inputs.image, place.core.config.patches
    assert cut is not None
    grid = None if image is None else cut.grid(*image.shape[-2:])
    options = {"how": read_grouping(place.core, grid)}
    yield Node(place.step.layer, "group", (place.x,), place.states(place.width()), options=options)
