"""Layer norm and RMS norm."""

from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition
from attnkit.checking.definitions.linear import WIDTH
from attnkit.model.slips import N_MINUS_1, NO_MEAN, Number, Slip

LARGE_EPS = 0.1  # so that eps shows
EPS_OUTSIDE = "eps is added to the root, not under it"


def near_one(given: Any, generator: Any) -> Any:
    return 1 + 0.3 * generator.standard_normal(given["x"].shape[-1])


def scale(x: Any, gamma: Any, beta: Any = None) -> Any:
    x = x if gamma is None else x * gamma
    return x if beta is None else x + beta


ARGUMENTS = {
    "x": Argument("... D", "x in_features input inputs hidden_states"),
    "gamma": Argument("D", "gamma weight weights w scale g gain", role="parameter"),
    "beta": Argument("D", "beta bias b shift offset", role="parameter"),
    "eps": Argument("", "eps epsilon variance_epsilon e", role="number"),
}
CASES = (
    Case("plain", lead=(2, 5), given={"gamma": near_one}, needs=("gamma",)),
    Case("large eps", lead=(2, 5), given={"gamma": near_one, "eps": LARGE_EPS}, needs=("gamma", "eps")),
    Case("leading axes", lead=(2, 3, 4), given={"gamma": near_one}, needs=("gamma",)),
    Case("no leading axis", lead=(), given={"gamma": near_one}, needs=("gamma",)),
    Case(
        "small numbers",
        lead=(2, 5),
        given={"gamma": near_one, "x": lambda g, r: 0.01 * r.standard_normal((2, 5, 7))},
        needs=("gamma",),
    ),
    Case(
        "numbers far from 0",
        lead=(2, 5),
        given={"gamma": near_one, "x": lambda g, r: r.standard_normal((2, 5, 7)) + 100},
        needs=("gamma",),
    ),
)
CONSTRUCT = {
    "D": f"{WIDTH} embed_size emb_size model_dim ndim normalized_shape size num_features",
    "eps": "eps epsilon",
}
EPSILONS = Number("eps is {}", {"root": lambda value: lambda variance: np.sqrt(variance + value)}, 1e-5, (1e-12, 1.0))

LAYERNORM = Definition(
    "layer normalization: (x − μ) / √(σ² + eps) · gamma + beta",
    ARGUMENTS,
    {
        "mean": lambda x: x.mean(-1, keepdims=True),
        "centered": lambda x, mean: x - mean,
        "variance": lambda centered: (centered**2).mean(-1, keepdims=True),
        "root": lambda variance, eps: np.sqrt(variance + eps),
        "normalized": lambda centered, root: centered / root,
        "scaled": lambda normalized, gamma, beta: scale(normalized, gamma, beta),
    },
    {"D": 7},
    (
        *(
            case._replace(
                needs=(*case.needs, "beta"),
                given={**case.given, "beta": lambda g, r: r.standard_normal(g["x"].shape[-1])},
            )
            for case in CASES
        ),
    ),
    "... D",
    (
        Slip(N_MINUS_1, {"variance": lambda centered: (centered**2).sum(-1, keepdims=True) / (centered.shape[-1] - 1)}),
        Slip(EPS_OUTSIDE, {"root": lambda variance, eps: np.sqrt(variance) + eps}),
        Slip(
            "the norm divides by n − 1, and eps is added to the root (σ + eps)",
            {
                "variance": lambda centered: (centered**2).sum(-1, keepdims=True) / (centered.shape[-1] - 1),
                "root": lambda variance, eps: np.sqrt(variance) + eps,
            },
        ),
        Slip("eps is missing", {"root": lambda variance: np.sqrt(variance)}),
        Slip("the norm divides by σ², not by σ", {"root": lambda variance, eps: variance + eps}),
        Slip(NO_MEAN, {"centered": lambda x: x}),
        Slip("gamma is 1 + gamma", {"scaled": lambda normalized, gamma, beta: scale(normalized, 1 + gamma, beta)}),
        Slip("gamma is missing", {"scaled": lambda normalized, beta: scale(normalized, None, beta)}),
        Slip("beta is missing", {"scaled": lambda normalized, gamma: scale(normalized, gamma)}),
        Slip(
            "the columns are normalized (batch normalization), not the rows",
            {
                "mean": lambda x: x.mean(0, keepdims=True),
                "variance": lambda centered: (centered**2).mean(0, keepdims=True),
            },
        ),
        Slip(
            "the mean and the variance are those of all numbers",
            {
                "mean": lambda x: x.mean(keepdims=True),
                "variance": lambda centered: (centered**2).mean(keepdims=True),
            },
        ),
        *(EPSILONS.slip(value) for value in (1e-12, 1e-8, 1e-6, 1e-5, 1e-3)),
    ),
    functions="layernorm layer_norm LayerNorm LayerNormalization",
    defaults={"eps": 1e-5},
    construct=CONSTRUCT,
)

RMSNORM = Definition(
    "RMS normalization: x / √(mean(x²) + eps) · gamma",
    {name: one for name, one in ARGUMENTS.items() if name != "beta"},
    {
        "mean": lambda x: np.zeros(()),
        "centered": lambda x, mean: x - mean,
        "variance": lambda centered: (centered**2).mean(-1, keepdims=True),
        "root": lambda variance, eps: np.sqrt(variance + eps),
        "normalized": lambda centered, root: centered / root,
        "scaled": lambda normalized, gamma: scale(normalized, gamma),
    },
    {"D": 7},
    CASES,
    "... D",
    (
        Slip(EPS_OUTSIDE, {"root": lambda variance, eps: np.sqrt(variance) + eps}),
        Slip("eps is missing", {"root": lambda variance: np.sqrt(variance)}),
        Slip(
            "the mean is subtracted (layer norm)",
            {"mean": lambda x: x.mean(-1, keepdims=True)},
        ),
        Slip("the squares are added, not averaged", {"variance": lambda x: (x**2).sum(-1, keepdims=True)}),
        Slip("the norm has no root", {"root": lambda variance, eps: variance + eps}),
        Slip("gamma is 1 + gamma", {"scaled": lambda normalized, gamma: scale(normalized, 1 + gamma)}),
        Slip("gamma is missing", {"scaled": lambda normalized: normalized}),
        Slip(
            "the mean is that of all numbers",
            {"variance": lambda x: (x**2).mean(keepdims=True)},
        ),
        *(EPSILONS.slip(value) for value in (1e-12, 1e-8, 1e-6, 1e-5, 1e-3)),
    ),
    functions="rmsnorm rms_norm RMSNorm run_rmsnorm",
    defaults={"eps": 1e-5},
    construct=CONSTRUCT,
)

DEFINITIONS = {"layernorm": LAYERNORM, "rmsnorm": RMSNORM}
