"""Slips of models of images, for make_slips.py: of the pixels that they read, of patches, positions and class token.

What becomes of a picture is computed by the processors of transformers with other settings; the embeddings of a model
are replaced by a function that can go wrong. The dumps are of ViT, DINOv2 and DINOv3, and of the towers of images of
CLIP and SigLIP.
"""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from expert_slips import QuickGelu
from make_slips import Port, processor_of, slip
from PIL import Image
from torch import nn
from torch.nn.functional import interpolate

MODELS = (
    "vit", "dinov2", "dinov2-swiglu", "dinov2-registers", "dinov3", "clip", "siglip", "siglip-classifier", "dinov2-wide"
)  # fmt: skip
PICTURED = MODELS[:-1]  # whose pixels are made of a picture
image = functools.partial(slip, tried=MODELS)
pixels = functools.partial(slip, tried=PICTURED)


# pixels


def prepared(port: Port, change: Callable[[np.ndarray], np.ndarray] = lambda one: one, **values: Any) -> torch.Tensor:
    """What the processor of a model makes of its picture, with some settings changed."""
    processor = processor_of(port.checkpoint.place, **values)
    picture = Image.fromarray(np.ascontiguousarray(change(port.picture)))
    return torch.tensor(np.asarray(processor(picture, return_tensors="np")["pixel_values"]))


def settings(port: Port) -> dict[str, Any]:
    return dict(processor_of(port.checkpoint.place).settings if port.family == "dinov3" else {}) or vars(
        processor_of(port.checkpoint.place)
    )


def other_pixels(*names: str, key: str, families: Callable[[Port], bool] = lambda port: True, **changes: Any) -> None:
    def apply(port: Port):
        values = {name: value(port) if callable(value) else value for name, value in changes.items()}
        port.arguments["pixel_values"] = prepared(port, **values).to(port.dtype)
        return []

    pixels(key, *names, families=families)(apply)


def has_statistics(mean: list[float]) -> Callable[[Port], bool]:
    return lambda port: list(settings(port)["image_mean"]) != mean


def is_of_pillow(port: Port) -> bool:
    return port.family != "dinov3"


IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

other_pixels("the pixels are not normalized", key="pixels not normalized", families=is_of_pillow, do_normalize=False)
other_pixels(
    "the pixels are not multiplied by 1/255", key="pixels not rescaled", families=is_of_pillow, do_rescale=False
)
other_pixels("the pixels are neither multiplied by 1/255 nor normalized", key="pixels as they are",
             families=is_of_pillow, do_rescale=False, do_normalize=False)  # fmt: skip
for name, statistics in (("ImageNet", IMAGENET), ("CLIP", CLIP), ("ViT (0.5)", HALF)):
    other_pixels(
        f"the pixels are normalized by mean and deviation of {name}", key=f"mean and deviation of {name}",
        families=has_statistics(statistics["image_mean"]), **statistics,
    )  # fmt: skip
other_pixels(
    "the means of the channels are not subtracted from the pixels", key="no means of channels", image_mean=[0.0] * 3
)
other_pixels("the pixels are not divided by the deviations", key="no deviations of channels", image_std=[1.0] * 3)
other_pixels(
    "the channels of the pixels are blue", key="blue, green, red", change=lambda port: lambda one: one[..., ::-1]
)
for number, name in ((0, "nearest"), (1, "Lanczos"), (2, "bilinear"), (3, "bicubic"), (4, "box")):
    other_pixels(
        f"the picture is resized by the filter {name}", key=f"resized by {name}",
        families=lambda p, n=number: is_of_pillow(p) and int(settings(p)["resample"]) != n, resample=number,
    )  # fmt: skip


def is_cropped(port: Port) -> bool:
    return bool(vars(processor_of(port.checkpoint.place)).get("do_center_crop")) and port.family != "dinov3"


def crop_of(port: Port) -> dict[str, int]:
    return dict(settings(port)["crop_size"])


