"""The finite difference that gradients are compared with."""

import numpy as np
import pytest

STEP = 2e-4
STENCIL = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))


def check_directions(loss, arrays, gradients, rng, limit=1e-6):
    """Compare <gradient, u> with the derivative of the loss along a direction u, for each array by itself.

    The derivative is the fourth-order central difference (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h with h = 2e-4: its
    truncation is h^4 |f5| / 30 = 5e-17 |f5|, its rounding about 2 eps |f| / h = 2e-12 |f|, where f5 is the fifth
    derivative. u is the normalized gradient plus a random direction of the same length, so a gradient that is too
    long, too short or lacks a part is discovered. The error is relative to |gradient| + 1e-3 |f| + 1e-3; 1e-6 leaves
    room for fifth derivatives up to 1e7 and more, as those of a softmax of large scores are.
    """
    for name, gradient in gradients.items():
        array = arrays[name]
        assert gradient.shape == array.shape, name
        length = np.linalg.norm(gradient)
        away = rng.standard_normal(array.shape)
        direction = away / max(np.linalg.norm(away), 1e-30) + (gradient / length if length else 0)
        parts = [weight * loss({**arrays, name: array + step * STEP * direction}) for step, weight in STENCIL]
        slope, expected = sum(parts) / STEP, float(np.vdot(gradient, direction))
        scale = length + 1e-3 * abs(loss(arrays)) + 1e-3
        assert abs(slope - expected) <= limit * scale, f"{name}: derivative {slope}, gradient {expected}"


@pytest.fixture(scope="session")
def directions():
    return check_directions
