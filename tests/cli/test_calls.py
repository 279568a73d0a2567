"""A single number, or what is none, in every place where Python may give an array: a result or an error of ours."""

import gc
import warnings

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.cli import find_tool, main
from attnkit.cli.calls import call_tool
from attnkit.errors import AttnkitError, DataError, UsageError
from attnkit.formats import Record
from tests.places import MODELS

GPT2, VIT = str(MODELS / "gpt2"), str(MODELS / "vit")
X, IDS, IMAGE = np.ones((3, 4)), np.array([1, 2]), np.zeros((3, 32, 32), np.float32)

CALLS = [
    ("embed", "a b", {"dim": 4}),
    ("embed", None, {"ids": IDS, "model": GPT2}),
    ("embed", None, {"image": IMAGE, "model": VIT}),
    ("posenc", X, {}),
    ("posenc", X, {"kind": "rotary"}),
    ("posenc", X, {"kind": "alibi"}),
    ("posenc", X, {"kind": "t5"}),
    ("mask", X, {"causal": True}),
    ("attend", X, {"heads": 2, "seed": 0}),
    ("attend", X, {}),
    ("layernorm", X, {}),
    ("layernorm", X, {"kind": "batch"}),
    ("ffn", X, {"hidden": 8}),
    ("linear", X, {"params": {"w": np.eye(4)}}),
    ("conv", X, {"filters": 2, "size": (1,)}),
    ("mel", X[0], {"window": 2, "hop": 1}),
    ("rnn", X, {"hidden": 8}),
    ("merge", None, {}),
    ("diff", X, {}),
    ("show", X, {}),
    ("history", X, {}),
    ("encode", Record({"ids": IDS}), {"model": GPT2}),
    ("encode", None, {"image": IMAGE, "model": VIT}),
    ("decode", X, {"table": np.ones((5, 4))}),
    ("decode", None, {"ids": IDS, "model": GPT2, "max_tokens": 1}),
]
NUMBERS = [np.float64(2), np.array(1), np.array(True), np.array("a"), np.array(None), np.zeros(0)]
BESIDE = ("ids", "mask", "memory", "memory_mask", "bias", "types", "grid")


def given(tool, item, parameters):
    """Every call with one of the numbers: as what the tool is called with, beside x, or as a parameter."""
    for number in NUMBERS:
        yield number, parameters
        for name in BESIDE:
            yield (
                Record({"x": X if isinstance(item, Record | None | str) else item, name: np.asarray(number)}),
                parameters,
            )
        for name in find_tool(tool).flags:
            if name not in ("trace", "cache_out", "state_out"):  # names of files
                yield item, parameters | {name: number}
                yield item, parameters | {name: Record({"x": np.asarray(number)})}


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "item", "parameters"), CALLS)
def test_a_number_for_an_array(tool, item, parameters):
    chosen = find_tool(tool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one, more in given(tool, item, parameters):
            try:
                call_tool(chosen, [one], more)
            except AttnkitError as error:
                assert error.exit_code in (2, 3, 4) and "\n" not in str(error), (one, more)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"mask": "none.npy"}, "none.npy: No such file"),
        ({"mask": b"ab"}, "--mask: expected an array of numbers"),
        ({"mask": [[1], [1, 2]]}, "--mask: expected an array of numbers, got lists of unequal lengths"),
        ({"params": X}, "--params: expected a dict of arrays, got ndarray"),
        ({"model": X, "layer": "decoder.0.self"}, "--model: expected a folder or a model, got ndarray"),
        ({"causal": X}, "causal: expected True or False"),
        ({"causal": "yes"}, "causal: expected True or False, got 'yes'"),
        ({"heads": 2.0}, "heads: expected a whole number of at least 1, got 2.0"),
        ({"heads": True}, "heads: expected a whole number of at least 1, got True"),
        ({"scale": True}, "scale: expected a finite number, got True"),
    ],
)
def test_what_was_expected(given, problem):
    with pytest.raises(AttnkitError, match=problem):
        attnkit.attend(X, **given)


