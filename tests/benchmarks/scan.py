"""What a sweep costs, beside TransformerLens and one process per patch: python tests/benchmarks/scan.py

All 12 layers × 20 positions of a model of GPT-2's size with random weights: `scan` from the start of its process, the
patching helper of TransformerLens with a model that is loaded (pip install torch transformer-lens; PEER may name the
Python of an environment that has them), and one process of decode --patch, times the number of patches. The scores of
TransformerLens must be those of scan.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from models import write_gpt2

from attnkit import formats

TOKENIZER = Path(__file__).parents[1] / "references/models/gpt2/tokenizer.json"
CLEAN, CORRUPTED = (f"the {name} was on the mat and the cat was in the mat on" for name in ("cat", "mat"))
WORD, RUNS = " the", 3

HELPER = """
import sys, time, warnings
warnings.filterwarnings("ignore")
import torch
from tokenizers import Tokenizer
from transformer_lens import TransformerBridge, patching
from transformers import AutoModelForCausalLM
folder, *texts = sys.argv[1:]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
clean, corrupted, word = (torch.tensor([tokenizer.encode(text).ids]) for text in texts)
hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
model = TransformerBridge.boot_transformers(folder, hf_model=hf, dtype=torch.float32, device="cpu")
folding = {"center_writing_weights": False, "center_unembed": False, "fold_value_biases": False, "fold_ln": False}
model.enable_compatibility_mode(disable_warnings=True, **folding)
with torch.no_grad():
    start = time.perf_counter()
    _, cache = model.run_with_cache(clean)
    made = patching.get_act_patch_resid_mid(model, corrupted, cache, lambda logits: logits[0, -1, word[0, 0]])
    print(time.perf_counter() - start, *made.flatten().tolist())
"""


def main() -> None:
    """Print the seconds of each way, the shortest of some runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_gpt2(folder)
        shutil.copy(TOKENIZER, folder)
        seconds, scores = measure_scan(folder)
        alone, peer = measure_process(folder), measure_peer(folder)
    print(f"scan of {scores.shape} patches, from the start of its process: {seconds:.2f} s")
    print(f"one process a patch: {scores.size} × {alone:.2f} s, {scores.size * alone / seconds:.0f} × as long")
    if peer:
        worst = max(abs(one - other) for one, other in zip(scores.ravel().tolist(), peer[1:], strict=True))
        print(f"TransformerLens, loaded: {peer[0]:.2f} s, {peer[0] / seconds:.1f} × as long; differs by {worst:.0e}")


def measure_scan(folder: Path) -> tuple[float, Any]:
    """Return the seconds of a process of scan, and its scores."""
    command = ["scan", CLEAN, "--against", CORRUPTED, "--score", WORD, "--patch", "decoder.*.self.residual"]
    command += ["--positions", "-o", str(folder / "map.npz")]
    seconds = min(time_tool(folder, command) for _ in range(RUNS))
    return seconds, formats.load(str(folder / "map.npz"))["patched"]


def measure_process(folder: Path) -> float:
    """Return the seconds of one process with one patch."""
    trace, out = str(folder / "run.npz"), ["-o", str(folder / "one.npz")]
    time_tool(folder, ["decode", CLEAN, "--max-tokens", "0", "--trace", trace, *out])
    patch = ["--patch", f"decoder.6.self.residual[10]={trace}"]
    return min(time_tool(folder, ["decode", CORRUPTED, "--score", WORD, *patch, *out]) for _ in range(RUNS))


def measure_peer(folder: Path) -> list[float]:
    """Return the seconds of TransformerLens, and its scores; nothing where it is missing."""
    line = [os.environ.get("PEER", sys.executable), "-c", HELPER, str(folder), CLEAN, CORRUPTED, WORD]
    done = subprocess.run(line, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    return [*map(float, done.stdout.split())] if done.returncode == 0 else []


def time_tool(folder: Path, command: list[str]) -> float:
    """Return the seconds that a tool takes with a model."""
    start = time.perf_counter()
    line = [sys.executable, "-m", "attnkit", *command, "--model", str(folder)]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
