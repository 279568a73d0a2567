"""Gradients by torch.autograd, frozen: what tests/model/backward compares the adjoints with.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6 .
    python tests/references/make_gradients.py

writes gradients.npz beside this file, computed in float64 on the processor, and without the network.

Operators: members CASE/NAME are inputs, float32 numbers that are widened; CASE/grad_output is the gradient of the
output, and CASE/grad.NAME that of an input.

Models: of those in models/, with the inputs of models/NAME.npz. The loss is the mean cross-entropy of the logits at
NAME/targets (-100: none), or the mean of the output times NAME/grad_output for models without a head. Every
parameter has one row of NAME/stats in the order of NAME/names (attnkit's, layer.parameter): the largest magnitude of
its gradient, and the products of the gradient, flattened, with two vectors of signs over the square root of its size,
`signs(size)`; NAME/small holds the gradients of at most 32 elements, one after another; NAME/float32 for each
parameter how far PyTorch's gradient in float32 is from that in float64, relative to its largest magnitude, or that of
wk for the bias of keys, whose gradient is 0 but for rounding. Gradients of tied parameters are their sum. Where a
reference computes norms, rotations or softmax in float32 even if the model is float64, it is made to compute them in
float64; and padding_idx, for which PyTorch leaves out the gradient of a row, is unset.
"""

import contextlib
import pathlib

import numpy as np
import torch
import transformers
from make_models import widened
from torch import nn
from torch.nn import functional

from attnkit.checkpoints import open_checkpoint

HERE = pathlib.Path(__file__).parent
SMALL = 32
Arrays = dict[str, np.ndarray]


def signs(size: int) -> np.ndarray:
    """Two vectors of signs over the square root of their size: (2, size)."""
    return np.random.default_rng(size).choice([-1.0, 1.0], (2, size)) / max(size, 1) ** 0.5


# Operators ----------------------------------------------------------------------------------------------------------


def rotated(x, cos, sin, interleaved):
    width = 2 * cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    left, right = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    turned = cos * left - sin * right, sin * left + cos * right
    both = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([both, rest], -1)


def resized(table, rows, columns, new_rows, new_columns):
    grid = table[1:].reshape(1, rows, columns, -1).permute(0, 3, 1, 2)
    grid = functional.interpolate(grid, (new_rows, new_columns), mode="bicubic", align_corners=False)
    return torch.cat([table[:1], grid.permute(0, 2, 3, 1).flatten(0, 2)])


def gated(x, w1, b1, w2, b2, w3=None, b3=None, *, activation):
    inner = activation(x @ w1 + b1)
    return (inner if w3 is None else inner * (x @ w3 + b3)) @ w2 + b2


def patches(image, size):
    rows = functional.unfold(image, size, stride=size)
    return rows.transpose(-1, -2)


def rms(x, gamma, eps, axes):
    return x / torch.sqrt(x.square().mean(axes, keepdim=True) + eps) * gamma


def batch(x, gamma, beta, mean=None, variance=None, eps=1e-5):
    flat = x.flatten(0, -2)
    return functional.batch_norm(flat, mean, variance, gamma, beta, training=mean is None, eps=eps).reshape(x.shape)


ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu-tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: 1 * x,
}
IDS = torch.tensor([[2, 0, 2], [1, 4, 2]])
BUCKETS = torch.tensor([[0, 1, 3], [1, 0, 3]])
ANGLES = torch.arange(6.0, dtype=torch.float64).reshape(3, 2) / 3

