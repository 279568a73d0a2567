"""The exponential that NumPy computes fastest on this processor."""

import math
from functools import cache

import numpy as np
from numpy.lib.introspect import opt_func_info


@cache
def fastest_exp() -> tuple[np.ufunc, float]:
    """exp2 if NumPy vectorizes it, else exp, and the factor on its argument.

    >>> exp, unit = fastest_exp()
    >>> float(exp(unit).round(4))
    2.7183
    """
    target = opt_func_info(func_name="^exp2$").get("exp2", {}).get("ff", {}).get("current", "baseline")
    return (np.exp, 1.0) if target.startswith("baseline") else (np.exp2, math.log2(math.e))
