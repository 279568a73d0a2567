#!/usr/bin/env bash
# Why the feed-forward network has an activation: without one, two linear maps are one linear map, however wide the
# hidden layer is. With ReLU the network bends: it computes |x|, which no linear map can.
# Lecture: ffn
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo '[[-2], [-1], [0], [1], [2]]' > x.json
echo '{"w1": [[1, -1]], "w2": [[1], [1]]}' > network.json

echo 'relu: max(0, x) + max(0, −x) = |x|'
attnkit ffn x.json --params network.json --activation relu -f csv

echo
echo 'without an activation: x W₁ W₂ = x · (1 − 1) = 0, as by the one matrix W₁ W₂'
attnkit ffn x.json --params network.json --activation identity -f csv
