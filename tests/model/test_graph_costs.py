"""What nodes cost, by hand; and the graph of a model, of the shapes of its parameters, costs what its plan does."""

import itertools
import math
import tracemalloc

import pytest

from attnkit.interpret import cost
from attnkit.interpret.cost import as_core, count_nodes, make_inputs, recurrent_order
from attnkit.model import Config, RecurrentConfig
from attnkit.model.attention import MANY
from attnkit.model.config import AttentionRules
from attnkit.model.formulas.experts import ExpertConfig
from attnkit.model.graph.costs import ModelShapes, Passes, has_tiles, tiled_pairs
from attnkit.model.graph.kinds import KINDS
from attnkit.model.graph.nodes import Node, no_cost
from attnkit.model.passes.model_graph import model_graph
from tests.registry import REGISTRY, open_model

WEIGHTS = {"w": (4, 5), "b": (5,), "gamma": (5,), "beta": (5,), "table": (7, 5), "sinks": (2,), "g": (3,),
           "probe": (5,)}  # fmt: skip
SHAPES = {"layer": WEIGHTS, "a.ffn": {"router": (4, 3), "correction": (3,)}}
SHAPES |= {f"a.expert.{at}": {"w1": (4, 6), "w3": (4, 6), "w2": (6, 4)} for at in range(3)}
SHAPES["additive"] = {"va": (5,)}
SHAPES["r"] = {"input": (8, 3), "input_bias": (8,), "hidden": (8, 1), "hidden_bias": (8,), "projection": (1, 2)}
SHAPES["both"] = {"input": (2, 3), "hidden": (2, 2), "input_reverse": (2, 3), "hidden_reverse": (2, 2)}
OWNED = {layer: frozenset(names) for layer, names in SHAPES.items()}
MODEL = ModelShapes(Config("", 5), SHAPES, OWNED)
ONE, TWO = (
    Passes(2, 3, source=7),
    Passes(2, 4, count=2, past=3),
)  # two texts: three tokens at once; after three, two and two
CAUSAL = {"rules": AttentionRules("decoder", 2, 1, 4, None, 0.5, causal=True)}
GROUPED = {"rules": AttentionRules("decoder", 4, 2, 5, None, 0.5)}
CROSS = {"rules": AttentionRules("decoder", 4, 2, 5, None, 0.5, is_cross=True)}
ALIBI = {"rules": AttentionRules("decoder", 2, 1, 4, None, 0.5, relative="alibi")}
HEADS = {"q": (2, 2, 3, 4), "k": (2, 1, 3, 4), "v": (2, 1, 3, 4), "square": (2, 2, 3, 3)}
HEADS |= {"q4": (2, 4, 3, 5), "k2": (2, 2, 3, 5), "source": (2, 2, 7, 5)}
MIXTURE = ExpertConfig(3, 2, 6)


def node(operation, shape, *inputs, **options):
    return Node("site", operation, inputs or ("x",), shape, "layer", options)


