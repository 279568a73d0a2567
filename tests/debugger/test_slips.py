"""What a slip changes in a stage, in numbers worked by hand; all slips of some models; numbers found from arrays."""

import functools
import re
from dataclasses import is_dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attnkit.debugger import state_slips
from attnkit.debugger.compare import make_picture
from attnkit.debugger.graphs import debugged_graph
from attnkit.debugger.slips import COUNTED, find_numbers, find_slips, other_widths
from attnkit.debugger.verdict import drop_same, nearest_value
from attnkit.model.graph.kinds import KINDS
from attnkit.model.graph.nodes import Inputs, Node, Scope
from attnkit.model.slips import Number, Slip
from tests.registry import load_core, make_batch, open_model

KNOWN = {**state_slips.KINDS, **KINDS}
BARE = SimpleNamespace(params={"": {}})  # a model without parameters


def compute(kind, *arrays, **options):
    """The result of a stage without parameters."""
    return KNOWN[kind].value(Scope(BARE, None, Node("x", kind, (), (), "", options), "float64"), *arrays)


@pytest.mark.parametrize(
    ("stored", "parts"),
    [
        ("flat", ([1, 4], [2, 5], [3, 6])),  # 1 2 3 4 5 6, read as heads of q k v
        ("grouped", ([1, 3], [5, 2], [4, 6])),  # 1 3 5 2 4 6, read as q q k k v v
    ],
)
def test_fused_queries_keys_and_values_are_cut_in_the_other_layout(stored, parts):
    q, k, v = (np.array([[one]], float) for one in ([1, 2], [3, 4], [5, 6]))
    for place, expected in enumerate(parts):
        heads = compute("heads", q, k, v, heads=2, groups=2, place=place, stored=stored)
        assert heads[0, :, 0, 0].tolist() == expected


@pytest.mark.parametrize(
    ("groups", "gates_first", "expected"),
    [
        (1, False, [0, 0.53388966, -0.29461055, 2.57297278]),
        (1, True, [0, 0.40381266, -0.22283157, 1.94609311]),
        (2, True, [0, 1.41420695, -0.16087907, 1.40503279]),
    ],
)
def test_a_norm_of_groups_and_its_gate_have_an_order(groups, gates_first, expected):
    x, gate = np.array([[[1.0, 2, 3, 4]]]), np.array([[[0.0, 1, -1, 2]]])
    options = {"groups": groups, "eps": 1e-5 if gates_first else 1e-6, "activation": "silu"}

    def norm(one):
        return compute("norm of groups", one, **options)

    def gated(one):
        return compute("gated", one, gate, **options)

    right, other = (norm(gated(x)), gated(norm(x))) if gates_first else (gated(norm(x)), norm(gated(x)))
    np.testing.assert_allclose(right.ravel(), expected, atol=2e-8)
    slip = compute("norm and gate" if gates_first else "gate and norm", x, gate, **options)
    np.testing.assert_allclose(slip, other)


def test_groups_of_query_heads_have_a_key_and_a_value_each():
    q, k, v = (np.array([[one]], float) for one in ([1, 2, 3, 4], [5, 6], [7, 8]))
    cut = [
        compute("heads", q, k, v, heads=count, groups=2, place=place, stored="flat")[0, :, 0, 0].tolist()
        for place, count in enumerate((4, 2, 2))
    ]
    assert cut == [[1, 2, 5, 6], [3, 7], [4, 8]]  # 1 2 3 4 | 5 6 7 8


ROTATED = {"heads": 1, "times": 1, "rope": {"rope_theta": 4.0}, "where": np.array([1])}


def test_pairs_across_the_head_are_half_of_it_apart():
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    turned = compute("heads", x, width=2, distant=True, **ROTATED)[0, 0, 0]
    cos, sin = np.cos(1), np.sin(1)
    assert turned == pytest.approx([cos - 3 * sin, 2, sin + 3 * cos, 4])


def test_frequencies_of_the_whole_head_have_its_width_in_their_exponent():
    x = np.array([[[0.0, 1, 0, 0, 7, 7, 7, 7]]])
    for changed, angle in (({}, 0.5), ({"base_width": 8}, 2**-0.5)):  # 4^(-2/4) and 4^(-2/8)
        turned = compute("heads", x, width=4, **ROTATED, **changed)[0, 0, 0]
        assert turned == pytest.approx([0, np.cos(angle), 0, np.sin(angle), 7, 7, 7, 7])


