"""Convolutions and their gradients, frozen: the arrays that tests/model/test_convolution.py compares with.

    pip install torch==2.13.0 numpy==2.4.6
    python tests/references/make_convolutions.py

convolutions.npz: members CASE.x, .w, .b and .dy are inputs, float32 numbers that PyTorch used in float64; CASE.y, .dx,
.dw and .db are what it made of them, in its layout (N, C, L) or (N, C, L, M).
"""

import pathlib

import numpy as np
import torch
from torch.nn.functional import conv1d, conv2d

HERE = pathlib.Path(__file__).parent

# name -> (sizes, kernel, filters, stride, padding on both sides of each dimension, dilation, groups)
CASES = {
    "line": ((9,), (3,), 5, (1,), (0,), (1,), 1),
    "strided": ((10,), (3,), 5, (2,), (1,), (1,), 1),
    "dilated-groups": ((11,), (2,), 6, (3,), (2,), (3,), 2),
    "depthwise": ((7,), (4,), 4, (1,), (2,), (1,), 4),
    "image": ((6, 5), (3, 2), 3, (1, 2), (1, 0), (1, 1), 1),
    "image-dilated-groups": ((7, 6), (2, 3), 4, (2, 1), (0, 2), (3, 2), 2),
}
CHANNELS, BATCH = 4, 2


def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of float32, in float64."""
    return rng.standard_normal(shape, np.float32).astype(np.float64)


def main() -> None:
    rng, arrays = np.random.default_rng(0), dict[str, np.ndarray]()
    for name, (sizes, kernel, filters, stride, padding, dilation, groups) in CASES.items():
        shapes = (BATCH, CHANNELS, *sizes), (filters, CHANNELS // groups, *kernel), (filters,)
        tensors = [torch.tensor(draw(rng, shape), requires_grad=True) for shape in shapes]
        convolve = conv1d if len(sizes) == 1 else conv2d
        y = convolve(*tensors, stride=stride, padding=padding, dilation=dilation, groups=groups)
        dy = torch.tensor(draw(rng, y.shape))
        y.backward(dy)
        made = dict(zip("xwb", tensors, strict=True)) | {"y": y, "dy": dy}
        made |= {f"d{one}": tensor.grad for one, tensor in zip("xwb", tensors, strict=True)}
        arrays |= {f"{name}.{one}": tensor.detach().numpy().astype(np.float32) for one, tensor in made.items()}
    np.savez(HERE / "convolutions.npz", **arrays)


if __name__ == "__main__":
    main()