@pytest.mark.parametrize(
    ("one", "expected"),  # products, elementwise, read, written, parameters
    [
        (node("linear", (2, 3, 5), names=("w", "b")), (240, 30, 24 + 25, 30, 25)),
        (node("linear", (2, 3, 5), names=("w", "")), (240, 0, 24 + 20, 30, 20)),
        (node("linear", (2, 3, 5), names=("gamma", "")), (0, 30, 30 + 5, 30, 5)),  # a factor of each feature
        (node("linear", (2, 3, 5), names=("absent", "")), None),  # the identity
        (node("norm", (2, 3, 5), kind="layer", names=("gamma", "beta")), (0, 7 * 30, 30 + 10, 30, 10)),
        (node("norm", (2, 3, 5), kind="rms", names=("gamma", "beta2")), (0, 4 * 30, 30 + 5, 30, 5)),
        (node("words", (2, 3, 5)), (0, 0, 30, 30, 35)),
        (node("add", (2, 3, 5), "x", "y"), (0, 30, 60, 30, 0)),
        (node("add", (2, 3, 5), "x", "y", factor=0.5), (0, 60, 60, 30, 0)),
        (node("activate", (2, 3, 5)), (0, 30, 30, 30, 0)),
        (node("scores", HEADS["square"], "q", "k", **CAUSAL), (2 * 36 * 4, 0, 48 + 24, 36, 0)),
        (node("softmax", HEADS["square"], **CAUSAL), (0, 4 * 36 + 2 * 12, 36, 36, 2)),
        (node("mix", HEADS["q"], "weights", "v", **CAUSAL), (2 * 36 * 4, 0, 36 + 24, 48, 0)),
        (node("scores", (2, 4, 3, 3), "q4", "k2", **GROUPED), (2 * 72 * 5, 0, 120 + 60, 72, 0)),
        (
            node("scores", (2, 4, 3, 3), "q4", "k2", score="additive", **GROUPED)._replace(layer="additive"),
            (720, 2 * 72 * 5, 180, 72, 5),
        ),
        (node("scores", (2, 4, 3, 7), "q4", "source", **CROSS), (2 * 168 * 5, 0, 120 + 140, 168, 0)),
        (node("mix", HEADS["q4"], "weights", "k2", **GROUPED), (2 * 72 * 5, 0, 72 + 60, 120, 0)),
        (node("mix", HEADS["q4"], "weights", "source", **CROSS), (2 * 168 * 5, 0, 168 + 140, 120, 0)),
        (node("mask", HEADS["square"], **ALIBI), (0, 36, 36, 36, 0)),
        (node("mask", HEADS["square"], **CAUSAL), (0, 0, 36, 36, 0)),
        (node("heads", HEADS["q"], width=2, times=2, clip=3.0), (0, 3 * 12 * 2 * 2 + 48, 0, 0, 0)),
        (node("norm of heads", HEADS["q"], names=("gamma", "absent")), (0, 5 * 48, 48, 48, 5)),
        (node("choose", (2, 3, 2))._replace(layer="a.ffn"), (0, 12, 3, 0, 3)),  # whose scores have a correction
        (node("choose", (2, 3, 2)), None),
        (node("gates", (2, 3, 2)), (0, 3 * 12, 0, 0, 0)),
        (node("add shared", (2, 3, 4), "x", "y", "gate"), (0, 6 * (1 + 4), 0, 0, 0)),
        (node("add shared", (2, 3, 4), "x", "y"), None),
        (node("tokens", (2, 3, 5), names=("gamma", "beta")), (0, 0, 10, 30, 10)),
        (node("rows", (3, 5)), (0, 0, 0, 0, 80)),
        (node("probe", (2, 1, 5)), (0, 0, 0, 0, 5)),
        (node("logits", (2, 3, 5), names=("w", "b")), (240, 30, 49, 30, 25)),
        (node("logits", (2, 3, 5), names=("w", "b"), softcap=3.0, factor=2.0), (240, 5 * 30, 49, 30, 25)),
        (node("pooler", (2, 5)), (2 * 2 * 20, 2 * 10, 8 + 25, 10, 25)),
        (node("convolve", (2, 3, 5), names=("w", "b")), (240, 30, 24 + 25, 30, 28)),
        (node("spectrogram", (2, 3, 6), "sound", window=4), (2 * 36 * 3, 6 * (4 + 20 + 9) + 4 * 36, 80 + 18, 36, 0)),
    ],
)
def test_the_cost_of_a_node_by_hand(one, expected):
    rows = count_nodes([one], MODEL, ONE, HEADS | {"sound": (2, 40)})
    found = [(row.flops, row.elementwise, row.read, row.written, row.parameters) for row in rows]
    assert found == [expected] * (expected is not None)


