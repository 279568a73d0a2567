"""All kinds of nodes, and the nodes of each operation of a plan."""

from collections.abc import Callable, Mapping

from attnkit.model.graph import attention, convolutions, embeddings, head, linear, networks
from attnkit.model.graph.nodes import Built, Kind, Place

KINDS: Mapping[str, Kind] = {
    **embeddings.KINDS,
    **linear.KINDS,
    **attention.KINDS,
    **networks.KINDS,
    **head.KINDS,
    **convolutions.KINDS,
}

# operation of a step -> its nodes, the last of which is its result
BUILDERS: Mapping[str, Callable[[Place], Built]] = {
    "embed": embeddings.build_embeddings,
    "posenc": embeddings.build_positions,
    "layernorm": linear.build_norm,
    "linear": linear.build_linear,
    "attend": attention.build_attention,
    "ffn": networks.build_ffn,
    "conv": convolutions.build_convolution,
}