def test_squares_beyond_the_range_of_float16_leave_nothing():
    class Bare(Scope):
        def parameter(self, name):
            return None

    options = {"kind": "rms", "eps": 1e-6, "names": ("gamma", "beta"), "rounds_squares": "float16"}
    stage = Node("x", "norm", (), (), "", options)
    with np.errstate(over="ignore"):
        y = KINDS["norm"].value(Bare(None, None, stage, "float64"), np.array([[300.0, 400.0], [3.0, 4.0]]))
    assert y[0].tolist() == [0, 0]  # 300² is 90000, above 65504
    assert y[1] == pytest.approx([3 / 12.5**0.5, 4 / 12.5**0.5], rel=1e-6)


def test_a_theta_is_found_from_what_it_rotates():
    x, where, floor = np.random.default_rng(2).standard_normal((1, 9, 8)), np.arange(9), np.full((9, 1), 1e-6)
    rope = ROTATED | {"where": where, "width": 8}

    def rotate(theta):
        return compute("heads", x, **(rope | {"rope": {"rope_theta": theta}}))[0, 0]

    mine = rotate(37000.0).astype(np.float32)
    number = Number("rope_theta is {}", {}, 1e4, (2.0, 1e12))
    assert nearest_value(lambda logarithm: rotate(float(np.exp(logarithm))) - mine, number, floor) == 37000


def test_a_number_that_changes_nothing_is_not_found():
    number = Number("{}", {}, 1.0, (0.1, 10.0))
    assert nearest_value(lambda logarithm: np.ones((1, 2)), number, np.ones((1, 1))) is None


@pytest.mark.parametrize(
    ("left", "keys", "widths"),
    [(1, 20, [0, 2, 3]), (0, 20, [1]), (4, 9, [2, 3, 5, 8]), (4, 10, [2, 3, 5, 8, 9]), (3, 20, [1, 2, 4, 6, 7])],
)
def test_windows_that_may_be_mistaken_for_another(left, keys, widths):
    assert sorted(other_widths(left, keys)) == widths


# All slips of some models: slips.txt beside this file


LISTED = Path(__file__).with_name("slips.txt")
MODELS = (
    "albert", "bart-labels", "trained/bert", "modernbert", "llama3", "llama-dynamic", "gguf/phi3-long", "qwen3-factor",
    "smollm3", "gemma2", "gemma3", "embeddinggemma", "olmo2", "granite", "falcon-7b", "falcon-rw", "bloom", "gpt_oss",
    "gguf/qwen2_moe", "deepseek_v2", "deepseek_v3", "opt-350m", "trained/t5", "mt5", "marian", "trained/transformer",
    "seq2seq", "recurrent/tanh-bridge-lstm", "recurrent/luong-additive", "recurrent/unlike", "recurrent/general-before",
    "recurrent/sutskever", "vit", "dinov2-registers", "clip:vision", "siglip:vision", "inputs/siglip", "inputs/whisper",
    "waves/layer", "inputs/wav2vec2",
)  # fmt: skip


def graph_of(name, **sizes):
    """The graph of a model with its batch: a picture in place of pixels, and a sound in place of what is made of it."""
    core = load_core(name)
    batch, picture = make_batch(core.config, **sizes), None
    read = {"ids": batch.ids, "mask": batch.mask, "target": batch.target, "target_mask": batch.target_mask}
    sound = np.random.default_rng(0).normal(size=(2, 900)) if core.config.sound else None
    if core.config.patches:
        picture = make_picture(open_model(name), np.zeros((50, 40, 3), np.uint8))
    return debugged_graph(core, Inputs(**read, types=batch.types, image=batch.pixels, sound=sound), picture)


def list_slips(graph):
    """A line for each slip and number: the first site, how many nodes it changes, the sentence, and what is other.

    Of sites with one last part, what is other in the first. Numbers are 2.5, with their range and the published ones.
    """
    nodes = [*graph.nodes.values()]
    rows = [(one.name, one.changes, "") for one in find_slips(graph, nodes, "bfloat16") if one.number is None]
    for one in find_numbers(graph, nodes):
        changes = {site: make(2.5) for site, make in one.changes.items()}
        rows.append((one.sentence, changes, " in {:g}…{:g}: ".format(*one.range) + " ".join(map(shown, one.published))))
    for sentence, changes, end in rows:
        others = {}
        for site, node in changes.items():
            part = site.rpartition(".")[2]
            if part not in others:
                others[part] = other_parts(graph, node)
        first = next(iter(changes))
        alike = {of_any_layer(text): f"{part} {text}" for part, text in [*others.items()][::-1]}
        words = "; ".join([*alike.values()][::-1]).removeprefix(f"{first.rpartition('.')[2]} ")
        yield f"{first} ({len(changes)}): {sentence} | {words or 'as it is'}{end}".rstrip()


def other_parts(graph, node):
    config = graph.core.config
    before = graph.nodes[node.site].change(config=config)
    return ", ".join(differences(node.change(config=node.options.get("config", config)), before))


