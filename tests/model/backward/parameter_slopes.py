"""Slopes of the parameters of a model, beside finite differences."""

import numpy as np

from attnkit.model import Model
from attnkit.model.backward.tied import tied_parameters


def check_parameter_slopes(directions, model, gradients, run, dy, rng):
    """Hold the gradient of every parameter to differences of dy · run(model); of tied ones, one moves all."""
    groups = {name: group for group in tied_parameters(model.params) for name in group}
    arrays = {(layer, name): one for layer, parts in model.params.items() for name, one in parts.items()}

    def as_tied(array, name, other):
        return array if arrays[name].strides == arrays[other].strides else array.T

    def loss(changed):
        moved = {layer: dict(parts) for layer, parts in model.params.items()}
        for name, array in changed.items():
            for layer, part in groups.get(name, [name]):
                moved[layer][part] = as_tied(array, name, (layer, part))
        return float(np.vdot(dy, run(Model(model.config, moved))))

    slopes = {(layer, name): one for layer, parts in gradients.items() for name, one in parts.items()}
    for name, gradient in [*slopes.items()]:
        first = next(one for one in groups.get(name, [name]) if one in slopes)
        if first != name:
            np.testing.assert_array_equal(gradient, as_tied(slopes[first], first, name), str(name))
            slopes = {other: one for other, one in slopes.items() if other != name}
    directions(loss, arrays, slopes, rng, together=8)
