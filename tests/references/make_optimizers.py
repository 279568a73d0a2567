"""Steps of torch.optim, frozen: the arrays that tests/training/test_optimizers.py compares with.

    pip install torch==2.13.0 numpy==2.4.6
    python tests/references/make_optimizers.py

writes optimizers.npz. `start.NAME` are the initial parameters and `gradients.NAME` the gradients of each step, float32
numbers that are widened to float64; CASE.STEP.NAME are the parameters after some steps, `rates.SCHEDULE` the
learning rates of all steps, and CASE.norms the norms before clipping. A CASE is OPTIMIZER/SCHEDULE/CLIPPING/DTYPE.
"""

import math
import pathlib

import numpy as np
import torch
from torch.optim import lr_scheduler

HERE = pathlib.Path(__file__).parent
STEPS, WARMUP, RATE, MAX_NORM = 50, 8, 0.02, 4.0
SAVED = (2, STEPS)
SHAPES = {
    "decoder.embed.table": (7, 4),
    "decoder.0.norm1.gamma": (4,),
    "decoder.0.norm1.beta": (4,),
    "decoder.0.ffn.w1": (4, 9),
    "decoder.0.ffn.b1": (9,),
    "decoder.0.ffn.w2": (9, 4),
}
OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, 0.1, {"betas": (0.9, 0.95), "eps": 1e-8}),
    "adam": (torch.optim.Adam, 0.01, {"betas": (0.9, 0.999), "eps": 1e-6}),
    "sgd": (torch.optim.SGD, 0.05, {"momentum": 0.9, "dampening": 0.2}),
    "sgd-plain": (torch.optim.SGD, 0.0, {}),
}


def after_warmup(optimizer, scheduler):
    """A line from 1/WARMUP to 1, and then the other scheduler."""
    warmup = lr_scheduler.LinearLR(optimizer, 1 / WARMUP, 1.0, WARMUP - 1)
    return lr_scheduler.SequentialLR(optimizer, [warmup, scheduler], [WARMUP])


def paper(step: int) -> float:
    """Equation 3 of Attention Is All You Need for a width of 64, over its largest value."""
    rate = 64**-0.5 * min((step + 1) ** -0.5, (step + 1) * WARMUP**-1.5)
    return rate / (64**-0.5 * WARMUP**-0.5)


def slanted(step: int) -> float:
    """Equation 3 of Universal Language Model Fine-tuning, with cut_frac 0.1 and ratio 32."""
    cut = math.floor(STEPS * 0.1)
    p = (step + 1) / cut if step + 1 < cut else 1 - (step + 1 - cut) / (cut * (1 / 0.1 - 1))
    return (1 + p * (32 - 1)) / 32


SCHEDULES = {
    "constant": lambda optimizer: after_warmup(optimizer, lr_scheduler.ConstantLR(optimizer, 1.0, 1)),
    "linear": lambda optimizer: after_warmup(optimizer, lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS - WARMUP)),
    "cosine": lambda optimizer: after_warmup(optimizer, lr_scheduler.CosineAnnealingLR(optimizer, STEPS - WARMUP)),
    "inverse_sqrt": lambda optimizer: lr_scheduler.LambdaLR(optimizer, paper),
    "slanted_triangular": lambda optimizer: lr_scheduler.LambdaLR(optimizer, slanted),
}


def train(name: str, schedule: str, is_clipped: bool, dtype: torch.dtype, start: dict, gradients: dict):
    """The parameters after some steps and the norms of all gradients; and the learning rates."""
    make, decay, options = OPTIMIZERS[name]
    parameters = {key: torch.nn.Parameter(value.to(dtype, copy=True)) for key, value in start.items()}
    groups = [
        {"params": [one for one in parameters.values() if one.ndim > 1], "weight_decay": decay},
        {"params": [one for one in parameters.values() if one.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = make(groups, lr=RATE, **options)
    scheduler = SCHEDULES[schedule](optimizer)
    members, norms, rates = {}, [], []
    for step in range(1, STEPS + 1):
        for key, parameter in parameters.items():
            parameter.grad = gradients[key][step - 1].to(dtype, copy=True)
        if is_clipped:
            norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), MAX_NORM).item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        if step in SAVED:
            members |= {f"{step}.{key}": value.detach().numpy().copy() for key, value in parameters.items()}
    return members | {"norms": np.array(norms)}, rates


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(17)
    start = {key: torch.randn(shape, generator=generator) for key, shape in SHAPES.items()}
    gradients = {key: torch.randn((STEPS, *shape), generator=generator) for key, shape in SHAPES.items()}
    members = {f"start.{key}": value.numpy() for key, value in start.items()}
    members |= {f"gradients.{key}": value.numpy() for key, value in gradients.items()}
    for name in OPTIMIZERS:
        for schedule in SCHEDULES:
            for clipping in ("clipped", "free") if schedule == "constant" else ("clipped",):
                for dtype in (torch.float64, torch.float32):
                    case = f"{name}/{schedule}/{clipping}/{str(dtype).removeprefix('torch.')}"
                    saved, rates = train(name, schedule, clipping == "clipped", dtype, start, gradients)
                    members |= {f"{case}.{key}": value for key, value in saved.items()}
                    members[f"rates.{schedule}"] = np.array(rates)
    np.savez_compressed(HERE / "optimizers.npz", **members)
