"""Recurrent models: dumps of torch are read by their names, and each slip of gates, states and attention is named.

The dumps are those of tests/references/make_recurrent_slips.py: torch.nn.LSTM and GRU over packed sequences, and
decoders that call their modules once for each token.
"""

import functools

import numpy as np
import pytest

from attnkit.debugger.compare import Implementation, Request, compare_with_model
from attnkit.debugger.dumps import open_dump
from attnkit.debugger.graphs import debugged_graph
from attnkit.debugger.names import locate_sites
from attnkit.debugger.slips import find_slips
from attnkit.debugger.token_calls import gather_tokens
from attnkit.debugger.verdict import Judge
from attnkit.errors import DataError
from attnkit.inputs import layers
from tests.model.test_graph import as_inputs
from tests.places import REFERENCES
from tests.registry import RECURRENT, make_batch, open_model

SLIPS = REFERENCES / "recurrent_slips"

EXCHANGED_INPUT = {"decoder.0.rnn.input has its parts in the order the context, the embedding"}
ZEROS = {"the decoder begins with zeros, not with the last state of the encoder"}
SCALED = {"the scale of the scores is 1/√K", "the scale of the scores is 1/√D of the whole width"}
# dump -> the first site that differs, and the causes
NAMED = {
    "bahdanau-state-bridge-without-tanh": (
        "decoder.0.rnn.state", {"the activation is missing (expected tanh, in the bridge)"}),
    "bahdanau-state-context-first": ("decoder.0.rnn.state", EXCHANGED_INPUT),
    "bahdanau-state-gates-z-r-n": (
        "encoder.0.rnn.last_state", {"the reset gate and the update gate are exchanged"}),
    "bahdanau-state-memory-not-masked": ("decoder.0.rnn.state", {"the padding mask is missing"}),
    "bahdanau-state-no-bridge": ("decoder.0.rnn.state", ZEROS),
    "bahdanau-state-padding-read": ("encoder.0.rnn.last_state", {"padding is read as tokens"}),
    "bahdanau-state-scaled-scores": ("decoder.0.rnn.state", SCALED),
    "bahdanau-state-score-without-tanh": ("decoder.0.rnn.state", {"the tanh of the additive score is missing"}),
    "general-before-context-first": ("decoder.0.rnn.state", EXCHANGED_INPUT),
    "general-before-no-bridge": ("decoder.0.rnn.state", ZEROS),
    "general-bridge-without-tanh": ("decoder.0.bridge", {"the activation is missing (expected tanh, in the bridge)"}),
    "general-gates-z-r-n": ("encoder.0.rnn.state", {"the reset gate and the update gate are exchanged"}),
    "lstm-bias-of-the-state-twice": ("decoder.0.rnn.state", {"the bias of the state's product is added twice"}),
    "lstm-cell-for-hidden": ("decoder.0.rnn.state", {"the cell state is taken for the hidden state"}),
    "lstm-forget-bias-1": ("decoder.0.rnn.state", {"1 is added to the sum of the forget gate"}),
    "lstm-gates-i-f-o-g": ("decoder.0.rnn.state", {"the candidate and the output gate are exchanged"}),
    "lstm-gates-of-ONNX": ("decoder.0.rnn.state", {"the gates are in the order i o f g of ONNX, not i f g o"}),
    "lstm-no-bias-of-the-state": ("decoder.0.rnn.state", {"the bias of the state's product is missing"}),
    "lstm-not-carried": (
        "decoder.0.rnn.state", {"the state is not carried: every token begins with the first one"}),
    "lstm-not-reset": (
        "decoder.0.rnn.state",
        {"the state is not reset between texts: each begins with the last one of the text before"},
    ),
    "luong-asked-before": (
        "decoder.0.rnn.state",
        {"attention asks with the state before the token, not with the one after it"},
    ),
    "luong-dot-memory-not-masked": (
        "decoder.cross.weights", {"the padding mask is missing", "blocked scores are 0 instead of −∞"}),
    "luong-dot-scaled-scores": ("decoder.cross.weights", SCALED),
    "luong-gates-i-f-o-g": ("encoder.0.rnn.last_state", {"the candidate and the output gate are exchanged"}),
    "luong-hidden-and-cell-exchanged": (
        "decoder.0.rnn.state", {"hidden and cell state are exchanged where the decoder begins"}),
    "luong-no-bridge": ("decoder.0.rnn.state", ZEROS),
    "luong-no-input-feeding": (
        "decoder.0.rnn.state", {"the readout is not fed to the next token (no input feeding)"}),
    "luong-readout-without-tanh": (
        "decoder.0.rnn.state", {"the activation is missing (expected tanh, in the readout)"}),
    "luong-scaled-scores": ("decoder.0.rnn.state", SCALED),
}  # fmt: skip


@functools.cache
def checkpoint_of(name):
    return open_model(f"recurrent/{name}")


def judge(case, **request):
    name = max((one for one in RECURRENT if case.startswith(f"{one}-")), key=len)
    return compare_with_model(checkpoint_of(name), open_dump(str(SLIPS / f"{case}.npz")), Request(**request))


