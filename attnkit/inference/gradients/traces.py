"""The gradients of the intermediates of a model's run, as a trace names and describes the intermediates."""

from collections.abc import Mapping

from attnkit.inference.tracer import Tracer
from attnkit.model import Array
from attnkit.record import Labels, Tensor


def describe_trace(
    collected: Mapping[str, Array], tokens: Labels | None, source: Labels | None = None
) -> dict[str, Tensor]:
    """Return the gradients of intermediates, from the last to the first, in the order, axes and labels of a trace."""
    tracer = Tracer({"--trace-only": ("*",)})
    tracer.saved = {name: collected[name] for name in order_forward(list(collected))}
    traced = tracer.record(tokens, source)
    return {name: traced.tensor(name) for name in traced}


def order_forward(names: list[str]) -> list[str]:
    """Return the names of intermediates in the order of a forward pass, from that in which gradients are computed.

    >>> order_forward(["decoder.0.self.heads", "decoder.0.self.q", "decoder.0.self.k", "decoder.0.self.v"])
    ['decoder.0.self.q', 'decoder.0.self.k', 'decoder.0.self.v', 'decoder.0.self.heads']
    """
    ordered = names[::-1]
    for at in range(len(ordered) - 2):
        three = ordered[at : at + 3]
        if [name.rpartition(".")[2] for name in three] == ["v", "k", "q"]:
            ordered[at : at + 3] = three[::-1]
    return ordered