other_pixels("the whole picture is resized, and nothing is cut off", key="not cropped but squeezed",
             families=is_cropped, do_center_crop=False, size=crop_of)  # fmt: skip
other_pixels("the picture is not cropped after it is resized", key="not cropped",
             families=lambda p: is_cropped(p) and p.family != "clip", do_center_crop=False)  # fmt: skip
other_pixels("the shorter edge is resized to that of the crop", key="no margin cropped", families=is_cropped,
             size=lambda port: {"shortest_edge": min(crop_of(port).values())})  # fmt: skip


@pixels("picture transposed", "the rows and columns of the pixels are exchanged",
        families=lambda p: p.arguments["pixel_values"].shape[-1] == p.arguments["pixel_values"].shape[-2])  # fmt: skip
def transposed_picture(port: Port):
    port.arguments["pixel_values"] = port.arguments["pixel_values"].transpose(2, 3)
    return []


@pixels("channels exchanged after", "the channels of the pixels are exchanged after they are normalized")
def exchanged_after(port: Port):
    port.arguments["pixel_values"] = port.arguments["pixel_values"].flip(1)
    return []


def without_antialias(mode: str, rounds: bool):
    def apply(port: Port):
        height, width = port.arguments["pixel_values"].shape[-2:]
        picture = torch.tensor(port.picture, dtype=torch.float32).permute(2, 0, 1)[None]
        resized = interpolate(picture, (height, width), mode=mode, align_corners=False)
        resized = resized.round().clamp(0, 255) if rounds else resized
        mean, std = (torch.tensor(settings(port)[name])[:, None, None] for name in ("image_mean", "image_std"))
        port.arguments["pixel_values"] = ((resized / 255 - mean) / std).to(port.dtype)
        return []

    return apply


for mode in ("bilinear", "bicubic"):
    for rounds, words in ((False, ""), (True, ", rounded")):
        pixels(
            f"resized by {mode} without antialias{words}",
            f"the picture is resized by the filter {mode} without antialias",
            families=lambda p: not is_cropped(p),
        )(without_antialias(mode, rounds))


# patches, tokens and positions


def embeddings_of(port: Port) -> nn.Module:
    return next(module for path, module in port.model.named_modules() if path.split(".")[-1] == "embeddings")


def convolution_of(module: nn.Module) -> nn.Conv2d:
    return next(one for one in module.modules() if isinstance(one, nn.Conv2d))


def plain_patches(x: torch.Tensor, convolution: nn.Conv2d) -> torch.Tensor:
    return convolution(x).flatten(2).transpose(1, 2)


def flattened(order: tuple[int, int, int]) -> Callable[..., torch.Tensor]:
    """Patches whose channels, rows and columns of pixels are flattened in another order than that of the weight."""

    def patches(x: torch.Tensor, convolution: nn.Conv2d) -> torch.Tensor:
        height, width = convolution.kernel_size
        cut = x.unfold(2, height, height).unfold(3, width, width)  # (B, C, rows, columns, height, width)
        cut = cut.permute(0, 2, 3, *(((1, 4, 5)[at]) for at in order)).flatten(3).flatten(1, 2)
        y = cut @ convolution.weight.flatten(1).T
        return y if convolution.bias is None else y + convolution.bias

    return patches


def table_of(module: nn.Module) -> torch.Tensor | None:
    """The learned positions (P, D), or None."""
    table = getattr(module, "position_embeddings", None)
    if table is None and hasattr(module, "position_embedding"):
        table = module.position_embedding.weight
    return None if table is None else table.reshape(-1, table.shape[-1])


