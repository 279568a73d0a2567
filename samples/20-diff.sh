#!/usr/bin/env bash
# diff says whether two tensors are the same, and if not, where: the first and the largest
# difference, by their labels. Exit code 0 is the same, 1 is different.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

words=data/three-words.json
compare() { attnkit diff "$@" && echo "exit 0" || echo "exit $?"; }

compare $words <(jq . $words)
echo
compare $words <(jq '.tensors.x[0][1] = 0.25 | .tensors.x[1][2] = 1' $words)
echo
compare $words data/three-words-and-a-pad.json
echo
echo "rounded to float16, and then with a tolerance:"
compare $words <(attnkit show $words --dtype float16 -f npy -q)
compare --atol 0.001 $words <(attnkit show $words --dtype float16 -f npy -q)
