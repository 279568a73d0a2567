"""A port of the model `story` (GPT-2) to plain NumPy, which names its intermediates. It makes two mistakes.

python3 port.py FOLDER "a text" OUT.npz
"""

import math
import sys

import numpy as np

import attnkit


def layer_norm(x, gamma, beta):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta


def gelu(x):
    return x / (1 + np.exp(-x))


def attention(x, weights, heads, name):
    q, k, v = (
        np.moveaxis(part.reshape(len(x), heads, -1), 1, 0)  # (H, T, K)
        for part in np.split(x @ weights["c_attn.weight"] + weights["c_attn.bias"], 3, axis=-1)
    )
    scores = attnkit.tap(f"{name}.scaled", q @ k.swapaxes(1, 2) / math.sqrt(x.shape[-1]))
    scores = np.where(np.tri(len(x), dtype=bool), scores, -1e9)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    heads_out = attnkit.tap(f"{name}.weights", exponentials / exponentials.sum(-1, keepdims=True)) @ v
    return np.moveaxis(heads_out, 0, 1).reshape(x.shape) @ weights["c_proj.weight"] + weights["c_proj.bias"]


def run(parameters, ids, layers=3, heads=4):
    def part(prefix):
        return {name.removeprefix(prefix): array for name, array in parameters.items() if name.startswith(prefix)}

    x = attnkit.tap("decoder.positions", parameters["wte.weight"][ids] + parameters["wpe.weight"][: len(ids)])
    for number in range(layers):
        block, name = part(f"h.{number}."), f"decoder.{number}"
        norm = attnkit.tap(f"{name}.norm1", layer_norm(x, block["ln_1.weight"], block["ln_1.bias"]))
        x = x + attnkit.tap(f"{name}.self.output", attention(norm, part(f"h.{number}.attn."), heads, f"{name}.self"))
        norm = attnkit.tap(f"{name}.norm2", layer_norm(x, block["ln_2.weight"], block["ln_2.bias"]))
        hidden = gelu(norm @ block["mlp.c_fc.weight"] + block["mlp.c_fc.bias"])
        x = x + attnkit.tap(f"{name}.ffn.output", hidden @ block["mlp.c_proj.weight"] + block["mlp.c_proj.bias"])
    x = layer_norm(x, parameters["ln_f.weight"], parameters["ln_f.bias"])
    return attnkit.tap("logits", x @ parameters["wte.weight"].T)


folder, text, out = sys.argv[1:]
stored = attnkit.formats.load(f"{folder}/model.safetensors").arrays()
parameters = {name.removeprefix("transformer."): array.astype(np.float32) for name, array in stored.items()}
ids = attnkit.embed(text, tokenizer=f"{folder}/tokenizer.json", dim=1)["ids"]
with attnkit.record(out):
    attnkit.tap("ids", ids)
    run(parameters, ids)