@pytest.mark.parametrize("case", NAMED)
def test_a_slip_that_torch_was_given_is_named(case):
    report, (site, causes) = judge(case, why=True), NAMED[case]
    row = next(row for row in report.rows if row.differs)
    assert (row.site, row.verdict, {cause.name for cause in row.causes}) == (site, "named", causes)
    assert max(cause.remaining for cause in row.causes) * 100 <= row.added


# dump -> some sites that its modules hold, beside those of embeddings, states and logits
READ = {
    "lstm": ["decoder.1.rnn.last_state", "decoder.1.rnn.last_cell", "decoder.2.rnn.state"],
    "bahdanau-state": [
        "encoder.0.rnn.last_state", "encoder.1.rnn.state", "decoder.1.bridge.hidden", "decoder.cross.k_projected",
        "decoder.cross.q_projected", "decoder.cross.scores", "decoder.cross.weights", "decoder.0.rnn.input",
        "decoder.0.rnn.state", "decoder.1.rnn.previous",
    ],
    "luong": [
        "encoder.0.rnn.last_cell", "encoder.1.rnn.state", "decoder.0.rnn.cell", "decoder.1.rnn.previous_cell",
        "decoder.cross.k_projected", "decoder.rnn.concat", "decoder.readout.hidden",
    ],
    "luong-dot": ["decoder.0.rnn.last_cell", "decoder.cross.weights", "decoder.cross.concat", "decoder.readout.output"],
    "general": ["decoder.0.bridge", "decoder.0.rnn.last_state", "decoder.cross.k_projected"],
    "general-before": ["decoder.0.rnn.previous", "decoder.0.rnn.input", "decoder.rnn"],
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_modules_of_torch_are_read_by_their_names_and_agree(name):
    report = judge(f"{name}-clean", why=True)
    assert report.same and not any(row.kind for row in report.rows)
    assert {row.site for row in report.rows} >= {*READ[name], "logits"}
    assert {*report.facts.unknown} <= {"input.1", "input.2"}  # arguments: the lengths, and the target


@functools.cache
def whole_pass(name):
    """The graph of a model for its batch, all that it computes, and its slips by name."""
    core = layers.complete_model(checkpoint_of(name))
    graph = debugged_graph(core, as_inputs(make_batch(core.config)))
    slips = {slip.name: slip for slip in find_slips(graph, [*graph.nodes.values()], "float32")}
    return graph, compute_all(graph, {}), slips


def compute_all(graph, changes):
    memo = {}
    for site in graph.nodes:
        graph.evaluate(site, graph.roots, changes, precision="float32", memo=memo)
    return memo


# model -> slips that no module of torch has an option for
INJECTED = {
    "bahdanau": [  # a GRU with its reset gate before the product, of both directions
        "the reset gate multiplies the product, not the state",
        "z and 1 − z are exchanged: h′ = z n + (1 − z) h",
        "the update gate has the activation tanh (expected sigmoid)",
        "the reverse direction begins in the padding",
        "the outputs of the reverse direction are not turned back",
        "the reverse direction reads the tokens in their order",
        "the reverse direction is before the forward one, side by side",
        "the parameters of both directions are exchanged",
        "the readout reads the state after the token, not the one before it",
        "decoder.0.rnn.input has zeros in place of the context",
    ],
    "general": [  # a GRU with its reset gate after the product
        "the reset gate multiplies the state, not its product",
        "the bias of the state's product is added outside of the reset",
        "sigmoid and tanh are exchanged in all gates",
    ],
    "luong": [
        "the forget gate is 1 − the input gate",
        "the output gate is not applied",
        "the cell state is not activated before the output gate",
        "the cell state is taken for the hidden state, which the next token reads",
        "the weight of the state is transposed",
        "the weight of the score is missing (dot instead of general)",
        "every layer begins with the last state of the last layer of the encoder",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, some in INJECTED.items() for words in some])
def test_a_slip_of_the_graph_is_named_from_what_it_changes(name, words):
    """The slip is made in the graph, and the first site judged whose tokens differ."""
    graph, right, slips = whole_pass(name)
    wrong = compute_all(graph, slips[words].changes)
    judge = Judge(graph, Known(graph, {site: array for site, array in wrong.items() if ".previous" not in site}))
    first = next(
        site
        for site in judge.mine
        if not np.allclose(judge.select(site, wrong[site]), judge.select(site, right[site]), atol=1e-4)
    )
    row = judge.judge(first, right[first], why=True)
    assert row.verdict == "named" and words in {cause.name for cause in row.causes}
    assert len(row.causes) <= 2


class Known(Implementation):
    """Arrays by site, as a dump of float32 has them."""

    def __init__(self, graph, arrays):
        dump = MemoryDump(arrays)
        super().__init__(dump, locate_sites([*dump], None, {site: site for site in arrays}).sources, graph)


class MemoryDump(dict):
    def __init__(self, arrays):
        super().__init__({site: array.astype(np.float32) for site, array in arrays.items()})

    def dtype(self, name):
        return "float32"

    def digits(self, name):
        return 0

    def shape(self, name):
        return self[name].shape


def test_calls_of_a_module_are_the_tokens_of_one_tensor(tmp_path):
    dump = {f"decoder.rnn{'#' * bool(t)}{t or ''}.output.0": np.full((2, 1, 3), t, np.float32) for t in range(4)}
    dump |= {f"decoder.embedding{'#' * bool(t)}{t or ''}.input": np.full((2, 1), t) for t in range(4)}
    dump["encoder.rnn.output.0"] = np.zeros((2, 5, 3))
    np.savez(tmp_path / "dump.npz", **dump)
    gathered = gather_tokens(open_dump(str(tmp_path / "dump.npz")))
    assert [*gathered] == ["decoder.rnn.output.0", "decoder.embedding.input", "encoder.rnn.output.0"]
    assert gathered.shape("decoder.rnn.output.0") == (4, 2, 1, 3)
    assert gathered["decoder.rnn.output.0"][:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert gathered["decoder.embedding.input"].tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_packed_sequence_is_a_padded_batch_with_its_lengths(tmp_path):
    """Texts of 1, 3 and 2 tokens, which torch sorts by length: the second, the third, the first."""
    data = np.array([[10.0], [20], [0], [11], [21], [12]])
    parts = [data, np.array([3, 2, 1]), np.array([1, 2, 0]), np.array([2, 0, 1])]
    np.savez(tmp_path / "dump.npz", **{f"rnn.output.0.{at}": part for at, part in enumerate(parts)})
    dump = gather_tokens(open_dump(str(tmp_path / "dump.npz")))
    assert dump["rnn.output.0"][..., 0].tolist() == [[0, 0, 0], [10, 11, 12], [20, 21, 0]]
    assert dump["rnn.output.0.lengths"].tolist() == [1, 3, 2]
    assert dump.shape("rnn.output.0") == (3, 3, 1) and dump.shape("rnn.output.0.lengths") == (3,)


@pytest.mark.parametrize(
    ("sizes", "is_packed"),
    [([1, 1, 1], True), ([3], True), ([2, 1], True), ([1, 2], False), ([2, 2], False), ([3, 0], False), ([], False)],
)
def test_sizes_of_a_packed_sequence_do_not_grow_and_add_up_to_its_rows(sizes, is_packed, tmp_path):
    np.savez(tmp_path / "dump.npz", **{"rnn.0": np.array([[1.0], [2], [3]]), "rnn.1": np.array(sizes, int)})
    dump = gather_tokens(open_dump(str(tmp_path / "dump.npz")))
    assert ("rnn" in dump) == is_packed and ("rnn.1" in dump) != is_packed
    if is_packed:
        assert dump["rnn"].shape == (sizes[0], len(sizes), 1)


def test_a_module_of_torch_that_reads_the_sequence_first_agrees(tmp_path):
    """The ids (T, B) too, which the shape of the last states tells from (B, T)."""
    arrays = dict(np.load(SLIPS / "lstm-clean.npz"))
    last = {name for name in arrays if name.endswith((".1.0", ".1.1"))}
    turned = {name: array if name in last else array.swapaxes(0, 1) for name, array in arrays.items()}
    assert turned["input"].shape[0] > turned["input"].shape[1]
    np.savez(tmp_path / "dump.npz", **turned)
    report = compare_with_model(checkpoint_of("lstm"), open_dump(str(tmp_path / "dump.npz")), Request(why=True))
    assert report.same and report.facts.found[0] == judge("lstm-clean").facts.found[0]


@pytest.mark.parametrize(
    ("lengths", "problem"),
    [([6, 9, 2], "9"), ([6, 4], "shape (2,)"), ([0, 4, 2], "a text of padding alone")],
)
def test_lengths_that_fit_no_text_are_one_error(lengths, problem, tmp_path):
    arrays = dict(np.load(SLIPS / "luong-dot-clean.npz"))
    np.savez(tmp_path / "dump.npz", **{
        name: array for name, array in arrays.items() if not name.startswith("encoder.rnn")
    } | {"lengths": np.array(lengths)})  # fmt: skip
    with pytest.raises(DataError, match=r"lengths") as error:
        compare_with_model(checkpoint_of("luong-dot"), open_dump(str(tmp_path / "dump.npz")), Request())
    assert problem in error.value.problem


def test_a_gate_is_judged_by_the_states_of_the_dump():
    graph, right, _ = whole_pass("luong")
    arrays = {site: array.astype(np.float32) for site, array in right.items()}
    gates = [site for site in arrays if site.startswith("encoder.1.rnn.") and graph.nodes[site].kind == "gate"]
    assert len(gates) == 4
    judge = Judge(graph, Known(graph, {**arrays, **{site: 1 - arrays[site] for site in gates}}))
    rows = {site: judge.judge(site, arrays[site], why=False) for site in [*gates, "encoder.1.rnn.state"]}
    assert [site for site, row in rows.items() if row.differs] == gates
    assert all(row.inherited < 1e-5 for row in rows.values())
