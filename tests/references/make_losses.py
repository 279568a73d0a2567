"""Losses and their gradients, frozen: the arrays that tests/model/test_loss.py compares with.

    pip install torch==2.13.0 numpy==2.4.6     # losses.npz
    python tests/references/make_losses.py torch
    pip install onnx==1.23.2                   # onnx_losses.npz and onnx_optimizers.npz
    python tests/references/make_losses.py onnx

losses.npz: members CASE.ARRAY are inputs, float32 numbers used as they are and widened to float64; members
CASE.DTYPE.loss and CASE.DTYPE.gradient (of the logits, where the gradient of the loss is CASE.upstream) are what
PyTorch made of them. onnx_….npz: the node tests; `cases` is JSON, CASE -> operator, attributes, and the members that
are its inputs and outputs.
"""

import json
import pathlib
import sys
import warnings

import numpy as np

HERE = pathlib.Path(__file__).parent
IGNORED = -100
CASES = {
    f"{reduction}-{smoothing}-{weighted}-{ignored}": (
        reduction,
        smoothing,
        weighted == "weighted",
        ignored == "ignored",
    )
    for reduction in ("none", "sum", "mean")
    for smoothing in (0.0, 0.1)
    for weighted in ("plain", "weighted")
    for ignored in ("all", "ignored")
}


def make_torch() -> None:
    import torch
    from torch.nn import functional

    members = {}
    generator = torch.Generator().manual_seed(17)
    for case, (reduction, smoothing, is_weighted, is_ignored) in CASES.items():
        logits = torch.randn((3, 5, 7), generator=generator) * 3
        targets = torch.randint(0, 7, (3, 5), generator=generator)
        if is_ignored:
            targets[0, 1] = targets[2, 4] = IGNORED
        weight = torch.rand((7,), generator=generator) if is_weighted else None
        upstream = torch.randn((3, 5) if reduction == "none" else (), generator=generator)
        members |= {f"{case}.logits": logits, f"{case}.targets": targets, f"{case}.upstream": upstream}
        members |= {f"{case}.weight": weight} if is_weighted else {}
        for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
            wide = logits.to(dtype).requires_grad_()
            loss = functional.cross_entropy(
                wide.reshape(-1, 7),
                targets.reshape(-1),
                None if weight is None else weight.to(dtype),
                ignore_index=IGNORED,
                reduction=reduction,
                label_smoothing=smoothing,
            )
            loss = loss.reshape(3, 5) if reduction == "none" else loss
            loss.backward(upstream.to(dtype))
            members |= {f"{case}.{name}.loss": loss.detach(), f"{case}.{name}.gradient": wide.grad}
    np.savez_compressed(HERE / "losses.npz", **{name: array.detach().numpy() for name, array in members.items()})


OPERATORS = {"losses": ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"), "optimizers": ("Adam", "Momentum")}


def make_onnx() -> None:
    warnings.simplefilter("ignore")
    from onnx import helper
    from onnx.backend.test.case.node import collect_testcases

    for name, operators in OPERATORS.items():
        arrays: dict[bytes, np.ndarray] = {}  # each once, though several cases have it
        cases = {}
        for case in collect_testcases(None):
            node = case.model.graph.node[0]
            if node.op_type not in operators or len(case.model.graph.node) > 1:
                continue
            values = {one.name: helper.get_attribute_value(one) for one in node.attribute}
            values = {key: value.decode() if isinstance(value, bytes) else value for key, value in values.items()}
            sides = [[np.asarray(array) for array in side] for side in case.data_sets[0]]
            keys = [
                [array.dtype.str.encode() + bytes(str(array.shape), "ascii") + array.tobytes() for array in side]
                for side in sides
            ]
            arrays |= {key: array for pair in zip(keys, sides, strict=True) for key, array in zip(*pair, strict=True)}
            places = [[list(arrays).index(key) for key in side] for side in keys]
            cases[case.name] = {
                "operator": node.op_type,
                "attributes": values,
                "inputs": places[0],
                "outputs": places[1],
            }
        members = {str(index): array for index, array in enumerate(arrays.values())}
        np.savez_compressed(HERE / f"onnx_{name}.npz", cases=np.array(json.dumps(cases)), **members)


if __name__ == "__main__":
    {"torch": make_torch, "onnx": make_onnx}[sys.argv[1]]()
