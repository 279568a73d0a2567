#!/usr/bin/env bash
# The decoder's layer with weights from files, for a batch of two sentences. No word attends
# to later words, and none to the padding of the encoder's batch, whose mask comes with the memory.
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
save("cross", **attention())
save("ffn", w1=draw(6, 24), b1=draw(24), w2=draw(24, 6), b2=draw(6))
for name in ("norm1", "norm2", "norm3"):
    save(name, gamma=1 + draw(6), beta=draw(6))
END
norm() { attnkit layernorm --gamma "$dir/$1.npz:gamma" --beta "$dir/$1.npz:beta"; }

attnkit embed "the cat sat" "a dog" --dim 6 --dtype float64 | attnkit posenc -o "$dir/memory.npz"
attnkit embed "le chat" "un chien" --dim 6 --dtype float64 | attnkit posenc -o "$dir/x.npz"

attnkit attend "$dir/x.npz" --causal --heads 2 --params "$dir/self.npz" --residual | norm norm1 \
  | attnkit attend --memory "$dir/memory.npz" \
      --heads 2 --params "$dir/cross.npz" --residual | norm norm2 \
  | attnkit ffn --params "$dir/ffn.npz" --residual | norm norm3 > "$dir/tools.npz"

python3 - "$dir" <<'END'
import sys
import numpy as np
from attnkit import model

params = {
    name: dict(np.load(f"{sys.argv[1]}/{name}.npz"))
    for name in ("self", "cross", "ffn", "norm1", "norm2", "norm3")
}
x, memory = (np.load(f"{sys.argv[1]}/{name}.npz") for name in ("x", "memory"))
padding = memory["mask"][:, None]  # (B, 1, 1, S): the same for every head and query
y = model.decoder_layer(x["x"], memory["x"], params, heads=2, memory_mask=padding)
np.save(f"{sys.argv[1]}/core.npy", y)
END

attnkit show "$dir/tools.npz:x"
echo
attnkit diff "$dir/tools.npz:x" "$dir/core.npy"
