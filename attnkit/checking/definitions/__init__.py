"""The definitions of all stages by name, a file for each group of them.

attention  softmax and scaled dot-product attention
blocks     layers and whole models, composed of their parts
heads      multi-head self-attention with its weights
linear     the linear layer
networks   activations, and the feed-forward network, gated or not
norms      layer norm and RMS norm
positions  rotary and sinusoidal positions
texts      embeddings, masks, cross-entropy
"""

from attnkit.checking.definition import Definition
from attnkit.checking.definitions import attention, blocks, heads, linear, networks, norms, positions, texts

DEFINITIONS: dict[str, Definition] = {
    **attention.DEFINITIONS,
    **heads.DEFINITIONS,
    **linear.DEFINITIONS,
    **networks.DEFINITIONS,
    **norms.DEFINITIONS,
    **positions.DEFINITIONS,
    **texts.DEFINITIONS,
    **blocks.DEFINITIONS,
}
