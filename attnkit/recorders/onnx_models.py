"""Every intermediate of an ONNX model, computed by onnxruntime."""

import ctypes
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.formats import Sink, cast_array, open_source
from attnkit.formats.dtypes import NAMES, dtype_of
from attnkit.libraries import call_library, import_library
from attnkit.recorders.recording import Recording, choose_writer
from attnkit.records import Array, join_names

FIRST = 8  # outputs of the first group; their size decides how many are fetched at a time afterwards
GROUP = 128 << 20  # bytes of a group
SCOPES = "pkg.torch.onnx.name_scopes"  # where torch.onnx.export writes the modules around a node
OPTIMIZED = "com.microsoft.nchwc"  # a domain of operators that onnxruntime imports in each graph that it saves
WHY_NOT = (
    "onnxruntime has optimized this graph: its fused nodes are no stages, and names of modules are lost; record the"
    " file that was exported, or save with graph_optimization_level = ORT_DISABLE_ALL"
)
FOLDER = "session.model_external_initializers_file_folder_path"  # where weights in files of their own are


def record_onnx(path: str | os.PathLike[str], model: str | os.PathLike[str], inputs: Mapping[str, Any]) -> None:
    """Run an ONNX model, and record all that its nodes compute, as `record` does.

    path    the file to write: the inputs, then the outputs of the nodes in their order, by their names in the model, or
            as `/PATH/OPERATOR_output_0` if torch.onnx.export has written the path of the module beside a node
    model   the file of the model
    inputs  its inputs by name; whole numbers are converted to the integers that the model reads

    The model is not optimized, so that each node computes what it says. It runs once for each group of intermediates of
    128 MB, and they are not kept. Nodes inside a loop or a branch, and outputs that are no tensors of numbers, are left
    out. Needs onnx and onnxruntime.

    UsageError for an input that is missing or unknown, DataError for a model that cannot be run.
    """
    target, source = os.fspath(path), os.fspath(model)
    writer = choose_writer(target)
    onnx, runtime = (import_library(library, "", "record_onnx") for library in ("onnx", "onnxruntime"))
    open_source(source).close()
    with call_library("not an ONNX model", source):
        loaded = onnx.load(source, load_external_data=False)
    feeds = _read_inputs(onnx, loaded.graph, inputs, source)
    if any(one.domain == OPTIMIZED for one in loaded.opset_import):
        warnings.warn(f"{source}: {WHY_NOT}", AttnkitWarning, stacklevel=2)
    paths = _find_paths(loaded.graph)
    with Sink(target) as sink:
        recording = Recording(target, writer(sink.write))
        for name, array in feeds.items():
            if array.size:  # an empty cache has no stages
                recording.write(name, array)
        with call_library("cannot be run", source):
            for name, value in _run(onnx, runtime, loaded, feeds, os.path.dirname(os.path.abspath(source))):
                recording.write(paths.get(name, name), value)
        recording.finish(lambda: "the model has no nodes")


def _read_inputs(onnx: Any, graph: Any, inputs: Mapping[str, Any], source: str) -> dict[str, Array]:
    weights = {one.name for one in graph.initializer}
    declared = {one.name: one.type.tensor_type.elem_type for one in graph.input}
    known = f"the model reads {join_names(declared)}"
    for name in inputs:
        if name not in declared:
            raise UsageError(f"no input {name!r} ({known})", source)
    for name in declared:
        if name not in inputs and name not in weights:
            raise UsageError(f"input {name!r} is missing ({known})", source)
    feeds = {name: np.asarray(inputs[name]) for name in declared if name in inputs}
    for name, array in feeds.items():
        wanted = onnx.helper.tensor_dtype_to_np_dtype(declared[name])
        if array.dtype != wanted and array.dtype.kind in "iu" and wanted.kind in "iu":
            feeds[name] = cast_array(array, wanted.name)
        elif array.dtype != wanted:
            raise DataError(f"input {name!r} is {array.dtype.name}, the model reads {wanted.name}", source)
    return feeds


def _find_paths(graph: Any) -> dict[str, str]:
    """The names of nodes by their modules, in the form of torch's older exporter.

    The second call of a module is `/PATH_1`, the second operator of a kind in a call `/PATH/OPERATOR_1`.
    """
    kept = {one.name for one in graph.output}
    names: dict[str, str] = {}
    calls: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    open_scopes: list[str] = []
    for node in graph.node:
        stated = next((one.value for one in node.metadata_props if one.key == SCOPES), "")
        scopes = re.findall("'([^']*)'", stated)[:-1]  # from the model to the module; the last is the node itself
        if not scopes or node.op_type == "Constant":
            continue
        calls.update(scope for scope, before in zip_longest(scopes, open_scopes) if scope and scope != before)
        open_scopes, path = scopes, scopes[-1]
        place = f"/{path}" * bool(path) + f"_{calls[path] - 1}" * (calls[path] > 1)
        operator = f"{place}/{node.op_type}"
        number = f"_{operators[operator]}" * bool(operators[operator])
        operators[operator] += 1
        outputs = {name: f"{operator}{number}_output_{at}" for at, name in enumerate(node.output)}
        names |= {name: path for name, path in outputs.items() if name not in kept}
    return names


def _run(onnx: Any, runtime: Any, model: Any, feeds: Mapping[str, Array], folder: str) -> Iterator[tuple[str, Any]]:
    """Yield the outputs of all nodes, by name.

    Some are fetched at a time, because outputs of a graph stay in memory until it has run.
    """
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.add_session_config_entry(FOLDER, folder)
    fed = {name: runtime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    nodes = [*model.graph.node]
    del model.graph.node[:]
    last = {name: at for at, node in enumerate(nodes) if node.op_type != "Constant" for name in node.output if name}
    names, count = [*last], FIRST
    while names:
        group, names = names[:count], names[count:]
        model.graph.node.extend(nodes[len(model.graph.node) : last[group[-1]] + 1])
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in group)
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        values = session.run_with_ort_values(group, fed)
        size = 0
        for name in group:
            if (array := _read_value(values.pop(0))) is not None:
                size += array.nbytes
                yield name, array
        count = max(1, min(4 * count, GROUP * count // max(size, 1)))


def _read_value(value: Any) -> Array | None:
    """The array of an output, or None for a list, a text and unknown dtypes."""
    kind = value.data_type().removeprefix("tensor(").removesuffix(")")
    if kind == "bfloat16":
        stored = (ctypes.c_char * value.tensor_size_in_bytes()).from_address(value.data_ptr())
        return np.frombuffer(bytearray(stored), dtype_of(kind)).reshape(value.shape())
    return np.asarray(value.numpy()) if kind in ("float", "double", *NAMES) else None
