"""The finite difference that gradients are compared with."""

import numpy as np
import pytest

STEP = 2e-4
STENCIL = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))


def check_directions(loss, arrays, gradients, rng, limit=1e-6, together=1):
    """Compare the sum of <gradient, u> with the derivative of the loss along directions u.

    The derivative is the fourth-order central difference (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h with h = 2e-4: its
    truncation is h^4 |f5| / 30 = 5e-17 |f5|, its rounding about 2 eps |f| / h = 2e-12 |f|, where f5 is the fifth
    derivative. u is the normalized gradient plus a random direction of the same length, so a gradient that is too
    long, too short or lacks a part is discovered. The error is relative to |gradient| + 1e-3 |f| + 1e-3; 1e-6 leaves
    room for fifth derivatives up to 1e7 and more, as those of a softmax of large scores are.

    together  how many arrays move at once, of which `loss` gets those that move
    """
    first, names = None, [*gradients]
    for start in range(0, len(names), together):
        ways, expected, length = {}, 0.0, 0.0
        for name in names[start : start + together]:
            gradient, size = gradients[name], np.linalg.norm(gradients[name])
            assert gradient.shape == arrays[name].shape, name
            away = rng.standard_normal(gradient.shape)
            ways[name] = away / max(np.linalg.norm(away), 1e-30) + (gradient / size if size else 0)
            expected, length = expected + float(np.vdot(gradient, ways[name])), np.hypot(length, size)
        kept = arrays if together == 1 else {}
        first = loss({**kept, **{name: arrays[name] for name in ways}}) if first is None else first
        slope = sum(
            weight * loss({**kept, **{name: arrays[name] + step * STEP * way for name, way in ways.items()}})
            for step, weight in STENCIL
        ) / STEP  # fmt: skip
        scale = length + 1e-3 * abs(first) + 1e-3
        assert abs(slope - expected) <= limit * scale, f"{[*ways]}: derivative {slope}, gradient {expected}"


@pytest.fixture(scope="session")
def directions():
    return check_directions
