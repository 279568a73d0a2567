"""A layer of tests/references/models/gpt2 in float16 and bfloat16, and numbers in 8 bits, by PyTorch on a CPU, frozen.

    pip install torch==2.13.0 transformers==5.23.0 numpy==2.4.6
    python tests/references/make_simulation.py

writes simulation.npz: for each dtype `DTYPE.STAGE`, what the modules of the first layer return up to the activation,
which transformers computes in many steps that are rounded one by one; `fp8.numbers` and `fp8.rounded`, numbers before
and after torch.float8_e4m3fn. The same bytes come out of every run on one kind of processor.
"""

from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
IDS = [5, 12, 19, 26, 33, 40, 47, 54]
MODULES = {"norm1": "ln_1", "self.output": "attn.c_proj", "norm2": "ln_2", "ffn.hidden": "mlp.c_fc"}


def layer(dtype: torch.dtype) -> dict[str, np.ndarray]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        HERE / "models" / "gpt2", attn_implementation="eager", dtype=dtype
    ).eval()
    found: dict[str, np.ndarray] = {}
    for stage, path in MODULES.items():
        module = model.get_submodule(f"transformer.h.0.{path}")
        module.register_forward_hook(
            lambda module, args, output, stage=stage: found.update({stage: output[0].float().numpy()})
        )
    with torch.no_grad():
        model(torch.tensor([IDS]), use_cache=False)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    exact = torch.arange(-448, 449, dtype=torch.float32) / 16  # ties and neighbors
    small = torch.arange(-40, 41, dtype=torch.float32) / 4096  # subnormal numbers
    wide = torch.linspace(-448, 448, 225)
    beyond = torch.tensor([448.0, 463.9, 464.0, 464.1, 480.0, 1e6, -464.0, -465.0, float("nan")])
    numbers = torch.cat([exact, small, wide, beyond])
    arrays = {"fp8.numbers": numbers.numpy(), "fp8.rounded": numbers.to(torch.float8_e4m3fn).float().numpy()}
    for name in ("float16", "bfloat16"):
        arrays |= {f"{name}.{stage}": one for stage, one in layer(getattr(torch, name)).items()}
    np.savez_compressed(HERE / "simulation.npz", **arrays)
