"""The graph of a model for the debugger: with slips, and with a picture.

The picture is the one that pixels are of.
"""

from dataclasses import replace

from attnkit.debugger import mistaken_kinds, pictures, sounds
from attnkit.debugger.pictures import PictureInput, pixel_node
from attnkit.model.context import Model
from attnkit.model.graph.graph import Graph
from attnkit.model.graph.models import model_graph
from attnkit.model.graph.nodes import Inputs


def debugged_graph(core: Model, inputs: Inputs, picture: PictureInput | None = None) -> Graph:
    """The graph of a model, in which every slip has a value.

    picture  that the pixels of the inputs are made of; None: they are given
    """
    graph = model_graph(core, inputs)
    before = {} if picture is None else {"pixels": pixel_node(picture)}
    kinds = {**graph.kinds, **mistaken_kinds.KINDS, **pictures.KINDS, **sounds.KINDS}
    return replace(graph, nodes={**before, **graph.nodes}, kinds=kinds)
