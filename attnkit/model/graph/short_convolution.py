"""The nodes of a short convolution: two gates, and a convolution between them.

It is what mixes the tokens in most layers of LFM2.

gate_in, gate_out, values   (B, T, D): x Wb, x Wc, x Wx, the thirds of the published projection in their order
admitted     gate_in · values, which the convolution reads; the last K − 1 of a text are its state
convolved    each feature of the last K tokens by its own taps, without an activation
released     gate_out · convolved
output       released Wo

The node of a convolution with a state has the options `names` of its taps and bias, `state`, what it begins with, and
`real`, (B, T) the tokens that are no padding: see `graph.steps`.
"""

from attnkit.model.dtypes import Array
from attnkit.model.formulas.causal_convolution import causal_convolution, causal_convolution_backward, last_window
from attnkit.model.graph.costs import Costs, Sizes
from attnkit.model.graph.nodes import LAST, Built, Kind, Node, Place, Scope


def _convolve(scope: Scope, x: Array) -> Array:
    taps, bias = map(scope.parameter, scope.option("names"))
    assert taps is not None
    return causal_convolution(x, taps, bias, scope.option("state"), scope.option("real"), scope.xp)


def _undo_convolve(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    names = scope.option("names")
    taps, bias = map(scope.parameter, names)
    assert taps is not None
    dx, dtaps, dbias = causal_convolution_backward(dy, x, taps, scope.option("state"), scope.option("real"))
    scope.add(scope.node.layer, {names[0]: dtaps, names[1]: None if bias is None else dbias})
    return [dx]


def _count_convolve(sizes: Sizes) -> Costs:
    """K products and sums of each number, and the window before each pass.

    They are no product of matrices.
    """
    taps, bias = sizes.option("names")
    count, width = sizes.model.shapes[sizes.node.layer][taps]
    cost = sizes.elementwise(2 * count - 1 + len(sizes.found(bias)), taps, bias)
    return [cost._replace(read=cost.read + sizes.passes.texts * sizes.passes.count * (count - 1) * width)]


def _last_window(scope: Scope, x: Array) -> Array:
    return last_window(x, scope.node.shape[1], scope.option("state"), scope.option("real"), scope.xp)


KINDS = {
    "causal convolution": Kind(value=_convolve, pullback=_undo_convolve, cost=_count_convolve),
    "last window": Kind(value=_last_window),
}


def build_short_convolution(place: Place) -> Built:
    layer, x, shape = place.step.layer, place.x, place.states(place.core.config.width)

    def site(name: str) -> str:
        return f"{layer}.{name}"

    for name, letter in (("gate_in", "b"), ("gate_out", "c"), ("values", "x")):
        yield Node(site(name), "linear", (x,), shape, layer, {"names": (f"w{letter}", f"b{letter}")})
    yield Node(site("admitted"), "multiply", (site("gate_in"), site("values")), shape)
    begin = {"state": None, "part": "window", "real": place.real()}
    taps = {"names": ("w", "b")} | begin
    yield Node(site("convolved"), "causal convolution", (site("admitted"),), shape, layer, taps)
    yield Node(site("released"), "multiply", (site("gate_out"), site("convolved")), shape)
    window = (place.batch, place.core.config.taps - 1, shape[-1])
    yield Node(site(f"{LAST}window"), "last window", (site("admitted"),), window, layer, begin)
    yield Node(site("output"), "linear", (site("released"),), shape, layer, {"names": ("wo", "bo")})
