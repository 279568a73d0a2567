#!/usr/bin/env bash
# Attention rollout. The last layer attends to states, which hold several words already; the product
# of all layers, each with the residual connection beside its heads, says how much of each word of the
# input is in each last state. By hand: two layers of one head over two words.
# Lecture: interpretability
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

echo "W0 = [[1, 0], [1, 0]], A0 = .5 W0 + .5 I = [[1, 0], [.5, .5]]"
echo "W1 = [[.5, .5], [0, 1]], A1 = [[.75, .25], [0, 1]]"
echo "A1 A0 = [[.75 · 1 + .25 · .5, .25 · .5], [.5, .5]]"
echo '{"tensors": {"encoder.0.self.weights": {"data": [[[1.0, 0], [1, 0]]]},
                   "encoder.1.self.weights": {"data": [[[0.5, 0.5], [0, 1]]]}}}' \
  | attnkit rollout --only x -f table

attnkit encode --model data/fr-en "le petit chat noir dort" --trace "$dir/run.npz" -o "$dir/x.npz"
echo
echo "the last layer alone, the mean of its heads: half a row is the residual connection"
attnkit rollout "$dir/run.npz" --layers 1: -f table --precision 2
echo
echo "all layers: each state holds something of every word"
attnkit rollout "$dir/run.npz" -f table --precision 2
echo
attnkit rollout "$dir/run.npz" --only x | attnkit show --heatmap
