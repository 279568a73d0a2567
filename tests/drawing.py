"""Weights that are drawn by the names of their tensors, so that no file has to hold them."""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np


def draw_tensor(name: str, shape: Sequence[int], center: float) -> np.ndarray:
    """Draw a tensor in float32: weights from N(0, 1/columns), norms around a center, others around 0."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(tuple(shape))
    if len(shape) > 1:
        return (values * shape[-1] ** -0.5).astype(np.float32)
    is_norm = "norm" in name or "ln_" in name
    return (values * 0.2 + (center if is_norm and name.endswith("weight") else 0.0)).astype(np.float32)


def draw_tensors(family: str, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Draw all tensors of a model, by their published names."""
    center = 0.0 if family.startswith("gemma") else 1.0  # whose norms multiply by 1 + weight
    return {name: draw_tensor(name, shape, center) for name, shape in shapes.items()}
