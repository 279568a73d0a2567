"""Files of torch.save, frozen: what tests/formats/test_pytorch.py reads.

    pip install torch==2.13.0 numpy==2.4.6 safetensors
    python tests/references/make_pytorch.py

pytorch/state.bin and its siblings hold the same tensors: in an archive, in one of pickle protocol 4, and as PyTorch
wrote them before 1.6. expected.npz has their values (bfloat16 as uint16). script.pt is a program, which no state dict
is; module.pt is a whole module. shards/ is a tiny GPT-2 in two files with an index, weights.npz its values.
"""

import json
import pathlib

import numpy as np
import torch

HERE = pathlib.Path(__file__).parent / "pytorch"


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    found = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).state_dict()  # with _metadata
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    found |= {
        "transposed": base.t(),
        "part": base[1:3, 2:5],
        "every": base.reshape(-1)[1::3],
        "tied": found["0.weight"],
    }
    found |= {"expanded": torch.tensor([1.0, 2.0]).expand(3, 2), "permuted": base.reshape(2, 3, 4).permute(2, 0, 1)}
    found |= {"parameter": torch.nn.Parameter(torch.ones(2, 2) / 3), "empty": torch.zeros(0, 3)}
    found |= {"scalar": torch.tensor(-0.0), "special": torch.tensor([float("nan"), float("inf"), 1e-45])}
    for name in ("float64", "float32", "float16", "bfloat16"):
        found[name] = torch.tensor([0.1, -2.5, 7.0]).to(getattr(torch, name))
    for name in ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"):
        found[name] = torch.tensor([1, 0, 3]).to(getattr(torch, name))
    return found


def values(found: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {
        name: (one.view(torch.uint16) if one.dtype == torch.bfloat16 else one).detach().numpy()
        for name, one in found.items()
    }


def tiny_gpt2() -> dict[str, torch.Tensor]:
    sizes = {"ln_1.weight": (4,), "ln_1.bias": (4,), "ln_2.weight": (4,), "ln_2.bias": (4,)}
    sizes |= {"attn.c_attn.weight": (4, 12), "attn.c_attn.bias": (12,), "attn.c_proj.weight": (4, 4)}
    sizes |= {"attn.c_proj.bias": (4,), "mlp.c_fc.weight": (4, 16), "mlp.c_fc.bias": (16,)}
    sizes |= {"mlp.c_proj.weight": (16, 4), "mlp.c_proj.bias": (4,)}
    shapes = {"wte.weight": (6, 4), "wpe.weight": (8, 4)} | {f"h.0.{name}": shape for name, shape in sizes.items()}
    return {name: torch.randn(shape) for name, shape in (shapes | {"ln_f.weight": (4,), "ln_f.bias": (4,)}).items()}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    found = state()
    torch.save(found, HERE / "state.bin")
    torch.save(found, HERE / "protocol4.bin", pickle_protocol=4)
    torch.save(found, HERE / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save({"model": dict(found.items()), "averages": [found["part"]]}, HERE / "nested.pt")
    torch.save(found["part"], HERE / "tensor.pt")
    torch.save(torch.nn.Linear(2, 2), HERE / "module.pt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), HERE / "script.pt")
    np.savez_compressed(HERE / "expected.npz", **values(found))
    weights = tiny_gpt2()
    (HERE / "shards").mkdir(exist_ok=True)
    config = {"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 6}
    (HERE / "shards" / "config.json").write_text(json.dumps(config))
    parts = {name: f"pytorch_model-0000{1 + (at > 8)}-of-00002.bin" for at, name in enumerate(weights)}
    for file in {*parts.values()}:
        torch.save({name: one for name, one in weights.items() if parts[name] == file}, HERE / "shards" / file)
    index = {"metadata": {}, "weight_map": parts}
    (HERE / "shards" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    np.savez_compressed(HERE / "weights.npz", **values(weights))


if __name__ == "__main__":
    main()
