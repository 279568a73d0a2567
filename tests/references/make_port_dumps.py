"""Dumps that other programs write of the tiny models in models/, frozen: what tests/debugger/test_port_dumps.py reads.

    pip install -e . numpy==2.4.6, and for each program:
    llama.cpp         llama-cpp-python==0.3.36
    MLX               'mlx[cpu]==0.32.4' mlx-lm==0.32.2
    TransformerLens   transformer-lens==4.3.0 torch==2.13.0 transformers==5.23.0
    nnsight           nnsight==0.8.1 torch==2.13.0 transformers==5.23.0
    JAX               jax==0.11.2
    ONNX              onnx onnxscript onnxruntime torch==2.13.0 transformers==5.23.0
    torch             torch==2.13.0 transformers==5.23.0

    python -m tests.references.make_port_dumps PROGRAM

writes dumps/ports/PROGRAM-MODEL….npz. Attention is far from uniform in these models, so that a mask, a window or an
angle that is wrong shows. `show --hooks` prints the scripts that do the recording.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.debugger.hooks import write_hooks
from tests.gguf_models import convert
from tests.places import folder

HERE = pathlib.Path(__file__).parent / "dumps" / "ports"
IDS = [[5, 9, 17, 30, 8, 41, 7, 22, 33, 12]]
PAIR = [[5, 9, 17, 30, 8, 41], [7, 7, 12, 3, 50, 2]]
TARGET = [[0, 7, 12, 4]]


def place(name: str) -> str:
    HERE.mkdir(parents=True, exist_ok=True)
    return str(HERE / f"{name}.npz")


# llama.cpp


def record_llama_cpp(name: str, model: str, ids: list[int], cache: int) -> None:
    """Run the script that `show --hooks` prints; cache: the type of keys and values, 0 for float32, 1 for float16."""
    sys.argv = ["hooks.py", place(name), *map(str, ids)]
    script = write_hooks(open_checkpoint(model), "llama.cpp").replace("np.savez(", "np.savez_compressed(")
    exec(script.replace("type_v = 0", f"type_v = {cache}"), {})


def make_llama_cpp() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for model, cache in (("llama", 0), ("llama", 1), ("gpt2", 0), ("phi3", 0), ("mixtral", 0), ("gemma2", 0)):
            file = pathlib.Path(scratch, f"{model}.gguf")
            file.write_bytes(convert(model, {"tokenizer.ggml.model": "none"}))
            record_llama_cpp(f"llama_cpp-{model}" + "-f16" * cache, str(file), IDS[0][:6], cache)


# MLX


def record_mlx(name: str, model: str, dtype: str = "float32") -> None:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    opened, _ = load_model(pathlib.Path(model))
    opened.set_dtype(getattr(mx, dtype))
    paths = {id(module): path for path, module in opened.named_modules()}

    def tapped(call):
        def run(self, *args, **kwargs):
            result = call(self, *args, **kwargs)
            if id(self) in paths and isinstance(result, mx.array):
                attnkit.tap(f"{paths[id(self)]}.output", result)
            return result

        return run

    kinds = {kind: kind.__call__ for kind in {type(module) for module in opened.modules()}}
    for kind, call in kinds.items():
        kind.__call__ = tapped(call)
    with attnkit.record(place(name)):
        opened(attnkit.tap("input_ids", mx.array(IDS)))
    for kind, call in kinds.items():
        kind.__call__ = call


def change_config(model: str, target: str, **changes) -> str:
    """A copy of a model with keys of its config.json added, or removed for None."""
    shutil.copytree(folder(model), target)
    path = pathlib.Path(target, "config.json")
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return target


def make_mlx() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        record_mlx("mlx-llama", folder("llama"))
        record_mlx("mlx-llama-bfloat16", folder("llama"), "bfloat16")
        record_mlx("mlx-mistral-window", folder("mistral"))
        newer = {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
        record_mlx("mlx-llama-theta", change_config("llama", f"{scratch}/llama", **newer))


# torch


def open_torch(model: str, kind: str = "ForCausalLM", dtype: str = "float32"):
    import torch
    import transformers

    opened = getattr(transformers, f"AutoModel{kind}").from_pretrained(
        folder(model), attn_implementation="eager", dtype=getattr(torch, dtype)
    )
    return torch, opened.eval()


def make_transformer_lens() -> None:
    from transformer_lens import TransformerBridge

    kinds = {"llama": "ForCausalLM", "gpt2": "ForCausalLM", "bert-mlm": "ForMaskedLM", "t5": "ForSeq2SeqLM"}
    for model, processes in (("llama", False), ("bert-mlm", False), ("t5", False), ("gpt2", False), ("gpt2", True)):
        torch, opened = open_torch(model, kinds[model])
        bridge = TransformerBridge.boot_transformers(folder(model), hf_model=opened, dtype=torch.float32)
        if processes:
            bridge.enable_compatibility_mode()
        read = {"decoder_input": torch.tensor(TARGET)} if model == "t5" else {}
        _, cache = bridge.run_with_cache(torch.tensor(PAIR[:1]), return_type="logits", **read)
        arrays = {name: array.detach().numpy() for name, array in cache.items()}
        others = {"decoder_input_ids": np.array(TARGET)} if read else {}
        file = place(f"transformer_lens-{model}" + "-processed" * processes)
        np.savez_compressed(file, input_ids=np.array(PAIR[:1]), **others, **arrays)


def make_nnsight() -> None:
    from nnsight import NNsight

    torch, opened = open_torch("gpt2")
    with torch.no_grad(), NNsight(opened).trace(torch.tensor(IDS)) as tracer:
        cache = tracer.cache()
    found = {}
    for path in cache.keys():  # noqa: SIM118 - it is no mapping
        value = cache[path].output
        value = value[0] if isinstance(value, tuple) else value
        found |= {path: value.numpy()} if isinstance(value, torch.Tensor) else {}
    np.savez_compressed(place("nnsight-gpt2"), input_ids=np.array(IDS), **found)


def make_torch() -> None:
    torch, model = open_torch("albert", "")
    found: dict[str, np.ndarray] = {"input_ids": np.array(IDS)}

    def keep(path):
        def hook(module, args, output):
            output = output[0] if isinstance(output, tuple) else output
            if isinstance(output, torch.Tensor):
                found[path] = output.detach().numpy()  # of the last call, for a module that is called several times

        return hook

    for path, module in model.named_modules():
        module.register_forward_hook(keep(path))
    with torch.no_grad():
        model(torch.tensor(IDS))
    np.savez_compressed(place("hooks-albert"), **found)

    _, model = open_torch("gpt2")
    with torch.no_grad():
        states = model(torch.tensor(IDS), output_hidden_states=True).hidden_states
    lists = {f"hidden_states.{number}": state.numpy() for number, state in enumerate(states)}
    np.savez_compressed(place("hidden_states-gpt2"), input_ids=np.array(IDS), **lists)

    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    for name, dtype in (("left_padding-llama", "float32"), ("bfloat16-llama", "bfloat16")):
        _, model = open_torch("llama", dtype=dtype)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.no_grad(), attnkit.record(place(name), model):
            model(input_ids=torch.tensor(PAIR), attention_mask=mask, position_ids=positions, use_cache=False)


# ONNX


def logits_of(model, torch):
    """A module that takes the inputs of a model in their order, and returns its logits."""

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, position_ids=None):
            positions = {} if position_ids is None else {"position_ids": position_ids}
            return self.model(input_ids=input_ids, attention_mask=attention_mask, **positions).logits

    return Logits().eval()


def make_onnx() -> None:
    import onnxruntime

    for model, kind in (("llama", "ForCausalLM"), ("bert-mlm", "ForMaskedLM")):
        torch, opened = open_torch(model, kind)
        opened.config.use_cache = False
        ids = torch.tensor(PAIR[:1])
        read = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        read |= {"position_ids": torch.arange(6)[None]} if model == "llama" else {}
        feeds = {name: array.numpy() for name, array in read.items()}
        for exporter in ("torchscript", "dynamo"):
            with tempfile.TemporaryDirectory() as scratch:
                file = f"{scratch}/model.onnx"
                options = {"input_names": [*read], "output_names": ["logits"], "dynamo": exporter == "dynamo"}
                torch.onnx.export(logits_of(opened, torch), tuple(read.values()), file, opset_version=18, **options)
                attnkit.record_onnx(place(f"onnx-{model}-{exporter}"), file, feeds)
                for level in ("basic", "extended") if exporter == "torchscript" else ():
                    settings = onnxruntime.SessionOptions()
                    whole = onnxruntime.GraphOptimizationLevel
                    settings.graph_optimization_level = getattr(whole, f"ORT_ENABLE_{level.upper()}")
                    settings.optimized_model_filepath = f"{scratch}/{level}.onnx"
                    onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
                    attnkit.record_onnx(place(f"onnx-{model}-{level}"), f"{scratch}/{level}.onnx", feeds)


# JAX


def make_jax() -> None:
    import jax
    import jax.numpy as jnp
    from safetensors.numpy import load_file

    stored = {name: jnp.asarray(array) for name, array in load_file(f"{folder('gpt2')}/model.safetensors").items()}
    config = json.loads(pathlib.Path(folder("gpt2"), "config.json").read_text())
    tap, start = attnkit.tap, "" if "wte.weight" in stored else "transformer."

    def linear(x, name):
        return x @ stored[f"{start}{name}.weight"] + stored[f"{start}{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + config["layer_norm_epsilon"])
        return scaled * stored[f"{start}{name}.weight"] + stored[f"{start}{name}.bias"]

    def attend(site, q, k, v):
        q, k, v = tap(f"{site}.q", q), tap(f"{site}.k", k), tap(f"{site}.v", v)
        scores = tap(f"{site}.scores", q @ k.swapaxes(-1, -2)) / q.shape[-1] ** 0.5
        masked = tap(f"{site}.masked", jnp.where(jnp.tri(len(q), dtype=bool), scores, -1e30))
        return tap(f"{site}.heads", tap(f"{site}.weights", jax.nn.softmax(masked, -1)) @ v)

    def model(ids):  # (T,) of one text, and attention of one head
        x = tap("decoder.embed", stored[f"{start}wte.weight"][ids])
        x = tap("decoder.positions", x + stored[f"{start}wpe.weight"][: len(ids)])
        for number in range(config["n_layer"]):
            layer, module = f"decoder.{number}", f"h.{number}"
            fused = linear(tap(f"{layer}.norm1", norm(x, f"{module}.ln_1")), f"{module}.attn.c_attn")
            heads = [one.reshape(len(ids), config["n_head"], -1).swapaxes(0, 1) for one in jnp.split(fused, 3, -1)]
            joined = jax.vmap(lambda *one: attend(f"{layer}.self", *one))(*heads).swapaxes(0, 1)  # noqa: B023
            x = x + tap(f"{layer}.self.output", linear(joined.reshape(len(ids), -1), f"{module}.attn.c_proj"))
            hidden = linear(tap(f"{layer}.norm2", norm(x, f"{module}.ln_2")), f"{module}.mlp.c_fc")
            active = tap(f"{layer}.ffn.activated", jax.nn.gelu(tap(f"{layer}.ffn.hidden", hidden)))
            x = tap(f"{layer}.ffn.residual", x + linear(active, f"{module}.mlp.c_proj"))
        return tap("logits", tap("decoder.norm", norm(x, "ln_f")) @ stored[f"{start}wte.weight"].T)

    ways = {"jit": lambda: jax.jit(model)(jnp.array(PAIR[0])), "vmap": lambda: jax.vmap(model)(jnp.array(PAIR))}
    for name, run in ways.items():
        with attnkit.record(place(f"jax-gpt2-{name}")):
            attnkit.tap("ids", np.array(PAIR[0] if name == "jit" else PAIR))
            run()


PROGRAMS = {
    "llama.cpp": make_llama_cpp,
    "MLX": make_mlx,
    "TransformerLens": make_transformer_lens,
    "nnsight": make_nnsight,
    "JAX": make_jax,
    "ONNX": make_onnx,
    "torch": make_torch,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
