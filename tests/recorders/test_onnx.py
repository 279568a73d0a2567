"""Recordings of ONNX models."""

import os
import sys

import numpy as np
import pytest

from attnkit.debugger.dumps import open_dump
from attnkit.errors import AttnkitError, UsageError
from attnkit.recorders import onnx_models, record_onnx

W = np.arange(64, dtype=np.float32).reshape(8, 8)


def test_a_missing_library_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match="record_onnx: needs the onnx library: pip install onnx"):
        record_onnx(tmp_path / "mine.npz", "model.onnx", {})


@pytest.fixture(params=[False, True], ids=["one file", "weights beside it"])
def path(request, tmp_path):
    """The file of a small model: rows of a table, doubled, in bfloat16 and as a list."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kinds, numpy = onnx.helper, onnx.TensorProto, onnx.numpy_helper
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["/embed/Gather_output_0"]),
        helper.make_node("Constant", [], ["two"], value=numpy.from_array(np.float32(2), "two")),
        helper.make_node("Mul", ["/embed/Gather_output_0", "two"], ["double"]),
        helper.make_node("Cast", ["double"], ["half"], to=kinds.BFLOAT16),
        helper.make_node("Cast", ["half"], ["back"], to=kinds.FLOAT),
        helper.make_node("SplitToSequence", ["back"], ["list"], axis=0),
        helper.make_node("SequenceLength", ["list"], ["length"]),
        helper.make_node("Greater", ["back", "mean"], ["large"]),
    ]
    inputs = [("ids", kinds.INT64, ["token"]), ("mean", kinds.FLOAT, [])]
    outputs = [("length", kinds.INT64, [])]
    declared = [[helper.make_tensor_value_info(*one) for one in group] for group in (inputs, outputs)]
    graph = helper.make_graph(nodes, "graph", *declared, [numpy.from_array(W, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    file = tmp_path / "model" / "m.onnx"
    file.parent.mkdir()
    beside = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save(made, str(file), **(beside if request.param else {}))
    return file


@pytest.mark.parametrize("first", [1, 8])
def test_every_intermediate_is_recorded_in_order(tmp_path, path, monkeypatch, first):
    monkeypatch.setattr(onnx_models, "FIRST", first)
    monkeypatch.setattr(onnx_models, "GROUP", 400)
    record_onnx(tmp_path / "mine.npz", path, {"ids": [3, 1], "mean": np.float32(20)})
    found = open_dump(str(tmp_path / "mine.npz"))
    assert [*found] == ["ids", "mean", "/embed/Gather_output_0", "double", "half", "back", "length", "large"]
    assert np.array_equal(found["double"], 2 * W[[3, 1]]) and found["half"].dtype.name == "bfloat16"
    assert np.array_equal(found["half"].astype(np.float32), found["back"]) and found["large"].dtype == bool


def test_nodes_are_named_by_the_modules_that_torch_states(tmp_path):
    """A block that is called twice and a norm, as torch.onnx.export writes them with dynamo=True."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    nodes, before = [], "x"
    steps = [("Abs", ["model", "model.fc"]), ("Neg", ["model", "model.fc"]), ("Neg", ["model", "model.fc"])]
    steps += [
        ("Relu", ["model"]),
        ("Abs", ["model", "model.fc"]),
        ("Constant", ["model"]),
        ("Neg", ["model", "model.fc"]),
    ]
    steps += [("Floor", []), ("Ceil", ["model"])]
    for number, (operator, scopes) in enumerate(steps):
        inputs, name = ([] if operator == "Constant" else [before]), f"val_{number}"
        nodes.append(onnx.helper.make_node(operator, inputs, [name], **({} if inputs else {"value_float": 1.0})))
        if scopes:
            nodes[-1].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", *scopes, name]))
        before = name if inputs else before
    declared = [[onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])] for name in ("x", before)]
    graph = onnx.helper.make_graph(nodes, "graph", *declared)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(made, str(tmp_path / "m.onnx"))
    record_onnx(tmp_path / "mine.npz", tmp_path / "m.onnx", {"x": np.ones(1, np.float32)})
    assert [*open_dump(str(tmp_path / "mine.npz"))] == [
        "x", "/model.fc/Abs_output_0", "/model.fc/Neg_output_0", "/model.fc/Neg_1_output_0", "/model/Relu_output_0",
        "/model.fc_1/Abs_output_0", "/model.fc_1/Neg_output_0", "val_7", "val_8",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"ids": [1]}, "input 'mean' is missing (the model reads ids, mean)"),
        ({"ids": [1], "mean": 1.5, "mask": 1}, "no input 'mask' (the model reads ids, mean)"),
        ({"ids": [1], "mean": 1.5}, "input 'mean' is float64, the model reads float32"),
        ({"ids": [[1]], "mean": np.float32(1)}, "cannot be run: [ONNXRuntimeError]"),
    ],
)
def test_wrong_inputs_are_one_line(tmp_path, path, inputs, message):
    with pytest.raises(AttnkitError) as caught:
        record_onnx(tmp_path / "mine.npz", path, inputs)
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "mine.npz").exists() and len(os.listdir(tmp_path)) == 1


def test_wrong_models_are_one_line(tmp_path, path):
    path.write_text("no model")
    for model, message in ((path, "not an ONNX model"), (tmp_path / "no.onnx", "No such file")):
        with pytest.raises(AttnkitError, match=message):
            record_onnx(tmp_path / "mine.npz", model, {})
