"""The definitions of all stages by name, a file for each group of them.

attention  softmax and scaled dot-product attention
linear     the linear layer
norms      layer norm and RMS norm
"""

from attnkit.checking.definition import Definition
from attnkit.checking.definitions import attention, linear, norms

DEFINITIONS: dict[str, Definition] = {
    **attention.DEFINITIONS,
    **linear.DEFINITIONS,
    **norms.DEFINITIONS,
}
