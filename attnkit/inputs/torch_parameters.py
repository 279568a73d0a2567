"""Parameters as the modules of PyTorch name and arrange them, for the tools.

A state dict may hold more than one module. Those of an encoder layer are told apart by what stands before their names:
`FILE:self_attn` reads one of them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text
from attnkit.records import Array, join_names

FUSED = {"in_proj_weight": ("wq", "wk", "wv"), "in_proj_bias": ("bq", "bk", "bv")}  # stacked along their first axis
BIASES_OF_KEYS = ("bias_k", "bias_v")  # a key and a value of add_bias_kv
COUNTS = ("num_batches_tracked",)  # change nothing


class TorchLayout(NamedTuple):
    """A module of PyTorch, the names of its parameters, and those that they have here.

    needs       the own names without which a file does not have it
    transposed  whether weights are (out, in) there, and (in, out) here, as those of linear layers
    """

    module: str
    needs: tuple[str, ...]
    names: Mapping[str, str]
    transposed: bool = True


def _linear(**layers: str) -> dict[str, str]:
    """The weight and the bias of linear layers: own weight -> name of the layer."""
    weights = {f"{published}.weight": own for own, published in layers.items()}
    return weights | {f"{published}.bias": own.replace("w", "b", 1) for own, published in layers.items()}


PROJECTIONS = ("wq", "wk", "wv")
OF_HEADS = {"wq": "q_proj", "wk": "k_proj", "wv": "v_proj"}
# tool -> the layouts that it reads
LAYOUTS: dict[str, tuple[TorchLayout, ...]] = {
    "attend": (
        TorchLayout(
            "nn.MultiheadAttention",
            PROJECTIONS,
            dict.fromkeys((*FUSED, *BIASES_OF_KEYS), "")
            | {f"{published}_weight": own for own, published in OF_HEADS.items()}
            | _linear(wo="out_proj"),
        ),
        TorchLayout(
            "four linear layers",
            PROJECTIONS,
            _linear(**OF_HEADS, wo="o_proj") | _linear(wo="out_proj") | _linear(wo="output_proj"),
        ),
    ),
    "ffn": (
        TorchLayout("nn.TransformerEncoderLayer", ("w1", "w2"), _linear(w1="linear1", w2="linear2")),
        TorchLayout("a gated network", ("w1", "w2", "w3"), _linear(w1="gate_proj", w3="up_proj", w2="down_proj")),
        TorchLayout("linear layers w1, w2 and w3", ("w1", "w2"), _linear(w1="w1", w2="w2", w3="w3")),
        TorchLayout("nn.Sequential", ("w1", "w2"), _linear(w1="0", w2="2")),
    ),
    "linear": (TorchLayout("nn.Linear", ("w",), {"weight": "w", "bias": "b"}),),
    "conv": (TorchLayout("nn.Conv1d", ("w",), {"weight": "w", "bias": "b"}, transposed=False),),
    "layernorm": (
        TorchLayout(
            "nn.LayerNorm",
            ("gamma",),
            {"weight": "gamma", "bias": "beta", "running_mean": "mean", "running_var": "variance"}
            | dict.fromkeys(COUNTS, ""),
        ),
    ),
}


def read_torch_parameters(params: Mapping[str, Array], tool: str) -> Mapping[str, Array]:
    """Rename and transpose the parameters of a module of PyTorch.

    Returns the parameters unchanged if they are not those of a module that the tool computes. DataError for several
    modules, for a name that the module does not have, or a shape that cannot be.

    >>> found = read_torch_parameters({"0.weight": np.ones((2, 3)), "0.bias": np.ones(2)}, "linear")
    >>> {name: array.shape for name, array in found.items()}
    {'w': (3, 2), 'b': (2,)}
    """
    for layout in LAYOUTS[tool]:
        modules: dict[str, dict[str, Array]] = {}
        for name, array in params.items():
            for published in layout.names:
                if name == published or name.endswith(f".{published}"):
                    modules.setdefault(name.removesuffix(published), {})[published] = array
        whole = [prefix for prefix, own in modules.items() if {*layout.needs} <= _own_names(layout, own)]
        if len(whole) > 1:
            chosen = join_names([prefix.rstrip(".") or "(no prefix)" for prefix in whole])
            raise DataError(f"parameters of several modules: {chosen}; --params FILE:NAME reads one", "--params")
        if whole:
            if unknown := [name for name in params if "." not in name and name not in layout.names]:
                raise DataError(
                    f"{unknown[0]} is no parameter of {layout.module} ({join_names(layout.names)})", "--params"
                )
            return _convert(modules[whole[0]], layout)
    return params


def _own_names(layout: TorchLayout, published: Mapping[str, Array]) -> set[str]:
    return {own for name in published for own in FUSED.get(name, (layout.names[name],))}


def _convert(module: Mapping[str, Array], layout: TorchLayout) -> dict[str, Array]:
    converted: dict[str, Array] = {}
    for published, array in module.items():
        if published in BIASES_OF_KEYS:
            raise UsageError(f"{published} of add_bias_kv is a key of its own, which attend does not add", "--params")
        names: tuple[str, ...] = (layout.names[published],)
        parts = [array]
        if published in FUSED:
            if not array.ndim or len(array) % 3:
                raise DataError(f"{published} {as_text(array.shape)}: expected (3·D, …)", "--params")
            names, parts = FUSED[published], np.split(array, 3)
        for name, part in zip(names, parts, strict=True):
            if name:
                converted[name] = part.T if layout.transposed and name.startswith("w") else part
    return converted