@pytest.mark.parametrize(
    ("tool", "given", "problem"),
    [
        ("embed", {"dim": 2, "vocab": [None]}, "--vocab: expected a list of words, got list"),
        ("encode", {"model": GPT2, "patch": [None]}, "--patch: .*'None'"),
        ("decode", {"model": GPT2, "beam": 2, "length_penalty": ["gnmt:1"]}, "length_penalty: expected gnmt:A"),
    ],
)
def test_a_list_where_another_value_is_expected(tool, given, problem):
    with pytest.raises(UsageError, match=problem):
        getattr(attnkit, tool)("a", **given)


@pytest.mark.parametrize(
    ("tool", "item", "parameters"),
    [call for call in CALLS if call[0] not in ("merge", "diff", "show", "history") and call[2] != {"kind": "t5"}],
)
def test_none_is_an_option_that_is_not_given(tool, item, parameters):
    names = {name.rstrip("_") for name in find_tool(tool).python_options} - {*parameters}
    run = getattr(attnkit, tool)
    given, nothing = (run(item, **parameters, **more) for more in ({}, dict.fromkeys(names)))
    assert formats.encode(given, "json") == formats.encode(nothing, "json")


def test_none_is_no_option_of_a_comparison_or_a_view():
    names = {tool: {name.rstrip("_") for name in find_tool(tool).python_options} for tool in ("show", "diff")}
    assert repr(attnkit.show(X, **dict.fromkeys(names["show"]))) == repr(attnkit.show(X))
    assert attnkit.diff(X, X, **dict.fromkeys(names["diff"])).same


def test_what_stands_for_an_array():
    weights = np.arange(8.0).reshape(4, 2)
    expected = X @ weights  # of rows of ones: the sums of the columns, 12 and 16
    for one in ({"w": weights.tolist()}, {"w": weights}, Record({"w": weights})):
        np.testing.assert_array_equal(attnkit.linear(X, params=one)["x"], expected)
    table = attnkit.attend(X, mask=np.bool_(True), causal=1)
    np.testing.assert_array_equal(table["x"], attnkit.attend(X, mask=np.array([[True]]), causal=True)["x"])
    assert (
        attnkit.embed(None, ids=IDS, model=MODELS / "gpt2").history == attnkit.embed(None, ids=IDS, model=GPT2).history
    )
    with pytest.raises(UsageError, match="two to compare, not 1"):
        call_tool(find_tool("diff"), [X], {})


@pytest.mark.parametrize(
    "tool", ["embed", "posenc", "mask", "attend", "merge", "layernorm", "ffn", "rnn", "encode", "decode"]
)
@pytest.mark.parametrize("item", [b"ab", object()], ids=["bytes", "object"])
def test_what_is_no_record_array_or_text_is_refused(tool, item):
    with pytest.raises(UsageError, match=f"expected a record, an array or text, got {type(item).__name__}"):
        getattr(attnkit, tool)(item)


@pytest.mark.parametrize("tool", ["posenc", "attend", "layernorm", "ffn", "rnn"])
def test_a_tool_without_the_record_it_needs(tool):
    with pytest.raises(UsageError, match=f"{tool} needs a record or an array"):
        getattr(attnkit, tool)()


@pytest.mark.parametrize("text", ["a\ud800b", ["c", "a\ud800b"]])
def test_text_that_is_not_unicode(text):
    with pytest.raises(DataError, match=r"TEXT: not Unicode text \(character 1\)"):
        attnkit.embed(text, dim=2)


def test_a_command_line_within_a_process_keeps_no_garbage_of_it(tmp_path, monkeypatch):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("all"))
    assert main.main(["mask", "--causal", "--size", "2,2", "-o", str(tmp_path / "mask.npz")]) == 0
    assert frozen == [] and gc.isenabled()