def differences(new, old, name=""):
    """The parts of a node or of one of its options that are others, as name=value."""
    parts, before = parts_of(new), parts_of(old)
    if parts is None or before is None:
        if shown(new) != shown(old):
            yield f"{name}={shown(new)}"
        return
    for part, value in parts.items():
        yield from differences(value, before.get(part), f"{name}.{part}".lstrip("."))


def parts_of(value):
    """The named parts of a value, or None for one that has none."""
    if isinstance(value, Node):
        return {"node": value.kind, "inputs": value.inputs, "layer": value.layer, **value.options}
    if hasattr(value, "_asdict"):
        return value._asdict()
    if is_dataclass(value):
        return vars(value)
    if isinstance(value, tuple) and any(map(parts_of, value)):
        return {str(at): one for at, one in enumerate(value)}
    return value if isinstance(value, dict) else None


def shown(value):
    if isinstance(value, np.ndarray):
        return f"{value.shape} {' '.join(f'{one:.6g}' for one in value.ravel()[:4])}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def of_any_layer(line):
    """A line without its number of nodes and the numbers of layers."""
    return re.sub(r"\.\d+(?=\.)|^\S+ \(\d+\)", "", line)


@pytest.mark.parametrize(("tokens", "other"), [(16, "long"), (17, "short")])
def test_a_text_longer_than_the_original_length_has_the_long_factors(tokens, other):
    graph = graph_of("gguf/phi3-long", tokens=tokens, padded=0)
    names = [slip.name for slip in find_slips(graph, [*graph.nodes.values()], "float32")]
    assert [name for name in names if "factors of longrope are used" in name] == [
        f"the {other} factors of longrope are used"
    ]


@functools.cache
def sections():
    """The heading and lines of each model in slips.txt, which no model before has; and all lines, of any layer."""
    found = {}
    for section in LISTED.read_text(encoding="utf-8").split("\n\n"):
        heading, *lines = section.strip().splitlines()
        found[heading.partition(": ")[0]] = heading, lines
    return found, {of_any_layer(line) for _, lines in found.values() for line in lines}


def heading_of(name, lines):
    return f"{name}: {len(lines)} slips of {sum(int(re.search(r'[(]([0-9]+)[)]', line)[1]) for line in lines)} nodes"


@pytest.mark.parametrize("name", MODELS)
def test_the_slips_of_a_model_are_those_of_the_list(name):
    (listed, known), found = sections(), [*list_slips(graph_of(name))]
    heading, lines = listed[name]
    assert heading_of(name, found) == heading
    assert [line for line in found if line in lines] == lines
    assert [line for line in found if of_any_layer(line) not in known] == []


def write_list():
    """The text of slips.txt: PYTHONPATH=. python tests/debugger/test_slips.py > tests/debugger/slips.txt"""
    known, parts = set(), []
    for name in MODELS:
        found = [*list_slips(graph_of(name))]
        lines = [line for line in found if of_any_layer(line) not in known]
        parts.append("\n".join([heading_of(name, found), *lines]))
        known |= {*map(of_any_layer, found)}
    return "\n\n".join(parts)


EQUAL_NUMBERS = "the scale of the scores"  # which may be the number of another sentence, or that of the model


@pytest.mark.parametrize(
    "name",
    ("albert", "bart-labels", "deepseek_v3", "dinov2-registers", "gemma3", "gpt_oss", "marian", "mt5", "opt-350m",
     "recurrent/tanh-bridge-lstm", "seq2seq", "waves/layer"),
)  # fmt: skip
def test_each_slip_changes_a_model_in_its_own_way(name):
    """No sentence leaves all nodes as they are, and no two have the same changes, except for that of COUNTED."""
    graph = graph_of(name)
    found = {}
    for slip in find_slips(graph, [*graph.nodes.values()], "bfloat16"):
        changes = frozenset((site, key_of(node)) for site, node in slip.changes.items())
        changes -= {(site, key_of(graph.nodes[site])) for site in slip.changes}
        if not slip.name.startswith(EQUAL_NUMBERS) and not slip.name.endswith(COUNTED):
            assert changes, slip.name
            assert found.setdefault(changes, slip.name) == slip.name
    assert len(found) > 20


def key_of(value):
    """What makes a node, or one of its options, another."""
    if isinstance(value, Node):
        return value.kind, value.inputs, value.layer, key_of(dict(value.options))
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return tuple((name, key_of(one)) for name, one in sorted(value.items()))
    return repr(value)


def test_a_change_of_two_names_is_tried_once():
    stage = Node("q", "heads", (), ())
    both = [Slip("queries are not rotated", {"q": stage}), Slip("queries and keys are not rotated", {"q": stage})]
    assert drop_same(both) == both[:1]
    assert drop_same([both[0], Slip("another", {"q": stage._replace(layer="k")})])[1].name == "another"


if __name__ == "__main__":
    print(write_list())
