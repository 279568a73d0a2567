"""Random recurrent layers of every kind of cell."""

import numpy as np

from attnkit.model.formulas.recurrent_cells import CELLS


def random_layer(cell, width, hidden, dtype=np.float64, **more):
    rng, blocks = np.random.default_rng(7), CELLS[cell].blocks
    output = more.get("projection", hidden)
    shapes = {"input": (blocks * hidden, width), "hidden": (blocks * hidden, output)}
    shapes |= dict.fromkeys(("input_bias", "hidden_bias"), (blocks * hidden,))
    shapes |= {"peephole": (3, hidden)} if more.get("peephole") else {}
    shapes |= {"projection": (output, hidden)} if "projection" in more else {}
    return {name: (rng.standard_normal(shape) / hidden**0.5).astype(dtype) for name, shape in shapes.items()}


VARIANTS = [(cell, {}) for cell in CELLS] + [
    ("lstm", {"peephole": True}),
    ("lstm", {"projection": 3}),
    ("lstm", {"peephole": True, "projection": 3}),
]
