#!/usr/bin/env bash
# A layer of the encoder from the tools alone: LayerNorm(x + Attention(x)), then
# LayerNorm(x + FFN(x)). The weights are random, from a seed; the same seed gives the core
# module the same weights, and its layer is the same to the last bit.
# Lecture: layers
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit embed "The cat sat down" --dim 6 --scale --dtype float64 | attnkit posenc -o "$dir/x.npz"

attnkit attend "$dir/x.npz" --heads 2 --seed 1 --residual | attnkit layernorm \
  | attnkit ffn --hidden 24 --seed 2 --residual | attnkit layernorm > "$dir/tools.npz"

python3 - "$dir" <<'END'
import sys
import numpy as np
from attnkit import model

def weights(seed, **shapes):
    rng = np.random.default_rng(seed)
    return {name: model.random_weight(rng, *shape) for name, shape in shapes.items()}

params = {
    "self": weights(1, wq=(6, 6), wk=(6, 6), wv=(6, 6), wo=(6, 6)),
    "ffn": weights(2, w1=(6, 24), w2=(24, 6)),
}
x = np.load(f"{sys.argv[1]}/x.npz")["x"]
np.save(f"{sys.argv[1]}/core.npy", model.encoder_layer(x, params, heads=2))
END

attnkit show "$dir/tools.npz:x"
echo
attnkit diff "$dir/tools.npz:x" "$dir/core.npy"
