"""The linear layer."""

from collections.abc import Sequence
from typing import Any

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.model.exercises.worked_steps import transposed
from attnkit.model.slips import Slip

WIDTH = "d_model dim embed_dim emb_dim embedding_dim n_embd hidden_size d width features"  # what a model's is called


def layouts_of(*names: str) -> dict[str, Way]:
    """The layouts of a weight: (out, in) as in torch, or (in, out)."""
    return {
        "out-in": Way("", dict.fromkeys(names, transposed)),
        "in-out": Way(f"weights: {', '.join(names)} (in, out)"),
    }


def within(modules: str | Sequence[str], names: str) -> str:
    """BoundNames as those of some modules; "" for none.

    >>> within("attn ffn", "weight"), within(["attn", ""], "wq q.weight")
    ('attn.weight ffn.weight', 'attn.wq attn.q.weight wq q.weight')
    """
    found = modules.split() if isinstance(modules, str) else modules
    return " ".join(f"{module}.{name}" if module else name for module in found for name in names.split())


def with_bias(x: Any, b: Any) -> Any:
    return x if b is None else x + b


LINEAR = Definition(
    "a linear layer: x W + b",
    {
        "x": Argument("... I", "x in_features input inputs features"),
        "w": Argument("I O", "w weight weights kernel", role="parameter"),
        "b": Argument("O", "b bias", role="parameter"),
    },
    {"product": lambda x, w: x @ w, "linear": lambda product, b: with_bias(product, b)},
    {"I": 5, "O": 7},
    (
        Case("plain", lead=(3,)),
        Case("bias", lead=(3,), needs=("b",)),
        Case("leading axes", lead=(2, 3, 4)),
        Case("no leading axis", lead=()),
    ),
    "... O",
    (
        Slip("the bias is missing", {"linear": lambda product: product}),
        Slip("the bias is subtracted", {"linear": lambda product, b: product if b is None else product - b}),
        Slip("an activation follows (max(0, ·))", {"linear": lambda product, b: with_bias(product, b).clip(0)}),
    ),
    {"weights": layouts_of("w")},
    "linear Linear dense run_linear fully_connected affine",
    construct={"I": "in_features d_in in_dim input_dim n_in", "O": "out_features d_out out_dim output_dim n_out"},
)

DEFINITIONS = {"linear": LINEAR}