# case -> the shapes of its inputs, and the operator
CASES = {
    "linear": ({"x": (2, 3, 4), "weight": (4, 5), "bias": (5,)}, lambda x, weight, bias: x @ weight + bias),
    "add": ({"x": (2, 3, 4), "y": (3, 1)}, lambda x, y: x + y),
    "embed": ({"table": (5, 4)}, lambda table: functional.embedding(IDS, table)),
    "scale": ({"x": (2, 3)}, lambda x: x * 3**0.5),
    "positions": ({"x": (2, 3, 4), "table": (5, 4)}, lambda x, table: x + table[IDS[0]]),
    "positions-batch": ({"x": (2, 3, 4), "table": (5, 4)}, lambda x, table: x + table[IDS]),
    "t5-bias": ({"table": (4, 2)}, lambda table: table[BUCKETS].permute(2, 0, 1)),
    "rotate": ({"x": (2, 3, 5)}, lambda x: rotated(x, ANGLES.cos(), ANGLES.sin(), False)),
    "rotate-interleaved": ({"x": (2, 3, 5)}, lambda x: rotated(x, ANGLES.cos(), ANGLES.sin(), True)),
    "layer-norm": (
        {"x": (2, 3, 4), "gamma": (4,), "beta": (4,)},
        lambda x, gamma, beta: functional.layer_norm(x, (4,), gamma, beta, 1e-5),
    ),
    "layer-norm-axes": (
        {"x": (2, 3, 4), "gamma": (3, 4), "beta": (3, 4)},
        lambda x, gamma, beta: functional.layer_norm(x, (3, 4), gamma, beta, 1e-3),
    ),
    "layer-norm-plain": ({"x": (2, 3, 4)}, lambda x: functional.layer_norm(x, (4,), eps=1.0)),
    "rms-norm": ({"x": (2, 3, 4), "gamma": (4,)}, lambda x, gamma: rms(x, gamma, 1e-5, -1)),
    "rms-norm-axes": ({"x": (2, 3, 4), "gamma": (3, 4)}, lambda x, gamma: rms(x, gamma, 1e-2, (1, 2))),
    "batch-norm": ({"x": (2, 3, 4), "gamma": (4,), "beta": (4,)}, batch),
    "batch-norm-running": (
        {"x": (2, 3, 4), "gamma": (4,), "beta": (4,)},
        lambda x, gamma, beta: batch(x, gamma, beta, ANGLES.flatten()[:4], ANGLES.flatten()[1:5]),
    ),
    **{f"activation-{name}": ({"x": (40,)}, function) for name, function in ACTIVATIONS.items()},
    **{
        f"feed-forward-{name}": (
            {"x": (2, 3, 4), "w1": (4, 5), "b1": (5,), "w2": (5, 4), "b2": (4,)},
            lambda function=function, **arrays: gated(**arrays, activation=function),
        )
        for name, function in ACTIVATIONS.items()
    },
    "feed-forward-gated": (
        {"x": (2, 3, 4), "w1": (4, 5), "b1": (5,), "w2": (5, 4), "b2": (4,), "w3": (4, 5), "b3": (5,)},
        lambda **arrays: gated(**arrays, activation=functional.silu),
    ),
    "patches": ({"image": (2, 3, 4, 6)}, lambda image: patches(image, (2, 3))),
    "interpolate": ({"table": (7, 2)}, lambda table: resized(table, 2, 3, 4, 2)),
}


def operators() -> Arrays:
    members: Arrays = {}
    for case, (shapes, function) in CASES.items():
        generator = torch.Generator().manual_seed(3)
        inputs = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        if case.startswith("activation"):
            inputs["x"] *= 3
        leaves = {name: x.double().requires_grad_() for name, x in inputs.items()}
        y = function(leaves["x"]) if case.startswith("activation") else function(**leaves)
        dy = torch.randn(y.shape, generator=generator)
        gradients = torch.autograd.grad(y, list(leaves.values()), dy.double())
        members |= {f"{case}/{name}": x.numpy() for name, x in inputs.items()} | {f"{case}/grad_output": dy.numpy()}
        members |= {f"{case}/grad.{name}": grad.numpy() for name, grad in zip(leaves, gradients, strict=True)}
    return members


# Models -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def only_float64():
    """Make code that asks for float32 compute in float64."""
    single, method, name = torch.float32, torch.Tensor.float, torch.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float, torch.float = single, method, name


def exact_rotations(model: nn.Module) -> None:
    """Frequencies computed in float64; called where float32 means float64."""
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq = type(module)(module.config).inv_freq
            assert module.inv_freq.dtype == torch.float64


