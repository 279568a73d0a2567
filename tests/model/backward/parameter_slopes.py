"""Slopes of the parameters of a model, beside finite differences."""

import numpy as np

from attnkit.model import Model
from attnkit.model.backward.tied import tied_parameters


def check_parameter_slopes(directions, model, gradients, run, dy, rng):
    """Hold the gradient of every parameter to differences of dy · run(model); of tied ones, one moves all."""
    groups = {name: group for group in tied_parameters(model.params) for name in group}

    def loss(arrays):
        moved = {layer: dict(parts) for layer, parts in model.params.items()}
        for layer, name in arrays:
            original = model.params[layer][name]
            for other, part in groups.get((layer, name), [(layer, name)]):
                same = model.params[other][part].strides == original.strides
                moved[other][part] = arrays[layer, name] if same else arrays[layer, name].T
        return float(np.vdot(dy, run(Model(model.config, moved))))

    for layer, parts in gradients.items():
        for name, gradient in parts.items():
            directions(loss, {(layer, name): model.params[layer][name]}, {(layer, name): gradient}, rng)
