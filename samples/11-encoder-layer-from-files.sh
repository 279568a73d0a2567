#!/usr/bin/env bash
# The same layer with weights from files: attention, feed-forward network, and the γ and β
# of both normalizations, as NumPy saves them.
# Lecture: layers
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

python3 - "$dir" <<'END'
import sys
import numpy as np

rng = np.random.default_rng(0)

def draw(*shape):
    return rng.normal(0, 0.4, shape)

def save(name, **arrays):
    np.savez(f"{sys.argv[1]}/{name}.npz", **arrays)

def attention():
    square = {name: draw(6, 6) for name in ("wq", "wk", "wv", "wo")}
    return square | {name: draw(6) for name in ("bq", "bk", "bv", "bo")}

save("self", **attention())
save("ffn", w1=draw(6, 24), b1=draw(24), w2=draw(24, 6), b2=draw(6))
save("norm1", gamma=1 + draw(6), beta=draw(6))
save("norm2", gamma=1 + draw(6), beta=draw(6))
END

attnkit embed "The cat sat down" --dim 6 --dtype float64 | attnkit posenc -o "$dir/x.npz"

attnkit attend "$dir/x.npz" --heads 2 --params "$dir/self.npz" --residual \
  | attnkit layernorm --gamma "$dir/norm1.npz:gamma" --beta "$dir/norm1.npz:beta" \
  | attnkit ffn --params "$dir/ffn.npz" --residual \
  | attnkit layernorm --gamma "$dir/norm2.npz:gamma" --beta "$dir/norm2.npz:beta" > "$dir/tools.npz"

python3 - "$dir" <<'END'
import sys
import numpy as np
from attnkit import model

params = {name: dict(np.load(f"{sys.argv[1]}/{name}.npz")) for name in ("self", "ffn", "norm1", "norm2")}
x = np.load(f"{sys.argv[1]}/x.npz")["x"]
np.save(f"{sys.argv[1]}/core.npy", model.encoder_layer(x, params, heads=2))
END

attnkit show "$dir/tools.npz:x"
echo
attnkit diff "$dir/tools.npz:x" "$dir/core.npy"
