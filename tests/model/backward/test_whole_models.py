"""The gradients of whole models: those of torch.autograd, frozen, and slopes along random directions."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from attnkit.checkpoints import open_checkpoint
from attnkit.model import Model, token_positions
from attnkit.model.backward.tied import cast_parameters
from attnkit.model.backward.whole_models import StackInputs, model_backward, run_model

REFERENCES = Path(__file__).parents[2] / "references"
SMALL = 32  # elements of a gradient that is frozen whole
CASES = {  # case of tests/references/gradients.npz -> the model
    "gpt2": "gpt2", "gpt2-left": "gpt2", "gpt2-scaled": "gpt2-scaled", "openai-gpt": "openai-gpt", "llama": "llama",
    "llama3": "llama3", "llama-yarn": "llama-yarn", "mistral": "mistral", "qwen2": "qwen2", "bert-mlm": "bert-mlm",
    "bert": "bert", "vit": "vit", "vit-wide": "vit", "t5": "t5", "t5-gated": "t5-gated", "marian": "marian",
    "transformer": "transformer", "transformer-prenorm": "transformer-prenorm",
}  # fmt: skip
LONG = ("llama3", "llama-yarn", "mistral", "qwen2")


@cache
def frozen(file):
    with np.load(REFERENCES / file) as members:
        return dict(members)


def reference(case):
    return {key.removeprefix(f"{case}/"): x for key, x in frozen("gradients.npz").items() if key.startswith(f"{case}/")}


@cache
def core(name, dtype):
    checkpoint = open_checkpoint(str(REFERENCES / "models" / name))
    return Model(checkpoint.config, cast_parameters(checkpoint.params, dtype))


def padding(mask):
    return mask[:, None].astype(bool)


def inputs_of(case, dtype):
    """The inputs of each stack, and which output the loss is of."""
    members = frozen(f"models/{CASES[case]}.npz")
    if case.startswith("vit"):
        return {"encoder": StackInputs(members[{"vit": "pixels"}.get(case, "wide.pixels")].astype(dtype))}, "logits"
    if case.startswith("transformer"):
        x, tgt = members["x"].astype(dtype), members["tgt"].astype(dtype)
        return {"encoder": StackInputs(x, padding(members["padding"])), "decoder": StackInputs(tgt)}, "hidden"
    if case == "bert":
        return {"encoder": StackInputs(members["ids"], segment_ids=members["types"])}, "pooled"
    if case in LONG:
        return {"decoder": StackInputs(members["long_ids"])}, "logits"
    side = "left" if case == "gpt2-left" else "batch"
    ids, mask = members[f"{side}_ids"], padding(members[f"{side}_mask"])
    if case.startswith(("t5", "marian")):
        return {"encoder": StackInputs(ids, mask), "decoder": StackInputs(members["batch_decoder_ids"])}, "logits"
    positions = token_positions(mask) if side == "left" else None
    return {"encoder" if case == "bert-mlm" else "decoder": StackInputs(ids, mask, positions=positions)}, "logits"


def loss_of(y, members):
    """The loss, and its gradient: mean cross-entropy where targets are not -100, or the mean of y times an array."""
    if "grad_output" in members:
        dy = members["grad_output"] / members["grad_output"].size
        return float((y * dy).sum()), dy.astype(y.dtype)
    targets = members["targets"]
    shifted = y - y.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    real = (targets >= 0)[..., None]
    hot = (targets[..., None] == np.arange(y.shape[-1])) & real
    return -float((logs * hot).sum() / real.sum()), ((np.exp(logs) * real - hot) / real.sum()).astype(y.dtype)


def gradients_of(model, inputs, output, members, **options):
    """The loss and the gradients of parameters, by name."""
    y, recorded = run_model(model, inputs, output=output, **options)
    loss, dy = loss_of(y, members)
    gradients = model_backward(model, recorded, dy)
    return loss, {f"{layer}.{name}": x for layer, names in gradients.params.items() for name, x in names.items()}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_torch_autograd(case, dtype):
    """In float64 to 1e-9 of the largest number of a tensor, in float32 to 1e-5.

    Random weights amplify rounding: where PyTorch's own float32 is further from its float64 than half of that in some
    tensor of the model (only in T5, whose scores are not scaled), ours may be twice as far.
    """
    members = reference(case)
    model, (inputs, output) = core(CASES[case], dtype), inputs_of(case, dtype)
    loss, gradients = gradients_of(model, inputs, output, members)
    assert set(gradients) == set(members["names"])
    wide = dtype == "float64"
    assert abs(loss - members["loss"]) <= (1e-11 if wide else 1e-5) * max(1, abs(members["loss"]))
    largest = dict(zip(members["names"], members["stats"][:, 0], strict=True))
    start, worst = 0, {}
    limit = 1e-9 if wide else max(1e-5, 2 * members["float32"].max())
    for name, stats in zip(members["names"], members["stats"], strict=True):
        gradient = gradients[name]
        assert gradient.dtype == dtype
        # the bias of keys has no effect but for rounding: compare with the weight
        scale, flat = largest[name.replace(".bk", ".wk")], gradient.astype(float).ravel()
        signs = np.random.default_rng(flat.size).choice([-1.0, 1.0], (2, flat.size)) / flat.size**0.5
        errors = [np.abs(signs @ flat - stats[1:]).max(), abs(np.abs(flat).max() - stats[0])]
        if flat.size <= SMALL:
            errors.append(np.abs(flat - members["small"][start : start + flat.size]).max())
            start += flat.size
        worst[name] = max(errors) / scale
    assert start == members["small"].size
    assert max(worst.values()) <= limit, sorted(worst.items(), key=lambda item: -item[1])[:5]
