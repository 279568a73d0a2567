"""All kinds of nodes, and the nodes of each operation of a plan."""

from collections.abc import Callable, Mapping

from attnkit.model.graph import attention, convolutions, embeddings, head, linear, networks, recurrence
from attnkit.model.graph.nodes import Built, Kind, Place

KINDS: Mapping[str, Kind] = {
    **embeddings.KINDS,
    **linear.KINDS,
    **attention.KINDS,
    **networks.KINDS,
    **head.KINDS,
    **convolutions.KINDS,
    **recurrence.KINDS,
}


def _build_attend(place: Place) -> Built:
    has_projections = place.core.config.score == "scaled-dot"
    return (attention.build_attention if has_projections else recurrence.build_attend)(place)


# operation of a step -> its nodes, the last of which is its result unless the step names another
BUILDERS: Mapping[str, Callable[[Place], Built]] = {
    "embed": embeddings.build_embeddings,
    "posenc": embeddings.build_positions,
    "layernorm": linear.build_norm,
    "linear": linear.build_linear,
    "attend": _build_attend,
    "ffn": networks.build_ffn,
    "conv": convolutions.build_convolution,
    "rnn": recurrence.build_recurrence,
}
