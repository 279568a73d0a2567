#!/usr/bin/env bash
# The decoder's mask: no query attends to padding, none to later words. Both are matrices of
# queries × keys; their product is the mask.
# Lecture: masks
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

words=data/three-words-and-a-pad.json
echo "padding in one dimension: $(jq -c '.tensors.ids | map(if . == 0 then 0 else 1 end)' $words)"
echo
attnkit mask $words --padding --pad-id 0 --as 01 -f table
echo
attnkit mask --size 4 --causal --as 01 -f table
echo
attnkit mask $words --padding --pad-id 0 --causal --as 01 -f table
echo
attnkit mask $words --padding --pad-id 0 --causal \
  | attnkit attend --keep scores,scaled,weights -f table

cat <<'END'

The notes print the raw products as already divided by 2: 1.74 is Q Kᵀ, and Q Kᵀ/2 is .87.
The notes print 1.9, 3.1 and 5.1: the products are 1.74, 2.78 and 4.46.
The notes print [1.0, 0, 0, 0] for the pad row: its three open keys score alike, so each weighs 1/3.
END

echo
echo "padding of rows and columns: a segment of its own, the pad sees nothing and its weights are zeros"
attnkit mask data/two-words-and-a-pad.json --padding --pad-id 0 --causal --segments <(echo '[1, 1, 0]') \
  | attnkit attend --quiet --keep weights | attnkit show --name mask,weights
