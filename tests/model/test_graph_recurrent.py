"""The graph of a recurrent model: padding in front of its texts, last states, and gates of given states.

That it computes what every pass computes is the law of test_graph.py.
"""

from dataclasses import replace

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
from attnkit.model.graph.nodes import Inputs
from attnkit.model.passes.model_graph import model_graph
from tests.model.test_graph import assert_same, evaluate, run_whole
from tests.places import folder
from tests.registry import RECURRENT, load_core, make_batch


@pytest.mark.parametrize("name", RECURRENT)
def test_padding_in_front_of_texts_is_read_by_no_direction(name):
    core = load_core(f"recurrent/{name}")
    batch = make_batch(core.config)
    other = {
        side: getattr(batch, side)[:, ::-1] for side in ("mask", "target_mask") if getattr(batch, side) is not None
    }
    batch = replace(batch, **other)
    sites = evaluate(core, batch)
    for site, array in run_whole(core, batch).items():
        assert_same(sites[site], array, site)


@pytest.mark.parametrize("name", ["bahdanau", "bahdanau-state", "luong", "sutskever", "tanh-bridge-lstm"])
def test_the_last_states_are_those_that_the_encoder_ends_with(name):
    core = load_core(f"recurrent/{name}")
    batch = make_batch(core.config)
    sites, context = evaluate(core, batch), model.Context(dtype="float64", mask=batch.mask[:, None, :])
    model.run(core, core.config.plan("encoder"), batch.ids, context)
    for layer, state in context.final_states.items():
        for part, array in zip(("state", "cell"), state, strict=True):
            if array is not None:
                assert_same(sites[f"{layer}.last_{part}"], array, f"{layer}.last_{part}")


def test_a_gate_follows_from_the_states_that_are_given_for_it():
    """σ(W x + b + U h + c) of an input gate, with h of a dump in place of what the graph computes."""
    core = layers.complete_model(open_checkpoint(folder("lstm")))
    graph = model_graph(core, Inputs(ids=np.array([[3, 4, 5]])))
    x, h = np.ones((1, 3, 4)), np.arange(18.0).reshape(1, 3, 6) / 10
    known = {"decoder.embed": x, "decoder.0.rnn.state": h}
    gate = graph.evaluate("decoder.0.rnn.input_gate", known)
    params = core.params["decoder.0.rnn"]
    before = np.stack([np.zeros(6), h[0, 0], h[0, 1]])
    sums = x[0] @ params["input"][:6].T + before @ params["hidden"][:6].T
    sums += params["input_bias"][:6] + params["hidden_bias"][:6]
    np.testing.assert_allclose(gate[0], 1 / (1 + np.exp(-sums)), rtol=0, atol=1e-12)
    cone = {node.site for node in graph.cone("decoder.0.rnn.input_gate", known)}
    assert cone == {"decoder.0.rnn.input_gate", "decoder.0.rnn.previous"}
