#!/usr/bin/env bash
# Why scores are divided by √d_k, by gradients: softmax of large scores is 0 and 1, and there its
# derivative is 0, so nothing is learned. 32 random queries and 8 random keys of d numbers; x is the
# weight of the first key, summed over the queries, and each number is the norm of its gradient with
# respect to the scores.
# Lecture: scale
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

echo '[[1], [0], [0], [0], [0], [0], [0], [0]]' > "$dir/first.json"
norm() {
  attnkit grad "attend --query $dir/q.npz --key $dir/k.npz --value $dir/first.json $*" --only 1.attend.masked -q -f json \
    | jq '[.tensors["1.attend.masked"].data | .. | numbers | . * .] | add | sqrt'
}

for d in 4 16 64 256 1024; do
  attnkit embed "$(seq -s ' ' 32)" --dim $d --seed 1 -o "$dir/q.npz"
  attnkit embed "$(seq -s ' ' 8)" --dim $d --seed 2 -o "$dir/k.npz"
  echo "[$(norm --scale 1), $(norm)]"
done | jq -s -c '{tensors: {x: {dtype: "float64", shape: [5, 2], axes: ["d", "scores"], data: .}},
    labels: {d: ["4", "16", "64", "256", "1024"], scores: ["Q Kᵀ", "Q Kᵀ / √d"]}}' > "$dir/norms.json"

echo 'norm of the gradient of the scores, by width'
attnkit show "$dir/norms.json" -f table
echo
attnkit show "$dir/norms.json" --heatmap -f table
