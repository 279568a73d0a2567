#!/usr/bin/env bash
# How far gradients reach: 8 layers of attention and feed-forward network with random weights, and
# the norm of the gradient of the loss at the output of every layer's network, the first layer first.
# Lecture: norms
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

stack() {  # each layer is $1, where N is its number
  printf 'embed "The cat sat on the mat and the dog looked at it" --dim 32 --dtype float64 | posenc'
  for n in 1 2 3 4 5 6 7 8; do printf ' | %s' "${1//N/$n}"; done
  printf ' | layernorm | decode | loss --target "cat sat on the mat and the dog looked at it The"'
}
show_norms() {
  echo "$1"
  attnkit grad "$(stack "$2")" --grad-only '*.ffn.x' -f table
  echo
}

attend='attend --heads 4 --causal --seed N' ffn='ffn --hidden 64 --seed N'

show_norms 'no residuals: from the last layer to the first the gradient shrinks to a twentieth' \
  "$attend | $ffn"
show_norms 'residuals without normalization: it grows by a factor of 1600' \
  "$attend --residual | $ffn --residual"
show_norms 'post-norm, as in the paper: LayerNorm(x + f(x))' \
  "$attend --residual | layernorm | $ffn --residual | layernorm"
show_norms 'pre-norm, as in GPT-2: x + f(LayerNorm(x))' \
  "layernorm --keep residual | $attend --add :residual | layernorm --keep residual | $ffn --add :residual"

echo 'the same derivative by a finite difference'
attnkit grad "$(stack "$attend --residual | layernorm | $ffn --residual | layernorm")" --check --only check -f json -q \
  | jq -r '"relative error below 1e-6: \(.tensors.check.data[2] < 1e-6)"'