def wrong_embeddings(
    patch: Callable[..., torch.Tensor] = plain_patches,
    order: tuple[str, ...] = ("cls", "registers", "patches"),
    shift: Callable[[torch.Tensor, int], torch.Tensor] = lambda rows, first: rows,
    by_index: bool = False,
    mode: dict[str, Any] | None = None,
) -> Callable[[Port], list[Any]]:
    """Embeddings with other patches, another order of tokens, or other positions.

    shift     changes the rows of positions: (rows, whether the first is of the class) -> rows
    by_index  whether positions are added to tokens in their order, not to the token that each belongs to
    mode      options of the interpolation of positions
    """

    def apply(port: Port) -> list[Any]:
        module = embeddings_of(port)
        convolution, table = convolution_of(module), table_of(module)

        def forward(pixel_values, *others, **kwargs):
            count = len(pixel_values)
            parts = {"patches": patch(pixel_values, convolution)}
            has_class = port.config.patches.has_class
            if has_class:
                token = module.class_embedding if hasattr(module, "class_embedding") else module.cls_token
                parts["cls"] = token.reshape(1, 1, -1).expand(count, -1, -1)
            if getattr(module, "register_tokens", None) is not None:
                parts["registers"] = module.register_tokens.expand(count, -1, -1)
            if table is not None:
                rows = resized(table, port, pixel_values.shape[-2:], mode or known_mode(port))
                rows = shift(rows, int(has_class))
                if by_index:
                    tokens = torch.cat([parts[name] for name in order if name in parts], dim=1)
                    return tokens + rows
                parts["patches"] = parts["patches"] + rows[has_class:]
                if has_class:
                    parts["cls"] = parts["cls"] + rows[:1]
            return torch.cat([parts[name] for name in order if name in parts], dim=1)

        return [mock.patch.object(module, "forward", forward)]

    return apply


def known_mode(port: Port) -> dict[str, Any]:
    return {"mode": "bicubic", "align_corners": False, "antialias": port.config.patches.resampling == "antialiased"}


def resized(table: torch.Tensor, port: Port, size: tuple[int, int], mode: dict[str, Any]) -> torch.Tensor:
    cut = port.config.patches
    usual, grid, first = cut.grid(cut.height, cut.width), cut.grid(*size), int(cut.has_class)
    if usual == grid:
        return table
    square = table[first:].reshape(1, *usual, -1).permute(0, 3, 1, 2).float()
    points = interpolate(square, grid, **mode).permute(0, 2, 3, 1).reshape(-1, table.shape[-1])
    return torch.cat((table[:first], points.to(table.dtype)))


def has(*names: str) -> Callable[[Port], bool]:
    """Whether a model has a class token, registers, a table of positions, or another grid than its own."""

    def check(port: Port) -> bool:
        cut = port.config.patches
        facts = {
            "class": cut.has_class, "registers": cut.registers > 0, "table": table_of(embeddings_of(port)) is not None,
            "bias": convolution_of(embeddings_of(port)).bias is not None,
            "grid": cut.grid(*port.arguments["pixel_values"].shape[-2:]) != cut.grid(cut.height, cut.width),
        }  # fmt: skip
        return all(facts[name] for name in names)

    return check


