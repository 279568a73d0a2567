#!/usr/bin/env bash
# A layer of the decoder: masked self-attention, attention over the encoder's memory, and
# the feed-forward network. What the encoder made is a file here.
# Lecture: layers
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit embed "the cat sat" --dim 6 --dtype float64 | attnkit posenc \
  | attnkit attend --heads 2 --seed 1 --residual | attnkit layernorm \
  | attnkit ffn --hidden 24 --seed 1 --residual | attnkit layernorm -o "$dir/memory.npz"
attnkit embed "le chat dort" --dim 6 --dtype float64 | attnkit posenc -o "$dir/x.npz"

attnkit attend "$dir/x.npz" --causal --heads 2 --seed 2 --residual | attnkit layernorm \
  | attnkit attend --memory "$dir/memory.npz" --heads 2 --seed 3 --residual --keep weights \
  | attnkit layernorm \
  | attnkit ffn --hidden 24 --seed 4 --residual | attnkit layernorm > "$dir/tools.npz"

python3 - "$dir" <<'END'
import sys
import numpy as np
from attnkit import model

def weights(seed, **shapes):
    rng = np.random.default_rng(seed)
    return {name: model.random_weight(rng, *shape) for name, shape in shapes.items()}

square = dict.fromkeys(("wq", "wk", "wv", "wo"), (6, 6))
params = {
    "self": weights(2, **square),
    "cross": weights(3, **square),
    "ffn": weights(4, w1=(6, 24), w2=(24, 6)),
}
x, memory = (np.load(f"{sys.argv[1]}/{name}.npz")["x"] for name in ("x", "memory"))
np.save(f"{sys.argv[1]}/core.npy", model.decoder_layer(x, memory, params, heads=2))
END

echo "where the words of the decoder look in the encoder:"
attnkit show "$dir/tools.npz" --name weights
echo
attnkit show "$dir/tools.npz:x"
echo
attnkit diff "$dir/tools.npz:x" "$dir/core.npy"
