"""The error function, which NumPy lacks.

The four rational approximations and their coefficients are those of fdlibm's s_erf.c, whose notice reads:
Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved. Developed at SunPro, a Sun Microsystems,
Inc. business. Permission to use, copy, modify, and distribute this software is freely granted, provided that
this notice is preserved.
"""

from collections.abc import Sequence

import numpy as np

from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working

# fmt: off
# |x| < 0.84375: erf(x) = x + x P(x^2) / Q(x^2)
NEAR = (
    (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
     -5.77027029648944159157e-03, -2.37630166566501626084e-05),
    (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04, -3.96022827877536812320e-06),
)
# |x| < 1.25: erf(x) = ERF_ONE + P(s) / Q(s), s = |x| - 1
ERF_ONE = 8.45062911510467529297e-01
MIDDLE = (
    (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
     3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
     -2.16637559486879084300e-03),
    (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
)
# |x| < 1/0.35, then |x| < 6: erf(x) = 1 - exp(-x^2 - 0.5625 + P(s) / Q(s)) / |x|, s = 1/x^2
FAR = (
    (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01,
     -6.23753324503260060396e+01, -1.62396669462573470355e+02, -1.84605092906711035994e+02,
     -8.12874355063065934246e+01, -9.81432934416914548592e+00),
    (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
     6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02,
     6.57024977031928170135e+00, -6.04244152148580987438e-02),
)
FARTHER = (
    (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01,
     -1.60636384855821916062e+02, -6.37566443368389627722e+02, -1.02509513161107724954e+03,
     -4.83519191608651397019e+02),
    (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
     3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02,
     -2.24409524465858183362e+01),
)
# fmt: on


@quiet
def erf(x: Array) -> Array:
    """Return the error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    x (...) -> (...)

    >>> erf(np.array([0.0, 1.0, -np.inf])).round(6)
    array([ 0.      ,  0.842701, -1.      ])
    """
    flat = cast(x, working(x)).ravel()
    size = np.abs(flat)
    y = np.where(np.isnan(flat), flat, np.copysign(1, flat)).astype(flat.dtype)
    near = np.flatnonzero(size < 0.84375)
    y[near] = flat[near] + flat[near] * _ratio(NEAR, np.square(flat[near]))
    middle = np.flatnonzero((size >= 0.84375) & (size < 1.25))
    y[middle] *= ERF_ONE + _ratio(MIDDLE, size[middle] - 1)
    for table, low, high in ((FAR, 1.25, 1 / 0.35), (FARTHER, 1 / 0.35, 6)):
        tail = np.flatnonzero((size >= low) & (size < high))
        square = np.square(size[tail])
        y[tail] *= 1 - np.exp(_ratio(table, 1 / square) - 0.5625 - square) / size[tail]
    return y.reshape(x.shape).astype(output_dtype(x), copy=False)


def _ratio(table: tuple[Sequence[float], Sequence[float]], z: Array) -> Array:
    above, below = table
    return _polynomial(above, z) / _polynomial(below, z)


def _polynomial(coefficients: Sequence[float], z: Array) -> Array:
    y = np.full_like(z, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        y *= z
        y += coefficient
    return y
