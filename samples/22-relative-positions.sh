#!/usr/bin/env bash
# Positions that say how far, not where: ALiBi and T5 add a bias to the scores, rotary
# positions turn queries and keys, so that scores depend on distance alone.
# Lecture: positions
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit embed "The cat sat" --dim 6 --dtype float64 -o "$dir/x.npz"

attnkit posenc "$dir/x.npz" --kind alibi --heads 2 -f table
echo
attnkit posenc "$dir/x.npz" --kind t5 --heads 2 --table data/t5-buckets.json -f table
echo
echo "the weights, with ALiBi's bias:"
attnkit posenc "$dir/x.npz" --kind alibi --heads 2 | attnkit attend --heads 2 --keep weights \
  | attnkit show --name weights

echo
echo "rotary, from position 0 and from position 100: other vectors, the same scores"
for offset in 0 100; do
  attnkit posenc "$dir/x.npz" --kind rotary --offset $offset -o "$dir/$offset.npz"
  attnkit attend --query "$dir/$offset.npz" --key "$dir/$offset.npz" --value "$dir/x.npz" --emit scores \
    -f npz --only x > "$dir/scores-$offset.npz"
done
attnkit show "$dir/100.npz:x"
attnkit show "$dir/scores-100.npz:x"
attnkit diff --atol 1e-9 "$dir/scores-0.npz" "$dir/scores-100.npz" > "$dir/verdict" && echo "the same scores"
