#!/usr/bin/env bash
# How far is the last word from the first? In a recurrent network each step between them multiplies the gradient of the
# last state once more; in attention every word is one step away. The norm of the gradient at each of 12 words.
# Lecture: path
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attnkit embed "one two three four five six seven eight nine ten eleven twelve" --dim 32 --seed 1 --dtype float64 -o "$work/x.npz"

norms() { # of the gradient at each word of the sum of the last output, in percent of the largest
  attnkit grad "$1" --of 'x[11,:]' -q -f json | jq -r '
    .tensors["0.input.x"].data | map(map(. * .) | add | sqrt) | max as $most
    | map(. / $most * 100 | round | tostring) | join(" ")'
}
echo 'a recurrent network'
norms "rnn $work/x.npz --cell tanh --hidden 32 --seed 2"

echo
echo 'attention'
norms "attend $work/x.npz --seed 2"