def next_tokens(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    targets = np.full(ids.shape, -100)
    targets[:, :-1] = np.where(mask[:, 1:] * mask[:, :-1] > 0, ids[:, 1:], -100)
    return targets


def drawn(seed: int, shape, low: int, high: int, mask=None) -> np.ndarray:
    targets = np.random.default_rng(seed).integers(low, high, shape)
    return targets if mask is None else np.where(mask > 0, targets, -100)


def cross_entropy(logits, targets):
    return functional.cross_entropy(logits.flatten(0, -2), torch.from_numpy(targets).flatten(), ignore_index=-100)


def decoder(frozen, side=""):
    ids, mask = frozen[f"{side}_ids"], frozen[f"{side}_mask"]
    targets = next_tokens(ids, mask)
    positions = torch.from_numpy(np.maximum(mask.cumsum(-1) - 1, 0))

    def loss(model):
        extra = {"position_ids": positions} if side == "left" else {}
        given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        return cross_entropy(model(**given, **extra).logits, targets)

    return {"targets": targets}, loss


def long_decoder(frozen):
    ids = frozen["long_ids"]
    targets = next_tokens(ids, np.ones_like(ids))
    return {"targets": targets}, lambda model: cross_entropy(model(input_ids=torch.from_numpy(ids)).logits, targets)


def masked_words(frozen):
    ids, mask = frozen["batch_ids"], frozen["batch_mask"]
    targets = drawn(1, ids.shape, 5, 60, mask)
    given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
    return {"targets": targets}, lambda model: cross_entropy(model(**given).logits, targets)


def translation(frozen):
    ids, mask, target = frozen["batch_ids"], frozen["batch_mask"], frozen["batch_decoder_ids"]
    targets = drawn(2, target.shape, 3, 60)
    targets[1, 4:] = -100
    given = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": target}
    given = {name: torch.from_numpy(array) for name, array in given.items()}
    return {"targets": targets}, lambda model: cross_entropy(model(**given).logits, targets)


def pooled(frozen):
    given = {"input_ids": torch.from_numpy(frozen["ids"]), "token_type_ids": torch.from_numpy(frozen["types"])}
    dy = np.random.default_rng(4).standard_normal((1, 24))
    return {"grad_output": dy}, lambda model: (model(**given).pooler_output * torch.from_numpy(dy)).mean()


def image(frozen, side=""):
    pixels, targets = torch.from_numpy(frozen[f"{side}pixels"]), np.array([3])

    def loss(model):
        extra = {"interpolate_pos_encoding": True} if side else {}
        return cross_entropy(model(pixels.to(model.dtype), **extra).logits, targets)

    return {"targets": targets}, loss


def vectors(frozen):
    dy = np.random.default_rng(5).standard_normal(frozen["tgt"].shape)

    def loss(model):
        dtype = next(model.parameters()).dtype
        x, tgt = (torch.from_numpy(frozen[name]).to(dtype) for name in ("x", "tgt"))
        ignored, causal = torch.from_numpy(frozen["padding"]) == 0, torch.from_numpy(~frozen["tgt_mask"])
        memory = model.encoder(x, src_key_padding_mask=ignored)
        y = model.decoder(tgt, memory, tgt_mask=causal, memory_key_padding_mask=ignored)
        return (y * torch.from_numpy(dy).to(dtype)).mean()

    return {"grad_output": dy}, loss


MODELS = {  # case -> the model, its class, and the loss
    "gpt2": ("gpt2", transformers.GPT2LMHeadModel, lambda frozen: decoder(frozen, "batch")),
    "gpt2-left": ("gpt2", transformers.GPT2LMHeadModel, lambda frozen: decoder(frozen, "left")),
    "gpt2-scaled": ("gpt2-scaled", transformers.GPT2LMHeadModel, lambda frozen: decoder(frozen, "batch")),
    "openai-gpt": ("openai-gpt", transformers.OpenAIGPTLMHeadModel, lambda frozen: decoder(frozen, "batch")),
    "llama": ("llama", transformers.LlamaForCausalLM, lambda frozen: decoder(frozen, "batch")),
    "llama3": ("llama3", transformers.LlamaForCausalLM, long_decoder),
    "llama-yarn": ("llama-yarn", transformers.LlamaForCausalLM, long_decoder),
    "mistral": ("mistral", transformers.MistralForCausalLM, long_decoder),
    "qwen2": ("qwen2", transformers.Qwen2ForCausalLM, long_decoder),
    "bert-mlm": ("bert-mlm", transformers.BertForMaskedLM, masked_words),
    "bert": ("bert", transformers.BertModel, pooled),
    "vit": ("vit", transformers.ViTForImageClassification, image),
    "vit-wide": ("vit", transformers.ViTForImageClassification, lambda frozen: image(frozen, "wide.")),
    "t5": ("t5", transformers.T5ForConditionalGeneration, translation),
    "t5-gated": ("t5-gated", transformers.T5ForConditionalGeneration, translation),
    "marian": ("marian", transformers.MarianMTModel, translation),
    "transformer": ("transformer", nn.Transformer, vectors),
    "transformer-prenorm": ("transformer-prenorm", nn.Transformer, vectors),
}


def load(name: str, kind) -> nn.Module:
    folder = HERE / "models" / name
    if kind is not nn.Transformer:
        return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    import json

    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    model = nn.Transformer(**config, dropout=0.0, batch_first=True).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


STORED = {  # what transformers calls parameters of vit in memory -> and in files
    "vit.layers.": "vit.encoder.layer.",
    "attention.o_proj": "attention.output.dense",
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def stored_name(name: str) -> str:
    for own, stored in STORED.items():
        name = name.replace(own, stored) if name.startswith("vit.") else name
    return name


def gradients_of(model: nn.Module, loss, params) -> tuple[float, Arrays]:
    """The loss, and its gradients as attnkit names and shapes the parameters."""
    leaves = dict(model.named_parameters())
    if hasattr(model, "final_logits_bias"):
        leaves["final_logits_bias"] = model.final_logits_bias.requires_grad_()
    value = loss(model)
    grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    by_name = {stored_name(name): grad.numpy() for name, grad in zip(leaves, grads, strict=True) if grad is not None}
    named: Arrays = {}
    for layer, specs in params.specs.items():
        for name, spec in specs.items():
            (stored,) = (full for full in by_name if full.endswith(params.weights.find(spec.names)))
            named[f"{layer}.{name}"] = spec.to_parameter(by_name[stored], params.config.parameter_shape(layer, name))
    return float(value.detach()), named


def summary(gradients: Arrays) -> Arrays:
    rows = [
        [np.abs(gradient).max(), *(signs(gradient.size) @ np.ascontiguousarray(gradient).ravel())]
        for gradient in gradients.values()
    ]
    small = [np.ascontiguousarray(gradient).ravel() for gradient in gradients.values() if gradient.size <= SMALL]
    return {"names": np.array(list(gradients)), "stats": np.array(rows), "small": np.concatenate(small)}


def models() -> Arrays:
    members: Arrays = {}
    for case, (name, kind, make) in MODELS.items():
        params = open_checkpoint(str(HERE / "models" / name)).params
        with np.load(HERE / "models" / f"{name}.npz") as frozen:
            inputs, loss = make(dict(frozen))
        model = load(name, kind)
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.padding_idx = None  # which leaves out the gradient of that row
        _, single = gradients_of(model, loss, params)
        wide = widened(model)
        with only_float64():
            exact_rotations(wide)
            value, gradients = gradients_of(wide, loss, params)
        assert all(gradient.dtype == np.float64 for gradient in gradients.values())
        of = summary(gradients) | {"loss": np.array(value), **inputs}
        errors = [
            np.abs(single[key] - gradient).max() / np.abs(gradients[key.replace(".bk", ".wk")]).max()
            for key, gradient in gradients.items()
        ]
        members |= {f"{case}/{key}": array for key, array in of.items()} | {f"{case}/float32": np.array(errors)}
        print(case, len(gradients), value, max(errors))
    return members


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    np.savez_compressed(HERE / "gradients.npz", **operators(), **models())
