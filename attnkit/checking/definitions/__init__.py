"""The definitions of all stages by name, a file for each group of them.

attention  softmax and scaled dot-product attention
batches    batches of a text at random places
blocks     layers and whole models, composed of their parts
checkpoints  model and optimizer, saved and loaded again
convolutions  convolution over one and two dimensions
formulas   formulas with other names of what they read
heads      multi-head self-attention with its weights
linear     the linear layer
networks   activations, and the feed-forward network, gated or not
norms      layer norm and RMS norm
optimizers  AdamW, gradient clipping, and a cosine schedule of the learning rate
positions  rotary and sinusoidal positions
recurrence RNN, GRU and LSTM
sounds     log-mel spectrograms
texts      embeddings, masks, cross-entropy
tokenizers  byte-pair encoding, learned and applied
"""

from attnkit.checking.definition import Definition
from attnkit.checking.definitions import (
    attention,
    batches,
    blocks,
    checkpoints,
    convolutions,
    heads,
    linear,
    networks,
    norms,
    optimizers,
    positions,
    recurrence,
    sounds,
    texts,
    tokenizers,
)

DEFINITIONS: dict[str, Definition] = {
    **attention.DEFINITIONS,
    **heads.DEFINITIONS,
    **linear.DEFINITIONS,
    **networks.DEFINITIONS,
    **norms.DEFINITIONS,
    **positions.DEFINITIONS,
    **texts.DEFINITIONS,
    **blocks.DEFINITIONS,
    **recurrence.DEFINITIONS,
    **convolutions.DEFINITIONS,
    **sounds.DEFINITIONS,
    **optimizers.DEFINITIONS,
    **batches.DEFINITIONS,
    **tokenizers.DEFINITIONS,
    **checkpoints.DEFINITIONS,
}
