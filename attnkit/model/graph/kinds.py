"""All kinds of nodes."""

from collections.abc import Mapping

from attnkit.model.graph import attention, convolutions, embeddings, head, linear, networks, recurrence
from attnkit.model.graph.nodes import Kind

KINDS: Mapping[str, Kind] = {
    **embeddings.KINDS,
    **linear.KINDS,
    **attention.KINDS,
    **networks.KINDS,
    **head.KINDS,
    **convolutions.KINDS,
    **recurrence.KINDS,
}
