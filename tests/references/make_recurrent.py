"""Recurrent layers and their gradients, frozen: what tests/model/test_recurrent.py compares with.

    pip install torch==2.13.0 numpy==2.4.6     # recurrent.npz
    python tests/references/make_recurrent.py torch
    pip install onnx==1.23.2                   # onnx_recurrent.npz
    python tests/references/make_recurrent.py onnx

recurrent.npz: members CASE/weight_ih_l0 … are the state dict of torch.nn.RNN, GRU or LSTM, CASE/x, h_0, c_0 and lengths
its inputs (a packed sequence where there are lengths), grad_output, grad_h_n and grad_c_n the gradients of its results:
all float32 numbers that are widened to float64. CASE/DTYPE/output, h_n and c_n are the results, and CASE/grad.NAME the
gradients in float64. onnx_recurrent.npz: the node tests of RNN, GRU and LSTM; `cases` is JSON, CASE -> operator,
attributes, and the members that are its inputs and outputs ("" where one is left out).
"""

import json
import pathlib
import sys
import warnings

import numpy as np

HERE = pathlib.Path(__file__).parent
WIDTH, HIDDEN, BATCH, TOKENS = 5, 4, 3, 7
LENGTHS = (7, 2, 5)
# case -> class of torch.nn, its options, and whether the texts are padded
CASES = {
    "tanh": ("RNN", {}, False),
    "relu-two-layers": ("RNN", {"nonlinearity": "relu", "num_layers": 2}, False),
    "tanh-padded": ("RNN", {"num_layers": 2, "bidirectional": True}, True),
    "gru": ("GRU", {}, False),
    "gru-no-bias": ("GRU", {"bias": False, "num_layers": 2}, False),
    "gru-padded": ("GRU", {"num_layers": 2, "bidirectional": True}, True),
    "lstm": ("LSTM", {}, False),
    "lstm-no-bias": ("LSTM", {"bias": False, "bidirectional": True}, False),
    "lstm-padded": ("LSTM", {"num_layers": 3, "bidirectional": True}, True),
    "lstm-projection": ("LSTM", {"num_layers": 2, "proj_size": 3}, False),
    "lstm-projection-padded": ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2}, True),
}


def make_torch() -> None:
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    members: dict[str, np.ndarray] = {}
    for number, (case, (kind, options, is_padded)) in enumerate(CASES.items()):
        torch.manual_seed(number)
        module = getattr(torch.nn, kind)(WIDTH, HIDDEN, batch_first=True, **options)
        rows = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
        output = options.get("proj_size", HIDDEN)
        inputs = {"x": torch.randn(BATCH, TOKENS, WIDTH), "h_0": torch.randn(rows, BATCH, output)}
        inputs |= {"c_0": torch.randn(rows, BATCH, HIDDEN)} if kind == "LSTM" else {}
        grads = {"output": torch.randn(BATCH, TOKENS, output * (1 + options.get("bidirectional", False)))}
        grads |= {name.replace("_0", "_n"): torch.randn_like(one) for name, one in inputs.items() if name != "x"}
        named = {**dict(module.named_parameters()), **inputs, **{f"grad_{name}": one for name, one in grads.items()}}
        members |= {f"{case}/{name}": one.detach().numpy().copy() for name, one in named.items()}
        if is_padded:
            members[f"{case}/lengths"] = np.array(LENGTHS)
        for dtype in (torch.float32, torch.float64):
            module = module.to(dtype)
            wide = {name: one.detach().to(dtype).clone().requires_grad_() for name, one in inputs.items()}
            x, *states = wide.values()
            if is_padded:
                x = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
            y, after = module(x, tuple(states) if kind == "LSTM" else states[0])
            y = pad_packed_sequence(y, batch_first=True)[0] if is_padded else y
            results = dict(zip(("output", "h_n", "c_n"), (y, *(after if kind == "LSTM" else (after,))), strict=False))
            prefix = f"{case}/{str(dtype).removeprefix('torch.')}"
            members |= {f"{prefix}/{name}": one.detach().numpy() for name, one in results.items()}
        sum((one * grads[name].double()).sum() for name, one in results.items()).backward()
        every = {**dict(module.named_parameters()), **wide}
        members |= {f"{case}/grad.{name}": one.grad.numpy() for name, one in every.items()}
    np.savez_compressed(HERE / "recurrent.npz", **members)


def make_onnx() -> None:
    warnings.simplefilter("ignore")
    from onnx import helper
    from onnx.backend.test.case.node import collect_testcases

    members: list[np.ndarray] = []
    cases = {}
    for case in collect_testcases(None):
        node = case.model.graph.node[0]
        if node.op_type not in ("RNN", "GRU", "LSTM") or len(case.model.graph.node) > 1:
            continue
        values = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        sides = {}
        for side, names, arrays in zip(
            ("inputs", "outputs"), (node.input, node.output), case.data_sets[0], strict=True
        ):
            names = [name for name in names if name]
            sides[side] = {name: len(members) + place for place, name in enumerate(names)}
            members += [np.asarray(array) for array in arrays]
        attributes = {key: value.decode() if isinstance(value, bytes) else value for key, value in values.items()}
        cases[case.name] = {"operator": node.op_type, "attributes": attributes, **sides}
    arrays = {str(index): array for index, array in enumerate(members)}
    np.savez_compressed(HERE / "onnx_recurrent.npz", cases=np.array(json.dumps(cases)), **arrays)


if __name__ == "__main__":
    {"torch": make_torch, "onnx": make_onnx}[sys.argv[1]]()