def test_each_pass_reads_the_parameters_and_the_keys_so_far():
    """Two passes of two tokens after three: queries have 4, 5, 6 and 7 keys."""
    linear, scores = node("linear", (2, 4, 5), names=("w", "b")), node("scores", (2, 2, 4, 4), "q", "k", **CAUSAL)
    shapes = {"q": (2, 2, 4, 4), "k": (2, 1, 4, 4)}
    [row] = count_nodes([linear], MODEL, TWO)
    assert (row.flops, row.read, row.shape) == (2 * 8 * 20, 32 + 2 * 25, (2, 5))
    [row] = count_nodes([scores], MODEL, TWO, shapes)
    pairs = 2 * 2 * (4 + 5 + 6 + 7)  # texts, heads
    assert (row.flops, row.read, row.shape) == (2 * pairs * 4, 64 + pairs // 2 * 4, (2, 2, 7))


def test_by_hand_the_cost_of_a_recurrent_layer():
    """Six tokens: an LSTM of 2 with a projection to 1, and a cell of 2 in both directions."""
    [product, state, projected] = count_nodes([Node("r.hidden", "loop", ("x",), (2, 3, 1), "r")], MODEL, ONE)
    assert product == cost.Cost("r.product", (3, 8), 2 * 6 * 24, 6 * 8, 6 * 3 + 32, 6 * 8, parameters=32)
    assert state == cost.Cost("r.state", (3, 1), 2 * 6 * 8, 6 * (3 * 8 + 4), 6 * 1 + 3 * 16, 6, parameters=16)
    assert projected == cost.Cost("r.projected", (3, 1), 2 * 6 * 2, 0, 6 * 2 + 3 * 2, 6, parameters=2)
    [product, state] = count_nodes([Node("both.hidden", "loop", ("x",), (2, 3, 4), "both")], MODEL, ONE)
    assert product == cost.Cost("both.product", (3, 4), 2 * 6 * 12, 6 * 4, 2 * 6 * 3 + 12, 6 * 4, parameters=12)
    assert state == cost.Cost("both.state", (3, 4), 2 * 6 * 8, 6 * (3 * 4 + 4 * 4), 2 * 6 * 2 + 3 * 8, 24, parameters=8)


def aligned(name, passes):
    """The rows of attention to the memory in a recurrent decoder, by name."""
    rows = count_nodes([Node("decoder.cross", "alignment", ("x", "y"), (2, 3, 5), "decoder.cross")], name, passes)
    return {row.name.removeprefix("decoder.cross."): row[1:] for row in rows}


def test_by_hand_the_cost_of_attention_to_the_memory():
    """Two texts of three tokens, a memory of seven tokens of 10 numbers, states of 5; scores by tanh of sums of 6."""
    additive = cost.count_model(open_model("recurrent/bahdanau"))
    shapes = additive.shapes["decoder.cross"]
    assert (shapes["ua"], shapes["wa"], math.prod(shapes["va"])) == ((10, 6), (5, 6), 6)
    rows = aligned(additive, Passes(2, 3, source=7))
    assert rows == {
        "k": ((7, 6), 2 * 14 * 60, 0, 14 * 10 + 60, 14 * 6, 0, 60, -1),
        "q": ((3, 6), 2 * 6 * 30, 0, 6 * 5 + 3 * 30, 6 * 6, 0, 30, -1),
        "scores": ((1, 3, 7), 2 * 42 * 6, 2 * 6 * 42, 6 * 6 + 42 * 6, 42, 0, 6, -1),
        "weights": ((1, 3, 7), 0, 4 * 42, 42, 42, 0, 0, -1),
        "heads": ((1, 3, 10), 2 * 42 * 10, 0, 42 + 42 * 10, 6 * 10, 0, 0, -1),
    }
    continued = aligned(additive, Passes(2, 3, count=3, source=7, has_memory=True))
    assert "k" not in continued and continued["scores"] == ((1, 1, 7), *rows["scores"][1:])
    dot = aligned(cost.count_model(open_model("recurrent/luong-dot")), Passes(2, 3, source=7))
    assert [*dot] == ["scores", "weights", "heads"]  # the keys of each text are read once
    assert dot["scores"] == ((1, 3, 7), 2 * 42 * 5, 0, 6 * 5 + 14 * 5, 42, 0, 0, -1)
    assert dot["heads"] == ((1, 3, 5), 2 * 42 * 5, 0, 42 + 14 * 5, 6 * 5, 0, 0, -1)


@pytest.mark.parametrize("tokens", [1, 4, 6])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("window", [-1, 0, 2, 5, 40])
def test_a_token_that_is_generated_attends_to_its_window(tokens, past, window):
    rules = AttentionRules("decoder", 2, 1, 4, None, 0.5, causal=True, window=(window, 0))
    reached = [place + 1 if window < 0 else min(place + 1, window + 1) for place in range(past, past + tokens)]
    one_by_one = Passes(2, tokens, count=tokens, past=past, is_incremental=True)
    assert one_by_one.pairs(rules) == 2 * sum(reached)
    assert Passes(2, tokens, past=past).pairs(rules) == 2 * tokens * (past + tokens)
    assert Passes(2, tokens, past=past, scores=5).pairs(rules) == 5


def test_texts_of_a_padded_batch_attend_one_by_one():
    """Of five tokens two and five are real: 2 · 2 and 5 · 5 pairs, and 3 · 2 of queries of padding."""
    rules = AttentionRules("decoder", 2, 1, 4, None, 0.5)
    assert Passes(2, 5, lengths=(2, 5)).pairs(rules) == 4 + 6 + 25


@pytest.mark.parametrize(("past", "window", "causal", "pairs"), [
    (100, (-1, -1), True, 256 * (100 + 256) + 256 * (100 + 512)),
    (100, (-1, -1), False, 512 * 612),
    (0, (10, 0), True, 256 * 256 + 256 * (512 - 246)),
    (0, (10, 20), False, 256 * 276 + 256 * (512 - 246)),
])  # fmt: skip
def test_tiles_of_256_queries_have_the_keys_that_one_of_them_reaches(past, window, causal, pairs):
    rules = AttentionRules("decoder", 8, 1, 4, None, 0.5, causal=causal, window=window)
    assert tiled_pairs(512, past, past + 512, window, causal) == pairs
    assert Passes(1, 512, past=past).pairs(rules) == pairs
    assert Passes(1, 512, past=past, is_dense=True).pairs(rules) == 512 * (past + 512)


def test_a_query_and_few_scores_are_in_no_tiles():
    assert has_tiles(2, 2, MANY // 4) and not has_tiles(1, 1, MANY)
    assert not has_tiles(2, 2, MANY // 4 - 1)


def test_what_is_computed_in_place_adds_its_flops_and_parameters_to_the_row_before():
    nodes = [
        Node("q_projected", "linear", ("x",), (2, 3, 5), "layer", {"names": ("w", "b")}),
        Node("q_normed", "norm of heads", ("q_projected",), (2, 1, 3, 5), "layer", {"names": ("gamma", "")}),
        Node("q", "heads", ("q_normed",), (2, 1, 3, 5), "", {"width": 4, "times": 1}),
        Node("joined", "join", ("q",), (2, 3, 5)),
    ]
    [row] = count_nodes(nodes, MODEL, ONE)
    assert row == cost.Cost("q", (3, 5), 240, 30 + 5 * 30 + 3 * 6 * 4, 49, 30, parameters=30)


def test_experts_are_read_once_each_and_cost_what_their_tokens_do():
    options = {"mixture": MIXTURE}
    nodes = [
        Node("a.ffn.router", "linear", ("x",), (2, 3, 3), "a.ffn", {"names": ("router", "router_bias")}),
        Node("a.ffn.chosen", "choose", ("a.ffn.router",), (2, 3, 2), "a.ffn", options),
        Node("a.ffn.gates", "gates", ("a.ffn.router", "a.ffn.chosen"), (2, 3, 2), "a.ffn", options),
        Node("a.ffn.output", "experts", ("x", "a.ffn.gates", "a.ffn.chosen"), (2, 3, 4), "a.ffn", options),
    ]
    router, hidden, linear, output = count_nodes(nodes, MODEL, ONE)
    assert router == cost.Cost("a.ffn.router", (3, 3), 2 * 6 * 12, (3 + 1) * 18, 24 + 12 + 3, 18, parameters=15)
    assert hidden == cost.Cost("a.expert.hidden", (6, 6), 2 * 12 * 24, 72, 48 + 3 * 24, 72, parameters=72)
    assert linear == hidden._replace(name="a.expert.linear")
    assert output == cost.Cost("a.expert.output", (6, 4), 2 * 12 * 24, 2 * 48, 72 + 3 * 24, 48, parameters=72)


def test_every_kind_that_computes_has_a_cost():
    views = {"join", "one row", "pool", "state", "samples", "concat", "previous state", "last state", "real tokens"}
    views |= {"reshape", "given gate", "gate by heads", "fixed decay"}  # of linear attention
    views |= {"last window", "final state"}
    in_loops = {"gate", "cell state", "hidden state"}  # whose products are those of their loop
    assert {name for name, kind in KINDS.items() if kind.cost is no_cost} == views | in_loops


@pytest.mark.parametrize("name", [*REGISTRY])
def test_the_graph_of_a_model_costs_what_its_plan_does(name):
    model = cost.count_model(open_model(name))
    config = model.config
    if not (config.patches or config.sound or config.stack(config.stacks[0]).vocab):
        pytest.skip("no graph: it reads states, not text")
    tokens = cost.default_tokens(config)
    source = cost.source_tokens(config, tokens) or tokens
    passes = Passes(1, tokens, source=source, heads=tokens)
    stacks = {"encoder": Passes(1, source), "vector": Passes(1, 1, source=tokens)}
    nodes = model_graph(as_core(model), make_inputs(model, passes)).nodes.values()
    rows = {}
    for stack, some in itertools.groupby(nodes, lambda one: one.site.partition(".")[0]):
        if isinstance(config, RecurrentConfig) and stack in config.stacks:
            some = recurrent_order(some)
        rows |= {row.name: row.flops for row in count_nodes(some, model, stacks.get(stack, passes)) if row.flops}
    planned = {row.name: row.flops for row in cost.count_forward(model, tokens) if row.flops}
    assert {name: rows[name] for name in rows if name in planned or name != "pooler"} == planned


@pytest.mark.parametrize("name", ["llama", "whisper", "deberta-v2", "vit"])
def test_a_million_tokens_need_no_memory(name):
    model = cost.count_model(open_model(name))
    passes = Passes(3, 1 << 20, source=1 << 20, heads=1 << 20)
    tracemalloc.start()
    nodes = model_graph(as_core(model), make_inputs(model, passes)).nodes
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert nodes and held < 1 << 20
