#!/usr/bin/env bash
# The sizes of the paper's base model: d_model 512, 8 heads of 64, d_ff 2048, 6 layers.
# Random weights have the right shapes, and shapes are what is shown.
# Lecture: layers
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

echo "one sub-layer of each kind:"
attnkit embed "The cat sat" --dim 512 --scale | attnkit posenc \
  | attnkit attend --heads 8 --seed 1 --keep q,k,v,heads --residual | attnkit layernorm \
  | attnkit ffn --hidden 2048 --seed 1 --residual --steps --quiet | attnkit layernorm \
  | attnkit show --list

echo
layers=""
for n in 1 2 3 4 5 6; do
  layers+=" | attend --heads 8 --seed $n --residual | layernorm"
  layers+=" | ffn --hidden 2048 --seed $n --residual | layernorm"
done
stack=$(attnkit run "embed 'The cat sat' --dim 512 --scale | posenc $layers" | jq -c .tensors.x.shape)
echo "6 layers:   $stack, as wide as the embedding"
echo "a layer:    $((4 * 512 * 512)) weights in W_Q, W_K, W_V and W_O, $((2 * 512 * 2048)) in W₁ and W₂"

echo "embedding:  times $(attnkit embed The --dim 512 --scale \
  | jq '.tensors.x.data[0][0] / .tensors.table.data[0][0] * 1e4 | round / 1e4'), √512"
echo "logits:     $(attnkit embed "The cat sat" --dim 512 | attnkit decode \
  | jq -c .tensors.logits.shape), by the embedding's own matrix"
echo "GPT-3:      $(attnkit embed The --dim 12288 | jq -c .tensors.x.shape), one token"
