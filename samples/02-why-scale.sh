#!/usr/bin/env bash
# Why scores are divided by √d_k: large scores push the softmax to 0 and 1, where it stops
# learning. One query, two keys, once without the division and once with it.
# Lecture: scale
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

query='[[2, 3, 4, 1]]' keys='[[1, 0, 1, 0], [0, 1, 0, 1]]'
compare() {
  attnkit attend --query <(echo "$query") --key <(echo "$keys") --value <(echo "$keys") \
    --keep scores,scaled,weights "$@" | attnkit show --name scaled,weights
}

echo "without scaling:"
compare --scale 1
echo
echo "divided by √4:"
compare
echo
echo "The notes print .75 and .25: the softmax of [3, 2] is .7311 and .2689."

echo
echo "saturation, softmax([10, 1]):"
echo '[[10, 1]]' | attnkit decode --table <(echo '[[1, 0], [0, 1]]') --emit probs -f table
