"""The vectors of whole texts and images in the debugger: names of modules, and slips of the token that is read."""

import pytest

from attnkit.debugger import slips
from attnkit.debugger.compare import Implementation
from attnkit.debugger.dumps import Dump, array_entry
from attnkit.debugger.graphs import debugged_graph
from attnkit.debugger.names import TensorSource, locate_sites
from attnkit.debugger.verdict import Judge
from attnkit.inputs import layers
from attnkit.model.graph.nodes import Inputs
from tests.places import arrays
from tests.registry import open_model


def test_names_of_the_head_with_a_probe():
    """What the module of torch returns beside the result is the mean of the weights over the heads."""
    head = "vision_model.head"
    names = [f"{head}.input", f"{head}.attention.output.0", f"{head}.attention.output.1", f"{head}.layernorm.output",
             f"{head}.mlp.fc1.output", f"{head}.output"]  # fmt: skip
    located = locate_sites(names, open_model("siglip:vision"))
    assert {site: source.name for site, source in located.sources.items()} == {
        "encoder.norm": names[0], "vector.cross.output": names[1], "vector.norm": names[3],
        "vector.ffn.hidden": names[4], "vector": names[5],
    }  # fmt: skip
    assert [*located.unknown] == [names[2]]


@pytest.mark.parametrize(
    ("name", "count"), [("clip:text", 3), ("clip-old:text", 3), ("siglip:text", 3), ("clip:vision", 2)]
)
def test_every_slip_of_the_state_of_a_vector_is_named(name, count):
    place, _, tower = name.partition(":")
    core = layers.complete_model(open_model(name))
    frozen = {key: arrays("vision")[f"{place}/{key}"] for key in ("ids", "pixels")}
    is_text = tower == "text"
    inputs = Inputs(ids=frozen["ids"] if is_text else None, image=None if is_text else frozen["pixels"])
    graph, memo = debugged_graph(core, inputs), {}
    wanted = graph.evaluate("vector.state", graph.roots, memo=memo)
    stage = graph.nodes["vector.state"]
    changes = dict(slips.slips_of(stage).changes(graph, stage))
    assert len(changes) == count
    for words, changed in changes.items():
        known = {one: memo[one] for one in {*stage.inputs, *changed.inputs}}
        mine = graph.apply(changed, [known[one] for one in changed.inputs])
        dump = Dump("mine", {one: array_entry(array) for one, array in {**known, "vector.state": mine}.items()}, True)
        own = Implementation(dump, {one: TensorSource(one) for one in dump}, graph)
        row = Judge(graph, own).judge("vector.state", wanted, True)
        assert row.verdict == "named" and words in {cause.name for cause in row.causes}, (words, row)
