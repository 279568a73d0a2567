"""A model of 16 bits, converted once or a layer at a time: python tests/benchmarks/memory.py [PAIRS]

A Llama of GPT-2's size (12 layers of width 768, 50257 words) with random weights, in bfloat16 and in float16. For each
way, the median of PAIRS processes [3] taken in turn: tokens per second after a prompt of 8, seconds of a pass of 256
tokens with their logits, and the peak of memory beside the pages of the mapped file.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy

from attnkit.formats.dtypes import dtype_of

LAYERS, WIDTH, HIDDEN, VOCAB, TOKENS = 12, 768, 2048, 50257, 40
DECODE = f"""
import sys, time, warnings
from pathlib import Path
import numpy as np
from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
warnings.simplefilter("ignore")
if sys.argv[2] == "by layer":
    formats.available_memory = lambda: 0
checkpoint = open_checkpoint(sys.argv[1])
core = model.Model(checkpoint.config, checkpoint.params)
decoder, taken = model.CachedDecoder(core), []
decoder(np.arange(1, 9)[None])
for token in range({TOKENS}):
    start = time.perf_counter()
    decoder(np.array([[token]]))
    taken.append(time.perf_counter() - start)
passes = []
for _ in range(3):
    start = time.perf_counter()
    x = model.run(core, checkpoint.config.plan("decoder"), np.arange(256)[None], model.Context())
    model.head_logits(core, x)
    passes.append(time.perf_counter() - start)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
peak = int(status["VmHWM"].split()[0]) - int(status["RssFile"].split()[0])
print(1 / sorted(taken)[{TOKENS} // 4], min(passes), peak / 1000)
"""


def write_model(folder: Path, dtype: str) -> None:
    """Write the model with random weights."""
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    for place in (f"model.layers.{number}" for number in range(LAYERS)):
        shapes |= {f"{place}.self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"}
        shapes |= {f"{place}.mlp.{name}_proj.weight": (HIDDEN, WIDTH) for name in ("gate", "up")}
        shapes |= {f"{place}.mlp.down_proj.weight": (WIDTH, HIDDEN)}
        shapes |= {f"{place}.{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
    tensors = {name: rng.standard_normal(shape, np.float32) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    written = {name: one.astype(dtype_of(dtype)) for name, one in tensors.items()}
    safetensors.numpy.save_file(written, folder / "model.safetensors")
    config = {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": HIDDEN}
    config |= {"num_hidden_layers": LAYERS, "num_attention_heads": 12, "rms_norm_eps": 1e-6}
    config |= {"max_position_embeddings": 1024, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))


def main() -> None:
    """Measure both ways in both dtypes."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print("dtype     converted  tokens/s  256 tokens  memory")
    for dtype in ("bfloat16", "float16"):
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), dtype)
            ways: dict[str, list[list[float]]] = {"once": [], "by layer": []}
            for _ in range(pairs):
                for way, found in ways.items():
                    command = [sys.executable, "-c", DECODE, folder, way]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    found.append([float(word) for word in done.stdout.split()])
        for way, found in ways.items():
            rate, seconds, peak = map(statistics.median, zip(*found, strict=True))
            print(f"{dtype:8}  {way:9}  {rate:8.1f}  {seconds:8.2f} s  {peak:4.0f} MB")


if __name__ == "__main__":
    main()
