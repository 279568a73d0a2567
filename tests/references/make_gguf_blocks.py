"""Random blocks of each type of GGUF, and the numbers that gguf decodes them to, frozen.

    pip install gguf==0.19.0 numpy==2.4.6
    PYTHONPATH=. python tests/references/make_gguf_blocks.py

writes gguf_blocks.npz: TYPE, blocks (N, bytes) as uint8, and TYPE.numbers (N, numbers) as float32. The bytes of float16
scales are redrawn until all are finite.
"""

import pathlib
import zlib

import gguf
import numpy as np

COUNT = 6
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")


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
np.savez_compressed(pathlib.Path(__file__).parent / "gguf_blocks.npz", **members)
