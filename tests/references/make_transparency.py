"""Pictures with transparency, and the pixels that transformers' processors make of them, frozen.

    pip install transformers==5.23.0 numpy==2.4.6 pillow==12.3.0
    python tests/references/make_transparency.py

writes transparency.npz: NAME, a PNG file as bytes, and NAME.pixels (height, width, 3) uint8, what the processors of
CLIP, SigLIP and DINOv2 (Bit) make of it before they resize it. All three convert pictures to RGB; those of ViT and
DINOv3 do not, and refuse pictures of four channels.
"""

import io
import pathlib

import numpy as np
from PIL import Image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

PLAIN = {"do_resize": False, "do_center_crop": False, "do_rescale": False, "do_normalize": False}
PROCESSORS = [kind(**PLAIN) for kind in (CLIPImageProcessorPil, SiglipImageProcessorPil, BitImageProcessorPil)]
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (5, 7, 4), np.uint8)


def save(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


palette = Image.fromarray(PIXELS[..., :3]).quantize(8)
FILES = {
    "rgba": save(Image.fromarray(PIXELS)),
    "la": save(Image.fromarray(PIXELS[..., :2], "LA")),
    "palette": save(palette, transparency=bytes([0, 40, 128, 255, 3])),
    "palette of one": save(palette, transparency=2),
    "rgb with a key": save(Image.fromarray(PIXELS[..., :3]), transparency=tuple(map(int, PIXELS[2, 3, :3]))),
    "grey with a key": save(Image.fromarray(PIXELS[..., 0]), transparency=int(PIXELS[1, 1, 0])),
}

members = {}
for name, content in FILES.items():
    image = Image.open(io.BytesIO(content))
    results = [np.asarray(one(images=image, return_tensors="np")["pixel_values"][0]) for one in PROCESSORS]
    assert all(np.array_equal(results[0], other) for other in results), name
    pixels = np.moveaxis(results[0], 0, -1)
    assert pixels.shape == (5, 7, 3) and np.array_equal(pixels, pixels.astype(np.uint8))
    members |= {name: np.frombuffer(content, np.uint8), f"{name}.pixels": pixels.astype(np.uint8)}
np.savez_compressed(pathlib.Path(__file__).parent / "transparency.npz", **members)
