"""Random blocks of each type of GGUF, and the numbers that gguf decodes them to, frozen.

    pip install gguf==0.19.0 numpy==2.4.6
    PYTHONPATH=. python tests/references/make_gguf_blocks.py

writes gguf_blocks.npz: TYPE, blocks (N, bytes) as uint8, and TYPE.numbers (N, numbers) as float32. The bytes of float16
scales are redrawn until all are finite. TYPE.grid is the SHA-256 of a type's whole table of points as float32.
"""

import hashlib
import pathlib
import zlib

import gguf
import numpy as np

COUNT = 6
TYPES = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
    "NVFP4", "TQ1_0", "TQ2_0", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M",
)  # fmt: skip
GRIDS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S")


def draw(name: str) -> tuple[np.ndarray, np.ndarray]:
    kind = gguf.GGMLQuantizationType[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    while True:
        blocks = rng.integers(0, 256, (COUNT, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        with np.errstate(all="ignore"):
            numbers = gguf.dequantize(blocks, kind)
        if np.isfinite(numbers).all():
            return blocks, numbers


drawn = {name: draw(name) for name in TYPES}
members = {name: blocks for name, (blocks, _) in drawn.items()}
members |= {f"{name}.numbers": numbers for name, (_, numbers) in drawn.items()}
for name in GRIDS:
    table = getattr(gguf.quants, name)
    table.init_grid()
    digest = hashlib.sha256(table.grid.reshape(table.grid_shape).astype(np.float32).tobytes()).digest()
    members[f"{name}.grid"] = np.frombuffer(digest, np.uint8)
np.savez_compressed(pathlib.Path(__file__).parent / "gguf_blocks.npz", **members)