image("embeddings as they are", "", families=lambda p: False)(wrong_embeddings())
image("patches by column", "the patches are taken column by column", families=lambda p: True)(
    wrong_embeddings(lambda x, conv: conv(x).transpose(2, 3).flatten(2).transpose(1, 2))
)
image("patches with channels last", "the pixels of a patch are flattened with the channels last")(
    wrong_embeddings(flattened((1, 2, 0)))
)
image("pixels of a patch transposed", "the rows and columns of the pixels of a patch are exchanged")(
    wrong_embeddings(flattened((0, 2, 1)))
)
image("image transposed", "the image is transposed", families=lambda p: not has("grid")(p) or p.family == "dinov3")(
    wrong_embeddings(lambda x, conv: plain_patches(x.transpose(2, 3), conv))
)
image("channels of patches reversed", "the channels of the patches are read in reverse order")(
    wrong_embeddings(lambda x, conv: plain_patches(x.flip(1), conv))
)
image("no bias of patches", "the bias of the patches is missing", families=has("bias"))(
    wrong_embeddings(
        lambda x, conv: nn.functional.conv2d(x, conv.weight, stride=conv.stride).flatten(2).transpose(1, 2)
    )
)
image("class token last", "the class token is last", families=has("class"))(
    wrong_embeddings(order=("registers", "patches", "cls"))
)
image("class token last, positions in order", "the class token is last",
      families=lambda p: has("class", "table")(p) and not p.config.patches.registers)(
    wrong_embeddings(order=("patches", "cls"), by_index=True)
)  # fmt: skip
image("no class token", "the class token is missing", families=has("class"))(
    wrong_embeddings(order=("registers", "patches"))
)
image("registers after the patches", "the registers are after the patches", families=has("registers"))(
    wrong_embeddings(order=("cls", "patches", "registers"))
)
image("registers before the class token", "the registers are before the class token", families=has("registers"))(
    wrong_embeddings(order=("registers", "cls", "patches"))
)
image("no registers", "the registers are missing", families=has("registers"))(
    wrong_embeddings(order=("cls", "patches"))
)
image("positions one off", "positions are one off: each token has the position before", families=has("table"))(
    wrong_embeddings(shift=lambda rows, first: rows.roll(1, 0))
)
image(
    "positions one off, backwards", "positions are one off: each token has the position after", families=has("table")
)(wrong_embeddings(shift=lambda rows, first: rows.roll(-1, 0)))
image("no position of the class token", "the class token has no position", families=has("table", "class"))(
    wrong_embeddings(shift=lambda rows, first: torch.cat((torch.zeros_like(rows[:1]), rows[1:])))
)
image("positions of patches from the first", "the class token has no position, and that of the class is the first",
      families=has("table", "class"))(
    wrong_embeddings(shift=lambda rows, first: torch.cat((torch.zeros_like(rows[:1]), rows[:-1])))
)  # fmt: skip
for words, mode in (
    ("bicubic", {"mode": "bicubic", "align_corners": False}),
    ("bicubic with antialias", {"mode": "bicubic", "align_corners": False, "antialias": True}),
    ("bicubic with align_corners", {"mode": "bicubic", "align_corners": True}),
    ("bilinear", {"mode": "bilinear", "align_corners": False}),
    ("bilinear with align_corners", {"mode": "bilinear", "align_corners": True}),
    ("nearest", {"mode": "nearest"}),
):
    image(
        f"positions by {words}", f"the positions are resized by the filter {words}",
        families=lambda p, m=mode: has("grid", "table")(p) and known_mode(p) != {"antialias": False, **m},
    )(wrong_embeddings(mode=mode))  # fmt: skip


@image("no norm of image embeddings", "the norm is missing", families=lambda p: p.config.embed_norm)
def no_norm(port: Port):
    port.replace(port.path("encoder.embed_norm", "gamma"), nn.Identity())
    return []


for number in (1, 2):

    @image(
        f"no LayerScale {number}",
        "the factors of the features (LayerScale) are missing",
        families=lambda p: p.config.layer_scale,
    )
    def no_scale(port: Port, number=number):
        path = [path for path, _ in port.model.named_modules() if path.endswith(f"layer_scale{number}")][-1]
        port.replace(path, nn.Identity())
        return []


KINDS = {"gelu": nn.GELU(), "gelu-tanh": nn.GELU(approximate="tanh"), "quick-gelu": QuickGelu(), "relu": nn.ReLU(),
         "silu": nn.SiLU()}  # fmt: skip
for kind, module in KINDS.items():

    def other_activation(port: Port, module=module):
        names = ("act", "act_fn", "activation_fn", "intermediate_act_fn", "activation")
        path = [path for path, _ in port.model.named_modules() if path.rpartition(".")[2] in names and ".1." in path][
            -1
        ]
        port.replace(path, module)
        return []

    image(
        f"activation {kind} of images", f"the activation is {kind} ",
        families=lambda p, k=kind: p.config.activation != k and p.family != "dinov2-swiglu",
    )(other_activation)  # fmt: skip
